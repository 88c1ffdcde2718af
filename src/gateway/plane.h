/* The data plane: all threads that carry data, in the arrangement that the engine asks
 * for. Every call belongs to the control thread unless it says otherwise.
 *
 * Made in steps, since each needs what the one before found out: plane_create chooses the engine,
 * plane_open_queues says how many workers there will be, plane_steer loads what spreads packets
 * over them, plane_fill makes them; then plane_start. What does not work is logged in one
 * line, and where something lesser will do, it is taken. */
#ifndef GATEWAY_PLANE_H
#define GATEWAY_PLANE_H

#include "base/queue.h"
#include "gateway/worker.h"

struct plane_wish {
	const char *engine; /* a name of engines[], "queue", or "auto" */
	unsigned n_workers; /* at most plane_workers_max(engine); 0: as many as are good */
	bool has_steer; /* steering was asked for: an engine that cannot will not do */
	enum steer_mode steer; /* how packets get to workers that have sockets of their own */
	struct engine_config io;
};

/* How many workers an engine takes at most. */
unsigned plane_workers_max(const char *engine);
/* Is this the name of an engine, or "auto"? */
bool plane_is_engine(const char *name);
/* Can packets be steered to its workers? */
bool plane_is_steerable(const char *engine);

struct plane;

/* Choose the engine. 0 or negative errno: it was logged, and nothing is left. */
MUST_CHECK int plane_create(struct plane **out, const struct plane_wish *wish);
/* Stops it as well. NULL is fine. */
void plane_destroy(struct plane *p);

/* Which of these offloads it can use. */
unsigned plane_offloads_of(const struct plane *p, unsigned allowed);
/* A queue of the TUN for each worker that wants its own. 0; -EINVAL: it is one that the engine
 * cannot read, which was logged. */
MUST_CHECK int plane_open_queues(struct plane *p, const struct tun *t);
/* How many struct wg_worker the device has to allow. */
unsigned plane_n_wg_workers(const struct plane *p);
/* Spread packets over the workers. index_key as in wg_config. */
void plane_steer(struct plane *p, const uint8_t index_key[16]);

struct plane_parts {
	struct wg *wg;
	const struct tun *tun;
	unsigned offloads; /* enum link_offload: in force at start */
	struct queue *handshakes; /* of struct handshake_item */
	void (*handshake_ready)(void *ctx); /* any thread; must not block */
	void *ctx;
	struct unreach *unreach;
};
/* 0 or negative errno. */
MUST_CHECK int plane_fill(struct plane *p, const struct plane_parts *parts);
MUST_CHECK int plane_start(struct plane *p);
void plane_stop(struct plane *p);

/* What its sockets have to be like: n and steer of cfg. */
void plane_want_sockets(const struct plane *p, struct udp_config *cfg);
/* Use these from now on. Returns when the former ones are let go. */
void plane_set_sockets(struct plane *p, const struct udp *u);
/* See worker_forget_paths. */
void plane_forget_paths(struct plane *p);

/* Readable when a worker could no longer read a socket. */
int plane_lost_fd(const struct plane *p);
/* The same for a socket that somebody else of the gateway reads. Any thread. */
void plane_report_lost(struct plane *p);
/* Was a socket lost since the last call? */
bool plane_take_lost(struct plane *p);

/* One line about the engine and why it was taken, for the log. */
const char *plane_text(const struct plane *p);
unsigned plane_offloads(const struct plane *p);
void plane_drops(const struct plane *p, uint64_t out[WORKER_DROP_N]);
unsigned plane_n_workers(const struct plane *p);
/* Those of them that are counted: none of `queue`. */
unsigned plane_n_counted(const struct plane *p);
struct worker_count plane_count(const struct plane *p, unsigned worker);

#endif
