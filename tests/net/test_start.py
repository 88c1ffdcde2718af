"""Starting: options, configuration files, handed-over descriptors, no privilege, the background."""
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time

import pytest

import lab as net
from conftest import Pair, is_stand_in, under_test

pytestmark = pytest.mark.skipif(is_stand_in(), reason="start options are penstock's own")

BAD_COMMAND_LINES = {
    "nothing": [],
    "unknown command": ["frobnicate"],
    "unknown option": ["gateway", "--frobnicate", "wgx0"],
    "no interface": ["gateway"],
    "two interfaces": ["gateway", "wgx0", "wgx1"],
    "name too long": ["gateway", "w" * 16],
    "name with slash": ["gateway", "../wgx0"],
    "name empty": ["gateway", ""],
    "engine": ["gateway", "--engine", "steam", "wgx0"],
    "engine missing": ["gateway", "wgx0", "--engine"],
    "cipher": ["gateway", "--aead", "rot13", "wgx0"],
    "offload": ["gateway", "--no-offload", "everything", "wgx0"],
    "offload empty": ["gateway", "--no-offload", "", "wgx0"],
    "sandbox": ["gateway", "--sandbox", "sand", "wgx0"],
    "log level": ["gateway", "--log-level", "loud", "wgx0"],
    "both grounds": ["gateway", "--daemon", "--foreground", "wgx0"],
    "status and engine": ["gateway", "--status", "--engine", "epoll", "wgx0"],
    "config missing": ["gateway", "--config"],
    "config empty": ["gateway", "--config", "", "wgx0"],
}


def penstock(*args, **kw):
    return subprocess.run([net.penstock_path(), *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20,
                          check=False, **kw)


@pytest.mark.parametrize("name", BAD_COMMAND_LINES)
def test_bad_command_line(name):
    done = penstock(*BAD_COMMAND_LINES[name])
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, f"not one line: {done.stderr!r}"
    assert not done.stdout


@pytest.mark.parametrize("args", (["--help"], ["--version"], ["gateway", "--help"]))
def test_help_and_version(args):
    done = penstock(*args)
    assert done.returncode == 0 and done.stdout.strip() and not done.stderr


def test_help_names_every_option():
    text = penstock("gateway", "--help").stdout
    for option in ("--config", "--foreground", "--daemon", "--engine", "--no-offload", "--aead", "--log-level", "--sandbox", "--status", "--peer"):
        assert option in text


@pytest.mark.parametrize("value", ("x", "-1", "99", "0x3", "3 4"))
@pytest.mark.parametrize("variable", ("WG_TUN_FD", "WG_UAPI_FD"))
def test_bad_descriptor_numbers(lab, variable, value):
    ns = lab.namespace("a")
    with net.inside(ns):
        done = penstock("gateway", "--foreground", lab.ifname(), env={**os.environ, variable: value})
    assert done.returncode not in (0, -6, -11), done
    assert done.stderr.strip()


def test_needs_privilege_and_says_which(lab):
    ns = lab.namespace("a")
    with net.inside(ns):
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", net.penstock_path(), "gateway",
                               "--foreground", lab.ifname()], capture_output=True, text=True, check=False, timeout=20,
                              stdin=subprocess.DEVNULL)
    assert done.returncode not in (0, -6, -11)
    assert "CAP_NET_ADMIN" in done.stderr


# ---- --config


def config(private, peer, extra=""):
    return f"[Interface]\nPrivateKey = {private}\nListenPort = 42111\n{extra}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.0.0.0/8\n"


def test_config_file(lab):
    private, peer = net.genkey(), net.pubkey(net.genkey())
    path = lab.file("g.conf", config(private, peer))
    g = net.Gateway(lab, lab.namespace("a"), under_test(), ["--config", path])
    assert g.wg("show", g.name, "private-key").stdout.strip() == private
    assert g.port() == 42111
    assert g.show("allowed-ips") == [[peer, "10.0.0.0/8"]]


