/* Medians, and the best of several. */
#include "bench/stats.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>

static void test_odd(void **state)
{
	double v[] = { 9, -1, 4, 100, 3 };

	assert_true(stats_median(v, 5) == 4);
}

static void test_even(void **state)
{
	double v[] = { 10, 2, 1, 4 };

	assert_true(stats_median(v, 4) == 3);
}

static void test_one(void **state)
{
	double v[] = { 7.5 };

	assert_true(stats_median(v, 1) == 7.5);
}

static void test_outlier_does_not_move_it(void **state)
{
	double v[] = { 10, 11, 12, 1e9, 11 };

	assert_true(stats_median(v, 5) == 11);
}

static void test_large_do_not_overflow(void **state)
{
	double v[] = { DBL_MAX, DBL_MAX };

	assert_true(stats_median(v, 2) == DBL_MAX);
}

static void test_best(void **state)
{
	const double v[] = { NAN, 1, 5, NAN, 5, -2 }, negative[] = { -3, -2 },
		     none[] = { NAN, NAN };

	assert_int_equal(stats_best(v, 6), 2);
	assert_int_equal(stats_best(v, 2), 1);
	assert_int_equal(stats_best(negative, 2), 1);
	assert_int_equal(stats_best(none, 2), 2);
	assert_int_equal(stats_best(none, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_odd),
		cmocka_unit_test(test_even),
		cmocka_unit_test(test_one),
		cmocka_unit_test(test_outlier_does_not_move_it),
		cmocka_unit_test(test_large_do_not_overflow),
		cmocka_unit_test(test_best),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
