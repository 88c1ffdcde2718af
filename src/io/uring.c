/* The io_uring engine: one ring per engine, on which everything happens.
 *
 * Reading. Each channel has one request that goes on for ever (multishot RECVMSG, or
 * READ for frames): what comes is put into a buffer that the kernel takes from a ring of
 * ours, and told in the completion queue (CQ). A batch's buffers go back to that ring when the
 * next wait begins. A request ends when the kernel wants it so (no buffer left, an
 * error of the socket, no room in the CQ); it is armed anew with the next batch.
 * A buffer is: struct io_uring_recvmsg_out, name, control, payload.
 *
 * All completions pass through reap(), which sorts them: sends are ticked off, what was
 * read is kept, in order, until a wait takes it. So a send, which waits for its own completions,
 * loses nothing that comes meanwhile.
 *
 * Writing. The messages of a batch are one chain of linked requests: the next one
 * starts when the one before it is done, however that ended, so that order is kept also where
 * one has to wait for room. One io_uring_enter submits them and waits for all of them.
 * Not on the ring, but by plain system calls, go datagrams without SQPOLL (sendmmsg keeps the order
 * by itself, and a chain costs 160 ns a datagram more: 950 and 1110 ns for 64 bytes), and what goes
 * to a descriptor that is no channel: the ring's file table would hold it open after it was closed.
 *
 * Who works. By default the kernel does the work of requests when their owner
 * enters it to look (DEFER_TASKRUN): nothing interrupts the worker, and a flag in the ring
 * (TASKRUN) tells whether there is anything to enter for. With SQPOLL a thread of the
 * kernel does it all, and the worker makes no system call as long as there is
 * traffic: instead of blocking it looks at the CQ, for as long as that thread looks for requests.
 *
 * The ring is enabled by the first wait, since SINGLE_ISSUER binds it to the thread that does.
 * Before that it is given restrictions for good: a few opcodes, and only
 * descriptors in its table. So whoever takes over the process can do nothing by io_uring_enter
 * that the list of system calls (doc/sandbox.md) forbids. */
#include "io/io.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/rcu.h"
#include "io/send.h"
#include "io/spin.h"
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
	SQ_DEFAULT = 256,
	CQ_PER_SQ = 4,
	BUFFERS_DEFAULT = 128,
	BUFFERS_MAX = 1 << 15, /* the kernel's */
	NOTE_EVERY = 8, /* batches that come unasked, between looks at the clock */
	BATCH_BYTES = 256 * 1024, /* stop filling a batch beyond this */
	GROUP = 0, /* of buffers: the only one */
	SLOT_WAKE = IO_CHANNELS_MAX, /* in the file table, behind the channels */
	SLOTS,
	NAME_LEN = 32, /* room for a sockaddr_in6, and control stays aligned */
	HEAD_LEN = sizeof(struct io_uring_recvmsg_out) + NAME_LEN + IO_CONTROL_LEN,
	BUF_LEN = HEAD_LEN + IO_BUF_LEN,
	/* Buffers begin so far into a cache line that their payload begins with one. */
	BUF_OFFSET = 64 - HEAD_LEN % 64,
	/* Odd number of cache lines, so that the first lines of the buffers do not
	 * all fall into one set of the L1 cache. */
	BUF_STRIDE = 1029 * 64,
	PAUSES = 64, /* between looks at the clock, while the CQ is looked at */
};
#define SEND_SPIN (200 * NSEC_PER_MSEC / 1000) /* SQPOLL: look for completions before it blocks */
#define TIMEOUT_MAX (INT64_MAX / 4) /* more is for ever: the kernel adds the time of day */
static_assert(sizeof(struct sockaddr_in6) <= NAME_LEN, "name");
static_assert(HEAD_LEN % _Alignof(struct cmsghdr) == 0 && NAME_LEN % 16 == 0, "control");
static_assert(BUF_STRIDE >= BUF_LEN + BUF_OFFSET, "room");

/* Linux 6.7; the header of Debian 12 does not know it. */
enum { OP_READ_MULTISHOT = 49 };

/* What a completion belongs to: in the upper half of user_data; the lower: which. */
enum { OF_CHANNEL, OF_WAKE, OF_SEND };

struct channel {
	int fd; /* -1: free */
	enum io_kind kind;
	uint32_t tag;
	bool is_armed; /* its request is with the kernel, or on the way */
	struct msghdr hdr; /* of the request: lengths only */
};

/* Something that was read and waits to be taken. */
struct item {
	uint32_t len; /* of what is in the buffer */
	uint16_t buf;
	uint8_t channel;
	uint8_t kind;
	uint32_t tag;
};

