/* The packet path of a data worker (gateway/worker.c) as far as it goes without a kernel,
 * by one thread and by two. Opening: look ahead, wg_open, merge into superframes, which
 * are not written. Sealing: route, split a superframe, wg_seal; nothing is sent.
 *
 * Messages can be opened once. A stock of trains is sealed before each window, by
 * the threads that will open it, and each train is opened in place. In the window each
 * thread takes the trains whose receiver index names its worker; one thread alone takes all
 * of them, so that the work is the same. With a single peer there is nothing to divide:
 * two threads draw trains of the same session by turns, which shows what sharing a keypair
 * costs.
 *
 * Wall time, from the moment when the first begins to the moment when the last has
 * ended, decides how much two workers do; CPU time of the threads says what
 * a packet costs one. */
#include "bench/engines_memory.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/rcu.h"
#include "bench/engines_peers.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include "link/link.h"
#include "wire/csum.h"
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	TRAIN_PACKETS = 45, /* what one UDP_SEGMENT send takes at this length */
	PACKET_LEN = DEVICE_MTU,
	HDR_LEN = 40, /* IPv4 and TCP */
	PAYLOAD_LEN = PACKET_LEN - HDR_LEN,
	MESSAGE_LEN = WG_HEAD + (PACKET_LEN + 15) / 16 * 16 + WGMSG_DATA_TAG,
	TRAIN_LEN = TRAIN_PACKETS * MESSAGE_LEN,
	/* Trains of different threads share no cache line; an odd number of lines, so that their
	 * beginnings do not all fall into one set. */
	TRAIN_STRIDE = (TRAIN_LEN / 64 + 1) / 2 * 128 + 64,
	FRAME_LEN = sizeof(struct virtio_net_hdr) + HDR_LEN + TRAIN_PACKETS * PAYLOAD_LEN,
	BATCH_TRAINS = 4, /* as the epoll engine takes them */
	FLUSH_LEN = 256 * 1024, /* as gateway/worker.c */
	TRAINS = 400, /* of the stock: 25 MiB, more than a core's own caches. Windows of some 10 ms:
			many of them pass without an interruption */
	ROUNDS = 61,
	ROUNDS_QUICK = 15,
	SPINS = 2000, /* before the CPU is offered to others */
};

static const struct set {
	const char *name;
	size_t n;
	bool is_quick; /* also in a quick run */
} sets[] = {
	{ "1_peer", 1, true },
	{ "1000_peers", 1000, true },
	{ "100000_peers", 100000, false },
};
enum { ONE, THOUSAND, MANY, SET_N };
static_assert(ARRAY_LEN(sets) == SET_N, "names");
static_assert(TRAIN_STRIDE >= TRAIN_LEN && TRAIN_STRIDE / 64 % 2 == 1, "trains stay apart");

enum way {
	OPEN,
	SEAL,
	WAY_N,
	BESIDE = WAY_N, /* the first opens what the second seals for, at the same time */
};
static const char *const way_names[WAY_N] = { "open", "seal" };

struct mill;

/* A thread with a data worker. */
struct hand {
	/* own */
	struct mill *mill;
	unsigned id;
	struct merge *merge;
	uint8_t *out; /* a sealed train */
	struct wg_packet pkts[TRAIN_PACKETS];
	uint8_t frame[FRAME_LEN];
	uint32_t last; /* the train that was worked on last */
	/* results; read by the main thread when this one has ended */
	uint64_t began_ns, ended_ns, cpu_ns;
	size_t n_packets; /* that came out as they should */
	size_t merged_len;
	bool is_wrong;
	/* given */
	uint32_t *trains; /* its share, in order */
	size_t n_trains;
	pthread_t thread;
} CACHELINE_ALIGNED;

struct mill {
	struct scene *scene;
	struct peerset *peers; /* of the window under way */
	struct arena arena;
	uint32_t *peer_of; /* of each train */
	size_t n_trains;
	size_t first_peer; /* of the next stock: all have their turn */
	enum way way;
	unsigned n_hands;
	bool is_shared; /* both take of the same trains */
	uint8_t payload[PAYLOAD_LEN];
	uint64_t payload_sum;
	struct hand hands[PEERSET_WORKERS];
	/* any thread, each on a line of its own */
	_Atomic unsigned n_ready CACHELINE_ALIGNED;
	_Atomic size_t next CACHELINE_ALIGNED;
};

