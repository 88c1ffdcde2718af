/* The worker's loop. A batch holds frames from the TUN and datagrams from the
 * sockets. Datagrams are opened in place and leave as superframes (outward to
 * inward); frames are cut, sealed in place and leave as trains (inward to
 * outward). The unit of sealing and sending is the chunk: what one UDP_SEGMENT
 * send can take, so that the bytes are still in the cache when the cipher and
 * then the kernel read them. */
#include "gateway/worker.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rcu.h"
#include "base/reasons.h"
#include "gateway/ecn.h"
#include "gateway/route.h"
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	CHUNK_PACKETS = 64, /* sealed at once; UDP_MAX_SEGMENTS of Linux before 6.9 */
	TRAIN_BYTES = 65507, /* largest UDP payload over IPv4 */
	OUT_LEN = 256 * 1024, /* room for the messages of unsent trains */
	SEND_BYTES = 48 * 1024, /* send as soon as this much is sealed */
	MERGE_BYTES = 256 * 1024, /* write to the TUN at the latest when this much is merged */
};

struct train {
	struct iovec iov;
	uint32_t seg_len;
	uint32_t n;
	uint8_t tos;
	uint8_t hops; /* 0: the kernel's default */
	struct wg_endpoint to;
};

/* A frame of the batch and whom it goes to. */
struct frame {
	struct split split;
	struct wg_peer *peer; /* NULL: dropped or done */
	uint8_t hops;
};

struct worker {
	/* read-only after start */
	struct worker_config cfg;
	const struct engine_ops *ops;
	pthread_t thread;
	bool is_started;

	/* the worker's own */
	struct engine *engine;
	struct wg_worker *wg;
	struct merge *merge;
	struct arena arena;
	int sock[2];
	bool has_vnet;
	uint64_t now_ns;
	struct io_batch in;
	struct keypair *session[IO_BATCH_MAX]; /* of the batch's trains; NULL: look it up */
	struct frame frames[IO_BATCH_MAX];
	struct wg_packet pkts[CHUNK_PACKETS];
	size_t n_pkts;
	uint8_t *out;
	size_t out_len; /* bytes used of OUT_LEN */
	size_t chunk_start; /* first train of the chunk that is being filled */
	struct train trains[IO_BATCH_MAX + CHUNK_PACKETS];
	size_t n_trains;
	struct io_tx tx[IO_BATCH_MAX + CHUNK_PACKETS];
	struct udp_tx tx_mem[IO_BATCH_MAX + CHUNK_PACKETS];
	size_t merged_bytes;
	struct udp_paths paths;
	bool has_turn; /* entered the turnstile of the batch */

	/* written by the worker, read by any thread */
	_Atomic uint64_t drops[WORKER_DROP_N];
	_Atomic uint64_t rx_packets, tx_packets;
	_Atomic unsigned offloads;

	/* written by the control thread */
	_Atomic bool is_stopping;
	_Atomic bool has_new_routes;
	_Atomic bool has_new_sockets;
	int new_sock[2];
	unsigned new_reads;
	unsigned new_offloads;
};

REASONS_DEFINE(worker_drop, WORKER_DROPS)

/* One writer: a plain add, made visible to readers. */
static void count(_Atomic uint64_t *counter, uint64_t n)
{
	uint64_t old = atomic_load_explicit(counter, memory_order_relaxed);

	atomic_store_explicit(counter, old + n, memory_order_relaxed);
}

static void count_drop(struct worker *w, enum worker_drop why, uint64_t n)
{
	count(&w->drops[why], n);
}

/* What came by a shared channel leaves in the order in which it came: before the first of
 * a batch does, those who read before us have to be through. */
static void enter_turn(struct worker *w)
{
	if (!w->in.order || w->has_turn)
		return;
	turnstile_enter(w->in.order, w->in.ticket);
	w->has_turn = true;
}

/* All of the batch has left; of some nothing does. */
static void leave_turn(struct worker *w)
{
	if (!w->in.order)
		return;
	enter_turn(w);
	w->has_turn = false;
	turnstile_leave(w->in.order);
}

