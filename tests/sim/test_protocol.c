/* Handshakes, timers, sessions and their limits, cookies, roaming. */
#include "sim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void start(struct sim *s, int n)
{
	sim_init(s, sim_seed, n);
	sim_connect(s, 0, 1);
}

/* A session from 0 to 1, confirmed. */
static void start_session(struct sim *s)
{
	start(s, 2);
	sim_send(s, 0, 1, 1, 100);
	sim_run(s, SEC(0.5));
	SIM_CHECK(s, sim_delivered(s, 0, 1) == 1);
}

/* K1: ten pings of 84 bytes right after set-up. */
static void test_counters(void **state)
{
	struct wg_peer_info a, b;
	struct sim s;

	start(&s, 2);
	for (int i = 0; i < 10; i++) {
		sim_send(&s, 0, 1, 1, 84);
		sim_run(&s, SEC(0.1));
		sim_send(&s, 1, 0, 1, 84);
		sim_run(&s, SEC(0.1));
	}
	a = sim_info(&s, 0, 1);
	b = sim_info(&s, 1, 0);
	SIM_CHECK(&s, a.rx_bytes == 1372 && a.tx_bytes == 1428);
	SIM_CHECK(&s, b.rx_bytes == 1428 && b.tx_bytes == 1372);
	SIM_CHECK(&s, a.last_handshake_wall_ns && b.last_handshake_wall_ns);
	SIM_CHECK(&s, a.last_handshake_wall_ns <= sim_wall_ns(&s));
	sim_fini(&s);
}

static void test_both_begin_at_once(void **state)
{
	struct sim s;

	start(&s, 2);
	sim_send(&s, 0, 1, 3, 100);
	sim_send(&s, 1, 0, 3, 100);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	SIM_CHECK(&s, s.node[1].sent[WGMSG_INITIATION] == 1);
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 3 && sim_delivered(&s, 1, 0) == 3);
	/* Both went over to the same session. */
	SIM_CHECK(&s,
		atomic_load(&sim_peer(&s, 0, 1)->current)->local_index ==
			atomic_load(&sim_peer(&s, 1, 0)->current)->remote_index);
	SIM_CHECK(&s, !sim_peer(&s, 0, 1)->following && !sim_peer(&s, 1, 0)->following);
	/* So one side alone renews, and no packet is lost when it does. */
	sim_flow(&s, 0, 1, SEC(0.004), 1, 100);
	sim_flow(&s, 1, 0, SEC(0.004), 1, 100);
	sim_run(&s, SEC(400));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_RESPONSE] + s.node[1].sent[WGMSG_RESPONSE] == 5);
	sim_flows_stop(&s);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.n_sent == s.n_delivered);
	sim_fini(&s);
}

static bool loses_response(void *ctx, int from, int to, const uint8_t *msg, size_t len)
{
	unsigned *n = ctx;

	return msg[0] == WGMSG_RESPONSE && *n && (*n)--;
}

static void test_response_lost(void **state)
{
	unsigned n = 1;
	struct sim s;

	start(&s, 2);
	s.wire.loses = loses_response;
	s.wire.ctx = &n;
	sim_send(&s, 0, 1, 2, 100);
	sim_run(&s, SEC(4.9));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 0);
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	sim_run(&s, REKEY_JITTER + SEC(0.2));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 2);
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 2);
	sim_fini(&s);
}

/* Nobody answers: one initiation every 5 s with jitter, 18 more after the first,
 * then silence; what was staged is dropped; new traffic starts again. */
