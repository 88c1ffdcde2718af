/* Real sockets on the loopback. */
#include "link/link.h"
#include "wire/wgmsg.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { SEG = 1000, N_SEGS = 20 };

static struct udp a, b;
static uint8_t train[N_SEGS * SEG];

static int setup(void **state)
{
	for (size_t i = 0; i < sizeof(train); i++)
		train[i] = (uint8_t)(i % SEG ? i * 7 : WGMSG_DATA);
	return udp_open(&a, &(struct udp_config){ 0, 0, OFFLOAD_ALL, 1, { -1, -1 } }) ||
			udp_open(&b, &(struct udp_config){ 0, 0, OFFLOAD_ALL, 1, { -1, -1 } })
		? -1
		: 0;
}

static int teardown(void **state)
{
	udp_close(&a);
	udp_close(&b);
	return 0;
}

static struct wg_endpoint to_port(unsigned family, uint16_t port)
{
	struct ipport addr = { .port = port };
	struct wg_endpoint e;

	if (family) {
		addr.addr.family = AF_INET6;
		addr.addr.ip[15] = 1;
	} else {
		addr.addr = (struct ipaddr){ AF_INET, { 127, 0, 0, 1 } };
	}
	endpoint_from_addr(&e, &addr);
	return e;
}

/* Receive one message as an engine does. False: nothing within ms. */
static bool receive(int fd, struct udp_rx *out, uint8_t *buf, size_t cap, size_t *len, int ms)
{
	static struct sockaddr_storage name;
	static union {
		struct cmsghdr align;
		uint8_t bytes[IO_CONTROL_LEN];
	} control;
	static struct iovec iov;
	static struct msghdr h;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct io_rx rx = { .data = buf, .hdr = &h };
	ssize_t n;

	if (poll(&p, 1, ms) != 1)
		return false;
	iov = (struct iovec){ buf, cap };
	h = (struct msghdr){ .msg_name = &name,
		.msg_namelen = sizeof(name),
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control) };
	n = recvmsg(fd, &h, MSG_DONTWAIT);
	assert_true(n >= 0);
	rx.len = (uint32_t)n;
	*len = (size_t)n;
	return udp_rx_parse(out, &rx);
}

static void same_port(void **state)
{
	struct sockaddr_storage addr;
	socklen_t len;

	assert_int_not_equal(a.port, 0);
	assert_int_not_equal(a.port, b.port);
	for (unsigned i = 0; i < 4; i++) {
		int fd = i < 2 ? a.data[i][0] : a.handshake[i - 2];

		if (fd < 0)
			continue;
		len = sizeof(addr);
		assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
		assert_int_equal(be16toh(((struct sockaddr_in *)&addr)->sin_port), a.port);
	}
	assert_true(a.data[0][0] >= 0);
}

