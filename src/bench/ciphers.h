/* The AEAD back ends alone: figures aead_<back end>_<length>_ns, part of the
 * tunnels bench. */
#ifndef BENCH_CIPHERS_H
#define BENCH_CIPHERS_H

#include "base/compiler.h"
#include "bench/scenario.h"

/* Measures each back end this CPU has and skips the others. Leaves another back
 * end chosen than before: call crypto_init() afterwards. 0 or negative errno. */
MUST_CHECK int ciphers_run(struct scene *s);

#endif
