/* The helper's side of privhelper.h, asked by a gateway that was taken over: a message of
 * any length with any descriptors gets one answer, which is right in itself, and
 * nothing stays open.
 *
 * The first byte says how many descriptors come along, the next six which ones; from 128 on
 * in the eighth the message begins as a good one does. No privilege is left when it
 * starts; where there were some, sockets are opened in a network namespace of its own, and a
 * TUN is among the descriptors. */
#include "gateway/privserve.h"
#include "base/bucket.h"
#include "base/bytes.h"
#include "base/sandbox.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KINDS = 8, SENT_MAX = 6, CHOICE = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static int pair[2], kinds[KINDS];

static void check(bool is_right)
{
	if (!is_right)
		abort();
}

/* As priv_send, but with more descriptors than any request may carry but one. */
static void send_any(const void *msg, size_t len, const uint8_t *choice)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(SENT_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = len };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1 };
	unsigned n = choice[0] % (SENT_MAX + 1);

	if (n > 0) {
		int *fds = (int *)CMSG_DATA(&control.align);

		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(n * sizeof(int));
		for (unsigned i = 0; i < n; i++)
			fds[i] = kinds[choice[1 + i] % KINDS];
		hdr.msg_control = &control;
		hdr.msg_controllen = CMSG_SPACE(n * sizeof(int));
	}
	check(sendmsg(pair[0], &hdr, 0) == (ssize_t)len);
}

static int lowest_free(void)
{
	int fd = dup(pair[0]);

	check(fd >= 0 && close(fd) == 0);
	return fd;
}

static void check_reply(uint32_t seq, bool is_whole)
{
	const struct priv_reply none = { .magic = PRIV_MAGIC };
	struct priv_reply reply;
	struct priv_fds fds;

	check(priv_recv(pair[0], &reply, sizeof(reply), &fds) == 1);
	check(reply.magic == PRIV_MAGIC && reply.seq == seq && reply.err <= 0);
	if (!is_whole)
		check(reply.err == -EBADMSG);
	check(priv_udp_count(&reply) == fds.n ||
		(reply.ifindex && fds.n == 1 && !priv_udp_count(&reply)));
	if (reply.err) {
		check(fds.n == 0);
		reply.seq = 0;
		reply.err = 0;
		check(!memcmp(&reply, &none, sizeof(reply)));
	}
	priv_fds_close(&fds);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	int before = lowest_free();
	struct bucket icmp = { 0 };
	uint8_t msg[2 * sizeof(struct priv_request)] = { 0 };
	uint32_t seq = 0;

	if (len <= CHOICE)
		return 0;
	if (len - CHOICE > sizeof(msg))
		len = CHOICE + sizeof(msg);
	memcpy(msg, data + CHOICE, len - CHOICE);
	if (data[CHOICE - 1] >= 128) {
		/* The rest is zeros, as most of a good one is. */
		len = CHOICE + sizeof(struct priv_request);
		memcpy(msg, &(uint32_t){ PRIV_MAGIC }, 4);
		memcpy(msg + 4, &(uint32_t){ 1 }, 4);
	}
	len -= CHOICE;
	send_any(msg, len, data);
	check(priv_answer(pair[1], &icmp) == 1);
	memcpy(&seq, msg + 4, len < 8 ? len > 4 ? len - 4 : 0 : 4);
	check_reply(seq, len == sizeof(struct priv_request));
	check(lowest_free() == before);
	return 0;
}

/* A TUN where that is allowed, else a device of another kind. */
static int open_tun(void)
{
	struct ifreq req = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd = unshare(CLONE_NEWNET) ? -1 : open("/dev/net/tun", O_RDWR | O_CLOEXEC);

	if (fd >= 0 && ioctl(fd, TUNSETIFF, &req) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return open("/dev/zero", O_RDONLY | O_CLOEXEC);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int unused[2];

	kinds[0] = open_tun();
	check(sandbox_drop_all() == 0);
	check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
	check(pipe2(unused, O_CLOEXEC) == 0);
	kinds[1] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	kinds[2] = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	kinds[3] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	kinds[4] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	kinds[5] = open("/dev/null", O_RDWR | O_CLOEXEC);
	kinds[6] = unused[0];
	kinds[7] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	for (int i = 0; i < KINDS; i++)
		check(kinds[i] >= 0);
	return 0;
}
