/* Two gateways of the engine `queue` in one process, joined by UDP on the loopback, with
 * socket pairs for TUNs and a real state machine each: numbered packets go both ways and
 * must come out in order, whatever is dropped between them. */
#include "gateway/queued.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum {
	N_PACKETS = 50000,
	N_CHANGES = 20, /* of sockets */
	WINDOW = 48, /* packets under way in each direction: fewer than any socket has room for */
	HDR = 20 + 8, /* IPv4 and UDP */
	PKT_MAX = 6000,
	STALL_MS = 200, /* so long nothing came: what was under way is lost */
	DEADLINE_S = 200,
};

struct node {
	uint8_t id; /* last byte of its inner address */
	struct wg *wg;
	struct queued *q;
	struct queue handshakes;
	int tun[2]; /* the gateway's end, ours */
	_Atomic int sock;
	bool is_v6;
	pthread_t slow;
	_Atomic bool is_stopping;
	/* The hook below waits for it. */
	pthread_mutex_t *gate;
	/* ours */
	uint32_t n_sent, n_got, n_lost;
};

/* ---- A node. */

static void op_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct node *n = ctx;
	struct udp u;

	udp_init(&u);
	u.data[n->is_v6][0] = n->sock;
	if (udp_send_one(&u, true, to, msg, len, 0))
		return; /* a lossy wire */
}

static void op_wake(void *ctx)
{
}

static const struct wg_ops ops = { op_send, op_wake, endpoint_limit_key };

static void *slow_main(void *arg)
{
	struct node *n = arg;
	struct handshake_item it;

	while (!atomic_load(&n->is_stopping)) {
		while (queue_pop(&n->handshakes, &it)) {
			enum wg_drop why = wg_rx_handshake(n->wg, it.msg, it.len, &it.from, false,
				clock_now_ns(), clock_wall_ns());

			if (why == WG_DROP_TYPE)
				abort();
		}
		wg_poll(n->wg, clock_now_ns(), clock_wall_ns());
		usleep(500);
	}
	return NULL;
}

static void handshake_ready(void *ctx)
{
	struct node *n = ctx;

	if (!n->gate)
		return;
	pthread_mutex_lock(n->gate);
	pthread_mutex_unlock(n->gate);
}

static int open_socket(bool is_v6)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), len = 1 << 20;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &len, sizeof(len));
	if (bind(fd, is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4,
		    is_v6 ? sizeof(v6) : sizeof(v4))) {
		close(fd);
		return -1;
	}
	return fd;
}

static void use_socket(struct node *n, int fd)
{
	int fds[2] = { n->is_v6 ? -1 : fd, n->is_v6 ? fd : -1 };

	queued_set_sockets(n->q, fds);
}

static void address_of(const struct node *n, struct wg_endpoint *out)
{
	struct sockaddr_in6 name; /* the port is in the same place in both families */
	socklen_t len = sizeof(name);
	struct ipport a = { .addr.family = n->is_v6 ? AF_INET6 : AF_INET };

	assert_int_equal(getsockname(n->sock, (struct sockaddr *)&name, &len), 0);
	a.port = be16toh(name.sin6_port);
	if (n->is_v6)
		a.addr.ip[15] = 1;
	else
		put_be32(a.addr.ip, INADDR_LOOPBACK);
	endpoint_from_addr(out, &a);
}

static void node_open(struct node *n, uint8_t id, unsigned n_workers, bool is_v6)
{
	struct wg_config cfg = { .ops = &ops, .ctx = n, .n_workers = n_workers, .seed = id };
	struct wg_change c = { .has_private_key = true };
	struct queued_config qc = { .n_workers = n_workers,
		.handshakes = &n->handshakes,
		.handshake_ready = handshake_ready,
		.ctx = n };
	int len = 1 << 20;

	*n = (struct node){ .id = id, .is_v6 = is_v6 };
	n->sock = open_socket(is_v6);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, n->tun), 0);
	assert_int_equal(fcntl(n->tun[0], F_SETFL, O_NONBLOCK), 0);
	for (int i = 0; i < 2; i++)
		setsockopt(n->tun[i], SOL_SOCKET, SO_SNDBUF, &len, sizeof(len));
	assert_int_equal(queue_init(&n->handshakes, 256, sizeof(struct handshake_item)), 0);
	assert_int_equal(wg_create(&n->wg, &cfg), 0);
	wg_set_mtu(n->wg, PKT_MAX);
	memset(c.private_key, id + 40, WG_KEY_LEN);
	assert_int_equal(wg_apply(n->wg, &c, clock_now_ns(), clock_wall_ns(), NULL, NULL), 0);
	wg_set_up(n->wg, true, clock_now_ns());
	qc.wg = n->wg;
	qc.tun_fd = n->tun[0];
	assert_int_equal(queued_create(&n->q, &qc), 0);
	use_socket(n, n->sock);
	assert_int_equal(queued_start(n->q), 0);
}

