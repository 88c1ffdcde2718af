"""What networks do to a tunnel: addresses change, routes shrink, links fall, strangers shout."""
import os
import re
import socket
import struct
import threading
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, peer_program, under_test

MIB = 1 << 20


@pytest.mark.report("mtu", asserts="a link of 1280 bytes under a tunnel of 1420: 20 MiB of TCP arrive whole each way, over either outer family")
def test_path_mtu_below_the_tunnel(lab):
    a, r, b = lab.namespace("a"), lab.namespace("r"), lab.namespace("b")
    lab.veth(a, "v0", r, "r0")
    lab.veth(r, "r1", b, "v1", 1280)
    lab.address(a, "v0", "192.168.10.2/24", "fd10::2/64")
    lab.address(r, "r0", "192.168.10.1/24", "fd10::1/64")
    lab.address(r, "r1", "192.168.11.1/24", "fd11::1/64")
    lab.address(b, "v1", "192.168.11.2/24", "fd11::2/64")
    lab.sysctl(r, "net/ipv4/ip_forward", 1)
    lab.sysctl(r, "net/ipv6/conf/all/forwarding", 1)
    for ns, v4, v6 in ((a, "192.168.10.1", "fd10::1"), (b, "192.168.11.1", "fd11::1")):
        net.run(ns, "ip", "route", "add", "default", "via", v4)
        net.run(ns, "ip", "-6", "route", "add", "default", "via", v6)
    ga = net.Gateway(lab, a, under_test()).up("10.12.0.1/24", "fd12::1/64", port=5000)
    gb = net.Gateway(lab, b, under_test()).up("10.12.0.2/24", "fd12::2/64", port=5000)
    gb.peer(ga.public, "10.12.0.1/32,fd12::1/128")
    for endpoint in ("192.168.11.2:5000", "[fd11::2]:5000"):
        ga.peer(gb.public, "10.12.0.2/32,fd12::2/128", endpoint)
        assert net.first_ping(a, "10.12.0.2")
        net.tcp_transfer(lab, a, b, "10.12.0.2", 20 * MIB, timeout=40)
        net.tcp_transfer(lab, b, a, "fd12::1", 20 * MIB, timeout=40)


@pytest.mark.parametrize("mtu", (1280, 1420, 9000))
def test_interface_mtu_change_under_traffic(lab, mtu):
    p = Pair(lab, mtu=1400, link_mtu=9200)
    p.works()
    stream = net.UdpStream(lab, p.a, p.b, p.inner4[1], 500, size=100)
    for g in p.gateways:
        net.run(g.ns, "ip", "link", "set", g.name, "mtu", mtu)
    net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 20 * MIB)
    net.tcp_transfer(lab, p.b, p.a, p.inner6[0], 20 * MIB)
    assert net.ping(p.a, p.inner4[1], size=mtu - 28, options=("-M", "do")) == 3
    sent, lost = stream.finish()
    assert lost <= sent // 100
    p.healthy()


def test_interface_down_and_up(lab):
    p = Pair(lab)
    p.works()
    for _ in range(3):
        net.run(p.a, "ip", "link", "set", p.ga.name, "down")
        assert net.ping(p.b, p.inner4[0], count=1, wait=1) == 0
        net.run(p.a, "ip", "link", "set", p.ga.name, "up")
        p.works(15)
    p.healthy()


def test_outer_link_down_and_up(lab):
    p = Pair(lab)
    p.works()
    net.run(p.a, "ip", "link", "set", "v0", "down")
    assert net.ping(p.a, p.inner4[1], count=1, wait=1) == 0
    net.run(p.a, "ip", "link", "set", "v0", "up")
    p.works(15)
    p.healthy()


@pytest.mark.parametrize("peer", ("penstock", "wireguard-go-new", "wireguard-go-old"))
def test_roaming_address_and_port(lab, peer):
    """K4 over a link: the far side follows the last authentic packet, whichever side is ours."""
    for first, second in ((under_test(), peer_program(peer)), (peer_program(peer), under_test())):
        with net.Lab() as one:
            p = Pair(one, first, second)
            p.works()
            # Only the authentic packets of the moved side can tell where it is now.
            net.run(p.a, "ip", "addr", "del", p.outer4[0] + "/24", "dev", "v0")
            one.address(p.a, "v0", "192.168.241.77/24")
            p.ga.wg("set", p.ga.name, "listen-port", "9999")
            assert net.first_ping(p.a, p.inner4[1], 15), "no echo after moving" + p.logs()
            net.wait_until(lambda: p.gb.endpoint(p.ga.public) == "192.168.241.77:9999", 5,
                           message=f"endpoint is {p.gb.endpoint(p.ga.public)}")
            assert net.first_ping(p.b, p.inner4[0])