struct engine {
	struct io_uring ring;
	bool is_sqpoll;
	bool is_enabled;
	bool has_read_multishot;
	bool is_wake_armed;
	bool wants_arm; /* something may not be armed */
	bool is_woken; /* by wake(), since a wait last told */
	uint32_t lost; /* tags, since a wait last told */
	int wakefd;
	uint64_t wake_count; /* read from wakefd */
	uint64_t sqpoll_spin_ns;
	/* SQPOLL's thread was woken for all before this; it takes a while, and needs it once. */
	unsigned woken_tail;
	unsigned since_note;
	unsigned first; /* channel that is armed first, turns round */
	struct channel ch[IO_CHANNELS_MAX];
	struct spin spin;
	struct io_tx *sending; /* by index of OF_SEND */
	size_t n_sending; /* not completed */

	struct arena arena;
	struct io_uring_buf_ring *bufs; /* what the kernel may fill */
	uint8_t *buf_base;
	unsigned n_bufs; /* a power of two */
	unsigned n_free; /* with the kernel */
	uint16_t buf_tail;
	uint16_t held[IO_BATCH_MAX]; /* by the batch under way */
	size_t n_held;
	struct item
		*items; /* read and not yet taken, a ring: each has a buffer, so it is never full */
	unsigned item_head, item_tail;
	struct msghdr hdr[IO_BATCH_MAX]; /* of the batch under way */
};

/* ---- The ring. */

/* Let the kernel see all requests; how many it has not taken. */
static unsigned publish(struct engine *e)
{
	struct io_uring_sq *sq = &e->ring.sq;

	if (sq->sqe_head != sq->sqe_tail) {
		sq->sqe_head = sq->sqe_tail;
		/* release: the requests are whole before SQPOLL's thread sees the tail */
		io_uring_smp_store_release(sq->ktail, sq->sqe_tail);
	}
	return sq->sqe_tail - io_uring_smp_load_acquire(sq->khead);
}

static unsigned flags_of(const struct engine *e)
{
	return IO_URING_READ_ONCE(*e->ring.sq.kflags);
}

/* Submit what there is, do the work of requests, wait for that many completions in the CQ. 0 or
 * negative errno (-ETIME, -EINTR, ...), after which all of it may have been done.
 * syscalls: io_uring_enter */
static int enter(struct engine *e, unsigned n_wait, int64_t timeout_ns)
{
	unsigned n = publish(e), flags = IORING_ENTER_GETEVENTS;
	struct __kernel_timespec ts = { .tv_sec = timeout_ns / (int64_t)NSEC_PER_SEC,
		.tv_nsec = timeout_ns % (int64_t)NSEC_PER_SEC };
	struct io_uring_getevents_arg arg = { .ts = (uintptr_t)&ts };
	int ret;

	if (timeout_ns < 0 || timeout_ns > TIMEOUT_MAX)
		arg.ts = 0;
	if (n_wait > 0)
		flags |= IORING_ENTER_EXT_ARG;
	if (e->is_sqpoll) {
		/* Its thread says that it sleeps, then looks once more; we publish, then look. */
		atomic_thread_fence(memory_order_seq_cst);
		if (flags_of(e) & IORING_SQ_NEED_WAKEUP) {
			flags |= IORING_ENTER_SQ_WAKEUP;
			e->woken_tail = e->ring.sq.sqe_tail;
		}
	}
	ret = io_uring_enter2(e->ring.ring_fd, n, n_wait, flags,
		n_wait > 0 ? (sigset_t *)(void *)&arg : NULL, n_wait > 0 ? sizeof(arg) : 0);
	return ret < 0 ? ret : 0;
}

/* Anything for which the kernel has to be entered before more can be found in the CQ? */
static bool wants_enter(struct engine *e)
{
	if (!e->is_sqpoll)
		return publish(e) || flags_of(e) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
	if (flags_of(e) & IORING_SQ_CQ_OVERFLOW)
		return true;
	if (!publish(e) || e->woken_tail == e->ring.sq.sqe_tail)
		return false;
	atomic_thread_fence(memory_order_seq_cst); /* see enter() */
	return flags_of(e) & IORING_SQ_NEED_WAKEUP;
}

/* Room for requests in the ring. */
static unsigned sq_room(const struct engine *e)
{
	const struct io_uring_sq *sq = &e->ring.sq;

	return sq->ring_entries - (sq->sqe_tail - io_uring_smp_load_acquire(sq->khead));
}

