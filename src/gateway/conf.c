/* See conf.h. As in wg(8), white space means nothing anywhere in a line, '#'
 * begins a comment, section and key names are read without regard to case, and
 * of two lines with one key the later counts (AllowedIPs adds up). The text is
 * walked line by line through one table, like the configuration socket's. */
#include "gateway/conf.h"
#include "base/keytext.h"
#include "base/options.h"
#include "crypto/crypto.h"
#include "link/link.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nss.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_SHOWN_MAX = 20 /* longer unknown keys stay out of messages: may be a secret */ };

enum section { NO_SECTION, IN_INTERFACE, IN_PEER };

struct parser {
	struct gateway_change *c;
	struct conf_error *err;
	conf_resolve_fn *resolve;
	const char *name;
	unsigned long line_no;
	unsigned long peer_line_no; /* where the current [Peer] began */
	enum section section;
	bool has_public_key; /* the current [Peer] has one */
};

PRINTF_LIKE(3, 4) static int refuse(struct parser *p, int code, const char *fmt, ...)
{
	int len = snprintf(p->err->text, sizeof(p->err->text), "%.200s:%lu: ", p->name, p->line_no);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->err->text + len, sizeof(p->err->text) - (size_t)len, fmt, ap);
	va_end(ap);
	return code;
}

/* ---- Values. v ends with a NUL and has no white space in it. */

static int set_private_key(struct parser *p, const char *v)
{
	return key_from_base64(p->c->wg.private_key, v, strlen(v));
}

static int set_listen_port(struct parser *p, const char *v)
{
	uint64_t n;

	if (options_number(v, UINT16_MAX, &n))
		return -EINVAL;
	p->c->listen_port = (uint16_t)n;
	return 0;
}

static int parse_hex(const char *v, uint32_t *out)
{
	char *end;
	size_t len = strlen(v);

	if (len == 0 || len > 8 || strspn(v, "0123456789abcdefABCDEF") != len)
		return -EINVAL;
	*out = (uint32_t)strtoul(v, &end, 16);
	return 0;
}

static int set_fwmark(struct parser *p, const char *v)
{
	uint64_t n = 0;

	if (v[0] == '0' && (v[1] == 'x' || v[1] == 'X'))
		return parse_hex(v + 2, &p->c->fwmark);
	if (strcasecmp(v, "off") != 0 && options_number(v, UINT32_MAX, &n))
		return -EINVAL;
	p->c->fwmark = (uint32_t)n;
	return 0;
}

static int set_public_key(struct parser *p, const char *v)
{
	p->has_public_key = true;
	return key_from_base64(gateway_change_peer(p->c)->public_key, v, strlen(v));
}

static int set_psk(struct parser *p, const char *v)
{
	struct wg_peer_change *peer = gateway_change_peer(p->c);

	return key_from_base64(peer->psk, v, strlen(v));
}

static int set_keepalive(struct parser *p, const char *v)
{
	uint64_t n = 0;

	if (strcasecmp(v, "off") != 0 && options_number(v, UINT16_MAX, &n))
		return -EINVAL;
	gateway_change_peer(p->c)->keepalive_s = (uint16_t)n;
	return 0;
}

/* One item of a list. A sign makes the line a change to the peer's old list
 * instead of a new list, as in wg(8). */
static int add_allowed(struct parser *p, const char *item, size_t len)
{
	bool has_sign = len > 0 && (item[0] == '-' || item[0] == '+');
	struct prefix net;
	int ret = prefix_parse(&net, item + has_sign, len - has_sign);

	if (ret)
		return ret;
	if (has_sign)
		gateway_change_peer(p->c)->replaces_allowed = false;
	return gateway_change_add_allowed(p->c, &net, has_sign && item[0] == '-');
}

static int set_allowed(struct parser *p, const char *v)
{
	if (!*v)
		return 0;
	for (;;) {
		/* Not strcspn: a sanitizer's looks at the whole rest of the line each time. */
		const char *comma = strchr(v, ',');
		int ret = add_allowed(p, v, comma ? (size_t)(comma - v) : strlen(v));

		if (ret || !comma)
			return ret;
		v = comma + 1;
	}
}

