/* penstock gateway: start and end, and the control thread. It owns the
 * configuration: what wg(8) sets, what netlink says of the interface, which
 * sockets are open. Sockets exist while the interface is up, as in Linux.
 *
 * Order of the start: into the background (daemon.h), helper process
 * (privhelper.h), then everything that needs a privilege (TUN, configuration
 * socket, netlink, steering), then all capabilities are dropped, workers and their engines
 * made, system calls limited to those that comments list (doc/sandbox.md), then
 * threads start.
 *
 * syscalls(start): sigprocmask signal signalfd
 * syscalls: read poll close; the control thread */
#include "gateway/gateway.h"
#include "base/clock.h"
#include "base/sandbox.h"
#include "crypto/crypto.h"
#include "gateway/calls.h"
#include "gateway/conf.h"
#include "gateway/daemon.h"
#include "gateway/handshaker.h"
#include "gateway/plane.h"
#include "gateway/privhelper.h"
#include "gateway/sources.h"
#include "gateway/uapi_server.h"
#include "gateway/unreach.h"
#include "gateway/worker.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
	EXIT_WORLD = 1,
	/* signals, netlink twice, the helper, what workers ask for, sockets they lost */
	POLLFDS_OWN = 6,
	UDP_PAYLOAD_MAX = 65507,
	TRAIN_SEGMENTS = 64,
	IP_TCP_HEADERS = 40, /* smallest: the largest payload per segment */
	/* Linux keeps this much of gso_max_size for headers (MAX_TCP_HEADER + 1). */
	GSO_HEADERS = 321,
	GSO_MIN = 4096,
	GSO_MAX = 65536,
	MOVED_LOGGED = 10, /* prefixes of one request that are named in the log */
};
/* Between two replacements of lost sockets, and until the next try after one that failed. */
#define REPLACE_PAUSE NSEC_PER_SEC
#define RETRY_PAUSE (10 * NSEC_PER_SEC)

struct gateway {
	const struct gateway_options *o;
	struct daemon daemon;
	struct privhelper priv;
	struct tun tun;
	struct netdev *netdev;
	struct uapi_server *uapi;
	struct wg *wg;
	struct queue handshakes;
	struct handshaker *handshaker;
	struct unreach *unreach;
	struct plane *plane;
	struct sieve *sieve; /* NULL: floods are not kept out in the kernel */
	int signals;
	struct sources sources;
	bool is_leaving;

	/* configuration, as wg(8) sees it */
	uint16_t listen_port; /* 0: any */
	uint32_t fwmark;
	bool is_up;
	unsigned mtu;
	struct udp udp;
	bool has_udp;

	uint64_t reopen_ns; /* lost sockets are to be opened anew; UINT64_MAX: none are lost */
	uint64_t replaced_ns; /* when that was done last */
	uint16_t lost_port;
};

/* ---- What the state machine asks for. */

static void op_send(
	void *ctx, const struct wg_endpoint *to, uint8_t *msg, size_t len, enum wg_msg_kind kind)
{
	handshaker_send(((struct gateway *)ctx)->handshaker, to, msg, len, kind);
}

static void op_wake(void *ctx)
{
	handshaker_wake(((struct gateway *)ctx)->handshaker);
}

static void op_accuse(void *ctx, const struct wg_endpoint *from, bool is_home,
	uint32_t receiver_index, uint64_t until_ns)
{
	struct sieve *s = ((struct gateway *)ctx)->sieve;

	if (is_home)
		sieve_accuse_strangers(s, from, receiver_index, until_ns);
	else
		sieve_accuse(s, from, receiver_index, until_ns);
}

static const struct wg_ops wg_hooks = {
	.send = op_send,
	.wake = op_wake,
	.limit_key = endpoint_limit_key,
	.accuse = op_accuse,
};

/* ---- Sockets. */

