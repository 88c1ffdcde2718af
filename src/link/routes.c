/* Notices that routes or addresses change, not how: whoever remembered a source
 * address asks the kernel anew. */
#include "link.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

/* syscalls(start): socket bind close */
int routes_open(void)
{
	struct sockaddr_nl addr = { .nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_IFADDR |
			RTMGRP_IPV6_IFADDR };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	int ret;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

/* syscalls: recv */
bool routes_drain(int fd)
{
	bool is_changed = false;
	char buf[8192];
	ssize_t len;

	/* ENOBUFS: more happened than the socket could hold. Cut messages will do. */
	while ((len = recv(fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_TRUNC)) > 0 ||
		(len < 0 && (errno == ENOBUFS || errno == EINTR)))
		is_changed = true;
	return is_changed;
}
