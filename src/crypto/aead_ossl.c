/* How it works: one EVP context, told the algorithm once; a batch sets the key
 * once and a nonce per message. The context holds a copy of the key, so each
 * batch ends by overwriting it: a session that ends leaves no key behind. */
#include "crypto/aead.h"

#include "crypto/ossl.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/params.h>
#include <stdlib.h>

struct aead_ossl {
	struct aead base;
	EVP_CIPHER_CTX *ctx;
};

static int ossl_create(struct aead **out)
{
	struct aead_ossl *a;

	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->base.ops = &aead_ossl_ops;
	a->ctx = EVP_CIPHER_CTX_new();
	if (!a->ctx)
		goto free_a;
	if (EVP_CipherInit_ex2(a->ctx, ossl_algs.aead, NULL, NULL, 1, NULL) != 1)
		goto free_ctx;
	*out = &a->base;
	return 0;

free_ctx:
	EVP_CIPHER_CTX_free(a->ctx);
free_a:
	free(a);
	return -ENOMEM;
}

static void ossl_destroy(struct aead *base)
{
	struct aead_ossl *a = CONTAINER_OF(base, struct aead_ossl, base);

	EVP_CIPHER_CTX_free(a->ctx);
	free(a);
}

static void forget_key(EVP_CIPHER_CTX *ctx)
{
	static const uint8_t zero[CRYPTO_KEY];

	ossl_must(EVP_CipherInit_ex2(ctx, NULL, zero, zero, 1, NULL));
}

static bool seal_text(EVP_CIPHER_CTX *ctx, const uint8_t *nonce, const uint8_t *ad, size_t ad_len,
	struct aead_job *job)
{
	OSSL_PARAM get_tag[2] = {
		OSSL_PARAM_construct_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, job->tag, CRYPTO_TAG),
		OSSL_PARAM_construct_end(),
	};
	int len = 0;

	/* An update of no bytes may count as an error, so none is made. */
	return EVP_CipherInit_ex2(ctx, NULL, NULL, nonce, 1, NULL) == 1 &&
		(!ad_len || EVP_CipherUpdate(ctx, NULL, &len, ad, (int)ad_len) == 1) &&
		(!job->len ||
			EVP_CipherUpdate(ctx, job->text, &len, job->text, (int)job->len) == 1) &&
		EVP_CipherFinal_ex(ctx, job->text + job->len, &len) == 1 &&
		EVP_CIPHER_CTX_get_params(ctx, get_tag) == 1;
}

static bool open_text(EVP_CIPHER_CTX *ctx, const uint8_t *nonce, struct aead_job *job)
{
	OSSL_PARAM set_tag[2] = {
		OSSL_PARAM_construct_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, job->tag, CRYPTO_TAG),
		OSSL_PARAM_construct_end(),
	};
	int len = 0;

	return EVP_CipherInit_ex2(ctx, NULL, NULL, nonce, 0, NULL) == 1 &&
		EVP_CIPHER_CTX_set_params(ctx, set_tag) == 1 &&
		(!job->len ||
			EVP_CipherUpdate(ctx, job->text, &len, job->text, (int)job->len) == 1) &&
		EVP_CipherFinal_ex(ctx, job->text + job->len, &len) == 1;
}

static void ossl_seal(struct aead *base, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	struct aead_ossl *a = CONTAINER_OF(base, struct aead_ossl, base);
	uint8_t nonce[AEAD_NONCE];
	size_t i;

	ossl_must(EVP_CipherInit_ex2(a->ctx, NULL, key, NULL, 1, NULL));
	for (i = 0; i < n; i++) {
		aead_nonce(nonce, jobs[i].counter);
		jobs[i].is_ok = seal_text(a->ctx, nonce, NULL, 0, &jobs[i]);
	}
	forget_key(a->ctx);
}

static void ossl_open(struct aead *base, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	struct aead_ossl *a = CONTAINER_OF(base, struct aead_ossl, base);
	bool is_all_ok = true;
	uint8_t nonce[AEAD_NONCE];
	size_t i;

	ossl_must(EVP_CipherInit_ex2(a->ctx, NULL, key, NULL, 0, NULL));
	for (i = 0; i < n; i++) {
		aead_nonce(nonce, jobs[i].counter);
		jobs[i].is_ok = open_text(a->ctx, nonce, &jobs[i]);
		is_all_ok &= jobs[i].is_ok;
	}
	if (!is_all_ok)
		ERR_clear_error();
	forget_key(a->ctx);
}

static void ossl_seal_one(struct aead *base, const uint8_t *key, const uint8_t nonce[AEAD_NONCE],
	const uint8_t *ad, size_t ad_len, struct aead_job *job)
{
	struct aead_ossl *a = CONTAINER_OF(base, struct aead_ossl, base);

	ossl_must(EVP_CipherInit_ex2(a->ctx, NULL, key, NULL, 1, NULL));
	job->is_ok = seal_text(a->ctx, nonce, ad, ad_len, job);
	forget_key(a->ctx);
}

const struct aead_ops aead_ossl_ops = {
	.name = "openssl",
	.create = ossl_create,
	.destroy = ossl_destroy,
	.seal = ossl_seal,
	.open = ossl_open,
	.seal_one = ossl_seal_one,
};
