/* Walks over the peers while peers come and go, alone and from several threads. */
#include "lone.h"
#include <errno.h>
#include <pthread.h>

enum { LONG = 10000 }; /* prefixes of a list that is copied in several pieces */

static struct lone l;

static int setup(void **state)
{
	lone_open(&l);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

static struct wg_peer_change named(uint32_t number)
{
	struct wg_peer_change pc = { 0 };

	put_be32(pc.public_key, number);
	pc.public_key[31] = 1;
	return pc;
}

static uint32_t number_of(const struct wg_peer_info *info)
{
	return get_be32(info->public_key);
}

static void apply(struct wg_peer_change *pc, size_t n)
{
	struct wg_change c = { .peers = pc, .n_peers = n };

	lone_apply(&l, &c);
}

static void add(uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		struct wg_peer_change pc = named(i);

		apply(&pc, 1);
	}
}

static void take(uint32_t number)
{
	struct wg_peer_change pc = named(number);

	pc.is_removal = true;
	apply(&pc, 1);
}

/* The peer's prefixes are exactly n networks of 32 bits, from ip on. */
static void give_list(uint32_t number, uint32_t ip, size_t n)
{
	struct wg_peer_change pc = named(number);
	struct wg_allowed_change *nets = calloc(n + 1, sizeof(*nets));

	for (size_t i = 0; i < n; i++) {
		nets[i].net = (struct prefix){ .addr.family = AF_INET, .bits = 32 };
		put_be32(nets[i].net.addr.ip, ip + (uint32_t)i);
	}
	pc.allowed = nets;
	pc.n_allowed = n;
	pc.replaces_allowed = true;
	apply(&pc, 1);
	free(nets);
}

static void check_list(const struct wg_peer_info *info, uint32_t ip, size_t n)
{
	assert_int_equal(info->n_allowed, n);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(info->allowed[i].addr.family, AF_INET);
		assert_int_equal(info->allowed[i].bits, 32);
		assert_int_equal(get_be32(info->allowed[i].addr.ip), ip + i);
	}
}

static struct wg_walk *begin(void)
{
	struct wg_walk *k;

	assert_int_equal(wg_walk_begin(&k, l.wg), 0);
	return k;
}

/* The next peer is this one; UINT32_MAX: there is none. */
static void expect(struct wg_walk *k, uint32_t number)
{
	struct wg_peer_info info;
	size_t n = 7;

	assert_int_equal(wg_walk_next(k, &info, 1, &n), 0);
	assert_int_equal(n, number != UINT32_MAX);
	if (n)
		assert_int_equal(number_of(&info), number);
}

static void test_all_in_order(void **state)
{
	enum { N = 200, CAP = 70 };
	struct wg_peer_info infos[CAP];

	struct wg_walk *none = begin();

	expect(none, UINT32_MAX);
	wg_walk_end(none);
	add(0, N);
	for (size_t cap = 1; cap <= CAP; cap++) {
		struct wg_walk *k = begin();
		uint32_t next = 0;
		size_t n;

		do {
			assert_int_equal(wg_walk_next(k, infos, cap, &n), 0);
			assert_true(n <= cap);
			for (size_t i = 0; i < n; i++)
				assert_int_equal(number_of(&infos[i]), next++);
		} while (n);
		assert_int_equal(next, N);
		/* It stays at the end. */
		assert_int_equal(wg_walk_next(k, infos, cap, &n), 0);
		assert_int_equal(n, 0);
		wg_walk_end(k);
	}
}

static void test_what_is_shown(void **state)
{
	struct wg_allowed_change nets[2] = {
		{ .net = { .addr = { AF_INET, { 10 } }, .bits = 8 } },
		{ .net = { .addr = { AF_INET6, { 0xfd } }, .bits = 8 } },
	};
	struct wg_peer_change pc = named(1);
	struct wg_walk *k;
	struct wg_peer_info info;
	size_t n;

	pc.has_psk = pc.has_endpoint = pc.has_keepalive = true;
	pc.psk[31] = 7;
	pc.endpoint.remote[3] = 5;
	pc.keepalive_s = 25;
	pc.allowed = nets;
	pc.n_allowed = 2;
	apply(&pc, 1);
	add(2, 1);
	k = begin();
	assert_int_equal(wg_walk_next(k, &info, 1, &n), 0);
	assert_memory_equal(info.public_key, pc.public_key, WG_KEY_LEN);
	assert_memory_equal(info.psk, pc.psk, WG_KEY_LEN);
	assert_true(info.has_psk);
	assert_true(info.has_endpoint);
	assert_memory_equal(&info.endpoint, &pc.endpoint, sizeof(pc.endpoint));
	assert_int_equal(info.keepalive_s, 25);
	assert_int_equal(info.n_allowed, 2);
	assert_memory_equal(&info.allowed[0], &nets[0].net, sizeof(struct prefix));
	assert_memory_equal(&info.allowed[1], &nets[1].net, sizeof(struct prefix));
	for (int i = 0; i < WG_DROP_N; i++)
		assert_int_equal(info.drops[i], 0);
	assert_int_equal(wg_walk_next(k, &info, 1, &n), 0);
	assert_false(info.has_psk);
	assert_false(info.has_endpoint);
	assert_int_equal(info.n_allowed, 0);
	wg_walk_end(k);
}

