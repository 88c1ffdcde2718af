/* The data path in memory: two devices with a session between them, trains of
 * full packets sealed by one and opened by the other. No system call, one
 * thread, time stands still. A handful of trains goes through at a time, so the
 * packets lie in the cache as they do in a gateway that has just received them.
 * Sealing and opening are contestants: each does the other half outside its
 * window, and every packet that comes out is checked there. */
#include "bench/trains.h"
#include "base/clock.h"
#include "base/rcu.h"
#include "bench/device.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	TRAIN_PACKETS = 45, /* what one UDP_SEGMENT send takes at this length */
	PACKET_LEN = DEVICE_MTU,
	TRAINS = 8, /* per window */
	PACKETS = TRAINS * TRAIN_PACKETS,
	LEFT_IP = 0x0a000001,
	RIGHT_IP = 0x0a000002,
};

struct trains {
	struct device *left; /* seals */
	struct device *right; /* opens */
	struct fake_time time;
	struct wg_endpoint left_at;
	uint8_t *room; /* TRAINS trains, segments side by side */
	size_t stride; /* from one message to the next */
	struct wg_packet pkts[PACKETS];
	struct report *report;
};

static void fill(struct trains *t)
{
	size_t i;

	for (i = 0; i < PACKETS; i++) {
		t->pkts[i].data = t->room + i * t->stride + WG_HEAD;
		t->pkts[i].len = PACKET_LEN;
		inner_packet(t->pkts[i].data, PACKET_LEN, LEFT_IP, RIGHT_IP);
		memset(t->pkts[i].data + 20, (int)i, PACKET_LEN - 20);
	}
}

static int seal(struct trains *t, size_t n_trains, struct slice *s)
{
	enum wg_sealed ret = WG_SEALED;
	struct wg_endpoint to;
	struct wg_peer *peer;
	size_t i;

	slice_begin(s);
	for (i = 0; i < n_trains && ret == WG_SEALED; i++) {
		peer = device_route(t->left, RIGHT_IP);
		ret = wg_seal(t->left->worker, peer, &t->pkts[i * TRAIN_PACKETS], TRAIN_PACKETS,
			t->time.now_ns, &to);
	}
	slice_end(s);
	return ret == WG_SEALED ? 0 : -EPROTO;
}

static int open_trains(struct trains *t, size_t n_trains, struct slice *s)
{
	const struct wg_packet *p;
	size_t i;

	slice_begin(s);
	for (i = 0; i < n_trains; i++)
		wg_open(t->right->worker, &t->pkts[i * TRAIN_PACKETS], TRAIN_PACKETS, &t->left_at,
			t->time.now_ns);
	slice_end(s);
	for (i = 0; i < n_trains * TRAIN_PACKETS; i++) {
		p = &t->pkts[i];
		if (p->drop != WG_OK || p->len != PACKET_LEN)
			return -EBADMSG;
		if (p->data[20] != (uint8_t)i || p->data[PACKET_LEN - 1] != (uint8_t)i)
			return -EBADMSG;
	}
	return 0;
}

/* Through the tunnel, n trains, each half into a slice of its own. */
static int pass(struct trains *t, uint64_t n, struct slice *sealing, struct slice *opening)
{
	size_t now;
	int ret;

	while (n) {
		now = n < TRAINS ? n : TRAINS;
		ret = seal(t, now, sealing);
		if (!ret)
			ret = open_trains(t, now, opening);
		rcu_quiescent();
		if (ret < 0)
			return ret;
		if (rounds_stopped())
			return -EINTR;
		n -= now;
	}
	return 0;
}

static int seal_turn(void *ctx, struct slice *s)
{
	struct slice unused = { 0 };

	return pass(ctx, s->n, s, &unused);
}

static int open_turn(void *ctx, struct slice *s)
{
	struct slice unused = { 0 };

	return pass(ctx, s->n, &unused, s);
}

static double ns_per_packet(const struct slice *s)
{
	return (double)s->cpu_ns / (double)(s->n * TRAIN_PACKETS);
}

static void seal_took(void *ctx, const struct slice *s)
{
	struct trains *t = ctx;

	figure_sample(report_figure(t->report, "seal_ns_per_packet", "ns", ""), ns_per_packet(s));
	figure_sample(report_figure(t->report, "seal_gbps", "Gbit/s", ""),
		PACKET_LEN * 8 / ns_per_packet(s));
}

