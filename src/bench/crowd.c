/* One socket for all sources (IP_PKTINFO chooses), or behind a NAT one for each port. An
 * answer finds its client by the receiver index. Clients are few enough to look at each
 * several hundred times a second, which replaces a table of timers. */
#include "bench/crowd.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/keytext.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include "wire/wgmsg.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	BATCH = 64,
	MESSAGE_MAX = 256,
	EVENTS = 256,
	RECEIVE_BUFFER = 32 << 20, /* all answers at once, should they come so */
	SECTION_MAX = 80, /* characters of a [Peer] section */
};

#define RETRY_NS (5 * NSEC_PER_SEC)
#define RETRY_JITTER_NS (NSEC_PER_SEC / 3)
#define LOOK_NS (2 * NSEC_PER_MSEC) /* between two looks at all clients */

struct visitor {
	enum { AWAY, WAITING, SERVED } state;
	bool is_fresh; /* msg has not been sent yet */
	uint64_t came_ns, served_ns;
	uint64_t next_ns; /* when to send (again) */
	uint8_t msg[WGMSG_INITIATION_LEN];
};

struct crowd {
	struct crowd_plan plan;
	struct wg_clients *clients;
	int epfd;
	int *fds;
	size_t n_fds;
	struct visitor *visitors;
	uint64_t began_ns, ended_ns, last_look_ns;
	size_t n_served;
	uint64_t n_sent, n_cookies;
	uint32_t dice;
};

/* ---- Making them. */

/* At a port that the kernel chooses. */
static int open_socket(struct crowd *c)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct epoll_event ev = { .events = EPOLLIN };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	const int size = RECEIVE_BUFFER / (c->plan.is_behind_nat ? 256 : 1);

	if (fd < 0)
		return -errno;
	c->fds[c->n_fds++] = ev.data.fd = fd;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 ||
		epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return -errno;
	return 0;
}

static int open_sockets(struct crowd *c, const struct lab *l, int ns)
{
	size_t n = c->plan.is_behind_nat ? c->plan.n : 1, i;
	int ret = lab_enter(l, ns);

	for (i = 0; i < n && ret >= 0; i++)
		ret = open_socket(c);
	lab_leave(l);
	return ret;
}

int crowd_create(struct crowd **out, const struct lab *l, int ns, const struct crowd_plan *plan,
	const uint8_t server_public_key[WG_KEY_LEN])
{
	struct crowd *c = calloc(1, sizeof(*c));
	int ret = -ENOMEM;

	if (!c)
		return -ENOMEM;
	c->plan = *plan;
	c->dice = 1;
	c->epfd = epoll_create1(EPOLL_CLOEXEC);
	c->visitors = calloc(plan->n, sizeof(c->visitors[0]));
	c->fds = calloc(plan->is_behind_nat ? plan->n : 1, sizeof(c->fds[0]));
	if (c->epfd >= 0 && c->visitors && c->fds)
		ret = wg_clients_create(&c->clients, plan->n, server_public_key);
	if (!ret)
		ret = open_sockets(c, l, ns);
	if (ret < 0) {
		crowd_destroy(c);
		return ret;
	}
	*out = c;
	return 0;
}

void crowd_destroy(struct crowd *c)
{
	size_t i;

	if (!c)
		return;
	for (i = 0; i < c->n_fds; i++)
		close(c->fds[i]);
	if (c->epfd >= 0)
		close(c->epfd);
	wg_clients_destroy(c->clients);
	free(c->fds);
	free(c->visitors);
	free(c);
}

char *crowd_sections(struct crowd *c)
{
	char *text = malloc(c->plan.n * SECTION_MAX + 1), key[KEY_BASE64_LEN + 1];
	uint8_t public_key[WG_KEY_LEN];
	size_t i, at = 0;

	for (i = 0; text && i < c->plan.n; i++) {
		wg_clients_public_key(c->clients, i, public_key);
		key_to_base64(key, public_key);
		at += (size_t)snprintf(text + at, SECTION_MAX + 1, "[Peer]\nPublicKey=%s\n", key);
	}
	return text;
}

void crowd_prepare(struct crowd *c)
{
	struct visitor *v;
	size_t i;

	for (i = 0; i < c->plan.n; i++) {
		v = &c->visitors[i];
		*v = (struct visitor){ .state = AWAY, .is_fresh = true };
		wg_clients_initiate(c->clients, i, clock_now_ns(), clock_wall_ns(), v->msg);
	}
	c->n_served = 0;
	c->n_sent = c->n_cookies = 0;
}

