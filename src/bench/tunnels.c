/* The data path in memory (trains.h, ciphers.h), then many tunnels through a gateway
 * process: what a peer costs in memory, how long configuring and showing take, how
 * the packet rate changes with the number of active tunnels, and whether all of them
 * get the same share when there is too much of it.
 *
 * The rate is packets that the gateway wrote to its TUN per second of its own CPU
 * time, at overload: generator and gateway share the cores, so how fast it went on
 * the wall says as much about the generator. Both contestants send the same number
 * of the same packets, one at a time, nothing merged, by turns, while the sessions of
 * all live: nobody renews them. */
#include "base/clock.h"
#include "bench/ciphers.h"
#include "bench/rounds.h"
#include "bench/scenario.h"
#include "bench/town.h"
#include "bench/trains.h"
#include "bench/vitals.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <string.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
	PEERS = 100000,
	PEERS_QUICK = 2000,
	PEERS_SHOW = 20000,
	ACTIVE_SHOW = 64, /* that send while `wg show` runs */
	SHOWS = 5,
	ROUNDS = 7,
	ROUNDS_QUICK = 3,
	TURN_PACKETS = 400000,
	TURN_PACKETS_QUICK = 100000,
	FAIR_PACKETS = 10, /* of each peer */
	SENDERS = 2, /* threads: more than the gateway can take */
	SETTLE_MS = 3000,
	SESSION_S = 160, /* of the 180 that a session lives: a turn has to end */
};

static const struct {
	const char *id, *unit, *claim;
	bool needs_all; /* says nothing with a few peers */
} claims[] = {
	{ "bytes_per_idle_peer", "B", "must <= 1024, aim 512", true },
	{ "bytes_per_session_peer", "B", "must <= 4096, aim 3072", true },
	{ "setconf_100k_seconds", "s", "must <= 5, aim 1", true },
	{ "show_20k_seconds", "s", "must < 1", true },
	{ "show_100k_seconds", "s", "", true },
	{ "handshakes_through_udp", "1/s", "" },
	{ "rate_100k_over_1", "", "must >= 0.6, aim 0.85" },
	{ "rate_1_ns_per_packet", "ns", "" },
	{ "rate_100k_ns_per_packet", "ns", "" },
	{ "rate_1_per_second", "1/s", "" },
	{ "rate_100k_per_second", "1/s", "" },
	{ "fairness_jain", "", "1: all the same; 1/n: one has all" },
};

struct tunnels {
	struct scene *scene;
	struct town *town;
	size_t n;
	uint64_t sessions_end_ns; /* of the first of them */
	const char *doing;
	size_t total;
};

static void sample(struct tunnels *t, const char *id, double v)
{
	char claim[REPORT_TEXT_MAX];
	size_t i;

	for (i = 0; strcmp(claims[i].id, id) != 0; i++)
		assert(i + 1 < ARRAY_LEN(claims));
	if (t->n == PEERS || !strcmp(id, "show_20k_seconds"))
		snprintf(claim, sizeof(claim), "%s", claims[i].claim);
	else
		snprintf(claim, sizeof(claim), "%s%s(here %zu peers)", claims[i].claim,
			*claims[i].claim ? " " : "", t->n);
	figure_sample(report_figure(t->scene->report, id, claims[i].unit, claim), v);
}

static void tell(void *ctx, size_t done)
{
	struct tunnels *t = ctx;

	progress_show(t->scene->progress, done, t->total, t->doing);
}

static void begin(struct tunnels *t, const char *doing, size_t total)
{
	t->doing = doing;
	t->total = total;
	tell(t, 0);
}

static void sleep_ms(unsigned ms)
{
	struct timespec ts = { ms / 1000, (long)(ms % 1000) * (long)NSEC_PER_MSEC };

	nanosleep(&ts, NULL);
}

/* ---- `wg show` of 20,000 peers while some of them send. */

struct traffic {
	struct folk *folk;
	_Atomic bool is_stopping;
	int ret;
};

static void *send_on(void *arg)
{
	struct traffic *traffic = arg;
	uint64_t took_ns;

	while (!traffic->ret && !atomic_load(&traffic->is_stopping)) {
		traffic->ret = folk_load(traffic->folk, ACTIVE_SHOW, 20000);
		if (!traffic->ret)
			traffic->ret = folk_fire(traffic->folk, 1, &took_ns);
	}
	return NULL;
}

static int show_often(struct tunnels *t, const char *id)
{
	struct traffic traffic = { .folk = t->town->folk };
	pthread_t thread;
	uint64_t took_ns;
	int ret = -pthread_create(&thread, NULL, send_on, &traffic);

	if (ret)
		return ret;
	begin(t, id, SHOWS);
	for (size_t i = 0; i < SHOWS && !ret; i++) {
		ret = town_show(t->town, &took_ns);
		if (!ret)
			sample(t, id, (double)took_ns / (double)NSEC_PER_SEC);
		tell(t, i + 1);
	}
	atomic_store(&traffic.is_stopping, true);
	pthread_join(thread, NULL);
	return ret ? ret : traffic.ret;
}

