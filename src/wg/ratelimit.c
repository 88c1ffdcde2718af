/* A token bucket per source, in one number: the time at which it is full again. At
 * 20 per second and 5 at once each token moves that time 50 ms on, and it may not go
 * further than 250 ms ahead of now (5 tokens spent). An entry whose bucket is full says no more
 * than no entry, so it is as good as empty: nothing has to be swept. */
#include "wg/ratelimit.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ratelimit_entry {
	uint8_t key[RATELIMIT_KEY];
	uint64_t full_at_ns; /* 0: never used */
};

int ratelimit_init(struct ratelimit *r, const struct ratelimit_rule *rule)
{
	r->token_ns = NSEC_PER_SEC / rule->per_sec;
	r->burst_ns = r->token_ns * rule->burst;
	r->n_sets = rule->n_sets;
	r->entries = calloc(r->n_sets * RATELIMIT_WAYS, sizeof(*r->entries));
	if (!r->entries)
		return -ENOMEM;
	crypto_random(&r->key, sizeof(r->key));
	return 0;
}

void ratelimit_fini(struct ratelimit *r)
{
	free(r->entries);
	r->entries = NULL;
}

/* The source's entry, or one that may become it; NULL when the set is full. */
static struct ratelimit_entry *find(
	struct ratelimit *r, const uint8_t key[RATELIMIT_KEY], uint64_t now_ns)
{
	uint64_t hash = siphash13(&r->key, key, RATELIMIT_KEY);
	struct ratelimit_entry *set = &r->entries[(hash & (r->n_sets - 1)) * RATELIMIT_WAYS];
	struct ratelimit_entry *oldest = &set[0];

	for (size_t i = 0; i < RATELIMIT_WAYS; i++) {
		if (set[i].full_at_ns > now_ns && !memcmp(set[i].key, key, RATELIMIT_KEY))
			return &set[i];
		if (set[i].full_at_ns < oldest->full_at_ns)
			oldest = &set[i];
	}
	if (oldest->full_at_ns > now_ns)
		return NULL;
	memcpy(oldest->key, key, RATELIMIT_KEY);
	oldest->full_at_ns = now_ns;
	return oldest;
}

bool ratelimit_allow(struct ratelimit *r, const uint8_t key[RATELIMIT_KEY], uint64_t now_ns)
{
	struct ratelimit_entry *e = find(r, key, now_ns);

	if (!e || e->full_at_ns + r->token_ns > now_ns + r->burst_ns)
		return false;
	e->full_at_ns += r->token_ns;
	return true;
}
