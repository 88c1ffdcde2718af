/* The sieve: two filters on the gateway's UDP sockets, which run before a datagram
 * is queued. What they drop costs neither a place in the socket's buffer nor a
 * wake-up nor a copy.
 *
 * sieve_handshake, on the sockets for handshake messages, meters what arrives.
 * As long as that is no flood, everything that may be a handshake message passes.
 * In a flood a message needs a token of its source, and no more pass than the
 * process can answer, whoever sent them.
 *
 * sieve_data, on the sockets for data, reads one word and lets everything pass
 * while nobody is guilty. Messages of those whom the process has named are dropped,
 * but for a small share.
 *
 * A filter sees the UDP header at offset 0. With UDP GRO it sees a train: one flow,
 * equal lengths but for the last. It is judged by its first message, and costs as
 * many tokens as it has messages.
 *
 * All meters are of one kind (GCRA): the point in time when it would be empty
 * again. A message moves it on by its cost, time passes towards it. CPUs that meet at
 * a meter or a place in a table may undo each other's last step; a few messages
 * more or less do not matter here, and socket filters may not lock. */
#include <asm/byteorder.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include "sieve_shared.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum {
	DROP = 0,
	PASS = -1, /* as many bytes as there are */
	UDP_LEN = 8, /* the header in front of the payload */
	IPV4_SOURCE = 12, /* offsets in the IP header */
	IPV6_SOURCE = 8,
	FAMILY_IPV4 = 2, /* AF_INET, AF_INET6: sys/socket.h is not for this target */
	FAMILY_IPV6 = 10,
	MSG_INITIATION = 1, /* see wire/wgmsg.h */
	MSG_RESPONSE = 2,
	MSG_COOKIE = 3,
	MSG_DATA = 4,
	INITIATION_LEN = 148,
	RESPONSE_LEN = 92,
	COOKIE_LEN = 64,
	NSEC_PER_MSEC = 1000000,
};

/* No helper that we call asks for the GPL. */
char _license[] SEC("license") = "MIT";

struct sieve_memory memory;

/* ---- What both have in common. */

/* Without CAP_PERFMON the verifier wants pointers to move alike on all ways to a place.
 * Hence an index that it knows equally little of on each, even where there is only
 * one CPU, and loops that are unrolled. */
static __always_inline int count(enum sieve_tally what, __u32 n)
{
	__u32 lane = bpf_get_smp_processor_id() & memory.lane_mask & (SIEVE_LANES - 1);

	__sync_fetch_and_add(&memory.tallies[lane * TALLY_PLACES + what], n);
	return what == TALLY_PASSED ? PASS : DROP;
}

/* Length of the first message. */
static __always_inline __u32 message_len(const struct __sk_buff *skb)
{
	return skb->gso_size ? skb->gso_size : skb->len - UDP_LEN;
}

/* Messages in the train. Not gso_segs: it may be 0 where the train came from a tap. */
static __always_inline __u32 message_count(const struct __sk_buff *skb)
{
	__u32 size = skb->gso_size;

	return size && skb->len > UDP_LEN ? (skb->len - UDP_LEN + size - 1) / size : 1;
}

static __always_inline int load_source(const struct __sk_buff *skb, __u64 ip[2])
{
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return bpf_skb_load_bytes_relative(skb, IPV4_SOURCE, ip, 4, BPF_HDR_START_NET);
	return bpf_skb_load_bytes_relative(skb, IPV6_SOURCE, ip, 16, BPF_HDR_START_NET);
}

/* ---- Handshakes. */

static __always_inline int is_handshake(__u32 type, __u32 len)
{
	switch (type) {
	case MSG_INITIATION:
		return len == INITIATION_LEN;
	case MSG_RESPONSE:
		return len == RESPONSE_LEN;
	case MSG_COOKIE:
		return len == COOKIE_LEN;
	default:
		return 0;
	}
}

/* The meter of all that arrives, whatever becomes of it: a flood stays one until
 * fewer come. It stops a little above the mark, so that it gets back down. */
static __always_inline int is_flood(__u32 n, __u64 now)
{
	__u64 cost = n * memory.flood.step_ns;
	__u64 due = __sync_fetch_and_add(&memory.flood_due_ns, cost) + cost;

	if (due < now + cost) {
		memory.flood_due_ns = now + cost;
		due = now + cost;
	}
	if (due <= now + memory.flood.depth_ns)
		return 0;
	if (due > now + memory.flood.depth_ns + memory.hold_ns)
		memory.flood_due_ns = now + memory.flood.depth_ns + memory.hold_ns;
	return 1;
}

/* Take n tokens of a source. Its place holds half of its hash, and when its tokens
 * are all there again: in milliseconds, of which 32 bits last for weeks. What is
 * farther ahead than the most that a source can owe is left from weeks ago.
 *
 * A source that is not in its set takes a place whose tokens are all there: any other
 * would give a sender of ever new addresses new tokens each time. Where no place in
 * the set is so, the message is dropped; a set passes no more than its places do. */
