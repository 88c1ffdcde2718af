"""wg(8) and the configuration socket: what operators and programs send, right and wrong."""
import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test

MIB = 1 << 20


@pytest.fixture
def gateway(lab):
    """One gateway without a peer, down."""
    return net.Gateway(lab, lab.namespace("a"), under_test())


def keys(n):
    """n distinct public keys; nobody has the private ones."""
    return [net.pubkey(net.genkey()) for _ in range(n)]


def config_of(g, peers=()):
    text = f"[Interface]\nPrivateKey = {g.private}\nListenPort = 41820\n"
    for public, allowed in peers:
        text += f"\n[Peer]\nPublicKey = {public}\nAllowedIPs = {allowed}\n"
    return text


def blocks(text):
    """The sections of a configuration file, in no order; the prefixes of a peer in none either."""
    def line(text):
        key, _, value = text.partition(" = ")
        return key, sorted(value.split(", "))

    return sorted([line(one) for one in block.strip().splitlines()] for block in text.split("\n\n"))


def test_set_and_show(gateway):
    g, (other,) = gateway, keys(1)
    psk = net.genkey()
    g.wg("set", g.name, "private-key", "/dev/stdin", "listen-port", "41821", "fwmark", "0x2a", input=g.private + "\n")
    g.peer(other, "10.9.0.0/24,fd09::/64", "192.0.2.7:777", psk, 25)
    assert g.wg("show", g.name, "public-key").stdout.strip() == g.public
    assert g.wg("show", g.name, "private-key").stdout.strip() == g.private
    assert g.port() == 41821
    assert g.wg("show", g.name, "fwmark").stdout.strip() == "0x2a"
    assert g.show("endpoints") == [[other, "192.0.2.7:777"]]
    assert g.show("preshared-keys") == [[other, psk]]
    assert g.show("persistent-keepalive") == [[other, "25"]]
    assert sorted(g.show("allowed-ips")[0][1].split()) == ["10.9.0.0/24", "fd09::/64"]
    assert g.show("latest-handshakes") == [[other, "0"]]
    assert g.transfer(other) == (0, 0)
    text = g.wg("show", g.name).stdout
    assert f"interface: {g.name}" in text and "every 25 seconds" in text and g.private not in text


@pytest.mark.scenario("K25", asserts="30 peers, each with an IPv4 and an IPv6 prefix, set from a file: showconf lists all "
                      "with both; its output set again gives the same")
def test_k25_setconf_showconf_round_trip(lab, gateway):
    g, others = gateway, keys(30)
    peers = [(k, f"10.{i}.0.0/16, fd00:{i + 1}::/32") for i, k in enumerate(others)]
    g.wg("setconf", g.name, lab.file("a.conf", config_of(g, peers)))
    shown = g.wg("showconf", g.name).stdout
    assert shown.count("[Peer]") == 30
    for i, key in enumerate(others):
        (block,) = [b for b in shown.split("[Peer]") if key in b]
        assert f"10.{i}.0.0/16" in block and f"fd00:{i + 1}::/32" in block
    g.wg("setconf", g.name, lab.file("b.conf", shown))
    assert blocks(g.wg("showconf", g.name).stdout) == blocks(shown)
    # A file without peers, port and key takes all of them away.
    g.wg("setconf", g.name, lab.file("c.conf", "[Interface]\n"))
    assert g.show("peers") == []
    assert g.wg("show", g.name, "private-key").stdout.strip() == "(none)"


def test_addconf_and_remove(lab, gateway):
    g, (one, two) = gateway, keys(2)
    g.wg("setconf", g.name, lab.file("a.conf", config_of(g, [(one, "10.1.0.0/16")])))
    g.wg("addconf", g.name, lab.file("b.conf", f"[Peer]\nPublicKey = {two}\nAllowedIPs = 10.2.0.0/16\n"))
    assert sorted(p[0] for p in g.show("peers")) == sorted([one, two])
    g.wg("set", g.name, "peer", one, "remove")
    assert [p[0] for p in g.show("peers")] == [two]
    g.wg("set", g.name, "peer", one, "remove")  # once more does no harm
    assert [p[0] for p in g.show("peers")] == [two]


