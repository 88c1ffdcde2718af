/* A compressed binary trie per family. There are two kinds of nodes:
 *
 *  - a leaf is one prefix with its owner;
 *  - a branch stands where prefixes part: bit b of an address chooses its child.
 *    All below share their first b bits. A prefix of exactly b bits with others
 *    below it hangs on the branch as "here". A branch has two children, or one
 *    and a here.
 *
 * A slot (the root, a child) is 0, a branch, or a leaf with bit 0 set. Both kinds
 * take 48 bytes from one slab. A branch does not hold the bits that are shared below
 * it: a lookup only tests bits on its way down and compares where a prefix is. That
 * finds the longest match: each prefix that covers the address is on the way, and
 * the first one that does not cover it ends the search, as it is a part of all below.
 *
 * Changes against concurrent readers: what is new is complete before one store
 * publishes it, and what is taken out keeps its pointers until all readers
 * are gone. So each store changes the set of prefixes that a reader can find
 * by exactly the one prefix that is meant. */
#include "wg/allowed.h"
#include "base/bytes.h"
#include "base/rcu.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* An address as two numbers, first bit on top; IPv4 fills the top 32 bits. */
struct key {
	uint64_t hi, lo;
};

struct allowed_leaf {
	/* What lookups read comes first: mostly one cache line. */
	_Atomic(struct allowed_owner *) owner;
	struct key net; /* host bits are zero */
	uint8_t bits;
	uint8_t family;
	uint32_t mark;
	union {
		struct {
			struct allowed_leaf *next, *prev; /* owner's list; writer only */
		};
		struct rcu_node rcu; /* once it is taken out */
	};
};

struct branch {
	_Atomic uintptr_t child[2];
	_Atomic(struct allowed_leaf *) here;
	struct rcu_node rcu;
	uint8_t bit;
};

enum {
	NODE_LEN = 48,
	CHUNK_LEN = 64 << 10, /* and its alignment; its pages are touched as they are used */
	CHUNK_HEAD = 64,
	CHUNK_NODES = (CHUNK_LEN - CHUNK_HEAD) / NODE_LEN,
	LEAF_TAG = 1,
};

static_assert(sizeof(struct allowed_leaf) == NODE_LEN, "slab");
static_assert(sizeof(struct branch) == NODE_LEN, "slab");

/* ---- Node memory. Freed nodes come back through t->returned, from the
 * thread that waits for grace periods. */

struct allowed_chunk {
	struct allowed_table *table;
	struct allowed_chunk *next;
	size_t n_used; /* nodes handed out at least once */
};

static_assert(sizeof(struct allowed_chunk) <= CHUNK_HEAD, "slab");

/* Aligned to its length, so that a node finds its chunk. Mapped, since the heap
 * would spend a page more on each to remember the alignment.
 * syscalls: mmap munmap */
