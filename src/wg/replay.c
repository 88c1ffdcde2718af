/* A ring of 128 words of 64 bits (RFC 6479): nothing is ever shifted. Counter c
 * has bit c % 64 of word c / 64 % 128. When the window moves on, the words
 * between the old and the new front are cleared; the front word is only partly
 * used, so 64 bits of the ring are slack and the window is 8128. */
#include "wg/replay.h"
#include "base/compiler.h"
#include <string.h>

void replay_init(struct replay *r)
{
	atomic_flag_clear(&r->busy);
	r->next = 0;
	memset(r->map, 0, sizeof(r->map));
}

static void lock(struct replay *r)
{
	/* acquire: pairs with the release in unlock */
	while (atomic_flag_test_and_set_explicit(&r->busy, memory_order_acquire))
		cpu_relax();
}

static void unlock(struct replay *r)
{
	/* release: the window is whole again for the next holder */
	atomic_flag_clear_explicit(&r->busy, memory_order_release);
}

static uint64_t *word_of(struct replay *r, uint64_t counter)
{
	return &r->map[counter / 64 % REPLAY_WORDS];
}

/* Move the front so that counter is the greatest; its word is cleared if new. */
static void advance(struct replay *r, uint64_t counter)
{
	/* The word of the greatest counter so far; before the first packet word 0
	 * counts as entered: it is zero. */
	uint64_t from = r->next ? (r->next - 1) / 64 : 0, to = counter / 64;
	uint64_t n = to - from < REPLAY_WORDS ? to - from : REPLAY_WORDS;

	for (uint64_t i = 1; i <= n; i++)
		r->map[(from + i) % REPLAY_WORDS] = 0;
	r->next = counter + 1;
}

static bool check_one(struct replay *r, uint64_t counter)
{
	uint64_t *word, bit = 1ULL << counter % 64;

	if (counter >= REPLAY_REJECT_AFTER)
		return false;
	if (counter >= r->next)
		advance(r, counter);
	else if (r->next - 1 - counter > REPLAY_WINDOW)
		return false;
	word = word_of(r, counter);
	if (*word & bit)
		return false;
	*word |= bit;
	return true;
}

/* n consecutive new counters from first on: clear and set whole words. */
static void take_run(struct replay *r, uint64_t first, size_t n)
{
	uint64_t last = first + n - 1;

	advance(r, last);
	for (uint64_t c = first; c <= last;) {
		uint64_t room = 64 - c % 64, left = last - c + 1;
		uint64_t some = room < left ? room : left;

		*word_of(r, c) |= (some == 64 ? ~0ULL : (1ULL << some) - 1) << c % 64;
		c += some;
	}
}

/* Counters as a sender in order makes them, all ahead of the window? */
static bool is_new_run(const struct replay *r, const uint64_t *counters, size_t n)
{
	if (counters[0] < r->next || counters[0] >= REPLAY_REJECT_AFTER - n || n > REPLAY_WINDOW)
		return false;
	for (size_t i = 1; i < n; i++)
		if (counters[i] != counters[0] + i)
			return false;
	return true;
}

void replay_check_train(struct replay *r, const uint64_t *counters, size_t n, bool *fresh)
{
	if (!n)
		return;
	lock(r);
	if (is_new_run(r, counters, n)) {
		take_run(r, counters[0], n);
		memset(fresh, true, n);
	} else {
		for (size_t i = 0; i < n; i++)
			fresh[i] = check_one(r, counters[i]);
	}
	unlock(r);
}

bool replay_check(struct replay *r, uint64_t counter)
{
	bool fresh;

	replay_check_train(r, &counter, 1, &fresh);
	return fresh;
}
