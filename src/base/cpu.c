/* How it works: features and the set of permitted CPUs are found out once. The
 * set is kept as it was at the first call, before any thread pinned itself. */
#include "base/cpu.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { CPUS_MAX = 4096 }; /* CPUs numbered above are not used */

union cpus {
	cpu_set_t set;
	unsigned char room[CPUS_MAX / 8];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic unsigned allowed = ~0U;
static unsigned found; /* these three: written once, under once */
static unsigned n_cpus;
static union cpus cpus;

static void look(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2"))
		found |= CPU_AVX2;
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		found |= CPU_AVX512;
#endif
	if (!sched_getaffinity(0, sizeof(cpus), &cpus.set))
		n_cpus = (unsigned)CPU_COUNT_S(sizeof(cpus), &cpus.set);
	if (n_cpus == 0)
		n_cpus = 1;
}

unsigned cpu_features(void)
{
	pthread_once(&once, look);
	/* relaxed: a lone word, set before the threads start */
	return found & atomic_load_explicit(&allowed, memory_order_relaxed);
}

void cpu_mask(unsigned features)
{
	atomic_store_explicit(&allowed, features, memory_order_relaxed);
}

unsigned cpu_count(void)
{
	pthread_once(&once, look);
	return n_cpus;
}

int cpu_pin(unsigned cpu)
{
	union cpus one = { 0 };
	unsigned i, nth = 0;
	int ret;

	pthread_once(&once, look);
	for (i = 0; i < CPUS_MAX; i++) {
		if (CPU_ISSET_S(i, sizeof(cpus), &cpus.set) && nth++ == cpu)
			break;
	}
	if (i == CPUS_MAX)
		return -EINVAL;
	CPU_SET_S(i, sizeof(one), &one.set);
	ret = pthread_setaffinity_np(pthread_self(), sizeof(one), &one.set);
	return ret ? -ret : 0;
}
