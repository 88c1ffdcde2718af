"""Engines that cannot be had, options that make no sense, and what becomes of a gateway whose descriptors are taken away.

That every engine does its work: test_core.py and engines.py. Which worker gets what: test_steering.py.
"""
import contextlib
import json
import os
import re
import subprocess

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test
from engines import must_run
from lab import Engine
from test_start import IFF_MULTI_QUEUE, IFF_VNET_HDR, penstock, start_unprivileged

pytestmark = pytest.mark.skipif(is_stand_in(), reason="engines are penstock's own")
MIB = 1 << 20
REFUSE = os.path.join(net.ROOT, "build", "tests", "net", "refuse_calls")
# Without these nobody may load programs for the kernel.
NO_BPF = ["setpriv", "--bounding-set", "-bpf,-sys_admin,-perfmon", "--inh-caps", "-bpf,-sys_admin,-perfmon"]

BAD_OPTIONS = {
    "unknown engine": ("--engine", ["--engine", "steam"]),
    "engine empty": ("--engine", ["--engine", ""]),
    "engine in capitals": ("--engine", ["--engine", "EPOLL"]),
    "unknown steer mode": ("--steer", ["--engine", "channels", "--workers", "2", "--steer", "west"]),
    "steer mode empty": ("--steer", ["--engine", "channels", "--workers", "2", "--steer", ""]),
    "steer with one worker": ("--steer", ["--engine", "channels", "--workers", "1", "--steer", "rr"]),
    "steer epoll": ("--steer", ["--engine", "epoll", "--workers", "2", "--steer", "index"]),
    "steer blocking": ("--steer", ["--engine", "blocking", "--workers", "2", "--steer", "rr"]),
    "steer queue": ("--steer", ["--engine", "queue", "--workers", "2", "--steer", "rr"]),
    "sqpoll with epoll": ("--sqpoll", ["--engine", "epoll", "--sqpoll", "10"]),
    "sqpoll with auto": ("--sqpoll", ["--sqpoll", "10"]),
    "sqpoll with queue": ("--sqpoll", ["--engine", "queue", "--sqpoll", "10"]),
    "status and workers": ("--workers", ["--status", "--workers", "2"]),
    **{f"workers {v!r}": ("--workers", ["--workers", v]) for v in ("0", "65", "-1", "x", "", "2x", "1.5", "0x2", " 2", "99999999999999999999")},
    **{f"sqpoll {v!r}": ("--sqpoll", ["--engine", "uring", "--sqpoll", v]) for v in ("0", "-1", "x", "", "5ms", "99999999999")},
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options(name):
    option, args = BAD_OPTIONS[name]
    done = penstock("gateway", *args, "wgx0")
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, f"not one line: {done.stderr!r}"
    assert option in done.stderr and not done.stdout, done


def lines_with(g, *words):
    return [line for line in g.log().splitlines() if all(w in line.lower() for w in words)]


def taken(g, starts=1):
    """The engine that a gateway says it took, and the line in which it does: there is one for each start."""
    net.wait_until(lambda: lines_with(g, "offloads: "), 5)
    lines = lines_with(g, "interface ", "engine ")
    assert len(lines) == starts, g.log()
    return re.search(r"engine (\w+)", lines[-1]).group(1), lines[-1]


def carries(p):
    p.works()
    net.tcp_transfer(p.lab, p.a, p.b, p.inner4[1], 4 * MIB)
    net.tcp_transfer(p.lab, p.b, p.a, p.inner6[0], 4 * MIB)
    p.healthy()


def wrapped(wrapper, *options, engine=None):
    """The gateway, started by another program."""
    program = under_test(*options, engine=engine)
    return net.Program("penstock", [*wrapper, *program.argv])


def refusing(error, *calls):
    return [REFUSE, error, ",".join(calls)]


# ---- More workers than cores


@pytest.mark.parametrize("name", ("queue", "blocking", "epoll", "channels", "uring"))
def test_more_workers_than_cores(lab, name):
    one = must_run(Engine(name, os.cpu_count() + 3))
    p = Pair(lab, first=under_test(engine=one))
    carries(p)
    warnings = lines_with(p.ga, "workers on ", " core")
    assert len(warnings) == 1, p.ga.log()


def test_no_warning_without_need(lab):
    p = Pair(lab, first=under_test(engine=Engine("epoll", 1)))
    assert not lines_with(p.ga, "workers on"), p.ga.log()


# ---- A kernel or container without


@pytest.mark.parametrize("error,text", (("EPERM", "Operation not permitted"), ("ENOSYS", "Function not implemented")))
@pytest.mark.parametrize("workers", (1, 2))
def test_auto_without_io_uring(lab, error, text, workers):
    """Another engine is taken; one line says which, and why it is not the one that would be taken otherwise."""
    plain = net.Gateway(lab, lab.namespace("c"), under_test(engine=Engine("auto", workers)))
    usual, _ = taken(plain)
    p = Pair(lab, first=wrapped(refusing(error, "io_uring_setup"), engine=Engine("auto", workers)))
    carries(p)
    name, line = taken(p.ga)
    assert name != "uring", line
    if usual == "uring":
        assert "uring" in line and text in line, line
    else:
        assert name == usual


@pytest.mark.parametrize("error,text", (("EPERM", "Operation not permitted"), ("ENOSYS", "Function not implemented")))
@pytest.mark.parametrize("options", ((), ("--workers", "2"), ("--sqpoll", "10")), ids=lambda o: "".join(o) or "one")
def test_uring_without_io_uring(lab, error, text, options):
    """What was asked for by name is not replaced by another."""
    ns, name = lab.namespace("a"), lab.ifname()
    with net.inside(ns):
        done = subprocess.run([*refusing(error, "io_uring_setup"), net.penstock_path(), "gateway", "--engine", "uring", *options, name],
                              capture_output=True, text=True, check=False, timeout=20, stdin=subprocess.DEVNULL)
    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if "workers on " not in line]
    assert len(lines) == 1 and "uring" in lines[0] and text in lines[0], done.stderr
    assert net.run(ns, "ip", "link", "show", name, check=False).returncode != 0
    assert not os.path.exists(os.path.join(net.CONFIG_DIR, name + ".sock"))


