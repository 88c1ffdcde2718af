/* WireGuard as a state machine: peers, sessions, handshakes, timers, cryptokey
 * routing. The door of src/wg.
 *
 * Pure: no descriptor, no clock; the time is an argument (now_ns: any clock
 * that does not go back; wall_ns: nanoseconds since 1970). What is to be sent
 * leaves through wg_ops, so two devices can be joined in memory.
 *
 * Threads. Two kinds of calls:
 *  - fast calls take a struct wg_worker, which belongs to one data worker. They
 *    take no lock of the device, allocate nothing and block on nothing. The
 *    worker is an RCU reader (base/rcu.h): pointers that a fast call returns
 *    are good until its next rcu_quiescent().
 *  - slow calls (all others) may come from any thread; the device's lock is
 *    taken inside. wg_ops is called with that lock held unless it says otherwise.
 *
 * Follows the WireGuard paper (Donenfeld, NDSS 2017, revision of 2020) and,
 * where that is silent, Linux 6.x drivers/net/wireguard. */
#ifndef WG_WG_H
#define WG_WG_H

#include "base/compiler.h"
#include "wire/addr.h"
#include "wire/wgmsg.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	WG_KEY_LEN = 32,
	WG_PEERS_MAX = 1 << 17, /* full: -ENOSPC */
	WG_STAGED_MAX = 128, /* packets per peer; full: the oldest is dropped */
	WG_WORKERS_MAX = 64,
	WG_SERVER_ID_MAX = 127,
	WG_AHEAD_MAX = 64, /* messages at once in wg_look_ahead */
	WG_HEAD = WGMSG_DATA_HDR, /* room before a packet that is to be sealed */
	WG_TAIL = 15 + WGMSG_DATA_TAG, /* room after it: padding and tag */
};

/* ---- Endpoints: opaque here. A carrier fills both halves (unused bytes zero). */
struct wg_endpoint {
	uint8_t remote[24]; /* who: what roaming compares and cookies bind */
	uint8_t local[24]; /* how to answer: our address, interface; may be zero */
};

/* ---- Why a packet was dropped. */
#define WG_DROPS(X)                                                                          \
	X(TYPE, "unknown_type", "not one of the four messages, or a wrong length")           \
	X(NO_SESSION, "no_session", "receiver index belongs to no session")                  \
	X(EXPIRED, "expired", "session too old or used up")                                  \
	X(DECRYPT, "decrypt", "authentication failed")                                       \
	X(SUSPECT, "suspect", "not opened: packets of this source keep failing")             \
	X(REPLAY, "replay", "counter seen before or too old")                                \
	X(INNER, "inner_malformed", "inner packet is not whole IPv4 or IPv6")                \
	X(SOURCE, "wrong_source", "inner source address is not one of the peer's")           \
	X(NO_ROUTE, "no_route", "no peer has the destination address")                       \
	X(LOOP, "routing_loop", "a tunnel's message, routed back into it or round a circle") \
	X(NO_ENDPOINT, "no_endpoint", "the peer's endpoint is not known yet")                \
	X(STAGED_FULL, "staged_full", "oldest staged packet made room for a new one")        \
	X(STAGED_PURGED, "staged_purged", "staged packets of a handshake that was given up") \
	X(NO_BUFFER, "no_buffer", "staging pool is empty")                                   \
	X(DOWN, "interface_down", "interface is down or has no private key")                 \
	X(MAC1, "mac1", "handshake message with a wrong first MAC")                          \
	X(MAC2, "cookie_sent", "under load: answered with a cookie")                         \
	X(RATE, "rate_limit", "handshakes from one source above the limit")                  \
	X(HANDSHAKE, "handshake_invalid", "handshake message that does not authenticate")    \
	X(UNKNOWN_PEER, "unknown_peer", "initiation from a key that is not a peer")          \
	X(TIMESTAMP, "timestamp_replay",                                                     \
		"initiation not newer than the last: replay or clock back")                  \
	X(FLOOD, "initiation_flood", "initiations of one peer above 50 per second")          \
	X(QUEUE, "handshake_queue", "admitted handshakes beyond the queue's room or 4 s")    \
	X(COOKIE, "cookie_invalid", "cookie reply that does not authenticate")

