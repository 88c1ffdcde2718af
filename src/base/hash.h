/* SipHash-2-4 and SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast
 * short-input PRF") with a 128-bit key. Any thread. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct sipkey {
	uint64_t k[2];
};

uint64_t siphash24(const struct sipkey *key, const void *in, size_t len);
uint64_t siphash13(const struct sipkey *key, const void *in, size_t len);

/* SipHash-1-3 of the eight bytes of v (little endian): the short form that the
 * receiver-index permutation calls for each round. */
uint64_t siphash13_u64(const struct sipkey *key, uint64_t v);

#endif
