/* What data messages forged on one peer's session cost another peer: figures forged_*,
 * part of the handshakes bench. */
#ifndef BENCH_FORGERY_H
#define BENCH_FORGERY_H

#include "base/compiler.h"
#include "bench/scenario.h"

/* Skips what cannot be measured here. 0 or negative errno. */
MUST_CHECK int forgery_run(struct scene *s);

#endif
