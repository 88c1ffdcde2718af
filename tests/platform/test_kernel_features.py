"""What the gateway relies on in the kernel, each tried by doing it.

A failure here says that a figure or a fallback will differ on this machine; the
gateway itself tries the same at start and goes on without what is missing.
"""
import ctypes
import fcntl
import mmap
import os
import socket
import struct

import pytest

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
TUNGETDEVNETNS = 0x54E3
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR, IFF_MULTI_QUEUE = 0x1, 0x1000, 0x4000, 0x100
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_USO4, TUN_F_USO6 = 0x01, 0x02, 0x04, 0x20, 0x40
UDP_SEGMENT, UDP_GRO = 103, 104
SO_ATTACH_REUSEPORT_CBPF, SO_MEMINFO = 51, 55
SO_ATTACH_BPF, SO_DETACH_BPF = 50, 27

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a TUN")


def open_tun(flags):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    name = b"pspf%d"
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name, IFF_TUN | IFF_NO_PI | flags))
    return fd


@needs_root
def test_tun_with_offload_headers_and_several_queues():
    os.close(open_tun(IFF_VNET_HDR | IFF_MULTI_QUEUE))


@needs_root
@pytest.mark.parametrize("offloads", [
    pytest.param(TUN_F_CSUM, id="checksum"),
    pytest.param(TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6, id="TSO"),
    pytest.param(TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6, id="USO, Linux 6.2"),
])
def test_tun_offload(offloads):
    fd = open_tun(IFF_VNET_HDR)
    try:
        fcntl.ioctl(fd, TUNSETOFFLOAD, offloads)
    finally:
        os.close(fd)


@needs_root
def test_tun_tells_its_network_namespace():
    fd = open_tun(IFF_VNET_HDR)
    try:
        ns = fcntl.ioctl(fd, TUNGETDEVNETNS)
        assert os.fstat(ns).st_ino == os.stat("/proc/self/ns/net").st_ino
        os.close(ns)
    finally:
        os.close(fd)


def udp_pair(family, address):
    a, b = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
    b.bind((address, 0))
    b.settimeout(2)
    a.connect(b.getsockname())
    return a, b


@pytest.mark.parametrize("family, address", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
                         ids=["IPv4", "IPv6"])
def test_a_train_of_64_goes_out_and_comes_in_whole(family, address):
    a, b = udp_pair(family, address)
    with a, b:
        b.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", 100))]
        assert a.sendmsg([bytes(64 * 100)], control) == 6400
        data, ancillary, _, _ = b.recvmsg(65536, 64)
        assert len(data) == 6400
        sizes = [struct.unpack("i", v)[0] for l, t, v in ancillary if (l, t) == (socket.IPPROTO_UDP, UDP_GRO)]
        assert sizes == [100]


def test_longest_train_over_ipv4():
    a, b = udp_pair(socket.AF_INET, "127.0.0.1")
    with a, b:
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", 1452))]
        assert a.sendmsg([bytes(45 * 1452)], control) == 45 * 1452
        with pytest.raises(OSError):
            a.sendmsg([bytes(65508)], control)


def test_classic_bpf_sorts_datagrams_by_their_first_byte():
    """Types 1 to 3 to the second socket of a group, all else to the first."""
    # ldb [0]; jeq 4 -> ret 0; else ret 1
    program = [(0x30, 0, 0, 0), (0x15, 0, 1, 4), (0x06, 0, 0, 0), (0x06, 0, 0, 1)]
    code = b"".join(struct.pack("HBBI", *i) for i in program)
    buffer = ctypes.create_string_buffer(code)
    group = []
    for _ in range(2):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", group[0].getsockname()[1] if group else 0))
        s.settimeout(2)
        group.append(s)
    group[0].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                        struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for kind in (4, 1, 2, 3):
            s.sendto(bytes([kind, 0, 0, 0]), group[0].getsockname())
            assert group[kind != 4].recv(100)[0] == kind
    for s in group:
        s.close()


BPF_MAP_CREATE, BPF_PROG_LOAD = 0, 5


def bpf(command, attributes):
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    fd = libc.syscall(number, command, buffer, len(attributes))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "bpf: " + os.strerror(ctypes.get_errno()))
    return fd


@needs_root
def test_socket_filter_is_attached_without_a_privilege():
    """One that asks for the coarse clock (Linux 5.11, without the GPL) and lets nothing pass."""
    socket_filter, ktime_get_coarse_ns = 1, 160
    code = b"".join(struct.pack("<BBhi", *i) for i in (
        (0x85, 0, 0, ktime_get_coarse_ns), (0xb7, 0, 0, 0), (0x95, 0, 0, 0)))
    instructions, license_text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"MIT")
    program = bpf(BPF_PROG_LOAD, struct.pack("IIQQ24x", socket_filter, len(code) // 8, ctypes.addressof(instructions),
                                             ctypes.addressof(license_text)))
    a, b = udp_pair(socket.AF_INET, "127.0.0.1")
    with a, b:
        os.seteuid(65534)
        try:
            b.setsockopt(socket.SOL_SOCKET, SO_ATTACH_BPF, program)
        finally:
            os.seteuid(0)
            os.close(program)
        a.send(b"kept out")
        b.setsockopt(socket.SOL_SOCKET, SO_DETACH_BPF, 0)
        a.send(b"let in")
        assert b.recv(100) == b"let in"


@needs_root
def test_map_of_a_program_can_be_plain_memory():
    array, mmapable, size = 2, 1 << 10, 1 << 20
    fd = bpf(BPF_MAP_CREATE, struct.pack("IIIII28x", array, 4, size, 1, mmapable))
    try:
        with mmap.mmap(fd, size) as memory:
            memory[size - 1] = 1
            assert memory[0] == 0
    finally:
        os.close(fd)


def test_socket_tells_how_full_it_is():
    a, b = udp_pair(socket.AF_INET, "127.0.0.1")
    with a, b:
        before = struct.unpack("9I", b.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[0]
        a.send(bytes(1000))
        after = struct.unpack("9I", b.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[0]
        assert before == 0 and after >= 1000


def test_broadcast_address_is_told_apart():
    """How the helper finds out which addresses must not be answered by ICMP, or about."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        with pytest.raises(PermissionError):
            s.connect(("127.255.255.255", 9))


@needs_root
def test_connection_tracking_speaks_netlink():
    """Asked for what NAT did. Without it an ICMP error to a translated sender comes from another address."""
    netfilter, conntrack_get, request, dump = 12, 1 << 8 | 1, 1, 0x300
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netfilter) as s:
        s.settimeout(2)
        s.send(struct.pack("IHHIIBBH", 20, conntrack_get, request | dump, 1, 0, socket.AF_INET, 0, 0))
        kind = struct.unpack_from("IH", s.recv(65536))[1]
        assert kind in (1 << 8, 3), "neither a connection nor the end of the list"
