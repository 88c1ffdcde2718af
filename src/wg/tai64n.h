/* TAI64N stamps of handshake initiations: 8 bytes of seconds and 4 of
 * nanoseconds, big endian, so that comparing bytes compares times. Pure. */
#ifndef WG_TAI64N_H
#define WG_TAI64N_H

#include <stdbool.h>
#include <stdint.h>

enum { TAI64N_LEN = 12 };

/* Stamp of a wall-clock time. The nanoseconds are rounded down to a multiple of
 * 2^24 (about 1/60 s) so that the stamp does not tell the state of our clock. */
void tai64n_encode(uint8_t out[TAI64N_LEN], uint64_t wall_ns);

/* Is a later than b? Equal stamps are not. */
bool tai64n_is_newer(const uint8_t a[TAI64N_LEN], const uint8_t b[TAI64N_LEN]);

#endif
