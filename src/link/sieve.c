/* The sieve's user side: loading, attaching, and the memory that it shares with the
 * programs (sieve_shared.h; what the programs do is told in sieve.bpf.c). */
#include "link.h"
#include "endpoint.h"
#include "sieve_shared.h"

#include "base/clock.h"
#include "base/reasons.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_BPF
#include "sieve.skel.h"
#endif

enum { MSEC_PER_MIN = 60000 };

const struct sieve_settings sieve_defaults = {
	/* 2,000 clients behind one address that come back with two messages each are none;
	 * a steady rate of about what a core answers is one. */
	.flood_per_s = 4000,
	.flood_burst = 4000,
	.hold_ms = 500,
	.pass_per_s = 50000,
	.pass_burst = 20000,
	/* An initiation, the same again with a cookie; and two every 6 s, since the
	 * protocol's timer tries again after 5. */
	.source_per_min = 20,
	.source_burst = 2,
};

struct sieve {
	struct sieve_memory *memory;
	int handshake_fd, data_fd; /* the programs */
	_Atomic bool is_written; /* somebody writes the table of the guilty */
	struct sieve_bpf *skel;
};

#define X(name, key, text) static_assert((int)SIEVE_DROP_##name == (int)TALLY_##name, "one order");
SIEVE_DROPS(X)
#undef X
static_assert(sizeof(struct guilty_key) == 24, "no padding");
static_assert((int)TALLY_N <= (int)TALLY_PLACES, "fits");

REASONS_DEFINE(sieve_drop, SIEVE_DROPS)

/* ---- Loading. */

#ifdef HAVE_BPF
/* syscalls(start): bpf mmap munmap close fcntl prlimit64 */
static int load(struct sieve *s)
{
	libbpf_print_fn_t print = libbpf_set_print(NULL); /* the caller says it in one line */
	int ret = 0;

	s->skel = sieve_bpf__open_and_load();
	if (!s->skel)
		ret = -errno;
	libbpf_set_print(print);
	if (ret)
		return ret;
	s->memory = &s->skel->bss->memory;
	s->handshake_fd = bpf_program__fd(s->skel->progs.sieve_handshake);
	s->data_fd = bpf_program__fd(s->skel->progs.sieve_data);
	return 0;
}

/* syscalls: munmap close */
static void unload(struct sieve *s)
{
	sieve_bpf__destroy(s->skel);
}
#else
static int load(struct sieve *s)
{
	return -EOPNOTSUPP;
}

static void unload(struct sieve *s)
{
}
#endif

/* syscalls(start): getrandom */
int sieve_create(struct sieve **out)
{
	struct sieve *s = calloc(1, sizeof(*s));
	int ret;

	*out = NULL;
	if (!s)
		return -ENOMEM;
	ret = load(s);
	if (ret)
		goto free_sieve;
	if (getrandom(s->memory->secret, sizeof(s->memory->secret), 0) !=
		sizeof(s->memory->secret)) {
		ret = -EIO;
		goto unload_sieve;
	}
	s->memory->lane_mask = SIEVE_LANES - 1;
	sieve_set(s, &sieve_defaults);
	*out = s;
	return 0;

unload_sieve:
	unload(s);
free_sieve:
	free(s);
	return ret;
}

void sieve_destroy(struct sieve *s)
{
	if (!s)
		return;
	unload(s);
	free(s);
}

/* syscalls: setsockopt(SOL_SOCKET, SO_ATTACH_BPF) */
int sieve_attach(const struct sieve *s, const struct udp *u)
{
	int fds[UDP_SOCKETS_MAX], ret = 0;
	size_t n = s ? udp_sockets(u, fds) : 0;

	for (size_t i = 0; i < n; i++) {
		bool is_handshake = fds[i] == u->handshake[0] || fds[i] == u->handshake[1];
		int prog = is_handshake ? s->handshake_fd : s->data_fd;

		if (setsockopt(fds[i], SOL_SOCKET, SO_ATTACH_BPF, &prog, sizeof(prog)) && !ret)
			ret = -errno;
	}
	return ret;
}

/* ---- Memory. */

/* The program may see one rate's halves of different settings; nothing depends on it. */
static void put_u64(__u64 *to, uint64_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELAXED);
}

static uint64_t get_u64(const __u64 *from)
{
	return __atomic_load_n(from, __ATOMIC_RELAXED);
}

static void put_rate(struct sieve_rate *to, uint64_t step_ns, uint32_t burst)
{
	put_u64(&to->step_ns, step_ns);
	put_u64(&to->depth_ns, step_ns * burst);
}