/* From now on u is in use; the former sockets are closed. */
static void use_sockets(struct gateway *g, const struct udp *u, bool is_open)
{
	struct udp old = g->udp;
	bool was_open = g->has_udp;
	int ret;

	if (is_open)
		g->udp = *u;
	else
		udp_init(&g->udp);
	g->has_udp = is_open;
	ret = sieve_attach(g->sieve, &g->udp);
	if (ret)
		log_line(LOG_WARN, "floods are not kept out in the kernel: %s", strerror(-ret));
	handshaker_set_sockets(g->handshaker, &g->udp);
	plane_set_sockets(g->plane, &g->udp);
	if (was_open)
		udp_close(&old);
}

static int open_sockets(struct gateway *g, uint16_t port, uint32_t fwmark, struct udp *out)
{
	struct udp_config cfg = { .port = port,
		.fwmark = fwmark,
		.allowed = plane_offloads_of(g->plane, g->o->offloads) };
	int ret;

	plane_want_sockets(g->plane, &cfg);
	ret = privhelper_udp_open(&g->priv, &cfg, out);

	if (ret)
		log_line(LOG_ERROR, "cannot open UDP port %u: %s%s%s", port, strerror(-ret),
			ret == -EACCES ? "; " : "",
			ret == -EACCES ? sandbox_hint(CAP_NET_BIND_SERVICE) : "");
	return ret;
}

static void go_up(struct gateway *g)
{
	struct udp u;

	if (!g->has_udp) {
		if (open_sockets(g, g->listen_port, g->fwmark, &u))
			return; /* stays down; a new port or down and up tries again */
		use_sockets(g, &u, true);
	}
	log_line(LOG_INFO, "up, listening on port %u", g->udp.port);
	wg_set_up(g->wg, true, clock_now_ns());
}

/* A socket can no longer be used as it should: open new ones, on the same port, which is free once
 * all are closed. Not at once if that was done just now: whatever takes them away
 * must not keep us from everything else. */
static void lose_sockets(struct gateway *g, const char *why)
{
	uint64_t now_ns = clock_now_ns();

	if (!g->has_udp)
		return;
	log_line(LOG_WARN, "%s: opening port %u anew", why, g->udp.port);
	g->lost_port = g->udp.port;
	use_sockets(g, NULL, false);
	/* What the other workers told meanwhile was of the same sockets. */
	(void)plane_take_lost(g->plane);
	g->reopen_ns = g->replaced_ns + REPLACE_PAUSE;
	if (!g->replaced_ns || g->reopen_ns < now_ns)
		g->reopen_ns = now_ns;
}

static void reopen_sockets(struct gateway *g, uint64_t now_ns)
{
	struct udp u;

	if (now_ns < g->reopen_ns)
		return;
	g->reopen_ns = UINT64_MAX;
	if (g->has_udp || !g->is_up)
		return;
	g->replaced_ns = now_ns;
	if (open_sockets(g, g->lost_port, g->fwmark, &u))
		g->reopen_ns = now_ns + RETRY_PAUSE;
	else
		use_sockets(g, &u, true);
}

static void go_down(struct gateway *g)
{
	wg_set_up(g->wg, false, clock_now_ns());
	if (g->has_udp)
		use_sockets(g, NULL, false);
	log_line(LOG_INFO, "down");
}

/* ---- Configuration requests. */

/* ctx counts them. A wrong file may move a hundred thousand: the first ones tell. */
static void log_moved(void *ctx, const struct prefix *net)
{
	unsigned *n_moved = ctx;
	char text[ADDR_TEXT_MAX];

	if (++*n_moved > MOVED_LOGGED)
		return;
	log_line(LOG_WARN, "allowed IP %s moved from one peer to another", prefix_text(net, text));
}

