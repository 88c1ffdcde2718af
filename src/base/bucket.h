/* A token bucket in one number: the time at which it is full again. Each token
 * taken moves that time on by one token's worth; it may not be further ahead of now
 * than the whole burst. Nothing has to be filled up by a timer, and a bucket
 * of zeros is a full one.
 *
 * Any number of threads may take from one bucket; no call blocks. */
#ifndef BASE_BUCKET_H
#define BASE_BUCKET_H

#include "base/compiler.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct bucket {
	_Atomic uint64_t full_at_ns;
};

/* Take one token; false: there is none. token_ns: the time in which one token comes
 * back; burst: tokens in a full bucket. */
MUST_CHECK static inline bool bucket_take(
	struct bucket *b, uint64_t token_ns, unsigned burst, uint64_t now_ns)
{
	/* relaxed: the number itself is all that threads share */
	uint64_t full_at = atomic_load_explicit(&b->full_at_ns, memory_order_relaxed), next;

	do {
		next = (full_at > now_ns ? full_at : now_ns) + token_ns;
		if (next > now_ns + burst * token_ns)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
		&b->full_at_ns, &full_at, next, memory_order_relaxed, memory_order_relaxed));
	return true;
}

/* Is there a token now? */
static inline bool bucket_has(
	const struct bucket *b, uint64_t token_ns, unsigned burst, uint64_t now_ns)
{
	return atomic_load_explicit(&b->full_at_ns, memory_order_relaxed) + token_ns <=
		now_ns + burst * token_ns;
}

static inline bool bucket_is_full(const struct bucket *b, uint64_t now_ns)
{
	return atomic_load_explicit(&b->full_at_ns, memory_order_relaxed) <= now_ns;
}

static inline void bucket_fill(struct bucket *b)
{
	atomic_store_explicit(&b->full_at_ns, 0, memory_order_relaxed);
}

#endif
