#include "link/endpoint.h"
#include "link/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* In a network namespace of our own, which ends with the process. */
static void test_changes(void **state)
{
	int fd;

	if (geteuid() != 0 || unshare(CLONE_NEWNET)) {
		print_message("skipped: needs root for a network namespace of its own\n");
		skip();
	}
	fd = routes_open();
	assert_true(fd >= 0);
	assert_false(routes_drain(fd));
	assert_int_equal(system("ip link set lo up"), 0);
	assert_true(routes_drain(fd)); /* the kernel gives lo its addresses */
	assert_false(routes_drain(fd));
	assert_int_equal(system("ip addr add 192.0.2.1/32 dev lo"), 0);
	assert_true(routes_drain(fd));
	assert_int_equal(system("ip route add 198.51.100.0/24 dev lo"), 0);
	assert_true(routes_drain(fd));
	assert_int_equal(system("ip -6 route add 2001:db8::/64 dev lo"), 0);
	assert_true(routes_drain(fd));
	assert_false(routes_drain(fd));
	close(fd);
}

/* More changes than the socket holds are still a change, and then none. */
static void test_overflow(void **state)
{
	int fd, small = 1;

	if (geteuid() != 0 || unshare(CLONE_NEWNET)) {
		print_message("skipped: needs root for a network namespace of its own\n");
		skip();
	}
	fd = routes_open();
	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	assert_int_equal(system("ip link set lo up; for i in $(seq 1 50); do "
				"ip addr add 192.0.2.$i/32 dev lo; done"),
		0);
	assert_true(routes_drain(fd));
	assert_false(routes_drain(fd));
	close(fd);
}

/* IPv4 routes go without a message of their own when their interface goes down. */
static void test_link_down(void **state)
{
	int fd;

	if (geteuid() != 0 || unshare(CLONE_NEWNET)) {
		print_message("skipped: needs root for a network namespace of its own\n");
		skip();
	}
	assert_int_equal(system("ip tuntap add t0 mode tun; ip addr add 10.1.0.1/24 dev t0; "
				"ip link set t0 up; ip addr del 10.1.0.1/24 dev t0; "
				"ip route add 10.1.0.0/24 dev t0"),
		0);
	fd = routes_open();
	assert_true(fd >= 0);
	assert_false(routes_drain(fd));
	assert_int_equal(system("ip link set t0 down"), 0);
	assert_true(routes_drain(fd));
	assert_int_equal(system("ip rule add fwmark 9 lookup 99"), 0);
	assert_true(routes_drain(fd));
	assert_int_equal(system("ip -6 rule add fwmark 9 lookup 99"), 0);
	assert_true(routes_drain(fd));
	close(fd);
}

enum { PORT = 51820, MARK = 5, PEER_PORT = 7 };

/* A peer at remote that wrote to our address local by the interface link. */
static struct wg_endpoint make(int family, const char *remote, const char *local, const char *link)
{
	struct endpoint_remote r = { .family = (uint16_t)family, .port = htons(PEER_PORT) };
	struct endpoint_local at = { .ifindex = if_nametoindex(link) };
	struct wg_endpoint e;

	assert_int_equal(inet_pton(family, remote, r.ip), 1);
	assert_int_equal(inet_pton(family, local, at.ip), 1);
	memcpy(e.remote, &r, sizeof(r));
	memcpy(e.local, &at, sizeof(at));
	return e;
}

/* Two links with an address each; the peer is behind the first. */
static void check_detours(int fd, int family)
{
	bool is_v4 = family == AF_INET;
	const char *remote = is_v4 ? "10.1.0.2" : "fd01::2",
		   *local = is_v4 ? "10.1.0.1" : "fd01::1";
	struct wg_endpoint e = make(family, remote, local, "t0"), other;
	char cmd[256];

	assert_int_equal(routes_detour(fd, &e, PORT, 0), 0);
	/* by our second address: its interface is not that of the route */
	other = make(family, remote, is_v4 ? "10.2.0.1" : "fd02::1", "t1");
	assert_int_equal(routes_detour(fd, &other, PORT, 0), if_nametoindex("t0"));
	/* a route by mark, and one by port: ours alone take it */
	snprintf(cmd, sizeof(cmd),
		"ip -%d route add %s dev t1 table 77; ip -%d rule add fwmark %d lookup 77; "
		"ip -%d rule add ipproto udp sport %d dport %d lookup 77",
		is_v4 ? 4 : 6, remote, is_v4 ? 4 : 6, MARK, is_v4 ? 4 : 6, PORT + 1, PEER_PORT);
	assert_int_equal(system(cmd), 0);
	assert_int_equal(routes_detour(fd, &e, PORT, 0), 0);
	assert_int_equal(routes_detour(fd, &e, PORT, MARK), if_nametoindex("t1"));
	assert_int_equal(routes_detour(fd, &e, PORT + 1, 0), if_nametoindex("t1"));
	/* a better route */
	snprintf(cmd, sizeof(cmd), "ip -%d route add %s dev t1", is_v4 ? 4 : 6, remote);
	assert_int_equal(system(cmd), 0);
	assert_int_equal(routes_detour(fd, &e, PORT, 0), if_nametoindex("t1"));
	/* no route at all: no telling */
	other = make(family, is_v4 ? "192.0.2.1" : "2001:db8::1", local, "t0");
	assert_int_equal(routes_detour(fd, &other, PORT, 0), 0);
	/* no source */
	other = make(family, remote, is_v4 ? "0.0.0.0" : "::", "nolink");
	assert_int_equal(routes_detour(fd, &other, PORT, 0), 0);
}

static void test_detour(void **state)
{
	struct wg_endpoint e;
	int fd;

	if (geteuid() != 0 || unshare(CLONE_NEWNET)) {
		print_message("skipped: needs root for a network namespace of its own\n");
		skip();
	}
	assert_int_equal(
		system("ip tuntap add t0 mode tun; ip tuntap add t1 mode tun; "
		       "ip addr add 10.1.0.1/24 dev t0; ip addr add fd01::1/64 dev t0 nodad; "
		       "ip addr add 10.2.0.1/24 dev t1; ip addr add fd02::1/64 dev t1 nodad; "
		       "ip link set t0 up; ip link set t1 up; ip link set lo up"),
		0);
	fd = routes_query_open();
	assert_true(fd >= 0);
	check_detours(fd, AF_INET);
	check_detours(fd, AF_INET6);
	e = make(AF_INET, "10.1.0.3", "10.1.0.77", "t0");
	assert_int_equal(routes_detour(fd, &e, PORT, 0), ROUTES_NO_SOURCE);
	e = make(AF_INET6, "fe80::2", "fe80::1", "t1");
	assert_int_equal(routes_detour(fd, &e, PORT, 0), 0);
	/* our own address */
	e = make(AF_INET, "10.1.0.1", "10.1.0.1", "lo");
	assert_int_equal(routes_detour(fd, &e, PORT, 0), 0);
	e = make(AF_INET6, "fd01::1", "fd01::1", "lo");
	assert_int_equal(routes_detour(fd, &e, PORT, 0), 0);
	close(fd);
	assert_int_equal(routes_detour(-1, &e, PORT, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_link_down),
		cmocka_unit_test(test_detour),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
