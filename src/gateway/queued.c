/* Threads: a reader for each component (the TUN, the sockets), workers, one sender.
 *
 * A packet's way, in nine operations:
 *  1. epoll tells its reader;		6. it is sealed or opened;
 *  2. the heap gives room for it;	7. the worker puts it into the send queue;
 *  3. the reader reads it;		8. the sender takes it out (waking up for it);
 *  4. and pushes it into the queue;	9. and writes it, and frees it.
 *  5. a worker takes it out (waking up for it);
 *
 * As good as that can be: no lock is held over a system call, nobody is woken who does not
 * wait, bytes are copied by the kernel only, a reader that was woken reads until there is
 * nothing left, and the buffer of a packet that was not read or found no room serves the
 * next one. Whatever takes several packets at once, or looks instead of waiting, is left to
 * the other engines. */
#include "gateway/queued.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rcu.h"
#include "gateway/ecn.h"
#include "gateway/packet_queue.h"
#include "gateway/route.h"
#include "gateway/send_queue.h"
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	TAG_TUN = 2, /* 0 and 1: the sockets, by family */
	TAG_WAKE,
	TAGS,
	/* Room of a packet: what fits into an Ethernet frame, with some to spare. What is
	 * longer is read into spill, and copied. */
	ROOM = 1920,
	READS_MAX = 64, /* of one descriptor before epoll is asked about the others */
	USER_SOCKET_READER = 1 << 0,
	USER_SENDER = 1 << 1,
	/* More than all packets that can be under way: free memory that the heap keeps. */
	HEAP_KEPT = 8 << 20,
};

struct reader {
	struct queued *q;
	int epfd, wakefd;
	struct packet *spare; /* the next packet's; NULL: to be allocated */
	uint8_t *spill; /* IO_BUF_LEN */
};

struct queued_worker {
	struct queued *q;
	struct wg_worker *wg;
	uint64_t now_ns;
};

struct queued {
	/* read-only after start */
	struct queued_config cfg;
	unsigned n_threads; /* running */
	pthread_t threads[WG_WORKERS_MAX + 3];

	/* one thread's each */
	struct reader tun_reader, socket_reader;
	struct queued_worker workers[WG_WORKERS_MAX];
	int read_sock[2]; /* the socket reader's */
	int send_sock[2]; /* the sender's */
	struct udp_paths paths;

	struct packet_queue packets CACHELINE_ALIGNED;
	struct send_queue sends CACHELINE_ALIGNED;

	/* any thread */
	_Atomic uint64_t drops[WORKER_DROP_N];
	_Atomic bool is_stopping;
	_Atomic bool has_new_routes;

	/* written by the control thread, before it sets users */
	int new_sock[2];
	_Atomic unsigned users; /* USER_*: who has not let go of the former sockets */
	pthread_mutex_t users_lock; /* guards nothing but the wait for users to be 0 */
	pthread_cond_t users_done;
};

static void count_drop(struct queued *q, enum worker_drop why, uint64_t n)
{
	atomic_fetch_add_explicit(&q->drops[why], n, memory_order_relaxed);
}

static bool is_stopping(const struct queued *q)
{
	return atomic_load_explicit(&q->is_stopping, memory_order_relaxed);
}

/* ---- Readers. */

/* syscalls: epoll_ctl */
static int watch(const struct reader *r, int fd, uint32_t tag)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = tag };

	return epoll_ctl(r->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* syscalls: epoll_ctl */
static void unwatch(const struct reader *r, int fd)
{
	epoll_ctl(r->epfd, EPOLL_CTL_DEL, fd, NULL);
}

/* syscalls(start): epoll_create1 eventfd */
static int reader_init(struct reader *r, struct queued *q)
{
	*r = (struct reader){ .q = q };
	r->epfd = epoll_create1(EPOLL_CLOEXEC);
	r->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->epfd < 0 || r->wakefd < 0)
		return -errno;
	r->spill = malloc(IO_BUF_LEN);
	return r->spill ? watch(r, r->wakefd, TAG_WAKE) : -ENOMEM;
}

/* syscalls: close */
static void reader_fini(struct reader *r)
{
	free(r->spare);
	free(r->spill);
	if (r->wakefd >= 0)
		close(r->wakefd);
	if (r->epfd >= 0)
		close(r->epfd);
}

