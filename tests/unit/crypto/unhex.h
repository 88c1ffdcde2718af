/* Vectors are written as their documents print them, in hex. */
#ifndef TESTS_UNIT_CRYPTO_UNHEX_H
#define TESTS_UNIT_CRYPTO_UNHEX_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline size_t unhex(uint8_t *out, size_t cap, const char *hex)
{
	size_t len = strlen(hex) / 2, i;
	unsigned v;

	assert(strlen(hex) % 2 == 0);
	assert(len <= cap);
	for (i = 0; i < len; i++) {
		assert(sscanf(hex + 2 * i, "%2x", &v) == 1);
		out[i] = (uint8_t)v;
	}
	return len;
}

#endif
