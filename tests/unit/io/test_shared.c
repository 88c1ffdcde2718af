/* Several threads, each with an engine, read one descriptor: every message is received once and
 * leaves in order; and what ends a wait while others read. */
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
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cmocka.h>

enum {
	READERS = 3,
	MESSAGES = 100000,
	UNDER_WAY_MAX = 150, /* what any queue holds without a loss */
	TUN_HEADERS = 20 + 8,
};

static const struct engine_config plain;

struct reader {
	struct engine *e;
	pthread_t thread;
	_Atomic bool is_stopping, is_dropping;
	_Atomic unsigned n_waits; /* that have ended */
	int error;
	struct io_batch batch;
};

struct shared {
	const struct engine_ops *ops;
	int fd;
	size_t skip; /* bytes in front of the number */
	struct turnstile order;
	bool has_order;
	struct reader reader[READERS];
	uint32_t out[MESSAGES]; /* inside the turnstile, or by index of an atomic */
	_Atomic size_t n_out;
};

static struct shared s;

static void take(struct reader *r)
{
	/* Work of uneven length, in which others overtake. */
	for (size_t i = 0; i < r->batch.n % 3; i++)
		sched_yield();
	if (r->batch.order)
		turnstile_enter(r->batch.order, r->batch.ticket);
	for (size_t i = 0; i < r->batch.n; i++) {
		const struct io_rx *rx = &r->batch.rx[i];
		size_t at;

		/* The kernel's own, on a TUN. */
		if (rx->len != s.skip + 4 || (s.skip && rx->data[0] >> 4 != 4))
			continue;
		at = atomic_fetch_add(&s.n_out, 1);
		if (at < MESSAGES)
			memcpy(&s.out[at], rx->data + s.skip, 4);
	}
	if (r->batch.order)
		turnstile_leave(r->batch.order);
}

static void *reader_main(void *arg)
{
	struct reader *r = arg;

	rcu_thread_init();
	while (!atomic_load(&r->is_stopping)) {
		if (atomic_exchange(&r->is_dropping, false))
			r->error |= s.ops->drop(r->e, s.fd);
		r->error |= s.ops->wait(r->e, &r->batch, -1);
		atomic_fetch_add(&r->n_waits, 1);
		r->error |= r->batch.lost != 0;
		r->error |= s.has_order != (r->batch.order != NULL) && r->batch.n > 0;
		take(r);
	}
	rcu_thread_fini();
	return NULL;
}

static void readers_start(const char *name, int fd, enum io_kind kind, bool has_order)
{
	memset(&s, 0, sizeof(s));
	s.fd = fd;
	s.has_order = has_order;
	assert_int_equal(engine_pick(&s.ops, name, &plain), 0);
	assert_int_equal(turnstile_init(&s.order), 0);
	for (int i = 0; i < READERS; i++) {
		struct reader *r = &s.reader[i];

		assert_int_equal(s.ops->open(&r->e, &plain), 0);
		assert_int_equal(
			s.ops->add(r->e,
				&(struct io_channel){ fd, kind, 3, has_order ? &s.order : NULL }),
			0);
	}
}

static void readers_go(void)
{
	for (int i = 0; i < READERS; i++)
		assert_int_equal(
			pthread_create(&s.reader[i].thread, NULL, reader_main, &s.reader[i]), 0);
}

static void readers_stop(void)
{
	for (int i = 0; i < READERS; i++) {
		atomic_store(&s.reader[i].is_stopping, true);
		s.ops->wake(s.reader[i].e);
		pthread_join(s.reader[i].thread, NULL);
		assert_int_equal(s.reader[i].error, 0);
		s.ops->close(s.reader[i].e);
	}
	turnstile_fini(&s.order);
}

