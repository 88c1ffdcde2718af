/* An index is unmasked with its epoch's key; what comes out names a slot, and
 * the slot says which whole index it has now and who owns it. Everything else (a forged
 * index, an old generation, another server's) fails the comparison.
 *
 * Writing a slot: owner NULL, then the new index, then the new owner. Reading: index,
 * owner, index again. A reader that sees the new index sees at least the
 * NULL before it; one that sees a later owner sees the later index too. */
#include "wg/index.h"
#include "base/bytes.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

struct index_slot {
	_Atomic uintptr_t owner; /* kind in bit 0; 0: not taken */
	_Atomic uint32_t index;
	uint32_t link; /* generation in the top 4 bits; next free slot below. Writer only. */
};

static_assert(sizeof(struct index_slot) == 16, "a chunk is 16 KiB");
static_assert((int)WG_SERVER_ID_MAX == (1 << WGINDEX_SERVER_BITS) - 1, "server ids");
/* Three keypairs and a handshake for every peer, with the same again to spare. */
static_assert((int)WG_PEERS_MAX * 4 * 2 == (int)INDEX_SLOTS, "bit budget");

enum { LINK_SLOT = INDEX_SLOTS - 1 };

static uint32_t link_gen(const struct index_slot *s)
{
	return s->link >> WGINDEX_SLOT_BITS & ((1u << WGINDEX_GEN_BITS) - 1);
}

static void link_set(struct index_slot *s, uint32_t gen, uint32_t next)
{
	s->link = gen << WGINDEX_SLOT_BITS | next;
}

int index_init(
	struct index_table *t, uint32_t server_id, unsigned n_workers, const uint8_t key[INDEX_KEY])
{
	if (server_id > WG_SERVER_ID_MAX || n_workers < 1 || n_workers > WG_WORKERS_MAX)
		return -EINVAL;

	memset(t, 0, sizeof(*t));
	t->server_id = server_id;
	t->n_workers = n_workers;
	while (1u << t->worker_bits < n_workers)
		t->worker_bits++;
	for (unsigned i = 0; i < n_workers; i++) {
		t->shares[i].next_fresh = i << (WGINDEX_SLOT_BITS - t->worker_bits);
		t->shares[i].end = (i + 1) << (WGINDEX_SLOT_BITS - t->worker_bits);
	}
	index_set_epoch_key(t, 0, key);
	index_set_epoch_key(t, 1, key);
	return 0;
}

void index_fini(struct index_table *t)
{
	for (size_t i = 0; i < INDEX_CHUNKS; i++)
		free(atomic_load_explicit(
			&t->chunks[i], memory_order_relaxed)); /* no reader left */
	crypto_wipe(t, sizeof(*t));
}

void index_set_epoch_key(struct index_table *t, unsigned epoch, const uint8_t key[INDEX_KEY])
{
	/* relaxed: nobody looks for indices of this epoch, and half a key finds nothing */
	atomic_store_explicit(&t->keys[epoch & 1][0], get_le64(key), memory_order_relaxed);
	atomic_store_explicit(&t->keys[epoch & 1][1], get_le64(key + 8), memory_order_relaxed);
}

void index_use_epoch(struct index_table *t, unsigned epoch)
{
	t->epoch = epoch & 1;
}

static struct sipkey key_of(const struct index_table *t, unsigned epoch)
{
	/* relaxed: see index_set_epoch_key */
	return (struct sipkey){ {
		atomic_load_explicit(&t->keys[epoch][0], memory_order_relaxed),
		atomic_load_explicit(&t->keys[epoch][1], memory_order_relaxed),
	} };
}

/* The slot of a number; NULL when its chunk does not exist (yet). */
static struct index_slot *slot_at(const struct index_table *t, uint32_t slot)
{
	/* acquire: pairs with the release in chunk_make; the chunk is zeroed */
	struct index_slot *chunk =
		atomic_load_explicit(&t->chunks[slot / INDEX_CHUNK], memory_order_acquire);

	return chunk ? &chunk[slot % INDEX_CHUNK] : NULL;
}

static struct index_slot *chunk_make(struct index_table *t, uint32_t slot)
{
	struct index_slot *chunk = calloc(INDEX_CHUNK, sizeof(*chunk));

	if (!chunk)
		return NULL;
	/* release: readers see zeros, not what the heap had there */
	atomic_store_explicit(&t->chunks[slot / INDEX_CHUNK], chunk, memory_order_release);
	return &chunk[slot % INDEX_CHUNK];
}

/* A slot of this share that nobody has: a used one if enough of them wait. */
static int share_take(
	struct index_table *t, struct index_share *share, uint32_t *slot, struct index_slot **out)
{
	bool has_fresh = share->next_fresh < share->end;