def test_syncconf_under_a_stream_loses_nothing(lab):
    p = Pair(lab)
    p.works()
    files = []
    for i, g in enumerate(p.gateways):
        other = p.gateways[1 - i]
        files.append(lab.file(f"{i}.conf", f"[Interface]\nPrivateKey = {g.private}\nListenPort = {p.ports[i]}\n[Peer]\n"
                              f"PublicKey = {other.public}\nAllowedIPs = {p.inner4[1 - i]}/32, {p.inner6[1 - i]}/128\n"
                              f"Endpoint = {p.outer(1 - i)}\n"))
    first = p.ga.handshake_time(p.gb.public)
    streams = [net.UdpStream(lab, p.a, p.b, p.inner4[1], 1000), net.UdpStream(lab, p.b, p.a, p.inner6[0], 1000)]
    for _ in range(10):
        for g, path in zip(p.gateways, files):
            g.wg("syncconf", g.name, path)
        time.sleep(0.2)
    for s in streams:
        sent, lost = s.finish()
        assert sent > 1000 and lost == 0, s.story()
    assert p.ga.handshake_time(p.gb.public) == first, "the session was not kept"


@pytest.mark.parametrize("engine", ["epoll", "channels", "blocking", "uring"])
def test_destroyed_sockets_are_replaced(lab, engine):
    """Whoever does it may go on: then no more than once a second, all of them together."""
    def bound():
        return net.run(gateway.ns, "ss", "-uanH", "sport", "=", f":{port}").stdout.count(f":{port} ")

    try:
        gateway = net.Gateway(lab, lab.namespace("a"), under_test(), ["--engine", engine, "--workers", "2"])
    except net.LabError as e:
        if engine == "uring":
            pytest.skip(str(e))
        raise
    gateway.up()
    net.wait_until(lambda: "listening on port" in gateway.log(), 5, message="it does not come up")
    port, start = gateway.show("listen-port")[0][0], time.monotonic()
    before = bound()
    assert before >= 2
    for _ in range(10):
        if not net.run(gateway.ns, "ss", "-K", "-u", "-a", "-H", "sport", "=", f":{port}", check=False).stdout.strip() \
                and "opening port" not in gateway.log():
            pytest.skip("this kernel cannot destroy sockets")
        time.sleep(0.1)
    net.wait_until(lambda: bound() == before, 5, message="the port is not open again")
    assert gateway.show("listen-port") == [[port]]
    times = gateway.log().count("opening port")
    assert 1 <= times <= time.monotonic() - start + 1, gateway.log()


@pytest.mark.report("in-place", asserts="keepalive, port and private key set again on a live peer: handshake time as before, "
                    "counters not smaller, echoes answered")
def test_set_on_a_live_peer_keeps_session_and_counters(lab):
    p = Pair(lab)
    p.works()
    first, before = p.ga.handshake_time(p.gb.public), p.ga.transfer(p.gb.public)
    p.ga.wg("set", p.ga.name, "peer", p.gb.public, "persistent-keepalive", "21")
    p.ga.wg("set", p.ga.name, "listen-port", str(p.ports[0]))
    p.ga.wg("set", p.ga.name, "private-key", "/dev/stdin", input=p.ga.private + "\n")
    after = p.ga.transfer(p.gb.public)
    assert p.ga.handshake_time(p.gb.public) == first
    assert after[0] >= before[0] > 0 and after[1] >= before[1] > 0
    assert net.ping(p.a, p.inner4[1]) == 3


