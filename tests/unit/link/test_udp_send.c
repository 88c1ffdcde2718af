/* What udp_send() does when the kernel refuses: with an engine that refuses on
 * command, and with a real path that is too narrow. */
#include "link/link.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cmocka.h>

enum { SEG = 1452, N_SEGS = 20, LOG = 4096 };

static const struct udp_config one = { .allowed = OFFLOAD_ALL, .n = 1, .steer = { -1, -1 } };
static uint8_t data[N_SEGS * SEG];

/* ---- An engine with a kernel of our making. */

struct engine {
	int train_err; /* of trains with longer segments than mtu */
	unsigned mtu;
	int source_err; /* of anything with a source address */
	int single_err; /* of single datagrams */
	unsigned calls, refused;
	struct {
		const uint8_t *data;
		uint32_t len, seg_len;
		bool has_source, has_tos, has_hops;
	} sent[LOG];
	unsigned n_sent;
};

static struct engine fake;

static size_t fake_send(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	size_t n_ok = 0;

	e->calls++;
	for (size_t i = 0; i < n; i++) {
		struct msghdr *h = &tx[i].hdr;
		bool has_source = false, has_tos = false, has_hops = false;
		uint16_t seg_len = 0;

		for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
			has_source |= c->cmsg_type == IP_PKTINFO && c->cmsg_level == IPPROTO_IP;
			has_source |= c->cmsg_type == IPV6_PKTINFO && c->cmsg_level == IPPROTO_IPV6;
			has_tos |= c->cmsg_type == IP_TOS && c->cmsg_level == IPPROTO_IP;
			has_hops |= c->cmsg_type == IP_TTL && c->cmsg_level == IPPROTO_IP;
			if (c->cmsg_type == UDP_SEGMENT && c->cmsg_level == IPPROTO_UDP)
				memcpy(&seg_len, CMSG_DATA(c), 2);
		}
		tx[i].err = 0;
		if (seg_len && seg_len > e->mtu)
			tx[i].err = e->train_err;
		if (!seg_len && e->single_err)
			tx[i].err = e->single_err;
		if (has_source && e->source_err)
			tx[i].err = e->source_err;
		if (tx[i].err) {
			e->refused++;
			continue;
		}
		assert_true(e->n_sent < LOG);
		e->sent[e->n_sent].data = h->msg_iov[0].iov_base;
		e->sent[e->n_sent].len = (uint32_t)h->msg_iov[0].iov_len;
		e->sent[e->n_sent].seg_len = seg_len;
		e->sent[e->n_sent].has_source = has_source;
		e->sent[e->n_sent].has_hops = has_hops;
		e->sent[e->n_sent++].has_tos = has_tos;
		n_ok++;
	}
	return n_ok;
}

static const struct engine_ops fake_ops = { .name = "fake", .send = fake_send };

/* ---- Trains to be sent. */

static struct udp_paths paths;
static struct iovec iov[IO_BATCH_MAX];
static struct udp_tx mem[IO_BATCH_MAX];
static struct io_tx tx[IO_BATCH_MAX];

static struct wg_endpoint peer(uint8_t last, bool has_local)
{
	struct ipport addr = { .addr = { AF_INET, { 127, 0, 0, last } }, .port = 9 };
	struct wg_endpoint e;

	endpoint_from_addr(&e, &addr);
	if (has_local)
		memcpy(e.local + 4, "\x7f\0\0\x01", 4);
	return e;
}

static void fill(size_t i, const struct wg_endpoint *to, size_t len, uint32_t seg_len)
{
	iov[i] = (struct iovec){ data, len };
	udp_tx_fill(&tx[i], &mem[i], to, &iov[i], seg_len, 0xb8, 40);
}

static size_t send_n(size_t n)
{
	fake.n_sent = 0;
	fake.calls = 0;
	fake.refused = 0;
	return udp_send(&fake_ops, &fake, 3, tx, n, &paths);
}

static int setup(void **state)
{
	memset(&fake, 0, sizeof(fake));
	memset(&paths, 0, sizeof(paths));
	fake.mtu = 65535;
	return 0;
}

/* The train at data of len bytes went as single datagrams from fake.sent[first] on. */
static void expect_singles(unsigned first, size_t len, bool has_source)
{
	size_t pos = 0;

	for (unsigned i = first; pos < len; i++) {
		assert_true(i < fake.n_sent);
		assert_ptr_equal(fake.sent[i].data, data + pos);
		assert_int_equal(fake.sent[i].seg_len, 0);
		assert_int_equal(fake.sent[i].has_source, has_source);
		assert_true(fake.sent[i].has_tos);
		assert_true(fake.sent[i].has_hops);
		assert_int_equal(fake.sent[i].len, len - pos < SEG ? len - pos : SEG);
		pos += fake.sent[i].len;
	}
}

