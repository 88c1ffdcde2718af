/* See log.h. */
#include "base/log.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_LEN = 1024, TAG_MAX = 32 };

static enum log_level max_level = LOG_INFO;
static char tag_text[TAG_MAX];
static int has_journal;

void log_setup(enum log_level max, const char *tag)
{
	max_level = max;
	has_journal = getenv("JOURNAL_STREAM") != NULL;
	snprintf(tag_text, sizeof(tag_text), "%s%s", tag ? tag : "", tag ? ": " : "");
}

/* syscalls: write */
void log_line(enum log_level level, const char *fmt, ...)
{
	static const char *const prefix[] = { "<3>", "<4>", "<6>", "<7>" };
	char line[LINE_MAX_LEN];
	size_t len;
	va_list ap;

	if (level > max_level)
		return;
	len = (size_t)snprintf(
		line, sizeof(line), "%spenstock: %s", has_journal ? prefix[level] : "", tag_text);
	va_start(ap, fmt);
	vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
	va_end(ap);
	len = strlen(line);
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, len) < 0)
		return; /* nowhere left to say it */
}