def test_remove_stops_traffic_and_adding_restores_it(lab):
    p = Pair(lab)
    p.works()
    p.ga.wg("set", p.ga.name, "peer", p.gb.public, "remove")
    assert net.ping(p.a, p.inner4[1], count=2, wait=1) == 0
    assert p.ga.show("peers") == []
    p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
    p.works()


@pytest.mark.report("removed", asserts="peer removed and added ten times under 2,000 packets/s: the process lives, the "
                    "tunnel works again")
def test_peer_removed_under_traffic(lab):
    p = Pair(lab)
    p.works()
    stream = net.UdpStream(lab, p.a, p.b, p.inner4[1], 2000, size=1200)
    for _ in range(10):
        p.ga.wg("set", p.ga.name, "peer", p.gb.public, "remove")
        time.sleep(0.03)
        p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
        time.sleep(0.05)
    stream.finish()
    p.healthy()
    p.works(15)


def test_preshared_key_change_on_a_live_peer(lab):
    p = Pair(lab)
    p.works()
    psk = net.genkey()
    stream = net.UdpStream(lab, p.a, p.b, p.inner4[1], 500)
    for g, other in ((p.ga, p.gb), (p.gb, p.ga)):
        g.wg("set", g.name, "peer", other.public, "preshared-key", "/dev/stdin", input=psk + "\n")
    time.sleep(0.5)
    sent, lost = stream.finish()
    assert lost == 0, stream.story()


@pytest.mark.report("allowed-ip-moves", asserts="the last peer has the prefix, the first keeps its other one; the log names "
                    "the one that moved")
def test_allowed_ip_moves_to_the_last_peer(gateway):
    g, (one, two) = gateway, keys(2)
    g.peer(one, "10.1.0.0/16,10.2.0.0/16")
    g.peer(two, "10.2.0.0/16")
    shown = dict((f[0], f[1]) for f in g.show("allowed-ips"))
    assert shown == {one: "10.1.0.0/16", two: "10.2.0.0/16"}
    net.wait_until(lambda: "10.2.0.0/16 moved" in g.log(), 3, message="no warning in the log: " + g.log())
    assert "10.1.0.0/16" not in g.log()


@pytest.mark.scenario("K23", asserts="one peer with 255 x 256 prefixes of each family: the line has 130,561 different fields",
                      kernel="set with wg(8); here by the configuration socket, since a command line is too short")
def test_k23_very_long_list(gateway):
    g, (one,) = gateway, keys(1)
    many = [f"allowed_ip={a}.{b}.1.0/24" for a in range(1, 256) for b in range(256)]
    many += [f"allowed_ip=fd{a:02x}:{b:x}::/32" for a in range(1, 256) for b in range(256)]
    assert g.configure(f"public_key={net.hexkey(one)}", *many) == 0
    (fields,) = [line.split() for line in g.wg("show", g.name, "allowed-ips").stdout.splitlines()]
    assert fields[0] == one and len(set(fields)) == len(fields) == 255 * 256 * 2 + 1


@pytest.mark.scenario("K24", asserts="40 peers with 52 prefixes: 40 lines of 53 fields")
def test_k24_answer_cut_between_peers(gateway):
    g = gateway
    lines = []
    for i, key in enumerate(keys(40)):
        lines += [f"public_key={net.hexkey(key)}"] + [f"allowed_ip=10.{i}.{j}.0/24" for j in range(52)]
    assert g.configure(*lines) == 0
    fields = [len(line.split()) for line in g.wg("show", g.name, "allowed-ips").stdout.splitlines()]
    assert fields == [53] * 40


@pytest.mark.scenario("K26", asserts="(none) for the first peer, 197 fields for the second, in this order")
def test_k26_peer_without_prefixes(gateway):
    g, (one, two) = gateway, keys(2)
    g.wg("set", g.name, "peer", one)
    g.peer(two, ",".join(f"abcd::{i:x}/128" for i in range(1, 198)))
    shown = g.show("allowed-ips")
    assert shown[0] == [one, "(none)"]
    assert shown[1][0] == two and len(shown[1][1].split()) == 197


