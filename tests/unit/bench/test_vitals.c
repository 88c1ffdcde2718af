/* What is read of a process is what the process has; replies are read as they come. */
#include "bench/vitals.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_resident(void **state)
{
	enum { LEN = 32 << 20 };
	uint64_t before, after;
	char *p;

	assert_int_equal(vitals_resident(getpid(), &before), 0);
	assert_true(before > 0);
	p = malloc(LEN);
	assert_non_null(p);
	memset(p, 1, LEN);
	assert_int_equal(p[LEN / 2], 1);
	assert_int_equal(vitals_resident(getpid(), &after), 0);
	assert_true(after >= before + LEN / 2);
	free(p);
}

static void test_cpu(void **state)
{
	volatile unsigned sum = 0;
	uint64_t before, after;

	assert_int_equal(vitals_cpu(getpid(), &before), 0);
	do {
		sum = sum + 1;
		assert_int_equal(vitals_cpu(getpid(), &after), 0);
	} while (after < before + 1000000);
}

/* What a child, and a child of that, spend is counted. */
static void test_tree_cpu(void **state)
{
	uint64_t before, after, own;
	int fd[2];
	char done;
	pid_t pid;

	assert_int_equal(pipe(fd), 0);
	assert_int_equal(vitals_tree_cpu(getpid(), &before), 0);
	pid = fork();
	if (!pid) {
		uint64_t t = 0;

		if (fork())
			for (;;)
				pause();
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (t < 30000000 && !vitals_cpu(getpid(), &t))
			;
		if (write(fd[1], "x", 1) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	assert_int_equal(read(fd[0], &done, 1), 1);
	assert_int_equal(vitals_tree_cpu(getpid(), &after), 0);
	assert_int_equal(vitals_cpu(getpid(), &own), 0);
	assert_true(after >= before + 30000000);
	assert_true(after >= own + 30000000);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(vitals_tree_cpu(pid, &after), -ESRCH);
	close(fd[0]);
	close(fd[1]);
}

static void test_idle(void **state)
{
	uint64_t before, after;

	assert_int_equal(vitals_idle(&before), 0);
	assert_true(before > 0);
	assert_int_equal(vitals_idle(&after), 0);
	assert_true(after >= before);
}

static void test_listens(void **state)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	uint16_t port;

	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	port = ntohs(at.sin_port);
	assert_false(vitals_listens(getpid(), port));
	assert_int_equal(listen(fd, 1), 0);
	assert_true(vitals_listens(getpid(), port));
	close(fd);
	assert_false(vitals_listens(getpid(), port));
}

/* A process that is gone, but whose number is still ours. */
static void test_gone(void **state)
{
	uint64_t v;
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	assert_true(pid > 0);
	assert_int_equal(waitid(P_PID, (id_t)pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
	assert_int_equal(vitals_resident(pid, &v), -ESRCH);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_packets(void **state)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(to);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint64_t before, after;

	assert_int_equal(vitals_packets(getpid(), "none0", &before), -ENODEV);
	assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&to, &len), 0);
	assert_int_equal(vitals_packets(getpid(), "lo", &before), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(sendto(fd, "x", 1, 0, (struct sockaddr *)&to, len), 1);
	assert_int_equal(vitals_packets(getpid(), "lo", &after), 0);
	assert_true(after >= before + 10);
	close(fd);
}

/* What vitals_peer_bytes makes of a reply; the other end is closed after it. */
static ssize_t read_reply(const char *reply, uint64_t *rx_bytes, size_t cap)
{
	char request[64] = "";
	ssize_t n;
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	assert_int_equal(write(fd[1], reply, strlen(reply)), strlen(reply));
	assert_int_equal(shutdown(fd[1], SHUT_WR), 0);
	n = vitals_peer_bytes(fd[0], rx_bytes, cap);
	assert_true(read(fd[1], request, sizeof(request) - 1) > 0);
	assert_string_equal(request, "get=1\n\n");
	close(fd[0]);
	close(fd[1]);
	return n;
}

static void test_peer_bytes(void **state)
{
	uint64_t rx[3] = { 7, 7, 7 };

	assert_int_equal(read_reply("listen_port=1\npublic_key=aa\nrx_bytes=12345678901\n"
				    "tx_bytes=3\npublic_key=bb\nrx_bytes=0\nerrno=0\n\n",
				 rx, 3),
		2);
	assert_int_equal(rx[0], 12345678901);
	assert_int_equal(rx[1], 0);
	assert_int_equal(rx[2], 7);
	/* More than there is room for. */
	assert_int_equal(read_reply("rx_bytes=1\nrx_bytes=2\nerrno=0\n\n", rx, 1), 2);
	assert_int_equal(rx[0], 1);
	assert_int_equal(rx[1], 0);
	assert_int_equal(read_reply("errno=0\n\n", rx, 3), 0);
	assert_int_equal(read_reply("errno=22\n\n", rx, 3), -EINVAL);
	assert_int_equal(read_reply("rx_bytes=1\n", rx, 3), -EPIPE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resident),
		cmocka_unit_test(test_cpu),
		cmocka_unit_test(test_tree_cpu),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_listens),
		cmocka_unit_test(test_gone),
		cmocka_unit_test(test_packets),
		cmocka_unit_test(test_peer_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