static struct allowed_chunk *chunk_map(void)
{
	uint8_t *p = mmap(
		NULL, 2 * CHUNK_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before;

	if (p == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)p & (CHUNK_LEN - 1);
	if (before)
		munmap(p, before);
	munmap(p + before + CHUNK_LEN, CHUNK_LEN - before);
	return (struct allowed_chunk *)(p + before);
}

static int chunk_add(struct allowed_table *t)
{
	struct allowed_chunk *c = chunk_map();

	if (!c)
		return -ENOMEM;
	c->table = t;
	c->next = t->chunks;
	c->n_used = 0;
	t->chunks = c;
	t->n_free += CHUNK_NODES;
	return 0;
}

static void push_free(struct allowed_table *t, void *node)
{
	*(void **)node = t->free;
	t->free = node;
	t->n_free++;
}

/* Take over what has come back. */
static void collect(struct allowed_table *t)
{
	/* acquire: pairs with the release in node_return */
	void *node = atomic_exchange_explicit(&t->returned, NULL, memory_order_acquire);

	while (node) {
		void *next = *(void **)node;

		push_free(t, node);
		node = next;
	}
}

/* Room for n nodes. */
static int nodes_reserve(struct allowed_table *t, size_t n)
{
	if (t->n_free < n)
		collect(t);
	while (t->n_free < n) {
		/* The rest of the old newest chunk moves to the free list, so that
		 * only the newest has untouched nodes: keeps node_take short. */
		struct allowed_chunk *c = t->chunks;

		for (; c && c->n_used < CHUNK_NODES; t->n_free--)
			push_free(t, (uint8_t *)c + CHUNK_HEAD + NODE_LEN * c->n_used++);
		if (chunk_add(t))
			return -ENOMEM;
	}
	return 0;
}

/* A zeroed node; one has been reserved. */
static void *node_take(struct allowed_table *t)
{
	void *node = t->free;

	assert(t->n_free > 0);
	t->n_free--;
	if (node)
		t->free = *(void **)node;
	else
		node = (uint8_t *)t->chunks + CHUNK_HEAD + NODE_LEN * t->chunks->n_used++;
	return memset(node, 0, NODE_LEN);
}

/* After the grace period, on any thread. */
static void node_return(void *node)
{
	struct allowed_chunk *c = (void *)((uintptr_t)node & ~(uintptr_t)(CHUNK_LEN - 1));
	_Atomic(void *) *top = &c->table->returned;
	void *old = atomic_load_explicit(top, memory_order_relaxed);

	do {
		*(void **)node = old;
		/* release: the link is written before the node is found */
	} while (!atomic_compare_exchange_weak_explicit(
		top, &old, node, memory_order_release, memory_order_relaxed));
}

static void leaf_return(struct rcu_node *n)
{
	node_return(CONTAINER_OF(n, struct allowed_leaf, rcu));
}

static void branch_return(struct rcu_node *n)
{
	node_return(CONTAINER_OF(n, struct branch, rcu));
}

/* ---- Bits. */

static struct key key_load(uint8_t family, const uint8_t *ip)
{
	if (family == AF_INET)
		return (struct key){ (uint64_t)get_be32(ip) << 32, 0 };
	return (struct key){ get_be64(ip), get_be64(ip + 8) };
}

static unsigned key_bit(struct key k, unsigned i)
{
	return (i < 64 ? k.hi >> (63 - i) : k.lo >> (127 - i)) & 1;
}

/* How many first bits are equal? At most 128. */
static unsigned key_common(struct key a, struct key b)
{
	if (a.hi != b.hi)
		return (unsigned)__builtin_clzll(a.hi ^ b.hi);
	if (a.lo != b.lo)
		return 64 + (unsigned)__builtin_clzll(a.lo ^ b.lo);
	return 128;
}

static struct key key_cut(struct key k, unsigned bits)
{
	if (bits <= 64) {
		k.lo = 0;
		k.hi = bits ? k.hi & ~0ULL << (64 - bits) : 0;
	} else {
		k.lo &= ~0ULL << (128 - bits);
	}
	return k;
}

static bool leaf_covers(const struct allowed_leaf *leaf, struct key k)
{
	uint64_t hi = leaf->net.hi ^ k.hi, lo = leaf->net.lo ^ k.lo;
	unsigned bits = leaf->bits;

	if (bits <= 64)
		return !bits || hi >> (64 - bits) == 0;
	return hi == 0 && lo >> (128 - bits) == 0;
}

/* ---- Slots. The writer's own loads need no order. */

typedef _Atomic uintptr_t slot_t; /* for the const-correct pointers to slots below */

static bool is_leaf(uintptr_t s)
{
	return s & LEAF_TAG;
}

static struct allowed_leaf *leaf_of(uintptr_t s)
{
	return (struct allowed_leaf *)(s - LEAF_TAG);
}

static struct branch *branch_of(uintptr_t s)
{
	return (struct branch *)s;
}

static uintptr_t slot_leaf(struct allowed_leaf *leaf)
{
	return (uintptr_t)leaf + LEAF_TAG;
}

static uintptr_t own(const slot_t *slot)
{
	return atomic_load_explicit(slot, memory_order_relaxed);
}

static struct allowed_leaf *own_here(const struct branch *b)
{
	return atomic_load_explicit(&b->here, memory_order_relaxed);
}

/* A branch that can be walked on from: its bit is before the given length. */
static bool is_branch_before(uintptr_t s, unsigned bits)
{
	return s && !is_leaf(s) && branch_of(s)->bit < bits;
}

/* Go down along k through the branches before bits; *parent is the branch of the
 * slot returned, NULL for the root; *above is the slot that holds parent. */
static slot_t *descend(
	slot_t *root, struct key k, unsigned bits, struct branch **parent, slot_t **above)
{
	slot_t *slot = root;

	*parent = NULL;
	*above = NULL;
	while (is_branch_before(own(slot), bits)) {
		*above = slot;
		*parent = branch_of(own(slot));
		slot = &(*parent)->child[key_bit(k, (*parent)->bit)];
	}
	return slot;
}

/* Any prefix in or below s (not 0): all there share the bits that matter. */
static struct allowed_leaf *any_leaf(uintptr_t s)
{
	while (!is_leaf(s)) {
		struct branch *b = branch_of(s);

		if (own_here(b))
			return own_here(b);
		s = own(&b->child[0]);
	}
	return leaf_of(s);
}

static slot_t *root_of(struct allowed_table *t, uint8_t family)
{
	return &t->root[family == AF_INET6];
}

static bool is_valid(const struct prefix *net)
{
	return (net->addr.family == AF_INET && net->bits <= 32) ||
		(net->addr.family == AF_INET6 && net->bits <= 128);
}

/* Exactly this prefix, or NULL. */
static struct allowed_leaf *find(
	const struct allowed_table *t, uint8_t family, struct key k, unsigned bits)
{
	uintptr_t s = own(&t->root[family == AF_INET6]);
	struct allowed_leaf *leaf = NULL;

	while (is_branch_before(s, bits))
		s = own(&branch_of(s)->child[key_bit(k, branch_of(s)->bit)]);
	if (s && is_leaf(s))
		leaf = leaf_of(s);
	else if (s && branch_of(s)->bit == bits)
		leaf = own_here(branch_of(s));
	if (!leaf || leaf->bits != bits || key_common(leaf->net, k) < bits)
		return NULL;
	return leaf;
}

/* ---- Owners' lists. The first and the last leaf are read by allowed_owns: a leaf is
 * in the trie as long as it can be found there, since it is listed after it went in
 * and unlisted before it is taken out. */

static void owner_append(struct allowed_owner *o, struct allowed_leaf *leaf)
{
	struct allowed_leaf *last = atomic_load_explicit(&o->last, memory_order_relaxed);

	leaf->next = NULL;
	leaf->prev = last;
	if (last)
		last->next = leaf;
	else
		rcu_publish(o->first, leaf);
	rcu_publish(o->last, leaf);
	o->n++;
	o->n_changes++;
}

static void owner_unlink(struct allowed_owner *o, struct allowed_leaf *leaf)
{
	if (leaf->prev)
		leaf->prev->next = leaf->next;
	else
		rcu_publish(o->first, leaf->next);
	if (leaf->next)
		leaf->next->prev = leaf->prev;
	else
		rcu_publish(o->last, leaf->prev);
	o->n--;
	o->n_changes++;
}

static struct allowed_owner *owner_of(const struct allowed_leaf *leaf)
{
	/* relaxed: the writer's own */
	return atomic_load_explicit(&leaf->owner, memory_order_relaxed);
}

/* ---- The door. */

void allowed_init(struct allowed_table *t)
{
	memset(t, 0, sizeof(*t));
}

void allowed_fini(struct allowed_table *t)
{
	struct allowed_chunk *next;

	/* Nodes on their way back still name their chunk. */
	rcu_reclaim();
	for (struct allowed_chunk *c = t->chunks; c; c = next) {
		next = c->next;
		munmap(c, CHUNK_LEN);
	}
	memset(t, 0, sizeof(*t));
}

int allowed_reserve(struct allowed_table *t, size_t n)
{
	return n > SIZE_MAX / 4 ? -ENOMEM : nodes_reserve(t, 2 * n);
}

/* Hang a new leaf into the trie, where no prefix equals it. */
static void attach(struct allowed_table *t, struct allowed_leaf *leaf)
{
	slot_t *root = root_of(t, leaf->family), *above;
	unsigned bits = leaf->bits, parted;
	struct allowed_leaf *other;
	struct branch *parent, *b;
	slot_t *slot = descend(root, leaf->net, bits, &parent, &above);

	if (!own(slot) && !parent) {
		rcu_publish(*slot, slot_leaf(leaf));
		return;
	}
	/* No prefix in the trie has more bits in common with ours than this one. */
	other = own(slot) ? any_leaf(own(slot)) : own_here(parent);
	parted = key_common(leaf->net, other->net);
	if (parted > bits)
		parted = bits;
	if (parted > other->bits)
		parted = other->bits;

	slot = descend(root, leaf->net, parted, &parent, &above);
	if (!is_leaf(own(slot)) && branch_of(own(slot))->bit == parted) {
		b = branch_of(own(slot));
		if (parted == bits) {
			rcu_publish(b->here, leaf);
		} else {
			/* The other side of b would have had more in common. */
			assert(!own(&b->child[key_bit(leaf->net, parted)]));
			rcu_publish(b->child[key_bit(leaf->net, parted)], slot_leaf(leaf));
		}
		return;
	}

	b = node_take(t);
	b->bit = (uint8_t)parted;
	/* relaxed: published with b below */
	if (parted == bits) {
		atomic_store_explicit(&b->here, leaf, memory_order_relaxed);
		atomic_store_explicit(
			&b->child[key_bit(other->net, parted)], own(slot), memory_order_relaxed);
	} else {
		atomic_store_explicit(&b->child[key_bit(leaf->net, parted)], slot_leaf(leaf),
			memory_order_relaxed);
		if (parted == other->bits)
			atomic_store_explicit(&b->here, other, memory_order_relaxed);
		else
			atomic_store_explicit(&b->child[key_bit(other->net, parted)], own(slot),
				memory_order_relaxed);
	}
	rcu_publish(*slot, (uintptr_t)b);
}

int allowed_insert(struct allowed_table *t, const struct prefix *net, struct allowed_owner *owner,
	uint32_t mark, struct allowed_owner **moved_from)
{
	struct allowed_owner *before = NULL;
	struct allowed_leaf *leaf;
	struct key k;

	if (moved_from)
		*moved_from = NULL;
	if (!is_valid(net))
		return -EINVAL;
	k = key_cut(key_load(net->addr.family, net->addr.ip), net->bits);
	leaf = find(t, net->addr.family, k, net->bits);
	if (leaf) {
		before = owner_of(leaf);
		owner_unlink(before, leaf);
		if (before != owner && moved_from)
			*moved_from = before;
		rcu_publish(leaf->owner, owner);
	} else {
		if (nodes_reserve(t, 2))
			return -ENOMEM;
		leaf = node_take(t);
		leaf->net = k;
		leaf->bits = net->bits;
		leaf->family = net->addr.family;
		atomic_store_explicit(&leaf->owner, owner, memory_order_relaxed); /* not out yet */
		attach(t, leaf);
		t->n++;
	}
	leaf->mark = mark;
	owner_append(owner, leaf);
	return 0;
}

/* Put what is left of branch b into the slot that holds it, if it no longer parts anything. */
static void collapse(slot_t *above, struct branch *b)
{
	uintptr_t child[2] = { own(&b->child[0]), own(&b->child[1]) };
	struct allowed_leaf *here = own_here(b);

	if ((child[0] && child[1]) || (here && (child[0] || child[1])))
		return;
	rcu_publish(*above, here ? slot_leaf(here) : child[0] ? child[0] : child[1]);
	rcu_free_later(&b->rcu, branch_return);
}

/* Take a leaf out of the trie and free it after the readers.
 *  1. Its own slot is cleared: no new reader finds it, all find all others.
 *  2. If its branch parts nothing now, one store puts what is left in the branch's
 *     place. The branch keeps its pointers: a reader in it goes on to the same nodes.
 *  3. Both are freed when no reader is left that can have seen them. */
static void detach(struct allowed_table *t, struct allowed_leaf *leaf)
{
	struct branch *parent, *b;
	slot_t *above;
	slot_t *slot = descend(root_of(t, leaf->family), leaf->net, leaf->bits, &parent, &above);

	if (own(slot) == slot_leaf(leaf)) {
		rcu_publish(*slot, 0);
		if (parent)
			collapse(above, parent);
	} else {
		b = branch_of(own(slot));
		rcu_publish(b->here, NULL);
		collapse(slot, b);
	}
	rcu_free_later(&leaf->rcu, leaf_return);
}

static void leaf_remove(
	struct allowed_table *t, struct allowed_owner *owner, struct allowed_leaf *leaf)
{
	owner_unlink(owner, leaf);
	detach(t, leaf);
	t->n--;
}

int allowed_remove(struct allowed_table *t, const struct prefix *net, struct allowed_owner *owner)
{
	struct allowed_leaf *leaf = NULL;

	if (is_valid(net))
		leaf = find(t, net->addr.family,
			key_cut(key_load(net->addr.family, net->addr.ip), net->bits), net->bits);
	if (!leaf || owner_of(leaf) != owner)
		return -ENOENT;
	leaf_remove(t, owner, leaf);
	return 0;
}

void allowed_remove_all(struct allowed_table *t, struct allowed_owner *owner)
{
	struct allowed_leaf *leaf;

	while ((leaf = allowed_first(owner)))
		leaf_remove(t, owner, leaf);
}

void allowed_remove_stale(struct allowed_table *t, struct allowed_owner *owner, uint32_t mark)
{
	struct allowed_leaf *next;

	for (struct allowed_leaf *leaf = allowed_first(owner); leaf; leaf = next) {
		next = leaf->next;
		if (leaf->mark != mark)
			leaf_remove(t, owner, leaf);
	}
}

struct allowed_owner *allowed_lookup(
	const struct allowed_table *t, uint8_t family, const uint8_t *ip)
{
	struct key k = key_load(family, ip);
	struct allowed_owner *best = NULL;
	uintptr_t s = rcu_read(t->root[family == AF_INET6]);

	while (s && !is_leaf(s)) {
		struct branch *b = branch_of(s);
		struct allowed_leaf *here = rcu_read(b->here);

		if (here) {
			if (!leaf_covers(here, k))
				return best;
			best = rcu_read(here->owner);
		}
		s = rcu_read(b->child[key_bit(k, b->bit)]);
	}
	if (s && leaf_covers(leaf_of(s), k))
		best = rcu_read(leaf_of(s)->owner);
	return best;
}

/* Nothing is longer than a host route: who has that of the address has the address. */
static bool is_host_route(const struct allowed_leaf *leaf, const struct allowed_owner *owner,
	uint8_t family, struct key k)
{
	return leaf && leaf->bits == (family == AF_INET ? 32 : 128) && leaf->family == family &&
		leaf->net.hi == k.hi && leaf->net.lo == k.lo &&
		/* Another one, once it has changed hands. */
		rcu_read(leaf->owner) == owner;
}

bool allowed_owns(const struct allowed_table *t, const struct allowed_owner *owner, uint8_t family,
	const uint8_t *ip)
{
	struct key k = key_load(family, ip);

	return is_host_route(rcu_read(owner->first), owner, family, k) ||
		is_host_route(rcu_read(owner->last), owner, family, k) ||
		allowed_lookup(t, family, ip) == owner;
}

void allowed_prefetch(const struct allowed_owner *owner)
{
	__builtin_prefetch(rcu_read(owner->first));
	__builtin_prefetch(rcu_read(owner->last));
}

struct allowed_leaf *allowed_first(const struct allowed_owner *owner)
{
	return atomic_load_explicit(&owner->first, memory_order_relaxed); /* the writer's own */
}

struct allowed_leaf *allowed_next(const struct allowed_leaf *leaf)
{
	return leaf->next;
}

void allowed_prefix(const struct allowed_leaf *leaf, struct prefix *out)
{
	memset(out, 0, sizeof(*out));
	out->addr.family = leaf->family;
	out->bits = leaf->bits;
	if (leaf->family == AF_INET) {
		put_be32(out->addr.ip, (uint32_t)(leaf->net.hi >> 32));
	} else {
		put_be64(out->addr.ip, leaf->net.hi);
		put_be64(out->addr.ip + 8, leaf->net.lo);
	}
}

struct allowed_owner *allowed_find(const struct allowed_table *t, const struct prefix *net)
{
	struct allowed_leaf *leaf = NULL;

	if (is_valid(net))
		leaf = find(t, net->addr.family,
			key_cut(key_load(net->addr.family, net->addr.ip), net->bits), net->bits);
	return leaf ? owner_of(leaf) : NULL;
}
