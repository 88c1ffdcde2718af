/* Replies of the WireGuard configuration protocol (uapi.h). What stands before
 * the first peer is written at once; peers, of which there may be 131,072,
 * follow piece by piece. No descriptor; one thread at a time per object. */
#ifndef GATEWAY_UAPI_REPLY_H
#define GATEWAY_UAPI_REPLY_H

#include "base/compiler.h"
#include "wg/wg.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Text that grows. When memory runs out has_failed sticks and nothing is added. */
struct uapi_text {
	char *p;
	size_t len, cap;
	bool has_failed;
};

void uapi_text_init(struct uapi_text *t);
/* Frees, and wipes: a reply holds keys. */
void uapi_text_fini(struct uapi_text *t);
/* Wipes the text and keeps its memory. */
void uapi_text_clear(struct uapi_text *t);
void uapi_put(struct uapi_text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* "NAME=N", one line. */
void uapi_put_number(struct uapi_text *t, const char *name, uint64_t n);

/* The interface's own lines; listen_port and fwmark are left out when 0. */
void uapi_put_device(
	struct uapi_text *t, const struct wg_info *info, uint16_t listen_port, uint32_t fwmark);
/* Ours alone; wg(8) skips what it does not know: "drop_<key>=<n>" for each
 * reason that occurred. Before the first peer: of the device. */
void uapi_put_drops(struct uapi_text *t, const uint64_t drops[WG_DROP_N]);
/* All lines of a peer but for its allowed addresses. */
void uapi_put_peer(struct uapi_text *t, const struct wg_peer_info *p);
void uapi_put_allowed(struct uapi_text *t, const struct prefix *net);

/* The lines above for a device, without the peers. */
void uapi_put_head(struct uapi_text *t, struct wg *wg, uint16_t listen_port, uint32_t fwmark);

enum {
	UAPI_PEER_MAX = 640 + 48 * WG_DROP_N, /* bytes that uapi_put_peer writes at most */
	UAPI_REPLY_MIN = UAPI_PEER_MAX, /* least room for uapi_reply_more to get on */
};

/* The rest of a reply to get=1: the peers of a device and the status line. */
struct uapi_reply;

/* wg NULL: no peers. 0, -ENOMEM. Must end before wg_destroy. */
MUST_CHECK int uapi_reply_begin(struct uapi_reply **out, struct wg *wg);
/* Append to t until it is cap bytes long or the next line might not fit. True:
 * more is to come, at once or, if nothing was added, after a pause (a long list
 * is being collected: let others have the device's lock). Running out of memory half way
 * shows in the status line. t grows to cap and no further; has_failed when it cannot. */
MUST_CHECK bool uapi_reply_more(struct uapi_reply *r, struct uapi_text *t, size_t cap);
/* Frees and wipes. NULL is fine. */
void uapi_reply_end(struct uapi_reply *r);

#endif
