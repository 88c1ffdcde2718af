/* Endpoints and addresses. */
#include "link/link.h"
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct wg_endpoint make(const char *text)
{
	struct wg_endpoint e;
	struct ipport a;

	assert_int_equal(ipport_parse(&a, text, strlen(text)), 0);
	endpoint_from_addr(&e, &a);
	return e;
}

static void round_trip(void **state)
{
	static const char *const texts[] = { "192.0.2.1:51820", "[2001:db8::1]:1",
		"[fe80::1%7]:65535" };
	static const uint8_t zero[24];
	char out[ADDR_TEXT_MAX];

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		struct wg_endpoint e = make(texts[i]);
		struct ipport a;

		assert_memory_equal(e.local, zero, sizeof(zero));
		endpoint_to_addr(&a, &e);
		assert_string_equal(ipport_text(&a, out), texts[i]);
		assert_int_equal(endpoint_family(&e), i > 0);
	}
}

static bool is_same_key(const char *a, const char *b)
{
	struct wg_endpoint ea = make(a), eb = make(b);
	uint8_t ka[16], kb[16];

	endpoint_limit_key(&ea, ka);
	endpoint_limit_key(&eb, kb);
	return !memcmp(ka, kb, sizeof(ka));
}

static void limit_key(void **state)
{
	assert_true(is_same_key("192.0.2.1:1", "192.0.2.1:2"));
	assert_false(is_same_key("192.0.2.1:1", "192.0.2.2:1"));
	assert_true(is_same_key("[2001:db8::1]:1", "[2001:db8::ffff:1]:1"));
	assert_false(is_same_key("[2001:db8::1]:1", "[2001:db8:0:1::1]:1"));
	assert_false(is_same_key("32.1.13.184:1", "[2001:db8::]:1"));
}

static void offload_names(void **state)
{
	char text[64];

	assert_int_equal(offload_by_name("vnet", 4), OFFLOAD_VNET);
	assert_int_equal(offload_by_name("udp-gro,x", 7), OFFLOAD_UDP_GRO);
	assert_int_equal(offload_by_name("udp-gr", 6), 0);
	assert_int_equal(offload_by_name("", 0), 0);
	assert_string_equal(offload_text(OFFLOAD_ALL, text), "vnet csum tso uso udp-gso udp-gro");
	assert_string_equal(offload_text(OFFLOAD_TSO | OFFLOAD_UDP_GSO, text), "tso udp-gso");
	assert_string_equal(offload_text(0, text), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(limit_key),
		cmocka_unit_test(offload_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
