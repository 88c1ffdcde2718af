/* A server of its own for each run (--one-off), so that a run which failed leaves nothing
 * behind that the next one would meet. */
#include "bench/iperf.h"
#include "bench/rounds.h"
#include "bench/vitals.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	IPERF_PORT = 5201, /* its default */
	IPERF_START_MS = 3000,
	IPERF_GRACE_MS = 15000, /* for connecting 128 streams through a slow tunnel */
	IPERF_OUTPUT_MAX = 1 << 20, /* some 100 KiB with 128 streams */
};

const char *iperf_missing(void)
{
	return lab_has("iperf3") ? NULL : "iperf3 (Debian package iperf3) is not in PATH";
}

/* A number at a path of keys below the object; NAN: it is not there. */
static double number_at(const json_t *j, const char *a, const char *b)
{
	const json_t *v = json_object_get(json_object_get(j, a), b);

	return json_is_number(v) ? json_number_value(v) : NAN;
}

static int understand(const json_t *j, struct iperf_result *out, char error[LAB_TEXT_MAX])
{
	const char *said = json_string_value(json_object_get(j, "error"));
	const json_t *end = json_object_get(j, "end");
	double bits, bytes;

	if (said) {
		snprintf(error, LAB_TEXT_MAX, "iperf3: %s", said);
		return -EIO;
	}
	bits = number_at(end, "sum_received", "bits_per_second");
	bytes = number_at(end, "sum_received", "bytes");
	out->client_cores = number_at(end, "cpu_utilization_percent", "host_total") / 100;
	out->server_cores = number_at(end, "cpu_utilization_percent", "remote_total") / 100;
	/* "Not below" catches NAN too. */
	if (!(bits >= 0) || !(bytes >= 0 && bytes < 0x1p63)) {
		snprintf(error, LAB_TEXT_MAX, "iperf3: no end.sum_received in its JSON");
		return -EPROTO;
	}
	if (!(out->client_cores >= 0) || !(out->server_cores >= 0)) {
		snprintf(error, LAB_TEXT_MAX, "iperf3: no end.cpu_utilization_percent in its JSON");
		return -EPROTO;
	}
	said = json_string_value(json_object_get(end, "sender_tcp_congestion"));
	snprintf(out->congestion, sizeof(out->congestion), "%s", said ? said : "");
	out->gbps = bits * 1e-9;
	out->bytes = (uint64_t)bytes;
	return 0;
}

int iperf_parse(const char *text, struct iperf_result *out, char error[LAB_TEXT_MAX])
{
	json_error_t where;
	json_t *j = json_loads(text, 0, &where);
	int ret;

	*out = (struct iperf_result){ 0 };
	if (!j) {
		snprintf(error, LAB_TEXT_MAX, "iperf3: line %d of its JSON: %.160s", where.line,
			where.text);
		return -EPROTO;
	}
	ret = understand(j, out, error);
	json_decref(j);
	return ret;
}

static int start_server(struct lab *l, int ns)
{
	static const char *const argv[] = { "iperf3", "--server", "--one-off", "-4", NULL };
	const struct timespec step = { .tv_nsec = 2000000 };
	int program = lab_start(l, ns, argv), left;

	for (left = IPERF_START_MS; program >= 0 && left > 0; left -= 2) {
		pid_t pid = lab_pid(l, program);

		if (pid && vitals_listens(pid, IPERF_PORT))
			return program;
		if (!pid || rounds_stopped())
			break;
		nanosleep(&step, NULL);
	}
	if (program < 0)
		return program;
	lab_end(l, program);
	return rounds_stopped() ? -EINTR : -EIO;
}

static int run_client(struct lab *l, const struct iperf_plan *plan, char *text)
{
	char seconds[16], streams[16];
	const char *const argv[] = { "iperf3", "--json", "--interval", "0", "--client",
		plan->server, "--time", seconds, "--parallel", streams, NULL };

	snprintf(seconds, sizeof(seconds), "%u", plan->seconds);
	snprintf(streams, sizeof(streams), "%u", plan->streams);
	return lab_read(l, plan->client_ns, argv, (int)plan->seconds * 1000 + IPERF_GRACE_MS, text,
		IPERF_OUTPUT_MAX);
}

int iperf_run(struct lab *l, const struct iperf_plan *plan, struct iperf_result *out,
	char error[LAB_TEXT_MAX])
{
	char *text = malloc(IPERF_OUTPUT_MAX);
	int server, ret, understood;

	snprintf(error, LAB_TEXT_MAX, "iperf3: no server is listening");
	if (!text)
		return -ENOMEM;
	ret = server = start_server(l, plan->server_ns);
	if (server < 0)
		goto out;
	ret = run_client(l, plan, text);
	lab_end(l, server);
	if (ret < 0)
		snprintf(error, LAB_TEXT_MAX, "%s", lab_error(l));
	/* What went wrong it writes into its JSON. */
	if (!ret || (ret == -EIO && *text)) {
		understood = iperf_parse(text, out, error);
		ret = understood < 0 ? understood : ret;
	}
	if (!ret)
		error[0] = '\0';
out:
	free(text);
	return ret;
}
