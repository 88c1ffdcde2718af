/* Requests of the configuration protocol: what is understood, what is refused
 * and how, cut into any pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/clock.h"
#include "crypto/crypto.h"
#include "gateway/uapi.h"
#include "gateway/uapi_reply.h"
#include "link/link.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEC(n) ((uint64_t)(n)*NSEC_PER_SEC)

#define K1 "0101010101010101010101010101010101010101010101010101010101010101"
#define K2 "0202020202020202020202020202020202020202020202020202020202020202"
#define K3 "0303030303030303030303030303030303030303030303030303030303030303"

/* Feed text in pieces of at most step bytes; the event must come with the last byte. */
static enum uapi_event feed_steps(struct uapi_reader *r, const char *text, size_t step)
{
	size_t len = strlen(text), at = 0;
	enum uapi_event event = UAPI_MORE;

	while (at < len) {
		size_t n = len - at < step ? len - at : step;
		size_t used;

		assert_int_equal(event, UAPI_MORE);
		event = uapi_reader_feed(r, text + at, n, &used);
		assert_true(used <= n);
		at += used;
		if (event == UAPI_FATAL)
			break;
	}
	return event;
}

static enum uapi_event feed(struct uapi_reader *r, const char *text)
{
	return feed_steps(r, text, strlen(text));
}

static void assert_key(const uint8_t *key, uint8_t byte)
{
	for (int i = 0; i < WG_KEY_LEN; i++)
		assert_int_equal(key[i], byte);
}

static const char everything[] =
	"set=1\nprivate_key=" K1 "\nlisten_port=51820\nfwmark=4294967295\nreplace_peers=true\n"
	"public_key=" K2 "\npreshared_key=" K3 "\nendpoint=192.0.2.7:1234\n"
	"persistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=10.1.2.3/16\n"
	"allowed_ip=2001:db8::1/32\nallowed_ip=-10.9.0.0/24\nprotocol_version=1\n"
	"public_key=" K3 "\nremove=true\n"
	"public_key=" K1 "\nupdate_only=true\nendpoint=[2001:db8::9]:65535\n\n";

static void check_everything(const struct gateway_change *c)
{
	const struct wg_peer_change *p = c->wg.peers;
	struct ipport addr;

	assert_true(c->has_listen_port && c->has_fwmark && c->wg.has_private_key);
	assert_true(c->wg.replaces_peers);
	assert_int_equal(c->listen_port, 51820);
	assert_int_equal(c->fwmark, 0xffffffff);
	assert_key(c->wg.private_key, 1);
	assert_int_equal(c->wg.n_peers, 3);
	assert_key(p[0].public_key, 2);
	assert_true(p[0].has_psk && p[0].has_endpoint && p[0].has_keepalive);
	assert_true(p[0].replaces_allowed && !p[0].is_removal && !p[0].is_update_only);
	assert_key(p[0].psk, 3);
	assert_int_equal(p[0].keepalive_s, 25);
	endpoint_to_addr(&addr, &p[0].endpoint);
	assert_int_equal(addr.port, 1234);
	assert_memory_equal(addr.addr.ip, "\xc0\x00\x02\x07", 4);
	assert_int_equal(p[0].n_allowed, 3);
	assert_int_equal(p[0].allowed[0].net.bits, 16);
	assert_memory_equal(p[0].allowed[0].net.addr.ip, "\x0a\x01\x00\x00", 4);
	assert_false(p[0].allowed[1].is_removal);
	assert_int_equal(p[0].allowed[1].net.bits, 32);
	assert_true(p[0].allowed[2].is_removal);
	assert_int_equal(p[0].allowed[2].net.bits, 24);
	assert_key(p[1].public_key, 3);
	assert_true(p[1].is_removal && !p[1].has_psk);
	assert_int_equal(p[1].n_allowed, 0);
	assert_true(p[2].is_update_only && p[2].has_endpoint && !p[2].has_keepalive);
	endpoint_to_addr(&addr, &p[2].endpoint);
	assert_int_equal(addr.port, 65535);
}

