/* How the kernel sorts what arrives at a port among the sockets that share it. Of
 * udp.c. */
#ifndef LINK_UDP_SORT_H
#define LINK_UDP_SORT_H

#include "link/link.h"

/* Put the sockets of u under the steering program, or else under a classic one, whose
 * numbers are those of the order in which the sockets were bound: data, then handshake. With
 * n > 1 every family that is there must have its handshake socket. Sets u->is_steered. 0 or
 * negative errno: then the kernel sorts by its hash. */
MUST_CHECK int udp_sort(struct udp *u, const struct steer_fds *steer);

#endif
