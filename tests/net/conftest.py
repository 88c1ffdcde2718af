"""Fixtures of the network tests. PENSTOCK names the binary under test (default build/penstock)."""
import os
import shlex
import subprocess

import pytest

import conformance
import engines
import lab as net

GET_WIREGUARD_GO = os.path.join(net.ROOT, "..", "shared", "measure", "get-wireguard-go")
QUIET = {"LOG_LEVEL": "error"}


def under_test(*options, engine=None):
    """The gateway under test. PENSTOCK_COMMAND replaces the whole call, to try the tests themselves on another."""
    command = os.environ.get("PENSTOCK_COMMAND")
    if command:
        return net.Program("penstock", shlex.split(command), QUIET)
    return net.penstock(*options, engine=engine)


def is_stand_in():
    return "PENSTOCK_COMMAND" in os.environ


_new = []


def wireguard_go_new():
    """The newest packaged wireguard-go; skips the test where it cannot be had."""
    if not _new:
        if not os.path.exists(GET_WIREGUARD_GO):
            _new.append((None, "wireguard-go-new: the script that fetches it is not beside this checkout"))
        else:
            done = subprocess.run([GET_WIREGUARD_GO, os.path.join(net.ROOT, "build", "peers")], capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, timeout=300)
            path = done.stdout.strip()
            _new.append((path, "") if done.returncode == 0 and os.access(path, os.X_OK) else
                        (None, f"wireguard-go-new: could not be fetched: {(done.stderr.strip() or 'no output').splitlines()[-1]}"))
    path, why = _new[0]
    if not path:
        pytest.skip(why)
    return net.Program("wireguard-go-new", [path, "-f"], QUIET)


def peer_program(name):
    if name == "penstock":
        return under_test()
    if name == "wireguard-go-new":
        return wireguard_go_new()
    return net.Program("wireguard-go-old", ["/usr/bin/wireguard-go", "-f"], QUIET)


PEERS = ("penstock", "wireguard-go-new", "wireguard-go-old")


def pytest_addoption(parser):
    parser.addoption("--conformance", metavar="FILE", help="write the table of scenarios and their results")
    parser.addoption("--engines", choices=engines.MODES, help="instead of all tests with the default engine: under every engine those "
                     "marked `engines` (core), with those marked `scenario` (all), or a few with several workers (few)")


def pytest_configure(config):
    net.guard_signals()
    if config.getoption("engines"):
        config.pluginmanager.register(engines.Matrix(config.getoption("engines")))
    if config.getoption("conformance"):
        config.pluginmanager.register(conformance.Conformance(config.getoption("conformance")))


def pytest_collection_modifyitems(config, items):
    if not config.getoption("engines"):
        items[:] = [item for item in items if not any(m.kwargs.get("alone") for m in item.iter_markers("engines"))]
    if not os.environ.get("PENSTOCK_LONG"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        for item in long:
            print(f"note: {item.path.stem}.{item.name}: only where PENSTOCK_LONG is set")
        items[:] = [item for item in items if item not in long]
    # What waits for the clock begins with the session and is looked at last.
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(autouse=True)
def engine(request):
    """The engine of this run of the test, of --engines; None without."""
    one = getattr(request, "param", None)
    if one is None:
        yield None
        return
    why = engines.refused_here(one)
    if why:
        pytest.skip(why)
    with net.using(one):
        yield one


@pytest.fixture
def lab():
    with net.Lab() as one:
        yield one
        for process in list(one.processes):
            one.stop(process)
        confessions = one.confessions()
    assert not confessions, confessions


class Pair:
    """Two namespaces on one veth, a gateway in each.

    Outside 192.168.241.1 and .2, fd00:241::1 and ::2; inside 10.241.0.1 and .2, fd41::1 and ::2.
    """

    outer4, outer6 = ("192.168.241.1", "192.168.241.2"), ("fd00:241::1", "fd00:241::2")
    inner4, inner6 = ("10.241.0.1", "10.241.0.2"), ("fd41::1", "fd41::2")
    ports = (51821, 51822)

    def __init__(self, lab, first=None, second=None, outer=4, psk=False, mtu=1420, link_mtu=1500, options=(),
                 keepalive=None, endpoints=(True, True), engine=None):
        self.lab = lab
        self.a, self.b = lab.namespace("a"), lab.namespace("b")
        lab.veth(self.a, "v0", self.b, "v1", link_mtu)
        for i, ns in enumerate((self.a, self.b)):
            lab.address(ns, f"v{i}", self.outer4[i] + "/24", self.outer6[i] + "/64")
        programs = (first or under_test(engine=engine), second or under_test(engine=engine))
        self.gateways = [net.Gateway(lab, ns, program, options if program.name == "penstock" else ())
                         for ns, program in zip((self.a, self.b), programs)]
        self.ga, self.gb = self.gateways
        self.psk = net.genkey() if psk else None
        for i, g in enumerate(self.gateways):
            g.up(self.inner4[i] + "/24", self.inner6[i] + "/64", port=self.ports[i], mtu=mtu)
        for i, g in enumerate(self.gateways):
            other = self.gateways[1 - i]
            g.peer(other.public, f"{self.inner4[1 - i]}/32,{self.inner6[1 - i]}/128",
                   self.outer(1 - i, outer) if endpoints[i] else None, self.psk, keepalive)

    def outer(self, i, family=4):
        return f"{self.outer4[i]}:{self.ports[i]}" if family == 4 else f"[{self.outer6[i]}]:{self.ports[i]}"

    def works(self, wait=10):
        """One echo each way and family."""
        assert net.first_ping(self.a, self.inner4[1], wait), "no echo over IPv4" + self.logs()
        assert net.first_ping(self.a, self.inner6[1], wait), "no echo over IPv6" + self.logs()
        assert net.first_ping(self.b, self.inner4[0], wait), "no echo back over IPv4" + self.logs()

    def logs(self):
        return "".join(f"\n--- {g.name} ({g.program.name}):\n{g.log()[-800:]}" for g in self.gateways)

    def healthy(self):
        for g in self.gateways:
            assert g.alive(), f"{g.name} ended with status {g.process.returncode}\n{g.log()[-2000:]}"


@pytest.fixture
def pair(lab):
    return Pair(lab)
