/* Carriers: TUN inside, UDP outside. The door of src/link.
 *
 * Three parts: descriptors and their offloads (tun_*, udp_*, netdev_*: slow,
 * control thread), and the pure train code that a data worker calls for every
 * batch (split_*: superframe from the TUN -> equal segments; merge_*: packets
 * -> superframes for the TUN). */
#ifndef LINK_LINK_H
#define LINK_LINK_H

#include "base/compiler.h"
#include "io/io.h"
#include "wg/wg.h"
#include "wire/addr.h"
#include <linux/virtio_net.h>
#include <net/if.h>
#include <stdbool.h>
#include <sys/uio.h>

/* ---- Offloads: each is probed by doing it and can be lost alone. */
enum link_offload {
	OFFLOAD_VNET = 1 << 0, /* TUN: IFF_VNET_HDR */
	OFFLOAD_CSUM = 1 << 1, /* TUN: TUN_F_CSUM */
	OFFLOAD_TSO = 1 << 2, /* TUN: TUN_F_TSO4 | TUN_F_TSO6 */
	OFFLOAD_USO = 1 << 3, /* TUN: TUN_F_USO4 | TUN_F_USO6 (Linux 6.2) */
	OFFLOAD_UDP_GSO = 1 << 4, /* UDP_SEGMENT (Linux 4.18) */
	OFFLOAD_UDP_GRO = 1 << 5, /* UDP_GRO (Linux 5.0) */
	OFFLOAD_ALL = (1 << 6) - 1,
};

/* "vnet", "csum", "tso", "uso", "udp-gso", "udp-gro"; 0 for another name. */
unsigned offload_by_name(const char *name, size_t len);
/* Space-separated names of a set, for the log. Returns out. */
const char *offload_text(unsigned set, char out[64]);

/* ---- TUN (Linux Documentation/networking/tuntap.rst). */
struct tun {
	int fd;
	char name[IFNAMSIZ]; /* as the kernel gave it ("wg%d" is filled in) */
	unsigned offloads; /* of the TUN part of enum link_offload: in force */
	bool is_multi_queue;
};

/* Create (or attach to) the interface. allowed: offloads that may be used. 0 or
 * negative errno (-EPERM: CAP_NET_ADMIN missing; -EBUSY; -ENOENT: no
 * /dev/net/tun). Non-blocking. */
MUST_CHECK int tun_open(struct tun *t, const char *name, unsigned allowed);
/* Take over an open TUN descriptor (WG_TUN_FD); it may lack vnet_hdr, and if it has
 * it OFFLOAD_VNET is in force whatever is allowed. 0: fd is ours. Negative errno: it
 * stays the caller's (-EINVAL: TAP, or made without IFF_NO_PI). */
MUST_CHECK int tun_adopt(struct tun *t, int fd, unsigned allowed);
void tun_close(struct tun *t);
/* One more queue of the same interface: a descriptor of its own, non-blocking, the caller's;
 * the kernel hands each frame to one of them. At start (CAP_NET_ADMIN). 0 or negative errno
 * (-EOPNOTSUPP: not made for several queues; -EXDEV: the interface is in another namespace). */
MUST_CHECK int tun_add_queue(const struct tun *t, int *fd);

/* ---- Steering: which worker's socket a datagram goes to, which worker's queue a frame
 * (eBPF programs; what they do is told in doc/engines.md). */
enum steer_mode {
	STEER_INDEX, /* data to the worker that owns the receiver index */
	STEER_RR, /* to each worker in turn, a train at a time */
	STEER_FLOW, /* by sender and receiver: the kernel's hash of addresses and ports */
	STEER_MODE_N
};
/* "index", "rr", "flow". */
const char *steer_mode_name(enum steer_mode m);

struct steer;
struct steer_config {
	enum steer_mode mode;
	unsigned n_workers; /* 1..WG_WORKERS_MAX */
	uint8_t index_key[16]; /* as wg_config.index_key: for both epochs */
};
/* What udp_open needs of it, in whichever process. -1: no steering program. */
struct steer_fds {
	int prog;
	int sockets; /* the map of sockets */
};

/* Load the programs. Needs CAP_BPF and CAP_NET_ADMIN, and nothing after it does but udp_open. 0
 * or negative errno (-EOPNOTSUPP: built without; -EPERM: refused), *out then NULL. The functions
 * below take NULL for one that could not be made, and do nothing. */
MUST_CHECK int steer_create(struct steer **out, const struct steer_config *cfg);
/* Sockets and queues keep their program until they are closed. */
void steer_destroy(struct steer *s);
struct steer_fds steer_get_fds(const struct steer *s);
/* All queues of the TUN, of which fd is one: an inner flow goes to one queue, always the same
 * while their number (n_queues: those that are open) does. 0 or negative errno. */
