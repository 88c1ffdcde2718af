/* A device alone, for tests that look into src/wg: what it sends is counted. */
#ifndef TESTS_UNIT_WG_LONE_H
#define TESTS_UNIT_WG_LONE_H

#include "wg/device.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <cmocka.h>

struct lone {
	struct wg *wg;
	struct wg_worker *worker;
	uint64_t now_ns;
	unsigned n_sent, n_handshakes;
	_Atomic unsigned n_woken;
	size_t last_len;
};

static void lone_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct lone *l = ctx;

	l->n_sent++;
	l->n_handshakes += kind == WG_MSG_HANDSHAKE;
	l->last_len = len;
}

static void lone_wake(void *ctx)
{
	struct lone *l = ctx;

	atomic_fetch_add(&l->n_woken, 1);
}

static void lone_limit(const struct wg_endpoint *from, uint8_t key[16])
{
	memcpy(key, from->remote, 16);
}

static inline uint64_t lone_wall(const struct lone *l)
{
	return 1790000000 * NSEC_PER_SEC + l->now_ns;
}

static inline uint64_t lone_poll(struct lone *l)
{
	return wg_poll(l->wg, l->now_ns, lone_wall(l));
}

static inline void lone_apply(struct lone *l, const struct wg_change *c)
{
	assert_int_equal(wg_apply(l->wg, c, l->now_ns, lone_wall(l), NULL, NULL), 0);
}

/* Down, with a key. */
static inline void lone_open(struct lone *l)
{
	static const struct wg_ops ops = { lone_send, lone_wake, lone_limit };
	struct wg_config cfg = { .ops = &ops, .ctx = l, .n_workers = 1, .seed = 1 };
	struct wg_change c = { .has_private_key = true };

	memset(l, 0, sizeof(*l));
	l->now_ns = 1000 * NSEC_PER_SEC;
	assert_int_equal(crypto_init(NULL), 0);
	assert_int_equal(wg_create(&l->wg, &cfg), 0);
	assert_int_equal(wg_worker_create(&l->worker, l->wg, 0), 0);
	memset(c.private_key, 0x11, WG_KEY_LEN);
	lone_apply(l, &c);
}

static inline void lone_close(struct lone *l)
{
	wg_worker_destroy(l->worker);
	wg_destroy(l->wg);
}

/* A peer whose key is the byte repeated, at 10.0.0.byte, with an endpoint. */
static inline struct wg_peer *lone_add_peer(struct lone *l, uint8_t byte)
{
	struct wg_allowed_change allowed = {
		.net = { .addr.family = AF_INET, .addr.ip = { 10, 0, 0, byte }, .bits = 32 }
	};
	struct wg_peer_change pc = { .has_endpoint = true,
		.endpoint.remote = { byte },
		.allowed = &allowed,
		.n_allowed = 1 };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };

	memset(pc.public_key, byte, WG_KEY_LEN);
	lone_apply(l, &c);
	return peer_find(l->wg, pc.public_key);
}

#endif
