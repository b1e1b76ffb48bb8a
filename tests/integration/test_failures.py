"""Ducks that die and daemons that are told to stop, at the worst moments."""
import os
import signal
import threading
import time

from support.daemon import SLOW, Ctl
from support.freeze import stop_process
from support.model import MODEL, make_checkpoint, output
from support.rpc import Rpc, RpcError, Session


def load(daemon, tp=3):
    return daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", tp, "--multiple-of", 64)


def bits(daemon, reference, folder, layer=2):
    daemon.run("prefill", "shakespeare", layer, reference.path, folder / "out", reference.prefix(layer))
    return output(folder / "out")[1]


def wait_ready(daemon, seconds=20):
    def ready():
        status = daemon.ok("status")
        models = {m["name"]: m["state"] for m in status["models"]}
        return status["state"] == "ready" and all(state == "ready" for state in models.values()) and \
            all(d["state"] == "up" for d in status["ducks"])
    daemon.wait_for("everything to be ready again", ready, seconds)


def test_duck_killed_during_decode(make_daemon, reference, tmp_path):
    """Every duck in turn, in a loop of decodes: the step fails by name, fp9d lives, the duck is back with the same bits."""
    daemon = make_daemon()
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    x, ids, weights = reference.inputs(2, 1)
    names = {d["name"] for d in daemon.ok("duck", "list")["ducks"]}
    for victim in daemon.duck_pids():
        outcomes, stop = [], threading.Event()

        def loop():
            with Rpc(daemon.socket, 30 * SLOW) as rpc:
                session = Session(rpc, "shakespeare", 1)
                while not stop.is_set():
                    try:
                        session.run("decode", 2, x, ids, weights)
                        outcomes.append(None)
                    except RpcError as error:
                        outcomes.append(error)
                        time.sleep(0.01)

        thread = threading.Thread(target=loop)
        thread.start()
        daemon.wait_for("some decodes", lambda: len(outcomes) > 20)
        os.kill(victim, signal.SIGKILL)
        daemon.wait_for("the duck to be replaced", lambda: victim not in daemon.duck_pids() and len(daemon.duck_pids()) == 4)
        wait_ready(daemon)
        at = len(outcomes)
        daemon.wait_for("decodes after it", lambda: len(outcomes) > at + 20)
        stop.set()
        thread.join(30 * SLOW)
        assert not thread.is_alive(), "a decode never ended"
        for error in (o for o in outcomes if o is not None):
            assert error.name in ("DUCK_LOST", "NOT_READY"), str(error)
            if error.name == "DUCK_LOST":
                assert any(name in error.message for name in names), error.message
        assert outcomes[-1] is None, f"the last decode failed: {outcomes[-1]}"
        assert bits(daemon, reference, tmp_path) == before
    assert daemon.process.poll() is None


def test_stopped_duck_in_mid_step(make_daemon, reference, tmp_path):
    """A duck that is stopped holds a step; killed then, that step fails with its name."""
    daemon = make_daemon(fleet="heartbeat_s = 60")
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    x, ids, weights = reference.inputs(2, 4)
    failures = 0
    for victim in daemon.duck_pids():
        with Rpc(daemon.socket) as rpc:
            session = Session(rpc, "shakespeare", 4)
            session.run("decode", 2, x, ids, weights)
            stop_process(victim)
            number = rpc.send("decode", {"layer": 2, **session.place(x, ids, weights)})
            time.sleep(0.2)
            # fp9d is not held up by it.
            assert daemon.ok("status")["version"]
            os.kill(victim, signal.SIGKILL)
            try:
                rpc.answer(number)
            except RpcError as error:
                failures += 1
                assert error.name == "DUCK_LOST", str(error)
                assert "2" in error.message and any(d["name"] in error.message for d in daemon.ok("duck", "list")["ducks"]), error.message
        wait_ready(daemon)
        assert bits(daemon, reference, tmp_path) == before
    assert failures == 3, f"three of the four ducks hold a rank, {failures} steps failed"


def test_silent_duck_is_lost(make_daemon, reference, tmp_path):
    """kill -STOP: noticed within the heartbeat, named, replaced."""
    daemon = make_daemon(fleet="heartbeat_s = 1")
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    victim = daemon.duck_pids()[0]
    stop_process(victim)
    daemon.wait_for("the stopped duck to be given up", lambda: victim not in daemon.duck_pids(), 15)
    wait_ready(daemon)
    assert bits(daemon, reference, tmp_path) == before


