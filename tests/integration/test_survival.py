"""Weights outlive whatever is killed: real processes die at random points of a load, and what is there afterwards is bit-equal to an
undisturbed load. Restarts of fp9d and of fp9-duck, cut links, errors of the disk."""
import errno
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import numpy as np
import pytest

from support import safetensors
from support.daemon import SANITIZED, SLOW, Daemon
from support.freeze import stop_process, stopped
from support.model import MODEL, make_checkpoint
from support.rpc import Rpc, RpcError, Session
from support.service import DuckService, Manager, Proxy, seed_of
from support.strace import CALLS, Seen, Strace, from_start, parse, wait_end, weights_of

ROUNDS = int(os.environ.get("FP9_ROUNDS") or (8 if SANITIZED else 50))
DUCKS = 3
LAYERS, HIDDEN, EXPERTS, TOP_K, TOKENS = 6, 256, 8, 2, 3
SHAPE = dict(num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=512, moe_intermediate_size=384, num_experts=EXPERTS,
             num_experts_per_tok=TOP_K, mlp_only_layers=[2])
DENSE = (2,)
PLAN = dict(name="model", tp=DUCKS, multiple_of=32)


# ---- the fleets


class Local:
    """Local ducks: fp9d keeps their memory, and whoever starts fp9d keeps that across its end."""
    kinds = ("fp9d", "duck")

    def __init__(self, build, folder):
        self.manager = Manager(folder, "fp9d")
        self.daemon = Daemon(build, folder, ducks=DUCKS, memory="64M", manager=self.manager)
        self.daemon.start()

    def kill(self, kind, which, _random):
        if kind == "duck":
            pids = self.daemon.duck_pids()
            if pids:  # one that is being started again is no victim
                os.kill(pids[which % len(pids)], signal.SIGKILL)
        else:
            self.daemon.kill()
            self.daemon.start()

    def reboot(self, which):
        """The weights of one duck are lost."""
        name, fd = self.manager.store[which]
        self.manager.store.remove((name, fd))
        os.close(fd)
        self.daemon.kill()
        self.daemon.start()
        return name.removeprefix("weights-")

    def close(self):
        try:
            self.daemon.stop()
        finally:
            self.manager.close()


class Services:
    """Ducks that are services; their links lead through proxies, which can be cut."""
    kinds = ("fp9d", "duck", "link")

    def __init__(self, build, folder):
        self.ducks = [DuckService(build, folder, f"duck{i}").start() for i in range(DUCKS)]
        self.proxies = [Proxy(duck.port) for duck in self.ducks]
        self.daemon = Daemon(build, folder, ducks=0, remote=[(d.name, p.address) for d, p in zip(self.ducks, self.proxies)])
        self.daemon.start()

    def kill(self, kind, which, chance):
        if kind == "duck":
            self.ducks[which].kill()
            self.ducks[which].start()
        elif kind == "link":
            self.proxies[which].cut(chance.random() < 0.5)
        else:
            self.daemon.kill()
            self.daemon.start()

    def reboot(self, which):
        duck = self.ducks[which]
        duck.stop()
        duck.manager.forget()
        duck.start()
        return duck.name

    def close(self):
        try:
            self.daemon.stop()
        finally:
            for end in self.proxies:
                end.close()
            for duck in self.ducks:
                duck.end()


