/* The trie against a linear scan, and under concurrent change. */
#include "wg/allowed.h"
#include "base/rcu.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <cmocka.h>

static uint64_t rng_state;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static struct prefix net(const char *addr, unsigned bits)
{
	struct prefix p = { .bits = (uint8_t)bits };

	p.addr.family = strchr(addr, ':') ? AF_INET6 : AF_INET;
	assert_int_equal(inet_pton(p.addr.family, addr, p.addr.ip), 1);
	return p;
}

static void add(struct allowed_table *t, const char *addr, unsigned bits, struct allowed_owner *o)
{
	struct prefix p = net(addr, bits);

	assert_int_equal(allowed_insert(t, &p, o, 0, NULL), 0);
}

static int drop(struct allowed_table *t, const char *addr, unsigned bits, struct allowed_owner *o)
{
	struct prefix p = net(addr, bits);

	return allowed_remove(t, &p, o);
}

static struct allowed_owner *who(struct allowed_table *t, const char *addr)
{
	struct prefix p = net(addr, 0);

	return allowed_lookup(t, p.addr.family, p.addr.ip);
}

/* ---- The model. */

struct rule {
	struct prefix net;
	struct allowed_owner *owner;
};

struct model {
	struct rule *rules;
	size_t n;
};

static bool covers(const struct prefix *p, const uint8_t *ip)
{
	for (unsigned i = 0; i < p->bits; i++)
		if ((p->addr.ip[i / 8] ^ ip[i / 8]) >> (7 - i % 8) & 1)
			return false;
	return true;
}

static bool same_net(const struct prefix *a, const struct prefix *b)
{
	return a->addr.family == b->addr.family && a->bits == b->bits && covers(a, b->addr.ip);
}

static struct allowed_owner *model_lookup(struct model *m, uint8_t family, const uint8_t *ip)
{
	struct rule *best = NULL;

	for (size_t i = 0; i < m->n; i++) {
		struct rule *r = &m->rules[i];

		if (r->net.addr.family == family && covers(&r->net, ip) &&
			(!best || r->net.bits > best->net.bits))
			best = r;
	}
	return best ? best->owner : NULL;
}

static struct rule *model_find(struct model *m, const struct prefix *p)
{
	for (size_t i = 0; i < m->n; i++)
		if (same_net(&m->rules[i].net, p))
			return &m->rules[i];
	return NULL;
}

/* Addresses that share much, so that prefixes nest and part everywhere. */
static void some_ip(uint8_t family, uint8_t ip[16])
{
	unsigned len = family == AF_INET ? 4 : 16;

	memset(ip, 0, 16);
	for (unsigned i = 0; i < len; i++)
		ip[i] = rng() % 3 ? 0 : (uint8_t)(rng() % 4 ? 1u << rng() % 8 : rng());
}

static struct prefix some_net(void)
{
	struct prefix p = { 0 };

	p.addr.family = rng() % 2 ? AF_INET : AF_INET6;
	some_ip(p.addr.family, p.addr.ip);
	p.bits = (uint8_t)(rng() % (p.addr.family == AF_INET ? 33 : 129));
	return p;
}

enum { OWNERS = 5, STEPS = 20000, LIVE_MAX = 400 };

/* Lists, counts and every prefix agree with the model. */
static void check_lists(struct allowed_table *t, struct model *m, struct allowed_owner *owners)
{
	size_t total = 0;

	for (size_t i = 0; i < OWNERS; i++) {
		size_t n = 0;

		for (struct allowed_leaf *l = allowed_first(&owners[i]); l;
			l = allowed_next(l), n++) {
			struct prefix p;
			struct rule *r;

			allowed_prefix(l, &p);
			r = model_find(m, &p);
			assert_non_null(r);
			assert_ptr_equal(r->owner, &owners[i]);
			assert_ptr_equal(allowed_find(t, &p), &owners[i]);
		}
		assert_int_equal(n, owners[i].n);
		total += n;
	}
	assert_int_equal(total, m->n);
	assert_int_equal(total, t->n);
}