static uint8_t *train_at(const struct mill *m, uint32_t train)
{
	return m->arena.base + (size_t)train * TRAIN_STRIDE;
}

/* ---- Packets. */

static void put_headers(uint8_t *out, size_t len, uint32_t src, uint32_t dst, uint32_t seq)
{
	memset(out, 0, HDR_LEN);
	out[0] = 4 << 4 | 5;
	put_be16(out + 2, (uint16_t)len);
	put_be16(out + 4, (uint16_t)(seq / PAYLOAD_LEN));
	out[6] = 0x40; /* DF */
	out[8] = 64;
	out[9] = IPPROTO_TCP;
	put_be32(out + 12, src);
	put_be32(out + 16, dst);
	put_be16(out + 20, 40000);
	put_be16(out + 22, 5001);
	put_be32(out + 24, seq);
	out[32] = 5 << 4;
	out[33] = 0x10; /* ACK */
	put_be16(out + 34, 0xffff);
}

static void put_sum(uint8_t *out, uint64_t sum)
{
	uint16_t v = (uint16_t)~csum_fold(sum);

	memcpy(out, &v, sizeof(v));
}

/* Segment i of a stream from peer to the device, complete. */
static void put_segment(const struct mill *m, size_t peer, unsigned i, uint8_t *out)
{
	uint64_t sum;

	put_headers(out, PACKET_LEN, peerset_inner(peer), PEERSET_SINK, i * PAYLOAD_LEN);
	memcpy(out + HDR_LEN, m->payload, PAYLOAD_LEN);
	put_sum(out + 10, csum_add(0, out, 20));
	sum = csum_pseudo(out + 12, out + 16, 4, IPPROTO_TCP, PACKET_LEN - 20);
	put_sum(out + 36, csum_add(sum, out + 20, 20) + m->payload_sum);
}

/* What the TUN gives of a stream to some peer; address_frame completes it. */
static void make_frame(const struct mill *m, uint8_t frame[FRAME_LEN])
{
	struct virtio_net_hdr v = { .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
		.gso_type = VIRTIO_NET_HDR_GSO_TCPV4,
		.hdr_len = HDR_LEN,
		.gso_size = PAYLOAD_LEN,
		.csum_start = 20,
		.csum_offset = 16 };
	uint8_t *pkt = frame + sizeof(v);

	memcpy(frame, &v, sizeof(v));
	put_headers(pkt, FRAME_LEN - sizeof(v), PEERSET_SINK, 0, 0);
	for (unsigned i = 0; i < TRAIN_PACKETS; i++)
		memcpy(pkt + HDR_LEN + i * PAYLOAD_LEN, m->payload, PAYLOAD_LEN);
}

static void address_frame(uint8_t frame[FRAME_LEN], size_t peer)
{
	uint8_t *pkt = frame + sizeof(struct virtio_net_hdr);
	uint32_t l4_len = FRAME_LEN - sizeof(struct virtio_net_hdr) - 20;
	uint16_t sum;

	put_be32(pkt + 16, peerset_inner(peer));
	sum = csum_fold(csum_pseudo(pkt + 12, pkt + 16, 4, IPPROTO_TCP, l4_len));
	memcpy(pkt + 36, &sum, sizeof(sum));
}

/* ---- The work of a hand. */

static enum way way_of(const struct hand *h)
{
	if (h->mill->way != BESIDE)
		return h->mill->way;
	return h->id == 0 ? OPEN : SEAL;
}

static bool is_mine(const struct hand *h, size_t peer)
{
	const struct mill *m = h->mill;

	if (m->n_hands == 1 || m->is_shared || m->way == BESIDE)
		return h->id == 0;
	return m->peers->owner[peer] == h->id;
}

/* Seal the stock, as the peers would have. */
static void fill(struct hand *h, struct aead *aead)
{
	struct mill *m = h->mill;

	for (uint32_t t = 0; t < m->n_trains; t++) {
		uint8_t *at = train_at(m, t);

		if (!is_mine(h, m->peer_of[t]))
			continue;
		for (unsigned i = 0; i < TRAIN_PACKETS; i++) {
			h->pkts[i] = (struct wg_packet){ .data = at + i * MESSAGE_LEN + WG_HEAD,
				.len = PACKET_LEN };
			put_segment(m, m->peer_of[t], i, h->pkts[i].data);
		}
		if (!wg_clients_seal(
			    m->peers->clients, m->peer_of[t], aead, h->pkts, TRAIN_PACKETS))
			h->is_wrong = true;
	}
}

