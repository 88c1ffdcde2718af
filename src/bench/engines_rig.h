/* A receiver: a thread that takes datagrams from one UDP socket through an engine and checks
 * what comes. Either it sends back whatever comes, or it is held and, when told, takes what
 * has gathered in the socket. The engine is used as the gateway's data workers use it, on a
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
	bool is_echo; /* send back what comes; false: it is held, see rig_drain */
	uint32_t buf_len; /* room in its socket, by force if that is allowed; 0: as the gateway has
			   */
	unsigned cpu; /* where it runs, as for cpu_pin() */
};

/* What went through, and what it took. */
struct rig_drained {
	uint64_t n_packets;
	uint64_t cpu_ns; /* of the receiver's thread and of those that io_uring runs for it */
	uint64_t helper_ns; /* of that: the latter */
	uint64_t user_ns, system_ns; /* of the receiver's thread; by the kernel's ticks: rough */
	uint64_t n_syscalls; /* of its thread; 0 where they cannot be counted */
};

/* Its thread runs and waits. 0 or negative errno. */
MUST_CHECK int rig_create(struct rig **out, const struct rig_config *cfg);
/* Ends it. NULL is fine. */
void rig_destroy(struct rig *r);
uint16_t rig_port(const struct rig *r);
/* What came so far. 0 or negative errno, of the thread if it has failed. */
MUST_CHECK int rig_counts(const struct rig *r, uint64_t *n_packets, uint64_t *n_wrong);
/* Memory that what waits in its socket takes, all that it may take, and datagrams or trains
 * that found no room. 0 or negative errno. */
struct rig_queue {
	uint32_t used, room, n_dropped;
};
MUST_CHECK int rig_queue(const struct rig *r, struct rig_queue *out);
/* One that is held: take n datagrams, which wait in the socket. What that took is added to sum.
 * 0; -EBADMSG: some were wrong; -ETIMEDOUT: they were not that many; another negative errno. */
MUST_CHECK int rig_drain(struct rig *r, uint64_t n, struct rig_drained *sum);
/* Why system calls cannot be counted; NULL: they can. */
const char *rig_syscalls_missing(const struct rig *r);

#endif
