#include "lone.h"
#include <pthread.h>
#include <sched.h>

/* How late a deadline may be served: one tick of the wheel. */
#define TICK (1ULL << WHEEL_TICK_SHIFT)

static struct lone l;
static struct wg_peer *peer;

static int setup(void **state)
{
	lone_open(&l);
	wg_set_up(l.wg, true, l.now_ns);
	peer = lone_add_peer(&l, 9);
	lone_poll(&l);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

static bool is_due_set(enum timer t)
{
	return atomic_load(&peer->due[t]) != 0;
}

/* Poll as the caller must: at the returned time, and once a second. */
static void run_until(uint64_t end)
{
	uint64_t next = 0;

	while (l.now_ns < end) {
		next = lone_poll(&l);
		assert_true(next > l.now_ns);
		if (next > l.now_ns + NSEC_PER_SEC)
			next = l.now_ns + NSEC_PER_SEC;
		l.now_ns = next < end ? next : end;
	}
	lone_poll(&l);
}

/* TIMER_PERSISTENT does nothing here (no interval): only its deadline shows. */
static void test_fires_in_time(void **state)
{
	for (uint64_t wait = NSEC_PER_SEC; wait < 5000 * NSEC_PER_SEC;
		wait = wait * 3 / 2 + 12345) {
		uint64_t at = l.now_ns + wait;

		timer_set(peer, TIMER_PERSISTENT, at);
		run_until(at - 1);
		assert_true(is_due_set(TIMER_PERSISTENT));
		run_until(at + TICK);
		assert_false(is_due_set(TIMER_PERSISTENT));
	}
	assert_int_equal(l.n_sent, 0);
}

/* Moved to later: fires at the later time only. To earlier: at the earlier. */
static void test_moves(void **state)
{
	uint64_t start = l.now_ns;

	timer_set(peer, TIMER_PERSISTENT, start + 10 * NSEC_PER_SEC);
	run_until(start + 5 * NSEC_PER_SEC);
	timer_set(peer, TIMER_PERSISTENT, start + 20 * NSEC_PER_SEC);
	run_until(start + 19 * NSEC_PER_SEC);
	assert_true(is_due_set(TIMER_PERSISTENT));
	run_until(start + 20 * NSEC_PER_SEC + TICK);
	assert_false(is_due_set(TIMER_PERSISTENT));

	timer_set(peer, TIMER_PERSISTENT, start + 1000 * NSEC_PER_SEC);
	run_until(start + 30 * NSEC_PER_SEC);
	timer_set(peer, TIMER_PERSISTENT, start + 32 * NSEC_PER_SEC);
	run_until(start + 32 * NSEC_PER_SEC + TICK);
	assert_false(is_due_set(TIMER_PERSISTENT));
}

static void test_clear_and_stop(void **state)
{
	uint64_t start = l.now_ns;

	timer_set(peer, TIMER_NEW_HANDSHAKE, start + 5 * NSEC_PER_SEC);
	timer_set(peer, TIMER_PERSISTENT, start + 50 * NSEC_PER_SEC);
	timer_clear(peer, TIMER_NEW_HANDSHAKE);
	run_until(start + 20 * NSEC_PER_SEC);
	assert_int_equal(l.n_sent, 0);
	assert_true(is_due_set(TIMER_PERSISTENT));
	timers_stop(peer);
	for (enum timer t = 0; t < TIMER_N; t++)
		assert_false(is_due_set(t));
	assert_false(wheel_is_armed(&peer->wheel));
	/* And they can be used again. */
	timer_set(peer, TIMER_NEW_HANDSHAKE, l.now_ns + 5 * NSEC_PER_SEC);
	run_until(l.now_ns + 6 * NSEC_PER_SEC);
	assert_int_equal(l.n_handshakes, 1);
}

/* A want wakes the slow side once and is served by the next poll. */
static void test_wants(void **state)
{
	unsigned woken = l.n_woken;

	peer_want(peer, WANT_REKEY);
	peer_want(peer, WANT_REKEY);
	assert_int_equal(l.n_woken, woken + 1);
	assert_int_equal(l.n_handshakes, 0);
	lone_poll(&l);
	assert_int_equal(l.n_handshakes, 1);
	assert_int_equal(l.last_len, WGMSG_INITIATION_LEN);
	peer_want(peer, WANT_REKEY);
	assert_int_equal(l.n_woken, woken + 2);
	lone_poll(&l); /* too soon after the last */
	assert_int_equal(l.n_handshakes, 1);
}

static void test_wants_of_a_removed_peer(void **state)
{
	struct wg_peer_change pc = { .is_removal = true };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };

	memset(pc.public_key, 9, WG_KEY_LEN);
	peer_want(peer, WANT_KEEPALIVE);
	lone_apply(&l, &c);
	lone_poll(&l);
	assert_int_equal(l.n_sent, 0);
	assert_int_equal(lone_poll(&l), UINT64_MAX);
}

