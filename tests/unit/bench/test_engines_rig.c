/* The receiver of the engines bench: what is right counts, what is wrong is noticed, echoes
 * come back, and one that is held takes what it is told; with every engine that runs here. */
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
#include <errno.h>
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
	uint64_t packets, wrong;

	do {
		assert_int_equal(rig_counts(r, &packets, &wrong), 0);
	} while ((packets != n_packets || wrong != n_wrong) && clock_now_ns() < end);
	assert_int_equal(packets, n_packets);
	assert_int_equal(wrong, n_wrong);
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

/* Held: what was sent waits, and a drain takes as many as it was told. */
static void check_drain(const struct engine_ops *ops, const struct engine_config *engine)
{
	enum { N = 200, BUF = 1 << 20 };
	struct rig_config cfg = { .ops = ops, .engine = *engine, .len = LEN, .buf_len = BUF };
	struct rig_drained sum = { 0 };
	uint8_t parcel[LEN];
	struct rig_queue q;
	struct rig *r;
	uint64_t n, wrong;
	int fd;

	assert_int_equal(rig_create(&r, &cfg), 0);
	fd = to_rig(r);
	parcel_init(parcel, LEN);
	for (unsigned k = 1; k <= 2; k++) {
		for (unsigned i = 0; i < N; i++)
			assert_int_equal(send(fd, parcel, LEN, 0), LEN);
		assert_int_equal(rig_queue(r, &q), 0);
		assert_int_equal(q.n_dropped, 0);
		assert_true(q.used > 0 && q.used < q.room);
		assert_int_equal(rig_counts(r, &n, &wrong), 0);
		assert_int_equal(n, (k - 1) * N);
		assert_int_equal(rig_drain(r, N, &sum), 0);
		assert_int_equal(rig_counts(r, &n, &wrong), 0);
		assert_int_equal(n, k * N);
		assert_int_equal(sum.n_packets, k * N);
	}
	assert_true(sum.cpu_ns > 0);
	assert_true(sum.helper_ns <= sum.cpu_ns);
	if (!rig_syscalls_missing(r))
		assert_true(engine->sqpoll_idle_ms || (sum.n_syscalls && sum.n_syscalls < 2 * N));

	parcel[0] ^= 1;
	assert_int_equal(send(fd, parcel, LEN, 0), LEN);
	assert_int_equal(rig_drain(r, 1, &sum), -EBADMSG);
	close(fd);
	rig_destroy(r);
}

static void test_drain(void **state)
{
	const struct engine_config plain = { 0 }, sqpoll = { .sqpoll_idle_ms = 20 };

	check_drain(&plain_ops, &plain);
	for (size_t i = 0; engines[i]; i++) {
		if (engines[i]->probe(&plain)) {
			print_message("skipped: %s cannot run here\n", engines[i]->name);
			continue;
		}
		check_drain(engines[i], &plain);
	}
	if (uring_ops.probe(&sqpoll))
		print_message("skipped: uring with SQPOLL cannot run here\n");
	else
		check_drain(&uring_ops, &sqpoll);
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
		cmocka_unit_test(test_drain),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
