/* Four arrangements:
 *  - workers with a socket of each family and a TUN queue of their own (channels, uring): the
 *    kernel spreads packets, by a steering program or by what it does without;
 *  - workers that share one socket of each family and one TUN queue (epoll): turnstiles keep
 *    the order;
 *  - a thread for each worker and channel, which share as well (blocking);
 *  - readers, queues, workers and a sender (queue), see queued.h.
 *
 * syscalls(start): eventfd
 * syscalls: read write close; the event that says that a socket was lost */
#include "gateway/plane.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "crypto/crypto.h"
#include "gateway/queued.h"
#include <errno.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { THREADS_MAX = WG_WORKERS_MAX, DEFAULT_WORKERS_MAX = 8, TEXT_MAX = 160 };

struct plane {
	struct plane_wish wish;
	const struct engine_ops *ops; /* NULL: `queue`, and then only queued is there */
	struct queued *queued;
	char text[TEXT_MAX];
	unsigned n_workers;
	unsigned n_threads; /* thread i is of worker i % n_workers */
	struct worker *threads[THREADS_MAX];
	int queues[THREADS_MAX]; /* the TUN, by worker; the first is not ours */
	unsigned n_queues;
	struct steer *steer;
	struct order *order;
	struct turnstile shared[WORKER_CHANNELS];
	bool has_shared; /* turnstiles were made */
	int lost_fd;
	_Atomic bool is_lost;
};

/* How loud to say that something lesser was taken: nobody may have asked for the better. */
static enum log_level lesser(const struct plane *p)
{
	return p->wish.n_workers ? LOG_WARN : LOG_INFO;
}

static bool owns_channels(const struct plane *p)
{
	return p->ops && p->ops->traits & ENGINE_OWN_CHANNELS;
}

/* ---- Which engine. */

static bool is_queue(const char *name)
{
	return !strcmp(name, "queue");
}

/* NULL: there is none, or it is "auto" or "queue". */
static const struct engine_ops *find(const char *name)
{
	for (size_t i = 0; engines[i]; i++)
		if (!strcmp(name, engines[i]->name))
			return engines[i];
	return NULL;
}

bool plane_is_engine(const char *name)
{
	return !strcmp(name, "auto") || is_queue(name) || find(name);
}

bool plane_is_steerable(const char *engine)
{
	const struct engine_ops *ops = find(engine);

	return ops ? ops->traits & ENGINE_OWN_CHANNELS : !is_queue(engine);
}

unsigned plane_workers_max(const char *engine)
{
	const struct engine_ops *ops = find(engine);

	return ops && ops->traits & ENGINE_ONE_CHANNEL ? THREADS_MAX / WORKER_CHANNELS
						       : THREADS_MAX;
}

/* With one worker `channels` is what `epoll` is. An engine that takes fewer workers than were
 * asked for is none. */
static bool is_candidate(const struct plane *p, const struct engine_ops *ops)
{
	if (p->n_workers > plane_workers_max(ops->name))
		return false;
	if (p->wish.has_steer && !(ops->traits & ENGINE_OWN_CHANNELS))
		return false;
	return ops != &channels_ops || p->n_workers > 1;
}

/* The first of engines[], which are in order of what was measured (doc/performance.md), that
 * runs here. */
static int choose_best(struct plane *p)
{
	size_t len = 0;
	int ret = -ENOENT;

	for (size_t i = 0; engines[i]; i++) {
		if (!is_candidate(p, engines[i]))
			continue;
		ret = engines[i]->probe(&p->wish.io);
		if (!ret) {
			p->ops = engines[i];
			break;
		}
		len += (size_t)snprintf(p->text + len, TEXT_MAX - len, "%s%s: %s", len ? ", " : "",
			engines[i]->name, strerror(-ret));
		if (len >= TEXT_MAX)
			len = TEXT_MAX - 1;
	}
	return ret;
}

