/* Which packets may be answered with an ICMP error, and what is in it. */
#include "packets.h"
#include "wire/addr.h"
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct spec tcp4 = {
	.family = AF_INET, .proto = IPPROTO_TCP, .ttl = 64, .tos = 0x7f, .flags = 2, .flow = 7
};
static const struct spec udp4 = { .family = AF_INET, .proto = IPPROTO_UDP, .ttl = 64, .flow = 7 };
static const struct spec udp6 = {
	.family = AF_INET6, .proto = IPPROTO_UDP, .ttl = 64, .tos = 0x2e, .flow = 7
};

static bool may(const uint8_t *pkt, size_t len)
{
	struct icmp_cause c;

	return icmp_cause_parse(&c, pkt, len);
}

/* The same, with the bytes in an allocation of their own, for the sanitizers. */
static bool may_cut(const uint8_t *pkt, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);
	bool ret;

	memcpy(copy, pkt, len);
	ret = may(copy, len);
	free(copy);
	return ret;
}

static void set_addr(uint8_t *at, const char *text)
{
	struct ipaddr a;

	assert_int_equal(ipaddr_parse(&a, text, strlen(text)), 0);
	memcpy(at, a.ip, a.family == AF_INET ? 4 : 16);
}

/* ---- Which packets. */

static void addresses(void **state)
{
	static const struct {
		const char *ip;
		bool as_source, as_destination;
	} v4[] = {
		{ "10.0.0.1", true, true },
		{ "223.255.255.255", true, true },
		{ "0.0.0.0", false, false },
		{ "0.1.2.3", false, false },
		{ "127.0.0.1", false, true },
		{ "224.0.0.1", false, false },
		{ "239.255.255.250", false, false },
		{ "240.0.0.1", false, false },
		{ "255.255.255.255", false, false },
	}, v6[] = {
		{ "2001:db8::1", true, true },
		{ "fe80::1", true, true },
		{ "::1", true, true },
		{ "::", false, false },
		{ "ff02::1", false, false },
		{ "ff0e::101", false, false },
	};
	uint8_t good[256], pkt[256];
	uint32_t len = build(&tcp4, good, 10, 0, false);

	for (size_t i = 0; i < ARRAY_LEN(v4); i++) {
		memcpy(pkt, good, len);
		set_addr(pkt + 12, v4[i].ip);
		assert_int_equal(may(pkt, len), v4[i].as_source);
		memcpy(pkt, good, len);
		set_addr(pkt + 16, v4[i].ip);
		assert_int_equal(may(pkt, len), v4[i].as_destination);
	}
	len = build(&udp6, good, 10, 0, false);
	for (size_t i = 0; i < ARRAY_LEN(v6); i++) {
		memcpy(pkt, good, len);
		set_addr(pkt + 8, v6[i].ip);
		assert_int_equal(may(pkt, len), v6[i].as_source);
		memcpy(pkt, good, len);
		set_addr(pkt + 24, v6[i].ip);
		assert_int_equal(may(pkt, len), v6[i].as_destination);
	}
}

/* Never about an error: two gateways would answer each other for ever. */
static void icmp_types(void **state)
{
	uint8_t pkt[256];
	uint32_t len = build(&udp4, pkt, 10, 0, false);

	pkt[9] = IPPROTO_ICMP;
	for (unsigned type = 0; type < 256; type++) {
		bool is_error = type == ICMP_DEST_UNREACH || type == ICMP_SOURCE_QUENCH ||
			type == ICMP_REDIRECT || type == ICMP_TIME_EXCEEDED ||
			type == ICMP_PARAMETERPROB || type > 18;

		pkt[20] = (uint8_t)type;
		assert_int_equal(may(pkt, len), !is_error);
	}
	pkt[20] = ICMP_ECHO;
	assert_true(may_cut(pkt, 21));
	assert_false(may_cut(pkt, 20)); /* no type to be seen */

	len = build(&udp6, pkt, 10, 0, false);
	pkt[6] = IPPROTO_ICMPV6;
	for (unsigned type = 0; type < 256; type++) {
		pkt[40] = (uint8_t)type;
		assert_int_equal(may(pkt, len), type >= 128 && type != ND_REDIRECT);
	}
	pkt[40] = ICMP6_ECHO_REQUEST;
	assert_true(may_cut(pkt, 41));
	assert_false(may_cut(pkt, 40));
}

