/* A report as JSON. Written to a new file beside the old one and renamed over
 * it, so that a run that fails or is stopped spoils nothing; what is not a
 * regular file (/dev/stdout, a pipe) is written directly. */
#include "bench/report.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* ---- Content. json_*_new functions take over what they are given, NULL
 * included, so that one check at the end finds any failed allocation. */

static void cpu_name(char *out, size_t cap)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];
	const char *text;

	snprintf(out, cap, "unknown");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, "model name", 10) || !(text = strchr(line, ':')))
			continue;
		text += 1 + strspn(text + 1, " \t");
		snprintf(out, cap, "%.*s", (int)strcspn(text, "\n"), text);
		break;
	}
	fclose(f);
}

static json_t *machine_json(void)
{
	char cpu[128];
	struct utsname u;

	cpu_name(cpu, sizeof(cpu));
	if (uname(&u) < 0)
		snprintf(u.release, sizeof(u.release), "unknown");
	return json_pack("{s:s, s:I, s:s}", "cpu", cpu, "cores",
		(json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "kernel", u.release);
}

static json_t *figures_json(const struct report *r)
{
	json_t *list = json_array(), *samples;
	const struct figure *f;
	size_t i, k;

	for (i = 0; i < r->n_figures; i++) {
		f = &r->figures[i];
		if (!f->n_samples)
			continue;
		samples = json_array();
		for (k = 0; k < f->n_samples; k++) {
			if (json_array_append_new(samples, json_real(f->samples[k])) < 0)
				goto fail;
		}
		if (json_array_append_new(list,
			    json_pack("{s:s, s:f, s:s, s:s, s:s, s:o}", "id", f->id, "value",
				    figure_value(f), "unit", f->unit, "claim", f->claim, "note",
				    f->note, "samples", samples)) < 0) {
			samples = NULL; /* json_pack took it */
			goto fail;
		}
	}
	return list;
fail:
	json_decref(samples);
	json_decref(list);
	return NULL;
}

static int append_skip(json_t *list, const char *id, const char *why)
{
	return json_array_append_new(list, json_pack("{s:s, s:s}", "id", id, "why", why));
}

static json_t *skips_json(const struct report *r)
{
	json_t *list = json_array();
	int ret = 0;
	size_t i;

	for (i = 0; i < r->n_figures; i++) {
		if (!r->figures[i].n_samples)
			ret |= append_skip(list, r->figures[i].id, "no sample was taken");
	}
	for (i = 0; i < r->n_skips; i++)
		ret |= append_skip(list, r->skips[i].id, r->skips[i].why);
	if (!ret)
		return list;
	json_decref(list);
	return NULL;
}

static json_t *report_json(const struct report *r)
{
	time_t now = time(NULL);
	struct tm tm;
	char date[32];

	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return json_pack("{s:s, s:s, s:b, s:o, s:o, s:o}", "bench", r->bench, "date", date, "quick",
		r->is_quick, "machine", machine_json(), "figures", figures_json(r), "skipped",
		skips_json(r));
}

/* ---- Where it goes. */

/* true: path exists and is not a regular file, so it cannot be replaced. */
static bool is_special(const char *path)
{
	struct stat st;

	return !stat(path, &st) && !S_ISREG(st.st_mode);
}

/* A new file in the directory of path: what will be renamed over it. */
static int temp_open(const char *path, char **name)
{
	char *text;
	int fd, err;

	if (asprintf(&text, "%s.XXXXXX", path) < 0)
		return -ENOMEM;
	fd = mkostemp(text, O_CLOEXEC);
	if (fd < 0) {
		err = errno;
		free(text);
		return -err;
	}
	*name = text;
	return fd;
}

static int special_open(const char *path)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

int report_json_probe(const char *path)
{
	char *name = NULL;
	int fd;

	if (!*path)
		return -ENOENT;
	if (is_special(path)) {
		fd = special_open(path);
		if (fd >= 0)
			close(fd);
		return fd < 0 ? fd : 0;
	}
	/* Renaming would replace a file that its owner made read-only. */
	if (access(path, W_OK) < 0 && errno != ENOENT)
		return -errno;
	fd = temp_open(path, &name);
	if (fd < 0)
		return fd;
	close(fd);
	unlink(name);
	free(name);
	return 0;
}

static int dump(const json_t *j, int fd)
{
	int flags = fcntl(fd, F_GETFL);

	/* Opened without blocking so that a pipe nobody reads is refused. */
	if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
		return -errno;
	errno = 0;
	if (json_dumpfd(j, fd, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) < 0)
		return errno ? -errno : -EIO;
	if (write(fd, "\n", 1) != 1)
		return errno ? -errno : -EIO;
	return 0;
}

static int replace(const json_t *j, const char *path)
{
	char *name = NULL;
	int fd, ret;

	fd = temp_open(path, &name);
	if (fd < 0)
		return fd;
	ret = dump(j, fd);
	if (!ret && fchmod(fd, 0644) < 0) /* mkostemp made it 0600; figures are no secret */
		ret = -errno;
	if (close(fd) < 0 && !ret)
		ret = -errno;
	if (!ret && rename(name, path) < 0)
		ret = -errno;
	if (ret)
		unlink(name);
	free(name);
	return ret;
}

int report_json_write(const struct report *r, const char *path)
{
	json_t *j = report_json(r);
	int fd, ret;

	if (!j)
		return -ENOMEM;
	if (is_special(path)) {
		fd = special_open(path);
		ret = fd < 0 ? fd : dump(j, fd);
		if (fd >= 0)
			close(fd);
	} else {
		ret = replace(j, path);
	}
	json_decref(j);
	return ret;
}
