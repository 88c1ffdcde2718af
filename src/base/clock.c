/* See clock.h. */
#include "base/clock.h"
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return read_clock(CLOCK_BOOTTIME);
}

uint64_t clock_wall_ns(void)
{
	return read_clock(CLOCK_REALTIME);
}
