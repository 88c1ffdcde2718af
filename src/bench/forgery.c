/* A client connects, and its receiver index becomes known to an attacker, who sends data
 * messages for it that do not authenticate: long and short ones, from one address and
 * from many. Each has its duel with the transfer of another peer. */
#include "bench/forgery.h"
#include "base/clock.h"
#include "bench/crowd.h"
#include "bench/duel.h"
#include <errno.h>

enum { N_KINDS = 4, AMMO = 4096, CONNECT_S = 20 };

static const struct forgery_kind {
	size_t len;
	uint32_t n_sources;
	const char *name; /* of its figures */
} kinds[N_KINDS] = {
	{ 1400, 1, "forged_1400" },
	{ 1400, SIEGE_SOURCES, "forged_1400_many_sources" },
	{ 64, 1, "forged_64" },
	{ 64, SIEGE_SOURCES, "forged_64_many_sources" },
};

struct forgery {
	struct scene *scene;
	struct siege siege;
	struct crowd *victim; /* of one: whose session it is */
	struct flood_ammo ammo[N_KINDS];
	struct duel duels[N_KINDS];
};

static int connect_victim(struct forgery *f, uint32_t *index)
{
	const struct crowd_plan plan = { .n = 1,
		.server = SIEGE_SERVER_TO_CROWD,
		.port = SIEGE_PORT,
		.first_source = SIEGE_CROWD_SOURCES };
	int ret = siege_crowd(&f->siege, &plan, 1, &f->victim);

	if (ret < 0)
		return ret;
	crowd_prepare(f->victim);
	ret = crowd_run(f->victim, 0, CONNECT_S * NSEC_PER_SEC);
	return ret < 0 ? ret : crowd_confirm(f->victim, 0, index);
}

static int set_up(struct forgery *f)
{
	const bool quick = f->scene->is_quick;
	uint32_t index;
	unsigned i;
	int ret = siege_init(&f->siege, f->scene->penstock, LAB_PENSTOCK);

	if (!ret)
		ret = connect_victim(f, &index);
	for (i = 0; i < N_KINDS && !ret; i++) {
		ret = flood_forgeries(&f->ammo[i], AMMO, kinds[i].len, index);
		f->duels[i] = (struct duel){ .siege = &f->siege,
			.ammo = &f->ammo[i],
			.n_sources = kinds[i].n_sources,
			.settle_ns = (quick ? 150 : 300) * NSEC_PER_MSEC,
			.window_ns = (quick ? 300 : 1200) * NSEC_PER_MSEC };
	}
	return ret;
}

static int measure(struct forgery *f)
{
	unsigned rounds = f->scene->is_quick ? 1 : 3, round, i;
	int ret;

	for (round = 0; round < rounds; round++) {
		for (i = 0; i < N_KINDS; i++) {
			progress_show(f->scene->progress, round * N_KINDS + i, rounds * N_KINDS,
				"a transfer and forged packets");
			ret = duel_round(&f->duels[i]);
			if (ret < 0)
				return ret;
		}
	}
	return 0;
}

static void sample(struct forgery *f, unsigned kind, const char *what, const char *unit, double v)
{
	char id[REPORT_ID_MAX];

	snprintf(id, sizeof(id), "%s_%s", kinds[kind].name, what);
	figure_sample(report_figure(f->scene->report, id, unit, ""), v);
}

static void report(struct forgery *f)
{
	double kept, worst = 0;
	unsigned i, round;

	for (i = 0; i < N_KINDS; i++) {
		kept = duel_kept(&f->duels[i]);
		if (i == 0 || kept < worst)
			worst = kept;
	}
	figure_sample(report_figure(f->scene->report, "forged_throughput_kept", "", "must >= 0.95"),
		worst);
	for (i = 0; i < N_KINDS; i++) {
		sample(f, i, "kept", "", duel_kept(&f->duels[i]));
		for (round = 0; round < f->duels[i].n; round++)
			sample(f, i, "rate", "1/s", f->duels[i].at_gateway[round].rate);
	}
}

int forgery_run(struct scene *s)
{
	struct forgery f = { .scene = s };
	const char *missing = siege_missing(s->penstock, LAB_PENSTOCK);
	unsigned i;
	int ret;

	if (missing) {
		report_skip(s->report, "forged_throughput_kept", "%s", missing);
		return 0;
	}
	ret = set_up(&f);
	if (!ret)
		ret = measure(&f);
	if (!ret)
		report(&f);
	for (i = 0; i < N_KINDS; i++)
		flood_ammo_fini(&f.ammo[i]);
	crowd_destroy(f.victim);
	siege_fini(&f.siege);
	return ret;
}
