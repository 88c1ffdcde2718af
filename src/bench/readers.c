/* penstock bench readers: ways to read UDP sockets, one datagram for each call, at saturation. In
 * one namespace a process sends datagrams over the loopback to the sockets in turn, more than can
 * be read, and another reads: its datagrams per CPU second are the figure. Each turn has a
 * reading process of its own; the methods take turns, round by round.
 *
 * What sending costs, and what the network does before a datagram lies in the socket's queue (on
 * the loopback that is the sender's time), is not counted; the machine's ksoftirqd is. */
#include "base/clock.h"
#include "bench/cputime.h"
#include "bench/readers_child.h"
#include "bench/readers_load.h"
#include "bench/rounds.h"
#include "bench/scenario.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	/* Each turn has a range of ports of its own: those of a ring are in use for a while after
	 * its process has ended. All below the range from which senders get theirs. */
	PORT_FIRST = 1024,
	PORT_RANGES = 31,
	ROUNDS_MAX = 7,
	WINDOWS_MAX = 10, /* a turn may last so many times as long as planned */
};

static const unsigned socket_counts[] = { 1, 64, 1000 };

enum { COUNTS = ARRAY_LEN(socket_counts), CONTENDERS = READER_METHODS * COUNTS };

/* ---- What was claimed, and what we make of it. */

enum expect { EXPECT_NOTHING, EXPECT_LESS, EXPECT_MORE };

/* What the articles say of a method, as a comparison that can be measured. */
struct claim {
	const char *text;
	size_t other; /* compared with that method, an index of reader_methods */
	bool is_with_one; /* with one socket of its; false: with as many */
	double factor; /* more or less than so many times as fast */
	enum expect expect[COUNTS];
	const char *why; /* it does not hold, or what there is to say */
	const char *why_many; /* the same with several sockets; NULL: the same text */
};

enum { BLOCKING, SPIN, SELECT, EPOLL, SHARED, CHANNELS, CHANNELS_EBPF, URING };

static const struct claim claims[] = {
	[BLOCKING] = { "for few sockets: a thread for each", EPOLL, false, 1,
		{ EXPECT_NOTHING, EXPECT_LESS, EXPECT_LESS },
		"one call for a datagram, none to ask what is ready", NULL },
	[SPIN] = { "polling all sockets wastes CPU", EPOLL, false, 1,
		{ EXPECT_LESS, EXPECT_LESS, EXPECT_LESS },
		"at saturation a call seldom finds nothing, and none asks what is ready; what "
		"polling wastes shows where there is less to read",
		NULL },
	[SELECT] = { "slower with more sockets; at most 1024", SELECT, true, 1,
		{ EXPECT_NOTHING, EXPECT_LESS, EXPECT_LESS }, "",
		"at saturation one call finds many sockets ready: its cost does grow, but is "
		"that of as many datagrams, where a single socket takes two calls for each" },
	[EPOLL] = { "the standard: tells what is ready", SELECT, false, 1,
		{ EXPECT_MORE, EXPECT_MORE, EXPECT_MORE },
		"two calls for a datagram, as with select",
		"at saturation all sockets are ready: select tells of all in one call, "
		"epoll_wait of 10, each of which it polls and puts back into its list; what "
		"select spends on sockets that are not ready shows where most are idle" },
	[SHARED] = { "no events and no queue: better than events", EPOLL, true, 1, { EXPECT_MORE },
		"threads that read one socket wait for its lock and wake each other", NULL },
	[CHANNELS] = { "no waiting for each other: better than one socket", SHARED, true, 1,
		{ EXPECT_MORE, EXPECT_MORE, EXPECT_MORE },
		"with one channel one thread reads, where the other method has two",
		"a sender's datagrams all go to one channel, so that few threads read; more "
		"threads than CPUs save nothing" },
	[CHANNELS_EBPF] = { "round robin: all channels work", CHANNELS, false, 1,
		{ EXPECT_NOTHING, EXPECT_MORE, EXPECT_MORE },
		"with one channel the program has no choice",
		"all channels do work, but each datagram goes to another thread, which has "
		"fallen asleep since its last one: a wake-up and a switch of threads for each "
		"datagram" },
	[URING] = { "3.9 x epoll", EPOLL, false, 3.9, { EXPECT_MORE, EXPECT_MORE, EXPECT_MORE },
		"it saves the calls; queue, copy and bookkeeping for each datagram stay in the "
		"kernel, and most of the CPU time is theirs",
		NULL },
};
static_assert(ARRAY_LEN(claims) == READER_METHODS, "one for each method");

struct sample {
	double kpps_per_cpu, kpps, loss;
	unsigned reached;
};

/* A method with a number of sockets. */
struct contender {
	const struct reader_method *method;
	const struct claim *claim;
	unsigned n_sockets;
	bool is_out; /* it is skipped, and the report says why */
	struct sample samples[ROUNDS_MAX];
	unsigned n_samples;
};