/* Everything that can fail comes first; then the change is applied whole. */
static int apply(void *ctx, struct gateway_change *c)
{
	struct gateway *g = ctx;
	uint16_t port = c->has_listen_port ? c->listen_port : g->listen_port;
	uint32_t mark = c->has_fwmark ? c->fwmark : g->fwmark;
	/* The port that is set already, or the one we got when any would do. */
	bool wants_port = port != g->listen_port && port != (g->has_udp ? g->udp.port : 0);
	bool opens = g->is_up && (wants_port || !g->has_udp);
	bool marks = !opens && g->has_udp && mark != g->fwmark;
	unsigned n_moved = 0;
	struct udp u;
	int ret;

	if (opens) {
		ret = open_sockets(g, port, mark, &u);
		if (ret && (wants_port || g->has_udp))
			return ret;
		if (ret)
			opens = false; /* closed as before: no reason to refuse the rest */
	}
	if (marks) {
		ret = privhelper_udp_mark(&g->priv, &g->udp, mark);
		if (ret) {
			log_line(LOG_ERROR, "cannot set fwmark: %s", strerror(-ret));
			return ret;
		}
	}
	ret = wg_apply(g->wg, &c->wg, clock_now_ns(), clock_wall_ns(), log_moved, &n_moved);
	if (ret) {
		log_line(LOG_ERROR, "cannot apply the configuration: %s", strerror(-ret));
		if (opens)
			udp_close(&u);
		/* The new ones took the places of those in the steering program's map. */
		if (opens && g->has_udp && g->udp.is_steered)
			lose_sockets(g, "steering is lost");
		if (marks && privhelper_udp_mark(&g->priv, &g->udp, g->fwmark))
			log_line(LOG_ERROR, "the former fwmark cannot be set again");
		return ret;
	}
	if (n_moved > MOVED_LOGGED)
		log_line(LOG_WARN, "%u allowed IPs moved in all", n_moved);
	g->listen_port = port;
	g->fwmark = mark;
	if (opens || marks)
		sources_change(&g->sources);
	if (opens) {
		use_sockets(g, &u, true);
		wg_set_up(g->wg, true, clock_now_ns());
	}
	return 0;
}

static int get(void *ctx, struct uapi_text *out)
{
	struct gateway *g = ctx;
	uint64_t drops[WORKER_DROP_N] = { 0 }, sieved[SIEVE_DROP_N], unreach[UNREACH_COUNT_N];

	plane_drops(g->plane, drops);
	for (unsigned i = 0; i < WORKER_DROP_N; i++)
		if (drops[i])
			uapi_put(out, "drop_%s=%llu\n", worker_drop_key(i),
				(unsigned long long)drops[i]);
	sieve_drops(g->sieve, sieved);
	for (unsigned i = 0; i < SIEVE_DROP_N; i++)
		if (sieved[i])
			uapi_put(out, "drop_%s=%llu\n", sieve_drop_key(i),
				(unsigned long long)sieved[i]);
	unreach_counts(g->unreach, unreach);
	for (unsigned i = 0; i < UNREACH_COUNT_N; i++)
		if (unreach[i])
			uapi_put(out, "%s=%llu\n", unreach_count_key(i),
				(unsigned long long)unreach[i]);
	for (unsigned i = 0; i < plane_n_counted(g->plane); i++) {
		struct worker_count c = plane_count(g->plane, i);

		uapi_put(out, "worker%u_rx_packets=%llu\nworker%u_tx_packets=%llu\n", i,
			(unsigned long long)c.rx_packets, i, (unsigned long long)c.tx_packets);
	}
	uapi_put_head(out, g->wg, g->has_udp ? g->udp.port : g->listen_port, g->fwmark);
	return 0;
}

static struct wg *get_device(void *ctx)
{
	return ((struct gateway *)ctx)->wg;
}

static const struct uapi_server_ops uapi_hooks = {
	.apply = apply, .get = get, .device = get_device
};

static int load_config(struct gateway *g, struct gateway_change *c)
{
	struct conf_error err;
	int ret = conf_read(c, g->o->config, conf_resolve, &err);

	if (ret)
		log_line(LOG_ERROR, "%s", err.text);
	return ret;
}

