/* Configuration under traffic: keys, peers, prefixes, up and down. */
#include "sim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <cmocka.h>

static void start_traffic(struct sim *s, int n)
{
	sim_init(s, sim_seed, n);
	sim_connect(s, 0, 1);
	sim_flow(s, 0, 1, SEC(0.05), 2, 100);
	sim_flow(s, 1, 0, SEC(0.05), 1, 100);
	sim_run(s, SEC(1));
	SIM_CHECK(s, sim_delivered(s, 0, 1) > 30 && sim_delivered(s, 1, 0) > 15);
}

/* Traffic both ways within ns from now. */
static void expect_traffic(struct sim *s, uint64_t ns)
{
	uint64_t now = s->now_ns;

	sim_run(s, ns);
	SIM_CHECK(s, sim_delivered_ns(s, 0, 1) > now + ns - SEC(0.2));
	SIM_CHECK(s, sim_delivered_ns(s, 1, 0) > now + ns - SEC(0.2));
	sim_balance(s);
}

/* The session goes on; the next handshake needs the new key, on both sides. */
static void test_psk_change(void **state)
{
	struct wg_peer_change pc;
	uint64_t n_lost;
	struct sim s;

	start_traffic(&s, 2);
	pc = sim_peer_change(&s, 1);
	pc.has_psk = true;
	memset(pc.psk, 7, sizeof(pc.psk));
	sim_apply_peer(&s, 0, &pc);
	sim_run(&s, SEC(60));
	expect_traffic(&s, SEC(50));
	SIM_CHECK(&s, s.lost.wire == 0 && s.n_sent - s.n_delivered < 10);
	/* The handshake at 120 s fails; the session lives to 180 s. */
	expect_traffic(&s, SEC(60));
	SIM_CHECK(
		&s, sim_drops(&s, 0, WG_DROP_HANDSHAKE) + sim_drops(&s, 1, WG_DROP_HANDSHAKE) > 0);
	memcpy(pc.public_key, s.node[0].public_key, WG_KEY_LEN);
	sim_apply_peer(&s, 1, &pc);
	n_lost = s.n_sent - s.n_delivered;
	expect_traffic(&s, SEC(200));
	SIM_CHECK(&s, s.n_sent - s.n_delivered <= n_lost + 10);
	SIM_CHECK(&s, sim_info(&s, 0, 1).has_psk && sim_info(&s, 1, 0).has_psk);
	sim_fini(&s);
}

/* K7: new key here, new peer in place of the old one there: back at once. */
static void test_private_key_change(void **state)
{
	uint8_t old[WG_KEY_LEN], secret[WG_KEY_LEN];
	struct sim s;

	start_traffic(&s, 2);
	memcpy(old, s.node[0].public_key, sizeof(old));
	memset(secret, 0x42, sizeof(secret));
	sim_remove_peer(&s, 1, 0);
	sim_set_secret(&s, 0, secret);
	SIM_CHECK(&s, memcmp(old, s.node[0].public_key, sizeof(old)));
	SIM_CHECK(&s, sim_send(&s, 0, 1, 1, 100) == WG_STAGED);
	sim_add_peer(&s, 1, 0, true);
	expect_traffic(&s, SEC(1));
	/* The same key again changes nothing, nor does its unclamped form. */
	secret[0] ^= 1;
	s.node[0].sent[WGMSG_INITIATION] = 0;
	sim_set_secret(&s, 0, secret);
	expect_traffic(&s, SEC(1));
	SIM_CHECK(&s, s.node[0].sent[WGMSG_INITIATION] == 0);
	sim_fini(&s);
}