static int show_20k(struct tunnels *t)
{
	uint64_t took_ns;
	int ret;

	begin(t, "keys of 20,000 peers", PEERS_SHOW);
	ret = town_settle(t->town, PEERS_SHOW, tell, t);
	if (!ret)
		ret = town_configure(t->town, &took_ns);
	if (!ret)
		ret = folk_handshake(t->town->folk, 0, ACTIVE_SHOW, NULL, NULL);
	if (!ret)
		ret = show_often(t, "show_20k_seconds");
	town_leave(t->town);
	return ret;
}

/* ---- Memory. */

static int handshake_all(struct tunnels *t, const char *doing)
{
	uint64_t began_ns = clock_now_ns();
	int ret;

	begin(t, doing, t->n);
	ret = folk_handshake(t->town->folk, 0, t->n, tell, t);
	if (!ret)
		sample(t, "handshakes_through_udp",
			(double)t->n * (double)NSEC_PER_SEC / (double)(clock_now_ns() - began_ns));
	return ret;
}

static int per_peer(struct tunnels *t, const char *id, uint64_t before)
{
	uint64_t now;
	int ret;

	/* What was just replaced goes after a grace period. */
	if (t->scene->is_quick)
		return 0;
	sleep_ms(1500);
	ret = vitals_resident(t->town->pid, &now);
	if (!ret)
		sample(t, id, ((double)now - (double)before) / (double)t->n);
	return ret;
}

static int memory(struct tunnels *t)
{
	uint64_t before, took_ns;
	int ret = vitals_resident(t->town->pid, &before);

	if (ret)
		return ret;
	begin(t, "wg setconf", 1);
	ret = town_configure(t->town, &took_ns);
	if (ret)
		return ret;
	if (!t->scene->is_quick)
		sample(t, "setconf_100k_seconds", (double)took_ns / (double)NSEC_PER_SEC);
	ret = per_peer(t, "bytes_per_idle_peer", before);
	if (!ret)
		ret = handshake_all(t, "a session for each peer");
	/* The second makes the first the previous one. */
	t->sessions_end_ns = clock_now_ns() + SESSION_S * NSEC_PER_SEC;
	if (!ret)
		ret = handshake_all(t, "a second session for each peer");
	return ret ? ret : per_peer(t, "bytes_per_session_peer", before);
}

/* ---- Rate. */

struct reading {
	uint64_t cpu_ns, packets;
};

static int look(struct tunnels *t, struct reading *r)
{
	int ret = vitals_cpu(t->town->pid, &r->cpu_ns);

	return ret ? ret : vitals_packets(t->town->pid, town_ifname, &r->packets);
}

/* The reading at the moment when the gateway had nothing left to do. */
static int look_when_done(struct tunnels *t, struct reading *r)
{
	enum { QUIET = 4 }; /* readings a millisecond apart without a packet */
	struct reading now;
	int ret = look(t, r), n_quiet = 0;

	for (int i = 0; !ret && i < SETTLE_MS && n_quiet < QUIET; i++) {
		sleep_ms(1);
		ret = look(t, &now);
		if (ret)
			break;
		n_quiet = now.packets == r->packets ? n_quiet + 1 : 0;
		if (!n_quiet)
			*r = now;
	}
	return ret;
}

static int fire(
	struct tunnels *t, size_t n_active, size_t n, struct reading *got, uint64_t *took_ns)
{
	struct reading before, after;
	int ret = folk_load(t->town->folk, n_active, n);

	if (!ret)
		ret = look_when_done(t, &before);
	if (!ret)
		ret = folk_fire(t->town->folk, SENDERS, took_ns);
	if (!ret)
		ret = look_when_done(t, &after);
	if (ret)
		return ret;
	*got = (struct reading){ after.cpu_ns - before.cpu_ns, after.packets - before.packets };
	return got->packets ? 0 : -ENODATA;
}

/* One turn; *cost: CPU nanoseconds per packet. */
static int turn(struct tunnels *t, bool is_many, double *cost)
{
	size_t n = t->scene->is_quick ? TURN_PACKETS_QUICK : TURN_PACKETS;
	struct reading got;
	uint64_t took_ns;
	int ret = fire(t, is_many ? t->n : 1, n, &got, &took_ns);

	if (ret)
		return ret;
	*cost = (double)got.cpu_ns / (double)got.packets;
	sample(t, is_many ? "rate_100k_ns_per_packet" : "rate_1_ns_per_packet", *cost);
	sample(t, is_many ? "rate_100k_per_second" : "rate_1_per_second",
		(double)got.packets * (double)NSEC_PER_SEC / (double)took_ns);
	return 0;
}

