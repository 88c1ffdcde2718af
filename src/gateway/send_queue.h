/* The locked queue in which packets of the engine `queue` wait to be sent. Several workers
 * put them in as they get done, one sender takes them out in the order of their tickets:
 * each ticket is a place in a ring, and the sender waits for the place that is next. A
 * packet that was dropped leaves its place empty, and it is passed over. */
#ifndef GATEWAY_SEND_QUEUE_H
#define GATEWAY_SEND_QUEUE_H

#include "gateway/packet_queue.h"

struct send_queue {
	pthread_mutex_t lock;
	pthread_cond_t has_head; /* the sender waits for it */
	pthread_cond_t has_room; /* workers wait for it */
	/* under the lock */
	uint64_t head; /* the ticket that is sent next */
	uint64_t wake_at; /* once head is here, workers that wait for room are woken */
	uint32_t n_waiting; /* those */
	bool is_waiting; /* the sender */
	bool is_kicked, is_closed;
	struct packet **ring; /* by ticket; NULL: not done yet */
	/* read-only after init */
	uint32_t cap; /* places, a power of two */
};

/* cap in packets, a power of two. 0 or -ENOMEM. */
MUST_CHECK int send_queue_init(struct send_queue *q, uint32_t cap);
/* Frees the packets inside. No thread may be using it. */
void send_queue_fini(struct send_queue *q);

/* Put a packet, which is the queue's from then on, into its ticket's place; NULL: it was
 * dropped. Each ticket exactly once, or the sender waits for ever. false: the ticket is
 * too far ahead of the sender (may_wait: the queue is closed; else it waits until it is
 * not), and p stays the caller's. Any thread. */
MUST_CHECK bool send_queue_put(
	struct send_queue *q, uint64_t ticket, struct packet *p, bool may_wait);
/* Wait for the next packet in order, the caller's from then on. NULL: kicked or closed. The
 * sender only. */
struct packet *send_queue_pop(struct send_queue *q);
/* The sender's wait under way, or its next, ends. Any thread. */
void send_queue_kick(struct send_queue *q);
/* Nobody waits any more; pop gives nothing. */
void send_queue_close(struct send_queue *q);

#endif
