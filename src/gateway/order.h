/* The order of a session's trains where several workers receive them (steer mode rr): each
 * opens its train, then waits here until those that its peer numbered before have been written
 * to the TUN. A train that does not come was lost on its way, or somebody has yet to take it from a
 * socket: after some patience the others go on. Patience grows where it paid and
 * shrinks where it did not, so that a path with losses does not stall. What was
 * numbered lower and comes late goes through at once. All waits in vain together are an eighth of a
 * thread's time at the most.
 *
 * Peers number packets in the order in which they send them. Any thread. */
#ifndef GATEWAY_ORDER_H
#define GATEWAY_ORDER_H

#include "base/compiler.h"
#include <stdint.h>

enum {
	ORDER_SLOTS = 1024, /* sessions, by hash; those that meet do not wait for each other */
	ORDER_PATIENCE_MAX_US = 16000,
	ORDER_PATIENCE_MIN_US = 500,
};

struct order;
struct order_slot;

/* 0 or -ENOMEM. */
MUST_CHECK int order_create(struct order **out);
void order_destroy(struct order *o);

/* A train of the session with this receiver index, whose first authenticated counter is
 * `first`, wants to go on. Returns when it may; until order_leave nobody else of the session
 * does. Gives way to other threads while it waits. */
MUST_CHECK struct order_slot *order_enter(struct order *o, uint32_t receiver, uint64_t first);
/* It is written; `next` follows its last counter. */
void order_leave(struct order_slot *s, uint64_t next);

#endif
