/* The messages of types 1 to 3: what we send and what we take. All under the
 * device's lock, from the handshake thread. */
#include "wg/device.h"
#include <stdlib.h>

void handshake_clear(struct wg_peer *p)
{
	if (p->has_handshake_index)
		index_release(&p->wg->index, p->handshake_index);
	p->has_handshake_index = false;
	if (p->handshake)
		noise_handshake_clear(p->handshake);
	free(p->handshake);
	p->handshake = NULL;
}

/* A fresh index of ours for a handshake. All of a peer's are its home worker's: around a rekey
 * messages of two sessions come, and one worker sees them in their order. */
static bool take_index(struct wg_peer *p, uint32_t *out)
{
	return index_take(&p->wg->index, p->home, INDEX_HANDSHAKE, p, out) == 0;
}

static void send_to_peer(struct wg_peer *p, uint8_t *msg, size_t len)
{
	struct wg *wg = p->wg;
	struct wg_endpoint to;

	cookie_add_macs(&p->jar, msg, len, wg->now_ns);
	atomic_store(&p->initiation_ns, wg->now_ns);
	timers_authenticated_traversal(p, wg->now_ns);
	timers_authenticated_sent(p);
	if (!endpoint_get(&p->endpoint, &to)) {
		peer_count_drop(p, wg->drops, WG_DROP_NO_ENDPOINT, 1);
		return;
	}
	wg->ops->send(wg->ctx, &to, msg, len, WG_MSG_HANDSHAKE);
	atomic_fetch_add_explicit(&p->tx_bytes, len, memory_order_relaxed);
}

/* Send an initiation now: the caller knows that it may. */
static void begin(struct wg_peer *p)
{
	struct wg *wg = p->wg;
	struct wgmsg_initiation msg;
	uint8_t stamp[TAI64N_LEN];

	handshake_clear(p);
	p->n_answers = 0;
	p->handshake = calloc(1, sizeof(*p->handshake));
	p->has_handshake_index = p->handshake && take_index(p, &p->handshake_index);
	tai64n_encode(stamp, wg->wall_ns);
	if (!p->has_handshake_index ||
		!noise_create_initiation(
			p->handshake, &wg->identity, &p->noise, p->handshake_index, stamp, &msg)) {
		handshake_clear(p);
		return;
	}
	send_to_peer(p, (uint8_t *)&msg, sizeof(msg));
	timers_handshake_initiated(p, wg->now_ns);
}

void handshake_initiate(struct wg_peer *p, bool is_retry)
{
	struct wg *wg = p->wg;
	uint64_t last = atomic_load(&p->initiation_ns);

	if (!is_retry)
		p->n_tries = 0;
	if (last && !has_expired(last, REKEY_TIMEOUT, wg->now_ns)) {
		/* Too soon, perhaps because we answered the peer meanwhile. Should
		 * nothing come of that, go on without being asked again. */
		if (is_retry || atomic_load(&p->n_staged) || p->owes_keepalive)
			timers_handshake_initiated(p, last);
		return;
	}
	if (!atomic_load(&wg->is_up) || atomic_load(&p->is_dead) ||
		!atomic_load(&p->endpoint.is_set) ||
		!noise_peer_is_usable(&p->noise, &wg->identity))
		return;
	p->has_taken_cookie = false;
	wg->work += INITIATION_WORK;
	begin(p);
}

/* The common part of an authentic message: it moves the endpoint and counts. */
static void heard(struct wg_peer *p, const struct wg_endpoint *from, size_t len)
{
	endpoint_set(&p->endpoint, from, p->wg->now_ns);
	atomic_fetch_add_explicit(&p->rx_bytes, len, memory_order_relaxed);
	timers_authenticated_received(p);
	timers_authenticated_traversal(p, p->wg->now_ns);
}

static void respond(struct wg_peer *p, struct noise_handshake *hs)
{
	struct wgmsg_response msg;
	uint32_t index;

	if (!take_index(p, &index))
		return;
	if (noise_create_response(hs, &p->noise, index, &msg) && session_begin(p, hs) == 0)
		send_to_peer(p, (uint8_t *)&msg, sizeof(msg));
	else
		index_release(&p->wg->index, index);
}

