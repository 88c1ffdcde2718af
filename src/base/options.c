/* See options.h. getopt_long keeps its place in global variables, so one command
 * line is read at a time. */
#include "base/options.h"
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <string.h>

void options_init(
	struct options *o, int argc, char **argv, const struct option_spec *specs, size_t n_specs)
{
	assert(n_specs <= OPTIONS_MAX);
	*o = (struct options){ .argc = argc, .argv = argv, .specs = specs, .n_specs = n_specs };
	opterr = 0; /* the messages are ours */
	optind = 0; /* glibc: start anew, forget the last command line */
}

int options_bad(struct options *o, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->error, sizeof(o->error), fmt, ap);
	va_end(ap);
	/* What the user typed is shown, but must not break the line or the terminal. */
	for (char *c = o->error; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	return OPTION_BAD;
}

static const struct option_spec *find(const struct options *o, int id)
{
	for (size_t i = 0; i < o->n_specs; i++)
		if (o->specs[i].id == id)
			return &o->specs[i];
	return NULL;
}

/* getopt_long says '?' for three mistakes; which one shows in optopt. */
static int explain(struct options *o, int what)
{
	const struct option_spec *spec = optopt ? find(o, optopt) : NULL;
	const char *word = o->argv[optind - 1];

	if (what == ':' && spec)
		return options_bad(o, "--%s: expected %s", spec->name, spec->arg);
	if (spec)
		return options_bad(o, "--%s: expected no value", spec->name);
	if (optopt)
		return options_bad(o, "unknown option -%c; --help shows what there is", optopt);
	return options_bad(o, "unknown option %s; --help shows what there is", word);
}

int options_next(struct options *o)
{
	struct option longs[OPTIONS_MAX + 1] = { 0 };
	char shorts[2 * OPTIONS_MAX + 2] = ":";
	size_t len = 1;
	int id;

	for (size_t i = 0; i < o->n_specs; i++) {
		const struct option_spec *s = &o->specs[i];

		longs[i] = (struct option){ s->name, s->arg ? required_argument : no_argument, NULL,
			s->id };
		if (s->id >= OPTION_LONG_ONLY)
			continue;
		shorts[len++] = (char)s->id;
		if (s->arg)
			shorts[len++] = ':';
	}
	shorts[len] = '\0';
	id = getopt_long(o->argc, o->argv, shorts, longs, NULL);
	if (id == -1)
		return OPTION_END;
	if (id == '?' || id == ':')
		return explain(o, id);
	o->value = optarg;
	return id;
}

int options_operands(const struct options *o, char ***out)
{
	*out = o->argv + optind;
	return o->argc - optind;
}

void options_help(FILE *out, const struct option_spec *specs, size_t n_specs)
{
	for (size_t i = 0; i < n_specs; i++) {
		const struct option_spec *s = &specs[i];
		char left[64];

		if (!s->help)
			continue;
		snprintf(left, sizeof(left), "--%s%s%s", s->name, s->arg ? " " : "",
			s->arg ? s->arg : "");
		if (s->id < OPTION_LONG_ONLY)
			fprintf(out, "  -%c, %-30s %s\n", s->id, left, s->help);
		else
			fprintf(out, "      %-30s %s\n", left, s->help);
	}
}

int options_number(const char *text, uint64_t max, uint64_t *out)
{
	uint64_t n = 0;

	if (!*text)
		return -EINVAL;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return -EINVAL;
		if (n > (UINT64_MAX - 9) / 10)
			return -EINVAL;
		n = n * 10 + (uint64_t)(*text - '0');
		if (n > max)
			return -EINVAL;
	}
	*out = n;
	return 0;
}
