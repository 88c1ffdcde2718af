#include "io/send.h"
#include <errno.h>
#include <sys/uio.h>

/* sendmmsg takes an array of io_tx as it is. */
static_assert(sizeof(struct io_tx) == sizeof(struct mmsghdr), "io_tx stands in for mmsghdr");
static_assert(offsetof(struct io_tx, err) == offsetof(struct mmsghdr, msg_len), "io_tx");

/* syscalls: sendmmsg */
static size_t send_datagrams(int fd, struct io_tx *tx, size_t n)
{
	size_t i = 0, n_sent = 0;

	while (i < n) {
		int done = sendmmsg(fd, (struct mmsghdr *)&tx[i], (unsigned)(n - i), MSG_NOSIGNAL);

		if (done < 0) {
			if (errno == EINTR)
				continue;
			tx[i++].err = -errno;
			continue;
		}
		for (int k = 0; k < done; k++)
			tx[i + (size_t)k].err = 0;
		i += (size_t)done;
		n_sent += (size_t)done;
	}
	return n_sent;
}

/* syscalls: writev */
static size_t send_frames(int fd, struct io_tx *tx, size_t n)
{
	size_t n_sent = 0;

	for (size_t i = 0; i < n;) {
		ssize_t len = writev(fd, tx[i].hdr.msg_iov, (int)tx[i].hdr.msg_iovlen);

		if (len < 0 && errno == EINTR)
			continue;
		tx[i++].err = len < 0 ? -errno : 0;
		n_sent += len >= 0;
	}
	return n_sent;
}

size_t send_messages(int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	return kind == IO_DGRAM ? send_datagrams(fd, tx, n) : send_frames(fd, tx, n);
}
