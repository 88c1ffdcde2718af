/* Sending trains, and single datagrams where the kernel wants no train.
 *
 * A train is refused for one of these reasons, and errno alone does not tell:
 *  - its segments are longer than the path (EMSGSIZE; EINVAL before Linux 6.x),
 *  - the device cannot (EIO),
 *  - the sticky source address is no longer ours (EINVAL, or no route with it).
 * So they are tried in the order of what each costs: single datagrams as they
 * are, then the train without a source, then single datagrams without it. What
 * helped is remembered in struct udp_paths, and after UDP_PATH_TRAINS trains the
 * kernel is asked again: routes and MTUs change. */
#include "link.h"
#include "endpoint.h"

#include "base/bytes.h"
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>

/* ---- Names and ancillary data. */

static socklen_t put_name(struct sockaddr_storage *out, const struct endpoint_remote *r)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	if (r->family == AF_INET) {
		memset(v4, 0, sizeof(*v4));
		v4->sin_family = AF_INET;
		v4->sin_port = r->port;
		memcpy(&v4->sin_addr, r->ip, 4);
		return sizeof(*v4);
	}
	memset(v6, 0, sizeof(*v6));
	v6->sin6_family = AF_INET6;
	v6->sin6_port = r->port;
	v6->sin6_scope_id = r->scope;
	memcpy(&v6->sin6_addr, r->ip, 16);
	return sizeof(*v6);
}

/* Append one item of ancillary data at used bytes. Returns the new used. */
static size_t put_control(
	struct udp_tx *mem, size_t used, int level, int type, const void *data, size_t len)
{
	struct cmsghdr *c = (struct cmsghdr *)(mem->control.bytes + used);

	assert(used + CMSG_SPACE(len) <= sizeof(mem->control.bytes));
	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(len);
	memcpy(CMSG_DATA(c), data, len);
	return used + CMSG_SPACE(len);
}

/* The source address only. An interface would overrule routing, which the kernel's
 * WireGuard does not do either; a link-local address is none without one. */
static size_t put_source(struct udp_tx *mem, uint16_t family, const struct endpoint_local *l)
{
	struct in_pktinfo v4 = { 0 };
	struct in6_pktinfo v6 = { 0 };

	if (family == AF_INET) {
		memcpy(&v4.ipi_spec_dst, l->ip, 4);
		return put_control(mem, 0, IPPROTO_IP, IP_PKTINFO, &v4, sizeof(v4));
	}
	memcpy(&v6.ipi6_addr, l->ip, 16);
	if (endpoint_is_link_local(l->ip))
		v6.ipi6_ifindex = l->ifindex;
	return put_control(mem, 0, IPPROTO_IPV6, IPV6_PKTINFO, &v6, sizeof(v6));
}

static bool has_source(const struct endpoint_local *l)
{
	return get_le64(l->ip) | get_le64(l->ip + 8);
}

void udp_tx_fill(struct io_tx *tx, struct udp_tx *mem, const struct wg_endpoint *to,
	struct iovec *iov, uint32_t seg_len, uint8_t tos, uint8_t hops)
{
	struct endpoint_remote r = endpoint_get_remote(to);
	struct endpoint_local l = endpoint_get_local(to);
	bool is_v4 = r.family == AF_INET;
	uint16_t segment = (uint16_t)seg_len;
	int tos_value = tos, hops_value = hops;
	size_t used = 0;

	if (has_source(&l))
		used = put_source(mem, r.family, &l);
	if (tos)
		used = put_control(mem, used, is_v4 ? IPPROTO_IP : IPPROTO_IPV6,
			is_v4 ? IP_TOS : IPV6_TCLASS, &tos_value, sizeof(tos_value));
	if (hops)
		used = put_control(mem, used, is_v4 ? IPPROTO_IP : IPPROTO_IPV6,
			is_v4 ? IP_TTL : IPV6_HOPLIMIT, &hops_value, sizeof(hops_value));
	if (seg_len && seg_len < iov->iov_len)
		used = put_control(mem, used, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment));
	tx->hdr = (struct msghdr){
		.msg_name = &mem->name,
		.msg_namelen = put_name(&mem->name, &r),
		.msg_iov = iov,
		.msg_iovlen = 1,
		.msg_control = used ? mem->control.bytes : NULL,
		.msg_controllen = used,
	};
	tx->err = 0;
}

/* Segment size of a filled train; 0: a single datagram. */
static uint32_t seg_len_of(struct msghdr *h)
{
	uint16_t v;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c))
		if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_SEGMENT) {
			memcpy(&v, CMSG_DATA(c), sizeof(v));
			return v;
		}
	return 0;
}

static bool is_source(const struct cmsghdr *c)
{
	return (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) ||
		(c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO);
}

