/* Staging: at most WG_STAGED_MAX packets per peer wait for a session, the oldest
 * gives way; fewer when the pool gets short, so that peers that never answer do not
 * take it all: nobody may have more than a sixty-fourth of what is free (a dynamic
 * threshold: Choudhury, Hahne 1998), and something is always left for the next. Packets are copied
 * into chains of pool slots. A peer's queue has a spin flag of its own: the data workers add, the
 * slow side takes.
 *
 * n_staged stays above zero until the slow side has sent the last packet, so
 * that the fast side does not overtake what waits. */
#include "wg/device.h"

static void stage_lock(struct wg_peer *p)
{
	/* acquire: pairs with the release in stage_unlock */
	while (atomic_flag_test_and_set_explicit(&p->stage_busy, memory_order_acquire))
		;
}

static void stage_unlock(struct wg_peer *p)
{
	atomic_flag_clear_explicit(&p->stage_busy, memory_order_release);
}

static void give_packet(struct pool *pool, struct staged *s)
{
	while (s) {
		struct staged *next = s->next;

		pool_give(pool, s);
		s = next;
	}
}

/* A chain that holds one packet; NULL when the pool is empty. */
static struct staged *copy_packet(struct pool *pool, const uint8_t *data, uint32_t len)
{
	struct staged *first = NULL, **link = &first;
	uint32_t at = 0;

	do {
		uint32_t part = len - at < STAGE_BYTES ? len - at : (uint32_t)STAGE_BYTES;
		struct staged *s = pool_take(pool);

		if (!s) {
			give_packet(pool, first);
			return NULL;
		}
		*s = (struct staged){ .len = len };
		memcpy(s->bytes, data + at, part);
		*link = s;
		link = &s->next;
		at += part;
	} while (at < len);
	return first;
}

static struct staged *unlink_first(struct wg_peer *p)
{
	struct staged *s = p->stage_first;

	p->stage_first = s->after;
	if (!p->stage_first)
		p->stage_last = NULL;
	return s;
}

/* How many packets of this length a peer may have waiting. */
static unsigned share_of_pool(const struct pool *pool, uint32_t len)
{
	uint32_t n_free = pool_n_free(pool);
	uint32_t share = n_free / STAGE_SHARE / (len / STAGE_BYTES + 1);
	/* Superframes fill 33 slots each: a few, while there is plenty. */
	uint32_t least = n_free > pool->cap / 2 ? 8 : 1;

	if (share < least)
		return least;
	return share < WG_STAGED_MAX ? share : WG_STAGED_MAX;
}

static void stage_packet(struct wg_peer *p, const struct wg_packet *pkt, _Atomic uint64_t *drops)
{
	struct pool *pool = &p->wg->stage;
	struct staged *oldest = NULL, *s = copy_packet(pool, pkt->data, pkt->len);

	if (!s) {
		peer_count_drop(p, drops, WG_DROP_NO_BUFFER, 1);
		return;
	}
	stage_lock(p);
	if (atomic_load_explicit(&p->n_staged, memory_order_relaxed) >=
			share_of_pool(pool, pkt->len) &&
		p->stage_first)
		oldest = unlink_first(p);
	else
		atomic_fetch_add(&p->n_staged, 1);
	if (p->stage_last)
		p->stage_last->after = s;
	else
		p->stage_first = s;
	p->stage_last = s;
	stage_unlock(p);
	if (oldest) {
		give_packet(pool, oldest);
		peer_count_drop(p, drops, WG_DROP_STAGED_FULL, 1);
	}
}

void stage_packets(
	struct wg_peer *p, const struct wg_packet *pkts, size_t n, _Atomic uint64_t *drops)
{
	for (size_t i = 0; i < n; i++)
		stage_packet(p, &pkts[i], drops);
}

size_t stage_purge(struct wg_peer *p)
{
	struct staged *s;
	size_t n = 0;

	stage_lock(p);
	s = p->stage_first;
	p->stage_first = p->stage_last = NULL;
	atomic_store(&p->n_staged, 0);
	stage_unlock(p);
	for (struct staged *after; s; s = after, n++) {
		after = s->after;
		give_packet(&p->wg->stage, s);
	}
	return n;
}

bool stage_take(struct wg_peer *p, uint8_t *buf, uint32_t *len)
{
	struct staged *s = NULL;
	uint32_t at = 0;

	stage_lock(p);
	if (p->stage_first) {
		s = unlink_first(p);
		/* The last one counts as waiting until the next call finds none; those
		 * before it that counted so have been sent. */
		if (p->stage_first)
			atomic_fetch_sub(&p->n_staged, 1);
		else
			atomic_store(&p->n_staged, 1);
	} else {
		atomic_store(&p->n_staged, 0);
	}
	stage_unlock(p);
	if (!s)
		return false;
	*len = s->len;
	for (struct staged *part = s; part; part = part->next) {
		uint32_t n = *len - at < STAGE_BYTES ? *len - at : (uint32_t)STAGE_BYTES;

		memcpy(buf + at, part->bytes, n);
		at += n;
	}
	give_packet(&p->wg->stage, s);
	return true;
}
