/* The replay window of one keypair: 8192 bits (RFC 6479), whole trains at a time.
 * All zero is the state before the first packet. Any thread: one spin flag,
 * taken once per train. Call only with counters of packets that authenticated. */
#ifndef WG_REPLAY_H
#define WG_REPLAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	REPLAY_BITS = 8192,
	REPLAY_WORDS = REPLAY_BITS / 64,
	REPLAY_WINDOW = REPLAY_BITS - 64, /* how far behind the greatest a counter may be: 8128 */
};

/* 2^64 - 2^13 - 1: this counter and those above are never accepted nor sent. */
#define REPLAY_REJECT_AFTER (UINT64_MAX - 8192)

struct replay {
	atomic_flag busy;
	uint64_t next; /* greatest counter seen, plus one */
	uint64_t map[REPLAY_WORDS];
};

void replay_init(struct replay *r);

/* Which of n counters are seen for the first time? Marks them as seen. They are
 * judged in order, so of two equal ones the first can be fresh. */
void replay_check_train(struct replay *r, const uint64_t *counters, size_t n, bool *fresh);

/* A train of one. */
bool replay_check(struct replay *r, uint64_t counter);

#endif
