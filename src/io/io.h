/* Engines: how a worker waits for, reads and writes batches. The door of src/io.
 *
 * An engine sees channels (a descriptor that yields datagrams or frames), never
 * the meaning of a packet. Its hooks are called once per batch. An engine
 * belongs to one worker thread; its wake hook alone may be called from any thread. */
#ifndef IO_IO_H
#define IO_IO_H

#include "base/compiler.h"
#include "base/turnstile.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum io_kind {
	IO_DGRAM, /* a socket: recvmmsg / sendmmsg */
	IO_FRAME, /* a TUN queue: one read or write a frame */
};

/* A descriptor that a worker reads, and may write. */
struct io_channel {
	int fd; /* stays the caller's */
	enum io_kind kind;
	uint32_t tag; /* comes back with what is read; below 32 */
	/* Other engines read this descriptor too: in whose turn what it gave may go on.
	 * NULL: it is this engine's alone. */
	struct turnstile *order;
};
/* Who shares a descriptor, and drops it while the others go on: what woke this engine alone and
 * was not read waits for the next message, or for a wake() of another. */

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
	/* Channels that can no longer be read (descriptor closed, socket shut down, device gone),
	 * a bit for each tag: dropped by the engine, and told once. Also where n is 0.
	 * Nothing in the kernel tells an engine that its descriptor was closed. It is noticed
	 * by the next read or send that fails, in the wait after a wake(), and within a second
	 * or so by an engine that has something to do; one that sleeps sleeps on. Until
	 * then, where the number is another file's by now, that one is read. So drop() it
	 * before it is closed; this is for the day when somebody did not. */
	uint32_t lost;
	/* Not NULL: all of the batch was read from one shared channel, n > 0. Before anything
	 * that follows from it leaves: turnstile_enter(order, ticket); when all has left, or was
	 * dropped: turnstile_leave. Exactly once each, before the next wait(). */
	struct turnstile *order;
	uint64_t ticket;
	struct io_rx rx[IO_BATCH_MAX];
};

/* One message to be sent; hdr.msg_iov is set, for datagrams name and control too. */
struct io_tx {
	struct msghdr hdr;
	int err; /* after send: 0 or negative errno */
};

struct engine;

struct engine_config {
	/* uring: not 0: a thread of the kernel's takes what is submitted (SQPOLL), and sleeps
	 * after so many milliseconds without. */
	unsigned sqpoll_idle_ms;
	/* uring: places in the submission ring, 0: as many as are good. The completion ring
	 * has four times as many. For tests: a tiny ring must work too. */
	unsigned ring_entries;
	unsigned buffers; /* uring: receive buffers, a power of two; 0: as many as are good */
};

/* What an engine wants of whoever gives it channels. */
enum engine_trait {
	ENGINE_OWN_CHANNELS = 1 << 0, /* with several workers: a socket and a TUN queue for each */
	ENGINE_ONE_CHANNEL = 1 << 1, /* takes one channel to read: a thread for each */
};

struct engine_ops {
	const char *name;
	unsigned traits; /* of enum engine_trait */
	/* Does this kernel and sandbox allow it? Tried by doing. 0 or negative errno. */
	int (*probe)(const struct engine_config *cfg);
	/* In any thread; from the first wait() on the engine belongs to the thread that waits. */
	int (*open)(struct engine **out, const struct engine_config *cfg);
	/* Before the first wait(), in any thread; later its own. May change whether the descriptor
	 * blocks (O_NONBLOCK). */
	int (*add)(struct engine *e, const struct io_channel *c);
	/* Before the descriptor is closed. Nothing is read from it or written to it after. Where it
	 * was lost (io_batch.lost) already: -ENOENT. */
	int (*drop)(struct engine *e, int fd);
	/* Wait at most timeout_ns (-1: for ever) and fill the batch; n may be 0
	 * after a wake-up or time-out. The calling thread is
	 * an RCU reader (base/rcu.h); it is offline while it blocks. */
	int (*wait)(struct engine *e, struct io_batch *in, int64_t timeout_ns);
	/* Send n messages to one descriptor, in order; each err is set. Returns how
	 * many went out. May wait for room in a socket. The descriptor need not be one of the
	 * engine's channels. */
	size_t (*send)(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n);
	/* End a wait() from any thread, or the next one. `blocking` waits until that has been
	 * noticed. */
	void (*wake)(struct engine *e);
	void (*close)(struct engine *e);
};

/* Does a read or send that failed with this negative errno say that the descriptor will never
 * give anything again: closed (or its number is another's now), interface gone? */
bool io_is_lost(int err);

extern const struct engine_ops epoll_ops;
extern const struct engine_ops blocking_ops; /* a thread sleeps in the read of one channel */
extern const struct engine_ops
	channels_ops; /* epoll, with descriptors of its own for each worker */

/* io_uring. Where it was built without liburing probe() gives -EOPNOTSUPP. */
extern const struct engine_ops uring_ops;

/* The engine of that name, or the best that probe() allows for "auto". 0;
 * -EINVAL unknown name; the probe's error when a named one is refused. */
MUST_CHECK int engine_pick(
	const struct engine_ops **out, const char *name, const struct engine_config *cfg);
/* The names, one after another, NULL-terminated. */
extern const struct engine_ops *const engines[];

#endif