def test_roaming_between_families(lab):
    p = Pair(lab)
    p.works()
    p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1, 6))
    assert net.first_ping(p.a, p.inner4[1])
    assert p.gb.endpoint(p.ga.public) == p.outer(0, 6)
    net.tcp_transfer(lab, p.b, p.a, p.inner4[0], 5 * MIB)


@pytest.mark.scenario("K10", asserts="behind source NAT with conntrack timeouts of 2 s and keepalive 1: the server sees 10.0.0.1:1, and after 3 s "
                      "without traffic a single echo from it is answered within a second; without keepalives it is not",
                      kernel="NAT by iptables; also with either wireguard-go as the server")
@pytest.mark.parametrize("peer", ("penstock", "wireguard-go-new", "wireguard-go-old"))
def test_k10_keepalive_through_nat(lab, peer):
    a, r, b = lab.namespace("a"), lab.namespace("r"), lab.namespace("b")
    lab.veth(a, "v0", r, "r0")
    lab.veth(r, "r1", b, "v1")
    lab.address(a, "v0", "192.168.1.100/24")
    lab.address(r, "r0", "192.168.1.1/24")
    lab.address(r, "r1", "10.0.0.1/24")
    lab.address(b, "v1", "10.0.0.100/24")
    lab.sysctl(r, "net/ipv4/ip_forward", 1)
    net.run(r, "nft", "-f", "-", input="""
        add table ip nat
        add chain ip nat post { type nat hook postrouting priority 100; }
        add rule ip nat post ip saddr 192.168.1.0/24 oifname "r1" masquerade
        """)
    for key in ("nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"):
        lab.sysctl(r, f"net/netfilter/{key}", 2)
    net.run(a, "ip", "route", "add", "default", "via", "192.168.1.1")
    ga = net.Gateway(lab, a, under_test()).up("192.168.241.1/24", port=1)
    gb = net.Gateway(lab, b, peer_program(peer)).up("192.168.241.2/24", port=2)
    gb.peer(ga.public, "192.168.241.1/32")
    ga.peer(gb.public, "192.168.241.2/32", "10.0.0.100:2", keepalive=1)
    net.wait_until(lambda: gb.endpoint(ga.public) not in (None, "(none)"), 10, message="the keepalive made no handshake")
    assert gb.endpoint(ga.public) == "10.0.0.1:1"
    time.sleep(3)
    assert net.echo(b, "192.168.241.1") if peer == "penstock" else net.first_ping(b, "192.168.241.1")
    # Without keepalives the way in closes: else this test would show nothing.
    ga.wg("set", ga.name, "peer", gb.public, "persistent-keepalive", "0")
    time.sleep(4)
    assert net.ping(b, "192.168.241.1", count=1, wait=1) == 0


@pytest.mark.scenario("K18", asserts="two addresses of each family on the far side, each written to in turn: after a single echo it is still "
                      "the endpoint shown")
def test_k18_source_is_what_was_written_to(lab):
    p = Pair(lab)
    lab.address(p.b, "v1", "192.168.241.12/24", "fd00:241::12/64")
    for endpoint in (p.outer(1), f"192.168.241.12:{p.ports[1]}", p.outer(1, 6), f"[fd00:241::12]:{p.ports[1]}"):
        p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", endpoint)
        assert net.echo(p.a, p.inner4[1])
        assert p.ga.endpoint(p.gb.public) == endpoint


@pytest.mark.engines
@pytest.mark.scenario("K16", asserts="the IPv4 source in use is deleted and another added: the next single echo is answered within a second, and "
                      "the far side shows the new address")
@pytest.mark.scenario("K17", asserts="the same in IPv6")
@pytest.mark.report("sticky-source", asserts="the next echo after the source address was replaced is answered, from the new address")
@pytest.mark.parametrize("family", (4, 6))
def test_k16_k17_source_is_not_too_sticky(lab, family):
    p = Pair(lab, outer=family)
    p.works()
    old, new = (("192.168.241.1/24", "192.168.241.9/24") if family == 4 else ("fd00:241::1/64", "fd00:241::9/64"))
    net.run(p.a, "ip", "addr", "del", old, "dev", "v0")
    lab.address(p.a, "v0", new)
    if family == 6:
        lab.wait_for_neighbours(p.a, new)
    assert net.echo(p.a, p.inner4[1])
    assert new.split("/")[0] in p.gb.endpoint(p.ga.public)


@pytest.mark.scenario("K20", asserts="a second link gets the same prefix with a lower metric and another source, during a session: the next single "
                      "echo is answered within a second and the far side shows 10.0.0.3:1")
