/* The histogram against a model that keeps every value and sorts. */
#include "bench/hist.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 20000 };

static struct hist h, other;
static uint64_t model[N];

static const double percents[] = { 0, 0.01, 1, 25, 50, 75, 90, 99, 99.9, 99.99, 100 };

/* xorshift64: the same values in every run. */
static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void check_against_model(size_t n)
{
	uint64_t exact, got;
	size_t i, rank;

	qsort(model, n, sizeof(model[0]), compare);
	assert_int_equal(h.n, n);
	assert_int_equal(h.min, model[0]);
	assert_int_equal(h.max, model[n - 1]);
	for (i = 0; i < sizeof(percents) / sizeof(percents[0]); i++) {
		rank = (size_t)ceil(percents[i] / 100 * (double)n);
		exact = model[rank ? rank - 1 : 0];
		got = hist_percentile(&h, percents[i]);
		assert_true(got >= exact);
		assert_true(got - exact <= exact / HIST_SUB);
	}
}

static void test_every_scale(void **state)
{
	uint64_t seed = 42;
	int bits;
	size_t i;

	for (bits = 1; bits <= 64; bits++) {
		hist_init(&h);
		for (i = 0; i < 1000; i++) {
			model[i] = next_random(&seed) >> (64 - bits);
			hist_add(&h, model[i]);
		}
		check_against_model(1000);
	}
}

static void test_mixed_scales(void **state)
{
	uint64_t seed = 7;
	size_t i;

	hist_init(&h);
	for (i = 0; i < N; i++) {
		model[i] = next_random(&seed) >> (i % 64);
		hist_add(&h, model[i]);
	}
	check_against_model(N);
}

/* Each bucket's border, where an off-by-one would show. */
static void test_powers_of_two(void **state)
{
	uint64_t v;
	int shift, k;

	for (shift = 0; shift < 64; shift++) {
		for (k = -1; k <= 1; k++) {
			v = ((uint64_t)1 << shift) + (uint64_t)k;
			hist_init(&h);
			hist_add(&h, v);
			hist_add(&h, UINT64_MAX); /* so that max does not hide the bucket */
			model[0] = v;
			model[1] = UINT64_MAX;
			check_against_model(2);
		}
	}
}

static void test_small_values_are_exact(void **state)
{
	uint64_t v;

	hist_init(&h);
	for (v = 0; v < 2 * HIST_SUB; v++)
		hist_add(&h, v);
	for (v = 0; v < 2 * HIST_SUB; v++)
		assert_int_equal(hist_percentile(&h, 100.0 * (double)(v + 1) / (2 * HIST_SUB)), v);
}

static void test_merge_is_the_same_as_adding(void **state)
{
	struct hist *all = malloc(sizeof(*all));
	uint64_t seed = 3, v;
	int i;

	assert_non_null(all);
	hist_init(&h);
	hist_init(&other);
	hist_init(all);
	for (i = 0; i < 1000; i++) {
		v = next_random(&seed) >> (i % 50);
		hist_add(i % 3 ? &h : &other, v);
		hist_add(all, v);
	}
	hist_merge(&h, &other);
	assert_memory_equal(&h, all, sizeof(h));
	free(all);
}

static void test_empty(void **state)
{
	hist_init(&h);
	hist_init(&other);
	assert_int_equal(hist_percentile(&h, 50), 0);
	hist_merge(&h, &other);
	assert_int_equal(h.n, 0);
	assert_int_equal(h.min, UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_scale),
		cmocka_unit_test(test_mixed_scales),
		cmocka_unit_test(test_powers_of_two),
		cmocka_unit_test(test_small_values_are_exact),
		cmocka_unit_test(test_merge_is_the_same_as_adding),
		cmocka_unit_test(test_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
