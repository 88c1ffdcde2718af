/* CPU time of a process with all that works for it: its own threads, the threads that
 * io_uring runs in it, and the machine's ksoftirqd. And how many system calls it makes, counted
 * by the kernel. Readings only grow: take one before and one after, and the difference. Any
 * thread. */
#ifndef BENCH_CPUTIME_H
#define BENCH_CPUTIME_H

#include "base/compiler.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Nanoseconds since each began. A thread that has ended is no longer in iou_ns but stays in
 * process_ns. A thread that runs at the moment may be told up to one tick late (4 ms at most): keep
 * windows above 100 ms. */
struct cputime {
	uint64_t process_ns; /* all threads of the process; io_uring's are among them */
	uint64_t iou_ns; /* of that: the threads named iou-... (SQPOLL, io-wq) */
	/* All ksoftirqd of the machine. What a busy network leaves to them is work for whoever
	 * receives and whoever sends: there is no telling them apart. */
	uint64_t softirqd_ns;
};

/* 0 or negative errno (-ESRCH: no such process). */
MUST_CHECK int cputime_read(pid_t pid, struct cputime *out);
/* after - before, each part. */
struct cputime cputime_since(const struct cputime *after, const struct cputime *before);
/* What a rate per CPU second is made of: process_ns + softirqd_ns. */
uint64_t cputime_sum(const struct cputime *t);
/* Threads of this process that the kernel runs for io_uring (iou-...). Returns how many there are;
 * the first max are listed. */
size_t cputime_helpers(pid_t *out, size_t max);
/* Of one thread of this process, up to now, also while it runs: exact, by one system call
 * (clock_gettime). 0 or negative errno: it has ended. */
MUST_CHECK int cputime_thread(pid_t tid, uint64_t *ns);

/* A counter of the system calls (tracepoint raw_syscalls:sys_enter by perf_event_open(2)) of a
 * process: of those of its threads that exist now, and of all threads and processes that they
 * start from now on. To count from the start, open it before there are threads. Not counted: what
 * io_uring does without a call. pid 0: the calling thread and what it starts. */
struct syscall_counter {
	int *fds; /* one per thread that there was */
	size_t n;
};

/* 0, or negative errno: -ENOENT: the kernel has no such tracepoint, or tracefs is not to be
 * had; -EACCES, -EPERM: perf_event_paranoid and no CAP_PERFMON; -ESRCH: no such process. */
MUST_CHECK int syscall_counter_open(struct syscall_counter *c, pid_t pid);
/* Why that failed, for a skip. */
const char *syscall_counter_reason(int err);
/* Calls since it was opened. 0 or negative errno. */
MUST_CHECK int syscall_counter_read(const struct syscall_counter *c, uint64_t *n);
/* Closed, or all zero: fine. */
void syscall_counter_close(struct syscall_counter *c);

#endif
