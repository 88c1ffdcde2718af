/* Giving up privileges. Capabilities belong to a thread: everything that drops
 * is called before the process has a second one (-EBUSY otherwise, and nothing
 * changed), and threads made later inherit what is left. Works the same for a
 * process that never had a privilege.
 *
 * What stays: user id 0 without capabilities still owns root's files. It can
 * write those that their mode lets root write, and unlink its socket in
 * /var/run/wireguard, without CAP_DAC_OVERRIDE. */
#ifndef BASE_SANDBOX_H
#define BASE_SANDBOX_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>

/* No core file (RLIMIT_CORE 0), no ptrace and no /proc/PID/mem for others without
 * CAP_SYS_PTRACE (PR_SET_DUMPABLE 0). Survives fork, not exec. 0 or negative errno. */
MUST_CHECK int sandbox_no_dumps(void);

/* Drop every capability for good: effective, permitted, inheritable, ambient,
 * and the bounding set where CAP_SETPCAP lets us; exec gains nothing any more
 * (no_new_privs, securebits). 0 once capget confirms it, or negative errno. */
MUST_CHECK int sandbox_drop_all(void);

/* The same, but the capabilities caps[0..n-1] (CAP_*) that the process has stay
 * permitted and effective. One it lacks is not an error: ask sandbox_has. */
MUST_CHECK int sandbox_keep(const int *caps, size_t n);

/* Is the capability in the effective set of the calling thread? */
bool sandbox_has(int cap);

/* What to tell the user when cap is missing: "needs CAP_NET_ADMIN: run as root
 * or `setcap cap_net_admin+ep penstock`". A constant; any thread. */
const char *sandbox_hint(int cap);

#endif