static void flush(struct hand *h)
{
	struct io_tx *tx;

	merge_finish(h->merge, &tx);
	merge_reset(h->merge);
	h->merged_len = 0;
}

static void deliver(struct hand *h)
{
	for (unsigned i = 0; i < TRAIN_PACKETS; i++) {
		const struct wg_packet *p = &h->pkts[i];

		if (p->drop != WG_OK || p->len != PACKET_LEN)
			continue;
		h->n_packets++;
		if (!merge_add(h->merge, p->data, p->len)) {
			flush(h);
			if (!merge_add(h->merge, p->data, p->len))
				h->is_wrong = true;
		}
		h->merged_len += p->len;
	}
	if (h->merged_len >= FLUSH_LEN)
		flush(h);
}

static void open_batch(struct hand *h, const uint32_t *trains, size_t n)
{
	struct mill *m = h->mill;
	struct wg_worker *w = m->peers->workers[h->id];
	struct wg_packet first[BATCH_TRAINS];
	struct wg_endpoint from;

	for (size_t i = 0; i < n; i++)
		first[i] = (struct wg_packet){ .data = train_at(m, trains[i]), .len = MESSAGE_LEN };
	wg_look_ahead(w, first, n);
	for (size_t i = 0; i < n; i++) {
		for (unsigned k = 0; k < TRAIN_PACKETS; k++)
			h->pkts[k] = (struct wg_packet){ .data = first[i].data + k * MESSAGE_LEN,
				.len = MESSAGE_LEN,
				.session = k ? NULL : first[i].session };
		peerset_endpoint(m->peer_of[trains[i]], &from);
		wg_open(w, h->pkts, TRAIN_PACKETS, &from, m->peers->time.now_ns);
		deliver(h);
	}
	flush(h);
}

static void seal_train(struct hand *h, size_t peer)
{
	struct mill *m = h->mill;
	struct wg_worker *w = m->peers->workers[h->id];
	struct wg_endpoint to;
	struct wg_peer *found;
	struct split s;
	size_t at = 0;
	uint8_t hops;

	address_frame(h->frame, peer);
	if (split_init(&s, h->frame, FRAME_LEN, true) != SPLIT_OK || s.n != TRAIN_PACKETS) {
		h->is_wrong = true;
		return;
	}
	found = wg_route(w, s.in.family, s.in.dst);
	if (!found || wg_is_loop(found, s.pkt, s.len) || !wg_outer_hops(s.pkt, s.len, &hops)) {
		h->is_wrong = true;
		return;
	}
	for (uint32_t i = 0; i < s.n; i++) {
		h->pkts[i] = (struct wg_packet){ .data = h->out + at + WG_HEAD };
		h->pkts[i].len = (uint32_t)split_segment(&s, i, h->pkts[i].data);
		at += wg_sealed_len(w, h->pkts[i].len);
	}
	if (wg_seal(w, found, h->pkts, s.n, m->peers->time.now_ns, &to) == WG_SEALED)
		h->n_packets += s.n;
}

static void work_on(struct hand *h, const uint32_t *trains, size_t n)
{
	if (way_of(h) == OPEN)
		open_batch(h, trains, n);
	for (size_t i = 0; i < n && way_of(h) == SEAL; i++)
		seal_train(h, h->mill->peer_of[trains[i]]);
	h->last = trains[n - 1];
	rcu_quiescent();
}

