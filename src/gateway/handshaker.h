/* The handshake thread: lower priority than the data workers, it takes the
 * messages of types 1 to 3 from sockets of their own and from the data workers'
 * queue, and runs the device's timers (wg_poll). Nothing it does stalls a data
 * worker. */
#ifndef GATEWAY_HANDSHAKER_H
#define GATEWAY_HANDSHAKER_H

#include "base/queue.h"
#include "gateway/worker.h"
#include "link/link.h"
#include "wg/wg.h"

enum {
	HANDSHAKE_QUEUE = 4096, /* messages; full: dropped and counted by the worker */
};

struct handshaker;

/* queue is where data workers put struct handshake_item. lost(ctx): a socket can no longer be
 * read; from the handshake thread, once for each, must not block. 0 or negative errno. */
MUST_CHECK int handshaker_create(
	struct handshaker **out, struct queue *queue, void (*lost)(void *ctx), void *ctx);
/* Starts the thread. wg must outlive it. */
MUST_CHECK int handshaker_start(struct handshaker *h, struct wg *wg);
void handshaker_stop(struct handshaker *h);
void handshaker_destroy(struct handshaker *h);

/* Call soon. Any thread, does not block. */
void handshaker_wake(struct handshaker *h);

/* Read these sockets from now on (-1: none) and send through u (a copy is kept,
 * the descriptors stay the caller's). Returns when the former ones are let go.
 * Control thread. */
void handshaker_set_sockets(struct handshaker *h, const struct udp *u);

/* wg_ops.send: to the socket of the endpoint's family. Any slow thread. */
void handshaker_send(struct handshaker *h, const struct wg_endpoint *to, const uint8_t *msg,
	size_t len, enum wg_msg_kind kind);

#endif
