/* What iperf3 writes is understood, and what is no such thing is refused with a reason. */
#include "bench/iperf.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define RECEIVED "\"sum_received\":{\"seconds\":1.5,\"bytes\":3750000000,\"bits_per_second\":2e10}"
#define CPU "\"cpu_utilization_percent\":{\"host_total\":34.5,\"remote_total\":61}"

static bool is_near(double a, double b)
{
	return fabs(a - b) < 1e-9;
}

static void test_result(void **state)
{
	char error[LAB_TEXT_MAX];
	struct iperf_result r;

	assert_int_equal(iperf_parse("{\"start\":{},\"end\":{\"streams\":[],\"sum_sent\":"
				     "{\"bytes\":1,\"bits_per_second\":2}," RECEIVED "," CPU
				     ",\"sender_tcp_congestion\":\"cubic\"}}",
				 &r, error),
		0);
	assert_true(is_near(r.gbps, 20));
	assert_int_equal(r.bytes, 3750000000);
	assert_true(is_near(r.client_cores, 0.345));
	assert_true(is_near(r.server_cores, 0.61));
	assert_string_equal(r.congestion, "cubic");
	/* That is a result too, and so is one without a name for the congestion control. */
	assert_int_equal(iperf_parse("{\"end\":{\"sum_received\":{\"bytes\":0,"
				     "\"bits_per_second\":0}," CPU "}}",
				 &r, error),
		0);
	assert_true(r.gbps == 0);
	assert_int_equal(r.bytes, 0);
	assert_string_equal(r.congestion, "");
}

static void test_error(void **state)
{
	char error[LAB_TEXT_MAX], text[2000], longer[1000];
	struct iperf_result r;

	assert_int_equal(iperf_parse("{\"end\":{},\"error\":\"unable to connect to server: "
				     "Connection refused\"}",
				 &r, error),
		-EIO);
	assert_string_equal(error, "iperf3: unable to connect to server: Connection refused");
	/* Figures beside an error are of a run that was cut short. */
	assert_int_equal(
		iperf_parse("{\"end\":{" RECEIVED "," CPU "},\"error\":\"x\"}", &r, error), -EIO);
	memset(longer, 'y', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	snprintf(text, sizeof(text), "{\"error\":\"%s\"}", longer);
	assert_int_equal(iperf_parse(text, &r, error), -EIO);
	assert_int_equal(strlen(error), LAB_TEXT_MAX - 1);
}

static void test_malformed(void **state)
{
	static const char *const texts[] = { "", " ", "iperf3: error", "{", "{}", "[]", "null",
		"{\"end\":{" RECEIVED "," CPU "}", "{\"end\":{" RECEIVED "}}",
		"{\"end\":{" CPU "}}", "{\"end\":[]}", "{\"end\":{\"sum_received\":7," CPU "}}",
		"{\"end\":{\"sum_received\":{\"bytes\":1}," CPU "}}",
		"{\"end\":{\"sum_received\":{\"bytes\":\"1\",\"bits_per_second\":1}," CPU "}}",
		"{\"end\":{\"sum_received\":{\"bytes\":-1,\"bits_per_second\":1}," CPU "}}",
		"{\"end\":{\"sum_received\":{\"bytes\":1e30,\"bits_per_second\":1}," CPU "}}",
		"{\"end\":{\"sum_received\":{\"bytes\":1,\"bits_per_second\":-1}," CPU "}}",
		"{\"end\":{\"sum_received\":{\"bytes\":1,\"bits_per_second\":nan}," CPU "}}",
		"{\"end\":{" RECEIVED ",\"cpu_utilization_percent\":{\"host_total\":1}}}",
		"{\"end\":{" RECEIVED "," CPU "}} trailing" };
	char error[LAB_TEXT_MAX];
	struct iperf_result r;
	size_t i;

	for (i = 0; i < ARRAY_LEN(texts); i++) {
		error[0] = '\0';
		if (iperf_parse(texts[i], &r, error) != -EPROTO)
			fail_msg("accepted: %s", texts[i]);
		assert_true(strlen(error) > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_result),
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_malformed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
