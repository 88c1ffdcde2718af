"""The core of what a gateway does, short enough to be run under every engine (engines.py): tools/check prints the table.

Beside these the scenarios of other files that are marked `engines`.
"""
import os
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, peer_program, under_test
from pump import keeps_order

MIB = 1 << 20
ODD_SIZES = (0, 1, 15, 16, 17, 63, 64, 65, 1371, 1372, 1373, 1393, 1473, 3000, 9000)


@pytest.mark.engines
@pytest.mark.parametrize("outer", (4, 6), ids=("outer4", "outer6"))
def test_data_both_ways(lab, outer):
    """Handshake, echoes, TCP compared by digest, datagrams of many sizes, both families; and `wg show` has counted them."""
    p = Pair(lab, outer=outer, psk=True)
    p.works()
    before = p.ga.transfer(p.gb.public)
    for inner in (p.inner4, p.inner6):
        net.tcp_transfer(lab, p.a, p.b, inner[1], 8 * MIB)
        net.tcp_transfer(lab, p.b, p.a, inner[0], 8 * MIB)
        net.udp_sizes(lab, p.a, p.b, inner[1], ODD_SIZES)
    received, sent = (now - then for now, then in zip(p.ga.transfer(p.gb.public), before))
    assert 16 * MIB < received < 24 * MIB and 16 * MIB < sent < 24 * MIB, (received, sent)
    assert p.ga.handshake_time(p.gb.public) and p.gb.handshake_time(p.ga.public)
    assert p.ga.endpoint(p.gb.public) == p.outer(1, outer) and p.gb.endpoint(p.ga.public) == p.outer(0, outer)
    p.healthy()


@pytest.mark.engines
@pytest.mark.parametrize("mtu", (1281, 8921))
def test_odd_mtu(lab, mtu):
    """Inner packets as long as the interface takes them, and fragments of longer ones; then another MTU, at run time."""
    p = Pair(lab, mtu=mtu, link_mtu=9200)
    p.works()
    for new in (mtu, 1333):
        for g in p.gateways:
            net.run(g.ns, "ip", "link", "set", g.name, "mtu", new)
        assert net.ping(p.a, p.inner4[1], 2, 0.02, size=new - 28, options=("-M", "do")) == 2
        assert net.ping(p.b, p.inner6[0], 2, 0.02, size=new - 48) == 2
        assert net.ping(p.a, p.inner4[1], 2, 0.02, size=3 * new) == 2
        net.tcp_transfer(lab, p.a, p.b, p.inner6[1], 4 * MIB)
        net.udp_sizes(lab, p.b, p.a, p.inner4[0], (new - 29, new - 28, new - 27, 20000))
    p.healthy()


@pytest.mark.engines
def test_small_packets_keep_their_order(lab, engine):
    """Many numbered datagrams of one flow: some may be lost, none arrives late or twice."""
    p = Pair(lab)
    lab.keep_order(p.b, "v1")
    p.works()
    keeps_order(p, engine)


@pytest.mark.engines
@pytest.mark.few
def test_everything_moves_under_traffic(lab):
    """Own port, address and MTU change, the interface goes down and up, with TCP and datagrams on their way."""
    p = Pair(lab)
    p.works()
    streams = [net.UdpStream(lab, p.a, p.b, p.inner4[1], 1000), net.UdpStream(lab, p.b, p.a, p.inner6[0], 1000)]
    for i in range(3):
        p.ga.wg("set", p.ga.name, "listen-port", str(46000 + i))
        net.wait_until(lambda: p.gb.endpoint(p.ga.public) == f"{p.outer4[0]}:{46000 + i}", 5, message="the port is not followed")
    net.run(p.a, "ip", "addr", "del", p.outer4[0] + "/24", "dev", "v0")
    lab.address(p.a, "v0", "192.168.241.77/24")
    net.wait_until(lambda: p.gb.endpoint(p.ga.public) == "192.168.241.77:46002", 5, message="the address is not followed")
    net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 4 * MIB)
    for g in p.gateways:
        net.run(g.ns, "ip", "link", "set", g.name, "down")
        net.run(g.ns, "ip", "link", "set", g.name, "up")
        p.works(15)
    net.tcp_transfer(lab, p.b, p.a, p.inner6[0], 4 * MIB)
    for s in streams:
        sent, lost = s.finish()
        assert sent > lost, (sent, lost)
    p.healthy()


