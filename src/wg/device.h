/* What the files of src/wg share: the device, its peers and their keypairs.
 *
 * Who may touch what is said at each group of fields. "lock": the device's
 * lock. "config_lock": see struct wg. "any": atomics, any thread. */
#ifndef WG_DEVICE_H
#define WG_DEVICE_H

#include "base/clock.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/rcu.h"
#include "crypto/crypto.h"
#include "wg/admit.h"
#include "wg/allowed.h"
#include "wg/cookie.h"
#include "wg/index.h"
#include "wg/noise.h"
#include "wg/replay.h"
#include "wg/suspect.h"
#include "wg/wg.h"
#include "wg/wheel.h"
#include <pthread.h>

/* WireGuard paper, section 6.1. */
#define REKEY_AFTER_MESSAGES (1ULL << 60)
#define REJECT_AFTER_MESSAGES REPLAY_REJECT_AFTER
#define REKEY_AFTER_TIME (120 * NSEC_PER_SEC)
#define REJECT_AFTER_TIME (180 * NSEC_PER_SEC)
#define REKEY_TIMEOUT (5 * NSEC_PER_SEC)
#define REKEY_JITTER (NSEC_PER_SEC / 3)
#define KEEPALIVE_TIMEOUT (10 * NSEC_PER_SEC)
/* Linux: REKEY_ATTEMPT_TIME 90 s / REKEY_TIMEOUT. */
enum { HANDSHAKE_TRIES_MAX = 18 };

enum {
	JOBS_MAX = 64, /* packets per AEAD batch */
	/* Responses to one initiation that need no cookie. */
	ANSWERS_MAX = 8,
	STAGE_SLOT = 2048,
	STAGE_SLOTS = 16384, /* of all peers together: 32 MiB; touched as used */
	STAGE_SHARE = 64, /* of the free slots, that a peer may have */
	STAGE_SENDS_MAX = 4 * WG_STAGED_MAX, /* of one peer, in one go under the lock */
	STAGE_PACKET_MAX = 40 + 65535, /* IPv6: its length field does not count the header */
};

/* 1,160 bytes from malloc, which is a chunk of 1,168: aligned to the cache line it would be
 * 1,340, for each of up to three keypairs of 100,000 peers. Who sends writes the top, who
 * receives the bottom, and they are more than a line apart. */
struct keypair {
	uint8_t send_key[CRYPTO_KEY];
	_Atomic uint64_t tx_counter; /* any */
	struct rcu_node rcu;
	/* read-only once it is found in the index table */
	struct wg_peer *peer;
	uint32_t local_index, remote_index;
	uint64_t birth_ns;
	uint8_t recv_key[CRYPTO_KEY];
	bool is_initiator;
	/* any */
	_Atomic bool is_confirmed; /* responder: the initiator has used it */
	_Atomic bool is_sending; /* false: our key changed, receive only */
	struct replay replay;
};

/* A packet that waits for a session: a chain of pool slots. */
struct staged {
	struct staged *next; /* the packet's next slot */
	struct staged *after; /* first slot of the next packet */
	uint32_t len; /* of the whole packet */
	uint8_t bytes[];
};
enum { STAGE_BYTES = STAGE_SLOT - sizeof(struct staged) };

/* An endpoint that many read and few write: readers repeat when the sequence
 * number moved under them (odd: being written). */
struct endpoint_stray;
struct endpoint_cell {
	atomic_flag busy; /* writers */
	_Atomic bool is_set;
	_Atomic uint32_t seq;
	_Atomic uint64_t word[sizeof(struct wg_endpoint) / 8];
	_Atomic(struct endpoint_stray *) stray; /* RCU; written under the device's lock */
};

/* MTUs on their way to the workers; mtus.c. The sequence number is odd while they
 * are being written. */
struct mtus_cell {
	_Atomic uint32_t seq;
	_Atomic uint64_t word[sizeof(struct wg_mtus) / 8];
};

/* What waits for the slow side, and until when: nanoseconds, 0: off. */
enum timer {
	TIMER_RETRANSMIT, /* send the initiation again */
	TIMER_KEEPALIVE, /* data came and nothing went back */
	TIMER_NEW_HANDSHAKE, /* data went and nothing came back */
	TIMER_ZERO_KEYS, /* wipe sessions nobody uses */
	TIMER_PERSISTENT, /* persistent keepalive */
	TIMER_N
};

