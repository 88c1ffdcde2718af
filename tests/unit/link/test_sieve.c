/* The programs in the kernel, on real sockets on the loopback. */
#include "base/clock.h"
#include "base/sandbox.h"
#include "link/link.h"
#include "wire/wgmsg.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum {
	TABLE_PLACES = 65536, /* SIEVE_SETS * SIEVE_WAYS */
	GUILTY_PLACES = 32768,
	SHARE = 64,
	WAIT_MS = 10000,
	INDEX = 0x01020304,
};

/* What a meter holds at the start is all there is: it refills too slowly to matter. */
static const struct udp_config one_each = { .allowed = OFFLOAD_ALL, .n = 1, .steer = { -1, -1 } };
static const struct sieve_settings slow = {
	.flood_per_s = 1,
	.flood_burst = 10,
	.hold_ms = 1000000,
	.pass_per_s = 1,
	.pass_burst = 1000,
	.source_per_min = 1,
	.source_burst = 3,
};

static struct sieve *sieve;
static struct udp u;
static int sender[2]; /* by family */
static uint64_t n_sent; /* handshake messages, so far */

static int load_error(void)
{
	static int ret = 1;

	if (ret == 1) {
		ret = sieve_create(&sieve);
		sieve_destroy(sieve);
		sieve = NULL;
	}
	return ret;
}

static void need_sieve(void)
{
	if (!load_error())
		return;
	print_message(
		"skipped: eBPF programs cannot be loaded here: %s\n", strerror(-load_error()));
	skip();
}

static int setup(void **state)
{
	int one = 1;

	if (load_error())
		return 0; /* the tests say that they skip */
	if (sieve_create(&sieve) || udp_open(&u, &one_each) || sieve_attach(sieve, &u))
		return -1;
	sieve_set(sieve, &slow);
	sender[0] = socket(AF_INET, SOCK_DGRAM, 0);
	sender[1] = socket(AF_INET6, SOCK_DGRAM, 0);
	if (sender[1] >= 0 && setsockopt(sender[1], IPPROTO_IPV6, IPV6_FREEBIND, &one, sizeof(one)))
		return -1;
	n_sent = 0;
	return 0;
}

static int teardown(void **state)
{
	if (load_error())
		return 0;
	udp_close(&u);
	sieve_destroy(sieve);
	sieve = NULL;
	close(sender[0]);
	if (sender[1] >= 0)
		close(sender[1]);
	return 0;
}

static bool has_family(unsigned family)
{
	return u.data[family][0] >= 0 && sender[family] >= 0;
}

/* ---- Sending from any address, and what has become of it. */

struct control {
	_Alignas(struct cmsghdr) uint8_t bytes[256];
	size_t len;
};

static void put_control(struct control *c, int level, int type, const void *data, size_t len)
{
	struct cmsghdr h = { .cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type };

	memcpy(c->bytes + c->len, &h, sizeof(h));
	memcpy(c->bytes + c->len + CMSG_LEN(0), data, len);
	c->len += CMSG_SPACE(len);
}

/* From this address, which need not be one of ours, to our port on the loopback; with
 * seg_len as a train of that. */
