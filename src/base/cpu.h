/* What this CPU can do, and where a thread runs. */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include "base/compiler.h"
#include <stdbool.h>

enum cpu_feature {
	CPU_AVX2 = 1 << 0,
	CPU_AVX512 = 1 << 1, /* F, BW, VL, DQ */
};

/* Features of this CPU, less what cpu_mask() took away. Any thread. */
unsigned cpu_features(void);
/* For tests: pretend the CPU has at most these. Before the threads start. */
void cpu_mask(unsigned features);

/* CPUs this process may run on. */
unsigned cpu_count(void);
/* Pin the calling thread to the CPU that stands at place cpu (0..cpu_count()-1)
 * among those. 0 or negative errno. */
MUST_CHECK int cpu_pin(unsigned cpu);

#endif
