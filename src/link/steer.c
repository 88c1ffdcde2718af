/* Steering's user side: loading, attaching to the TUN, keys and counters. What the programs
 * do is told in steer.bpf.c; sockets are put under them by udp_open (udp_sort.c). */
#include "link.h"
#include "steer_shared.h"

#include "base/bytes.h"
#include <errno.h>
#include <linux/if_tun.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#ifdef HAVE_BPF
#include "steer.skel.h"
#endif

struct steer {
	struct steer_memory *memory;
	int datagram_fd, frame_fd; /* the programs */
	int sockets_fd;
	struct steer_bpf *skel;
};

static_assert((int)STEER_WORKERS == (int)WG_WORKERS_MAX, "a place for each worker");
static_assert((int)STEER_WORKERS == (int)UDP_CHANNELS_MAX, "a socket for each worker");
static_assert(STEER_INDEX == 0 && STEER_RR == 1, "as in steer.bpf.c");

const char *steer_mode_name(enum steer_mode m)
{
	static const char *const names[] = {
		[STEER_INDEX] = "index", [STEER_RR] = "rr", [STEER_FLOW] = "flow"
	};

	static_assert(ARRAY_LEN(names) == STEER_MODE_N, "a name for each");
	return names[m];
}

/* ---- Loading. */

#ifdef HAVE_BPF
/* syscalls(start): bpf mmap munmap close fcntl prlimit64 */
static int load(struct steer *s)
{
	libbpf_print_fn_t print = libbpf_set_print(NULL); /* the caller says it in one line */
	int ret = 0;

	s->skel = steer_bpf__open_and_load();
	if (!s->skel)
		ret = -errno;
	libbpf_set_print(print);
	if (ret)
		return ret;
	s->memory = &s->skel->bss->memory;
	s->datagram_fd = bpf_program__fd(s->skel->progs.steer_datagram);
	s->frame_fd = bpf_program__fd(s->skel->progs.steer_frame);
	s->sockets_fd = bpf_map__fd(s->skel->maps.sockets);
	return 0;
}

/* syscalls: munmap close */
static void unload(struct steer *s)
{
	steer_bpf__destroy(s->skel);
}
#else
static int load(struct steer *s)
{
	return -EOPNOTSUPP;
}

static void unload(struct steer *s)
{
}
#endif

/* syscalls(start): getrandom */
static int fill(struct steer_memory *m, const struct steer_config *cfg)
{
	if (getrandom(m->secret, sizeof(m->secret), 0) != sizeof(m->secret))
		return -EIO;
	m->lane_mask = STEER_LANES - 1;
	m->mode = cfg->mode;
	m->n_workers = cfg->n_workers;
	/* As the index table has it (wg/index.c). */
	while (1u << m->worker_bits < cfg->n_workers)
		m->worker_bits++;
	return 0;
}

int steer_create(struct steer **out, const struct steer_config *cfg)
{
	struct steer *s;
	int ret;

	*out = NULL;
	if (cfg->n_workers < 1 || cfg->n_workers > WG_WORKERS_MAX || cfg->mode >= STEER_MODE_N)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	ret = load(s);
	if (ret)
		goto free_steer;
	ret = fill(s->memory, cfg);
	if (ret)
		goto unload_steer;
	steer_set_epoch_key(s, 0, cfg->index_key);
	steer_set_epoch_key(s, 1, cfg->index_key);
	*out = s;
	return 0;

unload_steer:
	unload(s);
free_steer:
	free(s);
	return ret;
}

void steer_destroy(struct steer *s)
{
	if (!s)
		return;
	/* Programs live on while sockets have them, and so does their memory: they go on. */
	unload(s);
	free(s);
}

struct steer_fds steer_get_fds(const struct steer *s)
{
	return s ? (struct steer_fds){ s->datagram_fd, s->sockets_fd }
		 : (struct steer_fds){ -1, -1 };
}

/* syscalls(start): ioctl */
int steer_attach_tun(struct steer *s, int fd, unsigned n_queues)
{
	if (!s)
		return 0;
	if (n_queues < 1 || n_queues > STEER_WORKERS)
		return -EINVAL;
	__atomic_store_n(&s->memory->n_queues, n_queues, __ATOMIC_RELAXED);
	return ioctl(fd, TUNSETSTEERINGEBPF, &s->frame_fd) ? -errno : 0;
}

/* ---- Memory. */

void steer_set_epoch_key(struct steer *s, unsigned epoch, const uint8_t key[16])
{
	__u64 *to;

	if (!s)
		return;
	to = s->memory->keys[epoch & 1];
	/* relaxed: see steer_shared.h */
	__atomic_store_n(&to[0], get_le64(key), __ATOMIC_RELAXED);
	__atomic_store_n(&to[1], get_le64(key + 8), __ATOMIC_RELAXED);
}

static uint64_t sum(const __u64 *lanes, unsigned worker)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < STEER_LANES; i++)
		n += __atomic_load_n(&lanes[i * STEER_WORKERS + worker], __ATOMIC_RELAXED);
	return n;
}

void steer_counts(const struct steer *s, struct steer_count out[WG_WORKERS_MAX])
{
	for (unsigned i = 0; i < WG_WORKERS_MAX; i++) {
		out[i].datagrams = s ? sum(s->memory->datagrams, i) : 0;
		out[i].frames = s ? sum(s->memory->frames, i) : 0;
	}
}
