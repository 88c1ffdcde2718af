/* A walk over the peers in steps, so that the device's lock is never held for
 * long. See wg.h for what it promises.
 *
 * A walk stands on the peer that it copies next and holds no reference to it:
 *  1. at is read and written under the lock only.
 *  2. A peer leaves the device's list under the lock, and before it does every
 *     walk that stands on it steps to its successor (walks_step_off), which is
 *     in the list.
 *  3. So whenever the lock is held, at is NULL or a peer in the list. Peers are
 *     appended at the end: what is added meanwhile lies ahead of the walk.
 *
 * Prefixes. Short lists are copied with their peer. A long one is copied in
 * pieces, with the lock released in between; the leaf at which the next piece
 * begins is looked at only if the list has not changed since, otherwise the
 * copy begins again with pieces of twice the length. So it ends even if the
 * list changes every time, and it is always the list of one moment. */
#include "wg/device.h"
#include <errno.h>
#include <stdlib.h>

enum {
	SHORT_NETS = 1024, /* prefixes of one step's peers together; a peer with more is "long" */
	PIECE_NETS = 4096, /* of a long list, copied at once; doubles when it changes */
};

struct wg_walk {
	struct wg *wg;

	/* lock */
	struct wg_walk *next, *prev;
	struct wg_peer *at; /* NULL: at the end */
	const struct allowed_leaf *leaf; /* of at: where its next piece begins; NULL: none copied */
	uint32_t seen; /* at->allowed.n_changes when its copy began */
	size_t piece;

	/* whoever walks */
	struct prefix *long_nets;
	size_t n_long, long_cap,
		long_want; /* want: to be taken by the next call; 0: what there is */
	bool is_long_out; /* the last call gave long_nets out */
	size_t n_short;
	struct prefix short_nets[SHORT_NETS];
};

static void stand_on(struct wg_walk *k, struct wg_peer *p)
{
	k->at = p;
	k->leaf = NULL;
	k->piece = PIECE_NETS;
}

void walks_step_off(struct wg_peer *p)
{
	for (struct wg_walk *k = p->wg->walks; k; k = k->next)
		if (k->at == p)
			stand_on(k, p->next);
}

int wg_walk_begin(struct wg_walk **out, struct wg *wg)
{
	struct wg_walk *k = malloc(sizeof(*k));

	if (!k)
		return -ENOMEM;
	memset(k, 0, offsetof(struct wg_walk, short_nets));
	k->wg = wg;
	pthread_mutex_lock(&wg->lock);
	k->next = wg->walks;
	if (k->next)
		k->next->prev = k;
	wg->walks = k;
	stand_on(k, wg->first);
	pthread_mutex_unlock(&wg->lock);
	*out = k;
	return 0;
}

void wg_walk_end(struct wg_walk *k)
{
	if (!k)
		return;
	pthread_mutex_lock(&k->wg->lock);
	if (k->next)
		k->next->prev = k->prev;
	*(k->prev ? &k->prev->next : &k->wg->walks) = k->next;
	pthread_mutex_unlock(&k->wg->lock);
	free(k->long_nets);
	free(k);
}

static void describe(struct wg_peer *p, const struct prefix *allowed, struct wg_peer_info *out)
{
	*out = (struct wg_peer_info){ 0 };
	memcpy(out->public_key, p->noise.public_key, WG_KEY_LEN);
	memcpy(out->psk, p->noise.psk, WG_KEY_LEN);
	for (size_t i = 0; i < WG_KEY_LEN; i++)
		out->has_psk |= p->noise.psk[i] != 0;
	out->has_endpoint = endpoint_get(&p->endpoint, &out->endpoint);
	out->last_handshake_wall_ns = p->last_handshake_wall_ns;
	out->rx_bytes = atomic_load_explicit(&p->rx_bytes, memory_order_relaxed);
	out->tx_bytes = atomic_load_explicit(&p->tx_bytes, memory_order_relaxed);
	out->keepalive_s = (uint16_t)(atomic_load(&p->persistent_ns) / NSEC_PER_SEC);
	out->allowed = allowed;
	out->n_allowed = p->allowed.n;
	peer_drops(p, out->drops);
}

