/* What a configuration request or file asks for: everything that is to change,
 * collected first, applied at once by the owner of the gateway. Plain data on
 * the heap, one thread at a time. */
#ifndef GATEWAY_CHANGE_H
#define GATEWAY_CHANGE_H

#include "base/compiler.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CHANGE_PEERS_MAX = 2 * WG_PEERS_MAX, /* sections, removals included; full: -E2BIG */
	CHANGE_ALLOWED_MAX = 1 << 22, /* over all peers; full: -E2BIG */
};

struct gateway_change {
	bool has_listen_port, has_fwmark;
	uint16_t listen_port; /* 0: any */
	uint32_t fwmark; /* 0: none */
	/* One entry per section, in the order of the request. A peer that has
	 * several sections has several entries, which take effect in that order. */
	struct wg_change wg;

	/* Book-keeping of change.c: allowed addresses of all peers, end to end. */
	struct wg_allowed_change *allowed;
	size_t n_allowed, allowed_cap, peers_cap;
};

void gateway_change_init(struct gateway_change *c);
/* Frees, and wipes the secrets. */
void gateway_change_fini(struct gateway_change *c);

/* Begin the section of a peer. 0, -ENOMEM, -E2BIG. */
MUST_CHECK int gateway_change_add_peer(struct gateway_change *c, struct wg_peer_change **out);
/* The peer whose section was begun last. There must be one. */
struct wg_peer_change *gateway_change_peer(struct gateway_change *c);
/* One more allowed address for that peer. 0, -ENOMEM, -E2BIG. */
MUST_CHECK int gateway_change_add_allowed(
	struct gateway_change *c, const struct prefix *net, bool is_removal);
/* That peer's list starts anew: forget its addresses so far and replace the old list. */
void gateway_change_replace_allowed(struct gateway_change *c);
/* Nothing more comes: make c->wg whole (the lists of the peers point to their place). */
void gateway_change_finish(struct gateway_change *c);

#endif
