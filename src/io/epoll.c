/* The epoll engine. Level-triggered epoll tells which channels woke us; a
 * channel that gave something last time is read again without asking epoll
 * first, so that under load a batch costs one recvmmsg (or a run of TUN reads)
 * and no epoll_wait. Every POLL_EVERY batches epoll is asked all the same, so
 * that a busy channel does not starve the others.
 *
 * How much one batch takes adapts: a recvmmsg that brought trains is followed
 * by one that asks for few messages, so that a batch stays in the L2 cache. */
#include "io/io.h"
#include "base/arena.h"
#include "base/rcu.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	POLL_EVERY = 16,
	BATCH_BYTES = 256 * 1024, /* stop filling a batch beyond this */
	TRAIN_BYTES = 8 * 1024, /* mean message length that counts as trains */
	TRAINS_PER_BATCH = 4,
	/* Odd number of cache lines, so that the first lines of the buffers do not
	 * all fall into one set of the L1 cache. */
	BUF_STRIDE = IO_BUF_LEN + 64 * 4,
};
static_assert(BUF_STRIDE % 64 == 0 && BUF_STRIDE / 64 % 2 == 1, "stagger");

struct channel {
	int fd; /* -1: free */
	enum io_kind kind;
	uint32_t tag;
	bool is_hot; /* gave something last time */
	unsigned depth; /* messages to ask for */
};

struct engine {
	int epfd;
	int wakefd;
	unsigned since_poll;
	unsigned first; /* channel that is read first, turns round */
	struct channel ch[IO_CHANNELS_MAX];
	struct arena arena;
	struct mmsghdr msg[IO_BATCH_MAX];
	struct iovec iov[IO_BATCH_MAX];
	struct sockaddr_storage name[IO_BATCH_MAX];
	_Alignas(struct cmsghdr) uint8_t control[IO_BATCH_MAX][IO_CONTROL_LEN];
};

/* sendmmsg takes an array of io_tx as it is. */
static_assert(sizeof(struct io_tx) == sizeof(struct mmsghdr), "io_tx stands in for mmsghdr");
static_assert(offsetof(struct io_tx, err) == offsetof(struct mmsghdr, msg_len), "io_tx");

static int probe(void)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static int watch(struct engine *e, int fd, uint32_t i)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = i };

	return epoll_ctl(e->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static void buffers_init(struct engine *e)
{
	for (unsigned i = 0; i < IO_BATCH_MAX; i++) {
		struct msghdr *h = &e->msg[i].msg_hdr;

		e->iov[i].iov_base = e->arena.base + (size_t)i * BUF_STRIDE;
		e->iov[i].iov_len = IO_BUF_LEN;
		h->msg_iov = &e->iov[i];
		h->msg_iovlen = 1;
		h->msg_name = &e->name[i];
		h->msg_control = e->control[i];
	}
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++)
		e->ch[i].fd = -1;
}

static int open_engine(struct engine **out)
{
	struct engine *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return -ENOMEM;
	ret = arena_init(&e->arena, (size_t)IO_BATCH_MAX * BUF_STRIDE);
	if (ret)
		goto free_engine;
	e->epfd = epoll_create1(EPOLL_CLOEXEC);
	e->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->epfd < 0 || e->wakefd < 0) {
		ret = -errno;
		goto close_fds;
	}
	buffers_init(e);
	ret = watch(e, e->wakefd, IO_CHANNELS_MAX);
	if (ret)
		goto close_fds;
	*out = e;
	return 0;

close_fds:
	if (e->epfd >= 0)
		close(e->epfd);
	if (e->wakefd >= 0)
		close(e->wakefd);
	arena_fini(&e->arena);
free_engine:
	free(e);
	return ret;
}

static void close_engine(struct engine *e)
{
	if (!e)
		return;
	close(e->epfd);
	close(e->wakefd);
	arena_fini(&e->arena);
	free(e);
}

static int add(struct engine *e, int fd, enum io_kind kind, uint32_t tag)
{
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++) {
		struct channel *c = &e->ch[i];
		int ret;

		if (c->fd >= 0)
			continue;
		ret = watch(e, fd, i);
		if (!ret)
			*c = (struct channel){
				.fd = fd, .kind = kind, .tag = tag, .depth = IO_BATCH_MAX
			};
		return ret;
	}
	return -ENOSPC;
}

static int drop(struct engine *e, int fd)
{
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++) {
		if (fd < 0 || e->ch[i].fd != fd)
			continue;
		epoll_ctl(e->epfd, EPOLL_CTL_DEL, fd, NULL);
		e->ch[i].fd = -1;
		e->ch[i].is_hot = false;
		return 0;
	}
	return -ENOENT;
}

static struct io_rx *push(
	struct engine *e, struct io_batch *in, const struct channel *c, size_t len)
{
	struct io_rx *rx = &in->rx[in->n];

	rx->data = e->iov[in->n].iov_base;
	rx->len = (uint32_t)len;
	rx->tag = c->tag;
	rx->hdr = NULL;
	in->n++;
	return rx;
}

