/* The wheel against a plain list of deadlines. */
#include "wg/wheel.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#define TICK (1ULL << WHEEL_TICK_SHIFT)

static uint64_t rng_state;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static uint64_t due_at(uint64_t deadline)
{
	return (deadline + TICK - 1) / TICK * TICK;
}

static void test_empty(void **state)
{
	struct wheel w;

	wheel_init(&w, 5 * NSEC_PER_SEC);
	assert_null(wheel_pop(&w, 5 * NSEC_PER_SEC));
	assert_null(wheel_pop(&w, UINT64_MAX / 2));
	assert_int_equal(wheel_next(&w), UINT64_MAX);
}

static void test_one(void **state)
{
	struct wheel_node n = { 0 };
	struct wheel w;

	wheel_init(&w, 0);
	assert_false(wheel_is_armed(&n));
	wheel_cancel(&w, &n);
	wheel_arm(&w, &n, 10 * TICK + 1);
	assert_true(wheel_is_armed(&n));
	assert_int_equal(wheel_next(&w), 11 * TICK);
	assert_null(wheel_pop(&w, 10 * TICK + 1)); /* rounded up: not early by one tick */
	assert_null(wheel_pop(&w, 11 * TICK - 1));
	assert_ptr_equal(wheel_pop(&w, 11 * TICK), &n);
	assert_false(wheel_is_armed(&n));
	assert_null(wheel_pop(&w, 12 * TICK));

	wheel_arm(&w, &n, 3); /* in the past */
	assert_true(wheel_next(&w) <= 12 * TICK);
	assert_ptr_equal(wheel_pop(&w, 12 * TICK), &n);

	wheel_arm(&w, &n, 20 * TICK);
	wheel_cancel(&w, &n);
	assert_int_equal(wheel_next(&w), UINT64_MAX); /* no wake for nothing */
	wheel_arm(&w, &n, 20 * TICK);
	wheel_arm(&w, &n, 30 * TICK); /* later */
	assert_null(wheel_pop(&w, 29 * TICK));
	wheel_arm(&w, &n, 29 * TICK); /* earlier: now */
	wheel_cancel(&w, &n); /* out of the list of those due */
	assert_null(wheel_pop(&w, 100 * TICK));
	assert_int_equal(wheel_next(&w), UINT64_MAX);

	wheel_arm(&w, &n, UINT64_MAX - NSEC_PER_SEC); /* beyond the last level */
	assert_null(wheel_pop(&w, UINT64_MAX - 2 * NSEC_PER_SEC));
	assert_ptr_equal(wheel_pop(&w, UINT64_MAX), &n);
}

/* Time that goes back changes nothing. */
static void test_backwards(void **state)
{
	struct wheel_node n = { 0 };
	struct wheel w;

	wheel_init(&w, 1000 * TICK);
	wheel_arm(&w, &n, 1010 * TICK);
	assert_null(wheel_pop(&w, 5 * TICK));
	assert_ptr_equal(wheel_pop(&w, 1010 * TICK), &n);
	assert_null(wheel_pop(&w, 0));
}

/* The edges of all levels, each deadline alone and exactly. */
static void test_levels(void **state)
{
	struct wheel_node n = { 0 };
	struct wheel w;

	for (unsigned l = 0; l <= WHEEL_LEVELS; l++) {
		for (int d = -1; d <= 1; d++) {
			for (uint64_t start = 0; start < 130; start += 13) {
				uint64_t ticks =
					start + (1ULL << l * WHEEL_SLOT_BITS) + (uint64_t)d;
				uint64_t now = start * TICK;
				unsigned wakes = 0;

				wheel_init(&w, now);
				wheel_arm(&w, &n, ticks * TICK);
				while (!wheel_pop(&w, now)) {
					assert_true(wheel_next(&w) > now);
					now = wheel_next(&w);
					wakes++;
				}
				assert_int_equal(now, (ticks > start ? ticks : start) * TICK);
				assert_true(wakes <= 2 * WHEEL_LEVELS);
			}
		}
	}
}

enum { NODES = 3000, STEPS = 60000 };

static uint64_t some_span(void)
{
	return rng() >> (20 + rng() % 30); /* up to 4.8 hours in ns, all magnitudes */
}

struct timer {
	struct wheel_node node;
	bool is_armed;
	unsigned seen;
};

/* Everything that is due comes out, and nothing else; then what next says is right. */
static void drain(struct wheel *w, struct timer *t, uint64_t now, unsigned step)
{
	uint64_t earliest = UINT64_MAX;
	struct wheel_node *n;

	while ((n = wheel_pop(w, now)) != NULL) {
		struct timer *x = CONTAINER_OF(n, struct timer, node);

		assert_true(x->is_armed);
		assert_true(due_at(n->deadline_ns) <= now);
		x->is_armed = false;
		x->seen = step;
	}
	for (size_t i = 0; i < NODES; i++) {
		assert_int_equal(t[i].is_armed, wheel_is_armed(&t[i].node));
		if (!t[i].is_armed)
			continue;
		assert_true(due_at(t[i].node.deadline_ns) > now);
		if (due_at(t[i].node.deadline_ns) < earliest)
			earliest = due_at(t[i].node.deadline_ns);
	}
	assert_true(wheel_next(w) <= earliest);
	assert_true(wheel_next(w) > now || earliest == UINT64_MAX);
	if (earliest == UINT64_MAX)
		assert_int_equal(wheel_next(w), UINT64_MAX);
}

static void test_model(void **state)
{
	struct timer *t = calloc(NODES, sizeof(*t));
	uint64_t now = 123456789;
	struct wheel *w = malloc(sizeof(*w));

	rng_state = 1;
	wheel_init(w, now);
	for (unsigned step = 1; step < STEPS; step++) {
		struct timer *x = &t[rng() % NODES];

		switch (rng() % 8) {
		case 0:
			wheel_cancel(w, &x->node);
			x->is_armed = false;
			break;
		case 1:
			if (step % 16 == 0) {
				/* small steps, wheel_next, jumps of days */
				uint64_t next = wheel_next(w);

				now += rng() % 5 ? some_span()
						 : rng() % (40ULL * 86400 * NSEC_PER_SEC);
				if (rng() % 2 && next > now && next != UINT64_MAX)
					now = next;
				drain(w, t, now, step);
			}
			break;
		default:
			wheel_arm(w, &x->node, rng() % 50 ? now + some_span() : now / 2);
			x->is_armed = true;
		}
	}
	drain(w, t, UINT64_MAX, STEPS);
	for (size_t i = 0; i < NODES; i++)
		assert_false(t[i].is_armed);
	free(t);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_one),
		cmocka_unit_test(test_backwards),
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
