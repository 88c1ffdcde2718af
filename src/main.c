/* Finds the command and hands over. What each command accepts is in its own
 * folder; a mistake on any command line is one line on standard error and exit
 * status 2. */
#include "base/options.h"
#include "bench/bench.h"
#include "crypto/crypto.h"
#include "gateway/gateway.h"
#include <stdio.h>
#include <string.h>

enum {
	EXIT_USAGE = 2,
	OPT_QUICK = OPTION_LONG_ONLY,
	OPT_JSON,
};

static const struct option_spec bench_specs[] = {
	{ OPT_QUICK, "quick", NULL, "fewer and shorter rounds" },
	{ OPT_JSON, "json", "FILE", "write the figures to FILE as JSON" },
	{ 'h', "help", NULL, "show this" },
};

static int usage_error(const char *command, const char *text)
{
	fprintf(stderr, "%s: %s\n", command, text);
	return EXIT_USAGE;
}

static int run_gateway(int argc, char **argv, bool is_wg_quick)
{
	struct gateway_options o;
	char error[GATEWAY_ERROR_TEXT];

	if (gateway_options_parse(&o, argc, argv, is_wg_quick, error))
		return usage_error(is_wg_quick ? "penstock-wg" : "penstock gateway", error);
	switch (o.action) {
	case GATEWAY_HELP:
		gateway_options_help(stdout, is_wg_quick);
		return 0;
	case GATEWAY_STATUS:
		return gateway_status(o.ifname, o.has_peer ? o.peer : NULL, stdout);
	case GATEWAY_RUN:
		break;
	}
	return gateway_main(&o);
}

static int bench_help(void)
{
	printf("usage: penstock bench NAME [options]\n\n");
	options_help(stdout, bench_specs, ARRAY_LEN(bench_specs));
	printf("\nNAME is one of:\n");
	bench_list(stdout);
	return 0;
}

static int run_bench(int argc, char **argv)
{
	struct bench_options b = { .penstock = "/proc/self/exe" };
	struct options o;
	char **operands;
	int id, n;

	options_init(&o, argc, argv, bench_specs, ARRAY_LEN(bench_specs));
	while ((id = options_next(&o)) != OPTION_END) {
		if (id == OPTION_BAD)
			return usage_error("penstock bench", o.error);
		if (id == 'h')
			return bench_help();
		if (id == OPT_QUICK)
			b.is_quick = true;
		else
			b.json_path = o.value;
	}
	if (b.json_path && !*b.json_path)
		return usage_error("penstock bench", "--json: expected FILE");
	n = options_operands(&o, &operands);
	if (n > 1)
		return usage_error("penstock bench", "NAME: expected one");
	b.name = n ? operands[0] : NULL;
	return bench_main(&b);
}

static int help(FILE *out)
{
	fprintf(out,
		"usage: penstock COMMAND [options]\n\n"
		"  gateway IFNAME   WireGuard-compatible VPN gateway in user space\n"
		"  bench NAME       measure what this project claims, on this machine\n\n"
		"  --help           show this; penstock COMMAND --help shows a command's options\n"
		"  --version        show version and back ends\n");
	return 0;
}

static int version(void)
{
	printf("penstock " PENSTOCK_VERSION "\n");
	printf("AEAD back end: %s\n", crypto_init(NULL) ? "none works here" : crypto_aead_name());
#if defined(__clang__)
	printf("compiler: %s\n", __VERSION__);
#else
	printf("compiler: gcc %s\n", __VERSION__);
#endif
	return 0;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };

	if (argc > 0 && strcmp(base_name(argv[0]), "penstock-wg") == 0)
		return run_gateway(argc, argv, true);
	if (argc < 2)
		return usage_error("penstock", "expected a command; --help shows what there is");
	if (strcmp(argv[1], "gateway") == 0)
		return run_gateway(argc - 1, argv + 1, false);
	if (strcmp(argv[1], "bench") == 0)
		return run_bench(argc - 1, argv + 1);
	if (strcmp(argv[1], "--help") && strcmp(argv[1], "-h") && strcmp(argv[1], "--version")) {
		options_bad(&o, "unknown %s '%.24s'; --help shows what there is",
			argv[1][0] == '-' ? "option" : "command", argv[1]);
		return usage_error("penstock", o.error);
	}
	if (argc > 2)
		return usage_error("penstock", "expected nothing after --help or --version");
	return strcmp(argv[1], "--version") == 0 ? version() : help(stdout);
}
