/* Into the background, with the command returning only when the gateway is ready
 * or has failed: wg-quick configures the interface right after. Owner: the main
 * thread, before there are others. */
#ifndef GATEWAY_DAEMON_H
#define GATEWAY_DAEMON_H

#include "base/compiler.h"

struct daemon {
	int fd; /* to the waiting command; -1: nobody waits */
	int null; /* /dev/null, when fd is not -1 */
};

/* Go on in a child of init, in a session of its own. Returns (0) in that child
 * only; the process that called waits and ends with the status that
 * daemon_ready or daemon_fail gives it (1 when the child dies without a word).
 * Negative errno: nothing was forked. Before threads, privhelper_start and
 * anything that belongs to a process id. */
MUST_CHECK int daemon_start(struct daemon *d);

/* All is set up: leave the terminal (standard streams to /dev/null, directory /)
 * and let the command end with status 0. -EPIPE: nobody waits any more (Ctrl-C
 * meanwhile), so give up and undo. Does nothing when daemon_start was not called
 * and d->fd is -1. */
MUST_CHECK int daemon_ready(struct daemon *d);

/* It failed, and the reason is logged: the command ends with status (1 to 255).
 * Clean up before, since who waits may act at once; then exit. */
void daemon_fail(struct daemon *d, int status);

#endif
