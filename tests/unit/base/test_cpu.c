/* cpu.h: the mask takes away and never adds; pinning moves the thread. */
#include "base/cpu.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>

static void the_mask_only_takes_away(void **state)
{
	unsigned all = cpu_features(), m;

	assert_int_equal(all & ~(unsigned)(CPU_AVX2 | CPU_AVX512), 0);
	for (m = 0; m < 4; m++) {
		cpu_mask(m);
		assert_int_equal(cpu_features(), all & m);
	}
	cpu_mask(~0U);
	assert_int_equal(cpu_features(), all);
}

static void a_pinned_thread_runs_there(void **state)
{
	cpu_set_t before, set;
	unsigned i;

	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	assert_int_equal(cpu_count(), CPU_COUNT(&before));
	for (i = 0; i < cpu_count(); i++) {
		assert_int_equal(cpu_pin(i), 0);
		assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
		assert_int_equal(CPU_COUNT(&set), 1);
		assert_true(CPU_ISSET(sched_getcpu(), &set));
		assert_true(CPU_ISSET(sched_getcpu(), &before));
		CPU_CLR(sched_getcpu(), &before);
	}
	/* Each place named a CPU of its own. */
	assert_int_equal(CPU_COUNT(&before), 0);
	assert_int_equal(cpu_pin(cpu_count()), -EINVAL);
	assert_int_equal(cpu_pin(UINT32_MAX), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_mask_only_takes_away),
		cmocka_unit_test(a_pinned_thread_runs_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
