/* What the gateway has to open after it gave up its privileges: a small process,
 * forked at start, keeps them and passes descriptors.
 *
 * Owner: the control thread, one call at a time; a call blocks for at most
 * PRIVHELPER_TIMEOUT_MS. A helper that died or hangs is an error (-EPIPE,
 * -ETIMEDOUT), never a silent try without privilege.
 *
 * Where the process has no privilege at all there is no helper, and each call is
 * made directly: it then succeeds as far as the kernel lets anybody do it. */
#ifndef GATEWAY_PRIVHELPER_H
#define GATEWAY_PRIVHELPER_H

#include "base/compiler.h"
#include "base/sandbox_filter.h"
#include "link/link.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { PRIVHELPER_TIMEOUT_MS = 2000 };

struct privhelper {
	int fd; /* -1: no helper, calls are direct. Readable outside a call: it died. */
	pid_t pid; /* 0: no helper */
	uint32_t seq; /* of the last request: a late answer is not taken for the next one */
};

/* Fork the helper and wait until it says that it is ready. Before there are
 * threads or secrets, after daemon_start and before sandbox_drop_all. sandbox: what
 * becomes of it when it makes a system call that it has no use for (SANDBOX_STRICT: the
 * request fails); where there can be no filter it goes on without. 0 (also
 * where no helper is needed: see above) or negative errno. */
MUST_CHECK int privhelper_start(struct privhelper *h, enum sandbox_mode sandbox);

/* udp_open with the helper's privileges and in the namespace of the start. */
MUST_CHECK int privhelper_udp_open(
	struct privhelper *h, const struct udp_config *cfg, struct udp *out);

/* udp_set_mark with the helper's privileges. */
MUST_CHECK int privhelper_udp_mark(struct privhelper *h, struct udp *u, uint32_t fwmark);

/* A route netlink socket (non-blocking, not bound yet) in the namespace where the
 * TUN's interface is now, and the interface's index there. Without
 * CAP_SYS_ADMIN it works in our own namespace only (-EPERM, without a helper
 * -ENODEV, for a TUN elsewhere). */
MUST_CHECK int privhelper_netdev_open(
	struct privhelper *h, const struct tun *t, int *fd, unsigned *ifindex);

/* The largest superframe that the kernel hands to the TUN: gso_max_size of its
 * interface, wherever that is. 2048 to 65536, else -EINVAL. */
MUST_CHECK int privhelper_set_gso_max(struct privhelper *h, const struct tun *t, uint32_t bytes);

/* Send an ICMP "destination unreachable" about the packet c from this machine's
 * addresses, in the namespace where the TUN's interface is. *is_local: the packet's
 * source is an address of that namespace. As icmp_send_unreach; -EPERM also where
 * there is no helper, -EBUSY: more than the helper sends. */
MUST_CHECK int privhelper_unreach(
	struct privhelper *h, const struct tun *t, const struct icmp_cause *c, bool *is_local);

/* The connection became readable outside a call: has the helper died? Otherwise it was an
 * answer that came too late for its call, and is thrown away. Does not block. */
MUST_CHECK bool privhelper_has_died(struct privhelper *h);

/* End the helper and collect it; kill it where it does not end by itself. 0, or
 * -EPIPE when it had not ended well. A fresh struct of zeros is fine, as is twice. */
int privhelper_stop(struct privhelper *h);

#endif
