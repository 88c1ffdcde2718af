/* The child opens its sockets, begins to read and says so in the shared memory. It has no way to
 * end by itself: it is killed, which is also what makes blocked threads no problem. */
#include "bench/readers_child.h"
#include "bench/rounds.h"
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_BPF
#include "rr.skel.h"
#endif

enum {
	START_TIMEOUT_MS = 10000,
	/* Room for what arrives while the reader is not on a CPU: otherwise it finds its socket
	 * empty soon after it is back, however much is lost. */
	RECEIVE_ROOM = 4 << 20,
	/* Whoever sends is to be ahead: a reader that gets its CPU whenever it wants it empties its
	 * sockets faster than they are filled, and what is measured is falling asleep. */
	NICENESS = 5,
};

/* ---- In the child. */

void reading_begun(struct reading *r)
{
	atomic_store(&r->shared->state, 1);
}

static int open_one(const struct reader_method *m, uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int on = 1, room = RECEIVE_ROOM;
	int fd, err;

	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | (m->is_blocking ? 0 : SOCK_NONBLOCK), 0);
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	if ((m->is_one_port && !m->is_one_socket &&
		    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) < 0) ||
		bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		err = errno;
		close(fd);
		return -err;
	}
	return fd;
}

#ifdef HAVE_BPF
/* The program goes to a group of sockets as a whole. It stays as long as they do. */
static int put_round_robin(const int *fd, unsigned n)
{
	struct rr_bpf *skel;
	int prog, ret = 0;
	unsigned i;
	uint64_t v;

	libbpf_set_print(NULL); /* the bench says it in one line */
	skel = rr_bpf__open_and_load();
	if (!skel)
		return -errno;
	for (i = 0; i < n && !ret; i++) {
		v = (uint64_t)fd[i];
		ret = bpf_map__update_elem(
			skel->maps.rr_sockets, &i, sizeof(i), &v, sizeof(v), BPF_ANY);
	}
	skel->bss->rr_n = n;
	prog = bpf_program__fd(skel->progs.rr_select);
	if (!ret &&
		setsockopt(fd[0], SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, &prog, sizeof(prog)) < 0)
		ret = -errno;
	rr_bpf__destroy(skel);
	return ret;
}
#else
static int put_round_robin(const int *fd, unsigned n)
{
	return -EOPNOTSUPP;
}
#endif

static void raise_descriptors(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

static int read_for_ever(
	const struct reader_method *m, struct readers_shared *shared, unsigned n, uint16_t port)
{
	static int fd[READERS_SOCKETS_MAX];
	struct reading r = {
		.fd = fd, .n_fds = n, .n_threads = reader_threads(m, n), .shared = shared
	};
	unsigned i;
	int ret;

	raise_descriptors();
	if (setpriority(PRIO_PROCESS, 0, NICENESS) < 0)
		return -errno;
	for (i = 0; i < n; i++) {
		fd[i] = open_one(m, m->is_one_port ? port : (uint16_t)(port + i));
		if (fd[i] < 0)
			return fd[i];
	}
	ret = m->is_round_robin ? put_round_robin(fd, n) : 0;
	return ret < 0 ? ret : m->run(&r);
}

/* ---- In the parent. */

static int wait_begun(struct readers *r)
{
	int left, state;

	for (left = START_TIMEOUT_MS; left > 0; left--) {
		state = atomic_load(&r->shared->state);
		if (state)
			return state < 0 ? state : 0;
		if (rounds_stopped())
			return -EINTR;
		if (waitpid(r->pid, NULL, WNOHANG) == r->pid) {
			r->pid = 0;
			return -ECHILD;
		}
		usleep(1000);
	}
	return -ETIMEDOUT;
}

int readers_start(struct readers *r, const struct reader_method *m, unsigned n, uint16_t port,
	const struct lab *l, int ns)
{
	pid_t parent = getpid();
	int ret;

	assert(n > 0);
	assert(n <= READERS_SOCKETS_MAX);
	assert(n == 1 || !m->is_one_socket);
	r->pid = 0;
	r->shared = mmap(NULL, sizeof(*r->shared), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (r->shared == MAP_FAILED) {
		r->shared = NULL;
		return -errno;
	}
	r->pid = fork();
	if (!r->pid) {
		setpgid(0, 0); /* Ctrl-C is for the bench */
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
			_exit(EXIT_FAILURE);
		ret = lab_enter(l, ns);
		if (!ret)
			ret = read_for_ever(m, r->shared, n, port);
		atomic_store(&r->shared->state, ret);
		for (;;)
			pause();
	}
	if (r->pid < 0) {
		ret = -errno;
		r->pid = 0;
	} else {
		ret = wait_begun(r);
	}
	if (ret < 0)
		readers_stop(r);
	return ret;
}

uint64_t readers_count(const struct readers *r)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < READERS_SOCKETS_MAX; i++)
		sum += atomic_load_explicit(&r->shared->place[i].n, memory_order_acquire);
	return sum;
}

uint64_t readers_sum(const struct readers *r)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < READERS_SOCKETS_MAX; i++)
		sum += atomic_load_explicit(&r->shared->place[i].sum, memory_order_relaxed);
	return sum;
}

uint64_t readers_bad(const struct readers *r)
{
	return atomic_load(&r->shared->n_bad);
}

unsigned readers_reached(const struct readers *r)
{
	unsigned n = 0;
	size_t i;

	for (i = 0; i < READERS_SOCKETS_MAX; i++)
		n += atomic_load_explicit(&r->shared->place[i].n, memory_order_relaxed) > 0;
	return n;
}

void readers_stop(struct readers *r)
{
	if (r->pid) {
		kill(r->pid, SIGKILL);
		while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	if (r->shared)
		munmap(r->shared, sizeof(*r->shared));
	*r = (struct readers){ 0 };
}
