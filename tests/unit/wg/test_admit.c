/* Who gets as far as X25519: each rule alone, then crowds and floods. */
#include "wg/admit.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define NOW (1000 * NSEC_PER_SEC)
#define AT_MS(ms) (NOW + (uint64_t)(ms)*NSEC_PER_MSEC)

struct client {
	struct cookie_jar jar;
	uint8_t remote[RATELIMIT_KEY], source[RATELIMIT_KEY];
	uint8_t msg[WGMSG_INITIATION_LEN];
};

struct fixture {
	uint8_t key[32];
	struct admit admit;
};

static void make(struct fixture *f)
{
	memset(f, 0, sizeof(*f));
	crypto_random(f->key, sizeof(f->key));
	assert_int_equal(admit_init(&f->admit), 0);
	admit_set_key(&f->admit, f->key);
}

static void client_make(struct client *c, const struct fixture *f, uint32_t address, uint16_t port)
{
	memset(c, 0, sizeof(*c));
	cookie_jar_init(&c->jar, f->key);
	memcpy(c->source, &address, sizeof(address));
	memcpy(c->remote, &address, sizeof(address));
	memcpy(c->remote + 8, &port, sizeof(port));
	c->msg[0] = WGMSG_INITIATION;
}

static enum admission judge(struct fixture *f, const struct client *c, bool is_loaded, uint64_t now)
{
	const struct admit_in in = { c->msg, sizeof(c->msg), c->remote, c->source, is_loaded,
		false };

	return admit_judge(&f->admit, &in, now);
}

/* One more try; a cookie that comes back is used by the next. */
static enum admission try_now(struct fixture *f, struct client *c, bool is_loaded, uint64_t now)
{
	struct wgmsg_cookie reply;
	enum admission a;

	cookie_add_macs(&c->jar, c->msg, sizeof(c->msg), now);
	a = judge(f, c, is_loaded, now);
	if (a == ADMIT_COOKIE) {
		cookie_make_reply(
			&f->admit.checker, c->msg, sizeof(c->msg), c->remote, now, &reply);
		assert_true(cookie_take_reply(&c->jar, &reply, now));
	}
	return a;
}

static void test_mac1_first(void **state)
{
	struct fixture f;
	struct client c;

	make(&f);
	client_make(&c, &f, 1, 1);
	cookie_add_macs(&c.jar, c.msg, sizeof(c.msg), NOW);
	c.msg[20] ^= 1;
	for (int i = 0; i < 100; i++) /* and it uses up nothing */
		assert_int_equal(judge(&f, &c, i & 1, NOW), ADMIT_BAD_MAC);
	c.msg[20] ^= 1;
	assert_int_equal(judge(&f, &c, false, AT_MS(1001)), ADMIT_YES);
	admit_fini(&f.admit);
}

static void test_share_of_a_source(void **state)
{
	struct client c, neighbour;
	struct fixture f;
	unsigned n = 0;

	make(&f);
	client_make(&c, &f, 1, 1);
	client_make(&neighbour, &f, 2, 1);
	for (int i = 0; i < ADMIT_BURST; i++)
		assert_int_equal(try_now(&f, &c, false, NOW), ADMIT_YES);
	assert_int_equal(try_now(&f, &c, false, NOW), ADMIT_COOKIE);
	assert_int_equal(try_now(&f, &neighbour, false, NOW), ADMIT_YES);
	/* With the cookie address and port count. */
	for (int ms = 0; ms < 1000; ms++)
		n += try_now(&f, &c, false, AT_MS(ms)) == ADMIT_YES;
	assert_in_range(
		n, 2 * (ADMIT_PER_SEC + ADMIT_BURST) - 7, 2 * (ADMIT_PER_SEC + ADMIT_BURST));
	admit_fini(&f.admit);
}

static void test_load_asks_for_a_cookie(void **state)
{
	struct fixture f;
	struct client c;

	make(&f);
	client_make(&c, &f, 1, 1);
	assert_int_equal(try_now(&f, &c, true, NOW), ADMIT_COOKIE);
	assert_int_equal(try_now(&f, &c, true, NOW), ADMIT_YES);
	/* Load is remembered for a second, and no longer. */
	client_make(&c, &f, 2, 1);
	assert_int_equal(try_now(&f, &c, false, AT_MS(999)), ADMIT_COOKIE);
	client_make(&c, &f, 3, 1);
	assert_int_equal(try_now(&f, &c, false, AT_MS(1000)), ADMIT_YES);
	/* Somebody else's cookie is none. */
	client_make(&c, &f, 4, 1);
	assert_int_equal(try_now(&f, &c, true, AT_MS(2000)), ADMIT_COOKIE);
	c.remote[0] = 5;
	assert_int_equal(try_now(&f, &c, true, AT_MS(2000)), ADMIT_COOKIE);
	admit_fini(&f.admit);
}

