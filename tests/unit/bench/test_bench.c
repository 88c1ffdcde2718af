/* The command as a whole, each run in a process of its own: what it refuses,
 * that the benches deliver their figures, and that stopping leaves nothing. */
#include "bench/bench.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct fixture {
	char dir[64];
	char json[128], out[128], err[128];
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	if (!f)
		return -1;
	strcpy(f->dir, "/tmp/penstock-bench.XXXXXX");
	if (!mkdtemp(f->dir))
		return -1;
	snprintf(f->json, sizeof(f->json), "%s/json", f->dir);
	snprintf(f->out, sizeof(f->out), "%s/out", f->dir);
	snprintf(f->err, sizeof(f->err), "%s/err", f->dir);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	int ret;

	unlink(f->json);
	unlink(f->out);
	unlink(f->err);
	ret = rmdir(f->dir); /* fails if a run left something beside these */
	free(f);
	return ret;
}

static void redirect(const char *path, int fd)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (file < 0 || dup2(file, fd) < 0)
		_exit(99);
	close(file);
}

static pid_t start(struct fixture *f, const struct bench_options *o)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid)
		return pid;
	redirect(f->out, STDOUT_FILENO);
	redirect(f->err, STDERR_FILENO);
	exit(bench_main(o));
}

/* The exit status. */
static int finish(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
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

static void check_contains(const char *path, const char *wanted)
{
	char text[8192];
	FILE *f = fopen(path, "r");
	size_t len;

	assert_non_null(f);
	len = fread(text, 1, sizeof(text) - 1, f);
	text[len] = '\0';
	fclose(f);
	if (!strstr(text, wanted))
		fail_msg("\"%s\" is not in: %s", wanted, text);
}

static off_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_size;
}

static void test_unknown_name(void **state)
{
	struct fixture *f = *state;
	struct bench_options o = { .name = "handshake", .json_path = f->json };

	assert_int_equal(finish(start(f, &o)), 2);
	check_contains(f->err, "NAME: expected");
	check_contains(f->err, "not handshake\n");
	check_contains(f->err, "\n  handshakes ");
	check_contains(f->err, "\n  tunnels ");
	assert_int_equal(size_of(f->out), 0);
	assert_int_equal(access(f->json, F_OK), -1);
}

static void test_no_name(void **state)
{
	struct fixture *f = *state;
	struct bench_options o = { 0 };

	assert_int_equal(finish(start(f, &o)), 2);
	check_contains(f->err, "\n  tunnels ");
}

static void test_unwritable_json_is_refused_first(void **state)
{
	struct fixture *f = *state;
	char path[160];
	struct bench_options o = { .name = "tunnels", .is_quick = true, .json_path = path };

	snprintf(path, sizeof(path), "%s/none/json", f->dir);
	assert_int_equal(finish(start(f, &o)), 2);
	check_contains(f->err, "--json");
	check_contains(f->err, path);
	assert_int_equal(size_of(f->out), 0); /* nothing was run */
}

static void test_full_disk_is_an_error(void **state)
{
	struct fixture *f = *state;
	struct bench_options o = { .name = "tunnels", .is_quick = true, .json_path = "/dev/full" };

	assert_int_equal(finish(start(f, &o)), 1);
	check_contains(f->err, "--json /dev/full: No space left");
	check_contains(f->out, "seal_gbps"); /* the table is there all the same */
}

/* The value of a figure, which must be there with its samples. */
static double figure(const json_t *j, const char *id)
{
	const json_t *list = json_object_get(j, "figures"), *f;
	size_t i;

	for (i = 0; i < json_array_size(list); i++) {
		f = json_array_get(list, i);
		if (strcmp(json_string_value(json_object_get(f, "id")), id))
			continue;
		assert_int_equal(json_array_size(json_object_get(f, "samples")), 3);
		return json_number_value(json_object_get(f, "value"));
	}
	fail_msg("no figure %s", id);
	return 0;
}

static json_t *run_quick(struct fixture *f, const char *name)
{
	struct bench_options o = { .name = name, .is_quick = true, .json_path = f->json };
	json_t *j;

	assert_int_equal(finish(start(f, &o)), 0);
	assert_int_equal(size_of(f->err), 0); /* no terminal, no progress */
	j = json_load_file(f->json, 0, NULL);
	assert_non_null(j);
	assert_string_equal(json_string_value(json_object_get(j, "bench")), name);
	return j;
}

static void test_handshakes(void **state)
{
	struct fixture *f = *state;
	json_t *j = run_quick(f, "handshakes");

	check_contains(f->out, "must >= 4500");
	assert_true(figure(j, "handshakes_per_core") > 1);
	assert_true(figure(j, "handshake_answer_p50_us") > 1);
	assert_true(figure(j, "handshake_answer_p99_us") >= figure(j, "handshake_answer_p50_us"));
	json_decref(j);
}

static void test_tunnels(void **state)
{
	struct fixture *f = *state;
	json_t *j = run_quick(f, "tunnels");

	/* More than nothing. How they compare is for quiet machines to say. */
	assert_true(figure(j, "aead_openssl_64_ns") > 1);
	assert_true(figure(j, "aead_openssl_1420_ns") > 1);
	assert_true(figure(j, "seal_ns_per_packet") > 10);
	assert_true(figure(j, "open_ns_per_packet") > 10);
	assert_true(figure(j, "seal_gbps") > 0);
	json_decref(j);
}

static void check_stop(struct fixture *f, const char *name, int sig)
{
	struct bench_options o = { .name = name, .json_path = f->json };
	struct timespec a_while = { .tv_nsec = 300000000 };
	pid_t pid = start(f, &o);

	nanosleep(&a_while, NULL);
	assert_int_equal(kill(pid, sig), 0);
	assert_int_equal(finish(pid), 128 + sig);
	assert_int_equal(size_of(f->out), 0);
	assert_int_equal(count_files(f->dir), 2); /* out and err: no JSON, whole or half */
}

static void test_interrupt(void **state)
{
	check_stop(*state, "handshakes", SIGINT);
}

static void test_terminate(void **state)
{
	check_stop(*state, "tunnels", SIGTERM);
}

#define with_dir(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		with_dir(test_unknown_name),
		with_dir(test_no_name),
		with_dir(test_unwritable_json_is_refused_first),
		with_dir(test_full_disk_is_an_error),
		with_dir(test_handshakes),
		with_dir(test_tunnels),
		with_dir(test_interrupt),
		with_dir(test_terminate),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
