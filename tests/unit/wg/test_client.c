/* Clients without a device against a whole device in memory. */
#include "lone.h"
#include <errno.h>

enum {
	CLIENTS = 3,
	SENT_MAX = 8,
	INNER_LEN = 36,
	ROOM = WG_HEAD + INNER_LEN + WG_TAIL,
};

struct sent {
	uint8_t data[256];
	size_t len;
};

static struct wg *wg;
static struct wg_worker *worker;
static struct wg_clients *clients;
static struct aead *aead; /* of the clients */
static uint64_t now_ns;
static uint8_t server_key[WG_KEY_LEN];
static struct sent sent[SENT_MAX];
static size_t n_sent;

static void keep(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	assert_true(n_sent < SENT_MAX && len <= sizeof(sent[0].data));
	memcpy(sent[n_sent].data, msg, len);
	sent[n_sent++].len = len;
}

static void wake_nobody(void *ctx)
{
}

static uint64_t wall_ns(void)
{
	return 1790000000 * NSEC_PER_SEC + now_ns;
}

static struct wg_endpoint home(size_t i)
{
	struct wg_endpoint e = { .remote = { (uint8_t)(i + 1) } };

	return e;
}

static void add_peer(size_t i)
{
	struct wg_allowed_change allowed = {
		.net = { .addr.family = AF_INET, .addr.ip = { 10, 0, 0, (uint8_t)i }, .bits = 32 }
	};
	struct wg_peer_change pc = { .allowed = &allowed, .n_allowed = 1 };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };

	wg_clients_public_key(clients, i, pc.public_key);
	assert_int_equal(wg_apply(wg, &c, now_ns, wall_ns(), NULL, NULL), 0);
}

static int setup(void **state)
{
	static const struct wg_ops ops = { keep, wake_nobody, lone_limit };
	struct wg_config cfg = { .ops = &ops, .n_workers = 1, .seed = 1 };
	struct wg_change c = { .has_private_key = true };
	struct wg_info info;

	n_sent = 0;
	now_ns = 1000 * NSEC_PER_SEC;
	assert_int_equal(crypto_init(NULL), 0);
	assert_int_equal(wg_create(&wg, &cfg), 0);
	assert_int_equal(wg_worker_create(&worker, wg, 0), 0);
	assert_int_equal(aead_create(&aead), 0);
	crypto_random(c.private_key, sizeof(c.private_key));
	assert_int_equal(wg_apply(wg, &c, now_ns, wall_ns(), NULL, NULL), 0);
	wg_set_up(wg, true, now_ns);
	wg_get(wg, &info);
	memcpy(server_key, info.public_key, sizeof(server_key));
	assert_int_equal(wg_clients_create(&clients, CLIENTS, server_key), 0);
	for (size_t i = 0; i < CLIENTS; i++)
		add_peer(i);
	return 0;
}

static int teardown(void **state)
{
	wg_clients_destroy(clients);
	aead_destroy(aead);
	wg_worker_destroy(worker);
	wg_destroy(wg);
	return 0;
}

static enum wg_drop give(size_t i, const uint8_t *msg, size_t len, bool is_loaded)
{
	struct wg_endpoint from = home(i);

	return wg_rx_handshake(wg, msg, len, &from, is_loaded, now_ns, wall_ns());
}

static enum wg_client_event take_sent(size_t i)
{
	enum wg_client_event e;
	size_t found;

	assert_int_equal(n_sent, 1);
	assert_true(wg_clients_find(clients, sent[0].data, sent[0].len, &found));
	assert_int_equal(found, i);
	e = wg_clients_take(clients, i, sent[0].data, sent[0].len, now_ns);
	n_sent = 0;
	return e;
}

static void handshake(size_t i)
{
	uint8_t msg[WGMSG_INITIATION_LEN];

	now_ns += NSEC_PER_SEC;
	wg_clients_initiate(clients, i, now_ns, wall_ns(), msg);
	assert_int_equal(give(i, msg, sizeof(msg), false), WG_OK);
	assert_int_equal(take_sent(i), WG_CLIENT_SESSION);
}

