/* The thread does what a data worker does between two waits: look at each datagram's header
 * and at the bytes. How it divides its time is asked of itself (getrusage), since nobody else
 * is told in more than hundredths of a second; it answers between two batches and only
 * outside of what is measured, so that its system calls stay the engine's. */
#include "bench/engines_rig.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rcu.h"
#include "bench/cputime.h"
#include "bench/engines_math.h"
#include "link/link.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
	START_MS = 2000,
	HELPERS_MS = 1000,
	USAGE_MS = 40, /* for an answer; a thread that gets nothing stays blocked and gives none */
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
	_Atomic bool wants_usage;
	_Atomic uint64_t user_ns, system_ns;

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

static void tell_usage(struct rig *r)
{
	struct rusage u;

	if (getrusage(RUSAGE_THREAD, &u))
		return;
	atomic_store(&r->user_ns, ns_of(&u.ru_utime));
	atomic_store(&r->system_ns, ns_of(&u.ru_stime));
	atomic_store(&r->wants_usage, false);
}

static void *rig_main(void *arg)
{
	struct rig *r = arg;
	int ret = 0;

	r->tid = gettid();
	if (cpu_pin(r->cfg.cpu))
		atomic_store(&r->err, -EINVAL);
	r->calls_err = syscall_counter_open(&r->calls, 0);
	rcu_thread_init();
	/* release: what is above */
	atomic_store_explicit(&r->is_ready, true, memory_order_release);
	while (!atomic_load_explicit(&r->is_stopping, memory_order_acquire)) {
		if (atomic_load_explicit(&r->wants_usage, memory_order_relaxed))
			tell_usage(r);
		rcu_quiescent();
		ret = r->cfg.ops->wait(r->engine, &r->in, -1);
		if (ret < 0 || r->in.lost) {
			atomic_store(&r->err, ret < 0 ? ret : -EIO);
			break;
		}
		take_batch(r);
	}
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
	udp_init(&r->udp);
	ret = udp_open(&r->udp, &udp);
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

/* io_uring's threads end some time after their ring. The next receiver's first reading must
 * not have them, since its second would not. */
static void await_helpers(void)
{
	struct cputime t;

	for (unsigned i = 0; i < HELPERS_MS; i++) {
		if (cputime_read_threads(NULL, 0, &t) || !t.iou_ns)
			return;
		sleep_ms(1);
	}
}

void rig_destroy(struct rig *r)
{
	if (!r)
		return;
	if (r->is_started) {
		atomic_store(&r->is_stopping, true);
		r->cfg.ops->wake(r->engine);
		pthread_join(r->thread, NULL);
		syscall_counter_close(&r->calls);
	}
	if (r->engine)
		r->cfg.ops->close(r->engine);
	await_helpers();
	udp_close(&r->udp);
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

static void ask_usage(struct rig *r)
{
	atomic_store(&r->wants_usage, true);
	for (unsigned i = 0; i < USAGE_MS && atomic_load(&r->wants_usage); i++)
		sleep_ms(1);
}

int rig_read(struct rig *r, struct rig_reading *out, bool is_end)
{
	struct cputime t;
	int ret = 0;

	*out = (struct rig_reading){ .has_syscalls = !r->calls_err };
	if (!is_end)
		ask_usage(r);
	out->at_ns = clock_now_ns();
	out->n_packets = atomic_load(&r->n_packets);
	out->n_wrong = atomic_load(&r->n_wrong);
	if (out->has_syscalls)
		ret = syscall_counter_read(&r->calls, &out->n_syscalls);
	if (!ret)
		ret = cputime_read_threads(&r->tid, 1, &t);
	if (ret)
		return ret;
	out->cpu_ns = cputime_sum(&t);
	out->helper_ns = t.iou_ns + t.softirqd_ns;
	if (is_end)
		ask_usage(r);
	out->user_ns = atomic_load(&r->user_ns);
	out->system_ns = atomic_load(&r->system_ns);
	return atomic_load(&r->err);
}
