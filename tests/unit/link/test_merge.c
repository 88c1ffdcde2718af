/* Coalescing. The judge is split: what merge makes of a stream is cut again, and
 * must give the packets that went in, flow by flow in their order. */
#include "packets.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum {
	VNET = sizeof(struct virtio_net_hdr),
	SLOT = 2048,
	N_MAX = MERGE_PACKETS_MAX,
	ALL = OFFLOAD_VNET | OFFLOAD_CSUM | OFFLOAD_TSO | OFFLOAD_USO,
};

static uint8_t pkts[N_MAX][SLOT], copies[N_MAX][SLOT];
static uint32_t lens[N_MAX];
static size_t n_pkts;
static struct merge *merge;

static int setup(void **state)
{
	n_pkts = 0;
	if (merge_create(&merge))
		return -1;
	merge_set_offloads(merge, ALL);
	return 0;
}

static int teardown(void **state)
{
	merge_destroy(merge);
	return 0;
}

/* Build a packet in the next slot. Returns it. */
static uint8_t *next(const struct spec *s, uint32_t payload)
{
	lens[n_pkts] = build(s, pkts[n_pkts], payload, s->seq, false);
	return pkts[n_pkts++];
}

/* A train of n packets that may become one superframe. */
static void train(struct spec *s, unsigned n, uint32_t payload)
{
	while (n--) {
		next(s, payload);
		s->seq += payload;
		s->id++;
	}
}

/* Feed all slots; returns the number of frames. */
static size_t feed(struct io_tx **tx)
{
	memcpy(copies, pkts, sizeof(pkts));
	for (size_t i = 0; i < n_pkts; i++)
		assert_true(merge_add(merge, pkts[i], lens[i]));
	return merge_finish(merge, tx);
}

static size_t flatten(const struct io_tx *tx, uint8_t *out, size_t cap)
{
	size_t len = 0;

	for (size_t i = 0; i < tx->hdr.msg_iovlen; i++) {
		assert_true(len + tx->hdr.msg_iov[i].iov_len <= cap);
		memcpy(out + len, tx->hdr.msg_iov[i].iov_base, tx->hdr.msg_iov[i].iov_len);
		len += tx->hdr.msg_iov[i].iov_len;
	}
	return len;
}

/* Cut a frame into packets again; each is given to each(). Returns how many. */
static uint32_t resplit(const struct io_tx *tx, void (*each)(const uint8_t *pkt, uint32_t len))
{
	static uint8_t frame[65536 + VNET], out[65536];
	struct split sp;
	size_t len = flatten(tx, frame, sizeof(frame));

	assert_int_equal(split_init(&sp, frame, len, true), SPLIT_OK);
	assert_int_equal(sp.len, len - VNET);
	for (uint32_t i = 0; i < sp.n; i++)
		each(out, (uint32_t)split_segment(&sp, i, out));
	return sp.n;
}

/* Key of the order test: all packets of a flow share port and family. */
static unsigned flow_key(const uint8_t *pkt)
{
	bool is_v4 = pkt[0] >> 4 == 4;

	return get_be16(pkt + (is_v4 ? 20 : 40)) * 4u + is_v4 * 2u +
		(pkt[is_v4 ? 9 : 6] == IPPROTO_TCP);
}

static bool is_used[N_MAX];

/* The packet must be the first of its flow that has not come out yet. With DF
 * and a constant id the id may have changed; the header checksum with it. */
static void expect_next_of_flow(const uint8_t *pkt, uint32_t len)
{
	uint8_t want[SLOT];
	size_t i = 0;

	while (i < n_pkts && (is_used[i] || flow_key(copies[i]) != flow_key(pkt)))
		i++;
	assert_true(i < n_pkts);
	is_used[i] = true;
	memcpy(want, copies[i], lens[i]);
	if (pkt[0] >> 4 == 4 && pkt[6] & 0x40 && is_valid(pkt, len, 20)) {
		memcpy(want + 4, pkt + 4, 2);
		memcpy(want + 10, pkt + 10, 2);
	}
	assert_int_equal(len, lens[i]);
	assert_memory_equal(pkt, want, len);
}

static void expect_all(const struct io_tx *tx, size_t n)
{
	memset(is_used, 0, sizeof(is_used));
	for (size_t i = 0; i < n; i++)
		resplit(&tx[i], expect_next_of_flow);
	for (size_t i = 0; i < n_pkts; i++)
		assert_true(is_used[i]);
}

/* n_pkts packets must become n frames, and nothing may be lost. */
static void expect_frames(size_t n)
{
	struct io_tx *tx;

	assert_int_equal(feed(&tx), n);
	expect_all(tx, n);
	merge_reset(merge);
	n_pkts = 0;
}