/* The next request, zeroed, for a slot of the file table; NULL: the ring is full. */
static struct io_uring_sqe *request(struct engine *e, uint8_t op, int slot, uint64_t data)
{
	struct io_uring_sqe *s = sq_room(e) ? io_uring_get_sqe(&e->ring) : NULL;

	if (!s)
		return NULL;
	memset(s, 0, sizeof(*s));
	s->opcode = op;
	s->flags = IOSQE_FIXED_FILE;
	s->fd = slot;
	s->user_data = data;
	return s;
}

/* ---- Buffers. */

static uint8_t *buffer(const struct engine *e, unsigned i)
{
	return e->buf_base + (size_t)i * BUF_STRIDE;
}

static void give_buffer(struct engine *e, uint16_t i)
{
	struct io_uring_buf *b = &e->bufs->bufs[e->buf_tail & (e->n_bufs - 1)];

	b->addr = (uintptr_t)buffer(e, i);
	b->len = BUF_LEN;
	b->bid = i;
	e->buf_tail++;
	e->n_free++;
}

/* The kernel may take what was given. */
static void publish_buffers(struct engine *e)
{
	/* release: the entries are whole before the tail is seen */
	io_uring_smp_store_release(&e->bufs->tail, e->buf_tail);
}

static void give_back_batch(struct engine *e)
{
	if (e->n_held == 0)
		return;
	for (size_t i = 0; i < e->n_held; i++)
		give_buffer(e, e->held[i]);
	e->n_held = 0;
	publish_buffers(e);
}

/* ---- Completions. */

/* What of the ends of a request means that the next one would end so, too. */
static bool is_lost(enum io_kind kind, int res)
{
	switch (-res) {
	case 0: /* of a datagram: it is empty; of a frame: the other end has gone */
		return kind == IO_FRAME;
	case EBADF:
	case EBADFD:
	case EINVAL:
	case ENODEV:
	case ENOTSOCK:
	case ENXIO:
	case ECONNABORTED: /* destroyed from outside (ss -K): its port may be gone */
		return true;
	default:
		return false;
	}
}

/* In the ring's own thread. syscalls: io_uring_register(IORING_REGISTER_FILES_UPDATE) */
static void free_slot(struct engine *e, struct channel *c)
{
	int none = -1;

	/* Cannot fail: the slot exists. */
	(void)io_uring_register_files_update(&e->ring, (unsigned)(c - e->ch), &none, 1);
	c->fd = -1;
}

static void take_read(struct engine *e, const struct io_uring_cqe *cqe)
{
	unsigned i = (uint32_t)cqe->user_data;
	struct channel *c = &e->ch[i];

	if (!(cqe->flags & IORING_CQE_F_MORE)) {
		c->is_armed = false;
		e->wants_arm = true;
	}
	if (cqe->flags & IORING_CQE_F_BUFFER) {
		uint16_t buf = (uint16_t)(cqe->flags >> IORING_CQE_BUFFER_SHIFT);

		e->n_free--;
		if (cqe->res > 0) {
			e->items[e->item_tail++ & (e->n_bufs - 1)] =
				(struct item){ .len = (uint32_t)cqe->res,
					.buf = buf,
					.channel = (uint8_t)i,
					.kind = (uint8_t)c->kind,
					.tag = c->tag };
			return;
		}
		give_buffer(e, buf);
		publish_buffers(e);
	}
	if (!c->is_armed && c->fd >= 0 && is_lost(c->kind, cqe->res)) {
		e->lost |= 1u << c->tag;
		free_slot(e, c);
	}
}

/* Sort all completions that there are. */
static void reap(struct engine *e)
{
	struct io_uring_cq *cq = &e->ring.cq;
	unsigned head = *cq->khead, tail = io_uring_smp_load_acquire(cq->ktail);

	for (; head != tail; head++) {
		const struct io_uring_cqe *cqe = &cq->cqes[head & cq->ring_mask];

		switch (cqe->user_data >> 32) {
		case OF_CHANNEL:
			take_read(e, cqe);
			break;
		case OF_WAKE:
			e->is_wake_armed = false;
			e->wants_arm = true;
			e->is_woken |= cqe->res > 0;
			break;
		default:
			e->sending[(uint32_t)cqe->user_data].err = cqe->res < 0 ? cqe->res : 0;
			e->n_sending--;
		}
	}
	/* release: read before the kernel writes there again */
	io_uring_smp_store_release(cq->khead, head);
}

/* ---- Arming. */

