/* aead: each back end against one-by-one sealing through another path, against
 * each other over all lengths and batch sizes, and with every kind of damage. */
#include "crypto/crypto.h"

#include "base/bytes.h"
#include "base/cpu.h"
#include "unhex.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { LEN_MAX = 2048, BATCH_MAX = 130, ROOM = LEN_MAX + CRYPTO_TAG };

static const char *const names[] = { "ipsec-mb", "openssl" };

static uint8_t key[CRYPTO_KEY];
static uint8_t text[BATCH_MAX][ROOM], tag[BATCH_MAX][CRYPTO_TAG], plain[ROOM];
static struct aead_job jobs[BATCH_MAX];

static int setup(void **state)
{
	size_t i;

	for (i = 0; i < sizeof(key); i++)
		key[i] = (uint8_t)(i * 31 + 5);
	for (i = 0; i < sizeof(plain); i++)
		plain[i] = (uint8_t)(i * 13 + (i >> 8));
	return crypto_init(NULL);
}

/* False where this back end cannot run. */
static bool take(const char *name, struct aead **a)
{
	int ret = crypto_init(name);

	if (ret == -ENOTSUP)
		return false;
	assert_int_equal(ret, 0);
	assert_string_equal(crypto_aead_name(), name);
	assert_int_equal(aead_create(a), 0);
	return true;
}

static void fill_jobs(size_t n, const uint32_t *lens, uint64_t counter)
{
	size_t i;

	for (i = 0; i < n; i++) {
		memset(text[i], 0xee, ROOM);
		memcpy(text[i], plain, lens[i]);
		memset(tag[i], 0, CRYPTO_TAG);
		jobs[i] = (struct aead_job){ text[i], lens[i], counter + i, tag[i], false };
	}
}

/* Seal a batch, compare each message with the one-shot form, open it again. */
static void check_batch(struct aead *a, size_t n, const uint32_t *lens, uint64_t counter)
{
	uint8_t want[ROOM];
	size_t i;

	fill_jobs(n, lens, counter);
	aead_seal(a, key, jobs, n);
	for (i = 0; i < n; i++) {
		aead_seal_ad(want, plain, lens[i], NULL, 0, counter + i, key);
		assert_true(jobs[i].is_ok);
		assert_memory_equal(text[i], want, lens[i]);
		assert_memory_equal(tag[i], want + lens[i], CRYPTO_TAG);
		assert_int_equal(text[i][lens[i]], 0xee);
		jobs[i].is_ok = false;
	}
	aead_open(a, key, jobs, n);
	for (i = 0; i < n; i++) {
		assert_true(jobs[i].is_ok);
		assert_memory_equal(text[i], plain, lens[i]);
		assert_int_equal(text[i][lens[i]], 0xee);
	}
}

static void every_length(struct aead *a)
{
	uint32_t lens[BATCH_MAX] = { 0 }, len = 0;
	size_t n;

	while (len < LEN_MAX) {
		for (n = 0; n < 64 && len < LEN_MAX; n++, len += len < 300 ? 1 : 7)
			lens[n] = len;
		check_batch(a, n, lens, 1000 + len);
	}
}

static void every_batch_size(struct aead *a)
{
	uint32_t lens[BATCH_MAX] = { 0 };
	size_t n, i;

	for (n = 0; n <= BATCH_MAX; n += n < 66 ? 1 : 16) {
		for (i = 0; i < n; i++)
			lens[i] = (uint32_t)((i * 397 + n * 61) % 1500);
		check_batch(a, n, lens, n << 40);
	}
}

static void extreme_counters(struct aead *a)
{
	static const uint64_t counters[] = { 0, 1, UINT32_MAX, 1ULL << 32, 0x0123456789abcdef,
		UINT64_MAX - 1 };
	uint32_t lens[2] = { 33, 1420 };
	size_t i;

	for (i = 0; i < ARRAY_LEN(counters); i++)
		check_batch(a, 2, lens, counters[i]);
}

static void each_backend_agrees_with_one_shot(void **state)
{
	struct aead *a;
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		if (!take(names[i], &a))
			continue;
		every_length(a);
		every_batch_size(a);
		extreme_counters(a);
		aead_destroy(a);
	}
}

static void backends_open_what_the_other_sealed(void **state)
{
	uint32_t lens[64] = { 0 };
	struct aead *a, *b;
	size_t i, n, r;

	if (!take(names[0], &a))
		skip();
	assert_true(take(names[1], &b));
	for (r = 0; r < 2; r++) {
		for (n = 1; n <= 64; n += 3) {
			for (i = 0; i < n; i++)
				lens[i] = (uint32_t)((i * 211 + n * 97) % LEN_MAX) | 1;
			fill_jobs(n, lens, n);
			aead_seal(r ? a : b, key, jobs, n);
			for (i = 0; i < n; i++)
				jobs[i].is_ok = false;
			aead_open(r ? b : a, key, jobs, n);
			for (i = 0; i < n; i++) {
				assert_true(jobs[i].is_ok);
				assert_memory_equal(text[i], plain, lens[i]);
			}
		}
	}
	aead_destroy(a);
	aead_destroy(b);
}

