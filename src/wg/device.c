/* The device: creation, its lock, up and down. Configuration: apply.c; what wg(8)
 * shows: walk.c. */
#include "wg/device.h"
#include "base/reasons.h"
#include <errno.h>
#include <stdlib.h>

#define OK_AND_DROPS(X) X(OK, "ok", "") WG_DROPS(X)
REASONS_DEFINE(wg_drop, OK_AND_DROPS)
#undef OK_AND_DROPS

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

static void destroy_locks(struct wg *wg)
{
	pthread_mutex_destroy(&wg->lock);
	pthread_mutex_destroy(&wg->turn_lock);
	pthread_mutex_destroy(&wg->config_lock);
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
	pthread_mutex_init(&wg->config_lock, NULL);
	pthread_mutex_init(&wg->turn_lock, NULL);
	pthread_mutex_init(&wg->lock, NULL);
	crypto_random(&wg->hash_key, sizeof(wg->hash_key));
	allowed_init(&wg->allowed);
	wheel_init(&wg->wheel, 0);
	noise_identity_set(&wg->identity, NULL);
	wg->scratch = malloc(WG_HEAD + STAGE_PACKET_MAX + WG_TAIL);
	ret = wg->scratch ? init_parts(wg, cfg) : -ENOMEM;
	if (ret) {
		free(wg->scratch);
		destroy_locks(wg);
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
	pthread_mutex_lock(&wg->config_lock);
	pthread_mutex_lock(&wg->lock);
	while (wg->first)
		peer_remove(wg->first);
	pthread_mutex_unlock(&wg->lock);
	pthread_mutex_unlock(&wg->config_lock);
	rcu_reclaim();
	wg_worker_destroy(wg->slow);
	allowed_fini(&wg->allowed);
	index_fini(&wg->index);
	admit_fini(&wg->admit);
	pool_fini(&wg->stage);
	noise_identity_set(&wg->identity, NULL);
	free(wg->buckets);
	free(wg->scratch);
	destroy_locks(wg);
	crypto_wipe(wg, sizeof(*wg));
	free(wg);
}

/* ---- The lock. */

/* A mutex that is let go and taken again at once goes to the one who runs already, not to
 * the one who waits. Whoever waits here holds the turn; the other queues behind it. */
void wg_lock(struct wg *wg)
{
	pthread_mutex_lock(&wg->turn_lock);
	pthread_mutex_lock(&wg->lock);
	pthread_mutex_unlock(&wg->turn_lock);
}

void hold_begin(struct hold *h, struct wg *wg, uint64_t now_ns, uint64_t wall_ns)
{
	*h = (struct hold){ wg, now_ns, wall_ns, 0 };
	wg_lock(wg);
	if (now_ns)
		wg->now_ns = now_ns;
	if (wall_ns)
		wg->wall_ns = wall_ns;
}

void hold_count(struct hold *h, size_t n)
{
	struct wg *wg = h->wg;

	h->n += n;
	if (h->n <= HOLD_MAX)
		return;
	h->n = n;
	pthread_mutex_unlock(&wg->lock);
	wg_lock(wg);
	/* Another call may have brought a later time: that one stays. */
	if (wg->now_ns >= h->now_ns)
		return;
	wg->now_ns = h->now_ns;
	if (h->wall_ns)
		wg->wall_ns = h->wall_ns;
}

void hold_end(struct hold *h)
{
	pthread_mutex_unlock(&h->wg->lock);
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
	struct hold h;

	pthread_mutex_lock(&wg->config_lock);
	hold_begin(&h, wg, now_ns, 0);
	if (atomic_load(&wg->is_up) != is_up) {
		atomic_store(&wg->is_up, is_up);
		for (struct wg_peer *p = wg->first; p; p = p->next) {
			hold_count(&h, 1);
			if (is_up)
				start_peer(p);
			else
				stop_peer(p);
		}
	}
	hold_end(&h);
	pthread_mutex_unlock(&wg->config_lock);
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

void wg_reroute(struct wg *wg, const struct wg_source *s, unsigned detour, uint64_t now_ns)
{
	struct wg_peer *p;

	pthread_mutex_lock(&wg->lock);
	p = peer_find(wg, s->public_key);
	if (p)
		endpoint_reroute(&p->endpoint, &s->endpoint, detour, now_ns);
	pthread_mutex_unlock(&wg->lock);
}

uint64_t wg_poll(struct wg *wg, uint64_t now_ns, uint64_t wall_ns)
{
	uint64_t next;
	bool is_done;

	wg_lock(wg);
	wg->now_ns = now_ns;
	wg->wall_ns = wall_ns;
	is_done = timers_run(wg);
	next = is_done ? wheel_next(&wg->wheel) : now_ns;
	pthread_mutex_unlock(&wg->lock);
	/* Not under the lock: it waits for the workers. */
	rcu_reclaim();
	return next;
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
