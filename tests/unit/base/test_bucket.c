#include "base/bucket.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { THREADS = 4, TRIES = 20000, BURST = 1000 };

static unsigned take_all(struct bucket *b, uint64_t token_ns, unsigned burst, uint64_t now_ns)
{
	unsigned n = 0;

	while (n <= burst) {
		bool has = bucket_has(b, token_ns, burst, now_ns);

		assert_int_equal(bucket_take(b, token_ns, burst, now_ns), has);
		if (!has)
			break;
		n++;
	}
	return n;
}

static void test_burst_and_rate(void **state)
{
	struct bucket b = { 0 };
	uint64_t now = 5000;

	assert_true(bucket_is_full(&b, now));
	assert_int_equal(take_all(&b, 10, 7, now), 7);
	assert_false(bucket_is_full(&b, now));
	assert_int_equal(take_all(&b, 10, 7, now + 9), 0);
	assert_int_equal(take_all(&b, 10, 7, now + 10), 1);
	assert_int_equal(take_all(&b, 10, 7, now + 45), 3);
	/* Never more than the burst, however long it was quiet. */
	assert_int_equal(take_all(&b, 10, 7, now + 1000000), 7);
	bucket_fill(&b);
	assert_int_equal(take_all(&b, 10, 7, now + 1000000), 7);
}

static void test_at_time_zero(void **state)
{
	struct bucket b = { 0 };

	assert_true(bucket_is_full(&b, 0));
	assert_int_equal(take_all(&b, 10, 3, 0), 3);
}

static void *take_some(void *arg)
{
	uintptr_t n = 0;

	for (int i = 0; i < TRIES; i++)
		n += bucket_take(arg, 10, BURST, 12345);
	return (void *)n;
}

/* Threads that take at once never get more than there is, and never less. */
static void test_threads(void **state)
{
	pthread_t thread[THREADS];
	struct bucket b = { 0 };
	uintptr_t sum = 0;
	void *n;

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, take_some, &b), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &n);
		sum += (uintptr_t)n;
	}
	assert_int_equal(sum, BURST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_burst_and_rate),
		cmocka_unit_test(test_at_time_zero),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
