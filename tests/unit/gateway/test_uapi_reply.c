/* Replies of the configuration protocol: their lines; the state of a real device
 * after requests; and that a reply is the same into whatever pieces it is cut. */
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
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEC(n) ((uint64_t)(n)*NSEC_PER_SEC)

#define K1 "0101010101010101010101010101010101010101010101010101010101010101"
#define K2 "0202020202020202020202020202020202020202020202020202020202020202"
#define K3 "0303030303030303030303030303030303030303030303030303030303030303"

/* ---- Lines. */

static void test_reply(void **state)
{
	static const struct prefix nets[] = {
		{ { 2 /* AF_INET */, { 10, 1 } }, 16 },
		{ { 10 /* AF_INET6 */, { 0x20, 0x01, 0x0d, 0xb8 } }, 32 },
	};
	struct wg_info info = { .has_private_key = true };
	struct wg_peer_info peer = { .keepalive_s = 25,
		.rx_bytes = UINT64_MAX,
		.tx_bytes = 7,
		.last_handshake_wall_ns = 1700000000000000005ULL,
		.has_psk = true,
		.has_endpoint = true,
		.allowed = nets,
		.n_allowed = 2 };
	struct ipport addr;
	struct uapi_text t;

	memset(info.private_key, 1, WG_KEY_LEN);
	memset(peer.public_key, 2, WG_KEY_LEN);
	memset(peer.psk, 3, WG_KEY_LEN);
	assert_int_equal(ipport_parse(&addr, "[2001:db8::9]:51820", 19), 0);
	endpoint_from_addr(&peer.endpoint, &addr);
	uapi_text_init(&t);
	uapi_put_device(&t, &info, 51820, 0xffffffff);
	peer.drops[WG_OK] = 9;
	peer.drops[WG_DROP_REPLAY] = 3;
	uapi_put_peer(&t, &peer);
	for (size_t i = 0; i < peer.n_allowed; i++)
		uapi_put_allowed(&t, &peer.allowed[i]);
	assert_string_equal(t.p,
		"private_key=" K1 "\nlisten_port=51820\nfwmark=4294967295\n"
		"public_key=" K2 "\npreshared_key=" K3 "\nprotocol_version=1\n"
		"endpoint=[2001:db8::9]:51820\nlast_handshake_time_sec=1700000000\n"
		"last_handshake_time_nsec=5\ntx_bytes=7\nrx_bytes=18446744073709551615\n"
		"persistent_keepalive_interval=25\ndrop_replay=3\n"
		"allowed_ip=10.1.0.0/16\nallowed_ip=2001:db8::/32\n");
	uapi_text_fini(&t);
	assert_null(t.p);
}

static void test_reply_of_nothing(void **state)
{
	struct wg_info info = { 0 };
	struct wg_peer_info peer = { 0 };
	struct uapi_text t;

	uapi_text_init(&t);
	uapi_put_device(&t, &info, 0, 0);
	assert_int_equal(t.len, 0);
	uapi_put_peer(&t, &peer);
	assert_null(strstr(t.p, "endpoint="));
	assert_null(strstr(t.p, "allowed_ip="));
	assert_non_null(strstr(t.p, "persistent_keepalive_interval=0\n"));
	uapi_text_fini(&t);
}

static void test_reply_drops(void **state)
{
	uint64_t drops[WG_DROP_N] = { [WG_DROP_REPLAY] = 5, [WG_OK] = 9 };
	struct uapi_text t;

	uapi_text_init(&t);
	uapi_put_drops(&t, drops);
	assert_string_equal(t.p, "drop_replay=5\n");
	uapi_text_fini(&t);
}

/* ---- Requests, a real device, and its reply. */

static void no_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
}

static void no_wake(void *ctx)
{
}

static struct wg *make_device(void)
{
	static const struct wg_ops ops = { no_send, no_wake, endpoint_limit_key };
	struct wg_config cfg = { .ops = &ops, .n_workers = 1, .seed = 1 };
	struct wg *wg;

	assert_int_equal(crypto_init(NULL), 0);
	assert_int_equal(wg_create(&wg, &cfg), 0);
	return wg;
}