struct readers_bench {
	struct scene *scene;
	struct lab *lab;
	int ns;
	struct readers_load load;
	uint64_t warm_ns, window_ns;
	unsigned rounds;
	unsigned turn; /* turns taken */
	struct contender contenders[CONTENDERS];
};

static const char *figure_id(char id[REPORT_ID_MAX], const struct contender *c, const char *what)
{
	snprintf(id, REPORT_ID_MAX, "%s_%u_%s", c->method->name, c->n_sockets, what);
	return id;
}

static struct figure *figure_of(const struct readers_bench *b, const struct contender *c,
	const char *what, const char *unit, const char *claim)
{
	char id[REPORT_ID_MAX];

	return report_figure(b->scene->report, figure_id(id, c, what), unit, claim);
}

static void skip(struct readers_bench *b, struct contender *c, const char *why)
{
	char id[REPORT_ID_MAX];

	c->is_out = true;
	report_skip(b->scene->report, figure_id(id, c, "kpps_per_cpu"), "%s", why);
}

/* ---- Measuring. */

/* Sleep, or be stopped. */
static int pass_time(uint64_t ns)
{
	const uint64_t end = clock_now_ns() + ns;
	const struct timespec step = { .tv_nsec = 5 * NSEC_PER_MSEC };

	while (clock_now_ns() < end) {
		if (rounds_stopped())
			return -EINTR;
		nanosleep(&step, NULL);
	}
	return 0;
}

struct reading_at {
	struct cputime cpu;
	uint64_t n_read, n_sent, now_ns;
};

static int look(const struct readers_bench *b, const struct readers *r, struct reading_at *at)
{
	int ret = cputime_read(r->pid, &at->cpu);

	at->n_read = readers_count(r);
	at->n_sent = readers_load_sent(&b->load);
	at->now_ns = clock_now_ns();
	return ret;
}

static int make_sample(const struct readers *r, const struct reading_at *from,
	const struct reading_at *to, struct sample *out)
{
	const struct cputime cpu = cputime_since(&to->cpu, &from->cpu);
	const double read = (double)(to->n_read - from->n_read);
	const double sent = (double)(to->n_sent - from->n_sent);

	if (readers_bad(r))
		return -EBADMSG;
	if (!(sent > 0))
		return -ERANGE;
	*out = (struct sample){
		.kpps_per_cpu = read * 1e6 / (double)cputime_sum(&cpu),
		.kpps = read * 1e6 / (double)(to->now_ns - from->now_ns),
		.loss = read < sent ? 1 - read / sent : 0,
		.reached = readers_reached(r),
	};
	return 0;
}

static uint16_t port_of_turn(const struct readers_bench *b)
{
	return (uint16_t)(PORT_FIRST + b->turn % PORT_RANGES * READERS_SOCKETS_MAX);
}

/* A window is longer where others leave the reader little of the CPUs. */
static int pass_window(const struct readers_bench *b, const struct readers *r,
	const struct reading_at *from, struct reading_at *to)
{
	struct cputime cpu;
	unsigned i;
	int ret = 0;

	for (i = 0; i < WINDOWS_MAX && !ret; i++) {
		ret = pass_time(b->window_ns);
		if (!ret)
			ret = look(b, r, to);
		cpu = cputime_since(&to->cpu, &from->cpu);
		if (!ret && cpu.process_ns >= b->window_ns / WINDOWS_MAX)
			return 0;
	}
	return ret ? ret : -ERANGE;
}

static int measure(struct readers_bench *b, const struct readers *r, const struct contender *c,
	struct sample *out)
{
	struct reading_at from, to;
	int ret;

	readers_load_aim(&b->load, port_of_turn(b), c->method->is_one_port ? 1 : c->n_sockets);
	ret = pass_time(b->warm_ns);
	if (!ret)
		ret = look(b, r, &from);
	if (!ret)
		ret = pass_window(b, r, &from, &to);
	readers_load_aim(&b->load, 0, 0);
	return ret < 0 ? ret : make_sample(r, &from, &to, out);
}

/* A method that cannot begin here is skipped; what goes wrong later ends the bench. */
static int take_turn(struct readers_bench *b, struct contender *c)
{
	struct readers r;
	struct sample s;
	char why[REPORT_TEXT_MAX];
	int ret;

	b->turn++;
	ret = readers_start(&r, c->method, c->n_sockets, port_of_turn(b), b->lab, b->ns);
	if (ret == -EINTR)
		return ret;
	if (ret < 0) {
		snprintf(why, sizeof(why), "cannot run here: %s",
			ret == -EOPNOTSUPP ? "built without" : strerror(-ret));
		skip(b, c, why);
		return 0;
	}
	ret = measure(b, &r, c, &s);
	if (!ret)
		c->samples[c->n_samples++] = s;
	readers_stop(&r);
	return ret;
}