static int choose(struct plane *p)
{
	char refused[TEXT_MAX];
	int ret = 0;

	if (is_queue(p->wish.engine)) {
		snprintf(p->text, TEXT_MAX, "queue");
	} else if (!strcmp(p->wish.engine, "auto")) {
		ret = choose_best(p);
		memcpy(refused, p->text, TEXT_MAX);
		if (!ret)
			snprintf(p->text, TEXT_MAX, "%s, the fastest that runs here%s%.100s%s",
				p->ops->name, refused[0] ? " (" : "", refused,
				refused[0] ? ")" : "");
	} else {
		ret = engine_pick(&p->ops, p->wish.engine, &p->wish.io);
		snprintf(p->text, TEXT_MAX, "%s", p->wish.engine);
	}
	if (ret)
		log_line(
			LOG_ERROR, "engine %s cannot run here: %s", p->wish.engine, strerror(-ret));
	return ret;
}

/* As many as there are cores, up to a number that a machine with other work can spare. Those that
 * would share one queue: one. The readers and the sender of `queue` want a core too: on two
 * cores a second worker halves what goes through it. So does SQPOLL's thread. */
static unsigned default_workers(const struct plane_wish *wish, unsigned n_cores)
{
	unsigned n = n_cores < DEFAULT_WORKERS_MAX ? n_cores : DEFAULT_WORKERS_MAX;

	if (is_queue(wish->engine))
		return n > 1 ? n - 1 : 1;
	return plane_is_steerable(wish->engine) && !wish->io.sqpoll_idle_ms ? n : 1;
}

int plane_create(struct plane **out, const struct plane_wish *wish)
{
	unsigned n_cores = cpu_count();
	struct plane *p = aligned_alloc(_Alignof(struct plane), sizeof(*p));
	int ret;

	if (!p)
		return -ENOMEM;
	memset(p, 0, sizeof(*p));
	p->wish = *wish;
	p->n_workers = wish->n_workers ? wish->n_workers : default_workers(wish, n_cores);
	p->lost_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ret = p->lost_fd < 0 ? -errno : choose(p);
	if (ret) {
		plane_destroy(p);
		return ret;
	}
	if (p->n_workers > n_cores)
		log_line(LOG_WARN, "%u workers on %u core%s: they will wait for each other",
			p->n_workers, n_cores, n_cores == 1 ? "" : "s");
	*out = p;
	return 0;
}

/* ---- Descriptors and programs. */

unsigned plane_offloads_of(const struct plane *p, unsigned allowed)
{
	return p->ops ? allowed : 0;
}

int plane_open_queues(struct plane *p, const struct tun *t)
{
	int ret = 0;

	if (!p->ops && t->offloads & OFFLOAD_VNET) {
		log_line(LOG_ERROR,
			"engine queue: expected a TUN without IFF_VNET_HDR, not that of "
			"WG_TUN_FD");
		return -EINVAL;
	}
	p->queues[0] = t->fd;
	p->n_queues = 1;
	while (owns_channels(p) && p->n_queues < p->n_workers && !ret) {
		ret = tun_add_queue(t, &p->queues[p->n_queues]);
		p->n_queues += !ret;
	}
	if (!owns_channels(p) || p->n_queues == p->n_workers)
		return 0;
	p->n_workers = p->n_queues;
	log_line(lesser(p), "%u worker%s: the interface has no more queues (%s)", p->n_workers,
		p->n_workers == 1 ? "" : "s", strerror(-ret));
	return 0;
}

unsigned plane_n_wg_workers(const struct plane *p)
{
	if (p->ops && p->ops->traits & ENGINE_ONE_CHANNEL)
		return p->n_workers * WORKER_CHANNELS;
	return p->n_workers;
}