static void set_text(struct wg *wg, const char *text, size_t len)
{
	struct uapi_reader r;
	size_t used;

	uapi_reader_init(&r);
	assert_int_equal(uapi_reader_feed(&r, text, len, &used), UAPI_SET);
	assert_int_equal(used, len);
	assert_int_equal(wg_apply(wg, &r.change.wg, SEC(1), SEC(1), NULL, NULL), 0);
	uapi_reader_fini(&r);
}

static void set(struct wg *wg, const char *lines)
{
	char text[2048];
	int len = snprintf(text, sizeof(text), "set=1\n%s\n", lines);

	set_text(wg, text, (size_t)len);
}

/* The whole reply, made in pieces of cap bytes. */
static void get(struct wg *wg, size_t cap, struct uapi_text *out)
{
	struct uapi_reply *r;
	struct uapi_text t;
	unsigned n_pauses = 0;
	bool has_more;

	uapi_text_init(out);
	uapi_put_head(out, wg, 0, 0);
	uapi_text_init(&t);
	assert_int_equal(uapi_reply_begin(&r, wg), 0);
	do {
		has_more = uapi_reply_more(r, &t, cap);
		assert_false(t.has_failed);
		assert_true(t.len <= cap);
		n_pauses += t.len == 0;
		assert_true(n_pauses < 1000);
		/* Any piece may end its life here: it consists of whole lines. */
		if (t.len)
			assert_int_equal(t.p[t.len - 1], '\n');
		uapi_put(out, "%.*s", (int)t.len, t.len ? t.p : "");
		uapi_text_clear(&t);
	} while (has_more);
	assert_false(uapi_reply_more(r, &t, cap));
	assert_int_equal(t.len, 0);
	uapi_reply_end(r);
	uapi_text_fini(&t);
}

