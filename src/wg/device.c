/* The device: creation, up and down, configuration. What wg(8) shows: walk.c. */
#include "wg/device.h"
#include <errno.h>
#include <stdlib.h>

const char *wg_drop_key(enum wg_drop d)
{
	static const char *const key[] = { "ok",
#define X(name, key, text) key,
		WG_DROPS(X)
#undef X
	};
	return key[d];
}

const char *wg_drop_text(enum wg_drop d)
{
	static const char *const text[] = { "",
#define X(name, key, text) text,
		WG_DROPS(X)
#undef X
	};
	return text[d];
}

uint64_t wg_random_below(struct wg *wg, uint64_t n)
{
	/* splitmix64: jitter needs spread, not secrecy. */
	uint64_t z = wg->random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % n;
}

static int init_parts(struct wg *wg, const struct wg_config *cfg)
{
	int ret = index_init(&wg->index, cfg->server_id, cfg->n_workers, cfg->index_key);

	if (ret)
		return ret;
	ret = pool_init(&wg->stage, STAGE_SLOT, STAGE_SLOTS);
	if (ret)
		goto fini_index;
	ret = admit_init(&wg->admit);
	if (ret)
		goto fini_pool;
	ret = wg_worker_create(&wg->slow, wg, 0);
	if (ret)
		goto fini_admit;
	atomic_store(&wg->workers[0], NULL); /* it is summed by name */
	return 0;

fini_admit:
	admit_fini(&wg->admit);
fini_pool:
	pool_fini(&wg->stage);
fini_index:
	index_fini(&wg->index);
	return ret;
}

int wg_create(struct wg **out, const struct wg_config *cfg)
{
	struct wg *wg;
	int ret;

	if (!cfg->ops || cfg->n_workers < 1 || cfg->n_workers > WG_WORKERS_MAX ||
		cfg->server_id > WG_SERVER_ID_MAX)
		return -EINVAL;
	wg = calloc(1, sizeof(*wg));
	if (!wg)
		return -ENOMEM;
	wg->ops = cfg->ops;
	wg->ctx = cfg->ctx;
	wg->n_workers = cfg->n_workers;
	wg->random = cfg->seed;
	pthread_mutex_init(&wg->lock, NULL);
	crypto_random(&wg->hash_key, sizeof(wg->hash_key));
	allowed_init(&wg->allowed);
	wheel_init(&wg->wheel, 0);
	noise_identity_set(&wg->identity, NULL);
	wg->scratch = malloc(WG_HEAD + STAGE_PACKET_MAX + WG_TAIL);
	ret = wg->scratch ? init_parts(wg, cfg) : -ENOMEM;
	if (ret) {
		free(wg->scratch);
		pthread_mutex_destroy(&wg->lock);
		free(wg);
		return ret;
	}
	*out = wg;
	return 0;
}

void wg_destroy(struct wg *wg)
{
	if (!wg)
		return;
	assert(!wg->walks);
	pthread_mutex_lock(&wg->lock);
	while (wg->first)
		peer_remove(wg->first);
	pthread_mutex_unlock(&wg->lock);
	rcu_reclaim();
	wg_worker_destroy(wg->slow);
	allowed_fini(&wg->allowed);
	index_fini(&wg->index);
	admit_fini(&wg->admit);
	pool_fini(&wg->stage);
	noise_identity_set(&wg->identity, NULL);
	free(wg->buckets);
	free(wg->scratch);
	pthread_mutex_destroy(&wg->lock);
	crypto_wipe(wg, sizeof(*wg));
	free(wg);
}

/* ---- Workers. */

int wg_worker_create(struct wg_worker **out, struct wg *wg, unsigned id)
{
	struct wg_worker *w;
	int ret;

	if (id >= wg->n_workers)
		return -EINVAL;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->wg = wg;
	w->id = id;
	suspects_init(&w->suspects, &wg->hash_key);
	ret = aead_create(&w->aead);
	if (ret) {
		free(w);
		return ret;
	}
	wg_worker_refresh(w);
	atomic_store(&wg->workers[id], w);
	*out = w;
	return 0;
}

