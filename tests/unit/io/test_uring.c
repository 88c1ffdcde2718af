/* What only the io_uring engine has: restrictions, refusal by a sandbox, buffers that come
 * back. What it has in common with the others is in test_engines.c. */
#include "io/io.h"
#include "base/clock.h"
#include "base/rcu.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <pthread.h>
#include <seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static const struct engine_config plain;
static struct io_batch batch;

static unsigned count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* The descriptor of the one ring that there is. */
static int ring_fd(void)
{
	for (int fd = 0; fd < 100; fd++) {
		char path[32], text[64] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, text, sizeof(text) - 1) > 0 && strstr(text, "[io_uring]"))
			return fd;
	}
	fail_msg("there is no ring");
	return -1;
}

static bool read_one(struct engine *e, int from, const char *text)
{
	ssize_t len = (ssize_t)strlen(text);

	assert_int_equal(send(from, text, (size_t)len, 0), len);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(uring_ops.wait(e, &batch, NSEC_PER_SEC), 0);
		if (batch.n > 0)
			return batch.n == 1 && batch.rx[0].len == len &&
				!memcmp(batch.rx[0].data, text, (size_t)len);
	}
	return false;
}

/* Map the engine's ring once more, as somebody could who has taken over the process. A ring
 * with the same numbers of places has the same layout. */
static void map_ring(struct io_uring *out, int fd)
{
	struct io_uring_params p = { .flags = IORING_SETUP_CQSIZE, .cq_entries = 1024 };
	struct io_uring twin;

	assert_int_equal(io_uring_queue_init_params(256, &twin, &p), 0);
	io_uring_queue_exit(&twin);
	memset(out, 0, sizeof(*out));
	assert_int_equal(io_uring_queue_mmap(fd, &p, out), 0);
	out->sq.sqe_head = out->sq.sqe_tail = *out->sq.ktail;
}

/* The result of a request that is put in behind the engine's back. */
static int result_of(struct io_uring *ring, int fd, const struct io_uring_sqe *sqe)
{
	unsigned tail = *ring->sq.ktail, cq_tail;

	ring->sq.sqes[tail & ring->sq.ring_mask] = *sqe;
	io_uring_smp_store_release(ring->sq.ktail, tail + 1);
	assert_int_equal(io_uring_enter((unsigned)fd, 1, 1, IORING_ENTER_GETEVENTS, NULL), 1);
	cq_tail = io_uring_smp_load_acquire(ring->cq.ktail);
	assert_int_not_equal(cq_tail, *ring->cq.khead);
	io_uring_smp_store_release(ring->cq.khead, cq_tail);
	return ring->cq.cqes[(cq_tail - 1) & ring->cq.ring_mask].res;
}

/* What the list of system calls forbids cannot be had by the ring. */
static void test_restrictions(void **state)
{
	struct io_uring_sqe sqe = { .opcode = IORING_OP_OPENAT, .fd = AT_FDCWD };
	/* Spoiled by what is put in behind its back: it is not closed. */
	static struct engine *e;
	struct io_uring ring;
	int pair[2], fd;

	assert_int_equal(uring_ops.open(&e, &plain), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	assert_int_equal(uring_ops.add(e, &(struct io_channel){ pair[0], IO_DGRAM, 0, NULL }), 0);
	assert_true(read_one(e, pair[1], "before"));
	fd = ring_fd();
	map_ring(&ring, fd);
	sqe.addr = (uintptr_t) "/etc/passwd";
	assert_int_equal(result_of(&ring, fd, &sqe), -EACCES);
	/* Neither by a descriptor that is not in the table, nor by a change of the rules. */
	sqe = (struct io_uring_sqe){ .opcode = IORING_OP_READ, .fd = pair[0] };
	assert_int_equal(result_of(&ring, fd, &sqe), -EACCES);
	sqe = (struct io_uring_sqe){ .opcode = IORING_OP_CONNECT, .flags = IOSQE_FIXED_FILE };
	assert_int_equal(result_of(&ring, fd, &sqe), -EACCES);
	assert_int_equal(
		io_uring_register((unsigned)fd, IORING_REGISTER_PERSONALITY, NULL, 0), -EACCES);
	assert_int_not_equal(
		io_uring_register((unsigned)fd, IORING_REGISTER_RESTRICTIONS, NULL, 0), 0);
	munmap(ring.sq.ring_ptr, ring.sq.ring_sz);
	munmap(ring.sq.sqes, ring.sq.ring_entries * sizeof(struct io_uring_sqe));
	close(pair[0]);
	close(pair[1]);
}

/* A sandbox around us forbids rings: said by probe, and "auto" takes another. */
static void test_refused(void **state)
{
	int status = -1;

	if (fork() == 0) {
		scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
		const struct engine_ops *o;

		if (!f || seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(io_uring_setup), 0) ||
			seccomp_load(f))
			_exit(77);
		if (uring_ops.probe(&plain) != -EPERM)
			_exit(1);
		if (engine_pick(&o, "uring", &plain) != -EPERM)
			_exit(2);
		_exit(engine_pick(&o, "auto", &plain) || o == &uring_ops ? 3 : 0);
	}
	assert_true(wait(&status) > 0);
	if (WEXITSTATUS(status) == 77) {
		print_message("skipped: no seccomp here\n");
		skip();
	}
	assert_int_equal(status, 0);
}

