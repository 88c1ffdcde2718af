/* Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s, in the words of the WireGuard paper, section 5.4.
 *
 * A handshake carries two values from message to message: the hash of the
 * transcript (H) and the chaining key (C). mix_hash() takes bytes into H,
 * mix_key() takes a shared secret into C and gives the key of the next
 * encrypted field. What is the same in all handshakes is computed ahead: the
 * values after the protocol's name (below), H after the responder's static key
 * (in noise_identity), and the DH of the two static keys.
 *
 * Whatever is taken from a message is computed on copies; the handshake changes
 * only when all of the message has proved authentic. */
#include "wg/noise.h"
#include "base/clock.h"
#include "crypto/crypto.h"

static_assert((int)NOISE_KEY == (int)CRYPTO_KEY, "keys");
static_assert((int)NOISE_HASH == (int)CRYPTO_HASH, "hashes");

/* Hash("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"): C at the start. */
static const uint8_t chain_start[NOISE_HASH] = { 0x60, 0xe2, 0x6d, 0xae, 0xf3, 0x27, 0xef, 0xc0,
	0x2e, 0xc3, 0x35, 0xe2, 0xa0, 0x25, 0xd2, 0xd0, 0x16, 0xeb, 0x42, 0x06, 0xf8, 0x72, 0x77,
	0xf5, 0x2d, 0x38, 0xd1, 0x98, 0x8b, 0x78, 0xcd, 0x36 };

/* Hash(chain_start || "WireGuard v1 zx2c4 Jason@zx2c4.com"): H at the start. */
static const uint8_t hash_start[NOISE_HASH] = { 0x22, 0x11, 0xb3, 0x61, 0x08, 0x1a, 0xc5, 0x66,
	0x69, 0x12, 0x43, 0xdb, 0x45, 0x8a, 0xd5, 0x32, 0x2d, 0x9c, 0x6c, 0x66, 0x22, 0x93, 0xe8,
	0xb7, 0x0e, 0xe1, 0x9c, 0x65, 0xba, 0x07, 0x9e, 0xf3 };

static const uint8_t zero[NOISE_KEY];

static void mix_hash(uint8_t hash[NOISE_HASH], const void *p, size_t len)
{
	const struct span in[] = { { hash, NOISE_HASH }, { p, len } };

	blake2s(hash, in, ARRAY_LEN(in));
}

/* key may be NULL when the next field is not encrypted yet. */
static void mix_key(uint8_t chain[NOISE_HASH], uint8_t *key, const uint8_t *in, size_t len)
{
	uint8_t *const out[] = { chain, key };

	kdf(out, key ? 2 : 1, chain, in, len);
}

/* Mix a Diffie-Hellman result. false for a low-order point. */
static bool mix_dh(uint8_t chain[NOISE_HASH], uint8_t *key, const uint8_t secret[NOISE_KEY],
	const uint8_t point[NOISE_KEY])
{
	uint8_t shared[NOISE_KEY];
	bool ok = x25519(shared, secret, point);

	if (ok)
		mix_key(chain, key, shared, NOISE_KEY);
	crypto_wipe(shared, sizeof(shared));
	return ok;
}

static void mix_psk(
	struct noise_handshake *hs, const uint8_t psk[NOISE_KEY], uint8_t key[NOISE_KEY])
{
	uint8_t tau[NOISE_HASH];
	uint8_t *const out[] = { hs->chain, tau, key };

	kdf(out, 3, hs->chain, psk, NOISE_KEY);
	mix_hash(hs->hash, tau, sizeof(tau));
	crypto_wipe(tau, sizeof(tau));
}

/* An ephemeral key goes over the wire in clear. */
static void mix_ephemeral(
	uint8_t hash[NOISE_HASH], uint8_t chain[NOISE_HASH], const uint8_t ephemeral[NOISE_KEY])
{
	mix_hash(hash, ephemeral, NOISE_KEY);
	mix_key(chain, NULL, ephemeral, NOISE_KEY);
}

/* Encrypt a field under a fresh key; the ciphertext joins the transcript. */
static void seal_field(uint8_t hash[NOISE_HASH], const uint8_t key[NOISE_KEY], uint8_t *dst,
	const void *src, size_t len)
{
	aead_seal_ad(dst, src, len, hash, NOISE_HASH, 0, key);
	mix_hash(hash, dst, len + CRYPTO_TAG);
}

/* len: of the ciphertext with its tag. */
static bool open_field(uint8_t hash[NOISE_HASH], const uint8_t key[NOISE_KEY], uint8_t *dst,
	const uint8_t *src, size_t len)
{
	if (!aead_open_ad(dst, src, len, hash, NOISE_HASH, 0, key))
		return false;
	mix_hash(hash, src, len);
	return true;
}

static void make_ephemeral(uint8_t secret[NOISE_KEY], uint8_t public_key[NOISE_KEY])
{
	crypto_random(secret, NOISE_KEY);
	x25519_clamp(secret);
	x25519_base(public_key, secret);
}

