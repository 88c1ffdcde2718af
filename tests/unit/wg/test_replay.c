/* The window against a model that remembers every counter. */
#include "wg/replay.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t rng_state;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* Edges: around the window's size and around the last counter. */
static void test_edges(void **state)
{
	const uint64_t w = REPLAY_WINDOW + 1, last = REPLAY_REJECT_AFTER;
	const struct {
		uint64_t counter;
		bool fresh;
	} steps[] = { { 0, true }, { 1, true }, { 1, false }, { 9, true }, { 8, true }, { 7, true },
		{ 7, false }, { w, true }, { w - 1, true }, { w - 1, false }, { w - 2, true },
		{ 2, true }, { 2, false }, { w + 16, true }, { 3, false }, { w + 16, false },
		{ w * 4, true }, { w * 4 - (w - 1), true }, { 10, false }, { w * 4 - w, false },
		{ w * 4 - (w + 1), false }, { w * 4 - (w - 2), true }, { w * 4 + 1 - w, false },
		{ 0, false }, { last, false }, { last - 1, true }, { last, false },
		{ last - 1, false }, { last - 2, true }, { last + 1, false }, { last + 2, false },
		{ UINT64_MAX, false }, { last - 2, false }, { last - 3, true }, { 0, false },
		{ last - 1 - REPLAY_WINDOW, true }, { last - 2 - REPLAY_WINDOW, false } };
	struct replay r;

	replay_init(&r);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		assert_int_equal(replay_check(&r, steps[i].counter), steps[i].fresh);
}

static void test_sweeps(void **state)
{
	struct replay r;

	replay_init(&r);
	for (uint64_t c = 1; c <= REPLAY_WINDOW; c++)
		assert_true(replay_check(&r, c));
	assert_true(replay_check(&r, 0));
	assert_false(replay_check(&r, 0));

	replay_init(&r);
	for (uint64_t c = REPLAY_WINDOW + 1; c-- > 0;)
		assert_true(replay_check(&r, c));
	for (uint64_t c = REPLAY_WINDOW + 1; c-- > 0;)
		assert_false(replay_check(&r, c));

	replay_init(&r);
	assert_true(replay_check(&r, REPLAY_WINDOW + 1));
	assert_false(replay_check(&r, 0)); /* fell out unseen */
	assert_true(replay_check(&r, 1));
}

/* All counters ever offered, and the greatest: the definition. */
struct model {
	uint8_t *seen;
	uint64_t base, next;
};

enum { MODEL_SPAN = 1 << 20 };

static bool model_check(struct model *m, uint64_t c)
{
	if (c >= REPLAY_REJECT_AFTER)
		return false;
	if (m->next && c + REPLAY_WINDOW < m->next - 1)
		return false;
	if (m->seen[c - m->base])
		return false;
	m->seen[c - m->base] = 1;
	if (c >= m->next)
		m->next = c + 1;
	return true;
}

/* Counters of a train: a run, a run with holes and swaps, or scattered. */
static size_t make_train(uint64_t *out, uint64_t front, uint64_t base)
{
	size_t n = 1 + rng() % 64;
	uint64_t back = rng() % 4 ? rng() % 80 : rng() % 9000;
	uint64_t c = front + (rng() % 20 ? 0 : rng() % 10000);
	unsigned kind = rng() % 4;

	c = rng() % 3 || c < base + back ? c : c - back;
	for (size_t i = 0; i < n; i++) {
		out[i] = c++;
		if (kind == 1 && rng() % 8 == 0)
			c += rng() % 100;
		if (kind == 2 && i && rng() % 4 == 0) {
			uint64_t x = out[i];

			out[i] = out[i - 1];
			out[i - 1] = x;
		}
		if (kind == 3 && c > base + 100)
			c -= rng() % 100;
	}
	return n;
}

