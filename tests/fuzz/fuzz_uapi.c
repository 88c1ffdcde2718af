/* The configuration socket's parser. The first byte says into pieces of which
 * size the rest is cut; the pieces must be understood as the whole is. */
#include "gateway/uapi.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_MAX = 64 };

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
	return 0;
}