/* H once the responder's static key is known: before its first message. */
static void start_hash(uint8_t hash[NOISE_HASH], const uint8_t responder_key[NOISE_KEY])
{
	memcpy(hash, hash_start, NOISE_HASH);
	mix_hash(hash, responder_key, NOISE_KEY);
}

void noise_identity_set(struct noise_identity *id, const uint8_t secret[NOISE_KEY])
{
	uint8_t copy[NOISE_KEY] = { 0 };

	if (secret)
		memcpy(copy, secret, sizeof(copy)); /* secret may lie in id */
	crypto_wipe(id, sizeof(*id));
	if (!crypto_equal(copy, zero, sizeof(copy))) {
		id->has_key = true;
		memcpy(id->secret, copy, NOISE_KEY);
		x25519_clamp(id->secret);
		x25519_base(id->public_key, id->secret);
		start_hash(id->hash, id->public_key);
	}
	crypto_wipe(copy, sizeof(copy));
}

void noise_peer_init(
	struct noise_peer *p, const uint8_t public_key[NOISE_KEY], const uint8_t psk[NOISE_KEY])
{
	memset(p, 0, sizeof(*p));
	memcpy(p->public_key, public_key, NOISE_KEY);
	noise_peer_set_psk(p, psk);
}

void noise_peer_forget_identity(struct noise_peer *p)
{
	crypto_wipe(p->static_static, sizeof(p->static_static));
	p->is_known = p->is_usable = false;
}

bool noise_peer_is_usable(struct noise_peer *p, const struct noise_identity *id)
{
	if (!p->is_known) {
		p->is_usable = id->has_key && x25519(p->static_static, id->secret, p->public_key);
		p->is_known = true;
	}
	return p->is_usable;
}

void noise_peer_set_psk(struct noise_peer *p, const uint8_t psk[NOISE_KEY])
{
	memcpy(p->psk, psk ? psk : zero, NOISE_KEY);
}

void noise_peer_wipe(struct noise_peer *p)
{
	crypto_wipe(p, sizeof(*p));
}

void noise_handshake_clear(struct noise_handshake *hs)
{
	crypto_wipe(hs, sizeof(*hs)); /* NOISE_IDLE is 0 */
}

bool noise_create_initiation(struct noise_handshake *hs, const struct noise_identity *id,
	struct noise_peer *p, uint32_t local_index, const uint8_t timestamp[TAI64N_LEN],
	struct wgmsg_initiation *out)
{
	uint8_t key[NOISE_KEY];
	bool ok;

	noise_handshake_clear(hs);
	memset(out, 0, sizeof(*out));
	if (!noise_peer_is_usable(p, id))
		return false;

	out->type = htole32(WGMSG_INITIATION);
	out->sender = htole32(local_index);
	start_hash(hs->hash, p->public_key);
	memcpy(hs->chain, chain_start, NOISE_HASH);

	make_ephemeral(hs->ephemeral, out->ephemeral);
	mix_ephemeral(hs->hash, hs->chain, out->ephemeral);
	ok = mix_dh(hs->chain, key, hs->ephemeral, p->public_key);
	if (ok) {
		seal_field(hs->hash, key, out->static_key, id->public_key, NOISE_KEY);
		mix_key(hs->chain, key, p->static_static, NOISE_KEY);
		seal_field(hs->hash, key, out->timestamp, timestamp, TAI64N_LEN);
		hs->local_index = local_index;
		hs->state = NOISE_INITIATION_SENT;
	} else {
		noise_handshake_clear(hs);
		memset(out, 0, sizeof(*out));
	}
	crypto_wipe(key, sizeof(key));
	return ok;
}

bool noise_open_initiation(struct noise_transcript *t, const struct noise_identity *id,
	const struct wgmsg_initiation *msg, uint8_t peer_key[NOISE_KEY])
{
	uint8_t key[NOISE_KEY];
	bool ok;

	memset(t, 0, sizeof(*t));
	if (!id->has_key)
		return false;
	t->remote_index = le32toh(msg->sender);
	memcpy(t->remote_ephemeral, msg->ephemeral, NOISE_KEY);
	memcpy(t->hash, id->hash, NOISE_HASH);
	memcpy(t->chain, chain_start, NOISE_HASH);

	mix_ephemeral(t->hash, t->chain, msg->ephemeral);
	ok = mix_dh(t->chain, key, id->secret, msg->ephemeral) &&
		open_field(t->hash, key, peer_key, msg->static_key, sizeof(msg->static_key));
	crypto_wipe(key, sizeof(key));
	return ok;
}

bool noise_open_timestamp(struct noise_transcript *t, const struct noise_identity *id,
	struct noise_peer *p, const struct wgmsg_initiation *msg, uint8_t timestamp[TAI64N_LEN])
{
	uint8_t key[NOISE_KEY];
	bool ok;

