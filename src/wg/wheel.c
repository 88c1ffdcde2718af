/* Five levels of 64 slots. A slot of level l is 64^l ticks wide; a node lies in the
 * lowest level at which it is less than a whole turn away, and is moved down
 * when the wheel enters its slot. Time moves in wheel_pop only: for
 * each level, the slots between the old and the new position are emptied (found
 * by a bitmap, at most 64 of them, however far the jump) and their nodes are
 * either due or armed again, now at a lower level.
 *
 * A node's tick is its deadline rounded up, and the wheel's tick is now rounded down:
 * nothing fires early. */
#include "wg/wheel.h"
#include <stddef.h>
#include <string.h>

enum { SLOT_MASK = WHEEL_SLOTS - 1 };

static_assert(WHEEL_SLOTS == 64, "one bitmap word per level");

static void list_init(struct wheel_node *head)
{
	head->next = head;
	head->prev = head;
}

static bool list_is_empty(const struct wheel_node *head)
{
	return head->next == head;
}

static void list_append(struct wheel_node *head, struct wheel_node *n)
{
	n->next = head;
	n->prev = head->prev;
	head->prev->next = n;
	head->prev = n;
}

/* Move all of from to the end of to. */
static void list_splice(struct wheel_node *from, struct wheel_node *to)
{
	if (list_is_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}

static uint64_t tick_of_deadline(uint64_t deadline_ns)
{
	uint64_t tick = deadline_ns >> WHEEL_TICK_SHIFT;

	return tick + ((tick << WHEEL_TICK_SHIFT) != deadline_ns);
}

static unsigned shift_of(unsigned level)
{
	return level * WHEEL_SLOT_BITS;
}

void wheel_init(struct wheel *w, uint64_t now_ns)
{
	memset(w, 0, sizeof(*w));
	w->tick = now_ns >> WHEEL_TICK_SHIFT;
	for (unsigned l = 0; l < WHEEL_LEVELS; l++)
		for (unsigned s = 0; s < WHEEL_SLOTS; s++)
			list_init(&w->slots[l][s]);
	list_init(&w->due);
}

/* Link a node that is in no list. */
static void place(struct wheel *w, struct wheel_node *n)
{
	uint64_t tick = tick_of_deadline(n->deadline_ns);
	unsigned level = 0;

	if (tick <= w->tick) {
		n->level = WHEEL_LEVELS;
		list_append(&w->due, n);
		return;
	}
	/* Less than a whole turn of the level away: no slot is met twice. */
	while (level < WHEEL_LEVELS - 1 &&
		(tick >> shift_of(level)) - (w->tick >> shift_of(level)) >= WHEEL_SLOTS)
		level++;
	if ((tick >> shift_of(level)) - (w->tick >> shift_of(level)) >= WHEEL_SLOTS)
		/* Beyond the last level: wait in its farthest slot and be placed anew. */
		tick = w->tick + ((uint64_t)SLOT_MASK << shift_of(level));
	n->level = (uint8_t)level;
	n->slot = tick >> shift_of(level) & SLOT_MASK;
	list_append(&w->slots[level][n->slot], n);
	w->occupied[level] |= 1ULL << n->slot;
}

void wheel_arm(struct wheel *w, struct wheel_node *n, uint64_t deadline_ns)
{
	wheel_cancel(w, n);
	n->deadline_ns = deadline_ns;
	place(w, n);
}

void wheel_cancel(struct wheel *w, struct wheel_node *n)
{
	if (!wheel_is_armed(n))
		return;
	n->prev->next = n->next;
	n->next->prev = n->prev;
	if (n->level < WHEEL_LEVELS && list_is_empty(&w->slots[n->level][n->slot]))
		w->occupied[n->level] &= ~(1ULL << n->slot);
	n->next = NULL;
	n->prev = NULL;
}

/* Slots of a level that are entered when its position goes from a to b. */
static uint64_t slots_entered(uint64_t a, uint64_t b)
{
	uint64_t n = b - a, mask;
	unsigned first = (a + 1) & SLOT_MASK;

	if (n == 0)
		return 0;
	if (n >= WHEEL_SLOTS)
		return ~0ULL;
	mask = (1ULL << n) - 1;
	return first ? mask << first | mask >> (WHEEL_SLOTS - first) : mask;
}

static void advance(struct wheel *w, uint64_t tick)
{
	struct wheel_node moved, *n;

	list_init(&moved);
	for (unsigned l = 0; l < WHEEL_LEVELS; l++) {
		uint64_t hit =
			w->occupied[l] & slots_entered(w->tick >> shift_of(l), tick >> shift_of(l));

		w->occupied[l] &= ~hit;
		for (; hit; hit &= hit - 1)
			list_splice(&w->slots[l][__builtin_ctzll(hit)], &moved);
	}
	w->tick = tick;
	while (!list_is_empty(&moved)) {
		n = moved.next;
		moved.next = n->next;
		n->next->prev = &moved;
		place(w, n);
	}
}

struct wheel_node *wheel_pop(struct wheel *w, uint64_t now_ns)
{
	uint64_t tick = now_ns >> WHEEL_TICK_SHIFT;
	struct wheel_node *n;

	if (tick > w->tick)
		advance(w, tick);
	if (list_is_empty(&w->due))
		return NULL;
	n = w->due.next;
	wheel_cancel(w, n);
	return n;
}

uint64_t wheel_next(const struct wheel *w)
{
	uint64_t best = UINT64_MAX >> WHEEL_TICK_SHIFT;
	bool is_armed = false;

	if (!list_is_empty(&w->due))
		return w->tick << WHEEL_TICK_SHIFT;
	for (unsigned l = 0; l < WHEEL_LEVELS; l++) {
		uint64_t pos = w->tick >> shift_of(l), turned;
		unsigned first = (pos + 1) & SLOT_MASK;

		if (!w->occupied[l])
			continue;
		/* Slots in the order in which they come up, the next one as bit 0. */
		turned = w->occupied[l] >> first;
		if (first)
			turned |= w->occupied[l] << (WHEEL_SLOTS - first);
		pos = (pos + 1 + (unsigned)__builtin_ctzll(turned)) << shift_of(l);
		if (!is_armed || pos < best)
			best = pos;
		is_armed = true;
	}
	return is_armed ? best << WHEEL_TICK_SHIFT : UINT64_MAX;
}
