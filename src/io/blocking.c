/* The blocking engine: a thread sleeps in the read itself, recvmmsg or read, and no events are
 * made for it. So it reads one channel; with several threads on one socket or TUN each has an
 * engine of its own.
 *
 * How many sleep at once: the kernel wakes one of the threads that wait for a socket or a TUN,
 * whoever came first, not all. With io_channel.order one thread sleeps in the read, with the
 * lock, and the others in front of the lock; who has something draws a ticket, lets the next
 * one in, and works. That is the same exclusive wake-up, a step further up, and costs one
 * wake-up of a futex a batch. Without it nobody could say who has read first.
 *
 * Waking up: a signal ends the read (its handler does nothing and was installed without
 * SA_RESTART). It may come between the look at is_woken and the read, and would be
 * lost; so wake() repeats it until the thread has left. Whoever else sends signals makes the
 * thread look, find nothing and read again.
 *
 * A descriptor that somebody closes stays open for the thread that sleeps in it, until that has
 * read something or is woken. */
#include "base/clock.h"
#include "base/rcu.h"
#include "io/io.h"
#include "io/receive.h"
#include "io/send.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	WAKE_FIRST_US = 20, /* between two signals; then twice as long, up to */
	WAKE_LONG_US = 1000,
};
#define CHECK_SPAN NSEC_PER_SEC /* is the descriptor still the same file? */

struct engine {
	int fd; /* -1: no channel */
	enum io_kind kind;
	uint32_t tag;
	struct turnstile *order;
	bool has_nowait; /* frames: RWF_NOWAIT */
	unsigned depth; /* datagrams to ask for */
	dev_t dev; /* the file that fd was */
	ino_t ino;
	uint64_t checked_ns;
	/* any thread */
	_Atomic bool is_woken;
	_Atomic pid_t waiter; /* who is in a call that may wait, or about to be; 0: nobody */
	struct receive receive;
};

/* Who waits once is made ready for the signal. */
static _Thread_local pid_t own_tid;

static int wake_signal(void)
{
	return SIGRTMIN + 5;
}

static void on_wake(int signal)
{
}

static int probe(const struct engine_config *cfg)
{
	return 0;
}

/* syscalls(start): sigaction */
static int open_engine(struct engine **out, const struct engine_config *cfg)
{
	struct sigaction sa = { .sa_handler = on_wake };
	struct engine *e;
	int ret;

	if (sigaction(wake_signal(), &sa, NULL))
		return -errno;
	e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->fd = -1;
	atomic_init(&e->is_woken, false);
	atomic_init(&e->waiter, 0);
	ret = receive_init(&e->receive);
	if (ret) {
		free(e);
		return ret;
	}
	*out = e;
	return 0;
}

static void close_engine(struct engine *e)
{
	if (!e)
		return;
	receive_fini(&e->receive);
	free(e);
}

/* syscalls: fcntl(F_GETFL) fcntl(F_SETFL) fstat */
static int add(struct engine *e, const struct io_channel *new)
{
	struct stat st;
	int flags;

	if (e->fd >= 0)
		return e->fd == new->fd ? -EEXIST : -ENOSPC;
	flags = fcntl(new->fd, F_GETFL);
	if (flags < 0 || fstat(new->fd, &st))
		return -errno;
	if (flags & O_NONBLOCK && fcntl(new->fd, F_SETFL, flags & ~O_NONBLOCK))
		return -errno;
	e->fd = new->fd;
	e->kind = new->kind;
	e->tag = new->tag;
	e->order = new->order;
	e->has_nowait = true;
	e->depth = IO_BATCH_MAX;
	e->dev = st.st_dev;
	e->ino = st.st_ino;
	e->checked_ns = clock_now_ns();
	return 0;
}

static int drop(struct engine *e, int fd)
{
	if (fd < 0 || e->fd != fd)
		return -ENOENT;
	e->fd = -1;
	return 0;
}

/* Has the number become another file's? All TUNs are the same file, so that one TUN is not
 * told from another. syscalls: fstat */
static bool is_replaced(struct engine *e, uint64_t now_ns)
{
	struct stat st;

	e->checked_ns = now_ns;
	return fstat(e->fd, &st) || st.st_dev != e->dev || st.st_ino != e->ino;
}

static int read_datagrams(struct engine *e, struct io_batch *in, bool waits)
{
	int n = receive_datagrams(
		&e->receive, in, e->fd, e->tag, e->depth, waits ? MSG_WAITFORONE : MSG_DONTWAIT);

	if (n < 0)
		return n;
	/* From nobody, and nothing: so recvmmsg tells that the socket was shut down. */
	if (n == 1 && in->rx[0].len == 0 && in->rx[0].hdr->msg_namelen == 0 &&
		receive_is_shut(e->fd)) {
		in->n = 0;
		return -EBADF;
	}
	e->depth = receive_depth(in, (unsigned)n);
	return 0;
}

