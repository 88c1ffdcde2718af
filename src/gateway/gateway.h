/* penstock gateway: a WireGuard interface in user space. The door of
 * src/gateway. */
#ifndef GATEWAY_GATEWAY_H
#define GATEWAY_GATEWAY_H

#include "base/compiler.h"
#include "base/keytext.h"
#include "base/log.h"
#include "base/sandbox_filter.h"
#include "link/link.h"
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>

enum gateway_action {
	GATEWAY_RUN,
	GATEWAY_STATUS, /* show the counters of one that runs */
	GATEWAY_HELP,
};

enum { GATEWAY_ERROR_TEXT = 200 };

struct gateway_options {
	enum gateway_action action;
	char ifname[IFNAMSIZ];
	bool has_peer; /* GATEWAY_STATUS: of this peer */
	uint8_t peer[KEY_BYTES];
	const char *config; /* path of a wg(8) file; NULL: configured by socket only */
	const char *engine; /* a name or "auto" */
	unsigned n_workers; /* 0: as many as are good */
	bool has_steer; /* was asked for */
	enum steer_mode steer;
	unsigned sqpoll_idle_ms; /* 0: no SQPOLL */
	const char *aead; /* for crypto_init: a name or NULL for the best one */
	unsigned offloads; /* enum link_offload: those that may be used */
	enum log_level log_level;
	enum sandbox_mode sandbox;
	bool is_daemon;
	int tun_fd; /* WG_TUN_FD; -1: open one */
	int uapi_fd; /* WG_UAPI_FD; -1: open one */
};

/* Read a command line (argv[0] is the command) and the environment variables
 * that wireguard-go knows: WG_TUN_FD, WG_UAPI_FD, WG_PROCESS_FOREGROUND. is_wg_quick: called as
 * penstock-wg, where running in the background is the default. 0; -EINVAL with
 * one line in error. Strings point into argv. */
MUST_CHECK int gateway_options_parse(struct gateway_options *o, int argc, char **argv,
	bool is_wg_quick, char error[GATEWAY_ERROR_TEXT]);
void gateway_options_help(FILE *out, bool is_wg_quick);

/* Run until told to stop. Returns the exit status of the process. */
MUST_CHECK int gateway_main(const struct gateway_options *o);

/* Print drop reasons and counters of a running gateway, no secrets; peer: of the peer
 * with that public key, NULL: of the interface. Returns the exit status of the process. */
MUST_CHECK int gateway_status(const char *ifname, const uint8_t *peer, FILE *out);

#endif