MUST_CHECK int steer_attach_tun(struct steer *s, int fd, unsigned n_queues);
/* A new key for an epoch, see index_set_epoch_key (wg/index.h). Any thread. */
void steer_set_epoch_key(struct steer *s, unsigned epoch, const uint8_t key[16]);
/* What was steered to each worker so far: datagrams (a train of GRO counts as one) and frames.
 * Any thread. */
struct steer_count {
	uint64_t datagrams, frames;
};
void steer_counts(const struct steer *s, struct steer_count out[WG_WORKERS_MAX]);

/* ---- UDP: sockets for data, one for each worker that reads its own, and one for handshakes,
 * per family, all on one port (SO_REUSEPORT; sorted by steering program or classic BPF). */
enum { UDP_CHANNELS_MAX = WG_WORKERS_MAX };
struct udp {
	unsigned n; /* sockets for data, per family; 0: closed */
	int data[2][UDP_CHANNELS_MAX]; /* [0] IPv4, [1] IPv6; -1: family not there */
	/* Messages of type 1..3 arrive here, all else at data. -1: the kernel
	 * cannot steer and all arrive at data. Sort by message type all the same:
	 * within one GRO train the first message decides for all. */
	int handshake[2];
	uint16_t port; /* as bound, host order */
	unsigned offloads; /* OFFLOAD_UDP_*: in force at open */
	/* A steering program is in force. false with n > 1: classic BPF, which needs no privilege,
	 * goes by the sender's address and port. */
	bool is_steered;
};

struct udp_config {
	uint16_t port; /* 0: any, the same for both families */
	uint32_t fwmark; /* 0: none */
	unsigned allowed; /* offloads */
	unsigned n; /* sockets for data, per family: 1..UDP_CHANNELS_MAX */
	struct steer_fds steer; /* with n > 1; needs CAP_BPF where it is not -1 */
};

/* Socket buffers are forced as large as allowed. DF stays clear: outer packets may be
 * fragmented, as stock peers do. Where the kernel refuses a group of n sockets u->n is 1.
 * 0 or negative errno (-EADDRINUSE, -EACCES). */
MUST_CHECK int udp_open(struct udp *u, const struct udp_config *cfg);
/* Nothing is open. */
void udp_init(struct udp *u);
enum { UDP_SOCKETS_MAX = 2 * (UDP_CHANNELS_MAX + 1) };
/* All that are open, handshake sockets included. Returns how many. */
size_t udp_sockets(const struct udp *u, int out[UDP_SOCKETS_MAX]);
/* Put a mark on all sockets of u. */
MUST_CHECK int udp_set_mark(struct udp *u, uint32_t fwmark);
void udp_close(struct udp *u);

/* Endpoint <-> address. The local half of an endpoint made from an address is zero. */
void endpoint_from_addr(struct wg_endpoint *out, const struct ipport *a);
void endpoint_to_addr(struct ipport *out, const struct wg_endpoint *e);
/* Which family of udp.data[] reaches it: 0 IPv4, 1 IPv6. */
unsigned endpoint_family(const struct wg_endpoint *e);
/* wg_ops.limit_key: an IPv4 address, an IPv6 /64. */
void endpoint_limit_key(const struct wg_endpoint *from, uint8_t key[16]);

/* What a received datagram's header says. */
struct udp_rx {
	struct wg_endpoint from; /* local half: the address written to (PKTINFO) */
	uint32_t seg_len; /* segment size of a GRO train; else the whole length */
	uint8_t tos; /* IPv4 TOS or IPv6 traffic class */
};
/* false: truncated (MSG_TRUNC, MSG_CTRUNC) or of a foreign family: drop it. */
MUST_CHECK bool udp_rx_parse(struct udp_rx *out, const struct io_rx *rx);

/* Room for the name and ancillary data of one message to be sent. */
struct udp_tx {
	struct sockaddr_storage name;
	union {
		struct cmsghdr align;
		uint8_t bytes[IO_CONTROL_LEN];
	} control;
};
/* Fill tx for one train: iov is one contiguous run of messages of seg_len bytes
 * (the last may be shorter), at most 64 of them and 65507 bytes. seg_len 0 or >= the
 * length: a single datagram.
 * tos: outer TOS / traffic class. hops: outer TTL / hop limit, 0: the kernel's default.
 * mem must live until the send is done. */