static void model_insert(struct allowed_table *t, struct model *m, struct allowed_owner *o)
{
	struct prefix p = some_net();
	struct rule *r = model_find(m, &p);
	struct allowed_owner *from = (void *)1;

	if (!r && m->n == LIVE_MAX)
		return;
	assert_int_equal(allowed_insert(t, &p, o, 0, &from), 0);
	assert_ptr_equal(from, r && r->owner != o ? r->owner : NULL);
	if (!r)
		r = &m->rules[m->n++];
	*r = (struct rule){ p, o };
}

static void model_remove(struct allowed_table *t, struct model *m, struct allowed_owner *o)
{
	struct prefix p = rng() % 4 && m->n ? m->rules[rng() % m->n].net : some_net();
	struct rule *r = model_find(m, &p);

	if (r && r->owner == o) {
		assert_int_equal(allowed_remove(t, &p, o), 0);
		*r = m->rules[--m->n];
	} else {
		assert_int_equal(allowed_remove(t, &p, o), -ENOENT);
	}
}

static void test_model(void **state)
{
	struct model m = { calloc(LIVE_MAX, sizeof(struct rule)), 0 };
	struct allowed_owner owners[OWNERS] = { { .n = 0 } };
	struct allowed_table t;
	size_t hits = 0;

	rng_state = 7;
	allowed_init(&t);
	for (unsigned step = 0; step < STEPS; step++) {
		struct allowed_owner *o = &owners[rng() % OWNERS];

		if (rng() % 500 == 0) {
			allowed_remove_all(&t, o);
			for (size_t i = m.n; i-- > 0;)
				if (m.rules[i].owner == o)
					m.rules[i] = m.rules[--m.n];
		} else if (rng() % 3) {
			model_insert(&t, &m, o);
		} else {
			model_remove(&t, &m, o);
		}
		for (unsigned i = 0; i < 10; i++) {
			struct prefix p = some_net();
			struct allowed_owner *expected = model_lookup(&m, p.addr.family, p.addr.ip);

			assert_ptr_equal(allowed_lookup(&t, p.addr.family, p.addr.ip), expected);
			for (size_t k = 0; k < OWNERS; k++)
				assert_int_equal(
					allowed_owns(&t, &owners[k], p.addr.family, p.addr.ip),
					expected == &owners[k]);
			hits += expected != NULL;
		}
		if (step % 100 == 0)
			check_lists(&t, &m, owners);
		if (step % 1000 == 0)
			rcu_reclaim();
	}
	assert_true(hits > STEPS);
	for (size_t i = 0; i < OWNERS; i++)
		allowed_remove_all(&t, &owners[i]);
	assert_int_equal(t.n, 0);
	assert_int_equal(t.root[0], 0);
	assert_int_equal(t.root[1], 0);
	allowed_fini(&t);
	free(m.rules);
}

/* ---- Cases by hand. */

static void test_longest_wins(void **state)
{
	struct allowed_owner a = { .n = 0 }, b = { .n = 0 }, c = { .n = 0 }, d = { .n = 0 };
	struct allowed_table t;

	allowed_init(&t);
	assert_null(who(&t, "10.0.0.1"));
	assert_null(who(&t, "::1"));
	add(&t, "0.0.0.0", 0, &a);
	add(&t, "10.0.0.0", 8, &b);
	add(&t, "10.1.2.3", 32, &c);
	add(&t, "::", 0, &d);
	assert_ptr_equal(who(&t, "192.0.2.1"), &a);
	assert_ptr_equal(who(&t, "255.255.255.255"), &a);
	assert_ptr_equal(who(&t, "10.200.0.1"), &b);
	assert_ptr_equal(who(&t, "10.1.2.2"), &b);
	assert_ptr_equal(who(&t, "10.1.2.3"), &c);
	assert_ptr_equal(who(&t, "ffff::1"), &d); /* families do not mix */
	assert_int_equal(drop(&t, "::", 0, &d), 0);
	assert_null(who(&t, "ffff::1"));

	add(&t, "2001:db8::1", 128, &a);
	add(&t, "2001:db8::", 64, &b);
	assert_ptr_equal(who(&t, "2001:db8::1"), &a);
	assert_ptr_equal(who(&t, "2001:db8::2"), &b);
	assert_null(who(&t, "2001:db8:0:1::2"));
	allowed_fini(&t);
}