static void nothing_refused(void **state)
{
	struct wg_endpoint to = peer(1, true);

	for (size_t i = 0; i < 8; i++)
		fill(i, &to, sizeof(data), SEG);
	assert_int_equal(send_n(8), 0);
	assert_int_equal(fake.calls, 1);
	assert_int_equal(fake.n_sent, 8);
	assert_int_equal(fake.sent[0].seg_len, SEG);
	assert_true(fake.sent[0].has_source);
	/* one segment only is no train */
	fill(0, &to, SEG, SEG);
	assert_int_equal(send_n(1), 0);
	assert_int_equal(fake.sent[0].seg_len, 0);
	assert_int_equal(send_n(0), 0);
}

static void narrow_path(void **state)
{
	static const int errs[] = { -EMSGSIZE, -EINVAL, -EIO };
	struct wg_endpoint to = peer(1, true), other = peer(2, true);

	for (size_t k = 0; k < ARRAY_LEN(errs); k++) {
		setup(NULL);
		fake.train_err = errs[k];
		fake.mtu = 1280;
		fill(0, &to, sizeof(data) - 700, SEG);
		assert_int_equal(send_n(1), 0);
		assert_int_equal(fake.n_sent, N_SEGS);
		expect_singles(0, sizeof(data) - 700, true);
		assert_int_equal(fake.refused, 1);
		assert_int_equal(paths.lost, errs[k] == -EIO ? OFFLOAD_UDP_GSO : 0);

		/* The next ones do not ask, until the memory runs out; order is kept. */
		for (unsigned i = 0; i < UDP_PATH_TRAINS; i++) {
			fill(0, &other, 1000, 500);
			fill(1, &to, sizeof(data), SEG);
			assert_int_equal(send_n(2), 0);
			assert_int_equal(fake.refused, 0);
			assert_int_equal(fake.n_sent, 1 + N_SEGS);
			assert_int_equal(fake.sent[0].seg_len, 500);
			expect_singles(1, sizeof(data), true);
		}
		assert_int_equal(paths.n_used, 0);
		/* The path has become wide again. */
		fake.mtu = 65535;
		fill(0, &to, sizeof(data), SEG);
		assert_int_equal(send_n(1), 0);
		assert_int_equal(fake.n_sent, 1);
		assert_int_equal(fake.sent[0].seg_len, SEG);
	}
}

/* Shorter segments still go as trains on a narrow path. */
static void short_segments(void **state)
{
	struct wg_endpoint to = peer(1, false);

	fake.train_err = -EMSGSIZE;
	fake.mtu = 1280;
	fill(0, &to, sizeof(data), SEG);
	assert_int_equal(send_n(1), 0);
	assert_int_equal(paths.n_used, 1);
	fill(0, &to, 5000, 1000);
	assert_int_equal(send_n(1), 0);
	assert_int_equal(fake.n_sent, 1);
	assert_int_equal(fake.sent[0].seg_len, 1000);
}

static void lost_source(void **state)
{
	struct wg_endpoint to = peer(1, true), moved = peer(1, true);

	fake.source_err = -EINVAL;
	fill(0, &to, sizeof(data), SEG);
	assert_int_equal(send_n(1), 0);
	assert_int_equal(fake.n_sent, 1);
	assert_int_equal(fake.sent[0].seg_len, SEG);
	assert_false(fake.sent[0].has_source);
	assert_true(fake.sent[0].has_tos);
	/* remembered for this source, not for another */
	fill(0, &to, sizeof(data), SEG);
	assert_int_equal(send_n(1), 0);
	assert_int_equal(fake.refused, 0);
	assert_false(fake.sent[0].has_source);
	moved.local[7] = 5;
	fake.source_err = 0;
	fill(0, &moved, sizeof(data), SEG);
	assert_int_equal(send_n(1), 0);
	assert_true(fake.sent[0].has_source);
	/* a single datagram too */
	setup(NULL);
	fake.source_err = -EINVAL;
	fill(0, &to, 100, 0);
	assert_int_equal(send_n(1), 0);
	assert_int_equal(fake.n_sent, 1);
	assert_false(fake.sent[0].has_source);
}

static void lost_source_and_narrow(void **state)
{
	struct wg_endpoint to = peer(1, true);

	fake.source_err = -EINVAL;
	fake.train_err = -EINVAL;
	fake.mtu = 1280;
	for (int round = 0; round < 3; round++) {
		fill(0, &to, sizeof(data), SEG);
		assert_int_equal(send_n(1), 0);
		assert_int_equal(fake.n_sent, N_SEGS);
		expect_singles(0, sizeof(data), false);
		assert_int_equal(fake.refused, round ? 0 : 3);
	}
}

