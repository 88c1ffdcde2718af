/* The helper against a good gateway, and against one that was taken over and
 * sends what it likes. Sockets and interfaces live in a network namespace that
 * ends with the test; nothing leaves the machine. */
#include "gateway/privhelper.h"
#include "base/clock.h"
#include "base/sandbox.h"
#include "gateway/privserve.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { UID_NOBODY = 65534, MARK = 0x2a };

static bool is_privileged;

static void need_root(void)
{
	if (!is_privileged) {
		print_message("skip: needs root with CAP_NET_ADMIN and CAP_SYS_ADMIN\n");
		skip();
	}
}

static void start(struct privhelper *h)
{
	assert_int_equal(privhelper_start(h, SANDBOX_KILL), 0);
	assert_true(h->fd >= 0);
	assert_true(h->pid > 0);
}

/* In a child a failed assertion must end the child, not go on to the next test. */
static pid_t fork_child(void)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		setenv("CMOCKA_TEST_ABORT", "1", 1);
	return pid;
}

/* SIGSTOP, and wait until it is in force. */
static void suspend(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
}

/* Run body in a child that has given up everything but its helper. */
static void in_dropped_child(void (*body)(struct privhelper *h))
{
	int status;
	pid_t pid = fork_child();

	if (pid == 0) {
		struct privhelper h;

		start(&h);
		assert_int_equal(sandbox_drop_all(), 0);
		assert_false(sandbox_has(CAP_NET_ADMIN));
		body(&h);
		assert_int_equal(privhelper_stop(&h), 0);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static uint32_t mark_of(int fd)
{
	uint32_t mark = 0;
	socklen_t len = sizeof(mark);

	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_MARK, &mark, &len), 0);
	return mark;
}

static uint16_t port_of(int fd)
{
	struct sockaddr_in6 a;
	socklen_t len = sizeof(a);

	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	return ntohs(a.sin6_port); /* at the same place in both families */
}

static void udp_open_body(struct privhelper *h)
{
	const unsigned allowed = OFFLOAD_UDP_GSO | OFFLOAD_UDP_GRO;
	struct udp u, again;
	int own;

	/* A port and a mark that this process could not have. */
	assert_int_equal(privhelper_udp_open(
				 h, &(struct udp_config){ 80, MARK, allowed, 1, { -1, -1 } }, &u),
		0);
	assert_int_equal(u.port, 80);
	assert_int_equal(u.offloads & ~allowed, 0);
	assert_true(u.data[0][0] >= 0 || u.data[1][0] >= 0);
	for (unsigned i = 0; i < 2; i++) {
		int both[] = { u.data[i][0], u.handshake[i] };

		for (unsigned k = 0; k < 2; k++) {
			if (both[k] < 0)
				continue;
			assert_int_equal(port_of(both[k]), 80);
			assert_int_equal(mark_of(both[k]), MARK);
			assert_true(fcntl(both[k], F_GETFD) & FD_CLOEXEC);
		}
	}
	own = u.data[0][0] >= 0 ? u.data[0][0] : u.data[1][0];
	assert_int_equal(setsockopt(own, SOL_SOCKET, SO_MARK, &(int){ 9 }, sizeof(int)), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(privhelper_udp_mark(h, &u, 9), 0);
	assert_int_equal(mark_of(own), 9);
	assert_int_equal(privhelper_udp_mark(h, &u, 0), 0);
	assert_int_equal(mark_of(own), 0);
	udp_close(&u);
	/* The helper keeps no copy: the port is free again. */
	assert_int_equal(
		privhelper_udp_open(h, &(struct udp_config){ 80, 0, 0, 1, { -1, -1 } }, &again), 0);
	assert_int_equal(again.offloads, 0);
	udp_close(&again);
	assert_int_equal(privhelper_udp_open(
				 h, &(struct udp_config){ 0, 0, allowed, 1, { -1, -1 } }, &again),
		0);
	assert_true(again.port > 0);
	udp_close(&again);
}

static void udp_test(void **state)
{
	need_root();
	in_dropped_child(udp_open_body);
}

/* A busy port is the kernel's errno, and the helper goes on. */
static void port_busy_body(struct privhelper *h)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(4711) };
	struct sockaddr_in b = { .sin_family = AF_INET, .sin_port = htons(4711) };
	int six = socket(AF_INET6, SOCK_DGRAM, 0), four = socket(AF_INET, SOCK_DGRAM, 0);
	struct udp u;

	assert_int_equal(bind(four, (struct sockaddr *)&b, sizeof(b)), 0);
	if (six >= 0) {
		setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &(int){ 1 }, sizeof(int));
		assert_int_equal(bind(six, (struct sockaddr *)&a, sizeof(a)), 0);
	}
	assert_int_equal(privhelper_udp_open(h,
				 &(struct udp_config){ 4711, 0, OFFLOAD_ALL, 1, { -1, -1 } }, &u),
		-EADDRINUSE);
	close(four);
	close(six);
	assert_int_equal(privhelper_udp_open(h,
				 &(struct udp_config){ 4711, 0, OFFLOAD_ALL, 1, { -1, -1 } }, &u),
		0);
	assert_int_equal(u.port, 4711);
	udp_close(&u);
}

