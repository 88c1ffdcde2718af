/* Tells the sender of an inner packet that it cannot be delivered: no peer has its
 * destination, or the peer's endpoint is not known. Linux answers such packets with ICMP
 * "destination unreachable", so that connections fail at once instead of hanging.
 *
 * Data workers offer packets; the control thread, which owns the helper process, sends.
 * In between is a bounded lock-free queue. What is too much is not answered. */
#ifndef GATEWAY_UNREACH_H
#define GATEWAY_UNREACH_H

#include "base/compiler.h"
#include "gateway/privhelper.h"
#include "link/link.h"
#include <stdint.h>

enum {
	UNREACH_QUEUE = 64, /* packets; full: not answered */
	/* Of all workers. Linux allows 1,000 a second for the whole machine
	 * (icmp_msgs_per_sec, icmp_msgs_burst); ours need a helper and share a thread. */
	UNREACH_PER_SEC = 100,
	UNREACH_BURST = 50,
	/* To one address, unless it is one of this machine: as Linux (icmp_ratelimit). */
	UNREACH_DEST_PER_SEC = 1,
	UNREACH_DEST_BURST = 6,
	UNREACH_DEST_WAYS = 8,
	UNREACH_DEST_SETS = 64,
	/* Addresses that were told something of late; a set that is full: new ones are not
	 * told. The sum of all allows 100 new ones a second, and each is forgotten a second
	 * after its first. */
	UNREACH_DESTS = UNREACH_DEST_WAYS * UNREACH_DEST_SETS,
};

#define UNREACH_COUNTS(X)                                                                  \
	X(SENT, "icmp_unreach_sent", "packets answered with ICMP destination unreachable") \
	X(LIMITED, "icmp_unreach_limited", "not answered: too many")                       \
	X(FAILED, "icmp_unreach_failed", "not answered: no way to the sender")

enum unreach_count {
#define X(name, key, text) UNREACH_##name,
	UNREACH_COUNTS(X)
#undef X
		UNREACH_COUNT_N
};
const char *unreach_count_key(enum unreach_count i);
const char *unreach_count_text(enum unreach_count i);

struct unreach;

/* tun and priv stay the caller's and must outlive it. 0 or negative errno. */
MUST_CHECK int unreach_create(struct unreach **out, const struct tun *tun, struct privhelper *priv);
/* No worker may be offering any more. NULL is fine. */
void unreach_destroy(struct unreach *u);

/* This inner packet (or superframe, which counts as one) cannot be delivered: answer it, if
 * it may be answered and not too many were. len bytes at pkt, from the IP header on.
 * Data workers; takes no lock, allocates nothing, and enters the kernel only to wake
 * the control thread, for an answer that will be sent. */
void unreach_offer(struct unreach *u, const uint8_t *pkt, size_t len, uint64_t now_ns);

/* Readable: unreach_serve has something to do. */
int unreach_fd(const struct unreach *u);
/* Send some of what was offered. Control thread; blocks as a call of the helper does. */
void unreach_serve(struct unreach *u, uint64_t now_ns);

/* Fill out[UNREACH_COUNT_N]. Any thread. */
void unreach_counts(const struct unreach *u, uint64_t out[UNREACH_COUNT_N]);

#endif
