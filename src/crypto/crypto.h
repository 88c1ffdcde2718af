/* The door to all cryptography. Back ends are libraries: Intel IPsec-MB for
 * AEAD batches where the CPU can, OpenSSL 3 otherwise and for everything else.
 * crypto_init() chooses; the rest is safe from any thread after it, except that
 * a struct aead belongs to one thread. */
#ifndef CRYPTO_CRYPTO_H
#define CRYPTO_CRYPTO_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CRYPTO_KEY = 32, /* bytes of an AEAD key, of an X25519 key */
	CRYPTO_TAG = 16,
	CRYPTO_HASH = 32, /* BLAKE2s-256 */
};

/* Choose the AEAD back end: "ipsec-mb", "openssl", or NULL for the best one
 * that passes the RFC 8439 vector on this CPU. 0; -EINVAL for an unknown name;
 * -ENOTSUP when the named one cannot run here. Call once, before threads. */
MUST_CHECK int crypto_init(const char *aead);
/* The chosen back end's name, for logs and --version. */
const char *crypto_aead_name(void);

/* Wipe secrets in a way the compiler keeps. */
void crypto_wipe(void *p, size_t len);
/* Constant-time comparison. */
bool crypto_equal(const void *a, const void *b, size_t len);
/* Random bytes from the kernel's generator (through OpenSSL's). Aborts if there is none. */
void crypto_random(void *out, size_t len);

/* ---- AEAD batches: ChaCha20-Poly1305 (RFC 8439), in place, no additional
 * data, WireGuard's nonce (four zero bytes, then the counter little endian). */
struct aead;

struct aead_job {
	uint8_t *text; /* plaintext or ciphertext, changed in place */
	uint32_t len; /* bytes of it; may be 0 */
	uint64_t counter; /* nonce */
	uint8_t *tag; /* 16 bytes: written by seal, read by open */
	bool is_ok; /* open: the tag was right. Otherwise text is undefined. */
};

/* Per-thread state. 0, -ENOMEM. */
MUST_CHECK int aead_create(struct aead **out);
void aead_destroy(struct aead *a);
/* All n jobs under one key. seal sets is_ok as well. No allocation. */
void aead_seal(struct aead *a, const uint8_t key[CRYPTO_KEY], struct aead_job *jobs, size_t n);
void aead_open(struct aead *a, const uint8_t key[CRYPTO_KEY], struct aead_job *jobs, size_t n);

/* ---- One-shot AEAD with additional data, for handshakes. dst has room for
 * len + 16 (seal) or len - 16 (open; len includes the tag); dst may equal src. */
void aead_seal_ad(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	uint64_t counter, const uint8_t key[CRYPTO_KEY]);
MUST_CHECK bool aead_open_ad(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad,
	size_t ad_len, uint64_t counter, const uint8_t key[CRYPTO_KEY]);
/* XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03): HChaCha20 in front of the above. */
void xaead_seal(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad, size_t ad_len,
	const uint8_t nonce[24], const uint8_t key[CRYPTO_KEY]);
MUST_CHECK bool xaead_open(uint8_t *dst, const uint8_t *src, size_t len, const uint8_t *ad,
	size_t ad_len, const uint8_t nonce[24], const uint8_t key[CRYPTO_KEY]);
/* draft-irtf-cfrg-xchacha-03 section 2.2. */
void hchacha20(uint8_t out[32], const uint8_t key[CRYPTO_KEY], const uint8_t nonce[16]);

/* ---- X25519 (RFC 7748). false when the result is all zero (low-order point). */
MUST_CHECK bool x25519(uint8_t out[32], const uint8_t secret[32], const uint8_t point[32]);
/* Public key of a secret; secret need not be clamped. */
void x25519_base(uint8_t out[32], const uint8_t secret[32]);
/* RFC 7748 section 5. */
void x25519_clamp(uint8_t secret[32]);

/* ---- BLAKE2s (RFC 7693) and HKDF as WireGuard uses them. */
struct span {
	const void *p;
	size_t len;
};
/* BLAKE2s-256 of the spans laid end to end. */
void blake2s(uint8_t out[CRYPTO_HASH], const struct span *in, size_t n);
/* Keyed BLAKE2s with 16 bytes of output: the Mac() of the WireGuard paper. key_len <= 32. */
void blake2s_mac(
	uint8_t out[16], const uint8_t *key, size_t key_len, const struct span *in, size_t n);
/* HMAC-BLAKE2s. */
void hmac_blake2s(uint8_t out[CRYPTO_HASH], const uint8_t *key, size_t key_len,
	const struct span *in, size_t n);
/* Kdf_n of the paper, section 5.4: n (1..3) outputs of 32 bytes. out[i] may alias chain. */
void kdf(uint8_t *const out[], size_t n, const uint8_t chain[CRYPTO_HASH], const uint8_t *in,
	size_t in_len);

#endif
