/* Sessions: keypairs, and the fast calls that seal and open whole trains with
 * them. A peer has up to three keypairs (paper, section 6.3; Linux noise.c,
 * add_new_keypair): current sends; previous still receives what is on its way;
 * following ("next") is the responder's until the initiator has used it. */
#include "wg/device.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

/* ---- Keypairs; under the device's lock. */

static void keypair_free(struct rcu_node *n)
{
	struct keypair *kp = CONTAINER_OF(n, struct keypair, rcu);

	crypto_wipe(kp, sizeof(*kp));
	free(kp);
}

static void keypair_end(struct wg *wg, struct keypair *kp)
{
	if (!kp)
		return;
	index_release(&wg->index, kp->local_index);
	rcu_free_later(&kp->rcu, keypair_free);
}

static struct keypair *current_of(const struct wg_peer *p)
{
	return atomic_load_explicit(&p->current, memory_order_relaxed);
}

/* Written under the device's lock only; workers read it. */
static struct keypair *following_of(const struct wg_peer *p)
{
	return atomic_load_explicit(&p->following, memory_order_relaxed);
}

bool session_may_send(const struct keypair *kp, uint64_t now_ns)
{
	return kp && atomic_load_explicit(&kp->is_sending, memory_order_relaxed) &&
		!has_expired(kp->birth_ns, REJECT_AFTER_TIME, now_ns) &&
		atomic_load_explicit(&kp->tx_counter, memory_order_relaxed) < REJECT_AFTER_MESSAGES;
}

/* Both sides began at once and each answered the other. Of the two sessions the one
 * that the lower public key began shall be current on both sides: its side keeps
 * the other as previous, the other side goes over to it when it is confirmed.
 * (A Linux peer has ours only and will never confirm its own.) */
static bool wins_contest(const struct wg_peer *p)
{
	return memcmp(p->wg->identity.public_key, p->noise.public_key, WG_KEY_LEN) < 0;
}

static void add_initiated(struct wg_peer *p, struct keypair *kp)
{
	struct keypair *old = current_of(p), *following = following_of(p);

	/* First: what is freed below must not be found any more. */
	rcu_publish(p->current, kp);
	keypair_end(p->wg, p->previous);
	if (following && wins_contest(p)) {
		p->previous = following;
		rcu_publish(p->following, NULL);
		keypair_end(p->wg, old);
	} else {
		p->previous = old;
	}
}

static void add_answered(struct wg_peer *p, struct keypair *kp)
{
	struct keypair *old = following_of(p);

	rcu_publish(p->following, kp);
	keypair_end(p->wg, old);
	keypair_end(p->wg, p->previous);
	p->previous = NULL;
}

int session_begin(struct wg_peer *p, struct noise_handshake *hs)
{
	struct wg *wg = p->wg;
	struct keypair *kp = calloc(1, sizeof(*kp));

	static_assert(offsetof(struct keypair, replay) >= offsetof(struct keypair, tx_counter) + 64,
		"senders and receivers do not share a cache line");
	if (!kp)
		return -ENOMEM;
	kp->peer = p;
	kp->local_index = hs->local_index;
	kp->remote_index = hs->remote_index;
	kp->birth_ns = wg->now_ns;
	replay_init(&kp->replay);
	if (!noise_begin_session(hs, kp->send_key, kp->recv_key, &kp->is_initiator)) {
		free(kp);
		return -EPROTO;
	}
	atomic_init(&kp->is_confirmed, kp->is_initiator);
	atomic_init(&kp->is_sending, true);
	/* The handshake's index is the keypair's from here on. */
	index_replace(&wg->index, kp->local_index, INDEX_KEYPAIR, kp);
	if (kp->is_initiator)
		add_initiated(p, kp);
	else
		add_answered(p, kp);
	timers_session_derived(p);
	return 0;
}

void session_promote(struct wg_peer *p)
{
	struct keypair *kp = following_of(p);

	if (!kp || !atomic_load(&kp->is_confirmed))
		return;
	keypair_end(p->wg, p->previous);
	if (!atomic_load(&kp->is_sending)) {
		/* Of a former private key: it may receive what is on its way, no more. */
		p->previous = kp;
		rcu_publish(p->following, NULL);
		return;
	}
	p->previous = current_of(p);
	/* In this order: a worker looks at following first. */
	rcu_publish(p->current, kp);
	rcu_publish(p->following, NULL);
	timers_handshake_complete(p);
	session_send_staged(p);
}