static enum wg_drop take_initiation(
	struct wg *wg, const uint8_t *bytes, const struct wg_endpoint *from)
{
	struct wgmsg_initiation msg;
	struct noise_handshake hs = { 0 };
	struct noise_transcript t;
	uint8_t key[NOISE_KEY], stamp[TAI64N_LEN];
	enum wg_drop why = WG_OK;
	struct wg_peer *p;

	memcpy(&msg, bytes, sizeof(msg));
	if (!noise_open_initiation(&t, &wg->identity, &msg, key)) {
		why = WG_DROP_HANDSHAKE;
		goto wipe;
	}
	p = peer_find(wg, key);
	if (!p) {
		why = WG_DROP_UNKNOWN_PEER;
		goto wipe;
	}
	if (!noise_open_timestamp(&t, &wg->identity, &p->noise, &msg, stamp)) {
		why = WG_DROP_HANDSHAKE;
		goto note;
	}
	switch (noise_judge_timestamp(&p->noise, stamp, wg->now_ns)) {
	case NOISE_REPLAY:
		why = WG_DROP_TIMESTAMP;
		goto note;
	case NOISE_FLOOD:
		why = WG_DROP_FLOOD;
		goto note;
	case NOISE_FRESH:
		break;
	}
	/* Ours, if one is under way, goes on. Linux forgets it, and when both sides
	 * begin at once neither takes the other's response: both wait for
	 * REKEY_TIMEOUT. Here both handshakes end in a session that both sides have. */
	noise_commit_initiation(&hs, &p->noise, &t, stamp, wg->now_ns);
	heard(p, from, sizeof(msg));
	respond(p, &hs);
note:
	peer_note_drop(p, why, 1);
wipe:
	noise_handshake_clear(&hs);
	noise_transcript_wipe(&t);
	crypto_wipe(key, sizeof(key));
	return why;
}

static struct wg_peer *peer_of_index(struct wg *wg, uint32_t index)
{
	enum index_kind kind;
	void *owner = index_lookup(&wg->index, index, &kind);

	if (!owner)
		return NULL;
	return kind == INDEX_HANDSHAKE ? owner : ((struct keypair *)owner)->peer;
}

static enum wg_drop take_response(
	struct wg *wg, const uint8_t *bytes, const struct wg_endpoint *from)
{
	struct wgmsg_response msg;
	struct wg_peer *p;
	bool has_failed;

	memcpy(&msg, bytes, sizeof(msg));
	p = peer_of_index(wg, le32toh(msg.receiver));
	if (!p)
		return WG_DROP_NO_SESSION;
	if (!p->handshake)
		return WG_DROP_NO_SESSION;
	if (!noise_consume_response(p->handshake, &wg->identity, &p->noise, &msg)) {
		peer_note_drop(p, WG_DROP_HANDSHAKE, 1);
		return WG_DROP_HANDSHAKE;
	}
	heard(p, from, sizeof(msg));
	/* The index is the keypair's now, unless there was no memory for one. */
	has_failed = session_begin(p, p->handshake) != 0;
	p->has_handshake_index = has_failed;
	handshake_clear(p);
	if (has_failed)
		return WG_DROP_HANDSHAKE;
	timers_handshake_complete(p);
	/* Confirms the session to the responder: with what is staged, or empty. */
	session_send_keepalive(p);
	return WG_OK;
}

static enum wg_drop take_cookie(struct wg *wg, const uint8_t *bytes)
{
	struct wgmsg_cookie msg;
	struct wg_peer *p;

	memcpy(&msg, bytes, sizeof(msg));
	p = peer_of_index(wg, le32toh(msg.receiver));
	if (!p)
		return WG_DROP_NO_SESSION;
	if (!cookie_take_reply(&p->jar, &msg, wg->now_ns)) {
		peer_note_drop(p, WG_DROP_COOKIE, 1);
		return WG_DROP_COOKIE;
	}
	/* Linux waits for REKEY_TIMEOUT and then uses the cookie, so that a server under
	 * load costs 5 s. Using it at once, once for each initiation that the timer
	 * sends, makes two messages of one at the most. */
	if (p->handshake && !p->has_taken_cookie) {
		p->has_taken_cookie = true;
		begin(p);
	}
	return WG_OK;
}

