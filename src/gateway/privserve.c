/* How it works: a loop over one SOCK_SEQPACKET socket: receive a request with
 * its descriptors, check it against a table of what its kind may carry, do it,
 * answer, close every descriptor. Nothing is kept between two requests but how many
 * ICMP errors were sent of late.
 *
 * A TUN's interface can be moved to another namespace (wg-quick users do it):
 * the helper steps into it with setns, opens the netlink socket, and steps back.
 * If it cannot step back it answers and ends, since it would open the next
 * sockets in the wrong place. */
#include "gateway/privserve.h"
#include "base/bucket.h"
#include "base/clock.h"
#include "base/sandbox.h"
#include "gateway/calls.h"
#include "gateway/icmp_send.h"
#include "link/link.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { TUN_MAJOR = 10, TUN_MINOR_NO = 200 }; /* Linux Documentation/admin-guide/devices.txt */

/* ---- Messages */

/* syscalls(run helper): close */
void priv_fds_close(struct priv_fds *fds)
{
	for (unsigned i = 0; i < fds->n; i++)
		close(fds->fd[i]);
	fds->n = 0;
}

union fds_control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(PRIV_FDS_MAX * sizeof(int))];
};

/* syscalls(run helper): sendmsg */
int priv_send(int sock, const void *msg, size_t len, const struct priv_fds *fds, int flags)
{
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = len };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	union fds_control control;
	ssize_t ret;

	if (fds && fds->n > 0) {
		struct cmsghdr *c = &control.align;

		memset(&control, 0, sizeof(control));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(fds->n * sizeof(int));
		memcpy(CMSG_DATA(c), fds->fd, fds->n * sizeof(int));
		hdr.msg_control = &control;
		hdr.msg_controllen = CMSG_SPACE(fds->n * sizeof(int));
	}
	do {
		ret = sendmsg(sock, &hdr, flags | MSG_NOSIGNAL);
	} while (ret < 0 && errno == EINTR);
	if (ret < 0)
		return -errno;
	return (size_t)ret == len ? 0 : -EIO;
}

/* CMSG_SPACE would have room for one more. */
static_assert(PRIV_FDS_MAX % 2 == 0, "no padding");

static void collect_fds(struct msghdr *hdr, struct priv_fds *fds)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(hdr); c; c = CMSG_NXTHDR(hdr, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		/* The control buffer has no room for more. */
		assert(fds->n + n <= PRIV_FDS_MAX);
		memcpy(&fds->fd[fds->n], CMSG_DATA(c), n * sizeof(int));
		fds->n += (unsigned)n;
	}
}

/* syscalls(run helper): recvmsg */
int priv_recv(int sock, void *msg, size_t len, struct priv_fds *fds)
{
	struct iovec iov = { .iov_base = msg, .iov_len = len };
	union fds_control control;
	struct msghdr hdr = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control) };
	ssize_t ret;

	fds->n = 0;
	do {
		ret = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	} while (ret < 0 && errno == EINTR);
	/* Unread bytes at the other end turn its close into a reset. */
	if (ret < 0)
		return errno == ECONNRESET ? 0 : -errno;
	collect_fds(&hdr, fds);
	if (ret > 0 && (size_t)ret == len && !(hdr.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return 1;
	priv_fds_close(fds);
	return ret == 0 ? 0 : -EBADMSG;
}

/* ---- The TUN's interface, wherever it is
 *
 * Where there is no helper the gateway does this itself, as far as it gets without
 * privilege: TUNGETDEVNETNS fails, and it stays where it is.
 *
 * syscalls(run helper): fstat close ioctl(TUNGETIFF) ioctl(TUNGETDEVNETNS)
 * syscalls(helper): open setns(CLONE_NEWNET)
 * syscalls(run helper): socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)
 * syscalls(run helper): socket(AF_INET, SOCK_DGRAM, 0) ioctl(SIOCGIFINDEX); if_nametoindex
 * syscalls(run helper refused): socket(AF_UNIX, SOCK_DGRAM, 0); glibc tries it first there */

struct place {
	int own_ns; /* to step back into; -1: we did not move */
	unsigned ifindex;
};

static bool is_tun(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) &&
		st.st_rdev == makedev(TUN_MAJOR, TUN_MINOR_NO);
}