static void node_start_slow(struct node *n)
{
	assert_int_equal(pthread_create(&n->slow, NULL, slow_main, n), 0);
}

static void node_close(struct node *n)
{
	queued_stop(n->q);
	if (n->slow) {
		atomic_store(&n->is_stopping, true);
		pthread_join(n->slow, NULL);
	}
	queued_destroy(n->q);
	wg_destroy(n->wg);
	queue_fini(&n->handshakes);
	close(n->tun[0]);
	close(n->tun[1]);
	if (n->sock >= 0)
		close(n->sock);
}

static void add_peer(struct node *n, const struct node *peer)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change pc = { .has_endpoint = true, .allowed = &allowed, .n_allowed = 1 };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };
	struct wg_info info;

	wg_get(peer->wg, &info);
	memcpy(pc.public_key, info.public_key, WG_KEY_LEN);
	put_be32(allowed.net.addr.ip, 0x0a000000U + peer->id);
	address_of(peer, &pc.endpoint);
	assert_int_equal(wg_apply(n->wg, &c, clock_now_ns(), clock_wall_ns(), NULL, NULL), 0);
}

/* ---- Numbered packets. */

static size_t packet_len(uint32_t seq)
{
	static const uint16_t odd[] = { HDR + 4, 1420, 1919, 1920, 1921, 4000, PKT_MAX };

	return seq % 50 < ARRAY_LEN(odd) ? odd[seq % 50] : HDR + 4 + seq * 97 % 1300;
}

static size_t make_packet(uint8_t *pkt, uint8_t from, uint8_t to, uint32_t seq)
{
	size_t len = packet_len(seq);

	memset(pkt, (uint8_t)seq, len);
	pkt[0] = 0x45;
	put_be16(pkt + 2, (uint16_t)len);
	pkt[1] = 0;
	pkt[6] = pkt[7] = 0;
	pkt[9] = IPPROTO_UDP;
	put_be32(pkt + 12, 0x0a000000U + from);
	put_be32(pkt + 16, 0x0a000000U + to);
	put_be16(pkt + 24, (uint16_t)(len - 20));
	put_be32(pkt + HDR, seq);
	return len;
}

/* Into the TUN; every seventh has one before it that must be dropped. */
static void send_next(struct node *from, const struct node *to)
{
	uint8_t pkt[PKT_MAX];
	size_t len;

	if (from->n_sent % 7 == 3) {
		len = make_packet(pkt, from->id, 77, 1); /* no route */
		if (from->n_sent % 2)
			len = 11; /* no IP header */
		assert_int_equal(send(from->tun[1], pkt, len, 0), len);
	}
	len = make_packet(pkt, from->id, to->id, from->n_sent++);
	assert_int_equal(send(from->tun[1], pkt, len, 0), len);
}

/* All that has come out of the TUN: in order, unchanged; with gaps where lossy. */
static size_t take_all(const struct node *from, struct node *to, bool is_lossy)
{
	uint8_t pkt[PKT_MAX], want[PKT_MAX];
	size_t n = 0;
	ssize_t len;

	while ((len = recv(to->tun[1], pkt, sizeof(pkt), MSG_DONTWAIT)) > 0) {
		uint32_t seq = get_be32(pkt + HDR);

		assert_true(len >= HDR + 4);
		assert_int_equal(len, make_packet(want, from->id, to->id, seq));
		assert_memory_equal(pkt, want, (size_t)len);
		if (is_lossy)
			assert_true(seq >= to->n_got);
		else
			assert_int_equal(seq, to->n_got);
		to->n_lost += seq - to->n_got;
		to->n_got = seq + 1;
		n++;
	}
	return n;
}

/* Both ways at once, until each side has sent so many and they have come. */
static void exchange(struct node *a, struct node *b, uint32_t until, bool is_lossy)
{
	uint64_t heard_ns = clock_now_ns(), end_ns = heard_ns + DEADLINE_S * NSEC_PER_SEC;

	while (a->n_got < until || b->n_got < until) {
		struct pollfd fds[2] = { { .fd = a->tun[1], .events = POLLIN },
			{ .fd = b->tun[1], .events = POLLIN } };
		uint64_t now = clock_now_ns();

		for (uint32_t *got = &b->n_got; a->n_sent < until && a->n_sent - *got < WINDOW;)
			send_next(a, b);
		for (uint32_t *got = &a->n_got; b->n_sent < until && b->n_sent - *got < WINDOW;)
			send_next(b, a);
		poll(fds, 2, STALL_MS);
		if (take_all(a, b, is_lossy) + take_all(b, a, is_lossy))
			heard_ns = now;
		assert_true(now < end_ns);
		if (!is_lossy || now - heard_ns < STALL_MS * NSEC_PER_MSEC)
			continue;
		b->n_lost += a->n_sent - b->n_got;
		b->n_got = a->n_sent;
		a->n_lost += b->n_sent - a->n_got;
		a->n_got = b->n_sent;
		heard_ns = now;
	}
}

