/* How it works: a connection is known under two tuples, each direction's as its packets
 * arrive here. The answer to our packet, if there were one, would arrive as the
 * packet turned around: that is one of the two tuples and finds the connection.
 * The source of the other one is who sent our packet.
 * (Linux include/net/netfilter/nf_conntrack_tuple.h.) */
#include "gateway/conntrack.h"
#include "base/bytes.h"
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <unistd.h>

/* A namespace without connections has nothing to tell; asking there could load modules.
 * syscalls(helper): open read close */
static bool has_connections(void)
{
	int fd = open("/proc/sys/net/netfilter/nf_conntrack_count", O_RDONLY | O_CLOEXEC);
	char first = '0';
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, &first, 1);
	close(fd);
	return n == 1 && first != '0';
}

/* ---- The question. */

/* The ICMP type that answers a request; the same for those that have no answer. */
static uint8_t answer_type(const struct icmp_cause *c, uint8_t type)
{
	if (c->family == AF_INET6)
		return type == ICMP6_ECHO_REQUEST  ? ICMP6_ECHO_REPLY
			: type == ICMP6_ECHO_REPLY ? ICMP6_ECHO_REQUEST
						   : type;
	switch (type) {
	case ICMP_ECHO:
		return ICMP_ECHOREPLY;
	case ICMP_ECHOREPLY:
		return ICMP_ECHO;
	case ICMP_TIMESTAMP:
		return ICMP_TIMESTAMPREPLY;
	case ICMP_TIMESTAMPREPLY:
		return ICMP_TIMESTAMP;
	default:
		return type;
	}
}

/* What tells connections between the same two hosts apart. */
static void put_ports(struct nlmsghdr *msg, const struct icmp_cause *c)
{
	const uint8_t *l4 = c->pkt + c->l4_at;
	size_t left = c->len - c->l4_at;

	mnl_attr_put_u8(msg, CTA_PROTO_NUM, c->proto);
	switch (c->proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
	case IPPROTO_SCTP:
		if (left < 4)
			return;
		mnl_attr_put(msg, CTA_PROTO_SRC_PORT, 2, l4 + 2);
		mnl_attr_put(msg, CTA_PROTO_DST_PORT, 2, l4);
		return;
	case IPPROTO_ICMP:
		if (left < 6)
			return;
		mnl_attr_put_u8(msg, CTA_PROTO_ICMP_TYPE, answer_type(c, l4[0]));
		mnl_attr_put_u8(msg, CTA_PROTO_ICMP_CODE, l4[1]);
		mnl_attr_put(msg, CTA_PROTO_ICMP_ID, 2, l4 + 4);
		return;
	case IPPROTO_ICMPV6:
		if (left < 6)
			return;
		mnl_attr_put_u8(msg, CTA_PROTO_ICMPV6_TYPE, answer_type(c, l4[0]));
		mnl_attr_put_u8(msg, CTA_PROTO_ICMPV6_CODE, l4[1]);
		mnl_attr_put(msg, CTA_PROTO_ICMPV6_ID, 2, l4 + 4);
		return;
	}
}

static size_t addr_len(const struct icmp_cause *c)
{
	return c->family == AF_INET ? 4 : 16;
}

static void put_question(struct nlmsghdr *msg, const struct icmp_cause *c)
{
	bool is_v4 = c->family == AF_INET;
	struct nfgenmsg *nf;
	struct nlattr *tuple, *part;

	msg->nlmsg_type = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET;
	msg->nlmsg_flags = NLM_F_REQUEST;
	nf = mnl_nlmsg_put_extra_header(msg, sizeof(*nf));
	nf->nfgen_family = c->family;
	nf->version = NFNETLINK_V0;
	/* Whichever direction's tuple it is: the kernel looks among all. */
	tuple = mnl_attr_nest_start(msg, CTA_TUPLE_REPLY);
	part = mnl_attr_nest_start(msg, CTA_TUPLE_IP);
	mnl_attr_put(msg, is_v4 ? CTA_IP_V4_SRC : CTA_IP_V6_SRC, addr_len(c), c->dst);
	mnl_attr_put(msg, is_v4 ? CTA_IP_V4_DST : CTA_IP_V6_DST, addr_len(c), c->src);
	mnl_attr_nest_end(msg, part);
	part = mnl_attr_nest_start(msg, CTA_TUPLE_PROTO);
	put_ports(msg, c);
	mnl_attr_nest_end(msg, part);
	mnl_attr_nest_end(msg, tuple);
}

