/* Threads draw numbers under the lock and hand them on in turn. */
#include "base/turnstile.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>
#include <cmocka.h>

enum { THREADS = 4, ITEMS = 40000 };

static struct turnstile turnstile;
static unsigned next_in, out[ITEMS], n_out;

static void *draw(void *arg)
{
	for (;;) {
		uint64_t ticket;
		unsigned mine;

		/* Half of the threads the other way; no signal interrupts them. */
		if (!arg)
			turnstile_lock(&turnstile);
		else if (!turnstile_lock_interruptible(&turnstile))
			return NULL;
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
		assert_int_equal(pthread_create(&t[i], NULL, draw, i % 2 ? &t[i] : NULL), 0);
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

static void on_signal(int signal)
{
}

static _Atomic bool is_out, is_locked;

static void *wait_in_front(void *arg)
{
	is_locked = turnstile_lock_interruptible(&turnstile);
	is_out = true;
	if (is_locked)
		turnstile_unlock(&turnstile);
	return NULL;
}

static void test_interrupt(void **state)
{
	const struct sigaction sa = { .sa_handler = on_signal };
	struct sigaction old;
	pthread_t t;

	assert_int_equal(turnstile_init(&turnstile), 0);
	sigaction(SIGUSR1, &sa, &old);
	turnstile_lock(&turnstile);
	assert_int_equal(pthread_create(&t, NULL, wait_in_front, NULL), 0);
	while (!is_out) { /* one that comes too early is not noticed */
		usleep(1000);
		pthread_kill(t, SIGUSR1);
	}
	pthread_join(t, NULL);
	assert_false(is_locked);
	/* And without a signal it gets the lock once it is free. */
	is_out = false;
	assert_int_equal(pthread_create(&t, NULL, wait_in_front, NULL), 0);
	usleep(20 * 1000);
	assert_false(is_out);
	turnstile_unlock(&turnstile);
	pthread_join(t, NULL);
	assert_true(is_locked);
	sigaction(SIGUSR1, &old, NULL);
	turnstile_fini(&turnstile);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_trylock),
		cmocka_unit_test(test_interrupt),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
