#include "lone.h"
#include <pthread.h>

static struct lone l;
static struct wg_peer *peer;
static uint8_t buf[STAGE_PACKET_MAX];
static _Atomic uint64_t drops[WG_DROP_N];

static int setup(void **state)
{
	memset(drops, 0, sizeof(drops));
	lone_open(&l);
	peer = lone_add_peer(&l, 9);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

static void put(uint32_t number, uint32_t len)
{
	static uint8_t bytes[STAGE_PACKET_MAX];
	struct wg_packet pkt = { .data = bytes, .len = len };

	for (uint32_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(number + i * 7);
	stage_packets(peer, &pkt, 1, drops);
}

static void take(uint32_t number, uint32_t want)
{
	uint32_t len;

	memset(buf, 0, sizeof(buf));
	assert_true(stage_take(peer, buf, &len));
	assert_int_equal(len, want);
	for (uint32_t i = 0; i < len; i++)
		assert_int_equal(buf[i], (uint8_t)(number + i * 7));
}

/* Lengths around the borders of pool slots. */
static void test_lengths(void **state)
{
	const uint32_t lens[] = { 0, 1, STAGE_BYTES - 1, STAGE_BYTES, STAGE_BYTES + 1,
		2 * STAGE_BYTES, 9000, STAGE_PACKET_MAX };
	uint32_t len;

	for (uint32_t i = 0; i < ARRAY_LEN(lens); i++)
		put(i, lens[i]);
	for (uint32_t i = 0; i < ARRAY_LEN(lens); i++)
		take(i, lens[i]);
	assert_false(stage_take(peer, buf, &len));
	assert_int_equal(l.wg->stage.n_used, 0);
}

static void test_oldest_gives_way(void **state)
{
	for (uint32_t i = 0; i < WG_STAGED_MAX + 10; i++)
		put(i, 50);
	assert_int_equal(drops[WG_DROP_STAGED_FULL], 10);
	assert_int_equal(peer->n_staged, WG_STAGED_MAX);
	for (uint32_t i = 10; i < WG_STAGED_MAX + 10; i++)
		take(i, 50);
}

/* The fast side may overtake only when the slow side has found nothing left. */
static void test_last_one_counts(void **state)
{
	uint32_t len;

	put(1, 10);
	take(1, 10);
	assert_int_equal(peer->n_staged, 1);
	assert_false(stage_take(peer, buf, &len));
	assert_int_equal(peer->n_staged, 0);
}

/* Adding while the slow side drains does not let the count grow. */
static void test_count_does_not_drift(void **state)
{
	for (uint32_t i = 0; i < 10 * WG_STAGED_MAX; i++) {
		put(i, 10);
		take(i, 10);
		assert_int_equal(peer->n_staged, 1);
	}
	assert_int_equal(drops[WG_DROP_STAGED_FULL], 0);
}

static void test_purge(void **state)
{
	uint32_t len;

	for (uint32_t i = 0; i < 20; i++)
		put(i, 5000);
	assert_int_equal(stage_purge(peer), 20);
	assert_int_equal(stage_purge(peer), 0);
	assert_int_equal(peer->n_staged, 0);
	assert_int_equal(l.wg->stage.n_used, 0);
	assert_false(stage_take(peer, buf, &len));
	put(3, 10);
	take(3, 10);
}

/* No slot for a packet's second half: the first half goes back. */
static void test_pool_empty(void **state)
{
	void *held[STAGE_SLOTS];

	for (size_t i = 0; i < STAGE_SLOTS; i++)
		held[i] = pool_take(&l.wg->stage);
	assert_null(pool_take(&l.wg->stage));
	put(1, 10);
	assert_int_equal(drops[WG_DROP_NO_BUFFER], 1);
	pool_give(&l.wg->stage, held[0]);
	put(1, STAGE_BYTES + 1);
	assert_int_equal(drops[WG_DROP_NO_BUFFER], 2);
	assert_int_equal(peer->n_staged, 0);
	put(1, STAGE_BYTES);
	take(1, STAGE_BYTES);
	for (size_t i = 1; i < STAGE_SLOTS; i++)
		pool_give(&l.wg->stage, held[i]);
}

/* Peers that never answer: the first cannot take what the last needs, whatever the
 * length of their packets. */
static void test_shares(void **state)
{
	static const uint32_t lens[] = { 100, STAGE_BYTES + 1, 60000 };
	enum { PEERS = 200 };
	static struct wg_peer *peers[PEERS];
	uint8_t *bytes = calloc(1, 60000);

	for (unsigned k = 0; k < PEERS; k++)
		peers[k] = lone_add_peer(&l, (uint8_t)(20 + k));
	for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
		memset(drops, 0, sizeof(drops));
		for (unsigned k = 0; k < PEERS * WG_STAGED_MAX; k++) {
			struct wg_packet pkt = { .data = bytes, .len = lens[i] };

			stage_packets(peers[k / WG_STAGED_MAX], &pkt, 1, drops);
		}
		assert_true(peers[0]->n_staged >= (i == 0 ? WG_STAGED_MAX : i == 1 ? 100 : 8));
		assert_true(peers[PEERS - 1]->n_staged >= 1);
		if (i == 0)
			assert_true(peers[PEERS - 1]->n_staged >= 4);
		for (unsigned k = 0; k < PEERS; k++)
			stage_purge(peers[k]);
		assert_int_equal(l.wg->stage.n_used, 0);
	}
	free(bytes);
}

enum { EACH = 50000 };

static void *add_many(void *arg)
{
	_Atomic uint64_t *own = arg;
	uint8_t bytes[64];

	memset(bytes, 0x33, sizeof(bytes));
	for (uint32_t i = 0; i < EACH; i++) {
		struct wg_packet pkt = { .data = bytes, .len = i % 64 };

		stage_packets(peer, &pkt, 1, own);
	}
	return NULL;
}

/* Two workers add, the slow side takes: all are taken or counted. */
static void test_threads(void **state)
{
	static _Atomic uint64_t own[2][WG_DROP_N];
	uint64_t n = 0, lost = 0;
	pthread_t t[2];
	uint32_t len;

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, add_many, &own[i]), 0);
	for (int i = 0; i < EACH; i++)
		n += stage_take(peer, buf, &len);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	while (stage_take(peer, buf, &len))
		n++;
	for (int i = 0; i < 2; i++)
		lost += own[i][WG_DROP_STAGED_FULL] + own[i][WG_DROP_NO_BUFFER];
	assert_int_equal(n + lost, 2 * EACH);
	assert_int_equal(l.wg->stage.n_used, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_lengths),
		TEST(test_oldest_gives_way),
		TEST(test_last_one_counts),
		TEST(test_count_does_not_drift),
		TEST(test_purge),
		TEST(test_pool_empty),
		TEST(test_shares),
		TEST(test_threads),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
