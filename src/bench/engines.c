/* The engines (io/io.h) against each other, against epoll + recvmmsg as one writes them at
 * first, and against what was claimed of io_uring.
 *
 * Receiving is measured at saturation by construction: while the receiver is held, a process fills
 * its socket with some ten thousand datagrams (engines_source.h); then a thread takes them
 * out through an engine (engines_rig.h) while nobody sends. Counted is the CPU time of all
 * that worked for it. Two cores cannot be had otherwise to send faster than an engine
 * receives, and one that waits now and then is charged for its waiting and waking. Latency: the
 * thread sends each datagram back; the other process asks at a rate of which the
 * baseline can do twice as much without loss, and times each answer.
 *
 * Contestants take turns; each turn has a new socket and a new engine. */
#include "base/clock.h"
#include "base/cpu.h"
#include "bench/engines_math.h"
#include "bench/engines_memory.h"
#include "bench/engines_plain.h"
#include "bench/engines_rig.h"
#include "bench/engines_source.h"
#include "bench/rounds.h"
#include "bench/scenario.h"
#include "bench/stats.h"
#include "crypto/crypto.h"
#include <errno.h>
#include <string.h>

enum {
	METHODS_MAX = 12,
	METHOD_ID_MAX = 24,
	SQPOLL_IDLE_MS = 2000, /* as the claim has it */
	RX_ROUNDS = 21,
	RX_ROUNDS_QUICK = 3,
	ECHO_ROUNDS = 31,
	ECHO_ROUNDS_QUICK = 5,
	ECHO_LEN = 64,
	CPU_RECEIVER = 0,
	CPU_SOURCE = 1,
	OTHERS_EVERY = 3, /* rounds: of the other variants */
	SAMPLE_TRAINS = 8, /* to learn what a datagram takes */
	TRAIN = 45, /* as many have room in one of either length */
	DRAINS = 9,
	DRAINS_QUICK = 5,
	ECHO_SAMPLES = 21000, /* per round: 21 are beyond the 99.9th percentile */
	ECHO_SAMPLES_QUICK = 7000,
	SEARCH_MS = 60, /* of each step of the search for a rate */
	TRIES = 3, /* of what other programs may have spoilt */
	TRIES_BLIND = 20, /* of what they let show nothing at all */
};

struct method {
	char id[METHOD_ID_MAX];
	const struct engine_ops *ops;
	struct engine_config cfg;
};

static const struct variant {
	const char *name;
	uint32_t len;
	bool has_gro;
	uint32_t buf_len; /* room in the socket; the kernel doubles it */
} variants[] = {
	{ "rx", 64, false, 4 << 20 }, /* the one of which all else is told, too */
	{ "rx_gro", 64, true, 16 << 20 },
	{ "rx_1420", 1420, false, 16 << 20 },
	{ "rx_1420_gro", 1420, true, 32 << 20 },
};

struct contest {
	struct scene *scene;
	struct source *source;
	struct method methods[METHODS_MAX];
	size_t n;
	uint64_t fill[ARRAY_LEN(variants)]; /* datagrams that have room in the socket */
	double rate; /* of the echoes, per second */
};

static const char claim_rx[] = "seed: 1720 with epoll, 6840 with io_uring";
static const char claim_calls[] = "seed: 3125";

/* ---- Who takes part. */

static const char *figure_id(char out[REPORT_ID_MAX], const struct method *m, const char *what)
{
	snprintf(out, REPORT_ID_MAX, "%.19s_%.27s", m->id, what);
	return out;
}

static void skip(struct contest *c, const struct method *m, const char *what, const char *why)
{
	char id[REPORT_ID_MAX];

	report_skip(c->scene->report, figure_id(id, m, what), "%s", why);
}

static void skip_once(struct contest *c, const struct method *m, const char *what, const char *why)
{
	char id[REPORT_ID_MAX];

	figure_id(id, m, what);
	for (size_t i = 0; i < c->scene->report->n_skips; i++)
		if (!strcmp(c->scene->report->skips[i].id, id))
			return;
	skip(c, m, what, why);
}

static void skip_all(struct contest *c, const struct method *m, const char *why)
{
	skip(c, m, "rx_kpps_per_cpu", why);
	skip(c, m, "syscalls_per_100k", why);
	skip(c, m, "p999_us", why);
}

