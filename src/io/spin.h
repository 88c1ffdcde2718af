/* When an engine that has nothing to read may look for a while before it blocks.
 *
 * A core that sleeps takes longer to wake, and finds its caches colder, than most packets
 * take altogether; so an engine whose batches come close together looks (spins). It gives
 * way to whoever wants the core, and it pays: SPIN_SHARE of the time is its income,
 * SPIN_CREDIT_MAX its purse. So a burst of some seconds has the short round trip, and a
 * trickle that goes on for ever costs no more than that share of a core. A worker with
 * much to do does not spin: what gathers while it sleeps makes longer trains. Only where
 * the TUN gives full superframes anyway is there nothing to gather.
 *
 * Pure: time is an argument (nanoseconds of clock_now_ns). One engine's, in its thread. */
#ifndef IO_SPIN_H
#define IO_SPIN_H

#include "base/clock.h"
#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPIN_SHARE = 16 }; /* one part in so many */
#define SPIN_CREDIT_MAX (3 * NSEC_PER_SEC)
#define SPIN_MAX (10 * NSEC_PER_MSEC) /* before it blocks after all */
#define SPIN_GAP_MAX (10 * NSEC_PER_MSEC) /* mean time between batches: more is a trickle */
#define SPIN_FREE (20 * NSEC_PER_MSEC / 1000) /* blocking and waking costs as much */
#define SPIN_CONTENDED (50 * NSEC_PER_MSEC / 1000) /* a yield that took longer let another run */

struct spin {
	uint64_t credit_ns; /* what it may spin */
	uint64_t paid_ns; /* when credit_ns was last topped up */
	uint64_t batch_ns; /* when a batch last came after a wait */
	uint64_t gap_ns; /* running mean of the time between those */
	uint64_t busy_ns, idle_ns; /* of the last while */
	uint64_t resumed_ns; /* when the last wait ended */
	uint64_t bytes, bytes_by_len; /* of TUN frames of the last while; the second times length */
};

/* A full purse, and nothing known. */
void spin_init(struct spin *s, uint64_t now_ns);
/* More than some 6 % of the time was work. */
bool spin_is_loaded(const struct spin *s);
/* A frame of so many bytes was read from a TUN. */
static inline void spin_note_frame(struct spin *s, size_t len)
{
	s->bytes += len;
	s->bytes_by_len += (uint64_t)len * len;
}
/* There is nothing to read at now_ns: may it spin until now_ns + SPIN_MAX? If it does,
 * spin_pay follows. */
bool spin_may(struct spin *s, uint64_t now_ns);
/* It has spun for so long. */
void spin_pay(struct spin *s, uint64_t cost_ns);
/* After each look and yield: the yield went from before_ns to now_ns, the spin began at
 * start_ns. May it look again? */
static inline bool spin_goes_on(uint64_t start_ns, uint64_t before_ns, uint64_t now_ns)
{
	return now_ns - before_ns < SPIN_CONTENDED && now_ns - start_ns < SPIN_MAX;
}
/* What went on until now_ns, since the last wait or note, was work. */
void spin_note_work(struct spin *s, uint64_t now_ns);
/* A wait went from start_ns to now_ns; has_batch: it brought something. */
void spin_note_wait(struct spin *s, uint64_t start_ns, uint64_t now_ns, bool has_batch);

#endif
