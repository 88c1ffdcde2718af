/* Two devices in memory for fuzz targets: what one sends lies in its outbox until
 * it is handed over. Time stands still unless the target moves it. */
#ifndef TESTS_FUZZ_PAIR_H
#define TESTS_FUZZ_PAIR_H

#include "wg/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { OUTBOX_MAX = 16, OUTBOX_LEN = 2048 };

struct half {
	struct wg *wg;
	struct wg_worker *worker;
	uint8_t public_key[WG_KEY_LEN];
	struct wg_endpoint address;
	size_t n_out;
	size_t out_len[OUTBOX_MAX];
	uint8_t out[OUTBOX_MAX][OUTBOX_LEN];
};

struct pair {
	struct half half[2];
	uint64_t now_ns;
};

static void check(bool is_right)
{
	if (!is_right)
		abort();
}

static uint64_t pair_wall(const struct pair *p)
{
	return 1790000000 * NSEC_PER_SEC + p->now_ns;
}

static void keep_message(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct half *h = ctx;

	check(wgmsg_gate(msg, len) != 0);
	if (h->n_out == OUTBOX_MAX || len > OUTBOX_LEN)
		return;
	memcpy(h->out[h->n_out], msg, len);
	h->out_len[h->n_out++] = len;
}

static void wake_nobody(void *ctx)
{
}

static void limit_by_address(const struct wg_endpoint *from, uint8_t key[16])
{
	memcpy(key, from->remote, 16);
}

static inline void pair_change(struct pair *p, int a, const struct wg_change *c)
{
	check(wg_apply(p->half[a].wg, c, p->now_ns, pair_wall(p), NULL, NULL) == 0);
}

static inline void half_open(struct pair *p, int a)
{
	static const struct wg_ops ops = { keep_message, wake_nobody, limit_by_address };
	struct half *h = &p->half[a];
	struct wg_config cfg = { .ops = &ops, .ctx = h, .n_workers = 1, .seed = 1 };
	struct wg_change c = { .has_private_key = true };
	struct wg_info info;

	h->address.remote[0] = (uint8_t)(a + 1);
	check(wg_create(&h->wg, &cfg) == 0 && wg_worker_create(&h->worker, h->wg, 0) == 0);
	wg_set_mtu(h->wg, 1420);
	wg_worker_refresh(h->worker);
	memset(c.private_key, a + 1, WG_KEY_LEN);
	pair_change(p, a, &c);
	wg_get(h->wg, &info);
	memcpy(h->public_key, info.public_key, WG_KEY_LEN);
	wg_set_up(h->wg, true, p->now_ns);
}

/* Each is the other's peer and has 10.0.0.(1 + number). */
static inline void pair_open(struct pair *p)
{
	memset(p, 0, sizeof(*p));
	p->now_ns = 1000 * NSEC_PER_SEC;
	half_open(p, 0);
	half_open(p, 1);
	for (int a = 0; a < 2; a++) {
		struct wg_allowed_change allowed = {
			.net = { .addr.family = AF_INET,
				.addr.ip = { 10, 0, 0, (uint8_t)(2 - a) },
				.bits = 32 }
		};
		struct wg_peer_change pc = { .has_endpoint = true,
			.allowed = &allowed,
			.endpoint = p->half[1 - a].address,
			.n_allowed = 1 };
		struct wg_change c = { .peers = &pc, .n_peers = 1 };

		memcpy(pc.public_key, p->half[1 - a].public_key, WG_KEY_LEN);
		pair_change(p, a, &c);
	}
}

static inline struct wg_peer *pair_peer(struct pair *p, int a)
{
	return peer_find(p->half[a].wg, p->half[1 - a].public_key);
}

/* a wants a session: an initiation lies in its outbox. */
static inline void pair_initiate(struct pair *p, int a)
{
	peer_want(pair_peer(p, a), WANT_KEEPALIVE);
	wg_poll(p->half[a].wg, p->now_ns, pair_wall(p));
}

static inline enum wg_drop pair_hand(
	struct pair *p, int to, const uint8_t *msg, size_t len, bool is_loaded)
{
	return wg_rx_handshake(p->half[to].wg, msg, len, &p->half[1 - to].address, is_loaded,
		p->now_ns, pair_wall(p));
}

/* ---- Inputs are records: what to do, length (big endian), bytes. */

struct record {
	uint8_t op;
	const uint8_t *bytes;
	size_t len;
};

static inline bool record_next(const uint8_t **data, size_t *left, struct record *r)
{
	size_t len;

	if (*left < 3)
		return false;
	len = get_be16(*data + 1);
	if (len > *left - 3)
		len = *left - 3;
	*r = (struct record){ (*data)[0], *data + 3, len };
	*data += 3 + len;
	*left -= 3 + len;
	return true;
}

/* Change bytes of a message: place (2 bytes), mask, and so on. How many differ? */
static inline size_t record_mutate(
	const struct record *r, uint8_t *msg, size_t len, size_t from, size_t to)
{
	uint8_t *before = malloc(len);
	size_t n = 0;

	memcpy(before, msg, len);
	for (size_t i = 0; i + 3 <= r->len; i += 3)
		msg[from + get_be16(r->bytes + i) % (to - from)] ^= r->bytes[i + 2];
	for (size_t i = 0; i < len; i++)
		n += msg[i] != before[i];
	free(before);
	return n;
}

static inline void seed_write(const char *dir, const char *name, const uint8_t *bytes, size_t len)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "wb");
	check(f && fwrite(bytes, 1, len, f) == len);
	check(fclose(f) == 0);
}

#endif