/* ---- The interface as netlink shows it. */

/* A superframe should become one train: as many segments of a full-sized packet
 * as one UDP_SEGMENT send takes. */
static void fit_superframes(struct gateway *g)
{
	unsigned n = UDP_PAYLOAD_MAX / (g->mtu + WGMSG_DATA_MIN), len;
	int ret;

	if (!(g->tun.offloads & OFFLOAD_TSO) || g->mtu <= IP_TCP_HEADERS)
		return;
	if (n > TRAIN_SEGMENTS)
		n = TRAIN_SEGMENTS;
	len = n * (g->mtu - IP_TCP_HEADERS) + GSO_HEADERS;
	if (len > GSO_MAX)
		len = GSO_MAX;
	if (len < GSO_MIN)
		return;
	ret = privhelper_set_gso_max(&g->priv, &g->tun, len);
	if (ret)
		log_line(LOG_DEBUG, "gso_max_size stays: %s", strerror(-ret));
}

/* The interface went to another network namespace: the helper may look there. */
static int follow_interface(struct gateway *g)
{
	unsigned ifindex;
	int fd, ret;

	ret = privhelper_netdev_open(&g->priv, &g->tun, &fd, &ifindex);
	return ret ? ret : netdev_adopt(g->netdev, fd, ifindex);
}

static void take_netdev_event(struct gateway *g)
{
	struct netdev_event ev;
	int ret = netdev_read(g->netdev, &ev);

	if (ret == -EPERM)
		ret = follow_interface(g);
	if (ret < 0)
		log_line(LOG_WARN, "the interface cannot be followed: %s", strerror(-ret));
	if (ret <= 0)
		return;
	if (ev.is_gone) {
		log_line(LOG_INFO, "the interface was deleted");
		g->is_leaving = true;
		return;
	}
	wg_set_mtus(g->wg, &ev.mtus);
	if (ev.mtu != g->mtu) {
		g->mtu = ev.mtu;
		fit_superframes(g);
	}
	if (ev.is_up != g->is_up) {
		g->is_up = ev.is_up;
		if (ev.is_up)
			go_up(g);
		else
			go_down(g);
	}
}

/* ---- Start. */

static int open_interface(struct gateway *g)
{
	const struct gateway_options *o = g->o;
	unsigned offloads = plane_offloads_of(g->plane, o->offloads);
	int ret = o->tun_fd >= 0 ? tun_adopt(&g->tun, o->tun_fd, offloads)
				 : tun_open(&g->tun, o->ifname, offloads);

	if (!ret)
		return plane_open_queues(g->plane, &g->tun);
	if (ret == -EPERM || ret == -EACCES)
		log_line(LOG_ERROR, "cannot create the interface: %s", sandbox_hint(CAP_NET_ADMIN));
	else if (ret == -EBUSY)
		log_line(LOG_ERROR, "cannot create the interface: the name is in use");
	else if (ret == -ENOENT)
		log_line(LOG_ERROR, "cannot create the interface: there is no /dev/net/tun");
	else
		log_line(LOG_ERROR, "cannot create the interface: %s", strerror(-ret));
	return ret;
}

static int open_config_socket(struct gateway *g)
{
	char path[UAPI_PATH_MAX];
	int ret;

	if (g->o->uapi_fd >= 0) {
		ret = uapi_server_adopt(&g->uapi, g->o->uapi_fd, &uapi_hooks, g);
		if (ret)
			log_line(LOG_ERROR, "WG_UAPI_FD: not a listening UNIX stream socket");
		return ret;
	}
	uapi_socket_path(path, g->tun.name);
	ret = uapi_server_open(&g->uapi, path, &uapi_hooks, g);
	if (ret)
		log_line(LOG_ERROR, "cannot open %s: %s", path,
			ret == -EADDRINUSE ? "another gateway answers there" : strerror(-ret));
	return ret;
}

