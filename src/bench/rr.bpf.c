/* Round robin over the sockets of one port: each datagram to the next one. A published listing
 * returns the number of the socket from such a program; the kernel takes SK_PASS or SK_DROP only,
 * and the socket must be selected from a map of sockets. */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

enum { RR_SOCKETS = 1024 };

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, RR_SOCKETS);
	__type(key, __u32);
	__type(value, __u64);
} rr_sockets SEC(".maps");

__u32 rr_n; /* sockets in the map, written before there is traffic */
__u32 rr_next; /* by all CPUs */

SEC("sk_reuseport")
int rr_select(struct sk_reuseport_md *md)
{
	__u32 n = rr_n;
	__u32 key = __sync_fetch_and_add(&rr_next, 1);

	if (!n)
		return SK_PASS;
	key %= n;
	/* Where the slot is empty the kernel's hash decides. */
	(void)bpf_sk_select_reuseport(md, &rr_sockets, &key, 0);
	return SK_PASS;
}

char _license[] SEC("license") = "MIT";
