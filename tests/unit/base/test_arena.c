/* arena.h: alignment, zeroing, running out, and sizes that cannot be had. */
#include "base/arena.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
	uint8_t *prev = NULL, *p;
	size_t len, i, prev_len = 0;
	struct arena a;

	assert_int_equal(arena_init(&a, 1 << 20), 0);
	for (len = 1; len < 3000; len += 61) {
		p = arena_take(&a, len);
		assert_non_null(p);
		assert_int_equal((uintptr_t)p % 64, 0);
		if (prev)
			assert_true(p >= prev + prev_len);
		for (i = 0; i < len; i++)
			assert_int_equal(p[i], 0);
		memset(p, 0xff, len);
		prev = p;
		prev_len = len;
	}
	arena_fini(&a);
}

static void runs_out_exactly(void **state)
{
	struct arena a;
	size_t n = 0, cap;

	assert_int_equal(arena_init(&a, 3 << 20), 0);
	cap = a.cap;
	assert_int_equal(cap, 4 << 20);
	assert_int_equal((uintptr_t)a.base % (2 << 20), 0);
	assert_null(arena_take(&a, cap + 1));
	assert_null(arena_take(&a, SIZE_MAX));
	while (arena_take(&a, 65536 - 63))
		n++;
	assert_int_equal(n, cap / 65536);
	assert_null(arena_take(&a, 1));
	/* The last byte is ours to write. */
	a.base[cap - 1] = 1;
	arena_fini(&a);
	arena_fini(&a);
}

static void refuses_absurd_sizes(void **state)
{
	struct arena a;

	assert_int_equal(arena_init(&a, SIZE_MAX), -ENOMEM);
	assert_int_equal(arena_init(&a, SIZE_MAX / 2 - 10), -ENOMEM);
	arena_fini(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
		cmocka_unit_test(runs_out_exactly),
		cmocka_unit_test(refuses_absurd_sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
