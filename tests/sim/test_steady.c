/* Days of traffic over a bad wire: nothing forged comes out, nothing vanishes,
 * keys rotate, and the tunnel is back as soon as the wire is. */
#include "sim.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <cmocka.h>

static const double DAY = 24 * 3600;

static double cpu_s(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

/* 5 % loss, and some of everything else, for sim_days. */
static void test_days_with_loss(void **state)
{
	double start = cpu_s();
	struct sim s;
	uint64_t ratio;

	sim_init(&s, sim_seed, 2);
	s.wire = (struct sim_wire){ .loss = 50,
		.duplicate = 20,
		.corrupt = 10,
		.replay = 20,
		.delay_ns = 10 * NSEC_PER_MSEC,
		.jitter_ns = 30 * NSEC_PER_MSEC,
		.mtu = 1500 };
	sim_connect(&s, 0, 1);
	sim_flow(&s, 0, 1, SEC(1.9), 3, 200);
	sim_flow(&s, 1, 0, SEC(5.3), 1, 60);
	sim_run(&s, SEC(sim_days * DAY));
	sim_balance(&s);
	/* Loss and altered messages, and rarely the seconds of a lost handshake. */
	ratio = sim_delivered(&s, 0, 1) * 1000 / s.pair[0][1].n_sent;
	SIM_CHECK(&s, ratio >= 920 && ratio <= 960);
	/* One side or the other renews every 120 s. */
	ratio = (s.node[0].sent[WGMSG_RESPONSE] + s.node[1].sent[WGMSG_RESPONSE]) * 1000 /
		(uint64_t)(sim_days * DAY / 120);
	SIM_CHECK(&s, ratio >= 900 && ratio <= 1150);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_REPLAY) > 0);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_DECRYPT) > 0);
	printf("%.1f days, %llu packets, in %.1f s: %.1f days per second\n", sim_days,
		(unsigned long long)s.n_sent, cpu_s() - start, sim_days / (cpu_s() - start));
	sim_fini(&s);
}

/* Without loss every packet arrives, in order, through 60 rotations. */
static void test_nothing_is_lost(void **state)
{
	struct sim s;
	uint64_t n;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	sim_flow(&s, 0, 1, SEC(0.25), 5, 1200);
	sim_flow(&s, 1, 0, SEC(0.4), 2, 36);
	sim_run(&s, SEC(7200));
	sim_flows_stop(&s);
	sim_run(&s, SEC(1));
	SIM_CHECK(&s, s.n_delivered == s.n_sent);
	SIM_CHECK(&s, s.n_sent >= 7200 * 25 - 25);
	/* The handshake at the start, then one per 120 s. */
	n = s.node[0].sent[WGMSG_INITIATION] + s.node[1].sent[WGMSG_INITIATION];
	SIM_CHECK(&s, n >= 59 && n <= 62); /* at the start perhaps both began */
	sim_fini(&s);
}

/* Reordering far beyond the window: late packets are refused as replays, nothing else. */
static void test_far_reordering(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(1));
	s.wire.jitter_ns = SEC(2);
	sim_flow(&s, 0, 1, SEC(0.001), 10, 64);
	sim_run(&s, SEC(8));
	sim_flows_stop(&s);
	sim_run(&s, SEC(3));
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_REPLAY) > 0);
	SIM_CHECK(&s, s.n_sent == s.n_delivered + s.lost.at[WG_DROP_REPLAY]);
	/* 8128 of the 20,000 that are on their way. */
	SIM_CHECK(&s, s.n_delivered * 10 > s.n_sent * 3);
	sim_fini(&s);
}

/* Cut for all kinds of times: back within REKEY_TIMEOUT and jitter of the end of
 * the cut (plus the poll and the way there and back). */
static void test_recovery(void **state)
{
	static const double cuts[] = { 1, 4, 12, 16, 30, 89, 119, 179, 300, 600 };
	uint64_t healed;
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	sim_flow(&s, 0, 1, SEC(0.5), 1, 100);
	sim_flow(&s, 1, 0, SEC(0.5), 1, 100);
	for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
		sim_run(&s, SEC(200) + sim_random(&s, SEC(100)));
		s.wire.is_cut = true;
		sim_run(&s, SEC(cuts[i]));
		s.wire.is_cut = false;
		healed = s.now_ns;
		sim_run(&s, REKEY_TIMEOUT + REKEY_JITTER + SEC(1.1));
		if (sim_delivered_ns(&s, 0, 1) <= healed || sim_delivered_ns(&s, 1, 0) <= healed)
			sim_fail(&s, "no traffic after a cut of %.0f s", cuts[i]);
		sim_balance(&s);
	}
	sim_fini(&s);
}

