/* The TUN device: opening, and which offloads it has.
 *
 * Each offload is asked for by setting it (TUNSETOFFLOAD refuses a set with one
 * flag that it does not know), from the full set downwards, so that a kernel
 * without USO still gives TSO. See Linux Documentation/networking/tuntap.rst.
 *
 * A new interface is made with IFF_MULTI_QUEUE. That makes exclusion our own
 * business: the kernel would let a second gateway attach to it as one more queue
 * and take half of the flows, where a single-queue TUN says EBUSY.
 *
 * syscalls(start): open ioctl fcntl socket bind getsockname sendto recvmsg fstat stat close
 * syscalls: close */
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	TUN_USO = 0x20 | 0x40, /* TUN_F_USO4 | TUN_F_USO6, Linux 6.2 */
	TUN_TSO = TUN_F_TSO4 | TUN_F_TSO6,
	VNET_HDR = sizeof(struct virtio_net_hdr),
	TUN_OFFLOADS = OFFLOAD_VNET | OFFLOAD_CSUM | OFFLOAD_TSO | OFFLOAD_USO,
	/* Frames that wait in the TUN while we are not scheduled. The kernel's 500
	 * are 0.7 ms of small UDP packets at 700,000 a second, less than one time
	 * slice of whoever has the CPU; 2048 are 3 ms. */
	TXQ_DEFAULT = 500,
	TXQ_LEN = 2048,
	/* What fits into 1500 bytes beside IPv6, UDP and the message around it, as the
	 * kernel's WireGuard has it: an interface that nobody sets up more fits most paths. */
	MTU_NEW = 1500 - 40 - 8 - WGMSG_DATA_MIN,
};

static const struct {
	const char *name;
	unsigned bit;
} names[] = {
	{ "vnet", OFFLOAD_VNET },
	{ "csum", OFFLOAD_CSUM },
	{ "tso", OFFLOAD_TSO },
	{ "uso", OFFLOAD_USO },
	{ "udp-gso", OFFLOAD_UDP_GSO },
	{ "udp-gro", OFFLOAD_UDP_GRO },
};

unsigned offload_by_name(const char *name, size_t len)
{
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strlen(names[i].name) == len && !memcmp(names[i].name, name, len))
			return names[i].bit;
	return 0;
}

const char *offload_text(unsigned set, char out[64])
{
	size_t n = 0;

	out[0] = 0;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (set & names[i].bit)
			n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? " " : "", names[i].name);
	return out;
}

/* The best set that is both allowed and taken. */
static unsigned probe_offloads(int fd, unsigned allowed)
{
	static const struct {
		unsigned set, flags;
	} tries[] = {
		{ OFFLOAD_CSUM | OFFLOAD_TSO | OFFLOAD_USO, TUN_F_CSUM | TUN_TSO | TUN_USO },
		{ OFFLOAD_CSUM | OFFLOAD_TSO, TUN_F_CSUM | TUN_TSO },
		{ OFFLOAD_CSUM | OFFLOAD_USO, TUN_F_CSUM | TUN_USO },
		{ OFFLOAD_CSUM, TUN_F_CSUM },
	};

	for (size_t i = 0; i < ARRAY_LEN(tries); i++)
		if (!(tries[i].set & ~allowed) && !ioctl(fd, TUNSETOFFLOAD, tries[i].flags))
			return tries[i].set;
	/* A persistent interface may have kept what someone set before. */
	ioctl(fd, TUNSETOFFLOAD, 0);
	return 0;
}

static int set_offloads(struct tun *t, unsigned allowed, bool has_vnet)
{
	int len = VNET_HDR;

	t->offloads = 0;
	if (!has_vnet) {
		/* Without a vnet header nothing could say what is missing. */
		ioctl(t->fd, TUNSETOFFLOAD, 0);
		return 0;
	}
	if (ioctl(t->fd, TUNSETVNETHDRSZ, &len))
		return -errno;
	t->offloads = OFFLOAD_VNET | probe_offloads(t->fd, allowed);
	return 0;
}

