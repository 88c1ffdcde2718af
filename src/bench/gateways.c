/* penstock bench gateway: TCP through a tunnel, by iperf3, with every engine of ours, with
 * wireguard-go and without any gateway. Each turn has a network and gateways of its own, so
 * that nobody runs beside the one that is measured; the entrants take turns, round by
 * round.
 *
 * The claims are those of an article about a gateway that became 6.36 times as fast by another
 * arrangement of its threads: 0.246 Gbit/s, then 1.564, in a network of 4.69. */
#include "base/clock.h"
#include "bench/iperf.h"
#include "bench/pair.h"
#include "bench/rounds.h"
#include "bench/scenario.h"
#include "bench/stats.h"
#include "bench/vitals.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	GATEWAYS_ROUNDS_MAX = 8,
	GATEWAYS_FEW_STREAMS = 8, /* of the entrants that differ in workers alone */
	GATEWAYS_MANY_STREAMS = 128, /* as many as iperf3 takes */
	GATEWAYS_TEXT_MAX = 96, /* part of a note */
};

#define GATEWAYS_QUIET 0.1 /* cores that others may take on a quiet machine */

/* What an entrant is there for. */
enum role {
	ROLE_LINK, /* no gateway at all */
	ROLE_BASELINE, /* the architecture that the others are to be better than */
	ROLE_ENGINE, /* may be the best of ours */
	ROLE_PLAIN, /* an engine of ours without what the baseline has not either */
	ROLE_RIVAL,
	ROLE_WORKERS, /* compared with one that has another number of workers */
};

struct entry {
	const char *id; /* its figures' ids begin with it */
	enum role role;
	const char *claim; /* of TCP with one stream */
	const char *more[8]; /* arguments of its gateways */
};

static const struct entry entries[] = {
	{ "link", ROLE_LINK, "claimed 4.69", { NULL } },
	{ "queue", ROLE_BASELINE, "claimed 0.246", { "--engine", "queue" } },
	{ "blocking", ROLE_ENGINE, "claimed 1.564", { "--engine", "blocking" } },
	{ "epoll", ROLE_ENGINE, "claimed 1.564", { "--engine", "epoll" } },
	{ "channels", ROLE_ENGINE, "claimed 1.564", { "--engine", "channels" } },
	{ "uring", ROLE_ENGINE, "claimed 1.564", { "--engine", "uring" } },
	{ "uring_sqpoll", ROLE_ENGINE, "claimed 1.564",
		{ "--engine", "uring", "--sqpoll", "2000" } },
	{ "epoll_no_offload", ROLE_PLAIN, "",
		{ "--engine", "epoll", "--no-offload", "vnet,csum,tso,uso,udp-gso,udp-gro" } },
	{ "wireguard_go", ROLE_RIVAL, "", { NULL } },
	{ "channels_workers1", ROLE_WORKERS, "", { "--engine", "channels", "--workers", "1" } },
	{ "channels_workers2", ROLE_WORKERS, "", { "--engine", "channels", "--workers", "2" } },
	{ "uring_workers1", ROLE_WORKERS, "", { "--engine", "uring", "--workers", "1" } },
	{ "uring_workers2", ROLE_WORKERS, "", { "--engine", "uring", "--workers", "2" } },
};

enum { N_ENTRIES = ARRAY_LEN(entries) };

/* The ratios of the best engine. */
enum {
	BEST_OVER_QUEUE,
	BEST_OVER_LINK,
	BEST_MANY_OVER_ONE,
	BEST_OVER_RIVAL,
	BEST_OVER_RIVAL_MANY,
	BEST_N
};

/* One transfer. NAN: was not measured. */
struct sample {
	double gbps;
	double gbit_per_cpu; /* Gbit per CPU second of both gateways */
	double gateway_cores, iperf_cores, idle_cores; /* 1: one core all the time */
};

#define MEMBER(name) offsetof(struct sample, name)

static const struct sample no_sample = { NAN, NAN, NAN, NAN, NAN };

struct entrant {
	const struct entry *entry;
	char why[LAB_TEXT_MAX]; /* it takes no part any more; empty: it does */
	/* By round. few is with one stream, or eight for those that differ in workers. */
	struct sample few[GATEWAYS_ROUNDS_MAX], many[GATEWAYS_ROUNDS_MAX];
};

