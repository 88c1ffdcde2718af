/* Floods: one thread that sends the same packets over and over, as fast as it can,
 * from many source addresses in turn. */
#ifndef BENCH_FLOOD_H
#define BENCH_FLOOD_H

#include "base/compiler.h"
#include "bench/lab.h"
#include "wg/wg.h"
#include <stdint.h>

/* Packets of one length, side by side. */
struct flood_ammo {
	uint8_t *packets;
	size_t len, n;
};

/* n initiations that look right to whoever has not computed a DH: mac1 is the one
 * that the server expects, all else is random. 0 or -ENOMEM. */
MUST_CHECK int flood_initiations(
	struct flood_ammo *a, size_t n, const uint8_t server_public_key[WG_KEY_LEN]);
/* n data messages of len bytes for one receiver index, with counters from 0, that do
 * not authenticate. 0 or -ENOMEM. */
MUST_CHECK int flood_forgeries(struct flood_ammo *a, size_t n, size_t len, uint32_t receiver_index);
void flood_ammo_fini(struct flood_ammo *a);

struct flood_aim {
	const struct flood_ammo *ammo; /* must stay until the end */
	uint32_t target; /* IPv4, host order, as all addresses here */
	uint16_t port;
	uint32_t first_source; /* they and the following are local where it is sent */
	uint32_t n_sources;
};

struct flood;

/* Open fire from a namespace of a lab. 0 or negative errno. */
MUST_CHECK int flood_start(
	struct flood **out, const struct lab *l, int ns, const struct flood_aim *aim);
/* Packets sent so far. */
uint64_t flood_sent(const struct flood *f);
/* Cease fire. NULL is fine. */
void flood_stop(struct flood *f);

#endif
