/* A real TUN in a network namespace of our own, with the interface watch on it.
 * Frames of the kernel's own making go through split, and merged ones come out of
 * sockets. Needs root. */
#include "link/link.h"
#include "base/bytes.h"
#include "wire/csum.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
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
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { MTU = 1420, TUN_ALL = OFFLOAD_VNET | OFFLOAD_CSUM | OFFLOAD_TSO | OFFLOAD_USO };

static bool has_namespace;
static int ctl = -1; /* socket for interface ioctls */

static void need_root(void)
{
	if (has_namespace)
		return;
	print_message("skipped: needs root for a namespace and /dev/net/tun\n");
	skip();
}

static void set_ifr(const char *name, unsigned long op, struct ifreq *ifr)
{
	memset(ifr->ifr_name, 0, IFNAMSIZ);
	memcpy(ifr->ifr_name, name, strlen(name));
	assert_int_equal(ioctl(ctl, op, ifr), 0);
}

static void set_up(const char *name, bool is_up)
{
	struct ifreq ifr = { .ifr_flags = is_up ? IFF_UP : 0 };

	set_ifr(name, SIOCSIFFLAGS, &ifr);
}

static void set_mtu(const char *name, int mtu)
{
	struct ifreq ifr = { .ifr_mtu = mtu };

	set_ifr(name, SIOCSIFMTU, &ifr);
}

/* 10.9.0.1/24, so that 10.9.0.2 is behind the TUN. */
static void set_address(const char *name)
{
	struct ifreq ifr = { 0 };
	struct sockaddr_in *a = (struct sockaddr_in *)&ifr.ifr_addr;

	a->sin_family = AF_INET;
	a->sin_addr.s_addr = inet_addr("10.9.0.1");
	set_ifr(name, SIOCSIFADDR, &ifr);
	a->sin_addr.s_addr = inet_addr("255.255.255.0");
	set_ifr(name, SIOCSIFNETMASK, &ifr);
}

static int setup_all(void **state)
{
	struct tun t;

	if (unshare(CLONE_NEWNET))
		return 0;
	ctl = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (tun_open(&t, "probe%d", 0))
		return 0;
	tun_close(&t);
	has_namespace = true;
	set_up("lo", true);
	return 0;
}

static void open_and_probe(void **state)
{
	struct ifreq ifr;
	struct tun t, t2;
	unsigned set;

	need_root();
	assert_int_equal(tun_open(&t, "pk%d", TUN_ALL), 0);
	assert_string_equal(t.name, "pk0");
	assert_true(t.is_multi_queue);
	assert_true(t.offloads & OFFLOAD_VNET);
	assert_true(t.offloads & OFFLOAD_TSO);
	assert_true(fcntl(t.fd, F_GETFL) & O_NONBLOCK);
	set_ifr("pk0", SIOCGIFTXQLEN, &ifr);
	assert_true(ifr.ifr_qlen > 500);
	set_ifr("pk0", SIOCGIFMTU, &ifr);
	assert_int_equal(ifr.ifr_mtu, 1420);
	set = t.offloads;
	/* exclusive, although multi-queue */
	assert_int_equal(tun_open(&t2, "pk0", TUN_ALL), -EBUSY);
	assert_int_equal(t2.fd, -1);
	tun_close(&t);
	assert_int_equal(tun_open(&t, "pk0", TUN_ALL & ~OFFLOAD_USO), 0);
	assert_int_equal(t.offloads, set & ~(unsigned)OFFLOAD_USO);
	tun_close(&t);
	assert_int_equal(tun_open(&t, "pk0", OFFLOAD_VNET | OFFLOAD_CSUM), 0);
	assert_int_equal(t.offloads, OFFLOAD_VNET | OFFLOAD_CSUM);
	tun_close(&t);
	assert_int_equal(tun_open(&t, "pk0", TUN_ALL & ~OFFLOAD_VNET), 0);
	assert_int_equal(t.offloads, 0);
	tun_close(&t);
	assert_int_equal(tun_open(&t, "lo", TUN_ALL), -EINVAL);
	assert_int_equal(tun_open(&t, "a-name-that-is-too-long", TUN_ALL), -ENAMETOOLONG);
}

