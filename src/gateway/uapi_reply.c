/* See uapi_reply.h. Peers are copied from the device a batch at a time, which
 * holds its lock for some microseconds, and made into text afterwards, in units
 * of whole lines that are known to fit. Numbers, keys and addresses go without
 * printf: of a hundred thousand peers wg(8) reads two million of them. */
#include "gateway/uapi_reply.h"
#include "base/clock.h"
#include "base/decimal.h"
#include "base/keytext.h"
#include "crypto/crypto.h"
#include "link/link.h"
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	TEXT_FIRST_CAP = 4096,
	PEERS_AT_ONCE = 64, /* copied under the device's lock in one go */
};

/* ---- Text. */

void uapi_text_init(struct uapi_text *t)
{
	*t = (struct uapi_text){ 0 };
}

void uapi_text_clear(struct uapi_text *t)
{
	if (t->p)
		crypto_wipe(t->p, t->len);
	t->len = 0;
}

void uapi_text_fini(struct uapi_text *t)
{
	uapi_text_clear(t);
	free(t->p);
	uapi_text_init(t);
}

/* Room for cap bytes in all. */
static void text_fit(struct uapi_text *t, size_t cap)
{
	char *p;

	if (cap <= t->cap || t->has_failed)
		return;
	p = malloc(cap);
	if (!p) {
		t->has_failed = true;
		return;
	}
	if (t->p) {
		memcpy(p, t->p, t->len);
		crypto_wipe(t->p, t->len);
	}
	free(t->p);
	t->p = p;
	t->cap = cap;
}

/* Room for len bytes more and a terminator; where they go, or NULL. */
static char *text_room(struct uapi_text *t, size_t len)
{
	size_t cap = t->cap ? t->cap : TEXT_FIRST_CAP;

	while (cap - t->len <= len)
		cap *= 2;
	text_fit(t, cap);
	return t->has_failed ? NULL : t->p + t->len;
}

static void put_bytes(struct uapi_text *t, const char *bytes, size_t len)
{
	char *p = text_room(t, len);

	if (!p)
		return;
	memcpy(p, bytes, len);
	p[len] = '\0';
	t->len += len;
}

static void put_string(struct uapi_text *t, const char *s)
{
	put_bytes(t, s, strlen(s));
}

