/* How it works: one anonymous mapping, rounded up to whole 2 MiB pages, handed
 * out from the front and never given back piece by piece. Reserved huge pages
 * are tried first and filled at once, since a control group may refuse them at
 * the first touch with SIGBUS. Otherwise a mapping aligned to 2 MiB with
 * MADV_HUGEPAGE, of which only touched pages count. */
#include "base/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { HUGE_LEN = 2 << 20, PIECE_ALIGN = 64 };

static void *map_anon(size_t len, int flags)
{
	void *p;

	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static uint8_t *map_reserved(size_t cap)
{
	void *p;

	p = map_anon(cap, MAP_HUGETLB | MAP_HUGE_2MB);
	if (!p)
		return NULL;
	/* EINVAL: a kernel before 5.14, where the reservation must do. */
	if (madvise(p, cap, MADV_POPULATE_WRITE) && errno != EINVAL) {
		munmap(p, cap);
		return NULL;
	}
	return p;
}

static uint8_t *map_aligned(size_t cap)
{
	size_t head;
	uint8_t *p;

	p = map_anon(cap + HUGE_LEN, MAP_NORESERVE);
	if (!p)
		return NULL;
	head = -(uintptr_t)p & (HUGE_LEN - 1);
	if (head)
		munmap(p, head);
	munmap(p + head + cap, HUGE_LEN - head);
	/* A kernel without transparent huge pages refuses; plain pages then. */
	(void)madvise(p + head, cap, MADV_HUGEPAGE);
	return p + head;
}

int arena_init(struct arena *a, size_t cap)
{
	memset(a, 0, sizeof(*a));
	if (cap == 0)
		cap = 1;
	if (cap > SIZE_MAX / 2)
		return -ENOMEM;
	cap = (cap + HUGE_LEN - 1) & ~(size_t)(HUGE_LEN - 1);

	a->base = map_reserved(cap);
	a->is_huge = a->base != NULL;
	if (!a->base)
		a->base = map_aligned(cap);
	if (!a->base)
		return -ENOMEM;
	a->cap = cap;
	return 0;
}

void arena_fini(struct arena *a)
{
	if (a->base)
		munmap(a->base, a->cap);
	memset(a, 0, sizeof(*a));
}

void *arena_take(struct arena *a, size_t len)
{
	uint8_t *p = a->base + a->len;

	if (len > a->cap - a->len)
		return NULL;
	/* cap is a multiple of 64, so rounding up stays within it. */
	a->len += (len + PIECE_ALIGN - 1) & ~(size_t)(PIECE_ALIGN - 1);
	return p;
}
