/* Token buckets against counting by hand, and a table under pressure. */
#include "wg/ratelimit.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static const struct ratelimit_rule rule = { .per_sec = 20, .burst = 5, .n_sets = 1024 };
enum { SOURCES_MAX = 1024 * RATELIMIT_WAYS };

static void key_of(uint8_t key[RATELIMIT_KEY], uint64_t i)
{
	memset(key, 0, RATELIMIT_KEY);
	memcpy(key, &i, sizeof(i));
}

static void test_burst_and_rate(void **state)
{
	const uint64_t token = NSEC_PER_SEC / 20;
	uint64_t now = 12345 * NSEC_PER_SEC;
	struct ratelimit r;
	uint8_t key[RATELIMIT_KEY];
	unsigned n = 0;

	assert_int_equal(ratelimit_init(&r, &rule), 0);
	key_of(key, 1);
	for (unsigned i = 0; i < 5; i++)
		assert_true(ratelimit_allow(&r, key, now));
	assert_false(ratelimit_allow(&r, key, now));
	assert_false(ratelimit_allow(&r, key, now + token - 1));
	assert_true(ratelimit_allow(&r, key, now + token));
	assert_false(ratelimit_allow(&r, key, now + token));
	now += NSEC_PER_SEC; /* full again, and no fuller than full */
	for (unsigned i = 0; i < 5; i++)
		assert_true(ratelimit_allow(&r, key, now));
	assert_false(ratelimit_allow(&r, key, now));
	for (unsigned ms = 1; ms <= 10000; ms++)
		n += ratelimit_allow(&r, key, now + ms * NSEC_PER_MSEC);
	assert_int_equal(n, 200);
	ratelimit_fini(&r);
}

static void test_refused_cost_nothing(void **state)
{
	uint64_t now = NSEC_PER_SEC;
	struct ratelimit r;
	uint8_t key[RATELIMIT_KEY];

	assert_int_equal(ratelimit_init(&r, &rule), 0);
	key_of(key, 1);
	for (unsigned i = 0; i < 1000; i++)
		assert_int_equal(ratelimit_allow(&r, key, now), i < 5);
	assert_true(ratelimit_allow(&r, key, now + NSEC_PER_SEC / 20));
	ratelimit_fini(&r);
}

static void test_sources_are_apart(void **state)
{
	struct ratelimit r;
	uint8_t key[RATELIMIT_KEY];

	assert_int_equal(ratelimit_init(&r, &rule), 0);
	for (uint64_t s = 0; s < 64; s++) {
		memset(key, 0, RATELIMIT_KEY);
		key[s % RATELIMIT_KEY] = (uint8_t)(s + 1); /* each byte of the key counts */
		for (unsigned i = 0; i < 7; i++)
			assert_int_equal(ratelimit_allow(&r, key, 0), i < 5);
	}
	ratelimit_fini(&r);
}

/* Far more sources than entries: none gets more than its share, known ones keep
 * theirs, and a quarter of a second later all is well again. */
static void test_full(void **state)
{
	uint64_t now = NSEC_PER_SEC;
	unsigned n = 0, again = 0;
	struct ratelimit r;
	uint8_t key[RATELIMIT_KEY];

	assert_int_equal(ratelimit_init(&r, &rule), 0);
	for (uint64_t s = 0; s < 5 * SOURCES_MAX; s++) {
		key_of(key, s);
		n += ratelimit_allow(&r, key, now);
	}
	assert_int_equal(n, SOURCES_MAX);
	for (unsigned i = 0; i < 10; i++) {
		for (uint64_t s = 0; s < 5 * SOURCES_MAX; s++) {
			key_of(key, s);
			again += ratelimit_allow(&r, key, now);
		}
	}
	assert_int_equal(again, 4 * SOURCES_MAX); /* the rest of those who are in */
	now += NSEC_PER_SEC / 4;
	key_of(key, 1ULL << 40);
	assert_true(ratelimit_allow(&r, key, now));
	ratelimit_fini(&r);
}

/* Other numbers: two a second, three at once. */
static void test_another_rule(void **state)
{
	const struct ratelimit_rule slow = { .per_sec = 2, .burst = 3, .n_sets = 16 };
	uint8_t key[RATELIMIT_KEY];
	struct ratelimit r;
	unsigned n = 0;

	assert_int_equal(ratelimit_init(&r, &slow), 0);
	key_of(key, 1);
	for (unsigned ms = 0; ms < 10000; ms++)
		n += ratelimit_allow(&r, key, NSEC_PER_SEC + ms * NSEC_PER_MSEC);
	assert_int_equal(n, 3 + 19);
	ratelimit_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_burst_and_rate),
		cmocka_unit_test(test_refused_cost_nothing),
		cmocka_unit_test(test_sources_are_apart),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_another_rule),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