/* The source stands first and the segment size last, so that either goes by
 * moving an end. Returns whether there was one. */
static bool strip_source(struct msghdr *h)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(h);
	size_t len;

	if (!c || !is_source(c))
		return false;
	len = CMSG_ALIGN(c->cmsg_len);
	h->msg_control = (uint8_t *)h->msg_control + len;
	h->msg_controllen -= len;
	return true;
}

/* Ancillary data without the segment size. */
static void strip_segment(struct msghdr *h)
{
	h->msg_controllen -= CMSG_SPACE(sizeof(uint16_t));
}

/* ---- Memory of paths. */

/* Of where it goes and from which source: a peer that writes to another of our
 * addresses is a new path. */
static uint32_t path_key(struct msghdr *h)
{
	const uint64_t odd = 0x9e3779b97f4a7c15; /* 2^64 divided by the golden ratio */
	const struct cmsghdr *c = CMSG_FIRSTHDR(h);
	const uint8_t *name = h->msg_name;
	uint64_t v = get_le64(name);

	/* Family, port and address: sockaddr_in in 8 bytes, sockaddr_in6 in 24 of 28. */
	if (h->msg_namelen == sizeof(struct sockaddr_in6))
		v = (v * odd ^ get_le64(name + 8)) * odd ^ get_le64(name + 16);
	/* in_pktinfo: address in the first 8 bytes; in6_pktinfo: in the first 16. */
	if (c && is_source(c))
		v = v * odd ^ get_le64(CMSG_DATA(c));
	if (c && is_source(c) && c->cmsg_level == IPPROTO_IPV6)
		v = v * odd ^ *(CMSG_DATA(c) + 15);
	v *= odd;
	return (uint32_t)(v >> 32);
}

/* Slots are direct-mapped by the key's low bits. */
static unsigned path_slot(uint32_t key)
{
	return key % UDP_PATHS;
}

static bool path_known(const struct udp_paths *p, uint32_t key)
{
	unsigned i = path_slot(key);

	return p->slot[i].trains_left && p->slot[i].key == key;
}

static void path_remember(
	struct udp_paths *p, uint32_t key, uint32_t seg_len_max, bool is_sourceless)
{
	unsigned i = path_slot(key);

	if (!p->slot[i].trains_left)
		p->n_used++;
	p->slot[i].key = key;
	p->slot[i].trains_left = UDP_PATH_TRAINS;
	p->slot[i].seg_len_max = (uint16_t)seg_len_max;
	p->slot[i].is_sourceless = is_sourceless;
}

/* ---- Sending. */

struct sender {
	const struct engine_ops *ops;
	struct engine *e;
	int fd;
	struct udp_paths *paths;
};

static uint32_t count_datagrams(const struct io_tx *tx, uint32_t seg_len)
{
	size_t len = tx->hdr.msg_iov[0].iov_len;

	return seg_len ? (uint32_t)((len + seg_len - 1) / seg_len) : 1;
}

/* A train as single datagrams. Returns how many were not sent; *err is the first
 * one's. A train whose first datagram is refused is given up, for the caller to
 * try in another way. */
static size_t send_singles(
	const struct sender *s, const struct msghdr *train, uint32_t seg_len, int *err)
{
	uint8_t *data = train->msg_iov[0].iov_base;
	size_t left = train->msg_iov[0].iov_len, n = 0, sent = 0, first = 1;
	struct io_tx tx[IO_BATCH_MAX];
	struct iovec iov[IO_BATCH_MAX];

	*err = 0;
	while (left) {
		/* The first goes alone: it tells whether the rest has a chance. */
		for (n = 0; left && n < (first ? 1 : IO_BATCH_MAX); n++) {
			size_t len = left < seg_len ? left : seg_len;

			iov[n] = (struct iovec){ data, len };
			tx[n] = (struct io_tx){ .hdr = *train };
			tx[n].hdr.msg_iov = &iov[n];
			data += len;
			left -= len;
		}
		sent = s->ops->send(s->e, s->fd, IO_DGRAM, tx, n);
		if (first && !sent) {
			*err = tx[0].err ? tx[0].err : -EIO;
			return 1 + (left + seg_len - 1) / seg_len;
		}
		first = 0;
		if (sent < n)
			return n - sent + (left + seg_len - 1) / seg_len;
	}
	return 0;
}

/* errno values of a train or a source address that does not suit. */
static bool is_refusal(int err)
{
	return err == -EIO || err == -EINVAL || err == -EMSGSIZE;
}

static bool is_source_refusal(int err)
{
	return err == -EINVAL || err == -EADDRNOTAVAIL || err == -ENETUNREACH ||
		err == -EHOSTUNREACH;
}

