/* Steering: two programs that say which worker gets what arrives.
 *
 * steer_datagram chooses the socket of a UDP datagram among those that share a port. Data
 * messages name a receiver index, and an index names its worker (wire/wgindex.h): whoever
 * owns a session gets all of it, wherever its messages come from. Handshake messages
 * have a socket of their own. Whatever cannot be placed so, and all in the mode "flow", goes by
 * the kernel's own hash of addresses and ports, which is keyed: the same sender gets
 * the same worker, and nobody can choose which. Nothing is ever dropped here.
 *
 * steer_frame chooses the queue of a frame on its way into the TUN by what identifies
 * its flow, so that a flow keeps its queue, its worker and with them its order.
 *
 * A train of GRO is one datagram here, and the first message in it decides for all; a
 * superframe is one frame. */
#include <asm/byteorder.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include "steer_shared.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

typedef __u32 uint32_t; /* stdint.h is not for this target */
typedef __u64 uint64_t;

struct sipkey {
	uint64_t k[2];
};

static __always_inline uint64_t siphash13_u64(const struct sipkey *key, uint64_t v);

#include "wire/wgindex.h"

enum {
	UDP_LEN = 8, /* the header in front of the payload */
	MSG_INITIATION = 1, /* see wire/wgmsg.h */
	MSG_DATA = 4,
	MODE_INDEX = 0, /* enum steer_mode of link.h */
	MODE_RR = 1,
	IPV4_LEN = 20, /* without options */
	IPV4_FRAGMENT = 0x3fff, /* more fragments, or not the first */
	IPV6_LEN = 40,
	L4_TCP = 6, /* netinet/in.h is not for this target */
	L4_UDP = 17,
};

/* No helper that we call asks for the GPL. */
char _license[] SEC("license") = "MIT";

struct steer_memory memory;

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, STEER_SOCKETS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} sockets SEC(".maps");

/* ---- What both have in common. */

static __always_inline __u64 rotl(__u64 x, unsigned n)
{
	return x << n | x >> (64 - n);
}

#define STIR(v0, v1, v2, v3)                                    \
	do {                                                    \
		v0 += v1, v2 += v3;                             \
		v1 = rotl(v1, 13) ^ v0, v3 = rotl(v3, 16) ^ v2; \
		v0 = rotl(v0, 32);                              \
		v2 += v1, v0 += v3;                             \
		v1 = rotl(v1, 17) ^ v2, v3 = rotl(v3, 21) ^ v0; \
		v2 = rotl(v2, 32);                              \
	} while (0)

