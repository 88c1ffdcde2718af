/* The TUN's interface as rtnetlink shows it.
 *
 * The interface may be moved to another network namespace while we run, and is
 * then out of a netlink socket's sight: the old namespace says RTM_DELLINK, as if
 * it were gone. The TUN descriptor knows better (TUNGETIFF, and TUNGETDEVNETNS
 * for the namespace), so a new socket is opened there, by a short-lived thread
 * since setns() is for good. What others hold is the descriptor of an epoll set
 * that has the current socket in it, so that it never changes.
 *
 * State is always asked for anew (RTM_GETLINK) when a socket is new or when it
 * lost messages (ENOBUFS); the answer is a message like any other. The MTUs of the
 * routes through the interface come from the same socket: see route_mtus.c. */
#include "link.h"
#include "route_mtus.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <libmnl/libmnl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	ATTR_GSO_IPV4_MAX_SIZE = 63, /* IFLA_GSO_IPV4_MAX_SIZE, Linux 6.3 */
	BUF_LEN = 32768, /* the kernel's messages are no longer than this */
	ACK_TIMEOUT_S = 2,
	READS_MAX = 64, /* datagrams per call: a dump may have thousands */
};

struct netdev {
	int tun_fd; /* the caller's */
	int epfd;
	struct mnl_socket *nl; /* NULL: in a namespace that we may not enter */
	struct mnl_socket *req; /* for requests with an answer; the same namespace */
	int ifindex;
	bool is_lossy; /* the socket overflowed: state must be asked for */
	struct route_mtus routes;
	bool has_last;
	struct netdev_event last;
};

/* ---- Opening sockets where the interface is. */

struct opener {
	int nsfd; /* -1: stay */
	struct mnl_socket *nl, *req;
	int err;
};

/* syscalls(run helper): socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) bind getsockname close */
static struct mnl_socket *open_socket(unsigned groups, int flags)
{
	struct mnl_socket *nl = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC | flags);

	if (nl && mnl_socket_bind(nl, groups, MNL_SOCKET_AUTOPID) < 0) {
		int err = errno;

		mnl_socket_close(nl);
		errno = err;
		return NULL;
	}
	return nl;
}

/* syscalls(helper): setns(CLONE_NEWNET) */
static void *run_opener(void *arg)
{
	struct opener *o = arg;

	if (o->nsfd >= 0 && setns(o->nsfd, CLONE_NEWNET)) {
		o->err = -errno;
		return NULL;
	}
	o->nl = open_socket(RTMGRP_LINK | ROUTE_MTUS_GROUPS, SOCK_NONBLOCK);
	if (o->nl)
		o->req = open_socket(0, 0);
	if (!o->req) {
		o->err = -errno;
		if (o->nl)
			mnl_socket_close(o->nl);
	}
	return NULL;
}

/* Are we in the namespace that nsfd stands for?
 * syscalls(helper): socket(AF_INET, SOCK_DGRAM, 0) ioctl(SIOCGSKNS) fstat close */
static bool is_own_namespace(int nsfd)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), own;
	struct stat a, b;
	bool is_own;

	if (fd < 0)
		return false;
	own = ioctl(fd, SIOCGSKNS);
	close(fd);
	if (own < 0)
		return false;
	is_own =
		!fstat(own, &a) && !fstat(nsfd, &b) && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
	close(own);
	return is_own;
}

/* must_know: it is not here, so that "likely here" will not do. Without privilege,
 * as after the start, the first call fails and is the last.
 * syscalls(run helper): ioctl(TUNGETDEVNETNS) */
