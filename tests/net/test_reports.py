"""Faults that users of other implementations reported: see REPORTS in conformance.py. Those that belong to a
subject of their own are elsewhere: reloads in test_reload.py, networks in test_network.py, requests in test_control.py.
"""
import base64
import os
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test
from pump import PROGRAM, Pump

MIB = 1 << 20
PAST_CLOCK = os.path.join(net.ROOT, "build", "tests", "net", "libpast_clock.so")


def random_peers(n):
    """n sections of a configuration file; nobody has the private keys."""
    for i in range(n):
        key = base64.b64encode(os.urandom(32)).decode()
        yield key, f"[Peer]\nPublicKey = {key}\nAllowedIPs = 100.{i >> 16}.{i >> 8 & 255}.{i & 255}/32\n"


@pytest.mark.report("large-setconf", asserts="24,000 and 100,000 peers from a file: `wg show` lists exactly these, and the one real peer among "
                    "them answers an echo")
@pytest.mark.memory
@pytest.mark.parametrize("n", (24000, 100000))
def test_setconf_with_many_peers(lab, n):
    p = Pair(lab)
    peers = dict(random_peers(n - 1))
    peers[p.gb.public] = f"[Peer]\nPublicKey = {p.gb.public}\nAllowedIPs = {p.inner4[1]}/32\nEndpoint = {p.outer(1)}\n"
    path = lab.file("many.conf", f"[Interface]\nPrivateKey = {p.ga.private}\nListenPort = {p.ports[0]}\n" + "".join(peers.values()))
    p.ga.wg("setconf", p.ga.name, path)
    assert net.first_ping(p.a, p.inner4[1])
    shown = p.ga.wg("show", p.ga.name, "peers").stdout.split()
    assert len(shown) == n and set(shown) == set(peers)


@pytest.mark.report("show-20000", asserts="five times `wg show` of 20,000 peers, all listed, under 20,000 packets/s: none lost")
@pytest.mark.memory
def test_show_of_many_peers_under_traffic(lab):
    p = Pair(lab)
    p.works()
    path = lab.file("many.conf", "".join(text for _, text in random_peers(20000)))
    for g in p.gateways:
        g.wg("addconf", g.name, path)
    pump = Pump(p, 20000)
    for _ in range(5):
        for g in p.gateways:
            assert g.wg("show", g.name).stdout.count("peer: ") == 20001
    result = pump.finish()
    print(result)
    assert result.lost == 0, str(result)


@pytest.mark.report("roaming-peer", asserts="ten new addresses and ports under 1,000 packets/s each way: the endpoint follows each; both sides have "
                    "as many descriptors as before")
def test_peer_roams_under_traffic(lab):
    p = Pair(lab)
    p.works()
    streams = [net.UdpStream(lab, p.a, p.b, p.inner4[1], 1000), net.UdpStream(lab, p.b, p.a, p.inner4[0], 1000)]
    before = [g.descriptors() for g in p.gateways]
    old = p.outer4[0]
    for i in range(10):
        new, port = f"192.168.241.{50 + i}", 46000 + i
        net.run(p.a, "ip", "addr", "del", old + "/24", "dev", "v0")
        lab.address(p.a, "v0", new + "/24")
        p.ga.wg("set", p.ga.name, "listen-port", str(port))
        net.wait_until(lambda: p.gb.endpoint(p.ga.public) == f"{new}:{port}", 5,
                       message=f"the endpoint is {p.gb.endpoint(p.ga.public)}, not {new}:{port}")
        old = new
    for s in streams:
        s.finish()
    net.wait_until(lambda: [g.descriptors() for g in p.gateways] <= before, 3, message="descriptors are left")
    p.healthy()


@pytest.mark.report("preshared-key", asserts="changed on one side: the session goes on without loss, the next handshake fails; changed on the other: "
                    "it succeeds")
def test_preshared_key_waits_for_the_next_handshake(lab):
    p = Pair(lab)
    p.works()
    psk = net.genkey() + "\n"
    stream = net.UdpStream(lab, p.a, p.b, p.inner4[1], 500)
    p.ga.wg("set", p.ga.name, "peer", p.gb.public, "preshared-key", "/dev/stdin", input=psk)
    time.sleep(0.5)
    sent, lost = stream.finish()
    assert sent > 100 and lost == 0, f"{lost} of {sent} lost"

    def forget_sessions():
        net.run(p.a, "ip", "link", "set", p.ga.name, "down")
        net.wait_until(lambda: p.ga.log().rstrip().endswith("down"), message=p.ga.log())
        net.run(p.a, "ip", "link", "set", p.ga.name, "up")

    forget_sessions()
    assert net.ping(p.a, p.inner4[1], 2, wait=1) == 0, "a session without the preshared key"
    p.gb.wg("set", p.gb.name, "peer", p.ga.public, "preshared-key", "/dev/stdin", input=psk)
    forget_sessions()
    p.works()


