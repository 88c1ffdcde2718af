/* Configuration: changes at random against a model that does what the protocol
 * says in the plainest way; the memory they take; and that nobody waits for all
 * of a large one. */
#include "lone.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static struct lone l;

static int setup(void **state)
{
	lone_open(&l);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

static void name(struct wg_peer_change *pc, uint32_t number)
{
	*pc = (struct wg_peer_change){ 0 };
	put_be32(pc->public_key, number);
	pc->public_key[31] = 1;
}

static struct prefix net_of(uint32_t number)
{
	struct prefix net = { .addr.family = AF_INET, .bits = 32 };

	put_be32(net.addr.ip, 0x0a000000 + number);
	return net;
}

/* ---- The model. */

enum { KEYS = 8, NETS = 10, SECTIONS = 12, ROUNDS = 20000 };

struct model_peer {
	bool is_there;
	bool is_named, is_whole; /* in the change under way */
	uint64_t age;
	uint8_t psk;
	uint16_t keepalive_s;
	bool has_net[NETS];
};

static struct {
	struct model_peer peer[KEYS];
	uint64_t age;
} model;

struct change {
	struct wg_change c;
	struct wg_peer_change pc[SECTIONS];
	struct wg_allowed_change nets[SECTIONS][NETS];
	uint32_t key[SECTIONS];
};

static uint32_t below(uint32_t n)
{
	static uint64_t z = 1;

	z = z * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(z >> 33) % n;
}

static void make_section(struct change *ch, size_t i, bool is_simple)
{
	struct wg_peer_change *pc = &ch->pc[i];

	ch->key[i] = is_simple ? (uint32_t)i : below(KEYS);
	name(pc, ch->key[i]);
	pc->is_removal = !is_simple && below(6) == 0;
	pc->is_update_only = below(6) == 0;
	pc->replaces_allowed = below(2);
	pc->has_psk = below(3) == 0;
	pc->psk[0] = (uint8_t)below(3);
	pc->has_keepalive = below(3) == 0;
	pc->keepalive_s = (uint16_t)below(3);
	pc->n_allowed = below(4);
	pc->allowed = ch->nets[i];
	for (size_t k = 0; k < pc->n_allowed; k++)
		ch->nets[i][k] = (struct wg_allowed_change){ net_of(below(NETS)),
			!is_simple && below(5) == 0 };
}

/* Simple: each peer at most once, nothing taken away. */
static void make_change(struct change *ch)
{
	bool is_simple = below(2);

	ch->c = (struct wg_change){ .peers = ch->pc, .replaces_peers = below(3) == 0 };
	ch->c.n_peers = below((is_simple ? KEYS : SECTIONS) + 1);
	for (size_t i = 0; i < ch->c.n_peers; i++)
		make_section(ch, i, is_simple);
}

static void model_nets(struct model_peer *m, const struct wg_peer_change *pc, bool replaces)
{
	bool has_now[NETS] = { 0 };

	for (size_t i = 0; i < pc->n_allowed; i++) {
		uint32_t net = get_be32(pc->allowed[i].net.addr.ip) & 0xff;

		has_now[net] = !pc->allowed[i].is_removal;
		if (pc->allowed[i].is_removal) {
			m->has_net[net] = false;
			continue;
		}
		for (int k = 0; k < KEYS; k++)
			model.peer[k].has_net[net] = &model.peer[k] == m;
	}
	for (int i = 0; i < NETS && replaces; i++)
		m->has_net[i] &= has_now[i];
}

static void model_section(const struct wg_change *c, const struct wg_peer_change *pc, uint32_t key)
{
	struct model_peer *m = &model.peer[key];
	bool is_whole = c->replaces_peers && m->is_there && !m->is_whole;

	if (pc->is_removal) {
		*m = (struct model_peer){ 0 };
		return;
	}
	if (!m->is_there && pc->is_update_only)
		return;
	if (!m->is_there)
		*m = (struct model_peer){ .is_there = true, .age = ++model.age };
	m->is_whole = true;
	if (pc->has_psk || is_whole)
		m->psk = pc->has_psk ? pc->psk[0] : 0;
	if (pc->has_keepalive || is_whole)
		m->keepalive_s = pc->has_keepalive ? pc->keepalive_s : 0;
	model_nets(m, pc, pc->replaces_allowed || is_whole);
}

static void model_apply(const struct change *ch)
{
	for (int k = 0; k < KEYS; k++)
		model.peer[k].is_named = model.peer[k].is_whole = false;
	for (size_t i = 0; i < ch->c.n_peers; i++)
		model.peer[ch->key[i]].is_named = true;
	for (int k = 0; k < KEYS && ch->c.replaces_peers; k++)
		if (!model.peer[k].is_named)
			model.peer[k] = (struct model_peer){ 0 };
	for (size_t i = 0; i < ch->c.n_peers; i++)
		model_section(&ch->c, &ch->pc[i], ch->key[i]);
}

static void compare(void)
{
	struct wg_peer_info info;
	struct wg_walk *k;
	uint64_t age = 0;
	size_t n, n_peers = 0;

	assert_int_equal(wg_walk_begin(&k, l.wg), 0);
	while (assert_int_equal(wg_walk_next(k, &info, 1, &n), 0), n) {
		const struct model_peer *m = &model.peer[get_be32(info.public_key)];
		size_t n_nets = 0;

		n_peers++;
		assert_true(m->is_there);
		assert_true(m->age > age);
		age = m->age;
		assert_int_equal(info.psk[0], m->psk);
		assert_int_equal(info.keepalive_s, m->keepalive_s);
		for (size_t i = 0; i < info.n_allowed; i++)
			assert_true(m->has_net[get_be32(info.allowed[i].addr.ip) & 0xff]);
		for (int i = 0; i < NETS; i++)
			n_nets += m->has_net[i];
		assert_int_equal(info.n_allowed, n_nets);
	}
	wg_walk_end(k);
	for (int i = 0; i < KEYS; i++)
		n_peers -= model.peer[i].is_there;
	assert_int_equal(n_peers, 0);
}

static void test_model(void **state)
{
	struct change ch;

	memset(&model, 0, sizeof(model));
	for (int round = 0; round < ROUNDS; round++) {
		make_change(&ch);
		lone_apply(&l, &ch.c);
		model_apply(&ch);
		compare();
		if (round % 64 == 0)
			lone_poll(&l); /* frees */
	}
}

/* ---- Memory. */

enum { MANY = 5000 };

static struct wg_peer_change *many_peers(struct wg_allowed_change **nets)
{
	struct wg_peer_change *pc = calloc(MANY, sizeof(*pc));

	*nets = calloc(MANY, sizeof(**nets));
	for (uint32_t i = 0; i < MANY; i++) {
		name(&pc[i], i);
		pc[i].replaces_allowed = true;
		(*nets)[i].net = net_of(i);
		pc[i].allowed = &(*nets)[i];
		pc[i].n_allowed = 1;
	}
	return pc;
}

/* Loaded once more, a configuration needs no memory. */
static void test_same_again(void **state)
{
	struct wg_allowed_change *nets;
	struct wg_peer_change *pc = many_peers(&nets);
	struct wg_change c = { .peers = pc, .n_peers = MANY, .replaces_peers = true };
	size_t n_free;

	lone_apply(&l, &c);
	n_free = l.wg->allowed.n_free;
	for (int i = 0; i < 3; i++) {
		lone_apply(&l, &c);
		lone_poll(&l);
		assert_int_equal(l.wg->allowed.n_free, n_free);
		assert_int_equal(l.wg->allowed.n, MANY);
	}
	free(pc);
	free(nets);
}

static void test_too_many(void **state)
{
	struct wg_peer_change *pc = calloc(WG_PEERS_MAX, sizeof(*pc));
	struct wg_change c = { .peers = pc, .n_peers = WG_PEERS_MAX };
	struct wg_info info;

	for (uint32_t i = 0; i < WG_PEERS_MAX; i++)
		name(&pc[i], i + 1);
	assert_non_null(lone_add_peer(&l, 1));
	assert_int_equal(wg_apply(l.wg, &c, l.now_ns, lone_wall(&l), NULL, NULL), -ENOSPC);
	wg_get(l.wg, &info);
	assert_int_equal(info.n_peers, 1);
	free(pc);
}

/* ---- Others have their turn. */

static _Atomic bool is_asking, is_served;
static unsigned n_after; /* peers that were changed after that */

static void *poll_main(void *arg)
{
	is_asking = true;
	lone_poll(&l);
	is_served = true;
	return NULL;
}

/* Called with the lock held, once for each peer: time for the other thread to ask. */
static void wait_a_little(void *ctx, const struct prefix *net)
{
	struct timespec ms = { .tv_nsec = NSEC_PER_MSEC };
	pthread_t *thread = ctx;

	if (!is_asking)
		assert_int_equal(pthread_create(thread, NULL, poll_main, NULL), 0);
	while (!is_asking)
		nanosleep(&ms, NULL);
	n_after += is_served;
	if (!is_served)
		nanosleep(&ms, NULL);
}

static void test_turns(void **state)
{
	struct wg_allowed_change *nets;
	struct wg_peer_change *pc = many_peers(&nets);
	struct wg_change c = { .peers = pc, .n_peers = MANY };
	pthread_t thread;

	/* Everything belongs to one peer first, so that each of the others takes one prefix. */
	pc[0].allowed = nets;
	pc[0].n_allowed = MANY;
	lone_apply(&l, &(struct wg_change){ .peers = pc, .n_peers = 1 });
	pc[0].n_allowed = 1;
	pc[0].replaces_allowed = false;
	is_asking = is_served = false;
	n_after = 0;
	assert_int_equal(wg_apply(l.wg, &c, l.now_ns, lone_wall(&l), wait_a_little, &thread), 0);
	pthread_join(thread, NULL);
	assert_true(n_after > 0);
	free(pc);
	free(nets);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_model),
		TEST(test_same_again),
		TEST(test_too_many),
		TEST(test_turns),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