static void work(struct hand *h)
{
	struct mill *m = h->mill;
	size_t at = 0, n;

	for (;;) {
		if (m->is_shared)
			at = atomic_fetch_add_explicit(
				&m->next, BATCH_TRAINS, memory_order_relaxed);
		if (at >= h->n_trains)
			return;
		n = h->n_trains - at < BATCH_TRAINS ? h->n_trains - at : BATCH_TRAINS;
		work_on(h, h->trains + at, n);
		at += n;
	}
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

/* All begin together. */
static void wait_for_others(struct mill *m)
{
	/* release and acquire: what the others sealed is here */
	atomic_fetch_add_explicit(&m->n_ready, 1, memory_order_acq_rel);
	for (unsigned i = 0; atomic_load_explicit(&m->n_ready, memory_order_acquire) < m->n_hands;
		i++) {
		if (i < SPINS)
			cpu_relax();
		else
			sched_yield();
	}
}

static void *hand_main(void *arg)
{
	struct hand *h = arg;
	struct mill *m = h->mill;
	struct aead *aead;

	/* Two on one core would be no two workers. */
	if (m->n_hands > 1 && cpu_pin(h->id))
		h->is_wrong = true;
	if (aead_create(&aead)) {
		h->is_wrong = true;
		aead = NULL;
	}
	rcu_thread_init();
	if (way_of(h) == OPEN && aead)
		fill(h, aead);
	rcu_offline();
	wait_for_others(m);
	rcu_online();
	h->began_ns = clock_now_ns();
	h->cpu_ns = thread_cpu_ns();
	work(h);
	h->cpu_ns = thread_cpu_ns() - h->cpu_ns;
	h->ended_ns = clock_now_ns();
	rcu_thread_fini();
	aead_destroy(aead);
	return NULL;
}

/* ---- A window. */

/* Which peers the trains are of, and whose they are. */
static void divide(struct mill *m)
{
	for (unsigned i = 0; i < m->n_hands; i++)
		m->hands[i].n_trains = 0;
	for (uint32_t t = 0; t < m->n_trains; t++) {
		size_t peer = (m->first_peer + t) % m->peers->n;

		m->peer_of[t] = (uint32_t)peer;
		for (unsigned i = 0; i < m->n_hands; i++) {
			struct hand *h = &m->hands[i];

			if (m->is_shared || m->way == BESIDE || is_mine(h, peer))
				h->trains[h->n_trains++] = t;
		}
	}
	m->first_peer = (m->first_peer + m->n_trains) % m->peers->n;
}

/* Every payload is what was sealed. */
static bool is_opened_right(const struct mill *m)
{
	if (m->way == SEAL)
		return true;
	for (uint32_t t = 0; t < m->n_trains; t++)
		for (unsigned i = 0; i < TRAIN_PACKETS; i++)
			if (memcmp(train_at(m, t) + i * MESSAGE_LEN + WG_HEAD + HDR_LEN, m->payload,
				    PAYLOAD_LEN) != 0)
				return false;
	return true;
}

/* The last train of each hand: its peer can open it. */
static bool is_sealed_right(struct mill *m)
{
	struct aead *aead;
	bool is_right = true;

	if (aead_create(&aead))
		return false;
	for (unsigned k = 0; k < m->n_hands; k++) {
		struct hand *h = &m->hands[k];

		for (unsigned i = 0; i < TRAIN_PACKETS && h->n_packets && way_of(h) == SEAL; i++)
			is_right = is_right &&
				wg_clients_open(m->peers->clients, m->peer_of[h->last], aead,
					&h->pkts[i]) &&
				!memcmp(h->pkts[i].data + HDR_LEN, m->payload, PAYLOAD_LEN);
	}
	aead_destroy(aead);
	return is_right;
}

struct result {
	double wall_ns, cpu_ns; /* per packet */
	double cpu_ns_of[PEERSET_WORKERS]; /* per packet of each hand */
};

static int check(struct mill *m, struct result *r)
{
	uint64_t began = UINT64_MAX, ended = 0, cpu = 0;
	size_t n = 0, n_wanted = m->n_trains * TRAIN_PACKETS * (m->way == BESIDE ? 2 : 1);

	for (unsigned i = 0; i < m->n_hands; i++) {
		const struct hand *h = &m->hands[i];

		if (h->n_packets)
			r->cpu_ns_of[i] = (double)h->cpu_ns / (double)h->n_packets;
		if (h->is_wrong)
			return -EPROTO;
		began = h->began_ns < began ? h->began_ns : began;
		ended = h->ended_ns > ended ? h->ended_ns : ended;
		cpu += h->cpu_ns;
		n += h->n_packets;
	}
	/* Who shares a session and loses the CPU for long finds the window gone: replays. */
	if (!n || (n != n_wanted && !m->is_shared))
		return -EBADMSG;
	if (!is_opened_right(m) || !is_sealed_right(m))
		return -EBADMSG;
	r->wall_ns = (double)(ended - began) / (double)n;
	r->cpu_ns = (double)cpu / (double)n;
	return 0;
}

static int window(
	struct mill *m, struct peerset *peers, enum way way, unsigned n_hands, struct result *r)
{
	unsigned n = 0;
	int ret = 0;

	m->peers = peers;
	m->way = way;
	m->n_hands = n_hands;
	m->is_shared = n_hands > 1 && peers->n == 1 && way != BESIDE;
	atomic_store(&m->n_ready, 0);
	atomic_store(&m->next, 0);
	divide(m);
	for (; n < n_hands && !ret; n++) {
		struct hand *h = &m->hands[n];

		h->n_packets = 0;
		h->is_wrong = false;
		ret = -pthread_create(&h->thread, NULL, hand_main, h);
	}
	if (ret) {
		/* Those that wait for it may go. */
		n--;
		atomic_fetch_add(&m->n_ready, n_hands);
	}
	while (n--)
		pthread_join(m->hands[n].thread, NULL);
	return ret ? ret : check(m, r);
}

/* ---- Rounds and figures. */

static void sample(struct mill *m, const char *id, const char *unit, const char *claim, double v)
{
	figure_sample(report_figure(m->scene->report, id, unit, claim), v);
}

static void sample_cost(struct mill *m, enum way way, const struct set *set, unsigned n_hands,
	const struct result *r)
{
	char id[REPORT_ID_MAX];

	snprintf(id, sizeof(id), "memory_%s_%s%s_ns", way_names[way], set->name,
		n_hands > 1 ? "_2_workers" : "");
	sample(m, id, "ns", "", r->cpu_ns);
}

static void sample_ratios(struct mill *m, struct result r[SET_N][WAY_N][PEERSET_WORKERS])
{
	struct result(*k)[PEERSET_WORKERS] = r[THOUSAND];

	sample(m, "workers2_over_1_memory", "", "must >= 1.8, aim 1.95",
		k[OPEN][0].wall_ns / k[OPEN][1].wall_ns);
	sample(m, "workers2_over_1_memory_cpu", "", "the same without what others took",
		2 * k[OPEN][0].cpu_ns / k[OPEN][1].cpu_ns);
	sample(m, "workers2_over_1_memory_seal", "", "", k[SEAL][0].wall_ns / k[SEAL][1].wall_ns);
	sample(m, "workers2_over_1_memory_seal_cpu", "", "",
		2 * k[SEAL][0].cpu_ns / k[SEAL][1].cpu_ns);
	sample(m, "workers2_over_1_memory_one_peer", "", "",
		r[ONE][OPEN][0].wall_ns / r[ONE][OPEN][1].wall_ns);
}

/* One worker opens what comes from a peer, another seals what goes to it: as it is when the TUN's
 * queues are chosen by flow and the sockets by receiver index. */
static int both_directions(struct mill *m, struct peerset *peers[SET_N])
{
	char id[REPORT_ID_MAX];

	for (unsigned i = 0; i < MANY; i++) {
		struct result r = { 0 };
		int ret = rounds_stopped() ? -EINTR
					   : window(m, peers[i], BESIDE, PEERSET_WORKERS, &r);

		if (ret)
			return ret;
		snprintf(id, sizeof(id), "memory_open_%s_beside_seal_ns", sets[i].name);
		sample(m, id, "ns", "", r.cpu_ns_of[0]);
		snprintf(id, sizeof(id), "memory_seal_%s_beside_open_ns", sets[i].name);
		sample(m, id, "ns", "", r.cpu_ns_of[1]);
	}
	return 0;
}

struct kind {
	unsigned set;
	enum way way;
	unsigned n_hands;
};

static struct kind kind_of(size_t i)
{
	return (struct kind){ (unsigned)(i / (WAY_N * PEERSET_WORKERS)),
		(enum way)(i / PEERSET_WORKERS % WAY_N), (unsigned)(i % PEERSET_WORKERS) + 1 };
}

static int one_round(struct mill *m, struct peerset *peers[SET_N], size_t first)
{
	struct result r[SET_N][WAY_N][PEERSET_WORKERS] = { 0 };
	size_t n = SET_N * WAY_N * PEERSET_WORKERS;

	for (size_t i = 0; i < n; i++) {
		struct kind k = kind_of((first + i) % n);
		struct result *found = &r[k.set][k.way][k.n_hands - 1];
		int ret;

		if (!peers[k.set])
			continue;
		if (rounds_stopped())
			return -EINTR;
		ret = window(m, peers[k.set], k.way, k.n_hands, found);
		if (ret)
			return ret;
		sample_cost(m, k.way, &sets[k.set], k.n_hands, found);
	}
	sample_ratios(m, r);
	if (peers[MANY])
		sample(m, "memory_tunnels_100000_over_1", "", "",
			r[ONE][OPEN][0].cpu_ns / r[MANY][OPEN][0].cpu_ns);
	return both_directions(m, peers);
}

static int measure(struct mill *m, struct peerset *peers[SET_N])
{
	unsigned n = m->scene->is_quick ? ROUNDS_QUICK : ROUNDS;
	struct result unused = { 0 };
	int ret = 0;

	/* Warm: the stock's pages are there, and the CPU is awake. */
	for (unsigned way = 0; way < WAY_N && !ret; way++)
		ret = window(m, peers[THOUSAND], way, PEERSET_WORKERS, &unused);
	for (unsigned i = 0; i < n && !ret; i++) {
		progress_show(m->scene->progress, i, n, "one and two workers in memory");
		ret = one_round(m, peers, i * 5);
	}
	return ret;
}

/* ---- All of it. */

static void mill_fini(struct mill *m)
{
	for (unsigned i = 0; i < PEERSET_WORKERS; i++) {
		merge_destroy(m->hands[i].merge);
		free(m->hands[i].trains);
		free(m->hands[i].out);
	}
	free(m->peer_of);
	if (m->arena.base)
		arena_fini(&m->arena);
}

static int mill_init(struct mill *m, struct scene *s)
{
	int ret;

	m->scene = s;
	m->n_trains = TRAINS;
	for (unsigned i = 0; i < PAYLOAD_LEN; i++)
		m->payload[i] = (uint8_t)(i * 7 + 1);
	m->payload_sum = csum_add(0, m->payload, PAYLOAD_LEN);
	ret = arena_init(&m->arena, m->n_trains * TRAIN_STRIDE);
	m->peer_of = calloc(m->n_trains, sizeof(*m->peer_of));
	if (!ret && !m->peer_of)
		ret = -ENOMEM;
	for (unsigned i = 0; i < PEERSET_WORKERS && !ret; i++) {
		struct hand *h = &m->hands[i];

		h->mill = m;
		h->id = i;
		h->trains = calloc(m->n_trains, sizeof(*h->trains));
		h->out = malloc(TRAIN_LEN + WG_TAIL);
		ret = merge_create(&h->merge);
		if (!ret && (!h->trains || !h->out))
			ret = -ENOMEM;
		if (ret)
			break;
		merge_set_offloads(h->merge, OFFLOAD_ALL);
		make_frame(m, h->frame);
	}
	return ret;
}

static void tell(void *ctx, size_t done)
{
	struct mill *m = ctx;

	progress_show(m->scene->progress, done, sets[MANY].n, "sessions of 100,000 peers");
}

static int settle(struct mill *m, struct peerset *peers[SET_N])
{
	int ret = 0;

	rcu_thread_init();
	for (unsigned i = 0; i < SET_N && !ret; i++) {
		if (m->scene->is_quick && !sets[i].is_quick)
			report_skip(m->scene->report, "memory_tunnels_100000_over_1",
				"not with --quick: 100,000 handshakes take most of a minute");
		else
			ret = peerset_create(&peers[i], sets[i].n, i == MANY ? tell : NULL, m);
	}
	rcu_thread_fini();
	return ret;
}

int engines_memory_run(struct scene *s)
{
	struct mill *m = aligned_alloc(64, (sizeof(*m) + 63) / 64 * 64);
	struct peerset *peers[SET_N] = { 0 };
	int ret;

	if (!m)
		return -ENOMEM;
	memset(m, 0, sizeof(*m));
	if (cpu_count() < PEERSET_WORKERS) {
		report_skip(s->report, "workers2_over_1_memory", "there is one CPU");
		free(m);
		return 0;
	}
	ret = mill_init(m, s);
	if (!ret)
		ret = settle(m, peers);
	if (!ret)
		ret = measure(m, peers);
	for (unsigned i = 0; i < SET_N; i++)
		peerset_destroy(peers[i]);
	mill_fini(m);
	free(m);
	return ret;
}
