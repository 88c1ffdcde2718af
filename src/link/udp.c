/* The UDP sockets: opening, and what a received datagram says. Sending is in
 * udp_send.c.
 *
 * All sockets of a family share the port: one for data of each worker that reads its own, and
 * one for handshake messages, with a small buffer, so that a flood of them neither
 * fills the buffers for data nor waits in front of it. How the kernel sorts is told in
 * udp_sort.c.
 *
 * SO_REUSEPORT would also let a second gateway of the same user join in. Therefore
 * the first socket binds without it, which fails if anybody has the port, and
 * gets the option only then; a second gateway's first bind meets our sockets and
 * fails. The kernel makes a group of them when the second socket binds, and numbers them
 * in the order of binding: data from 0 on, handshake last.
 *
 * GRO picks its socket before the datagram is sorted, by a hash: UDP_GRO must be
 * on for all sockets of a group, or part of all peers would have no trains.
 *
 * The helper opens sockets; the gateway itself does where there is no helper. In
 * the order of the code:
 * syscalls(run helper): socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP)
 *	socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP) bind getsockname sendto close
 * syscalls(run helper): setsockopt(SOL_SOCKET, SO_RCVBUFFORCE)
 *	setsockopt(SOL_SOCKET, SO_RCVBUF) setsockopt(SOL_SOCKET, SO_SNDBUFFORCE)
 *	setsockopt(SOL_SOCKET, SO_SNDBUF) setsockopt(IPPROTO_IPV6, IPV6_V6ONLY)
 *	setsockopt(IPPROTO_IP, IP_PKTINFO) setsockopt(IPPROTO_IPV6, IPV6_RECVPKTINFO)
 *	setsockopt(IPPROTO_IP, IP_RECVTOS) setsockopt(IPPROTO_IPV6, IPV6_RECVTCLASS)
 *	setsockopt(IPPROTO_IP, IP_MTU_DISCOVER)
 *	setsockopt(IPPROTO_IPV6, IPV6_MTU_DISCOVER) setsockopt(SOL_SOCKET, SO_MARK)
 *	setsockopt(IPPROTO_UDP, UDP_GRO) setsockopt(IPPROTO_UDP, UDP_SEGMENT)
 *	setsockopt(SOL_SOCKET, SO_REUSEPORT) */
#include "link.h"
#include "endpoint.h"
#include "udp_sort.h"

#include "base/bytes.h"
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>
#include <unistd.h>

enum {
	/* 10 ms of 5 Gbit/s: a time slice of whoever else has the CPU. The kernel
	 * doubles it, since its bookkeeping counts too. */
	DATA_BUF_LEN = 8 << 20,
	/* 10,000 initiations and their bookkeeping: clients that all lost the same server. */
	HANDSHAKE_BUF_LEN = 4 << 20,
	PORT_TRIES = 16,
};

static int set_int(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) ? -errno : 0;
}

static socklen_t any_addr(struct sockaddr_storage *out, int family, uint16_t port)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	out->ss_family = (sa_family_t)family;
	if (family == AF_INET) {
		v4->sin_port = htobe16(port);
		return sizeof(*v4);
	}
	v6->sin6_port = htobe16(port);
	return sizeof(*v6);
}

static void set_buffers(int fd, int rcv, int snd)
{
	/* By force needs CAP_NET_ADMIN; else as much as net.core.*mem_max allows. */
	if (set_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, rcv))
		(void)set_int(fd, SOL_SOCKET, SO_RCVBUF, rcv);
	if (set_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, snd))
		(void)set_int(fd, SOL_SOCKET, SO_SNDBUF, snd);
}

/* What we cannot do without, in the order in which a socket needs it. */
static int set_options(int fd, int family, uint32_t fwmark)
{
	static const struct {
		int family, level, name, value;
	} opts[] = {
		{ AF_INET6, IPPROTO_IPV6, IPV6_V6ONLY, 1 },
		{ AF_INET, IPPROTO_IP, IP_PKTINFO, 1 },
		{ AF_INET6, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1 },
		{ AF_INET, IPPROTO_IP, IP_RECVTOS, 1 },
		{ AF_INET6, IPPROTO_IPV6, IPV6_RECVTCLASS, 1 },
		/* No DF; the kernel fragments what the path cannot take whole. */
		{ AF_INET, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT },
		{ AF_INET6, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DONT },
	};
	int ret;

	for (size_t i = 0; i < ARRAY_LEN(opts); i++) {
		if (opts[i].family != family)
			continue;
		ret = set_int(fd, opts[i].level, opts[i].name, opts[i].value);
		if (ret)
			return ret;
	}
	return fwmark ? set_int(fd, SOL_SOCKET, SO_MARK, (int)fwmark) : 0;
}

/* A socket with all options, not bound. Returns the descriptor or negative errno. */
static int make_socket(int family, uint32_t fwmark, bool wants_gro)
{
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
	int ret;

	if (fd < 0)
		return -errno;
	ret = set_options(fd, family, fwmark);
	if (!ret && wants_gro)
		ret = set_int(fd, IPPROTO_UDP, UDP_GRO, 1);
	if (ret) {
		close(fd);
		return ret;
	}
	return fd;
}

