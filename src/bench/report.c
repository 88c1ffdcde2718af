/* A report is filled while the bench runs and read at its end; samples stay in
 * the order in which they were taken, since a drift over the rounds is a finding
 * too. The JSON half is report_json.c. */
#include "bench/report.h"
#include "bench/stats.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int report_create(struct report **out, const char *bench, bool is_quick)
{
	struct report *r = calloc(1, sizeof(*r));

	if (!r)
		return -ENOMEM;
	r->bench = bench;
	r->is_quick = is_quick;
	*out = r;
	return 0;
}

void report_destroy(struct report *r)
{
	free(r);
}

static void copy_text(char *out, size_t cap, const char *text)
{
	size_t len = strlen(text);

	assert(len < cap);
	memcpy(out, text, len + 1);
}

struct figure *report_figure(struct report *r, const char *id, const char *unit, const char *claim)
{
	struct figure *f;
	size_t i;

	for (i = 0; i < r->n_figures; i++) {
		if (!strcmp(r->figures[i].id, id))
			return &r->figures[i];
	}
	assert(r->n_figures < REPORT_FIGURES_MAX);
	f = &r->figures[r->n_figures++];
	copy_text(f->id, sizeof(f->id), id);
	copy_text(f->unit, sizeof(f->unit), unit);
	copy_text(f->claim, sizeof(f->claim), claim);
	return f;
}

void figure_sample(struct figure *f, double v)
{
	if (!isfinite(v) || f->n_samples == REPORT_SAMPLES_MAX) {
		f->n_refused++;
		return;
	}
	f->samples[f->n_samples++] = v;
}

void figure_note(struct figure *f, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(f->note, sizeof(f->note), fmt, ap);
	va_end(ap);
}

double figure_value(const struct figure *f)
{
	double sorted[REPORT_SAMPLES_MAX];

	assert(f->n_samples > 0);
	memcpy(sorted, f->samples, f->n_samples * sizeof(sorted[0]));
	return stats_median(sorted, f->n_samples);
}

void report_skip(struct report *r, const char *id, const char *fmt, ...)
{
	struct skip *s;
	va_list ap;

	assert(r->n_skips < REPORT_SKIPS_MAX);
	s = &r->skips[r->n_skips++];
	copy_text(s->id, sizeof(s->id), id);
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof(s->why), fmt, ap);
	va_end(ap);
}

/* Three significant digits below a thousand, none after the point above. */
static const char *number_text(double v, char out[32])
{
	double size = fabs(v);
	int digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;

	snprintf(out, 32, "%.*f", digits, v);
	return out;
}

static void print_figure(const struct figure *f, FILE *out)
{
	char value[32], low[32], high[32], spread[72];
	double min = f->samples[0], max = f->samples[0];
	size_t i;

	for (i = 1; i < f->n_samples; i++) {
		min = fmin(min, f->samples[i]);
		max = fmax(max, f->samples[i]);
	}
	snprintf(spread, sizeof(spread), "%s..%s", number_text(min, low), number_text(max, high));
	fprintf(out, "%-42s %12s %-7s %-20s %s\n", f->id, number_text(figure_value(f), value),
		f->unit, spread, f->claim[0] ? f->claim : "-");
}

/* Figures that share a note stand before it together. */
static void print_notes(const struct report *r, FILE *out)
{
	const struct figure *f;
	size_t i, k;

	for (i = 0; i < r->n_figures; i++) {
		f = &r->figures[i];
		for (k = 0; k < i && strcmp(r->figures[k].note, f->note); k++)
			;
		if (!f->note[0] || k < i)
			continue;
		fprintf(out, "\n%s", f->id);
		for (k = i + 1; k < r->n_figures; k++) {
			if (!strcmp(r->figures[k].note, f->note))
				fprintf(out, ", %s", r->figures[k].id);
		}
		fprintf(out, ":\n    %s\n", f->note);
	}
}

void report_print(const struct report *r, FILE *out)
{
	size_t i;

	fprintf(out, "%-42s %12s %-7s %-20s %s\n", r->bench, "median", "unit", "min..max", "claim");
	for (i = 0; i < r->n_figures; i++) {
		if (r->figures[i].n_samples)
			print_figure(&r->figures[i], out);
		else
			fprintf(out, "%-42s %12s %s\n", r->figures[i].id, "skipped",
				"no sample was taken");
	}
	for (i = 0; i < r->n_skips; i++)
		fprintf(out, "%-42s %12s %s\n", r->skips[i].id, "skipped", r->skips[i].why);
	print_notes(r, out);
	if (r->is_quick)
		fprintf(out, "A quick run: rough figures.\n");
}