@pytest.mark.report("sticky-source", asserts="the next echo after a better route came has its source")
def test_k20_better_route_takes_over(lab):
    a, b = lab.namespace("a"), lab.namespace("b")
    lab.veth(a, "v0", b, "w0")
    lab.veth(a, "v1", b, "w1")
    lab.address(b, "w0", "10.0.0.2/24")
    net.run(a, "ip", "addr", "add", "10.0.0.1/24", "dev", "v0", "noprefixroute")
    net.run(a, "ip", "route", "add", "10.0.0.0/24", "dev", "v0", "src", "10.0.0.1", "metric", "1001")
    lab.sysctl(b, "net/ipv4/conf/all/rp_filter", 0)
    lab.sysctl(b, "net/ipv4/conf/default/rp_filter", 0)
    ga = net.Gateway(lab, a, under_test()).up("10.13.0.1/24", port=1)
    gb = net.Gateway(lab, b, under_test()).up("10.13.0.2/24", port=2)
    gb.peer(ga.public, "10.13.0.1/32")
    ga.peer(gb.public, "10.13.0.2/32", "10.0.0.2:2")
    assert net.first_ping(a, "10.13.0.2")
    assert gb.endpoint(ga.public) == "10.0.0.1:1"
    net.run(a, "ip", "addr", "add", "10.0.0.3/24", "dev", "v1", "noprefixroute")
    net.run(a, "ip", "route", "add", "10.0.0.0/24", "dev", "v1", "src", "10.0.0.3", "metric", "1000")
    net.run(b, "ip", "route", "add", "10.0.0.3/32", "dev", "w1")
    assert net.echo(a, "10.13.0.2")
    assert gb.endpoint(ga.public) == "10.0.0.3:1"


@pytest.mark.report("sticky-source", asserts="both families, idle and with packets going both ways, so that each side hears from the other's "
                    "former address for a while: within 3 s of a better route the far side shows its source, and it stays")
@pytest.mark.parametrize("traffic", (False, True))
@pytest.mark.parametrize("family", (4, 6))
def test_better_route_takes_over(lab, family, traffic):
    """K20 in both families, and under traffic."""
    prefix, head, end, bits = ("10.0.0.0/24", "10.0.0.", ":1", "/24") if family == 4 else ("fd20::/64", "fd20::", "]:1", "/64")
    v6 = ["nodad"] if family == 6 else []
    a, b = lab.namespace("a"), lab.namespace("b")
    lab.veth(a, "v0", b, "w0")
    lab.veth(a, "v1", b, "w1")
    lab.address(b, "w0", head + "2" + bits)
    if family == 6:
        lab.address(b, "w1", head + "2/128")  # who asks there for it gets an answer; in IPv4 each link answers for all
    net.run(a, "ip", "addr", "add", f"{head}1{bits}", "dev", "v0", "noprefixroute", *v6)
    net.run(a, "ip", "route", "add", prefix, "dev", "v0", "src", head + "1", "metric", 1001)
    lab.sysctl(b, "net/ipv4/conf/all/rp_filter", 0)
    lab.sysctl(b, "net/ipv4/conf/default/rp_filter", 0)
    ga = net.Gateway(lab, a, under_test()).up("10.13.0.1/24", port=1)
    gb = net.Gateway(lab, b, under_test()).up("10.13.0.2/24", port=2)
    gb.peer(ga.public, "10.13.0.1/32")
    ga.peer(gb.public, "10.13.0.2/32", "10.0.0.2:2" if family == 4 else "[fd20::2]:2")
    assert net.first_ping(a, "10.13.0.2")
    assert gb.endpoint(ga.public).endswith(head + "1" + end)
    streams = []
    if traffic:
        streams = [net.UdpStream(lab, *way, 2000) for way in ((a, b, "10.13.0.2"), (b, a, "10.13.0.1"))]
        time.sleep(0.3)
    net.run(b, "ip", "route", "add", head + ("3/32" if family == 4 else "3/128"), "dev", "w1")
    net.run(a, "ip", "addr", "add", f"{head}3{bits}", "dev", "v1", "noprefixroute", *v6)
    net.run(a, "ip", "route", "add", prefix, "dev", "v1", "src", head + "3", "metric", "1000")

    def is_there():
        assert net.echo(a, "10.13.0.2")
        return gb.endpoint(ga.public).endswith(head + "3" + end)

    # Linux looks the route up for each packet; here netlink tells of it, so the first may come too early.
    net.wait_until(is_there, 3, message=f"endpoint is {gb.endpoint(ga.public)}")
    # And stays there, also beyond the second for which the former address is not learnt again.
    for _ in range(30):
        time.sleep(0.05)
        assert gb.endpoint(ga.public).endswith(head + "3" + end)
    for s in streams:
        sent, lost = s.finish()
        assert lost <= sent // 20, (sent, lost)