void uapi_put(struct uapi_text *t, const char *fmt, ...)
{
	va_list ap;
	char *p;
	int len;

	va_start(ap, fmt);
	len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	p = len < 0 ? NULL : text_room(t, (size_t)len);
	if (!p) {
		t->has_failed = true;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(p, (size_t)len + 1, fmt, ap);
	va_end(ap);
	t->len += (size_t)len;
}

void uapi_put_number(struct uapi_text *t, const char *name, uint64_t n)
{
	char text[1 + DECIMAL_MAX + 1] = "=";
	size_t len = 1 + decimal_text(text + 1, n);

	text[len++] = '\n';
	put_string(t, name);
	put_bytes(t, text, len);
}

static void put_key(struct uapi_text *t, const char *name, const uint8_t key[WG_KEY_LEN])
{
	char hex[KEY_HEX_LEN + 1];

	key_to_hex(hex, key);
	hex[KEY_HEX_LEN] = '\n';
	put_string(t, name);
	put_bytes(t, hex, sizeof(hex));
	crypto_wipe(hex, sizeof(hex));
}

static void put_address(struct uapi_text *t, const char *name, const char *text)
{
	put_string(t, name);
	put_string(t, text);
	put_string(t, "\n");
}

/* ---- Lines. */

void uapi_put_device(
	struct uapi_text *t, const struct wg_info *info, uint16_t listen_port, uint32_t fwmark)
{
	if (info->has_private_key)
		put_key(t, "private_key=", info->private_key);
	if (listen_port)
		uapi_put_number(t, "listen_port", listen_port);
	if (fwmark)
		uapi_put_number(t, "fwmark", fwmark);
}

void uapi_put_drops(struct uapi_text *t, const uint64_t drops[WG_DROP_N])
{
	for (int i = WG_OK + 1; i < WG_DROP_N; i++) {
		if (!drops[i])
			continue;
		put_string(t, "drop_");
		uapi_put_number(t, wg_drop_key((enum wg_drop)i), drops[i]);
	}
}

void uapi_put_peer(struct uapi_text *t, const struct wg_peer_info *p)
{
	static const uint8_t no_psk[WG_KEY_LEN];
	char text[ADDR_TEXT_MAX];
	struct ipport addr;

	put_key(t, "public_key=", p->public_key);
	put_key(t, "preshared_key=", p->has_psk ? p->psk : no_psk);
	put_string(t, "protocol_version=1\n");
	if (p->has_endpoint) {
		endpoint_to_addr(&addr, &p->endpoint);
		put_address(t, "endpoint=", ipport_text(&addr, text));
	}
	uapi_put_number(t, "last_handshake_time_sec", p->last_handshake_wall_ns / NSEC_PER_SEC);
	uapi_put_number(t, "last_handshake_time_nsec", p->last_handshake_wall_ns % NSEC_PER_SEC);
	uapi_put_number(t, "tx_bytes", p->tx_bytes);
	uapi_put_number(t, "rx_bytes", p->rx_bytes);
	uapi_put_number(t, "persistent_keepalive_interval", p->keepalive_s);
	uapi_put_drops(t, p->drops);
}

void uapi_put_allowed(struct uapi_text *t, const struct prefix *net)
{
	char text[ADDR_TEXT_MAX];

	put_address(t, "allowed_ip=", prefix_text(net, text));
}

void uapi_put_head(struct uapi_text *t, struct wg *wg, uint16_t listen_port, uint32_t fwmark)
{
	uint64_t drops[WG_DROP_N];
	struct wg_info info;

	wg_get(wg, &info);
	uapi_put_device(t, &info, listen_port, fwmark);
	crypto_wipe(&info, sizeof(info));
	wg_drops(wg, drops);
	uapi_put_drops(t, drops);
}

/* ---- Piece by piece. */

enum state {
	S_FETCH, /* no peer at hand: copies the next batch. To S_PEER, at the end S_STATUS. */
	S_PEER, /* peer i is to be begun. To S_ALLOWED. */
	S_ALLOWED, /* peer i has prefixes left. To S_PEER, after the last one S_FETCH. */
	S_STATUS, /* only the status line is left. To S_END. */
	S_END, /* all is written. */
};

struct uapi_reply {
	enum state state;
	int code; /* positive errno for the status line */
	struct wg_walk *walk; /* NULL: no device */
	size_t n, i, net_i;
	struct wg_peer_info infos[PEERS_AT_ONCE];
};

int uapi_reply_begin(struct uapi_reply **out, struct wg *wg)
{
	struct uapi_reply *r = malloc(sizeof(*r));
	int ret;

	if (!r)
		return -ENOMEM;
	memset(r, 0, offsetof(struct uapi_reply, infos));
	r->state = wg ? S_FETCH : S_STATUS;
	ret = wg ? wg_walk_begin(&r->walk, wg) : 0;
	if (ret) {
		free(r);
		return ret;
	}
	*out = r;
	return 0;
}

void uapi_reply_end(struct uapi_reply *r)
{
	if (!r)
		return;
	wg_walk_end(r->walk);
	crypto_wipe(r, sizeof(*r));
	free(r);
}

/* False: nothing could be had yet. */
static bool fetch(struct uapi_reply *r)
{
	int ret = wg_walk_next(r->walk, r->infos, PEERS_AT_ONCE, &r->n);

	if (ret == -EAGAIN)
		return false;
	r->i = 0;
	/* wg(8) reads the status of get as a positive number. */
	r->code = -ret;
	r->state = r->n ? S_PEER : S_STATUS;
	return true;
}

static void put_peer(struct uapi_reply *r, struct uapi_text *t)
{
	size_t before = t->len;

	uapi_put_peer(t, &r->infos[r->i]);
	assert(t->len - before <= UAPI_PEER_MAX);
	r->net_i = 0;
	r->state = S_ALLOWED;
}

static void put_next_allowed(struct uapi_reply *r, struct uapi_text *t)
{
	const struct wg_peer_info *p = &r->infos[r->i];

	if (r->net_i < p->n_allowed) {
		uapi_put_allowed(t, &p->allowed[r->net_i++]);
		return;
	}
	r->state = ++r->i < r->n ? S_PEER : S_FETCH;
}

bool uapi_reply_more(struct uapi_reply *r, struct uapi_text *t, size_t cap)
{
	assert(cap >= UAPI_REPLY_MIN);
	/* Once, so that nothing can fail between two lines. */
	text_fit(t, cap + 1);
	while (r->state != S_END && t->len + UAPI_REPLY_MIN <= cap && !t->has_failed) {
		switch (r->state) {
		case S_FETCH:
			if (!fetch(r))
				return true;
			break;
		case S_PEER:
			put_peer(r, t);
			break;
		case S_ALLOWED:
			put_next_allowed(r, t);
			break;
		case S_STATUS:
			uapi_put(t, "errno=%d\n\n", r->code);
			r->state = S_END;
			break;
		case S_END:
			break;
		}
	}
	return r->state != S_END;
}
