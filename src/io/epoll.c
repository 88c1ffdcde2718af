/* The epoll engine. Level-triggered epoll tells which channels woke us; a
 * channel that gave something last time is read again without asking epoll
 * first, so that under load a batch costs one recvmmsg (or a run of TUN reads)
 * and no epoll_wait. Every POLL_EVERY batches epoll is asked all the same, so
 * that a busy channel does not starve the others.
 *
 * How much one batch takes adapts. A recvmmsg that brought trains is followed by
 * one that asks for few messages, so that a batch stays in the L2 cache. A worker
 * with little to do takes what one channel has and lets it go on at once; one with
 * much to do gathers from all channels, for longer trains. A TUN that woke us with
 * a single frame the last time is asked for one only, so that a lone packet is
 * under way before the read that finds the TUN empty.
 *
 * Who writes to the TUN is likely to be answered at once (the kernel's own
 * replies come out before the write returns): unless there is much to do, the
 * TUN is read next, unasked.
 *
 * Before it blocks it may look for a while: io/spin.h says when.
 *
 * A channel that other engines read too (io_channel.order) is read in the lock, by whoever
 * gets it. The kernel wakes one of the engines that block, not all (EPOLLEXCLUSIVE); the
 * others hear of what is left when something new comes or when they ask. Who finds the
 * lock taken does without the channel. Only where there is nothing else to read it waits for
 * the lock, which is held for one read that does not wait, instead of asking epoll
 * over and over, which would say that the channel is readable until the other has read it.
 *
 * Channels that are lost. A read that fails tells it at once. But a closed descriptor
 * leaves the epoll set without an event, and its number may be another file's soon. So
 * all channels are looked at now and then (check_channels): epoll_ctl knows whether the number
 * is still the file that was added, and a read whether that is still good. The other way
 * round, a file that was closed here and is open elsewhere stays in the set and cannot be taken
 * out, as that needs the number: events for nobody, for ever. The first of them makes us begin a
 * new set. */
#include "io/io.h"
#include "base/clock.h"
#include "base/rcu.h"
#include "io/receive.h"
#include "io/send.h"
#include "io/spin.h"
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { POLL_EVERY = 8 };
#define CHECK_SPAN NSEC_PER_SEC /* between two looks at all channels */

struct channel {
	int fd; /* -1: free */
	enum io_kind kind;
	uint32_t tag;
	struct turnstile *order; /* NULL: not shared */
	uint32_t generation; /* tells its events from those of who had the place before */
	bool is_hot; /* gave something last time */
	bool is_hung; /* epoll said that it hung up */
	unsigned depth; /* messages to ask for; of a TUN: with the first batch after it was empty */
	unsigned n_episode; /* TUN: frames since it was empty */
};

struct engine {
	int epfd;
	int wakefd;
	unsigned since_poll;
	bool is_woken; /* by wake(), during the wait under way */
	unsigned first; /* channel that is read first, turns round */
	struct channel ch[IO_CHANNELS_MAX];
	struct spin spin;
	uint64_t checked_ns; /* when all channels were last looked at; 0: look */
	struct receive receive;
};

/* syscalls(start): epoll_create1 close */
static int probe(const struct engine_config *cfg)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

static struct epoll_event event_of(const struct engine *e, uint32_t i)
{
	return (struct epoll_event){ .events = EPOLLIN,
		.data.u64 = (uint64_t)e->ch[i].generation << 32 | i };
}

/* syscalls: epoll_ctl */
static int watch_wakefd(struct engine *e)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = IO_CHANNELS_MAX };

	return epoll_ctl(e->epfd, EPOLL_CTL_ADD, e->wakefd, &ev) ? -errno : 0;
}