@pytest.mark.scenario("K27", asserts="of 394 prefixes six are removed (first, middle, last of both families): exactly the "
                      "other 388 stay",
                      kernel="by wg(8); the one here is too old for the leading minus, so the configuration socket is "
                      "spoken to")
def test_k27_prefixes_taken_away_one_by_one(gateway):
    g, (one,) = gateway, keys(1)
    v4 = [f"10.0.{i}.0/24" for i in range(197)]
    v6 = [f"fd00:{i:x}::/64" for i in range(1, 198)]
    assert g.configure(f"public_key={net.hexkey(one)}", *[f"allowed_ip={a}" for a in v4 + v6]) == 0
    gone = [v4[0], v4[98], v4[196], v6[0], v6[98], v6[196]]
    assert g.configure(f"public_key={net.hexkey(one)}", *[f"allowed_ip=-{a}" for a in gone]) == 0
    left = g.show("allowed-ips")[0][1].split()
    assert sorted(left) == sorted(set(v4 + v6) - set(gone)) and len(left) == 388


@pytest.mark.scenario("K28", asserts="wg show of it fails")
def test_k28_unknown_interface(gateway):
    assert gateway.wg("show", "nosuchif0", check=False).returncode != 0


@pytest.mark.scenario("K29", asserts="private and preshared key are shown as set; (none) after /dev/null was read for both")
def test_k29_keys_cleared_from_an_empty_file(gateway):
    g, (one,) = gateway, keys(1)
    psk = net.genkey()
    g.wg("set", g.name, "private-key", "/dev/stdin", input=g.private + "\n")
    g.peer(one, "10.0.0.0/8", psk=psk)
    assert g.wg("show", g.name, "private-key").stdout.strip() == g.private
    assert g.show("preshared-keys") == [[one, psk]]
    g.wg("set", g.name, "private-key", "/dev/null", "peer", one, "preshared-key", "/dev/null")
    assert g.wg("show", g.name, "private-key").stdout.strip() == "(none)"
    assert g.show("preshared-keys") == [[one, "(none)"]]


@pytest.mark.scenario("K30", asserts="a peer goes when its key becomes the interface's own; adding it again does nothing and "
                      "is no error; it may be added when the key has changed")
def test_k30_own_key_as_peer(gateway):
    g = gateway
    g.peer(g.public, "10.0.0.0/8")
    assert [f[0] for f in g.show("peers")] == [g.public]
    g.wg("set", g.name, "private-key", "/dev/stdin", input=g.private + "\n")
    assert g.wg("show", g.name, "public-key").stdout.strip() == g.public
    assert g.show("peers") == []
    g.peer(g.public, "10.0.0.0/8")
    assert g.show("peers") == []
    g.wg("set", g.name, "private-key", "/dev/stdin", input=net.genkey() + "\n")
    g.peer(g.public, "10.0.0.0/8")
    assert [f[0] for f in g.show("peers")] == [g.public]


@pytest.mark.scenario("K31", asserts="a key set with / as first character is shown with + and is otherwise the same")
def test_k31_private_key_is_clamped(gateway):
    g = gateway
    g.wg("set", g.name, "private-key", "/dev/stdin", input="/" + g.private[1:] + "\n")
    assert g.wg("show", g.name, "private-key").stdout.strip() == "+" + g.private[1:]


CHAINS = (["0.0.0.0/0", "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"],
          ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/10", "10.0.0.0/12", "10.0.0.0/16"],
          ["::/0", "1700::/111", "5000::/4", "e000::/37", "9000::/75"],
          ["::/0", "ff00::/111", "f000::/4", "ff00::/37", "ff00::/75"])


