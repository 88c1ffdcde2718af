/* A slot's words are written by whoever holds its flag; the next counter is read
 * without, by those who wait for it.
 *
 * syscalls: sched_yield */
#include "gateway/order.h"
#include "base/clock.h"
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum {
	SPINS = 100, /* looks before it yields */
	FRESH = 1024, /* an unknown session with lower counters has just begun, with 0 */
	VAIN_SHARE = 8, /* one part in so many of a thread's time may be waited in vain */
};
#define VAIN_MAX (32 * NSEC_PER_MSEC) /* at once, after a while without */

struct order_slot {
	atomic_flag busy;
	uint32_t patience_us;
	_Atomic uint64_t session; /* receiver index, and HAS_SESSION */
	_Atomic uint64_t next; /* the counter that it goes on with */
} CACHELINE_ALIGNED;

struct order {
	struct order_slot slots[ORDER_SLOTS];
};

#define HAS_SESSION (1ULL << 32)

/* A thread that waits keeps all its peers waiting. So what one of them loses on its way, or
 * leaves out on purpose, is waited for only as long as this lasts. */
static _Thread_local struct purse {
	uint64_t credit_ns;
	uint64_t paid_ns; /* when it was last topped up; 0: never */
} purse;

int order_create(struct order **out)
{
	struct order *o = aligned_alloc(64, sizeof(*o));

	if (!o)
		return -ENOMEM;
	for (unsigned i = 0; i < ORDER_SLOTS; i++) {
		struct order_slot *s = &o->slots[i];

		atomic_flag_clear(&s->busy);
		s->patience_us = ORDER_PATIENCE_MAX_US;
		atomic_init(&s->session, 0);
		atomic_init(&s->next, 0);
	}
	*out = o;
	return 0;
}

void order_destroy(struct order *o)
{
	free(o);
}

static void relax(unsigned n)
{
	if (n < SPINS)
		cpu_relax();
	else
		sched_yield();
}

static void lock(struct order_slot *s)
{
	/* acquire: pairs with the release in unlock */
	for (unsigned n = 0; atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire); n++)
		relax(n);
}

static void unlock(struct order_slot *s)
{
	/* release: the slot is whole again for the next holder */
	atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

/* relaxed, all of them: what they say is judged again under the flag */
static uint64_t get(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void put(_Atomic uint64_t *v, uint64_t value)
{
	atomic_store_explicit(v, value, memory_order_relaxed);
}

/* Something before `first` is missing. */
static bool has_gap(const struct order_slot *s, uint64_t session, uint64_t first)
{
	if (get(&s->session) == session)
		return get(&s->next) < first;
	return first > 0 && first < FRESH;
}

static void learn_patience(struct order_slot *s, bool has_paid)
{
	if (has_paid && s->patience_us < ORDER_PATIENCE_MAX_US)
		s->patience_us *= 2;
	else if (!has_paid && s->patience_us > ORDER_PATIENCE_MIN_US)
		s->patience_us /= 2;
}

static uint64_t earn(uint64_t now_ns)
{
	uint64_t income = (now_ns - purse.paid_ns) / VAIN_SHARE;

	purse.paid_ns = now_ns;
	purse.credit_ns = income > VAIN_MAX - purse.credit_ns ? VAIN_MAX : purse.credit_ns + income;
	return purse.credit_ns;
}

static void spend(uint64_t ns)
{
	purse.credit_ns -= ns < purse.credit_ns ? ns : purse.credit_ns;
}

/* How long to wait. */
static uint64_t patience_ns(const struct order_slot *s, uint64_t now_ns)
{
	uint64_t patience = s->patience_us * (NSEC_PER_MSEC / 1000), credit = earn(now_ns);

	return patience < credit ? patience : credit;
}

struct order_slot *order_enter(struct order *o, uint32_t receiver, uint64_t first)
{
	/* Indices look random in all their bits (wire/wgindex.h). */
	struct order_slot *s = &o->slots[receiver % ORDER_SLOTS];
	uint64_t session = HAS_SESSION | receiver, deadline_ns = 0;
	uint64_t start_ns = 0, now_ns = 0;
	unsigned n = 0;
	bool has_paid;

	lock(s);
	while (has_gap(s, session, first)) {
		now_ns = clock_now_ns();
		if (!deadline_ns) {
			start_ns = now_ns;
			deadline_ns = now_ns + patience_ns(s, now_ns);
		} else if (now_ns >= deadline_ns) {
			break;
		}
		unlock(s);
		while (has_gap(s, session, first) && clock_now_ns() < deadline_ns)
			relax(n++);
		lock(s);
	}
	if (deadline_ns) {
		has_paid = !has_gap(s, session, first);
		learn_patience(s, has_paid);
		if (!has_paid)
			spend(now_ns - start_ns);
	}
	if (get(&s->session) != session) {
		/* Its first train, or two sessions meet here. */
		put(&s->next, 0);
		put(&s->session, session);
	}
	return s;
}

void order_leave(struct order_slot *s, uint64_t next)
{
	if (get(&s->next) < next)
		put(&s->next, next);
	unlock(s);
}
