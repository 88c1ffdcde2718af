/* Medians, not means: one round disturbed by another program must not move the
 * figure. */
#include "bench/stats.h"
#include "base/compiler.h"
#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double stats_median(double *v, size_t n)
{
	assert(n > 0);
	qsort(v, n, sizeof(*v), compare);
	if (n % 2)
		return v[n / 2];
	return v[n / 2 - 1] / 2 + v[n / 2] / 2; /* halves first: the sum may overflow */
}

size_t stats_best(const double *v, size_t n)
{
	size_t best = n, i;

	for (i = 0; i < n; i++) {
		if (!isnan(v[i]) && (best == n || v[i] > v[best]))
			best = i;
	}
	return best;
}