/* Persistent interfaces that someone else made, of both kinds. */
static void persistent(void **state)
{
	need_root();
	for (int is_multi = 0; is_multi < 2; is_multi++) {
		struct ifreq ifr = { .ifr_name = "pers0", .ifr_flags = IFF_TUN | IFF_NO_PI };
		int fd = open("/dev/net/tun", O_RDWR);
		struct tun t, t2;

		if (is_multi)
			ifr.ifr_flags |= IFF_MULTI_QUEUE;
		assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
		assert_int_equal(ioctl(fd, TUNSETPERSIST, 1), 0);
		assert_int_equal(tun_open(&t, "pers0", TUN_ALL), -EBUSY);
		close(fd);
		assert_int_equal(tun_open(&t, "pers0", TUN_ALL), 0);
		assert_int_equal(t.is_multi_queue, is_multi);
		assert_true(t.offloads & OFFLOAD_TSO);
		set_ifr("pers0", SIOCGIFMTU, &ifr);
		assert_int_equal(ifr.ifr_mtu, 1500); /* is not ours to set */
		assert_int_equal(tun_open(&t2, "pers0", TUN_ALL), -EBUSY);
		assert_int_equal(ioctl(t.fd, TUNSETPERSIST, 0), 0);
		tun_close(&t);
	}
}

static void adopt(void **state)
{
	static const struct {
		short flags;
		int ret;
		unsigned has, lacks;
	} cases[] = {
		{ IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, 0, OFFLOAD_VNET | OFFLOAD_TSO, 0 },
		{ IFF_TUN | IFF_NO_PI, 0, 0, TUN_ALL },
		{ IFF_TUN, -EINVAL, 0, 0 },
		{ IFF_TAP | IFF_NO_PI, -EINVAL, 0, 0 },
	};

	need_root();
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct ifreq ifr = { .ifr_name = "ad0", .ifr_flags = cases[i].flags };
		int fd = open("/dev/net/tun", O_RDWR);
		struct tun t;

		assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
		assert_int_equal(tun_adopt(&t, fd, TUN_ALL), cases[i].ret);
		if (cases[i].ret) {
			assert_int_equal(t.fd, -1);
			assert_int_equal(close(fd), 0);
			continue;
		}
		assert_string_equal(t.name, "ad0");
		assert_int_equal(t.offloads & cases[i].has, cases[i].has);
		assert_int_equal(t.offloads & cases[i].lacks, 0);
		assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
		tun_close(&t);
	}
	struct tun t;

	assert_true(tun_adopt(&t, ctl, TUN_ALL) < 0);
	assert_true(tun_adopt(&t, -1, TUN_ALL) < 0);
}

/* One more queue. What the interface has is the same afterwards, whichever queue is asked. */
static int add_queue(const struct tun *t)
{
	struct ifreq before = { 0 }, mine = { 0 }, its = { 0 };
	int fd, len[2] = { 0 };

	assert_int_equal(ioctl(t->fd, TUNGETIFF, &before), 0);
	assert_int_equal(tun_add_queue(t, &fd), 0);
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(ioctl(t->fd, TUNGETIFF, &mine), 0);
	assert_int_equal(ioctl(fd, TUNGETIFF, &its), 0);
	assert_string_equal(its.ifr_name, t->name);
	assert_int_equal(mine.ifr_flags, before.ifr_flags);
	assert_int_equal(its.ifr_flags, before.ifr_flags);
	assert_int_equal(ioctl(t->fd, TUNGETVNETHDRSZ, &len[0]), 0);
	assert_int_equal(ioctl(fd, TUNGETVNETHDRSZ, &len[1]), 0);
	assert_int_equal(len[0], len[1]);
	return fd;
}

