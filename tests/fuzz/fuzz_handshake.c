/* wg_rx_handshake on arbitrary and on mutated messages; those with right MACs reach
 * the cryptography behind them.
 *
 * Two devices that know each other live as long as the process; making them takes
 * longer than an input. Each input ends with a good handshake. Records: op % 8 is
 *  0  a datagram as it is
 *  1  a datagram of which an initiation is made, with a right first MAC
 *  2  the same as a response to an initiation under way
 *  3  changes (place, mask) of an authentic initiation
 *  4  changes of an authentic response
 *  5  changes of an authentic cookie reply
 *  6  time passes: the first two bytes in 1/16 s
 *  7  a whole good handshake
 * Bit 7 of op: the receiver is under load. Nothing forged or changed may be
 * accepted, nothing may crash, and the good handshake works after all of it.
 * --make-seeds DIR. */
#include "pair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static struct pair pair;

/* Hand over a copy in an allocation of its exact size. */
static enum wg_drop hand_exact(int to, const void *msg, size_t len, bool is_loaded)
{
	uint8_t *copy = malloc(len ? len : 1);
	enum wg_drop why;

	memcpy(copy, msg, len);
	why = pair_hand(&pair, to, copy, len, is_loaded);
	free(copy);
	return why;
}

static void pass(uint64_t ns)
{
	pair.now_ns += ns;
	for (int a = 0; a < 2; a++) {
		wg_poll(pair.half[a].wg, pair.now_ns, pair_wall(&pair));
		pair.half[a].n_out = 0;
	}
}

/* A fresh initiation of a: far enough from the last for stamp and pause. */
static const uint8_t *initiation_of(int a)
{
	pass(11 * NSEC_PER_SEC);
	atomic_store(&pair_peer(&pair, a)->initiation_ns, 0);
	handshake_clear(pair_peer(&pair, a));
	session_end_all(pair_peer(&pair, a));
	pair_initiate(&pair, a);
	for (size_t i = 0; i < pair.half[a].n_out; i++)
		if (pair.half[a].out_len[i] == WGMSG_INITIATION_LEN)
			return pair.half[a].out[i];
	abort();
}

/* The first message of that length that a sent. */
static const uint8_t *sent_by(int a, size_t len)
{
	for (size_t i = 0; i < pair.half[a].n_out; i++)
		if (pair.half[a].out_len[i] == len)
			return pair.half[a].out[i];
	return NULL;
}

static void add_macs(int to, void *msg, size_t len)
{
	struct cookie_jar jar;

	cookie_jar_init(&jar, pair.half[to].public_key);
	cookie_add_macs(&jar, msg, len, pair.now_ns);
}

static void try_made(const struct record *r, bool is_response)
{
	uint8_t msg[WGMSG_INITIATION_LEN] = { 0 };
	size_t len = is_response ? WGMSG_RESPONSE_LEN : WGMSG_INITIATION_LEN;

	initiation_of(1);
	memcpy(msg, r->bytes, r->len < len ? r->len : len);
	put_le32(msg, is_response ? WGMSG_RESPONSE : WGMSG_INITIATION);
	if (is_response)
		put_le32(msg + 8, pair_peer(&pair, 1)->handshake_index);
	add_macs(1, msg, len);
	check(hand_exact(1, msg, len, r->op & 128) != WG_OK);
}

static void try_initiation(const struct record *r)
{
	uint8_t msg[WGMSG_INITIATION_LEN];

	memcpy(msg, initiation_of(0), sizeof(msg));
	/* Behind the sender's index, which is the sender's to choose. */
	if (record_mutate(r, msg, sizeof(msg), 8, offsetof(struct wgmsg_initiation, macs)) == 0)
		return;
	add_macs(1, msg, sizeof(msg));
	check(hand_exact(1, msg, sizeof(msg), r->op & 128) != WG_OK);
}

static void try_response(const struct record *r)
{
	uint8_t msg[WGMSG_RESPONSE_LEN];

	check(hand_exact(1, initiation_of(0), WGMSG_INITIATION_LEN, false) == WG_OK);
	check(sent_by(1, sizeof(msg)) != NULL);
	memcpy(msg, sent_by(1, sizeof(msg)), sizeof(msg));
	if (record_mutate(r, msg, sizeof(msg), 8, offsetof(struct wgmsg_response, macs))) {
		add_macs(0, msg, sizeof(msg));
		check(hand_exact(0, msg, sizeof(msg), r->op & 128) != WG_OK);
	}
	/* Not under load: the right one is still taken, once. */
	if (r->op & 128)
		return;
	memcpy(msg, sent_by(1, sizeof(msg)), sizeof(msg));
	check(hand_exact(0, msg, sizeof(msg), false) == WG_OK);
	check(hand_exact(0, msg, sizeof(msg), false) != WG_OK);
}

