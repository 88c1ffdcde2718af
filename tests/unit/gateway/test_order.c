/* Trains of one session in several threads. */
#include "gateway/order.h"
#include "base/clock.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { THREADS = 3, TRAINS = 6000, TRAIN_LEN = 5, INDEX = 0x1234567 };

static struct order *order;
static uint64_t written[TRAINS], n_written;

static int setup(void **state)
{
	return order_create(&order);
}

static int teardown(void **state)
{
	order_destroy(order);
	return 0;
}

static void pass(uint64_t first, uint64_t n)
{
	struct order_slot *s = order_enter(order, INDEX, first);

	order_leave(s, first + n);
}

/* As by round robin: train i comes to thread i mod THREADS. */
static void *carry(void *arg)
{
	for (uintptr_t i = (uintptr_t)arg; i < TRAINS; i += THREADS) {
		struct order_slot *s;

		for (uintptr_t k = 0; k < i % 5; k++)
			sched_yield();
		s = order_enter(order, INDEX, i * TRAIN_LEN);
		written[n_written++] = i;
		order_leave(s, (i + 1) * TRAIN_LEN);
	}
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t t[THREADS];
	unsigned n_swapped = 0;

	n_written = 0;
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, carry, (void *)i), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(n_written, TRAINS);
	for (unsigned i = 1; i < TRAINS; i++)
		n_swapped += written[i] < written[i - 1];
	/* A thread that another program keeps from its core for longer than the patience may
	 * come late. Without any order it is about every second one. */
	assert_true(n_swapped < TRAINS / 100);
}

static struct late {
	uint64_t first, n;
	_Atomic bool is_through;
} late;

static void *pass_late(void *arg)
{
	pass(late.first, late.n);
	late.is_through = true;
	return NULL;
}

/* Who comes too early waits for the train before, and no longer than patience lasts. */
static void test_gap(void **state)
{
	pthread_t t;
	uint64_t start;

	pass(0, 5);
	late.first = 10;
	late.n = 5;
	late.is_through = false;
	assert_int_equal(pthread_create(&t, NULL, pass_late, NULL), 0);
	pass(5, 5);
	pthread_join(t, NULL);
	assert_true(late.is_through);

	/* 15 to 19 are lost. */
	start = clock_now_ns();
	pass(20, 5);
	assert_true(clock_now_ns() - start >= ORDER_PATIENCE_MAX_US * (NSEC_PER_MSEC / 1000) / 2);
	/* They were late, after all: nobody waits, and nothing goes back. */
	start = clock_now_ns();
	pass(15, 5);
	pass(25, 5);
	assert_true(clock_now_ns() - start < NSEC_PER_SEC);
}

/* Losses cost less and less, fillings bring patience back. */
static void test_patience(void **state)
{
	uint64_t next = 0, start;

	for (unsigned i = 0; i < 20; i++) {
		pass(next, 1);
		next += 2;
	}
	start = clock_now_ns();
	for (unsigned i = 0; i < 10; i++) {
		pass(next, 1);
		next += 2;
	}
	/* Ten with full patience would be 160 ms. */
	assert_true(
		clock_now_ns() - start < 10 * ORDER_PATIENCE_MAX_US * (NSEC_PER_MSEC / 1000) / 2);
}

/* A peer that leaves something out before each train takes but a share of the thread's
 * time: with the least patience for each this would be two seconds. */
static void test_share(void **state)
{
	uint64_t start = clock_now_ns();

	for (unsigned i = 0; i < 4000; i++)
		pass(2 * i, 1);
	assert_true(clock_now_ns() - start < NSEC_PER_SEC);
}

/* A session that is not known yet begins with 0, or anywhere if it is old. Sessions that
 * meet in one slot do not wait for each other. */
static void test_unknown(void **state)
{
	struct order_slot *s;
	pthread_t t;

	late.first = 5;
	late.n = 5;
	late.is_through = false;
	assert_int_equal(pthread_create(&t, NULL, pass_late, NULL), 0);
	pass(0, 5);
	pthread_join(t, NULL);
	for (unsigned i = 0; i < 100; i++) {
		uint64_t start = clock_now_ns();

		s = order_enter(order, INDEX + ORDER_SLOTS * (1 + i % 2), 1000000 + i);
		order_leave(s, 1000001 + i);
		if (clock_now_ns() - start < NSEC_PER_MSEC / 4)
			return;
	}
	fail_msg("every train of an old session waits");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_threads, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gap, setup, teardown),
		cmocka_unit_test_setup_teardown(test_patience, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unknown, setup, teardown),
		cmocka_unit_test_setup_teardown(test_share, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
