/* Configuration: a change is applied whole or not at all.
 *
 * All memory is taken first, under config_lock alone: peers and prefixes come and
 * go only under config_lock and the device's lock together, so that either of
 * them keeps the tables as they are. After that nothing can fail, and the
 * device's lock is let go now and then: a handshake waits for some sections of a
 * change, not for 100,000. A section takes effect in one go. */
#include "wg/device.h"
#include <errno.h>
#include <stdlib.h>

struct section {
	struct wg_peer *there; /* the peer, if there was one before the change */
	struct wg_peer *fresh; /* one that may be needed; NULL: none, or it was used */
};

struct applying {
	struct wg *wg;
	const struct wg_change *c;
	struct section *sections; /* one for each of c->peers */
	/* Every peer has one section only, and nothing is taken away by name. */
	bool is_plain;
	bool has_removal; /* of peers */
	uint32_t named; /* mark of the peers that are named */
	size_t n_fresh; /* peers that are not there yet */
	size_t n_prefixes; /* that may need memory */
	void (*moved)(void *ctx, const struct prefix *net);
	void *moved_ctx;
};

static bool is_zero(const uint8_t key[WG_KEY_LEN])
{
	static const uint8_t zero[WG_KEY_LEN];

	return crypto_equal(key, zero, WG_KEY_LEN);
}

/* ---- Memory. config_lock. */

static bool takes_away(const struct wg_peer_change *pc)
{
	bool result = pc->is_removal;

	for (size_t i = 0; i < pc->n_allowed; i++)
		result |= pc->allowed[i].is_removal;
	return result;
}

/* Find the peers that are named, mark them, count what has to be made. */
static void survey(struct applying *a)
{
	a->named = ++a->wg->mark;
	a->is_plain = true;
	for (size_t i = 0; i < a->c->n_peers; i++) {
		const struct wg_peer_change *pc = &a->c->peers[i];
		struct wg_peer *p = peer_find(a->wg, pc->public_key);

		a->sections[i].there = p;
		a->has_removal |= pc->is_removal;
		a->is_plain &= !takes_away(pc) && !(p && p->named == a->named);
		a->n_prefixes += pc->n_allowed;
		a->n_fresh += !p && !pc->is_removal && !pc->is_update_only;
		if (p)
			p->named = a->named;
	}
}

/* Does the change name a peer twice that is not there yet? A table of section
 * numbers (from 1) by key, thrown away again. 0, -ENOMEM. */
static int look_for_twins(struct applying *a)
{
	const struct wg_peer_change *peers = a->c->peers;
	size_t n_slots = 16, slot;
	uint32_t *slots;

	while (n_slots < 2 * a->c->n_peers)
		n_slots *= 2;
	slots = calloc(n_slots, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < a->c->n_peers && a->is_plain; i++) {
		if (a->sections[i].there)
			continue;
		slot = siphash13(&a->wg->hash_key, peers[i].public_key, WG_KEY_LEN);
		for (slot &= n_slots - 1; slots[slot]; slot = (slot + 1) & (n_slots - 1))
			if (memcmp(peers[slots[slot] - 1].public_key, peers[i].public_key,
				    WG_KEY_LEN) == 0)
				a->is_plain = false;
		slots[slot] = (uint32_t)i + 1;
	}
	free(slots);
	return 0;
}

/* In a plain change a prefix that its peer has already keeps its memory until the
 * peer's section comes: before that it may change hands, but whoever has got it
 * does not lose it again. So a configuration that is loaded once more takes no
 * more memory. */
static size_t count_known_prefixes(const struct applying *a)
{
	size_t n = 0;

	for (size_t i = 0; i < a->c->n_peers; i++) {
		const struct wg_peer_change *pc = &a->c->peers[i];
		const struct wg_peer *p = a->sections[i].there;

		for (size_t k = 0; p && k < pc->n_allowed; k++)
			n += allowed_find(&a->wg->allowed, &pc->allowed[k].net) == &p->allowed;
	}
	return n;
}

static int make_peers(struct applying *a)
{
	for (size_t i = 0; i < a->c->n_peers; i++) {
		const struct wg_peer_change *pc = &a->c->peers[i];
		struct section *s = &a->sections[i];

		/* A removal further up in the same change may take the one there is. */
		if (pc->is_removal || (s->there ? !a->has_removal : pc->is_update_only))
			continue;
		s->fresh = peer_alloc(a->wg, pc->public_key);
		if (!s->fresh)
			return -ENOMEM;
	}
	return 0;
}

