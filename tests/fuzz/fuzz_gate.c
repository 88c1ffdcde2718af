/* The message gate and wg_open on arbitrary and on mutated authentic messages.
 *
 * Records: op % 3 says what the bytes are.
 *  0  a datagram: if it passes the gate as data, it is opened and must be refused;
 *  1  an inner packet that a peer seals: it must come out as it went in, cut to
 *     its IP length, or be refused for what is in it;
 *  2  changes (place, mask) of an authentic message: any change must be refused.
 * Each message lies in an allocation of its exact size. --make-seeds DIR. */
#include "pair.h"

enum { INNER_MAX = 1500, SEAL_LEN = 60 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static struct pair pair;

static void session_open(void)
{
	struct half *a = &pair.half[0], *b = &pair.half[1];
	struct wg_packet pkt;

	pair_open(&pair);
	pair_initiate(&pair, 0);
	check(a->n_out == 1 && pair_hand(&pair, 1, a->out[0], a->out_len[0], false) == WG_OK);
	check(b->n_out == 1 && pair_hand(&pair, 0, b->out[0], b->out_len[0], false) == WG_OK);
	check(a->n_out == 2 && a->out_len[1] == WGMSG_DATA_MIN);
	pkt = (struct wg_packet){ .data = a->out[1], .len = WGMSG_DATA_MIN };
	wg_open(b->worker, &pkt, 1, &a->address, pair.now_ns);
	check(pkt.drop == WG_OK && pkt.len == 0);
	wg_poll(b->wg, pair.now_ns, pair_wall(&pair));
}

/* Open a message of exactly len bytes; the caller frees pkt->data's allocation. */
static uint8_t *open_exact(const uint8_t *msg, size_t len, struct wg_packet *pkt)
{
	uint8_t *copy = malloc(len);

	memcpy(copy, msg, len);
	*pkt = (struct wg_packet){ .data = copy, .len = (uint32_t)len };
	wg_open(pair.half[1].worker, pkt, 1, &pair.half[0].address, pair.now_ns);
	return copy;
}

static void try_datagram(const struct record *r)
{
	uint8_t *exact = malloc(r->len ? r->len : 1);
	struct wg_packet pkt;

	memcpy(exact, r->bytes, r->len);
	if (wgmsg_gate(exact, r->len) == WGMSG_DATA) {
		/* Aim it at the session, so that more than the index is tried. */
		if (r->op >= 128)
			put_le32(exact + 4, pair_peer(&pair, 1)->current->local_index);
		free(open_exact(exact, r->len, &pkt));
		check(pkt.drop != WG_OK);
	}
	free(exact);
}

static void seal(const uint8_t *inner, size_t len, uint8_t *buf, struct wg_packet *pkt)
{
	struct wg_endpoint to;

	memcpy(buf + WG_HEAD, inner, len);
	*pkt = (struct wg_packet){ .data = buf + WG_HEAD, .len = (uint32_t)len };
	check(wg_seal(pair.half[0].worker, pair_peer(&pair, 0), pkt, 1, pair.now_ns, &to) ==
		WG_SEALED);
	check(pkt->len == wg_sealed_len(pair.half[0].worker, len));
}

static void try_inner(const struct record *r)
{
	size_t len = r->len < INNER_MAX ? r->len : INNER_MAX;
	uint8_t buf[WG_HEAD + INNER_MAX + WG_TAIL], *copy;
	struct wg_packet sealed, pkt;

	seal(r->bytes, len, buf, &sealed);
	copy = open_exact(sealed.data, sealed.len, &pkt);
	if (pkt.drop == WG_OK) {
		size_t whole = pkt.len;

		check(pkt.len <= sealed.len - WGMSG_DATA_MIN && (pkt.len > 0) == (len > 0));
		/* An IP length into the padding gives zeros. */
		for (size_t i = 0; i < whole; i++)
			check(pkt.data[i] == (i < len ? r->bytes[i] : 0));
		check(!len || (pkt.data[0] >> 4 == 4 && !memcmp(pkt.data + 12, "\12\0\0\1", 4)));
	} else {
		check(pkt.drop == WG_DROP_INNER || pkt.drop == WG_DROP_SOURCE);
	}
	free(copy);
	free(open_exact(sealed.data, sealed.len, &pkt)); /* wg_seal's bytes are as they were */
	check(pkt.drop == WG_DROP_REPLAY);
}

static void try_mutated(const struct record *r)
{
	static const uint8_t inner[SEAL_LEN] = { 0x45, 0, 0, SEAL_LEN, [12] = 10, 0, 0, 1, 10, 0, 0,
		2 };
	uint8_t buf[WG_HEAD + SEAL_LEN + WG_TAIL];
	struct wg_packet sealed, pkt;
	size_t n;

	seal(inner, sizeof(inner), buf, &sealed);
	n = record_mutate(r, sealed.data, sealed.len, 4, sealed.len);
	free(open_exact(sealed.data, sealed.len, &pkt));
	check((pkt.drop == WG_OK) == (n == 0));
	if (n)
		return;
	check(pkt.len == SEAL_LEN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct record r;

	while (record_next(&data, &len, &r)) {
		switch (r.op % 3) {
		case 0:
			try_datagram(&r);
			break;
		case 1:
			try_inner(&r);
			break;
		default:
			try_mutated(&r);
		}
	}
	pair.half[0].n_out = pair.half[1].n_out = 0;
	return 0;
}

static void make_seeds(const char *dir)
{
	static const uint8_t data[3 + 48] = { 129, 0, 48, 4 }, short_one[] = { 0, 0, 3, 4, 0, 0 };
	static const uint8_t v4[3 + 28] = { 1, 0, 28, 0x45, 0, 0, 28, [15] = 10, 0, 0, 1, 10, 0, 0,
		2 };
	static const uint8_t v6[3 + 48] = { 1, 0, 48, 0x60, 0, 0, 0, 0, 8 };
	static const uint8_t lies[3 + 28] = { 1, 0, 28, 0x45, 0, 255, 255 };
	static const uint8_t flips[] = { 2, 0, 6, 0, 0, 1, 0, 12, 128, 2, 0, 0, 2, 0, 3, 0, 4, 1 };
	static const uint8_t empty[] = { 1, 0, 0, 1, 0, 1, 0x45 };

	seed_write(dir, "data", data, sizeof(data));
	seed_write(dir, "short", short_one, sizeof(short_one));
	seed_write(dir, "ipv4", v4, sizeof(v4));
	seed_write(dir, "ipv6", v6, sizeof(v6));
	seed_write(dir, "length_lies", lies, sizeof(lies));
	seed_write(dir, "flips", flips, sizeof(flips));
	seed_write(dir, "empty", empty, sizeof(empty));
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	if (*argc == 3 && !strcmp((*argv)[1], "--make-seeds")) {
		make_seeds((*argv)[2]);
		exit(0);
	}
	check(crypto_init(NULL) == 0);
	session_open();
	return 0;
}