@pytest.mark.parametrize("mode", (0o644, 0o640, 0o604))
def test_config_that_others_can_read_is_refused(lab, mode):
    private = net.genkey()
    path = lab.file("g.conf", config(private, net.pubkey(private)), mode)
    ns, name = lab.namespace("a"), lab.ifname()
    with net.inside(ns):
        done = penstock("gateway", "--foreground", "--config", path, name)
    assert done.returncode not in (0, -6, -11)
    assert path in done.stderr and private not in done.stderr
    assert net.run(ns, "ip", "link", "show", name, check=False).returncode != 0
    assert not os.path.exists(os.path.join(net.CONFIG_DIR, name + ".sock"))


@pytest.mark.parametrize("line", ("ListenPort = many", "Frobnicate = 1", "[Nowhere]", "PrivateKey = short", "no equals sign",
                                  "FwMark = red", "x" * 100000))
def test_bad_config_file_names_the_line(lab, line):
    path = lab.file("g.conf", config(net.genkey(), net.pubkey(net.genkey()), line))
    ns, name = lab.namespace("a"), lab.ifname()
    with net.inside(ns):
        done = penstock("gateway", "--foreground", "--config", path, name)
    assert done.returncode not in (0, -6, -11)
    assert "4" in done.stderr.split(path)[-1], f"line 4 is not named: {done.stderr!r}"
    assert not os.path.exists(os.path.join(net.CONFIG_DIR, name + ".sock"))


@pytest.mark.parametrize("what", ("missing", "folder", "empty"))
def test_config_that_is_none(lab, what):
    path = {"missing": lab.tmp + "/none.conf", "folder": lab.tmp, "empty": lab.file("e.conf", "")}[what]
    ns, name = lab.namespace("a"), lab.ifname()
    if what == "empty":  # nothing to configure is no error
        net.Gateway(lab, ns, under_test(), ["--config", path])
        return
    with net.inside(ns):
        done = penstock("gateway", "--foreground", "--config", path, name)
    assert done.returncode not in (0, -6, -11) and path in done.stderr


# ---- Descriptors of others, no privilege

TUNSETIFF, IFF_TUN, IFF_NO_PI, IFF_VNET_HDR, IFF_MULTI_QUEUE = 0x400454CA, 1, 0x1000, 0x4000, 0x100
UNPRIVILEGED = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
                "--no-new-privs"]


def start_unprivileged(lab, g, flags):
    """Start gateway g anew as nobody, on a TUN and a configuration socket that we opened for it."""
    g.stop()
    listener = socket.socket(socket.AF_UNIX)
    with net.inside(g.ns):
        # /dev/net/tun belongs to the namespace in which it is opened.
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        with net.inside(g.ns):
            fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", g.name.encode(), IFF_TUN | IFF_NO_PI | flags))
        os.makedirs(net.CONFIG_DIR, mode=0o700, exist_ok=True)
        listener.bind(g.socket_path)
        os.chmod(g.socket_path, 0o600)
        listener.listen(16)
        os.set_inheritable(tun, True)
        os.set_inheritable(listener.fileno(), True)
        g.process = lab.start(g.ns, *UNPRIVILEGED, *under_test().argv, g.name, log=g.log_path,
                              env={"WG_TUN_FD": str(tun), "WG_UAPI_FD": str(listener.fileno())},
                              pass_fds=(tun, listener.fileno()))
    finally:
        listener.close()
        os.close(tun)
    net.wait_until(lambda: g.process.poll() is not None or "errno=0" in g.ask("get=1\n\n"), 5)
    assert g.alive(), g.log()


