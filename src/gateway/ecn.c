#include "gateway/ecn.h"
#include "base/bytes.h"

bool ecn_carry(uint8_t *pkt, uint8_t outer_tos)
{
	if ((outer_tos & ECN_MASK) != ECN_CE)
		return true;
	if (pkt[0] >> 4 == 4) {
		uint32_t sum;

		if (!(pkt[1] & ECN_MASK))
			return false;
		/* RFC 1624: the 16-bit word that holds the TOS grows by the difference. */
		sum = get_be16(pkt + 10) + (uint32_t)(ECN_CE - (pkt[1] & ECN_MASK)) * 0xfffe;
		sum = (sum & 0xffff) + (sum >> 16);
		put_be16(pkt + 10, (uint16_t)((sum & 0xffff) + (sum >> 16)));
		pkt[1] |= ECN_CE;
		return true;
	}
	if (!(pkt[1] & ECN_MASK << 4))
		return false;
	pkt[1] |= ECN_CE << 4;
	return true;
}
