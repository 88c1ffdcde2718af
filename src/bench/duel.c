/* A turn: the transfer alone until TCP has found its pace, then with the flood until both
 * have settled, then the window that is measured. */
#include "bench/duel.h"
#include "base/clock.h"
#include "bench/rounds.h"
#include "bench/stats.h"
#include <errno.h>
#include <time.h>

int duel_pass(uint64_t ns)
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

static int watch(
	const struct duel *d, struct transfer *t, struct flood *flood, struct duel_turn *out)
{
	uint64_t bytes, sent, began;
	double seconds;
	int ret = duel_pass(d->settle_ns);

	if (ret < 0)
		return ret;
	bytes = transfer_bytes(t);
	sent = flood_sent(flood);
	began = clock_now_ns();
	ret = duel_pass(d->window_ns);
	seconds = (double)(clock_now_ns() - began) / NSEC_PER_SEC;
	out->gbps = (double)(transfer_bytes(t) - bytes) * 8e-9 / seconds;
	out->rate = (double)(flood_sent(flood) - sent) / seconds;
	return ret;
}

static int take_turn(const struct duel *d, uint16_t port, struct duel_turn *out)
{
	struct transfer *t;
	struct flood *flood;
	int ret = siege_transfer(d->siege, &t);

	if (ret < 0)
		return ret;
	ret = duel_pass(d->settle_ns);
	if (!ret)
		ret = siege_flood(d->siege, d->ammo, port, d->n_sources, &flood);
	if (!ret) {
		ret = watch(d, t, flood, out);
		flood_stop(flood);
	}
	transfer_stop(t);
	return ret;
}

int duel_round(struct duel *d)
{
	bool gateway_first = d->n % 2 == 0;
	int ret;

	assert(d->n < DUEL_ROUNDS_MAX);
	if (!gateway_first) {
		ret = take_turn(d, SIEGE_CLOSED_PORT, &d->at_closed[d->n]);
		if (ret < 0)
			return ret;
	}
	ret = take_turn(d, SIEGE_PORT, &d->at_gateway[d->n]);
	if (!ret && gateway_first)
		ret = take_turn(d, SIEGE_CLOSED_PORT, &d->at_closed[d->n]);
	if (!ret)
		d->n++;
	return ret;
}

static double median_gbps(const struct duel_turn *turns, unsigned n)
{
	double v[DUEL_ROUNDS_MAX];
	unsigned i;

	for (i = 0; i < n; i++)
		v[i] = turns[i].gbps;
	return stats_median(v, n);
}

double duel_kept(const struct duel *d)
{
	assert(d->n > 0);
	return median_gbps(d->at_gateway, d->n) / median_gbps(d->at_closed, d->n);
}