def overload(p, seconds):
    """More datagrams of 64 bytes than the machine can carry; returns (sent, resident memory early and late)."""
    senders = [p.lab.start(p.a, PROGRAM, "send", p.inner4[1], 9000 + i, 2000000, 64, stdout=-1, text=True) for i in range(2)]
    time.sleep(seconds / 4)
    early = [g.resident_kib() for g in p.gateways]
    time.sleep(seconds * 3 / 4)
    late = [g.resident_kib() for g in p.gateways]
    sent = 0
    for s in senders:
        s.terminate()
        sent += int(s.communicate(timeout=20)[0].split()[1])
    return sent, early, late


@pytest.mark.report("overload", asserts="two senders without a limit for 10 s (60 with PENSTOCK_LONG): resident memory of both gateways grows by "
                    "less than 2 MiB after the first quarter, drops are counted, an echo is answered afterwards")
@pytest.mark.memory
def test_overload_leaves_memory_flat(lab):
    p = Pair(lab)
    p.works()
    pump = Pump(p, 1000)
    sent, early, late = overload(p, 60 if os.environ.get("PENSTOCK_LONG") else 10)
    result = pump.finish()
    print(sent, early, late, result)
    assert sent > 500000
    assert all(b < a + 2048 for a, b in zip(early, late)), f"KiB: {early}, then {late}"
    assert result.causes, "nothing was dropped: not an overload"
    assert net.first_ping(p.a, p.inner4[1])
    p.healthy()


@pytest.mark.skipif(is_stand_in(), reason="the names of drops are penstock's own")
@pytest.mark.report("clock-behind", asserts="restarted with a clock an hour behind, a client gets no session; the server counts "
                    "drop_timestamp_replay and `--status` says why; with the right clock it gets one at once")
def test_client_clock_behind(lab):
    p = Pair(lab)
    p.works()
    before = p.gb.handshake_time(p.ga.public)
    p.ga.program.env.update(LD_PRELOAD=PAST_CLOCK, PAST_CLOCK_SECONDS="3600")

    def restart():
        p.ga.stop()
        p.ga.start()
        p.ga.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
        p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))

    restart()
    assert net.ping(p.a, p.inner4[1], 2, wait=1) == 0
    assert p.gb.handshake_time(p.ga.public) == before
    assert p.gb.drops().get("timestamp_replay", 0) >= 1, p.gb.drops()
    said = net.run(p.b, net.penstock_path(), "gateway", "--status", p.gb.name).stdout
    assert "timestamp_replay" in said and "clock" in said, said
    p.ga.program.env.clear()
    restart()
    p.works()


@pytest.mark.report("mtu", asserts="a new interface has MTU 1420; a host behind it learns 1420 by ICMP when its packets are too long; 9,000 bytes in "
                    "fragments are answered, and its 10 MiB of TCP arrive whole")
def test_mtu_is_told(lab):
    p = Pair(lab)
    fresh = net.Gateway(lab, p.a, under_test())
    assert "mtu 1420" in net.run(p.a, "ip", "link", "show", fresh.name).stdout
    c = lab.namespace("c")
    lab.veth(c, "c0", p.a, "c1")
    lab.address(c, "c0", "10.70.0.2/24")
    lab.address(p.a, "c1", "10.70.0.1/24")
    lab.sysctl(p.a, "net/ipv4/ip_forward", 1)
    net.run(c, "ip", "route", "add", "default", "via", "10.70.0.1")
    p.gb.peer(p.ga.public, f"{p.inner4[0]}/32,{p.inner6[0]}/128,10.70.0.0/24")
    net.run(p.b, "ip", "route", "add", "10.70.0.0/24", "dev", p.gb.name)
    assert net.first_ping(c, p.inner4[1])
    said = net.run(c, "ping", "-n", "-M", "do", "-s", 1400, "-c", 2, "-i", 0.2, "-W", 1, p.inner4[1], check=False).stdout
    assert "mtu = 1420" in said or "mtu=1420" in said, said
    assert net.ping(c, p.inner4[1], size=1392, options=("-M", "do")) == 3
    assert net.ping(c, p.inner4[1], size=9000, options=("-M", "dont")) == 3
    net.tcp_transfer(lab, c, p.b, p.inner4[1], 10 * MIB)