/* Retransmission: 5 s and up to 1/3 s apart, 18 times, then nothing. */
static void test_retransmit(void **state)
{
	uint64_t last = 0, n = 0, jitters[HANDSHAKE_TRIES_MAX + 1], distinct = 0;

	peer_want(peer, WANT_KEEPALIVE);
	for (uint64_t end = l.now_ns + 300 * NSEC_PER_SEC; l.now_ns < end; l.now_ns += TICK / 4) {
		unsigned before = l.n_handshakes;

		lone_poll(&l);
		if (l.n_handshakes == before)
			continue;
		assert_true(n <= HANDSHAKE_TRIES_MAX);
		if (last) {
			assert_true(l.now_ns - last >= REKEY_TIMEOUT);
			assert_true(l.now_ns - last <= REKEY_TIMEOUT + REKEY_JITTER + 2 * TICK);
			distinct += n > 1 && l.now_ns - last != jitters[n - 1];
		}
		jitters[n++] = l.now_ns - last;
		last = l.now_ns;
	}
	assert_int_equal(n, HANDSHAKE_TRIES_MAX + 1);
	assert_true(distinct > 10);
	assert_false(peer->owes_keepalive);
}

/* A suspended machine: every deadline is overdue at once, and served once. */
static void test_jump(void **state)
{
	timer_set(peer, TIMER_NEW_HANDSHAKE, l.now_ns + 15 * NSEC_PER_SEC);
	timer_set(peer, TIMER_PERSISTENT, l.now_ns + 25 * NSEC_PER_SEC);
	lone_poll(&l);
	l.now_ns += 1000000 * NSEC_PER_SEC;
	lone_poll(&l);
	assert_int_equal(l.n_handshakes, 1);
	assert_false(is_due_set(TIMER_PERSISTENT));
}

static _Atomic uint64_t fake_now;
static _Atomic unsigned n_polls; /* 8 in a second */
static _Atomic bool is_done;

/* Sets deadlines a little ahead, as traffic does, and waits for each. */
static void *set_many(void *arg)
{
	for (int i = 0; i < 3000; i++) {
		uint64_t at = atomic_load(&fake_now) + NSEC_PER_SEC + (uint64_t)i % 7 * TICK;
		unsigned polls;

		timer_set(peer, TIMER_PERSISTENT, at);
		/* The clock may have run past it before it was set: polls count. */
		polls = atomic_load(&n_polls);
		while (is_due_set(TIMER_PERSISTENT)) {
			if (atomic_load(&n_polls) - polls > 10 * 8)
				goto lost;
			sched_yield();
		}
	}
	atomic_store(&is_done, true);
	return NULL;
lost:
	atomic_store(&is_done, true);
	return "a deadline was lost";
}

static void test_no_deadline_is_lost(void **state)
{
	void *error;
	pthread_t t;

	atomic_store(&is_done, false);
	atomic_store(&fake_now, l.now_ns);
	assert_int_equal(pthread_create(&t, NULL, set_many, NULL), 0);
	while (!atomic_load(&is_done)) {
		atomic_store(&fake_now, l.now_ns += NSEC_PER_SEC / 8);
		lone_poll(&l);
		atomic_fetch_add(&n_polls, 1);
		sched_yield();
	}
	pthread_join(t, &error);
	if (error)
		fail_msg("%s", (const char *)error);
}

