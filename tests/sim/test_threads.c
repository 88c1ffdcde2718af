/* Two devices with two data workers each, a handshake thread each and a thread that
 * changes the configuration, all at once, joined by queues. Meant for the thread and the
 * address sanitizer: the assertions here are few. The devices' clock runs 200 times
 * faster than the real one, so that keys rotate several times in a second. */
#include "base/queue.h"
#include "wg/wg.h"
#include "base/clock.h"
#include "base/rcu.h"
#include "crypto/crypto.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <cmocka.h>

enum { N_WORKERS = 2, TRAIN = 16, INNER = 100, FASTER = 200, RUN_MS = 2000, MSG_MAX = 256 };

struct item {
	uint32_t len;
	struct wg_endpoint from;
	uint8_t bytes[MSG_MAX];
};

struct side {
	struct wg *wg;
	struct side *other;
	uint8_t id; /* last byte of its inner address */
	uint8_t secret[WG_KEY_LEN], public_key[WG_KEY_LEN];
	struct wg_endpoint address;
	struct queue data[N_WORKERS], handshakes;
	_Atomic unsigned turn;
	_Atomic uint64_t n_out, n_in;
	pthread_t slow, worker[N_WORKERS];
	_Atomic bool is_stopping;
};

struct worker_arg {
	struct side *side;
	unsigned id;
};

static uint64_t fast_now(void)
{
	return clock_now_ns() * FASTER;
}

static uint64_t fast_wall(void)
{
	return 1790000000 * NSEC_PER_SEC + fast_now() % (1ULL << 62);
}

static void deliver(struct side *from, const uint8_t *msg, size_t len)
{
	struct side *to = from->other;
	struct item it = { .len = (uint32_t)len, .from = from->address };
	struct queue *q = &to->handshakes;

	if (len > MSG_MAX)
		abort();
	memcpy(it.bytes, msg, len);
	if (wgmsg_gate(msg, len) == WGMSG_DATA)
		q = &to->data[atomic_fetch_add(&to->turn, 1) % N_WORKERS];
	if (!queue_push(q, &it))
		return; /* full: a lossy wire */
}

static void op_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	deliver(ctx, msg, len);
}

static void op_wake(void *ctx)
{
}

static void op_limit_key(const struct wg_endpoint *from, uint8_t key[16])
{
	memcpy(key, from->remote, 16);
}

static const struct wg_ops ops = { op_send, op_wake, op_limit_key };

static void send_train(struct side *s, struct wg_worker *w, uint8_t buf[TRAIN][MSG_MAX])
{
	struct wg_packet pkt[TRAIN];
	struct wg_endpoint to;
	const uint8_t dst[4] = { 10, 0, 0, s->other->id };
	struct wg_peer *peer;

	for (size_t i = 0; i < TRAIN; i++) {
		uint8_t *p = buf[i] + WG_HEAD;

		memset(p, s->id, INNER);
		p[0] = 0x45;
		put_be16(p + 2, INNER);
		memcpy(p + 12, (uint8_t[4]){ 10, 0, 0, s->id }, 4);
		memcpy(p + 16, dst, 4);
		pkt[i] = (struct wg_packet){ .data = p, .len = INNER };
	}
	wg_worker_refresh(w);
	peer = wg_route(w, AF_INET, dst);
	if (!peer) {
		wg_worker_drop(w, NULL, WG_DROP_NO_ROUTE, TRAIN);
		return;
	}
	if (wg_seal(w, peer, pkt, TRAIN, fast_now(), &to) != WG_SEALED)
		return;
	atomic_fetch_add(&s->n_out, TRAIN);
	for (size_t i = 0; i < TRAIN; i++)
		deliver(s, pkt[i].data, pkt[i].len);
}

static void receive_train(struct side *s, struct wg_worker *w, struct queue *q)
{
	struct item it[TRAIN];
	struct wg_packet pkt[TRAIN];
	size_t n = 0;

	while (n < TRAIN && queue_pop(q, &it[n])) {
		pkt[n] = (struct wg_packet){ .data = it[n].bytes, .len = it[n].len };
		n++;
	}
	if (!n)
		return;
	wg_open(w, pkt, n, &it[0].from, fast_now());
	for (size_t i = 0; i < n; i++) {
		if (pkt[i].drop || !pkt[i].len)
			continue;
		if (pkt[i].len != INNER || pkt[i].data[INNER - 1] != s->other->id)
			abort();
		atomic_fetch_add(&s->n_in, 1);
	}
}

