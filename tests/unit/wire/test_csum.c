/* csum.h: every version against a sum done byte by byte, at every alignment,
 * with every subset of the CPU's features, and against a known packet. */
#include "wire/csum.h"

#include "base/bytes.h"
#include "base/compiler.h"
#include "base/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { LEN_MAX = 4096, ALIGNS = 64 };

typedef uint64_t (*csum_fn)(uint64_t sum, const void *p, size_t len);

static uint8_t area[LEN_MAX + ALIGNS];

static void fill(unsigned seed)
{
	size_t i;

	srandom(seed);
	for (i = 0; i < sizeof(area); i++)
		area[i] = seed % 4 == 3 ? 0xff : (uint8_t)random();
}

/* The definition: big endian 16-bit words, an odd last byte padded by zero,
 * carries added back in. */
static uint16_t by_the_book(uint16_t start, const uint8_t *p, size_t len)
{
	uint32_t sum = start;
	size_t i;

	for (i = 0; i < len; i++) {
		sum += i % 2 ? p[i] : (uint32_t)p[i] << 8;
		sum = (sum & 0xffff) + (sum >> 16);
	}
	return htobe16((uint16_t)sum);
}

static void check_all_lengths(csum_fn fn)
{
	const uint8_t *p;
	unsigned seed;
	size_t len;

	for (seed = 0; seed < 8; seed++) {
		fill(seed);
		for (len = 0; len <= LEN_MAX; len++) {
			p = area + (len * 7 + seed) % ALIGNS;
			assert_int_equal(csum_fold(fn(0, p, len)), by_the_book(0, p, len));
		}
		for (len = 0; len < ALIGNS; len++) {
			p = area + len;
			assert_int_equal(csum_fold(fn(0, p, 1021)), by_the_book(0, p, 1021));
			assert_int_equal(csum_fold(fn(htobe16(0xfedc), p, 300 + len)),
				by_the_book(0xfedc, p, 300 + len));
		}
	}
}

static void portable_is_by_the_book(void **state)
{
	check_all_lengths(csum_add_portable);
}

static void vectors_are_by_the_book(void **state)
{
#if defined(__x86_64__)
	if (cpu_features() & CPU_AVX2)
		check_all_lengths(csum_add_avx2);
	if (cpu_features() & CPU_AVX512)
		check_all_lengths(csum_add_avx512);
#endif
	if (!cpu_features())
		skip();
}

static void dispatch_is_right_for_every_cpu(void **state)
{
	unsigned m;

	for (m = 0; m <= (CPU_AVX2 | CPU_AVX512); m++) {
		cpu_mask(m);
		check_all_lengths(csum_add);
	}
	cpu_mask(~0U);
}

static uint64_t in_pieces(uint64_t sum, const void *p, size_t len)
{
	const uint8_t *in = p;
	size_t piece;

	for (; len > 2; in += piece, len -= piece) {
		piece = 2 * (1 + (size_t)random() % 400);
		if (piece > len)
			piece = len & ~(size_t)1;
		sum = csum_add(sum, in, piece);
	}
	return csum_add(sum, in, len);
}

static void even_pieces_add_up(void **state)
{
	check_all_lengths(in_pieces);
}

static void huge_partial_sums_do_not_wrap(void **state)
{
	csum_fn fns[4] = { csum_add, csum_add_portable };
	size_t i, n = 2;

#if defined(__x86_64__)
	if (cpu_features() & CPU_AVX2)
		fns[n++] = csum_add_avx2;
	if (cpu_features() & CPU_AVX512)
		fns[n++] = csum_add_avx512;
#endif
	memset(area, 0xff, sizeof(area));
	area[7] = 0x12;
	for (i = 0; i < n; i++) {
		/* All ones in 16 bits is zero in ones' complement. */
		assert_int_equal(
			csum_fold(fns[i](UINT64_MAX, area, 256)), by_the_book(0, area, 256));
		assert_int_equal(csum_fold(fns[i](UINT64_MAX - 0x1234, area, 0)), 0xffff - 0x1234);
	}
}

static void nothing_past_the_end_is_read(void **state)
{
	long page = sysconf(_SC_PAGESIZE);
	csum_fn fns[4] = { csum_add, csum_add_portable };
	size_t i, len, n = 2;
	uint8_t *map, *end;

#if defined(__x86_64__)
	if (cpu_features() & CPU_AVX2)
		fns[n++] = csum_add_avx2;
	if (cpu_features() & CPU_AVX512)
		fns[n++] = csum_add_avx512;
#endif
	map = mmap(
		NULL, (size_t)page * 3, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(map != MAP_FAILED);
	assert_int_equal(mprotect(map, (size_t)page, PROT_NONE), 0);
	assert_int_equal(mprotect(map + 2 * page, (size_t)page, PROT_NONE), 0);
	end = map + 2 * page;
	memset(map + page, 0x5a, (size_t)page);
	for (i = 0; i < n; i++) {
		for (len = 0; len <= (size_t)page; len++) {
			assert_int_equal(csum_fold(fns[i](0, end - len, len)),
				by_the_book(0, end - len, len));
		}
		assert_int_equal(
			csum_fold(fns[i](0, map + page, 77)), by_the_book(0, map + page, 77));
	}
	munmap(map, (size_t)page * 3);
}

static void a_known_header(void **state)
{
	/* The IPv4 header that many texts use; its checksum is b861. */
	static const uint8_t ip[] = { 0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11,
		0x00, 0x00, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7 };
	uint16_t sum = (uint16_t)~csum_fold(csum_add(0, ip, sizeof(ip)));

	assert_int_equal(get_be16(&sum), 0xb861);
}

static void pseudo_headers(void **state)
{
	uint8_t src[16], dst[16], flat[40] = { 0 };
	size_t i;

	for (i = 0; i < 16; i++) {
		src[i] = (uint8_t)(0x20 + i * 11);
		dst[i] = (uint8_t)(0xfe - i * 3);
	}
	/* IPv4: addresses, zero, protocol, 16-bit length. */
	memcpy(flat, src, 4);
	memcpy(flat + 4, dst, 4);
	flat[9] = 17;
	put_be16(flat + 10, 0xabcd);
	assert_int_equal(csum_fold(csum_pseudo(src, dst, 4, 17, 0xabcd)), by_the_book(0, flat, 12));
	/* IPv6: addresses, 32-bit length, three zeros, next header. */
	memset(flat, 0, sizeof(flat));
	memcpy(flat, src, 16);
	memcpy(flat + 16, dst, 16);
	put_be32(flat + 32, 0x123456);
	flat[39] = 6;
	assert_int_equal(
		csum_fold(csum_pseudo(src, dst, 16, 6, 0x123456)), by_the_book(0, flat, 40));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(portable_is_by_the_book),
		cmocka_unit_test(vectors_are_by_the_book),
		cmocka_unit_test(dispatch_is_right_for_every_cpu),
		cmocka_unit_test(even_pieces_add_up),
		cmocka_unit_test(huge_partial_sums_do_not_wrap),
		cmocka_unit_test(nothing_past_the_end_is_read),
		cmocka_unit_test(a_known_header),
		cmocka_unit_test(pseudo_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
