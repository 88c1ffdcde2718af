/* TAI64N as WireGuard writes it: the label of 1970 is 2^62 + 10 s, leap seconds
 * since then are not counted. Only the order of stamps of one peer matters. */
#include "wg/tai64n.h"
#include "base/bytes.h"
#include "base/clock.h"

#define TAI64N_EPOCH 0x400000000000000aULL

enum { WHITE_BITS = 24 }; /* of the nanoseconds, cleared */

void tai64n_encode(uint8_t out[TAI64N_LEN], uint64_t wall_ns)
{
	uint32_t ns = (uint32_t)(wall_ns % NSEC_PER_SEC);

	put_be64(out, TAI64N_EPOCH + wall_ns / NSEC_PER_SEC);
	put_be32(out + 8, ns >> WHITE_BITS << WHITE_BITS);
}

bool tai64n_is_newer(const uint8_t a[TAI64N_LEN], const uint8_t b[TAI64N_LEN])
{
	return memcmp(a, b, TAI64N_LEN) > 0;
}