static void make_inner(struct wg_packet *pkt, uint8_t *room, size_t from)
{
	uint8_t *p = room + WG_HEAD;

	memset(room, 0xcc, ROOM);
	p[0] = 0x45;
	put_be16(p + 2, INNER_LEN);
	memcpy(p + 12, (uint8_t[8]){ 10, 0, 0, (uint8_t)from, 10, 9, 9, 9 }, 8);
	*pkt = (struct wg_packet){ .data = p, .len = INNER_LEN };
}

/* One packet of client i's own address; what the device says to it. */
static enum wg_drop send_inner(size_t i)
{
	struct wg_endpoint from = home(i);
	struct wg_packet pkt;
	uint8_t room[ROOM];

	make_inner(&pkt, room, i);
	assert_true(wg_clients_seal(clients, i, aead, &pkt, 1));
	assert_int_equal(wgmsg_gate(pkt.data, pkt.len), WGMSG_DATA);
	wg_open(worker, &pkt, 1, &from, now_ns);
	if (pkt.drop == WG_OK)
		assert_int_equal(pkt.len, INNER_LEN);
	return pkt.drop;
}

/* One packet to client i; false when the client cannot open it. */
static bool receive_inner(size_t i)
{
	uint8_t ip[4] = { 10, 0, 0, (uint8_t)i }, room[ROOM];
	struct wg_peer *peer = wg_route(worker, AF_INET, ip);
	struct wg_endpoint to;
	struct wg_packet pkt;
	size_t found;

	make_inner(&pkt, room, 200);
	assert_int_equal(wg_seal(worker, peer, &pkt, 1, now_ns, &to), WG_SEALED);
	assert_int_equal(to.remote[0], home(i).remote[0]);
	assert_true(wg_clients_find(clients, pkt.data, pkt.len, &found));
	assert_int_equal(found, i);
	if (!wg_clients_open(clients, i, aead, &pkt))
		return false;
	assert_ptr_equal(pkt.data, room + WG_HEAD);
	assert_int_equal(pkt.len, (INNER_LEN + 15) / 16 * 16);
	assert_int_equal(pkt.data[12 + 3], 200);
	return true;
}

static void test_both_ways(void **state)
{
	struct wg_packet pkt = { 0 };

	for (size_t i = 0; i < CLIENTS; i++) {
		assert_false(wg_clients_seal(clients, i, aead, &pkt, 1));
		handshake(i);
	}
	for (size_t i = 0; i < CLIENTS; i++) {
		assert_int_equal(send_inner(i), WG_OK);
		wg_poll(wg, now_ns, wall_ns()); /* confirmed now: it becomes current */
		assert_true(receive_inner(i));
		assert_int_equal(send_inner(i), WG_OK);
	}
}

/* More than one AEAD batch; counters go on from call to call. */
static void test_long_train(void **state)
{
	enum { N = 150 };
	static uint8_t room[N][ROOM];
	static struct wg_packet pkt[N];
	struct wg_endpoint from = home(1);

	handshake(1);
	for (unsigned round = 0; round < 2; round++) {
		for (size_t i = 0; i < N; i++)
			make_inner(&pkt[i], room[i], 1);
		assert_true(wg_clients_seal(clients, 1, aead, pkt, N));
		for (size_t i = 0; i < N; i++)
			assert_int_equal(get_le64(pkt[i].data + 8), round * N + i);
		assert_int_equal(room[0][WG_HEAD + 48 + 16], 0xcc); /* nothing beyond the tag */
		wg_open(worker, pkt, N, &from, now_ns);
		for (size_t i = 0; i < N; i++)
			assert_int_equal(pkt[i].drop, WG_OK);
	}
}

