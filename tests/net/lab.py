"""Networks to test in: namespaces, veth pairs, processes, gateways. Everything that is made here is
deleted by Lab.close(), which also runs at exit and after SIGINT, SIGTERM and SIGHUP.

Names carry the process id, so that labs can run side by side and a lab whose owner was killed with
SIGKILL is swept away by the next one. Needs root.
"""
import atexit
import base64
import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", ".."))
CONFIG_DIR = "/var/run/wireguard"
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """The network could not be built, or a program in it did not do its part."""


# ---- Signals: an exception in the main thread, but never between making a thing and noting it.

_held = 0
_pending = None


def _on_signal(number, _frame):
    global _pending
    if _held:
        _pending = number
    else:
        raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def signals_held():
    """Signals that come meanwhile are delivered at the end."""
    global _held, _pending
    _held += 1
    try:
        yield
    finally:
        _held -= 1
    if not _held and _pending is not None and threading.current_thread() is threading.main_thread():
        number, _pending = _pending, None
        raise KeyboardInterrupt(signal.Signals(number).name)


def guard_signals():
    """Turn the usual ways of being stopped into KeyboardInterrupt, so that `finally` runs."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)


# ---- Namespaces


def _setns(fd):
    if _libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def inside(ns):
    """The calling thread is in namespace `ns`: its sockets and children are born there."""
    if ns is None:
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/run/netns/{ns}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def run(ns, *cmd, check=True, input=None, timeout=60):
    """Run a program to its end in a namespace (None: ours); returns the CompletedProcess."""
    with inside(ns):
        done = subprocess.run([str(c) for c in cmd], input=input, text=True, capture_output=True, timeout=timeout,
                              **({} if input is not None else {"stdin": subprocess.DEVNULL}))
    if check and done.returncode:
        what = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise LabError(f"{' '.join(str(c) for c in cmd)}: {what[:500]}")
    return done


def wait_until(what, timeout=10.0, step=0.02, message=None):
    """Poll what() until it is true; returns its value."""
    end = time.monotonic() + timeout
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise LabError(message or "waited in vain")
        time.sleep(step)


def _alive(pid):
    return os.path.exists(f"/proc/{pid}")


def _sweep():
    """Delete what a lab left behind whose process no longer exists."""
    if os.path.isdir("/run/netns"):
        for name in os.listdir("/run/netns"):
            match = re.fullmatch(r"ps(\d+)-\w+", name)
            if match and not _alive(match.group(1)):
                _delete_namespace(name)
    if os.path.isdir(CONFIG_DIR):
        for name in os.listdir(CONFIG_DIR):
            match = re.fullmatch(r"ps(\d+)[a-z]\d+\.sock", name)
            if match and not _alive(match.group(1)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(CONFIG_DIR, name))


def interface_stats(ns, interface):
    """What `ip -s link` counts: {"rx": {"dropped": ...}, "tx": ...}."""
    return json.loads(run(ns, "ip", "-s", "-j", "link", "show", interface).stdout)[0]["stats64"]


def softnet_drops():
    """Packets that found a processor's queue full, on the whole machine."""
    with open("/proc/net/softnet_stat", encoding="ascii") as f:
        return sum(int(line.split()[1], 16) for line in f)


