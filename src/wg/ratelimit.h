/* How much one source may ask for: so many per second, so many at once. A fixed
 * table; nothing is allocated after init. The caller serialises. */
#ifndef WG_RATELIMIT_H
#define WG_RATELIMIT_H

#include "base/compiler.h"
#include "base/hash.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	RATELIMIT_KEY = 24, /* bytes that name a source */
	RATELIMIT_WAYS = 8,
};

struct ratelimit_rule {
	unsigned per_sec;
	unsigned burst;
	unsigned n_sets; /* of RATELIMIT_WAYS sources; a power of two. Full: see ratelimit_allow */
};

struct ratelimit_entry;

struct ratelimit {
	struct sipkey key;
	uint64_t token_ns;
	unsigned burst;
	size_t n_sets;
	struct ratelimit_entry *entries;
};

/* 0 or -ENOMEM. The table's pages are touched as they are used. */
MUST_CHECK int ratelimit_init(struct ratelimit *r, const struct ratelimit_rule *rule);
void ratelimit_fini(struct ratelimit *r);

/* May this source have one more now? Counts it if so. A source that has been
 * quiet for burst / per_sec seconds is forgotten without loss, its bucket being full.
 * When all entries of a set belong to sources that are not (8 of them hash
 * together by a secret key), a new source is refused: the limit holds
 * in all cases, and space is back within that time. */
bool ratelimit_allow(struct ratelimit *r, const uint8_t key[RATELIMIT_KEY], uint64_t now_ns);

#endif
