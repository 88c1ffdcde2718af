"""The demo: see tools/demo, which does the set-up and then calls this."""
import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "net"))
import lab as net  # noqa: E402

OUTER = ("192.168.79.1", "192.168.79.2")
INNER = ("10.79.0.1", "10.79.0.2")
UDP_OFFERED = "500M"
UDP_LENGTH = 1300


class Progress:
    """On a terminal one line that moves; otherwise one plain line per step."""

    def __init__(self, steps):
        self.steps, self.done, self.is_terminal = steps, 0, sys.stdout.isatty()

    @contextlib.contextmanager
    def step(self, what):
        began, over = time.monotonic(), threading.Event()

        def show():
            while True:
                bar = "#" * (20 * self.done // self.steps)
                print(f"\r\033[K[{bar:20}] {what} ({time.monotonic() - began:.0f} s)", end="", flush=True)
                if over.wait(0.2):
                    return

        painter = threading.Thread(target=show, daemon=True) if self.is_terminal else None
        if painter:
            painter.start()
        try:
            yield
        finally:
            over.set()
            if painter:
                painter.join()
                print("\r\033[K", end="", flush=True)
        self.done += 1
        if not self.is_terminal:
            print(f"[{self.done}/{self.steps}] {what} ({time.monotonic() - began:.1f} s)", flush=True)


def build():
    # A group of its own: on Ctrl-C the whole build is ended, not only the shell.
    with net.signals_held():
        builder = subprocess.Popen([os.path.join(ROOT, "tools", "build")], stdin=subprocess.DEVNULL,
                                   start_new_session=True)
    try:
        if builder.wait():
            raise net.LabError("the build failed")
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(builder.pid, 15)
        builder.wait()
        raise
    if not os.access(net.penstock_path(), os.X_OK):
        raise net.LabError(f"the build made no {net.penstock_path()}")


class Demo:
    def __init__(self, lab, program, seconds):
        self.lab, self.program, self.seconds = lab, program, seconds
        self.targets = {"link": OUTER[1], "tunnel": INNER[1]}

    def set_up(self):
        lab = self.lab
        self.a, self.b = lab.namespace("a"), lab.namespace("b")
        lab.veth(self.a, "v0", self.b, "v1")
        lab.address(self.a, "v0", OUTER[0] + "/24")
        lab.address(self.b, "v1", OUTER[1] + "/24")
        ga, gb = net.Gateway(lab, self.a, self.program), net.Gateway(lab, self.b, self.program)
        ga.up(INNER[0] + "/24", port=51820)
        gb.up(INNER[1] + "/24", port=51820)
        psk = net.genkey()
        ga.peer(gb.public, INNER[1] + "/32", OUTER[1] + ":51820", psk)
        gb.peer(ga.public, INNER[0] + "/32", OUTER[0] + ":51820", psk)
        self.gateways = (ga, gb)
        if not net.first_ping(self.a, INNER[1]):
            raise net.LabError("no answer through the tunnel\n" + ga.log()[-1500:])
        server = lab.start(self.b, "iperf3", "-s")
        with net.inside(self.b):
            net.wait_until(lambda: ":1451" in open("/proc/thread-self/net/tcp6", encoding="ascii").read(), 10,
                           message="iperf3 does not listen")  # 0x1451 is port 5201
        self.server = server

    def iperf(self, where, *options):
        # A process of the lab, so that it is ended whatever happens.
        path = os.path.join(self.lab.tmp, "iperf.json")
        with open(path, "wb") as out:
            client = self.lab.start(self.a, "iperf3", "-J", "-c", self.targets[where], "-t", str(self.seconds), *options,
                                    stdout=out)
            try:
                client.wait(self.seconds + 20)
            except subprocess.TimeoutExpired:
                raise net.LabError(f"iperf3 over the {where} hangs") from None
            finally:
                self.lab.stop(client)
        with open(path, encoding="utf-8") as f:
            try:
                result = json.load(f)
            except ValueError:
                raise net.LabError(f"iperf3 over the {where} gave no result") from None
        if "error" in result or "end" not in result:
            raise net.LabError(f"iperf3 over the {where}: {result.get('error', 'no result')}")
        return result["end"]

    def tcp(self, where, *options):
        return self.iperf(where, *options)["sum_received"]["bits_per_second"] / 1e9

    def socket_drops(self):
        """Datagrams that arrived in the far namespace and found their socket's buffer full."""
        with net.inside(self.b):
            with open("/proc/thread-self/net/snmp", encoding="ascii") as f:
                names, values = [line.split() for line in f if line.startswith("Udp:")]
        return int(values[names.index("RcvbufErrors")])

    def udp(self, where):
        """(received Gbit/s, lost share, share lost at iperf3's own socket)."""
        before = self.socket_drops()
        end = self.iperf(where, "-u", "-b", UDP_OFFERED, "-l", str(UDP_LENGTH))["sum"]
        lost = end["lost_percent"] / 100
        at_socket = (self.socket_drops() - before) / max(1, end["packets"])
        return end["bits_per_second"] * (1 - lost) / 1e9, lost, min(lost, at_socket)

    def rtt(self, where):
        """(median, 99th percentile) in microseconds."""
        times = net.ping_times(self.a, self.targets[where], 400, 0.005)
        if not times:
            raise net.LabError(f"no echo over the {where}")
        return times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]

    def measure(self, progress):
        out = {}
        for where in self.targets:
            name = "bare link" if where == "link" else where
            with progress.step(f"ping over the {name}"):
                out[where, "p50"], out[where, "p99"] = self.rtt(where)
        for label, options in (("up", ()), ("down", ("-R",))):
            for where in self.targets:
                name = "bare link" if where == "link" else where
                with progress.step(f"TCP {label} over the {name}"):
                    out[where, "tcp " + label] = self.tcp(where, *options)
        for where in self.targets:
            name = "bare link" if where == "link" else where
            with progress.step(f"UDP over the {name}"):
                out[where, "udp"], out[where, "loss"], out[where, "full"] = self.udp(where)
        return out