/* K30. */
static void test_own_key_as_peer(void **state)
{
	uint8_t secret[WG_KEY_LEN];
	struct wg_info info;
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_add_peer(&s, 0, 0, false);
	wg_get(s.node[0].wg, &info);
	SIM_CHECK(&s, info.n_peers == 0);
	/* A peer whose key becomes ours goes. */
	sim_add_peer(&s, 0, 1, true);
	memcpy(secret, s.node[0].secret, sizeof(secret));
	sim_set_secret(&s, 0, s.node[1].secret);
	wg_get(s.node[0].wg, &info);
	SIM_CHECK(&s, info.n_peers == 0);
	sim_add_peer(&s, 0, 1, true);
	wg_get(s.node[0].wg, &info);
	SIM_CHECK(&s, info.n_peers == 0);
	sim_set_secret(&s, 0, secret);
	sim_add_peer(&s, 0, 1, true);
	wg_get(s.node[0].wg, &info);
	SIM_CHECK(&s, info.n_peers == 1);
	sim_fini(&s);
}

static void test_removal_under_traffic(void **state)
{
	struct sim s;

	start_traffic(&s, 2);
	for (int i = 0; i < 50; i++) {
		int a = (int)sim_random(&s, 2);

		sim_run(&s, sim_random(&s, SEC(0.3)));
		sim_remove_peer(&s, a, 1 - a);
		SIM_CHECK(&s, !sim_peer(&s, a, 1 - a));
		sim_run(&s, sim_random(&s, SEC(0.3)));
		sim_add_peer(&s, a, 1 - a, true);
		/* The other side has a session that nobody answers: 15 s at most. */
		expect_traffic(&s, SEC(16.5));
	}
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_NO_ROUTE) > 0);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_NO_SESSION) > 0);
	sim_fini(&s);
}

/* Packets that wait when their peer goes are counted. */
static void test_removal_with_staged(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	s.wire.is_cut = true;
	sim_send(&s, 0, 1, 50, 1400);
	sim_remove_peer(&s, 0, 1);
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_STAGED_PURGED) == 50);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.node[0].wg->stage.n_used == 0);
	sim_fini(&s);
}

/* syncconf: the same peers again, with replace_peers and the same prefixes. */
static void test_same_configuration_again(void **state)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change pc;
	struct wg_change c = {
		.has_private_key = true, .replaces_peers = true, .peers = &pc, .n_peers = 1
	};
	struct wg_peer_info before, after;
	struct sim s;

	start_traffic(&s, 2);
	sim_run(&s, SEC(1));
	before = sim_info(&s, 0, 1);
	pc = sim_peer_change(&s, 1);
	sim_ip(1, allowed.net.addr.ip);
	pc.replaces_allowed = true;
	pc.allowed = &allowed;
	pc.n_allowed = 1;
	memcpy(c.private_key, s.node[0].secret, WG_KEY_LEN);
	for (int i = 0; i < 500; i++) {
		sim_apply(&s, 0, &c);
		sim_run(&s, SEC(0.1));
	}
	after = sim_info(&s, 0, 1);
	SIM_CHECK(&s, after.tx_bytes > before.tx_bytes);
	SIM_CHECK(&s, after.last_handshake_wall_ns == before.last_handshake_wall_ns);
	SIM_CHECK(&s, after.has_endpoint && after.n_allowed == 1);
	sim_flows_stop(&s);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.n_sent == s.n_delivered);
	sim_fini(&s);
}

