#!/usr/bin/python3
"""tools/syscalls: what it finds, and what it refuses. Prints the Test Anything Protocol.
usage: test_syscalls.py TOOL"""
import os
import re
import subprocess
import sys
import tempfile

TOOL = sys.argv[1]
HEADER = "".join(f"#define __SNR_{name}\t\t__NR_{name}\n" for name in (
    "read recvmmsg sendmmsg recvfrom socket ioctl openat mmap clone clone3 kill bpf execve io_uring_setup io_uring_register ptrace setns poll "
    "ppoll fork setsockopt rt_sigaction").split())

# Name of a case: the comments, and what the list of the gateway is then ("helper: ..." for the helper's).
FOUND = {
    "one line": ("/* syscalls: recvmmsg sendmmsg */", ["recvmmsg", "sendmmsg"]),
    "none": ("int syscalls; /* nothing of the kind */", []),
    "at the end of a comment": ("/* A function.\n * syscalls: read */", ["read"]),
    "after a sentence": ("/* Reads; waits. syscalls: read */", ["read"]),
    "over several lines": ("/* syscalls: read\n *\trecvmmsg\n * sendmmsg */", ["read", "recvmmsg", "sendmmsg"]),
    "reason": ("/* syscalls: read; because of execve */", ["read"]),
    "two lists in a comment": ("/* syscalls: read; why\n * syscalls(helper): sendmmsg */", ["read", "helper: sendmmsg"]),
    "twice": ("/* syscalls: read */\n/* syscalls: read */", ["read"]),
    "helper": ("/* syscalls(helper): setns(CLONE_NEWNET) */", ["helper: setns(CLONE_NEWNET)"]),
    "both": ("/* syscalls(run helper): read */", ["read", "helper: read"]),
    "commas between tags": ("/* syscalls(run, helper): read */", ["read", "helper: read"]),
    "start": ("/* syscalls(start): bpf execve */", []),
    "bpf of the helper": ("/* syscalls(helper): bpf(BPF_MAP_UPDATE_ELEM) */", ["helper: bpf(BPF_MAP_UPDATE_ELEM)"]),
    "bpf refused": ("/* syscalls(run refused): bpf(BPF_PROG_LOAD) */", ["bpf(BPF_PROG_LOAD) refused"]),
    "functions of the library": ("/* syscalls: recv open signal */", ["recvfrom", "openat", "rt_sigaction"]),
    "one function, several calls": ("/* syscalls: poll */", ["poll", "ppoll"]),
    "arguments": ("/* syscalls: socket(AF_INET, SOCK_DGRAM,0) ioctl(TUNGETIFF) ioctl(0x1234) */",
                  ["socket(AF_INET, SOCK_DGRAM, 0)", "ioctl(TUNGETIFF)", "ioctl(0x1234)"]),
    "arguments over a line": ("/* syscalls: setsockopt(SOL_SOCKET,\n *\tSO_MARK) */", ["setsockopt(SOL_SOCKET, SO_MARK)"]),
    "refused": ("/* syscalls(refused): clone3 */", ["clone3 refused"]),
}

# Name of a case: the comments, and a word of the message.
REFUSED = {
    "unknown call": ("\n\n/* syscalls: recvmmsg frobnicate */", "a.c:3: there is no system call 'frobnicate'"),
    "unknown call at the start": ("/* syscalls(start): frobnicate */", "'frobnicate'"),
    "prose": ("/* The comments `syscalls:` list them. */", "'`'"),
    "pattern": ("/* syscalls: inotify_* */", "'inotify_*'"),
    "full stop": ("/* syscalls: read. */", "semicolon"),
    "words": ("/* syscalls: read and more */", "'and'"),
    "nothing": ("/* syscalls: */", "expected the names"),
    "unknown tag": ("/* syscalls(later): read */", "later"),
    "empty tag": ("/* syscalls(): read */", "expected some of"),
    "no argument": ("/* syscalls: ioctl */", "ioctl(ARGUMENT)"),
    "too few": ("/* syscalls: socket(AF_INET) */", "socket(ARGUMENT, ARGUMENT, ARGUMENT)"),
    "too many": ("/* syscalls: read(3) */", "read without arguments"),
    "an expression": ("/* syscalls: ioctl(A | B) */", "'A | B'"),
    "execve": ("/* syscalls: execve */", "execve: no comment"),
    "execve in the helper": ("/* syscalls(helper): execve */", "execve: no comment"),
    "ptrace": ("/* syscalls: ptrace */", "ptrace: no comment"),
    "bpf without its command": ("/* syscalls(start helper): bpf */", "expected bpf(ARGUMENT)"),
    "bpf of the gateway": ("/* syscalls: bpf(BPF_MAP_UPDATE_ELEM) */", "to the helper only"),
    "bpf of both": ("/* syscalls(run helper): bpf(BPF_MAP_UPDATE_ELEM) */", "to the helper only"),
    "another bpf of the helper": ("/* syscalls(helper): bpf(BPF_PROG_LOAD) */", "bpf(BPF_MAP_UPDATE_ELEM) only"),
    "a ring's other operations": ("/* syscalls: io_uring_register(IORING_REGISTER_PERSONALITY) */", "only, after the start"),
    "a ring in the helper": ("/* syscalls(helper): io_uring_register(IORING_REGISTER_SYNC_CANCEL) */", "to the run only"),
    "io_uring_setup": ("/* syscalls: io_uring_setup */", "io_uring_setup: no comment"),
    "a child process": ("/* syscalls: fork */", "fork: no comment"),
    "clone3 let through": ("/* syscalls: clone3 */", "clone3: no comment"),
    "a comment of C++": ("// syscalls: read", "comment */ only"),
    "outside": ("\nchar *s = \"syscalls: read\";", "a.c:2: "),
}


