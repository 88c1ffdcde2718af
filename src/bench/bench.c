/* Finds the bench, refuses what cannot work before anything runs, catches the
 * signals that stop it and hands the report on. Nothing that the runs open or
 * start outlives the process, so stopping leaves nothing. */
#include "bench/bench.h"
#include "bench/rounds.h"
#include "bench/scenario.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

static const struct scenario scenarios[] = {
	{ "engines", "packets per CPU second, system calls and latency of each engine; two workers",
		engines_run },
	{ "gateway", "TCP through two gateways: every engine, wireguard-go, the bare link",
		gateways_run },
	{ "handshakes", "handshakes answered per second and core; bursts, floods and forgeries",
		handshakes_run },
	{ "readers", "ways to read UDP sockets: datagrams per CPU second of each", readers_run },
	{ "tunnels",
		"100,000 tunnels through a gateway; the data path in memory, the ciphers alone",
		tunnels_run },
};

static const struct scenario *find(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(scenarios); i++) {
		if (!strcmp(scenarios[i].name, name))
			return &scenarios[i];
	}
	return NULL;
}

void bench_list(FILE *out)
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(scenarios); i++)
		fprintf(out, "  %-12s %s\n", scenarios[i].name, scenarios[i].what);
}

static void on_signal(int sig)
{
	rounds_stop(sig);
}

static const int stop_signals[] = { SIGINT, SIGTERM };

static void catch_signals(struct sigaction old[ARRAY_LEN(stop_signals)])
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	size_t i;

	for (i = 0; i < ARRAY_LEN(stop_signals); i++)
		sigaction(stop_signals[i], &sa, &old[i]);
}

static void restore_signals(const struct sigaction old[ARRAY_LEN(stop_signals)])
{
	size_t i;

	for (i = 0; i < ARRAY_LEN(stop_signals); i++)
		sigaction(stop_signals[i], &old[i], NULL);
}

static int finish(const struct report *r, const char *json_path)
{
	int ret;

	report_print(r, stdout);
	if (fflush(stdout) == EOF) {
		fprintf(stderr, "penstock bench: standard output: %s\n", strerror(errno));
		return EXIT_FAILURE;
	}
	if (!json_path)
		return EXIT_SUCCESS;
	ret = report_json_write(r, json_path);
	if (!ret)
		return EXIT_SUCCESS;
	fprintf(stderr, "penstock bench: --json %s: %s\n", json_path, strerror(-ret));
	return EXIT_FAILURE;
}

static int run(const struct scenario *sc, struct report *r, const struct bench_options *o)
{
	struct sigaction old[ARRAY_LEN(stop_signals)];
	struct progress progress;
	struct scene scene = { r, &progress, o->is_quick, o->penstock };
	int ret;

	progress_init(&progress);
	rounds_resume();
	catch_signals(old);
	ret = sc->run(&scene);
	progress_clear(&progress);
	restore_signals(old);
	if (rounds_stopped()) {
		fprintf(stderr, "penstock bench: stopped, nothing was written\n");
		return EXIT_SIGNAL + rounds_stopped();
	}
	if (ret < 0) {
		fprintf(stderr, "penstock bench: %s: %s\n", sc->name, strerror(-ret));
		return EXIT_FAILURE;
	}
	return finish(r, o->json_path);
}

int bench_main(const struct bench_options *o)
{
	const struct scenario *sc = o->name ? find(o->name) : NULL;
	struct report *r;
	int ret;

	if (!sc) {
		fprintf(stderr, "penstock bench: NAME: expected one of the following%s%s\n",
			o->name ? ", not " : "", o->name ? o->name : "");
		bench_list(stderr);
		return EXIT_USAGE;
	}
	ret = o->json_path ? report_json_probe(o->json_path) : 0;
	if (ret < 0) {
		fprintf(stderr,
			"penstock bench: --json %s: expected a file that can be written: %s\n",
			o->json_path, strerror(-ret));
		return EXIT_USAGE;
	}
	ret = report_create(&r, sc->name, o->is_quick);
	if (ret < 0) {
		fprintf(stderr, "penstock bench: %s\n", strerror(-ret));
		return EXIT_FAILURE;
	}
	ret = run(sc, r, o);
	report_destroy(r);
	return ret;
}