void session_end_all(struct wg_peer *p)
{
	struct keypair *kp = current_of(p), *following = following_of(p);

	rcu_publish(p->current, NULL);
	rcu_publish(p->following, NULL);
	keypair_end(p->wg, kp);
	keypair_end(p->wg, p->previous);
	keypair_end(p->wg, following);
	p->previous = NULL;
}

void session_stop_sending(struct wg_peer *p)
{
	struct keypair *kp = current_of(p);

	if (kp)
		atomic_store(&kp->is_sending, false);
	if (following_of(p))
		atomic_store(&following_of(p)->is_sending, false);
}

/* ---- Sealing. */

void wg_worker_refresh(struct wg_worker *w)
{
	(void)mtus_get(&w->wg->mtus, &w->mtus, &w->mtus_seq);
}

/* Padding to 16, never beyond the MTU; len <= mtu. */
static size_t pad(size_t len, size_t mtu)
{
	size_t padded = (len + 15) & ~(size_t)15;

	return (padded < mtu ? padded : mtu) - len;
}

static size_t pad_beyond_first(const struct wg_mtus *m, size_t len)
{
	if (m->n == 0)
		return pad(len, SIZE_MAX);
	for (size_t i = 1; i < m->n; i++)
		if (len <= m->mtu[i])
			return pad(len, m->mtu[i]);
	/* Linux send.c, calculate_skb_padding: what is beyond the MTU counts as the
	 * last of several packets. Of an MTU that did not fit into the list nothing is
	 * known. */
	return m->is_cut ? 0 : pad(len % m->mtu[m->n - 1], m->mtu[m->n - 1]);
}

size_t wg_sealed_len(const struct wg_worker *w, size_t len)
{
	const struct wg_mtus *m = &w->mtus;
	size_t more = len <= m->mtu[0] ? pad(len, m->mtu[0]) : pad_beyond_first(m, len);

	return WGMSG_DATA_HDR + len + more + WGMSG_DATA_TAG;
}

static void seal_jobs(struct wg_worker *w, const struct keypair *kp, struct wg_packet *pkts,
	size_t n, uint64_t counter)
{
	for (size_t i = 0; i < n; i++) {
		struct wg_packet *p = &pkts[i];
		uint32_t whole = (uint32_t)wg_sealed_len(w, p->len);
		uint32_t padded = whole - WGMSG_DATA_HDR - WGMSG_DATA_TAG;
		uint8_t *msg = p->data - WGMSG_DATA_HDR;

		memset(p->data + p->len, 0, padded - p->len);
		put_le32(msg, WGMSG_DATA);
		put_le32(msg + 4, kp->remote_index);
		put_le64(msg + 8, counter + i);
		w->jobs[i] =
			(struct aead_job){ p->data, padded, counter + i, p->data + padded, false };
		p->data = msg;
		p->len = whole;
	}
	aead_seal(w->aead, kp->send_key, w->jobs, n);
	for (size_t i = 0; i < n; i++)
		assert(w->jobs[i].is_ok); /* else plaintext would leave */
}

/* false: the nonces are used up. */
static bool seal_with(struct wg_worker *w, struct wg_peer *peer, struct keypair *kp,
	struct wg_packet *pkts, size_t n, uint64_t now_ns)
{
	/* One step reserves the nonces of the whole train. */
	uint64_t counter = atomic_fetch_add_explicit(&kp->tx_counter, n, memory_order_relaxed);
	uint64_t bytes = 0;
	bool has_data = false;

	if (counter > REJECT_AFTER_MESSAGES - n)
		return false;
	for (size_t at = 0; at < n; at += JOBS_MAX) {
		size_t part = n - at < JOBS_MAX ? n - at : JOBS_MAX;

		for (size_t i = at; i < at + part; i++)
			has_data |= pkts[i].len != 0;
		seal_jobs(w, kp, pkts + at, part, counter + at);
		for (size_t i = at; i < at + part; i++)
			bytes += pkts[i].len;
	}
	atomic_fetch_add_explicit(&peer->tx_bytes, bytes, memory_order_relaxed);
	timers_authenticated_traversal(peer, now_ns);
	timers_authenticated_sent(peer);
	if (has_data)
		timers_data_sent(peer, now_ns);
	return true;
}

