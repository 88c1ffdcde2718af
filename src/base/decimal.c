/* How it works: two digits per division, from the end, then moved to the front. */
#include "base/decimal.h"
#include <string.h>

size_t decimal_text(char out[DECIMAL_MAX], uint64_t n)
{
	static const char pairs[] = "00010203040506070809"
				    "10111213141516171819"
				    "20212223242526272829"
				    "30313233343536373839"
				    "40414243444546474849"
				    "50515253545556575859"
				    "60616263646566676869"
				    "70717273747576777879"
				    "80818283848586878889"
				    "90919293949596979899";
	char text[DECIMAL_MAX];
	size_t at = DECIMAL_MAX;

	while (n >= 10) {
		at -= 2;
		memcpy(text + at, pairs + n % 100 * 2, 2);
		n /= 100;
	}
	if (n || at == DECIMAL_MAX)
		text[--at] = (char)('0' + n);
	memcpy(out, text + at, DECIMAL_MAX - at);
	return DECIMAL_MAX - at;
}
