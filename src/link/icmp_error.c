/* ICMP errors about packets that lead nowhere: which packets may be answered
 * with one, and what is in it.
 *
 * The packet may be cut (an error quotes its beginning only), so nothing here
 * trusts its length fields; a question that the bytes there are do not answer is
 * answered by silence. The rules are those of RFC 1122 3.2.2, RFC 1812 4.3.2
 * and RFC 4443 2.4, the sizes those of Linux. Directed broadcast addresses look
 * like any others from here: whoever knows the interfaces has to refuse them. */
#include "link.h"

#include "base/bytes.h"
#include "wire/csum.h"
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>

enum {
	IPV4_HDR = 20,
	IPV4_OFFSET_MASK = 0x1fff,
	IPV4_DF = 0x4000,
	IPV6_HDR = 40,
	IPV6_OFFSET_MASK = 0xfff8,
	ICMP_TYPES = 19, /* Linux NR_ICMP_TYPES: those beyond may be errors of the future */
	TOS_MASK = 0x1c, /* the old TOS bits (RFC 1349) without ECN */
	TOS_INTERNETCONTROL = 0xc0, /* RFC 1812 4.3.2.5 */
	ERROR_TTL = 64,
	HEADERS_MAX = 8, /* of IPv6 extension headers */
};

/* ---- Which packets. */

/* Not the address of a single host? */
static bool is_group4(const uint8_t *ip)
{
	/* 0/8: "this network". 224/4 and up: multicast, reserved, broadcast. */
	return ip[0] == 0 || ip[0] >= 224;
}

static bool is_unspecified6(const uint8_t *ip)
{
	static const uint8_t none[16];

	return !memcmp(ip, none, sizeof(none));
}

static bool is_group6(const uint8_t *ip)
{
	return ip[0] == 0xff || is_unspecified6(ip);
}

static bool is_error4(uint8_t type)
{
	switch (type) {
	case ICMP_DEST_UNREACH:
	case ICMP_SOURCE_QUENCH:
	case ICMP_REDIRECT:
	case ICMP_TIME_EXCEEDED:
	case ICMP_PARAMETERPROB:
		return true;
	default:
		return type >= ICMP_TYPES;
	}
}

static bool is_error6(uint8_t type)
{
	return !(type & ICMP6_INFOMSG_MASK) || type == ND_REDIRECT;
}

static bool parse_ipv4(struct icmp_cause *c, const uint8_t *pkt, size_t len)
{
	size_t hdr = (size_t)(pkt[0] & 15) * 4;

	if (hdr < IPV4_HDR || len < hdr || get_be16(pkt + 6) & IPV4_OFFSET_MASK)
		return false;
	c->src = pkt + 12;
	c->dst = pkt + 16;
	c->proto = pkt[9];
	c->l4_at = (uint16_t)hdr;
	/* A loopback address is nobody's outside its machine. */
	if (is_group4(c->src) || c->src[0] == IN_LOOPBACKNET || is_group4(c->dst))
		return false;
	if (c->proto == IPPROTO_ICMP)
		return len > hdr && !is_error4(pkt[hdr]);
	return true;
}

/* Step over one extension header. 1: done; 0: it is none; -1: its end is not here, or
 * it says that the packet is no first fragment. */
static int skip_header(struct icmp_cause *c, const uint8_t *pkt, size_t len)
{
	const uint8_t *h = pkt + c->l4_at;
	size_t n, left = len - c->l4_at;

	switch (c->proto) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
		n = left < 2 ? 8 : ((size_t)h[1] + 1) * 8;
		break;
	case IPPROTO_AH:
		n = left < 2 ? 8 : ((size_t)h[1] + 2) * 4;
		break;
	case IPPROTO_FRAGMENT:
		n = 8;
		break;
	default:
		return 0;
	}
	if (n > left)
		return -1;
	if (c->proto == IPPROTO_FRAGMENT && get_be16(h + 2) & IPV6_OFFSET_MASK)
		return -1;
	c->proto = h[0];
	c->l4_at = (uint16_t)(c->l4_at + n);
	return 1;
}

