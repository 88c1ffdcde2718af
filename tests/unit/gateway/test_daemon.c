/* The test plays the shell: a child is the command, which starts the daemon; the
 * daemon becomes ours when its parent ends (PR_SET_CHILD_SUBREAPER), so that it
 * can be collected and nothing is left. */
#include "gateway/daemon.h"
#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* What the daemon tells the test. */
struct report {
	pid_t pid, sid, pgid;
	bool is_at_root, has_null[3];
	int ready;
};

static int to_daemon[2], to_test[2]; /* "go on"; struct report */
static int output[2]; /* the command's standard output and error */

static void setup_pipes(void)
{
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
	assert_int_equal(pipe2(to_daemon, O_CLOEXEC), 0);
	assert_int_equal(pipe2(to_test, O_CLOEXEC), 0);
	assert_int_equal(pipe2(output, O_CLOEXEC), 0);
}

static void close_pipes(void)
{
	int *pipes[] = { to_daemon, to_test, output };

	for (size_t i = 0; i < ARRAY_LEN(pipes); i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
}

static void send_report(int ready)
{
	struct report r = { getpid(), getsid(0), getpgid(0), false, { false }, ready };
	struct stat st, null;
	char dir[64] = "";

	r.is_at_root = getcwd(dir, sizeof(dir)) && strcmp(dir, "/") == 0;
	for (int fd = 0; fd < 3; fd++)
		r.has_null[fd] = stat("/dev/null", &null) == 0 && fstat(fd, &st) == 0 &&
			st.st_rdev == null.st_rdev && S_ISCHR(st.st_mode);
	if (write(to_test[1], &r, sizeof(r)) != sizeof(r))
		_exit(99);
}

static struct report get_report(void)
{
	struct pollfd p = { .fd = to_test[0], .events = POLLIN };
	struct report r;

	assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(read(to_test[0], &r, sizeof(r)), sizeof(r));
	return r;
}

/* Start the command: daemon_start, then body in the daemon. */
static pid_t start_command(void (*body)(struct daemon *d))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct daemon d;

		dup2(output[1], STDOUT_FILENO);
		dup2(output[1], STDERR_FILENO);
		printf("buffered once\n");
		if (daemon_start(&d) != 0)
			_exit(98);
		close(output[0]);
		close(output[1]);
		close(to_daemon[1]);
		body(&d);
		_exit(0);
	}
	return pid;
}

static int exit_status(pid_t pid)
{
	uint64_t deadline_ns = clock_now_ns() + 5 * NSEC_PER_SEC;
	int status;

	/* -1: not our child yet, the process between has not ended. */
	while (waitpid(pid, &status, WNOHANG) != pid) {
		if (clock_now_ns() > deadline_ns) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			fail_msg("process does not end");
		}
		usleep(1000);
	}
	if (!WIFEXITED(status))
		fail_msg("process ended by signal %d", WTERMSIG(status));
	return WEXITSTATUS(status);
}

static void wait_for_go(void)
{
	char c;

	if (read(to_daemon[0], &c, 1) != 1)
		_exit(97);
}

static void ready_body(struct daemon *d)
{
	send_report(1);
	wait_for_go();
	send_report(daemon_ready(d));
	wait_for_go();
}

static void ready_test(void **state)
{
	struct report before, after;
	char text[64] = "";
	pid_t command;
	int status;

	setup_pipes();
	command = start_command(ready_body);
	before = get_report();
	assert_int_not_equal(before.pid, command);
	assert_int_not_equal(before.sid, getsid(0));
	assert_int_not_equal(before.sid, before.pid); /* no leader: gets no terminal */
	assert_int_equal(before.sid, before.pgid);
	assert_false(before.has_null[1]);
	/* The command waits as long as the daemon is not ready. */
	usleep(100 * 1000);
	assert_int_equal(waitpid(command, &status, WNOHANG), 0);
	assert_int_equal(write(to_daemon[1], "x", 1), 1);
	after = get_report();
	assert_int_equal(after.ready, 0);
	assert_int_equal(after.pid, before.pid);
	assert_true(after.is_at_root);
	assert_true(after.has_null[0] && after.has_null[1] && after.has_null[2]);
	assert_int_equal(exit_status(command), 0);
	/* `$(penstock-wg wg0)`: the pipe ends though the daemon lives. */
	close(output[1]);
	assert_int_equal(read(output[0], text, sizeof(text)), strlen("buffered once\n"));
	assert_int_equal(read(output[0], text, sizeof(text)), 0);
	output[1] = -1;
	assert_int_equal(waitpid(after.pid, &status, WNOHANG), 0);
	assert_int_equal(write(to_daemon[1], "x", 1), 1);
	assert_int_equal(exit_status(after.pid), 0);
	close_pipes();
}

static void fail_7_body(struct daemon *d)
{
	daemon_fail(d, 7);
	daemon_fail(d, 8); /* no second word */
	send_report(0);
}

static void fail_0_body(struct daemon *d)
{
	daemon_fail(d, 0);
	send_report(0);
}

static void fail_256_body(struct daemon *d)
{
	daemon_fail(d, 256);
	send_report(0);
}

static void dies_body(struct daemon *d)
{
	send_report(0); /* and leaves without a word */
}

static void run_failing(void (*body)(struct daemon *d), int expected)
{
	struct report r;
	pid_t command;

	setup_pipes();
	command = start_command(body);
	r = get_report();
	assert_int_equal(exit_status(command), expected);
	assert_int_equal(exit_status(r.pid), 0);
	close_pipes();
}

static void fail_test(void **state)
{
	run_failing(fail_7_body, 7);
	run_failing(fail_0_body, 1);
	run_failing(fail_256_body, 1);
}

static void dies_test(void **state)
{
	run_failing(dies_body, 1);
}

/* Ctrl-C while it starts: the daemon learns that nobody waits. */
static void command_killed_test(void **state)
{
	struct report r;
	pid_t command;
	int status;

	setup_pipes();
	command = start_command(ready_body);
	get_report();
	assert_int_equal(kill(command, SIGKILL), 0);
	assert_int_equal(waitpid(command, &status, 0), command);
	assert_int_equal(write(to_daemon[1], "x", 1), 1);
	r = get_report();
	assert_int_equal(r.ready, -EPIPE);
	assert_int_equal(write(to_daemon[1], "x", 1), 1);
	assert_int_equal(exit_status(r.pid), 0);
	close_pipes();
}

static void foreground_test(void **state)
{
	struct daemon d = { .fd = -1 };
	struct stat before, after;

	assert_int_equal(fstat(STDOUT_FILENO, &before), 0);
	assert_int_equal(daemon_ready(&d), 0);
	daemon_fail(&d, 1);
	assert_int_equal(fstat(STDOUT_FILENO, &after), 0);
	assert_int_equal(before.st_ino, after.st_ino);
	assert_int_equal(before.st_rdev, after.st_rdev);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ready_test),
		cmocka_unit_test(fail_test),
		cmocka_unit_test(dies_test),
		cmocka_unit_test(command_killed_test),
		cmocka_unit_test(foreground_test),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
