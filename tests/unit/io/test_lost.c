/* Channels that cannot be read any more: told once, and no busy loop. For epoll and blocking. */
#include "io/io.h"
#include "base/clock.h"
#include "base/rcu.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cmocka.h>

enum { TAG = 9 };

static const struct engine_config plain;
static const struct engine_ops *ops;
static struct engine *e;
static struct io_batch batch;
static int in, out; /* a UDP socket, and one that sends to it */

static void udp_open(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);

	in = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(in >= 0 && out >= 0);
	assert_int_equal(bind(in, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(in, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(connect(out, (struct sockaddr *)&a, sizeof(a)), 0);
}

static int setup(void **state)
{
	ops = *state;
	udp_open();
	return ops->open(&e, &plain) ||
		ops->add(e, &(struct io_channel){ in, IO_DGRAM, TAG, NULL });
}

static int teardown(void **state)
{
	ops->close(e);
	close(in);
	close(out);
	return 0;
}

/* Within a few waits, once, and then the waits last. */
static void expect_loss(int fd)
{
	unsigned n_told = 0;
	uint64_t start;

	for (int i = 0; i < 3 && !n_told; i++) {
		assert_int_equal(ops->wait(e, &batch, 100 * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.n, 0);
		assert_int_equal(batch.lost & ~(1u << TAG), 0);
		n_told += batch.lost != 0;
	}
	assert_int_equal(n_told, 1);
	start = clock_now_ns();
	for (int i = 0; i < 20; i++) {
		assert_int_equal(ops->wait(e, &batch, 5 * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.n, 0);
		assert_int_equal(batch.lost, 0);
	}
	/* One of them may end at once. */
	assert_true(clock_now_ns() - start >= 18 * 5 * NSEC_PER_MSEC);
	assert_int_equal(ops->drop(e, fd), -ENOENT);
}

static void hear_one(void)
{
	assert_int_equal(send(out, "x", 1, 0), 1);
	assert_int_equal(ops->wait(e, &batch, NSEC_PER_SEC), 0);
	assert_int_equal(batch.n, 1);
}

static void test_closed_hot(void **state)
{
	hear_one();
	close(in);
	expect_loss(in);
}

/* Nothing came of late: whoever closed it has it looked at. */
static void test_closed_cold(void **state)
{
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	close(in);
	ops->wake(e);
	assert_int_equal(ops->wait(e, &batch, -1), 0);
	expect_loss(in);
}

/* The file is open elsewhere, and readable: epoll tells for ever. */
static void test_closed_here_only(void **state)
{
	int copy = dup(in);

	hear_one();
	assert_int_equal(ops->wait(e, &batch, 0), 0);
	close(in);
	assert_int_equal(send(out, "y", 1, 0), 1);
	expect_loss(in);
	/* The place is as good as new. */
	assert_int_equal(ops->add(e, &(struct io_channel){ copy, IO_DGRAM, 2, NULL }), 0);
	assert_int_equal(ops->wait(e, &batch, NSEC_PER_SEC), 0);
	assert_int_equal(batch.n, 1);
	assert_int_equal(batch.rx[0].tag, 2);
	close(copy);
}

static void test_send_tells(void **state)
{
	struct iovec iov = { "z", 1 };
	struct io_tx tx = { .hdr = { .msg_iov = &iov, .msg_iovlen = 1 } };

	assert_int_equal(ops->wait(e, &batch, 0), 0);
	close(in);
	assert_int_equal(ops->send(e, in, IO_DGRAM, &tx, 1), 0);
	assert_int_equal(tx.err, -EBADF);
	expect_loss(in);
}

/* The number is another socket's: that one is not read. */
static void test_number_reused(void **state)
{
	int number = in, former_out = out;
	char c;

	assert_int_equal(ops->wait(e, &batch, 0), 0);
	close(in);
	udp_open();
	assert_int_not_equal(in, out);
	if (in != number) {
		assert_int_equal(dup2(in, number), number);
		close(in);
		in = number;
	}
	assert_int_equal(send(out, "q", 1, 0), 1);
	ops->wake(e);
	assert_int_equal(ops->wait(e, &batch, -1), 0);
	expect_loss(in);
	assert_int_equal(recv(in, &c, 1, MSG_DONTWAIT), 1);
	close(former_out);
}

/* And again under the same number. */
static void test_number_added_again(void **state)
{
	int number = in, former_out = out;

	assert_int_equal(ops->wait(e, &batch, 0), 0);
	close(in);
	udp_open();
	assert_int_equal(dup2(in, number), number);
	if (in != number)
		close(in);
	in = number;
	if (ops == &blocking_ops) { /* has one place only */
		ops->drop(e, in);
	}
	assert_int_equal(ops->add(e, &(struct io_channel){ in, IO_DGRAM, 4, NULL }), 0);
	hear_one();
	assert_int_equal(batch.rx[0].tag, 4);
	assert_int_equal(batch.lost, 0);
	assert_int_equal(ops->drop(e, in), 0);
	assert_int_equal(ops->drop(e, in), -ENOENT);
	close(former_out);
}

static void *shut_later(void *arg)
{
	usleep(50 * 1000);
	shutdown(in, SHUT_RDWR); /* ENOTCONN, and done all the same */
	return NULL;
}

static void test_shut_down(void **state)
{
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, shut_later, NULL), 0);
	assert_int_equal(ops->wait(e, &batch, -1), 0);
	pthread_join(t, NULL);
	assert_int_equal(batch.n, 0);
	assert_int_equal(batch.lost, 1u << TAG);
	batch.lost = 0;
	assert_int_equal(ops->wait(e, &batch, 50 * NSEC_PER_MSEC), 0);
	assert_int_equal(batch.lost, 0);
}

/* Somebody destroys the socket from outside: it stays open, and deaf. */
static void test_destroyed(void **state)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);
	char command[80];

	assert_int_equal(getsockname(in, (struct sockaddr *)&a, &len), 0);
	snprintf(command, sizeof(command), "ss -K -u -a sport = :%u >/dev/null 2>&1",
		ntohs(a.sin_port));
	hear_one();
	if (system(command) || getsockname(in, (struct sockaddr *)&a, &len) || a.sin_port) {
		print_message("skipped: sockets cannot be destroyed here\n");
		skip();
	}
	expect_loss(in);
}

