/* What a bench found: figures with their samples and claims, and what could not
 * be measured and why. As a table and as JSON. One thread. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stdio.h>

enum {
	REPORT_ID_MAX = 48,
	REPORT_UNIT_MAX = 16,
	REPORT_TEXT_MAX = 128,
	REPORT_NOTE_MAX = 384,
	REPORT_FIGURES_MAX = 96, /* full: asserts, since ids are ours and few */
	REPORT_SKIPS_MAX = 64, /* the same */
	REPORT_SAMPLES_MAX = 64, /* per figure; full: refused, see below */
};

struct figure {
	char id[REPORT_ID_MAX];
	char unit[REPORT_UNIT_MAX];
	char claim[REPORT_TEXT_MAX]; /* empty: nothing was claimed */
	char note[REPORT_NOTE_MAX]; /* why it differs from the claim; empty: nothing to say */
	double samples[REPORT_SAMPLES_MAX]; /* in the order in which they were taken */
	size_t n_samples;
	size_t n_refused; /* samples that were no numbers or had no room */
};

struct skip {
	char id[REPORT_ID_MAX];
	char why[REPORT_TEXT_MAX];
};

struct report {
	const char *bench;
	bool is_quick;
	struct figure figures[REPORT_FIGURES_MAX];
	size_t n_figures;
	struct skip skips[REPORT_SKIPS_MAX];
	size_t n_skips;
};

/* bench is kept, not copied. 0 or -ENOMEM. */
MUST_CHECK int report_create(struct report **out, const char *bench, bool is_quick);
void report_destroy(struct report *r);

/* The figure with that id; made, with no samples, if it is new. The strings are
 * copied and must fit. */
struct figure *report_figure(struct report *r, const char *id, const char *unit, const char *claim);
/* One more sample. Refused, and counted as such, if it is not finite. */
void figure_sample(struct figure *f, double v);
/* What is to be said about it, above all why it is not what was claimed: one or a few
 * sentences, printed below the table. The last one counts; what does not fit is cut. */
void figure_note(struct figure *f, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The median of the samples; there must be one. */
double figure_value(const struct figure *f);

/* The figure could not be measured, and why. A figure that has no samples when
 * the report is printed counts as skipped as well. */
void report_skip(struct report *r, const char *id, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The table for people. */
void report_print(const struct report *r, FILE *out);

/* Can path be written? Leaves nothing behind. 0 or negative errno. */
MUST_CHECK int report_json_probe(const char *path);
/* Write the JSON (doc/bench.md). A regular file is replaced as a whole: readers
 * see the old or the new one. 0 or negative errno, and then the old one stays. */
MUST_CHECK int report_json_write(const struct report *r, const char *path);

#endif
