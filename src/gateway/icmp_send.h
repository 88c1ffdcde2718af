/* Sends an ICMP error about an inner packet from this machine's own addresses, as
 * Linux would. Needs CAP_NET_RAW; run by the helper process, in the namespace of the TUN's
 * interface. Does not block. */
#ifndef GATEWAY_ICMP_SEND_H
#define GATEWAY_ICMP_SEND_H

#include "base/compiler.h"
#include "link/link.h"

/* Tell the packet's source that its destination is unreachable. ifindex: of the
 * TUN's interface, for link-local addresses. is_local becomes true when the source
 * is an address of this machine, also one that it put there by NAT. 0;
 * -EDESTADDRREQ: source or destination is a broadcast address, nobody may be told;
 * -EPERM: no privilege; other negative errno: this error cannot be sent. */
MUST_CHECK int icmp_send_unreach(const struct icmp_cause *c, unsigned ifindex, bool *is_local);

#endif
