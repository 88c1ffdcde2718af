/* Superframes into segments: against a reference that builds each segment from
 * its fields, and with vnet headers that lie. */
#include "packets.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { VNET = sizeof(struct virtio_net_hdr), ROOM = 66000 };

static uint8_t frame[ROOM + VNET];

/* A superframe of payload bytes at frame. Returns its length. */
static size_t make(const struct spec *s, uint32_t payload, uint16_t gso_len)
{
	struct virtio_net_hdr v = vnet_of(s, gso_len);

	memcpy(frame, &v, VNET);
	return VNET + build(s, frame + VNET, payload, 0, true);
}

/* What segment i of n must be: built from scratch. */
static uint32_t reference(const struct spec *s, uint32_t i, uint32_t n, uint32_t gso_len,
	uint32_t payload, uint8_t *out)
{
	struct spec seg = *s;
	uint32_t pos = i * gso_len, len = i + 1 < n ? gso_len : payload - pos;

	seg.id = (uint16_t)(s->id + i);
	seg.seq = s->seq + pos;
	if (i + 1 < n)
		seg.flags &= (uint8_t)~0x09;
	if (i)
		seg.flags &= 0x7f;
	return build(&seg, out, len, pos, false);
}

static void check(const struct spec *s, uint32_t payload, uint16_t gso_len)
{
	static uint8_t got[ROOM], want[ROOM];
	uint32_t n = (payload + gso_len - 1) / gso_len;
	struct split sp;
	size_t len = make(s, payload, gso_len);

	assert_int_equal(split_init(&sp, frame, len, true), SPLIT_OK);
	assert_int_equal(sp.n, n ? n : 1);
	for (uint32_t i = 0; i < sp.n; i++) {
		uint32_t want_len = reference(s, i, sp.n, gso_len, payload, want);
		size_t got_len = split_segment(&sp, i, got);

		assert_int_equal(got_len, want_len);
		assert_int_equal(got_len, i + 1 < sp.n ? sp.seg_len : sp.last_len);
		/* Zero and 0xffff are one number; the reference writes zero for TCP. */
		if (is_valid(got, want_len, ip_hdr(s)) && s->proto == IPPROTO_TCP)
			memcpy(got + ip_hdr(s) + 16, want + ip_hdr(s) + 16, 2);
		assert_memory_equal(got, want, want_len);
	}
}

static void random_superframes(void **state)
{
	uint64_t r = 1;

	for (int round = 0; round < 3000; round++) {
		struct spec s = {
			.family = test_rand(&r) & 1 ? AF_INET : AF_INET6,
			.proto = test_rand(&r) & 1 ? IPPROTO_TCP : IPPROTO_UDP,
			.tos = (uint8_t)test_rand(&r),
			.ttl = (uint8_t)test_rand(&r),
			.flags = (uint8_t)test_rand(&r),
			.opt_len = (uint8_t)(test_rand(&r) % 11 * 4),
			.id = (uint16_t)test_rand(&r),
			.flow = (uint16_t)test_rand(&r),
			.has_df = test_rand(&r) & 1,
			.seq = test_rand(&r) * 2,
			.ack = test_rand(&r),
			.window = (uint16_t)test_rand(&r),
		};
		uint32_t payload = test_rand(&r) % (round % 8 ? 5000 : 65300);
		uint16_t gso_len = (uint16_t)(1 + test_rand(&r) % (round % 4 ? 1500 : 9000));

		check(&s, payload, gso_len);
	}
}