static void send_from(const char *source, const void *msg, size_t len, uint16_t seg_len)
{
	bool is_v6 = strchr(source, ':');
	struct sockaddr_in v4 = { .sin_family = AF_INET,
		.sin_port = htons(u.port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
		.sin6_port = htons(u.port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct iovec iov = { (void *)msg, len };
	struct control c = { .len = 0 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.bytes };

	if (is_v6) {
		struct in6_pktinfo info = { .ipi6_ifindex = 0 };

		assert_int_equal(inet_pton(AF_INET6, source, &info.ipi6_addr), 1);
		put_control(&c, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
		h.msg_name = &v6;
		h.msg_namelen = sizeof(v6);
	} else {
		struct in_pktinfo info = { .ipi_ifindex = 0 };

		assert_int_equal(inet_pton(AF_INET, source, &info.ipi_spec_dst), 1);
		put_control(&c, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
		h.msg_name = &v4;
		h.msg_namelen = sizeof(v4);
	}
	if (seg_len)
		put_control(&c, IPPROTO_UDP, UDP_SEGMENT, &seg_len, sizeof(seg_len));
	h.msg_controllen = c.len;
	assert_int_equal(sendmsg(sender[is_v6], &h, 0), len);
}

static uint64_t dropped(enum sieve_drop why)
{
	uint64_t n[SIEVE_DROP_N];

	sieve_drops(sieve, n);
	return n[why];
}

static void pause_ms(unsigned ms)
{
	usleep(ms * 1000);
}

/* Until the kernel has judged all handshake messages that were sent. */
static void wait_judged(void)
{
	for (unsigned i = 0; i < WAIT_MS; i++) {
		uint64_t n = sieve_passed(sieve);

		for (unsigned k = 0; k < SIEVE_DROP_N; k++)
			n += dropped(k);
		if (n == n_sent)
			return;
		pause_ms(1);
	}
	fail_msg("not all messages were judged");
}

/* n handshake messages; how many passed? */
static uint64_t passes(const char *source, uint8_t type, size_t len, unsigned n)
{
	uint8_t msg[2048] = { type };
	uint64_t before = sieve_passed(sieve);

	for (unsigned i = 0; i < n; i++)
		send_from(source, msg, len, 0);
	n_sent += n;
	wait_judged();
	return sieve_passed(sieve) - before;
}

static uint64_t initiations(const char *source, unsigned n)
{
	return passes(source, WGMSG_INITIATION, WGMSG_INITIATION_LEN, n);
}

/* From here on a token is needed. */
static void begin_flood(void)
{
	assert_int_equal(initiations("127.9.9.9", slow.flood_burst), slow.flood_burst);
}

static size_t read_all(int fd)
{
	uint8_t buf[65536];
	size_t n = 0;

	while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) >= 0)
		n++;
	return n;
}

/* ---- Handshakes. */

static void below_flood(void **state)
{
	need_sieve();
	/* Ten at once from one source are none; the socket has what passed. */
	assert_int_equal(initiations("127.0.0.1", 10), 10);
	assert_int_equal(read_all(u.handshake[0]), 10);
	assert_int_equal(initiations("127.0.0.1", 10), 3);
	assert_int_equal(dropped(SIEVE_DROP_SOURCE), 7);
	assert_int_equal(read_all(u.handshake[0]), 3);
	/* What did not pass went nowhere else. */
	assert_int_equal(read_all(u.data[0][0]), 0);
}

static void each_source_has_its_share(void **state)
{
	char source[32];

	need_sieve();
	begin_flood();
	for (unsigned i = 0; i < 100; i++) {
		snprintf(source, sizeof(source), "127.1.%u.%u", i % 3, i);
		assert_int_equal(initiations(source, 5), 3);
	}
	assert_int_equal(dropped(SIEVE_DROP_SOURCE), 200);
	/* One message more, and the last one's share is used up for good. */
	assert_int_equal(initiations(source, 1), 0);
}

/* Whoever has one IPv6 address has a /64 of them. */
static void prefix_counts_as_one(void **state)
{
	need_sieve();
	if (!has_family(1)) {
		print_message("skipped: no IPv6\n");
		skip();
	}
	begin_flood();
	assert_int_equal(initiations("fd00:0:0:1::1", 1), 1);
	assert_int_equal(initiations("fd00:0:0:1:ffff::2", 1), 1);
	assert_int_equal(initiations("fd00:0:0:1:0:0:ffff:3", 2), 1);
	assert_int_equal(initiations("fd00:0:0:2::1", 4), 3);
	assert_int_equal(initiations("fd00:0:1:1::1", 4), 3);
	assert_int_equal(initiations("::1", 4), 3);
	assert_int_equal(dropped(SIEVE_DROP_SOURCE), 4);
	/* Same bytes, other family. */
	assert_int_equal(initiations("127.0.0.2", 4), 3);
	assert_int_equal(initiations("7f00:2::", 4), 3);
}

static void all_types_count(void **state)
{
	need_sieve();
	assert_int_equal(passes("127.0.0.1", WGMSG_INITIATION, WGMSG_INITIATION_LEN, 4), 4);
	assert_int_equal(passes("127.0.0.1", WGMSG_RESPONSE, WGMSG_RESPONSE_LEN, 4), 4);
	assert_int_equal(passes("127.0.0.1", WGMSG_COOKIE, WGMSG_COOKIE_LEN, 4), 2 + 2);
	assert_int_equal(passes("127.0.0.1", WGMSG_RESPONSE, WGMSG_RESPONSE_LEN, 4), 1);
}

static void malformed(void **state)
{
	static const struct {
		uint8_t type;
		size_t len;
	} bad[] = {
		{ 1, 147 },
		{ 1, 149 },
		{ 1, 92 },
		{ 1, 64 },
		{ 1, 1472 },
		{ 1, 1 },
		{ 1, 4 },
		{ 2, 91 },
		{ 2, 93 },
		{ 2, 148 },
		{ 2, 64 },
		{ 2, 3 },
		{ 3, 63 },
		{ 3, 65 },
		{ 3, 148 },
		{ 3, 92 },
		{ 3, 2 },
	};
	uint8_t msg[WGMSG_INITIATION_LEN] = { WGMSG_INITIATION };

	need_sieve();
	for (unsigned family = 0; family < 2; family++) {
		const char *source = family ? "::1" : "127.0.0.1";

		if (!has_family(family))
			continue;
		for (size_t i = 0; i < ARRAY_LEN(bad); i++)
			assert_int_equal(passes(source, bad[i].type, bad[i].len, 1), 0);
		/* The reserved bytes are zero. */
		for (unsigned i = 1; i < 4; i++) {
			msg[i] = 1;
			send_from(source, msg, sizeof(msg), 0);
			msg[i] = 0;
		}
		n_sent += 3;
		wait_judged();
		assert_int_equal(read_all(u.handshake[family]), 0);
		assert_int_equal(
			dropped(SIEVE_DROP_MALFORMED), (family + 1) * (ARRAY_LEN(bad) + 3));
	}
	/* None of them counted towards a flood. */
	assert_int_equal(initiations("127.0.0.1", 10), 10);
}

/* Not more than the process can answer, from however many sources. */
static void budget_of_all(void **state)
{
	struct sieve_settings set = slow;
	uint64_t n = 0;
	char source[32];

	need_sieve();
	set.pass_burst = 50;
	sieve_set(sieve, &set);
	begin_flood();
	for (unsigned i = 0; i < 100; i++) {
		snprintf(source, sizeof(source), "127.1.0.%u", i);
		n += initiations(source, 1);
	}
	/* One a second comes on top. */
	assert_in_range(n, 50, 90);
	assert_int_equal(dropped(SIEVE_DROP_BUDGET), 100 - n);
	assert_int_equal(dropped(SIEVE_DROP_SOURCE), 0);
}

/* More sources than places: those who were there first keep theirs, so that ever new
 * addresses are no way to ever new tokens. */
static void table_full(void **state)
{
	enum { N = 2 * TABLE_PLACES };
	struct sieve_settings set = slow;
	uint8_t msg[WGMSG_INITIATION_LEN] = { WGMSG_INITIATION };
	uint64_t n_tokens, n;
	char source[32];

	need_sieve();
	set.source_burst = 1;
	set.pass_per_s = 1000000;
	set.pass_burst = 1000000;
	sieve_set(sieve, &set);
	begin_flood();
	assert_int_equal(initiations("127.1.1.1", 1), 1);
	n = sieve_passed(sieve);
	for (unsigned i = 0; i < N; i++) {
		snprintf(source, sizeof(source), "127.%u.%u.%u", 16 + (i >> 16), i >> 8 & 255,
			i & 255);
		send_from(source, msg, sizeof(msg), 0);
	}
	n_sent += N;
	wait_judged();
	n_tokens = sieve_passed(sieve) - n;
	/* Sixteen on average come to a set of eight: few sets get less than eight. */
	assert_in_range(n_tokens, TABLE_PLACES * 9 / 10, TABLE_PLACES);
	assert_int_equal(dropped(SIEVE_DROP_TABLE), N - n_tokens);
	assert_int_equal(initiations("127.1.1.1", 1), 0);
	assert_int_equal(dropped(SIEVE_DROP_SOURCE), 1);
}

/* Tokens come back, and a place whose tokens are all there goes to whoever needs it. */
static void tokens_come_back(void **state)
{
	struct sieve_settings set = slow;
	uint64_t n = 0;

	need_sieve();
	set.source_per_min = 6000;
	sieve_set(sieve, &set);
	begin_flood();
	for (unsigned i = 0; n < 10 && i < WAIT_MS; i++) {
		n += initiations("127.0.0.1", 1);
		pause_ms(1);
	}
	assert_true(n >= 10);
}

static void flood_ends(void **state)
{
	struct sieve_settings set = slow;
	uint64_t n = 0;

	need_sieve();
	/* A hundred times longer than the hold, if it were to be waited for. */
	set.flood_per_s = 1000;
	set.hold_ms = 100;
	sieve_set(sieve, &set);
	initiations("127.0.0.1", 100000);
	assert_true(dropped(SIEVE_DROP_SOURCE) > 0);
	/* One token a minute: what passes now passes without. */
	for (unsigned i = 0; n < 5 && i < WAIT_MS / 40; i++) {
		pause_ms(40);
		n += initiations("127.0.0.1", 1);
	}
	assert_int_equal(n, 5);
}

/* One that pauses is still the same. */
static void flood_pauses(void **state)
{
	struct sieve_settings set = slow;

	need_sieve();
	set.flood_per_s = 100;
	set.hold_ms = 50000;
	sieve_set(sieve, &set);
	initiations("127.0.0.1", 10000);
	pause_ms(300);
	assert_in_range(initiations("127.0.0.1", 10), 0, 1);
}

/* A flood that goes on stays one, however long. */
static void flood_goes_on(void **state)
{
	struct sieve_settings set = slow;
	uint64_t n;

	need_sieve();
	set.flood_per_s = 1000;
	set.hold_ms = 500;
	sieve_set(sieve, &set);
	initiations("127.0.0.1", 1000);
	n = sieve_passed(sieve);
	for (unsigned i = 0; i < 20; i++) {
		pause_ms(10);
		initiations("127.0.0.1", 100);
	}
	assert_in_range(sieve_passed(sieve) - n, 0, 1);
}

/* ---- Trains. */

static void handshake_trains(void **state)
{
	static uint8_t train[10 * WGMSG_INITIATION_LEN];
	uint64_t passed;

	need_sieve();
	for (size_t i = 0; i < sizeof(train); i += WGMSG_INITIATION_LEN)
		train[i] = WGMSG_INITIATION;
	send_from("127.0.0.1", train, sizeof(train), WGMSG_INITIATION_LEN);
	n_sent += 10;
	wait_judged();
	assert_int_equal(sieve_passed(sieve), 10);
	/* It was a flood with the tenth message: a train needs a token for each. */
	send_from("127.0.0.1", train, 4 * WGMSG_INITIATION_LEN, WGMSG_INITIATION_LEN);
	n_sent += 4;
	wait_judged();
	assert_int_equal(dropped(SIEVE_DROP_SOURCE), 4);
	send_from("127.0.0.1", train, 3 * WGMSG_INITIATION_LEN - 1, WGMSG_INITIATION_LEN);
	n_sent += 3;
	wait_judged();
	assert_int_equal(sieve_passed(sieve), 13);
	passed = sieve_passed(sieve);
	send_from("127.0.0.2", train, sizeof(train), 100);
	n_sent += 15;
	wait_judged();
	assert_int_equal(sieve_passed(sieve), passed);
	assert_int_equal(dropped(SIEVE_DROP_MALFORMED), 15);
}

/* ---- Data. */

static struct wg_endpoint endpoint_of(const char *source)
{
	bool is_v6 = strchr(source, ':');
	struct sockaddr_storage name;
	socklen_t len = sizeof(name);
	struct ipport a = { 0 };
	struct wg_endpoint e;

	/* The port is set with the first datagram sent. */
	assert_int_equal(getsockname(sender[is_v6], (struct sockaddr *)&name, &len), 0);
	a.port = ntohs(((struct sockaddr_in *)&name)->sin_port);
	assert_int_equal(ipaddr_parse(&a.addr, source, strlen(source)), 0);
	endpoint_from_addr(&e, &a);
	return e;
}

/* n data messages of 1000 bytes, each for itself or all in a train; how many arrive? */
static size_t data_arrives(const char *source, uint32_t receiver, unsigned n, bool is_train)
{
	static uint8_t train[64 * 1000];
	int fd = u.data[strchr(source, ':') != NULL][0];
	size_t n_arrived = 0;
	uint8_t mark = 0;

	for (unsigned i = 0; i < (is_train ? n : 1); i++) {
		put_le32(train + i * 1000, WGMSG_DATA);
		put_le32(train + i * 1000 + 4, receiver);
	}
	if (is_train)
		send_from(source, train, n * 1000, 1000);
	for (unsigned i = 0; !is_train && i < n; i++)
		send_from(source, train, 1000, 0);
	/* Behind them one that nobody is guilty of. */
	send_from(source, &mark, 1, 0);
	for (unsigned i = 0; i < WAIT_MS; i++) {
		uint8_t buf[65536];
		ssize_t len;

		while ((len = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 1)
			n_arrived += (size_t)len / 1000;
		if (len == 1)
			return n_arrived;
		pause_ms(1);
	}
	fail_msg("nothing arrives");
	return 0;
}

static void guilty_source(const char *source, const char *other)
{
	uint64_t before = dropped(SIEVE_DROP_GUILTY);
	struct wg_endpoint e, wrong_port;
	struct ipport a;

	assert_int_equal(data_arrives(source, INDEX, 20, false), 20);
	e = endpoint_of(source);
	endpoint_to_addr(&a, &e);
	a.port++;
	endpoint_from_addr(&wrong_port, &a);
	sieve_accuse(sieve, &wrong_port, INDEX, clock_now_ns() + 1000 * NSEC_PER_SEC);
	assert_int_equal(data_arrives(source, INDEX, 20, false), 20);

	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 1000 * NSEC_PER_SEC);
	assert_int_equal(data_arrives(source, INDEX, 2 * SHARE, false), 2);
	assert_int_equal(dropped(SIEVE_DROP_GUILTY) - before, 2 * SHARE - 2);
	assert_int_equal(data_arrives(source, INDEX + 1, 20, false), 20);
	assert_int_equal(data_arrives(source, INDEX ^ 1U << 31, 20, false), 20);
	assert_int_equal(data_arrives(other, INDEX, 20, false), 20);

	/* Somebody else who is accused changes nothing; an earlier end neither. */
	e = endpoint_of(other);
	sieve_accuse(sieve, &e, INDEX + 5, clock_now_ns() + 2000 * NSEC_PER_SEC);
	e = endpoint_of(source);
	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 500 * NSEC_PER_SEC);
	assert_int_equal(data_arrives(source, INDEX, SHARE, false), 1);

	sieve_accuse(sieve, &e, INDEX, 0);
	assert_int_equal(data_arrives(source, INDEX, 20, false), 20);
}

/* Everybody but one is guilty; then that one moves. */
static void strangers(const char *home, const char *other, const char *another)
{
	uint64_t until = clock_now_ns() + 1000 * NSEC_PER_SEC;
	struct wg_endpoint e;

	assert_int_equal(data_arrives(home, INDEX, 20, false), 20);
	e = endpoint_of(home);
	sieve_accuse_strangers(sieve, &e, INDEX, until);
	assert_int_equal(data_arrives(home, INDEX, 2 * SHARE, false), 2 * SHARE);
	assert_int_equal(data_arrives(other, INDEX, SHARE, false), 1);
	assert_int_equal(data_arrives(another, INDEX, SHARE, false), 1);
	assert_int_equal(data_arrives(other, INDEX + 1, 20, false), 20);
	e = endpoint_of(other);
	sieve_accuse_strangers(sieve, &e, INDEX, until - 1);
	assert_int_equal(data_arrives(other, INDEX, SHARE, false), SHARE);
	assert_int_equal(data_arrives(home, INDEX, SHARE, false), 1);
	sieve_accuse_strangers(sieve, &e, INDEX, 0);
	assert_int_equal(data_arrives(home, INDEX, 20, false), 20);
}

static void guilty_strangers(void **state)
{
	need_sieve();
	strangers("127.0.0.1", "127.0.0.2", "127.0.0.3");
	if (has_family(1))
		strangers("fd00::1", "fd00::2", "fd00::3");
}

static void guilty(void **state)
{
	need_sieve();
	guilty_source("127.0.0.1", "127.0.0.2");
	guilty_source("127.77.0.1", "127.0.77.1");
	if (!has_family(1))
		return;
	guilty_source("fd00::1", "fd00::2");
	guilty_source("fd00:0:0:1::", "fd00:0:0:2::");
}

static void guilt_ends(void **state)
{
	struct wg_endpoint e;
	unsigned i;

	need_sieve();
	data_arrives("127.0.0.1", INDEX, 1, false);
	e = endpoint_of("127.0.0.1");
	/* Somebody else is for longer. */
	sieve_accuse(sieve, &e, INDEX + 1, clock_now_ns() + 1000 * NSEC_PER_SEC);
	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 200 * NSEC_PER_MSEC);
	for (i = 0; i < WAIT_MS / 10 && data_arrives("127.0.0.1", INDEX, 3, false) < 3; i++)
		pause_ms(10);
	assert_in_range(i, 1, WAIT_MS / 10 - 1);
	/* and begins again */
	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 1000 * NSEC_PER_SEC);
	assert_in_range(data_arrives("127.0.0.1", INDEX, 3, false), 0, 1);
	/* An earlier end is none. */
	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 50 * NSEC_PER_MSEC);
	pause_ms(100);
	assert_in_range(data_arrives("127.0.0.1", INDEX, 3, false), 0, 1);
}

