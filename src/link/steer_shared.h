/* The memory that the steering programs (steer.bpf.c) and their loader (steer.c) have in
 * common, and the order of sockets in their map. The process writes the settings and the
 * keys, the programs the counters. */
#ifndef LINK_STEER_SHARED_H
#define LINK_STEER_SHARED_H

#include <linux/types.h>

enum {
	STEER_WORKERS = 64, /* WG_WORKERS_MAX */
	STEER_LANES = 16, /* copies of the counters; CPU n writes the one with n mod 16 */
	/* Of one family in the map of sockets: one for each worker, that for handshakes last. */
	STEER_ROW = STEER_WORKERS + 1,
	STEER_SOCKETS = 2 * STEER_ROW,
};

struct steer_memory {
	/* written by the process before the programs are attached */
	__u32 mode; /* enum steer_mode of link.h */
	__u32 n_workers;
	__u32 worker_bits;
	__u32 n_queues;
	__u32 lane_mask; /* STEER_LANES - 1, which the verifier must not know: see count */
	__u64 secret[2];

	/* written by the process at any time: by epoch, as struct sipkey of base/hash.h. Half a
	 * key steers wrong, as any wrong key does, and nothing worse. */
	__u64 keys[2][2];

	/* written by the programs */
	__u64 turn __attribute__((aligned(64)));
	__u64 datagrams[STEER_LANES * STEER_WORKERS] __attribute__((aligned(64)));
	__u64 frames[STEER_LANES * STEER_WORKERS] __attribute__((aligned(64)));
};

#endif
