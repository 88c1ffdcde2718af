/* Redraws one line with a carriage return; a pipe or a file gets nothing. */
#include "bench/progress.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR_LEN = 30 };

void progress_init(struct progress *p)
{
	p->is_on = isatty(STDERR_FILENO);
	p->percent = -1;
}

void progress_show(struct progress *p, size_t done, size_t total, const char *doing)
{
	static const char bar[] = "##############################";
	int full, percent;

	if (!p->is_on || !total)
		return;
	if (done > total)
		done = total;
	percent = (int)(done * 100 / total);
	full = (int)(done * BAR_LEN / total);
	/* ESC [K: erase what a longer line left. */
	fprintf(stderr, "\r[%.*s%*s] %3d %% %s\033[K", full, bar, BAR_LEN - full, "", percent,
		doing);
	fflush(stderr);
	p->percent = percent;
}

void progress_clear(struct progress *p)
{
	if (p->percent < 0)
		return;
	fputs("\r\033[K", stderr);
	fflush(stderr);
	p->percent = -1;
}
