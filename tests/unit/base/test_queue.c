#include "base/queue.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { PRODUCERS = 4, ITEMS = 200000 };

struct item {
	uint32_t who, number;
	uint8_t filler[40]; /* no padding: compared as bytes */
};

static struct item item_make(uint32_t who, uint32_t number)
{
	struct item it = { who, number, { 0 } };

	memset(it.filler, (int)(who * 31 + number), sizeof(it.filler));
	return it;
}

static void assert_item(const struct item *it, uint32_t who, uint32_t number)
{
	struct item want = item_make(who, number);

	assert_memory_equal(it, &want, sizeof(want));
}

static void test_bad_sizes(void **state)
{
	struct queue q;

	assert_int_equal(queue_init(&q, 0, 8), -EINVAL);
	assert_int_equal(queue_init(&q, 1, 8), -EINVAL);
	assert_int_equal(queue_init(&q, 3, 8), -EINVAL);
	assert_int_equal(queue_init(&q, 4, 0), -EINVAL);
}

/* Full refuses, empty refuses, order is kept, over many laps. */
static void test_full_and_empty(void **state)
{
	uint32_t pushed = 0, popped = 0;
	struct item it;
	struct queue q;

	assert_int_equal(queue_init(&q, 8, sizeof(it)), 0);
	for (int lap = 0; lap < 50; lap++) {
		assert_int_equal(queue_len(&q), 0);
		assert_false(queue_pop(&q, &it));
		for (uint32_t i = 0; i < 8; i++) {
			it = item_make(0, pushed++);
			assert_true(queue_push(&q, &it));
			assert_int_equal(queue_len(&q), i + 1);
		}
		it = item_make(9, 9);
		assert_false(queue_push(&q, &it));
		for (int i = 0; i < 8; i++) {
			assert_true(queue_pop(&q, &it));
			assert_item(&it, 0, popped++);
		}
	}
	queue_fini(&q);
}

/* Positions are 32 bits and go round. */
static void test_positions_wrap(void **state)
{
	uint32_t start = UINT32_MAX - 5;
	struct item it;
	struct queue q;

	assert_int_equal(queue_init(&q, 4, sizeof(it)), 0);
	atomic_store(&q.head, start - start % 4);
	atomic_store(&q.tail, start - start % 4);
	for (uint32_t i = 0; i < 4; i++)
		*(_Atomic uint32_t *)(q.slots + i * q.slot_len) = start - start % 4 + i;
	for (uint32_t i = 0; i < 40; i++) {
		it = item_make(1, i);
		assert_true(queue_push(&q, &it));
		if (i < 2)
			continue;
		assert_true(queue_pop(&q, &it));
		assert_item(&it, 1, i - 2);
		assert_int_equal(queue_len(&q), 2);
	}
	queue_fini(&q);
}

struct producer {
	struct queue *q;
	uint32_t who;
};

static void *produce(void *arg)
{
	struct producer *p = arg;

	for (uint32_t i = 0; i < ITEMS; i++) {
		struct item it = item_make(p->who, i);

		while (!queue_push(p->q, &it))
			sched_yield();
	}
	return NULL;
}

/* Four producers: nothing lost, doubled or torn; each producer's order is kept. */
static void test_producers(void **state)
{
	struct producer p[PRODUCERS];
	pthread_t thread[PRODUCERS];
	uint32_t next[PRODUCERS] = { 0 };
	struct queue q;

	assert_int_equal(queue_init(&q, 64, sizeof(struct item)), 0);
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		p[i] = (struct producer){ &q, i };
		assert_int_equal(pthread_create(&thread[i], NULL, produce, &p[i]), 0);
	}
	for (uint32_t n = 0; n < PRODUCERS * ITEMS;) {
		struct item it;

		assert_true(queue_len(&q) <= 64);
		if (!queue_pop(&q, &it)) {
			sched_yield();
			continue;
		}
		assert_true(it.who < PRODUCERS);
		assert_item(&it, it.who, next[it.who]++);
		n++;
	}
	for (int i = 0; i < PRODUCERS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(queue_len(&q), 0);
	queue_fini(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_sizes),
		cmocka_unit_test(test_full_and_empty),
		cmocka_unit_test(test_positions_wrap),
		cmocka_unit_test(test_producers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
