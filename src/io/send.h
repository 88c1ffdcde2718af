/* How a batch is sent by the engines that send with a system call. */
#ifndef IO_SEND_H
#define IO_SEND_H

#include "io/io.h"

/* As engine_ops.send. Any thread. */
size_t send_messages(int fd, enum io_kind kind, struct io_tx *tx, size_t n);

#endif
