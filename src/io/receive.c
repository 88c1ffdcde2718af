#include "io/receive.h"
#include <errno.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	/* Odd number of cache lines, so that the first lines of the buffers do not
	 * all fall into one set of the L1 cache. */
	BUF_STRIDE = IO_BUF_LEN + 64 * 4,
};
static_assert(BUF_STRIDE % 64 == 0 && BUF_STRIDE / 64 % 2 == 1, "stagger");

int receive_init(struct receive *r)
{
	int ret = arena_init(&r->arena, (size_t)IO_BATCH_MAX * BUF_STRIDE);

	if (ret)
		return ret;
	for (unsigned i = 0; i < IO_BATCH_MAX; i++) {
		struct msghdr *h = &r->msg[i].msg_hdr;

		r->iov[i].iov_base = r->arena.base + (size_t)i * BUF_STRIDE;
		r->iov[i].iov_len = IO_BUF_LEN;
		h->msg_iov = &r->iov[i];
		h->msg_iovlen = 1;
		h->msg_name = &r->name[i];
		h->msg_control = r->control[i];
	}
	return 0;
}

void receive_fini(struct receive *r)
{
	arena_fini(&r->arena);
}

static struct io_rx *push(struct receive *r, struct io_batch *in, uint32_t tag, size_t len)
{
	struct io_rx *rx = &in->rx[in->n];

	rx->data = r->iov[in->n].iov_base;
	rx->len = (uint32_t)len;
	rx->tag = tag;
	rx->hdr = NULL;
	in->n++;
	return rx;
}

/* syscalls: recvmmsg */
int receive_datagrams(
	struct receive *r, struct io_batch *in, int fd, uint32_t tag, unsigned want, int flags)
{
	size_t first = in->n;
	int n;

	assert(want > 0 && first + want <= IO_BATCH_MAX);
	for (size_t i = first; i < first + want; i++) {
		r->msg[i].msg_hdr.msg_namelen = sizeof(r->name[i]);
		r->msg[i].msg_hdr.msg_controllen = sizeof(r->control[i]);
	}
	n = recvmmsg(fd, &r->msg[first], want, flags, NULL);
	if (n <= 0)
		return n < 0 ? -errno : -EAGAIN;
	for (size_t i = first; i < first + (size_t)n; i++)
		push(r, in, tag, r->msg[i].msg_len)->hdr = &r->msg[i].msg_hdr;
	return n;
}

/* syscalls: read preadv2 */
ssize_t receive_frame(struct receive *r, struct io_batch *in, int fd, uint32_t tag, bool nowait)
{
	struct iovec *iov = &r->iov[in->n];
	ssize_t len;

	/* -1: no offset, as read. */
	if (nowait)
		len = preadv2(fd, iov, 1, -1, RWF_NOWAIT);
	else
		len = read(fd, iov->iov_base, iov->iov_len);
	if (len < 0)
		return -errno;
	if (len > 0)
		push(r, in, tag, (size_t)len);
	return len;
}

unsigned receive_depth(const struct io_batch *in, unsigned n)
{
	size_t bytes = 0;

	for (size_t i = in->n - n; i < in->n; i++)
		bytes += in->rx[i].len;
	return bytes / n >= TRAIN_BYTES ? TRAINS_PER_BATCH : IO_BATCH_MAX;
}

/* syscalls: poll */
bool receive_is_shut(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLNVAL);
}

bool io_is_lost(int err)
{
	switch (-err) {
	case EBADF: /* closed */
	case ENOTSOCK: /* closed, and the number is a file's now */
	case EISDIR:
	case EBADFD: /* TUN: the interface is gone */
	case ENODEV:
	case ENXIO:
	case ECONNABORTED: /* destroyed from outside (ss -K): its port may be gone */
		return true;
	default:
		return false;
	}
}
