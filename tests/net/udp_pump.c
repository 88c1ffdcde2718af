/* Numbered datagrams at a steady rate, and which of them arrived.
 *
 *   udp_pump send ADDRESS PORT RATE SIZE     until SIGTERM; then prints "sent N refused N"
 *   udp_pump receive ADDRESS PORT            prints "ready", reads N from standard input, and
 *                                            prints which of the first N never arrived
 *
 * The sender wakes once a millisecond and sends what is due by then, so that a burst is a
 * millisecond's worth; after a time in which it was not run it catches up in bursts of no
 * more than BURST_MAX. Datagrams begin with their number, 8 bytes, least significant first. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	BURST_MAX = 64,
	SIZE_LIMIT = 2048,
	RCVBUF = 256 << 20,
	NUMBERS_MAX = 1 << 28, /* 32 MiB of bits: more than an hour at 50,000 a second */
	RANGES_SHOWN = 20,
};

static volatile sig_atomic_t is_stopping;

static void stop(int number)
{
	is_stopping = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "udp_pump: %s: %s\n", what, strerror(errno));
	exit(1);
}

static socklen_t parse(struct sockaddr_storage *out, const char *address, const char *port)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
	uint16_t number = htons((uint16_t)atoi(port));

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = number;
		return sizeof(*v4);
	}
	if (inet_pton(AF_INET6, address, &v6->sin6_addr) != 1)
		die(address);
	v6->sin6_family = AF_INET6;
	v6->sin6_port = number;
	return sizeof(*v6);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- Sending. */

static uint8_t data[BURST_MAX][SIZE_LIMIT];
static struct iovec iov[BURST_MAX];
static struct mmsghdr msgs[BURST_MAX];

/* Numbers first to first + n - 1. Returns how many the kernel refused. */
static uint64_t send_burst(int fd, uint64_t first, unsigned n, size_t size)
{
	uint64_t refused = 0;
	unsigned done = 0;

	for (unsigned i = 0; i < n; i++) {
		uint64_t number = htole64(first + i);

		memcpy(data[i], &number, sizeof(number));
		iov[i] = (struct iovec){ data[i], size };
		msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	while (done < n) {
		int ret = sendmmsg(fd, msgs + done, n - done, 0);

		if (ret > 0) {
			done += (unsigned)ret;
		} else if (errno != EINTR) {
			refused++;
			done++;
		}
	}
	return refused;
}

static void pump(int fd, uint64_t rate, size_t size)
{
	uint64_t sent = 0, refused = 0, start = now_ns();

	while (!is_stopping) {
		uint64_t due = (now_ns() - start) / 1000 * rate / 1000000;

		while (sent < due && !is_stopping) {
			unsigned n = due - sent < BURST_MAX ? (unsigned)(due - sent) : BURST_MAX;

			refused += send_burst(fd, sent, n, size);
			sent += n;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	printf("sent %" PRIu64 " refused %" PRIu64 "\n", sent, refused);
}

/* ---- Receiving. */

static uint8_t seen[NUMBERS_MAX / 8];

struct count {
	uint64_t received, twice, late, highest;
};

static void take(struct count *c, const uint8_t *d, ssize_t len)
{
	uint64_t number;

	if (len < (ssize_t)sizeof(number))
		return;
	memcpy(&number, d, sizeof(number));
	number = le64toh(number);
	if (number >= NUMBERS_MAX)
		return;
	if (seen[number / 8] & 1 << number % 8) {
		c->twice++;
		return;
	}
	seen[number / 8] |= (uint8_t)(1 << number % 8);
	c->received++;
	if (number < c->highest)
		c->late++;
	else
		c->highest = number;
}

/* All that is queued. */
static void drain(int fd, struct count *c)
{
	for (;;) {
		int n;

		for (unsigned i = 0; i < BURST_MAX; i++) {
			iov[i] = (struct iovec){ data[i], SIZE_LIMIT };
			msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
		}
		n = recvmmsg(fd, msgs, BURST_MAX, MSG_DONTWAIT, NULL);
		if (n <= 0)
			return;
		for (int i = 0; i < n; i++)
			take(c, data[i], msgs[i].msg_len);
	}
}

static void report(int fd, const struct count *c, uint64_t n)
{
	uint32_t mem[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(mem);
	uint64_t lost = 0;
	unsigned n_ranges = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, mem, &len) < 0)
		die("SO_MEMINFO");
	for (uint64_t i = 0, end; i < n && i < NUMBERS_MAX; i = end) {
		bool is_seen = seen[i / 8] & 1 << i % 8;

		for (end = i + 1; end < n; end++)
			if ((bool)(seen[end / 8] & 1 << end % 8) != is_seen)
				break;
		if (is_seen)
			continue;
		lost += end - i;
		if (n_ranges++ < RANGES_SHOWN)
			printf("gap %" PRIu64 " %" PRIu64 "\n", i, end - i);
	}
	printf("received %" PRIu64 " lost %" PRIu64 " twice %" PRIu64 " late %" PRIu64
	       " overflow %" PRIu32 "\n",
		c->received, lost, c->twice, c->late, mem[SK_MEMINFO_DROPS]);
}

static void receive(int fd)
{
	struct pollfd fds[2] = { { fd, POLLIN, 0 }, { STDIN_FILENO, POLLIN, 0 } };
	struct count c = { 0 };
	char line[32];

	puts("ready");
	fflush(stdout);
	while (!fds[1].revents) {
		if (poll(fds, 2, -1) < 0)
			return;
		drain(fd, &c);
	}
	if (fgets(line, sizeof(line), stdin))
		report(fd, &c, strtoull(line, NULL, 10));
}

int main(int argc, char **argv)
{
	bool is_sender = argc == 6 && strcmp(argv[1], "send") == 0;
	struct sigaction on_term = { .sa_handler = stop };
	struct sockaddr_storage addr;
	int size = RCVBUF;
	socklen_t len;
	int fd;

	if (!is_sender && !(argc == 4 && strcmp(argv[1], "receive") == 0)) {
		fprintf(stderr,
			"usage: udp_pump send ADDRESS PORT RATE SIZE\n"
			"       udp_pump receive ADDRESS PORT\n");
		return 2;
	}
	sigaction(SIGTERM, &on_term, NULL);
	len = parse(&addr, argv[2], argv[3]);
	fd = socket(addr.ss_family, SOCK_DGRAM, 0);
	if (fd < 0)
		die("socket");
	if (is_sender) {
		size_t n = strtoul(argv[5], NULL, 10);

		if (connect(fd, (struct sockaddr *)&addr, len) < 0)
			die("connect");
		pump(fd, strtoull(argv[4], NULL, 10), n < 8 ? 8 : n > SIZE_LIMIT ? SIZE_LIMIT : n);
		return 0;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0)
		die("SO_RCVBUFFORCE");
	if (bind(fd, (struct sockaddr *)&addr, len) < 0)
		die("bind");
	receive(fd);
	return 0;
}
