/* The filter with small lists. Each test filters itself in a child, since there is
 * no way back. A child says what it found by its exit status. The lists of the
 * gateway are tested in tests/unit/gateway/test_calls.c. */
#include "base/sandbox_filter.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define EXPECT(cond)                                                                         \
	do {                                                                                 \
		if (!(cond)) {                                                               \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #cond, errno); \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)

#define WHOLE 0xffffffffu

/* What the children need to live, and something to try of each kind. */
static const struct sandbox_call table[] = {
	{ .nr = SYS_exit_group },
	{ .nr = SYS_exit },
	{ .nr = SYS_write },
	{ .nr = SYS_futex },
	{ .nr = SYS_rt_sigprocmask },
	{ .nr = SYS_getppid },
	{ .nr = SYS_getppid }, /* twice is no mistake */
	{ .nr = SYS_gettid, .is_refused = true },
	{ .nr = SYS_prctl, .n_args = 1, .args = { { 0, .mask = WHOLE, .value = PR_GET_NAME } } },
	{ .nr = SYS_socket,
		.n_args = 2,
		.args = { { 0, .mask = WHOLE, .value = AF_INET },
			{ 1, .mask = 0xf, .value = SOCK_DGRAM } } },
	{ .nr = SYS_socket,
		.is_refused = true,
		.n_args = 1,
		.args = { { 0, .mask = WHOLE, .value = AF_UNIX } } },
	{ .nr = SYS_mprotect, .n_args = 1, .args = { { 2, .mask = PROT_EXEC, .value = 0 } } },
	{ .nr = SYS_kill, .n_args = 1, .args = { { 0, .who = SANDBOX_HELPER, .mask = WHOLE } } },
	{ .nr = SYS_tgkill, .n_args = 1, .args = { { 0, .who = SANDBOX_SELF, .mask = WHOLE } } },
};
static const struct sandbox_calls calls = { table, ARRAY_LEN(table) };

/* The status that wait() gives for body in a child. */
static int run(void (*body)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void filter_body(void)
{
	EXPECT(sandbox_filter(&calls, SANDBOX_STRICT, 0) == 0);
}

/* Skips, or ends the test, where there is no filter. */
static bool has_filter(void)
{
	if (IS_SANITIZED) {
		assert_int_equal(sandbox_filter(&calls, SANDBOX_STRICT, 0), -EOPNOTSUPP);
		assert_int_equal(prctl(PR_GET_SECCOMP, 0, 0, 0, 0), 0);
		return false;
	}
	if (run(filter_body) != 0) {
		print_message("skip: no seccomp filters here\n");
		skip();
	}
	return true;
}

static void expect_well(void (*body)(void))
{
	if (has_filter())
		assert_int_equal(run(body), 0);
}

static int try(long ret)
{
	return ret < 0 ? errno : 0;
}

static void strict_body(void)
{
	EXPECT(sandbox_filter(&calls, SANDBOX_STRICT, 0) == 0);
	EXPECT(try(syscall(SYS_getppid)) == 0);
	EXPECT(try(syscall(SYS_getuid)) == EPERM);
	EXPECT(try(syscall(SYS_execve, "/bin/true", NULL, NULL)) == EPERM);
	EXPECT(try(syscall(SYS_gettid)) == ENOSYS);
}

static void strict_test(void **state)
{
	expect_well(strict_body);
}

static void arguments_body(void)
{
	char name[16];
	void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(page != MAP_FAILED);
	EXPECT(sandbox_filter(&calls, SANDBOX_STRICT, 0) == 0);
	EXPECT(try(prctl(PR_GET_NAME, name)) == 0);
	EXPECT(try(prctl(PR_SET_NAME, "other")) == EPERM);
	EXPECT(try(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) == 0);
	EXPECT(try(socket(AF_INET, SOCK_STREAM, 0)) == EPERM);
	EXPECT(try(socket(AF_INET6, SOCK_DGRAM, 0)) == EPERM);
	EXPECT(try(socket(AF_UNIX, SOCK_DGRAM, 0)) == ENOSYS);
	EXPECT(try(mprotect(page, 4096, PROT_READ | PROT_WRITE)) == 0);
	EXPECT(try(mprotect(page, 4096, PROT_READ | PROT_EXEC)) == EPERM);
	/* The kernel takes an int and looks at no upper half: neither may the filter. */
	EXPECT(try(syscall(SYS_prctl, 1ul << 32 | PR_GET_NAME, name)) == 0);
	EXPECT(try(syscall(SYS_socket, AF_INET | 1ul << 40, SOCK_DGRAM, 0)) == 0);
}

static void arguments_test(void **state)
{
	expect_well(arguments_body);
}

static void processes_body(void)
{
	pid_t other = fork();

	if (other == 0) {
		pause();
		_exit(0);
	}
	EXPECT(other > 0);
	EXPECT(sandbox_filter(&calls, SANDBOX_STRICT, other) == 0);
	EXPECT(try(kill(getppid(), 0)) == EPERM);
	EXPECT(try(kill(0, 0)) == EPERM);
	EXPECT(try(kill(-1, 0)) == EPERM);
	EXPECT(try(syscall(SYS_tgkill, other, other, SIGTERM)) == EPERM);
	EXPECT(try(kill(other, SIGKILL)) == 0);
}

static void processes_test(void **state)
{
	expect_well(processes_body);
}

static void self_body(void)
{
	pid_t self = getpid();

	EXPECT(sandbox_filter(&calls, SANDBOX_STRICT, 0) == 0);
	/* Nobody to kill: a helper of 0 is not the process group. */
	EXPECT(try(kill(0, 0)) == EPERM);
	EXPECT(try(syscall(SYS_tgkill, self, self, 0)) == 0);
}

static void self_test(void **state)
{
	expect_well(self_body);
}

static void kill_body(void)
{
	EXPECT(sandbox_filter(&calls, SANDBOX_KILL, 0) == 0);
	EXPECT(try(syscall(SYS_gettid)) == ENOSYS);
	EXPECT(try(syscall(SYS_getppid)) == 0);
	syscall(SYS_getuid);
}

static void kill_test(void **state)
{
	int status;

	if (!has_filter())
		return;
	status = run(kill_body);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGSYS);
}

#ifdef __x86_64__
/* getppid of the 32-bit table, which is another call in the 64-bit one. */
static void other_architecture_body(void)
{
	long ret = 64;

	EXPECT(sandbox_filter(&calls, SANDBOX_STRICT, 0) == 0);
	__asm__ volatile("int $0x80" : "+a"(ret) : : "memory");
}

/* Ended in every mode; by SIGSEGV where the kernel has no 32-bit calls at all. */
static void other_architecture_test(void **state)
{
	if (has_filter())
		assert_true(WIFSIGNALED(run(other_architecture_body)));
}
#endif

static _Atomic int started, go, seen;

static void *ask(void *arg)
{
	started = 1;
	while (!go)
		sched_yield();
	seen = try(syscall(SYS_getuid));
	return arg;
}

static void threads_body(void)
{
	static struct sandbox_call more[ARRAY_LEN(table) + 4];
	const struct sandbox_calls with_join = { more, ARRAY_LEN(more) };
	pthread_t thread;

	memcpy(more, table, sizeof(table));
	more[ARRAY_LEN(table)].nr = SYS_sched_yield;
	more[ARRAY_LEN(table) + 1].nr = SYS_madvise;
	more[ARRAY_LEN(table) + 2].nr = SYS_munmap;
	more[ARRAY_LEN(table) + 3].nr = SYS_mmap;
	EXPECT(pthread_create(&thread, NULL, ask, NULL) == 0);
	/* Its first calls are the C library's, which gives up where they fail. */
	while (!started)
		sched_yield();
	EXPECT(sandbox_filter(&with_join, SANDBOX_STRICT, 0) == 0);
	go = 1;
	EXPECT(pthread_join(thread, NULL) == 0);
	EXPECT(seen == EPERM);
}

/* A thread that is there already is not forgotten. */
static void threads_test(void **state)
{
	expect_well(threads_body);
}

static void off_body(void)
{
	EXPECT(sandbox_filter(&calls, SANDBOX_OFF, 0) == 0);
	EXPECT(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0);
	EXPECT(try(syscall(SYS_getuid)) == 0);
}

static void off_test(void **state)
{
	assert_int_equal(run(off_body), 0);
}

static void names_test(void **state)
{
	assert_string_equal(sandbox_mode_name(SANDBOX_STRICT), "strict");
	assert_string_equal(sandbox_mode_name(SANDBOX_KILL), "kill");
	assert_string_equal(sandbox_mode_name(SANDBOX_OFF), "off");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strict_test),
		cmocka_unit_test(arguments_test),
		cmocka_unit_test(processes_test),
		cmocka_unit_test(self_test),
		cmocka_unit_test(kill_test),
#ifdef __x86_64__
		cmocka_unit_test(other_architecture_test),
#endif
		cmocka_unit_test(threads_test),
		cmocka_unit_test(off_test),
		cmocka_unit_test(names_test),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