@pytest.mark.engines
def test_parallel_tcp(lab):
    """Several streams at once through both gateways, as the kernel's test asks for them."""
    p = Pair(lab)
    p.works()
    net.iperf(lab, p.b, p.a, p.inner4[1], "-t", "1", "-P", "8")
    net.iperf(lab, p.a, p.b, p.inner6[0], "-t", "1", "-P", "4", "-R")
    net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 8 * MIB)
    p.healthy()


@pytest.mark.engines
def test_wireguard_go(lab):
    """With a gateway that we did not write, which begins; then we do."""
    p = Pair(lab, under_test(), peer_program("wireguard-go-old"), psk=True, endpoints=(False, True))
    assert net.first_ping(p.b, p.inner4[0]), p.logs()
    for inner in (p.inner4, p.inner6):
        net.tcp_transfer(lab, p.a, p.b, inner[1], 4 * MIB)
        net.tcp_transfer(lab, p.b, p.a, inner[0], 4 * MIB)
    net.udp_sizes(lab, p.a, p.b, p.inner4[1], ODD_SIZES)
    p.ga.wg("set", p.ga.name, "listen-port", "9999")
    assert net.first_ping(p.a, p.inner4[1])
    net.wait_until(lambda: p.gb.endpoint(p.ga.public) == f"{p.outer4[0]}:9999", 5, message="wireguard-go does not follow")
    p.healthy()


@pytest.mark.engines
@pytest.mark.skipif(is_stand_in(), reason="asks for what is penstock's own")
def test_stop_leaves_nothing(lab):
    """Under traffic and idle: status 0, and no interface, process or socket file; and it can be started again."""
    p = Pair(lab)
    p.works()
    stream = net.UdpStream(lab, p.b, p.a, p.inner4[0], 2000)
    for g in (p.ga, p.ga, p.gb):
        helper = g.helper()
        assert g.stop() == 0, g.log()[-800:]
        # The kernel lets go of a ring's descriptors some 35 ms after the process.
        net.wait_until(lambda: net.run(g.ns, "ip", "link", "show", g.name, check=False).returncode != 0, 1, message="the interface is left")
        assert not os.path.exists(g.socket_path)
        net.wait_until(lambda: not os.path.exists(f"/proc/{helper}"), 5, message="the helper is left")
        i = p.gateways.index(g)
        g.start()
        g.up(p.inner4[i] + "/24", p.inner6[i] + "/64", port=p.ports[i])
        g.peer(p.gateways[1 - i].public, f"{p.inner4[1 - i]}/32,{p.inner6[1 - i]}/128", p.outer(1 - i))
        p.works(15)
    stream.finish()


# ---- Rekeying takes 120 s: one pair for each engine, beside all other tests.


class Rekeying:
    SECONDS = 132

    def __init__(self, lab, engine):
        self.pair = p = Pair(lab, engine=engine)
        p.works()
        self.began = time.monotonic()
        self.first = p.ga.handshake_time(p.gb.public)
        self.streams = [net.UdpStream(lab, p.a, p.b, p.inner4[1], pps=10), net.UdpStream(lab, p.b, p.a, p.inner6[0], pps=10)]

    def check(self):
        time.sleep(max(0, self.began + self.SECONDS - time.monotonic()))
        p = self.pair
        assert p.ga.handshake_time(p.gb.public) - self.first >= 110, f"no new handshake in {self.SECONDS} s" + p.logs()
        for stream in self.streams:
            sent, lost = stream.finish()
            assert sent > 1000 and lost <= sent // 1000, f"{lost} of {sent} datagrams lost over a rekey" + p.logs()
        p.healthy()


@pytest.fixture(scope="session", autouse=True)
def rekeying(request):
    """{engine: its pair, or why there is none}: begun before the first test of this file."""
    wanted = [item.callspec.params["engine"] for item in request.session.items if item.name.startswith("test_rekey_under_traffic[")]
    runs, labs = {}, []
    try:
        for engine in wanted:
            labs.append(net.Lab())
            try:
                runs[str(engine)] = Rekeying(labs[-1], engine)
            except (net.LabError, AssertionError) as e:
                runs[str(engine)] = e
        yield runs
    finally:
        for one in labs:
            one.close()


@pytest.mark.last
@pytest.mark.engines(alone=True)
def test_rekey_under_traffic(engine, rekeying):
    """After 120 s a new handshake, and no datagram lost over it. Without --engines test_interop.test_rekey asks this."""
    run = rekeying[str(engine)]
    if isinstance(run, BaseException):
        raise run
    run.check()
