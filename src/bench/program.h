/* Child processes of a bench. They are ended with it, whatever ends it: a child
 * gets SIGKILL when the thread that started it is gone, so start them from the
 * main thread. A child has a process group of its own: Ctrl-C on the terminal reaches
 * the bench alone, which then ends its children in order. Not a session: all share
 * the CPU as one (autogroup, sched(7)). One thread. */
#ifndef BENCH_PROGRAM_H
#define BENCH_PROGRAM_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct program {
	pid_t pid; /* 0: none is running */
	int pidfd;
	int out, err; /* memory files with what it wrote */
};

/* Where a program runs. */
struct program_place {
	int netns, mntns; /* descriptors; -1: ours */
	int input; /* its standard input; -1: /dev/null */
};

/* Start argv[0], looked for in PATH; argv ends with NULL. 0 or negative errno.
 * That a program cannot be executed shows as exit status 127. */
MUST_CHECK int program_start(
	struct program *p, const struct program_place *where, const char *const argv[]);

/* Wait for its end: 0 and its wait status; -ETIMEDOUT; -EINTR when the bench is
 * to stop. Anything but 0 leaves it running. */
MUST_CHECK int program_wait(struct program *p, int timeout_ms, int *status);

bool program_is_running(const struct program *p);

/* What it wrote to its standard output (or error), the first cap - 1 bytes, as a
 * string. Also after its end, until program_end. */
void program_output(const struct program *p, char *out, size_t cap);
void program_errors(const struct program *p, char *out, size_t cap);

/* SIGTERM, two seconds later SIGKILL; closes what belongs to it. One that has
 * ended, or was never started (all zero), is fine. */
void program_end(struct program *p);

#endif
