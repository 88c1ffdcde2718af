/* How it works: four 64-bit words are stirred by c rounds per input word and d
 * rounds at the end (SipHash-c-d). The last word carries the length in its top
 * byte. The round counts are constants where the loops are inlined. */
#include "base/hash.h"

#include "base/bytes.h"

struct state {
	uint64_t v[4];
};

static inline uint64_t rotl(uint64_t x, unsigned n)
{
	return (x << n) | (x >> (64 - n));
}

static inline void stir(struct state *s, unsigned rounds)
{
	uint64_t *v = s->v;

	while (rounds--) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotl(v[1], 13) ^ v[0];
		v[3] = rotl(v[3], 16) ^ v[2];
		v[0] = rotl(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = rotl(v[1], 17) ^ v[2];
		v[3] = rotl(v[3], 21) ^ v[0];
		v[2] = rotl(v[2], 32);
	}
}

static inline void start(struct state *s, const struct sipkey *key)
{
	s->v[0] = key->k[0] ^ 0x736f6d6570736575ULL;
	s->v[1] = key->k[1] ^ 0x646f72616e646f6dULL;
	s->v[2] = key->k[0] ^ 0x6c7967656e657261ULL;
	s->v[3] = key->k[1] ^ 0x7465646279746573ULL;
}

static inline void eat(struct state *s, uint64_t word, unsigned rounds)
{
	s->v[3] ^= word;
	stir(s, rounds);
	s->v[0] ^= word;
}

static inline uint64_t finish(struct state *s, unsigned rounds)
{
	s->v[2] ^= 0xff;
	stir(s, rounds);
	return s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
}

static inline uint64_t siphash(
	const struct sipkey *key, const uint8_t *in, size_t len, unsigned c, unsigned d)
{
	uint64_t last = (uint64_t)len << 56;
	struct state s;
	size_t i;

	start(&s, key);
	for (; len >= 8; in += 8, len -= 8)
		eat(&s, get_le64(in), c);
	for (i = 0; i < len; i++)
		last |= (uint64_t)in[i] << (8 * i);
	eat(&s, last, c);
	return finish(&s, d);
}

uint64_t siphash24(const struct sipkey *key, const void *in, size_t len)
{
	return siphash(key, in, len, 2, 4);
}

uint64_t siphash13(const struct sipkey *key, const void *in, size_t len)
{
	return siphash(key, in, len, 1, 3);
}

uint64_t siphash13_u64(const struct sipkey *key, uint64_t v)
{
	struct state s;

	start(&s, key);
	eat(&s, v, 1);
	eat(&s, (uint64_t)8 << 56, 1);
	return finish(&s, 3);
}
