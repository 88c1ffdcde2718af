/* Turns, warm-up, what is measured and what is not, and stopping. */
#include "bench/rounds.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>

enum { LOG_MAX = 256 };

static char turns[LOG_MAX]; /* measured turns, in order */
static size_t n_turns;

struct fake {
	char letter;
	uint64_t ns_per_op; /* what the fake clock says */
	uint64_t n_max_seen;
	int fails_at; /* turn number; 0: never */
	int n_taken;
	unsigned n_samples;
};

/* A contestant whose time is computed, so that the outcome is exact. */
static int fake_turn(void *ctx, struct slice *s)
{
	struct fake *f = ctx;

	if (++f->n_taken == f->fails_at)
		return -EIO;
	if (s->n > f->n_max_seen)
		f->n_max_seen = s->n;
	s->cpu_ns = s->n * f->ns_per_op;
	return 0;
}

static void fake_took(void *ctx, const struct slice *s)
{
	struct fake *f = ctx;

	assert_true(n_turns < LOG_MAX);
	turns[n_turns++] = f->letter;
	turns[n_turns] = '\0';
	f->n_samples++;
	assert_int_equal(s->cpu_ns / s->n, f->ns_per_op);
}

static int reset(void **state)
{
	rounds_resume();
	n_turns = 0;
	turns[0] = '\0';
	return 0;
}

static void test_contestants_take_turns(void **state)
{
	struct fake f[3] = { { .letter = 'a', .ns_per_op = 10 },
		{ .letter = 'b', .ns_per_op = 100 }, { .letter = 'c', .ns_per_op = 1000 } };
	struct contestant c[3] = { { "a", fake_turn, fake_took, &f[0] },
		{ "b", fake_turn, fake_took, &f[1] }, { "c", fake_turn, fake_took, &f[2] } };
	struct rounds r = { .warm_ns = 1000, .turn_ns = 100000, .n = 4 };

	assert_int_equal(rounds_run(&r, c, 3), 0);
	assert_string_equal(turns, "abcbcacababc");
	/* Equal time for each, not equal work. */
	assert_int_equal(c[0].n, 10000);
	assert_int_equal(c[1].n, 1000);
	assert_int_equal(c[2].n, 100);
}

static void test_limits_of_n(void **state)
{
	struct fake f[2] = { { .letter = 'a', .ns_per_op = 1 },
		{ .letter = 'b', .ns_per_op = 1000000 } };
	struct contestant c[2] = { { "a", fake_turn, fake_took, &f[0], .n_max = 100 },
		{ "b", fake_turn, fake_took, &f[1] } };
	struct rounds r = { .warm_ns = 1000, .turn_ns = 100000, .n = 1 };

	assert_int_equal(rounds_run(&r, c, 2), 0);
	assert_int_equal(f[0].n_max_seen, 100);
	assert_int_equal(c[0].n, 100);
	assert_int_equal(c[1].n, 1); /* slower than a turn: still once */
}

static void test_errors_end_the_run(void **state)
{
	struct fake f = { .letter = 'a', .ns_per_op = 1000, .fails_at = 4 };
	struct contestant c = { "a", fake_turn, fake_took, &f };
	struct rounds r = { .warm_ns = 1, .turn_ns = 100000, .n = 50 };

	assert_int_equal(rounds_run(&r, &c, 1), -EIO);
	assert_int_equal(f.n_taken, 4);
}

static void test_nothing_measured_is_an_error(void **state)
{
	struct fake f = { .letter = 'a', .ns_per_op = 0 };
	struct contestant c = { "a", fake_turn, fake_took, &f };
	struct rounds r = { .warm_ns = 1, .turn_ns = 100000, .n = 5 };

	assert_int_equal(rounds_run(&r, &c, 1), -ERANGE);
	assert_int_equal(f.n_samples, 0);
}

static int stopping_turn(void *ctx, struct slice *s)
{
	int ret = fake_turn(ctx, s);

	if (((struct fake *)ctx)->n_samples == 3)
		rounds_stop(SIGINT);
	return ret;
}

static void test_stop(void **state)
{
	struct fake f = { .letter = 'a', .ns_per_op = 10 };
	struct contestant c = { "a", stopping_turn, fake_took, &f };
	struct rounds r = { .warm_ns = 1000, .turn_ns = 100000, .n = 50 };

	assert_int_equal(rounds_run(&r, &c, 1), -EINTR);
	assert_int_equal(rounds_stopped(), SIGINT);
	assert_int_equal(f.n_samples, 4);
	rounds_resume();
	assert_int_equal(rounds_stopped(), 0);
}

static void burn(uint64_t ns)
{
	uint64_t from = cpu_time_ns();

	while (cpu_time_ns() - from < ns)
		;
}

/* CPU time: what another process takes away does not matter here. */
static void test_only_the_window_counts(void **state)
{
	struct slice s = { 0 };
	uint64_t from = cpu_time_ns(), all;

	burn(3000000);
	slice_begin(&s);
	burn(1000000);
	slice_end(&s);
	burn(3000000);
	slice_begin(&s);
	burn(1000000);
	slice_end(&s);
	all = cpu_time_ns() - from;
	assert_true(s.cpu_ns >= 2000000);
	assert_true(s.cpu_ns <= all - 6000000);
	assert_true(s.wall_ns >= 1000000);
}

static void *burn_thread(void *arg)
{
	burn(*(uint64_t *)arg);
	return NULL;
}

static void test_all_threads_count(void **state)
{
	uint64_t from = cpu_time_ns(), each = 5000000;
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, burn_thread, &each), 0);
	assert_int_equal(pthread_join(t, NULL), 0);
	/* This thread slept: the time is the other one's. */
	assert_true(cpu_time_ns() - from >= each);
}

#define with_reset(f) cmocka_unit_test_setup(f, reset)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_reset(test_contestants_take_turns),
		with_reset(test_limits_of_n),
		with_reset(test_errors_end_the_run),
		with_reset(test_nothing_measured_is_an_error),
		with_reset(test_stop),
		with_reset(test_only_the_window_counts),
		with_reset(test_all_threads_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
