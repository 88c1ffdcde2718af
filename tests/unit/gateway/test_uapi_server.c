/* The configuration socket against clients that behave and clients that do not,
 * over real UNIX sockets and a clock of our own; and against wg(8) itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/clock.h"
#include "base/log.h"
#include "crypto/crypto.h"
#include "gateway/uapi_server.h"
#include "link/link.h"
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define K1 "0101010101010101010101010101010101010101010101010101010101010101"
#define SEC(n) ((uint64_t)(n)*NSEC_PER_SEC)

/* A device that remembers what it was told. */
struct device {
	int apply_result, get_result;
	unsigned n_applied, n_get;
	uint16_t listen_port;
	size_t n_peers, n_allowed;
	struct wg *wg; /* whose peers follow; NULL: none */
};

struct fixture {
	char dir[64];
	char path[UAPI_PATH_MAX];
	struct device device;
	struct uapi_server *server;
	uint64_t now_ns;
};

static int apply(void *ctx, struct gateway_change *c)
{
	struct device *d = ctx;

	d->n_applied++;
	if (d->apply_result)
		return d->apply_result;
	if (c->has_listen_port)
		d->listen_port = c->listen_port;
	d->n_peers = c->wg.n_peers;
	d->n_allowed = c->n_allowed;
	return 0;
}

static int get(void *ctx, struct uapi_text *out)
{
	struct device *d = ctx;

	d->n_get++;
	uapi_put(out, "private_key=" K1 "\nlisten_port=%u\ndrop_replay=3\n",
		d->listen_port ? d->listen_port : 1);
	return d->get_result;
}

static struct wg *device(void *ctx)
{
	return ((struct device *)ctx)->wg;
}

static const struct uapi_server_ops ops = { apply, get, device };

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	log_setup(LOG_ERROR, NULL);
	strcpy(f->dir, "/tmp/penstock-uapi-XXXXXX");
	if (!mkdtemp(f->dir))
		return -1;
	/* One directory more, which the server has to make. */
	snprintf(f->path, sizeof(f->path), "%s/sub/wg0.sock", f->dir);
	f->now_ns = SEC(1000);
	*state = f;
	return uapi_server_open(&f->server, f->path, &ops, &f->device);
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	char sub[96];

	uapi_server_close(f->server);
	unlink(f->path);
	snprintf(sub, sizeof(sub), "%s/sub", f->dir);
	rmdir(sub);
	rmdir(f->dir);
	free(f);
	return 0;
}

static bool step_for(struct fixture *f, int timeout_ms)
{
	struct pollfd fds[UAPI_POLLFDS_MAX];
	size_t n = uapi_server_pollfds(f->server, fds, UAPI_POLLFDS_MAX);
	int ready = poll(fds, n, timeout_ms);

	assert_true(ready >= 0);
	uapi_server_run(f->server, fds, n, f->now_ns);
	return ready > 0;
}

static bool step(struct fixture *f)
{
	return step_for(f, 0);
}

/* Until there is nothing to do; a server that spins fails here. */
static void settle(struct fixture *f)
{
	for (int i = 0; i < 5000; i++)
		if (!step(f))
			return;
	fail_msg("the server spins");
}

static int dial(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	strcpy(addr.sun_path, path);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* What there is to read; *has_ended when the server hung up. */
static const char *hear(int fd, char *out, size_t cap, bool *has_ended)
{
	size_t len = 0;
	ssize_t n;

	while ((n = recv(fd, out + len, cap - 1 - len, MSG_DONTWAIT)) > 0)
		len += (size_t)n;
	*has_ended = n == 0;
	out[len] = '\0';
	return out;
}

static void expect(int fd, const char *want)
{
	char text[512];
	bool has_ended;

	assert_string_equal(hear(fd, text, sizeof(text), &has_ended), want);
	assert_false(has_ended);
}

#define REPLY(port) "private_key=" K1 "\nlisten_port=" port "\ndrop_replay=3\nerrno=0\n\n"

static void test_get_and_set(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);

	say(fd, "get=1\n\n");
	settle(f);
	expect(fd, REPLY("1"));
	/* The connection lasts; requests may come in pieces and together. */
	say(fd, "set=1\nlisten_po");
	settle(f);
	expect(fd, "");
	say(fd, "rt=777\npublic_key=" K1 "\nallowed_ip=10.0.0.0/8\n\nget=1\n\nget=1\n\n");
	settle(f);
	expect(fd, "errno=0\n\n" REPLY("777") REPLY("777"));
	assert_int_equal(f->device.n_applied, 1);
	assert_int_equal(f->device.n_allowed, 1);
	close(fd);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 0);
}

