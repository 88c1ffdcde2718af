/* The command line of the gateway: what it means, and that every mistake is one
 * line that names the option. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "gateway/gateway.h"
#include "link/link.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS_MAX = 16 };

/* The words of line after the command's name. "_" stands for an empty word. */
static int parse_as(struct gateway_options *o, const char *line, bool is_wg_quick,
	char error[GATEWAY_ERROR_TEXT])
{
	static char copy[512];
	static char name[] = "gateway";
	static char empty[] = "";
	char *argv[ARGS_MAX + 1] = { name };
	char *save = NULL;
	int argc = 1;

	strcpy(copy, line);
	for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
		argv[argc++] = strcmp(w, "_") == 0 ? empty : w;
	assert_true(argc <= ARGS_MAX);
	error[0] = '\0';
	return gateway_options_parse(o, argc, argv, is_wg_quick, error);
}

static int parse(struct gateway_options *o, const char *line)
{
	char error[GATEWAY_ERROR_TEXT];

	return parse_as(o, line, false, error);
}

static void test_defaults(void **state)
{
	struct gateway_options o;

	assert_int_equal(parse(&o, "wg0"), 0);
	assert_int_equal(o.action, GATEWAY_RUN);
	assert_string_equal(o.ifname, "wg0");
	assert_null(o.config);
	assert_null(o.aead);
	assert_string_equal(o.engine, "auto");
	assert_int_equal(o.n_workers, 0);
	assert_int_equal(o.steer, STEER_INDEX);
	assert_int_equal(o.sqpoll_idle_ms, 0);
	assert_int_equal(o.offloads, OFFLOAD_ALL);
	assert_int_equal(o.log_level, LOG_INFO);
	assert_int_equal(o.sandbox, SANDBOX_STRICT);
	assert_false(o.is_daemon);
	assert_int_equal(o.tun_fd, -1);
	assert_int_equal(o.uapi_fd, -1);
}

static void test_everything(void **state)
{
	struct gateway_options o;

	assert_int_equal(parse(&o,
				 "--config wg.conf --engine=epoll wg%d --no-offload uso,udp-gro "
				 "--aead openssl --log-level debug --sandbox kill --daemon"),
		0);
	assert_string_equal(o.ifname, "wg%d");
	assert_string_equal(o.config, "wg.conf");
	assert_string_equal(o.engine, "epoll");
	assert_string_equal(o.aead, "openssl");
	assert_int_equal(o.offloads, OFFLOAD_ALL & ~(OFFLOAD_USO | OFFLOAD_UDP_GRO));
	assert_int_equal(o.log_level, LOG_DEBUG);
	assert_int_equal(o.sandbox, SANDBOX_KILL);
	assert_true(o.is_daemon);
	assert_int_equal(parse(&o, "--workers 64 --steer rr --engine channels wg0"), 0);
	assert_int_equal(o.n_workers, 64);
	assert_int_equal(o.steer, STEER_RR);
	assert_true(o.has_steer);
	assert_int_equal(parse(&o, "--steer flow wg0"), 0);
	assert_int_equal(o.steer, STEER_FLOW);
	assert_int_equal(parse(&o, "--sandbox off wg0"), 0);
	assert_int_equal(o.sandbox, SANDBOX_OFF);
	assert_int_equal(parse(&o,
				 "--aead ipsec-mb --aead auto --engine auto wg0 "
				 "--no-offload vnet,csum,tso,uso,udp-gso,udp-gro -f"),
		0);
	assert_null(o.aead);
	assert_string_equal(o.engine, "auto");
	assert_int_equal(o.offloads, 0);
	assert_false(o.is_daemon);
	assert_int_equal(parse(&o, "--status wg0"), 0);
	assert_false(o.has_peer);
	assert_int_equal(o.action, GATEWAY_STATUS);
	assert_int_equal(
		parse(&o, "wg0 --peer AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE= --status"), 0);
	assert_int_equal(o.action, GATEWAY_STATUS);
	assert_true(o.has_peer);
	assert_int_equal(o.peer[0], 1);
	assert_int_equal(o.peer[31], 1);
	assert_int_equal(parse(&o, "--help"), 0);
	assert_int_equal(o.action, GATEWAY_HELP);
	/* "--" ends the options. */
	assert_int_equal(parse(&o, "-- --daemon"), 0);
	assert_string_equal(o.ifname, "--daemon");
	assert_false(o.is_daemon);
	assert_int_equal(parse(&o, "abcdefghijklmno"), 0);
}

static void test_wg_quick(void **state)
{
	char error[GATEWAY_ERROR_TEXT];
	struct gateway_options o;

	assert_int_equal(parse_as(&o, "wg0", true, error), 0);
	assert_true(o.is_daemon);
	assert_int_equal(parse_as(&o, "-f wg0", true, error), 0);
	assert_false(o.is_daemon);
	assert_int_equal(parse_as(&o, "--foreground wg0", true, error), 0);
	assert_false(o.is_daemon);
	setenv("WG_PROCESS_FOREGROUND", "1", 1);
	assert_int_equal(parse_as(&o, "wg0", true, error), 0);
	assert_false(o.is_daemon);
	assert_int_equal(parse_as(&o, "--daemon wg0", true, error), 0);
	assert_true(o.is_daemon);
	setenv("WG_PROCESS_FOREGROUND", "0", 1);
	assert_int_equal(parse_as(&o, "wg0", true, error), 0);
	assert_true(o.is_daemon);
	unsetenv("WG_PROCESS_FOREGROUND");
}