/* What the driver says of an interface by netlink only. */
struct tun_info {
	unsigned n_queues; /* attached descriptors, of a multi-queue TUN */
	bool has_pi; /* four bytes before each packet */
};

static int on_data(const struct nlattr *attr, void *data)
{
	struct tun_info *info = data;

	switch (mnl_attr_get_type(attr)) {
	case IFLA_TUN_NUM_QUEUES:
		if (mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
			info->n_queues = mnl_attr_get_u32(attr);
		break;
	case IFLA_TUN_PI:
		if (mnl_attr_validate(attr, MNL_TYPE_U8) >= 0)
			info->has_pi = mnl_attr_get_u8(attr);
		break;
	}
	return MNL_CB_OK;
}

static int find_data(const struct nlattr *attr, void *data)
{
	if (mnl_attr_get_type(attr) != IFLA_INFO_DATA)
		return MNL_CB_OK;
	return mnl_attr_parse_nested(attr, on_data, data);
}

static int find_info(const struct nlattr *attr, void *data)
{
	if (mnl_attr_get_type(attr) != IFLA_LINKINFO)
		return MNL_CB_OK;
	return mnl_attr_parse_nested(attr, find_data, data);
}

static int on_link(const struct nlmsghdr *msg, void *data)
{
	mnl_attr_parse(msg, sizeof(struct ifinfomsg), find_info, data);
	return MNL_CB_STOP;
}

/* All zero where it cannot be known (another namespace, Linux before 4.17). */
static struct tun_info get_info(const char *name)
{
	struct mnl_socket *nl = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC);
	char buf[8192]; /* MNL_SOCKET_BUFFER_SIZE is no constant */
	struct nlmsghdr *msg = mnl_nlmsg_put_header(buf);
	struct tun_info info = { 0 };
	struct ifinfomsg *link;
	ssize_t len;

	if (!nl)
		return info;
	msg->nlmsg_type = RTM_GETLINK;
	msg->nlmsg_flags = NLM_F_REQUEST;
	link = mnl_nlmsg_put_extra_header(msg, sizeof(*link));
	link->ifi_family = AF_UNSPEC;
	mnl_attr_put_strz(msg, IFLA_IFNAME, name);
	if (!mnl_socket_bind(nl, 0, MNL_SOCKET_AUTOPID) &&
		mnl_socket_sendto(nl, msg, msg->nlmsg_len) > 0) {
		len = mnl_socket_recvfrom(nl, buf, sizeof(buf));
		if (len > 0)
			mnl_cb_run(buf, (size_t)len, 0, 0, on_link, &info);
	}
	mnl_socket_close(nl);
	return info;
}

/* A queue that somebody has set on purpose stays, as does the MTU of an interface that we
 * did not make. Failure costs bursts, and fragments. */
static void set_defaults(const struct tun *t, bool is_new)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq ifr = { 0 };

	if (fd < 0)
		return;
	memcpy(ifr.ifr_name, t->name, IFNAMSIZ);
	if (!ioctl(fd, SIOCGIFTXQLEN, &ifr) && ifr.ifr_qlen == TXQ_DEFAULT) {
		ifr.ifr_qlen = TXQ_LEN;
		ioctl(fd, SIOCSIFTXQLEN, &ifr);
	}
	ifr.ifr_mtu = MTU_NEW;
	if (is_new)
		ioctl(fd, SIOCSIFMTU, &ifr);
	close(fd);
}

static int attach(struct tun *t, const char *name, short flags)
{
	struct ifreq ifr = { .ifr_flags = flags };

	memcpy(ifr.ifr_name, name, strlen(name));
	if (ioctl(t->fd, TUNSETIFF, &ifr))
		return -errno;
	memcpy(t->name, ifr.ifr_name, IFNAMSIZ);
	return 0;
}