static bool arm_channel(struct engine *e, unsigned i)
{
	struct channel *c = &e->ch[i];
	bool is_frame = c->kind == IO_FRAME;
	uint8_t op = !is_frame		? IORING_OP_RECVMSG
		: e->has_read_multishot ? OP_READ_MULTISHOT
					: IORING_OP_READ;
	struct io_uring_sqe *s = request(e, op, (int)i, (uint64_t)OF_CHANNEL << 32 | i);

	if (!s)
		return false;
	s->flags |= IOSQE_BUFFER_SELECT;
	s->buf_group = GROUP;
	if (!is_frame) {
		s->addr = (uintptr_t)&c->hdr;
		s->len = 1;
		s->ioprio = IORING_RECV_MULTISHOT;
	} else if (!e->has_read_multishot) {
		s->len = BUF_LEN;
	}
	c->is_armed = true;
	return true;
}

/* Ask for what is not asked for. What finds no room in the ring has its turn next time. */
static void arm(struct engine *e)
{
	if (!e->wants_arm)
		return;
	if (!e->is_wake_armed) {
		struct io_uring_sqe *s =
			request(e, IORING_OP_READ, SLOT_WAKE, (uint64_t)OF_WAKE << 32);

		if (!s)
			return;
		s->addr = (uintptr_t)&e->wake_count;
		s->len = sizeof(e->wake_count);
		e->is_wake_armed = true;
	}
	if (e->n_free == 0)
		return;
	for (unsigned k = 0, start = e->first; k < IO_CHANNELS_MAX; k++) {
		unsigned i = (start + k) % IO_CHANNELS_MAX;

		if (e->ch[i].fd < 0 || e->ch[i].is_armed)
			continue;
		if (!arm_channel(e, i))
			return;
		/* With few buffers the first takes them all: each is the first in its turn. */
		e->first = (i + 1) % IO_CHANNELS_MAX;
	}
	e->wants_arm = false;
}

/* ---- Opening and closing. */

/* The flags that are good, or those that a kernel before 6.1 knows.
 * syscalls(start): io_uring_setup mmap munmap close */
static int open_ring(struct engine *e, const struct engine_config *cfg)
{
	unsigned n = cfg->ring_entries ? cfg->ring_entries : SQ_DEFAULT;
	unsigned common = IORING_SETUP_R_DISABLED | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP |
		IORING_SETUP_SUBMIT_ALL;
	unsigned flags[] = { common | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG,
		common | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG };
	int ret = -EINVAL;

	/* Without SINGLE_ISSUER, so that close_engine may cancel in any thread. */
	if (e->is_sqpoll)
		flags[0] = flags[1] = common | IORING_SETUP_SQPOLL;
	for (size_t i = 0; i < ARRAY_LEN(flags) && ret == -EINVAL; i++) {
		struct io_uring_params p = { .flags = flags[i],
			.sq_thread_idle = cfg->sqpoll_idle_ms,
			.cq_entries = n < UINT32_MAX / CQ_PER_SQ ? n * CQ_PER_SQ : UINT32_MAX };

		ret = io_uring_queue_init_params(n, &e->ring, &p);
		if (!ret && (~p.features & (IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP))) {
			io_uring_queue_exit(&e->ring);
			ret = -EOPNOTSUPP;
		}
	}
	/* Requests are submitted in their order in the ring. */
	for (unsigned i = 0; !ret && i < e->ring.sq.ring_entries; i++)
		e->ring.sq.array[i] = i;
	return ret;
}

/* syscalls(start): mmap munmap madvise io_uring_register */
static int init_buffers(struct engine *e, const struct engine_config *cfg)
{
	unsigned n = cfg->buffers ? cfg->buffers : BUFFERS_DEFAULT;
	size_t ring_len = (n * sizeof(struct io_uring_buf) + 4095) & ~(size_t)4095;
	struct io_uring_buf_reg reg = { .ring_entries = n, .bgid = GROUP };
	int ret;

	if (n > BUFFERS_MAX || n & (n - 1))
		return -EINVAL;
	e->n_bufs = n;
	e->items = calloc(n, sizeof(*e->items));
	if (!e->items)
		return -ENOMEM;
	ret = arena_init(&e->arena, ring_len + BUF_OFFSET + (size_t)n * BUF_STRIDE);
	if (ret)
		return ret;
	e->bufs = (void *)e->arena.base;
	e->buf_base = e->arena.base + ring_len + BUF_OFFSET;
	io_uring_buf_ring_init(e->bufs);
	reg.ring_addr = (uintptr_t)e->bufs;
	ret = io_uring_register_buf_ring(&e->ring, &reg, 0);
	if (ret)
		return ret;
	for (unsigned i = 0; i < n; i++)
		give_buffer(e, (uint16_t)i);
	publish_buffers(e);
	return 0;
}

