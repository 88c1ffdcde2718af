/* What every engine promises (io/io.h), over loopback sockets, socket pairs and a TUN. The
 * same tests for each row of engines and settings. */
#include "io/io.h"
#include "base/clock.h"
#include "base/rcu.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { QUICK_MS = 5000, TEXT_LEN = 8, MSGS = 128 };

static const struct row {
	const char *name;
	const char *engine;
	struct engine_config cfg;
} rows[] = {
	{ "epoll", "epoll", { 0 } },
	{ "channels", "channels", { 0 } },
	{ "blocking", "blocking", { 0 } },
	{ "uring", "uring", { 0 } },
	{ "uring, tiny ring", "uring", { .ring_entries = 2 } },
	{ "uring, tiny ring, 2 buffers", "uring", { .ring_entries = 2, .buffers = 2 } },
	{ "uring, 4 buffers", "uring", { .ring_entries = 4, .buffers = 4 } },
	/* 8 places in the completion ring for 256 messages: it overflows. */
	{ "uring, CQ overflow", "uring", { .ring_entries = 2, .buffers = 256 } },
	{ "uring, SQPOLL", "uring", { .sqpoll_idle_ms = 5 } },
	{ "uring, SQPOLL, tiny ring, 4 buffers", "uring",
		{ .sqpoll_idle_ms = 1, .ring_entries = 2, .buffers = 4 } },
};
static const struct row *row;

static const struct engine_ops *ops;
static struct engine *e;
static struct io_batch batch;

/* What was read, put by. */
static struct msg {
	uint32_t len, tag;
	uint8_t text[TEXT_LEN];
} got[MSGS];
static size_t n_got;

static int setup(void **state)
{
	return engine_pick(&ops, row->engine, &row->cfg) || ops->open(&e, &row->cfg);
}

static int teardown(void **state)
{
	ops->close(e);
	return 0;
}

static bool is_one_channel(void)
{
	return ops->traits & ENGINE_ONE_CHANNEL;
}

static void add(int fd, enum io_kind kind, uint32_t tag)
{
	assert_int_equal(ops->add(e, &(struct io_channel){ fd, kind, tag, NULL }), 0);
}

static void put_by(const struct io_rx *rx)
{
	struct msg *m = &got[n_got++];

	assert_true(n_got <= MSGS);
	*m = (struct msg){ .len = rx->len, .tag = rx->tag };
	memcpy(m->text, rx->data, rx->len < TEXT_LEN ? rx->len : TEXT_LEN);
}

/* Wait until n messages have been read; batch is the last of them. */
static void collect(size_t n)
{
	uint64_t start = clock_now_ns();

	n_got = 0;
	while (n_got < n && clock_now_ns() - start < QUICK_MS * NSEC_PER_MSEC) {
		assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
		assert_true(batch.n <= IO_BATCH_MAX);
		for (size_t i = 0; i < batch.n; i++)
			put_by(&batch.rx[i]);
	}
	assert_int_equal(n_got, n);
}

