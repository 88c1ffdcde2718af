/* How it works: grace periods come from liburcu. ThreadSanitizer cannot look
 * into that library, so the two facts it would miss are told to it: what a
 * reader did before its quiescent state happens before what rcu_reclaim() does
 * after the grace period. Publishing needs no such help, it is a plain
 * release/acquire pair.
 *
 * Why a node may be freed:
 * 1. Whoever queued it had unlinked it: no reader finds it any more.
 * 2. The grace period: every reader online at 1 has said it holds nothing.
 * 3. Free. */
#include "base/rcu.h"

#include "base/compiler.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <urcu/urcu-qsbr.h>

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#include <sanitizer/tsan_interface.h>
static char grace; /* only its address counts */
static void readers_done(void)
{
	__tsan_release(&grace);
}
static void grace_over(void)
{
	__tsan_acquire(&grace);
}
#else
static void readers_done(void)
{
}
static void grace_over(void)
{
}
#endif

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
/* Held for all of rcu_reclaim: when it returns, nothing that was queued before
 * is still being freed, by whichever thread. */
static pthread_mutex_t reclaim_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rcu_node *queue_head; /* both under queue_lock */
static struct rcu_node **queue_tail = &queue_head;

void rcu_thread_init(void)
{
	urcu_qsbr_register_thread();
}

void rcu_thread_fini(void)
{
	readers_done();
	urcu_qsbr_unregister_thread();
}

void rcu_quiescent(void)
{
	readers_done();
	urcu_qsbr_quiescent_state();
}

void rcu_offline(void)
{
	readers_done();
	urcu_qsbr_thread_offline();
}

void rcu_online(void)
{
	urcu_qsbr_thread_online();
}

void rcu_free_later(struct rcu_node *n, void (*free)(struct rcu_node *n))
{
	n->next = NULL;
	n->free = free;
	pthread_mutex_lock(&queue_lock);
	*queue_tail = n;
	queue_tail = &n->next;
	pthread_mutex_unlock(&queue_lock);
}

/* Until another thread's reclaim is over. The caller goes offline while it waits,
 * as that thread may be waiting for it. */
static void lock_reclaim(void)
{
	bool is_online = urcu_qsbr_read_ongoing();

	if (is_online)
		rcu_offline();
	pthread_mutex_lock(&reclaim_lock);
	if (is_online)
		rcu_online();
}

static struct rcu_node *take_all(void)
{
	struct rcu_node *n;

	pthread_mutex_lock(&queue_lock);
	n = queue_head;
	queue_head = NULL;
	queue_tail = &queue_head;
	pthread_mutex_unlock(&queue_lock);
	return n;
}

/* syscalls: poll futex; liburcu, while it waits for readers */
void rcu_reclaim(void)
{
	struct rcu_node *n, *next;

	lock_reclaim();
	/* Freeing a node may queue others (a peer its sessions): go on until
	 * nothing is left. */
	while ((n = take_all())) {
		readers_done();
		urcu_qsbr_synchronize_rcu(); /* goes offline if we are a reader */
		grace_over();
		for (; n; n = next) {
			next = n->next;
			n->free(n);
		}
	}
	pthread_mutex_unlock(&reclaim_lock);
}
