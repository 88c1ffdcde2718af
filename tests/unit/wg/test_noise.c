/* Both roles in one process: sessions agree, and nothing else gets through. */
#include "wg/noise.h"
#include "base/clock.h"
#include "crypto/crypto.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

/* One end: itself, the other one as its peer, the handshake between them. */
struct end {
	struct noise_identity id;
	struct noise_peer peer;
	struct noise_handshake hs;
};

struct pair {
	struct end a, b;
	uint8_t psk[NOISE_KEY];
};

static const uint8_t zero[256];

/* Points of low order: RFC 7748 section 6.1 and its references. */
static const uint8_t low_order[][NOISE_KEY] = {
	{ 0 },
	{ 1 },
	{ 0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4,
		0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f,
		0x49, 0xb8, 0x00 },
	{ 0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1, 0x55, 0x9c, 0x83, 0xef,
		0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c, 0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0,
		0x9f, 0x11, 0x57 },
};

static void stamp(uint8_t out[TAI64N_LEN], uint64_t seconds)
{
	tai64n_encode(out, seconds * NSEC_PER_SEC);
}

static void identity_random(struct noise_identity *id)
{
	uint8_t secret[NOISE_KEY];

	crypto_random(secret, sizeof(secret));
	noise_identity_set(id, secret);
	assert_true(id->has_key);
}

static void pair_make(struct pair *p, bool has_psk)
{
	memset(p, 0, sizeof(*p));
	if (has_psk)
		crypto_random(p->psk, sizeof(p->psk));
	identity_random(&p->a.id);
	identity_random(&p->b.id);
	noise_peer_init(&p->a.peer, p->b.id.public_key, has_psk ? p->psk : NULL);
	noise_peer_init(&p->b.peer, p->a.id.public_key, has_psk ? p->psk : NULL);
	assert_true(noise_peer_is_usable(&p->a.peer, &p->a.id));
	assert_true(noise_peer_is_usable(&p->b.peer, &p->b.id));
}

/* The three steps of taking an initiation; true when it was committed. */
static bool take(struct end *e, const struct wgmsg_initiation *msg, uint64_t now_ns)
{
	uint8_t key[NOISE_KEY], ts[TAI64N_LEN];
	struct noise_transcript t;
	bool ok;

	ok = noise_open_initiation(&t, &e->id, msg, key) &&
		!memcmp(key, e->peer.public_key, NOISE_KEY) &&
		noise_open_timestamp(&t, &e->id, &e->peer, msg, ts) &&
		noise_judge_timestamp(&e->peer, ts, now_ns) == NOISE_FRESH;
	if (ok)
		noise_commit_initiation(&e->hs, &e->peer, &t, ts, now_ns);
	noise_transcript_wipe(&t);
	assert_memory_equal(&t, zero, sizeof(t));
	return ok;
}

static void initiate(struct pair *p, uint64_t seconds, struct wgmsg_initiation *msg)
{
	uint8_t ts[TAI64N_LEN];

	stamp(ts, seconds);
	assert_true(noise_create_initiation(&p->a.hs, &p->a.id, &p->a.peer, 0x11223344, ts, msg));
	assert_int_equal(p->a.hs.state, NOISE_INITIATION_SENT);
}

/* a initiates, b answers: up to and with the response. */
static void respond(struct pair *p, uint64_t seconds, struct wgmsg_response *resp)
{
	struct wgmsg_initiation msg;

	initiate(p, seconds, &msg);
	assert_true(take(&p->b, &msg, seconds * NSEC_PER_SEC));
	assert_true(noise_create_response(&p->b.hs, &p->b.peer, 0x55667788, resp));
}

/* Both begin; their keys cross. */
static void begin(struct pair *p)
{
	uint8_t a_send[NOISE_KEY], a_recv[NOISE_KEY], b_send[NOISE_KEY], b_recv[NOISE_KEY];
	bool a_first, b_first;

	assert_true(noise_begin_session(&p->a.hs, a_send, a_recv, &a_first));
	assert_true(noise_begin_session(&p->b.hs, b_send, b_recv, &b_first));
	assert_true(a_first);
	assert_false(b_first);
	assert_memory_equal(a_send, b_recv, NOISE_KEY);
	assert_memory_equal(a_recv, b_send, NOISE_KEY);
	assert_memory_not_equal(a_send, a_recv, NOISE_KEY);
	assert_memory_equal(&p->a.hs, zero, sizeof(p->a.hs));
	assert_memory_equal(&p->b.hs, zero, sizeof(p->b.hs));
	assert_false(noise_begin_session(&p->a.hs, a_send, a_recv, &a_first)); /* once */
}

