/* See change.h. Both arrays double when they are full, so that n sections cost
 * O(n). Peers are filled one after the other, so the addresses of all of them
 * lie end to end in one array; the pointers into it are set at the end, when
 * the array moves no more. Old copies are wiped: they hold preshared keys. */
#include "gateway/change.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 4 };

void gateway_change_init(struct gateway_change *c)
{
	memset(c, 0, sizeof(*c));
}

void gateway_change_fini(struct gateway_change *c)
{
	if (c->wg.peers)
		crypto_wipe(c->wg.peers, c->wg.n_peers * sizeof(*c->wg.peers));
	free(c->wg.peers);
	free(c->allowed);
	crypto_wipe(c, sizeof(*c));
}

/* Room for one more element. array and cap are changed only on success. */
static int grow(void **array, size_t *cap, size_t n, size_t max, size_t elem_len)
{
	size_t new_cap = *cap ? *cap * 2 : FIRST_CAP;
	void *p;

	if (n < *cap)
		return 0;
	if (n >= max)
		return -E2BIG;
	p = malloc(new_cap * elem_len);
	if (!p)
		return -ENOMEM;
	if (*array) {
		memcpy(p, *array, n * elem_len);
		crypto_wipe(*array, n * elem_len);
	}
	free(*array);
	*array = p;
	*cap = new_cap;
	return 0;
}

int gateway_change_add_peer(struct gateway_change *c, struct wg_peer_change **out)
{
	void *peers = c->wg.peers;
	int ret = grow(&peers, &c->peers_cap, c->wg.n_peers, CHANGE_PEERS_MAX, sizeof(**out));

	if (ret)
		return ret;
	c->wg.peers = peers;
	*out = &c->wg.peers[c->wg.n_peers++];
	memset(*out, 0, sizeof(**out));
	return 0;
}

struct wg_peer_change *gateway_change_peer(struct gateway_change *c)
{
	assert(c->wg.n_peers > 0);
	return &c->wg.peers[c->wg.n_peers - 1];
}

int gateway_change_add_allowed(struct gateway_change *c, const struct prefix *net, bool is_removal)
{
	void *allowed = c->allowed;
	int ret = grow(
		&allowed, &c->allowed_cap, c->n_allowed, CHANGE_ALLOWED_MAX, sizeof(*c->allowed));

	if (ret)
		return ret;
	c->allowed = allowed;
	c->allowed[c->n_allowed++] = (struct wg_allowed_change){ *net, is_removal };
	gateway_change_peer(c)->n_allowed++;
	return 0;
}

void gateway_change_replace_allowed(struct gateway_change *c)
{
	struct wg_peer_change *p = gateway_change_peer(c);

	c->n_allowed -= p->n_allowed;
	p->n_allowed = 0;
	p->replaces_allowed = true;
}

void gateway_change_finish(struct gateway_change *c)
{
	size_t first = 0;

	for (size_t i = 0; i < c->wg.n_peers; i++) {
		struct wg_peer_change *p = &c->wg.peers[i];

		p->allowed = p->n_allowed ? &c->allowed[first] : NULL;
		first += p->n_allowed;
	}
	assert(first == c->n_allowed);
}
