/* New routes are told by the kernel and added at once. Whether an MTU is still that of
 * any route when one of its routes has gone, only a dump of all routes tells. That
 * can wait, since an MTU too many costs a few bytes of padding only: one dump
 * in DUMP_PAUSE_MS at most, however many routes a routing daemon changes. (With
 * 500,000 routes of other interfaces a dump takes the kernel 36 ms of our time.)
 *
 * A dump is two requests, one per family, of the routes through our interface in all
 * tables; the kernel picks them (NETLINK_GET_STRICT_CHK, Linux 4.20; before, all
 * routes come). Its messages come between others, as the socket has room; nobody
 * waits for them. What a dump found replaces what was known, unless something
 * may be missing in it: then it is added. */
#include "route_mtus.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { DUMP_PAUSE_MS = 500 };

static_assert(ROUTE_MTUS_GROUPS == (RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE), "rtnetlink.h");

/* syscalls(run helper): timerfd_create */
int route_mtus_open(struct route_mtus *r)
{
	*r = (struct route_mtus){ .is_stale = true };
	r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	return r->timer < 0 ? -errno : 0;
}

/* syscalls(run helper): close */
void route_mtus_close(struct route_mtus *r)
{
	if (r->timer >= 0)
		close(r->timer);
	r->timer = -1;
}

void route_mtus_reset(struct route_mtus *r)
{
	*r = (struct route_mtus){ .timer = r->timer, .seq = r->seq, .is_stale = true };
}

/* syscalls(run helper): setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK) */
void route_mtus_watch(struct mnl_socket *nl)
{
	int on = 1;

	/* Refused before Linux 4.20. */
	(void)setsockopt(
		mnl_socket_get_fd(nl), SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof(on));
}

/* ---- Messages. */

/* What a route says of us. */
struct route {
	unsigned ifindex;
	bool is_through; /* it leads through the interface */
	unsigned mtu; /* 0: none of its own */
};

