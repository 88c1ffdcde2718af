/* mac1 proves that the sender knows our public key: Mac(Hash("mac1----" || key), the
 * message up to it). mac2, asked for under load, proves that it receives at its
 * address: Mac(cookie, the message up to mac2), where cookie = Mac(secret, address)
 * and the secret lives two minutes. The cookie itself goes to that address encrypted under
 * Hash("cookie--" || our public key), with the mac1 it answers as additional
 * data, so that only who sent that message can use it. */
#include "wg/cookie.h"
#include "base/clock.h"
#include "crypto/crypto.h"

static void keys_init(struct cookie_keys *k, const uint8_t public_key[32])
{
	const struct span mac1[] = { { "mac1----", 8 }, { public_key, 32 } };
	const struct span cookie[] = { { "cookie--", 8 }, { public_key, 32 } };

	blake2s(k->mac1, mac1, ARRAY_LEN(mac1));
	blake2s(k->cookie, cookie, ARRAY_LEN(cookie));
}

static size_t macs_at(size_t len)
{
	assert(len >= sizeof(struct wgmsg_macs));
	return len - sizeof(struct wgmsg_macs);
}

/* mac1 of a message; its place in the message is not read. */
static void compute_mac1(
	uint8_t out[COOKIE_LEN], const struct cookie_keys *k, const uint8_t *msg, size_t len)
{
	const struct span in = { msg, macs_at(len) };

	blake2s_mac(out, k->mac1, sizeof(k->mac1), &in, 1);
}

static void compute_mac2(
	uint8_t out[COOKIE_LEN], const uint8_t cookie[COOKIE_LEN], const uint8_t *msg, size_t len)
{
	const struct span in = { msg, macs_at(len) + COOKIE_LEN };

	blake2s_mac(out, cookie, COOKIE_LEN, &in, 1);
}

/* The cookie of an address under the present secret. */
static void compute_cookie(struct cookie_checker *c, const uint8_t remote[COOKIE_REMOTE],
	uint64_t now_ns, uint8_t out[COOKIE_LEN])
{
	const struct span in = { remote, COOKIE_REMOTE };

	if (!c->has_secret || now_ns >= c->secret_born_ns + COOKIE_SECRET_MAX_S * NSEC_PER_SEC) {
		crypto_random(c->secret, sizeof(c->secret));
		c->secret_born_ns = now_ns;
		c->has_secret = true;
	}
	blake2s_mac(out, c->secret, sizeof(c->secret), &in, 1);
}

void cookie_checker_init(struct cookie_checker *c, const uint8_t public_key[32])
{
	memset(c, 0, sizeof(*c));
	keys_init(&c->keys, public_key);
}

void cookie_checker_wipe(struct cookie_checker *c)
{
	crypto_wipe(c, sizeof(*c));
}

bool cookie_check_mac1(const struct cookie_checker *c, const uint8_t *msg, size_t len)
{
	uint8_t mac[COOKIE_LEN];

	compute_mac1(mac, &c->keys, msg, len);
	return crypto_equal(mac, msg + macs_at(len), COOKIE_LEN);
}

bool cookie_check_mac2(struct cookie_checker *c, const uint8_t *msg, size_t len,
	const uint8_t remote[COOKIE_REMOTE], uint64_t now_ns)
{
	static const uint8_t none[COOKIE_LEN];
	const uint8_t *mac2 = msg + macs_at(len) + COOKIE_LEN;
	uint8_t mac[COOKIE_LEN], cookie[COOKIE_LEN];
	bool is_right;

	if (memcmp(mac2, none, COOKIE_LEN) == 0)
		return false;
	compute_cookie(c, remote, now_ns, cookie);
	compute_mac2(mac, cookie, msg, len);
	is_right = crypto_equal(mac, mac2, COOKIE_LEN);
	crypto_wipe(cookie, sizeof(cookie));
	crypto_wipe(mac, sizeof(mac));
	return is_right;
}

void cookie_make_reply(struct cookie_checker *c, const uint8_t *msg, size_t len,
	const uint8_t remote[COOKIE_REMOTE], uint64_t now_ns, struct wgmsg_cookie *out)
{
	uint8_t cookie[COOKIE_LEN];

	/* The sender's index stands at the same place in both messages. */
	static_assert(offsetof(struct wgmsg_initiation, sender) ==
			offsetof(struct wgmsg_response, sender),
		"sender");
	out->type = htole32(WGMSG_COOKIE);
	memcpy(&out->receiver, msg + offsetof(struct wgmsg_initiation, sender), 4);
	crypto_random(out->nonce, sizeof(out->nonce));
	compute_cookie(c, remote, now_ns, cookie);
	xaead_seal(out->cookie, cookie, COOKIE_LEN, msg + macs_at(len), COOKIE_LEN, out->nonce,
		c->keys.cookie);
	crypto_wipe(cookie, sizeof(cookie));
}

void cookie_jar_init(struct cookie_jar *j, const uint8_t peer_public_key[32])
{
	memset(j, 0, sizeof(*j));
	j->public_key = peer_public_key;
}

void cookie_jar_wipe(struct cookie_jar *j)
{
	crypto_wipe(j, sizeof(*j));
}

void cookie_add_macs(struct cookie_jar *j, uint8_t *msg, size_t len, uint64_t now_ns)
{
	uint8_t *macs = msg + macs_at(len);
	struct cookie_keys keys;

	keys_init(&keys, j->public_key);
	compute_mac1(macs, &keys, msg, len);
	memcpy(j->last_mac1, macs, COOKIE_LEN);
	j->has_sent_mac1 = true;

	if (j->has_cookie && now_ns >= j->cookie_born_ns + COOKIE_USE_MAX_S * NSEC_PER_SEC) {
		crypto_wipe(j->cookie, sizeof(j->cookie));
		j->has_cookie = false;
	}
	if (j->has_cookie)
		compute_mac2(macs + COOKIE_LEN, j->cookie, msg, len);
	else
		memset(macs + COOKIE_LEN, 0, COOKIE_LEN);
}

bool cookie_take_reply(struct cookie_jar *j, const struct wgmsg_cookie *msg, uint64_t now_ns)
{
	uint8_t cookie[COOKIE_LEN];
	struct cookie_keys keys;
	bool ok;

	if (!j->has_sent_mac1)
		return false;
	keys_init(&keys, j->public_key);
	ok = xaead_open(cookie, msg->cookie, sizeof(msg->cookie), j->last_mac1, COOKIE_LEN,
		msg->nonce, keys.cookie);
	if (ok) {
		memcpy(j->cookie, cookie, COOKIE_LEN);
		j->cookie_born_ns = now_ns;
		j->has_cookie = true;
		j->has_sent_mac1 = false; /* one reply per message */
	}
	crypto_wipe(cookie, sizeof(cookie));
	return ok;
}