static int run_rounds(struct readers_bench *b)
{
	struct contender *c;
	unsigned round;
	size_t i;
	int ret = 0;

	for (round = 0; round < b->rounds; round++) {
		for (i = 0; i < CONTENDERS && !ret; i++) {
			c = &b->contenders[(i + round) % CONTENDERS];
			progress_show(b->scene->progress, round * (size_t)CONTENDERS + i,
				b->rounds * (size_t)CONTENDERS, c->method->name);
			if (!c->is_out)
				ret = take_turn(b, c);
		}
	}
	return ret;
}

/* ---- What came of it. */

static struct figure *main_figure(const struct readers_bench *b, const struct contender *c)
{
	return figure_of(b, c, "kpps_per_cpu", "kpps", c->claim->text);
}

/* How it compares with what it was claimed to be better or worse than, and why if it is not. */
static void note(struct readers_bench *b, size_t method, size_t count)
{
	const struct claim *claim = &claims[method];
	const struct contender *c = &b->contenders[method * COUNTS + count];
	const struct contender *other =
		&b->contenders[claim->other * COUNTS + (claim->is_with_one ? 0 : count)];
	const char *why = count && claim->why_many ? claim->why_many : claim->why;
	double ratio;
	bool holds;

	if (c == other || !c->n_samples || !other->n_samples)
		return;
	ratio = figure_value(main_figure(b, c)) / figure_value(main_figure(b, other));
	holds = (claim->expect[count] == EXPECT_LESS && ratio < claim->factor) ||
		(claim->expect[count] == EXPECT_MORE && ratio >= claim->factor);
	figure_note(main_figure(b, c), "%.2f x %s_%u%s%s.", ratio, other->method->name,
		other->n_sockets, holds ? ", as claimed" : ": ", holds ? "" : why);
}

static void report_notes(struct readers_bench *b)
{
	size_t m, i;

	for (m = 0; m < READER_METHODS; m++) {
		for (i = 0; i < COUNTS; i++)
			note(b, m, i);
	}
}

/* One kind of figure, for all contenders. */
static void report_main(struct readers_bench *b)
{
	struct contender *c;
	struct figure *f;
	unsigned i;

	for (c = b->contenders; c < b->contenders + CONTENDERS; c++) {
		if (c->is_out)
			continue;
		f = main_figure(b, c);
		for (i = 0; i < c->n_samples; i++)
			figure_sample(f, c->samples[i].kpps_per_cpu);
	}
}

static void report_rest(struct readers_bench *b)
{
	struct contender *c;
	const struct sample *s;

	for (c = b->contenders; c < b->contenders + CONTENDERS; c++) {
		for (s = c->samples; !c->is_out && s < c->samples + c->n_samples; s++) {
			figure_sample(figure_of(b, c, "kpps", "kpps", ""), s->kpps);
			figure_sample(figure_of(b, c, "loss", "", ""), s->loss);
			if (c->method->is_one_port && !c->method->is_one_socket && c->n_sockets > 1)
				figure_sample(
					figure_of(b, c, "reached", "sockets", ""), s->reached);
		}
	}
}

/* ---- Who takes part. */

static void enlist(struct readers_bench *b)
{
	struct contender *c = b->contenders;
	size_t m, i;

	for (m = 0; m < READER_METHODS; m++) {
		for (i = 0; i < COUNTS; i++, c++) {
			*c = (struct contender){ .method = &reader_methods[m],
				.n_sockets = socket_counts[i],
				.claim = &claims[m] };
			if (c->method->is_one_socket && c->n_sockets > 1)
				skip(b, c, "the method is several threads on one socket");
		}
	}
}

static int set_up(struct readers_bench *b)
{
	int ret = lab_create(&b->lab, b->scene->penstock);

	if (ret < 0)
		return ret;
	b->ns = lab_ns(b->lab);
	if (b->ns < 0)
		return b->ns;
	return readers_load_start(&b->load, b->lab, b->ns);
}

int readers_run(struct scene *s)
{
	struct readers_bench *b = calloc(1, sizeof(*b));
	const char *missing = lab_missing(s->penstock);
	size_t i;
	int ret = 0;

	if (!b)
		return -ENOMEM;
	b->scene = s;
	b->warm_ns = (s->is_quick ? 40 : 100) * NSEC_PER_MSEC;
	b->window_ns = (s->is_quick ? 200 : 400) * NSEC_PER_MSEC;
	b->rounds = s->is_quick ? 3 : ROUNDS_MAX;
	enlist(b);
	if (missing) {
		for (i = 0; i < CONTENDERS; i++) {
			if (!b->contenders[i].is_out)
				skip(b, &b->contenders[i], missing);
		}
	} else {
		ret = set_up(b);
		if (!ret)
			ret = run_rounds(b);
		report_main(b);
		report_rest(b);
		report_notes(b);
	}
	readers_load_stop(&b->load);
	lab_destroy(b->lab);
	free(b);
	return ret;
}
