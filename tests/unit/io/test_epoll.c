/* What is epoll's own policy: test_engines.c has what every engine promises. */
#include "io/io.h"
#include "base/clock.h"
#include "base/rcu.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cmocka.h>

enum { QUICK_MS = 2000 };

static const struct engine_config plain;
static const struct engine_ops *ops;
static struct engine *e;
static struct io_batch batch;

static int setup(void **state)
{
	return engine_pick(&ops, "epoll", &plain) || ops->open(&e, &plain);
}

static int teardown(void **state)
{
	ops->close(e);
	return 0;
}

static void wait_quick(void)
{
	assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
}

/* A UDP socket on loopback. */
static int udp_open(struct sockaddr_in *addr)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(*addr);

	assert_true(fd >= 0);
	*addr = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	assert_int_equal(bind(fd, (struct sockaddr *)addr, sizeof(*addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)addr, &len), 0);
	return fd;
}

/* Frames keep their borders, as a TUN's do. */
static void frames_open(int fd[2])
{
	assert_int_equal(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
}

static void tx_set(
	struct io_tx *tx, struct iovec *iov, const void *p, size_t len, struct sockaddr_in *to)
{
	*iov = (struct iovec){ (void *)p, len };
	*tx = (struct io_tx){ .hdr = { .msg_iov = iov,
				      .msg_iovlen = 1,
				      .msg_name = to,
				      .msg_namelen = to ? sizeof(*to) : 0 },
		.err = 77 };
}

/* A wake-up may be taken while events are asked for only in passing, after a run of
 * batches that came unasked; it must end the wait all the same. */
static void test_wake_after_batches(void **state)
{
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);

	assert_int_equal(ops->add(e, &(struct io_channel){ fb, IO_DGRAM, 1, NULL }), 0);
	for (int n_batches = 1; n_batches <= 20; n_batches++) {
		uint64_t start;

		for (int i = 0; i < n_batches; i++) {
			assert_int_equal(
				sendto(fa, "z", 1, 0, (struct sockaddr *)&b, sizeof(b)), 1);
			wait_quick();
			assert_int_equal(batch.n, 1);
		}
		ops->wake(e);
		start = clock_now_ns();
		wait_quick();
		assert_int_equal(batch.n, 0);
		assert_true(clock_now_ns() - start < QUICK_MS * NSEC_PER_MSEC / 2);
	}
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

static void test_datagrams(void **state)
{
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);
	struct io_tx tx[100];
	struct iovec iov[100];
	uint8_t text[100];
	size_t n = 0;

	assert_int_equal(ops->add(e, &(struct io_channel){ fb, IO_DGRAM, 31, NULL }), 0);
	for (size_t i = 0; i < 100; i++) {
		text[i] = (uint8_t)i;
		tx_set(&tx[i], &iov[i], &text[i], 1, &b);
	}
	assert_int_equal(ops->send(e, fa, IO_DGRAM, tx, 100), 100);
	for (size_t i = 0; i < 100; i++)
		assert_int_equal(tx[i].err, 0);
	while (n < 100) {
		wait_quick();
		assert_true(batch.n > 0 && batch.n <= IO_BATCH_MAX);
		for (size_t i = 0; i < batch.n; i++, n++) {
			struct io_rx *rx = &batch.rx[i];

			assert_int_equal(rx->tag, 31);
			assert_int_equal(rx->len, 1);
			assert_int_equal(rx->data[0], n);
			assert_non_null(rx->hdr);
			assert_memory_equal(rx->hdr->msg_name, &a, sizeof(a));
			memset(rx->data, 0xee, IO_BUF_LEN); /* ours to change */
		}
	}
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	assert_int_equal(batch.n, 0);
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

/* An empty datagram is a message, and one of the greatest length is whole. */
static void test_lengths(void **state)
{
	static uint8_t big[65507];
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);
	struct io_tx tx[2];
	struct iovec iov[2];
	size_t n = 0;

	memset(big, 0x5a, sizeof(big));
	assert_int_equal(ops->add(e, &(struct io_channel){ fb, IO_DGRAM, 1, NULL }), 0);
	tx_set(&tx[0], &iov[0], big, 0, &b);
	tx_set(&tx[1], &iov[1], big, sizeof(big), &b);
	assert_int_equal(ops->send(e, fa, IO_DGRAM, tx, 2), 2);
	while (n < 2) {
		wait_quick();
		assert_true(batch.n > 0);
		for (size_t i = 0; i < batch.n; i++, n++)
			assert_int_equal(batch.rx[i].len, n ? sizeof(big) : 0);
	}
	assert_memory_equal(batch.rx[batch.n - 1].data, big, sizeof(big));
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

static void test_frames(void **state)
{
	static uint8_t frame[200], big[60000];
	struct iovec iov[3];
	struct io_tx tx[3];
	int fd[2];

	frames_open(fd);
	assert_int_equal(ops->add(e, &(struct io_channel){ fd[0], IO_FRAME, 7, NULL }), 0);
	memset(frame, 1, sizeof(frame));
	memset(big, 2, sizeof(big));
	tx_set(&tx[0], &iov[0], frame, sizeof(frame), NULL);
	tx_set(&tx[1], &iov[1], big, sizeof(big), NULL);
	/* A frame of two pieces. */
	iov[2] = (struct iovec){ frame, 10 };
	struct iovec pieces[2] = { iov[2], { big, 20 } };
	tx[2] = (struct io_tx){ .hdr = { .msg_iov = pieces, .msg_iovlen = 2 } };
	assert_int_equal(ops->send(e, fd[1], IO_FRAME, tx, 3), 3);
	wait_quick();
	assert_int_equal(batch.n, 3);
	assert_int_equal(batch.rx[0].len, sizeof(frame));
	assert_int_equal(batch.rx[1].len, sizeof(big));
	assert_memory_equal(batch.rx[1].data, big, sizeof(big));
	assert_int_equal(batch.rx[2].len, 30);
	assert_int_equal(batch.rx[2].data[9], 1);
	assert_int_equal(batch.rx[2].data[10], 2);
	assert_null(batch.rx[0].hdr);
	assert_int_equal(batch.rx[0].tag, 7);
	assert_int_equal(ops->drop(e, fd[0]), 0);
	close(fd[0]);
	close(fd[1]);
}

/* One message among good ones is refused: the others go out, in order. */
static void test_send_errors(void **state)
{
	static uint8_t huge[70000];
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b), fd[2];
	struct iovec iov[4];
	struct io_tx tx[4];

	assert_int_equal(ops->add(e, &(struct io_channel){ fb, IO_DGRAM, 1, NULL }), 0);
	for (int i = 0; i < 4; i++)
		tx_set(&tx[i], &iov[i], &huge[i], i == 1 ? sizeof(huge) : 1 + (size_t)i, &b);
	assert_int_equal(ops->send(e, fa, IO_DGRAM, tx, 4), 3);
	assert_int_equal(tx[0].err, 0);
	assert_int_equal(tx[1].err, -EMSGSIZE);
	assert_int_equal(tx[2].err, 0);
	assert_int_equal(tx[3].err, 0);
	wait_quick();
	assert_int_equal(batch.n, 3);
	assert_int_equal(batch.rx[1].len, 3);
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
	/* A frame to nobody. */
	frames_open(fd);
	close(fd[0]);
	tx_set(&tx[0], &iov[0], huge, 10, NULL);
	assert_int_equal(ops->send(e, fd[1], IO_FRAME, tx, 1), 0);
	assert_int_equal(tx[0].err, -EPIPE);
	close(fd[1]);
}