/* A number of buffers that is no power of two, or more than the kernel takes. */
static void test_bad_config(void **state)
{
	struct engine_config c = { .buffers = 3 };
	struct engine *e;
	unsigned n = count_fds();

	assert_int_equal(uring_ops.open(&e, &c), -EINVAL);
	c.buffers = 1 << 16;
	assert_int_equal(uring_ops.open(&e, &c), -EINVAL);
	assert_int_equal(count_fds(), n);
}

static void test_shared_channel(void **state)
{
	struct turnstile order = { 0 };
	struct engine *e;

	assert_int_equal(uring_ops.open(&e, &plain), 0);
	assert_int_equal(
		uring_ops.add(e, &(struct io_channel){ .fd = 0, .order = &order }), -EOPNOTSUPP);
	uring_ops.close(e);
}

/* No buffer, no descriptor and no place in a table is lost, with more rounds than
 * there are of any of them. */
static void test_nothing_leaks(void **state)
{
	static const struct engine_config cfgs[] = { { .buffers = 4 },
		{ .buffers = 4, .sqpoll_idle_ms = 1 } };
	unsigned n = count_fds();

	for (size_t k = 0; k < ARRAY_LEN(cfgs); k++) {
		struct engine *e;

		assert_int_equal(uring_ops.open(&e, &cfgs[k]), 0);
		for (int i = 0; i < 40; i++) {
			enum io_kind kind = i % 2 ? IO_FRAME : IO_DGRAM;
			int fd[2];

			assert_int_equal(
				socketpair(AF_UNIX, kind == IO_FRAME ? SOCK_SEQPACKET : SOCK_DGRAM,
					0, fd),
				0);
			assert_int_equal(
				uring_ops.add(e, &(struct io_channel){ fd[0], kind, 1, NULL }), 0);
			assert_true(read_one(e, fd[1], "one"));
			for (int m = 0; m < 8; m++)
				assert_int_equal(send(fd[1], "more", 4, 0), 4);
			if (i % 3)
				assert_int_equal(uring_ops.wait(e, &batch, NSEC_PER_SEC), 0);
			assert_int_equal(uring_ops.drop(e, fd[0]), 0);
			close(fd[0]);
			/* The ring holds it no more: the other end is told at once. */
			assert_int_equal(send(fd[1], "x", 1, MSG_NOSIGNAL), -1);
			close(fd[1]);
		}
		uring_ops.close(e);
	}
	assert_int_equal(count_fds(), n);
}

/* Closed with channels, by another thread than the one that waited. */
static void *wait_once(void *arg)
{
	rcu_thread_init();
	uring_ops.wait(arg, &batch, 0);
	rcu_thread_fini();
	return NULL;
}