static int watch(struct engine *e, uint32_t i, int fd, bool is_shared)
{
	struct epoll_event ev = event_of(e, i);

	if (is_shared)
		ev.events |= EPOLLEXCLUSIVE;
	return epoll_ctl(e->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* syscalls(start): epoll_create1 eventfd close */
static int open_engine(struct engine **out, const struct engine_config *cfg)
{
	struct engine *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return -ENOMEM;
	ret = receive_init(&e->receive);
	if (ret)
		goto free_engine;
	e->epfd = epoll_create1(EPOLL_CLOEXEC);
	e->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->epfd < 0 || e->wakefd < 0) {
		ret = -errno;
		goto close_fds;
	}
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++)
		e->ch[i].fd = -1;
	e->checked_ns = clock_now_ns();
	spin_init(&e->spin, e->checked_ns);
	ret = watch_wakefd(e);
	if (ret)
		goto close_fds;
	*out = e;
	return 0;

close_fds:
	if (e->epfd >= 0)
		close(e->epfd);
	if (e->wakefd >= 0)
		close(e->wakefd);
	receive_fini(&e->receive);
free_engine:
	free(e);
	return ret;
}

/* syscalls: close */
static void close_engine(struct engine *e)
{
	if (!e)
		return;
	close(e->epfd);
	close(e->wakefd);
	receive_fini(&e->receive);
	free(e);
}

static void forget(struct channel *c)
{
	c->fd = -1;
	c->is_hot = false;
	c->generation++;
}

static struct channel *find(struct engine *e, int fd)
{
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++)
		if (fd >= 0 && e->ch[i].fd == fd)
			return &e->ch[i];
	return NULL;
}

static int add(struct engine *e, const struct io_channel *new)
{
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++) {
		struct channel *c = &e->ch[i], *former;
		int ret;

		if (c->fd >= 0)
			continue;
		ret = watch(e, i, new->fd, new->order != NULL);
		if (ret)
			return ret;
		/* Another file had this number, and was closed. */
		former = find(e, new->fd);
		if (former)
			forget(former);
		*c = (struct channel){ .fd = new->fd,
			.kind = new->kind,
			.tag = new->tag,
			.order = new->order,
			.generation = c->generation,
			.depth = IO_BATCH_MAX };
		return 0;
	}
	return -ENOSPC;
}

/* syscalls: epoll_ctl */
static int drop(struct engine *e, int fd)
{
	struct channel *c = find(e, fd);

	if (!c)
		return -ENOENT;
	epoll_ctl(e->epfd, EPOLL_CTL_DEL, fd, NULL);
	forget(c);
	return 0;
}

static void lose(struct engine *e, struct channel *c, struct io_batch *in)
{
	in->lost |= 1u << c->tag;
	(void)drop(e, c->fd);
}

static int read_datagrams(struct engine *e, struct channel *c, struct io_batch *in)
{
	size_t room = IO_BATCH_MAX - in->n;
	int n = receive_datagrams(&e->receive, in, c->fd, c->tag,
		c->depth < room ? c->depth : (unsigned)room, MSG_DONTWAIT);

	/* Anything but "empty" is a pending error of the socket (an ICMP message):
	 * reading has cleared it. */
	c->is_hot = n != -EAGAIN;
	if (n < 0)
		return n;
	c->depth = receive_depth(in, (unsigned)n);
	return 0;
}

/* The TUN is empty: what it gave since it last was says what to expect next time. */
static void end_episode(struct channel *c)
{
	c->is_hot = false;
	if (c->n_episode > 0)
		c->depth = c->n_episode == 1 ? 1 : IO_BATCH_MAX;
	c->n_episode = 0;
}

/* Why it ended, if not for having enough. */
static int read_frames(struct engine *e, struct channel *c, struct io_batch *in)
{
	size_t first = in->n, bytes = 0,
	       end = first + (c->n_episode == 0 ? c->depth : IO_BATCH_MAX);

	if (end > IO_BATCH_MAX)
		end = IO_BATCH_MAX;
	c->is_hot = true;
	while (in->n < end && bytes < BATCH_BYTES) {
		ssize_t len = receive_frame(&e->receive, in, c->fd, c->tag, false);

		if (len <= 0) {
			c->n_episode += (unsigned)(in->n - first);
			end_episode(c);
			return len < 0 ? (int)len : -ENODEV; /* 0: the end */
		}
		bytes += (size_t)len;
		spin_note_frame(&e->spin, (size_t)len);
	}
	c->n_episode += (unsigned)(in->n - first);
	return 0;
}

