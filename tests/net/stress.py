"""What test_stress.py does to a gateway, beside what strangers.py sends to it."""
import base64
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import lab as net

STRANGERS = "10.66.0.0/16"


class Strangers:
    """The process that sends what no gateway should believe."""

    def __init__(self, pair, seed):
        sides = [{"attacker": pair.gateways[1 - i].ns, "target": [pair.outer4[i], pair.ports[i], pair.outer6[i]],
                  "peer": [pair.outer4[1 - i], pair.ports[1 - i]], "public": pair.gateways[i].public} for i in range(2)]
        config = {"seed": seed, "capture": [pair.b, "v1"], "sides": sides}
        self.process = pair.lab.start(None, sys.executable, os.path.join(os.path.dirname(__file__), "strangers.py"), json.dumps(config),
                                      log=os.path.join(pair.lab.tmp, "strangers.log"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      text=True)

    def tell(self, *words):
        self.process.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def inner_lie(rng, source, target):
    """An inner packet with something wrong in it, or one for nobody."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    payload = rng.randbytes(rng.randrange(100))
    if kind == 1:
        target = "10.250." + ".".join(str(b) for b in rng.randbytes(2))
    data = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 0, 0, 64, rng.choice((1, 6, 17, 47, 132)), 0,
                                 socket.inet_aton(source), socket.inet_aton(target)) + payload)
    if kind == 2:
        data[2:4] = rng.randbytes(2)
    if kind == 3:
        data[0] = rng.getrandbits(8)
    if kind == 4:
        data = data[:rng.randrange(len(data))]
    return bytes(data)


def write_inside(rng, ns, interface, source, target, n):
    """n such packets into an interface, some said to be superframes."""
    sol_packet, packet_vnet_hdr = 263, 15
    with net.inside(ns):
        plain = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    with plain, frames, contextlib.suppress(OSError):
        frames.setsockopt(sol_packet, packet_vnet_hdr, 1)
        frames.bind((interface, 0x0800))
        for _ in range(n):
            with contextlib.suppress(OSError):
                if rng.random() < 0.7:
                    plain.sendto(inner_lie(rng, source, target), (interface, rng.choice((0x0800, 0x86DD, 0x0806)), 0, 0, b""))
                else:
                    # flags, gso type, header length, segment length, checksum start and place
                    head = struct.pack("<BBHHHH", rng.choice((0, 1)), rng.choice((0, 1, 3, 4, 5)), rng.randrange(100),
                                       rng.randrange(1, 1500), rng.randrange(60), rng.randrange(30))
                    frames.send(head + inner_lie(rng, source, target) + rng.randbytes(rng.randrange(5000)))


# ---- What is done to a gateway


def mutate(rng, text):
    """A request with a few bytes changed, taken out or put in."""
    data = bytearray(text.encode())
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data)) if data else 0
        what = rng.randrange(4)
        if what == 0:
            data[at:at + 1] = rng.randbytes(1)
        elif what == 1:
            del data[at:at + rng.choice((1, 2, 40))]
        elif what == 2:
            data[at:at] = rng.randbytes(rng.choice((1, 3)))
        else:
            end = rng.randrange(at, len(data) + 1)
            data[at:at] = data[at:end]
    return bytes(data)


class Side:
    """One of the two gateways of a conftest.Pair, what we know of it and what can be done to it.

    An action is a method whose name begins with act_; it takes the generator and may return a word on what it did. What it
    asks for may be refused. Whoever ends the gateway says so by ended().
    """

    def __init__(self, pair, i):
        self.pair, self.i = pair, i
        self.lab, self.gateway, self.other = pair.lab, pair.gateways[i], pair.gateways[1 - i]
        self.ns, self.link = self.gateway.ns, f"v{i}"
        self.good = f"[Interface]\nPrivateKey = {self.gateway.private}\nListenPort = {pair.ports[i]}\n\n[Peer]\nPublicKey = " \
                    f"{self.other.public}\nEndpoint = {pair.outer(1 - i)}\nAllowedIPs = {pair.inner4[1 - i]}/32, {pair.inner6[1 - i]}/128\n"
        self.config = self.write(self.good)
        self.gateway.options += ["--config", self.config]
        self.exile = self.lab.namespace("xy"[i])
        self.strangers = [net.pubkey(net.genkey()) for _ in range(4)]
        self.clients = []
        self.strange = None

    def write(self, text, name="good"):
        return self.lab.file(f"{name}{self.i}.conf", text)

    def wg(self, *args, input=None):
        """wg(8) that may fail, but not hang."""
        done = net.run(self.ns, "wg", *args, check=False, input=input, timeout=30)
        return "" if done.returncode == 0 else "refused"

    def set(self, *args, input=None):
        return self.wg("set", self.gateway.name, *args, input=input)

    def ip(self, *args, ns=None):
        net.run(ns or self.gateway.inner, "ip", *args, check=False, timeout=30)

    def whose(self, rng):
        """A peer's key: the good one's as well."""
        return rng.choice([self.other.public, *self.strangers])

    # -- peers and keys

    def act_peer(self, rng):
        return self.set("peer", self.whose(rng), "allowed-ips",
                        rng.choice(("10.250.0.0/16", "0.0.0.0/0,::/0", f"{self.pair.inner4[1 - self.i]}/32", "fd41::/64", "")),
                        "endpoint", self.an_endpoint(rng))

    def act_remove(self, rng):
        return self.set("peer", self.whose(rng), "remove")

    def act_psk(self, rng):
        return self.set("peer", self.whose(rng), "preshared-key", "/dev/stdin", input=net.genkey() + "\n")

    def an_endpoint(self, rng):
        return rng.choice((self.pair.outer(1 - self.i), self.pair.outer(1 - self.i, 6), "10.66.1.1:9", "192.0.2.1:5",
                           f"{self.pair.inner4[1 - self.i]}:{self.pair.ports[1 - self.i]}", self.pair.outer(self.i)))

    def act_endpoint(self, rng):
        return self.set("peer", self.whose(rng), "endpoint", self.an_endpoint(rng))

    def act_keepalive(self, rng):
        return self.set("peer", self.whose(rng), "persistent-keepalive", str(rng.choice((0, 1, 2, 65535))))

    def act_key(self, rng):
        return self.set("private-key", "/dev/stdin", input=rng.choice((net.genkey(), self.gateway.private)) + "\n")

    def act_no_key(self, _rng):
        return self.set("private-key", "/dev/null")

    def act_key_back(self, _rng):
        return self.set("private-key", "/dev/stdin", input=self.gateway.private + "\n")

    def act_port(self, rng):
        result = self.set("listen-port", str(rng.choice((0, 53, *range(20000, 20010), self.pair.ports[self.i]))))
        with contextlib.suppress(net.LabError, ValueError):
            self.strange.tell("port", self.i, self.gateway.port())
        return result

    def act_mark(self, rng):
        return self.set("fwmark", str(rng.choice((0, 1, 0xffffffff))))

    def act_syncconf(self, _rng):
        return self.wg("syncconf", self.gateway.name, self.write(self.good, "sync"))

    def act_setconf(self, rng):
        text = self.good if rng.random() < 0.5 else self.good.split("[Peer]")[0]
        for i in range(rng.choice((0, 3, 500))):
            key = base64.b64encode(rng.randbytes(32)).decode()
            text += f"[Peer]\nPublicKey = {key}\nAllowedIPs = 10.{i >> 8}.{i & 255}.0/24\n"
        return self.wg(rng.choice(("setconf", "addconf", "syncconf")), self.gateway.name, self.write(text, "set"))

    # -- the configuration socket

    def request(self, rng):
        lines = ["get=1"] if rng.random() < 0.3 else \
            ["set=1", "listen_port=20011", f"public_key={net.hexkey(self.whose(rng))}", "preshared_key=" + "ab" * 32,
             "endpoint=[fd00:241::9]:9", "persistent_keepalive_interval=3", "replace_allowed_ips=true", "allowed_ip=10.251.0.0/16",
             "allowed_ip=-10.251.0.0/16", f"public_key={rng.randbytes(32).hex()}", "remove=true"]
        return "\n".join(lines) + "\n\n"

    def act_bad_request(self, rng):
        for _ in range(10):
            with contextlib.suppress(OSError), self.gateway.connect(2) as s:
                s.sendall(mutate(rng, self.request(rng)))
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass

    def act_half_client(self, rng):
        for _ in range(rng.choice((1, 10))):
            with contextlib.suppress(OSError):
                s = self.gateway.connect(0.2)
                self.clients.append(s)
                text = self.request(rng).encode()
                s.sendall(text[:rng.randrange(len(text))] if rng.random() < 0.7 else text * 20)
        self.hang_up(40)

    def hang_up(self, n_left=0):
        while len(self.clients) > n_left:
            self.clients.pop(0).close()

    def act_show(self, _rng):
        return self.wg("show", self.gateway.name)

    def act_show_all(self, _rng):
        return self.wg("show", "all", "dump")

    def act_status(self, _rng):
        done = net.run(self.ns, net.penstock_path(), "gateway", "--status", self.gateway.name, check=False, timeout=30)
        return "" if done.returncode == 0 else "refused"

    # -- interface and routes

    def act_down_up(self, rng):
        self.ip("link", "set", self.gateway.name, "down")
        time.sleep(rng.choice((0, 0, 0.1)))
        if rng.random() < 0.8:
            self.ip("link", "set", self.gateway.name, "up")

    def act_mtu(self, rng):
        mtu = rng.choice((68, 576, 1280, 1420, 9000, 65535))
        self.ip("link", "set", self.gateway.name, "mtu", mtu)
        return mtu

    def act_outer_mtu(self, rng):
        self.ip("link", "set", self.link, "mtu", rng.choice((576, 1280, 1500)), ns=self.ns)

    def act_inner_routes(self, rng):
        for _ in range(5):
            prefix = f"10.77.{rng.randrange(4)}.0/24"
            self.ip(*rng.choice((("route", "replace", prefix, "dev", self.gateway.name, "mtu", rng.choice((600, 1300, 9000))),
                                 ("route", "del", prefix))))

    def act_outer_address(self, rng):
        self.ip("addr", rng.choice(("add", "del")), f"192.168.241.{50 + 2 * rng.randrange(3) + self.i}/24", "dev", self.link, ns=self.ns)

    def act_outer_route(self, rng):
        """None, one without an end, or one through the tunnel itself."""
        peer = self.pair.outer4[1 - self.i]
        self.ip(*rng.choice((("route", "replace", "unreachable", peer), ("route", "replace", "blackhole", peer),
                             ("route", "replace", peer, "dev", self.gateway.name), ("route", "del", peer))), ns=self.ns)

    def act_outer_link(self, rng):
        self.ip("link", "set", self.link, "down", ns=self.ns)
        time.sleep(rng.choice((0, 0.1)))
        self.ip("link", "set", self.link, "up", ns=self.ns)

    def act_move(self, rng):
        """To another namespace, and perhaps back."""
        g = self.gateway
        for there in (self.exile, self.ns)[:rng.choice((1, 2))]:
            self.ip("link", "set", g.name, "netns", there)
            g.inner = there
            self.ip("link", "set", g.name, "up")

    def act_inner_garbage(self, rng):
        write_inside(rng, self.gateway.inner, self.gateway.name, self.pair.inner4[self.i], self.pair.inner4[1 - self.i], 200)

    def act_flood(self, _rng):
        """Initiations that must be worked on until it shows that their sender is unknown, from everywhere."""
        self.strange.tell("flood", self.i)
        time.sleep(0.4)
        self.strange.tell("calm", self.i)

    # -- the process

    def act_hangup_signal(self, rng):
        """SIGHUP: read the file again, good or not."""
        text = self.good.encode() if rng.random() < 0.5 else mutate(rng, self.good)
        with open(self.config, "wb") as f:
            f.write(text)
        self.gateway.process.send_signal(signal.SIGHUP)

    def act_kill_helper(self, _rng):
        pid = self.gateway.helper()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    def act_stop_helper(self, rng):
        pid = self.gateway.helper()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.lab.start(self.ns, "wg", "set", self.gateway.name, "fwmark", rng.randrange(9))
                time.sleep(0.1)
                os.kill(pid, signal.SIGCONT)
        return pid

    def act_delete_interface(self, rng):
        self.ip("link", "del", self.gateway.name)
        self.ended(0)
        self.start(rng)

    def act_remove_socket(self, rng):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.gateway.socket_path)
        self.ended(0)
        self.start(rng)

    def act_kill(self, rng):
        self.gateway.process.kill()
        self.ended(-signal.SIGKILL)
        self.start(rng)

    def act_terminate(self, rng):
        self.gateway.process.terminate()
        self.ended(0)
        self.start(rng)

    def actions(self):
        return sorted(name for name in dir(self) if name.startswith("act_"))

    def ended(self, status):
        """We ended the gateway: it ends, as it should, and its helper with it."""
        g = self.gateway
        helper = g.helper()
        got = g.process.wait(20)
        assert got == status, f"{g.name} ended with status {got} instead of {status}"
        self.lab.processes.remove(g.process)
        if helper:
            net.wait_until(lambda: not os.path.exists(f"/proc/{helper}"), 10, message="the helper outlived its gateway")
        assert status or not os.path.exists(g.socket_path), "it left its socket file behind"
        g.inner = g.ns

    def start(self, rng=None):
        """Sometimes others come first while there is none."""
        if rng and rng.random() < 0.3:
            self.act_show(rng)
            self.act_inner_garbage(rng)
        self.write(self.good)
        self.gateway.start()
        net.wait_until(self.answers, 15, message="no answer after the start")
        self.addresses()

    def answers(self):
        try:
            return "errno=0" in self.gateway.ask("get=1\n\n", 5)
        except OSError:
            return False

    # -- in order again

    def addresses(self):
        name = self.gateway.name
        self.ip("link", "set", name, "mtu", 1420)
        self.ip("link", "set", name, "up")
        for a in (self.pair.inner4[self.i] + "/24", self.pair.inner6[self.i] + "/64"):
            self.ip("addr", "replace", a, "dev", name, *(["nodad"] if ":" in a else []))
        # Linux 6.18 sometimes leaves it out when an interface goes down and up and gets its address in quick succession.
        self.ip("-6", "route", "replace", "local", self.pair.inner6[self.i], "dev", name, "table", "local")

    def outside(self):
        """Link, addresses and routes of the outer network."""
        self.ip("link", "set", self.link, "mtu", 1500, ns=self.ns)
        self.ip("link", "set", self.link, "up", ns=self.ns)
        self.ip("addr", "flush", "dev", self.link, ns=self.ns)
        for _ in range(3):
            self.ip("route", "del", self.pair.outer4[1 - self.i], ns=self.ns)
        for a in (self.pair.outer4[self.i] + "/24", self.pair.outer6[self.i] + "/64"):
            self.ip("addr", "add", a, "dev", self.link, *(["nodad"] if ":" in a else []), ns=self.ns)
        self.ip("route", "replace", STRANGERS, "via", self.pair.outer4[1 - self.i], ns=self.ns)

    def restore(self, rng):
        """What an administrator would do who looks after it, and no more: a gateway that has its helper is not started anew."""
        g = self.gateway
        self.hang_up()
        self.outside()
        if not g.helper():
            g.process.terminate()
            self.ended(0)
            self.start()
        if g.inner != g.ns:
            self.ip("link", "set", g.name, "netns", g.ns)
            g.inner = g.ns
        self.ip("link", "set", g.name, "down" if rng.random() < 0.2 else "up")
        how = rng.choice(("setconf", "syncconf"))
        assert not self.wg(how, g.name, self.write(self.good)), f"{how} of what is right was refused"
        if how == "syncconf":  # which leaves alone what the file does not mention
            assert not self.set("peer", self.other.public, "preshared-key", "/dev/null", "persistent-keepalive", "0")
        self.addresses()