static void *delete_later(void *arg)
{
	usleep(50 * 1000);
	return system("ip link del gone0") ? arg : NULL;
}

/* Leaves us in a network namespace of our own. */
static void test_tun_gone(void **state)
{
	struct ifreq ifr = { .ifr_name = "gone0", .ifr_flags = IFF_TUN | IFF_NO_PI };
	pthread_t t;
	int fd;

	if (unshare(CLONE_NEWNET)) {
		print_message("skipped: needs CAP_SYS_ADMIN for a network namespace\n");
		skip();
	}
	assert_int_equal(system("ip link set lo up"), 0);
	fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
	assert_int_equal(ops->drop(e, in), 0);
	assert_int_equal(ops->add(e, &(struct io_channel){ fd, IO_FRAME, TAG, NULL }), 0);
	assert_int_equal(pthread_create(&t, NULL, delete_later, NULL), 0);
	assert_int_equal(ops->wait(e, &batch, -1), 0);
	assert_int_equal(batch.n, 0);
	assert_int_equal(batch.lost, 1u << TAG);
	pthread_join(t, NULL);
	for (int i = 0; i < 3; i++) {
		uint64_t start = clock_now_ns();

		assert_int_equal(ops->wait(e, &batch, 50 * NSEC_PER_MSEC), 0);
		assert_int_equal(batch.lost, 0);
		assert_true(clock_now_ns() - start >= 50 * NSEC_PER_MSEC);
	}
	close(fd);
}

int main(void)
{
#define ONE(f, o)                                                                                  \
	{                                                                                          \
		.name = #f " " #o, .test_func = f, .setup_func = setup, .teardown_func = teardown, \
		.initial_state = (void *)&o                                                        \
	}
#define BOTH(f) ONE(f, epoll_ops), ONE(f, blocking_ops)
	const struct CMUnitTest tests[] = {
		BOTH(test_closed_hot),
		BOTH(test_closed_cold),
		BOTH(test_closed_here_only),
		BOTH(test_send_tells),
		BOTH(test_number_reused),
		BOTH(test_number_added_again),
		BOTH(test_shut_down),
		BOTH(test_destroyed),
		BOTH(test_tun_gone),
	};
#undef BOTH
#undef ONE
	int ret;

	alarm(60); /* a loss that is not noticed hangs */
	rcu_thread_init();
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	rcu_thread_fini();
	return ret;
}