static void test_errors_are_answered(void **state)
{
	struct fixture *f = *state;
	char text[128];
	bool has_ended;
	int fd = dial(f->path);

	say(fd, "set=1\nlisten_port=99999\nlisten_port=5\n\nget=1\n\n");
	settle(f);
	expect(fd, "errno=-22\n\n" REPLY("1"));
	assert_int_equal(f->device.n_applied, 0);

	f->device.apply_result = -EADDRINUSE;
	say(fd, "set=1\nlisten_port=5\n\n");
	settle(f);
	expect(fd, "errno=-98\n\n");

	/* wg(8) wants the status of get to be positive, and nothing half told before it. */
	f->device.get_result = -ENOMEM;
	say(fd, "get=1\n\n");
	settle(f);
	expect(fd, "errno=12\n\n");

	say(fd, "bogus=1\n");
	settle(f);
	assert_string_equal(hear(fd, text, sizeof(text), &has_ended), "errno=-71\n\n");
	assert_true(has_ended);
	close(fd);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 0);
}

static void test_half_request_then_end(void **state)
{
	struct fixture *f = *state;
	char text[128];
	bool has_ended;
	int fd = dial(f->path);

	say(fd, "set=1\nlisten_port=5\n");
	shutdown(fd, SHUT_WR);
	settle(f);
	assert_string_equal(hear(fd, text, sizeof(text), &has_ended), "errno=-71\n\n");
	assert_true(has_ended);
	assert_int_equal(f->device.n_applied, 0);
	assert_int_equal(uapi_server_clients(f->server), 0);
	close(fd);

	/* A whole request whose sender will say no more is answered. */
	fd = dial(f->path);
	say(fd, "get=1\n\n");
	shutdown(fd, SHUT_WR);
	settle(f);
	assert_non_null(strstr(hear(fd, text, sizeof(text), &has_ended), "private_key="));
	assert_int_equal(uapi_server_clients(f->server), 0);
	close(fd);
}

static void test_endless_line(void **state)
{
	struct fixture *f = *state;
	char block[4096], text[128];
	bool has_ended;
	int fd = dial(f->path);

	memset(block, 'x', sizeof(block));
	say(fd, "set=1\n");
	/* Whoever writes all before he reads must not be killed by SIGPIPE. */
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(
			send(fd, block, sizeof(block), MSG_NOSIGNAL | MSG_DONTWAIT), sizeof(block));
		settle(f);
	}
	/* The answer can be read although we have never stopped sending. */
	assert_string_equal(hear(fd, text, sizeof(text), &has_ended), "errno=-7\n\n");
	assert_true(has_ended);
	/* But not for ever. */
	f->now_ns += SEC(6);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 0);
	close(fd);
}

static void test_hundred_clients(void **state)
{
	enum { N = 100 };
	struct fixture *f = *state;
	int fds[N];

	for (int i = 0; i < N; i++) {
		fds[i] = dial(f->path);
		assert_true(fds[i] >= 0);
		say(fds[i], i % 2 ? "get=1\n" : "set=1\nlisten_port=65536\n");
	}
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), N);
	for (int i = N; i-- > 0;)
		say(fds[i], "\n");
	settle(f);
	for (int i = 0; i < N; i++)
		expect(fds[i], i % 2 ? REPLY("1") : "errno=-22\n\n");
	for (int i = 0; i < N; i += 3)
		close(fds[i]);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), N - (N + 2) / 3);
	for (int i = 1; i < N; i++) {
		if (i % 3 == 0)
			continue;
		say(fds[i], "get=1\n\n");
		settle(f);
		expect(fds[i], REPLY("1"));
		close(fds[i]);
	}
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 0);
}