@pytest.mark.report("sticky-source", asserts="forty routes of others change under a stream from a second address: the far side sees no other, "
                    "no packet is lost; the address goes and comes back: it is the source again")
@pytest.mark.parametrize("family", (4, 6))
def test_source_stays_while_other_routes_change(lab, family):
    """A peer is answered from the second address, to which it writes, whatever happens to routes that are not its."""
    p = Pair(lab, outer=family)
    second, bits = ("192.168.241.12", "/24") if family == 4 else ("fd00:241::12", "/64")
    endpoint = f"{second}:{p.ports[1]}" if family == 4 else f"[{second}]:{p.ports[1]}"

    def add_second():
        # Deprecated, so that IPv6 does not choose it by itself.
        net.run(p.b, "ip", "addr", "add", second + bits, "dev", "v1", *(["nodad", "preferred_lft", "0"] if family == 6 else []))

    add_second()
    allowed = f"{p.inner4[1]}/32,{p.inner6[1]}/128"
    p.ga.peer(p.gb.public, allowed, endpoint)
    p.works()
    stream = net.UdpStream(lab, p.b, p.a, p.inner4[0], 2000)
    for i in range(20):
        net.run(p.b, "ip", "route", "add", f"198.51.{i}.0/24", "dev", "v1")
        net.run(p.b, "ip", "-6", "route", "add", f"2001:db8:{i}::/64", "dev", "v1")
        time.sleep(0.02)
        # a follows any authentic packet: one from another address would show.
        assert p.ga.endpoint(p.gb.public) == endpoint
    sent, lost = stream.finish()
    assert lost == 0, stream.story()
    # The address goes for a moment: others answer meanwhile, and it again once it is back.
    net.run(p.b, "ip", "addr", "del", second + bits, "dev", "v1")
    for i in range(3):
        net.ping(p.b, p.inner4[0], 1, wait=1)
    assert p.ga.endpoint(p.gb.public) != endpoint
    add_second()
    p.ga.peer(p.gb.public, allowed, endpoint)
    assert net.first_ping(p.a, p.inner4[1], 5)
    p.ga.peer(p.gb.public, allowed, endpoint)
    time.sleep(1.1)  # for a second an address that was none of ours is not learnt
    p.ga.peer(p.gb.public, allowed, endpoint)
    assert net.ping(p.a, p.inner4[1], 5, 0.02) == 5
    assert p.ga.endpoint(p.gb.public) == endpoint


class Routed:
    """a - r - b: a's way to b is its default route. Packets go through the tunnel all the time, both ways."""

    def __init__(self, lab, family):
        self.lab, self.family = lab, family
        self.a, self.r, self.b = (lab.namespace(n) for n in "arb")
        lab.veth(self.r, "r1", self.b, "v1")
        self._address(self.r, "r1", 11, 1)
        self._address(self.b, "v1", 11, 2)
        lab.sysctl(self.r, "net/ipv4/ip_forward", 1)
        lab.sysctl(self.r, "net/ipv6/conf/all/forwarding", 1)
        self.ip(self.b, "route", "add", "default", "via", self._host(11, 1))
        self.plug(10)
        self.ga = net.Gateway(lab, self.a, under_test()).up("10.14.0.1/24", "fd14::1/64", port=1)
        self.gb = net.Gateway(lab, self.b, under_test()).up("10.14.0.2/24", "fd14::2/64", port=2)
        self.gb.peer(self.ga.public, "10.14.0.1/32,fd14::1/128")
        self.ga.peer(self.gb.public, "10.14.0.2/32,fd14::2/128", self._at(11, 2, 2))
        assert net.first_ping(self.a, "10.14.0.2")
        self.streams = [net.UdpStream(lab, self.a, self.b, "10.14.0.2"), net.UdpStream(lab, self.b, self.a, "10.14.0.1")]

    def ip(self, ns, *args):
        net.run(ns, "ip", f"-{self.family}", *args)

    def _host(self, n, i):
        return f"192.168.{n}.{i}" if self.family == 4 else f"fd{n}::{i}"

    def _at(self, n, i, port):
        return f"{self._host(n, i)}:{port}" if self.family == 4 else f"[{self._host(n, i)}]:{port}"

    def _address(self, ns, link, n, i):
        self.lab.address(ns, link, self._host(n, i) + ("/24" if self.family == 4 else "/64"))

    def plug(self, n):
        """A new link from a to r."""
        self.lab.veth(self.a, "v0", self.r, "r0")
        self.number(n)

    def number(self, n):
        """The link's addresses are of net n, and a's default route leads over them."""
        self._address(self.r, "r0", n, 1)
        self._address(self.a, "v0", n, 2)
        self.route(n)

    def route(self, n):
        self.ip(self.a, "route", "replace", "default", "via", self._host(n, 1))

    def is_cut(self):
        assert net.ping(self.a, "10.14.0.2", 1, wait=1) == 0

    def recovers(self, n):
        """By itself, and within what the protocol gives a handshake that was lost: 5 s, a third of jitter, and 1 s for ARP and ND."""
        assert net.first_ping(self.a, "10.14.0.2", 6), self.ga.log()[-800:]
        assert net.first_ping(self.b, "fd14::1", 6), self.gb.log()[-800:]
        assert self.gb.endpoint(self.ga.public) == self._at(n, 2, 1)
        assert net.ping(self.a, "10.14.0.2", 10, 0.02) >= 10
        assert net.ping(self.b, "fd14::1", 10, 0.02) >= 10
        lost = [s.finish()[1] for s in self.streams]
        assert any(lost), "was it cut at all?"
        assert self.ga.alive() and self.gb.alive()
        assert "socket" not in self.ga.log().lower(), self.ga.log()[-800:]