static void test_gives_up(void **state)
{
	struct sim s;

	start(&s, 2);
	s.wire.is_cut = true;
	sim_send(&s, 0, 1, 5, 100);
	sim_run(&s, SEC(19 * 5));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] >= 18);
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_STAGED_PURGED) == 0);
	sim_run(&s, SEC(19 * 0.4));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == HANDSHAKE_TRIES_MAX + 1);
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_STAGED_PURGED) == 5);
	sim_run(&s, SEC(600));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == HANDSHAKE_TRIES_MAX + 1);
	SIM_CHECK(&s, !sim_peer(&s, 0, 1)->handshake); /* wiped */
	SIM_CHECK(&s, !sim_peer(&s, 0, 1)->has_handshake_index);
	s.wire.is_cut = false;
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(0.2));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 1);
	sim_fini(&s);
}

/* Data one way only: the receiver sends an empty packet after 10 s, and the sender
 * does not start a handshake. */
static void test_passive_keepalive(void **state)
{
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(9.4));
	SIM_CHECK(&s, s.node[1].sent_keepalives == 0);
	sim_run(&s, SEC(0.3));
	SIM_CHECK(&s, s.node[1].sent_keepalives == 1);
	/* No keepalive answers a keepalive. */
	sim_run(&s, SEC(60));
	SIM_CHECK(&s, s.node[1].sent_keepalives == 1 && s.node[0].sent_keepalives == 0);
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	/* Data keeps coming: one every 10 s, no more. */
	sim_flow(&s, 0, 1, SEC(1), 1, 100);
	sim_run(&s, SEC(40.5));
	SIM_CHECK(&s, s.node[1].sent_keepalives == 5);
	sim_fini(&s);
}

/* Data went out and nothing came back for 15 s: a new handshake. */
static void test_new_handshake_without_answer(void **state)
{
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(30));
	s.wire.is_cut = true;
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(14.9));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	sim_run(&s, REKEY_JITTER + SEC(0.2));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 2);
	sim_fini(&s);
}

static void test_persistent_keepalive(void **state)
{
	struct sim s;

	start(&s, 2);
	sim_set_keepalive(&s, 0, 1, 25);
	sim_run(&s, SEC(0.5));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1); /* at once */
	SIM_CHECK(&s, s.node[0].sent_keepalives == 1); /* confirms */
	sim_run(&s, SEC(75.5));
	SIM_CHECK(&s, s.node[0].sent_keepalives == 4);
	SIM_CHECK(&s, s.node[1].sent_keepalives == 0);
	/* Hours of nothing else: keys are renewed so that it goes on. */
	sim_run(&s, SEC(7200));
	SIM_CHECK(&s, s.node[1].heard[WGMSG_DATA] >= 7200 / 25);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_EXPIRED) == 0);
	/* Through a cut that is longer than all tries. */
	s.wire.is_cut = true;
	sim_run(&s, SEC(1000));
	s.wire.is_cut = false;
	s.node[1].heard[WGMSG_DATA] = 0;
	sim_run(&s, SEC(26));
	SIM_CHECK(&s, s.node[1].heard[WGMSG_DATA] >= 1);
	/* Off. */
	sim_set_keepalive(&s, 0, 1, 0);
	s.node[0].sent_keepalives = 0;
	sim_run(&s, SEC(300));
	SIM_CHECK(&s, s.node[0].sent_keepalives == 0);
	sim_fini(&s);
}

/* K21, K22: nothing while down or without a key, then at once. */
static void test_keepalive_on_up_and_key(void **state)
{
	static const uint8_t none[WG_KEY_LEN];
	uint8_t secret[WG_KEY_LEN];
	struct sim s;

	start(&s, 2);
	memcpy(secret, s.node[0].secret, sizeof(secret));
	wg_set_up(s.node[0].wg, false, s.now_ns);
	sim_set_secret(&s, 0, none);
	sim_set_keepalive(&s, 0, 1, 1);
	sim_run(&s, SEC(3));
	SIM_CHECK(&s, sim_info(&s, 0, 1).tx_bytes == 0);
	wg_set_up(s.node[0].wg, true, s.now_ns);
	sim_run(&s, SEC(3));
	SIM_CHECK(&s, sim_info(&s, 0, 1).tx_bytes == 0);
	sim_set_secret(&s, 0, secret);
	SIM_CHECK(&s, sim_info(&s, 0, 1).tx_bytes == WGMSG_INITIATION_LEN);
	sim_run(&s, SEC(3.5));
	SIM_CHECK(&s, sim_info(&s, 0, 1).tx_bytes >= WGMSG_INITIATION_LEN + 3 * WGMSG_DATA_MIN);
	/* Down and up again: a new handshake at once, with a fresh stamp. */
	wg_set_up(s.node[0].wg, false, s.now_ns);
	wg_set_up(s.node[0].wg, true, s.now_ns);
	sim_run(&s, SEC(0.5));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 2);
	SIM_CHECK(&s, s.node[1].last_handshake_drop == WG_OK);
	SIM_CHECK(&s, s.node[1].sent[WGMSG_RESPONSE] == 2);
	sim_fini(&s);
}