/* "HOST:PORT" or "[HOST]:PORT" cut in two, in a copy. */
static int split_endpoint(char *text, const char **host, const char **port)
{
	char *end;

	if (text[0] == '[') {
		*host = text + 1;
		end = strchr(text, ']');
		if (!end || end[1] != ':')
			return -EINVAL;
		*port = end + 2;
	} else {
		*host = text;
		end = strrchr(text, ':');
		if (!end)
			return -EINVAL;
		*port = end + 1;
	}
	*end = '\0';
	return **host && **port ? 0 : -EINVAL;
}

static int resolve_endpoint(struct parser *p, const char *v, struct ipport *addr)
{
	const char *host, *port;
	uint64_t n;
	char *copy;
	int ret;

	if (!p->resolve)
		return -EINVAL;
	copy = strdup(v);
	if (!copy)
		return -ENOMEM;
	ret = split_endpoint(copy, &host, &port);
	if (!ret)
		ret = options_number(port, UINT16_MAX, &n);
	if (!ret && p->resolve(host, port, addr))
		ret = -EHOSTUNREACH;
	free(copy);
	return ret;
}

static int set_endpoint(struct parser *p, const char *v)
{
	struct wg_peer_change *peer = gateway_change_peer(p->c);
	struct ipport addr = { 0 };
	int ret = ipport_parse(&addr, v, strlen(v));

	if (ret)
		ret = resolve_endpoint(p, v, &addr);
	if (ret)
		return ret;
	peer->has_endpoint = true;
	endpoint_from_addr(&peer->endpoint, &addr);
	return 0;
}

/* ---- Keys. */

static const struct key {
	const char *name;
	enum section section;
	int (*set)(struct parser *p, const char *v);
	const char *expected;
} keys[] = {
	{ "PrivateKey", IN_INTERFACE, set_private_key, "a key in base64, 44 characters" },
	{ "ListenPort", IN_INTERFACE, set_listen_port, "a port, 0 to 65535" },
	{ "FwMark", IN_INTERFACE, set_fwmark, "off or a number, 0 to 0xffffffff" },
	{ "PublicKey", IN_PEER, set_public_key, "a key in base64, 44 characters" },
	{ "PresharedKey", IN_PEER, set_psk, "a key in base64, 44 characters" },
	{ "AllowedIPs", IN_PEER, set_allowed, "a list of ADDRESS/BITS with commas between them" },
	{ "Endpoint", IN_PEER, set_endpoint, "ADDRESS:PORT, [IPV6]:PORT or HOST:PORT" },
	{ "PersistentKeepalive", IN_PEER, set_keepalive, "off or seconds, 0 to 65535" },
};

static bool is_wg_quick_key(const char *name)
{
	static const char *const names[] = { "Address", "DNS", "MTU", "Table", "PreUp", "PostUp",
		"PreDown", "PostDown", "SaveConfig" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcasecmp(name, names[i]) == 0)
			return true;
	return false;
}

static int refuse_unknown(struct parser *p, const char *name)
{
	size_t len = strlen(name);
	bool is_plain = len > 0 && len <= KEY_SHOWN_MAX &&
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == len;

	if (is_wg_quick_key(name))
		return refuse(p, -EINVAL,
			"%s is for wg-quick: give the output of "
			"'wg-quick strip' instead",
			name);
	if (is_plain)
		return refuse(p, -EINVAL, "unknown key '%s'", name);
	return refuse(p, -EINVAL, "unknown key");
}

static int refuse_value(struct parser *p, const struct key *k, int code)
{
	if (code == -ENOMEM)
		return refuse(p, code, "%s: out of memory", k->name);
	if (code == -E2BIG)
		return refuse(p, code, "%s: more of them than one file may have", k->name);
	if (code == -EHOSTUNREACH)
		return refuse(p, -EINVAL, "%s: the host name has no address now", k->name);
	return refuse(p, -EINVAL, "%s: expected %s", k->name, k->expected);
}

/* ---- Lines. */

