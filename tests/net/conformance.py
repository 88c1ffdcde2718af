"""Which test stands for which scenario, and the table doc/conformance.md that is made from a run.

A test says what it stands for with a marker:

    @pytest.mark.scenario("K1", asserts="what it asserts", kernel="what the kernel's test asserts beyond that, and why")
    @pytest.mark.report("in-place", asserts="what it asserts")

The scenarios are those of the namespace self-test that comes with Linux's WireGuard, the reports are
faults that users of other implementations met. `kernel` is there only where our test is weaker or
looks at something else. Several tests may stand for one row, and one test for several rows.

pytest --conformance FILE writes the table. It holds no date and no duration: the same code gives the
same table, and tools/check compares it with the committed one.
"""
import os

SCENARIOS = {
    "K1": "Byte counters and handshake time of the first ten echoes",
    "K2": "Both outer families, ordinary and very large MTU: echoes, TCP, UDP, TCP in parallel",
    "K3": "Padding stays within the MTU of the route",
    "K4": "Roaming, IPv4",
    "K5": "Roaming, IPv6",
    "K6": "Reverse path by key: the longest prefix over all peers decides",
    "K7": "A new private key, and a handshake at once",
    "K8": "A tunnel inside a tunnel",
    "K9": "Routing loop through two tunnels",
    "K10": "NAT held open by keepalives",
    "K11": "Socket bound to the interface; mark changed on the way",
    "K12": "Endpoint inside another peer's tunnel",
    "K13": "Endpoint inside its own tunnel",
    "K14": "wg-quick's policy routing",
    "K15": "ICMP error along the right route",
    "K16": "Source address goes away, IPv4",
    "K17": "Source address goes away, IPv6",
    "K18": "The answer comes from the address that was written to",
    "K19": "The address that was written to is on another interface",
    "K20": "A better route takes over",
    "K21": "Keepalives start when the interface comes up",
    "K22": "Keepalives start when the private key comes",
    "K23": "Very long list of allowed IPs",
    "K24": "Long answer cut between peers",
    "K25": "showconf with 30 peers",
    "K26": "Peer without prefixes before one with many",
    "K27": "Prefixes taken away one by one",
    "K28": "Unknown interface",
    "K29": "Keys shown, then cleared from an empty file",
    "K30": "Own key as peer",
    "K31": "Private key is clamped",
    "K32": "Nested prefixes, replaced",
    "K33": "Public keys of low order",
    "K34": "Namespaces deleted under live tunnels",
    "K35": "Interfaces swapped between namespaces, both deleted",
    "K36": "What is made is also freed",
}

# Trigger, right behaviour.
REPORTS = {
    "in-place": ("`wg set` on a peer that exists", "changed in place; session and counters stay"),
    "large-setconf": ("`wg setconf` with 24,000 and with 100,000 peers", "taken"),
    "fwmark": ("fwmark set before, after and together with the port", "every socket carries it from then on"),
    "roaming-peer": ("a peer's address changes under traffic", "the endpoint follows; no socket per peer is left behind"),
    "private-key": ("private key changed at run time", "sessions end, a handshake follows at once"),
    "handshake-101": ("the 101st handshake ever", "taken: load is a rate, not a total"),
    "slow-handshake": ("a round trip of one second", "the response still counts"),
    "preshared-key": ("preshared key changed on a live peer", "the next handshake uses it; nothing is lost before"),
    "sticky-source": ("the route to the endpoint changes", "the next packet has the new source"),
    "overload": ("more traffic than the machine can carry, sustained", "memory stays flat; what is dropped is counted by reason"),
    "silent-peer": ("packets for peers that never answer", "a bounded number waits per peer; others notice nothing"),
    "removed": ("peer removed, gateway ended or interface deleted under traffic", "an orderly end; nothing is left behind"),
    "allowed-ip-moves": ("one allowed IP given to two peers", "the last has it; the log warns"),
    "clock-behind": ("a client's clock is behind its last handshake", "refused as the protocol demands, counted by name"),
    "mtu": ("the tunnel's overhead and the MTU", "the interface says what fits; nothing large stalls in silence"),
    "network-change": ("default route or interface vanishes", "the tunnel recovers by itself"),
    "show-20000": ("`wg show` of 20,000 peers under traffic", "no packet waits for it"),
    "all-or-nothing": ("an error in peer 500 of 1,000", "nothing is changed; the log names the line"),
}