static void test_every_key(void **state)
{
	struct uapi_reader r;

	for (size_t step = 1; step < sizeof(everything); step += step < 90 ? 1 : 37) {
		uapi_reader_init(&r);
		assert_int_equal(feed_steps(&r, everything, step), UAPI_SET);
		check_everything(&r.change);
		assert_false(uapi_reader_is_half(&r));
		uapi_reader_fini(&r);
	}
}

static void test_requests_follow_each_other(void **state)
{
	const char *text = "get=1\n\nset=1\nfwmark=0\n\nset=1\n\n";
	size_t at = 0, used;
	struct uapi_reader r;

	uapi_reader_init(&r);
	assert_int_equal(uapi_reader_feed(&r, text, strlen(text), &used), UAPI_GET);
	at += used;
	assert_int_equal(uapi_reader_feed(&r, text + at, strlen(text + at), &used), UAPI_SET);
	assert_true(r.change.has_fwmark);
	at += used;
	assert_int_equal(uapi_reader_feed(&r, text + at, strlen(text + at), &used), UAPI_SET);
	/* Nothing of the request before is left. */
	assert_false(r.change.has_fwmark);
	assert_int_equal(at + used, strlen(text));
	uapi_reader_fini(&r);
}

static void test_sections_keep_their_order(void **state)
{
	struct uapi_reader r;
	const struct wg_peer_change *p;

	uapi_reader_init(&r);
	assert_int_equal(
		feed(&r,
			"set=1\n"
			"public_key=" K1 "\nallowed_ip=10.0.0.0/8\n"
			"public_key=" K2 "\nallowed_ip=10.0.0.0/8\nallowed_ip=10.1.0.0/16\n"
			"public_key=" K1 "\nremove=true\n"
			"public_key=" K1 "\nallowed_ip=11.0.0.0/8\nreplace_allowed_ips=true\n"
			"allowed_ip=12.0.0.0/8\n\n"),
		UAPI_SET);
	p = r.change.wg.peers;
	assert_int_equal(r.change.wg.n_peers, 4);
	assert_key(p[0].public_key, 1);
	assert_int_equal(p[0].n_allowed, 1);
	assert_key(p[1].public_key, 2);
	assert_int_equal(p[1].n_allowed, 2);
	assert_int_equal(p[1].allowed[1].net.bits, 16);
	assert_true(p[2].is_removal);
	assert_key(p[3].public_key, 1);
	assert_false(p[3].is_removal);
	/* replace_allowed_ips empties the list so far. */
	assert_int_equal(p[3].n_allowed, 1);
	assert_int_equal(p[3].allowed[0].net.addr.ip[0], 12);
	uapi_reader_fini(&r);
}

struct bad {
	const char *lines; /* after set=1 */
	int code;
	const char *text; /* must be in the message */
};

