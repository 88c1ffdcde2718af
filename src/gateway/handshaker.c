/* See handshaker.h. One round: judge what the sockets and the workers' queue hold
 * (cheap: wg_admit_handshake), take some of what was admitted (X25519), run the
 * timers, sleep until the next of them. So a flood is thinned out as fast as it can be
 * read, and those whom it is to keep out wait in a queue of their own. */
#include "gateway/handshaker.h"
#include "base/clock.h"
#include "base/log.h"
#include <errno.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	RX_MAX = 32, /* datagrams, or trains of them, per system call */
	JUDGE_MAX = 1024, /* messages judged per socket and round, about: some 2 ms */
	QUEUE_MAX = 64, /* messages of the workers' queue per round */
	TAKE_MAX = 16, /* handshakes per round: some 3 ms */
	NICE = 5,
	/* AF41 (RFC 2597), as Linux: HANDSHAKE_DSCP. */
	TOS_HANDSHAKE = 0x88,
	SLEEP_MAX_MS = 1000, /* wg_poll wants to be called once a second */
	/* A socket is under load from an eighth of its room on, as Linux's queue is. */
	LOAD_PART = 8,
	/* Admitted messages: a tenth of a second's work is load, and as many as come
	 * at once when 10,000 clients lose their server find room. Full: the message is
	 * dropped and counted. */
	ADMITTED_LOAD = 512,
	ADMITTED_MAX = 16384,
};

/* Who gets no answer sends a new initiation after 5 s (REKEY_TIMEOUT) and takes no answer
 * to the former any more. In a burst of more than 5 s' work, answering what is
 * older would be all that we ever do. */
#define ADMITTED_AGE_MAX (4 * NSEC_PER_SEC)

struct admitted {
	struct handshake_item item;
	uint64_t since_ns;
};

struct rx {
	struct mmsghdr hdr[RX_MAX];
	struct iovec iov[RX_MAX];
	struct sockaddr_storage name[RX_MAX];
	struct {
		_Alignas(struct cmsghdr) uint8_t bytes[IO_CONTROL_LEN];
	} control[RX_MAX];
	uint8_t buf[RX_MAX][IO_BUF_LEN]; /* touched as far as messages are long */
};

struct handshaker {
	void (*lost)(void *ctx);
	void *lost_ctx;
	struct queue *queue;
	struct queue admitted; /* of struct admitted; ours alone */
	struct wg *wg;
	int wakefd;
	pthread_t thread;
	bool is_started;
	_Atomic bool is_stopping;
	_Atomic bool is_awake; /* a wake-up is on its way already */

	pthread_mutex_t send_lock; /* guards udp; taken with the device's lock held */
	struct udp udp;

	/* handed from the control thread to ours */
	_Atomic bool has_new_sockets;
	int new_sock[2];
	int sock[2]; /* ours */

	struct rx rx;
};

/* syscalls(start): eventfd */
int handshaker_create(
	struct handshaker **out, struct queue *queue, void (*lost)(void *ctx), void *ctx)
{
	/* Aligned as the queue in it is. What is cleared is not the receive buffers. */
	struct handshaker *h = aligned_alloc(_Alignof(struct handshaker), sizeof(*h));
	int ret;

	if (!h)
		return -ENOMEM;
	memset(h, 0, offsetof(struct handshaker, rx));
	h->lost = lost;
	h->lost_ctx = ctx;
	h->queue = queue;
	h->sock[0] = h->sock[1] = -1;
	udp_init(&h->udp);
	ret = queue_init(&h->admitted, ADMITTED_MAX, sizeof(struct admitted));
	if (ret)
		goto free_all;
	h->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (h->wakefd < 0) {
		ret = -errno;
		goto fini_queue;
	}
	pthread_mutex_init(&h->send_lock, NULL);
	*out = h;
	return 0;

fini_queue:
	queue_fini(&h->admitted);
free_all:
	free(h);
	return ret;
}

/* syscalls: close */
void handshaker_destroy(struct handshaker *h)
{
	if (!h)
		return;
	handshaker_stop(h);
	close(h->wakefd);
	queue_fini(&h->admitted);
	pthread_mutex_destroy(&h->send_lock);
	free(h);
}

