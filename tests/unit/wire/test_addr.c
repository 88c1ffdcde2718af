/* addr.h: what is accepted and how it reads back; what is refused. Every text
 * is also tried without a terminator behind it. */
#include "wire/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <cmocka.h>

struct text_pair {
	const char *in;
	const char *out; /* NULL: refused */
};

/* An exact copy on the heap: reading one byte too many is seen by ASan. */
static char *exact(const char *text)
{
	size_t len = strlen(text);
	char *p = malloc(len ? len : 1);

	assert_non_null(p);
	memcpy(p, text, len);
	return p;
}

static void addresses(void **state)
{
	static const struct text_pair cases[] = {
		{ "192.0.2.1", "192.0.2.1" },
		{ "0.0.0.0", "0.0.0.0" },
		{ "255.255.255.255", "255.255.255.255" },
		{ "::", "::" },
		{ "2001:DB8:0::1", "2001:db8::1" },
		{ "::ffff:192.0.2.1", "::ffff:192.0.2.1" },
		{ "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255",
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" },
		{ "", NULL },
		{ "1", NULL },
		{ "1.2.3", NULL },
		{ "1.2.3.4.5", NULL },
		{ "1.2.3.256", NULL },
		{ "1.2.3.4 ", NULL },
		{ " 1.2.3.4", NULL },
		{ "-1.2.3.4", NULL },
		{ "1.2.3.-4", NULL },
		{ "0x1.2.3.4", NULL },
		{ "1.2.3.4\n", NULL },
		{ ":", NULL },
		{ ":::", NULL },
		{ "1::2::3", NULL },
		{ "2001:db8::g", NULL },
		{ "2001:db8::12345", NULL },
		{ "1:2:3:4:5:6:7:8:9", NULL },
		{ "fe80::1%2", NULL },
		{ "[::1]", NULL },
		{ "localhost", NULL },
		{ "1.2.3.4/32", NULL },
		{ "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", NULL },
	};
	char text[ADDR_TEXT_MAX], *p;
	struct ipaddr a;
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		p = exact(cases[i].in);
		assert_int_equal(
			ipaddr_parse(&a, p, strlen(cases[i].in)), cases[i].out ? 0 : -EINVAL);
		free(p);
		if (cases[i].out)
			assert_string_equal(ipaddr_text(&a, text), cases[i].out);
	}
	assert_int_equal(ipaddr_parse(&a, "1.2.3.4\0.5", 10), -EINVAL);
	assert_int_equal(ipaddr_parse(&a, "1.2.3.4\0", 8), -EINVAL);
	assert_int_equal(ipaddr_parse(&a, "1.2.3.45", 7), 0);
	assert_string_equal(ipaddr_text(&a, text), "1.2.3.4");
	assert_int_equal(a.family, AF_INET);
	for (i = 4; i < 16; i++)
		assert_int_equal(a.ip[i], 0);
}

static void prefixes(void **state)
{
	static const struct text_pair cases[] = {
		{ "192.0.2.0/24", "192.0.2.0/24" },
		{ "192.0.2.255/24", "192.0.2.0/24" },
		{ "192.0.2.255/25", "192.0.2.128/25" },
		{ "255.255.255.255/0", "0.0.0.0/0" },
		{ "255.255.255.255/1", "128.0.0.0/1" },
		{ "255.255.255.255/31", "255.255.255.254/31" },
		{ "255.255.255.255/32", "255.255.255.255/32" },
		{ "10.1.2.3", "10.1.2.3/32" },
		{ "10.1.2.3/08", "10.0.0.0/8" },
		{ "2001:db8::1", "2001:db8::1/128" },
		{ "2001:db8:ffff::1/33", "2001:db8:8000::/33" },
		{ "ffff::1/127", "ffff::/127" },
		{ "ffff::1/0", "::/0" },
		{ "ffff::1/128", "ffff::1/128" },
		{ "10.1.2.3/", NULL },
		{ "10.1.2.3/33", NULL },
		{ "10.1.2.3/-1", NULL },
		{ "10.1.2.3/+1", NULL },
		{ "10.1.2.3/ 8", NULL },
		{ "10.1.2.3/8 ", NULL },
		{ "10.1.2.3/8/8", NULL },
		{ "10.1.2.3/0x8", NULL },
		{ "10.1.2.3/255.0.0.0", NULL },
		{ "10.1.2.3/4294967304", NULL },
		{ "10.1.2.3/18446744073709551624", NULL },
		{ "10.1.2/8", NULL },
		{ "/8", NULL },
		{ "", NULL },
		{ "::/129", NULL },
		{ "::/256", NULL },
		{ "-10.0.0.0/8", NULL },
	};
	char text[ADDR_TEXT_MAX], *p;
	struct prefix x;
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		p = exact(cases[i].in);
		assert_int_equal(
			prefix_parse(&x, p, strlen(cases[i].in)), cases[i].out ? 0 : -EINVAL);
		free(p);
		if (cases[i].out)
			assert_string_equal(prefix_text(&x, text), cases[i].out);
	}
}