/* The peer stood on, if its prefixes fit beside those of this step. Lock. */
static bool copy_short(struct wg_walk *k, struct wg_peer_info *out)
{
	struct wg_peer *p = k->at;
	struct prefix *nets = k->short_nets + k->n_short;

	if (!p || p->allowed.n > SHORT_NETS - k->n_short)
		return false;
	for (struct allowed_leaf *l = allowed_first(&p->allowed); l; l = allowed_next(l))
		allowed_prefix(l, &k->short_nets[k->n_short++]);
	describe(p, nets, out);
	stand_on(k, p->next);
	return true;
}

/* The next piece of the list of the peer stood on. -EAGAIN: not all is copied yet. Lock. */
static int copy_long(struct wg_walk *k, struct wg_peer_info *out)
{
	struct wg_peer *p = k->at;
	const struct allowed_owner *o = &p->allowed;

	if (o->n > k->long_cap) {
		/* To be taken without the lock; some more in case the list grows meanwhile. */
		k->long_want = o->n + o->n / 8;
		k->leaf = NULL;
		return -EAGAIN;
	}
	if (k->leaf && k->seen != o->n_changes) {
		k->leaf = NULL;
		k->piece *= 2;
	}
	if (!k->leaf) {
		k->leaf = o->first;
		k->seen = o->n_changes;
		k->n_long = 0;
	}
	for (size_t i = 0; i < k->piece && k->leaf; i++) {
		allowed_prefix(k->leaf, &k->long_nets[k->n_long++]);
		k->leaf = allowed_next(k->leaf);
	}
	if (k->leaf)
		return -EAGAIN;
	assert(k->n_long == o->n);
	describe(p, k->long_nets, out);
	stand_on(k, p->next);
	return 0;
}

/* Memory for want prefixes of a long list (0: none) instead of what there was. */
static int fit_long(struct wg_walk *k, size_t want)
{
	free(k->long_nets);
	k->long_nets = want ? malloc(want * sizeof(*k->long_nets)) : NULL;
	k->long_cap = k->long_nets ? want : 0;
	k->long_want = 0;
	k->is_long_out = false;
	return want && !k->long_nets ? -ENOMEM : 0;
}

int wg_walk_next(struct wg_walk *k, struct wg_peer_info *out, size_t cap, size_t *n)
{
	int ret = 0;

	assert(cap > 0);
	*n = 0;
	k->n_short = 0;
	if (k->long_want || k->is_long_out)
		ret = fit_long(k, k->long_want);
	if (ret)
		return ret;
	wg_lock(k->wg);
	while (*n < cap && copy_short(k, &out[*n]))
		++*n;
	if (*n == 0 && k->at) {
		ret = copy_long(k, out);
		k->is_long_out = ret == 0;
		*n = ret == 0;
	}
	pthread_mutex_unlock(&k->wg->lock);
	return ret;
}

static bool has_source(const struct wg_endpoint *e)
{
	static const uint8_t none[sizeof(e->local)];

	return memcmp(e->local, none, sizeof(none)) != 0;
}

bool wg_walk_sources(struct wg_walk *k, struct wg_source *out, size_t cap, size_t *n)
{
	bool is_more;

	*n = 0;
	pthread_mutex_lock(&k->wg->lock);
	for (size_t i = 0; i < cap && k->at; i++) {
		struct wg_peer *p = k->at;

		if (endpoint_get(&p->endpoint, &out[*n].endpoint) && has_source(&out[*n].endpoint))
			memcpy(out[(*n)++].public_key, p->noise.public_key, WG_KEY_LEN);
		stand_on(k, p->next);
	}
	is_more = k->at;
	pthread_mutex_unlock(&k->wg->lock);
	return is_more;
}