@pytest.mark.parametrize("steer,how", (("index", "EPERM"), ("flow", "ENOSYS"), ("rr", "no CAP_BPF"), ("index", "no CAP_BPF")))
@pytest.mark.parametrize("name", ("channels", "uring"))
def test_without_bpf(lab, name, steer, how):
    """Several workers go on; one line says that and how packets are spread instead."""
    one = must_run(Engine(name, 2, steer))
    wrapper = NO_BPF if how == "no CAP_BPF" else refusing(how, "bpf")
    p = Pair(lab, first=wrapped(wrapper, engine=one))
    carries(p)
    lines = lines_with(p.ga, "steering")
    assert len(lines) == 1, p.ga.log()
    if how == "no CAP_BPF":
        assert "CAP_BPF" in lines[0], lines
    assert len(p.ga.workers()) == 2
    p.ga.wg("set", p.ga.name, "listen-port", "46001")
    carries(p)


def test_several_workers_without_bpf_share_the_work(lab):
    """Of many peers, that is: 64 come from addresses of their own."""
    from test_steering import Clients, counted  # pylint: disable=import-outside-toplevel

    clients = Clients(lab, 64, wrapped(NO_BPF, engine=Engine("channels", 2)))
    assert clients.tell("meet") == "met\n"
    with counted(clients.gateway) as got:
        assert clients.tell("send", 640) == "sent\n"
    assert sum(got) > 600 and min(got) > 60, got


# ---- A TUN of somebody else's


GIVEN_TUNS = {"plain": 0, "vnet": IFF_VNET_HDR, "multi-queue": IFF_VNET_HDR | IFF_MULTI_QUEUE}


@pytest.mark.parametrize("name,kind", (("queue", "plain"), ("queue", "vnet"), ("blocking", "plain"), ("epoll", "vnet"),
                                       ("channels", "vnet"), ("channels", "multi-queue"), ("uring", "plain"), ("uring", "multi-queue")))
def test_given_tun_and_two_workers(lab, name, kind):
    """Without privilege there are no more queues: those who want one for each worker make do with one, and say so. The baseline
    takes no superframes, nor what tells of them."""
    one, flags = must_run(Engine(name, 2)), GIVEN_TUNS[kind]
    p = Pair(lab)
    if name == "queue" and flags:
        with net.using(one), pytest.raises((AssertionError, OSError)):
            start_unprivileged(lab, p.ga, flags)
        assert p.ga.process.wait(5) == 1
        assert len(lines_with(p.ga, "engine queue: expected a tun without iff_vnet_hdr")) == 1, p.ga.log()
        return
    with net.using(one):
        start_unprivileged(lab, p.ga, flags)
    p.ga.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
    p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
    carries(p)
    assert len(lines_with(p.ga, "no more queues")) == (name in ("channels", "uring")), p.ga.log()
    assert taken(p.ga, 2)[0] == name


# ---- Descriptors go away


TWO_WORKERS = [Engine(n, 2) for n in ("queue", "blocking", "epoll", "channels", "uring")]


