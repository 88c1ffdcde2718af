/* Preloaded into a program: the time of day is PAST_CLOCK_SECONDS behind, all other clocks
 * are right. faketime would do it too, but makes system calls of its own in every process,
 * which a seccomp filter does not forgive. */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *out)
{
	static int (*real)(clockid_t, struct timespec *);
	const char *seconds = getenv("PAST_CLOCK_SECONDS");
	int ret;

	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
	ret = real(clock, out);
	if (!ret && seconds && clock == CLOCK_REALTIME)
		out->tv_sec -= atol(seconds);
	return ret;
}