@pytest.fixture(params=[Local, Services], ids=["local", "services"])
def fleet(request, build, tmp_path):
    made = request.param(build, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def model(build, tmp_path_factory):
    return make_checkpoint(build, str(tmp_path_factory.mktemp("model")), seed=11, **SHAPE)


@pytest.fixture
def make_duck(build, tmp_path):
    made = []

    def make(name="duck", **more):
        made.append(DuckService(build, tmp_path, name, **more))
        return made[-1].start()

    yield make
    for duck in made:
        duck.end()


# ---- what is compared


def load(rpc, path, **more):
    job = rpc.call("model.load", path=path, **{**PLAN, **more})["job"]
    return rpc.call("job.wait", job=job)


def state(rpc):
    models = rpc.call("model.list")["models"]
    return models[0]["state"] if models else None


def slots(rpc):
    """What the ducks' own headers say, as told to fp9d. Which duck holds which rank may change."""
    return sorted((s["layer"], s["rank"], s["kind"], s["bytes"], s["state"], s["checksum"]) for s in rpc.call("cache.list")["slots"])


def boot_ids(rpc):
    return {d["name"]: d["boot_id"] for d in rpc.call("duck.list")["ducks"]}


def inputs():
    chance = np.random.default_rng(5)
    x = safetensors.f32_to_bf16(chance.standard_normal((TOKENS, HIDDEN)).astype(np.float32))
    ids = np.stack([chance.permutation(EXPERTS)[:TOP_K] for _ in range(TOKENS)]).astype(np.int32)
    return x, ids, chance.random((TOKENS, TOP_K)).astype(np.float32)


def outputs(rpc):
    x, ids, weights = inputs()
    session = Session(rpc, "model", TOKENS, partials="f32", output_dtype="f32")
    out = [session.run("decode", layer, x, *(() if layer in DENSE else (ids, weights))) for layer in range(LAYERS)]
    session.close()
    return out


def wait_ready(daemon, rpc, seconds=20):
    daemon.wait_for("the model to be ready", lambda: state(rpc) == "ready", seconds)


# ---- the kill test


def test_killed_anywhere(fleet, model):
    """Rounds of: forget all, load, kill something at a random moment, let it come to an end; slots and layers' outputs are as ever."""
    seed = seed_of("test_killed_anywhere")
    chance = random.Random(seed)
    daemon = fleet.daemon
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        times = []
        for _ in range(4):  # the first is slower than those of the rounds
            begun = time.monotonic()
            first = load(rpc, model)
            times.append(time.monotonic() - begun)
            assert first["cache"] == "miss" and first["bytes_sent"] > 0
            if len(times) < 4:
                rpc.call("cache.invalidate", all=True)
        usual = min(times)
        true_slots, true_outputs, ids = slots(rpc), outputs(rpc), boot_ids(rpc)
    assert len(true_slots) == LAYERS * DUCKS and all(s[4] == "finished" for s in true_slots)
    resumed, forgotten, rounds = 0, 0, []
    for number in range(ROUNDS):
        kind, which, wait = chance.choice(fleet.kinds), chance.randrange(DUCKS), chance.uniform(0, usual)
        told = f"seed {seed}, round {number}: {kind} {which} after {wait * 1e3:.1f} ms of about {usual * 1e3:.0f} ms"
        begun = time.monotonic()
        with Rpc(daemon.socket, 60 * SLOW) as rpc:
            rpc.call("cache.invalidate", all=True)
            assert slots(rpc) == [], told
            job = rpc.call("model.load", path=model, **PLAN)["job"]
            time.sleep(wait)
            losses = daemon.log().count(": lost: ")
            fleet.kill(kind, which, chance)
            if kind != "fp9d":
                daemon.wait_for(f"the loss to be noticed ({told})", lambda: daemon.log().count(": lost: ") > losses)
        with Rpc(daemon.socket, 60 * SLOW) as rpc:
            if kind == "fp9d":
                # Registered: it is on its way already, and nobody has typed anything. Unless fp9d was killed before it had written down
                # that this load ends the invalidation.
                if rpc.call("model.list")["models"][0]["state"] == "unloaded":
                    forgotten += 1
                    load(rpc, model)
                wait_ready(daemon, rpc)
            else:
                try:
                    rpc.call("job.wait", job=job)
                except RpcError as error:
                    # Lost while slots are sent, or before it was clear which duck gets which.
                    named = error.name == "DUCK_LOST" and re.search(r"\b(duck|local)\d\b", error.message)
                    assert named or error.name == "NOT_READY" and "ducks" in error.message, f"{told}: {error}"
                wait_ready(daemon, rpc)
            shown = rpc.call("model.list")["models"][0]
            resumed += shown["cache"] == "partial"
            assert slots(rpc) == true_slots, told
            assert outputs(rpc) == true_outputs, told
            assert boot_ids(rpc) == ids, f"{told}: a buffer was given up"
            again = load(rpc, model)
            assert (again["cache"], again["bytes_read"], again["bytes_sent"]) == ("hit", 0, 0), (told, again)
        rounds.append(time.monotonic() - begun)
    print(f"{ROUNDS} rounds, {resumed} went on from finished slots, {forgotten} loads forgotten; median {np.median(rounds):.2f} s, "
          f"longest {max(rounds):.2f} s")
    assert ROUNDS < 20 or resumed, "no round has met a load half done: the moments are wrong"
    assert ROUNDS < 20 or forgotten < ROUNDS / 5, "a load is not written down when it begins"


def test_loads_that_fail_leave_nothing_for_ever(make_daemon, model, tmp_path):
    """Each attempt meets other files than the one before: what that one has finished is of no use any more and goes."""
    own = str(tmp_path / "own")
    shutil.copytree(model, own)
    shard = next(os.path.join(own, name) for name in sorted(os.listdir(own)) if name.endswith(".safetensors"))
    daemon = make_daemon(ducks=DUCKS)
    with Rpc(daemon.socket) as rpc:
        key, left = load(rpc, own)["model_key"], 0
        for attempt in range(5):
            os.utime(shard, (attempt, attempt))
            job = rpc.call("model.load", path=own, **PLAN, force=True)["job"]
            deadline = time.monotonic() + 20 * SLOW
            while time.monotonic() < deadline:
                others = {s["model_key"] for s in rpc.call("cache.list")["slots"] if s["state"] == "finished"} - {key}
                if others or rpc.call("job.list")["jobs"][-1]["state"] == "done":
                    break
            try:
                rpc.call("job.cancel", job=job)
            except RpcError:
                pass  # it was faster
            left += bool({s["model_key"] for s in rpc.call("cache.list")["slots"]} - {key})
            assert len({s["model_key"] for s in rpc.call("cache.list")["slots"]} - {key}) <= 1
        assert left, "no attempt was met half done"
        done = load(rpc, own, force=True)
        daemon.wait_for("what is left to go", lambda: {s["model_key"] for s in rpc.call("cache.list")["slots"]} == {done["model_key"]})


# ---- restarts


def test_restarts_are_hits(fleet, model):
    """fp9d ended and killed, every duck killed: the model is ready again by itself, with the same boot ids, nothing is read or sent."""
    daemon = fleet.daemon
    with Rpc(daemon.socket) as rpc:
        load(rpc, model)
        true_slots, true_outputs = slots(rpc), outputs(rpc)
        ids = boot_ids(rpc)
    def restart():
        daemon.stop()
        daemon.start()
    ways = [restart, lambda: fleet.kill("fp9d", 0, None)] + [lambda which=which: fleet.kill("duck", which, None) for which in range(DUCKS)]
    for way in ways:
        losses = daemon.log().count(": lost: ")
        jobs_before = daemon.log().count("job: ")
        way()
        with Rpc(daemon.socket) as rpc:
            daemon.wait_for("the news", lambda: daemon.log().count(": lost: ") > losses or daemon.log().count("job: ") > jobs_before)
            wait_ready(daemon, rpc)
            assert boot_ids(rpc) == ids
            ended = [(j["kind"], j["state"], j["error"]) for j in rpc.call("job.list")["jobs"]]
            assert all(state == "done" for _, state, _ in ended), ended
            assert slots(rpc) == true_slots
            assert outputs(rpc) == true_outputs
            again = load(rpc, model)
            assert (again["cache"], again["bytes_read"], again["bytes_sent"]) == ("hit", 0, 0), again
    done = re.findall(r"job: \d+: (\w+) of model done: cache (\w+) .*?, (\d+) bytes read, (\d+) sent", daemon.log())
    assert done[0][1] == "miss" and len(done) > len(ways), done
    assert all(cache == "hit" and read == sent == "0" for _, cache, read, sent in done[1:]), done


def test_one_duck_rebooted(fleet, model):
    """A duck whose memory is gone shows another boot id; its slots alone are prepared again, and by themselves."""
    daemon = fleet.daemon
    with Rpc(daemon.socket) as rpc:
        first = load(rpc, model)
        true_slots, true_outputs = slots(rpc), outputs(rpc)
        ids = boot_ids(rpc)
        ranks = {s["duck"]: s["rank"] for s in rpc.call("cache.list")["slots"]}
    name = fleet.reboot(1)
    with Rpc(daemon.socket) as rpc:
        daemon.wait_for("the other boot id", lambda: boot_ids(rpc)[name] != ids[name])
        wait_ready(daemon, rpc)
        now = boot_ids(rpc)
        assert [n for n in ids if now[n] != ids[n]] == [name]
        assert {s["duck"]: s["rank"] for s in rpc.call("cache.list")["slots"]} == ranks
        assert slots(rpc) == true_slots and outputs(rpc) == true_outputs
        assert rpc.call("model.list")["models"][0]["cache"] == "partial"
    read, sent = re.findall(r"done: cache partial .*?, (\d+) bytes read, (\d+) sent", daemon.log())[-1]
    assert 0 < int(sent) < first["bytes_sent"] / 2 and 0 < int(read) < first["bytes_read"], (read, sent, first)


def test_fresh_fp9d_knows_nothing(make_duck, build, tmp_path, model):
    """The ducks' headers are the truth: a fp9d without any state finds everything there."""
    ducks = [make_duck(f"duck{i}") for i in range(DUCKS)]
    found = []
    for number in range(2):
        folder = tmp_path / f"fp9d{number}"
        folder.mkdir()
        # The second one knows them by other names, in another order: what a duck holds counts, not where it stands.
        order = ducks if number == 0 else ducks[::-1]
        daemon = Daemon(build, folder, ducks=0, remote=[(f"number{i}", duck.address) for i, duck in enumerate(order)])
        daemon.start()
        with Rpc(daemon.socket) as rpc:
            found.append((load(rpc, model), slots(rpc), outputs(rpc)))
        daemon.stop()
    assert found[0][0]["cache"] == "miss" and found[1][0]["cache"] == "hit"
    assert found[1][0]["bytes_sent"] == 0  # it has read: it had no digests to know the weights by
    assert found[0][1:] == found[1][1:]


def test_late_ducks_are_waited_for(make_duck, build, tmp_path, model):
    """fp9d starts before its ducks: the registered model waits for the slots that are there in place of filling others."""
    ducks = [make_duck(f"duck{i}") for i in range(DUCKS + 1)]
    daemon = Daemon(build, tmp_path, ducks=0, remote=[(duck.name, duck.address) for duck in ducks])
    daemon.start()
    with Rpc(daemon.socket) as rpc:
        load(rpc, model)
        holders = {s["duck"] for s in rpc.call("cache.list")["slots"]}
    daemon.kill()
    late = [duck for duck in ducks if duck.name in holders][0]
    late.kill()
    daemon.spawn()
    daemon.wait_for("the control socket", daemon.answers)
    with Rpc(daemon.socket) as rpc:
        daemon.wait_for("three ducks", lambda: sum(d["state"] == "up" for d in rpc.call("duck.list")["ducks"]) == DUCKS)
        time.sleep(0.5)
        assert state(rpc) == "loading"
        late.start()
        wait_ready(daemon, rpc)
        assert {s["duck"] for s in rpc.call("cache.list")["slots"]} == holders
        assert load(rpc, model)["bytes_sent"] == 0
    daemon.stop()


# ---- a service among others


def lost_reason(daemon, name, words):
    def reason():
        duck = {d["name"]: d for d in daemon.ok("duck", "list")["ducks"]}[name]
        return duck["state"] == "lost" and all(word in duck.get("reason", "") for word in words)
    daemon.wait_for(f"{name} to be lost: {words}", reason)


def test_second_fp9d_is_told_who_has_the_duck(make_duck, build, tmp_path, model):
    ducks = [make_duck(f"duck{i}") for i in range(DUCKS)]
    remote = [(duck.name, duck.address) for duck in ducks]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = Daemon(build, tmp_path / "one", ducks=0, remote=remote).start()
    with Rpc(first.socket) as rpc:
        load(rpc, model)
        true_outputs = outputs(rpc)
        second = Daemon(build, tmp_path / "two", ducks=0, remote=remote).spawn()
        second.wait_for("the control socket", second.answers)
        lost_reason(second, "duck1", ["refused", "busy with fp9d", os.uname().nodename])
        assert outputs(rpc) == true_outputs
        assert "lost" not in first.log()
    first.stop()
    second.wait_up()
    with Rpc(second.socket) as rpc:
        assert load(rpc, model)["cache"] == "hit"
        assert outputs(rpc) == true_outputs
    second.stop()


@pytest.mark.parametrize("said", [b"hi\n", b"hello\r\n", b"GET / HTTP/1.1\r\nHost: duck\r\n\r\n", b""])
def test_who_speaks_something_else_is_told(make_duck, said):
    """Also one who says less than a frame's header, and waits."""
    import socket
    duck = make_duck()
    with socket.create_connection(("127.0.0.1", duck.port)) as visitor:
        visitor.settimeout(10 * SLOW)
        visitor.sendall(said)
        begin, told = time.monotonic(), b""
        try:
            while data := visitor.recv(4096):
                told += data
        except ConnectionResetError:
            pass
    assert (b"not an fp9 link" if len(said) >= 4 else b"no HELLO within") in told, told
    assert len(said) < 4 or time.monotonic() - begin < 2 * SLOW


def test_not_a_duck_at_all(build, tmp_path):
    """Something else listens there: one line in the log, others are not held up, fp9d keeps trying without noise."""
    import socket
    import threading
    server = socket.create_server(("127.0.0.1", 0))
    def answer():
        while True:
            try:
                end, _ = server.accept()
            except OSError:
                return
            end.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")
    threading.Thread(target=answer, daemon=True).start()
    others = [("ssh", f"127.0.0.1:{server.getsockname()[1]}"), ("nobody", "127.0.0.1:1")]
    daemon = Daemon(build, tmp_path, ducks=1, memory="64M", remote=others)
    daemon.spawn()
    daemon.wait_up(1)
    lost_reason(daemon, "ssh", ["no fp9-duck"])
    lost_reason(daemon, "nobody", ["127.0.0.1:1", "refused"])
    time.sleep(1.5)
    assert daemon.log().count("ssh: lost") == 1 and daemon.log().count("nobody: lost") == 1, daemon.log()
    begun = time.monotonic()
    assert daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 1)["cache"] == "miss"
    assert time.monotonic() - begun < 5 * SLOW, "a load waits for ducks that have failed before"
    server.close()
    daemon.stop()