static void fragments(void **state)
{
	uint8_t pkt[256];
	uint32_t len = build(&tcp4, pkt, 100, 0, false);

	put_be16(pkt + 6, 0x2000);
	assert_true(may(pkt, len)); /* the first */
	put_be16(pkt + 6, 0x4000);
	assert_true(may(pkt, len));
	put_be16(pkt + 6, 0x0001);
	assert_false(may(pkt, len)); /* the last */
	put_be16(pkt + 6, 0x3fff);
	assert_false(may(pkt, len));

	len = build(&udp6, pkt, 100, 0, false);
	pkt[6] = IPPROTO_FRAGMENT;
	memset(pkt + 40, 0, 8);
	pkt[40] = IPPROTO_UDP;
	pkt[43] = 1; /* more follow */
	assert_true(may(pkt, len));
	pkt[43] = 8;
	assert_false(may(pkt, len));
}

static void lengths(void **state)
{
	uint8_t pkt[256];
	uint32_t len = build(&tcp4, pkt, 10, 0, false);
	struct icmp_cause c;

	/* Cut behind the IP header is fine, within it is not; its length field says nothing. */
	for (uint32_t n = 0; n <= len; n++)
		assert_int_equal(may_cut(pkt, n), n >= 20);
	for (unsigned ihl = 0; ihl < 16; ihl++) {
		pkt[0] = (uint8_t)(0x40 | ihl);
		assert_int_equal(may(pkt, 59), ihl >= 5 && ihl * 4 <= 59);
	}
	for (unsigned v = 0; v < 16; v++) {
		pkt[0] = (uint8_t)(v << 4 | 5);
		if (v != 6)
			assert_int_equal(may(pkt, len), v == 4);
	}
	len = build(&udp6, pkt, 10, 0, false);
	for (uint32_t n = 0; n <= len; n++)
		assert_int_equal(may_cut(pkt, n), n >= 40);
	assert_true(icmp_cause_parse(&c, pkt, len));
	assert_int_equal(c.family, AF_INET6);
	assert_int_equal(c.proto, IPPROTO_UDP);
	assert_int_equal(c.l4_at, 40);
	assert_int_equal(c.tos, 0x2e);
	assert_int_equal(c.len, len);
	assert_ptr_equal(c.src, pkt + 8);
	assert_ptr_equal(c.dst, pkt + 24);
}

/* An ICMPv6 message behind extension headers is found; a chain that ends outside is not
 * followed. */
static void extension_headers(void **state)
{
	static const uint8_t hop[] = { IPPROTO_AH, 1 }, ah[] = { IPPROTO_DSTOPTS, 4 },
			     opts[] = { IPPROTO_ICMPV6, 0 };
	uint8_t pkt[400] = { 0 };
	struct icmp_cause c;

	build(&udp6, pkt, 200, 0, false);
	pkt[6] = IPPROTO_HOPOPTS;
	memcpy(pkt + 40, hop, 2); /* 16 bytes */
	memcpy(pkt + 56, ah, 2); /* 24 bytes */
	memcpy(pkt + 80, opts, 2); /* 8 bytes */
	pkt[88] = ICMP6_ECHO_REQUEST;
	assert_true(icmp_cause_parse(&c, pkt, 100));
	assert_int_equal(c.proto, IPPROTO_ICMPV6);
	assert_int_equal(c.l4_at, 88);
	for (uint32_t n = 0; n < 100; n++)
		assert_int_equal(may_cut(pkt, n), n > 88);
	pkt[88] = ICMP6_TIME_EXCEEDED;
	assert_false(may(pkt, 100));
	/* A chain without end */
	memset(pkt + 40, 0, sizeof(pkt) - 40);
	assert_false(may(pkt, sizeof(pkt)));
	/* What we do not know is answered. */
	pkt[6] = IPPROTO_ESP;
	assert_true(may(pkt, sizeof(pkt)));
}

