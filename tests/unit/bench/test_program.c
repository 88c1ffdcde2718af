/* Children: what they write and how they end is seen; none outlives the bench. */
#include "bench/program.h"
#include "bench/rounds.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct program_place here = { -1, -1, -1 };

static void start(struct program *p, const char *script)
{
	const char *const argv[] = { "sh", "-c", script, NULL };

	assert_int_equal(program_start(p, &here, argv), 0);
}

/* Wait until it has written that to its standard output. */
static void wait_output(const struct program *p, const char *wanted)
{
	char text[64];
	int i;

	for (i = 0; i < 1000; i++) {
		program_output(p, text, sizeof(text));
		if (!strcmp(text, wanted))
			return;
		usleep(10000);
	}
	fail_msg("not \"%s\" but \"%s\"", wanted, text);
}

static void test_output_and_status(void **state)
{
	struct program p;
	char text[8];
	int status;

	start(&p, "echo out; echo errors >&2; exit 3");
	assert_int_equal(program_wait(&p, 10000, &status), 0);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 3);
	program_output(&p, text, sizeof(text));
	assert_string_equal(text, "out\n");
	program_errors(&p, text, 4);
	assert_string_equal(text, "err");
	program_end(&p);
	program_end(&p);
}

static void test_no_such_program(void **state)
{
	const char *const argv[] = { "/nowhere/at-all", NULL };
	struct program p;
	char text[64];
	int status;

	assert_int_equal(program_start(&p, &here, argv), 0);
	assert_int_equal(program_wait(&p, 10000, &status), 0);
	assert_int_equal(WEXITSTATUS(status), 127);
	program_errors(&p, text, sizeof(text));
	assert_string_equal(text, "/nowhere/at-all: No such file or directory\n");
	program_end(&p);
}

static void test_waiting_can_be_given_up(void **state)
{
	struct program p;
	int status;

	start(&p, "echo up; exec sleep 1000");
	wait_output(&p, "up\n");
	assert_int_equal(program_wait(&p, 50, &status), -ETIMEDOUT);
	rounds_stop(SIGINT);
	assert_int_equal(program_wait(&p, 10000, &status), -EINTR);
	rounds_resume();
	assert_true(program_is_running(&p));
	program_end(&p);
	assert_false(program_is_running(&p));
}

static void test_end_of_one_that_does_not_listen(void **state)
{
	struct program p;
	pid_t pid;

	start(&p, "trap '' TERM; echo up; while :; do sleep 0.1; done");
	wait_output(&p, "up\n");
	pid = p.pid;
	program_end(&p);
	assert_int_equal(kill(pid, 0), -1);
	assert_int_equal(errno, ESRCH);
}

/* The process that started it is killed: nobody is left to end it in order. */
static void test_dies_with_its_parent(void **state)
{
	struct program p;
	pid_t between, child;
	int fd[2], i;

	assert_int_equal(pipe(fd), 0);
	between = fork();
	assert_true(between >= 0);
	if (!between) {
		start(&p, "echo up; exec sleep 1000");
		wait_output(&p, "up\n");
		if (write(fd[1], &p.pid, sizeof(p.pid)) != sizeof(p.pid))
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(fd[0], &child, sizeof(child)), sizeof(child));
	/* The orphan becomes ours to collect. */
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	kill(between, SIGKILL);
	assert_int_equal(waitpid(between, NULL, 0), between);
	for (i = 0; i < 1000 && waitpid(child, NULL, WNOHANG) != child; i++)
		usleep(10000);
	if (i == 1000)
		kill(child, SIGKILL);
	assert_true(i < 1000);
	close(fd[0]);
	close(fd[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_output_and_status),
		cmocka_unit_test(test_no_such_program),
		cmocka_unit_test(test_waiting_can_be_given_up),
		cmocka_unit_test(test_end_of_one_that_does_not_listen),
		cmocka_unit_test(test_dies_with_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
