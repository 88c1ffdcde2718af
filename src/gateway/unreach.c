/* See unreach.h. Two ways to send:
 *
 * Through the helper, which sends from this machine's own addresses, as Linux does
 * (icmp_send.h). Such an error cannot be written to the TUN: the kernel takes a packet
 * with one of its own addresses as source from no interface, unless accept_local
 * is set, and a VPN gateway should not open that door to its peers.
 *
 * Without the privilege for it, by a write to the TUN, in the name of the address that
 * cannot be reached: that is the one source that is sure to pass the kernel's checks,
 * since the route to it is the TUN's. Connections fail at once as well; only
 * traceroute and ping name another address. */
#include "gateway/unreach.h"
#include "base/bucket.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/queue.h"
#include "base/reasons.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROUND_MAX = 16 }; /* between two looks at what else the control thread has to do */

#define TOKEN_NS (NSEC_PER_SEC / UNREACH_PER_SEC)
#define DEST_TOKEN_NS (NSEC_PER_SEC / UNREACH_DEST_PER_SEC)
/* How long an address counts as this machine's: addresses go to other machines slowly. */
#define LOCAL_NS (10 * NSEC_PER_SEC)
/* A helper that hangs holds up the control thread for one call in this time. */
#define HANG_NS (30 * NSEC_PER_SEC)

struct item {
	uint32_t len;
	uint8_t pkt[ICMP_QUOTE_MAX];
};

/* Who was told something of late. Threads that take over an entry at the same time
 * can mix up two addresses' tokens: one answer more or less. */
struct dest {
	_Atomic uint64_t hash; /* of the address */
	struct bucket bucket;
	_Atomic uint64_t local_until_ns;
};

struct unreach {
	/* read-only after start */
	const struct tun *tun;
	struct privhelper *priv;
	struct sipkey key;
	int wakefd;

	/* any thread */
	struct queue queue; /* of struct item */
	_Atomic bool is_awake; /* a wake-up is on its way already */
	struct bucket all;
	struct dest dests[UNREACH_DESTS];
	_Atomic uint64_t counts[UNREACH_COUNT_N];

	/* control thread */
	uint64_t hung_until_ns;
	struct item item;
	uint8_t answer[ICMP_UNREACH_PACKET_MAX];
};

REASONS_DEFINE(unreach_count, UNREACH_COUNTS)

static void count(struct unreach *u, enum unreach_count i)
{
	atomic_fetch_add_explicit(&u->counts[i], 1, memory_order_relaxed);
}

void unreach_counts(const struct unreach *u, uint64_t out[UNREACH_COUNT_N])
{
	for (unsigned i = 0; i < UNREACH_COUNT_N; i++)
		out[i] = atomic_load_explicit(&u->counts[i], memory_order_relaxed);
}

/* syscalls(start): eventfd */
int unreach_create(struct unreach **out, const struct tun *tun, struct privhelper *priv)
{
	struct unreach *u = calloc(1, sizeof(*u));
	int ret;

	if (!u)
		return -ENOMEM;
	u->tun = tun;
	u->priv = priv;
	crypto_random(&u->key, sizeof(u->key));
	ret = queue_init(&u->queue, UNREACH_QUEUE, sizeof(struct item));
	if (ret)
		goto free_u;
	u->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->wakefd < 0) {
		ret = -errno;
		goto fini_queue;
	}
	*out = u;
	return 0;

fini_queue:
	queue_fini(&u->queue);
free_u:
	free(u);
	return ret;
}

/* syscalls: close */
void unreach_destroy(struct unreach *u)
{
	if (!u)
		return;
	close(u->wakefd);
	queue_fini(&u->queue);
	free(u);
}

/* ---- Data workers. */

static bool is_local(const struct dest *d, uint64_t now_ns)
{
	return atomic_load_explicit(&d->local_until_ns, memory_order_relaxed) > now_ns;
}

/* The entry of the packet's source; NULL when its set is full. An entry that limits
 * nothing says no more than no entry. */
static struct dest *find_dest(struct unreach *u, const struct icmp_cause *c, uint64_t now_ns)
{
	uint64_t hash = siphash13(&u->key, c->src, c->family == AF_INET ? 4 : 16);
	struct dest *set = &u->dests[hash % UNREACH_DEST_SETS * UNREACH_DEST_WAYS];
	struct dest *idle = NULL;

