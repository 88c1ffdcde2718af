/* penstock gateway --status IFNAME: asks the running gateway over its
 * configuration socket, as wg(8) does, and prints what wg(8) has no place for.
 * The reply is read line by line; of the peers only those with the most drops are
 * kept. Secret keys are read and wiped, never printed. */
#include "gateway/gateway.h"
#include "base/keytext.h"
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
	TOP_MAX = 10, /* peers that are shown */
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

struct peer {
	uint8_t key[KEY_BYTES];
	unsigned long long rx_bytes, tx_bytes;
	unsigned long long drops[WG_DROP_N]; /* a peer has none of the workers' reasons */
	unsigned long long n_drops;
};

struct status {
	unsigned long long n_peers, rx_bytes, tx_bytes;
	unsigned long long drops[N_REASONS];
	unsigned long long unreach[UNREACH_COUNT_N];
	struct peer now; /* whose lines are being read, if n_peers is not 0 */
	struct peer top[TOP_MAX]; /* most drops first */
	size_t n_top;
	struct worker_count workers[WG_WORKERS_MAX];
	unsigned n_workers;
	const uint8_t *wanted; /* NULL: no peer in particular */
	struct peer found;
	bool has_found;
	bool is_garbled; /* a key that is none */
	int code; /* of the reply's errno line; -EPROTO until there was one */
};

/* Is this the line "name=..."? Then *value is what follows. */
static bool is_named(const char *line, const char *name, const char **value)
{
	size_t len = strlen(name);

	if (strncmp(line, name, len) != 0 || line[len] != '=')
		return false;
	*value = line + len + 1;
	return true;
}

static void take_unreach(struct status *s, const char *line)
{
	const char *value;

	for (unsigned i = 0; i < UNREACH_COUNT_N; i++)
		if (is_named(line, unreach_count_key(i), &value))
			s->unreach[i] = strtoull(value, NULL, 10);
}

/* "worker3_rx_packets=..." */
static bool take_worker(struct status *s, const char *line)
{
	char direction;
	unsigned i;
	int at = 0;

	if (sscanf(line, "worker%2u_%cx_packets=%n", &i, &direction, &at) != 2 || !at ||
		i >= WG_WORKERS_MAX)
		return false;
	if (direction == 'r')
		s->workers[i].rx_packets = strtoull(line + at, NULL, 10);
	else
		s->workers[i].tx_packets = strtoull(line + at, NULL, 10);
	if (s->n_workers <= i)
		s->n_workers = i + 1;
	return true;
}

/* What follows "drop_": of the device before the first peer, of that peer after it. */
static void take_drop(struct status *s, const char *line)
{
	unsigned n_reasons = s->n_peers ? WG_DROP_N : N_REASONS;
	const char *value;

	for (unsigned i = WG_OK + 1; i < n_reasons; i++) {
		if (!is_named(line, reason_key(i), &value))
			continue;
		if (!s->n_peers) {
			s->drops[i] = strtoull(value, NULL, 10);
			return;
		}
		s->now.drops[i] = strtoull(value, NULL, 10);
		s->now.n_drops += s->now.drops[i];
		return;
	}
}

/* All lines of a peer were read. */
static void end_peer(struct status *s)
{
	size_t i = s->n_top;

	if (!s->n_peers)
		return;
	s->rx_bytes += s->now.rx_bytes;
	s->tx_bytes += s->now.tx_bytes;
	if (s->wanted && memcmp(s->now.key, s->wanted, KEY_BYTES) == 0) {
		s->found = s->now;
		s->has_found = true;
	}
	while (i > 0 && s->top[i - 1].n_drops < s->now.n_drops)
		i--;
	if (i == TOP_MAX || !s->now.n_drops)
		return;
	s->n_top += s->n_top < TOP_MAX;
	memmove(&s->top[i + 1], &s->top[i], (s->n_top - 1 - i) * sizeof(s->top[0]));
	s->top[i] = s->now;
}

static void begin_peer(struct status *s, const char *key)
{
	end_peer(s);
	s->n_peers++;
	s->now = (struct peer){ 0 };
	s->is_garbled |= key_from_hex(s->now.key, key, strcspn(key, "\n")) != 0;
}

