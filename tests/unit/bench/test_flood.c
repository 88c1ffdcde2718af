/* The packets are what a gateway has to look at closely, and they come from where they
 * should. */
#include "bench/flood.h"
#include "base/bytes.h"
#include "base/rcu.h"
#include "bench/device.h"
#include "crypto/crypto.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { N = 32, LOOPBACK = 0x7f000001, SOURCES = 0x7f500000, N_SOURCES = 100 };

static void test_initiations_pass_the_first_mac(void **state)
{
	struct device_identity us, other;
	struct wg_endpoint from;
	struct flood_ammo a;
	struct fake_time t;
	struct device *d;
	size_t i, k;

	fake_time_init(&t);
	device_identity_make(&us);
	device_identity_make(&other);
	assert_int_equal(device_create(&d, &us, &t), 0);
	assert_int_equal(flood_initiations(&a, N, us.public_key), 0);
	assert_int_equal(a.len, WGMSG_INITIATION_LEN);
	for (i = 0; i < N; i++) {
		device_endpoint(&from, (uint32_t)i);
		assert_int_equal(wg_rx_handshake(d->wg, a.packets + i * a.len, a.len, &from, false,
					 t.now_ns, t.wall_ns),
			WG_DROP_HANDSHAKE);
		for (k = 0; k < i; k++)
			assert_memory_not_equal(a.packets + k * a.len, a.packets + i * a.len, 40);
	}
	flood_ammo_fini(&a);

	assert_int_equal(flood_initiations(&a, 1, other.public_key), 0);
	assert_int_equal(
		wg_rx_handshake(d->wg, a.packets, a.len, &from, false, t.now_ns, t.wall_ns),
		WG_DROP_MAC1);
	flood_ammo_fini(&a);
	device_destroy(d);
}

static void test_forgeries_are_data_for_one_index(void **state)
{
	struct flood_ammo a;
	size_t i;

	assert_int_equal(flood_forgeries(&a, N, 64, 0x12345678), 0);
	for (i = 0; i < N; i++) {
		const uint8_t *p = a.packets + i * 64;

		assert_int_equal(wgmsg_gate(p, 64), WGMSG_DATA);
		assert_int_equal(get_le32(p + 4), 0x12345678);
		assert_int_equal(get_le64(p + 8), i);
	}
	assert_memory_not_equal(a.packets + 16, a.packets + 64 + 16, 48);
	flood_ammo_fini(&a);
	flood_ammo_fini(&a);
}

static int listener(struct sockaddr_in *at)
{
	const struct timeval patience = { .tv_sec = 10 };
	socklen_t len = sizeof(*at);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	*at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(LOOPBACK) };
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof(*at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fd;
}

static void test_every_source_sends(void **state)
{
	struct flood_ammo a;
	struct sockaddr_in at, from;
	bool seen[N_SOURCES] = { false };
	socklen_t len;
	uint8_t buf[256];
	struct flood *f;
	uint32_t source;
	int fd = listener(&at), n_seen = 0, i;

	assert_int_equal(flood_forgeries(&a, N, 64, 1), 0);
	const struct flood_aim aim = { &a, LOOPBACK, ntohs(at.sin_port), SOURCES, N_SOURCES };
	assert_int_equal(flood_start(&f, NULL, 0, &aim), 0);
	for (i = 0; i < 1000000 && n_seen < N_SOURCES; i++) {
		len = sizeof(from);
		assert_int_equal(
			recvfrom(fd, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len), 64);
		source = ntohl(from.sin_addr.s_addr) - SOURCES;
		assert_true(source < N_SOURCES);
		n_seen += !seen[source];
		seen[source] = true;
		assert_memory_equal(buf, a.packets + get_le64(buf + 8) * 64, 64);
	}
	assert_int_equal(n_seen, N_SOURCES);
	/* Counted when the batch is through, which is after its first packets are here. */
	for (i = 0; i < 1000 && flood_sent(f) < N_SOURCES; i++)
		usleep(10000);
	assert_true(flood_sent(f) >= N_SOURCES);
	flood_stop(f);
	flood_stop(NULL);
	flood_ammo_fini(&a);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_initiations_pass_the_first_mac),
		cmocka_unit_test(test_forgeries_are_data_for_one_index),
		cmocka_unit_test(test_every_source_sends),
	};
	int ret;

	if (crypto_init(NULL))
		return 1;
	rcu_thread_init();
	ret = cmocka_run_group_tests(tests, NULL, NULL);
	rcu_thread_fini();
	return ret;
}
