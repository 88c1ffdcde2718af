/* Timers. The fast side never touches the wheel: it stores a deadline in the
 * peer (one relaxed store, mostly none at all) and, only if the slow side would
 * look too late, pushes the peer on a stack ("kick"). The slow side takes the
 * stack, works out each peer's earliest deadline and arms the wheel. A deadline
 * that moved to later costs nothing: the wheel fires, sees nothing due and arms
 * itself again.
 *
 * No deadline can be lost between the two: the fast side stores the deadline,
 * then loads armed_ns; the slow side stores UINT64_MAX to armed_ns, then loads
 * the deadlines. Both are sequentially consistent, so at least one sees the
 * other's store.
 *
 * The events and what they start follow Linux 6.x drivers/net/wireguard/timers.c
 * and section 6 of the paper. */
#include "wg/device.h"

static void kick(struct wg_peer *p)
{
	struct wg *wg = p->wg;

	/* acq_rel: what the caller stored is seen by whoever takes the peer */
	if (atomic_exchange_explicit(&p->is_kicked, true, memory_order_acq_rel))
		return;
	p->kick_next = atomic_load_explicit(&wg->kicked, memory_order_relaxed);
	/* release: kick_next; pairs with the acquire in first_kicked */
	while (!atomic_compare_exchange_weak_explicit(
		&wg->kicked, &p->kick_next, p, memory_order_release, memory_order_relaxed))
		;
}

void timer_set(struct wg_peer *p, enum timer t, uint64_t at_ns)
{
	atomic_store(&p->due[t], at_ns);
	/* The slow side looks at the stack at least once a second (wg_poll), and
	 * no deadline of the fast side is nearer than that: no wake-up. */
	if (at_ns < atomic_load(&p->armed_ns))
		kick(p);
}

void timer_clear(struct wg_peer *p, enum timer t)
{
	if (atomic_load_explicit(&p->due[t], memory_order_relaxed))
		atomic_store_explicit(&p->due[t], 0, memory_order_relaxed);
}

void peer_want(struct wg_peer *p, unsigned wants)
{
	unsigned before = atomic_fetch_or(&p->wants, wants);

	if ((before & wants) == wants)
		return;
	kick(p);
	p->wg->ops->wake(p->wg->ctx);
}

static bool is_set(const struct wg_peer *p, enum timer t)
{
	return atomic_load_explicit(&p->due[t], memory_order_relaxed) != 0;
}

void timers_data_sent(struct wg_peer *p, uint64_t now_ns)
{
	/* Jitter of up to 1/3 s from low bits of the clock: it spreads peers that
	 * started together and needs no secrecy. */
	if (!is_set(p, TIMER_NEW_HANDSHAKE))
		timer_set(p, TIMER_NEW_HANDSHAKE,
			now_ns + KEEPALIVE_TIMEOUT + REKEY_TIMEOUT +
				(now_ns * 2654435761u) % REKEY_JITTER);
}

void timers_data_received(struct wg_peer *p, uint64_t now_ns)
{
	if (!is_set(p, TIMER_KEEPALIVE))
		timer_set(p, TIMER_KEEPALIVE, now_ns + KEEPALIVE_TIMEOUT);
	else if (!atomic_load_explicit(&p->needs_another_keepalive, memory_order_relaxed))
		atomic_store_explicit(&p->needs_another_keepalive, true, memory_order_relaxed);
}

void timers_authenticated_sent(struct wg_peer *p)
{
	timer_clear(p, TIMER_KEEPALIVE);
}

void timers_authenticated_received(struct wg_peer *p)
{
	timer_clear(p, TIMER_NEW_HANDSHAKE);
}

void timers_authenticated_traversal(struct wg_peer *p, uint64_t now_ns)
{
	uint64_t interval = atomic_load_explicit(&p->persistent_ns, memory_order_relaxed);

	if (interval)
		timer_set(p, TIMER_PERSISTENT, now_ns + interval);
}

void timers_handshake_initiated(struct wg_peer *p, uint64_t sent_ns)
{
	timer_set(p, TIMER_RETRANSMIT,
		sent_ns + REKEY_TIMEOUT + wg_random_below(p->wg, REKEY_JITTER));
}

void timers_handshake_complete(struct wg_peer *p)
{
	timer_clear(p, TIMER_RETRANSMIT);
	p->n_tries = 0;
	atomic_store(&p->has_lastminute, false);
	p->last_handshake_wall_ns = p->wg->wall_ns;
}

void timers_session_derived(struct wg_peer *p)
{
	timer_set(p, TIMER_ZERO_KEYS, p->wg->now_ns + 3 * REJECT_AFTER_TIME);
}

void timers_stop(struct wg_peer *p)
{
	for (unsigned t = 0; t < TIMER_N; t++)
		atomic_store(&p->due[t], 0);
	atomic_store(&p->needs_another_keepalive, false);
	atomic_store(&p->armed_ns, UINT64_MAX);
	wheel_cancel(&p->wg->wheel, &p->wheel);
}

static void retransmit(struct wg_peer *p)
{
	if (p->n_tries >= HANDSHAKE_TRIES_MAX) {
		timer_clear(p, TIMER_KEEPALIVE);
		p->owes_keepalive = false;
		peer_count_drop(p, p->wg->drops, WG_DROP_STAGED_PURGED, stage_purge(p));
		if (!is_set(p, TIMER_ZERO_KEYS))
			timer_set(p, TIMER_ZERO_KEYS, p->wg->now_ns + 3 * REJECT_AFTER_TIME);
		return;
	}
	p->n_tries++;
	endpoint_clear_local(&p->endpoint);
	handshake_initiate(p, true);
}