/* Nothing comes. */
static void assert_silent(void)
{
	uint64_t start = clock_now_ns();

	do {
		assert_int_equal(ops->wait(e, &batch, 20 * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.n, 0);
		assert_int_equal(batch.lost, 0);
	} while (clock_now_ns() - start < 20 * NSEC_PER_MSEC);
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

static void close_both(int fd[2])
{
	close(fd[0]);
	close(fd[1]);
}

static void send_to(int fd, const void *p, size_t len, const struct sockaddr_in *to)
{
	assert_int_equal(sendto(fd, p, len, 0, (const struct sockaddr *)to, sizeof(*to)), len);
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

static void test_time_out(void **state)
{
	uint64_t start = clock_now_ns();

	assert_int_equal(ops->wait(e, &batch, 30 * NSEC_PER_MSEC), 0);
	assert_int_equal(batch.n, 0);
	assert_true(clock_now_ns() - start >= 30 * NSEC_PER_MSEC);
	start = clock_now_ns();
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	assert_true(clock_now_ns() - start < NSEC_PER_SEC);
}

static void *wake_later(void *arg)
{
	usleep(50 * 1000);
	ops->wake(arg);
	return NULL;
}

static void test_wake(void **state)
{
	/* One that is longer than any of the kernel's clocks, too. */
	static const int64_t timeouts[] = { -1, INT64_MAX };

	for (size_t i = 0; i < ARRAY_LEN(timeouts); i++) {
		pthread_t t;

		assert_int_equal(pthread_create(&t, NULL, wake_later, e), 0);
		assert_int_equal(ops->wait(e, &batch, timeouts[i]), 0);
		assert_int_equal(batch.n, 0);
		pthread_join(t, NULL);
	}
	/* Before the wait, twice: it ends at once, and the next one does not. */
	ops->wake(e);
	ops->wake(e);
	assert_int_equal(ops->wait(e, &batch, -1), 0);
	test_time_out(state);
}

/* A wake-up may be noticed in passing, after a run of batches that came
 * unasked; it must end the wait all the same. */
static void test_wake_after_batches(void **state)
{
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);

	add(fb, IO_DGRAM, 1);
	for (int n_batches = 1; n_batches <= 20; n_batches++) {
		uint64_t start;

		for (int i = 0; i < n_batches; i++) {
			send_to(fa, "z", 1, &b);
			collect(1);
		}
		ops->wake(e);
		start = clock_now_ns();
		assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.n, 0);
		assert_true(clock_now_ns() - start < QUICK_MS * NSEC_PER_MSEC / 2);
	}
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

/* From a descriptor that is no channel, and from one that is. */
static void test_datagrams(void **state)
{
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);
	struct io_tx tx[100];
	struct iovec iov[100];
	uint8_t text[100];

	add(fb, IO_DGRAM, 31);
	for (int round = 0; round < 4; round++) {
		struct sockaddr_in *from = round % 2 ? &b : &a;
		size_t n = 0;

		for (size_t i = 0; i < 100; i++) {
			text[i] = (uint8_t)i;
			tx_set(&tx[i], &iov[i], &text[i], 1, &b);
		}
		assert_int_equal(ops->send(e, round % 2 ? fb : fa, IO_DGRAM, tx, 100), 100);
		for (size_t i = 0; i < 100; i++)
			assert_int_equal(tx[i].err, 0);
		while (n < 100) {
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
			assert_true(batch.n <= IO_BATCH_MAX);
			for (size_t i = 0; i < batch.n; i++, n++) {
				struct io_rx *rx = &batch.rx[i];

				assert_int_equal(rx->tag, 31);
				assert_int_equal(rx->len, 1);
				assert_int_equal(rx->data[0], n);
				assert_non_null(rx->hdr);
				assert_int_equal(rx->hdr->msg_namelen, sizeof(*from));
				assert_memory_equal(rx->hdr->msg_name, from, sizeof(*from));
				assert_int_equal(rx->hdr->msg_flags & (MSG_TRUNC | MSG_CTRUNC), 0);
				memset(rx->data, 0xee, IO_BUF_LEN); /* ours to change */
			}
		}
	}
	assert_silent();
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

/* An empty datagram is a message, and one of the greatest length is whole. */
static void test_lengths(void **state)
{
	static uint8_t big[65507];
	static const size_t lens[] = { 0, sizeof(big), 0, 0, 1 };
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);

	memset(big, 0x5a, sizeof(big));
	add(fb, IO_DGRAM, 1);
	for (size_t i = 0; i < ARRAY_LEN(lens); i++)
		send_to(fa, big, lens[i], &b);
	for (size_t n = 0; n < ARRAY_LEN(lens);) {
		assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
		for (size_t i = 0; i < batch.n; i++, n++) {
			assert_int_equal(batch.rx[i].len, lens[n]);
			assert_memory_equal(batch.rx[i].data, big, lens[n]);
		}
	}
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

/* Ancillary data is handed on, and what there is no room for is said to be missing. */
static void test_control(void **state)
{
	static const int few[] = { IP_PKTINFO, IP_RECVTOS },
			 more[] = { IP_RECVTTL, IP_RECVORIGDSTADDR, IP_CHECKSUM };
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b), one = 1, tos = 3;
	struct cmsghdr *c;
	bool has_tos = false, has_info = false;

	for (size_t i = 0; i < ARRAY_LEN(few); i++)
		assert_int_equal(setsockopt(fb, IPPROTO_IP, few[i], &one, sizeof(one)), 0);
	assert_int_equal(setsockopt(fa, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)), 0);
	add(fb, IO_DGRAM, 1);
	send_to(fa, "abc", 3, &b);
	collect(1);
	assert_int_equal(batch.rx[0].hdr->msg_flags & MSG_CTRUNC, 0);
	for (c = CMSG_FIRSTHDR(batch.rx[0].hdr); c; c = CMSG_NXTHDR(batch.rx[0].hdr, c)) {
		struct in_pktinfo *info = (void *)CMSG_DATA(c);

		if (c->cmsg_type == IP_TOS)
			has_tos = *CMSG_DATA(c) == tos;
		if (c->cmsg_type == IP_PKTINFO)
			has_info = info->ipi_addr.s_addr == htonl(INADDR_LOOPBACK);
	}
	assert_true(has_tos);
	assert_true(has_info);
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		assert_int_equal(setsockopt(fb, IPPROTO_IP, more[i], &one, sizeof(one)), 0);
	assert_int_equal(setsockopt(fb, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one)), 0);
	assert_int_equal(setsockopt(fb, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof(one)), 0);
	send_to(fa, "abcd", 4, &b);
	collect(1);
	assert_int_equal(got[0].len, 4);
	assert_true(batch.rx[0].hdr->msg_flags & MSG_CTRUNC);
	assert_true(batch.rx[0].hdr->msg_controllen <= IO_CONTROL_LEN);
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
}