void plane_steer(struct plane *p, const uint8_t index_key[16])
{
	struct steer_config cfg = { .mode = p->wish.steer, .n_workers = p->n_workers };
	int ret;

	if (!owns_channels(p) || p->n_workers == 1)
		return;
	memcpy(cfg.index_key, index_key, sizeof(cfg.index_key));
	ret = steer_create(&p->steer, &cfg);
	crypto_wipe(&cfg, sizeof(cfg));
	if (!ret) {
		ret = steer_attach_tun(p->steer, p->queues[0], p->n_queues);
		if (ret)
			log_line(lesser(p), "no steering of what comes from inside: %s",
				strerror(-ret));
	} else {
		log_line(lesser(p),
			"no steering programs (%s%s%s): packets go to workers by address and port",
			ret == -EOPNOTSUPP ? "built without eBPF" : strerror(-ret),
			sandbox_has(CAP_BPF) ? "" : "; ",
			sandbox_has(CAP_BPF) ? "" : sandbox_hint(CAP_BPF));
	}
}

void plane_want_sockets(const struct plane *p, struct udp_config *cfg)
{
	cfg->n = owns_channels(p) ? p->n_workers : 1;
	cfg->steer = steer_get_fds(p->steer);
}

/* ---- Threads. */

void plane_report_lost(struct plane *p)
{
	uint64_t one = 1;

	atomic_store(&p->is_lost, true);
	if (write(p->lost_fd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is readable already */
}

/* From a worker's thread. */
static void channel_lost(void *ctx, enum worker_channel which)
{
	/* Of the TUN the control thread hears by netlink. */
	if (which != WORKER_TUN)
		plane_report_lost(ctx);
}

static int make_shared(struct plane *p)
{
	int ret = 0;

	for (unsigned i = 0; i < WORKER_CHANNELS && !ret; i++)
		ret = turnstile_init(&p->shared[i]);
	p->has_shared = !ret;
	return ret;
}

static int fill_workers(struct plane *p, const struct plane_parts *parts)
{
	bool has_one = p->ops->traits & ENGINE_ONE_CHANNEL;
	struct worker_config cfg = { .wg = parts->wg,
		.ops = p->ops,
		.engine = p->wish.io,
		.offloads = parts->offloads,
		.handshakes = parts->handshakes,
		.handshake_ready = parts->handshake_ready,
		.ctx = parts->ctx,
		.unreach = parts->unreach,
		.channel_lost = channel_lost,
		.lost_ctx = p };
	int ret = 0;

	if (!owns_channels(p) && p->n_workers > 1)
		ret = make_shared(p);
	else if (p->steer && p->wish.steer == STEER_RR)
		ret = order_create(&p->order);
	for (unsigned i = 0; p->has_shared && i < WORKER_CHANNELS; i++)
		cfg.shared[i] = &p->shared[i];
	cfg.order = p->order;
	for (unsigned i = 0; i < plane_n_wg_workers(p) && !ret; i++) {
		cfg.id = i;
		cfg.reads = has_one ? 1u << i / p->n_workers : WORKER_READS_ALL;
		cfg.tun_fd = p->queues[owns_channels(p) ? i : 0];
		ret = worker_create(&p->threads[i], &cfg);
		p->n_threads += !ret;
	}
	return ret;
}

static int fill_queue(struct plane *p, const struct plane_parts *parts)
{
	const struct queued_config cfg = { .wg = parts->wg,
		.tun_fd = parts->tun->fd,
		.n_workers = p->n_workers,
		.handshakes = parts->handshakes,
		.handshake_ready = parts->handshake_ready,
		.ctx = parts->ctx,
		.unreach = parts->unreach,
		.channel_lost = channel_lost,
		.lost_ctx = p };

	return queued_create(&p->queued, &cfg);
}

int plane_fill(struct plane *p, const struct plane_parts *parts)
{
	return p->ops ? fill_workers(p, parts) : fill_queue(p, parts);
}

int plane_start(struct plane *p)
{
	int ret = p->queued ? queued_start(p->queued) : 0;

	for (unsigned i = 0; i < p->n_threads && !ret; i++)
		ret = worker_start(p->threads[i]);
	return ret;
}

void plane_stop(struct plane *p)
{
	if (!p)
		return;
	queued_stop(p->queued);
	for (unsigned i = 0; i < p->n_threads; i++)
		worker_stop(p->threads[i]);
}

void plane_destroy(struct plane *p)
{
	if (!p)
		return;
	plane_stop(p);
	queued_destroy(p->queued);
	for (unsigned i = 0; i < p->n_threads; i++)
		worker_destroy(p->threads[i]);
	for (unsigned i = 1; i < p->n_queues; i++)
		close(p->queues[i]);
	for (unsigned i = 0; p->has_shared && i < WORKER_CHANNELS; i++)
		turnstile_fini(&p->shared[i]);
	steer_destroy(p->steer);
	order_destroy(p->order);
	if (p->lost_fd >= 0)
		close(p->lost_fd);
	free(p);
}

/* A worker whose own socket could not be had sends by the first one. */
static void set_sockets(struct plane *p, unsigned thread, const struct udp *u)
{
	unsigned worker = thread % p->n_workers, own = owns_channels(p) ? worker : 0;
	bool has_own = own < u->n;
	const int fd[2] = { u->data[0][has_own ? own : 0], u->data[1][has_own ? own : 0] };

	worker_set_sockets(p->threads[thread], fd, has_own ? WORKER_READS_ALL : 0, u->offloads);
}

void plane_set_sockets(struct plane *p, const struct udp *u)
{
	if (p->queued)
		queued_set_sockets(p->queued, (int[2]){ u->data[0][0], u->data[1][0] });
	for (unsigned i = 0; i < p->n_threads; i++)
		set_sockets(p, i, u);
	if (p->steer && u->n > 1 && !u->is_steered)
		log_line(LOG_WARN,
			"the steering program was refused: datagrams go to workers by address and "
			"port");
	if (owns_channels(p) && u->n > 0 && u->n < p->n_workers)
		log_line(LOG_WARN, "the kernel refuses a socket for each worker: %u of %u read",
			u->n, p->n_workers);
}

void plane_forget_paths(struct plane *p)
{
	if (p->queued)
		queued_forget_paths(p->queued);
	for (unsigned i = 0; i < p->n_threads; i++)
		worker_forget_paths(p->threads[i]);
}

int plane_lost_fd(const struct plane *p)
{
	return p->lost_fd;
}

bool plane_take_lost(struct plane *p)
{
	uint64_t n;

	if (read(p->lost_fd, &n, sizeof(n)) < 0)
		return false;
	return atomic_exchange(&p->is_lost, false);
}

/* ---- What it says of itself. */

const char *plane_text(const struct plane *p)
{
	return p->text;
}

unsigned plane_offloads(const struct plane *p)
{
	unsigned all = p->ops ? OFFLOAD_ALL : 0;

	for (unsigned i = 0; i < p->n_threads; i++)
		all &= worker_offloads(p->threads[i]);
	return all;
}

void plane_drops(const struct plane *p, uint64_t out[WORKER_DROP_N])
{
	if (p->queued)
		queued_drops(p->queued, out);
	for (unsigned i = 0; i < p->n_threads; i++)
		worker_drops(p->threads[i], out);
}

unsigned plane_n_workers(const struct plane *p)
{
	return p->n_workers;
}

unsigned plane_n_counted(const struct plane *p)
{
	return p->ops ? p->n_workers : 0;
}

struct worker_count plane_count(const struct plane *p, unsigned worker)
{
	struct worker_count sum = { 0 };

	for (unsigned i = worker; i < p->n_threads; i += p->n_workers) {
		struct worker_count c = worker_counts(p->threads[i]);

		sum.rx_packets += c.rx_packets;
		sum.tx_packets += c.tx_packets;
	}
	return sum;
}