void sieve_set(struct sieve *s, const struct sieve_settings *set)
{
	uint32_t step_ms = MSEC_PER_MIN / set->source_per_min;
	struct sieve_memory *m;

	if (!s)
		return;
	m = s->memory;
	put_rate(&m->flood, NSEC_PER_SEC / set->flood_per_s, set->flood_burst);
	put_rate(&m->pass, NSEC_PER_SEC / set->pass_per_s, set->pass_burst);
	__atomic_store_n(&m->source_step_ms, step_ms, __ATOMIC_RELAXED);
	__atomic_store_n(&m->source_depth_ms, step_ms * set->source_burst, __ATOMIC_RELAXED);
	put_u64(&m->hold_ns, set->hold_ms * NSEC_PER_MSEC);
}

/* The programs have a clock of their own. 0: it is past. */
static uint64_t to_coarse(uint64_t boot_ns)
{
	uint64_t now = clock_now_ns();
	struct timespec t;

	if (boot_ns <= now)
		return 0;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	boot_ns -= now;
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec +
		(boot_ns < INT64_MAX ? boot_ns : INT64_MAX);
}

/* The place of this one, or else of whoever is free soonest. */
static struct guilty *find_place(struct guilty set[GUILTY_WAYS], const struct guilty_key *key)
{
	struct guilty *soonest = &set[0];

	for (unsigned i = 0; i < GUILTY_WAYS; i++) {
		if (guilty_is(&set[i].key, key))
			return &set[i];
		if (set[i].until_ns < soonest->until_ns)
			soonest = &set[i];
	}
	return soonest;
}

static void write_guilty(struct sieve_memory *m, const struct guilty_key *key,
	const struct guilty_key *home, uint64_t until_ns)
{
	struct guilty *g = find_place(m->guilty[guilty_set(m->secret, key)], key);

	if (guilty_is(&g->key, key) && guilty_is(&g->home, home)) {
		if (g->until_ns < until_ns || until_ns == 0)
			put_u64(&g->until_ns, until_ns);
	} else if (guilty_is(&g->key, key) || g->until_ns < until_ns) {
		put_u64(&g->until_ns, 0);
		/* The key after the zero and before the new time: see find_guilty. */
		atomic_thread_fence(memory_order_release);
		g->key = *key;
		g->home = *home;
		put_u64(&g->n, 0);
		__atomic_store_n(&g->until_ns, until_ns, __ATOMIC_RELEASE);
	}
	if (get_u64(&m->guilty_until_ns) < until_ns)
		__atomic_store_n(&m->guilty_until_ns, until_ns, __ATOMIC_RELEASE);
}

static struct guilty_key key_of(const struct wg_endpoint *e, uint32_t receiver)
{
	struct endpoint_remote r = endpoint_get_remote(e);
	struct guilty_key key = {
		.receiver = htole32(receiver), .port = r.port, .family = r.family
	};

	memcpy(key.ip, r.ip, sizeof(key.ip));
	return key;
}

static void accuse(struct sieve *s, const struct guilty_key *key, const struct guilty_key *home,
	uint64_t until_ns)
{
	/* acquire and release: what the last writer left is seen by the next */
	if (atomic_exchange_explicit(&s->is_written, true, memory_order_acquire))
		return;
	write_guilty(s->memory, key, home, to_coarse(until_ns));
	atomic_store_explicit(&s->is_written, false, memory_order_release);
}

void sieve_accuse(
	struct sieve *s, const struct wg_endpoint *from, uint32_t receiver, uint64_t until_ns)
{
	const struct guilty_key none = { 0 };
	struct guilty_key key;

	if (!s)
		return;
	key = key_of(from, receiver);
	accuse(s, &key, &none, until_ns);
}

void sieve_accuse_strangers(
	struct sieve *s, const struct wg_endpoint *home, uint32_t receiver, uint64_t until_ns)
{
	const struct guilty_key anybody = { .receiver = htole32(receiver) };
	struct guilty_key key;

	if (!s)
		return;
	key = key_of(home, receiver);
	accuse(s, &anybody, &key, until_ns);
}

static uint64_t sum(const struct sieve *s, enum sieve_tally what)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < SIEVE_LANES; i++)
		n += get_u64(&s->memory->tallies[i * TALLY_PLACES + what]);
	return n;
}

void sieve_drops(const struct sieve *s, uint64_t out[SIEVE_DROP_N])
{
	for (unsigned i = 0; i < SIEVE_DROP_N; i++)
		out[i] = s ? sum(s, (enum sieve_tally)i) : 0;
}

uint64_t sieve_passed(const struct sieve *s)
{
	return s ? sum(s, TALLY_PASSED) : 0;
}