static void enter(struct contest *c, const char *id, const struct engine_ops *ops,
	const struct engine_config *cfg)
{
	struct method *m = &c->methods[c->n];
	char why[REPORT_TEXT_MAX];
	int ret = ops->probe(cfg);

	assert(c->n < METHODS_MAX);
	snprintf(m->id, sizeof(m->id), "%s", id);
	m->ops = ops;
	m->cfg = *cfg;
	if (!ret) {
		c->n++;
		return;
	}
	snprintf(why, sizeof(why), "the engine cannot run here: %s", strerror(-ret));
	skip_all(c, m, why);
}

static const struct method *method(const struct contest *c, const char *id)
{
	for (size_t i = 0; i < c->n; i++)
		if (!strcmp(c->methods[i].id, id))
			return &c->methods[i];
	return NULL;
}

/* Another name for epoll? With one thread they are the same. */
static bool is_epoll(const struct engine_ops *ops)
{
	return ops != &epoll_ops && ops->wait == epoll_ops.wait;
}

static void enter_all(struct contest *c)
{
	const struct engine_config plain = { 0 }, sqpoll = { .sqpoll_idle_ms = SQPOLL_IDLE_MS };
	bool has_uring = false;

	enter(c, plain_ops.name, &plain_ops, &plain);
	for (size_t i = 0; engines[i]; i++) {
		const struct engine_ops *ops = engines[i];

		if (is_epoll(ops)) {
			struct method m = { .ops = ops };

			snprintf(m.id, sizeof(m.id), "%s", ops->name);
			skip_all(c, &m, "one worker of it is one of epoll: the same code");
			continue;
		}
		enter(c, ops->name, ops, &plain);
		if (strcmp(ops->name, "uring") != 0)
			continue;
		has_uring = true;
		enter(c, "uring_sqpoll", ops, &sqpoll);
	}
	if (!has_uring) {
		skip_all(c, &(struct method){ .id = "uring" }, "this build has no io_uring");
		skip_all(c, &(struct method){ .id = "uring_sqpoll" }, "this build has no io_uring");
	}
	if (!method(c, "uring") || !method(c, "epoll"))
		report_skip(c->scene->report, "uring_over_epoll_rx_per_cpu",
			"one of the two engines is not here");
}

/* ---- Helpers. */

static struct figure *figure(struct contest *c, const struct method *m, const char *what,
	const char *unit, const char *claim)
{
	char id[REPORT_ID_MAX];

	return report_figure(c->scene->report, figure_id(id, m, what), unit, claim);
}

/* NULL: it has no sample. */
static struct figure *found(struct contest *c, const char *method_id, const char *what)
{
	struct report *r = c->scene->report;
	char id[REPORT_ID_MAX];

	snprintf(id, sizeof(id), "%.19s_%.27s", method_id, what);
	for (size_t i = 0; i < r->n_figures; i++)
		if (!strcmp(r->figures[i].id, id) && r->figures[i].n_samples)
			return &r->figures[i];
	return NULL;
}

/* a over b, round by round. */
static struct figure *ratio(struct contest *c, const char *id, const char *claim,
	const struct figure *a, const struct figure *b)
{
	struct figure *f = report_figure(c->scene->report, id, "", claim);

	for (size_t i = 0; i < a->n_samples && i < b->n_samples; i++)
		figure_sample(f, a->samples[i] / b->samples[i]);
	return f;
}

/* ---- Receiving. */

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

/* What is not the program's own code: the thread in the kernel, and threads of the kernel's.
 * The ticks say how the thread divides its time, the scheduler how much it was. */
static double kernel_share(const struct rig_drained *d)
{
	return share(d->helper_ns, d->cpu_ns) +
		share(d->cpu_ns - d->helper_ns, d->cpu_ns) *
		share(d->system_ns, d->user_ns + d->system_ns);
}

static void sample_rx(struct contest *c, const struct method *m, const struct variant *v,
	const struct rig_drained *d, double cpu_ns, const char *syscalls_missing)
{
	char what[REPORT_ID_MAX];

	snprintf(what, sizeof(what), "%s_kpps_per_cpu", v->name);
	figure_sample(figure(c, m, what, "k/s", v == variants ? claim_rx : ""), 1e6 / cpu_ns);
	if (v != variants)
		return;
	figure_sample(figure(c, m, "kernel_share_percent", "%",
			      "seed: 38 of context with epoll, below 2 with io_uring"),
		100 * kernel_share(d));
	if (syscalls_missing) {
		skip_once(c, m, "syscalls_per_100k", syscalls_missing);
		return;
	}
	figure_sample(figure(c, m, "syscalls_per_100k", "",
			      strcmp(m->id, "uring_sqpoll") != 0 ? claim_calls
								 : "must <= 10, aim 0; seed: 0"),
		1e5 * (double)d->n_syscalls / (double)d->n_packets);
}

