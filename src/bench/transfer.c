/* The sockets are opened in the main thread, in their namespaces; the threads block in
 * them until they are shut down. */
#include "bench/transfer.h"
#include "base/clock.h"
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { PIECE = 128 * 1024, CONNECT_S = 10 };

struct transfer {
	pthread_t writer, reader;
	int out, in;
	_Atomic uint64_t n_read; /* written by the reader alone */
};

static void *run_writer(void *arg)
{
	static const uint8_t piece[PIECE];
	struct transfer *t = arg;

	while (send(t->out, piece, sizeof(piece), MSG_NOSIGNAL) > 0)
		;
	return NULL;
}

static void *run_reader(void *arg)
{
	struct transfer *t = arg;
	uint8_t *piece = malloc(PIECE);
	uint64_t sum = 0;
	ssize_t n;

	while (piece && (n = recv(t->in, piece, PIECE, 0)) > 0) {
		sum += (uint64_t)n;
		atomic_store_explicit(&t->n_read, sum, memory_order_relaxed);
	}
	free(piece);
	return NULL;
}

static int open_socket(const struct lab *l, int ns)
{
	int fd, ret = lab_enter(l, ns);

	if (ret < 0)
		return ret;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ret = fd < 0 ? -errno : fd;
	lab_leave(l);
	return ret;
}

static int listen_at(const struct lab *l, int ns, const struct sockaddr_in *at)
{
	const int on = 1;
	int fd = open_socket(l, ns), ret;

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (const struct sockaddr *)at, sizeof(*at)) < 0 || listen(fd, 1) < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return fd;
}

static int connect_to(const struct lab *l, int ns, const struct sockaddr_in *to)
{
	struct timeval limit = { .tv_sec = CONNECT_S };
	int fd = open_socket(l, ns), ret;

	if (fd < 0)
		return fd;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(fd, (const struct sockaddr *)to, sizeof(*to)) < 0) {
		ret = errno == EINPROGRESS ? -ETIMEDOUT : -errno;
		close(fd);
		return ret;
	}
	/* The writer may be blocked longer than that while a flood is on. */
	limit.tv_sec = 0;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return fd;
}

/* Both ends of a connection. */
static int join(struct transfer *t, const struct lab *l, int from_ns, int to_ns,
	const struct sockaddr_in *at)
{
	int listener = listen_at(l, to_ns, at), ret = 0;

	if (listener < 0)
		return listener;
	t->out = connect_to(l, from_ns, at);
	if (t->out < 0)
		ret = t->out;
	if (!ret) {
		t->in = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (t->in < 0) {
			ret = -errno;
			close(t->out);
		}
	}
	close(listener);
	return ret;
}

static int start_threads(struct transfer *t)
{
	int ret = -pthread_create(&t->reader, NULL, run_reader, t);

	if (ret < 0)
		return ret;
	ret = -pthread_create(&t->writer, NULL, run_writer, t);
	if (ret < 0) {
		shutdown(t->in, SHUT_RDWR);
		pthread_join(t->reader, NULL);
	}
	return ret;
}

int transfer_start(struct transfer **out, const struct lab *l, int from_ns, int to_ns, uint32_t to,
	uint16_t port)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(to)
	};
	struct transfer *t = calloc(1, sizeof(*t));
	int ret;

	if (!t)
		return -ENOMEM;
	ret = join(t, l, from_ns, to_ns, &at);
	if (ret < 0)
		goto free_transfer;
	ret = start_threads(t);
	if (ret < 0)
		goto close_both;
	*out = t;
	return 0;
close_both:
	close(t->in);
	close(t->out);
free_transfer:
	free(t);
	return ret;
}

uint64_t transfer_bytes(const struct transfer *t)
{
	return atomic_load_explicit(&t->n_read, memory_order_relaxed);
}

void transfer_stop(struct transfer *t)
{
	if (!t)
		return;
	shutdown(t->out, SHUT_RDWR);
	shutdown(t->in, SHUT_RDWR);
	pthread_join(t->writer, NULL);
	pthread_join(t->reader, NULL);
	close(t->in);
	close(t->out);
	free(t);
}
