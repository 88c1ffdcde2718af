/* The engines (io/io.h) against each other, against epoll + recvmmsg as one writes them at
 * first, and against what was claimed of io_uring.
 *
 * Receiving: a process floods a socket over the loopback with more than one core takes
 * (engines_source.h), and a thread takes it through an engine (engines_rig.h). Counted is
 * what that thread got, divided by the CPU time of all that worked for it. Latency: the
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
#include "crypto/crypto.h"
#include <errno.h>
#include <string.h>
#include <time.h>

enum {
	METHODS_MAX = 12,
	METHOD_ID_MAX = 24,
	SQPOLL_IDLE_MS = 2000, /* as the claim has it */
	RX_ROUNDS = 7,
	RX_ROUNDS_QUICK = 2,
	ECHO_ROUNDS = 9,
	ECHO_ROUNDS_QUICK = 3,
	ECHO_LEN = 64,
	CPU_RECEIVER = 0,
	CPU_SOURCE = 1,
	WARM_MS = 60,
	WINDOW_MS = 300,
	WINDOW_QUICK_MS = 120,
	ECHO_MS = 500,
	ECHO_QUICK_MS = 200,
	SEARCH_MS = 60, /* of each step of the search for a rate */
	TRIES = 3, /* of what other programs may have spoilt */
	FLOOD_MIN = 1000, /* datagrams received in a window: with fewer, somebody had no CPU */
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
} variants[] = {
	{ "rx", 64, false }, /* the one of which all else is told, too */
	{ "rx_gro", 64, true },
	{ "rx_1420", 1420, false },
	{ "rx_1420_gro", 1420, true },
};

