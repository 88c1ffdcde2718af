/* How it works: a SOCK_SEQPACKET pair from the command to the daemon carries one
 * byte, the command's exit status. The command waits for it; the end of the
 * connection without it means that the daemon died. A first child makes the
 * session and ends at once, so that the second one is init's child and cannot
 * get a terminal again. /dev/null is opened at once: later nothing may be opened
 * for writing (doc/sandbox.md).
 *
 * syscalls(start): socketpair fork waitpid recv setsid open close
 * syscalls: send dup2 chdir close */
#include "gateway/daemon.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The command's remaining life. */
static _Noreturn void wait_and_exit(int fd, pid_t first_child)
{
	uint8_t status = EXIT_FAILURE;
	ssize_t ret;

	while (waitpid(first_child, NULL, 0) < 0 && errno == EINTR)
		;
	do {
		ret = recv(fd, &status, 1, 0);
	} while (ret < 0 && errno == EINTR);
	_exit(ret == 1 ? status : EXIT_FAILURE);
}

int daemon_start(struct daemon *d)
{
	int ret, pair[2];
	pid_t pid;

	d->fd = -1;
	d->null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (d->null < 0)
		return -errno;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		ret = -errno;
		close(d->null);
		return ret;
	}
	/* What is buffered would be written by both. */
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		ret = -errno;
		close(pair[0]);
		close(pair[1]);
		close(d->null);
		return ret;
	}
	if (pid > 0) {
		close(pair[1]);
		wait_and_exit(pair[0], pid);
	}
	close(pair[0]);
	if (setsid() < 0)
		_exit(EXIT_FAILURE);
	pid = fork();
	if (pid != 0)
		_exit(pid < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
	d->fd = pair[1];
	return 0;
}

static int send_status(struct daemon *d, int status)
{
	uint8_t byte = (uint8_t)status;
	ssize_t ret;

	do {
		ret = send(d->fd, &byte, 1, MSG_NOSIGNAL);
	} while (ret < 0 && errno == EINTR);
	ret = ret < 0 ? -errno : 0;
	close(d->fd);
	d->fd = -1;
	return (int)ret;
}

static int leave_terminal(int null)
{
	int ret = 0;

	fflush(NULL);
	for (int fd = 0; fd <= STDERR_FILENO; fd++) {
		if (dup2(null, fd) < 0)
			ret = -errno;
	}
	if (null > STDERR_FILENO)
		close(null);
	if (chdir("/") < 0)
		ret = -errno;
	return ret;
}

int daemon_ready(struct daemon *d)
{
	int ret;

	if (d->fd < 0)
		return 0;
	/* First: who reads our output to its end gets there when the command ends. */
	ret = leave_terminal(d->null);
	return ret < 0 ? ret : send_status(d, EXIT_SUCCESS);
}

void daemon_fail(struct daemon *d, int status)
{
	if (d->fd < 0)
		return;
	/* A failure that looks like success would be worse than a wrong number. */
	if (send_status(d, status > 0 && status <= UINT8_MAX ? status : EXIT_FAILURE) < 0)
		return; /* nobody waits: the log line is all there is */
}
