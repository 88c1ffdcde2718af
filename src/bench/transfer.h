/* A TCP transfer that runs until it is stopped: one thread writes, one reads. */
#ifndef BENCH_TRANSFER_H
#define BENCH_TRANSFER_H

#include "base/compiler.h"
#include "bench/lab.h"
#include <stdint.h>

struct transfer;

/* From a namespace of a lab to an address (IPv4, host order) and port in another.
 * Returns when the connection stands: 0 or negative errno. */
MUST_CHECK int transfer_start(struct transfer **out, const struct lab *l, int from_ns, int to_ns,
	uint32_t to, uint16_t port);
/* Bytes that the reader has got so far. */
uint64_t transfer_bytes(const struct transfer *t);
/* NULL is fine. */
void transfer_stop(struct transfer *t);

#endif