	if (!noise_peer_is_usable(p, id))
		return false;
	mix_key(t->chain, key, p->static_static, NOISE_KEY);
	ok = open_field(t->hash, key, timestamp, msg->timestamp, sizeof(msg->timestamp));
	crypto_wipe(key, sizeof(key));
	return ok;
}

enum noise_verdict noise_judge_timestamp(
	const struct noise_peer *p, const uint8_t timestamp[TAI64N_LEN], uint64_t now_ns)
{
	if (!p->has_initiation)
		return NOISE_FRESH;
	if (!tai64n_is_newer(timestamp, p->last_timestamp))
		return NOISE_REPLAY;
	if (now_ns < p->last_initiation_ns + NSEC_PER_SEC / NOISE_INITIATIONS_PER_SEC)
		return NOISE_FLOOD;
	return NOISE_FRESH;
}

void noise_commit_initiation(struct noise_handshake *hs, struct noise_peer *p,
	const struct noise_transcript *t, const uint8_t timestamp[TAI64N_LEN], uint64_t now_ns)
{
	noise_handshake_clear(hs);
	hs->remote_index = t->remote_index;
	memcpy(hs->remote_ephemeral, t->remote_ephemeral, NOISE_KEY);
	memcpy(hs->hash, t->hash, NOISE_HASH);
	memcpy(hs->chain, t->chain, NOISE_HASH);
	hs->state = NOISE_INITIATION_TAKEN;

	p->has_initiation = true;
	memcpy(p->last_timestamp, timestamp, TAI64N_LEN);
	p->last_initiation_ns = now_ns;
}

void noise_transcript_wipe(struct noise_transcript *t)
{
	crypto_wipe(t, sizeof(*t));
}

bool noise_create_response(struct noise_handshake *hs, const struct noise_peer *p,
	uint32_t local_index, struct wgmsg_response *out)
{
	uint8_t key[NOISE_KEY];
	bool ok;

	memset(out, 0, sizeof(*out));
	if (hs->state != NOISE_INITIATION_TAKEN || !p->is_usable) {
		noise_handshake_clear(hs);
		return false;
	}
	out->type = htole32(WGMSG_RESPONSE);
	out->sender = htole32(local_index);
	out->receiver = htole32(hs->remote_index);

	make_ephemeral(hs->ephemeral, out->ephemeral);
	mix_ephemeral(hs->hash, hs->chain, out->ephemeral);
	ok = mix_dh(hs->chain, NULL, hs->ephemeral, hs->remote_ephemeral) &&
		mix_dh(hs->chain, NULL, hs->ephemeral, p->public_key);
	if (ok) {
		mix_psk(hs, p->psk, key);
		seal_field(hs->hash, key, out->nothing, NULL, 0);
		hs->local_index = local_index;
		hs->state = NOISE_RESPONSE_SENT;
		crypto_wipe(key, sizeof(key));
	} else {
		noise_handshake_clear(hs);
		memset(out, 0, sizeof(*out));
	}
	return ok;
}

bool noise_consume_response(struct noise_handshake *hs, const struct noise_identity *id,
	const struct noise_peer *p, const struct wgmsg_response *msg)
{
	uint8_t key[NOISE_KEY], nothing[1];
	struct noise_handshake next;
	bool ok;

	if (hs->state != NOISE_INITIATION_SENT || !id->has_key || !p->is_usable ||
		le32toh(msg->receiver) != hs->local_index)
		return false;

	next = *hs;
	mix_ephemeral(next.hash, next.chain, msg->ephemeral);
	ok = mix_dh(next.chain, NULL, hs->ephemeral, msg->ephemeral) &&
		mix_dh(next.chain, NULL, id->secret, msg->ephemeral);
	if (ok) {
		mix_psk(&next, p->psk, key);
		ok = open_field(next.hash, key, nothing, msg->nothing, sizeof(msg->nothing));
		crypto_wipe(key, sizeof(key));
	}
	if (ok) {
		*hs = next;
		memcpy(hs->remote_ephemeral, msg->ephemeral, NOISE_KEY);
		hs->remote_index = le32toh(msg->sender);
		hs->state = NOISE_RESPONSE_TAKEN;
	}
	crypto_wipe(&next, sizeof(next));
	return ok;
}

bool noise_begin_session(struct noise_handshake *hs, uint8_t send_key[NOISE_KEY],
	uint8_t recv_key[NOISE_KEY], bool *is_initiator)
{
	bool initiated = hs->state == NOISE_RESPONSE_TAKEN;
	uint8_t *const out[] = { initiated ? send_key : recv_key, initiated ? recv_key : send_key };

	if (!initiated && hs->state != NOISE_RESPONSE_SENT)
		return false;
	kdf(out, 2, hs->chain, NULL, 0);
	*is_initiator = initiated;
	noise_handshake_clear(hs);
	return true;
}
