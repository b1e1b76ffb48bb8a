"""events.subscribe and fp9ctl events: what happens is told, to everybody who reads, and nobody who does not read is waited for."""
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from support.daemon import SLOW, program
from support.model import MODEL
from support.rpc import Rpc, Session


class Listener:
    """One connection that hears everything."""

    def __init__(self, daemon):
        self.daemon, self.rpc = daemon, Rpc(daemon.socket, 30 * SLOW)
        self.answer = self.rpc.call("events.subscribe")

    @property
    def events(self):
        self.rpc.call("job.list")  # whatever has arrived is taken on the way
        return [n["params"] for n in self.rpc.notifications if n["method"] == "event"]

    def wait(self, kind, seconds=20, **about):
        def there():
            return next((e for e in self.events if e["kind"] == kind and all(e.get(k) == v for k, v in about.items())), None)
        return self.daemon.wait_for(f"the event {kind} {about}", there, seconds)

    def kinds(self):
        return [e["kind"] for e in self.events]

    def close(self):
        self.rpc.close()


@pytest.fixture
def daemon(make_daemon):
    return make_daemon(ducks=2)


def test_a_load_a_loss_a_return(daemon, tmp_path):
    listener = Listener(daemon)
    assert listener.answer["state"] in ("starting", "ready")
    load = daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    done = listener.wait("job.done", job=load["job"])
    assert done["model"] == "shakespeare" and "load of shakespeare" in done["message"] and done["time"].endswith("Z")
    listener.wait("model.ready", model="shakespeare")
    kinds = listener.kinds()
    for before, after in (("job.started", "job.done"), ("model.loading", "model.ready")):
        assert kinds.count(before) == kinds.count(after) == 1 and kinds.index(before) < kinds.index(after), kinds
    assert "cache.lost" not in kinds
    victim = daemon.duck_pids()[1]
    name = daemon.duck_name(victim)
    os.kill(victim, signal.SIGKILL)
    lost = listener.wait("duck.lost", duck=name)
    assert "signal 9" in lost["message"] and name in lost["message"]
    degraded = listener.wait("model.degraded", model="shakespeare")
    assert name in degraded["message"]
    listener.wait("state.degraded")
    listener.wait("duck.up", duck=name)
    listener.wait("state.ready")
    assert [k for k in listener.kinds() if k.startswith("model.")][-1] == "model.ready"
    daemon.ok("invalidate-cache", "--model", "shakespeare", "--duck", name)
    revoked = listener.wait("cache.revoked")
    assert revoked["duck"] == name and "uid" in revoked["message"]
    listener.wait("cache.lost")
    daemon.ok("invalidate-cache", "--model", "shakespeare")
    assert listener.wait("model.unloaded", model="shakespeare")["message"].count("shakespeare") == 1
    daemon.ok("unload", "shakespeare")
    assert listener.wait("model.gone", model="shakespeare")["message"] == "model shakespeare is unloaded"
    assert daemon.ctl("load", tmp_path, "--name", "bad").status == 1
    assert listener.wait("model.gone", model="bad")["message"] == "model bad is gone: its load failed"
    job = daemon.ok("job", "list")["jobs"][-1]
    assert job["state"] == "failed" and job["queued"] <= job["started"] <= job["ended"], job
    listener.close()


def test_fp9ctl_events(daemon):
    def listen(*more):
        return subprocess.Popen([program(daemon.build, "fp9ctl"), "--socket", daemon.socket, *more], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=daemon.env)
    before = daemon.ok("status")["clients"]
    text, lines, counted = listen("events"), listen("--json", "events"), listen("--json", "events", "--count", "2")
    daemon.wait_for("three listeners", lambda: daemon.ok("status")["clients"] == before + 3)
    time.sleep(0.2)
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    out, err = counted.communicate(timeout=20 * SLOW)
    assert counted.returncode == 0 and len(out.splitlines()) == 2, (out, err)
    first = json.loads(lines.stdout.readline())
    assert {"time", "kind", "message"} <= set(first) and first == json.loads(out.splitlines()[0])
    line = text.stdout.readline()
    assert line.split()[0] == first["time"] and line.split()[1] == first["kind"] and first["message"] in line
    # Whoever reads the lines goes: so does fp9ctl, with the next one.
    lines.stdout.close()
    daemon.ok("unload", "shakespeare")
    assert lines.wait(20 * SLOW) in (0, -signal.SIGPIPE)
    text.send_signal(signal.SIGINT)
    text.communicate(timeout=20 * SLOW)
    last = listen("events")
    daemon.wait_for("a listener", lambda: daemon.ok("status")["clients"] == before + 1)
    daemon.stop()
    _, err = last.communicate(timeout=20 * SLOW)
    assert last.returncode == 1 and "fp9d" in err


def test_a_subscriber_that_does_not_read(daemon):
    """It loses events, learns how many, and nobody else is held up meanwhile."""
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    deaf = socket.socket(socket.AF_UNIX)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(daemon.socket)
    deaf.sendall(b'{"jsonrpc":"2.0","id":1,"method":"events.subscribe"}\n')
    listener, slowest, batches = Listener(daemon), 0.0, 3000
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        for i in range(batches):
            session = Session(rpc, "shakespeare", 1, job="decode", job_layer=2, job_tokens=1)  # two events
            session.close()
            if i % 50 == 0:
                begun = time.monotonic()
                listener.rpc.call("status")
                slowest = max(slowest, time.monotonic() - begun)
    print(f"slowest status {slowest * 1000:.1f} ms")
    assert slowest < 0.5 * SLOW
    assert sum(kind.startswith("job.") for kind in listener.kinds()) == 2 * batches
    deaf.settimeout(5 * SLOW)
    data, told = b"", []
    deadline = time.monotonic() + 30 * SLOW
    while not any(e["kind"] == "events.lost" for e in told):
        assert time.monotonic() < deadline, told[-3:]
        data += deaf.recv(1 << 16)
        *lines, data = data.split(b"\n")
        told += [m["params"] for m in map(json.loads, lines) if m.get("method") == "event"]
    lost = [e for e in told if e["kind"] == "events.lost"]
    heard = sum(e["kind"].startswith("job.") for e in told)
    assert lost[0]["lost"] > 0 and str(lost[0]["lost"]) in lost[0]["message"]
    assert heard + lost[0]["lost"] == 2 * batches, (heard, lost)
    # From here on it hears again.
    daemon.ok("unload", "shakespeare")
    while not any(e["kind"] == "model.gone" for e in told):
        data += deaf.recv(1 << 16)
        *lines, data = data.split(b"\n")
        told += [m["params"] for m in map(json.loads, lines) if m.get("method") == "event"]
    deaf.close()
    listener.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk(make_daemon):
    daemon = make_daemon(start=False, ducks=1)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", daemon.state], check=True, timeout=20)
    try:
        daemon.start()
        daemon.wait_for("the look at the disk", lambda: "bytes are left in its file system" in daemon.log())
        listener = Listener(daemon)
        with open(os.path.join(daemon.state, "ballast"), "wb") as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
                    file.flush()
            except OSError:
                pass
        for i in range(30):
            daemon.ctl("load", "/nowhere", "--name", f"m{i}")
        error = listener.wait("db.error")
        assert "job" in error["message"] or "disk" in error["message"] or "full" in error["message"], error
        os.unlink(os.path.join(daemon.state, "ballast"))
        listener.close()
        daemon.stop()
    finally:
        subprocess.run(["umount", "-l", daemon.state], check=True, timeout=20)
