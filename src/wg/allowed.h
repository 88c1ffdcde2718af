/* Allowed IPs: from an inner address to the peer that has the longest prefix of
 * it. Lookups are lock-free (RCU readers); changes have one writer at a time (the
 * device's lock). An owner is a struct allowed_owner embedded in struct wg_peer:
 *
 *     struct allowed_owner *o = allowed_lookup(&wg->allowed, AF_INET, ip);
 *     peer = o ? CONTAINER_OF(o, struct wg_peer, allowed) : NULL;
 *
 * 48 bytes per prefix, and as much again per branching point: 96 in the worst case. */
#ifndef WG_ALLOWED_H
#define WG_ALLOWED_H

#include "base/compiler.h"
#include "wire/addr.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct allowed_leaf; /* one prefix */
struct allowed_chunk;

/* The prefixes of one peer, in the order in which they were (last) given. All
 * zero is empty. Must outlive a grace period after allowed_remove_all. */
struct allowed_owner {
	/* Written by the writer; readers look at these two leaves, never further. */
	_Atomic(struct allowed_leaf *) first;
	_Atomic(struct allowed_leaf *) last;
	uint32_t n;
	uint32_t n_changes; /* of the list, ever; wraps */
};

struct allowed_table {
	_Atomic uintptr_t root[2]; /* IPv4, IPv6 */
	size_t n; /* prefixes */
	/* node memory: writer only, but for returned */
	struct allowed_chunk *chunks;
	void *free;
	size_t n_free; /* in free and in the untouched rest of the newest chunk */
	_Atomic(void *) returned; /* freed after their grace period, by any thread */
};

void allowed_init(struct allowed_table *t);
/* No reader is left; owners still listed are forgotten. Calls rcu_reclaim(). */
void allowed_fini(struct allowed_table *t);

/* Make sure that n inserts will not fail. 0 or -ENOMEM. */
MUST_CHECK int allowed_reserve(struct allowed_table *t, size_t n);

/* Give a prefix (host bits are ignored) to owner, marked with mark. If somebody has
 * it, it changes hands in one step, without a gap, and moves to the end of the
 * new owner's list; *moved_from (may be NULL) is set to the previous owner if that
 * is another one, else to NULL. 0, -EINVAL (family or length), -ENOMEM. */
MUST_CHECK int allowed_insert(struct allowed_table *t, const struct prefix *net,
	struct allowed_owner *owner, uint32_t mark, struct allowed_owner **moved_from);

/* Take exactly this prefix from owner. 0; -ENOENT when owner has it not. */
int allowed_remove(struct allowed_table *t, const struct prefix *net, struct allowed_owner *owner);
/* Take all from owner. */
void allowed_remove_all(struct allowed_table *t, struct allowed_owner *owner);
/* Take from owner what does not carry mark: after inserting a new list with a
 * new mark this completes a replacement. */
void allowed_remove_stale(struct allowed_table *t, struct allowed_owner *owner, uint32_t mark);

/* Owner of the longest prefix that covers the address; NULL for none. family
 * AF_INET (4 bytes at ip) or AF_INET6 (16). RCU reader or writer. */
struct allowed_owner *allowed_lookup(
	const struct allowed_table *t, uint8_t family, const uint8_t *ip);

/* Is owner the one that allowed_lookup would find? Most often a peer has one address, or
 * one of each family: that is answered without a walk. RCU reader or writer. */
bool allowed_owns(const struct allowed_table *t, const struct allowed_owner *owner, uint8_t family,
	const uint8_t *ip);

/* Begin to fetch what allowed_owns looks at first. RCU reader. */
void allowed_prefetch(const struct allowed_owner *owner);

/* Walk an owner's prefixes: allowed_first, then allowed_next until NULL. Writer's lock. */
struct allowed_leaf *allowed_first(const struct allowed_owner *owner);
struct allowed_leaf *allowed_next(const struct allowed_leaf *leaf);
void allowed_prefix(const struct allowed_leaf *leaf, struct prefix *out);
/* Who has exactly this prefix? NULL for nobody. Writer's lock. */
struct allowed_owner *allowed_find(const struct allowed_table *t, const struct prefix *net);

#endif
