/* MACs and cookies: an initiator with a jar, a responder with a checker. */
#include "wg/cookie.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define SEC(n) ((n)*NSEC_PER_SEC)

struct fixture {
	uint8_t key[32];
	struct cookie_checker checker;
	struct cookie_jar jar;
	uint8_t remote[COOKIE_REMOTE];
	uint8_t msg[WGMSG_INITIATION_LEN];
};

static void make(struct fixture *f)
{
	crypto_random(f, sizeof(*f));
	cookie_checker_init(&f->checker, f->key);
	cookie_jar_init(&f->jar, f->key);
}

enum cookie_mac { COOKIE_MAC_BAD, COOKIE_MAC1, COOKIE_MAC2 };

static enum cookie_mac check_len(struct fixture *f, size_t len, uint64_t now)
{
	if (!cookie_check_mac1(&f->checker, f->msg, len))
		return COOKIE_MAC_BAD;
	return cookie_check_mac2(&f->checker, f->msg, len, f->remote, now) ? COOKIE_MAC2
									   : COOKIE_MAC1;
}

static enum cookie_mac check(struct fixture *f, uint64_t now)
{
	return check_len(f, sizeof(f->msg), now);
}

static void send(struct fixture *f, uint64_t now)
{
	cookie_add_macs(&f->jar, f->msg, sizeof(f->msg), now);
}

static void reply(struct fixture *f, uint64_t now, struct wgmsg_cookie *out)
{
	cookie_make_reply(&f->checker, f->msg, sizeof(f->msg), f->remote, now, out);
}

static void test_macs(void **state)
{
	static const uint8_t zero[COOKIE_LEN];
	struct fixture f;

	make(&f);
	send(&f, SEC(1));
	assert_memory_equal(f.msg + sizeof(f.msg) - 16, zero, 16);
	assert_int_equal(check(&f, SEC(1)), COOKIE_MAC1);
	for (size_t i = 0; i < sizeof(f.msg) - 16; i++) { /* mac1 covers all before it */
		f.msg[i] ^= 1 << i % 8;
		assert_int_equal(check(&f, SEC(1)), COOKIE_MAC_BAD);
		f.msg[i] ^= 1 << i % 8;
	}
	f.msg[sizeof(f.msg) - 1] ^= 1; /* mac2 is not part of it */
	assert_int_equal(check(&f, SEC(1)), COOKIE_MAC1);
	f.key[31] ^= 1; /* another public key */
	cookie_checker_init(&f.checker, f.key);
	assert_int_equal(check(&f, SEC(1)), COOKIE_MAC_BAD);
}

/* The labels and the order of the fields, spelt out once more. */
static void test_mac1_by_hand(void **state)
{
	uint8_t key[32], mac[16];
	struct fixture f;

	make(&f);
	send(&f, 0);
	blake2s(key, (struct span[]){ { "mac1----", 8 }, { f.key, 32 } }, 2);
	blake2s_mac(mac, key, 32, &(struct span){ f.msg, sizeof(f.msg) - 32 }, 1);
	assert_memory_equal(mac, f.msg + sizeof(f.msg) - 32, 16);
}

static void test_round_trip(void **state)
{
	uint8_t mac[16];
	struct wgmsg_cookie c;
	struct fixture f;

	make(&f);
	send(&f, SEC(1));
	reply(&f, SEC(1), &c);
	assert_int_equal(le32toh(c.type), WGMSG_COOKIE);
	assert_memory_equal(&c.receiver, f.msg + 4, 4);
	assert_true(cookie_take_reply(&f.jar, &c, SEC(1)));
	assert_false(cookie_take_reply(&f.jar, &c, SEC(1))); /* one reply per message */
	crypto_random(f.msg, 100); /* a new message */
	send(&f, SEC(2));
	assert_int_equal(check(&f, SEC(2)), COOKIE_MAC2);
	/* It covers all before it, mac1 as well. */
	blake2s_mac(mac, f.jar.cookie, 16, &(struct span){ f.msg, sizeof(f.msg) - 16 }, 1);
	assert_memory_equal(mac, f.msg + sizeof(f.msg) - 16, 16);

	for (size_t i = 0; i < COOKIE_REMOTE; i++) { /* from elsewhere */
		f.remote[i] ^= 0x10;
		assert_int_equal(check(&f, SEC(2)), COOKIE_MAC1);
		f.remote[i] ^= 0x10;
	}
	for (size_t i = sizeof(f.msg) - 16; i < sizeof(f.msg); i++) {
		f.msg[i] ^= 0x10;
		assert_int_equal(check(&f, SEC(2)), COOKIE_MAC1);
		f.msg[i] ^= 0x10;
	}
	assert_int_equal(check(&f, SEC(2)), COOKIE_MAC2);
}