/* Every place is taken by somebody who differs in one thing only. */
static void nearly_guilty(void **state)
{
	uint64_t until = clock_now_ns() + 1000 * NSEC_PER_SEC;
	struct ipport v4, v6;
	struct wg_endpoint e;

	need_sieve();
	data_arrives("127.0.0.1", INDEX, 1, false);
	e = endpoint_of("127.0.0.1");
	endpoint_to_addr(&v4, &e);
	for (uint32_t i = 1; i < 65536; i++) {
		struct ipport other = v4;

		other.port = (uint16_t)(v4.port + i);
		endpoint_from_addr(&e, &other);
		sieve_accuse(sieve, &e, INDEX, until);
		other = v4;
		put_be16(other.addr.ip + 1, (uint16_t)i);
		endpoint_from_addr(&e, &other);
		sieve_accuse(sieve, &e, INDEX, until + 1);
	}
	assert_int_equal(data_arrives("127.0.0.1", INDEX, 20, false), 20);
	if (!has_family(1))
		return;
	data_arrives("fd00::1", INDEX, 1, false);
	e = endpoint_of("fd00::1");
	endpoint_to_addr(&v6, &e);
	for (uint32_t i = 1; i < 8 * GUILTY_PLACES; i++) {
		struct ipport other = v6;

		put_le32(other.addr.ip + (i & 1 ? 2 : 10), i);
		endpoint_from_addr(&e, &other);
		sieve_accuse(sieve, &e, INDEX, until + 10 * NSEC_PER_SEC);
	}
	assert_int_equal(data_arrives("fd00::1", INDEX, 20, false), 20);
}

