#!/usr/bin/python3
"""Strangers on the network, for test_stress.py: a process of its own, so that it and the test do not wait for each other.

usage: strangers.py CONFIG, one line of JSON:
    seed, capture: [namespace, interface] where all passes,
    sides: [{attacker: namespace, target: [address, port, IPv6 address], peer: [address, port], public: key}, ...] of two gateways.
Commands on standard input, one a line; each is answered by a line:
    quiet; noise; flood I; calm I; port I PORT; count I KIND N (send exactly N of a kind to gateway I, slowly); sent
It ends with its standard input.
"""
import base64
import collections
import contextlib
import hashlib
import json
import random
import socket
import struct
import sys
import threading
import time

import lab as net

MARK_TTL = 77  # of the datagrams that we forge: the capture keeps those that are real
MESSAGE_SIZES = {1: 148, 2: 92, 3: 64}
KEPT = 32  # captured messages per direction and type
RATE = 4000  # forged datagrams a second and gateway, as far as Python gets


class Wire:
    """What the gateways really sent, by receiving side and type: the latest of each."""

    def __init__(self, ns, interface):
        self.kept = [{t: collections.deque(maxlen=KEPT) for t in (1, 2, 3, 4)} for _ in range(2)]
        with net.inside(ns):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(net.ETH_P_ALL))
            self.socket.bind((interface, net.ETH_P_ALL))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                data, who = self.socket.recvfrom(4096)
            except OSError:  # the link went down
                continue
            if len(data) >= 60 and data[0] == 0x45 and data[9] == 17 and data[8] != MARK_TTL and data[28] in self.kept[0]:
                self.kept[0 if who[2] == socket.PACKET_OUTGOING else 1][data[28]].append(data[28:])

    def pick(self, rng, side, *types):
        """One that side 0 or 1 received; None while there is none."""
        for t in rng.sample(types, len(types)):
            with contextlib.suppress(IndexError):
                return rng.choice(self.kept[side][t])
        return None


def mac1(public, message):
    """The MAC that anybody can make who knows the public key (section 5.4.4 of the WireGuard paper)."""
    key = hashlib.blake2s(b"mac1----" + base64.b64decode(public)).digest()
    return hashlib.blake2s(message, key=key, digest_size=16).digest()


class Forger:
    """Makes datagrams that no gateway should believe."""

    def __init__(self, rng, wire, side, public):
        self.rng, self.wire, self.side, self.public = rng, wire, side, public
        self.kinds = (self.noise, self.sized, self.replayed, self.flipped, self.cut, self.merged, self.forged_data, self.initiation,
                      self.response, self.cookie, self.reserved)

    def one(self):
        return self.rng.choice(self.kinds)()

    def real(self, *types):
        return self.wire.pick(self.rng, self.side, *(types or (1, 2, 3, 4))) or self.sized()

    def index(self):
        """A receiver index that is or was in use: of data, or of a handshake that waits for its response."""
        if self.rng.random() < 0.7:
            return (self.wire.pick(self.rng, self.side, 4) or bytes(8))[4:8]
        return (self.wire.pick(self.rng, 1 - self.side, 1) or bytes(8))[4:8]

    def noise(self):
        return self.rng.randbytes(self.rng.choice((0, 1, 3, 4, 16, 31, 32, 64, 92, 148, 1400, self.rng.randrange(1472))))

    def sized(self):
        t = self.rng.choice((1, 2, 3, 4))
        return bytes([t, 0, 0, 0]) + self.rng.randbytes(MESSAGE_SIZES.get(t, 16 * self.rng.randrange(2, 80)) - 4)

    def replayed(self):
        return self.real()

    def flipped(self):
        data = bytearray(self.real())
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(data)

    def cut(self):
        data = self.real()
        return data[:self.rng.randrange(len(data))]

    def merged(self):
        return (self.real() + self.real())[:1472]

    def forged_data(self):
        counter = self.rng.choice((0, self.rng.randrange(1000), self.rng.getrandbits(64), (1 << 64) - 1))
        return bytes([4, 0, 0, 0]) + self.index() + struct.pack("<Q", counter) + self.rng.randbytes(16 * self.rng.randrange(1, 80))

    def sign(self, head):
        mac2 = bytes(16) if self.rng.random() < 0.7 else self.rng.randbytes(16)
        return head + mac1(self.public, head) + mac2

    def initiation(self):
        return self.sign(bytes([1, 0, 0, 0]) + self.rng.randbytes(112))

    def response(self):
        return self.sign(bytes([2, 0, 0, 0]) + self.rng.randbytes(4) + self.index() + self.rng.randbytes(48))

    def cookie(self):
        return bytes([3, 0, 0, 0]) + self.index() + self.rng.randbytes(56)

    def reserved(self):
        data = self.real()
        return data[:1] + self.rng.randbytes(3) + data[4:]