static void lose_offload(struct worker *w, unsigned lost)
{
	unsigned have = atomic_load_explicit(&w->offloads, memory_order_relaxed);
	char text[64];

	lost &= have;
	if (!lost)
		return;
	atomic_store_explicit(&w->offloads, have & ~lost, memory_order_relaxed);
	merge_set_offloads(w->merge, have & ~lost);
	log_line(
		LOG_WARN, "the kernel refuses %s here: going on without", offload_text(lost, text));
}

/* ---- Outward to inward. */

/* Write what has been merged to the TUN. */
static void flush_tun(struct worker *w)
{
	struct io_tx *tx;
	size_t n = merge_finish(w->merge, &tx), n_sent;

	w->merged_bytes = 0;
	if (n == 0)
		return;
	enter_turn(w);
	n_sent = w->ops->send(w->engine, w->cfg.tun_fd, IO_FRAME, tx, n);
	if (n_sent < n)
		count_drop(w, WORKER_DROP_TUN_WRITE, n - n_sent);
	for (size_t i = 0; n_sent < n && i < n; i++)
		if (tx[i].err == -EINVAL && tx[i].hdr.msg_iovlen > 2)
			lose_offload(w, OFFLOAD_TSO | OFFLOAD_USO);
	merge_reset(w->merge);
}

static void deliver(struct worker *w, const struct wg_packet *pkts, size_t n, uint8_t tos)
{
	for (size_t i = 0; i < n; i++) {
		const struct wg_packet *p = &pkts[i];

		if (p->drop != WG_OK || p->len == 0)
			continue;
		if (!ecn_carry(p->data, tos)) {
			count_drop(w, WORKER_DROP_ECN, 1);
			continue;
		}
		if (!merge_add(w->merge, p->data, p->len)) {
			flush_tun(w);
			if (!merge_add(w->merge, p->data, p->len)) {
				count_drop(w, WORKER_DROP_TUN_WRITE, 1);
				continue;
			}
		}
		w->merged_bytes += p->len;
	}
}

static void queue_handshake(
	struct worker *w, const uint8_t *msg, uint32_t len, const struct wg_endpoint *from)
{
	if (handshake_item_push(w->cfg.handshakes, msg, len, from))
		w->cfg.handshake_ready(w->cfg.ctx);
	else
		count_drop(w, WORKER_DROP_QUEUE_FULL, 1);
}

/* Where in its session's order a data message stands. */
struct place {
	uint32_t receiver;
	uint64_t counter;
};

static struct place place_of(const uint8_t *msg)
{
	return (struct place){ get_le32(msg + offsetof(struct wgmsg_data, receiver)),
		get_le64(msg + offsetof(struct wgmsg_data, counter)) };
}

/* Did this packet come from the peer, whatever is wrong with it inside? Then its counter is
 * no longer missing. */
static bool is_authentic(const struct wg_packet *p)
{
	return p->drop == WG_OK || p->drop == WG_DROP_SOURCE || p->drop == WG_DROP_INNER;
}

/* As deliver, and written as well, in the turn of the messages that these packets were. */
static void deliver_in_order(struct worker *w, const struct place *at, uint8_t tos)
{
	for (size_t i = 0, end; i < w->n_pkts; i = end) {
		struct order_slot *slot;
		uint64_t next;

		end = i + 1;
		if (!is_authentic(&w->pkts[i]))
			continue;
		next = at[i].counter + 1;
		for (; end < w->n_pkts && at[end].receiver == at[i].receiver; end++)
			if (is_authentic(&w->pkts[end]) && at[end].counter >= next)
				next = at[end].counter + 1;
		slot = order_enter(w->cfg.order, at[i].receiver, at[i].counter);
		deliver(w, w->pkts + i, end - i, tos);
		flush_tun(w);
		order_leave(slot, next);
	}
}

static void open_chunk(struct worker *w, const struct udp_rx *u)
{
	struct place at[CHUNK_PACKETS];

	if (w->n_pkts == 0)
		return;
	for (size_t i = 0; w->cfg.order && i < w->n_pkts; i++)
		at[i] = place_of(w->pkts[i].data);
	count(&w->rx_packets, w->n_pkts);
	wg_open(w->wg, w->pkts, w->n_pkts, &u->from, w->now_ns);
	if (w->cfg.order)
		deliver_in_order(w, at, u->tos);
	else
		deliver(w, w->pkts, w->n_pkts, u->tos);
	w->n_pkts = 0;
}

