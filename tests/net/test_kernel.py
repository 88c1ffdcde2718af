"""Scenarios of the Linux kernel's own WireGuard self-test, by their numbers in it (K1 to K36).

Those about the configuration socket are in test_control.py, those that need two links in
test_network.py, wg-quick's in test_quick.py.
"""
import os
import re
import socket
import threading
import time

import pytest

import lab as net
from conftest import Pair, under_test

MIB = 1 << 20


class Loopback:
    """The kernel's topology 1: the gateways live in ns0, which has only a loopback; their interfaces are moved away."""

    v4, v6 = ("192.168.241.1", "192.168.241.2"), ("fd00::1", "fd00::2")

    def __init__(self, lab, outer=4, mtu=1420, ports=(1, 2)):
        self.lab, self.ports = lab, ports
        self.ns0, self.ns1, self.ns2 = (lab.namespace(n) for n in ("k0", "k1", "k2"))
        self.psk = net.genkey()
        host = "127.0.0.1" if outer == 4 else "[::1]"
        self.g1, self.g2 = (net.Gateway(lab, self.ns0, under_test()) for _ in range(2))
        for i, (g, ns) in enumerate(((self.g1, self.ns1), (self.g2, self.ns2))):
            g.move_to(ns).up(self.v4[i] + "/24", self.v6[i] + "/112", port=ports[i], mtu=mtu)
        self.g1.peer(self.g2.public, f"{self.v4[1]}/32,{self.v6[1]}/128", f"{host}:{ports[1]}", self.psk)
        self.g2.peer(self.g1.public, f"{self.v4[0]}/32,{self.v6[0]}/128", f"{host}:{ports[0]}", self.psk)

    def logs(self):
        return f"\n{self.g1.log()[-800:]}\n{self.g2.log()[-800:]}"


def test_k1_counters(lab):
    k = Loopback(lab)
    assert net.ping(k.ns1, k.v4[1], 10, 0.002) == 10
    received, sent = k.g1.transfer(k.g2.public)
    far_received, far_sent = k.g2.transfer(k.g1.public)
    assert received == 1372 and sent in (1428, 1460), (received, sent)
    assert far_sent == 1372 and far_received in (1428, 1460), (far_received, far_sent)
    assert k.g1.handshake_time(k.g2.public) > 0 and k.g2.handshake_time(k.g1.public) > 0


@pytest.mark.parametrize("mtu", (1420, 34816 - 1500 + 1420))
@pytest.mark.parametrize("outer", (4, 6))
def test_k2_matrix(lab, outer, mtu):
    k = Loopback(lab, outer, mtu)
    assert net.first_ping(k.ns1, k.v4[1]), k.logs()
    for ns, i in ((k.ns1, 1), (k.ns2, 0)):
        assert net.ping(ns, k.v4[i], 100, 0.002) == 100
        assert net.ping(ns, k.v6[i], 100, 0.002) == 100
    net.tcp_transfer(lab, k.ns1, k.ns2, k.v4[1], 30 * MIB)
    net.tcp_transfer(lab, k.ns2, k.ns1, k.v6[0], 30 * MIB)
    sizes = net.UDP_SIZES + (mtu - 29, mtu - 28, mtu - 27, mtu - 48, 60000)
    net.udp_sizes(lab, k.ns1, k.ns2, k.v4[1], sizes)
    net.udp_sizes(lab, k.ns2, k.ns1, k.v6[0], sizes)


def drop_outer(ns, *lengths):
    """Drop IP packets of these lengths on their way in, instead of those named before."""
    rules = "".join(f"add rule inet k3 in ip length {n} drop\nadd rule inet k3 in ip6 length {n - 40} drop\n" for n in lengths)
    net.run(ns, "nft", "-f", "-", input=f"""
        add table inet k3
        delete table inet k3
        add table inet k3
        add chain inet k3 in {{ type filter hook input priority 0; }}
        {rules}""")


