/* CPU clocks where the kernel gives one (a process), /proc/.../schedstat where it does not (a
 * thread of another process, a kernel thread): both tell the scheduler's own nanoseconds. */
#include "bench/cputime.h"
#include "base/clock.h"
#include "bench/vitals.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- CPU time. */

/* The first line of a file in a folder of /proc. 0 or negative errno. */
static int read_line(const char *dir, const char *file, char *out, size_t cap)
{
	char path[96];
	FILE *f;
	int ret = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	if (!fgets(out, (int)cap, f))
		ret = -ESRCH; /* it ended meanwhile */
	fclose(f);
	return ret;
}

/* Nanoseconds on a CPU of the task with that folder. */
static int task_ns(const char *dir, uint64_t *ns)
{
	char line[96];
	int ret = read_line(dir, "schedstat", line, sizeof(line));

	if (ret < 0)
		return ret;
	return sscanf(line, "%" SCNu64, ns) == 1 ? 0 : -EPROTO;
}

/* The sum over the tasks in a folder whose names begin so. One that ends while we look is left
 * out. */
static int sum_named(const char *dir, const char *prefix, uint64_t *sum)
{
	char task[64], name[32];
	struct dirent *e;
	DIR *d = opendir(dir);
	uint64_t ns;

	*sum = 0;
	if (!d)
		return errno == ENOENT ? -ESRCH : -errno;
	while ((e = readdir(d))) {
		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		snprintf(task, sizeof(task), "%s/%.16s", dir, e->d_name);
		if (read_line(task, "comm", name, sizeof(name)) < 0 ||
			strncmp(name, prefix, strlen(prefix)) != 0 || task_ns(task, &ns) < 0)
			continue;
		*sum += ns;
	}
	closedir(d);
	return 0;
}

static int read_helpers(pid_t pid, struct cputime *out)
{
	char dir[32];
	int ret;

	snprintf(dir, sizeof(dir), "/proc/%d/task", pid);
	ret = sum_named(dir, "iou-", &out->iou_ns);
	return ret < 0 ? ret : sum_named("/proc", "ksoftirqd/", &out->softirqd_ns);
}

int cputime_read(pid_t pid, struct cputime *out)
{
	int ret = read_helpers(pid, out);

	return ret < 0 ? ret : vitals_cpu(pid, &out->process_ns);
}

size_t cputime_helpers(pid_t *out, size_t max)
{
	char dir[48], name[32];
	struct dirent *e;
	DIR *d = opendir("/proc/self/task");
	size_t n = 0;

	if (!d)
		return 0;
	while ((e = readdir(d))) {
		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		snprintf(dir, sizeof(dir), "/proc/self/task/%.16s", e->d_name);
		if (read_line(dir, "comm", name, sizeof(name)) < 0 || strncmp(name, "iou-", 4) != 0)
			continue;
		if (n < max)
			out[n] = (pid_t)atoi(e->d_name);
		n++;
	}
	closedir(d);
	return n;
}

int cputime_thread(pid_t tid, uint64_t *ns)
{
	/* As pthread_getcpuclockid makes it, which wants a thread of pthread_create. */
	clockid_t clock = (clockid_t)(~(unsigned)tid << 3 | 4 | 2);
	struct timespec ts;

	if (clock_gettime(clock, &ts))
		return -errno;
	*ns = (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
	return 0;
}

struct cputime cputime_since(const struct cputime *after, const struct cputime *before)
{
	return (struct cputime){
		.process_ns = after->process_ns - before->process_ns,
		.iou_ns = after->iou_ns - before->iou_ns,
		.softirqd_ns = after->softirqd_ns - before->softirqd_ns,
	};
}

uint64_t cputime_sum(const struct cputime *t)
{
	return t->process_ns + t->softirqd_ns;
}

/* ---- System calls. */

static int tracepoint_id(uint64_t *id)
{
	static const char *const dirs[] = { "/sys/kernel/tracing/events/raw_syscalls/sys_enter",
		"/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter" };
	char line[32];
	size_t i;
	int ret = -ENOENT;

	for (i = 0; i < ARRAY_LEN(dirs) && ret < 0; i++)
		ret = read_line(dirs[i], "id", line, sizeof(line));
	if (ret < 0)
		return ret;
	return sscanf(line, "%" SCNu64, id) == 1 ? 0 : -ENOENT;
}

/* Append a counter for one thread and what it starts. */
static int count_thread(struct syscall_counter *c, struct perf_event_attr *attr, pid_t tid)
{
	int *fds = realloc(c->fds, (c->n + 1) * sizeof(*fds));
	long fd;

	if (!fds)
		return -ENOMEM;
	c->fds = fds;
	fd = syscall(SYS_perf_event_open, attr, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
	if (fd < 0)
		return -errno;
	c->fds[c->n++] = (int)fd;
	return 0;
}

static int count_process(struct syscall_counter *c, struct perf_event_attr *attr, pid_t pid)
{
	char dir[32];
	struct dirent *e;
	DIR *d;
	int ret = 0;

	if (!pid)
		return count_thread(c, attr, 0);
	snprintf(dir, sizeof(dir), "/proc/%d/task", pid);
	d = opendir(dir);
	if (!d)
		return errno == ENOENT ? -ESRCH : -errno;
	while (!ret && (e = readdir(d))) {
		if (e->d_name[0] < '0' || e->d_name[0] > '9')
			continue;
		ret = count_thread(c, attr, (pid_t)atoi(e->d_name));
		if (ret == -ESRCH)
			ret = 0; /* it ended meanwhile */
	}
	closedir(d);
	return !ret && !c->n ? -ESRCH : ret;
}

int syscall_counter_open(struct syscall_counter *c, pid_t pid)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.inherit = 1,
	};
	uint64_t id;
	int ret = tracepoint_id(&id);

	*c = (struct syscall_counter){ 0 };
	if (ret < 0)
		return ret;
	attr.config = id;
	ret = count_process(c, &attr, pid);
	if (ret < 0)
		syscall_counter_close(c);
	return ret;
}

const char *syscall_counter_reason(int err)
{
	switch (err) {
	case -ENOENT:
		return "no tracepoint raw_syscalls:sys_enter here (tracefs is not mounted, or the "
		       "kernel has none)";
	case -EACCES:
	case -EPERM:
		return "system calls cannot be counted without CAP_PERFMON or root";
	case -ENOSYS:
	case -EOPNOTSUPP:
		return "the kernel counts no events (perf_event_open)";
	case -EMFILE:
		return "a counter for each thread takes more descriptors than there are";
	}
	return strerror(-err);
}

int syscall_counter_read(const struct syscall_counter *c, uint64_t *n)
{
	uint64_t one;
	size_t i;

	*n = 0;
	for (i = 0; i < c->n; i++) {
		if (read(c->fds[i], &one, sizeof(one)) != sizeof(one))
			return errno ? -errno : -EIO;
		*n += one;
	}
	return 0;
}

void syscall_counter_close(struct syscall_counter *c)
{
	size_t i;

	for (i = 0; i < c->n; i++)
		close(c->fds[i]);
	free(c->fds);
	*c = (struct syscall_counter){ 0 };
}