def test_a_silent_visitor_does_not_hold_the_duck(make_duck, build, tmp_path):
    import socket
    duck = make_duck()
    with socket.create_connection(("127.0.0.1", duck.port)) as silent, socket.create_connection(("127.0.0.1", duck.port)) as noise:
        noise.sendall(os.urandom(4096))
        daemon = Daemon(build, tmp_path, ducks=0, remote=[("duck", duck.address)])
        daemon.spawn()
        daemon.wait_up()
        silent.settimeout(10)
        silent.recv(1000)  # its FAIL or its end
    daemon.stop()
    assert duck.log().count("warning") <= 1, duck.log()


def test_a_hundred_silent_visitors_do_not_hold_the_duck(make_duck, build, tmp_path):
    """Who says nothing, three bytes or half a HELLO, and comes back whenever he is sent away, keeps no fp9d waiting."""
    duck = make_duck()
    half = struct.pack("<IHHIIQ", 0x6B397066, 1, 0, 100, 0, 1)
    enough, told = threading.Event(), set()

    def visit(said):
        while not enough.is_set():
            try:
                with socket.create_connection(("127.0.0.1", duck.port), 5) as visitor:
                    visitor.sendall(said)
                    visitor.settimeout(0.2)
                    answer = b""
                    while not answer and not enough.is_set():
                        try:
                            answer = visitor.recv(1000) or b"closed"
                        except TimeoutError:
                            pass
                    told.add("late" if b"no HELLO" in answer else "busy" if b"busy" in answer else answer)
            except OSError:
                pass
            time.sleep(0.02)
    visitors = [threading.Thread(target=visit, args=((b"", half[:3], half, half + b"x" * 50)[i % 4],)) for i in range(100)]
    fds = len(os.listdir(f"/proc/{duck.process.pid}/fd"))
    daemon = Daemon(build, tmp_path, ducks=0, remote=[("duck", duck.address)])
    try:
        for visitor in visitors:
            visitor.start()
        time.sleep(3.5)  # as long as one of them may wait
        assert len(os.listdir(f"/proc/{duck.process.pid}/fd")) < fds + 90
        begun = time.monotonic()
        daemon.spawn()
        daemon.wait_up()
        took = time.monotonic() - begun
        assert daemon.ok("load", MODEL, "--name", "m", "--tp", 1)["cache"] == "miss"
    finally:
        enough.set()
        for visitor in visitors:
            visitor.join()
        daemon.stop()
    assert took < 2.5 * SLOW, f"it was kept waiting {took:.1f} s"
    assert told <= {"late", "busy", b"closed", b""} and "late" in told and "busy" in told, told
    assert duck.log().count("warning") <= 2, duck.log()


