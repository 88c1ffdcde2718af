/* Two contenders, our gateway and wireguard-go, each in a siege of its own. Round by
 * round each has its duel with the flood; then, one after the other, clients come to each
 * while flood and transfer go on. */
#include "bench/flood_cost.h"
#include "base/clock.h"
#include "bench/crowd.h"
#include "bench/duel.h"
#include "bench/rounds.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	AMMO = 16384, /* different initiations */
	N_KINDS = 2,
	CLIENT_INTERVAL_MS = 10,
};

/* One kind of gateway under attack. */
struct contender {
	enum lab_kind kind;
	const char *suffix; /* of its figures' ids */
	bool is_there;
	struct siege siege;
	struct flood_ammo initiations;
	struct crowd *crowd;
	struct duel duel;
	uint64_t memory; /* of the gateway after the first round */
};

struct flood_cost {
	struct scene *scene;
	struct contender contenders[N_KINDS];
	unsigned rounds;
	size_t n_clients;
	uint64_t client_limit_ns;
	size_t steps_done, steps;
};

static void show(struct flood_cost *f, const char *doing)
{
	progress_show(f->scene->progress, f->steps_done++, f->steps, doing);
}

static const char *id_of(char out[REPORT_ID_MAX], const char *name, const struct contender *c)
{
	snprintf(out, REPORT_ID_MAX, "%s%s", name, c->suffix);
	return out;
}

/* Only our own gateway is claimed something about. */
static void sample(struct flood_cost *f, const struct contender *c, const char *name,
	const char *unit, const char *claim, double v)
{
	char id[REPORT_ID_MAX];

	figure_sample(report_figure(f->scene->report, id_of(id, name, c), unit,
			      c->kind == LAB_PENSTOCK ? claim : ""),
		v);
}

static int fight(struct flood_cost *f)
{
	struct contender *c;
	unsigned round, i;
	int ret = 0;

	for (round = 0; round < f->rounds; round++) {
		for (i = 0; i < N_KINDS; i++) {
			c = &f->contenders[(i + round) % N_KINDS];
			if (!c->is_there)
				continue;
			show(f, "a transfer and a flood");
			ret = duel_round(&c->duel);
			if (ret < 0)
				return ret;
			if (round == 0)
				c->memory = siege_memory(&c->siege);
		}
	}
	return 0;
}

static void report_duel(struct flood_cost *f, const struct contender *c)
{
	const struct duel *d = &c->duel;
	unsigned i;

	sample(f, c, "flood_throughput_kept", "", "must >= 0.70, aim 0.90", duel_kept(d));
	for (i = 0; i < d->n; i++) {
		sample(f, c, "flood_gbps", "Gbit/s", "", d->at_gateway[i].gbps);
		sample(f, c, "flood_closed_port_gbps", "Gbit/s", "", d->at_closed[i].gbps);
		sample(f, c, "flood_rate", "1/s", "", d->at_gateway[i].rate);
		sample(f, c, "flood_closed_port_rate", "1/s", "", d->at_closed[i].rate);
	}
	sample(f, c, "flood_memory_growth", "KiB", "flat",
		((double)siege_memory(&c->siege) - (double)c->memory) / 1024);
}

/* ---- Clients that come meanwhile. */

static int connect_clients(struct flood_cost *f, struct contender *c)
{
	struct transfer *t;
	struct flood *flood;
	int ret = siege_transfer(&c->siege, &t);

	if (ret < 0)
		return ret;
	ret = siege_flood(&c->siege, &c->initiations, SIEGE_PORT, SIEGE_SOURCES, &flood);
	if (!ret) {
		ret = duel_pass(c->duel.settle_ns);
		if (!ret)
			ret = crowd_run(
				c->crowd, CLIENT_INTERVAL_MS * NSEC_PER_MSEC, f->client_limit_ns);
		flood_stop(flood);
	}
	transfer_stop(t);
	return ret;
}

