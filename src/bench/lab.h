/* A network to measure in: namespaces, links, gateways. Nothing in it has a name
 * outside: the namespaces are held by descriptors, and the gateways'
 * configuration sockets lie in a mount namespace of the lab. So labs can run side
 * by side, and whatever ends the bench, SIGKILL included, ends all of it.
 *
 * Needs root. One thread, the main one (see program.h), except where it says
 * otherwise. What fails says why in lab_error(). */
#ifndef BENCH_LAB_H
#define BENCH_LAB_H

#include "base/compiler.h"
#include "bench/program.h"
#include <stdint.h>

enum {
	LAB_NS_MAX = 16, /* namespaces; full: -ENOSPC */
	LAB_PROGRAMS_MAX = 16, /* gateways and others that run at a time; full: -ENOSPC */
	LAB_ARGUMENTS_MAX = 16, /* of a gateway, besides the usual ones; more: -E2BIG */
	LAB_TEXT_MAX = 256,
	LAB_KEY_TEXT = 45, /* a key in base64 with its NUL */
};

enum lab_kind {
	LAB_PENSTOCK, /* this very program */
	LAB_WIREGUARD_GO, /* environment PENSTOCK_WIREGUARD_GO, or wireguard-go in PATH */
};

struct lab;

/* Why there cannot be a lab here (no root, no /dev/net/tun, no ip or wg), in one
 * line; NULL: there can. penstock: path of the program that has `gateway`; NULL
 * is a reason too. */
const char *lab_missing(const char *penstock);
/* The same for gateways of one kind, given that there can be a lab. */
const char *lab_kind_missing(enum lab_kind kind);
/* What a kind of gateway says to --version, its first line. "" when it says nothing. */
void lab_kind_version(struct lab *l, enum lab_kind kind, char out[LAB_TEXT_MAX]);

/* penstock is kept, not copied. 0 or negative errno. */
MUST_CHECK int lab_create(struct lab **out, const char *penstock);
/* Ends the programs in order, then all else goes. */
void lab_destroy(struct lab *l);
/* What went wrong last, in one line. */
const char *lab_error(const struct lab *l);

/* A new network namespace with its loopback up: its number, or negative errno. */
MUST_CHECK int lab_ns(struct lab *l);
/* The calling thread, any, goes to a namespace: the sockets that it opens and the
 * threads that it starts belong there. lab_leave: back to where the lab was made. Without
 * a lab (NULL) there is one place only, and nothing happens. */
MUST_CHECK int lab_enter(const struct lab *l, int ns);
void lab_leave(const struct lab *l);

/* Commands of ip(8) without the "ip", one a line, in a namespace. */
MUST_CHECK int lab_ip(struct lab *l, int ns, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A pair of Ethernet interfaces, both up, each with an address ("10.0.0.1/24"). */
MUST_CHECK int lab_veth(struct lab *l, int ns_a, const char *name_a, const char *address_a,
	int ns_b, const char *name_b, const char *address_b);
/* A setting below /proc/sys, "net/ipv4/ip_forward". */
MUST_CHECK int lab_sysctl(struct lab *l, int ns, const char *key, const char *value);

/* Is a program of that name in PATH (or, with a '/', there)? */
bool lab_has(const char *name);

/* Run a program to its end in a namespace, with input (NULL: none) on its standard
 * input. -EIO when it failed. -ETIMEDOUT, -EINTR: it was ended. */
MUST_CHECK int lab_run(struct lab *l, int ns, const char *input, const char *const argv[]);
/* The same without input, for at most limit_ms, and the first cap - 1 bytes of what it wrote
 * to its standard output, as a string: also where it failed. */
MUST_CHECK int lab_read(
	struct lab *l, int ns, const char *const argv[], int limit_ms, char *out, size_t cap);

/* Start a program that goes on until lab_end or the lab's end. Its number, or negative errno. */
MUST_CHECK int lab_start(struct lab *l, int ns, const char *const argv[]);
void lab_end(struct lab *l, int program);
/* Its process, to look at in /proc; 0 when it has ended by itself. */
pid_t lab_pid(const struct lab *l, int program);
/* The first line that it wrote to its standard error; empty: none. Until lab_end. */
void lab_complaint(const struct lab *l, int program, char out[LAB_TEXT_MAX]);

/* Start a gateway that makes interface ifname, and wait until it can be configured.
 * Its number, or negative errno. */
MUST_CHECK int lab_gateway(struct lab *l, int ns, enum lab_kind kind, const char *ifname);
/* The same with more arguments, of which the last is NULL, behind the name. */
MUST_CHECK int lab_gateway_with(
	struct lab *l, int ns, enum lab_kind kind, const char *ifname, const char *const more[]);
/* End it before the lab ends. */
void lab_gateway_end(struct lab *l, int gateway);
/* Its process, to look at in /proc; 0 when it has ended by itself. */
pid_t lab_gateway_pid(const struct lab *l, int gateway);
/* A connection to an interface's configuration socket: a descriptor, the caller's, or
 * negative errno. */
MUST_CHECK int lab_connect(const struct lab *l, const char *ifname);
/* `wg setconf ifname` with a configuration text. */
MUST_CHECK int lab_setconf(struct lab *l, const char *ifname, const char *conf);

#endif
