/* Figures, the table, and the JSON read back by the library's parser. */
#include "bench/report.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
	struct report *r;
	char dir[64];
	char path[128];
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f || report_create(&f->r, "demo", true) < 0)
		return -1;
	strcpy(f->dir, "/tmp/penstock-report.XXXXXX");
	if (!mkdtemp(f->dir))
		return -1;
	snprintf(f->path, sizeof(f->path), "%s/out.json", f->dir);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	report_destroy(f->r);
	unlink(f->path);
	if (rmdir(f->dir) < 0) /* fails if anything was left beside the file */
		return -1;
	free(f);
	return 0;
}

static int count_files(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2; /* . and .. */
}

static void fill(struct report *r)
{
	struct figure *f = report_figure(r, "speed", "1/s", "must >= 4500");

	figure_sample(f, 5000.25);
	figure_sample(f, 4000);
	figure_sample(f, 6000);
	figure_note(f, "first thought");
	figure_note(f, "slower: %d others", 7);
	report_figure(r, "silent", "ns", "");
	report_skip(r, "absent", "no \"%s\" here", "cipher");
}

static void test_json_read_back(void **state)
{
	struct fixture *fx = *state;
	const char *bench, *date, *cpu, *kernel, *id, *unit, *claim, *note, *why;
	json_t *j, *figures, *skipped, *samples;
	int is_quick;
	json_int_t cores;
	double value;

	fill(fx->r);
	assert_int_equal(report_json_write(fx->r, fx->path), 0);
	j = json_load_file(fx->path, JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(j);
	/* "!": no keys but these. */
	assert_int_equal(
		json_unpack(j, "{s:s, s:s, s:b, s:{s:s, s:I, s:s !}, s:o, s:o !}", "bench", &bench,
			"date", &date, "quick", &is_quick, "machine", "cpu", &cpu, "cores", &cores,
			"kernel", &kernel, "figures", &figures, "skipped", &skipped),
		0);
	assert_string_equal(bench, "demo");
	assert_int_equal(strlen(date), strlen("2026-11-30T15:09:00Z"));
	assert_true(is_quick);
	assert_true(cores >= 1);
	assert_true(strlen(cpu) > 0);
	assert_true(strlen(kernel) > 0);
	assert_int_equal(json_array_size(figures), 1);
	assert_int_equal(json_unpack(json_array_get(figures, 0), "{s:s, s:f, s:s, s:s, s:s, s:o !}",
				 "id", &id, "value", &value, "unit", &unit, "claim", &claim, "note",
				 &note, "samples", &samples),
		0);
	assert_string_equal(id, "speed");
	assert_true(value == 5000.25);
	assert_string_equal(unit, "1/s");
	assert_string_equal(claim, "must >= 4500");
	assert_string_equal(note, "slower: 7 others");
	assert_int_equal(json_array_size(samples), 3);
	assert_true(json_real_value(json_array_get(samples, 0)) == 5000.25);
	assert_true(json_real_value(json_array_get(samples, 2)) == 6000);
	assert_int_equal(json_array_size(skipped), 2);
	assert_int_equal(
		json_unpack(json_array_get(skipped, 1), "{s:s, s:s !}", "id", &id, "why", &why), 0);
	assert_string_equal(id, "absent");
	assert_string_equal(why, "no \"cipher\" here");
	assert_int_equal(json_unpack(json_array_get(skipped, 0), "{s:s}", "id", &id), 0);
	assert_string_equal(id, "silent");
	json_decref(j);
}

static void test_json_replaces_the_old_file(void **state)
{
	struct fixture *fx = *state;
	FILE *f = fopen(fx->path, "w");
	json_t *j;

	assert_non_null(f);
	fputs("old", f);
	fclose(f);
	assert_int_equal(report_json_probe(fx->path), 0);
	f = fopen(fx->path, "r");
	assert_int_equal(fgetc(f), 'o'); /* the probe changed nothing */
	fclose(f);
	fill(fx->r);
	assert_int_equal(report_json_write(fx->r, fx->path), 0);
	j = json_load_file(fx->path, 0, NULL);
	assert_non_null(j);
	json_decref(j);
	assert_int_equal(count_files(fx->dir), 1);
}

static void test_probe_leaves_nothing(void **state)
{
	struct fixture *fx = *state;

	assert_int_equal(report_json_probe(fx->path), 0);
	assert_int_equal(count_files(fx->dir), 0);
}

static void test_unwritable_paths(void **state)
{
	struct fixture *fx = *state;
	char path[160], longest[PATH_MAX + 2];

	snprintf(path, sizeof(path), "%s/none/out.json", fx->dir);
	assert_int_equal(report_json_probe(path), -ENOENT);
	fill(fx->r);
	assert_int_equal(report_json_write(fx->r, path), -ENOENT);
	assert_int_equal(report_json_probe(fx->dir), -EISDIR);
	assert_int_equal(report_json_probe(""), -ENOENT);
	assert_int_equal(report_json_probe("/proc/version/x"), -ENOTDIR);
	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	assert_int_equal(report_json_probe(longest), -ENAMETOOLONG);
	assert_int_equal(report_json_probe("/dev/null"), 0);
	assert_int_equal(report_json_write(fx->r, "/dev/null"), 0);
	assert_int_equal(report_json_write(fx->r, "/dev/full"), -ENOSPC);
}

static void test_a_pipe_without_reader_is_refused(void **state)
{
	struct fixture *fx = *state;

	assert_int_equal(mkfifo(fx->path, 0600), 0);
	assert_int_equal(report_json_probe(fx->path), -ENXIO);
}

static void test_samples_that_are_no_numbers(void **state)
{
	struct fixture *fx = *state;
	struct figure *f = report_figure(fx->r, "odd", "ns", "");
	json_t *j;

	figure_sample(f, NAN);
	figure_sample(f, INFINITY);
	assert_int_equal(f->n_samples, 0);
	assert_int_equal(f->n_refused, 2);
	assert_int_equal(report_json_write(fx->r, fx->path), 0);
	j = json_load_file(fx->path, 0, NULL);
	assert_int_equal(json_array_size(json_object_get(j, "figures")), 0);
	assert_int_equal(json_array_size(json_object_get(j, "skipped")), 1);
	json_decref(j);
}

static void test_more_samples_than_room(void **state)
{
	struct fixture *fx = *state;
	struct figure *f = report_figure(fx->r, "many", "ns", "");
	int i;

	for (i = 0; i <= REPORT_SAMPLES_MAX; i++)
		figure_sample(f, i);
	assert_int_equal(f->n_samples, REPORT_SAMPLES_MAX);
	assert_int_equal(f->n_refused, 1);
	assert_true(figure_value(f) == (REPORT_SAMPLES_MAX - 1) / 2.0);
	assert_true(f->samples[0] == 0); /* the median sorted a copy */
	assert_true(f->samples[REPORT_SAMPLES_MAX - 1] == REPORT_SAMPLES_MAX - 1);
}

static void test_same_id_is_the_same_figure(void **state)
{
	struct fixture *fx = *state;
	struct figure *f = report_figure(fx->r, "one", "ns", "");

	assert_ptr_equal(report_figure(fx->r, "one", "ns", ""), f);
	assert_ptr_not_equal(report_figure(fx->r, "two", "ns", ""), f);
	assert_int_equal(fx->r->n_figures, 2);
}

static void test_table_shows_claim_beside_value(void **state)
{
	struct fixture *fx = *state;
	char text[4096] = "", *line, *end;
	FILE *out = fmemopen(text, sizeof(text), "w");

	assert_non_null(out);
	fill(fx->r);
	report_print(fx->r, out);
	fclose(out);
	line = strstr(text, "\nspeed");
	assert_non_null(line);
	end = strchr(line + 1, '\n');
	assert_non_null(end);
	*end = '\0';
	assert_non_null(strstr(line, " 5000 "));
	assert_non_null(strstr(line, "4000..6000"));
	assert_non_null(strstr(line, "must >= 4500"));
	assert_non_null(strstr(end + 1, "no \"cipher\" here"));
	assert_non_null(strstr(end + 1, "silent"));
}

/* Notes come after the rows; one that several figures share is told once. One without is not
 * named again. */
static void test_notes_stand_below_the_table(void **state)
{
	struct fixture *fx = *state;
	char text[4096] = "", *at;
	FILE *out = fmemopen(text, sizeof(text), "w");
	struct figure *f;

	assert_non_null(out);
	fill(fx->r);
	f = report_figure(fx->r, "pace", "1/s", "");
	figure_sample(f, 1);
	figure_note(f, "slower: 7 others");
	f = report_figure(fx->r, "mute", "1/s", "");
	figure_sample(f, 1);
	report_print(fx->r, out);
	fclose(out);
	at = strstr(text, "\nspeed, pace:\n    slower: 7 others\n");
	assert_non_null(at);
	assert_true(at > strstr(text, "\nabsent"));
	assert_null(strstr(strstr(at, "7 others") + 1, "7 others"));
	assert_null(strstr(at, "mute"));
}

static void test_a_long_note_is_cut(void **state)
{
	struct fixture *fx = *state;
	struct figure *f = report_figure(fx->r, "one", "ns", "");

	figure_note(f, "%*s", 2 * REPORT_NOTE_MAX, "x");
	assert_int_equal(strlen(f->note), REPORT_NOTE_MAX - 1);
}

#define with_report(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_report(test_json_read_back),
		with_report(test_json_replaces_the_old_file),
		with_report(test_probe_leaves_nothing),
		with_report(test_unwritable_paths),
		with_report(test_a_pipe_without_reader_is_refused),
		with_report(test_samples_that_are_no_numbers),
		with_report(test_more_samples_than_room),
		with_report(test_same_id_is_the_same_figure),
		with_report(test_table_shows_claim_beside_value),
		with_report(test_notes_stand_below_the_table),
		with_report(test_a_long_note_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
