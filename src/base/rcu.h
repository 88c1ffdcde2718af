/* Read-copy-update on top of liburcu (QSBR flavour), so that the rest of the
 * tree names one thing and ThreadSanitizer sees the ordering. A thread that
 * reads registers once, says rcu_quiescent() once per loop and goes offline
 * before it blocks. Publishing is a C11 release store, reading an acquire load
 * (free on x86). */
#ifndef BASE_RCU_H
#define BASE_RCU_H

#include <stdatomic.h>

#define rcu_read(p) atomic_load_explicit(&(p), memory_order_acquire)
/* release: pairs with the acquire in rcu_read */
#define rcu_publish(p, v) atomic_store_explicit(&(p), (v), memory_order_release)

struct rcu_node {
	struct rcu_node *next;
	void (*free)(struct rcu_node *n);
};

/* The calling thread becomes / ceases to be a reader. */
void rcu_thread_init(void);
void rcu_thread_fini(void);

/* Reader: I hold no pointer from before this call. */
void rcu_quiescent(void);
/* Reader: I hold none and may block until rcu_online(). */
void rcu_offline(void);
void rcu_online(void);

/* Call n->free(n) after all readers have passed a quiescent state. The node is
 * queued; rcu_reclaim() waits for the grace period and frees all that is
 * queued. Both by slow threads only; the queue has its own lock. rcu_reclaim
 * must not be called by a thread that is online as a reader and holds pointers;
 * it goes offline itself while it waits. */
void rcu_free_later(struct rcu_node *n, void (*free)(struct rcu_node *n));
void rcu_reclaim(void);

#endif