static void test_moves(void **state)
{
	struct allowed_owner a = { .n = 0 }, b = { .n = 0 }, *from;
	struct allowed_table t;
	struct prefix p = net("10.1.2.77", 24), q; /* host bits do not matter */

	allowed_init(&t);
	assert_int_equal(allowed_insert(&t, &p, &a, 0, &from), 0);
	assert_null(from);
	allowed_prefix(allowed_first(&a), &q);
	assert_int_equal(q.bits, 24);
	assert_memory_equal(q.addr.ip, "\x0a\x01\x02\x00", 5);
	assert_int_equal(allowed_insert(&t, &p, &a, 0, &from), 0);
	assert_null(from);
	assert_int_equal(a.n, 1);
	assert_int_equal(allowed_insert(&t, &p, &b, 0, &from), 0);
	assert_ptr_equal(from, &a);
	assert_int_equal(a.n, 0);
	assert_null(allowed_first(&a));
	assert_int_equal(b.n, 1);
	assert_int_equal(t.n, 1);
	assert_int_equal(allowed_remove(&t, &p, &a), -ENOENT); /* not a's any more */
	assert_ptr_equal(who(&t, "10.1.2.3"), &b);
	assert_int_equal(drop(&t, "10.1.2.0", 25, &b), -ENOENT);
	assert_int_equal(drop(&t, "10.1.2.0", 23, &b), -ENOENT);
	assert_int_equal(allowed_remove(&t, &p, &b), 0);
	assert_null(who(&t, "10.1.2.3"));
	allowed_fini(&t);
}

static bool owns(struct allowed_table *t, const struct allowed_owner *o, const char *addr)
{
	struct prefix p = net(addr, 0);

	return allowed_owns(t, o, p.addr.family, p.addr.ip);
}

/* Host routes first and last in the list are answered from there, and stop being so at
 * once when they move or go. */
static void test_owns(void **state)
{
	struct allowed_owner a = { .n = 0 }, b = { .n = 0 };
	struct allowed_table t;

	allowed_init(&t);
	assert_false(owns(&t, &a, "10.0.0.1"));
	add(&t, "10.0.0.1", 32, &a);
	add(&t, "10.0.0.2", 32, &a);
	add(&t, "a00:1::", 128, &a); /* its first four bytes are 10.0.0.1 */
	add(&t, "10.0.0.0", 24, &b);
	assert_true(owns(&t, &a, "10.0.0.1"));
	assert_true(owns(&t, &a, "10.0.0.2"));
	assert_true(owns(&t, &a, "a00:1::"));
	assert_false(owns(&t, &a, "a00:1::1"));
	assert_false(owns(&t, &a, "10.0.0.3"));
	assert_false(owns(&t, &b, "10.0.0.1")); /* only a shorter one */
	assert_true(owns(&t, &b, "10.0.0.3"));
	add(&t, "10.0.0.1", 32, &b);
	assert_false(owns(&t, &a, "10.0.0.1"));
	assert_true(owns(&t, &b, "10.0.0.1"));
	assert_int_equal(drop(&t, "a00:1::", 128, &a), 0);
	assert_false(owns(&t, &a, "a00:1::"));
	assert_true(owns(&t, &a, "10.0.0.2"));
	allowed_remove_all(&t, &a);
	assert_false(owns(&t, &a, "10.0.0.2"));
	/* A prefix as long as the other family's host routes is not one of them. */
	add(&t, "a00:2::", 32, &a);
	add(&t, "a00:2::7", 128, &b);
	assert_true(owns(&t, &a, "a00:2::1"));
	assert_false(owns(&t, &a, "a00:2::7"));
	allowed_fini(&t);
}