static int order_of_numbers(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Send the numbers from fd, while one reader is woken now and then and another drops the
 * descriptor half way. */
static void exchange(int fd)
{
	uint64_t woken_ns = clock_now_ns();

	readers_go();
	for (uint32_t i = 0; i < MESSAGES; i++) {
		while (i - atomic_load(&s.n_out) >= UNDER_WAY_MAX) {
			if (clock_now_ns() - woken_ns > NSEC_PER_MSEC) {
				s.ops->wake(s.reader[i % 2].e);
				woken_ns = clock_now_ns();
			}
			sched_yield();
		}
		if (i == MESSAGES / 2) {
			atomic_store(&s.reader[READERS - 1].is_dropping, true);
			s.ops->wake(s.reader[READERS - 1].e);
		}
		assert_int_equal(write(fd, &i, 4), 4);
	}
	while (atomic_load(&s.n_out) < MESSAGES)
		usleep(1000);
	usleep(1000);
	readers_stop();
	assert_int_equal(s.n_out, MESSAGES);
	if (!s.has_order)
		qsort(s.out, MESSAGES, sizeof(s.out[0]), order_of_numbers);
	for (uint32_t i = 0; i < MESSAGES; i++)
		assert_int_equal(s.out[i], i);
}

static void socketpair_exchange(const char *name, bool has_order)
{
	int fd[2];

	assert_int_equal(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
	readers_start(name, fd[0], IO_FRAME, has_order);
	exchange(fd[1]);
	close(fd[0]);
	close(fd[1]);
}

/* A UDP socket on loopback and one that sends to it. */
static void udp_open(int *in, int *out)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);

	*in = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	*out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(*in >= 0 && *out >= 0);
	assert_int_equal(bind(*in, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(*in, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(connect(*out, (struct sockaddr *)&a, sizeof(a)), 0);
}

static void udp_exchange(const char *name, bool has_order)
{
	int in, out;

	udp_open(&in, &out);
	readers_start(name, in, IO_DGRAM, has_order);
	exchange(out);
	close(in);
	close(out);
}

static void test_epoll_socketpair(void **state)
{
	socketpair_exchange("epoll", true);
}

static void test_epoll_udp(void **state)
{
	udp_exchange("epoll", true);
}

static void test_blocking_socketpair(void **state)
{
	socketpair_exchange("blocking", true);
	socketpair_exchange("blocking", false);
}

static void test_blocking_udp(void **state)
{
	udp_exchange("blocking", true);
	udp_exchange("blocking", false);
}

/* A wake-up at any moment ends a wait, whoever holds the lock. */
static void wake_often(const char *name)
{
	int in, out;
	struct reader *r;

	udp_open(&in, &out);
	readers_start(name, in, IO_DGRAM, true);
	readers_go();
	for (int i = 0; i < 20000; i++) {
		unsigned n;

		/* Mostly the same one, which is just about to wait again. */
		r = &s.reader[i / 100 % READERS];
		n = atomic_load(&r->n_waits);
		for (int k = i % 50; k; k--)
			cpu_relax();
		s.ops->wake(r->e);
		while (atomic_load(&r->n_waits) == n)
			sched_yield();
	}
	/* Each ends although nothing comes, the ones in front of the lock first or last. */
	readers_stop();
	close(in);
	close(out);
}

static void test_wake(void **state)
{
	wake_often("epoll");
	wake_often("blocking");
}

/* Nobody asks over and over while there is nothing, or nothing for it. */
static void test_no_spinning(void **state)
{
	static const char *const names[] = { "epoll", "blocking" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct timespec a, b;
		int in, out;

		udp_open(&in, &out);
		readers_start(names[i], in, IO_DGRAM, true);
		readers_go();
		assert_int_equal(write(out, "1234", 4), 4);
		usleep(100 * 1000);
		assert_int_equal(s.n_out, 1);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
		usleep(200 * 1000);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
		assert_true((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 100);
		readers_stop();
		close(in);
		close(out);
	}
}

static _Atomic int n_signals;

static void on_signal(int signal)
{
	atomic_fetch_add(&n_signals, 1);
}

/* Signals that are not the engine's end no wait, in the read and in front of the lock. */
static void test_foreign_signals(void **state)
{
	struct sigaction sa = { .sa_handler = on_signal }, old;
	struct engine *e;
	const struct engine_ops *ops = &blocking_ops;
	int in, out;

	sigaction(SIGUSR1, &sa, &old);
	udp_open(&in, &out);
	readers_start("blocking", in, IO_DGRAM, true);
	readers_go();
	usleep(20 * 1000);
	for (int i = 0; i < READERS; i++)
		pthread_kill(s.reader[i].thread, SIGUSR1);
	usleep(20 * 1000);
	assert_int_equal(write(out, "1234", 4), 4);
	while (atomic_load(&s.n_out) < 1)
		usleep(1000);
	readers_stop();
	assert_int_equal(n_signals, READERS);
	sigaction(SIGUSR1, &old, NULL);
	/* One channel, and none: a time-out all the same. */
	assert_int_equal(ops->open(&e, &plain), 0);
	assert_int_equal(ops->wait(e, &s.reader[0].batch, 10 * NSEC_PER_MSEC), 0);
	assert_int_equal(ops->add(e, &(struct io_channel){ in, IO_DGRAM, 1, NULL }), 0);
	assert_int_equal(ops->add(e, &(struct io_channel){ out, IO_DGRAM, 1, NULL }), -ENOSPC);
	ops->close(e);
	close(in);
	close(out);
}

/* Runs last, since it leaves us in a network namespace of our own. */
static void test_tun(void **state)
{
	struct ifreq ifr = { .ifr_name = "shared0", .ifr_flags = IFF_TUN | IFF_NO_PI };
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x0a000002)
	};
	static const char *const names[] = { "epoll", "blocking" };
	int fd, out;

	if (unshare(CLONE_NEWNET)) {
		print_message("skipped: needs CAP_SYS_ADMIN for a network namespace\n");
		skip();
	}
	fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
	assert_int_equal(
		system("ip addr add 10.0.0.1/24 dev shared0 && ip link set shared0 up"), 0);
	out = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(out, (struct sockaddr *)&to, sizeof(to)), 0);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		uint8_t b[2000];

		fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
		usleep(100 * 1000);
		while (read(fd, b, sizeof(b)) > 0) /* the kernel's own */
			;
		readers_start(names[i], fd, IO_FRAME, true);
		s.skip = TUN_HEADERS;
		exchange(out);
	}
	close(fd);
	close(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_epoll_socketpair),
		cmocka_unit_test(test_epoll_udp),
		cmocka_unit_test(test_blocking_socketpair),
		cmocka_unit_test(test_blocking_udp),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_no_spinning),
		cmocka_unit_test(test_foreign_signals),
		cmocka_unit_test(test_tun),
	};

	/* A lost wake-up hangs. */
	alarm(240);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
