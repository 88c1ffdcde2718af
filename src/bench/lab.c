/* Namespaces have no names: a descriptor keeps each alive. The one thing that
 * gateways and wg(8) share by name is the folder of configuration sockets, so
 * the lab has a mount namespace with an empty tmpfs there. A process, the
 * keeper, lives in it and does nothing: through /proc/KEEPER/root the bench
 * reaches these sockets too. */
#include "bench/lab.h"
#include "bench/rounds.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	RUN_TIMEOUT_MS = 300000, /* wg setconf of 100,000 peers on a slow machine */
	READY_TIMEOUT_MS = 10000,
};

#define SOCKETS_DIR "/var/run/wireguard"

struct lab {
	const char *penstock;
	int home; /* the namespace that it was made in */
	int mntns;
	pid_t keeper;
	char sockets[PATH_MAX]; /* SOCKETS_DIR without symbolic links */
	bool made_sockets; /* the folder was not there before */
	int ns[LAB_NS_MAX];
	int n_ns;
	struct program programs[LAB_PROGRAMS_MAX];
	char error[LAB_TEXT_MAX];
};

/* ---- What is there. */

bool lab_has(const char *name)
{
	const char *at = getenv("PATH");
	char path[PATH_MAX];
	size_t len;

	if (strchr(name, '/'))
		return access(name, X_OK) == 0;
	for (; at && *at; at += len + (at[len] == ':')) {
		len = strcspn(at, ":");
		snprintf(path, sizeof(path), "%.*s/%s", (int)len, at, name);
		if (access(path, X_OK) == 0)
			return true;
	}
	return false;
}

static const char *wireguard_go(void)
{
	const char *path = getenv("PENSTOCK_WIREGUARD_GO");

	return path && *path ? path : "wireguard-go";
}

const char *lab_missing(const char *penstock)
{
	if (!penstock)
		return "it is not known which program starts a gateway";
	if (geteuid())
		return "network namespaces need root";
	if (access("/dev/net/tun", R_OK | W_OK) < 0)
		return "/dev/net/tun cannot be used (modprobe tun)";
	if (!lab_has("ip"))
		return "ip (Debian package iproute2) is not in PATH";
	if (!lab_has("wg"))
		return "wg (Debian package wireguard-tools) is not in PATH";
	return NULL;
}

const char *lab_kind_missing(enum lab_kind kind)
{
	if (kind == LAB_WIREGUARD_GO && !lab_has(wireguard_go()))
		return "wireguard-go is not in PATH, and PENSTOCK_WIREGUARD_GO names none";
	return NULL;
}

/* ---- Errors. */

const char *lab_error(const struct lab *l)
{
	return l->error;
}

/* Keep ret's errno with what was being done; returns ret. */
static int failed(struct lab *l, int ret, const char *what)
{
	snprintf(l->error, sizeof(l->error), "%s: %s", what, strerror(-ret));
	return ret;
}

/* ---- The keeper of the mount namespace. */

static void keep(const char *sockets, int ready)
{
	static const char ok = 1;

	setpgid(0, 0);
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || unshare(CLONE_NEWNS) < 0 ||
		mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("penstock-bench", sockets, "tmpfs", 0, "mode=0755") < 0) {
		_exit(EXIT_FAILURE);
	}
	if (write(ready, &ok, 1) == 1)
		for (;;)
			pause();
	_exit(EXIT_FAILURE);
}

static int open_sockets_dir(struct lab *l)
{
	if (mkdir(SOCKETS_DIR, 0755) == 0)
		l->made_sockets = true;
	else if (errno != EEXIST)
		return -errno;
	return realpath(SOCKETS_DIR, l->sockets) ? 0 : -errno;
}

static int start_keeper(struct lab *l)
{
	int fd[2], ret = open_sockets_dir(l);
	char path[64], ok;

	if (ret < 0)
		return ret;
	if (pipe2(fd, O_CLOEXEC) < 0)
		return -errno;
	l->keeper = fork();
	if (!l->keeper)
		keep(l->sockets, fd[1]);
	close(fd[1]);
	if (l->keeper < 0) {
		l->keeper = 0;
		ret = -EAGAIN;
	} else if (read(fd[0], &ok, 1) != 1) {
		ret = -EPERM; /* what makes unshare and mount fail for root */
	}
	close(fd[0]);
	if (ret < 0)
		return ret;
	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", l->keeper);
	l->mntns = open(path, O_RDONLY | O_CLOEXEC);
	return l->mntns < 0 ? -errno : 0;
}

static void stop_keeper(struct lab *l)
{
	if (!l->keeper)
		return;
	kill(l->keeper, SIGKILL);
	while (waitpid(l->keeper, NULL, 0) < 0 && errno == EINTR)
		;
}

/* ---- The lab. */

int lab_create(struct lab **out, const char *penstock)
{
	struct lab *l = calloc(1, sizeof(*l));
	int ret;

	if (!l)
		return -ENOMEM;
	l->penstock = penstock;
	l->mntns = -1;
	l->home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	ret = l->home < 0 ? -errno : start_keeper(l);
	if (ret < 0) {
		lab_destroy(l);
		return ret;
	}
	*out = l;
	return 0;
}