def _pids_in(ns):
    done = subprocess.run(["ip", "netns", "pids", ns], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return [int(p) for p in done.stdout.split() if int(p) != os.getpid()]


def _delete_namespace(ns):
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = _pids_in(ns)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        for _ in range(100):
            if not any(_alive(p) for p in pids):
                break
            time.sleep(0.02)
    subprocess.run(["ip", "netns", "del", ns], capture_output=True, stdin=subprocess.DEVNULL)


def genkey():
    """A private key, as wg(8) writes it."""
    return run(None, "wg", "genkey").stdout.strip()


def pubkey(private):
    return run(None, "wg", "pubkey", input=private + "\n").stdout.strip()


def hexkey(key):
    """The form that the configuration socket speaks."""
    return base64.b64decode(key).hex()


class Lab:
    """One network. Use as a context manager."""

    _count = 0

    def __init__(self):
        if os.geteuid():
            raise LabError("network namespaces need root")
        if not os.path.exists("/dev/net/tun"):
            raise LabError("/dev/net/tun is missing: load the tun module (modprobe tun)")
        Lab._count += 1
        self.number = Lab._count
        self.prefix = f"ps{os.getpid()}"
        self.namespaces, self.processes, self.interfaces, self.sockets = [], [], [], []
        self.closed = False
        with signals_held():
            _sweep()
            self.tmp = tempfile.mkdtemp(prefix="penstock-lab-")
            atexit.register(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    # -- building

    def namespace(self, name):
        """A new namespace with its loopback up; returns its full name."""
        full = f"{self.prefix}-{name}{self.number}"
        with signals_held():
            self.namespaces.append(full)
            run(None, "ip", "netns", "add", full)
        run(full, "ip", "link", "set", "lo", "up")
        for which in ("all", "default"):
            # No duplicate address detection: an address is usable at once, and stays while a link is down.
            self.sysctl(full, f"net/ipv6/conf/{which}/accept_dad", 0)
            self.sysctl(full, f"net/ipv6/conf/{which}/keep_addr_on_down", 1)
        return full

    def sysctl(self, ns, key, value):
        with inside(ns), open(f"/proc/sys/{key}", "w", encoding="ascii") as f:
            f.write(str(value))

    def veth(self, ns_a, if_a, ns_b, if_b, mtu=1500):
        run(None, "ip", "link", "add", if_a, "netns", ns_a, "mtu", mtu, "type", "veth",
            "peer", "name", if_b, "netns", ns_b, "mtu", mtu)
        run(ns_a, "ip", "link", "set", if_a, "up")
        run(ns_b, "ip", "link", "set", if_b, "up")

    def keep_order(self, ns, interface):
        """What comes in here is taken in by one processor, so in the order in which it was sent: else each sender's does it."""
        run(None, "ip", "netns", "exec", ns, "sh", "-c", f"echo 1 >/sys/class/net/{interface}/queues/rx-0/rps_cpus")

    def address(self, ns, interface, *addresses):
        for a in addresses:
            run(ns, "ip", "addr", "add", a, "dev", interface, *(["nodad"] if ":" in a else []))

    def wait_for_neighbours(self, ns, address):
        """Until an IPv6 address answers neighbour solicitations: the kernel joins that group a while after `ip addr add`."""
        group = "ff0200000000000000000001ff" + socket.inet_pton(socket.AF_INET6, address.split("/")[0])[-3:].hex()

        def joined():
            with inside(ns), open("/proc/thread-self/net/igmp6", encoding="ascii") as f:
                return group in f.read()

        wait_until(joined, message=f"{address} does not join its group")

    def ifname(self):
        """An interface name that no other lab uses: configuration sockets share one folder."""
        name = f"{self.prefix}{chr(ord('a') + self.number // 1000 % 26)}{self.number % 1000 * 10 + len(self.interfaces)}"
        self.interfaces.append(name)
        return name

    def file(self, name, text, mode=0o600):
        path = os.path.join(self.tmp, name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "w", encoding="utf-8") as f:
            os.fchmod(f.fileno(), mode)
            f.write(text)
        return path

    # -- programs

    def start(self, ns, *cmd, log=None, env=None, **kw):
        """Start a program in a namespace; it is ended with the lab. log: a file for its output."""
        out = open(log, "ab") if log else subprocess.DEVNULL
        kw.setdefault("stdin", subprocess.DEVNULL)
        kw.setdefault("stdout", out)
        kw.setdefault("stderr", out)
        try:
            # A session of its own: a terminal's Ctrl-C reaches only us, and we end it in order.
            with signals_held(), inside(ns):
                process = subprocess.Popen([str(c) for c in cmd], start_new_session=True,
                                           env={**os.environ, **(env or {})}, **kw)
                self.processes.append(process)
        finally:
            if log:
                out.close()
        return process

    def stop(self, process, timeout=5):
        """SIGTERM, then SIGKILL; returns the exit status."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process in self.processes:
            self.processes.remove(process)
        return process.returncode

    def socket(self, ns, family=socket.AF_INET, kind=socket.SOCK_DGRAM, proto=0, timeout=None):
        with inside(ns):
            s = socket.socket(family, kind, proto)
        s.settimeout(timeout)
        self.sockets.append(s)
        return s

    def confessions(self):
        """What gateways said of their own death: failed assertions, sanitizers' reports."""
        found = []
        for name in sorted(os.listdir(self.tmp)):
            if name.endswith(".log"):
                with open(os.path.join(self.tmp, name), encoding="utf-8", errors="replace") as f:
                    text = f.read()
                match = re.search(r"(Sanitizer: |runtime error: |Assertion .* failed).*", text)
                if match:
                    found.append(f"{name}: ...{text[max(0, match.start() - 200):match.end() + 1500]}")
        return "\n".join(found)

    def close(self):
        """Undo everything. Signals wait until it is done."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        with signals_held():
            for s in self.sockets:
                s.close()
            for p in self.processes:
                if p.poll() is None:
                    p.terminate()
            for p in list(reversed(self.processes)):
                self.stop(p)
            for ns in reversed(self.namespaces):
                _delete_namespace(ns)
            for name in self.interfaces:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(CONFIG_DIR, name + ".sock"))
            shutil.rmtree(self.tmp, ignore_errors=True)


# ---- Gateways


class Program:
    """A WireGuard gateway program: how to call it. The interface's name is appended."""

    def __init__(self, name, argv, env=None):
        self.name, self.argv, self.env = name, argv, env or {}

    def __repr__(self):
        return self.name


def penstock_path():
    path = os.environ.get("PENSTOCK") or os.path.join(ROOT, "build", "penstock")
    return os.path.realpath(path)


class Engine:
    """What a penstock is told of how its packets enter and leave. Without a name: nothing, it takes what it thinks best."""

    def __init__(self, name=None, workers=None, steer=None, sqpoll=None):
        self.name, self.workers, self.steer, self.sqpoll = name, workers, steer, sqpoll

    def __str__(self):
        parts = [self.name or "default", self.workers, self.steer, "sqpoll" if self.sqpoll else None]
        return "-".join(str(p) for p in parts if p is not None)

    def options(self):
        told = {"--engine": self.name, "--workers": self.workers, "--steer": self.steer, "--sqpoll": self.sqpoll}
        return [str(word) for option, value in told.items() if value is not None for word in (option, value)]


_engine = Engine()


@contextlib.contextmanager
def using(engine):
    """Every penstock that is described meanwhile has this engine, unless it is given another."""
    global _engine
    before, _engine = _engine, engine
    try:
        yield
    finally:
        _engine = before


def engine_options():
    """For whoever starts a penstock by a command line of its own."""
    return _engine.options()


def penstock(*options, engine=None):
    # A system call without its comment ends the gateway, and with it the test (doc/sandbox.md).
    return Program("penstock", [penstock_path(), "gateway", "--foreground", "--sandbox", "kill",
                                *(engine or _engine).options(), *options])


class Gateway:
    """One gateway process with its interface, key pair and configuration socket."""

    def __init__(self, lab, ns, program, options=(), start=True):
        self.lab, self.ns, self.program = lab, ns, program
        self.inner = ns  # where the interface is; the sockets stay in ns
        self.name = lab.ifname()
        self.socket_path = os.path.join(CONFIG_DIR, self.name + ".sock")
        self.log_path = os.path.join(lab.tmp, self.name + ".log")
        self.private = genkey()
        self.public = pubkey(self.private)
        self.process = None
        self.options = list(options)
        if start:
            self.start()

    def start(self):
        self.process = self.lab.start(self.ns, *self.program.argv, *self.options, self.name, log=self.log_path,
                                      env=self.program.env)

        def ready():
            if self.process.poll() is not None:
                raise LabError(f"{self.program.name} ended with status {self.process.returncode}: {self.log().strip()[-400:]}")
            return os.path.exists(self.socket_path) and \
                run(self.ns, "ip", "link", "show", self.name, check=False).returncode == 0

        wait_until(ready, 15, message=f"{self.program.name} did not create {self.name}")

    def up(self, *addresses, mtu=1420, port=None, fwmark=None):
        """Key, port and addresses in place, interface up."""
        args = ["private-key", "/dev/stdin"]
        if port is not None:
            args += ["listen-port", str(port)]
        if fwmark is not None:
            args += ["fwmark", str(fwmark)]
        self.wg("set", self.name, *args, input=self.private + "\n")
        self.lab.address(self.inner, self.name, *addresses)
        run(self.inner, "ip", "link", "set", self.name, "mtu", mtu, "up")
        return self

    def move_to(self, ns):
        """The interface goes to another namespace."""
        run(self.inner, "ip", "link", "set", self.name, "netns", ns)
        self.inner = ns
        return self

    def peer(self, public, allowed, endpoint=None, psk=None, keepalive=None):
        args = ["peer", public]
        if psk:
            args += ["preshared-key", "/dev/stdin"]
        if endpoint:
            args += ["endpoint", endpoint]
        if keepalive is not None:
            args += ["persistent-keepalive", str(keepalive)]
        args += ["allowed-ips", allowed]
        self.wg("set", self.name, *args, input=psk + "\n" if psk else None)
        return self

    def wg(self, *args, check=True, input=None):
        """wg(8), in the gateway's namespace."""
        try:
            return run(self.ns, "wg", *args, check=check, input=input)
        except LabError as e:
            raise LabError(f"{e}; the gateway's status is {self.process.poll()}, its log: {self.log()[-800:]}") from None

    def show(self, what):
        """`wg show NAME what`, as lists of fields."""
        return [line.split("\t") for line in self.wg("show", self.name, what).stdout.splitlines()]

    def endpoint(self, public):
        return dict((f[0], f[1]) for f in self.show("endpoints")).get(public)

    def handshake_time(self, public):
        return int(dict((f[0], f[1]) for f in self.show("latest-handshakes"))[public])

    def transfer(self, public):
        """(received, sent) in bytes."""
        return next((int(f[1]), int(f[2])) for f in self.show("transfer") if f[0] == public)

    def drops(self):
        """What the gateway dropped, by reason: all that `get` counts above zero, before it comes to the peers' own counts."""
        device = self.ask("get=1\n\n").split("\npublic_key=")[0]
        return {k[5:]: int(v) for k, v in re.findall(r"^(drop_\w+)=(\d+)$", device, re.M)}

    def workers(self):
        """What each worker counts, {name: number}, by the worker's number."""
        found = {}
        for i, name, n in re.findall(r"^worker(\d+)_(\w+)=(\d+)$", self.ask("get=1\n\n"), re.M):
            found.setdefault(int(i), {})[name] = int(n)
        return [found[i] for i in sorted(found)]

    def interface_drops(self):
        """Packets that the TUN's own queue had no room for."""
        return interface_stats(self.inner, self.name)["tx"]["dropped"]

    def port(self):
        return int(self.wg("show", self.name, "listen-port").stdout)

    def connect(self, timeout=5):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(timeout)
        s.connect(self.socket_path)
        return s

    def ask(self, text, timeout=5):
        """One request on the configuration socket, whole answer."""
        with self.connect(timeout) as s:
            s.sendall(text.encode() if isinstance(text, str) else text)
            answer = b""
            while not answer.endswith(b"\n\n"):
                piece = s.recv(65536)
                if not piece:
                    break
                answer += piece
        return answer.decode()

    def configure(self, *lines):
        """set=1 with these lines; returns errno as a number."""
        answer = self.ask("set=1\n" + "".join(line + "\n" for line in lines) + "\n", timeout=30)
        match = re.search(r"^errno=(-?\d+)$", answer, re.M)
        if not match:
            raise LabError(f"no errno in the answer {answer!r}")
        return int(match.group(1))

    def log(self):
        with contextlib.suppress(OSError), open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()
        return ""

    def alive(self):
        return self.process.poll() is None

    def go_first(self):
        """Where processors are scarce it is run before what else there is on the machine."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/autogroup", "w", encoding="ascii") as f:
            f.write("-20")

    def helper(self):
        """The process that keeps the privileges of a penstock: its child. None: there is none."""
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat", encoding="ascii") as f:
                comm, rest = f.read().split("(", 1)[1].rsplit(")", 1)
                state, parent = rest.split()[:2]
                if int(parent) == self.process.pid and comm == "penstock-priv" and state not in "ZX":
                    return int(name)
        return None

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return sum(int(line.split()[1]) for line in f if line.startswith(("VmRSS", "HugetlbPages")))

    def stop(self):
        return self.lab.stop(self.process)


# ---- Traffic


def ping(ns, target, count=3, interval=0.2, size=None, wait=10, options=()):
    """Echo requests; returns how many were answered. ping goes on asking until `count` are, within `wait` seconds more;
    answers beyond those do not count."""
    args = ["ping", "-n", "-q", "-c", count, "-i", interval, "-w", int(wait + count * interval), *options]
    if size is not None:
        args += ["-s", size]
    out = run(ns, *args, target, check=False, timeout=wait + count * interval + 30).stdout
    match = re.search(r"(\d+) received", out)
    return min(int(match.group(1)), count) if match else 0


def first_ping(ns, target, wait=10):
    """One answered echo request, however many are lost before it; True when there was one."""
    done = run(ns, "ping", "-n", "-q", "-c", 1, "-i", 0.2, "-w", int(wait), target, check=False, timeout=wait + 30)
    return done.returncode == 0


def echo(ns, target, *options):
    """A single echo request, answered within a second: what the kernel's self-test asks. True when it was."""
    return run(ns, "ping", "-n", "-q", "-c", 1, "-W", 1, *options, target, check=False).returncode == 0


def flood(ns, target, n, *options):
    """n echo requests as fast as they are answered; returns how many were."""
    out = run(ns, "ping", "-n", "-q", "-f", "-c", n, "-W", 1, *options, target, check=False).stdout
    return int(re.search(r"(\d+) received", out).group(1))


def ping_times(ns, target, count, interval):
    """Round trips in microseconds, sorted."""
    out = run(ns, "ping", "-n", "-i", interval, "-c", count, "-w", int(count * interval) + 10, target, check=False,
              timeout=count * interval + 40).stdout
    return sorted(float(w[5:]) * 1000 for w in out.split() if w.startswith("time="))


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def tcp_transfer(lab, sender, receiver, address, n, port=5999, timeout=90):
    """n random bytes from one namespace to `address` in the other; LabError unless they arrive whole."""
    family = family_of(address)
    listener = lab.socket(receiver, family, socket.SOCK_STREAM, timeout=timeout)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(1)
    result = {}

    def receive():
        digest, got = hashlib.sha256(), 0
        try:
            conn, _ = listener.accept()
            with conn:
                conn.settimeout(timeout)
                while True:
                    piece = conn.recv(1 << 20)
                    if not piece:
                        break
                    digest.update(piece)
                    got += len(piece)
        except OSError as e:
            result["error"] = e
        result["digest"], result["n"] = digest.digest(), got

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    digest, block = hashlib.sha256(), os.urandom(1 << 20)
    began = time.monotonic()
    s = lab.socket(sender, family, socket.SOCK_STREAM, timeout=timeout)
    try:
        s.connect((address, port))
        left = n
        while left:
            # Different each time round, so that a swapped megabyte shows.
            block = os.urandom(4096) + block[4096:]
            piece = block[:min(left, len(block))]
            s.sendall(piece)
            digest.update(piece)
            left -= len(piece)
        s.shutdown(socket.SHUT_WR)
        thread.join(timeout)
    except OSError as e:
        raise LabError(f"TCP to {address}: {e} after {n - left} of {n} bytes") from e
    finally:
        s.close()
        listener.close()
    if "error" in result or result.get("n") != n or result["digest"] != digest.digest():
        raise LabError(f"TCP to {address}: {result.get('n')} of {n} bytes, {result.get('error', 'digest differs')}")
    return n * 8 / (time.monotonic() - began)


def iperf(lab, server, client, address, *options, n=1):
    """n runs of iperf3 beside each other, each with a server of its own; LabError unless all go well."""
    ports = [str(5200 + i) for i in range(n)]
    servers = [lab.start(server, "iperf3", "-s", "-1", "-B", address, "-p", p) for p in ports]
    wait_until(lambda: all(f":{p} " in run(server, "ss", "-Hltn").stdout for p in ports), message="iperf3 does not listen")
    clients = [lab.start(client, "iperf3", "-c", address, "-p", p, *options, log=os.path.join(lab.tmp, f"iperf-{p}.log"))
               for p in ports]
    for port, c in zip(ports, clients):
        if c.wait(60):
            with open(os.path.join(lab.tmp, f"iperf-{port}.log"), encoding="utf-8") as f:
                raise LabError(f"iperf3 to {address} {' '.join(options)}: {f.read()[-300:]}")
    for s in servers:
        s.wait(10)


UDP_SIZES = (0, 1, 3, 4, 15, 16, 17, 63, 64, 65, 512, 1000, 1279, 1280, 1371, 1372, 1373, 1391, 1392, 1393, 1472, 3000, 9000)


class UdpEcho:
    """A thread that sends every datagram back."""

    def __init__(self, lab, ns, address, port=6999):
        self.socket = lab.socket(ns, family_of(address), timeout=0.2)
        self.socket.bind((address, port))
        self.done = False
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while not self.done:
            try:
                data, who = self.socket.recvfrom(65536)
                self.socket.sendto(data, who)
            except OSError:
                pass

    def close(self):
        self.done = True
        self.thread.join()
        self.socket.close()


def udp_sizes(lab, client, server, address, sizes=UDP_SIZES, port=6999):
    """Datagrams of many sizes there and back, each compared; LabError when one does not come back whole."""
    echo = UdpEcho(lab, server, address, port)
    s = lab.socket(client, family_of(address), timeout=1)
    try:
        s.connect((address, port))
        for size in sizes:
            data = os.urandom(size)
            for _ in range(6):
                s.send(data)
                try:
                    back = s.recv(65536)
                    while len(back) != size:  # a late answer to a repeated request
                        back = s.recv(65536)
                    break
                except OSError:
                    continue
            else:
                raise LabError(f"UDP to {address}: a datagram of {size} bytes never came back")
            if back != data:
                raise LabError(f"UDP to {address}: a datagram of {size} bytes came back changed")
    finally:
        s.close()
        echo.close()


class UdpStream:
    """Numbered datagrams at a steady pace in the background; says afterwards which never arrived."""

    def __init__(self, lab, sender, receiver, address, pps=500, port=7999, size=200):
        self.receiver = lab.socket(receiver, family_of(address), timeout=0.3)
        self.receiver.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
        self.receiver.bind((address, port))
        self.sender = lab.socket(sender, family_of(address))
        self.sender.connect((address, port))
        self.pps, self.size = pps, max(size, 8)
        self.sent, self.got = 0, set()
        self.refused = []  # (number, why)
        self.softnet = softnet_drops()
        self.done = self.is_sent = False
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self._receive, self._send)]
        for t in self.threads:
            t.start()

    def _send(self):
        start = time.monotonic()
        while not self.done:
            while self.sent < (time.monotonic() - start) * self.pps:
                try:
                    self.sender.send(self.sent.to_bytes(8, "big") + bytes(self.size - 8))
                except OSError as e:
                    self.refused.append((self.sent, str(e)))
                self.sent += 1
            time.sleep(0.002)

    def _receive(self):
        while True:
            try:
                self.got.add(int.from_bytes(self.receiver.recv(65536)[:8], "big"))
            except OSError:
                if self.is_sent:
                    return

    def finish(self):
        """Ends the stream; returns (sent, lost)."""
        time.sleep(0.1)
        self.done = True
        self.threads[1].join()
        # Only now: a sender that was not run for a while catches up at the end.
        self.is_sent = True
        self.threads[0].join()
        self.sender.close()
        self.receiver.close()
        return self.sent, self.sent - len(self.got)

    def story(self):
        """What became of it, for a failed test."""
        missing = sorted(set(range(self.sent)) - self.got)
        return f"{len(missing)} of {self.sent} lost: {missing[:20]}; refused to the sender: {self.refused[:5]}; " \
               f"dropped by full processor queues of the machine: {softnet_drops() - self.softnet}"


ETH_P_ALL = 3


class Capture:
    """Everything that passes an interface, until stop(): on a TUN whole inner packets, on a veth frames."""

    def __init__(self, lab, ns, interface):
        self.socket = lab.socket(ns, socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL), timeout=0.2)
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        with inside(ns):
            self.socket.bind((interface, ETH_P_ALL))
        self.packets = []  # (is outgoing, bytes from the network header on)
        self.done = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while True:
            try:
                data, who = self.socket.recvfrom(65536)
                self.packets.append((who[2] == socket.PACKET_OUTGOING, data))
            except OSError:
                if self.done:
                    return

    def stop(self):
        self.done = True
        self.thread.join()
        self.socket.close()
        return self.packets
