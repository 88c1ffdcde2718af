/* How it works: libseccomp turns the list into a BPF program. There are two of
 * them, since "log what is refused" is a flag of a whole filter. The first, silent
 * one says ENOSYS to the calls that a library tries and does without, and yes to
 * all others. The second one lets the listed calls through, those of the first
 * as well, and logs what it refuses. The kernel takes the stricter answer.
 *
 * What it costs: since Linux 5.11 the kernel finds out when the filter is loaded
 * which calls are let through whatever their arguments are, and does not run the
 * program for them. Calls of the packet path have no condition on an argument.
 *
 * What the C library calls behind every program's back is listed here, so that
 * nobody else has to think of memory, threads, locks and the clock:
 *
 * syscalls(run helper): brk mmap munmap mremap mprotect madvise; malloc
 * syscalls(run helper): clone set_robust_list rseq sched_getaffinity exit; threads
 * syscalls(run helper refused): clone3; its flags are in memory, where no filter
 *	sees them. Without it glibc takes clone.
 * syscalls(run helper): futex rt_sigprocmask; locks, joining threads, liburcu
 * syscalls(run helper): rt_sigreturn restart_syscall exit_group; signals, the end
 * syscalls(run helper): rt_sigaction getpid gettid tgkill(SELF); abort()
 * syscalls(run helper): clock_gettime gettimeofday time getcpu; where the vDSO does
 *	not know the machine's clock
 * syscalls(run helper): write writev; a failed assertion, log_line() */
#include "base/sandbox_filter.h"
#include <errno.h>
#include <seccomp.h>
#include <unistd.h>

static_assert((int)SANDBOX_ARGS_MAX <= 6, "a system call has no more arguments");

/* How a list becomes rules: what to do with its two kinds of calls. */
struct actions {
	uint32_t listed, refused; /* SCMP_ACT_ALLOW: the filter's default, no rule */
	uint32_t otherwise;
	bool is_logged;
};

/* false: the condition cannot be met by anybody. */
static bool fill_arg(struct scmp_arg_cmp *out, const struct sandbox_arg *arg, pid_t helper)
{
	uint32_t value = arg->value;

	if (arg->who == SANDBOX_SELF)
		value = (uint32_t)getpid();
	if (arg->who == SANDBOX_HELPER)
		value = (uint32_t)helper;
	*out = SCMP_CMP64(arg->i, SCMP_CMP_MASKED_EQ, arg->mask, value & arg->mask);
	/* kill() takes 0 and negative numbers for groups of processes. */
	return arg->who == SANDBOX_VALUE || (int32_t)value > 0;
}

static int add_call(
	scmp_filter_ctx ctx, const struct sandbox_call *c, uint32_t action, pid_t helper)
{
	struct scmp_arg_cmp cmp[SANDBOX_ARGS_MAX];
	int ret;

	assert(c->n_args <= SANDBOX_ARGS_MAX);
	for (unsigned i = 0; i < c->n_args; i++)
		if (!fill_arg(&cmp[i], &c->args[i], helper))
			return 0;
	ret = seccomp_rule_add_array(ctx, action, c->nr, c->n_args, cmp);
	return ret == -EEXIST ? 0 : ret;
}

static int set_attributes(scmp_filter_ctx ctx, const struct actions *a)
{
	/* Those that a kernel or a library may lack, and that are no loss: */
	if (a->is_logged)
		(void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_LOG, 1);
	/* A search tree instead of a list: before Linux 5.11 it is walked at each call. */
	(void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	/* Before Linux 5.16 a filter would turn off speculation past stores, which is
	 * for programs that run others' code. We run our own only. */
	(void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_SSB, 1);
	/* The kernel's errno instead of -ECANCELED. */
	(void)seccomp_attr_set(ctx, SCMP_FLTATR_API_SYSRAWRC, 1);
	/* Nobody here makes calls of another architecture (32 bits), but exploits do. */
	return seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
}

static int load(const struct sandbox_calls *calls, const struct actions *a, pid_t helper)
{
	scmp_filter_ctx ctx = seccomp_init(a->otherwise);
	int ret;

	if (!ctx)
		return -EOPNOTSUPP;
	ret = set_attributes(ctx, a);
	/* All threads or none. */
	if (!ret)
		ret = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1);
	for (size_t i = 0; !ret && i < calls->n; i++) {
		const struct sandbox_call *c = &calls->call[i];
		uint32_t action = c->is_refused ? a->refused : a->listed;

		if (action != a->otherwise)
			ret = add_call(ctx, c, action, helper);
	}
	if (!ret)
		ret = seccomp_load(ctx);
	seccomp_release(ctx);
	/* EINVAL and ENOSYS: a kernel that was built without. */
	return ret == -EINVAL || ret == -ENOSYS ? -EOPNOTSUPP : ret;
}

int sandbox_filter(const struct sandbox_calls *calls, enum sandbox_mode mode, pid_t helper)
{
	const struct actions silent = { .listed = SCMP_ACT_ALLOW,
		.refused = SCMP_ACT_ERRNO(ENOSYS),
		.otherwise = SCMP_ACT_ALLOW };
	const struct actions logged = { .listed = SCMP_ACT_ALLOW,
		.refused = SCMP_ACT_ALLOW,
		.otherwise = mode == SANDBOX_KILL ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_ERRNO(EPERM),
		.is_logged = true };
	int ret;

	if (mode == SANDBOX_OFF)
		return 0;
	if (IS_SANITIZED)
		return -EOPNOTSUPP;
	ret = load(calls, &silent, helper);
	return ret ? ret : load(calls, &logged, helper);
}

const char *sandbox_mode_name(enum sandbox_mode mode)
{
	static const char *const names[] = { "strict", "kill", "off" };

	return names[mode];
}