/* A second gateway of the same user must not join in. */
static void exclusive(void **state)
{
	struct udp other;
	pid_t pid;
	int status;

	assert_int_equal(
		udp_open(&other, &(struct udp_config){ a.port, 0, OFFLOAD_ALL, 1, { -1, -1 } }),
		-EADDRINUSE);
	assert_int_equal(other.data[0][0], -1);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(udp_open(&other,
			      &(struct udp_config){ a.port, 0, OFFLOAD_ALL, 1, { -1, -1 } }) ==
					-EADDRINUSE
				? 0
				: 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* and the port is free again afterwards */
	uint16_t port = b.port;

	udp_close(&b);
	assert_int_equal(
		udp_open(&b, &(struct udp_config){ port, 0, OFFLOAD_ALL, 1, { -1, -1 } }), 0);
	assert_int_equal(b.port, port);
}

/* The port is taken in IPv6 only: nothing is left behind in IPv4. */
static void one_family_taken(void **state)
{
	struct sockaddr_in6 addr = { .sin6_family = AF_INET6 };
	int fd = socket(AF_INET6, SOCK_DGRAM, 0), one = 1;
	socklen_t len = sizeof(addr);
	struct udp other;
	uint16_t port;

	if (fd < 0) {
		print_message("skipped: no IPv6\n");
		skip();
	}
	assert_int_equal(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	port = be16toh(addr.sin6_port);
	assert_int_equal(
		udp_open(&other, &(struct udp_config){ port, 0, OFFLOAD_ALL, 1, { -1, -1 } }),
		-EADDRINUSE);
	close(fd);
	assert_int_equal(
		udp_open(&other, &(struct udp_config){ port, 0, OFFLOAD_ALL, 1, { -1, -1 } }), 0);
	udp_close(&other);
}

/* Types 1..3 to the handshake socket, all else to data. */
static void sorting(void **state)
{
	uint8_t msg[256] = { 0 }, buf[2048];
	struct udp_rx rx;
	size_t len;

	for (unsigned family = 0; family < 2; family++) {
		struct wg_endpoint to = to_port(family, b.port);

		if (a.data[family][0] < 0)
			continue;
		assert_true(b.handshake[family] >= 0);
		for (unsigned type = 0; type < 256; type++) {
			bool is_handshake = type >= 1 && type <= 3;
			int fd = is_handshake ? b.handshake[family] : b.data[family][0];
			int other = is_handshake ? b.data[family][0] : b.handshake[family];

			msg[0] = (uint8_t)type;
			assert_int_equal(udp_send_one(&a, type & 1, &to, msg, 148, 0), 0);
			assert_true(receive(fd, &rx, buf, sizeof(buf), &len, 1000));
			assert_int_equal(len, 148);
			assert_int_equal(buf[0], type);
			assert_false(receive(other, &rx, buf, sizeof(buf), &len, 0));
		}
		/* no first byte at all */
		assert_int_equal(udp_send_one(&a, false, &to, msg, 0, 0), 0);
		assert_true(receive(b.data[family][0], &rx, buf, sizeof(buf), &len, 1000));
		assert_int_equal(len, 0);
	}
}

/* What arrives says from where, to which of our addresses and with which TOS; the
 * answer comes from that address. */
static void sticky_source(void **state)
{
	uint8_t msg[100] = { WGMSG_DATA }, buf[2048];
	struct wg_endpoint to = to_port(0, b.port), back;
	struct ipport addr;
	struct udp_rx rx;
	size_t len;

	endpoint_to_addr(&addr, &to);
	addr.addr.ip[3] = 77; /* 127.0.0.77 */
	endpoint_from_addr(&to, &addr);
	assert_int_equal(udp_send_one(&a, false, &to, msg, sizeof(msg), 0xb8), 0);
	assert_true(receive(b.data[0][0], &rx, buf, sizeof(buf), &len, 1000));
	assert_int_equal(rx.tos, 0xb8);
	assert_int_equal(rx.seg_len, sizeof(msg));
	endpoint_to_addr(&addr, &rx.from);
	assert_int_equal(addr.port, a.port);
	back = rx.from;
	assert_int_equal(udp_send_one(&b, false, &back, msg, sizeof(msg), 0), 0);
	assert_true(receive(a.data[0][0], &rx, buf, sizeof(buf), &len, 1000));
	endpoint_to_addr(&addr, &rx.from);
	assert_int_equal(addr.addr.ip[3], 77);
	assert_int_equal(addr.port, b.port);
	assert_int_equal(rx.tos, 0);
	/* A source that is not ours: without it rather than not at all. */
	back.local[4] = 9;
	assert_int_equal(udp_send_one(&b, true, &back, msg, sizeof(msg), 0), 0);
	assert_true(receive(a.data[0][0], &rx, buf, sizeof(buf), &len, 1000));
	endpoint_to_addr(&addr, &rx.from);
	assert_int_equal(addr.addr.ip[0], 127);
}

static void sticky_source_v6(void **state)
{
	uint8_t msg[100] = { WGMSG_DATA }, buf[2048];
	struct wg_endpoint to = to_port(1, b.port);
	static const uint8_t zero[24];
	struct udp_rx rx;
	size_t len;

	if (a.data[1][0] < 0) {
		print_message("skipped: no IPv6\n");
		skip();
	}
	assert_int_equal(udp_send_one(&a, false, &to, msg, sizeof(msg), 0x2e), 0);
	assert_true(receive(b.data[1][0], &rx, buf, sizeof(buf), &len, 1000));
	assert_int_equal(rx.tos, 0x2e);
	assert_memory_not_equal(rx.from.local, zero, sizeof(zero));
	assert_int_equal(udp_send_one(&b, false, &rx.from, msg, sizeof(msg), 0), 0);
	assert_true(receive(a.data[1][0], &rx, buf, sizeof(buf), &len, 1000));
	rx.from.local[5] = 9;
	assert_int_equal(udp_send_one(&a, false, &rx.from, msg, sizeof(msg), 0), 0);
	assert_true(receive(b.data[1][0], &rx, buf, sizeof(buf), &len, 1000));
}

/* A train arrives as a train, or at least whole. */
static void real_train(void **state)
{
	static uint8_t buf[65536];
	struct udp_paths paths = { 0 };
	struct iovec iov = { train, sizeof(train) - 300 };
	struct engine *e;
	struct udp_tx mem;
	struct io_tx tx;

	assert_int_equal(epoll_ops.open(&e, &(struct engine_config){ 0 }), 0);
	for (unsigned family = 0; family < 2; family++) {
		struct wg_endpoint to = to_port(family, b.port);
		size_t got = 0, len, messages = 0;
		struct udp_rx rx;

		if (a.data[family][0] < 0)
			continue;
		udp_tx_fill(&tx, &mem, &to, &iov, SEG, 0, 0);
		assert_int_equal(udp_send(&epoll_ops, e, a.data[family][0], &tx, 1, &paths), 0);
		while (got < iov.iov_len) {
			assert_true(receive(b.data[family][0], &rx, buf, sizeof(buf), &len, 1000));
			assert_memory_equal(buf, train + got, len);
			assert_int_equal(rx.seg_len, len < SEG ? len : SEG);
			got += len;
			messages++;
		}
		assert_int_equal(got, iov.iov_len);
		if ((a.offloads & b.offloads) == (OFFLOAD_UDP_GSO | OFFLOAD_UDP_GRO))
			assert_int_equal(messages, 1);
	}
	assert_int_equal(paths.n_used, 0);
	epoll_ops.close(e);
}

/* A datagram longer than the buffer is no message. */
static void truncated(void **state)
{
	uint8_t buf[50];
	struct wg_endpoint to = to_port(0, b.port);
	struct udp_rx rx;
	size_t len;

	assert_int_equal(udp_send_one(&a, false, &to, train, 100, 0), 0);
	assert_false(receive(b.data[0][0], &rx, buf, sizeof(buf), &len, 1000));
	assert_int_equal(len, sizeof(buf));
}

static void offloads_forbidden(void **state)
{
	struct udp u;

	assert_int_equal(udp_open(&u, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }), 0);
	assert_int_equal(u.offloads, 0);
	udp_close(&u);
	assert_int_equal(
		udp_open(&u, &(struct udp_config){ 0, 0, OFFLOAD_UDP_GSO, 1, { -1, -1 } }), 0);
	assert_int_equal(u.offloads & ~(unsigned)OFFLOAD_UDP_GSO, 0);
	udp_close(&u);
	udp_close(&u); /* twice is fine */
}

static void mark(void **state)
{
	uint32_t got;
	socklen_t len = sizeof(got);
	int ret = udp_set_mark(&a, 0x1234);

	if (ret == -EPERM) {
		print_message("skipped: no CAP_NET_ADMIN\n");
		skip();
	}
	assert_int_equal(ret, 0);
	for (unsigned i = 0; i < 2; i++) {
		if (a.handshake[i] < 0)
			continue;
		assert_int_equal(getsockopt(a.handshake[i], SOL_SOCKET, SO_MARK, &got, &len), 0);
		assert_int_equal(got, 0x1234);
	}
	assert_int_equal(getsockopt(a.data[0][0], SOL_SOCKET, SO_MARK, &got, &len), 0);
	assert_int_equal(got, 0x1234);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(same_port),
		TEST(exclusive),
		TEST(one_family_taken),
		TEST(sorting),
		TEST(sticky_source),
		TEST(sticky_source_v6),
		TEST(real_train),
		TEST(truncated),
		TEST(offloads_forbidden),
		TEST(mark),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
