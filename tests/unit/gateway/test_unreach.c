/* From a packet that a worker offers to the answer that is written, and which limits are
 * in between. There is no helper here: answers come out at the TUN's end, which is a
 * socket. */
#include "gateway/unreach.h"
#include "base/bytes.h"
#include "base/clock.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { VNET = sizeof(struct virtio_net_hdr), PKT_LEN = 1000 };

struct bed {
	struct tun tun;
	struct privhelper priv;
	struct unreach *u;
	int out; /* what was written to the TUN */
	uint64_t now_ns;
};

static void bed_open(struct bed *b, unsigned offloads)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	*b = (struct bed){ .tun = { .fd = pair[0], .offloads = offloads },
		.priv = { .fd = -1 },
		.out = pair[1],
		.now_ns = 1000 * NSEC_PER_SEC };
	assert_int_equal(unreach_create(&b->u, &b->tun, &b->priv), 0);
}

static void bed_close(struct bed *b)
{
	unreach_destroy(b->u);
	close(b->tun.fd);
	close(b->out);
}

/* A UDP packet from 10.0.0.0 + host to 192.0.2.1. */
static void make_packet(uint8_t pkt[PKT_LEN], uint32_t host)
{
	memset(pkt, 0, PKT_LEN);
	pkt[0] = 0x45;
	put_be16(pkt + 2, PKT_LEN);
	pkt[9] = IPPROTO_UDP;
	put_be32(pkt + 12, 0x0a000000 + host);
	put_be32(pkt + 16, 0xc0000201);
}

static void offer(struct bed *b, uint32_t host)
{
	uint8_t pkt[PKT_LEN];

	make_packet(pkt, host);
	unreach_offer(b->u, pkt, sizeof(pkt), b->now_ns);
}

static bool is_readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Serve as the control thread does, to the end; how many answers came out. */
static unsigned serve(struct bed *b)
{
	uint8_t buf[2048];
	unsigned n = 0;

	while (is_readable(unreach_fd(b->u))) {
		unreach_serve(b->u, b->now_ns);
		while (recv(b->out, buf, sizeof(buf), 0) > 0)
			n++;
	}
	return n;
}

static uint64_t counted(struct bed *b, enum unreach_count i)
{
	uint64_t counts[UNREACH_COUNT_N];

	unreach_counts(b->u, counts);
	return counts[i];
}

static void one_answer(struct bed *b, size_t vnet_len)
{
	static const uint8_t zero[VNET];
	uint8_t pkt[PKT_LEN], buf[2048], *ip = buf + vnet_len;

	make_packet(pkt, 5);
	assert_false(is_readable(unreach_fd(b->u)));
	offer(b, 5);
	assert_true(is_readable(unreach_fd(b->u)));
	unreach_serve(b->u, b->now_ns);
	assert_false(is_readable(unreach_fd(b->u)));
	assert_int_equal(recv(b->out, buf, sizeof(buf), 0), vnet_len + 576);
	assert_memory_equal(buf, zero, vnet_len);
	assert_int_equal(ip[9], IPPROTO_ICMP);
	/* In the name of the destination, to the source */
	assert_memory_equal(ip + 12, pkt + 16, 4);
	assert_memory_equal(ip + 16, pkt + 12, 4);
	assert_int_equal(get_be16(ip + 20), 0x0301);
	assert_memory_equal(ip + 28, pkt, 548);
	assert_int_equal(counted(b, UNREACH_SENT), 1);
}

static void answer_test(void **state)
{
	struct bed b;

	bed_open(&b, 0);
	one_answer(&b, 0);
	bed_close(&b);
	bed_open(&b, OFFLOAD_VNET | OFFLOAD_CSUM);
	one_answer(&b, VNET);
	bed_close(&b);
}

/* What must not be answered does not even wake the control thread. */
static void silence_test(void **state)
{
	uint8_t pkt[PKT_LEN];
	struct bed b;

	bed_open(&b, 0);
	make_packet(pkt, 5);
	pkt[9] = IPPROTO_ICMP;
	pkt[20] = 3;
	unreach_offer(b.u, pkt, sizeof(pkt), b.now_ns);
	make_packet(pkt, 5);
	pkt[16] = 224;
	unreach_offer(b.u, pkt, sizeof(pkt), b.now_ns);
	unreach_offer(b.u, pkt, 10, b.now_ns);
	assert_false(is_readable(unreach_fd(b.u)));
	assert_int_equal(counted(&b, UNREACH_LIMITED), 0);
	bed_close(&b);
}