static void test_frames(void **state)
{
	static uint8_t frame[200], big[60000];
	struct iovec iov[2], pieces[2] = { { frame, 10 }, { big, 20 } };
	struct io_tx tx[3];
	int fd[2];

	frames_open(fd);
	add(fd[0], IO_FRAME, 7);
	memset(frame, 1, sizeof(frame));
	memset(big, 2, sizeof(big));
	for (int round = 0; round < 3; round++) {
		static const size_t lens[] = { sizeof(frame), sizeof(big), 30 };

		tx_set(&tx[0], &iov[0], frame, sizeof(frame), NULL);
		tx_set(&tx[1], &iov[1], big, sizeof(big), NULL);
		tx[2] = (struct io_tx){ .hdr = { .msg_iov = pieces, .msg_iovlen = 2 } };
		assert_int_equal(ops->send(e, fd[1], IO_FRAME, tx, 3), 3);
		for (size_t n = 0; n < 3;) {
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
			for (size_t i = 0; i < batch.n; i++, n++) {
				const struct io_rx *rx = &batch.rx[i];

				assert_int_equal(rx->len, lens[n]);
				assert_int_equal(rx->tag, 7);
				assert_null(rx->hdr);
				if (n == 1)
					assert_memory_equal(rx->data, big, sizeof(big));
				else
					assert_memory_equal(rx->data, frame, 10);
				if (n == 2)
					assert_memory_equal(rx->data + 10, big, 20);
			}
		}
	}
	/* The other way: written by the channel. */
	tx_set(&tx[0], &iov[0], frame, 1, NULL);
	tx_set(&tx[1], &iov[1], frame, 2, NULL);
	assert_int_equal(ops->send(e, fd[0], IO_FRAME, tx, 2), 2);
	assert_int_equal(read(fd[1], big, sizeof(big)), 1);
	assert_int_equal(read(fd[1], big, sizeof(big)), 2);
	assert_int_equal(ops->drop(e, fd[0]), 0);
	close_both(fd);
}

