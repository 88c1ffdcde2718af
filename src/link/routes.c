/* Notices that routes or addresses change, and asks the kernel by which interface it
 * would send what we answer. */
#include "link.h"
#include "endpoint.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <unistd.h>

/* syscalls(start): socket bind close */
static int open_netlink(uint32_t groups)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK, .nl_groups = groups };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	int ret;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

static uint32_t group(unsigned n)
{
	return 1u << (n - 1);
}

int routes_open(void)
{
	/* Links: IPv4 routes go without a word when their interface goes down. */
	return open_netlink(group(RTNLGRP_LINK) | group(RTNLGRP_IPV4_ROUTE) |
		group(RTNLGRP_IPV6_ROUTE) | group(RTNLGRP_IPV4_IFADDR) |
		group(RTNLGRP_IPV6_IFADDR) | group(RTNLGRP_IPV4_RULE) | group(RTNLGRP_IPV6_RULE) |
		group(RTNLGRP_NEXTHOP));
}

/* syscalls: recv */
bool routes_drain(int fd)
{
	bool is_changed = false;
	char buf[8192];
	ssize_t len;

	/* ENOBUFS: more happened than the socket could hold. Cut messages will do. */
	while ((len = recv(fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_TRUNC)) > 0 ||
		(len < 0 && (errno == ENOBUFS || errno == EINTR)))
		is_changed = true;
	return is_changed;
}

int routes_query_open(void)
{
	return open_netlink(0);
}

/* ---- Asking. */

enum { REQUEST_LEN = 256, ANSWER_LEN = 4096 };

struct query {
	struct endpoint_remote to;
	const struct endpoint_local *from; /* NULL: any of our addresses */
	uint16_t port;
	uint32_t fwmark;
};

/* RTM_GETROUTE takes what the kernel's own look-up for a datagram would. */
static void put_query(struct nlmsghdr *msg, const struct query *q)
{
	size_t len = q->to.family == AF_INET ? 4 : 16;
	struct rtmsg *rt;

	msg->nlmsg_type = RTM_GETROUTE;
	msg->nlmsg_flags = NLM_F_REQUEST;
	rt = mnl_nlmsg_put_extra_header(msg, sizeof(*rt));
	rt->rtm_family = (unsigned char)q->to.family;
	rt->rtm_dst_len = (unsigned char)(len * 8);
	mnl_attr_put(msg, RTA_DST, len, q->to.ip);
	if (q->from) {
		rt->rtm_src_len = (unsigned char)(len * 8);
		mnl_attr_put(msg, RTA_SRC, len, q->from->ip);
	}
	mnl_attr_put_u8(msg, RTA_IP_PROTO, IPPROTO_UDP);
	mnl_attr_put_u16(msg, RTA_SPORT, htobe16(q->port));
	mnl_attr_put_u16(msg, RTA_DPORT, q->to.port);
	if (q->fwmark)
		mnl_attr_put_u32(msg, RTA_MARK, q->fwmark);
}

static int on_attr(const struct nlattr *attr, void *data)
{
	unsigned *ifindex = data;

	if (mnl_attr_get_type(attr) == RTA_OIF && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
		*ifindex = mnl_attr_get_u32(attr);
	return MNL_CB_OK;
}

/* The interface that the datagram would leave by; 0: none, or no answer.
 *
 * syscalls: send recv */
static unsigned ask(int fd, const struct query *q)
{
	/* Which request an answer belongs to, should an earlier one have come late. */
	static _Atomic uint32_t last_seq;
	_Alignas(struct nlmsghdr) char request[REQUEST_LEN], answer[ANSWER_LEN];
	struct nlmsghdr *msg = mnl_nlmsg_put_header(request);
	const struct nlmsghdr *got = (const struct nlmsghdr *)answer;
	unsigned ifindex = 0;
	ssize_t len;

	put_query(msg, q);
	msg->nlmsg_seq = ++last_seq;
	if (send(fd, msg, msg->nlmsg_len, MSG_DONTWAIT) < 0)
		return 0;
	/* The answer is there when send returns. */
	while ((len = recv(fd, answer, sizeof(answer), MSG_DONTWAIT)) > 0 ||
		(len < 0 && errno == ENOBUFS)) {
		if (len < 0 || !mnl_nlmsg_ok(got, (int)len) || got->nlmsg_seq != msg->nlmsg_seq)
			continue;
		/* Or NLMSG_ERROR. */
		if (got->nlmsg_type == RTM_NEWROUTE &&
			got->nlmsg_len >= mnl_nlmsg_size(sizeof(struct rtmsg)))
			mnl_attr_parse(got, sizeof(struct rtmsg), on_attr, &ifindex);
		break;
	}
	return ifindex;
}

unsigned routes_detour(int fd, const struct wg_endpoint *e, uint16_t port, uint32_t fwmark)
{
	struct endpoint_local from = endpoint_get_local(e);
	struct query q = { endpoint_get_remote(e), &from, port, fwmark };
	unsigned ifindex;

	if (!from.ifindex || endpoint_is_link_local(from.ip))
		return 0;
	ifindex = ask(fd, &q);
	if (ifindex)
		return ifindex == from.ifindex ? 0 : ifindex;
	/* IPv4 has no route from an address that is not ours. IPv6 has; there the send
	 * is refused, see udp_send.c. */
	q.from = NULL;
	return ask(fd, &q) ? ROUTES_NO_SOURCE : 0;
}
