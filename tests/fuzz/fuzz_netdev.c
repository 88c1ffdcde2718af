/* Route netlink messages, as netdev.c and route_mtus.c take them in, from an allocation of
 * their exact size. The kernel is trusted, its lengths are not.
 *
 * The first byte says what the messages find: 1 the interface is known, 2 a dump was
 * asked for, 4 the first message is an answer to us. Of netdev.c the loop over one datagram
 * is wanted, which is not behind the door: hence the include. */
#include "link/netdev.c" /* NOLINT */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { IFINDEX = 5 };

static void check(bool is_right)
{
	if (!is_right)
		abort();
}

static void check_mtus(const struct wg_mtus *m)
{
	check(m->n <= WG_MTUS_MAX);
	for (int i = 0; i < m->n; i++)
		check(m->mtu[i] > (i ? m->mtu[i - 1] : 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct netdev d = { .tun_fd = -1, .epfd = -1, .routes.timer = -1 };
	struct news n = { .d = &d };
	uint8_t how, *buf;

	if (len < 1)
		return 0;
	how = data[0];
	buf = malloc(--len ? len : 1);
	memcpy(buf, data + 1, len);
	d.nl = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC);
	check(d.nl && mnl_socket_bind(d.nl, 0, MNL_SOCKET_AUTOPID) == 0);
	d.ifindex = how & 1 ? IFINDEX : 0;
	if (how & 2) {
		d.routes.family = AF_INET;
		d.routes.is_asked = true;
		d.routes.seq = 1;
	}
	if (how & 4 && len >= sizeof(struct nlmsghdr)) {
		struct nlmsghdr *msg = (struct nlmsghdr *)buf;

		msg->nlmsg_pid = mnl_socket_get_portid(d.nl);
		msg->nlmsg_seq = 1;
	}
	take_messages(&n, buf, len);
	check_mtus(&d.routes.now);
	check_mtus(&d.routes.found);
	check(d.ifindex == 0 || d.ifindex == IFINDEX || !(how & 1));
	mnl_socket_close(d.nl);
	free(buf);
	return 0;
}