static void one_destination_test(void **state)
{
	struct bed b;

	bed_open(&b, 0);
	for (int i = 0; i < 20; i++)
		offer(&b, 5);
	assert_int_equal(serve(&b), UNREACH_DEST_BURST);
	assert_int_equal(counted(&b, UNREACH_LIMITED), 20 - UNREACH_DEST_BURST);
	/* The next address has an allowance of its own. */
	offer(&b, 6);
	assert_int_equal(serve(&b), 1);
	/* One a second */
	for (int s = 0; s < 5; s++) {
		b.now_ns += NSEC_PER_SEC;
		for (int i = 0; i < 10; i++)
			offer(&b, 5);
		assert_int_equal(serve(&b), 1);
	}
	/* After a rest, all again */
	b.now_ns += 60 * NSEC_PER_SEC;
	for (int i = 0; i < 20; i++)
		offer(&b, 5);
	assert_int_equal(serve(&b), UNREACH_DEST_BURST);
	bed_close(&b);
}

/* From as many sources as there may be: a burst, then the rate, and then no more. */
static void all_test(void **state)
{
	uint32_t host = 0;
	unsigned n = 0;
	struct bed b;

	bed_open(&b, 0);
	for (int i = 0; i < 1000; i++)
		offer(&b, host++);
	assert_int_equal(serve(&b), UNREACH_BURST);
	for (int ms = 0; ms < 10000; ms++) {
		b.now_ns += NSEC_PER_MSEC;
		for (int i = 0; i < 5; i++)
			offer(&b, host++);
		n += serve(&b);
	}
	/* The table gives way a little before the rate does. */
	assert_in_range(n, 9 * UNREACH_PER_SEC, 10 * UNREACH_PER_SEC);
	assert_int_equal(counted(&b, UNREACH_SENT), n + UNREACH_BURST);
	assert_int_equal(counted(&b, UNREACH_SENT) + counted(&b, UNREACH_LIMITED), host);
	bed_close(&b);
}

/* Nobody serves: the queue fills up and no more. What is in it comes out, over several rounds. */
static void full_queue_test(void **state)
{
	struct bed b;

	bed_open(&b, 0);
	for (uint32_t i = 0; i < 2 * UNREACH_QUEUE; i++) {
		b.now_ns += NSEC_PER_SEC;
		offer(&b, i);
	}
	assert_int_equal(counted(&b, UNREACH_LIMITED), UNREACH_QUEUE);
	assert_int_equal(serve(&b), UNREACH_QUEUE);
	bed_close(&b);
}

static void refused_test(void **state)
{
	struct bed b;

	bed_open(&b, 0);
	close(b.out);
	offer(&b, 5);
	unreach_serve(b.u, b.now_ns);
	assert_int_equal(counted(&b, UNREACH_SENT), 0);
	assert_int_equal(counted(&b, UNREACH_FAILED), 1);
	bed_close(&b);
}

enum { THREADS = 3, OFFERS = 20000 };

struct producer {
	struct bed *b;
	uint32_t first;
};

static void *produce(void *arg)
{
	struct producer *p = arg;
	uint8_t pkt[PKT_LEN];

	for (uint32_t i = 0; i < OFFERS; i++) {
		make_packet(pkt, p->first + i % 500);
		unreach_offer(p->b->u, pkt, sizeof(pkt), 1000 * NSEC_PER_SEC + i * NSEC_PER_MSEC);
	}
	return NULL;
}

/* Several workers at once: every packet is answered or counted, none is answered
 * twice, and the limit holds for the sum. */
static void threads_test(void **state)
{
	struct producer p[THREADS];
	pthread_t thread[THREADS];
	unsigned n = 0;
	struct bed b;

	bed_open(&b, 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		p[i] = (struct producer){ &b, i * 1000 };
		assert_int_equal(pthread_create(&thread[i], NULL, produce, &p[i]), 0);
	}
	while (counted(&b, UNREACH_SENT) + counted(&b, UNREACH_LIMITED) < THREADS * OFFERS)
		n += serve(&b);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	n += serve(&b);
	assert_int_equal(counted(&b, UNREACH_SENT), n);
	assert_int_equal(
		counted(&b, UNREACH_SENT) + counted(&b, UNREACH_LIMITED), THREADS * OFFERS);
	assert_in_range(n, 1, UNREACH_BURST + OFFERS / 1000 * UNREACH_PER_SEC);
	bed_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(answer_test),
		cmocka_unit_test(silence_test),
		cmocka_unit_test(one_destination_test),
		cmocka_unit_test(all_test),
		cmocka_unit_test(full_queue_test),
		cmocka_unit_test(refused_test),
		cmocka_unit_test(threads_test),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