/* One, then what else is there: one frame a wait where the driver cannot say "nothing". */
static int read_frames(struct engine *e, struct io_batch *in, bool waits)
{
	ssize_t len = receive_frame(&e->receive, in, e->fd, e->tag, !waits && e->has_nowait);
	size_t bytes = 0;

	if (len == -EOPNOTSUPP && !waits) {
		/* It was readable a moment ago. Who shares it may be faster; then this waits,
		 * and wake() ends it. */
		e->has_nowait = false;
		len = receive_frame(&e->receive, in, e->fd, e->tag, false);
	}
	if (len <= 0)
		return len < 0 ? (int)len : -EBADF;
	while (e->has_nowait && in->n < IO_BATCH_MAX && bytes < BATCH_BYTES) {
		bytes += (size_t)len;
		len = receive_frame(&e->receive, in, e->fd, e->tag, true);
		if (len == -EOPNOTSUPP)
			e->has_nowait = false;
		if (len <= 0)
			break;
	}
	return 0;
}

/* In the lock, if there is one. */
static int read_batch(struct engine *e, struct io_batch *in, bool waits)
{
	int ret;

	if (atomic_load(&e->is_woken))
		return -EINTR;
	ret = e->kind == IO_DGRAM ? read_datagrams(e, in, waits) : read_frames(e, in, waits);
	if (!ret && e->order) {
		in->order = e->order;
		in->ticket = turnstile_take(e->order);
	}
	return ret;
}

/* Wait until timeout_ns is over or there is something, then read without waiting. Others may
 * have been faster: -EAGAIN. syscalls: ppoll */
static int poll_batch(struct engine *e, struct io_batch *in, int64_t timeout_ns)
{
	struct pollfd p = { .fd = e->fd, .events = POLLIN };
	struct timespec ts = { timeout_ns / (int64_t)NSEC_PER_SEC,
		timeout_ns % (int64_t)NSEC_PER_SEC };
	int n = ppoll(&p, 1, timeout_ns < 0 ? NULL : &ts, NULL), ret;

	if (n <= 0)
		return n < 0 ? -errno : -ETIMEDOUT;
	if (e->order && !turnstile_trylock(e->order)) {
		sched_yield();
		return -EAGAIN;
	}
	ret = read_batch(e, in, false);
	if (e->order)
		turnstile_unlock(e->order);
	return ret;
}

static int sleep_batch(struct engine *e, struct io_batch *in)
{
	int ret;

	if (e->order && !turnstile_lock_interruptible(e->order))
		return -EINTR;
	ret = read_batch(e, in, true);
	if (e->order)
		turnstile_unlock(e->order);
	return ret;
}

/* syscalls: gettid sched_yield rt_sigprocmask */
static void make_ready(void)
{
	sigset_t set;

	if (own_tid)
		return;
	own_tid = gettid();
	sigemptyset(&set);
	sigaddset(&set, wake_signal());
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* One try to get something. polls: with a time-out. */
static int try_batch(struct engine *e, struct io_batch *in, bool polls, int64_t timeout_ns)
{
	int ret = -EINTR;

	make_ready();
	rcu_offline();
	/* seq_cst, as in wake(): either it sees the waiter or we see its flag. */
	atomic_store(&e->waiter, own_tid);
	if (!atomic_load(&e->is_woken))
		ret = polls ? poll_batch(e, in, timeout_ns) : sleep_batch(e, in);
	atomic_store(&e->waiter, 0);
	rcu_online();
	return ret;
}

static int64_t remaining(uint64_t start_ns, int64_t timeout_ns)
{
	uint64_t passed = clock_now_ns() - start_ns;

	if (timeout_ns < 0)
		return -1;
	return passed < (uint64_t)timeout_ns ? timeout_ns - (int64_t)passed : 0;
}

static int wait_batch(struct engine *e, struct io_batch *in, int64_t timeout_ns)
{
	uint64_t start = clock_now_ns();
	bool polls = timeout_ns >= 0 || e->fd < 0;
	int ret = 0;

	in->n = 0;
	in->lost = 0;
	in->order = NULL;
	if (e->fd >= 0 && start - e->checked_ns > CHECK_SPAN && is_replaced(e, start))
		ret = -EBADF;
	while (!io_is_lost(ret)) {
		if (atomic_exchange(&e->is_woken, false)) {
			e->checked_ns = 0; /* the next wait looks */
			return 0;
		}
		ret = try_batch(e, in, polls, remaining(start, timeout_ns));
		if (in->n > 0 || ret == -ETIMEDOUT)
			return 0;
		switch (ret) {
		case -EAGAIN: /* somebody set O_NONBLOCK again, or others were faster */
			polls = true;
			break;
		case -EINTR:
		case -EFAULT: /* TUN: the interface goes; the next read says that it is gone */
			break;
		default:
			/* A pending error of the socket (an ICMP message): reading has
			 * cleared it. */
			if (!io_is_lost(ret))
				return 0;
		}
	}
	in->lost = 1u << e->tag;
	e->fd = -1;
	return 0;
}

/* syscalls: tgkill(SELF) getpid usleep */
static void wake(struct engine *e)
{
	useconds_t pause = WAKE_FIRST_US;
	pid_t tid;

	atomic_store(&e->is_woken, true);
	while ((tid = atomic_load(&e->waiter)) && atomic_load(&e->is_woken)) {
		tgkill(getpid(), tid, wake_signal());
		usleep(pause);
		if (pause < WAKE_LONG_US)
			pause *= 2;
	}
}

static size_t send_batch(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	return send_messages(fd, kind, tx, n);
}

const struct engine_ops blocking_ops = {
	.name = "blocking",
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
