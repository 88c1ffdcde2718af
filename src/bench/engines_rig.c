/* The thread does what a data worker does between two waits: look at each datagram's header
 * and at the bytes.
 *
 * A drain is measured by the thread itself, from one reading to another: it neither waits
 * nor is anything sent meanwhile. The system calls of a reading stand outside
 * of what is counted, but for one. */
#include "bench/engines_rig.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rcu.h"
#include "bench/cputime.h"
#include "bench/engines_math.h"
#include "link/link.h"
#include <errno.h>
#include <linux/sock_diag.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
	START_MS = 2000,
	HELPERS_MS = 1000,
	HELPERS_MAX = 8,
	DRAIN_MS = 5000, /* a drain takes some ten milliseconds of CPU time */
};

struct reading {
	uint64_t self_ns, helpers_ns, user_ns, system_ns, n_syscalls;
};

struct rig {
	/* read-only after start */
	struct rig_config cfg;
	struct udp udp;
	struct engine *engine;
	pthread_t thread;
	bool is_started;

	/* the thread's until is_ready */
	pid_t tid;
	struct syscall_counter calls;
	int calls_err;

	/* any */
	_Atomic bool is_ready, is_stopping;
	_Atomic int err;
	_Atomic uint64_t n_packets, n_wrong;

	/* the owner's, and between `go` and `done` the thread's */
	sem_t go, done;
	uint64_t n_wanted;
	pid_t helpers[HELPERS_MAX];
	size_t n_helpers;
	struct rig_drained drained;
	int drain_err;

	/* the thread's own */
	struct io_batch in;
	struct io_tx tx[IO_BATCH_MAX];
	struct iovec iov[IO_BATCH_MAX];
};

static void add_to(_Atomic uint64_t *sum, uint64_t n)
{
	/* One writer. */
	atomic_store_explicit(
		sum, atomic_load_explicit(sum, memory_order_relaxed) + n, memory_order_relaxed);
}

/* One datagram, or a train of them: how many parcels are good. */
static size_t check(const struct rig *r, const struct io_rx *rx, size_t *n_wrong)
{
	struct udp_rx u;
	size_t n = 0;

	if (!udp_rx_parse(&u, rx) || !u.seg_len) {
		++*n_wrong;
		return 0;
	}
	for (uint32_t at = 0; at < rx->len; at += u.seg_len) {
		uint32_t len = rx->len - at < u.seg_len ? rx->len - at : u.seg_len;

		if (parcel_is_good(rx->data + at, len, r->cfg.len))
			n++;
		else
			++*n_wrong;
	}
	return n;
}

static void send_back(struct rig *r)
{
	for (size_t i = 0; i < r->in.n; i++) {
		const struct io_rx *rx = &r->in.rx[i];

		r->iov[i] = (struct iovec){ rx->data, rx->len };
		r->tx[i] = (struct io_tx){ .hdr = { .msg_name = rx->hdr->msg_name,
						   .msg_namelen = rx->hdr->msg_namelen,
						   .msg_iov = &r->iov[i],
						   .msg_iovlen = 1 } };
	}
	(void)r->cfg.ops->send(r->engine, r->udp.data[0][0], IO_DGRAM, r->tx, r->in.n);
}

static void take_batch(struct rig *r)
{
	size_t n = 0, n_wrong = 0;

	for (size_t i = 0; i < r->in.n; i++)
		n += check(r, &r->in.rx[i], &n_wrong);
	if (r->cfg.is_echo && r->in.n > 0)
		send_back(r);
	add_to(&r->n_packets, n);
	if (n_wrong)
		add_to(&r->n_wrong, n_wrong);
}

static uint64_t ns_of(const struct timeval *t)
{
	return (uint64_t)t->tv_sec * NSEC_PER_SEC + (uint64_t)t->tv_usec * 1000;
}

