/* aead_ad: RFC 8439 appendix A.5 (its nonce has WireGuard's form; section
 * 2.8.2's has not, and is each back end's self-test), the XChaCha draft's
 * vectors, and every damaged byte. */
#include "crypto/aead.h"

#include "unhex.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { ROOM = 512 };

static const char a5_key[] = "1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0";
static const char a5_ad[] = "f33388860000000000004e91";
static const uint64_t a5_counter = 0x0807060504030201;
static const char a5_text[] =
	"Internet-Drafts are draft documents valid for a maximum of six months and may be updated, "
	"replaced, or obsoleted by other documents at any time. It is inappropriate to use "
	"Internet-Drafts as reference material or to cite them other than as "
	"/\xe2\x80\x9cwork in progress./\xe2\x80\x9d";
static const char a5_sealed[] = "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb2"
				"4c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f355894cf"
				"332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c855"
				"9797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4"
				"b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523e"
				"af4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a"
				"0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a10"
				"49e617d91d361094fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29"
				"a6ad5cb4022b02709beead9d67890cbb22392336fea1851f38";

static const char x_text[] =
	"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
	"future, sunscreen would be it.";
static const char x_key[] = "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f";
static const char x_nonce[] = "404142434445464748494a4b4c4d4e4f5051525354555657";
static const char x_ad[] = "50515253c0c1c2c3c4c5c6c7";
static const char x_sealed[] = "bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb"
			       "731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216cb96b72e1213b452"
			       "2f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff9"
			       "21f9664c97637da9768812f615c68b13b52ec0875924c1c7987947deafd8780a"
			       "cf49";

static int setup(void **state)
{
	return crypto_init("openssl");
}

static void seal_one_wrong(struct aead *a, const uint8_t *key, const uint8_t nonce[AEAD_NONCE],
	const uint8_t *ad, size_t ad_len, struct aead_job *job)
{
	aead_ossl_ops.seal_one(a, key, nonce, ad, ad_len, job);
	job->tag[CRYPTO_TAG - 1] ^= 1;
}

static struct aead_ops wrong;

static int create_wrong(struct aead **out)
{
	int ret = aead_ossl_ops.create(out);

	if (!ret)
		(*out)->ops = &wrong;
	return ret;
}

static void open_anything(struct aead *a, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	aead_ossl_ops.open(a, key, jobs, n);
	while (n--)
		jobs[n].is_ok = true;
}

static void section_2_8_2_is_the_self_test(void **state)
{
	assert_int_equal(aead_self_test(&aead_ossl_ops), 0);
	/* And it can fail, on a wrong bit and on a tag nobody looked at. */
	wrong = aead_ossl_ops;
	wrong.create = create_wrong;
	assert_int_equal(aead_self_test(&wrong), 0);
	wrong.seal_one = seal_one_wrong;
	assert_int_equal(aead_self_test(&wrong), -ENOTSUP);
	wrong.seal_one = aead_ossl_ops.seal_one;
	wrong.open = open_anything;
	assert_int_equal(aead_self_test(&wrong), -ENOTSUP);
}

static void appendix_a_5(void **state)
{
	uint8_t key[32], ad[12], want[ROOM], got[ROOM];
	size_t len = sizeof(a5_text) - 1;

	unhex(key, sizeof(key), a5_key);
	unhex(ad, sizeof(ad), a5_ad);
	assert_int_equal(unhex(want, sizeof(want), a5_sealed), len + CRYPTO_TAG);
	aead_seal_ad(got, (const uint8_t *)a5_text, len, ad, sizeof(ad), a5_counter, key);
	assert_memory_equal(got, want, len + CRYPTO_TAG);

	memset(got, 0, sizeof(got));
	assert_true(aead_open_ad(got, want, len + CRYPTO_TAG, ad, sizeof(ad), a5_counter, key));
	assert_memory_equal(got, a5_text, len);

	/* In place, both ways. */
	memcpy(got, a5_text, len);
	aead_seal_ad(got, got, len, ad, sizeof(ad), a5_counter, key);
	assert_memory_equal(got, want, len + CRYPTO_TAG);
	assert_true(aead_open_ad(got, got, len + CRYPTO_TAG, ad, sizeof(ad), a5_counter, key));
	assert_memory_equal(got, a5_text, len);
}

