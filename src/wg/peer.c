/* Peers: their table by public key, their life and death, what was dropped of theirs. */
#include "wg/device.h"
#include <errno.h>
#include <stdlib.h>

/* ---- Drops. */

static const uint8_t drop_slots[WG_DROP_N] = {
#define X(name) [WG_DROP_##name] = PEER_DROP_##name,
	PEER_DROPS(X)
#undef X
};

void peer_note_drop(struct wg_peer *p, enum wg_drop why, uint64_t n)
{
	/* relaxed: a count, of several writers */
	if (drop_slots[why] && n)
		atomic_fetch_add_explicit(
			&p->drops[drop_slots[why]], (uint32_t)n, memory_order_relaxed);
}

void peer_count_drop(struct wg_peer *p, _Atomic uint64_t *drops, enum wg_drop why, uint64_t n)
{
	assert(drop_slots[why]);
	count_drop(drops, why, n);
	peer_note_drop(p, why, n);
}

void peer_drops(const struct wg_peer *p, uint64_t out[WG_DROP_N])
{
	for (unsigned i = 0; i < WG_DROP_N; i++)
		out[i] = drop_slots[i]
			? atomic_load_explicit(&p->drops[drop_slots[i]], memory_order_relaxed)
			: 0;
}

/* ---- The table. */

static struct wg_peer **bucket_of(const struct wg *wg, const uint8_t key[WG_KEY_LEN])
{
	return &wg->buckets[siphash13(&wg->hash_key, key, WG_KEY_LEN) & (wg->n_buckets - 1)];
}

struct wg_peer *peer_find(const struct wg *wg, const uint8_t key[WG_KEY_LEN])
{
	struct wg_peer *p = wg->n_buckets ? *bucket_of(wg, key) : NULL;

	while (p && memcmp(p->noise.public_key, key, WG_KEY_LEN) != 0)
		p = p->hash_next;
	return p;
}

static void rehash(struct wg *wg)
{
	for (struct wg_peer *p = wg->first; p; p = p->next) {
		struct wg_peer **b = bucket_of(wg, p->noise.public_key);

		p->hash_next = *b;
		*b = p;
	}
}

int peers_reserve(struct wg *wg, size_t n)
{
	size_t want = wg->n_buckets ? wg->n_buckets : 16;
	struct wg_peer **buckets, **old = wg->buckets;

	while (want < wg->n_peers + n)
		want *= 2;
	if (want == wg->n_buckets)
		return 0;
	buckets = calloc(want, sizeof(struct wg_peer *));
	if (!buckets)
		return -ENOMEM;
	wg_lock(wg);
	wg->buckets = buckets;
	wg->n_buckets = want;
	rehash(wg);
	pthread_mutex_unlock(&wg->lock);
	free(old);
	return 0;
}

struct wg_peer *peer_alloc(struct wg *wg, const uint8_t key[WG_KEY_LEN])
{
	struct wg_peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->wg = wg;
	atomic_flag_clear(&p->stage_busy);
	atomic_flag_clear(&p->endpoint.busy);
	atomic_init(&p->armed_ns, UINT64_MAX);
	noise_peer_init(&p->noise, key, NULL);
	cookie_jar_init(&p->jar, p->noise.public_key);
	return p;
}

/* The worker who has fewest peers: however peers come and go, none is given more than its
 * even part of the most that there have been, which is what its share of the indices is
 * made for. */
static unsigned choose_home(const struct wg *wg)
{
	unsigned best = 0;

	for (unsigned i = 1; i < wg->n_workers; i++)
		if (wg->n_at_home[i] < wg->n_at_home[best])
			best = i;
	return best;
}

static_assert((int)WG_WORKERS_MAX <= UINT8_MAX + 1, "wg_peer.home");

void peer_add(struct wg_peer *p)
{
	struct wg *wg = p->wg;
	struct wg_peer **b = bucket_of(wg, p->noise.public_key);

	p->home = (uint8_t)choose_home(wg);
	wg->n_at_home[p->home]++;
	p->hash_next = *b;
	*b = p;
	p->prev = wg->last;
	if (wg->last)
		wg->last->next = p;
	else
		wg->first = p;
	wg->last = p;
	wg->n_peers++;
}

static void unlink_peer(struct wg_peer *p)
{
	struct wg *wg = p->wg;
	struct wg_peer **b = bucket_of(wg, p->noise.public_key);

	while (*b != p)
		b = &(*b)->hash_next;
	*b = p->hash_next;
	walks_step_off(p);
	*(p->prev ? &p->prev->next : &wg->first) = p->next;
	*(p->next ? &p->next->prev : &wg->last) = p->prev;
	wg->n_at_home[p->home]--;
	wg->n_peers--;
}

/* Nobody can have found the peer since the grace period began, but a worker may
 * have kicked or staged before: take it off the list, empty its queue. */
static void peer_free(struct rcu_node *n)
{
	struct wg_peer *p = CONTAINER_OF(n, struct wg_peer, rcu);

	pthread_mutex_lock(&p->wg->lock);
	if (atomic_load(&p->is_kicked))
		timers_forget_dead(p->wg);
	peer_count_drop(p, p->wg->drops, WG_DROP_STAGED_PURGED, stage_purge(p));
	pthread_mutex_unlock(&p->wg->lock);
	noise_peer_wipe(&p->noise);
	cookie_jar_wipe(&p->jar);
	endpoint_fini(&p->endpoint);
	crypto_wipe(p, sizeof(*p));
	free(p);
}

/* 1. is_dead: the slow side starts nothing any more.
 * 2. Out of the tables: no new reader finds it.
 * 3. One grace period: no reader holds it.
 * 4. peer_free. */
void peer_remove(struct wg_peer *p)
{
	atomic_store(&p->is_dead, true);
	allowed_remove_all(&p->wg->allowed, &p->allowed);
	handshake_clear(p);
	session_end_all(p);
	timers_stop(p);
	peer_count_drop(p, p->wg->drops, WG_DROP_STAGED_PURGED, stage_purge(p));
	unlink_peer(p);
	rcu_free_later(&p->rcu, peer_free);
}