struct gateways {
	struct scene *scene;
	struct entrant entrants[N_ENTRIES];
	unsigned rounds, seconds;
	char rival_version[LAB_TEXT_MAX];
};

/* ---- Measuring. */

/* 0; -EINTR; what else went wrong takes the entrant out. */
static int carry(
	struct gateways *g, struct entrant *e, struct pair *p, unsigned streams, struct sample *out)
{
	const bool has_gateways = e->entry->role != ROLE_LINK;
	const struct iperf_plan plan = { .client_ns = p->ns[0],
		.server_ns = p->ns[1],
		.server = has_gateways ? pair_inner : pair_outer,
		.streams = streams,
		.seconds = g->seconds };
	uint64_t cpu = 0, cpu_before = 0, idle, idle_before, began = clock_now_ns();
	struct iperf_result r;
	double ns;
	int ret;

	ret = vitals_idle(&idle_before);
	if (!ret && has_gateways)
		ret = pair_cpu(p, &cpu_before);
	if (!ret)
		ret = iperf_run(p->lab, &plan, &r, e->why);
	if (ret < 0)
		return ret;
	ns = (double)(clock_now_ns() - began);
	ret = vitals_idle(&idle);
	if (!ret && has_gateways)
		ret = pair_cpu(p, &cpu);
	if (ret < 0)
		return ret;
	*out = (struct sample){ .gbps = r.gbps,
		.gbit_per_cpu = (double)r.bytes * 8 / (double)(cpu - cpu_before),
		.gateway_cores = (double)(cpu - cpu_before) / ns,
		.iperf_cores = r.client_cores + r.server_cores,
		.idle_cores = (double)(idle - idle_before) / ns };
	return 0;
}

static int measure(struct gateways *g, struct entrant *e, unsigned round)
{
	const struct entry *entry = e->entry;
	const bool is_about_workers = entry->role == ROLE_WORKERS;
	struct pair p;
	int ret = pair_init(&p, g->scene->penstock, e->why);

	if (ret < 0)
		return ret;
	if (entry->role == ROLE_RIVAL)
		lab_kind_version(p.lab, LAB_WIREGUARD_GO, g->rival_version);
	if (entry->role != ROLE_LINK)
		ret = pair_tunnel(&p, entry->role == ROLE_RIVAL ? LAB_WIREGUARD_GO : LAB_PENSTOCK,
			entry->more, e->why);
	if (!ret)
		ret = carry(g, e, &p, is_about_workers ? GATEWAYS_FEW_STREAMS : 1, &e->few[round]);
	if (!ret && !is_about_workers)
		ret = carry(g, e, &p, GATEWAYS_MANY_STREAMS, &e->many[round]);
	pair_fini(&p);
	return ret;
}

/* An entrant that fails is out, the others go on. */
static int take_turn(struct gateways *g, struct entrant *e, unsigned round)
{
	int ret;

	e->why[0] = '\0';
	ret = measure(g, e, round);
	if (rounds_stopped())
		return -EINTR;
	if (!ret)
		e->why[0] = '\0';
	else if (!e->why[0])
		snprintf(e->why, sizeof(e->why), "a gateway has ended: %s", strerror(-ret));
	return 0;
}

static int run_rounds(struct gateways *g)
{
	struct entrant *e;
	unsigned round;
	size_t i;
	int ret;

	for (round = 0; round < g->rounds; round++) {
		for (i = 0; i < N_ENTRIES; i++) {
			e = &g->entrants[(i + round) % N_ENTRIES];
			progress_show(g->scene->progress, round * N_ENTRIES + i,
				g->rounds * (size_t)N_ENTRIES, e->entry->id);
			if (e->why[0])
				continue;
			ret = take_turn(g, e, round);
			if (ret < 0)
				return ret;
		}
	}
	return 0;
}

/* ---- What came of it. */

static struct entrant *find(struct gateways *g, const char *id)
{
	size_t i;

	for (i = 0; i < N_ENTRIES && strcmp(g->entrants[i].entry->id, id); i++)
		;
	assert(i < N_ENTRIES);
	return &g->entrants[i];
}

static double sample_member(const struct sample *s, size_t member)
{
	double v;

	memcpy(&v, (const char *)s + member, sizeof(v));
	return v;
}