static const struct bad bads[] = {
	{ "private_key=" K1 "0\n", -EINVAL, "line 2: private_key: expected 64 hex digits" },
	{ "private_key=010\n", -EINVAL, "private_key" },
	{ "private_key=\n", -EINVAL, "private_key" },
	{ "private_key=zz01010101010101010101010101010101010101010101010101010101010101\n", -EINVAL,
		"private_key" },
	{ "fwmark=1\nlisten_port=65536\n", -EINVAL, "line 3: listen_port: expected a port" },
	{ "listen_port=-1\n", -EINVAL, "listen_port" },
	{ "listen_port=+1\n", -EINVAL, "listen_port" },
	{ "listen_port= 1\n", -EINVAL, "listen_port" },
	{ "listen_port=1 \n", -EINVAL, "listen_port" },
	{ "listen_port=1\r\n", -EINVAL, "listen_port" },
	{ "listen_port=0x10\n", -EINVAL, "listen_port" },
	{ "listen_port=\n", -EINVAL, "listen_port" },
	{ "listen_port=18446744073709551617\n", -EINVAL, "listen_port" },
	{ "fwmark=4294967296\n", -EINVAL, "fwmark" },
	{ "fwmark=0x1\n", -EINVAL, "fwmark" },
	{ "replace_peers=false\n", -EINVAL, "replace_peers: expected true" },
	{ "protocol_version=2\n", -EINVAL, "protocol_version: expected 1" },
	{ "public_key=" K1 "\nendpoint=192.0.2.1\n", -EINVAL, "line 3: endpoint" },
	{ "public_key=" K1 "\nendpoint=host.example:1\n", -EINVAL, "endpoint" },
	{ "public_key=" K1 "\nendpoint=192.0.2.1:65536\n", -EINVAL, "endpoint" },
	{ "public_key=" K1 "\nallowed_ip=10.0.0.0/33\n", -EINVAL, "allowed_ip" },
	{ "public_key=" K1 "\nallowed_ip=--10.0.0.0/8\n", -EINVAL, "allowed_ip" },
	{ "public_key=" K1 "\nallowed_ip=\n", -EINVAL, "allowed_ip" },
	{ "public_key=" K1 "\nallowed_ip=-\n", -EINVAL, "allowed_ip" },
	{ "public_key=" K1 "\nremove=1\n", -EINVAL, "remove: expected true" },
	{ "public_key=" K1 "\nupdate_only=\n", -EINVAL, "update_only" },
	{ "public_key=" K1 "\nreplace_allowed_ips=yes\n", -EINVAL, "replace_allowed_ips" },
	{ "public_key=" K1 "\npersistent_keepalive_interval=65536\n", -EINVAL, "keepalive" },
	{ "public_key=" K1 "\npreshared_key=" K2 "ff\n", -EINVAL, "preshared_key" },
	{ "public_key=" K1 "\nlisten_port=1\n", -EINVAL, "before the first public_key" },
	{ "public_key=" K1 "\nreplace_peers=true\n", -EINVAL, "before the first public_key" },
	{ "allowed_ip=10.0.0.0/8\n", -EINVAL, "after the first public_key" },
	{ "remove=true\n", -EINVAL, "after the first public_key" },
	{ "color=red\n", -EINVAL, "unknown key 'color'" },
	{ "=1\n", -EINVAL, "unknown key" },
	{ "private_keys=" K1 "\n", -EINVAL, "unknown key 'private_keys'" },
	{ "listen_port\n", -EPROTO, "expected KEY=VALUE" },
	{ "get=1\n", -EINVAL, "unknown key 'get'" },
};

static void test_bad_values(void **state)
{
	char text[1024];

	for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
		struct uapi_reader r;

		uapi_reader_init(&r);
		snprintf(text, sizeof(text), "set=1\n%sfwmark=x\nnonsense\n\n", bads[i].lines);
		assert_int_equal(feed(&r, text), UAPI_BAD);
		assert_int_equal(r.error.code, bads[i].code);
		assert_non_null(strstr(r.error.text, bads[i].text));
		assert_null(strchr(r.error.text, '\n'));
		/* The first error counts, and the connection stays usable. */
		assert_int_equal(feed(&r, everything), UAPI_SET);
		check_everything(&r.change);
		uapi_reader_fini(&r);
	}
}

static void test_good_input_going_bad(void **state)
{
	size_t len = strlen(everything);
	char *text = strdup(everything);

	/* Every byte of a good request, changed to one that no value and no key has. */
	for (size_t i = 0; i < len - 1; i++) {
		struct uapi_reader r;
		enum uapi_event event;
		size_t used;

		text[i] = '!';
		uapi_reader_init(&r);
		event = uapi_reader_feed(&r, text, len, &used);
		assert_true(event == UAPI_BAD || event == UAPI_FATAL || event == UAPI_MORE);
		/* The only change that leaves a request open is that of its last newline but one.
		 */
		assert_true(event != UAPI_MORE || i == len - 2);
		uapi_reader_fini(&r);
		text[i] = everything[i];
	}
	free(text);
}

static void test_messages_keep_secrets(void **state)
{
	static const char *const lines[] = {
		"private_key=" K3 "f\n",
		"private_key " K3 "\n",
		K3 "=\n",
		"public_key=" K1 "\npreshared_key=x" K3 "\n",
		"030303030303030303030303=\n",
		"yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n",
		"secretsecretsecretsecretsecretsecretsecrets=\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		struct uapi_reader r;
		char text[512];

		uapi_reader_init(&r);
		snprintf(text, sizeof(text), "set=1\n%s\n", lines[i]);
		assert_int_equal(feed(&r, text), UAPI_BAD);
		assert_null(strstr(r.error.text, "0303"));
		assert_null(strstr(r.error.text, "yAnz"));
		assert_null(strstr(r.error.text, "secretsecret"));
		uapi_reader_fini(&r);
	}
}

