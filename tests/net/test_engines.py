"""penstock bench engines: every figure is there or says why it is not, and however it ends nothing is left."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

import lab as net
from test_bench import environment, family, nothing_left

RATIOS = ("uring_over_epoll_rx_per_cpu", "uring_sqpoll_syscalls_per_100k", "best_over_epoll_p999",
          "workers2_over_1_memory")
OF_EACH = ("rx_kpps_per_cpu", "syscalls_per_100k", "p999_us")
MEASURED = OF_EACH + ("rx_gro_kpps_per_cpu", "rx_1420_kpps_per_cpu", "rx_1420_gro_kpps_per_cpu",
                      "kernel_share_percent", "p50_us", "p99_us")


def command(*args):
    return [net.penstock_path(), "bench", "engines", "--quick", *map(str, args)]


def figures(report):
    return {f["id"]: f for f in report["figures"]}


def test_quick_figures(tmp_path):
    if os.cpu_count() < 2:
        pytest.skip("one CPU")
    out = tmp_path / "json"
    began = time.monotonic()
    done = subprocess.run(command("--json", out), capture_output=True, text=True, timeout=300,
                          env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 240
    report = json.loads(out.read_text())
    found, skipped = figures(report), {s["id"]: s["why"] for s in report["skipped"]}
    assert all(skipped.values())
    for name in RATIOS:
        assert (name in found) != (name in skipped), name
    told = {i.removesuffix(f"_{name}") for i in {**found, **skipped} for name in OF_EACH if i.endswith(f"_{name}")}
    assert told >= {"epoll_recvmmsg", "epoll", "channels"}
    for engine in told:
        for name in OF_EACH:
            assert (f"{engine}_{name}" in found) != (f"{engine}_{name}" in skipped), (engine, name)
    # These run everywhere.
    for engine in ("epoll_recvmmsg", "epoll"):
        for name in set(MEASURED) - {"syscalls_per_100k"}:
            assert found[f"{engine}_{name}"]["value"] > 0, (engine, name)
    for name in ("memory_open_1000_peers_ns", "memory_seal_1000_peers_2_workers_ns", "workers2_over_1_memory"):
        assert all(v > 0 for v in found[name]["samples"]), name
    # The baseline asks before each recvmmsg of 32: 2 calls for 32 packets, if nothing is lost for want of CPU.
    if "epoll_recvmmsg_syscalls_per_100k" in found:
        assert found["epoll_recvmmsg_syscalls_per_100k"]["value"] > 6000
    nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped(tmp_path, number):
    out = tmp_path / "json"
    bench = subprocess.Popen(command("--json", out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=environment(tmp_path))
    try:
        # The bench itself and the process that sends.
        net.wait_until(lambda: len(family(tmp_path)) >= 2, 60, message="nothing sends")
        time.sleep(0.5)
        bench.send_signal(number)
        _, err = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()
    assert bench.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or err == "penstock bench: stopped, nothing was written\n"
    assert not out.exists()
    nothing_left(tmp_path)


@pytest.mark.long  # a whole run once more
def test_without_root():
    """The loopback is all that it needs; what the kernel does not count for everybody is a skip."""
    # Not in tmp_path: nobody else may look into that.
    with tempfile.TemporaryDirectory(prefix="penstock-engines-") as folder:
        os.chmod(folder, 0o777)
        binary, out = os.path.join(folder, "penstock"), os.path.join(folder, "json")
        shutil.copy(net.penstock_path(), binary)
        done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", binary, "bench",
                               "engines", "--quick", "--json", out], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
    assert {f["id"] for f in report["figures"]} >= {"epoll_rx_kpps_per_cpu", "epoll_p999_us", "workers2_over_1_memory"}
    assert all(s["why"] for s in report["skipped"])