static void test_peers_go_and_come(void **state)
{
	struct wg_walk *k;

	add(0, 8);
	k = begin();
	take(0); /* the one it stands on, before the first step */
	expect(k, 1);
	take(2); /* the one it stands on */
	take(3); /* and the one it stands on then */
	take(1); /* behind */
	take(5); /* ahead */
	add(8, 1); /* ahead, too */
	expect(k, 4);
	expect(k, 6);
	/* Away and back: shown in its new place. */
	take(7);
	add(7, 1);
	expect(k, 8);
	expect(k, 7);
	expect(k, UINT32_MAX);
	/* The end was reached: it is over. */
	add(9, 1);
	expect(k, UINT32_MAX);
	wg_walk_end(k);
	k = begin();
	for (uint32_t i = 0; i < 10; i++)
		take(i);
	expect(k, UINT32_MAX);
	wg_walk_end(k);
}

static void test_several_walks(void **state)
{
	struct wg_walk *k[4];

	add(0, 6);
	for (int i = 0; i < 4; i++)
		k[i] = begin();
	for (int i = 0; i < 4; i++)
		for (uint32_t j = 0; j < (uint32_t)i; j++)
			expect(k[i], j);
	/* k[i] stands on peer i; two of them on none of ours. */
	wg_walk_end(k[1]);
	take(0);
	take(2);
	expect(k[0], 1);
	expect(k[2], 3);
	wg_walk_end(k[3]); /* the newest */
	take(3);
	expect(k[0], 4);
	expect(k[2], 4);
	wg_walk_end(k[0]); /* the oldest */
	take(5);
	expect(k[2], UINT32_MAX);
	wg_walk_end(k[2]);
	wg_walk_end(NULL);
	assert_null(l.wg->walks);
}

/* Steps until a peer comes; how many had to be called again. */
static unsigned wait_for(struct wg_walk *k, struct wg_peer_info *info)
{
	unsigned n_again = 0;
	size_t n;
	int ret;

	while ((ret = wg_walk_next(k, info, 1, &n)) == -EAGAIN) {
		assert_int_equal(n, 0);
		assert_true(++n_again < 1000);
	}
	assert_int_equal(ret, 0);
	assert_int_equal(n, 1);
	return n_again;
}

static void test_long_list(void **state)
{
	struct wg_peer_info info;
	struct wg_walk *k;

	add(0, 3);
	give_list(1, 0x0a000000, LONG);
	k = begin();
	expect(k, 0);
	assert_true(wait_for(k, &info) >= 2);
	assert_int_equal(number_of(&info), 1);
	check_list(&info, 0x0a000000, LONG);
	expect(k, 2);
	expect(k, UINT32_MAX);
	wg_walk_end(k);

	/* The walk ends in the middle of the list. */
	k = begin();
	expect(k, 0);
	for (int i = 0; i < 2; i++) {
		size_t n;

		assert_int_equal(wg_walk_next(k, &info, 1, &n), -EAGAIN);
	}
	wg_walk_end(k);
}

/* Copy a part of the long list of peer 1. */
static struct wg_walk *half_way(void)
{
	struct wg_walk *k = begin();
	struct wg_peer_info info;
	size_t n;

