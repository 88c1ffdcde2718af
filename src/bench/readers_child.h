/* A process that does nothing but read UDP sockets, by one of several methods. It is a
 * process of its own so that its CPU time can be told apart from whoever sends and whoever
 * measures; it ends with the thread that started it. One thread. */
#ifndef BENCH_READERS_CHILD_H
#define BENCH_READERS_CHILD_H

#include "base/compiler.h"
#include "bench/lab.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	READERS_LEN = 64, /* bytes of a datagram; others are bad */
	READERS_SOCKETS_MAX = 1000,
};

/* What was read in one place, which is a socket's or a thread's. Written by the thread that
 * reads; a cache line of its own. */
struct readers_place {
	_Alignas(64) _Atomic uint64_t n; /* datagrams */
	_Atomic uint64_t sum; /* of the first eight bytes of each */
};

/* Memory of both processes. */
struct readers_shared {
	struct readers_place place[READERS_SOCKETS_MAX];
	_Atomic uint64_t n_bad; /* datagrams of a wrong length, reads that failed */
	_Atomic int state; /* 0: starting; 1: reads; negative errno: could not */
};

/* What a method works with, in the child. */
struct reading {
	const int *fd;
	unsigned n_fds;
	unsigned n_threads; /* 0: the method has one */
	struct readers_shared *shared;
};

struct reader_method {
	const char *name;
	bool is_blocking; /* the sockets are */
	bool is_one_port; /* all sockets are bound to the same port */
	bool is_round_robin; /* and the kernel's program for that is on them */
	bool is_one_socket; /* can have no more than one */
	/* Read for ever; calls reading_begun. Returns a negative errno when it cannot begin. */
	int (*run)(struct reading *r);
};

/* blocking, spin, select, epoll, shared, channels, channels_ebpf, uring. */
enum { READER_METHODS = 8 };
extern const struct reader_method reader_methods[READER_METHODS];

/* Threads that read, with so many sockets. */
unsigned reader_threads(const struct reader_method *m, unsigned n_sockets);

struct readers {
	pid_t pid; /* 0: none runs */
	struct readers_shared *shared;
};

/* Start to read n sockets at 127.0.0.1, ports `port` and up (or one port alone, see the
 * method), in a namespace of a lab (NULL: here). Returns when they are read: 0, or negative
 * errno (-ERANGE: descriptors beyond what select() takes; -EOPNOTSUPP: built without). */
MUST_CHECK int readers_start(struct readers *r, const struct reader_method *m, unsigned n,
	uint16_t port, const struct lab *l, int ns);
/* So far. */
uint64_t readers_count(const struct readers *r);
uint64_t readers_sum(const struct readers *r);
uint64_t readers_bad(const struct readers *r);
/* Places in which anything has arrived. */
unsigned readers_reached(const struct readers *r);
/* Kills it; nothing of it is left. All zero is fine. */
void readers_stop(struct readers *r);

/* ---- For methods. */

/* From here on datagrams are read. */
void reading_begun(struct reading *r);

/* Handle a datagram, or a read that failed (len < 0). */
static inline void reading_take(struct reading *r, unsigned place, const uint8_t *buf, ssize_t len)
{
	struct readers_place *p = &r->shared->place[place];
	uint64_t word;

	if (len != READERS_LEN) {
		atomic_fetch_add_explicit(&r->shared->n_bad, 1, memory_order_relaxed);
		return;
	}
	__builtin_memcpy(&word, buf, sizeof(word));
	/* One thread writes, so that loads and stores will do. */
	atomic_store_explicit(&p->sum, atomic_load_explicit(&p->sum, memory_order_relaxed) + word,
		memory_order_relaxed);
	/* release: pairs with readers_count, whose caller then looks at the sum. */
	atomic_store_explicit(
		&p->n, atomic_load_explicit(&p->n, memory_order_relaxed) + 1, memory_order_release);
}

/* io_uring, multishot receive: readers_uring.c. */
int reading_uring(struct reading *r);

#endif
