/* Two hosts, each a namespace, joined by a veth pair; on each a gateway, with a tunnel
 * between them. What users measure with iperf3. One thread, the main one, as for the lab. */
#ifndef BENCH_PAIR_H
#define BENCH_PAIR_H

#include "base/compiler.h"
#include "bench/lab.h"
#include <stdint.h>

struct pair {
	struct lab *lab;
	int ns[2];
	int gateway[2]; /* numbers in the lab; -1: none */
};

/* Addresses of host number 1: on the wire and in the tunnel. */
extern const char pair_outer[], pair_inner[];

/* The hosts and the wire, no gateways. 0, or negative errno and why in error. */
MUST_CHECK int pair_init(struct pair *p, const char *penstock, char error[LAB_TEXT_MAX]);
/* All of it goes. All zero is fine. */
void pair_fini(struct pair *p);

/* The gateways and the tunnel; more as for lab_gateway_with. 0, or negative errno and why in
 * error. */
MUST_CHECK int pair_tunnel(
	struct pair *p, enum lab_kind kind, const char *const more[], char error[LAB_TEXT_MAX]);
/* CPU time of both gateways, their helper processes included, and of the machine's ksoftirqd
 * (whose work cannot be told apart, see cputime.h). 0; negative errno: one is gone. */
MUST_CHECK int pair_cpu(const struct pair *p, uint64_t *ns);

#endif
