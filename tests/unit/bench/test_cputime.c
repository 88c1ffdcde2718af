/* CPU time is told apart by who used it; system calls are counted by the kernel. */
#include "bench/cputime.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUSY_NS = 60000000, TICK_NS = 10000000 };

/* CPU time of the calling thread. */
static uint64_t own_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void be_busy(uint64_t ns)
{
	uint64_t end = own_ns() + ns;

	while (own_ns() < end)
		;
}

struct helper {
	pthread_t thread;
	const char *name;
	_Atomic pid_t tid;
	_Atomic bool is_done, may_end;
};

static void *run_helper(void *arg)
{
	struct helper *h = arg;

	prctl(PR_SET_NAME, h->name);
	atomic_store(&h->tid, (pid_t)syscall(SYS_gettid));
	be_busy(BUSY_NS);
	atomic_store(&h->is_done, true);
	while (!atomic_load(&h->may_end))
		usleep(1000);
	return NULL;
}

static void helper_start(struct helper *h, const char *name)
{
	*h = (struct helper){ .name = name };
	assert_int_equal(pthread_create(&h->thread, NULL, run_helper, h), 0);
	while (!atomic_load(&h->is_done))
		usleep(1000);
}

static void helper_end(struct helper *h)
{
	atomic_store(&h->may_end, true);
	assert_int_equal(pthread_join(h->thread, NULL), 0);
}

/* A thread that is called as io_uring calls its own counts for the process and for io_uring; any
 * other for the process alone. */
static void test_threads_by_name(void **state)
{
	struct cputime before, after, d;
	struct helper ring, other;

	assert_int_equal(cputime_read(getpid(), &before), 0);
	helper_start(&ring, "iou-sqp-1");
	helper_start(&other, "other");
	assert_int_equal(cputime_read(getpid(), &after), 0);
	d = cputime_since(&after, &before);
	assert_true(d.iou_ns >= BUSY_NS - TICK_NS);
	assert_true(d.iou_ns <= BUSY_NS + TICK_NS);
	assert_true(d.process_ns >= 2 * (BUSY_NS - TICK_NS));
	assert_true(cputime_sum(&d) == d.process_ns + d.softirqd_ns);
	helper_end(&ring);
	helper_end(&other);
}

static void test_one_thread(void **state)
{
	struct helper one, two;
	pid_t tids[4], tid;
	uint64_t ns, later;

	assert_int_equal(cputime_helpers(tids, 4), 0);
	helper_start(&one, "iou-sqp-7");
	helper_start(&two, "two");
	tid = one.tid;
	assert_int_equal(cputime_helpers(tids, 4), 1);
	assert_int_equal(tids[0], tid);
	assert_int_equal(cputime_helpers(tids, 0), 1);
	assert_int_equal(cputime_thread(tid, &ns), 0);
	assert_true(ns >= BUSY_NS && ns <= BUSY_NS + TICK_NS);
	helper_end(&one);
	helper_end(&two);
	assert_int_not_equal(cputime_thread(tid, &ns), 0);

	/* No tick need pass. */
	assert_int_equal(cputime_thread(gettid(), &ns), 0);
	assert_int_equal(cputime_thread(gettid(), &later), 0);
	assert_true(later > ns && later - ns < TICK_NS);
}

/* The time of a child is not ours, and is seen from here. */
static void test_another_process(void **state)
{
	struct cputime before, t;
	pid_t pid;

	assert_int_equal(cputime_read(getpid(), &before), 0);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		be_busy(BUSY_NS);
		kill(getpid(), SIGSTOP);
		_exit(0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
	assert_int_equal(cputime_read(pid, &t), 0);
	assert_true(t.process_ns >= BUSY_NS - TICK_NS);
	assert_int_equal(t.iou_ns, 0);
	assert_int_equal(cputime_read(getpid(), &t), 0);
	t = cputime_since(&t, &before);
	assert_true(t.process_ns < BUSY_NS);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(cputime_read(pid, &t), -ESRCH);
}

/* ksoftirqd of this machine has worked since its start, where it can be seen. */
static void test_softirqd(void **state)
{
	struct cputime t;

	assert_int_equal(cputime_read(getpid(), &t), 0);
	if (!t.softirqd_ns) {
		print_message("skipped: no ksoftirqd can be seen from here\n");
		skip();
	}
	assert_true(t.softirqd_ns > 1000);
}

enum { CALLS = 12345 };

static void *run_calls(void *arg)
{
	int i;

	for (i = 0; i < CALLS; i++)
		syscall(SYS_getppid);
	return NULL;
}

static void counter_or_skip(struct syscall_counter *c, pid_t pid)
{
	int ret = syscall_counter_open(c, pid);

	if (ret == -ENOENT || ret == -EACCES || ret == -EPERM) {
		print_message("skipped: %s\n", syscall_counter_reason(ret));
		skip();
	}
	assert_int_equal(ret, 0);
}

/* Calls of this thread and of one that it starts later. */
static void test_count_own_calls(void **state)
{
	struct syscall_counter c;
	uint64_t before, after;
	pthread_t thread;

	counter_or_skip(&c, 0);
	assert_int_equal(syscall_counter_read(&c, &before), 0);
	run_calls(NULL);
	assert_int_equal(syscall_counter_read(&c, &after), 0);
	assert_true(after - before >= CALLS);
	assert_true(after - before <= CALLS + 10);
	assert_int_equal(pthread_create(&thread, NULL, run_calls, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(syscall_counter_read(&c, &after), 0);
	assert_true(after - before >= 2 * CALLS);
	assert_true(after - before <= 2 * CALLS + 100);
	syscall_counter_close(&c);
	syscall_counter_close(&c);
}

/* Tell that we are there, wait for a word, make the calls. */
static void *run_told_calls(void *arg)
{
	const int *fd = arg;
	char byte = 'r';

	if (write(fd[0], &byte, 1) == 1 && read(fd[0], &byte, 1) == 1)
		run_calls(NULL);
	return NULL;
}

/* Calls of a thread of another process that was there before the counter. */
static void test_count_calls_of_a_process(void **state)
{
	struct syscall_counter c;
	pthread_t thread;
	uint64_t n = 0;
	char byte;
	int fd[2], i;
	pid_t pid;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pthread_create(&thread, NULL, run_told_calls, fd);
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	assert_int_equal(read(fd[1], &byte, 1), 1);
	counter_or_skip(&c, pid);
	assert_int_equal(write(fd[1], "g", 1), 1);
	for (i = 0; i < 1000 && n < CALLS; i++) {
		usleep(10000);
		assert_int_equal(syscall_counter_read(&c, &n), 0);
	}
	assert_true(n >= CALLS);
	syscall_counter_close(&c);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(fd[0]);
	close(fd[1]);
	assert_int_not_equal(syscall_counter_open(&c, pid), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_threads_by_name),
		cmocka_unit_test(test_one_thread),
		cmocka_unit_test(test_another_process),
		cmocka_unit_test(test_softirqd),
		cmocka_unit_test(test_count_own_calls),
		cmocka_unit_test(test_count_calls_of_a_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
