#include "lone.h"
#include <pthread.h>

static void add_all(struct wg_mtus *m, const unsigned *mtu, size_t n)
{
	for (size_t i = 0; i < n; i++)
		wg_mtus_add(m, mtu[i]);
}

static void assert_list(const struct wg_mtus *m, const unsigned *mtu, size_t n)
{
	assert_int_equal(m->n, n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(m->mtu[i], mtu[i]);
}

static void test_sorted(void **state)
{
	static const unsigned in[] = { 1420, 1280, 0, 1300, 1420, 1280, 70000, 68, 65535 };
	static const unsigned out[] = { 68, 1280, 1300, 1420, 65535 };
	struct wg_mtus m = { 0 };

	add_all(&m, in, ARRAY_LEN(in));
	assert_list(&m, out, ARRAY_LEN(out));
	assert_false(m.is_cut);
	assert_true(wg_mtus_has(&m, 68) && wg_mtus_has(&m, 1300) && wg_mtus_has(&m, 65535));
	assert_false(wg_mtus_has(&m, 1301) || wg_mtus_has(&m, 0));
}

/* The smallest stay, in whatever order they come. */
static void test_full(void **state)
{
	for (unsigned step = 0; step < 3; step++) {
		struct wg_mtus m = { 0 };

		for (unsigned i = 0; i < 2 * WG_MTUS_MAX; i++) {
			unsigned k = step == 0 ? i
				: step == 1    ? 2 * WG_MTUS_MAX - 1 - i
					       : i * 7 % (2 * WG_MTUS_MAX);

			assert_int_equal(m.is_cut, i > WG_MTUS_MAX);
			wg_mtus_add(&m, 1000 + k);
		}
		assert_true(m.is_cut);
		assert_int_equal(m.n, WG_MTUS_MAX);
		for (unsigned i = 0; i < WG_MTUS_MAX; i++)
			assert_int_equal(m.mtu[i], 1000 + i);
	}
}

static void test_merge(void **state)
{
	static const unsigned a[] = { 1280, 1420 }, b[] = { 1300, 1420, 1500 };
	static const unsigned all[] = { 1280, 1300, 1420, 1500 };
	struct wg_mtus m = { 0 }, more = { 0 };

	add_all(&m, a, ARRAY_LEN(a));
	add_all(&more, b, ARRAY_LEN(b));
	wg_mtus_merge(&m, &more);
	assert_list(&m, all, ARRAY_LEN(all));
	assert_false(m.is_cut);
	more.is_cut = true;
	wg_mtus_merge(&m, &more);
	assert_list(&m, all, ARRAY_LEN(all));
	assert_true(m.is_cut);
}

static void test_cell(void **state)
{
	struct mtus_cell cell = { 0 };
	struct wg_mtus m = { 0 }, out = { 0 };
	uint32_t seq = 0;

	assert_false(mtus_get(&cell, &out, &seq));
	wg_mtus_add(&m, 1420);
	mtus_set(&cell, &m);
	assert_true(mtus_get(&cell, &out, &seq));
	assert_int_equal(out.n, 1);
	assert_int_equal(out.mtu[0], 1420);
	assert_false(mtus_get(&cell, &out, &seq));
	/* being written: what was read before stays */
	atomic_fetch_add(&cell.seq, 1);
	assert_false(mtus_get(&cell, &out, &seq));
	assert_int_equal(out.n, 1);
	atomic_fetch_add(&cell.seq, 1);
	assert_true(mtus_get(&cell, &out, &seq));
}

/* A list whose entries all follow from its first, so that a mixture shows. */
static void make_list(struct wg_mtus *m, unsigned round)
{
	memset(m, 0, sizeof(*m));
	m->n = (uint8_t)(1 + round % WG_MTUS_MAX);
	for (unsigned i = 0; i < WG_MTUS_MAX; i++)
		m->mtu[i] = (uint16_t)(round % 1000 * 16 + i);
	m->is_cut = round & 1;
}

static struct mtus_cell shared;
static _Atomic bool is_done;

static void *run_writer(void *arg)
{
	struct wg_mtus m;

	for (unsigned round = 1; !atomic_load(&is_done); round++) {
		make_list(&m, round);
		mtus_set(&shared, &m);
	}
	return NULL;
}

static void test_no_tearing(void **state)
{
	enum { GETS = 5000 };
	struct wg_mtus m = { 0 };
	uint32_t seq = 0;
	pthread_t writer;
	unsigned n = 0;

	assert_int_equal(pthread_create(&writer, NULL, run_writer, NULL), 0);
	while (n < GETS) {
		if (!mtus_get(&shared, &m, &seq))
			continue;
		n++;
		for (unsigned i = 1; i < WG_MTUS_MAX; i++)
			assert_int_equal(m.mtu[i], m.mtu[0] + i);
		assert_int_equal(m.mtu[0] % 16, 0);
		/* 1000 rounds are an even number */
		assert_int_equal(m.is_cut, m.mtu[0] / 16 & 1);
	}
	atomic_store(&is_done, true);
	pthread_join(writer, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sorted),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_merge),
		cmocka_unit_test(test_cell),
		cmocka_unit_test(test_no_tearing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
