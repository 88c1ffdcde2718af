/* Order statistics of a handful of samples. Pure, any thread. */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include <stddef.h>

/* The middle sample, or the mean of the two in the middle. n > 0; the samples
 * are sorted in place. */
double stats_median(double *v, size_t n);

/* Index of the largest number, the first of equal ones; NAN takes no part. n when there is no
 * number. */
size_t stats_best(const double *v, size_t n);

#endif
