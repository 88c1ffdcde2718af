/* A superframe from the TUN becomes equal segments, each a whole packet.
 *
 * split_init() looks at everything once: it checks the vnet header against the
 * packet, and sums what all segments have in common. split_segment() then copies
 * the headers and one piece of payload, corrects the few fields that differ and
 * completes the checksums; the payload is summed where it has just been
 * written, so that it comes from the first-level cache.
 *
 * The kernel leaves the pseudo header's sum in the checksum field of a packet
 * with VIRTIO_NET_HDR_F_NEEDS_CSUM. It is taken from there and not worked out
 * anew: with a routing header the kernel alone knows the final destination.
 * The header length in the vnet header is only a hint and not used. */
#include "link.h"

#include "base/bytes.h"
#include "wire/csum.h"

enum {
	VNET_HDR = sizeof(struct virtio_net_hdr),
	VNET_GSO_UDP_L4 = 5, /* VIRTIO_NET_HDR_GSO_UDP_L4, Linux 6.2 */
	TCP_HDR_MIN = 20,
	TCP_CSUM = 16, /* offsets in the header */
	TCP_FLAGS = 13,
	TCP_FIN = 0x01,
	TCP_PSH = 0x08,
	TCP_CWR = 0x80,
	UDP_HDR = 8,
	UDP_CSUM = 6,
};

/* Zero means "no checksum" in UDP; 0xffff is the same number (RFC 768). TCP does
 * not mind. */
static void store_csum(uint8_t *field, uint64_t sum)
{
	uint16_t v = (uint16_t)~csum_fold(sum);

	if (!v)
		v = 0xffff;
	memcpy(field, &v, sizeof(v));
}

/* Where the L4 header of a superframe ends; 0: not the header that gso says. */
static uint32_t gso_hdr_len(const struct split *s)
{
	const uint8_t *l4 = s->pkt + s->csum_start;
	uint32_t room = s->len - s->csum_start, hdr = UDP_HDR;

	/* Behind the IP header stands the L4 header, or IPv6 extension headers. */
	if (s->in.l4 != (s->is_tcp ? INNER_TCP : INNER_UDP)) {
		if (s->in.family != AF_INET6 || s->csum_start <= s->in.ip_len)
			return 0;
	} else if (s->csum_start != s->in.ip_len) {
		return 0;
	}
	if (s->is_tcp) {
		if (room < TCP_HDR_MIN)
			return 0;
		hdr = (l4[12] >> 4) * 4;
		if (hdr < TCP_HDR_MIN)
			return 0;
	}
	return hdr <= room ? s->csum_start + hdr : 0;
}

/* Sum up what does not change from segment to segment. */
static void sum_common(struct split *s)
{
	const uint8_t *l4 = s->pkt + s->csum_start;
	uint16_t not_l4_len = htobe16((uint16_t)(s->len - s->csum_start)) ^ 0xffff;

	if (s->in.family == AF_INET) {
		s->ip_id = get_be16(s->pkt + 4);
		s->ip_sum = csum_add(0, s->pkt, s->in.ip_len) + (uint16_t)~get_ne16(s->pkt + 2) +
			(uint16_t)~get_ne16(s->pkt + 4) + (uint16_t)~get_ne16(s->pkt + 10);
	}
	/* The checksum field is part of what is added: the pseudo header. */
	s->l4_sum = csum_add(0, l4, s->hdr_len - s->csum_start) + not_l4_len;
	if (s->is_tcp) {
		s->seq = get_be32(l4 + 4);
		s->l4_sum += (uint32_t)~get_ne32(l4 + 4);
		s->l4_sum += (uint16_t)~get_ne16(l4 + 12);
	} else {
		s->l4_sum += (uint16_t)~get_ne16(l4 + 4);
	}
}

static enum split_drop init_gso(struct split *s, const struct virtio_net_hdr *v)
{
	uint8_t type = v->gso_type & (uint8_t)~VIRTIO_NET_HDR_GSO_ECN;
	uint8_t family = AF_INET;
	uint32_t payload;

