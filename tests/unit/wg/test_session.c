#include "lone.h"

static struct lone l;
static struct wg_peer *peer;
static const struct wg_endpoint somewhere = { .remote = { 77 } };

static int setup(void **state)
{
	lone_open(&l);
	wg_set_up(l.wg, true, l.now_ns);
	peer = lone_add_peer(&l, 9);
	lone_poll(&l);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

/* A session from a handshake that never was: both sides get the same chain key. */
static struct keypair *begin(bool is_initiator)
{
	struct noise_handshake hs = { .remote_index = 0x1234,
		.state = is_initiator ? NOISE_RESPONSE_TAKEN : NOISE_RESPONSE_SENT };
	enum index_kind kind;
	uint32_t index;

	hs.chain[0] = 5;
	assert_int_equal(index_take(&l.wg->index, 0, INDEX_HANDSHAKE, peer, &index), 0);
	hs.local_index = index;
	assert_int_equal(session_begin(peer, &hs), 0);
	assert_int_equal(hs.state, NOISE_IDLE);
	return index_lookup(&l.wg->index, index, &kind);
}

static struct keypair *current(void)
{
	return atomic_load(&peer->current);
}

static bool is_found(uint32_t index)
{
	enum index_kind kind;

	return index_lookup(&l.wg->index, index, &kind) != NULL;
}

/* The table of Linux noise.c, add_new_keypair, and the promotion. */
static void test_rotation(void **state)
{
	struct keypair *a = begin(true), *b, *c, *d;
	uint32_t gone;

	assert_ptr_equal(current(), a);
	b = begin(true);
	assert_ptr_equal(current(), b);
	assert_ptr_equal(peer->previous, a);
	gone = a->local_index;
	c = begin(false); /* next; previous goes */
	assert_ptr_equal(current(), b);
	assert_null(peer->previous);
	assert_ptr_equal(peer->following, c);
	assert_false(is_found(gone));
	session_promote(peer); /* not confirmed yet */
	assert_ptr_equal(current(), b);
	gone = c->local_index;
	d = begin(false); /* a newer next */
	assert_ptr_equal(peer->following, d);
	assert_false(is_found(gone));
	atomic_store(&d->is_confirmed, true);
	session_promote(peer);
	assert_ptr_equal(current(), d);
	assert_ptr_equal(peer->previous, b);
	assert_null(peer->following);
	session_end_all(peer);
	assert_null(current());
	assert_null(peer->previous);
	assert_false(is_found(0));
}

/* Both began at once: the lower key's session becomes current on both sides. */
static void test_contest(void **state)
{
	bool wins = memcmp(l.wg->identity.public_key, peer->noise.public_key, WG_KEY_LEN) < 0;
	struct keypair *theirs, *ours;

	for (int i = 0; i < 2; i++, wins = !wins) {
		theirs = begin(false);
		ours = begin(true);
		assert_ptr_equal(current(), ours);
		assert_ptr_equal(peer->following, wins ? NULL : theirs);
		if (wins)
			assert_ptr_equal(peer->previous, theirs);
		atomic_store(&theirs->is_confirmed, true);
		session_promote(peer);
		assert_ptr_equal(current(), wins ? ours : theirs);
		assert_ptr_equal(peer->previous, wins ? theirs : ours);
		session_end_all(peer);
		/* The other way round: as if our key were on the other side of theirs. */
		memset(peer->noise.public_key, wins ? 0 : 0xff, WG_KEY_LEN);
	}
	memset(peer->noise.public_key, 9, WG_KEY_LEN);
}

static void test_may_send(void **state)
{
	struct keypair *kp = begin(true);

	assert_false(session_may_send(NULL, l.now_ns));
	assert_true(session_may_send(kp, l.now_ns));
	assert_true(session_may_send(kp, l.now_ns + REJECT_AFTER_TIME - 1));
	assert_false(session_may_send(kp, l.now_ns + REJECT_AFTER_TIME));
	atomic_store(&kp->tx_counter, REJECT_AFTER_MESSAGES - 1);
	assert_true(session_may_send(kp, l.now_ns));
	atomic_store(&kp->tx_counter, REJECT_AFTER_MESSAGES);
	assert_false(session_may_send(kp, l.now_ns));
	atomic_store(&kp->tx_counter, 0);
	session_stop_sending(peer);
	assert_false(session_may_send(kp, l.now_ns));
}

/* Padding to 16, never beyond the MTU; Linux send.c, calculate_skb_padding. */
static void test_sealed_len(void **state)
{
	static const struct {
		unsigned mtu;
		size_t len, padded;
	} cases[] = {
		{ 1420, 0, 0 },
		{ 1420, 1, 16 },
		{ 1420, 16, 16 },
		{ 1420, 84, 96 },
		{ 1420, 1408, 1408 },
		{ 1420, 1409, 1420 },
		{ 1420, 1420, 1420 },
		{ 1420, 1421, 1436 },
		{ 1420, 2 * 1420, 2 * 1420 },
		{ 1300, 1297, 1300 },
		{ 0, 1409, 1424 },
		{ 0, 65535, 65536 },
		{ 10, 3, 10 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		wg_set_mtu(l.wg, cases[i].mtu);
		wg_worker_refresh(l.worker);
		/* Changes between batches only: the worker lays its trains out by it. */
		wg_set_mtu(l.wg, 1);
		assert_int_equal(wg_sealed_len(l.worker, cases[i].len), cases[i].padded + 32);
	}
}

/* Several MTUs: the smallest that is no less than the packet binds. */
static void test_sealed_len_of_routes(void **state)
{
	static const struct {
		unsigned mtu[4];
		size_t len, padded;
	} cases[] = {
		/* the kernel's own test: route 1299, interface 1300 */
		{ { 1300, 1299 }, 1297, 1299 },
		{ { 1300, 1299 }, 1299, 1299 },
		{ { 1300, 1299 }, 1300, 1300 },
		{ { 1299, 1300 }, 1297, 1299 },
		{ { 1420, 1299 }, 1297, 1299 },
		{ { 1420, 1299 }, 1300, 1312 },
		{ { 1420, 1299 }, 1409, 1420 },
		{ { 1420, 1299 }, 1000, 1008 },
		{ { 1420, 1299 }, 0, 0 },
		/* in the middle of four, and beyond each */
		{ { 100, 200, 300, 400 }, 97, 100 },
		{ { 100, 200, 300, 400 }, 101, 112 },
		{ { 100, 200, 300, 400 }, 193, 200 },
		{ { 100, 200, 300, 400 }, 201, 208 },
		{ { 100, 200, 300, 400 }, 297, 300 },
		{ { 100, 200, 300, 400 }, 301, 304 },
		{ { 100, 200, 300, 400 }, 400, 400 },
		/* beyond all: as if cut at the largest */
		{ { 1300, 1420 }, 1421, 1436 },
		{ { 1300, 1420 }, 2 * 1420, 2 * 1420 },
		/* a route with an MTU beyond the interface's */
		{ { 1420, 9000 }, 1420, 1420 },
		{ { 1420, 9000 }, 1421, 1424 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct wg_mtus m = { 0 };

		for (size_t k = 0; k < ARRAY_LEN(cases[i].mtu); k++)
			wg_mtus_add(&m, cases[i].mtu[k]);
		wg_set_mtus(l.wg, &m);
		wg_worker_refresh(l.worker);
		wg_set_mtu(l.wg, 1);
		assert_int_equal(wg_sealed_len(l.worker, cases[i].len), cases[i].padded + 32);
	}
}

/* Whatever the MTUs, and however many: no packet is padded beyond its own route's. */
static void test_sealed_len_never_beyond(void **state)
{
	for (unsigned n = 1; n <= WG_MTUS_MAX + 3; n++) {
		struct wg_mtus m = { 0 };

		for (unsigned i = 0; i < n; i++)
			wg_mtus_add(&m, 1500 - 13 * i);
		wg_set_mtus(l.wg, &m);
		wg_worker_refresh(l.worker);
		for (unsigned i = 0; i < n; i++) {
			unsigned mtu = 1500 - 13 * i;

			for (size_t len = 0; len <= mtu; len++) {
				size_t padded = wg_sealed_len(l.worker, len) - 32;

				assert_true(padded >= len && padded <= mtu && padded < len + 16);
			}
		}
		/* Short packets are padded all the same. */
		assert_int_equal(wg_sealed_len(l.worker, 1), 16 + 32);
	}
}

enum { BIG_TRAIN = 150, ROOM = WG_HEAD + 1500 + WG_TAIL };
static uint8_t bytes[BIG_TRAIN][ROOM];
static struct wg_packet pkt[BIG_TRAIN];

static void make_ipv4(size_t n, uint32_t len, uint8_t last)
{
	for (size_t i = 0; i < n; i++) {
		uint8_t *p = bytes[i] + WG_HEAD;

		memset(bytes[i], 0xcc, ROOM);
		memset(p, (int)i, len);
		p[0] = 0x45;
		put_be16(p + 2, (uint16_t)len);
		memcpy(p + 12, (uint8_t[8]){ 10, 0, 0, last, 10, 0, 0, 1 }, 8);
		pkt[i] = (struct wg_packet){ .data = p, .len = len };
	}
}

/* A train that needs several AEAD batches: one run of counters, zeros as padding. */
static void test_long_train(void **state)
{
	struct keypair *kp = begin(true);
	struct wg_endpoint to;
	uint64_t tx = atomic_load(&peer->tx_bytes);

	make_ipv4(BIG_TRAIN, 100, 9);
	assert_int_equal(wg_seal(l.worker, peer, pkt, BIG_TRAIN, l.now_ns, &to), WG_SEALED);
	assert_int_equal(to.remote[0], 9);
	assert_int_equal(atomic_load(&peer->tx_bytes) - tx, BIG_TRAIN * (112 + 32));
	assert_int_equal(atomic_load(&kp->tx_counter), BIG_TRAIN);
	for (size_t i = 0; i < BIG_TRAIN; i++) {
		struct aead_job job = { .len = 112, .counter = i };

		assert_ptr_equal(pkt[i].data, bytes[i]);
		assert_int_equal(pkt[i].len, 144);
		assert_int_equal(wgmsg_gate(pkt[i].data, pkt[i].len), WGMSG_DATA);
		assert_int_equal(get_le32(pkt[i].data + 4), 0x1234);
		assert_int_equal(get_le64(pkt[i].data + 8), i);
		assert_int_equal(bytes[i][144], 0xcc); /* nothing beyond the tag */
		job.text = pkt[i].data + WG_HEAD;
		job.tag = job.text + 112;
		aead_open(l.worker->aead, kp->send_key, &job, 1);
		assert_true(job.is_ok);
		for (int k = 100; k < 112; k++)
			assert_int_equal(job.text[k], 0);
	}
	assert_int_equal(wg_seal(l.worker, peer, pkt, 0, l.now_ns, &to), WG_SEALED);
}

/* Seal as the other side would: under the key that we receive with. */
static void seal_for(const struct keypair *kp, struct wg_packet *p, uint64_t counter)
{
	uint32_t padded = (p->len + 15) & ~15u;
	struct aead_job job = { p->data, padded, counter, p->data + padded, false };

	memset(p->data + p->len, 0, padded - p->len);
	aead_seal(l.worker->aead, kp->recv_key, &job, 1);
	p->data -= WG_HEAD;
	p->len = padded + 32;
	put_le32(p->data, WGMSG_DATA);
	put_le32(p->data + 4, kp->local_index);
	put_le64(p->data + 8, counter);
}

/* One batch with everything in it: each gets its own verdict. */
static void test_mixed_batch(void **state)
{
	static const enum wg_drop want[] = { WG_OK, WG_DROP_DECRYPT, WG_DROP_REPLAY, WG_DROP_SOURCE,
		WG_DROP_INNER, WG_DROP_INNER, WG_DROP_NO_SESSION, WG_DROP_EXPIRED, WG_OK, WG_OK };
	struct keypair *kp = begin(true);
	uint64_t drops[WG_DROP_N];

	make_ipv4(10, 60, 9);
	bytes[3][WG_HEAD + 15] = 10; /* another peer's source */
	put_be16(bytes[4] + WG_HEAD + 2, 200); /* longer than the packet */
	bytes[5][WG_HEAD] = 0x55; /* no IP version */
	put_be16(bytes[8] + WG_HEAD + 2, 40); /* shorter: the rest is padding */
	pkt[9].len = 0; /* keepalive */
	for (uint64_t i = 0; i < 10; i++)
		seal_for(kp, &pkt[i], i == 2 ? 0 : i);
	/* A replay is a copy of what was received. */
	memcpy(pkt[2].data, pkt[0].data, pkt[0].len);
	pkt[1].data[20] ^= 1;
	put_le32(pkt[6].data + 4, kp->local_index ^ 1);
	put_le64(pkt[7].data + 8, REJECT_AFTER_MESSAGES);
	wg_open(l.worker, pkt, 10, &somewhere, l.now_ns);
	for (size_t i = 0; i < ARRAY_LEN(want); i++)
		assert_int_equal(pkt[i].drop, want[i]);
	assert_int_equal(pkt[0].len, 60);
	assert_int_equal(pkt[8].len, 40);
	assert_int_equal(pkt[9].len, 0);
	assert_ptr_equal(pkt[0].peer, peer);
	/* Bytes of what was accepted: headers, padding and tags. */
	assert_int_equal(atomic_load(&peer->rx_bytes), 2 * (64 + 32) + 32);
	wg_drops(l.wg, drops);
	assert_int_equal(drops[WG_DROP_INNER], 2);
	for (enum wg_drop d = WG_DROP_TYPE; d < WG_DROP_N; d++)
		assert_int_equal(drops[d],
			(d == WG_DROP_INNER) +
				(d == WG_DROP_DECRYPT || d == WG_DROP_REPLAY ||
					d == WG_DROP_SOURCE || d == WG_DROP_INNER ||
					d == WG_DROP_NO_SESSION || d == WG_DROP_EXPIRED));
}

/* Sessions that were looked up ahead are taken as they are; what has none yet, or no longer,
 * is looked up as usual. */
static void test_look_ahead(void **state)
{
	struct keypair *a = begin(true), *b = begin(true);
	uint32_t index;

	make_ipv4(4, 60, 9);
	seal_for(a, &pkt[0], 0);
	seal_for(b, &pkt[1], 0);
	seal_for(a, &pkt[2], 1);
	seal_for(a, &pkt[3], 2);
	assert_int_equal(index_take(&l.wg->index, 0, INDEX_HANDSHAKE, peer, &index), 0);
	put_le32(pkt[2].data + 4, index); /* a handshake's: no data belongs to it */
	put_le32(pkt[3].data + 4, a->local_index ^ 1);
	wg_look_ahead(l.worker, pkt, 0);
	wg_look_ahead(l.worker, pkt, 4);
	assert_ptr_equal(pkt[0].session, a);
	assert_ptr_equal(pkt[1].session, b);
	assert_null(pkt[2].session);
	assert_null(pkt[3].session);
	/* In the table no more, but held by this reader. */
	index_release(&l.wg->index, a->local_index);
	wg_open(l.worker, pkt, 1, &somewhere, l.now_ns);
	assert_int_equal(pkt[0].drop, WG_OK);
	pkt[1].session = NULL;
	wg_open(l.worker, pkt + 1, 3, &somewhere, l.now_ns);
	assert_int_equal(pkt[1].drop, WG_OK);
	assert_int_equal(pkt[2].drop, WG_DROP_NO_SESSION);
	assert_int_equal(pkt[3].drop, WG_DROP_NO_SESSION);
}

/* What only fails to authenticate moves neither endpoint nor timers nor window. */
static void test_forgery_changes_nothing(void **state)
{
	struct keypair *kp = begin(false);
	struct wg_endpoint e;

	make_ipv4(1, 60, 9);
	seal_for(kp, &pkt[0], 5000);
	pkt[0].data[30] ^= 4;
	wg_open(l.worker, pkt, 1, &somewhere, l.now_ns);
	assert_int_equal(pkt[0].drop, WG_DROP_DECRYPT);
	assert_true(endpoint_get(&peer->endpoint, &e));
	assert_int_equal(e.remote[0], 9);
	assert_false(atomic_load(&kp->is_confirmed));
	assert_int_equal(kp->replay.next, 0);
	assert_int_equal(atomic_load(&peer->due[TIMER_KEEPALIVE]), 0);
	/* The same counter, authentic: accepted, and all of that happens. */
	make_ipv4(1, 60, 9);
	seal_for(kp, &pkt[0], 5000);
	wg_open(l.worker, pkt, 1, &somewhere, l.now_ns);
	assert_int_equal(pkt[0].drop, WG_OK);
	assert_true(endpoint_get(&peer->endpoint, &e));
	assert_int_equal(e.remote[0], 77);
	assert_true(atomic_load(&kp->is_confirmed));
	lone_poll(&l);
	assert_ptr_equal(current(), kp);
}

/* A good session, but something older waits: behind it, even while the slow side
 * is sending the last one. */
static void test_no_overtaking(void **state)
{
	struct wg_endpoint to;
	uint32_t len;

	begin(true);
	make_ipv4(3, 60, 9);
	stage_packets(peer, pkt, 1, l.wg->drops);
	assert_int_equal(wg_seal(l.worker, peer, pkt + 1, 1, l.now_ns, &to), WG_STAGED);
	assert_true(stage_take(peer, bytes[10], &len) && stage_take(peer, bytes[10], &len));
	assert_int_equal(bytes[10][20], 1);
	assert_int_equal(wg_seal(l.worker, peer, pkt + 2, 1, l.now_ns, &to), WG_STAGED);
	lone_poll(&l);
	assert_int_equal(l.n_sent, 1);
	make_ipv4(1, 60, 9);
	assert_int_equal(wg_seal(l.worker, peer, pkt, 1, l.now_ns, &to), WG_SEALED);
}

/* What is dropped whole says why, packet by packet. */
static void test_seal_reasons(void **state)
{
	struct wg_peer_change pc = { 0 };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };
	struct wg_peer *lost;
	struct wg_endpoint to;

	begin(true);
	memset(pc.public_key, 0x77, WG_KEY_LEN);
	lone_apply(&l, &c);
	lost = peer_find(l.wg, pc.public_key);
	make_ipv4(2, 60, 9);
	assert_int_equal(wg_seal(l.worker, lost, pkt, 2, l.now_ns, &to), WG_DROPPED);
	assert_int_equal(pkt[0].drop, WG_DROP_NO_ENDPOINT);
	assert_int_equal(pkt[1].drop, WG_DROP_NO_ENDPOINT);
	wg_set_up(l.wg, false, l.now_ns);
	assert_int_equal(wg_seal(l.worker, lost, pkt, 2, l.now_ns, &to), WG_DROPPED);
	assert_int_equal(pkt[0].drop, WG_DROP_DOWN);
	assert_int_equal(pkt[1].drop, WG_DROP_DOWN);
}

/* A worker that stages one more for each that is sent; not for ever. */
static void stage_while_sending(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct wg_packet more = { .data = bytes[0] + WG_HEAD, .len = 60 };
	struct wg_endpoint unused;

	lone_send(ctx, to, msg, len, kind);
	if (l.n_sent < 8 * STAGE_SENDS_MAX)
		assert_int_equal(wg_seal(l.worker, peer, &more, 1, l.now_ns, &unused), WG_STAGED);
}

/* What is sent in one go ends; the rest is dropped, and the workers send again. */
static void test_endless_staging(void **state)
{
	const struct wg_ops ops = { stage_while_sending, lone_wake, lone_limit };
	const struct wg_ops *before = l.wg->ops;
	struct keypair *kp = begin(true);
	uint64_t drops[WG_DROP_N];
	struct wg_endpoint to;

	l.wg->ops = &ops;
	make_ipv4(3, 60, 9);
	stage_packets(peer, pkt, 3, l.wg->drops);
	session_send_staged(peer);
	assert_int_equal(l.n_sent, STAGE_SENDS_MAX);
	assert_int_equal(atomic_load(&kp->tx_counter), STAGE_SENDS_MAX);
	assert_int_equal(atomic_load(&peer->n_staged), 0);
	wg_drops(l.wg, drops);
	assert_int_equal(drops[WG_DROP_STAGED_FULL], 3);
	l.wg->ops = before;
	make_ipv4(1, 60, 9);
	assert_int_equal(wg_seal(l.worker, peer, pkt, 1, l.now_ns, &to), WG_SEALED);
}

/* A late packet of the previous keypair does not ask for a new one. */
static void test_late_packet_of_previous(void **state)
{
	struct keypair *old = begin(true);

	l.now_ns += 150 * NSEC_PER_SEC;
	lone_poll(&l);
	begin(true);
	l.now_ns += 20 * NSEC_PER_SEC;
	make_ipv4(1, 60, 9);
	seal_for(old, &pkt[0], 0);
	wg_open(l.worker, pkt, 1, &somewhere, l.now_ns);
	assert_int_equal(pkt[0].drop, WG_OK);
	lone_poll(&l);
	assert_int_equal(l.n_handshakes, 0);
}

/* What answers the first packet of a new session goes out in it, although the slow side has
 * not seen that packet yet: the other side may have lost the former session. */
static void test_answer_in_the_new_session(void **state)
{
	struct keypair *old = begin(true), *kp = begin(false);
	struct wg_endpoint to;

	make_ipv4(1, 60, 9);
	assert_int_equal(wg_seal(l.worker, peer, pkt, 1, l.now_ns, &to), WG_SEALED);
	assert_int_equal(atomic_load(&old->tx_counter), 1);
	make_ipv4(1, 60, 9);
	seal_for(kp, &pkt[0], 0);
	wg_open(l.worker, pkt, 1, &somewhere, l.now_ns);
	assert_int_equal(pkt[0].drop, WG_OK);
	assert_ptr_equal(current(), old);
	make_ipv4(1, 60, 9);
	assert_int_equal(wg_seal(l.worker, peer, pkt, 1, l.now_ns, &to), WG_SEALED);
	assert_int_equal(atomic_load(&old->tx_counter), 1);
	assert_int_equal(atomic_load(&kp->tx_counter), 1);
	lone_poll(&l);
	assert_ptr_equal(current(), kp);
	assert_null(atomic_load(&peer->following));
}

/* The index of a handshake under way is no session. */
static void test_handshake_index(void **state)
{
	peer_want(peer, WANT_KEEPALIVE);
	lone_poll(&l);
	assert_true(peer->has_handshake_index);
	memset(bytes[0], 0, ROOM);
	put_le32(bytes[0], WGMSG_DATA);
	put_le32(bytes[0] + 4, peer->handshake_index);
	pkt[0] = (struct wg_packet){ .data = bytes[0], .len = 64 };
	wg_open(l.worker, pkt, 1, &somewhere, l.now_ns);
	assert_int_equal(pkt[0].drop, WG_DROP_NO_SESSION);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_rotation),
		TEST(test_contest),
		TEST(test_may_send),
		TEST(test_sealed_len),
		TEST(test_sealed_len_of_routes),
		TEST(test_sealed_len_never_beyond),
		TEST(test_long_train),
		TEST(test_mixed_batch),
		TEST(test_look_ahead),
		TEST(test_forgery_changes_nothing),
		TEST(test_no_overtaking),
		TEST(test_seal_reasons),
		TEST(test_endless_staging),
		TEST(test_late_packet_of_previous),
		TEST(test_answer_in_the_new_session),
		TEST(test_handshake_index),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
