/* Which system calls the two processes may make after their start. The tables are
 * made by tools/syscalls when the program is built: see doc/sandbox.md. Constants;
 * any thread. */
#ifndef GATEWAY_CALLS_H
#define GATEWAY_CALLS_H

#include "base/sandbox_filter.h"

extern const struct sandbox_calls gateway_calls; /* the gateway, from the drop on */
extern const struct sandbox_calls helper_calls; /* the helper, once it is ready */

#endif