void lab_destroy(struct lab *l)
{
	int i;

	if (!l)
		return;
	for (i = LAB_PROGRAMS_MAX - 1; i >= 0; i--)
		program_end(&l->programs[i]);
	stop_keeper(l);
	for (i = 0; i < l->n_ns; i++)
		close(l->ns[i]);
	if (l->mntns >= 0)
		close(l->mntns);
	if (l->home >= 0)
		close(l->home);
	if (l->made_sockets)
		rmdir(SOCKETS_DIR); /* stays where somebody uses it by now */
	free(l);
}

int lab_enter(const struct lab *l, int ns)
{
	if (!l)
		return 0;
	assert(ns >= 0);
	assert(ns < l->n_ns);
	return setns(l->ns[ns], CLONE_NEWNET) < 0 ? -errno : 0;
}

void lab_leave(const struct lab *l)
{
	/* Root went out, so root gets back in; going on elsewhere would be worse. */
	if (l && setns(l->home, CLONE_NEWNET) < 0)
		abort();
}

int lab_ns(struct lab *l)
{
	int fd, ret = 0;

	if (l->n_ns == LAB_NS_MAX)
		return failed(l, -ENOSPC, "network namespace");
	if (unshare(CLONE_NEWNET) < 0)
		return failed(l, -errno, "network namespace");
	fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		ret = -errno;
	lab_leave(l);
	if (ret < 0)
		return failed(l, ret, "network namespace");
	l->ns[l->n_ns++] = fd;
	ret = lab_ip(l, l->n_ns - 1, "link set lo up");
	return ret < 0 ? ret : l->n_ns - 1;
}

/* ---- Programs that run to their end. */

static int text_file(const char *text)
{
	size_t len = strlen(text), at = 0;
	int fd = memfd_create("in", MFD_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	while (at < len) {
		n = write(fd, text + at, len - at);
		if (n <= 0) {
			close(fd);
			return -EIO;
		}
		at += (size_t)n;
	}
	lseek(fd, 0, SEEK_SET);
	return fd;
}

/* Its name and the first line of what it complained about. Our own programs say their name
 * themselves. */
static int complaint(struct lab *l, const char *name, const struct program *p, int ret)
{
	char text[LAB_TEXT_MAX - 64];

	program_errors(p, text, sizeof(text));
	text[strcspn(text, "\n")] = '\0';
	if (*text && !strcmp(name, l->penstock)) {
		snprintf(l->error, sizeof(l->error), "%s", text);
		return ret;
	}
	snprintf(l->error, sizeof(l->error), "%.40s: %s", name, *text ? text : strerror(-ret));
	return ret;
}

int lab_run(struct lab *l, int ns, const char *input, const char *const argv[])
{
	struct program_place where = { l->ns[ns], l->mntns, -1 };
	struct program p;
	int status = 0, ret;

	assert(ns >= 0);
	assert(ns < l->n_ns);
	if (input) {
		where.input = text_file(input);
		if (where.input < 0)
			return failed(l, where.input, argv[0]);
	}
	ret = program_start(&p, &where, argv);
	if (where.input >= 0)
		close(where.input);
	if (ret < 0)
		return failed(l, ret, argv[0]);
	ret = program_wait(&p, RUN_TIMEOUT_MS, &status);
	if (!ret && status)
		ret = -EIO;
	if (ret < 0)
		complaint(l, argv[0], &p, ret);
	program_end(&p);
	return ret;
}

int lab_read(struct lab *l, int ns, const char *const argv[], int limit_ms, char *out, size_t cap)
{
	const struct program_place where = { l->ns[ns], l->mntns, -1 };
	struct program p;
	int status = 0, ret;

	assert(ns >= 0);
	assert(ns < l->n_ns);
	assert(cap > 0);
	out[0] = '\0';
	ret = program_start(&p, &where, argv);
	if (ret < 0)
		return failed(l, ret, argv[0]);
	ret = program_wait(&p, limit_ms, &status);
	if (!ret && status)
		ret = -EIO;
	if (ret < 0)
		complaint(l, argv[0], &p, ret);
	program_output(&p, out, cap);
	program_end(&p);
	return ret;
}

void lab_kind_version(struct lab *l, enum lab_kind kind, char out[LAB_TEXT_MAX])
{
	const char *const argv[] = { kind == LAB_PENSTOCK ? l->penstock : wireguard_go(),
		"--version", NULL };

	if (lab_read(l, 0, argv, READY_TIMEOUT_MS, out, LAB_TEXT_MAX) < 0)
		out[0] = '\0';
	out[strcspn(out, "\n")] = '\0';
}

int lab_ip(struct lab *l, int ns, const char *fmt, ...)
{
	static const char *const argv[] = { "ip", "-batch", "-", NULL };
	char *text;
	va_list ap;
	int ret;

	va_start(ap, fmt);
	ret = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (ret < 0)
		return -ENOMEM;
	ret = lab_run(l, ns, text, argv);
	free(text);
	return ret;
}

int lab_veth(struct lab *l, int ns_a, const char *name_a, const char *address_a, int ns_b,
	const char *name_b, const char *address_b)
{
	int ret;

	/* ip takes the path of a namespace for its name. */
	ret = lab_ip(l, ns_a, "link add %s type veth peer name %s netns /proc/%d/fd/%d\n", name_a,
		name_b, getpid(), l->ns[ns_b]);
	if (!ret)
		ret = lab_ip(
			l, ns_a, "addr add %s dev %s\nlink set %s up\n", address_a, name_a, name_a);
	if (!ret)
		ret = lab_ip(
			l, ns_b, "addr add %s dev %s\nlink set %s up\n", address_b, name_b, name_b);
	return ret;
}

int lab_sysctl(struct lab *l, int ns, const char *key, const char *value)
{
	char path[128];
	int fd, ret;

	snprintf(path, sizeof(path), "/proc/sys/%s", key);
	ret = lab_enter(l, ns);
	if (ret < 0)
		return failed(l, ret, key);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		ret = failed(l, -errno, key);
	if (fd >= 0)
		close(fd);
	lab_leave(l);
	return ret;
}

/* ---- Programs that go on. */

int lab_start(struct lab *l, int ns, const char *const argv[])
{
	const struct program_place where = { l->ns[ns], l->mntns, -1 };
	int i, ret;

	assert(ns >= 0);
	assert(ns < l->n_ns);
	for (i = 0; i < LAB_PROGRAMS_MAX && l->programs[i].out; i++)
		;
	if (i == LAB_PROGRAMS_MAX)
		return failed(l, -ENOSPC, argv[0]);
	ret = program_start(&l->programs[i], &where, argv);
	return ret < 0 ? failed(l, ret, argv[0]) : i;
}

void lab_end(struct lab *l, int program)
{
	program_end(&l->programs[program]);
}

pid_t lab_pid(const struct lab *l, int program)
{
	const struct program *p = &l->programs[program];

	return program_is_running(p) ? p->pid : 0;
}

void lab_complaint(const struct lab *l, int program, char out[LAB_TEXT_MAX])
{
	program_errors(&l->programs[program], out, LAB_TEXT_MAX);
	out[strcspn(out, "\n")] = '\0';
}

/* ---- Gateways. */

int lab_connect(const struct lab *l, const char *ifname)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	int fd, n;

	n = snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/%d/root%s/%s.sock", l->keeper,
		l->sockets, ifname);
	if (n < 0 || (size_t)n >= sizeof(sa.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) < 0) {
		int ret = -errno;

		close(fd);
		return ret;
	}
	return fd;
}

