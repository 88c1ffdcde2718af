/* Inside this folder only: OpenSSL's algorithms, fetched once, and the contexts
 * each thread keeps so that a call neither fetches nor allocates. */
#ifndef CRYPTO_OSSL_H
#define CRYPTO_OSSL_H

#include "base/compiler.h"

#include <openssl/evp.h>

/* What crypto_init() fetched. Read-only after it. */
struct ossl_algs {
	EVP_MD *blake2s;
	EVP_MAC *blake2s_mac;
	EVP_CIPHER *aead; /* ChaCha20-Poly1305 */
	EVP_CIPHER *chacha20; /* for HChaCha20 */
};

/* One thread's contexts; freed when it ends. */
struct ossl_thread {
	EVP_MD_CTX *md;
	EVP_MAC_CTX *mac;
	EVP_CIPHER_CTX *aead;
	EVP_CIPHER_CTX *chacha20;
	EVP_PKEY_CTX *x25519; /* makes keys out of bytes */
	EVP_PKEY *peer; /* the other side of an exchange, set anew for each */
};

extern struct ossl_algs ossl_algs;

/* Fetch everything; harmless when called again. 0, -ENOTSUP or -ENOMEM. */
MUST_CHECK int ossl_init(void);
/* The calling thread's contexts. Aborts when there is no memory for them. */
struct ossl_thread *ossl_mine(void);
/* ret is what an OpenSSL call returned that fails only for want of memory or by
 * our mistake: abort unless 1. */
void ossl_must(int ret);

#endif
