/* Which packets inner_parse() takes, and what it says of them. */
#include "packets.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct spec tcp4 = { .family = AF_INET,
	.proto = IPPROTO_TCP,
	.ttl = 64,
	.tos = 0xb9,
	.flags = 0x10,
	.opt_len = 12,
	.flow = 1 };
static const struct spec udp6 = {
	.family = AF_INET6, .proto = IPPROTO_UDP, .ttl = 64, .tos = 0x2e, .flow = 2
};

static void plain(void **state)
{
	uint8_t pkt[256];
	struct inner in;
	uint32_t len = build(&tcp4, pkt, 100, 0, false);

	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.family, AF_INET);
	assert_int_equal(in.l4, INNER_TCP);
	assert_int_equal(in.tos, 0xb9);
	assert_int_equal(in.ip_len, 20);
	assert_int_equal(in.hdr_len, 52);
	assert_int_equal(in.len, len);
	assert_ptr_equal(in.src, pkt + 12);
	assert_ptr_equal(in.dst, pkt + 16);
	/* Bytes behind the packet are not its own. */
	assert_true(inner_parse(&in, pkt, len + 30));
	assert_int_equal(in.len, len);

	len = build(&udp6, pkt, 100, 0, false);
	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.family, AF_INET6);
	assert_int_equal(in.l4, INNER_UDP);
	assert_int_equal(in.tos, 0x2e);
	assert_int_equal(in.hdr_len, 48);
	assert_int_equal(in.len, 148);
	assert_ptr_equal(in.src, pkt + 8);
	assert_ptr_equal(in.dst, pkt + 24);
}

static void lying_lengths(void **state)
{
	uint8_t pkt[256], bad[256];
	struct spec s = tcp4;
	struct inner in;
	uint32_t len;

	s.id = 0xffff; /* where IPv6 has its length */
	len = build(&s, pkt, 100, 0, false);

	for (uint32_t cut = 0; cut < len; cut++)
		assert_false(inner_parse(&in, pkt, cut));
	for (unsigned v = 0; v < 16; v++) {
		memcpy(bad, pkt, len);
		bad[0] = (uint8_t)(v << 4 | 5);
		assert_int_equal(inner_parse(&in, bad, len), v == 4);
	}
	for (unsigned ihl = 0; ihl < 16; ihl++) {
		memcpy(bad, pkt, len);
		bad[0] = (uint8_t)(0x40 | ihl);
		assert_int_equal(inner_parse(&in, bad, len), ihl >= 5);
	}
	memcpy(bad, pkt, len);
	for (unsigned total = 0; total < 65536; total++) {
		put_be16(bad + 2, (uint16_t)total);
		assert_int_equal(inner_parse(&in, bad, len), total >= 20 && total <= len);
	}
	len = build(&udp6, bad, 100, 0, false);
	for (uint32_t cut = 0; cut < len; cut++)
		assert_false(inner_parse(&in, bad, cut));
	for (unsigned payload = 0; payload < 65536; payload++) {
		put_be16(bad + 4, (uint16_t)payload);
		assert_int_equal(inner_parse(&in, bad, len), payload <= 108);
	}
}

static void other(void **state)
{
	uint8_t pkt[256];
	struct inner in;
	uint32_t len = build(&tcp4, pkt, 100, 0, false);

	/* TCP header longer than the packet, or shorter than a header can be */
	for (unsigned doff = 0; doff < 16; doff++) {
		pkt[32] = (uint8_t)(doff << 4);
		assert_true(inner_parse(&in, pkt, len));
		assert_int_equal(in.l4, doff >= 5 ? INNER_TCP : INNER_OTHER);
		assert_int_equal(in.hdr_len, doff >= 5 ? 20 + doff * 4 : 20);
	}
	len = build(&tcp4, pkt, 0, 0, false);
	put_be16(pkt + 2, 39);
	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.l4, INNER_OTHER);
	/* fragments: first, middle; not: don't fragment */
	len = build(&tcp4, pkt, 100, 0, false);
	put_be16(pkt + 6, 0x2000);
	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.l4, INNER_OTHER);
	put_be16(pkt + 6, 0x0001);
	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.l4, INNER_OTHER);
	put_be16(pkt + 6, 0x4000);
	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.l4, INNER_TCP);
	/* UDP lengths that differ from the IP's */
	len = build(&udp6, pkt, 100, 0, false);
	for (unsigned l = 0; l < 300; l++) {
		put_be16(pkt + 44, (uint16_t)l);
		assert_true(inner_parse(&in, pkt, len));
		assert_int_equal(in.l4, l == 108 ? INNER_UDP : INNER_OTHER);
	}
	pkt[6] = 0; /* hop-by-hop options */
	put_be16(pkt + 44, 108);
	assert_true(inner_parse(&in, pkt, len));
	assert_int_equal(in.l4, INNER_OTHER);
	assert_int_equal(in.hdr_len, 40);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain),
		cmocka_unit_test(lying_lengths),
		cmocka_unit_test(other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