/* A keepalive confirms; the second session makes the first the previous one. */
static void test_rotation(void **state)
{
	struct wg_endpoint from = home(0);
	uint8_t key[WG_KEY_LEN], room[ROOM];
	struct wg_packet pkt;
	struct wg_peer *p;

	wg_clients_public_key(clients, 0, key);
	p = peer_find(wg, key);
	for (unsigned n = 1; n <= 2; n++) {
		uint32_t before = wg_clients_local_index(clients, 0);

		handshake(0);
		assert_int_not_equal(wg_clients_local_index(clients, 0), before);
		pkt = (struct wg_packet){ .data = room + WG_HEAD };
		assert_true(wg_clients_seal(clients, 0, aead, &pkt, 1));
		assert_int_equal(pkt.len, WGMSG_DATA_MIN);
		assert_int_equal(get_le64(pkt.data + 8), 0);
		wg_open(worker, &pkt, 1, &from, now_ns);
		assert_int_equal(pkt.drop, WG_OK);
		wg_poll(wg, now_ns, wall_ns());
		assert_non_null(atomic_load(&p->current));
		assert_int_equal(p->previous != NULL, n == 2);
		assert_true(receive_inner(0));
	}
}

/* Under load: a cookie comes, and the same initiation with it is taken. */
static void test_cookie(void **state)
{
	uint8_t first[WGMSG_INITIATION_LEN], again[WGMSG_INITIATION_LEN];

	assert_false(wg_clients_again(clients, 0, now_ns, again));
	wg_clients_initiate(clients, 0, now_ns, wall_ns(), first);
	assert_int_equal(give(0, first, sizeof(first), true), WG_DROP_MAC2);
	assert_int_equal(take_sent(0), WG_CLIENT_COOKIE);
	assert_true(wg_clients_again(clients, 0, now_ns, again));
	assert_memory_equal(again, first, sizeof(first) - 16);
	assert_memory_not_equal(again, first, sizeof(first));
	assert_int_equal(give(0, again, sizeof(again), true), WG_OK);
	assert_int_equal(take_sent(0), WG_CLIENT_SESSION);
	assert_false(wg_clients_again(clients, 0, now_ns, again));
	assert_int_equal(send_inner(0), WG_OK);

	/* The next handshake has the cookie from the start; after two minutes none. */
	now_ns += NSEC_PER_SEC;
	wg_clients_initiate(clients, 0, now_ns, wall_ns(), first);
	assert_int_equal(give(0, first, sizeof(first), true), WG_OK);
	assert_int_equal(take_sent(0), WG_CLIENT_SESSION);
	now_ns += 120 * NSEC_PER_SEC;
	wg_clients_initiate(clients, 0, now_ns, wall_ns(), first);
	assert_int_equal(give(0, first, sizeof(first), true), WG_DROP_MAC2);
}

static void test_refused_by_server(void **state)
{
	static const uint8_t low_order[WG_KEY_LEN];
	uint8_t msg[WGMSG_INITIATION_LEN], other[WG_KEY_LEN] = { 9 };
	struct wg_clients *c = NULL;

	assert_int_equal(wg_clients_create(&c, 0, server_key), -EINVAL);
	assert_int_equal(wg_clients_create(&c, WG_CLIENTS_MAX + 1, server_key), -EINVAL);
	assert_int_equal(wg_clients_create(&c, 1, low_order), -EINVAL);
	assert_null(c);
	wg_clients_destroy(NULL);

	/* Not a peer. */
	assert_int_equal(wg_clients_create(&c, 1, server_key), 0);
	wg_clients_initiate(c, 0, now_ns, wall_ns(), msg);
	assert_int_equal(give(0, msg, sizeof(msg), false), WG_DROP_UNKNOWN_PEER);
	wg_clients_destroy(c);

	/* Meant for another server. */
	assert_int_equal(wg_clients_create(&c, 1, other), 0);
	wg_clients_initiate(c, 0, now_ns, wall_ns(), msg);
	assert_int_equal(give(0, msg, sizeof(msg), false), WG_DROP_MAC1);
	wg_clients_destroy(c);
	assert_int_equal(n_sent, 0);
}

