"""wg-quick, unchanged, with a full-tunnel configuration (K14)."""
import os
import time

import pytest

import lab as net
from conftest import is_stand_in, under_test

MIB = 1 << 20


class FullTunnel:
    """a - r - b: a's only way out is r; b is the far gateway and, on its loopback, the world."""

    world4, world6 = "203.0.113.1", "2001:db8:113::1"

    def __init__(self, lab, outer, extra=""):
        self.lab = lab
        self.a, self.r, self.b = (lab.namespace(n) for n in "arb")
        lab.veth(self.a, "v0", self.r, "r0")
        lab.veth(self.r, "r1", self.b, "v1")
        lab.address(self.a, "v0", "192.168.10.2/24", "fd10::2/64")
        lab.address(self.r, "r0", "192.168.10.1/24", "fd10::1/64")
        lab.address(self.r, "r1", "192.168.11.1/24", "fd11::1/64")
        lab.address(self.b, "v1", "192.168.11.2/24", "fd11::2/64")
        lab.address(self.b, "lo", self.world4 + "/32", self.world6 + "/128")
        lab.sysctl(self.r, "net/ipv4/ip_forward", 1)
        lab.sysctl(self.r, "net/ipv6/conf/all/forwarding", 1)
        for ns, v4, v6 in ((self.a, "192.168.10.1", "fd10::1"), (self.b, "192.168.11.1", "fd11::1")):
            net.run(ns, "ip", "route", "add", "default", "via", v4)
            net.run(ns, "ip", "-6", "route", "add", "default", "via", v6)
        self.far = net.Gateway(lab, self.b, under_test()).up("10.14.0.1/24", "fd14::1/64", port=51820)
        self.name = lab.ifname()
        self.private = net.genkey()
        self.public = net.pubkey(self.private)
        self.psk = net.genkey()
        self.far.peer(self.public, "10.14.0.2/32,fd14::2/128", psk=self.psk)
        endpoint = "192.168.11.2:51820" if outer == 4 else "[fd11::2]:51820"
        self.path = lab.file(self.name + ".conf", f"""[Interface]
PrivateKey = {self.private}
Address = 10.14.0.2/24, fd14::2/64
{extra}
PostUp = touch {lab.tmp}/%i.up
PreDown = touch {lab.tmp}/%i.down

[Peer]
PublicKey = {self.far.public}
PresharedKey = {self.psk}
Endpoint = {endpoint}
AllowedIPs = 0.0.0.0/0, ::/0
PersistentKeepalive = 25
""")
        if is_stand_in():
            self.program = under_test().argv[0]
        else:
            link = os.path.join(lab.tmp, "penstock-wg")
            os.symlink(net.penstock_path(), link)
            # wg-quick gives the interface's name only.
            options = " ".join(["--sandbox", "kill", *net.engine_options()])
            self.program = lab.file("strictly", f'#!/bin/sh\nexec {link} {options} "$@"\n', 0o755)

    def quick(self, what, check=True):
        with net.inside(self.a):
            # wg-quick first tries the kernel's module, and calls this program where that fails.
            return net.run(None, "env", f"WG_QUICK_USERSPACE_IMPLEMENTATION={self.program}", "wg-quick", what, self.path,
                           check=check)


@pytest.mark.scenario("K14", asserts="wg-quick, unchanged, sets fwmark 51820, the routing table and the rules; with an IPv6 address on the outer link "
                      "100 flooded echoes of each family are all answered; nothing passes beside the tunnel; `down` leaves "
                      "rules, links and processes as before",
                      kernel="makes the rules itself")
@pytest.mark.parametrize("outer", (4, 6))
def test_k14_full_tunnel(lab, outer):
    t = FullTunnel(lab, outer)
    before = [net.run(t.a, "ip", "-br", "link").stdout, net.run(t.a, "ip", "rule").stdout, net.run(t.a, "ip", "-6", "rule").stdout]
    for _ in range(2):
        t.quick("up")
        assert net.first_ping(t.a, t.world4)
        bare = net.Capture(lab, t.r, "r0")
        assert net.flood(t.a, t.world4, 100) == 100
        assert net.flood(t.a, t.world6, 100) == 100
        net.tcp_transfer(lab, t.a, t.b, t.world4, 20 * MIB)
        net.tcp_transfer(lab, t.a, t.b, t.world6, 20 * MIB)
        for _, data in bare.stop():
            is_udp4 = data[0] >> 4 == 4 and data[9] == 17
            is_udp6 = data[0] >> 4 == 6 and data[6] in (17, 58, 0)  # neighbour discovery, multicast listeners
            is_arp = data[:4] == b"\0\1\x08\0"
            assert is_udp4 or is_udp6 or is_arp, f"past the tunnel: {data[:60].hex()}"
        shown = net.run(t.a, "wg", "show", t.name).stdout
        assert "fwmark: 0xca6c" in shown and "latest handshake" in shown and t.private not in shown
        assert os.path.exists(f"{lab.tmp}/{t.name}.up")
        t.quick("down")
        assert os.path.exists(f"{lab.tmp}/{t.name}.down")
        net.wait_until(lambda: not os.path.exists(os.path.join(net.CONFIG_DIR, t.name + ".sock")), 5,
                       message="the configuration socket stays after wg-quick down")
        net.wait_until(lambda: not net._pids_in(t.a), 5, message="a process stays after wg-quick down")
        after = [net.run(t.a, "ip", "-br", "link").stdout, net.run(t.a, "ip", "rule").stdout, net.run(t.a, "ip", "-6", "rule").stdout]
        assert after == before
        assert "wg-quick" not in net.run(t.a, "nft", "list", "ruleset").stdout


def test_up_with_a_bad_file_leaves_nothing(lab):
    t = FullTunnel(lab, 4)
    with open(t.path, "a", encoding="utf-8") as f:
        f.write("AllowedIPs = 10.0.0.0/99\n")
    assert t.quick("up", check=False).returncode != 0
    assert net.run(t.a, "ip", "link", "show", t.name, check=False).returncode != 0
    net.wait_until(lambda: not net._pids_in(t.a), 5, message="a process stays after a failed wg-quick up")


def test_reload_as_the_manual_says(lab):
    """wg syncconf with what `wg-quick strip` prints: the tunnel stays up, the session too."""
    # Without these two in the file, syncconf sets both to 0.
    t = FullTunnel(lab, 4, "FwMark = 51820\nListenPort = 51999")
    t.quick("up")
    try:
        assert net.first_ping(t.a, t.world4)
        stripped = lab.file("stripped.conf", t.quick("strip").stdout)
        stream = net.UdpStream(lab, t.a, t.b, t.world4, 500)
        for _ in range(5):
            net.run(t.a, "wg", "syncconf", t.name, stripped)
            time.sleep(0.1)
        sent, lost = stream.finish()
        assert sent and lost == 0, stream.story() + f"; far gateway: {t.far.drops()}"
    finally:
        t.quick("down", check=False)
