/* The clients of client.c, as load generators use them, with arbitrary messages and with
 * changed ones of a real server.
 *
 * Records: op % 4 says what the bytes are.
 *  0  a message: it finds a client or none, and that one refuses it;
 *  1  changes (place, mask) of a response, 2 of a cookie reply, 3 of a data message: any
 *     change is refused, and the right message is taken after it.
 * Each message lies in an allocation of its exact size. */
#include "pair.h"

enum { CLIENTS = 2, SEAL_LEN = 60 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static struct pair pair; /* half 0 is the server */
static struct wg_clients *clients;
static struct aead *aead;

static struct half *server(void)
{
	return &pair.half[0];
}

static enum wg_client_event take_exact(const uint8_t *msg, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);
	enum wg_client_event event = WG_CLIENT_REFUSED;
	size_t i;

	if (len)
		memcpy(copy, msg, len);
	if (wg_clients_find(clients, copy, len, &i)) {
		check(i < CLIENTS);
		event = wg_clients_take(clients, i, copy, len, pair.now_ns);
	}
	free(copy);
	return event;
}

/* Does the client it is for open it? *inner: its first byte, 0 where it is empty. */
static bool open_exact(const uint8_t *msg, size_t len, uint8_t *inner)
{
	uint8_t *copy = malloc(len ? len : 1);
	struct wg_packet pkt = { .data = copy, .len = (uint32_t)len };
	bool is_open = false;
	size_t i;

	if (len)
		memcpy(copy, msg, len);
	if (wg_clients_find(clients, copy, len, &i))
		is_open = wg_clients_open(clients, i, aead, &pkt);
	*inner = is_open && pkt.len ? pkt.data[0] : 0;
	free(copy);
	return is_open;
}

/* A fresh handshake of client 0: its initiation reaches the server. */
static void initiate(bool is_loaded, enum wg_drop expected)
{
	uint8_t msg[WGMSG_INITIATION_LEN];

	pair.now_ns += 2 * NSEC_PER_SEC; /* load is forgotten, limits are not met */
	server()->n_out = 0;
	wg_clients_initiate(clients, 0, pair.now_ns, pair_wall(&pair), msg);
	check(pair_hand(&pair, 0, msg, sizeof(msg), is_loaded) == expected);
	check(server()->n_out == 1);
}

static void finish(void)
{
	check(take_exact(server()->out[0], server()->out_len[0]) == WG_CLIENT_SESSION);
	check(take_exact(server()->out[0], server()->out_len[0]) == WG_CLIENT_REFUSED);
}

static void try_response(const struct record *r)
{
	uint8_t msg[WGMSG_RESPONSE_LEN];

	initiate(false, WG_OK);
	check(server()->out_len[0] == sizeof(msg));
	memcpy(msg, server()->out[0], sizeof(msg));
	/* The MACs are no business of who initiates. */
	if (record_mutate(r, msg, sizeof(msg), 8, offsetof(struct wgmsg_response, macs)))
		check(take_exact(msg, sizeof(msg)) == WG_CLIENT_REFUSED);
	finish();
}

static void try_cookie(const struct record *r)
{
	uint8_t msg[WGMSG_COOKIE_LEN], again[WGMSG_INITIATION_LEN];

	pair.now_ns += 200 * NSEC_PER_SEC; /* the former cookie is too old */
	initiate(true, WG_DROP_MAC2);
	check(server()->out_len[0] == sizeof(msg));
	memcpy(msg, server()->out[0], sizeof(msg));
	if (record_mutate(r, msg, sizeof(msg), 8, sizeof(msg)))
		check(take_exact(msg, sizeof(msg)) == WG_CLIENT_REFUSED);
	check(take_exact(server()->out[0], sizeof(msg)) == WG_CLIENT_COOKIE);
	server()->n_out = 0;
	check(wg_clients_again(clients, 0, pair.now_ns, again));
	check(pair_hand(&pair, 0, again, sizeof(again), true) == WG_OK && server()->n_out == 1);
	finish();
}

/* What the client sends makes the session the server's own. */
static void confirm(void)
{
	uint8_t buf[WG_HEAD + WG_TAIL];
	struct wg_packet pkt = { .data = buf + WG_HEAD };

	check(wg_clients_seal(clients, 0, aead, &pkt, 1));
	wg_open(server()->worker, &pkt, 1, &pair.half[1].address, pair.now_ns);
	check(pkt.drop == WG_OK && pkt.len == 0);
	wg_poll(server()->wg, pair.now_ns, pair_wall(&pair));
}

static void try_data(const struct record *r)
{
	uint8_t buf[WG_HEAD + SEAL_LEN + WG_TAIL] = { [WG_HEAD] = 0x45 }, copy[sizeof(buf)], inner;
	struct wg_packet pkt = { .data = buf + WG_HEAD, .len = SEAL_LEN };
	uint8_t key[WG_KEY_LEN];
	struct wg_endpoint to;

	initiate(false, WG_OK);
	finish();
	confirm();
	wg_clients_public_key(clients, 0, key);
	check(wg_seal(server()->worker, peer_find(server()->wg, key), &pkt, 1, pair.now_ns, &to) ==
		WG_SEALED);
	memcpy(copy, pkt.data, pkt.len);
	if (record_mutate(r, copy, pkt.len, 4, pkt.len))
		check(!open_exact(copy, pkt.len, &inner));
	check(open_exact(pkt.data, pkt.len, &inner) && inner == 0x45);
}

static void one_record(const struct record *r)
{
	uint8_t inner;

	switch (r->op % 4) {
	case 0:
		check(take_exact(r->bytes, r->len) == WG_CLIENT_REFUSED);
		check(!open_exact(r->bytes, r->len, &inner));
		break;
	case 1:
		try_response(r);
		break;
	case 2:
		try_cookie(r);
		break;
	default:
		try_data(r);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct record r;

	for (int i = 0; i < 16 && record_next(&data, &len, &r); i++)
		one_record(&r);
	return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct wg_peer_change pc = { .has_endpoint = true };
	struct wg_change c = { .peers = &pc, .n_peers = 1 };

	check(crypto_init(NULL) == 0 && aead_create(&aead) == 0);
	pair_open(&pair);
	check(wg_clients_create(&clients, CLIENTS, server()->public_key) == 0);
	wg_clients_public_key(clients, 0, pc.public_key);
	pc.endpoint = pair.half[1].address;
	pair_change(&pair, 0, &c);
	return 0;
}