/* The reply, less the lines that say nothing here. */
static void expect_reply(struct wg *wg, const char *want)
{
	static const char *const dull[] = { "protocol_version=", "last_handshake_time_",
		"tx_bytes=0", "rx_bytes=0", "preshared_key=000", "persistent_keepalive_interval=0",
		"errno=0" };
	char got[2048] = "";
	char *save = NULL;
	struct uapi_text t;

	get(wg, UAPI_REPLY_MIN, &t);
	for (char *l = strtok_r(t.p, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		bool is_dull = false;

		for (size_t i = 0; i < ARRAY_LEN(dull); i++)
			is_dull |= strncmp(l, dull[i], strlen(dull[i])) == 0;
		if (is_dull)
			continue;
		strcat(got, l);
		strcat(got, "\n");
	}
	assert_string_equal(got, want);
	uapi_text_fini(&t);
}

static void test_real_device(void **state)
{
	struct wg *wg;

	wg = make_device();
	expect_reply(wg, "");
	set(wg,
		"public_key=" K1 "\nallowed_ip=10.0.0.0/8\nendpoint=192.0.2.1:5\n"
		"preshared_key=" K3 "\npersistent_keepalive_interval=7\n");
	expect_reply(wg,
		"public_key=" K1 "\npreshared_key=" K3 "\nendpoint=192.0.2.1:5\n"
		"persistent_keepalive_interval=7\nallowed_ip=10.0.0.0/8\n");
	/* Sections take effect in order: K2 takes a network, K1 goes and comes back new. */
	set(wg,
		"public_key=" K2 "\nallowed_ip=10.0.0.0/8\nallowed_ip=11.0.0.0/8\n"
		"public_key=" K1 "\nremove=true\npublic_key=" K1 "\nallowed_ip=11.0.0.0/8\n");
	expect_reply(wg,
		"public_key=" K2 "\nallowed_ip=10.0.0.0/8\n"
		"public_key=" K1 "\nallowed_ip=11.0.0.0/8\n");
	/* update_only makes no peer, also not one that has just been removed. */
	set(wg,
		"public_key=" K3 "\nupdate_only=true\nallowed_ip=10.0.0.0/8\n"
		"public_key=" K1 "\nremove=true\n"
		"public_key=" K1 "\nupdate_only=true\nallowed_ip=11.0.0.0/8\n");
	expect_reply(wg, "public_key=" K2 "\nallowed_ip=10.0.0.0/8\n");
	/* A second section of the same peer adds to the first. */
	set(wg,
		"public_key=" K2 "\nreplace_allowed_ips=true\nallowed_ip=12.0.0.0/8\n"
		"public_key=" K2 "\nallowed_ip=13.0.0.0/8\nallowed_ip=-12.0.0.0/8\n");
	expect_reply(wg, "public_key=" K2 "\nallowed_ip=13.0.0.0/8\n");
	set(wg, "replace_peers=true\npublic_key=" K3 "\n");
	expect_reply(wg, "public_key=" K3 "\n");
	set(wg, "replace_peers=true\nprivate_key=" K1 "\n");
	/* Made fit for the curve, as every implementation shows it. */
	expect_reply(wg,
		"private_key=0001010101010101010101010101010101010101010101010101010101010141\n");
	wg_destroy(wg);
}

/* ---- Pieces. */

/* Peers of all kinds: with and without everything, with short and long lists. */
static struct wg *make_full_device(unsigned n_peers, unsigned n_long)
{
	struct wg *wg = make_device();
	struct uapi_text t;

	uapi_text_init(&t);
	uapi_put(&t, "set=1\nprivate_key=" K1 "\n");
	for (unsigned i = 0; i < n_peers; i++) {
		uapi_put(&t, "public_key=%064x\n", i + 7);
		if (i % 3 == 1)
			uapi_put(&t, "preshared_key=%064x\nendpoint=192.0.2.%u:%u\n", i, i & 255,
				i + 1);
		if (i % 5 == 1)
			uapi_put(&t, "endpoint=[2001:db8::%x]:51820\n", i & 0xffff);
		for (unsigned j = 0; j < i % 4; j++)
			uapi_put(&t, "allowed_ip=10.%u.%u.%u/32\n", j, i >> 8 & 255, i & 255);
		if (i % 7 == 1)
			uapi_put(&t, "allowed_ip=fd00::%x:0/112\n", i & 0xffff);
	}
	uapi_put(&t, "public_key=" K2 "\n");
	for (unsigned i = 0; i < n_long; i++)
		uapi_put(&t, "allowed_ip=11.%u.%u.%u/32\n", i >> 16, i >> 8 & 255, i & 255);
	uapi_put(&t, "public_key=" K3 "\nallowed_ip=12.0.0.0/8\n\n");
	assert_false(t.has_failed);
	set_text(wg, t.p, t.len);
	uapi_text_fini(&t);
	return wg;
}

static unsigned count(const char *text, const char *what)
{
	unsigned n = 0;

	for (const char *p = text; (p = strstr(p, what)); p++)
		n++;
	return n;
}

static void test_pieces(void **state)
{
	enum { PEERS = 150, LONG = 6000 };
	struct wg *wg = make_full_device(PEERS, LONG);
	struct uapi_text whole, cut;

	get(wg, 16 << 20, &whole);
	assert_int_equal(count(whole.p, "public_key="), PEERS + 2);
	assert_int_equal(count(whole.p, "allowed_ip=11."), LONG);
	assert_int_equal(count(whole.p, "errno="), 1);
	assert_string_equal(whole.p + whole.len - 9, "errno=0\n\n");
	for (size_t cap = UAPI_REPLY_MIN; cap < UAPI_REPLY_MIN + 200; cap++) {
		get(wg, cap, &cut);
		assert_int_equal(cut.len, whole.len);
		assert_memory_equal(cut.p, whole.p, whole.len);
		uapi_text_fini(&cut);
	}
	uapi_text_fini(&whole);
	wg_destroy(wg);
}

static void test_peer_with_all_lines_fits(void **state)
{
	struct wg_peer_info p = { .has_psk = true,
		.has_endpoint = true,
		.last_handshake_wall_ns = UINT64_MAX,
		.rx_bytes = UINT64_MAX,
		.tx_bytes = UINT64_MAX,
		.keepalive_s = UINT16_MAX };
	static const char longest[] = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff%4294967295]:65535";
	struct ipport addr;
	struct uapi_text t;

	assert_int_equal(ipport_parse(&addr, longest, strlen(longest)), 0);
	endpoint_from_addr(&p.endpoint, &addr);
	for (int i = 0; i < WG_DROP_N; i++)
		p.drops[i] = UINT64_MAX;
	uapi_text_init(&t);
	uapi_put_peer(&t, &p);
	assert_non_null(strstr(t.p, longest));
	assert_int_equal(count(t.p, "drop_"), WG_DROP_N - 1);
	assert_true(t.len <= UAPI_PEER_MAX);
	uapi_text_fini(&t);
}