static void no_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
}

static void no_wake(void *ctx)
{
}

enum { MANY = 20000 };

/* MANY peers: their reply is much more than a socket holds. */
static struct wg *make_large_device(void)
{
	static const struct wg_ops wg_ops = { no_send, no_wake, endpoint_limit_key };
	struct wg_config cfg = { .ops = &wg_ops, .n_workers = 1, .seed = 1 };
	struct wg_peer_change *peers = calloc(MANY, sizeof(*peers));
	struct wg_change c = { .peers = peers, .n_peers = MANY };
	struct wg *wg;

	assert_int_equal(crypto_init(NULL), 0);
	assert_int_equal(wg_create(&wg, &cfg), 0);
	for (unsigned i = 0; i < MANY; i++)
		snprintf((char *)peers[i].public_key, sizeof(peers[i].public_key), "peer %u", i);
	assert_int_equal(wg_apply(wg, &c, SEC(1), SEC(1), NULL, NULL), 0);
	free(peers);
	return wg;
}

static size_t count_lines(const char *block, size_t len, const char *key)
{
	size_t n = 0;

	for (const char *p = block; (p = memmem(p, len - (size_t)(p - block), key, strlen(key)));
		p++)
		n++;
	return n;
}

/* Heap in use, in bytes. */
static size_t heap(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static void test_client_that_never_reads(void **state)
{
	struct fixture *f = *state;
	struct wg *wg = make_large_device();
	int deaf = dial(f->path), other;
	unsigned n_sent = 0;
	size_t n_peers = 0, before;
	char block[65536];
	ssize_t n;

	f->device.wg = wg;
	while (n_sent < 20 && send(deaf, "get=1\n\n", 7, MSG_DONTWAIT | MSG_NOSIGNAL) == 7)
		n_sent++;
	assert_int_equal(n_sent, 20);
	before = heap();
	settle(f);
	/* One reply is begun; the other requests wait for it. */
	assert_int_equal(f->device.n_get, 1);
	/* Of that reply, some 8 MB, only what one buffer takes is there (and what the socket took).
	 */
	assert_true(heap() - before < 256 << 10);
	f->device.wg = NULL;
	other = dial(f->path);
	say(other, "get=1\n\n");
	settle(f);
	expect(other, REPLY("1"));
	f->now_ns += SEC(59);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 2);

	/* It reads at last: it gets all it asked for. */
	for (;;) {
		n = recv(deaf, block, sizeof(block), MSG_DONTWAIT);
		n_peers += n > 0 ? count_lines(block, (size_t)n, "public_k") : 0;
		if (!step(f) && n <= 0)
			break;
	}
	/* A key cut by a block's end goes uncounted. */
	assert_in_range(n_peers, MANY - 200, MANY);
	/* Its own and the one of the other client. */
	assert_int_equal(f->device.n_get, n_sent + 1);

	/* Deaf again, for too long: it has to go, the idle one may stay. */
	f->device.wg = wg;
	say(deaf, "get=1\n\n");
	settle(f);
	assert_true(uapi_server_deadline(f->server) <= f->now_ns + SEC(60));
	f->now_ns += SEC(60);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 1);
	assert_true(uapi_server_deadline(f->server) == UINT64_MAX);
	f->device.wg = NULL;
	say(other, "get=1\n\n");
	settle(f);
	expect(other, REPLY("1"));
	close(deaf);
	close(other);
	/* Its walk ended with it. */
	wg_destroy(wg);
}