static int make_held(struct rig **out, const struct method *m, const struct variant *v)
{
	return rig_create(out,
		&(struct rig_config){ .ops = m->ops,
			.engine = m->cfg,
			.len = v->len,
			.has_gro = v->has_gro,
			.buf_len = v->buf_len,
			.cpu = CPU_RECEIVER });
}

/* n datagrams into the socket of one that is held. */
static int fill(struct contest *c, struct rig *rig, const struct variant *v, uint64_t n)
{
	struct source_order o = { .port = rig_port(rig), .len = v->len, .n = n };
	struct source_result r;
	struct rig_queue q;
	int ret = source_start(c->source, &o);

	if (!ret)
		ret = source_wait(c->source, &r);
	if (!ret)
		ret = rig_queue(rig, &q);
	return ret ? ret : q.n_dropped ? -ENOBUFS : 0;
}

/* How many have room, with a tenth to spare. The baseline takes nothing before it is told. */
static int find_fill(struct contest *c, const struct variant *v, uint64_t *n)
{
	struct rig *rig;
	struct rig_queue q;
	int ret = make_held(&rig, &c->methods[0], v);

	if (ret)
		return ret;
	ret = fill(c, rig, v, (uint64_t)SAMPLE_TRAINS * TRAIN);
	if (!ret)
		ret = rig_queue(rig, &q);
	if (!ret && (!q.used || q.room < 2 * v->buf_len))
		ret = -EPERM;
	if (!ret)
		*n = (uint64_t)((double)q.room * 0.9 / q.used * SAMPLE_TRAINS) * TRAIN;
	rig_destroy(rig);
	return ret;
}

/* Fill and drain. What a datagram took in each drain, and the sum of all. */
static int drain_times(struct contest *c, struct rig *rig, const struct variant *v, double *cpu_ns,
	size_t n, struct rig_drained *sum)
{
	uint64_t full = c->fill[v - variants];
	int ret = 0;

	*sum = (struct rig_drained){ 0 };
	for (size_t i = 0; i < n && !ret; i++) {
		struct rig_drained before = *sum;

		ret = rounds_stopped() ? -EINTR : fill(c, rig, v, full);
		if (!ret)
			ret = rig_drain(rig, full, sum);
		cpu_ns[i] = (double)(sum->cpu_ns - before.cpu_ns) / (double)full;
	}
	return ret;
}

/* A sample is the median of some drains: one may have cold caches, or a core that was lent to
 * somebody else's machine meanwhile. */
static int receive_turn(struct contest *c, const struct method *m, const struct variant *v)
{
	size_t n = c->scene->is_quick ? DRAINS_QUICK : DRAINS;
	struct rig_drained sum;
	double cpu_ns[DRAINS];
	struct rig *rig;
	int ret = make_held(&rig, m, v);

	if (ret)
		return ret;
	ret = drain_times(c, rig, v, cpu_ns, 1, &sum); /* for warmth */
	if (!ret)
		ret = drain_times(c, rig, v, cpu_ns, n, &sum);
	if (!ret)
		sample_rx(c, m, v, &sum, stats_median(cpu_ns, n), rig_syscalls_missing(rig));
	rig_destroy(rig);
	return ret;
}

/* SQPOLL fills the engine's buffers before anybody asks: of long trains those are too
 * large a part of what has room in the socket. */
static bool is_blurred(struct contest *c, const struct method *m, const struct variant *v)
{
	bool is_blurred = m->cfg.sqpoll_idle_ms && v->has_gro && v->len > ECHO_LEN;

	if (is_blurred)
		skip_once(c, m, "rx_1420_gro_kpps_per_cpu",
			"much of what waits was taken before it is measured");
	return is_blurred;
}

static int receive_rounds(struct contest *c)
{
	unsigned rounds = c->scene->is_quick ? RX_ROUNDS_QUICK : RX_ROUNDS;
	size_t n = c->n * ARRAY_LEN(variants);

	for (unsigned round = 0; round < rounds; round++) {
		for (size_t i = 0; i < n; i++) {
			const struct variant *v = &variants[i / c->n];
			const struct method *m = &c->methods[(i + round) % c->n];
			int ret;

			if ((v != variants && round % OTHERS_EVERY) || is_blurred(c, m, v))
				continue;
			progress_show(c->scene->progress, round * n + i, rounds * n, m->id);
			ret = receive_turn(c, m, v);
			if (ret)
				return ret;
		}
	}
	return 0;
}

