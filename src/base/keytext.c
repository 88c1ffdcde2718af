/* How it works: every character is mapped by arithmetic on masks instead of
 * branches or table look-ups, so that neither time nor the cache shows the
 * key's value. Errors are gathered and looked at once, at the end. */
#include "base/keytext.h"
#include "base/bytes.h"

#include <errno.h>

/* All ones when lo <= c <= hi, else 0. All three are below 256. */
static inline unsigned in_range(unsigned c, unsigned lo, unsigned hi)
{
	/* A negative difference sets the bits above 8. */
	return (((lo - 1 - c) & (c - hi - 1)) >> 8) ? ~0U : 0;
}

/* Value of a hex digit, or all ones. */
static inline unsigned hex_value(unsigned c)
{
	unsigned digit = in_range(c, '0', '9');
	unsigned lower = in_range(c, 'a', 'f');
	unsigned upper = in_range(c, 'A', 'F');

	return (digit & (c - '0')) | (lower & (c - 'a' + 10)) | (upper & (c - 'A' + 10)) |
		~(digit | lower | upper);
}

/* Value of a base64 digit (RFC 4648 section 4), or all ones. */
static inline unsigned base64_value(unsigned c)
{
	unsigned upper = in_range(c, 'A', 'Z');
	unsigned lower = in_range(c, 'a', 'z');
	unsigned digit = in_range(c, '0', '9');
	unsigned plus = in_range(c, '+', '+');
	unsigned slash = in_range(c, '/', '/');

	return (upper & (c - 'A')) | (lower & (c - 'a' + 26)) | (digit & (c - '0' + 52)) |
		(plus & 62) | (slash & 63) | ~(upper | lower | digit | plus | slash);
}

/* Hex digits of four bytes at once, one in each byte of the result, the first in the lowest. */
static inline uint64_t hex_digits(uint32_t v)
{
	const uint64_t each = 0x0101010101010101;
	uint64_t x = v, letters;

	/* Spread: byte i goes to bits 16 i, then its high nibble below its low one. */
	x = (x | x << 16) & 0x0000ffff0000ffff;
	x = (x | x << 8) & 0x00ff00ff00ff00ff;
	x = (x >> 4 | x << 8) & (each * 0x0f);
	/* 1 where the nibble is 10 or more: adding 6 carries into the high half. */
	letters = (x + each * 6) >> 4 & each;
	return x + each * '0' + letters * ('a' - 10 - '0');
}

static inline char base64_digit(unsigned v)
{
	return (char)((in_range(v, 0, 25) & (v + 'A')) | (in_range(v, 26, 51) & (v - 26 + 'a')) |
		(in_range(v, 52, 61) & (v - 52 + '0')) | (in_range(v, 62, 62) & '+') |
		(in_range(v, 63, 63) & '/'));
}

int key_from_hex(uint8_t key[KEY_BYTES], const char *text, size_t len)
{
	unsigned bad = 0;
	size_t i;

	if (len != KEY_HEX_LEN)
		return -EINVAL;
	for (i = 0; i < KEY_BYTES; i++) {
		unsigned hi = hex_value((uint8_t)text[2 * i]);
		unsigned lo = hex_value((uint8_t)text[2 * i + 1]);

		bad |= (hi | lo) >> 4;
		key[i] = (uint8_t)(hi << 4 | (lo & 15));
	}
	return bad ? -EINVAL : 0;
}

int key_from_base64(uint8_t key[KEY_BYTES], const char *text, size_t len)
{
	unsigned bad = 0;
	size_t i, k;

	if (len != KEY_BASE64_LEN || text[KEY_BASE64_LEN - 1] != '=')
		return -EINVAL;
	for (i = 0, k = 0; i < KEY_BASE64_LEN; i += 4) {
		unsigned v[4], word;

		v[0] = base64_value((uint8_t)text[i]);
		v[1] = base64_value((uint8_t)text[i + 1]);
		v[2] = base64_value((uint8_t)text[i + 2]);
		v[3] = i + 4 < KEY_BASE64_LEN ? base64_value((uint8_t)text[i + 3]) : 0;
		bad |= (v[0] | v[1] | v[2] | v[3]) >> 6;
		word = (v[0] & 63) << 18 | (v[1] & 63) << 12 | (v[2] & 63) << 6 | (v[3] & 63);
		key[k++] = (uint8_t)(word >> 16);
		key[k++] = (uint8_t)(word >> 8);
		if (k < KEY_BYTES)
			key[k++] = (uint8_t)word;
		else
			bad |= word & 0xff; /* two spare bits: only zero is canonical */
	}
	return bad ? -EINVAL : 0;
}

void key_to_hex(char text[KEY_HEX_LEN + 1], const uint8_t key[KEY_BYTES])
{
	for (size_t i = 0; i < KEY_BYTES; i += 4)
		put_le64(text + 2 * i, hex_digits(get_le32(key + i)));
	text[KEY_HEX_LEN] = '\0';
}

void key_to_base64(char text[KEY_BASE64_LEN + 1], const uint8_t key[KEY_BYTES])
{
	size_t i, k;

	for (i = 0, k = 0; i < KEY_BASE64_LEN; i += 4, k += 3) {
		unsigned word = (unsigned)key[k] << 16 | (unsigned)key[k + 1] << 8;

		word |= k + 2 < KEY_BYTES ? key[k + 2] : 0;
		text[i] = base64_digit(word >> 18);
		text[i + 1] = base64_digit(word >> 12 & 63);
		text[i + 2] = base64_digit(word >> 6 & 63);
		text[i + 3] = base64_digit(word & 63);
	}
	text[KEY_BASE64_LEN - 1] = '=';
	text[KEY_BASE64_LEN] = '\0';
}
