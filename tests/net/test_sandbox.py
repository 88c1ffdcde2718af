"""What is left to the gateway and its helper after the start, and that everything still works with it.

All gateways here end at the first system call that has no comment (lab.penstock): a change that
works shows that its calls are listed.
"""
import contextlib
import os
import signal
import socket
import struct
import threading

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test

pytestmark = pytest.mark.skipif(is_stand_in(), reason="the sandbox is penstock's own")

CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN = 10, 12, 13, 21
HELPER_CAPS = {CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN}
CAP_FIELDS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def status_of(pid, tid=None):
    """/proc/PID/status, or a thread's, as a dict."""
    path = f"/proc/{pid}/task/{tid}/status" if tid else f"/proc/{pid}/status"
    with open(path, encoding="ascii", errors="replace") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


def threads_of(pid):
    return [int(t) for t in os.listdir(f"/proc/{pid}/task")]


def caps(status, field):
    return {n for n in range(64) if int(status[field], 16) >> n & 1}


def has_filter():
    """Not in a build with a sanitizer: it says so and goes on."""
    with net.Lab() as one:
        g = net.Gateway(one, one.namespace("f"), under_test())
        g.ask("get=1\n\n")  # answered only after the start
        return "system calls are not limited" not in g.log()


@pytest.fixture(scope="module")
def filtered():
    if not has_filter():
        pytest.skip("this build has no filter (a sanitizer)")


# ---- What is left


def test_every_thread_is_confined(lab, filtered):
    p = Pair(lab)
    p.works()
    pid = p.ga.process.pid
    tids = threads_of(pid)
    assert len(tids) >= 3, "control, handshakes, data"
    for tid in tids:
        s = status_of(pid, tid)
        assert s["Seccomp"] == "2", s["Name"]
        assert s["NoNewPrivs"] == "1", s["Name"]
        assert all(not caps(s, field) for field in CAP_FIELDS), s["Name"]


def test_helper_keeps_little(lab, filtered):
    p = Pair(lab)
    s = status_of(p.ga.helper())
    assert s["Seccomp"] == "2" and s["NoNewPrivs"] == "1"
    for field in ("CapPrm", "CapEff", "CapBnd"):
        assert caps(s, field) == HELPER_CAPS, field
    assert not caps(s, "CapInh") and not caps(s, "CapAmb")


def test_off(lab):
    """No filter, but no capabilities either."""
    g = net.Gateway(lab, lab.namespace("a"), under_test(), ["--sandbox", "off"])
    g.ask("get=1\n\n")  # answered only after the start
    for pid in (g.process.pid, g.helper()):
        s = status_of(pid)
        assert s["Seccomp"] == "0" and s["NoNewPrivs"] == "1"
    assert not caps(status_of(g.process.pid), "CapEff")
    assert "system calls" not in g.log()


def test_strict_is_the_default(lab, filtered):
    ns, name = lab.namespace("a"), lab.ifname()
    log = os.path.join(lab.tmp, "default.log")
    process = lab.start(ns, net.penstock_path(), "gateway", name, log=log)
    path = os.path.join(net.CONFIG_DIR, name + ".sock")
    net.wait_until(lambda: os.path.exists(path) and status_of(process.pid)["Seccomp"] == "2", 10,
                   message="no filter without an option")
    lab.stop(process)
    with open(log, encoding="utf-8") as f:
        assert "system calls" not in f.read()


def test_filter_that_cannot_be_installed(lab, filtered):
    """Somebody outside forbids seccomp(2): one warning, and the gateway works."""
    p = Pair(lab)
    p.works()
    g = p.ga
    g.stop()
    g.program = net.Program("penstock", ["/usr/bin/python3", "-c", FORBID_SECCOMP, *g.program.argv], g.program.env)
    g.start()
    g.ask("get=1\n\n")  # answered only after the start
    assert [line for line in g.log().splitlines() if "system calls are not limited" in line and "capabilities are dropped" in line]
    assert g.log().count("system calls are not limited") == 1
    assert not caps(status_of(g.process.pid), "CapEff")
    g.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
    g.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
    p.works()


