/* Tunnels that are routed into themselves, or into each other in a circle. Each turn makes
 * a packet longer, and once it is longer than an MTU its fragments multiply. Two guards:
 *
 *  - A data message of ours on its way into its own session is recognized by index and
 *    counter: wg_is_loop().
 *  - In a circle of several gateways each sees only messages of another, encrypted. What
 *    ends it is the hop limit, as RFC 2473's encapsulation limit ends circles of IPv6
 *    tunnels: a message that carries a tunnel's message has HOPS_PER_TUNNEL less than
 *    that has, wg_outer_hops(). */
#include "base/bytes.h"
#include "wg/device.h"
#include <netinet/in.h>

enum {
	HOPS_MAX = 64, /* what hosts begin with */
	HOPS_PER_TUNNEL =
		8, /* leaves 40 for the way of a tunnel in a tunnel in a tunnel in another */
	IPV6_HDR = 40,
	FRAGMENT_HDR = 8,
	UDP_HDR = 8,
};

enum udp_part {
	UDP_NONE,
	UDP_HEAD, /* whole, or the first fragment */
	UDP_REST, /* a later fragment: without ports or a message's header */
};

/* at: of the UDP payload, for UDP_HEAD. */
static enum udp_part udp_part(const uint8_t *pkt, size_t len, size_t *at)
{
	if (pkt[0] >> 4 == 4) {
		*at = (size_t)(pkt[0] & 15) * 4 + UDP_HDR;
		if (pkt[9] != IPPROTO_UDP)
			return UDP_NONE;
		return get_be16(pkt + 6) & 0x1fff ? UDP_REST : UDP_HEAD;
	}
	*at = IPV6_HDR + UDP_HDR;
	if (len < IPV6_HDR + FRAGMENT_HDR)
		return UDP_NONE;
	if (pkt[6] == IPPROTO_UDP)
		return UDP_HEAD;
	if (pkt[6] != IPPROTO_FRAGMENT || pkt[IPV6_HDR] != IPPROTO_UDP)
		return UDP_NONE;
	*at += FRAGMENT_HDR;
	return get_be16(pkt + IPV6_HDR + 2) & 0xfff8 ? UDP_REST : UDP_HEAD;
}

static bool is_data_message(const uint8_t *pkt, size_t len, size_t at)
{
	return len >= at + WGMSG_DATA_HDR && get_le32(pkt + at) == WGMSG_DATA;
}

bool wg_is_loop(const struct wg_peer *peer, const uint8_t *pkt, size_t len)
{
	const struct keypair *kp;
	size_t at;

	if (udp_part(pkt, len, &at) != UDP_HEAD || !is_data_message(pkt, len, at))
		return false;
	/* Of others' messages one in 2^32 carries the index by chance. */
	kp = rcu_read(peer->current);
	return kp && get_le32(pkt + at + 4) == kp->remote_index &&
		get_le64(pkt + at + 8) <
		atomic_load_explicit(&kp->tx_counter, memory_order_relaxed);
}

bool wg_outer_hops(const uint8_t *pkt, size_t len, uint8_t *hops)
{
	size_t at;
	enum udp_part part = udp_part(pkt, len, &at);
	uint8_t inner;

	*hops = 0;
	/* Of a later fragment nobody can tell whose it is: counted as a message's. */
	if (part == UDP_NONE || (part == UDP_HEAD && !is_data_message(pkt, len, at)))
		return true;
	inner = pkt[0] >> 4 == 4 ? pkt[8] : pkt[7];
	if (inner > HOPS_MAX)
		inner = HOPS_MAX;
	if (inner <= HOPS_PER_TUNNEL)
		return false;
	*hops = (uint8_t)(inner - HOPS_PER_TUNNEL);
	return true;
}
