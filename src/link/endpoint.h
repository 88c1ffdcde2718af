/* What is inside a struct wg_endpoint: the secret of src/link. */
#ifndef LINK_ENDPOINT_H
#define LINK_ENDPOINT_H

#include "wg/wg.h"
#include <netinet/in.h>

/* All bytes are compared and hashed: no padding, what is not used is zero. */
struct endpoint_remote {
	uint16_t family; /* AF_INET, AF_INET6; 0: none */
	uint16_t port; /* network order */
	uint32_t scope; /* interface of a link-local IPv6 address */
	uint8_t ip[16];
};

/* The address that the peer wrote to, for the answer to come from; zero: leave
 * it to routing. */
struct endpoint_local {
	uint32_t ifindex; /* where the datagram came in */
	uint8_t ip[16];
	uint8_t zero[4];
};

static_assert(sizeof(struct endpoint_remote) == sizeof(((struct wg_endpoint *)0)->remote), "fits");
static_assert(sizeof(struct endpoint_local) == sizeof(((struct wg_endpoint *)0)->local), "fits");

static inline struct endpoint_remote endpoint_get_remote(const struct wg_endpoint *e)
{
	struct endpoint_remote r;

	memcpy(&r, e->remote, sizeof(r));
	return r;
}

static inline struct endpoint_local endpoint_get_local(const struct wg_endpoint *e)
{
	struct endpoint_local l;

	memcpy(&l, e->local, sizeof(l));
	return l;
}

/* An IPv6 address that is none without its interface. */
static inline bool endpoint_is_link_local(const uint8_t ip[16])
{
	return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80;
}

#endif