static void test_out_of_step(void **state)
{
	static const char *const firsts[] = { "\n", "GET / HTTP/1.1\r\n", "get=2\n", "set=0\n",
		"get=1 \n", "xyz\n" };
	struct uapi_reader r;
	size_t used;

	for (size_t i = 0; i < ARRAY_LEN(firsts); i++) {
		uapi_reader_init(&r);
		assert_int_equal(feed(&r, firsts[i]), UAPI_FATAL);
		assert_int_equal(r.error.code, -EPROTO);
		/* Deaf from now on, to good requests as well. */
		assert_int_equal(uapi_reader_feed(&r, "get=1\n\n", 7, &used), UAPI_MORE);
		assert_int_equal(used, 7);
		uapi_reader_fini(&r);
	}
	uapi_reader_init(&r);
	assert_int_equal(feed(&r, "get=1\nfwmark=1\n\n"), UAPI_BAD);
	assert_int_equal(feed(&r, "get=1\n\n"), UAPI_GET);
	uapi_reader_fini(&r);
}

static void test_endless_line(void **state)
{
	char *text = malloc(UAPI_LINE_MAX + 1);
	struct uapi_reader r;
	size_t used;

	memset(text, 'a', UAPI_LINE_MAX + 1);
	/* As long as allowed: an ordinary error. */
	uapi_reader_init(&r);
	assert_int_equal(feed(&r, "set=1\n"), UAPI_MORE);
	assert_int_equal(uapi_reader_feed(&r, text, UAPI_LINE_MAX, &used), UAPI_MORE);
	assert_int_equal(feed(&r, "\n\n"), UAPI_BAD);
	/* One byte more, at once and byte by byte. */
	assert_int_equal(feed(&r, "set=1\n"), UAPI_MORE);
	assert_int_equal(uapi_reader_feed(&r, text, UAPI_LINE_MAX + 1, &used), UAPI_FATAL);
	assert_int_equal(r.error.code, -E2BIG);
	uapi_reader_fini(&r);
	uapi_reader_init(&r);
	for (int i = 0; i < UAPI_LINE_MAX; i++)
		assert_int_equal(uapi_reader_feed(&r, "a", 1, &used), UAPI_MORE);
	assert_int_equal(uapi_reader_feed(&r, "a", 1, &used), UAPI_FATAL);
	uapi_reader_fini(&r);
	free(text);
}

static void test_endless_request(void **state)
{
	enum { LINES = 4096 };
	static const char line[] = "replace_peers=true\n";
	char *block = malloc(LINES * (sizeof(line) - 1));
	enum uapi_event event = UAPI_MORE;
	struct uapi_reader r;
	uint64_t sum = 0;

	for (int i = 0; i < LINES; i++)
		memcpy(block + i * (sizeof(line) - 1), line, sizeof(line) - 1);
	uapi_reader_init(&r);
	assert_int_equal(feed(&r, "set=1\n"), UAPI_MORE);
	while (event == UAPI_MORE && sum < 2ULL * UAPI_REQUEST_MAX) {
		size_t used;

		event = uapi_reader_feed(&r, block, LINES * (sizeof(line) - 1), &used);
		sum += used;
	}
	assert_int_equal(event, UAPI_FATAL);
	assert_int_equal(r.error.code, -E2BIG);
	assert_true(sum <= UAPI_REQUEST_MAX);
	uapi_reader_fini(&r);
	free(block);
}

