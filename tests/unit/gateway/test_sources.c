/* Checks of sources against the routes of a network namespace of our own. Needs root. */
#include "gateway/sources.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include "link/endpoint.h"
#include "wg/device.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { PEERS = 150, PORT = 51820, WAIT_MS = 5000 };

static struct wg *wg;
static struct sources s;

static void no_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
}

static void no_wake(void *ctx)
{
}

static void no_limit(const struct wg_endpoint *from, uint8_t key[16])
{
	memset(key, 0, 16);
}

static struct wg_peer_change named(unsigned i)
{
	struct wg_peer_change pc = { .public_key = { 1, (uint8_t)i } };

	return pc;
}

static struct endpoint_cell *cell_of(unsigned i)
{
	struct wg_peer_change pc = named(i);

	return &peer_find(wg, pc.public_key)->endpoint;
}

static bool has_source(unsigned i)
{
	struct wg_endpoint e;

	return endpoint_get(cell_of(i), &e) && endpoint_get_local(&e).ifindex;
}

/* Peer i is at 10.1.0.i and wrote to 10.1.0.254 by the interface t0. */
static void hear(unsigned i)
{
	struct endpoint_remote r = { .family = AF_INET, .port = htons(7), .ip = { 10, 1, 0 } };
	struct endpoint_local at = { .ifindex = if_nametoindex("t0"), .ip = { 10, 1, 0, 254 } };
	struct wg_endpoint e;

	r.ip[3] = (uint8_t)i;
	memcpy(e.remote, &r, sizeof(r));
	memcpy(e.local, &at, sizeof(at));
	endpoint_set(cell_of(i), &e, clock_now_ns());
}

static int setup(void **state)
{
	static const struct wg_ops ops = { no_send, no_wake, no_limit };
	struct wg_config cfg = { .ops = &ops, .n_workers = 1 };

	if (geteuid() != 0 || unshare(CLONE_NEWNET)) {
		print_message("skipped: needs root for a network namespace of its own\n");
		return 0;
	}
	if (system("ip tuntap add t0 mode tun; ip tuntap add t1 mode tun; ip link set t0 up; "
		   "ip link set t1 up; ip addr add 10.1.0.254/24 dev t0"))
		return -1;
	if (crypto_init(NULL) || wg_create(&wg, &cfg) || sources_open(&s))
		return -1;
	for (unsigned i = 1; i <= PEERS; i++) {
		struct wg_peer_change pc = named(i);
		struct wg_change c = { .peers = &pc, .n_peers = 1 };

		if (wg_apply(wg, &c, 1, 1, NULL, NULL))
			return -1;
		hear(i);
	}
	return 0;
}

static int teardown(void **state)
{
	if (!wg)
		return 0;
	sources_close(&s);
	wg_destroy(wg);
	return 0;
}

static void need_namespace(void)
{
	if (!wg)
		skip();
}

/* Take in what changed, and check to the end. Returns the number of steps. */
static unsigned check_all(void)
{
	struct pollfd p = { .fd = s.changes, .events = POLLIN };
	unsigned steps = 0;

	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	sources_read(&s);
	assert_true(s.is_due);
	while (sources_deadline(&s) != UINT64_MAX) {
		uint64_t now_ns = clock_now_ns();

		if (sources_deadline(&s) > now_ns) {
			assert_false(sources_run(&s, wg, PORT, 0, now_ns));
			continue;
		}
		/* Only the first step says that a check begins. */
		assert_int_equal(sources_run(&s, wg, PORT, 0, now_ns), steps++ == 0);
	}
	return steps;
}

static void test_check(void **state)
{
	need_namespace();
	assert_int_equal(sources_deadline(&s), UINT64_MAX);
	assert_false(sources_run(&s, wg, PORT, 0, clock_now_ns()));
	assert_int_equal(system("ip route add 192.0.2.0/24 dev t1"), 0);
	assert_int_equal(check_all(), (PEERS + 63) / 64);
	for (unsigned i = 1; i <= PEERS; i++)
		assert_true(has_source(i));
	/* The way to some of them is another now. */
	assert_int_equal(system("ip route add 10.1.0.64/26 dev t1"), 0);
	check_all();
	for (unsigned i = 1; i <= PEERS; i++)
		assert_int_equal(has_source(i), i < 64 || i >= 128);
}

/* Many changes are one check, and the next is not before a pause. */
static void test_pause(void **state)
{
	uint64_t now_ns;

	need_namespace();
	assert_int_equal(
		system("for i in $(seq 50); do ip route add 198.51.100.$i dev t1; done"), 0);
	assert_int_equal(check_all(), (PEERS + 63) / 64);
	sources_change(&s);
	assert_true(s.next_ns > s.began_ns);
	now_ns = s.next_ns;
	assert_int_equal(sources_deadline(&s), now_ns);
	assert_false(sources_run(&s, wg, PORT, 0, now_ns - 1));
	assert_true(sources_run(&s, wg, PORT, 0, now_ns));
	assert_int_equal(sources_deadline(&s), 0);
	while (s.walk)
		assert_false(sources_run(&s, wg, PORT, 0, now_ns));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_pause),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
