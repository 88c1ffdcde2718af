"""Interoperation: penstock with itself and with gateways that we did not write.

Each row of the matrix: the side that speaks first, the outer family, with and without a preshared
key; inside always both families, streams both ways compared by digest, datagrams of many sizes.
The matrix that ran is written to build/interop-matrix.md.
"""
import contextlib
import os
import threading
import time

import pytest

import lab as net
from conftest import PEERS, Pair, peer_program, under_test

MIB = 1 << 20
ROWS = []


@pytest.fixture(scope="module", autouse=True)
def matrix():
    yield
    if not ROWS:
        return
    lines = [f"Under test: {' '.join(under_test().argv)}; {time.strftime('%Y-%m-%d %H:%M')}", "",
             "| peer | first packet from | outer | preshared key | inner IPv4, IPv6: echo, 50 + 20 MiB TCP, UDP sizes |",
             "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in ROWS]
    path = os.path.join(net.ROOT, "build", "interop-matrix.md")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    passed = sum(row[-1] == "passed" for row in ROWS)
    print(f"\nnote: interop matrix, {passed} of {len(ROWS)} rows passed: {path}")
    print("\n".join("note: " + line for line in lines))


@contextlib.contextmanager
def row(*columns):
    """Notes how a row went, whatever happens in it."""
    try:
        yield
        ROWS.append((*columns, "passed"))
    except pytest.skip.Exception:
        ROWS.append((*columns, "skipped"))
        raise
    except BaseException:
        ROWS.append((*columns, "FAILED"))
        raise


@pytest.mark.parametrize("psk", (False, True), ids=("plain", "psk"))
@pytest.mark.parametrize("outer", (4, 6), ids=("outer4", "outer6"))
@pytest.mark.parametrize("first", ("penstock", "peer"), ids=("we-begin", "peer-begins"))
@pytest.mark.parametrize("peer", PEERS)
def test_matrix(lab, peer, first, outer, psk):
    with row(peer, "penstock" if first == "penstock" else peer, f"IPv{outer}", "yes" if psk else "no"):
        we_begin = first == "penstock"
        # Only the side that begins knows where the other is.
        p = Pair(lab, under_test(), peer_program(peer), outer, psk, endpoints=(we_begin, not we_begin))
        ns, target = (p.a, p.inner4[1]) if we_begin else (p.b, p.inner4[0])
        assert net.first_ping(ns, target), "no handshake" + p.logs()
        assert p.ga.handshake_time(p.gb.public) and p.gb.handshake_time(p.ga.public)
        for inner in (p.inner4, p.inner6):
            assert net.ping(p.a, inner[1]) == 3 and net.ping(p.b, inner[0]) == 3
            net.tcp_transfer(lab, p.a, p.b, inner[1], 50 * MIB)
            net.tcp_transfer(lab, p.b, p.a, inner[0], 20 * MIB)
            net.udp_sizes(lab, p.a, p.b, inner[1])
        assert p.ga.endpoint(p.gb.public) == p.outer(1, outer)
        assert p.gb.endpoint(p.ga.public) == p.outer(0, outer)
        p.healthy()


def test_wrong_preshared_key_gives_no_session(lab):
    p = Pair(lab, psk=True)
    p.gb.wg("set", p.gb.name, "peer", p.ga.public, "preshared-key", "/dev/stdin", input=net.genkey() + "\n")
    assert net.ping(p.a, p.inner4[1], count=2, wait=2) == 0
    assert p.ga.handshake_time(p.gb.public) == 0
    p.gb.wg("set", p.gb.name, "peer", p.ga.public, "preshared-key", "/dev/stdin", input=p.psk + "\n")
    assert net.first_ping(p.a, p.inner4[1], 12)


# ---- Rekeying takes 120 s: it runs beside all other tests.


class LongRun:
    """A pair under a thin stream of datagrams, for as long as the session needs."""

    SECONDS = 135

    def __init__(self, lab, peer):
        self.pair = Pair(lab, under_test(), peer_program(peer), psk=True)
        self.pair.works()
        self.began = time.monotonic()
        self.first = self.pair.ga.handshake_time(self.pair.gb.public)
        p = self.pair
        self.streams = [net.UdpStream(lab, p.a, p.b, p.inner4[1], pps=20), net.UdpStream(lab, p.b, p.a, p.inner6[0], pps=20)]

    def wait(self):
        time.sleep(max(0, self.began + self.SECONDS - time.monotonic()))


@pytest.fixture(scope="session", autouse=True)
def long_runs(request):
    """Started before the first test, when one will ask for them."""
    wanted = [item for item in request.session.items if item.name.startswith("test_rekey[")]
    runs, labs = {}, []
    lock = threading.Lock()
    try:
        for item in wanted:
            peer = item.callspec.params["peer"]
            one = net.Lab()
            labs.append(one)
            try:
                runs[peer] = LongRun(one, peer)
            except pytest.skip.Exception as e:
                runs[peer] = e
            except (net.LabError, AssertionError) as e:
                runs[peer] = e
        with lock:
            yield runs
    finally:
        for one in labs:
            one.close()


@pytest.mark.last
@pytest.mark.parametrize("peer", PEERS)
def test_rekey(long_runs, peer):
    """After 120 s a new handshake, and no datagram lost over it."""
    run = long_runs[peer]
    if isinstance(run, BaseException):
        raise run
    run.wait()
    p = run.pair
    latest = p.ga.handshake_time(p.gb.public)
    assert latest - run.first >= 110, f"no new handshake in {run.SECONDS} s" + p.logs()
    for stream in run.streams:
        sent, lost = stream.finish()
        assert sent > 20 * 100
        assert lost <= sent // 1000, f"{lost} of {sent} datagrams lost over a rekey"
    assert p.ga.log().count("panic") == 0
    p.healthy()