static void *worker_main(void *arg)
{
	struct worker_arg *a = arg;
	struct side *s = a->side;
	uint8_t buf[TRAIN][MSG_MAX];
	struct wg_worker *w;

	if (wg_worker_create(&w, s->wg, a->id))
		abort();
	rcu_thread_init();
	while (!atomic_load(&s->is_stopping)) {
		send_train(s, w, buf);
		receive_train(s, w, &s->data[a->id]);
		rcu_quiescent();
		sched_yield();
	}
	rcu_thread_fini();
	wg_worker_destroy(w);
	return NULL;
}

static void *slow_main(void *arg)
{
	struct side *s = arg;
	struct item it;

	while (!atomic_load(&s->is_stopping)) {
		while (queue_pop(&s->handshakes, &it)) {
			enum wg_drop why = wg_rx_handshake(s->wg, it.bytes, it.len, &it.from,
				queue_len(&s->handshakes) > 32, fast_now(), fast_wall());

			if (why == WG_DROP_TYPE)
				abort();
		}
		wg_poll(s->wg, fast_now(), fast_wall());
		sched_yield();
	}
	return NULL;
}

/* Some steps of a walk, not always to the end. */
static uint64_t walk(struct wg *wg, unsigned n_steps)
{
	struct wg_peer_info info;
	struct wg_walk *k;
	uint64_t sum = 0;
	size_t n;

	if (wg_walk_begin(&k, wg))
		abort();
	for (unsigned i = 0; i < n_steps; i++) {
		if (wg_walk_next(k, &info, 1, &n))
			abort();
		sum += n ? info.rx_bytes + info.n_allowed : 0;
	}
	wg_walk_end(k);
	return sum;
}

static void add_peer(struct side *s, const uint8_t key[WG_KEY_LEN], uint8_t id, bool is_removal)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change pc = { .has_endpoint = true,
		.endpoint = s->other->address,
		.is_removal = is_removal,
		.allowed = &allowed,
		.n_allowed = 1,
		.replaces_allowed = true,
		.has_keepalive = true,
		.keepalive_s = id };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };

	memcpy(allowed.net.addr.ip, (uint8_t[4]){ 10, 0, 0, id }, 4);
	memcpy(pc.public_key, key, WG_KEY_LEN);
	if (wg_apply(s->wg, &c, fast_now(), fast_wall(), NULL, NULL))
		abort();
}

static void side_init(struct side *s, uint8_t id)
{
	struct wg_config cfg = { .ops = &ops, .ctx = s, .n_workers = N_WORKERS, .seed = id };
	struct wg_change c = { .has_private_key = true };
	struct wg_info info;

	s->id = id;
	s->address.remote[0] = id;
	assert_int_equal(wg_create(&s->wg, &cfg), 0);
	wg_set_mtu(s->wg, 1420);
	memset(c.private_key, id + 40, WG_KEY_LEN);
	assert_int_equal(wg_apply(s->wg, &c, fast_now(), fast_wall(), NULL, NULL), 0);
	wg_get(s->wg, &info);
	memcpy(s->public_key, info.public_key, WG_KEY_LEN);
	wg_set_up(s->wg, true, fast_now());
	for (int i = 0; i < N_WORKERS; i++)
		assert_int_equal(queue_init(&s->data[i], 1024, sizeof(struct item)), 0);
	assert_int_equal(queue_init(&s->handshakes, 256, sizeof(struct item)), 0);
}

/* One change at random: what wg(8) does, and the rare rest. */
static void change_something(struct side *s, unsigned i)
{
	uint64_t drops[WG_DROP_N];
	uint8_t ghost[WG_KEY_LEN];

	memset(ghost, 9 + i % 5, sizeof(ghost));
	switch (i % 8) {
	case 0:
	case 1:
		add_peer(s, ghost, (uint8_t)(100 + i % 5), false);
		break;
	case 2:
		add_peer(s, ghost, (uint8_t)(100 + i % 5), true);
		break;
	case 3:
		add_peer(s, s->other->public_key, s->other->id, false);
		break;
	case 4:
		walk(s->wg, i % 9);
		break;
	case 5:
		wg_drops(s->wg, drops);
		break;
	case 6:
		if (i % 32 == 6)
			add_peer(s, s->other->public_key, s->other->id, true);
		add_peer(s, s->other->public_key, s->other->id, false);
		break;
	default:
		if (i % 64 == 7) {
			wg_set_up(s->wg, false, fast_now());
			wg_set_up(s->wg, true, fast_now());
		}
		wg_set_mtu(s->wg, 1280 + i % 200);
	}
}

