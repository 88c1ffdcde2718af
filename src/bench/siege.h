/* What the flood and burst figures are measured in: a server gateway with three
 * neighbours, each in a namespace of its own and on a link of its own.
 *
 *    client    a gateway of the same kind, with a tunnel to the server
 *    crowd     legitimate clients at 10.81.0.0/16
 *    attacker  sends from 10.80.0.0/16
 *
 * One thread. */
#ifndef BENCH_SIEGE_H
#define BENCH_SIEGE_H

#include "base/compiler.h"
#include "bench/crowd.h"
#include "bench/flood.h"
#include "bench/lab.h"
#include "bench/transfer.h"
#include "wg/wg.h"

enum {
	SIEGE_PORT = 51820, /* of the server gateway */
	SIEGE_CLOSED_PORT = 51821, /* nobody listens there */
	SIEGE_ATTACKER_SOURCES = 0x0a500000, /* IPv4, host order, as the two below */
	SIEGE_CROWD_SOURCES = 0x0a510000,
	SIEGE_SERVER_TO_ATTACKER = 0x0a460201,
	SIEGE_SERVER_TO_CROWD = 0x0a460301,
	SIEGE_SOURCES = 10000, /* from how many the floods come */
};

struct siege {
	struct lab *lab;
	int server_ns, client_ns, crowd_ns, attacker_ns;
	int server; /* number of the server gateway in the lab */
	uint8_t server_public_key[WG_KEY_LEN];
	char *conf; /* the server's configuration, without the crowd */
};

/* Why there cannot be one with this kind of gateway here; NULL: there can. */
const char *siege_missing(const char *penstock, enum lab_kind kind);
/* Set all up. 0, or negative errno: what went wrong was printed to standard error. */
MUST_CHECK int siege_init(struct siege *s, const char *penstock, enum lab_kind kind);
/* All zero is fine. */
void siege_fini(struct siege *s);

/* Make n crowds that the server knows; crowds made before are forgotten by it. 0; or
 * negative errno: those made so far are the caller's to destroy, the others NULL. */
MUST_CHECK int siege_crowd(
	struct siege *s, const struct crowd_plan *plans, size_t n, struct crowd **out);

/* Resident memory of the server gateway in bytes; 0: it is gone. */
uint64_t siege_memory(const struct siege *s);

/* A TCP transfer through the tunnel, from the client to the server. */
MUST_CHECK int siege_transfer(struct siege *s, struct transfer **out);
/* A flood on a port of the server. */
MUST_CHECK int siege_flood(struct siege *s, const struct flood_ammo *ammo, uint16_t port,
	uint32_t n_sources, struct flood **out);

#endif