enum wg_drop {
	WG_OK = 0,
#define X(name, key, text) WG_DROP_##name,
	WG_DROPS(X)
#undef X
		WG_DROP_N
};

/* Counter name ("replay") and sentence for a reason. */
const char *wg_drop_key(enum wg_drop d);
const char *wg_drop_text(enum wg_drop d);

/* ---- The device. */
struct wg;
struct wg_peer;
struct wg_worker;

enum wg_msg_kind {
	WG_MSG_HANDSHAKE, /* initiation, response or cookie reply */
	WG_MSG_DATA, /* keepalive or a packet that was staged */
};

struct wg_ops {
	/* Send one datagram. Called with the device's lock held; msg is the
	 * callee's until it returns. */
	void (*send)(void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len,
		enum wg_msg_kind kind);
	/* Something waits for wg_poll(): call it soon. Any thread, no lock held
	 * that matters, may come from a fast call: must not block. */
	void (*wake)(void *ctx);
	/* What a handshake rate limit counts as one source: fill key (IPv4 address,
	 * IPv6 /64 ...). Pure. */
	void (*limit_key)(const struct wg_endpoint *from, uint8_t key[16]);
	/* Data messages for this receiver index from there (is_home: from everywhere but
	 * there) keep failing to authenticate, and nothing else comes: whatever keeps
	 * them from being received may do so until then. From a fast call, must not
	 * block; again and again while it lasts. NULL: nobody wants to know. */
	void (*accuse)(void *ctx, const struct wg_endpoint *from, bool is_home,
		uint32_t receiver_index, uint64_t until_ns);
};

struct wg_config {
	const struct wg_ops *ops;
	void *ctx; /* given back to every hook */
	unsigned n_workers; /* 1..WG_WORKERS_MAX */
	unsigned server_id; /* 0..WG_SERVER_ID_MAX: place in a fleet */
	uint8_t index_key[16]; /* key of the receiver-index permutation; equal within a fleet */
	uint64_t seed; /* for jitter; tests fix it */
};

/* 0, -EINVAL, -ENOMEM. The device starts down, without a key. */
MUST_CHECK int wg_create(struct wg **out, const struct wg_config *cfg);
/* All workers must be gone. NULL is fine. */
void wg_destroy(struct wg *wg);

/* The interface goes up or down: keepalives start, sessions end. */
void wg_set_up(struct wg *wg, bool is_up, uint64_t now_ns);

/* The MTUs that padding keeps to: of the interface and of all routes through it.
 * All zero: unknown. */
enum { WG_MTUS_MAX = 15 };
struct wg_mtus {
	uint16_t mtu[WG_MTUS_MAX]; /* ascending */
	uint8_t n;
	bool is_cut; /* there are more, which are larger: beyond the last nothing is padded */
};
/* Add one; nothing happens if it is 0 or there already. Full: the largest goes. */
void wg_mtus_add(struct wg_mtus *m, unsigned mtu);
bool wg_mtus_has(const struct wg_mtus *m, unsigned mtu);
void wg_mtus_merge(struct wg_mtus *m, const struct wg_mtus *more);
/* A packet is padded to the smallest of these MTUs that is no less than its length
 * at most; a longer one than all as if it were cut at the largest. */
void wg_set_mtus(struct wg *wg, const struct wg_mtus *mtus);
/* The same for one MTU. */
void wg_set_mtu(struct wg *wg, unsigned mtu);

/* Run what is due, a bounded part of it if it is much; returns when to call again at
 * the latest (UINT64_MAX: only when woken; now_ns or before: there is more to do, after
 * the messages that have come meanwhile). Call at least once a second while the device is up.
 * wall_ns goes into TAI64N stamps. */
uint64_t wg_poll(struct wg *wg, uint64_t now_ns, uint64_t wall_ns);

/* A handshake message (types 1..3) arrived: may it be taken? Cheap: no X25519.
 * WG_OK: give it to wg_take_handshake, at once or through a bounded queue; else why it
 * is refused (WG_DROP_MAC2 when it was answered with a cookie). is_loaded: that
 * queue is filling (Linux: an eighth of its room). */
