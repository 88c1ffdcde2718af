/* syscalls: sched_yield */
#include "base/turnstile.h"
#include <sched.h>

enum { SPINS = 200 }; /* looks before it yields: about the time of a short send */

int turnstile_init(struct turnstile *t)
{
	t->next = 0;
	atomic_init(&t->turn, 0);
	return -pthread_mutex_init(&t->lock, NULL);
}

void turnstile_fini(struct turnstile *t)
{
	pthread_mutex_destroy(&t->lock);
}

void turnstile_lock(struct turnstile *t)
{
	pthread_mutex_lock(&t->lock);
}

bool turnstile_trylock(struct turnstile *t)
{
	return pthread_mutex_trylock(&t->lock) == 0;
}

void turnstile_unlock(struct turnstile *t)
{
	pthread_mutex_unlock(&t->lock);
}

uint64_t turnstile_take(struct turnstile *t)
{
	return t->next++;
}

void turnstile_enter(struct turnstile *t, uint64_t ticket)
{
	/* acquire: what those before us wrote is seen */
	for (unsigned i = 0; atomic_load_explicit(&t->turn, memory_order_acquire) != ticket; i++) {
		if (i < SPINS)
			cpu_relax();
		else
			sched_yield();
	}
}

void turnstile_leave(struct turnstile *t)
{
	uint64_t turn = atomic_load_explicit(&t->turn, memory_order_relaxed);

	/* release: pairs with the acquire in turnstile_enter */
	atomic_store_explicit(&t->turn, turn + 1, memory_order_release);
}
