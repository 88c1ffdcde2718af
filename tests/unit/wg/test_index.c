/* The permutation, and the table against an array of what is taken. */
#include "wg/index.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const uint8_t key_a[INDEX_KEY] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
static const uint8_t key_b[INDEX_KEY] = { 7 };

static uint64_t rng_state;

static uint64_t rng(void)
{
	uint64_t z = rng_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static struct index_table *make(uint32_t server, unsigned n_workers)
{
	struct index_table *t = malloc(sizeof(*t));

	assert_int_equal(index_init(t, server, n_workers, key_a), 0);
	return t;
}

static void drop(struct index_table *t)
{
	index_fini(t);
	free(t);
}

static struct sipkey sipkey_of(const struct index_table *t, unsigned epoch)
{
	return (struct sipkey){ { t->keys[epoch][0], t->keys[epoch][1] } };
}

static void test_fields(void **state)
{
	uint32_t plain = wgindex_pack(0x55, 0xabcde, 0x9);

	assert_int_equal(wgindex_server(plain), 0x55);
	assert_int_equal(wgindex_slot(plain), 0xabcde);
	assert_int_equal(wgindex_gen(plain), 0x9);
	assert_int_equal(wgindex_worker(plain, 0), 0);
	assert_int_equal(wgindex_worker(plain, 4), 0xa);
	assert_int_equal(wgindex_worker(plain, 6), 0x2a);
	plain = wgindex_pack(WG_SERVER_ID_MAX, INDEX_SLOTS - 1, 15);
	assert_int_equal(plain, 0x7fffffff);
	assert_int_equal(wgindex_epoch(0x80000000), 1);
	assert_int_equal(wgindex_epoch(0x7fffffff), 0);
}

/* A permutation of 31 bits (each slice maps apart and back), which changes about half the
 * bits when one changes. */
static void test_permutation(void **state)
{
	struct sipkey key = { { 0x0706050403020100, 0x0f0e0d0c0b0a0908 } };
	const uint32_t n = 1 << 20;
	uint8_t *seen = calloc(1, (size_t)1 << 28);
	uint64_t flips = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t plain = i * 2047, m = wgindex_mask(&key, plain); /* below 2^31, apart */

		assert_true(m < 1u << 31);
		assert_int_equal(wgindex_unmask(&key, m), plain);
		assert_int_equal(wgindex_unmask(&key, m | 1u << 31), plain);
		if (i < 1 << 18) {
			uint32_t other = wgindex_mask(&key, plain ^ 1u << i % 31);

			flips += (unsigned)__builtin_popcount(m ^ other);
		}
		assert_false(seen[m / 8] >> m % 8 & 1);
		seen[m / 8] |= (uint8_t)(1 << m % 8);
	}
	flips = flips * 100 / (1 << 18);
	assert_in_range(flips, 1540, 1560); /* 15.5 of 31 */
	free(seen);
}

/* The bits that name server and worker cannot be seen: over the slots of one worker each
 * bit of the index is set half of the time. */
static void test_masked(void **state)
{
	struct index_table *t = make(5, 4);
	unsigned set[31] = { 0 }, n = 20000;
	uint64_t owner;

	for (unsigned i = 0; i < n; i++) {
		uint32_t index;

		assert_int_equal(index_take(t, 2, INDEX_KEYPAIR, &owner, &index), 0);
		for (unsigned b = 0; b < 31; b++)
			set[b] += index >> b & 1;
	}
	for (unsigned b = 0; b < 31; b++)
		assert_in_range(set[b], n / 2 - 500, n / 2 + 500); /* 7 sigma */
	drop(t);
}

static void test_bad_arguments(void **state)
{
	struct index_table *t = malloc(sizeof(*t));

	assert_int_equal(index_init(t, 128, 1, key_a), -EINVAL);
	assert_int_equal(index_init(t, 0, 0, key_a), -EINVAL);
	assert_int_equal(index_init(t, 0, WG_WORKERS_MAX + 1, key_a), -EINVAL);
	assert_int_equal(index_init(t, 127, WG_WORKERS_MAX, key_a), 0);
	assert_int_equal(t->worker_bits, 6);
	drop(t);
}

static void test_kinds(void **state)
{
	struct index_table *t = make(1, 1);
	enum index_kind kind;
	uint64_t hs, keypair;
	uint32_t index;

	assert_int_equal(index_take(t, 0, INDEX_HANDSHAKE, &hs, &index), 0);
	assert_ptr_equal(index_lookup(t, index, &kind), &hs);
	assert_int_equal(kind, INDEX_HANDSHAKE);
	index_replace(t, index, INDEX_KEYPAIR, &keypair);
	assert_ptr_equal(index_lookup(t, index, &kind), &keypair);
	assert_int_equal(kind, INDEX_KEYPAIR);
	for (unsigned b = 0; b < 32; b++) /* anything else finds nothing */
		assert_null(index_lookup(t, index ^ 1u << b, &kind));
	index_release(t, index);
	assert_null(index_lookup(t, index, &kind));
	index_release(t, index); /* twice: ignored */
	index_release(t, index ^ 1);
	assert_int_equal(t->shares[0].n_free, 1);
	drop(t);
}