HEAD = """# Conformance

Made by the network tests (`tests/net/`, see `conformance.py` there); `tools/check` fails when this page is not what
its run gave. After a change to a test: `tools/check --only net`, then `cp build/conformance.md doc/`.

## Scenarios of the kernel's self-test

The last column but one says where our assertion is weaker or another, and why.

| scenario | about | result | asserted | the kernel's, where it differs | tests |
| --- | --- | --- | --- | --- | --- |
"""

REPORTS_HEAD = """
## Faults reported of other implementations

| when | right behaviour | result | asserted | tests |
| --- | --- | --- | --- | --- |
"""


class Row:
    """What the tests of one scenario or report said."""

    def __init__(self):
        self.asserts, self.kernel, self.tests = [], [], {}

    def add(self, test, marker, outcomes):
        self.asserts.append(marker.kwargs["asserts"])
        if "kernel" in marker.kwargs:
            self.kernel.append(marker.kwargs["kernel"])
        self.tests[test] = outcomes

    def result(self):
        """A variant that is skipped (a program that is not here) takes nothing from the others; a whole test does."""
        if not self.tests:
            return "NO TEST"
        for outcomes in self.tests.values():
            if "failed" in outcomes:
                return "FAILED"
            if "passed" not in outcomes:
                return "skipped" if "skipped" in outcomes else "NOT RUN"
        return "passed"


class Conformance:
    """A pytest plugin: notes results by marker, writes the table at the end."""

    def __init__(self, path):
        self.path = path
        self.items, self.outcomes = [], {}

    def pytest_collection_modifyitems(self, items):
        self.items = [item for item in items if any(item.iter_markers("scenario")) or any(item.iter_markers("report"))]
        for item in self.items:
            for known, kind in ((SCENARIOS, "scenario"), (REPORTS, "report")):
                for marker in item.iter_markers(kind):
                    if marker.args[0] not in known or "asserts" not in marker.kwargs:
                        raise ValueError(f"{item.nodeid}: marker {kind}{marker.args}: unknown, or without asserts=")

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcomes.setdefault(report.nodeid, set()).add(report.outcome)

    def rows(self):
        rows = {name: Row() for name in [*SCENARIOS, *REPORTS]}
        tests = {}
        for item in self.items:
            name = f"{item.path.stem}.{item.originalname}"
            tests.setdefault(name, (item, set()))[1].update(self.outcomes.get(item.nodeid, ()))
        for name, (item, outcomes) in sorted(tests.items()):
            # Closest first is the order of the decorators from below.
            for marker in [*item.iter_markers("scenario"), *item.iter_markers("report")]:
                rows[marker.args[0]].add(name, marker, outcomes)
        return rows

    def pytest_sessionfinish(self):
        rows = self.rows()

        def cells(row):
            return "; ".join(row.asserts), "<br>".join(f"`{t}`" for t in row.tests)

        text = HEAD
        for name, title in SCENARIOS.items():
            asserts, tests = cells(rows[name])
            text += f"| {name} | {title} | {rows[name].result()} | {asserts} | {'; '.join(rows[name].kernel)} | {tests} |\n"
        text += REPORTS_HEAD
        for name, (trigger, right) in REPORTS.items():
            asserts, tests = cells(rows[name])
            text += f"| {trigger} | {right} | {rows[name].result()} | {asserts} | {tests} |\n"
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(text)
        passed = sum(row.result() == "passed" for row in rows.values())
        print(f"\nnote: conformance: {passed} of {len(rows)} rows passed: {self.path}")
