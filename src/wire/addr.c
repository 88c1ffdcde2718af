/* How it works: text is cut at the separators, then each piece must be the
 * whole of what it claims to be: inet_pton() for addresses, decimal digits
 * only for numbers. Nothing is skipped and nothing may follow. */
#include "wire/addr.h"
#include "base/decimal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>

enum {
	PORT_MAX = 65535,
	IPV6_TEXT_MAX = 39, /* eight groups; a dotted end has zeros before it, which are left out */
};

/* [ADDRESS%SCOPE]:PORT and the terminator. */
static_assert(1 + IPV6_TEXT_MAX + 11 + 1 + 6 + 1 <= ADDR_TEXT_MAX, "ADDR_TEXT_MAX");

static unsigned addr_len(const struct ipaddr *a)
{
	return a->family == AF_INET ? 4 : 16;
}

/* Decimal digits only, at most max. */
static int number_parse(uint32_t *out, const char *text, size_t len, uint32_t max)
{
	uint64_t v = 0;
	size_t i;

	if (len == 0 || len > 10)
		return -EINVAL;
	for (i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		v = v * 10 + (uint64_t)(text[i] - '0');
	}
	if (v > max)
		return -EINVAL;
	*out = (uint32_t)v;
	return 0;
}

int ipaddr_parse(struct ipaddr *out, const char *text, size_t len)
{
	char copy[INET6_ADDRSTRLEN];

	/* A NUL inside would make inet_pton() stop early. */
	if (len >= sizeof(copy) || memchr(text, '\0', len))
		return -EINVAL;
	memcpy(copy, text, len);
	copy[len] = '\0';
	memset(out, 0, sizeof(*out));
	out->family = memchr(text, ':', len) ? AF_INET6 : AF_INET;
	return inet_pton(out->family, copy, out->ip) == 1 ? 0 : -EINVAL;
}

static void clear_host_bits(struct prefix *p)
{
	unsigned len = addr_len(&p->addr), i = p->bits / 8;

	if (i == len)
		return;
	p->addr.ip[i] &= (uint8_t)(0xff00 >> p->bits % 8);
	memset(p->addr.ip + i + 1, 0, len - i - 1);
}

int prefix_parse(struct prefix *out, const char *text, size_t len)
{
	const char *slash = memchr(text, '/', len);
	size_t head = slash ? (size_t)(slash - text) : len;
	uint32_t bits;
	int ret;

	ret = ipaddr_parse(&out->addr, text, head);
	if (ret)
		return ret;
	bits = addr_len(&out->addr) * 8;
	if (slash) {
		ret = number_parse(&bits, slash + 1, len - head - 1, bits);
		if (ret)
			return ret;
	}
	out->bits = (uint8_t)bits;
	clear_host_bits(out);
	return 0;
}

/* A number, or the name of an interface that exists. Never 0. */
static int scope_parse(uint32_t *out, const char *text, size_t len)
{
	char name[IF_NAMESIZE];

	if (number_parse(out, text, len, UINT32_MAX)) {
		if (len == 0 || len >= sizeof(name) || memchr(text, '\0', len))
			return -EINVAL;
		memcpy(name, text, len);
		name[len] = '\0';
		*out = if_nametoindex(name);
	}
	return *out ? 0 : -EINVAL;
}

static int bracketed_parse(struct ipport *out, const char *text, size_t len)
{
	const char *percent = memchr(text, '%', len);
	size_t head = percent ? (size_t)(percent - text) : len;
	int ret;

	ret = ipaddr_parse(&out->addr, text, head);
	if (ret)
		return ret;
	if (out->addr.family != AF_INET6)
		return -EINVAL;
	return percent ? scope_parse(&out->scope, percent + 1, len - head - 1) : 0;
}

int ipport_parse(struct ipport *out, const char *text, size_t len)
{
	const char *colon = memrchr(text, ':', len);
	uint32_t port;
	size_t head;
	int ret;

	memset(out, 0, sizeof(*out));
	if (!colon)
		return -EINVAL;
	head = (size_t)(colon - text);
	ret = number_parse(&port, colon + 1, len - head - 1, PORT_MAX);
	if (ret)
		return ret;
	out->port = (uint16_t)port;
	if (head >= 2 && text[0] == '[' && text[head - 1] == ']')
		return bracketed_parse(out, text + 1, head - 2);
	ret = ipaddr_parse(&out->addr, text, head);
	/* Bare IPv6 before a port reads two ways, so it is refused. */
	if (ret || out->addr.family != AF_INET)
		return -EINVAL;
	return 0;
}

/* Without printf and its like where it counts: a dump holds hundreds of thousands. */
static size_t ipv4_text(const uint8_t ip[4], char *out)
{
	size_t len = 0;

	for (int i = 0; i < 4; i++) {
		if (i)
			out[len++] = '.';
		len += decimal_text(out + len, ip[i]);
	}
	out[len] = '\0';
	return len;
}

static size_t addr_text(const struct ipaddr *a, char *out)
{
	if (a->family == AF_INET)
		return ipv4_text(a->ip, out);
	if (a->family != AF_INET6 || !inet_ntop(AF_INET6, a->ip, out, IPV6_TEXT_MAX + 1))
		strcpy(out, "(none)");
	return strlen(out);
}

static size_t number_text(uint32_t n, char *out)
{
	size_t len = decimal_text(out, n);

	out[len] = '\0';
	return len;
}

const char *ipaddr_text(const struct ipaddr *a, char out[ADDR_TEXT_MAX])
{
	addr_text(a, out);
	return out;
}

const char *prefix_text(const struct prefix *p, char out[ADDR_TEXT_MAX])
{
	size_t len = addr_text(&p->addr, out);

	out[len++] = '/';
	number_text(p->bits, out + len);
	return out;
}

const char *ipport_text(const struct ipport *a, char out[ADDR_TEXT_MAX])
{
	bool is_v6 = a->addr.family == AF_INET6;
	size_t len = 0;

	if (is_v6)
		out[len++] = '[';
	len += addr_text(&a->addr, out + len);
	if (is_v6 && a->scope) {
		out[len++] = '%';
		len += number_text(a->scope, out + len);
	}
	if (is_v6)
		out[len++] = ']';
	out[len++] = ':';
	number_text(a->port, out + len);
	return out;
}