def test_a_silent_visitor_costs_no_time(make_duck):
    """Three bytes are there to be read for three seconds; nobody looks at them again and again."""
    import socket
    duck = make_duck()

    def ticks():
        with open(f"/proc/{duck.process.pid}/stat", encoding="ascii") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
    with socket.create_connection(("127.0.0.1", duck.port), 5) as visitor:
        before = ticks()
        visitor.sendall(b"fp9")
        visitor.settimeout(10)
        begun = time.monotonic()
        assert b"no HELLO within" in visitor.recv(1000)
        assert 2 < time.monotonic() - begun < 5 * SLOW and ticks() - before < 50


def test_a_head_that_falls_silent_does_not_hold_the_duck(make_duck, build, tmp_path, model):
    """fp9d is stopped with its link open: the duck gives it up after 8 of its heartbeats, and the next one finds the slots. The first one,
    awake again, reads who has the duck now."""
    duck = make_duck()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = Daemon(build, tmp_path / "one", ducks=0, remote=[("duck", duck.address)], fleet="heartbeat_s = 1").start()
    second = Daemon(build, tmp_path / "two", ducks=0, remote=[("duck", duck.address)], fleet="heartbeat_s = 1")
    with Rpc(first.socket) as rpc:
        load(rpc, model, tp=1)
        time.sleep(10)  # longer than the limit, and pings alone hold the link
        assert "nothing came" not in duck.log() and "lost" not in first.log()
    holder = [f"(pid {first.process.pid})", os.uname().nodename, "at 127.0.0.1:"]
    with stopped(first.process.pid):
        begun = time.monotonic()
        second.spawn()
        second.wait_for("the control socket", second.answers)
        lost_reason(second, "duck", ["busy with fp9d", *holder])
        second.wait_up()
        assert 6 < time.monotonic() - begun < 15 * SLOW
    given_up = [line for line in duck.log().splitlines() if "nothing came from fp9d" in line]
    assert len(given_up) == 1 and all(word in given_up[0] for word in [*holder, "for 8 s", "warning"]), duck.log()
    lost_reason(first, "duck", [f"(pid {second.process.pid})"])
    with Rpc(second.socket) as rpc:
        assert load(rpc, model, tp=1)["cache"] == "hit"
    second.stop()
    first.stop()


