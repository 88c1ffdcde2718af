/* Packets of a batch become superframes for the TUN: what the kernel's GRO does
 * (facts: Linux 6.x net/ipv4/tcp_offload.c, udp_offload.c, af_inet.c), in user
 * space, so that one writev carries many packets.
 *
 * merge_add() either appends a packet to the open superframe of its flow or
 * starts a frame with it. Frames leave in the order of their first packets; a
 * packet that its flow's superframe cannot take closes the superframe, so that
 * nothing of a flow overtakes anything of it. Payload stays where it is: a frame
 * is a list of pieces, of which the first is the first packet with its headers.
 *
 * A frame of several packets is written with NEEDS_CSUM, which makes the kernel
 * believe the payload. Therefore every packet's checksums are verified before it
 * may join, and a packet that fails leaves alone and as it came, for the
 * receiver to refuse.
 *
 * The flow table is a cache of WAYS-way sets: an entry that must go takes with it
 * only the chance of the superframe to grow. */
#include "link.h"

#include "base/bytes.h"
#include "wire/csum.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

enum {
	VNET_GSO_UDP_L4 = 5, /* VIRTIO_NET_HDR_GSO_UDP_L4, Linux 6.2 */
	IPV4_HDR = 20, /* without options: others are not coalesced */
	IPV6_HDR = 40,
	TCP_PSH = 0x08,
	TCP_ACK = 0x10,
	TCP_ECE = 0x40,
	FRAME_LEN_MAX = 65535,
	PIECES_MAX = 1023, /* + vnet header = UIO_MAXIOV */
	WAYS = 4,
	SETS = MERGE_FLOWS / WAYS,
	NO_FLOW = UINT32_MAX,
};
static_assert((SETS & (SETS - 1)) == 0, "a set is a mask away");

/* IPv4 identification from packet to packet, as GRO wants it. */
enum id_step {
	ID_UNKNOWN, /* one packet so far. To ID_NEXT, or with DF to ID_SAME. */
	ID_NEXT, /* each is one more than the last */
	ID_SAME, /* all alike: atomic datagrams (RFC 6864) */
};

struct piece {
	uint8_t *data;
	uint32_t len;
	uint32_t next; /* within the frame; undefined in its last piece */
};

/* One write to the TUN. From `family` on only set where it may grow. */
struct frame {
	uint8_t *pkt; /* the first packet */
	uint32_t first, last; /* pieces */
	uint32_t len; /* bytes, headers once */
	uint32_t n; /* packets */
	uint8_t family, l4, ip_len, hdr_len;
	uint16_t gso_len; /* payload of each but the last */
	uint16_t last_id;
	uint8_t id_step;
	bool has_push; /* TCP: the last packet brought PSH */
	uint32_t next_seq;
	struct virtio_net_hdr vnet;
};

/* tag 0: free. */
struct flow {
	uint32_t tag;
	uint32_t frame;
};

struct merge {
	struct flow flows[MERGE_FLOWS];
	uint32_t last_flow; /* the one that the last packet belonged to, if it is still open */
	bool has_flows; /* any since the reset */
	bool has_vnet, has_tso, has_uso;
	uint32_t n_frames, n_pieces;
	struct frame frames[MERGE_PACKETS_MAX];
	struct piece pieces[MERGE_PACKETS_MAX];
	struct iovec iov[2 * MERGE_PACKETS_MAX];
	struct io_tx tx[MERGE_PACKETS_MAX];
};

/* A packet that is being added. */
struct cand {
	struct inner in;
	uint8_t *pkt;
	const uint8_t *l4;
	uint32_t payload; /* bytes */
};

