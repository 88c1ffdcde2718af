#include "gateway/packet_queue.h"
#include <stdlib.h>

struct packet *packet_create(size_t cap)
{
	struct packet *p = malloc(sizeof(*p) + WG_HEAD + cap + WG_TAIL);

	if (p)
		p->data = p->room + WG_HEAD;
	return p;
}

void packet_queue_init(struct packet_queue *q, uint32_t cap)
{
	*q = (struct packet_queue){ .cap = cap };
	q->end = &q->first;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->has_some, NULL);
}

void packet_queue_fini(struct packet_queue *q)
{
	for (struct packet *p = q->first, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	pthread_cond_destroy(&q->has_some);
	pthread_mutex_destroy(&q->lock);
}

bool packet_queue_push(struct packet_queue *q, struct packet *p)
{
	bool is_taken, has_waiter;

	p->next = NULL;
	pthread_mutex_lock(&q->lock);
	is_taken = q->len < q->cap && !q->is_closed;
	if (is_taken) {
		*q->end = p;
		q->end = &p->next;
		q->len++;
	}
	has_waiter = is_taken && q->n_waiting > 0;
	pthread_mutex_unlock(&q->lock);
	/* After the unlock: whom it wakes finds the lock free. */
	if (has_waiter)
		pthread_cond_signal(&q->has_some);
	return is_taken;
}

struct packet *packet_queue_pop(struct packet_queue *q, uint64_t *ticket, bool may_wait)
{
	struct packet *p = NULL;

	pthread_mutex_lock(&q->lock);
	while (may_wait && !q->first && !q->is_closed) {
		q->n_waiting++;
		pthread_cond_wait(&q->has_some, &q->lock);
		q->n_waiting--;
	}
	if (q->first && !q->is_closed) {
		p = q->first;
		q->first = p->next;
		if (!q->first)
			q->end = &q->first;
		q->len--;
		*ticket = q->n_popped++;
	}
	pthread_mutex_unlock(&q->lock);
	return p;
}

void packet_queue_close(struct packet_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->is_closed = true;
	pthread_mutex_unlock(&q->lock);
	pthread_cond_broadcast(&q->has_some);
}