@pytest.mark.parametrize("outer", (4, 6))
def test_k3_padding_against_route_mtu(lab, outer):
    """1297 bytes inside, interface 1300, route 1299: the message is one byte shorter than the interface's MTU makes it."""
    k = Loopback(lab, outer, mtu=1300)
    head = 32 + 8 + (20 if outer == 4 else 40)
    sizes = {k.v4[0]: 1297 - 28, k.v6[0]: 1297 - 48}

    def passes(target):
        return net.ping(k.ns2, target, 1, size=sizes[target], wait=1) == 1

    def routes(verb, mtu):
        for ns, i in ((k.ns1, 1), (k.ns2, 0)):
            for a, bits in ((k.v4[i], 32), (k.v6[i], 128)):
                net.run(ns, "ip", "route", verb, f"{a}/{bits}", "dev", (k.g1 if ns == k.ns1 else k.g2).name, *mtu)

    assert net.first_ping(k.ns2, k.v4[0]), k.logs()
    for target in sizes:
        assert passes(target)
    drop_outer(k.ns0, 1300 + head)
    for target in sizes:
        assert not passes(target), "the padding did not reach the interface's MTU"
    # Linux looks the route up for each packet; here netlink tells of it, which may take a moment.
    routes("add", ("mtu", 1299))
    for target in sizes:
        net.wait_until(lambda: passes(target), 10, message="padded beyond the route's MTU")
        assert net.ping(k.ns2, target, 20, 0.01, size=sizes[target]) == 20
    # Another MTU at run time: 1300 and 1299 are too long now.
    drop_outer(k.ns0, 1300 + head, 1299 + head)
    for target in sizes:
        assert not passes(target), "the padding did not reach the route's MTU"
    routes("change", ("mtu", 1298))
    for target in sizes:
        net.wait_until(lambda: passes(target), 10, message="padded beyond the route's new MTU")
    # And none: the interface's is what counts again.
    routes("del", ())
    drop_outer(k.ns0, 1298 + head, 1299 + head)
    for target in sizes:
        net.wait_until(lambda: passes(target), 10, message="padded to the MTU of a route that is gone")
    drop_outer(k.ns0, 1300 + head)
    for target in sizes:
        assert not passes(target)


def test_k3_padding_in_another_namespace(lab):
    """The interface is moved while it is used: the routes of its new home count, from its first packet on."""
    p = Pair(lab, mtu=1300)
    p.works()
    c = lab.namespace("c")
    p.ga.move_to(c)
    lab.address(c, p.ga.name, p.inner4[0] + "/24")
    net.run(c, "ip", "link", "set", p.ga.name, "up")
    drop_outer(p.b, 1300 + 60)
    assert net.first_ping(c, p.inner4[1])
    assert net.ping(c, p.inner4[1], 1, size=1269, wait=1) == 0
    net.run(c, "ip", "route", "add", p.inner4[1] + "/32", "dev", p.ga.name, "mtu", 1299)
    net.wait_until(lambda: net.ping(c, p.inner4[1], 1, size=1269, wait=1) == 1, 10, message="padded beyond the route's MTU")