def test_duck_killed_during_load(make_daemon, build, reference, tmp_path):
    big = make_checkpoint(build, str(tmp_path / "big"), seed=2)
    daemon = make_daemon(fleet="heartbeat_s = 60")
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    victim = daemon.duck_pids()[1]
    stop_process(victim)
    # tp 4: the stopped duck must hold a rank, so the load cannot end.
    job = daemon.ok("load", big, "--name", "big", "--tp", 4, "--multiple-of", 32, "--no-wait")["job"]
    daemon.wait_for("the load to run", lambda: any(j["id"] == job and j["state"] == "running" for j in daemon.ok("job", "list")["jobs"]))
    time.sleep(0.3)
    os.kill(victim, signal.SIGKILL)
    done = daemon.ctl("job", "wait", job)
    assert done.status == 1, done.stdout
    assert done.error["name"] == "DUCK_LOST", done.json
    assert any(d["name"] in done.error["message"] for d in daemon.ok("duck", "list")["ducks"]), done.error
    daemon.wait_for("the duck to be back", lambda: len(daemon.duck_pids()) == 4)
    daemon.ok("load", big, "--name", "big", "--tp", 4, "--multiple-of", 32)
    wait_ready(daemon)
    assert bits(daemon, reference, tmp_path) == before


def test_sigterm_during_load(make_daemon, build, tmp_path):
    """With one duck stopped the load can never end; fp9d ends all the same, with status 0 and nobody left."""
    big = make_checkpoint(build, str(tmp_path / "big"), seed=2)
    daemon = make_daemon(fleet="heartbeat_s = 60")
    stop_process(daemon.duck_pids()[0])
    daemon.ok("load", big, "--name", "big", "--tp", 4, "--multiple-of", 32, "--no-wait")
    time.sleep(0.1)
    begun = time.monotonic()
    daemon.stop()
    assert time.monotonic() - begun < 10 * SLOW


def test_load_cancelled(make_daemon, build, reference, tmp_path):
    big = make_checkpoint(build, str(tmp_path / "big"), seed=2)
    daemon = make_daemon(fleet="heartbeat_s = 60")
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    victim = daemon.duck_pids()[1]
    stop_process(victim)
    job = daemon.ok("load", big, "--name", "big", "--tp", 4, "--multiple-of", 32, "--no-wait")["job"]
    daemon.ok("job", "cancel", job)
    os.kill(victim, signal.SIGCONT)
    done = daemon.ctl("job", "wait", job)
    assert (done.status, done.error["name"]) == (1, "CANCELLED"), done.json
    assert bits(daemon, reference, tmp_path) == before


def test_kill_9_and_start_again(make_daemon, reference, tmp_path):
    """A stale socket is taken over; registered models come back by themselves; the orphaned ducks are gone."""
    daemon = make_daemon()
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    group = daemon.kill()
    deadline = time.monotonic() + 10 * SLOW
    while daemon.group_members(group):
        assert time.monotonic() < deadline, f"ducks outlive fp9d: {daemon.group_members(group)}"
        time.sleep(0.02)
    assert os.path.exists(daemon.socket), "the stale socket is what this test is about"
    daemon.start()
    wait_ready(daemon)
    assert [m["name"] for m in daemon.ok("model", "list")["models"]] == ["shakespeare"]
    assert bits(daemon, reference, tmp_path) == before


def test_restart_keeps_models(make_daemon, reference, tmp_path):
    daemon = make_daemon()
    load(daemon)
    before = bits(daemon, reference, tmp_path)
    daemon.stop()
    assert not os.path.exists(daemon.socket), "the socket was left behind"
    daemon.start()
    wait_ready(daemon)
    assert bits(daemon, reference, tmp_path) == before


def test_invalidated_cache(make_daemon, reference, tmp_path):
    daemon = make_daemon()
    first = load(daemon)
    assert first["cache"] == "miss" and first["bytes_sent"] > 0
    before = bits(daemon, reference, tmp_path)
    again = load(daemon)
    assert again["cache"] == "hit" and again["bytes_sent"] == 0, again
    slots = daemon.ok("cache", "list")["slots"]
    assert len(slots) == 4 * 3 and all(slot["state"] == "finished" and slot["bytes"] > 0 for slot in slots), slots
    freed = daemon.ok("invalidate-cache", "--model", "shakespeare")
    # The buffer gives room in whole pages.
    held = sum(slot["bytes"] for slot in slots)
    assert held <= freed["freed_bytes"] <= held + 4096 * len(slots) and freed["pending"] == []
    assert daemon.ok("cache", "list")["slots"] == []
    assert load(daemon)["cache"] == "miss"
    assert bits(daemon, reference, tmp_path) == before
    daemon.refused("invalidate-cache", "--model", "nobody", name="NO_SUCH", words=["nobody"])


def test_does_not_fit(make_daemon):
    """The smallest buffer there is is too little: refused with the numbers before anything is sent."""
    daemon = make_daemon(memory="2M")
    error = daemon.refused("load", MODEL, "--name", "shakespeare", "--tp", 3, "--multiple-of", 64, name="NO_MEMORY")
    assert any(char.isdigit() for char in error["message"])
    assert daemon.ok("cache", "list")["slots"] == []


def test_no_ducks(make_daemon):
    daemon = make_daemon(ducks=0)
    done = daemon.ctl("load", MODEL, "--name", "shakespeare", "--tp", 1)
    assert done.status == 1 and done.error["name"] in ("BAD_SHAPE", "NOT_READY"), done.json
    assert isinstance(done, Ctl)
    assert "duck" in done.error["message"]
