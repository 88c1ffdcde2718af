/* A data worker: joins an engine (io), the carriers (link) and the state
 * machine (wg). Runs to completion: read a batch, do all the work, write it
 * out. See doc/packet-walk.md. */
#ifndef GATEWAY_WORKER_H
#define GATEWAY_WORKER_H

#include "base/queue.h"
#include "gateway/handshake_item.h"
#include "gateway/unreach.h"
#include "io/io.h"
#include "link/link.h"
#include "wg/wg.h"

/* Why the worker, as opposed to wg, dropped something. */
#define WORKER_DROPS(X)                                                           \
	X(TUN_FRAME, "tun_frame",                                                 \
		"frame from the TUN is not whole IP or has a bad offload header") \
	X(DATAGRAM, "datagram_cut", "datagram truncated or of a foreign family")  \
	X(QUEUE_FULL, "handshake_queue_full", "handshake queue is full")          \
	X(PACKET_QUEUE, "packet_queue_full",                                      \
		"engine queue: packets wait for a worker, or there is no memory") \
	X(TUN_WRITE, "tun_write", "the TUN refused a packet")                     \
	X(UDP_SEND, "udp_send", "the kernel refused a datagram")                  \
	X(ECN, "ecn", "congestion mark outside on a packet that cannot carry it (RFC 6040)")

enum worker_drop {
#define X(name, key, text) WORKER_DROP_##name,
	WORKER_DROPS(X)
#undef X
		WORKER_DROP_N
};
const char *worker_drop_key(enum worker_drop d);
const char *worker_drop_text(enum worker_drop d);

struct worker;

struct worker_config {
	unsigned id;
	struct wg *wg;
	const struct engine_ops *ops;
	struct engine_config engine;
	int tun_fd;
	unsigned offloads; /* enum link_offload: in force at start */
	struct queue *handshakes; /* of struct handshake_item */
	void (*handshake_ready)(void *ctx); /* something was pushed; must not block */
	void *ctx;
	struct unreach *unreach; /* told of packets that cannot be delivered */
};

/* Make the worker; buffers are taken here. 0 or negative errno. */
MUST_CHECK int worker_create(struct worker **out, const struct worker_config *cfg);
/* Start / stop its thread. stop waits for it. */
MUST_CHECK int worker_start(struct worker *w);
void worker_stop(struct worker *w);
void worker_destroy(struct worker *w);

/* Use these sockets from now on (fd -1: family not there; both -1: none). Returns
 * when the worker has let go of the former ones. Control thread. */
void worker_set_sockets(struct worker *w, const int fd[2], unsigned offloads);

/* Routes have changed: what was found out about sources and trains of single paths is to
 * be found out anew, from the next batch on. Any thread. */
void worker_forget_paths(struct worker *w);

/* Sum into out[WORKER_DROP_N]. Any thread. */
void worker_drops(const struct worker *w, uint64_t out[WORKER_DROP_N]);
/* Offloads still in force (some may have been lost at run time). Any thread. */
unsigned worker_offloads(const struct worker *w);

#endif
