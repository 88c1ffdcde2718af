"""Packets that nobody can be given: the sender is told by ICMP, as the kernel's WireGuard does.

K15 itself is in test_kernel.py. Nothing here sets accept_local or loosens a filter of source addresses.
"""
import errno
import os
import re
import signal
import socket
import struct
import threading
import time

import pytest

import lab as net
from conftest import Pair, under_test
from test_start import IFF_VNET_HDR, start_unprivileged

# No peer of a Pair has these; the interface's prefix leads to them.
NO_PEER = ("10.241.0.9", "fd41::9")
# A peer has these, but its endpoint is not known.
NO_ENDPOINT = ("10.241.0.8", "fd41::8")
BURST, PER_SECOND = 50, 100  # gateway/unreach.h


def connect_error(lab, ns, address, timeout=10):
    """What TCP says of an address; TimeoutError when it is left waiting."""
    s = lab.socket(ns, net.family_of(address), socket.SOCK_STREAM, timeout=timeout)
    try:
        s.connect((address, 80))
    except TimeoutError:
        raise
    except OSError as e:
        return e.errno
    finally:
        s.close()
    return 0


def ping_error(ns, address, size=56):
    """Who said what to one echo request: (address, text); None for silence."""
    out = net.run(ns, "ping", "-n", "-c", 1, "-W", 3, "-s", size, address, check=False).stdout
    match = re.search(r"^From (\S+?):? icmp_seq=1 (.*)$", out, re.M)
    return match.groups() if match else None


def with_lost_peer(p):
    """One more peer in gateway a, of which no endpoint is known."""
    p.ga.peer(net.pubkey(net.genkey()), f"{NO_ENDPOINT[0]}/32,{NO_ENDPOINT[1]}/128")
    return p


def counts(g):
    """The gateway's own counters of answers."""
    return {key: int(n) for key, n in re.findall(r"^(icmp_unreach_\w+|drop_\w+)=(\d+)$", g.ask("get=1\n\n"), re.M)}


def strict(lab, ns):
    """As strict about source addresses as the kernel can be."""
    for interface in ("all", "default"):
        lab.sysctl(ns, f"net/ipv4/conf/{interface}/rp_filter", 1)


# ---- Senders on this machine


@pytest.mark.parametrize("where", (NO_PEER, NO_ENDPOINT), ids=("no-peer", "no-endpoint"))
@pytest.mark.parametrize("options", ((), ("--no-offload", "vnet,csum,tso,uso")), ids=("vnet", "plain"))
def test_own_connections_fail_at_once(lab, where, options):
    p = with_lost_peer(Pair(lab, options=options))
    strict(lab, p.a)
    for address, own in zip(where, (p.inner4[0], p.inner6[0])):
        assert connect_error(lab, p.a, address) == errno.EHOSTUNREACH
        who, said = ping_error(p.a, address)
        assert who == own and re.search("Destination Host Unreachable|Address unreachable", said), (who, said)
    assert counts(p.ga)["icmp_unreach_sent"] == 4
    p.works()


def test_link_local(lab):
    p = Pair(lab)
    net.run(p.a, "ip", "addr", "add", "fe80::a/64", "dev", p.ga.name, "nodad")
    who, said = ping_error(p.a, f"fe80::99%{p.ga.name}")
    assert who == f"fe80::a%{p.ga.name}" and "Address unreachable" in said, (who, said)


def test_many_connections_of_our_own(lab):
    """Programs of this machine are not held to one error a second, once it is known that they are here."""
    p = Pair(lab)
    assert connect_error(lab, p.a, NO_PEER[0]) == errno.EHOSTUNREACH
    net.wait_until(lambda: counts(p.ga).get("icmp_unreach_sent"), 5)
    for _ in range(30):
        assert connect_error(lab, p.a, NO_PEER[0]) == errno.EHOSTUNREACH
    assert "icmp_unreach_limited" not in counts(p.ga)


def test_superframe(lab):
    """A datagram train that is dropped whole is answered once, with a quote that its socket recognises."""
    p = Pair(lab)
    s = lab.socket(p.a, timeout=5)
    s.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
    s.connect((NO_PEER[0], 9))
    try:
        s.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT
    except OSError:
        pytest.skip("no UDP_SEGMENT")
    s.send(bytes(20000))
    with pytest.raises(OSError) as e:
        s.recv(1)
    assert e.value.errno == errno.EHOSTUNREACH


