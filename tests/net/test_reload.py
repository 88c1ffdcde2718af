"""Configuration changes under a stream of 50,000 packets per second: what each may lose, and no more."""
import time

import pytest

import lab as net
from conftest import Pair
from pump import Pump

RATE = 50000
RELOADS = 1000
pytestmark = pytest.mark.memory  # a sanitizer's gateway cannot keep up


def config(p, i, name, keepalive=0, more=""):
    """The file that describes gateway i of a pair as it is."""
    g, other = p.gateways[i], p.gateways[1 - i]
    return p.lab.file(f"{name}{i}.conf", f"""[Interface]
PrivateKey = {g.private}
ListenPort = {p.ports[i]}
[Peer]
PublicKey = {other.public}
AllowedIPs = {p.inner4[1 - i]}/32, {p.inner6[1 - i]}/128
Endpoint = {p.outer(1 - i)}
PersistentKeepalive = {keepalive}
{more}""")


@pytest.mark.report("in-place", asserts="1,000 runs of `wg syncconf` on each side under 50,000 packets/s, with a file that changes the keepalive "
                    "and brings and takes another peer: none lost, none twice, no new handshake")
def test_syncconf_loop_loses_nothing(lab):
    p = Pair(lab)
    p.works()
    another = f"[Peer]\nPublicKey = {net.pubkey(net.genkey())}\nAllowedIPs = 10.99.0.0/16, fd99::/64\nEndpoint = 192.0.2.1:9\n"
    files = [(config(p, i, "same"), config(p, i, "more", 25, another)) for i in (0, 1)]
    first = p.ga.handshake_time(p.gb.public)
    pump = Pump(p, RATE)
    for n in range(RELOADS):
        for g, paths in zip(p.gateways, files):
            g.wg("syncconf", g.name, paths[n % 2])
    result = pump.finish()
    print(result)
    assert result.sent > RELOADS * 100
    assert result.lost == 0 and result.twice == 0, str(result)
    assert p.ga.handshake_time(p.gb.public) == first, "the session was not kept"


def change_psk(p):
    for _ in range(10):
        psk = net.genkey() + "\n"
        for g, other in ((p.ga, p.gb), (p.gb, p.ga)):
            g.wg("set", g.name, "peer", other.public, "preshared-key", "/dev/stdin", input=psk)


def change_endpoint(p):
    p.lab.address(p.b, "v1", "192.168.241.12/24")
    for endpoint in (f"192.168.241.12:{p.ports[1]}", p.outer(1, 6), p.outer(1)) * 3:
        p.ga.wg("set", p.ga.name, "peer", p.gb.public, "endpoint", endpoint)
        time.sleep(0.03)


def change_own_port(p):
    for n in range(10):
        p.ga.wg("set", p.ga.name, "listen-port", str(45000 + n))
        time.sleep(0.03)


def change_fwmark(p):
    for n in range(10):
        for g in p.gateways:
            g.wg("set", g.name, "fwmark", str(n % 3))


def change_mtu(p):
    for mtu in (1380, 1280, 1420, 8000) * 3:
        for g in p.gateways:
            net.run(g.ns, "ip", "link", "set", g.name, "mtu", mtu)


LOSSLESS = {f.__name__[7:]: f for f in (change_psk, change_endpoint, change_own_port, change_fwmark, change_mtu)}


@pytest.mark.report("in-place", asserts="preshared key, endpoint, own port, fwmark and MTU changed ten times each under 50,000 packets/s: none lost")
@pytest.mark.report("preshared-key", asserts="ten changes under 50,000 packets/s: none lost")
@pytest.mark.parametrize("what", LOSSLESS)
def test_change_loses_nothing(lab, what):
    p = Pair(lab)
    p.works()
    pump = Pump(p, RATE)
    time.sleep(0.2)
    LOSSLESS[what](p)
    time.sleep(0.2)
    result = pump.finish()
    print(what, result)
    assert result.lost == 0 and result.twice == 0, str(result)


def change_private_key(p):
    """The far side is told before and after; only a new session carries anything in between."""
    private = net.genkey()
    public = net.pubkey(private)
    p.gb.wg("set", p.gb.name, "peer", public, "endpoint", p.outer(0))
    began = time.monotonic()
    p.gb.wg("set", p.gb.name, "peer", p.ga.public, "remove", "peer", public, "allowed-ips", f"{p.inner4[0]}/32,{p.inner6[0]}/128")
    p.ga.wg("set", p.ga.name, "private-key", "/dev/stdin", input=private + "\n")
    return time.monotonic() - began


def change_far_port(p):
    """The near side learns the new port from the next packet that comes from it: at the latest from this one."""
    began = time.monotonic()
    p.gb.wg("set", p.gb.name, "listen-port", "45100")
    assert net.echo(p.b, p.inner4[0])
    return time.monotonic() - began


@pytest.mark.report("private-key", asserts="changed under 50,000 packets/s: one gap, no longer than the two commands and 0.2 s for the handshake")
@pytest.mark.parametrize("change", (change_private_key, change_far_port), ids=lambda f: f.__name__)
def test_change_loses_what_it_must(lab, change):
    p = Pair(lab)
    p.works()
    pump = Pump(p, RATE)
    time.sleep(0.2)
    seconds = change(p)
    time.sleep(0.5)
    result = pump.finish()
    print(change.__name__, seconds, result)
    assert result.lost <= (seconds + 0.2) * RATE, str(result)
    assert not result.gaps or result.gaps[-1][0] < 0.2 + seconds + 0.2, "still losing: " + str(result)
    assert result.twice == 0
