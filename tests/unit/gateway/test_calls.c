/* The lists of the gateway and its helper, as tools/syscalls made them: what an
 * intruder would like to do is refused. Each try is made in a child of its own. */
#include "gateway/calls.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { CANNOT_FILTER = 2, STATUS_BASE = 100 };

enum who { GATEWAY = 1, HELPER = 2, BOTH = 3 };

static pid_t parent; /* somebody else's process */

static long do_nothing(void)
{
	return 0;
}

static long do_execve(void)
{
	char *const argv[] = { "/bin/true", NULL };

	return execve(argv[0], argv, NULL);
}

static long do_ptrace(void)
{
	return ptrace(PTRACE_ATTACH, parent, NULL, NULL);
}

static long do_mount(void)
{
	return mount("none", "/nowhere", "tmpfs", 0, NULL);
}

static long do_bpf(void)
{
	return syscall(SYS_bpf, 0, NULL, 0);
}

static long do_io_uring(void)
{
	return syscall(SYS_io_uring_setup, 1, NULL);
}

static long do_fork(void)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	return pid;
}

static long do_vfork(void)
{
#ifdef SYS_vfork
	/* The number alone: a child that were made would end us with it. */
	long ret = syscall(SYS_vfork);

	if (ret == 0)
		_exit(0);
	return ret;
#else
	errno = EPERM;
	return -1;
#endif
}

static long do_unshare(void)
{
	return unshare(CLONE_NEWUSER);
}

static long do_namespace_clone(void)
{
	return syscall(SYS_clone,
		CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_NEWNS,
		NULL, NULL, NULL, NULL);
}

static long do_packet_socket(void)
{
	return socket(AF_PACKET, SOCK_RAW, 0);
}

static long do_unix_socket(void)
{
	return socket(AF_UNIX, SOCK_SEQPACKET, 0);
}

static long do_netfilter(void)
{
	return socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
}

static long do_audit(void)
{
	return socket(AF_NETLINK, SOCK_RAW, NETLINK_AUDIT);
}

static long do_raw(void)
{
	return socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
}

static long do_tcp_socket(void)
{
	return socket(AF_INET, SOCK_STREAM, 0);
}

static long do_kill(void)
{
	return kill(parent, 0);
}

static long do_setns(void)
{
	return setns(-1, CLONE_NEWNET);
}

static long do_setns_mount(void)
{
	return setns(-1, CLONE_NEWNS);
}

static long do_write_open(void)
{
	return open("/dev/null", O_WRONLY);
}

static long do_create(void)
{
	return open("/nowhere/file", O_RDONLY | O_CREAT, 0600);
}

static long do_unlink(void)
{
	return unlink("/nowhere/file");
}

static long do_code(void)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? -1 : 0;
}

static long do_code_later(void)
{
	static uint8_t page[8192] __attribute__((aligned(4096)));

	return mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
}

static long do_personality(void)
{
	return personality(READ_IMPLIES_EXEC);
}

static long do_terminal_ioctl(void)
{
	return ioctl(STDIN_FILENO, TIOCSTI, "x");
}

static long do_other_prctl(void)
{
	return prctl(PR_SET_DUMPABLE, 1);
}

static long do_tcp_ulp(void)
{
	return setsockopt(-1, IPPROTO_TCP, TCP_ULP, "tls", 3);
}

static long do_filter(void)
{
	return setsockopt(-1, SOL_SOCKET, SO_ATTACH_FILTER, NULL, 0);
}

static long do_userfaultfd(void)
{
	return syscall(SYS_userfaultfd, 0);
}

static long do_keyctl(void)
{
	return syscall(SYS_keyctl, 0, 0, 0);
}

static long do_setuid(void)
{
	return setuid(1);
}

static long do_chroot(void)
{
	return chroot("/");
}

static long do_pidfd(void)
{
	return syscall(434 /* pidfd_open */, parent, 0);
}

static long do_vm_write(void)
{
	return syscall(SYS_process_vm_writev, parent, NULL, 0, NULL, 0, 0);
}