@pytest.mark.report("network-change", asserts="the default route goes for 1 and for 8 s under traffic both ways; both "
                    "families: echoes both ways within 6 s, no restart")
@pytest.mark.parametrize("family", (4, 6))
@pytest.mark.parametrize("seconds", (1, 8))
def test_default_route_vanishes(lab, family, seconds):
    """For longer than a handshake is tried once, too."""
    r = Routed(lab, family)
    r.ip(r.a, "route", "del", "default")
    r.is_cut()
    time.sleep(seconds - 1)
    r.route(10)
    r.recovers(10)


@pytest.mark.report("network-change", asserts="the outer interface is deleted under traffic, a new one comes with the same or another address; both "
                    "families: echoes both ways within 6 s, no restart")
@pytest.mark.parametrize("family", (4, 6))
@pytest.mark.parametrize("number", (10, 20))
def test_outer_interface_is_deleted(lab, family, number):
    """A new one comes in its place, with the former address or another."""
    r = Routed(lab, family)
    net.run(r.a, "ip", "link", "del", "v0")
    r.is_cut()
    r.plug(number)
    r.recovers(number)


@pytest.mark.report("network-change", asserts="the outer link goes down and up at the near and at the far end under traffic; both "
                    "families: echoes both ways within 6 s, no restart")
@pytest.mark.parametrize("family", (4, 6))
@pytest.mark.parametrize("end", ("near", "far"))
def test_outer_interface_down_and_up_under_traffic(lab, family, end):
    r = Routed(lab, family)
    where = (r.a, "v0") if end == "near" else (r.r, "r0")
    for state in ("down", "up"):
        net.run(where[0], "ip", "link", "set", where[1], state)
        if state == "down":
            r.is_cut()
    r.route(10)
    r.recovers(10)


@pytest.mark.report("network-change", asserts="the outer interface gets another address and default route under traffic; both "
                    "families: echoes both ways within 6 s, no restart")
@pytest.mark.parametrize("family", (4, 6))
def test_outer_interface_is_renumbered(lab, family):
    r = Routed(lab, family)
    r.ip(r.a, "addr", "flush", "dev", "v0", "scope", "global")
    r.is_cut()
    r.ip(r.r, "addr", "flush", "dev", "r0", "scope", "global")
    r.number(30)
    r.recovers(30)


@pytest.mark.report("fwmark", asserts="set before the port, with it, and later on a live tunnel: nftables sees no datagram without it, over either "
                    "family")
@pytest.mark.parametrize("order", ("mark-first", "port-first", "later"))
def test_fwmark_is_on_every_socket(lab, order):
    p = Pair(lab)
    if order == "mark-first":
        p.ga.wg("set", p.ga.name, "fwmark", "51")
        p.ga.wg("set", p.ga.name, "listen-port", "41999")
    elif order == "port-first":
        p.ga.wg("set", p.ga.name, "listen-port", "41999", "fwmark", "51")
    else:
        p.works()
        p.ga.wg("set", p.ga.name, "fwmark", "51")
    net.run(p.a, "nft", "-f", "-", input="""
        add table inet t
        add chain inet t out { type filter hook output priority 0; }
        add rule inet t out oifname "v0" meta l4proto udp mark != 51 counter drop
        add rule inet t out oifname "v0" meta l4proto udp mark 51 counter accept
        """)
    for family in (4, 6):
        p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1, family))
        assert net.first_ping(p.a, p.inner4[1])
        net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 2 * MIB)
    counters = re.findall(r"counter packets (\d+)", net.run(p.a, "nft", "list", "ruleset").stdout)
    assert counters[0] == "0" and int(counters[1]) > 20, counters  # a train counts once


