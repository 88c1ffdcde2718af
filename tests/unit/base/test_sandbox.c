/* Each test drops in a child, since what is dropped cannot be had back. A child
 * says what it found by its exit status. */
#include "base/sandbox.h"
#include <errno.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

enum { UID_NOBODY = 65534 };

static void in_child(void (*body)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void need_root(void)
{
	if (geteuid() != 0 || !sandbox_has(CAP_NET_ADMIN) || !sandbox_has(CAP_SETPCAP) ||
		!sandbox_has(CAP_SYS_ADMIN)) {
		print_message("skip: needs root with CAP_NET_ADMIN, CAP_SETPCAP, CAP_SYS_ADMIN\n");
		skip();
	}
}

struct sets {
	uint64_t effective, permitted, inheritable;
};

/* The kernel's word, not the library's. */
static struct sets raw_sets(void)
{
	struct __user_cap_header_struct hdr = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	EXPECT(syscall(SYS_capget, &hdr, data) == 0);
	return (struct sets){
		.effective = data[0].effective | (uint64_t)data[1].effective << 32,
		.permitted = data[0].permitted | (uint64_t)data[1].permitted << 32,
		.inheritable = data[0].inheritable | (uint64_t)data[1].inheritable << 32,
	};
}

/* A namespace where port 80 is free and low ports are privileged, whatever the
 * host's net.ipv4.ip_unprivileged_port_start says. It goes with the child. */
static void enter_new_net(void)
{
	EXPECT(unshare(CLONE_NEWNET) == 0);
}

/* 0, or the errno that the kernel gives for something that needs CAP_NET_ADMIN. */
static int try_net_admin(void)
{
	int mark = 7, ret, fd = socket(AF_INET, SOCK_DGRAM, 0);

	EXPECT(fd >= 0);
	ret = setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) < 0 ? errno : 0;
	close(fd);
	return ret;
}

/* The same for CAP_NET_BIND_SERVICE. */
static int try_low_port(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(80) };
	int ret, fd = socket(AF_INET, SOCK_DGRAM, 0);

	EXPECT(fd >= 0);
	ret = bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0 ? errno : 0;
	close(fd);
	return ret;
}

static void expect_nothing_left(void)
{
	struct sets s = raw_sets();

	EXPECT(s.effective == 0 && s.permitted == 0 && s.inheritable == 0);
	for (int cap = 0; cap <= CAP_LAST_CAP; cap++) {
		EXPECT(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) <= 0);
		EXPECT(!sandbox_has(cap));
	}
	EXPECT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
}

static void drop_all_body(void)
{
	enter_new_net();
	EXPECT(try_net_admin() == 0 && try_low_port() == 0);
	EXPECT(sandbox_drop_all() == 0);
	expect_nothing_left();
	for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
		EXPECT(prctl(PR_CAPBSET_READ, cap, 0, 0, 0) <= 0);
	EXPECT(try_net_admin() == EPERM);
	EXPECT(try_low_port() == EACCES);
	/* Twice is no error, and nothing brings it back. */
	EXPECT(sandbox_drop_all() == 0);
	EXPECT(setresuid(0, 0, 0) == 0);
	expect_nothing_left();
}

static void drop_all_test(void **state)
{
	need_root();
	in_child(drop_all_body);
}

/* A program that user id 0 starts after the drop has nothing either. */
static void exec_body(void)
{
	EXPECT(sandbox_drop_all() == 0);
	execl("/bin/sh", "sh", "-c", "grep -Eq '^CapPrm:[[:space:]]*0+$' /proc/self/status",
		(char *)NULL);
	_exit(2);
}

static void exec_gains_nothing_test(void **state)
{
	need_root();
	in_child(exec_body);
}

/* The ambient set hands capabilities to children: it has to go as well. */
static void ambient_body(void)
{
	struct __user_cap_header_struct hdr = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];

	EXPECT(syscall(SYS_capget, &hdr, data) == 0);
	data[0].inheritable |= 1u << CAP_NET_ADMIN;
	EXPECT(syscall(SYS_capset, &hdr, data) == 0);
	EXPECT(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_NET_ADMIN, 0, 0) == 0);
	EXPECT(sandbox_drop_all() == 0);
	expect_nothing_left();
}

static void ambient_test(void **state)
{
	need_root();
	in_child(ambient_body);
}

