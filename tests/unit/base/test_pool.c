/* pool.h: every slot once, last in first out, untouched memory stays so, and
 * two threads at once. */
#include "base/pool.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void hands_out_each_slot_once(void **state)
{
	enum { N = 100, LEN = 192 };
	uint8_t *slots[N];
	struct pool p;
	int i, k;

	assert_int_equal(pool_init(&p, LEN, N), 0);
	for (i = 0; i < N; i++) {
		slots[i] = pool_take(&p);
		assert_non_null(slots[i]);
		assert_int_equal((uintptr_t)slots[i] % 64, 0);
		memset(slots[i], i, LEN);
	}
	assert_null(pool_take(&p));
	assert_int_equal(p.n_used, N);
	for (i = 0; i < N; i++) {
		for (k = 0; k < LEN; k++)
			assert_int_equal(slots[i][k], i);
	}
	for (i = 0; i < N; i++)
		pool_give(&p, slots[i]);
	assert_int_equal(p.n_used, 0);
	for (i = N - 1; i >= 0; i--)
		assert_ptr_equal(pool_take(&p), slots[i]);
	assert_null(pool_take(&p));
	pool_fini(&p);
}

static void prefers_a_warm_slot(void **state)
{
	struct pool p;
	void *a;

	assert_int_equal(pool_init(&p, 4096, 1 << 20), 0);
	a = pool_take(&p);
	pool_give(&p, a);
	assert_ptr_equal(pool_take(&p), a);
	assert_int_equal(p.fresh, 1);
	pool_fini(&p);
}

static void refuses_absurd_sizes(void **state)
{
	struct pool p;

	assert_int_equal(pool_init(&p, (size_t)1 << 40, UINT32_MAX), -ENOMEM);
	pool_fini(&p);
}

enum { ROUNDS = 20000, HELD = 7 };

static void *churn(void *arg)
{
	struct pool *p = arg;
	uint64_t *held[HELD];
	int i, k;

	for (i = 0; i < ROUNDS; i++) {
		for (k = 0; k < HELD; k++) {
			held[k] = pool_take(p);
			if (!held[k])
				return "ran out";
			held[k][1] = (uintptr_t)&held[k];
		}
		for (k = 0; k < HELD; k++) {
			if (held[k][1] != (uintptr_t)&held[k])
				return "shared a slot";
			pool_give(p, held[k]);
		}
	}
	return NULL;
}

static void two_threads_never_share_a_slot(void **state)
{
	struct pool p;
	pthread_t t[2];
	void *ret;
	int i;

	assert_int_equal(pool_init(&p, 64, 2 * HELD), 0);
	for (i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, churn, &p), 0);
	for (i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(t[i], &ret), 0);
		assert_null(ret);
	}
	assert_int_equal(p.n_used, 0);
	pool_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hands_out_each_slot_once),
		cmocka_unit_test(prefers_a_warm_slot),
		cmocka_unit_test(refuses_absurd_sizes),
		cmocka_unit_test(two_threads_never_share_a_slot),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