/* syscalls: write */
static void reader_wake(const struct reader *r)
{
	uint64_t one = 1;

	if (write(r->wakefd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake already */
}

/* Where the next packet is to be read to: its own room, and beyond that the spill; where
 * there is no memory the spill alone. */
static int reader_room(struct reader *r, struct iovec iov[2])
{
	int n = 0;

	if (!r->spare)
		r->spare = packet_create(ROOM);
	if (r->spare)
		iov[n++] = (struct iovec){ r->spare->data, ROOM };
	iov[n++] = (struct iovec){ r->spill, IO_BUF_LEN };
	return n;
}

/* The packet of len bytes that was read there. NULL: no memory. */
static struct packet *reader_packet(struct reader *r, size_t len, enum packet_kind kind)
{
	struct packet *p = r->spare;

	if (p && len > ROOM) {
		p = packet_create(len);
		if (p) {
			memcpy(p->data, r->spare->data, ROOM);
			memcpy(p->data + ROOM, r->spill, len - ROOM);
		}
	} else {
		r->spare = NULL;
	}
	if (!p)
		return NULL;
	p->len = (uint32_t)len;
	p->kind = kind;
	return p;
}

/* p NULL: there was no memory for it. */
static void reader_push(struct reader *r, struct packet *p)
{
	if (p && packet_queue_push(&r->q->packets, p))
		return;
	count_drop(r->q, WORKER_DROP_PACKET_QUEUE, 1);
	/* A long one is no spare: those have ROOM. */
	if (!r->spare && p && p->len <= ROOM)
		r->spare = p;
	else
		free(p);
}

/* syscalls: readv */
static void read_tun(struct reader *r)
{
	for (int i = 0; i < READS_MAX; i++) {
		struct iovec iov[2];
		ssize_t len = readv(r->q->cfg.tun_fd, iov, reader_room(r, iov));

		if (len > 0) {
			reader_push(r, reader_packet(r, (size_t)len, PACKET_INNER));
			continue;
		}
		/* EAGAIN: empty. EBADFD: the interface is gone; 0: so is the other end of
		 * a pair. epoll would report either for ever. */
		if (len == 0 || errno == EBADFD)
			unwatch(r, r->q->cfg.tun_fd);
		return;
	}
}

/* The datagram of len bytes that was read into r's room with this header. */
static void take_datagram(struct reader *r, struct msghdr *h, size_t len)
{
	struct io_rx rx = { .len = (uint32_t)len, .hdr = h };
	struct packet *p;
	struct udp_rx u;

	/* A train, by UDP_GRO, has no business here. */
	if (!udp_rx_parse(&u, &rx) || u.seg_len < len) {
		count_drop(r->q, WORKER_DROP_DATAGRAM, 1);
		return;
	}
	p = reader_packet(r, len, PACKET_OUTER);
	if (p) {
		p->at = u.from;
		p->tos = u.tos;
	}
	reader_push(r, p);
}

/* syscalls: recvmsg */
static void read_socket(struct reader *r, enum worker_channel family)
{
	const struct queued_config *cfg = &r->q->cfg;
	int fd = r->q->read_sock[family];
	_Alignas(struct cmsghdr) uint8_t control[IO_CONTROL_LEN];
	struct sockaddr_storage name;

	for (int i = 0; i < READS_MAX; i++) {
		struct iovec iov[2];
		struct msghdr h = {
			.msg_name = &name,
			.msg_namelen = sizeof(name),
			.msg_control = control,
			.msg_controllen = sizeof(control),
			.msg_iov = iov,
			.msg_iovlen = (size_t)reader_room(r, iov),
		};
		ssize_t len = recvmsg(fd, &h, MSG_DONTWAIT);

		if (len >= 0)
			take_datagram(r, &h, (size_t)len);
		else if (errno == EAGAIN)
			return;
		if (len < 0 && io_is_lost(-errno)) {
			unwatch(r, fd);
			r->q->read_sock[family] = -1;
			if (cfg->channel_lost)
				cfg->channel_lost(cfg->lost_ctx, family);
			return;
		}
		/* Anything else is a pending error (an ICMP message): reading has cleared it. */
	}
}

/* A reader or the sender uses the new sockets now. */
static void let_go(struct queued *q, unsigned user)
{
	/* release: the control thread may close the former sockets now */
	atomic_fetch_and_explicit(&q->users, ~user, memory_order_release);
	pthread_mutex_lock(&q->users_lock);
	pthread_cond_signal(&q->users_done);
	pthread_mutex_unlock(&q->users_lock);
}

static bool has_new_sockets(struct queued *q, unsigned user)
{
	/* acquire: new_sock, written before */
	return atomic_load_explicit(&q->users, memory_order_acquire) & user;
}

static void switch_read_sockets(struct queued *q)
{
	struct reader *r = &q->socket_reader;

	for (unsigned f = 0; f < 2; f++) {
		if (q->read_sock[f] >= 0)
			unwatch(r, q->read_sock[f]);
		q->read_sock[f] = q->new_sock[f];
		if (q->read_sock[f] >= 0 && watch(r, q->read_sock[f], f)) {
			log_line(LOG_ERROR, "a socket cannot be watched");
			q->read_sock[f] = -1;
		}
	}
	let_go(q, USER_SOCKET_READER);
}

/* syscalls: epoll_wait read */
static void reader_run(struct reader *r)
{
	struct epoll_event ev[TAGS];
	int n = epoll_wait(r->epfd, ev, TAGS, -1);
	uint64_t count;

	for (int i = 0; i < n; i++) {
		uint32_t tag = ev[i].data.u32;

		if (tag == TAG_TUN)
			read_tun(r);
		else if (tag != TAG_WAKE)
			read_socket(r, (enum worker_channel)tag);
		else if (read(r->wakefd, &count, sizeof(count)) < 0)
			continue; /* EAGAIN: another wait has seen it */
	}
}

/* syscalls: prctl(PR_SET_NAME) */
static void *tun_reader_main(void *arg)
{
	struct reader *r = arg;

	pthread_setname_np(pthread_self(), "penstock-tun");
	while (!is_stopping(r->q))
		reader_run(r);
	return NULL;
}

/* syscalls: prctl(PR_SET_NAME) */
static void *socket_reader_main(void *arg)
{
	struct reader *r = arg;

	pthread_setname_np(pthread_self(), "penstock-udp");
	while (!is_stopping(r->q)) {
		if (has_new_sockets(r->q, USER_SOCKET_READER))
			switch_read_sockets(r->q);
		reader_run(r);
	}
	return NULL;
}

/* ---- Workers. */

/* An inner packet becomes a message. false: dropped or staged. */
static bool seal(struct queued_worker *w, struct packet *p)
{
	const struct queued_config *cfg = &w->q->cfg;
	struct wg_packet pkt = { .data = p->data };
	struct wg_peer *peer;
	enum wg_sealed ret;
	struct split s;

	if (split_init(&s, p->data, p->len, false) != SPLIT_OK) {
		count_drop(w->q, WORKER_DROP_TUN_FRAME, 1);
		return false;
	}
	peer = route_frame(w->wg, &s, cfg->unreach, w->now_ns, &p->hops);
	if (!peer)
		return false;
	pkt.len = s.len;
	ret = wg_seal(w->wg, peer, &pkt, 1, w->now_ns, &p->at);
	if (ret == WG_DROPPED && pkt.drop == WG_DROP_NO_ENDPOINT && cfg->unreach)
		unreach_offer(cfg->unreach, pkt.data, pkt.len, w->now_ns);
	p->data = pkt.data;
	p->len = pkt.len;
	p->kind = PACKET_OUTER;
	p->tos = s.in.tos & ECN_MASK;
	return ret == WG_SEALED;
}

static void queue_handshake(struct queued *q, const struct packet *p)
{
	if (handshake_item_push(q->cfg.handshakes, p->data, p->len, &p->at))
		q->cfg.handshake_ready(q->cfg.ctx);
	else
		count_drop(q, WORKER_DROP_QUEUE_FULL, 1);
}

/* A message becomes an inner packet. false: dropped, or nothing for the TUN. */
static bool open_message(struct queued_worker *w, struct packet *p)
{
	struct wg_packet pkt = { .data = p->data, .len = p->len };

	switch (wgmsg_gate(p->data, p->len)) {
	case WGMSG_DATA:
		break;
	case WGMSG_INITIATION:
	case WGMSG_RESPONSE:
	case WGMSG_COOKIE:
		queue_handshake(w->q, p);
		return false;
	default:
		wg_worker_drop(w->wg, NULL, WG_DROP_TYPE, 1);
		return false;
	}
	wg_open(w->wg, &pkt, 1, &p->at, w->now_ns);
	if (pkt.drop != WG_OK || pkt.len == 0)
		return false;
	if (!ecn_carry(pkt.data, p->tos)) {
		count_drop(w->q, WORKER_DROP_ECN, 1);
		return false;
	}
	p->data = pkt.data;
	p->len = pkt.len;
	p->kind = PACKET_INNER;
	return true;
}

/* The next packet and its ticket; NULL at the end. */
static struct packet *take_packet(struct queued_worker *w, uint64_t *ticket)
{
	struct packet *p = packet_queue_pop(&w->q->packets, ticket, false);

	if (p)
		return p;
	rcu_offline();
	p = packet_queue_pop(&w->q->packets, ticket, true);
	rcu_online();
	return p;
}

static void pass_on(struct queued_worker *w, struct packet *p, uint64_t ticket)
{
	bool is_taken = send_queue_put(&w->q->sends, ticket, p, false);

	if (is_taken)
		return;
	rcu_offline();
	is_taken = send_queue_put(&w->q->sends, ticket, p, true);
	rcu_online();
	if (!is_taken) /* the end */
		free(p);
}

/* syscalls: prctl(PR_SET_NAME) */
static void *worker_main(void *arg)
{
	struct queued_worker *w = arg;
	struct packet *p;
	uint64_t ticket;

	pthread_setname_np(pthread_self(), "penstock-data");
	rcu_thread_init();
	while ((p = take_packet(w, &ticket))) {
		w->now_ns = clock_now_ns();
		wg_worker_refresh(w->wg);
		if (!(p->kind == PACKET_INNER ? seal(w, p) : open_message(w, p))) {
			free(p);
			p = NULL;
		}
		rcu_quiescent();
		pass_on(w, p, ticket);
	}
	rcu_thread_fini();
	return NULL;
}

/* ---- The sender. */

/* What udp_send sends with. syscalls: sendmsg */
static size_t send_messages(struct engine *e, int fd, enum io_kind kind, struct io_tx *tx, size_t n)
{
	size_t n_sent = 0;

	for (size_t i = 0; i < n; i++) {
		ssize_t len;

		do
			len = sendmsg(fd, &tx[i].hdr, MSG_NOSIGNAL);
		while (len < 0 && errno == EINTR);
		tx[i].err = len < 0 ? -errno : 0;
		n_sent += len >= 0;
	}
	return n_sent;
}

static const struct engine_ops send_ops = { .name = "queue", .send = send_messages };

static void send_outer(struct queued *q, const struct packet *p)
{
	int fd = q->send_sock[endpoint_family(&p->at)];
	struct iovec iov = { p->data, p->len };
	struct udp_tx mem;
	struct io_tx tx;

	if (fd < 0) {
		count_drop(q, WORKER_DROP_UDP_SEND, 1);
		return;
	}
	udp_tx_fill(&tx, &mem, &p->at, &iov, 0, p->tos, p->hops);
	if (udp_send(&send_ops, NULL, fd, &tx, 1, &q->paths))
		count_drop(q, WORKER_DROP_UDP_SEND, 1);
}

/* syscalls: write */
static void send_inner(struct queued *q, const struct packet *p)
{
	if (write(q->cfg.tun_fd, p->data, p->len) < 0)
		count_drop(q, WORKER_DROP_TUN_WRITE, 1);
}

static void switch_send_sockets(struct queued *q)
{
	q->send_sock[0] = q->new_sock[0];
	q->send_sock[1] = q->new_sock[1];
	q->paths = (struct udp_paths){ 0 };
	let_go(q, USER_SENDER);
}

/* syscalls: prctl(PR_SET_NAME) */
static void *sender_main(void *arg)
{
	struct queued *q = arg;

	pthread_setname_np(pthread_self(), "penstock-send");
	while (!is_stopping(q)) {
		struct packet *p = send_queue_pop(&q->sends);

		if (has_new_sockets(q, USER_SENDER))
			switch_send_sockets(q);
		if (!p)
			continue;
		if (atomic_load_explicit(&q->has_new_routes, memory_order_relaxed)) {
			atomic_store_explicit(&q->has_new_routes, false, memory_order_relaxed);
			q->paths = (struct udp_paths){ 0 };
		}
		if (p->kind == PACKET_INNER)
			send_inner(q, p);
		else
			send_outer(q, p);
		free(p);
	}
	return NULL;
}

/* ---- From outside. */

static int create_workers(struct queued *q)
{
	for (unsigned i = 0; i < q->cfg.n_workers; i++) {
		int ret = wg_worker_create(&q->workers[i].wg, q->cfg.wg, i);

		q->workers[i].q = q;
		if (ret)
			return ret;
	}
	return 0;
}

int queued_create(struct queued **out, const struct queued_config *cfg)
{
	struct queued *q = aligned_alloc(_Alignof(struct queued), sizeof(*q));
	int ret;

	if (!q)
		return -ENOMEM;
	/* Else the heap gives pages back whenever the queues run empty, and each burst faults
	 * them in again: one fault for six packets. */
	mallopt(M_TRIM_THRESHOLD, HEAP_KEPT);
	memset(q, 0, sizeof(*q));
	q->cfg = *cfg;
	q->read_sock[0] = q->read_sock[1] = q->send_sock[0] = q->send_sock[1] = -1;
	q->tun_reader.epfd = q->tun_reader.wakefd = -1;
	q->socket_reader.epfd = q->socket_reader.wakefd = -1;
	ret = send_queue_init(&q->sends, QUEUED_SENDS);
	if (ret) {
		free(q);
		return ret;
	}
	packet_queue_init(&q->packets, QUEUED_PACKETS);
	pthread_mutex_init(&q->users_lock, NULL);
	pthread_cond_init(&q->users_done, NULL);
	ret = cfg->n_workers >= 1 && cfg->n_workers <= WG_WORKERS_MAX ? 0 : -EINVAL;
	if (!ret)
		ret = reader_init(&q->tun_reader, q);
	if (!ret)
		ret = reader_init(&q->socket_reader, q);
	if (!ret)
		ret = watch(&q->tun_reader, cfg->tun_fd, TAG_TUN);
	if (!ret)
		ret = create_workers(q);
	if (ret)
		queued_destroy(q);
	else
		*out = q;
	return ret;
}

static int start_thread(struct queued *q, void *(*run)(void *), void *arg)
{
	int ret = -pthread_create(&q->threads[q->n_threads], NULL, run, arg);

	q->n_threads += ret == 0;
	return ret;
}

int queued_start(struct queued *q)
{
	int ret = start_thread(q, sender_main, q);

	for (unsigned i = 0; i < q->cfg.n_workers && !ret; i++)
		ret = start_thread(q, worker_main, &q->workers[i]);
	if (!ret)
		ret = start_thread(q, socket_reader_main, &q->socket_reader);
	if (!ret)
		ret = start_thread(q, tun_reader_main, &q->tun_reader);
	if (ret)
		queued_stop(q);
	return ret;
}

void queued_stop(struct queued *q)
{
	if (!q || !q->n_threads)
		return;
	/* What the threads wait for next orders this. */
	atomic_store_explicit(&q->is_stopping, true, memory_order_relaxed);
	reader_wake(&q->tun_reader);
	reader_wake(&q->socket_reader);
	packet_queue_close(&q->packets);
	send_queue_close(&q->sends);
	while (q->n_threads)
		pthread_join(q->threads[--q->n_threads], NULL);
}

void queued_destroy(struct queued *q)
{
	if (!q)
		return;
	queued_stop(q);
	for (unsigned i = 0; i < WG_WORKERS_MAX; i++)
		wg_worker_destroy(q->workers[i].wg);
	reader_fini(&q->tun_reader);
	reader_fini(&q->socket_reader);
	packet_queue_fini(&q->packets);
	send_queue_fini(&q->sends);
	pthread_cond_destroy(&q->users_done);
	pthread_mutex_destroy(&q->users_lock);
	free(q);
}

void queued_set_sockets(struct queued *q, const int fd[2])
{
	q->new_sock[0] = fd[0];
	q->new_sock[1] = fd[1];
	if (!q->n_threads) {
		switch_read_sockets(q);
		switch_send_sockets(q);
		return;
	}
	/* release: new_sock above; acquire in has_new_sockets */
	atomic_store_explicit(&q->users, USER_SOCKET_READER | USER_SENDER, memory_order_release);
	reader_wake(&q->socket_reader);
	send_queue_kick(&q->sends);
	pthread_mutex_lock(&q->users_lock);
	/* acquire: what the threads did with the former sockets */
	while (atomic_load_explicit(&q->users, memory_order_acquire))
		pthread_cond_wait(&q->users_done, &q->users_lock);
	pthread_mutex_unlock(&q->users_lock);
}

void queued_forget_paths(struct queued *q)
{
	atomic_store_explicit(&q->has_new_routes, true, memory_order_relaxed);
}

void queued_drops(const struct queued *q, uint64_t out[WORKER_DROP_N])
{
	for (unsigned i = 0; i < WORKER_DROP_N; i++)
		out[i] += atomic_load_explicit(&q->drops[i], memory_order_relaxed);
}
