/* Asks connection tracking where a packet came from before its source was
 * translated (NAT). Needs CAP_NET_ADMIN; run by the helper process, in the namespace in
 * question. Does not block. */
#ifndef GATEWAY_CONNTRACK_H
#define GATEWAY_CONNTRACK_H

#include "base/compiler.h"
#include "link/link.h"

/* The source that the packet c had when it came in; 4 or 16 bytes, by its family.
 * -ENOENT: not tracked, or tracking is not in use here; other negative errno. */
MUST_CHECK int conntrack_original_source(const struct icmp_cause *c, uint8_t out[16]);

#endif
