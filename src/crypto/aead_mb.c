/* How it works: Intel's Multi-Buffer library takes jobs through a manager that
 * belongs to one thread. ChaCha20-Poly1305 jobs are complete when submitted
 * (the vector code works within one message), yet we rely on no more than the
 * documented order, first in first out, and flush at the end of each chunk.
 * The checks that submit_job() makes are left out: every field is ours.
 *
 * Opening computes the tag too; it is compared here, in constant time. Keys are
 * read through a pointer; what is derived from them lives on the library's
 * stack and in registers, which it clears when built with SAFE_DATA, as
 * Debian's is. A library without it is refused. */
#include "crypto/aead.h"

#include "base/cpu.h"

#include <errno.h>
#include <intel-ipsec-mb.h>
#include <stdlib.h>

struct aead_mb {
	struct aead base;
	IMB_MGR *mgr;
	uint8_t nonce[AEAD_CHUNK][AEAD_NONCE];
	uint8_t tag[AEAD_CHUNK][CRYPTO_TAG]; /* what open computed */
};

/* init_mb_mgr_auto() does the same but for cpu_mask(). */
static void init_for_cpu(IMB_MGR *mgr)
{
	unsigned can = cpu_features();
	IMB_ARCH arch;

	if (can & CPU_AVX512)
		init_mb_mgr_auto(mgr, &arch);
	else if (can & CPU_AVX2)
		init_mb_mgr_avx2(mgr);
	else
		init_mb_mgr_sse(mgr);
}

static int mb_create(struct aead **out)
{
	const uint64_t need = IMB_FEATURE_SAFE_DATA | IMB_FEATURE_SELF_TEST_PASS;
	struct aead_mb *a;
	int ret = -ENOMEM;

	a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->mgr = alloc_mb_mgr(0);
	if (!a->mgr)
		goto free_a;
	init_for_cpu(a->mgr);
	ret = -ENOTSUP;
	if (imb_get_errno(a->mgr) || (a->mgr->features & need) != need)
		goto free_mgr;
	a->base.ops = &aead_mb_ops;
	*out = &a->base;
	return 0;

free_mgr:
	free_mb_mgr(a->mgr);
free_a:
	free(a);
	return ret;
}

static void mb_destroy(struct aead *base)
{
	struct aead_mb *a = CONTAINER_OF(base, struct aead_mb, base);

	free_mb_mgr(a->mgr);
	crypto_wipe(a, sizeof(*a));
	free(a);
}

static void fill(IMB_JOB *j, const uint8_t *key, const uint8_t *nonce, const struct aead_job *job)
{
	j->cipher_mode = IMB_CIPHER_CHACHA20_POLY1305;
	j->hash_alg = IMB_AUTH_CHACHA20_POLY1305;
	j->enc_keys = key;
	j->dec_keys = key;
	j->key_len_in_bytes = CRYPTO_KEY;
	j->iv = nonce;
	j->iv_len_in_bytes = AEAD_NONCE;
	j->src = job->text;
	j->dst = job->text;
	j->cipher_start_src_offset_in_bytes = 0;
	j->hash_start_src_offset_in_bytes = 0;
	j->msg_len_to_cipher_in_bytes = job->len;
	j->msg_len_to_hash_in_bytes = job->len;
	j->auth_tag_output_len_in_bytes = CRYPTO_TAG;
	j->u.CHACHA20_POLY1305.aad = NULL;
	j->u.CHACHA20_POLY1305.aad_len_in_bytes = 0;
}

static void aim_seal(IMB_JOB *j, uint8_t *tag)
{
	j->cipher_direction = IMB_DIR_ENCRYPT;
	j->chain_order = IMB_ORDER_CIPHER_HASH;
	j->auth_tag_output = tag;
}

static void aim_open(IMB_JOB *j, uint8_t *tag)
{
	j->cipher_direction = IMB_DIR_DECRYPT;
	j->chain_order = IMB_ORDER_HASH_CIPHER;
	j->auth_tag_output = tag;
}

/* Note a finished job's outcome: user_data is the bool to set. */
static void finish(const IMB_JOB *j)
{
	bool *is_ok = j->user_data;

	*is_ok = j->status == IMB_STATUS_COMPLETED;
}

static void submit(IMB_MGR *mgr)
{
	IMB_JOB *j = IMB_SUBMIT_JOB_NOCHECK(mgr);

	for (; j; j = IMB_GET_COMPLETED_JOB(mgr))
		finish(j);
}

static void flush(IMB_MGR *mgr)
{
	IMB_JOB *j;

	while ((j = IMB_FLUSH_JOB(mgr)))
		finish(j);
}

static void seal_chunk(struct aead_mb *a, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	IMB_JOB *j;
	size_t i;

	for (i = 0; i < n; i++) {
		aead_nonce(a->nonce[i], jobs[i].counter);
		j = IMB_GET_NEXT_JOB(a->mgr);
		fill(j, key, a->nonce[i], &jobs[i]);
		aim_seal(j, jobs[i].tag);
		j->user_data = &jobs[i].is_ok;
		submit(a->mgr);
	}
	flush(a->mgr);
}

static void open_chunk(struct aead_mb *a, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	IMB_JOB *j;
	size_t i;

	for (i = 0; i < n; i++) {
		aead_nonce(a->nonce[i], jobs[i].counter);
		j = IMB_GET_NEXT_JOB(a->mgr);
		fill(j, key, a->nonce[i], &jobs[i]);
		aim_open(j, a->tag[i]);
		j->user_data = &jobs[i].is_ok;
		submit(a->mgr);
	}
	flush(a->mgr);
	for (i = 0; i < n; i++)
		jobs[i].is_ok = jobs[i].is_ok && crypto_equal(a->tag[i], jobs[i].tag, CRYPTO_TAG);
}

static void mb_seal(struct aead *base, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	struct aead_mb *a = CONTAINER_OF(base, struct aead_mb, base);

	for (; n > AEAD_CHUNK; jobs += AEAD_CHUNK, n -= AEAD_CHUNK)
		seal_chunk(a, key, jobs, AEAD_CHUNK);
	seal_chunk(a, key, jobs, n);
}

static void mb_open(struct aead *base, const uint8_t *key, struct aead_job *jobs, size_t n)
{
	struct aead_mb *a = CONTAINER_OF(base, struct aead_mb, base);

	for (; n > AEAD_CHUNK; jobs += AEAD_CHUNK, n -= AEAD_CHUNK)
		open_chunk(a, key, jobs, AEAD_CHUNK);
	open_chunk(a, key, jobs, n);
}

static void mb_seal_one(struct aead *base, const uint8_t *key, const uint8_t nonce[AEAD_NONCE],
	const uint8_t *ad, size_t ad_len, struct aead_job *job)
{
	struct aead_mb *a = CONTAINER_OF(base, struct aead_mb, base);
	IMB_JOB *j = IMB_GET_NEXT_JOB(a->mgr);

	fill(j, key, nonce, job);
	aim_seal(j, job->tag);
	j->u.CHACHA20_POLY1305.aad = ad;
	j->u.CHACHA20_POLY1305.aad_len_in_bytes = ad_len;
	j->user_data = &job->is_ok;
	submit(a->mgr);
	flush(a->mgr);
}

const struct aead_ops aead_mb_ops = {
	.name = "ipsec-mb",
	.create = mb_create,
	.destroy = mb_destroy,
	.seal = mb_seal,
	.open = mb_open,
	.seal_one = mb_seal_one,
};