/* ---- What is in it. */

static void check_v4(const struct icmp_cause *c, const uint8_t *pkt, uint32_t quoted)
{
	static const uint8_t router[] = { 192, 0, 2, 9 };
	uint8_t msg[ICMP_UNREACH_MAX], out[ICMP_UNREACH_PACKET_MAX];
	size_t len = icmp_unreach_message(c, msg);

	assert_int_equal(len, 8 + quoted);
	assert_int_equal(msg[0], 3);
	assert_int_equal(msg[1], 1);
	assert_int_equal(ref_sum(0, msg, len), 0xffff);
	assert_int_equal(get_be32(msg + 4), 0);
	assert_memory_equal(msg + 8, pkt, quoted);

	assert_int_equal(icmp_unreach_packet(c, router, out), 20 + len);
	assert_int_equal(out[0], 0x45);
	assert_int_equal(out[1], icmp_unreach_tos(c));
	assert_int_equal(get_be16(out + 2), 20 + len);
	assert_int_equal(out[9], IPPROTO_ICMP);
	assert_memory_equal(out + 12, router, 4);
	assert_memory_equal(out + 16, pkt + 12, 4);
	assert_int_equal(ref_sum(0, out, 20), 0xffff);
	assert_memory_equal(out + 20, msg, len);
	/* We would not answer it ourselves. */
	assert_false(may(out, 20 + len));
}

static void message_v4(void **state)
{
	uint8_t pkt[2048];
	struct icmp_cause c;

	for (uint32_t n = 0; n < 1400; n += 37) {
		uint32_t len = build(&tcp4, pkt, n, 0, false);

		assert_true(icmp_cause_parse(&c, pkt, len));
		/* 576 bytes in all */
		check_v4(&c, pkt, len < 548 ? len : 548);
	}
	/* Precedence 6, the packet's TOS, no ECN */
	assert_int_equal(c.tos, 0x7f);
	assert_int_equal(icmp_unreach_tos(&c), 0xdc);
}

static void message_v6(void **state)
{
	uint8_t pkt[2048], msg[ICMP_UNREACH_MAX], out[ICMP_UNREACH_PACKET_MAX], router[16];
	struct icmp_cause c;

	set_addr(router, "2001:db8::9");
	for (uint32_t n = 0; n < 1900; n += 61) {
		uint32_t len = build(&udp6, pkt, n, 0, false), quoted = len < 1232 ? len : 1232;
		size_t msg_len;

		assert_true(icmp_cause_parse(&c, pkt, len));
		msg_len = icmp_unreach_message(&c, msg);
		assert_int_equal(msg_len, 8 + quoted);
		assert_int_equal(get_be32(msg), 0x01030000); /* the kernel fills in the sum */
		assert_memory_equal(msg + 8, pkt, quoted);
		assert_int_equal(icmp_unreach_tos(&c), 0);

		assert_int_equal(icmp_unreach_packet(&c, router, out), 40 + msg_len);
		assert_int_equal(get_be32(out), 6u << 28);
		assert_int_equal(get_be16(out + 4), msg_len);
		assert_int_equal(out[6], IPPROTO_ICMPV6);
		assert_memory_equal(out + 8, router, 16);
		assert_memory_equal(out + 24, pkt + 8, 16);
		assert_true(is_valid(out, (uint32_t)(40 + msg_len), 40));
		assert_memory_equal(out + 48, pkt, quoted);
		assert_false(may(out, 40 + msg_len));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses),
		cmocka_unit_test(icmp_types),
		cmocka_unit_test(fragments),
		cmocka_unit_test(lengths),
		cmocka_unit_test(extension_headers),
		cmocka_unit_test(message_v4),
		cmocka_unit_test(message_v6),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
