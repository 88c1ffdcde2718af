/* One device in memory, with many peers that have sessions with it: what data workers
 * work on when neither the kernel nor a generator is in the way. Time stands still
 * but for what peerset_pass lets pass. */
#ifndef BENCH_ENGINES_PEERS_H
#define BENCH_ENGINES_PEERS_H

#include "base/compiler.h"
#include "bench/device.h"
#include "wg/wg.h"
#include <stddef.h>
#include <stdint.h>

enum {
	PEERSET_WORKERS = 2,
	PEERSET_SINK = 0x0b000001, /* inner address that is the device's (host order) */
};

struct peerset {
	struct fake_time time;
	struct wg *wg;
	/* Each belongs to one thread at a time. */
	struct wg_worker *workers[PEERSET_WORKERS];
	/* Peer i's other side. Different clients may be used by different threads at once. */
	struct wg_clients *clients;
	size_t n;
	uint8_t *owner; /* the worker that peer i's receiver index names */
	uint8_t answer[DEVICE_MESSAGE_MAX]; /* what the device sent last */
	size_t answer_len;
};

/* Real handshakes, some 0.4 ms each. tell(ctx, done) now and then (may be NULL). The
 * calling thread, an RCU reader, uses workers[0]. 0; -EINTR when the bench is to stop;
 * another negative errno. */
MUST_CHECK int peerset_create(
	struct peerset **out, size_t n, void (*tell)(void *ctx, size_t done), void *ctx);
/* NULL is fine. */
void peerset_destroy(struct peerset *p);

/* Inner address of peer i, host order. */
uint32_t peerset_inner(size_t i);
/* Where it is. */
void peerset_endpoint(size_t i, struct wg_endpoint *out);

#endif