@pytest.mark.parametrize("flags", (0, IFF_VNET_HDR, IFF_VNET_HDR | IFF_MULTI_QUEUE), ids=("plain", "vnet", "multi-queue"))
def test_no_privilege_with_given_descriptors(lab, flags):
    p = Pair(lab)
    g = p.ga
    start_unprivileged(lab, g, flags)
    g.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
    g.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
    p.works()
    net.tcp_transfer(lab, p.a, p.b, p.inner4[1], 20 << 20)
    net.tcp_transfer(lab, p.b, p.a, p.inner6[0], 20 << 20)
    with open(f"/proc/{g.process.pid}/status", encoding="ascii") as f:
        assert "CapEff:\t0000000000000000" in f.read()


def effective_capabilities(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1], 16) for line in f if line.startswith("CapEff"))


def test_privilege_is_dropped_after_start(lab):
    p = Pair(lab)
    p.works()
    assert effective_capabilities(p.ga.process.pid) == 0, "the data path keeps capabilities"
    with open(f"/proc/{p.ga.process.pid}/limits", encoding="ascii") as f:
        core = next(line for line in f if line.startswith("Max core file size"))
    assert core.split()[4] == "0"


def test_port_below_1024_after_the_drop(lab):
    p = Pair(lab)
    p.ga.wg("set", p.ga.name, "listen-port", "53")
    assert p.ga.port() == 53
    p.works()


# ---- The background


@pytest.mark.parametrize("as_quick", (False, True), ids=("--daemon", "penstock-wg"))
def test_background(lab, as_quick):
    ns, name = lab.namespace("a"), lab.ifname()
    if as_quick:
        link = os.path.join(lab.tmp, "penstock-wg")
        os.symlink(net.penstock_path(), link)
        argv = [link, "--sandbox", "kill", name]
    else:
        argv = [net.penstock_path(), "gateway", "--daemon", "--sandbox", "kill", name]
    done = net.run(ns, *argv, timeout=20)
    assert done.returncode == 0
    # When the command returns everything is there.
    assert os.path.exists(os.path.join(net.CONFIG_DIR, name + ".sock"))
    assert net.run(ns, "ip", "link", "show", name).returncode == 0
    net.run(ns, "wg", "show", name)
    pids = net._pids_in(ns)
    assert pids
    # As wg-quick down does it: the interface is deleted, the program follows.
    net.run(ns, "ip", "link", "del", name)
    net.wait_until(lambda: not net._pids_in(ns), 10, message="the program outlives its interface")
    assert not os.path.exists(os.path.join(net.CONFIG_DIR, name + ".sock"))


def test_second_gateway_of_the_same_name(lab):
    ns = lab.namespace("a")
    g = net.Gateway(lab, ns, under_test())
    with net.inside(ns):
        done = penstock("gateway", "--foreground", g.name)
    assert done.returncode not in (0, -6, -11) and g.name in done.stderr
    assert g.alive() and "errno=0" in g.ask("get=1\n\n")


def test_status_of_none(lab):
    done = penstock("gateway", "--status", lab.ifname())
    assert done.returncode not in (0, -6, -11)
    assert len(done.stderr.strip().splitlines()) == 1


def test_secrets_stay_out_of_the_log(lab):
    with net.Lab() as one:
        p = Pair(one, psk=True, options=("--log-level", "debug"))
        p.works()
        for g in p.gateways:
            text = g.log()
            for secret in (g.private, net.hexkey(g.private), p.psk, net.hexkey(p.psk)):
                assert secret not in text


def test_stop_and_start_again_under_traffic(lab):
    """A gateway that comes back is found by the other side's handshake."""
    p = Pair(lab)
    p.works()
    for _ in range(3):
        stream = net.UdpStream(lab, p.b, p.a, p.inner4[0], 1000)
        assert p.ga.stop() in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        time.sleep(0.2)
        p.ga.start()
        p.ga.up(p.inner4[0] + "/24", p.inner6[0] + "/64", port=p.ports[0])
        p.ga.peer(p.gb.public, f"{p.inner4[1]}/32,{p.inner6[1]}/128", p.outer(1))
        assert net.first_ping(p.a, p.inner4[1], 15)
        stream.finish()
