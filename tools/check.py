"""All checks, one stage after the other: see tools/check, which does the set-up and then calls this.

A stage writes everything to a log file in its build folder and adds single results to a Report.
What counts is the single test case: a cmocka function, a pytest item, a fuzz target, a build.
"""
import argparse
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.realpath(__file__)), ".."))
JOBS = str(os.cpu_count() or 1)
TAIL = 60  # lines of a log that are shown on failure


class Report:
    """Single results of all stages."""

    def __init__(self, allowed_skips, is_ci):
        self.passed, self.failed, self.skipped = 0, [], []
        self.allowed_skips, self.is_ci = allowed_skips, is_ci

    def ok(self, n=1):
        self.passed += n

    def fail(self, name, why=""):
        self.failed.append((name, why))

    def skip(self, name, why):
        if self.is_ci and not any(fnmatch.fnmatch(name, pattern) for pattern in self.allowed_skips):
            self.fail(name, f"skipped, which tests/skips.txt does not list: {why}")
        else:
            self.skipped.append((name, why))

    def counts(self):
        return self.passed, len(self.failed), len(self.skipped)


def read_skips(path):
    """Lines `PATTERN: reason`; a # opens a comment."""
    out = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                line = line.strip()
                if line and not line.startswith("#"):
                    pattern, _, reason = line.partition(": ")
                    if not reason:
                        sys.exit(f"check: {path}: no reason given for {pattern!r}")
                    out.append(pattern)
    return out


class Runner:
    """Runs programs with their output in a log file; ends them when we are stopped."""

    def __init__(self):
        self.process = None

    def run(self, log, cmd, env=None, timeout=1200, on_line=None):
        """Returns the exit status; 124 after the timeout."""
        with open(log, "a", encoding="utf-8") as out:
            out.write(f"$ {' '.join(cmd)}\n")
            out.flush()
            self.process = subprocess.Popen(cmd, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE if on_line else out, stderr=subprocess.STDOUT,
                                            start_new_session=True, text=True, errors="replace")
            try:
                if on_line:
                    for line in self.process.stdout:
                        out.write(line)
                        on_line(line.rstrip("\n"))
                return self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                out.write(f"check: gave up after {timeout} s\n")
                self.end()
                return 124
            except BaseException:
                self.end()
                raise

    def end(self):
        """SIGTERM first: the network tests then delete their namespaces."""
        for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(patience)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


RUNNER = Runner()


def tail(log, n=TAIL):
    with open(log, encoding="utf-8", errors="replace") as f:
        for line in f.read().splitlines()[-n:]:
            print("    | " + line)


def fresh_log(folder, name="check.log"):
    path = os.path.join(ROOT, folder)
    os.makedirs(path, exist_ok=True)
    log = os.path.join(path, name)
    with open(log, "w", encoding="utf-8"):
        pass
    return log


def say(text):
    print(text, flush=True)


# ---- Results of test programs


def tap_cases(text):
    """(name, "ok"|"fail"|"skip", reason) of each line in the Test Anything Protocol."""
    reason = "no reason given"
    for line in text.splitlines():
        noted = re.match(r"#?\s*skip(?:ped)?:\s*(.+)", line, re.I)
        if noted:
            reason = noted.group(1)
        match = re.match(r"(not )?ok\b(?:\s+\d+)?(?:\s*-)?\s*(.*)", line)
        if not match:
            continue
        name, _, directive = match.group(2).partition("#")
        if directive.strip().upper().startswith("SKIP"):
            rest = directive.strip()[4:].strip(" :")
            if match.group(1) and not name.strip():
                name, rest = rest, ""  # cmocka: "not ok 9 # SKIP test_name"
            yield name.strip(), "skip", rest or reason
            reason = "no reason given"
        else:
            yield name.strip(), "fail" if match.group(1) else "ok", ""


def count_program(report, stage, test):
    """One entry of meson's testlog.json. A program that ends badly without saying which case failed is one failure."""
    name = f"{stage}:{test['name'].split(' / ')[-1]}"
    out = test.get("stdout", "")
    if test["returncode"] == 77:
        lines = (out + test.get("stderr", "")).strip().splitlines()
        report.skip(name, lines[-1] if lines else "no reason given")
        return
    n_failed = n = 0
    for case, result, why in tap_cases(out):
        n += 1
        if result == "ok":
            report.ok()
        elif result == "skip":
            report.skip(f"{name}.{case}", why)
        else:
            n_failed += 1
            report.fail(f"{name}.{case}")
    if test["result"] not in ("OK", "EXPECTEDFAIL") and not n_failed:
        report.fail(name, f"{test['result'].lower()}, exit status {test['returncode']}")
    elif not n:
        report.ok()


