/* Handshakes answered per second and core.
 *
 * One device initiates under many identities in turn, the other answers. Only
 * the answering is inside the measured window: consuming the initiation, making
 * the response with a fresh ephemeral key, and the device's own housekeeping
 * (wg_poll). Every initiation comes from a source of its own and fake time
 * passes between them, so no rate limit is met. After each batch, outside the
 * window, all ephemerals of the responses must differ and the last response must
 * complete the initiator's handshake: what was measured are real handshakes. */
#include "base/clock.h"
#include "base/rcu.h"
#include "bench/burst.h"
#include "bench/device.h"
#include "bench/flood_cost.h"
#include "bench/forgery.h"
#include "bench/hist.h"
#include "bench/rounds.h"
#include "bench/scenario.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	IDENTITIES = 64, /* clients; more than one, so that no peer stays in the cache */
	BATCH = 64, /* handshakes per window: some 10 ms */
	STEPS_MAX = 100, /* seconds of fake time until a device must have initiated */
	RESPONDER_IP = 0x0a000001,
	CLIENT_IP = 0x0a010000, /* plus the number of the identity */
	PING_LEN = 32,
};

struct handshakes {
	struct device *client;
	struct device *server;
	struct device_identity ids[IDENTITIES];
	unsigned current; /* identity of the client */
	struct fake_time time;
	uint32_t source; /* endpoint number of the latest initiation */
	struct batch_entry {
		uint8_t msg[WGMSG_INITIATION_LEN];
		struct wg_endpoint from;
		struct fake_time sent;
	} batch[BATCH];
	struct hist answer_ns; /* wall time of each answer in this turn */
	struct report *report;
};

static bool is_handshake(const struct device_message *m, uint32_t type, size_t len)
{
	return m->kind == WG_MSG_HANDSHAKE && m->len == len && get_le32(m->data) == type;
}

/* Let fake time pass until the client, which has something to say, initiates. */
static int make_initiation(struct handshakes *h, struct batch_entry *out)
{
	uint8_t room[WG_HEAD + PING_LEN + WG_TAIL];
	struct wg_packet pkt;
	struct wg_endpoint to;
	struct wg_peer *peer;
	int step;

	for (step = 0; step < STEPS_MAX; step++) {
		fake_time_pass(&h->time, NSEC_PER_SEC);
		peer = device_route(h->client, RESPONDER_IP);
		if (!peer)
			return -ENOENT;
		pkt = (struct wg_packet){ .data = room + WG_HEAD, .len = PING_LEN };
		inner_packet(pkt.data, pkt.len, CLIENT_IP + h->current, RESPONDER_IP);
		if (wg_seal(h->client->worker, peer, &pkt, 1, h->time.now_ns, &to) != WG_STAGED)
			return -EPROTO;
		rcu_quiescent();
		wg_poll(h->client->wg, h->time.now_ns, h->time.wall_ns);
		if (!h->client->n_out)
			continue;
		if (!is_handshake(&h->client->outbox[0], WGMSG_INITIATION, WGMSG_INITIATION_LEN))
			return -EPROTO;
		memcpy(out->msg, h->client->outbox[0].data, sizeof(out->msg));
		h->client->n_out = 0;
		device_endpoint(&out->from, ++h->source);
		out->sent = h->time;
		return 0;
	}
	return -ETIMEDOUT;
}

/* n initiations, each under the next identity. Becoming someone else ends the
 * client's sessions, so that it always has to initiate. */
static int make_batch(struct handshakes *h, size_t n)
{
	size_t i;
	int ret;

	for (i = 0; i < n; i++) {
		h->current = (h->current + 1) % IDENTITIES;
		ret = device_become(h->client, &h->ids[h->current], &h->time);
		if (ret < 0)
			return ret;
		h->client->n_out = 0;
		ret = make_initiation(h, &h->batch[i]);
		if (ret < 0)
			return ret;
	}
	rcu_reclaim();
	return 0;
}

static int answer_batch(struct handshakes *h, size_t n, struct slice *s)
{
	uint64_t before, after;
	enum wg_drop why = WG_OK;
	size_t i;

	h->server->n_out = 0;
	slice_begin(s);
	before = clock_now_ns();
	for (i = 0; i < n && why == WG_OK; i++) {
		why = wg_rx_handshake(h->server->wg, h->batch[i].msg, sizeof(h->batch[i].msg),
			&h->batch[i].from, false, h->batch[i].sent.now_ns,
			h->batch[i].sent.wall_ns);
		after = clock_now_ns();
		hist_add(&h->answer_ns, after - before);
		before = after;
	}
	while (wg_poll(h->server->wg, h->time.now_ns, h->time.wall_ns) <= h->time.now_ns)
		;
	rcu_quiescent();
	slice_end(s);
	return why == WG_OK ? 0 : -EPROTO;
}

