/* A running TCP transfer and a flood. Turn by turn the flood's packets go to the
 * gateway that carries the transfer, and to a closed port of the same machine: what
 * taking in so many packets costs the kernel, and the core that the attacker's thread
 * takes, are then on both sides. One thread. */
#ifndef BENCH_DUEL_H
#define BENCH_DUEL_H

#include "base/compiler.h"
#include "bench/siege.h"
#include <stdint.h>

enum { DUEL_ROUNDS_MAX = 16 };

/* What one turn measured. */
struct duel_turn {
	double gbps; /* of the transfer's payload */
	double rate; /* packets of the flood per second */
};

struct duel {
	struct siege *siege;
	const struct flood_ammo *ammo;
	uint32_t n_sources;
	uint64_t settle_ns; /* of the flood before the window, and of the transfer before that */
	uint64_t window_ns;
	struct duel_turn at_gateway[DUEL_ROUNDS_MAX], at_closed[DUEL_ROUNDS_MAX];
	unsigned n; /* rounds fought */
};

/* One more round: a turn each. The transfer is a new one in each turn, so that what a turn
 * did to TCP's timers is over with it. 0 or negative errno. */
MUST_CHECK int duel_round(struct duel *d);
/* The part of the transfer that the flood on the gateway leaves: the ratio of both
 * medians. At least one round has been fought. */
double duel_kept(const struct duel *d);

/* Let time pass. 0, or -EINTR as soon as the bench is to stop. */
MUST_CHECK int duel_pass(uint64_t ns);

#endif