static void test_bad_prefixes(void **state)
{
	struct allowed_owner a = { .n = 0 };
	struct allowed_table t;
	struct prefix p = net("10.0.0.0", 33);

	allowed_init(&t);
	assert_int_equal(allowed_insert(&t, &p, &a, 0, NULL), -EINVAL);
	p = net("::", 129);
	assert_int_equal(allowed_insert(&t, &p, &a, 0, NULL), -EINVAL);
	p.addr.family = 0;
	p.bits = 0;
	assert_int_equal(allowed_insert(&t, &p, &a, 0, NULL), -EINVAL);
	assert_int_equal(allowed_remove(&t, &p, &a), -ENOENT);
	assert_null(allowed_find(&t, &p));
	assert_int_equal(allowed_reserve(&t, SIZE_MAX), -ENOMEM);
	assert_int_equal(t.n, 0);
	allowed_fini(&t);
}

/* One peer's list replaced by chains of ever longer prefixes and back to /0:
 * the address is covered at every moment, and only the new list stays. */
static void replace_chain(const char *addr, const uint8_t *bits, size_t n)
{
	struct allowed_owner a = { .n = 0 };
	struct allowed_table t;

	allowed_init(&t);
	for (uint32_t mark = 1; mark <= n; mark++) {
		struct prefix p = net(addr, bits[mark - 1]), q;

		assert_int_equal(allowed_insert(&t, &p, &a, mark, NULL), 0);
		assert_ptr_equal(who(&t, addr), &a);
		allowed_remove_stale(&t, &a, mark);
		assert_ptr_equal(who(&t, addr), &a);
		assert_int_equal(a.n, 1);
		allowed_prefix(allowed_first(&a), &q);
		assert_int_equal(q.bits, bits[mark - 1]);
	}
	/* all of them together, then the /0 alone */
	for (size_t i = 0; i < n; i++)
		add(&t, addr, bits[i], &a);
	assert_int_equal(a.n, n - 1); /* /0 is twice in the chain */
	assert_int_equal(
		allowed_insert(&t, &(struct prefix){ net(addr, 0).addr, 0 }, &a, 99, NULL), 0);
	allowed_remove_stale(&t, &a, 99);
	assert_int_equal(a.n, 1);
	assert_ptr_equal(who(&t, addr), &a);
	allowed_fini(&t);
}

static void test_replace(void **state)
{
	static const uint8_t v4[] = { 0, 8, 10, 12, 16, 0 }, v6[] = { 0, 111, 4, 37, 75, 0 };

	replace_chain("10.20.30.40", v4, sizeof(v4));
	replace_chain("2001:db8:1:2:3:4:5:6", v6, sizeof(v6));
}

static void test_order(void **state)
{
	static const char *const addr[] = { "10.9.0.0", "10.1.0.0", "10.5.0.0" };
	struct allowed_owner a = { .n = 0 };
	struct allowed_leaf *l;
	struct allowed_table t;
	struct prefix p;
	size_t i = 0;

	allowed_init(&t);
	for (; i < 3; i++)
		add(&t, addr[i], 16, &a);
	for (i = 0, l = allowed_first(&a); l; l = allowed_next(l), i++) {
		struct prefix q = net(addr[i], 16);

		allowed_prefix(l, &p);
		assert_true(same_net(&p, &q));
	}
	assert_int_equal(i, 3);
	add(&t, addr[0], 16, &a); /* given again: goes to the end */
	allowed_prefix(a.last, &p);
	assert_int_equal(p.addr.ip[1], 9);
	allowed_prefix(allowed_first(&a), &p);
	assert_int_equal(p.addr.ip[1], 1);
	allowed_fini(&t);
}

/* ---- Many prefixes on one peer, and what they cost. */

enum { MANY = 130560 };

static struct prefix nth(uint32_t i)
{
	struct prefix p = { .bits = 32 };

