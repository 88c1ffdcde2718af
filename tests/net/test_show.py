"""What wg(8) and `penstock gateway --status` show of a gateway with many peers, and what showing it costs the others."""
import base64
import contextlib
import hashlib
import re
import subprocess
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test


def peer_key(i):
    """A public key that nobody has the private one of."""
    return base64.b64encode(hashlib.sha256(str(i).encode()).digest()).decode()


def add_many(g, n):
    """n peers in 10.64.0.0/10."""
    lines = []
    for i in range(n):
        lines += [f"public_key={net.hexkey(peer_key(i))}", f"allowed_ip=10.{64 + (i >> 16)}.{i >> 8 & 255}.{i & 255}/32"]
    assert "errno=0\n" in g.ask("set=1\n" + "\n".join(lines) + "\n\n", timeout=60)


def penstock_status(g, *args, check=True):
    return net.run(g.ns, net.penstock_path(), "gateway", "--status", g.name, *args, check=check)


def drops_of_peers(text):
    """{key: {reason: count}}, in the order of the lines."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"    (\S{43}=) +(\d+) ((?: \w+=\d+)+)", line)
        if match:
            reasons = dict((word.split("=")[0], int(word.split("=")[1])) for word in match.group(3).split())
            assert int(match.group(2)) == sum(reasons.values()), line
            found[match.group(1)] = reasons
    return found


@pytest.mark.skipif(is_stand_in(), reason="another program under test has no drop reasons to show")
def test_drop_reasons_of_peers(lab):
    """Counted per peer, shown by --status with the peers that have most of them; wg(8) reads on over the lines that it does not know."""
    a = lab.namespace("a")
    g = net.Gateway(lab, a, under_test()).up("10.64.255.1/10", port=41999)
    add_many(g, 14)
    before = g.wg("show", g.name, "dump").stdout
    conf = g.wg("showconf", g.name).stdout
    s = lab.socket(a)
    for i in range(12):
        for _ in range(i + 1):
            # The peer has no endpoint.
            with contextlib.suppress(OSError):
                s.sendto(b"x", (f"10.64.0.{i}", 9))

    def counted():
        return "drop_no_endpoint=12\n" in g.ask("get=1\n\n")

    net.wait_until(counted, 10, message="packets for a peer without an endpoint are not counted")
    text = penstock_status(g).stdout
    top = drops_of_peers(text)
    assert list(top) == [peer_key(i) for i in range(11, 1, -1)], text
    assert [d["no_endpoint"] for d in top.values()] == list(range(12, 2, -1)), text
    total = re.search(r"^    no_endpoint +(\d+)  \w", text, re.M)
    assert total and int(total.group(1)) == sum(range(13)), text

    text = penstock_status(g, "--peer", peer_key(0)).stdout
    assert f"peer: {peer_key(0)}\n" in text and re.search(r"^    no_endpoint +1  \w", text, re.M), text
    assert "none" in penstock_status(g, "--peer", peer_key(13)).stdout
    done = penstock_status(g, "--peer", peer_key(99), check=False)
    assert done.returncode == 1 and peer_key(99) in done.stderr and not done.stdout

    # wg(8) shows what it showed before; traffic is none, since nothing was sent.
    assert g.wg("show", g.name, "dump").stdout == before
    assert g.wg("showconf", g.name).stdout == conf
    assert f"peer: {peer_key(11)}" in g.wg("show", g.name).stdout
    path = lab.file("again.conf", conf)
    g.wg("syncconf", g.name, path)
    assert g.wg("showconf", g.name).stdout == conf


def test_show_of_twenty_thousand_under_a_stream(lab):
    """wg show of 20,000 peers again and again: a stream loses nothing, and a handshake of another peer succeeds meanwhile."""
    p = Pair(lab)
    p.works()
    add_many(p.gb, 20000)
    streams = [net.UdpStream(lab, p.a, p.b, p.inner4[1], 2000), net.UdpStream(lab, p.b, p.a, p.inner6[0], 2000)]
    newcomer = net.Gateway(lab, p.a, under_test()).up("10.250.0.1/24")
    p.gb.peer(newcomer.public, "10.250.0.1/32")
    newcomer.peer(p.gb.public, p.inner4[1] + "/32", p.outer(1))
    shows = [lab.start(p.b, "sh", "-c", f"for i in 1 2 3 4; do wg show {p.gb.name} dump | wc -l; done",
                       stdout=subprocess.PIPE) for _ in range(2)]
    began = time.time() - 1
    # The first packet asks for a handshake.
    with contextlib.suppress(OSError):
        net.run(p.a, "ping", "-c", 1, "-W", 1, "-I", newcomer.name, p.inner4[1], check=False)
    net.wait_until(lambda: newcomer.handshake_time(p.gb.public) >= int(began), 10, message="no handshake while peers are shown")
    for process in shows:
        out, _ = process.communicate(timeout=60)
        assert out.split() == [str(20000 + 3).encode()] * 4
    for s in streams:
        sent, lost = s.finish()
        assert sent > 1000 and lost == 0, f"{lost} of {sent} datagrams lost while peers were shown"


@pytest.mark.memory
def test_clients_that_read_slowly(lab):
    """Thirty clients that have asked for 20,000 peers and take a byte now and then: others are answered at once, and what is
    kept for them is bounded (their replies would be 200 MB)."""
    g = net.Gateway(lab, lab.namespace("a"), under_test())
    add_many(g, 20000)
    assert g.ask("get=1\n\n", timeout=30).count("public_key=") == 20000
    before = g.resident_kib()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(g.connect(30)) for _ in range(30)]
        for s in slow:
            s.sendall(b"get=1\n\n")
        for _ in range(5):
            for s in slow:
                assert len(s.recv(1)) == 1
            assert g.ask("get=1\n\n", timeout=30).count("public_key=") == 20000
            time.sleep(0.2)
        assert g.resident_kib() - before < 30 * 256
        # They read on and get the rest, with peers gone meanwhile.
        assert g.configure("replace_peers=true") == 0
        for s in slow:
            text = b""
            while not text.endswith(b"errno=0\n\n"):
                part = s.recv(1 << 20)
                assert part, "hung up in the middle of a reply"
                text += part
            assert 0 < text.count(b"public_key=") < 20000
    assert g.show("peers") == []


@pytest.mark.memory
def test_memory_goes_back(lab):
    """What 30,000 peers and the request that made them took is given back some seconds after they are removed."""
    g = net.Gateway(lab, lab.namespace("a"), under_test())
    before = g.resident_kib()
    add_many(g, 30000)
    with_peers = g.resident_kib()
    assert with_peers - before > 10 * 1024
    assert g.configure("replace_peers=true") == 0
    net.wait_until(lambda: g.resident_kib() - before < (with_peers - before) / 2, 15,
                   message=f"{before} KiB before, {with_peers} with peers, {g.resident_kib()} long after")
