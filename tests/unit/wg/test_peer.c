/* Peers and the workers that they are at home with. */
#include "lone.h"

#include "base/bytes.h"

enum { N_WORKERS = 7, N = 1000, CLIENTS = 20 };

static const uint8_t index_key[16] = { 1, 2, 3, 4, 5, 6, 7, 8 };

static struct wg *wg;
static struct wg_clients *clients;
static uint64_t now_ns;
static uint8_t sent[256]; /* the last message of the server */
static size_t sent_len;

static void keep(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	assert_true(len <= sizeof(sent));
	memcpy(sent, msg, len);
	sent_len = len;
}

static void wake_nobody(void *ctx)
{
}

static uint64_t wall_ns(void)
{
	return 1790000000 * NSEC_PER_SEC + now_ns;
}

static void apply(const struct wg_change *c)
{
	assert_int_equal(wg_apply(wg, c, now_ns, wall_ns(), NULL, NULL), 0);
}

static int setup(void **state)
{
	static const struct wg_ops ops = { keep, wake_nobody, lone_limit };
	struct wg_config cfg = { .ops = &ops, .n_workers = N_WORKERS, .seed = 1 };
	struct wg_change c = { .has_private_key = true };

	now_ns = 1000 * NSEC_PER_SEC;
	memcpy(cfg.index_key, index_key, 16);
	assert_int_equal(crypto_init(NULL), 0);
	assert_int_equal(wg_create(&wg, &cfg), 0);
	memset(c.private_key, 0x11, WG_KEY_LEN);
	apply(&c);
	wg_set_up(wg, true, now_ns);
	return 0;
}

static int teardown(void **state)
{
	wg_clients_destroy(clients);
	clients = NULL;
	wg_destroy(wg);
	return 0;
}

/* Who of the workers is named by the index that a message of ours brings? */
static unsigned sent_worker(void)
{
	struct sipkey key = { { get_le64(index_key), get_le64(index_key + 8) } };

	return wgindex_worker(wgindex_unmask(&key, get_le32(sent + 4)), 3);
}

/* ---- One peer keeps its worker. */

/* The client begins, from another place each time. */
static unsigned answer_worker(size_t i, uint8_t place)
{
	struct wg_endpoint from = { .remote = { place, (uint8_t)i } };
	uint8_t msg[WGMSG_INITIATION_LEN];

	now_ns += 10 * NSEC_PER_SEC;
	wg_clients_initiate(clients, i, now_ns, wall_ns(), msg);
	sent_len = 0;
	assert_int_equal(
		wg_rx_handshake(wg, msg, sizeof(msg), &from, false, now_ns, wall_ns()), WG_OK);
	assert_int_equal(sent_len, WGMSG_RESPONSE_LEN);
	assert_int_equal(wg_clients_take(clients, i, sent, sent_len, now_ns), WG_CLIENT_SESSION);
	return sent_worker();
}

/* We begin. */
static unsigned initiation_worker(size_t i)
{
	uint8_t public_key[WG_KEY_LEN];
	struct wg_peer *p;

	now_ns += 10 * NSEC_PER_SEC;
	wg_clients_public_key(clients, i, public_key);
	p = peer_find(wg, public_key);
	sent_len = 0;
	pthread_mutex_lock(&wg->lock);
	wg->now_ns = now_ns;
	wg->wall_ns = wall_ns();
	handshake_initiate(p, false);
	pthread_mutex_unlock(&wg->lock);
	assert_int_equal(sent_len, WGMSG_INITIATION_LEN);
	return sent_worker();
}

static void rekey_and_roaming(void **state)
{
	unsigned home[CLIENTS], n_at[N_WORKERS] = { 0 };
	struct wg_info info;

	wg_get(wg, &info);
	assert_int_equal(wg_clients_create(&clients, CLIENTS, info.public_key), 0);
	for (size_t i = 0; i < CLIENTS; i++) {
		struct wg_peer_change pc = { 0 };
		struct wg_change c = { .peers = &pc, .n_peers = 1 };

		wg_clients_public_key(clients, i, pc.public_key);
		apply(&c);
		home[i] = answer_worker(i, 1);
		assert_in_range(home[i], 0, N_WORKERS - 1);
		n_at[home[i]]++;
	}
	for (unsigned w = 0; w < N_WORKERS; w++)
		assert_in_range(n_at[w], CLIENTS / N_WORKERS, CLIENTS / N_WORKERS + 1);
	for (uint8_t round = 2; round < 6; round++) {
		for (size_t i = CLIENTS; i-- > 0;) {
			assert_int_equal(answer_worker(i, round), home[i]);
			if (i % 3 == round % 3)
				assert_int_equal(initiation_worker(i), home[i]);
		}
	}
}

/* ---- Many peers are spread. */

static void key_of(unsigned i, uint8_t key[WG_KEY_LEN])
{
	memset(key, 0x77, WG_KEY_LEN);
	put_le32(key, i);
}

static void change_peer(unsigned i, bool is_removal)
{
	struct wg_peer_change pc = { .is_removal = is_removal };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };

	key_of(i, pc.public_key);
	apply(&c);
}

static unsigned home_of(unsigned i)
{
	uint8_t key[WG_KEY_LEN];

	key_of(i, key);
	return peer_find(wg, key)->home;
}

static void check_even(unsigned n_peers)
{
	unsigned n_at[N_WORKERS] = { 0 }, even = n_peers / N_WORKERS;

	for (struct wg_peer *p = wg->first; p; p = p->next)
		n_at[p->home]++;
	for (unsigned w = 0; w < N_WORKERS; w++) {
		assert_int_equal(n_at[w], wg->n_at_home[w]);
		assert_in_range(n_at[w], even * 85 / 100, even * 115 / 100 + 1);
	}
}

static void many_are_spread(void **state)
{
	for (unsigned i = 0; i < N; i++)
		change_peer(i, false);
	check_even(N);
	/* All of one worker's go, and as many others come; worker by worker. */
	for (unsigned w = 0; w < N_WORKERS; w++) {
		for (unsigned i = 0; i < N; i++)
			if (home_of(i) == w)
				change_peer(i, true);
		for (unsigned i = 0; i < N; i++)
			change_peer(i, false);
		check_even(N);
	}
	/* A worker's peer goes and comes again at once, each time the same worker's. */
	for (unsigned i = 0; i < N; i++) {
		if (home_of(i) > 1)
			continue;
		change_peer(i, true);
		change_peer(i, false);
		check_even(N);
	}
	/* Removed with all at once, as a new list of peers does. */
	struct wg_change none = { .replaces_peers = true };

	apply(&none);
	for (unsigned w = 0; w < N_WORKERS; w++)
		assert_int_equal(wg->n_at_home[w], 0);
	for (unsigned i = 0; i < N; i++)
		change_peer(N - i, false);
	check_even(N);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(rekey_and_roaming, setup, teardown),
		cmocka_unit_test_setup_teardown(many_are_spread, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