def test_interface_elsewhere(lab):
    """Sockets in one namespace, the interface in another: errors are for the latter."""
    home, inner = lab.namespace("a"), lab.namespace("b")
    g = net.Gateway(lab, home, under_test()).move_to(inner).up("10.241.0.1/24", "fd41::1/64")
    for address in NO_PEER:
        assert connect_error(lab, inner, address) == errno.EHOSTUNREACH
    assert g.alive()


# ---- Senders behind this machine


class Router:
    """A client c that reaches the tunnel of gateway a over a's second interface."""

    client, router = ("172.16.5.2", "fd16::2"), ("172.16.5.1", "fd16::1")

    def __init__(self, lab):
        self.lab, self.pair = lab, with_lost_peer(Pair(lab))
        self.c, self.a = lab.namespace("c"), self.pair.a
        lab.veth(self.c, "c0", self.a, "lan0")
        lab.address(self.c, "c0", self.client[0] + "/24", self.client[1] + "/64")
        lab.address(self.a, "lan0", self.router[0] + "/24", self.router[1] + "/64")
        net.run(self.c, "ip", "route", "add", "default", "via", self.router[0])
        net.run(self.c, "ip", "route", "add", "default", "via", self.router[1])
        lab.sysctl(self.a, "net/ipv4/ip_forward", 1)
        lab.sysctl(self.a, "net/ipv6/conf/all/forwarding", 1)
        strict(lab, self.a)

    def translate(self):
        """Sources become our own, and so do ports."""
        net.run(self.a, "nft", "-f", "-", input=f"""
            table inet nat {{
                chain post {{
                    type nat hook postrouting priority 100
                    oifname {self.pair.ga.name} meta l4proto {{ tcp, udp }} masquerade to :20000-20100
                    oifname {self.pair.ga.name} masquerade
                }}
            }}""")


@pytest.mark.parametrize("is_translated", (False, True), ids=("routed", "nat"))
@pytest.mark.parametrize("where", (NO_PEER, NO_ENDPOINT), ids=("no-peer", "no-endpoint"))
def test_clients_hear_of_it_from_their_router(lab, where, is_translated):
    r = Router(lab)
    if is_translated:
        r.translate()
    for address, router in zip(where, r.router):
        assert connect_error(lab, r.c, address) == errno.EHOSTUNREACH
        for size in (56, 1300):  # the second is quoted in part
            who, said = ping_error(r.c, address, size)
            assert who == router and re.search("Destination Host Unreachable|Address unreachable", said), (who, said)


def test_packet_filter_has_the_last_word(lab):
    """An error that the machine's own filter drops stays dropped, and is not written to the TUN instead."""
    p = Pair(lab)
    net.run(p.a, "nft", "-f", "-", input="""
        table ip filter {
            chain out {
                type filter hook output priority 0
                icmp type destination-unreachable drop
            }
        }""")
    with pytest.raises(TimeoutError):
        connect_error(lab, p.a, NO_PEER[0], timeout=1.5)
    assert counts(p.ga)["icmp_unreach_failed"] > 0


# ---- Without the helper


def test_without_privilege(lab):
    p = Pair(lab)
    start_unprivileged(lab, p.ga, IFF_VNET_HDR)
    p.ga.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
    strict(lab, p.a)
    for address in NO_PEER:
        assert connect_error(lab, p.a, address) == errno.EHOSTUNREACH
        # In the name of the address itself.
        assert ping_error(p.a, address)[0] == address


def test_helper_killed(lab):
    p = Pair(lab)
    p.works()
    os.kill(p.ga.helper(), signal.SIGKILL)
    for address in NO_PEER:
        assert connect_error(lab, p.a, address) == errno.EHOSTUNREACH
    p.works()


def test_helper_hangs(lab):
    """It costs the control thread one wait, not one for each packet."""
    p = Pair(lab)
    helper = p.ga.helper()
    os.kill(helper, signal.SIGSTOP)
    try:
        for address in NO_PEER:
            s = lab.socket(p.a, net.family_of(address))
            for _ in range(6):
                s.sendto(b"x", (address, 9))
        net.wait_until(lambda: counts(p.ga).get("icmp_unreach_failed") == 12, 10)
        p.works()
    finally:
        os.kill(helper, signal.SIGCONT)
    # Its late answer is no death: it still serves.
    p.ga.wg("set", p.ga.name, "fwmark", "7")
    assert p.ga.helper() == helper
    p.ga.wg("set", p.ga.name, "fwmark", "0")
    p.works()
    assert "died" not in p.ga.log(), p.ga.log()


