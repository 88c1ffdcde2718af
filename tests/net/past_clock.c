/* Preloaded into a program: the time of day is PAST_CLOCK_SECONDS behind, all other clocks
 * are right. faketime would do it too, but makes system calls of its own in every process,
 * which a seccomp filter does not forgive. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *out)
{
	const char *seconds = getenv("PAST_CLOCK_SECONDS");
	int ret = (int)syscall(SYS_clock_gettime, clock, out);

	if (!ret && seconds && clock == CLOCK_REALTIME)
		out->tv_sec -= atol(seconds);
	return ret;
}
