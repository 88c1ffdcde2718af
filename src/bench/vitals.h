/* What a running gateway takes and delivers, seen from outside: its memory, its CPU
 * time, what it wrote to its TUN, what each peer got through. Any thread. */
#ifndef BENCH_VITALS_H
#define BENCH_VITALS_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Resident bytes of a process, huge pages included. 0 or negative errno. */
MUST_CHECK int vitals_resident(pid_t pid, uint64_t *bytes);
/* CPU time of all its threads. 0 or negative errno. */
MUST_CHECK int vitals_cpu(pid_t pid, uint64_t *ns);
/* The same of it and of all processes that it started and that still run. */
MUST_CHECK int vitals_tree_cpu(pid_t pid, uint64_t *ns);
/* How long the machine's cores together had nothing to do. 0 or negative errno. */
MUST_CHECK int vitals_idle(uint64_t *ns);
/* Does something listen for TCP connections on that port, in the process's network namespace?
 * IPv4. */
bool vitals_listens(pid_t pid, uint16_t port);
/* Packets that came in through an interface of the process's network namespace: for a
 * TUN those that the process wrote. 0 or negative errno. */
MUST_CHECK int vitals_packets(pid_t pid, const char *ifname, uint64_t *n);
/* Bytes received of each peer, in the order of the configuration socket's reply; fd is a
 * connection to it. How many peers it has (no more than cap are stored), or negative errno. */
MUST_CHECK ssize_t vitals_peer_bytes(int fd, uint64_t *rx_bytes, size_t cap);

#endif