/* replace_peers removes who is not named and what is not said again. */
static void test_replace_peers(void **state)
{
	struct wg_peer_change pc;
	struct wg_change c = { .replaces_peers = true, .peers = &pc, .n_peers = 1 };
	struct wg_info info;
	struct sim s;

	sim_init(&s, sim_seed, 3);
	sim_connect(&s, 0, 1);
	sim_connect(&s, 0, 2);
	sim_set_keepalive(&s, 0, 1, 5);
	pc = sim_peer_change(&s, 1);
	sim_apply(&s, 0, &c);
	wg_get(s.node[0].wg, &info);
	SIM_CHECK(&s, info.n_peers == 1 && sim_peer(&s, 0, 1) && !sim_peer(&s, 0, 2));
	SIM_CHECK(&s, sim_info(&s, 0, 1).n_allowed == 0);
	SIM_CHECK(&s, sim_info(&s, 0, 1).keepalive_s == 0);
	SIM_CHECK(&s, sim_send(&s, 0, 1, 1, 100) == WG_DROPPED);
	/* update_only makes no peer; removal of who is not there is no error. */
	c.replaces_peers = false;
	pc = sim_peer_change(&s, 2);
	pc.is_update_only = true;
	sim_apply(&s, 0, &c);
	SIM_CHECK(&s, !sim_peer(&s, 0, 2));
	sim_remove_peer(&s, 0, 2);
	/* Removed and added again in one change. */
	struct wg_peer_change two[2] = { sim_peer_change(&s, 1), sim_peer_change(&s, 1) };
	two[0].is_removal = true;
	c.peers = two;
	c.n_peers = 2;
	sim_apply(&s, 0, &c);
	SIM_CHECK(&s, sim_peer(&s, 0, 1) && !sim_info(&s, 0, 1).has_endpoint);
	sim_fini(&s);
}

/* A prefix that another peer gets moves; K6: what comes from there is then refused,
 * but its endpoint is still learned. */
static void test_source_filter(void **state)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change pc;
	uint64_t rx;
	struct sim s;

	sim_init(&s, sim_seed, 3);
	sim_connect(&s, 0, 1);
	sim_connect(&s, 0, 2);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	pc = sim_peer_change(&s, 2);
	sim_ip(1, allowed.net.addr.ip);
	pc.allowed = &allowed;
	pc.n_allowed = 1;
	sim_apply_peer(&s, 0, &pc);
	SIM_CHECK(&s, sim_info(&s, 0, 1).n_allowed == 0 && sim_info(&s, 0, 2).n_allowed == 2);
	sim_move(&s, 1);
	rx = sim_info(&s, 0, 1).rx_bytes;
	sim_send(&s, 1, 0, 3, 100);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_SOURCE) == 3 && sim_delivered(&s, 1, 0) == 0);
	SIM_CHECK(&s, sim_info(&s, 0, 1).rx_bytes == rx);
	SIM_CHECK(&s, !memcmp(sim_info(&s, 0, 1).endpoint.remote, s.node[1].address.remote, 24));
	/* Taken away again with '-'. */
	allowed.is_removal = true;
	sim_apply_peer(&s, 0, &pc);
	SIM_CHECK(&s, sim_info(&s, 0, 2).n_allowed == 1);
	sim_fini(&s);
}

static void test_down_and_up(void **state)
{
	struct sim s;

	start_traffic(&s, 2);
	for (int i = 0; i < 20; i++) {
		wg_set_up(s.node[0].wg, false, s.now_ns);
		SIM_CHECK(&s, sim_send(&s, 0, 1, 1, 100) == WG_DROPPED);
		SIM_CHECK(&s, !atomic_load(&sim_peer(&s, 0, 1)->current));
		sim_run(&s, sim_random(&s, SEC(3)));
		wg_set_up(s.node[0].wg, true, s.now_ns);
		expect_traffic(&s, SEC(1));
	}
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_DOWN) > 0);
	sim_fini(&s);
}

/* K33: seven public keys of low order. Not a byte. */
static void test_low_order_keys(void **state)
{
	static const char *const hex[] = {
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	};
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_info info;
	struct sim s;

	sim_init(&s, sim_seed, 2);
	for (size_t i = 0; i < ARRAY_LEN(hex); i++) {
		struct wg_peer_change pc = { .has_endpoint = true,
			.endpoint = s.node[1].address,
			.has_keepalive = true,
			.keepalive_s = 1,
			.allowed = &allowed,
			.n_allowed = 1 };

		for (int k = 0; k < WG_KEY_LEN; k++) {
			unsigned v = 0;

			SIM_CHECK(&s, sscanf(hex[i] + 2 * k, "%2x", &v) == 1);
			pc.public_key[k] = (uint8_t)v;
		}
		sim_ip(1, allowed.net.addr.ip);
		sim_apply_peer(&s, 0, &pc);
		sim_send(&s, 0, 1, 1, 100);
	}
	wg_get(s.node[0].wg, &info);
	SIM_CHECK(&s, info.n_peers == 7);
	sim_run(&s, SEC(60));
	for (int type = 1; type <= 4; type++)
		SIM_CHECK(&s, s.node[0].sent[type] == 0);
	sim_fini(&s);
}