static void side_fini(struct side *s)
{
	for (int i = 0; i < N_WORKERS; i++)
		queue_fini(&s->data[i]);
	queue_fini(&s->handshakes);
}

static void stop_workers(struct side *s)
{
	atomic_store(&s->is_stopping, true);
	for (int k = 0; k < N_WORKERS; k++)
		pthread_join(s->worker[k], NULL);
	pthread_join(s->slow, NULL);
}

static void test_all_at_once(void **state)
{
	static struct side side[2];
	struct worker_arg arg[2][N_WORKERS];
	uint64_t end;
	unsigned i = 0;

	side[0].other = &side[1];
	side[1].other = &side[0];
	side_init(&side[0], 1);
	side_init(&side[1], 2);
	for (int a = 0; a < 2; a++) {
		add_peer(&side[a], side[1 - a].public_key, side[1 - a].id, false);
		pthread_create(&side[a].slow, NULL, slow_main, &side[a]);
		for (unsigned k = 0; k < N_WORKERS; k++) {
			arg[a][k] = (struct worker_arg){ &side[a], k };
			pthread_create(&side[a].worker[k], NULL, worker_main, &arg[a][k]);
		}
	}
	for (end = clock_now_ns() + RUN_MS * NSEC_PER_MSEC; clock_now_ns() < end; i++) {
		change_something(&side[i / 8 % 2], i);
		/* Most of the time the tunnel is left alone. */
		if (i % 16 == 0) {
			struct timespec ts = { .tv_nsec = 10 * NSEC_PER_MSEC };

			nanosleep(&ts, NULL);
		}
	}
	/* One device goes while the other lives on and frees what both have queued. */
	stop_workers(&side[0]);
	wg_destroy(side[0].wg);
	stop_workers(&side[1]);
	wg_destroy(side[1].wg);
	side_fini(&side[0]);
	side_fini(&side[1]);
	printf("%u changes, %llu sealed, %llu opened\n", i, (unsigned long long)side[0].n_out,
		(unsigned long long)side[1].n_in);
	assert_true(side[0].n_in > 0);
	assert_true(side[1].n_in > 0);
	assert_true(i > 100);
}

static _Atomic bool is_found_always = true;
static _Atomic uint64_t n_lookups;

static void *look_up_main(void *arg)
{
	struct side *s = arg;
	struct wg_worker *w;

	if (wg_worker_create(&w, s->wg, 0))
		abort();
	rcu_thread_init();
	while (!atomic_load(&s->is_stopping)) {
		if (!wg_route(w, AF_INET, (const uint8_t[4]){ 10, 0, 0, s->other->id }))
			atomic_store(&is_found_always, false);
		atomic_fetch_add(&n_lookups, 1);
		rcu_quiescent();
	}
	rcu_thread_fini();
	wg_worker_destroy(w);
	return NULL;
}

/* The same list again, as "wg syncconf" says it: a reader never finds a gap. */
static void test_no_gap(void **state)
{
	static struct side side[2];
	uint8_t ghost[WG_KEY_LEN];
	pthread_t reader;

	side[0].other = &side[1];
	side[1].other = &side[0];
	side_init(&side[0], 1);
	side_init(&side[1], 2);
	memset(ghost, 9, sizeof(ghost));
	add_peer(&side[0], side[1].public_key, 2, false);
	pthread_create(&reader, NULL, look_up_main, &side[0]);
	for (int i = 0; i < 3000 || atomic_load(&n_lookups) < 1000; i++) {
		add_peer(&side[0], side[1].public_key, 2, false);
		/* It moves to another peer and back: always somebody's. */
		if (i % 4 == 0)
			add_peer(&side[0], ghost, 2, false);
		wg_poll(side[0].wg, fast_now(), fast_wall());
	}
	atomic_store(&side[0].is_stopping, true);
	pthread_join(reader, NULL);
	assert_true(atomic_load(&is_found_always));
	for (int i = 0; i < 2; i++) {
		wg_destroy(side[i].wg);
		side_fini(&side[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_at_once),
		cmocka_unit_test(test_no_gap),
	};

	if (crypto_init(NULL))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