/* Requests that wg_poll serves (peer.wants), mostly of the fast side. */
enum {
	WANT_SESSION = 1 << 0, /* packets are staged, or the session grows old */
	WANT_PROMOTE = 1 << 1, /* the next keypair was used: it becomes current */
	WANT_REKEY = 1 << 2, /* handshake although the session is still good */
	WANT_KEEPALIVE = 1 << 3,
};

/* Reasons that are a peer's own, counted in it as well as in the device. (The
 * formatter never comes to rest on this one.) */
/* clang-format off */
#define PEER_DROPS(X)                                                        \
	X(EXPIRED) X(DECRYPT) X(SUSPECT) X(REPLAY) X(INNER) X(SOURCE)         \
	X(LOOP) X(NO_ENDPOINT) X(STAGED_FULL) X(STAGED_PURGED) X(NO_BUFFER)   \
	X(HANDSHAKE) X(TIMESTAMP) X(FLOOD) X(COOKIE)
/* clang-format on */

enum peer_drop {
	PEER_DROP_NONE, /* not a peer's own */
#define X(name) PEER_DROP_##name,
	PEER_DROPS(X)
#undef X
		PEER_DROP_N
};

struct wg_peer {
	/* read-only */
	struct rcu_node rcu;
	struct wg *wg;

	/* any */
	_Atomic(struct keypair *) current; /* RCU; written under lock */
	/* "next" of the paper. Once it is confirmed, workers send with it, also before the
	 * slow side has made it current. */
	_Atomic(struct keypair *) following;
	struct endpoint_cell endpoint;
	_Atomic uint64_t rx_bytes, tx_bytes;
	_Atomic uint64_t due[TIMER_N];
	_Atomic uint64_t armed_ns; /* when the slow side looks again; UINT64_MAX: never */
	_Atomic uint64_t initiation_ns; /* last initiation or response sent; 0: never */
	_Atomic uint64_t persistent_ns; /* interval; 0: off */
	_Atomic unsigned wants;
	_Atomic bool is_kicked;
	_Atomic bool is_dead;
	_Atomic bool needs_another_keepalive;
	_Atomic bool has_lastminute; /* rekeyed because of age while receiving */
	/* 32 bits, for 100,000 peers; they wrap. */
	_Atomic uint32_t drops[PEER_DROP_N];
	struct wg_peer *kick_next;

	/* stage_busy */
	atomic_flag stage_busy;
	_Atomic unsigned n_staged; /* also read without: not 0 means stage behind them */
	struct staged *stage_first, *stage_last;

	/* lock */
	struct wg_peer *next, *prev; /* oldest first */
	struct wg_peer *hash_next;
	struct allowed_owner allowed;
	struct keypair *previous;
	struct noise_peer noise;
	/* That we began, NULL for none: on the heap, since few peers have one at a time.
	 * Those that we answer live on the stack. */
	struct noise_handshake *handshake;
	uint32_t handshake_index; /* ours, in the index table */
	bool has_handshake_index;
	struct cookie_jar jar;
	struct wheel_node wheel;
	unsigned n_tries;
	uint8_t home; /* the worker whose indices its sessions get, as long as it lives */
	uint8_t n_answers; /* responses to our initiation that were admitted unasked */
	bool has_taken_cookie; /* since the timer last began a handshake */
	bool owes_keepalive; /* an empty packet waits behind what is staged */
	uint64_t last_handshake_wall_ns;

	/* config_lock */
	uint32_t named, whole; /* marks of the last change that named it / said all of it */
};

struct wg_worker {
	struct wg *wg;
	unsigned id;
	struct wg_mtus mtus; /* of the device, as of the last refresh */
	uint32_t mtus_seq; /* that they were read at */
	struct aead *aead;
	struct aead_job jobs[JOBS_MAX];
	uint64_t counters[JOBS_MAX];
	bool is_fresh[JOBS_MAX];
	uint32_t which[JOBS_MAX];
	struct suspects suspects;
	_Atomic uint64_t drops[WG_DROP_N]; /* written by the owner */
};

struct wg {
	/* read-only after wg_create */
	const struct wg_ops *ops;
	void *ctx;
	unsigned n_workers;

