/* A WireGuard device in memory, for benches: what it sends is kept in an
 * outbox, and time is what the caller says. One thread, which must be an RCU
 * reader. */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include "base/compiler.h"
#include "wg/wg.h"
#include <stdint.h>

enum {
	DEVICE_OUTBOX_MAX = 256, /* messages; full: the newest is lost and counted */
	DEVICE_MESSAGE_MAX = 256, /* bytes; longer: the same */
	DEVICE_MTU = 1420,
};

/* The clocks that a device is told. */
struct fake_time {
	uint64_t now_ns;
	uint64_t wall_ns;
};

struct device_message {
	uint8_t data[DEVICE_MESSAGE_MAX];
	size_t len;
	enum wg_msg_kind kind;
};

struct device {
	struct wg *wg;
	struct wg_worker *worker;
	struct device_message outbox[DEVICE_OUTBOX_MAX];
	size_t n_out;
	size_t n_lost;
};

struct device_identity {
	uint8_t secret[WG_KEY_LEN];
	uint8_t public_key[WG_KEY_LEN];
};

/* A new time: a day after the machine's start, in 2026. */
void fake_time_init(struct fake_time *t);
void fake_time_pass(struct fake_time *t, uint64_t ns);

/* A random identity. crypto_init() has been called. */
void device_identity_make(struct device_identity *id);

/* Up, with that identity and no peer. 0 or negative errno. */
MUST_CHECK int device_create(
	struct device **out, const struct device_identity *id, const struct fake_time *t);
void device_destroy(struct device *d);

/* Become someone else: the sessions end, the peers stay. */
MUST_CHECK int device_become(
	struct device *d, const struct device_identity *id, const struct fake_time *t);
/* A peer that has the inner IPv4 address (host order) and is found at endpoint
 * number `source`. */
MUST_CHECK int device_add_peer(struct device *d, const uint8_t public_key[WG_KEY_LEN],
	uint32_t inner_ip, uint32_t source, const struct fake_time *t);

/* Endpoint number `source`: each is a source of its own to rate limits. */
void device_endpoint(struct wg_endpoint *e, uint32_t source);

/* The peer that has that inner address (host order). NULL for none. */
struct wg_peer *device_route(struct device *d, uint32_t inner_ip);

/* An IPv4 packet of len bytes (20 at least) in full, zeros after its header. */
void inner_packet(uint8_t *out, size_t len, uint32_t src_ip, uint32_t dst_ip);

#endif
