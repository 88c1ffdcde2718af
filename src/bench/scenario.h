/* The benches there are: what each file gives to the table in bench.c. */
#ifndef BENCH_SCENARIO_H
#define BENCH_SCENARIO_H

#include "base/compiler.h"
#include "bench/progress.h"
#include "bench/report.h"

/* What a scenario works with. */
struct scene {
	struct report *report;
	struct progress *progress;
	bool is_quick;
	const char *penstock; /* for lab_create; may be NULL */
};

struct scenario {
	const char *name;
	const char *what; /* one line */
	/* Fill the report. 0; -EINTR when stopped; another negative errno when
	 * the bench as a whole failed. What cannot be measured here alone is a
	 * skip with its reason, not an error. */
	int (*run)(struct scene *s);
};

MUST_CHECK int engines_run(struct scene *s);
MUST_CHECK int gateways_run(struct scene *s);
MUST_CHECK int handshakes_run(struct scene *s);
MUST_CHECK int readers_run(struct scene *s);
MUST_CHECK int tunnels_run(struct scene *s);

#endif
