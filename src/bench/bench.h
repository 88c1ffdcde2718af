/* penstock bench: measures on this machine what the project claims and prints
 * the claim beside it. The door of src/bench. One thread at a time. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stdio.h>

struct bench_options {
	const char *name; /* which bench; NULL or unknown: says what there is */
	bool is_quick; /* fewer and shorter rounds: does it work, roughly how fast */
	const char *json_path; /* where the figures go as JSON too; NULL: nowhere */
	/* The program that has `gateway`; NULL: figures that need gateways are skipped. */
	const char *penstock;
};

/* Run one bench: the table goes to standard output, progress to standard error
 * if that is a terminal. Returns the exit status of the process: 0; 1 when the
 * bench failed or the JSON could not be written; 2 for an unknown name or a
 * JSON path that cannot be written (nothing was run then); 128 + signal when
 * SIGINT or SIGTERM stopped it (no JSON then). */
MUST_CHECK int bench_main(const struct bench_options *o);

/* One line for each bench: its name and what it measures. For help texts. */
void bench_list(FILE *out);

#endif
