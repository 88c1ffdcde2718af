/* Packets of the engine `queue`, each a piece of the heap, and the locked queue in which
 * they wait for a worker: a mutex, a condition variable, a list with a bound.
 *
 * Whoever takes a packet out gets a ticket with it, the packet's place in the order of
 * arrival: by that the send queue puts them in order again (send_queue.h). */
#ifndef GATEWAY_PACKET_QUEUE_H
#define GATEWAY_PACKET_QUEUE_H

#include "base/compiler.h"
#include "wg/wg.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum packet_kind {
	PACKET_INNER, /* from the TUN, or for it */
	PACKET_OUTER, /* from a socket, or for one */
};

struct packet {
	struct packet *next; /* the queue's */
	uint8_t *data; /* into room */
	uint32_t len; /* bytes at data */
	uint8_t kind; /* enum packet_kind */
	uint8_t tos; /* outer TOS / traffic class */
	uint8_t hops; /* outer TTL / hop limit; 0: the kernel's default */
	struct wg_endpoint at; /* outer: whom it is from or goes to */
	uint8_t room[]; /* WG_HEAD, what was asked for, WG_TAIL */
};

/* From the heap, for up to cap bytes at room + WG_HEAD; the caller's, to be freed by
 * free(). data points there. NULL: no memory. */
struct packet *packet_create(size_t cap);

struct packet_queue {
	pthread_mutex_t lock;
	pthread_cond_t has_some; /* workers wait for it */
	/* under the lock */
	struct packet *first, **end;
	uint32_t len; /* packets inside */
	uint32_t n_waiting; /* workers that wait for has_some */
	bool is_closed;
	uint64_t n_popped; /* the next ticket */
	/* read-only after init */
	uint32_t cap; /* packets */
};

/* cap in packets. */
void packet_queue_init(struct packet_queue *q, uint32_t cap);
/* Frees the packets inside. No thread may be using it. */
void packet_queue_fini(struct packet_queue *q);

/* Append p, which is the queue's from then on. false: full or closed, it stays the
 * caller's. Any thread. */
MUST_CHECK bool packet_queue_push(struct packet_queue *q, struct packet *p);
/* Take the oldest out, the caller's from then on, and its ticket: 0, 1, 2 ... NULL: there
 * is none (may_wait: and the queue is closed; else it waits for one). Any thread. */
struct packet *packet_queue_pop(struct packet_queue *q, uint64_t *ticket, bool may_wait);
/* Nobody waits any more; pop gives nothing, push refuses. */
void packet_queue_close(struct packet_queue *q);

#endif
