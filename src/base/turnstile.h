/* Who shares a descriptor with others and wants what came in order to leave in order:
 * a ticket is drawn under the lock, with the read, and what followed from it leaves when
 * the ticket's turn has come. Work between the two runs side by side.
 *
 * 1. turnstile_lock; read; turnstile_take if something came; turnstile_unlock
 * 2. work
 * 3. turnstile_enter; send; turnstile_leave
 *
 * Who has a ticket must enter and leave, or all others wait for ever. */
#ifndef BASE_TURNSTILE_H
#define BASE_TURNSTILE_H

#include "base/compiler.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct turnstile {
	/* whoever holds the lock */
	pthread_mutex_t lock CACHELINE_ALIGNED;
	uint64_t next;
	/* whoever is inside */
	_Atomic uint64_t turn CACHELINE_ALIGNED;
	/* whoever waits in turnstile_lock_interruptible, and who unlocks then */
	_Atomic uint32_t n_waiting CACHELINE_ALIGNED;
	_Atomic uint32_t n_unlocks;
};

/* 0 or negative errno. */
MUST_CHECK int turnstile_init(struct turnstile *t);
void turnstile_fini(struct turnstile *t);

/* One at a time. turnstile_lock may block: a reader (base/rcu.h) goes offline before. */
void turnstile_lock(struct turnstile *t);
/* false, without the lock: a signal handler that was installed without SA_RESTART ran while
 * it waited. One that ran before is not noticed. */
MUST_CHECK bool turnstile_lock_interruptible(struct turnstile *t);
MUST_CHECK bool turnstile_trylock(struct turnstile *t);
void turnstile_unlock(struct turnstile *t);
/* The next ticket. The holder of the lock. */
uint64_t turnstile_take(struct turnstile *t);

/* Wait until all earlier tickets have left. Gives way to others while it waits. */
void turnstile_enter(struct turnstile *t, uint64_t ticket);
/* Whoever is inside. */
void turnstile_leave(struct turnstile *t);

#endif