static bool is_same_file(int a, int b)
{
	struct stat sa, sb;

	return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_dev == sb.st_dev &&
		sa.st_ino == sb.st_ino;
}

/* Into the namespace of the TUN's interface, unless we are there. */
static int move_to(struct place *p, int tun_fd)
{
	int ret = 0, ns = ioctl(tun_fd, TUNGETDEVNETNS);

	p->own_ns = -1;
	/* Without privilege, or before Linux 5.2, it can only be looked for at home. */
	if (ns < 0)
		return 0;
	p->own_ns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (p->own_ns < 0) {
		ret = -errno;
		goto close_ns;
	}
	if (!is_same_file(ns, p->own_ns)) {
		if (setns(ns, CLONE_NEWNET) == 0)
			goto close_ns;
		ret = -errno;
	}
	close(p->own_ns);
	p->own_ns = -1;
close_ns:
	close(ns);
	return ret;
}

static int place_leave(struct place *p)
{
	int ret;

	if (p->own_ns < 0)
		return 0;
	ret = setns(p->own_ns, CLONE_NEWNET) < 0 ? -ENOTRECOVERABLE : 0;
	close(p->own_ns);
	p->own_ns = -1;
	return ret;
}

static int place_enter(struct place *p, int tun_fd)
{
	struct ifreq req;
	int ret;

	if (!is_tun(tun_fd))
		return -EINVAL;
	memset(&req, 0, sizeof(req));
	if (ioctl(tun_fd, TUNGETIFF, &req) < 0)
		return -errno;
	req.ifr_name[IFNAMSIZ - 1] = '\0';
	ret = move_to(p, tun_fd);
	if (ret < 0)
		return ret;
	p->ifindex = if_nametoindex(req.ifr_name);
	if (p->ifindex > 0)
		return 0;
	ret = place_leave(p);
	return ret < 0 ? ret : -ENODEV;
}

/* The socket is no privilege by itself: netlink(7) asks for the capability of the
 * opener and of the sender, and the gateway has none. */
int priv_netlink_open(int tun_fd, int *out, unsigned *ifindex)
{
	struct place p = { .own_ns = -1 };
	int fd, err, ret = place_enter(&p, tun_fd);

	if (ret < 0)
		return ret;
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	err = fd < 0 ? -errno : 0;
	ret = place_leave(&p);
	if (ret < 0 || err < 0) {
		if (fd >= 0)
			close(fd);
		return ret < 0 ? ret : err;
	}
	*out = fd;
	*ifindex = p.ifindex;
	return 0;
}

int priv_set_gso_max(int tun_fd, uint32_t bytes)
{
	const struct tun t = { .fd = tun_fd };
	struct netdev *d;
	int ret;

	if (!is_tun(tun_fd) || bytes < PRIV_GSO_MIN || bytes > PRIV_GSO_MAX)
		return -EINVAL;
	ret = netdev_open(&d, &t);
	if (ret < 0)
		return ret;
	ret = netdev_set_gso_max(d, bytes);
	netdev_close(d);
	return ret;
}

/* ---- Requests */

unsigned priv_udp_count(const struct priv_reply *r)
{
	return (unsigned)__builtin_popcount(r->data & 3) * r->n +
		(unsigned)__builtin_popcount(r->handshake & 3);
}

static int serve_udp_open(const struct priv_request *req, const struct priv_fds *in,
	struct priv_reply *reply, struct priv_fds *out)
{
	struct udp_config cfg = { .port = (uint16_t)req->port,
		.fwmark = req->fwmark,
		.allowed = req->allowed,
		.n = req->n,
		.steer = { -1, -1 } };
	struct udp u;
	int ret;

	if (in->n == 2)
		cfg.steer = (struct steer_fds){ in->fd[0], in->fd[1] };
	ret = udp_open(&u, &cfg);
	if (ret < 0)
		return ret;
	out->n = (unsigned)udp_sockets(&u, out->fd);
	for (unsigned f = 0; f < 2; f++) {
		reply->data |= (uint32_t)(u.data[f][0] >= 0) << f;
		reply->handshake |= (uint32_t)(u.handshake[f] >= 0) << f;
	}
	reply->n = u.n;
	reply->port = u.port;
	reply->offloads = u.offloads;
	reply->is_steered = u.is_steered;
	return 0;
}

/* Tell a packet's source that there is no way on. Checked as any packet from outside;
 * what is sent quotes it and says nothing else. */