@pytest.mark.parametrize("conf, words", [("", ["plaintext = yes", "fp9d.conf"]), ("plaintext = no", ["plaintext = yes", "fp9d.conf"]),
                                         ("plaintext = yes\nkey_file = /etc/hosts", ["key_file", "no TLS"])])
def test_duck_does_not_serve_without_being_told_to(build, tmp_path, conf, words):
    duck = DuckService(build, tmp_path, "duck", conf=conf, manager=False).spawn()
    assert duck.process.wait(10 * SLOW) == 1
    assert all(word in duck.log() for word in words), duck.log()


# ---- what is kept, and what is not trusted


def kept(duck):
    assert [name for name, _ in duck.manager.store] == ["weights"]
    return duck.manager.store[0][1]


def test_another_memory_size(make_duck):
    duck = make_duck()
    assert os.fstat(kept(duck)).st_size == 64 << 20
    duck.kill()
    duck.configure(memory="32M")
    duck.start()
    assert os.fstat(kept(duck)).st_size == 32 << 20
    assert "67108864 bytes, 33554432 are configured" in duck.log()
    duck.kill()
    duck.start()
    assert duck.log().count("attached") == 1 and os.fstat(kept(duck)).st_size == 32 << 20


def test_another_local_memory(build, tmp_path):
    """fp9d gives up what is of another size, and what belongs to ducks that it has no more, and nothing else."""
    manager = Manager(tmp_path, "fp9d")
    try:
        sizes = []
        for memory, count in (("64M", 3), ("64M", 3), ("32M", 3), ("32M", 1)):
            daemon = Daemon(build, tmp_path, ducks=count, memory=memory, manager=manager)
            daemon.start()
            found = {name: os.fstat(fd) for name, fd in manager.store}
            assert set(found) == {f"weights-local{i}" for i in range(count)} and len(manager.store) == count
            sizes.append({name: (info.st_ino, info.st_size) for name, info in found.items()})
            daemon.stop()
        assert sizes[0] == sizes[1]
        assert all(size == 32 << 20 for _, size in sizes[2].values())
        assert sizes[3] == {"weights-local0": sizes[2]["weights-local0"]}
    finally:
        manager.close()


