/* What connection tracking answers about a packet, from an allocation of its exact size:
 * an address that is found lies within the answer. The first byte chooses the family. The
 * callbacks are not behind a door: hence the include.
 *
 * The length of the whole message is right: libmnl's loop over messages, which we call,
 * takes it for signed, and relies on the kernel. */
#include "gateway/conntrack.c" /* NOLINT */
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(bool is_right)
{
	if (!is_right)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const uint8_t v4[28] = { 0x45, 0, 0, 28, [8] = 64, IPPROTO_UDP, 0, 0, 10, 0, 0, 1,
		10, 0, 0, 2, 0, 1, 0, 2, 0, 8 };
	static const uint8_t v6[48] = { 0x60, 0, 0, 0, 0, 8, IPPROTO_UDP, 64, 0xfd, [23] = 1,
		0xfd, [39] = 2, 0, 1, 0, 2, 0, 8 };
	struct icmp_cause c;
	struct answer a = { .c = &c };
	bool is_v4;
	uint8_t *buf;

	if (len < 1 + sizeof(struct nlmsghdr))
		return 0;
	is_v4 = data[0] & 1;
	check(icmp_cause_parse(&c, is_v4 ? v4 : v6, is_v4 ? sizeof(v4) : sizeof(v6)));
	buf = malloc(--len);
	memcpy(buf, data + 1, len);
	((struct nlmsghdr *)buf)->nlmsg_len = (uint32_t)len;
	if (mnl_cb_run(buf, len, 0, 0, on_connection, &a) >= 0 && a.found)
		check(a.found >= buf && a.found + addr_len(&c) <= buf + len);
	free(buf);
	return 0;
}