# ---- What is not answered


def ipv4(source, destination, proto, payload):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, 0, 64, proto, 0, socket.inet_aton(source),
                       socket.inet_aton(destination))
    return head + payload


def icmp_heard(capture):
    """ICMP and ICMPv6 errors among what came in."""
    found = []
    for is_outgoing, data in capture.stop():
        if is_outgoing or len(data) < 41:
            continue
        is_error = data[9] == 1 and data[20] == 3 if data[0] >> 4 == 4 else data[6] == 58 and data[40] == 1
        if is_error:
            found.append(data)
    return found


def test_no_answer(lab):
    """Errors, fragments behind the first, broadcast and multicast: silence. An ordinary packet afterwards: an answer."""
    p = Pair(lab)
    raw = lab.socket(p.a, kind=socket.SOCK_RAW, proto=socket.IPPROTO_RAW)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, p.ga.name.encode())
    udp = struct.pack("!HHHH", 1, 9, 8, 0)
    capture = net.Capture(lab, p.a, "lo")
    own, far = p.inner4[0], NO_PEER[0]
    for error in (3, 4, 5, 11, 12):
        raw.sendto(ipv4(own, far, 1, bytes([error]) + bytes(7) + ipv4(far, own, 17, udp)), (far, 0))
    late = bytearray(ipv4(own, far, 17, udp))
    late[6:8] = struct.pack("!H", 100)
    raw.sendto(late, (far, 0))
    raw.sendto(ipv4(own, "10.241.0.255", 17, udp), ("10.241.0.255", 0))
    raw.sendto(ipv4(own, "224.0.0.9", 17, udp), ("224.0.0.9", 0))
    raw.sendto(ipv4("0.0.0.1", far, 17, udp), (far, 0))
    raw6 = lab.socket(p.a, socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    for error in (1, 2, 3, 4, 137):
        raw6.sendto(bytes([error]) + bytes(7) + bytes(40), (NO_PEER[1], 0))
    net.wait_until(lambda: counts(p.ga).get("drop_no_route", 0) >= 14, 5, message="the packets did not arrive")
    # The ordinary one; answers come in order.
    assert connect_error(lab, p.a, far) == errno.EHOSTUNREACH
    heard = icmp_heard(capture)
    assert len(heard) == 1 and heard[0][28 + 9] == 6, [h.hex() for h in heard]
    assert counts(p.ga)["icmp_unreach_sent"] == 1


# ---- Too much


def test_flood(lab):
    """Datagrams to nowhere as fast as they can be sent, from here and from a client: few answers, and the tunnel works."""
    r = Router(lab)
    p = r.pair
    p.works()
    stop = threading.Event()
    sent = [0, 0]

    def flood(i, ns):
        s = lab.socket(ns)
        while not stop.is_set():
            try:
                s.sendto(bytes(100), (NO_PEER[0], 9))
                sent[i] += 1
            except OSError:
                pass

    captures = [net.Capture(lab, p.a, "lo"), net.Capture(lab, r.c, "c0")]
    before = counts(p.ga)
    threads = [threading.Thread(target=flood, args=args, daemon=True) for args in ((0, p.a), (1, r.c))]
    began = time.monotonic_ns()
    for t in threads:
        t.start()
    try:
        net.wait_until(lambda: min(sent) > 1000, 30)
        net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 20 << 20)
        net.tcp_transfer(lab, p.b, p.a, p.inner6[0], 20 << 20, port=5998)
        assert p.ga.show("peers")
    finally:
        stop.set()
        for t in threads:
            t.join()
    seconds = (time.monotonic_ns() - began) / 1e9
    after = counts(p.ga)
    here, client = (len(icmp_heard(c)) for c in captures)
    assert after["drop_no_route"] - before.get("drop_no_route", 0) > 1000
    assert after["icmp_unreach_limited"] > 0
    assert 0 < here + client <= after["icmp_unreach_sent"] <= BURST + PER_SECOND * (seconds + 1)
    assert 0 < client <= 6 + seconds + 1
    p.works()
    p.healthy()


