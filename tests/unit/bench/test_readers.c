/* Every way to read sockets delivers what is sent to them, each datagram once. */
#include "bench/readers_child.h"
#include "bench/readers_load.h"
#include "bench/rounds.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOCKETS = 3, PER_SOCKET = 200, PATIENCE_MS = 10000 };

/* Below the range that the kernel gives ports from. Each call another, since a ring holds its own
 * for a while after its process. */
static uint16_t next_port(void)
{
	static unsigned turn;

	return (uint16_t)(2000 + ((unsigned)getpid() + 7 * turn++) * 4 % 28000);
}

static const struct reader_method *method_by_name(const char *name)
{
	size_t i;

	for (i = 0; i < READER_METHODS; i++) {
		if (!strcmp(reader_methods[i].name, name))
			return &reader_methods[i];
	}
	fail_msg("no method %s", name);
	return NULL;
}

/* Starts with a base port that is free; what this kernel or sandbox has not is skipped. */
static uint16_t start_or_skip(struct readers *r, const struct reader_method *m, unsigned n)
{
	uint16_t port = 0;
	int ret = -EADDRINUSE, i;

	for (i = 0; i < 20 && ret == -EADDRINUSE; i++) {
		port = next_port();
		ret = readers_start(r, m, n, port, NULL, 0);
	}
	if (ret == -EOPNOTSUPP || ret == -ENOSYS || ret == -EPERM) {
		print_message("skipped: %s: %s\n", m->name, strerror(-ret));
		skip();
	}
	assert_int_equal(ret, 0);
	return port;
}

/* Wait until so many have been read; a little longer, to see that there are no more. */
static void wait_count(const struct readers *r, uint64_t n)
{
	int left;

	for (left = PATIENCE_MS; left > 0 && readers_count(r) < n; left--)
		usleep(1000);
	usleep(20000);
	assert_int_equal(readers_count(r), n);
}

static void send_one(int fd, uint16_t port, uint64_t word, size_t len)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	uint8_t data[READERS_LEN + 1] = { 0 };

	memcpy(data, &word, sizeof(word));
	assert_int_equal(sendto(fd, data, len, 0, (struct sockaddr *)&to, sizeof(to)), len);
}

/* A sequence of squares, slowly: as many arrive as were sent, with the same sum, so that one that
 * is lost is not made up for by one that is read twice. */
static void check_delivery(const char *name)
{
	const struct reader_method *m = method_by_name(name);
	const unsigned n = m->is_one_socket ? 1 : SOCKETS;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t sum = 0, sent = 0, word;
	struct readers r;
	uint16_t port = start_or_skip(&r, m, n);

	while (sent < SOCKETS * PER_SOCKET) {
		word = (sent + 1) * (sent + 1);
		send_one(fd, (uint16_t)(port + (m->is_one_port ? 0 : sent % n)), word, READERS_LEN);
		sum += word;
		if (++sent % 16 == 0)
			usleep(1000);
	}
	wait_count(&r, sent);
	assert_int_equal(readers_sum(&r), sum);
	assert_int_equal(readers_bad(&r), 0);
	if (!m->is_one_port || m->is_round_robin)
		assert_int_equal(readers_reached(&r), n);
	/* One sender: the kernel's hash knows but one channel. */
	if (m->is_one_port && !m->is_round_robin && !m->is_one_socket)
		assert_int_equal(readers_reached(&r), 1);
	send_one(fd, port, 0, READERS_LEN + 1);
	while (!readers_bad(&r))
		usleep(1000);
	assert_int_equal(readers_count(&r), sent);
	readers_stop(&r);
	close(fd);
}

static void test_blocking(void **state)
{
	check_delivery("blocking");
}

static void test_spin(void **state)
{
	check_delivery("spin");
}

static void test_select(void **state)
{
	check_delivery("select");
}

static void test_epoll(void **state)
{
	check_delivery("epoll");
}

static void test_shared(void **state)
{
	check_delivery("shared");
}

static void test_channels(void **state)
{
	check_delivery("channels");
}

static void test_channels_ebpf(void **state)
{
	check_delivery("channels_ebpf");
}

static void test_uring(void **state)
{
	check_delivery("uring");
}

/* select() takes no descriptor from FD_SETSIZE on: refused, not written beyond the set. */
static void test_select_beyond_its_set(void **state)
{
	const struct rlimit limit = { 3000, 3000 };
	struct readers r;
	int fd[1024], i, ret;

	if (setrlimit(RLIMIT_NOFILE, &limit) < 0) {
		print_message("skipped: no more than %d descriptors\n", FD_SETSIZE);
		skip();
	}
	for (i = 0; i < 1024; i++) {
		fd[i] = dup(STDERR_FILENO);
		assert_true(fd[i] >= 0);
	}
	do {
		ret = readers_start(&r, method_by_name("select"), 1, next_port(), NULL, 0);
	} while (ret == -EADDRINUSE);
	for (i = 0; i < 1024; i++)
		close(fd[i]);
	assert_int_equal(ret, -ERANGE);
	assert_int_equal(r.pid, 0);
	assert_null(r.shared);
}

/* A port that somebody has: no process is left. */
static void test_cannot_start(void **state)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	struct readers r;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(readers_start(&r, method_by_name("epoll"), 1, ntohs(at.sin_port), NULL, 0),
		-EADDRINUSE);
	assert_int_equal(r.pid, 0);
	close(fd);
	readers_stop(&r);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

/* What the load says that it sent arrives, or was lost by a full socket; it rests when told. */
static void test_load(void **state)
{
	struct readers_load g;
	struct readers r;
	uint16_t port = start_or_skip(&r, method_by_name("blocking"), SOCKETS);
	uint64_t sent;
	int left;

	assert_int_equal(readers_load_start(&g, NULL, 0), 0);
	usleep(5000);
	assert_int_equal(readers_load_sent(&g), 0);
	readers_load_aim(&g, port, SOCKETS);
	for (left = PATIENCE_MS; left > 0 && readers_load_sent(&g) < 10000; left--)
		usleep(1000);
	readers_load_aim(&g, 0, 0);
	usleep(200000);
	sent = readers_load_sent(&g);
	assert_true(sent >= 10000);
	usleep(50000);
	assert_int_equal(readers_load_sent(&g), sent);
	assert_true(readers_count(&r) > 0);
	assert_true(readers_count(&r) <= sent);
	assert_int_equal(readers_sum(&r), readers_count(&r)); /* its words are 1 */
	assert_int_equal(readers_bad(&r), 0);
	assert_int_equal(readers_reached(&r), SOCKETS);
	readers_load_stop(&g);
	readers_load_stop(&g);
	readers_stop(&r);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocking),
		cmocka_unit_test(test_spin),
		cmocka_unit_test(test_select),
		cmocka_unit_test(test_epoll),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_channels),
		cmocka_unit_test(test_channels_ebpf),
		cmocka_unit_test(test_uring),
		cmocka_unit_test(test_select_beyond_its_set),
		cmocka_unit_test(test_cannot_start),
		cmocka_unit_test(test_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