	expect(k, 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(wg_walk_next(k, &info, 1, &n), -EAGAIN);
	assert_non_null(k);
	return k;
}

static void test_long_list_changes(void **state)
{
	struct wg_peer_info info;
	struct wg_walk *k;

	add(0, 3);
	give_list(1, 0x0a000000, LONG);
	k = half_way();
	give_list(1, 0x0b000000, 2 * LONG); /* more than there is memory for */
	wait_for(k, &info);
	check_list(&info, 0x0b000000, 2 * LONG);
	wg_walk_end(k);

	k = half_way();
	give_list(2, 0x0b000000, 1); /* another peer takes the first of them */
	wait_for(k, &info);
	check_list(&info, 0x0b000001, 2 * LONG - 1);
	wait_for(k, &info);
	check_list(&info, 0x0b000000, 1);
	wg_walk_end(k);

	k = half_way();
	give_list(1, 0x0c000000, 2); /* it is long no more */
	assert_int_equal(wait_for(k, &info), 0);
	check_list(&info, 0x0c000000, 2);
	expect(k, 2);
	wg_walk_end(k);

	/* It changes at every step and ends all the same. */
	give_list(1, 0x0a000000, LONG);
	k = begin();
	expect(k, 0);
	for (uint32_t i = 1;; i++) {
		size_t n;
		int ret = wg_walk_next(k, &info, 1, &n);

		if (ret == 0)
			break;
		assert_int_equal(ret, -EAGAIN);
		assert_true(i < 10);
		give_list(1, 0x0a000000 + i, LONG);
	}
	assert_int_equal(info.n_allowed, LONG);
	wg_walk_end(k);
}

static void test_peer_with_long_list_goes(void **state)
{
	struct wg_peer_info info;
	struct wg_walk *k;

	add(0, 3);
	give_list(1, 0x0a000000, LONG);
	give_list(2, 0x0b000000, LONG);
	k = half_way();
	take(1);
	wait_for(k, &info);
	assert_int_equal(number_of(&info), 2);
	check_list(&info, 0x0b000000, LONG);
	expect(k, UINT32_MAX);
	wg_walk_end(k);
}

/* ---- Threads. */

enum { N_STABLE = 300, N_WALKERS = 2, N_WALKS = 60 };

static _Atomic unsigned n_running;
static _Atomic bool has_failed;

/* Peer 1 has one of two lists; never a part, never of both. */
static bool is_one_list(const struct wg_peer_info *info)
{
	uint32_t first;

	if (info->n_allowed == 0)
		return false;
	first = get_be32(info->allowed[0].addr.ip);
	for (size_t i = 0; i < info->n_allowed; i++)
		if (get_be32(info->allowed[i].addr.ip) != first + i)
			return false;
	return (first == 0x0a000000 && info->n_allowed == LONG) ||
		(first == 0x0b000000 && info->n_allowed == 2000);
}

static void *walk_main(void *arg)
{
	struct wg_peer_info infos[8];

	for (int i = 0; i < N_WALKS; i++) {
		uint8_t n_seen[N_STABLE] = { 0 };
		struct wg_walk *k;
		size_t n = 0;
		int ret;

		if (wg_walk_begin(&k, l.wg))
			abort();
		do {
			ret = wg_walk_next(k, infos, ARRAY_LEN(infos), &n);
			for (size_t j = 0; j < n; j++) {
				uint32_t number = number_of(&infos[j]);

				if (number < N_STABLE)
					n_seen[number]++;
				if (number == 1 && !is_one_list(&infos[j]))
					has_failed = true;
			}
		} while (ret == -EAGAIN || n);
		for (int j = 0; j < N_STABLE; j++)
			if (n_seen[j] != 1 || ret)
				has_failed = true;
		wg_walk_end(k);
	}
	atomic_fetch_sub(&n_running, 1);
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t walkers[N_WALKERS];
	unsigned n_changes = 0;

	add(0, N_STABLE / 2);
	add(1000, 100);
	add(N_STABLE / 2, N_STABLE / 2);
	give_list(1, 0x0a000000, LONG);
	n_running = N_WALKERS;
	for (int i = 0; i < N_WALKERS; i++)
		assert_int_equal(pthread_create(&walkers[i], NULL, walk_main, NULL), 0);
	while (n_running) {
		for (uint32_t i = 0; i < 100; i++)
			take(1000 + i);
		add(1000, 100);
		give_list(1, n_changes % 2 ? 0x0a000000 : 0x0b000000, n_changes % 2 ? LONG : 2000);
		lone_poll(&l); /* frees what has gone */
		n_changes++;
	}
	for (int i = 0; i < N_WALKERS; i++)
		pthread_join(walkers[i], NULL);
	assert_false(has_failed);
	assert_true(n_changes > 0);
	assert_null(l.wg->walks);
}

#define WITH_DEVICE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DEVICE(test_all_in_order),
		WITH_DEVICE(test_what_is_shown),
		WITH_DEVICE(test_peers_go_and_come),
		WITH_DEVICE(test_several_walks),
		WITH_DEVICE(test_long_list),
		WITH_DEVICE(test_long_list_changes),
		WITH_DEVICE(test_peer_with_long_list_goes),
		WITH_DEVICE(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