# A classic BPF program that says EPERM to seccomp(2), and becomes what is named on its command line.
FORBID_SECCOMP = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
code = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 6, 0, 0, 0x50001, 6, 0, 0, 0x7fff0000)
text = ctypes.create_string_buffer(code, len(code))
program = struct.pack("@HP", 4, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
if libc.prctl(22, 2, program, 0, 0):
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
"""


# ---- Everything that can be changed later


def test_listen_ports(lab):
    p = Pair(lab)
    p.works()
    for port in (43210, 53, 0, p.ports[0]):  # free, below 1024, any
        p.ga.wg("set", p.ga.name, "listen-port", str(port))
        assert p.ga.port() == port or port == 0
        p.works(15)
    p.healthy()


def test_fwmark(lab):
    p = Pair(lab)
    p.works()
    for mark in ("0x2a", "0", "0xffffffff"):
        p.ga.wg("set", p.ga.name, "fwmark", mark)
        assert p.ga.wg("show", p.ga.name, "fwmark").stdout.strip() in (mark, "off")
        p.works()
    p.healthy()


def test_mtu_and_state(lab):
    p = Pair(lab)
    for mtu in (1280, 9000, 1420):
        net.run(p.a, "ip", "link", "set", p.ga.name, "mtu", str(mtu))
        p.works()
    for _ in range(3):
        net.run(p.a, "ip", "link", "set", p.ga.name, "down")
        net.run(p.a, "ip", "link", "set", p.ga.name, "up")
    for family, route in (("-4", "10.241.0.0/24"), ("-6", "fd41::/64")):
        net.wait_until(lambda: route in net.run(p.a, "ip", family, "route").stdout, 5,
                       message=f"the route {route} has not come back with the interface")
    p.works(15)
    p.healthy()


def test_keys_and_peers(lab):
    p = Pair(lab, psk=True)
    p.works()
    g = p.ga
    private = net.genkey()
    g.wg("set", g.name, "private-key", "/dev/stdin", input=private + "\n")
    p.gb.wg("set", p.gb.name, "peer", g.public, "remove")
    p.gb.peer(net.pubkey(private), f"{p.inner4[0]}/32,{p.inner6[0]}/128", p.outer(0), p.psk)
    p.works(15)
    other = net.genkey()
    g.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", psk=other)
    p.gb.peer(net.pubkey(private), f"{p.inner4[0]}/32,{p.inner6[0]}/128", psk=other)
    p.works(15)
    g.wg("set", g.name, "peer", p.gb.public, "endpoint", p.outer(1, 6))
    p.works()
    assert g.configure(*(line for i in range(2000)
                         for line in (f"public_key={i + 9:064x}", f"allowed_ip=10.{i >> 8}.{i & 255}.0/24"))) == 0
    assert len(g.show("peers")) == 2001
    assert g.configure("replace_peers=true") == 0
    p.healthy()


@pytest.mark.parametrize("options", (["--aead", "openssl"], ["--no-offload", "vnet,csum,tso,uso,udp-gso,udp-gro"],
                                     ["--no-offload", "udp-gso,uso"], ["--log-level", "debug"], ["--log-level", "error"]),
                         ids=" ".join)
def test_options(lab, options):
    p = Pair(lab, options=options)
    p.works()
    net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 10 << 20)
    net.udp_sizes(lab, p.a, p.b, p.inner6[1], (0, 1, 1372, 9000))
    p.healthy()
    assert p.ga.stop() in (0, -signal.SIGTERM)


def test_interface_in_another_namespace(lab):
    """The helper follows; without it the gateway may look at home only, and goes on."""
    p = Pair(lab)
    p.works()
    inner = lab.namespace("i")
    g = p.ga
    g.move_to(inner)
    lab.address(inner, g.name, p.inner4[0] + "/24", p.inner6[0] + "/64")
    net.run(inner, "ip", "link", "set", g.name, "up")
    assert net.first_ping(inner, p.inner4[1])
    net.run(inner, "ip", "link", "set", g.name, "mtu", "1300")
    net.run(inner, "ip", "link", "set", g.name, "down")
    net.run(inner, "ip", "link", "set", g.name, "up")
    assert net.first_ping(inner, p.inner4[1])
    os.kill(g.helper(), signal.SIGKILL)
    net.wait_until(lambda: "helper process died" in g.log(), 5)
    g.move_to(p.a)
    lab.address(p.a, g.name, p.inner4[0] + "/24", p.inner6[0] + "/64")
    net.run(p.a, "ip", "link", "set", g.name, "up")
    assert net.first_ping(p.a, p.inner4[1]), "home needs no helper"
    g.move_to(inner)
    net.wait_until(lambda: "cannot be followed" in g.log(), 5, message="no word of the lost interface: " + g.log())
    p.healthy()
    assert "errno=0" in g.ask("get=1\n\n")


def test_without_the_helper(lab):
    p = Pair(lab)
    p.works()
    g = p.ga
    os.kill(g.helper(), signal.SIGKILL)
    net.wait_until(lambda: "helper process died" in g.log(), 5)
    g.wg("set", g.name, "listen-port", "43211")
    p.works(15)
    assert g.configure("fwmark=42") != 0
    net.run(p.a, "ip", "link", "set", g.name, "mtu", "1300")
    net.run(p.a, "ip", "link", "set", g.name, "down")
    net.run(p.a, "ip", "link", "set", g.name, "up")
    p.works(15)
    # Nobody has this address: the answer is written by the gateway itself.
    net.ping(p.a, "10.241.0.77", 1, wait=1)
    p.healthy()
    assert g.stop() in (0, -signal.SIGTERM)


def test_helper_that_hangs_is_killed_at_the_end(lab):
    """The one process that the gateway may kill."""
    g = net.Gateway(lab, lab.namespace("a"), under_test())
    helper = g.helper()
    os.kill(helper, signal.SIGSTOP)
    try:
        assert g.stop() in (0, -signal.SIGTERM)
        assert not os.path.exists(f"/proc/{helper}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)


def test_stopped_and_continued(lab):
    """Calls that a signal interrupts are made again by the kernel, under another number."""
    p = Pair(lab)
    p.works()
    for process in (p.ga.process.pid, p.ga.helper()):
        for _ in range(3):
            os.kill(process, signal.SIGSTOP)
            net.wait_until(lambda: status_of(process)["State"].startswith("T"), 5)
            os.kill(process, signal.SIGCONT)
    p.works()
    p.ga.wg("set", p.ga.name, "listen-port", "43212")
    p.works(15)
    p.healthy()


# ---- The configuration file again


def conf(g, peer, endpoint, port=42111):
    return (f"[Interface]\nPrivateKey = {g}\nListenPort = {port}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.0.0.0/8\n"
            f"Endpoint = {endpoint}\n")


def reload(lab, g, private, peer, endpoint, port):
    lab.file("g.conf", conf(private, peer, endpoint, port))
    n = g.log().count("read again")
    g.process.send_signal(signal.SIGHUP)
    net.wait_until(lambda: not g.alive() or g.log().count("read again") > n, 15, message="not read again: " + g.log())
    assert g.alive(), f"ended with status {g.process.returncode}: {g.log()}"


def configured(lab, ns, program=None):
    private, peer = net.genkey(), net.pubkey(net.genkey())
    path = lab.file("g.conf", conf(private, peer, "localhost:51820"))
    g = net.Gateway(lab, ns, program or under_test(), ["--config", path])
    return g, private, peer


def test_reload(lab):
    ns = lab.namespace("a")
    g, private, peer = configured(lab, ns)
    assert g.endpoint(peer) in ("127.0.0.1:51820", "[::1]:51820")
    net.run(ns, "ip", "link", "set", g.name, "up")
    reload(lab, g, private, peer, "localhost:51821", 42112)
    assert g.endpoint(peer) in ("127.0.0.1:51821", "[::1]:51821") and g.port() == 42112
    reload(lab, g, private, peer, "[fd00::7]:51822", 42113)
    assert g.endpoint(peer) == "[fd00::7]:51822"
    # A file that is wrong, or missing, changes nothing.
    lab.file("g.conf", "[Nowhere]\n")
    g.process.send_signal(signal.SIGHUP)
    net.wait_until(lambda: "g.conf:1" in g.log(), 5)
    os.unlink(os.path.join(lab.tmp, "g.conf"))
    g.process.send_signal(signal.SIGHUP)
    net.wait_until(lambda: "No such file" in g.log(), 5)
    assert g.alive() and g.endpoint(peer) == "[fd00::7]:51822"


def question_of(query):
    """The name and type asked for, and where the question ends."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    return ".".join(labels), struct.unpack("!H", query[at + 1:at + 3])[0], at + 5


def dns_answer(query, is_tcp):
    """short.test: one address; near.test: several of both families; long.test: only by TCP."""
    name, kind, end = question_of(query)
    addresses = {1: [socket.inet_aton("192.0.2.7")], 28: []}
    if name == "near.test":
        addresses = {1: [socket.inet_aton(f"192.0.2.{n}") for n in (8, 9)], 28: [socket.inet_pton(socket.AF_INET6, "fd00::8")]}
    is_cut = name == "long.test" and not is_tcp
    found = [] if is_cut else addresses.get(kind, [])
    head = query[:2] + struct.pack("!HHHHH", 0x8180 | (0x200 if is_cut else 0), 1, len(found), 0, 0)
    return head + query[12:end] + b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(a)) + a for a in found)


