/* One check asks the kernel once per peer that has a source, 4 us each, and gives other
 * business of the control thread its turn every STEP_PEERS. A routing daemon may
 * change thousands of routes in a second: between two checks there is a pause, long enough
 * that checks take a fifth of the thread's time at most. */
#include "gateway/sources.h"
#include "base/clock.h"
#include "link/link.h"
#include <unistd.h>

#define PAUSE_MIN (2 * NSEC_PER_MSEC)
enum { STEP_PEERS = 64, PAUSE_FACTOR = 4 };

int sources_open(struct sources *s)
{
	*s = (struct sources){ .changes = routes_open(), .query = -1 };
	if (s->changes < 0) {
		int ret = s->changes;

		s->changes = -1;
		return ret;
	}
	s->query = routes_query_open();
	return s->query < 0 ? s->query : 0;
}

/* syscalls: close */
void sources_close(struct sources *s)
{
	wg_walk_end(s->walk);
	s->walk = NULL;
	if (s->changes >= 0)
		close(s->changes);
	if (s->query >= 0)
		close(s->query);
	s->changes = s->query = -1;
}

void sources_read(struct sources *s)
{
	if (routes_drain(s->changes))
		s->is_due = true;
}

void sources_change(struct sources *s)
{
	s->is_due = true;
}

uint64_t sources_deadline(const struct sources *s)
{
	if (s->walk)
		return 0;
	return s->is_due ? s->next_ns : UINT64_MAX;
}

static void run_step(
	struct sources *s, struct wg *wg, uint16_t port, uint32_t fwmark, uint64_t now_ns)
{
	struct wg_source source[STEP_PEERS];
	bool is_more;
	size_t n;

	is_more = wg_walk_sources(s->walk, source, STEP_PEERS, &n);
	for (size_t i = 0; i < n; i++)
		wg_reroute(wg, &source[i],
			routes_detour(s->query, &source[i].endpoint, port, fwmark), now_ns);
	if (is_more)
		return;
	wg_walk_end(s->walk);
	s->walk = NULL;
	now_ns = clock_now_ns();
	s->next_ns = now_ns + PAUSE_FACTOR * (now_ns - s->began_ns);
	if (s->next_ns < s->began_ns + PAUSE_MIN)
		s->next_ns = s->began_ns + PAUSE_MIN;
}

bool sources_run(struct sources *s, struct wg *wg, uint16_t port, uint32_t fwmark, uint64_t now_ns)
{
	bool begins = !s->walk;

	if (begins) {
		if (!s->is_due || now_ns < s->next_ns)
			return false;
		s->began_ns = now_ns;
		s->next_ns = now_ns + PAUSE_MIN;
		if (wg_walk_begin(&s->walk, wg))
			return false; /* no memory: after the pause */
		s->is_due = false;
	}
	run_step(s, wg, port, fwmark, now_ns);
	return begins;
}