/* peer: whose they are; NULL where nobody's. */
static void drop_run(struct wg_worker *w, struct wg_peer *peer, struct wg_packet *pkts, size_t n,
	enum wg_drop why)
{
	for (size_t i = 0; i < n; i++)
		pkts[i].drop = why;
	count_drop(w->drops, why, n);
	if (peer)
		peer_note_drop(peer, why, n);
}

static bool may_initiate(const struct wg_peer *p, uint64_t now_ns)
{
	uint64_t last = atomic_load_explicit(&p->initiation_ns, memory_order_relaxed);

	return !last || has_expired(last, REKEY_TIMEOUT, now_ns);
}

/* The other side has a new session as soon as a packet of it is here, and may have lost
 * the former one: what answers that packet must not wait for the slow side. */
static struct keypair *sending_of(struct wg_peer *peer)
{
	struct keypair *kp = rcu_read(peer->following);

	/* One of a former private key may have been confirmed late. */
	if (kp && atomic_load_explicit(&kp->is_confirmed, memory_order_relaxed) &&
		atomic_load_explicit(&kp->is_sending, memory_order_relaxed))
		return kp;
	return rcu_read(peer->current);
}

enum wg_sealed wg_seal(struct wg_worker *w, struct wg_peer *peer, struct wg_packet *pkts, size_t n,
	uint64_t now_ns, struct wg_endpoint *to)
{
	struct keypair *kp = sending_of(peer);

	if (n == 0)
		return WG_SEALED;
	if (!atomic_load_explicit(&w->wg->is_up, memory_order_relaxed)) {
		drop_run(w, NULL, pkts, n, WG_DROP_DOWN);
		return WG_DROPPED;
	}
	if (!endpoint_get(&peer->endpoint, to)) {
		drop_run(w, peer, pkts, n, WG_DROP_NO_ENDPOINT);
		return WG_DROPPED;
	}
	/* What waits goes first. */
	if (!session_may_send(kp, now_ns) ||
		atomic_load_explicit(&peer->n_staged, memory_order_relaxed) > 0 ||
		!seal_with(w, peer, kp, pkts, n, now_ns)) {
		stage_packets(peer, pkts, n, w->drops);
		peer_want(peer, WANT_SESSION);
		return WG_STAGED;
	}
	/* Paper, section 6.2: the initiator renews by age, both by count. */
	if (((kp->is_initiator && has_expired(kp->birth_ns, REKEY_AFTER_TIME, now_ns)) ||
		    atomic_load_explicit(&kp->tx_counter, memory_order_relaxed) >
			    REKEY_AFTER_MESSAGES) &&
		may_initiate(peer, now_ns))
		peer_want(peer, WANT_REKEY);
	return WG_SEALED;
}

static void send_packet(struct wg_peer *p, struct keypair *kp, struct wg_packet *pkt)
{
	struct wg *wg = p->wg;
	struct wg_endpoint to;

	wg_worker_refresh(wg->slow);
	if (!endpoint_get(&p->endpoint, &to))
		peer_count_drop(p, wg->drops, WG_DROP_NO_ENDPOINT, 1);
	else if (!seal_with(wg->slow, p, kp, pkt, 1, wg->now_ns))
		peer_count_drop(
			p, wg->drops, WG_DROP_EXPIRED, 1); /* the workers took the last nonces */
	else
		wg->ops->send(wg->ctx, &to, pkt->data, pkt->len, WG_MSG_DATA);
}

void session_send_staged(struct wg_peer *p)
{
	struct wg *wg = p->wg;
	struct keypair *kp = current_of(p);
	struct wg_packet pkt;
	unsigned n_sent = 0;

	if (atomic_load(&p->n_staged) == 0 && !p->owes_keepalive)
		return;
	/* A session that was confirmed since the last look: promoting it sends. */
	if (following_of(p) && atomic_load(&following_of(p)->is_confirmed) &&
		atomic_load(&following_of(p)->is_sending)) {
		session_promote(p);
		return;
	}
	while (session_may_send(kp, wg->now_ns)) {
		/* The workers stage faster than we send, and would for ever, since what
		 * waits goes first. Drop what waits: then they send on their own. */
		if (n_sent++ == STAGE_SENDS_MAX) {
			peer_count_drop(p, wg->drops, WG_DROP_STAGED_FULL, stage_purge(p));
			return;
		}
		pkt = (struct wg_packet){ .data = wg->scratch + WG_HEAD };
		/* Any packet is as good as a keepalive. */
		if (!stage_take(p, pkt.data, &pkt.len) && !p->owes_keepalive)
			return;
		p->owes_keepalive = false;
		send_packet(p, kp, &pkt);
	}
	handshake_initiate(p, false);
}