/* Make the interface, or else attach to one that was made persistent. */
static int make_or_attach(struct tun *t, const char *name, short flags, bool *is_new)
{
	int ret = attach(t, name, (short)(flags | IFF_MULTI_QUEUE | IFF_TUN_EXCL));

	*is_new = ret == 0;
	t->is_multi_queue = true;
	if (ret != -EBUSY)
		return ret;
	/* It exists. EINVAL here: it is multi-queue, or no TUN at all. */
	t->is_multi_queue = false;
	ret = attach(t, name, flags);
	if (ret != -EINVAL)
		return ret;
	if (get_info(name).n_queues)
		return -EBUSY;
	t->is_multi_queue = true;
	return attach(t, name, (short)(flags | IFF_MULTI_QUEUE));
}

int tun_open(struct tun *t, const char *name, unsigned allowed)
{
	bool has_vnet = allowed & OFFLOAD_VNET, is_new;
	int ret;

	memset(t, 0, sizeof(*t));
	t->fd = -1;
	if (strlen(name) >= IFNAMSIZ)
		return -ENAMETOOLONG;
	t->fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (t->fd < 0)
		return -errno;
	ret = make_or_attach(
		t, name, (short)(IFF_TUN | IFF_NO_PI | (has_vnet ? IFF_VNET_HDR : 0)), &is_new);
	if (ret)
		goto close_fd;
	ret = set_offloads(t, allowed, has_vnet);
	if (ret)
		goto close_fd;
	set_defaults(t, is_new);
	return 0;

close_fd:
	tun_close(t);
	return ret;
}

int tun_adopt(struct tun *t, int fd, unsigned allowed)
{
	struct ifreq ifr = { 0 };
	int flags, ret;

	memset(t, 0, sizeof(*t));
	t->fd = -1;
	if (ioctl(fd, TUNGETIFF, &ifr))
		return -errno;
	/* TAP has an Ethernet header. IFF_NO_PI does not tell: TUNGETIFF sets its bit
	 * (as IFF_NOFILTER) always. */
	if (!(ifr.ifr_flags & IFF_TUN) || get_info(ifr.ifr_name).has_pi)
		return -EINVAL;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	memcpy(t->name, ifr.ifr_name, IFNAMSIZ);
	t->is_multi_queue = ifr.ifr_flags & IFF_MULTI_QUEUE;
	t->fd = fd;
	/* The vnet header is there or not: `allowed` cannot take it away. */
	ret = set_offloads(t, allowed, ifr.ifr_flags & IFF_VNET_HDR);
	if (ret)
		t->fd = -1;
	return ret;
}

/* Is the interface where we are? TUNSETIFF looks there for its name, and would make a new one
 * of that name. Before Linux 5.2 there is no telling. */
static bool is_here(int fd)
{
	int ns = ioctl(fd, TUNGETDEVNETNS);
	struct stat its, ours;
	bool is_same;

	if (ns < 0)
		return true;
	is_same = fstat(ns, &its) || stat("/proc/self/ns/net", &ours) ||
		(its.st_dev == ours.st_dev && its.st_ino == ours.st_ino);
	close(ns);
	return is_same;
}

int tun_add_queue(const struct tun *t, int *fd)
{
	/* TUNSETIFF sets them for the whole interface, and IFF_NAPI for the queue. */
	const int kept = IFF_TUN | IFF_NAPI | IFF_VNET_HDR | IFF_MULTI_QUEUE;
	struct tun queue = { .fd = -1 };
	struct ifreq ifr = { 0 };
	int ret;

	*fd = -1;
	if (!t->is_multi_queue)
		return -EOPNOTSUPP;
	if (ioctl(t->fd, TUNGETIFF, &ifr))
		return -errno;
	if (!is_here(t->fd))
		return -EXDEV;
	queue.fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (queue.fd < 0)
		return -errno;
	ret = attach(&queue, ifr.ifr_name, (short)((ifr.ifr_flags & kept) | IFF_NO_PI));
	if (ret) {
		tun_close(&queue);
		return ret;
	}
	*fd = queue.fd;
	return 0;
}

void tun_close(struct tun *t)
{
	if (t->fd >= 0)
		close(t->fd);
	t->fd = -1;
}