static void take_line(struct status *s, const char *line)
{
	const char *value;

	if (is_named(line, "public_key", &value))
		begin_peer(s, value);
	else if (is_named(line, "rx_bytes", &value))
		s->now.rx_bytes = strtoull(value, NULL, 10);
	else if (is_named(line, "tx_bytes", &value))
		s->now.tx_bytes = strtoull(value, NULL, 10);
	else if (is_named(line, "errno", &value))
		s->code = (int)strtol(value, NULL, 10);
	else if (strncmp(line, "drop_", 5) == 0)
		take_drop(s, line + 5);
	else if (!s->n_peers && !take_worker(s, line))
		take_unreach(s, line);
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

static int ask(FILE *f, struct status *s)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t len;

	s->code = -EPROTO;
	if (fputs("get=1\n\n", f) < 0 || fflush(f) != 0)
		return -errno;
	while ((len = getline(&line, &cap, f)) > 1) {
		take_line(s, line);
		crypto_wipe(line, (size_t)len);
	}
	free(line);
	end_peer(s);
	return s->is_garbled ? -EPROTO : s->code;
}

static void print_traffic(unsigned long long rx_bytes, unsigned long long tx_bytes, FILE *out)
{
	fprintf(out, "  received: %llu bytes\n  sent: %llu bytes\n", rx_bytes, tx_bytes);
}

static void print_drops(const unsigned long long *drops, unsigned n_reasons, FILE *out)
{
	bool has_drops = false;

	fprintf(out, "  dropped packets and refused handshakes:\n");
	for (unsigned i = WG_OK + 1; i < n_reasons; i++) {
		if (!drops[i])
			continue;
		has_drops = true;
		fprintf(out, "    %-20s %12llu  %s\n", reason_key(i), drops[i], reason_text(i));
	}
	if (!has_drops)
		fprintf(out, "    none\n");
}

static void print_top(const struct status *s, FILE *out)
{
	char key[KEY_BASE64_LEN + 1];

	if (s->n_top)
		fprintf(out, "  peers with the most of them:\n");
	for (size_t i = 0; i < s->n_top; i++) {
		const struct peer *p = &s->top[i];

		key_to_base64(key, p->key);
		fprintf(out, "    %s %12llu ", key, p->n_drops);
		for (unsigned k = WG_OK + 1; k < WG_DROP_N; k++)
			if (p->drops[k])
				fprintf(out, " %s=%llu", reason_key(k), p->drops[k]);
		fprintf(out, "\n");
	}
}

static void print_workers(const struct status *s, FILE *out)
{
	if (s->n_workers)
		fprintf(out, "  packets carried by each worker:\n");
	for (unsigned i = 0; i < s->n_workers; i++)
		fprintf(out, "    worker %-13u %12llu received %12llu sent\n", i,
			(unsigned long long)s->workers[i].rx_packets,
			(unsigned long long)s->workers[i].tx_packets);
}

static void print_device(const struct status *s, const char *ifname, FILE *out)
{
	fprintf(out, "interface: %s\n  peers: %llu\n", ifname, s->n_peers);
	print_traffic(s->rx_bytes, s->tx_bytes, out);
	print_workers(s, out);
	print_drops(s->drops, N_REASONS, out);
	print_top(s, out);
	fprintf(out, "  packets that nobody can be given:\n");
	for (unsigned i = 0; i < UNREACH_COUNT_N; i++)
		fprintf(out, "    %-20s %12llu  %s\n", unreach_count_key(i), s->unreach[i],
			unreach_count_text(i));
}

static int print_peer(const struct status *s, const char *ifname, FILE *out)
{
	char key[KEY_BASE64_LEN + 1];

	key_to_base64(key, s->wanted);
	if (!s->has_found) {
		log_line(LOG_ERROR, "%s: there is no peer %s", ifname, key);
		return 1;
	}
	fprintf(out, "peer: %s\n", key);
	print_traffic(s->found.rx_bytes, s->found.tx_bytes, out);
	print_drops(s->found.drops, WG_DROP_N, out);
	return 0;
}

int gateway_status(const char *ifname, const uint8_t *peer, FILE *out)
{
	struct status s = { .wanted = peer };
	FILE *f = NULL;
	int ret = open_socket(ifname, &f);

	if (!ret) {
		ret = ask(f, &s);
		fclose(f);
	}
	if (ret) {
		log_line(LOG_ERROR, "%s: no gateway answers at " UAPI_SOCKET_DIR "/%s.sock: %s",
			ifname, ifname, strerror(abs(ret)));
		return 1;
	}
	if (peer)
		return print_peer(&s, ifname, out);
	print_device(&s, ifname, out);
	return 0;
}
