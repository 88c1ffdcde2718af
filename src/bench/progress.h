/* A progress bar on standard error, if that is a terminal. One thread. */
#ifndef BENCH_PROGRESS_H
#define BENCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct progress {
	bool is_on;
	int percent; /* last shown; -1: nothing is on the line */
};

void progress_init(struct progress *p);
/* done of total steps; doing says what comes now. */
void progress_show(struct progress *p, size_t done, size_t total, const char *doing);
/* Clear the line. Before anything else is printed. */
void progress_clear(struct progress *p);

#endif