/* A client that takes a little now and then: others are served between any two
 * steps, it keeps its place, and peers may go away under it. */
static void test_client_that_reads_slowly(void **state)
{
	struct fixture *f = *state;
	struct wg_change none = { .replaces_peers = true };
	struct wg *wg = make_large_device();
	int slow = dial(f->path), other = dial(f->path);
	char byte, text[65536];
	bool has_ended;

	f->device.wg = wg;
	say(slow, "get=1\n\n");
	settle(f);
	f->device.wg = NULL;
	for (int i = 0; i < 50; i++) {
		assert_int_equal(recv(slow, &byte, 1, MSG_DONTWAIT), 1);
		f->now_ns += SEC(1);
		say(other, "get=1\n\n");
		settle(f);
		expect(other, REPLY("1"));
	}
	assert_int_equal(uapi_server_clients(f->server), 2);
	/* The reply goes on with what is left. */
	assert_int_equal(wg_apply(wg, &none, SEC(2), SEC(2), NULL, NULL), 0);
	while (step(f) || strlen(hear(slow, text, sizeof(text), &has_ended)) == sizeof(text) - 1)
		;
	assert_int_equal(uapi_server_clients(f->server), 2);
	say(slow, "get=1\n\n");
	settle(f);
	expect(slow, REPLY("1"));
	close(slow);
	close(other);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 0);
	wg_destroy(wg);
}

/* A reply is made in turns, so that nobody waits for the whole of another's. */
static void test_turns(void **state)
{
	struct fixture *f = *state;
	struct wg *wg = make_large_device();
	int large = dial(f->path), other = dial(f->path);
	size_t n_peers = 0, n_served = 0;
	char block[1 << 20], text[512];
	bool has_ended;
	ssize_t n;

	f->device.wg = wg;
	say(large, "get=1\n\n");
	step(f);
	step(f);
	f->device.wg = NULL;
	do {
		n = recv(large, block, sizeof(block), MSG_DONTWAIT);
		n_peers += n > 0 ? count_lines(block, (size_t)n, "public_k") : 0;
		say(other, "get=1\n\n");
		step(f);
		n_served += strstr(hear(other, text, sizeof(text), &has_ended), "errno=0") != NULL;
	} while (n > 0);
	assert_in_range(n_peers, MANY - 200, MANY);
	assert_true(n_served > 10);
	close(large);
	close(other);
	settle(f);
	wg_destroy(wg);
}

static void fill_up(struct fixture *f, int *fds, const char *text)
{
	for (int i = 0; i < UAPI_CLIENTS_MAX; i++) {
		fds[i] = dial(f->path);
		assert_true(fds[i] >= 0);
		if (*text)
			say(fds[i], text);
		settle(f);
	}
	assert_int_equal(uapi_server_clients(f->server), UAPI_CLIENTS_MAX);
}

static void test_full_of_halves(void **state)
{
	struct fixture *f = *state;
	int fds[UAPI_CLIENTS_MAX], late;
	uint64_t deadline;

	fill_up(f, fds, "set=1\nlisten_port=5\n");
	late = dial(f->path);
	say(late, "get=1\n\n");
	settle(f);
	expect(late, "");
	deadline = uapi_server_deadline(f->server);
	assert_true(deadline <= f->now_ns + SEC(5));
	/* The stuck ones have five seconds from their last byte. */
	f->now_ns += SEC(4);
	say(fds[7], "fwmark=1\n");
	settle(f);
	expect(late, "");
	f->now_ns = deadline;
	settle(f);
	settle(f);
	expect(late, REPLY("1"));
	/* The one that went on sending is still there. */
	say(fds[7], "\n");
	settle(f);
	expect(fds[7], "errno=0\n\n");
	close(late);
	for (int i = 0; i < UAPI_CLIENTS_MAX; i++)
		close(fds[i]);
}

