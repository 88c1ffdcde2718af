/* Timing loops: contestants take turns, round by round, so that a disturbance
 * (another program, a change of clock rate) hits all of them and not one. One
 * thread, except where it says otherwise. */
#ifndef BENCH_ROUNDS_H
#define BENCH_ROUNDS_H

#include "base/compiler.h"
#include "bench/progress.h"
#include "bench/report.h"
#include <stdbool.h>
#include <stdint.h>

/* CPU time of all threads of this process, in nanoseconds. */
uint64_t cpu_time_ns(void);

/* What one turn of a contestant has to do and what it took. */
struct slice {
	uint64_t n; /* operations to do */
	uint64_t wall_ns; /* between begin and end, summed */
	uint64_t cpu_ns; /* the same, CPU time of all threads */
	uint64_t began_wall_ns, began_cpu_ns;
};

/* Around what is to be measured; what a contestant does outside (generating
 * input, checking output) is not counted. A pair costs most of a microsecond,
 * so keep the windows above 100 us. */
void slice_begin(struct slice *s);
void slice_end(struct slice *s);

struct contestant {
	const char *name; /* for the progress bar */
	/* Do s->n operations, the measured part between slice_begin and
	 * slice_end. 0, or a negative errno: the run ends with that. */
	int (*turn)(void *ctx, struct slice *s);
	/* Take the samples of a measured turn. */
	void (*took)(void *ctx, const struct slice *s);
	void *ctx;
	uint64_t n; /* operations a turn: found by the warm-up */
	uint64_t n_max; /* never more than that in a turn; 0: no limit */
};

struct rounds {
	uint64_t warm_ns; /* CPU time of the last warm-up turn, at least */
	uint64_t turn_ns; /* CPU time of a measured turn, about */
	unsigned n; /* measured rounds */
	struct progress *progress; /* NULL: none */
};

/* Warm up each contestant, which also finds its n, then run the rounds; each
 * round starts with the next contestant. 0; -EINTR when rounds_stop() was
 * called; what turn returned; -ERANGE when a turn measures nothing. */
MUST_CHECK int rounds_run(const struct rounds *r, struct contestant *c, size_t n);

/* Ask the running bench to end soon. Any thread, also from a signal handler. */
void rounds_stop(int why);
/* What was given to rounds_stop(); 0: go on. Long generators ask, too. */
int rounds_stopped(void);
/* Forget it: before a new run. */
void rounds_resume(void);

#endif
