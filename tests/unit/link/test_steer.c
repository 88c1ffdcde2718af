/* The steering programs in the kernel: real sockets on the loopback, a real TUN with several
 * queues in a namespace of our own. Needs root. */
#include "base/bytes.h"
#include "base/sandbox.h"
#include "link/link.h"
#include "wire/wgindex.h"
#include "wire/wgmsg.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { WAIT_MS = 10000, N_QUEUES = 4, MSG_LEN = 1000 };

static const uint8_t keys[2][16] = { "sixteen bytes...", "another sixteen." };

static struct steer *steer;
static struct udp u;
static int sender[2]; /* by family */

static int try_create(struct steer **out, enum steer_mode mode, unsigned n)
{
	struct steer_config cfg = { .mode = mode, .n_workers = n };

	memcpy(cfg.index_key, keys[0], 16);
	return steer_create(out, &cfg);
}

static void need_steer(void)
{
	static int ret = 1;

	if (ret == 1) {
		ret = try_create(&steer, STEER_INDEX, 2);
		steer_destroy(steer);
		steer = NULL;
	}
	if (!ret)
		return;
	print_message("skipped: eBPF programs cannot be loaded here: %s\n", strerror(-ret));
	skip();
}

/* ---- Sockets. */

static void open_senders(void)
{
	int one = 1;

	for (unsigned i = 0; i < 2; i++)
		if (sender[i] >= 0)
			close(sender[i]);
	sender[0] = socket(AF_INET, SOCK_DGRAM, 0);
	sender[1] = socket(AF_INET6, SOCK_DGRAM, 0);
	assert_true(sender[0] >= 0);
	if (sender[1] >= 0)
		assert_int_equal(
			setsockopt(sender[1], IPPROTO_IPV6, IPV6_FREEBIND, &one, sizeof(one)), 0);
}

static struct udp_config config_of(unsigned n, struct steer_fds fds)
{
	return (struct udp_config){ .allowed = OFFLOAD_ALL, .n = n, .steer = fds };
}

static void begin(enum steer_mode mode, unsigned n)
{
	struct udp_config cfg;

	assert_int_equal(try_create(&steer, mode, n), 0);
	steer_set_epoch_key(steer, 1, keys[1]);
	cfg = config_of(n, steer_get_fds(steer));
	assert_int_equal(udp_open(&u, &cfg), 0);
	assert_int_equal(u.n, n);
	assert_int_equal(u.is_steered, n > 1);
}

static int setup(void **state)
{
	sender[0] = sender[1] = -1;
	udp_init(&u);
	open_senders();
	return 0;
}

static int teardown(void **state)
{
	udp_close(&u);
	steer_destroy(steer);
	steer = NULL;
	for (unsigned i = 0; i < 2; i++)
		if (sender[i] >= 0)
			close(sender[i]);
	return 0;
}

static bool has_family(unsigned family)
{
	return u.data[family][0] >= 0 && sender[family] >= 0;
}

struct control {
	_Alignas(struct cmsghdr) uint8_t bytes[256];
	size_t len;
};

static void put_control(struct control *c, int level, int type, const void *data, size_t len)
{
	struct cmsghdr h = { .cmsg_len = CMSG_LEN(len), .cmsg_level = level, .cmsg_type = type };

	memcpy(c->bytes + c->len, &h, sizeof(h));
	memcpy(c->bytes + c->len + CMSG_LEN(0), data, len);
	c->len += CMSG_SPACE(len);
}