static int open_where_tun_is(const struct netdev *d, struct opener *o, bool must_know)
{
	pthread_t thread;
	int ret;

	*o = (struct opener){ .nsfd = ioctl(d->tun_fd, TUNGETDEVNETNS) };
	if (o->nsfd < 0 && must_know)
		return -EPERM;
	/* Not told (before Linux 5.2, or no CAP_NET_ADMIN): it is likely here. */
	if (o->nsfd < 0 || is_own_namespace(o->nsfd)) {
		if (o->nsfd >= 0)
			close(o->nsfd);
		o->nsfd = -1;
		run_opener(o);
		return o->err;
	}
	ret = -pthread_create(&thread, NULL, run_opener, o);
	if (!ret) {
		pthread_join(thread, NULL);
		ret = o->err;
	}
	close(o->nsfd);
	return ret;
}

/* syscalls(run helper): close */
static void detach(struct netdev *d)
{
	if (d->nl)
		mnl_socket_close(d->nl); /* leaves the epoll set by that */
	if (d->req)
		mnl_socket_close(d->req);
	d->nl = NULL;
	d->req = NULL;
	d->is_lossy = false;
	route_mtus_reset(&d->routes);
}

/* ---- Messages. */

/* syscalls(run helper): ioctl(TUNGETIFF) sendto */
static int ask_state(const struct netdev *d)
{
	char buf[256];
	struct nlmsghdr *msg = mnl_nlmsg_put_header(buf);
	struct ifinfomsg *info;
	struct ifreq ifr = { 0 };

	if (ioctl(d->tun_fd, TUNGETIFF, &ifr))
		return -errno;
	msg->nlmsg_type = RTM_GETLINK;
	msg->nlmsg_flags = NLM_F_REQUEST;
	info = mnl_nlmsg_put_extra_header(msg, sizeof(*info));
	info->ifi_family = AF_UNSPEC;
	if (d->ifindex)
		info->ifi_index = d->ifindex;
	else
		mnl_attr_put_strz(msg, IFLA_IFNAME, ifr.ifr_name);
	return mnl_socket_sendto(d->nl, msg, msg->nlmsg_len) < 0 ? -errno : 0;
}

/* Watch through the socket d->nl, and ask for the state as it is.
 * syscalls(run helper): epoll_ctl */
static int watch(struct netdev *d)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int ret = 0;

	if (epoll_ctl(d->epfd, EPOLL_CTL_ADD, mnl_socket_get_fd(d->nl), &ev))
		ret = -errno;
	if (!ret) {
		route_mtus_watch(d->nl);
		ret = ask_state(d);
	}
	if (ret)
		detach(d);
	return ret;
}

/* Watch the interface where it is now. */
static int attach(struct netdev *d, bool must_know)
{
	struct opener o;
	int ret = open_where_tun_is(d, &o, must_know);

	if (ret)
		return ret;
	d->nl = o.nl;
	d->req = o.req;
	d->ifindex = 0;
	return watch(d);
}

/* syscalls: bind getsockname close; libmnl */
int netdev_adopt(struct netdev *d, int fd, unsigned ifindex)
{
	detach(d);
	d->nl = mnl_socket_fdopen(fd);
	if (!d->nl ||
		mnl_socket_bind(d->nl, RTMGRP_LINK | ROUTE_MTUS_GROUPS, MNL_SOCKET_AUTOPID) < 0) {
		int ret = -errno;

		if (!d->nl)
			close(fd);
		detach(d);
		return ret;
	}
	d->ifindex = (int)ifindex;
	return watch(d);
}

/* What a run of messages said. */
struct news {
	struct netdev *d;
	struct netdev_event ev;
	bool has_state, is_deleted;
};

