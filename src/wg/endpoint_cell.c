/* A peer's endpoint: a sequence lock over words that are atomics themselves.
 *
 * Its local half, the sticky source, is learnt from each datagram that the peer
 * sends. When a route leads elsewhere, forgetting it once would not do: the
 * peer follows our address as we follow what it writes to, and the datagrams that are
 * on their way would teach each side the former address again and again. So a
 * source that strays is not learnt for a while. After that the peer is believed:
 * it had the time to hear from our new address. (Linux asks its routing for each packet.) */
#include "wg/device.h"
#include <stdlib.h>

#define STRAY_PAUSE NSEC_PER_SEC

enum { REMOTE_WORDS = sizeof(((struct wg_endpoint *)0)->remote) / 8 };

struct endpoint_stray {
	struct rcu_node rcu;
	uint64_t word[sizeof(struct wg_endpoint) / 8];
	uint64_t until_ns;
	unsigned detour;
};

static void lock_cell(struct endpoint_cell *c)
{
	while (atomic_flag_test_and_set_explicit(&c->busy, memory_order_acquire))
		;
}

static void unlock_cell(struct endpoint_cell *c)
{
	atomic_flag_clear_explicit(&c->busy, memory_order_release);
}

/* Locked. */
static void store(struct endpoint_cell *c, const uint64_t word[])
{
	atomic_fetch_add_explicit(&c->seq, 1, memory_order_acq_rel);
	for (size_t i = 0; i < ARRAY_LEN(c->word); i++)
		/* release: after the odd sequence number */
		atomic_store_explicit(&c->word[i], word[i], memory_order_release);
	atomic_fetch_add_explicit(&c->seq, 1, memory_order_release);
	atomic_store_explicit(&c->is_set, true, memory_order_release);
}

static bool is_stored(const struct endpoint_cell *c, const uint64_t word[])
{
	uint64_t differ = 0;

	for (size_t i = 0; i < ARRAY_LEN(c->word); i++)
		differ |= word[i] ^ atomic_load_explicit(&c->word[i], memory_order_relaxed);
	return !differ && atomic_load_explicit(&c->is_set, memory_order_relaxed);
}

static void clear_local(uint64_t word[])
{
	for (size_t i = REMOTE_WORDS; i < sizeof(struct wg_endpoint) / 8; i++)
		word[i] = 0;
}

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

void endpoint_set(struct endpoint_cell *c, const struct wg_endpoint *e, uint64_t now_ns)
{
	const struct endpoint_stray *stray;
	uint64_t word[ARRAY_LEN(c->word)];

	memcpy(word, e, sizeof(word));
	if (is_stored(c, word))
		return;
	lock_cell(c);
	/* Locked: whoever publishes a stray locks after that, and sees what we store. */
	stray = rcu_read(c->stray);
	if (stray && now_ns < stray->until_ns && !memcmp(stray->word, word, sizeof(word)))
		clear_local(word);
	if (!is_stored(c, word))
		store(c, word);
	unlock_cell(c);
}

void endpoint_clear_local(struct endpoint_cell *c)
{
	struct wg_endpoint e;
	uint64_t word[ARRAY_LEN(c->word)];

	if (!endpoint_get(c, &e))
		return;
	lock_cell(c);
	for (size_t i = 0; i < ARRAY_LEN(word); i++)
		word[i] = atomic_load_explicit(&c->word[i], memory_order_relaxed);
	clear_local(word);
	store(c, word);
	unlock_cell(c);
}

static void free_stray(struct rcu_node *n)
{
	free(CONTAINER_OF(n, struct endpoint_stray, rcu));
}

static void replace_stray(struct endpoint_cell *c, struct endpoint_stray *s)
{
	struct endpoint_stray *old = atomic_load_explicit(&c->stray, memory_order_relaxed);

	rcu_publish(c->stray, s);
	if (old)
		rcu_free_later(&old->rcu, free_stray);
}

void endpoint_reroute(
	struct endpoint_cell *c, const struct wg_endpoint *e, unsigned detour, uint64_t now_ns)
{
	struct endpoint_stray *s = atomic_load_explicit(&c->stray, memory_order_relaxed);
	bool is_old = s && !memcmp(s->word, e, sizeof(s->word));
	uint64_t word[ARRAY_LEN(c->word)];

	if (!detour && is_old)
		replace_stray(c, NULL);
	if (!detour || (is_old && s->detour == detour))
		return;
	s = calloc(1, sizeof(*s));
	/* Without: forgotten once, and perhaps learnt again. */
	if (s) {
		memcpy(s->word, e, sizeof(s->word));
		s->until_ns = now_ns + STRAY_PAUSE;
		s->detour = detour;
		replace_stray(c, s);
	}
	memcpy(word, e, sizeof(word));
	lock_cell(c);
	if (is_stored(c, word)) {
		clear_local(word);
		store(c, word);
	}
	unlock_cell(c);
}

void endpoint_fini(struct endpoint_cell *c)
{
	free(atomic_load_explicit(&c->stray, memory_order_relaxed));
}