static void single(void **state)
{
	struct spec s = { .family = AF_INET, .proto = IPPROTO_UDP, .ttl = 9, .flow = 7 };
	uint8_t out[2000];
	struct split sp;
	size_t len = make(&s, 301, 0);
	struct virtio_net_hdr v = vnet_of(&s, 0);

	/* checksum to be completed */
	v.gso_type = VIRTIO_NET_HDR_GSO_NONE;
	memcpy(frame, &v, VNET);
	assert_int_equal(split_init(&sp, frame, len, true), SPLIT_OK);
	assert_int_equal(sp.n, 1);
	assert_int_equal(split_segment(&sp, 0, out), len - VNET);
	assert_true(is_valid(out, (uint32_t)len - VNET, 20));
	/* nothing to be done: as it is, padding behind it cut off */
	memset(frame, 0, VNET);
	len = VNET + build(&s, frame + VNET, 301, 0, false);
	assert_int_equal(split_init(&sp, frame, len + 20, true), SPLIT_OK);
	assert_int_equal(split_segment(&sp, 0, out), len - VNET);
	assert_memory_equal(out, frame + VNET, len - VNET);
	/* without a vnet header */
	assert_int_equal(split_init(&sp, frame + VNET, len - VNET, false), SPLIT_OK);
	assert_int_equal(split_segment(&sp, 0, out), len - VNET);
	assert_memory_equal(out, frame + VNET, len - VNET);
}

/* A UDP checksum that comes out as zero must be sent as 0xffff. */
static void zero_csum(void **state)
{
	struct spec s = { .family = AF_INET, .proto = IPPROTO_UDP, .ttl = 9 };
	struct virtio_net_hdr v = vnet_of(&s, 100);
	uint8_t out[200];
	struct split sp;
	size_t len = make(&s, 200, 100);
	uint8_t *l4 = frame + VNET + 20;

	for (unsigned port = 0; port < 65536; port++) {
		put_be16(l4, (uint16_t)port);
		assert_int_equal(split_init(&sp, frame, len, true), SPLIT_OK);
		split_segment(&sp, 0, out);
		assert_int_not_equal(get_be16(out + 26), 0);
	}
	v.gso_type = VIRTIO_NET_HDR_GSO_NONE;
	memcpy(frame, &v, VNET);
	len = VNET + build(&s, frame + VNET, 100, 0, true);
	for (unsigned port = 0; port < 65536; port++) {
		put_be16(l4, (uint16_t)port);
		assert_int_equal(split_init(&sp, frame, len, true), SPLIT_OK);
		split_segment(&sp, 0, out);
		assert_int_not_equal(get_be16(out + 26), 0);
	}
}

/* TSO behind IPv6 extension headers, a routing header among them: the pseudo
 * header's sum can only come from the kernel. */
static void extension_headers(void **state)
{
	struct spec s = { .family = AF_INET6, .proto = IPPROTO_TCP, .ttl = 9, .flags = 0x18 };
	struct virtio_net_hdr v = vnet_of(&s, 500);
	uint32_t plain_len = build(&s, frame, 1200, 0, true), sum;
	uint8_t *ip = frame + VNET, out[1000], final[16];
	struct split sp;

	memmove(ip + 64, frame + 40, plain_len - 40);
	memmove(ip, frame, 40);
	memset(ip + 40, 0, 24);
	ip[6] = IPPROTO_ROUTING;
	ip[40] = IPPROTO_TCP;
	ip[41] = 2; /* 24 bytes */
	memset(final, 0x77, sizeof(final));
	put_be16(ip + 4, (uint16_t)(plain_len - 40 + 24));
	/* partial sum with the final destination */
	sum = ref_sum(ref_sum(0, ip + 8, 16), final, 16) + IPPROTO_TCP + 20 + 1200;
	put_be16(ip + 64 + 16, (uint16_t)ref_sum(sum, NULL, 0));
	v.csum_start = 64;
	memcpy(frame, &v, VNET);
	assert_int_equal(split_init(&sp, frame, VNET + plain_len + 24, true), SPLIT_OK);
	assert_int_equal(sp.n, 3);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t len = (uint32_t)split_segment(&sp, i, out), l4_len = len - 64;

		assert_int_equal(len, 84 + (i < 2 ? 500 : 200));
		assert_int_equal(get_be16(out + 4), len - 40);
		sum = ref_sum(ref_sum(0, ip + 8, 16), final, 16) + IPPROTO_TCP + l4_len;
		assert_int_equal(ref_sum(sum, out + 64, l4_len), 0xffff);
	}
	ip[64 + 12] = 4 << 4; /* a TCP header that ends before its checksum */
	assert_int_equal(split_init(&sp, frame, VNET + plain_len + 24, true), SPLIT_VNET);
	ip[64 + 12] = 15 << 4;
	assert_int_equal(split_init(&sp, frame, VNET + 64 + 24, true), SPLIT_INNER);
	put_be16(ip + 4, 24 + 24); /* or after the packet */
	assert_int_equal(split_init(&sp, frame, VNET + 64 + 24, true), SPLIT_VNET);
}