static struct steer *steer;

/* The helper puts sockets under a program that it could not load. */
static void steered_body(struct privhelper *h)
{
	const struct steer_fds fds = steer_get_fds(steer);
	struct udp_config cfg = { .allowed = OFFLOAD_UDP_GRO, .n = 4, .steer = fds };
	struct udp u, again;

	assert_int_equal(privhelper_udp_open(h, &cfg, &u), 0);
	assert_int_equal(u.n, 4);
	assert_true(u.is_steered);
	assert_true(u.data[0][3] >= 0 && u.handshake[0] >= 0);
	assert_int_equal(privhelper_udp_open(h, &cfg, &again), 0);
	assert_true(again.is_steered);
	assert_int_not_equal(again.port, u.port);
	udp_close(&u);
	udp_close(&again);
	/* What is no map is put up with, and sorted by classic BPF. */
	cfg.steer = (struct steer_fds){ fds.prog, fds.prog };
	assert_int_equal(privhelper_udp_open(h, &cfg, &u), 0);
	assert_int_equal(u.n, 4);
	assert_false(u.is_steered);
	udp_close(&u);
	cfg.steer = (struct steer_fds){ h->fd, fds.sockets };
	assert_int_equal(privhelper_udp_open(h, &cfg, &u), 0);
	assert_int_equal(u.n, 4);
	assert_false(u.is_steered);
	udp_close(&u);
}

static void steered_test(void **state)
{
	const struct steer_config cfg = { .n_workers = 4 };
	struct udp u;
	int ret;

	need_root();
	ret = steer_create(&steer, &cfg);
	if (ret) {
		print_message("skip: no eBPF programs here: %s\n", strerror(-ret));
		skip();
	}
	in_dropped_child(steered_body);
	/* Without a helper no bpf() is tried, which the gateway's filter would refuse. */
	assert_int_equal(privhelper_udp_open(&(struct privhelper){ .fd = -1 },
				 &(struct udp_config){ .n = 4, .steer = steer_get_fds(steer) }, &u),
		0);
	assert_int_equal(u.n, 4);
	assert_false(u.is_steered);
	udp_close(&u);
	steer_destroy(steer);
}

static void port_busy_test(void **state)
{
	need_root();
	in_dropped_child(port_busy_body);
}

/* ---- The TUN */

static bool make_tun(struct tun *t, const char *name)
{
	struct ifreq req = { .ifr_flags = IFF_TUN | IFF_NO_PI };

	memset(t, 0, sizeof(*t));
	t->fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (t->fd < 0)
		return false;
	snprintf(req.ifr_name, IFNAMSIZ, "%s", name);
	assert_int_equal(ioctl(t->fd, TUNSETIFF, &req), 0);
	snprintf(t->name, IFNAMSIZ, "%s", name);
	return true;
}

/* gso_max_size of an interface, asked on a netlink socket of its namespace. 0: not told. */
static uint32_t gso_max_of(int fd, unsigned ifindex)
{
	struct {
		struct nlmsghdr hdr;
		struct ifinfomsg info;
	} req = { { sizeof(req), RTM_GETLINK, NLM_F_REQUEST, 1, 0 },
		{ .ifi_index = (int)ifindex } };
	static union {
		struct nlmsghdr hdr;
		char bytes[32768];
	} buf;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	ssize_t len;
	int left;

	assert_int_equal(send(fd, &req, sizeof(req), 0), sizeof(req));
	assert_int_equal(poll(&p, 1, 2000), 1);
	len = recv(fd, &buf, sizeof(buf), 0);
	assert_true(len > 0);
	assert_int_equal(buf.hdr.nlmsg_type, RTM_NEWLINK);
	left = (int)IFLA_PAYLOAD(&buf.hdr);
	for (struct rtattr *a = IFLA_RTA(NLMSG_DATA(&buf.hdr)); RTA_OK(a, left);
		a = RTA_NEXT(a, left)) {
		if (a->rta_type == IFLA_GSO_MAX_SIZE)
			return *(uint32_t *)RTA_DATA(a);
	}
	return 0;
}