/* An ICMP "port unreachable" is an error of the socket; what came after it is read. */
static void test_icmp_refused(void **state)
{
	struct sockaddr_in a, b, gone;
	int fa = udp_open(&a), fb = udp_open(&b), fd = udp_open(&gone);

	close(fd);
	assert_int_equal(ops->add(e, &(struct io_channel){ fa, IO_DGRAM, 5, NULL }), 0);
	assert_int_equal(connect(fa, (struct sockaddr *)&gone, sizeof(gone)), 0);
	assert_int_equal(send(fa, "x", 1, 0), 1);
	/* The error is reported once and is no message. */
	wait_quick();
	assert_int_equal(batch.n, 0);
	assert_int_equal(connect(fa, (struct sockaddr *)&b, sizeof(b)), 0);
	assert_int_equal(sendto(fb, "yy", 2, 0, (struct sockaddr *)&a, sizeof(a)), 2);
	wait_quick();
	assert_int_equal(batch.n, 1);
	assert_int_equal(batch.rx[0].len, 2);
	assert_int_equal(ops->drop(e, fa), 0);
	close(fa);
	close(fb);
}

/* A channel that always fills the batch; the other is read within a few. */
static void test_fairness(void **state)
{
	struct sockaddr_in a, b;
	int busy[2], fa = udp_open(&a), fb = udp_open(&b);
	unsigned n_rounds = 0, n_heard = 0;

	frames_open(busy);
	assert_int_equal(ops->add(e, &(struct io_channel){ busy[0], IO_FRAME, 1, NULL }), 0);
	assert_int_equal(ops->add(e, &(struct io_channel){ fb, IO_DGRAM, 2, NULL }), 0);
	for (; n_rounds < 200; n_rounds++) {
		bool is_heard = false;

		while (write(busy[1], "frame", 5) == 5)
			;
		assert_int_equal(sendto(fa, "z", 1, 0, (struct sockaddr *)&b, sizeof(b)), 1);
		wait_quick();
		assert_true(batch.n > 0);
		for (size_t i = 0; i < batch.n; i++)
			is_heard |= batch.rx[i].tag == 2;
		n_heard += is_heard;
	}
	/* Once it is known to be awake, every second batch has it. */
	assert_true(n_heard >= 200 / 2 - 16);
	assert_int_equal(ops->drop(e, busy[0]), 0);
	assert_int_equal(ops->drop(e, fb), 0);
	close(busy[0]);
	close(busy[1]);
	close(fa);
	close(fb);
}

