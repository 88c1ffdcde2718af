/* How it works: the error is sent by a raw socket, to the source as the packet has
 * it. The kernel's connection tracking recognises it as belonging to the packet's
 * connection and undoes on it whatever NAT did to the packet: on the error's destination
 * and on the packet quoted in it.
 *
 * Left to us is the error's own source: the address that this machine has on
 * the way to the sender. For a packet that was translated to one of our addresses
 * the sender is the one before that (icmp_ndo_send of Linux). Which address the
 * kernel takes on a way is what a connected UDP socket says; nothing is sent. */
#include "gateway/icmp_send.h"
#include "gateway/conntrack.h"
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT_DISCARD = 9 };

union name {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static socklen_t name_len(uint8_t family)
{
	return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void name_fill(
	union name *out, uint8_t family, const uint8_t *ip, uint16_t port, unsigned ifindex)
{
	memset(out, 0, sizeof(*out));
	if (family == AF_INET) {
		out->v4.sin_family = AF_INET;
		out->v4.sin_port = htons(port);
		memcpy(&out->v4.sin_addr, ip, 4);
		return;
	}
	out->v6.sin6_family = AF_INET6;
	out->v6.sin6_port = htons(port);
	memcpy(&out->v6.sin6_addr, ip, 16);
	if (IN6_IS_ADDR_LINKLOCAL(&out->v6.sin6_addr))
		out->v6.sin6_scope_id = ifindex;
}

/* Our address on the way to ip.
 * syscalls(helper): socket(AF_INET, SOCK_DGRAM, 0) socket(AF_INET6, SOCK_DGRAM, 0)
 * syscalls(helper): connect getsockname close */
static int source_towards(uint8_t out[16], uint8_t family, const uint8_t *ip, unsigned ifindex)
{
	int ret = 0, fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = name_len(family);
	union name name;

	if (fd < 0)
		return -errno;
	name_fill(&name, family, ip, PORT_DISCARD, ifindex);
	if (connect(fd, &name.any, len) < 0 || getsockname(fd, &name.any, &len) < 0)
		ret = -errno;
	else if (family == AF_INET)
		memcpy(out, &name.v4.sin_addr, 4);
	else
		memcpy(out, &name.v6.sin6_addr, 16);
	close(fd);
	return ret;
}

static size_t ip_len(const struct icmp_cause *c)
{
	return c->family == AF_INET ? 4 : 16;
}

/* -EDESTADDRREQ or other errno: no error may be sent. */
static int choose_source(
	const struct icmp_cause *c, unsigned ifindex, uint8_t out[16], bool *is_local)
{
	uint8_t unused[16], sender[16], better[16];
	int ret = source_towards(unused, c->family, c->dst, ifindex);

	/* EACCES is what the kernel says of broadcast addresses. That the destination
	 * has no route any more is no reason. */
	if (ret != -EACCES)
		ret = source_towards(out, c->family, c->src, ifindex);
	if (ret < 0)
		return ret == -EACCES ? -EDESTADDRREQ : ret;
	*is_local = !memcmp(out, c->src, ip_len(c));
	/* Without an answer the address that the sender knows us by is lost, no more. */
	if (*is_local && !conntrack_original_source(c, sender) &&
		!source_towards(better, c->family, sender, ifindex))
		memcpy(out, better, ip_len(c));
	return 0;
}

/* syscalls(helper): socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)
 * syscalls(helper): socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6)
 * syscalls(helper): setsockopt(IPPROTO_IP, IP_TOS) bind sendto close */
int icmp_send_unreach(const struct icmp_cause *c, unsigned ifindex, bool *is_local)
{
	uint8_t src[16], msg[ICMP_UNREACH_MAX];
	size_t len = icmp_unreach_message(c, msg);
	int ret, fd, tos = icmp_unreach_tos(c);
	union name from, to;

	*is_local = false;
	fd = socket(c->family, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
		c->family == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6);
	if (fd < 0)
		return errno == EACCES ? -EPERM : -errno;
	ret = choose_source(c, ifindex, src, is_local);
	if (ret < 0)
		goto close_fd;
	name_fill(&from, c->family, src, 0, ifindex);
	name_fill(&to, c->family, c->src, 0, ifindex);
	if (tos && setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)) < 0)
		ret = -errno;
	else if (bind(fd, &from.any, name_len(c->family)) < 0 ||
		sendto(fd, msg, len, 0, &to.any, name_len(c->family)) < 0)
		ret = errno == EPERM ? -EACCES : -errno; /* a packet filter's word is final */
close_fd:
	close(fd);
	return ret;
}
