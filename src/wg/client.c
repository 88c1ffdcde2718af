/* Clients without a device: the initiator's half of a handshake and of a session, and
 * nothing else.
 *
 * An index is the client's number in its low bits and a generation above them, so that
 * a message finds its client without a table, and what is late for an earlier
 * handshake is refused. Only the handshake's own message and the DH of the static keys
 * are kept besides what noise.h and cookie.h need: the first for wg_clients_again,
 * the second since every handshake of the client mixes it in. */
#include "base/clock.h"
#include "crypto/crypto.h"
#include "wg/cookie.h"
#include "wg/noise.h"
#include "wg/wg.h"
#include <errno.h>
#include <stdlib.h>

enum {
	NUMBER_BITS = 20,
	NUMBER_MASK = (1 << NUMBER_BITS) - 1,
	SEAL_JOBS = 64, /* packets per AEAD batch */
};

static_assert((int)WG_CLIENTS_MAX == 1 << NUMBER_BITS, "index");

struct client {
	uint64_t counter; /* of the next message sent */
	struct cookie_jar jar;
	struct noise_handshake handshake;
	struct wgmsg_initiation msg; /* of the handshake under way */
	uint8_t secret[NOISE_KEY];
	uint8_t public_key[NOISE_KEY];
	uint8_t static_static[NOISE_KEY];
	uint8_t send_key[NOISE_KEY];
	uint8_t recv_key[NOISE_KEY];
	uint32_t handshake_index; /* of the latest handshake */
	uint32_t local_index, remote_index; /* of the session */
	bool has_public_key;
	bool has_static_static;
	bool has_session;
};

struct wg_clients {
	size_t n;
	uint8_t server_key[NOISE_KEY];
	struct client client[];
};

static struct client *at(struct wg_clients *c, size_t i)
{
	assert(i < c->n);
	return &c->client[i];
}

int wg_clients_create(
	struct wg_clients **out, size_t n, const uint8_t server_public_key[WG_KEY_LEN])
{
	uint8_t secret[NOISE_KEY], shared[NOISE_KEY];
	struct wg_clients *c;

	if (n == 0 || n > WG_CLIENTS_MAX)
		return -EINVAL;
	/* What is of low order is so for every secret. */
	crypto_random(secret, sizeof(secret));
	x25519_clamp(secret);
	if (!x25519(shared, secret, server_public_key))
		return -EINVAL;
	c = calloc(1, sizeof(*c) + n * sizeof(c->client[0]));
	if (!c)
		return -ENOMEM;
	c->n = n;
	memcpy(c->server_key, server_public_key, sizeof(c->server_key));
	for (size_t i = 0; i < n; i++) {
		crypto_random(c->client[i].secret, NOISE_KEY);
		x25519_clamp(c->client[i].secret);
		cookie_jar_init(&c->client[i].jar, c->server_key);
		c->client[i].handshake_index = (uint32_t)i;
	}
	crypto_wipe(secret, sizeof(secret));
	crypto_wipe(shared, sizeof(shared));
	*out = c;
	return 0;
}

void wg_clients_destroy(struct wg_clients *c)
{
	if (!c)
		return;
	crypto_wipe(c, sizeof(*c) + c->n * sizeof(c->client[0]));
	free(c);
}

static void know_public_key(struct client *cl)
{
	if (!cl->has_public_key)
		x25519_base(cl->public_key, cl->secret);
	cl->has_public_key = true;
}

void wg_clients_public_key(struct wg_clients *c, size_t i, uint8_t out[WG_KEY_LEN])
{
	know_public_key(at(c, i));
	memcpy(out, at(c, i)->public_key, WG_KEY_LEN);
}

/* The client and its server as noise.h wants them. Wipe both. */
static void introduce(const struct wg_clients *c, struct client *cl, struct noise_identity *id,
	struct noise_peer *server)
{
	know_public_key(cl);
	/* Its hash is not needed: that is for who responds. */
	memset(id, 0, sizeof(*id));
	id->has_key = true;
	memcpy(id->secret, cl->secret, NOISE_KEY);
	memcpy(id->public_key, cl->public_key, NOISE_KEY);
	noise_peer_init(server, c->server_key, NULL);
	if (cl->has_static_static) {
		memcpy(server->static_static, cl->static_static, NOISE_KEY);
		server->is_known = server->is_usable = true;
	} else if (noise_peer_is_usable(server, id)) {
		memcpy(cl->static_static, server->static_static, NOISE_KEY);
		cl->has_static_static = true;
	}
}

void wg_clients_initiate(struct wg_clients *c, size_t i, uint64_t now_ns, uint64_t wall_ns,
	uint8_t msg[WGMSG_INITIATION_LEN])
{
	struct client *cl = at(c, i);
	struct noise_identity id;
	struct noise_peer server;
	uint8_t stamp[TAI64N_LEN];
	bool ok;

	introduce(c, cl, &id, &server);
	cl->handshake_index += 1u << NUMBER_BITS;
	tai64n_encode(stamp, wall_ns);
	ok = noise_create_initiation(
		&cl->handshake, &id, &server, cl->handshake_index, stamp, &cl->msg);
	assert(ok); /* the server's key was tried when the clients were created */
	cookie_add_macs(&cl->jar, (uint8_t *)&cl->msg, sizeof(cl->msg), now_ns);
	memcpy(msg, &cl->msg, sizeof(cl->msg));
	crypto_wipe(&id, sizeof(id));
	noise_peer_wipe(&server);
}

