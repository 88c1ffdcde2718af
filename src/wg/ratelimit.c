/* A token bucket per source (base/bucket.h). An entry whose bucket is full says no more
 * than no entry, so it is as good as empty: nothing has to be swept. */
#include "wg/ratelimit.h"
#include "base/bucket.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ratelimit_entry {
	uint8_t key[RATELIMIT_KEY];
	struct bucket bucket;
};

int ratelimit_init(struct ratelimit *r, const struct ratelimit_rule *rule)
{
	r->token_ns = NSEC_PER_SEC / rule->per_sec;
	r->burst = rule->burst;
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
	struct ratelimit_entry *empty = NULL;

	for (size_t i = 0; i < RATELIMIT_WAYS; i++) {
		if (bucket_is_full(&set[i].bucket, now_ns))
			empty = &set[i];
		else if (!memcmp(set[i].key, key, RATELIMIT_KEY))
			return &set[i];
	}
	if (!empty)
		return NULL;
	memcpy(empty->key, key, RATELIMIT_KEY);
	bucket_fill(&empty->bucket);
	return empty;
}

bool ratelimit_allow(struct ratelimit *r, const uint8_t key[RATELIMIT_KEY], uint64_t now_ns)
{
	struct ratelimit_entry *e = find(r, key, now_ns);

	return e && bucket_take(&e->bucket, r->token_ns, r->burst, now_ns);
}
