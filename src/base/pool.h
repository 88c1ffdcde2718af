/* A fixed number of equal slots, last in first out so that the resident set
 * stays small. Take and give are safe from any thread (a short spin lock; the
 * users are slow paths such as staging). */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/compiler.h"
#include <stdatomic.h>
#include <stdint.h>

struct pool {
	uint8_t *base;
	size_t slot_len; /* bytes per slot */
	uint32_t cap; /* slots in all */
	uint32_t fresh; /* slots never used yet: not even touched */
	_Atomic uint32_t n_used; /* written with the lock; read by any thread */
	void *free; /* first word of a free slot points to the next */
	atomic_flag busy;
};

/* cap slots of slot_len bytes (a multiple of 64). Memory is reserved, not
 * touched. 0, or -ENOMEM. */
MUST_CHECK int pool_init(struct pool *p, size_t slot_len, uint32_t cap);
void pool_fini(struct pool *p);

/* A slot, contents undefined; NULL when all are taken. */
void *pool_take(struct pool *p);
void pool_give(struct pool *p, void *slot);
/* Slots that are not taken, about. Any thread. */
static inline uint32_t pool_n_free(const struct pool *p)
{
	return p->cap - atomic_load_explicit(&p->n_used, memory_order_relaxed);
}

#endif