static int end_section(struct parser *p)
{
	if (p->section != IN_PEER || p->has_public_key)
		return 0;
	p->line_no = p->peer_line_no;
	return refuse(p, -EINVAL, "PublicKey: expected one in this [Peer]");
}

static int begin_peer(struct parser *p)
{
	struct wg_peer_change *peer;
	int ret = gateway_change_add_peer(p->c, &peer);

	if (ret)
		return refuse(p, ret, "[Peer]: %s",
			ret == -ENOMEM ? "out of memory" : "more of them than one file may have");
	/* All that wg(8) sets for a peer when it is told to set a whole interface. */
	peer->replaces_allowed = true;
	peer->has_psk = true;
	peer->has_keepalive = true;
	p->section = IN_PEER;
	p->has_public_key = false;
	p->peer_line_no = p->line_no;
	return 0;
}

static int begin_section(struct parser *p, const char *line)
{
	int ret = end_section(p);

	if (ret)
		return ret;
	if (strcasecmp(line, "[Peer]") == 0)
		return begin_peer(p);
	if (strcasecmp(line, "[Interface]") != 0)
		return refuse(p, -EINVAL, "expected [Interface] or [Peer]");
	p->section = IN_INTERFACE;
	return 0;
}

static int take_pair(struct parser *p, const char *name, const char *v)
{
	int ret;

	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		if (strcasecmp(name, keys[i].name) != 0)
			continue;
		if (keys[i].section != p->section)
			return refuse(p, -EINVAL, "%s: expected in %s", keys[i].name,
				keys[i].section == IN_PEER ? "[Peer]" : "[Interface]");
		ret = keys[i].set(p, v);
		return ret ? refuse_value(p, &keys[i], ret) : 0;
	}
	return refuse_unknown(p, name);
}

/* line has no comment and no white space any more. */
static int take_line(struct parser *p, char *line)
{
	char *eq;

	if (!*line)
		return 0;
	if (*line == '[')
		return begin_section(p, line);
	eq = strchr(line, '=');
	if (!eq)
		return refuse(p, -EINVAL, "expected KEY = VALUE");
	*eq = '\0';
	return take_pair(p, line, eq + 1);
}

/* Copy what counts of a line: no comment, no white space. */
static int strip_line(struct parser *p, char *out, const char *line, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len && line[i] != '#'; i++) {
		if (line[i] == '\0')
			return refuse(p, -EINVAL, "expected text, not a zero byte");
		if (!strchr(" \t\r\v\f", line[i]))
			out[n++] = line[i];
	}
	out[n] = '\0';
	return 0;
}

static int take_text(struct parser *p, char *scratch, const char *text, size_t len)
{
	const char *end = text + len;
	int ret = 0;

	while (!ret && text < end) {
		const char *eol = memchr(text, '\n', (size_t)(end - text));
		size_t n = (size_t)((eol ? eol : end) - text);

		p->line_no++;
		ret = strip_line(p, scratch, text, n);
		if (!ret)
			ret = take_line(p, scratch);
		text += eol ? n + 1 : n;
	}
	return ret ? ret : end_section(p);
}

int conf_parse(struct gateway_change *out, const char *name, const char *text, size_t len,
	conf_resolve_fn *resolve, struct conf_error *err)
{
	struct parser p = { .c = out, .err = err, .resolve = resolve, .name = name };
	char *scratch = malloc(len + 1);
	int ret;

	gateway_change_init(out);
	out->has_listen_port = true;
	out->has_fwmark = true;
	out->wg.has_private_key = true;
	out->wg.replaces_peers = true;
	err->text[0] = '\0';
	if (!scratch)
		return refuse(&p, -ENOMEM, "out of memory");
	ret = take_text(&p, scratch, text, len);
	crypto_wipe(scratch, len + 1);
	free(scratch);
	if (ret)
		gateway_change_fini(out);
	else
		gateway_change_finish(out);
	return ret;
}

/* ---- Files. */

static int refuse_file(struct conf_error *err, int code, const char *path, const char *why)
{
	snprintf(err->text, sizeof(err->text), "%.100s: %s", path, why);
	return code;
}