@pytest.mark.parametrize("offset, what", [(0, "magic"), (8, "version"), (24, "boot id")])
def test_damaged_header_is_not_trusted(make_duck, build, tmp_path, model, offset, what):
    """Noise over a part of the kept header: formatted anew under another boot id, said in the log, and filled again by itself."""
    duck = make_duck()
    daemon = Daemon(build, tmp_path, ducks=0, remote=[("duck", duck.address)])
    daemon.start()
    with Rpc(daemon.socket) as rpc:
        load(rpc, model, tp=1)
        true_slots, boot_id = slots(rpc), rpc.call("duck.list")["ducks"][0]["boot_id"]
        duck.kill()
        chance = random.Random(7)
        os.pwrite(kept(duck), bytes(chance.randrange(1, 256) for _ in range(8)), offset)
        duck.start()
        daemon.wait_for("the other boot id", lambda: rpc.call("duck.list")["ducks"][0]["boot_id"] != boot_id)
        assert "formatted anew" in duck.log(), (what, duck.log())
        wait_ready(daemon, rpc)
        assert slots(rpc) == true_slots
    daemon.stop()


def test_damaged_slots_go_alone(make_duck, build, tmp_path, model):
    """Noise over some slots of the kept header: those are dropped and prepared again, the others and the boot id stay."""
    duck = make_duck()
    daemon = Daemon(build, tmp_path, ducks=0, remote=[("duck", duck.address)])
    daemon.start()
    with Rpc(daemon.socket) as rpc:
        load(rpc, model, tp=1)
        true_slots, boot_id = slots(rpc), rpc.call("duck.list")["ducks"][0]["boot_id"]
        duck.kill()
        chance = random.Random(7)
        os.pwrite(kept(duck), bytes(chance.randrange(1, 256) for _ in range(100)), 100)  # in the first slot's description
        duck.start()
        daemon.wait_for("the duck's attach", lambda: "bad ones dropped" in duck.log())
        kept_slots = f"attached: {len(true_slots) - 1} finished slots, 0 unfinished ones dropped, 1 bad ones dropped: slot 0: "
        assert kept_slots in duck.log(), duck.log()
        wait_ready(daemon, rpc)
        daemon.wait_for("its slots", lambda: slots(rpc) == true_slots)
        assert rpc.call("duck.list")["ducks"][0]["boot_id"] == boot_id
    daemon.stop()


