/* The configuration socket: a UNIX stream socket that speaks the protocol of
 * uapi.h with up to 128 clients at once. Owned by the control thread, driven by
 * its poll loop; no call blocks. */
#ifndef GATEWAY_UAPI_SERVER_H
#define GATEWAY_UAPI_SERVER_H

#include "base/compiler.h"
#include "gateway/change.h"
#include "gateway/uapi.h"
#include "gateway/uapi_reply.h"
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	UAPI_CLIENTS_MAX = 128, /* full: see uapi_server.c, "Room" */
	UAPI_POLLFDS_MAX = UAPI_CLIENTS_MAX + 2,
	UAPI_PATH_MAX = 108, /* sun_path */
};

#define UAPI_SOCKET_DIR "/var/run/wireguard"

struct uapi_server_ops {
	/* Do what a set=1 request asks for. 0 or negative errno, which the client is told. */
	int (*apply)(void *ctx, struct gateway_change *c);
	/* Write what stands before the first peer in the reply to get=1 (uapi_put_head and
	 * whatever else there is to tell). 0 or negative errno. */
	int (*get)(void *ctx, struct uapi_text *out);
	/* Whose peers follow; NULL: none do. Must stay while the server is open. */
	struct wg *(*device)(void *ctx);
};

struct uapi_server;

/* Where wg(8) looks for the socket of an interface. Returns out. */
const char *uapi_socket_path(char out[UAPI_PATH_MAX], const char *ifname);

/* Listen at path, mode 0600. The directory is made (0755) when it is missing. A
 * socket file on which nobody answers is replaced. 0; -EADDRINUSE: somebody
 * answers there; -EEXIST: something that is not a socket is there; other
 * negative errno. */
MUST_CHECK int uapi_server_open(
	struct uapi_server **out, const char *path, const struct uapi_server_ops *ops, void *ctx);
/* Take over a descriptor that listens already (WG_UAPI_FD). Its file is not
 * ours to remove. 0; -ENOTSOCK, -EINVAL: not a listening UNIX stream socket. */
MUST_CHECK int uapi_server_adopt(
	struct uapi_server **out, int fd, const struct uapi_server_ops *ops, void *ctx);
/* Hangs up on everybody; removes the socket file if it is still the one that
 * open made. NULL is fine. */
void uapi_server_close(struct uapi_server *s);

/* What to poll for: fills at most cap entries (UAPI_POLLFDS_MAX is enough). */
size_t uapi_server_pollfds(struct uapi_server *s, struct pollfd *fds, size_t cap);
/* When to call uapi_server_run at the latest even if nothing is ready (on the
 * clock of its now_ns); UINT64_MAX: no need. */
uint64_t uapi_server_deadline(const struct uapi_server *s);
/* Serve what poll reported for the entries that uapi_server_pollfds filled last. */
void uapi_server_run(struct uapi_server *s, const struct pollfd *fds, size_t n, uint64_t now_ns);

/* Somebody removed or replaced the socket file: the interface is to go away, as
 * the other user-space implementations do. Checked whenever the file changes. */
bool uapi_server_is_unlinked(const struct uapi_server *s);
/* Clients connected now. */
size_t uapi_server_clients(const struct uapi_server *s);

#endif