/* The peer whose response we wait for; NULL for none. */
static struct wg_peer *expects_response(struct wg *wg, const uint8_t *msg)
{
	enum index_kind kind;
	struct wg_peer *p = index_lookup(
		&wg->index, get_le32(msg + offsetof(struct wgmsg_response, receiver)), &kind);

	return p && kind == INDEX_HANDSHAKE && p->handshake ? p : NULL;
}

static enum wg_drop admit(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, bool is_loaded)
{
	enum wgmsg_type type = wgmsg_gate(msg, len);
	uint8_t source[RATELIMIT_KEY] = { 0 };
	struct admit_in in = { msg, len, from->remote, source, is_loaded, false };
	struct wg_peer *expecting = NULL;
	struct wgmsg_cookie reply;

	if (!atomic_load(&wg->is_up) || !wg->identity.has_key)
		return WG_DROP_DOWN;
	if (type == WGMSG_COOKIE)
		return WG_OK;
	if (type != WGMSG_INITIATION && type != WGMSG_RESPONSE)
		return WG_DROP_TYPE;
	if (type == WGMSG_RESPONSE) {
		expecting = expects_response(wg, msg);
		if (!expecting)
			return WG_DROP_NO_SESSION;
		/* It needs no cookie, so that our own handshakes go on under load, unless
		 * too many have come for this one already. */
		in.is_expected = expecting->n_answers < ANSWERS_MAX;
	}
	wg->ops->limit_key(from, source);
	switch (admit_judge(&wg->admit, &in, wg->now_ns)) {
	case ADMIT_YES:
		if (in.is_expected)
			expecting->n_answers++;
		return WG_OK;
	case ADMIT_BAD_MAC:
		return WG_DROP_MAC1;
	case ADMIT_LIMIT:
		return WG_DROP_RATE;
	case ADMIT_COOKIE:
		break;
	}
	cookie_make_reply(&wg->admit.checker, msg, len, from->remote, wg->now_ns, &reply);
	wg->ops->send(wg->ctx, from, (uint8_t *)&reply, sizeof(reply), WG_MSG_HANDSHAKE);
	return WG_DROP_MAC2;
}

static enum wg_drop take(
	struct wg *wg, const uint8_t *msg, size_t len, const struct wg_endpoint *from)
{
	/* It may have gone down, or changed its key, since it was admitted. */
	if (!atomic_load(&wg->is_up) || !wg->identity.has_key)
		return WG_DROP_DOWN;
	switch (wgmsg_gate(msg, len)) {
	case WGMSG_INITIATION:
		return take_initiation(wg, msg, from);
	case WGMSG_RESPONSE:
		return take_response(wg, msg, from);
	case WGMSG_COOKIE:
		return take_cookie(wg, msg);
	default:
		return WG_DROP_TYPE;
	}
}

static void lock_at(struct wg *wg, uint64_t now_ns, uint64_t wall_ns)
{
	wg_lock(wg);
	wg->now_ns = now_ns;
	wg->wall_ns = wall_ns;
}

static enum wg_drop unlock(struct wg *wg, enum wg_drop why)
{
	if (why)
		count_drop(wg->drops, why, 1);
	pthread_mutex_unlock(&wg->lock);
	return why;
}

enum wg_drop wg_admit_handshake(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, bool is_loaded, uint64_t now_ns, uint64_t wall_ns)
{
	lock_at(wg, now_ns, wall_ns);
	return unlock(wg, admit(wg, msg, len, from, is_loaded));
}

enum wg_drop wg_take_handshake(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, uint64_t now_ns, uint64_t wall_ns)
{
	lock_at(wg, now_ns, wall_ns);
	return unlock(wg, take(wg, msg, len, from));
}

enum wg_drop wg_rx_handshake(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, bool is_loaded, uint64_t now_ns, uint64_t wall_ns)
{
	enum wg_drop why = wg_admit_handshake(wg, msg, len, from, is_loaded, now_ns, wall_ns);

	return why ? why : wg_take_handshake(wg, msg, len, from, now_ns, wall_ns);
}