/* Read one channel; the lock is held if there is one. */
static void read_channel(struct engine *e, struct channel *c, struct io_batch *in)
{
	size_t n = in->n;
	int ret = c->kind == IO_DGRAM ? read_datagrams(e, c, in) : read_frames(e, c, in);

	if (c->order && in->n > n) {
		in->order = c->order;
		in->ticket = turnstile_take(c->order);
	}
	/* Who hung up and has nothing left (a socket that was shut down) stays "readable". */
	if (io_is_lost(ret) || (ret == -EAGAIN && c->is_hung && in->n == n))
		lose(e, c, in);
	/* Who was read last has its next turn last. */
	if (in->n > n)
		e->first = (unsigned)(c - e->ch + 1) % IO_CHANNELS_MAX;
}

/* Under load a batch is what all channels have: long trains. Otherwise it is what
 * the first one has: what came goes on at once. A shared one has a batch of its own.
 * Returns a channel that was left out because somebody else is reading it. */
static struct channel *receive_hot(struct engine *e, struct io_batch *in)
{
	struct channel *contended = NULL;
	unsigned start = e->first;

	for (unsigned k = 0; k < IO_CHANNELS_MAX && in->n < IO_BATCH_MAX; k++) {
		unsigned i = (start + k) % IO_CHANNELS_MAX;
		struct channel *c = &e->ch[i];
		struct turnstile *order = c->order;

		if (c->fd < 0 || !c->is_hot)
			continue;
		if (order && in->n > 0) {
			e->first = i;
			break;
		}
		if (order && !turnstile_trylock(order)) {
			c->is_hot = false;
			contended = c;
			continue;
		}
		read_channel(e, c, in);
		if (order)
			turnstile_unlock(order);
		if (in->order || (in->n > 0 && !spin_is_loaded(&e->spin)))
			break;
	}
	return contended;
}

/* There is nothing else to do: read it when the other has. */
static void receive_contended(struct engine *e, struct channel *c, struct io_batch *in)
{
	struct turnstile *order = c->order;

	rcu_offline();
	turnstile_lock(order);
	rcu_online();
	read_channel(e, c, in);
	turnstile_unlock(order);
}

/* Is it time to look at all channels? Those whose number is no longer the file that was
 * added are lost; the others are read. syscalls: epoll_ctl */
static bool check_channels(struct engine *e, struct io_batch *in, uint64_t now_ns)
{
	if (e->checked_ns && now_ns - e->checked_ns < CHECK_SPAN)
		return false;
	e->checked_ns = now_ns;
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++) {
		struct channel *c = &e->ch[i];
		struct epoll_event ev = event_of(e, i);

		if (c->fd < 0)
			continue;
		c->is_hot = true;
		/* EINVAL: it is there, and exclusive. ENOENT, EBADF: another file, or none. */
		if (epoll_ctl(e->epfd, EPOLL_CTL_MOD, c->fd, &ev) && errno != EINVAL)
			lose(e, c, in);
	}
	return true;
}

/* A new set, of those that are channels now. 0 or negative errno.
 * syscalls: epoll_create1 close */
static int renew_set(struct engine *e)
{
	int fd = epoll_create1(EPOLL_CLOEXEC), ret;

	if (fd < 0)
		return -errno;
	close(e->epfd);
	e->epfd = fd;
	ret = watch_wakefd(e);
	for (unsigned i = 0; !ret && i < IO_CHANNELS_MAX; i++)
		/* One that cannot be watched is read: that says what became of it. */
		if (e->ch[i].fd >= 0 && watch(e, i, e->ch[i].fd, e->ch[i].order != NULL))
			e->ch[i].is_hot = true;
	return ret;
}

static int wait_ms(int64_t timeout_ns)
{
	if (timeout_ns < 0)
		return -1;
	if (timeout_ns / 1000000 >= INT_MAX)
		return INT_MAX;
	return (int)(timeout_ns / 1000000 + (timeout_ns % 1000000 != 0));
}