static int open_device(struct gateway *g)
{
	struct wg_config cfg = {
		.ops = &wg_hooks, .ctx = g, .n_workers = plane_n_wg_workers(g->plane)
	};
	int ret = crypto_init(g->o->aead);

	if (ret) {
		log_line(LOG_ERROR, "AEAD back end %s cannot run here",
			g->o->aead ? g->o->aead : "auto");
		return ret;
	}
	crypto_random(cfg.index_key, sizeof(cfg.index_key));
	crypto_random(&cfg.seed, sizeof(cfg.seed));
	plane_steer(g->plane, cfg.index_key);
	ret = wg_create(&g->wg, &cfg);
	crypto_wipe(&cfg, sizeof(cfg));
	if (ret)
		log_line(LOG_ERROR, "cannot make the device: %s", strerror(-ret));
	return ret;
}

static void handshake_ready(void *ctx)
{
	op_wake(ctx);
}

static void handshake_lost(void *ctx)
{
	plane_report_lost(((struct gateway *)ctx)->plane);
}

static int open_threads(struct gateway *g)
{
	unsigned udp_offloads =
		plane_offloads_of(g->plane, g->o->offloads) & (OFFLOAD_UDP_GSO | OFFLOAD_UDP_GRO);
	struct plane_parts parts = { .wg = g->wg,
		.tun = &g->tun,
		.offloads = g->tun.offloads | udp_offloads,
		.handshakes = &g->handshakes,
		.handshake_ready = handshake_ready,
		.ctx = g };
	int ret = queue_init(&g->handshakes, HANDSHAKE_QUEUE, sizeof(struct handshake_item));

	if (!ret)
		ret = handshaker_create(&g->handshaker, &g->handshakes, handshake_lost, g);
	if (!ret)
		ret = unreach_create(&g->unreach, &g->tun, &g->priv);
	parts.unreach = g->unreach;
	if (!ret)
		ret = plane_fill(g->plane, &parts);
	if (ret)
		log_line(LOG_ERROR, "cannot make the workers: %s", strerror(-ret));
	return ret;
}

/* The gateway works without as well; then a flood costs what it costs. */
static void open_sieve(struct gateway *g)
{
	int ret = sieve_create(&g->sieve);

	if (ret == -EOPNOTSUPP)
		log_line(LOG_INFO, "floods are not kept out in the kernel: built without eBPF");
	else if (ret)
		log_line(LOG_INFO, "floods are not kept out in the kernel: %s%s%s", strerror(-ret),
			sandbox_has(CAP_BPF) ? "" : "; ",
			sandbox_has(CAP_BPF) ? "" : sandbox_hint(CAP_BPF));
}

static int open_signals(struct gateway *g)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	g->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return g->signals < 0 ? -errno : 0;
}

/* From here on neither a privilege nor a system call that is not listed. The workers'
 * engines are made in between: a thread of the kernel's that serves an io_uring keeps
 * whatever privilege its maker had, and no ring can be made after. */
static int confine(struct gateway *g)
{
	int ret = sandbox_drop_all();

	if (ret) {
		log_line(LOG_ERROR, "cannot drop privileges: %s", strerror(-ret));
		return ret;
	}
	ret = open_threads(g);
	if (ret)
		return ret;
	if (g->o->sandbox == SANDBOX_OFF)
		return 0;
	ret = conf_resolve_plain();
	if (!ret)
		ret = sandbox_filter(&gateway_calls, g->o->sandbox, g->priv.pid);
	if (ret)
		log_line(LOG_WARN,
			"system calls are not limited: %s; capabilities are dropped all the same "
			"(--sandbox off: no try and no warning)",
			ret == -EOPNOTSUPP ? "no seccomp filters here" : strerror(-ret));
	return 0;
}

