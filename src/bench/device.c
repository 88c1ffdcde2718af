/* Nothing here is timed: it is the surroundings of what is. */
#include "bench/device.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { IPV4_HDR_LEN = 20, IPV4_TTL = 64 };

static void outbox_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct device *d = ctx;
	struct device_message *m;

	if (d->n_out == DEVICE_OUTBOX_MAX || len > DEVICE_MESSAGE_MAX) {
		d->n_lost++;
		return;
	}
	m = &d->outbox[d->n_out++];
	memcpy(m->data, msg, len);
	m->len = len;
	m->kind = kind;
}

/* The benches poll when they want to. */
static void wake_nobody(void *ctx)
{
}

static void limit_by_endpoint(const struct wg_endpoint *from, uint8_t key[16])
{
	memcpy(key, from->remote, 16);
}

static const struct wg_ops outbox_ops = { outbox_send, wake_nobody, limit_by_endpoint };

void fake_time_init(struct fake_time *t)
{
	t->now_ns = 24 * 3600 * NSEC_PER_SEC;
	t->wall_ns = 1790000000 * NSEC_PER_SEC;
}

void fake_time_pass(struct fake_time *t, uint64_t ns)
{
	t->now_ns += ns;
	t->wall_ns += ns;
}

void device_identity_make(struct device_identity *id)
{
	crypto_random(id->secret, sizeof(id->secret));
	x25519_clamp(id->secret);
	x25519_base(id->public_key, id->secret);
}

int device_become(struct device *d, const struct device_identity *id, const struct fake_time *t)
{
	struct wg_change c = { .has_private_key = true };

	memcpy(c.private_key, id->secret, sizeof(c.private_key));
	return wg_apply(d->wg, &c, t->now_ns, t->wall_ns, NULL, NULL);
}

int device_create(struct device **out, const struct device_identity *id, const struct fake_time *t)
{
	struct wg_config cfg = { .ops = &outbox_ops, .n_workers = 1, .seed = 1 };
	struct device *d = calloc(1, sizeof(*d));
	int ret;

	if (!d)
		return -ENOMEM;
	cfg.ctx = d;
	ret = wg_create(&d->wg, &cfg);
	if (ret < 0)
		goto free_device;
	wg_set_mtu(d->wg, DEVICE_MTU);
	ret = device_become(d, id, t);
	if (ret < 0)
		goto destroy_wg;
	wg_set_up(d->wg, true, t->now_ns);
	ret = wg_worker_create(&d->worker, d->wg, 0);
	if (ret < 0)
		goto destroy_wg;
	*out = d;
	return 0;
destroy_wg:
	wg_destroy(d->wg);
free_device:
	free(d);
	return ret;
}

void device_destroy(struct device *d)
{
	if (!d)
		return;
	wg_worker_destroy(d->worker);
	wg_destroy(d->wg);
	free(d);
}

int device_add_peer(struct device *d, const uint8_t public_key[WG_KEY_LEN], uint32_t inner_ip,
	uint32_t source, const struct fake_time *t)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change peer = { .has_endpoint = true, .allowed = &allowed, .n_allowed = 1 };
	struct wg_change c = { .peers = &peer, .n_peers = 1 };

	put_be32(allowed.net.addr.ip, inner_ip);
	memcpy(peer.public_key, public_key, sizeof(peer.public_key));
	device_endpoint(&peer.endpoint, source);
	return wg_apply(d->wg, &c, t->now_ns, t->wall_ns, NULL, NULL);
}

void device_endpoint(struct wg_endpoint *e, uint32_t source)
{
	memset(e, 0, sizeof(*e));
	put_be32(e->remote, source);
}

struct wg_peer *device_route(struct device *d, uint32_t inner_ip)
{
	uint8_t ip[16] = { 0 };

	put_be32(ip, inner_ip);
	return wg_route(d->worker, AF_INET, ip);
}

void inner_packet(uint8_t *out, size_t len, uint32_t src_ip, uint32_t dst_ip)
{
	assert(len >= IPV4_HDR_LEN);
	assert(len <= UINT16_MAX);
	memset(out, 0, len);
	out[0] = 4 << 4 | IPV4_HDR_LEN / 4;
	put_be16(out + 2, (uint16_t)len);
	out[8] = IPV4_TTL;
	out[9] = IPPROTO_UDP;
	put_be32(out + 12, src_ip);
	put_be32(out + 16, dst_ip);
}