class Dns:
    """A name server at port 53 of a namespace's loopback."""

    def __init__(self, lab, ns):
        self.udp = lab.socket(ns, timeout=0.2)
        self.udp.bind(("127.0.0.1", 53))
        self.tcp = lab.socket(ns, kind=socket.SOCK_STREAM, timeout=0.2)
        self.tcp.bind(("127.0.0.1", 53))
        self.tcp.listen(4)
        self.done, self.asked = False, set()
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self._udp, self._tcp)]
        for t in self.threads:
            t.start()

    def _udp(self):
        while not self.done:
            with contextlib.suppress(OSError):
                query, who = self.udp.recvfrom(4096)
                self.asked.add(("udp", question_of(query)[0]))
                self.udp.sendto(dns_answer(query, False), who)

    def _tcp(self):
        while not self.done:
            with contextlib.suppress(OSError), self.tcp.accept()[0] as s:
                s.settimeout(2)
                while head := s.recv(2):
                    query = s.recv(struct.unpack("!H", head)[0])
                    self.asked.add(("tcp", question_of(query)[0]))
                    reply = dns_answer(query, True)
                    s.sendall(struct.pack("!H", len(reply)) + reply)

    def close(self):
        self.done = True
        for t in self.threads:
            t.join()


def with_files(lab, **files):
    """The gateway, where files of /etc are others."""
    script = "".join(f'mount --bind "{lab.file(name, text, 0o644)}" "/etc/{path}" && ' for name, (path, text) in files.items())
    argv = under_test().argv
    return net.Program("penstock", ["unshare", "-m", "sh", "-c", script + 'exec "$@"', "sh", *argv])