void wg_worker_destroy(struct wg_worker *w)
{
	if (!w)
		return;
	/* Its counts stay with the device. */
	pthread_mutex_lock(&w->wg->lock);
	for (unsigned i = 0; i < WG_DROP_N; i++)
		count_drop(w->wg->drops, i, atomic_load(&w->drops[i]));
	if (atomic_load(&w->wg->workers[w->id]) == w)
		atomic_store(&w->wg->workers[w->id], NULL);
	pthread_mutex_unlock(&w->wg->lock);
	aead_destroy(w->aead);
	crypto_wipe(w, sizeof(*w));
	free(w);
}

void wg_worker_drop(struct wg_worker *w, struct wg_peer *peer, enum wg_drop why, uint64_t n)
{
	count_drop(w->drops, why, n);
	if (peer)
		peer_note_drop(peer, why, n);
}

void wg_drop(struct wg *wg, enum wg_drop why, uint64_t n)
{
	pthread_mutex_lock(&wg->lock);
	count_drop(wg->drops, why, n);
	pthread_mutex_unlock(&wg->lock);
}

void wg_drops(struct wg *wg, uint64_t out[WG_DROP_N])
{
	pthread_mutex_lock(&wg->lock);
	for (unsigned i = 0; i < WG_DROP_N; i++) {
		out[i] = atomic_load(&wg->drops[i]) + atomic_load(&wg->slow->drops[i]);
		for (unsigned k = 0; k < wg->n_workers; k++) {
			struct wg_worker *w = atomic_load(&wg->workers[k]);

			if (w)
				out[i] += atomic_load_explicit(&w->drops[i], memory_order_relaxed);
		}
	}
	pthread_mutex_unlock(&wg->lock);
}

/* ---- Up, down, MTU, time. */

/* Not at once: an initiation carries the wall clock, which wg_poll knows and
 * wg_set_up does not; with a stale one the other side takes it for a replay. */
static void start_peer(struct wg_peer *p)
{
	peer_want(p, atomic_load(&p->persistent_ns) ? WANT_KEEPALIVE : WANT_SESSION);
}

static void stop_peer(struct wg_peer *p)
{
	timers_stop(p);
	p->owes_keepalive = false;
	peer_count_drop(p, p->wg->drops, WG_DROP_STAGED_PURGED, stage_purge(p));
	handshake_clear(p);
	session_end_all(p);
	atomic_store(&p->initiation_ns, 0);
}

void wg_set_up(struct wg *wg, bool is_up, uint64_t now_ns)
{
	pthread_mutex_lock(&wg->lock);
	wg->now_ns = now_ns;
	if (atomic_load(&wg->is_up) != is_up) {
		atomic_store(&wg->is_up, is_up);
		for (struct wg_peer *p = wg->first; p; p = p->next) {
			if (is_up)
				start_peer(p);
			else
				stop_peer(p);
		}
	}
	pthread_mutex_unlock(&wg->lock);
	wg->ops->wake(wg->ctx);
}

void wg_set_mtus(struct wg *wg, const struct wg_mtus *mtus)
{
	pthread_mutex_lock(&wg->lock);
	mtus_set(&wg->mtus, mtus);
	pthread_mutex_unlock(&wg->lock);
}

void wg_set_mtu(struct wg *wg, unsigned mtu)
{
	struct wg_mtus one = { 0 };

	wg_mtus_add(&one, mtu);
	wg_set_mtus(wg, &one);
}

void wg_forget_sources(struct wg *wg)
{
	pthread_mutex_lock(&wg->lock);
	for (struct wg_peer *p = wg->first; p; p = p->next)
		endpoint_clear_local(&p->endpoint);
	pthread_mutex_unlock(&wg->lock);
}

uint64_t wg_poll(struct wg *wg, uint64_t now_ns, uint64_t wall_ns)
{
	uint64_t next;

	pthread_mutex_lock(&wg->lock);
	wg->now_ns = now_ns;
	wg->wall_ns = wall_ns;
	if (atomic_load(&wg->is_up))
		timers_run(wg);
	else
		timers_serve_kicked(wg);
	next = wheel_next(&wg->wheel);
	pthread_mutex_unlock(&wg->lock);
	/* Not under the lock: it waits for the workers. */
	rcu_reclaim();
	return next;
}