/* One message among good ones is refused: the others go out, in order. */
static void test_send_errors(void **state)
{
	static uint8_t huge[70000];
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b), fd[2];
	struct iovec iov[4];
	struct io_tx tx[4];

	add(fb, IO_DGRAM, 1);
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	for (int round = 0; round < 4; round++) {
		/* Too long at first, then with an array that the kernel does not take at all. */
		bool is_odd = round >= 2;

		for (int i = 0; i < 4; i++)
			tx_set(&tx[i], &iov[i], &huge[i],
				i == 1 && !is_odd ? sizeof(huge) : 1 + (size_t)i, &b);
		if (is_odd)
			tx[1].hdr.msg_iovlen = 1 << 20;
		assert_int_equal(ops->send(e, round % 2 ? fb : fa, IO_DGRAM, tx, 4), 3);
		assert_int_equal(tx[0].err, 0);
		assert_int_equal(tx[1].err, -EMSGSIZE);
		assert_int_equal(tx[2].err, 0);
		assert_int_equal(tx[3].err, 0);
		collect(3);
		assert_int_equal(got[0].len, 1);
		assert_int_equal(got[1].len, 3);
		assert_int_equal(got[2].len, 4);
	}
	assert_int_equal(ops->drop(e, fb), 0);
	close(fa);
	close(fb);
	/* A frame to nobody, from a stranger and from a channel. */
	frames_open(fd);
	add(fd[1], IO_FRAME, 2);
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	close(fd[0]);
	tx_set(&tx[0], &iov[0], huge, 10, NULL);
	assert_int_equal(ops->send(e, fd[1], IO_FRAME, tx, 1), 0);
	assert_int_equal(tx[0].err, -EPIPE);
	ops->drop(e, fd[1]);
	assert_int_equal(ops->send(e, fd[1], IO_FRAME, tx, 1), 0);
	assert_int_equal(tx[0].err, -EPIPE);
	close(fd[1]);
}

/* An ICMP "port unreachable" is an error of the socket; what came after it is read, however
 * often that happens, and also where nobody reads the socket's queue of errors. */