static void open_took(void *ctx, const struct slice *s)
{
	struct trains *t = ctx;

	figure_sample(report_figure(t->report, "open_ns_per_packet", "ns", ""), ns_per_packet(s));
}

/* Hand over everything in from's outbox; data messages are opened. */
static int deliver(struct trains *t, struct device *from, struct device *to)
{
	struct wg_endpoint at;
	struct wg_packet pkt;
	struct device_message *m;
	size_t i;

	device_endpoint(&at, from == t->left ? 1 : 2);
	for (i = 0; i < from->n_out; i++) {
		m = &from->outbox[i];
		if (m->kind == WG_MSG_DATA) {
			pkt = (struct wg_packet){ .data = m->data, .len = (uint32_t)m->len };
			wg_open(to->worker, &pkt, 1, &at, t->time.now_ns);
			if (pkt.drop != WG_OK)
				return -EBADMSG;
		} else if (wg_rx_handshake(to->wg, m->data, m->len, &at, false, t->time.now_ns,
				   t->time.wall_ns) != WG_OK) {
			return -EBADMSG;
		}
	}
	from->n_out = 0;
	return 0;
}

/* One small packet asks for the session: initiation, response, and the packet
 * itself, which confirms the keys. */
static int handshake(struct trains *t)
{
	uint8_t room[WG_HEAD + 32 + WG_TAIL];
	struct wg_packet pkt = { .data = room + WG_HEAD, .len = 32 };
	struct wg_peer *peer = device_route(t->left, RIGHT_IP);
	struct wg_endpoint to;
	int ret;

	if (!peer)
		return -ENOENT;
	inner_packet(pkt.data, pkt.len, LEFT_IP, RIGHT_IP);
	if (wg_seal(t->left->worker, peer, &pkt, 1, t->time.now_ns, &to) != WG_STAGED)
		return -EPROTO;
	rcu_quiescent();
	wg_poll(t->left->wg, t->time.now_ns, t->time.wall_ns);
	ret = deliver(t, t->left, t->right);
	if (!ret)
		ret = deliver(t, t->right, t->left);
	/* The answer is in: what was staged goes out now or at the next poll. */
	wg_poll(t->left->wg, t->time.now_ns, t->time.wall_ns);
	if (!ret)
		ret = deliver(t, t->left, t->right);
	return ret;
}

static int set_up(struct trains *t)
{
	struct device_identity left, right;
	int ret;

	fake_time_init(&t->time);
	device_endpoint(&t->left_at, 1);
	device_identity_make(&left);
	device_identity_make(&right);
	ret = device_create(&t->left, &left, &t->time);
	if (!ret)
		ret = device_create(&t->right, &right, &t->time);
	if (!ret)
		ret = device_add_peer(t->left, right.public_key, RIGHT_IP, 2, &t->time);
	if (!ret)
		ret = device_add_peer(t->right, left.public_key, LEFT_IP, 1, &t->time);
	if (!ret)
		ret = handshake(t);
	crypto_wipe(&left, sizeof(left));
	crypto_wipe(&right, sizeof(right));
	if (ret < 0)
		return ret;
	t->stride = wg_sealed_len(t->left->worker, PACKET_LEN);
	t->room = malloc(PACKETS * t->stride + WG_TAIL);
	if (!t->room)
		return -ENOMEM;
	fill(t);
	return 0;
}

static int measure(struct scene *s, struct trains *t)
{
	struct rounds rounds = {
		.warm_ns = 20 * NSEC_PER_MSEC,
		.turn_ns = (s->is_quick ? 100 : 150) * NSEC_PER_MSEC,
		.n = s->is_quick ? 3 : 9,
		.progress = s->progress,
	};
	struct contestant c[] = { { "sealing trains", seal_turn, seal_took, t },
		{ "opening trains", open_turn, open_took, t } };

	return rounds_run(&rounds, c, ARRAY_LEN(c));
}

int trains_run(struct scene *s)
{
	struct trains *t = calloc(1, sizeof(*t));
	int ret;

	if (!t)
		return -ENOMEM;
	t->report = s->report;
	rcu_thread_init();
	ret = set_up(t);
	if (!ret)
		ret = measure(s, t);
	device_destroy(t->left);
	device_destroy(t->right);
	rcu_thread_fini();
	free(t->room);
	free(t);
	return ret;
}
