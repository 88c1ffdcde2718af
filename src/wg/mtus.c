/* The MTUs that padding keeps to. Linux looks at the MTU of the route that a packet
 * came by (dst_mtu); a TUN does not tell the route. It need not: the MTU of the
 * packet's route is one of those in the list and no less than its length, so the
 * smallest MTU in the list that is no less than the length is not beyond it.
 *
 * The list is handed to the workers by a sequence lock, as endpoints are, but a
 * worker never waits: while the list is being written it keeps the one it has. */
#include "wg/device.h"

static_assert(sizeof(struct wg_mtus) == sizeof(((struct mtus_cell *)0)->word), "no bytes between");
static_assert(WG_MTUS_MAX <= UINT8_MAX, "n");

void wg_mtus_add(struct wg_mtus *m, unsigned mtu)
{
	size_t i = 0;

	if (!mtu)
		return;
	if (mtu > UINT16_MAX)
		mtu = UINT16_MAX;
	while (i < m->n && m->mtu[i] < mtu)
		i++;
	if (i < m->n && m->mtu[i] == mtu)
		return;
	if (m->n == WG_MTUS_MAX) {
		/* The largest goes: short packets tell most by their length. */
		m->is_cut = true;
		if (i == WG_MTUS_MAX)
			return;
		m->n--;
	}
	memmove(&m->mtu[i + 1], &m->mtu[i], (m->n - i) * sizeof(m->mtu[0]));
	m->mtu[i] = (uint16_t)mtu;
	m->n++;
}

bool wg_mtus_has(const struct wg_mtus *m, unsigned mtu)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->mtu[i] == mtu)
			return true;
	return false;
}

void wg_mtus_merge(struct wg_mtus *m, const struct wg_mtus *more)
{
	for (size_t i = 0; i < more->n; i++)
		wg_mtus_add(m, more->mtu[i]);
	m->is_cut |= more->is_cut;
}

void mtus_set(struct mtus_cell *c, const struct wg_mtus *m)
{
	uint64_t word[ARRAY_LEN(c->word)];

	memcpy(word, m, sizeof(word));
	/* acq_rel: the words are not written before it */
	atomic_fetch_add_explicit(&c->seq, 1, memory_order_acq_rel);
	for (size_t i = 0; i < ARRAY_LEN(word); i++)
		/* release: after the odd sequence number */
		atomic_store_explicit(&c->word[i], word[i], memory_order_release);
	atomic_fetch_add_explicit(&c->seq, 1, memory_order_release);
}

bool mtus_get(const struct mtus_cell *c, struct wg_mtus *out, uint32_t *seq)
{
	uint64_t word[ARRAY_LEN(c->word)];
	/* acquire: the words are not read before it */
	uint32_t before = atomic_load_explicit(&c->seq, memory_order_acquire);

	if (before == *seq || (before & 1))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(word); i++)
		/* acquire: the sequence number below is read after it */
		word[i] = atomic_load_explicit(&c->word[i], memory_order_acquire);
	if (atomic_load_explicit(&c->seq, memory_order_relaxed) != before)
		return false;
	memcpy(out, word, sizeof(*out));
	*seq = before;
	return true;
}