static void more_queues(void **state)
{
	enum { N = 64 };
	char name[IFNAMSIZ];
	int fd[N];
	struct tun t;

	need_root();
	for (int has_vnet = 0; has_vnet < 2; has_vnet++) {
		assert_int_equal(tun_open(&t, "pkq%d", has_vnet ? TUN_ALL : 0), 0);
		memcpy(name, t.name, IFNAMSIZ);
		for (unsigned i = 1; i < N; i++)
			fd[i] = add_queue(&t);
		for (unsigned i = 1; i < N; i++)
			close(fd[i]);
		tun_close(&t);
		/* and nothing is left of it */
		assert_int_equal(if_nametoindex(name), 0);
	}
}

/* One that was adopted, with and without several queues, with what it was made with. */
static void more_queues_of_others(void **state)
{
	static const short flags[] = { IFF_MULTI_QUEUE, IFF_MULTI_QUEUE | IFF_VNET_HDR,
		IFF_MULTI_QUEUE | IFF_VNET_HDR | IFF_NAPI, IFF_VNET_HDR };

	need_root();
	for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
		struct ifreq ifr = { .ifr_name = "adq0",
			.ifr_flags = (short)(IFF_TUN | IFF_NO_PI | flags[i]) };
		int fd = open("/dev/net/tun", O_RDWR), more;
		struct tun t;

		assert_int_equal(ioctl(fd, TUNSETIFF, &ifr), 0);
		assert_int_equal(tun_adopt(&t, fd, TUN_ALL), 0);
		if (flags[i] & IFF_MULTI_QUEUE) {
			close(add_queue(&t));
		} else {
			assert_int_equal(tun_add_queue(&t, &more), -EOPNOTSUPP);
			assert_int_equal(more, -1);
		}
		tun_close(&t);
	}
}

/* In another namespace there is none of its name: no new one is made. */
static void queue_of_elsewhere(void **state)
{
	struct tun t;
	int more, ns;

	need_root();
	ns = open("/proc/self/ns/net", O_RDONLY);
	assert_int_equal(tun_open(&t, "pke0", TUN_ALL), 0);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	assert_int_equal(tun_add_queue(&t, &more), -EXDEV);
	assert_int_equal(if_nametoindex("pke0"), 0);
	assert_int_equal(setns(ns, CLONE_NEWNET), 0);
	assert_int_equal(tun_add_queue(&t, &more), 0);
	close(more);
	close(ns);
	tun_close(&t);
}

/* ---- Data. */

static bool has_valid_csums(const uint8_t *pkt, size_t len)
{
	uint64_t sum = csum_pseudo(pkt + 12, pkt + 16, 4, pkt[9], (uint32_t)len - 20);

	return csum_fold(csum_add_portable(0, pkt, 20)) == 0xffff &&
		csum_fold(csum_add_portable(sum, pkt + 20, len - 20)) == 0xffff;
}

/* Swap the two ends, so that what the kernel sent comes back to it. */
static void turn_round(uint8_t *pkt)
{
	uint8_t tmp[4];

	memcpy(tmp, pkt + 12, 4);
	memcpy(pkt + 12, pkt + 16, 4);
	memcpy(pkt + 16, tmp, 4);
	memcpy(tmp, pkt + 20, 2);
	memcpy(pkt + 20, pkt + 22, 2);
	memcpy(pkt + 22, tmp, 2);
}

/* A UDP train from a socket through the kernel's USO, split, turned round, merged
 * and back into the socket. */
