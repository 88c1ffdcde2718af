/* A window of handshakes is under way at a time. It is kept small: the gateway
 * answers in the order in which they come, so a longer one would only make its queue
 * longer, until it takes that for an attack and asks for cookies. */
#include "bench/folk.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "bench/device.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	WINDOW = 48, /* handshakes under way */
	BATCH = 64, /* messages per system call */
	MESSAGE_MAX = 256,
	SOCKET_BYTES = 8 << 20,
	ANSWER_MS = 1000, /* then a client begins anew */
	STALL_MS = 20000, /* nobody got through for so long */
	PORT = 51900, /* ours */
	UDP_HDR_LEN = 8, /* in an inner packet */
	IPV4_HDR_LEN = 20,
	SLOT = 128, /* of a sealed packet; a multiple of the cache line */
	PARALLEL_MAX = 8,
};

static_assert(WG_HEAD + FOLK_INNER_LEN + WG_TAIL <= SLOT, "slot");

struct folk {
	struct folk_config cfg;
	struct wg_clients *clients;
	struct aead *aead;
	int fd;
	struct sockaddr_in to;
	uint32_t *order; /* a permutation of the clients */
	uint32_t random;

	/* handshakes */
	struct waiting {
		size_t client;
		uint64_t sent_ns;
	} waiting[WINDOW];
	size_t n_waiting;
	struct folk_counts counts;

	/* packets that are sealed ahead */
	uint8_t *slots;
	uint32_t *owner; /* client of each slot */
	size_t cap, n;
	_Atomic size_t next; /* that no thread has sent yet */
	_Atomic int error;
};

/* One system call's worth of messages, each from an address of its own. */
struct post {
	struct mmsghdr hdr[BATCH];
	struct iovec iov[BATCH];
	struct {
		_Alignas(struct cmsghdr) uint8_t b[CMSG_SPACE(sizeof(struct in_pktinfo))];
	} control[BATCH];
	uint8_t *info[BATCH]; /* the struct in_pktinfo of each */
	size_t n;
};

static void post_init(struct post *p, struct folk *c)
{
	memset(p, 0, sizeof(*p));
	for (size_t i = 0; i < BATCH; i++) {
		struct msghdr *h = &p->hdr[i].msg_hdr;
		struct cmsghdr *cm;

		h->msg_name = &c->to;
		h->msg_namelen = sizeof(c->to);
		h->msg_iov = &p->iov[i];
		h->msg_iovlen = 1;
		h->msg_control = p->control[i].b;
		h->msg_controllen = sizeof(p->control[i].b);
		cm = (struct cmsghdr *)p->control[i].b;
		cm->cmsg_level = IPPROTO_IP;
		cm->cmsg_type = IP_PKTINFO;
		cm->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
		p->info[i] = CMSG_DATA(cm);
	}
}

static void post_add(struct post *p, const struct folk *c, size_t client, void *msg, size_t len)
{
	struct in_pktinfo info = { 0 };

	info.ipi_spec_dst.s_addr = htobe32(c->cfg.source + (uint32_t)(client % c->cfg.n_sources));
	memcpy(p->info[p->n], &info, sizeof(info));
	p->iov[p->n++] = (struct iovec){ msg, len };
}

/* Sends all: the socket blocks while it has no room. */
static int post_send(struct post *p, int fd)
{
	size_t done = 0;
	int n;

	while (done < p->n) {
		n = sendmmsg(fd, p->hdr + done, (unsigned)(p->n - done), 0);
		if (n < 0 && errno != EINTR && errno != ENOBUFS)
			return -errno;
		if (n > 0)
			done += (size_t)n;
	}
	p->n = 0;
	return 0;
}

/* ---- Life. */

static int open_socket(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htobe16(PORT) };
	int size = SOCKET_BYTES, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	/* Root has the right; without room answers are lost and asked for again. */
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	if (bind(fd, (struct sockaddr *)&here, sizeof(here)) < 0) {
		int ret = -errno;

		close(fd);
		return ret;
	}
	return fd;
}

/* Numerical Recipes' generator: the order is the same in every run. */
static uint32_t random_below(struct folk *c, uint32_t n)
{
	c->random = c->random * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)c->random * n >> 32);
}

static void shuffle(struct folk *c)
{
	for (size_t i = 0; i < c->cfg.n; i++)
		c->order[i] = (uint32_t)i;
	for (size_t i = c->cfg.n - 1; i > 0; i--) {
		size_t k = random_below(c, (uint32_t)i + 1);
		uint32_t other = c->order[k];

		c->order[k] = c->order[i];
		c->order[i] = other;
	}
}

int folk_create(struct folk **out, const struct folk_config *cfg)
{
	struct folk *c = calloc(1, sizeof(*c));
	int ret;

	if (!c)
		return -ENOMEM;
	c->cfg = *cfg;
	c->to = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_port = htobe16(cfg->port),
		.sin_addr.s_addr = htobe32(cfg->server) };
	c->order = calloc(cfg->n, sizeof(*c->order));
	c->fd = open_socket();
	ret = c->fd < 0 ? c->fd : c->order ? 0 : -ENOMEM;
	if (!ret)
		ret = aead_create(&c->aead);
	if (!ret)
		ret = wg_clients_create(&c->clients, cfg->n, cfg->server_key);
	if (ret < 0) {
		folk_destroy(c);
		return ret;
	}
	shuffle(c);
	*out = c;
	return 0;
}

