/* A TCP transfer runs through a tunnel to the gateway under attack. The attacker sends
 * the same packets turn by turn to the gateway's port and to a closed port of the same
 * machine: what the transfer has left in the first case is compared with the second, so
 * that the kernel's own cost of taking in so many packets, and the core that the
 * attacker's thread takes, are on both sides. */
#include "bench/flood_cost.h"
#include "base/clock.h"
#include "bench/crowd.h"
#include "bench/rounds.h"
#include "bench/siege.h"
#include "bench/stats.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	AMMO = 16384, /* different initiations */
	ROUNDS_MAX = 8,
	N_KINDS = 2,
};

/* One kind of gateway under attack. */
struct contender {
	enum lab_kind kind;
	const char *suffix; /* of its figures' ids */
	bool is_there;
	struct siege siege;
	struct flood_ammo initiations;
	struct crowd *crowd;
	struct transfer *transfer;
	double at_gateway[ROUNDS_MAX], at_closed[ROUNDS_MAX]; /* Gbit/s */
};

struct flood_cost {
	struct scene *scene;
	struct contender contenders[N_KINDS];
	unsigned rounds;
	uint64_t settle_ns, window_ns;
	size_t n_clients;
	uint64_t client_interval_ns, client_limit_ns;
	size_t steps_done, steps;
};

static void show(struct flood_cost *f, const char *doing)
{
	progress_show(f->scene->progress, f->steps_done++, f->steps, doing);
}

/* Sleep in pieces. -EINTR when the bench is to stop. */
static int pass(uint64_t ns)
{
	const struct timespec piece = { .tv_nsec = 10 * NSEC_PER_MSEC };
	uint64_t end = clock_now_ns() + ns;

	while (clock_now_ns() < end) {
		if (rounds_stopped())
			return -EINTR;
		nanosleep(&piece, NULL);
	}
	return 0;
}

static const char *id_of(char out[REPORT_ID_MAX], const char *name, const struct contender *c)
{
	snprintf(out, REPORT_ID_MAX, "%s%s", name, c->suffix);
	return out;
}

static void sample(struct flood_cost *f, const struct contender *c, const char *name,
	const char *unit, const char *claim, double v)
{
	char id[REPORT_ID_MAX];

	figure_sample(report_figure(f->scene->report, id_of(id, name, c), unit,
			      c->kind == LAB_PENSTOCK ? claim : ""),
		v);
}

/* The transfer's Gbit/s, and the flood's packets a second, while it lasts. */
static int measure(
	struct flood_cost *f, struct contender *c, uint16_t port, double *gbps, double *rate)
{
	uint64_t bytes, sent, began;
	struct flood *flood;
	double seconds;
	int ret;

	ret = siege_flood(&c->siege, &c->initiations, port, SIEGE_SOURCES, &flood);
	if (ret < 0)
		return ret;
	ret = pass(f->settle_ns);
	bytes = transfer_bytes(c->transfer);
	sent = flood_sent(flood);
	began = clock_now_ns();
	if (!ret)
		ret = pass(f->window_ns);
	seconds = (double)(clock_now_ns() - began) / NSEC_PER_SEC;
	*gbps = (double)(transfer_bytes(c->transfer) - bytes) * 8e-9 / seconds;
	*rate = (double)(flood_sent(flood) - sent) / seconds;
	flood_stop(flood);
	return ret;
}

static int take_turns(struct flood_cost *f, struct contender *c, unsigned round)
{
	double rate;
	int ret;

	show(f, "flood on the gateway");
	ret = measure(f, c, SIEGE_PORT, &c->at_gateway[round], &rate);
	if (ret < 0)
		return ret;
	sample(f, c, "flood_gbps", "Gbit/s", "", c->at_gateway[round]);
	sample(f, c, "flood_rate", "1/s", "", rate);
	show(f, "the same flood on a closed port");
	ret = measure(f, c, SIEGE_CLOSED_PORT, &c->at_closed[round], &rate);
	if (ret < 0)
		return ret;
	sample(f, c, "flood_closed_port_gbps", "Gbit/s", "", c->at_closed[round]);
	sample(f, c, "flood_closed_port_rate", "1/s", "", rate);
	return 0;
}

static int measure_transfer(struct flood_cost *f)
{
	struct contender *c;
	unsigned round, i;
	int ret = 0;

	for (round = 0; round < f->rounds && !ret; round++) {
		for (i = 0; i < N_KINDS && !ret; i++) {
			c = &f->contenders[(i + round) % N_KINDS];
			if (c->is_there)
				ret = take_turns(f, c, round);
		}
	}
	for (i = 0; i < N_KINDS && !ret; i++) {
		c = &f->contenders[i];
		if (c->is_there)
			sample(f, c, "flood_throughput_kept", "", "must >= 0.70, aim 0.90",
				stats_median(c->at_gateway, f->rounds) /
					stats_median(c->at_closed, f->rounds));
	}
	return ret;
}