/* Keys go 540 s after the last of them was made. */
static void test_wiped_after_silence(void **state)
{
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(538));
	SIM_CHECK(&s, atomic_load(&sim_peer(&s, 0, 1)->current) != NULL);
	SIM_CHECK(&s, atomic_load(&sim_peer(&s, 1, 0)->current) != NULL);
	sim_run(&s, SEC(3));
	SIM_CHECK(&s, atomic_load(&sim_peer(&s, 0, 1)->current) == NULL);
	SIM_CHECK(&s, atomic_load(&sim_peer(&s, 1, 0)->current) == NULL);
	SIM_CHECK(&s, !sim_peer(&s, 1, 0)->previous && !sim_peer(&s, 1, 0)->following);
	sim_fini(&s);
}

/* At 180 s neither side sends or accepts with the keypair. */
static void test_session_age(void **state)
{
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(178.5));
	/* Just young enough when it is sent, too old when it arrives. */
	s.wire.delay_ns = SEC(2);
	SIM_CHECK(&s, sim_send(&s, 1, 0, 1, 100) == WG_SEALED);
	sim_run(&s, SEC(2.5));
	SIM_CHECK(&s, s.lost.at[WG_DROP_EXPIRED] == 1);
	s.wire.delay_ns = 0;
	SIM_CHECK(&s, sim_send(&s, 1, 0, 1, 100) == WG_STAGED);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, sim_delivered(&s, 1, 0) == 1);
	sim_fini(&s);
}

/* The initiator renews at 120 s when it sends; the responder does not. */
static void test_rekey_by_age(void **state)
{
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(115));
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	sim_run(&s, SEC(5));
	sim_send(&s, 1, 0, 1, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	SIM_CHECK(&s, s.node[1].sent[WGMSG_INITIATION] == 0);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 2);
	SIM_CHECK(&s, s.node[1].sent[WGMSG_RESPONSE] == 2);
	sim_fini(&s);
}

/* An initiator that only receives renews at 165 s, once. */
static void test_rekey_while_receiving(void **state)
{
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(150));
	sim_send(&s, 1, 0, 1, 100);
	sim_run(&s, SEC(9)); /* before the keepalive that would renew by age */
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	sim_run(&s, SEC(6));
	sim_fini(&s);

	start_session(&s);
	sim_run(&s, SEC(166));
	s.node[0].sent[WGMSG_INITIATION] = 0;
	sim_send(&s, 1, 0, 1, 100);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 1);
	sim_fini(&s);
}

