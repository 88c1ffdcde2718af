/* blake2s: RFC 7693's vector, and lengths around each block boundary against
 * values made with Python's hashlib and hmac. */
#include "crypto/crypto.h"

#include "unhex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { IN_MAX = 1000 };

static uint8_t in[IN_MAX], key[256];

static int setup(void **state)
{
	size_t i;

	for (i = 0; i < IN_MAX; i++)
		in[i] = (uint8_t)(i * 7 + 3);
	for (i = 0; i < sizeof(key); i++)
		key[i] = (uint8_t)(0x40 + i);
	return crypto_init(NULL);
}

/* in, cut into pieces of odd sizes, some of them empty. */
static size_t cut(struct span *parts, size_t len)
{
	size_t n = 0, at = 0, piece = 0;

	while (at < len) {
		if (piece > len - at)
			piece = len - at;
		parts[n++] = (struct span){ in + at, piece };
		at += piece;
		piece = (piece + 5) % 71;
	}
	parts[n++] = (struct span){ NULL, 0 };
	return n;
}

static void rfc_7693_appendix_b(void **state)
{
	uint8_t want[CRYPTO_HASH], got[CRYPTO_HASH];

	unhex(want, sizeof(want),
		"508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
	blake2s(got, &(struct span){ "abc", 3 }, 1);
	assert_memory_equal(got, want, sizeof(want));
}

static void plain_hashes(void **state)
{
	static const struct {
		size_t len;
		const char *want;
	} cases[] = {
		{ 0, "69217a3079908094e11121d042354a7c1f55b6482ca1a51e1b250dfd1ed0eef9" },
		{ 1, "a28ac19d6bcbe2cd1d7de183485768d598e996b07889b9b11f418cb1b4a4fb0d" },
		{ 3, "ca943acca89a34cf4040cf8ea24147dd94ea62a49de8ef9a88af5272339927b3" },
		{ 32, "faacb4e48e592947ef7e23f38dd6adb8c4c559e905334c0bd427695bb570089c" },
		{ 63, "de27df0e375d83c49f1af9ca8270f9f2fe7b70bf800fc01672db0e9746021ebf" },
		{ 64, "5377e4ff957bda4d4535f4879876b71a61056c4cec31e78397c66ec47a86a130" },
		{ 65, "19b1b26fba093f4a670d8913e1b71cbb2916dfa701018cc6b05785c966593374" },
		{ 116, "9bcb6a27b9e845f768e9318e102d863fa9af5eb7e47e38b40b3e3123eb585752" },
		{ 127, "6846f99493436241d0a6f289c9a911b1d0f4860db8f2b5df5295ffd37d03a3c4" },
		{ 128, "83470c75afa23d90cd7659906e4b47daa278131fbb225241dd37a40fd5355ac7" },
		{ 129, "26fd8892ab0a5f12d4acbff1efd7dcd92b99e2d377f888f07e3cb81b232b11cf" },
		{ 256, "080c6da49f3ef891dfbf1abdfe224490e30afbad3a24e4e689fd13e4a13de241" },
		{ 1000, "02a016193469710efadf8fb005ca19b509331cb847df5598cc0794bded669681" },
	};
	uint8_t want[CRYPTO_HASH], got[CRYPTO_HASH];
	struct span parts[IN_MAX];
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		unhex(want, sizeof(want), cases[i].want);
		blake2s(got, &(struct span){ in, cases[i].len }, 1);
		assert_memory_equal(got, want, sizeof(want));
		blake2s(got, parts, cut(parts, cases[i].len));
		assert_memory_equal(got, want, sizeof(want));
	}
	unhex(want, sizeof(want), cases[0].want);
	blake2s(got, NULL, 0);
	assert_memory_equal(got, want, sizeof(want));
}

static void keyed_hashes(void **state)
{
	static const struct {
		size_t key_len;
		size_t len;
		const char *want;
	} cases[] = {
		{ 1, 0, "f0e8ed252b4e225b03def2bbc4c1ab97" },
		{ 16, 32, "18896a2f475395e65857604b89c92c64" },
		{ 32, 0, "7a6df15d1fee55debfbe43143bcd7f0c" },
		{ 32, 116, "c0408be1812433720821da0127b691c2" },
		{ 32, 60, "26c44e1c06a1d702c9022bd928bab004" },
		{ 32, 64, "341710e8c5eb85e7e82e9899d57f972e" },
		{ 32, 65, "435473f19522689faf8202460098201a" },
		{ 32, 128, "f0601b47cebed55598f463ff91cf2288" },
		{ 17, 300, "6d83ea0a7c95721864b5766cb80e843b" },
	};
	uint8_t want[16], got[17];
	struct span parts[IN_MAX];
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		unhex(want, sizeof(want), cases[i].want);
		got[16] = 0x55;
		blake2s_mac(got, key, cases[i].key_len, &(struct span){ in, cases[i].len }, 1);
		assert_memory_equal(got, want, sizeof(want));
		assert_int_equal(got[16], 0x55);
		blake2s_mac(got, key, cases[i].key_len, parts, cut(parts, cases[i].len));
		assert_memory_equal(got, want, sizeof(want));
	}
}

