/* Bytes flow until they are stopped; what cannot be connected is an error. */
#include "bench/transfer.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <unistd.h>

enum { LOOPBACK = 0x7f000001, PORT = 35011, NOT_OURS = 0x08080808 };

static void test_bytes_flow(void **state)
{
	struct transfer *t;
	int i;

	assert_int_equal(transfer_start(&t, NULL, 0, 0, LOOPBACK, PORT), 0);
	for (i = 0; i < 1000 && transfer_bytes(t) < 10000000; i++)
		usleep(10000);
	assert_true(transfer_bytes(t) >= 10000000);
	transfer_stop(t);
	/* The port is free again at once. */
	assert_int_equal(transfer_start(&t, NULL, 0, 0, LOOPBACK, PORT), 0);
	transfer_stop(t);
	transfer_stop(NULL);
}

static void test_where_nobody_can_listen(void **state)
{
	struct transfer *t;

	assert_int_equal(transfer_start(&t, NULL, 0, 0, NOT_OURS, PORT), -EADDRNOTAVAIL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_flow),
		cmocka_unit_test(test_where_nobody_can_listen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