/* Nonces: a new handshake after 2^60, refusal at the end; then the new keypair. */
static void test_nonces(void **state)
{
	struct keypair *kp;
	struct sim s;

	start_session(&s);
	sim_run(&s, SEC(10));
	kp = atomic_load(&sim_peer(&s, 0, 1)->current);
	atomic_store(&kp->tx_counter, REKEY_AFTER_MESSAGES);
	SIM_CHECK(&s, sim_send(&s, 0, 1, 1, 100) == WG_SEALED);
	sim_run(&s, SEC(0.2));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 2);
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 2);

	kp = atomic_load(&sim_peer(&s, 0, 1)->current);
	atomic_store(&kp->tx_counter, REJECT_AFTER_MESSAGES - 2);
	SIM_CHECK(&s, sim_send(&s, 0, 1, 3, 100) == WG_STAGED);
	SIM_CHECK(&s, sim_send(&s, 0, 1, 1, 100) == WG_STAGED);
	/* Too soon after the last handshake; they need no further packet to go on. */
	sim_run(&s, SEC(6));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 6);
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 3);

	/* The very last two. */
	kp = atomic_load(&sim_peer(&s, 0, 1)->current);
	atomic_store(&kp->tx_counter, REJECT_AFTER_MESSAGES - 2);
	SIM_CHECK(&s, sim_send(&s, 0, 1, 2, 100) == WG_SEALED);
	sim_run(&s, SEC(0.2));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 8);
	sim_fini(&s);
}

/* 128 wait, the oldest give way, and they leave in order, before newer ones. */
static void test_staging(void **state)
{
	struct sim s;
	uint64_t n;

	start(&s, 2);
	for (int i = 0; i < 5; i++)
		SIM_CHECK(&s, sim_send(&s, 0, 1, 40, 1400) == WG_STAGED);
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_STAGED_FULL) == 200 - WG_STAGED_MAX);
	sim_run(&s, SEC(0.019));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 0);
	sim_flow(&s, 0, 1, SEC(0.0001), 1, 1400);
	sim_run(&s, SEC(0.2));
	sim_flows_stop(&s);
	sim_run(&s, SEC(0.1));
	/* The simulator checks the order. Which ones are missing? */
	n = sim_drops(&s, 0, WG_DROP_STAGED_FULL);
	SIM_CHECK(&s, n >= 200 - WG_STAGED_MAX && n < 100);
	for (uint64_t i = 0; i < 200; i++)
		SIM_CHECK(&s, s.pair[0][1].delivered[i] == (i >= n));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == s.n_sent - n);
	SIM_CHECK(&s, atomic_load(&sim_peer(&s, 0, 1)->n_staged) == 0);
	sim_fini(&s);
}

/* A replayed initiation changes nothing, whoever sends it; nor does a response. */
static void test_replayed_handshake(void **state)
{
	struct wg_peer_info before, after;
	struct sim s;

	start(&s, 3);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	before = sim_info(&s, 1, 0);
	sim_inject(&s, 2, 1, &s.node[0].last_initiation, WGMSG_INITIATION_LEN);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[1].last_handshake_drop == WG_DROP_TIMESTAMP);
	SIM_CHECK(&s, s.node[1].sent[WGMSG_RESPONSE] == 1);
	after = sim_info(&s, 1, 0);
	SIM_CHECK(&s, after.drops[WG_DROP_TIMESTAMP] == 1);
	after.drops[WG_DROP_TIMESTAMP] = 0;
	SIM_CHECK(&s, !memcmp(&before, &after, sizeof(before)));
	sim_fini(&s);
}

/* Forged data on a session's index: most of it is not opened, whether it comes from one
 * address or from ever new ones, and the session itself goes on. */
static void test_forged_data(void **state)
{
	uint8_t msg[96] = { WGMSG_DATA };
	struct sim s;
	uint64_t n;

	start(&s, 3);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	put_le32(msg + 4, sim_peer(&s, 1, 0)->current->local_index);
	for (unsigned i = 0; i < 8000; i++) { /* 40,000 a second */
		if (i >= 4000)
			memcpy(s.node[2].address.remote + 4, &i, sizeof(i));
		put_le64(msg + 8, 1000000 + i);
		sim_inject(&s, 2, 1, msg, sizeof(msg));
		if (i % 20 == 0)
			sim_run(&s, SEC(0.0005));
		if (i % 80 == 0)
			sim_send(&s, 0, 1, 1, 100);
	}
	sim_run(&s, SEC(1));
	n = sim_drops(&s, 1, WG_DROP_DECRYPT);
	SIM_CHECK(&s, n + sim_drops(&s, 1, WG_DROP_SUSPECT) == 8000);
	SIM_CHECK(&s, n >= SUSPECT_SCORE);
	SIM_CHECK(&s, n <= 3 * SUSPECT_SCORE + 22 * SUSPECT_ALLOWED);
	SIM_CHECK(&s, sim_info(&s, 1, 0).drops[WG_DROP_DECRYPT] == n);
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 101);
	sim_fini(&s);
}

