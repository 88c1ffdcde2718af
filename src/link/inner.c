/* Inner packets: one look at the headers that decides what a packet is.
 *
 * Nothing behind the IP length field is ever looked at, and a packet that claims
 * more bytes than there are is refused, so that users of struct inner need no
 * further check. What has no plain TCP or UDP header right behind the IP header
 * (fragments, IPv6 extension headers, other protocols, headers that lie) is
 * INNER_OTHER: it is carried, but never cut or coalesced. */
#include "link.h"

#include "base/bytes.h"
#include <netinet/in.h>

enum {
	IPV4_HDR_MIN = 20,
	IPV4_FRAGMENT = 0x3fff, /* more fragments, or an offset */
	IPV6_HDR = 40,
	TCP_HDR_MIN = 20,
	UDP_HDR = 8,
};

/* Recognise the L4 header at in->ip_len. The IP part of in is filled and true. */
static void parse_l4(struct inner *in, const uint8_t *pkt, uint8_t proto)
{
	const uint8_t *l4 = pkt + in->ip_len;
	uint32_t l4_len = in->len - in->ip_len, hdr;

	if (proto == IPPROTO_TCP && l4_len >= TCP_HDR_MIN) {
		hdr = (l4[12] >> 4) * 4;
		if (hdr < TCP_HDR_MIN || hdr > l4_len)
			return;
		in->l4 = INNER_TCP;
		in->hdr_len += hdr;
	} else if (proto == IPPROTO_UDP && l4_len >= UDP_HDR) {
		if (get_be16(l4 + 4) != l4_len)
			return;
		in->l4 = INNER_UDP;
		in->hdr_len += UDP_HDR;
	}
}

static bool parse_ipv4(struct inner *in, const uint8_t *pkt, size_t len)
{
	uint32_t hdr = (pkt[0] & 15) * 4, total = get_be16(pkt + 2);

	if (hdr < IPV4_HDR_MIN || total < hdr || total > len)
		return false;
	in->family = AF_INET;
	in->l4 = INNER_OTHER;
	in->tos = pkt[1];
	in->ip_len = (uint8_t)hdr;
	in->hdr_len = (uint16_t)hdr;
	in->len = total;
	in->src = pkt + 12;
	in->dst = pkt + 16;
	if (!(get_be16(pkt + 6) & IPV4_FRAGMENT))
		parse_l4(in, pkt, pkt[9]);
	return true;
}

static bool parse_ipv6(struct inner *in, const uint8_t *pkt, size_t len)
{
	uint32_t total;

	if (len < IPV6_HDR)
		return false;
	total = IPV6_HDR + get_be16(pkt + 4);
	if (total > len)
		return false;
	in->family = AF_INET6;
	in->l4 = INNER_OTHER;
	in->tos = (uint8_t)(get_be16(pkt) >> 4);
	in->ip_len = IPV6_HDR;
	in->hdr_len = IPV6_HDR;
	in->len = total;
	in->src = pkt + 8;
	in->dst = pkt + 24;
	parse_l4(in, pkt, pkt[6]);
	return true;
}

bool inner_parse(struct inner *out, const uint8_t *pkt, size_t len)
{
	if (len < IPV4_HDR_MIN)
		return false;
	switch (pkt[0] >> 4) {
	case 4:
		return parse_ipv4(out, pkt, len);
	case 6:
		return parse_ipv6(out, pkt, len);
	default:
		return false;
	}
}
