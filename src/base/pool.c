/* How it works: slots that came back form a linked list through their first
 * word; only when it is empty is the next never-used slot touched. */
#include "base/pool.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOT_ALIGN = 64, SPINS = 64 };

static void lock(struct pool *p)
{
	unsigned spins = 0;

	/* acquire: pairs with the release in unlock */
	while (atomic_flag_test_and_set_explicit(&p->busy, memory_order_acquire)) {
		/* The holder may have lost its CPU; let it have this one. */
		if (++spins % SPINS == 0)
			sched_yield();
	}
}

static void unlock(struct pool *p)
{
	/* release: the list as we leave it is what the next holder sees */
	atomic_flag_clear_explicit(&p->busy, memory_order_release);
}

int pool_init(struct pool *p, size_t slot_len, uint32_t cap)
{
	size_t len;
	void *base;

	assert(slot_len > 0);
	assert(slot_len % SLOT_ALIGN == 0);
	assert(cap > 0);
	memset(p, 0, sizeof(*p));
	atomic_flag_clear(&p->busy);
	if (__builtin_mul_overflow(slot_len, cap, &len))
		return -ENOMEM;
	base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		-1, 0);
	if (base == MAP_FAILED)
		return -ENOMEM;
	p->base = base;
	p->slot_len = slot_len;
	p->cap = cap;
	return 0;
}

void pool_fini(struct pool *p)
{
	if (p->base)
		munmap(p->base, p->slot_len * p->cap);
	memset(p, 0, sizeof(*p));
}

void *pool_take(struct pool *p)
{
	void *slot = NULL;

	lock(p);
	if (p->free) {
		slot = p->free;
		memcpy(&p->free, slot, sizeof(p->free));
	} else if (p->fresh < p->cap) {
		slot = p->base + p->slot_len * p->fresh++;
	}
	if (slot)
		atomic_fetch_add_explicit(&p->n_used, 1, memory_order_relaxed);
	unlock(p);
	return slot;
}

static bool is_slot(const struct pool *p, const void *slot)
{
	size_t at = (size_t)((const uint8_t *)slot - p->base);

	return at % p->slot_len == 0 && at / p->slot_len < p->fresh;
}

void pool_give(struct pool *p, void *slot)
{
	lock(p);
	assert(is_slot(p, slot));
	assert(pool_n_free(p) < p->cap);
	memcpy(slot, &p->free, sizeof(p->free));
	p->free = slot;
	atomic_fetch_sub_explicit(&p->n_used, 1, memory_order_relaxed);
	unlock(p);
}