@pytest.mark.skipif(is_stand_in(), reason="offload options are penstock's own")
@pytest.mark.parametrize("without", ("vnet", "csum", "tso", "uso", "udp-gso", "udp-gro", "tso,uso", "udp-gso,udp-gro",
                                     "vnet,csum,tso,uso,udp-gso,udp-gro"))
def test_without_offloads(lab, without):
    p = Pair(lab, options=("--no-offload", without))
    p.works()
    for inner in (p.inner4, p.inner6):
        net.tcp_transfer(lab, p.a, p.b, inner[1], 10 * MIB)
        net.tcp_transfer(lab, p.b, p.a, inner[0], 10 * MIB)
        net.udp_sizes(lab, p.a, p.b, inner[1])
    p.healthy()


@pytest.mark.skipif(is_stand_in(), reason="the choice of the cipher's library is penstock's own")
@pytest.mark.parametrize("name", ("ipsec-mb", "openssl"))
def test_either_cipher_library(lab, name):
    if name == "ipsec-mb" and os.uname().machine != "x86_64":
        pytest.skip("IPsec-MB is for x86-64")
    p = Pair(lab, options=("--aead", name))
    p.works()
    net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 10 * MIB)


def test_parallel_streams(lab):
    """Sixteen transfers at once, each compared."""
    p = Pair(lab)
    p.works()
    wrong = []

    def one(i):
        try:
            if i % 2:
                net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 4 * MIB, 6000 + i)
            else:
                net.tcp_transfer(lab, p.b, p.a, p.inner6[0], 4 * MIB, 6000 + i)
        except net.LabError as e:
            wrong.append(str(e))

    # Sockets are born in the thread that makes them, so namespaces do not mix.
    threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    p.healthy()


def test_order_within_a_flow(lab):
    """Datagrams of one flow arrive in the order in which they were sent."""
    p = Pair(lab)
    p.works()
    receiver = lab.socket(p.b, timeout=1)
    receiver.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
    receiver.bind((p.inner4[1], 7100))
    sender = lab.socket(p.a)
    sender.connect((p.inner4[1], 7100))
    for burst in range(100):
        for i in range(50):
            sender.send((burst * 50 + i).to_bytes(4, "big") + bytes(100))
        time.sleep(0.005)
    got = []
    try:
        while len(got) < 5000:
            got.append(int.from_bytes(receiver.recv(2048)[:4], "big"))
    except OSError:
        pass
    assert len(got) > 4500
    assert got == sorted(set(got)), "reordered or repeated"


def test_many_peers_one_gateway(lab):
    """A hub with eight peers: each reaches it, and each other through it."""
    hub_ns, switch = lab.namespace("h"), lab.namespace("s")
    net.run(switch, "ip", "link", "add", "br0", "type", "bridge", check=False)
    if net.run(switch, "ip", "link", "show", "br0", check=False).returncode:
        pytest.skip("this kernel has no bridge")
    net.run(switch, "ip", "link", "set", "br0", "up")

    def plug(ns, i):
        lab.veth(ns, "v0", switch, f"p{i}")
        net.run(switch, "ip", "link", "set", f"p{i}", "master", "br0")
        lab.address(ns, "v0", f"192.168.60.{i}/24")

    plug(hub_ns, 1)
    lab.sysctl(hub_ns, "net/ipv4/ip_forward", 1)
    hub = net.Gateway(lab, hub_ns, under_test()).up("10.60.0.1/24", port=7)
    spokes = []
    for i in range(2, 10):
        ns = lab.namespace(f"p{i}x")
        plug(ns, i)
        g = net.Gateway(lab, ns, under_test()).up(f"10.60.0.{i}/24", port=7)
        g.peer(hub.public, "10.60.0.0/24", "192.168.60.1:7")
        hub.peer(g.public, f"10.60.0.{i}/32")
        spokes.append(g)
    for g in spokes:
        assert net.first_ping(g.ns, "10.60.0.1")
    for g in spokes[1:]:
        assert net.first_ping(spokes[0].ns, f"10.60.0.{spokes.index(g) + 2}")
    # An address of another spoke is not believed.
    net.run(spokes[0].ns, "ip", "addr", "add", "10.60.0.200/32", "dev", spokes[0].name)
    assert net.ping(spokes[0].ns, "10.60.0.1", 2, wait=1, options=("-I", "10.60.0.200")) == 0


