/* The clients' addresses are a whole network that is routed to the loopback of their
 * namespace (AnyIP): no interface has 65,536 addresses. What the clients send inside
 * their tunnels is for an address that the gateway's kernel throws away at once. */
#include "bench/town.h"
#include "base/clock.h"
#include "base/keytext.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

const char town_ifname[] = "wgtown";

enum {
	PORT = 51820,
	SERVER_IP = 0x0a4d0001, /* 10.77.0.1 */
	SOURCES_IP = 0x0a4e0000, /* 10.78.0.0/16 */
	N_SOURCES = 1 << 16,
	INNER_IP = 0x0a800000, /* 10.128.0.0/15 */
	SINK_IP = 0x0a7f0002, /* 10.127.0.2 */
};

static_assert((int)TOWN_PEERS_MAX <= 1 << 17, "a /15 inside");

/* Says what failed, unless it was stopped; returns ret. */
static int complain(const struct town *t, int ret)
{
	if (ret < 0 && ret != -EINTR)
		fprintf(stderr, "penstock bench: %s\n", lab_error(t->lab));
	return ret;
}

static int build(struct town *t)
{
	int ret = t->inside = lab_ns(t->lab);

	if (ret >= 0)
		ret = t->outside = lab_ns(t->lab);
	if (ret >= 0)
		ret = lab_veth(t->lab, t->inside, "town0", "10.77.0.1/24", t->outside, "folk0",
			"10.77.0.2/24");
	if (!ret)
		ret = lab_ip(t->lab, t->outside, "route add local 10.78.0.0/16 dev lo\n");
	if (!ret)
		ret = lab_ip(t->lab, t->inside, "route add 10.78.0.0/16 via 10.77.0.2\n");
	/* A new namespace may inherit a filter from the first one. */
	if (!ret)
		ret = lab_sysctl(t->lab, t->inside, "net/ipv4/conf/all/rp_filter", "0");
	if (!ret)
		ret = lab_sysctl(t->lab, t->outside, "net/ipv4/conf/all/rp_filter", "0");
	return ret;
}

int town_create(struct town **out, const char *penstock)
{
	struct town *t = calloc(1, sizeof(*t));
	int ret;

	if (!t)
		return -ENOMEM;
	t->gateway = -1;
	ret = lab_create(&t->lab, penstock);
	if (ret < 0) {
		free(t);
		return ret;
	}
	ret = complain(t, build(t));
	if (ret < 0) {
		town_destroy(t);
		return ret;
	}
	*out = t;
	return 0;
}

void town_destroy(struct town *t)
{
	if (!t)
		return;
	town_leave(t);
	lab_destroy(t->lab);
	free(t);
}

static int make_folk(struct town *t, size_t n)
{
	struct folk_config cfg = {
		.n = n,
		.server = SERVER_IP,
		.source = SOURCES_IP,
		.n_sources = N_SOURCES,
		.inner = INNER_IP,
		.port = PORT,
		.sink = SINK_IP,
	};
	int ret;

	x25519_base(cfg.server_key, t->secret);
	ret = lab_enter(t->lab, t->outside);
	if (ret < 0)
		return ret;
	ret = folk_create(&t->folk, &cfg);
	lab_leave(t->lab);
	return ret;
}

/* Keys are made when they are first asked for. */
static int make_keys(struct town *t, void (*tell)(void *ctx, size_t done), void *ctx)
{
	uint8_t key[WG_KEY_LEN];

	for (size_t i = 0; i < t->n; i++) {
		folk_public_key(t->folk, i, key);
		if (i % 1024)
			continue;
		if (rounds_stopped())
			return -EINTR;
		if (tell)
			tell(ctx, i);
	}
	return 0;
}

static int raise_interface(struct town *t)
{
	int ret = lab_ip(t->lab, t->inside,
		"addr add 10.127.0.1/24 dev %s\nlink set %s up\nroute add 10.128.0.0/15 dev %s\n",
		town_ifname, town_ifname, town_ifname);

	return complain(t, ret);
}

int town_settle(struct town *t, size_t n, void (*tell)(void *ctx, size_t done), void *ctx)
{
	int ret;

	assert(!t->folk);
	assert(n <= TOWN_PEERS_MAX);
	crypto_random(t->secret, sizeof(t->secret));
	x25519_clamp(t->secret);
	t->n = n;
	ret = make_folk(t, n);
	if (!ret)
		ret = make_keys(t, tell, ctx);
	if (ret < 0)
		return ret;
	ret = t->gateway = lab_gateway(t->lab, t->inside, LAB_PENSTOCK, town_ifname);
	if (ret < 0)
		return complain(t, ret);
	t->pid = lab_gateway_pid(t->lab, t->gateway);
	return raise_interface(t);
}

/* The caller frees it; NULL when there is no memory. */
static char *configuration(struct town *t)
{
	char text[KEY_BASE64_LEN + 1], *conf = NULL;
	uint8_t key[WG_KEY_LEN];
	size_t len;
	FILE *f = open_memstream(&conf, &len);
	bool is_bad;

	if (!f)
		return NULL;
	key_to_base64(text, t->secret);
	fprintf(f, "[Interface]\nPrivateKey = %s\nListenPort = %d\n", text, PORT);
	for (size_t i = 0; i < t->n; i++) {
		struct in_addr ip = { htobe32(folk_inner(t->folk, i)) };
		const uint8_t *b = (const uint8_t *)&ip;

		folk_public_key(t->folk, i, key);
		key_to_base64(text, key);
		fprintf(f, "[Peer]\nPublicKey = %s\nAllowedIPs = %d.%d.%d.%d/32\n", text, b[0],
			b[1], b[2], b[3]);
	}
	crypto_wipe(text, sizeof(text));
	is_bad = ferror(f);
	if (fclose(f) || is_bad) {
		free(conf);
		return NULL;
	}
	return conf;
}

int town_configure(struct town *t, uint64_t *took_ns)
{
	char *conf = configuration(t);
	int ret;

	if (!conf)
		return -ENOMEM;
	*took_ns = clock_now_ns();
	ret = lab_setconf(t->lab, town_ifname, conf);
	*took_ns = clock_now_ns() - *took_ns;
	free(conf);
	return complain(t, ret);
}

int town_show(struct town *t, uint64_t *took_ns)
{
	const char *const argv[] = { "wg", "show", town_ifname, "dump", NULL };
	int ret;

	*took_ns = clock_now_ns();
	ret = lab_run(t->lab, t->inside, NULL, argv);
	*took_ns = clock_now_ns() - *took_ns;
	return complain(t, ret);
}

void town_leave(struct town *t)
{
	if (t->gateway >= 0)
		lab_gateway_end(t->lab, t->gateway);
	t->gateway = -1;
	t->pid = 0;
	folk_destroy(t->folk);
	t->folk = NULL;
	t->n = 0;
	crypto_wipe(t->secret, sizeof(t->secret));
}
