/* Three ways to sort.
 *
 * The steering program (steer.bpf.c) finds the sockets in its map, which are put there
 * first. It needs CAP_BPF, or before Linux 5.19 CAP_SYS_ADMIN, once more than loading it.
 *
 * Classic BPF needs no privilege. It answers with a socket's number in the group, and sees
 * the payload at offset 0 and the IP header at SKF_NET_OFF; the UDP header, behind the one
 * and in front of the other, is reached from the IP header. Types 1..3 go to the
 * handshake socket, all else by address and port of its sender. A load that fails is an
 * answer of 0: the first data socket.
 *
 * For one data socket the same without the second half, and where not even that is
 * taken the kernel's hash. */
#include "udp_sort.h"
#include "steer_shared.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- Classic BPF. */

enum {
	NET = SKF_NET_OFF,
	CODE_MAX = 32,
	MIX_IP = 0x9e3779b1, /* odd, with bits all over: multiplying spreads upwards */
	MIX_PORT = 0x85ebca6b,
	IPV4_SOURCE = 12, /* offsets in the IP header */
	IPV6_SOURCE = 8,
	IPV6_LEN = 40,
};

/* A program in the making. */
struct code {
	struct sock_filter op[CODE_MAX];
	unsigned short n;
};

static void put(struct code *c, unsigned op, uint32_t k)
{
	assert(c->n < CODE_MAX);
	c->op[c->n++] = (struct sock_filter)BPF_STMT((uint16_t)op, k);
}

/* Types 1..3 to the socket with this number; else on. */
static void put_handshakes(struct code *c, unsigned socket)
{
	put(c, BPF_LD | BPF_B | BPF_ABS, 0);
	c->op[c->n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, WGMSG_DATA, 2, 0);
	c->op[c->n++] =
		(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, WGMSG_INITIATION, 0, 1);
	put(c, BPF_RET | BPF_K, socket);
}

/* A = A * mix ^ the word at k */
static void put_word(struct code *c, uint32_t mix, uint32_t k)
{
	put(c, BPF_ALU | BPF_MUL | BPF_K, mix);
	put(c, BPF_MISC | BPF_TAX, 0);
	put(c, BPF_LD | BPF_W | BPF_ABS, k);
	put(c, BPF_ALU | BPF_XOR | BPF_X, 0);
}

/* By the sender's address and port to one of n. The UDP header is looked for right behind
 * an IPv6 header: where an extension header stands there instead, its bytes will do. */
static void put_spread(struct code *c, unsigned family, unsigned n)
{
	if (family == 0) {
		put(c, BPF_LDX | BPF_B | BPF_MSH, (uint32_t)NET);
		put(c, BPF_LD | BPF_H | BPF_IND, (uint32_t)NET);
		put_word(c, MIX_PORT, (uint32_t)NET + IPV4_SOURCE);
	} else {
		put(c, BPF_LD | BPF_H | BPF_ABS, (uint32_t)NET + IPV6_LEN);
		for (unsigned i = 0; i < 4; i++)
			put_word(c, MIX_PORT, (uint32_t)NET + IPV6_SOURCE + 4 * i);
	}
	put(c, BPF_ALU | BPF_MUL | BPF_K, MIX_IP);
	put(c, BPF_ALU | BPF_RSH | BPF_K, 16);
	put(c, BPF_ALU | BPF_MOD | BPF_K, n);
	put(c, BPF_RET | BPF_A, 0);
}

/* syscalls(run helper): setsockopt(SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF) */
static int sort_classic(const struct udp *u)
{
	for (unsigned i = 0; i < 2; i++) {
		struct code c = { .n = 0 };
		struct sock_fprog prog = { .filter = c.op };

		if (u->handshake[i] < 0)
			continue;
		put_handshakes(&c, u->n);
		if (u->n > 1)
			put_spread(&c, i, u->n);
		else
			put(&c, BPF_RET | BPF_K, 0);
		prog.len = c.n;
		if (setsockopt(u->data[i][0], SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &prog,
			    sizeof(prog)))
			return -errno;
	}
	return 0;
}

/* ---- The steering program. */

struct entry {
	uint32_t key, fd;
};

/* Room for an entry at the very end of what is mapped. The map was passed by a process that
 * may have been taken over: were its keys or values longer than ours, the kernel would go on
 * reading behind them, and put it where that process can read. So it meets nothing there.
 * syscalls(helper): mmap mprotect munmap */
static struct entry *entry_map(size_t page)
{
	char *room =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (room == MAP_FAILED)
		return NULL;
	if (mprotect(room + page, page, PROT_NONE)) {
		munmap(room, 2 * page);
		return NULL;
	}
	return (struct entry *)(room + page) - 1;
}

static void entry_unmap(struct entry *e, size_t page)
{
	munmap((char *)(e + 1) - page, 2 * page);
}

/* syscalls(helper): bpf(BPF_MAP_UPDATE_ELEM) */
static int put_socket(struct entry *e, int map, unsigned key, int fd)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	*e = (struct entry){ key, (uint32_t)fd };
	attr.map_fd = (uint32_t)map;
	attr.key = (uintptr_t)&e->key;
	attr.value = (uintptr_t)&e->fd;
	/* Those of an older set of sockets make room. */
	attr.flags = BPF_ANY;
	return syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof(attr)) ? -errno : 0;
}

static int put_sockets(const struct udp *u, int map)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct entry *e = entry_map(page);
	int ret = 0;

	if (!e)
		return -ENOMEM;
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned k = 0; !ret && k < u->n && u->data[i][k] >= 0; k++)
			ret = put_socket(e, map, i * STEER_ROW + k, u->data[i][k]);
		if (!ret && u->handshake[i] >= 0)
			ret = put_socket(e, map, i * STEER_ROW + STEER_WORKERS, u->handshake[i]);
	}
	entry_unmap(e, page);
	return ret;
}

/* syscalls(helper): setsockopt(SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF) */
static int sort_steered(const struct udp *u, const struct steer_fds *steer)
{
	int ret = put_sockets(u, steer->sockets);

	for (unsigned i = 0; !ret && i < 2; i++)
		if (u->data[i][0] >= 0 &&
			setsockopt(u->data[i][0], SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF,
				&steer->prog, sizeof(steer->prog)))
			ret = -errno;
	return ret;
}

int udp_sort(struct udp *u, const struct steer_fds *steer)
{
	u->is_steered = u->n > 1 && steer->prog >= 0 && !sort_steered(u, steer);
	return u->is_steered ? 0 : sort_classic(u);
}
