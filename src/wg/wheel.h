/* A hierarchical timer wheel: arm, re-arm and cancel in O(1) for any number of
 * nodes; a jump in time costs no more than the nodes it passes. A node fires at
 * its deadline rounded up to the next 2^24 ns (16.8 ms), never before it.
 * Intrusive, no memory of its own; the caller serialises. */
#ifndef WG_WHEEL_H
#define WG_WHEEL_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stdint.h>

enum {
	WHEEL_TICK_SHIFT = 24, /* a tick is 2^24 ns */
	WHEEL_SLOT_BITS = 6,
	WHEEL_SLOTS = 1 << WHEEL_SLOT_BITS,
	WHEEL_LEVELS = 5, /* 1.07 s, 69 s, 73 min, 78 h, 208 days; later ones wait there again */
};

/* All zero is a node that is not armed. */
struct wheel_node {
	struct wheel_node *next; /* NULL: not armed */
	struct wheel_node *prev;
	uint64_t deadline_ns;
	uint8_t level; /* WHEEL_LEVELS: in the list of those that are due */
	uint8_t slot;
};

struct wheel {
	uint64_t tick; /* all nodes up to here are in due */
	uint64_t occupied[WHEEL_LEVELS]; /* bit per slot */
	struct wheel_node slots[WHEEL_LEVELS][WHEEL_SLOTS]; /* list heads */
	struct wheel_node due;
};

void wheel_init(struct wheel *w, uint64_t now_ns);

/* Fire at deadline_ns; moves the node if it is armed. A deadline in the past
 * fires at the next wheel_pop. */
void wheel_arm(struct wheel *w, struct wheel_node *n, uint64_t deadline_ns);
/* Does nothing when it is not armed. */
void wheel_cancel(struct wheel *w, struct wheel_node *n);
static inline bool wheel_is_armed(const struct wheel_node *n)
{
	return n->next != NULL;
}

/* Take out a node that is due at now_ns; NULL for none. It may be armed again at
 * once. A now_ns before an earlier one counts as that one. */
struct wheel_node *wheel_pop(struct wheel *w, uint64_t now_ns);

/* When to call wheel_pop next: no node fires before that. UINT64_MAX: none is armed. May
 * be earlier than the first deadline (a level has to be turned): then pop gives NULL. */
uint64_t wheel_next(const struct wheel *w);

#endif
