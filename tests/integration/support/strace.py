"""What a process reads and sends, as the kernel sees it (strace), and errors that the kernel is made to give."""
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from . import safetensors
from .daemon import SLOW

CALLS = "read,pread64,readv,preadv,preadv2,mmap,copy_file_range,sendfile,splice,io_uring_enter,sendmsg,sendto,write,writev,pwrite64"
WRITES = ("sendmsg", "sendto", "writev", "write")
DONE = re.compile(r"^(\d+) +(?:[\d.]+ )?(\w+)\((.*)\) += +(-?\d+|0x[0-9a-f]+)")
CUT = re.compile(r"^(\d+) +(.*) <unfinished \.\.\.>$")
REST = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")


def available():
    """Skips the test where nobody may be traced."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed (./run deps)")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL).returncode:
        pytest.skip("strace may not trace here")


class Strace:
    """Follows a running process and its threads while the block lasts; `calls` afterwards: (name, arguments, result)."""

    def __init__(self, pid, folder, *more):
        available()
        self.pid = pid
        self.path = os.path.join(str(folder), f"strace-{time.monotonic_ns()}")
        self.args = ["strace", "-f", "-y", "-s", "0", "-o", self.path, *more]

    def tracer_of(self, pid):
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return int(re.search(r"TracerPid:\s+(\d+)", file.read()).group(1))

    def __enter__(self):
        self.process = subprocess.Popen([*self.args, "-p", str(self.pid)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 10 * SLOW
        while any(self.tracer_of(f"{self.pid}/task/{task}") == 0 for task in os.listdir(f"/proc/{self.pid}/task")):
            if self.process.poll() is not None:
                why = self.process.stderr.read()
                if "not permitted" in why:
                    pytest.skip(f"strace may not attach here: {why.strip()}")
                raise AssertionError(why)
            assert time.monotonic() < deadline, "strace does not attach"
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(10 * SLOW)
        self.process.stderr.close()
        self.calls = parse(self.path)


def from_start(path):
    """Words to put before a program's: it and its children are followed from the first call on. The program keeps its pid."""
    return ["strace", "-D", "-f", "-y", "-s", "0", "-o", path, "-e", "trace=" + CALLS]


def wait_end(path, pid):
    """Until the account of a program that was started so is written out: strace outlives it by a moment."""
    deadline = time.monotonic() + 10 * SLOW
    while True:
        with open(path, encoding="utf-8", errors="replace") as file:
            if re.search(rf"^{pid} +\+\+\+ (exited|killed)", file.read(), re.M):
                return
        assert time.monotonic() < deadline, "strace does not end"
        time.sleep(0.02)


def parse(path):
    calls, begun = [], {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            line = line.rstrip("\n")
            cut, rest = CUT.match(line), REST.match(line)
            if cut:
                begun[cut.group(1)] = line[:-len(" <unfinished ...>")]
                continue
            if rest:
                line = begun.pop(rest.group(1), rest.group(1) + " lost(") + rest.group(2)
            done = DONE.match(line)
            if done:
                calls.append((done.group(2), done.group(3), int(done.group(4), 0)))
    return calls


def weights_of(checkpoint):
    """File -> ranges of FP8 weights in it, (first byte, end)."""
    ranges = {}
    for name in os.listdir(checkpoint):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.realpath(os.path.join(checkpoint, name))
        header, data = safetensors.read_header(path)
        ranges[path] = [(data + t["data_offsets"][0], data + t["data_offsets"][1]) for key, t in header.items()
                        if key != "__metadata__" and t["dtype"] == "F8_E4M3"]
    return ranges


class Seen:
    """Bytes read of weights, bytes read of shards at all, bytes written to links of ducks; calls that this cannot judge."""

    def __init__(self, calls, checkpoint):
        weights = weights_of(checkpoint)
        self.weights = self.shards = self.sent = 0
        self.unknown = []
        at = {}  # file offset of read() by descriptor
        for name, arguments, result in calls:
            where = re.match(r"(\d+)<([^>]*)>", arguments)
            shard = next((path for path in weights if f"<{path}>" in arguments), None)
            if shard and name == "pread64" and result > 0:
                offset = int(arguments.rsplit(", ", 1)[1], 0)
                self.shards += result
                self.weights += sum(max(0, min(end, offset + result) - max(first, offset)) for first, end in weights[shard])
            elif shard and name == "read" and result > 0:
                offset = at.get(where.group(1), 0)
                at[where.group(1)] = offset + result
                self.shards += result
                self.weights += sum(max(0, min(end, offset + result) - max(first, offset)) for first, end in weights[shard])
            elif shard and result > 0:
                self.unknown.append((name, arguments, result))
            elif name in WRITES and where and result > 0 and re.match(r"(TCP|UNIX|socket)", where.group(2)):
                self.sent += result