static void run_model(uint64_t base, uint64_t seed)
{
	struct model m = { calloc(MODEL_SPAN, 1), base, 0 };
	uint64_t train[64];
	size_t fresh_n = 0, old_n = 0;
	struct replay r;
	bool fresh[64];

	rng_state = seed;
	replay_init(&r);
	for (unsigned i = 0; i < 20000; i++) {
		size_t n = make_train(train, m.next > base ? m.next : base, base);

		if (train[0] - base > MODEL_SPAN - 30000)
			break;
		memset(fresh, 2, sizeof(fresh));
		replay_check_train(&r, train, n, fresh);
		for (size_t j = 0; j < n; j++) {
			bool expected = model_check(&m, train[j]);

			assert_int_equal(fresh[j], expected);
			fresh_n += expected;
			old_n += !expected;
		}
	}
	assert_true(fresh_n > 1000);
	assert_true(old_n > 1000);
	free(m.seen);
}

static void test_model(void **state)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		run_model(0, seed);
		run_model(1000003, seed + 100);
		run_model(UINT64_MAX - MODEL_SPAN / 2, seed + 200); /* across the last counter */
	}
}

static void test_jump_far(void **state)
{
	struct replay r;

	replay_init(&r);
	for (uint64_t c = 0; c < REPLAY_BITS; c++)
		assert_true(replay_check(&r, c));
	assert_true(replay_check(&r, 1ULL << 40));
	for (uint64_t d = 1; d <= REPLAY_WINDOW; d++)
		assert_true(replay_check(&r, (1ULL << 40) - d));
	assert_false(replay_check(&r, (1ULL << 40) - REPLAY_WINDOW - 1));
}

/* A train longer than the ring leaves no bits of its first lap. */
static void test_long_train(void **state)
{
	enum { N = 20000 };
	uint64_t *train = calloc(N, sizeof(*train));
	bool *fresh = calloc(N, sizeof(*fresh));
	struct replay r;

	replay_init(&r);
	for (size_t i = 0; i < N; i++)
		train[i] = i + 7;
	replay_check_train(&r, train, N, fresh);
	for (size_t i = 0; i < N; i++)
		assert_true(fresh[i]);
	for (size_t i = 0; i < N; i += 2) { /* swapped, so that each is looked up */
		train[i] = N + 8 + i;
		train[i + 1] = N + 7 + i;
	}
	replay_check_train(&r, train, N, fresh);
	for (size_t i = 0; i < N; i++)
		assert_true(fresh[i]);
	free(train);
	free(fresh);
}

static void test_empty_train(void **state)
{
	struct replay r;

	replay_init(&r);
	replay_check_train(&r, NULL, 0, NULL);
	assert_true(replay_check(&r, 0));
}

/* Several workers offer the same counters: each is fresh exactly once. */
enum { THREADS = 4, SHARED = 200000 };

struct shared {
	struct replay r;
	_Atomic uint32_t n_fresh;
	uint8_t *count;
};

static void *offer(void *arg)
{
	struct shared *s = arg;
	uint64_t train[32];
	bool fresh[32];
	uint32_t n = 0;

	for (uint64_t c = 0; c < SHARED; c += 32) {
		for (size_t i = 0; i < 32; i++)
			train[i] = c + i;
		replay_check_train(&s->r, train, 32, fresh);
		for (size_t i = 0; i < 32; i++) {
			n += fresh[i];
			if (fresh[i])
				__atomic_add_fetch(&s->count[c + i], 1, __ATOMIC_RELAXED);
		}
	}
	s->n_fresh += n;
	return NULL;
}

static void test_threads(void **state)
{
	struct shared s = { .count = calloc(SHARED, 1) };
	pthread_t t[THREADS];

	replay_init(&s.r);
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, offer, &s), 0);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(s.n_fresh, SHARED);
	for (size_t i = 0; i < SHARED; i++)
		assert_int_equal(s.count[i], 1);
	free(s.count);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_sweeps),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_jump_far),
		cmocka_unit_test(test_long_train),
		cmocka_unit_test(test_empty_train),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