/* A peer that is not configured gets no answer. */
static void test_unknown_peer(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_add_peer(&s, 0, 1, true);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[1].last_handshake_drop == WG_DROP_UNKNOWN_PEER);
	SIM_CHECK(&s, s.node[1].sent[WGMSG_RESPONSE] == 0);
	sim_fini(&s);
}

/* Under load: a cookie first, then at once the handshake with it. */
static void test_cookie(void **state)
{
	struct wg_endpoint before, after;
	struct sim s;

	start(&s, 2);
	s.node[1].is_loaded = true;
	sim_send(&s, 0, 1, 2, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[1].sent[WGMSG_COOKIE] == 1 && s.node[1].sent[WGMSG_RESPONSE] == 1);
	SIM_CHECK(&s, s.node[0].last_handshake_drop == WG_OK);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_MAC2) == 1);
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 2);
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 2);
	/* A cookie reply from elsewhere does not move the endpoint. */
	sim_run(&s, SEC(200));
	before = sim_info(&s, 0, 1).endpoint;
	sim_move(&s, 0); /* the cookie is bound to the address: a new one is needed */
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(0.015));
	s.node[1].address.remote[12] = 7;
	sim_run(&s, SEC(0.01));
	after = sim_info(&s, 0, 1).endpoint;
	SIM_CHECK(&s, s.node[1].sent[WGMSG_COOKIE] == 2);
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 4); /* it has arrived */
	SIM_CHECK(&s, !memcmp(&before.remote, &after.remote, sizeof(before.remote)));
	sim_fini(&s);
}

/* With a cookie, 20 per second and 5 at once from one source. */
static void test_rate_limit(void **state)
{
	struct cookie_jar jar;
	unsigned n_allowed = 0;
	struct sim s;

	start(&s, 2);
	s.node[1].is_loaded = true;
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[1].sent[WGMSG_COOKIE] == 1);
	jar = sim_peer(&s, 0, 1)->jar;
	SIM_CHECK(&s, jar.has_cookie);
	for (int i = 0; i < 1000; i++) { /* one second */
		struct wgmsg_initiation msg = s.node[0].last_initiation;
		enum wg_drop why;

		msg.sender = (uint32_t)i;
		cookie_add_macs(&jar, (uint8_t *)&msg, sizeof(msg), s.now_ns);
		why = wg_rx_handshake(s.node[1].wg, (uint8_t *)&msg, sizeof(msg),
			&s.node[0].address, true, s.now_ns, sim_wall_ns(&s));
		SIM_CHECK(&s, why == WG_DROP_RATE || why == WG_DROP_TIMESTAMP);
		n_allowed += why != WG_DROP_RATE;
		s.now_ns += NSEC_PER_MSEC;
	}
	SIM_CHECK(&s, n_allowed >= 24 && n_allowed <= 25);
	sim_fini(&s);
}

/* Somebody who stands between sends cookie replies for ever: one more initiation for
 * each that the timer sends, and no more. */
