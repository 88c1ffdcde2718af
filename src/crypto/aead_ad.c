/* How it works: single messages with additional data, through the thread's EVP
 * context. Handshakes are rare enough for it, and it works on every CPU.
 * XChaCha20 derives a key from the first 16 bytes of its nonce and goes on with
 * the last eight. */
#include "crypto/aead.h"

#include "base/bytes.h"
#include "crypto/ossl.h"

#include <limits.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/params.h>

static const uint8_t zero[CRYPTO_KEY];

static void seal(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	const uint8_t nonce[AEAD_NONCE], const uint8_t *key)
{
	EVP_CIPHER_CTX *ctx = ossl_mine()->aead;
	OSSL_PARAM get_tag[2] = {
		OSSL_PARAM_construct_octet_string(
			OSSL_CIPHER_PARAM_AEAD_TAG, dst + len, CRYPTO_TAG),
		OSSL_PARAM_construct_end(),
	};
	uint8_t last[CRYPTO_TAG];
	int n = 0;

	assert(len <= INT_MAX);
	assert(ad_len <= INT_MAX);
	ossl_must(EVP_CipherInit_ex2(ctx, NULL, key, nonce, 1, NULL));
	if (ad_len)
		ossl_must(EVP_CipherUpdate(ctx, NULL, &n, ad, (int)ad_len));
	if (len)
		ossl_must(EVP_CipherUpdate(ctx, dst, &n, src, (int)len));
	ossl_must(EVP_CipherFinal_ex(ctx, last, &n)); /* no text comes out any more */
	ossl_must(EVP_CIPHER_CTX_get_params(ctx, get_tag));
	ossl_must(EVP_CipherInit_ex2(ctx, NULL, zero, zero, 1, NULL)); /* forget the key */
}

static bool open(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	const uint8_t nonce[AEAD_NONCE], const uint8_t *key)
{
	EVP_CIPHER_CTX *ctx = ossl_mine()->aead;
	size_t text_len = len - CRYPTO_TAG;
	OSSL_PARAM set_tag[2];
	uint8_t last[CRYPTO_TAG];
	bool is_ok;
	int n = 0;

	if (len < CRYPTO_TAG || len > INT_MAX || ad_len > INT_MAX)
		return false;
	set_tag[0] = OSSL_PARAM_construct_octet_string(
		OSSL_CIPHER_PARAM_AEAD_TAG, (void *)(uintptr_t)(src + text_len), CRYPTO_TAG);
	set_tag[1] = OSSL_PARAM_construct_end();
	ossl_must(EVP_CipherInit_ex2(ctx, NULL, key, nonce, 0, NULL));
	ossl_must(EVP_CIPHER_CTX_set_params(ctx, set_tag));
	if (ad_len)
		ossl_must(EVP_CipherUpdate(ctx, NULL, &n, ad, (int)ad_len));
	if (text_len)
		ossl_must(EVP_CipherUpdate(ctx, dst, &n, src, (int)text_len));
	/* The tag is checked here; no text comes out any more. */
	is_ok = EVP_CipherFinal_ex(ctx, last, &n) == 1;
	ossl_must(EVP_CipherInit_ex2(ctx, NULL, zero, zero, 1, NULL));
	if (!is_ok) {
		ERR_clear_error();
		crypto_wipe(dst, text_len); /* nobody may use unproven text */
	}
	return is_ok;
}

void aead_seal_ad(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	uint64_t counter, const uint8_t key[CRYPTO_KEY])
{
	uint8_t nonce[AEAD_NONCE];

	aead_nonce(nonce, counter);
	seal(dst, src, len, ad, ad_len, nonce, key);
}

bool aead_open_ad(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	uint64_t counter, const uint8_t key[CRYPTO_KEY])
{
	uint8_t nonce[AEAD_NONCE];

	aead_nonce(nonce, counter);
	return open(dst, src, len, ad, ad_len, nonce, key);
}

/* HChaCha20 is ChaCha20's permutation without the final addition of the input.
 * The library offers only the whole, on a block of zeros here: what was added
 * is known and taken off again. */
void hchacha20(uint8_t out[32], const uint8_t key[CRYPTO_KEY], const uint8_t nonce[16])
{
	static const char sigma[] = "expand 32-byte k";
	static const uint8_t zeros[64];
	EVP_CIPHER_CTX *ctx = ossl_mine()->chacha20;
	uint8_t block[64];
	int i, n = 0;

	ossl_must(EVP_CipherInit_ex2(ctx, NULL, key, nonce, 1, NULL));
	ossl_must(EVP_CipherUpdate(ctx, block, &n, zeros, sizeof(zeros)));
	for (i = 0; i < 16; i += 4) {
		put_le32(out + i, get_le32(block + i) - get_le32(sigma + i));
		put_le32(out + 16 + i, get_le32(block + 48 + i) - get_le32(nonce + i));
	}
	ossl_must(EVP_CipherInit_ex2(ctx, NULL, zero, zero, 1, NULL));
	crypto_wipe(block, sizeof(block));
}

void xaead_seal(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	const uint8_t nonce[24], const uint8_t key[CRYPTO_KEY])
{
	uint8_t sub[CRYPTO_KEY];

	hchacha20(sub, key, nonce);
	aead_seal_ad(dst, src, len, ad, ad_len, get_le64(nonce + 16), sub);
	crypto_wipe(sub, sizeof(sub));
}

bool xaead_open(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	const uint8_t nonce[24], const uint8_t key[CRYPTO_KEY])
{
	uint8_t sub[CRYPTO_KEY];
	bool is_ok;

	hchacha20(sub, key, nonce);
	is_ok = aead_open_ad(dst, src, len, ad, ad_len, get_le64(nonce + 16), sub);
	crypto_wipe(sub, sizeof(sub));
	return is_ok;
}
