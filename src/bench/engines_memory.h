/* Data workers in memory, one and two of them: what a packet costs each, with 1, 1,000 and
 * 100,000 peers, and what the second worker adds. Part of the engines bench. */
#ifndef BENCH_ENGINES_MEMORY_H
#define BENCH_ENGINES_MEMORY_H

#include "base/compiler.h"
#include "bench/scenario.h"

/* crypto_init() has been called. 0; -EINTR; another negative errno, -EBADMSG when what
 * came out is not what went in. */
MUST_CHECK int engines_memory_run(struct scene *s);

#endif
