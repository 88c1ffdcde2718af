/* Values below 32 have a bucket each. Above, a value keeps its top six bits:
 * the leading one says which power of two (the row), the next five which of its
 * 32 buckets. Row r >= 1 holds [32 << (r - 1), 64 << (r - 1)). */
#include "bench/hist.h"
#include "base/compiler.h"
#include <math.h>
#include <string.h>

static unsigned bucket_of(uint64_t v)
{
	unsigned shift;

	if (v < HIST_SUB)
		return (unsigned)v;
	shift = 63 - (unsigned)__builtin_clzll(v) - HIST_SUB_BITS;
	return (shift + 1) * HIST_SUB + (unsigned)(v >> shift) - HIST_SUB;
}

static uint64_t bucket_last(unsigned i)
{
	unsigned shift;

	if (i < HIST_SUB)
		return i;
	shift = i / HIST_SUB - 1;
	/* Wraps to UINT64_MAX in the last bucket, which is right. */
	return (((uint64_t)(i % HIST_SUB + HIST_SUB) + 1) << shift) - 1;
}

void hist_init(struct hist *h)
{
	memset(h, 0, sizeof(*h));
	h->min = UINT64_MAX;
}

void hist_add(struct hist *h, uint64_t v)
{
	h->count[bucket_of(v)]++;
	h->n++;
	if (v < h->min)
		h->min = v;
	if (v > h->max)
		h->max = v;
}

void hist_merge(struct hist *h, const struct hist *src)
{
	unsigned i;

	for (i = 0; i < HIST_BUCKETS; i++)
		h->count[i] += src->count[i];
	h->n += src->n;
	if (src->min < h->min)
		h->min = src->min;
	if (src->max > h->max)
		h->max = src->max;
}

uint64_t hist_percentile(const struct hist *h, double percent)
{
	uint64_t rank, seen = 0, last;
	unsigned i;

	assert(percent >= 0);
	assert(percent <= 100);
	if (!h->n)
		return 0;
	/* Nearest rank, counted from one. */
	rank = (uint64_t)ceil(percent / 100 * (double)h->n);
	if (rank < 1)
		rank = 1;
	if (rank > h->n)
		rank = h->n;
	for (i = 0; i < HIST_BUCKETS - 1; i++) {
		seen += h->count[i];
		if (seen >= rank)
			break;
	}
	last = bucket_last(i);
	return last < h->max ? last : h->max;
}