enum wg_drop wg_admit_handshake(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, bool is_loaded, uint64_t now_ns, uint64_t wall_ns);
/* The other half: X25519, the answer, the session. WG_OK or why it was refused. */
enum wg_drop wg_take_handshake(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, uint64_t now_ns, uint64_t wall_ns);
/* Both at once. */
enum wg_drop wg_rx_handshake(struct wg *wg, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, bool is_loaded, uint64_t now_ns, uint64_t wall_ns);

/* ---- Configuration: one change is applied whole or not at all. */
struct wg_allowed_change {
	struct prefix net;
	bool is_removal; /* a leading '-': take it from this peer if it has it */
};

struct wg_peer_change {
	uint8_t public_key[WG_KEY_LEN];
	bool is_removal;
	bool is_update_only; /* skip when the peer does not exist */
	bool replaces_allowed;
	bool has_psk, has_endpoint, has_keepalive;
	uint8_t psk[WG_KEY_LEN]; /* all zero clears it */
	struct wg_endpoint endpoint;
	uint16_t keepalive_s; /* 0 switches off */
	struct wg_allowed_change *allowed;
	size_t n_allowed;
};

struct wg_change {
	bool has_private_key;
	uint8_t private_key[WG_KEY_LEN]; /* all zero removes it */
	bool replaces_peers; /* peers that are not named are removed; those named keep their
				sessions */
	struct wg_peer_change *peers;
	size_t n_peers;
};

/* 0; -ENOSPC (WG_PEERS_MAX), -ENOMEM: then nothing changed. The device's own
 * public key as a peer is ignored silently. A prefix given to a peer that
 * another one has moves; moved(ctx, prefix) is told unless NULL, with the device's
 * lock held. Each entry of c->peers takes effect in one go, and other calls may come
 * between two of them. */
MUST_CHECK int wg_apply(struct wg *wg, const struct wg_change *c, uint64_t now_ns, uint64_t wall_ns,
	void (*moved)(void *ctx, const struct prefix *net), void *moved_ctx);

/* ---- What wg(8) shows. */
struct wg_peer_info {
	uint8_t public_key[WG_KEY_LEN];
	uint8_t psk[WG_KEY_LEN];
	bool has_psk, has_endpoint;
	struct wg_endpoint endpoint;
	uint64_t last_handshake_wall_ns; /* 0: never */
	uint64_t rx_bytes, tx_bytes;
	uint16_t keepalive_s;
	uint64_t drops[WG_DROP_N]; /* 0 for reasons that are no peer's own; they wrap at 2^32 */
	const struct prefix *allowed; /* good until the next call for the same walk */
	size_t n_allowed;
};

struct wg_info {
	bool has_private_key;
	uint8_t private_key[WG_KEY_LEN];
	uint8_t public_key[WG_KEY_LEN];
	size_t n_peers;
};

void wg_get(struct wg *wg, struct wg_info *out);

/* A walk over all peers, oldest first, a few at a time; the device's lock is held
 * only while those are copied. Each peer is shown as it is at one moment, its
 * prefixes included; different peers at different moments. A peer that is there
 * from begin to end is shown exactly once, one that is added or removed
 * meanwhile at most once; a key that is removed and added again is shown at
 * least once. A walk is one thread's at a time, others may walk and change. */
struct wg_walk;
/* 0, -ENOMEM. Must end before wg_destroy. */
MUST_CHECK int wg_walk_begin(struct wg_walk **out, struct wg *wg);
/* Up to cap (not 0) peers more; *n of them, 0 at the end. -EAGAIN: part of a long list of
 * prefixes was copied, call again (*n is 0). -ENOMEM: there was no room for
 * such a list, 18 bytes per prefix. infos hold keys: the caller wipes them. */
MUST_CHECK int wg_walk_next(
	struct wg_walk *walk, struct wg_peer_info *infos, size_t cap, size_t *n);
/* NULL is fine. */
void wg_walk_end(struct wg_walk *walk);

/* ---- Sticky sources: a peer is answered from the address that it wrote to, which is
 * the local half of its endpoint. Once routes have changed the caller finds out, for
 * each, whether that is still right. */
struct wg_source {
	uint8_t public_key[WG_KEY_LEN]; /* of the peer */
	struct wg_endpoint endpoint;
};
/* Of the next cap peers of a walk those that have a source: *n of them. false: the end.
 * Instead of wg_walk_next, in the same walk. */
