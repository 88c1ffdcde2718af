/* How it works: hashing through the thread's EVP contexts. HMAC is written out
 * (RFC 2104), since EVP's HMAC copies and allocates contexts on each key; the
 * keyed form is the library's BLAKE2SMAC told to give 16 bytes. */
#include "crypto/crypto.h"

#include "crypto/ossl.h"

#include <openssl/core_names.h>
#include <openssl/params.h>
#include <string.h>

enum { BLOCK = 64, MAC_LEN = 16, KDF_MAX = 3 };

static void update(EVP_MD_CTX *ctx, const struct span *in, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		ossl_must(EVP_DigestUpdate(ctx, in[i].p, in[i].len));
}

void blake2s(uint8_t out[CRYPTO_HASH], const struct span *in, size_t n)
{
	EVP_MD_CTX *ctx = ossl_mine()->md;

	ossl_must(EVP_DigestInit_ex2(ctx, NULL, NULL));
	update(ctx, in, n);
	ossl_must(EVP_DigestFinal_ex(ctx, out, NULL));
}

void blake2s_mac(
	uint8_t out[MAC_LEN], const uint8_t *key, size_t key_len, const struct span *in, size_t n)
{
	static const uint8_t zero[CRYPTO_HASH];
	EVP_MAC_CTX *ctx = ossl_mine()->mac;
	size_t size = MAC_LEN, len, i;
	OSSL_PARAM params[2] = {
		OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
		OSSL_PARAM_construct_end(),
	};

	assert(key_len > 0); /* without a key this would be another function */
	assert(key_len <= CRYPTO_HASH);
	ossl_must(EVP_MAC_init(ctx, key, key_len, params));
	for (i = 0; i < n; i++)
		ossl_must(EVP_MAC_update(ctx, in[i].p, in[i].len));
	ossl_must(EVP_MAC_final(ctx, out, &len, MAC_LEN));
	ossl_must(EVP_MAC_init(ctx, zero, sizeof(zero), NULL)); /* forget the key */
}

void hmac_blake2s(uint8_t out[CRYPTO_HASH], const uint8_t *key, size_t key_len,
	const struct span *in, size_t n)
{
	EVP_MD_CTX *ctx = ossl_mine()->md;
	uint8_t pad[BLOCK] = { 0 }, inner[CRYPTO_HASH];
	size_t i;

	if (key_len > BLOCK)
		blake2s(pad, &(struct span){ key, key_len }, 1);
	else
		memcpy(pad, key, key_len);

	for (i = 0; i < BLOCK; i++)
		pad[i] ^= 0x36;
	ossl_must(EVP_DigestInit_ex2(ctx, NULL, NULL));
	ossl_must(EVP_DigestUpdate(ctx, pad, BLOCK));
	update(ctx, in, n);
	ossl_must(EVP_DigestFinal_ex(ctx, inner, NULL));

	for (i = 0; i < BLOCK; i++)
		pad[i] ^= 0x36 ^ 0x5c;
	ossl_must(EVP_DigestInit_ex2(ctx, NULL, NULL));
	ossl_must(EVP_DigestUpdate(ctx, pad, BLOCK));
	ossl_must(EVP_DigestUpdate(ctx, inner, CRYPTO_HASH));
	ossl_must(EVP_DigestFinal_ex(ctx, out, NULL));

	crypto_wipe(pad, sizeof(pad));
	crypto_wipe(inner, sizeof(inner));
}

/* HKDF (RFC 5869) with the chaining key as salt and no info: output i is
 * HMAC(prk, output i-1 | i). */
void kdf(uint8_t *const out[], size_t n, const uint8_t chain[CRYPTO_HASH], const uint8_t *in,
	size_t in_len)
{
	uint8_t prk[CRYPTO_HASH], last[CRYPTO_HASH], i;

	assert(n >= 1);
	assert(n <= KDF_MAX);
	hmac_blake2s(prk, chain, CRYPTO_HASH, &(struct span){ in, in_len }, 1);
	for (i = 1; i <= n; i++) {
		struct span parts[2] = { { last, i == 1 ? 0 : CRYPTO_HASH }, { &i, 1 } };

		hmac_blake2s(last, prk, CRYPTO_HASH, parts, 2);
		memcpy(out[i - 1], last, CRYPTO_HASH);
	}
	crypto_wipe(prk, sizeof(prk));
	crypto_wipe(last, sizeof(last));
}