/* From enable() on the ring does this and nothing else.
 * syscalls(start): io_uring_register */
static int restrict_ring(struct engine *e)
{
	struct io_uring_restriction r[] = {
		{ .opcode = IORING_RESTRICTION_REGISTER_OP,
			.register_op = IORING_REGISTER_ENABLE_RINGS },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP,
			.register_op = IORING_REGISTER_FILES_UPDATE },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP,
			.register_op = IORING_REGISTER_SYNC_CANCEL },
		{ .opcode = IORING_RESTRICTION_SQE_FLAGS_REQUIRED, .sqe_flags = IOSQE_FIXED_FILE },
		{ .opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED,
			.sqe_flags = IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT | IOSQE_IO_HARDLINK },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_RECVMSG },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_SENDMSG },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITEV },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = OP_READ_MULTISHOT }, /* last */
	};
	struct io_uring_probe *probe = io_uring_get_probe_ring(&e->ring);

	if (!probe)
		return -EOPNOTSUPP;
	e->has_read_multishot = io_uring_opcode_supported(probe, OP_READ_MULTISHOT);
	io_uring_free_probe(probe);
	/* liburing 2.3 does not export its own function for this. */
	return io_uring_register(e->ring.ring_fd, IORING_REGISTER_RESTRICTIONS, r,
		(unsigned)ARRAY_LEN(r) - !e->has_read_multishot);
}

/* syscalls(start): io_uring_register */
static int init_files(struct engine *e)
{
	int ret = io_uring_register_files_sparse(&e->ring, SLOTS);

	if (ret)
		return ret;
	ret = io_uring_register_files_update(&e->ring, SLOT_WAKE, &e->wakefd, 1);
	return ret < 0 ? ret : 0;
}

/* syscalls(start): eventfd close */
static int open_engine(struct engine **out, const struct engine_config *cfg)
{
	struct engine *e = calloc(1, sizeof(*e));
	int ret;

	if (!e)
		return -ENOMEM;
	e->is_sqpoll = cfg->sqpoll_idle_ms != 0;
	e->wants_arm = true;
	e->sqpoll_spin_ns = cfg->sqpoll_idle_ms * NSEC_PER_MSEC;
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++)
		e->ch[i].fd = -1;
	spin_init(&e->spin, clock_now_ns());
	e->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (e->wakefd < 0) {
		ret = -errno;
		goto free_engine;
	}
	ret = open_ring(e, cfg);
	if (ret)
		goto close_wakefd;
	ret = init_buffers(e, cfg);
	if (!ret)
		ret = init_files(e);
	if (!ret)
		ret = restrict_ring(e);
	if (ret)
		goto close_ring;
	*out = e;
	return 0;

close_ring:
	io_uring_queue_exit(&e->ring);
	if (e->arena.base)
		arena_fini(&e->arena);
	free(e->items);
close_wakefd:
	close(e->wakefd);
free_engine:
	free(e);
	return ret;
}

/* syscalls: io_uring_register(IORING_REGISTER_ENABLE_RINGS) */
static int enable(struct engine *e)
{
	/* As above. */
	int ret = io_uring_register(e->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);

	if (!ret)
		e->is_enabled = true;
	return ret;
}

/* Cancel a request: after this it has ended. Its buffers are not given back meanwhile, so
 * it does end, however much there is to read. false: this thread is not the ring's.
 * syscalls: io_uring_register(IORING_REGISTER_SYNC_CANCEL) */
static bool cancel(struct engine *e, uint64_t data, const bool *is_armed)
{
	struct io_uring_sync_cancel_reg reg = {
		.addr = data, .fd = -1, .timeout = { .tv_sec = 0, .tv_nsec = NSEC_PER_MSEC }
	};

	while (*is_armed) {
		int ret = enter(e, 0, 0);

		if (ret == -EEXIST || ret == -EBADF)
			return false;
		/* -ENOENT: it is being worked on, and will be found when it waits again. */
		(void)io_uring_register_sync_cancel(&e->ring, &reg);
		(void)enter(e, 1, NSEC_PER_MSEC);
		reap(e);
	}
	return true;
}

/* Where the thread that the ring belongs to has ended, the kernel has cancelled its requests.
 * The slots are emptied here: a ring that is closed with files in it lets go of them some 35 ms
 * later, also when the process has ended meanwhile. Only the ring's own thread can do that.
 * syscalls: close munmap */