static int wait_ready(struct lab *l, struct program *p, const char *ifname)
{
	enum { STEP_MS = 10 };
	int left, fd, status;

	for (left = READY_TIMEOUT_MS; left > 0; left -= STEP_MS) {
		fd = lab_connect(l, ifname);
		if (fd >= 0) {
			close(fd);
			return 0;
		}
		switch (program_wait(p, STEP_MS, &status)) {
		case 0:
			return -ECHILD;
		case -EINTR:
			return -EINTR;
		}
	}
	return -ETIMEDOUT;
}

int lab_gateway(struct lab *l, int ns, enum lab_kind kind, const char *ifname)
{
	static const char *const nothing[] = { NULL };

	return lab_gateway_with(l, ns, kind, ifname, nothing);
}

int lab_gateway_with(
	struct lab *l, int ns, enum lab_kind kind, const char *ifname, const char *const more[])
{
	const char *ours[LAB_ARGUMENTS_MAX + 6] = { l->penstock, "gateway", ifname, "--log-level",
		"warn" };
	const char *theirs[LAB_ARGUMENTS_MAX + 4] = { wireguard_go(), "-f", ifname };
	const char **argv = kind == LAB_PENSTOCK ? ours : theirs;
	size_t n = kind == LAB_PENSTOCK ? 5 : 3, i;
	int program, ret;

	for (i = 0; more[i]; i++) {
		if (i == LAB_ARGUMENTS_MAX)
			return failed(l, -E2BIG, argv[0]);
		argv[n++] = more[i];
	}
	program = lab_start(l, ns, argv);
	if (program < 0)
		return program;
	ret = wait_ready(l, &l->programs[program], ifname);
	if (!ret)
		return program;
	complaint(l, argv[0], &l->programs[program], ret);
	lab_end(l, program);
	return ret;
}

void lab_gateway_end(struct lab *l, int gateway)
{
	lab_end(l, gateway);
}

pid_t lab_gateway_pid(const struct lab *l, int gateway)
{
	return lab_pid(l, gateway);
}

int lab_setconf(struct lab *l, const char *ifname, const char *conf)
{
	const char *const argv[] = { "wg", "setconf", ifname, "/dev/stdin", NULL };

	assert(l->n_ns > 0);
	return lab_run(l, 0, conf, argv); /* wg speaks through the socket: any namespace will do */
}