static void hmacs(void **state)
{
	static const struct {
		size_t key_len;
		size_t len;
		const char *want;
	} cases[] = {
		{ 0, 0, "eaf4bb25938f4d20e72656bbbc7a9bf63c0c18537333c35bdb67db1402661acd" },
		{ 1, 1, "06f67a715c7e86ebb8e254a6410a481c80635e0a0564a5f43f332e8ad9e71de0" },
		{ 32, 0, "38f6b1b1c8088754979e5df7ecf0d718faa6cca09cb6092a0a25290b7af5530b" },
		{ 32, 32, "2ee55a5ed6f2a08bfb6a5793f0659ddf86abd669ef52ab01ed1c1a7d619a45f9" },
		{ 32, 33, "25496f8074f8b35c37ebcce0c2a7123d68010c3464a0474f26db1d5f34b12eae" },
		{ 64, 100, "67cf73aac3a951692fcddcf6045d9ee9d3276f2a8f991a4f9216a1a7fa8d3dd8" },
		{ 65, 100, "7d4ff545f2d1b9e3821eb00c0f0c3254942c3089f139547808a42dc4b48ecf8c" },
		{ 130, 5, "2e9272d49a7d07b4c0bc5317c71600a7711486af97818302dc97ba02a5bff766" },
	};
	uint8_t want[CRYPTO_HASH], got[CRYPTO_HASH];
	struct span parts[IN_MAX];
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		unhex(want, sizeof(want), cases[i].want);
		hmac_blake2s(got, key, cases[i].key_len, parts, cut(parts, cases[i].len));
		assert_memory_equal(got, want, sizeof(want));
	}
}

static void kdf_one_to_three(void **state)
{
	static const struct {
		size_t len;
		const char *want[3];
	} cases[] = {
		{ 0,
			{ "78eea5e4bfedc2e792dc08620303ca6266f1fd18fab37c848ab8e97d65665f68",
				"b458121cc4faa0a6c9552680d783a1f7ccea37e483bf5a88b990f5ebe26057cc",
				"c76206e40a2876484f43f5329739f74cbefbe29d98b1a5356fce9eebfa01b20"
				"7" } },
		{ 32,
			{ "242db3a95976640fb1a1644bcde0da749ceac00e856f2c65faeda1c7b704c3a7",
				"7240d5c01c51990f771fdc958f1b185194c82bb112f73f791ac96b7538749c1b",
				"c05f50e571a1980ad3d7f64d51211cd0c7619665d4161e4e410025de4e63a22"
				"e" } },
		{ 48,
			{ "f23f882fbe2ac6cede92a0004684afab651e3ef6f7392a69c1549b5729205bca",
				"556ee322e6e0d7a71f75d4ed4b052af00b05e2df9e02e744ff7b5a335d69b5bf",
				"1911303ddcfc3c3e402a62bc75377cd3b60887c3fd416b35fcf0b2be765b28e"
				"5" } },
	};
	uint8_t want[CRYPTO_HASH], got[3][CRYPTO_HASH];
	uint8_t *out[3] = { got[0], got[1], got[2] };
	size_t i, n, k;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		for (n = 1; n <= 3; n++) {
			memset(got, 0, sizeof(got));
			kdf(out, n, key, cases[i].len ? in : NULL, cases[i].len);
			for (k = 0; k < 3; k++) {
				memset(want, 0, sizeof(want));
				if (k < n)
					unhex(want, sizeof(want), cases[i].want[k]);
				assert_memory_equal(got[k], want, sizeof(want));
			}
		}
	}
}

static void kdf_may_write_over_its_chain(void **state)
{
	uint8_t plain[2][CRYPTO_HASH], chain[CRYPTO_HASH], other[CRYPTO_HASH];
	uint8_t *a[2] = { plain[0], plain[1] }, *b[2] = { chain, other }, *c[2] = { other, chain };

	kdf(a, 2, key, in, 32);
	memcpy(chain, key, sizeof(chain));
	kdf(b, 2, chain, in, 32);
	assert_memory_equal(chain, plain[0], sizeof(chain));
	assert_memory_equal(other, plain[1], sizeof(other));
	memcpy(chain, key, sizeof(chain));
	kdf(c, 2, chain, in, 32);
	assert_memory_equal(other, plain[0], sizeof(other));
	assert_memory_equal(chain, plain[1], sizeof(chain));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rfc_7693_appendix_b),
		cmocka_unit_test(plain_hashes),
		cmocka_unit_test(keyed_hashes),
		cmocka_unit_test(hmacs),
		cmocka_unit_test(kdf_one_to_three),
		cmocka_unit_test(kdf_may_write_over_its_chain),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