void session_send_keepalive(struct wg_peer *p)
{
	p->owes_keepalive = true;
	session_send_staged(p);
}

/* ---- Opening. */

/* Bytes of the inner packet by its own length field, 0 if that is no whole IP. */
static uint32_t inner_len(const uint8_t *pkt, uint32_t len)
{
	uint32_t n;

	if (len >= 20 && pkt[0] >> 4 == 4) {
		n = get_be16(pkt + 2);
		return n >= 20 && n <= len && (uint32_t)(pkt[0] & 15) * 4 >= 20 &&
				(uint32_t)(pkt[0] & 15) * 4 <= n
			? n
			: 0;
	}
	if (len >= 40 && pkt[0] >> 4 == 6) {
		n = 40 + (uint32_t)get_be16(pkt + 4);
		return n <= len ? n : 0;
	}
	return 0;
}

static bool is_source_of(struct wg_worker *w, const struct wg_peer *peer, const uint8_t *pkt)
{
	return pkt[0] >> 4 == 4 ? allowed_owns(&w->wg->allowed, &peer->allowed, AF_INET, pkt + 12)
				: allowed_owns(&w->wg->allowed, &peer->allowed, AF_INET6, pkt + 8);
}

/* Same family and source as the packet before? Then the same answer. */
static bool has_same_source(const uint8_t *a, const uint8_t *b)
{
	if ((a[0] ^ b[0]) >> 4)
		return false;
	return a[0] >> 4 == 4 ? memcmp(a + 12, b + 12, 4) == 0 : memcmp(a + 8, b + 8, 16) == 0;
}

/* What arrived authentic and fresh: trim, check the source, count. */
static void accept_packets(struct wg_worker *w, struct keypair *kp, struct wg_packet *pkts,
	size_t n, const struct wg_endpoint *from, uint64_t now_ns)
{
	struct wg_peer *peer = kp->peer;
	const uint8_t *before = NULL;
	bool is_any = false, has_data = false, was_source = false;
	uint64_t bytes = 0;

	for (size_t i = 0; i < n; i++) {
		struct wg_packet *p = &pkts[i];
		uint32_t len;

		if (p->drop != WG_OK)
			continue;
		is_any = true;
		p->peer = peer;
		if (p->len == 0) {
			bytes += WGMSG_DATA_MIN;
			continue;
		}
		has_data = true;
		len = inner_len(p->data, p->len);
		if (!len) {
			p->drop = WG_DROP_INNER;
			peer_count_drop(peer, w->drops, WG_DROP_INNER, 1);
			continue;
		}
		if (!before || !has_same_source(before, p->data))
			was_source = is_source_of(w, peer, p->data);
		before = p->data;
		if (!was_source) {
			p->drop = WG_DROP_SOURCE;
			peer_count_drop(peer, w->drops, WG_DROP_SOURCE, 1);
			continue;
		}
		bytes += p->len + WGMSG_DATA_MIN;
		p->len = len;
	}
	if (!is_any)
		return;
	/* An authentic packet moves the endpoint, whatever is inside. */
	endpoint_set(&peer->endpoint, from, now_ns);
	atomic_fetch_add_explicit(&peer->rx_bytes, bytes, memory_order_relaxed);
	timers_authenticated_received(peer);
	timers_authenticated_traversal(peer, now_ns);
	if (has_data)
		timers_data_received(peer, now_ns);
	if (!atomic_load_explicit(&kp->is_confirmed, memory_order_relaxed) &&
		!atomic_exchange(&kp->is_confirmed, true))
		peer_want(peer, WANT_PROMOTE);
	/* Linux receive.c, keep_key_fresh: while only receiving, too. A late packet of
	 * the previous keypair says nothing about the current one. */
	if (kp->is_initiator && kp == rcu_read(peer->current) &&
		has_expired(kp->birth_ns, REJECT_AFTER_TIME - KEEPALIVE_TIMEOUT - REKEY_TIMEOUT,
			now_ns) &&
		!atomic_load_explicit(&peer->has_lastminute, memory_order_relaxed) &&
		!atomic_exchange(&peer->has_lastminute, true))
		peer_want(peer, WANT_REKEY);
}