# ---- Strangers


def udp_payloads(packets, port):
    """The datagrams to a port in a capture of whole IPv4 packets."""
    for outgoing, data in packets:
        if not outgoing and len(data) > 28 and data[0] >> 4 == 4 and data[9] == 17:
            head = (data[0] & 15) * 4
            if int.from_bytes(data[head + 2:head + 4], "big") == port:
                yield data[head + 8:]


def garbage(real):
    """Kinds of datagram that no gateway should believe: (name, list)."""
    sizes = {1: 148, 2: 92, 3: 64, 4: 128}
    yield "random", [os.urandom(n) for n in list(range(0, 200)) + [1400, 1472, 2000]]
    yield "empty and tiny", [b"", b"\4", b"\4\0", b"\4\0\0\0", b"\1\0\0\0"] * 20
    yield "truncated", [bytes([t, 0, 0, 0]) + os.urandom(n) for t in sizes for n in range(0, sizes[t] - 4, 3)]
    yield "right size, random", [bytes([t, 0, 0, 0]) + os.urandom(sizes[t] - 4) for t in sizes for _ in range(50)]
    yield "unknown type", [bytes([t, 0, 0, 0]) + os.urandom(60) for t in range(256) if t not in sizes]
    yield "large", [bytes([4, 0, 0, 0]) + os.urandom(n - 4) for n in (10000, 34000, 65507) for _ in range(5)]
    yield "reserved bytes set", [r[:1] + bytes([i & 1, i >> 1 & 1, 1]) + r[4:] for i, r in enumerate(real)]
    yield "flipped", [r[:-1] + bytes([r[-1] ^ 1]) for r in real]
    yield "flipped counter", [r[:8] + bytes([r[8] ^ 64]) + r[9:] for r in real if r[0] == 4]
    yield "shortened", [r[:-16] for r in real if len(r) > 48] + [r[:-1] for r in real]
    yield "lengthened", [r + bytes(16) for r in real]
    yield "replayed", real * 3


def test_flood_of_garbage(lab):
    """Nothing that was not authenticated reaches the interface, and echoes go on meanwhile."""
    p = Pair(lab)
    capture = net.Capture(lab, p.b, "v1")
    p.works()
    net.ping(p.a, p.inner4[1], 30, 0.01)
    net.udp_sizes(lab, p.a, p.b, p.inner4[1], (10, 100, 1000))
    real = list(udp_payloads(capture.stop(), p.ports[1]))
    assert {r[0] for r in real} >= {1, 4}, "the capture has no handshake or no data"
    time.sleep(0.3)
    inner = net.Capture(lab, p.b, p.gb.name)
    pinger = lab.start(p.a, "ping", "-n", "-i", "0.02", p.inner4[1], stdout=-1)
    sender = lab.socket(p.a)
    sender.setsockopt(socket.SOL_SOCKET, 32, 8 << 20)  # SO_SNDBUFFORCE
    n = 0
    end = time.monotonic() + 6
    kinds = list(garbage(real))
    while time.monotonic() < end:
        for _, datagrams in kinds:
            for d in datagrams:
                try:
                    sender.sendto(d, (p.outer4[1], p.ports[1]))
                except OSError:
                    pass
                n += 1
    time.sleep(0.5)
    pinger.send_signal(2)
    text = pinger.communicate(timeout=5)[0].decode()
    sent, answered = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", text).groups())
    p.healthy()
    assert n > 10000
    assert answered > sent * 0.9, f"{answered} of {sent} echoes answered under the flood"
    assert net.ping(p.a, p.inner4[1], 10, 0.05) == 10
    # Every packet that came out of the tunnel is one of these echo requests, once.
    seen = set()
    for outgoing, data in inner.stop():
        if outgoing:
            continue
        source, target, sequence = data[12:16], data[16:20], data[24:28]
        assert (source, target) == (socket.inet_aton(p.inner4[0]), socket.inet_aton(p.inner4[1])), data[:40].hex()
        assert data[9] == 1 and data[20] == 8, data[:40].hex()
        assert sequence not in seen, "a replayed packet reached the interface"
        seen.add(sequence)
    assert len(seen) >= answered
    if not is_stand_in():
        drops_are_named(p.gb)


def drops_are_named(g):
    """`penstock gateway --status` counts what was dropped, by reason."""
    done = net.run(g.ns, net.penstock_path(), "gateway", "--status", g.name)
    counts = {w[0]: int(w[1]) for w in (line.replace(":", " ").replace("=", " ").split() for line in done.stdout.splitlines())
              if len(w) > 1 and w[1].isdigit()}
    for reason in ("unknown_type", "no_session", "decrypt", "replay", "mac1"):
        assert counts.get(reason, 0) > 0, f"{reason} is not counted:\n{done.stdout}"
    assert g.private not in done.stdout and net.hexkey(g.private) not in done.stdout


