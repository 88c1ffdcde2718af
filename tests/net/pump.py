"""A stream of numbered datagrams at a high rate (udp_pump.c), and who lost what."""
import os
import re
import signal
import subprocess
import time

import lab as net

PROGRAM = os.path.join(net.ROOT, "build", "tests", "net", "udp_pump")
TUN_QUEUE = 20000  # packets; the usual 500 are 10 ms at 50,000 a second


def udp_errors(ns, family):
    """Datagrams that found a socket's buffer full in this namespace, and those that were malformed."""
    name = "snmp" if family == 4 else "snmp6"
    with net.inside(ns), open(f"/proc/thread-self/net/{name}", encoding="ascii") as f:
        text = f.read()
    if family == 6:
        return int(re.search(r"Udp6RcvbufErrors\s+(\d+)", text).group(1))
    keys, values = (line.split() for line in text.splitlines() if line.startswith("Udp: "))
    return int(dict(zip(keys, values))["RcvbufErrors"])


class Pump:
    """From gateway `a` of a pair through the tunnel to `b`, until finish()."""

    def __init__(self, pair, rate, size=200, port=7500):
        self.pair, self.rate = pair, rate
        target = pair.inner4[1]
        net.run(pair.a, "ip", "link", "set", pair.ga.name, "txqueuelen", TUN_QUEUE)
        self.before = self.counters()
        self.receiver = pair.lab.start(pair.b, PROGRAM, "receive", target, port, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.receiver.stdout.readline() == "ready\n"
        self.sender = pair.lab.start(pair.a, PROGRAM, "send", target, port, rate, size, stdout=subprocess.PIPE, text=True)

    def counters(self):
        """What the machine dropped where a gateway could do nothing about it, and what gateways dropped themselves."""
        p = self.pair
        out = {"queue of the sending TUN": p.ga.interface_drops(), "a processor's queue": net.softnet_drops(),
               "receive buffers in a": udp_errors(p.a, 4) + udp_errors(p.a, 6),
               "receive buffers in b": udp_errors(p.b, 4) + udp_errors(p.b, 6)}
        for which, g in (("a", p.ga), ("b", p.gb)):
            out.update({f"{reason} in gateway {which}": n for reason, n in g.drops().items()})
        for ns, link in ((p.a, "v0"), (p.b, "v1")):
            stats = net.interface_stats(ns, link)
            out[f"link {link}"] = stats["rx"]["dropped"] + stats["tx"]["dropped"]
        return out

    def finish(self):
        """Ends the stream: a Result."""
        self.sender.send_signal(signal.SIGTERM)
        sent, refused = map(int, re.findall(r"\d+", self.sender.communicate(timeout=10)[0]))
        time.sleep(0.3)
        report = self.receiver.communicate(f"{sent}\n", timeout=20)[0]
        return Result(self, sent, refused, report)


class Result:
    """lost: datagrams that a gateway lost. excused: those that the machine lost before or after them."""

    def __init__(self, pump, sent, refused, report):
        totals = {k: int(v) for k, v in re.findall(r"(\w+) (\d+)", report.splitlines()[-1])}
        self.sent, self.twice, self.late = sent, totals["twice"], totals["late"]
        self.gaps = [(int(a) / pump.rate, int(n)) for a, n in re.findall(r"gap (\d+) (\d+)", report)]
        after = pump.counters()
        self.causes = {k: n - pump.before.get(k, 0) for k, n in after.items() if n > pump.before.get(k, 0)}
        excuses = {"refused to the sender": refused, "receiver's own buffer": totals["overflow"],
                   **{k: self.causes.get(k, 0) for k in ("queue of the sending TUN", "a processor's queue")}}
        self.causes.update({k: n for k, n in excuses.items() if n})
        self.excused = sum(excuses.values())
        self.lost = max(0, totals["lost"] - self.excused)

    def __str__(self):
        gaps = ", ".join(f"{n} at {at:.3f} s" for at, n in self.gaps)
        return f"{self.lost} of {self.sent} lost, {self.excused} excused, {self.twice} twice; gaps: {gaps}; counted: {self.causes}"


# ---- Order

TRIES = 3


def stream(pair, size, rate=40000):
    """Numbered datagrams of one flow for a while; a Result."""
    pump = Pump(pair, rate, size=size)
    time.sleep(1.5)
    result = pump.finish()
    print(result.late, "late;", result)
    assert result.sent - result.lost - result.excused > 5000, str(result)
    assert result.twice == 0, str(result)
    pair.healthy()
    return result


def keeps_order(pair, engine=None, size=64):
    """Nothing is late. By turns a worker that the machine does not run for 16 ms is not waited for (gateway/order.h): that may
    happen now and then where others work too, and often where there are more workers than processors."""
    is_by_turns = engine and engine.steer == "rr"
    for g in pair.gateways:
        g.go_first()
    for _ in range(TRIES if is_by_turns else 1):
        result = stream(pair, size)
        if result.late <= (result.sent // 10 if is_by_turns and engine.workers > os.cpu_count() else 0):
            return
    raise AssertionError(f"{result.late} late; {result}")