static void test_icmp_refused(void **state)
{
	struct sockaddr_in a, b, gone;
	int fa = udp_open(&a), fb = udp_open(&b), fd = udp_open(&gone), one = 1;

	close(fd);
	add(fa, IO_DGRAM, 5);
	for (int i = 0; i < 20; i++) {
		if (i == 10)
			assert_int_equal(
				setsockopt(fa, IPPROTO_IP, IP_RECVERR, &one, sizeof(one)), 0);
		assert_int_equal(connect(fa, (struct sockaddr *)&gone, sizeof(gone)), 0);
		assert_int_equal(send(fa, "x", 1, 0), 1);
		/* The error is no message. */
		assert_int_equal(ops->wait(e, &batch, 20 * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.n, 0);
		assert_int_equal(batch.lost, 0);
		assert_int_equal(connect(fa, (struct sockaddr *)&b, sizeof(b)), 0);
		send_to(fb, "yy", 2, &a);
		collect(1);
		assert_int_equal(got[0].len, 2);
	}
	assert_int_equal(ops->drop(e, fa), 0);
	close(fa);
	close(fb);
}

/* ---- Order. */

enum { STREAM = 3000 };

struct stream {
	int fd;
	bool is_slow;
	unsigned n; /* messages that were read */
	bool is_broken;
};

/* Writes numbered messages of all lengths. */
static void *write_stream(void *arg)
{
	static uint8_t text[4096];
	struct stream *s = arg;

	for (uint32_t i = 0; i < STREAM; i++) {
		memcpy(text, &i, sizeof(i));
		while (send(s->fd, text, 4 + i * 7 % 4000, 0) < 0)
			sched_yield();
		if (s->is_slow && i % 256 == 0)
			usleep(2000);
	}
	return NULL;
}

/* Reads numbered messages until they end; each is greater than the one before. */
static void *read_stream(void *arg)
{
	struct stream *s = arg;
	uint32_t last = 0, i = 0;
	static uint8_t text[4096];

	while (i != UINT32_MAX && recv(s->fd, text, sizeof(text), 0) >= (ssize_t)sizeof(i)) {
		memcpy(&i, text, sizeof(i));
		s->is_broken |= s->n > 0 && i <= last;
		last = i;
		s->n++;
		if (s->is_slow && i % 64 == 0)
			usleep(1000);
	}
	return NULL;
}

/* Of descriptors for frames the engine's end does not block, as a TUN. */
static void pair_open(enum io_kind kind, int fd[2])
{
	bool is_frame = kind == IO_FRAME;

	assert_int_equal(socketpair(AF_UNIX, is_frame ? SOCK_SEQPACKET : SOCK_DGRAM, 0, fd), 0);
	if (is_frame)
		assert_int_equal(fcntl(fd[0], F_SETFL, fcntl(fd[0], F_GETFL) | O_NONBLOCK), 0);
}

/* Everything that came through a channel, in order, whatever the batches. */
static void read_in_order(enum io_kind kind, bool is_slow)
{
	struct stream s = { .is_slow = is_slow };
	uint32_t n = 0, i;
	pthread_t t;
	int fd[2];

	pair_open(kind, fd);
	s.fd = fd[1];
	add(fd[0], kind, 3);
	assert_int_equal(pthread_create(&t, NULL, write_stream, &s), 0);
	while (n < STREAM) {
		assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
		for (size_t k = 0; k < batch.n; k++, n++) {
			memcpy(&i, batch.rx[k].data, sizeof(i));
			assert_int_equal(i, n);
			assert_int_equal(batch.rx[k].len, 4 + i * 7 % 4000);
		}
	}
	pthread_join(t, NULL);
	assert_silent();
	assert_int_equal(ops->drop(e, fd[0]), 0);
	close_both(fd);
}

static void test_read_order(void **state)
{
	read_in_order(IO_DGRAM, false);
	read_in_order(IO_DGRAM, true);
	read_in_order(IO_FRAME, false);
	read_in_order(IO_FRAME, true);
}

/* To somebody who reads slowly: the socket is full most of the time. Datagrams wait for
 * room; a frame may be refused, and then the engine says so. */
static void send_in_order(enum io_kind kind, bool is_channel)
{
	struct stream s = { .is_slow = true };
	uint32_t text[100], i = 0;
	struct iovec iov[100];
	struct io_tx tx[100];
	unsigned n_sent = 0;
	pthread_t t;
	int fd[2], small = 4096;

	pair_open(kind, fd);
	assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	s.fd = fd[1];
	if (is_channel)
		add(fd[0], kind, 3);
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	assert_int_equal(pthread_create(&t, NULL, read_stream, &s), 0);
	while (i < 1000) {
		size_t n, n_ok = 0;

		for (n = 0; n < 100; n++, i++) {
			text[n] = i;
			tx_set(&tx[n], &iov[n], &text[n], sizeof(text[n]), NULL);
		}
		n = ops->send(e, fd[0], kind, tx, 100);
		for (size_t k = 0; k < 100; k++) {
			n_ok += tx[k].err == 0;
			assert_true(tx[k].err == 0 || (kind == IO_FRAME && tx[k].err == -EAGAIN));
		}
		assert_int_equal(n, n_ok);
		n_sent += n;
	}
	i = UINT32_MAX;
	assert_int_equal(fcntl(fd[0], F_SETFL, fcntl(fd[0], F_GETFL) & ~O_NONBLOCK), 0);
	assert_int_equal(send(fd[0], &i, sizeof(i), 0), sizeof(i));
	pthread_join(t, NULL);
	assert_false(s.is_broken);
	assert_int_equal(s.n, n_sent + 1);
	assert_int_equal(ops->drop(e, fd[0]), is_channel ? 0 : -ENOENT);
	close_both(fd);
}

static void test_send_order(void **state)
{
	for (int i = 0; i < 2; i++) {
		send_in_order(IO_DGRAM, i);
		send_in_order(IO_FRAME, i);
	}
}

/* What comes while a batch is sent is there afterwards. */
static void test_both_ways(void **state)
{
	struct sockaddr_in a, b;
	int fa = udp_open(&a), fb = udp_open(&b);
	struct iovec iov[20];
	struct io_tx tx[20];
	uint32_t text[20], n = 0;

	add(fa, IO_DGRAM, 1);
	for (uint32_t round = 0; round < 200; round++) {
		for (uint32_t i = 0; i < 20; i++) {
			text[i] = round * 20 + i;
			tx_set(&tx[i], &iov[i], &text[i], sizeof(text[i]), &a);
		}
		/* To itself, every second time without a wait between. */
		assert_int_equal(ops->send(e, fa, IO_DGRAM, tx, 20), 20);
		if (round % 2)
			continue;
		send_to(fb, "12345", 5, &a);
		while (n < (round + 1) * 20 + round / 2 + 1) {
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
			n += (uint32_t)batch.n;
		}
		assert_int_equal(batch.rx[batch.n - 1].len, 5);
	}
	assert_int_equal(ops->drop(e, fa), 0);
	close(fa);
	close(fb);
}

/* ---- Channels. */

/* A channel that always has something; the other is heard all the same. */
static void test_fairness(void **state)
{
	struct sockaddr_in a, b;
	int busy[2], fa = udp_open(&a), fb = udp_open(&b);
	unsigned n_heard = 0;

	frames_open(busy);
	add(busy[0], IO_FRAME, 1);
	add(fb, IO_DGRAM, 2);
	for (unsigned i = 0; i < 20; i++) {
		uint64_t start = clock_now_ns();
		unsigned n = n_heard;

		send_to(fa, "z", 1, &b);
		while (n_heard == n && clock_now_ns() - start < QUICK_MS * NSEC_PER_MSEC) {
			while (write(busy[1], "frame", 5) == 5)
				;
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
			for (size_t k = 0; k < batch.n; k++)
				n_heard += batch.rx[k].tag == 2;
		}
	}
	assert_int_equal(n_heard, 20);
	assert_int_equal(ops->drop(e, busy[0]), 0);
	assert_int_equal(ops->drop(e, fb), 0);
	close_both(busy);
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
	collect(IO_CHANNELS_MAX);
	for (size_t i = 0; i < IO_CHANNELS_MAX; i++)
		seen |= 1u << got[i].tag;
	assert_int_equal(seen, (1u << IO_CHANNELS_MAX) - 1);
	assert_int_equal(ops->drop(e, fd[3][0]), 0);
	assert_int_equal(ops->drop(e, fd[3][0]), -ENOENT);
	assert_int_equal(ops->drop(e, -1), -ENOENT);
	/* The dropped one is silent, its place is free. */
	assert_int_equal(write(fd[3][1], "abc", 3), 3);
	assert_silent();
	add(fd[IO_CHANNELS_MAX][0], IO_FRAME, 30);
	assert_int_equal(write(fd[IO_CHANNELS_MAX][1], "abcd", 4), 4);
	collect(1);
	assert_int_equal(got[0].tag, 30);
	for (int i = 0; i <= IO_CHANNELS_MAX; i++) {
		ops->drop(e, fd[i][0]);
		close_both(fd[i]);
	}
}

/* Nothing is read after a drop, however much there is; the others' is not lost. */
static void test_drop_with_data(void **state)
{
	struct sockaddr_in a, b, c;
	int fa = udp_open(&a), fb = udp_open(&b), fc = udp_open(&c);
	uint8_t i;

	for (int round = 0; round < 10; round++) {
		add(fb, IO_DGRAM, 1);
		add(fc, IO_DGRAM, 2);
		for (i = 0; i < 100; i++) {
			send_to(fa, "12345678", 8, &b);
			if (i % 10 == 0)
				send_to(fa, &i, 1, &c);
		}
		if (round % 2)
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
		else
			batch.n = 0;
		n_got = 0;
		for (size_t k = 0; k < batch.n; k++)
			if (batch.rx[k].tag == 2)
				put_by(&batch.rx[k]);
		assert_int_equal(ops->drop(e, fb), 0);
		while (n_got < 10) {
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
			for (size_t k = 0; k < batch.n; k++)
				put_by(&batch.rx[k]);
		}
		for (i = 0; i < 10; i++) {
			assert_int_equal(got[i].tag, 2);
			assert_int_equal(got[i].text[0], i * 10);
		}
		assert_silent();
		assert_int_equal(ops->drop(e, fc), 0);
		/* The descriptor is free for another file at once. */
		close(fb);
		fb = udp_open(&b);
	}
	close(fa);
	close(fb);
	close(fc);
}

static void test_bad_descriptors(void **state)
{
	int fd[2];

	assert_int_equal(ops->add(e, &(struct io_channel){ -1, IO_FRAME, 0, NULL }), -EBADF);
	frames_open(fd);
	add(fd[0], IO_FRAME, 0);
	assert_int_equal(ops->add(e, &(struct io_channel){ fd[0], IO_FRAME, 0, NULL }), -EEXIST);
	assert_int_equal(ops->drop(e, fd[0]), 0);
	close_both(fd);
}

/* After the engine is closed the port is free. */
static void test_port_is_free_after_close(void **state)
{
	struct sockaddr_in a;
	int fd = udp_open(&a), again = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	add(fd, IO_DGRAM, 0);
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	assert_int_equal(ops->drop(e, fd), 0);
	close(fd);
	assert_int_equal(bind(again, (struct sockaddr *)&a, sizeof(a)), 0);
	close(again);
}

static int tun_open(const char *name)
{
	struct ifreq ifr = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	assert_true(fd >= 0);
	strncpy(ifr.ifr_name, name, IFNAMSIZ - 1);
	assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
	return fd;
}

/* A real TUN: what is sent to an address behind it comes out, what is written goes in. Then it
 * is deleted while it is a channel: that is told, and the others last. */
static void test_tun(void **state)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) }, here = to;
	struct iovec iov[2];
	struct io_tx tx[2];
	int fd = tun_open("gone0"), other[2], s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0),
	    bound = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint8_t copy[2][64];
	uint32_t lost = 0;

	assert_int_equal(system("ip addr add 10.9.8.1/24 dev gone0 && ip link set gone0 up"), 0);
	to.sin_addr.s_addr = htonl(0x0a090802);
	here.sin_addr.s_addr = htonl(0x0a090801);
	frames_open(other);
	add(fd, IO_FRAME, 1);
	if (!is_one_channel())
		add(other[0], IO_FRAME, 2);
	for (int round = 0; round < 5; round++) {
		size_t n = 0;

		for (int i = 0; i < 30; i++)
			send_to(s, "ab", 2, &to);
		/* IPv6 says hello on the interface. */
		while (n < 30) {
			assert_int_equal(ops->wait(e, &batch, QUICK_MS * NSEC_PER_MSEC), 0);
			for (size_t i = 0; i < batch.n; i++)
				if (batch.rx[i].data[0] == 0x45) {
					assert_int_equal(batch.rx[i].len, 30);
					assert_int_equal(batch.rx[i].tag, 1);
					memcpy(copy[n++ % 2], batch.rx[i].data, 30);
				}
		}
	}
	/* Turned round they are datagrams to our socket. */
	assert_int_equal(bind(bound, (struct sockaddr *)&here, sizeof(here)), 0);
	for (int i = 0; i < 2; i++) {
		memcpy(copy[i] + 12, &to.sin_addr, 4);
		memcpy(copy[i] + 16, &here.sin_addr, 4);
		memcpy(copy[i] + 22, &here.sin_port, 2);
		memset(copy[i] + 26, 0, 2);
		tx_set(&tx[i], &iov[i], copy[i], 30, NULL);
	}
	assert_int_equal(ops->send(e, fd, IO_FRAME, tx, 2), 2);
	for (int i = 0; i < 2; i++)
		assert_int_equal(recv(bound, copy[i], sizeof(copy[i]), 0), 2);
	assert_int_equal(system("ip link del gone0"), 0);
	for (int i = 0; i < 100 && !lost; i++) {
		assert_int_equal(ops->wait(e, &batch, 50 * NSEC_PER_MSEC), 0);
		lost = batch.lost;
	}
	assert_int_equal(lost, 1u << 1);
	assert_silent();
	assert_int_equal(ops->drop(e, fd), -ENOENT);
	if (!is_one_channel()) {
		assert_int_equal(write(other[1], "abc", 3), 3);
		collect(1);
		assert_int_equal(got[0].tag, 2);
		assert_int_equal(ops->drop(e, other[0]), 0);
	}
	close(fd);
	close(s);
	close(bound);
	close_both(other);
}

