/* The loop: whatever is due next (an arrival, a device's poll, a flow's train)
 * sets the clock and runs. A data message is opened together with those that arrive
 * at the same time from the same place, as a worker does with a received batch.
 *
 * An inner packet is an IPv4 header and a payload that follows from (sender,
 * receiver, number); the first bytes of the payload are these three. */
#include "sim.h"
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <cmocka.h>

enum { IP_HDR = 20, TAG = 16, INNER_MIN = IP_HDR + TAG, POLL_MAX_S = 1 };

uint64_t sim_seed = 1;
double sim_days = 2;

static uint64_t mix(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint64_t sim_random(struct sim *s, uint64_t below)
{
	return mix(&s->random) % below;
}

uint64_t sim_wall_ns(const struct sim *s)
{
	return s->now_ns + 1790000000 * NSEC_PER_SEC + (uint64_t)s->wall_shift_ns;
}

bool sim_options(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *end = NULL;

		if (i + 1 < argc && !strcmp(argv[i], "--seed"))
			sim_seed = strtoull(argv[++i], &end, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--days"))
			sim_days = strtod(argv[++i], &end);
		if (!end || *end) {
			fprintf(stderr, "usage: %s [--seed N] [--days N]\n", argv[0]);
			return false;
		}
	}
	return true;
}

void sim_fail(const struct sim *s, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fail_msg(
		"seed %" PRIu64 ", at %.6f s: %s", s->seed, (double)s->now_ns / NSEC_PER_SEC, text);
}

/* ---- Inner packets. */

void sim_ip(int id, uint8_t ip[16])
{
	memset(ip, 0, 16);
	ip[0] = 10;
	ip[3] = (uint8_t)(id + 1);
}

static void inner_make(uint8_t *p, size_t len, int from, int to, uint64_t seq)
{
	uint64_t state = seq * 64 + (uint64_t)from * 8 + (uint64_t)to;
	uint8_t ip[16];

	memset(p, 0, IP_HDR);
	p[0] = 0x45;
	put_be16(p + 2, (uint16_t)len);
	sim_ip(from, ip);
	memcpy(p + 12, ip, 4);
	sim_ip(to, ip);
	memcpy(p + 16, ip, 4);
	put_be32(p + IP_HDR, (uint32_t)from);
	put_be32(p + IP_HDR + 4, (uint32_t)to);
	put_be64(p + IP_HDR + 8, seq);
	for (size_t i = INNER_MIN; i < len; i += 8) {
		uint64_t v = mix(&state);

		memcpy(p + i, &v, len - i < 8 ? len - i : 8);
	}
}

/* What came out at node b: is it exactly what somebody sent, once, in order? */
static void inner_check(struct sim *s, int b, const struct wg_packet *pkt)
{
	uint8_t want[SIM_PACKET_MAX];
	struct sim_pair *pair;
	uint32_t from, to;
	uint64_t seq;

	if (pkt->len < INNER_MIN || pkt->len > SIM_PACKET_MAX)
		sim_fail(s, "a packet of %u bytes that nobody sent", pkt->len);
	from = get_be32(pkt->data + IP_HDR);
	to = get_be32(pkt->data + IP_HDR + 4);
	seq = get_be64(pkt->data + IP_HDR + 8);
	if (from >= (uint32_t)s->n_nodes || to != (uint32_t)b)
		sim_fail(s, "a packet for %u at node %d", to, b);
	inner_make(want, pkt->len, (int)from, b, seq);
	if (memcmp(want, pkt->data, pkt->len))
		sim_fail(s, "packet %" PRIu64 " from %u was altered", seq, from);
	if (memcmp(pkt->peer->noise.public_key, s->node[from].public_key, WG_KEY_LEN))
		sim_fail(s, "packet from %u came out of another peer", from);
	pair = &s->pair[from][b];
	if (seq >= pair->n_sent)
		sim_fail(s, "packet %" PRIu64 " was never sent", seq);
	if (pair->delivered[seq])
		sim_fail(s, "packet %" PRIu64 " came out twice", seq);
	if (!s->may_reorder && seq < pair->last_seq)
		sim_fail(s, "packet %" PRIu64 " after %" PRIu64, seq, pair->last_seq - 1);
	pair->delivered[seq] = 1;
	pair->last_seq = seq + 1;
	pair->n_delivered++;
	pair->last_delivered_ns = s->now_ns;
	s->n_delivered++;
}

/* ---- The heap of flights. */

static bool is_before(const struct sim_flight *a, const struct sim_flight *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_push(struct sim *s, struct sim_flight f)
{
	size_t i = s->n_flights;

	if (i == s->cap_flights) {
		s->cap_flights = s->cap_flights ? 2 * s->cap_flights : 256;
		s->flight = realloc(s->flight, s->cap_flights * sizeof(*s->flight));
		assert_non_null(s->flight);
	}
	f.order = s->order++;
	s->n_flights++;
	for (; i && is_before(&f, &s->flight[(i - 1) / 2]); i = (i - 1) / 2)
		s->flight[i] = s->flight[(i - 1) / 2];
	s->flight[i] = f;
}

static struct sim_flight heap_pop(struct sim *s)
{
	struct sim_flight top = s->flight[0], f = s->flight[--s->n_flights];
	size_t i = 0, child;

	for (; (child = 2 * i + 1) < s->n_flights; i = child) {
		if (child + 1 < s->n_flights && is_before(&s->flight[child + 1], &s->flight[child]))
			child++;
		if (!is_before(&s->flight[child], &f))
			break;
		s->flight[i] = s->flight[child];
	}
	s->flight[i] = f;
	return top;
}

/* ---- The wire. */

static int node_at(const struct sim *s, const struct wg_endpoint *to)
{
	for (int i = 0; i < s->n_nodes; i++)
		if (!memcmp(s->node[i].address.remote, to->remote, sizeof(to->remote)))
			return i;
	return SIM_PEER_NONE;
}

static struct sim_message *message_make(const uint8_t *bytes, size_t len)
{
	struct sim_message *m = calloc(1, sizeof(*m) + len);

	assert_non_null(m);
	m->len = len;
	memcpy(m->bytes, bytes, len);
	return m;
}

static void fly(struct sim *s, struct sim_flight f, struct sim_message *m)
{
	f.msg = m;
	f.at_ns = s->now_ns + s->wire.delay_ns;
	if (s->wire.jitter_ns)
		f.at_ns += sim_random(s, s->wire.jitter_ns);
	m->n_flights++;
	heap_push(s, f);
}

static void fly_forged(struct sim *s, struct sim_flight f, const struct sim_message *m, bool alters)
{
	struct sim_message *copy = message_make(m->bytes, m->len);
	size_t len = m->len;

	copy->is_forged = true;
	/* The second MAC of a handshake is not looked at without load: not there. */
	if (wgmsg_gate(m->bytes, m->len) != WGMSG_DATA)
		len -= COOKIE_LEN;
	if (alters)
		copy->bytes[sim_random(s, len)] ^= (uint8_t)(1 << sim_random(s, 8));
	fly(s, f, copy);
}

static bool by_chance(struct sim *s, unsigned per_mille)
{
	return per_mille && sim_random(s, 1000) < per_mille;
}

static bool wire_loses(struct sim *s, int from, int to, const uint8_t *msg, size_t len)
{
	const struct sim_wire *w = &s->wire;

	return to == SIM_PEER_NONE || w->is_cut || (w->mtu && len > w->mtu) ||
		(w->loses && w->loses(w->ctx, from, to, msg, len)) || by_chance(s, w->loss);
}

static void wire_put(struct sim *s, struct sim_node *n, const struct wg_endpoint *to,
	const uint8_t *msg, size_t len)
{
	enum wgmsg_type type = wgmsg_gate(msg, len);
	struct sim_flight f = { .from = n->address, .to = *to };
	int dst = node_at(s, to);
	struct sim_message *m;
	bool is_inner = type == WGMSG_DATA && len > WGMSG_DATA_MIN;

	SIM_CHECK(s, type != 0);
	n->sent[type]++;
	n->last_sent_ns[type] = s->now_ns;
	n->sent_keepalives += type == WGMSG_DATA && len == WGMSG_DATA_MIN;
	if (type == WGMSG_INITIATION)
		memcpy(&n->last_initiation, msg, sizeof(n->last_initiation));
	s->may_reorder |= s->wire.jitter_ns > 0;
	if (wire_loses(s, n->id, dst, msg, len)) {
		s->lost.wire += is_inner;
		return;
	}
	m = message_make(msg, len);
	if (by_chance(s, s->wire.corrupt)) {
		fly_forged(s, f, m, true);
		free(m);
		s->lost.wire += is_inner;
		return;
	}
	m->is_inner = is_inner;
	fly(s, f, m);
	if (by_chance(s, s->wire.duplicate))
		fly(s, f, m);
	if (by_chance(s, s->wire.replay)) {
		const struct sim_flight *old = &s->tape[sim_random(s, SIM_TAPE)];

		if (old->msg &&
			(!s->wire.spares_handshakes ||
				wgmsg_gate(old->msg->bytes, old->msg->len) == WGMSG_DATA))
			fly_forged(s, *old, old->msg, false);
	}
}

void sim_inject(struct sim *s, int from, int to, const void *msg, size_t len)
{
	struct sim_flight f = { .from = s->node[from].address, .to = s->node[to].address };
	struct sim_message *m = message_make(msg, len);

	m->is_forged = true;
	fly(s, f, m);
}

static void message_put(struct sim *s, struct sim_message *m)
{
	if (--m->n_flights)
		return;
	if (m->is_inner && !m->is_done) {
		SIM_CHECK(s, m->drop != WG_OK);
		s->lost.at[m->drop]++;
	}
	free(m);
}

/* Accepted: the wire may play it again later. Keeps the message alive. */
static void tape_keep(struct sim *s, const struct sim_flight *f)
{
	struct sim_flight *slot = &s->tape[s->tape_at++ % SIM_TAPE];

	free(slot->msg);
	*slot = *f;
	slot->msg = message_make(f->msg->bytes, f->msg->len);
}

/* ---- Arrivals. */

static struct wg_endpoint origin(const struct sim_flight *f)
{
	struct wg_endpoint e = f->from;

	memcpy(e.local, f->to.remote, sizeof(e.local));
	return e;
}

static void arrive_data(struct sim *s, int id, struct sim_flight *f, size_t n)
{
	static uint8_t buf[SIM_TRAIN_MAX][SIM_MESSAGE_MAX];
	struct wg_packet pkt[SIM_TRAIN_MAX];
	struct wg_endpoint from = origin(&f[0]);

	for (size_t i = 0; i < n; i++) {
		memcpy(buf[i], f[i].msg->bytes, f[i].msg->len);
		pkt[i] = (struct wg_packet){ .data = buf[i], .len = (uint32_t)f[i].msg->len };
	}
	wg_open(s->node[id].worker, pkt, n, &from, s->now_ns);
	for (size_t i = 0; i < n; i++) {
		struct sim_message *m = f[i].msg;

		s->n_opened++;
		m->drop = pkt[i].drop;
		if (m->drop == WG_OK && m->is_forged)
			sim_fail(s, "an altered or replayed message was accepted");
		if (m->drop == WG_OK && m->is_done)
			sim_fail(s, "a message was accepted twice");
		if (m->drop == WG_OK) {
			m->is_done = true;
			if (pkt[i].len)
				inner_check(s, id, &pkt[i]);
			tape_keep(s, &f[i]);
		}
		message_put(s, m);
	}
}

static void arrive_handshake(struct sim *s, int id, struct sim_flight *f)
{
	struct sim_node *n = &s->node[id];
	struct wg_endpoint from = origin(f);
	enum wg_drop why = wg_rx_handshake(
		n->wg, f->msg->bytes, f->msg->len, &from, n->is_loaded, s->now_ns, sim_wall_ns(s));

	n->last_handshake_drop = why;
	if (why == WG_OK && f->msg->is_forged)
		sim_fail(s, "a forged handshake message was accepted");
	/* A mended copy of what we have taken is as bad as a forged one. */
	if (why == WG_OK && !f->msg->is_done)
		tape_keep(s, f);
	f->msg->is_done = why == WG_OK;
	f->msg->drop = why;
	message_put(s, f->msg);
}

static void arrive(struct sim *s)
{
	struct sim_flight train[SIM_TRAIN_MAX];
	enum wgmsg_type type;
	size_t n = 1;
	int id;

	train[0] = heap_pop(s);
	id = node_at(s, &train[0].to);
	type = wgmsg_gate(train[0].msg->bytes, train[0].msg->len);
	if (id == SIM_PEER_NONE || !type) { /* moved away meanwhile, or the type was altered */
		s->lost.wire += train[0].msg->is_inner && train[0].msg->n_flights == 1 &&
			!train[0].msg->is_done;
		train[0].msg->is_inner = train[0].msg->n_flights > 1 && train[0].msg->is_inner;
		message_put(s, train[0].msg);
		return;
	}
	s->node[id].heard[type]++;
	if (type != WGMSG_DATA) {
		arrive_handshake(s, id, &train[0]);
		return;
	}
	while (n < SIM_TRAIN_MAX && s->n_flights && s->flight[0].at_ns <= s->now_ns &&
		!memcmp(&s->flight[0].from, &train[0].from, sizeof(train[0].from)) &&
		!memcmp(&s->flight[0].to, &train[0].to, sizeof(train[0].to)) &&
		wgmsg_gate(s->flight[0].msg->bytes, s->flight[0].msg->len) == WGMSG_DATA) {
		train[n++] = heap_pop(s);
		s->node[id].heard[WGMSG_DATA]++;
	}
	arrive_data(s, id, train, n);
}

/* ---- Trains. */

static uint64_t number_take(struct sim *s, int from, int to)
{
	struct sim_pair *p = &s->pair[from][to];

	if (p->n_sent == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 1024;

		p->delivered = realloc(p->delivered, cap);
		assert_non_null(p->delivered);
		memset(p->delivered + p->cap, 0, cap - p->cap);
		p->cap = cap;
	}
	s->n_sent++;
	return p->n_sent++;
}

enum wg_sealed sim_send(struct sim *s, int from, int to, unsigned n, size_t len)
{
	static uint8_t buf[SIM_TRAIN_MAX][WG_HEAD + SIM_PACKET_MAX + WG_TAIL];
	struct wg_packet pkt[SIM_TRAIN_MAX];
	struct sim_node *node = &s->node[from];
	enum wg_sealed ret = WG_DROPPED;
	struct wg_endpoint dst;
	struct wg_peer *peer;
	uint8_t ip[16];

	SIM_CHECK(s, n <= SIM_TRAIN_MAX && len >= INNER_MIN && len <= SIM_PACKET_MAX);
	for (unsigned i = 0; i < n; i++) {
		pkt[i] = (struct wg_packet){ .data = buf[i] + WG_HEAD, .len = (uint32_t)len };
		inner_make(pkt[i].data, len, from, to, number_take(s, from, to));
	}
	sim_ip(to, ip);
	peer = wg_route(node->worker, AF_INET, ip);
	if (peer)
		ret = wg_seal(node->worker, peer, pkt, n, s->now_ns, &dst);
	else
		wg_worker_drop(node->worker, NULL, WG_DROP_NO_ROUTE, n);
	if (ret == WG_DROPPED)
		s->lost.sender += n;
	for (unsigned i = 0; i < n && ret == WG_SEALED; i++)
		wire_put(s, node, &dst, pkt[i].data, pkt[i].len);
	return ret;
}

void sim_flow(struct sim *s, int from, int to, uint64_t interval_ns, unsigned n, size_t len)
{
	for (int i = 0; i < SIM_FLOWS_MAX; i++) {
		if (s->flow[i].is_on)
			continue;
		s->flow[i] = (struct sim_flow){ .is_on = true,
			.from = from,
			.to = to,
			.n = n,
			.len = len,
			.interval_ns = interval_ns,
			.next_ns = s->now_ns };
		return;
	}
	sim_fail(s, "too many flows");
}

void sim_flows_stop(struct sim *s)
{
	memset(s->flow, 0, sizeof(s->flow));
}

/* ---- Time. */

static void poll_node(struct sim *s, struct sim_node *n)
{
	uint64_t next;

	n->poll_ns = s->now_ns + POLL_MAX_S * NSEC_PER_SEC;
	next = wg_poll(n->wg, s->now_ns, sim_wall_ns(s));
	/* A deadline that poll could not serve would hold the clock for ever. */
	if (next <= s->now_ns)
		sim_fail(s, "wg_poll wants to be called again at once");
	if (next < n->poll_ns)
		n->poll_ns = next;
}

static uint64_t next_event(const struct sim *s)
{
	uint64_t next = s->n_flights ? s->flight[0].at_ns : UINT64_MAX;

	for (int i = 0; i < s->n_nodes; i++)
		if (s->node[i].poll_ns < next)
			next = s->node[i].poll_ns;
	for (int i = 0; i < SIM_FLOWS_MAX; i++)
		if (s->flow[i].is_on && s->flow[i].next_ns < next)
			next = s->flow[i].next_ns;
	return next;
}

void sim_run(struct sim *s, uint64_t ns)
{
	uint64_t end = s->now_ns + ns, next;

	while ((next = next_event(s)) <= end) {
		if (next > s->now_ns)
			s->now_ns = next;
		for (int i = 0; i < s->n_nodes; i++)
			if (s->node[i].poll_ns <= s->now_ns)
				poll_node(s, &s->node[i]);
		for (int i = 0; i < SIM_FLOWS_MAX; i++) {
			struct sim_flow *f = &s->flow[i];

			if (!f->is_on || f->next_ns > s->now_ns)
				continue;
			/* After a jump in time no backlog is made up for. */
			f->next_ns = s->now_ns + f->interval_ns;
			sim_send(s, f->from, f->to, f->n, f->len);
		}
		if (s->n_flights && s->flight[0].at_ns <= s->now_ns)
			arrive(s);
		rcu_quiescent();
	}
	s->now_ns = end;
}

void sim_jump(struct sim *s, uint64_t ns)
{
	s->now_ns += ns;
}

void sim_move(struct sim *s, int a)
{
	put_be32(s->node[a].address.remote + 4, get_be32(s->node[a].address.remote + 4) + 1);
}

/* ---- Nodes. */

static void op_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	struct sim_node *n = ctx;

	wire_put(n->sim, n, to, msg, len);
}

static void op_wake(void *ctx)
{
	struct sim_node *n = ctx;

	n->poll_ns = n->sim->now_ns;
}

static void op_limit_key(const struct wg_endpoint *from, uint8_t key[16])
{
	memset(key, 0, 16);
	memcpy(key, from->remote, 4);
}

static const struct wg_ops ops = { op_send, op_wake, op_limit_key };

static void node_init(struct sim *s, int id)
{
	struct sim_node *n = &s->node[id];
	struct wg_config cfg = { .ops = &ops,
		.ctx = n,
		.n_workers = 1,
		.server_id = (unsigned)id,
		.seed = s->seed * 64 + (uint64_t)id };

	*n = (struct sim_node){ .sim = s, .id = id };
	put_be32(n->address.remote, (uint32_t)id + 1);
	put_be32(n->address.remote + 4, 51820);
	assert_int_equal(wg_create(&n->wg, &cfg), 0);
	wg_set_mtu(n->wg, 1420);
	assert_int_equal(wg_worker_create(&n->worker, n->wg, 0), 0);
	for (unsigned i = 0; i < WG_KEY_LEN; i++)
		n->secret[i] = (uint8_t)sim_random(s, 256);
	sim_set_secret(s, id, n->secret);
	wg_set_up(n->wg, true, s->now_ns);
}

void sim_init(struct sim *s, uint64_t seed, int n_nodes)
{
	static bool is_ready;

	if (!is_ready) {
		assert_int_equal(crypto_init(NULL), 0);
		/* For good: a test that fails does not reach its end. */
		rcu_thread_init();
		is_ready = true;
	}
	*s = (struct sim){ .seed = seed, .random = seed, .now_ns = SEC(1000), .n_nodes = n_nodes };
	s->wire.delay_ns = 10 * NSEC_PER_MSEC;
	for (int i = 0; i < n_nodes; i++)
		node_init(s, i);
}

void sim_fini(struct sim *s)
{
	sim_balance(s);
	while (s->n_flights) {
		struct sim_flight f = heap_pop(s);

		if (--f.msg->n_flights == 0)
			free(f.msg);
	}
	for (int i = 0; i < SIM_TAPE; i++)
		free(s->tape[i].msg);
	for (int i = 0; i < s->n_nodes; i++) {
		wg_worker_destroy(s->node[i].worker);
		wg_destroy(s->node[i].wg);
		for (int k = 0; k < s->n_nodes; k++)
			free(s->pair[i][k].delivered);
	}
	free(s->flight);
}

void sim_apply(struct sim *s, int a, const struct wg_change *c)
{
	int ret = wg_apply(s->node[a].wg, c, s->now_ns, sim_wall_ns(s), NULL, NULL);

	SIM_CHECK(s, ret == 0);
}

void sim_set_secret(struct sim *s, int a, const uint8_t secret[WG_KEY_LEN])
{
	struct wg_change c = { .has_private_key = true };
	struct wg_info info;

	memcpy(c.private_key, secret, WG_KEY_LEN);
	sim_apply(s, a, &c);
	wg_get(s->node[a].wg, &info);
	memcpy(s->node[a].public_key, info.public_key, WG_KEY_LEN);
}

struct wg_peer_change sim_peer_change(struct sim *s, int b)
{
	struct wg_peer_change pc = { 0 };

	memcpy(pc.public_key, s->node[b].public_key, WG_KEY_LEN);
	return pc;
}

void sim_apply_peer(struct sim *s, int a, struct wg_peer_change *pc)
{
	struct wg_change c = { .peers = pc, .n_peers = 1 };

	sim_apply(s, a, &c);
}

void sim_add_peer(struct sim *s, int a, int b, bool has_endpoint)
{
	struct wg_allowed_change allowed = { .net = { .addr.family = AF_INET, .bits = 32 } };
	struct wg_peer_change pc = sim_peer_change(s, b);

	sim_ip(b, allowed.net.addr.ip);
	pc.allowed = &allowed;
	pc.n_allowed = 1;
	pc.has_endpoint = has_endpoint;
	pc.endpoint = s->node[b].address;
	sim_apply_peer(s, a, &pc);
}

void sim_connect(struct sim *s, int a, int b)
{
	sim_add_peer(s, a, b, true);
	sim_add_peer(s, b, a, true);
}

void sim_remove_peer(struct sim *s, int a, int b)
{
	struct wg_peer_change pc = sim_peer_change(s, b);

	pc.is_removal = true;
	sim_apply_peer(s, a, &pc);
}

void sim_set_keepalive(struct sim *s, int a, int b, uint16_t seconds)
{
	struct wg_peer_change pc = sim_peer_change(s, b);

	pc.has_keepalive = true;
	pc.keepalive_s = seconds;
	sim_apply_peer(s, a, &pc);
}

/* ---- Questions. */

struct wg_peer *sim_peer(struct sim *s, int a, int b)
{
	return peer_find(s->node[a].wg, s->node[b].public_key);
}

struct wg_peer_info sim_info(struct sim *s, int a, int b)
{
	struct wg_peer_info info = { 0 };
	struct wg_walk *walk;
	size_t n = 0;
	int ret;

	SIM_CHECK(s, wg_walk_begin(&walk, s->node[a].wg) == 0);
	do {
		ret = wg_walk_next(walk, &info, 1, &n);
		SIM_CHECK(s, ret == -EAGAIN || n == 1);
	} while (ret == -EAGAIN || memcmp(info.public_key, s->node[b].public_key, WG_KEY_LEN) != 0);
	wg_walk_end(walk);
	info.allowed = NULL;
	return info;
}

uint64_t sim_drops(struct sim *s, int a, enum wg_drop why)
{
	uint64_t drops[WG_DROP_N];

	wg_drops(s->node[a].wg, drops);
	return drops[why];
}

uint64_t sim_delivered(const struct sim *s, int a, int b)
{
	return s->pair[a][b].n_delivered;
}

uint64_t sim_delivered_ns(const struct sim *s, int a, int b)
{
	return s->pair[a][b].last_delivered_ns;
}

/* Packets that wait at a node, or that it dropped after wg_seal had staged them. */
static uint64_t held(struct sim *s, int id)
{
	static const enum wg_drop after[] = { WG_DROP_STAGED_FULL, WG_DROP_STAGED_PURGED,
		WG_DROP_NO_BUFFER };
	uint64_t n = 0;

	for (struct wg_peer *p = s->node[id].wg->first; p; p = p->next)
		for (struct staged *w = p->stage_first; w; w = w->after)
			n++;
	for (size_t i = 0; i < ARRAY_LEN(after); i++)
		n += sim_drops(s, id, after[i]);
	return n;
}

void sim_balance(struct sim *s)
{
	uint64_t lost = s->lost.wire + s->lost.sender, waiting = 0, flying = 0;

	for (int i = 0; i < WG_DROP_N; i++)
		lost += s->lost.at[i];
	for (int i = 0; i < s->n_nodes; i++)
		waiting += held(s, i);
	/* A doubled message is in flight once; it counts when neither has arrived. */
	for (size_t i = 0; i < s->n_flights; i++)
		flying += s->flight[i].msg->is_inner && !s->flight[i].msg->is_done
			? 1000000 / s->flight[i].msg->n_flights
			: 0;
	flying = (flying + 500000) / 1000000;
	if (s->n_sent != s->n_delivered + lost + waiting + flying)
		sim_fail(s,
			"sent %" PRIu64 " delivered %" PRIu64 " lost %" PRIu64 " held %" PRIu64
			" in flight %" PRIu64,
			s->n_sent, s->n_delivered, lost, waiting, flying);
}
