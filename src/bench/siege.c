/* Interfaces on a link are called after the neighbour at its other end; the tunnel's two
 * ends are "server" and "client". */
#include "bench/siege.h"
#include "base/keytext.h"
#include "bench/rounds.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INNER_SERVER = 0x0a090001, TRANSFER_PORT = 5001 };

struct key_pair {
	uint8_t secret[WG_KEY_LEN], public_key[WG_KEY_LEN];
	char secret_text[LAB_KEY_TEXT], public_text[LAB_KEY_TEXT];
};

static void key_pair_make(struct key_pair *k)
{
	crypto_random(k->secret, sizeof(k->secret));
	x25519_clamp(k->secret);
	x25519_base(k->public_key, k->secret);
	key_to_base64(k->secret_text, k->secret);
	key_to_base64(k->public_text, k->public_key);
}

static int build_links(struct siege *s)
{
	int ret;

	if ((s->server_ns = lab_ns(s->lab)) < 0 || (s->client_ns = lab_ns(s->lab)) < 0 ||
		(s->crowd_ns = lab_ns(s->lab)) < 0 || (s->attacker_ns = lab_ns(s->lab)) < 0)
		return -EIO;
	ret = lab_veth(s->lab, s->server_ns, "client", "10.70.1.1/24", s->client_ns, "server",
		"10.70.1.2/24");
	if (!ret)
		ret = lab_veth(s->lab, s->server_ns, "attacker", "10.70.2.1/24", s->attacker_ns,
			"server", "10.70.2.2/24");
	if (!ret)
		ret = lab_veth(s->lab, s->server_ns, "crowd", "10.70.3.1/24", s->crowd_ns, "server",
			"10.70.3.2/24");
	/* Every address of a prefix that is routed "local" is an address of ours. */
	if (!ret)
		ret = lab_ip(s->lab, s->attacker_ns, "route add local 10.80.0.0/16 dev lo\n");
	if (!ret)
		ret = lab_ip(s->lab, s->crowd_ns, "route add local 10.81.0.0/16 dev lo\n");
	if (!ret)
		ret = lab_ip(s->lab, s->server_ns,
			"route add 10.80.0.0/16 via 10.70.2.2\n"
			"route add 10.81.0.0/16 via 10.70.3.2\n");
	return ret;
}

static int build_tunnel(
	struct siege *s, const struct key_pair *server, const struct key_pair *client)
{
	char *conf;
	int ret;

	if (asprintf(&s->conf,
		    "[Interface]\nPrivateKey=%s\nListenPort=%d\n"
		    "[Peer]\nPublicKey=%s\nAllowedIPs=10.9.0.2/32\n",
		    server->secret_text, SIEGE_PORT, client->public_text) < 0) {
		s->conf = NULL;
		return -ENOMEM;
	}
	if (asprintf(&conf,
		    "[Interface]\nPrivateKey=%s\n"
		    "[Peer]\nPublicKey=%s\nAllowedIPs=10.9.0.1/32\nEndpoint=10.70.1.1:%d\n",
		    client->secret_text, server->public_text, SIEGE_PORT) < 0)
		return -ENOMEM;
	ret = lab_setconf(s->lab, "server", s->conf);
	if (!ret)
		ret = lab_setconf(s->lab, "client", conf);
	if (!ret)
		ret = lab_ip(s->lab, s->server_ns,
			"addr add 10.9.0.1/24 dev server\nlink set server mtu 1420 up\n");
	if (!ret)
		ret = lab_ip(s->lab, s->client_ns,
			"addr add 10.9.0.2/24 dev client\nlink set client mtu 1420 up\n");
	crypto_wipe(conf, strlen(conf));
	free(conf);
	return ret;
}

static int build(struct siege *s, enum lab_kind kind)
{
	struct key_pair server, client;
	int ret = build_links(s);

	if (!ret && (s->server = lab_gateway(s->lab, s->server_ns, kind, "server")) < 0)
		ret = -EIO;
	if (!ret && lab_gateway(s->lab, s->client_ns, kind, "client") < 0)
		ret = -EIO;
	if (ret < 0)
		return ret;
	key_pair_make(&server);
	key_pair_make(&client);
	memcpy(s->server_public_key, server.public_key, sizeof(s->server_public_key));
	ret = build_tunnel(s, &server, &client);
	crypto_wipe(&server, sizeof(server));
	crypto_wipe(&client, sizeof(client));
	return ret;
}

const char *siege_missing(const char *penstock, enum lab_kind kind)
{
	const char *missing = lab_missing(penstock);

	return missing ? missing : lab_kind_missing(kind);
}

/* Unless it was told to stop. Returns ret. */
static int complain(const struct siege *s, int ret)
{
	if (!rounds_stopped())
		fprintf(stderr, "%spenstock bench: %s\n", isatty(STDERR_FILENO) ? "\n" : "",
			s->lab ? lab_error(s->lab) : strerror(-ret));
	return ret;
}

int siege_init(struct siege *s, const char *penstock, enum lab_kind kind)
{
	int ret;

	*s = (struct siege){ 0 };
	ret = lab_create(&s->lab, penstock);
	if (!ret)
		ret = build(s, kind);
	if (ret < 0) {
		complain(s, ret);
		siege_fini(s);
	}
	return ret;
}

void siege_fini(struct siege *s)
{
	lab_destroy(s->lab);
	if (s->conf)
		crypto_wipe(s->conf, strlen(s->conf));
	free(s->conf);
	*s = (struct siege){ 0 };
}

/* The server's configuration: conf, which is freed, and the sections of one more crowd. */
static char *with_sections(char *conf, struct crowd *c)
{
	char *sections = crowd_sections(c), *longer = NULL;

	if (conf && sections && asprintf(&longer, "%s%s", conf, sections) < 0)
		longer = NULL;
	if (conf)
		crypto_wipe(conf, strlen(conf));
	free(conf);
	free(sections);
	return longer;
}

int siege_crowd(struct siege *s, const struct crowd_plan *plans, size_t n, struct crowd **out)
{
	char *conf = strdup(s->conf);
	size_t i;
	int ret = 0;

	for (i = 0; i < n; i++)
		out[i] = NULL;
	for (i = 0; i < n && !ret; i++) {
		ret = crowd_create(&out[i], s->lab, s->crowd_ns, &plans[i], s->server_public_key);
		if (!ret)
			conf = with_sections(conf, out[i]);
	}
	if (!ret)
		ret = conf ? lab_setconf(s->lab, "server", conf) : -ENOMEM;
	if (ret < 0)
		complain(s, ret);
	if (conf)
		crypto_wipe(conf, strlen(conf));
	free(conf);
	return ret;
}

uint64_t siege_memory(const struct siege *s)
{
	unsigned long size, resident = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", lab_gateway_pid(s->lab, s->server));
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%lu %lu", &size, &resident) != 2)
		resident = 0;
	fclose(f);
	return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

int siege_transfer(struct siege *s, struct transfer **out)
{
	return transfer_start(out, s->lab, s->client_ns, s->server_ns, INNER_SERVER, TRANSFER_PORT);
}

int siege_flood(struct siege *s, const struct flood_ammo *ammo, uint16_t port, uint32_t n_sources,
	struct flood **out)
{
	struct flood_aim aim = { ammo, SIEGE_SERVER_TO_ATTACKER, port, SIEGE_ATTACKER_SOURCES,
		n_sources };

	return flood_start(out, s->lab, s->attacker_ns, &aim);
}