def test_garbage_without_a_peer(lab):
    """The same against a gateway that has no key and no peer yet."""
    a = lab.namespace("a")
    g = net.Gateway(lab, a, under_test())
    g.wg("set", g.name, "listen-port", "42000")
    net.run(a, "ip", "link", "set", g.name, "up")
    s = lab.socket(a)
    fake = [bytes([t, 0, 0, 0]) + os.urandom(n - 4) for t, n in ((1, 148), (2, 92), (3, 64), (4, 128)) for _ in range(20)]
    for _, datagrams in garbage(fake):
        for d in datagrams:
            try:
                s.sendto(d, ("127.0.0.1", 42000))
            except OSError:
                pass
    assert g.alive() and "errno=0" in g.ask("get=1\n\n")


@pytest.mark.skipif(is_stand_in(), reason="drop reasons are penstock's own")
def test_empty_datagrams_are_counted(lab):
    g = net.Gateway(lab, lab.namespace("a"), under_test()).up(port=42000)
    s = lab.socket(g.ns)
    for _ in range(10):
        s.sendto(b"", ("127.0.0.1", 42000))
    net.wait_until(lambda: g.drops().get("unknown_type", 0) >= 10, 5, message=f"not ten: {g.drops()}")


@pytest.mark.memory
def test_memory_is_flat_under_garbage(lab):
    p = Pair(lab)
    p.works()
    s = lab.socket(p.a)
    kinds = list(garbage([bytes([4, 0, 0, 0]) + os.urandom(92)]))

    def flood(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _, datagrams in kinds:
                for d in datagrams:
                    try:
                        s.sendto(d, (p.outer4[1], p.ports[1]))
                    except OSError:
                        pass

    flood(1)
    before = p.gb.resident_kib()
    flood(4)
    assert p.gb.resident_kib() < before + 4096
    p.healthy()


@pytest.mark.report("silent-peer", asserts="20,000 packets for a peer that never answers: all but 128 are counted as staged_full (or as dropped by the TUN, whose queue is short), memory grows by "
                    "less than 16 MiB, ten of ten echoes of another peer are answered meanwhile")
@pytest.mark.memory
def test_packets_for_a_silent_peer_are_bounded(lab):
    p = Pair(lab)
    p.works()
    stranger = net.pubkey(net.genkey())
    p.ga.peer(stranger, "10.250.0.0/16", f"{p.outer4[1]}:9")
    net.run(p.a, "ip", "route", "add", "10.250.0.0/16", "dev", p.ga.name)
    s = lab.socket(p.a)
    before = p.ga.resident_kib()
    for i in range(20000):
        try:
            s.sendto(bytes(1300), ("10.250.0.1", 9))
        except OSError:
            pass
    assert net.ping(p.a, p.inner4[1], 10, 0.05) == 10
    assert p.ga.resident_kib() < before + 16384
    if not is_stand_in():
        dropped = p.ga.drops().get("staged_full", 0)
        assert dropped and dropped + p.ga.interface_drops() >= 20000 - 128, p.ga.drops()


def inner_packet(source, target, **wrong):
    """An IPv4 UDP packet with lies in its header."""
    payload = struct.pack("!HHHH", 9, 9, 8 + 32, 0) + bytes(32)
    head = struct.pack("!BBHHHBBH4s4s", wrong.get("version", 0x45), 0, wrong.get("length", 20 + len(payload)), 0, 0, 64, 17, 0,
                       socket.inet_aton(source), socket.inet_aton(target))
    return head + payload


def test_lying_inner_packets_from_the_interface(lab):
    """Packets with impossible lengths and versions, put on the interface from inside: dropped, service goes on."""
    p = Pair(lab)
    p.works()
    with net.inside(p.a):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    with raw:
        for lie in ({"length": 65535}, {"length": 0}, {"length": 19}, {"length": 21}, {"version": 0x40}, {"version": 0x4F},
                    {"version": 0x65}, {"version": 0x05}, {"version": 0xF5}):
            for cut in (None, 1, 19, 20, 27):
                data = inner_packet(p.inner4[0], p.inner4[1], **lie)[:cut]
                for proto in (0x0800, 0x86DD):
                    try:
                        raw.sendto(data, (p.ga.name, proto, 0, 0, b""))
                    except OSError:
                        pass
    p.healthy()
    assert net.ping(p.a, p.inner4[1]) == 3
    assert net.ping(p.a, p.inner6[1]) == 3
