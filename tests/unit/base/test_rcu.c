/* rcu.h: a reader never meets a freed node, nothing is freed before its grace
 * period, and a callback may queue more. */
#include "base/rcu.h"

#include "base/compiler.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { ALIVE = 0x600d, FREED = 0xbad, ROUNDS = 300 };

struct thing {
	struct rcu_node node;
	int state; /* deliberately not atomic: the sanitizer watches it */
	struct thing *next;
};

static _Atomic(struct thing *) shared;
static _Atomic bool is_over;
static _Atomic unsigned n_freed, n_read;

static void thing_free(struct rcu_node *n)
{
	struct thing *t = CONTAINER_OF(n, struct thing, node);

	t->state = FREED;
	free(t);
	n_freed++;
}

static struct thing *thing_new(void)
{
	struct thing *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	t->state = ALIVE;
	return t;
}

static void *reader(void *arg)
{
	struct thing *t;
	int i;

	rcu_thread_init();
	while (!is_over) {
		for (i = 0; i < 100; i++) {
			t = rcu_read(shared);
			if (t->state != ALIVE)
				return "met a freed node";
			n_read++;
		}
		rcu_quiescent();
		if (n_read % 1000 == 0) {
			rcu_offline();
			usleep(10);
			rcu_online();
		}
	}
	rcu_thread_fini();
	return NULL;
}

static void readers_never_meet_a_freed_node(void **state)
{
	struct thing *old;
	pthread_t t[2];
	void *ret;
	int i;

	is_over = false;
	n_freed = 0;
	rcu_publish(shared, thing_new());
	for (i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, reader, NULL), 0);
	while (n_read == 0)
		usleep(100);
	for (i = 0; i < ROUNDS; i++) {
		old = atomic_load(&shared);
		rcu_publish(shared, thing_new());
		rcu_free_later(&old->node, thing_free);
		if (i % 3 == 0)
			rcu_reclaim();
	}
	rcu_reclaim();
	assert_int_equal(n_freed, ROUNDS);
	is_over = true;
	for (i = 0; i < 2; i++) {
		assert_int_equal(pthread_join(t[i], &ret), 0);
		assert_null(ret);
	}
	free(atomic_load(&shared));
}

static _Atomic int stage;

static void *holder(void *arg)
{
	rcu_thread_init();
	stage = 1;
	while (stage != 2)
		usleep(100);
	/* Still online and holding: nothing may have been freed. */
	usleep(20000);
	n_read = n_freed;
	rcu_quiescent();
	rcu_thread_fini();
	return NULL;
}

static void *reclaimer(void *arg)
{
	stage = 2;
	rcu_reclaim();
	return NULL;
}

static void nothing_is_freed_while_a_reader_holds(void **state)
{
	pthread_t h, r;

	n_freed = 0;
	n_read = 99;
	stage = 0;
	assert_int_equal(pthread_create(&h, NULL, holder, NULL), 0);
	while (stage != 1)
		usleep(100);
	rcu_free_later(&thing_new()->node, thing_free);
	assert_int_equal(pthread_create(&r, NULL, reclaimer, NULL), 0);
	pthread_join(h, NULL);
	pthread_join(r, NULL);
	assert_int_equal(n_read, 0);
	assert_int_equal(n_freed, 1);
}

static void chain_free(struct rcu_node *n)
{
	struct thing *t = CONTAINER_OF(n, struct thing, node);

	if (t->next)
		rcu_free_later(&t->next->node, chain_free);
	thing_free(n);
}

static void a_callback_may_queue_more(void **state)
{
	struct thing *t = thing_new();

	n_freed = 0;
	t->next = thing_new();
	t->next->next = thing_new();
	/* From a registered reader: it goes offline by itself. */
	rcu_thread_init();
	rcu_free_later(&t->node, chain_free);
	rcu_reclaim();
	assert_int_equal(n_freed, 3);
	rcu_reclaim();
	assert_int_equal(n_freed, 3);
	rcu_thread_fini();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readers_never_meet_a_freed_node),
		cmocka_unit_test(nothing_is_freed_while_a_reader_holds),
		cmocka_unit_test(a_callback_may_queue_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
