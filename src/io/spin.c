/* Purse, load and the mean gap between batches: all running means that need no history. */
#include "io/spin.h"

#define LOAD_SPAN (20 * NSEC_PER_MSEC) /* busy and idle time are remembered about so long */
#define LENGTH_SPAN (4 << 20) /* and lengths for so many bytes */
#define FRAME_FULL (56 * 1024) /* mean length (by bytes) from which on superframes are full */

void spin_init(struct spin *s, uint64_t now_ns)
{
	*s = (struct spin){ .credit_ns = SPIN_CREDIT_MAX,
		.paid_ns = now_ns,
		.batch_ns = now_ns,
		.resumed_ns = now_ns,
		.gap_ns = 4 * SPIN_GAP_MAX };
}

bool spin_is_loaded(const struct spin *s)
{
	return s->busy_ns > s->idle_ns / 16;
}

static void earn(struct spin *s, uint64_t now_ns)
{
	uint64_t income = (now_ns - s->paid_ns) / SPIN_SHARE;

	s->paid_ns = now_ns;
	s->credit_ns =
		income > SPIN_CREDIT_MAX - s->credit_ns ? SPIN_CREDIT_MAX : s->credit_ns + income;
}

bool spin_may(struct spin *s, uint64_t now_ns)
{
	earn(s, now_ns);
	if (s->gap_ns > SPIN_GAP_MAX || s->credit_ns < SPIN_MAX)
		return false;
	return !spin_is_loaded(s) || s->bytes_by_len / FRAME_FULL > s->bytes;
}

void spin_pay(struct spin *s, uint64_t cost_ns)
{
	if (cost_ns > SPIN_MAX) /* the rest was somebody else's time; spin_may saw this much */
		cost_ns = SPIN_MAX;
	s->credit_ns -= cost_ns > SPIN_FREE ? cost_ns - SPIN_FREE : 0;
}

void spin_note_work(struct spin *s, uint64_t now_ns)
{
	s->busy_ns += now_ns - s->resumed_ns;
	s->resumed_ns = now_ns;
	if (s->busy_ns + s->idle_ns > LOAD_SPAN) {
		s->busy_ns /= 2;
		s->idle_ns /= 2;
	}
	if (s->bytes > LENGTH_SPAN) {
		s->bytes /= 2;
		s->bytes_by_len /= 2;
	}
}

void spin_note_wait(struct spin *s, uint64_t start_ns, uint64_t now_ns, bool has_batch)
{
	uint64_t gap = now_ns - s->batch_ns;

	s->idle_ns += now_ns - start_ns;
	s->resumed_ns = now_ns;
	if (!has_batch)
		return;
	if (gap > 4 * SPIN_GAP_MAX)
		gap = 4 * SPIN_GAP_MAX;
	s->batch_ns = now_ns;
	s->gap_ns = (3 * s->gap_ns + gap) / 4;
}
