/* Memory for packet buffers, taken once at start: reserved huge pages where
 * there are any, transparent ones otherwise, plain pages last. Owned by the
 * caller; the pieces live until arena_fini. One thread. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stdint.h>

struct arena {
	uint8_t *base;
	size_t cap; /* bytes mapped */
	size_t len; /* bytes handed out */
	bool is_huge; /* reserved (hugetlb) pages */
};

/* Map room for cap bytes. 0, or -ENOMEM. */
MUST_CHECK int arena_init(struct arena *a, size_t cap);
void arena_fini(struct arena *a);

/* len bytes, aligned to 64, zeroed. NULL when the arena is used up. */
void *arena_take(struct arena *a, size_t len);

#endif
