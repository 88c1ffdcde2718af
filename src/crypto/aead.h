/* Inside this folder only: what an AEAD back end is. aead.c chooses one. */
#ifndef CRYPTO_AEAD_H
#define CRYPTO_AEAD_H

#include "crypto/crypto.h"

enum { AEAD_NONCE = 12, AEAD_CHUNK = 64 /* jobs in flight */ };

struct aead_ops {
	const char *name;
	/* As the door's functions of the same name. create: -ENOTSUP when this
	 * CPU or library cannot. */
	int (*create)(struct aead **out);
	void (*destroy)(struct aead *a);
	void (*seal)(struct aead *a, const uint8_t *key, struct aead_job *jobs, size_t n);
	void (*open)(struct aead *a, const uint8_t *key, struct aead_job *jobs, size_t n);
	/* One message with any nonce and additional data, which batches have no
	 * use for: so that the RFC 8439 vector can be run as it is printed. */
	void (*seal_one)(struct aead *a, const uint8_t *key, const uint8_t nonce[AEAD_NONCE],
		const uint8_t *ad, size_t ad_len, struct aead_job *job);
};

/* The first member of every back end's own struct. */
struct aead {
	const struct aead_ops *ops;
};

extern const struct aead_ops aead_ossl_ops;
#ifdef HAVE_IPSEC_MB
extern const struct aead_ops aead_mb_ops;
#endif

/* Create one of the kind and run the RFC 8439 vector and a batch both ways
 * through it. 0; -ENOTSUP when it fails; what create returned otherwise. */
MUST_CHECK int aead_self_test(const struct aead_ops *ops);

/* WireGuard's nonce: four zero bytes, then the counter, little endian. */
void aead_nonce(uint8_t nonce[AEAD_NONCE], uint64_t counter);

#endif