	s->is_tcp = type != VNET_GSO_UDP_L4;
	if (type == VIRTIO_NET_HDR_GSO_TCPV6)
		family = AF_INET6;
	else if (type == VNET_GSO_UDP_L4)
		family = s->in.family;
	else if (type != VIRTIO_NET_HDR_GSO_TCPV4)
		return SPLIT_VNET;
	if (s->in.family != family || !v->gso_size || !s->needs_csum)
		return SPLIT_VNET;
	if (s->csum_offset != (s->is_tcp ? TCP_CSUM : UDP_CSUM))
		return SPLIT_VNET;
	s->hdr_len = (uint16_t)gso_hdr_len(s);
	if (!s->hdr_len)
		return SPLIT_VNET;
	payload = s->len - s->hdr_len;
	if (payload <= v->gso_size)
		return SPLIT_OK;
	s->gso_len = v->gso_size;
	s->n = (payload + s->gso_len - 1) / s->gso_len;
	s->seg_len = s->hdr_len + s->gso_len;
	s->last_len = s->len - (s->n - 1) * s->gso_len;
	sum_common(s);
	return SPLIT_OK;
}

enum split_drop split_init(struct split *s, const uint8_t *frame, size_t len, bool has_vnet)
{
	struct virtio_net_hdr v = { 0 };

	if (has_vnet) {
		if (len < VNET_HDR)
			return SPLIT_SHORT;
		memcpy(&v, frame, VNET_HDR);
		frame += VNET_HDR;
		len -= VNET_HDR;
	}
	if (!len)
		return SPLIT_SHORT;
	if (!inner_parse(&s->in, frame, len))
		return SPLIT_INNER;
	s->pkt = frame;
	s->len = s->in.len;
	s->gso_len = 0;
	s->n = 1;
	s->seg_len = s->len;
	s->last_len = s->len;
	s->needs_csum = v.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM;
	if (s->needs_csum) {
		s->csum_start = v.csum_start;
		s->csum_offset = v.csum_offset;
		/* The field lies in the packet and not in the IP header. */
		if (v.csum_start < s->in.ip_len ||
			(uint32_t)v.csum_start + v.csum_offset + 2 > s->len)
			return SPLIT_VNET;
	}
	return v.gso_type == VIRTIO_NET_HDR_GSO_NONE ? SPLIT_OK : init_gso(s, &v);
}

static size_t copy_whole(const struct split *s, uint8_t *out)
{
	uint8_t *l4 = out + s->csum_start;

	memcpy(out, s->pkt, s->len);
	if (s->needs_csum)
		store_csum(l4 + s->csum_offset, csum_add(0, l4, s->len - s->csum_start));
	return s->len;
}

/* Lengths, id and header checksum of segment i. */
static void put_ip(const struct split *s, uint32_t i, uint32_t len, uint8_t *out)
{
	uint16_t total = htobe16((uint16_t)len), id, sum;

	if (s->in.family == AF_INET6) {
		put_be16(out + 4, (uint16_t)(len - s->in.ip_len));
		return;
	}
	id = htobe16((uint16_t)(s->ip_id + i));
	sum = (uint16_t)~csum_fold(s->ip_sum + total + id);
	memcpy(out + 2, &total, 2);
	memcpy(out + 4, &id, 2);
	memcpy(out + 10, &sum, 2);
}

size_t split_segment(const struct split *s, uint32_t i, uint8_t *out)
{
	uint32_t len = i + 1 < s->n ? s->seg_len : s->last_len;
	uint8_t *l4 = out + s->csum_start;
	uint32_t payload, seq;
	uint16_t l4_len;
	uint64_t sum;

	if (!s->gso_len)
		return copy_whole(s, out);
	payload = len - s->hdr_len;
	memcpy(out, s->pkt, s->hdr_len);
	memcpy(out + s->hdr_len, s->pkt + s->hdr_len + i * s->gso_len, payload);
	put_ip(s, i, len, out);

	l4_len = htobe16((uint16_t)(len - s->csum_start));
	sum = s->l4_sum + l4_len;
	if (s->is_tcp) {
		seq = htobe32(s->seq + i * s->gso_len);
		memcpy(l4 + 4, &seq, 4);
		/* FIN and PSH belong to the last byte, CWR to the first. */
		if (i + 1 < s->n)
			l4[TCP_FLAGS] &= (uint8_t) ~(TCP_FIN | TCP_PSH);
		if (i)
			l4[TCP_FLAGS] &= (uint8_t)~TCP_CWR;
		sum += seq;
		sum += get_ne16(l4 + 12);
	} else {
		memcpy(l4 + 4, &l4_len, 2);
		sum += l4_len;
	}
	store_csum(l4 + s->csum_offset, csum_add(sum, out + s->hdr_len, payload));
	return len;
}