static int prepare(struct applying *a)
{
	struct wg *wg = a->wg;
	int ret;

	survey(a);
	if ((a->c->replaces_peers ? a->c->n_peers : wg->n_peers + a->n_fresh) > WG_PEERS_MAX)
		return -ENOSPC;
	ret = look_for_twins(a);
	if (ret)
		return ret;
	if (a->is_plain)
		a->n_prefixes -= count_known_prefixes(a);
	ret = make_peers(a);
	if (!ret)
		ret = peers_reserve(wg, a->n_fresh);
	return ret ? ret : allowed_reserve(&wg->allowed, a->n_prefixes);
}

/* ---- The change itself. Both locks. */

/* Send a keepalive or what is staged. It may take a handshake: the first few are made at
 * once, so that wg(8) shows them; of a hundred thousand wg_poll makes the rest. */
static void start(struct wg_peer *p)
{
	bool has_keepalive = atomic_load(&p->persistent_ns) != 0;

	if (p->wg->work >= TIMERS_WORK)
		peer_want(p, has_keepalive ? WANT_KEEPALIVE : WANT_SESSION);
	else if (has_keepalive)
		session_send_keepalive(p);
	else
		session_send_staged(p);
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
	for (struct wg_peer *p = wg->first; p && atomic_load(&wg->is_up); p = p->next)
		start(p);
}

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
		endpoint_set(&p->endpoint, &pc->endpoint, p->wg->now_ns);
	change_allowed(a, p, pc, pc->replaces_allowed || is_whole);
	if (pc->has_keepalive || is_whole) {
		uint64_t interval = pc->has_keepalive ? pc->keepalive_s * NSEC_PER_SEC : 0;

		atomic_store(&p->persistent_ns, interval);
		if (!interval)
			timer_clear(p, TIMER_PERSISTENT);
		else if (!had_keepalive && is_up)
			start(p);
		else if (is_up)
			timers_authenticated_traversal(p, a->wg->now_ns);
	}
	if (is_up)
		session_send_staged(p);
}

/* With replaces_peers the first mention of a peer says all there is of it. */
static void apply_section(struct applying *a, size_t i, uint32_t whole)
{
	const struct wg_peer_change *pc = &a->c->peers[i];
	struct section *s = &a->sections[i];
	const struct noise_identity *self = &a->wg->identity;
	struct wg_peer *p;
	bool is_whole;

	/* With the private key the peer of that key has gone, if there was one. */
	if (!pc->is_removal && self->has_key &&
		crypto_equal(pc->public_key, self->public_key, WG_KEY_LEN))
		return;
	p = a->is_plain ? s->there : peer_find(a->wg, pc->public_key);
	if (pc->is_removal) {
		if (p)
			peer_remove(p);
		return;
	}
	is_whole = a->c->replaces_peers && p && p->whole != whole;
	if (!p) {
		if (pc->is_update_only || !s->fresh)
			return;
		p = s->fresh;
		s->fresh = NULL;
		peer_add(p);
	}
	p->whole = whole;
	change_peer(a, p, pc, is_whole);
}

/* Remove the peers that the change does not name. */
static void remove_unnamed(const struct applying *a, struct hold *h)
{
	struct wg_peer *next;

	for (struct wg_peer *p = a->wg->first; p; p = next) {
		next = p->next;
		hold_count(h, 1 + p->allowed.n);
		if (p->named != a->named)
			peer_remove(p);
	}
}

static void apply(struct applying *a, uint64_t now_ns, uint64_t wall_ns)
{
	struct wg *wg = a->wg;
	uint32_t whole = ++wg->mark;
	struct hold h;

	hold_begin(&h, wg, now_ns, wall_ns);
	wg->work = 0;
	if (a->c->has_private_key)
		set_private_key(wg, a->c->private_key);
	if (a->c->replaces_peers)
		remove_unnamed(a, &h);
	for (size_t i = 0; i < a->c->n_peers; i++) {
		hold_count(&h, 1 + a->c->peers[i].n_allowed);
		apply_section(a, i, whole);
	}
	hold_end(&h);
}

int wg_apply(struct wg *wg, const struct wg_change *c, uint64_t now_ns, uint64_t wall_ns,
	void (*moved)(void *ctx, const struct prefix *net), void *moved_ctx)
{
	struct applying a = { .wg = wg, .c = c, .moved = moved, .moved_ctx = moved_ctx };
	int ret;

	a.sections = calloc(c->n_peers + 1, sizeof(*a.sections));
	if (!a.sections)
		return -ENOMEM;
	pthread_mutex_lock(&wg->config_lock);
	ret = prepare(&a);
	if (!ret)
		apply(&a, now_ns, wall_ns);
	pthread_mutex_unlock(&wg->config_lock);
	for (size_t i = 0; i < c->n_peers; i++)
		free(a.sections[i].fresh);
	free(a.sections);
	wg->ops->wake(wg->ctx);
	return ret;
}