/* How many events there were, or negative errno. syscalls: epoll_wait read */
static int poll_events(struct engine *e, int64_t timeout_ns)
{
	struct epoll_event ev[IO_CHANNELS_MAX + 1];
	int timeout_ms = wait_ms(timeout_ns);
	bool may_block = timeout_ms != 0, has_stale = false;
	int n, ret;

	e->since_poll = 0;
	if (may_block)
		rcu_offline();
	n = epoll_wait(e->epfd, ev, ARRAY_LEN(ev), timeout_ms);
	if (may_block)
		rcu_online();
	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int k = 0; k < n; k++) {
		uint32_t i = (uint32_t)ev[k].data.u64;
		struct channel *c = &e->ch[i];
		uint64_t count;

		if (i == IO_CHANNELS_MAX) {
			e->is_woken |= read(e->wakefd, &count, sizeof(count)) > 0;
		} else if (c->fd < 0 || c->generation != ev[k].data.u64 >> 32) {
			has_stale = true;
		} else {
			c->is_hot = true;
			c->is_hung = ev[k].events & EPOLLHUP;
		}
	}
	ret = has_stale ? renew_set(e) : 0;
	return ret ? ret : n;
}

/* Look for events without blocking, as long as that pays. Returns how many there were, or
 * negative errno.
 * syscalls: sched_yield */
static int spin(struct engine *e, uint64_t start_ns)
{
	uint64_t now = start_ns, before;
	int n = 0;

	if (!spin_may(&e->spin, now))
		return 0;
	do {
		rcu_quiescent();
		n = poll_events(e, 0);
		if (n)
			break;
		before = clock_now_ns();
		sched_yield();
		now = clock_now_ns();
	} while (spin_goes_on(start_ns, before, now));
	spin_pay(&e->spin, now - start_ns);
	return n;
}

/* Wait, then read. */
static int wait_events(struct engine *e, struct io_batch *in, int64_t timeout_ns, uint64_t start_ns)
{
	struct channel *contended;
	int n = timeout_ns ? spin(e, start_ns) : 0;

	if (n == 0)
		n = poll_events(e, timeout_ns);
	if (n < 0)
		return n;
	contended = receive_hot(e, in);
	if (contended && in->n == 0 && !in->lost && !e->is_woken)
		receive_contended(e, contended, in);
	spin_note_wait(&e->spin, start_ns, clock_now_ns(), in->n > 0);
	return 0;
}

static int wait_batch(struct engine *e, struct io_batch *in, int64_t timeout_ns)
{
	uint64_t now;
	int ret = 0;

	in->n = 0;
	in->lost = 0;
	in->order = NULL;
	e->is_woken = false;
	if (++e->since_poll >= POLL_EVERY) {
		now = clock_now_ns();
		spin_note_work(&e->spin, now);
		check_channels(e, in, now);
		ret = poll_events(e, 0);
		/* What was lost is told all the same; the next wait fails again if it must. */
		if (ret < 0)
			return in->lost ? 0 : ret;
	}
	receive_hot(e, in);
	if (in->n == 0 && !in->lost && !e->is_woken) {
		now = clock_now_ns();
		spin_note_work(&e->spin, now);
		if (check_channels(e, in, now))
			receive_hot(e, in);
		if (in->n == 0 && !in->lost)
			ret = wait_events(e, in, timeout_ns, now);
	}
	if (e->is_woken)
		e->checked_ns = 0;
	return ret < 0 ? ret : 0;
}

static size_t send_batch(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	struct channel *c;
	size_t n_sent;

	if (kind == IO_FRAME && !spin_is_loaded(&e->spin)) {
		c = find(e, fd);
		if (c) {
			c->is_hot = true;
			e->first = (unsigned)(c - e->ch);
		}
	}
	n_sent = send_messages(fd, kind, tx, n);
	if (n_sent < n && io_is_lost(tx[n - 1].err)) {
		c = find(e, fd);
		if (c) /* a read tells */
			c->is_hot = true;
	}
	return n_sent;
}

/* syscalls: write */
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

const struct engine_ops channels_ops = {
	.name = "channels",
	.traits = ENGINE_OWN_CHANNELS,
	.probe = probe,
	.open = open_engine,
	.add = add,
	.drop = drop,
	.wait = wait_batch,
	.send = send_batch,
	.wake = wake,
	.close = close_engine,
};