def test_one_buffer_has_one_process(make_duck, build, tmp_path):
    """A duck that is stopped still holds its buffer; another on the same memfd waits, gives up naming it, and gets it later."""
    duck = make_duck()
    fd = kept(duck)
    other = DuckService(build, tmp_path, "other")
    other.manager.store = [("weights", os.dup(fd))]
    stop_process(duck.process.pid)
    try:
        other.spawn()
        assert other.process.wait(20 * SLOW) == 1
        assert f"process {duck.process.pid} uses it" in other.log(), other.log()
        other.spawn()
        time.sleep(0.3)
        assert other.process.poll() is None
        duck.kill()
        assert other.manager.ready.wait(5 * SLOW), other.log()
        assert "attached" in other.log()
    finally:
        os.kill(duck.process.pid, signal.SIGCONT) if duck.process.poll() is None else None
        other.end()
        duck.process = None


# ---- what a warm load costs, and what an error of the disk does


def seen_in_load(daemon, rpc, folder, path):
    with Strace(daemon.process.pid, folder, "-e", "trace=" + CALLS) as trace:
        done = load(rpc, path)
    return done, Seen(trace.calls, path)


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own threads cannot be followed quickly")
def test_warm_load_reads_and_sends_no_weights(fleet, model, tmp_path):
    """The kernel's own account: no byte of a weight is read and none sent, also after a duck and fp9d were killed."""
    daemon = fleet.daemon
    with Rpc(daemon.socket, 60) as rpc:
        cold, seen = seen_in_load(daemon, rpc, tmp_path, model)
        total = sum(end - first for ranges in weights_of(model).values() for first, end in ranges)
        assert cold["cache"] == "miss" and seen.weights >= total and not seen.unknown, vars(seen)
        assert cold["bytes_sent"] > total
        # A local duck reads rows where fp9d has read them to; over a socket go only words about them.
        assert seen.sent > total if isinstance(fleet, Services) else 0 < seen.sent < total / 8, vars(seen)
        wait_ready(daemon, rpc)
        for which in range(2):
            warm, seen = seen_in_load(daemon, rpc, tmp_path, model)
            assert (warm["cache"], warm["bytes_read"], warm["bytes_sent"]) == ("hit", 0, 0)
            assert seen.shards == 0 and not seen.unknown, vars(seen)  # not even a header
            assert seen.sent < 64 * 1024, vars(seen)
            losses = daemon.log().count(": lost: ")
            fleet.kill("duck", which, None)
            daemon.wait_for("the loss", lambda: daemon.log().count(": lost: ") > losses)
            wait_ready(daemon, rpc)
    daemon.kill()
    daemon.wrap = from_start(str(tmp_path / "start"))
    daemon.start()
    with Rpc(daemon.socket, 60) as rpc:
        wait_ready(daemon, rpc)
        assert load(rpc, model)["cache"] == "hit"
    pid = daemon.process.pid
    daemon.stop()
    wait_end(tmp_path / "start", pid)
    seen = Seen(parse(tmp_path / "start"), model)
    assert seen.shards == 0 and seen.weights == 0 and seen.sent < 64 * 1024 and not seen.unknown, vars(seen)


@pytest.mark.skipif(SANITIZED, reason="the sanitizer's own threads cannot be followed quickly")
def test_disk_read_errors(make_daemon, model, tmp_path):
    """The disk fails ever later: each load ends naming file and cause, keeps what is finished, and the last one goes on from there."""
    daemon = make_daemon(ducks=DUCKS)
    shards = [os.path.join(model, name) for name in os.listdir(model) if name.endswith(".safetensors")]
    with Rpc(daemon.socket) as rpc:
        true = load(rpc, model), slots(rpc), outputs(rpc)
        daemon.ok("load", MODEL, "--name", "other", "--tp", 2, "--multiple-of", 32)
        rpc.call("model.unload", model="model", drop_cache=True)
        others = slots(rpc)
        assert others and not set(others) & set(true[1])
        failures, before = 0, set(others)
        for after in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584):
            paths = [word for shard in shards for word in ("-P", shard)]
            fault = ("-e", "trace=pread64,read", "-e", f"inject=pread64,read:error=EIO:when={after}+")
            with Strace(daemon.process.pid, tmp_path, *paths, *fault):
                try:
                    done = load(rpc, model)
                except RpcError as error:
                    failures += 1
                    assert "Input/output error" in error.message and ".safetensors" in error.message, error.message
                    done = None
            now = set(slots(rpc))
            assert before <= now, f"slots that were finished are gone: {sorted(before - now)}"
            before = now
            if done:
                break
        assert failures >= 2 and done, f"{failures} loads failed"
        if set(others) != before:
            assert done["cache"] in ("partial", "miss")
        assert set(slots(rpc)) == set(true[1]) | set(others)
        assert outputs(rpc) == true[2]
        assert load(rpc, model)["bytes_sent"] == 0