static int rate(struct tunnels *t)
{
	unsigned n = t->scene->is_quick ? ROUNDS_QUICK : ROUNDS;
	double one = 0, many = 0;
	int ret = 0;

	begin(t, "packet rate of one tunnel and of all", n);
	for (unsigned i = 0; i < n && !ret && clock_now_ns() < t->sessions_end_ns; i++) {
		/* Each round begins with the other one. */
		ret = turn(t, i % 2, i % 2 ? &many : &one);
		if (!ret)
			ret = turn(t, !(i % 2), i % 2 ? &one : &many);
		if (!ret)
			sample(t, "rate_100k_over_1", one / many);
		tell(t, i + 1);
	}
	return ret;
}

/* ---- Fairness. */

static int peer_bytes(struct tunnels *t, uint64_t *out)
{
	int fd = lab_connect(t->town->lab, town_ifname);
	ssize_t n;

	if (fd < 0)
		return fd;
	n = vitals_peer_bytes(fd, out, t->n);
	close(fd);
	if (n < 0)
		return (int)n;
	return (size_t)n == t->n ? 0 : -EBADMSG;
}

/* Jain's index: (sum x)^2 / (n * sum x^2). */
static double jain(const uint64_t *before, const uint64_t *after, size_t n)
{
	double sum = 0, squares = 0;

	for (size_t i = 0; i < n; i++) {
		double x = (double)(after[i] - before[i]);

		sum += x;
		squares += x * x;
	}
	return squares > 0 ? sum * sum / ((double)n * squares) : 0;
}

static int fairness(struct tunnels *t)
{
	uint64_t *bytes = calloc(2 * t->n, sizeof(*bytes)), took_ns;
	struct reading got;
	int ret = bytes ? 0 : -ENOMEM;

	begin(t, "fairness at overload", 1);
	if (!ret)
		ret = peer_bytes(t, bytes);
	if (!ret && clock_now_ns() >= t->sessions_end_ns)
		goto free_bytes; /* the figure shows that it was not taken */
	if (!ret)
		ret = fire(t, t->n, FAIR_PACKETS * t->n, &got, &took_ns);
	if (!ret)
		ret = peer_bytes(t, bytes + t->n);
	if (!ret)
		sample(t, "fairness_jain", jain(bytes, bytes + t->n, t->n));
free_bytes:
	free(bytes);
	return ret;
}

static const char *const need_sessions[] = { "rate_100k_over_1", "rate_1_ns_per_packet",
	"rate_100k_ns_per_packet", "rate_1_per_second", "rate_100k_per_second", "fairness_jain" };

/* On a machine that takes minutes for all handshakes. */
static void skip_what_came_too_late(struct tunnels *t)
{
	struct report *r = t->scene->report;

	for (size_t i = 0; i < ARRAY_LEN(need_sessions); i++) {
		bool is_there = false;

		for (size_t k = 0; k < r->n_figures; k++)
			is_there |= !strcmp(r->figures[k].id, need_sessions[i]);
		if (!is_there)
			report_skip(r, need_sessions[i],
				"sessions end after 180 s: this machine is too busy for so many");
	}
}

/* ---- All of it. */

static int scale(struct tunnels *t)
{
	int ret = town_create(&t->town, t->scene->penstock);

	if (ret)
		return ret;
	t->n = t->scene->is_quick ? PEERS_QUICK : PEERS;
	if (!t->scene->is_quick)
		ret = show_20k(t);
	begin(t, "keys of all peers", t->n);
	if (!ret)
		ret = town_settle(t->town, t->n, tell, t);
	if (!ret)
		ret = memory(t);
	if (!ret)
		ret = rate(t);
	if (!ret)
		ret = fairness(t);
	if (!ret)
		skip_what_came_too_late(t);
	if (!ret && !t->scene->is_quick)
		ret = show_often(t, "show_100k_seconds");
	town_destroy(t->town);
	return ret;
}

int tunnels_run(struct scene *s)
{
	struct tunnels t = { .scene = s };
	const char *why = lab_missing(s->penstock);
	int ret;

	ret = ciphers_run(s);
	if (!ret)
		ret = crypto_init(NULL);
	if (!ret)
		ret = trains_run(s);
	if (ret < 0)
		return ret;
	for (size_t i = 0; i < ARRAY_LEN(claims); i++) {
		if (why)
			report_skip(s->report, claims[i].id, "%s", why);
		else if (s->is_quick && claims[i].needs_all)
			report_skip(s->report, claims[i].id,
				"not with --quick: few peers say nothing about many");
	}
	return why ? 0 : scale(&t);
}
