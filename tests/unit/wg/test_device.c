#include "lone.h"
#include <errno.h>
#include <stdio.h>

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

static size_t n_peers(void)
{
	struct wg_info info;

	wg_get(l.wg, &info);
	return info.n_peers;
}

static struct wg_peer_change named(uint32_t number)
{
	struct wg_peer_change pc = { 0 };

	put_be32(pc.public_key, number);
	pc.public_key[31] = 1;
	return pc;
}

static struct wg_peer *peer_of(uint32_t number)
{
	struct wg_peer_change pc = named(number);

	return peer_find(l.wg, pc.public_key);
}

static void apply_one(struct wg_peer_change *pc)
{
	struct wg_change c = { .peers = pc, .n_peers = 1 };

	lone_apply(&l, &c);
}

static struct wg_allowed_change prefix(uint32_t ip, uint8_t bits)
{
	struct wg_allowed_change a = { .net = { .addr.family = AF_INET, .bits = bits } };

	put_be32(a.net.addr.ip, ip);
	return a;
}

static void test_create_refuses(void **state)
{
	static const struct wg_ops ops = { lone_send, lone_wake, lone_limit };
	struct wg_config good = { .ops = &ops, .n_workers = 1 }, c;
	struct wg_worker *w = NULL;
	struct wg *wg = NULL;

#define REFUSES(field, value) (c = good, c.field = (value), wg_create(&wg, &c) == -EINVAL)
	assert_true(REFUSES(ops, NULL));
	assert_true(REFUSES(n_workers, 0));
	assert_true(REFUSES(n_workers, WG_WORKERS_MAX + 1));
	assert_true(REFUSES(server_id, WG_SERVER_ID_MAX + 1));
#undef REFUSES
	assert_null(wg);
	assert_int_equal(wg_worker_create(&w, l.wg, 1), -EINVAL);
	wg_destroy(NULL);
	wg_worker_destroy(NULL);
}

static void test_drop_names(void **state)
{
	for (enum wg_drop d = WG_DROP_TYPE; d < WG_DROP_N; d++) {
		assert_true(wg_drop_key(d)[0] && wg_drop_text(d)[0]);
		for (enum wg_drop k = WG_DROP_TYPE; k < d; k++)
			assert_string_not_equal(wg_drop_key(d), wg_drop_key(k));
	}
	assert_string_equal(wg_drop_key(WG_DROP_REPLAY), "replay");
}

/* Counts survive their worker. */
static void test_drops_are_summed(void **state)
{
	uint64_t drops[WG_DROP_N];

	wg_worker_drop(l.worker, NULL, WG_DROP_NO_ROUTE, 5);
	wg_worker_destroy(l.worker);
	wg_drops(l.wg, drops);
	assert_int_equal(drops[WG_DROP_NO_ROUTE], 5);
	assert_int_equal(wg_worker_create(&l.worker, l.wg, 0), 0);
	wg_worker_drop(l.worker, NULL, WG_DROP_NO_ROUTE, 2);
	wg_drops(l.wg, drops);
	assert_int_equal(drops[WG_DROP_NO_ROUTE], 7);
	assert_int_equal(drops[WG_DROP_TYPE], 0);
}

/* K31: the private key is shown clamped. A zero key removes it. */
static void test_private_key(void **state)
{
	struct wg_change c = { .has_private_key = true };
	struct wg_info info;

	memset(c.private_key, 0xff, WG_KEY_LEN);
	lone_apply(&l, &c);
	wg_get(l.wg, &info);
	assert_true(info.has_private_key);
	assert_int_equal(info.private_key[0], 0xf8);
	assert_int_equal(info.private_key[31], 0x7f);
	memset(c.private_key, 0, WG_KEY_LEN);
	lone_apply(&l, &c);
	wg_get(l.wg, &info);
	assert_false(info.has_private_key);
}

/* Thousands of peers in one change; kept in their order. */
static void test_many_peers(void **state)
{
	enum { N = 3000 };
	struct wg_peer_change *pc = calloc(N, sizeof(*pc));
	struct wg_change c = { .peers = pc, .n_peers = N };
	uint32_t next = 0;

	for (uint32_t i = 0; i < N; i++)
		pc[i] = named(i);
	lone_apply(&l, &c);
	lone_apply(&l, &c);
	assert_int_equal(n_peers(), N);
	for (struct wg_peer *p = l.wg->first; p; p = p->next)
		assert_int_equal(get_be32(p->noise.public_key), next++);
	assert_int_equal(next, N);
	for (uint32_t i = 0; i < N; i++)
		assert_non_null(peer_of(i));
	for (uint32_t i = 0; i < N; i += 2)
		pc[i].is_removal = true;
	lone_apply(&l, &c);
	assert_int_equal(n_peers(), N / 2);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(peer_of(i) != NULL, i % 2);
	free(pc);
}

static unsigned n_moved;

static void count_moved(void *ctx, const struct prefix *net)
{
	assert_int_equal(net->bits, 24);
	n_moved++;
}

