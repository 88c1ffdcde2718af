/* The four WireGuard messages (WireGuard paper, section 5.4) and the gate that
 * every datagram passes first. Pure, any thread. */
#ifndef WIRE_WGMSG_H
#define WIRE_WGMSG_H

#include "base/bytes.h"
#include "base/compiler.h"

enum wgmsg_type {
	WGMSG_INITIATION = 1,
	WGMSG_RESPONSE = 2,
	WGMSG_COOKIE = 3,
	WGMSG_DATA = 4,
};

/* All fields little endian. The type byte and its three reserved zero bytes
 * are one 32-bit word. */
struct wgmsg_macs {
	uint8_t mac1[16];
	uint8_t mac2[16];
};

struct wgmsg_initiation {
	uint32_t type;
	uint32_t sender;
	uint8_t ephemeral[32];
	uint8_t static_key[32 + 16];
	uint8_t timestamp[12 + 16];
	struct wgmsg_macs macs;
};

struct wgmsg_response {
	uint32_t type;
	uint32_t sender;
	uint32_t receiver;
	uint8_t ephemeral[32];
	uint8_t nothing[16];
	struct wgmsg_macs macs;
};

struct wgmsg_cookie {
	uint32_t type;
	uint32_t receiver;
	uint8_t nonce[24];
	uint8_t cookie[16 + 16];
};

struct wgmsg_data {
	uint32_t type;
	uint32_t receiver;
	uint64_t counter;
};

enum {
	WGMSG_INITIATION_LEN = 148,
	WGMSG_RESPONSE_LEN = 92,
	WGMSG_COOKIE_LEN = 64,
	WGMSG_DATA_HDR = 16, /* bytes before the ciphertext */
	WGMSG_DATA_TAG = 16, /* bytes after it */
	WGMSG_DATA_MIN = WGMSG_DATA_HDR + WGMSG_DATA_TAG, /* a keepalive */
};

static_assert(sizeof(struct wgmsg_initiation) == WGMSG_INITIATION_LEN, "wire");
static_assert(sizeof(struct wgmsg_response) == WGMSG_RESPONSE_LEN, "wire");
static_assert(sizeof(struct wgmsg_cookie) == WGMSG_COOKIE_LEN, "wire");
static_assert(sizeof(struct wgmsg_data) == WGMSG_DATA_HDR, "wire");

/* What a datagram is by its first word and its length; 0 for none of the four
 * (unknown type, a reserved byte set, wrong length). */
static inline enum wgmsg_type wgmsg_gate(const uint8_t *msg, size_t len)
{
	if (len < WGMSG_DATA_MIN)
		return 0;
	switch (get_le32(msg)) {
	case WGMSG_INITIATION:
		return len == WGMSG_INITIATION_LEN ? WGMSG_INITIATION : 0;
	case WGMSG_RESPONSE:
		return len == WGMSG_RESPONSE_LEN ? WGMSG_RESPONSE : 0;
	case WGMSG_COOKIE:
		return len == WGMSG_COOKIE_LEN ? WGMSG_COOKIE : 0;
	case WGMSG_DATA:
		return WGMSG_DATA;
	default:
		return 0;
	}
}

#endif