/* New clients come while flood and transfer go on. */
static int measure_clients(struct flood_cost *f, struct contender *c)
{
	struct crowd_result r;
	struct flood *flood;
	int ret;

	show(f, "clients connecting during the flood");
	crowd_prepare(c->crowd);
	ret = siege_flood(&c->siege, &c->initiations, SIEGE_PORT, SIEGE_SOURCES, &flood);
	if (ret < 0)
		return ret;
	ret = pass(f->settle_ns);
	if (!ret)
		ret = crowd_run(c->crowd, f->client_interval_ns, f->client_limit_ns);
	flood_stop(flood);
	if (ret < 0)
		return ret;
	crowd_result(c->crowd, &r);
	sample(f, c, "flood_handshake_p99_seconds", "s", "must <= 2, aim 1",
		(double)r.p99_ns / NSEC_PER_SEC);
	sample(f, c, "flood_handshake_p50_seconds", "s", "", (double)r.p50_ns / NSEC_PER_SEC);
	sample(f, c, "flood_handshakes_failed", "", "",
		(double)(f->n_clients - r.n_sessions) / (double)f->n_clients);
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
	char *sections;
	int ret;

	ret = crowd_create(
		&c->crowd, c->siege.lab, c->siege.crowd_ns, &plan, c->siege.server_public_key);
	if (ret < 0)
		return ret;
	sections = crowd_sections(c->crowd);
	if (!sections)
		return -ENOMEM;
	ret = siege_admit(&c->siege, sections);
	free(sections);
	return ret;
}

static int set_up(struct flood_cost *f, struct contender *c, char why[LAB_TEXT_MAX])
{
	int ret;

	ret = siege_init(&c->siege, f->scene->penstock, c->kind, why);
	if (ret < 0)
		return ret;
	snprintf(why, LAB_TEXT_MAX, "not set up");
	ret = flood_initiations(&c->initiations, AMMO, c->siege.server_public_key);
	if (!ret)
		ret = admit_crowd(f, c);
	if (!ret)
		ret = siege_transfer(&c->siege, &c->transfer);
	c->is_there = !ret;
	return ret;
}

static void tear_down(struct contender *c)
{
	transfer_stop(c->transfer);
	crowd_destroy(c->crowd);
	if (c->siege.lab)
		siege_fini(&c->siege);
	flood_ammo_fini(&c->initiations);
}

static void skip(struct flood_cost *f, const struct contender *c, const char *why)
{
	char id[REPORT_ID_MAX];

	report_skip(f->scene->report, id_of(id, "flood_throughput_kept", c), "%.100s", why);
	report_skip(f->scene->report, id_of(id, "flood_handshake_p99_seconds", c), "%.100s", why);
}

/* What cannot be there is skipped; that something which could be there fails is an
 * error. */
static int gather(struct flood_cost *f)
{
	const char *missing;
	struct contender *c;
	char why[LAB_TEXT_MAX];
	int i, ret = 0;

	for (i = 0; i < N_KINDS && !ret; i++) {
		c = &f->contenders[i];
		missing = lab_missing(f->scene->penstock);
		if (!missing)
			missing = lab_kind_missing(c->kind);
		if (missing) {
			skip(f, c, missing);
			continue;
		}
		show(f, "setting up gateways");
		ret = set_up(f, c, why);
		if (ret < 0 && !rounds_stopped()) {
			progress_clear(f->scene->progress);
			fprintf(stderr, "penstock bench: %s\n", why);
		}
	}
	return ret;
}

int flood_cost_run(struct scene *s)
{
	bool quick = s->is_quick;
	struct flood_cost *f = calloc(1, sizeof(*f));
	int i, ret;

	if (!f)
		return -ENOMEM;
	*f = (struct flood_cost){ .scene = s,
		.contenders = { { .kind = LAB_PENSTOCK, .suffix = "" },
			{ .kind = LAB_WIREGUARD_GO, .suffix = "_wireguard_go" } },
		.rounds = quick ? 1 : 5,
		.settle_ns = (quick ? 200 : 500) * NSEC_PER_MSEC,
		.window_ns = (quick ? 500 : 1500) * NSEC_PER_MSEC,
		.n_clients = quick ? 100 : 200,
		.client_interval_ns = 10 * NSEC_PER_MSEC,
		.client_limit_ns = (quick ? 3 : 20) * NSEC_PER_SEC };
	f->steps = N_KINDS * (2 + 2 * f->rounds);
	ret = gather(f);
	if (!ret)
		ret = measure_transfer(f);
	for (i = 0; i < N_KINDS && !ret; i++) {
		if (f->contenders[i].is_there)
			ret = measure_clients(f, &f->contenders[i]);
	}
	for (i = 0; i < N_KINDS; i++)
		tear_down(&f->contenders[i]);
	free(f);
	return ret;
}