/* From this address to the port on the loopback; with seg_len as a train of that. */
static void send_from(const char *source, const void *msg, size_t len, uint16_t seg_len)
{
	bool is_v6 = strchr(source, ':');
	struct sockaddr_in v4 = { .sin_family = AF_INET,
		.sin_port = htons(u.port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
		.sin6_port = htons(u.port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct iovec iov = { (void *)msg, len };
	struct control c = { .len = 0 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = c.bytes };

	if (is_v6) {
		struct in6_pktinfo info = { .ipi6_ifindex = 0 };

		assert_int_equal(inet_pton(AF_INET6, source, &info.ipi6_addr), 1);
		put_control(&c, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
		h.msg_name = &v6;
		h.msg_namelen = sizeof(v6);
	} else {
		struct in_pktinfo info = { .ipi_ifindex = 0 };

		assert_int_equal(inet_pton(AF_INET, source, &info.ipi_spec_dst), 1);
		put_control(&c, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
		h.msg_name = &v4;
		h.msg_namelen = sizeof(v4);
	}
	if (seg_len)
		put_control(&c, IPPROTO_UDP, UDP_SEGMENT, &seg_len, sizeof(seg_len));
	h.msg_controllen = c.len;
	assert_int_equal(sendmsg(sender[is_v6], &h, 0), len);
}

/* Where the one datagram that is under way arrives: the worker, or HANDSHAKE. */
enum { HANDSHAKE = 1000 };
static unsigned arrival_len(const struct udp *at, size_t *len)
{
	struct pollfd p[UDP_SOCKETS_MAX];
	static uint8_t buf[65536];
	int fds[UDP_SOCKETS_MAX];
	size_t n = udp_sockets(at, fds), found = n;

	for (size_t i = 0; i < n; i++)
		p[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
	assert_int_equal(poll(p, n, WAIT_MS), 1);
	for (size_t i = 0; i < n; i++) {
		ssize_t got = p[i].revents ? recv(fds[i], buf, sizeof(buf), MSG_DONTWAIT) : -1;

		if (got >= 0) {
			*len = (size_t)got;
			found = i;
		}
	}
	assert_true(found < n);
	for (unsigned f = 0; f < 2; f++) {
		if (fds[found] == at->handshake[f])
			return HANDSHAKE;
		for (unsigned k = 0; k < at->n; k++)
			if (fds[found] == at->data[f][k])
				return k;
	}
	fail();
	return 0;
}

static unsigned arrival(void)
{
	size_t len;

	return arrival_len(&u, &len);
}

/* Where a message of this type for this index arrives. */
static unsigned deliver(const char *source, uint32_t type, uint32_t index)
{
	uint8_t msg[MSG_LEN] = { 0 };

	put_le32(msg, type);
	put_le32(msg + 4, index);
	send_from(source, msg, sizeof(msg), 0);
	return arrival();
}

static const char *const home[2] = { "127.0.0.1", "::1" };

static uint32_t index_of(unsigned epoch, unsigned worker, unsigned n, uint32_t which)
{
	struct sipkey key = { { get_le64(keys[epoch]), get_le64(keys[epoch] + 8) } };
	unsigned bits = 0;
	uint32_t share, slot;

	while (1u << bits < n)
		bits++;
	share = 1u << (WGINDEX_SLOT_BITS - bits);
	/* The first and the last of the share, and what is between. */
	slot = worker * share + (which == 0 ? 0 : which == 1 ? share - 1 : which * 7919 % share);
	return epoch << WGINDEX_BITS |
		wgindex_mask(&key, wgindex_pack(which % 128, slot, which % 16));
}

/* ---- Data by index. */

static void index_finds_its_worker(void **state)
{
	static const unsigned counts[] = { 1, 2, 3, 4, 5, 33, 64 };

	need_steer();
	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		unsigned n = counts[i];

		begin(STEER_INDEX, n);
		for (unsigned k = 0; k < 2 * n * 4; k++) {
			unsigned worker = k / 8, epoch = k & 1;
			uint32_t index = index_of(epoch, worker, n, k / 2 % 4 + 128 * (k & 2));

			for (unsigned f = 0; f < 2; f++)
				if (has_family(f))
					assert_int_equal(
						deliver(home[f], WGMSG_DATA, index), worker);
		}
		udp_close(&u);
		steer_destroy(steer);
		steer = NULL;
	}
}

static void client_roams(void **state)
{
	static const char *const places[2][4] = {
		{ "127.0.0.1", "127.1.0.1", "127.77.7.7", "127.200.1.200" },
		{ "::1", "fd00::1", "fd00:1::7", "2001:db8::1" },
	};

	need_steer();
	begin(STEER_INDEX, 4);
	for (unsigned i = 0; i < 200; i++) {
		unsigned f = i & 1;

		if (!has_family(f))
			continue;
		open_senders();
		assert_int_equal(
			deliver(places[f][i / 2 % 4], WGMSG_DATA, index_of(0, 2, 4, 9)), 2);
	}
}

/* The old key's indices go on until their epoch gets a new key. */
static void epoch_gets_new_key(void **state)
{
	unsigned n_right = 0;

	need_steer();
	begin(STEER_INDEX, 4);
	steer_set_epoch_key(steer, 1, keys[0]);
	for (unsigned i = 0; i < 100; i++) {
		assert_int_equal(deliver(home[0], WGMSG_DATA, index_of(0, i % 4, 4, i)), i % 4);
		n_right += deliver(home[0], WGMSG_DATA, index_of(1, i % 4, 4, i)) == i % 4;
	}
	assert_in_range(n_right, 0, 60);
	steer_set_epoch_key(steer, 1, keys[1]);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(deliver(home[0], WGMSG_DATA, index_of(1, i % 4, 4, i)), i % 4);
}

/* A train goes as one, by its first message. */
static void train_stays_whole(void **state)
{
	static uint8_t train[40 * MSG_LEN];
	size_t len;

	need_steer();
	begin(STEER_INDEX, 4);
	for (unsigned i = 0; i < 40; i++) {
		put_le32(train + i * MSG_LEN, WGMSG_DATA);
		put_le32(train + i * MSG_LEN + 4, index_of(0, i ? i % 4 : 3, 4, i));
	}
	for (unsigned f = 0; f < 2; f++) {
		if (!has_family(f))
			continue;
		send_from(home[f], train, sizeof(train), MSG_LEN);
		assert_int_equal(arrival_len(&u, &len), 3);
		assert_int_equal(len, sizeof(train));
	}
}

/* ---- What is no data. */

static void handshakes_have_a_socket(void **state)
{
	need_steer();
	for (enum steer_mode m = 0; m < STEER_MODE_N; m++) {
		begin(m, 3);
		for (uint32_t type = 1; type <= 3; type++)
			for (unsigned f = 0; f < 2; f++)
				if (has_family(f))
					assert_int_equal(deliver(home[f], type, 7), HANDSHAKE);
		/* Without it they go to a worker, always the same. */
		for (unsigned f = 0; f < 2; f++) {
			unsigned first;

			if (!has_family(f))
				continue;
			close(u.handshake[f]);
			u.handshake[f] = -1;
			first = deliver(home[f], 1, 7);
			assert_int_equal(deliver(home[f], 1, 8), first);
			assert_int_equal(deliver(home[f], 2, 9), first);
		}
		udp_close(&u);
		steer_destroy(steer);
		steer = NULL;
	}
}

/* Everything arrives somewhere, whatever it is. */
static void garbage_arrives(void **state)
{
	static uint8_t big[65507];
	unsigned seen = 0, seed = 1;
	size_t len;

	need_steer();
	for (enum steer_mode m = 0; m < STEER_MODE_N; m++) {
		begin(m, 4);
		for (unsigned f = 0; f < 2; f++) {
			if (!has_family(f))
				continue;
			memset(big, WGMSG_DATA, sizeof(big));
			for (size_t n = 0; n < 20; n++) {
				send_from(home[f], big, n, 0);
				assert_in_range(arrival_len(&u, &len), 0, 3);
				assert_int_equal(len, n);
				/* handshake messages and nothing behind their type */
				big[0] = WGMSG_COOKIE;
				send_from(home[f], big, n, 0);
				arrival();
				big[0] = WGMSG_DATA;
			}
			send_from(home[f], big, f ? 65000 : sizeof(big), 0);
			assert_in_range(arrival(), 0, 3);
		}
		for (unsigned i = 0; i < 300; i++) {
			for (unsigned k = 0; k < 16; k++)
				big[k] = (uint8_t)(rand_r(&seed) >> 7);
			big[0] |= 4;
			send_from(home[0], big, 4 + i % 60, 0);
			assert_in_range(arrival(), 0, 3);
			/* and indices that nobody gave away are spread */
			seen |= 1u << deliver(home[0], WGMSG_DATA, (uint32_t)rand_r(&seed) * 3);
		}
		if (m == STEER_INDEX)
			assert_int_equal(seen, 15);
		udp_close(&u);
		steer_destroy(steer);
		steer = NULL;
	}
}

/* ---- The other modes. */

static void rr_takes_turns(void **state)
{
	static uint8_t train[10 * MSG_LEN] = { WGMSG_DATA };
	unsigned last;
	size_t len;

	need_steer();
	begin(STEER_RR, 3);
	last = deliver(home[0], WGMSG_DATA, 1);
	for (unsigned i = 0; i < 30; i++) {
		unsigned f = i & has_family(1);

		if (i % 3 == 2) {
			/* a train is one turn */
			send_from(home[f], train, sizeof(train), MSG_LEN);
			assert_int_equal(arrival_len(&u, &len), (last + 1) % 3);
			assert_int_equal(len, sizeof(train));
		} else {
			assert_int_equal(deliver(home[f], WGMSG_DATA, i), (last + 1) % 3);
		}
		last = (last + 1) % 3;
	}
}

/* A sender keeps its worker, and many of them are spread. */
static void check_flows(unsigned n)
{
	unsigned seen = 0;

	for (unsigned i = 0; i < 100; i++) {
		unsigned f = i & 1, first;

		open_senders();
		if (!has_family(f))
			continue;
		first = deliver(home[f], WGMSG_DATA, index_of(0, 0, n, i));
		seen |= 1u << first;
		for (unsigned k = 0; k < 4; k++)
			assert_int_equal(
				deliver(home[f], WGMSG_DATA, index_of(0, k % n, n, i)), first);
	}
	/* all, but with a probability of less than 10^-11 */
	assert_int_equal(seen, (1u << n) - 1);
}

static void flow_keeps_its_worker(void **state)
{
	need_steer();
	begin(STEER_FLOW, 4);
	check_flows(4);
}

/* ---- Classic BPF, for whom there is no privilege. */

static void classic(void **state)
{
	struct udp_config cfg = config_of(4, (struct steer_fds){ -1, -1 });

	assert_int_equal(udp_open(&u, &cfg), 0);
	assert_int_equal(u.n, 4);
	assert_false(u.is_steered);
	check_flows(4);
	for (uint32_t type = 1; type <= 3; type++)
		for (unsigned f = 0; f < 2; f++)
			if (has_family(f))
				assert_int_equal(deliver(home[f], type, 7), HANDSHAKE);
	for (uint32_t type = WGMSG_DATA; type < 256; type++)
		assert_in_range(deliver(home[0], type, 7), 0, 3);
	for (size_t n = 0; n < 10; n++) {
		uint8_t msg[16] = { WGMSG_DATA };

		send_from(home[0], msg, n, 0);
		assert_in_range(arrival(), 0, 3);
	}
}

/* Neighbours' addresses with one port, one address with neighbouring ports. */
static void classic_spreads(void **state)
{
	struct udp_config cfg = config_of(4, (struct steer_fds){ -1, -1 });
	unsigned n_at[2][4] = { { 0 } };

	assert_int_equal(udp_open(&u, &cfg), 0);
	for (unsigned i = 0; i < 800; i++) {
		char source[64];
		unsigned f = i & 1;

		if (!has_family(f))
			continue;
		snprintf(source, sizeof(source), f ? "fd00::%x" : "127.0.3.%u", i / 2 % 250 + 1);
		n_at[f][deliver(source, WGMSG_DATA, 1)]++;
	}
	for (unsigned f = 0; f < 2; f++)
		for (unsigned k = 0; has_family(f) && k < 4; k++)
			assert_in_range(n_at[f][k], 50, 150);
	/* IPv4 options move the UDP header */
	static const uint8_t nops[8] = { 1, 1, 1, 1, 1, 1, 1, 0 };
	unsigned seen = 0;

	for (unsigned i = 0; i < 60; i++) {
		unsigned first;

		open_senders();
		assert_int_equal(
			setsockopt(sender[0], IPPROTO_IP, IP_OPTIONS, nops, sizeof(nops)), 0);
		first = deliver(home[0], WGMSG_DATA, 1);
		assert_int_equal(deliver(home[0], WGMSG_DATA, 2), first);
		seen |= 1u << first;
	}
	assert_int_equal(seen, 15);
}

/* ---- Sockets come and go. */

static void closed_socket_falls_back(void **state)
{
	need_steer();
	for (enum steer_mode m = 0; m < STEER_MODE_N; m++) {
		begin(m, 4);
		for (unsigned f = 0; f < 2; f++) {
			if (!has_family(f))
				continue;
			close(u.data[f][2]);
			u.data[f][2] = -1;
			for (unsigned i = 0; i < 100; i++)
				assert_int_not_equal(
					deliver(home[f], WGMSG_DATA, index_of(0, 2, 4, i)), 2);
			if (m == STEER_INDEX)
				assert_int_equal(
					deliver(home[f], WGMSG_DATA, index_of(0, 3, 4, 5)), 3);
		}
		udp_close(&u);
		steer_destroy(steer);
		steer = NULL;
	}
}

/* Another port, while the old sockets are still there; then back to it. */
static void opened_again(void **state)
{
	struct udp_config cfg;
	struct udp old;

	need_steer();
	begin(STEER_INDEX, 4);
	for (unsigned i = 0; i < 3; i++) {
		old = u;
		cfg = config_of(4, steer_get_fds(steer));
		assert_int_equal(udp_open(&u, &cfg), 0);
		assert_true(u.is_steered);
		for (unsigned k = 0; k < 40; k++)
			assert_int_equal(
				deliver(home[0], WGMSG_DATA, index_of(k & 1, k % 4, 4, k)), k % 4);
		/* What is sent to the old ones still arrives there, at any of them. */
		for (unsigned k = 0; k < 40; k++) {
			uint16_t port = u.port;
			uint8_t msg[MSG_LEN] = { WGMSG_DATA };
			size_t len;

			u.port = old.port;
			put_le32(msg + 4, index_of(0, k % 4, 4, k));
			send_from(home[0], msg, sizeof(msg), 0);
			u.port = port;
			arrival_len(&old, &len);
			assert_int_equal(len, MSG_LEN);
		}
		udp_close(&old);
		for (unsigned k = 0; k < 40; k++)
			assert_int_equal(
				deliver(home[0], WGMSG_DATA, index_of(k & 1, k % 4, 4, k)), k % 4);
	}
	cfg.port = u.port;
	assert_int_equal(udp_open(&old, &cfg), -EADDRINUSE);
	udp_close(&u);
	assert_int_equal(udp_open(&u, &cfg), 0);
	assert_true(u.is_steered);
	assert_int_equal(deliver(home[0], WGMSG_DATA, index_of(0, 2, 4, 5)), 2);
}

static void counted(void **state)
{
	struct steer_count n[WG_WORKERS_MAX];

	need_steer();
	begin(STEER_INDEX, 3);
	for (unsigned i = 0; i < 60; i++)
		deliver(home[i & has_family(1)], WGMSG_DATA, index_of(0, i % 6 / 3, 3, i));
	deliver(home[0], WGMSG_INITIATION, 1);
	steer_counts(steer, n);
	assert_int_equal(n[0].datagrams, 30);
	assert_int_equal(n[1].datagrams, 30);
	for (unsigned i = 2; i < WG_WORKERS_MAX; i++)
		assert_int_equal(n[i].datagrams, 0);
	for (unsigned i = 0; i < WG_WORKERS_MAX; i++)
		assert_int_equal(n[i].frames, 0);
}

/* ---- Privileges, and descriptors that are something else. */

/* In a child a failed assertion must end the child, not go on to the next test. */
static pid_t fork_child(void)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		setenv("CMOCKA_TEST_ABORT", "1", 1);
	return pid;
}

static void wait_for(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* The helper has no CAP_BPF, and opens sockets all the same. */
static void open_as_the_helper(void **state)
{
	static const int caps[] = { CAP_NET_ADMIN, CAP_NET_BIND_SERVICE, CAP_NET_RAW,
		CAP_SYS_ADMIN };
	pid_t pid;

	need_steer();
	begin(STEER_INDEX, 4);
	pid = fork_child();
	if (!pid) {
		struct udp_config cfg = config_of(4, steer_get_fds(steer));
		struct udp mine;

		if (sandbox_keep(caps, ARRAY_LEN(caps)) || udp_open(&mine, &cfg))
			_exit(1);
		if (!mine.is_steered || mine.n != 4)
			_exit(2);
		udp_close(&u);
		u = mine;
		for (unsigned i = 0; i < 20; i++)
			if (deliver(home[0], WGMSG_DATA, index_of(0, i % 4, 4, i)) != i % 4)
				_exit(3);
		_exit(0);
	}
	wait_for(pid);
}

static void without_privilege(void **state)
{
	pid_t pid;

	need_steer();
	begin(STEER_INDEX, 4);
	pid = fork_child();
	if (!pid) {
		struct udp_config cfg = config_of(4, steer_get_fds(steer));
		struct steer *second = steer;

		if (sandbox_drop_all())
			_exit(1);
		if (try_create(&second, STEER_INDEX, 4) != -EPERM || second)
			_exit(2);
		/* By the map where the kernel lets everybody who has it, else classic. */
		udp_close(&u);
		if (udp_open(&u, &cfg) || u.n != 4)
			_exit(3);
		_exit(deliver(home[0], WGMSG_INITIATION, 1) == HANDSHAKE ? 0 : 4);
	}
	wait_for(pid);
}

/* Who may load socket programs and nothing else: no CAP_PERFMON, for whom the verifier
 * is more lenient. */
static void load_with_little(void **state)
{
	static const int caps[] = { CAP_NET_ADMIN, CAP_BPF };
	pid_t pid;

	need_steer();
	pid = fork_child();
	if (!pid) {
		if (sandbox_keep(caps, ARRAY_LEN(caps)))
			_exit(1);
		_exit(try_create(&steer, STEER_INDEX, 4) ? 2 : 0);
	}
	wait_for(pid);
}

static int make_map(uint32_t type, uint32_t key_len, uint32_t value_len)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_type = type;
	attr.key_size = key_len;
	attr.value_size = value_len;
	attr.max_entries = 256;
	return (int)syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof(attr));
}

static void other_descriptors(void **state)
{
	int null = open("/dev/null", O_RDWR), maps[3];

	need_steer();
	assert_int_equal(try_create(&steer, STEER_INDEX, 4), 0);
	/* Keys and values that are longer than ours: nothing of this process gets into them. */
	maps[0] = make_map(BPF_MAP_TYPE_ARRAY, 4, 64);
	maps[1] = make_map(BPF_MAP_TYPE_HASH, 64, 64);
	maps[2] = null;
	for (size_t i = 0; i < ARRAY_LEN(maps); i++) {
		struct steer_fds fds = steer_get_fds(steer);
		struct udp_config cfg = config_of(4, (struct steer_fds){ fds.prog, maps[i] });
		uint8_t key[64] = { 0 }, value[64] = { 0 }, zero[64] = { 0 };
		union bpf_attr attr;

		assert_true(maps[i] >= 0);
		assert_int_equal(udp_open(&u, &cfg), 0);
		assert_false(u.is_steered);
		assert_int_equal(u.n, 4);
		check_flows(4);
		udp_close(&u);
		memset(&attr, 0, sizeof(attr));
		attr.map_fd = (uint32_t)maps[i];
		attr.key = (uintptr_t)key;
		attr.value = (uintptr_t)value; /* and next_key */
		if (i == 0)
			assert_int_equal(
				syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, &attr, sizeof(attr)), 0);
		if (i == 1)
			assert_int_equal(
				syscall(SYS_bpf, BPF_MAP_GET_NEXT_KEY, &attr, sizeof(attr)), -1);
		assert_memory_equal(value, zero, sizeof(zero));
		cfg.steer = (struct steer_fds){ null, fds.sockets };
		assert_int_equal(udp_open(&u, &cfg), 0);
		assert_false(u.is_steered);
		check_flows(4);
		udp_close(&u);
		close(maps[i]);
	}
}

/* Fewer descriptors than a group needs: one socket for all. */
static void too_few_descriptors(void **state)
{
	pid_t pid = fork_child();

	if (!pid) {
		struct udp_config cfg = config_of(64, (struct steer_fds){ -1, -1 });

		if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, 64 }) || udp_open(&u, &cfg))
			_exit(4);
		if (u.n != 1 || u.is_steered || u.data[0][0] < 0 || u.data[0][1] >= 0)
			_exit(1);
		if (deliver(home[0], WGMSG_INITIATION, 1) != HANDSHAKE)
			_exit(2);
		_exit(deliver(home[0], WGMSG_DATA, 1) == 0 ? 0 : 3);
	}
	wait_for(pid);
}