static struct tun home_tun, away_tun; /* away: its interface is in another namespace */

static void tun_body(struct privhelper *h)
{
	unsigned ifindex = 0;
	int fd = -1;

	assert_int_equal(privhelper_netdev_open(h, &home_tun, &fd, &ifindex), 0);
	assert_int_equal(ifindex, if_nametoindex(home_tun.name));
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(privhelper_set_gso_max(h, &home_tun, 60000), 0);
	assert_int_equal(gso_max_of(fd, ifindex), 60000);
	/* The descriptor is no privilege: the sender's capabilities count as well. */
	assert_int_equal(priv_set_gso_max(home_tun.fd, 50000), -EPERM);
	assert_int_equal(gso_max_of(fd, ifindex), 60000);
	assert_int_equal(privhelper_set_gso_max(h, &home_tun, PRIV_GSO_MIN - 1), -EINVAL);
	assert_int_equal(privhelper_set_gso_max(h, &home_tun, PRIV_GSO_MAX + 1), -EINVAL);
	close(fd);
}

static void tun_test(void **state)
{
	need_root();
	if (!make_tun(&home_tun, "privt0")) {
		print_message("skip: no /dev/net/tun\n");
		skip();
	}
	in_dropped_child(tun_body);
	close(home_tun.fd);
}

static void moved_tun_body(struct privhelper *h)
{
	unsigned ifindex = 0;
	struct udp u;
	int fd = -1;

	assert_int_equal(if_nametoindex(away_tun.name), 0);
	assert_int_equal(privhelper_netdev_open(h, &away_tun, &fd, &ifindex), 0);
	assert_int_equal(privhelper_set_gso_max(h, &away_tun, 30000), 0);
	assert_int_equal(gso_max_of(fd, ifindex), 30000);
	close(fd);
	/* It stepped back: port 5353 is taken there and free here. */
	assert_int_equal(
		privhelper_udp_open(h, &(struct udp_config){ 5353, 0, 0, 1, { -1, -1 } }, &u), 0);
	udp_close(&u);
}

static void moved_tun_test(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(5353) };
	int home, busy;

	need_root();
	home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	assert_true(home >= 0);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	if (!make_tun(&away_tun, "privaway")) {
		assert_int_equal(setns(home, CLONE_NEWNET), 0);
		print_message("skip: no /dev/net/tun\n");
		skip();
	}
	busy = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(busy, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	in_dropped_child(moved_tun_body);
	close(busy);
	close(home);
	close(away_tun.fd);
}

/* ---- ICMP errors */

/* The interface up with an address, the loopback up. IPv6 addresses need netlink: none. */
static void set_up_net(const char *ifname, const char *address)
{
	struct sockaddr_in *a;
	struct ifreq req;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	memset(&req, 0, sizeof(req));
	snprintf(req.ifr_name, IFNAMSIZ, "lo");
	req.ifr_flags = IFF_UP;
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &req), 0);
	snprintf(req.ifr_name, IFNAMSIZ, "%s", ifname);
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &req), 0);
	a = (struct sockaddr_in *)&req.ifr_addr;
	a->sin_family = AF_INET;
	inet_pton(AF_INET, address, &a->sin_addr);
	assert_int_equal(ioctl(fd, SIOCSIFADDR, &req), 0);
	a->sin_addr.s_addr = htonl(0xffffff00);
	assert_int_equal(ioctl(fd, SIOCSIFNETMASK, &req), 0);
	close(fd);
}

/* A UDP packet without payload, to port 9. */
static uint32_t put_udp4(uint8_t pkt[28], const char *src, const char *dst, uint16_t port)
{
	memset(pkt, 0, 28);
	pkt[0] = 0x45;
	pkt[3] = 28;
	pkt[9] = IPPROTO_UDP;
	inet_pton(AF_INET, src, pkt + 12);
	inet_pton(AF_INET, dst, pkt + 16);
	pkt[20] = (uint8_t)(port >> 8);
	pkt[21] = (uint8_t)port;
	pkt[23] = 9;
	pkt[25] = 8;
	return 28;
}

