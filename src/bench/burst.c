/* Two crowds are known to one gateway: 10,000 clients with an address each, and 2,000
 * that share one address, as behind a carrier's NAT. Timed is from the first initiation
 * sent to the last response authenticated. First initiations are made before; what the
 * clients compute later (two X25519 for each response) is inside, on the second core. */
#include "bench/burst.h"
#include "base/clock.h"
#include "bench/crowd.h"
#include "bench/siege.h"

enum {
	N_CROWDS = 2,
	ROUNDS_MAX = 3,
	LIMIT_S = 40, /* who has no session by then gets none */
	QUICK_LIMIT_S = 4,
};

/* No new round after that. */
#define ROUNDS_NS (30 * NSEC_PER_SEC)

static const struct burst_kind {
	struct crowd_plan plan;
	const char *name; /* of its figures */
	const char *doing;
} kinds[N_CROWDS] = {
	{ { .n = 10000,
		  .server = SIEGE_SERVER_TO_CROWD,
		  .port = SIEGE_PORT,
		  .first_source = SIEGE_CROWD_SOURCES },
		"burst_10000", "10,000 clients at once" },
	{ { .n = 2000,
		  .server = SIEGE_SERVER_TO_CROWD,
		  .port = SIEGE_PORT,
		  .first_source = SIEGE_CROWD_SOURCES + 20000,
		  .is_behind_nat = true },
		"burst_nat_2000", "2,000 clients behind one address" },
};

struct burst {
	struct scene *scene;
	struct siege siege;
	struct crowd *crowds[N_CROWDS];
};

static const char *id_of(char out[REPORT_ID_MAX], const struct burst_kind *k, const char *what)
{
	snprintf(out, REPORT_ID_MAX, "%s_%s", k->name, what);
	return out;
}

static void sample(const struct burst *b, const struct burst_kind *k, const char *what,
	const char *unit, const char *claim, double v)
{
	char id[REPORT_ID_MAX];

	figure_sample(report_figure(b->scene->report, id_of(id, k, what), unit, claim), v);
}

static int come_at_once(struct burst *b, unsigned kind)
{
	const struct burst_kind *k = &kinds[kind];
	struct crowd_result r;
	int ret;

	crowd_prepare(b->crowds[kind]);
	ret = crowd_run(
		b->crowds[kind], 0, (b->scene->is_quick ? QUICK_LIMIT_S : LIMIT_S) * NSEC_PER_SEC);
	if (ret < 0)
		return ret;
	crowd_result(b->crowds[kind], &r);
	sample(b, k, "seconds", "s", "must <= 30", (double)r.all_ns / NSEC_PER_SEC);
	sample(b, k, "p50_seconds", "s", "", (double)r.p50_ns / NSEC_PER_SEC);
	sample(b, k, "p99_seconds", "s", "", (double)r.p99_ns / NSEC_PER_SEC);
	sample(b, k, "served", "", "must be 1", (double)r.n_sessions / (double)k->plan.n);
	sample(b, k, "sent_per_client", "", "", (double)r.n_sent / (double)k->plan.n);
	return 0;
}

static int measure(struct burst *b)
{
	uint64_t began = clock_now_ns();
	unsigned rounds = b->scene->is_quick ? 1 : ROUNDS_MAX, round, kind;
	int ret = 0;

	for (round = 0; round < rounds && clock_now_ns() < began + ROUNDS_NS; round++) {
		for (kind = 0; kind < N_CROWDS && !ret; kind++) {
			progress_show(b->scene->progress, round * N_CROWDS + kind,
				rounds * N_CROWDS, kinds[kind].doing);
			ret = come_at_once(b, kind);
		}
		if (ret < 0)
			return ret;
	}
	return 0;
}

static int set_up(struct burst *b)
{
	struct crowd_plan plans[N_CROWDS];
	int ret = siege_init(&b->siege, b->scene->penstock, LAB_PENSTOCK);
	unsigned i;

	if (ret < 0)
		return ret;
	for (i = 0; i < N_CROWDS; i++) {
		plans[i] = kinds[i].plan;
		/* A quick run cannot wait for a second try. */
		plans[i].answers_cookies_at_once = b->scene->is_quick;
	}
	return siege_crowd(&b->siege, plans, N_CROWDS, b->crowds);
}

int burst_run(struct scene *s)
{
	struct burst b = { .scene = s };
	const char *missing = siege_missing(s->penstock, LAB_PENSTOCK);
	char id[REPORT_ID_MAX];
	unsigned i;
	int ret;

	if (missing) {
		for (i = 0; i < N_CROWDS; i++)
			report_skip(s->report, id_of(id, &kinds[i], "seconds"), "%s", missing);
		return 0;
	}
	progress_show(s->progress, 0, 1, "preparing 12,000 clients");
	ret = set_up(&b);
	if (!ret)
		ret = measure(&b);
	for (i = 0; i < N_CROWDS; i++)
		crowd_destroy(b.crowds[i]);
	siege_fini(&b.siege);
	return ret;
}
