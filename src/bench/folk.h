/* WireGuard clients that have sessions with a gateway and send in them, for measuring it:
 * all behind one UDP socket, each with a source address and an inner address of its
 * own. They respect cookies and begin anew when no answer comes. IPv4. (Those that
 * a wait is measured of are crowd.h.)
 *
 * One thread, except that folk_fire starts threads of its own and ends them. */
#ifndef BENCH_FOLK_H
#define BENCH_FOLK_H

#include "base/compiler.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FOLK_INNER_LEN = 64, /* of a packet: IPv4, UDP, zeros */
	FOLK_PERIOD_MS = 100, /* how often folk_handshake reports */
};

struct folk_config {
	size_t n;
	uint8_t server_key[WG_KEY_LEN];
	/* Addresses in host order. Client i has source + i % n_sources, which the socket's
	 * namespace must accept as its own (a local route), and inner + i. */
	uint32_t server, source, n_sources, inner;
	uint16_t port;
	uint32_t sink; /* inner destination of what is sent */
};

struct folk;

/* The socket belongs to the namespace that the calling thread is in. 0 or negative errno. */
MUST_CHECK int folk_create(struct folk **out, const struct folk_config *cfg);
void folk_destroy(struct folk *c);

void folk_public_key(struct folk *c, size_t i, uint8_t out[WG_KEY_LEN]);
uint32_t folk_inner(const struct folk *c, size_t i);

/* A new session for each of the clients from first on, confirmed by a keepalive; as fast
 * as the gateway answers. tell(ctx, done) now and then (may be NULL). 0; -EINTR when the
 * bench is to stop; -ETIMEDOUT when nobody gets through any more. */
MUST_CHECK int folk_handshake(
	struct folk *c, size_t first, size_t n, void (*tell)(void *ctx, size_t done), void *ctx);

/* Seal n packets ahead, of the first n_active clients by turns in an order that has
 * nothing to do with their numbers. 0, -ENOMEM, -EINTR, -ENOTCONN (one has no session). */
MUST_CHECK int folk_load(struct folk *c, size_t n_active, size_t n);
/* Send all that is loaded, once, n_threads at a time; returns when all is sent, with the
 * time that took. Bytes that come back are thrown away. 0 or negative errno. */
MUST_CHECK int folk_fire(struct folk *c, unsigned n_threads, uint64_t *took_ns);

struct folk_counts {
	uint64_t initiations, again, cookies, sessions, refused, timeouts;
};
void folk_counts(const struct folk *c, struct folk_counts *out);

#endif
