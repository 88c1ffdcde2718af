/* Addresses, prefixes and their text. Pure, any thread. */
#ifndef WIRE_ADDR_H
#define WIRE_ADDR_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ADDR_TEXT_MAX = 64 };

/* An IP address. family is AF_INET (first 4 bytes used, rest zero) or AF_INET6. */
struct ipaddr {
	uint8_t family;
	uint8_t ip[16];
};

/* A prefix; host bits are zero. bits is 0..32 or 0..128. */
struct prefix {
	struct ipaddr addr;
	uint8_t bits;
};

/* An address with a UDP port (host order) and, for link-local IPv6, a scope id. */
struct ipport {
	struct ipaddr addr;
	uint16_t port;
	uint32_t scope;
};

/* "192.0.2.1", "2001:db8::1". len characters, no terminator needed. -EINVAL if not. */
MUST_CHECK int ipaddr_parse(struct ipaddr *out, const char *text, size_t len);
/* "192.0.2.0/24" or a bare address (full length). Host bits are cleared, as wg(8) does. */
MUST_CHECK int prefix_parse(struct prefix *out, const char *text, size_t len);
/* "192.0.2.1:51820", "[2001:db8::1]:51820", "[fe80::1%2]:51820" (numeric scope or
 * interface name). No host names. */
MUST_CHECK int ipport_parse(struct ipport *out, const char *text, size_t len);

/* The same forms back; returns out. */
const char *ipaddr_text(const struct ipaddr *a, char out[ADDR_TEXT_MAX]);
const char *prefix_text(const struct prefix *p, char out[ADDR_TEXT_MAX]);
const char *ipport_text(const struct ipport *a, char out[ADDR_TEXT_MAX]);

#endif