static void test_descriptors(void **state)
{
	static const char *const bad[] = { "-1", "x", "3 ", "+3", "2147483648", "0x3" };
	char error[GATEWAY_ERROR_TEXT];
	struct gateway_options o;

	setenv("WG_TUN_FD", "3", 1);
	setenv("WG_UAPI_FD", "4", 1);
	assert_int_equal(parse(&o, "wg0"), 0);
	assert_int_equal(o.tun_fd, 3);
	assert_int_equal(o.uapi_fd, 4);
	setenv("WG_TUN_FD", "", 1);
	assert_int_equal(parse(&o, "wg0"), 0);
	assert_int_equal(o.tun_fd, -1);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		setenv("WG_UAPI_FD", bad[i], 1);
		assert_int_equal(parse_as(&o, "wg0", false, error), -EINVAL);
		assert_non_null(strstr(error, "WG_UAPI_FD: expected"));
	}
	unsetenv("WG_UAPI_FD");
	unsetenv("WG_TUN_FD");
}

struct bad {
	const char *line, *message;
};

static const struct bad bads[] = {
	{ "", "IFNAME: expected the name" },
	{ "wg0 wg1", "IFNAME: expected one name, not 'wg1'" },
	{ "abcdefghijklmnop", "IFNAME: expected 1 to 15" },
	{ "a/b", "IFNAME" },
	{ "a:b", "IFNAME" },
	{ ".", "IFNAME" },
	{ "..", "IFNAME" },
	{ "_", "IFNAME" },
	{ "a\tb", "IFNAME" },
	{ "--bogus wg0", "unknown option --bogus" },
	{ "--bogus=5 wg0", "unknown option --bogus" },
	{ "-x wg0", "unknown option -x" },
	{ "wg0 --config", "--config: expected FILE" },
	{ "wg0 --config=", "--config: expected FILE" },
	{ "wg0 --daemon=yes", "--daemon: expected no value" },
	{ "wg0 --engine steam",
		"--engine: expected one of auto, uring, channels, epoll, blocking, queue, not "
		"'steam'" },
	{ "wg0 --engine _", "--engine: expected one of" },
	{ "wg0 --workers 0", "--workers: expected a number from 1 to 64, not '0'" },
	{ "wg0 --workers 65", "--workers: expected a number from 1 to 64, not '65'" },
	{ "wg0 --workers -1", "--workers: expected a number from 1 to 64, not '-1'" },
	{ "wg0 --workers 2x", "--workers: expected a number" },
	{ "wg0 --workers 18446744073709551617", "--workers: expected a number" },
	{ "wg0 --workers _", "--workers: expected a number" },
	{ "wg0 --workers 2 --steer left", "--steer: expected one of index, rr, flow, not 'left'" },
	{ "wg0 --workers 2 --steer rr --engine epoll",
		"--steer: expected an engine whose workers" },
	{ "wg0 --workers 1 --steer rr", "--steer: expected --workers of 2 or more" },
	{ "wg0 --sqpoll 0 --engine uring", "--sqpoll: expected a number from 1 to 60000, not '0'" },
	{ "wg0 --sqpoll 60001 --engine uring", "--sqpoll: expected a number from 1 to 60000" },
	{ "wg0 --sqpoll 10", "--sqpoll: expected --engine uring as well" },
	{ "wg0 --sqpoll 10 --engine epoll", "--sqpoll: expected --engine uring as well" },
	{ "--status wg0 --workers 2", "--status: expected no other option, not --workers" },
	{ "wg0 --aead aes", "--aead: expected one of auto, ipsec-mb, openssl" },
	{ "wg0 --log-level loud", "--log-level: expected one of" },
	{ "wg0 --sandbox sand", "--sandbox: expected one of" },
	{ "wg0 --sandbox _", "--sandbox: expected one of" },
	{ "--status wg0 --sandbox off", "--status: expected no other option, not --sandbox" },
	{ "wg0 --no-offload", "--no-offload: expected LIST" },
	{ "wg0 --no-offload _", "--no-offload: expected a list" },
	{ "wg0 --no-offload tso,", "--no-offload" },
	{ "wg0 --no-offload tso,gro", "not 'gro'" },
	{ "wg0 --foreground --daemon", "--foreground, --daemon: expected at most one" },
	{ "wg0 --status --daemon", "--status: expected no other option, not --daemon" },
	{ "wg0 --config x --status", "--status: expected no other option, not --config" },
	{ "--status", "IFNAME" },
	{ "wg0 --peer AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "--peer: expected --status" },
	{ "wg0 --status --peer AQEB", "--peer: expected 44 characters" },
	{ "wg0 --status --peer", "--peer: expected KEY" },
	{ "wg0 wg1\n\033[2J", "not 'wg1??[2J' as well" },
	{ "--bog\nus wg0", "unknown option --bog?us" },
};

static void test_mistakes(void **state)
{
	char error[GATEWAY_ERROR_TEXT];
	struct gateway_options o;

	for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
		for (int is_wg_quick = 0; is_wg_quick < 2; is_wg_quick++) {
			assert_int_equal(parse_as(&o, bads[i].line, is_wg_quick, error), -EINVAL);
			if (!strstr(error, bads[i].message))
				fail_msg("'%s' is not in '%s'", bads[i].message, error);
			assert_null(strchr(error, '\n'));
		}
	}
}

static void test_help(void **state)
{
	static const char *const names[] = { "IFNAME", "--config FILE", "--engine", "--workers N",
		"--steer MODE", "--sqpoll MS", "--no-offload", "--aead", "--log-level", "--sandbox",
		"--status", "--peer KEY", "--foreground", "--daemon", "--help" };
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	gateway_options_help(f, false);
	fclose(f);
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		assert_non_null(strstr(text, names[i]));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_wg_quick),
		cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_help),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