static void test_close_elsewhere(void **state)
{
	static const struct engine_config cfgs[] = { { 0 }, { .sqpoll_idle_ms = 1 } };

	for (int i = 0; i < 20; i++) {
		struct engine *e;
		pthread_t t;
		int fd[2];

		assert_int_equal(uring_ops.open(&e, &cfgs[i % 2]), 0);
		assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fd), 0);
		assert_int_equal(
			uring_ops.add(e, &(struct io_channel){ fd[0], IO_DGRAM, 1, NULL }), 0);
		assert_int_equal(pthread_create(&t, NULL, wait_once, e), 0);
		pthread_join(t, NULL);
		uring_ops.close(e);
		close(fd[0]);
		close(fd[1]);
	}
}

/* Closed with channels in the ring's own thread, before and after the first wait: the ring holds
 * them no more, so the other end is told at once. */
static void test_close_lets_go(void **state)
{
	for (int waits = 0; waits < 2; waits++) {
		struct engine *e;
		int fd[2];

		assert_int_equal(uring_ops.open(&e, &plain), 0);
		assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, fd), 0);
		assert_int_equal(
			uring_ops.add(e, &(struct io_channel){ fd[0], IO_DGRAM, 1, NULL }), 0);
		if (waits)
			assert_int_equal(uring_ops.wait(e, &batch, 0), 0);
		uring_ops.close(e);
		close(fd[0]);
		assert_int_equal(send(fd[1], "x", 1, MSG_NOSIGNAL), -1);
		close(fd[1]);
	}
}

/* The other end of a socket pair that has an error pending. */
static void *send_later(void *arg)
{
	struct sockaddr_in *at = arg, from = at[1];
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	usleep(100 * 1000);
	if (!bind(fd, (struct sockaddr *)&from, sizeof(from)))
		(void)!sendto(fd, "late", 4, 0, (struct sockaddr *)&at[0], sizeof(at[0]));
	close(fd);
	return NULL;
}

static int bound(struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t len = sizeof(*at);

	*at = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	assert_int_equal(bind(fd, (struct sockaddr *)at, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
	return fd;
}

/* A pending error ends the request while a wait looks: what comes when that wait blocks
 * must end it. */
static void test_armed_when_it_blocks(void **state)
{
	struct sockaddr_in at[2];
	int fd = bound(&at[0]), gone = bound(&at[1]);
	uint64_t start = clock_now_ns();
	struct engine *e;
	pthread_t t;

	close(gone);
	assert_int_equal(connect(fd, (struct sockaddr *)&at[1], sizeof(at[1])), 0);
	assert_int_equal(uring_ops.open(&e, &plain), 0);
	assert_int_equal(uring_ops.add(e, &(struct io_channel){ fd, IO_DGRAM, 1, NULL }), 0);
	assert_int_equal(uring_ops.wait(e, &batch, 0), 0);
	assert_int_equal(send(fd, "x", 1, 0), 1);
	assert_int_equal(pthread_create(&t, NULL, send_later, at), 0);
	do {
		assert_int_equal(uring_ops.wait(e, &batch, 5 * NSEC_PER_SEC), 0);
	} while (batch.n == 0 && clock_now_ns() - start < 4 * NSEC_PER_SEC);
	pthread_join(t, NULL);
	assert_int_equal(batch.n, 1);
	assert_true(clock_now_ns() - start < 4 * NSEC_PER_SEC);
	uring_ops.close(e);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused), cmocka_unit_test(test_bad_config),
		cmocka_unit_test(test_shared_channel), cmocka_unit_test(test_nothing_leaks),
		cmocka_unit_test(test_close_elsewhere), cmocka_unit_test(test_close_lets_go),
		cmocka_unit_test(test_armed_when_it_blocks),
		cmocka_unit_test(test_restrictions), /* last: leaves a ring behind */
	};
	int ret = uring_ops.probe(&plain);

	if (ret) {
		print_message("skipped: no io_uring here: %s\n", strerror(-ret));
		return 77;
	}
	rcu_thread_init();
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	rcu_thread_fini();
	return ret;
}