/* syscalls: recvmmsg */
static size_t receive_datagrams(struct engine *e, struct channel *c, struct io_batch *in)
{
	size_t first = in->n, room = IO_BATCH_MAX - first, want = c->depth < room ? c->depth : room;
	size_t bytes = 0;
	int n;

	for (size_t i = first; i < first + want; i++) {
		e->msg[i].msg_hdr.msg_namelen = sizeof(e->name[i]);
		e->msg[i].msg_hdr.msg_controllen = sizeof(e->control[i]);
	}
	n = recvmmsg(c->fd, &e->msg[first], (unsigned)want, MSG_DONTWAIT, NULL);
	if (n <= 0) {
		/* Anything but "empty" is a pending error of the socket (an ICMP
		 * message): reading has cleared it. */
		c->is_hot = n < 0 && errno != EAGAIN;
		return 0;
	}
	for (size_t i = first; i < first + (size_t)n; i++) {
		push(e, in, c, e->msg[i].msg_len)->hdr = &e->msg[i].msg_hdr;
		bytes += e->msg[i].msg_len;
	}
	c->is_hot = true;
	c->depth = bytes / (size_t)n >= TRAIN_BYTES ? TRAINS_PER_BATCH : IO_BATCH_MAX;
	return bytes;
}

/* syscalls: read */
static size_t receive_frames(struct engine *e, struct channel *c, struct io_batch *in)
{
	size_t bytes = 0;

	c->is_hot = true;
	while (in->n < IO_BATCH_MAX && bytes < BATCH_BYTES) {
		ssize_t len = read(c->fd, e->iov[in->n].iov_base, IO_BUF_LEN);

		if (len <= 0) {
			/* EAGAIN: empty. EIO: the interface is down. EBADFD: it is gone;
			 * the control thread finds out by netlink. */
			c->is_hot = false;
			break;
		}
		push(e, in, c, (size_t)len);
		bytes += (size_t)len;
	}
	return bytes;
}

static void receive_hot(struct engine *e, struct io_batch *in)
{
	struct channel *last = NULL;
	size_t bytes = 0;

	for (unsigned k = 0; k < IO_CHANNELS_MAX && in->n < IO_BATCH_MAX && bytes < BATCH_BYTES;
		k++) {
		struct channel *c = &e->ch[(e->first + k) % IO_CHANNELS_MAX];

		if (c->fd < 0 || !c->is_hot)
			continue;
		bytes += c->kind == IO_DGRAM ? receive_datagrams(e, c, in)
					     : receive_frames(e, c, in);
		last = c;
	}
	/* The channel after the one that was read last comes first next time: if that
	 * one filled the batch, the others have not had their turn. */
	if (last)
		e->first = (unsigned)(last - e->ch + 1) % IO_CHANNELS_MAX;
}

static int wait_ms(int64_t timeout_ns)
{
	if (timeout_ns < 0)
		return -1;
	if (timeout_ns / 1000000 >= INT_MAX)
		return INT_MAX;
	return (int)(timeout_ns / 1000000 + (timeout_ns % 1000000 != 0));
}

/* syscalls: epoll_wait */
static int poll_events(struct engine *e, int64_t timeout_ns)
{
	struct epoll_event ev[IO_CHANNELS_MAX + 1];
	int timeout_ms = wait_ms(timeout_ns);
	bool may_block = timeout_ms != 0;
	int n;

	e->since_poll = 0;
	if (may_block)
		rcu_offline();
	n = epoll_wait(e->epfd, ev, ARRAY_LEN(ev), timeout_ms);
	if (may_block)
		rcu_online();
	for (int i = 0; i < n; i++) {
		uint64_t count;

		if (ev[i].data.u32 < IO_CHANNELS_MAX)
			e->ch[ev[i].data.u32].is_hot = true;
		else if (read(e->wakefd, &count, sizeof(count)) < 0)
			continue; /* another wait took it */
	}
	return n;
}

static int wait_batch(struct engine *e, struct io_batch *in, int64_t timeout_ns)
{
	in->n = 0;
	if (++e->since_poll >= POLL_EVERY && poll_events(e, 0) < 0 && errno != EINTR)
		return -errno;
	receive_hot(e, in);
	if (in->n > 0)
		return 0;
	if (poll_events(e, timeout_ns) < 0 && errno != EINTR)
		return -errno;
	receive_hot(e, in);
	return 0;
}

/* syscalls: sendmmsg */
static size_t send_datagrams(int fd, struct io_tx *tx, size_t n)
{
	size_t i = 0, n_sent = 0;

	while (i < n) {
		int done = sendmmsg(fd, (struct mmsghdr *)&tx[i], (unsigned)(n - i), MSG_NOSIGNAL);

		if (done < 0) {
			if (errno == EINTR)
				continue;
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

/* syscalls: writev */
static size_t send_frames(int fd, struct io_tx *tx, size_t n)
{
	size_t n_sent = 0;

	for (size_t i = 0; i < n; i++) {
		ssize_t len = writev(fd, tx[i].hdr.msg_iov, (int)tx[i].hdr.msg_iovlen);

		tx[i].err = len < 0 ? -errno : 0;
		n_sent += len >= 0;
	}
	return n_sent;
}

static size_t send_batch(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	return kind == IO_DGRAM ? send_datagrams(fd, tx, n) : send_frames(fd, tx, n);
}

static void wake(struct engine *e)
{
	uint64_t one = 1;

	if (write(e->wakefd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

const struct engine_ops epoll_ops = {
	.name = "epoll",
	.probe = probe,
	.open = open_engine,
	.add = add,
	.drop = drop,
	.wait = wait_batch,
	.send = send_batch,
	.wake = wake,
	.close = close_engine,
};
