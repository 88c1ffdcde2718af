/* Several WireGuard devices in one thread, joined by a wire that loses, doubles,
 * delays, reorders, alters and replays, under a clock of its own. Days pass in seconds.
 *
 * Every inner packet is numbered and its bytes follow from the number. The
 * simulator fails the test at once when a packet comes out altered, twice, from the
 * wrong peer, or (unless the wire reorders) out of order; sim_balance() fails
 * it when a packet has vanished for no named reason. Failures name the seed.
 *
 * One thread, which becomes an RCU reader. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "wg/device.h"

enum {
	SIM_NODES_MAX = 8,
	SIM_FLOWS_MAX = 64,
	SIM_TRAIN_MAX = 64,
	SIM_PACKET_MAX = 1500,
	SIM_MESSAGE_MAX = 2048,
	SIM_TAPE = 64, /* old messages that the wire may replay */
	SIM_PEER_NONE = -1,
};

#define SEC(n) ((uint64_t)((n) * (double)NSEC_PER_SEC))

/* One datagram; a doubled one flies twice. */
struct sim_message {
	unsigned n_flights;
	bool is_inner; /* holds an inner packet (not a keepalive, no copy of the attacker's) */
	bool is_forged; /* altered or replayed: must not be accepted as data */
	bool is_done; /* its packet came out */
	enum wg_drop drop; /* why the last flight of it was refused */
	size_t len;
	uint8_t bytes[];
};

struct sim_flight {
	uint64_t at_ns, order;
	struct wg_endpoint from, to;
	struct sim_message *msg;
};

/* Chances are in 1/1000. */
struct sim_wire {
	unsigned loss, duplicate, corrupt, replay;
	uint64_t delay_ns, jitter_ns; /* jitter reorders */
	size_t mtu; /* longest datagram; 0: any */
	bool is_cut;
	bool spares_handshakes; /* from replay */
	/* true: lose this one. May be NULL. */
	bool (*loses)(void *ctx, int from, int to, const uint8_t *msg, size_t len);
	void *ctx;
};

/* Where inner packets ended that did not arrive. */
struct sim_lost {
	uint64_t wire; /* lost, too long, altered, or nobody at the address */
	uint64_t at[WG_DROP_N]; /* refused by the receiver */
	uint64_t sender; /* wg_seal said WG_DROPPED, or there was no route */
};

struct sim_node {
	struct sim *sim;
	int id;
	struct wg *wg;
	struct wg_worker *worker;
	uint8_t secret[WG_KEY_LEN], public_key[WG_KEY_LEN];
	struct wg_endpoint address; /* .remote: how others see it */
	uint64_t poll_ns;
	bool is_loaded; /* pretend that its handshake queue is filling */
	uint64_t sent[5], heard[5]; /* messages by type */
	uint64_t sent_keepalives;
	uint64_t last_sent_ns[5];
	enum wg_drop last_handshake_drop;
	struct wgmsg_initiation last_initiation; /* that it sent */
};

/* Inner packets from one node to another. */
struct sim_pair {
	uint64_t n_sent, n_delivered;
	uint64_t last_seq; /* delivered, plus one */
	uint64_t last_delivered_ns, sent_ns; /* of that packet */
	uint8_t *delivered; /* by number */
	size_t cap;
};

struct sim_flow {
	bool is_on;
	int from, to;
	uint64_t interval_ns, next_ns;
	unsigned n; /* packets per train */
	size_t len;
};

struct sim {
	uint64_t seed, random;
	uint64_t now_ns;
	int64_t wall_shift_ns;
	int n_nodes;
	struct sim_node node[SIM_NODES_MAX];
	struct sim_wire wire;
	bool may_reorder; /* set when the wire ever did */
	struct sim_flight *flight; /* heap by time */
	size_t n_flights, cap_flights;
	uint64_t order;
	struct sim_flow flow[SIM_FLOWS_MAX];
	struct sim_pair pair[SIM_NODES_MAX][SIM_NODES_MAX];
	struct sim_lost lost;
	uint64_t n_sent, n_delivered, n_opened;
	struct sim_flight tape[SIM_TAPE];
	unsigned tape_at;
};

/* n nodes, up, with keys, without peers. */
void sim_init(struct sim *s, uint64_t seed, int n_nodes);
/* Checks the balance, too. */
void sim_fini(struct sim *s);

/* The default seed, or what --seed says; days of the long runs. */
extern uint64_t sim_seed;
extern double sim_days;
/* --seed N, --days N. false after a line of usage. */
bool sim_options(int argc, char **argv);

uint64_t sim_random(struct sim *s, uint64_t below);
uint64_t sim_wall_ns(const struct sim *s);
/* Fails the test with the seed, the time and the text. */
void sim_fail(const struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define SIM_CHECK(s, cond)                                                   \
	do {                                                                 \
		if (!(cond))                                                 \
			sim_fail(s, "%s:%d: %s", __FILE__, __LINE__, #cond); \
	} while (0)

/* Make b a peer of a with b's /32; has_endpoint: a knows where b is. */
void sim_add_peer(struct sim *s, int a, int b, bool has_endpoint);
/* Both ways, endpoints known. */
void sim_connect(struct sim *s, int a, int b);
void sim_remove_peer(struct sim *s, int a, int b);
void sim_apply(struct sim *s, int a, const struct wg_change *c);
/* A change of one peer of a that names b. */
struct wg_peer_change sim_peer_change(struct sim *s, int b);
void sim_apply_peer(struct sim *s, int a, struct wg_peer_change *pc);
void sim_set_keepalive(struct sim *s, int a, int b, uint16_t seconds);
void sim_set_secret(struct sim *s, int a, const uint8_t secret[WG_KEY_LEN]);
void sim_ip(int id, uint8_t ip[16]);

/* Let time pass. */
void sim_run(struct sim *s, uint64_t ns);
/* The machine was suspended: time passes, nothing runs. */
void sim_jump(struct sim *s, uint64_t ns);
/* The node gets another address, as a client that roams. */
void sim_move(struct sim *s, int a);

/* One train now. */
enum wg_sealed sim_send(struct sim *s, int from, int to, unsigned n, size_t len);
void sim_flow(struct sim *s, int from, int to, uint64_t interval_ns, unsigned n, size_t len);
void sim_flows_stop(struct sim *s);
/* Put a datagram on the wire as if from a node. */
void sim_inject(struct sim *s, int from, int to, const void *msg, size_t len);

/* a's entry for b (through device.h); NULL: none. */
struct wg_peer *sim_peer(struct sim *s, int a, int b);
/* What wg(8) would show; the prefixes are gone. */
struct wg_peer_info sim_info(struct sim *s, int a, int b);
uint64_t sim_drops(struct sim *s, int a, enum wg_drop why);
/* sent = delivered + lost for a named reason + in flight + staged */
void sim_balance(struct sim *s);
/* When the newest packet from a to b came out. */
uint64_t sim_delivered_ns(const struct sim *s, int a, int b);
uint64_t sim_delivered(const struct sim *s, int a, int b);

#endif
