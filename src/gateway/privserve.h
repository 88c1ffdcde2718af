/* The helper's side of privhelper.h: messages, and the work itself. Included by
 * privhelper.c and by tests only.
 *
 * The gateway may have been taken over: a request is of one fixed size, every
 * field that its kind does not use is zero, and descriptors are checked for what
 * they are before anything is done with them. */
#ifndef GATEWAY_PRIVSERVE_H
#define GATEWAY_PRIVSERVE_H

#include "base/compiler.h"
#include "base/sandbox_filter.h"
#include "link/link.h"
#include <stdint.h>

enum {
	PRIV_MAGIC = 0x70656e31, /* "pen1" */
	PRIV_FDS_MAX = UDP_SOCKETS_MAX, /* below SCM_MAX_FD of Linux, 253 */
	PRIV_GSO_MIN = 2048,
	PRIV_GSO_MAX = 65536,
	/* ICMP errors that a gateway which was taken over can have sent. Three times what
	 * a healthy one asks for, see unreach.c. */
	PRIV_ICMP_PER_SEC = 300,
	PRIV_ICMP_BURST = 150,
};

enum priv_op {
	/* port, fwmark, allowed, n; passes nothing, or the steering program and its map; answer:
	 * sockets, port, offloads, n, data, handshake, is_steered */
	PRIV_UDP_OPEN = 1,
	PRIV_UDP_MARK, /* fwmark; passes UDP sockets */
	PRIV_NETDEV_OPEN, /* passes the TUN; answer: netlink socket, ifindex */
	PRIV_SET_GSO_MAX, /* bytes; passes the TUN */
	PRIV_UNREACH, /* bytes of quote; passes the TUN; answer: is_local */
};

struct priv_request {
	uint32_t magic;
	uint32_t seq; /* not 0: that is the helper's "ready" */
	uint32_t op;
	uint32_t port;
	uint32_t fwmark;
	uint32_t allowed;
	uint32_t n; /* sockets for data, per family */
	uint32_t bytes;
	uint8_t quote[ICMP_QUOTE_MAX]; /* beginning of an inner packet */
};

struct priv_reply {
	uint32_t magic;
	uint32_t seq;
	int32_t err; /* 0 or negative errno; then nothing else is set */
	uint32_t port;
	uint32_t offloads;
	/* Sockets passed: of IPv4 n for data if bit 0 of `data` is set, then one for handshakes
	 * if bit 0 of `handshake` is; the same of IPv6 with bit 1. */
	uint32_t n, data, handshake;
	uint32_t is_steered;
	uint32_t ifindex;
	uint32_t is_local;
};

/* Descriptors that travel with a message. */
struct priv_fds {
	int fd[PRIV_FDS_MAX];
	unsigned n;
};

void priv_fds_close(struct priv_fds *fds);
/* How many sockets come with an answer to PRIV_UDP_OPEN. */
unsigned priv_udp_count(const struct priv_reply *r);

/* One message with its descriptors, which stay the caller's. 0 or negative errno. */
MUST_CHECK int priv_send(
	int sock, const void *msg, size_t len, const struct priv_fds *fds, int flags);
/* Receive a message of exactly len bytes. 1; 0 at the end of the connection;
 * -EBADMSG for another length or too many descriptors (all closed); negative errno. */
MUST_CHECK int priv_recv(int sock, void *msg, size_t len, struct priv_fds *fds);

/* The work of PRIV_NETDEV_OPEN, in this process. -ENOTRECOVERABLE: the thread is
 * left in the TUN's namespace. */
MUST_CHECK int priv_netlink_open(int tun_fd, int *out, unsigned *ifindex);
/* The work of PRIV_SET_GSO_MAX, in this process. */
MUST_CHECK int priv_set_gso_max(int tun_fd, uint32_t bytes);

struct bucket; /* base/bucket.h */

/* Receive one request and answer it. icmp: what is left to send of ICMP errors. 1; 0 at
 * the end of the connection; negative errno: serve no more (-ENOTRECOVERABLE as above). */
MUST_CHECK int priv_answer(int sock, struct bucket *icmp);

/* The life of the helper: drop what it does not need, say "ready" on sock, serve
 * until the other end is closed. parent: who forked us. Returns the exit status. */
MUST_CHECK int priv_serve(int sock, int parent, enum sandbox_mode sandbox);

#endif
