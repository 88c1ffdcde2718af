/* See uapi.h. A request is lines "key=value" ended by a blank line. The reader
 * is fed whatever arrived; each whole line goes through one table that knows
 * where a key may stand, how its value is read and what was expected. The first
 * error is kept, what was collected is thrown away and the rest of the request
 * is skipped, so that the reply belongs to the request and nothing is half done. */
#include "gateway/uapi.h"
#include "base/clock.h"
#include "base/keytext.h"
#include "crypto/crypto.h"
#include "link/link.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	KEY_SHOWN_MAX = 32, /* longer unknown keys stay out of messages: may be a secret */
};

/* ---- Values. Each returns 0 or negative errno. */

static bool is_word(const char *v, size_t len, const char *word)
{
	return len == strlen(word) && memcmp(v, word, len) == 0;
}

/* Decimal digits only: no sign, no space, no other base. */
static int parse_number(uint64_t *out, const char *v, size_t len, uint64_t max)
{
	uint64_t n = 0;

	if (len == 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (v[i] < '0' || v[i] > '9')
			return -EINVAL;
		n = n * 10 + (uint64_t)(v[i] - '0');
		if (n > max)
			return -EINVAL;
	}
	*out = n;
	return 0;
}

static int set_private_key(struct gateway_change *c, const char *v, size_t len)
{
	c->wg.has_private_key = true;
	return key_from_hex(c->wg.private_key, v, len);
}

static int set_listen_port(struct gateway_change *c, const char *v, size_t len)
{
	uint64_t n = 0;
	int ret = parse_number(&n, v, len, UINT16_MAX);

	c->has_listen_port = true;
	c->listen_port = (uint16_t)n;
	return ret;
}

static int set_fwmark(struct gateway_change *c, const char *v, size_t len)
{
	uint64_t n = 0;
	int ret = parse_number(&n, v, len, UINT32_MAX);

	c->has_fwmark = true;
	c->fwmark = (uint32_t)n;
	return ret;
}

static int set_replace_peers(struct gateway_change *c, const char *v, size_t len)
{
	c->wg.replaces_peers = true;
	return is_word(v, len, "true") ? 0 : -EINVAL;
}

static int set_public_key(struct gateway_change *c, const char *v, size_t len)
{
	struct wg_peer_change *p;
	uint8_t key[KEY_BYTES];
	int ret = key_from_hex(key, v, len);

	if (ret)
		return ret;
	ret = gateway_change_add_peer(c, &p);
	if (ret)
		return ret;
	memcpy(p->public_key, key, sizeof(p->public_key));
	return 0;
}

static int set_remove(struct gateway_change *c, const char *v, size_t len)
{
	gateway_change_peer(c)->is_removal = true;
	return is_word(v, len, "true") ? 0 : -EINVAL;
}

static int set_update_only(struct gateway_change *c, const char *v, size_t len)
{
	gateway_change_peer(c)->is_update_only = true;
	return is_word(v, len, "true") ? 0 : -EINVAL;
}

static int set_psk(struct gateway_change *c, const char *v, size_t len)
{
	struct wg_peer_change *p = gateway_change_peer(c);

	p->has_psk = true;
	return key_from_hex(p->psk, v, len);
}

static int set_endpoint(struct gateway_change *c, const char *v, size_t len)
{
	struct wg_peer_change *p = gateway_change_peer(c);
	struct ipport addr;
	int ret = ipport_parse(&addr, v, len);

	if (ret)
		return ret;
	p->has_endpoint = true;
	endpoint_from_addr(&p->endpoint, &addr);
	return 0;
}

static int set_keepalive(struct gateway_change *c, const char *v, size_t len)
{
	struct wg_peer_change *p = gateway_change_peer(c);
	uint64_t n = 0;
	int ret = parse_number(&n, v, len, UINT16_MAX);

	p->has_keepalive = true;
	p->keepalive_s = (uint16_t)n;
	return ret;
}

static int set_replace_allowed(struct gateway_change *c, const char *v, size_t len)
{
	gateway_change_replace_allowed(c);
	return is_word(v, len, "true") ? 0 : -EINVAL;
}

static int set_allowed(struct gateway_change *c, const char *v, size_t len)
{
	bool is_removal = len > 0 && v[0] == '-';
	struct prefix net;
	int ret = prefix_parse(&net, v + is_removal, len - is_removal);

	if (ret)
		return ret;
	return gateway_change_add_allowed(c, &net, is_removal);
}