static void fire(struct wg_peer *p, enum timer t)
{
	switch (t) {
	case TIMER_RETRANSMIT:
		retransmit(p);
		break;
	case TIMER_KEEPALIVE:
		session_send_keepalive(p);
		if (atomic_exchange(&p->needs_another_keepalive, false))
			timer_set(p, TIMER_KEEPALIVE, p->wg->now_ns + KEEPALIVE_TIMEOUT);
		break;
	case TIMER_NEW_HANDSHAKE:
		endpoint_clear_local(&p->endpoint);
		handshake_initiate(p, false);
		break;
	case TIMER_ZERO_KEYS:
		handshake_clear(p);
		session_end_all(p);
		break;
	case TIMER_PERSISTENT:
		if (atomic_load(&p->persistent_ns))
			session_send_keepalive(p);
		break;
	case TIMER_N:
		break;
	}
}

/* Run what is due for one peer and arm the wheel for the rest. */
static void serve(struct wg_peer *p)
{
	struct wg *wg = p->wg;
	uint64_t next = UINT64_MAX;

	for (unsigned t = 0; t < TIMER_N; t++) {
		uint64_t at = atomic_load(&p->due[t]);

		if (!at || at > wg->now_ns)
			continue;
		/* Unless the fast side moved it meanwhile. */
		if (atomic_compare_exchange_strong(&p->due[t], &at, 0))
			fire(p, t);
	}
	atomic_store(&p->armed_ns, UINT64_MAX);
	for (unsigned t = 0; t < TIMER_N; t++) {
		uint64_t at = atomic_load(&p->due[t]);

		if (at && at < next)
			next = at;
	}
	if (next == UINT64_MAX) {
		wheel_cancel(&wg->wheel, &p->wheel);
		return;
	}
	atomic_store(&p->armed_ns, next);
	wheel_arm(&wg->wheel, &p->wheel, next);
}

static void grant(struct wg_peer *p, unsigned wants)
{
	if (wants & WANT_PROMOTE)
		session_promote(p);
	if (wants & WANT_KEEPALIVE)
		session_send_keepalive(p);
	if (wants & WANT_SESSION)
		session_send_staged(p);
	if (wants & WANT_REKEY)
		handshake_initiate(p, false);
}

/* Those that were kicked and not served yet. Only kick() pushes, so that all behind
 * backlog stay linked until they are taken from it. */
static struct wg_peer *first_kicked(struct wg *wg)
{
	if (!wg->backlog)
		/* acquire: pairs with the release in kick */
		wg->backlog = atomic_exchange_explicit(&wg->kicked, NULL, memory_order_acquire);
	return wg->backlog;
}

/* False: there are more, but the work has reached its limit. */
static bool serve_kicked(struct wg *wg, unsigned limit)
{
	/* acquire: pairs with the release in kick */
	struct wg_peer *p = atomic_exchange_explicit(&wg->kicked, NULL, memory_order_acquire);
	struct wg_peer **end = &p;

	/* The latest first: traffic waits for them. Behind may stand 100,000 keepalives of
	 * an interface that came up. */
	while (*end)
		end = &(*end)->kick_next;
	*end = wg->backlog;
	wg->backlog = p;
	while ((p = first_kicked(wg))) {
		if (wg->work >= limit)
			return false;
		wg->backlog = p->kick_next;
		/* First the flag, then what it announces: a kick in between comes again. */
		atomic_store(&p->is_kicked, false);
		wg->work++;
		if (!atomic_load(&p->is_dead) && atomic_load(&wg->is_up)) {
			grant(p, atomic_exchange(&p->wants, 0));
			serve(p);
		} else {
			atomic_store(&p->wants, 0);
		}
	}
	return true;
}

void timers_forget_dead(struct wg *wg)
{
	/* acquire: pairs with the release in kick */
	struct wg_peer *more = atomic_exchange_explicit(&wg->kicked, NULL, memory_order_acquire);
	struct wg_peer **end = &wg->backlog;

	while (*end || more) {
		struct wg_peer *p;

		if (!*end) {
			*end = more;
			more = NULL;
		}
		p = *end;
		if (!atomic_load(&p->is_dead)) {
			end = &p->kick_next;
			continue;
		}
		*end = p->kick_next;
		atomic_store(&p->is_kicked, false);
		atomic_store(&p->wants, 0);
	}
}

bool timers_run(struct wg *wg)
{
	struct wheel_node *n;

	wg->work = 0;
	if (!atomic_load(&wg->is_up))
		return serve_kicked(wg, TIMERS_WORK);
	/* Neither side can keep the other waiting. */
	serve_kicked(wg, TIMERS_WORK / 2);
	while (wg->work < TIMERS_WORK && (n = wheel_pop(&wg->wheel, wg->now_ns)) != NULL) {
		wg->work++;
		serve(CONTAINER_OF(n, struct wg_peer, wheel));
	}
	/* What the above set itself, and what was left. */
	return serve_kicked(wg, TIMERS_WORK + TIMERS_WORK / 2);
}