def test_host_names_by_dns(lab):
    """Short answers, answers by TCP, several addresses (of which the nearest is wanted), none."""
    ns = lab.namespace("a")
    lab.address(ns, "lo", "192.0.2.1/24", "fd00::1/64")
    dns = Dns(lab, ns)
    try:
        g, private, peer = configured(lab, ns, with_files(
            lab, resolv=("resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:2\n"),
            # A library to load and a daemon to ask, both of which there must be none of.
            nss=("nsswitch.conf", "hosts: compat hesiod mymachines files resolve [!UNAVAIL=return] dns\n")))
        reload(lab, g, private, peer, "short.test:1", 42112)
        assert g.endpoint(peer) == "192.0.2.7:1"
        reload(lab, g, private, peer, "near.test:2", 42112)
        assert g.endpoint(peer) in ("192.0.2.8:2", "192.0.2.9:2", "[fd00::8]:2")
        reload(lab, g, private, peer, "long.test:3", 42112)
        assert g.endpoint(peer) == "192.0.2.7:3"
        assert ("tcp", "long.test") in dns.asked
    finally:
        dns.close()
    # Nobody listens any more.
    lab.file("g.conf", conf(private, peer, "gone.test:4"))
    g.process.send_signal(signal.SIGHUP)
    net.wait_until(lambda: "has no address" in g.log(), 20)
    assert g.alive() and g.endpoint(peer) == "192.0.2.7:3"
    g.ask("get=1\n\n")
