/* Which engines there are, best first, and the choice among them. */
#include "io/io.h"
#include <errno.h>
#include <string.h>

#ifndef HAVE_URING
static int probe_none(const struct engine_config *cfg)
{
	return -EOPNOTSUPP;
}

/* Built without liburing. */
const struct engine_ops uring_ops = {
	.name = "uring",
	.traits = ENGINE_OWN_CHANNELS,
	.probe = probe_none,
};
#endif

const struct engine_ops *const engines[] = { &channels_ops, &epoll_ops, &uring_ops, &blocking_ops,
	NULL };

int engine_pick(const struct engine_ops **out, const char *name, const struct engine_config *cfg)
{
	bool is_auto = !strcmp(name, "auto");
	int ret = -EINVAL;

	for (size_t i = 0; engines[i]; i++) {
		if (!is_auto && strcmp(name, engines[i]->name) != 0)
			continue;
		ret = engines[i]->probe(cfg);
		if (!ret) {
			*out = engines[i];
			return 0;
		}
	}
	return ret;
}
