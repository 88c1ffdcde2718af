/* A bounded lock-free queue of fixed slots: many producers, one consumer. A full
 * queue refuses, and the producer counts the drop. Each slot carries a sequence
 * number that says whose turn it is (Vyukov's bounded queue). No call blocks,
 * allocates (after init) or enters the kernel. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include "base/compiler.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct queue {
	/* read-only after init */
	uint8_t *slots;
	size_t item_len, slot_len;
	uint32_t cap; /* a power of two */
	/* producers */
	_Atomic uint32_t head CACHELINE_ALIGNED;
	/* consumer */
	_Atomic uint32_t tail CACHELINE_ALIGNED;
};

/* cap is a power of two (2 at least), item_len in bytes. 0, -EINVAL, -ENOMEM. */
MUST_CHECK int queue_init(struct queue *q, uint32_t cap, size_t item_len);
void queue_fini(struct queue *q);

/* Copy one item in; false when full. Any thread. */
MUST_CHECK bool queue_push(struct queue *q, const void *item);
/* Copy the oldest item out; false when empty. The consumer only. */
MUST_CHECK bool queue_pop(struct queue *q, void *item);
/* Items inside, about. Any thread. */
uint32_t queue_len(const struct queue *q);

#endif