	/* any */
	struct mtus_cell mtus; /* written under lock */
	_Atomic bool is_up;
	_Atomic bool has_key;
	struct allowed_table allowed; /* RCU */
	struct index_table index; /* RCU */
	struct pool stage;
	/* Stack; taken whole by the slow side: backlog. Not beside is_up and the roots of the
	 * tables, which every worker reads for every train. */
	_Atomic(struct wg_peer *) kicked;

	/* config_lock: one change of the configuration at a time; before lock. Peers and
	 * prefixes come and go under both. */
	pthread_mutex_t config_lock;
	uint32_t mark;

	/* lock */
	pthread_mutex_t lock;
	pthread_mutex_t turn_lock; /* before it: see wg_lock */
	struct noise_identity identity;
	struct admit admit;
	struct wheel wheel;
	struct wg_peer *first, *last;
	struct wg_walk *walks; /* those under way */
	struct wg_peer *backlog; /* kicked peers that were taken and not served yet */
	unsigned work; /* of timers_run or wg_apply, so far */
	struct wg_peer **buckets; /* by public key */
	size_t n_buckets; /* a power of two */
	size_t n_peers;
	struct sipkey hash_key;
	uint32_t n_at_home[WG_WORKERS_MAX]; /* peers of each worker */
	uint64_t random;
	uint64_t now_ns, wall_ns; /* of the slow call under way */
	struct wg_worker *slow; /* seals keepalives and staged packets */
	uint8_t *scratch; /* one message */
	_Atomic uint64_t drops[WG_DROP_N];

	/* any: the data workers, for sums */
	_Atomic(struct wg_worker *) workers[WG_WORKERS_MAX];
};

static inline bool has_expired(uint64_t since_ns, uint64_t after_ns, uint64_t now_ns)
{
	return now_ns >= since_ns + after_ns;
}

static inline void count_drop(_Atomic uint64_t *drops, enum wg_drop why, uint64_t n)
{
	/* One writer each (a worker, or the lock): no read-modify-write needed. */
	atomic_store_explicit(&drops[why],
		atomic_load_explicit(&drops[why], memory_order_relaxed) + n, memory_order_relaxed);
}

/* A random number below n. Lock. */
uint64_t wg_random_below(struct wg *wg, uint64_t n);

/* ---- device.c: the lock. */
/* Take it in turn: nobody overtakes whoever waits in here. */
void wg_lock(struct wg *wg);

enum {
	TIMERS_WORK = 256, /* of one wg_poll, more or less, in pieces like those of HOLD_MAX */
	INITIATION_WORK = 32, /* an initiation is as much work as so many of them, and more */
};

enum { HOLD_MAX = 128 }; /* pieces of work, of a microsecond or so */

/* The lock during work on many peers: it is let go now and then. config_lock keeps the
 * peers and their order meanwhile. */
struct hold {
	struct wg *wg;
	uint64_t now_ns, wall_ns; /* of the slow call; 0: it knows of none */
	size_t n; /* pieces of work begun since the lock was taken */
};
void hold_begin(struct hold *h, struct wg *wg, uint64_t now_ns, uint64_t wall_ns);
/* n pieces of work are next. Others may have had the lock when it returns. */
void hold_count(struct hold *h, size_t n);
void hold_end(struct hold *h);

/* ---- peer.c */
/* One of the peer's own reasons, counted there and in drops as count_drop does. */
void peer_count_drop(struct wg_peer *p, _Atomic uint64_t *drops, enum wg_drop why, uint64_t n);
/* There alone: the device's count is kept elsewhere. Any reason. */
void peer_note_drop(struct wg_peer *p, enum wg_drop why, uint64_t n);
/* Its counts, 0 for reasons that are no peer's. */
void peer_drops(const struct wg_peer *p, uint64_t out[WG_DROP_N]);
/* A peer that is not yet in any table; free() ends it. NULL: no memory. */
struct wg_peer *peer_alloc(struct wg *wg, const uint8_t key[WG_KEY_LEN]);
/* Put an allocated peer into the device. Both locks. */
void peer_add(struct wg_peer *p);
/* Take it out of all tables; freed after a grace period. Both locks. */
void peer_remove(struct wg_peer *p);
/* Either lock. */
struct wg_peer *peer_find(const struct wg *wg, const uint8_t key[WG_KEY_LEN]);
/* Room for n more peers in the hash table. config_lock; takes the other. 0 or -ENOMEM. */
MUST_CHECK int peers_reserve(struct wg *wg, size_t n);

