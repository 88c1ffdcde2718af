/* Endpoints that are learnt, and sources that routing leads elsewhere. */
#include "lone.h"
#include <pthread.h>

enum { DETOUR = 7, OTHER_DETOUR = 8 };

static struct lone l;
static struct wg_peer *peer;

static int setup(void **state)
{
	lone_open(&l);
	peer = lone_add_peer(&l, 5);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

/* The peer at remote writes to our address local. */
static struct wg_endpoint at(uint8_t remote, uint8_t local)
{
	struct wg_endpoint e = { 0 };

	memset(e.remote, remote, sizeof(e.remote));
	memset(e.local, local, sizeof(e.local));
	return e;
}

static void hear(uint8_t remote, uint8_t local)
{
	struct wg_endpoint e = at(remote, local);

	endpoint_set(&peer->endpoint, &e, l.now_ns);
}

static void assert_at(uint8_t remote, uint8_t local)
{
	struct wg_endpoint e = at(remote, local), got;

	assert_true(endpoint_get(&peer->endpoint, &got));
	assert_memory_equal(&got, &e, sizeof(e));
}

static void reroute(uint8_t remote, uint8_t local, unsigned detour)
{
	struct wg_source s = { .endpoint = at(remote, local) };

	memset(s.public_key, 5, WG_KEY_LEN);
	wg_reroute(l.wg, &s, detour, l.now_ns);
}

static void test_fits(void **state)
{
	hear(1, 2);
	reroute(1, 2, 0);
	assert_at(1, 2);
	/* of an endpoint that it had, or of nobody */
	reroute(9, 2, DETOUR);
	assert_at(1, 2);
	peer = lone_add_peer(&l, 6);
	hear(1, 2);
	reroute(1, 2, DETOUR);
	assert_at(1, 2);
}

/* What is on its way does not teach it again; what else the peer does counts. */
static void test_strays(void **state)
{
	hear(1, 2);
	reroute(1, 2, DETOUR);
	assert_at(1, 0);
	hear(1, 2);
	assert_at(1, 0);
	/* another address of ours, and again one that was under way */
	hear(1, 3);
	assert_at(1, 3);
	hear(1, 2);
	assert_at(1, 0);
	/* from elsewhere it may be right */
	hear(4, 2);
	assert_at(4, 2);
}

static void test_after_the_pause(void **state)
{
	hear(1, 2);
	reroute(1, 2, DETOUR);
	l.now_ns += NSEC_PER_SEC - 1;
	hear(1, 2);
	assert_at(1, 0);
	l.now_ns++;
	/* The peer insists: believed, as long as the detour is the same. */
	hear(1, 2);
	assert_at(1, 2);
	reroute(1, 2, DETOUR);
	hear(1, 2);
	assert_at(1, 2);
	reroute(1, 2, OTHER_DETOUR);
	hear(1, 2);
	assert_at(1, 0);
	/* Right again, and wrong again: from the beginning. */
	l.now_ns += NSEC_PER_SEC;
	hear(1, 2);
	reroute(1, 2, 0);
	assert_at(1, 2);
	reroute(1, 2, OTHER_DETOUR);
	hear(1, 2);
	assert_at(1, 0);
}

static void test_configured(void **state)
{
	hear(1, 2);
	reroute(1, 2, DETOUR);
	hear(9, 0);
	assert_at(9, 0);
	hear(1, 0);
	assert_at(1, 0);
	endpoint_clear_local(&peer->endpoint);
	assert_at(1, 0);
	hear(1, 3);
	endpoint_clear_local(&peer->endpoint);
	assert_at(1, 0);
}

static _Atomic bool is_done;

static void *run_worker(void *arg)
{
	struct wg_endpoint e = at(1, 2), got;

	rcu_thread_init();
	while (!atomic_load(&is_done)) {
		endpoint_set(&peer->endpoint, &e, l.now_ns);
		assert_true(endpoint_get(&peer->endpoint, &got));
		rcu_quiescent();
	}
	rcu_thread_fini();
	return NULL;
}

static bool has_source(void)
{
	struct wg_endpoint got;

	return endpoint_get(&peer->endpoint, &got) && got.local[0];
}

/* A worker hears of the source all the time: once it strays it stays forgotten. */
static void test_race(void **state)
{
	enum { ROUNDS = 200 };
	pthread_t worker;

	hear(1, 2);
	assert_int_equal(pthread_create(&worker, NULL, run_worker, NULL), 0);
	for (unsigned i = 1; i <= ROUNDS; i++) {
		reroute(1, 2, i);
		for (int k = 0; k < 100; k++)
			assert_at(1, 0);
		reroute(1, 2, 0);
		rcu_reclaim();
		while (!has_source())
			;
	}
	atomic_store(&is_done, true);
	pthread_join(worker, NULL);
}

static void test_walk(void **state)
{
	enum { PEERS = 50, FIRST = 20 };
	struct wg_source s[8];
	struct wg_walk *walk;
	size_t n, calls = 0, seen = 0;
	bool is_more = true;

	for (uint8_t i = 0; i < PEERS; i++) {
		peer = lone_add_peer(&l, FIRST + i);
		if (i % 3 == 0)
			hear(i, 100);
	}
	assert_int_equal(wg_walk_begin(&walk, l.wg), 0);
	while (is_more) {
		is_more = wg_walk_sources(walk, s, ARRAY_LEN(s), &n);
		calls++;
		for (size_t i = 0; i < n; i++, seen += 3) {
			struct wg_endpoint e = at((uint8_t)seen, 100);

			assert_memory_equal(&s[i].endpoint, &e, sizeof(e));
			assert_int_equal(s[i].public_key[0], FIRST + seen);
		}
	}
	assert_int_equal(seen, (PEERS + 2) / 3 * 3);
	/* The peer of setup is one of them. */
	assert_int_equal(calls, (PEERS + 1 + 7) / 8);
	wg_walk_end(walk);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_fits),
		TEST(test_strays),
		TEST(test_after_the_pause),
		TEST(test_configured),
		TEST(test_race),
		TEST(test_walk),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
