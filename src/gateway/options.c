/* The command line of penstock gateway and of penstock-wg. See gateway.h. */
#include "gateway/gateway.h"
#include "base/options.h"
#include "gateway/plane.h"
#include "link/link.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SQPOLL_MS_MAX = 60000 };

enum {
	OPT_HELP = 'h',
	OPT_FOREGROUND = 'f',
	OPT_CONFIG = OPTION_LONG_ONLY,
	OPT_ENGINE,
	OPT_WORKERS,
	OPT_STEER,
	OPT_SQPOLL,
	OPT_AEAD,
	OPT_NO_OFFLOAD,
	OPT_LOG_LEVEL,
	OPT_SANDBOX,
	OPT_DAEMON,
	OPT_STATUS,
	OPT_PEER,
};

static const struct option_spec specs[] = {
	{ OPT_CONFIG, "config", "FILE", "configure from a wg(8) file (mode 0600) at start" },
	{ OPT_FOREGROUND, "foreground", NULL, "stay in the foreground" },
	{ OPT_DAEMON, "daemon", NULL, "go to the background once the interface is there" },
	{ OPT_ENGINE, "engine", "NAME",
		"how packets enter and leave: auto, uring, channels, epoll, blocking or queue "
		"(default: auto)" },
	{ OPT_WORKERS, "workers", "N",
		"threads that carry data, 1 to 64 (default: as many as cores, at most 8; epoll: "
		"1)" },
	{ OPT_STEER, "steer", "MODE",
		"which worker gets a packet: index (the session's), rr (each in turn) or flow (by "
		"address and port) (default: index)" },
	{ OPT_SQPOLL, "sqpoll", "MS",
		"with --engine uring: a thread of the kernel's does the calls, and sleeps after so "
		"many idle milliseconds" },
	{ OPT_AEAD, "aead", "auto|ipsec-mb|openssl", "which library encrypts (default: auto)" },
	{ OPT_NO_OFFLOAD, "no-offload", "LIST",
		"do without: vnet,csum,tso,uso,udp-gso,udp-gro (for comparison)" },
	{ OPT_LOG_LEVEL, "log-level", "LEVEL", "error, warn, info or debug (default: info)" },
	{ OPT_SANDBOX, "sandbox", "MODE",
		"unexpected system calls: strict (refused), kill, or off (default: strict)" },
	{ OPT_STATUS, "status", NULL, "show drop reasons and counters of a running gateway" },
	{ OPT_PEER, "peer", "KEY", "with --status: of one peer, by its public key" },
	{ OPT_HELP, "help", NULL, "show this" },
};

/* What was said on the command line, as far as it matters for combinations. */
struct said {
	bool foreground, daemon;
	const char *run_option; /* one that makes no sense with --status */
};

static int parse_choice(
	struct options *o, const char *name, const char *const *choices, const char **out)
{
	char list[64] = "";

	for (const char *const *c = choices; *c; c++) {
		if (strcmp(o->value, *c) == 0) {
			*out = *c;
			return 0;
		}
		strncat(list, c == choices ? "" : ", ", sizeof(list) - strlen(list) - 1);
		strncat(list, *c, sizeof(list) - strlen(list) - 1);
	}
	return options_bad(o, "--%s: expected one of %s, not '%.32s'", name, list, o->value);
}

static int parse_log_level(struct options *o, enum log_level *out)
{
	static const char *const names[] = { "error", "warn", "info", "debug" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (strcmp(o->value, names[i]) == 0) {
			*out = (enum log_level)i;
			return 0;
		}
	}
	return options_bad(
		o, "--log-level: expected one of error, warn, info, debug, not '%.32s'", o->value);
}

static int parse_sandbox(struct options *o, enum sandbox_mode *out)
{
	static const enum sandbox_mode modes[] = { SANDBOX_STRICT, SANDBOX_KILL, SANDBOX_OFF };

	for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
		if (strcmp(o->value, sandbox_mode_name(modes[i])) == 0) {
			*out = modes[i];
			return 0;
		}
	}
	return options_bad(
		o, "--sandbox: expected one of strict, kill, off, not '%.32s'", o->value);
}

static int parse_engine(struct options *o, const char **out)
{
	*out = o->value;
	if (plane_is_engine(o->value))
		return 0;
	return options_bad(o,
		"--engine: expected one of auto, uring, channels, epoll, blocking, queue, not "
		"'%.32s'",
		o->value);
}