static int check_file(int fd, const char *path, size_t *len, struct conf_error *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return refuse_file(err, -errno, path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return refuse_file(err, -EINVAL, path, "expected a regular file");
	if (st.st_mode & 077) {
		snprintf(err->text, sizeof(err->text),
			"%.100s: others can read or write it, and it "
			"holds keys: chmod 600 %.100s",
			path, path);
		return -EACCES;
	}
	if (st.st_size > CONF_FILE_MAX)
		return refuse_file(err, -EFBIG, path, "larger than 64 MiB");
	*len = (size_t)st.st_size;
	return 0;
}

/* At most cap bytes, fewer when the file ends. Their number or negative errno. */
static ssize_t read_whole(int fd, char *buf, size_t cap)
{
	size_t len = 0;

	while (len < cap) {
		ssize_t n = read(fd, buf + len, cap - len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	return (ssize_t)len;
}

/* syscalls: open fstat read close */
int conf_read(struct gateway_change *out, const char *path, conf_resolve_fn *resolve,
	struct conf_error *err)
{
	/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	size_t cap = 0;
	char *text;
	ssize_t n;
	int ret;

	if (fd < 0)
		return refuse_file(err, -errno, path, strerror(errno));
	ret = check_file(fd, path, &cap, err);
	if (ret)
		goto close_file;
	text = malloc(cap + 1);
	if (!text) {
		ret = refuse_file(err, -ENOMEM, path, "out of memory");
		goto close_file;
	}
	n = read_whole(fd, text, cap);
	if (n < 0)
		ret = refuse_file(err, (int)n, path, strerror((int)-n));
	else
		ret = conf_parse(out, path, text, (size_t)n, resolve, err);
	crypto_wipe(text, cap + 1);
	free(text);
close_file:
	close(fd);
	return ret;
}

/* ---- Names. */

static int from_sockaddr(struct ipport *out, const struct sockaddr *sa)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;

	*out = (struct ipport){ 0 };
	out->addr.family = (uint8_t)sa->sa_family;
	if (sa->sa_family == AF_INET) {
		memcpy(out->addr.ip, &v4->sin_addr, 4);
		out->port = ntohs(v4->sin_port);
		return 0;
	}
	if (sa->sa_family != AF_INET6)
		return -EAFNOSUPPORT;
	memcpy(out->addr.ip, &v6->sin6_addr, 16);
	out->port = ntohs(v6->sin6_port);
	out->scope = v6->sin6_scope_id;
	return 0;
}

int conf_resolve_plain(void)
{
	/* Other services are libraries to be loaded, and talk to daemons that do what
	 * user id 0 says. This also keeps glibc from asking nscd. */
	return __nss_configure_lookup("hosts", "files dns") ? -errno : 0;
}

/* getaddrinfo, as conf_resolve_plain leaves it. What it does, in its order:
 * syscalls: open stat fstat read lseek close uname; /etc/nsswitch.conf and the like
 * syscalls: socket(AF_INET, SOCK_DGRAM, 0) socket(AF_INET6, SOCK_DGRAM, 0) connect
 *	setsockopt(IPPROTO_IP, IP_RECVERR) setsockopt(IPPROTO_IPV6, IPV6_RECVERR) poll
 *	sendmmsg send ioctl(FIONREAD) recv getrandom; DNS
 * syscalls: socket(AF_INET, SOCK_STREAM, 0) socket(AF_INET6, SOCK_STREAM, 0) writev; long answers
 * syscalls: socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE) bind getsockname sendto recvmsg;
 *	which of several addresses is nearest
 * syscalls(refused): socket(AF_UNIX, SOCK_STREAM, 0); glibc asks nscd, if there is one */
int conf_resolve(const char *host, const char *port, struct ipport *out)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_DGRAM,
		.ai_protocol = IPPROTO_UDP,
		.ai_flags = AI_NUMERICSERV };
	struct addrinfo *list;
	int ret;

	if (getaddrinfo(host, port, &hints, &list))
		return -EHOSTUNREACH;
	ret = from_sockaddr(out, list->ai_addr);
	freeaddrinfo(list);
	return ret;
}
