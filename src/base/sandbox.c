/* How it works: one way down for all callers. The order matters, since each
 * step needs CAP_SETPCAP, which the capset in the middle takes away: securebits,
 * bounding set, ambient set, capset, no_new_privs. What the kernel refuses to an
 * unprivileged process on the way is not an error, because the end is checked:
 * the permitted set must hold nothing but what was asked for. A bounding set
 * that stays is harmless then: it limits what exec may gain, and no_new_privs
 * lets exec gain nothing.
 *
 * syscalls(start): capget capset prctl setrlimit open readdir close nanosleep */
#include "base/sandbox.h"
#include "base/clock.h"
#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

/* The thread sanitizer runs a thread of its own, which shares nothing with us
 * but memory and has to be let through. */
enum { THREADS_MAX = 1 + IS_THREAD_SANITIZED, WAIT_MS = 500 };

/* How many threads there are, or negative errno. */
static int count_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int n = 0;

	if (!dir)
		return -errno;
	while ((entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

/* 0, -EBUSY when other threads would keep what this one drops, or negative errno. A thread of
 * the kernel's for an io_uring that has just been closed is given a moment to end. */
static int check_threads(void)
{
	const struct timespec moment = { .tv_nsec = NSEC_PER_MSEC };
	int n = count_threads();

	for (int i = 0; n > THREADS_MAX && i < WAIT_MS; i++) {
		nanosleep(&moment, NULL);
		n = count_threads();
	}
	return n < 0 ? n : n <= THREADS_MAX ? 0 : -EBUSY;
}

int sandbox_no_dumps(void)
{
	const struct rlimit none = { 0, 0 };

	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return -errno;
	/* A core_pattern that is a pipe ignores a limit of 0 bytes in some kernels;
	 * not being dumpable holds for it as well. */
	if (setrlimit(RLIMIT_CORE, &none) < 0)
		return -errno;
	return 0;
}

static bool is_listed(const int *caps, size_t n, int cap)
{
	for (size_t i = 0; i < n; i++) {
		if (caps[i] == cap)
			return true;
	}
	return false;
}

/* Steps that need CAP_SETPCAP, or a kernel that knows them: as far as they go. */
static void limit_exec(const int *caps, size_t n)
{
	prctl(PR_SET_SECUREBITS,
		SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
			SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
			SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED,
		0, 0, 0);
	for (int cap = 0; cap < (int)cap_max_bits(); cap++) {
		if (!is_listed(caps, n, cap))
			prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	}
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

/* next becomes what of caps is permitted in now. */
static int fill_set(cap_t next, cap_t now, const int *caps, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		cap_value_t cap = caps[i];
		cap_flag_value_t is_set;

		/* A capability newer than the kernel is one that nobody has. */
		if (cap_get_flag(now, cap, CAP_PERMITTED, &is_set) < 0 || is_set != CAP_SET)
			continue;
		if (cap_set_flag(next, CAP_PERMITTED, 1, &cap, CAP_SET) < 0 ||
			cap_set_flag(next, CAP_EFFECTIVE, 1, &cap, CAP_SET) < 0)
			return -errno;
	}
	return 0;
}

/* -EPERM when the process still holds more than next. */
static int check_set(cap_t next)
{
	cap_t now = cap_get_proc();
	int ret;

	if (!now)
		return -errno;
	ret = cap_compare(now, next) == 0 ? 0 : -EPERM;
	cap_free(now);
	return ret;
}

int sandbox_keep(const int *caps, size_t n)
{
	cap_t now, next;
	int ret = check_threads();

	if (ret < 0)
		return ret;
	now = cap_get_proc();
	if (!now)
		return -errno;
	next = cap_init();
	if (!next) {
		ret = -errno;
		goto free_now;
	}
	ret = fill_set(next, now, caps, n);
	if (ret < 0)
		goto free_next;
	limit_exec(caps, n);
	if (cap_set_proc(next) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
		ret = -errno;
		goto free_next;
	}
	ret = check_set(next);
free_next:
	cap_free(next);
free_now:
	cap_free(now);
	return ret;
}

int sandbox_drop_all(void)
{
	return sandbox_keep(NULL, 0);
}

bool sandbox_has(int cap)
{
	cap_flag_value_t is_set = CAP_CLEAR;
	cap_t now = cap_get_proc();

	if (!now)
		return false;
	if (cap_get_flag(now, cap, CAP_EFFECTIVE, &is_set) < 0)
		is_set = CAP_CLEAR;
	cap_free(now);
	return is_set == CAP_SET;
}

const char *sandbox_hint(int cap)
{
#define HINT(NAME, name) "needs " NAME ": run as root or `setcap " name "+ep penstock`"
	switch (cap) {
	case CAP_NET_ADMIN:
		return HINT("CAP_NET_ADMIN", "cap_net_admin");
	case CAP_NET_BIND_SERVICE:
		return HINT("CAP_NET_BIND_SERVICE", "cap_net_bind_service");
	case CAP_NET_RAW:
		return HINT("CAP_NET_RAW", "cap_net_raw");
	case CAP_BPF:
		return HINT("CAP_BPF", "cap_bpf");
	case CAP_PERFMON:
		return HINT("CAP_PERFMON", "cap_perfmon");
	case CAP_SYS_ADMIN:
		return HINT("CAP_SYS_ADMIN", "cap_sys_admin");
	case CAP_SYS_NICE:
		return HINT("CAP_SYS_NICE", "cap_sys_nice");
	default:
		return "needs a capability it does not have: run as root";
	}
#undef HINT
}