void folk_destroy(struct folk *c)
{
	if (!c)
		return;
	wg_clients_destroy(c->clients);
	aead_destroy(c->aead);
	if (c->fd >= 0)
		close(c->fd);
	free(c->order);
	free(c->slots);
	free(c->owner);
	free(c);
}

void folk_public_key(struct folk *c, size_t i, uint8_t out[WG_KEY_LEN])
{
	wg_clients_public_key(c->clients, i, out);
}

uint32_t folk_inner(const struct folk *c, size_t i)
{
	return c->cfg.inner + (uint32_t)i;
}

void folk_counts(const struct folk *c, struct folk_counts *out)
{
	*out = c->counts;
}

/* ---- Handshakes. */

struct exchange {
	struct folk *c;
	struct post post;
	uint8_t out[BATCH][MESSAGE_MAX];
	size_t next, end; /* clients that have not begun */
	size_t n_done;
	uint64_t last_done_ns;
};

/* Room for one more message to send; sends those before if there is none. */
static uint8_t *room(struct exchange *x, int *ret)
{
	if (x->post.n == BATCH)
		*ret = post_send(&x->post, x->c->fd);
	return x->out[x->post.n];
}

static int initiate(struct exchange *x, struct waiting *w, uint64_t now_ns)
{
	struct folk *c = x->c;
	int ret = 0;
	uint8_t *msg = room(x, &ret);

	wg_clients_initiate(c->clients, w->client, now_ns, clock_wall_ns(), msg);
	post_add(&x->post, c, w->client, msg, WGMSG_INITIATION_LEN);
	w->sent_ns = now_ns;
	c->counts.initiations++;
	return ret;
}

static struct waiting *find_waiting(struct folk *c, size_t client)
{
	for (size_t i = 0; i < c->n_waiting; i++)
		if (c->waiting[i].client == client)
			return &c->waiting[i];
	return NULL;
}

/* The keepalive that confirms the session. */
static int confirm(struct exchange *x, size_t client)
{
	struct folk *c = x->c;
	int ret = 0;
	struct wg_packet pkt = { .data = room(x, &ret) + WG_HEAD };

	if (!wg_clients_seal(c->clients, client, c->aead, &pkt, 1))
		return -ENOTCONN;
	post_add(&x->post, c, client, pkt.data, pkt.len);
	return ret;
}

static int take(struct exchange *x, const uint8_t *msg, size_t len)
{
	struct folk *c = x->c;
	struct waiting *w;
	uint8_t *out;
	size_t client;
	int ret = 0;

	/* Data: keepalives of the gateway, which nobody waits for. */
	if (wgmsg_gate(msg, len) == WGMSG_DATA || !wg_clients_find(c->clients, msg, len, &client))
		return 0;
	w = find_waiting(c, client);
	if (!w)
		return 0;
	switch (wg_clients_take(c->clients, client, msg, len, clock_now_ns())) {
	case WG_CLIENT_SESSION:
		*w = c->waiting[--c->n_waiting];
		c->counts.sessions++;
		x->n_done++;
		x->last_done_ns = clock_now_ns();
		return confirm(x, client);
	case WG_CLIENT_COOKIE:
		c->counts.cookies++;
		out = room(x, &ret);
		if (wg_clients_again(c->clients, client, clock_now_ns(), out)) {
			post_add(&x->post, c, client, out, WGMSG_INITIATION_LEN);
			w->sent_ns = clock_now_ns();
			c->counts.again++;
		}
		return ret;
	case WG_CLIENT_REFUSED:
		break;
	}
	c->counts.refused++;
	return 0;
}

