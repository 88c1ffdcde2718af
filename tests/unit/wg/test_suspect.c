/* Who may have packets opened: one forger, a forger under a good peer's address, many. */
#include "wg/suspect.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define NOW (100 * NSEC_PER_SEC)
#define STEP (NSEC_PER_MSEC / 10)

static struct suspects s;

static int setup(void **state)
{
	const struct sipkey key = { { 1, 2 } };

	suspects_init(&s, &key);
	return 0;
}

static void key_of(uint8_t key[SUSPECT_KEY], uint32_t i)
{
	memset(key, 0, SUSPECT_KEY);
	memcpy(key, &i, sizeof(i));
}

static void test_failures_are_limited(void **state)
{
	uint8_t key[SUSPECT_KEY];
	unsigned n_opened = 0;

	key_of(key, 1);
	assert_false(suspects_any(&s, NOW));
	/* 10,000 a second for two seconds, one at a time */
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t now = NOW + i * STEP;
		size_t n = suspects_allow(&s, key, false, 1, now);

		if (n)
			assert_int_equal(suspects_judge(&s, key, 1, 0, now), n_opened >= 63);
		n_opened += n;
	}
	assert_in_range(n_opened, 64 + 200 * SUSPECT_ALLOWED - 64, 64 + 200 * SUSPECT_ALLOWED);
	assert_true(suspects_any(&s, NOW + 20000 * STEP));
	/* Somebody else is not. */
	key_of(key, 2);
	assert_int_equal(suspects_allow(&s, key, false, 64, NOW + 20000 * STEP), 64);
}

static void test_trains(void **state)
{
	uint8_t key[SUSPECT_KEY];

	key_of(key, 1);
	assert_int_equal(suspects_allow(&s, key, false, 64, NOW), 64);
	assert_true(suspects_judge(&s, key, 64, 0, NOW));
	assert_int_equal(suspects_allow(&s, key, false, 64, NOW), SUSPECT_ALLOWED);
	assert_int_equal(suspects_allow(&s, key, false, 64, NOW), 0);
	assert_int_equal(suspects_allow(&s, key, false, 20, NOW + SUSPECT_SLOT), 20);
	assert_int_equal(
		suspects_allow(&s, key, false, 20, NOW + SUSPECT_SLOT), SUSPECT_ALLOWED - 20);
}

static void test_a_second_without_failures_clears(void **state)
{
	uint8_t key[SUSPECT_KEY];

	key_of(key, 1);
	suspects_judge(&s, key, 64, 0, NOW);
	assert_int_equal(
		suspects_allow(&s, key, false, 64, NOW + SUSPECT_MEMORY - 1), SUSPECT_ALLOWED);
	assert_int_equal(suspects_allow(&s, key, false, 64, NOW + SUSPECT_MEMORY), 64);
	assert_false(suspects_any(&s, NOW + SUSPECT_MEMORY));
	/* and the score begins anew */
	assert_false(suspects_judge(&s, key, 63, 0, NOW + SUSPECT_MEMORY));
}

/* Few failures among many successes mean nothing. */
static void test_a_bad_line(void **state)
{
	uint8_t key[SUSPECT_KEY];

	key_of(key, 1);
	for (unsigned i = 0; i < 100000; i++) {
		assert_int_equal(suspects_allow(&s, key, false, 1, NOW + i * STEP), 1);
		assert_false(suspects_judge(&s, key, i % 3 != 0, i % 3 == 0, NOW + i * STEP));
	}
}

/* Ten forgeries for each packet of a peer, under its address: it is limited, but not as
 * somebody of whom nothing is ever authentic, and is never accused. */
static void test_forged_under_a_good_address(void **state)
{
	unsigned n_opened = 0, n_good = 0;
	uint8_t key[SUSPECT_KEY];

	key_of(key, 1);
	for (unsigned i = 0; i < 220000; i++) { /* a second */
		uint64_t now = NOW + i * (NSEC_PER_SEC / 220000);
		bool is_good = i % 11 == 0;

		if (!suspects_allow(&s, key, false, 1, now))
			continue;
		assert_false(suspects_judge(&s, key, !is_good, is_good, now));
		n_opened++;
		n_good += is_good;
	}
	assert_in_range(n_opened, 60000, 66000);
	assert_in_range(n_good, 5000, 7000);
}

/* A peer that is idle while somebody forges its address: its next packets are opened. */
static void test_forged_while_idle(void **state)
{
	uint8_t key[SUSPECT_KEY];
	unsigned n_opened = 0;

	key_of(key, 1);
	suspects_judge(&s, key, 128, 0, NOW);
	for (unsigned i = 0; i < 9999; i++) /* a second */
		n_opened += suspects_allow(&s, key, true, 1, NOW + i * STEP);
	assert_int_equal(n_opened, 9999);
	suspects_judge(&s, key, 128, 0, NOW + NSEC_PER_SEC);
	assert_int_equal(
		suspects_allow(&s, key, true, 1000000, NOW + NSEC_PER_SEC + 2 * SUSPECT_SLOT),
		SUSPECT_ALLOWED_MIXED);
}

static void test_many(void **state)
{
	uint8_t key[SUSPECT_KEY];
	unsigned n_free = 0;

	for (uint32_t i = 0; i < 10000; i++) {
		key_of(key, i);
		suspects_judge(&s, key, 64, 0, NOW + i);
	}
	/* Of the latest the table holds what it has room for. */
	for (uint32_t i = 10000 - SUSPECT_SETS * SUSPECT_WAYS / 4; i < 10000; i++) {
		key_of(key, i);
		n_free += suspects_allow(&s, key, false, 64, NOW + 10000) == 64;
	}
	assert_in_range(n_free, 0, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_failures_are_limited, setup),
		cmocka_unit_test_setup(test_trains, setup),
		cmocka_unit_test_setup(test_a_second_without_failures_clears, setup),
		cmocka_unit_test_setup(test_a_bad_line, setup),
		cmocka_unit_test_setup(test_forged_under_a_good_address, setup),
		cmocka_unit_test_setup(test_forged_while_idle, setup),
		cmocka_unit_test_setup(test_many, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