static const struct spec tcp4 = { .family = AF_INET,
	.proto = IPPROTO_TCP,
	.ttl = 64,
	.flags = 0x10,
	.opt_len = 12,
	.flow = 1000,
	.id = 65530,
	.has_df = true,
	.seq = 4294967000u,
	.ack = 77,
	.window = 500 };
static const struct spec udp4 = {
	.family = AF_INET, .proto = IPPROTO_UDP, .ttl = 64, .flow = 1000, .id = 5
};

static void trains(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct spec s = i & 1 ? tcp4 : udp4;

		s.family = i & 2 ? AF_INET : AF_INET6;
		train(&s, 20, 1300);
		next(&s, 700); /* a shorter one ends it */
		s.seq += 700;
		s.id++;
		train(&s, 20, 1300);
		expect_frames(2);
	}
}

static void vnet_header(void **state)
{
	struct spec s = tcp4;
	struct virtio_net_hdr v;
	struct io_tx *tx;

	train(&s, 10, 1000);
	s.flags |= 0x08;
	train(&s, 1, 1000);
	assert_int_equal(feed(&tx), 1);
	assert_int_equal(tx->hdr.msg_iovlen, 12);
	assert_int_equal(tx->hdr.msg_iov[0].iov_len, VNET);
	memcpy(&v, tx->hdr.msg_iov[0].iov_base, VNET);
	assert_int_equal(v.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
	assert_int_equal(v.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
	assert_int_equal(v.hdr_len, 52);
	assert_int_equal(v.gso_size, 1000);
	assert_int_equal(v.csum_start, 20);
	assert_int_equal(v.csum_offset, 16);
	/* payload was not copied */
	assert_ptr_equal(tx->hdr.msg_iov[1].iov_base, pkts[0]);
	assert_ptr_equal(tx->hdr.msg_iov[2].iov_base, pkts[1] + 52);
	assert_int_equal(pkts[0][20 + 13], 0x18);
	assert_int_equal(get_be16(pkts[0] + 2), 52 + 11 * 1000);
	assert_int_equal(ref_sum(0, pkts[0], 20), 0xffff);
	expect_all(tx, 1);
}

/* Every difference that GRO respects keeps packets apart. */
static void differences(void **state)
{
	for (int i = 0; i < 14; i++) {
		struct spec s = tcp4;
		size_t frames = 2;

		if (i >= 10)
			s.proto = IPPROTO_UDP;
		s.family = i == 12 ? AF_INET6 : AF_INET;
		train(&s, 2, 1000);
		switch (i) {
		case 0:
			s.seq++;
			break;
		case 1:
			s.seq--;
			break;
		case 2:
			s.ack++;
			break;
		case 3:
			s.window++;
			break;
		case 4:
			s.flags |= 0x40;
			break;
		case 5:
			s.opt_len = 16;
			break;
		case 6:
			s.tos = 2;
			break;
		case 7:
			s.id++;
			break;
		case 8:
			s.has_df = false;
			break;
		case 9:
			s.flow++;
			break;
		case 10:
			s.ttl--;
			break;
		case 11:
			s.tos = 1;
			break;
		case 12:
			s.ttl--;
			break;
		case 13:
			frames = 1;
			s.ack++;
			break; /* UDP has none */
		}
		train(&s, 2, 1000);
		expect_frames(frames);
	}
}

static void flow_label_and_options(void **state)
{
	struct spec s = tcp4;

	s.family = AF_INET6;
	train(&s, 2, 1000);
	train(&s, 2, 1000);
	pkts[2][3] ^= 1; /* not covered by the checksum */
	pkts[3][3] ^= 1;
	expect_frames(2);

	/* A different option needs the checksum put right: two bytes that cancel. */
	s = tcp4;
	train(&s, 4, 1000);
	for (int i = 2; i < 4; i++) {
		pkts[i][40]++;
		pkts[i][42]--;
		assert_true(is_valid(pkts[i], lens[i], 20));
	}
	expect_frames(2);
}

static void flags(void **state)
{
	struct spec s = tcp4;

	/* PSH ends a superframe, also as its first packet */
	s.flags = 0x18;
	train(&s, 3, 1000);
	expect_frames(3);
	/* FIN, SYN, RST, URG, CWR, no ACK, NS: alone */
	for (unsigned bit = 0; bit < 8; bit++) {
		bool joins = bit == 6 || bit == 3; /* ECE, PSH */

		s = tcp4;
		s.flags = bit == 4 ? 0 : (uint8_t)(0x10 | 1u << bit);
		train(&s, 2, 1000);
		expect_frames(joins && bit == 6 ? 1 : 2);
	}
	/* pure acknowledgements: nothing to coalesce, and data does not overtake them */
	s = tcp4;
	train(&s, 2, 1000);
	train(&s, 2, 0);
	train(&s, 2, 1000);
	expect_frames(4);
}

static void ids(void **state)
{
	struct spec s = tcp4;

	for (int i = 0; i < 5; i++) {
		next(&s, 1000);
		s.seq += 1000;
	}
	expect_frames(1); /* DF: constant is fine */
	s.has_df = false;
	for (int i = 0; i < 5; i++) {
		next(&s, 1000);
		s.seq += 1000;
	}
	expect_frames(5);
	s.has_df = true;
	train(&s, 3, 1000);
	s.id--;
	train(&s, 3, 1000); /* once it counts, it must go on */
	expect_frames(2);
	for (int i = 0; i < 4; i++) { /* and what stands still must not start to count */
		next(&s, 1000);
		s.seq += 1000;
		s.id += i == 2;
	}
	expect_frames(2);
}

static void limits(void **state)
{
	struct spec s = udp4;
	struct io_tx *tx;

	train(&s, 200, 100);
	assert_int_equal(feed(&tx), 4); /* 64 + 64 + 64 + 8 */
	for (int i = 0; i < 3; i++)
		assert_int_equal(tx[i].hdr.msg_iovlen, 1 + MERGE_SEGS_MAX);
	expect_all(tx, 4);
	merge_reset(merge);
	n_pkts = 0;

	s = tcp4;
	train(&s, 200, 1400); /* 46 of 1400 + 52 fit 65535 */
	expect_frames(5);
	s = tcp4;
	train(&s, N_MAX, 1); /* UIO_MAXIOV */
	assert_int_equal(feed(&tx), 3);
	assert_int_equal(tx[0].hdr.msg_iovlen, 1024);
	expect_all(tx, 3);
	assert_false(merge_add(merge, pkts[0], lens[0])); /* full */
	merge_reset(merge);
	assert_true(merge_add(merge, copies[0], lens[0]));
}

/* A packet that fails its checksum leaves as it came and alone. */
static void corrupt(void **state)
{
	uint64_t r = 5;

	for (int round = 0; round < 2000; round++) {
		struct spec s = round & 1 ? tcp4 : udp4;
		unsigned bad = test_rand(&r) % 9, hdr;
		struct io_tx *tx;
		size_t n;

		s.family = round & 2 ? AF_INET : AF_INET6;
		hdr = ip_hdr(&s) + l4_hdr(&s);
		train(&s, 9, 500);
		/* TTL to checksum of IPv4, or payload of either */
		if (s.family == AF_INET && round & 4)
			pkts[bad][8 + test_rand(&r) % 4] ^= 1u << test_rand(&r) % 8;
		else
			pkts[bad][hdr + test_rand(&r) % 500] ^= 1u << test_rand(&r) % 8;
		n = feed(&tx);
		assert_in_range(n, 1 + (bad > 0) + (bad < 8), 3);
		for (size_t i = 0; i < n; i++) {
			const struct iovec *iov = tx[i].hdr.msg_iov;
			static const uint8_t zero[VNET];

			if (iov[1].iov_base != pkts[bad])
				continue;
			assert_int_equal(tx[i].hdr.msg_iovlen, 2);
			assert_memory_equal(iov[0].iov_base, zero, VNET);
			assert_int_equal(iov[1].iov_len, lens[bad]);
			assert_memory_equal(pkts[bad], copies[bad], lens[bad]);
			bad = 99;
		}
		assert_int_equal(bad, 99);
		merge_reset(merge);
		n_pkts = 0;
	}
	/* UDP without a checksum cannot be verified */
	struct spec s = udp4;

	train(&s, 2, 500);
	put_be16(pkts[0] + 26, 0);
	put_be16(pkts[1] + 26, 0);
	expect_frames(2);
}

static void offloads(void **state)
{
	static const struct {
		unsigned set;
		size_t frames;
	} cases[] = {
		{ OFFLOAD_VNET, 10 },
		{ OFFLOAD_VNET | OFFLOAD_CSUM | OFFLOAD_TSO, 6 },
		{ OFFLOAD_VNET | OFFLOAD_CSUM | OFFLOAD_USO, 6 },
		{ ALL, 2 },
	};
	struct io_tx *tx;
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct spec t = tcp4, u = udp4;

		merge_set_offloads(merge, cases[i].set);
		train(&t, 5, 500);
		train(&u, 5, 500);
		expect_frames(cases[i].frames);
	}
	struct spec t = tcp4;

	merge_set_offloads(merge, 0);
	train(&t, 3, 500);
	n = feed(&tx);
	assert_int_equal(n, 3);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(tx[i].hdr.msg_iovlen, 1);
		assert_ptr_equal(tx[i].hdr.msg_iov[0].iov_base, pkts[i]);
		assert_int_equal(tx[i].hdr.msg_iov[0].iov_len, lens[i]);
	}
}

