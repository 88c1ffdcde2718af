/* How it works: the lock is a mutex, and who waits for a mutex cannot be interrupted. So who
 * wants to be only tries the mutex, and between two tries sleeps on the number of unlocks.
 * No wake-up is lost: n_waiting is counted up before the number is read and the mutex
 * tried, and looked at after the mutex was let go, both by read-modify-write. If the count
 * comes first, the unlock is told. If the look does, it and the unlock before it happen
 * before the try.
 *
 * syscalls: sched_yield futex */
#include "base/turnstile.h"
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 200 }; /* looks before it yields: about the time of a short send */

int turnstile_init(struct turnstile *t)
{
	t->next = 0;
	atomic_init(&t->turn, 0);
	atomic_init(&t->n_waiting, 0);
	atomic_init(&t->n_unlocks, 0);
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

bool turnstile_lock_interruptible(struct turnstile *t)
{
	bool is_locked = turnstile_trylock(t), is_interrupted = false;

	if (is_locked)
		return true;
	/* acquire: pairs with the release in turnstile_unlock */
	atomic_fetch_add_explicit(&t->n_waiting, 1, memory_order_acq_rel);
	while (!is_interrupted) {
		uint32_t n = atomic_load_explicit(&t->n_unlocks, memory_order_acquire);

		is_locked = turnstile_trylock(t);
		if (is_locked)
			break;
		is_interrupted = syscall(SYS_futex, &t->n_unlocks, FUTEX_WAIT_PRIVATE, n, NULL) &&
			errno == EINTR;
	}
	atomic_fetch_sub_explicit(&t->n_waiting, 1, memory_order_relaxed);
	return is_locked;
}

bool turnstile_trylock(struct turnstile *t)
{
	return pthread_mutex_trylock(&t->lock) == 0;
}

void turnstile_unlock(struct turnstile *t)
{
	pthread_mutex_unlock(&t->lock);
	/* A read-modify-write, see above. */
	if (atomic_fetch_add_explicit(&t->n_waiting, 0, memory_order_acq_rel) == 0)
		return;
	/* release: whoever sees the number sees the mutex free */
	atomic_fetch_add_explicit(&t->n_unlocks, 1, memory_order_release);
	syscall(SYS_futex, &t->n_unlocks, FUTEX_WAKE_PRIVATE, 1);
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