@pytest.mark.scenario("K32", asserts="prefix lengths 0, 8, 10, 12, 16 and 0, 111, 4, 37, 75, apart and nested, replaced by "
                      "the first alone, by none, by all in reverse order: each time exactly what was set is "
                      "shown")
def test_k32_nested_prefixes_replaced(gateway):
    g, (one,) = gateway, keys(1)
    for chain in CHAINS:
        for allowed in (",".join(chain), chain[0], "", ",".join(reversed(chain)), chain[-1]):
            g.peer(one, allowed)
            shown = g.show("allowed-ips")[0][1]
            wanted = sorted(a for a in allowed.split(",") if a)
            assert sorted(shown.replace("(none)", "").split()) == wanted


@pytest.mark.scenario("K32", asserts="memory grows by less than 512 KiB in 4,000 such replacements",
                      kernel="kmemleak would tell of a leak")
@pytest.mark.memory
def test_k32_nested_prefixes_leak_nothing(gateway):
    g = gateway

    def replace(n):
        for i in range(n):
            for chain in CHAINS:
                for allowed in (chain, chain[:1]):
                    assert g.configure("public_key=" + "ab" * 32, "replace_allowed_ips=true", *[f"allowed_ip={a}" for a in allowed]) == 0

    replace(20)
    before = g.resident_kib()
    replace(500)
    assert g.resident_kib() < before + 512


def test_endpoint_of_either_family(gateway):
    g, (one, two) = gateway, keys(2)
    g.peer(one, "", "[2001:db8::1]:51820")
    g.peer(two, "", "192.0.2.1:1")
    assert dict((f[0], f[1]) for f in g.show("endpoints")) == {one: "[2001:db8::1]:51820", two: "192.0.2.1:1"}


# ---- Bad requests: one errno, nothing changed, service goes on.

PEER = "public_key=" + "ab" * 32