/* ---- Configuration. */

static bool is_zero(const uint8_t key[WG_KEY_LEN])
{
	static const uint8_t zero[WG_KEY_LEN];

	return crypto_equal(key, zero, WG_KEY_LEN);
}

/* Memory for all that the change may create, so that nothing fails half way.
 * fresh[i] is a peer for change i, or NULL where one is there already. */
static int prepare(struct wg *wg, const struct wg_change *c, struct wg_peer **fresh)
{
	size_t n_fresh = 0, n_prefixes = 0;
	bool has_removal = false;

	for (size_t i = 0; i < c->n_peers; i++)
		has_removal |= c->peers[i].is_removal;
	for (size_t i = 0; i < c->n_peers; i++) {
		const struct wg_peer_change *pc = &c->peers[i];
		bool is_there;

		n_prefixes += pc->n_allowed;
		is_there = peer_find(wg, pc->public_key) != NULL;
		/* A removal further up in the same change may take the one there is. */
		if (pc->is_removal || (is_there ? !has_removal : pc->is_update_only))
			continue;
		n_fresh += !is_there;
		fresh[i] = peer_alloc(wg);
		if (!fresh[i])
			return -ENOMEM;
	}
	if ((c->replaces_peers ? c->n_peers : wg->n_peers + n_fresh) > WG_PEERS_MAX)
		return -ENOSPC;
	if (peers_reserve(wg, n_fresh) || allowed_reserve(&wg->allowed, n_prefixes))
		return -ENOMEM;
	return 0;
}

static void set_private_key(struct wg *wg, const uint8_t key[WG_KEY_LEN])
{
	uint8_t clamped[WG_KEY_LEN];
	struct wg_peer *self;
	bool is_same;

	memcpy(clamped, key, sizeof(clamped));
	if (!is_zero(key))
		x25519_clamp(clamped);
	is_same = wg->identity.has_key ? crypto_equal(clamped, wg->identity.secret, sizeof(clamped))
				       : is_zero(key);
	crypto_wipe(clamped, sizeof(clamped));
	if (is_same)
		return;
	noise_identity_set(&wg->identity, key);
	atomic_store(&wg->has_key, wg->identity.has_key);
	self = wg->identity.has_key ? peer_find(wg, wg->identity.public_key) : NULL;
	if (self)
		peer_remove(self);
	for (struct wg_peer *p = wg->first; p; p = p->next) {
		noise_peer_forget_identity(&p->noise);
		handshake_clear(p);
		session_stop_sending(p);
		atomic_store(&p->initiation_ns, 0);
	}
	admit_set_key(&wg->admit, wg->identity.has_key ? wg->identity.public_key : NULL);
	for (struct wg_peer *p = wg->first; p && atomic_load(&wg->is_up); p = p->next) {
		if (atomic_load(&p->persistent_ns))
			session_send_keepalive(p);
		else
			session_send_staged(p);
	}
}

struct applying {
	struct wg *wg;
	void (*moved)(void *ctx, const struct prefix *net);
	void *moved_ctx;
};

static void change_allowed(
	const struct applying *a, struct wg_peer *p, const struct wg_peer_change *pc, bool replaces)
{
	struct allowed_table *t = &a->wg->allowed;
	uint32_t mark = ++a->wg->mark;

	for (size_t i = 0; i < pc->n_allowed; i++) {
		struct allowed_owner *from = NULL;

		if (pc->allowed[i].is_removal) {
			allowed_remove(t, &pc->allowed[i].net, &p->allowed);
			continue;
		}
		/* Room was reserved and the parser checked the prefix. */
		if (allowed_insert(t, &pc->allowed[i].net, &p->allowed, mark, &from) == 0 && from &&
			a->moved)
			a->moved(a->moved_ctx, &pc->allowed[i].net);
	}
	/* Replacing: what the new list does not name goes after the new is in. */
	if (replaces)
		allowed_remove_stale(t, &p->allowed, mark);
}