static int bind_any(int fd, int family, uint16_t port)
{
	struct sockaddr_storage addr;
	socklen_t len = any_addr(&addr, family, port);

	return bind(fd, (struct sockaddr *)&addr, len) ? -errno : 0;
}

static int bound_port(int fd, uint16_t *port)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);

	if (getsockname(fd, (struct sockaddr *)&addr, &len))
		return -errno;
	/* In the same place in both families. */
	*port = be16toh(((struct sockaddr_in *)&addr)->sin_port);
	return 0;
}

/* One more socket on the port of one that is bound already. Returns it or negative errno. */
static int join(const struct udp *u, unsigned i, uint32_t fwmark, int buf_len)
{
	int family = i ? AF_INET6 : AF_INET;
	int fd = make_socket(family, fwmark, u->offloads & OFFLOAD_UDP_GRO), ret;

	if (fd < 0)
		return fd;
	set_buffers(fd, buf_len, buf_len);
	ret = set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	if (!ret)
		ret = bind_any(fd, family, u->port);
	if (ret) {
		close(fd);
		return ret;
	}
	return fd;
}

/* Leave the first socket alone. */
static void close_group(struct udp *u, unsigned i)
{
	for (unsigned k = 1; k < u->n; k++) {
		if (u->data[i][k] >= 0)
			close(u->data[i][k]);
		u->data[i][k] = -1;
	}
	if (u->handshake[i] >= 0)
		close(u->handshake[i]);
	u->handshake[i] = -1;
	(void)set_int(u->data[i][0], SOL_SOCKET, SO_REUSEPORT, 0);
}

/* The others beside an exclusively bound first socket; all or none. */
static int open_group(struct udp *u, unsigned i, uint32_t fwmark)
{
	int ret = set_int(u->data[i][0], SOL_SOCKET, SO_REUSEPORT, 1);

	for (unsigned k = 1; ret >= 0 && k < u->n; k++)
		ret = u->data[i][k] = join(u, i, fwmark, DATA_BUF_LEN);
	if (ret >= 0)
		ret = u->handshake[i] = join(u, i, fwmark, HANDSHAKE_BUF_LEN);
	if (ret >= 0)
		return 0;
	close_group(u, i);
	return ret;
}

/* Groups of n data sockets and one for handshakes in both families, or in none. With n 1 a
 * family may do without the other's. */
static int open_groups(struct udp *u, unsigned n, const struct udp_config *cfg)
{
	int ret = 0, one;

	u->n = n;
	for (unsigned i = 0; i < 2; i++) {
		one = u->data[i][0] >= 0 ? open_group(u, i, cfg->fwmark) : 0;
		ret = ret ? ret : one;
	}
	if (n == 1 || !ret)
		ret = udp_sort(u, &cfg->steer);
	for (unsigned i = 0; ret && i < 2; i++)
		if (u->data[i][0] >= 0)
			close_group(u, i);
	return ret;
}

static int open_first(struct udp *u, unsigned i, uint16_t port, uint32_t fwmark)
{
	int family = i ? AF_INET6 : AF_INET;
	int fd = make_socket(family, fwmark, u->offloads & OFFLOAD_UDP_GRO), ret;

	if (fd < 0)
		return fd;
	set_buffers(fd, DATA_BUF_LEN, DATA_BUF_LEN);
	ret = bind_any(fd, family, port);
	if (!ret)
		ret = bound_port(fd, &u->port);
	if (ret) {
		close(fd);
		return ret;
	}
	u->data[i][0] = fd;
	return 0;
}

/* Does the kernel take a train? Asked by sending one to ourselves over the
 * loopback; where that is down the socket option must do. */
static bool probe_gso(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htobe32(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(to);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
	bool is_there = false;

	if (fd < 0)
		return false;
	if (set_int(fd, IPPROTO_UDP, UDP_SEGMENT, 1) ||
		bind(fd, (struct sockaddr *)&to, sizeof(to)) ||
		getsockname(fd, (struct sockaddr *)&to, &len))
		goto close_fd;
	is_there = sendto(fd, "ab", 2, MSG_DONTWAIT, (struct sockaddr *)&to, len) == 2 ||
		errno == ENETUNREACH || errno == ENETDOWN;
close_fd:
	close(fd);
	return is_there;
}

static bool probe_gro(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
	bool is_there = fd >= 0 && !set_int(fd, IPPROTO_UDP, UDP_GRO, 1);

	if (fd >= 0)
		close(fd);
	return is_there;
}

void udp_init(struct udp *u)
{
	u->n = 0;
	u->is_steered = false;
	u->offloads = 0;
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned k = 0; k < UDP_CHANNELS_MAX; k++)
			u->data[i][k] = -1;
		u->handshake[i] = -1;
	}
	u->port = 0;
}