/* The source goes after the path was found to take no trains. */
static void narrow_then_lost_source(void **state)
{
	static const int errs[] = { -EINVAL, -EADDRNOTAVAIL, -ENETUNREACH, -EHOSTUNREACH };
	struct wg_endpoint to = peer(1, true);

	for (size_t k = 0; k < ARRAY_LEN(errs); k++) {
		setup(NULL);
		fake.train_err = -EMSGSIZE;
		fake.mtu = 1280;
		fill(0, &to, sizeof(data), SEG);
		assert_int_equal(send_n(1), 0);
		expect_singles(0, sizeof(data), true);
		fake.source_err = errs[k];
		for (int round = 0; round < 3; round++) {
			fill(0, &to, sizeof(data), SEG);
			assert_int_equal(send_n(1), 0);
			assert_int_equal(fake.n_sent, N_SEGS);
			expect_singles(0, sizeof(data), false);
			/* the first datagram asked, once: then the path is remembered anew */
			assert_int_equal(fake.refused, round ? 0 : 1);
		}
		assert_int_equal(paths.n_used, 1);
	}
}

/* What cannot be helped is counted, datagram by datagram, and not retried for ever. */
static void hopeless(void **state)
{
	struct wg_endpoint to = peer(1, true), good = peer(2, false);

	fake.train_err = -EIO;
	fake.single_err = -EPERM; /* a firewall */
	fake.mtu = 1280;
	fill(0, &to, sizeof(data), SEG);
	fill(1, &good, 4000, 1000);
	assert_int_equal(send_n(2), N_SEGS);
	assert_int_equal(fake.n_sent, 1);
	assert_true(fake.calls <= 4);
	fake.single_err = -EINVAL;
	fake.source_err = -EINVAL;
	fill(0, &to, sizeof(data), SEG);
	assert_int_equal(send_n(1), N_SEGS);
	fake.train_err = -ENOBUFS;
	fill(0, &good, sizeof(data), SEG);
	assert_int_equal(send_n(1), N_SEGS);
	assert_int_equal(fake.calls, 1);
}

/* More narrow paths than the memory has slots: slower, still right. */
static void many_paths(void **state)
{
	fake.train_err = -EMSGSIZE;
	fake.mtu = 1280;
	for (int round = 0; round < 50; round++) {
		for (size_t i = 0; i < 64; i++) {
			struct wg_endpoint to = peer((uint8_t)(1 + i), i & 1);

			fill(i, &to, sizeof(data), SEG);
		}
		assert_int_equal(send_n(64), 0);
		assert_int_equal(fake.n_sent, 64 * N_SEGS);
		assert_true(paths.n_used <= UDP_PATHS);
		assert_true(!round || fake.refused < 64);
	}
}

/* ---- A real path of 1280 bytes: the loopback of a namespace of our own. */

static bool make_narrow_loopback(void)
{
	struct ifreq ifr = { .ifr_name = "lo" };
	int fd;
	bool is_made;

	if (unshare(CLONE_NEWNET))
		return false;
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	ifr.ifr_flags = IFF_UP;
	is_made = fd >= 0 && !ioctl(fd, SIOCSIFFLAGS, &ifr);
	ifr.ifr_mtu = 1280;
	is_made = is_made && !ioctl(fd, SIOCSIFMTU, &ifr);
	close(fd);
	return is_made;
}

static void real_narrow_path(void **state)
{
	static uint8_t buf[65536];
	struct udp a, b;
	struct engine *e;

	if (!make_narrow_loopback()) {
		print_message("skipped: needs CAP_SYS_ADMIN for a network namespace\n");
		skip();
	}
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i % SEG ? i * 11 : 4);
	assert_int_equal(udp_open(&a, &one), 0);
	assert_int_equal(udp_open(&b, &one), 0);
	assert_int_equal(epoll_ops.open((void *)&e, &(struct engine_config){ 0 }), 0);
	for (int family = 0; family < 2; family++) {
		struct ipport addr = { .addr = { AF_INET, { 127, 0, 0, 1 } }, .port = b.port };
		struct wg_endpoint to;

		if (family)
			addr.addr = (struct ipaddr){ AF_INET6, { [15] = 1 } };
		if (a.data[family][0] < 0)
			continue;
		memset(&paths, 0, sizeof(paths));
		endpoint_from_addr(&to, &addr);
		for (int round = 0; round < 3; round++) {
			fill(0, &to, sizeof(data), SEG);
			assert_int_equal(
				udp_send(&epoll_ops, (void *)e, a.data[family][0], tx, 1, &paths),
				0);
			for (size_t i = 0; i < N_SEGS; i++) {
				assert_int_equal(
					recv(b.data[family][0], buf, sizeof(buf), MSG_DONTWAIT),
					SEG);
				assert_memory_equal(buf, data + i * SEG, SEG);
			}
			if (a.offloads & OFFLOAD_UDP_GSO)
				assert_int_equal(paths.n_used, 1);
		}
	}
	epoll_ops.close((void *)e);
	udp_close(&a);
	udp_close(&b);
}

#define TEST(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nothing_refused),
		TEST(narrow_path),
		TEST(short_segments),
		TEST(lost_source),
		TEST(lost_source_and_narrow),
		TEST(narrow_then_lost_source),
		TEST(hopeless),
		TEST(many_paths),
		TEST(real_narrow_path),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