static void test_session(void **state)
{
	for (int has_psk = 0; has_psk < 2; has_psk++) {
		struct wgmsg_response resp;
		struct pair p;

		pair_make(&p, has_psk);
		respond(&p, 100, &resp);
		assert_int_equal(le32toh(resp.type), 2);
		assert_int_equal(le32toh(resp.sender), 0x55667788);
		assert_int_equal(le32toh(resp.receiver), 0x11223344);
		assert_true(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
		assert_int_equal(p.a.hs.local_index, 0x11223344);
		assert_int_equal(p.a.hs.remote_index, 0x55667788);
		assert_int_equal(p.b.hs.local_index, 0x55667788);
		assert_int_equal(p.b.hs.remote_index, 0x11223344);
		/* the same response again: no longer expected */
		assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
		begin(&p);
	}
}

static void test_constants(void **state)
{
	static const char construction[] = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
	static const char identifier[] = "WireGuard v1 zx2c4 Jason@zx2c4.com";
	const struct span name = { construction, strlen(construction) };
	uint8_t chain[NOISE_HASH], hash[NOISE_HASH], expected[NOISE_HASH];
	struct noise_identity id;

	identity_random(&id);
	blake2s(chain, &name, 1);
	blake2s(hash, (struct span[]){ { chain, 32 }, { identifier, strlen(identifier) } }, 2);
	blake2s(expected, (struct span[]){ { hash, 32 }, { id.public_key, 32 } }, 2);
	assert_memory_equal(id.hash, expected, NOISE_HASH);
}

/* An initiator written straight from the paper, with nothing precomputed:
 * our responder takes its initiation and comes to the same keys. */
struct paper {
	uint8_t c[32], h[32], k[32], e[32], e_pub[32];
};

static void paper_hash(struct paper *s, const void *p, size_t len)
{
	blake2s(s->h, (struct span[]){ { s->h, 32 }, { p, len } }, 2);
}

static void paper_kdf1(struct paper *s, const uint8_t in[32])
{
	uint8_t t0[32];

	hmac_blake2s(t0, s->c, 32, &(struct span){ in, 32 }, 1);
	hmac_blake2s(s->c, t0, 32, &(struct span){ "\x01", 1 }, 1);
}

static void paper_kdf2(struct paper *s, const uint8_t *in, size_t len)
{
	uint8_t t0[32];

	hmac_blake2s(t0, s->c, 32, &(struct span){ in, len }, 1);
	hmac_blake2s(s->c, t0, 32, &(struct span){ "\x01", 1 }, 1);
	hmac_blake2s(s->k, t0, 32, (struct span[]){ { s->c, 32 }, { "\x02", 1 } }, 2);
}

static void paper_dh(uint8_t out[32], const uint8_t secret[32], const uint8_t point[32])
{
	assert_true(x25519(out, secret, point));
}

static void paper_initiation(struct paper *s, struct pair *p, struct wgmsg_initiation *m)
{
	static const char construction[] = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
	static const char identifier[] = "WireGuard v1 zx2c4 Jason@zx2c4.com";
	const uint8_t *s_pub = p->a.id.public_key, *r_pub = p->b.id.public_key;
	uint8_t ts[TAI64N_LEN], dh[32];

	memset(m, 0, sizeof(*m));
	blake2s(s->c, &(struct span){ construction, strlen(construction) }, 1);
	memcpy(s->h, s->c, 32);
	paper_hash(s, identifier, strlen(identifier));
	paper_hash(s, r_pub, 32);
	crypto_random(s->e, 32);
	x25519_base(s->e_pub, s->e);
	memcpy(m->ephemeral, s->e_pub, 32);
	m->type = htole32(1);
	m->sender = htole32(77);
	paper_hash(s, s->e_pub, 32);
	paper_kdf1(s, s->e_pub);
	paper_dh(dh, s->e, r_pub);
	paper_kdf2(s, dh, 32);
	aead_seal_ad(m->static_key, s_pub, 32, s->h, 32, 0, s->k);
	paper_hash(s, m->static_key, 48);
	paper_dh(dh, p->a.id.secret, r_pub);
	paper_kdf2(s, dh, 32);
	stamp(ts, 5);
	aead_seal_ad(m->timestamp, ts, 12, s->h, 32, 0, s->k);
	paper_hash(s, m->timestamp, 28);
}

static void test_paper(void **state)
{
	uint8_t dh[32], t0[32], tau[32], nothing[1], send[32], recv[32];
	struct wgmsg_initiation init;
	struct wgmsg_response resp;
	struct pair p;
	struct paper s;
	bool is_initiator;

	pair_make(&p, true);
	paper_initiation(&s, &p, &init);
	assert_true(take(&p.b, &init, 5));
	assert_true(noise_create_response(&p.b.hs, &p.b.peer, 99, &resp));
	assert_int_equal(le32toh(resp.receiver), 77);

	paper_hash(&s, resp.ephemeral, 32);
	paper_kdf1(&s, resp.ephemeral);
	paper_dh(dh, s.e, resp.ephemeral);
	paper_kdf1(&s, dh);
	paper_dh(dh, p.a.id.secret, resp.ephemeral);
	paper_kdf1(&s, dh);
	hmac_blake2s(t0, s.c, 32, &(struct span){ p.psk, 32 }, 1);
	hmac_blake2s(s.c, t0, 32, &(struct span){ "\x01", 1 }, 1);
	hmac_blake2s(tau, t0, 32, (struct span[]){ { s.c, 32 }, { "\x02", 1 } }, 2);
	hmac_blake2s(s.k, t0, 32, (struct span[]){ { tau, 32 }, { "\x03", 1 } }, 2);
	paper_hash(&s, tau, 32);
	assert_true(aead_open_ad(nothing, resp.nothing, 16, s.h, 32, 0, s.k));
	paper_kdf2(&s, (const uint8_t *)"", 0); /* c is what we send with, k what we receive with */
	assert_true(noise_begin_session(&p.b.hs, send, recv, &is_initiator));
	assert_memory_equal(recv, s.c, 32);
	assert_memory_equal(send, s.k, 32);
}

/* Each byte that is ours (MACs are cookie.c's, types the gate's). */
static void test_flips(void **state)
{
	struct noise_handshake sent;
	struct wgmsg_initiation init;
	struct wgmsg_response resp;
	struct end b;
	struct pair p;

	pair_make(&p, true);
	initiate(&p, 100, &init);
	b = p.b;
	for (size_t i = offsetof(struct wgmsg_initiation, ephemeral);
		i < offsetof(struct wgmsg_initiation, macs); i++) {
		((uint8_t *)&init)[i] ^= 1 << i % 8;
		assert_false(take(&p.b, &init, 0));
		assert_memory_equal(&b, &p.b, sizeof(b));
		((uint8_t *)&init)[i] ^= 1 << i % 8;
	}
	assert_true(take(&p.b, &init, 0));
	assert_true(noise_create_response(&p.b.hs, &p.b.peer, 5, &resp));

	/* A forged response leaves the handshake as it was. */
	sent = p.a.hs;
	for (size_t i = offsetof(struct wgmsg_response, receiver);
		i < offsetof(struct wgmsg_response, macs); i++) {
		for (int bit = 0; bit < 8; bit++) {
			((uint8_t *)&resp)[i] ^= 1 << bit;
			assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
			assert_memory_equal(&sent, &p.a.hs, sizeof(sent));
			((uint8_t *)&resp)[i] ^= 1 << bit;
		}
	}
	assert_true(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	begin(&p);
}

static void test_wrong_psk(void **state)
{
	struct wgmsg_response resp;
	struct noise_handshake sent;
	struct pair p;

	pair_make(&p, true);
	p.b.peer.psk[31] ^= 1;
	respond(&p, 100, &resp); /* the PSK comes in with the response */
	sent = p.a.hs;
	assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	assert_memory_equal(&sent, &p.a.hs, sizeof(sent));

	noise_peer_set_psk(&p.b.peer, NULL);
	assert_memory_equal(p.b.peer.psk, zero, NOISE_KEY);
	respond(&p, 101, &resp);
	assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	noise_peer_set_psk(&p.a.peer, NULL);
	respond(&p, 102, &resp);
	assert_true(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
}

static void test_wrong_key(void **state)
{
	uint8_t key[NOISE_KEY], ts[TAI64N_LEN];
	struct wgmsg_initiation init;
	struct wgmsg_response resp;
	struct noise_transcript t;
	struct pair p, q;

	/* meant for another responder */
	pair_make(&p, false);
	pair_make(&q, false);
	initiate(&p, 100, &init);
	assert_false(noise_open_initiation(&t, &q.b.id, &init, key));

	/* names a's key but does not hold a's secret */
	q.a.id = p.a.id;
	crypto_random(q.a.id.secret, NOISE_KEY);
	noise_peer_init(&q.a.peer, p.b.id.public_key, NULL);
	stamp(ts, 101);
	assert_true(noise_create_initiation(&q.a.hs, &q.a.id, &q.a.peer, 1, ts, &init));
	assert_true(noise_open_initiation(&t, &p.b.id, &init, key));
	assert_memory_equal(key, p.a.id.public_key, NOISE_KEY);
	assert_false(noise_open_timestamp(&t, &p.b.id, &p.b.peer, &init, ts));

	/* answered by somebody else */
	respond(&p, 102, &resp);
	identity_random(&p.b.id);
	noise_peer_init(&p.b.peer, p.a.id.public_key, NULL);
	initiate(&p, 103, &init);
	assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp)); /* an old one */
	assert_false(take(&p.b, &init, 0));
}

static void test_identity_changes(void **state)
{
	struct wgmsg_response resp;
	struct pair p;

	pair_make(&p, false);
	identity_random(&p.a.id);
	noise_peer_forget_identity(&p.a.peer);
	noise_peer_init(&p.b.peer, p.a.id.public_key, NULL);
	respond(&p, 100, &resp);
	assert_true(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	begin(&p);
}

static void test_low_order(void **state)
{
	uint8_t ts[TAI64N_LEN], key[NOISE_KEY];
	struct wgmsg_initiation init;
	struct wgmsg_response resp;
	struct noise_transcript t;
	struct pair p;

	stamp(ts, 100);
	for (size_t i = 0; i < ARRAY_LEN(low_order); i++) {
		struct noise_peer bad;

		pair_make(&p, false);
		noise_peer_init(&bad, low_order[i], NULL);
		assert_false(noise_peer_is_usable(&bad, &p.a.id));
		memset(&init, 0xff, sizeof(init));
		assert_false(noise_create_initiation(&p.a.hs, &p.a.id, &bad, 1, ts, &init));
		assert_memory_equal(&init, zero, sizeof(init));
		assert_memory_equal(&p.a.hs, zero, sizeof(p.a.hs));

		/* as an ephemeral key, in both messages */
		initiate(&p, 100, &init);
		memcpy(init.ephemeral, low_order[i], NOISE_KEY);
		assert_false(noise_open_initiation(&t, &p.b.id, &init, key));
		respond(&p, 101, &resp);
		memcpy(resp.ephemeral, low_order[i], NOISE_KEY);
		assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	}
}

static void test_no_identity(void **state)
{
	uint8_t ts[TAI64N_LEN], key[NOISE_KEY];
	struct wgmsg_initiation init;
	struct noise_transcript t;
	struct pair p;

	pair_make(&p, false);
	initiate(&p, 100, &init);
	noise_identity_set(&p.b.id, NULL);
	assert_false(p.b.id.has_key);
	assert_memory_equal(&p.b.id, zero, sizeof(p.b.id));
	assert_false(noise_open_initiation(&t, &p.b.id, &init, key));
	noise_peer_forget_identity(&p.b.peer);
	assert_false(noise_peer_is_usable(&p.b.peer, &p.b.id));
	assert_memory_equal(p.b.peer.static_static, zero, NOISE_KEY);
	stamp(ts, 100);
	assert_false(noise_create_initiation(&p.b.hs, &p.b.id, &p.b.peer, 1, ts, &init));
	noise_identity_set(&p.b.id, zero);
	assert_false(p.b.id.has_key);
}

/* Calls in the wrong state do nothing but fail. */
static void test_states(void **state)
{
	uint8_t send[NOISE_KEY], recv[NOISE_KEY];
	struct wgmsg_initiation init;
	struct wgmsg_response resp;
	struct pair p;
	bool first;

	pair_make(&p, false);
	assert_false(noise_begin_session(&p.a.hs, send, recv, &first));
	assert_false(noise_create_response(&p.a.hs, &p.a.peer, 1, &resp));
	respond(&p, 100, &resp);
	assert_false(noise_begin_session(&p.a.hs, send, recv, &first)); /* still waiting */
	assert_false(noise_consume_response(&p.b.hs, &p.b.id, &p.b.peer, &resp));
	p.a.peer.is_usable = false; /* its key or ours went away meanwhile */
	assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	p.a.peer.is_usable = true;
	assert_true(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));
	begin(&p);
	assert_false(noise_consume_response(&p.a.hs, &p.a.id, &p.a.peer, &resp));

	/* Both initiate at once: taking the other's drops ours. */
	initiate(&p, 200, &init);
	assert_true(take(&p.b, &init, 200 * NSEC_PER_SEC));
	assert_false(noise_begin_session(&p.b.hs, send, recv, &first)); /* taken, not answered */
	assert_int_equal(p.b.hs.state, NOISE_INITIATION_TAKEN);
	/* The response is made once. */
	assert_true(noise_create_response(&p.b.hs, &p.b.peer, 2, &resp));
	assert_false(noise_create_response(&p.b.hs, &p.b.peer, 2, &resp));
	assert_int_equal(p.b.hs.state, NOISE_IDLE);
}

static void test_timestamps(void **state)
{
	struct wgmsg_initiation init, old;
	uint8_t ts[TAI64N_LEN];
	uint64_t now = 1000;
	struct pair p;

	pair_make(&p, false);
	initiate(&p, 100, &old);
	assert_true(take(&p.b, &old, now));
	assert_int_equal(p.b.hs.state, NOISE_INITIATION_TAKEN);
	now += NSEC_PER_SEC;
	assert_false(take(&p.b, &old, now)); /* replayed */
	initiate(&p, 99, &init); /* clock went back */
	assert_false(take(&p.b, &init, now));
	initiate(&p, 101, &init);
	assert_true(take(&p.b, &init, now));
	assert_false(take(&p.b, &old, now + NSEC_PER_SEC));

	stamp(ts, 101);
	assert_int_equal(noise_judge_timestamp(&p.b.peer, ts, now + NSEC_PER_SEC), NOISE_REPLAY);
	stamp(ts, 102);
	assert_int_equal(
		noise_judge_timestamp(&p.b.peer, ts, now + NSEC_PER_SEC / 50 - 1), NOISE_FLOOD);
	assert_int_equal(
		noise_judge_timestamp(&p.b.peer, ts, now + NSEC_PER_SEC / 50), NOISE_FRESH);
}

static void test_tai64n(void **state)
{
	static const uint8_t at_1s[] = { 0x40, 0, 0, 0, 0, 0, 0, 0x0b, 0x3a, 0, 0, 0 };
	uint8_t a[TAI64N_LEN], b[TAI64N_LEN];

	tai64n_encode(a, NSEC_PER_SEC + 0x3affffff); /* under 1e9: 989855743 */
	assert_memory_equal(a, at_1s, sizeof(at_1s));
	assert_false(tai64n_is_newer(a, a));
	tai64n_encode(b, NSEC_PER_SEC + 0x3b000000);
	assert_true(tai64n_is_newer(b, a));
	assert_false(tai64n_is_newer(a, b));
	tai64n_encode(a, 2 * NSEC_PER_SEC - 1);
	tai64n_encode(b, 2 * NSEC_PER_SEC);
	assert_true(tai64n_is_newer(b, a));
	tai64n_encode(a, 1700000000ULL * NSEC_PER_SEC);
	assert_true(tai64n_is_newer(a, b));
}

static int setup(void **state)
{
	return crypto_init(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_session),
		cmocka_unit_test(test_constants),
		cmocka_unit_test(test_paper),
		cmocka_unit_test(test_flips),
		cmocka_unit_test(test_wrong_psk),
		cmocka_unit_test(test_wrong_key),
		cmocka_unit_test(test_identity_changes),
		cmocka_unit_test(test_low_order),
		cmocka_unit_test(test_no_identity),
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_timestamps),
		cmocka_unit_test(test_tai64n),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