static int receive(struct contest *c)
{
	int ret = 0;

	for (size_t i = 0; i < ARRAY_LEN(variants) && !ret; i++)
		ret = find_fill(c, &variants[i], &c->fill[i]);
	if (ret == -EPERM || ret == -ENOBUFS) {
		for (size_t i = 0; i < c->n; i++)
			skip(c, &c->methods[i], "rx_kpps_per_cpu",
				"its socket cannot have room for some ten thousand datagrams "
				"(CAP_NET_ADMIN)");
		return 0;
	}
	return ret ? ret : receive_rounds(c);
}

/* ---- Latency. */

static int echo(struct contest *c, const struct method *m, double rate, uint64_t run_ns,
	struct source_result *r)
{
	struct rig_config cfg = { .ops = m->ops,
		.engine = m->cfg,
		.len = ECHO_LEN,
		.is_echo = true,
		.cpu = CPU_RECEIVER };
	struct source_order o = { .len = ECHO_LEN, .rate = rate, .run_ns = run_ns };
	struct rig *rig;
	int ret = rig_create(&rig, &cfg);

	if (ret)
		return ret;
	o.port = rig_port(rig);
	ret = source_start(c->source, &o);
	if (!ret)
		ret = source_wait(c->source, r);
	rig_destroy(rig);
	if (!ret && r->n_wrong)
		return -EBADMSG;
	return ret;
}

/* Does the baseline answer all at that rate? Who asks must keep the pace, too, but for a time
 * slice of others. A failure must be no accident. */
static int is_echoed(struct contest *c, double rate, bool *is_good)
{
	struct source_result r;

	*is_good = false;
	for (unsigned i = 0; i < TRIES && !*is_good; i++) {
		int ret = rounds_stopped()
			? -EINTR
			: echo(c, &c->methods[0], rate, SEARCH_MS * NSEC_PER_MSEC, &r);

		if (ret)
			return ret;
		*is_good = r.n_back == r.n_sent && (double)r.n_sent >= 0.9 * (double)r.n_planned;
	}
	return 0;
}

/* Half of what the baseline answers without loss. */
static int find_rate(struct contest *c)
{
	const double first = 10000, max = 1000000;
	struct rate_search s;
	bool goes_on = true, is_good;

	rate_search_init(&s, first, max);
	while (goes_on) {
		int ret = is_echoed(c, s.next, &is_good);

		if (ret)
			return ret;
		goes_on = rate_search_step(&s, is_good);
	}
	c->rate = (s.good > 0 ? s.good : first) / 2;
	figure_sample(report_figure(c->scene->report, "echo_rate_per_second", "1/s",
			      "half of what epoll + recvmmsg echoes without loss"),
		c->rate);
	return 0;
}

static int echo_turn(struct contest *c, const struct method *m)
{
	static const struct {
		const char *what, *claim;
		double percent;
	} parts[] = {
		{ "p50_us", "", 50 },
		{ "p99_us", "", 99 },
		{ "p999_us", "seed: 48.2 with epoll, 4.1 with io_uring", 99.9 },
	};
	double n = c->scene->is_quick ? ECHO_SAMPLES_QUICK : ECHO_SAMPLES;
	uint64_t run_ns = (uint64_t)(n / c->rate * (double)NSEC_PER_SEC);
	struct source_result r = { 0 };
	int ret = 0;

	for (unsigned i = 0; i < TRIES_BLIND && !ret && !r.n_back; i++)
		ret = rounds_stopped() ? -EINTR : echo(c, m, c->rate, run_ns, &r);
	if (ret)
		return ret;
	if (!r.n_back)
		return -ENODATA;
	figure_sample(report_figure(c->scene->report, "echo_source_stalled_percent", "%",
			      "0: above 0.1 the machine makes p99.9, not the engine"),
		100 * share(r.stalled_ns, run_ns));
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		figure_sample(figure(c, m, parts[i].what, "us", parts[i].claim),
			(double)hist_percentile(source_latencies(c->source), parts[i].percent) /
				1000);
	return 0;
}

static int latency(struct contest *c)
{
	unsigned rounds = c->scene->is_quick ? ECHO_ROUNDS_QUICK : ECHO_ROUNDS;
	int ret = find_rate(c);

	for (unsigned round = 0; round < rounds && !ret; round++) {
		for (size_t i = 0; i < c->n && !ret; i++) {
			progress_show(c->scene->progress, round * c->n + i, rounds * c->n,
				"latency of echoes");
			ret = rounds_stopped() ? -EINTR
					       : echo_turn(c, &c->methods[(i + round) % c->n]);
		}
	}
	return ret;
}

