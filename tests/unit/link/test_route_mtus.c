/* The interface watch's list of MTUs, with routes of a real TUN in a network namespace
 * of our own (needs root), and with messages that a kernel sends too rarely. */
#include "link/link.h"
#include "link/route_mtus.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { WAIT_MS = 5000, OURS = 7, OTHERS = 8 };

/* ---- Messages made by hand. */

static struct {
	_Alignas(struct nlmsghdr) char bytes[256];
} message;

static struct nlmsghdr *make_route(uint16_t type, uint16_t flags, unsigned ifindex, unsigned mtu)
{
	struct nlmsghdr *msg = mnl_nlmsg_put_header(message.bytes);
	struct nlattr *metrics;

	msg->nlmsg_type = type;
	msg->nlmsg_flags = flags;
	mnl_nlmsg_put_extra_header(msg, sizeof(struct rtmsg));
	mnl_attr_put_u32(msg, RTA_OIF, ifindex);
	if (mtu) {
		metrics = mnl_attr_nest_start(msg, RTA_METRICS);
		mnl_attr_put_u32(msg, RTAX_MTU, mtu);
		mnl_attr_nest_end(msg, metrics);
	}
	return msg;
}

static void take_change(struct route_mtus *r, uint16_t type, uint16_t flags, unsigned mtu)
{
	route_mtus_take(r, make_route(type, flags, OURS, mtu), OURS, false);
}

static void take_answer(struct route_mtus *r, struct nlmsghdr *msg)
{
	msg->nlmsg_seq = r->seq;
	route_mtus_take(r, msg, OURS, true);
}

/* The end of a dump; err: 0 or negative. */
static struct nlmsghdr *make_end(int err)
{
	struct nlmsghdr *msg = mnl_nlmsg_put_header(message.bytes);

	msg->nlmsg_type = NLMSG_DONE;
	*(int *)mnl_nlmsg_put_extra_header(msg, sizeof(int)) = err;
	return msg;
}

static struct nlmsghdr *make_error(int err)
{
	struct nlmsghdr *msg = mnl_nlmsg_put_header(message.bytes);
	struct nlmsgerr *e;

	msg->nlmsg_type = NLMSG_ERROR;
	e = mnl_nlmsg_put_extra_header(msg, sizeof(*e));
	e->error = err;
	e->msg.nlmsg_type = RTM_GETROUTE;
	return msg;
}

/* Who asks the kernel for a dump here does not read the answer. */
static struct mnl_socket *sink;

static void ask(struct route_mtus *r)
{
	route_mtus_ask(r, sink, OURS);
}

static int setup(void **state)
{
	static struct route_mtus r;

	sink = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC);
	if (!sink || mnl_socket_bind(sink, 0, MNL_SOCKET_AUTOPID) < 0)
		return -1;
	*state = &r;
	return route_mtus_open(&r);
}

static int teardown(void **state)
{
	route_mtus_close(*state);
	return mnl_socket_close(sink);
}

/* Both halves of a dump that finds one MTU in each; 0: none. */
static void run_dump(struct route_mtus *r, unsigned v4, unsigned v6)
{
	assert_int_equal(r->family, AF_INET);
	take_answer(r, make_route(RTM_NEWROUTE, NLM_F_MULTI, OURS, v4));
	take_answer(r, make_end(0));
	ask(r);
	assert_int_equal(r->family, AF_INET6);
	take_answer(r, make_route(RTM_NEWROUTE, NLM_F_MULTI, OURS, v6));
	take_answer(r, make_end(0));
	ask(r);
	assert_int_equal(r->family, AF_UNSPEC);
}