/* Indices come back many times; what was sealed for an old session, or for another
 * peer's, never opens. The simulator checks whose packets come out. */
static void test_index_reuse(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 4);
	/* Whoever removes a peer forgets its last timestamp: old initiations are good. */
	s.wire.spares_handshakes = true;
	s.wire.replay = 300;
	s.wire.jitter_ns = SEC(0.5);
	for (int b = 1; b < 4; b++)
		sim_connect(&s, 0, b);
	for (int b = 1; b < 4; b++) {
		sim_flow(&s, 0, b, SEC(0.11), 2, 64);
		sim_flow(&s, b, 0, SEC(0.13), 2, 64);
	}
	for (int i = 0; i < 600; i++) {
		int b = 1 + (int)sim_random(&s, 3);

		sim_run(&s, SEC(0.5) + sim_random(&s, SEC(0.5)));
		sim_remove_peer(&s, 0, b);
		sim_add_peer(&s, 0, b, true);
		if (i % 7 == 0) {
			wg_set_up(s.node[b].wg, false, s.now_ns);
			wg_set_up(s.node[b].wg, true, s.now_ns);
		}
	}
	/* Every slot of the quarantine has been round. */
	SIM_CHECK(&s, s.node[0].wg->index.shares[0].next_fresh < 200);
	SIM_CHECK(&s, s.n_delivered > 1000);
	SIM_CHECK(&s, sim_drops(&s, 0, WG_DROP_NO_SESSION) > 100);
	sim_fini(&s);
}

/* Two peers that never answer fill their queues; a third is not disturbed. */
static void test_dead_peers_do_not_disturb(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 4);
	for (int b = 1; b < 3; b++)
		sim_add_peer(&s, 0, b, true);
	sim_connect(&s, 0, 3);
	sim_flow(&s, 0, 1, SEC(0.01), 8, 1400);
	sim_flow(&s, 0, 2, SEC(0.01), 8, 1400);
	sim_flow(&s, 0, 3, SEC(0.01), 1, 1400);
	sim_run(&s, SEC(120));
	SIM_CHECK(&s, s.node[0].wg->stage.n_used <= 2 * WG_STAGED_MAX);
	SIM_CHECK(&s, sim_delivered(&s, 0, 3) + 5 >= s.pair[0][3].n_sent);
	/* The pool is empty: handshakes and keepalives do not depend on it. */
	while (pool_take(&s.node[0].wg->stage))
		;
	wg_set_up(s.node[3].wg, false, s.now_ns);
	wg_set_up(s.node[3].wg, true, s.now_ns);
	sim_flows_stop(&s);
	sim_set_keepalive(&s, 0, 3, 5);
	s.node[3].heard[WGMSG_DATA] = 0;
	sim_run(&s, SEC(200));
	SIM_CHECK(&s, s.node[3].heard[WGMSG_DATA] >= 200 / 5 - 5);
	sim_fini(&s);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_psk_change),
		cmocka_unit_test(test_private_key_change),
		cmocka_unit_test(test_own_key_as_peer),
		cmocka_unit_test(test_removal_under_traffic),
		cmocka_unit_test(test_removal_with_staged),
		cmocka_unit_test(test_same_configuration_again),
		cmocka_unit_test(test_replace_peers),
		cmocka_unit_test(test_source_filter),
		cmocka_unit_test(test_down_and_up),
		cmocka_unit_test(test_low_order_keys),
		cmocka_unit_test(test_index_reuse),
		cmocka_unit_test(test_dead_peers_do_not_disturb),
	};

	if (!sim_options(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