static int ask_unreach(struct privhelper *h, const struct tun *t, const char *src, const char *dst,
	uint16_t port, bool *is_local)
{
	struct icmp_cause c;
	uint8_t pkt[28];
	uint32_t len = put_udp4(pkt, src, dst, port);

	assert_true(icmp_cause_parse(&c, pkt, len));
	return privhelper_unreach(h, t, &c, is_local);
}

static int unreach_sock; /* bound to 10.77.0.1 where the TUN is, connected to 10.77.0.2:9 */

static void open_unreach_sock(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9) };

	unreach_sock = socket(AF_INET, SOCK_DGRAM, 0);
	inet_pton(AF_INET, "10.77.0.2", &a.sin_addr);
	assert_int_equal(connect(unreach_sock, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(
		setsockopt(unreach_sock, IPPROTO_IP, IP_RECVERR, &(int){ 1 }, sizeof(int)), 0);
}

static int error_of(int fd)
{
	struct pollfd p = { .fd = fd };
	int err = 0;
	socklen_t len = sizeof(err);

	assert_true(poll(&p, 1, 2000) >= 0);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len), 0);
	return err;
}

static void unreach_in(struct privhelper *h, const struct tun *t)
{
	uint16_t port = port_of(unreach_sock);
	bool is_local = false;

	/* The socket that "sent" the packet is told. */
	assert_int_equal(ask_unreach(h, t, "10.77.0.1", "10.77.0.2", port, &is_local), 0);
	assert_true(is_local);
	assert_int_equal(error_of(unreach_sock), EHOSTUNREACH);
	/* Somebody else's packet: sent, and lost in the TUN. */
	assert_int_equal(ask_unreach(h, t, "10.77.0.5", "192.0.2.1", port, &is_local), 0);
	assert_false(is_local);
	/* The sender cannot be reached either. */
	assert_int_equal(
		ask_unreach(h, t, "192.0.2.5", "10.77.0.2", port, &is_local), -ENETUNREACH);
	/* Broadcast is not answered, and nothing is sent there. */
	assert_int_equal(
		ask_unreach(h, t, "10.77.0.1", "10.77.0.255", port, &is_local), -EDESTADDRREQ);
	assert_int_equal(
		ask_unreach(h, t, "10.77.0.255", "10.77.0.2", port, &is_local), -EDESTADDRREQ);
}

static void unreach_body(struct privhelper *h)
{
	unreach_in(h, &home_tun);
}

static void unreach_test(void **state)
{
	need_root();
	if (!make_tun(&home_tun, "privt0")) {
		print_message("skip: no /dev/net/tun\n");
		skip();
	}
	set_up_net("privt0", "10.77.0.1");
	open_unreach_sock();
	in_dropped_child(unreach_body);
	close(unreach_sock);
	close(home_tun.fd);
}

static void moved_unreach_body(struct privhelper *h)
{
	unreach_in(h, &away_tun);
}

static void moved_unreach_test(void **state)
{
	int home;

	need_root();
	home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	assert_true(home >= 0);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	if (!make_tun(&away_tun, "privaway")) {
		assert_int_equal(setns(home, CLONE_NEWNET), 0);
		print_message("skip: no /dev/net/tun\n");
		skip();
	}
	set_up_net("privaway", "10.77.0.1");
	open_unreach_sock();
	assert_int_equal(setns(home, CLONE_NEWNET), 0);
	in_dropped_child(moved_unreach_body);
	close(unreach_sock);
	close(home);
	close(away_tun.fd);
}

/* ---- A gateway that was taken over */

/* Send one request as it is; the answer's err. */
static int raw_call(struct privhelper *h, const void *msg, size_t len, const struct priv_fds *fds)
{
	struct priv_reply reply;
	struct priv_fds got;
	int err;

	assert_int_equal(priv_send(h->fd, msg, len, fds, 0), 0);
	assert_int_equal(priv_recv(h->fd, &reply, sizeof(reply), &got), 1);
	err = reply.err;
	if (err < 0) {
		assert_int_equal(got.n, 0);
		assert_int_equal(
			reply.port | reply.offloads | reply.data | reply.handshake | reply.ifindex,
			0);
	}
	priv_fds_close(&got);
	return err;
}

