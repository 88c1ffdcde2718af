/* The data path in memory, without sockets and TUN: figures seal_ns_per_packet,
 * seal_gbps, open_ns_per_packet, part of the tunnels bench. */
#ifndef BENCH_TRAINS_H
#define BENCH_TRAINS_H

#include "base/compiler.h"
#include "bench/scenario.h"

/* crypto_init() has been called. 0 or negative errno. */
MUST_CHECK int trains_run(struct scene *s);

#endif
