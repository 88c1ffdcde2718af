#include "link/link.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_overflow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