/* Find the sessions of all trains of the batch together, see wg_look_ahead. */
static void look_ahead(struct worker *w)
{
	struct wg_packet first[IO_BATCH_MAX];
	uint8_t which[IO_BATCH_MAX];
	size_t n = 0;

	static_assert((int)IO_BATCH_MAX <= (int)WG_AHEAD_MAX, "one call");
	for (size_t i = 0; i < w->in.n; i++) {
		const struct io_rx *rx = &w->in.rx[i];

		w->session[i] = NULL;
		if (rx->tag == WORKER_TUN || wgmsg_gate(rx->data, rx->len) != WGMSG_DATA)
			continue;
		which[n] = (uint8_t)i;
		first[n++] = (struct wg_packet){ .data = rx->data, .len = rx->len };
	}
	wg_look_ahead(w->wg, first, n);
	for (size_t i = 0; i < n; i++)
		w->session[which[i]] = first[i].session;
}

/* One datagram, or a train of them that GRO put together. session: of the first
 * message, NULL if it is not known. */
static void take_datagram(struct worker *w, const struct io_rx *rx, struct keypair *session)
{
	struct udp_rx u;
	uint32_t len;

	if (!udp_rx_parse(&u, rx)) {
		count_drop(w, WORKER_DROP_DATAGRAM, 1);
		return;
	}
	if (rx->len == 0)
		wg_worker_drop(w->wg, NULL, WG_DROP_TYPE, 1);
	for (uint32_t at = 0; at < rx->len; at += len) {
		uint8_t *msg = rx->data + at;

		len = rx->len - at < u.seg_len ? rx->len - at : u.seg_len;
		switch (wgmsg_gate(msg, len)) {
		case WGMSG_DATA:
			w->pkts[w->n_pkts++] = (struct wg_packet){
				.data = msg, .len = len, .session = at ? NULL : session
			};
			if (w->n_pkts == CHUNK_PACKETS)
				open_chunk(w, &u);
			break;
		case WGMSG_INITIATION:
		case WGMSG_RESPONSE:
		case WGMSG_COOKIE:
			queue_handshake(w, msg, len, &u.from);
			break;
		default:
			wg_worker_drop(w->wg, NULL, WG_DROP_TYPE, 1);
		}
	}
	open_chunk(w, &u);
	if (w->merged_bytes >= MERGE_BYTES)
		flush_tun(w);
}

/* ---- Inward to outward. */

/* Send all sealed trains. */
static void flush_udp(struct worker *w)
{
	if (w->n_trains > 0)
		enter_turn(w);
	for (size_t first = 0, end; first < w->n_trains; first = end) {
		unsigned family = endpoint_family(&w->trains[first].to);

		/* Runs of one family go out by one call. */
		for (end = first; end < w->n_trains; end++) {
			struct train *t = &w->trains[end];

			if (endpoint_family(&t->to) != family)
				break;
			udp_tx_fill(&w->tx[end], &w->tx_mem[end], &t->to, &t->iov, t->seg_len,
				t->tos, t->hops);
		}
		if (w->sock[family] < 0) {
			count_drop(w, WORKER_DROP_UDP_SEND, end - first);
			continue;
		}
		count_drop(w, WORKER_DROP_UDP_SEND,
			udp_send(w->ops, w->engine, w->sock[family], &w->tx[first], end - first,
				&w->paths));
	}
	if (w->paths.lost) {
		/* Of one path: udp_send remembers which, the others keep their trains. */
		log_line(LOG_INFO, "a device on the way takes no trains: sending it datagrams");
		w->paths.lost = 0;
	}
	w->n_trains = 0;
	w->chunk_start = 0;
	w->out_len = 0;
}

/* Do the packets go from one sender to one receiver, and port to port? */
static bool is_same_flow(const struct wg_packet *a, const struct wg_packet *b)
{
	size_t at = a->data[0] >> 4 == 4 ? 12 : 8, n = at == 12 ? 8 + 4 : 32 + 4;

	return a->data[0] == b->data[0] && a->len >= at + n && b->len >= at + n &&
		!memcmp(a->data + at, b->data + at, n);
}