/* Workers and server can be read by who has the key. */
static void test_steering(void **state)
{
	for (unsigned n = 1; n <= WG_WORKERS_MAX; n += 7) {
		struct index_table *t = make(n, n);
		struct sipkey key = sipkey_of(t, 0);
		uint64_t owner;

		for (unsigned w = 0; w < n; w++) {
			for (unsigned i = 0; i < 20; i++) {
				uint32_t index, plain;

				assert_int_equal(
					index_take(t, w, INDEX_KEYPAIR, &owner, &index), 0);
				plain = wgindex_unmask(&key, index);
				assert_int_equal(wgindex_worker(plain, t->worker_bits), w);
				assert_int_equal(wgindex_server(plain), n);
				assert_int_equal(
					wgindex_slot(plain), (w << (20 - t->worker_bits)) + i);
			}
		}
		drop(t);
	}
}

/* One gateway does not take another's index for its own. */
static void test_servers(void **state)
{
	struct index_table *a = make(3, 1), *b = make(4, 1);
	enum index_kind kind;
	uint64_t owner;
	uint32_t index, other;

	assert_int_equal(index_take(a, 0, INDEX_KEYPAIR, &owner, &index), 0);
	assert_int_equal(index_take(b, 0, INDEX_KEYPAIR, &owner, &other), 0);
	assert_null(index_lookup(b, index, &kind));
	assert_null(index_lookup(a, other, &kind));
	drop(a);
	drop(b);
}

static void test_epochs(void **state)
{
	struct index_table *t = make(1, 2);
	enum index_kind kind;
	uint64_t x, y, z;
	uint32_t old, new, newer;

	assert_int_equal(index_take(t, 1, INDEX_KEYPAIR, &x, &old), 0);
	index_set_epoch_key(t, 1, key_b);
	index_use_epoch(t, 1);
	assert_int_equal(index_take(t, 1, INDEX_KEYPAIR, &y, &new), 0);
	assert_int_equal(wgindex_epoch(old), 0);
	assert_int_equal(wgindex_epoch(new), 1);
	assert_ptr_equal(index_lookup(t, old, &kind), &x); /* both live on */
	assert_ptr_equal(index_lookup(t, new, &kind), &y);
	index_release(t, old);
	assert_null(index_lookup(t, old, &kind));
	index_set_epoch_key(t, 0, key_b);
	index_use_epoch(t, 0);
	assert_int_equal(index_take(t, 1, INDEX_KEYPAIR, &z, &newer), 0);
	assert_ptr_equal(index_lookup(t, newer, &kind), &z);
	assert_ptr_equal(index_lookup(t, new, &kind), &y);
	drop(t);
}

/* A released index does not come back soon: not within the quarantine times 16
 * generations of takes; and the slots that are touched stay few. */
static void test_reuse(void **state)
{
	struct index_table *t = make(1, 1);
	uint32_t first = 0, index;
	uint64_t owner;

	for (unsigned i = 0; i < INDEX_QUARANTINE * 16; i++) {
		assert_int_equal(index_take(t, 0, INDEX_HANDSHAKE, &owner, &index), 0);
		if (i == 0)
			first = index;
		else
			assert_int_not_equal(index, first);
		index_release(t, index);
	}
	assert_true(t->shares[0].next_fresh <= INDEX_QUARANTINE + 1);
	assert_non_null(t->chunks[0]);
	for (size_t i = 1; i < INDEX_CHUNKS; i++)
		assert_null(t->chunks[i]);
	drop(t);
}

/* A worker's share is used up: -ENOSPC, others are not affected, and it goes on
 * when something is released. */
static void test_full(void **state)
{
	const uint32_t share = INDEX_SLOTS / 64;
	struct index_table *t = make(9, 64);
	uint32_t *taken = calloc(share, sizeof(*taken)), index;
	enum index_kind kind;
	uint64_t owner;

	for (uint32_t i = 0; i < share; i++)
		assert_int_equal(index_take(t, 63, INDEX_KEYPAIR, &owner, &taken[i]), 0);
	assert_int_equal(index_take(t, 63, INDEX_KEYPAIR, &owner, &index), -ENOSPC);
	assert_int_equal(index_take(t, 62, INDEX_KEYPAIR, &owner, &index), 0);
	for (uint32_t i = 0; i < share; i++)
		assert_ptr_equal(index_lookup(t, taken[i], &kind), &owner);
	index_release(t, taken[5]);
	assert_int_equal(index_take(t, 63, INDEX_HANDSHAKE, &owner, &index), 0);
	assert_int_not_equal(index, taken[5]); /* same slot, next generation */
	assert_null(index_lookup(t, taken[5], &kind));
	index_release(t, taken[5]); /* the old one: must not free the slot */
	assert_ptr_equal(index_lookup(t, index, &kind), &owner);
	assert_int_equal(index_take(t, 63, INDEX_KEYPAIR, &owner, &taken[5]), -ENOSPC);
	free(taken);
	drop(t);
}

