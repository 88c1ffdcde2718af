"""penstock bench tunnels with a gateway: its figures, few peers for all, and what it leaves behind."""
import json
import signal
import subprocess
import time

import pytest

import lab as net
from test_bench import environment, family, nothing_left

MEASURED = ("handshakes_through_udp", "rate_100k_over_1", "rate_1_ns_per_packet", "rate_100k_ns_per_packet",
            "rate_1_per_second", "rate_100k_per_second", "fairness_jain")
NOT_QUICK = {"bytes_per_idle_peer", "bytes_per_session_peer", "setconf_100k_seconds", "show_20k_seconds",
             "show_100k_seconds"}


def command(*args):
    return [net.penstock_path(), "bench", "tunnels", *map(str, args)]


def test_quick_figures(tmp_path):
    out = tmp_path / "json"
    done = subprocess.run(command("--quick", "--json", out), capture_output=True, text=True, timeout=200,
                          env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert {s["id"] for s in report["skipped"] if not s["id"].startswith("aead")} == NOT_QUICK
    found = {f["id"]: f for f in report["figures"]}
    for name in MEASURED:
        assert all(v > 0 for v in found[name]["samples"]), name
        assert found[name]["claim"].endswith("(here 2000 peers)")
    assert 0.1 < found["fairness_jain"]["value"] <= 1
    nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_while_gateway_runs(tmp_path, number):
    bench = subprocess.Popen(command("--quick"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=environment(tmp_path))
    try:
        # The bench itself, the keeper of its sockets, a gateway and its helper.
        net.wait_until(lambda: len(family(tmp_path)) >= 4, 60, message="no gateway was started")
        time.sleep(0.5)
        bench.send_signal(number)
        _, err = bench.communicate(timeout=20)
    finally:
        bench.kill()
        bench.wait()
    assert bench.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or err == "penstock bench: stopped, nothing was written\n"
    nothing_left(tmp_path)