void udp_tx_fill(struct io_tx *tx, struct udp_tx *mem, const struct wg_endpoint *to,
	struct iovec *iov, uint32_t seg_len, uint8_t tos, uint8_t hops);

/* What a worker remembers of the paths on which the kernel refused something,
 * so that it is not asked again for every train. Zero at start. One worker. */
enum {
	UDP_PATHS = 16, /* remembered; full: the slot is taken over */
	UDP_PATH_TRAINS = 1024, /* trains until the kernel is asked again */
};
struct udp_paths {
	unsigned lost; /* gains OFFLOAD_UDP_GSO when a device cannot (EIO): for the log */
	unsigned n_used; /* slots with trains_left: 0 is the common case */
	struct {
		uint32_t key; /* hash of the remote address */
		uint16_t trains_left; /* 0: slot is free */
		uint16_t seg_len_max; /* longer segments go as single datagrams */
		bool is_sourceless; /* the sticky source address was refused */
	} slot[UDP_PATHS];
};

/* Send n filled trains of one family through ops/engine, in order. What the
 * kernel refuses as a train (EIO, EINVAL, EMSGSIZE) goes again as single
 * datagrams, without a sticky source address when that was what it refused.
 * Trains to a path that refused are sent so from the start, for a while.
 * tx and what it points to may be rewritten. Returns datagrams not sent. */
size_t udp_send(const struct engine_ops *ops, struct engine *e, int fd, struct io_tx *tx, size_t n,
	struct udp_paths *paths);
/* One datagram, from a slow thread, without an engine. 0 or negative errno. */
MUST_CHECK int udp_send_one(const struct udp *u, bool is_handshake, const struct wg_endpoint *to,
	const uint8_t *msg, size_t len, uint8_t tos);

/* ---- The sieve: keeps floods out of the sockets before they cost a wake-up and a
 * copy (eBPF socket filters; what they do is told in doc/sieve.md). */
struct sieve;

/* Why the sieve dropped something: name, key, text. Counted in messages. */
#define SIEVE_DROPS(X)                                                                         \
	X(MALFORMED, "sieve_malformed", "handshake message of a wrong type or length")         \
	X(SOURCE, "sieve_source", "flood of handshakes: more from this source than its share") \
	X(TABLE, "sieve_table", "flood of handshakes: more sources than there is room for")    \
	X(BUDGET, "sieve_budget", "flood of handshakes: more than can be answered")            \
	X(GUILTY, "sieve_guilty", "data of a source whose packets keep failing to authenticate")

enum sieve_drop {
#define X(name, key, text) SIEVE_DROP_##name,
	SIEVE_DROPS(X)
#undef X
		SIEVE_DROP_N
};
const char *sieve_drop_key(enum sieve_drop d);
const char *sieve_drop_text(enum sieve_drop d);

/* Rates are of handshake messages; a burst is how many may come at once. At least 1,
 * and of one source at most 60,000 a minute and as many at once as come in a week. */
struct sieve_settings {
	uint32_t flood_per_s, flood_burst; /* more than this that arrives is a flood */
	uint32_t hold_ms; /* for so long a flood counts as one after it has ended */
	uint32_t pass_per_s, pass_burst; /* let through in a flood, of all sources */
	uint32_t source_per_min, source_burst; /* of one source: IPv4 address, IPv6 /64 */
};
extern const struct sieve_settings sieve_defaults;

/* Load the programs, with sieve_defaults. Needs CAP_BPF, and nothing after it does.
 * 0 or negative errno (-EOPNOTSUPP: built without; -EPERM: refused), *out then NULL. The
 * functions below take NULL for a sieve that could not be made, and do nothing. */
MUST_CHECK int sieve_create(struct sieve **out);
/* Sockets that it is attached to keep their filter until they are closed. */
void sieve_destroy(struct sieve *s);
/* Put the filters on all sockets of u; also again. Where the handshake sockets are
 * missing only data is filtered. 0 or negative errno of the first that failed (the
 * others have theirs). */
MUST_CHECK int sieve_attach(const struct sieve *s, const struct udp *u);
/* At any time, from one thread; meters keep what they hold. */
void sieve_set(struct sieve *s, const struct sieve_settings *set);
/* Data messages from this address and port for this receiver index (host order) keep
 * failing to authenticate: drop them, all but one in 64, until then (clock_now_ns;
 * the later one counts if it is named again). 0 or the past: let them through again. Any
 * thread, no system call, no lock that waits: while another thread is at it, or when
 * the table is full of others who are guilty for longer, nothing happens. */
void sieve_accuse(
	struct sieve *s, const struct wg_endpoint *from, uint32_t receiver, uint64_t until_ns);