static void pair_open(struct node n[2], unsigned n_workers, bool is_v6)
{
	node_open(&n[0], 1, n_workers, is_v6);
	node_open(&n[1], 2, n_workers, is_v6);
	for (int i = 0; i < 2; i++)
		add_peer(&n[i], &n[1 - i]);
	for (int i = 0; i < 2; i++)
		node_start_slow(&n[i]);
	/* One alone waits for the handshake; then one the other way. */
	send_next(&n[0], &n[1]);
	while (n[1].n_got < 1) {
		poll(&(struct pollfd){ .fd = n[1].tun[1], .events = POLLIN }, 1, -1);
		take_all(&n[0], &n[1], false);
	}
	exchange(&n[0], &n[1], 1, false);
}

/* ---- The tests. */

static void in_order(unsigned n_workers, bool is_v6)
{
	uint64_t drops[WORKER_DROP_N] = { 0 }, wg[WG_DROP_N];
	static struct node n[2];
	uint64_t start;

	pair_open(n, n_workers, is_v6);
	start = clock_now_ns();
	exchange(&n[0], &n[1], N_PACKETS, false);
	printf("%u workers: %.2f us a packet\n", n_workers,
		(double)(clock_now_ns() - start) / 1e3 / (2 * N_PACKETS));
	queued_drops(n[0].q, drops);
	wg_drops(n[0].wg, wg);
	/* Of every 14 one has no route and one no header. */
	assert_in_range(wg[WG_DROP_NO_ROUTE], N_PACKETS / 14 - 1, N_PACKETS / 14 + 1);
	assert_in_range(drops[WORKER_DROP_TUN_FRAME], N_PACKETS / 14 - 1, N_PACKETS / 14 + 1);
	drops[WORKER_DROP_TUN_FRAME] = 0;
	for (unsigned i = 0; i < WORKER_DROP_N; i++)
		assert_int_equal(drops[i], 0);
	node_close(&n[0]);
	node_close(&n[1]);
}

static void test_one_worker(void **state)
{
	in_order(1, false);
}

static void test_two_workers(void **state)
{
	in_order(2, false);
}

static void test_four_workers(void **state)
{
	in_order(4, false);
}

static void test_ipv6(void **state)
{
	int fd = open_socket(true);

	if (fd < 0) {
		print_message("skipped: no IPv6 on the loopback\n");
		skip();
	}
	close(fd);
	in_order(2, true);
}

/* The old socket is closed as soon as set_sockets returns, under traffic. */
static void test_sockets_change(void **state)
{
	static struct node n[2];

	pair_open(n, 2, false);
	for (uint32_t i = 1; i <= N_CHANGES; i++) {
		struct node *moving = &n[i % 2];
		int old = moving->sock, new = open_socket(false);

		for (int k = 0; k < WINDOW / 2; k++) {
			send_next(&n[0], &n[1]);
			send_next(&n[1], &n[0]);
		}
		if (i % 5 == 0)
			use_socket(moving, -1);
		moving->sock = new;
		use_socket(moving, new);
		close(old);
		exchange(&n[0], &n[1], i * 500, true);
	}
	printf("%u and %u of %u lost\n", n[0].n_lost, n[1].n_lost, n[0].n_sent);
	/* Most have come, after each change. */
	assert_true(n[0].n_lost < n[0].n_sent / 2);
	assert_true(n[1].n_lost < n[1].n_sent / 2);
	node_close(&n[0]);
	node_close(&n[1]);
}

static uint64_t n_full(const struct node *n)
{
	uint64_t drops[WORKER_DROP_N] = { 0 };

	queued_drops(n->q, drops);
	return drops[WORKER_DROP_PACKET_QUEUE];
}

static void wait_until_full(const struct node *n, uint64_t drops)
{
	uint64_t end = clock_now_ns() + DEADLINE_S * NSEC_PER_SEC;

	while (n_full(n) < drops && clock_now_ns() < end)
		usleep(1000);
	assert_int_equal(n_full(n), drops);
}