static bool parse_ipv6(struct icmp_cause *c, const uint8_t *pkt, size_t len)
{
	int ret = 1;

	if (len < IPV6_HDR)
		return false;
	c->src = pkt + 8;
	c->dst = pkt + 24;
	c->proto = pkt[6];
	c->l4_at = IPV6_HDR;
	if (is_group6(c->src) || is_group6(c->dst))
		return false;
	for (int i = 0; i < HEADERS_MAX && ret == 1; i++)
		ret = skip_header(c, pkt, len);
	if (ret != 0)
		return false;
	if (c->proto == IPPROTO_ICMPV6)
		return len > c->l4_at && !is_error6(pkt[c->l4_at]);
	return true;
}

bool icmp_cause_parse(struct icmp_cause *out, const uint8_t *pkt, size_t len)
{
	if (len < IPV4_HDR)
		return false;
	out->pkt = pkt;
	switch (pkt[0] >> 4) {
	case 4:
		out->family = AF_INET;
		out->tos = pkt[1];
		out->len = (uint32_t)(len < ICMP_QUOTE4 ? len : ICMP_QUOTE4);
		return parse_ipv4(out, pkt, out->len);
	case 6:
		out->family = AF_INET6;
		out->tos = (uint8_t)(get_be16(pkt) >> 4);
		out->len = (uint32_t)(len < ICMP_QUOTE6 ? len : ICMP_QUOTE6);
		return parse_ipv6(out, pkt, out->len);
	default:
		return false;
	}
}

/* ---- What is in it. */

uint8_t icmp_unreach_tos(const struct icmp_cause *c)
{
	/* IPv6 has no such rule; Linux leaves it 0. */
	return c->family == AF_INET ? (c->tos & TOS_MASK) | TOS_INTERNETCONTROL : 0;
}

static void put_csum(uint8_t *at, uint64_t sum)
{
	uint16_t v = (uint16_t)~csum_fold(sum);

	memcpy(at, &v, sizeof(v));
}

size_t icmp_unreach_message(const struct icmp_cause *c, uint8_t out[ICMP_UNREACH_MAX])
{
	bool is_v4 = c->family == AF_INET;
	size_t len = ICMP_HDR + c->len;

	memset(out, 0, ICMP_HDR);
	out[0] = is_v4 ? ICMP_DEST_UNREACH : ICMP6_DST_UNREACH;
	out[1] = is_v4 ? ICMP_HOST_UNREACH : ICMP6_DST_UNREACH_ADDR;
	memcpy(out + ICMP_HDR, c->pkt, c->len);
	if (is_v4)
		put_csum(out + 2, csum_add(0, out, len));
	return len;
}

size_t icmp_unreach_packet(
	const struct icmp_cause *c, const uint8_t *src, uint8_t out[ICMP_UNREACH_PACKET_MAX])
{
	uint8_t *msg = out + (c->family == AF_INET ? IPV4_HDR : IPV6_HDR);
	size_t len = icmp_unreach_message(c, msg);

	memset(out, 0, (size_t)(msg - out));
	if (c->family == AF_INET) {
		out[0] = 0x45;
		out[1] = icmp_unreach_tos(c);
		put_be16(out + 2, (uint16_t)(IPV4_HDR + len));
		/* Never a fragment: an id of 0 will do (RFC 6864). */
		put_be16(out + 6, IPV4_DF);
		out[8] = ERROR_TTL;
		out[9] = IPPROTO_ICMP;
		memcpy(out + 12, src, 4);
		memcpy(out + 16, c->src, 4);
		put_csum(out + 10, csum_add(0, out, IPV4_HDR));
		return IPV4_HDR + len;
	}
	out[0] = 0x60;
	put_be16(out + 4, (uint16_t)len);
	out[6] = IPPROTO_ICMPV6;
	out[7] = ERROR_TTL;
	memcpy(out + 8, src, 16);
	memcpy(out + 24, c->src, 16);
	put_csum(msg + 2,
		csum_add(csum_pseudo(src, c->src, 16, IPPROTO_ICMPV6, (uint32_t)len), msg, len));
	return IPV6_HDR + len;
}
