/* Which packets may be answered by an ICMP error, on arbitrary bytes in an allocation of
 * their exact size, and what the answer is: it fits, its lengths and checksums are
 * right, it quotes the packet, and it is nothing that would be answered again. */
#include "base/bytes.h"
#include "link/link.h"
#include "wire/csum.h"
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(bool is_right)
{
	if (!is_right)
		abort();
}

static void check_packet(const struct icmp_cause *c, const uint8_t *out, size_t len)
{
	bool is_v4 = c->family == AF_INET;
	size_t hdr = is_v4 ? 20 : 40, msg_len = len - hdr;
	struct icmp_cause again;
	struct inner in;

	check(inner_parse(&in, out, len) && in.len == len && in.ip_len == hdr);
	check(!memcmp(in.dst, c->src, is_v4 ? 4 : 16));
	if (is_v4)
		check(csum_fold(csum_add(0, out, hdr)) == 0xffff);
	check(csum_fold(csum_add(is_v4
			      ? 0
			      : csum_pseudo(in.src, in.dst, 16, IPPROTO_ICMPV6, (uint32_t)msg_len),
		      out + hdr, msg_len)) == 0xffff);
	check(!memcmp(out + hdr + ICMP_HDR, c->pkt, c->len));
	check(!icmp_cause_parse(&again, out, len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	uint8_t *pkt = malloc(len ? len : 1), *out = malloc(ICMP_UNREACH_PACKET_MAX),
		*msg = malloc(ICMP_UNREACH_MAX);
	struct icmp_cause c, cut;
	size_t n;

	if (len)
		memcpy(pkt, data, len);
	if (icmp_cause_parse(&c, pkt, len)) {
		check(c.len <= len && c.l4_at <= c.len);
		check(c.len <= (c.family == AF_INET ? ICMP_QUOTE4 : ICMP_QUOTE6));
		check(c.src > pkt && c.dst > c.src);
		check(icmp_unreach_message(&c, msg) == ICMP_HDR + c.len);
		n = icmp_unreach_packet(&c, c.dst, out);
		check(n <= (c.family == AF_INET ? 576 : 1280));
		check_packet(&c, out, n);
		/* The quote alone says the same: it is all that the helper is given. */
		check(icmp_cause_parse(&cut, pkt, c.len) && cut.len == c.len);
		check(cut.proto == c.proto && cut.l4_at == c.l4_at);
	}
	free(msg);
	free(out);
	free(pkt);
	return 0;
}