bool wg_clients_again(
	struct wg_clients *c, size_t i, uint64_t now_ns, uint8_t msg[WGMSG_INITIATION_LEN])
{
	struct client *cl = at(c, i);

	if (cl->handshake.state != NOISE_INITIATION_SENT)
		return false;
	cookie_add_macs(&cl->jar, (uint8_t *)&cl->msg, sizeof(cl->msg), now_ns);
	memcpy(msg, &cl->msg, sizeof(cl->msg));
	return true;
}

bool wg_clients_find(const struct wg_clients *c, const uint8_t *msg, size_t len, size_t *out)
{
	uint32_t index;

	switch (wgmsg_gate(msg, len)) {
	case WGMSG_RESPONSE:
		index = get_le32(msg + offsetof(struct wgmsg_response, receiver));
		break;
	case WGMSG_COOKIE:
		index = get_le32(msg + offsetof(struct wgmsg_cookie, receiver));
		break;
	case WGMSG_DATA:
		index = get_le32(msg + offsetof(struct wgmsg_data, receiver));
		break;
	default:
		return false;
	}
	*out = index & NUMBER_MASK;
	return *out < c->n;
}

uint32_t wg_clients_local_index(const struct wg_clients *c, size_t i)
{
	assert(i < c->n);
	return c->client[i].handshake_index;
}

static enum wg_client_event take_response(
	struct wg_clients *c, struct client *cl, const uint8_t *bytes)
{
	struct noise_handshake *hs = &cl->handshake;
	struct wgmsg_response msg;
	struct noise_identity id;
	struct noise_peer server;
	bool ok, is_initiator;

	memcpy(&msg, bytes, sizeof(msg));
	introduce(c, cl, &id, &server);
	ok = noise_consume_response(hs, &id, &server, &msg);
	if (ok) {
		cl->local_index = hs->local_index;
		cl->remote_index = hs->remote_index;
		cl->counter = 0;
		cl->has_session =
			noise_begin_session(hs, cl->send_key, cl->recv_key, &is_initiator);
		assert(cl->has_session);
	}
	crypto_wipe(&id, sizeof(id));
	noise_peer_wipe(&server);
	return ok ? WG_CLIENT_SESSION : WG_CLIENT_REFUSED;
}

static enum wg_client_event take_cookie(struct client *cl, const uint8_t *bytes, uint64_t now_ns)
{
	struct wgmsg_cookie msg;

	memcpy(&msg, bytes, sizeof(msg));
	/* Bound to the last MAC we sent: the index has nothing to add. */
	return cookie_take_reply(&cl->jar, &msg, now_ns) ? WG_CLIENT_COOKIE : WG_CLIENT_REFUSED;
}

enum wg_client_event wg_clients_take(
	struct wg_clients *c, size_t i, const uint8_t *msg, size_t len, uint64_t now_ns)
{
	switch (wgmsg_gate(msg, len)) {
	case WGMSG_RESPONSE:
		return take_response(c, at(c, i), msg);
	case WGMSG_COOKIE:
		return take_cookie(at(c, i), msg, now_ns);
	default:
		return WG_CLIENT_REFUSED;
	}
}

static void seal_batch(struct client *cl, struct aead *aead, struct wg_packet *pkts, size_t n)
{
	struct aead_job jobs[SEAL_JOBS];

	for (size_t i = 0; i < n; i++) {
		struct wg_packet *p = &pkts[i];
		uint32_t padded = (p->len + 15) & ~15u;
		uint8_t *msg = p->data - WGMSG_DATA_HDR;

		memset(p->data + p->len, 0, padded - p->len);
		put_le32(msg, WGMSG_DATA);
		put_le32(msg + 4, cl->remote_index);
		put_le64(msg + 8, cl->counter);
		jobs[i] = (struct aead_job){ p->data, padded, cl->counter++, p->data + padded,
			false };
		p->data = msg;
		p->len = padded + WGMSG_DATA_MIN;
	}
	aead_seal(aead, cl->send_key, jobs, n);
}

bool wg_clients_seal(
	struct wg_clients *c, size_t i, struct aead *aead, struct wg_packet *pkts, size_t n)
{
	struct client *cl = at(c, i);

	if (!cl->has_session)
		return false;
	for (size_t done = 0, part; done < n; done += part) {
		part = n - done < SEAL_JOBS ? n - done : SEAL_JOBS;
		seal_batch(cl, aead, pkts + done, part);
	}
	return true;
}

bool wg_clients_open(struct wg_clients *c, size_t i, struct aead *aead, struct wg_packet *pkt)
{
	struct client *cl = at(c, i);
	struct aead_job job = { 0 };

	if (!cl->has_session || wgmsg_gate(pkt->data, pkt->len) != WGMSG_DATA ||
		get_le32(pkt->data + 4) != cl->local_index)
		return false;
	job.text = pkt->data + WGMSG_DATA_HDR;
	job.len = pkt->len - WGMSG_DATA_MIN;
	job.tag = job.text + job.len;
	job.counter = get_le64(pkt->data + 8);
	aead_open(aead, cl->recv_key, &job, 1);
	if (!job.is_ok)
		return false;
	pkt->data = job.text;
	pkt->len = job.len;
	return true;
}