class Stranger:
    """Sends to one gateway what Forger makes, from many addresses and from that of the good peer."""

    def __init__(self, seed, wire, side, attacker, target, peer, public):
        self.rng = random.Random(f"{seed}-{side}")
        self.forger = Forger(self.rng, wire, side, public)
        self.target, self.peer = target, peer
        with net.inside(attacker):
            self.raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            self.plain = [socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6)]
        self.sent = 0
        self.is_flood, self.is_quiet, self.is_idle = False, True, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def source(self):
        r = self.rng.random()
        if r < 0.4:
            return socket.inet_aton(self.peer[0]), self.peer[1]
        if r < 0.95:
            return bytes([10, 66]) + self.rng.randbytes(2), self.rng.randrange(1, 65536)
        return self.rng.randbytes(4), self.rng.randrange(65536)

    def send(self, data):
        with contextlib.suppress(OSError):
            r = self.rng.random()
            if r < 0.03:  # larger than a packet
                self.plain[0].sendto(data * self.rng.randrange(1, 40), tuple(self.target[:2]))
            elif r < 0.1:
                self.plain[1].sendto(data, (self.target[2], self.target[1]))
            else:
                source, port = self.source()
                head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, MARK_TTL, 17, 0, source, socket.inet_aton(self.target[0]))
                udp = struct.pack("!HHHH", port, self.target[1], 8 + len(data), 0)
                self.raw.sendto(head + udp + data, (self.target[0], 0))
        self.sent += 1

    def _run(self):
        while True:
            if self.is_quiet:
                self.is_idle.set()
                time.sleep(0.01)
                continue
            self.is_idle.clear()
            for _ in range(64):
                self.send(self.forger.initiation() if self.is_flood else self.forger.one())
            time.sleep(0 if self.is_flood else 64 / RATE)

    def count(self, kind, n):
        """Returns how many the kernel took."""
        self.is_idle.wait()
        done = 0
        for i in range(n):
            with contextlib.suppress(OSError):
                self.plain[0].sendto(getattr(self.forger, kind)(), tuple(self.target[:2]))
                done += 1
            if i % 10 == 9:
                time.sleep(0.01)
        return done


def obey(strangers, words):
    command, *args = words
    if command in ("quiet", "noise"):
        for s in strangers:
            s.is_idle.clear()
            s.is_quiet = command == "quiet"
        if command == "quiet":
            for s in strangers:
                s.is_idle.wait()
        return "done"
    if command == "sent":
        return sum(s.sent for s in strangers)
    s = strangers[int(args[0])]
    if command in ("flood", "calm"):
        s.is_flood = command == "flood"
    elif command == "port":
        s.target[1] = int(args[1])
    elif command == "count":
        return s.count(args[1], int(args[2]))
    return "done"


def main():
    config = json.loads(sys.argv[1])
    wire = Wire(*config["capture"])
    strangers = [Stranger(config["seed"], wire, i, **side) for i, side in enumerate(config["sides"])]
    for line in sys.stdin:
        print(obey(strangers, line.split()), flush=True)


if __name__ == "__main__":
    main()
