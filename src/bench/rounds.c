/* CPU time decides how long a turn is, and is what per-core figures are made
 * of: on a machine that does something else as well, wall time measures the
 * neighbour. */
#include "bench/rounds.h"
#include "base/clock.h"
#include <errno.h>
#include <signal.h>
#include <time.h>

/* Doublings until a turn must have measured something. */
enum { WARM_TURNS_MAX = 40 };

static volatile sig_atomic_t stop_why;

void rounds_stop(int why)
{
	stop_why = why;
}

int rounds_stopped(void)
{
	return stop_why;
}

void rounds_resume(void)
{
	stop_why = 0;
}

uint64_t cpu_time_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

/* The CPU clock is the innermost pair, since its figures are the ones that
 * count: the cost of reading the wall clock is then outside of its window. */
void slice_begin(struct slice *s)
{
	s->began_wall_ns = clock_now_ns();
	s->began_cpu_ns = cpu_time_ns();
}

void slice_end(struct slice *s)
{
	s->cpu_ns += cpu_time_ns() - s->began_cpu_ns;
	s->wall_ns += clock_now_ns() - s->began_wall_ns;
}

static int take_turn(struct contestant *c, struct slice *s)
{
	if (rounds_stopped())
		return -EINTR;
	*s = (struct slice){ .n = c->n };
	return c->turn(c->ctx, s);
}

/* Double n until a turn takes warm_ns, then scale it to turn_ns. */
static int warm_up(const struct rounds *r, struct contestant *c)
{
	struct slice s;
	uint64_t n;
	int i, ret;

	c->n = 1;
	for (i = 0; i < WARM_TURNS_MAX; i++) {
		ret = take_turn(c, &s);
		if (ret < 0)
			return ret;
		if (s.cpu_ns >= r->warm_ns || (c->n_max && c->n >= c->n_max))
			break;
		c->n *= 2;
		if (c->n_max && c->n > c->n_max)
			c->n = c->n_max;
	}
	if (!s.cpu_ns)
		return -ERANGE;
	n = (uint64_t)((double)c->n * (double)r->turn_ns / (double)s.cpu_ns);
	if (c->n_max && n > c->n_max)
		n = c->n_max;
	c->n = n ? n : 1;
	return 0;
}

static void show(const struct rounds *r, size_t done, size_t total, const char *doing)
{
	if (r->progress)
		progress_show(r->progress, done, total, doing);
}

int rounds_run(const struct rounds *r, struct contestant *c, size_t n)
{
	size_t total = n * (r->n + 1), done = 0, i;
	struct contestant *turn;
	struct slice s;
	unsigned round;
	int ret;

	for (i = 0; i < n; i++) {
		show(r, done++, total, c[i].name);
		ret = warm_up(r, &c[i]);
		if (ret < 0)
			return ret;
	}
	for (round = 0; round < r->n; round++) {
		for (i = 0; i < n; i++) {
			turn = &c[(i + round) % n];
			show(r, done++, total, turn->name);
			ret = take_turn(turn, &s);
			if (ret < 0)
				return ret;
			if (!s.cpu_ns)
				return -ERANGE;
			turn->took(turn->ctx, &s);
		}
	}
	return 0;
}
