/* How it works: each call is one request and one answer on a SOCK_SEQPACKET
 * socketpair (messages keep their bounds, descriptors ride along). Answers carry
 * the request's number: after a timeout the late answer is thrown away, with its
 * descriptors, by the next call. The work itself is in privserve.c.
 *
 * syscalls: poll; sendmsg and recvmsg are in privserve.c
 * syscalls(start): socketpair fork close */
#include "gateway/privhelper.h"
#include "base/clock.h"
#include "base/sandbox.h"
#include "gateway/privserve.h"
#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* 1: readable (or at its end); 0: the deadline has passed. */
static int wait_readable(int fd, uint64_t deadline_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t now;
	int ret, timeout_ms;

	do {
		now = clock_now_ns();
		timeout_ms = 0;
		if (now < deadline_ns)
			timeout_ms = (int)((deadline_ns - now) / NSEC_PER_MSEC) + 1;
		ret = poll(&p, 1, timeout_ms);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : ret;
}

/* Wait for answer seq. On 0 the caller owns fds. */
static int await_reply(
	struct privhelper *h, uint32_t seq, struct priv_reply *reply, struct priv_fds *fds)
{
	uint64_t deadline_ns = clock_now_ns() + PRIVHELPER_TIMEOUT_MS * NSEC_PER_MSEC;
	int ret;

	for (;;) {
		ret = wait_readable(h->fd, deadline_ns);
		if (ret <= 0)
			return ret < 0 ? ret : -ETIMEDOUT;
		ret = priv_recv(h->fd, reply, sizeof(*reply), fds);
		if (ret <= 0)
			return ret < 0 ? ret : -EPIPE;
		if (reply->magic == PRIV_MAGIC && reply->seq == seq)
			break;
		priv_fds_close(fds);
	}
	if (reply->err == 0)
		return 0;
	priv_fds_close(fds);
	return reply->err < 0 ? reply->err : -EPROTO;
}

static int call(struct privhelper *h, struct priv_request *req, const struct priv_fds *in,
	struct priv_reply *reply, struct priv_fds *out)
{
	int ret;

	if (++h->seq == 0)
		h->seq = 1;
	req->magic = PRIV_MAGIC;
	req->seq = h->seq;
	ret = priv_send(h->fd, req, sizeof(*req), in, MSG_DONTWAIT);
	if (ret == -EAGAIN) /* it does not read */
		return -ETIMEDOUT;
	if (ret == -ECONNRESET)
		return -EPIPE;
	return ret < 0 ? ret : await_reply(h, req->seq, reply, out);
}

/* A call that is answered by an errno alone. */
static int call_plain(struct privhelper *h, struct priv_request *req, const struct priv_fds *in)
{
	struct priv_reply reply;
	struct priv_fds out;
	int ret = call(h, req, in, &reply, &out);

	if (ret < 0)
		return ret;
	priv_fds_close(&out);
	return 0;
}

int privhelper_start(struct privhelper *h, enum sandbox_mode sandbox)
{
	struct priv_reply reply;
	struct priv_fds fds;
	int ret, pair[2];
	pid_t pid, self = getpid();

	*h = (struct privhelper){ .fd = -1 };
	if (!sandbox_has(CAP_NET_ADMIN) && !sandbox_has(CAP_NET_BIND_SERVICE))
		return 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	pid = fork();
	if (pid < 0) {
		ret = -errno;
		close(pair[0]);
		close(pair[1]);
		return ret;
	}
	if (pid == 0)
		_exit(priv_serve(pair[1], self, sandbox));
	close(pair[1]);
	h->fd = pair[0];
	h->pid = pid;
	ret = await_reply(h, 0, &reply, &fds);
	if (ret < 0) {
		privhelper_stop(h);
		return ret;
	}
	priv_fds_close(&fds);
	return 0;
}

int privhelper_udp_open(struct privhelper *h, const struct udp_config *cfg, struct udp *out)
{
	struct priv_request req = { .op = PRIV_UDP_OPEN,
		.port = cfg->port,
		.fwmark = cfg->fwmark,
		.allowed = cfg->allowed,
		.n = cfg->n };
	struct priv_fds in = { .n = 0 }, fds;
	struct priv_reply reply;
	unsigned next = 0;
	int ret;

	if (h->fd < 0) {
		/* To put them under the steering program takes a privilege, and a call that the
		 * gateway's list does not have: with --sandbox kill it would be the last. */
		struct udp_config plain = *cfg;

		plain.steer = (struct steer_fds){ -1, -1 };
		return udp_open(out, &plain);
	}
	if (cfg->steer.prog >= 0) {
		in.fd[in.n++] = cfg->steer.prog;
		in.fd[in.n++] = cfg->steer.sockets;
	}
	ret = call(h, &req, &in, &reply, &fds);
	if (ret < 0)
		return ret;
	if (reply.n < 1 || reply.n > cfg->n || reply.port > UINT16_MAX || fds.n == 0 ||
		fds.n != priv_udp_count(&reply)) {
		priv_fds_close(&fds);
		return -EPROTO;
	}
	udp_init(out);
	out->n = reply.n;
	out->port = (uint16_t)reply.port;
	out->offloads = reply.offloads;
	out->is_steered = reply.is_steered;
	for (unsigned f = 0; f < 2; f++) {
		for (unsigned k = 0; reply.data & 1u << f && k < out->n; k++)
			out->data[f][k] = fds.fd[next++];
		if (reply.handshake & 1u << f)
			out->handshake[f] = fds.fd[next++];
	}
	return 0;
}

int privhelper_udp_mark(struct privhelper *h, struct udp *u, uint32_t fwmark)
{
	struct priv_request req = { .op = PRIV_UDP_MARK, .fwmark = fwmark };
	struct priv_fds in = { .n = 0 };

	if (h->fd < 0)
		return udp_set_mark(u, fwmark);
	in.n = (unsigned)udp_sockets(u, in.fd);
	return in.n == 0 ? 0 : call_plain(h, &req, &in);
}

int privhelper_netdev_open(struct privhelper *h, const struct tun *t, int *fd, unsigned *ifindex)
{
	struct priv_request req = { .op = PRIV_NETDEV_OPEN };
	const struct priv_fds in = { .fd = { t->fd }, .n = 1 };
	struct priv_reply reply;
	struct priv_fds out;
	int ret;

	if (h->fd < 0)
		return priv_netlink_open(t->fd, fd, ifindex);
	ret = call(h, &req, &in, &reply, &out);
	if (ret < 0)
		return ret;
	if (out.n != 1 || reply.ifindex == 0) {
		priv_fds_close(&out);
		return -EPROTO;
	}
	*fd = out.fd[0];
	*ifindex = reply.ifindex;
	return 0;
}

int privhelper_set_gso_max(struct privhelper *h, const struct tun *t, uint32_t bytes)
{
	struct priv_request req = { .op = PRIV_SET_GSO_MAX, .bytes = bytes };
	const struct priv_fds in = { .fd = { t->fd }, .n = 1 };

	if (bytes < PRIV_GSO_MIN || bytes > PRIV_GSO_MAX)
		return -EINVAL;
	return h->fd < 0 ? priv_set_gso_max(t->fd, bytes) : call_plain(h, &req, &in);
}

int privhelper_unreach(
	struct privhelper *h, const struct tun *t, const struct icmp_cause *c, bool *is_local)
{
	struct priv_request req = { .op = PRIV_UNREACH, .bytes = c->len };
	const struct priv_fds in = { .fd = { t->fd }, .n = 1 };
	struct priv_reply reply;
	struct priv_fds out;
	int ret;

	if (h->fd < 0)
		return -EPERM;
	memcpy(req.quote, c->pkt, c->len);
	ret = call(h, &req, &in, &reply, &out);
	if (ret < 0)
		return ret;
	priv_fds_close(&out);
	*is_local = reply.is_local;
	return 0;
}

/* Collect the child, which was told to end; false: it is still there.
 * syscalls: waitpid nanosleep */
static bool collect(pid_t pid, int *status)
{
	static const struct timespec pause = { .tv_nsec = 2 * NSEC_PER_MSEC };
	uint64_t deadline_ns = clock_now_ns() + PRIVHELPER_TIMEOUT_MS * NSEC_PER_MSEC;
	pid_t ret;

	for (;;) {
		ret = waitpid(pid, status, WNOHANG);
		/* -ECHILD: SIGCHLD is ignored, and the kernel collects for us. */
		if (ret == pid || (ret < 0 && errno != EINTR))
			return true;
		if (clock_now_ns() >= deadline_ns)
			return false;
		nanosleep(&pause, NULL);
	}
}

/* syscalls: poll recvmsg close */
bool privhelper_has_died(struct privhelper *h)
{
	struct pollfd ready = { h->fd, POLLIN, 0 };
	struct priv_reply late;
	struct priv_fds fds;
	int ret;

	while (h->fd >= 0 && poll(&ready, 1, 0) > 0) {
		ret = priv_recv(h->fd, &late, sizeof(late), &fds);
		if (ret == 0 || (ret < 0 && ret != -EBADMSG))
			return true;
		if (ret == 1)
			priv_fds_close(&fds);
	}
	return false;
}

/* syscalls: close kill(HELPER) waitpid */
int privhelper_stop(struct privhelper *h)
{
	int status = 0;

	if (h->pid <= 0)
		return 0;
	close(h->fd);
	if (!collect(h->pid, &status)) {
		kill(h->pid, SIGKILL);
		waitpid(h->pid, &status, 0);
	}
	*h = (struct privhelper){ .fd = -1, .seq = h->seq };
	return status == 0 ? 0 : -EPIPE;
}