/* A fragment shows no ports: nothing between its addresses may overtake it. */
static void fragment_closes(void **state)
{
	struct spec s = udp4;
	struct io_tx *tx;

	for (int is_icmp = 0; is_icmp < 2; is_icmp++) {
		s.id = 5;
		train(&s, 2, 500);
		s.id = 6; /* the third would go well with the first */
		train(&s, 1, 500);
		if (is_icmp)
			pkts[1][9] = IPPROTO_ICMP; /* has nothing to do with it */
		else
			pkts[1][6] = 0x20;
		put_be16(pkts[1] + 10, 0);
		put_be16(pkts[1] + 10, (uint16_t)~ref_sum(0, pkts[1], 20));
		assert_int_equal(feed(&tx), is_icmp ? 2 : 3);
		for (int i = 0; i < (is_icmp ? 2 : 3); i++)
			assert_ptr_equal(tx[i].hdr.msg_iov[1].iov_base, pkts[i]);
		merge_reset(merge);
		n_pkts = 0;
	}
}

/* More flows than the table holds: only the superframes suffer. */
static void many_flows(void **state)
{
	struct io_tx *tx;
	size_t n;

	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < N_MAX / 2; i++) {
			struct spec s = tcp4;

			s.flow = (uint16_t)i;
			s.seq += round * 100;
			s.id += round;
			next(&s, 100);
		}
	n = feed(&tx);
	assert_in_range(n, N_MAX / 2, N_MAX);
	expect_all(tx, n);
	merge_reset(merge);
	n_pkts = 0;
	for (unsigned round = 0; round < 16; round++)
		for (unsigned i = 0; i < 64; i++) {
			struct spec s = tcp4;

			s.flow = (uint16_t)(i * 7);
			s.seq += round * 100;
			s.id += round;
			next(&s, 100);
		}
	n = feed(&tx);
	assert_in_range(n, 64, 100);
	expect_all(tx, n);
}

