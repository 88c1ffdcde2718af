/* How it works: 32-bit words are added into 64-bit accumulators, which cannot
 * overflow for any length that fits memory (2^32 words). The ones' complement
 * sum does not care about word size or byte order (RFC 1071 section 2), so
 * folding comes last and once. Wider versions are in files of their own; this
 * one chooses. */
#include "wire/csum.h"

#include "base/bytes.h"
#include "base/cpu.h"

/* Below this the portable loop wins: see the measurement in the commit. */
enum { WIDE_MIN = 64 };

static inline uint64_t load64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline uint64_t halves(uint64_t v)
{
	return (v & 0xffffffff) + (v >> 32);
}

/* The last 0..7 bytes; an odd one is padded by a zero byte behind it. */
static inline uint64_t load_tail(const uint8_t *p, size_t len)
{
	uint64_t sum = 0;
	uint32_t word;
	uint16_t half;

	if (len & 4) {
		memcpy(&word, p, sizeof(word));
		sum += word;
		p += 4;
	}
	if (len & 2) {
		memcpy(&half, p, sizeof(half));
		sum += half;
		p += 2;
	}
	if (len & 1) {
		half = 0;
		memcpy(&half, p, 1);
		sum += half;
	}
	return sum;
}

uint64_t csum_add_portable(uint64_t sum, const void *p, size_t len)
{
	const uint8_t *in = p;
	uint64_t a = 0, b = 0;

	for (; len >= 16; in += 16, len -= 16) {
		a += halves(load64(in));
		b += halves(load64(in + 8));
	}
	if (len & 8) {
		a += halves(load64(in));
		in += 8;
	}
	b += load_tail(in, len & 7);
	/* Halves, since the caller's sum may be any 64-bit value so far. */
	return halves(sum) + halves(a) + halves(b);
}

uint64_t csum_add(uint64_t sum, const void *p, size_t len)
{
#if defined(__x86_64__)
	unsigned can;

	if (len >= WIDE_MIN) {
		can = cpu_features();
		if (can & CPU_AVX512)
			return csum_add_avx512(sum, p, len);
		if (can & CPU_AVX2)
			return csum_add_avx2(sum, p, len);
	}
#endif
	return csum_add_portable(sum, p, len);
}

uint64_t csum_pseudo(
	const void *src, const void *dst, size_t addr_len, uint8_t proto, uint32_t l4_len)
{
	uint8_t tail[8] = { 0 };
	uint64_t sum;

	put_be32(tail, l4_len);
	tail[7] = proto;
	sum = csum_add_portable(0, src, addr_len);
	sum = csum_add_portable(sum, dst, addr_len);
	return csum_add_portable(sum, tail, sizeof(tail));
}
