/* How it works: text is cut at the separators, then each piece must be the
 * whole of what it claims to be: inet_pton() for addresses, decimal digits
 * only for numbers. Nothing is skipped and nothing may follow. */
#include "wire/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

enum { PORT_MAX = 65535 };

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

const char *ipaddr_text(const struct ipaddr *a, char out[ADDR_TEXT_MAX])
{
	if (!inet_ntop(a->family, a->ip, out, ADDR_TEXT_MAX))
		snprintf(out, ADDR_TEXT_MAX, "(none)");
	return out;
}

const char *prefix_text(const struct prefix *p, char out[ADDR_TEXT_MAX])
{
	size_t len;

	ipaddr_text(&p->addr, out);
	len = strlen(out);
	snprintf(out + len, ADDR_TEXT_MAX - len, "/%u", p->bits);
	return out;
}

const char *ipport_text(const struct ipport *a, char out[ADDR_TEXT_MAX])
{
	char ip[ADDR_TEXT_MAX];
	char scope[12] = "";

	ipaddr_text(&a->addr, ip);
	if (a->scope)
		snprintf(scope, sizeof(scope), "%%%u", a->scope);
	if (a->addr.family == AF_INET6)
		snprintf(out, ADDR_TEXT_MAX, "[%.46s%s]:%u", ip, scope, a->port);
	else
		snprintf(out, ADDR_TEXT_MAX, "%.46s:%u", ip, a->port);
	return out;
}