@pytest.fixture
def small_disk(tmp_path):
    """A mount namespace where a directory is a file system of 512 KiB: words that run a program there, the path from here."""
    folder = tmp_path / "state"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=512k tmpfs "{folder}" && echo there && exec sleep 600'
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", mount], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    try:
        if holder.stdout.readline() != "there\n":
            pytest.skip(f"no file system may be mounted here: {holder.stderr.read().strip()}")
        yield ["nsenter", "-t", str(holder.pid), "-m", "--"], f"/proc/{holder.pid}/root{folder}"
    finally:
        holder.kill()
        holder.communicate()


def test_state_directory_is_full(build, tmp_path, small_disk, model):
    """What is loaded works and stays; what could not be written is written when there is room again."""
    manager = Manager(tmp_path, "fp9d")
    daemon = Daemon(build, tmp_path, ducks=DUCKS, memory="64M", manager=manager)
    daemon.wrap, seen = small_disk
    daemon.start()
    with open(f"{seen}/filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    try:
        with Rpc(daemon.socket) as rpc:
            first = load(rpc, model)
            assert first["cache"] == "miss" and "not written down" in first["warning"] and "full" in first["warning"], first
            true_slots, true_outputs = slots(rpc), outputs(rpc)
            daemon.wait_for("the complaint", lambda: re.search(r"model model is not remembered: .*fp9d\.db.* full", daemon.log()))
            assert state(rpc) == "ready" and load(rpc, model)["cache"] == "hit"
        daemon.kill()
        daemon.start()
        with Rpc(daemon.socket) as rpc:
            assert state(rpc) is None, "it was remembered on a full disk?"
            assert slots(rpc) == true_slots, "weights do not hang on what fp9d remembers"
            again = load(rpc, model)
            assert (again["cache"], again["bytes_sent"]) == ("hit", 0), again
            assert outputs(rpc) == true_outputs
            os.unlink(f"{seen}/filler")
            daemon.wait_for("the second attempt", lambda: "model model is remembered now" in daemon.log())
        daemon.kill()
        daemon.start()
        with Rpc(daemon.socket) as rpc:
            wait_ready(daemon, rpc)
            assert slots(rpc) == true_slots and outputs(rpc) == true_outputs
            hit = load(rpc, model)
            assert hit["bytes_sent"] == 0 and "warning" not in hit, hit
        # Complaints do not pile up.
        assert daemon.log().count("model model is not remembered") == 2, daemon.log()
        daemon.stop()
    finally:
        if daemon.process:
            daemon.process.kill()
        manager.close()


def test_what_was_told_is_remembered(make_daemon, model):
    """kill -9 in the moment after the answer: the model is registered."""
    daemon = make_daemon(ducks=1)
    for number in range(5):
        with Rpc(daemon.socket) as rpc:
            load(rpc, model, name=f"model{number}", tp=1)
            daemon.kill()
        daemon.start()
        with Rpc(daemon.socket) as rpc:
            names = {m["name"] for m in rpc.call("model.list")["models"]}
            assert names == {f"model{i}" for i in range(number + 1)}


@pytest.mark.parametrize("drop", [False, True])
def test_what_was_told_to_be_gone_stays_gone(make_daemon, model, drop):
    """kill -9 in the moment after the answer to unload: the model does not come back."""
    daemon = make_daemon(ducks=1)
    for number in range(5):
        with Rpc(daemon.socket) as rpc:
            load(rpc, model, name="stays", tp=1)
            load(rpc, model, name=f"model{number}", tp=1)
            rpc.call("model.unload", model=f"model{number}", drop_cache=drop)
            daemon.kill()
        daemon.start()
        with Rpc(daemon.socket) as rpc:
            assert {m["name"] for m in rpc.call("model.list")["models"]} == {"stays"}


def test_an_invalidation_that_was_told_is_remembered(make_duck, build, tmp_path, model):
    """kill -9 in the moment after the answer: the duck that was away loses its slots when it is back."""
    ducks = [make_duck(f"d{i}") for i in range(2)]
    daemon = Daemon(build, tmp_path, ducks=0, remote=[(d.name, d.address) for d in ducks]).start()
    try:
        for _ in range(3):
            with Rpc(daemon.socket) as rpc:
                key = load(rpc, model, tp=2)["model_key"]
                ducks[1].kill()
                daemon.wait_for("the loss", lambda: any(d["state"] != "up" for d in rpc.call("duck.list")["ducks"]))
                assert rpc.call("cache.invalidate", model=key)["pending"] == ["d1"]
                daemon.kill()
            ducks[1].start()
            daemon.start()
            with Rpc(daemon.socket) as rpc:
                done = load(rpc, model, tp=2)
                assert done["model_key"] == key and done["cache"] == "miss" and "invalidated by uid" in done["reason"], done
    finally:
        daemon.stop()