	p.addr.family = AF_INET;
	p.addr.ip[0] = 10;
	p.addr.ip[1] = (uint8_t)(i >> 16);
	p.addr.ip[2] = (uint8_t)(i >> 8);
	p.addr.ip[3] = (uint8_t)i;
	return p;
}

/* Nodes in use are the reserve that is gone. */
static size_t chunk_bytes(const struct allowed_table *t)
{
	const size_t per_chunk = 1364;
	size_t chunks = 0;

	for (const void *c = t->chunks; c; c = *((void *const *)c + 1))
		chunks++;
	return (chunks * per_chunk - t->n_free) * 48;
}

static void test_many(void **state)
{
	struct allowed_owner a = { .n = 0 }, b = { .n = 0 };
	struct allowed_table t;

	allowed_init(&t);
	assert_int_equal(allowed_reserve(&t, MANY), 0);
	for (uint32_t i = 0; i < MANY; i++) {
		struct prefix p = nth(i * 7919 % MANY);

		assert_int_equal(allowed_insert(&t, &p, &a, 1, NULL), 0);
	}
	assert_int_equal(a.n, MANY);
	assert_true(chunk_bytes(&t) <= 96 * MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		struct prefix p = nth(i);

		assert_ptr_equal(allowed_lookup(&t, AF_INET, p.addr.ip), &a);
		if (i % 2)
			assert_int_equal(allowed_insert(&t, &p, &a, 2, NULL), 0);
		if (i % 4 == 3)
			assert_int_equal(allowed_insert(&t, &p, &b, 2, NULL), 0);
	}
	allowed_remove_stale(&t, &a, 2);
	assert_int_equal(a.n, MANY / 4);
	assert_int_equal(b.n, MANY / 4);
	for (uint32_t i = 0; i < MANY; i++) {
		struct prefix p = nth(i);

		assert_ptr_equal(allowed_lookup(&t, AF_INET, p.addr.ip),
			i % 4 == 3	     ? &b
				: i % 4 == 1 ? &a
					     : NULL);
	}
	allowed_remove_all(&t, &a);
	allowed_remove_all(&t, &b);
	rcu_reclaim();
	/* What came back is used again. */
	assert_int_equal(allowed_reserve(&t, MANY), 0);
	assert_int_equal(chunk_bytes(&t), 0);
	allowed_fini(&t);
}

/* A reservation holds: no insert in it takes memory. */
static void test_reserve(void **state)
{
	struct allowed_owner a = { .n = 0 };
	struct allowed_table t;
	struct allowed_chunk *newest;

	rng_state = 3;
	allowed_init(&t);
	add(&t, "10.0.0.0", 8, &a);
	assert_int_equal(allowed_reserve(&t, 5000), 0);
	newest = t.chunks;
	for (unsigned i = 0; i < 5000; i++) {
		struct prefix p = some_net();

		assert_int_equal(allowed_insert(&t, &p, &a, 0, NULL), 0);
		assert_ptr_equal(t.chunks, newest);
	}
	allowed_fini(&t);
}

/* ---- A reader while a writer changes everything around some fixed prefixes. */

struct churn {
	struct allowed_table t;
	struct allowed_owner fixed, moving[2];
	struct prefix keep[64];
	_Atomic bool is_done;
	_Atomic size_t n_reads, n_missed;
};

static void *read_all(void *arg)
{
	struct churn *c = arg;

	rcu_thread_init();
	while (!atomic_load(&c->is_done)) {
		for (size_t i = 0; i < 64; i++) {
			const struct prefix *p = &c->keep[i];

			/* a host prefix of ours: nothing longer can hide it */
			if (allowed_lookup(&c->t, p->addr.family, p->addr.ip) != &c->fixed)
				c->n_missed++;
		}
		c->n_reads += 64;
		rcu_quiescent();
	}
	rcu_thread_fini();
	return NULL;
}