/* ---- Sending. */

struct tray {
	struct mmsghdr msg[BATCH];
	struct iovec iov[BATCH];
	union {
		struct cmsghdr align;
		uint8_t bytes[CMSG_SPACE(sizeof(struct in_pktinfo))];
	} control[BATCH];
	struct sockaddr_in to;
	unsigned n;
};

static int serve_tray(struct crowd *c, struct tray *t, int fd)
{
	unsigned done = 0;
	int n;

	while (done < t->n) {
		n = sendmmsg(fd, t->msg + done, t->n - done, 0);
		if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR))
			break; /* lost: they will try again */
		if (n < 0)
			return -errno;
		done += (unsigned)n;
	}
	c->n_sent += done;
	t->n = 0;
	return 0;
}

/* A message of client i, which must stay until the tray is served. */
static void put_on_tray(struct crowd *c, struct tray *t, size_t i, uint8_t *msg, size_t len)
{
	struct in_pktinfo from = { .ipi_spec_dst.s_addr = htonl(c->plan.first_source +
					   (c->plan.is_behind_nat ? 0 : i)) };
	struct msghdr *m = &t->msg[t->n].msg_hdr;
	struct cmsghdr *cm = &t->control[t->n].align;

	t->to = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_port = htons(c->plan.port),
		.sin_addr.s_addr = htonl(c->plan.server) };
	t->iov[t->n] = (struct iovec){ msg, len };
	*m = (struct msghdr){ .msg_name = &t->to,
		.msg_namelen = sizeof(t->to),
		.msg_iov = &t->iov[t->n],
		.msg_iovlen = 1,
		.msg_control = cm,
		.msg_controllen = sizeof(t->control[0].bytes) };
	cm->cmsg_level = IPPROTO_IP;
	cm->cmsg_type = IP_PKTINFO;
	cm->cmsg_len = CMSG_LEN(sizeof(from));
	memcpy(CMSG_DATA(cm), &from, sizeof(from));
	t->n++;
}

static int socket_of(const struct crowd *c, size_t i)
{
	return c->fds[c->plan.is_behind_nat ? i : 0];
}

static uint64_t retry_at(struct crowd *c, uint64_t now_ns)
{
	c->dice = c->dice * 1664525 + 1013904223;
	return now_ns + RETRY_NS + RETRY_JITTER_NS * (c->dice >> 16) / 65536;
}

/* Send all that is due. */
static int send_due(struct crowd *c, uint64_t now_ns)
{
	struct tray t = { .n = 0 };
	struct visitor *v;
	size_t i;
	int ret = 0;

	for (i = 0; i < c->plan.n && !ret; i++) {
		v = &c->visitors[i];
		if (v->state == SERVED || v->next_ns > now_ns)
			continue;
		if (v->state == AWAY) {
			v->state = WAITING;
			v->came_ns = now_ns;
		}
		if (!v->is_fresh)
			wg_clients_initiate(c->clients, i, now_ns, clock_wall_ns(), v->msg);
		v->is_fresh = false;
		v->next_ns = retry_at(c, now_ns);
		put_on_tray(c, &t, i, v->msg, sizeof(v->msg));
		if (t.n == BATCH || c->plan.is_behind_nat)
			ret = serve_tray(c, &t, socket_of(c, i));
	}
	if (t.n && !ret)
		ret = serve_tray(c, &t, c->fds[0]);
	return ret;
}

/* ---- Receiving. */

static int take_cookie(struct crowd *c, size_t i, uint64_t now_ns)
{
	struct visitor *v = &c->visitors[i];
	struct tray t = { .n = 0 };

	c->n_cookies++;
	if (!c->plan.answers_cookies_at_once || !wg_clients_again(c->clients, i, now_ns, v->msg))
		return 0;
	v->next_ns = retry_at(c, now_ns);
	put_on_tray(c, &t, i, v->msg, sizeof(v->msg));
	return serve_tray(c, &t, socket_of(c, i));
}

