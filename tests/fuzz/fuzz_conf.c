/* The parser of wg(8) files, with a resolver that knows every other name. */
#include "gateway/conf.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int resolve(const char *host, const char *port, struct ipport *out)
{
	if (strlen(host) % 2)
		return -EHOSTUNREACH;
	return ipport_parse(out, "192.0.2.1:7", 11);
}

static void check(bool is_true)
{
	if (!is_true)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct gateway_change c;
	struct conf_error err;
	size_t n_allowed = 0;

	if (conf_parse(&c, "f", (const char *)data, size, resolve, &err)) {
		check(err.text[0] && !strchr(err.text, '\n'));
		return 0;
	}
	for (size_t i = 0; i < c.wg.n_peers; i++) {
		const struct wg_peer_change *p = &c.wg.peers[i];

		n_allowed += p->n_allowed;
		if (p->n_allowed)
			check(p->allowed[p->n_allowed - 1].net.bits <= 128);
	}
	check(n_allowed == c.n_allowed);
	gateway_change_fini(&c);
	return 0;
}