/* ---- The answer. */

struct answer {
	const struct icmp_cause *c;
	const uint8_t *src, *dst; /* of the tuple that is being read */
	const uint8_t *found; /* into the message */
};

static int on_address(const struct nlattr *attr, void *data)
{
	struct answer *a = data;
	bool is_v4 = a->c->family == AF_INET;
	int type = mnl_attr_get_type(attr);

	if (mnl_attr_get_payload_len(attr) != addr_len(a->c))
		return MNL_CB_OK;
	if (type == (is_v4 ? CTA_IP_V4_SRC : CTA_IP_V6_SRC))
		a->src = mnl_attr_get_payload(attr);
	else if (type == (is_v4 ? CTA_IP_V4_DST : CTA_IP_V6_DST))
		a->dst = mnl_attr_get_payload(attr);
	return MNL_CB_OK;
}

static int on_part(const struct nlattr *attr, void *data)
{
	if (mnl_attr_get_type(attr) != CTA_TUPLE_IP)
		return MNL_CB_OK;
	return mnl_attr_parse_nested(attr, on_address, data);
}

static int on_tuple(const struct nlattr *attr, void *data)
{
	int ret, type = mnl_attr_get_type(attr);
	struct answer *a = data;
	const struct icmp_cause *c = a->c;

	if (type != CTA_TUPLE_ORIG && type != CTA_TUPLE_REPLY)
		return MNL_CB_OK;
	a->src = a->dst = NULL;
	ret = mnl_attr_parse_nested(attr, on_part, a);
	if (ret != MNL_CB_OK || !a->src || !a->dst)
		return ret;
	if (memcmp(a->src, c->dst, addr_len(c)) || memcmp(a->dst, c->src, addr_len(c)))
		a->found = a->src;
	return MNL_CB_OK;
}

static int on_connection(const struct nlmsghdr *msg, void *data)
{
	/* The kernel pads every attribute. Of any other length libmnl would read on to the
	 * next multiple of four, past what has come. */
	if (msg->nlmsg_len % MNL_ALIGNTO == 0)
		mnl_attr_parse(msg, sizeof(struct nfgenmsg), on_tuple, data);
	return MNL_CB_STOP;
}

/* syscalls(helper): socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER)
 * syscalls(helper): bind getsockname sendto recvmsg close */
int conntrack_original_source(const struct icmp_cause *c, uint8_t out[16])
{
	struct answer a = { .c = c };
	struct mnl_socket *nl;
	char buf[8192]; /* MNL_SOCKET_BUFFER_SIZE is no constant */
	struct nlmsghdr *msg;
	ssize_t len;
	int ret = -ENOENT;

	if (!has_connections())
		return ret;
	nl = mnl_socket_open2(NETLINK_NETFILTER, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (!nl)
		return -errno;
	msg = mnl_nlmsg_put_header(buf);
	put_question(msg, c);
	/* The kernel answers inside the send: there is nothing to wait for. */
	if (mnl_socket_bind(nl, 0, MNL_SOCKET_AUTOPID) < 0 ||
		mnl_socket_sendto(nl, msg, msg->nlmsg_len) < 0 ||
		(len = mnl_socket_recvfrom(nl, buf, sizeof(buf))) < 0 ||
		mnl_cb_run(buf, (size_t)len, 0, 0, on_connection, &a) < 0) {
		ret = -errno;
	} else if (a.found) {
		memcpy(out, a.found, addr_len(c));
		ret = 0;
	}
	mnl_socket_close(nl);
	return ret;
}
