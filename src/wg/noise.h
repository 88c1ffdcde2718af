/* The handshake Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s (WireGuard paper, section
 * 5.4): four structs and the calls that move a handshake from state to state.
 * Pure but for the random ephemeral keys. The caller serialises (the device's
 * lock); nothing here allocates. Cookies and MACs are cookie.h. */
#ifndef WG_NOISE_H
#define WG_NOISE_H

#include "base/compiler.h"
#include "wg/tai64n.h"
#include "wire/wgmsg.h"
#include <stdbool.h>
#include <stdint.h>

enum {
	NOISE_KEY = 32,
	NOISE_HASH = 32,
	NOISE_INITIATIONS_PER_SEC = 50, /* of one peer; more is a flood */
};

/* Who we are. */
struct noise_identity {
	bool has_key;
	uint8_t secret[NOISE_KEY]; /* clamped */
	uint8_t public_key[NOISE_KEY];
	uint8_t hash[NOISE_HASH]; /* transcript of a handshake towards us, before its first message
				   */
};

/* What handshakes with one peer have in common. */
struct noise_peer {
	uint8_t public_key[NOISE_KEY];
	uint8_t static_static[NOISE_KEY]; /* DH of both static keys, computed when first needed */
	uint8_t psk[NOISE_KEY]; /* all zero: none */
	bool is_known; /* the two around are computed, for the identity we have */
	bool is_usable; /* false: no identity, or a low-order key; no message is ever made or taken
			 */
	bool has_initiation; /* the two below are valid */
	uint8_t last_timestamp[TAI64N_LEN]; /* greatest stamp that an initiation of it carried */
	uint64_t last_initiation_ns; /* when that initiation was taken */
};

enum noise_state {
	NOISE_IDLE, /* Nothing but zeros. May create or commit an initiation. */
	NOISE_INITIATION_SENT,
	/* We wait for the response and hold our ephemeral secret. May consume a
	 * response (any number of forged ones changes nothing), create a new
	 * initiation, or commit one of the peer's, which drops ours. */
	NOISE_INITIATION_TAKEN,
	/* The peer's initiation was committed. May create the response; must not
	 * derive keys. A newer initiation of either side replaces it. */
	NOISE_RESPONSE_SENT,
	/* We answered. May begin the session (as responder), once. */
	NOISE_RESPONSE_TAKEN,
	/* The response authenticated. May begin the session (as initiator), once. */
};

/* One handshake under way. All zero is NOISE_IDLE. */
struct noise_handshake {
	enum noise_state state;
	uint32_t local_index;
	uint32_t remote_index;
	uint8_t ephemeral[NOISE_KEY]; /* secret */
	uint8_t remote_ephemeral[NOISE_KEY];
	uint8_t hash[NOISE_HASH];
	uint8_t chain[NOISE_HASH];
};

/* An initiation that is being taken; on the caller's stack. Wipe it. */
struct noise_transcript {
	uint32_t remote_index;
	uint8_t remote_ephemeral[NOISE_KEY];
	uint8_t hash[NOISE_HASH];
	uint8_t chain[NOISE_HASH];
};

/* Set (or, with NULL or all zero, remove) our key. Peers must be told by
 * noise_peer_forget_identity, handshakes under way be cleared. */
void noise_identity_set(struct noise_identity *id, const uint8_t secret[NOISE_KEY]);

/* psk NULL: none. No X25519: 100,000 peers are configured at once. */
void noise_peer_init(
	struct noise_peer *p, const uint8_t public_key[NOISE_KEY], const uint8_t psk[NOISE_KEY]);
/* Our key changed: what was computed with the old one is wiped. */
void noise_peer_forget_identity(struct noise_peer *p);
/* Can there be a handshake with it? One X25519 at the first call for an identity. */
MUST_CHECK bool noise_peer_is_usable(struct noise_peer *p, const struct noise_identity *id);
void noise_peer_set_psk(struct noise_peer *p, const uint8_t psk[NOISE_KEY]);
void noise_peer_wipe(struct noise_peer *p);

/* Forget a handshake: wipes all of it. */
void noise_handshake_clear(struct noise_handshake *hs);

/* Our initiation to the peer, all but its MACs (cookie_add_macs). Any earlier
 * handshake in hs is forgotten. 2 X25519. false when the peer is not usable:
 * then hs is idle and *out zero. */
MUST_CHECK bool noise_create_initiation(struct noise_handshake *hs, const struct noise_identity *id,
	struct noise_peer *p, uint32_t local_index, const uint8_t timestamp[TAI64N_LEN],
	struct wgmsg_initiation *out);

/* Taking an initiation, three steps; the MACs have been checked already.
 *  1. noise_open_initiation: who claims to send it? Needs the identity only. 1 X25519.
 *  2. noise_open_timestamp: with the peer found by that key, proves that it holds
 *     the static key. No X25519 but the peer's first. Then noise_judge_timestamp: replay, flood?
 *  3. noise_commit_initiation: it becomes the peer's handshake.
 * Wherever it ends, noise_transcript_wipe. */
MUST_CHECK bool noise_open_initiation(struct noise_transcript *t, const struct noise_identity *id,
	const struct wgmsg_initiation *msg, uint8_t peer_key[NOISE_KEY]);
MUST_CHECK bool noise_open_timestamp(struct noise_transcript *t, const struct noise_identity *id,
	struct noise_peer *p, const struct wgmsg_initiation *msg, uint8_t timestamp[TAI64N_LEN]);

enum noise_verdict {
	NOISE_FRESH,
	NOISE_REPLAY, /* stamp not newer than the last one taken */
	NOISE_FLOOD, /* less than 1/50 s after the last one taken */
};
enum noise_verdict noise_judge_timestamp(
	const struct noise_peer *p, const uint8_t timestamp[TAI64N_LEN], uint64_t now_ns);

/* Replaces whatever hs held; remembers stamp and time in p. */
void noise_commit_initiation(struct noise_handshake *hs, struct noise_peer *p,
	const struct noise_transcript *t, const uint8_t timestamp[TAI64N_LEN], uint64_t now_ns);
void noise_transcript_wipe(struct noise_transcript *t);

/* Our response, all but its MACs. 3 X25519. false in any other state than
 * NOISE_INITIATION_TAKEN and for low-order keys; then hs is idle. */
MUST_CHECK bool noise_create_response(struct noise_handshake *hs, const struct noise_peer *p,
	uint32_t local_index, struct wgmsg_response *out);

/* The response to our initiation, its MACs checked already. 2 X25519. false:
 * wrong state, wrong receiver or not authentic; then hs is as it was. */
MUST_CHECK bool noise_consume_response(struct noise_handshake *hs, const struct noise_identity *id,
	const struct noise_peer *p, const struct wgmsg_response *msg);

/* Keys of the session; wipes hs (the caller takes the two indices out before).
 * false in any state but NOISE_RESPONSE_SENT and NOISE_RESPONSE_TAKEN. */
MUST_CHECK bool noise_begin_session(struct noise_handshake *hs, uint8_t send_key[NOISE_KEY],
	uint8_t recv_key[NOISE_KEY], bool *is_initiator);

#endif