static void change_peer(
	const struct applying *a, struct wg_peer *p, const struct wg_peer_change *pc, bool is_whole)
{
	bool had_keepalive = atomic_load(&p->persistent_ns) != 0;
	bool is_up = atomic_load(&a->wg->is_up);

	if (pc->has_psk)
		noise_peer_set_psk(&p->noise, is_zero(pc->psk) ? NULL : pc->psk);
	else if (is_whole)
		noise_peer_set_psk(&p->noise, NULL);
	if (pc->has_endpoint)
		endpoint_set(&p->endpoint, &pc->endpoint);
	change_allowed(a, p, pc, pc->replaces_allowed || is_whole);
	if (pc->has_keepalive || is_whole) {
		uint64_t interval = pc->has_keepalive ? pc->keepalive_s * NSEC_PER_SEC : 0;

		atomic_store(&p->persistent_ns, interval);
		if (!interval)
			timer_clear(p, TIMER_PERSISTENT);
		else if (!had_keepalive && is_up)
			session_send_keepalive(p);
		else if (is_up)
			timers_authenticated_traversal(p, a->wg->now_ns);
	}
	if (is_up)
		session_send_staged(p);
}

static void apply_peer(const struct applying *a, const struct wg_peer_change *pc,
	struct wg_peer **fresh, bool is_whole)
{
	struct wg *wg = a->wg;
	struct wg_peer *p = peer_find(wg, pc->public_key);

	if (pc->is_removal) {
		if (p)
			peer_remove(p);
		return;
	}
	if (wg->identity.has_key &&
		crypto_equal(pc->public_key, wg->identity.public_key, WG_KEY_LEN))
		return;
	if (!p) {
		if (pc->is_update_only || !*fresh)
			return;
		p = *fresh;
		*fresh = NULL;
		peer_add(wg, p, pc->public_key);
	}
	change_peer(a, p, pc, is_whole);
}

/* Remove the peers that the change does not name. */
static void remove_unnamed(struct wg *wg, const struct wg_change *c)
{
	struct wg_peer *next;
	uint32_t mark = ++wg->mark;

	for (size_t i = 0; i < c->n_peers; i++) {
		struct wg_peer *p = peer_find(wg, c->peers[i].public_key);

		if (p)
			p->named = mark;
	}
	for (struct wg_peer *p = wg->first; p; p = next) {
		next = p->next;
		if (p->named != mark)
			peer_remove(p);
	}
}

int wg_apply(struct wg *wg, const struct wg_change *c, uint64_t now_ns, uint64_t wall_ns,
	void (*moved)(void *ctx, const struct prefix *net), void *moved_ctx)
{
	struct applying a = { wg, moved, moved_ctx };
	struct wg_peer **fresh = calloc(c->n_peers + 1, sizeof(struct wg_peer *));
	uint32_t whole;
	int ret;

	if (!fresh)
		return -ENOMEM;
	pthread_mutex_lock(&wg->lock);
	wg->now_ns = now_ns;
	wg->wall_ns = wall_ns;
	ret = prepare(wg, c, fresh);
	if (ret)
		goto unlock;
	if (c->has_private_key)
		set_private_key(wg, c->private_key);
	if (c->replaces_peers)
		remove_unnamed(wg, c);
	/* With replaces_peers the first mention of a peer says all there is of it. */
	whole = ++wg->mark;
	for (size_t i = 0; i < c->n_peers; i++) {
		struct wg_peer *p = peer_find(wg, c->peers[i].public_key);
		bool is_whole = c->replaces_peers && p && p->whole < whole;

		apply_peer(&a, &c->peers[i], &fresh[i], is_whole);
		p = peer_find(wg, c->peers[i].public_key);
		if (p)
			p->whole = whole;
	}
unlock:
	pthread_mutex_unlock(&wg->lock);
	for (size_t i = 0; i < c->n_peers; i++)
		free(fresh[i]);
	free(fresh);
	wg->ops->wake(wg->ctx);
	return ret;
}

/* ---- What wg(8) shows. */

void wg_get(struct wg *wg, struct wg_info *out)
{
	pthread_mutex_lock(&wg->lock);
	out->has_private_key = wg->identity.has_key;
	memcpy(out->private_key, wg->identity.secret, WG_KEY_LEN);
	memcpy(out->public_key, wg->identity.public_key, WG_KEY_LEN);
	out->n_peers = wg->n_peers;
	pthread_mutex_unlock(&wg->lock);
}
