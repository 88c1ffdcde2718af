/* Many clients of one gateway, without an interface for each (bench/folk.h).
 *
 *   many_clients ADDRESS PORT KEY N SINK
 *
 * prints N lines "PUBLIC_KEY INNER_ADDRESS", both keys in hex; then for each line of standard
 * input: "meet" makes a session for each client and prints "met", "send M" sends M packets,
 * of the clients by turns, to SINK in their tunnels and prints "sent". Client i comes from the
 * address 10.78.0.0 + i, which must be local here. */
#include "bench/folk.h"
#include "crypto/crypto.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	FIRST_SOURCE = 0x0a4e0000, /* 10.78.0.0/16 */
	N_SOURCES = 1 << 16,
	FIRST_INNER = 0x0a800000, /* 10.128.0.0/16 */
};

static int usage(void)
{
	fprintf(stderr, "usage: many_clients ADDRESS PORT KEY N SINK\n");
	return 2;
}

static int die(const char *what, int ret)
{
	fprintf(stderr, "many_clients: %s: %s\n", what, strerror(-ret));
	return 1;
}

static uint32_t address(const char *text)
{
	struct in_addr a;

	return inet_pton(AF_INET, text, &a) == 1 ? ntohl(a.s_addr) : 0;
}

static bool parse_key(uint8_t out[WG_KEY_LEN], const char *hex)
{
	if (strlen(hex) != 2 * WG_KEY_LEN)
		return false;
	for (size_t i = 0; i < WG_KEY_LEN; i++)
		if (sscanf(hex + 2 * i, "%2hhx", &out[i]) != 1)
			return false;
	return true;
}

static void show(struct folk *c, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct in_addr inner = { htonl(folk_inner(c, i)) };
		uint8_t key[WG_KEY_LEN];

		folk_public_key(c, i, key);
		for (size_t b = 0; b < WG_KEY_LEN; b++)
			printf("%02x", key[b]);
		printf(" %s\n", inet_ntoa(inner));
	}
	fflush(stdout);
}

static int obey(struct folk *c, size_t n, const char *line)
{
	uint64_t took_ns;
	size_t n_packets;
	int ret;

	if (strcmp(line, "meet\n") == 0) {
		ret = folk_handshake(c, 0, n, NULL, NULL);
		if (!ret)
			puts("met");
		return ret;
	}
	if (sscanf(line, "send %zu", &n_packets) != 1)
		return -EINVAL;
	ret = folk_load(c, n, n_packets);
	if (!ret)
		ret = folk_fire(c, 1, &took_ns);
	if (!ret)
		puts("sent");
	return ret;
}

int main(int argc, char **argv)
{
	struct folk_config cfg = {
		.source = FIRST_SOURCE, .n_sources = N_SOURCES, .inner = FIRST_INNER
	};
	struct folk *c;
	char line[64];
	int ret;

	if (argc != 6)
		return usage();
	cfg.server = address(argv[1]);
	cfg.port = (uint16_t)atoi(argv[2]);
	cfg.n = strtoul(argv[4], NULL, 10);
	cfg.sink = address(argv[5]);
	if (!parse_key(cfg.server_key, argv[3]) || cfg.n == 0 || cfg.n > N_SOURCES)
		return usage();
	ret = crypto_init(NULL);
	if (ret < 0)
		return die("crypto_init", ret);
	ret = folk_create(&c, &cfg);
	if (ret < 0)
		return die("folk_create", ret);
	show(c, cfg.n);
	while (!ret && fgets(line, sizeof(line), stdin)) {
		ret = obey(c, cfg.n, line);
		fflush(stdout);
	}
	folk_destroy(c);
	return ret < 0 ? die(line, ret) : 0;
}
