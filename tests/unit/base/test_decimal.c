/* decimal.h against printf: every number of digits, every last pair, the ends. */
#include "base/decimal.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void check(uint64_t n)
{
	char want[DECIMAL_MAX + 1], got[DECIMAL_MAX + 1];

	snprintf(want, sizeof(want), "%" PRIu64, n);
	memset(got, '?', sizeof(got));
	assert_int_equal(decimal_text(got, n), strlen(want));
	assert_memory_equal(got, want, strlen(want));
	/* Nothing beyond. */
	assert_int_equal(got[strlen(want)], '?');
}

static void small_numbers(void **state)
{
	for (uint64_t n = 0; n < 100000; n++)
		check(n);
}

static void around_each_power_of_ten(void **state)
{
	uint64_t power = 1;

	for (int digits = 0; digits < DECIMAL_MAX; digits++, power *= 10)
		for (uint64_t i = 0; i < 200; i++) {
			check(power - 100 + i);
			check(power * 3 + i);
		}
	check(UINT64_MAX);
	check(UINT64_MAX - 1);
	check((uint64_t)INT64_MAX + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_numbers),
		cmocka_unit_test(around_each_power_of_ten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
