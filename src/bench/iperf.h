/* iperf3 between two namespaces of a lab, so that figures are those that users see. One
 * thread, the main one. */
#ifndef BENCH_IPERF_H
#define BENCH_IPERF_H

#include "base/compiler.h"
#include "bench/lab.h"
#include <stdint.h>

/* Why it cannot be run here; NULL: it can. */
const char *iperf_missing(void);

/* What to run: TCP, data from the client to the server. */
struct iperf_plan {
	int client_ns, server_ns;
	const char *server; /* address to connect to */
	unsigned streams, seconds;
};

/* What the server has received, payload alone, and the CPU that both ends took. */
struct iperf_result {
	double gbps;
	uint64_t bytes;
	double client_cores, server_cores; /* 1: one core all the time */
	char congestion[16]; /* the sender's congestion control; empty: not told */
};

/* 0, and error is empty. Or negative errno and the reason, one line, in error: -EINTR when the
 * bench is to stop, -ETIMEDOUT, -EIO when iperf3 failed, -EPROTO when it says what we do not
 * understand. */
MUST_CHECK int iperf_run(struct lab *l, const struct iperf_plan *plan, struct iperf_result *out,
	char error[LAB_TEXT_MAX]);

/* Understand what `iperf3 --json` wrote. 0; -EIO when it reports an error, which is then in
 * error; -EPROTO when it is anything else, error says what is missing. */
MUST_CHECK int iperf_parse(const char *text, struct iperf_result *out, char error[LAB_TEXT_MAX]);

#endif
