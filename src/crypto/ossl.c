/* How it works: an EVP fetch by name takes microseconds and a lock, a new
 * context an allocation; both are done once and kept. Contexts belong to one
 * thread and die with it through a pthread key. After fork() the child's one
 * thread goes on with its copy. No configuration file is read: a system-wide
 * openssl.cnf must not change which cipher a tunnel gets. */
#include "crypto/ossl.h"

#include "base/log.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/params.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct ossl_algs ossl_algs;

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static int key_ret;
static __thread struct ossl_thread *mine;

static void thread_free(void *arg)
{
	struct ossl_thread *t = arg;

	EVP_MD_CTX_free(t->md);
	EVP_MAC_CTX_free(t->mac);
	EVP_CIPHER_CTX_free(t->aead);
	EVP_CIPHER_CTX_free(t->chacha20);
	EVP_PKEY_CTX_free(t->x25519);
	EVP_PKEY_free(t->peer);
	free(t);
	mine = NULL;
}

/* A key's destructor does not run for the thread that leaves main(). */
static void free_at_exit(void)
{
	if (mine)
		thread_free(mine);
}

static void key_make(void)
{
	key_ret = -pthread_key_create(&key, thread_free);
	if (!key_ret && atexit(free_at_exit))
		key_ret = -ENOMEM;
}

int ossl_init(void)
{
	if (ossl_algs.blake2s)
		return 0;
	if (!OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL))
		return -ENOTSUP;
	pthread_once(&key_once, key_make);
	if (key_ret)
		return key_ret;
	ossl_algs.aead = EVP_CIPHER_fetch(NULL, "ChaCha20-Poly1305", NULL);
	ossl_algs.chacha20 = EVP_CIPHER_fetch(NULL, "ChaCha20", NULL);
	ossl_algs.blake2s_mac = EVP_MAC_fetch(NULL, "BLAKE2SMAC", NULL);
	ossl_algs.blake2s = EVP_MD_fetch(NULL, "BLAKE2S-256", NULL);
	if (ossl_algs.aead && ossl_algs.chacha20 && ossl_algs.blake2s_mac && ossl_algs.blake2s)
		return 0;
	EVP_CIPHER_free(ossl_algs.aead);
	EVP_CIPHER_free(ossl_algs.chacha20);
	EVP_MAC_free(ossl_algs.blake2s_mac);
	EVP_MD_free(ossl_algs.blake2s);
	ossl_algs = (struct ossl_algs){ 0 };
	ERR_clear_error();
	return -ENOTSUP;
}

void ossl_must(int ret)
{
	if (ret == 1)
		return;
	log_line(LOG_ERROR, "OpenSSL failed where only lack of memory explains it; giving up");
	abort();
}

/* A public key of no meaning, to be overwritten. */
static EVP_PKEY *some_key(EVP_PKEY_CTX *x25519)
{
	uint8_t bytes[32] = { 9 };
	OSSL_PARAM params[2] = {
		OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, bytes, sizeof(bytes)),
		OSSL_PARAM_construct_end(),
	};
	EVP_PKEY *pkey = NULL;

	ossl_must(EVP_PKEY_fromdata(x25519, &pkey, EVP_PKEY_PUBLIC_KEY, params));
	return pkey;
}

static struct ossl_thread *thread_new(void)
{
	struct ossl_thread *t = calloc(1, sizeof(*t));

	ossl_must(t != NULL);
	assert(ossl_algs.blake2s); /* crypto_init() was called */
	t->md = EVP_MD_CTX_new();
	t->mac = EVP_MAC_CTX_new(ossl_algs.blake2s_mac);
	t->aead = EVP_CIPHER_CTX_new();
	t->chacha20 = EVP_CIPHER_CTX_new();
	t->x25519 = EVP_PKEY_CTX_new_from_name(NULL, "X25519", NULL);
	ossl_must(t->md && t->mac && t->aead && t->chacha20 && t->x25519);
	ossl_must(EVP_DigestInit_ex2(t->md, ossl_algs.blake2s, NULL));
	ossl_must(EVP_CipherInit_ex2(t->aead, ossl_algs.aead, NULL, NULL, 1, NULL));
	ossl_must(EVP_CipherInit_ex2(t->chacha20, ossl_algs.chacha20, NULL, NULL, 1, NULL));
	ossl_must(EVP_PKEY_fromdata_init(t->x25519));
	t->peer = some_key(t->x25519);
	ossl_must(pthread_setspecific(key, t) == 0);
	return t;
}

struct ossl_thread *ossl_mine(void)
{
	if (!mine)
		mine = thread_new();
	return mine;
}
