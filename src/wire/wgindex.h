/* Receiver indices: what is in their 32 bits, and the keyed permutation that
 * hides it. Here, not in wg, because steering programs in eBPF (in io and
 * balance) must find worker and server from an index: pure integer arithmetic
 * without memory. A BPF program defines struct sipkey and siphash13_u64 itself
 * before it includes this file.
 *
 *     bit 31      key epoch, in clear: which of two keys to use
 *     bits 30..0  permutation of
 *                   server id   7 bits  (30..24)
 *                   slot       20 bits  (23..4); its top worker_bits name the worker
 *                   generation  4 bits  (3..0)
 *
 * Budget: 2^17 peers, each with up to 3 keypairs and 1 handshake, need 2^19
 * slots; 2^20 leave the worker field room to be uneven by a factor of two.
 * worker = slot >> (20 - worker_bits), worker_bits = ceil(log2(n_workers)).
 *
 * The permutation is an unbalanced Feistel network (15 and 16 bits), 8 rounds,
 * with SipHash-1-3 as round function. Without the key an index looks random:
 * neither worker nor server nor the number of sessions shows. */
#ifndef WIRE_WGINDEX_H
#define WIRE_WGINDEX_H

#ifndef __bpf__
#include "base/hash.h"
#include <stdint.h>
#endif

enum {
	WGINDEX_SERVER_BITS = 7,
	WGINDEX_SLOT_BITS = 20,
	WGINDEX_GEN_BITS = 4,
	WGINDEX_BITS = WGINDEX_SERVER_BITS + WGINDEX_SLOT_BITS + WGINDEX_GEN_BITS,
	WGINDEX_ROUNDS = 8,
	WGINDEX_LEFT = 0x7fff,
	WGINDEX_RIGHT = 0xffff,
};

static inline uint32_t wgindex_pack(uint32_t server, uint32_t slot, uint32_t gen)
{
	return server << (WGINDEX_SLOT_BITS + WGINDEX_GEN_BITS) | slot << WGINDEX_GEN_BITS | gen;
}

static inline uint32_t wgindex_server(uint32_t plain)
{
	return plain >> (WGINDEX_SLOT_BITS + WGINDEX_GEN_BITS) & ((1u << WGINDEX_SERVER_BITS) - 1);
}

static inline uint32_t wgindex_slot(uint32_t plain)
{
	return plain >> WGINDEX_GEN_BITS & ((1u << WGINDEX_SLOT_BITS) - 1);
}

static inline uint32_t wgindex_gen(uint32_t plain)
{
	return plain & ((1u << WGINDEX_GEN_BITS) - 1);
}

static inline uint32_t wgindex_worker(uint32_t plain, unsigned worker_bits)
{
	return wgindex_slot(plain) >> (WGINDEX_SLOT_BITS - worker_bits);
}

static inline uint32_t wgindex_epoch(uint32_t index)
{
	return index >> 31;
}

/* One round's mask. The round number keeps the rounds different. */
static inline uint32_t wgindex_round(const struct sipkey *key, uint32_t round, uint32_t half)
{
	return (uint32_t)siphash13_u64(key, (uint64_t)round << 32 | half);
}

/* 31 plain bits to 31 masked bits. Even rounds change the left half (15 bits),
 * odd ones the right half (16 bits). */
static inline uint32_t wgindex_mask(const struct sipkey *key, uint32_t plain)
{
	uint32_t left = plain >> 16 & WGINDEX_LEFT, right = plain & WGINDEX_RIGHT;

	for (uint32_t i = 0; i < WGINDEX_ROUNDS; i += 2) {
		left ^= wgindex_round(key, i, right) & WGINDEX_LEFT;
		right ^= wgindex_round(key, i + 1, left) & WGINDEX_RIGHT;
	}
	return left << 16 | right;
}

/* The inverse; bit 31 of masked is ignored. */
static inline uint32_t wgindex_unmask(const struct sipkey *key, uint32_t masked)
{
	uint32_t left = masked >> 16 & WGINDEX_LEFT, right = masked & WGINDEX_RIGHT;

	for (uint32_t i = WGINDEX_ROUNDS; i > 0; i -= 2) {
		right ^= wgindex_round(key, i - 1, left) & WGINDEX_RIGHT;
		left ^= wgindex_round(key, i - 2, right) & WGINDEX_LEFT;
	}
	return left << 16 | right;
}

#endif
