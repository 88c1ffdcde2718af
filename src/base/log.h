/* One line per event on standard error: "penstock: wg0: text". With systemd's
 * journal (JOURNAL_STREAM set) lines carry the <N> priority prefix. Never given
 * a secret. Any thread; one write(2) per line. Not for the packet path. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/compiler.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* The least important level that is printed (LOG_INFO at start) and a tag put
 * before each line (an interface name; copied; NULL for none). Call before the
 * threads start. */
void log_setup(enum log_level max, const char *tag);

void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
