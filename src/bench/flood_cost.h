/* What floods cost others: figures flood_* and forged_*, part of the handshakes bench. */
#ifndef BENCH_FLOOD_COST_H
#define BENCH_FLOOD_COST_H

#include "base/compiler.h"
#include "bench/scenario.h"

/* Skips what cannot be measured here. 0 or negative errno. */
MUST_CHECK int flood_cost_run(struct scene *s);

#endif
