/* How many handshakes one source may start: 20 per second, 5 at once. A fixed
 * table; nothing is allocated after init. The caller serialises. */
#ifndef WG_RATELIMIT_H
#define WG_RATELIMIT_H

#include "base/compiler.h"
#include "base/hash.h"
#include <stdbool.h>
#include <stdint.h>

enum {
	RATELIMIT_PER_SEC = 20,
	RATELIMIT_BURST = 5,
	RATELIMIT_WAYS = 8,
	RATELIMIT_SETS = 1024,
	RATELIMIT_MAX = RATELIMIT_WAYS * RATELIMIT_SETS, /* sources; full: see ratelimit_allow */
};

struct ratelimit_entry;

struct ratelimit {
	struct sipkey key;
	struct ratelimit_entry *entries; /* RATELIMIT_SETS sets of RATELIMIT_WAYS */
};

/* 0 or -ENOMEM. The table's pages are touched as they are used. */
MUST_CHECK int ratelimit_init(struct ratelimit *r);
void ratelimit_fini(struct ratelimit *r);

/* May this source start one more handshake now? Counts it if so. A source that
 * has been quiet for 250 ms is forgotten without loss, its bucket being full.
 * When all entries of a set belong to sources that are not (8 of them hash
 * together by a secret key), a new source is refused: the limit holds
 * in all cases, and space is back within 250 ms. */
bool ratelimit_allow(struct ratelimit *r, const uint8_t key[16], uint64_t now_ns);

#endif