/* The same for data messages for this receiver index from everywhere but its peer's
 * endpoint, home: forgeries from ever new addresses. A peer that moves meanwhile gets
 * through with one message in 64; then home is another: name it again. */
void sieve_accuse_strangers(
	struct sieve *s, const struct wg_endpoint *home, uint32_t receiver, uint64_t until_ns);
/* Drops so far, and handshake messages that passed. Any thread. */
void sieve_drops(const struct sieve *s, uint64_t out[SIEVE_DROP_N]);
uint64_t sieve_passed(const struct sieve *s);

/* ---- Inner packets, the pure part. */

enum inner_l4 { INNER_OTHER, INNER_TCP, INNER_UDP };

/* One inner IP packet or superframe, its lengths checked against the bytes there are. */
struct inner {
	uint8_t family; /* AF_INET, AF_INET6 */
	uint8_t l4; /* enum inner_l4; INNER_OTHER for fragments and extension headers */
	uint8_t tos; /* DSCP and ECN */
	uint8_t ip_len; /* bytes of the IP header */
	uint16_t hdr_len; /* IP and L4 header together; = ip_len for INNER_OTHER */
	uint32_t len; /* bytes by the IP length field */
	const uint8_t *dst; /* into the packet: 4 or 16 bytes */
	const uint8_t *src;
};
/* false: not whole IPv4/IPv6 (version, header, total length). TCP and UDP
 * headers that are cut or lie make it INNER_OTHER, not false. */
MUST_CHECK bool inner_parse(struct inner *out, const uint8_t *pkt, size_t len);

/* Why a frame from the TUN was refused. */
enum split_drop { SPLIT_OK, SPLIT_SHORT, SPLIT_VNET, SPLIT_INNER };

/* A frame read from the TUN, on its way to be cut into segments. A superframe
 * whose L4 header stands behind IPv6 extension headers has in.l4 INNER_OTHER,
 * and is cut all the same. */
struct split {
	const uint8_t *pkt; /* the superframe, without vnet header */
	struct inner in;
	uint32_t len; /* bytes of the IP packet at pkt, = in.len */
	uint32_t gso_len; /* payload bytes per segment; 0: one packet, no cutting */
	uint32_t n; /* segments, >= 1; up to 65515 when gso_size is absurd */
	uint32_t seg_len; /* bytes of every segment but the last */
	uint32_t last_len; /* bytes of the last */
	uint16_t csum_start, csum_offset;
	bool needs_csum;
	/* What all segments have in common; only where gso_len is not 0. */
	bool is_tcp;
	uint16_t hdr_len; /* IP, extension and L4 headers together */
	uint16_t ip_id; /* IPv4: of the first segment */
	uint32_t seq; /* TCP: of the first segment */
	uint64_t ip_sum; /* IPv4 header without total length, id and checksum */
	uint64_t l4_sum; /* pseudo header without length, and the L4 header's fixed part */
};

/* Look at one frame. has_vnet: it starts with struct virtio_net_hdr. */
MUST_CHECK enum split_drop split_init(
	struct split *s, const uint8_t *frame, size_t len, bool has_vnet);
/* Write segment i (0 <= i < n) at out: headers adjusted (lengths, IPv4 id and
 * checksum, TCP sequence and flags, UDP length), L4 checksum complete. Returns
 * its length. Order of calls is free. */
size_t split_segment(const struct split *s, uint32_t i, uint8_t *out);

/* Coalescing: packets of one batch become superframes; payload is not copied,
 * a superframe is one writev of header + payload pieces. */
enum {
	MERGE_PACKETS_MAX = 2048, /* packets between two flushes; full: flush first */
	MERGE_FLOWS = 256, /* open superframes; full: an old one is closed */
	MERGE_SEGS_MAX = 64, /* packets in a UDP superframe, as UDP_MAX_SEGMENTS */
};
struct merge;
MUST_CHECK int merge_create(struct merge **out);
void merge_destroy(struct merge *m);
/* Which TUN offloads are in force: without vnet each packet leaves as it is. */
void merge_set_offloads(struct merge *m, unsigned offloads);
/* Add one inner packet (checked by wg_open: whole IP). Its bytes must stay until
 * the flush is done; its headers may be rewritten in place. true: taken. false:
 * full, flush first. Packets of one flow come out in the order they went in. */
MUST_CHECK bool merge_add(struct merge *m, uint8_t *pkt, uint32_t len);
/* The frames that are ready to be written (valid until merge_reset). */
size_t merge_finish(struct merge *m, struct io_tx **tx);
void merge_reset(struct merge *m);