static void keep_body(void)
{
	static const int caps[] = { CAP_NET_ADMIN, CAP_NET_BIND_SERVICE };
	struct sets s;

	enter_new_net();
	EXPECT(sandbox_keep(caps, 2) == 0);
	s = raw_sets();
	EXPECT(s.permitted == (1ull << CAP_NET_ADMIN | 1ull << CAP_NET_BIND_SERVICE));
	EXPECT(s.effective == s.permitted && s.inheritable == 0);
	EXPECT(sandbox_has(CAP_NET_ADMIN) && !sandbox_has(CAP_SYS_ADMIN));
	EXPECT(try_net_admin() == 0);
	EXPECT(try_low_port() == 0);
	EXPECT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
	EXPECT(prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN, 0, 0, 0) == 0);
	EXPECT(sandbox_keep(caps, 1) == 0);
	EXPECT(try_low_port() == EACCES);
	/* It only goes down. */
	EXPECT(sandbox_keep(caps, 2) == 0);
	EXPECT(!sandbox_has(CAP_NET_BIND_SERVICE));
}

static void keep_test(void **state)
{
	need_root();
	in_child(keep_body);
}

static void unprivileged_body(void)
{
	static const int caps[] = { CAP_NET_ADMIN, 63 /* no such capability */ };

	if (geteuid() == 0)
		EXPECT(setresuid(UID_NOBODY, UID_NOBODY, UID_NOBODY) == 0);
	EXPECT(!sandbox_has(CAP_NET_ADMIN));
	EXPECT(sandbox_no_dumps() == 0);
	EXPECT(sandbox_keep(caps, 2) == 0);
	EXPECT(!sandbox_has(CAP_NET_ADMIN) && !sandbox_has(63) && !sandbox_has(-1));
	EXPECT(sandbox_drop_all() == 0);
	expect_nothing_left();
}

static void unprivileged_test(void **state)
{
	in_child(unprivileged_body);
}

static void *idle(void *arg)
{
	pause();
	return arg;
}

static void threads_body(void)
{
	static const int caps[] = { CAP_NET_ADMIN };
	struct sets before = raw_sets(), after;
	pthread_t threads[2];

	EXPECT(pthread_create(&threads[0], NULL, idle, NULL) == 0);
	EXPECT(pthread_create(&threads[1], NULL, idle, NULL) == 0);
	EXPECT(sandbox_drop_all() == -EBUSY);
	EXPECT(sandbox_keep(caps, 1) == -EBUSY);
	after = raw_sets();
	EXPECT(memcmp(&before, &after, sizeof(before)) == 0);
	EXPECT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0);
}

static void refused_with_threads_test(void **state)
{
	in_child(threads_body);
}

static void no_dumps_body(void)
{
	struct rlimit core;

	EXPECT(sandbox_no_dumps() == 0);
	EXPECT(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0);
	EXPECT(getrlimit(RLIMIT_CORE, &core) == 0);
	EXPECT(core.rlim_cur == 0 && core.rlim_max == 0);
	/* Dropping must not make it dumpable again. */
	EXPECT(sandbox_drop_all() == 0);
	EXPECT(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0);
}

static void no_dumps_test(void **state)
{
	in_child(no_dumps_body);
}

static void hint_test(void **state)
{
	static const int named[] = { CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW, CAP_BPF,
		CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_NICE };

	assert_string_equal(sandbox_hint(CAP_NET_ADMIN),
		"needs CAP_NET_ADMIN: run as root or `setcap cap_net_admin+ep penstock`");
	assert_string_equal(sandbox_hint(CAP_NET_BIND_SERVICE),
		"needs CAP_NET_BIND_SERVICE: run as root or `setcap cap_net_bind_service+ep "
		"penstock`");
	for (size_t i = 0; i < ARRAY_LEN(named); i++)
		assert_non_null(strstr(sandbox_hint(named[i]), "setcap cap_"));
	assert_non_null(strstr(sandbox_hint(-1), "run as root"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(drop_all_test),
		cmocka_unit_test(exec_gains_nothing_test),
		cmocka_unit_test(ambient_test),
		cmocka_unit_test(keep_test),
		cmocka_unit_test(unprivileged_test),
		cmocka_unit_test(refused_with_threads_test),
		cmocka_unit_test(no_dumps_test),
		cmocka_unit_test(hint_test),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