/* Make the only worker wait at the gate: a handshake message leads it there. */
static void hold_worker(struct node *n)
{
	uint8_t msg[WGMSG_INITIATION_LEN] = { WGMSG_INITIATION };
	struct sockaddr_in6 name;
	socklen_t len = sizeof(name);

	pthread_mutex_lock(n->gate);
	assert_int_equal(getsockname(n->sock, (struct sockaddr *)&name, &len), 0);
	assert_int_equal(
		sendto(n->sock, msg, sizeof(msg), 0, (struct sockaddr *)&name, len), sizeof(msg));
	while (!queue_len(&n->handshakes))
		usleep(100);
}

static void send_frames(struct node *n, unsigned count)
{
	uint8_t pkt[PKT_MAX];

	for (unsigned i = 0; i < count; i++) {
		size_t len = make_packet(pkt, n->id, 77, i);

		assert_int_equal(send(n->tun[1], pkt, len, 0), len);
	}
}

static void wait_until_dropped(const struct node *n, uint64_t no_route)
{
	uint64_t end = clock_now_ns() + DEADLINE_S * NSEC_PER_SEC, drops[WG_DROP_N];

	do {
		usleep(100);
		wg_drops(n->wg, drops);
	} while (drops[WG_DROP_NO_ROUTE] < no_route && clock_now_ns() < end);
	assert_int_equal(drops[WG_DROP_NO_ROUTE], no_route);
}

/* What has no room is dropped and counted, and the queue goes on afterwards. */
static void test_full(void **state)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	static struct node n;

	node_open(&n, 1, 1, false);
	n.gate = &gate;
	hold_worker(&n);
	send_frames(&n, QUEUED_PACKETS + 500);
	wait_until_full(&n, 500);
	pthread_mutex_unlock(&gate);
	wait_until_dropped(&n, QUEUED_PACKETS);
	assert_int_equal(n_full(&n), 500);
	node_close(&n);
}

/* The queue fills and runs empty again and again: the heap keeps its pages. */
static void test_heap_is_kept(void **state)
{
	enum { TURNS = 20, FAULTS_MAX = QUEUED_PACKETS };
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	struct rusage before, after;
	static struct node n;

	if (IS_SANITIZED) {
		print_message("skipped: a sanitizer has a heap of its own\n");
		skip();
	}
	node_open(&n, 1, 1, false);
	n.gate = &gate;
	for (uint64_t i = 0; i < TURNS; i++) {
		struct handshake_item it;

		if (i == 1) /* what the first turn took is needed */
			assert_int_equal(getrusage(RUSAGE_SELF, &before), 0);
		hold_worker(&n);
		send_frames(&n, QUEUED_PACKETS + 1);
		wait_until_full(&n, i + 1);
		pthread_mutex_unlock(&gate);
		wait_until_dropped(&n, i * (QUEUED_PACKETS + 2) + QUEUED_PACKETS);
		/* The last room that was taken, at the heap's end, goes too. */
		send_frames(&n, 2);
		wait_until_dropped(&n, (i + 1) * (QUEUED_PACKETS + 2));
		assert_true(queue_pop(&n.handshakes, &it));
	}
	assert_int_equal(getrusage(RUSAGE_SELF, &after), 0);
	assert_in_range(after.ru_minflt - before.ru_minflt, 0, FAULTS_MAX);
	node_close(&n);
}

static void *stop(void *arg)
{
	queued_stop(arg);
	return NULL;
}

/* What waits then is freed (see the address sanitizer), and no thread stays. */
static void test_stop_while_full(void **state)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t stopper;
	static struct node n;

	node_open(&n, 1, 1, false);
	n.gate = &gate;
	hold_worker(&n);
	send_frames(&n, QUEUED_PACKETS + 100);
	wait_until_full(&n, 100);
	assert_int_equal(pthread_create(&stopper, NULL, stop, n.q), 0);
	usleep(20000);
	pthread_mutex_unlock(&gate);
	pthread_join(stopper, NULL);
	node_close(&n);
}

static void test_bad_config(void **state)
{
	struct queued_config cfg = { .tun_fd = -1, .n_workers = 0 };
	struct queued *q;

	assert_int_equal(queued_create(&q, &cfg), -EINVAL);
	cfg.n_workers = WG_WORKERS_MAX + 1;
	assert_int_equal(queued_create(&q, &cfg), -EINVAL);
	cfg.n_workers = 1;
	assert_int_equal(queued_create(&q, &cfg), -EBADF);
	queued_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: the heap learns to keep more when a large piece is freed. */
		cmocka_unit_test(test_heap_is_kept),
		cmocka_unit_test(test_one_worker),
		cmocka_unit_test(test_two_workers),
		cmocka_unit_test(test_four_workers),
		cmocka_unit_test(test_ipv6),
		cmocka_unit_test(test_sockets_change),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_stop_while_full),
		cmocka_unit_test(test_bad_config),
	};

	if (crypto_init(NULL))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