static void test_cookie_replies_without_end(void **state)
{
	struct cookie_checker theirs;
	struct wgmsg_cookie reply;
	struct sim s;
	unsigned n;

	start(&s, 2);
	sim_run(&s, SEC(1));
	s.wire.is_cut = true;
	sim_send(&s, 0, 1, 1, 100);
	cookie_checker_init(&theirs, sim_info(&s, 0, 1).public_key);
	for (n = 0; n < 4000; n++) { /* 40 s */
		struct wgmsg_initiation *msg = &s.node[0].last_initiation;

		sim_run(&s, SEC(0.01));
		if (!s.node[0].sent[WGMSG_INITIATION])
			continue;
		cookie_make_reply(&theirs, (uint8_t *)msg, sizeof(*msg), s.node[0].address.remote,
			s.now_ns, &reply);
		wg_rx_handshake(s.node[0].wg, (uint8_t *)&reply, sizeof(reply), &s.node[1].address,
			false, s.now_ns, sim_wall_ns(&s));
	}
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] >= 14);
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] <= 18); /* 8 or 9 times the timer */
	sim_fini(&s);
}

/* False responses to an initiation of ours: after a few, only a cookie helps. */
static void test_false_responses(void **state)
{
	struct wgmsg_response msg = { .type = htole32(WGMSG_RESPONSE) };
	struct cookie_jar jar;
	unsigned n_taken = 0;
	struct sim s;

	start(&s, 2);
	s.wire.is_cut = true;
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(0.1));
	msg.receiver = s.node[0].last_initiation.sender;
	cookie_jar_init(&jar, sim_info(&s, 1, 0).public_key);
	for (unsigned i = 0; i < 100; i++) {
		enum wg_drop why;

		msg.ephemeral[0] = (uint8_t)i;
		cookie_add_macs(&jar, (uint8_t *)&msg, sizeof(msg), s.now_ns);
		why = wg_rx_handshake(s.node[0].wg, (uint8_t *)&msg, sizeof(msg),
			&s.node[1].address, true, s.now_ns, sim_wall_ns(&s));
		SIM_CHECK(&s, why == WG_DROP_HANDSHAKE || why == WG_DROP_MAC2);
		n_taken += why == WG_DROP_HANDSHAKE;
	}
	SIM_CHECK(&s, n_taken == ANSWERS_MAX);
	s.wire.is_cut = false;
	sim_run(&s, SEC(6)); /* the real one still gets through */
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 1);
	sim_fini(&s);
}

/* Wrong MACs, wrong lengths, unknown receivers: a named drop and no answer. */
static void test_bad_handshakes(void **state)
{
	struct wgmsg_initiation msg;
	struct wgmsg_response resp = { .type = htole32(WGMSG_RESPONSE), .receiver = 99 };
	struct wgmsg_cookie cookie = { .type = htole32(WGMSG_COOKIE), .receiver = 99 };
	struct cookie_jar jar;
	struct sim s;
	struct wg *wg;

	start_session(&s);
	wg = s.node[1].wg;
	msg = s.node[0].last_initiation;
	msg.macs.mac1[3] ^= 1;
#define RX(m, n) wg_rx_handshake(wg, (uint8_t *)&(m), n, &s.node[0].address, false, s.now_ns, 1)
	SIM_CHECK(&s, RX(msg, sizeof(msg)) == WG_DROP_MAC1);
	SIM_CHECK(&s, RX(msg, sizeof(msg) - 1) == WG_DROP_TYPE);
	SIM_CHECK(&s, RX(cookie, sizeof(cookie)) == WG_DROP_NO_SESSION);
	cookie.receiver = htole32(sim_peer(&s, 1, 0)->current->local_index);
	SIM_CHECK(&s, RX(cookie, sizeof(cookie)) == WG_DROP_COOKIE);
	jar = sim_peer(&s, 0, 1)->jar;
	cookie_add_macs(&jar, (uint8_t *)&resp, sizeof(resp), s.now_ns);
	SIM_CHECK(&s, RX(resp, sizeof(resp)) == WG_DROP_NO_SESSION);
	resp.receiver = cookie.receiver;
	cookie_add_macs(&jar, (uint8_t *)&resp, sizeof(resp), s.now_ns);
	SIM_CHECK(&s, RX(resp, sizeof(resp)) == WG_DROP_NO_SESSION); /* not what we wait for */
	for (size_t at = 4; at < offsetof(struct wgmsg_initiation, macs); at += 3) {
		msg = s.node[0].last_initiation;
		((uint8_t *)&msg)[at] ^= 0x10;
		cookie_add_macs(&jar, (uint8_t *)&msg, sizeof(msg), s.now_ns);
		s.now_ns += NSEC_PER_SEC / 20; /* as many as a source may have unasked */
		/* The sender's index alone is not covered by the timestamp's check. */
		SIM_CHECK(&s,
			RX(msg, sizeof(msg)) == (at < 8 ? WG_DROP_TIMESTAMP : WG_DROP_HANDSHAKE));
	}
	wg_set_up(wg, false, s.now_ns);
	SIM_CHECK(&s, RX(msg, sizeof(msg)) == WG_DROP_DOWN);
#undef RX
	SIM_CHECK(&s, s.node[1].sent[WGMSG_RESPONSE] == 1);
	sim_fini(&s);
}

