#include "lone.h"

enum { ROOM = 256, INDEX = 0x1234 };

static struct lone l;
static struct wg_peer *peer;
static uint8_t pkt[ROOM];

static int setup(void **state)
{
	struct noise_handshake hs = { .remote_index = INDEX, .state = NOISE_RESPONSE_TAKEN };
	uint32_t index;

	lone_open(&l);
	wg_set_up(l.wg, true, l.now_ns);
	peer = lone_add_peer(&l, 9);
	lone_poll(&l);
	assert_int_equal(index_take(&l.wg->index, 0, INDEX_HANDSHAKE, peer, &index), 0);
	hs.local_index = index;
	assert_int_equal(session_begin(peer, &hs), 0);
	/* Messages 0 to 6 were sent. */
	atomic_store(&atomic_load(&peer->current)->tx_counter, 7);
	return 0;
}

static int teardown(void **state)
{
	lone_close(&l);
	return 0;
}

/* A data message of ours at pkt + at. */
static void put_message(size_t at, uint32_t index, uint64_t counter)
{
	put_le32(pkt + at, WGMSG_DATA);
	put_le32(pkt + at + 4, index);
	put_le64(pkt + at + 8, counter);
}

static void put_ipv4(void)
{
	memset(pkt, 0, sizeof(pkt));
	pkt[0] = 0x45;
	pkt[9] = 17;
	put_message(28, INDEX, 3);
}

static void test_ipv4(void **state)
{
	put_ipv4();
	assert_true(wg_is_loop(peer, pkt, 28 + 64));
	assert_false(wg_is_loop(peer, pkt, 28 + 15));
	put_message(28, INDEX + 1, 3); /* somebody else's session */
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
	put_message(28, INDEX, 7); /* not sent yet: not ours */
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
	put_message(28, INDEX, 6);
	assert_true(wg_is_loop(peer, pkt, 28 + 64));
	pkt[28] = WGMSG_INITIATION;
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
	put_ipv4();
	pkt[9] = 6;
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
	put_ipv4();
	put_be16(pkt + 6, 0x2000); /* first fragment */
	assert_true(wg_is_loop(peer, pkt, 28 + 64));
	put_be16(pkt + 6, 0x2001); /* a later one: no port, no message */
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
	put_ipv4();
	pkt[0] = 0x46;
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
	put_message(32, INDEX, 3);
	assert_true(wg_is_loop(peer, pkt, 32 + 64));
}

static void test_ipv6(void **state)
{
	memset(pkt, 0, sizeof(pkt));
	pkt[0] = 0x60;
	pkt[6] = 17;
	put_message(48, INDEX, 3);
	assert_true(wg_is_loop(peer, pkt, 48 + 64));
	assert_false(wg_is_loop(peer, pkt, 48 + 15));
	assert_false(wg_is_loop(peer, pkt, 40));
	pkt[6] = 44;
	assert_false(wg_is_loop(peer, pkt, 48 + 64));
	pkt[40] = 17;
	put_message(56, INDEX, 3);
	assert_true(wg_is_loop(peer, pkt, 56 + 64));
	pkt[43] = 8; /* a later fragment */
	assert_false(wg_is_loop(peer, pkt, 56 + 64));
}

static void expect_hops(size_t len, uint8_t inner, uint8_t outer)
{
	uint8_t hops = 255;

	pkt[pkt[0] >> 4 == 4 ? 8 : 7] = inner;
	assert_true(wg_outer_hops(pkt, len, &hops));
	assert_int_equal(hops, outer);
}

static void expect_end(size_t len, uint8_t inner)
{
	uint8_t hops;

	pkt[pkt[0] >> 4 == 4 ? 8 : 7] = inner;
	assert_false(wg_outer_hops(pkt, len, &hops));
}

/* A tunnel's message costs eight hops for each tunnel that carries it, whosever it is. */
static void test_hops_ipv4(void **state)
{
	put_ipv4();
	put_message(28, INDEX + 1, 99);
	expect_hops(28 + 64, 255, 56);
	expect_hops(28 + 64, 64, 56);
	expect_hops(28 + 64, 63, 55);
	expect_hops(28 + 64, 9, 1);
	expect_end(28 + 64, 8);
	expect_end(28 + 64, 0);
	put_be16(pkt + 6, 0x2000);
	expect_hops(28 + 64, 64, 56);
	pkt[28] = WGMSG_INITIATION;
	expect_hops(28 + 64, 1, 0);
	put_be16(pkt + 6, 0x2001); /* a later fragment: may be one */
	expect_hops(28 + 64, 64, 56);
	expect_end(28 + 64, 8);
	put_ipv4();
	pkt[9] = 6; /* anything else leaves the kernel's default */
	expect_hops(28 + 64, 1, 0);
}

static void test_hops_ipv6(void **state)
{
	memset(pkt, 0, sizeof(pkt));
	pkt[0] = 0x60;
	pkt[6] = 17;
	put_message(48, INDEX, 3);
	expect_hops(48 + 64, 64, 56);
	expect_hops(48 + 15, 64, 0);
	expect_hops(40, 1, 0);
	expect_end(48 + 64, 8);
	pkt[6] = 44;
	expect_hops(48 + 64, 64, 0);
	pkt[40] = 17;
	pkt[43] = 8;
	expect_hops(48 + 64, 64, 56);
	expect_end(48 + 64, 1);
}

static void test_no_session(void **state)
{
	put_ipv4();
	session_end_all(peer);
	assert_false(wg_is_loop(peer, pkt, 28 + 64));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_ipv4),
		TEST(test_ipv6),
		TEST(test_hops_ipv4),
		TEST(test_hops_ipv6),
		TEST(test_no_session),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
