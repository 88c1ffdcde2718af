/* A data worker: joins an engine (io), the carriers (link) and the state
 * machine (wg). Runs to completion: read a batch, do all the work, write it
 * out. See doc/packet-walk.md. */
#ifndef GATEWAY_WORKER_H
#define GATEWAY_WORKER_H

#include "base/queue.h"
#include "base/turnstile.h"
#include "gateway/handshake_item.h"
#include "gateway/order.h"
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

/* What a worker reads: a bit for each. It may write to all of them. */
enum worker_channel { WORKER_UDP4, WORKER_UDP6, WORKER_TUN, WORKER_CHANNELS };
enum { WORKER_READS_ALL = (1 << WORKER_CHANNELS) - 1 };

struct worker_config {
	unsigned id; /* of its wg_worker */
	struct wg *wg;
	const struct engine_ops *ops;
	struct engine_config engine;
	int tun_fd;
	unsigned reads; /* bits of enum worker_channel */
	/* Of each channel: others read it too, this keeps what came in order. NULL: none do. */
	struct turnstile *shared[WORKER_CHANNELS];
	/* One session's trains come to several workers by sockets of their own (steer mode
	 * rr). NULL: they do not. */
	struct order *order;
	unsigned offloads; /* enum link_offload: in force at start */
	struct queue *handshakes; /* of struct handshake_item */
	void (*handshake_ready)(void *ctx); /* something was pushed; must not block */
	void *ctx;
	struct unreach *unreach; /* told of packets that cannot be delivered */
	/* A descriptor can no longer be read: somebody closed it, or it was destroyed. From the
	 * worker's thread, once for each; must not block. */
	void (*channel_lost)(void *lost_ctx, enum worker_channel which);
	void *lost_ctx;
};

/* Make the worker; buffers are taken here. 0 or negative errno. */
MUST_CHECK int worker_create(struct worker **out, const struct worker_config *cfg);
/* Start / stop its thread. stop waits for it. */
MUST_CHECK int worker_start(struct worker *w);
void worker_stop(struct worker *w);
void worker_destroy(struct worker *w);

/* Use these sockets from now on (fd -1: family not there; both -1: none), read them too if
 * reads says so (see worker_config). Returns when the worker has let go of the former ones.
 * Control thread. */
void worker_set_sockets(struct worker *w, const int fd[2], unsigned reads, unsigned offloads);

/* Routes have changed: what was found out about sources and trains of single paths is to
 * be found out anew, from the next batch on. Any thread. */
void worker_forget_paths(struct worker *w);

/* Sum into out[WORKER_DROP_N]. Any thread. */
void worker_drops(const struct worker *w, uint64_t out[WORKER_DROP_N]);
/* What came in so far: data messages from the sockets, packets (segments of superframes) from the
 * TUN. Any thread. */
struct worker_count {
	uint64_t rx_packets, tx_packets;
};
struct worker_count worker_counts(const struct worker *w);
/* Offloads still in force (some may have been lost at run time). Any thread. */
unsigned worker_offloads(const struct worker *w);

#endif