def test_k4_k5_roaming(lab):
    k = Loopback(lab)
    assert net.first_ping(k.ns1, k.v4[1])
    net.run(k.ns0, "ip", "addr", "add", "127.212.121.99/8", "dev", "lo")
    net.run(k.ns0, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
    net.run(k.ns0, "ip", "addr", "add", "127.212.121.99/8", "dev", "lo", check=False)
    k.g1.wg("set", k.g1.name, "listen-port", "9999")
    k.g1.wg("set", k.g1.name, "peer", k.g2.public, "endpoint", "127.212.121.99:2")
    assert net.ping(k.ns1, k.v4[1], 1, wait=5) == 1
    assert k.g2.endpoint(k.g1.public) == "127.212.121.99:9999"
    k.g1.wg("set", k.g1.name, "listen-port", "9998")
    k.g1.wg("set", k.g1.name, "peer", k.g2.public, "endpoint", "[::1]:2")
    assert net.ping(k.ns1, k.v4[1], 1, wait=5) == 1
    assert k.g2.endpoint(k.g1.public) == "[::1]:9998"


def test_k6_longest_prefix_over_all_peers(lab):
    """A second peer takes the sender's /32: its packets no longer arrive, yet its new port is learned."""
    k = Loopback(lab)
    k.g2.wg("set", k.g2.name, "peer", k.g1.public, "allowed-ips", "192.168.241.0/24")
    receiver = lab.socket(k.ns2, timeout=1)
    receiver.bind((k.v4[1], 1111))
    sender = lab.socket(k.ns1)
    sender.sendto(b"X", (k.v4[1], 1111))
    assert receiver.recv(10) == b"X"
    more = net.pubkey(net.genkey())
    k.g2.wg("set", k.g2.name, "peer", more, "allowed-ips", f"{k.v4[0]}/32")
    k.g1.wg("set", k.g1.name, "listen-port", "9997")
    sender.sendto(b"X", (k.v4[1], 1111))
    with pytest.raises(TimeoutError):
        receiver.recv(10)
    assert k.g2.endpoint(k.g1.public) == "127.0.0.1:9997"
    # And back, when that peer goes.
    k.g2.wg("set", k.g2.name, "peer", more, "remove")
    sender.sendto(b"Y", (k.v4[1], 1111))
    assert receiver.recv(10) == b"Y"


def nested(k):
    """Another tunnel between ns1 and ns2, over the first one's IPv6 addresses."""
    lab = k.lab
    h1, h2 = net.Gateway(lab, k.ns1, under_test()), net.Gateway(lab, k.ns2, under_test())
    h1.up("192.168.99.1/24", "fd99::1/64", port=1, mtu=1340)
    h2.up("192.168.99.2/24", "fd99::2/64", port=2, mtu=1340)
    h1.peer(h2.public, "192.168.99.2/32,fd99::2/128", f"[{k.v6[1]}]:2")
    h2.peer(h1.public, "192.168.99.1/32,fd99::1/128", f"[{k.v6[0]}]:1")
    return h1, h2


def test_k8_wireguard_in_wireguard(lab):
    k = Loopback(lab)
    nested(k)
    assert net.first_ping(k.ns1, "192.168.99.2")
    net.tcp_transfer(lab, k.ns1, k.ns2, "192.168.99.2", 10 * MIB)
    net.tcp_transfer(lab, k.ns2, k.ns1, "fd99::1", 10 * MIB)
    net.udp_sizes(lab, k.ns1, k.ns2, "fd99::2")


def test_k9_loop_through_itself(lab):
    """The tunnel's endpoint is inside the tunnel that it carries: no echo, no amplification."""
    k = Loopback(lab)
    h1, h2 = nested(k)
    assert net.first_ping(k.ns1, "192.168.99.2")
    # g1's socket moves to ns1 with a fresh gateway, whose endpoint lies inside h1.
    k.g1.stop()
    loop = net.Gateway(lab, k.ns1, under_test()).up("192.168.241.1/24", "fd00::1/112", port=3)
    loop.peer(k.g2.public, "192.168.241.2/32,fd00::2/128", "192.168.99.2:7")
    before = loop.transfer(k.g2.public)[1] + h1.transfer(h2.public)[1]
    assert net.ping(k.ns1, "192.168.241.2", 10, 0.01, wait=2) == 0
    after = loop.transfer(k.g2.public)[1] + h1.transfer(h2.public)[1]
    assert after - before < 70000
    assert loop.alive() and h1.alive() and h2.alive()


def test_k12_k13_onion(lab):
    """A peer whose endpoint is inside another peer's tunnel works; one inside its own does not, and harms nobody."""
    p = Pair(lab)
    p.works()
    far = net.Gateway(lab, p.b, under_test()).up("10.242.0.2/24", port=3)
    near = p.ga
    near.peer(far.public, "10.242.0.2/32", f"{p.inner4[1]}:3")
    lab.address(p.a, near.name, "10.242.0.1/24")
    far.peer(near.public, "10.242.0.1/32")
    assert net.first_ping(p.a, "10.242.0.2")
    assert net.ping(p.a, "10.242.0.2", size=1000) == 3
    near.peer(far.public, "10.242.0.2/32,10.243.0.0/16", "10.243.0.1:3")
    net.run(p.a, "ip", "route", "add", "10.243.0.0/16", "dev", near.name)
    before = near.transfer(far.public)[1]
    assert net.ping(p.a, "10.242.0.2", 5, 0.05, wait=2) == 0
    assert near.transfer(far.public)[1] - before < 70000
    p.works()


def test_k15_icmp_along_the_right_route(lab):
    """ns2 forwards and translates for ns0. Its tunnel has lost the peer: ns0 hears that, from the address that it knows."""
    k = Loopback(lab)
    lab.veth(k.ns0, "vethrs", k.ns2, "vethrc")
    lab.address(k.ns0, "vethrs", "10.0.0.1/24")
    lab.address(k.ns2, "vethrc", "10.0.0.100/24")
    net.run(k.ns0, "ip", "route", "add", "192.168.241.0/24", "via", "10.0.0.100")
    lab.sysctl(k.ns2, "net/ipv4/ip_forward", 1)
    net.run(k.ns2, "nft", "-f", "-", input="""
        table ip nat {
            chain post {
                type nat hook postrouting priority 100
                ip saddr 10.0.0.0/24 ip daddr 192.168.241.0/24 snat to 192.168.241.2
            }
        }""")
    assert net.first_ping(k.ns0, "192.168.241.1"), k.logs()
    k.g2.wg("set", k.g2.name, "peer", k.g1.public, "remove")
    said = net.run(k.ns0, "ping", "-W", 1, "-c", 1, "192.168.241.1", check=False).stdout
    assert re.search(r"^From 10\.0\.0\.100 icmp_seq=1 Destination Host Unreachable$", said, re.M), said + k.logs()


def test_k21_k22_keepalive_starts_with_link_and_key(lab):
    a = lab.namespace("a")
    g = net.Gateway(lab, a, under_test())
    sink = lab.socket(a)
    sink.bind(("127.0.0.1", 9))
    other = net.pubkey(net.genkey())
    g.wg("set", g.name, "private-key", "/dev/stdin", "listen-port", "1", input=g.private + "\n")
    g.peer(other, "10.0.0.1/32", "127.0.0.1:9", keepalive=1)
    time.sleep(1.5)
    assert g.transfer(other)[1] == 0, "sent while the interface was down"
    net.run(a, "ip", "link", "set", g.name, "up")
    net.wait_until(lambda: g.transfer(other)[1] > 0, 3, message="no keepalive after the interface came up")
    net.run(a, "ip", "link", "set", g.name, "down")
    g.wg("set", g.name, "private-key", "/dev/null")
    g.wg("set", g.name, "peer", other, "remove")
    net.run(a, "ip", "link", "set", g.name, "up")
    g.peer(other, "10.0.0.1/32", "127.0.0.1:9", keepalive=1)
    time.sleep(1.5)
    assert g.transfer(other)[1] == 0, "sent without a private key"
    g.wg("set", g.name, "private-key", "/dev/stdin", input=g.private + "\n")
    net.wait_until(lambda: g.transfer(other)[1] > 0, 3, message="no keepalive after the private key came")


LOW_ORDER = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
)