/* ---- endpoint_cell.c */
bool endpoint_get(struct endpoint_cell *c, struct wg_endpoint *out);
/* The peer is at e now. An RCU reader, or whoever has the device's lock. */
void endpoint_set(struct endpoint_cell *c, const struct wg_endpoint *e, uint64_t now_ns);
/* Forget how to answer (a sticky source): the route decides anew. */
void endpoint_clear_local(struct endpoint_cell *c);
/* See wg_reroute. Lock. */
void endpoint_reroute(
	struct endpoint_cell *c, const struct wg_endpoint *e, unsigned detour, uint64_t now_ns);
/* Nobody else has it any more. */
void endpoint_fini(struct endpoint_cell *c);

/* ---- mtus.c */
/* One writer at a time. */
void mtus_set(struct mtus_cell *c, const struct wg_mtus *m);
/* false: they are the ones read at *seq, or being written just now. Any thread. */
bool mtus_get(const struct mtus_cell *c, struct wg_mtus *out, uint32_t *seq);

/* ---- walk.c */
/* The peer is about to leave the list: walks that stand on it step to the next. Lock. */
void walks_step_off(struct wg_peer *p);

/* ---- stage.c: packets that wait for a session. */
/* Copy packets to the queue's end; those that fall out are counted. Any thread. */
void stage_packets(
	struct wg_peer *p, const struct wg_packet *pkts, size_t n, _Atomic uint64_t *drops);
/* Drop all; returns how many. */
size_t stage_purge(struct wg_peer *p);
/* Take the oldest into buf (STAGE_PACKET_MAX bytes); false: none is left, and
 * from now on the fast side sends on its own. */
bool stage_take(struct wg_peer *p, uint8_t *buf, uint32_t *len);

/* ---- session.c */
/* Keys of a finished handshake become the current (initiator) or the next
 * (responder) keypair; hs is wiped and its index is the keypair's. Lock. 0, -ENOMEM. */
MUST_CHECK int session_begin(struct wg_peer *p, struct noise_handshake *hs);
void session_promote(struct wg_peer *p);
void session_end_all(struct wg_peer *p);
/* Our key changed: the sessions may receive what is on its way, but not send. */
void session_stop_sending(struct wg_peer *p);
bool session_may_send(const struct keypair *kp, uint64_t now_ns);
/* Send what is staged, or start a handshake if there is no session. Lock. */
void session_send_staged(struct wg_peer *p);
void session_send_keepalive(struct wg_peer *p);

/* ---- handshake.c. Lock. */
void handshake_initiate(struct wg_peer *p, bool is_retry);
/* Forget the handshake under way and its index. */
void handshake_clear(struct wg_peer *p);

/* ---- timers.c */
/* Set a deadline; tells the slow side if it would look too late. Any thread. */
void timer_set(struct wg_peer *p, enum timer t, uint64_t at_ns);
void timer_clear(struct wg_peer *p, enum timer t);
/* Ask the slow side for something now. Any thread. */
void peer_want(struct wg_peer *p, unsigned wants);
/* Events, named as in Linux timers.c. */
void timers_data_sent(struct wg_peer *p, uint64_t now_ns);
void timers_data_received(struct wg_peer *p, uint64_t now_ns);
void timers_authenticated_sent(struct wg_peer *p);
void timers_authenticated_received(struct wg_peer *p);
void timers_authenticated_traversal(struct wg_peer *p, uint64_t now_ns);
void timers_handshake_initiated(struct wg_peer *p, uint64_t sent_ns);
void timers_handshake_complete(struct wg_peer *p);
void timers_session_derived(struct wg_peer *p);
void timers_stop(struct wg_peer *p);
/* Take dead peers off the list of those that were kicked. Lock. */
void timers_forget_dead(struct wg *wg);
/* Serve kicked peers, run what is due and arm the wheel, as far as TIMERS_WORK goes. False:
 * kicked peers are left; what is due and left is the first in the wheel. Lock. */
MUST_CHECK bool timers_run(struct wg *wg);

#endif
