/* Handshakes go one after another, so that one place for an answer is enough. Every
 * client has an endpoint, and thus a source, of its own, and a bit of time passes
 * between two: no rate limit is met. */
#include "bench/engines_peers.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/rcu.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include "wire/wgindex.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

enum {
	INNER_FIRST = 0x0a000001,
	WORKER_BITS = 1, /* of an index, for PEERSET_WORKERS */
	TELL_EVERY = 256,
};
#define STEP_NS (NSEC_PER_MSEC / 10)

static void keep_answer(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct peerset *p = ctx;

	p->answer_len = kind == WG_MSG_HANDSHAKE && len <= sizeof(p->answer) ? len : 0;
	memcpy(p->answer, msg, p->answer_len);
}

static void wake_nobody(void *ctx)
{
}

static void limit_by_endpoint(const struct wg_endpoint *from, uint8_t key[16])
{
	memcpy(key, from->remote, 16);
}

static const struct wg_ops ops = { keep_answer, wake_nobody, limit_by_endpoint };

uint32_t peerset_inner(size_t i)
{
	return INNER_FIRST + (uint32_t)i;
}

void peerset_endpoint(size_t i, struct wg_endpoint *out)
{
	device_endpoint(out, (uint32_t)i + 1);
}

static int add_peer(struct peerset *p, size_t i)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change peer = { .allowed = &allowed, .n_allowed = 1 };
	struct wg_change c = { .peers = &peer, .n_peers = 1 };

	put_be32(allowed.net.addr.ip, peerset_inner(i));
	wg_clients_public_key(p->clients, i, peer.public_key);
	return wg_apply(p->wg, &c, p->time.now_ns, p->time.wall_ns, NULL, NULL);
}

/* A keepalive shows the device that the client has the keys, and us the index. */
static int confirm(struct peerset *p, size_t i, struct aead *aead, const struct wg_endpoint *from)
{
	struct sipkey key = { { 0, 0 } };
	uint8_t room[WG_HEAD + WG_TAIL];
	struct wg_packet pkt = { .data = room + WG_HEAD };

	if (!wg_clients_seal(p->clients, i, aead, &pkt, 1))
		return -EPROTO;
	p->owner[i] =
		(uint8_t)wgindex_worker(wgindex_unmask(&key, get_le32(pkt.data + 4)), WORKER_BITS);
	wg_open(p->workers[0], &pkt, 1, from, p->time.now_ns);
	if (pkt.drop != WG_OK || p->owner[i] >= PEERSET_WORKERS)
		return -EPROTO;
	rcu_quiescent();
	wg_poll(p->wg, p->time.now_ns, p->time.wall_ns);
	return 0;
}

static int shake_hands(struct peerset *p, size_t i, struct aead *aead)
{
	uint8_t msg[WGMSG_INITIATION_LEN];
	struct wg_endpoint from;

	fake_time_pass(&p->time, STEP_NS);
	peerset_endpoint(i, &from);
	wg_clients_initiate(p->clients, i, p->time.now_ns, p->time.wall_ns, msg);
	if (wg_rx_handshake(p->wg, msg, sizeof(msg), &from, false, p->time.now_ns,
		    p->time.wall_ns) != WG_OK)
		return -EPROTO;
	if (wg_clients_take(p->clients, i, p->answer, p->answer_len, p->time.now_ns) !=
		WG_CLIENT_SESSION)
		return -EPROTO;
	return confirm(p, i, aead, &from);
}

static int settle(struct peerset *p, void (*tell)(void *ctx, size_t done), void *ctx)
{
	struct aead *aead = NULL;
	int ret = aead_create(&aead);

	for (size_t i = 0; i < p->n && !ret; i++) {
		ret = rounds_stopped() ? -EINTR : add_peer(p, i);
		if (!ret)
			ret = shake_hands(p, i, aead);
		if (tell && i % TELL_EVERY == 0)
			tell(ctx, i);
	}
	aead_destroy(aead);
	return ret;
}

static int become_device(struct peerset *p)
{
	struct device_identity id;
	struct wg_change c = { .has_private_key = true };
	int ret;

	device_identity_make(&id);
	memcpy(c.private_key, id.secret, sizeof(c.private_key));
	ret = wg_apply(p->wg, &c, p->time.now_ns, p->time.wall_ns, NULL, NULL);
	if (!ret)
		ret = wg_clients_create(&p->clients, p->n, id.public_key);
	crypto_wipe(&id, sizeof(id));
	crypto_wipe(&c, sizeof(c));
	if (ret)
		return ret;
	wg_set_mtu(p->wg, DEVICE_MTU);
	wg_set_up(p->wg, true, p->time.now_ns);
	for (unsigned i = 0; i < PEERSET_WORKERS && !ret; i++)
		ret = wg_worker_create(&p->workers[i], p->wg, i);
	for (unsigned i = 0; i < PEERSET_WORKERS && !ret; i++)
		wg_worker_refresh(p->workers[i]);
	return ret;
}

int peerset_create(struct peerset **out, size_t n, void (*tell)(void *ctx, size_t done), void *ctx)
{
	struct wg_config cfg = { .ops = &ops, .n_workers = PEERSET_WORKERS, .seed = 1 };
	struct peerset *p = calloc(1, sizeof(*p));
	int ret;

	if (!p)
		return -ENOMEM;
	p->n = n;
	p->owner = calloc(n, sizeof(*p->owner));
	fake_time_init(&p->time);
	cfg.ctx = p;
	ret = p->owner ? wg_create(&p->wg, &cfg) : -ENOMEM;
	if (!ret)
		ret = become_device(p);
	if (!ret)
		ret = settle(p, tell, ctx);
	if (ret)
		peerset_destroy(p);
	else
		*out = p;
	return ret;
}

void peerset_destroy(struct peerset *p)
{
	if (!p)
		return;
	wg_clients_destroy(p->clients);
	for (unsigned i = 0; i < PEERSET_WORKERS; i++)
		if (p->workers[i])
			wg_worker_destroy(p->workers[i]);
	wg_destroy(p->wg);
	free(p->owner);
	free(p);
}