/* What was begun is finished although the peer has gone; the others follow. */
static void test_peer_goes_half_way(void **state)
{
	enum { PEERS = 200 };
	struct wg *wg = make_full_device(PEERS, 10);
	struct uapi_reply *r;
	struct uapi_text t;

	uapi_text_init(&t);
	assert_int_equal(uapi_reply_begin(&r, wg), 0);
	assert_true(uapi_reply_more(r, &t, UAPI_REPLY_MIN));
	set(wg, "replace_peers=true\npublic_key=" K3 "\n");
	assert_false(uapi_reply_more(r, &t, 1 << 20));
	uapi_reply_end(r);
	assert_int_equal(count(t.p, "public_key=" K3), 1);
	assert_true(count(t.p, "public_key=") < PEERS);
	assert_int_equal(count(t.p, "public_key="), count(t.p, "persistent_keepalive_interval="));
	assert_string_equal(t.p + t.len - 9, "errno=0\n\n");
	uapi_text_fini(&t);

	/* Given up in the middle, with the device going next. */
	assert_int_equal(uapi_reply_begin(&r, wg), 0);
	assert_true(uapi_reply_more(r, &t, UAPI_REPLY_MIN) || t.len);
	uapi_reply_end(r);
	uapi_reply_end(NULL);
	uapi_text_fini(&t);
	wg_destroy(wg);
}

static void test_no_device(void **state)
{
	struct uapi_reply *r;
	struct uapi_text t;

	uapi_text_init(&t);
	assert_int_equal(uapi_reply_begin(&r, NULL), 0);
	assert_false(uapi_reply_more(r, &t, UAPI_REPLY_MIN));
	assert_string_equal(t.p, "errno=0\n\n");
	uapi_reply_end(r);
	uapi_text_fini(&t);
}

/* In a child: the limit stays. 0: as wanted. */
static int run_out_of_memory(struct wg *wg)
{
	struct rlimit limit = { 1 << 20, 1 << 20 }; /* less than we have: no more from the kernel */
	struct uapi_reply *r;
	struct uapi_text t;
	bool has_more;

	uapi_text_init(&t);
	if (uapi_reply_begin(&r, wg))
		return 2;
	if (!uapi_reply_more(r, &t, 1 << 20))
		return 3;
	if (setrlimit(RLIMIT_AS, &limit))
		return 4;
	do
		has_more = uapi_reply_more(r, &t, 1 << 20);
	while (has_more && t.len < 1 << 19);
	if (has_more || t.has_failed)
		return 5;
	if (count(t.p, "public_key=" K2) != 0 || count(t.p, "public_key=") != 5)
		return 6;
	return strcmp(t.p + t.len - 10, "errno=12\n\n") == 0 ? 0 : 7;
}

/* No room for a long list: the status line says so. */
static void test_out_of_memory(void **state)
{
	struct wg *wg;
	int status = -1;
	pid_t pid;

	if (IS_SANITIZED) {
		print_message("skip: a limited address space has no room for shadow memory\n");
		skip();
	}
	/* Nothing large comes from what the heap keeps. */
	mallopt(M_MMAP_THRESHOLD, 1 << 16);
	wg = make_full_device(5, 131072);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(run_out_of_memory(wg));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	wg_destroy(wg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reply),
		cmocka_unit_test(test_reply_of_nothing),
		cmocka_unit_test(test_reply_drops),
		cmocka_unit_test(test_real_device),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_peer_with_all_lines_fits),
		cmocka_unit_test(test_peer_goes_half_way),
		cmocka_unit_test(test_no_device),
		cmocka_unit_test(test_out_of_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