static void test_too_many_sections(void **state)
{
	enum uapi_event event = UAPI_MORE;
	struct uapi_reader r;
	size_t used;

	uapi_reader_init(&r);
	assert_int_equal(feed(&r, "set=1\n"), UAPI_MORE);
	for (int i = 0; i < CHANGE_PEERS_MAX; i++)
		event = uapi_reader_feed(&r, "public_key=" K1 "\n", 76, &used);
	assert_int_equal(event, UAPI_MORE);
	assert_int_equal(r.state, UAPI_S_SET);
	assert_int_equal(feed(&r, "public_key=" K1 "\n\n"), UAPI_BAD);
	assert_int_equal(r.error.code, -E2BIG);
	uapi_reader_fini(&r);
}

static void test_half_request(void **state)
{
	struct uapi_reader r;

	uapi_reader_init(&r);
	assert_int_equal(uapi_reader_end(&r), UAPI_MORE);
	assert_int_equal(feed(&r, "se"), UAPI_MORE);
	assert_true(uapi_reader_is_half(&r));
	assert_int_equal(uapi_reader_end(&r), UAPI_FATAL);
	uapi_reader_fini(&r);

	uapi_reader_init(&r);
	assert_int_equal(feed(&r, "set=1\nlisten_port=1\n"), UAPI_MORE);
	assert_true(uapi_reader_is_half(&r));
	assert_int_equal(uapi_reader_end(&r), UAPI_FATAL);
	assert_int_equal(r.error.code, -EPROTO);
	assert_non_null(strstr(r.error.text, "line 3"));
	uapi_reader_fini(&r);

	uapi_reader_init(&r);
	assert_int_equal(feed(&r, "set=1\n\n"), UAPI_SET);
	assert_int_equal(uapi_reader_end(&r), UAPI_MORE);
	uapi_reader_fini(&r);
}

enum { MANY_PEERS = 100000, MANY_ALLOWED = 4 };

static void put_many(struct uapi_text *t, unsigned n)
{
	uapi_put(t, "set=1\nreplace_peers=true\n");
	for (unsigned i = 0; i < n; i++) {
		uapi_put(t,
			"public_key=%064x\npreshared_key=" K1 "\nendpoint=[2001:db8::%x]:51820\n"
			"replace_allowed_ips=true\n",
			i + 1, i & 0xffff);
		for (unsigned j = 0; j < MANY_ALLOWED; j++)
			uapi_put(t, "allowed_ip=10.%u.%u.%u/32\n", j, i >> 8 & 255, i & 255);
	}
	uapi_put(t, "\n");
}

static uint64_t parse_many(unsigned n)
{
	struct uapi_reader r;
	struct uapi_text t;
	uint64_t start, took;
	size_t used;

	uapi_text_init(&t);
	put_many(&t, n);
	assert_false(t.has_failed);
	uapi_reader_init(&r);
	start = clock_now_ns();
	assert_int_equal(uapi_reader_feed(&r, t.p, t.len, &used), UAPI_SET);
	took = clock_now_ns() - start;
	assert_int_equal(used, t.len);
	assert_int_equal(r.change.wg.n_peers, n);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(r.change.wg.peers[i].n_allowed, MANY_ALLOWED);
		assert_int_equal(r.change.wg.peers[i].allowed[1].net.addr.ip[3], i & 255);
	}
	uapi_reader_fini(&r);
	uapi_text_fini(&t);
	return took;
}

static void test_many_peers(void **state)
{
	uint64_t few = parse_many(MANY_PEERS / 10);
	uint64_t many = parse_many(MANY_PEERS);

	print_message("%d peers with %d addresses: %.0f ms (a tenth of them: %.0f ms)\n",
		MANY_PEERS, MANY_ALLOWED, (double)many / 1e6, (double)few / 1e6);
	/* Linear would be 10, quadratic 100. */
	assert_true(many < 40 * few + SEC(1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_key),
		cmocka_unit_test(test_requests_follow_each_other),
		cmocka_unit_test(test_sections_keep_their_order),
		cmocka_unit_test(test_bad_values),
		cmocka_unit_test(test_good_input_going_bad),
		cmocka_unit_test(test_messages_keep_secrets),
		cmocka_unit_test(test_out_of_step),
		cmocka_unit_test(test_endless_line),
		cmocka_unit_test(test_endless_request),
		cmocka_unit_test(test_too_many_sections),
		cmocka_unit_test(test_half_request),
		cmocka_unit_test(test_many_peers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