static int on_metric(const struct nlattr *attr, void *data)
{
	struct route *route = data;

	if (mnl_attr_get_type(attr) == RTAX_MTU && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
		route->mtu = mnl_attr_get_u32(attr);
	return MNL_CB_OK;
}

static void parse_nexthops(struct route *route, const struct nlattr *attr)
{
	const struct rtnexthop *hop = mnl_attr_get_payload(attr);
	int left = mnl_attr_get_payload_len(attr);

	while (left >= (int)sizeof(*hop) && RTNH_OK(hop, left)) {
		if ((unsigned)hop->rtnh_ifindex == route->ifindex)
			route->is_through = true;
		left -= (int)RTNH_ALIGN(hop->rtnh_len);
		hop = RTNH_NEXT(hop);
	}
}

static int on_attr(const struct nlattr *attr, void *data)
{
	struct route *route = data;

	switch (mnl_attr_get_type(attr)) {
	case RTA_OIF:
		if (mnl_attr_validate(attr, MNL_TYPE_U32) >= 0 &&
			mnl_attr_get_u32(attr) == route->ifindex)
			route->is_through = true;
		break;
	case RTA_METRICS:
		mnl_attr_parse_nested(attr, on_metric, route);
		break;
	case RTA_MULTIPATH:
		parse_nexthops(route, attr);
		break;
	}
	return MNL_CB_OK;
}

/* The MTU of a route through the interface; 0: it has none, or is another's. */
static unsigned parse_route(const struct nlmsghdr *msg, unsigned ifindex)
{
	struct route route = { .ifindex = ifindex };

	if (!ifindex || msg->nlmsg_len < mnl_nlmsg_size(sizeof(struct rtmsg)))
		return 0;
	mnl_attr_parse(msg, sizeof(struct rtmsg), on_attr, &route);
	return route.is_through ? route.mtu : 0;
}

static void take_change(struct route_mtus *r, const struct nlmsghdr *msg, unsigned ifindex)
{
	unsigned mtu = parse_route(msg, ifindex);
	bool is_new = msg->nlmsg_type == RTM_NEWROUTE;

	if (is_new) {
		wg_mtus_add(&r->now, mtu);
		/* The dump may be past it. */
		wg_mtus_add(&r->found, mtu);
	}
	/* Of what a new route replaced we are not told. */
	if ((is_new ? msg->nlmsg_flags & NLM_F_REPLACE : mtu) && (r->now.n || r->family))
		r->is_stale = true;
}

/* ---- The dump. */

static void end_part(struct route_mtus *r)
{
	r->is_asked = false;
	if (r->family == AF_INET) {
		r->family = AF_INET6;
		return;
	}
	r->family = AF_UNSPEC;
	if (r->is_torn)
		wg_mtus_merge(&r->now, &r->found);
	else
		r->now = r->found;
}

/* NLMSG_DONE carries an error, if there was one after the start. */
static bool has_failed(const struct nlmsghdr *msg)
{
	if (msg->nlmsg_type == NLMSG_ERROR)
		return true;
	return mnl_nlmsg_get_payload_len(msg) >= sizeof(int) &&
		*(const int *)mnl_nlmsg_get_payload(msg) < 0;
}

static void take_dump(struct route_mtus *r, const struct nlmsghdr *msg, unsigned ifindex)
{
	r->has_moved = true;
	if (msg->nlmsg_flags & NLM_F_DUMP_INTR) {
		/* Routes changed under it. */
		r->is_torn = true;
		r->is_stale = true;
	}
	switch (msg->nlmsg_type) {
	case RTM_NEWROUTE:
		wg_mtus_add(&r->found, parse_route(msg, ifindex));
		break;
	case NLMSG_ERROR:
	case NLMSG_DONE:
		if (has_failed(msg))
			r->is_torn = true;
		end_part(r);
		break;
	}
}

void route_mtus_take(
	struct route_mtus *r, const struct nlmsghdr *msg, unsigned ifindex, bool is_ours)
{
	if (is_ours && r->is_asked && msg->nlmsg_seq == r->seq)
		take_dump(r, msg, ifindex);
	else if (!is_ours && (msg->nlmsg_type == RTM_NEWROUTE || msg->nlmsg_type == RTM_DELROUTE))
		take_change(r, msg, ifindex);
}

void route_mtus_lost(struct route_mtus *r)
{
	r->is_stale = true;
	r->is_torn = true;
}

void route_mtus_doubt(struct route_mtus *r)
{
	if (r->now.n)
		r->is_stale = true;
}

/* syscalls: timerfd_settime */
static void rest(struct route_mtus *r)
{
	const struct itimerspec pause = { .it_value.tv_nsec = DUMP_PAUSE_MS * 1000000L };

	r->has_moved = false;
	r->is_resting = timerfd_settime(r->timer, 0, &pause, NULL) == 0;
}

/* syscalls: read */
static void look_at_timer(struct route_mtus *r)
{
	uint64_t n;

	if (read(r->timer, &n, sizeof(n)) != sizeof(n))
		return;
	r->is_resting = false;
	if (!r->family)
		return;
	if (!r->has_moved) {
		/* Neither an end nor an error, which a full socket loses. */
		route_mtus_lost(r);
		r->family = AF_INET6;
		end_part(r);
		return;
	}
	rest(r);
}

/* syscalls: sendto */
static bool send_request(const struct route_mtus *r, struct mnl_socket *nl, unsigned ifindex)
{
	char buf[64];
	struct nlmsghdr *msg = mnl_nlmsg_put_header(buf);
	struct rtmsg *rt;

	msg->nlmsg_type = RTM_GETROUTE;
	msg->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
	msg->nlmsg_seq = r->seq;
	rt = mnl_nlmsg_put_extra_header(msg, sizeof(*rt));
	rt->rtm_family = (unsigned char)r->family;
	mnl_attr_put_u32(msg, RTA_OIF, ifindex);
	return mnl_socket_sendto(nl, msg, msg->nlmsg_len) >= 0;
}

void route_mtus_ask(struct route_mtus *r, struct mnl_socket *nl, unsigned ifindex)
{
	look_at_timer(r);
	if (!nl)
		return;
	if (!r->family && r->is_stale && !r->is_resting && ifindex) {
		r->family = AF_INET;
		r->found = (struct wg_mtus){ 0 };
		r->is_stale = false;
		r->is_torn = false;
		rest(r);
	}
	if (!r->family || r->is_asked)
		return;
	/* 0 is the sequence number of requests that are not ours. */
	if (++r->seq == 0)
		r->seq = 1;
	r->is_asked = true;
	if (!send_request(r, nl, ifindex)) {
		route_mtus_lost(r);
		end_part(r);
	}
}
