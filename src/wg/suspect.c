/* See suspect.h. */
#include "wg/suspect.h"
#include <string.h>

void suspects_init(struct suspects *s, const struct sipkey *hash_key)
{
	memset(s, 0, sizeof(*s));
	s->hash_key = *hash_key;
}

static struct suspect *set_of(struct suspects *s, const uint8_t key[SUSPECT_KEY])
{
	return s->set[siphash13(&s->hash_key, key, SUSPECT_KEY) % SUSPECT_SETS];
}

static bool is_within(uint64_t since_ns, uint64_t span_ns, uint64_t now_ns)
{
	return since_ns && now_ns < since_ns + span_ns;
}

/* The entry, if it failed within SUSPECT_MEMORY; NULL if not. */
static struct suspect *find(struct suspects *s, const uint8_t key[SUSPECT_KEY], uint64_t now_ns)
{
	struct suspect *set = set_of(s, key);

	for (size_t i = 0; i < SUSPECT_WAYS; i++)
		if (is_within(set[i].fail_ns, SUSPECT_MEMORY, now_ns) &&
			memcmp(set[i].key, key, SUSPECT_KEY) == 0)
			return &set[i];
	return NULL;
}

static struct suspect *make(struct suspects *s, const uint8_t key[SUSPECT_KEY])
{
	struct suspect *set = set_of(s, key), *oldest = &set[0];

	for (size_t i = 1; i < SUSPECT_WAYS; i++)
		if (set[i].fail_ns < oldest->fail_ns)
			oldest = &set[i];
	memset(oldest, 0, sizeof(*oldest));
	memcpy(oldest->key, key, SUSPECT_KEY);
	return oldest;
}

size_t suspects_allow(
	struct suspects *s, const uint8_t key[SUSPECT_KEY], bool is_home, size_t n, uint64_t now_ns)
{
	struct suspect *one = find(s, key, now_ns);
	uint32_t allowed;

	if (!one || one->score < SUSPECT_SCORE)
		return n;
	if (now_ns >= one->slot_ns + SUSPECT_SLOT) {
		one->slot_ns = now_ns;
		one->n_opened = 0;
	}
	allowed = is_home || is_within(one->pass_ns, SUSPECT_MEMORY, now_ns) ? SUSPECT_ALLOWED_MIXED
									     : SUSPECT_ALLOWED;
	allowed = allowed > one->n_opened ? allowed - one->n_opened : 0;
	if (n > allowed)
		n = allowed;
	one->n_opened += (uint32_t)n;
	return n;
}

bool suspects_judge(struct suspects *s, const uint8_t key[SUSPECT_KEY], size_t n_failed,
	size_t n_passed, uint64_t now_ns)
{
	struct suspect *one = find(s, key, now_ns);
	size_t score;

	if (!one && !n_failed)
		return false;
	if (!one)
		one = make(s, key);
	score = one->score + n_failed;
	score = score > 2 * n_passed ? score - 2 * n_passed : 0;
	one->score = score < SUSPECT_SCORE_MAX ? (uint32_t)score : SUSPECT_SCORE_MAX;
	if (n_passed)
		one->pass_ns = now_ns;
	if (n_failed) {
		one->fail_ns = now_ns;
		s->until_ns = now_ns + SUSPECT_MEMORY;
	}
	return one->score >= SUSPECT_SCORE && !is_within(one->pass_ns, SUSPECT_MEMORY, now_ns);
}
