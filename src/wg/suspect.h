/* Sources whose data messages keep failing to authenticate: how many more are worth
 * the cipher. Whoever sees one data message knows a receiver index that is valid for
 * minutes, and could make us open forgeries at whatever rate he can send.
 *
 * A suspect is an address and port as far as one session is concerned, or a session seen
 * from everywhere but its peer's endpoint (forgeries from ever new addresses). Its
 * score is its failures less twice its successes, so a peer under whose address somebody
 * else forges is limited only when the forgeries are more than twice what it sends
 * itself. At SUSPECT_SCORE it may have a few packets opened per SUSPECT_SLOT, which is
 * how it can show that it is better than that; more while some of them still prove
 * authentic, and where it is the peer's own endpoint.
 * A second without failures clears it.
 *
 * One worker's; plain memory, no lock. */
#ifndef WG_SUSPECT_H
#define WG_SUSPECT_H

#include "base/clock.h"
#include "base/compiler.h"
#include "base/hash.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SUSPECT_KEY = 24, /* bytes that name one */
	SUSPECT_SETS = 64,
	SUSPECT_WAYS = 4, /* full: the one that failed longest ago is forgotten */
	SUSPECT_SCORE = 64,
	SUSPECT_SCORE_MAX = 128,
	/* packets opened per slot: 3,200 and 64,000 a second */
	SUSPECT_ALLOWED = 32,
	SUSPECT_ALLOWED_MIXED = 640,
};
#define SUSPECT_SLOT (10 * NSEC_PER_MSEC)
#define SUSPECT_MEMORY NSEC_PER_SEC

struct suspect {
	uint8_t key[SUSPECT_KEY];
	uint64_t fail_ns, pass_ns; /* last time; 0: never */
	uint64_t slot_ns; /* start of the slot that n_opened counts */
	uint32_t n_opened;
	uint32_t score;
};

struct suspects {
	struct sipkey hash_key;
	uint64_t until_ns; /* nobody is suspected from then on */
	struct suspect set[SUSPECT_SETS][SUSPECT_WAYS];
};

/* hash_key: random. */
void suspects_init(struct suspects *s, const struct sipkey *hash_key);

/* Is there any suspect? The common answer is no, and costs one comparison. */
static inline bool suspects_any(const struct suspects *s, uint64_t now_ns)
{
	return now_ns < s->until_ns;
}

/* How many of n packets to open now; counts them. is_home: a peer's own endpoint, which
 * anybody may forge while the peer itself is idle: it has the larger share always. */
MUST_CHECK size_t suspects_allow(struct suspects *s, const uint8_t key[SUSPECT_KEY], bool is_home,
	size_t n, uint64_t now_ns);

/* What came of those that were opened. true: it is above the score and nothing of it
 * proved authentic within SUSPECT_MEMORY. Call when something failed or
 * suspects_any(). */
bool suspects_judge(struct suspects *s, const uint8_t key[SUSPECT_KEY], size_t n_failed,
	size_t n_passed, uint64_t now_ns);

#endif
