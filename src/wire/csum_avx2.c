/* How it works: as csum.c, eight 32-bit words at a time: each half of a vector
 * is widened to 64-bit lanes and added. Compiled with -mavx2, called only where
 * the CPU has it. */
#include "wire/csum.h"

#include <immintrin.h>

static inline __m256i load(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

static inline __m256i add_words(__m256i acc, __m256i v)
{
	const __m256i low = _mm256_set1_epi64x(0xffffffff);

	acc = _mm256_add_epi64(acc, _mm256_and_si256(v, low));
	return _mm256_add_epi64(acc, _mm256_srli_epi64(v, 32));
}

uint64_t csum_add_avx2(uint64_t sum, const void *p, size_t len)
{
	__m256i a = _mm256_setzero_si256(), b = a;
	const uint8_t *in = p;
	uint64_t lane[4];

	for (; len >= 64; in += 64, len -= 64) {
		a = add_words(a, load(in));
		b = add_words(b, load(in + 32));
	}
	if (len >= 32) {
		a = add_words(a, load(in));
		in += 32;
		len -= 32;
	}
	_mm256_storeu_si256((__m256i *)lane, _mm256_add_epi64(a, b));
	sum = (sum & 0xffffffff) + (sum >> 32);
	return csum_add_portable(sum + lane[0] + lane[1] + lane[2] + lane[3], in, len);
}
