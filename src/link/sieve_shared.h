/* The memory that the sieve's programs (sieve.bpf.c) and its loader (sieve.c) have
 * in common: one map, which the process sees as plain memory. The kernel side
 * writes the meters, the table of sources and the counters; the process writes the
 * limits, the secret and the table of the guilty. Times are of CLOCK_MONOTONIC_COARSE:
 * a few milliseconds are fine enough, and it is read ten times as fast as others. */
#ifndef LINK_SIEVE_SHARED_H
#define LINK_SIEVE_SHARED_H

#include <linux/types.h>

enum {
	SIEVE_LANES = 16, /* copies of the counters; CPU n writes the one with n mod 16 */
	SIEVE_SETS = 8192,
	SIEVE_WAYS = 8, /* a cache line; full: see take_token in sieve.bpf.c */
	GUILTY_SETS = 4096,
	GUILTY_WAYS = 8, /* places for a guilty one; full: who is free soonest gives way */
	/* Of the messages of a guilty source one in so many is let through, so that
	 * the process can change its mind. */
	GUILTY_SHARE = 64,
};

/* What is counted, in messages. In the order of SIEVE_DROPS in link.h. */
enum sieve_tally {
	TALLY_MALFORMED,
	TALLY_SOURCE,
	TALLY_TABLE,
	TALLY_BUDGET,
	TALLY_GUILTY,
	TALLY_PASSED, /* handshake messages only: data is not counted on its way */
	TALLY_N,
	TALLY_PLACES = 8, /* a cache line for each lane */
};

/* A rate: each message costs step_ns, and as many may come at once as cost depth_ns. */
struct sieve_rate {
	__u64 step_ns;
	__u64 depth_ns;
};

/* Who sent a handshake message, before it is hashed: an IPv4 address or an IPv6 /64.
 * The two cannot be mixed up, since ff00::/8 is multicast and never a source. */
#define SIEVE_KEY_IPV4 0xffffffff00000000ULL

/* Who sent a data message, whole: address, port, and which session it wants to be
 * of. Without the last, who forges a source's address could have it shut out. */
struct guilty_key {
	__u64 ip[2];
	__u32 receiver; /* as in the message: little endian */
	__u16 port; /* network order */
	__u16 family; /* 0, and no address: everybody but home */
};

struct guilty {
	struct guilty_key key;
	__u64 until_ns; /* 0: no entry, or it is being written */
	__u64 n; /* messages, or trains of them, seen since it is guilty */
	struct guilty_key home; /* where a key of family 0 is concerned */
};

struct sieve_memory {
	/* written by the process */
	__u64 secret[2];
	struct sieve_rate flood; /* more than this is a flood */
	__u64 hold_ns; /* for so long a flood counts as one after it has ended */
	struct sieve_rate pass; /* what is let through in a flood, of all sources */
	__u32 source_step_ms; /* and of one source */
	__u32 source_depth_ms;
	__u32 lane_mask; /* SIEVE_LANES - 1, which the verifier must not know: see count */

	/* written by the process; set back to 0 by the program once it has passed */
	__u64 guilty_until_ns __attribute__((aligned(64)));

	/* written by the program */
	__u64 flood_due_ns __attribute__((aligned(64)));
	__u64 pass_due_ns __attribute__((aligned(64)));
	__u64 tallies[SIEVE_LANES * TALLY_PLACES] __attribute__((aligned(64)));
	__u64 sources[SIEVE_SETS][SIEVE_WAYS] __attribute__((aligned(64)));
	struct guilty guilty[GUILTY_SETS][GUILTY_WAYS] __attribute__((aligned(64)));
};

/* The finalizer of MurmurHash3: every bit of v reaches every bit of the result. */
static inline __u64 sieve_mix(__u64 v)
{
	v = (v ^ (v >> 33)) * 0xff51afd7ed558ccdULL;
	v = (v ^ (v >> 33)) * 0xc4ceb9fe1a85ec53ULL;
	return v ^ (v >> 33);
}

/* The secret goes in first, so that nobody outside can say which sources meet. */
static inline __u32 guilty_set(const __u64 secret[2], const struct guilty_key *k)
{
	__u64 h = sieve_mix(k->ip[0] ^ secret[0]);

	h = sieve_mix(h ^ k->ip[1]) + secret[1];
	h = sieve_mix(h ^ ((__u64)k->receiver << 32 | (__u32)k->port << 16 | k->family));
	return (__u32)(h >> 32) & (GUILTY_SETS - 1);
}

static inline int guilty_is(const struct guilty_key *a, const struct guilty_key *b)
{
	return a->ip[0] == b->ip[0] && a->ip[1] == b->ip[1] && a->receiver == b->receiver &&
		a->port == b->port && a->family == b->family;
}

#endif