/* Random mixture of everything, against order and content. */
static void random_streams(void **state)
{
	uint64_t r = 77, frames = 0, packets = 0;

	for (int round = 0; round < 1500; round++) {
		struct spec flows[6];
		struct io_tx *tx;
		size_t n, count = 1 + test_rand(&r) % 400;

		for (unsigned i = 0; i < ARRAY_LEN(flows); i++) {
			flows[i] = test_rand(&r) & 1 ? tcp4 : udp4;
			flows[i].family = test_rand(&r) & 1 ? AF_INET : AF_INET6;
			flows[i].flow = (uint16_t)i;
			flows[i].has_df = test_rand(&r) & 1;
		}
		while (count) {
			struct spec *s = &flows[test_rand(&r) % ARRAY_LEN(flows)];
			unsigned run = 1 + test_rand(&r) % 20, odd = test_rand(&r) % 12;

			run = run < count ? run : (unsigned)count;
			count -= run;
			if (odd == 0)
				s->seq += 10;
			else if (odd == 1)
				s->flags ^= 0x08;
			else if (odd == 2)
				s->id += 3;
			else if (odd == 3)
				s->ack++;
			else if (odd == 4)
				s->tos ^= 3;
			train(s, run, odd == 5 ? 0 : 100 + odd / 6 * 200);
			if (odd == 6)
				pkts[n_pkts - 1][lens[n_pkts - 1] - 1] ^= 0x10;
		}
		packets += n_pkts;
		n = feed(&tx);
		frames += n;
		expect_all(tx, n);
		merge_reset(merge);
		n_pkts = 0;
	}
	print_message("%llu packets in %llu frames\n", (unsigned long long)packets,
		(unsigned long long)frames);
	assert_true(frames * 3 < packets);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(trains),
		TEST(vnet_header),
		TEST(differences),
		TEST(flow_label_and_options),
		TEST(flags),
		TEST(ids),
		TEST(limits),
		TEST(corrupt),
		TEST(offloads),
		TEST(fragment_closes),
		TEST(many_flows),
		TEST(random_streams),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