static int serve_unreach(
	const struct priv_request *req, int tun_fd, struct bucket *icmp, struct priv_reply *reply)
{
	struct place p = { .own_ns = -1 };
	struct icmp_cause cause;
	bool is_local;
	int ret, err;

	if (!icmp_cause_parse(&cause, req->quote, req->bytes))
		return -EINVAL;
	if (!bucket_take(icmp, NSEC_PER_SEC / PRIV_ICMP_PER_SEC, PRIV_ICMP_BURST, clock_now_ns()))
		return -EBUSY;
	ret = place_enter(&p, tun_fd);
	if (ret < 0)
		return ret;
	err = icmp_send_unreach(&cause, p.ifindex, &is_local);
	ret = place_leave(&p);
	if (ret == 0 && err == 0)
		reply->is_local = is_local;
	return ret < 0 ? ret : err;
}

/* syscalls(helper): getsockopt */
static bool has_int_option(int fd, int name, int a, int b)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, name, &value, &len) == 0 && (value == a || value == b);
}

/* syscalls(helper): setsockopt(SOL_SOCKET, SO_MARK) */
static int serve_udp_mark(const struct priv_request *req, const struct priv_fds *in)
{
	for (unsigned i = 0; i < in->n; i++) {
		if (!has_int_option(in->fd[i], SO_DOMAIN, AF_INET, AF_INET6) ||
			!has_int_option(in->fd[i], SO_TYPE, SOCK_DGRAM, SOCK_DGRAM) ||
			!has_int_option(in->fd[i], SO_PROTOCOL, IPPROTO_UDP, IPPROTO_UDP))
			return -EINVAL;
	}
	for (unsigned i = 0; i < in->n; i++) {
		if (setsockopt(in->fd[i], SOL_SOCKET, SO_MARK, &req->fwmark, sizeof(req->fwmark)) <
			0)
			return -errno;
	}
	return 0;
}

static bool is_valid(const struct priv_request *req, unsigned n_fds)
{
	static const struct {
		uint32_t port, fwmark, allowed, bytes, n; /* largest value */
		unsigned fds_min, fds_max;
	} limits[] = {
		[PRIV_UDP_OPEN] = { UINT16_MAX, UINT32_MAX, OFFLOAD_ALL, 0, UDP_CHANNELS_MAX, 0,
			2 },
		[PRIV_UDP_MARK] = { 0, UINT32_MAX, 0, 0, 0, 1, PRIV_FDS_MAX },
		[PRIV_NETDEV_OPEN] = { 0, 0, 0, 0, 0, 1, 1 },
		[PRIV_SET_GSO_MAX] = { 0, 0, 0, PRIV_GSO_MAX, 0, 1, 1 },
		[PRIV_UNREACH] = { 0, 0, 0, ICMP_QUOTE_MAX, 0, 1, 1 },
	};

	if (req->magic != PRIV_MAGIC || req->seq == 0)
		return false;
	if (req->op < PRIV_UDP_OPEN || req->op >= ARRAY_LEN(limits))
		return false;
	return req->port <= limits[req->op].port && req->fwmark <= limits[req->op].fwmark &&
		req->allowed <= limits[req->op].allowed && req->bytes <= limits[req->op].bytes &&
		req->n <= limits[req->op].n && (req->op == PRIV_UDP_OPEN) == (req->n > 0) &&
		(req->op != PRIV_UDP_OPEN || n_fds != 1) && n_fds >= limits[req->op].fds_min &&
		n_fds <= limits[req->op].fds_max;
}

static int serve_one(const struct priv_request *req, const struct priv_fds *in, struct bucket *icmp,
	struct priv_reply *reply, struct priv_fds *out)
{
	int ret;

	if (!is_valid(req, in->n))
		return -EBADMSG;
	switch ((enum priv_op)req->op) {
	case PRIV_UDP_OPEN:
		return serve_udp_open(req, in, reply, out);
	case PRIV_UDP_MARK:
		return serve_udp_mark(req, in);
	case PRIV_NETDEV_OPEN:
		ret = priv_netlink_open(in->fd[0], &out->fd[0], &reply->ifindex);
		out->n = ret == 0;
		return ret;
	case PRIV_SET_GSO_MAX:
		return priv_set_gso_max(in->fd[0], req->bytes);
	case PRIV_UNREACH:
		return serve_unreach(req, in->fd[0], icmp, reply);
	}
	return -EBADMSG;
}

