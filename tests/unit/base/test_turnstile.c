/* Threads draw numbers under the lock and hand them on in turn. */
#include "base/turnstile.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { THREADS = 4, ITEMS = 40000 };

static struct turnstile turnstile;
static unsigned next_in, out[ITEMS], n_out;

static void *draw(void *arg)
{
	for (;;) {
		uint64_t ticket;
		unsigned mine;

		turnstile_lock(&turnstile);
		mine = next_in;
		if (mine == ITEMS) {
			turnstile_unlock(&turnstile);
			return NULL;
		}
		next_in++;
		ticket = turnstile_take(&turnstile);
		turnstile_unlock(&turnstile);
		/* Work of uneven length, in which others overtake. */
		for (unsigned i = 0; i < mine % 7; i++)
			sched_yield();
		turnstile_enter(&turnstile, ticket);
		out[n_out++] = mine;
		turnstile_leave(&turnstile);
	}
}

static void test_order(void **state)
{
	pthread_t t[THREADS];

	assert_int_equal(turnstile_init(&turnstile), 0);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, draw, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(n_out, ITEMS);
	for (unsigned i = 0; i < ITEMS; i++)
		assert_int_equal(out[i], i);
	turnstile_fini(&turnstile);
}

static void test_trylock(void **state)
{
	assert_int_equal(turnstile_init(&turnstile), 0);
	assert_true(turnstile_trylock(&turnstile));
	assert_false(turnstile_trylock(&turnstile));
	turnstile_unlock(&turnstile);
	assert_true(turnstile_trylock(&turnstile));
	turnstile_unlock(&turnstile);
	turnstile_fini(&turnstile);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_trylock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