/* As in base/hash.c. */
static __always_inline uint64_t siphash13_u64(const struct sipkey *key, uint64_t v)
{
	__u64 v0 = key->k[0] ^ 0x736f6d6570736575ULL, v1 = key->k[1] ^ 0x646f72616e646f6dULL;
	__u64 v2 = key->k[0] ^ 0x6c7967656e657261ULL, v3 = key->k[1] ^ 0x7465646279746573ULL;

	v3 ^= v;
	STIR(v0, v1, v2, v3);
	v0 ^= v;
	v = 8ULL << 56;
	v3 ^= v;
	STIR(v0, v1, v2, v3);
	v0 ^= v;
	v2 ^= 0xff;
	STIR(v0, v1, v2, v3);
	STIR(v0, v1, v2, v3);
	STIR(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}
#undef STIR

/* 0 to n - 1, as a part of n of the whole range that the hash has. */
static __always_inline __u32 scale(__u32 hash, __u32 n)
{
	return (__u32)((__u64)hash * n >> 32);
}

/* Without CAP_PERFMON the verifier wants pointers to move alike on all ways to a place:
 * hence an index that it knows equally little of on each. */
static __always_inline void count(__u64 *lanes, __u32 worker)
{
	__u32 lane = bpf_get_smp_processor_id() & memory.lane_mask & (STEER_LANES - 1);

	__sync_fetch_and_add(&lanes[lane * STEER_WORKERS + (worker & (STEER_WORKERS - 1))], 1);
}

/* ---- Datagrams. */

/* false: there is no such socket, or it is not of this group. */
static __always_inline int select_socket(struct sk_reuseport_md *ctx, __u32 place)
{
	__u32 key = place;

	if (ctx->eth_protocol != bpf_htons(ETH_P_IP))
		key += STEER_ROW;
	return bpf_sk_select_reuseport(ctx, &sockets, &key, 0) == 0;
}

static __always_inline int select_worker(struct sk_reuseport_md *ctx, __u32 worker)
{
	if (!select_socket(ctx, worker))
		return 0;
	count(memory.datagrams, worker);
	return 1;
}

static __always_inline __u32 by_hash(const struct sk_reuseport_md *ctx)
{
	return scale(ctx->hash, memory.n_workers);
}

/* The worker who owns an index. Of one that is another gateway's or made up anybody comes out,
 * or a number that no worker has: a place without a socket. */
static __always_inline __u32 by_index(__u32 index)
{
	__u32 epoch = wgindex_epoch(index);
	struct sipkey key = { { memory.keys[epoch][0], memory.keys[epoch][1] } };

	return wgindex_worker(wgindex_unmask(&key, index), memory.worker_bits);
}

static __always_inline __u32 choose_worker(const struct sk_reuseport_md *ctx, const __u32 head[2])
{
	if (memory.mode == MODE_RR)
		return (__u32)(__sync_fetch_and_add(&memory.turn, 1) % memory.n_workers);
	if (memory.mode == MODE_INDEX && __le32_to_cpu(head[0]) == MSG_DATA)
		return by_index(__le32_to_cpu(head[1]));
	return by_hash(ctx);
}

SEC("sk_reuseport") int steer_datagram(struct sk_reuseport_md *ctx)
{
	__u32 head[2] = { 0, 0 }; /* type, receiver index */

	/* The payload need not be in the first piece of the packet: not by pointer. One that is too
	 * short for both is no message, and goes by the hash. */
	if (!bpf_skb_load_bytes(ctx, UDP_LEN, head, sizeof(head)) && memory.n_workers) {
		__u8 type = (__u8)__le32_to_cpu(head[0]);

		if (type >= MSG_INITIATION && type < MSG_DATA) {
			if (select_socket(ctx, STEER_WORKERS))
				return SK_PASS;
		} else if (select_worker(ctx, choose_worker(ctx, head))) {
			return SK_PASS;
		}
	}
	/* Should this fail as well the kernel takes any socket of the group. */
	select_worker(ctx, by_hash(ctx));
	return SK_PASS;
}

/* ---- Frames. */

/* What identifies an inner flow. Fragments after the first have no ports: none of them
 * is asked for any, so that they stay together. */
struct flow {
	__u64 ip[4];
	__u32 ports;
	__u32 protocol;
};

static __always_inline int load_ports(struct __sk_buff *skb, struct flow *f, __u32 at)
{
	if (f->protocol != L4_TCP && f->protocol != L4_UDP)
		return 0;
	return bpf_skb_load_bytes(skb, at, &f->ports, sizeof(f->ports));
}

/* A header that is cut off is no reason to fail: what is there has been read. */
static __always_inline void load_ipv4(struct __sk_buff *skb, struct flow *f)
{
	__u8 head[IPV4_LEN];

	if (bpf_skb_load_bytes(skb, 0, head, sizeof(head)))
		return;
	__builtin_memcpy(f->ip, head + 12, sizeof(f->ip[0]));
	if ((head[6] << 8 | head[7]) & IPV4_FRAGMENT)
		return;
	f->protocol = head[9];
	load_ports(skb, f, (head[0] & 15) * 4);
}

/* A fragment's protocol is that of its fragment header, which has no ports. */
static __always_inline void load_ipv6(struct __sk_buff *skb, struct flow *f)
{
	__u8 next = 0;

	if (bpf_skb_load_bytes(skb, 8, f->ip, sizeof(f->ip)) ||
		bpf_skb_load_bytes(skb, 6, &next, sizeof(next)))
		return;
	f->protocol = next;
	load_ports(skb, f, IPV6_LEN);
}

/* The finalizer of MurmurHash3: every bit of v reaches every bit of the result. */
static __always_inline __u64 mix(__u64 v)
{
	v = (v ^ (v >> 33)) * 0xff51afd7ed558ccdULL;
	v = (v ^ (v >> 33)) * 0xc4ceb9fe1a85ec53ULL;
	return v ^ (v >> 33);
}

/* The secret goes in first, so that nobody outside can say which flows meet. */
static __always_inline __u32 hash_flow(const struct flow *f)
{
	__u64 h = mix(f->ip[0] ^ memory.secret[0]) + memory.secret[1];

	h = mix(h ^ f->ip[1]);
	h = mix(h ^ f->ip[2]);
	h = mix(h ^ f->ip[3]);
	h = mix(h ^ ((__u64)f->ports << 32 | f->protocol));
	return (__u32)(h >> 32);
}

/* The kernel takes the answer modulo the number of queues, which it does not tell. */
SEC("socket") int steer_frame(struct __sk_buff *skb)
{
	struct flow f = { 0 };
	__u8 version = 0;
	__u32 queue;

	/* A TUN has no header of its own in front, and the vnet header comes later. */
	bpf_skb_load_bytes(skb, 0, &version, sizeof(version));
	if (version >> 4 == 4)
		load_ipv4(skb, &f);
	else
		load_ipv6(skb, &f);
	queue = scale(hash_flow(&f), memory.n_queues);
	count(memory.frames, queue);
	return (int)queue;
}
