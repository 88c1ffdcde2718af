/* A histogram of 64-bit values (latencies in nanoseconds) with a bounded
 * relative error: 32 buckets for each power of two. Fixed size, no allocation,
 * cheap enough to be fed inside a measured loop. One writer. */
#ifndef BENCH_HIST_H
#define BENCH_HIST_H

#include <stdint.h>

enum {
	HIST_SUB_BITS = 5,
	HIST_SUB = 1 << HIST_SUB_BITS, /* buckets per power of two: error below 1/32 */
	HIST_BUCKETS = (64 - HIST_SUB_BITS + 1) * HIST_SUB,
};

struct hist {
	uint64_t n;
	uint64_t min, max; /* exact; min is UINT64_MAX while empty */
	uint64_t count[HIST_BUCKETS];
};

void hist_init(struct hist *h);
void hist_add(struct hist *h, uint64_t v);
/* Add all of src to h: threads keep one each and are merged at the end. */
void hist_merge(struct hist *h, const struct hist *src);

/* The value that percent (0..100) of the values do not exceed, as the largest
 * value of its bucket (never above the true maximum); at most 1/32 above the
 * exact answer, never below it. 0 while empty. */
uint64_t hist_percentile(const struct hist *h, double percent);

#endif
