/* A process that sends datagrams to the sockets of a struct readers, as fast as it can: more than
 * one thread can read. Ends with the thread that started it. One thread. */
#ifndef BENCH_READERS_LOAD_H
#define BENCH_READERS_LOAD_H

#include "base/compiler.h"
#include "bench/lab.h"
#include <stdint.h>

struct readers_load_shared;
struct readers_load {
	pid_t pid; /* 0: none runs */
	struct readers_load_shared *shared;
};

/* Start it, idle, in a namespace of a lab (NULL: here). It has as many threads as there are CPUs,
 * two at least, with a socket each: with the reader on one CPU, what is sent on the others and
 * what is left of that one must be more than it can take. 0 or negative errno. */
MUST_CHECK int readers_load_start(struct readers_load *g, const struct lab *l, int ns);
/* Send to 127.0.0.1, ports `port` to port + n - 1 by turns. n 0: pause. */
void readers_load_aim(struct readers_load *g, uint16_t port, unsigned n);
/* Datagrams sent so far. */
uint64_t readers_load_sent(const struct readers_load *g);
/* All zero is fine. */
void readers_load_stop(struct readers_load *g);

#endif
