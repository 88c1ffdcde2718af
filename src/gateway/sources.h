/* Sticky sources and changing routes. A peer is answered from the address that it wrote
 * to, as long as what we send from there leaves by the interface that the peer's
 * datagrams come in by. Whenever routes, addresses, rules or links of our own
 * network namespace change, all sources are checked, a few at a time.
 *
 * Owner: the control thread. */
#ifndef GATEWAY_SOURCES_H
#define GATEWAY_SOURCES_H

#include "base/compiler.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stdint.h>

struct sources {
	int changes; /* to be polled; -1: changes are not noticed */
	int query;
	struct wg_walk *walk; /* the check under way; NULL: none */
	bool is_due; /* something changed */
	uint64_t began_ns, next_ns; /* the last check; the next one not before */
};

/* 0 or negative errno; then it may be used all the same, and nothing is noticed. */
MUST_CHECK int sources_open(struct sources *s);
/* Before wg_destroy. */
void sources_close(struct sources *s);
/* changes is readable. */
void sources_read(struct sources *s);
/* What routing depends on was changed by ourselves. */
void sources_change(struct sources *s);
/* When sources_run is to be called at the latest; UINT64_MAX: not at all. */
uint64_t sources_deadline(const struct sources *s);
/* Check the next few peers, if it is time. port and fwmark: of our sockets. true: a check
 * begins, so that other memory of routes is old. */
bool sources_run(struct sources *s, struct wg *wg, uint16_t port, uint32_t fwmark, uint64_t now_ns);

#endif