static int measure_clients(struct flood_cost *f, struct contender *c)
{
	struct crowd_result r;
	int ret;

	show(f, "clients connecting during the flood");
	crowd_prepare(c->crowd);
	ret = connect_clients(f, c);
	if (ret < 0)
		return ret;
	crowd_result(c->crowd, &r);
	sample(f, c, "flood_handshake_p99_seconds", "s", "must <= 2, aim 1",
		(double)r.p99_ns / NSEC_PER_SEC);
	sample(f, c, "flood_handshake_p50_seconds", "s", "", (double)r.p50_ns / NSEC_PER_SEC);
	sample(f, c, "flood_clients_served", "", "", (double)r.n_sessions / (double)f->n_clients);
	return 0;
}

/* ---- Setting up. */

static int admit_crowd(struct flood_cost *f, struct contender *c)
{
	struct crowd_plan plan = { .n = f->n_clients,
		.server = SIEGE_SERVER_TO_CROWD,
		.port = SIEGE_PORT,
		.first_source = SIEGE_CROWD_SOURCES,
		.answers_cookies_at_once = true };

	return siege_crowd(&c->siege, &plan, 1, &c->crowd);
}

static int set_up(struct flood_cost *f, struct contender *c)
{
	int ret = siege_init(&c->siege, f->scene->penstock, c->kind);

	if (!ret)
		ret = flood_initiations(&c->initiations, AMMO, c->siege.server_public_key);
	if (!ret)
		ret = admit_crowd(f, c);
	c->is_there = !ret;
	c->duel.siege = &c->siege;
	c->duel.ammo = &c->initiations;
	c->duel.n_sources = SIEGE_SOURCES;
	return ret;
}

static void tear_down(struct contender *c)
{
	crowd_destroy(c->crowd);
	siege_fini(&c->siege);
	flood_ammo_fini(&c->initiations);
}

static int gather(struct flood_cost *f)
{
	const char *missing;
	char id[REPORT_ID_MAX];
	struct contender *c;
	int i, ret = 0;

	for (i = 0; i < N_KINDS && !ret; i++) {
		c = &f->contenders[i];
		missing = siege_missing(f->scene->penstock, c->kind);
		if (missing) {
			report_skip(f->scene->report, id_of(id, "flood_throughput_kept", c), "%s",
				missing);
			report_skip(f->scene->report, id_of(id, "flood_handshake_p99_seconds", c),
				"%s", missing);
			continue;
		}
		show(f, "starting gateways");
		ret = set_up(f, c);
	}
	return ret;
}

static int measure(struct flood_cost *f)
{
	struct contender *c;
	int i, ret = fight(f);

	for (i = 0; i < N_KINDS && !ret; i++) {
		c = &f->contenders[i];
		if (!c->is_there)
			continue;
		report_duel(f, c);
		ret = measure_clients(f, c);
	}
	return ret;
}

int flood_cost_run(struct scene *s)
{
	const bool quick = s->is_quick;
	const struct duel duel = { .settle_ns = (quick ? 200 : 350) * NSEC_PER_MSEC,
		.window_ns = (quick ? 500 : 1000) * NSEC_PER_MSEC };
	struct flood_cost *f = calloc(1, sizeof(*f));
	int i, ret;

	if (!f)
		return -ENOMEM;
	f->scene = s;
	f->contenders[0] = (struct contender){ .kind = LAB_PENSTOCK, .suffix = "", .duel = duel };
	f->contenders[1] = (struct contender){
		.kind = LAB_WIREGUARD_GO, .suffix = "_wireguard_go", .duel = duel
	};
	f->rounds = quick ? 1 : 7;
	f->n_clients = quick ? 100 : 400;
	f->client_limit_ns = (quick ? 2 : 20) * NSEC_PER_SEC;
	f->steps = N_KINDS * (2 + f->rounds);
	ret = gather(f);
	if (!ret)
		ret = measure(f);
	for (i = 0; i < N_KINDS; i++)
		tear_down(&f->contenders[i]);
	free(f);
	return ret;
}
