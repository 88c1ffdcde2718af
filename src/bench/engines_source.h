/* A process of its own that sends, so that its CPU time is not the receiver's: a number of
 * datagrams in trains, or echoes at a given rate, which it times. It ends with the bench, whatever
 * ends that. One thread, the main one (see program.h), and no other may run when it is started. */
#ifndef BENCH_ENGINES_SOURCE_H
#define BENCH_ENGINES_SOURCE_H

#include "base/compiler.h"
#include "bench/hist.h"
#include <stdbool.h>
#include <stdint.h>

enum { SOURCE_LEN_MAX = 1472 };

struct source;

/* What it shall do: to UDP port `port` of the loopback. */
struct source_order {
	uint16_t port; /* host order */
	uint32_t len; /* of a datagram */
	uint64_t n; /* as fast as it can, in trains, then it ends; 0: echoes */
	double rate; /* echoes per second */
	uint64_t run_ns; /* of the echoes */
};

struct source_result {
	uint64_t n_sent; /* datagrams */
	/* Of echoes: what came back, whole; what came back otherwise; what should have been sent.
	 */
	uint64_t n_back, n_wrong, n_planned;
	/* While it sent echoes: time in which it was kept from its core, in pieces of 0.1 ms or
	 * more. */
	uint64_t stalled_ns;
};

/* cpu: where it runs, as for cpu_pin(). 0 or negative errno (-EOPNOTSUPP: no UDP_SEGMENT). */
MUST_CHECK int source_create(struct source **out, unsigned cpu);
/* NULL is fine. */
void source_destroy(struct source *s);

/* Begin. 0 or negative errno. */
MUST_CHECK int source_start(struct source *s, const struct source_order *o);
/* Wait for its end. 0; -EINTR when the bench is to stop; another negative errno, of the source if
 * it failed. */
MUST_CHECK int source_wait(struct source *s, struct source_result *r);
/* How long the echoes took, in nanoseconds; one that is lost counts as 20 ms. */
const struct hist *source_latencies(const struct source *s);

#endif
