"""job.progress: phases in order, bytes that only grow and end at the total, a rate and a time left that agree with them."""
import os
import pty
import re
import signal
import subprocess
import threading
import time

import pytest
from support import safetensors
from support.daemon import SLOW, Daemon, program
from support.model import make_checkpoint
from support.rpc import Rpc
from support.service import DuckService, Proxy

ORDER = ["queued", "open", "digest", "prepare", "seal", "verify", "done"]
SHAPE = dict(num_hidden_layers=4, hidden_size=1024, moe_intermediate_size=768, num_experts=16, mlp_only_layers=[])  # 151 MB


class Thin(Proxy):
    """A link of some MB/s."""
    rate = 60e6

    def move(self, source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                time.sleep(len(data) / self.rate)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(2)
            except OSError:
                pass


@pytest.fixture(scope="module")
def checkpoint_path(build, tmp_path_factory):
    return make_checkpoint(build, tmp_path_factory.mktemp("progress"), **SHAPE)


@pytest.fixture
def far(build, tmp_path):
    """fp9d with two ducks behind thin links: loads that take a second or two."""
    ducks = [DuckService(build, tmp_path, f"d{i}", memory="256M").start() for i in range(2)]
    proxies = [Thin(duck.port) for duck in ducks]
    daemon = Daemon(build, tmp_path, ducks=0, remote=[(d.name, p.address) for d, p in zip(ducks, proxies)]).start()
    yield daemon, ducks
    daemon.stop()
    for proxy in proxies:
        proxy.close()
    for duck in ducks:
        duck.end()


def told(rpc, job):
    """The progress of a job, checked on its own."""
    steps = [n["params"] for n in rpc.notifications if n["method"] == "job.progress" and n["params"]["job"] == job]
    assert steps and steps[-1]["phase"] in ("done", "failed", "cancelled"), steps
    phases = [s["phase"] for s in steps]
    assert [ORDER.index(p) for p in phases] == sorted(ORDER.index(p) for p in phases), phases
    done = [s["done_bytes"] for s in steps]
    assert done == sorted(done), done
    for step in steps:
        assert 0 <= step["done_bytes"] and step["rate"] >= 0, step
        assert step["done_bytes"] <= step["total_bytes"], step
        if step["rate"] > 0:
            left = (step["total_bytes"] - step["done_bytes"]) / step["rate"]
            assert abs(step["eta_s"] - left) <= 0.01 * left + 0.001, step
        else:
            assert step["eta_s"] is None, step
    return steps


def run(rpc, path, **more):
    job = rpc.call("model.load", path=path, name="m", tp=2, multiple_of=64, **more)["job"]
    begin = time.monotonic()
    done = rpc.call("job.wait", job=job)
    return told(rpc, job), done, time.monotonic() - begin


def phases_of(steps):
    found = []
    for step in steps:
        if not found or found[-1] != step["phase"]:
            found.append(step["phase"])
    return found


def test_load(far, checkpoint_path):
    daemon, _ = far
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        steps, done, seconds = run(rpc, checkpoint_path)
        assert phases_of(steps) in (["open", "prepare", "done"], ["open", "prepare", "seal", "done"])
        moving = [s for s in steps if s["phase"] == "prepare"]
        assert len({s["done_bytes"] for s in moving}) >= 3, "hardly any progress was shown"
        assert len({s["total_bytes"] for s in moving}) == 1
        assert steps[-1]["done_bytes"] == steps[-1]["total_bytes"] == done["bytes_read"] > 150e6
        # Over the whole, the rate is bytes through time; in the middle, the time left is about what it then took.
        assert done["bytes_read"] / seconds < steps[-1]["rate"] * 1.05
        assert steps[-1]["eta_s"] == 0
        assert any(s["eta_s"] and s["eta_s"] > 0.1 for s in moving), moving
        # A hit has no bytes to move.
        steps, done, _ = run(rpc, checkpoint_path)
        assert done["cache"] == "hit" and phases_of(steps) == ["open", "done"] and steps[-1]["total_bytes"] == 0


def test_files_that_are_others(far, checkpoint_path, tmp_path):
    """Rewritten files are read to be told from changed ones; then what has changed is prepared."""
    daemon, _ = far
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        run(rpc, checkpoint_path)
        shard = next(os.path.join(checkpoint_path, n) for n in sorted(os.listdir(checkpoint_path)) if n.endswith(".safetensors"))
        os.utime(shard)
        steps, done, _ = run(rpc, checkpoint_path)
        assert done["cache"] == "hit" and phases_of(steps) == ["open", "digest", "done"]
        assert steps[-1]["done_bytes"] == steps[-1]["total_bytes"] == done["bytes_read"] > 0
        header, start = safetensors.read_header(shard)
        name = next(n for n, t in header.items() if n != "__metadata__" and t["dtype"] == "F8_E4M3" and ".layers.2." in n)
        with open(shard, "r+b") as file:
            file.seek(start + header[name]["data_offsets"][0])
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        steps, done, _ = run(rpc, checkpoint_path)
        assert done["cache"] == "partial" and phases_of(steps) == ["open", "digest", "prepare", "seal", "done"]
        assert steps[-1]["done_bytes"] == steps[-1]["total_bytes"] == done["bytes_read"]


def test_recovery_is_told_to_whoever_waits(far, checkpoint_path):
    daemon, ducks = far
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        _, done, _ = run(rpc, checkpoint_path)
        ducks[1].kill()
        ducks[1].manager.forget()
        ducks[1].start()
        deadline = time.monotonic() + 30 * SLOW
        while not (jobs := [j for j in rpc.call("job.list")["jobs"] if j["kind"] == "recover" and j["state"] == "running"]):
            assert time.monotonic() < deadline, daemon.log()
            time.sleep(0.01)
        (job,) = jobs
        recovered = rpc.call("job.wait", job=job["id"])
        steps = told(rpc, job["id"])
        assert recovered["cache"] == "partial" and recovered["model_key"] == done["model_key"]
        assert "prepare" in phases_of(steps) and phases_of(steps)[-1] == "done"
        assert steps[-1]["done_bytes"] == steps[-1]["total_bytes"] == recovered["bytes_read"] > 50e6
        assert len({s["done_bytes"] for s in steps}) >= 2


def test_verify(make_daemon, checkpoint_path):
    daemon = make_daemon(ducks=2, memory="256M")
    daemon.ok("load", checkpoint_path, "--name", "m", "--tp", 2)
    total = sum(s["bytes"] for s in daemon.ok("cache", "list")["slots"])
    for full in (False, True):
        with Rpc(daemon.socket, 60 * SLOW) as rpc:
            done = rpc.call("cache.verify", full=full)
            steps = told(rpc, done["job"])
            assert (done["checked"], done["bad"], done["bytes"]) == (8, [], total)
            assert phases_of(steps) == ["verify", "done"] and {s["total_bytes"] for s in steps} == {total}
            assert steps[0]["done_bytes"] < total and steps[-1]["done_bytes"] == total
            assert len(rpc.notifications) == len(steps)


LINE = re.compile(r"^(\w+): [\d.,]+ ?\w+ of [\d.,]+ ?\w+, [\d.,]+ ?\w+/s(, \d+ s left)?$")


def test_what_fp9ctl_shows(far, checkpoint_path):
    """Lines on a pipe, one line that moves on a terminal, nothing with --json on a pipe."""
    daemon, _ = far
    words = [program(daemon.build, "fp9ctl"), "--socket", daemon.socket]
    load = ["load", checkpoint_path, "--name", "m", "--tp", "2", "--force"]
    done = subprocess.run([*words, *load], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60 * SLOW)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "open" and lines[-1].startswith("done: "), lines
    assert any(line.startswith("prepare: ") for line in lines) and all(LINE.match(line) for line in lines[1:]), lines
    quiet = subprocess.run([*words, "--json", *load], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=60 * SLOW)
    assert quiet.returncode == 0 and quiet.stderr == ""
    for command, phase in ((load, "prepare"), (["cache", "verify"], "verify")):
        shown = on_a_terminal([*words, *command])
        frames = [frame for frame in re.split(r"\r\x1b\[K|\r?\n", shown) if frame]
        moving = [frame for frame in frames if frame.startswith(phase + ": ")]
        assert moving and all(LINE.match(frame) for frame in moving), shown
        assert frames[-1].startswith("done: ") and shown.endswith("\n"), shown
        assert phase != "prepare" or len(set(moving)) >= 3, shown


def on_a_terminal(words):
    """What a program writes to its terminal; its standard output goes nowhere."""
    head, tail = pty.openpty()
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=tail)
    os.close(tail)
    killer = threading.Timer(60 * SLOW, process.send_signal, [signal.SIGKILL])
    killer.start()
    shown = b""
    try:
        while data := os.read(head, 4096):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(head)
    assert process.wait() == 0
    killer.cancel()
    return shown.decode()