static const struct attempt {
	const char *name;
	long (*make)(void);
	enum who who; /* who may not */
} attempts[] = {
	{ "execve", do_execve, BOTH },
	{ "ptrace", do_ptrace, BOTH },
	{ "mount", do_mount, BOTH },
	{ "bpf", do_bpf, BOTH },
	{ "io_uring_setup", do_io_uring, BOTH },
	{ "fork", do_fork, BOTH },
	{ "vfork", do_vfork, BOTH },
	{ "unshare", do_unshare, BOTH },
	{ "clone into a namespace", do_namespace_clone, BOTH },
	{ "socket AF_PACKET", do_packet_socket, BOTH },
	{ "socket AF_UNIX", do_unix_socket, BOTH },
	{ "socket NETLINK_NETFILTER", do_netfilter, GATEWAY },
	{ "socket NETLINK_AUDIT", do_audit, BOTH },
	{ "socket for ICMP", do_raw, GATEWAY },
	{ "socket for TCP", do_tcp_socket, HELPER },
	{ "kill", do_kill, BOTH },
	{ "setns", do_setns, GATEWAY },
	{ "setns to a mount namespace", do_setns_mount, BOTH },
	{ "open for writing", do_write_open, BOTH },
	{ "open and create", do_create, BOTH },
	{ "unlink", do_unlink, HELPER },
	{ "mmap PROT_EXEC", do_code, BOTH },
	{ "mprotect PROT_EXEC", do_code_later, BOTH },
	{ "personality", do_personality, BOTH },
	{ "ioctl TIOCSTI", do_terminal_ioctl, BOTH },
	{ "prctl PR_SET_DUMPABLE", do_other_prctl, BOTH },
	{ "setsockopt TCP_ULP", do_tcp_ulp, BOTH },
	{ "setsockopt SO_ATTACH_FILTER", do_filter, BOTH },
	{ "userfaultfd", do_userfaultfd, BOTH },
	{ "keyctl", do_keyctl, BOTH },
	{ "setuid", do_setuid, BOTH },
	{ "chroot", do_chroot, BOTH },
	{ "pidfd_open", do_pidfd, BOTH },
	{ "process_vm_writev", do_vm_write, BOTH },
};

/* wait()'s status of a child that makes one attempt behind a filter; its exit
 * status is CANNOT_FILTER, or STATUS_BASE and the errno. */
static int attempt(
	const struct attempt *a, const struct sandbox_calls *calls, enum sandbox_mode mode)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		if (sandbox_filter(calls, mode, 0) < 0)
			_exit(CANNOT_FILTER);
		errno = 0;
		_exit(STATUS_BASE + (a->make() < 0 ? errno : 0));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void need_filter(void)
{
	static const struct attempt none = { "nothing", do_nothing, BOTH };
	int status = attempt(&none, &gateway_calls, SANDBOX_STRICT);

	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == STATUS_BASE)
		return;
	print_message("skip: no seccomp filters here\n");
	skip();
}

static void try_all(const struct sandbox_calls *calls, enum who who)
{
	for (size_t i = 0; i < ARRAY_LEN(attempts); i++) {
		const struct attempt *a = &attempts[i];
		int strict, killed;

		if (!(a->who & who))
			continue;
		strict = attempt(a, calls, SANDBOX_STRICT);
		killed = attempt(a, calls, SANDBOX_KILL);
		if (!WIFEXITED(strict) || WEXITSTATUS(strict) != STATUS_BASE + EPERM)
			fail_msg("%s is not refused: status %#x", a->name, (unsigned)strict);
		if (!WIFSIGNALED(killed) || WTERMSIG(killed) != SIGSYS)
			fail_msg("%s does not kill: status %#x", a->name, (unsigned)killed);
	}
}

static void gateway_test(void **state)
{
	need_filter();
	try_all(&gateway_calls, GATEWAY);
}

static void helper_test(void **state)
{
	need_filter();
	try_all(&helper_calls, HELPER);
}

static long do_unix_datagrams(void)
{
	return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

static long do_unix_stream(void)
{
	return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static long do_clone3(void)
{
	return syscall(SYS_clone3, NULL, 0);
}

/* Unlisted, but what a library tries first: it has to go on with something else. */
static void quiet_test(void **state)
{
	static const struct attempt quiet[] = {
		{ "clone3", do_clone3, BOTH },
		{ "AF_UNIX for if_nametoindex", do_unix_datagrams, BOTH },
		{ "AF_UNIX for nscd", do_unix_stream, GATEWAY },
	};

	need_filter();
	for (size_t i = 0; i < ARRAY_LEN(quiet); i++) {
		const struct attempt *a = &quiet[i];

		if (a->who & GATEWAY)
			assert_int_equal(WEXITSTATUS(attempt(a, &gateway_calls, SANDBOX_KILL)),
				STATUS_BASE + ENOSYS);
		if (a->who & HELPER)
			assert_int_equal(WEXITSTATUS(attempt(a, &helper_calls, SANDBOX_KILL)),
				STATUS_BASE + ENOSYS);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gateway_test),
		cmocka_unit_test(helper_test),
		cmocka_unit_test(quiet_test),
	};

	parent = getpid();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
