/* The inner-packet parser, the splitter and the coalescer on arbitrary bytes.
 *
 * An input is a list of records: two bytes of length (big endian), then the
 * bytes of one frame with its vnet header. Each is parsed and split as if it came
 * from the TUN; then all packets go through merge as if they came from peers, and
 * what comes out must be whole: every byte accounted for, every superframe one
 * that split takes. Each piece is copied to an allocation of its exact size, so
 * that one byte too far is seen.
 *
 * Called with --make-seeds DIR it writes a seed corpus there. */
#include "base/bytes.h"
#include "link/link.h"
#include "wire/csum.h"
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VNET = sizeof(struct virtio_net_hdr), PACKETS_MAX = 128, SEGS_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static uint8_t *packets[PACKETS_MAX];
static uint32_t lens[PACKETS_MAX];
static size_t n_packets;
static struct merge *merge;

static void check(bool is_right)
{
	if (!is_right)
		abort();
}

/* Keep a packet for the coalescer. pkt is taken over. */
static void keep(uint8_t *pkt, uint32_t len)
{
	struct inner in;

	if (n_packets == PACKETS_MAX || !inner_parse(&in, pkt, len)) {
		free(pkt);
		return;
	}
	check(in.len <= len && in.hdr_len <= in.len && in.ip_len <= in.hdr_len);
	packets[n_packets] = pkt;
	lens[n_packets++] = in.len;
}

static void one_frame(const uint8_t *data, size_t len)
{
	uint8_t *frame = malloc(len ? len : 1);
	struct split s;

	memcpy(frame, data, len);
	if (split_init(&s, frame, len, true) == SPLIT_OK) {
		check(s.n >= 1 && s.len <= len - VNET);
		for (uint32_t i = 0; i < s.n; i += i < SEGS_MAX ? 1 : s.n / 7 + 1) {
			size_t want = i + 1 < s.n ? s.seg_len : s.last_len;
			uint8_t *out = malloc(want);

			check(split_segment(&s, i, out) == want);
			keep(out, (uint32_t)want);
		}
	}
	if (split_init(&s, frame, len, false) == SPLIT_OK)
		check(s.n == 1 && !s.gso_len && s.len <= len);
	free(frame);
}

/* Bytes of payload and headers that one frame stands for. */
static size_t check_frame(const struct io_tx *tx)
{
	static uint8_t frame[VNET + 65536 + 64];
	struct split s;
	size_t len = 0;

	for (size_t i = 0; i < tx->hdr.msg_iovlen; i++) {
		check(len + tx->hdr.msg_iov[i].iov_len <= sizeof(frame));
		memcpy(frame + len, tx->hdr.msg_iov[i].iov_base, tx->hdr.msg_iov[i].iov_len);
		len += tx->hdr.msg_iov[i].iov_len;
	}
	check(split_init(&s, frame, len, true) == SPLIT_OK);
	check(s.len + VNET == len);
	check(s.n == 1 || tx->hdr.msg_iovlen == s.n + 1);
	return (size_t)(s.n - 1) * s.seg_len + s.last_len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	size_t total = 0, got = 0, n;
	struct io_tx *tx;

	if (!merge) {
		check(!merge_create(&merge));
		merge_set_offloads(merge, OFFLOAD_ALL);
	}
	while (len >= 2) {
		size_t want = get_be16(data);

		data += 2;
		len -= 2;
		want = want < len ? want : len;
		one_frame(data, want);
		data += want;
		len -= want;
	}
	for (size_t i = 0; i < n_packets; i++) {
		total += lens[i];
		check(merge_add(merge, packets[i], lens[i]));
	}
	n = merge_finish(merge, &tx);
	check(n <= n_packets);
	for (size_t i = 0; i < n; i++)
		got += check_frame(&tx[i]);
	check(got == total);
	merge_reset(merge);
	while (n_packets)
		free(packets[--n_packets]);
	return 0;
}

/* ---- Seeds: a superframe of every kind, and a train of packets. */

static size_t make_packet(
	uint8_t *out, bool is_v4, bool is_tcp, uint32_t payload, uint32_t seq, bool is_partial)
{
	uint32_t ip_len = is_v4 ? 20 : 40, l4_len = (is_tcp ? 20 : 8) + payload;
	uint8_t *l4 = out + ip_len, proto = is_tcp ? IPPROTO_TCP : IPPROTO_UDP;
	uint64_t sum;
	uint16_t v;

	memset(out, 0, ip_len + l4_len);
	out[0] = is_v4 ? 0x45 : 0x60;
	put_be16(out + (is_v4 ? 2 : 4), (uint16_t)(l4_len + (is_v4 ? 20 : 0)));
	out[is_v4 ? 9 : 6] = proto;
	out[is_v4 ? 8 : 7] = 64;
	if (is_v4) {
		out[6] = 0x40;
		v = (uint16_t)~csum_fold(csum_add(0, out, 20));
		memcpy(out + 10, &v, 2);
	}
	put_be32(l4, 0x12345678);
	if (is_tcp) {
		put_be32(l4 + 4, seq);
		put_be32(l4 + 12, 0x50100100);
	} else {
		put_be16(l4 + 4, (uint16_t)l4_len);
	}
	sum = csum_pseudo(
		out + (is_v4 ? 12 : 8), out + (is_v4 ? 16 : 24), is_v4 ? 4 : 16, proto, l4_len);
	v = is_partial ? csum_fold(sum) : (uint16_t)~csum_fold(csum_add(sum, l4, l4_len));
	memcpy(l4 + (is_tcp ? 16 : 6), &v, 2);
	return ip_len + l4_len;
}

static void write_seed(const char *dir, unsigned kind)
{
	static uint8_t buf[8192];
	bool is_v4 = kind & 1, is_tcp = kind & 2, is_super = kind & 4;
	uint32_t n = is_super ? 1 : 4, payload = is_super ? 1000 : 200;
	char path[4096];
	size_t len = 0;
	FILE *f;

	for (uint32_t i = 0; i < n; i++) {
		struct virtio_net_hdr v = { 0 };
		size_t one = make_packet(
			buf + len + 2 + VNET, is_v4, is_tcp, payload, i * payload, is_super);

		if (is_super) {
			v.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
			v.gso_type = !is_tcp ? 5 : is_v4 ? 1 : 4;
			v.gso_size = 300;
			v.csum_start = is_v4 ? 20 : 40;
			v.csum_offset = is_tcp ? 16 : 6;
		}
		put_be16(buf + len, (uint16_t)(one + VNET));
		memcpy(buf + len + 2, &v, VNET);
		len += 2 + VNET + one;
	}
	snprintf(path, sizeof(path), "%s/inner-%u", dir, kind);
	f = fopen(path, "wb");
	if (!f || fwrite(buf, 1, len, f) != len || fclose(f)) {
		perror(path);
		exit(1);
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	if (*argc != 3 || strcmp((*argv)[1], "--make-seeds"))
		return 0;
	for (unsigned kind = 0; kind < 8; kind++)
		write_seed((*argv)[2], kind);
	exit(0);
}