/* The peer's endpoint is not known. Of the segments of one superframe one will do. */
static void report_chunk(struct worker *w)
{
	for (size_t i = 0; i < w->n_pkts; i++) {
		const struct wg_packet *p = &w->pkts[i];

		if (i == 0 || !is_same_flow(p - 1, p))
			unreach_offer(w->cfg.unreach, p->data, p->len, w->now_ns);
	}
}

/* Seal the chunk; its trains become ready to send, or vanish. */
static void seal_chunk(struct worker *w, struct wg_peer *peer)
{
	struct wg_endpoint to;
	enum wg_sealed ret;

	if (w->n_pkts == 0)
		return;
	ret = wg_seal(w->wg, peer, w->pkts, w->n_pkts, w->now_ns, &to);
	if (ret == WG_SEALED) {
		for (size_t i = w->chunk_start; i < w->n_trains; i++)
			w->trains[i].to = to;
		w->chunk_start = w->n_trains;
	} else {
		w->n_trains = w->chunk_start;
		if (ret == WG_DROPPED && w->pkts[0].drop == WG_DROP_NO_ENDPOINT)
			report_chunk(w);
	}
	w->n_pkts = 0;
	if (w->out_len >= SEND_BYTES || w->n_trains >= IO_BATCH_MAX)
		flush_udp(w);
}

/* The chunk's last train, if it takes one more message of msg_len bytes; else
 * NULL. The last message of a train may be shorter, and then ends it. */
static struct train *open_train(
	struct worker *w, uint32_t msg_len, uint8_t tos, uint8_t hops, uint32_t n_max)
{
	struct train *t;

	if (w->n_trains == w->chunk_start)
		return NULL;
	t = &w->trains[w->n_trains - 1];
	if (t->n < n_max && t->tos == tos && t->hops == hops && msg_len <= t->seg_len &&
		t->iov.iov_len == (size_t)t->n * t->seg_len &&
		t->iov.iov_len + msg_len <= TRAIN_BYTES)
		return t;
	return NULL;
}

static struct train *start_train(struct worker *w, uint32_t msg_len, uint8_t tos, uint8_t hops)
{
	struct train *t = &w->trains[w->n_trains++];

	t->iov.iov_base = w->out + w->out_len;
	t->iov.iov_len = 0;
	t->seg_len = msg_len;
	t->tos = tos;
	t->hops = hops;
	t->n = 0;
	return t;
}

/* Cut one frame into the chunk. */
static void cut_frame(struct worker *w, const struct frame *f)
{
	const struct split *s = &f->split;
	bool has_gso = atomic_load_explicit(&w->offloads, memory_order_relaxed) & OFFLOAD_UDP_GSO;
	uint8_t tos = s->in.tos & ECN_MASK;
	uint32_t msg_len = (uint32_t)wg_sealed_len(w->wg, s->seg_len);

	for (uint32_t i = 0; i < s->n; i++) {
		struct wg_packet *p;
		struct train *t;

		if (i == s->n - 1)
			msg_len = (uint32_t)wg_sealed_len(w->wg, s->last_len);
		if (w->n_pkts == CHUNK_PACKETS)
			seal_chunk(w, f->peer);
		t = open_train(w, msg_len, tos, f->hops, has_gso ? CHUNK_PACKETS : 1);
		/* A chunk ends with a full train rather than in the middle of one. */
		if (!t && w->n_pkts > 0 && w->out_len >= SEND_BYTES)
			seal_chunk(w, f->peer);
		if (w->out_len + msg_len > OUT_LEN) {
			seal_chunk(w, f->peer);
			flush_udp(w);
			t = NULL;
		}
		if (!t)
			t = start_train(w, msg_len, tos, f->hops);
		p = &w->pkts[w->n_pkts++];
		p->data = w->out + w->out_len + WG_HEAD;
		p->len = (uint32_t)split_segment(s, i, p->data);
		t->iov.iov_len += msg_len;
		t->n++;
		w->out_len += msg_len;
	}
}

/* Look at a frame and find its peer; false: it is dropped. */
static bool look_at_frame(struct worker *w, struct frame *f, const struct io_rx *rx)
{
	if (split_init(&f->split, rx->data, rx->len, w->has_vnet) != SPLIT_OK) {
		count_drop(w, WORKER_DROP_TUN_FRAME, 1);
		return false;
	}
	f->peer = route_frame(w->wg, &f->split, w->cfg.unreach, w->now_ns, &f->hops);
	return f->peer != NULL;
}

