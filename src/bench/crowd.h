/* Legitimate clients that want a session, each from a source of its own, and how long
 * each has to wait. They follow the protocol as a stock client does: an initiation
 * again every 5 seconds and up to a third, with the cookie if one came. One thread. */
#ifndef BENCH_CROWD_H
#define BENCH_CROWD_H

#include "base/compiler.h"
#include "bench/lab.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stdint.h>

struct crowd_plan {
	size_t n; /* clients */
	uint32_t server; /* IPv4, host order, as below */
	uint16_t port;
	uint32_t first_source; /* client i is at first_source + i, all at one port */
	bool is_behind_nat; /* instead: all at first_source, each from a port of its own */
	bool answers_cookies_at_once; /* as our gateway does; else at the next try */
};

struct crowd;

/* 0 or negative errno. crypto_init() has been called. */
MUST_CHECK int crowd_create(struct crowd **out, const struct lab *l, int ns,
	const struct crowd_plan *plan, const uint8_t server_public_key[WG_KEY_LEN]);
void crowd_destroy(struct crowd *c);

/* The [Peer] sections that make the server know them; the caller's to free. NULL: no
 * memory. */
char *crowd_sections(struct crowd *c);

/* Make the first initiations of all, so that this does not compete with the server
 * later. A server does not take a message that is older than what it has from the
 * same client: each crowd_prepare is for one crowd_run. */
void crowd_prepare(struct crowd *c);

/* They come, one every interval_ns (0: all at once), and try until all have a session
 * or the time since the beginning is limit_ns. 0 also then; -EINTR when the bench is to
 * stop; other negative errno when a socket failed. */
MUST_CHECK int crowd_run(struct crowd *c, uint64_t interval_ns, uint64_t limit_ns);

/* Client i, which has a session, sends a keepalive in it. The receiver index that its
 * messages carry. 0; -ENOTCONN without a session; other negative errno. */
MUST_CHECK int crowd_confirm(struct crowd *c, size_t i, uint32_t *receiver_index);

/* What came of it. */
struct crowd_result {
	size_t n_sessions;
	uint64_t all_ns; /* from the first initiation to the last session */
	uint64_t p50_ns, p99_ns; /* of each one's wait; who got no session waited to the end */
	uint64_t n_sent, n_cookies;
};
void crowd_result(const struct crowd *c, struct crowd_result *out);

#endif
