/* How it works: as csum.c, sixteen 32-bit words at a time; the rest of less
 * than a vector is a masked load. Compiled with AVX-512 flags, called only
 * where the CPU has it. */
#include "wire/csum.h"

#include <immintrin.h>

static inline __m512i add_words(__m512i acc, __m512i v)
{
	const __m512i low = _mm512_set1_epi64(0xffffffff);

	acc = _mm512_add_epi64(acc, _mm512_and_si512(v, low));
	return _mm512_add_epi64(acc, _mm512_srli_epi64(v, 32));
}

uint64_t csum_add_avx512(uint64_t sum, const void *p, size_t len)
{
	__m512i a = _mm512_setzero_si512(), b = a;
	const uint8_t *in = p;
	uint64_t total;

	for (; len >= 128; in += 128, len -= 128) {
		a = add_words(a, _mm512_loadu_si512(in));
		b = add_words(b, _mm512_loadu_si512(in + 64));
	}
	if (len >= 64) {
		a = add_words(a, _mm512_loadu_si512(in));
		in += 64;
		len -= 64;
	}
	if (len) /* bytes beyond the mask are neither read nor faulted on */
		b = add_words(b, _mm512_maskz_loadu_epi8((1ULL << len) - 1, in));
	total = (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(a, b));
	sum = (sum & 0xffffffff) + (sum >> 32);
	total = (total & 0xffffffff) + (total >> 32);
	return sum + total;
}
