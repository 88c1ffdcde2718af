/* A peer's endpoint: a sequence lock over words that are atomics themselves. */
#include "wg/device.h"

bool endpoint_get(struct endpoint_cell *c, struct wg_endpoint *out)
{
	uint64_t word[ARRAY_LEN(c->word)];
	uint32_t seq;

	if (!atomic_load_explicit(&c->is_set, memory_order_acquire))
		return false;
	do {
		/* acquire: the words are not read before it */
		seq = atomic_load_explicit(&c->seq, memory_order_acquire);
		for (size_t i = 0; i < ARRAY_LEN(word); i++)
			word[i] = atomic_load_explicit(&c->word[i], memory_order_acquire);
	} while ((seq & 1) || atomic_load_explicit(&c->seq, memory_order_relaxed) != seq);
	memcpy(out, word, sizeof(*out));
	return true;
}

void endpoint_set(struct endpoint_cell *c, const struct wg_endpoint *e)
{
	uint64_t word[ARRAY_LEN(c->word)], differ = 0;

	memcpy(word, e, sizeof(word));
	for (size_t i = 0; i < ARRAY_LEN(word); i++)
		differ |= word[i] ^ atomic_load_explicit(&c->word[i], memory_order_relaxed);
	if (!differ && atomic_load_explicit(&c->is_set, memory_order_relaxed))
		return;
	while (atomic_flag_test_and_set_explicit(&c->busy, memory_order_acquire))
		;
	atomic_fetch_add_explicit(&c->seq, 1, memory_order_acq_rel);
	for (size_t i = 0; i < ARRAY_LEN(word); i++)
		/* release: after the odd sequence number */
		atomic_store_explicit(&c->word[i], word[i], memory_order_release);
	atomic_fetch_add_explicit(&c->seq, 1, memory_order_release);
	atomic_store_explicit(&c->is_set, true, memory_order_release);
	atomic_flag_clear_explicit(&c->busy, memory_order_release);
}

void endpoint_clear_local(struct endpoint_cell *c)
{
	struct wg_endpoint e;

	if (!endpoint_get(c, &e))
		return;
	memset(e.local, 0, sizeof(e.local));
	endpoint_set(c, &e);
}
