/* Which initiations and responses get as far as X25519: the MACs, the cookie and
 * the sources' shares (WireGuard paper, sections 5.3 and 5.4.7). Cheap: a hash or
 * two for each message. The caller serialises (the device's lock).
 *
 * A source is an IPv4 address or an IPv6 /64. While we are not under load each has
 * ADMIT_PER_SEC handshakes a second without a question. Beyond that, and under load at
 * once, it must show a cookie; then its address and port count, so that the
 * thousands behind a carrier's NAT are not one client, and the source as a whole
 * has a far larger share. Cookies are rationed, too, since anybody can ask for
 * one under any address: a common ration first, then a small one of each source, so
 * that a flood does not use up those of everybody else. */
#ifndef WG_ADMIT_H
#define WG_ADMIT_H

#include "base/bucket.h"
#include "base/compiler.h"
#include "wg/cookie.h"
#include "wg/ratelimit.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stdint.h>

enum {
	/* without a cookie, by source; with one, by address and port */
	ADMIT_PER_SEC = 20,
	ADMIT_BURST = 5,
	ADMIT_SETS = 1024,
	/* with a cookie, by source */
	ADMIT_SOURCE_PER_SEC = 500,
	ADMIT_SOURCE_BURST = 2500,
	/* cookie replies: of all sources together, then of each */
	ADMIT_COOKIES_PER_SEC = 2500,
	ADMIT_COOKIES_BURST = 2500,
	ADMIT_COOKIES_SOURCE_PER_SEC = 1,
	ADMIT_COOKIES_SOURCE_BURST = 3,
	ADMIT_COOKIES_SETS = 8192, /* 65,536 sources */
};

enum admission {
	ADMIT_YES,
	ADMIT_BAD_MAC, /* mac1 is wrong */
	ADMIT_COOKIE, /* answer it with a cookie reply */
	ADMIT_LIMIT, /* above its share */
};

struct admit {
	struct cookie_checker checker;
	struct ratelimit plain, clients, sources, cookies;
	struct bucket ration; /* of cookies, for all sources together */
	uint64_t load_ns; /* last sign of load */
	bool has_load;
};

/* What admit_judge is told of a message. */
struct admit_in {
	const uint8_t *msg; /* an initiation or a response */
	size_t len;
	const uint8_t *remote; /* COOKIE_REMOTE bytes: address and port */
	const uint8_t *source; /* RATELIMIT_KEY bytes */
	bool is_loaded; /* a sign of load: the queue of admitted messages is filling */
	bool is_expected; /* a response to an initiation of ours: needs no cookie */
};

/* 0 or -ENOMEM. admit_fini may follow a failed init of zeros. */
MUST_CHECK int admit_init(struct admit *a);
void admit_fini(struct admit *a);

/* Our public key; NULL: none. */
void admit_set_key(struct admit *a, const uint8_t public_key[32]);

enum admission admit_judge(struct admit *a, const struct admit_in *in, uint64_t now_ns);

#endif