def meson_tests(report, stage, folder, log, env, wrapper=None):
    env = {"CMOCKA_MESSAGE_OUTPUT": "TAP", **env}
    cmd = ["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs", "--num-processes", JOBS]
    if wrapper:
        cmd += ["--wrapper", wrapper, "--timeout-multiplier", "4"]
    status = RUNNER.run(log, cmd, env)
    suffix = "-" + wrapper.split("/")[-1].split()[0] if wrapper else ""
    results = os.path.join(ROOT, folder, "meson-logs", f"testlog{suffix}.json")
    n = 0
    if os.path.exists(results):
        with open(results, encoding="utf-8") as f:
            for line in f:
                n += 1
                count_program(report, stage, json.loads(line))
    if not n:
        report.fail(f"{stage}:tests", f"no test ran (exit status {status})")


# ---- Stages


def stage_script(report, stage, *cmd):
    log = fresh_log("build", f"{stage}.log")
    if RUNNER.run(log, list(cmd)) == 0:
        report.ok()
    else:
        report.fail(stage)
    return log


def stage_style(report, _args):
    return stage_script(report, "style", "tools/style", "--check")


def stage_layers(report, _args):
    stage_script(report, "doctests", "tools/doctests")
    return stage_script(report, "layers", "tools/layers")


def build(report, stage, folder, log, env, *options):
    # A folder that another checkout or compiler configured is of no use.
    if RUNNER.run(log, ["tools/build", folder, "-Dwerror=true", *options], env):
        shutil.rmtree(os.path.join(ROOT, folder, "meson-private"), ignore_errors=True)
        ninja = os.path.join(ROOT, folder, "build.ninja")
        stale = os.path.exists(ninja)
        if stale:
            os.unlink(ninja)
        if not stale or RUNNER.run(log, ["tools/build", folder, "-Dwerror=true", *options], env):
            report.fail(f"{stage}:build")
            return False
    report.ok()
    return True


def stage_gcc(report, _args):
    log = fresh_log("build")
    if build(report, "gcc", "build", log, {"CC": "gcc"}, "--buildtype=release"):
        meson_tests(report, "gcc", "build", log, {})
    return log


def stage_clang(report, _args):
    """The program only: the tests are built by clang, and run, in the stages asan and tsan."""
    log = fresh_log("build-clang")
    build(report, "clang", "build-clang", log, {"CC": "clang"}, "--buildtype=debugoptimized", "-Dtests=false")
    return log


def sanitized(report, stage, sanitizer, env):
    folder = f"build-{stage}"
    log = fresh_log(folder)
    if build(report, stage, folder, log, {"CC": "clang"}, "--buildtype=debugoptimized", f"-Db_sanitize={sanitizer}",
             "-Db_lundef=false"):
        # Address randomisation off: the sanitizers' shadow maps and a high-entropy mmap collide.
        meson_tests(report, stage, folder, log, env, "setarch -R")
    return log


SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}


def stage_asan(report, _args):
    return sanitized(report, "asan", "address,undefined", SANITIZER_ENV)


def tsan_env():
    options = "halt_on_error=1:second_deadlock_stack=1"
    suppressions = os.path.join(ROOT, "tests", "tsan.supp")
    if os.path.exists(suppressions):
        options += f":suppressions={suppressions}"
    return {"TSAN_OPTIONS": options}


def stage_tsan(report, _args):
    return sanitized(report, "tsan", "thread", tsan_env())


def seed_corpus(name):
    """tests/fuzz/corpus/<noun> of fuzz_<noun>, when it is there."""
    noun = name[len("fuzz_"):]
    for folder in (noun, name):
        path = os.path.join(ROOT, "tests", "fuzz", "corpus", folder)
        if os.path.isdir(path):
            return [path]
    return []


def stage_fuzz(report, args):
    folder = "build-fuzz"
    log = fresh_log(folder)
    if not build(report, "fuzz", folder, log, {"CC": "clang"}, "--buildtype=debugoptimized", "-Dfuzz=true",
                 "-Db_sanitize=address,undefined", "-Db_lundef=false"):
        return log
    where = os.path.join(ROOT, folder, "tests", "fuzz")
    targets = sorted(n for n in (os.listdir(where) if os.path.isdir(where) else [])
                     if n.startswith("fuzz_") and os.access(os.path.join(where, n), os.X_OK) and "." not in n)
    if not targets:
        report.fail("fuzz:targets", "no fuzz target was built")
    for name in targets:
        found = os.path.join(ROOT, folder, "corpus", name)
        os.makedirs(found, exist_ok=True)
        seen = {}

        def note(line, seen=seen):
            match = re.search(r"stat::number_of_executed_units:\s*(\d+)", line)
            if match:
                seen["runs"] = int(match.group(1))

        status = RUNNER.run(log, ["setarch", "-R", os.path.join(where, name), f"-max_total_time={args.fuzz_seconds}",
                                  "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0",
                                  f"-artifact_prefix={os.path.join(ROOT, folder)}/{name}-", found, *seed_corpus(name)],
                            SANITIZER_ENV, on_line=note, timeout=args.fuzz_seconds + 120)
        say(f"    {name}: {seen.get('runs', 0)} executions")
        if status == 0 and seen.get("runs"):
            report.ok()
        else:
            report.fail(f"fuzz:{name}", f"exit status {status}; the input is kept as {folder}/{name}-*")
    return log