static void malformed_test(void **state)
{
	const struct priv_request good = {
		.magic = PRIV_MAGIC, .seq = 1, .op = PRIV_UDP_OPEN, .n = 1
	};
	uint32_t words[sizeof(good) / sizeof(uint32_t) + 1];
	struct priv_request bad[15];
	struct privhelper h;

	need_root();
	start(&h);
	assert_int_equal(raw_call(&h, &good, sizeof(good), NULL), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		bad[i] = good;
	bad[0].magic ^= 1;
	bad[1].seq = 0;
	bad[2].op = 0;
	bad[3].op = PRIV_UNREACH + 1;
	bad[4].op = UINT32_MAX;
	bad[5].port = UINT16_MAX + 1;
	bad[6].allowed = OFFLOAD_ALL + 1;
	bad[7].bytes = 1; /* not a field of this kind */
	bad[8].op = PRIV_UDP_MARK; /* needs a socket */
	bad[9].op = PRIV_NETDEV_OPEN;
	bad[10].op = PRIV_UNREACH; /* needs the TUN */
	bad[11].op = PRIV_UNREACH;
	bad[11].bytes = ICMP_QUOTE_MAX + 1;
	bad[12].n = 0;
	bad[13].n = UDP_CHANNELS_MAX + 1;
	bad[14].op = PRIV_UDP_MARK; /* n is not a field of this kind */
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(raw_call(&h, &bad[i], sizeof(bad[i]), NULL), -EBADMSG);
	memset(words, 0, sizeof(words));
	memcpy(words, &good, sizeof(good));
	for (size_t len = 1; len <= sizeof(words); len++) {
		if (len != sizeof(good))
			assert_int_equal(raw_call(&h, words, len, NULL), -EBADMSG);
	}
	/* It still serves. */
	assert_int_equal(raw_call(&h, &good, sizeof(good), NULL), 0);
	assert_int_equal(privhelper_stop(&h), 0);
}

static unsigned count_fds(pid_t pid)
{
	char path[64];
	unsigned n = 0;

	for (int fd = 0; fd < 256; fd++) {
		struct stat st;

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
		n += lstat(path, &st) == 0;
	}
	return n;
}

/* Descriptors that are not what the request says, too many of them, or none wanted. */
static void wrong_descriptors_test(void **state)
{
	struct priv_request req = { .magic = PRIV_MAGIC, .seq = 1, .op = PRIV_UDP_MARK };
	int tcp = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0);
	int file = open("/dev/zero", O_RDWR), raw = socket(AF_INET, SOCK_RAW, IPPROTO_UDP);
	struct priv_fds fds;
	struct privhelper h;
	unsigned before;

	need_root();
	start(&h);
	before = count_fds(h.pid);
	req.fwmark = MARK;
	fds = (struct priv_fds){ { udp, tcp }, 2 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	assert_int_equal(mark_of(udp), 0); /* all or nothing */
	fds = (struct priv_fds){ { raw }, 1 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	fds = (struct priv_fds){ { file }, 1 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	req.op = PRIV_UDP_OPEN;
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EBADMSG);
	req = (struct priv_request){ PRIV_MAGIC, 2, PRIV_NETDEV_OPEN, 0, 0, 0, 0 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	fds = (struct priv_fds){ { file, file }, 2 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EBADMSG);
	req.op = PRIV_SET_GSO_MAX;
	req.bytes = 4096;
	fds = (struct priv_fds){ { udp }, 1 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	req.bytes = 0;
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	req.op = PRIV_UNREACH;
	req.bytes = put_udp4(req.quote, "10.77.0.1", "10.77.0.2", 9);
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	assert_int_equal(count_fds(h.pid), before);
	assert_int_equal(privhelper_stop(&h), 0);
	close(tcp);
	close(udp);
	close(file);
	close(raw);
}

/* More descriptors than a message may carry: refused, and none is kept. */
static void too_many_descriptors_test(void **state)
{
	enum { N = PRIV_FDS_MAX + 10 };
	struct priv_request req = { .magic = PRIV_MAGIC, .seq = 1, .op = PRIV_UDP_MARK };
	union {
		struct cmsghdr hdr;
		char bytes[CMSG_SPACE(N * sizeof(int))];
	} control = { .bytes = { 0 } };
	struct iovec iov = { &req, sizeof(req) };
	struct msghdr msg = { .msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct priv_reply reply;
	struct priv_fds got;
	struct privhelper h;
	unsigned before;

	need_root();
	start(&h);
	before = count_fds(h.pid);
	control.hdr.cmsg_level = SOL_SOCKET;
	control.hdr.cmsg_type = SCM_RIGHTS;
	control.hdr.cmsg_len = CMSG_LEN(N * sizeof(int));
	for (unsigned i = 0; i < N; i++)
		memcpy(CMSG_DATA(&control.hdr) + i * sizeof(int), &fd, sizeof(fd));
	assert_int_equal(sendmsg(h.fd, &msg, 0), sizeof(req));
	assert_int_equal(priv_recv(h.fd, &reply, sizeof(reply), &got), 1);
	assert_int_equal(reply.err, -EBADMSG);
	assert_int_equal(count_fds(h.pid), before);
	assert_int_equal(privhelper_stop(&h), 0);
	close(fd);
}

/* It has the helper send errors: about what is no packet, about errors, without end. */
static void unreach_misuse_test(void **state)
{
	struct priv_request req = { .magic = PRIV_MAGIC, .seq = 1, .op = PRIV_UNREACH };
	struct privhelper h;
	struct priv_fds fds;
	unsigned n = 0;
	int err;

	need_root();
	if (!make_tun(&home_tun, "privt0")) {
		print_message("skip: no /dev/net/tun\n");
		skip();
	}
	set_up_net("privt0", "10.77.0.1");
	start(&h);
	fds = (struct priv_fds){ { home_tun.fd }, 1 };
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	req.bytes = 19;
	memset(req.quote, 0x45, sizeof(req.quote));
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	req.bytes = put_udp4(req.quote, "10.77.0.1", "10.77.0.2", 0x0300);
	req.quote[9] = IPPROTO_ICMP;
	assert_int_equal(raw_call(&h, &req, sizeof(req), &fds), -EINVAL);
	req.quote[9] = IPPROTO_UDP;
	do {
		err = raw_call(&h, &req, sizeof(req), &fds);
		n++;
	} while (err == 0 && n < 20000);
	assert_int_equal(err, -EBUSY);
	assert_true(n > PRIV_ICMP_BURST);
	assert_int_equal(privhelper_stop(&h), 0);
	close(home_tun.fd);
}

/* ---- Life and death */

static void died_test(void **state)
{
	struct privhelper h;
	struct udp u;

	need_root();
	start(&h);
	assert_int_equal(kill(h.pid, SIGKILL), 0);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u),
		-EPIPE);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u),
		-EPIPE);
	assert_int_equal(privhelper_stop(&h), -EPIPE);
	assert_int_equal(privhelper_stop(&h), 0);
}

/* It dies with a request unread, which the socket reports in another way. */
static void died_unread_test(void **state)
{
	const struct priv_request req = { .magic = PRIV_MAGIC, .seq = 1, .op = PRIV_UDP_OPEN };
	struct pollfd p = { .events = POLLIN };
	struct privhelper h;
	struct udp u;

	need_root();
	start(&h);
	suspend(h.pid);
	assert_int_equal(priv_send(h.fd, &req, sizeof(req), NULL, 0), 0);
	assert_int_equal(kill(h.pid, SIGKILL), 0);
	p.fd = h.fd;
	assert_int_equal(poll(&p, 1, 2000), 1);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u),
		-EPIPE);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u),
		-EPIPE);
	assert_int_equal(privhelper_stop(&h), -EPIPE);
}