static void assert_mtus(const struct wg_mtus *m, unsigned a, unsigned b, unsigned c)
{
	const unsigned want[] = { a, b, c };
	unsigned n = !!a + !!b + !!c;

	assert_int_equal(m->n, n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(m->mtu[i], want[i]);
}

/* Until the pause is over. */
static void let_rest(struct route_mtus *r)
{
	struct pollfd p = { .fd = r->timer, .events = POLLIN };

	assert_true(r->is_resting);
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
}

static void test_change_counts_at_once(void **state)
{
	struct route_mtus *r = *state;

	ask(r);
	run_dump(r, 0, 0);
	assert_mtus(&r->now, 0, 0, 0);
	/* A route without an MTU of its own is no reason for a dump. */
	take_change(r, RTM_NEWROUTE, NLM_F_CREATE, 0);
	take_change(r, RTM_DELROUTE, 0, 0);
	route_mtus_take(r, make_route(RTM_NEWROUTE, NLM_F_CREATE, OTHERS, 1200), OURS, false);
	take_change(r, RTM_NEWROUTE, NLM_F_CREATE, 1299);
	assert_mtus(&r->now, 1299, 0, 0);
	assert_false(r->is_stale);
}

static void test_one_dump_for_many_changes(void **state)
{
	struct route_mtus *r = *state;
	uint32_t seq;

	ask(r);
	run_dump(r, 1299, 1280);
	assert_mtus(&r->now, 1280, 1299, 0);
	seq = r->seq;
	for (int i = 0; i < 1000; i++) {
		take_change(r, RTM_DELROUTE, 0, 1299);
		ask(r);
	}
	assert_int_equal(r->seq, seq);
	assert_mtus(&r->now, 1280, 1299, 0);
	let_rest(r);
	ask(r);
	assert_int_equal(r->seq, seq + 1);
	run_dump(r, 0, 1280);
	assert_mtus(&r->now, 1280, 0, 0);
	let_rest(r);
	ask(r);
	assert_int_equal(r->seq, seq + 2);
}

/* What a route replaced is not said: a dump. */
static void test_replaced(void **state)
{
	struct route_mtus *r = *state;

	ask(r);
	run_dump(r, 0, 0);
	take_change(r, RTM_NEWROUTE, NLM_F_REPLACE, 0);
	assert_false(r->is_stale);
	take_change(r, RTM_NEWROUTE, NLM_F_CREATE, 1299);
	take_change(r, RTM_NEWROUTE, NLM_F_REPLACE, 1290);
	assert_mtus(&r->now, 1290, 1299, 0);
	assert_true(r->is_stale);
}

static void test_change_during_dump(void **state)
{
	struct route_mtus *r = *state;

	ask(r);
	take_answer(r, make_route(RTM_NEWROUTE, NLM_F_MULTI, OURS, 1299));
	take_change(r, RTM_NEWROUTE, NLM_F_CREATE, 1290);
	take_change(r, RTM_DELROUTE, 0, 1299);
	/* of an earlier request, and of nobody's */
	make_end(0)->nlmsg_seq = r->seq - 1;
	route_mtus_take(r, (struct nlmsghdr *)message.bytes, OURS, true);
	make_end(0)->nlmsg_seq = r->seq;
	route_mtus_take(r, (struct nlmsghdr *)message.bytes, OURS, false);
	run_dump(r, 1280, 0);
	assert_mtus(&r->now, 1280, 1290, 1299);
	assert_true(r->is_stale);
}

/* A dump that may lack something takes nothing away. */
static void test_torn(void **state)
{
	struct route_mtus *r = *state;

	for (int how = 0; how < 4; how++) {
		route_mtus_reset(r);
		ask(r);
		run_dump(r, 1299, 0);
		r->is_stale = true;
		r->is_resting = false;
		ask(r);
		if (how == 0)
			take_answer(r,
				make_route(RTM_NEWROUTE, NLM_F_MULTI | NLM_F_DUMP_INTR, OURS, 0));
		else if (how == 1)
			route_mtus_lost(r);
		else if (how == 2)
			take_answer(r, make_end(-ENOMEM));
		else
			take_answer(r, make_error(-EBUSY));
		ask(r);
		if (r->family == AF_INET)
			take_answer(r, make_end(0));
		ask(r);
		take_answer(r, make_route(RTM_NEWROUTE, NLM_F_MULTI, OURS, 1280));
		take_answer(r, make_end(0));
		assert_int_equal(r->family, AF_UNSPEC);
		assert_mtus(&r->now, 1280, 1299, 0);
		assert_int_equal(r->is_stale, how < 2);
	}
}

/* Nothing of a dump comes, and no error either: it is asked for again. */
static void test_silent_dump(void **state)
{
	struct route_mtus *r = *state;
	uint32_t seq;

	ask(r);
	seq = r->seq;
	let_rest(r);
	ask(r);
	assert_int_equal(r->seq, seq + 1);
	assert_int_equal(r->family, AF_INET);
	/* One that is slow goes on. */
	take_answer(r, make_route(RTM_NEWROUTE, NLM_F_MULTI, OURS, 1299));
	let_rest(r);
	ask(r);
	assert_int_equal(r->seq, seq + 1);
	run_dump(r, 0, 0);
	assert_mtus(&r->now, 1299, 0, 0);
}

/* ---- A real interface. */

static bool is_away; /* the process has namespaces of its own by now */

static void need_namespace(void)
{
	if (!is_away && (geteuid() != 0 || unshare(CLONE_NEWNET))) {
		print_message("skipped: needs root for a network namespace of its own\n");
		skip();
	}
	is_away = true;
	if (system("ip link show dev lo >/dev/null 2>&1")) {
		print_message("skipped: no ip(8)\n");
		skip();
	}
}

static struct netdev *dev;
static struct netdev_event last;

/* Read events until the MTUs are these; fails when they never are. */
static void expect_at(int line, unsigned a, unsigned b, unsigned c)
{
	struct pollfd p = { .fd = netdev_fd(dev), .events = POLLIN };
	const unsigned want[] = { a, b, c };
	unsigned n = !!a + !!b + !!c, same;

	for (;;) {
		for (same = 0; same < n && last.mtus.mtu[same] == want[same]; same++)
			;
		if (last.mtus.n == n && same == n)
			return;
		if (poll(&p, 1, WAIT_MS) != 1)
			fail_msg("line %d: %u MTUs, %u %u %u", line, last.mtus.n, last.mtus.mtu[0],
				last.mtus.mtu[1], last.mtus.mtu[2]);
		assert_true(netdev_read(dev, &last) >= 0);
	}
}

#define expect(...) expect_at(__LINE__, __VA_ARGS__)

static void do_shell(const char *cmd)
{
	assert_int_equal(system(cmd), 0);
}

static void test_routes_of_interface(void **state)
{
	struct tun t;

	need_namespace();
	assert_int_equal(tun_open(&t, "pkr0", 0), 0);
	do_shell("ip link add pkr1 type dummy 2>/dev/null || ip tuntap add pkr1 mode tun");
	do_shell("ip addr add 10.9.0.1/24 dev pkr0; ip link set pkr1 up; ip link set pkr0 mtu 1420 "
		 "up");
	do_shell("ip route add 10.1.0.0/24 dev pkr0 mtu 1299");
	/* there before we look */
	assert_int_equal(netdev_open(&dev, &t), 0);
	expect(1299, 1420, 0);
	do_shell("ip -6 route add fd09::/64 dev pkr0 mtu 1290");
	expect(1290, 1299, 1420);
	do_shell("ip route del 10.1.0.0/24 dev pkr0; ip route add 10.1.0.0/24 dev pkr1 mtu 1111");
	expect(1290, 1420, 0);
	do_shell("ip -6 route del fd09::/64; ip route add 10.2.0.0/24 dev pkr0 mtu lock 1301 table "
		 "77");
	expect(1301, 1420, 0);
	do_shell("ip route change 10.2.0.0/24 dev pkr0 mtu 1302 table 77");
	expect(1302, 1420, 0);
	do_shell("ip route del 10.2.0.0/24 table 77; "
		 "ip route add 10.3.0.0/24 mtu 1303 nexthop dev pkr1 nexthop dev pkr0");
	expect(1303, 1420, 0);
	do_shell("ip route del 10.3.0.0/24; ip link set pkr0 mtu 1280; "
		 "ip route add 10.3.0.0/24 dev pkr0 mtu 1304");
	expect(1280, 1304, 0);
	/* IPv4 routes vanish without a message when the interface goes down. */
	do_shell("ip link set pkr0 down");
	expect(1280, 0, 0);
	netdev_close(dev);
	tun_close(&t);
	do_shell("ip link del pkr1");
}

/* More changes than the socket holds. */
static void test_burst(void **state)
{
	FILE *batch;
	struct tun t;

	need_namespace();
	assert_int_equal(tun_open(&t, "pkr0", 0), 0);
	do_shell("ip link set pkr0 mtu 1420 up");
	assert_int_equal(netdev_open(&dev, &t), 0);
	expect(1420, 0, 0);
	batch = popen("ip -batch -", "w");
	assert_non_null(batch);
	for (int i = 0; i < 5000; i++)
		fprintf(batch, "route add 10.%d.%d.0/24 dev pkr0 mtu %d\n", i / 250, i % 250,
			i == 4000 ? 1299 : 1420);
	assert_int_equal(pclose(batch), 0);
	expect(1299, 1420, 0);
	do_shell("ip route flush dev pkr0; ip route add 10.1.0.0/16 dev pkr0 mtu 1300");
	expect(1300, 1420, 0);
	netdev_close(dev);
	tun_close(&t);
}

static void test_moved(void **state)
{
	char cmd[128];
	struct tun t;
	int home, away;

	need_namespace();
	assert_int_equal(tun_open(&t, "pkr0", 0), 0);
	do_shell("ip link set pkr0 mtu 1420 up; ip route add 10.1.0.0/16 dev pkr0 mtu 1300");
	assert_int_equal(netdev_open(&dev, &t), 0);
	expect(1300, 1420, 0);
	home = open("/proc/self/ns/net", O_RDONLY);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	away = open("/proc/self/ns/net", O_RDONLY);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	snprintf(cmd, sizeof(cmd), "ip link set pkr0 netns /proc/%d/fd/%d", getpid(), away);
	do_shell(cmd);
	expect(1420, 0, 0);
	assert_int_equal(setns(away, CLONE_NEWNET), 0);
	do_shell("ip link set pkr0 up; ip route add 10.1.0.0/16 dev pkr0 mtu 1298");
	expect(1298, 1420, 0);
	do_shell("ip route del 10.1.0.0/16");
	expect(1420, 0, 0);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	netdev_close(dev);
	tun_close(&t);
	close(home);
	close(away);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_change_counts_at_once),
		TEST(test_one_dump_for_many_changes),
		TEST(test_replaced),
		TEST(test_change_during_dump),
		TEST(test_torn),
		TEST(test_silent_dump),
		cmocka_unit_test(test_routes_of_interface),
		cmocka_unit_test(test_burst),
		cmocka_unit_test(test_moved),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
