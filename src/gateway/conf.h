/* wg(8) configuration files ("CONFIGURATION FILE FORMAT" in wg(8)): text in, a
 * gateway_change out that describes the whole interface. One thread per call. */
#ifndef GATEWAY_CONF_H
#define GATEWAY_CONF_H

#include "base/compiler.h"
#include "gateway/change.h"
#include "wire/addr.h"
#include <stddef.h>

enum {
	CONF_FILE_MAX = 64 << 20, /* bytes; beyond: refused, -EFBIG */
	CONF_ERROR_TEXT = 320,
};

struct conf_error {
	char text[CONF_ERROR_TEXT]; /* one line: file, line, key, what was expected; no secrets */
};

/* Find the address of an endpoint that is a host name. 0 or negative errno. */
typedef int conf_resolve_fn(const char *host, const char *port, struct ipport *out);
/* The one that asks getaddrinfo: may block for long. */
conf_resolve_fn conf_resolve;
/* From now on conf_resolve looks into /etc/hosts and asks DNS, whatever else
 * /etc/nsswitch.conf names. For the whole process. 0 or negative errno. */
MUST_CHECK int conf_resolve_plain(void);

/* Read len bytes of text; name is what messages call them. On success *out is
 * the caller's (gateway_change_fini): every setting of the interface is set,
 * those that the text does not name to nothing, and the peers are replaced.
 * On failure *out needs no fini. -EINVAL, -ENOMEM, -E2BIG. resolve NULL: host
 * names are errors. */
MUST_CHECK int conf_parse(struct gateway_change *out, const char *name, const char *text,
	size_t len, conf_resolve_fn *resolve, struct conf_error *err);

/* The same for a file, which must be a regular one that its group and others
 * can neither read nor write: it holds keys. -EACCES if they can. */
MUST_CHECK int conf_read(struct gateway_change *out, const char *path, conf_resolve_fn *resolve,
	struct conf_error *err);

#endif
