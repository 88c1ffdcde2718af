/* The configuration socket's parser. The first byte says into pieces of which
 * size the rest is cut; the pieces must be understood as the whole is. What the
 * requests make of a device is asked for in pieces as well. */
#include "crypto/crypto.h"
#include "gateway/uapi.h"
#include "gateway/uapi_reply.h"
#include "link/link.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MAX = 64, REPLY_MAX = 1 << 20 };

struct trace {
	size_t n;
	enum uapi_event events[EVENTS_MAX];
	int codes[EVENTS_MAX];
	size_t n_peers[EVENTS_MAX], n_allowed[EVENTS_MAX];
};

static void check(bool is_true)
{
	if (!is_true)
		abort();
}

static void record(struct trace *t, enum uapi_event event, const struct uapi_reader *r)
{
	size_t n_allowed = 0;

	if (event == UAPI_MORE || t->n == EVENTS_MAX)
		return;
	t->events[t->n] = event;
	t->codes[t->n] = event == UAPI_BAD || event == UAPI_FATAL ? r->error.code : 0;
	check(t->codes[t->n] <= 0 && !strchr(r->error.text, '\n'));
	if (event == UAPI_SET) {
		const struct gateway_change *c = &r->change;

		for (size_t i = 0; i < c->wg.n_peers; i++) {
			const struct wg_peer_change *p = &c->wg.peers[i];

			n_allowed += p->n_allowed;
			/* Touch the last one: the lists must be where they are said to be. */
			if (p->n_allowed)
				check(p->allowed[p->n_allowed - 1].net.bits <= 128);
		}
		check(n_allowed == c->n_allowed);
		t->n_peers[t->n] = c->wg.n_peers;
		t->n_allowed[t->n] = n_allowed;
	}
	t->n++;
}

/* ---- The device. */

static void no_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
}

static void no_wake(void *ctx)
{
}

static struct wg *device(void)
{
	static const struct wg_ops ops = { no_send, no_wake, endpoint_limit_key };
	static const struct wg_config cfg = { .ops = &ops, .n_workers = 1, .seed = 1 };
	static struct wg *wg;

	if (!wg)
		check(crypto_init(NULL) == 0 && wg_create(&wg, &cfg) == 0);
	return wg;
}

static void apply(const struct wg_change *c)
{
	check(wg_apply(device(), c, 1, 1, NULL, NULL) == 0);
}

static void get(struct uapi_text *out, size_t cap)
{
	struct uapi_reply *r;
	struct uapi_text t;
	bool has_more;

	uapi_text_init(out);
	uapi_put_head(out, device(), 1, 2);
	uapi_text_init(&t);
	check(uapi_reply_begin(&r, device()) == 0);
	do {
		has_more = uapi_reply_more(r, &t, cap);
		check(t.len <= cap && !t.has_failed);
		uapi_put(out, "%.*s", (int)t.len, t.len ? t.p : "");
		uapi_text_clear(&t);
	} while (has_more);
	uapi_reply_end(r);
	uapi_text_fini(&t);
}

/* The same in large and in small pieces; then the device is emptied. */
static void show(size_t step)
{
	const struct wg_change none = { .has_private_key = true, .replaces_peers = true };
	struct uapi_text whole, cut;

	get(&whole, REPLY_MAX);
	get(&cut, UAPI_REPLY_MIN + step);
	check(whole.len == cut.len && memcmp(whole.p, cut.p, whole.len) == 0);
	check(whole.len >= 9 && strcmp(whole.p + whole.len - 9, "errno=0\n\n") == 0);
	uapi_text_fini(&whole);
	uapi_text_fini(&cut);
	apply(&none);
	wg_poll(device(), 1, 1); /* frees what has gone */
}

/* ---- The parser. */

static void run(struct trace *t, const char *text, size_t len, size_t step)
{
	struct uapi_reader r;
	size_t at = 0;

	memset(t, 0, sizeof(*t));
	uapi_reader_init(&r);
	while (at < len) {
		size_t n = len - at < step ? len - at : step;
		size_t used;
		enum uapi_event event = uapi_reader_feed(&r, text + at, n, &used);

		check(used <= n);
		check(event != UAPI_MORE || used == n);
		record(t, event, &r);
		if (event == UAPI_SET)
			apply(&r.change.wg);
		at += used;
		if (event == UAPI_FATAL)
			break;
	}
	record(t, uapi_reader_end(&r), &r);
	uapi_reader_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct trace whole, cut;

	if (size < 2)
		return 0;
	run(&whole, (const char *)data + 1, size - 1, size);
	run(&cut, (const char *)data + 1, size - 1, (size_t)data[0] + 1);
	check(memcmp(&whole, &cut, sizeof(whole)) == 0);
	show(data[0]);
	return 0;
}
