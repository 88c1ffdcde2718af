/* wg(8) files: what is understood, what is refused and how, and which files are
 * not opened at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "gateway/conf.h"
#include "link/link.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define B1 "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
#define B2 "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
#define B3 "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM="

/* The only name there is. */
static int resolve(const char *host, const char *port, struct ipport *out)
{
	char text[64];

	if (strcmp(host, "host.example") != 0)
		return -EHOSTUNREACH;
	snprintf(text, sizeof(text), "192.0.2.99:%s", port);
	return ipport_parse(out, text, strlen(text));
}

static int parse(struct gateway_change *c, const char *text, struct conf_error *err)
{
	return conf_parse(c, "wg0.conf", text, strlen(text), resolve, err);
}

static void assert_key(const uint8_t *key, uint8_t byte)
{
	for (int i = 0; i < WG_KEY_LEN; i++)
		assert_int_equal(key[i], byte);
}

static const char everything[] = "# a comment = [with] everything\n"
				 "[Interface]\n"
				 "PrivateKey = " B1 "\n"
				 "ListenPort=51820 # why not\n"
				 "FwMark = 0xCa6c\n"
				 "\n"
				 "\t[ Peer ]\r\n"
				 "publickey=" B2 "\r\n"
				 "PRESHAREDKEY =\t" B3 "\r\n"
				 "AllowedIPs = 10.1.2.3/16 , 2001:db8::1\r\n"
				 "AllowedIPs =\r\n"
				 "AllowedIPs = 192.0.2.0/24\r\n"
				 "Endpoint = [2001:db8::9]:1234\r\n"
				 "PersistentKeepalive = 25\r\n"
				 "[Peer]\n"
				 "Endpoint = host.example:7\n"
				 "PersistentKeepalive = off\n"
				 "PublicKey = " B3;

static void check_everything(const struct gateway_change *c)
{
	const struct wg_peer_change *p = c->wg.peers;
	struct ipport addr;

	assert_true(c->has_listen_port && c->has_fwmark && c->wg.has_private_key);
	assert_true(c->wg.replaces_peers);
	assert_key(c->wg.private_key, 1);
	assert_int_equal(c->listen_port, 51820);
	assert_int_equal(c->fwmark, 0xca6c);
	assert_int_equal(c->wg.n_peers, 2);
	assert_key(p[0].public_key, 2);
	assert_key(p[0].psk, 3);
	assert_true(p[0].has_psk && p[0].has_endpoint && p[0].has_keepalive);
	assert_true(p[0].replaces_allowed);
	assert_int_equal(p[0].keepalive_s, 25);
	assert_int_equal(p[0].n_allowed, 3);
	assert_int_equal(p[0].allowed[0].net.bits, 16);
	assert_int_equal(p[0].allowed[1].net.bits, 128);
	assert_int_equal(p[0].allowed[2].net.addr.ip[0], 192);
	endpoint_to_addr(&addr, &p[0].endpoint);
	assert_int_equal(addr.port, 1234);
	assert_key(p[1].public_key, 3);
	assert_key(p[1].psk, 0);
	assert_int_equal(p[1].keepalive_s, 0);
	assert_int_equal(p[1].n_allowed, 0);
	assert_true(p[1].has_endpoint && p[1].replaces_allowed);
	endpoint_to_addr(&addr, &p[1].endpoint);
	assert_int_equal(addr.port, 7);
	assert_memory_equal(addr.addr.ip, "\xc0\x00\x02\x63", 4);
}

static void test_every_key(void **state)
{
	struct gateway_change c;
	struct conf_error err;

	assert_int_equal(parse(&c, everything, &err), 0);
	check_everything(&c);
	gateway_change_fini(&c);
}

static void test_what_is_left_out_is_reset(void **state)
{
	static const char *const texts[] = { "", "\n\n", "# nothing", "[Interface]",
		"[interface]\n" };
	struct gateway_change c;
	struct conf_error err;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(parse(&c, texts[i], &err), 0);
		assert_true(c.has_listen_port && c.has_fwmark && c.wg.has_private_key);
		assert_true(c.wg.replaces_peers);
		assert_int_equal(c.listen_port, 0);
		assert_int_equal(c.fwmark, 0);
		assert_key(c.wg.private_key, 0);
		assert_int_equal(c.wg.n_peers, 0);
		gateway_change_fini(&c);
	}
}

static void test_signs(void **state)
{
	struct gateway_change c;
	struct conf_error err;

	assert_int_equal(parse(&c,
				 "[Peer]\nPublicKey=" B1 "\nAllowedIPs=+10.0.0.0/8,-11.0.0.0/8\n"
				 "FwMark=1\n",
				 &err),
		-EINVAL);
	assert_int_equal(
		parse(&c, "[Peer]\nPublicKey=" B1 "\nAllowedIPs=+10.0.0.0/8,-11.0.0.0/8\n", &err),
		0);
	assert_false(c.wg.peers[0].replaces_allowed);
	assert_false(c.wg.peers[0].allowed[0].is_removal);
	assert_true(c.wg.peers[0].allowed[1].is_removal);
	gateway_change_fini(&c);
}

