/* Who wakes whom. The sender waits only for the head: the worker that fills the head's
 * place wakes it, all others need not. A worker waits only while its ticket is a whole
 * ring ahead of the head; it is woken once half of the ring is free for it rather than for
 * each place, which would be a switch of threads per packet. It cannot wait for ever: all
 * tickets before the least of those that wait are in the ring or being worked on by
 * workers that do not wait, so that the head gets to it. */
#include "gateway/send_queue.h"
#include <errno.h>
#include <stdlib.h>

/* Stands in the place of a packet that was dropped. */
static struct packet dropped;

int send_queue_init(struct send_queue *q, uint32_t cap)
{
	assert(cap >= 2);
	assert((cap & (cap - 1)) == 0);
	*q = (struct send_queue){ .cap = cap };
	q->ring = calloc(cap, sizeof(struct packet *));
	if (!q->ring)
		return -ENOMEM;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->has_head, NULL);
	pthread_cond_init(&q->has_room, NULL);
	return 0;
}

void send_queue_fini(struct send_queue *q)
{
	for (uint32_t i = 0; i < q->cap; i++)
		if (q->ring[i] != &dropped)
			free(q->ring[i]);
	free(q->ring);
	pthread_cond_destroy(&q->has_room);
	pthread_cond_destroy(&q->has_head);
	pthread_mutex_destroy(&q->lock);
}

static struct packet **place(struct send_queue *q, uint64_t ticket)
{
	return &q->ring[ticket & (q->cap - 1)];
}

/* Under the lock: step over what was dropped. true: the head has moved to where workers
 * that wait for room are to be woken. */
static bool skip_dropped(struct send_queue *q)
{
	while (*place(q, q->head) == &dropped)
		*place(q, q->head++) = NULL;
	return q->n_waiting > 0 && q->head >= q->wake_at;
}

/* Under the lock. */
static void wait_for_room(struct send_queue *q, uint64_t ticket)
{
	uint64_t wake_at = ticket - q->cap / 2;

	if (q->n_waiting++ == 0 || wake_at < q->wake_at)
		q->wake_at = wake_at;
	pthread_cond_wait(&q->has_room, &q->lock);
	q->n_waiting--;
}

bool send_queue_put(struct send_queue *q, uint64_t ticket, struct packet *p, bool may_wait)
{
	bool is_taken, has_room = false, has_head = false;

	pthread_mutex_lock(&q->lock);
	while (may_wait && ticket - q->head >= q->cap && !q->is_closed)
		wait_for_room(q, ticket);
	is_taken = ticket - q->head < q->cap && !q->is_closed;
	if (is_taken) {
		*place(q, ticket) = p ? p : &dropped;
		if (ticket == q->head) {
			has_room = skip_dropped(q);
			has_head = q->is_waiting && *place(q, q->head);
		}
	}
	pthread_mutex_unlock(&q->lock);
	if (has_head)
		pthread_cond_signal(&q->has_head);
	if (has_room)
		pthread_cond_broadcast(&q->has_room);
	return is_taken;
}

struct packet *send_queue_pop(struct send_queue *q)
{
	struct packet *p = NULL;
	bool has_room = false;

	pthread_mutex_lock(&q->lock);
	q->is_waiting = true;
	while (!*place(q, q->head) && !q->is_kicked && !q->is_closed)
		pthread_cond_wait(&q->has_head, &q->lock);
	q->is_waiting = false;
	if (!q->is_kicked && !q->is_closed) {
		p = *place(q, q->head);
		*place(q, q->head++) = NULL;
		has_room = skip_dropped(q);
	}
	q->is_kicked = false;
	pthread_mutex_unlock(&q->lock);
	if (has_room)
		pthread_cond_broadcast(&q->has_room);
	return p;
}

void send_queue_kick(struct send_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->is_kicked = true;
	pthread_mutex_unlock(&q->lock);
	pthread_cond_signal(&q->has_head);
}

void send_queue_close(struct send_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->is_closed = true;
	pthread_mutex_unlock(&q->lock);
	pthread_cond_signal(&q->has_head);
	pthread_cond_broadcast(&q->has_room);
}