/* ---- What follows from it. */

static void note(struct contest *c, const char *method_id, const char *what, const char *why)
{
	struct figure *f = found(c, method_id, what);

	if (f)
		figure_note(f, "%s", why);
}

static void note_claims(struct contest *c)
{
	note(c, plain_ops.name, "syscalls_per_100k",
		"The claim counts one recvmmsg for 32 packets. That something is there to be "
		"received is "
		"another call: epoll_wait.");
	note(c, plain_ops.name, "kernel_share_percent",
		"The claim is about context switches, the figure about all that is not the "
		"receiver's "
		"own code; here that code only looks at what came.");
	note(c, "uring_sqpoll", "kernel_share_percent",
		"The UDP receive path and the copy are the kernel's work, whichever thread does "
		"it: it "
		"cannot be below 2 % unless what the kernel's thread spends is not counted.");
	note(c, "uring_sqpoll", "rx_kpps_per_cpu",
		"The thread that polls counts as well, and so does the receiver's, which looks at "
		"the ring meanwhile: two cores are taken for what one does.");
}

static void compare_rx(struct contest *c)
{
	struct figure *uring = found(c, "uring", "rx_kpps_per_cpu"),
		      *epoll = found(c, "epoll", "rx_kpps_per_cpu"),
		      *share = found(c, "epoll", "kernel_share_percent");

	if (!uring || !epoll || !share)
		return;
	figure_note(ratio(c, "uring_over_epoll_rx_per_cpu", "must >= 1.1, aim 1.3; seed: 3.9",
			    uring, epoll),
		"3.9 times as many means a quarter of the time for each. Here epoll spends %.0f ns "
		"on a datagram, a 32nd or 64th of a system call among it; the rest is the kernel's "
		"UDP receive path and the copy, which io_uring runs too. Without any system call "
		"at "
		"all that path remains.",
		1e6 / figure_value(epoll));
	note_claims(c);
	figure_note(epoll,
		"6.84 Mpps are 146 ns for all of a packet. Taking a datagram out of a socket costs "
		"more than that in the kernel alone, however it is asked for.");
}

static void compare_latency(struct contest *c)
{
	struct figure *plain = found(c, plain_ops.name, "p999_us"), *best = NULL;
	const char *name = NULL;

	for (size_t i = 1; i < c->n; i++) {
		struct figure *f = found(c, c->methods[i].id, "p999_us");

		if (f && (!best || figure_value(f) < figure_value(best))) {
			best = f;
			name = c->methods[i].id;
		}
	}
	if (!plain || !best)
		return;
	figure_note(
		ratio(c, "best_over_epoll_p999", "must <= 0.6, aim 0.1; seed: 0.085", best, plain),
		"%s against epoll + recvmmsg, both at %.0f echoes a second, there and back. Who "
		"asks "
		"was kept from its core, for 0.1 ms or longer each time, %.2f %% of the time: "
		"above "
		"0.1 that is what one echo of a thousand met, whatever the engine, and p50 and p99 "
		"say more about engines.",
		name, c->rate,
		figure_value(
			report_figure(c->scene->report, "echo_source_stalled_percent", "%", "")));
}

/* ---- All of it. */

static int through_sockets(struct scene *s)
{
	static const char *const all[] = { "uring_over_epoll_rx_per_cpu",
		"uring_sqpoll_syscalls_per_100k", "best_over_epoll_p999" };
	struct contest c = { .scene = s };
	int ret = cpu_count() > CPU_SOURCE ? source_create(&c.source, CPU_SOURCE) : -ENODEV;

	if (ret == -ENODEV || ret == -EOPNOTSUPP) {
		for (size_t i = 0; i < ARRAY_LEN(all); i++)
			report_skip(s->report, all[i], "%s",
				ret == -ENODEV ? "it takes two CPUs: one receives, one sends"
					       : "this kernel has no UDP_SEGMENT");
		return 0;
	}
	if (ret)
		return ret;
	enter_all(&c);
	ret = receive(&c);
	if (!ret)
		ret = latency(&c);
	if (!ret) {
		compare_rx(&c);
		compare_latency(&c);
	}
	source_destroy(c.source);
	return ret;
}

int engines_run(struct scene *s)
{
	int ret = crypto_init(NULL);

	/* First: the source is forked while there is one thread. */
	if (!ret)
		ret = through_sockets(s);
	if (!ret)
		ret = engines_memory_run(s);
	return ret;
}