static __always_inline enum sieve_tally take_token(__u64 key, __u32 n, __u64 now_ns)
{
	__u64 h = sieve_mix(key ^ memory.secret[0]) + memory.secret[1];
	__u64 *set = memory.sources[(h >> 32) & (SIEVE_SETS - 1)], *idle = 0;
	__u32 depth = memory.source_depth_ms, tag = (__u32)h, now = (__u32)(now_ns / NSEC_PER_MSEC);
	__u64 cost = (__u64)n * memory.source_step_ms;

	if (cost > depth)
		return TALLY_SOURCE;
#pragma unroll
	for (int i = 0; i < SIEVE_WAYS; i++) {
		__u64 place = set[i];
		__u32 ahead = (__u32)place - now;

		if (ahead > depth)
			ahead = 0;
		if (place >> 32 == tag) {
			if (ahead + cost > depth)
				return TALLY_SOURCE;
			set[i] = (__u64)tag << 32 | (__u32)(now + ahead + cost);
			return TALLY_PASSED;
		}
		if (!ahead)
			idle = &set[i];
	}
	if (!idle)
		return TALLY_TABLE;
	*idle = (__u64)tag << 32 | (__u32)(now + cost);
	return TALLY_PASSED;
}

/* The token first: whoever floods has soon used up his own, and from then on all that
 * pass need not compete with him. */
static __always_inline enum sieve_tally judge_in_flood(
	const struct __sk_buff *skb, __u32 n, __u64 now)
{
	__u64 ip[2] = { 0, 0 }, due;
	enum sieve_tally what;

	if (load_source(skb, ip))
		return TALLY_MALFORMED;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		ip[0] = SIEVE_KEY_IPV4 | *(__u32 *)ip;
	what = take_token(ip[0], n, now);
	if (what != TALLY_PASSED)
		return what;
	due = memory.pass_due_ns;
	if (due < now)
		due = now;
	due += n * memory.pass.step_ns;
	if (due > now + memory.pass.depth_ns)
		return TALLY_BUDGET;
	memory.pass_due_ns = due;
	return TALLY_PASSED;
}

SEC("socket") int sieve_handshake(struct __sk_buff *skb)
{
	__u32 type = 0, n = message_count(skb);
	__u64 now;

	if (bpf_skb_load_bytes(skb, UDP_LEN, &type, sizeof(type)))
		return count(TALLY_MALFORMED, n);
	if (!is_handshake(__le32_to_cpu(type), message_len(skb)))
		return count(TALLY_MALFORMED, n);
	now = bpf_ktime_get_coarse_ns();
	return count(is_flood(n, now) ? judge_in_flood(skb, n, now) : TALLY_PASSED, n);
}

/* ---- Data. */

static __always_inline int load_key(const struct __sk_buff *skb, struct guilty_key *k)
{
	__u32 head[2]; /* type, receiver index */

	if (bpf_skb_load_bytes(skb, UDP_LEN, head, sizeof(head)) ||
		__le32_to_cpu(head[0]) != MSG_DATA)
		return -1;
	k->receiver = head[1];
	k->family = skb->protocol == bpf_htons(ETH_P_IP) ? FAMILY_IPV4 : FAMILY_IPV6;
	if (bpf_skb_load_bytes(skb, 0, &k->port, sizeof(k->port)))
		return -1;
	return load_source(skb, k->ip);
}

/* The entry is read while the process may be writing it: it sets until_ns to 0
 * before and to another time after it. */
static __always_inline struct guilty *find_guilty(const struct guilty_key *key, __u64 now)
{
	struct guilty *set = memory.guilty[guilty_set(memory.secret, key)];

#pragma unroll
	for (int i = 0; i < GUILTY_WAYS; i++) {
		volatile __u64 *until = &set[i].until_ns;
		__u64 seen = *until;

		if (seen <= now || !guilty_is(&set[i].key, key))
			continue;
		return *until == seen ? &set[i] : 0;
	}
	return 0;
}

/* Is this one named, or all of this session but its home, which this one is not? */
static __always_inline struct guilty *find_charge(const struct guilty_key *key, __u64 now)
{
	struct guilty_key anybody = { .receiver = key->receiver };
	struct guilty *g = find_guilty(key, now);

	if (g)
		return g;
	g = find_guilty(&anybody, now);
	return g && !guilty_is(&g->home, key) ? g : 0;
}

SEC("socket") int sieve_data(struct __sk_buff *skb)
{
	__u64 until = *(volatile __u64 *)&memory.guilty_until_ns, now;
	struct guilty_key key = { 0 };
	struct guilty *g;

	if (!until)
		return PASS;
	now = bpf_ktime_get_coarse_ns();
	if (until <= now) {
		__sync_val_compare_and_swap(&memory.guilty_until_ns, until, 0);
		return PASS;
	}
	if (load_key(skb, &key))
		return PASS;
	g = find_charge(&key, now);
	if (!g || __sync_fetch_and_add(&g->n, 1) % GUILTY_SHARE == GUILTY_SHARE - 1)
		return PASS;
	return count(TALLY_GUILTY, message_count(skb));
}