/* ---- The process */

/* The terminal's signals are for the gateway, which closes the socket when it is
 * done; those that pkill sends to everything named penstock must not end us.
 * syscalls(start): signal sigprocmask */
static void set_signals(void)
{
	static const int ignored[] = { SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGTSTP, SIGPIPE, SIGUSR1,
		SIGUSR2 };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL); /* the gateway's handlers; some cannot be set, no matter */
	for (size_t i = 0; i < ARRAY_LEN(ignored); i++)
		signal(ignored[i], SIG_IGN);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* syscalls(start): close_range getrlimit close */
static void close_between(unsigned first, unsigned last)
{
	struct rlimit limit;

	if (first > last || close_range(first, last, 0) == 0)
		return;
	/* Before Linux 5.9, or refused by a seccomp filter. */
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && last >= limit.rlim_cur)
		last = (unsigned)limit.rlim_cur - 1;
	for (unsigned fd = first; fd <= last; fd++)
		close((int)fd);
}

/* Nothing of the gateway's stays open but the socket. Standard error as well: who
 * waits for the end of a pipe that the gateway was started on must not wait for
 * us. Errors travel as errno and are logged there. Returns the socket's new number.
 * syscalls(start): fcntl open dup2 close */
static int keep_only(int sock)
{
	int null;

	sock = fcntl(sock, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (sock < 0)
		return -errno;
	close_between(STDERR_FILENO + 1, (unsigned)sock - 1);
	close_between((unsigned)sock + 1, ~0u);
	null = open("/dev/null", O_RDWR);
	if (null < 0)
		return -errno;
	for (int fd = 0; fd <= STDERR_FILENO; fd++) {
		if (dup2(null, fd) < 0)
			return -errno;
	}
	if (null > STDERR_FILENO)
		close(null);
	return sock;
}

static int drop_privileges(enum sandbox_mode sandbox)
{
	/* NET_ADMIN: marks, buffers beyond the limit, gso_max_size. BIND_SERVICE: ports
	 * below 1024. NET_RAW: ICMP errors. SYS_ADMIN: setns, for a TUN that was moved; and
	 * before Linux 5.19 bpf(), for sockets under the steering program. */
	static const int caps[] = { CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW,
		CAP_SYS_ADMIN };
	int ret = sandbox_no_dumps();

	if (ret == 0)
		ret = sandbox_keep(caps, ARRAY_LEN(caps));
	/* The gateway meets the same obstacle in a moment, and has a log to say so. */
	if (ret == 0 && sandbox_filter(&helper_calls, sandbox, 0) < 0)
		return 0;
	return ret;
}

int priv_answer(int sock, struct bucket *icmp)
{
	struct priv_reply reply = { .magic = PRIV_MAGIC };
	struct priv_request req;
	struct priv_fds in, out = { .n = 0 };
	int ret;

	memset(&req, 0, sizeof(req));
	ret = priv_recv(sock, &req, sizeof(req), &in);
	if (ret == 0 || (ret < 0 && ret != -EBADMSG))
		return ret;
	reply.seq = req.seq;
	reply.err = ret < 0 ? ret : serve_one(&req, &in, icmp, &reply, &out);
	priv_fds_close(&in);
	ret = priv_send(sock, &reply, sizeof(reply), &out, 0);
	priv_fds_close(&out);
	if (ret < 0)
		return ret == -EPIPE ? 0 : ret;
	return reply.err == -ENOTRECOVERABLE ? reply.err : 1;
}

/* syscalls(start): prctl getppid */
int priv_serve(int sock, int parent, enum sandbox_mode sandbox)
{
	struct priv_reply reply = { .magic = PRIV_MAGIC };
	struct bucket icmp = { 0 };
	int ret;

	set_signals();
	prctl(PR_SET_NAME, "penstock-priv");
	/* Beside the end of the connection, which a copy of the gateway's end would delay. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		return 1;
	sock = keep_only(sock);
	if (sock < 0)
		return 1;
	reply.err = drop_privileges(sandbox);
	if (priv_send(sock, &reply, sizeof(reply), NULL, 0) < 0 || reply.err < 0)
		return 1;
	do
		ret = priv_answer(sock, &icmp);
	while (ret > 0);
	return ret == 0 ? 0 : 1;
}
