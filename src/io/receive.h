/* Room for a batch, and how it is filled by the engines that read with a system call. One
 * engine's, in its thread. */
#ifndef IO_RECEIVE_H
#define IO_RECEIVE_H

#include "base/arena.h"
#include "io/io.h"

enum {
	BATCH_BYTES = 256 * 1024, /* of frames: stop filling a batch beyond this */
	TRAIN_BYTES = 8 * 1024, /* mean message length that counts as trains */
	TRAINS_PER_BATCH = 4,
};

struct receive {
	struct arena arena;
	struct mmsghdr msg[IO_BATCH_MAX];
	struct iovec iov[IO_BATCH_MAX];
	struct sockaddr_storage name[IO_BATCH_MAX];
	_Alignas(struct cmsghdr) uint8_t control[IO_BATCH_MAX][IO_CONTROL_LEN];
};

/* 0 or negative errno. */
MUST_CHECK int receive_init(struct receive *r);
void receive_fini(struct receive *r);

/* recvmmsg of up to want messages, with these flags, to the end of the batch. Returns how many
 * came, > 0, or negative errno. */
MUST_CHECK int receive_datagrams(
	struct receive *r, struct io_batch *in, int fd, uint32_t tag, unsigned want, int flags);
/* One frame to the end of the batch, which has room. nowait: does not wait, although the
 * descriptor does (Linux 4.14; -EOPNOTSUPP: the driver cannot). Returns its length, > 0; 0 at
 * the end of the file; or negative errno. */
MUST_CHECK ssize_t receive_frame(
	struct receive *r, struct io_batch *in, int fd, uint32_t tag, bool nowait);

/* How many datagrams to ask for after a batch whose newest n are these: few trains, so that a
 * batch stays in the L2 cache. */
unsigned receive_depth(const struct io_batch *in, unsigned n);

/* Was the socket shut down? Then it is at its end for ever. A system call. */
bool receive_is_shut(int fd);

#endif
