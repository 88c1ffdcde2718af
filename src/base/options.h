/* Command lines: getopt_long behind a table, so that every command checks its
 * options the same way, its help comes from the same table, and each mistake is
 * one line that names the option. One thread. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "base/compiler.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	OPTION_END = 0,
	OPTION_BAD = -1,
	OPTION_LONG_ONLY = 256, /* ids from here on have no short form; below: the letter */
	OPTIONS_MAX = 32,
	OPTIONS_ERROR_TEXT = 200,
};

struct option_spec {
	int id; /* > 0, what options_next returns */
	const char *name;
	const char *arg; /* what its value is called in the help; NULL: it takes none */
	const char *help; /* one line; NULL: not shown in the help */
};

struct options {
	int argc;
	char **argv;
	const struct option_spec *specs;
	size_t n_specs;
	const char *value; /* of the option that options_next returned */
	char error[OPTIONS_ERROR_TEXT];
};

/* argv[0] is the command's name, options follow, in any order with operands.
 * At most OPTIONS_MAX specs. argv may be reordered. */
void options_init(
	struct options *o, int argc, char **argv, const struct option_spec *specs, size_t n_specs);
/* The next option's id; OPTION_END when there are no more; OPTION_BAD with a
 * line in o->error. */
MUST_CHECK int options_next(struct options *o);
/* After OPTION_END: the operands. */
int options_operands(const struct options *o, char ***out);
/* Note a mistake, e.g. a bad value. Returns OPTION_BAD. */
int options_bad(struct options *o, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The table as text, one line per option. */
void options_help(FILE *out, const struct option_spec *specs, size_t n_specs);

/* Decimal digits only, at most max. -EINVAL if not. */
MUST_CHECK int options_number(const char *text, uint64_t max, uint64_t *out);

#endif
