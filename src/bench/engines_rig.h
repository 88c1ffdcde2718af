/* A receiver: a thread that reads one UDP socket through an engine, checks what comes, and
 * sends it back or not. The engine is used as the gateway's data workers use it, on a
 * socket with the same options. Made, used and ended by one thread. */
#ifndef BENCH_ENGINES_RIG_H
#define BENCH_ENGINES_RIG_H

#include "base/compiler.h"
#include "io/io.h"
#include <stdbool.h>
#include <stdint.h>

struct rig;

struct rig_config {
	const struct engine_ops *ops;
	struct engine_config engine;
	uint32_t len; /* of a datagram: parcels (engines_math.h) */
	bool has_gro;
	bool is_echo;
	unsigned cpu; /* where it runs, as for cpu_pin() */
};

/* Totals; take two readings and the difference. */
struct rig_reading {
	uint64_t at_ns;
	uint64_t n_packets, n_wrong;
	uint64_t cpu_ns; /* of the receiver, with all that the kernel runs for it (bench/cputime.h)
			  */
	uint64_t helper_ns; /* of that: threads of the kernel's */
	uint64_t user_ns, system_ns; /* of the receiver's thread; by the kernel's ticks: rough */
	uint64_t n_syscalls; /* of its thread */
	bool has_syscalls;
};

/* Its thread runs and waits. 0 or negative errno. */
MUST_CHECK int rig_create(struct rig **out, const struct rig_config *cfg);
/* Ends it. NULL is fine. */
void rig_destroy(struct rig *r);
uint16_t rig_port(const struct rig *r);
/* At the begin and at the end of a window in which something comes. 0 or negative errno; also of
 * the thread, if it has failed. */
MUST_CHECK int rig_read(struct rig *r, struct rig_reading *out, bool is_end);
/* Why system calls cannot be counted; NULL: they can. */
const char *rig_syscalls_missing(const struct rig *r);

#endif
