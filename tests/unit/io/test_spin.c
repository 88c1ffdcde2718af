/* When an engine may spin: the purse, load and trickles, with a clock of our own. */
#include "io/spin.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct spin s;
static uint64_t now;

/* So much work, then a wait that ends with a batch. */
static void batch(uint64_t work_ns, uint64_t wait_ns)
{
	now += work_ns;
	spin_note_work(&s, now);
	now += wait_ns;
	spin_note_wait(&s, now - wait_ns, now, true);
}

static int setup(void **state)
{
	now = 5 * NSEC_PER_SEC;
	spin_init(&s, now);
	return 0;
}

static void test_first(void **state)
{
	/* Nothing is known of the traffic: it blocks. */
	assert_false(spin_may(&s, now));
	for (int i = 0; i < 20; i++)
		batch(1000, NSEC_PER_MSEC);
	assert_true(spin_may(&s, now));
}

static void test_trickle(void **state)
{
	for (int i = 0; i < 20; i++)
		batch(1000, NSEC_PER_MSEC);
	for (int i = 0; i < 20; i++)
		batch(1000, 2 * SPIN_GAP_MAX);
	assert_false(spin_may(&s, now));
	/* One long pause is no trickle for long. */
	batch(1000, 100 * SPIN_GAP_MAX);
	for (int i = 0; i < 20; i++)
		batch(1000, NSEC_PER_MSEC);
	assert_true(spin_may(&s, now));
}

static void test_load(void **state)
{
	for (int i = 0; i < 100; i++)
		batch(NSEC_PER_MSEC, NSEC_PER_MSEC);
	assert_true(spin_is_loaded(&s));
	assert_false(spin_may(&s, now));
	/* Full superframes: nothing would gather. Small ones: something would. */
	for (int i = 0; i < 100; i++)
		spin_note_frame(&s, 65000);
	assert_true(spin_may(&s, now));
	for (int i = 0; i < 20000; i++)
		spin_note_frame(&s, 1500);
	assert_false(spin_may(&s, now));
	for (int i = 0; i < 100; i++)
		batch(1000, NSEC_PER_MSEC);
	assert_false(spin_is_loaded(&s));
	assert_true(spin_may(&s, now));
}

static void test_purse(void **state)
{
	unsigned n = 0;

	for (int i = 0; i < 20; i++)
		batch(1000, NSEC_PER_MSEC);
	for (; n < 10000 && spin_may(&s, now); n++)
		spin_pay(&s, SPIN_MAX);
	assert_int_equal(n, SPIN_CREDIT_MAX / (SPIN_MAX - SPIN_FREE));
	/* It earns its share of the time that passes, and no more than a purse. */
	assert_false(spin_may(&s, now + NSEC_PER_MSEC));
	assert_true(spin_may(&s, now + SPIN_SHARE * SPIN_MAX));
	assert_true(spin_may(&s, now + 1000 * NSEC_PER_SEC));
	assert_int_equal(s.credit_ns, SPIN_CREDIT_MAX);
	/* What blocking would have cost is free; somebody else's time is not paid. */
	spin_pay(&s, SPIN_FREE);
	assert_int_equal(s.credit_ns, SPIN_CREDIT_MAX);
	spin_pay(&s, NSEC_PER_SEC);
	assert_int_equal(s.credit_ns, SPIN_CREDIT_MAX - SPIN_MAX + SPIN_FREE);
}

static void test_goes_on(void **state)
{
	assert_true(spin_goes_on(now, now + 100, now + 200));
	assert_false(spin_goes_on(now, now + 100, now + 100 + SPIN_CONTENDED));
	assert_false(spin_goes_on(now, now + SPIN_MAX - 100, now + SPIN_MAX));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		TEST(test_first),
		TEST(test_trickle),
		TEST(test_load),
		TEST(test_purse),
		TEST(test_goes_on),
	};
#undef TEST
	return cmocka_run_group_tests(tests, NULL, NULL);
}