/* syscalls: write */
void handshaker_wake(struct handshaker *h)
{
	uint64_t one = 1;

	if (atomic_exchange(&h->is_awake, true))
		return;
	if (write(h->wakefd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

void handshaker_send(struct handshaker *h, const struct wg_endpoint *to, const uint8_t *msg,
	size_t len, enum wg_msg_kind kind)
{
	bool is_handshake = kind == WG_MSG_HANDSHAKE;
	int ret;

	pthread_mutex_lock(&h->send_lock);
	ret = udp_send_one(&h->udp, is_handshake, to, msg, len, is_handshake ? TOS_HANDSHAKE : 0);
	pthread_mutex_unlock(&h->send_lock);
	if (ret)
		log_line(LOG_DEBUG, "cannot send: %s", strerror(-ret));
}

/* Is the socket's queue filled to an eighth?
 * syscalls: getsockopt */
static bool is_filled(int fd)
{
	uint32_t mem[SK_MEMINFO_VARS];
	socklen_t len = sizeof(mem);

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, mem, &len))
		return false;
	return mem[SK_MEMINFO_RMEM_ALLOC] >= mem[SK_MEMINFO_RCVBUF] / LOAD_PART;
}

static void note_refusal(enum wg_drop why)
{
	if (why)
		log_line(LOG_DEBUG, "handshake message refused: %s", wg_drop_text(why));
}

static bool is_backed_up(const struct handshaker *h)
{
	return queue_len(&h->admitted) >= ADMITTED_LOAD;
}

static void judge(struct handshaker *h, const struct handshake_item *item, bool is_loaded)
{
	struct admitted a = { *item, clock_now_ns() };
	enum wg_drop why;

	/* A cookie reply costs a look-up, rarely more, and anybody can send one: it has no
	 * place in the queue of those who have shown something. */
	if (wgmsg_gate(item->msg, item->len) == WGMSG_COOKIE) {
		note_refusal(wg_take_handshake(
			h->wg, item->msg, item->len, &item->from, a.since_ns, clock_wall_ns()));
		return;
	}
	why = wg_admit_handshake(h->wg, item->msg, item->len, &item->from,
		is_loaded || is_backed_up(h), a.since_ns, clock_wall_ns());
	if (why)
		note_refusal(why);
	else if (!queue_push(&h->admitted, &a))
		wg_drop(h->wg, WG_DROP_QUEUE, 1);
}

/* Returns how many messages it held. */
static unsigned judge_datagram(struct handshaker *h, unsigned i, bool is_loaded)
{
	struct mmsghdr *m = &h->rx.hdr[i];
	struct io_rx rx = { .data = h->rx.buf[i], .len = m->msg_len, .hdr = &m->msg_hdr };
	struct handshake_item item;
	struct udp_rx u;
	unsigned n = 0;
	uint32_t len;

	if (!udp_rx_parse(&u, &rx)) {
		wg_drop(h->wg, WG_DROP_TYPE, 1);
		return 1;
	}
	for (uint32_t at = 0; at < rx.len; at += len, n++) {
		len = rx.len - at < u.seg_len ? rx.len - at : u.seg_len;
		if (len > sizeof(item.msg)) {
			wg_drop(h->wg, WG_DROP_TYPE, 1);
			continue;
		}
		item.from = u.from;
		item.len = (uint8_t)len;
		memcpy(item.msg, rx.data + at, len);
		judge(h, &item, is_loaded);
	}
	return n;
}

/* Datagrams read, 0: none is left; or negative errno: there will be none. syscalls: recvmmsg */
static int read_some(struct handshaker *h, int fd)
{
	struct rx *rx = &h->rx;
	int n;

	for (unsigned i = 0; i < RX_MAX; i++) {
		rx->iov[i] = (struct iovec){ rx->buf[i], IO_BUF_LEN };
		rx->hdr[i].msg_hdr = (struct msghdr){ .msg_name = &rx->name[i],
			.msg_namelen = sizeof(rx->name[i]),
			.msg_iov = &rx->iov[i],
			.msg_iovlen = 1,
			.msg_control = &rx->control[i],
			.msg_controllen = sizeof(rx->control[i]) };
	}
	do
		n = recvmmsg(fd, rx->hdr, RX_MAX, MSG_DONTWAIT, NULL);
	/* A pending error of the socket is read by being reported, once. */
	while (n < 0 && errno != EAGAIN && !io_is_lost(-errno));
	if (n >= 0)
		return n;
	return errno == EAGAIN ? 0 : -errno;
}

/* syscalls: getsockopt */
static void read_socket(struct handshaker *h, int *fd)
{
	for (unsigned n_judged = 0; n_judged < JUDGE_MAX;) {
		bool is_loaded = is_filled(*fd);
		int n = read_some(h, *fd);

		for (int i = 0; i < n; i++)
			n_judged += judge_datagram(h, (unsigned)i, is_loaded);
		if (n < 0) {
			*fd = -1;
			h->lost(h->lost_ctx);
		}
		if (n < RX_MAX)
			return;
	}
}

static void read_queue(struct handshaker *h)
{
	struct handshake_item item;

	for (int i = 0; i < QUEUE_MAX; i++) {
		bool is_loaded = queue_len(h->queue) >= HANDSHAKE_QUEUE / LOAD_PART;

		if (!queue_pop(h->queue, &item))
			return;
		judge(h, &item, is_loaded);
	}
}

static void take_admitted(struct handshaker *h)
{
	struct admitted a;

	for (int i = 0; i < TAKE_MAX && queue_pop(&h->admitted, &a);) {
		uint64_t now_ns = clock_now_ns();

		if (now_ns >= a.since_ns + ADMITTED_AGE_MAX) {
			wg_drop(h->wg, WG_DROP_QUEUE, 1);
			continue;
		}
		note_refusal(wg_take_handshake(
			h->wg, a.item.msg, a.item.len, &a.item.from, now_ns, clock_wall_ns()));
		i++;
	}
}

static int sleep_ms(uint64_t next_ns, uint64_t now_ns)
{
	if (next_ns <= now_ns)
		return 0;
	if (next_ns - now_ns >= SLEEP_MAX_MS * NSEC_PER_MSEC)
		return SLEEP_MAX_MS;
	return (int)((next_ns - now_ns + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC);
}

static void switch_sockets(struct handshaker *h)
{
	h->sock[0] = h->new_sock[0];
	h->sock[1] = h->new_sock[1];
	/* release: the control thread may close the former ones */
	atomic_store_explicit(&h->has_new_sockets, false, memory_order_release);
}

/* syscalls: prctl(PR_SET_NAME) gettid setpriority(PRIO_PROCESS) poll read sleep */
static void *handshaker_main(void *arg)
{
	struct handshaker *h = arg;
	uint64_t next = 0;

	pthread_setname_np(pthread_self(), "penstock-hs");
	if (setpriority(PRIO_PROCESS, (id_t)gettid(), NICE))
		log_line(LOG_DEBUG, "handshake thread keeps its priority: %s", strerror(errno));
	/* acquire: pairs with the release in handshaker_stop and _set_sockets */
	while (!atomic_load_explicit(&h->is_stopping, memory_order_acquire)) {
		/* poll ignores negative descriptors. */
		struct pollfd fds[] = { { h->wakefd, POLLIN, 0 }, { h->sock[0], POLLIN, 0 },
			{ h->sock[1], POLLIN, 0 } };
		bool is_busy = queue_len(h->queue) || queue_len(&h->admitted);
		int timeout = is_busy ? 0 : sleep_ms(next, clock_now_ns());
		uint64_t count;

		if (poll(fds, ARRAY_LEN(fds), timeout) < 0 && errno != EINTR) {
			/* Cannot happen; must not end the thread that others wait for. */
			log_line(LOG_ERROR, "cannot wait: %s", strerror(errno));
			sleep(1);
		}
		/* Drain, then the flag, then the work: a wake-up before the flag is served
		 * by the work below, one after it writes again. */
		if (read(h->wakefd, &count, sizeof(count)) < 0 && errno != EAGAIN)
			log_line(LOG_ERROR, "cannot read the event counter: %s", strerror(errno));
		atomic_store(&h->is_awake, false);
		if (atomic_load_explicit(&h->has_new_sockets, memory_order_acquire)) {
			switch_sockets(h);
			continue;
		}
		for (int i = 0; i < 2; i++)
			if (fds[1 + i].revents)
				read_socket(h, &h->sock[i]);
		read_queue(h);
		take_admitted(h);
		next = wg_poll(h->wg, clock_now_ns(), clock_wall_ns());
	}
	return NULL;
}

int handshaker_start(struct handshaker *h, struct wg *wg)
{
	int ret;

	h->wg = wg;
	ret = -pthread_create(&h->thread, NULL, handshaker_main, h);
	h->is_started = ret == 0;
	return ret;
}

void handshaker_stop(struct handshaker *h)
{
	if (!h || !h->is_started)
		return;
	atomic_store_explicit(&h->is_stopping, true, memory_order_release);
	atomic_store(&h->is_awake, false);
	handshaker_wake(h);
	pthread_join(h->thread, NULL);
	h->is_started = false;
}

/* syscalls: sched_yield */
void handshaker_set_sockets(struct handshaker *h, const struct udp *u)
{
	pthread_mutex_lock(&h->send_lock);
	h->udp = *u;
	pthread_mutex_unlock(&h->send_lock);
	h->new_sock[0] = u->handshake[0];
	h->new_sock[1] = u->handshake[1];
	if (!h->is_started) {
		switch_sockets(h);
		return;
	}
	/* release: new_sock above; acquire in handshaker_main */
	atomic_store_explicit(&h->has_new_sockets, true, memory_order_release);
	while (atomic_load_explicit(&h->has_new_sockets, memory_order_acquire)) {
		atomic_store(&h->is_awake, false);
		handshaker_wake(h);
		sched_yield();
	}
}