static void every_damaged_byte_is_seen(void **state)
{
	uint8_t key[32], ad[12], msg[ROOM], got[ROOM], zero[ROOM] = { 0 };
	size_t len, i;

	unhex(key, sizeof(key), a5_key);
	unhex(ad, sizeof(ad), a5_ad);
	len = unhex(msg, sizeof(msg), a5_sealed);
	for (i = 0; i < len; i++) {
		msg[i] ^= 0x80;
		memset(got, 0x55, sizeof(got));
		assert_false(aead_open_ad(got, msg, len, ad, sizeof(ad), a5_counter, key));
		assert_memory_equal(got, zero, len - CRYPTO_TAG); /* nothing is revealed */
		msg[i] ^= 0x80;
	}
	for (i = 0; i < sizeof(ad); i++) {
		ad[i] ^= 1;
		assert_false(aead_open_ad(got, msg, len, ad, sizeof(ad), a5_counter, key));
		ad[i] ^= 1;
	}
	for (i = 0; i < len; i++)
		assert_false(aead_open_ad(got, msg, i, ad, sizeof(ad), a5_counter, key));
	assert_false(aead_open_ad(got, msg, len, ad, sizeof(ad) - 1, a5_counter, key));
	assert_false(aead_open_ad(got, msg, len, NULL, 0, a5_counter, key));
	assert_false(aead_open_ad(got, msg, len, ad, sizeof(ad), a5_counter + 1, key));
	key[31] ^= 1;
	assert_false(aead_open_ad(got, msg, len, ad, sizeof(ad), a5_counter, key));
	key[31] ^= 1;
	assert_true(aead_open_ad(got, msg, len, ad, sizeof(ad), a5_counter, key));
}

static void empty_text(void **state)
{
	uint8_t key[32], ad[12], got[16], want[16];

	/* Made with Python's cryptography. */
	unhex(want, sizeof(want), "633c7dbf5d6cdc06460205249c2ef752");
	unhex(key, sizeof(key), x_key);
	unhex(ad, sizeof(ad), x_ad);
	aead_seal_ad(got, NULL, 0, ad, sizeof(ad), 0, key);
	assert_memory_equal(got, want, sizeof(want));
	assert_true(aead_open_ad(NULL, got, sizeof(got), ad, sizeof(ad), 0, key));
	got[3] ^= 4;
	assert_false(aead_open_ad(NULL, got, sizeof(got), ad, sizeof(ad), 0, key));
}

/* draft-irtf-cfrg-xchacha-03 section 2.2.1. */
static void hchacha20_vector(void **state)
{
	uint8_t key[32], nonce[16], want[32], got[32];
	size_t i;

	for (i = 0; i < 32; i++)
		key[i] = (uint8_t)i;
	unhex(nonce, sizeof(nonce), "000000090000004a0000000031415927");
	unhex(want, sizeof(want),
		"82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc");
	hchacha20(got, key, nonce);
	assert_memory_equal(got, want, sizeof(want));
	/* Over its own key. */
	hchacha20(key, key, nonce);
	assert_memory_equal(key, want, sizeof(want));
}

/* draft-irtf-cfrg-xchacha-03 appendix A.3.1. */
static void xchacha_vector(void **state)
{
	uint8_t key[32], nonce[24], ad[12], want[ROOM], got[ROOM];
	size_t len = sizeof(x_text) - 1, i;

	unhex(key, sizeof(key), x_key);
	unhex(nonce, sizeof(nonce), x_nonce);
	unhex(ad, sizeof(ad), x_ad);
	assert_int_equal(unhex(want, sizeof(want), x_sealed), len + CRYPTO_TAG);
	xaead_seal(got, (const uint8_t *)x_text, len, ad, sizeof(ad), nonce, key);
	assert_memory_equal(got, want, len + CRYPTO_TAG);
	assert_true(xaead_open(got, want, len + CRYPTO_TAG, ad, sizeof(ad), nonce, key));
	assert_memory_equal(got, x_text, len);
	for (i = 0; i < sizeof(nonce); i++) {
		nonce[i] ^= 1;
		assert_false(xaead_open(got, want, len + CRYPTO_TAG, ad, sizeof(ad), nonce, key));
		nonce[i] ^= 1;
	}
	for (i = 0; i < len + CRYPTO_TAG; i++) {
		want[i] ^= 1;
		assert_false(xaead_open(got, want, len + CRYPTO_TAG, ad, sizeof(ad), nonce, key));
		want[i] ^= 1;
	}
	assert_false(xaead_open(got, want, CRYPTO_TAG - 1, ad, sizeof(ad), nonce, key));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(section_2_8_2_is_the_self_test),
		cmocka_unit_test(appendix_a_5),
		cmocka_unit_test(every_damaged_byte_is_seen),
		cmocka_unit_test(empty_text),
		cmocka_unit_test(hchacha20_vector),
		cmocka_unit_test(xchacha_vector),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
