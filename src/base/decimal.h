/* Numbers as decimal text, where printf would be most of the work. Pure. */
#ifndef BASE_DECIMAL_H
#define BASE_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

enum { DECIMAL_MAX = 20 }; /* digits of UINT64_MAX */

/* Write the digits, no terminator; returns how many. */
size_t decimal_text(char out[DECIMAL_MAX], uint64_t n);

#endif