/* A session seen from everywhere but its peer's endpoint, as a suspect. No endpoint has
 * this form: its family would be 0xffff. */
static void stranger_key(const struct keypair *kp, uint8_t key[SUSPECT_KEY])
{
	memset(key, 0xff, SUSPECT_KEY);
	put_le32(key + SUSPECT_KEY - 4, kp->local_index);
}

/* home: the peer's endpoint, zeros where it is not known. */
static bool is_stranger(
	const struct keypair *kp, const struct wg_endpoint *from, struct wg_endpoint *home)
{
	memset(home, 0, sizeof(*home));
	return !endpoint_get(&kp->peer->endpoint, home) ||
		memcmp(home->remote, from->remote, sizeof(home->remote)) != 0;
}

/* An address and port, as far as this session is concerned: who forges somebody else's
 * address for his own session does not take that one's share. */
static void source_key(
	const struct keypair *kp, const struct wg_endpoint *from, uint8_t key[SUSPECT_KEY])
{
	memcpy(key, from->remote, SUSPECT_KEY);
	put_le32(key + SUSPECT_KEY - 4, get_le32(key + SUSPECT_KEY - 4) ^ kp->local_index);
}

/* How many of a run to open; the rest is dropped, from the end. */
static size_t limit_suspects(struct wg_worker *w, struct keypair *kp, struct wg_packet *pkts,
	size_t n, const struct wg_endpoint *from, uint64_t now_ns)
{
	struct wg_endpoint home;
	bool is_home = !is_stranger(kp, from, &home);
	uint8_t key[SUSPECT_KEY];
	size_t n_open = n;

	if (!is_home) {
		stranger_key(kp, key);
		n_open = suspects_allow(&w->suspects, key, false, n_open, now_ns);
	}
	source_key(kp, from, key);
	n_open = suspects_allow(&w->suspects, key, is_home, n_open, now_ns);
	for (size_t i = n_open; i < n; i++)
		pkts[i].drop = WG_DROP_SUSPECT;
	if (n_open < n)
		peer_count_drop(kp->peer, w->drops, WG_DROP_SUSPECT, n - n_open);
	return n_open;
}

static void accuse(struct wg *wg, const struct wg_endpoint *from, bool is_home,
	const struct keypair *kp, uint64_t until_ns)
{
	if (wg->ops->accuse)
		wg->ops->accuse(wg->ctx, from, is_home, kp->local_index, until_ns);
}

static void judge_suspects(struct wg_worker *w, struct keypair *kp, size_t n_failed,
	size_t n_passed, const struct wg_endpoint *from, uint64_t now_ns)
{
	uint64_t until_ns = now_ns + SUSPECT_MEMORY;
	uint8_t key[SUSPECT_KEY];
	struct wg_endpoint home;
	bool is_home = !is_stranger(kp, from, &home), is_guilty;

	if (!is_home) {
		stranger_key(kp, key);
		if (suspects_judge(&w->suspects, key, n_failed, n_passed, now_ns))
			accuse(w->wg, &home, true, kp, until_ns);
	}
	source_key(kp, from, key);
	is_guilty = suspects_judge(&w->suspects, key, n_failed, n_passed, now_ns);
	/* Never the peer's own endpoint: in the kernel it would be shut out with whoever
	 * forges it. */
	if (is_guilty && !is_home)
		accuse(w->wg, from, false, kp, until_ns);
}