static int set_protocol_version(struct gateway_change *c, const char *v, size_t len)
{
	return is_word(v, len, "1") ? 0 : -EINVAL;
}

/* ---- Keys. */

enum part { IN_DEVICE = 1, IN_PEER = 2 };

static const struct key {
	const char *name;
	unsigned parts; /* where it may stand */
	int (*set)(struct gateway_change *c, const char *v, size_t len);
	const char *expected;
} keys[] = {
	{ "private_key", IN_DEVICE, set_private_key, "64 hex digits" },
	{ "listen_port", IN_DEVICE, set_listen_port, "a port, 0 to 65535" },
	{ "fwmark", IN_DEVICE, set_fwmark, "a number, 0 to 4294967295" },
	{ "replace_peers", IN_DEVICE, set_replace_peers, "true" },
	{ "public_key", IN_DEVICE | IN_PEER, set_public_key, "64 hex digits" },
	{ "remove", IN_PEER, set_remove, "true" },
	{ "update_only", IN_PEER, set_update_only, "true" },
	{ "preshared_key", IN_PEER, set_psk, "64 hex digits" },
	{ "endpoint", IN_PEER, set_endpoint, "IPV4:PORT or [IPV6]:PORT" },
	{ "persistent_keepalive_interval", IN_PEER, set_keepalive, "seconds, 0 to 65535" },
	{ "replace_allowed_ips", IN_PEER, set_replace_allowed, "true" },
	{ "allowed_ip", IN_PEER, set_allowed, "ADDRESS/BITS, or -ADDRESS/BITS to take it away" },
	{ "protocol_version", IN_DEVICE | IN_PEER, set_protocol_version, "1" },
};

static const struct key *find_key(const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (is_word(name, len, keys[i].name))
			return &keys[i];
	return NULL;
}

/* ---- Errors. */

PRINTF_LIKE(3, 4) static void refuse(struct uapi_reader *r, int code, const char *fmt, ...)
{
	int len = snprintf(r->error.text, sizeof(r->error.text), "line %" PRIu64 ": ", r->n_lines);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(r->error.text + len, sizeof(r->error.text) - (size_t)len, fmt, ap);
	va_end(ap);
	r->error.code = code;
	r->state = UAPI_S_SKIP;
	/* Nothing of it will be used: let go of the memory at once. */
	gateway_change_fini(&r->change);
}

/* A key that we do not know may be a mistyped secret: show only what looks like a key. */
static void refuse_unknown(struct uapi_reader *r, const char *name, size_t len)
{
	size_t plain = 0;

	while (plain < len && ((name[plain] >= 'a' && name[plain] <= 'z') || name[plain] == '_'))
		plain++;
	if (plain == len && len > 0 && len <= KEY_SHOWN_MAX)
		refuse(r, -EINVAL, "unknown key '%.*s'", (int)len, name);
	else
		refuse(r, -EINVAL, "unknown key");
}

static void refuse_value(struct uapi_reader *r, const struct key *k, int code)
{
	if (code == -ENOMEM)
		refuse(r, code, "%s: out of memory", k->name);
	else if (code == -E2BIG)
		refuse(r, code, "%s: more of them than one request may have", k->name);
	else
		refuse(r, code, "%s: expected %s", k->name, k->expected);
}

/* ---- Lines. */

static void set_line(struct uapi_reader *r, const char *line, size_t len)
{
	const char *eq = memchr(line, '=', len);
	enum part part = r->change.wg.n_peers ? IN_PEER : IN_DEVICE;
	const struct key *k;
	int ret;

	if (!eq) {
		refuse(r, -EPROTO, "expected KEY=VALUE");
		return;
	}
	k = find_key(line, (size_t)(eq - line));
	if (!k) {
		refuse_unknown(r, line, (size_t)(eq - line));
		return;
	}
	if (!(k->parts & part)) {
		refuse(r, -EINVAL, "%s: expected %s the first public_key", k->name,
			part == IN_PEER ? "before" : "after");
		return;
	}
	ret = k->set(&r->change, eq + 1, len - (size_t)(eq + 1 - line));
	if (ret)
		refuse_value(r, k, ret);
}