	for (size_t i = 0; i < UNREACH_DEST_WAYS; i++) {
		struct dest *d = &set[i];

		if (atomic_load_explicit(&d->hash, memory_order_relaxed) == hash)
			return d;
		if (!idle && bucket_is_full(&d->bucket, now_ns) && !is_local(d, now_ns))
			idle = d;
	}
	if (idle) {
		atomic_store_explicit(&idle->hash, hash, memory_order_relaxed);
		bucket_fill(&idle->bucket);
		atomic_store_explicit(&idle->local_until_ns, 0, memory_order_relaxed);
	}
	return idle;
}

/* Who is over its own limit takes nothing from the others; and where nothing is left for
 * anybody, sources that were made up take no room in the table. */
static bool may_answer(struct unreach *u, const struct icmp_cause *c, uint64_t now_ns)
{
	struct dest *d;

	if (!bucket_has(&u->all, TOKEN_NS, UNREACH_BURST, now_ns))
		return false;
	d = find_dest(u, c, now_ns);
	if (!d)
		return false;
	if (!is_local(d, now_ns) &&
		!bucket_take(&d->bucket, DEST_TOKEN_NS, UNREACH_DEST_BURST, now_ns))
		return false;
	return bucket_take(&u->all, TOKEN_NS, UNREACH_BURST, now_ns);
}

/* syscalls: write */
static void wake(struct unreach *u)
{
	uint64_t one = 1;

	if (atomic_exchange(&u->is_awake, true))
		return;
	if (write(u->wakefd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

void unreach_offer(struct unreach *u, const uint8_t *pkt, size_t len, uint64_t now_ns)
{
	struct icmp_cause c;
	struct item item;

	if (!icmp_cause_parse(&c, pkt, len))
		return;
	if (!may_answer(u, &c, now_ns)) {
		count(u, UNREACH_LIMITED);
		return;
	}
	item.len = c.len;
	memcpy(item.pkt, pkt, c.len);
	if (queue_push(&u->queue, &item))
		wake(u);
	else
		count(u, UNREACH_LIMITED);
}

/* ---- The control thread. */

/* syscalls: writev */
static int write_to_tun(struct unreach *u, const struct icmp_cause *c)
{
	/* All zero: one packet, checksums complete. */
	struct virtio_net_hdr plain = { 0 };
	struct iovec iov[] = { { &plain, sizeof(plain) }, { u->answer, 0 } };
	bool has_vnet = u->tun->offloads & OFFLOAD_VNET;

	iov[1].iov_len = icmp_unreach_packet(c, c->dst, u->answer);
	return writev(u->tun->fd, has_vnet ? iov : iov + 1, has_vnet ? 2 : 1) < 0 ? -errno : 0;
}

static int answer(struct unreach *u, const struct icmp_cause *c, uint64_t now_ns)
{
	bool is_ours = false;
	int ret = privhelper_unreach(u->priv, u->tun, c, &is_ours);
	struct dest *d;

	if (ret == -EPERM || ret == -EPIPE)
		return write_to_tun(u, c);
	/* Linux does not limit what it tells itself. */
	d = is_ours ? find_dest(u, c, now_ns) : NULL;
	if (d)
		atomic_store_explicit(&d->local_until_ns, now_ns + LOCAL_NS, memory_order_relaxed);
	return ret;
}

static void serve_item(struct unreach *u, uint64_t now_ns)
{
	struct icmp_cause c;
	int ret;

	if (!icmp_cause_parse(&c, u->item.pkt, u->item.len))
		return;
	ret = now_ns < u->hung_until_ns ? -EAGAIN : answer(u, &c, now_ns);
	if (ret == -ETIMEDOUT)
		u->hung_until_ns = clock_now_ns() + HANG_NS;
	if (ret == -EDESTADDRREQ)
		return; /* broadcast: it should not be answered */
	count(u, ret ? UNREACH_FAILED : UNREACH_SENT);
	if (ret)
		log_line(
			LOG_DEBUG, "an unreachable destination cannot be told: %s", strerror(-ret));
}

int unreach_fd(const struct unreach *u)
{
	return u->wakefd;
}

/* syscalls: read */
void unreach_serve(struct unreach *u, uint64_t now_ns)
{
	uint64_t n;

	if (read(u->wakefd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		log_line(LOG_ERROR, "cannot read the event counter: %s", strerror(errno));
	/* Before the queue is looked at: an item that comes later wakes us again. An
	 * exchange, as in wake: whichever is second sees what the first did before. */
	atomic_exchange(&u->is_awake, false);
	for (int i = 0; i < ROUND_MAX; i++) {
		if (!queue_pop(&u->queue, &u->item))
			return;
		serve_item(u, now_ns);
	}
	wake(u);
}
