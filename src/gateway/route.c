#include "gateway/route.h"

struct wg_peer *route_frame(struct wg_worker *w, const struct split *s, struct unreach *unreach,
	uint64_t now_ns, uint8_t *hops)
{
	struct wg_peer *peer = wg_route(w, s->in.family, s->in.dst);

	if (!peer) {
		wg_worker_drop(w, NULL, WG_DROP_NO_ROUTE, s->n);
		if (unreach)
			unreach_offer(unreach, s->pkt, s->len, now_ns);
		return NULL;
	}
	if (wg_is_loop(peer, s->pkt, s->len) || !wg_outer_hops(s->pkt, s->len, hops)) {
		wg_worker_drop(w, peer, WG_DROP_LOOP, s->n);
		return NULL;
	}
	return peer;
}
