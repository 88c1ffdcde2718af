/* The receiver-index table: from the index in a message to the handshake or
 * keypair it belongs to. Lookups are lock-free and O(1) (RCU readers); changes
 * have one writer at a time (the device's lock). The bits of an index and their
 * budget are in wire/wgindex.h.
 *
 * Slots come in chunks of 1024 (16 KiB) as they are needed. A released slot waits in
 * its worker's queue behind at least INDEX_QUARANTINE others (unless the
 * worker's share is used up), and comes back with the next of 16 generations. */
#ifndef WG_INDEX_H
#define WG_INDEX_H

#include "base/compiler.h"
#include "wire/wgindex.h"
#include "wg/wg.h"
#include <stdatomic.h>
#include <stdint.h>

enum {
	INDEX_SLOTS = 1 << WGINDEX_SLOT_BITS,
	INDEX_CHUNK = 1024, /* slots */
	INDEX_CHUNKS = INDEX_SLOTS / INDEX_CHUNK,
	INDEX_QUARANTINE = 64,
	INDEX_KEY = 16,
};

/* What an index belongs to. Owners are aligned to 2 at least. */
enum index_kind {
	INDEX_HANDSHAKE,
	INDEX_KEYPAIR,
};

struct index_slot;

/* Slots of one worker: fresh ones from next_fresh to end, then used ones, first
 * in first out. */
struct index_share {
	uint32_t next_fresh;
	uint32_t end;
	uint32_t first_free; /* slot number; valid while n_free > 0 */
	uint32_t last_free;
	uint32_t n_free;
};

struct index_table {
	_Atomic(struct index_slot *) chunks[INDEX_CHUNKS]; /* grow only */
	_Atomic uint64_t keys[2][2]; /* by epoch */
	uint32_t server_id;
	unsigned n_workers;
	unsigned worker_bits;
	unsigned epoch; /* of indices taken from now on */
	struct index_share shares[WG_WORKERS_MAX];
};

/* server_id 0..WG_SERVER_ID_MAX, n_workers 1..WG_WORKERS_MAX, the key for both
 * epochs; starts in epoch 0. 0 or -EINVAL. */
MUST_CHECK int index_init(struct index_table *t, uint32_t server_id, unsigned n_workers,
	const uint8_t key[INDEX_KEY]);
void index_fini(struct index_table *t);

/* A new key for an epoch. Indices of that epoch that are in use can no longer
 * be found: set the key of the epoch that is not in use, well after the
 * last session of that epoch has ended; then index_use_epoch. */
void index_set_epoch_key(struct index_table *t, unsigned epoch, const uint8_t key[INDEX_KEY]);
void index_use_epoch(struct index_table *t, unsigned epoch);

/* An unused index of this worker, owned by owner. 0; -ENOSPC when the worker's share is
 * used up, -ENOMEM. */
MUST_CHECK int index_take(
	struct index_table *t, unsigned worker, enum index_kind kind, void *owner, uint32_t *out);
/* Give a taken index to another owner in one step: a handshake's index becomes
 * its keypair's. */
void index_replace(struct index_table *t, uint32_t index, enum index_kind kind, void *owner);
/* Nobody finds it from now on (readers that have: one grace period). Ignores an
 * index that is not taken. */
void index_release(struct index_table *t, uint32_t index);

/* The place of an index, for index_lookup_at: prefetches it. RCU reader. */
const struct index_slot *index_place(const struct index_table *t, uint32_t index);
/* As index_lookup, at the place of this very index. NULL finds nothing. */
void *index_lookup_at(const struct index_slot *s, uint32_t index, enum index_kind *kind);

/* Owner and kind, or NULL. Compares the whole index. RCU reader. */
void *index_lookup(const struct index_table *t, uint32_t index, enum index_kind *kind);

#endif