/* n messages of one keypair, n <= JOBS_MAX. */
static void open_run(struct wg_worker *w, struct keypair *kp, struct wg_packet *pkts, size_t n,
	const struct wg_endpoint *from, uint64_t now_ns)
{
	size_t n_jobs = 0, n_good = 0, n_failed;

	if (suspects_any(&w->suspects, now_ns))
		n = limit_suspects(w, kp, pkts, n, from, now_ns);

	for (size_t i = 0; i < n; i++) {
		struct wg_packet *p = &pkts[i];
		uint64_t counter = get_le64(p->data + 8);

		p->drop = counter >= REJECT_AFTER_MESSAGES ? WG_DROP_EXPIRED : WG_OK;
		if (p->drop) {
			peer_count_drop(kp->peer, w->drops, p->drop, 1);
			continue;
		}
		p->data += WGMSG_DATA_HDR;
		p->len -= WGMSG_DATA_MIN;
		w->which[n_jobs] = (uint32_t)i;
		w->jobs[n_jobs++] =
			(struct aead_job){ p->data, p->len, counter, p->data + p->len, false };
	}
	aead_open(w->aead, kp->recv_key, w->jobs, n_jobs);
	for (size_t k = 0; k < n_jobs; k++) {
		if (!w->jobs[k].is_ok) {
			pkts[w->which[k]].drop = WG_DROP_DECRYPT;
			peer_count_drop(kp->peer, w->drops, WG_DROP_DECRYPT, 1);
			continue;
		}
		w->counters[n_good] = w->jobs[k].counter;
		w->which[n_good++] = w->which[k];
	}
	n_failed = n_jobs - n_good;
	/* Only what is authentic may move the window. */
	replay_check_train(&kp->replay, w->counters, n_good, w->is_fresh);
	for (size_t k = 0; k < n_good; k++) {
		if (w->is_fresh[k])
			continue;
		pkts[w->which[k]].drop = WG_DROP_REPLAY;
		peer_count_drop(kp->peer, w->drops, WG_DROP_REPLAY, 1);
		n_failed++;
	}
	if (n_failed || suspects_any(&w->suspects, now_ns))
		judge_suspects(w, kp, n_failed, n_jobs - n_failed, from, now_ns);
	accept_packets(w, kp, pkts, n, from, now_ns);
}

static struct keypair *keypair_of(const struct index_slot *slot, uint32_t index)
{
	enum index_kind kind = INDEX_HANDSHAKE;
	void *owner = index_lookup_at(slot, index, &kind);

	return kind == INDEX_KEYPAIR ? owner : NULL;
}

static void prefetch(const void *p, size_t len)
{
	for (size_t at = 0; at < len; at += 64)
		__builtin_prefetch((const uint8_t *)p + at);
	__builtin_prefetch((const uint8_t *)p + len - 1);
}

/* Each round fetches what the next one follows. */
void wg_look_ahead(struct wg_worker *w, struct wg_packet *pkts, size_t n)
{
	const struct index_slot *slot[WG_AHEAD_MAX];

	assert(n <= WG_AHEAD_MAX);
	for (size_t i = 0; i < n; i++)
		slot[i] = index_place(&w->wg->index, get_le32(pkts[i].data + 4));
	for (size_t i = 0; i < n; i++) {
		pkts[i].session = keypair_of(slot[i], get_le32(pkts[i].data + 4));
		if (!pkts[i].session)
			continue;
		prefetch(&pkts[i].session->peer,
			offsetof(struct keypair, replay.map[1]) - offsetof(struct keypair, peer));
	}
	for (size_t i = 0; i < n; i++) {
		if (!pkts[i].session)
			continue;
		prefetch(pkts[i].session->peer, offsetof(struct wg_peer, drops));
		prefetch(&pkts[i].session->peer->allowed, 1);
	}
	for (size_t i = 0; i < n; i++)
		if (pkts[i].session)
			allowed_prefetch(&pkts[i].session->peer->allowed);
}

void wg_open(struct wg_worker *w, struct wg_packet *pkts, size_t n, const struct wg_endpoint *from,
	uint64_t now_ns)
{
	size_t end;

	for (size_t at = 0; at < n; at = end) {
		uint32_t index = get_le32(pkts[at].data + 4);
		struct keypair *kp = pkts[at].session;

		/* A train is a run of one receiver index. */
		for (end = at + 1; end < n && end - at < JOBS_MAX; end++)
			if (get_le32(pkts[end].data + 4) != index)
				break;
		if (!kp)
			kp = keypair_of(index_place(&w->wg->index, index), index);
		if (!atomic_load_explicit(&w->wg->is_up, memory_order_relaxed))
			drop_run(w, NULL, pkts + at, end - at, WG_DROP_DOWN);
		else if (!kp)
			drop_run(w, NULL, pkts + at, end - at, WG_DROP_NO_SESSION);
		else if (has_expired(kp->birth_ns, REJECT_AFTER_TIME, now_ns))
			drop_run(w, kp->peer, pkts + at, end - at, WG_DROP_EXPIRED);
		else
			open_run(w, kp, pkts + at, end - at, from, now_ns);
	}
}

struct wg_peer *wg_route(struct wg_worker *w, uint8_t family, const uint8_t *ip)
{
	struct allowed_owner *o = allowed_lookup(&w->wg->allowed, family, ip);

	return o ? CONTAINER_OF(o, struct wg_peer, allowed) : NULL;
}
