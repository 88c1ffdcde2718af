/* See queue.h. A slot's sequence number is its position when it is free for
 * the producer of that position, position + 1 when it is filled. */
#include "base/queue.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct slot {
	_Atomic uint32_t seq;
	uint8_t item[];
};

static struct slot *slot_at(const struct queue *q, uint32_t pos)
{
	return (struct slot *)(q->slots + (size_t)(pos & (q->cap - 1)) * q->slot_len);
}

int queue_init(struct queue *q, uint32_t cap, size_t item_len)
{
	/* One slot is too few: filled for this lap would look free for the next. */
	if (cap < 2 || (cap & (cap - 1)) || item_len == 0)
		return -EINVAL;
	q->item_len = item_len;
	q->slot_len = (sizeof(struct slot) + item_len + 7) & ~(size_t)7;
	q->cap = cap;
	q->slots = calloc(cap, q->slot_len);
	if (!q->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < cap; i++)
		atomic_init(&slot_at(q, i)->seq, i);
	atomic_init(&q->head, 0);
	atomic_init(&q->tail, 0);
	return 0;
}

void queue_fini(struct queue *q)
{
	free(q->slots);
	q->slots = NULL;
}

bool queue_push(struct queue *q, const void *item)
{
	uint32_t pos = atomic_load_explicit(&q->head, memory_order_relaxed);

	for (;;) {
		struct slot *s = slot_at(q, pos);
		/* acquire: pairs with the consumer's release, its copy out is done */
		uint32_t seq = atomic_load_explicit(&s->seq, memory_order_acquire);
		int32_t ahead = (int32_t)(seq - pos);

		if (ahead < 0)
			return false;
		if (ahead > 0) {
			pos = atomic_load_explicit(&q->head, memory_order_relaxed);
			continue;
		}
		if (!atomic_compare_exchange_weak_explicit(
			    &q->head, &pos, pos + 1, memory_order_relaxed, memory_order_relaxed))
			continue;
		memcpy(s->item, item, q->item_len);
		/* release: pairs with the acquire in queue_pop */
		atomic_store_explicit(&s->seq, pos + 1, memory_order_release);
		return true;
	}
}

bool queue_pop(struct queue *q, void *item)
{
	uint32_t pos = atomic_load_explicit(&q->tail, memory_order_relaxed);
	struct slot *s = slot_at(q, pos);

	/* acquire: pairs with the release in queue_push */
	if (atomic_load_explicit(&s->seq, memory_order_acquire) != pos + 1)
		return false;
	memcpy(item, s->item, q->item_len);
	/* release: the slot is free for the producer one lap ahead */
	atomic_store_explicit(&s->seq, pos + q->cap, memory_order_release);
	/* release: pairs with the acquire in queue_len */
	atomic_store_explicit(&q->tail, pos + 1, memory_order_release);
	return true;
}

uint32_t queue_len(const struct queue *q)
{
	/* acquire: the tail is read first, and the head never falls behind it */
	uint32_t tail = atomic_load_explicit(&q->tail, memory_order_acquire);

	return atomic_load_explicit(&q->head, memory_order_relaxed) - tail;
}