static void close_engine(struct engine *e)
{
	if (!e)
		return;
	if (cancel(e, (uint64_t)OF_WAKE << 32, &e->is_wake_armed)) {
		for (unsigned i = 0; i < IO_CHANNELS_MAX; i++)
			if (cancel(e, (uint64_t)OF_CHANNEL << 32 | i, &e->ch[i].is_armed))
				free_slot(e, &e->ch[i]);
	}
	io_uring_queue_exit(&e->ring);
	close(e->wakefd);
	arena_fini(&e->arena);
	free(e->items);
	free(e);
}

/* ---- Channels. */

static struct channel *find(struct engine *e, int fd)
{
	for (unsigned i = 0; fd >= 0 && i < IO_CHANNELS_MAX; i++)
		if (e->ch[i].fd == fd)
			return &e->ch[i];
	return NULL;
}

/* A file that does not know how to be asked without waiting is asked by a
 * thread of the kernel's, unless O_NONBLOCK says that it does.
 * syscalls: fcntl(F_GETFL) fcntl(F_SETFL) */
static int set_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	return flags & O_NONBLOCK || !fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? 0 : -errno;
}

/* syscalls: io_uring_register(IORING_REGISTER_FILES_UPDATE) */
static int add(struct engine *e, const struct io_channel *new)
{
	if (new->order)
		return -EOPNOTSUPP;
	if (new->fd < 0)
		return -EBADF;
	if (find(e, new->fd))
		return -EEXIST;
	for (unsigned i = 0; i < IO_CHANNELS_MAX; i++) {
		struct channel *c = &e->ch[i];
		int fd = new->fd, ret;

		/* Lost ones: their last request may not have been told. */
		if (c->fd >= 0 || c->is_armed)
			continue;
		ret = new->kind == IO_FRAME ? set_nonblock(fd) : 0;
		if (ret)
			return ret;
		ret = io_uring_register_files_update(&e->ring, i, &fd, 1);
		if (ret < 0)
			return ret;
		*c = (struct channel){ .fd = new->fd,
			.kind = new->kind,
			.tag = new->tag,
			.hdr = { .msg_namelen = NAME_LEN, .msg_controllen = IO_CONTROL_LEN } };
		e->wants_arm = true;
		return 0;
	}
	return -ENOSPC;
}

/* Forget what was read from a channel. */
static void purge(struct engine *e, unsigned channel)
{
	unsigned to = e->item_head, mask = e->n_bufs - 1;

	for (unsigned from = to; from != e->item_tail; from++) {
		if (e->items[from & mask].channel == channel)
			give_buffer(e, e->items[from & mask].buf);
		else
			e->items[to++ & mask] = e->items[from & mask];
	}
	e->item_tail = to;
	publish_buffers(e);
}

static int drop(struct engine *e, int fd)
{
	struct channel *c = find(e, fd);
	unsigned i;

	if (!c)
		return -ENOENT;
	i = (unsigned)(c - e->ch);
	cancel(e, (uint64_t)OF_CHANNEL << 32 | i, &c->is_armed);
	purge(e, i);
	if (c->fd < 0) /* lost meanwhile: nobody need be told */
		e->lost &= ~(1u << c->tag);
	else
		free_slot(e, c);
	return 0;
}

/* ---- Waiting. */

/* Fill rx from a datagram's buffer. The kernel wrote it; lengths are checked all the same. */
static bool fill_datagram(struct io_rx *rx, struct msghdr *h, uint8_t *buf, uint32_t len)
{
	struct io_uring_recvmsg_out *out = (void *)buf;

	if (len < HEAD_LEN)
		return false;
	rx->data = buf + HEAD_LEN;
	rx->len = len - HEAD_LEN;
	if (out->payloadlen < rx->len)
		rx->len = out->payloadlen;
	rx->hdr = h;
	*h = (struct msghdr){
		.msg_name = buf + sizeof(*out),
		.msg_namelen = out->namelen < NAME_LEN ? out->namelen : NAME_LEN,
		.msg_control = buf + sizeof(*out) + NAME_LEN,
		.msg_controllen =
			out->controllen < IO_CONTROL_LEN ? out->controllen : IO_CONTROL_LEN,
		.msg_flags = (int)out->flags,
	};
	return true;
}