static enum split_drop with(const struct spec *s, const struct virtio_net_hdr *v)
{
	struct split sp;
	size_t len = make(s, 1000, 400);

	memcpy(frame, v, VNET);
	return split_init(&sp, frame, len, true);
}

static void bad_vnet(void **state)
{
	struct spec s = { .family = AF_INET, .proto = IPPROTO_TCP, .ttl = 9, .flags = 0x10 };
	const struct virtio_net_hdr good = vnet_of(&s, 400);
	struct virtio_net_hdr v = good;

	v.hdr_len = 0; /* a hint only */
	assert_int_equal(with(&s, &v), SPLIT_OK);
	v.gso_type |= VIRTIO_NET_HDR_GSO_ECN;
	assert_int_equal(with(&s, &v), SPLIT_OK);
	v.gso_type = VIRTIO_NET_HDR_GSO_TCPV6;
	assert_int_equal(with(&s, &v), SPLIT_VNET);
	v.gso_type = 5;
	assert_int_equal(with(&s, &v), SPLIT_VNET);
	v.gso_type = VIRTIO_NET_HDR_GSO_UDP;
	assert_int_equal(with(&s, &v), SPLIT_VNET);
	v.gso_type = 77;
	assert_int_equal(with(&s, &v), SPLIT_VNET);
	v = good;
	v.gso_size = 0;
	assert_int_equal(with(&s, &v), SPLIT_VNET);
	v = good;
	v.flags = 0;
	assert_int_equal(with(&s, &v), SPLIT_VNET);
	for (unsigned start = 0; start < 65536; start++) {
		v = good;
		v.csum_start = (uint16_t)start;
		assert_int_equal(with(&s, &v), start == 20 ? SPLIT_OK : SPLIT_VNET);
		v.gso_type = VIRTIO_NET_HDR_GSO_NONE;
		assert_int_equal(
			with(&s, &v), start >= 20 && start + 18 <= 1040 ? SPLIT_OK : SPLIT_VNET);
		start += start > 1100 ? 997 : 0;
	}
	for (unsigned off = 0; off<65536; off += off> 1100 ? 997 : 1) {
		v = good;
		v.csum_offset = (uint16_t)off;
		assert_int_equal(with(&s, &v), off == 16 ? SPLIT_OK : SPLIT_VNET);
	}
}

static void bad_packets(void **state)
{
	struct spec s = { .family = AF_INET6, .proto = IPPROTO_TCP, .ttl = 9, .flags = 0x10 };
	size_t len = make(&s, 1000, 400);
	struct split sp;

	for (size_t cut = 0; cut < VNET + 1; cut++)
		assert_int_equal(split_init(&sp, frame, cut, true), SPLIT_SHORT);
	for (size_t cut = VNET + 1; cut < len; cut++)
		assert_int_equal(split_init(&sp, frame, cut, true), SPLIT_INNER);
	frame[VNET + 40 + 12] = 4 << 4; /* TCP header of 16 bytes */
	assert_int_equal(split_init(&sp, frame, len, true), SPLIT_VNET);
	frame[VNET + 40 + 12] = 5 << 4;
	assert_int_equal(split_init(&sp, frame, len, true), SPLIT_OK);
	frame[VNET] = 0x50;
	assert_int_equal(split_init(&sp, frame, len, true), SPLIT_INNER);
	assert_int_equal(split_init(&sp, frame, 0, false), SPLIT_SHORT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_superframes),
		cmocka_unit_test(single),
		cmocka_unit_test(zero_csum),
		cmocka_unit_test(extension_headers),
		cmocka_unit_test(bad_vnet),
		cmocka_unit_test(bad_packets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
