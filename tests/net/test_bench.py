"""penstock bench with real gateways: it delivers what it promises and leaves nothing, however it ends."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

import lab as net

FIGURES = ("handshakes_per_core", "burst_10000_seconds", "burst_nat_2000_seconds", "flood_throughput_kept",
           "flood_handshake_p99_seconds", "flood_throughput_kept_wireguard_go",
           "flood_handshake_p99_seconds_wireguard_go", "forged_throughput_kept")
IN_MEMORY = FIGURES[:1]


def command(*args):
    return [net.penstock_path(), "bench", "handshakes", "--quick", *map(str, args)]


def environment(parent):
    """Every process of a bench has this variable, so that what it left can be told from others'."""
    return {**os.environ, "PENSTOCK_TEST_BENCH": str(parent)}


def family(parent):
    """Processes, dead ones aside, that come from such a bench."""
    wanted = f"PENSTOCK_TEST_BENCH={parent}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if wanted in f.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def nothing_left(tag):
    net.wait_until(lambda: not family(tag), 10, message="processes are left")


def test_every_figure(tmp_path):
    out = tmp_path / "json"
    sockets = os.listdir(net.CONFIG_DIR) if os.path.isdir(net.CONFIG_DIR) else None
    done = subprocess.run(command("--json", out), capture_output=True, text=True, timeout=200,
                          env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["skipped"] == []
    found = {f["id"]: f for f in report["figures"]}
    for name in FIGURES:
        # wireguard-go may keep nothing at all.
        assert found[name]["value"] > 0 or name == "flood_throughput_kept_wireguard_go" and found[name]["value"] == 0, name
    # Whatever the machine is busy with: bytes flowed and packets hit in every measurement.
    for name in ("flood_gbps", "flood_closed_port_gbps", "flood_rate", "flood_closed_port_rate"):
        assert all(v > 0 for v in found[name]["samples"]), name
    nothing_left(tmp_path)
    if sockets is None:
        assert not os.path.isdir(net.CONFIG_DIR) or not os.listdir(net.CONFIG_DIR)
    else:
        assert not [s for s in os.listdir(net.CONFIG_DIR) if s in ("server.sock", "client.sock")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_while_gateways_run(tmp_path, number):
    out = tmp_path / "json"
    bench = subprocess.Popen(command("--json", out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=environment(tmp_path))
    try:
        # The bench itself, the keeper of its sockets, and two gateways.
        net.wait_until(lambda: len(family(tmp_path)) >= 4, 60, message="no gateway was started")
        time.sleep(0.5)
        bench.send_signal(number)
        _, err = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()
    if number == signal.SIGKILL:
        assert bench.returncode == -number
    else:
        assert bench.returncode == 128 + number
        assert err == "penstock bench: stopped, nothing was written\n"
    assert not out.exists() or number == signal.SIGKILL
    nothing_left(tmp_path)


def test_without_root():
    # Not in tmp_path: nobody else may look into that.
    with tempfile.TemporaryDirectory(prefix="penstock-lab-") as folder:
        os.chmod(folder, 0o777)
        binary, out = os.path.join(folder, "penstock"), os.path.join(folder, "json")
        shutil.copy(net.penstock_path(), binary)
        done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", binary, "bench",
                               "handshakes", "--quick", "--json", out], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
    assert {f["id"] for f in report["figures"]} >= set(IN_MEMORY)
    assert {s["id"] for s in report["skipped"]} == set(FIGURES) - set(IN_MEMORY)
    assert {s["why"] for s in report["skipped"]} == {"network namespaces need root"}


@pytest.mark.long  # a whole run once more
def test_without_wireguard_go(tmp_path):
    out = tmp_path / "json"
    done = subprocess.run(command("--json", out), capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PENSTOCK_WIREGUARD_GO": str(tmp_path / "none")})
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {s["id"] for s in report["skipped"]} == {f for f in FIGURES if f.endswith("_wireguard_go")}
    assert all("wireguard-go" in s["why"] for s in report["skipped"])
    assert {f["id"] for f in report["figures"]} >= {f for f in FIGURES if not f.endswith("_wireguard_go")}


# ---- penstock bench gateway

ENGINES = ("blocking", "epoll", "channels", "uring", "uring_sqpoll")
USUAL = ("tcp1_gbps", "tcp128_gbps", "gbit_per_cpu_second")
RATIOS = {
    "best_over_queue_tcp1": ("{best}_tcp1_gbps", "queue_tcp1_gbps"),
    "best_over_link_tcp1": ("{best}_tcp1_gbps", "link_tcp1_gbps"),
    "best_tcp128_over_tcp1": ("{best}_tcp128_gbps", "{best}_tcp1_gbps"),
    "best_over_wireguard_go_tcp1": ("{best}_tcp1_gbps", "wireguard_go_tcp1_gbps"),
    "best_over_wireguard_go_tcp128": ("{best}_tcp128_gbps", "wireguard_go_tcp128_gbps"),
    "channels2_over_1_veth": ("channels_workers2_tcp8_gbps", "channels_workers1_tcp8_gbps"),
    "no_offload_over_queue_tcp1": ("epoll_no_offload_tcp1_gbps", "queue_tcp1_gbps"),
    "uring2_over_1_veth": ("uring_workers2_tcp8_gbps", "uring_workers1_tcp8_gbps"),
}
GATEWAY_IDS = {f"{e}_{what}" for e in (*ENGINES, "queue", "epoll_no_offload", "wireguard_go") for what in USUAL} | set(RATIOS) | {
    "link_tcp1_gbps", "link_tcp128_gbps"} | {f"{e}_workers{n}_tcp8_gbps" for e in ("channels", "uring") for n in (1, 2)}


def gateway_bench(out, **kw):
    return subprocess.run([net.penstock_path(), "bench", "gateway", "--quick", "--json", str(out)],
                          capture_output=True, text=True, timeout=300, **kw)


def test_gateway_bench(tmp_path):
    out = tmp_path / "json"
    done = gateway_bench(out, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    samples = {f["id"]: f["samples"] for f in report["figures"]}
    why = {s["id"]: s["why"] for s in report["skipped"]}
    assert len(why) == len(report["skipped"])
    assert not set(samples) & set(why)
    assert GATEWAY_IDS <= set(samples) | set(why)
    assert all(why.values())
    assert 0 <= min(samples["others_cores"]) <= max(samples["others_cores"]) <= os.cpu_count()
    # What differs from a claim says why.
    for f in report["figures"]:
        if "claim" in f["claim"]:
            assert f["note"], f["id"]
    # What needs nothing of the kernel but epoll runs everywhere.
    for name in ("link_tcp1_gbps", "link_tcp128_gbps", *(f"epoll_{what}" for what in USUAL)):
        assert samples[name][0] > 0, name
    best = max((e for e in ENGINES if f"{e}_tcp1_gbps" in samples), key=lambda e: samples[f"{e}_tcp1_gbps"][0])
    for ratio, parts in RATIOS.items():
        over, under = (samples.get(p.format(best=best)) for p in parts)
        if over and under:
            assert samples[ratio] == pytest.approx([a / b for a, b in zip(over, under)]), ratio
        else:
            assert ratio in why
    nothing_left(tmp_path)


def test_gateway_bench_without_programs(tmp_path):
    """Without iperf3 there is nothing to measure, and it says so."""
    for name in ("ip", "wg"):
        (tmp_path / name).symlink_to(shutil.which(name))
    out = tmp_path / "json"
    done = gateway_bench(out, env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["figures"] == []
    assert {s["id"] for s in report["skipped"]} == GATEWAY_IDS
    assert all("iperf3" in s["why"] for s in report["skipped"])


def fake_iperf3(folder, script):
    """An iperf3 whose client is that script; environment for a bench that finds it."""
    fake = folder / "iperf3"
    fake.write_text(f"#!/bin/sh\nreal={shutil.which('iperf3')}\ncase $1 in --server) exec $real \"$@\" ;; esac\n{script}\n")
    fake.chmod(0o755)
    return {**environment(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def test_gateway_bench_iperf3_that_fails(tmp_path):
    """An iperf3 that says what we do not understand takes every entrant out, not the bench down."""
    out = tmp_path / "json"
    done = gateway_bench(out, env=fake_iperf3(tmp_path, "echo '{\"end\": {}'"))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["figures"] == []
    why = {s["id"]: s["why"] for s in report["skipped"]}
    assert set(why) == GATEWAY_IDS
    assert why["link_tcp1_gbps"].startswith("iperf3: line ")
    nothing_left(tmp_path)


@pytest.mark.long  # a whole run once more
def test_gateway_bench_many_streams_that_fail(tmp_path):
    """What was measured before stays; what was not says iperf3's own reason."""
    out = tmp_path / "json"
    script = """case "$*" in *"--parallel 128"*) echo '{"error": "too many streams"}'; exit 1 ;; esac\nexec $real "$@\""""
    done = gateway_bench(out, env=fake_iperf3(tmp_path, script))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    values = {f["id"]: f["value"] for f in report["figures"]}
    why = {s["id"]: s["why"] for s in report["skipped"]}
    assert set(values) | set(why) >= GATEWAY_IDS
    assert values["epoll_tcp1_gbps"] > 0 and values["best_over_link_tcp1"] > 0
    assert why["epoll_tcp128_gbps"] == "iperf3: too many streams"
    assert why["best_tcp128_over_tcp1"].endswith(": iperf3: too many streams")
    nothing_left(tmp_path)


def test_gateway_bench_stopped(tmp_path):
    out = tmp_path / "json"
    bench = subprocess.Popen([net.penstock_path(), "bench", "gateway", "--json", str(out)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    try:
        # The bench itself, the keeper of its sockets, two gateways with a helper each.
        net.wait_until(lambda: len(family(tmp_path)) >= 6, 60, message="no gateway was started")
        bench.send_signal(signal.SIGINT)
        _, err = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()
    assert bench.returncode == 128 + signal.SIGINT
    assert err == "penstock bench: stopped, nothing was written\n"
    assert not out.exists()
    nothing_left(tmp_path)


METHODS = ("blocking", "spin", "select", "epoll", "shared", "channels", "channels_ebpf", "uring")
READERS = [f"{method}_{sockets}_kpps_per_cpu" for method in METHODS for sockets in (1, 64, 1000)]


def readers_command(*args):
    return [net.penstock_path(), "bench", "readers", "--quick", *map(str, args)]


def test_readers_every_figure(tmp_path):
    out = tmp_path / "json"
    began = time.monotonic()
    done = subprocess.run(readers_command("--json", out), capture_output=True, text=True, timeout=200,
                          env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 120  # a minute where nothing else runs
    report = json.loads(out.read_text())
    found = {f["id"]: f for f in report["figures"]}
    skipped = {s["id"]: s["why"] for s in report["skipped"]}
    assert set(READERS) <= found.keys() | skipped.keys()
    assert not found.keys() & skipped.keys()
    for name in READERS:
        if name in skipped:
            assert name.startswith("shared_") or "cannot run here: " in skipped[name], skipped[name]
            continue
        assert len(found[name]["samples"]) == 3
        assert found[name]["value"] > 0 and found[name]["claim"], name
        if not name.startswith("select_1_"):  # is what others are compared with
            assert found[name]["note"], name
        assert found[name.replace("_per_cpu", "")]["value"] > 0, name
        assert 0 <= found[name.replace("kpps_per_cpu", "loss")]["value"] < 1, name
    # Round robin reaches all sockets. The kernel's hash knows senders, of which there are a few.
    if "channels_ebpf_1000_reached" in found:
        assert found["channels_ebpf_1000_reached"]["value"] == 1000
    assert found["channels_1000_reached"]["value"] <= max(2, os.cpu_count())
    assert "\nshared_1_kpps_per_cpu:\n    " in done.stdout
    nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_readers_stopped(tmp_path, number):
    bench = subprocess.Popen(readers_command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=environment(tmp_path))
    try:
        # The bench, the keeper of its sockets, who sends and who reads.
        net.wait_until(lambda: len(family(tmp_path)) >= 4, 60, message="nobody reads")
        bench.send_signal(number)
        out, err = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()
    assert out == ""
    if number == signal.SIGINT:
        assert bench.returncode == 128 + number
        assert err == "penstock bench: stopped, nothing was written\n"
    nothing_left(tmp_path)


def test_readers_without_root():
    with tempfile.TemporaryDirectory(prefix="penstock-lab-") as folder:
        os.chmod(folder, 0o777)
        binary, out = os.path.join(folder, "penstock"), os.path.join(folder, "json")
        shutil.copy(net.penstock_path(), binary)
        done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", binary, "bench",
                               "readers", "--quick", "--json", out], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
    assert report["figures"] == []
    assert {s["id"] for s in report["skipped"]} == set(READERS)