/* A prefix that another peer has moves, and that is told. */
static void test_moved(void **state)
{
	struct wg_allowed_change a = prefix(0x0a000000, 24);
	struct wg_peer_change pc[2] = { named(1), named(2) };
	struct wg_change c = { .peers = pc, .n_peers = 2 };

	for (int i = 0; i < 2; i++) {
		pc[i].allowed = &a;
		pc[i].n_allowed = 1;
	}
	n_moved = 0;
	assert_int_equal(wg_apply(l.wg, &c, l.now_ns, lone_wall(&l), count_moved, NULL), 0);
	assert_int_equal(n_moved, 1);
	assert_int_equal(peer_of(1)->allowed.n, 0);
	assert_int_equal(peer_of(2)->allowed.n, 1);
	/* To whom it belongs already: nothing moves. */
	c.peers = &pc[1];
	c.n_peers = 1;
	assert_int_equal(wg_apply(l.wg, &c, l.now_ns, lone_wall(&l), count_moved, NULL), 0);
	assert_int_equal(n_moved, 1);
}

/* K27: 394 prefixes, six of them taken away in place. */
static void test_incremental_removal(void **state)
{
	static const int six[] = { 0, 1, 196, 197, 392, 393 };
	struct wg_allowed_change a[394];
	struct wg_peer_change pc = named(1);

	for (uint32_t i = 0; i < 394; i++)
		a[i] = prefix(0x0a000000 + i * 256, 24);
	pc.allowed = a;
	pc.n_allowed = 394;
	apply_one(&pc);
	assert_int_equal(peer_of(1)->allowed.n, 394);
	for (size_t i = 0; i < ARRAY_LEN(six); i++) {
		a[i] = prefix(0x0a000000 + (uint32_t)six[i] * 256, 24);
		a[i].is_removal = true;
	}
	pc.n_allowed = 6;
	apply_one(&pc);
	assert_int_equal(peer_of(1)->allowed.n, 388);
	for (uint32_t i = 0; i < 394; i++) {
		uint8_t ip[4];
		bool is_gone = i < 2 || i == 196 || i == 197 || i >= 392;

		put_be32(ip, 0x0a000000 + i * 256 + 7);
		assert_int_equal(wg_route(l.worker, AF_INET, ip) == NULL, is_gone);
	}
	/* Taking what it has not is no error, nor what another peer has. */
	apply_one(&pc);
	assert_int_equal(peer_of(1)->allowed.n, 388);
}

/* K32: replaced by chains of covering prefixes and by one, many times. */
static void test_replacement_chains(void **state)
{
	static const uint8_t chain[] = { 0, 8, 10, 12, 16 };
	struct wg_allowed_change a[ARRAY_LEN(chain)];
	struct wg_peer_change pc = named(1);

	pc.replaces_allowed = true;
	pc.allowed = a;
	for (int round = 0; round < 200; round++) {
		pc.n_allowed = round % 2 ? 1 : ARRAY_LEN(chain);
		for (size_t i = 0; i < pc.n_allowed; i++)
			a[i] = prefix(0, chain[i]);
		apply_one(&pc);
		assert_int_equal(peer_of(1)->allowed.n, pc.n_allowed);
		wg_poll(l.wg, l.now_ns, 0); /* frees */
	}
	pc.n_allowed = 0;
	apply_one(&pc);
	assert_int_equal(peer_of(1)->allowed.n, 0);
}

/* An added peer with a PSK and keepalive; cleared one by one; update_only. */
static void test_peer_fields(void **state)
{
	struct wg_peer_change pc = named(1);
	struct wg_endpoint e;

	pc.is_update_only = true;
	apply_one(&pc);
	assert_int_equal(n_peers(), 0);
	pc.is_update_only = false;
	pc.has_psk = pc.has_keepalive = true;
	pc.psk[3] = 1;
	pc.keepalive_s = 65535;
	apply_one(&pc);
	assert_int_equal(peer_of(1)->noise.psk[3], 1);
	assert_int_equal(atomic_load(&peer_of(1)->persistent_ns), 65535 * NSEC_PER_SEC);
	assert_false(endpoint_get(&peer_of(1)->endpoint, &e));
	pc.psk[3] = 0;
	pc.has_keepalive = false;
	pc.has_endpoint = true;
	pc.endpoint.remote[0] = 3;
	pc.is_update_only = true;
	apply_one(&pc);
	assert_int_equal(peer_of(1)->noise.psk[3], 0);
	assert_int_equal(atomic_load(&peer_of(1)->persistent_ns), 65535 * NSEC_PER_SEC);
	assert_true(endpoint_get(&peer_of(1)->endpoint, &e));
	assert_int_equal(e.remote[0], 3);
	assert_int_equal(l.n_sent, 0); /* the device is down */
}

/* The first message after "up" is wg_poll's: it knows what the wall clock says. */
static void test_up_with_a_stale_clock(void **state)
{
	struct wg_peer *p = lone_add_peer(&l, 9);
	unsigned woken;

	wg_set_up(l.wg, true, l.now_ns);
	atomic_store(&p->persistent_ns, NSEC_PER_SEC);
	wg_set_up(l.wg, false, l.now_ns);
	lone_poll(&l);
	l.now_ns += 100 * NSEC_PER_SEC;
	woken = l.n_woken;
	wg_set_up(l.wg, true, l.now_ns);
	assert_int_equal(l.n_sent, 0);
	assert_true(l.n_woken > woken);
	lone_poll(&l);
	assert_int_equal(l.n_handshakes, 1);
	assert_int_equal(l.wg->wall_ns, lone_wall(&l));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_create_refuses),
		TEST(test_drop_names),
		TEST(test_drops_are_summed),
		TEST(test_private_key),
		TEST(test_many_peers),
		TEST(test_moved),
		TEST(test_incremental_removal),
		TEST(test_replacement_chains),
		TEST(test_peer_fields),
		TEST(test_up_with_a_stale_clock),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
