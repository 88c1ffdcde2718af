/* Congestion marks across the tunnel's end (RFC 6040). Pure. */
#ifndef GATEWAY_ECN_H
#define GATEWAY_ECN_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stdint.h>

enum { ECN_MASK = 3, ECN_CE = 3 }; /* of a TOS or traffic class */

/* RFC 6040 section 4.2: a congestion mark of the outer header goes on inside. pkt: at least
 * a whole IP header, changed in place. false: the packet cannot carry it and is to be
 * dropped (WORKER_DROP_ECN). */
MUST_CHECK bool ecn_carry(uint8_t *pkt, uint8_t outer_tos);

#endif
