/* The engine `queue`: threads and locked queues instead of workers that run to completion.
 * It is the usual way to build such a thing, and what all other engines are measured
 * against. Beside worker.h, with the same state machine and cipher: readers, workers and a
 * sender, a packet at a time. What it does for a packet is told in queued.c. */
#ifndef GATEWAY_QUEUED_H
#define GATEWAY_QUEUED_H

#include "gateway/worker.h"

enum {
	QUEUED_PACKETS = 1024, /* that wait for a worker; full: dropped and counted */
	QUEUED_SENDS = 1024, /* that wait to be sent; full: workers wait */
};

struct queued;

struct queued_config {
	struct wg *wg; /* its workers 0 .. n_workers - 1 are ours */
	int tun_fd; /* without vnet header, non-blocking; the caller's */
	unsigned n_workers; /* 1..WG_WORKERS_MAX */
	struct queue *handshakes; /* of struct handshake_item */
	void (*handshake_ready)(void *ctx); /* something was pushed; must not block */
	void *ctx;
	struct unreach *unreach; /* told of packets that cannot be delivered; NULL: nobody is */
	/* As in struct worker_config; NULL: nobody is told. */
	void (*channel_lost)(void *lost_ctx, enum worker_channel which);
	void *lost_ctx;
};

/* Make it, without sockets. 0 or negative errno. */
MUST_CHECK int queued_create(struct queued **out, const struct queued_config *cfg);
/* Start / stop its threads, each once; stop waits for them. 0 or negative errno: none runs. */
MUST_CHECK int queued_start(struct queued *q);
void queued_stop(struct queued *q);
/* NULL is fine. */
void queued_destroy(struct queued *q);

/* Use these sockets, without UDP_GRO, from now on (fd -1: family not there; both -1: none).
 * Returns when all threads have let go of the former ones. Control thread. */
void queued_set_sockets(struct queued *q, const int fd[2]);

/* Routes have changed: which paths refuse our source address is to be found out anew, from
 * the next packet on. Any thread. */
void queued_forget_paths(struct queued *q);

/* Sum into out[WORKER_DROP_N]. Any thread. */
void queued_drops(const struct queued *q, uint64_t out[WORKER_DROP_N]);

#endif
