/* A filter on the system calls of this process (seccomp). The list of what is let
 * through comes from comments in the sources: see doc/sandbox.md and tools/syscalls.
 *
 * The filter holds for all threads of the process, for those that it makes later
 * and for its children, and cannot be taken off. */
#ifndef BASE_SANDBOX_FILTER_H
#define BASE_SANDBOX_FILTER_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What becomes of a call that is not listed. */
enum sandbox_mode {
	SANDBOX_STRICT, /* EPERM, and a line in the audit log (dmesg, where no auditd runs) */
	SANDBOX_KILL, /* SIGSYS for the whole process, and a line in the audit log */
	SANDBOX_OFF, /* there is no filter */
};

enum { SANDBOX_ARGS_MAX = 3 };

/* What an argument has to be. */
enum sandbox_who {
	SANDBOX_VALUE, /* the value beside it */
	SANDBOX_SELF, /* the process id of the caller of sandbox_filter */
	SANDBOX_HELPER, /* the process id that is given to sandbox_filter */
};

/* (argument & mask) == value. Only the lower 32 bits are looked at, as the kernel
 * does with an int. */
struct sandbox_arg {
	uint8_t i; /* which argument, from 0 */
	uint8_t who; /* enum sandbox_who */
	uint32_t mask;
	uint32_t value;
};

/* One way of making one call. A call may have several. */
struct sandbox_call {
	int nr; /* SYS_* */
	bool is_refused; /* ENOSYS without a word, in every mode: the library does without */
	uint8_t n_args;
	struct sandbox_arg args[SANDBOX_ARGS_MAX]; /* all of the first n_args hold */
};

struct sandbox_calls {
	const struct sandbox_call *call;
	size_t n;
};

/* From now on only these calls. helper: whom kill() may reach, 0 for nobody. Sets
 * no_new_privs. 0; -EOPNOTSUPP where there can be no filter (a kernel without
 * seccomp; a build with a sanitizer, whose run-time library calls what it likes);
 * negative errno. On an error nothing unlisted is refused. SANDBOX_OFF: does nothing. */
MUST_CHECK int sandbox_filter(
	const struct sandbox_calls *calls, enum sandbox_mode mode, pid_t helper);

/* "strict", "kill", "off". A constant; any thread. */
const char *sandbox_mode_name(enum sandbox_mode mode);

#endif
