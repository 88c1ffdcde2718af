/* The child is forked and not executed: it does system calls only, in memory that was there
 * before. Orders go through a pipe, which also tells it that the bench has ended; results
 * through shared memory.
 *
 * Many datagrams are sent in trains (UDP_SEGMENT): that is quicker. Where the receiver has no
 * UDP_GRO the kernel cuts them before they are queued, and each datagram is received alone. */
#include "bench/engines_source.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "bench/engines_math.h"
#include "bench/rounds.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/udp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	TRAIN_SEGMENTS = 64,
	TRAIN_LEN_MAX = 65000,
	ECHOES = 32, /* received at once */
	WARM_BURSTS = 8,
	WARM_BURST = 64, /* fits into any socket's buffer */
	POLL_MS = 20,
	LIMIT_MS = 5000, /* beyond which an order cannot last */
};
#define STALL_NS (NSEC_PER_MSEC / 10) /* a turn of its loop takes some microseconds */
#define TAIL_NS (20 * NSEC_PER_MSEC) /* the last echoes may take so long */

/* Shared with the child. */
struct board {
	_Atomic bool is_stopping;
	struct source_result result;
	int err;
	struct hist latencies;
};

struct source {
	pid_t pid;
	int orders, replies; /* pipes */
	struct board *board;
	/* The child's. */
	uint8_t train[TRAIN_SEGMENTS * SOURCE_LEN_MAX];
	uint8_t room[ECHOES][SOURCE_LEN_MAX];
	struct iovec iov[ECHOES];
	struct mmsghdr msg[ECHOES];
	unsigned n_warm; /* the child's: echoes of warm_up that came back */
};

/* ---- The child. */

static int open_socket(const struct source_order *o)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
		.sin_port = htons(o->port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), len = 4 << 20;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &len, sizeof(len)))
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &len, sizeof(len));
	if (!connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return fd;
	len = -errno;
	close(fd);
	return len;
}

static bool is_stopping(const struct board *b)
{
	return atomic_load_explicit(&b->is_stopping, memory_order_relaxed);
}

static int send_trains(struct source *s, int fd, const struct source_order *o)
{
	uint64_t *number = &s->board->result.n_sent;
	size_t most =
		TRAIN_LEN_MAX / o->len < TRAIN_SEGMENTS ? TRAIN_LEN_MAX / o->len : TRAIN_SEGMENTS;
	int seg_len = (int)o->len;

	if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &seg_len, sizeof(seg_len)))
		return -errno;
	for (size_t i = 0; i < most; i++)
		parcel_init(s->train + i * o->len, o->len);
	while (*number < o->n && !is_stopping(s->board)) {
		size_t n = o->n - *number < most ? (size_t)(o->n - *number) : most;

		for (size_t i = 0; i < n; i++)
			parcel_stamp(s->train + i * o->len, *number + i, 0);
		if (send(fd, s->train, n * o->len, 0) < 0) {
			if (errno == ENOBUFS || errno == EINTR)
				continue;
			return -errno;
		}
		*number += n;
	}
	return 0;
}

/* What has come back by now. */
static void take_echoes(struct source *s, int fd, const struct source_order *o)
{
	struct board *b = s->board;
	int n = recvmmsg(fd, s->msg, ECHOES, MSG_DONTWAIT, NULL);
	uint64_t now = clock_now_ns();

	for (int i = 0; i < n; i++) {
		if (!parcel_is_good(s->room[i], s->msg[i].msg_len, o->len)) {
			b->result.n_wrong++;
			continue;
		}
		if (!parcel_sent_ns(s->room[i])) {
			s->n_warm++;
			continue;
		}
		hist_add(&b->latencies, now - parcel_sent_ns(s->room[i]));
		b->result.n_back++;
	}
}

/* Bursts that are not timed: a receiver that has just been made meets its buffers for the first
 * time, and the kernel clears a huge page for each handful of them. At some 20,000 echoes one such
 * moment would be the 99.9th percentile, and the more buffers an engine has the longer. */
static int warm_up(struct source *s, int fd, const struct source_order *o)
{
	for (unsigned i = 0; i < WARM_BURSTS && !is_stopping(s->board); i++) {
		uint64_t end = clock_now_ns() + TAIL_NS;

		for (unsigned k = 0; k < WARM_BURST; k++) {
			parcel_stamp(s->train, k, 0);
			if (send(fd, s->train, o->len, 0) < 0 && errno != ECONNREFUSED)
				return -errno;
		}
		s->n_warm = 0;
		while (s->n_warm < WARM_BURST && clock_now_ns() < end)
			take_echoes(s, fd, o);
	}
	s->board->result.n_wrong = 0; /* what is wrong is so again */
	return 0;
}

