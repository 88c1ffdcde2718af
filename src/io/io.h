/* Engines: how a worker waits for, reads and writes batches. The door of src/io.
 *
 * An engine sees channels (a descriptor that yields datagrams or frames), never
 * the meaning of a packet. Its hooks are called once per batch. An engine
 * belongs to one worker thread; its wake hook alone may be called from any thread. */
#ifndef IO_IO_H
#define IO_IO_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum io_kind {
	IO_DGRAM, /* a socket: recvmmsg / sendmmsg */
	IO_FRAME, /* a TUN queue: one read or write a frame */
};

enum {
	IO_CHANNELS_MAX = 16, /* per engine; full: -ENOSPC */
	IO_BATCH_MAX = 64, /* messages per batch */
	IO_BUF_LEN = 65536 + 64, /* room for one message: the longest train or frame */
	IO_CONTROL_LEN = 128, /* room for ancillary data */
};

/* One received message: the engine's until the next wait. data may be changed
 * in place and has IO_BUF_LEN bytes of room. */
struct io_rx {
	uint8_t *data;
	uint32_t len;
	uint32_t tag; /* as given to add(): which channel */
	struct msghdr *hdr; /* datagrams: name, control, flags; NULL for frames */
};

struct io_batch {
	size_t n;
	struct io_rx rx[IO_BATCH_MAX];
};

/* One message to be sent; hdr.msg_iov is set, for datagrams name and control too. */
struct io_tx {
	struct msghdr hdr;
	int err; /* after send: 0 or negative errno */
};

struct engine;

struct engine_ops {
	const char *name;
	/* Does this kernel and sandbox allow it? Tried by doing. 0 or negative errno. */
	int (*probe)(void);
	int (*open)(struct engine **out);
	/* tag comes back in io_rx.tag. The descriptor stays the caller's. */
	int (*add)(struct engine *e, int fd, enum io_kind kind, uint32_t tag);
	/* Before the descriptor is closed. */
	int (*drop)(struct engine *e, int fd);
	/* Wait at most timeout_ns (-1: for ever) and fill the batch; n may be 0
	 * after a wake-up or time-out. The calling thread is
	 * an RCU reader (base/rcu.h); it is offline while it blocks. */
	int (*wait)(struct engine *e, struct io_batch *in, int64_t timeout_ns);
	/* Send n messages to one descriptor, in order; each err is set. Returns how
	 * many went out. May wait for room in a socket. */
	size_t (*send)(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n);
	/* End a wait() from any thread. */
	void (*wake)(struct engine *e);
	void (*close)(struct engine *e);
};

extern const struct engine_ops epoll_ops;

/* The engine of that name, or the best that probe() allows for "auto". 0;
 * -EINVAL unknown name; the probe's error when a named one is refused. */
MUST_CHECK int engine_pick(const struct engine_ops **out, const char *name);
/* The names, one after another, NULL-terminated. */
extern const struct engine_ops *const engines[];

#endif
