/* Each contestant is a back end at one length. It seals the same batch of
 * packets over and over under new nonces, as a train is sealed. An AEAD context
 * keeps the back end under which it was made, so all are made first; there is
 * one thread here, so that choosing more than once is safe. */
#include "bench/ciphers.h"
#include "base/clock.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CIPHER_BATCH = 45, LEN_MAX = 1420, SLOT = LEN_MAX + CRYPTO_TAG };

static const struct cipher_case {
	const char *name; /* back end */
	uint32_t len;
	const char *claim; /* the design's measurement */
} cases[] = {
	{ "ipsec-mb", 64, "113 on the design's machine" },
	{ "ipsec-mb", 1420, "464 on the design's machine" },
	{ "openssl", 64, "580 on the design's machine" },
	{ "openssl", 1420, "1159 on the design's machine" },
};

struct cipher {
	const struct cipher_case *what;
	char id[REPORT_ID_MAX];
	struct report *report;
	struct aead *aead;
	uint8_t *text; /* shared by all: CIPHER_BATCH slots */
	uint64_t nonce; /* never the same twice under the key */
	uint8_t key[CRYPTO_KEY];
};

static int turn(void *ctx, struct slice *s)
{
	struct cipher *c = ctx;
	struct aead_job jobs[CIPHER_BATCH];
	uint64_t i;
	size_t k;

	for (k = 0; k < CIPHER_BATCH; k++) {
		jobs[k].text = c->text + k * SLOT;
		jobs[k].len = c->what->len;
		jobs[k].tag = jobs[k].text + c->what->len;
	}
	slice_begin(s);
	for (i = 0; i < s->n; i++) {
		for (k = 0; k < CIPHER_BATCH; k++)
			jobs[k].counter = c->nonce++;
		aead_seal(c->aead, c->key, jobs, CIPHER_BATCH);
	}
	slice_end(s);
	return 0;
}

static void took(void *ctx, const struct slice *s)
{
	struct cipher *c = ctx;

	figure_sample(report_figure(c->report, c->id, "ns", c->what->claim),
		(double)s->cpu_ns / (double)(s->n * CIPHER_BATCH));
}

/* Contestants for the cases that this CPU can run; the others are skipped. */
static size_t gather(struct scene *s, uint8_t *text, struct cipher *ciphers, struct contestant *out)
{
	struct cipher *c;
	size_t i, n = 0;
	int ret;

	for (i = 0; i < ARRAY_LEN(cases); i++) {
		c = &ciphers[i];
		*c = (struct cipher){ .what = &cases[i], .report = s->report, .text = text };
		snprintf(c->id, sizeof(c->id), "aead_%s_%u_ns", cases[i].name, cases[i].len);
		crypto_random(c->key, sizeof(c->key));
		ret = crypto_init(cases[i].name);
		if (!ret)
			ret = aead_create(&c->aead);
		if (ret < 0)
			report_skip(s->report, c->id, "%s cannot run here: %s", cases[i].name,
				strerror(-ret));
		else
			out[n++] = (struct contestant){ c->id, turn, took, c };
	}
	return n;
}

int ciphers_run(struct scene *s)
{
	struct rounds rounds = {
		.warm_ns = 5 * NSEC_PER_MSEC,
		.turn_ns = (s->is_quick ? 40 : 100) * NSEC_PER_MSEC,
		.n = s->is_quick ? 3 : 9,
		.progress = s->progress,
	};
	struct contestant contestants[ARRAY_LEN(cases)];
	struct cipher ciphers[ARRAY_LEN(cases)];
	uint8_t *text = calloc(CIPHER_BATCH, SLOT);
	size_t i, n;
	int ret;

	if (!text)
		return -ENOMEM;
	n = gather(s, text, ciphers, contestants);
	ret = rounds_run(&rounds, contestants, n);
	for (i = 0; i < ARRAY_LEN(ciphers); i++)
		aead_destroy(ciphers[i].aead);
	crypto_wipe(ciphers, sizeof(ciphers));
	free(text);
	return ret;
}