static int open_both(struct udp *u, uint16_t port, uint32_t fwmark)
{
	int v4, v6;

	v4 = open_first(u, 0, port, fwmark);
	if (v4 && v4 != -EAFNOSUPPORT)
		return v4;
	/* Of the port that IPv4 was given. */
	v6 = open_first(u, 1, v4 ? port : u->port, fwmark);
	if (v6 == -EAFNOSUPPORT)
		return v4;
	return v6;
}

static unsigned probe_offloads(unsigned allowed)
{
	unsigned set = 0;

	if (allowed & OFFLOAD_UDP_GSO && probe_gso())
		set |= OFFLOAD_UDP_GSO;
	if (allowed & OFFLOAD_UDP_GRO && probe_gro())
		set |= OFFLOAD_UDP_GRO;
	return set;
}

int udp_open(struct udp *u, const struct udp_config *cfg)
{
	unsigned offloads = probe_offloads(cfg->allowed);
	int ret = 0;

	/* A free port of IPv4 may be taken in IPv6: draw again. */
	for (unsigned i = 0; i < (cfg->port ? 1 : PORT_TRIES); i++) {
		udp_init(u);
		u->offloads = offloads;
		u->n = 1;
		ret = open_both(u, cfg->port, cfg->fwmark);
		if (!ret) {
			/* One socket for all is what there is without sorting. */
			if (open_groups(u, cfg->n, cfg))
				(void)open_groups(u, 1, cfg);
			return 0;
		}
		udp_close(u);
		if (ret != -EADDRINUSE)
			break;
	}
	return ret;
}

size_t udp_sockets(const struct udp *u, int out[UDP_SOCKETS_MAX])
{
	size_t n = 0;

	for (unsigned i = 0; i < 2; i++) {
		for (unsigned k = 0; k < u->n; k++)
			if (u->data[i][k] >= 0)
				out[n++] = u->data[i][k];
		if (u->handshake[i] >= 0)
			out[n++] = u->handshake[i];
	}
	return n;
}

int udp_set_mark(struct udp *u, uint32_t fwmark)
{
	int fds[UDP_SOCKETS_MAX], one, ret = 0;
	size_t n = udp_sockets(u, fds);

	for (size_t i = 0; i < n; i++) {
		one = set_int(fds[i], SOL_SOCKET, SO_MARK, (int)fwmark);
		ret = ret ? ret : one;
	}
	return ret;
}

void udp_close(struct udp *u)
{
	int fds[UDP_SOCKETS_MAX];
	size_t n = udp_sockets(u, fds);

	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	udp_init(u);
}

/* ---- Receiving. */

static bool parse_name(struct endpoint_remote *r, const struct msghdr *h)
{
	const struct sockaddr_in *v4 = h->msg_name;
	const struct sockaddr_in6 *v6 = h->msg_name;

	if (h->msg_namelen >= sizeof(*v4) && v4->sin_family == AF_INET) {
		r->family = AF_INET;
		r->port = v4->sin_port;
		memcpy(r->ip, &v4->sin_addr, 4);
		return true;
	}
	if (h->msg_namelen >= sizeof(*v6) && v6->sin6_family == AF_INET6) {
		r->family = AF_INET6;
		r->port = v6->sin6_port;
		r->scope = v6->sin6_scope_id;
		memcpy(r->ip, &v6->sin6_addr, 16);
		return true;
	}
	return false;
}

static bool has_room(const struct cmsghdr *c, size_t len)
{
	return c->cmsg_len >= CMSG_LEN(len);
}

static void parse_control(struct udp_rx *out, struct endpoint_local *l, const struct cmsghdr *c)
{
	const uint8_t *data = CMSG_DATA(c);
	int value;

	if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
		struct in_pktinfo info;

		if (!has_room(c, sizeof(info)))
			return;
		memcpy(&info, data, sizeof(info));
		l->ifindex = (uint32_t)info.ipi_ifindex;
		memcpy(l->ip, &info.ipi_spec_dst, 4);
	} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
		struct in6_pktinfo info;

		if (!has_room(c, sizeof(info)))
			return;
		memcpy(&info, data, sizeof(info));
		l->ifindex = (uint32_t)info.ipi6_ifindex;
		memcpy(l->ip, &info.ipi6_addr, 16);
	} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS && has_room(c, 1)) {
		out->tos = *data;
	} else if (has_room(c, sizeof(value))) {
		memcpy(&value, data, sizeof(value));
		if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)
			out->tos = (uint8_t)value;
		else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO && value > 0)
			out->seg_len = (uint32_t)value;
	}
}

bool udp_rx_parse(struct udp_rx *out, const struct io_rx *rx)
{
	struct endpoint_remote r = { 0 };
	struct endpoint_local l = { 0 };
	struct msghdr *h = rx->hdr;

	if (h->msg_flags & (MSG_TRUNC | MSG_CTRUNC) || !parse_name(&r, h))
		return false;
	out->seg_len = rx->len;
	out->tos = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c))
		parse_control(out, &l, c);
	memcpy(out->from.remote, &r, sizeof(r));
	memcpy(out->from.local, &l, sizeof(l));
	return true;
}
