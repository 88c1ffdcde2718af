/* Whom a frame from the TUN goes to. Data workers. */
#ifndef GATEWAY_ROUTE_H
#define GATEWAY_ROUTE_H

#include "gateway/unreach.h"
#include "link/link.h"
#include "wg/wg.h"

/* The peer for a frame that split_init() took, and the hop limit of the messages that will
 * carry it. NULL: dropped and counted, and its sender is told by unreach (may be NULL)
 * where nobody has its destination. */
MUST_CHECK struct wg_peer *route_frame(struct wg_worker *w, const struct split *s,
	struct unreach *unreach, uint64_t now_ns, uint8_t *hops);

#endif