/* ---- ICMP errors of our own about inner packets, the pure part. */
enum {
	ICMP_HDR = 8,
	ICMP_QUOTE4 = 576 - 20 - ICMP_HDR, /* bytes of the packet that an error quotes, as Linux */
	ICMP_QUOTE6 = 1280 - 40 - ICMP_HDR, /* RFC 4443 2.4 (c) */
	ICMP_QUOTE_MAX = ICMP_QUOTE6,
	ICMP_UNREACH_MAX = ICMP_HDR + ICMP_QUOTE_MAX,
	ICMP_UNREACH_PACKET_MAX = 1280,
};

/* A packet that an error is about. */
struct icmp_cause {
	uint8_t family; /* AF_INET, AF_INET6 */
	uint8_t proto; /* behind IPv6 extension headers */
	uint8_t tos;
	uint16_t l4_at; /* where its header begins: at most len */
	uint32_t len; /* bytes that are quoted */
	const uint8_t *pkt;
	const uint8_t *src; /* into the packet: 4 or 16 bytes */
	const uint8_t *dst;
};

/* Look at a packet of which the first len bytes are here (the longest quote's are
 * enough). false: it must not be answered by an ICMP error, or we cannot tell. */
MUST_CHECK bool icmp_cause_parse(struct icmp_cause *out, const uint8_t *pkt, size_t len);

/* "Destination unreachable": the host (IPv4) or address (IPv6), as the kernel's WireGuard.
 * The message as one gives it to a raw socket: the checksum is complete for
 * IPv4, and zero for IPv6, where the kernel fills it in. Returns its length. */
size_t icmp_unreach_message(const struct icmp_cause *c, uint8_t out[ICMP_UNREACH_MAX]);
/* TOS or traffic class of its IP header. */
uint8_t icmp_unreach_tos(const struct icmp_cause *c);
/* The same as a whole IP packet, from src to the cause's source. */
size_t icmp_unreach_packet(
	const struct icmp_cause *c, const uint8_t *src, uint8_t out[ICMP_UNREACH_PACKET_MAX]);

/* ---- The interface as netlink shows it. */
struct netdev;
struct netdev_event {
	bool is_up;
	bool is_gone;
	unsigned mtu;
	struct wg_mtus mtus; /* that, and those of all routes through the interface */
};
/* Watch the interface of a TUN, in whatever network namespace it is or goes to.
 * The descriptor (the same for ever) is readable at once for the initial state,
 * then on changes. t's descriptor must stay open as long. New MTUs of routes are told
 * at once, those that are gone within about half a second. */
MUST_CHECK int netdev_open(struct netdev **out, const struct tun *t);
int netdev_fd(const struct netdev *d);
/* Read what is pending; 1: *ev is new, 0: nothing for us, negative errno (-EPERM
 * once: the interface went to a namespace that we may not enter, nothing more
 * will be heard of it). */
MUST_CHECK int netdev_read(struct netdev *d, struct netdev_event *ev);
/* Go on with a route netlink socket (non-blocking, not bound) that somebody with the
 * privilege opened where the interface is, under this index there. Takes fd in
 * any case. 0 or negative errno. */
MUST_CHECK int netdev_adopt(struct netdev *d, int fd, unsigned ifindex);
/* A descriptor that becomes readable when routes, rules, addresses or links of our own
 * namespace change (rtnetlink groups). Negative errno if there is none. The caller's. */
MUST_CHECK int routes_open(void);
/* Take out all that is pending; true: something changed. */
bool routes_drain(int fd);
/* A descriptor for routes_detour. Negative errno if there is none. The caller's. */
MUST_CHECK int routes_query_open(void);
enum { ROUTES_NO_SOURCE = INT32_MAX }; /* the index of no interface */
/* Would a datagram to e, from our port and e's source, leave by another interface than e's
 * datagrams came in by? That one's index, or ROUTES_NO_SOURCE: the source is none of our
 * addresses. 0: no, or there is no telling. One thread per descriptor. Waits for nothing but the
 * kernel's lock on routes. */
unsigned routes_detour(int fd, const struct wg_endpoint *e, uint16_t port, uint32_t fwmark);
/* Largest superframe that the interface hands to the TUN (IFLA_GSO_MAX_SIZE and
 * IFLA_GSO_IPV4_MAX_SIZE), IP header included. So chosen that a superframe is one
 * UDP train: at most 64 segments and 65507 bytes. 0 or negative errno. */
MUST_CHECK int netdev_set_gso_max(const struct netdev *d, unsigned bytes);
void netdev_close(struct netdev *d);

#endif