static void udp_through(void **state)
{
	enum { SEG = 1000, N = 40, SEND = SEG * N - 123 };
	static uint8_t frame[65600], slots[64][1500], sent[SEND], got[65536];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htobe16(7777) };
	struct sockaddr_in from = to;
	int fd = socket(AF_INET, SOCK_DGRAM, 0), seg = SEG, one = 1;
	struct pollfd p;
	struct merge *m;
	struct io_tx *tx;
	struct split s;
	struct tun t;
	size_t n_frames, n_slots = 0, n_reads = 0, len = 0;

	need_root();
	assert_int_equal(tun_open(&t, "pkd0", TUN_ALL), 0);
	set_mtu(t.name, MTU);
	set_address(t.name);
	set_up(t.name, true);
	from.sin_addr.s_addr = inet_addr("10.9.0.1");
	to.sin_addr.s_addr = inet_addr("10.9.0.2");
	assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &seg, sizeof(seg)), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one)), 0);
	for (size_t i = 0; i < SEND; i++)
		sent[i] = (uint8_t)(i * 7 + (i >> 8));
	assert_int_equal(send(fd, sent, SEND, 0), SEND);

	p = (struct pollfd){ .fd = t.fd, .events = POLLIN };
	while (n_slots < N && poll(&p, 1, 1000) == 1) {
		ssize_t n = read(t.fd, frame, sizeof(frame));

		assert_true(n > 0);
		assert_int_equal(split_init(&s, frame, (size_t)n, true), SPLIT_OK);
		/* the kernel sends IPv6 router solicitations and the like */
		if (s.in.family != AF_INET || s.in.l4 != INNER_UDP)
			continue;
		n_reads++;
		for (uint32_t i = 0; i < s.n; i++) {
			size_t one_len = split_segment(&s, i, slots[n_slots]);

			assert_true(has_valid_csums(slots[n_slots], one_len));
			turn_round(slots[n_slots++]);
		}
	}
	assert_int_equal(n_slots, N);
	if (t.offloads & OFFLOAD_USO)
		assert_int_equal(n_reads, 1);

	assert_int_equal(merge_create(&m), 0);
	merge_set_offloads(m, t.offloads);
	for (size_t i = 0; i < N; i++)
		assert_true(merge_add(m, slots[i], get_be16(slots[i] + 2)));
	n_frames = merge_finish(m, &tx);
	if (t.offloads & OFFLOAD_USO)
		assert_int_equal(n_frames, 1);
	for (size_t i = 0; i < n_frames; i++)
		assert_true(writev(t.fd, tx[i].hdr.msg_iov, (int)tx[i].hdr.msg_iovlen) > 0);
	p.fd = fd;
	while (len < SEND && poll(&p, 1, 1000) == 1) {
		ssize_t n = recv(fd, got + len, sizeof(got) - len, MSG_DONTWAIT);

		assert_true(n > 0);
		len += (size_t)n;
	}
	assert_int_equal(len, SEND);
	assert_memory_equal(got, sent, SEND);
	merge_destroy(m);
	close(fd);
	tun_close(&t);
}

/* ---- The interface watch. */

/* Wait for the next event; false after ms without one. */
static bool next_event(struct netdev *d, struct netdev_event *ev, int ms)
{
	struct pollfd p = { .fd = netdev_fd(d), .events = POLLIN };
	int ret = 0;

	while (!ret && poll(&p, 1, ms) == 1)
		ret = netdev_read(d, ev);
	return ret == 1;
}

static void watch(void **state)
{
	struct netdev_event ev = { 0 };
	struct netdev *d;
	struct tun t;

	need_root();
	assert_int_equal(tun_open(&t, "pkw0", TUN_ALL), 0);
	assert_int_equal(netdev_open(&d, &t), 0);
	assert_true(next_event(d, &ev, 1000));
	assert_false(ev.is_up);
	assert_false(ev.is_gone);
	assert_int_equal(ev.mtu, 1420);
	assert_false(next_event(d, &ev, 10));
	set_mtu("pkw0", 1380);
	assert_true(next_event(d, &ev, 1000));
	assert_int_equal(ev.mtu, 1380);
	set_up("pkw0", true);
	assert_true(next_event(d, &ev, 1000));
	assert_true(ev.is_up);
	assert_int_equal(ev.mtu, 1380);
	/* others' interfaces are not ours */
	set_mtu("lo", 20000);
	assert_false(next_event(d, &ev, 50));
	set_mtu("lo", 65536);
	assert_false(next_event(d, &ev, 50));
	/* more messages than a socket holds: the last state comes through */
	for (int i = 0; i < 2000; i++)
		set_mtu("pkw0", 1200 + i % 100);
	set_mtu("pkw0", 1111);
	while (next_event(d, &ev, 50))
		;
	assert_int_equal(ev.mtu, 1111);
	assert_true(ev.is_up);
	netdev_close(d);
	tun_close(&t);
}