BAD_LINES = {
    "unknown key": ["frobnicate=1"],
    "no equals sign": ["listen_port"],
    "private key too short": ["private_key=abcd"],
    "private key too long": ["private_key=" + "ab" * 33],
    "private key no hex": ["private_key=" + "zz" * 32],
    "port too large": ["listen_port=65536"],
    "port negative": ["listen_port=-1"],
    "port no number": ["listen_port=http"],
    "port with rest": ["listen_port=80x"],
    "port empty": ["listen_port="],
    "fwmark no number": ["fwmark=red"],
    "fwmark too large": ["fwmark=4294967296"],
    "replace_peers not true": ["replace_peers=maybe"],
    "public key short": ["public_key=00"],
    "peer line without a peer": ["allowed_ip=10.0.0.0/8"],
    "prefix v4 too long": [PEER, "allowed_ip=10.0.0.0/33"],
    "prefix v6 too long": [PEER, "allowed_ip=fd00::/129"],
    "prefix negative": [PEER, "allowed_ip=10.0.0.0/-1"],
    "prefix empty": [PEER, "allowed_ip=10.0.0.0/"],
    "address nonsense": [PEER, "allowed_ip=ten/8"],
    "endpoint no port": [PEER, "endpoint=192.0.2.1"],
    "endpoint bad port": [PEER, "endpoint=192.0.2.1:70000"],
    "endpoint name": [PEER, "endpoint=example.com:51820"],
    "endpoint v6 without brackets": [PEER, "endpoint=fd00::1:51820"],
    "keepalive too large": [PEER, "persistent_keepalive_interval=65536"],
    "keepalive negative": [PEER, "persistent_keepalive_interval=-1"],
    "psk short": [PEER, "preshared_key=00"],
    "remove not true": [PEER, "remove=perhaps"],
    "protocol version": [PEER, "protocol_version=2"],
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line_changes_nothing(gateway, name):
    g, (one,) = gateway, keys(1)
    g.wg("set", g.name, "private-key", "/dev/stdin", "listen-port", "41822", input=g.private + "\n")
    g.peer(one, "10.7.0.0/16", "192.0.2.1:5", keepalive=5)
    before = g.ask("get=1\n\n")
    # What stands before the bad line is good, and must not come into force.
    bad = BAD_LINES[name]
    lines = ["listen_port=41823"]
    if bad[0] == PEER:
        lines += [f"public_key={'cd' * 32}", "allowed_ip=10.8.0.0/16"]
    lines += bad
    code = g.configure(*lines)
    assert code != 0, f"{lines} was accepted"
    assert g.ask("get=1\n\n") == before
    assert g.alive()


def test_bad_line_is_named_in_the_log(gateway):
    g = gateway
    secret = "ef" * 31
    assert g.configure("listen_port=99999") != 0
    assert g.configure(f"private_key={secret}") != 0
    net.wait_until(lambda: "listen_port" in g.log() and "private_key" in g.log(), 3, message="the log names no key: " + g.log())
    assert secret not in g.log(), "a secret is in the log"


@pytest.mark.report("all-or-nothing", asserts="a wrong prefix in peer 500: an error, `get` answers as before, the log names "
                    "the line and not the keys")
def test_error_late_in_a_large_set_changes_nothing(gateway):
    g, (one,) = gateway, keys(1)
    g.peer(one, "10.0.0.0/8")
    before = g.ask("get=1\n\n")
    lines = ["replace_peers=true"]
    for i in range(1000):
        lines += [f"public_key={i + 9:064x}", "allowed_ip=10.%d.%d.0/24" % (i >> 8, i & 255) if i != 500 else "allowed_ip=bad"]
    assert g.configure(*lines) != 0
    assert g.ask("get=1\n\n") == before
    net.wait_until(lambda: "line 1004: allowed_ip" in g.log(), 3, message="the log does not name the line: " + g.log())


@pytest.mark.parametrize("text", [b"\n", b"hello\n\n", b"get=2\n\n", b"set=1\nset=1\n\n", b"get=1\nlisten_port=5\n\n", b"\0\0\0\0\n\n",
                                  b"set=1\nprivate_key=\0\n\n", b"=\n\n", bytes(range(256)) + b"\n\n"],
                         ids=("empty", "word", "get2", "set-twice", "get-with-line", "nul", "nul-key", "equals", "binary"))
def test_nonsense_request(gateway, text):
    g = gateway
    with g.connect(3) as s, contextlib.suppress(OSError):
        s.sendall(text)
        s.shutdown(socket.SHUT_WR)
        answer = s.recv(65536)
        assert not answer or re.search(rb"errno=-?[1-9]", answer) or text.startswith(b"get=1"), answer
    assert "errno=0" in g.ask("get=1\n\n")


def test_half_a_request(gateway):
    g = gateway
    before = g.ask("get=1\n\n")
    with g.connect() as s:
        s.sendall(b"set=1\nlisten_port=4182")
        assert "errno=0" in g.ask("get=1\n\n"), "a half request holds up others"
    assert g.ask("get=1\n\n") == before


@pytest.mark.memory
def test_endless_line(gateway):
    g = gateway
    with g.connect(5) as s, contextlib.suppress(OSError):
        s.sendall(b"set=1\nprivate_key=")
        for _ in range(256):
            s.sendall(b"a" * 65536)
    assert "errno=0" in g.ask("get=1\n\n")
    assert g.resident_kib() < 400 * 1024


def test_a_hundred_clients_and_one_that_never_reads(lab):
    p = Pair(lab)
    p.works()
    g = p.ga
    lines = []
    for i in range(5000):
        lines += [f"public_key={i + 9:064x}", f"allowed_ip=10.9.{i >> 8}.{i & 255}/32"]
    assert g.configure(*lines) == 0
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(g.connect())
        deaf.sendall(b"get=1\n\n")
        idle = []
        for _ in range(100):
            try:
                idle.append(stack.enter_context(g.connect(1)))
            except OSError:
                break  # refused or queued: in order, as long as service goes on
        for s in idle[:50]:
            with contextlib.suppress(OSError):
                s.sendall(b"get=1\n\n")
        assert net.ping(p.a, p.inner4[1], 10, 0.05) == 10, "the tunnel waits for a client"
    # Room again once they have gone.
    net.wait_until(lambda: _answers(g), 10, 0.2, "no service after a hundred clients")
    p.healthy()


def _answers(g):
    try:
        return "errno=0" in g.ask("get=1\n\n", 3)
    except OSError:
        return False


def test_parallel_sets_and_gets(gateway):
    g = gateway
    wrong = []

    def work(n):
        for i in range(30):
            if g.configure(f"public_key={n * 1000 + i + 9:064x}", f"allowed_ip=10.{n}.{i}.0/24") or "errno=0" not in g.ask("get=1\n\n", 20):
                wrong.append((n, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(g.show("peers")) == 240


# ---- The socket itself


def test_socket_is_private(gateway):
    mode = os.stat(gateway.socket_path).st_mode
    assert stat.S_ISSOCK(mode) and not mode & 0o077


def test_socket_refuses_other_users(gateway):
    """Even where the file's mode would let them in: `get` tells keys."""
    g = gateway
    g.wg("set", g.name, "private-key", "/dev/stdin", input=g.private + "\n")
    os.chmod(g.socket_path, 0o666)
    os.chmod(os.path.dirname(g.socket_path), 0o755)
    script = ("import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.settimeout(3)\ns.connect(sys.argv[1])\n"
              "s.sendall(b'get=1\\n\\n')\nsys.stdout.buffer.write(s.recv(65536))\n")
    done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", script,
                           g.socket_path], capture_output=True, text=True, check=False)
    assert "private_key" not in done.stdout and "PermissionError" not in done.stderr
    assert "private_key" in g.ask("get=1\n\n")


def test_no_descriptor_is_leaked(lab):
    p = Pair(lab)
    p.works()
    g = p.ga
    before = g.descriptors()
    for i in range(200):
        g.ask("get=1\n\n")
        if i % 10 == 0:
            g.configure(f"public_key={i + 9:064x}", "endpoint=192.0.2.1:9")
            g.wg("set", g.name, "listen-port", str(42000 + i))
            g.configure("bad=1")
    g.wg("set", g.name, "listen-port", str(p.ports[0]))
    for _ in range(5):
        net.run(p.a, "ip", "link", "set", g.name, "down")
        net.run(p.a, "ip", "link", "set", g.name, "up")
    time.sleep(0.3)
    assert g.descriptors() <= before + 1
    p.works(15)


def test_listen_port_in_use(lab):
    p = Pair(lab)
    p.works()
    taken = lab.socket(p.a)
    taken.bind(("0.0.0.0", 43000))
    assert p.ga.configure("listen_port=43000") != 0
    p.works()
    assert p.ga.port() == p.ports[0]


def test_up_while_the_port_is_taken(lab):
    """No sockets, but the rest of the configuration goes on; another port opens them."""
    p = Pair(lab)
    p.works()
    g, (one,) = p.ga, keys(1)
    net.run(p.a, "ip", "link", "set", g.name, "down")
    taken = lab.socket(p.a)

    def take():
        with contextlib.suppress(OSError):
            taken.bind(("0.0.0.0", p.ports[0]))
        return taken.getsockname()[1]

    net.wait_until(take, 5, message="the gateway keeps its port while it is down")
    net.run(p.a, "ip", "link", "set", g.name, "up")
    net.wait_until(lambda: "cannot open UDP port" in g.log(), 5, message="no word of the taken port: " + g.log())
    g.peer(one, "10.9.0.0/24", "192.0.2.7:777", keepalive=25)
    assert one in [f[0] for f in g.show("peers")]
    g.wg("set", g.name, "peer", one, "remove")
    assert [f[0] for f in g.show("peers")] == [p.gb.public]
    assert net.ping(p.a, p.inner4[1], 1, wait=1) == 0, "it sends through sockets that cannot be there"
    # A taken port that is asked for is still an error.
    other = lab.socket(p.a)
    other.bind(("0.0.0.0", 43100))
    assert g.configure("listen_port=43100") != 0
    g.wg("set", g.name, "listen-port", "43101")
    assert g.port() == 43101
    p.works()
    assert p.gb.endpoint(g.public) == f"{p.outer4[0]}:43101"


@pytest.mark.skipif(is_stand_in(), reason="the helper process is penstock's own")
def test_helper_is_killed(lab):
    """It is missed where a privilege is needed, and nowhere else."""
    p = Pair(lab)
    p.works()
    g = p.ga
    os.kill(g.helper(), signal.SIGKILL)
    net.wait_until(lambda: "helper process died" in g.log(), 5, message="nothing in the log: " + g.log())
    assert net.ping(p.a, p.inner4[1], 10, 0.05) == 10
    assert g.configure("listen_port=43102") == 0
    assert g.port() == 43102
    p.works()
    assert p.gb.endpoint(g.public) == f"{p.outer4[0]}:43102"
    assert g.configure("listen_port=53") != 0, "a port that needs a privilege"
    assert g.port() == 43102
    p.works()
    assert g.log().count("helper process died") == 1
    p.healthy()


def test_listen_port_change_under_traffic(lab):
    p = Pair(lab)
    p.works()
    p.ga.wg("set", p.ga.name, "listen-port", "43001")
    assert net.first_ping(p.a, p.inner4[1])
    assert p.gb.endpoint(p.ga.public) == f"{p.outer4[0]}:43001"


def test_port_zero_picks_one(gateway):
    g = gateway
    g.up(port=0)
    assert 1024 <= g.port() <= 65535


@pytest.mark.parametrize("number", ("TERM", "INT"))
def test_signal_leaves_nothing(lab, gateway, number):
    g = gateway
    g.up("10.5.0.1/24", port=41900)
    net.run(None, "kill", f"-{number}", g.process.pid)
    assert g.process.wait(5) in (0, -15, -2, 143, 130)
    assert not os.path.exists(g.socket_path)
    assert net.run(g.ns, "ip", "link", "show", g.name, check=False).returncode != 0


def test_starts_after_kill_9(lab, gateway):
    """A socket file that a dead gateway left behind is no obstacle."""
    g = gateway
    g.process.kill()
    g.process.wait()
    assert os.path.exists(g.socket_path)
    g.start()
    net.wait_until(lambda: _answers(g), 5, message="no service")


@pytest.mark.report("removed", asserts="interface deleted under 2,000 packets/s: the process ends with status 0 and takes "
                    "its socket file along")
def test_interface_deleted_under_traffic(lab):
    p = Pair(lab)
    p.works()
    stream = net.UdpStream(lab, p.a, p.b, p.inner4[1], 2000)
    time.sleep(0.2)
    net.run(p.a, "ip", "link", "del", p.ga.name)
    assert p.ga.process.wait(10) == 0
    assert not os.path.exists(p.ga.socket_path)
    stream.finish()
    assert p.gb.alive()


@pytest.mark.report("removed", asserts="gateway ended under 2,000 packets/s: status 0, no interface, no socket file; started "
                    "again, it carries the stream on")
def test_gateway_ended_under_traffic(lab):
    p = Pair(lab)
    p.works()
    stream = net.UdpStream(lab, p.b, p.a, p.inner4[0], 2000)
    time.sleep(0.2)
    assert p.ga.stop() == 0
    assert not os.path.exists(p.ga.socket_path)
    assert net.run(p.a, "ip", "link", "show", p.ga.name, check=False).returncode != 0
    stream.finish()
    p.ga.start()
    p.ga.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
    p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
    p.works(15)