static void data_trains(void **state)
{
	struct wg_endpoint e;

	need_sieve();
	assert_int_equal(data_arrives("127.0.0.1", INDEX, 20, true), 20);
	e = endpoint_of("127.0.0.1");
	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 1000 * NSEC_PER_SEC);
	assert_int_equal(data_arrives("127.0.0.1", INDEX, 20, true), 0);
	assert_int_equal(dropped(SIEVE_DROP_GUILTY), 20);
	assert_int_equal(data_arrives("127.0.0.1", INDEX + 1, 20, true), 20);
	assert_int_equal(data_arrives("127.0.0.2", INDEX, 20, true), 20);
}

/* Full of others: whoever is guilty for longest stays. */
static void guilty_table_full(void **state)
{
	uint64_t now = clock_now_ns();
	struct wg_endpoint e;

	need_sieve();
	data_arrives("127.0.0.1", INDEX, 1, false);
	e = endpoint_of("127.0.0.1");
	for (uint32_t i = 0; i < 8 * GUILTY_PLACES; i++)
		sieve_accuse(sieve, &e, i + (i >= INDEX), now + 2000 * NSEC_PER_SEC);
	sieve_accuse(sieve, &e, INDEX, now + 1000 * NSEC_PER_SEC);
	assert_int_equal(data_arrives("127.0.0.1", INDEX, 20, false), 20);
	sieve_accuse(sieve, &e, INDEX, now + 3000 * NSEC_PER_SEC);
	assert_int_equal(data_arrives("127.0.0.1", INDEX, 20, false), 0);
	/* Every second set gets somebody for longer, who takes the place of one who is free sooner:
	 * there is still room for others. */
	for (uint32_t i = 0; i < GUILTY_PLACES / 16; i++)
		sieve_accuse(sieve, &e, ~i, now + 3000 * NSEC_PER_SEC);
	for (uint32_t i = 1; i <= 16; i++) {
		sieve_accuse(sieve, &e, INDEX + (i << 24), now + 2500 * NSEC_PER_SEC);
		assert_int_equal(data_arrives("127.0.0.1", INDEX + (i << 24), 5, false), 0);
	}
}