/* Move what was read to the batch. */
static void take(struct engine *e, struct io_batch *in)
{
	size_t bytes = 0;

	while (e->n_held < IO_BATCH_MAX && bytes < BATCH_BYTES && e->item_head != e->item_tail) {
		const struct item *it = &e->items[e->item_head++ & (e->n_bufs - 1)];
		struct io_rx *rx = &in->rx[in->n];
		uint8_t *buf = buffer(e, it->buf);

		e->held[e->n_held++] = it->buf;
		rx->tag = it->tag;
		if (it->kind == IO_DGRAM) {
			if (!fill_datagram(rx, &e->hdr[in->n], buf, it->len))
				continue;
		} else {
			rx->data = buf;
			rx->len = it->len;
			rx->hdr = NULL;
			spin_note_frame(&e->spin, it->len);
		}
		bytes += rx->len;
		in->n++;
	}
}

static bool has_news(const struct engine *e)
{
	return e->item_head != e->item_tail || e->is_woken || e->lost;
}

/* See what there is, without blocking. */
static void look(struct engine *e)
{
	reap(e);
	arm(e);
	if (wants_enter(e)) {
		(void)enter(e, 0, 0);
		reap(e);
	}
}

/* Look until something comes, as long as that pays.
 * syscalls: sched_yield */
static bool spin(struct engine *e, uint64_t start_ns)
{
	uint64_t now = start_ns, before;

	if (!spin_may(&e->spin, now))
		return false;
	do {
		rcu_quiescent();
		look(e);
		if (has_news(e))
			break;
		before = clock_now_ns();
		sched_yield();
		now = clock_now_ns();
	} while (spin_goes_on(start_ns, before, now));
	spin_pay(&e->spin, now - start_ns);
	return has_news(e);
}

/* The same with SQPOLL, for as long as the kernel's thread does it. Who asks for
 * that has the cores: there is no purse, and no call that gives way. */
static bool spin_sqpoll(struct engine *e, uint64_t start_ns, int64_t timeout_ns)
{
	uint64_t limit = e->sqpoll_spin_ns;

	if (timeout_ns >= 0 && (uint64_t)timeout_ns < limit)
		limit = (uint64_t)timeout_ns;
	do {
		rcu_quiescent();
		for (unsigned i = 0; i < PAUSES; i++) {
			look(e);
			if (has_news(e))
				return true;
			cpu_relax();
		}
	} while (clock_now_ns() - start_ns < limit);
	return false;
}

/* Before it blocks. What the last look took may have ended a request and brought nothing (a
 * pending error of a socket), and a tiny ring has no room for all: what is not asked for would
 * not end the wait. Is there news meanwhile? The loop ends: each turn has room for one at least,
 * and who fails again and again has the next wait. */
static bool arm_all(struct engine *e)
{
	arm(e);
	for (unsigned i = 0; e->wants_arm && i <= IO_CHANNELS_MAX; i++) {
		(void)enter(e, 0, 0);
		reap(e);
		if (has_news(e))
			return true;
		arm(e);
	}
	return false;
}

/* Nothing is there: spin, then block. */
static int wait_for_news(struct engine *e, uint64_t start_ns, int64_t timeout_ns)
{
	int ret;

	if (timeout_ns == 0)
		return 0;
	if (e->is_sqpoll ? spin_sqpoll(e, start_ns, timeout_ns) : spin(e, start_ns))
		return 0;
	if (arm_all(e))
		return 0;
	rcu_offline();
	ret = enter(e, 1, timeout_ns);
	rcu_online();
	reap(e);
	return ret == -ETIME || ret == -EINTR || ret == -EBUSY || ret == -EAGAIN ? 0 : ret;
}

static int finish(struct engine *e, struct io_batch *in)
{
	in->lost = e->lost;
	e->lost = 0;
	e->is_woken = false;
	return 0;
}

static int wait_batch(struct engine *e, struct io_batch *in, int64_t timeout_ns)
{
	uint64_t start;
	int ret;

	in->n = 0;
	in->lost = 0;
	in->order = NULL;
	if (!e->is_enabled) {
		ret = enable(e);
		if (ret)
			return ret;
	}
	give_back_batch(e);
	if (++e->since_note >= NOTE_EVERY) {
		e->since_note = 0;
		spin_note_work(&e->spin, clock_now_ns());
	}
	reap(e);
	arm(e);
	/* Without much to do, what came goes on at once; with much it is gathered. */
	if (e->item_head == e->item_tail ||
		(e->item_tail - e->item_head < IO_BATCH_MAX && spin_is_loaded(&e->spin)))
		look(e);
	take(e, in);
	if (in->n > 0 || e->is_woken || e->lost)
		return finish(e, in);
	start = clock_now_ns();
	spin_note_work(&e->spin, start);
	ret = wait_for_news(e, start, timeout_ns);
	if (ret)
		return ret;
	take(e, in);
	spin_note_wait(&e->spin, start, clock_now_ns(), in->n > 0);
	return finish(e, in);
}