def pytest_stage(report, stage, paths, timeout, wrapper=(), env=None):
    log = fresh_log("build", f"{stage}.log")
    results = os.path.join(ROOT, "build", f"{stage}.xml")
    if os.path.exists(results):
        os.unlink(results)

    def show(line):
        match = re.match(r"\S*?(\w+\.py)::(.+?)\s+(PASSED|FAILED|ERROR|SKIPPED.*)$", line)
        if match:
            say(f"    {match.group(3).lower():7} {match.group(1)[:-3]}.{match.group(2)}")
        elif line.startswith("note: "):
            say("    " + line[6:])

    status = RUNNER.run(log, [*wrapper, "/usr/bin/python3", "-m", "pytest", "-v", "--tb=short", "-s", "-p", "no:cacheprovider",
                              "-rs", "--color=no", f"--junitxml={results}", *paths],
                        {"COLUMNS": "200", **(env or {})}, on_line=show, timeout=timeout)
    if not os.path.exists(results):
        report.fail(stage, f"pytest ended with status {status}")
        return log
    for case in ElementTree.parse(results).iter("testcase"):
        name = f"{stage}:{case.get('classname', '').split('.')[-1]}.{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            message = (bad.get("message") or "").splitlines()
            report.fail(name, message[0] if message else "")
        elif case.find("skipped") is not None:
            report.skip(name, case.find("skipped").get("message", "no reason given"))
        else:
            report.ok()
    return log


def has_tests(folder):
    path = os.path.join(ROOT, folder)
    return os.path.isdir(path) and any(n.startswith("test_") and n.endswith(".py") for n in os.listdir(path))


def stage_platform(report, _args):
    if not has_tests("tests/platform"):
        return None
    return pytest_stage(report, "platform", ["tests/platform"], 300)


def check_conformance(report, made, committed):
    """The table that the network tests made: every row has a test that passed, and the committed page says so."""
    if not os.path.exists(made):
        report.fail("net:conformance", "the run made no table")
        return
    with open(made, encoding="utf-8") as f:
        text = f.read()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    bad = [f"{row[0].lstrip('| ')}: {row[2]}" for row in rows if row[2] not in ("result", "---", "passed")]
    for row in bad:
        report.fail("net:conformance", row)
    old = ""
    if os.path.exists(committed):
        with open(committed, encoding="utf-8") as f:
            old = f.read()
    if text != old:
        report.fail("net:conformance", "doc/conformance.md is not what this run gave: cp build/conformance.md doc/")
    elif not bad:
        report.ok()


def stage_net(report, _args):
    if not os.access(os.path.join(ROOT, "build", "penstock"), os.X_OK):
        report.fail("net", "build/penstock is not there")
        return None
    made = os.path.join(ROOT, "build", "conformance.md")
    if os.path.exists(made):
        os.unlink(made)
    log = pytest_stage(report, "net", ["--conformance", made, "tests/net"], 900)
    check_conformance(report, made, os.path.join(ROOT, "doc", "conformance.md"))
    return log


def sanitized_gateway(report, stage, folder, env, tests):
    """Network tests with a gateway that notices its own mistakes."""
    binary = os.path.join(ROOT, folder, "penstock")
    if not os.access(binary, os.X_OK):
        report.fail(stage, f"{folder}/penstock is not there: the stage {folder[len('build-'):]} builds it")
        return None
    return pytest_stage(report, stage, ["-m", "not memory", *tests], 900, ["setarch", "-R"], {"PENSTOCK": binary, **env})


def net_asan_env():
    # A process that gave up its privileges cannot be traced, which the leak checker would need.
    return {**SANITIZER_ENV, "ASAN_OPTIONS": SANITIZER_ENV["ASAN_OPTIONS"] + ":detect_leaks=0"}


def stage_netasan(report, _args):
    """Bad input and rough networks once more, but for what mostly waits for the clock."""
    return sanitized_gateway(report, "netasan", "build-asan", net_asan_env(),
                             ["-k", "not k10_keepalive and not default_route_vanishes and not better_route",
                              *(f"tests/net/test_{n}.py" for n in ("control", "network", "stress"))])


def stage_nettsan(report, _args):
    """Where threads meet: everything at once, and many clients at once."""
    return sanitized_gateway(report, "nettsan", "build-tsan", tsan_env(),
                             ["tests/net/test_stress.py", "tests/net/test_control.py::test_parallel_sets_and_gets",
                              "tests/net/test_control.py::test_peer_removed_under_traffic"])