def test_k33_low_order_points(lab):
    a = lab.namespace("a")
    g = net.Gateway(lab, a, under_test()).up("10.0.0.1/24", port=1)
    sink = lab.socket(a, timeout=2)
    sink.bind(("127.0.0.1", 1111))
    for key in LOW_ORDER:
        assert g.configure(f"public_key={key}", "endpoint=127.0.0.1:1111", "persistent_keepalive_interval=1") == 0
    assert len(g.show("peers")) == len(LOW_ORDER)
    with pytest.raises(TimeoutError):
        data = sink.recv(2000)
        print("sent:", data.hex())
    # The listener does hear a peer that is none of these.
    good = net.pubkey(net.genkey())
    g.peer(good, "", "127.0.0.1:1111", keepalive=1)
    assert len(sink.recv(2000)) == 148


def test_k34_k36_namespaces_deleted_under_live_tunnels(lab):
    """Interface and far side go away under traffic: the program ends, or goes on, but neither hangs nor crashes."""
    p = Pair(lab)
    p.works()
    stream = net.UdpStream(lab, p.a, p.b, p.inner4[1], 2000, size=1000)
    net.run(p.b, "ip", "link", "del", p.gb.name)
    net.run(p.a, "ip", "link", "del", "v0")
    p.gb.process.wait(10)
    assert p.gb.process.returncode not in (-6, -11)
    assert "errno=0" in p.ga.ask("get=1\n\n")
    stream.finish()
    assert p.ga.stop() in (0, -15, 143)


