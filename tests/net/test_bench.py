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


def test_without_wireguard_go(tmp_path):
    out = tmp_path / "json"
    done = subprocess.run(command("--json", out), capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PENSTOCK_WIREGUARD_GO": str(tmp_path / "none")})
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {s["id"] for s in report["skipped"]} == {f for f in FIGURES if f.endswith("_wireguard_go")}
    assert all("wireguard-go" in s["why"] for s in report["skipped"])
    assert {f["id"] for f in report["figures"]} >= {f for f in FIGURES if not f.endswith("_wireguard_go")}