static void test_full_of_idle(void **state)
{
	struct fixture *f = *state;
	int fds[UAPI_CLIENTS_MAX], late[2];

	fill_up(f, fds, "get=1\n\n");
	late[0] = dial(f->path);
	say(late[0], "get=1\n\n");
	settle(f);
	expect(late[0], "");
	assert_true(uapi_server_deadline(f->server) <= f->now_ns + SEC(1));
	f->now_ns += SEC(1);
	settle(f);
	settle(f);
	expect(late[0], REPLY("1"));
	/* The newcomer is not the next to go. */
	late[1] = dial(f->path);
	say(late[1], "get=1\n\n");
	settle(f);
	settle(f);
	expect(late[1], REPLY("1"));
	say(late[0], "get=1\n\n");
	settle(f);
	expect(late[0], REPLY("1"));
	assert_int_equal(uapi_server_clients(f->server), UAPI_CLIENTS_MAX);
	close(late[0]);
	close(late[1]);
	for (int i = 0; i < UAPI_CLIENTS_MAX; i++)
		close(fds[i]);
	settle(f);
	assert_int_equal(uapi_server_clients(f->server), 0);
}

static void test_file_is_private(void **state)
{
	struct fixture *f = *state;
	char sub[96];
	struct stat st;

	assert_int_equal(stat(f->path, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0600);
	snprintf(sub, sizeof(sub), "%s/sub", f->dir);
	assert_int_equal(stat(sub, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
}

static void test_live_and_stale(void **state)
{
	struct fixture *f = *state;
	struct uapi_server *second = NULL;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, file;

	assert_int_equal(uapi_server_open(&second, f->path, &ops, NULL), -EADDRINUSE);
	/* The attempt did no harm. */
	fd = dial(f->path);
	say(fd, "get=1\n\n");
	settle(f);
	expect(fd, REPLY("1"));
	close(fd);

	/* A socket file that a dead process left. */
	uapi_server_close(f->server);
	f->server = NULL;
	assert_int_equal(access(f->path, F_OK), -1);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	strcpy(addr.sun_path, f->path);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(fd);
	assert_int_equal(uapi_server_open(&f->server, f->path, &ops, &f->device), 0);
	uapi_server_close(f->server);
	f->server = NULL;

	/* A file that is not a socket stays. */
	file = open(f->path, O_CREAT | O_WRONLY, 0600);
	assert_true(file >= 0);
	close(file);
	assert_int_equal(uapi_server_open(&f->server, f->path, &ops, NULL), -EEXIST);
	assert_int_equal(access(f->path, F_OK), 0);
}

static void test_removed_file(void **state)
{
	struct fixture *f = *state;
	struct uapi_server *second = NULL;

	assert_int_equal(chmod(f->path, 0600), 0);
	settle(f);
	assert_false(uapi_server_is_unlinked(f->server));
	assert_int_equal(unlink(f->path), 0);
	settle(f);
	assert_true(uapi_server_is_unlinked(f->server));
	/* The file of the next one is not ours to remove. */
	assert_int_equal(uapi_server_open(&second, f->path, &ops, NULL), 0);
	uapi_server_close(f->server);
	f->server = NULL;
	assert_int_equal(access(f->path, F_OK), 0);
	uapi_server_close(second);
	assert_int_equal(access(f->path, F_OK), -1);
}

static void test_renamed_file(void **state)
{
	struct fixture *f = *state;
	char other[UAPI_PATH_MAX + 8];

	snprintf(other, sizeof(other), "%s.old", f->path);
	assert_int_equal(rename(f->path, other), 0);
	settle(f);
	assert_true(uapi_server_is_unlinked(f->server));
	unlink(other);
}

static void test_adopt(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct uapi_server *bad;
	int pair[2], fd;

	uapi_server_close(f->server);
	f->server = NULL;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(uapi_server_adopt(&bad, pair[0], &ops, NULL), -EINVAL);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(pipe(pair), 0);
	assert_int_equal(uapi_server_adopt(&bad, pair[0], &ops, NULL), -ENOTSOCK);
	close(pair[0]);
	close(pair[1]);

	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	strcpy(addr.sun_path, f->path);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(fd, 5), 0);
	assert_int_equal(uapi_server_adopt(&f->server, fd, &ops, &f->device), 0);
	fd = dial(f->path);
	say(fd, "get=1\n\n");
	settle(f);
	expect(fd, REPLY("1"));
	close(fd);
	settle(f);
	uapi_server_close(f->server);
	f->server = NULL;
	/* Whoever bound it removes it. */
	assert_int_equal(access(f->path, F_OK), 0);
}

static void test_other_users_are_refused(void **state)
{
	struct fixture *f = *state;
	int status = -1;
	pid_t pid;

	if (geteuid() != 0) {
		print_message("skipped: only root can become another user\n");
		skip();
	}
	/* Even if the file lets them in. */
	assert_int_equal(chmod(f->dir, 0755), 0);
	assert_int_equal(chmod(f->path, 0666), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		char c;
		int fd;

		if (setgid(65534) || setuid(65534))
			_exit(3);
		fd = dial(f->path);
		if (fd < 0)
			_exit(4);
		if (send(fd, "get=1\n\n", 7, MSG_NOSIGNAL) < 0)
			_exit(0);
		_exit(recv(fd, &c, 1, 0) > 0 ? 5 : 0);
	}
	while (waitpid(pid, &status, WNOHANG) == 0)
		step_for(f, 10);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(f->device.n_get, 0);
}

static void test_large_request(void **state)
{
	enum { PEERS = 20000 };
	struct fixture *f = *state;
	struct uapi_text t;
	size_t sent = 0;
	int fd = dial(f->path), other = dial(f->path);
	unsigned n_served = 0;
	char text[512];
	bool has_ended;

	uapi_text_init(&t);
	uapi_put(&t, "set=1\n");
	for (int i = 0; i < PEERS; i++)
		uapi_put(&t, "public_key=%064x\nallowed_ip=10.0.0.1/32\nallowed_ip=::1/128\n", i);
	uapi_put(&t, "\n");
	while (sent < t.len) {
		ssize_t n = send(fd, t.p + sent, t.len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		sent += n > 0 ? (size_t)n : 0;
		/* Others are served in the meantime. */
		say(other, "get=1\n\n");
		step(f);
		step(f);
		if (strstr(hear(other, text, sizeof(text), &has_ended), "errno=0"))
			n_served++;
	}
	settle(f);
	expect(fd, "errno=0\n\n");
	assert_int_equal(f->device.n_peers, PEERS);
	assert_int_equal(f->device.n_allowed, 2 * PEERS);
	assert_true(n_served > 1);
	uapi_text_fini(&t);
	close(fd);
	close(other);
}

/* ---- wg(8). Its path is fixed, so the server must be where it looks. */

static int run_wg(struct fixture *f, const char *command, char *out, size_t cap)
{
	int pipefd[2], status = -1;
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe2(pipefd, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(pipefd[1], STDOUT_FILENO);
		dup2(pipefd[1], STDERR_FILENO);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	close(pipefd[1]);
	while (waitpid(pid, &status, WNOHANG) == 0)
		step_for(f, 10);
	while ((n = read(pipefd[0], out + len, cap - 1 - len)) > 0)
		len += (size_t)n;
	out[len] = '\0';
	close(pipefd[0]);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void check_wg(struct fixture *f, const char *ifname)
{
	char command[512], out[2048];

	f->device.listen_port = 4242;
	snprintf(command, sizeof(command), "wg show %s dump", ifname);
	assert_int_equal(run_wg(f, command, out, sizeof(out)), 0);
	assert_non_null(strstr(out, "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\t"));
	assert_non_null(strstr(out, "\t4242\toff"));

	snprintf(command, sizeof(command),
		"wg set %s listen-port 5151 peer "
		"AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI= allowed-ips 10.0.0.0/8,fd00::/64 "
		"endpoint 192.0.2.1:1 persistent-keepalive 25",
		ifname);
	assert_int_equal(run_wg(f, command, out, sizeof(out)), 0);
	assert_int_equal(f->device.listen_port, 5151);
	assert_int_equal(f->device.n_peers, 1);
	assert_int_equal(f->device.n_allowed, 2);

	/* Our errors reach the user as words. */
	f->device.apply_result = -EADDRINUSE;
	assert_int_not_equal(run_wg(f, command, out, sizeof(out)), 0);
	assert_non_null(strstr(out, "Address already in use"));
	f->device.apply_result = 0;
	f->device.get_result = -ENOMEM;
	snprintf(command, sizeof(command), "wg show %s", ifname);
	assert_int_not_equal(run_wg(f, command, out, sizeof(out)), 0);
	assert_non_null(strstr(out, "Cannot allocate memory"));
}

static void test_wg(void **state)
{
	struct fixture *f = *state;
	char ifname[16], path[UAPI_PATH_MAX];
	bool had_dir = access(UAPI_SOCKET_DIR, F_OK) == 0;

	if (geteuid() != 0 || access("/usr/bin/wg", X_OK) < 0) {
		print_message("skipped: needs root and wg(8)\n");
		skip();
	}
	uapi_server_close(f->server);
	f->server = NULL;
	snprintf(ifname, sizeof(ifname), "pu%d", (int)getpid());
	assert_int_equal(
		uapi_server_open(&f->server, uapi_socket_path(path, ifname), &ops, &f->device), 0);
	check_wg(f, ifname);
	uapi_server_close(f->server);
	f->server = NULL;
	assert_int_equal(access(path, F_OK), -1);
	if (!had_dir)
		rmdir(UAPI_SOCKET_DIR);
}

/* Somebody who asks all sockets there are, again and again: wg(8) removes one that refuses.
 * While turn is even the server is being opened, or open; else it goes away. */
static struct {
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	_Atomic unsigned turn, n_refused;
	_Atomic bool is_over;
} asker;

static void *ask_all_the_time(void *arg)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	strcpy(addr.sun_path, asker.path);
	while (!asker.is_over) {
		unsigned turn = asker.turn;
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		bool is_refused = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 &&
			errno == ECONNREFUSED;

		close(fd);
		if (is_refused && turn % 2 == 0 && turn == asker.turn)
			asker.n_refused++;
	}
	return NULL;
}

static void test_answers_from_the_first_moment(void **state)
{
	struct fixture *f = *state;
	pthread_t t;

	strcpy(asker.path, f->path);
	assert_int_equal(pthread_create(&t, NULL, ask_all_the_time, NULL), 0);
	for (unsigned i = 0; i < 2000; i++) {
		asker.turn++;
		uapi_server_close(f->server);
		asker.turn++;
		assert_int_equal(uapi_server_open(&f->server, f->path, &ops, &f->device), 0);
	}
	asker.is_over = true;
	pthread_join(t, NULL);
	assert_int_equal(asker.n_refused, 0);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SERVER(test_get_and_set),
		WITH_SERVER(test_answers_from_the_first_moment),
		WITH_SERVER(test_errors_are_answered),
		WITH_SERVER(test_half_request_then_end),
		WITH_SERVER(test_endless_line),
		WITH_SERVER(test_hundred_clients),
		WITH_SERVER(test_client_that_never_reads),
		WITH_SERVER(test_client_that_reads_slowly),
		WITH_SERVER(test_turns),
		WITH_SERVER(test_full_of_halves),
		WITH_SERVER(test_full_of_idle),
		WITH_SERVER(test_file_is_private),
		WITH_SERVER(test_live_and_stale),
		WITH_SERVER(test_removed_file),
		WITH_SERVER(test_renamed_file),
		WITH_SERVER(test_adopt),
		WITH_SERVER(test_other_users_are_refused),
		WITH_SERVER(test_large_request),
		WITH_SERVER(test_wg),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