/* ---- Sending. */

/* A chain of as many as the ring has room for. Returns how many. */
static size_t push_sends(struct engine *e, int slot, enum io_kind kind, size_t first, size_t end)
{
	struct io_uring_sqe *s, *last = NULL;
	size_t i = first;

	for (; i < end; i++) {
		struct io_tx *tx = &e->sending[i];

		s = request(e, kind == IO_DGRAM ? IORING_OP_SENDMSG : IORING_OP_WRITEV, slot,
			(uint64_t)OF_SEND << 32 | i);
		if (!s)
			break;
		if (kind == IO_DGRAM) {
			s->addr = (uintptr_t)&tx->hdr;
			s->len = 1;
			s->msg_flags = MSG_NOSIGNAL;
		} else {
			s->addr = (uintptr_t)tx->hdr.msg_iov;
			s->len = (uint32_t)tx->hdr.msg_iovlen;
		}
		s->flags |= IOSQE_IO_HARDLINK;
		last = s;
	}
	if (last)
		last->flags &= (uint8_t)~IOSQE_IO_HARDLINK;
	e->n_sending += i - first;
	return i - first;
}

/* Until all that was pushed has completed. */
static void wait_for_sends(struct engine *e)
{
	while (e->n_sending > 0) {
		if (!e->is_sqpoll) {
			/* Others' completions count, too: then it is called again. */
			(void)enter(e, (unsigned)e->n_sending, -1);
		} else if (wants_enter(e)) {
			(void)enter(e, 0, 0);
		} else {
			uint64_t start = clock_now_ns();
			size_t n = e->n_sending;

			do {
				for (unsigned i = 0; i < PAUSES && e->n_sending == n; i++) {
					cpu_relax();
					reap(e);
				}
			} while (e->n_sending == n && clock_now_ns() - start < SEND_SPIN);
			if (e->n_sending == n)
				(void)enter(e, 1, -1);
		}
		reap(e);
	}
}

static size_t send_batch(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	bool on_ring = e->is_enabled && (kind == IO_FRAME || e->is_sqpoll);
	struct channel *c = on_ring ? find(e, fd) : NULL;
	size_t n_sent = 0;

	if (!c)
		return send_messages(fd, kind, tx, n);
	e->sending = tx;
	for (size_t i = 0, k; i < n; i += k) {
		k = push_sends(e, (int)(c - e->ch), kind, i, n);
		if (k == 0)
			(void)enter(e, 0, 0);
		wait_for_sends(e);
		for (size_t m = i; m < i + k; m++) {
			/* One that the kernel would not even begin with takes its chain with it. */
			if (tx[m].err == -ECANCELED)
				send_messages(fd, kind, &tx[m], 1);
			n_sent += !tx[m].err;
		}
	}
	return n_sent;
}

/* syscalls: write */
static void wake(struct engine *e)
{
	uint64_t one = 1;

	if (write(e->wakefd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

/* ---- Does it work here? */

/* One datagram through a ring as open makes it. A pair of sockets, for there are
 * containers without a loopback device.
 * syscalls(start): socketpair send close */
static int probe(const struct engine_config *cfg)
{
	struct engine_config small = *cfg;
	struct engine *e;
	int fd[2], ret;

	small.buffers = 2;
	ret = open_engine(&e, &small);
	if (ret)
		return ret;
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, fd)) {
		ret = -errno;
		goto close_engine;
	}
	ret = add(e, &(struct io_channel){ .fd = fd[0], .kind = IO_DGRAM });
	if (!ret)
		ret = enable(e);
	if (ret)
		goto close_sockets;
	arm(e);
	if (send(fd[1], "x", 1, MSG_NOSIGNAL) != 1)
		ret = -errno;
	else
		ret = enter(e, 1, NSEC_PER_SEC);
	reap(e);
	/* It must go on after the first: that is what multishot means. */
	if (!ret && (e->item_head == e->item_tail || !e->ch[0].is_armed))
		ret = -EOPNOTSUPP;
close_sockets:
	close(fd[0]);
	close(fd[1]);
close_engine:
	close_engine(e);
	return ret;
}

const struct engine_ops uring_ops = {
	.name = "uring",
	.traits = ENGINE_OWN_CHANNELS,
	.probe = probe,
	.open = open_engine,
	.add = add,
	.drop = drop,
	.wait = wait_batch,
	.send = send_batch,
	.wake = wake,
	.close = close_engine,
};
