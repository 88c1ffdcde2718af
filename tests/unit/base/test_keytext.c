/* keytext.h: known text both ways, every character of the alphabet and outside
 * it, every length but the right one, and base64 that is not canonical. */
#include "base/keytext.h"

#include <ctype.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static const char hex[] = "00010203fffefdfc0123456789abcdeffedcba98765432101f2e3d4c5b6a7988";
static const char b64[] = "AAECA//+/fwBI0VniavN7/7cuph2VDIQHy49TFtqeYg=";
static const uint8_t raw[KEY_BYTES] = { 0x00, 0x01, 0x02, 0x03, 0xff, 0xfe, 0xfd, 0xfc, 0x01, 0x23,
	0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10, 0x1f,
	0x2e, 0x3d, 0x4c, 0x5b, 0x6a, 0x79, 0x88 };

static void known_text_both_ways(void **state)
{
	char text[KEY_HEX_LEN + 1];
	uint8_t key[KEY_BYTES];

	assert_int_equal(key_from_hex(key, hex, strlen(hex)), 0);
	assert_memory_equal(key, raw, KEY_BYTES);
	key_to_hex(text, raw);
	assert_string_equal(text, hex);

	memset(key, 0, sizeof(key));
	assert_int_equal(key_from_base64(key, b64, strlen(b64)), 0);
	assert_memory_equal(key, raw, KEY_BYTES);
	key_to_base64(text, raw);
	assert_string_equal(text, b64);
}

static void every_byte_value_round_trips(void **state)
{
	char text[KEY_HEX_LEN + 1];
	uint8_t key[KEY_BYTES], back[KEY_BYTES];
	int v, i;

	for (v = 0; v < 256; v++) {
		for (i = 0; i < KEY_BYTES; i++)
			key[i] = (uint8_t)(v + i * 37);
		key_to_hex(text, key);
		assert_int_equal(key_from_hex(back, text, KEY_HEX_LEN), 0);
		assert_memory_equal(key, back, KEY_BYTES);
		key_to_base64(text, key);
		assert_int_equal(key_from_base64(back, text, KEY_BASE64_LEN), 0);
		assert_memory_equal(key, back, KEY_BYTES);
	}
}

static void upper_case_hex_is_read(void **state)
{
	char text[KEY_HEX_LEN + 1];
	uint8_t key[KEY_BYTES];
	int i;

	for (i = 0; i <= KEY_HEX_LEN; i++)
		text[i] = (char)toupper(hex[i]);
	assert_int_equal(key_from_hex(key, text, KEY_HEX_LEN), 0);
	assert_memory_equal(key, raw, KEY_BYTES);
}

static void only_the_alphabet_is_read(void **state)
{
	static const char digits64[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char text[KEY_HEX_LEN + 1];
	uint8_t key[KEY_BYTES];
	int c, i, good;

	for (c = 0; c < 256; c++) {
		for (i = 0; i < KEY_HEX_LEN; i++) {
			memcpy(text, hex, sizeof(hex));
			text[i] = (char)c;
			assert_int_equal(
				key_from_hex(key, text, KEY_HEX_LEN), isxdigit(c) ? 0 : -EINVAL);
		}
		good = c && strchr(digits64, c);
		for (i = 0; i < 42; i++) {
			memcpy(text, b64, sizeof(b64));
			text[i] = (char)c;
			assert_int_equal(
				key_from_base64(key, text, KEY_BASE64_LEN), good ? 0 : -EINVAL);
		}
		memcpy(text, b64, sizeof(b64));
		text[43] = (char)c;
		assert_int_equal(
			key_from_base64(key, text, KEY_BASE64_LEN), c == '=' ? 0 : -EINVAL);
		/* The last digit's two low bits are beyond the key: zero only. */
		memcpy(text, b64, sizeof(b64));
		text[42] = (char)c;
		good = c && strchr(digits64, c) && (strchr(digits64, c) - digits64) % 4 == 0;
		assert_int_equal(key_from_base64(key, text, KEY_BASE64_LEN), good ? 0 : -EINVAL);
	}
}

static void only_the_right_length_is_read(void **state)
{
	char text[2 * KEY_HEX_LEN];
	uint8_t key[KEY_BYTES];
	size_t len;

	memset(text, 'A', sizeof(text));
	text[43] = '=';
	for (len = 0; len < sizeof(text); len++) {
		assert_int_equal(
			key_from_base64(key, text, len), len == KEY_BASE64_LEN ? 0 : -EINVAL);
	}
	text[43] = 'A';
	for (len = 0; len < sizeof(text); len++)
		assert_int_equal(key_from_hex(key, text, len), len == KEY_HEX_LEN ? 0 : -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_text_both_ways),
		cmocka_unit_test(every_byte_value_round_trips),
		cmocka_unit_test(upper_case_hex_is_read),
		cmocka_unit_test(only_the_alphabet_is_read),
		cmocka_unit_test(only_the_right_length_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