static void test_long_line(void **state)
{
	/* A sanitizer that checks strings reads all of the rest for each item. */
	enum { N = IS_SANITIZED ? 20000 : 200000 };
	char *text = malloc(64 + (size_t)N * 16 + 16);
	struct gateway_change c;
	struct conf_error err;
	size_t len = (size_t)sprintf(text, "[Peer]\nPublicKey=" B1 "\nAllowedIPs=");

	for (unsigned i = 0; i < N; i++)
		len += (size_t)sprintf(
			text + len, "%s10.%u.%u.%u", i ? ", " : "", i >> 16, i >> 8 & 255, i & 255);
	assert_int_equal(parse(&c, text, &err), 0);
	assert_int_equal(c.wg.peers[0].n_allowed, N);
	assert_int_equal(c.wg.peers[0].allowed[N - 1].net.addr.ip[3], (N - 1) & 255);
	gateway_change_fini(&c);
	free(text);
}

struct bad {
	const char *text, *message;
};

#define IFACE "[Interface]\n"
#define PEER "[Peer]\nPublicKey=" B1 "\n"

static const struct bad bads[] = {
	{ "PrivateKey=" B1 "\n", "wg0.conf:1: PrivateKey: expected in [Interface]" },
	{ "hello\n", "wg0.conf:1: expected KEY = VALUE" },
	{ "[Intersection]\n", "wg0.conf:1: expected [Interface] or [Peer]" },
	{ "[Peer\n", "expected [Interface] or [Peer]" },
	{ IFACE "PrivateKey = abc\n", "wg0.conf:2: PrivateKey: expected a key in base64" },
	{ IFACE "PrivateKey =\n", "PrivateKey" },
	{ IFACE "PrivateKey = " B1 "=\n", "PrivateKey" },
	{ IFACE "ListenPort = 65536\n", "ListenPort: expected a port" },
	{ IFACE "ListenPort = -1\n", "ListenPort" },
	{ IFACE "ListenPort = 0x10\n", "ListenPort" },
	{ IFACE "ListenPort =\n", "ListenPort" },
	{ IFACE "FwMark = 0x100000000\n", "FwMark: expected off or a number" },
	{ IFACE "FwMark = 0x\n", "FwMark" },
	{ IFACE "FwMark = 4294967296\n", "FwMark" },
	{ IFACE "FwMark = of\n", "FwMark" },
	{ IFACE "AllowedIPs = 10.0.0.0/8\n", "AllowedIPs: expected in [Peer]" },
	{ IFACE "Colour = red\n", "unknown key 'Colour'" },
	{ IFACE "Address = 10.0.0.1/24\n",
		"wg0.conf:2: Address is for wg-quick: give the output of "
		"'wg-quick strip'" },
	{ IFACE "saveconfig = true\n", "is for wg-quick" },
	{ IFACE "PostUp = iptables -A FORWARD\n", "is for wg-quick" },
	{ IFACE "DNS=1.1.1.1\n", "is for wg-quick" },
	{ IFACE "MTU=1420\n", "is for wg-quick" },
	{ IFACE "Table=off\n", "is for wg-quick" },
	{ PEER "ListenPort = 1\n", "wg0.conf:3: ListenPort: expected in [Interface]" },
	{ PEER "AllowedIPs = 10.0.0.0/33\n", "wg0.conf:3: AllowedIPs: expected a list" },
	{ PEER "AllowedIPs = 10.0.0.0/8,\n", "AllowedIPs" },
	{ PEER "AllowedIPs = ,\n", "AllowedIPs" },
	{ PEER "AllowedIPs = +-10.0.0.0/8\n", "AllowedIPs" },
	{ PEER "Endpoint = 192.0.2.1\n", "Endpoint: expected ADDRESS:PORT" },
	{ PEER "Endpoint = \n", "Endpoint" },
	{ PEER "Endpoint = [::1]\n", "Endpoint: expected" },
	{ PEER "Endpoint = :5\n", "Endpoint: expected" },
	{ PEER "Endpoint = host.example:\n", "Endpoint: expected" },
	{ PEER "Endpoint = host.example:65536\n", "Endpoint: expected" },
	{ PEER "Endpoint = nowhere.example:5\n", "the host name has no address now" },
	{ PEER "PersistentKeepalive = 65536\n", "PersistentKeepalive: expected off or seconds" },
	{ PEER "PersistentKeepalive = on\n", "PersistentKeepalive" },
	{ PEER "PresharedKey = " B1 "x\n", "PresharedKey" },
	{ "\n[Peer]\nAllowedIPs = 10.0.0.0/8\n",
		"wg0.conf:2: PublicKey: expected one in this [Peer]" },
	{ "[Peer]\n" PEER, "wg0.conf:1: PublicKey" },
	{ PEER "[Peer]\n" IFACE, "wg0.conf:3: PublicKey" },
};