/* 0 or negative errno. The counter of system calls is read next to what is measured. */
static int read_clocks(struct rig *r, struct reading *out, bool is_end)
{
	struct rusage u;
	uint64_t ns;
	int ret = 0;

	*out = (struct reading){ 0 };
	if (is_end && !r->calls_err)
		ret = syscall_counter_read(&r->calls, &out->n_syscalls);
	if (!ret && !is_end && getrusage(RUSAGE_THREAD, &u))
		ret = -errno;
	/* The thread's own time is read inside of its helpers': those go on by themselves. */
	if (!ret && is_end)
		ret = cputime_thread(r->tid, &out->self_ns);
	for (size_t i = 0; i < r->n_helpers && !ret; i++) {
		ret = cputime_thread(r->helpers[i], &ns);
		out->helpers_ns += ns;
	}
	if (!ret && !is_end)
		ret = cputime_thread(r->tid, &out->self_ns);
	if (!ret && is_end && getrusage(RUSAGE_THREAD, &u))
		ret = -errno;
	if (ret)
		return ret;
	out->user_ns = ns_of(&u.ru_utime);
	out->system_ns = ns_of(&u.ru_stime);
	return !is_end && !r->calls_err ? syscall_counter_read(&r->calls, &out->n_syscalls) : 0;
}

/* One batch. 0 or negative errno. */
static int turn(struct rig *r, int64_t timeout_ns)
{
	int ret;

	rcu_quiescent();
	ret = r->cfg.ops->wait(r->engine, &r->in, timeout_ns);
	if (!ret && r->in.lost)
		ret = -EIO;
	if (!ret)
		take_batch(r);
	return ret;
}

static uint64_t n_taken(struct rig *r)
{
	return atomic_load_explicit(&r->n_packets, memory_order_relaxed) +
		atomic_load_explicit(&r->n_wrong, memory_order_relaxed);
}

static int drain(struct rig *r)
{
	uint64_t wanted = n_taken(r) + r->n_wanted;
	struct reading begin, end;
	int ret = read_clocks(r, &begin, false);

	while (!ret && n_taken(r) < wanted) {
		ret = turn(r, DRAIN_MS * (int64_t)NSEC_PER_MSEC);
		if (!ret && !r->in.n)
			ret = -ETIMEDOUT;
	}
	if (!ret)
		ret = read_clocks(r, &end, true);
	if (ret)
		return ret;
	r->drained = (struct rig_drained){
		.n_packets = r->n_wanted,
		.cpu_ns = end.self_ns - begin.self_ns + end.helpers_ns - begin.helpers_ns,
		.helper_ns = end.helpers_ns - begin.helpers_ns,
		.user_ns = end.user_ns - begin.user_ns,
		.system_ns = end.system_ns - begin.system_ns,
		.n_syscalls = r->calls_err ? 0 : end.n_syscalls - begin.n_syscalls - 1,
	};
	return 0;
}

static bool is_stopping(const struct rig *r)
{
	return atomic_load_explicit(&r->is_stopping, memory_order_acquire);
}

static void drain_when_told(struct rig *r)
{
	while (!is_stopping(r)) {
		rcu_offline();
		while (sem_wait(&r->go))
			;
		rcu_online();
		if (is_stopping(r))
			break;
		r->drain_err = drain(r);
		sem_post(&r->done);
	}
}

static void echo(struct rig *r)
{
	int ret = 0;

	while (!ret && !is_stopping(r))
		ret = turn(r, -1);
	if (ret)
		atomic_store(&r->err, ret);
}

static void *rig_main(void *arg)
{
	struct rig *r = arg;

	r->tid = gettid();
	if (cpu_pin(r->cfg.cpu))
		atomic_store(&r->err, -EINVAL);
	r->calls_err = syscall_counter_open(&r->calls, 0);
	rcu_thread_init();
	/* release: what is above */
	atomic_store_explicit(&r->is_ready, true, memory_order_release);
	if (r->cfg.is_echo)
		echo(r);
	else
		drain_when_told(r);
	rcu_thread_fini();
	return NULL;
}

static void sleep_ms(unsigned ms)
{
	struct timespec ts = { ms / 1000, (long)(ms % 1000) * (long)NSEC_PER_MSEC };

	nanosleep(&ts, NULL);
}