static void test_churn(void **state)
{
	struct churn *c = calloc(1, sizeof(*c));
	pthread_t reader;

	rng_state = 11;
	allowed_init(&c->t);
	for (size_t i = 0; i < 64; i++) {
		c->keep[i] = some_net();
		c->keep[i].bits = c->keep[i].addr.family == AF_INET ? 32 : 128;
		assert_int_equal(allowed_insert(&c->t, &c->keep[i], &c->fixed, 0, NULL), 0);
	}
	assert_int_equal(pthread_create(&reader, NULL, read_all, c), 0);
	for (unsigned i = 0; i < 300000 || c->n_reads < 100000; i++) {
		struct allowed_owner *o = &c->moving[rng() % 2];
		struct prefix p = some_net();

		if (allowed_find(&c->t, &p) == &c->fixed)
			continue;
		if (rng() % 2)
			assert_int_equal(allowed_insert(&c->t, &p, o, i, NULL), 0);
		else
			(void)allowed_remove(&c->t, &p, o);
		if (rng() % 2000 == 0)
			allowed_remove_all(&c->t, o);
		if (i % 256 == 0)
			rcu_reclaim();
	}
	c->is_done = true;
	pthread_join(reader, NULL);
	assert_true(c->n_reads >= 100000);
	assert_int_equal(c->n_missed, 0);
	allowed_fini(&c->t);
	free(c);
}

/* Prefixes come and go right beside, above and below two that stay, which change
 * hands between two owners: never nobody's, never the flapping owner's. */
struct flap {
	struct allowed_table t;
	struct allowed_owner own[2], other;
	_Atomic bool is_done;
	_Atomic size_t n_reads, n_missed;
};

static void *read_two(void *arg)
{
	static const uint8_t ip[2][4] = { { 10, 0, 0, 0 }, { 10, 9, 9, 9 } };
	struct flap *f = arg;

	rcu_thread_init();
	while (!f->is_done) {
		for (unsigned i = 0; i < 64; i++) {
			struct allowed_owner *o = allowed_lookup(&f->t, AF_INET, ip[i % 2]);

			f->n_missed += o != &f->own[0] && o != &f->own[1];
			/* These two are the first and the last of whoever has them. */
			f->n_missed += allowed_owns(&f->t, &f->other, AF_INET, ip[i % 2]);
		}
		f->n_reads += 64;
		rcu_quiescent();
	}
	rcu_thread_fini();
	return NULL;
}

static void test_flap(void **state)
{
	const struct prefix stay[] = { net("10.0.0.0", 32), net("10.8.0.0", 13) };
	const struct prefix come[] = { net("10.0.0.1", 32), net("10.0.0.0", 24), net("0.0.0.0", 0),
		net("10.9.9.8", 32), net("10.0.0.0", 8), net("11.0.0.0", 8) };
	struct flap *f = calloc(1, sizeof(*f));
	pthread_t reader;

	rng_state = 21;
	allowed_init(&f->t);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(allowed_insert(&f->t, &stay[i], &f->own[0], 0, NULL), 0);
	assert_int_equal(pthread_create(&reader, NULL, read_two, f), 0);
	for (unsigned i = 0; i < 1000000 || f->n_reads < 1000000; i++) {
		const struct prefix *p = &come[rng() % ARRAY_LEN(come)];

		if (rng() % 8 == 0)
			assert_int_equal(allowed_insert(&f->t, &stay[rng() % 2], &f->own[rng() % 2],
						 0, NULL),
				0);
		else if (allowed_find(&f->t, p))
			assert_int_equal(allowed_remove(&f->t, p, &f->other), 0);
		else
			assert_int_equal(allowed_insert(&f->t, p, &f->other, 0, NULL), 0);
		if (i % 1024 == 0)
			rcu_reclaim();
	}
	f->is_done = true;
	pthread_join(reader, NULL);
	assert_int_equal(f->n_missed, 0);
	allowed_fini(&f->t);
	free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_longest_wins),
		cmocka_unit_test(test_moves),
		cmocka_unit_test(test_owns),
		cmocka_unit_test(test_bad_prefixes),
		cmocka_unit_test(test_replace),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_churn),
		cmocka_unit_test(test_flap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
