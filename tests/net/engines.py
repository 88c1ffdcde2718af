"""Scenarios under every engine: which engines there are, which tests, and the table of what ran.

    @pytest.mark.engines                one of the core: tools/check runs it under each of ENGINES
    @pytest.mark.engines(alone=True)    and only so, not in an ordinary run
    @pytest.mark.few                    also under those of FEW, with gateways built with sanitizers

pytest --engines core|all|few replaces the ordinary run; `all` adds every test marked `scenario`. The table goes to
build/engines.md, or what PENSTOCK_MATRIX names.
"""
import ctypes
import os
import re

import pytest

import lab as net
from lab import Engine

SQPOLL_IDLE_MS = 2  # short: a dozen gateways on few processors wait beside each other

ENGINES = [
    Engine("queue", 2),
    Engine("blocking", 2),
    Engine("epoll", 1),
    Engine("epoll", 2),
    Engine("channels", 2, "index"),
    Engine("channels", 2, "rr"),
    Engine("channels", 2, "flow"),
    Engine("uring", 1),
    Engine("uring", 2),
    Engine("uring", 1, sqpoll=SQPOLL_IDLE_MS),
]
FEW = [Engine(name, n, "rr" if name == "channels" and n == 2 else None)
       for name in ("queue", "blocking", "epoll", "channels", "uring") for n in (2, 4)]
MODES = {"core": ("engines",), "all": ("engines", "scenario"), "few": ("few",)}
FIRST = "test_core"  # begins what takes two minutes


def io_uring_error():
    """Why this kernel or sandbox gives no ring to anybody, found out without the program under test; None: it does."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Of all architectures that have it; struct io_uring_params has 120 bytes.
    fd = libc.syscall(425, 4, ctypes.create_string_buffer(120))
    if fd >= 0:
        os.close(fd)
        return None
    return os.strerror(ctypes.get_errno())


def refused_here(engine):
    """Why an engine cannot be had on this machine, whatever the program under test does; None: it can."""
    if engine.name == "uring":
        why = io_uring_error()
        return f"no io_uring here: {why}" if why else None
    return None


def must_run(engine):
    """The engine; skips the test where it cannot be had."""
    why = refused_here(engine)
    if why:
        pytest.skip(why)
    return engine


class Matrix:
    """A pytest plugin: chooses and multiplies tests by marker, notes results, writes the table at the end."""

    def __init__(self, mode):
        self.mode = mode
        self.columns = [str(e) for e in (FEW if mode == "few" else ENGINES)]
        self.items, self.outcomes = {}, {}

    def pytest_generate_tests(self, metafunc):
        if any(metafunc.definition.get_closest_marker(name) for name in MODES[self.mode]):
            metafunc.parametrize("engine", FEW if self.mode == "few" else ENGINES, ids=str, indirect=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        # Others have a parameter of this name, too.
        chosen = [item for item in items if isinstance(getattr(getattr(item, "callspec", None), "params", {}).get("engine"), Engine)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        chosen.sort(key=lambda item: (item.get_closest_marker("last") is not None, item.path.stem != FIRST))
        items[:] = chosen
        for item in items:
            self.items[item.nodeid] = (self.row(item), str(item.callspec.params["engine"]))

    @staticmethod
    def row(item):
        numbers = " ".join(sorted((m.args[0] for m in item.iter_markers("scenario")), key=lambda k: int(k[1:])))
        return f"{numbers + ' ' if numbers else ''}{item.path.stem[5:]}.{item.originalname[5:]}"

    def pytest_runtest_logreport(self, report):
        if report.nodeid in self.items and (report.when == "call" or report.outcome != "passed"):
            row, column = self.items[report.nodeid]
            cell = self.outcomes.setdefault(row, {}).setdefault(column, {})
            if cell.get(report.nodeid) != "failed":
                cell[report.nodeid] = report.outcome

    @staticmethod
    def cell(outcomes):
        """All variants of one scenario under one engine."""
        found = list(outcomes.values())
        if "failed" in found:
            return f"FAILED {found.count('failed')} of {len(found)}"
        if "passed" in found:
            return "pass"
        return "skip" if found else "-"

    def lines(self):
        table = [["scenario", *self.columns]]
        for row, cells in sorted(self.outcomes.items(), key=lambda r: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", r[0])]):
            table.append([row, *(self.cell(cells.get(c, {})) for c in self.columns)])
        width = [max(len(cell) for cell in column) for column in zip(*table)]
        table.insert(1, ["-" * w for w in width])
        return ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, width)) + " |" for row in table]

    def pytest_sessionfinish(self):
        if not self.outcomes:
            return
        path = os.environ.get("PENSTOCK_MATRIX") or os.path.join(net.ROOT, "build", "engines.md")
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(self.lines()) + "\n")
        cells = [self.cell(cells.get(c, {})) for cells in self.outcomes.values() for c in self.columns]
        print(f"\nnote: engines: {cells.count('pass')} of {len(cells)} passed, {cells.count('skip')} skipped: {path}")