MUST_CHECK bool wg_walk_sources(struct wg_walk *walk, struct wg_source *out, size_t cap, size_t *n);
/* What routing says of a source. detour 0: it is right. Otherwise datagrams that have
 * it would take another way than the peer's own, which detour names: it is
 * forgotten, and for a second not learnt again from what the peer had sent before
 * it heard of another. If the peer goes on writing to it after that, it counts again
 * until the detour is another one. */
void wg_reroute(struct wg *wg, const struct wg_source *s, unsigned detour, uint64_t now_ns);

/* Count drops that a slow caller found. */
void wg_drop(struct wg *wg, enum wg_drop why, uint64_t n);
/* Drops counted by the slow calls and all workers, indexed by enum wg_drop. Any thread. */
void wg_drops(struct wg *wg, uint64_t out[WG_DROP_N]);

/* ---- Fast calls. */

/* State of one data worker (AEAD context, scratch, counters). id < n_workers;
 * must be gone before wg_destroy. 0, -ENOMEM, -EINVAL. */
MUST_CHECK int wg_worker_create(struct wg_worker **out, struct wg *wg, unsigned id);
void wg_worker_destroy(struct wg_worker *w);

/* Count drops that the caller found (any reason); peer: whose packets they were, NULL
 * where nobody's. A reason that is not a peer's own counts for the device only. */
void wg_worker_drop(struct wg_worker *w, struct wg_peer *peer, enum wg_drop why, uint64_t n);

/* The peer that owns an inner destination address (longest prefix over all
 * peers); NULL for none. family AF_INET (4 bytes at ip) or AF_INET6 (16). */
struct wg_peer *wg_route(struct wg_worker *w, uint8_t family, const uint8_t *ip);

/* Is this inner packet a data message of ours on its way to the same session of
 * the same peer? Then its endpoint is routed into its own tunnel, and sending it
 * would make it longer and send it again, for ever. The caller drops and counts it
 * (WG_DROP_LOOP). pkt: at least a whole IP header. */
bool wg_is_loop(const struct wg_peer *peer, const uint8_t *pkt, size_t len);
/* Hop limit of the message that will carry an inner packet. A tunnel's message inside of
 * ours gets a smaller one than it has, so that a circle of tunnels ends; false: it has
 * come to its end, and the caller drops and counts it (WG_DROP_LOOP). hops 0: no such
 * packet, the kernel's default will do. pkt: at least a whole IP header. */
MUST_CHECK bool wg_outer_hops(const uint8_t *pkt, size_t len, uint8_t *hops);

/* One packet on its way through a worker. */
struct wg_packet {
	uint8_t *data; /* see wg_seal, wg_open */
	uint32_t len; /* bytes at data */
	enum wg_drop drop; /* wg_open: WG_OK or why not; wg_seal: why, if WG_DROPPED */
	struct wg_peer *peer; /* wg_open: who sent it */
	struct keypair *session; /* wg_open: what wg_look_ahead found; NULL: look it up */
};

enum wg_sealed {
	WG_SEALED, /* all packets are messages now */
	WG_STAGED, /* no session: copies wait for the handshake, which was asked for */
	WG_DROPPED, /* device down or no endpoint; counted */
};

/* Seal n inner packets for one peer, in place. data/len: the inner packet, with
 * WG_HEAD bytes of room before and WG_TAIL after. On WG_SEALED each data/len is
 * the whole message (data moved back by WG_HEAD) and *to is where it goes. The
 * padding is to 16 bytes, as far as wg_set_mtus lets it. n = 0 is allowed. */
enum wg_sealed wg_seal(struct wg_worker *w, struct wg_peer *peer, struct wg_packet *pkts, size_t n,
	uint64_t now_ns, struct wg_endpoint *to);

/* Length of the message that an inner packet of len bytes becomes, by the MTUs that
 * the worker saw last: see wg_worker_refresh. */
size_t wg_sealed_len(const struct wg_worker *w, size_t len);

/* Take over the device's MTUs. Call between batches: between a wg_sealed_len and
 * the wg_seal that it was asked for, lengths must not change. */
void wg_worker_refresh(struct wg_worker *w);

