/* Between fork and exec only system calls are made: the bench may have threads. */
#include "bench/program.h"
#include "bench/rounds.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_NOT_STARTED = 127, GRACE_MS = 2000 };

/* In the child. Whatever fails ends it. */
static void become(const struct program *p, const struct program_place *where, pid_t parent,
	const char *const argv[])
{
	int input = where->input;

	setpgid(0, 0);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		return;
	if (where->mntns >= 0 && setns(where->mntns, CLONE_NEWNS) < 0)
		return;
	if (where->netns >= 0 && setns(where->netns, CLONE_NEWNET) < 0)
		return;
	if (input < 0)
		input = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (dup2(input, STDIN_FILENO) < 0 || dup2(p->out, STDOUT_FILENO) < 0 ||
		dup2(p->err, STDERR_FILENO) < 0)
		return;
	execvp(argv[0], (char *const *)argv);
	dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
}

static void close_files(struct program *p)
{
	if (p->pid && p->pidfd >= 0)
		close(p->pidfd);
	if (p->out > 0)
		close(p->out);
	if (p->err > 0)
		close(p->err);
	*p = (struct program){ 0 };
}

int program_start(struct program *p, const struct program_place *where, const char *const argv[])
{
	pid_t parent = getpid();
	int ret;

	*p = (struct program){ .pidfd = -1 };
	p->out = memfd_create("out", MFD_CLOEXEC);
	p->err = memfd_create("err", MFD_CLOEXEC);
	if (p->out < 0 || p->err < 0)
		goto fail;
	p->pid = fork();
	if (p->pid < 0) {
		p->pid = 0;
		goto fail;
	}
	if (!p->pid) {
		become(p, where, parent, argv);
		_exit(EXIT_NOT_STARTED);
	}
	p->pidfd = pidfd_open(p->pid, 0);
	if (p->pidfd >= 0)
		return 0;
	ret = -errno;
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
	close_files(p);
	return ret;
fail:
	ret = -errno;
	close_files(p);
	return ret;
}

/* Has it ended within that time? EINTR counts as the end of the time. */
static bool has_ended(const struct program *p, int timeout_ms)
{
	struct pollfd fd = { .fd = p->pidfd, .events = POLLIN };

	return poll(&fd, 1, timeout_ms) > 0;
}

static void collect(struct program *p, int *status)
{
	while (waitpid(p->pid, status, 0) < 0 && errno == EINTR)
		;
	close(p->pidfd);
	p->pidfd = -1;
	p->pid = 0;
}

int program_wait(struct program *p, int timeout_ms, int *status)
{
	enum { STEP_MS = 50 };
	int left;

	if (!p->pid)
		return -ECHILD;
	for (left = timeout_ms; left > 0; left -= STEP_MS) {
		if (has_ended(p, left < STEP_MS ? left : STEP_MS)) {
			collect(p, status);
			return 0;
		}
		if (rounds_stopped())
			return -EINTR;
	}
	return -ETIMEDOUT;
}

bool program_is_running(const struct program *p)
{
	return p->pid && !has_ended(p, 0);
}

static void read_file(int fd, char *out, size_t cap)
{
	ssize_t len = fd > 0 ? pread(fd, out, cap - 1, 0) : 0;

	out[len > 0 ? len : 0] = '\0';
}

void program_output(const struct program *p, char *out, size_t cap)
{
	read_file(p->out, out, cap);
}

void program_errors(const struct program *p, char *out, size_t cap)
{
	read_file(p->err, out, cap);
}

void program_end(struct program *p)
{
	int left, status;

	if (p->pid) {
		kill(p->pid, SIGTERM);
		/* In steps: a second Ctrl-C cuts one short, not the whole. */
		for (left = GRACE_MS; left > 0 && !has_ended(p, 20); left -= 20)
			;
		if (left <= 0)
			kill(p->pid, SIGKILL);
		collect(p, &status);
	}
	close_files(p);
}
