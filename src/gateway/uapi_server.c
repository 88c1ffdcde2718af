/* See uapi_server.h.
 *
 * A client is read a little at a time, so that a large request of one does not
 * hold up the others; its next request is looked at only when the reply to the
 * last is written, so that replies never pile up. A reply is made as the client
 * takes it, OUT_CAP bytes at a time, and OUT_FILLS times at most before the others
 * have their turn.
 *
 * Room. When all places are taken and somebody waits, the place of a client
 * that is stuck (half a request, or a reply that it does not read) for
 * STALL_WAITED_NS goes to him; failing that, the place of the client that has
 * been idle longest between two requests, if that is IDLE_GRACE_NS or more (one
 * that has just come in is about to send). Without anybody waiting a stuck
 * client is hung up after STALL_NS and an idle one may stay.
 *
 * Memory. TRIM_NS after a change the heap gives back what it does not need: the
 * request itself, and peers that were removed (some grace periods after it).
 * 100,000 peers are 50 MB, and glibc keeps most of that for the next time.
 *
 * Errors. A refused request is answered with its errno and the reason goes to
 * the log. Where the next request begins is lost after some of them; then the
 * client is answered, the rest of what it sends is thrown away for at most
 * DRAIN_NS (so that it gets to read the answer), and it is hung up.
 *
 * syscalls: accept4 recv send shutdown getsockopt geteuid poll read close lstat unlink
 * syscalls(start): mkdir chmod fchmod open flock socket connect bind listen rename getsockname
 *	fcntl inotify_init1 inotify_add_watch */
#include "gateway/uapi_server.h"
#include "base/clock.h"
#include "base/log.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	IN_CAP = 16384,
	READS_PER_RUN = 16, /* of IN_CAP bytes, per client */
	OUT_CAP = 65536, /* of a reply there is no more in memory at once */
	OUT_FILLS = 4, /* per client and run */
	BACKLOG = 128,
};

#define STALL_WAITED_NS (5 * NSEC_PER_SEC)
#define IDLE_GRACE_NS (1 * NSEC_PER_SEC)
#define STALL_NS (60 * NSEC_PER_SEC)
#define DRAIN_NS (5 * NSEC_PER_SEC)
#define ACCEPT_PAUSE_NS (1 * NSEC_PER_SEC)
#define TRIM_NS (2 * NSEC_PER_SEC)

struct client {
	int fd;
	size_t poll_i; /* its entry in the last uapi_server_pollfds */
	bool is_polled; /* it had one */
	bool has_ended; /* it will send no more */
	bool is_hangup; /* goes when its reply is written */
	bool is_draining; /* goes at the end of its input or at the deadline */
	uint64_t progress_ns; /* when it last sent or took something */
	struct uapi_reader reader;
	struct uapi_text out;
	size_t out_sent;
	struct uapi_reply *reply; /* what of a reply is not in out yet; NULL: nothing */
	unsigned n_fills; /* of out, in this run */
	size_t in_len, in_used;
	char in[IN_CAP];
};

struct uapi_server {
	const struct uapi_server_ops *ops;
	void *ctx;
	int fd;
	int inotify_fd; /* -1: the file cannot be watched */
	bool owns_file;
	bool is_unlinked;
	bool has_waiting; /* somebody waits and all places are taken */
	uint64_t paused_until_ns; /* no descriptors to accept with; 0: not paused */
	uint64_t trim_ns; /* when to give memory back; 0: no need */
	dev_t dev; /* of the socket file */
	ino_t ino;
	char path[UAPI_PATH_MAX];
	size_t n_clients;
	struct client *clients[UAPI_CLIENTS_MAX]; /* the first n_clients are in use */
};

/* ---- The socket file. */

const char *uapi_socket_path(char out[UAPI_PATH_MAX], const char *ifname)
{
	snprintf(out, UAPI_PATH_MAX, UAPI_SOCKET_DIR "/%s.sock", ifname);
	return out;
}