int merge_create(struct merge **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void merge_destroy(struct merge *m)
{
	free(m);
}

void merge_set_offloads(struct merge *m, unsigned offloads)
{
	m->has_vnet = offloads & OFFLOAD_VNET;
	m->has_tso = m->has_vnet && offloads & OFFLOAD_TSO;
	m->has_uso = m->has_vnet && offloads & OFFLOAD_USO;
}

/* ---- Flows. */

/* Source and destination address stand next to each other, and so do the ports. */
static bool is_same_flow(const struct frame *f, const struct cand *c)
{
	const uint8_t *addrs;

	if (f->family != c->in.family || f->l4 != c->in.l4)
		return false;
	if (get_ne32(f->pkt + f->ip_len) != get_ne32(c->l4))
		return false;
	if (f->family == AF_INET)
		return get_ne64(f->pkt + 12) == get_ne64(c->in.src);
	addrs = f->pkt + 8;
	return !((get_ne64(addrs) ^ get_ne64(c->in.src)) |
		(get_ne64(addrs + 8) ^ get_ne64(c->in.src + 8)) |
		(get_ne64(addrs + 16) ^ get_ne64(c->in.src + 16)) |
		(get_ne64(addrs + 24) ^ get_ne64(c->in.src + 24)));
}

/* Not keyed: who makes flows collide only keeps his own packets apart. */
static uint32_t flow_tag(const struct cand *c)
{
	const uint64_t odd = 0x9e3779b97f4a7c15; /* 2^64 divided by the golden ratio */
	uint64_t h = get_ne32(c->l4) ^ (uint64_t)c->in.l4 << 32;

	h = (h * odd) ^ get_ne64(c->in.src);
	if (c->in.family == AF_INET6) {
		h = (h * odd ^ h >> 29) ^ get_ne64(c->in.src + 8);
		h = (h * odd ^ h >> 29) ^ get_ne64(c->in.src + 16);
		h = (h * odd ^ h >> 29) ^ get_ne64(c->in.src + 24);
	}
	h = (h ^ h >> 32) * odd;
	return (uint32_t)(h >> 32) | 1;
}

/* The set of a tag; its lowest bit is always 1. */
static uint32_t flow_set(uint32_t tag)
{
	return (tag >> 1 & (SETS - 1)) * WAYS;
}

/* The open flow of a packet, or NO_FLOW. */
static uint32_t flow_find(struct merge *m, const struct cand *c)
{
	const struct flow *f = &m->flows[m->last_flow];
	uint32_t tag, i;

	if (f->tag && is_same_flow(&m->frames[f->frame], c))
		return m->last_flow;
	if (!m->has_flows)
		return NO_FLOW;
	tag = flow_tag(c);
	i = flow_set(tag);
	for (uint32_t end = i + WAYS; i < end; i++) {
		f = &m->flows[i];
		if (f->tag == tag && is_same_flow(&m->frames[f->frame], c)) {
			m->last_flow = i;
			return i;
		}
	}
	return NO_FLOW;
}

/* The flow's superframe grows no more. */
static void flow_close(struct merge *m, uint32_t flow)
{
	m->flows[flow].tag = 0;
}

static void flow_open(struct merge *m, const struct cand *c, uint32_t frame)
{
	uint32_t tag = flow_tag(c), i = flow_set(tag), best = i;

	for (uint32_t end = i + WAYS; i < end; i++) {
		if (!m->flows[i].tag) {
			best = i;
			break;
		}
		if (m->flows[i].frame < m->flows[best].frame)
			best = i;
	}
	m->flows[best] = (struct flow){ .tag = tag, .frame = frame };
	m->last_flow = best;
	m->has_flows = true;
}

/* A packet without visible ports (a fragment, extension headers) may belong to
 * any TCP or UDP flow between its two addresses: all of them close. */
static void close_between(struct merge *m, const struct cand *c)
{
	bool is_v4 = c->in.family == AF_INET;
	uint8_t proto = c->pkt[is_v4 ? 9 : 6];

	if (!m->has_flows)
		return;
	if (is_v4 ? proto != IPPROTO_TCP && proto != IPPROTO_UDP : proto == IPPROTO_ICMPV6)
		return;
	for (uint32_t i = 0; i < MERGE_FLOWS; i++) {
		const struct frame *f = &m->frames[m->flows[i].frame];

		if (m->flows[i].tag && f->family == c->in.family &&
			!memcmp(f->pkt + (is_v4 ? 12 : 8), c->in.src, is_v4 ? 8 : 32))
			flow_close(m, i);
	}
}

/* ---- Which packets may be coalesced at all. */

/* Only ACK, and PSH or ECE: anything else says something that must not move. */
static bool is_plain_tcp(const uint8_t *tcp)
{
	return (tcp[13] & ~(TCP_PSH | TCP_ECE)) == TCP_ACK && !(tcp[12] & 0x0f);
}

static bool are_checksums_good(const struct cand *c)
{
	uint32_t l4_len = c->in.len - c->in.ip_len;
	bool is_v4 = c->in.family == AF_INET;
	uint64_t sum;

	if (is_v4) {
		sum = get_ne64(c->pkt) & 0xffffffff;
		for (unsigned i = 4; i < IPV4_HDR; i += 4)
			sum += get_ne32(c->pkt + i);
		if (csum_fold(sum) != 0xffff)
			return false;
	}
	sum = csum_pseudo(c->in.src, c->in.dst, is_v4 ? 4 : 16,
		c->in.l4 == INNER_TCP ? IPPROTO_TCP : IPPROTO_UDP, l4_len);
	return csum_fold(csum_add(sum, c->l4, l4_len)) == 0xffff;
}

static bool can_coalesce(const struct merge *m, const struct cand *c)
{
	uint8_t ip_len = c->in.family == AF_INET ? IPV4_HDR : IPV6_HDR;

	if (!c->payload || c->in.ip_len != ip_len || c->in.len > FRAME_LEN_MAX)
		return false;
	if (c->in.l4 == INNER_TCP) {
		if (!m->has_tso || !is_plain_tcp(c->l4))
			return false;
	} else if (!m->has_uso || !get_ne16(c->l4 + 6)) {
		return false;
	}
	return are_checksums_good(c);
}

/* ---- Growing a superframe. */

static bool is_same_ipv4(const struct frame *f, const struct cand *c)
{
	uint16_t id = get_be16(c->pkt + 4);
	bool has_df = c->pkt[6] & 0x40;

	/* TOS; fragment flags, TTL, protocol */
	if (f->pkt[1] != c->pkt[1] || get_ne32(f->pkt + 6) != get_ne32(c->pkt + 6))
		return false;
	if (id == (uint16_t)(f->last_id + 1))
		return f->id_step != ID_SAME;
	return id == f->last_id && has_df && f->id_step != ID_NEXT;
}

static bool is_same_ipv6(const struct frame *f, const struct cand *c)
{
	/* version, traffic class, flow label; hop limit */
	return get_ne32(f->pkt) == get_ne32(c->pkt) && f->pkt[7] == c->pkt[7];
}

static bool is_next_tcp(const struct frame *f, const struct cand *c)
{
	const uint8_t *a = f->pkt + f->ip_len, *b = c->l4;
	const uint32_t push = htobe32(TCP_PSH << 16);

	/* sequence; acknowledgement; header length, flags, window; urgent pointer; options */
	return get_be32(b + 4) == f->next_seq && get_ne32(a + 8) == get_ne32(b + 8) &&
		!((get_ne32(a + 12) ^ get_ne32(b + 12)) & ~push) &&
		get_ne16(a + 18) == get_ne16(b + 18) &&
		!memcmp(a + 20, b + 20, (size_t)f->hdr_len - f->ip_len - 20);
}

static bool can_append(const struct frame *f, const struct cand *c)
{
	if (c->payload > f->gso_len || f->len + c->payload > FRAME_LEN_MAX)
		return false;
	if (!(f->family == AF_INET ? is_same_ipv4(f, c) : is_same_ipv6(f, c)))
		return false;
	return f->l4 == INNER_UDP || is_next_tcp(f, c);
}

static uint32_t add_piece(struct merge *m, uint8_t *data, uint32_t len)
{
	m->pieces[m->n_pieces] = (struct piece){ .data = data, .len = len };
	return m->n_pieces++;
}

static struct frame *add_frame(struct merge *m, uint8_t *pkt, uint32_t len)
{
	struct frame *f = &m->frames[m->n_frames++];

	f->pkt = pkt;
	f->len = len;
	f->n = 1;
	f->first = add_piece(m, pkt, len);
	f->last = f->first;
	return f;
}

static bool is_pushed(const struct cand *c)
{
	return c->in.l4 == INNER_TCP && c->l4[13] & TCP_PSH;
}

static void append(struct merge *m, uint32_t flow, const struct cand *c)
{
	struct frame *f = &m->frames[m->flows[flow].frame];
	uint32_t piece = add_piece(m, c->pkt + c->in.hdr_len, c->payload);
	uint32_t max = f->l4 == INNER_TCP ? PIECES_MAX : MERGE_SEGS_MAX;

	m->pieces[f->last].next = piece;
	f->last = piece;
	f->len += c->payload;
	f->n++;
	f->next_seq += c->payload;
	f->has_push = is_pushed(c);
	if (f->family == AF_INET) {
		uint16_t id = get_be16(c->pkt + 4);

		f->id_step = id == f->last_id ? ID_SAME : ID_NEXT;
		f->last_id = id;
	}
	if (f->has_push || c->payload < f->gso_len || f->n == max)
		flow_close(m, flow);
}

static void start(struct merge *m, const struct cand *c)
{
	struct frame *f = add_frame(m, c->pkt, c->in.len);

	if (is_pushed(c))
		return; /* nothing may follow it */
	f->family = c->in.family;
	f->l4 = c->in.l4;
	f->ip_len = c->in.ip_len;
	f->hdr_len = (uint8_t)c->in.hdr_len;
	f->gso_len = (uint16_t)c->payload;
	f->last_id = get_be16(c->pkt + 4);
	f->id_step = ID_UNKNOWN;
	f->has_push = false;
	f->next_seq = get_be32(c->l4 + 4) + c->payload;
	flow_open(m, c, m->n_frames - 1);
}

bool merge_add(struct merge *m, uint8_t *pkt, uint32_t len)
{
	struct cand c;
	uint32_t flow;

	if (m->n_pieces == MERGE_PACKETS_MAX)
		return false;
	if (!m->has_vnet || !inner_parse(&c.in, pkt, len)) {
		add_frame(m, pkt, len);
		return true;
	}
	c.pkt = pkt;
	c.l4 = pkt + c.in.ip_len;
	c.payload = c.in.len - c.in.hdr_len;
	if (c.in.l4 == INNER_OTHER) {
		close_between(m, &c);
		add_frame(m, pkt, c.in.len);
		return true;
	}
	flow = flow_find(m, &c);
	if (!can_coalesce(m, &c)) {
		if (flow != NO_FLOW)
			flow_close(m, flow);
		add_frame(m, pkt, c.in.len);
		return true;
	}
	if (flow != NO_FLOW) {
		if (can_append(&m->frames[m->flows[flow].frame], &c)) {
			append(m, flow, &c);
			return true;
		}
		flow_close(m, flow);
	}
	start(m, &c);
	return true;
}

/* ---- Writing. */

/* Make the first packet's headers those of the superframe. */
static void put_headers(struct frame *f)
{
	uint8_t *ip = f->pkt, *l4 = ip + f->ip_len;
	uint32_t l4_len = f->len - f->ip_len;
	bool is_v4 = f->family == AF_INET, is_tcp = f->l4 == INNER_TCP;
	const uint8_t *src = ip + (is_v4 ? 12 : 8);
	uint16_t sum;

	if (is_v4) {
		put_be16(ip + 2, (uint16_t)f->len);
		put_be16(ip + 10, 0);
		sum = (uint16_t)~csum_fold(csum_add(0, ip, IPV4_HDR));
		memcpy(ip + 10, &sum, 2);
	} else {
		put_be16(ip + 4, (uint16_t)l4_len);
	}
	if (f->has_push)
		l4[13] |= TCP_PSH;
	if (!is_tcp)
		put_be16(l4 + 4, (uint16_t)l4_len);
	/* Not complemented: the start value for whoever sums the rest. */
	sum = csum_fold(csum_pseudo(src, src + (is_v4 ? 4 : 16), is_v4 ? 4 : 16,
		is_tcp ? IPPROTO_TCP : IPPROTO_UDP, l4_len));
	memcpy(l4 + (is_tcp ? 16 : 6), &sum, 2);

	f->vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
	f->vnet.gso_type = VNET_GSO_UDP_L4;
	if (is_tcp)
		f->vnet.gso_type = is_v4 ? VIRTIO_NET_HDR_GSO_TCPV4 : VIRTIO_NET_HDR_GSO_TCPV6;
	f->vnet.hdr_len = f->hdr_len;
	f->vnet.gso_size = f->gso_len;
	f->vnet.csum_start = f->ip_len;
	f->vnet.csum_offset = is_tcp ? 16 : 6;
}

size_t merge_finish(struct merge *m, struct io_tx **tx)
{
	struct iovec *iov = m->iov;

	for (uint32_t i = 0; i < m->n_frames; i++) {
		struct frame *f = &m->frames[i];
		struct iovec *first = iov;

		if (m->has_vnet) {
			memset(&f->vnet, 0, sizeof(f->vnet));
			if (f->n > 1)
				put_headers(f);
			*iov++ = (struct iovec){ &f->vnet, sizeof(f->vnet) };
		}
		for (uint32_t n = f->n, p = f->first; n; n--, p = m->pieces[p].next)
			*iov++ = (struct iovec){ m->pieces[p].data, m->pieces[p].len };
		m->tx[i] = (struct io_tx){
			.hdr = { .msg_iov = first, .msg_iovlen = (size_t)(iov - first) },
		};
	}
	*tx = m->tx;
	return m->n_frames;
}

void merge_reset(struct merge *m)
{
	if (m->has_flows)
		memset(m->flows, 0, sizeof(m->flows));
	m->has_flows = false;
	m->last_flow = 0;
	m->n_frames = 0;
	m->n_pieces = 0;
}