/* All frames of the batch, peer by peer: those of one peer keep their order and
 * share trains. */
static void take_frames(struct worker *w, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct wg_peer *peer = w->frames[i].peer;

		if (!peer)
			continue;
		for (size_t k = i; k < n; k++) {
			if (w->frames[k].peer != peer)
				continue;
			count(&w->tx_packets, w->frames[k].split.n);
			cut_frame(w, &w->frames[k]);
			w->frames[k].peer = NULL;
		}
		seal_chunk(w, peer);
	}
}

/* ---- The loop. */

static void run_batch(struct worker *w)
{
	size_t n_frames = 0;

	look_ahead(w);
	for (size_t i = 0; i < w->in.n; i++) {
		const struct io_rx *rx = &w->in.rx[i];

		if (rx->tag != WORKER_TUN)
			take_datagram(w, rx, w->session[i]);
		else if (look_at_frame(w, &w->frames[n_frames], rx))
			n_frames++;
	}
	flush_tun(w);
	take_frames(w, n_frames);
	flush_udp(w);
	leave_turn(w);
}

/* Have the engine read a channel, if it is one of ours to read. */
static int read_channel(struct worker *w, int fd, enum worker_channel which, unsigned reads)
{
	const struct io_channel c = { .fd = fd,
		.kind = which == WORKER_TUN ? IO_FRAME : IO_DGRAM,
		.tag = which,
		.order = w->cfg.shared[which] };

	return fd >= 0 && reads & 1u << which ? w->ops->add(w->engine, &c) : 0;
}

static void switch_sockets(struct worker *w)
{
	unsigned keep = atomic_load_explicit(&w->offloads, memory_order_relaxed) &
		~(unsigned)(OFFLOAD_UDP_GSO | OFFLOAD_UDP_GRO);

	for (unsigned f = 0; f < 2; f++) {
		if (w->sock[f] >= 0)
			w->ops->drop(w->engine, w->sock[f]);
		w->sock[f] = w->new_sock[f];
		if (read_channel(w, w->sock[f], (enum worker_channel)f, w->new_reads)) {
			log_line(LOG_ERROR, "a socket cannot be watched");
			w->sock[f] = -1;
		}
	}
	w->paths = (struct udp_paths){ 0 };
	atomic_store_explicit(&w->offloads, keep | w->new_offloads, memory_order_relaxed);
	/* release: the control thread may close the former sockets now */
	atomic_store_explicit(&w->has_new_sockets, false, memory_order_release);
}

static void report_lost(struct worker *w)
{
	for (unsigned i = 0; i < WORKER_CHANNELS; i++)
		if (w->in.lost & 1u << i)
			w->cfg.channel_lost(w->cfg.lost_ctx, (enum worker_channel)i);
}

/* At the end, in the thread that the engine belongs to. A ring that is closed by another one
 * holds its files for some time after that, and with them the interface: who starts the
 * gateway again at once would find the name in use. */
static void drop_channels(struct worker *w)
{
	for (unsigned f = 0; f < 2; f++)
		if (w->sock[f] >= 0)
			w->ops->drop(w->engine, w->sock[f]);
	w->ops->drop(w->engine, w->cfg.tun_fd);
}

/* syscalls: prctl(PR_SET_NAME) sleep */
static void *worker_main(void *arg)
{
	struct worker *w = arg;

	pthread_setname_np(pthread_self(), "penstock-data");
	rcu_thread_init();
	/* acquire: pairs with the release in worker_stop and worker_set_sockets */
	while (!atomic_load_explicit(&w->is_stopping, memory_order_acquire)) {
		if (atomic_load_explicit(&w->has_new_sockets, memory_order_acquire))
			switch_sockets(w);
		rcu_quiescent();
		if (w->ops->wait(w->engine, &w->in, -1) < 0) {
			/* Cannot happen; must not end the thread that others wait for. */
			log_line(LOG_ERROR, "engine %s fails to wait", w->ops->name);
			sleep(1);
			continue;
		}
		if (w->in.lost)
			report_lost(w);
		if (w->in.n == 0)
			continue;
		w->now_ns = clock_now_ns();
		wg_worker_refresh(w->wg);
		if (atomic_load_explicit(&w->has_new_routes, memory_order_relaxed)) {
			atomic_store_explicit(&w->has_new_routes, false, memory_order_relaxed);
			w->paths = (struct udp_paths){ 0 };
		}
		run_batch(w);
	}
	drop_channels(w);
	rcu_thread_fini();
	return NULL;
}

