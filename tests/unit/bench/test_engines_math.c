/* The messages of the engines bench and its search for a rate. */
#include "bench/engines_math.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void test_parcel(void **state)
{
	uint8_t p[64];

	parcel_init(p, sizeof(p));
	parcel_stamp(p, 77, 12345678901);
	assert_true(parcel_is_good(p, sizeof(p), sizeof(p)));
	assert_int_equal(parcel_number(p), 77);
	assert_int_equal(parcel_sent_ns(p), 12345678901);
	/* The kernel's sorter takes it for data. */
	assert_int_equal(p[0], 4);
}

static void test_parcel_of_the_least_length(void **state)
{
	uint8_t p[PARCEL_LEN_MIN];

	parcel_init(p, sizeof(p));
	parcel_stamp(p, UINT64_MAX, UINT64_MAX);
	assert_true(parcel_is_good(p, sizeof(p), sizeof(p)));
}

static void test_a_wrong_parcel_is_noticed(void **state)
{
	static const size_t places[] = { 0, 3, 4, 7, 24, 27, 60, 63 };
	uint8_t p[64], longer[68];

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		parcel_init(p, sizeof(p));
		p[places[i]] ^= 1;
		assert_false(parcel_is_good(p, sizeof(p), sizeof(p)));
	}
	parcel_init(p, sizeof(p));
	assert_false(parcel_is_good(p, sizeof(p) - 4, sizeof(p)));
	/* Two of them put together, or one cut out of a longer one. */
	parcel_init(longer, sizeof(longer));
	assert_false(parcel_is_good(longer, sizeof(longer), sizeof(p)));
}

/* What a system that takes up to `limit` lets the search find. */
static double search(double first, double max, double limit, unsigned *n_steps)
{
	struct rate_search s;

	rate_search_init(&s, first, max);
	while (rate_search_step(&s, s.next <= limit))
		;
	*n_steps = s.n_steps;
	return s.good;
}

static void test_rate_is_found(void **state)
{
	static const double limits[] = { 10000, 10001, 54321, 200000, 777777 };
	unsigned n;

	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		double good = search(10000, 1e6, limits[i], &n);

		assert_true(good <= limits[i]);
		assert_true(good * 1.1 >= limits[i] / 1.0001);
		assert_true(n <= RATE_STEPS_MAX);
	}
}

static void test_rate_below_the_first(void **state)
{
	unsigned n;
	double good = search(10000, 1e6, 3000, &n);

	assert_true(good > 2500);
	assert_true(good <= 3000);
}

static void test_nothing_comes_through(void **state)
{
	unsigned n;

	assert_true(search(10000, 1e6, 0, &n) <= 0);
	assert_int_equal(n, RATE_STEPS_MAX);
}

static void test_everything_comes_through(void **state)
{
	unsigned n;

	assert_true(search(10000, 1e6, 1e9, &n) >= 1e6);
	assert_true(n < RATE_STEPS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parcel),
		cmocka_unit_test(test_parcel_of_the_least_length),
		cmocka_unit_test(test_a_wrong_parcel_is_noticed),
		cmocka_unit_test(test_rate_is_found),
		cmocka_unit_test(test_rate_below_the_first),
		cmocka_unit_test(test_nothing_comes_through),
		cmocka_unit_test(test_everything_comes_through),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