def engines_table(stage):
    return os.path.join(ROOT, "build", f"{stage}.md")


def stage_engines(report, args):
    """Scenarios under every engine."""
    if not os.access(os.path.join(ROOT, "build", "penstock"), os.X_OK):
        report.fail("engines", "build/penstock is not there")
        return None
    mode, timeout = ("all", 5400) if args.matrix else ("core", 900)
    return pytest_stage(report, "engines", [f"--engines={mode}", "tests/net"], timeout, env={"PENSTOCK_MATRIX": engines_table("engines")})


def stage_enginesasan(report, _args):
    return sanitized_gateway(report, "enginesasan", "build-asan", {"PENSTOCK_MATRIX": engines_table("enginesasan"), **net_asan_env()},
                             ["--engines=few", "tests/net"])


def stage_enginestsan(report, _args):
    return sanitized_gateway(report, "enginestsan", "build-tsan", {"PENSTOCK_MATRIX": engines_table("enginestsan"), **tsan_env()},
                             ["--engines=few", "tests/net"])


STAGES = {
    "style": (stage_style, "formatting"),
    "layers": (stage_layers, "who may include whom; tests that the threat model names"),
    "gcc": (stage_gcc, "gcc -Werror, unit tests"),
    "clang": (stage_clang, "clang -Werror"),
    "asan": (stage_asan, "unit tests under ASan and UBSan"),
    "tsan": (stage_tsan, "unit tests under TSan"),
    "fuzz": (stage_fuzz, "fuzz targets"),
    "platform": (stage_platform, "what we rely on in this kernel"),
    "net": (stage_net, "gateways in network namespaces"),
    "engines": (stage_engines, "scenarios under every engine"),
    "netasan": (stage_netasan, "gateways under ASan and UBSan, where input is bad"),
    "nettsan": (stage_nettsan, "gateways under TSan, where threads meet"),
    "enginesasan": (stage_enginesasan, "every engine under ASan and UBSan, with two and four workers"),
    "enginestsan": (stage_enginestsan, "every engine under TSan, with two and four workers"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"check: {message}\n")


def parse_args():
    parser = Parser(prog="tools/check", add_help=False)
    parser.add_argument("--fuzz-seconds", type=int, default=3)
    parser.add_argument("--only", default=",".join(STAGES))
    parser.add_argument("--matrix", action="store_true")
    args = parser.parse_args()
    args.only = args.only.split(",")
    for name in args.only:
        if name not in STAGES:
            parser.error(f"--only: {name!r} is no stage; expected some of {' '.join(STAGES)}")
    if args.fuzz_seconds < 1:
        parser.error("--fuzz-seconds: expected 1 or more")
    return args


def give_back():
    """Under sudo the build folders belong to the one who called it."""
    uid, gid = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if uid and gid:
        folders = [os.path.join(ROOT, d) for d in os.listdir(ROOT) if d == "build" or d.startswith("build-")]
        subprocess.run(["chown", "-R", "-h", f"{uid}:{gid}", *folders], check=False)


def show_table(stage, since):
    """Scenarios and engines, when this run made the table."""
    path = engines_table(stage)
    if os.path.exists(path) and os.stat(path).st_mtime >= since:
        say(f"{stage}: scenarios and engines ({os.path.relpath(path, ROOT)})")
        with open(path, encoding="utf-8") as f:
            say(f.read().rstrip("\n"))


def main():
    args = parse_args()
    report = Report(read_skips(os.path.join(ROOT, "tests", "skips.txt")), os.environ.get("CI") == "true")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    began, began_at = time.monotonic(), time.time()
    try:
        for i, name in enumerate(args.only, 1):
            stage, what = STAGES[name]
            say(f"[{i}/{len(args.only)}] {name}: {what}")
            before, start = report.counts(), time.monotonic()
            log = stage(report, args)
            passed, failed, skipped = (b - a for a, b in zip(before, report.counts()))
            say(f"    {passed} passed, {failed} failed, {skipped} skipped in {time.monotonic() - start:.0f} s")
            if failed:
                for which, why in report.failed[before[1]:]:
                    say(f"    FAILED {which}{': ' + why if why else ''}")
                if log:
                    say(f"    the end of {os.path.relpath(log, ROOT)}:")
                    tail(log)
    except KeyboardInterrupt:
        say("check: stopped")
        return 130
    finally:
        give_back()
    for name, why in report.skipped:
        say(f"skipped {name}: {why}")
    for name, why in report.failed:
        say(f"FAILED {name}{': ' + why if why else ''}")
    for name in args.only:
        show_table(name, began_at)
    say(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    print("%d passed, %d failed, %d skipped" % report.counts())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
