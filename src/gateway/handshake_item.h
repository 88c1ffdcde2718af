/* A handshake message on its way from a data worker to the handshake thread. */
#ifndef GATEWAY_HANDSHAKE_ITEM_H
#define GATEWAY_HANDSHAKE_ITEM_H

#include "base/queue.h"
#include "wg/wg.h"

struct handshake_item {
	struct wg_endpoint from;
	uint8_t len;
	uint8_t msg[WGMSG_INITIATION_LEN];
};

/* Copy a message into the queue of struct handshake_item. wgmsg_gate() said that it is of
 * type 1 to 3, so len is at most WGMSG_INITIATION_LEN. false: the queue is full
 * (WORKER_DROP_QUEUE_FULL). Any thread. */
MUST_CHECK bool handshake_item_push(
	struct queue *q, const uint8_t *msg, uint32_t len, const struct wg_endpoint *from);

#endif