/* Everything that needs a privilege, a file or the network's state. */
static int open_all(struct gateway *g)
{
	const struct plane_wish wish = { .engine = g->o->engine,
		.n_workers = g->o->n_workers,
		.has_steer = g->o->has_steer,
		.steer = g->o->steer,
		.io = { .sqpoll_idle_ms = g->o->sqpoll_idle_ms } };
	int ret = open_signals(g);

	if (!ret)
		ret = sandbox_no_dumps();
	if (!ret)
		ret = privhelper_start(&g->priv, g->o->sandbox);
	if (ret) {
		log_line(LOG_ERROR, "cannot start: %s", strerror(-ret));
		return ret;
	}
	ret = plane_create(&g->plane, &wish);
	if (!ret)
		ret = open_interface(g);
	if (!ret)
		ret = open_device(g);
	if (ret)
		return ret;
	ret = netdev_open(&g->netdev, &g->tun);
	if (ret) {
		log_line(LOG_ERROR, "cannot follow the interface: %s", strerror(-ret));
		return ret;
	}
	ret = sources_open(&g->sources);
	if (ret)
		log_line(LOG_WARN, "route changes are not noticed: %s", strerror(-ret));
	ret = open_config_socket(g);
	if (ret)
		return ret;
	open_sieve(g);
	return confine(g);
}

static int start_threads(struct gateway *g)
{
	int ret = handshaker_start(g->handshaker, g->wg);

	if (!ret)
		ret = plane_start(g->plane);
	if (ret)
		log_line(LOG_ERROR, "cannot start a thread: %s", strerror(-ret));
	return ret;
}

static void close_all(struct gateway *g)
{
	plane_stop(g->plane);
	handshaker_stop(g->handshaker);
	uapi_server_close(g->uapi);
	sources_close(&g->sources); /* may be on its way through the peers */
	plane_destroy(g->plane);
	unreach_destroy(g->unreach);
	wg_destroy(g->wg);
	handshaker_destroy(g->handshaker);
	queue_fini(&g->handshakes);
	if (g->has_udp)
		udp_close(&g->udp);
	sieve_destroy(g->sieve);
	netdev_close(g->netdev);
	tun_close(&g->tun);
	if (g->signals >= 0)
		close(g->signals);
	if (privhelper_stop(&g->priv))
		log_line(LOG_WARN, "the helper process did not end well");
}

/* ---- The control thread's loop. */

