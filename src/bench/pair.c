/* The tunnel is as wg(8) and ip(8) make one: each side knows the other's address, MTU 1420. */
#include "bench/pair.h"
#include "base/keytext.h"
#include "bench/cputime.h"
#include "bench/vitals.h"
#include "crypto/crypto.h"
#include "wg/wg.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PAIR_PORT = 51820, PAIR_MTU = 1420 };

static const char *const ifnames[2] = { "gateway0", "gateway1" };
static const char *const outer[2] = { "192.168.79.1", "192.168.79.2" };
static const char *const inner[2] = { "10.79.0.1", "10.79.0.2" };
const char pair_outer[] = "192.168.79.2";
const char pair_inner[] = "10.79.0.2";

struct key_text {
	char secret[LAB_KEY_TEXT], public_key[LAB_KEY_TEXT];
};

static void key_text_make(struct key_text *k)
{
	uint8_t secret[WG_KEY_LEN], public_key[WG_KEY_LEN];

	crypto_random(secret, sizeof(secret));
	x25519_clamp(secret);
	x25519_base(public_key, secret);
	key_to_base64(k->secret, secret);
	key_to_base64(k->public_key, public_key);
	crypto_wipe(secret, sizeof(secret));
}

int pair_init(struct pair *p, const char *penstock, char error[LAB_TEXT_MAX])
{
	int ret;

	*p = (struct pair){ .gateway = { -1, -1 } };
	ret = lab_create(&p->lab, penstock);
	if (ret < 0) {
		snprintf(error, LAB_TEXT_MAX, "a lab: %s", strerror(-ret));
		return ret;
	}
	ret = p->ns[0] = lab_ns(p->lab);
	if (ret >= 0)
		ret = p->ns[1] = lab_ns(p->lab);
	if (ret >= 0)
		ret = lab_veth(p->lab, p->ns[0], "wire0", "192.168.79.1/24", p->ns[1], "wire1",
			"192.168.79.2/24");
	if (ret < 0) {
		snprintf(error, LAB_TEXT_MAX, "%s", lab_error(p->lab));
		pair_fini(p);
		return ret;
	}
	return 0;
}

void pair_fini(struct pair *p)
{
	lab_destroy(p->lab);
	*p = (struct pair){ .gateway = { -1, -1 } };
}

/* One end: its gateway knows the other's key and address, and has an address inside. */
static int configure(struct pair *p, int end, const struct key_text keys[2])
{
	const int other = 1 - end;
	char conf[512];
	int ret;

	snprintf(conf, sizeof(conf),
		"[Interface]\nPrivateKey=%s\nListenPort=%d\n"
		"[Peer]\nPublicKey=%s\nAllowedIPs=%s/32\nEndpoint=%s:%d\n",
		keys[end].secret, PAIR_PORT, keys[other].public_key, inner[other], outer[other],
		PAIR_PORT);
	ret = lab_setconf(p->lab, ifnames[end], conf);
	crypto_wipe(conf, sizeof(conf));
	if (!ret)
		ret = lab_ip(p->lab, p->ns[end], "addr add %s/24 dev %s\nlink set %s mtu %d up\n",
			inner[end], ifnames[end], ifnames[end], PAIR_MTU);
	return ret;
}

int pair_tunnel(
	struct pair *p, enum lab_kind kind, const char *const more[], char error[LAB_TEXT_MAX])
{
	struct key_text keys[2];
	char text[LAB_TEXT_MAX];
	int i, ret = 0;

	for (i = 0; i < 2; i++) {
		key_text_make(&keys[i]);
		ret = lab_gateway_with(p->lab, p->ns[i], kind, ifnames[i], more);
		if (ret < 0)
			break;
		p->gateway[i] = ret;
	}
	for (i = 0; i < 2 && ret >= 0; i++)
		ret = configure(p, i, keys);
	crypto_wipe(keys, sizeof(keys));
	if (ret < 0)
		snprintf(error, LAB_TEXT_MAX, "%s", lab_error(p->lab));
	/* One that ended before it could be configured knows better why than wg(8) does. */
	for (i = 0; i < 2 && ret < 0; i++) {
		if (p->gateway[i] >= 0)
			lab_complaint(p->lab, p->gateway[i], text);
		if (p->gateway[i] >= 0 && *text)
			snprintf(error, LAB_TEXT_MAX, "%s", text);
	}
	return ret < 0 ? ret : 0;
}

int pair_cpu(const struct pair *p, uint64_t *ns)
{
	struct cputime machine;
	uint64_t one;
	int i, ret = cputime_read(getpid(), &machine);

	*ns = machine.softirqd_ns;
	if (ret < 0)
		return ret;
	for (i = 0; i < 2; i++) {
		pid_t pid = lab_gateway_pid(p->lab, p->gateway[i]);

		ret = pid ? vitals_tree_cpu(pid, &one) : -ESRCH;
		if (ret < 0)
			return ret;
		*ns += one;
	}
	return 0;
}
