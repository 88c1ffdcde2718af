"""The filter in the kernel that keeps floods out of the gateway's sockets (doc/sieve.md)."""
import os
import re
import socket
import struct
import subprocess
import threading

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test
from test_start import start_unprivileged

INITIATION_LEN = 148
SOURCES = 2000
IPV6_HDRINCL = 36
NOT_LOADED = "floods are not kept out in the kernel"

pytestmark = pytest.mark.skipif(is_stand_in(), reason="a sieve is what penstock has")


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def initiation(i, target, port):
    """One from source number i, headers and all; each a /64 of its own in IPv6."""
    message = struct.pack("<I", 1) + os.urandom(INITIATION_LEN - 4)
    length = 8 + len(message)
    udp = struct.pack("!HHHH", 1024 + i % 60000, port, length, 0) + message
    if ":" in target:
        source, to = socket.inet_pton(socket.AF_INET6, f"fd00:99:0:{i:x}::1"), socket.inet_pton(socket.AF_INET6, target)
        check = checksum(source + to + struct.pack("!II", length, 17) + udp)
        udp = udp[:6] + struct.pack("!H", check or 0xffff) + udp[8:]
        return struct.pack("!IHBB", 6 << 28, length, 17, 64) + source + to + udp
    source = socket.inet_aton(f"10.99.{i >> 8}.{i & 255}")
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, 17, 0) + source + socket.inet_aton(target) + udp


class Flood:
    """Initiations from 2,000 addresses, as fast as they can be sent, until stop()."""

    def __init__(self, lab, ns, target, port):
        family = net.family_of(target)
        self.socket = lab.socket(ns, family, socket.SOCK_RAW, socket.IPPROTO_RAW)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, IPV6_HDRINCL, 1)
        self.to = (target, 0)
        self.packets = [initiation(i, target, port) for i in range(SOURCES)]
        self.done = False
        self.sent = 0
        self.thread = threading.Thread(target=self._send, daemon=True)
        self.thread.start()

    def _send(self):
        while not self.done:
            for packet in self.packets:
                try:
                    self.socket.sendto(packet, self.to)
                    self.sent += 1
                except OSError:
                    pass

    def stop(self):
        self.done = True
        self.thread.join()
        self.socket.close()


def sieved(g, what):
    match = re.search(rf"^drop_sieve_{what}=(\d+)$", g.ask("get=1\n\n"), re.M)
    return int(match.group(1)) if match else 0


def need_sieve(g):
    if NOT_LOADED in g.log():
        pytest.skip("eBPF programs cannot be loaded here: " + g.log().partition(NOT_LOADED)[2].splitlines()[0])


@pytest.mark.parametrize("family", (4, 6))
def test_first_handshake_during_a_flood(lab, family):
    p = Pair(lab, outer=family, endpoints=(False, True))
    need_sieve(p.ga)
    attacker = lab.namespace("c")
    lab.veth(attacker, "w0", p.a, "w1")
    lab.address(attacker, "w0", "192.168.242.1/24", "fd00:242::1/64")
    lab.address(p.a, "w1", "192.168.242.2/24", "fd00:242::2/64")
    net.run(p.a, "ip", "route", "add", "10.99.0.0/16", "via", "192.168.242.1")
    net.run(p.a, "ip", "-6", "route", "add", "fd00:99::/32", "via", "fd00:242::1")
    # The filter is on the sockets that the helper opens after the start as well.
    p.ga.wg("set", p.ga.name, "listen-port", "51831")
    p.gb.wg("set", p.gb.name, "peer", p.ga.public, "endpoint",
            "192.168.241.1:51831" if family == 4 else "[fd00:241::1]:51831")
    flood = Flood(lab, attacker, "192.168.242.2" if family == 4 else "fd00:242::2", 51831)
    try:
        net.wait_until(lambda: sieved(p.ga, "source") > SOURCES, 30, message="the flood was not noticed")
        before = sieved(p.ga, "source")
        assert net.first_ping(p.b, p.inner4[0], wait=25), "no handshake during the flood" + p.logs()
        net.wait_until(lambda: sieved(p.ga, "source") > before, 10, message="the flood ended by itself")
        assert sieved(p.ga, "malformed") == 0
    finally:
        flood.stop()
    out = subprocess.run([net.penstock_path(), "gateway", "--status", p.ga.name], capture_output=True, text=True,
                         stdin=subprocess.DEVNULL, timeout=10).stdout
    assert re.search(r"^ +sieve_source +\d+  flood of handshakes", out, re.M), out
    p.healthy()


def test_what_cannot_be_a_handshake_is_dropped_in_the_kernel(lab):
    p = Pair(lab)
    need_sieve(p.ga)
    p.works()
    s = lab.socket(p.b)
    for kind, size in ((1, 147), (1, 149), (2, 148), (3, 63), (3, 1400)):
        s.sendto(struct.pack("<I", kind) + bytes(size - 4), (p.outer4[0], p.ports[0]))
    net.wait_until(lambda: sieved(p.ga, "malformed") == 5, 10)
    p.works()
    p.healthy()


@pytest.mark.parametrize("family", (4, 6))
def test_forger_is_shut_out_and_the_peer_is_not(lab, family):
    """Whoever saw one data message forges more of that session, from an address of his own."""
    p = Pair(lab, outer=family)
    need_sieve(p.ga)
    capture = net.Capture(lab, p.b, "v1")
    p.works()
    capture.stop()
    header = 20 if family == 4 else 40
    sent = [data[header + 8:] for is_outgoing, data in capture.packets
            if is_outgoing and data[:1] in (b"\x45", b"\x60") and data[6 if family == 6 else 9] == 17]
    receiver = next(data[4:8] for data in sent if data[:4] == struct.pack("<I", 4))
    s = lab.socket(p.b, socket.AF_INET if family == 4 else socket.AF_INET6)
    s.connect(((p.outer4 if family == 4 else p.outer6)[0], p.ports[0]))

    def shut_out():
        for i in range(100):
            s.send(struct.pack("<I", 4) + receiver + struct.pack("<Q", 1 << 32 | i) + os.urandom(112))
        return sieved(p.ga, "guilty") > 100

    net.wait_until(shut_out, 20, message="the forger was not shut out")
    assert net.ping(p.b, p.inner4[0], 10, 0.05) == 10, "the peer suffers" + p.logs()
    shut_out()
    p.works()
    p.healthy()


def test_without_the_privilege_it_says_so_once_and_works(lab):
    p = Pair(lab)
    start_unprivileged(lab, p.ga, 0)
    said = [line for line in p.ga.log().splitlines() if NOT_LOADED in line]
    assert len(said) == 1 and "CAP_BPF" in said[0], p.ga.log()
    assert "drop_sieve" not in p.ga.ask("get=1\n\n")