/* The responses' macs stand elsewhere: the length counts. */
static void test_response(void **state)
{
	const size_t len = WGMSG_RESPONSE_LEN;
	struct wgmsg_cookie c;
	struct fixture f;

	make(&f);
	cookie_add_macs(&f.jar, f.msg, len, SEC(1));
	assert_int_equal(check_len(&f, len, SEC(1)), COOKIE_MAC1);
	cookie_make_reply(&f.checker, f.msg, len, f.remote, SEC(1), &c);
	assert_memory_equal(&c.receiver, f.msg + 4, 4);
	assert_true(cookie_take_reply(&f.jar, &c, SEC(1)));
	cookie_add_macs(&f.jar, f.msg, len, SEC(1));
	assert_int_equal(check_len(&f, len, SEC(1)), COOKIE_MAC2);
}

static void test_ages(void **state)
{
	struct wgmsg_cookie c;
	struct fixture f;

	make(&f);
	send(&f, SEC(10));
	reply(&f, SEC(10), &c);
	assert_true(cookie_take_reply(&f.jar, &c, SEC(10)));
	send(&f, SEC(125) - 1); /* used for 115 s */
	assert_int_equal(check(&f, SEC(125) - 1), COOKIE_MAC2);
	assert_int_equal(check(&f, SEC(130) - 1), COOKIE_MAC2); /* the secret lives 120 s */
	assert_int_equal(check(&f, SEC(130)), COOKIE_MAC1); /* new secret */
	send(&f, SEC(125));
	assert_false(f.jar.has_cookie);
	assert_int_equal(check(&f, SEC(125)), COOKIE_MAC1);
	send(&f, SEC(131)); /* and it can be had anew */
	reply(&f, SEC(131), &c);
	assert_true(cookie_take_reply(&f.jar, &c, SEC(131)));
	send(&f, SEC(131));
	assert_int_equal(check(&f, SEC(131)), COOKIE_MAC2);
}

static void test_bad_replies(void **state)
{
	struct cookie_jar before;
	struct wgmsg_cookie c;
	struct fixture f;

	make(&f);
	send(&f, SEC(1));
	reply(&f, SEC(1), &c);
	before = f.jar;
	for (size_t i = offsetof(struct wgmsg_cookie, nonce); i < sizeof(c); i++) {
		((uint8_t *)&c)[i] ^= 4;
		assert_false(cookie_take_reply(&f.jar, &c, SEC(1)));
		assert_memory_equal(&before, &f.jar, sizeof(before));
		((uint8_t *)&c)[i] ^= 4;
	}
	crypto_random(f.msg, 100); /* it answers a message that is not the last */
	send(&f, SEC(1));
	assert_false(cookie_take_reply(&f.jar, &c, SEC(1)));

	cookie_jar_init(&f.jar, f.key); /* nothing was sent */
	assert_false(cookie_take_reply(&f.jar, &c, SEC(1)));
	assert_false(f.jar.has_cookie);
}

static int setup(void **state)
{
	return crypto_init(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_macs),
		cmocka_unit_test(test_mac1_by_hand),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_response),
		cmocka_unit_test(test_ages),
		cmocka_unit_test(test_bad_replies),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