static void test_channel_limit(void **state)
{
	int fd[IO_CHANNELS_MAX + 1][2];
	unsigned seen = 0;

	for (int i = 0; i <= IO_CHANNELS_MAX; i++) {
		frames_open(fd[i]);
		assert_int_equal(
			ops->add(e, &(struct io_channel){ fd[i][0], IO_FRAME, (uint32_t)i, NULL }),
			i < IO_CHANNELS_MAX ? 0 : -ENOSPC);
	}
	/* Each has its turn, together or one by one. */
	for (int i = 0; i < IO_CHANNELS_MAX; i++)
		assert_int_equal(write(fd[i][1], "abc", 3), 3);
	for (size_t n = 0; n < IO_CHANNELS_MAX; n += batch.n) {
		wait_quick();
		assert_true(batch.n > 0);
		for (size_t i = 0; i < batch.n; i++)
			seen |= 1u << batch.rx[i].tag;
	}
	assert_int_equal(seen, (1u << IO_CHANNELS_MAX) - 1);
	assert_int_equal(ops->drop(e, fd[3][0]), 0);
	assert_int_equal(ops->drop(e, fd[3][0]), -ENOENT);
	assert_int_equal(ops->drop(e, -1), -ENOENT);
	/* The dropped one is silent, its place is free. */
	assert_int_equal(write(fd[3][1], "abc", 3), 3);
	assert_int_equal(ops->wait(e, &batch, 20 * NSEC_PER_MSEC), 0);
	assert_int_equal(batch.n, 0);
	assert_int_equal(
		ops->add(e, &(struct io_channel){ fd[IO_CHANNELS_MAX][0], IO_FRAME, 30, NULL }), 0);
	assert_int_equal(write(fd[IO_CHANNELS_MAX][1], "abcd", 4), 4);
	wait_quick();
	assert_int_equal(batch.n, 1);
	assert_int_equal(batch.rx[0].tag, 30);
	for (int i = 0; i <= IO_CHANNELS_MAX; i++) {
		ops->drop(e, fd[i][0]);
		close(fd[i][0]);
		close(fd[i][1]);
	}
}

/* The interface is deleted while it is a channel: that ends one wait at most, and
 * the others of the worker last as long as before. Runs last, since it leaves us in
 * an empty network namespace. */
static void test_tun_gone(void **state)
{
	struct ifreq ifr = { .ifr_name = "gone0", .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd, other[2];

	if (unshare(CLONE_NEWNET)) {
		print_message("skipped: needs CAP_SYS_ADMIN for a network namespace\n");
		skip();
	}
	fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
	frames_open(other);
	assert_int_equal(ops->add(e, &(struct io_channel){ fd, IO_FRAME, 1, NULL }), 0);
	assert_int_equal(ops->add(e, &(struct io_channel){ other[0], IO_FRAME, 2, NULL }), 0);
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	assert_int_equal(system("ip link del gone0"), 0);
	wait_quick();
	assert_int_equal(batch.n, 0);
	for (int i = 0; i < 3; i++) {
		uint64_t start = clock_now_ns();

		assert_int_equal(ops->wait(e, &batch, 50 * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.n, 0);
		assert_true(clock_now_ns() - start >= 50 * NSEC_PER_MSEC);
	}
	assert_int_equal(ops->drop(e, fd), -ENOENT);
	assert_int_equal(write(other[1], "abc", 3), 3);
	wait_quick();
	assert_int_equal(batch.n, 1);
	assert_int_equal(batch.rx[0].tag, 2);
	assert_int_equal(ops->drop(e, other[0]), 0);
	close(fd);
	close(other[0]);
	close(other[1]);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_wake_after_batches),
		TEST(test_datagrams),
		TEST(test_lengths),
		TEST(test_frames),
		TEST(test_send_errors),
		TEST(test_icmp_refused),
		TEST(test_fairness),
		TEST(test_channel_limit),
		TEST(test_tun_gone),
	};
#undef TEST
	int ret;

	rcu_thread_init();
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	rcu_thread_fini();
	return ret;
}
