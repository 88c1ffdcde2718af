/* The two MACs of handshake messages and the cookies behind the second
 * (WireGuard paper, sections 5.3, 5.4.4, 5.4.7). Pure but for the random secret
 * and nonces; the caller serialises. Messages are the bytes of an initiation
 * or a response: the MACs are their last 32. */
#ifndef WG_COOKIE_H
#define WG_COOKIE_H

#include "base/compiler.h"
#include "wire/wgmsg.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	COOKIE_LEN = 16,
	COOKIE_REMOTE = 24, /* bytes of an endpoint that a cookie is bound to */
	COOKIE_SECRET_MAX_S = 120, /* a checker's secret is changed this often */
	COOKIE_USE_MAX_S = 115, /* a cookie is used this long: 5 s for latency */
};

/* What the MACs towards the owner of a public key depend on. */
struct cookie_keys {
	uint8_t mac1[32];
	uint8_t cookie[32];
};

/* The receiving side: one per device. */
struct cookie_checker {
	struct cookie_keys keys;
	uint8_t secret[32];
	uint64_t secret_born_ns;
	bool has_secret;
};

/* The sending side: one per peer. */
struct cookie_jar {
	const uint8_t *public_key; /* the peer's, 32 bytes; outlives the jar */
	uint8_t cookie[COOKIE_LEN];
	uint64_t cookie_born_ns;
	bool has_cookie;
	bool has_sent_mac1; /* a cookie reply may come, once, for last_mac1 */
	uint8_t last_mac1[COOKIE_LEN];
};

/* For our public key. The secret is made when first needed. */
void cookie_checker_init(struct cookie_checker *c, const uint8_t public_key[32]);
void cookie_checker_wipe(struct cookie_checker *c);

/* Is mac1 of an initiation or response right? Otherwise the sender does not know our
 * public key. */
bool cookie_check_mac1(const struct cookie_checker *c, const uint8_t *msg, size_t len);
/* Is its mac2 right, of a fresh cookie of ours for this address? Then the sender
 * receives at the address it sends from. remote: the endpoint's remote half, opaque.
 * Costs nothing where mac2 is zero: the sender has no cookie. */
bool cookie_check_mac2(struct cookie_checker *c, const uint8_t *msg, size_t len,
	const uint8_t remote[COOKIE_REMOTE], uint64_t now_ns);

/* The reply to an initiation or response that passed mac1. */
void cookie_make_reply(struct cookie_checker *c, const uint8_t *msg, size_t len,
	const uint8_t remote[COOKIE_REMOTE], uint64_t now_ns, struct wgmsg_cookie *out);

/* For messages to the peer with this public key, which must outlive the jar: its keys
 * are two hashes, made anew for each message rather than kept for each peer. */
void cookie_jar_init(struct cookie_jar *j, const uint8_t peer_public_key[32]);
void cookie_jar_wipe(struct cookie_jar *j);

/* Fill both MACs of a message that is going out; mac2 is zero without a cookie. */
void cookie_add_macs(struct cookie_jar *j, uint8_t *msg, size_t len, uint64_t now_ns);

/* A cookie reply came. false: we have sent nothing it can answer, or it does
 * not authenticate; then nothing changed. */
MUST_CHECK bool cookie_take_reply(
	struct cookie_jar *j, const struct wgmsg_cookie *msg, uint64_t now_ns);

#endif