/* It does not read, and the socket is full: an error at once, not a hang. */
static void full_test(void **state)
{
	const struct priv_request req = { .magic = PRIV_MAGIC, .seq = 1, .op = PRIV_UDP_OPEN };
	struct privhelper h;
	struct udp u;

	need_root();
	start(&h);
	suspend(h.pid);
	while (priv_send(h.fd, &req, sizeof(req), NULL, MSG_DONTWAIT) == 0)
		;
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u),
		-ETIMEDOUT);
	assert_int_equal(kill(h.pid, SIGKILL), 0);
	assert_int_equal(privhelper_stop(&h), -EPIPE);
}

/* Stopped: an error after two seconds. What it answers later is not taken for the
 * answer to the next request. */
static void hangs_test(void **state)
{
	struct privhelper h;
	uint64_t begin_ns;
	struct udp u;

	need_root();
	start(&h);
	suspend(h.pid);
	begin_ns = clock_now_ns();
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 4712, 0, 0, 1, { -1, -1 } }, &u),
		-ETIMEDOUT);
	assert_in_range((clock_now_ns() - begin_ns) / NSEC_PER_MSEC, PRIVHELPER_TIMEOUT_MS - 1,
		PRIVHELPER_TIMEOUT_MS * 3);
	assert_int_equal(kill(h.pid, SIGCONT), 0);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 4713, 0, 0, 1, { -1, -1 } }, &u), 0);
	assert_int_equal(u.port, 4713);
	assert_int_equal(port_of(u.data[0][0] >= 0 ? u.data[0][0] : u.data[1][0]), 4713);
	udp_close(&u);
	/* One that does not end when told to is killed. */
	suspend(h.pid);
	assert_int_equal(privhelper_stop(&h), -EPIPE);
}