/* Median of a member over the rounds that were measured; NAN: none was. */
static double median_at(const struct gateways *g, const struct sample *samples, size_t member)
{
	double v[GATEWAYS_ROUNDS_MAX], one;
	unsigned i;
	size_t n = 0;

	for (i = 0; i < g->rounds; i++) {
		one = sample_member(&samples[i], member);
		if (!isnan(one))
			v[n++] = one;
	}
	return n ? stats_median(v, n) : NAN;
}

static double median_gbps(const struct gateways *g, const struct sample *samples)
{
	return median_at(g, samples, MEMBER(gbps));
}

/* The engine of ours with the highest median of one stream; NULL: none ran. */
static struct entrant *best_engine(struct gateways *g)
{
	double medians[N_ENTRIES];
	size_t i;

	for (i = 0; i < N_ENTRIES; i++) {
		medians[i] = g->entrants[i].entry->role == ROLE_ENGINE
			? median_gbps(g, g->entrants[i].few)
			: NAN;
	}
	i = stats_best(medians, N_ENTRIES);
	return i == N_ENTRIES ? NULL : &g->entrants[i];
}

/* One figure of an entrant: a member of its samples. NULL: there is none in any round, and
 * why it takes no part was said. */
static struct figure *report_member(struct gateways *g, const struct entrant *e, const char *what,
	const char *unit, const struct sample *samples, size_t member)
{
	struct figure *f = NULL;
	char id[REPORT_ID_MAX];
	unsigned i;
	double v;

	snprintf(id, sizeof(id), "%s_%s", e->entry->id, what);
	for (i = 0; i < g->rounds; i++) {
		v = sample_member(&samples[i], member);
		if (isnan(v))
			continue;
		f = report_figure(g->scene->report, id, unit,
			samples == e->few && member == MEMBER(gbps) ? e->entry->claim : "");
		figure_sample(f, v);
	}
	if (!f)
		report_skip(g->scene->report, id, "%s", e->why);
	return f;
}

/* ---- Why it is not what was claimed. */

/* Where the cores went, medians. */
static const char *cores_text(
	const struct gateways *g, const struct sample *samples, char out[GATEWAYS_TEXT_MAX])
{
	snprintf(out, GATEWAYS_TEXT_MAX, "gateways %.2f, iperf3 %.2f, idle %.2f",
		median_at(g, samples, MEMBER(gateway_cores)),
		median_at(g, samples, MEMBER(iperf_cores)),
		median_at(g, samples, MEMBER(idle_cores)));
	return out;
}

static void note_throughput(const struct entrant *e, struct figure *tcp1)
{
	switch (e->entry->role) {
	case ROLE_LINK:
		figure_note(tcp1,
			"A veth pair has no wire: the kernel hands over references to superframes "
			"of up to "
			"64 KiB. This is what the cores copy, not what a network carries.");
		break;
	case ROLE_BASELINE:
		figure_note(tcp1,
			"Another machine and another program. This one has the claim's arrangement "
			"(a reader "
			"for each component, locked queues, workers, one sender; an allocation and "
			"a system "
			"call for each packet) around our state machine and cipher.");
		break;
	case ROLE_ENGINE:
		figure_note(tcp1,
			"Another machine and another program. The claim's was read and written a "
			"packet at a "
			"time; these take trains, up to 64 KiB by one system call (GSO and GRO). "
			"See "
			"epoll_no_offload for the arrangement alone.");
		break;
	default:
		break;
	}
}

/* ---- Entrants and ratios. */

static void report_usual(struct gateways *g, const struct entrant *e)
{
	struct figure *tcp1 = report_member(g, e, "tcp1_gbps", "Gbit/s", e->few, MEMBER(gbps));

	report_member(g, e, "tcp128_gbps", "Gbit/s", e->many, MEMBER(gbps));
	if (e->entry->role != ROLE_LINK)
		report_member(g, e, "gbit_per_cpu_second", "Gbit/s", e->few, MEMBER(gbit_per_cpu));
	if (tcp1)
		note_throughput(e, tcp1);
}

static void report_workers(struct gateways *g, const struct entrant *e)
{
	if (!report_member(g, e, "tcp8_gbps", "Gbit/s", e->few, MEMBER(gbps)))
		return;
	report_member(g, e, "gateway_cores", "cores", e->few, MEMBER(gateway_cores));
	report_member(g, e, "iperf_cores", "cores", e->few, MEMBER(iperf_cores));
	report_member(g, e, "idle_cores", "cores", e->few, MEMBER(idle_cores));
}

#undef MEMBER

