#include "bench/vitals.h"
#include "base/clock.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int vitals_resident(pid_t pid, uint64_t *bytes)
{
	char path[64], line[256];
	uint64_t kib;
	FILE *f;
	int n = 0;

	*bytes = 0;
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "VmRSS: %" SCNu64, &kib) != 1 &&
			sscanf(line, "HugetlbPages: %" SCNu64, &kib) != 1)
			continue;
		*bytes += kib * 1024;
		n++;
	}
	fclose(f);
	return n ? 0 : -ESRCH; /* a zombie has neither */
}

int vitals_cpu(pid_t pid, uint64_t *ns)
{
	struct timespec t;
	clockid_t clock;
	int ret = clock_getcpuclockid(pid, &clock);

	if (ret)
		return -ret;
	if (clock_gettime(clock, &t) < 0)
		return -errno;
	*ns = (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
	return 0;
}

int vitals_tree_cpu(pid_t pid, uint64_t *ns)
{
	enum { DEPTH_MAX = 16 }; /* gateways have one helper process */
	pid_t todo[DEPTH_MAX] = { pid };
	char path[64];
	uint64_t one;
	size_t n = 1;
	FILE *f;
	int ret;

	*ns = 0;
	while (n > 0) {
		pid_t at = todo[--n];

		ret = vitals_cpu(at, &one);
		if (ret < 0 && at == pid)
			return ret;
		*ns += ret < 0 ? 0 : one; /* a child that has ended since */
		/* Only those that the main thread started: so do those that we look at. */
		snprintf(path, sizeof(path), "/proc/%d/task/%d/children", at, at);
		f = fopen(path, "re");
		while (f && n < DEPTH_MAX && fscanf(f, "%d", &todo[n]) == 1)
			n++;
		if (f)
			fclose(f);
	}
	return 0;
}

int vitals_idle(uint64_t *ns)
{
	FILE *f = fopen("/proc/stat", "re");
	uint64_t idle, iowait;
	int n;

	if (!f)
		return -errno;
	n = fscanf(f, "cpu %*u %*u %*u %" SCNu64 " %" SCNu64, &idle, &iowait);
	fclose(f);
	if (n != 2)
		return -EPROTO;
	*ns = (idle + iowait) * (NSEC_PER_SEC / (uint64_t)sysconf(_SC_CLK_TCK));
	return 0;
}

bool vitals_listens(pid_t pid, uint16_t port)
{
	enum { LISTENING = 10 }; /* TCP_LISTEN of the kernel's states */
	unsigned local, state;
	char path[64], line[256];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/net/tcp", pid);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f)) {
		found = sscanf(line, " %*u: %*x:%x %*x:%*x %x", &local, &state) == 2 &&
			local == port && state == LISTENING;
	}
	fclose(f);
	return found;
}

int vitals_packets(pid_t pid, const char *ifname, uint64_t *n)
{
	char path[64], line[512];
	int ret = -ENODEV;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/net/dev", pid);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (ret && fgets(line, sizeof(line), f)) {
		char *name = line + strspn(line, " "), *colon = strchr(name, ':');

		if (!colon)
			continue;
		*colon = '\0';
		if (!strcmp(name, ifname) && sscanf(colon + 1, "%*u %" SCNu64, n) == 1)
			ret = 0;
	}
	fclose(f);
	return ret;
}

ssize_t vitals_peer_bytes(int fd, uint64_t *rx_bytes, size_t cap)
{
	static const char request[] = "get=1\n\n", key[] = "rx_bytes=";
	char *line = NULL;
	size_t room = 0;
	ssize_t n = 0;
	int copy, err = -1;
	FILE *f;

	if (write(fd, request, sizeof(request) - 1) < 0)
		return -errno;
	copy = dup(fd);
	f = copy < 0 ? NULL : fdopen(copy, "r");
	if (!f) {
		if (copy >= 0)
			close(copy);
		return -ENOMEM;
	}
	while (err < 0 && getline(&line, &room, f) > 0) {
		if (!strncmp(line, key, sizeof(key) - 1)) {
			if ((size_t)n < cap)
				rx_bytes[n] = strtoull(line + sizeof(key) - 1, NULL, 10);
			n++;
		} else if (!strncmp(line, "errno=", 6)) {
			err = atoi(line + 6);
		}
	}
	free(line);
	fclose(f);
	if (err < 0)
		return -EPIPE; /* it ended before its last line */
	return err ? -err : n;
}
