/* See crypto.h: what every user of secrets needs, from OpenSSL. */
#include "crypto/crypto.h"

#include "crypto/ossl.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

void crypto_wipe(void *p, size_t len)
{
	OPENSSL_cleanse(p, len);
}

bool crypto_equal(const void *a, const void *b, size_t len)
{
	return CRYPTO_memcmp(a, b, len) == 0;
}

/* syscalls: getrandom getpid; OpenSSL's generator, which reseeds itself after fork() */
void crypto_random(void *out, size_t len)
{
	ossl_must(RAND_bytes_ex(NULL, out, len, 0));
}