	if (share->n_free && (share->n_free > INDEX_QUARANTINE || !has_fresh)) {
		*slot = share->first_free;
		*out = slot_at(t, *slot);
		share->first_free = (*out)->link & LINK_SLOT;
		share->n_free--;
		return 0;
	}
	if (!has_fresh)
		return -ENOSPC;
	*slot = share->next_fresh;
	*out = slot_at(t, *slot);
	if (!*out)
		*out = chunk_make(t, *slot);
	if (!*out)
		return -ENOMEM;
	share->next_fresh++;
	return 0;
}

int index_take(
	struct index_table *t, unsigned worker, enum index_kind kind, void *owner, uint32_t *out)
{
	struct sipkey key = key_of(t, t->epoch);
	struct index_slot *s;
	uint32_t slot, index;
	int ret;

	assert(worker < t->n_workers);
	assert(owner && !((uintptr_t)owner & 1));
	ret = share_take(t, &t->shares[worker], &slot, &s);
	if (ret)
		return ret;
	index = t->epoch << WGINDEX_BITS |
		wgindex_mask(&key, wgindex_pack(t->server_id, slot, link_gen(s)));
	/* release: who sees the new index sees that the old owner is gone */
	atomic_store_explicit(&s->index, index, memory_order_release);
	/* release: who sees the owner sees what it points to and its index */
	atomic_store_explicit(&s->owner, (uintptr_t)owner | kind, memory_order_release);
	crypto_wipe(&key, sizeof(key));
	*out = index;
	return 0;
}

/* The slot that this index would have; NULL if there is none. *number is its place. */
static struct index_slot *place_of(const struct index_table *t, uint32_t index, uint32_t *number)
{
	struct sipkey key = key_of(t, wgindex_epoch(index));
	uint32_t plain = wgindex_unmask(&key, index);

	if (wgindex_server(plain) != t->server_id)
		return NULL;
	*number = wgindex_slot(plain);
	return slot_at(t, *number);
}

/* The slot that has this very index; NULL if none. */
static struct index_slot *find(const struct index_table *t, uint32_t index, uint32_t *number)
{
	struct index_slot *s = place_of(t, index, number);

	/* acquire: pairs with the release in index_take */
	if (!s || atomic_load_explicit(&s->index, memory_order_acquire) != index)
		return NULL;
	return s;
}

void index_replace(struct index_table *t, uint32_t index, enum index_kind kind, void *owner)
{
	uint32_t number;
	struct index_slot *s = find(t, index, &number);

	assert(owner && !((uintptr_t)owner & 1));
	assert(s && atomic_load_explicit(&s->owner, memory_order_relaxed)); /* only we write */
	/* release: who sees the owner sees what it points to */
	atomic_store_explicit(&s->owner, (uintptr_t)owner | kind, memory_order_release);
}

void index_release(struct index_table *t, uint32_t index)
{
	struct index_share *share;
	uint32_t number;
	struct index_slot *s = find(t, index, &number);

	/* relaxed: only we write */
	if (!s || !atomic_load_explicit(&s->owner, memory_order_relaxed))
		return;
	/* relaxed: the release of the next index is what orders this */
	atomic_store_explicit(&s->owner, 0, memory_order_relaxed);

	share = &t->shares[number >> (WGINDEX_SLOT_BITS - t->worker_bits)];
	link_set(s, link_gen(s) + 1, 0);
	if (share->n_free) {
		struct index_slot *last = slot_at(t, share->last_free);

		link_set(last, link_gen(last), number);
	} else {
		share->first_free = number;
	}
	share->last_free = number;
	share->n_free++;
}

const struct index_slot *index_place(const struct index_table *t, uint32_t index)
{
	uint32_t number;
	struct index_slot *s = place_of(t, index, &number);

	__builtin_prefetch(s);
	return s;
}

void *index_lookup_at(const struct index_slot *s, uint32_t index, enum index_kind *kind)
{
	uintptr_t owner;

	/* acquire: pairs with the release in index_take */
	if (!s || atomic_load_explicit(&s->index, memory_order_acquire) != index)
		return NULL;
	/* acquire: pairs with the release of the owner; orders the next load */
	owner = atomic_load_explicit(&s->owner, memory_order_acquire);
	/* relaxed: ordered by the acquire above */
	if (!owner || atomic_load_explicit(&s->index, memory_order_relaxed) != index)
		return NULL;
	*kind = (enum index_kind)(owner & 1);
	return (void *)(owner & ~(uintptr_t)1);
}

void *index_lookup(const struct index_table *t, uint32_t index, enum index_kind *kind)
{
	uint32_t number;

	return index_lookup_at(place_of(t, index, &number), index, kind);
}
