"""Which worker gets which packet, and in what order they leave: eBPF steering, as the workers' counters show it."""
import contextlib
import os
import subprocess
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test
from engines import must_run
from lab import Engine
from pump import keeps_order

pytestmark = pytest.mark.skipif(is_stand_in(), reason="workers are penstock's own")
MANY_CLIENTS = os.path.join(net.ROOT, "build", "tests", "net", "many_clients")
STEERED = ("channels", "uring")  # engines whose workers have sockets of their own


def is_steered(g):
    return "no steering programs" not in g.log()


@contextlib.contextmanager
def counted(g, what="rx_packets"):
    """Yields a list that has, afterwards, what each worker of g counted meanwhile."""
    out = []
    before = [w[what] for w in g.workers()]
    yield out
    time.sleep(0.1)
    out += [w[what] - b for w, b in zip(g.workers(), before)]


# ---- Sessions


@pytest.mark.parametrize("steer", ("index", "flow"))
@pytest.mark.parametrize("name", STEERED)
def test_roaming_client_keeps_its_worker(lab, name, steer):
    """By index: whatever the client's address and port. By flow it changes workers: else this test would show nothing."""
    p = Pair(lab, second=under_test(engine=must_run(Engine(name, 4, steer))))
    p.works()
    assert is_steered(p.gb), p.gb.log()
    assert len(p.gb.workers()) == 4
    old = p.outer4[0]
    with counted(p.gb) as got:
        for i in range(8):
            new, port = f"192.168.241.{50 + i}", 46000 + i
            net.run(p.a, "ip", "addr", "del", old + "/24", "dev", "v0")
            lab.address(p.a, "v0", new + "/24")
            p.ga.wg("set", p.ga.name, "listen-port", str(port))
            assert net.first_ping(p.a, p.inner4[1])
            assert net.flood(p.a, p.inner4[1], 50) >= 45
            assert p.gb.endpoint(p.ga.public) == f"{new}:{port}"
            old = new
    print(got)
    assert sum(got) >= 360
    if steer == "index":
        assert sum(n > 0 for n in got) == 1, f"the client went from worker to worker: {got}"
    else:
        assert sum(n > 0 for n in got) > 1, f"the kernel's hash never changed: {got}"


class Clients:
    """Many clients in one namespace, without an interface for each; their gateway is in another."""

    def __init__(self, lab, n, program):
        a, b = lab.namespace("a"), lab.namespace("b")
        lab.veth(a, "v0", b, "v1")
        lab.address(a, "v0", "10.77.0.2/24")
        lab.address(b, "v1", "10.77.0.1/24")
        for ns in (a, b):
            for which in ("all", "default"):
                lab.sysctl(ns, f"net/ipv4/conf/{which}/rp_filter", 0)
        net.run(a, "ip", "route", "add", "local", "10.78.0.0/16", "dev", "lo")
        net.run(b, "ip", "route", "add", "10.78.0.0/16", "via", "10.77.0.2")
        self.gateway = net.Gateway(lab, b, program).up("10.127.0.1/24", port=51820)
        self.program = lab.start(a, MANY_CLIENTS, "10.77.0.1", 51820, net.hexkey(self.gateway.public), n, "10.127.0.1",
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        lines = []
        for _ in range(n):
            key, inner = self.program.stdout.readline().split()
            lines += [f"public_key={key}", f"allowed_ip={inner}/32"]
        assert self.gateway.configure(*lines) == 0

    def tell(self, *words):
        self.program.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.program.stdin.flush()
        return self.program.stdout.readline()


@pytest.mark.parametrize("workers", (2, 4))
@pytest.mark.parametrize("name", STEERED)
def test_thousand_peers_spread(lab, name, workers):
    """Real handshakes of 1,000 peers, then eight packets of each: no worker has 15 % more or less than its share."""
    clients = Clients(lab, 1000, under_test(engine=must_run(Engine(name, workers))))
    g = clients.gateway
    assert clients.tell("meet") == "met\n", g.log()
    assert is_steered(g), g.log()
    # 1,000 packets at a time, slowly enough that none is lost.
    with counted(g) as got:
        for _ in range(8):
            assert clients.tell("send", 1000) == "sent\n"
            time.sleep(0.05)
    print(got)
    assert sum(got) > 7000, f"{got}: {g.drops()}"
    even = sum(got) / workers
    assert all(abs(n - even) <= 0.15 * even for n in got), got


# ---- One peer


@pytest.mark.parametrize("steer", ("rr", "index"))
@pytest.mark.parametrize("workers", (2, 4))
@pytest.mark.parametrize("name", STEERED)
def test_single_fast_peer(lab, name, workers, steer):
    """In turn all workers carry one peer's flow, and it leaves in order. By index one of them does."""
    one = must_run(Engine(name, workers, steer))
    p = Pair(lab, second=under_test(engine=one))
    lab.keep_order(p.b, "v1")
    p.works()
    assert is_steered(p.gb), p.gb.log()
    with counted(p.gb) as got:
        keeps_order(p, one)
    print(got)
    if steer == "rr":
        assert all(n > sum(got) / workers / 2 for n in got), f"not all workers carry it: {got}"
    else:
        assert sorted(got)[-2] == 0, f"one session went to several workers: {got}"


def test_each_inner_flow_has_one_queue(lab):
    """The TUN's side: many flows to one peer are spread over the workers, each stays with one."""
    p = Pair(lab, first=under_test(engine=Engine("channels", 2)))
    p.works()
    assert is_steered(p.ga), p.ga.log()

    def send(port, n):
        s = lab.socket(p.a)
        for _ in range(n):
            s.sendto(bytes(100), (p.inner4[1], port))
            time.sleep(0.001)

    with counted(p.ga, "tx_packets") as all_of_them:
        for i in range(64):
            send(20000 + i, 10)
    assert min(all_of_them) > sum(all_of_them) / 5, f"64 flows: {all_of_them}"
    for i in range(3):
        with counted(p.ga, "tx_packets") as one:
            send(30000 + i, 100)
        assert max(one) >= 100 and min(one) <= 5, f"one flow: {one}"


ORDERED = [Engine("queue", 4), Engine("blocking", 4), Engine("epoll", 4), Engine("channels", 4, "rr"), Engine("uring", 4, "rr")]


@pytest.mark.parametrize("engine_", ORDERED, ids=str)
def test_order_with_four_workers(lab, engine_):
    """Both gateways, with trains; with two workers test_core asks the same of small packets."""
    p = Pair(lab, engine=must_run(engine_))
    lab.keep_order(p.b, "v1")
    p.works()
    keeps_order(p, engine_, 1300)