/* The endpoint follows data and handshakes. */
static void test_roaming(void **state)
{
	struct sim s;

	start_session(&s);
	sim_move(&s, 0);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, !memcmp(sim_info(&s, 1, 0).endpoint.remote, s.node[0].address.remote, 24));
	sim_send(&s, 1, 0, 1, 100);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, sim_delivered(&s, 1, 0) == 1);
	sim_run(&s, SEC(200));
	sim_move(&s, 0);
	sim_send(&s, 0, 1, 1, 100); /* needs a handshake */
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, !memcmp(sim_info(&s, 1, 0).endpoint.remote, s.node[0].address.remote, 24));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 3);
	/* A forged packet does not move it. */
	sim_move(&s, 0);
	sim_inject(&s, 0, 1, &s.node[0].last_initiation, WGMSG_INITIATION_LEN);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, memcmp(sim_info(&s, 1, 0).endpoint.remote, s.node[0].address.remote, 24));
	sim_fini(&s);
}

/* A responder that knows no endpoint learns it from the handshake. */
static void test_unknown_endpoint(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_add_peer(&s, 0, 1, true);
	sim_add_peer(&s, 1, 0, false);
	SIM_CHECK(&s, sim_send(&s, 1, 0, 2, 100) == WG_DROPPED);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_NO_ENDPOINT) == 2);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, sim_send(&s, 1, 0, 2, 100) == WG_SEALED);
	sim_run(&s, SEC(0.1));
	SIM_CHECK(&s, sim_delivered(&s, 1, 0) == 2);
	sim_fini(&s);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_counters),
		cmocka_unit_test(test_both_begin_at_once),
		cmocka_unit_test(test_response_lost),
		cmocka_unit_test(test_gives_up),
		cmocka_unit_test(test_passive_keepalive),
		cmocka_unit_test(test_new_handshake_without_answer),
		cmocka_unit_test(test_persistent_keepalive),
		cmocka_unit_test(test_keepalive_on_up_and_key),
		cmocka_unit_test(test_wiped_after_silence),
		cmocka_unit_test(test_session_age),
		cmocka_unit_test(test_rekey_by_age),
		cmocka_unit_test(test_rekey_while_receiving),
		cmocka_unit_test(test_nonces),
		cmocka_unit_test(test_staging),
		cmocka_unit_test(test_replayed_handshake),
		cmocka_unit_test(test_forged_data),
		cmocka_unit_test(test_unknown_peer),
		cmocka_unit_test(test_cookie),
		cmocka_unit_test(test_rate_limit),
		cmocka_unit_test(test_cookie_replies_without_end),
		cmocka_unit_test(test_false_responses),
		cmocka_unit_test(test_bad_handshakes),
		cmocka_unit_test(test_roaming),
		cmocka_unit_test(test_unknown_endpoint),
	};

	if (!sim_options(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