static void test_bad_files(void **state)
{
	struct gateway_change c;
	struct conf_error err;

	for (size_t i = 0; i < ARRAY_LEN(bads); i++) {
		assert_int_equal(parse(&c, bads[i].text, &err), -EINVAL);
		if (!strstr(err.text, bads[i].message))
			fail_msg("'%s' is not in '%s'", bads[i].message, err.text);
		assert_null(strchr(err.text, '\n'));
	}
}

static void test_zero_byte(void **state)
{
	static const char text[] = "[Interface]\nListenPort = 1\0"
				   "2\n";
	struct gateway_change c;
	struct conf_error err;

	assert_int_equal(conf_parse(&c, "f", text, sizeof(text) - 1, NULL, &err), -EINVAL);
	assert_non_null(strstr(err.text, "f:2: "));
}

static void test_messages_keep_secrets(void **state)
{
	static const char *const texts[] = {
		IFACE "PrivateKey = " B1 "A\n",
		IFACE "PrivateKey " B1 "\n",
		IFACE B1 "\n",
		IFACE B1 " = x\n",
		PEER "PresharedKey = x" B1 "\n",
	};
	struct gateway_change c;
	struct conf_error err;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(parse(&c, texts[i], &err), -EINVAL);
		assert_null(strstr(err.text, "AQEB"));
	}
}

static void test_good_input_going_bad(void **state)
{
	char *text = strdup(everything);
	struct gateway_change c;
	struct conf_error err;
	unsigned n_refused = 0;

	/* Every byte of a good file changed: refused or read, never half read. */
	for (size_t i = 0; i < strlen(everything); i++) {
		text[i] = '!';
		if (parse(&c, text, &err) == 0) {
			gateway_change_fini(&c);
		} else {
			n_refused++;
			assert_non_null(strstr(err.text, "wg0.conf:"));
			assert_null(c.wg.peers);
		}
		text[i] = everything[i];
	}
	/* Only what is in comments and in host names may pass. */
	assert_true(n_refused > strlen(everything) * 3 / 4);
	free(text);
}

static void test_no_resolver(void **state)
{
	static const char text[] = PEER "Endpoint = host.example:7\n";
	struct gateway_change c;
	struct conf_error err;

	assert_int_equal(conf_parse(&c, "f", text, strlen(text), NULL, &err), -EINVAL);
	assert_non_null(strstr(err.text, "Endpoint"));
}

static void test_real_resolver(void **state)
{
	struct ipport addr;

	/* Numeric, so that no name server is asked. */
	assert_int_equal(conf_resolve("127.0.0.1", "99", &addr), 0);
	assert_int_equal(addr.port, 99);
	assert_int_equal(addr.addr.ip[0], 127);
	assert_int_equal(conf_resolve("::1", "99", &addr), 0);
	assert_int_equal(addr.addr.ip[15], 1);
	assert_int_equal(conf_resolve("127.0.0.1", "http", &addr), -EHOSTUNREACH);
}

static void write_file(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void test_files(void **state)
{
	static const mode_t open_modes[] = { 0604, 0640, 0620, 0602, 0644, 0601 };
	char path[] = "/tmp/penstock-conf-XXXXXX";
	struct gateway_change c;
	struct conf_error err;
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	write_file(path, everything, 0600);
	assert_int_equal(conf_read(&c, path, resolve, &err), 0);
	check_everything(&c);
	gateway_change_fini(&c);
	for (size_t i = 0; i < ARRAY_LEN(open_modes); i++) {
		write_file(path, everything, open_modes[i]);
		assert_int_equal(conf_read(&c, path, resolve, &err), -EACCES);
		assert_non_null(strstr(err.text, "chmod 600 /tmp/penstock-conf-"));
	}
	write_file(path, "nonsense", 0600);
	assert_int_equal(conf_read(&c, path, resolve, &err), -EINVAL);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(truncate(path, CONF_FILE_MAX + 1L), 0);
	assert_int_equal(conf_read(&c, path, resolve, &err), -EFBIG);
	unlink(path);
	assert_int_equal(conf_read(&c, path, resolve, &err), -ENOENT);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(conf_read(&c, path, resolve, &err), -EINVAL);
	assert_non_null(strstr(err.text, "regular file"));
	unlink(path);
	assert_int_equal(conf_read(&c, "/tmp", resolve, &err), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_key),
		cmocka_unit_test(test_what_is_left_out_is_reset),
		cmocka_unit_test(test_signs),
		cmocka_unit_test(test_long_line),
		cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_zero_byte),
		cmocka_unit_test(test_messages_keep_secrets),
		cmocka_unit_test(test_good_input_going_bad),
		cmocka_unit_test(test_no_resolver),
		cmocka_unit_test(test_real_resolver),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