int worker_create(struct worker **out, const struct worker_config *cfg)
{
	struct worker *w = calloc(1, sizeof(*w));
	int ret;

	if (!w)
		return -ENOMEM;
	w->cfg = *cfg;
	w->ops = cfg->ops;
	w->sock[0] = w->sock[1] = -1;
	w->has_vnet = cfg->offloads & OFFLOAD_VNET;
	atomic_init(&w->offloads, cfg->offloads);
	ret = arena_init(&w->arena, OUT_LEN + 2 * 65536);
	if (ret)
		goto free_worker;
	w->out = w->arena.base;
	ret = merge_create(&w->merge);
	if (ret)
		goto free_arena;
	merge_set_offloads(w->merge, cfg->offloads);
	ret = wg_worker_create(&w->wg, cfg->wg, cfg->id);
	if (ret)
		goto destroy_merge;
	ret = w->ops->open(&w->engine, &cfg->engine);
	if (ret)
		goto destroy_wg;
	ret = read_channel(w, cfg->tun_fd, WORKER_TUN, cfg->reads);
	if (ret)
		goto close_engine;
	*out = w;
	return 0;

close_engine:
	w->ops->close(w->engine);
destroy_wg:
	wg_worker_destroy(w->wg);
destroy_merge:
	merge_destroy(w->merge);
free_arena:
	arena_fini(&w->arena);
free_worker:
	free(w);
	return ret;
}

int worker_start(struct worker *w)
{
	int ret = -pthread_create(&w->thread, NULL, worker_main, w);

	w->is_started = ret == 0;
	return ret;
}

void worker_stop(struct worker *w)
{
	if (!w || !w->is_started)
		return;
	atomic_store_explicit(&w->is_stopping, true, memory_order_release);
	w->ops->wake(w->engine);
	pthread_join(w->thread, NULL);
	w->is_started = false;
}

void worker_destroy(struct worker *w)
{
	if (!w)
		return;
	worker_stop(w);
	w->ops->close(w->engine);
	wg_worker_destroy(w->wg);
	merge_destroy(w->merge);
	arena_fini(&w->arena);
	free(w);
}

/* syscalls: sched_yield */
void worker_set_sockets(struct worker *w, const int fd[2], unsigned reads, unsigned offloads)
{
	w->new_sock[0] = fd[0];
	w->new_sock[1] = fd[1];
	w->new_reads = reads & w->cfg.reads;
	w->new_offloads = offloads & (OFFLOAD_UDP_GSO | OFFLOAD_UDP_GRO);
	if (!w->is_started) {
		switch_sockets(w);
		return;
	}
	/* release: new_sock above; acquire in worker_main */
	atomic_store_explicit(&w->has_new_sockets, true, memory_order_release);
	while (atomic_load_explicit(&w->has_new_sockets, memory_order_acquire)) {
		w->ops->wake(w->engine);
		sched_yield();
	}
}

void worker_forget_paths(struct worker *w)
{
	atomic_store_explicit(&w->has_new_routes, true, memory_order_relaxed);
}

void worker_drops(const struct worker *w, uint64_t out[WORKER_DROP_N])
{
	for (unsigned i = 0; i < WORKER_DROP_N; i++)
		out[i] += atomic_load_explicit(&w->drops[i], memory_order_relaxed);
}

struct worker_count worker_counts(const struct worker *w)
{
	return (struct worker_count){
		.rx_packets = atomic_load_explicit(&w->rx_packets, memory_order_relaxed),
		.tx_packets = atomic_load_explicit(&w->tx_packets, memory_order_relaxed),
	};
}

unsigned worker_offloads(const struct worker *w)
{
	return atomic_load_explicit(&w->offloads, memory_order_relaxed);
}
