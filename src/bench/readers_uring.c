/* Reading by io_uring: a multishot receive stands on each socket, buffers come from a ring that
 * the kernel takes them from. A completion is one datagram; a call waits for completions. */
#include "bench/readers_child.h"
#include <errno.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#include <stdlib.h>

enum {
	ENTRIES = 1024, /* submissions: one for each socket at once */
	COMPLETIONS = 4 * ENTRIES,
	BUFFERS = 4096, /* a power of two */
	BUFFER_LEN = 1024,
	GROUP = 0,
};

struct ring {
	struct io_uring uring;
	struct io_uring_buf_ring *free; /* the kernel's to take */
	uint8_t *room;
};

static int open_buffers(struct ring *g)
{
	struct io_uring_buf_reg reg = { .ring_entries = BUFFERS, .bgid = GROUP };
	size_t len = BUFFERS * sizeof(struct io_uring_buf);
	int i, ret;

	if (posix_memalign((void **)&g->free, 4096, len) ||
		posix_memalign((void **)&g->room, 4096, (size_t)BUFFERS * BUFFER_LEN))
		return -ENOMEM;
	reg.ring_addr = (uint64_t)(uintptr_t)g->free;
	io_uring_buf_ring_init(g->free);
	ret = io_uring_register_buf_ring(&g->uring, &reg, 0);
	if (ret < 0)
		return ret;
	for (i = 0; i < BUFFERS; i++)
		io_uring_buf_ring_add(g->free, g->room + (size_t)i * BUFFER_LEN, BUFFER_LEN,
			(unsigned short)i, io_uring_buf_ring_mask(BUFFERS), i);
	io_uring_buf_ring_advance(g->free, BUFFERS);
	return 0;
}

static int open_ring(struct ring *g)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_CQSIZE,
		.cq_entries = COMPLETIONS,
	};
	int ret = io_uring_queue_init_params(ENTRIES, &g->uring, &p);

	return ret < 0 ? ret : open_buffers(g);
}

static void arm(struct ring *g, const struct reading *r, unsigned i)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&g->uring);

	while (!sqe) {
		io_uring_submit(&g->uring);
		sqe = io_uring_get_sqe(&g->uring);
	}
	io_uring_prep_recv_multishot(sqe, r->fd[i], NULL, 0, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = GROUP;
	sqe->user_data = i;
}

/* Take the datagram, give its buffer back; nth of the completions that are handled together. */
static int complete(struct ring *g, struct reading *r, const struct io_uring_cqe *cqe, int nth)
{
	unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
	uint8_t *buf = g->room + (size_t)id * BUFFER_LEN;

	if (!(cqe->flags & IORING_CQE_F_BUFFER)) {
		/* No buffer was free: that is no fault, the datagram waits in the socket. */
		if (cqe->res != -ENOBUFS)
			reading_take(r, (unsigned)cqe->user_data, NULL, -1);
		return 0;
	}
	reading_take(r, (unsigned)cqe->user_data, buf, cqe->res);
	io_uring_buf_ring_add(
		g->free, buf, BUFFER_LEN, (unsigned short)id, io_uring_buf_ring_mask(BUFFERS), nth);
	return 1;
}

static void handle_all(struct ring *g, struct reading *r)
{
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;
	int n_buffers = 0;

	io_uring_for_each_cqe(&g->uring, head, cqe)
	{
		n_buffers += complete(g, r, cqe, n_buffers);
		if (!(cqe->flags & IORING_CQE_F_MORE))
			arm(g, r, (unsigned)cqe->user_data);
		n++;
	}
	io_uring_buf_ring_advance(g->free, n_buffers);
	io_uring_cq_advance(&g->uring, n);
}

int reading_uring(struct reading *r)
{
	struct ring g = { 0 };
	unsigned i;
	int ret = open_ring(&g);

	if (ret < 0)
		return ret;
	for (i = 0; i < r->n_fds; i++)
		arm(&g, r, i);
	ret = io_uring_submit(&g.uring);
	if (ret < 0)
		return ret;
	reading_begun(r);
	for (;;) {
		io_uring_submit_and_wait(&g.uring, 1);
		handle_all(&g, r);
	}
}
#else
int reading_uring(struct reading *r)
{
	return -EOPNOTSUPP;
}
#endif
