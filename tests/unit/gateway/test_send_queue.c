/* The two locked queues of the engine `queue`: bounds, order, who waits for what, and what
 * is freed at the end (which the address sanitizer sees). */
#include "gateway/send_queue.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { CAP = 8, N_WORKERS = 4, N_PACKETS = 50000 };

static struct packet *make(uint32_t i)
{
	struct packet *p = packet_create(0);

	if (!p)
		abort();
	p->len = i;
	return p;
}

static void test_bounded_and_in_order(void **state)
{
	struct packet_queue q;
	struct packet *extra = make(CAP), *p;
	uint64_t ticket;

	packet_queue_init(&q, CAP);
	assert_null(packet_queue_pop(&q, &ticket, false));
	for (uint32_t i = 0; i < CAP; i++)
		assert_true(packet_queue_push(&q, make(i)));
	assert_false(packet_queue_push(&q, extra));
	for (uint32_t i = 0; i < CAP / 2; i++) {
		p = packet_queue_pop(&q, &ticket, true);
		assert_int_equal(p->len, i);
		assert_int_equal(ticket, i);
		free(p);
	}
	assert_true(packet_queue_push(&q, extra));
	packet_queue_close(&q);
	assert_null(packet_queue_pop(&q, &ticket, true));
	p = make(0);
	assert_false(packet_queue_push(&q, p));
	free(p);
	packet_queue_fini(&q);
}

static void test_tickets_are_sorted(void **state)
{
	static const uint64_t done[CAP] = { 3, 1, 0, 2, 7, 5, 6, 4 };
	struct send_queue q;
	struct packet *p = make(9);

	assert_int_equal(send_queue_init(&q, CAP), 0);
	assert_false(send_queue_put(&q, CAP, p, false)); /* a ring ahead */
	for (uint32_t i = 0; i < CAP; i++) {
		/* Those that divide by 3 were dropped: at the head, in between. */
		bool is_dropped = done[i] % 3 == 0;

		assert_true(send_queue_put(
			&q, done[i], is_dropped ? NULL : make((uint32_t)done[i]), false));
	}
	for (uint32_t i = 0; i < CAP; i++) {
		struct packet *got;

		if (i % 3 == 0)
			continue;
		got = send_queue_pop(&q);
		assert_int_equal(got->len, i);
		free(got);
	}
	assert_int_equal(q.head, CAP);
	send_queue_kick(&q);
	assert_null(send_queue_pop(&q));
	assert_true(send_queue_put(&q, CAP + 1, p, false)); /* freed by fini */
	assert_true(send_queue_put(&q, CAP + 2, NULL, false));
	send_queue_close(&q);
	assert_null(send_queue_pop(&q));
	send_queue_fini(&q);
}

/* ---- With threads: workers that drop every fifth packet, and rings far smaller than what
 * is under way. */

struct line {
	struct packet_queue in;
	struct send_queue out;
};

static void *work(void *arg)
{
	struct line *l = arg;
	struct packet *p;
	uint64_t ticket;

	while ((p = packet_queue_pop(&l->in, &ticket, true))) {
		if (p->len % 5 == 0) {
			free(p);
			p = NULL;
		}
		if (!send_queue_put(&l->out, ticket, p, true))
			free(p);
	}
	return NULL;
}

static void *feed(void *arg)
{
	struct line *l = arg;

	for (uint32_t i = 0; i < N_PACKETS; i++) {
		struct packet *p = make(i);

		while (!packet_queue_push(&l->in, p))
			sched_yield();
	}
	return NULL;
}

static void run_line(uint32_t cap)
{
	pthread_t feeder, workers[N_WORKERS];
	struct line l;

	packet_queue_init(&l.in, 64);
	assert_int_equal(send_queue_init(&l.out, cap), 0);
	for (int i = 0; i < N_WORKERS; i++)
		assert_int_equal(pthread_create(&workers[i], NULL, work, &l), 0);
	assert_int_equal(pthread_create(&feeder, NULL, feed, &l), 0);
	for (uint32_t i = 0; i < N_PACKETS; i++) {
		struct packet *p;

		if (i % 5 == 0)
			continue;
		p = send_queue_pop(&l.out);
		assert_int_equal(p->len, i);
		free(p);
	}
	pthread_join(feeder, NULL);
	/* Workers that wait for room, and for packets, must end too. */
	for (uint32_t i = 0; i < 64; i++) {
		struct packet *p = make(1);

		if (!packet_queue_push(&l.in, p))
			free(p);
	}
	packet_queue_close(&l.in);
	send_queue_close(&l.out);
	for (int i = 0; i < N_WORKERS; i++)
		pthread_join(workers[i], NULL);
	packet_queue_fini(&l.in);
	send_queue_fini(&l.out);
}

static void test_many_workers(void **state)
{
	run_line(2);
	run_line(64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounded_and_in_order),
		cmocka_unit_test(test_tickets_are_sorted),
		cmocka_unit_test(test_many_workers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