struct contest {
	struct scene *scene;
	struct source *source;
	struct method methods[METHODS_MAX];
	size_t n;
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

/* Another name for an engine that has entered? With one thread they are the same. */
static bool has_entered(const struct contest *c, const struct engine_ops *ops)
{
	for (size_t i = 0; i < c->n; i++)
		if (c->methods[i].ops->wait == ops->wait)
			return true;
	return false;
}

static void enter_all(struct contest *c)
{
	const struct engine_config plain = { 0 }, sqpoll = { .sqpoll_idle_ms = SQPOLL_IDLE_MS };
	bool has_uring = false;

	enter(c, plain_ops.name, &plain_ops, &plain);
	for (size_t i = 0; engines[i]; i++) {
		const struct engine_ops *ops = engines[i];

		if (has_entered(c, ops)) {
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

static void sleep_ms(unsigned ms)
{
	struct timespec ts = { ms / 1000, (long)(ms % 1000) * (long)NSEC_PER_MSEC };

	nanosleep(&ts, NULL);
}

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

struct window {
	struct rig_reading begin, end;
	uint64_t n_sent;
	const char *syscalls_missing;
};

static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

/* What is not the program's own code: the thread in the kernel, and threads of the kernel's.
 * The ticks say how the thread divides its time, the scheduler how much it was. */
static double kernel_share(const struct window *w)
{
	uint64_t cpu = w->end.cpu_ns - w->begin.cpu_ns;
	uint64_t helpers = w->end.helper_ns - w->begin.helper_ns;
	uint64_t user = w->end.user_ns - w->begin.user_ns;
	uint64_t system = w->end.system_ns - w->begin.system_ns;

	return share(helpers, cpu) + share(cpu - helpers, cpu) * share(system, user + system);
}

static void sample_rx(
	struct contest *c, const struct method *m, const struct variant *v, const struct window *w)
{
	uint64_t n = w->end.n_packets - w->begin.n_packets;
	char what[REPORT_ID_MAX];

	snprintf(what, sizeof(what), "%s_kpps_per_cpu", v->name);
	figure_sample(figure(c, m, what, "k/s", v == variants ? claim_rx : ""),
		(double)n * 1e6 / (double)(w->end.cpu_ns - w->begin.cpu_ns));
	if (v != variants)
		return;
	figure_sample(figure(c, m, "rx_lost_percent", "%", "0: not saturated"),
		n < w->n_sent ? 100 * (1 - share(n, w->n_sent)) : 0);
	figure_sample(figure(c, m, "kernel_share_percent", "%",
			      "seed: 38 of context with epoll, below 2 with io_uring"),
		100 * kernel_share(w));
	if (w->syscalls_missing) {
		skip_once(c, m, "syscalls_per_100k", w->syscalls_missing);
		return;
	}
	figure_sample(figure(c, m, "syscalls_per_100k", "",
			      strcmp(m->id, "uring_sqpoll") != 0 ? claim_calls
								 : "must <= 10, aim 0; seed: 0"),
		1e5 * (double)(w->end.n_syscalls - w->begin.n_syscalls) / (double)n);
}

static int flood_window(
	struct contest *c, struct rig *rig, const struct variant *v, struct window *w)
{
	struct source_order o = { .port = rig_port(rig), .len = v->len };
	struct source_result r;
	uint64_t sent;
	int ret = source_start(c->source, &o), stopped;

	if (ret)
		return ret;
	sleep_ms(WARM_MS);
	ret = rig_read(rig, &w->begin, false);
	sent = source_sent(c->source);
	if (!ret) {
		sleep_ms(c->scene->is_quick ? WINDOW_QUICK_MS : WINDOW_MS);
		w->n_sent = source_sent(c->source) - sent;
		ret = rig_read(rig, &w->end, true);
	}
	stopped = source_stop(c->source, &r);
	if (!ret)
		ret = stopped;
	if (!ret && w->end.n_wrong)
		return -EBADMSG;
	if (ret)
		return ret;
	/* A helper thread that ended in between took its time with it. */
	return w->end.n_packets >= w->begin.n_packets + FLOOD_MIN && w->end.cpu_ns > w->begin.cpu_ns
		? 0
		: -ENODATA;
}

static int receive_window(
	struct contest *c, const struct method *m, const struct variant *v, struct window *w)
{
	struct rig_config cfg = { .ops = m->ops,
		.engine = m->cfg,
		.len = v->len,
		.has_gro = v->has_gro,
		.cpu = CPU_RECEIVER };
	struct rig *rig;
	int ret = rig_create(&rig, &cfg);

	if (ret)
		return ret;
	w->syscalls_missing = rig_syscalls_missing(rig);
	ret = flood_window(c, rig, v, w);
	rig_destroy(rig);
	return ret;
}

/* Some of what was sent found no room: whoever received never had to wait. */
static bool is_saturated(const struct window *w)
{
	return w->end.n_packets - w->begin.n_packets < w->n_sent - w->n_sent / 50;
}

static int receive_turn(struct contest *c, const struct method *m, const struct variant *v)
{
	struct window w;
	int ret = 0;

	/* A source that lost its core to another program floods nobody. Trains that stay whole cost
	 * so little that one core of a source never saturates another. */
	for (unsigned i = 0, n_blind = 0; i < TRIES && !ret;) {
		ret = rounds_stopped() ? -EINTR : receive_window(c, m, v, &w);
		if (!ret && (v->has_gro || is_saturated(&w)))
			break;
		if (ret == -ENODATA && ++n_blind < TRIES_BLIND)
			ret = 0;
		else
			i++;
	}
	if (!ret)
		sample_rx(c, m, v, &w);
	return ret;
}

static int receive(struct contest *c)
{
	unsigned rounds = c->scene->is_quick ? RX_ROUNDS_QUICK : RX_ROUNDS;
	size_t n = c->n * ARRAY_LEN(variants);

	for (unsigned round = 0; round < rounds; round++) {
		for (size_t i = 0; i < n; i++) {
			const struct variant *v = &variants[i / c->n];
			const struct method *m = &c->methods[(i + round) % c->n];
			int ret;

			progress_show(c->scene->progress, round * n + i, rounds * n, m->id);
			ret = receive_turn(c, m, v);
			if (ret)
				return ret;
		}
	}
	return 0;
}

/* ---- Latency. */

static int echo(struct contest *c, const struct method *m, double rate, unsigned ms,
	struct source_result *r)
{
	struct rig_config cfg = { .ops = m->ops,
		.engine = m->cfg,
		.len = ECHO_LEN,
		.is_echo = true,
		.cpu = CPU_RECEIVER };
	struct source_order o = { .len = ECHO_LEN, .rate = rate, .run_ns = ms * NSEC_PER_MSEC };
	struct rig *rig;
	int ret = rig_create(&rig, &cfg);

	if (ret)
		return ret;
	o.port = rig_port(rig);
	ret = source_start(c->source, &o);
	if (!ret)
		ret = source_stop(c->source, r);
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
		int ret = rounds_stopped() ? -EINTR : echo(c, &c->methods[0], rate, SEARCH_MS, &r);

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
	struct source_result r = { 0 };
	int ret = 0;

	for (unsigned i = 0; i < TRIES_BLIND && !ret && !r.n_back; i++)
		ret = rounds_stopped()
			? -EINTR
			: echo(c, m, c->rate, c->scene->is_quick ? ECHO_QUICK_MS : ECHO_MS, &r);
	if (ret)
		return ret;
	if (!r.n_back)
		return -ENODATA;
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
		"The thread that polls counts as well. It wants a core of its own; with two cores "
		"it takes "
		"it from the receiver or from the source.");
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
		"%s against epoll + recvmmsg, both at %.0f echoes a second. The times are of the "
		"whole "
		"way, there and back, through two sockets, and with whatever the machine does "
		"besides; the claim does not say what its 4.1 us are of.",
		name, c->rate);
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
