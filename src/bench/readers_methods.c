/* The ways to read sockets, written as those who describe them do: one datagram for each call,
 * no batches. Each loop goes on until its process is killed. */
#include "bench/readers_child.h"
#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>

enum {
	BUF_LEN = 1024,
	EVENTS_MAX = 10,
	STACK_LEN = 64 * 1024, /* a thousand threads are to fit */
};

/* ---- One thread, many sockets. */

static int run_spin(struct reading *r)
{
	uint8_t buf[BUF_LEN];
	unsigned i;
	ssize_t n;

	reading_begun(r);
	for (;;) {
		for (i = 0; i < r->n_fds; i++) {
			n = recv(r->fd[i], buf, sizeof(buf), 0);
			if (n >= 0 || errno != EAGAIN)
				reading_take(r, i, buf, n);
		}
	}
	return 0;
}

static int run_select(struct reading *r)
{
	uint8_t buf[BUF_LEN];
	fd_set set;
	unsigned i;
	int max_fd;

	for (i = 0; i < r->n_fds; i++) {
		if (r->fd[i] >= FD_SETSIZE)
			return -ERANGE;
	}
	reading_begun(r);
	for (;;) {
		FD_ZERO(&set);
		max_fd = -1;
		for (i = 0; i < r->n_fds; i++) {
			max_fd = r->fd[i] > max_fd ? r->fd[i] : max_fd;
			FD_SET(r->fd[i], &set);
		}
		if (select(max_fd + 1, &set, NULL, NULL, NULL) < 0)
			continue;
		for (i = 0; i < r->n_fds; i++) {
			if (FD_ISSET(r->fd[i], &set))
				reading_take(r, i, buf, recv(r->fd[i], buf, sizeof(buf), 0));
		}
	}
}

static int run_epoll(struct reading *r)
{
	struct epoll_event events[EVENTS_MAX], ev = { .events = EPOLLIN };
	uint8_t buf[BUF_LEN];
	int epoll_fd = epoll_create1(EPOLL_CLOEXEC), n, i;

	if (epoll_fd < 0)
		return -errno;
	for (ev.data.u32 = 0; ev.data.u32 < r->n_fds; ev.data.u32++) {
		if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, r->fd[ev.data.u32], &ev) < 0)
			return -errno;
	}
	reading_begun(r);
	for (;;) {
		n = epoll_wait(epoll_fd, events, EVENTS_MAX, -1);
		for (i = 0; i < n; i++)
			reading_take(r, events[i].data.u32, buf,
				read(r->fd[events[i].data.u32], buf, sizeof(buf)));
	}
}

/* ---- A thread for each place, which blocks in its socket. */

struct thread_arg {
	struct reading *r;
	unsigned i;
};

static void *run_recv(void *arg)
{
	const struct thread_arg *a = arg;
	const int fd = a->r->fd[a->i];
	uint8_t buf[BUF_LEN];

	for (;;)
		reading_take(a->r, a->i, buf, recv(fd, buf, sizeof(buf), 0));
	return NULL;
}

/* Threads may outnumber sockets: they share them. */
static void *run_recvfrom(void *arg)
{
	const struct thread_arg *a = arg;
	const int fd = a->r->fd[a->i % a->r->n_fds];
	struct sockaddr_in from;
	uint8_t buf[BUF_LEN];
	socklen_t len;

	for (;;) {
		len = sizeof(from);
		reading_take(a->r, a->i, buf,
			recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len));
	}
	return NULL;
}

static int run_threads(struct reading *r, void *(*run)(void *))
{
	static struct thread_arg args[READERS_SOCKETS_MAX];
	pthread_attr_t attr;
	pthread_t thread;
	unsigned i;
	int ret = -pthread_attr_init(&attr);

	assert(r->n_threads <= READERS_SOCKETS_MAX);
	if (!ret)
		ret = -pthread_attr_setstacksize(&attr, STACK_LEN);
	for (i = 0; !ret && i < r->n_threads; i++) {
		args[i] = (struct thread_arg){ r, i };
		ret = -pthread_create(&thread, &attr, run, &args[i]);
	}
	if (ret < 0)
		return ret;
	reading_begun(r);
	for (;;)
		pause();
}

static int run_blocking(struct reading *r)
{
	return run_threads(r, run_recv);
}

static int run_shared(struct reading *r)
{
	return run_threads(r, run_recvfrom);
}

const struct reader_method reader_methods[READER_METHODS] = {
	{ .name = "blocking", .is_blocking = true, .run = run_blocking },
	{ .name = "spin", .run = run_spin },
	{ .name = "select", .run = run_select },
	{ .name = "epoll", .run = run_epoll },
	{ .name = "shared",
		.is_blocking = true,
		.is_one_port = true,
		.is_one_socket = true,
		.run = run_shared },
	{ .name = "channels", .is_blocking = true, .is_one_port = true, .run = run_shared },
	{ .name = "channels_ebpf",
		.is_blocking = true,
		.is_one_port = true,
		.is_round_robin = true,
		.run = run_shared },
	{ .name = "uring", .run = reading_uring },
};

unsigned reader_threads(const struct reader_method *m, unsigned n_sockets)
{
	long n_cpus;

	if (m->run == run_blocking)
		return n_sockets;
	if (m->run != run_shared)
		return 1;
	if (!m->is_one_socket)
		return n_sockets;
	/* Sharing takes two; more than there are CPUs would only wait for each other. */
	n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (n_cpus < 2)
		return 2;
	return n_cpus < READERS_SOCKETS_MAX ? (unsigned)n_cpus : READERS_SOCKETS_MAX;
}