/* Open the directory of path, made if it is missing. A descriptor or negative errno. */
static int open_dir(const char *path)
{
	char dir[UAPI_PATH_MAX];
	char *slash;
	int fd;

	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (!slash)
		return -EINVAL;
	*slash = '\0';
	if (mkdir(dir, 0755) == 0) {
		/* mkdir obeys the umask: users of wg(8) must be able to look inside. */
		if (chmod(dir, 0755) < 0)
			return -errno;
	} else if (errno != EEXIST) {
		return -errno;
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* 0: there was a stale socket, it is gone now; -EADDRINUSE, -EEXIST as in the header. */
static int remove_stale(const struct sockaddr_un *addr)
{
	struct stat st;
	int fd, ret;

	if (lstat(addr->sun_path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	ret = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 ? -errno : 0;
	close(fd);
	if (ret == -ENOENT)
		return 0;
	/* -EAGAIN, too, means that somebody listens: his queue is full. */
	if (ret != -ECONNREFUSED)
		return ret == 0 || ret == -EAGAIN ? -EADDRINUSE : ret;
	return unlink(addr->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

#define MADE ".new" /* behind the name while it is made */

static int bind_path(struct uapi_server *s, const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX }, made = addr;
	struct stat st;
	int ret;

	if (strlen(path) + strlen(MADE) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	strcpy(s->path, path);
	strcpy(stpcpy(made.sun_path, path), MADE);
	/* The file takes over the mode of the socket: private from its first moment,
	 * without touching the process's umask (unix(7), net/unix/af_unix.c). */
	if (fchmod(s->fd, 0600) < 0)
		return -errno;
	ret = remove_stale(&addr);
	if (ret)
		return ret;
	/* Under its name it answers from the first moment: wg(8) takes a socket that refuses for a
	 * stale one and removes it. What is left of one that was killed here is ours: we have the
	 * folder's lock. */
	unlink(made.sun_path);
	if (bind(s->fd, (struct sockaddr *)&made, sizeof(made)) < 0)
		return -errno;
	ret = lstat(made.sun_path, &st) < 0 ? -errno : 0;
	/* In case the kernel did not keep its promise about the mode. */
	if (!ret && (st.st_mode & 0777) != 0600 && chmod(made.sun_path, 0600) < 0)
		ret = -errno;
	if (!ret && (listen(s->fd, BACKLOG) < 0 || rename(made.sun_path, path) < 0))
		ret = -errno;
	if (ret) {
		unlink(made.sun_path);
		return ret;
	}
	s->owns_file = true;
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	return 0;
}
#undef MADE

static bool file_is_ours(const struct uapi_server *s)
{
	struct stat st;

	return lstat(s->path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino;
}

/* Not being able to watch is no reason to refuse service. */
static void watch_file(struct uapi_server *s)
{
	s->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (s->inotify_fd < 0)
		return;
	/* A bound socket keeps its inode, so that a removed file shows as a change
	 * of its link count (IN_ATTRIB) and not as IN_DELETE_SELF. */
	if (inotify_add_watch(s->inotify_fd, s->path, IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF) >=
		0)
		return;
	close(s->inotify_fd);
	s->inotify_fd = -1;
}

static void read_inotify(struct uapi_server *s)
{
	char events[1024];

	while (read(s->inotify_fd, events, sizeof(events)) > 0)
		;
	if (!s->is_unlinked && !file_is_ours(s)) {
		s->is_unlinked = true;
		log_line(LOG_INFO, "configuration socket: %s was removed", s->path);
	}
}

/* ---- Open and close. */

static int server_create(struct uapi_server **out, const struct uapi_server_ops *ops, void *ctx)
{
	struct uapi_server *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->ops = ops;
	s->ctx = ctx;
	s->fd = -1;
	s->inotify_fd = -1;
	*out = s;
	return 0;
}

int uapi_server_open(
	struct uapi_server **out, const char *path, const struct uapi_server_ops *ops, void *ctx)
{
	struct uapi_server *s;
	int dir_fd;
	int ret = server_create(&s, ops, ctx);

	if (ret)
		return ret;
	dir_fd = open_dir(path);
	if (dir_fd < 0) {
		ret = dir_fd;
		goto close_server;
	}
	s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s->fd < 0) {
		ret = -errno;
		goto close_dir;
	}
	/* Two of us must not find the same stale file and both replace it. */
	ret = flock(dir_fd, LOCK_EX) < 0 ? -errno : bind_path(s, path);
	if (ret)
		goto close_dir;
	watch_file(s);
	close(dir_fd);
	*out = s;
	return 0;
close_dir:
	close(dir_fd);
close_server:
	uapi_server_close(s);
	return ret;
}

static int socket_option(int fd, int option, int *out)
{
	socklen_t len = sizeof(*out);

	return getsockopt(fd, SOL_SOCKET, option, out, &len) < 0 ? -errno : 0;
}

/* Find the file of an adopted socket, so that its removal can be noticed. */
static void find_file(struct uapi_server *s)
{
	struct sockaddr_un addr = { 0 };
	socklen_t len = sizeof(addr);
	struct stat st;

	if (getsockname(s->fd, (struct sockaddr *)&addr, &len) < 0 || addr.sun_path[0] != '/')
		return;
	snprintf(s->path, sizeof(s->path), "%.*s", (int)sizeof(addr.sun_path) - 1, addr.sun_path);
	if (lstat(s->path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return;
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	watch_file(s);
}

int uapi_server_adopt(
	struct uapi_server **out, int fd, const struct uapi_server_ops *ops, void *ctx)
{
	int domain, type, is_listening, flags;
	struct uapi_server *s;
	int ret = socket_option(fd, SO_DOMAIN, &domain);

	if (!ret)
		ret = socket_option(fd, SO_TYPE, &type);
	if (!ret)
		ret = socket_option(fd, SO_ACCEPTCONN, &is_listening);
	if (ret)
		return ret;
	if (domain != AF_UNIX || type != SOCK_STREAM || !is_listening)
		return -EINVAL;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
		fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return -errno;
	ret = server_create(&s, ops, ctx);
	if (ret)
		return ret;
	s->fd = fd;
	find_file(s);
	*out = s;
	return 0;
}

static void client_close(struct uapi_server *s, size_t i)
{
	struct client *c = s->clients[i];

	close(c->fd);
	uapi_reader_fini(&c->reader);
	uapi_reply_end(c->reply);
	uapi_text_fini(&c->out);
	crypto_wipe(c->in, c->in_len);
	free(c);
	s->clients[i] = s->clients[--s->n_clients];
}

void uapi_server_close(struct uapi_server *s)
{
	if (!s)
		return;
	while (s->n_clients)
		client_close(s, s->n_clients - 1);
	if (s->owns_file && file_is_ours(s))
		unlink(s->path);
	if (s->inotify_fd >= 0)
		close(s->inotify_fd);
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}

bool uapi_server_is_unlinked(const struct uapi_server *s)
{
	return s->is_unlinked;
}

size_t uapi_server_clients(const struct uapi_server *s)
{
	return s->n_clients;
}

/* ---- One client. */

static bool has_output(const struct client *c)
{
	return c->out_sent < c->out.len || c->reply;
}

/* Waits for the other side to go on with something that it began. */
static bool is_stuck(const struct client *c)
{
	return has_output(c) || c->is_draining || uapi_reader_is_half(&c->reader);
}

static void reply_error(struct client *c, const char *op, const char *why, int code, int sent_code)
{
	log_line(LOG_WARN, "configuration socket: %s refused: %s (%s)", op, why, strerror(-code));
	uapi_reply_end(c->reply);
	c->reply = NULL;
	uapi_text_fini(&c->out);
	uapi_put(&c->out, "errno=%d\n\n", sent_code);
}

/* Make more of the reply, as much as has room. */
static void fill_out(struct client *c)
{
	c->n_fills++;
	if (uapi_reply_more(c->reply, &c->out, OUT_CAP))
		return;
	uapi_reply_end(c->reply);
	c->reply = NULL;
}

static void reply_get(struct uapi_server *s, struct client *c)
{
	int ret = s->ops->get(s->ctx, &c->out);

	if (!ret && c->out.has_failed)
		ret = -ENOMEM;
	if (!ret)
		ret = uapi_reply_begin(&c->reply, s->ops->device(s->ctx));
	if (!ret)
		fill_out(c);
	/* Later there will be no need for more memory of this kind. */
	if (!ret && c->out.has_failed)
		ret = -ENOMEM;
	/* wg(8) reads the status of get as a positive number ... */
	if (ret)
		reply_error(c, "get", "no reply could be made", ret, -ret);
}

static void reply_set(struct uapi_server *s, struct client *c, uint64_t now_ns)
{
	int ret = s->ops->apply(s->ctx, &c->reader.change);

	if (!s->trim_ns)
		s->trim_ns = now_ns + TRIM_NS;
	/* A large one is not kept until the client says more. */
	gateway_change_fini(&c->reader.change);
	/* ... and that of set as a negative one, which is what wireguard-go sends. */
	if (ret)
		reply_error(c, "set", "it could not be applied", ret, ret);
	else
		uapi_put(&c->out, "errno=0\n\n");
}

static void handle_event(
	struct uapi_server *s, struct client *c, enum uapi_event event, uint64_t now_ns)
{
	const struct uapi_error *e = &c->reader.error;

	uapi_text_fini(&c->out);
	c->out_sent = 0;
	switch (event) {
	case UAPI_MORE:
		return;
	case UAPI_GET:
		reply_get(s, c);
		return;
	case UAPI_SET:
		reply_set(s, c, now_ns);
		return;
	case UAPI_FATAL:
		c->is_hangup = true;
		/* fall through */
	case UAPI_BAD:
		reply_error(c, "request", e->text, e->code, e->code);
		return;
	}
}

/* true: go on; false: this client is finished. */
static bool client_send(struct client *c, uint64_t now_ns)
{
	while (has_output(c)) {
		ssize_t n;

		if (c->out_sent == c->out.len) {
			if (c->n_fills >= OUT_FILLS)
				return true;
			uapi_text_clear(&c->out);
			c->out_sent = 0;
			fill_out(c);
			if (!c->out.len)
				break;
		}
		n = send(c->fd, c->out.p + c->out_sent, c->out.len - c->out_sent,
			MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		c->out_sent += (size_t)n;
		c->progress_ns = now_ns;
	}
	if (c->out.has_failed)
		return false;
	if (has_output(c))
		return true;
	uapi_text_fini(&c->out);
	c->out_sent = 0;
	if (!c->is_hangup)
		return true;
	c->is_hangup = false;
	c->is_draining = true;
	return !c->has_ended && shutdown(c->fd, SHUT_WR) == 0;
}

/* Work through what was read, one request after the other. */
static bool client_parse(struct uapi_server *s, struct client *c, uint64_t now_ns)
{
	while (c->in_used < c->in_len && !has_output(c)) {
		size_t used;
		enum uapi_event event = uapi_reader_feed(
			&c->reader, c->in + c->in_used, c->in_len - c->in_used, &used);

		c->in_used += used;
		handle_event(s, c, event, now_ns);
		if (!client_send(c, now_ns))
			return false;
		if (c->is_hangup || c->is_draining)
			c->in_used = c->in_len;
	}
	if (c->in_used < c->in_len)
		return true;
	crypto_wipe(c->in, c->in_len);
	c->in_len = 0;
	c->in_used = 0;
	return true;
}

/* End of input: whatever is half sent is refused; what is owed is still written. */
static bool client_end(struct uapi_server *s, struct client *c, uint64_t now_ns)
{
	c->has_ended = true;
	handle_event(s, c, uapi_reader_end(&c->reader), now_ns);
	c->is_hangup = true;
	return client_send(c, now_ns);
}

/* One read and what follows from it. *is_dry: there was nothing (more) to read. */
static bool client_read(struct uapi_server *s, struct client *c, uint64_t now_ns, bool *is_dry)
{
	ssize_t n;

	assert(c->in_len == 0); /* what was read is used up first */
	n = recv(c->fd, c->in, sizeof(c->in), MSG_DONTWAIT);
	*is_dry = true;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0)
		return !c->is_draining && client_end(s, c, now_ns);
	*is_dry = (size_t)n < sizeof(c->in);
	if (c->is_draining) {
		crypto_wipe(c->in, (size_t)n);
		return true;
	}
	c->progress_ns = now_ns;
	c->in_len = (size_t)n;
	c->in_used = 0;
	return client_parse(s, c, now_ns);
}

static bool client_run(struct uapi_server *s, struct client *c, short revents, uint64_t now_ns)
{
	bool is_dry = false;

	c->n_fills = 0;
	if (revents & POLLNVAL)
		return false;
	if (has_output(c)) {
		if (!client_send(c, now_ns))
			return false;
		if (has_output(c))
			return !(revents & POLLERR);
	}
	/* A reply is out: requests that came with the answered one are next. */
	if (!client_parse(s, c, now_ns))
		return false;
	for (int i = 0; i < READS_PER_RUN && !is_dry; i++) {
		if (has_output(c) || c->has_ended)
			return true;
		if (!client_read(s, c, now_ns, &is_dry))
			return false;
	}
	return true;
}

/* ---- Room. */

/* The client that has been without progress longest, among the stuck or among
 * the others. n_clients: none. */
static size_t oldest(const struct uapi_server *s, bool want_stuck)
{
	size_t best = s->n_clients;

	for (size_t i = 0; i < s->n_clients; i++) {
		const struct client *c = s->clients[i];

		if (is_stuck(c) != want_stuck)
			continue;
		if (best == s->n_clients || c->progress_ns < s->clients[best]->progress_ns)
			best = i;
	}
	return best;
}

static bool make_room(struct uapi_server *s, uint64_t now_ns)
{
	size_t i = oldest(s, true);

	if (i < s->n_clients && now_ns - s->clients[i]->progress_ns >= STALL_WAITED_NS) {
		log_line(LOG_WARN, "configuration socket: hung up on a client that was stuck");
		client_close(s, i);
		return true;
	}
	i = oldest(s, false);
	if (i == s->n_clients || now_ns - s->clients[i]->progress_ns < IDLE_GRACE_NS)
		return false;
	client_close(s, i);
	return true;
}

static bool is_allowed(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return false;
	if (cred.uid == 0 || cred.uid == geteuid())
		return true;
	log_line(LOG_WARN, "configuration socket: user %u may not use it", (unsigned)cred.uid);
	return false;
}

static void add_client(struct uapi_server *s, int fd, uint64_t now_ns)
{
	struct client *c;

	if (!is_allowed(fd)) {
		close(fd);
		return;
	}
	c = malloc(sizeof(*c));
	if (!c) {
		close(fd);
		return;
	}
	/* Not all of it: the buffers' pages stay untouched until they are used. */
	memset(c, 0, offsetof(struct client, reader));
	uapi_reader_init(&c->reader);
	uapi_text_init(&c->out);
	c->out_sent = 0;
	c->reply = NULL;
	c->n_fills = 0;
	c->in_len = 0;
	c->in_used = 0;
	c->fd = fd;
	c->progress_ns = now_ns;
	s->clients[s->n_clients++] = c;
}

static bool somebody_waits(const struct uapi_server *s)
{
	struct pollfd fd = { s->fd, POLLIN, 0 };

	return poll(&fd, 1, 0) > 0;
}

static void accept_clients(struct uapi_server *s, uint64_t now_ns)
{
	for (int i = 0; i < UAPI_CLIENTS_MAX; i++) {
		int fd;

		/* Nobody loses his place unless there is somebody to take it. */
		s->has_waiting = s->n_clients == UAPI_CLIENTS_MAX && somebody_waits(s);
		if (s->n_clients == UAPI_CLIENTS_MAX && !(s->has_waiting && make_room(s, now_ns)))
			return;
		s->has_waiting = false;
		fd = accept4(s->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd >= 0) {
			add_client(s, fd, now_ns);
			continue;
		}
		/* The listener stays readable: poll would spin. */
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
			log_line(LOG_WARN, "configuration socket: accept: %s", strerror(errno));
			s->paused_until_ns = now_ns + ACCEPT_PAUSE_NS;
		}
		return;
	}
}

static uint64_t client_deadline(const struct uapi_server *s, const struct client *c)
{
	if (!is_stuck(c))
		return UINT64_MAX;
	if (c->is_draining)
		return c->progress_ns + DRAIN_NS;
	return c->progress_ns + (s->has_waiting ? STALL_WAITED_NS : STALL_NS);
}

/* ---- The loop's side. */

size_t uapi_server_pollfds(struct uapi_server *s, struct pollfd *fds, size_t cap)
{
	size_t n = 0;

	/* While somebody waits for a place the listener would report him for ever. */
	if (n < cap)
		fds[n++] = (struct pollfd){ s->has_waiting || s->paused_until_ns ? -1 : s->fd,
			POLLIN, 0 };
	if (n < cap)
		fds[n++] = (struct pollfd){ s->inotify_fd, POLLIN, 0 };
	for (size_t i = 0; i < s->n_clients; i++) {
		struct client *c = s->clients[i];

		c->is_polled = n < cap;
		if (!c->is_polled)
			continue;
		c->poll_i = n;
		fds[n++] = (struct pollfd){ c->fd, has_output(c) ? POLLOUT : POLLIN, 0 };
	}
	return n;
}

uint64_t uapi_server_deadline(const struct uapi_server *s)
{
	uint64_t first = s->paused_until_ns ? s->paused_until_ns : UINT64_MAX;

	if (s->trim_ns && s->trim_ns < first)
		first = s->trim_ns;
	for (size_t i = 0; i < s->n_clients; i++) {
		const struct client *c = s->clients[i];
		uint64_t t = client_deadline(s, c);

		if (s->has_waiting && !is_stuck(c))
			t = c->progress_ns + IDLE_GRACE_NS;
		if (t < first)
			first = t;
	}
	return first;
}

void uapi_server_run(struct uapi_server *s, const struct pollfd *fds, size_t n, uint64_t now_ns)
{
	bool is_due = s->has_waiting;

	if (s->paused_until_ns && now_ns >= s->paused_until_ns) {
		s->paused_until_ns = 0;
		is_due = true;
	}
	if (s->trim_ns && now_ns >= s->trim_ns) {
		s->trim_ns = 0;
		malloc_trim(0);
	}
	if (n > 1 && fds[1].revents)
		read_inotify(s);
	/* Backwards: client_close moves the last one, already served, into the gap. */
	for (size_t i = s->n_clients; i-- > 0;) {
		struct client *c = s->clients[i];
		bool is_ready = c->is_polled && c->poll_i < n && fds[c->poll_i].fd == c->fd &&
			fds[c->poll_i].revents;
		bool is_alive = true;

		if (is_ready)
			is_alive = client_run(s, c, fds[c->poll_i].revents, now_ns);
		if (!is_alive || now_ns >= client_deadline(s, c))
			client_close(s, i);
	}
	if (is_due || (n > 0 && fds[0].fd == s->fd && fds[0].revents))
		accept_clients(s, now_ns);
}