enum { MODEL_MAX = 3000, MODEL_STEPS = 300000 };

struct taken {
	uint64_t owner; /* not 0: taken, and its address is the owner */
	uint32_t index;
	enum index_kind kind;
};

/* Any index finds exactly who has taken it, mostly nobody. */
static void model_lookup(struct index_table *t, struct taken *m, uint32_t index)
{
	struct taken *expected = NULL;
	enum index_kind kind;

	for (size_t i = 0; i < MODEL_MAX; i++)
		if (m[i].owner && m[i].index == index)
			expected = &m[i];
	assert_ptr_equal(index_lookup(t, index, &kind), expected);
}

static void test_model(void **state)
{
	struct taken *m = calloc(MODEL_MAX, sizeof(*m));
	struct index_table *t = make(77, 3);
	enum index_kind kind;
	unsigned n = 0;

	rng_state = 5;
	for (unsigned i = 0; i < MODEL_STEPS; i++) {
		unsigned j = (unsigned)(rng() % MODEL_MAX);

		if (!m[j].owner) {
			m[j].kind = rng() % 2 ? INDEX_KEYPAIR : INDEX_HANDSHAKE;
			m[j].owner = 1;
			assert_int_equal(index_take(t, (unsigned)(rng() % 3), m[j].kind,
						 &m[j].owner, &m[j].index),
				0);
			n++;
		} else if (rng() % 3 == 0) {
			m[j].kind = INDEX_KEYPAIR;
			index_replace(t, m[j].index, m[j].kind, &m[j].owner);
		} else {
			index_release(t, m[j].index);
			m[j].owner = 0;
			n--;
			assert_null(index_lookup(t, m[j].index, &kind));
		}
		j = (unsigned)(rng() % MODEL_MAX);
		if (m[j].owner) {
			assert_ptr_equal(index_lookup(t, m[j].index, &kind), &m[j].owner);
			assert_int_equal(kind, m[j].kind);
		}
		if (i % 16 == 0) {
			model_lookup(t, m, m[j].index);
			model_lookup(t, m, m[j].index ^ 1u << i / 16 % 32);
			model_lookup(t, m, (uint32_t)rng());
		}
	}
	assert_true(n > 0);
	free(m);
	drop(t);
}

/* A reader never gets an owner for an index that was not that owner's. */
struct race {
	struct index_table *t;
	struct holder {
		_Atomic uint32_t index;
		uint32_t pad;
	} holders[64];
	_Atomic bool is_done;
	_Atomic size_t n_takes, n_found, n_wrong;
};

static void *look_up(void *arg)
{
	struct race *r = arg;
	enum index_kind kind;

	while (!r->is_done) {
		for (unsigned i = 0; i < 64; i++) {
			size_t before = r->n_takes;
			uint32_t index = r->holders[i].index;
			struct holder *h = index_lookup(r->t, index, &kind);

			/* While we were off the CPU the index may have come round again,
			 * for another holder: that is no error. */
			if (!h || r->n_takes - before > INDEX_QUARANTINE)
				continue;
			r->n_found++;
			if (h != &r->holders[i])
				r->n_wrong++;
		}
	}
	return NULL;
}

static void test_race(void **state)
{
	struct race *r = calloc(1, sizeof(*r));
	pthread_t reader;

	rng_state = 9;
	r->t = make(1, 1);
	for (unsigned i = 0; i < 64; i++) {
		uint32_t index;

		assert_int_equal(index_take(r->t, 0, INDEX_KEYPAIR, &r->holders[i], &index), 0);
		r->holders[i].index = index;
	}
	assert_int_equal(pthread_create(&reader, NULL, look_up, r), 0);
	for (unsigned i = 0; i < 300000 || r->n_found < 100000; i++) {
		struct holder *h = &r->holders[rng() % 64];
		uint32_t index;

		index_release(r->t, h->index);
		assert_int_equal(index_take(r->t, 0, INDEX_KEYPAIR, h, &index), 0);
		h->index = index;
		r->n_takes++;
	}
	r->is_done = true;
	pthread_join(reader, NULL);
	assert_true(r->n_found >= 100000);
	assert_int_equal(r->n_wrong, 0);
	drop(r->t);
	free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_permutation),
		cmocka_unit_test(test_masked),
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_steering),
		cmocka_unit_test(test_servers),
		cmocka_unit_test(test_epochs),
		cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_race),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
