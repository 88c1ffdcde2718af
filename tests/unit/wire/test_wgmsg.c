/* wgmsg.h: the gate lets each message pass at its one length and nothing else. */
#include "wire/wgmsg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { LEN_MAX = 2000 };

static size_t fixed_len(unsigned type)
{
	switch (type) {
	case WGMSG_INITIATION:
		return 148;
	case WGMSG_RESPONSE:
		return 92;
	case WGMSG_COOKIE:
		return 64;
	default:
		return 0;
	}
}

static void every_type_at_every_length(void **state)
{
	uint8_t msg[LEN_MAX] = { 0 };
	unsigned type, want;
	size_t len;

	for (type = 0; type < 256; type++) {
		msg[0] = (uint8_t)type;
		for (len = 0; len <= LEN_MAX; len++) {
			want = len == fixed_len(type) && len ? type : 0;
			if (type == WGMSG_DATA && len >= 32)
				want = WGMSG_DATA;
			assert_int_equal(wgmsg_gate(msg, len), want);
		}
	}
}

static void reserved_bytes_must_be_zero(void **state)
{
	static const size_t lens[] = { 0, 148, 92, 64, 32 };
	uint8_t msg[256] = { 0 };
	unsigned type, bit;

	for (type = 1; type <= 4; type++) {
		msg[0] = (uint8_t)type;
		assert_int_equal(wgmsg_gate(msg, lens[type]), type);
		for (bit = 8; bit < 32; bit++) {
			msg[bit / 8] = (uint8_t)(1 << bit % 8);
			assert_int_equal(wgmsg_gate(msg, lens[type]), 0);
			msg[bit / 8] = 0;
		}
	}
}

static void a_short_message_is_not_read(void **state)
{
	size_t len;

	for (len = 0; len < 32; len++) {
		/* Exactly as long as said: ASan sees a read beyond. */
		uint8_t *msg = malloc(len ? len : 1);

		assert_non_null(msg);
		memset(msg, 0, len ? len : 1);
		msg[0] = WGMSG_DATA;
		assert_int_equal(wgmsg_gate(msg, len), 0);
		free(msg);
	}
}

static void fields_lie_where_the_paper_puts_them(void **state)
{
	assert_int_equal(offsetof(struct wgmsg_initiation, ephemeral), 8);
	assert_int_equal(offsetof(struct wgmsg_initiation, static_key), 40);
	assert_int_equal(offsetof(struct wgmsg_initiation, timestamp), 88);
	assert_int_equal(offsetof(struct wgmsg_initiation, macs), 116);
	assert_int_equal(offsetof(struct wgmsg_response, receiver), 8);
	assert_int_equal(offsetof(struct wgmsg_response, ephemeral), 12);
	assert_int_equal(offsetof(struct wgmsg_response, nothing), 44);
	assert_int_equal(offsetof(struct wgmsg_response, macs), 60);
	assert_int_equal(offsetof(struct wgmsg_cookie, nonce), 8);
	assert_int_equal(offsetof(struct wgmsg_cookie, cookie), 32);
	assert_int_equal(offsetof(struct wgmsg_data, counter), 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_type_at_every_length),
		cmocka_unit_test(reserved_bytes_must_be_zero),
		cmocka_unit_test(a_short_message_is_not_read),
		cmocka_unit_test(fields_lie_where_the_paper_puts_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