static void endpoints(void **state)
{
	static const struct text_pair cases[] = {
		{ "192.0.2.1:51820", "192.0.2.1:51820" },
		{ "192.0.2.1:0", "192.0.2.1:0" },
		{ "192.0.2.1:65535", "192.0.2.1:65535" },
		{ "[2001:db8::1]:51820", "[2001:db8::1]:51820" },
		{ "[fe80::1%7]:9", "[fe80::1%7]:9" },
		{ "[fe80::1%4294967295]:9", "[fe80::1%4294967295]:9" },
		{ "[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.1]:1" },
		{ "192.0.2.1", NULL },
		{ "192.0.2.1:", NULL },
		{ "192.0.2.1:65536", NULL },
		{ "192.0.2.1:4295019116", NULL },
		{ "192.0.2.1:-1", NULL },
		{ "192.0.2.1:+1", NULL },
		{ "192.0.2.1: 1", NULL },
		{ "192.0.2.1:1 ", NULL },
		{ "192.0.2.1:1x", NULL },
		{ "192.0.2.1:00000000001", NULL },
		{ ":1", NULL },
		{ "", NULL },
		{ ":", NULL },
		{ "[]:1", NULL },
		{ "[", NULL },
		{ "]:1", NULL },
		{ "[:1", NULL },
		{ "[::1]", NULL },
		{ "[::1]:", NULL },
		{ "[::1]1", NULL },
		{ "[::1]:1:1", NULL },
		{ "[::1:1", NULL },
		{ "::1:1", NULL },
		{ "2001:db8::1:51820", NULL },
		{ "[192.0.2.1]:1", NULL },
		{ "[[::1]]:1", NULL },
		{ "[fe80::1%]:1", NULL },
		{ "[fe80::1%0]:1", NULL },
		{ "[fe80::1%4294967296]:1", NULL },
		{ "[fe80::1%no-such-link]:1", NULL },
		{ "[fe80::1%a-name-longer-than-any-interface]:1", NULL },
		{ "[fe80::1%1%1]:1", NULL },
		{ "192.0.2.1%1:1", NULL },
		{ "localhost:1", NULL },
	};
	char text[ADDR_TEXT_MAX], *p;
	struct ipport e;
	size_t i;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		p = exact(cases[i].in);
		assert_int_equal(
			ipport_parse(&e, p, strlen(cases[i].in)), cases[i].out ? 0 : -EINVAL);
		free(p);
		if (cases[i].out)
			assert_string_equal(ipport_text(&e, text), cases[i].out);
	}
}

static void a_scope_may_be_a_name(void **state)
{
	struct ipport e;

	if (!if_nametoindex("lo"))
		skip();
	assert_int_equal(ipport_parse(&e, "[fe80::1%lo]:5", 14), 0);
	assert_int_equal(e.scope, if_nametoindex("lo"));
	assert_int_equal(e.port, 5);
}

static void the_longest_text_fits(void **state)
{
	static const char in[] = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535";
	char text[ADDR_TEXT_MAX];
	struct ipport e;

	assert_int_equal(ipport_parse(&e, in, strlen(in)), 0);
	assert_string_equal(ipport_text(&e, text), in);
}

static void text_is_what_the_library_writes(void **state)
{
	char want[ADDR_TEXT_MAX], got[ADDR_TEXT_MAX];
	struct ipaddr a = { .family = AF_INET };

	for (unsigned i = 0; i < 1024; i++) {
		a.ip[i / 256] = (uint8_t)i;
		a.ip[3 - i / 256] ^= (uint8_t)(i * 7);
		assert_non_null(inet_ntop(AF_INET, a.ip, want, sizeof(want)));
		assert_string_equal(ipaddr_text(&a, got), want);
	}
}

static void no_family_is_no_address(void **state)
{
	struct ipport e = { 0 };
	char text[ADDR_TEXT_MAX];

	assert_string_equal(ipaddr_text(&e.addr, text), "(none)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(addresses),
		cmocka_unit_test(prefixes),
		cmocka_unit_test(endpoints),
		cmocka_unit_test(a_scope_may_be_a_name),
		cmocka_unit_test(the_longest_text_fits),
		cmocka_unit_test(text_is_what_the_library_writes),
		cmocka_unit_test(no_family_is_no_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