/* The library's code for lesser CPUs must give the same bytes. */
static void every_cpu_setting(void **state)
{
	struct aead *a;
	unsigned m;

	for (m = 0; m <= (CPU_AVX2 | CPU_AVX512); m++) {
		cpu_mask(m);
		if (!take(names[0], &a))
			continue;
		every_length(a);
		every_batch_size(a);
		aead_destroy(a);
	}
	cpu_mask(~0U);
}

/* Job bad of three is damaged by what; the others must not notice. */
static void check_damage(struct aead *a, void (*damage)(size_t bad, unsigned what), unsigned n_what)
{
	static const uint32_t lens[3] = { 64, 65, 17 };
	unsigned what;
	size_t i, bad;

	for (what = 0; what < n_what; what++) {
		bad = what % 3;
		fill_jobs(3, lens, 7);
		aead_seal(a, key, jobs, 3);
		damage(bad, what);
		/* A back end that sets nothing must be seen: expect the opposite. */
		for (i = 0; i < 3; i++)
			jobs[i].is_ok = i == bad;
		aead_open(a, key, jobs, 3);
		for (i = 0; i < 3; i++)
			assert_int_equal(jobs[i].is_ok, i != bad);
	}
}

static void flip_text_bit(size_t bad, unsigned what)
{
	unsigned bit = what % (jobs[bad].len * 8);

	text[bad][bit / 8] ^= (uint8_t)(1 << bit % 8);
}

static void flip_tag_bit(size_t bad, unsigned what)
{
	tag[bad][what / 8] ^= (uint8_t)(1 << what % 8);
}

static void flip_counter_bit(size_t bad, unsigned what)
{
	jobs[bad].counter ^= 1ULL << what;
}

static void cut_one_byte(size_t bad, unsigned what)
{
	jobs[bad].len--;
}

static void add_one_byte(size_t bad, unsigned what)
{
	text[bad][jobs[bad].len++] = (uint8_t)what;
}

static void damage_is_seen_and_stays_in_its_job(void **state)
{
	struct aead *a;
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		if (!take(names[i], &a))
			continue;
		check_damage(a, flip_text_bit, 3 * 65 * 8);
		check_damage(a, flip_tag_bit, CRYPTO_TAG * 8);
		check_damage(a, flip_counter_bit, 64);
		check_damage(a, cut_one_byte, 3);
		check_damage(a, add_one_byte, 3);
		aead_destroy(a);
	}
}

static void another_key_does_not_open(void **state)
{
	static const uint32_t lens[1] = { 100 };
	uint8_t other[CRYPTO_KEY];
	struct aead *a;
	unsigned bit;
	size_t i;

	for (i = 0; i < ARRAY_LEN(names); i++) {
		if (!take(names[i], &a))
			continue;
		for (bit = 0; bit < 256; bit++) {
			memcpy(other, key, sizeof(key));
			other[bit / 8] ^= (uint8_t)(1 << bit % 8);
			fill_jobs(1, lens, 1);
			aead_seal(a, key, jobs, 1);
			aead_open(a, other, jobs, 1);
			assert_false(jobs[0].is_ok);
		}
		aead_destroy(a);
	}
}

static void *work(void *arg)
{
	uint8_t buf[1420], out[CRYPTO_TAG];
	struct aead_job job = { buf, sizeof(buf), 0, out, false };
	struct aead *a;
	int i;

	if (aead_create(&a))
		return "no memory";
	memcpy(buf, plain, sizeof(buf));
	for (i = 0; i < 300; i++) {
		job.counter = (uint64_t)i;
		aead_seal(a, key, &job, 1);
		aead_open(a, key, &job, 1);
		if (!job.is_ok || memcmp(buf, plain, sizeof(buf)))
			break;
	}
	aead_destroy(a);
	return i == 300 ? NULL : "wrong result";
}

static void threads_have_their_own(void **state)
{
	pthread_t t[3];
	void *ret;
	size_t i, k;

	for (k = 0; k < ARRAY_LEN(names); k++) {
		if (crypto_init(names[k]))
			continue;
		for (i = 0; i < ARRAY_LEN(t); i++)
			assert_int_equal(pthread_create(&t[i], NULL, work, NULL), 0);
		for (i = 0; i < ARRAY_LEN(t); i++) {
			assert_int_equal(pthread_join(t[i], &ret), 0);
			assert_null(ret);
		}
	}
}

static void names_that_are_none(void **state)
{
	assert_int_equal(crypto_init("chacha"), -EINVAL);
	assert_int_equal(crypto_init(""), -EINVAL);
	assert_int_equal(crypto_init("openssl "), -EINVAL);
	assert_int_equal(crypto_init(NULL), 0);
	aead_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_backend_agrees_with_one_shot),
		cmocka_unit_test(backends_open_what_the_other_sealed),
		cmocka_unit_test(every_cpu_setting),
		cmocka_unit_test(damage_is_seen_and_stays_in_its_job),
		cmocka_unit_test(another_key_does_not_open),
		cmocka_unit_test(threads_have_their_own),
		cmocka_unit_test(names_that_are_none),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