static void signals_test(void **state)
{
	static const int harmless[] = { SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE };
	struct privhelper h;
	struct udp u;

	need_root();
	start(&h);
	for (size_t i = 0; i < ARRAY_LEN(harmless); i++)
		assert_int_equal(kill(h.pid, harmless[i]), 0);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u), 0);
	udp_close(&u);
	assert_int_equal(privhelper_stop(&h), 0);
}

/* kill -9 of the gateway, with a copy of its end still open elsewhere (here). */
static void gateway_killed_test(void **state)
{
	struct pollfd p = { .events = POLLIN };
	int status, hold[2];
	struct privhelper h;
	struct priv_fds got;
	pid_t pid;

	need_root();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, hold), 0);
	pid = fork_child();
	if (pid == 0) {
		start(&h);
		assert_int_equal(
			priv_send(hold[1], "x", 1, &(struct priv_fds){ { h.fd }, 1 }, 0), 0);
		pause();
	}
	assert_int_equal(priv_recv(hold[0], &(char){ 0 }, 1, &got), 1);
	assert_int_equal(got.n, 1);
	p.fd = got.fd[0];
	assert_int_equal(poll(&p, 1, 50), 0); /* the helper lives */
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(poll(&p, 1, 2000), 1);
	assert_int_equal(recv(p.fd, &(char){ 0 }, 1, 0), 0);
	/* By now it is our child, see main. */
	assert_true(waitpid(-1, &status, 0) > 0);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	priv_fds_close(&got);
	close(hold[0]);
	close(hold[1]);
}

/* The value of a line "NAME: value" in a file of /proc/PID. */
static uint64_t proc_value(pid_t pid, const char *file, const char *name, int base)
{
	char path[64], line[256];
	uint64_t sum = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	f = fopen(path, "r");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, name, strlen(name)) == 0)
			sum += strtoull(line + strlen(name), NULL, base);
	}
	fclose(f);
	return sum;
}

/* What it keeps: four capabilities, four descriptors, little memory, no dumps. */
static void footprint_test(void **state)
{
	const uint64_t caps = 1ull << CAP_NET_ADMIN | 1ull << CAP_NET_BIND_SERVICE |
		1ull << CAP_NET_RAW | 1ull << CAP_SYS_ADMIN;
	int extra = open("/dev/zero", O_RDONLY);
	char path[64], comm[32] = "";
	struct privhelper h;
	uint64_t own_kib;
	FILE *f;

	need_root();
	start(&h);
	assert_int_equal(proc_value(h.pid, "status", "CapEff:", 16), caps);
	assert_int_equal(proc_value(h.pid, "status", "CapPrm:", 16), caps);
	assert_int_equal(proc_value(h.pid, "status", "CapInh:", 16), 0);
	assert_int_equal(proc_value(h.pid, "status", "NoNewPrivs:", 10), 1);
	assert_int_equal(count_fds(h.pid), 4);
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)h.pid);
	f = fopen(path, "r");
	assert_non_null(f);
	assert_non_null(fgets(comm, sizeof(comm), f));
	fclose(f);
	assert_string_equal(comm, "penstock-priv\n");
	own_kib = proc_value(h.pid, "smaps_rollup", "Private_Dirty:", 10) +
		proc_value(h.pid, "smaps_rollup", "Private_Clean:", 10);
	print_message("helper's own memory: %llu KiB\n", (unsigned long long)own_kib);
	if (!IS_SANITIZED)
		assert_in_range(own_kib, 1, 3 * 1024);
	assert_int_equal(privhelper_stop(&h), 0);
	close(extra);
}

/* ---- Without privilege */

