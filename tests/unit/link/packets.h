/* Packets for the tests of src/link: built and checked with a checksum of their
 * own, one 16-bit word at a time, so that a fault in wire/csum.c shows. */
#ifndef TEST_LINK_PACKETS_H
#define TEST_LINK_PACKETS_H

#include "base/bytes.h"
#include "link/link.h"
#include <netinet/in.h>
#include <string.h>

struct spec {
	uint8_t family; /* AF_INET, AF_INET6 */
	uint8_t proto; /* IPPROTO_TCP, IPPROTO_UDP */
	uint8_t tos, ttl, flags, opt_len; /* opt_len: bytes of TCP options, in fours */
	uint16_t id, flow; /* flow: source port */
	bool has_df;
	uint32_t seq, ack;
	uint16_t window;
};

static inline uint32_t test_rand(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static inline uint32_t ref_sum(uint32_t sum, const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Sum of the pseudo header, host order, folded. */
static inline uint32_t ref_pseudo(const uint8_t *pkt, uint32_t l4_len)
{
	bool is_v4 = pkt[0] >> 4 == 4;
	uint8_t tail[8] = { 0, 0, 0, 0, 0, 0, 0, pkt[is_v4 ? 9 : 6] };

	put_be32(tail, l4_len);
	return ref_sum(ref_sum(0, pkt + (is_v4 ? 12 : 8), is_v4 ? 8 : 32), tail, sizeof(tail));
}

static inline unsigned ip_hdr(const struct spec *s)
{
	return s->family == AF_INET ? 20 : 40;
}

static inline unsigned l4_hdr(const struct spec *s)
{
	return s->proto == IPPROTO_TCP ? 20u + s->opt_len : 8;
}

static inline void put_ip_header(const struct spec *s, uint8_t *pkt, uint32_t len)
{
	if (s->family == AF_INET) {
		pkt[0] = 0x45;
		pkt[1] = s->tos;
		put_be16(pkt + 2, (uint16_t)len);
		put_be16(pkt + 4, s->id);
		pkt[6] = s->has_df ? 0x40 : 0;
		pkt[8] = s->ttl;
		pkt[9] = s->proto;
		put_be32(pkt + 12, 0x0a000001);
		put_be32(pkt + 16, 0x0a000002);
		put_be16(pkt + 10, (uint16_t)~ref_sum(0, pkt, 20));
		return;
	}
	put_be32(pkt, 6u << 28 | (uint32_t)s->tos << 20 | 0x12345);
	put_be16(pkt + 4, (uint16_t)(len - 40));
	pkt[6] = s->proto;
	pkt[7] = s->ttl;
	memset(pkt + 8, 0xfd, 16);
	memset(pkt + 24, 0xfe, 16);
}

/* Write the whole packet: n bytes of payload from a stream that depends on the
 * position only. Returns its length. The checksum field holds the finished sum, or
 * the pseudo header's when is_partial. */
static inline uint32_t build(
	const struct spec *s, uint8_t *pkt, uint32_t n, uint32_t pos, bool is_partial)
{
	uint32_t len = ip_hdr(s) + l4_hdr(s) + n, l4_len = l4_hdr(s) + n, sum;
	uint8_t *l4 = pkt + ip_hdr(s), *field = l4 + (s->proto == IPPROTO_TCP ? 16 : 6);

	memset(pkt, 0, ip_hdr(s) + l4_hdr(s));
	put_ip_header(s, pkt, len);
	put_be16(l4, s->flow);
	put_be16(l4 + 2, 443);
	if (s->proto == IPPROTO_TCP) {
		put_be32(l4 + 4, s->seq);
		put_be32(l4 + 8, s->ack);
		l4[12] = (uint8_t)(l4_hdr(s) / 4 << 4);
		l4[13] = s->flags;
		put_be16(l4 + 14, s->window);
		memset(l4 + 20, 1, s->opt_len);
	} else {
		put_be16(l4 + 4, (uint16_t)l4_len);
	}
	for (uint32_t i = 0; i < n; i++)
		l4[l4_hdr(s) + i] = (uint8_t)((pos + i) * 2654435761u >> 24);
	sum = ref_pseudo(pkt, l4_len);
	if (!is_partial) {
		sum = ~ref_sum(sum, l4, l4_len) & 0xffff;
		if (!sum && s->proto == IPPROTO_UDP)
			sum = 0xffff;
	}
	put_be16(field, (uint16_t)sum);
	return len;
}

/* Are the IP and L4 checksums of a whole packet right? ip_len: where L4 starts. */
static inline bool is_valid(const uint8_t *pkt, uint32_t len, uint32_t ip_len)
{
	if (pkt[0] >> 4 == 4 && ref_sum(0, pkt, ip_len) != 0xffff)
		return false;
	return ref_sum(ref_pseudo(pkt, len - ip_len), pkt + ip_len, len - ip_len) == 0xffff;
}

/* The vnet header that the kernel gives a superframe of this kind. */
static inline struct virtio_net_hdr vnet_of(const struct spec *s, uint16_t gso_len)
{
	struct virtio_net_hdr v = {
		.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
		.gso_type = 5,
		.hdr_len = (uint16_t)(ip_hdr(s) + l4_hdr(s)),
		.gso_size = gso_len,
		.csum_start = (uint16_t)ip_hdr(s),
		.csum_offset = s->proto == IPPROTO_TCP ? 16 : 6,
	};

	if (s->proto == IPPROTO_TCP)
		v.gso_type =
			s->family == AF_INET ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_TCPV6;
	return v;
}

#endif
