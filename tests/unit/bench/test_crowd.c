/* A crowd at a server in a thread: a real device behind a real socket on loopback, which
 * can be told to be deaf, slow of hearing or under load. */
#include "bench/crowd.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/keytext.h"
#include "base/rcu.h"
#include "bench/device.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOPBACK = 0x7f000001, SOURCES = 0x7f510001, CLIENTS_MAX = 64 };

struct server {
	pthread_t thread;
	sem_t ready;
	int fd;
	uint16_t port;
	struct device_identity id;
	uint8_t peers[CLIENTS_MAX][WG_KEY_LEN];
	size_t n_peers;
	/* how it behaves */
	bool is_loaded;
	size_t n_ignored; /* so many datagrams at first; SIZE_MAX: all */
	/* what it saw */
	struct sockaddr_in from[256];
	size_t n_from;
	_Atomic size_t n_keepalives;
	atomic_bool is_over;
};

static void take(struct server *s, struct device *d, uint8_t *msg, size_t len,
	const struct sockaddr_in *from)
{
	struct wg_packet pkt = { .data = msg, .len = (uint32_t)len };
	struct wg_endpoint e = { 0 };
	size_t i;

	if (s->n_from < 256)
		s->from[s->n_from++] = *from;
	if (s->n_ignored) {
		s->n_ignored -= s->n_ignored != SIZE_MAX;
		return;
	}
	memcpy(e.remote, &from->sin_addr, 4);
	memcpy(e.remote + 4, &from->sin_port, 2);
	if (wgmsg_gate(msg, len) == WGMSG_DATA) {
		wg_open(d->worker, &pkt, 1, &e, clock_now_ns());
		s->n_keepalives += pkt.drop == WG_OK && pkt.len == 0;
		return;
	}
	wg_rx_handshake(d->wg, msg, len, &e, s->is_loaded, clock_now_ns(), clock_wall_ns());
	for (i = 0; i < d->n_out; i++)
		sendto(s->fd, d->outbox[i].data, d->outbox[i].len, 0, (const struct sockaddr *)from,
			sizeof(*from));
	d->n_out = 0;
}

static void *run_server(void *arg)
{
	struct server *s = arg;
	struct fake_time now = { clock_now_ns(), clock_wall_ns() };
	struct pollfd fd = { .fd = s->fd, .events = POLLIN };
	struct sockaddr_in from;
	struct device *d;
	uint8_t buf[256];
	socklen_t len;
	ssize_t n;
	size_t i;

	rcu_thread_init();
	if (device_create(&d, &s->id, &now))
		abort();
	for (i = 0; i < s->n_peers; i++)
		if (device_add_peer(d, s->peers[i], 0x0a000001 + (uint32_t)i, 0, &now))
			abort();
	sem_post(&s->ready);
	while (!s->is_over) {
		rcu_quiescent();
		len = sizeof(from);
		if (poll(&fd, 1, 10) <= 0)
			continue;
		n = recvfrom(s->fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len);
		if (n > 0)
			take(s, d, buf, (size_t)n, &from);
	}
	device_destroy(d);
	rcu_thread_fini();
	return NULL;
}

static void server_init(struct server *s)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(LOOPBACK) };
	socklen_t len = sizeof(at);

	memset(s, 0, sizeof(*s));
	sem_init(&s->ready, 0, 0);
	device_identity_make(&s->id);
	s->fd = socket(AF_INET, SOCK_DGRAM, 0);
	assert_true(s->fd >= 0);
	assert_int_equal(bind(s->fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(s->fd, (struct sockaddr *)&at, &len), 0);
	s->port = ntohs(at.sin_port);
}

/* The server knows who stands in the sections. */
static void server_start(struct server *s, struct crowd *c)
{
	static const char head[] = "[Peer]\nPublicKey=";
	char *text = crowd_sections(c), *p;

	assert_non_null(text);
	for (p = text; *p; p += KEY_BASE64_LEN + 1) {
		assert_memory_equal(p, head, strlen(head));
		p += strlen(head);
		assert_int_equal(p[KEY_BASE64_LEN], '\n');
		assert_int_equal(key_from_base64(s->peers[s->n_peers++], p, KEY_BASE64_LEN), 0);
	}
	free(text);
	assert_int_equal(pthread_create(&s->thread, NULL, run_server, s), 0);
	sem_wait(&s->ready);
}

static void server_stop(struct server *s)
{
	s->is_over = true;
	pthread_join(s->thread, NULL);
	close(s->fd);
	sem_destroy(&s->ready);
}

static struct crowd *gather(struct server *s, struct crowd_plan plan)
{
	struct crowd *c;

	plan.server = LOOPBACK;
	plan.port = s->port;
	plan.first_source = SOURCES;
	assert_int_equal(crowd_create(&c, NULL, 0, &plan, s->id.public_key), 0);
	server_start(s, c);
	crowd_prepare(c);
	return c;
}

