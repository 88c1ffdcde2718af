/* penstock gateway --status IFNAME: asks the running gateway over its
 * configuration socket, as wg(8) does, and prints what wg(8) has no place for.
 * Keys are read and wiped, never printed. */
#include "gateway/gateway.h"
#include "base/log.h"
#include "crypto/crypto.h"
#include "gateway/uapi_server.h"
#include "gateway/unreach.h"
#include "gateway/worker.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	ANSWER_WAIT_S = 10,
	/* the state machine's, the workers', the sieve's */
	FIRST_WORKER = WG_DROP_N,
	FIRST_SIEVE = FIRST_WORKER + WORKER_DROP_N,
	N_REASONS = FIRST_SIEVE + SIEVE_DROP_N,
};

static const char *reason_key(unsigned i)
{
	if (i >= FIRST_SIEVE)
		return sieve_drop_key(i - FIRST_SIEVE);
	return i >= FIRST_WORKER ? worker_drop_key(i - FIRST_WORKER) : wg_drop_key(i);
}

static const char *reason_text(unsigned i)
{
	if (i >= FIRST_SIEVE)
		return sieve_drop_text(i - FIRST_SIEVE);
	return i >= FIRST_WORKER ? worker_drop_text(i - FIRST_WORKER) : wg_drop_text(i);
}

struct totals {
	unsigned long long n_peers, rx_bytes, tx_bytes;
	unsigned long long drops[N_REASONS];
	unsigned long long unreach[UNREACH_COUNT_N];
	int code; /* of the reply's errno line; -EPROTO until there was one */
};

static void take_unreach(struct totals *t, const char *line, const char *eq)
{
	for (unsigned i = 0; i < UNREACH_COUNT_N; i++) {
		const char *key = unreach_count_key(i);

		if (strlen(key) == (size_t)(eq - line) && memcmp(line, key, strlen(key)) == 0)
			t->unreach[i] = strtoull(eq + 1, NULL, 10);
	}
}

static void take_line(struct totals *t, const char *line)
{
	unsigned long long n;
	const char *eq = strchr(line, '=');

	if (strncmp(line, "public_key=", 11) == 0)
		t->n_peers++;
	else if (sscanf(line, "rx_bytes=%llu", &n) == 1)
		t->rx_bytes += n;
	else if (sscanf(line, "tx_bytes=%llu", &n) == 1)
		t->tx_bytes += n;
	else if (sscanf(line, "errno=%d", &t->code) == 1)
		return;
	else if (strncmp(line, "drop_", 5) == 0 && eq)
		for (unsigned i = WG_OK + 1; i < N_REASONS; i++) {
			const char *key = reason_key(i);

			if (strlen(key) == (size_t)(eq - line - 5) &&
				memcmp(line + 5, key, strlen(key)) == 0)
				t->drops[i] = strtoull(eq + 1, NULL, 10);
		}
	else if (eq)
		take_unreach(t, line, eq);
}

static int open_socket(const char *ifname, FILE **out)
{
	struct timeval wait = { .tv_sec = ANSWER_WAIT_S };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int ret;

	if (fd < 0)
		return -errno;
	uapi_socket_path(addr.sun_path, ifname);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) < 0) {
		ret = -errno;
		close(fd);
		return ret;
	}
	*out = fdopen(fd, "r+");
	if (*out)
		return 0;
	close(fd);
	return -ENOMEM;
}

static int ask(FILE *f, struct totals *t)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;

	t->code = -EPROTO;
	if (fputs("get=1\n\n", f) < 0 || fflush(f) != 0)
		return -errno;
	while ((len = getline(&line, &cap, f)) > 1) {
		take_line(t, line);
		crypto_wipe(line, (size_t)len);
	}
	free(line);
	return t->code;
}

static void print(const struct totals *t, const char *ifname, FILE *out)
{
	bool has_drops = false;

	fprintf(out, "interface: %s\n  peers: %llu\n  received: %llu bytes\n  sent: %llu bytes\n",
		ifname, t->n_peers, t->rx_bytes, t->tx_bytes);
	fprintf(out, "  dropped packets and refused handshakes:\n");
	for (unsigned i = WG_OK + 1; i < N_REASONS; i++) {
		if (!t->drops[i])
			continue;
		has_drops = true;
		fprintf(out, "    %-18s %12llu  %s\n", reason_key(i), t->drops[i], reason_text(i));
	}
	if (!has_drops)
		fprintf(out, "    none\n");
	fprintf(out, "  packets that nobody can be given:\n");
	for (unsigned i = 0; i < UNREACH_COUNT_N; i++)
		fprintf(out, "    %-20s %10llu  %s\n", unreach_count_key(i), t->unreach[i],
			unreach_count_text(i));
}

int gateway_status(const char *ifname, FILE *out)
{
	struct totals t = { 0 };
	FILE *f = NULL;
	int ret = open_socket(ifname, &f);

	if (!ret) {
		ret = ask(f, &t);
		fclose(f);
	}
	if (ret) {
		log_line(LOG_ERROR, "%s: no gateway answers at " UAPI_SOCKET_DIR "/%s.sock: %s",
			ifname, ifname, strerror(abs(ret)));
		return 1;
	}
	print(&t, ifname, out);
	return 0;
}