static int parse_steer(struct options *o, enum steer_mode *out)
{
	for (unsigned i = 0; i < STEER_MODE_N; i++) {
		if (strcmp(o->value, steer_mode_name((enum steer_mode)i)) == 0) {
			*out = (enum steer_mode)i;
			return 0;
		}
	}
	return options_bad(o, "--steer: expected one of index, rr, flow, not '%.32s'", o->value);
}

static int parse_count(
	struct options *o, const char *name, unsigned min, unsigned max, unsigned *out)
{
	uint64_t n;

	if (options_number(o->value, max, &n) || n < min)
		return options_bad(o, "--%s: expected a number from %u to %u, not '%.32s'", name,
			min, max, o->value);
	*out = (unsigned)n;
	return 0;
}

static int parse_no_offload(struct options *o, unsigned *offloads)
{
	const char *p = o->value;

	for (;;) {
		size_t len = strcspn(p, ",");
		unsigned bit = offload_by_name(p, len);

		if (!bit)
			return options_bad(o,
				"--no-offload: expected a list of "
				"vnet,csum,tso,uso,udp-gso,udp-gro, "
				"not '%.*s'",
				(int)(len < 32 ? len : 32), p);
		*offloads &= ~bit;
		if (!p[len])
			return 0;
		p += len + 1;
	}
}

static int take_option(struct options *o, struct gateway_options *g, struct said *said, int id)
{
	static const char *const aead_names[] = { "auto", "ipsec-mb", "openssl", NULL };

	if (id != OPT_STATUS && id != OPT_PEER && id != OPT_HELP)
		for (size_t i = 0; i < ARRAY_LEN(specs); i++)
			if (specs[i].id == id)
				said->run_option = specs[i].name;
	switch (id) {
	case OPT_CONFIG:
		g->config = o->value;
		return *o->value ? 0 : options_bad(o, "--config: expected FILE");
	case OPT_FOREGROUND:
		said->foreground = true;
		return 0;
	case OPT_DAEMON:
		said->daemon = true;
		return 0;
	case OPT_ENGINE:
		return parse_engine(o, &g->engine);
	case OPT_WORKERS:
		return parse_count(o, "workers", 1, WG_WORKERS_MAX, &g->n_workers);
	case OPT_STEER:
		g->has_steer = true;
		return parse_steer(o, &g->steer);
	case OPT_SQPOLL:
		return parse_count(o, "sqpoll", 1, SQPOLL_MS_MAX, &g->sqpoll_idle_ms);
	case OPT_AEAD:
		g->aead = NULL; /* what crypto_init calls auto */
		if (strcmp(o->value, "auto") == 0)
			return 0;
		return parse_choice(o, "aead", aead_names, &g->aead);
	case OPT_NO_OFFLOAD:
		return parse_no_offload(o, &g->offloads);
	case OPT_LOG_LEVEL:
		return parse_log_level(o, &g->log_level);
	case OPT_SANDBOX:
		return parse_sandbox(o, &g->sandbox);
	case OPT_STATUS:
		g->action = GATEWAY_STATUS;
		return 0;
	case OPT_PEER:
		g->has_peer = true;
		if (key_from_base64(g->peer, o->value, strlen(o->value)) == 0)
			return 0;
		return options_bad(
			o, "--peer: expected 44 characters of base64, as wg shows a key");
	default:
		assert(id == OPT_HELP);
		g->action = GATEWAY_HELP;
		return 0;
	}
}

/* What the kernel accepts as an interface name (dev_valid_name), less control characters. */
static bool is_ifname(const char *name)
{
	size_t len = strlen(name);

	if (len == 0 || len >= IFNAMSIZ || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return false;
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)name[i];

		if (c <= ' ' || c == 0x7f || c == '/' || c == ':')
			return false;
	}
	return true;
}

static int take_operands(struct options *o, struct gateway_options *g)
{
	char **operands;
	int n = options_operands(o, &operands);

	if (n == 0)
		return options_bad(o, "IFNAME: expected the name of an interface");
	if (n > 1)
		return options_bad(
			o, "IFNAME: expected one name, not '%.32s' as well", operands[1]);
	if (!is_ifname(operands[0]))
		return options_bad(o,
			"IFNAME: expected 1 to 15 characters without '/', ':' and "
			"spaces, not '%.32s'",
			operands[0]);
	strcpy(g->ifname, operands[0]);
	return 0;
}