def table(out, received):
    rows = [("figure", "tunnel", "bare link", "tunnel/link"), None]
    for key, title, form in (
            ("tcp up", "TCP, one stream, up", "%.2f Gbit/s"),
            ("tcp down", "TCP, one stream, down", "%.2f Gbit/s"),
            ("udp", f"UDP received of {UDP_OFFERED}bit/s", "%.3f Gbit/s"),
            ("loss", "UDP lost", "%.2f %%"),
            ("full", "- by iperf3's full socket", "%.2f %%"),
            ("p50", "round trip, median", "%.0f us"),
            ("p99", "round trip, 99th percentile", "%.0f us")):
        tunnel, link = out["tunnel", key], out["link", key]
        if key in ("loss", "full"):
            rows.append((title, form % (tunnel * 100), form % (link * 100), ""))
        else:
            rows.append((title, form % tunnel, form % link, "%.2f" % (tunnel / link) if link else "-"))
    width = [max(len(r[i]) for r in rows if r) for i in range(4)]
    for r in rows:
        if r is None:
            print("  ".join("-" * w for w in width))
        else:
            print("  ".join([r[0].ljust(width[0])] + [r[i].rjust(width[i]) for i in (1, 2, 3)]))
    print(f"The far gateway authenticated {received / 1e9:.2f} GB from its peer.")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"demo: {message}\n")


def main():
    parser = Parser(prog="tools/demo", add_help=False)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--gateway")
    args = parser.parse_args()
    if not 0.5 <= args.seconds <= 60:
        print("demo: --seconds: expected 0.5 to 60", file=sys.stderr)
        return 2
    net.guard_signals()
    progress = Progress(10)
    lab = None
    try:
        program = net.Program(args.gateway, shlex.split(args.gateway)) if args.gateway else net.penstock()
        with progress.step("build"):
            if not args.gateway:
                build()
        with net.Lab() as lab:
            demo = Demo(lab, program, args.seconds)
            with progress.step("two namespaces, a veth pair, a gateway in each"):
                demo.set_up()
            out = demo.measure(progress)
            received = demo.gateways[1].transfer(demo.gateways[0].public)[0]
        table(out, received)
        return 0
    except net.LabError as e:
        print(f"demo: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; everything is cleaned up", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