/* Nothing that is not the answer changes a client: the answer is still taken. */
static void test_refused_by_client(void **state)
{
	uint8_t msg[WGMSG_INITIATION_LEN], late[WGMSG_RESPONSE_LEN], bad[WGMSG_RESPONSE_LEN];
	size_t found;

	wg_clients_initiate(clients, 0, now_ns, wall_ns(), msg);
	assert_int_equal(give(0, msg, sizeof(msg), false), WG_OK);
	assert_int_equal(sent[0].len, sizeof(late));
	memcpy(late, sent[0].data, sizeof(late));
	n_sent = 0;

	now_ns += NSEC_PER_SEC;
	wg_clients_initiate(clients, 0, now_ns, wall_ns(), msg);
	assert_int_equal(
		wg_clients_take(clients, 0, late, sizeof(late), now_ns), WG_CLIENT_REFUSED);
	assert_int_equal(give(0, msg, sizeof(msg), false), WG_OK);
	for (size_t i = 0; i < sizeof(bad) - sizeof(struct wgmsg_macs); i++) {
		memcpy(bad, sent[0].data, sizeof(bad));
		bad[i] ^= 1;
		/* The server's index is not authenticated in a response. */
		if (i >= 4 && i < 8)
			continue;
		assert_int_equal(
			wg_clients_take(clients, 0, bad, sizeof(bad), now_ns), WG_CLIENT_REFUSED);
	}
	assert_int_equal(
		wg_clients_take(clients, 1, sent[0].data, sent[0].len, now_ns), WG_CLIENT_REFUSED);
	assert_int_equal(wg_clients_take(clients, 0, sent[0].data, sent[0].len - 1, now_ns),
		WG_CLIENT_REFUSED);
	assert_int_equal(get_le32(sent[0].data + 8), wg_clients_local_index(clients, 0));
	assert_int_equal(take_sent(0), WG_CLIENT_SESSION);
	assert_int_equal(send_inner(0), WG_OK);

	assert_false(wg_clients_find(clients, msg, sizeof(msg), &found)); /* an initiation */
	put_le32(late + 8, CLIENTS);
	assert_false(wg_clients_find(clients, late, sizeof(late), &found));
}

/* Data that is not the session's, or not authentic, does not open. */
static void test_open_refuses(void **state)
{
	struct wg_endpoint to;
	struct wg_packet pkt, copy;
	uint8_t ip[4] = { 10, 0, 0, 0 }, room[ROOM], kept[ROOM];

	make_inner(&pkt, room, 200);
	put_le32(room, WGMSG_DATA);
	pkt = (struct wg_packet){ .data = room, .len = sizeof(room) };
	assert_false(wg_clients_open(clients, 0, aead, &pkt)); /* no session */
	handshake(0);
	handshake(1);
	assert_int_equal(send_inner(0), WG_OK);
	wg_poll(wg, now_ns, wall_ns());
	make_inner(&pkt, room, 200);
	assert_int_equal(
		wg_seal(worker, wg_route(worker, AF_INET, ip), &pkt, 1, now_ns, &to), WG_SEALED);
	memcpy(kept, room, sizeof(kept));
	for (size_t i = 0; i < pkt.len; i++) {
		copy = pkt;
		room[i] ^= 1;
		assert_false(wg_clients_open(clients, 0, aead, &copy));
		memcpy(room, kept, sizeof(room));
	}
	copy = pkt;
	assert_false(wg_clients_open(clients, 1, aead, &copy));
	assert_true(wg_clients_open(clients, 0, aead, &copy));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_both_ways, setup, teardown),
		cmocka_unit_test_setup_teardown(test_long_train, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rotation, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cookie, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused_by_server, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused_by_client, setup, teardown),
		cmocka_unit_test_setup_teardown(test_open_refuses, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