static void take_signal(struct gateway *g)
{
	struct signalfd_siginfo info;
	struct gateway_change c;

	if (read(g->signals, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo != SIGHUP || !g->o->config) {
		g->is_leaving = true;
		return;
	}
	/* SIGHUP reads the file again. What is wrong in it is logged, and nothing changes. */
	if (load_config(g, &c))
		return;
	if (apply(g, &c) == 0)
		log_line(LOG_INFO, "%s read again", g->o->config);
	gateway_change_fini(&c);
}

/* The helper died. What needs no privilege still works. */
static void lose_helper(struct gateway *g)
{
	log_line(LOG_ERROR,
		"the helper process died: ports below 1024, fwmark and other network "
		"namespaces are out of reach until the gateway is started again");
	if (privhelper_stop(&g->priv))
		log_line(LOG_DEBUG, "it did not end well");
}

static int poll_timeout_ms(uint64_t deadline_ns, uint64_t now_ns)
{
	if (deadline_ns == UINT64_MAX)
		return -1;
	if (deadline_ns <= now_ns)
		return 0;
	return (int)((deadline_ns - now_ns + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC);
}

/* Addresses that we answer from may have gone, better ones have come. */
static void check_sources(struct gateway *g)
{
	if (sources_run(&g->sources, g->wg, g->udp.port, g->fwmark, clock_now_ns()))
		plane_forget_paths(g->plane);
}

static uint64_t next_deadline(const struct gateway *g)
{
	uint64_t uapi = uapi_server_deadline(g->uapi);
	uint64_t sources = sources_deadline(&g->sources);
	uint64_t first = uapi < sources ? uapi : sources;

	return first < g->reopen_ns ? first : g->reopen_ns;
}

static void control_loop(struct gateway *g)
{
	struct pollfd fds[POLLFDS_OWN + UAPI_POLLFDS_MAX];

	while (!g->is_leaving) {
		size_t n;

		fds[0] = (struct pollfd){ g->signals, POLLIN, 0 };
		fds[1] = (struct pollfd){ netdev_fd(g->netdev), POLLIN, 0 };
		fds[2] = (struct pollfd){ g->priv.fd, POLLIN, 0 };
		fds[3] = (struct pollfd){ g->sources.changes, POLLIN, 0 };
		fds[4] = (struct pollfd){ unreach_fd(g->unreach), POLLIN, 0 };
		fds[5] = (struct pollfd){ plane_lost_fd(g->plane), POLLIN, 0 };
		n = uapi_server_pollfds(g->uapi, fds + POLLFDS_OWN, UAPI_POLLFDS_MAX);
		if (poll(fds, POLLFDS_OWN + n, poll_timeout_ms(next_deadline(g), clock_now_ns())) <
				0 &&
			errno != EINTR)
			return;
		if (fds[0].revents)
			take_signal(g);
		if (fds[1].revents)
			take_netdev_event(g);
		if (fds[2].revents && !g->is_leaving && privhelper_has_died(&g->priv))
			lose_helper(g);
		if (fds[3].revents)
			sources_read(&g->sources);
		check_sources(g);
		if (fds[4].revents)
			unreach_serve(g->unreach, clock_now_ns());
		if (fds[5].revents && plane_take_lost(g->plane))
			lose_sockets(g, "a socket is gone");
		reopen_sockets(g, clock_now_ns());
		uapi_server_run(g->uapi, fds + POLLFDS_OWN, n, clock_now_ns());
		if (uapi_server_is_unlinked(g->uapi)) {
			log_line(LOG_INFO, "the configuration socket was removed");
			g->is_leaving = true;
		}
	}
}

static void announce(const struct gateway *g)
{
	unsigned offloads = plane_offloads(g->plane);
	char text[64];

	log_line(LOG_INFO, "interface %s, engine %s; workers: %u", g->tun.name,
		plane_text(g->plane), plane_n_workers(g->plane));
	log_line(LOG_INFO, "AEAD %s, offloads: %s", crypto_aead_name(),
		offloads ? offload_text(offloads, text) : "none");
}

/* Returns 0 when it ran and was told to stop. */
static int run(struct gateway *g)
{
	struct gateway_change c;
	int ret = open_all(g);

	if (ret)
		return ret;
	if (g->o->config) {
		ret = load_config(g, &c);
		if (ret)
			return ret;
		ret = apply(g, &c);
		gateway_change_fini(&c);
		if (ret)
			return ret;
	}
	ret = start_threads(g);
	if (ret)
		return ret;
	announce(g);
	ret = daemon_ready(&g->daemon);
	if (ret)
		return ret;
	control_loop(g);
	return 0;
}

int gateway_main(const struct gateway_options *o)
{
	struct gateway g = { .o = o,
		.daemon.fd = -1,
		.priv.fd = -1,
		.tun.fd = -1,
		.signals = -1,
		.reopen_ns = UINT64_MAX,
		.sources = { .changes = -1, .query = -1 } };
	int ret = 0;

	udp_init(&g.udp);
	log_setup(o->log_level, o->ifname);
	if (o->is_daemon)
		ret = daemon_start(&g.daemon);
	if (ret) {
		log_line(LOG_ERROR, "cannot go into the background: %s", strerror(-ret));
		return EXIT_WORLD;
	}
	ret = run(&g);
	close_all(&g);
	if (!ret)
		return 0;
	daemon_fail(&g.daemon, EXIT_WORLD);
	return EXIT_WORLD;
}
