/* The WireGuard configuration protocol (wireguard.com/xplatform, section
 * "Configuration Protocol"): requests. Replies: uapi_reply.h. Pure: bytes and
 * structs, no descriptor. One thread at a time per object. */
#ifndef GATEWAY_UAPI_H
#define GATEWAY_UAPI_H

#include "base/compiler.h"
#include "gateway/change.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	UAPI_LINE_MAX = 1024, /* bytes without the newline; beyond: refused, hang up */
	UAPI_REQUEST_MAX = 256 << 20, /* bytes of one request; beyond: refused, hang up */
	UAPI_ERROR_TEXT = 192,
};

enum uapi_event {
	UAPI_MORE, /* no whole request yet */
	UAPI_GET, /* a get=1 request is whole */
	UAPI_SET, /* a set=1 request is whole: see change */
	UAPI_BAD, /* a request was refused: see error. The next one may follow. */
	UAPI_FATAL, /* refused as well, and where the next request begins is unknown: hang up */
};

struct uapi_error {
	int code; /* negative errno */
	char text[UAPI_ERROR_TEXT]; /* one line: line number, key, what was expected; no secrets */
};

enum uapi_state {
	UAPI_S_START, /* waits for the first line. Nothing of a request was seen yet. */
	UAPI_S_GET, /* get=1 was read: only the blank line may follow. */
	UAPI_S_SET, /* set=1 was read: keys follow until the blank line. */
	UAPI_S_SKIP, /* an error is noted: everything up to the blank line is ignored. */
	UAPI_S_DEAD, /* after UAPI_FATAL: everything is ignored. */
};

struct uapi_reader {
	enum uapi_state state;
	bool is_done; /* the last call returned a request: its remains are cleared by the next */
	struct gateway_change change; /* after UAPI_SET, until the next call: may be used up */
	struct uapi_error error; /* after UAPI_BAD and UAPI_FATAL, until the next call */
	uint64_t n_lines; /* of this request */
	uint64_t n_bytes; /* of this request */
	size_t line_len;
	char line[UAPI_LINE_MAX]; /* a line whose end has not come yet */
};

void uapi_reader_init(struct uapi_reader *r);
void uapi_reader_fini(struct uapi_reader *r);

/* Read up to len bytes; stops after the end of a request. *used says how many
 * were taken (all of them on UAPI_MORE). Linear in len. */
MUST_CHECK enum uapi_event uapi_reader_feed(
	struct uapi_reader *r, const char *bytes, size_t len, size_t *used);
/* The sender will send no more. UAPI_MORE: nothing was half sent; else UAPI_FATAL. */
MUST_CHECK enum uapi_event uapi_reader_end(struct uapi_reader *r);
/* Part of a request was read and its end was not. */
bool uapi_reader_is_half(const struct uapi_reader *r);

#endif