static int on_attr(const struct nlattr *attr, void *data)
{
	struct news *n = data;

	if (mnl_attr_get_type(attr) == IFLA_MTU && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
		n->ev.mtu = mnl_attr_get_u32(attr);
	return MNL_CB_OK;
}

/* is_ours: it answers ask_state(). */
static void on_link(struct news *n, const struct nlmsghdr *msg, bool is_ours)
{
	const struct ifinfomsg *info = mnl_nlmsg_get_payload(msg);

	if (msg->nlmsg_len < mnl_nlmsg_size(sizeof(*info)))
		return;
	/* AF_BRIDGE messages speak of ports, not of the interface. */
	if (info->ifi_family != AF_UNSPEC)
		return;
	if (msg->nlmsg_type == RTM_NEWLINK && !n->d->ifindex && is_ours)
		n->d->ifindex = info->ifi_index;
	if (info->ifi_index != n->d->ifindex)
		return;
	if (msg->nlmsg_type == RTM_DELLINK) {
		n->is_deleted = true;
		return;
	}
	n->has_state = true;
	n->ev.is_up = info->ifi_flags & IFF_UP;
	mnl_attr_parse(msg, sizeof(*info), on_attr, n);
}

/* The answer to ask_state() is that there is no interface of that name or index here. */
static bool is_missing(const struct nlmsghdr *msg)
{
	const struct nlmsgerr *err = mnl_nlmsg_get_payload(msg);

	return msg->nlmsg_type == NLMSG_ERROR && msg->nlmsg_len >= mnl_nlmsg_size(sizeof(*err)) &&
		err->error == -ENODEV && err->msg.nlmsg_type == RTM_GETLINK;
}

static void on_message(struct news *n, const struct nlmsghdr *msg)
{
	bool is_ours = msg->nlmsg_pid == mnl_socket_get_portid(n->d->nl);

	if (msg->nlmsg_type == RTM_NEWLINK || msg->nlmsg_type == RTM_DELLINK)
		on_link(n, msg, is_ours);
	else if (is_missing(msg))
		n->is_deleted = true;
	else
		route_mtus_take(&n->d->routes, msg, (unsigned)n->d->ifindex, is_ours);
}

/* The interface left this namespace, or the world.
 * syscalls: ioctl(TUNGETIFF) */
static int on_deleted(struct netdev *d, struct news *n)
{
	struct ifreq ifr = { 0 };

	detach(d);
	if (!ioctl(d->tun_fd, TUNGETIFF, &ifr))
		return attach(d, true);
	n->has_state = true;
	n->ev.is_up = false;
	n->ev.is_gone = true;
	return 0;
}

/* The messages of one datagram, until one says that the interface is gone. libmnl takes
 * lengths for signed: one above INT_MAX would be ok, and its next message before it. */
static void take_messages(struct news *n, const void *buf, size_t len)
{
	const struct nlmsghdr *msg = buf;
	int left = (int)len;

	for (; !n->is_deleted && mnl_nlmsg_ok(msg, left) && msg->nlmsg_len <= INT_MAX;
		msg = mnl_nlmsg_next(msg, &left))
		on_message(n, msg);
}

/* Take in one datagram. 1: there may be more. 0: no more. Negative errno.
 * syscalls: recvmsg; libmnl */
static int read_some(struct netdev *d, struct news *n)
{
	_Alignas(struct nlmsghdr) char buf[BUF_LEN];
	ssize_t len = mnl_socket_recvfrom(d->nl, buf, sizeof(buf));
	int ret;

	if (len < 0 && errno == EAGAIN && d->is_lossy) {
		/* Not before now: a full socket would not take the answer. */
		d->is_lossy = false;
		ret = ask_state(d);
		/* Gone, and the message that says so is among the lost ones? */
		return ret ? on_deleted(d, n) : 1;
	}
	if (len < 0 && errno == ENOBUFS) {
		d->is_lossy = true;
		route_mtus_lost(&d->routes);
		return 1;
	}
	if (len < 0)
		return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -errno;
	take_messages(n, buf, (size_t)len);
	if (n->is_deleted) {
		n->is_deleted = false;
		ret = on_deleted(d, n);
		return ret ? ret : d->nl != NULL;
	}
	return 1;
}

static bool is_same(const struct netdev_event *a, const struct netdev_event *b)
{
	return a->is_up == b->is_up && a->is_gone == b->is_gone && a->mtu == b->mtu &&
		!memcmp(&a->mtus, &b->mtus, sizeof(a->mtus));
}

int netdev_read(struct netdev *d, struct netdev_event *ev)
{
	struct news n = { .d = d, .ev = d->last };
	int ret = 1;

	for (int i = 0; i < READS_MAX && ret == 1 && d->nl; i++)
		ret = read_some(d, &n);
	if (ret < 0)
		return ret;
	if (n.ev.is_up != d->last.is_up || n.ev.mtu != d->last.mtu)
		route_mtus_doubt(&d->routes);
	route_mtus_ask(&d->routes, d->nl, (unsigned)d->ifindex);
	n.ev.mtus = d->routes.now;
	wg_mtus_add(&n.ev.mtus, n.ev.mtu);
	if (!(n.has_state || d->has_last) || (d->has_last && is_same(&n.ev, &d->last)))
		return 0;
	d->has_last = true;
	d->last = n.ev;
	*ev = n.ev;
	return 1;
}

/* syscalls(run helper): epoll_ctl */
static int watch_timer(struct netdev *d)
{
	struct epoll_event ev = { .events = EPOLLIN };

	return epoll_ctl(d->epfd, EPOLL_CTL_ADD, d->routes.timer, &ev) ? -errno : 0;
}

/* syscalls(run helper): epoll_create1 */
int netdev_open(struct netdev **out, const struct tun *t)
{
	struct netdev *d = calloc(1, sizeof(*d));
	int ret;

	if (!d)
		return -ENOMEM;
	d->tun_fd = t->fd;
	d->epfd = epoll_create1(EPOLL_CLOEXEC);
	ret = d->epfd < 0 ? -errno : 0;
	d->routes.timer = -1;
	if (!ret)
		ret = route_mtus_open(&d->routes);
	if (!ret)
		ret = watch_timer(d);
	if (!ret)
		ret = attach(d, false);
	if (ret) {
		netdev_close(d);
		return ret;
	}
	*out = d;
	return 0;
}

int netdev_fd(const struct netdev *d)
{
	return d->epfd;
}

/* syscalls(run helper): ioctl(TUNGETIFF) setsockopt(SOL_SOCKET, SO_RCVTIMEO) sendto recvmsg */
int netdev_set_gso_max(const struct netdev *d, unsigned bytes)
{
	struct timeval wait = { .tv_sec = ACK_TIMEOUT_S };
	char buf[1024];
	struct nlmsghdr *msg = mnl_nlmsg_put_header(buf);
	struct ifinfomsg *info;
	struct ifreq ifr = { 0 };
	ssize_t len;

	if (!d->req)
		return -EPERM;
	if (ioctl(d->tun_fd, TUNGETIFF, &ifr))
		return -errno;
	msg->nlmsg_type = RTM_NEWLINK;
	msg->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	info = mnl_nlmsg_put_extra_header(msg, sizeof(*info));
	info->ifi_family = AF_UNSPEC;
	mnl_attr_put_strz(msg, IFLA_IFNAME, ifr.ifr_name);
	mnl_attr_put_u32(msg, IFLA_GSO_MAX_SIZE, bytes);
	/* Before Linux 6.3 the first governs both families and this is not known. */
	mnl_attr_put_u32(msg, ATTR_GSO_IPV4_MAX_SIZE, bytes);
	if (setsockopt(mnl_socket_get_fd(d->req), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) ||
		mnl_socket_sendto(d->req, msg, msg->nlmsg_len) < 0)
		return -errno;
	len = mnl_socket_recvfrom(d->req, buf, sizeof(buf));
	if (len < 0 || mnl_cb_run(buf, (size_t)len, 0, 0, NULL, NULL) < 0)
		return -errno;
	return 0;
}

/* syscalls(run helper): close */
void netdev_close(struct netdev *d)
{
	if (!d)
		return;
	detach(d);
	route_mtus_close(&d->routes);
	if (d->epfd >= 0)
		close(d->epfd);
	free(d);
}