def tool(folder, *args, sources=("a.c",)):
    header = os.path.join(folder, "names.h")
    with open(header, "w", encoding="utf-8") as f:
        f.write(HEADER)
    return subprocess.run([TOOL, "--header", header, *args, *(os.path.join(folder, "gateway", s) for s in sources)],
                          capture_output=True, text=True, check=False)


def put(folder, text, name="a.c"):
    os.makedirs(os.path.join(folder, "gateway"), exist_ok=True)
    with open(os.path.join(folder, "gateway", name), "w", encoding="utf-8") as f:
        f.write(text)


def listed(out):
    found, prefix = [], ""
    for line in out.splitlines():
        if not line.startswith(" "):
            prefix = "helper: " if line.startswith("helper") else ""
        else:
            found.append(prefix + re.split(r"\s{2,}|\s(?=gateway/)", line.strip())[0])
    return found


def test_found(folder, text, expected):
    put(folder, text)
    done = tool(folder)
    assert done.returncode == 0, done.stderr
    assert sorted(listed(done.stdout)) == sorted(expected), done.stdout


def test_refused(folder, text, word):
    put(folder, text)
    out = os.path.join(folder, "out.c")
    done = tool(folder, "--out", out)
    assert done.returncode == 1, "it was accepted"
    assert word in done.stderr and "a.c:" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert not os.path.exists(out)


def test_table(folder):
    """The C text: a call of the architecture or nothing, arguments where they are looked at."""
    put(folder, "/* syscalls: read mmap kill(HELPER) socket(AF_INET, SOCK_DGRAM, 0) */\n/* syscalls(helper refused): clone3 */\n")
    put(folder, "/* syscalls: read */", "b.c")
    out = os.path.join(folder, "out.c")
    assert tool(folder, "--out", out, sources=("b.c", "a.c")).returncode == 0
    with open(out, encoding="utf-8") as f:
        text = f.read()
    gateway, helper = text.split("helper_calls_table", 1)
    assert "#ifdef SYS_read\n\t/* read: gateway/a.c gateway/b.c */\n\t{ .nr = SYS_read },\n#endif" in gateway
    assert "SYS_mmap, .n_args = 1, .args = { { .i = 2, .mask = (uint32_t)PROT_EXEC, .value = 0 } }" in gateway
    assert ".who = SANDBOX_HELPER" in gateway
    assert ".n_args = 3" in gateway and ".mask = 0xf, .value = (uint32_t)(SOCK_DGRAM)" in gateway
    put(folder, "/* syscalls(helper): bpf(BPF_MAP_UPDATE_ELEM) */", "b.c")
    assert tool(folder, "--out", out, sources=("b.c", "a.c")).returncode == 0
    with open(out, encoding="utf-8") as f:
        bpf_gateway, bpf_helper = f.read().split("helper_calls_table", 1)
    assert "SYS_bpf" not in bpf_gateway
    assert "SYS_bpf, .n_args = 1, .args = { { .i = 0, .mask = 0xffffffff, .value = (uint32_t)(BPF_MAP_UPDATE_ELEM) } }" in bpf_helper
    assert "SYS_clone3" not in gateway and ".nr = SYS_clone3, .is_refused = true" in helper


def test_unchanged_output_is_left_alone(folder):
    put(folder, "/* syscalls: read */")
    out = os.path.join(folder, "out.c")
    assert tool(folder, "--out", out).returncode == 0
    os.utime(out, (1000, 1000))
    assert tool(folder, "--out", out).returncode == 0
    assert os.stat(out).st_mtime == 1000, "a new file for the same text: everything is built anew"
    put(folder, "/* syscalls: read poll */")
    assert tool(folder, "--out", out).returncode == 0
    assert os.stat(out).st_mtime != 1000


def test_sources_of_this_tree(_folder):
    done = subprocess.run([TOOL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"recvmmsg", "epoll_wait", "helper: setns(CLONE_NEWNET)"} <= set(listed(done.stdout)), done.stdout


def main():
    cases = [(f"finds: {name}", test_found, c) for name, c in FOUND.items()]
    cases += [(f"refuses: {name}", test_refused, c) for name, c in REFUSED.items()]
    cases += [(f.__name__, f, ()) for f in (test_table, test_unchanged_output_is_left_alone, test_sources_of_this_tree)]
    failed = 0
    print(f"1..{len(cases)}")
    for i, (name, function, args) in enumerate(cases, 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                function(folder, *args)
                print(f"ok {i} - {name}")
            except AssertionError as e:
                failed += 1
                print(f"not ok {i} - {name}", *str(e).strip().splitlines(), sep="\n# ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