static void try_cookie(const struct record *r)
{
	uint8_t msg[WGMSG_COOKIE_LEN];

	pair_peer(&pair, 0)->jar.has_cookie = false;
	check(hand_exact(1, initiation_of(0), WGMSG_INITIATION_LEN, true) == WG_DROP_MAC2);
	memcpy(msg, sent_by(1, sizeof(msg)), sizeof(msg));
	if (record_mutate(r, msg, sizeof(msg), 4, sizeof(msg)))
		check(hand_exact(0, msg, sizeof(msg), false) != WG_OK);
	check(hand_exact(0, sent_by(1, sizeof(msg)), sizeof(msg), false) == WG_OK);
	check(hand_exact(0, sent_by(1, sizeof(msg)), sizeof(msg), false) != WG_OK);
}

static void good_handshake(void)
{
	const uint8_t *msg;

	pass(2 * NSEC_PER_SEC); /* until the load is forgotten */
	msg = initiation_of(0);
	check(hand_exact(1, msg, WGMSG_INITIATION_LEN, false) == WG_OK);
	msg = sent_by(1, WGMSG_RESPONSE_LEN);
	check(msg && hand_exact(0, msg, WGMSG_RESPONSE_LEN, false) == WG_OK);
	check(hand_exact(0, msg, WGMSG_RESPONSE_LEN, false) != WG_OK);
	check(sent_by(0, WGMSG_DATA_MIN) != NULL);
}

static void one_record(const struct record *r)
{
	uint64_t units;

	switch (r->op % 8) {
	case 0:
		check(hand_exact(1, r->bytes, r->len, r->op & 128) != WG_OK);
		break;
	case 1:
	case 2:
		try_made(r, r->op % 8 == 2);
		break;
	case 3:
		try_initiation(r);
		break;
	case 4:
		try_response(r);
		break;
	case 5:
		try_cookie(r);
		break;
	case 6:
		units = r->len >= 2 ? get_be16(r->bytes) : 1;
		pass(units * NSEC_PER_SEC / 16);
		break;
	default:
		good_handshake();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct record r;

	for (int i = 0; i < 16 && record_next(&data, &len, &r); i++)
		one_record(&r);
	good_handshake();
	return 0;
}

static void make_seeds(const char *dir)
{
	static const uint8_t raw[3 + 148] = { 0, 0, 148, 1 }, made[3 + 148] = { 1, 0, 148 };
	static const uint8_t resp[3 + 92] = { 2, 0, 92 }, cookie[3 + 64] = { 128, 0, 64, 3 };
	static const uint8_t flips[] = { 3, 0, 3, 0, 0, 1, 3, 0, 6, 0, 90, 2, 0, 91, 2, 3, 0, 3, 0,
		35, 1 };
	static const uint8_t flips2[] = { 4, 0, 3, 0, 0, 1, 4, 0, 3, 0, 40, 2, 132, 0, 3, 0, 5, 1 };
	static const uint8_t flips3[] = { 5, 0, 3, 0, 0, 1, 5, 0, 3, 0, 30, 2, 7, 0, 0 };
	static const uint8_t times[] = { 7, 0, 0, 6, 0, 2, 255, 255, 7, 0, 0, 131, 0, 3, 0, 1, 1, 7,
		0, 0 };

	seed_write(dir, "initiation", raw, sizeof(raw));
	seed_write(dir, "made_initiation", made, sizeof(made));
	seed_write(dir, "made_response", resp, sizeof(resp));
	seed_write(dir, "cookie", cookie, sizeof(cookie));
	seed_write(dir, "changed_initiation", flips, sizeof(flips));
	seed_write(dir, "changed_response", flips2, sizeof(flips2));
	seed_write(dir, "changed_cookie", flips3, sizeof(flips3));
	seed_write(dir, "time", times, sizeof(times));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	if (*argc == 3 && !strcmp((*argv)[1], "--make-seeds")) {
		make_seeds((*argv)[2]);
		exit(0);
	}
	check(crypto_init(NULL) == 0);
	pair_open(&pair);
	return 0;
}