static void test_each_from_an_address(void **state)
{
	struct crowd_result r;
	struct server s;
	struct crowd *c;
	size_t i;
	int round;

	server_init(&s);
	c = gather(&s, (struct crowd_plan){ .n = 50 });
	for (round = 0; round < 2; round++) {
		if (round) {
			/* 50 a second of one peer, and stamps count in 1/60 s. */
			usleep(50000);
			crowd_prepare(c);
		}
		assert_int_equal(crowd_run(c, 0, 10 * NSEC_PER_SEC), 0);
		crowd_result(c, &r);
		assert_int_equal(r.n_sessions, 50);
		assert_true(r.n_sent >= 50);
		assert_true(r.p50_ns <= r.p99_ns);
		assert_true(r.p99_ns <= r.all_ns);
	}
	server_stop(&s);
	for (i = 0; i < 50; i++)
		assert_int_equal(ntohl(s.from[i].sin_addr.s_addr), SOURCES + i);
	crowd_destroy(c);
	crowd_destroy(NULL);
}

static void test_behind_a_nat(void **state)
{
	struct crowd_result r;
	struct server s;
	struct crowd *c;
	size_t i, k;

	server_init(&s);
	c = gather(&s, (struct crowd_plan){ .n = 20, .is_behind_nat = true });
	assert_int_equal(crowd_run(c, 0, 10 * NSEC_PER_SEC), 0);
	crowd_result(c, &r);
	assert_int_equal(r.n_sessions, 20);
	server_stop(&s);
	assert_int_equal(s.n_from, 20);
	for (i = 0; i < 20; i++) {
		assert_int_equal(ntohl(s.from[i].sin_addr.s_addr), SOURCES);
		for (k = 0; k < i; k++)
			assert_int_not_equal(s.from[i].sin_port, s.from[k].sin_port);
	}
	crowd_destroy(c);
}

static void test_cookies_answered_at_once(void **state)
{
	struct crowd_result r;
	struct server s;
	struct crowd *c;

	server_init(&s);
	s.is_loaded = true;
	c = gather(&s, (struct crowd_plan){ .n = 20, .answers_cookies_at_once = true });
	/* A retry would come too late for that. */
	assert_int_equal(crowd_run(c, 0, 4 * NSEC_PER_SEC), 0);
	crowd_result(c, &r);
	assert_int_equal(r.n_sessions, 20);
	assert_int_equal(r.n_cookies, 20);
	assert_int_equal(r.n_sent, 40);
	server_stop(&s);
	crowd_destroy(c);
}

/* As a stock client: the next try, five seconds later, carries the cookie. Of two that
 * come, one is not heard at first and gets its cookie then, for a third try. */
static void test_retries(void **state)
{
	struct crowd_result r;
	struct server s;
	struct crowd *c;

	server_init(&s);
	s.is_loaded = true;
	s.n_ignored = 1;
	c = gather(&s, (struct crowd_plan){ .n = 2 });
	assert_int_equal(crowd_run(c, 0, 30 * NSEC_PER_SEC), 0);
	crowd_result(c, &r);
	assert_int_equal(r.n_sessions, 2);
	assert_int_equal(r.n_cookies, 2);
	assert_int_equal(r.n_sent, 2 + 3);
	assert_true(r.all_ns >= 10 * NSEC_PER_SEC);
	server_stop(&s);
	crowd_destroy(c);
}

static void test_nobody_answers(void **state)
{
	struct crowd_result r;
	struct server s;
	struct crowd *c;

	server_init(&s);
	s.n_ignored = SIZE_MAX;
	c = gather(&s, (struct crowd_plan){ .n = 4 });
	assert_int_equal(crowd_run(c, 0, 100 * NSEC_PER_MSEC), 0);
	crowd_result(c, &r);
	assert_int_equal(r.n_sessions, 0);
	assert_int_equal(r.n_sent, 4);
	assert_true(r.all_ns >= 100 * NSEC_PER_MSEC);
	assert_true(r.p50_ns >= 100 * NSEC_PER_MSEC);

	rounds_stop(SIGINT);
	assert_int_equal(crowd_run(c, 0, 100 * NSEC_PER_SEC), -EINTR);
	rounds_resume();
	server_stop(&s);
	crowd_destroy(c);
}

static void test_confirmation(void **state)
{
	struct server s;
	struct crowd *c;
	uint32_t index;
	int i;

	server_init(&s);
	c = gather(&s, (struct crowd_plan){ .n = 2 });
	assert_int_equal(crowd_confirm(c, 1, &index), -ENOTCONN);
	assert_int_equal(crowd_run(c, 0, 10 * NSEC_PER_SEC), 0);
	assert_int_equal(crowd_confirm(c, 1, &index), 0);
	for (i = 0; i < 1000 && !s.n_keepalives; i++)
		usleep(10000);
	assert_int_equal(s.n_keepalives, 1);
	server_stop(&s);
	crowd_destroy(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_from_an_address),
		cmocka_unit_test(test_behind_a_nat),
		cmocka_unit_test(test_cookies_answered_at_once),
		cmocka_unit_test(test_retries),
		cmocka_unit_test(test_nobody_answers),
		cmocka_unit_test(test_confirmation),
	};

	if (crypto_init(NULL))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
