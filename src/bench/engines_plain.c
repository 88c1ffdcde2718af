/* Buffers and ancillary data are the same as the gateway's engines have, so that what
 * differs is how they are filled. */
#include "bench/engines_plain.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/rcu.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	MESSAGES = 32,
	BUF_STRIDE = IO_BUF_LEN + 64 * 4, /* as in io/epoll.c */
};

struct engine {
	int epfd, wakefd;
	int fd; /* -1: none */
	uint32_t tag;
	struct arena arena;
	struct mmsghdr msg[MESSAGES];
	struct iovec iov[MESSAGES];
	struct sockaddr_storage name[MESSAGES];
	_Alignas(struct cmsghdr) uint8_t control[MESSAGES][IO_CONTROL_LEN];
};

static int probe(const struct engine_config *cfg)
{
	return 0;
}

static void close_engine(struct engine *e)
{
	if (!e)
		return;
	if (e->epfd >= 0)
		close(e->epfd);
	if (e->wakefd >= 0)
		close(e->wakefd);
	arena_fini(&e->arena);
	free(e);
}

static int watch(struct engine *e, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(e->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int open_engine(struct engine **out, const struct engine_config *cfg)
{
	struct engine *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return -ENOMEM;
	ret = arena_init(&e->arena, (size_t)MESSAGES * BUF_STRIDE);
	if (ret) {
		free(e);
		return ret;
	}
	e->fd = -1;
	e->epfd = epoll_create1(EPOLL_CLOEXEC);
	e->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	for (unsigned i = 0; i < MESSAGES; i++) {
		struct msghdr *h = &e->msg[i].msg_hdr;

		e->iov[i] = (struct iovec){ e->arena.base + (size_t)i * BUF_STRIDE, IO_BUF_LEN };
		h->msg_iov = &e->iov[i];
		h->msg_iovlen = 1;
		h->msg_name = &e->name[i];
		h->msg_control = e->control[i];
	}
	ret = e->epfd < 0 || e->wakefd < 0 ? -errno : watch(e, e->wakefd);
	if (ret)
		close_engine(e);
	else
		*out = e;
	return ret;
}

static int add(struct engine *e, const struct io_channel *c)
{
	if (e->fd >= 0 || c->kind != IO_DGRAM)
		return -ENOSPC;
	e->fd = c->fd;
	e->tag = c->tag;
	return watch(e, c->fd);
}

static int drop(struct engine *e, int fd)
{
	if (fd != e->fd)
		return -ENOENT;
	e->fd = -1;
	return epoll_ctl(e->epfd, EPOLL_CTL_DEL, fd, NULL) ? -errno : 0;
}

static int receive(struct engine *e, struct io_batch *in)
{
	int n;

	for (unsigned i = 0; i < MESSAGES; i++) {
		e->msg[i].msg_hdr.msg_namelen = sizeof(e->name[i]);
		e->msg[i].msg_hdr.msg_controllen = IO_CONTROL_LEN;
		e->msg[i].msg_hdr.msg_flags = 0;
	}
	n = recvmmsg(e->fd, e->msg, MESSAGES, MSG_DONTWAIT, NULL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++)
		in->rx[in->n++] = (struct io_rx){ e->iov[i].iov_base, e->msg[i].msg_len, e->tag,
			&e->msg[i].msg_hdr };
	return 0;
}

static int wait_batch(struct engine *e, struct io_batch *in, int64_t timeout_ns)
{
	struct epoll_event ev[2];
	uint64_t count;
	int n, ret = 0;

	in->n = 0;
	in->lost = 0;
	in->order = NULL;
	rcu_offline();
	n = epoll_wait(e->epfd, ev, 2,
		timeout_ns < 0 ? -1 : (int)(timeout_ns / (int64_t)NSEC_PER_MSEC) + 1);
	rcu_online();
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n && !ret; i++) {
		if (ev[i].data.fd == e->fd)
			ret = receive(e, in);
		else if (read(e->wakefd, &count, sizeof(count)) < 0)
			ret = errno == EAGAIN ? 0 : -errno;
	}
	return ret;
}

static size_t send_batch(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	size_t i = 0, n_sent = 0;

	while (i < n) {
		/* struct io_tx stands in for mmsghdr, see io/epoll.c. */
		int done = sendmmsg(fd, (struct mmsghdr *)&tx[i], (unsigned)(n - i), MSG_NOSIGNAL);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0) {
			tx[i++].err = -errno;
			continue;
		}
		for (int k = 0; k < done; k++)
			tx[i + (size_t)k].err = 0;
		i += (size_t)done;
		n_sent += (size_t)done;
	}
	return n_sent;
}

static void wake(struct engine *e)
{
	uint64_t one = 1;

	if (write(e->wakefd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

const struct engine_ops plain_ops = {
	.name = "epoll_recvmmsg",
	.traits = ENGINE_ONE_CHANNEL,
	.probe = probe,
	.open = open_engine,
	.add = add,
	.drop = drop,
	.wait = wait_batch,
	.send = send_batch,
	.wake = wake,
	.close = close_engine,
};