static void gso_max(void **state)
{
	struct netdev *d;
	struct tun t;
	char cmd[128], line[4096] = "";
	FILE *f;

	need_root();
	assert_int_equal(tun_open(&t, "pkg0", TUN_ALL), 0);
	assert_int_equal(netdev_open(&d, &t), 0);
	assert_int_equal(netdev_set_gso_max(d, 63000), 0);
	assert_int_equal(netdev_set_gso_max(d, 63000), 0);
	assert_int_equal(netdev_set_gso_max(d, UINT32_MAX), -EINVAL);
	snprintf(cmd, sizeof(cmd), "ip -d link show dev %s 2>/dev/null", t.name);
	f = popen(cmd, "r");
	assert_non_null(f);
	line[fread(line, 1, sizeof(line) - 1, f)] = 0;
	pclose(f);
	if (*line)
		assert_non_null(strstr(line, "gso_max_size 63000"));
	netdev_close(d);
	tun_close(&t);
}

/* Move it to another namespace, change it there, bring it back, remove it. */
static void moved(void **state)
{
	struct netdev_event ev = { 0 };
	char cmd[128];
	struct netdev *d;
	struct tun t;
	int home, away, old_fd;

	need_root();
	if (system("ip link show dev lo >/dev/null 2>&1")) {
		print_message("skipped: no ip(8)\n");
		skip();
	}
	assert_int_equal(tun_open(&t, "pkm0", TUN_ALL), 0);
	assert_int_equal(netdev_open(&d, &t), 0);
	assert_true(next_event(d, &ev, 1000));
	set_up("pkm0", true);
	assert_true(next_event(d, &ev, 1000));
	assert_true(ev.is_up);
	old_fd = netdev_fd(d);

	home = open("/proc/self/ns/net", O_RDONLY);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	away = open("/proc/self/ns/net", O_RDONLY);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	snprintf(cmd, sizeof(cmd), "ip link set pkm0 netns /proc/%d/fd/%d", getpid(), away);
	assert_int_equal(system(cmd), 0);
	assert_true(next_event(d, &ev, 1000));
	assert_false(ev.is_up);
	assert_false(ev.is_gone);
	assert_int_equal(netdev_fd(d), old_fd);

	assert_int_equal(setns(away, CLONE_NEWNET), 0);
	assert_int_equal(system("ip link set pkm0 name other0 mtu 1333 up"), 0);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	while (next_event(d, &ev, 100))
		;
	assert_true(ev.is_up);
	assert_int_equal(ev.mtu, 1333);
	assert_int_equal(netdev_set_gso_max(d, 60000), 0);
	/* opened when it is elsewhere already */
	netdev_close(d);
	assert_int_equal(netdev_open(&d, &t), 0);
	assert_true(next_event(d, &ev, 1000));
	assert_int_equal(ev.mtu, 1333);
	/* deleted there */
	assert_int_equal(setns(away, CLONE_NEWNET), 0);
	assert_int_equal(system("ip link del other0"), 0);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	assert_true(next_event(d, &ev, 1000));
	assert_true(ev.is_gone);
	assert_false(next_event(d, &ev, 20));
	netdev_close(d);
	tun_close(&t);
	close(home);
	close(away);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open_and_probe),
		cmocka_unit_test(persistent),
		cmocka_unit_test(adopt),
		cmocka_unit_test(more_queues),
		cmocka_unit_test(more_queues_of_others),
		cmocka_unit_test(queue_of_elsewhere),
		cmocka_unit_test(udp_through),
		cmocka_unit_test(watch),
		cmocka_unit_test(gso_max),
		cmocka_unit_test(moved),
	};

	return cmocka_run_group_tests(tests, setup_all, NULL);
}