static int start(struct rig *r)
{
	int ret = -pthread_create(&r->thread, NULL, rig_main, r);

	if (ret)
		return ret;
	r->is_started = true;
	for (unsigned i = 0; i < START_MS; i++) {
		if (atomic_load_explicit(&r->is_ready, memory_order_acquire))
			return atomic_load(&r->err);
		sleep_ms(1);
	}
	return -ETIMEDOUT;
}

/* Without privilege it stays as it is. */
static void widen(struct rig *r)
{
	int len = (int)r->cfg.buf_len;

	(void)setsockopt(r->udp.data[0][0], SOL_SOCKET, SO_RCVBUFFORCE, &len, sizeof(len));
}

/* io_uring's threads end some time after their ring. This receiver must not take
 * those for its own. */
static void await_helpers(void)
{
	for (unsigned i = 0; i < HELPERS_MS && cputime_helpers(NULL, 0); i++)
		sleep_ms(1);
}

int rig_create(struct rig **out, const struct rig_config *cfg)
{
	struct udp_config udp = {
		.n = 1, .allowed = cfg->has_gro ? OFFLOAD_UDP_GRO : 0, .steer = { -1, -1 }
	};
	struct rig *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return -ENOMEM;
	r->cfg = *cfg;
	sem_init(&r->go, 0, 0);
	sem_init(&r->done, 0, 0);
	udp_init(&r->udp);
	await_helpers();
	ret = udp_open(&r->udp, &udp);
	if (!ret && cfg->buf_len)
		widen(r);
	if (!ret)
		ret = cfg->ops->open(&r->engine, &cfg->engine);
	if (!ret)
		ret = cfg->ops->add(
			r->engine, &(struct io_channel){ r->udp.data[0][0], IO_DGRAM, 0, NULL });
	if (!ret)
		ret = start(r);
	if (ret)
		rig_destroy(r);
	else
		*out = r;
	return ret;
}

void rig_destroy(struct rig *r)
{
	if (!r)
		return;
	if (r->is_started) {
		atomic_store(&r->is_stopping, true);
		sem_post(&r->go);
		r->cfg.ops->wake(r->engine);
		pthread_join(r->thread, NULL);
		syscall_counter_close(&r->calls);
	}
	if (r->engine)
		r->cfg.ops->close(r->engine);
	udp_close(&r->udp);
	sem_destroy(&r->go);
	sem_destroy(&r->done);
	free(r);
}

uint16_t rig_port(const struct rig *r)
{
	return r->udp.port;
}

const char *rig_syscalls_missing(const struct rig *r)
{
	return r->calls_err ? syscall_counter_reason(r->calls_err) : NULL;
}

int rig_counts(const struct rig *r, uint64_t *n_packets, uint64_t *n_wrong)
{
	*n_packets = atomic_load(&r->n_packets);
	*n_wrong = atomic_load(&r->n_wrong);
	return atomic_load(&r->err);
}

int rig_queue(const struct rig *r, struct rig_queue *out)
{
	uint32_t info[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(info);

	if (getsockopt(r->udp.data[0][0], SOL_SOCKET, SO_MEMINFO, info, &len))
		return -errno;
	*out = (struct rig_queue){ info[SK_MEMINFO_RMEM_ALLOC], info[SK_MEMINFO_RCVBUF],
		info[SK_MEMINFO_DROPS] };
	return 0;
}

static void add_drained(struct rig_drained *sum, const struct rig_drained *d)
{
	sum->n_packets += d->n_packets;
	sum->cpu_ns += d->cpu_ns;
	sum->helper_ns += d->helper_ns;
	sum->user_ns += d->user_ns;
	sum->system_ns += d->system_ns;
	sum->n_syscalls += d->n_syscalls;
}

int rig_drain(struct rig *r, uint64_t n, struct rig_drained *sum)
{
	assert(!r->cfg.is_echo);
	r->n_wanted = n;
	r->n_helpers = cputime_helpers(r->helpers, HELPERS_MAX);
	if (r->n_helpers > HELPERS_MAX)
		return -E2BIG;
	sem_post(&r->go);
	while (sem_wait(&r->done))
		;
	if (r->drain_err)
		return r->drain_err;
	add_drained(sum, &r->drained);
	return atomic_load(&r->n_wrong) ? -EBADMSG : 0;
}
