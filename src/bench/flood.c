/* Sources are chosen by ancillary data (IP_PKTINFO), so that one socket is enough; the
 * packets are made ahead, so that the thread does nothing but send. */
#include "bench/flood.h"
#include "base/bytes.h"
#include "crypto/crypto.h"
#include "wire/wgmsg.h"
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64 };

/* What sendmmsg takes, and the parts of it. */
struct volley {
	struct mmsghdr msg[BATCH];
	struct iovec iov[BATCH];
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
	} control[BATCH];
};

struct flood {
	pthread_t thread;
	int fd;
	struct flood_aim aim;
	struct sockaddr_in to;
	struct volley volley;
	_Atomic uint64_t n_sent; /* written by the thread alone */
	atomic_bool is_over;
};

static int ammo_init(struct flood_ammo *a, size_t n, size_t len)
{
	*a = (struct flood_ammo){ malloc(n * len), len, n };
	if (!a->packets)
		return -ENOMEM;
	crypto_random(a->packets, n * len);
	return 0;
}

int flood_initiations(struct flood_ammo *a, size_t n, const uint8_t server_public_key[WG_KEY_LEN])
{
	const struct span label[] = { { "mac1----", 8 }, { server_public_key, WG_KEY_LEN } };
	const size_t macs_at = offsetof(struct wgmsg_initiation, macs);
	uint8_t key[CRYPTO_HASH];
	struct span text = { NULL, macs_at };
	size_t i;
	uint8_t *p;
	int ret = ammo_init(a, n, WGMSG_INITIATION_LEN);

	if (ret < 0)
		return ret;
	blake2s(key, label, ARRAY_LEN(label));
	for (i = 0; i < n; i++) {
		p = a->packets + i * a->len;
		put_le32(p, WGMSG_INITIATION);
		memset(p + macs_at, 0, sizeof(struct wgmsg_macs));
		text.p = p;
		blake2s_mac(p + macs_at, key, sizeof(key), &text, 1);
	}
	return 0;
}

int flood_forgeries(struct flood_ammo *a, size_t n, size_t len, uint32_t receiver_index)
{
	size_t i;
	uint8_t *p;
	int ret = ammo_init(a, n, len);

	assert(len >= WGMSG_DATA_MIN);
	if (ret < 0)
		return ret;
	for (i = 0; i < n; i++) {
		p = a->packets + i * len;
		put_le32(p, WGMSG_DATA);
		put_le32(p + 4, receiver_index);
		put_le64(p + 8, i);
	}
	return 0;
}

void flood_ammo_fini(struct flood_ammo *a)
{
	free(a->packets);
	*a = (struct flood_ammo){ 0 };
}

static void volley_init(struct volley *v, struct flood *f)
{
	struct cmsghdr *c;
	size_t i;

	for (i = 0; i < BATCH; i++) {
		v->iov[i].iov_len = f->aim.ammo->len;
		v->msg[i].msg_hdr = (struct msghdr){ .msg_name = &f->to,
			.msg_namelen = sizeof(f->to),
			.msg_iov = &v->iov[i],
			.msg_iovlen = 1,
			.msg_control = v->control[i].bytes,
			.msg_controllen = sizeof(v->control[i].bytes) };
		c = CMSG_FIRSTHDR(&v->msg[i].msg_hdr);
		c->cmsg_level = IPPROTO_IP;
		c->cmsg_type = IP_PKTINFO;
		c->cmsg_len = CMSG_LEN(sizeof(struct in_pktinfo));
	}
}

static void volley_load(
	struct volley *v, const struct flood_aim *aim, uint32_t *packet, uint32_t *source)
{
	struct in_pktinfo from = { 0 };
	size_t i;

	for (i = 0; i < BATCH; i++) {
		v->iov[i].iov_base = aim->ammo->packets + *packet * aim->ammo->len;
		from.ipi_spec_dst.s_addr = htonl(aim->first_source + *source);
		memcpy(CMSG_DATA(&v->control[i].align), &from, sizeof(from));
		if (++*packet == aim->ammo->n)
			*packet = 0;
		if (++*source == aim->n_sources)
			*source = 0;
	}
}

static void *fire(void *arg)
{
	struct flood *f = arg;
	uint32_t packet = 0, source = 0;
	uint64_t sum = 0;
	int n;

	volley_init(&f->volley, f);
	while (!atomic_load_explicit(&f->is_over, memory_order_relaxed)) {
		volley_load(&f->volley, &f->aim, &packet, &source);
		/* A packet that cannot be sent just now is not worth a second try. */
		n = sendmmsg(f->fd, f->volley.msg, BATCH, 0);
		if (n > 0)
			sum += (unsigned)n;
		atomic_store_explicit(&f->n_sent, sum, memory_order_relaxed);
	}
	return NULL;
}

static int open_socket(const struct lab *l, int ns)
{
	int fd, small = 4096, ret = lab_enter(l, ns);

	if (ret < 0)
		return ret;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ret = fd < 0 ? -errno : fd;
	lab_leave(l);
	/* Nobody reads what is answered. */
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	return ret;
}

int flood_start(struct flood **out, const struct lab *l, int ns, const struct flood_aim *aim)
{
	struct flood *f = calloc(1, sizeof(*f));
	int ret;

	if (!f)
		return -ENOMEM;
	f->aim = *aim;
	f->to = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_port = htons(aim->port),
		.sin_addr.s_addr = htonl(aim->target) };
	f->fd = ret = open_socket(l, ns);
	if (ret < 0)
		goto free_flood;
	ret = -pthread_create(&f->thread, NULL, fire, f);
	if (ret < 0)
		goto close_socket;
	*out = f;
	return 0;
close_socket:
	close(f->fd);
free_flood:
	free(f);
	return ret;
}

uint64_t flood_sent(const struct flood *f)
{
	return atomic_load_explicit(&f->n_sent, memory_order_relaxed);
}

void flood_stop(struct flood *f)
{
	if (!f)
		return;
	atomic_store_explicit(&f->is_over, true, memory_order_relaxed);
	pthread_join(f->thread, NULL);
	close(f->fd);
	free(f);
}