static int compare_ephemerals(const void *a, const void *b)
{
	return memcmp(a, b, WG_KEY_LEN);
}

static int check_answers(struct handshakes *h, size_t n)
{
	uint8_t seen[BATCH][WG_KEY_LEN];
	const struct device_message *last = NULL;
	struct wg_endpoint server;
	size_t i;

	if (h->server->n_out != n || h->server->n_lost)
		return -EBADMSG;
	for (i = 0; i < n; i++) {
		last = &h->server->outbox[i];
		if (!is_handshake(last, WGMSG_RESPONSE, WGMSG_RESPONSE_LEN))
			return -EBADMSG;
		memcpy(seen[i], last->data + offsetof(struct wgmsg_response, ephemeral),
			WG_KEY_LEN);
	}
	qsort(seen, n, sizeof(seen[0]), compare_ephemerals);
	for (i = 1; i < n; i++) {
		if (!memcmp(seen[i - 1], seen[i], WG_KEY_LEN))
			return -EBADMSG;
	}
	device_endpoint(&server, 0);
	if (wg_rx_handshake(h->client->wg, last->data, last->len, &server, false, h->time.now_ns,
		    h->time.wall_ns) != WG_OK)
		return -EBADMSG;
	return 0;
}

static int turn(void *ctx, struct slice *s)
{
	struct handshakes *h = ctx;
	uint64_t left = s->n;
	size_t n;
	int ret;

	hist_init(&h->answer_ns);
	while (left) {
		n = left < BATCH ? left : BATCH;
		ret = make_batch(h, n);
		if (!ret)
			ret = answer_batch(h, n, s);
		if (!ret)
			ret = check_answers(h, n);
		if (ret < 0)
			return ret;
		if (rounds_stopped())
			return -EINTR;
		left -= n;
	}
	return 0;
}

static void took(void *ctx, const struct slice *s)
{
	struct handshakes *h = ctx;

	figure_sample(
		report_figure(h->report, "handshakes_per_core", "1/s", "must >= 4500, aim 6300"),
		(double)s->n * NSEC_PER_SEC / (double)s->cpu_ns);
	figure_sample(report_figure(h->report, "handshake_answer_p50_us", "us", ""),
		(double)hist_percentile(&h->answer_ns, 50) / 1e3);
	figure_sample(report_figure(h->report, "handshake_answer_p99_us", "us", ""),
		(double)hist_percentile(&h->answer_ns, 99) / 1e3);
}

static int set_up(struct handshakes *h)
{
	struct device_identity server;
	unsigned i;
	int ret;

	fake_time_init(&h->time);
	device_identity_make(&server);
	ret = device_create(&h->server, &server, &h->time);
	crypto_wipe(server.secret, sizeof(server.secret));
	if (ret < 0)
		return ret;
	for (i = 0; i < IDENTITIES; i++) {
		device_identity_make(&h->ids[i]);
		ret = device_add_peer(h->server, h->ids[i].public_key, CLIENT_IP + i, 0, &h->time);
		if (ret < 0)
			return ret;
	}
	ret = device_create(&h->client, &h->ids[0], &h->time);
	if (ret < 0)
		return ret;
	return device_add_peer(h->client, server.public_key, RESPONDER_IP, 0, &h->time);
}

static int run_in_memory(struct scene *s)
{
	struct rounds rounds = {
		.warm_ns = 20 * NSEC_PER_MSEC,
		.turn_ns = (s->is_quick ? 200 : 400) * NSEC_PER_MSEC,
		.n = s->is_quick ? 3 : 9,
		.progress = s->progress,
	};
	struct handshakes *h = calloc(1, sizeof(*h));
	struct contestant c = { "answering handshakes", turn, took, h };
	int ret;

	if (!h)
		return -ENOMEM;
	h->report = s->report;
	rcu_thread_init();
	ret = set_up(h);
	if (!ret)
		ret = rounds_run(&rounds, &c, 1);
	device_destroy(h->client);
	device_destroy(h->server);
	rcu_thread_fini();
	crypto_wipe(h->ids, sizeof(h->ids));
	free(h);
	return ret;
}

int handshakes_run(struct scene *s)
{
	int ret = crypto_init(NULL);

	if (!ret)
		ret = run_in_memory(s);
	if (!ret)
		ret = burst_run(s);
	if (!ret)
		ret = flood_cost_run(s);
	if (!ret)
		ret = forgery_run(s);
	return ret;
}
