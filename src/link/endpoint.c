/* Endpoints as seen from outside: opaque bytes made from an address and back.
 * The received kind, with a local half, is made by udp_rx_parse(). */
#include "endpoint.h"
#include "link.h"

#include <string.h>

void endpoint_from_addr(struct wg_endpoint *out, const struct ipport *a)
{
	struct endpoint_remote r = {
		.family = a->addr.family,
		.port = htobe16(a->port),
		.scope = a->addr.family == AF_INET6 ? a->scope : 0,
	};

	memcpy(r.ip, a->addr.ip, a->addr.family == AF_INET ? 4 : 16);
	memset(out, 0, sizeof(*out));
	memcpy(out->remote, &r, sizeof(r));
}

void endpoint_to_addr(struct ipport *out, const struct wg_endpoint *e)
{
	struct endpoint_remote r = endpoint_get_remote(e);

	memset(out, 0, sizeof(*out));
	out->addr.family = (uint8_t)r.family;
	memcpy(out->addr.ip, r.ip, sizeof(r.ip));
	out->port = be16toh(r.port);
	out->scope = r.scope;
}

unsigned endpoint_family(const struct wg_endpoint *e)
{
	return endpoint_get_remote(e).family == AF_INET6;
}

void endpoint_limit_key(const struct wg_endpoint *from, uint8_t key[16])
{
	struct endpoint_remote r = endpoint_get_remote(from);

	memset(key, 0, 16);
	/* Whoever has one IPv6 address has a /64 of them. */
	memcpy(key, r.ip, r.family == AF_INET6 ? 8 : 4);
	key[15] = r.family == AF_INET6;
}