@pytest.mark.memory
def test_k36_balance(lab):
    """Peers, sessions and ports come and go: descriptors and memory return to where they were."""
    p = Pair(lab)
    p.works()
    g = p.ga

    def churn(n):
        for i in range(n):
            lines = []
            for j in range(200):
                lines += [f"public_key={i * 1000 + j + 9:064x}", f"allowed_ip=10.200.{j}.0/24", "endpoint=192.0.2.1:9",
                          "persistent_keepalive_interval=1"]
            assert g.configure(*lines) == 0
            assert g.configure(*[line for j in range(200) for line in (f"public_key={i * 1000 + j + 9:064x}", "remove=true")]) == 0

    churn(5)
    memory, descriptors = g.resident_kib(), g.descriptors()
    churn(30)
    assert len(g.show("peers")) == 1
    assert g.descriptors() <= descriptors
    assert g.resident_kib() < memory + 4096
    p.works()


def test_handshakes_beyond_a_hundred(lab):
    """Load is a rate, not a total: the 101st handshake ever is accepted like the first."""
    p = Pair(lab)
    p.works()
    keys = [(lambda k: (k, net.pubkey(k)))(net.genkey()) for _ in range(4)]
    for round_ in range(26):
        for private, public in keys:
            # A new key on one side drops all sessions: each echo below needs a handshake.
            assert p.gb.configure("replace_peers=true", f"public_key={net.hexkey(public)}", f"allowed_ip={p.inner4[0]}/32") == 0
            assert p.ga.configure(f"private_key={net.hexkey(private)}") == 0
            assert net.first_ping(p.a, p.inner4[1], 6), f"no handshake in round {round_}"
    p.healthy()


def test_slow_handshake(lab):
    """A round trip of a second: the response is still taken."""
    a, r, b = lab.namespace("a"), lab.namespace("r"), lab.namespace("b")
    relay = SlowRelay(lab, r, 0.5)
    lab.veth(a, "v0", r, "r0")
    lab.veth(r, "r1", b, "v1")
    lab.address(a, "v0", "192.168.10.2/24")
    lab.address(r, "r0", "192.168.10.1/24")
    lab.address(r, "r1", "192.168.11.1/24")
    lab.address(b, "v1", "192.168.11.2/24")
    relay.start("192.168.10.1", "192.168.11.1", ("192.168.11.2", 5000))
    ga = net.Gateway(lab, a, under_test()).up("10.15.0.1/24", port=5000)
    gb = net.Gateway(lab, b, under_test()).up("10.15.0.2/24", port=5000)
    gb.peer(ga.public, "10.15.0.1/32")
    ga.peer(gb.public, "10.15.0.2/32", "192.168.10.1:7000")
    try:
        # ping goes on asking until two answers are there: more may come with them.
        assert net.ping(a, "10.15.0.2", 2, 0.2, wait=6) >= 2
        assert gb.endpoint(ga.public).startswith("192.168.11.1:")
    finally:
        relay.stop()


class SlowRelay:
    """Forwards datagrams between two addresses, each after a delay."""

    def __init__(self, lab, ns, delay):
        self.lab, self.ns, self.delay = lab, ns, delay
        self.done = False
        self.threads = []

    def start(self, near, far, target):
        self.near = self.lab.socket(self.ns, timeout=0.2)
        self.near.bind((near, 7000))
        self.far = self.lab.socket(self.ns, timeout=0.2)
        self.far.bind((far, 0))
        self.client = None
        self.threads = [threading.Thread(target=self._pump, args=args, daemon=True)
                        for args in ((self.near, self.far, target), (self.far, self.near, None))]
        for t in self.threads:
            t.start()

    def _pump(self, source, out, target):
        while not self.done:
            try:
                data, who = source.recvfrom(65536)
            except OSError:
                continue
            if target:
                self.client = who
            timer = threading.Timer(self.delay, self._send, (out, data, target or self.client))
            timer.daemon = True
            timer.start()

    def _send(self, out, data, target):
        try:
            out.sendto(data, target)
        except OSError:
            pass

    def stop(self):
        self.done = True
        for t in self.threads:
            t.join()