/* tx was refused with tx->err: find a way. Returns datagrams not sent. */
static size_t send_again(const struct sender *s, struct io_tx *tx)
{
	uint32_t seg_len = seg_len_of(&tx->hdr), key = path_key(&tx->hdr);
	struct msghdr single = tx->hdr;
	size_t lost = count_datagrams(tx, seg_len);
	int err = tx->err;

	if (seg_len && is_refusal(err)) {
		if (err == -EIO)
			s->paths->lost |= OFFLOAD_UDP_GSO;
		strip_segment(&single);
		lost = send_singles(s, &single, seg_len, &err);
		if (!err) {
			path_remember(s->paths, key, tx->err == -EIO ? 0 : seg_len - 1,
				s->paths->slot[path_slot(key)].is_sourceless &&
					path_known(s->paths, key));
			return lost;
		}
	}
	if (!is_source_refusal(err) || !strip_source(&tx->hdr))
		return lost;
	if (s->ops->send(s->e, s->fd, IO_DGRAM, tx, 1) == 1) {
		path_remember(s->paths, key, UINT16_MAX, true);
		return 0;
	}
	if (!seg_len || !is_refusal(tx->err))
		return lost;
	strip_segment(&tx->hdr);
	lost = send_singles(s, &tx->hdr, seg_len, &err);
	if (!err)
		path_remember(s->paths, key, seg_len - 1, true);
	return lost;
}

static size_t send_run(const struct sender *s, struct io_tx *tx, size_t n)
{
	size_t lost = 0;

	if (!n || s->ops->send(s->e, s->fd, IO_DGRAM, tx, n) == n)
		return 0;
	for (size_t i = 0; i < n; i++)
		if (tx[i].err)
			lost += send_again(s, &tx[i]);
	return lost;
}

/* Prepare tx by what is known of its path. true: it was a train that must go as
 * single datagrams; seg_len is theirs. */
static bool apply_path(struct udp_paths *p, struct io_tx *tx, uint32_t *seg_len)
{
	uint32_t key = path_key(&tx->hdr);
	unsigned i = path_slot(key);

	if (!path_known(p, key))
		return false;
	if (!--p->slot[i].trains_left)
		p->n_used--;
	if (p->slot[i].is_sourceless)
		strip_source(&tx->hdr);
	*seg_len = seg_len_of(&tx->hdr);
	if (*seg_len <= p->slot[i].seg_len_max)
		return false;
	strip_segment(&tx->hdr);
	return true;
}

/* Single datagrams on a path that takes no trains. Its sticky source may have
 * gone since that was found out. */
static size_t send_known(const struct sender *s, struct io_tx *tx, uint32_t seg_len)
{
	uint32_t key = path_key(&tx->hdr);
	int err;
	size_t lost = send_singles(s, &tx->hdr, seg_len, &err);

	if (!is_source_refusal(err) || !strip_source(&tx->hdr))
		return lost;
	lost = send_singles(s, &tx->hdr, seg_len, &err);
	if (!err)
		path_remember(s->paths, key, seg_len - 1, true);
	return lost;
}

size_t udp_send(const struct engine_ops *ops, struct engine *e, int fd, struct io_tx *tx, size_t n,
	struct udp_paths *paths)
{
	const struct sender s = { ops, e, fd, paths };
	size_t lost = 0, run = 0;
	uint32_t seg_len;

	if (!paths->n_used)
		return send_run(&s, tx, n);
	for (size_t i = 0; i < n; i++) {
		if (!apply_path(paths, &tx[i], &seg_len)) {
			run++;
			continue;
		}
		/* In order: first what stands before it. */
		lost += send_run(&s, &tx[i - run], run);
		run = 0;
		lost += send_known(&s, &tx[i], seg_len);
	}
	return lost + send_run(&s, &tx[n - run], run);
}

/* syscalls: sendmsg */
int udp_send_one(const struct udp *u, bool is_handshake, const struct wg_endpoint *to,
	const uint8_t *msg, size_t len, uint8_t tos)
{
	unsigned family = endpoint_family(to);
	int fd = is_handshake ? u->handshake[family] : -1;
	struct iovec iov = { (void *)msg, len };
	struct udp_tx mem;
	struct io_tx tx;

	if (fd < 0)
		fd = u->data[family][0];
	if (fd < 0)
		return -EAFNOSUPPORT;
	udp_tx_fill(&tx, &mem, to, &iov, 0, tos, 0);
	/* Never waits for room: the caller may hold a lock. */
	if (sendmsg(fd, &tx.hdr, MSG_DONTWAIT) >= 0)
		return 0;
	if (!is_source_refusal(-errno) || !strip_source(&tx.hdr))
		return -errno;
	return sendmsg(fd, &tx.hdr, MSG_DONTWAIT) < 0 ? -errno : 0;
}