static enum uapi_event start_line(struct uapi_reader *r, const char *line, size_t len)
{
	if (is_word(line, len, "get=1")) {
		r->state = UAPI_S_GET;
		return UAPI_MORE;
	}
	if (is_word(line, len, "set=1")) {
		r->state = UAPI_S_SET;
		return UAPI_MORE;
	}
	refuse(r, -EPROTO, "expected get=1 or set=1");
	r->state = UAPI_S_DEAD;
	return UAPI_FATAL;
}

static enum uapi_event end_of_request(struct uapi_reader *r)
{
	enum uapi_state state = r->state;

	r->state = UAPI_S_START;
	if (state == UAPI_S_SKIP)
		return UAPI_BAD;
	if (state == UAPI_S_GET)
		return UAPI_GET;
	gateway_change_finish(&r->change);
	return UAPI_SET;
}

static enum uapi_event take_line(struct uapi_reader *r, const char *line, size_t len)
{
	r->n_lines++;
	if (r->state == UAPI_S_START)
		return start_line(r, line, len);
	if (len == 0)
		return end_of_request(r);
	if (r->state == UAPI_S_SET)
		set_line(r, line, len);
	else if (r->state == UAPI_S_GET)
		refuse(r, -EPROTO, "expected a blank line after get=1");
	return UAPI_MORE;
}

/* ---- The reader. */

void uapi_reader_init(struct uapi_reader *r)
{
	r->state = UAPI_S_START;
	r->is_done = false;
	gateway_change_init(&r->change);
	r->error.code = 0;
	r->error.text[0] = '\0';
	r->n_lines = 0;
	r->n_bytes = 0;
	r->line_len = 0;
}

void uapi_reader_fini(struct uapi_reader *r)
{
	gateway_change_fini(&r->change);
	crypto_wipe(r->line, r->line_len);
	r->line_len = 0;
}

bool uapi_reader_is_half(const struct uapi_reader *r)
{
	return (r->state != UAPI_S_START || r->line_len > 0) && r->state != UAPI_S_DEAD;
}

static enum uapi_event overflow(struct uapi_reader *r, const char *what, int max)
{
	r->n_lines++;
	refuse(r, -E2BIG, "%s is longer than %d bytes", what, max);
	r->state = UAPI_S_DEAD;
	r->is_done = true;
	return UAPI_FATAL;
}

/* The line's first part may be in r->line; the rest is at bytes. */
static enum uapi_event whole_line(struct uapi_reader *r, const char *bytes, size_t len)
{
	enum uapi_event event;

	if (r->line_len == 0)
		return take_line(r, bytes, len);
	memcpy(r->line + r->line_len, bytes, len);
	len += r->line_len;
	r->line_len = 0;
	event = take_line(r, r->line, len);
	crypto_wipe(r->line, len);
	return event;
}

enum uapi_event uapi_reader_feed(struct uapi_reader *r, const char *bytes, size_t len, size_t *used)
{
	enum uapi_event event = UAPI_MORE;

	*used = 0;
	if (r->state == UAPI_S_DEAD) {
		*used = len;
		return UAPI_MORE;
	}
	if (r->is_done) {
		uapi_reader_fini(r);
		uapi_reader_init(r);
	}
	while (event == UAPI_MORE && *used < len) {
		const char *start = bytes + *used;
		const char *end = memchr(start, '\n', len - *used);
		size_t n = end ? (size_t)(end - start) : len - *used;

		if (r->line_len + n > UAPI_LINE_MAX)
			return overflow(r, "the line", UAPI_LINE_MAX);
		r->n_bytes += n + 1;
		if (r->n_bytes > UAPI_REQUEST_MAX)
			return overflow(r, "the request", UAPI_REQUEST_MAX);
		*used += n + (end != NULL);
		if (end) {
			event = whole_line(r, start, n);
		} else {
			memcpy(r->line + r->line_len, start, n);
			r->line_len += n;
		}
	}
	r->is_done = event != UAPI_MORE;
	return event;
}

enum uapi_event uapi_reader_end(struct uapi_reader *r)
{
	if (!uapi_reader_is_half(r))
		return UAPI_MORE;
	r->n_lines++;
	refuse(r, -EPROTO, "the request ends in the middle; expected a blank line at its end");
	r->state = UAPI_S_DEAD;
	r->is_done = true;
	return UAPI_FATAL;
}