static void test_expected_needs_no_cookie(void **state)
{
	struct fixture f;
	struct client c;

	make(&f);
	client_make(&c, &f, 1, 1);
	cookie_add_macs(&c.jar, c.msg, sizeof(c.msg), NOW);
	for (int i = 0; i < 100; i++) {
		const struct admit_in in = { c.msg, sizeof(c.msg), c.remote, c.source, true, true };

		assert_int_equal(admit_judge(&f.admit, &in, NOW), ADMIT_YES);
	}
	c.msg[20] ^= 1;
	assert_int_equal(
		admit_judge(&f.admit,
			&(struct admit_in){ c.msg, sizeof(c.msg), c.remote, c.source, true, true },
			NOW),
		ADMIT_BAD_MAC);
	admit_fini(&f.admit);
}

/* 2,000 clients behind one address, all at once, each trying again at once when it
 * has a cookie and every 5 s otherwise: all are in before 30 s are over. */
static void test_carrier_nat(void **state)
{
	static struct client clients[2000];
	static bool is_in[2000];
	unsigned n_in = 0, seconds;
	struct fixture f;

	make(&f);
	for (unsigned i = 0; i < 2000; i++)
		client_make(&clients[i], &f, 7, (uint16_t)(1000 + i));
	for (seconds = 0; seconds < 30 && n_in < 2000; seconds += 5) {
		uint64_t now = NOW + seconds * NSEC_PER_SEC;

		for (unsigned i = 0; i < 2000; i++) {
			if (is_in[i])
				continue;
			is_in[i] = try_now(&f, &clients[i], true, now) == ADMIT_YES ||
				try_now(&f, &clients[i], true, now) == ADMIT_YES;
			n_in += is_in[i];
		}
	}
	assert_int_equal(n_in, 2000);
	admit_fini(&f.admit);
}

/* One address with a cookie for each of its ports still has an end. */
static void test_one_address_many_ports(void **state)
{
	unsigned n = 0;
	struct fixture f;
	struct client c;

	make(&f);
	for (unsigned i = 0; i < 20000; i++) {
		client_make(&c, &f, 7, (uint16_t)i);
		try_now(&f, &c, true, NOW);
		n += try_now(&f, &c, true, NOW) == ADMIT_YES;
	}
	/* A few fewer when nine ports fall into one set of the table. */
	assert_in_range(n, ADMIT_SOURCE_BURST - 20, ADMIT_SOURCE_BURST);
	admit_fini(&f.admit);
}

/* 300,000 initiations a second from 10,000 addresses, right MACs, no cookies: what
 * they are given is bounded, and somebody else gets in with two messages. */
static void test_flood(void **state)
{
	unsigned n_cookies = 0, n_in = 0;
	struct client flood, c;
	struct fixture f;

	make(&f);
	client_make(&flood, &f, 0, 1);
	cookie_add_macs(&flood.jar, flood.msg, sizeof(flood.msg), NOW);
	for (unsigned i = 0; i < 900000; i++) {
		uint64_t now = NOW + i * (NSEC_PER_SEC / 300000);
		uint32_t address = i % 10000 + 100;

		memcpy(flood.source, &address, sizeof(address));
		memcpy(flood.remote, &address, sizeof(address));
		switch (judge(&f, &flood, i == 0, now)) {
		case ADMIT_COOKIE:
			n_cookies++;
			break;
		case ADMIT_LIMIT:
			break;
		default:
			fail();
		}
		if (i % 9000 == 8999) {
			client_make(&c, &f, 1000000 + i, 1);
			n_in += try_now(&f, &c, false, now) == ADMIT_COOKIE &&
				try_now(&f, &c, false, now) == ADMIT_YES;
		}
	}
	assert_int_equal(n_in, 100);
	assert_in_range(n_cookies, 10000, 3 * 2500 + 2500 + 3 * 10000 + 3 * 10000);
	admit_fini(&f.admit);
}

static int setup(void **state)
{
	return crypto_init(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mac1_first),
		cmocka_unit_test(test_share_of_a_source),
		cmocka_unit_test(test_load_asks_for_a_cookie),
		cmocka_unit_test(test_expected_needs_no_cookie),
		cmocka_unit_test(test_carrier_nat),
		cmocka_unit_test(test_one_address_many_ports),
		cmocka_unit_test(test_flood),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