static void report_entrants(struct gateways *g)
{
	const struct entrant *e;

	for (e = g->entrants; e < g->entrants + N_ENTRIES; e++) {
		if (e->entry->role == ROLE_WORKERS)
			report_workers(g, e);
		else
			report_usual(g, e);
	}
}

/* A ratio of two entrants, or of one with itself. */
struct ratio {
	const char *id, *claim;
	const struct entrant *over, *under;
	bool is_over_many, is_under_many; /* with 128 streams */
};

/* The quotient of each round: what slows the machine down is in both. The figure; NULL: it
 * cannot be had. */
static struct figure *report_ratio(struct gateways *g, const struct ratio *r)
{
	const struct entrant *absent = NULL;
	struct figure *f = NULL;
	unsigned i;

	for (i = 0; i < g->rounds; i++) {
		const struct sample *over = r->is_over_many ? r->over->many : r->over->few;
		const struct sample *under = r->is_under_many ? r->under->many : r->under->few;

		if (isnan(over[i].gbps) || isnan(under[i].gbps) || !(under[i].gbps > 0))
			continue;
		f = report_figure(g->scene->report, r->id, "", r->claim);
		figure_sample(f, over[i].gbps / under[i].gbps);
	}
	if (f)
		return f;
	absent = r->over->why[0] ? r->over : r->under;
	report_skip(g->scene->report, r->id, "%s: %s", absent->entry->id,
		absent->why[0] ? absent->why : "nothing came through");
	return NULL;
}

/* What the ratios of the best engine say and do not say. */
static void note_best(struct gateways *g, const struct entrant *best, struct figure *const f[])
{
	char few[GATEWAYS_TEXT_MAX], many[GATEWAYS_TEXT_MAX];

	if (f[BEST_OVER_QUEUE])
		figure_note(f[BEST_OVER_QUEUE],
			"The best is %s. The claim is of an arrangement of threads and queues "
			"alone; trains, "
			"of which the baseline has none either, are in this ratio but not in "
			"no_offload_over_queue_tcp1.",
			best->entry->id);
	if (f[BEST_OVER_LINK])
		figure_note(f[BEST_OVER_LINK],
			"The best is %s. The link here is %.1f times as fast as the claim's, since "
			"nothing is "
			"copied or computed on it, and the tunnel %.1f times.",
			best->entry->id, median_gbps(g, find(g, "link")->few) / 4.69,
			median_gbps(g, best->few) / 1.564);
	if (f[BEST_MANY_OVER_ONE])
		figure_note(f[BEST_MANY_OVER_ONE],
			"The best is %s. Cores with 1 stream: %s; with 128: %s. TCP's bursts are "
			"shorter the "
			"slower each stream is, and each is a write and an acknowledgement of its "
			"own.",
			best->entry->id, cores_text(g, best->few, few),
			cores_text(g, best->many, many));
	if (f[BEST_OVER_RIVAL])
		figure_note(f[BEST_OVER_RIVAL], "The best is %s, the other is %.60s.",
			best->entry->id, g->rival_version);
	if (f[BEST_OVER_RIVAL_MANY])
		figure_note(f[BEST_OVER_RIVAL_MANY], "The best is %s, the other is %.60s.",
			best->entry->id, g->rival_version);
}

static void report_best(struct gateways *g)
{
	static const char *const ids[BEST_N] = {
		[BEST_OVER_QUEUE] = "best_over_queue_tcp1",
		[BEST_OVER_LINK] = "best_over_link_tcp1",
		[BEST_MANY_OVER_ONE] = "best_tcp128_over_tcp1",
		[BEST_OVER_RIVAL] = "best_over_wireguard_go_tcp1",
		[BEST_OVER_RIVAL_MANY] = "best_over_wireguard_go_tcp128",
	};
	const struct entrant *best = best_engine(g), *go = find(g, "wireguard_go");
	const struct ratio ratios[BEST_N] = {
		{ ids[0], "must >= 5, claimed 6.36", best, find(g, "queue"), false, false },
		{ ids[1], "claimed 0.33", best, find(g, "link"), false, false },
		{ ids[2], "must >= 0.9, aim 1.0", best, best, true, false },
		{ ids[3], "must >= 2.3, aim 2.7", best, go, false, false },
		{ ids[4], "must >= 2.7, aim 3.8", best, go, true, true },
	};
	struct figure *figures[BEST_N];
	size_t i;

	for (i = 0; i < BEST_N; i++) {
		if (best)
			figures[i] = report_ratio(g, &ratios[i]);
		else
			report_skip(g->scene->report, ids[i], "no engine ran: epoll: %s",
				find(g, "epoll")->why);
	}
	if (best)
		note_best(g, best, figures);
}