static void unprivileged_body(void)
{
	struct privhelper h;
	unsigned ifindex;
	bool is_local;
	struct tun t;
	struct udp u;
	int fd;

	if (geteuid() == 0)
		assert_int_equal(setresuid(UID_NOBODY, UID_NOBODY, UID_NOBODY), 0);
	assert_int_equal(sandbox_drop_all(), 0);
	assert_int_equal(privhelper_start(&h, SANDBOX_KILL), 0);
	assert_int_equal(h.fd, -1);
	assert_int_equal(h.pid, 0);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u), 0);
	assert_true(u.port >= 1024);
	assert_int_equal(privhelper_udp_mark(&h, &u, MARK), -EPERM);
	udp_close(&u);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 80, 0, 0, 1, { -1, -1 } }, &u),
		-EACCES);
	/* A TUN that somebody opened for us. */
	t = home_tun;
	if (t.fd >= 0) {
		assert_int_equal(privhelper_netdev_open(&h, &t, &fd, &ifindex), 0);
		assert_int_equal(ifindex, if_nametoindex(t.name));
		close(fd);
		assert_int_equal(privhelper_set_gso_max(&h, &t, 60000), -EPERM);
		assert_int_equal(
			ask_unreach(&h, &t, "10.77.0.1", "10.77.0.2", 9, &is_local), -EPERM);
		t = away_tun;
		assert_int_equal(privhelper_netdev_open(&h, &t, &fd, &ifindex), -ENODEV);
	}
	assert_int_equal(privhelper_stop(&h), 0);
}

/* With CAP_NET_ADMIN alone, as setcap gives it: each thing works that it is for. */
static void partial_body(void)
{
	static const int caps[] = { CAP_NET_ADMIN };
	struct privhelper h;
	unsigned ifindex;
	bool is_local;
	struct udp u;
	int fd;

	assert_int_equal(sandbox_keep(caps, 1), 0);
	start(&h);
	assert_int_equal(sandbox_drop_all(), 0);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 80, 0, 0, 1, { -1, -1 } }, &u),
		-EACCES);
	assert_int_equal(
		privhelper_udp_open(&h, &(struct udp_config){ 0, 0, 0, 1, { -1, -1 } }, &u), 0);
	assert_int_equal(privhelper_udp_mark(&h, &u, MARK), 0);
	udp_close(&u);
	if (home_tun.fd >= 0) {
		assert_int_equal(privhelper_set_gso_max(&h, &home_tun, 60000), 0);
		assert_int_equal(privhelper_netdev_open(&h, &away_tun, &fd, &ifindex), -EPERM);
		/* Needs CAP_NET_RAW. */
		assert_int_equal(
			ask_unreach(&h, &home_tun, "10.77.0.1", "10.77.0.2", 9, &is_local), -EPERM);
	}
	assert_int_equal(privhelper_stop(&h), 0);
}

/* Run body in a child that has two TUNs, where there may be any. */
static void with_tuns(void (*body)(void))
{
	int status, home;
	pid_t pid;

	home_tun.fd = away_tun.fd = -1;
	if (is_privileged && make_tun(&home_tun, "privt0")) {
		home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
		assert_int_equal(unshare(CLONE_NEWNET), 0);
		assert_true(make_tun(&away_tun, "privaway"));
		assert_int_equal(setns(home, CLONE_NEWNET), 0);
		close(home);
	}
	pid = fork_child();
	if (pid == 0) {
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(home_tun.fd);
	close(away_tun.fd);
}

static void partial_test(void **state)
{
	need_root();
	with_tuns(partial_body);
}

static void unprivileged_test(void **state)
{
	with_tuns(unprivileged_body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(udp_test),
		cmocka_unit_test(steered_test),
		cmocka_unit_test(port_busy_test),
		cmocka_unit_test(tun_test),
		cmocka_unit_test(moved_tun_test),
		cmocka_unit_test(unreach_test),
		cmocka_unit_test(moved_unreach_test),
		cmocka_unit_test(malformed_test),
		cmocka_unit_test(wrong_descriptors_test),
		cmocka_unit_test(too_many_descriptors_test),
		cmocka_unit_test(unreach_misuse_test),
		cmocka_unit_test(died_test),
		cmocka_unit_test(died_unread_test),
		cmocka_unit_test(full_test),
		cmocka_unit_test(hangs_test),
		cmocka_unit_test(signals_test),
		cmocka_unit_test(gateway_killed_test),
		cmocka_unit_test(footprint_test),
		cmocka_unit_test(partial_test),
		cmocka_unit_test(unprivileged_test),
	};

	/* Everything in a namespace of its own: no port of the host is touched. */
	is_privileged = geteuid() == 0 && sandbox_has(CAP_NET_ADMIN) &&
		sandbox_has(CAP_SYS_ADMIN) && unshare(CLONE_NEWNET) == 0;
	/* A helper whose gateway was killed comes to us, to be collected. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