static int run_row(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_time_out),
		TEST(test_wake),
		TEST(test_wake_after_batches),
		TEST(test_datagrams),
		TEST(test_lengths),
		TEST(test_control),
		TEST(test_frames),
		TEST(test_send_errors),
		TEST(test_icmp_refused),
		TEST(test_read_order),
		TEST(test_send_order),
		TEST(test_both_ways),
		TEST(test_bad_descriptors),
		TEST(test_port_is_free_after_close),
	};
	const struct CMUnitTest several[] = {
		TEST(test_fairness),
		TEST(test_channel_limit),
		TEST(test_drop_with_data),
	};
	const struct CMUnitTest with_net[] = { TEST(test_tun) };
#undef TEST
	const struct engine_ops *o;
	int ret = engine_pick(&o, row->engine, &row->cfg), status;

	if (ret) {
		print_message("skipped: engine %s: %s\n", row->name, strerror(-ret));
		return 0;
	}
	print_message("engine: %s\n", row->name);
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	if (!(o->traits & ENGINE_ONE_CHANNEL))
		ret += cmocka_run_group_tests(several, NULL, NULL);
	/* Last, since it leaves us in an empty network namespace: in a process of its own. */
	fflush(NULL);
	if (fork() == 0) {
		if (unshare(CLONE_NEWNET)) {
			print_message("skipped: needs CAP_SYS_ADMIN for a network namespace\n");
			_exit(0);
		}
		_exit(cmocka_run_group_tests(with_net, NULL, NULL) != 0);
	}
	if (wait(&status) < 0 || status)
		ret++;
	return ret;
}

static void test_pick(void **state)
{
	static const struct engine_config plain;
	const struct engine_ops *o = NULL;

	assert_int_equal(engine_pick(&o, "no_such_engine", &plain), -EINVAL);
	assert_null(o);
	assert_int_equal(engine_pick(&o, "auto", &plain), 0);
	assert_non_null(o);
}

/* An engine's name as argument: that one only. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_pick) };
	int ret;

	rcu_thread_init();
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	for (row = rows; row < rows + ARRAY_LEN(rows); row++)
		if (argc < 2 || !strcmp(argv[1], row->engine))
			ret += run_row();
	rcu_thread_fini();
	return ret;
}