static int check_engine(struct options *o, const struct gateway_options *g)
{
	if (g->n_workers > plane_workers_max(g->engine))
		return options_bad(o, "--workers: expected at most %u with --engine %s",
			plane_workers_max(g->engine), g->engine);
	if (g->has_steer && !plane_is_steerable(g->engine))
		return options_bad(o,
			"--steer: expected an engine whose workers have sockets of their own "
			"(channels, uring), not %s",
			g->engine);
	if (g->has_steer && g->n_workers == 1)
		return options_bad(o, "--steer: expected --workers of 2 or more");
	if (g->sqpoll_idle_ms && strcmp(g->engine, "uring") != 0)
		return options_bad(o, "--sqpoll: expected --engine uring as well");
	return 0;
}

static int check_combinations(struct options *o, struct gateway_options *g, const struct said *said)
{
	if (said->foreground && said->daemon)
		return options_bad(o, "--foreground, --daemon: expected at most one of them");
	if (g->has_peer && g->action != GATEWAY_STATUS)
		return options_bad(o, "--peer: expected --status as well");
	if (g->action == GATEWAY_STATUS && said->run_option)
		return options_bad(
			o, "--status: expected no other option, not --%s", said->run_option);
	return check_engine(o, g);
}

/* A descriptor that somebody left open for us. */
static int parse_fd(struct options *o, const char *variable, int *out)
{
	const char *text = getenv(variable);
	uint64_t n = 0;

	*out = -1;
	if (!text || !*text)
		return 0;
	if (options_number(text, INT_MAX, &n))
		return options_bad(o, "%s: expected the number of an open descriptor, not '%.32s'",
			variable, text);
	*out = (int)n;
	return 0;
}

static int take_environment(
	struct options *o, struct gateway_options *g, const struct said *said, bool is_wg_quick)
{
	const char *foreground = getenv("WG_PROCESS_FOREGROUND");
	bool is_asked = foreground && strcmp(foreground, "1") == 0;

	g->is_daemon = said->daemon || (is_wg_quick && !said->foreground && !is_asked);
	if (parse_fd(o, "WG_TUN_FD", &g->tun_fd))
		return OPTION_BAD;
	return parse_fd(o, "WG_UAPI_FD", &g->uapi_fd);
}

static int parse(struct options *o, struct gateway_options *g, bool is_wg_quick)
{
	struct said said = { 0 };
	int id, ret;

	while ((id = options_next(o)) != OPTION_END) {
		if (id == OPTION_BAD)
			return OPTION_BAD;
		ret = take_option(o, g, &said, id);
		if (ret || g->action == GATEWAY_HELP)
			return ret;
	}
	ret = check_combinations(o, g, &said);
	if (!ret)
		ret = take_operands(o, g);
	if (!ret)
		ret = take_environment(o, g, &said, is_wg_quick);
	return ret;
}

int gateway_options_parse(struct gateway_options *o, int argc, char **argv, bool is_wg_quick,
	char error[GATEWAY_ERROR_TEXT])
{
	struct options opts;

	*o = (struct gateway_options){ .offloads = OFFLOAD_ALL,
		.log_level = LOG_INFO,
		.sandbox = SANDBOX_STRICT,
		.engine = "auto",
		.tun_fd = -1,
		.uapi_fd = -1 };
	options_init(&opts, argc, argv, specs, ARRAY_LEN(specs));
	if (parse(&opts, o, is_wg_quick) == 0)
		return 0;
	snprintf(error, GATEWAY_ERROR_TEXT, "%s", opts.error);
	return -EINVAL;
}

void gateway_options_help(FILE *out, bool is_wg_quick)
{
	if (is_wg_quick)
		fprintf(out,
			"usage: penstock-wg [options] IFNAME\n"
			"The same as penstock gateway --daemon, for "
			"WG_QUICK_USERSPACE_IMPLEMENTATION=penstock-wg.\n\n");
	else
		fprintf(out,
			"usage: penstock gateway IFNAME [options]\n"
			"Makes the interface IFNAME and speaks WireGuard on it; wg(8) configures "
			"it.\n\n");
	options_help(out, specs, ARRAY_LEN(specs));
	fprintf(out,
		"\nEnvironment: WG_TUN_FD and WG_UAPI_FD name open descriptors to use instead of\n"
		"opening an interface and a configuration socket.\n");
}