static void nothing_to_do(void **state)
{
	struct steer_count n[WG_WORKERS_MAX];
	struct steer *s;

	assert_int_equal(try_create(&s, STEER_INDEX, 0), -EINVAL);
	assert_null(s);
	assert_int_equal(try_create(&s, STEER_INDEX, WG_WORKERS_MAX + 1), -EINVAL);
	assert_int_equal(try_create(&s, STEER_MODE_N, 1), -EINVAL);
	steer_destroy(NULL);
	steer_set_epoch_key(NULL, 0, keys[0]);
	assert_int_equal(steer_get_fds(NULL).prog, -1);
	assert_int_equal(steer_get_fds(NULL).sockets, -1);
	assert_int_equal(steer_attach_tun(NULL, -1, 4), 0);
	memset(n, 1, sizeof(n));
	steer_counts(NULL, n);
	assert_int_equal(n[63].datagrams + n[63].frames, 0);
	assert_string_equal(steer_mode_name(STEER_INDEX), "index");
	assert_string_equal(steer_mode_name(STEER_RR), "rr");
	assert_string_equal(steer_mode_name(STEER_FLOW), "flow");
}

/* ---- The TUN. */

static struct tun tun;
static int queue[N_QUEUES] = { -1, -1, -1, -1 };
static int packets = -1; /* a packet socket: any frame into the TUN */
static int tun_ifindex;

