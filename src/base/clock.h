/* The clocks. The pure core reads none of them: it is told the time. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define NSEC_PER_SEC 1000000000ULL
#define NSEC_PER_MSEC 1000000ULL

/* Nanoseconds since boot, suspend included (CLOCK_BOOTTIME): a session's age
 * counts while the machine sleeps. Never goes back. */
uint64_t clock_now_ns(void);

/* Nanoseconds since 1970 (CLOCK_REALTIME): for TAI64N stamps and for
 * last_handshake_time only. May go back. */
uint64_t clock_wall_ns(void);

#endif