/* What other programs took during all transfers: more than little, and the figures say more
 * about them than about gateways. */
static void report_others(struct gateways *g)
{
	const double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
	double v[N_ENTRIES];
	struct figure *f = NULL;
	unsigned round;
	size_t i, n;

	for (round = 0; round < g->rounds; round++) {
		for (i = n = 0; i < N_ENTRIES; i++) {
			const struct sample *s = &g->entrants[i].few[round];

			if (!isnan(s->gbps))
				v[n++] = fmax(0,
					cores - s->gateway_cores - s->iperf_cores - s->idle_cores);
		}
		if (!n)
			continue;
		f = report_figure(g->scene->report, "others_cores", "cores", "");
		figure_sample(f, stats_median(v, n));
	}
	if (f && figure_value(f) > GATEWAYS_QUIET)
		figure_note(f,
			"Other programs and the kernel's own threads took so much of the %.0f "
			"cores. On a "
			"machine that is not quiet an arrangement with more threads gets a larger "
			"share, and "
			"ratios mean little: run it again.",
			cores);
}

/* Two workers against one, and where the time goes. */
static void report_scaling(
	struct gateways *g, const char *id, const char *one_id, const char *two_id)
{
	const struct entrant *one = find(g, one_id), *two = find(g, two_id);
	struct figure *f = report_ratio(g, &(struct ratio){ id, "", two, one, false, false });
	char one_text[GATEWAYS_TEXT_MAX], two_text[GATEWAYS_TEXT_MAX];

	if (!f)
		return;
	figure_note(f,
		"Cores with 1 worker in each gateway: %s; with 2: %s. Of %ld cores, which both "
		"gateways "
		"and both ends of iperf3 share; one tunnel, so that one worker of each opens all "
		"of it.",
		cores_text(g, one->few, one_text), cores_text(g, two->few, two_text),
		sysconf(_SC_NPROCESSORS_ONLN));
}

/* What the arrangement brings by itself: a packet at a time, as the baseline. */
static void report_plain(struct gateways *g)
{
	const struct ratio r = { "no_offload_over_queue_tcp1", "claimed 6.36",
		find(g, "epoll_no_offload"), find(g, "queue"), false, false };
	struct figure *f = report_ratio(g, &r);

	if (f)
		figure_note(f,
			"Without trains on both sides: one worker that runs to completion against "
			"readers, "
			"locked queues, workers and a sender. Batches by recvmmsg and sendmmsg "
			"remain.");
}

/* ---- Setting up. */

static void enter(struct gateways *g)
{
	const char *missing = lab_missing(g->scene->penstock), *why;
	struct entrant *e;
	size_t i;
	unsigned round;

	if (!missing)
		missing = iperf_missing();
	for (i = 0; i < N_ENTRIES; i++) {
		e = &g->entrants[i];
		e->entry = &entries[i];
		for (round = 0; round < GATEWAYS_ROUNDS_MAX; round++)
			e->few[round] = e->many[round] = no_sample;
		why = missing;
		if (!why && e->entry->role == ROLE_RIVAL)
			why = lab_kind_missing(LAB_WIREGUARD_GO);
		if (why)
			snprintf(e->why, sizeof(e->why), "%s", why);
	}
}

int gateways_run(struct scene *s)
{
	struct gateways *g = calloc(1, sizeof(*g));
	int ret = crypto_init(NULL); /* for the keys */

	if (!g || ret < 0) {
		free(g);
		return g ? ret : -ENOMEM;
	}
	g->scene = s;
	g->rounds = s->is_quick ? 1 : 5;
	g->seconds = s->is_quick ? 1 : 3;
	static_assert(5 <= GATEWAYS_ROUNDS_MAX, "rounds");
	enter(g);
	ret = run_rounds(g);
	if (!ret) {
		report_entrants(g);
		report_best(g);
		report_plain(g);
		report_others(g);
		report_scaling(
			g, "channels2_over_1_veth", "channels_workers1", "channels_workers2");
		report_scaling(g, "uring2_over_1_veth", "uring_workers1", "uring_workers2");
	}
	free(g);
	return ret;
}
