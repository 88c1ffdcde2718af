/* The Internet checksum (RFC 1071). Pure, any thread. Sums are carried as
 * native-endian 64-bit partial sums so that pieces add up in any order as long
 * as each piece but the last has an even length. */
#ifndef WIRE_CSUM_H
#define WIRE_CSUM_H

#include <stddef.h>
#include <stdint.h>

/* Add len bytes at p to sum. Chooses the widest version the CPU has. */
uint64_t csum_add(uint64_t sum, const void *p, size_t len);
/* The portable version, always there: what the others are tested against. */
uint64_t csum_add_portable(uint64_t sum, const void *p, size_t len);
#if defined(__x86_64__)
uint64_t csum_add_avx2(uint64_t sum, const void *p, size_t len);
uint64_t csum_add_avx512(uint64_t sum, const void *p, size_t len);
#endif

/* Fold a partial sum to 16 bits, in memory order: store it with memcpy.
 * Not yet complemented. */
static inline uint16_t csum_fold(uint64_t sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

/* Partial sum of the TCP/UDP pseudo header (RFC 793, RFC 8200 section 8.1).
 * addr_len is 4 or 16, src and dst are in network order, l4_len in bytes. */
uint64_t csum_pseudo(
	const void *src, const void *dst, size_t addr_len, uint8_t proto, uint32_t l4_len);

#endif
