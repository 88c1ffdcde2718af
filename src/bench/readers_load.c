/* Each thread prepares a batch of messages once and changes their ports only. */
#include "bench/readers_load.h"
#include "bench/readers_child.h"
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOAD_THREADS_MAX = 16, LOAD_BATCH = 64, LOAD_IDLE_US = 500 };

struct load_place {
	_Alignas(64) _Atomic uint64_t sent; /* by its thread alone */
};

struct readers_load_shared {
	_Atomic uint64_t aim; /* ports << 16 | first port */
	struct load_place place[LOAD_THREADS_MAX];
};

struct load_thread {
	struct readers_load_shared *shared;
	unsigned i;
	int fd;
	struct mmsghdr msg[LOAD_BATCH];
	struct sockaddr_in to[LOAD_BATCH];
	struct iovec iov;
	uint8_t data[READERS_LEN];
};

static void prepare(struct load_thread *t)
{
	size_t i;

	t->data[0] = 1;
	t->iov = (struct iovec){ t->data, sizeof(t->data) };
	for (i = 0; i < LOAD_BATCH; i++) {
		t->to[i] = (struct sockaddr_in){ .sin_family = AF_INET,
			.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		t->msg[i].msg_hdr = (struct msghdr){ .msg_name = &t->to[i],
			.msg_namelen = sizeof(t->to[i]),
			.msg_iov = &t->iov,
			.msg_iovlen = 1 };
	}
}

static void *run_load(void *arg)
{
	struct load_thread *t = arg;
	_Atomic uint64_t *sent = &t->shared->place[t->i].sent;
	uint64_t aim, next = t->i * UINT64_C(500);
	unsigned i, n_ports;
	int n;

	prepare(t);
	for (;;) {
		aim = atomic_load_explicit(&t->shared->aim, memory_order_relaxed);
		n_ports = (unsigned)(aim >> 16);
		if (!n_ports) {
			usleep(LOAD_IDLE_US);
			continue;
		}
		for (i = 0; i < LOAD_BATCH; i++)
			t->to[i].sin_port = htons((uint16_t)(aim + next++ % n_ports));
		n = sendmmsg(t->fd, t->msg, LOAD_BATCH, 0);
		if (n > 0)
			atomic_fetch_add_explicit(sent, (uint64_t)n, memory_order_relaxed);
	}
	return NULL;
}

/* In the child: returns only what went wrong. */
static int load_for_ever(struct readers_load_shared *shared)
{
	static struct load_thread threads[LOAD_THREADS_MAX];
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t thread;
	unsigned i;
	int ret = 0;

	n = n < 2 ? 2 : n;
	for (i = 0; !ret && i < n && i < LOAD_THREADS_MAX; i++) {
		threads[i].shared = shared;
		threads[i].i = i;
		threads[i].fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		ret = threads[i].fd < 0 ? -errno
					: -pthread_create(&thread, NULL, run_load, &threads[i]);
	}
	while (!ret)
		pause();
	return ret;
}

int readers_load_start(struct readers_load *g, const struct lab *l, int ns)
{
	pid_t parent = getpid();
	int ret;

	g->pid = 0;
	g->shared = mmap(NULL, sizeof(*g->shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (g->shared == MAP_FAILED) {
		g->shared = NULL;
		return -errno;
	}
	g->pid = fork();
	if (!g->pid) {
		setpgid(0, 0); /* Ctrl-C is for the bench */
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
			_exit(EXIT_FAILURE);
		if (!lab_enter(l, ns))
			load_for_ever(g->shared);
		_exit(EXIT_FAILURE); /* then nothing is sent, which the bench notices */
	}
	if (g->pid > 0)
		return 0;
	ret = -errno;
	g->pid = 0;
	readers_load_stop(g);
	return ret;
}

void readers_load_aim(struct readers_load *g, uint16_t port, unsigned n)
{
	atomic_store_explicit(&g->shared->aim, (uint64_t)n << 16 | port, memory_order_relaxed);
}

uint64_t readers_load_sent(const struct readers_load *g)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < LOAD_THREADS_MAX; i++)
		sum += atomic_load_explicit(&g->shared->place[i].sent, memory_order_relaxed);
	return sum;
}

void readers_load_stop(struct readers_load *g)
{
	if (g->pid) {
		kill(g->pid, SIGKILL);
		while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	if (g->shared)
		munmap(g->shared, sizeof(*g->shared));
	*g = (struct readers_load){ 0 };
}