/* What has come, waiting for the first of it a little. */
static int receive(struct exchange *x)
{
	static uint8_t buf[BATCH][MESSAGE_MAX];
	struct pollfd p = { .fd = x->c->fd, .events = POLLIN };
	struct mmsghdr hdr[BATCH] = { 0 };
	struct iovec iov[BATCH];
	int n, ret = 0;

	if (poll(&p, 1, 10) <= 0)
		return 0;
	for (size_t i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){ buf[i], sizeof(buf[i]) };
		hdr[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	n = recvmmsg(x->c->fd, hdr, BATCH, MSG_DONTWAIT, NULL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n && !ret; i++)
		ret = take(x, buf[i], hdr[i].msg_len);
	return ret;
}

static int begin_more(struct exchange *x)
{
	struct folk *c = x->c;
	uint64_t now_ns = clock_now_ns();
	int ret = 0;

	for (size_t i = 0; i < c->n_waiting && !ret; i++) {
		if (now_ns < c->waiting[i].sent_ns + ANSWER_MS * NSEC_PER_MSEC)
			continue;
		c->counts.timeouts++;
		ret = initiate(x, &c->waiting[i], now_ns);
	}
	while (!ret && c->n_waiting < WINDOW && x->next < x->end) {
		c->waiting[c->n_waiting].client = x->next++;
		ret = initiate(x, &c->waiting[c->n_waiting++], clock_now_ns());
	}
	return ret ? ret : post_send(&x->post, c->fd);
}

int folk_handshake(
	struct folk *c, size_t first, size_t n, void (*tell)(void *ctx, size_t done), void *ctx)
{
	struct exchange *x = calloc(1, sizeof(*x));
	uint64_t told_ns = 0;
	int ret = 0;

	if (!x)
		return -ENOMEM;
	x->c = c;
	x->next = first;
	x->end = first + n;
	x->last_done_ns = clock_now_ns();
	c->n_waiting = 0;
	post_init(&x->post, c);
	while (!ret && x->n_done < n) {
		ret = begin_more(x);
		if (!ret)
			ret = receive(x);
		if (rounds_stopped())
			ret = -EINTR;
		else if (!ret && clock_now_ns() > x->last_done_ns + STALL_MS * NSEC_PER_MSEC)
			ret = -ETIMEDOUT;
		if (tell && clock_now_ns() > told_ns + FOLK_PERIOD_MS * NSEC_PER_MSEC) {
			tell(ctx, x->n_done);
			told_ns = clock_now_ns();
		}
	}
	if (!ret)
		ret = post_send(&x->post, c->fd);
	free(x);
	return ret;
}

/* ---- Data. */

static int reserve(struct folk *c, size_t n)
{
	if (n <= c->cap)
		return 0;
	free(c->slots);
	free(c->owner);
	c->cap = 0;
	c->slots = aligned_alloc(SLOT, n * SLOT);
	c->owner = calloc(n, sizeof(*c->owner));
	if (!c->slots || !c->owner)
		return -ENOMEM;
	c->cap = n;
	return 0;
}

/* The source port differs from packet to packet: else the gateway would write
 * those of one tunnel to its TUN together, and those of many singly. */
static void make_packet(const struct folk *c, size_t client, size_t i, uint8_t *out)
{
	inner_packet(out, FOLK_INNER_LEN, folk_inner(c, client), c->cfg.sink);
	put_be16(out + IPV4_HDR_LEN, (uint16_t)(1024 + i % 60000));
	put_be16(out + IPV4_HDR_LEN + 2, 9);
	put_be16(out + IPV4_HDR_LEN + 4, FOLK_INNER_LEN - IPV4_HDR_LEN);
}

int folk_load(struct folk *c, size_t n_active, size_t n)
{
	int ret = reserve(c, n);

	assert(n_active > 0);
	assert(n_active <= c->cfg.n);
	c->n = 0;
	/* The order of all, less those that are not active. */
	for (size_t i = 0, at = 0; !ret && c->n < n; i++) {
		size_t client = n_active == 1 ? 0 : c->order[i % c->cfg.n];
		struct wg_packet pkt = { .data = c->slots + at * SLOT + WG_HEAD,
			.len = FOLK_INNER_LEN };

		if (client >= n_active)
			continue;
		make_packet(c, client, at, pkt.data);
		if (!wg_clients_seal(c->clients, client, c->aead, &pkt, 1))
			ret = -ENOTCONN;
		c->owner[at++] = (uint32_t)client;
		c->n = at;
		if (at % 1024 == 0 && rounds_stopped())
			ret = -EINTR;
	}
	return ret;
}

static void *shoot(void *arg)
{
	struct folk *c = arg;
	struct post post;
	int ret = 0;

	post_init(&post, c);
	while (!ret && !rounds_stopped()) {
		/* Batch by batch, so that what one client sends stays in order. */
		size_t at = atomic_fetch_add(&c->next, BATCH);

		if (at >= c->n)
			break;
		for (size_t i = at; i < at + BATCH && i < c->n; i++)
			post_add(&post, c, c->owner[i], c->slots + i * SLOT,
				FOLK_INNER_LEN + WGMSG_DATA_MIN);
		ret = post_send(&post, c->fd);
	}
	if (ret)
		atomic_store(&c->error, ret);
	return NULL;
}

static void throw_away(int fd)
{
	uint8_t byte;

	while (recv(fd, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) >= 0)
		;
}

int folk_fire(struct folk *c, unsigned n_threads, uint64_t *took_ns)
{
	pthread_t thread[PARALLEL_MAX];
	unsigned n_started = 0;
	int ret = 0;

	assert(n_threads > 0);
	assert(n_threads <= PARALLEL_MAX);
	throw_away(c->fd);
	atomic_store(&c->next, 0);
	atomic_store(&c->error, 0);
	*took_ns = clock_now_ns();
	while (n_started < n_threads && !ret) {
		ret = -pthread_create(&thread[n_started], NULL, shoot, c);
		n_started += !ret;
	}
	for (unsigned i = 0; i < n_started; i++)
		pthread_join(thread[i], NULL);
	*took_ns = clock_now_ns() - *took_ns;
	if (!ret)
		ret = atomic_load(&c->error);
	if (!ret && rounds_stopped())
		ret = -EINTR;
	return ret;
}
