/* Many clients that all want a session at the same moment: figures burst_*, part of the
 * handshakes bench. */
#ifndef BENCH_BURST_H
#define BENCH_BURST_H

#include "base/compiler.h"
#include "bench/scenario.h"

/* Skips what cannot be measured here. 0 or negative errno. */
MUST_CHECK int burst_run(struct scene *s);

#endif