/* ---- Much at once. */

enum { MANY = 200 };

/* Peers with an endpoint and, if asked for, a keepalive, in one change. */
static void add_many(uint16_t keepalive_s, bool is_removal)
{
	struct wg_peer_change *pc = calloc(MANY, sizeof(*pc));
	struct wg_change c = { .peers = pc, .n_peers = MANY };

	for (uint32_t i = 0; i < MANY; i++) {
		put_be32(pc[i].public_key, i + 1);
		pc[i].public_key[31] = 9;
		pc[i].has_endpoint = pc[i].has_keepalive = true;
		pc[i].endpoint.remote[0] = 5;
		pc[i].keepalive_s = keepalive_s;
		pc[i].is_removal = is_removal;
	}
	lone_apply(&l, &c);
	free(pc);
}

/* Polls at one moment until all is done; no poll may do too much. */
static unsigned poll_all(void)
{
	enum { AT_ONCE = (TIMERS_WORK + TIMERS_WORK / 2) / INITIATION_WORK + 2 };
	unsigned n = 0, before;
	uint64_t next;

	do {
		before = l.n_sent;
		next = lone_poll(&l);
		assert_true(l.n_sent - before <= AT_ONCE);
		assert_true(++n < 10 * MANY);
	} while (next <= l.now_ns);
	return n;
}

/* A change that makes a handshake with each of many, the retransmissions of all of
 * them, an interface that goes up: always in portions, and nobody is forgotten. */
static void test_portions(void **state)
{
	add_many(10, false);
	assert_in_range(l.n_handshakes, 1, MANY / 2);
	assert_true(poll_all() > 10);
	assert_int_equal(l.n_handshakes, MANY);
	l.now_ns += 6 * NSEC_PER_SEC;
	assert_true(poll_all() > 10);
	assert_int_equal(l.n_handshakes, 2 * MANY);
	wg_set_up(l.wg, false, l.now_ns);
	poll_all();
	l.now_ns += NSEC_PER_SEC;
	wg_set_up(l.wg, true, l.now_ns);
	assert_true(poll_all() > 10);
	assert_int_equal(l.n_handshakes, 3 * MANY);
}

/* Neither the kicked nor those whose time has come keep the others waiting. */
static void test_both_have_their_part(void **state)
{
	timer_set(peer, TIMER_PERSISTENT, l.now_ns + NSEC_PER_SEC);
	poll_all();
	l.now_ns += 2 * NSEC_PER_SEC;
	add_many(10, false);
	assert_true(lone_poll(&l) <= l.now_ns);
	assert_false(is_due_set(TIMER_PERSISTENT));
}

/* Kicked, taken and not served yet: then removed and freed. */
static void test_removed_from_the_backlog(void **state)
{
	add_many(10, false);
	assert_true(lone_poll(&l) <= l.now_ns);
	assert_non_null(l.wg->backlog);
	peer_want(peer, WANT_KEEPALIVE);
	add_many(10, true);
	rcu_reclaim();
	/* Only the one that lives is left. */
	assert_ptr_equal(l.wg->backlog, peer);
	assert_null(peer->kick_next);
	poll_all();
	assert_null(l.wg->backlog);
	assert_int_equal(atomic_load(&peer->wants), 0);
	assert_false(atomic_load(&peer->is_kicked));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_fires_in_time),
		TEST(test_moves),
		TEST(test_clear_and_stop),
		TEST(test_wants),
		TEST(test_wants_of_a_removed_peer),
		TEST(test_retransmit),
		TEST(test_jump),
		TEST(test_no_deadline_is_lost),
		TEST(test_portions),
		TEST(test_both_have_their_part),
		TEST(test_removed_from_the_backlog),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
