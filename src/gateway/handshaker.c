/* See handshaker.h. One round: read what the sockets hold (bounded), what the
 * queue holds, run the timers, sleep until the next of them. */
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
	ROUND_MAX = 64, /* datagrams per socket and round */
	NICE = 5,
	/* AF41 (RFC 2597), as Linux: HANDSHAKE_DSCP. */
	TOS_HANDSHAKE = 0x88,
	SLEEP_MAX_MS = 1000, /* wg_poll wants to be called once a second */
	/* Under load from an eighth of the room on, as Linux. */
	LOAD_PART = 8,
};

struct handshaker {
	struct queue *queue;
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

	struct sockaddr_storage name;
	_Alignas(struct cmsghdr) uint8_t control[IO_CONTROL_LEN];
	uint8_t buf[IO_BUF_LEN];
};

int handshaker_create(struct handshaker **out, struct queue *queue)
{
	struct handshaker *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->queue = queue;
	h->sock[0] = h->sock[1] = -1;
	h->udp = (struct udp){ .data = { -1, -1 }, .handshake = { -1, -1 } };
	h->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (h->wakefd < 0) {
		int ret = -errno;

		free(h);
		return ret;
	}
	pthread_mutex_init(&h->send_lock, NULL);
	*out = h;
	return 0;
}

void handshaker_destroy(struct handshaker *h)
{
	if (!h)
		return;
	handshaker_stop(h);
	close(h->wakefd);
	pthread_mutex_destroy(&h->send_lock);
	free(h);
}

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

/* Is the socket's queue filled to an eighth? */
static bool is_filled(int fd)
{
	uint32_t mem[SK_MEMINFO_VARS];
	socklen_t len = sizeof(mem);

	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, mem, &len))
		return false;
	return mem[SK_MEMINFO_RMEM_ALLOC] >= mem[SK_MEMINFO_RCVBUF] / LOAD_PART;
}

static void take_message(struct handshaker *h, const uint8_t *msg, size_t len,
	const struct wg_endpoint *from, bool is_loaded)
{
	enum wg_drop why =
		wg_rx_handshake(h->wg, msg, len, from, is_loaded, clock_now_ns(), clock_wall_ns());

	if (why)
		log_line(LOG_DEBUG, "handshake message refused: %s", wg_drop_text(why));
}

/* syscalls: recvmsg */
static bool take_datagram(struct handshaker *h, int fd, bool is_loaded)
{
	struct iovec iov = { h->buf, sizeof(h->buf) };
	struct msghdr hdr = { .msg_name = &h->name,
		.msg_namelen = sizeof(h->name),
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = h->control,
		.msg_controllen = sizeof(h->control) };
	ssize_t len = recvmsg(fd, &hdr, MSG_DONTWAIT);
	struct io_rx rx = { .data = h->buf, .len = (uint32_t)len, .hdr = &hdr };
	struct udp_rx u;

	if (len < 0)
		return errno != EAGAIN;
	if (!udp_rx_parse(&u, &rx))
		return true;
	for (size_t at = 0, part; at < (size_t)len; at += part) {
		part = (size_t)len - at < u.seg_len ? (size_t)len - at : u.seg_len;
		take_message(h, h->buf + at, part, &u.from, is_loaded);
	}
	return true;
}

static void read_socket(struct handshaker *h, int fd)
{
	bool is_loaded = is_filled(fd);

	for (int i = 0; i < ROUND_MAX && take_datagram(h, fd, is_loaded); i++)
		;
}

static void read_queue(struct handshaker *h)
{
	struct handshake_item item;

	for (int i = 0; i < ROUND_MAX; i++) {
		bool is_loaded = queue_len(h->queue) >= HANDSHAKE_QUEUE / LOAD_PART;

		if (!queue_pop(h->queue, &item))
			return;
		take_message(h, item.msg, item.len, &item.from, is_loaded);
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
		int timeout = queue_len(h->queue) ? 0 : sleep_ms(next, clock_now_ns());
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
				read_socket(h, h->sock[i]);
		read_queue(h);
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