/* Look up the sessions of n data messages (any endpoints; wgmsg_gate() said WGMSG_DATA)
 * that wg_open will be given before the next rcu_quiescent(), and begin to fetch what
 * it will read of them: the memory is waited for once for all rather than for each. Of a
 * train the first message is enough. n <= WG_AHEAD_MAX. May be left out. */
void wg_look_ahead(struct wg_worker *w, struct wg_packet *pkts, size_t n);

/* Open n data messages that came from one endpoint, in place. data/len: the
 * message; wgmsg_gate() said WGMSG_DATA. Afterwards, where drop is WG_OK,
 * data/len is the inner packet without padding, its source is the peer's; len 0
 * is a keepalive. Drops are counted. Roaming, timers and counters are done. */
void wg_open(struct wg_worker *w, struct wg_packet *pkts, size_t n, const struct wg_endpoint *from,
	uint64_t now_ns);

/* ---- Clients without a device: many initiators towards one server, for load generators
 * and probes (client.c). Each is an identity, a handshake under way and a session: no
 * timers, no queue, no PSK. A client belongs to one thread at a time; different
 * clients may be used by different threads at once. */
struct wg_clients;
struct aead; /* crypto/crypto.h */

enum { WG_CLIENTS_MAX = 1 << 20 };

enum wg_client_event {
	WG_CLIENT_SESSION, /* the response: the client has a new session, nothing sent in it yet */
	WG_CLIENT_COOKIE, /* a cookie: wg_clients_again sends the initiation with it */
	WG_CLIENT_REFUSED, /* not for it or not authentic: nothing changed */
};

/* n clients with random identities. 0, -EINVAL (n is 0 or above WG_CLIENTS_MAX, or there
 * can be no handshake with this key), -ENOMEM. crypto_init() has been called. */
MUST_CHECK int wg_clients_create(
	struct wg_clients **out, size_t n, const uint8_t server_public_key[WG_KEY_LEN]);
/* Wipes. NULL is fine. */
void wg_clients_destroy(struct wg_clients *c);

/* One X25519 when a client is first asked for it (here or by its first initiation). */
void wg_clients_public_key(struct wg_clients *c, size_t i, uint8_t out[WG_KEY_LEN]);

/* A new handshake: its initiation, MACs included; mac2 if there is a fresh cookie. The
 * session, if there is one, goes on until the response. 2 X25519, one more the first time.
 * Stamps count in steps of 1/60 s: of two initiations of one client within a step the
 * server takes the first only. */
void wg_clients_initiate(struct wg_clients *c, size_t i, uint64_t now_ns, uint64_t wall_ns,
	uint8_t msg[WGMSG_INITIATION_LEN]);
/* The initiation of the handshake under way again, its MACs computed anew: after a
 * cookie, since the server has not taken the message that it answered with one. No X25519.
 * false when none is under way. */
MUST_CHECK bool wg_clients_again(
	struct wg_clients *c, size_t i, uint64_t now_ns, uint8_t msg[WGMSG_INITIATION_LEN]);

/* Whom is this response, cookie reply or data message for? O(1), by the receiver index
 * alone; reads nothing of the client. false: no such client, or another type. */
MUST_CHECK bool wg_clients_find(
	const struct wg_clients *c, const uint8_t *msg, size_t len, size_t *out);
/* Receiver index of the client's latest handshake: what the server answers to. */
uint32_t wg_clients_local_index(const struct wg_clients *c, size_t i);

/* A response or cookie reply came. A response costs 2 X25519. */
enum wg_client_event wg_clients_take(
	struct wg_clients *c, size_t i, const uint8_t *msg, size_t len, uint64_t now_ns);

/* Seal n inner packets under the client's session, in place and with the same room as
 * for wg_seal; padding is to 16. len 0: a keepalive. aead is the calling thread's. false
 * without a session: nothing changed. */
MUST_CHECK bool wg_clients_seal(
	struct wg_clients *c, size_t i, struct aead *aead, struct wg_packet *pkts, size_t n);
/* Open one data message of the server in place: data/len become the inner packet with its
 * padding. false: not of the client's session, or not authentic (what is at data is
 * undefined then). A replay is not refused. */
MUST_CHECK bool wg_clients_open(
	struct wg_clients *c, size_t i, struct aead *aead, struct wg_packet *pkt);

#endif