static void set_up(const char *name)
{
	struct ifreq ifr = { .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	memcpy(ifr.ifr_name, name, strlen(name) + 1);
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
	assert_int_equal(ioctl(fd, SIOCGIFINDEX, &ifr), 0);
	tun_ifindex = ifr.ifr_ifindex;
	close(fd);
}

static int setup_tun(void **state)
{
	setup(state);
	packets = socket(AF_PACKET, SOCK_DGRAM, 0);
	if (packets < 0 ||
		tun_open(&tun, "ps%d", OFFLOAD_VNET | OFFLOAD_CSUM | OFFLOAD_TSO | OFFLOAD_USO)) {
		tun.fd = -1;
		return 0;
	}
	queue[0] = tun.fd;
	for (unsigned i = 1; i < N_QUEUES; i++)
		assert_int_equal(tun_add_queue(&tun, &queue[i]), 0);
	set_up(tun.name);
	return 0;
}

static int teardown_tun(void **state)
{
	for (unsigned i = 1; i < N_QUEUES; i++)
		if (queue[i] >= 0)
			close(queue[i]);
	tun_close(&tun);
	if (packets >= 0)
		close(packets);
	return teardown(state);
}

static void need_tun(void)
{
	need_steer();
	if (tun.fd >= 0)
		return;
	print_message("skipped: needs root for a namespace and /dev/net/tun\n");
	skip();
}

enum { HEAD = sizeof(struct virtio_net_hdr), TAIL = 4 };

/* Put a frame into the TUN; from which queue does it come out? It is known by its end:
 * the kernel sends some of its own. */
static unsigned through(const uint8_t *pkt, size_t len)
{
	static uint32_t mark = 0xabcd0000;
	uint8_t frame[2048], got[65536];
	struct sockaddr_ll to = { .sll_family = AF_PACKET,
		.sll_protocol = htons(pkt[0] >> 4 == 6 ? ETH_P_IPV6 : ETH_P_IP),
		.sll_ifindex = tun_ifindex };
	struct pollfd p[N_QUEUES];

	memcpy(frame, pkt, len);
	put_le32(frame + len, ++mark);
	assert_int_equal(sendto(packets, frame, len + TAIL, 0, (struct sockaddr *)&to, sizeof(to)),
		len + TAIL);
	for (;;) {
		for (unsigned i = 0; i < N_QUEUES; i++)
			p[i] = (struct pollfd){ .fd = queue[i], .events = POLLIN };
		assert_true(poll(p, N_QUEUES, WAIT_MS) > 0);
		for (unsigned i = 0; i < N_QUEUES; i++) {
			ssize_t n = p[i].revents ? read(queue[i], got, sizeof(got)) : 0;

			if (n == (ssize_t)(HEAD + len + TAIL) && get_le32(got + HEAD + len) == mark)
				return i;
		}
	}
}

struct shape {
	uint8_t family; /* 4, 6 */
	uint8_t protocol, fragment_next;
	uint16_t fragment; /* IPv4: flags and offset; IPv6: a fragment header where not 0 */
	uint8_t options; /* IPv4: words */
	uint16_t src, dst; /* ends of the addresses */
	uint16_t sport, dport;
	size_t payload;
};

static unsigned flow_queue(const struct shape *s)
{
	uint8_t pkt[512] = { 0 };
	size_t at;

	if (s->family == 4) {
		pkt[0] = (uint8_t)(0x45 + s->options);
		at = 20 + 4u * s->options;
		put_be16(pkt + 2, (uint16_t)(at + s->payload + TAIL));
		put_be16(pkt + 6, s->fragment);
		pkt[8] = 64;
		pkt[9] = s->protocol;
		put_be32(pkt + 12, 10u << 24 | s->src);
		put_be32(pkt + 16, 10u << 24 | 1u << 16 | s->dst);
	} else {
		pkt[0] = 0x60;
		at = 40 + (s->fragment ? 8 : 0);
		put_be16(pkt + 4, (uint16_t)(at - 40 + s->payload + TAIL));
		pkt[6] = s->fragment ? 44 : s->protocol;
		pkt[7] = 64;
		pkt[8] = pkt[24] = 0xfd;
		put_be16(pkt + 22, s->src);
		put_be16(pkt + 38, s->dst);
		if (s->fragment) {
			pkt[40] = s->protocol;
			put_be16(pkt + 42, s->fragment);
		}
	}
	put_be16(pkt + at, s->sport);
	put_be16(pkt + at + 2, s->dport);
	return through(pkt, at + s->payload);
}

static void flows_keep_their_queue(void **state)
{
	need_tun();
	assert_int_equal(try_create(&steer, STEER_INDEX, N_QUEUES), 0);
	assert_int_equal(steer_attach_tun(steer, queue[1], N_QUEUES), 0);
	for (unsigned family = 4; family <= 6; family += 2) {
		unsigned n_at[3][N_QUEUES] = { { 0 } };

		for (unsigned i = 0; i < 400; i++) {
			struct shape s = { .family = (uint8_t)family,
				.protocol = i & 1 ? IPPROTO_UDP : IPPROTO_TCP,
				.src = 1,
				.dst = 2,
				.sport = (uint16_t)(1000 + i),
				.dport = 53,
				.payload = 40 };
			unsigned first = flow_queue(&s);

			n_at[0][first]++;
			s.payload = 300; /* the same flow */
			if (family == 4)
				s.options = i % 3;
			assert_int_equal(flow_queue(&s), first);
			s.src = (uint16_t)i; /* another, in what is no port */
			s.sport = 1000;
			s.options = 0;
			n_at[1][flow_queue(&s)]++;
			s.dst = (uint16_t)(i * 7);
			s.src = 1;
			s.protocol = IPPROTO_ICMP;
			first = flow_queue(&s);
			n_at[2][first]++;
			s.sport = (uint16_t)i; /* type and code, no port */
			assert_int_equal(flow_queue(&s), first);
		}
		for (unsigned k = 0; k < 3 * N_QUEUES; k++)
			assert_in_range(n_at[k / N_QUEUES][k % N_QUEUES], 60, 140);
	}
}

/* All fragments of two hosts keep together, also the first, which has ports. */
static void fragments_stay_together(void **state)
{
	need_tun();
	assert_int_equal(try_create(&steer, STEER_INDEX, N_QUEUES), 0);
	assert_int_equal(steer_attach_tun(steer, tun.fd, N_QUEUES), 0);
	for (unsigned i = 0; i < 100; i++) {
		struct shape s = { .family = i & 1 ? 6 : 4,
			.protocol = IPPROTO_UDP,
			.src = (uint16_t)i,
			.dst = 2,
			.sport = 1000,
			.dport = 53,
			.fragment = i & 1 ? 1 : 0x2000, /* the first, more to come */
			.payload = 40 };
		unsigned first = flow_queue(&s);

		s.sport = (uint16_t)(2000 + i); /* payload, where there is no header */
		s.fragment = i & 1 ? 41 << 3 | 1 : 0x2000 | 41;
		assert_int_equal(flow_queue(&s), first);
		s.fragment = i & 1 ? 99 << 3 : 99;
		assert_int_equal(flow_queue(&s), first);
	}
}

static void short_frames(void **state)
{
	uint8_t pkt[64] = { 0 };

	need_tun();
	assert_int_equal(try_create(&steer, STEER_INDEX, N_QUEUES), 0);
	assert_int_equal(steer_attach_tun(steer, tun.fd, N_QUEUES), 0);
	for (unsigned version = 0; version < 16; version++) {
		pkt[0] = (uint8_t)(version << 4 | 15);
		pkt[6] = pkt[9] = IPPROTO_UDP;
		for (size_t n = 1; n < sizeof(pkt); n++)
			assert_in_range(through(pkt, n), 0, N_QUEUES - 1);
	}
}

static void frames_are_counted(void **state)
{
	struct steer_count n[WG_WORKERS_MAX], before[WG_WORKERS_MAX];
	unsigned n_at[N_QUEUES] = { 0 };

	need_tun();
	assert_int_equal(try_create(&steer, STEER_INDEX, N_QUEUES), 0);
	assert_int_equal(steer_attach_tun(steer, tun.fd, 0), -EINVAL);
	assert_int_equal(steer_attach_tun(steer, tun.fd, WG_WORKERS_MAX + 1), -EINVAL);
	assert_true(steer_attach_tun(steer, packets, N_QUEUES) < 0);
	assert_int_equal(steer_attach_tun(steer, tun.fd, N_QUEUES), 0);
	steer_counts(steer, before);
	for (unsigned i = 0; i < 100; i++) {
		struct shape s = {
			.family = 4, .protocol = 6, .sport = (uint16_t)i, .payload = 20
		};

		n_at[flow_queue(&s)]++;
	}
	steer_counts(steer, n);
	/* at least: the kernel may have sent something of its own */
	for (unsigned i = 0; i < N_QUEUES; i++)
		assert_true(n[i].frames - before[i].frames >= n_at[i] &&
			n[i].frames - before[i].frames < n_at[i] + 20);
	for (unsigned i = N_QUEUES; i < WG_WORKERS_MAX; i++)
		assert_int_equal(n[i].frames, 0);
	/* Fewer queues in use than there are. */
	assert_int_equal(steer_attach_tun(steer, tun.fd, 2), 0);
	for (unsigned i = 0; i < 50; i++) {
		struct shape s = {
			.family = 4, .protocol = 6, .sport = (uint16_t)i, .payload = 20
		};

		assert_in_range(flow_queue(&s), 0, 1);
	}
}

static int setup_all(void **state)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd;

	if (unshare(CLONE_NEWNET))
		return 0; /* the loopback that there is will do */
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (ioctl(fd, SIOCSIFFLAGS, &ifr))
		return -1;
	close(fd);
	return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
#define TUN_TEST(f) cmocka_unit_test_setup_teardown(f, setup_tun, teardown_tun)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(index_finds_its_worker),
		TEST(client_roams),
		TEST(epoch_gets_new_key),
		TEST(train_stays_whole),
		TEST(handshakes_have_a_socket),
		TEST(garbage_arrives),
		TEST(rr_takes_turns),
		TEST(flow_keeps_its_worker),
		TEST(classic),
		TEST(classic_spreads),
		TEST(closed_socket_falls_back),
		TEST(opened_again),
		TEST(counted),
		TEST(open_as_the_helper),
		TEST(without_privilege),
		TEST(load_with_little),
		TEST(other_descriptors),
		TEST(too_few_descriptors),
		TEST(nothing_to_do),
		TUN_TEST(flows_keep_their_queue),
		TUN_TEST(fragments_stay_together),
		TUN_TEST(short_frames),
		TUN_TEST(frames_are_counted),
	};

	return cmocka_run_group_tests(tests, setup_all, NULL);
}
