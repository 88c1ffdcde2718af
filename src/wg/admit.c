/* See admit.h. The order of the steps is what keeps a flood cheap and harmless:
 * mac1 first, so that only who knows our key can use up a share; then the cookie,
 * which proves the address, so that shares after it are nobody else's; what is
 * given without such a proof is bounded in all and by source. */
#include "wg/admit.h"
#include "base/clock.h"

/* Linux: a device stays "under load" this long after the last sign of it. */
#define LOAD_MEMORY NSEC_PER_SEC
#define RATION_TOKEN (NSEC_PER_SEC / ADMIT_COOKIES_PER_SEC)

int admit_init(struct admit *a)
{
	static const struct ratelimit_rule plain = { ADMIT_PER_SEC, ADMIT_BURST, ADMIT_SETS };
	static const struct ratelimit_rule sources = { ADMIT_SOURCE_PER_SEC, ADMIT_SOURCE_BURST,
		ADMIT_SETS };
	static const struct ratelimit_rule cookies = { ADMIT_COOKIES_SOURCE_PER_SEC,
		ADMIT_COOKIES_SOURCE_BURST, ADMIT_COOKIES_SETS };
	int ret = ratelimit_init(&a->plain, &plain);

	if (!ret)
		ret = ratelimit_init(&a->clients, &plain);
	if (!ret)
		ret = ratelimit_init(&a->sources, &sources);
	if (!ret)
		ret = ratelimit_init(&a->cookies, &cookies);
	if (ret)
		admit_fini(a);
	return ret;
}

void admit_fini(struct admit *a)
{
	ratelimit_fini(&a->plain);
	ratelimit_fini(&a->clients);
	ratelimit_fini(&a->sources);
	ratelimit_fini(&a->cookies);
	cookie_checker_wipe(&a->checker);
}

void admit_set_key(struct admit *a, const uint8_t public_key[32])
{
	if (public_key)
		cookie_checker_init(&a->checker, public_key);
	else
		cookie_checker_wipe(&a->checker);
}

static void note_load(struct admit *a, uint64_t now_ns)
{
	a->load_ns = now_ns;
	a->has_load = true;
}

static bool is_under_load(struct admit *a, bool is_loaded, uint64_t now_ns)
{
	if (is_loaded)
		note_load(a, now_ns);
	else if (a->has_load && now_ns >= a->load_ns + LOAD_MEMORY)
		a->has_load = false;
	return a->has_load;
}

static enum admission judge_cookie(struct admit *a, const struct admit_in *in, uint64_t now_ns)
{
	if (bucket_take(&a->ration, RATION_TOKEN, ADMIT_COOKIES_BURST, now_ns))
		return ADMIT_COOKIE;
	/* More ask for cookies than we give: whoever the others are, it is no calm. */
	note_load(a, now_ns);
	return ratelimit_allow(&a->cookies, in->source, now_ns) ? ADMIT_COOKIE : ADMIT_LIMIT;
}

enum admission admit_judge(struct admit *a, const struct admit_in *in, uint64_t now_ns)
{
	bool has_load = is_under_load(a, in->is_loaded, now_ns);

	if (!cookie_check_mac1(&a->checker, in->msg, in->len))
		return ADMIT_BAD_MAC;
	if (in->is_expected)
		return ADMIT_YES;
	if (!has_load && ratelimit_allow(&a->plain, in->source, now_ns))
		return ADMIT_YES;
	if (!cookie_check_mac2(&a->checker, in->msg, in->len, in->remote, now_ns))
		return judge_cookie(a, in, now_ns);
	/* Its own share first: what that refuses does not count against its neighbours. */
	if (!ratelimit_allow(&a->clients, in->remote, now_ns) ||
		!ratelimit_allow(&a->sources, in->source, now_ns))
		return ADMIT_LIMIT;
	return ADMIT_YES;
}
