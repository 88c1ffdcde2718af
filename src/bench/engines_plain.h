/* What engines are compared with: epoll and recvmmsg as one writes them at first, and as the
 * claims about io_uring have it. Each turn is an epoll_wait that blocks and one recvmmsg of
 * 32 messages; nothing is looked at unasked, nothing spins. Datagrams only, one channel. */
#ifndef BENCH_ENGINES_PLAIN_H
#define BENCH_ENGINES_PLAIN_H

#include "io/io.h"

extern const struct engine_ops plain_ops;

#endif
