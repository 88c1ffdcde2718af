/* The receiver of the engines bench: what is right counts, what is wrong is noticed, and echoes
 * come back; with every engine that runs here. */
#include "bench/engines_rig.h"
#include "base/clock.h"
#include "bench/engines_math.h"
#include "bench/engines_plain.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <cmocka.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 64, WAIT_MS = 10000 };

static int to_rig(const struct rig *r)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
		.sin_port = htons(rig_port(r)),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* Until so much has come. */
static void await(struct rig *r, uint64_t n_packets, uint64_t n_wrong)
{
	uint64_t end = clock_now_ns() + WAIT_MS * NSEC_PER_MSEC;
	struct rig_reading now;

	do {
		assert_int_equal(rig_read(r, &now, true), 0);
	} while ((now.n_packets != n_packets || now.n_wrong != n_wrong) && clock_now_ns() < end);
	assert_int_equal(now.n_packets, n_packets);
	assert_int_equal(now.n_wrong, n_wrong);
}

static void check_engine(const struct engine_ops *ops, const struct engine_config *engine)
{
	struct rig_config cfg = { .ops = ops, .engine = *engine, .len = LEN, .is_echo = true };
	struct pollfd fd = { .events = POLLIN };
	uint8_t parcel[LEN], back[LEN + 1];
	struct rig *r;

	assert_int_equal(rig_create(&r, &cfg), 0);
	fd.fd = to_rig(r);
	parcel_init(parcel, LEN);
	parcel_stamp(parcel, 5, 6);
	assert_int_equal(send(fd.fd, parcel, LEN, 0), LEN);
	assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
	assert_int_equal(recv(fd.fd, back, sizeof(back), 0), LEN);
	assert_memory_equal(back, parcel, LEN);
	await(r, 1, 0);

	parcel[LEN - 1] ^= 1;
	assert_int_equal(send(fd.fd, parcel, LEN, 0), LEN);
	await(r, 1, 1);
	parcel[LEN - 1] ^= 1;
	assert_int_equal(send(fd.fd, parcel, LEN - 4, 0), LEN - 4);
	await(r, 1, 2);
	close(fd.fd);
	rig_destroy(r);
}

static void test_plain(void **state)
{
	check_engine(&plain_ops, &(struct engine_config){ 0 });
}

static void test_engines(void **state)
{
	for (size_t i = 0; engines[i]; i++) {
		struct engine_config cfg = { 0 };

		if (engines[i]->probe(&cfg)) {
			print_message("skipped: %s cannot run here\n", engines[i]->name);
			continue;
		}
		check_engine(engines[i], &cfg);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_engines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
