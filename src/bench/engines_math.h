/* The pure parts of the engines bench: the messages that its source sends, and the search for
 * the greatest rate without loss. Any thread. */
#ifndef BENCH_ENGINES_MATH_H
#define BENCH_ENGINES_MATH_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Messages: to the kernel's sorter they are data messages of WireGuard. */
enum { PARCEL_LEN_MIN = 32 };

/* Fill len bytes (PARCEL_LEN_MIN at least, a multiple of 4) for parcel_stamp. */
void parcel_init(uint8_t *out, size_t len);
/* Its number and the time when it is sent. */
void parcel_stamp(uint8_t *parcel, uint64_t number, uint64_t sent_ns);
/* Is it one, whole and unchanged but for what parcel_stamp wrote, of len bytes? */
bool parcel_is_good(const uint8_t *parcel, size_t len, size_t len_wanted);
uint64_t parcel_number(const uint8_t *parcel);
uint64_t parcel_sent_ns(const uint8_t *parcel);

/* ---- Rate: doubled until it is too much, then halving the gap, a bounded number of
 * times. All zero is no state: rate_search_init. */
enum { RATE_STEPS_MAX = 12 };
struct rate_search {
	double good; /* the greatest that went through whole; 0: none yet */
	double bad; /* the least that did not; 0: none yet */
	double next; /* to be tried */
	double max; /* no more than that is tried */
	unsigned n_steps;
};

void rate_search_init(struct rate_search *s, double first, double max);
/* next was tried: did all come through? true: try next; false: good is the answer, to a
 * tenth, or to what RATE_STEPS_MAX allows. good 0: nothing came through whole. */
MUST_CHECK bool rate_search_step(struct rate_search *s, bool is_good);

#endif