static int take_answer(struct crowd *c, const uint8_t *msg, size_t len)
{
	uint64_t now_ns = clock_now_ns();
	size_t i;

	if (!wg_clients_find(c->clients, msg, len, &i) || c->visitors[i].state != WAITING)
		return 0;
	switch (wg_clients_take(c->clients, i, msg, len, now_ns)) {
	case WG_CLIENT_SESSION:
		c->visitors[i].state = SERVED;
		c->visitors[i].served_ns = clock_now_ns();
		c->n_served++;
		return 0;
	case WG_CLIENT_COOKIE:
		return take_cookie(c, i, now_ns);
	case WG_CLIENT_REFUSED:
		break;
	}
	return 0;
}

/* One batch of a socket. */
static int receive(struct crowd *c, int fd)
{
	uint8_t room[BATCH][MESSAGE_MAX];
	struct mmsghdr msg[BATCH];
	struct iovec iov[BATCH];
	int i, n, ret = 0;

	for (i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){ room[i], MESSAGE_MAX };
		msg[i] = (struct mmsghdr){ .msg_hdr = { .msg_iov = &iov[i], .msg_iovlen = 1 } };
	}
	n = recvmmsg(fd, msg, BATCH, MSG_DONTWAIT, NULL);
	for (i = 0; i < n && !ret; i++)
		ret = take_answer(c, room[i], msg[i].msg_len);
	return ret;
}

static int receive_some(struct crowd *c, int timeout_ms)
{
	struct epoll_event ev[EVENTS];
	int n = epoll_wait(c->epfd, ev, EVENTS, timeout_ms), i, ret = 0;

	for (i = 0; i < n && !ret; i++)
		ret = receive(c, ev[i].data.fd);
	return ret;
}

int crowd_run(struct crowd *c, uint64_t interval_ns, uint64_t limit_ns)
{
	uint64_t now_ns = clock_now_ns();
	size_t i;
	int ret = 0;

	c->began_ns = now_ns;
	c->last_look_ns = 0;
	for (i = 0; i < c->plan.n; i++)
		c->visitors[i].next_ns = now_ns + i * interval_ns;
	while (!ret && c->n_served < c->plan.n && now_ns < c->began_ns + limit_ns) {
		if (now_ns >= c->last_look_ns + LOOK_NS) {
			c->last_look_ns = now_ns;
			ret = send_due(c, now_ns);
		}
		if (!ret)
			ret = receive_some(c, 1);
		if (!ret && rounds_stopped())
			ret = -EINTR;
		now_ns = clock_now_ns();
	}
	c->ended_ns = now_ns;
	return ret;
}

int crowd_confirm(struct crowd *c, size_t i, uint32_t *receiver_index)
{
	uint8_t room[WG_HEAD + WG_TAIL];
	struct wg_packet keepalive = { .data = room + WG_HEAD };
	struct tray t = { .n = 0 };
	struct aead *aead;
	int ret = aead_create(&aead);

	if (ret < 0)
		return ret;
	if (wg_clients_seal(c->clients, i, aead, &keepalive, 1)) {
		*receiver_index = get_le32(keepalive.data + 4);
		put_on_tray(c, &t, i, keepalive.data, keepalive.len);
		ret = serve_tray(c, &t, socket_of(c, i));
	} else {
		ret = -ENOTCONN;
	}
	aead_destroy(aead);
	return ret;
}

/* ---- What came of it. */

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t wait_of(const struct crowd *c, const struct visitor *v)
{
	switch (v->state) {
	case SERVED:
		return v->served_ns - v->came_ns;
	case WAITING:
		return c->ended_ns - v->came_ns;
	case AWAY:
		break;
	}
	return 0;
}

void crowd_result(const struct crowd *c, struct crowd_result *out)
{
	uint64_t *waits = calloc(c->plan.n, sizeof(waits[0])), last = 0;
	size_t i;

	*out = (struct crowd_result){
		.n_sessions = c->n_served, .n_sent = c->n_sent, .n_cookies = c->n_cookies
	};
	for (i = 0; i < c->plan.n; i++) {
		if (c->visitors[i].state == SERVED && c->visitors[i].served_ns > last)
			last = c->visitors[i].served_ns;
		if (waits)
			waits[i] = wait_of(c, &c->visitors[i]);
	}
	out->all_ns = (c->n_served == c->plan.n ? last : c->ended_ns) - c->began_ns;
	if (!waits)
		return;
	qsort(waits, c->plan.n, sizeof(waits[0]), compare);
	out->p50_ns = waits[(c->plan.n - 1) * 50 / 100];
	out->p99_ns = waits[(c->plan.n * 99 + 99) / 100 - 1];
	free(waits);
}