/* Suspend (the monotonic clock jumps), wall clock set forth and back. */
static void test_clock_jumps(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	sim_flow(&s, 0, 1, SEC(1), 2, 100);
	sim_flow(&s, 1, 0, SEC(1), 1, 100);
	for (int i = 0; i < 100; i++) {
		uint64_t before;

		sim_jump(&s, sim_random(&s, SEC(i % 2 ? 1000 : 100000)));
		before = s.now_ns;
		sim_run(&s, SEC(7));
		if (sim_delivered_ns(&s, 0, 1) <= before || sim_delivered_ns(&s, 1, 0) <= before)
			sim_fail(&s, "no traffic after jump %d", i);
		s.wall_shift_ns += (int64_t)sim_random(&s, SEC(1000));
	}
	sim_fini(&s);
}

/* Clock back: the peer refuses our initiations as replays until it has caught up;
 * its own handshakes go on working, and a session that is there is not harmed. */
static void test_clock_set_back(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(2));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 1);
	s.wall_shift_ns = -(int64_t)SEC(600);
	sim_run(&s, SEC(200)); /* the session ends of age */
	sim_send(&s, 0, 1, 1, 100);
	sim_run(&s, SEC(20));
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 1);
	SIM_CHECK(&s, sim_drops(&s, 1, WG_DROP_TIMESTAMP) >= 4);
	SIM_CHECK(&s, s.node[1].last_handshake_drop == WG_DROP_TIMESTAMP);
	/* It may still be called: node 0 never saw a stamp of node 1. */
	sim_send(&s, 1, 0, 1, 100);
	sim_run(&s, SEC(2));
	SIM_CHECK(&s, sim_delivered(&s, 1, 0) == 1);
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 2);
	sim_fini(&s);
}

/* Three peers, all pairs, in a bad wire. */
static void test_mesh(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 3);
	s.wire = (struct sim_wire){ .loss = 30,
		.duplicate = 30,
		.corrupt = 20,
		.replay = 50,
		.delay_ns = 5 * NSEC_PER_MSEC,
		.jitter_ns = 10 * NSEC_PER_MSEC };
	for (int a = 0; a < 3; a++)
		for (int b = a + 1; b < 3; b++)
			sim_connect(&s, a, b);
	for (int a = 0; a < 3; a++)
		for (int b = 0; b < 3; b++)
			if (a != b)
				sim_flow(&s, a, b, SEC(1) + sim_random(&s, SEC(1)), 4, 300);
	sim_run(&s, SEC(2 * 3600));
	for (int a = 0; a < 3; a++)
		for (int b = 0; b < 3; b++)
			SIM_CHECK(&s,
				a == b || sim_delivered(&s, a, b) * 100 > s.pair[a][b].n_sent * 92);
	sim_fini(&s);
}

/* A packet that is too long for the path is lost alone. */
static void test_path_mtu(void **state)
{
	struct sim s;

	sim_init(&s, sim_seed, 2);
	sim_connect(&s, 0, 1);
	s.wire.mtu = 1280;
	for (int i = 0; i < 20; i++) {
		sim_send(&s, 0, 1, 1, 1400);
		sim_send(&s, 0, 1, 1, 1200);
		sim_run(&s, SEC(1));
	}
	SIM_CHECK(&s, sim_delivered(&s, 0, 1) == 20);
	SIM_CHECK(&s, s.lost.wire == 20);
	sim_fini(&s);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_is_lost),
		cmocka_unit_test(test_far_reordering),
		cmocka_unit_test(test_recovery),
		cmocka_unit_test(test_clock_jumps),
		cmocka_unit_test(test_clock_set_back),
		cmocka_unit_test(test_mesh),
		cmocka_unit_test(test_path_mtu),
		cmocka_unit_test(test_days_with_loss),
	};

	if (!sim_options(argc, argv))
		return 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