static void *accuse_many(void *arg)
{
	struct wg_endpoint e = endpoint_of("127.0.0.3");

	for (uint32_t i = 0; i < 20000; i++)
		sieve_accuse(sieve, &e, i, clock_now_ns() + i);
	return NULL;
}

static void several_accusers(void **state)
{
	struct wg_endpoint e;
	pthread_t t;

	need_sieve();
	data_arrives("127.0.0.1", INDEX, 1, false);
	assert_int_equal(pthread_create(&t, NULL, accuse_many, NULL), 0);
	accuse_many(NULL);
	assert_int_equal(pthread_join(t, NULL), 0);
	e = endpoint_of("127.0.0.1");
	sieve_accuse(sieve, &e, INDEX, clock_now_ns() + 1000 * NSEC_PER_SEC);
	assert_int_equal(data_arrives("127.0.0.1", INDEX, 20, false), 0);
}

/* ---- Around it. */

/* Sockets are opened again at run time, when all capabilities are gone. */
static void attach_without_privilege(void **state)
{
	int status;
	pid_t pid;

	need_sieve();
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct udp mine;
		struct sieve *second;

		if (sandbox_drop_all() ||
			udp_open(&mine, &(struct udp_config){ 0, 0, OFFLOAD_ALL, 1, { -1, -1 } }))
			_exit(1);
		if (sieve_attach(sieve, &mine) || sieve_attach(sieve, &mine))
			_exit(2);
		if (sieve_create(&second) >= 0 || second)
			_exit(3);
		udp_close(&u);
		u = mine;
		sieve_set(sieve, &slow);
		_exit(initiations("127.0.0.1", 20) == 13 ? 0 : 4);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* The sockets of a gateway that ended its sieve first. */
static void destroyed_first(void **state)
{
	need_sieve();
	begin_flood();
	sieve_destroy(sieve);
	for (unsigned i = 0; i < 100; i++) {
		uint8_t msg[WGMSG_INITIATION_LEN] = { WGMSG_INITIATION };

		send_from("127.0.0.1", msg, sizeof(msg), 0);
	}
	assert_int_equal(sieve_create(&sieve), 0);
	assert_int_equal(sieve_passed(sieve), 0);
}

static void no_sieve(void **state)
{
	uint64_t n[SIEVE_DROP_N] = { 1, 1 };
	struct udp none;
	struct wg_endpoint e = { 0 };

	udp_init(&none);
	assert_int_equal(sieve_attach(NULL, &none), 0);
	sieve_set(NULL, &sieve_defaults);
	sieve_accuse(NULL, &e, 1, UINT64_MAX);
	sieve_drops(NULL, n);
	for (unsigned i = 0; i < SIEVE_DROP_N; i++) {
		assert_int_equal(n[i], 0);
		assert_true(strlen(sieve_drop_key(i)) > 0 && strlen(sieve_drop_text(i)) > 0);
	}
	assert_int_equal(sieve_passed(NULL), 0);
	sieve_destroy(NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(below_flood),
		TEST(each_source_has_its_share),
		TEST(prefix_counts_as_one),
		TEST(all_types_count),
		TEST(malformed),
		TEST(budget_of_all),
		TEST(table_full),
		TEST(tokens_come_back),
		TEST(flood_ends),
		TEST(flood_pauses),
		TEST(flood_goes_on),
		TEST(handshake_trains),
		TEST(guilty),
		TEST(guilty_strangers),
		TEST(guilt_ends),
		TEST(nearly_guilty),
		TEST(data_trains),
		TEST(guilty_table_full),
		TEST(several_accusers),
		TEST(attach_without_privilege),
		TEST(destroyed_first),
		cmocka_unit_test(no_sieve),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
