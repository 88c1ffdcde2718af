/* A gateway in a namespace and its clients in another, a veth pair between them. One thread, the
 * main one, as for the lab. */
#ifndef BENCH_TOWN_H
#define BENCH_TOWN_H

#include "base/compiler.h"
#include "bench/folk.h"
#include "bench/lab.h"

enum { TOWN_PEERS_MAX = 1 << 17 };

struct town {
	struct lab *lab;
	int inside, outside; /* namespaces of the gateway and of its clients */
	int gateway; /* number of the one that runs; -1: none */
	pid_t pid; /* its process */
	struct folk *folk;
	size_t n; /* clients */
	uint8_t secret[WG_KEY_LEN]; /* of the gateway */
};

/* The interface of the gateway. */
extern const char town_ifname[];

/* The network. penstock as for lab_create. 0 or negative errno; what failed is said on
 * standard error. */
MUST_CHECK int town_create(struct town **out, const char *penstock);
void town_destroy(struct town *t);

/* A gateway without peers, its interface up, and n clients that it does not know yet.
 * tell(ctx, done) while their keys are made (may be NULL). */
MUST_CHECK int town_settle(
	struct town *t, size_t n, void (*tell)(void *ctx, size_t done), void *ctx);
/* Make the clients its peers, by `wg setconf`; how long that took. */
MUST_CHECK int town_configure(struct town *t, uint64_t *took_ns);
/* How long `wg show IFNAME dump` takes. */
MUST_CHECK int town_show(struct town *t, uint64_t *took_ns);
/* The gateway ends and the clients go. */
void town_leave(struct town *t);

#endif