@pytest.mark.parametrize("engine_", TWO_WORKERS, ids=str)
def test_sockets_destroyed(lab, engine_):
    """`ss -K`, which an administrator may use: each socket reports an error once, and works on or is replaced."""
    p = Pair(lab, first=under_test(engine=must_run(engine_)))
    carries(p)
    for _ in range(3):
        done = net.run(p.a, "ss", "-HKuan", f"sport = :{p.ports[0]}", check=False)
        if f":{p.ports[0]}" not in done.stdout:
            pytest.skip(f"this kernel destroys no sockets: {(done.stderr or 'nothing said').strip()[:100]}")
        carries(p)
    assert p.ga.port() == p.ports[0]


# ---- Nothing stays

SOMEBODY = 61234  # a user of its own makes programs that can be told from others'
CAPABILITIES = ",".join("+" + c for c in ("net_admin", "net_raw", "net_bind_service", "bpf", "perfmon", "sys_admin", "dac_override", "setpcap"))
AS_SOMEBODY = ["setpriv", f"--reuid={SOMEBODY}", "--keep-groups", "--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES]


def programs():
    """Somebody's programs in the kernel, as bpftool shows them; skips where it does not."""
    done = net.run(None, "bpftool", "-j", "prog", "list", check=False)
    if done.returncode:
        pytest.skip(f"bpftool lists no programs here: {done.stderr.strip()[:100]}")
    return [one for one in json.loads(done.stdout) if one.get("uid") == SOMEBODY]


def maps_left(ids):
    done = net.run(None, "bpftool", "-j", "map", "list")
    return ids & {one["id"] for one in json.loads(done.stdout)}


def interfaces(ns):
    return sorted(line.split()[0] for line in net.run(ns, "ip", "-br", "link").stdout.splitlines())


class SomebodysGateway(net.Gateway):
    def wg(self, *args, check=True, input=None):
        """It listens to its own user only."""
        return net.run(self.ns, *AS_SOMEBODY, "wg", *args, check=check, input=input)


class Restarted:
    """A gateway that is started again and again; the maps that it had."""

    def __init__(self, lab, engine):
        self.lab, self.ns = lab, lab.namespace("a")
        self.links = interfaces(self.ns)
        self.gateway = SomebodysGateway(lab, self.ns, wrapped(AS_SOMEBODY, engine=engine), start=False)
        self.maps = set()

    def start(self):
        g = self.gateway
        g.start()
        g.up("10.1.0.1/24", port=41001)
        net.wait_until(lambda: lines_with(g, "up, listening"), 5)
        self.maps |= {n for one in programs() for n in one.get("map_ids", ())}

    def end(self, is_killed):
        g = self.gateway
        if is_killed:
            g.process.kill()
            g.process.wait()
            self.lab.processes.remove(g.process)
        else:
            assert g.stop() == 0, g.log()[-500:]
        net.wait_until(lambda: not net._pids_in(self.ns), 5, message="a process is left")
        # Killed it leaves its socket, and so it does in root's folder; when it was root, test_core looks at this.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(g.socket_path)
        net.wait_until(lambda: interfaces(self.ns) == self.links, 5, message="an interface is left")
        os.unlink(g.log_path)


RESTARTED = [Engine("queue", 2), Engine("blocking", 2), Engine("channels", 4, "index"), Engine("channels", 2, "rr"), Engine("uring", 2),
             Engine("uring", 1, sqpoll=5)]


@pytest.mark.parametrize("engine_", RESTARTED, ids=str)
def test_many_restarts_leave_nothing(lab, engine_):
    """Ended by SIGTERM and by SIGKILL: no process, interface, program or map is left."""
    r = Restarted(lab, must_run(engine_))
    for i in range(10):
        r.start()
        if engine_.name == "channels":
            assert any("steer" in one["name"] for one in programs()), programs()
        r.end(is_killed=i % 3 == 2)
    # The kernel frees them some time after the last reference went.
    net.wait_until(lambda: not programs(), 10, 0.2, "programs are left")
    net.wait_until(lambda: not maps_left(r.maps), 10, 0.2, "maps are left")


@pytest.mark.parametrize("engine_", RESTARTED, ids=str)
def test_port_changes_leave_no_descriptor(lab, engine_):
    r = Restarted(lab, must_run(engine_))
    r.start()
    g = r.gateway
    n = g.descriptors()
    for i in range(10):
        g.wg("set", g.name, "listen-port", str(41002 + i))
        net.run(g.ns, "ip", "link", "set", g.name, "down")
        net.run(g.ns, "ip", "link", "set", g.name, "up")
    # Down and up in quick succession may be seen as one.
    net.wait_until(lambda: g.log().rstrip().endswith("up, listening on port 41011"), 5, message="it is not up again")
    net.wait_until(lambda: g.descriptors() == n, 5, message=f"other than {n} descriptors")
    r.end(is_killed=False)
