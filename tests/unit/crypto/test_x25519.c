/* x25519: RFC 7748's vectors (sections 5.2 and 6.1), low-order points, and
 * several threads and a child process at once. */
#include "crypto/crypto.h"

#include "unhex.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { ROUNDS = 1000, THREADS = 3 };

static int setup(void **state)
{
	return crypto_init(NULL);
}

static void section_5_2_single(void **state)
{
	static const char *const cases[][3] = {
		{ "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
			"e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
			"c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552" },
		{ "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
			"e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
			"95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957" },
	};
	uint8_t secret[32], point[32], want[32], got[32];
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		unhex(secret, 32, cases[i][0]);
		unhex(point, 32, cases[i][1]);
		unhex(want, 32, cases[i][2]);
		assert_true(x25519(got, secret, point));
		assert_memory_equal(got, want, 32);
		/* Clamped beforehand or not: the same. */
		x25519_clamp(secret);
		assert_true(x25519(got, secret, point));
		assert_memory_equal(got, want, 32);
	}
}

/* k, u = X25519(k, u), k, a thousand times, from the base point. */
static bool iterate(unsigned rounds, const char *want_hex)
{
	uint8_t k[32] = { 9 }, u[32] = { 9 }, next[32], want[32];

	while (rounds--) {
		if (!x25519(next, k, u))
			return false;
		memcpy(u, k, 32);
		memcpy(k, next, 32);
	}
	unhex(want, 32, want_hex);
	return !memcmp(k, want, 32);
}

static const char after_1[] = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
static const char after_1000[] = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51";

static void section_5_2_iterated(void **state)
{
	assert_true(iterate(1, after_1));
	assert_true(iterate(ROUNDS, after_1000));
}

static void section_6_1_agreement(void **state)
{
	static const char *const text[] = {
		"77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
		"8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
		"5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
		"de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
		"4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
	};
	uint8_t a[32], a_pub[32], b[32], b_pub[32], want[32], got[32];

	unhex(a, 32, text[0]);
	unhex(a_pub, 32, text[1]);
	unhex(b, 32, text[2]);
	unhex(b_pub, 32, text[3]);
	unhex(want, 32, text[4]);
	x25519_base(got, a);
	assert_memory_equal(got, a_pub, 32);
	x25519_base(got, b);
	assert_memory_equal(got, b_pub, 32);
	assert_true(x25519(got, a, b_pub));
	assert_memory_equal(got, want, 32);
	assert_true(x25519(got, b, a_pub));
	assert_memory_equal(got, want, 32);
	/* Result over the point, over the secret. */
	assert_true(x25519(a_pub, b, a_pub));
	assert_memory_equal(a_pub, want, 32);
	assert_true(x25519(a, a, b_pub));
	assert_memory_equal(a, want, 32);
}

static void low_order_points_are_refused(void **state)
{
	/* Of order 1, 2, 4 and 8 on the curve and its twist; the last ones are
	 * not reduced modulo p or have the top bit set, which is ignored. */
	static const char *const points[] = {
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"0000000000000000000000000000000000000000000000000000000000000080",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
	};
	uint8_t secret[32], point[32], got[32];
	size_t i, k;

	for (i = 0; i < ARRAY_LEN(points); i++) {
		unhex(point, 32, points[i]);
		for (k = 0; k < 4; k++) {
			crypto_random(secret, 32);
			memset(got, 0x55, 32);
			assert_false(x25519(got, secret, point));
		}
	}
	/* And the thread goes on as before. */
	assert_true(iterate(1, after_1));
}

static void clamping(void **state)
{
	uint8_t secret[32];

	memset(secret, 0xff, 32);
	x25519_clamp(secret);
	assert_int_equal(secret[0], 0xf8);
	assert_int_equal(secret[1], 0xff);
	assert_int_equal(secret[31], 0x7f);
	memset(secret, 0, 32);
	x25519_clamp(secret);
	assert_int_equal(secret[0], 0);
	assert_int_equal(secret[31], 0x40);
}

static void *run_vectors(void *arg)
{
	return iterate(ROUNDS, after_1000) ? NULL : "wrong result";
}

static void threads_do_not_disturb_each_other(void **state)
{
	pthread_t t[THREADS];
	void *ret;
	int i;

	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, run_vectors, NULL), 0);
	for (i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(t[i], &ret), 0);
		assert_null(ret);
	}
}

static void a_child_goes_on(void **state)
{
	uint8_t mine[32], its[32];
	int fds[2], status;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	crypto_random(mine, sizeof(mine));
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		crypto_random(mine, sizeof(mine));
		if (write(fds[1], mine, sizeof(mine)) != sizeof(mine))
			_exit(1);
		_exit(iterate(10, after_1) || !iterate(1, after_1));
	}
	crypto_random(mine, sizeof(mine));
	assert_int_equal(read(fds[0], its, sizeof(its)), sizeof(its));
	/* The same generator state on both sides would give the same bytes. */
	assert_memory_not_equal(mine, its, sizeof(its));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(fds[0]);
	close(fds[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(section_5_2_single),
		cmocka_unit_test(section_5_2_iterated),
		cmocka_unit_test(section_6_1_agreement),
		cmocka_unit_test(low_order_points_are_refused),
		cmocka_unit_test(clamping),
		cmocka_unit_test(threads_do_not_disturb_each_other),
		cmocka_unit_test(a_child_goes_on),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