static int echoes(struct source *s, int fd, const struct source_order *o)
{
	struct source_result *r = &s->board->result;
	uint64_t began, now, then, due;
	int ret;

	parcel_init(s->train, o->len);
	ret = warm_up(s, fd, o);
	if (ret)
		return ret;
	began = now = then = clock_now_ns();
	for (; now - began < o->run_ns && !is_stopping(s->board); now = clock_now_ns()) {
		if (now - then >= STALL_NS)
			r->stalled_ns += now - then;
		then = now;
		due = (uint64_t)((double)(now - began) * o->rate / (double)NSEC_PER_SEC);
		if (r->n_sent < due) {
			parcel_stamp(s->train, r->n_sent, clock_now_ns());
			if (send(fd, s->train, o->len, 0) < 0 && errno != ECONNREFUSED)
				return -errno;
			r->n_sent++;
		}
		take_echoes(s, fd, o);
	}
	r->n_planned = (uint64_t)((double)o->run_ns * o->rate / (double)NSEC_PER_SEC);
	for (uint64_t end = now + TAIL_NS; now < end && r->n_back + r->n_wrong < r->n_sent;
		now = clock_now_ns())
		take_echoes(s, fd, o);
	/* What is lost has taken that long at least. */
	for (uint64_t i = r->n_back + r->n_wrong; i < r->n_sent; i++)
		hist_add(&s->board->latencies, TAIL_NS);
	return 0;
}

static int obey(struct source *s, const struct source_order *o)
{
	int fd = open_socket(o), ret;

	if (fd < 0)
		return fd;
	hist_init(&s->board->latencies);
	ret = o->n ? send_trains(s, fd, o) : echoes(s, fd, o);
	close(fd);
	return ret;
}

static void child(struct source *s, pid_t parent, int orders, int replies)
{
	struct source_order o;

	setpgid(0, 0);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		return;
	for (unsigned i = 0; i < ECHOES; i++) {
		s->iov[i] = (struct iovec){ s->room[i], SOURCE_LEN_MAX };
		s->msg[i].msg_hdr.msg_iov = &s->iov[i];
		s->msg[i].msg_hdr.msg_iovlen = 1;
	}
	while (read(orders, &o, sizeof(o)) == (ssize_t)sizeof(o)) {
		s->board->err = obey(s, &o);
		if (write(replies, "", 1) != 1)
			return;
	}
}

/* ---- The bench's side. */

static bool has_gso(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), len = 64;
	bool is_there = fd >= 0 && !setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &len, sizeof(len));

	if (fd >= 0)
		close(fd);
	return is_there;
}

static int start_child(struct source *s, unsigned cpu)
{
	int orders[2] = { -1, -1 }, replies[2] = { -1, -1 }, ret = 0;
	pid_t parent = getpid();

	if (pipe2(orders, O_CLOEXEC) || pipe2(replies, O_CLOEXEC))
		ret = -errno;
	if (!ret) {
		s->pid = fork();
		if (s->pid < 0) {
			ret = -errno;
			s->pid = 0;
		} else if (!s->pid) {
			close(orders[1]);
			close(replies[0]);
			if (!cpu_pin(cpu))
				child(s, parent, orders[0], replies[1]);
			_exit(0);
		}
	}
	s->orders = orders[1];
	s->replies = replies[0];
	if (orders[0] >= 0)
		close(orders[0]);
	if (replies[1] >= 0)
		close(replies[1]);
	return ret;
}

int source_create(struct source **out, unsigned cpu)
{
	struct source *s;
	int ret;

	if (!has_gso())
		return -EOPNOTSUPP;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->orders = s->replies = -1;
	s->board = mmap(
		NULL, sizeof(*s->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ret = s->board == MAP_FAILED ? -errno : start_child(s, cpu);
	if (ret)
		source_destroy(s);
	else
		*out = s;
	return ret;
}

void source_destroy(struct source *s)
{
	if (!s)
		return;
	/* The end of the pipe ends it; what it does just now ends by the flag. */
	if (s->board && s->board != MAP_FAILED)
		atomic_store(&s->board->is_stopping, true);
	if (s->orders >= 0)
		close(s->orders);
	if (s->replies >= 0)
		close(s->replies);
	if (s->pid)
		while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
			;
	if (s->board && s->board != MAP_FAILED)
		munmap(s->board, sizeof(*s->board));
	free(s);
}

int source_start(struct source *s, const struct source_order *o)
{
	assert(o->len >= PARCEL_LEN_MIN);
	assert(o->len <= SOURCE_LEN_MAX);
	atomic_store(&s->board->is_stopping, false);
	s->board->result = (struct source_result){ 0 };
	s->board->err = 0;
	return write(s->orders, o, sizeof(*o)) == (ssize_t)sizeof(*o) ? 0 : -EPIPE;
}

int source_wait(struct source *s, struct source_result *r)
{
	struct pollfd fd = { .fd = s->replies, .events = POLLIN };
	bool was_stopped = false;
	char reply;

	for (int ms = 0; ms < LIMIT_MS; ms += POLL_MS) {
		if (rounds_stopped()) {
			was_stopped = true;
			atomic_store(&s->board->is_stopping, true);
		}
		if (poll(&fd, 1, POLL_MS) <= 0)
			continue;
		if (read(s->replies, &reply, 1) != 1)
			return -EPIPE;
		*r = s->board->result;
		return was_stopped ? -EINTR : s->board->err;
	}
	return -ETIMEDOUT;
}

const struct hist *source_latencies(const struct source *s)
{
	return &s->board->latencies;
}
