/* RFC 6040 figure 4: what becomes of the inner mark when the outer one is CE, and of the
 * IPv4 header's checksum. */
#include "gateway/ecn.h"
#include "base/bytes.h"
#include "wire/csum.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void make_ipv4(uint8_t pkt[20], uint8_t tos)
{
	uint16_t sum;

	for (unsigned i = 0; i < 20; i++)
		pkt[i] = (uint8_t)(i * 37 + tos);
	pkt[0] = 0x45;
	pkt[1] = tos;
	put_be16(pkt + 10, 0);
	sum = csum_fold(csum_add(0, pkt, 20));
	sum = (uint16_t)~sum;
	memcpy(pkt + 10, &sum, 2);
}

static void test_ipv4(void **state)
{
	uint8_t pkt[20], same[20];

	for (unsigned tos = 0; tos < 256; tos++) {
		for (uint8_t outer = 0; outer < 4; outer++) {
			bool is_marked = outer == ECN_CE;

			make_ipv4(pkt, (uint8_t)tos);
			memcpy(same, pkt, sizeof(pkt));
			assert_int_equal(ecn_carry(pkt, outer), !is_marked || tos & ECN_MASK);
			if (!is_marked || !(tos & ECN_MASK)) {
				assert_memory_equal(pkt, same, sizeof(pkt));
				continue;
			}
			assert_int_equal(pkt[1], tos | ECN_CE);
			assert_int_equal(csum_fold(csum_add(0, pkt, 20)), 0xffff);
		}
	}
}

static void test_ipv6(void **state)
{
	for (unsigned tc = 0; tc < 256; tc++) {
		uint8_t pkt[40] = { 0 };

		put_be32(pkt, 6U << 28 | tc << 20 | 0xabcde);
		assert_int_equal(ecn_carry(pkt, ECN_CE), (tc & ECN_MASK) != 0);
		assert_int_equal(get_be32(pkt),
			6U << 28 | (tc & ECN_MASK ? tc | ECN_CE : tc) << 20 | 0xabcde);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ipv4),
		cmocka_unit_test(test_ipv6),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
