/* The MTUs that the routes through one interface have (RTAX_MTU), read from the
 * route netlink socket that netdev.c owns. Part of it: see there for threads. */
#ifndef LINK_ROUTE_MTUS_H
#define LINK_ROUTE_MTUS_H

#include "wg/wg.h"
#include <libmnl/libmnl.h>

/* Group mask of the messages that route_mtus_take wants. */
enum { ROUTE_MTUS_GROUPS = 0x40 | 0x400 }; /* RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_ROUTE */

struct route_mtus {
	int timer; /* descriptor; readable when the pause between two dumps is over */
	struct wg_mtus now; /* what is known; may hold some that are gone, lacks none */
	bool is_stale; /* a dump is due */
	bool is_resting; /* the timer runs */
	/* the dump under way */
	int family; /* AF_UNSPEC: there is none */
	uint32_t seq; /* of its request */
	bool is_asked; /* the request is sent */
	bool has_moved; /* something came since the timer was set */
	bool is_torn; /* something may be missing */
	struct wg_mtus found;
};

/* 0 or negative errno. A fresh one asks for a dump. */
MUST_CHECK int route_mtus_open(struct route_mtus *r);
/* A struct with timer -1 is fine. */
void route_mtus_close(struct route_mtus *r);
/* The interface is elsewhere now: all begins anew, with a socket that
 * route_mtus_watch has seen. */
void route_mtus_reset(struct route_mtus *r);
/* A socket that dumps are to be asked for on. */
void route_mtus_watch(struct mnl_socket *nl);
/* Take in a message: a changed route, or part, end or failure of a dump. is_ours: it
 * answers a request of our socket. Others are ignored. */
void route_mtus_take(
	struct route_mtus *r, const struct nlmsghdr *msg, unsigned ifindex, bool is_ours);
/* The socket lost messages. */
void route_mtus_lost(struct route_mtus *r);
/* The interface changed: routes may have gone without a message. */
void route_mtus_doubt(struct route_mtus *r);
/* Ask for what is due. After each run of messages, and when the timer is readable,
 * also when there is no socket (NULL). */
void route_mtus_ask(struct route_mtus *r, struct mnl_socket *nl, unsigned ifindex);

#endif
