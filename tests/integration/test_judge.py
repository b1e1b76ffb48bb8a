"""Persistent and one-shot judges: whatever became of the step before, the next one, and the thousandth, is right to the bit."""
import os
import random
import time

import pytest

from support.daemon import SANITIZED, SLOW
from support.judges import DENSE, MOE, TP, Fleet, Truth
from support.model import MODEL
from support.rpc import Rpc, Session
from support.service import seed_of

KINDS = ("local", "service")
THOUSAND = 200 if SANITIZED else 1000
# Of the mixture, for each kind of fleet.
STEPS = int(os.environ.get("FP9_JUDGE_STEPS") or (60 if SANITIZED else 300))


@pytest.fixture(scope="module")
def truth(build, tmp_path_factory):
    return Truth(build, tmp_path_factory.mktemp("truth"))


@pytest.fixture
def chance():
    return random.Random(seed_of("judge"))


@pytest.fixture
def boot(build, tmp_path, truth):
    fleets = []

    def make(kind):
        fleets.append(Fleet(build, tmp_path, kind, truth))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.stop()


@pytest.fixture(scope="module", params=KINDS)
def fleet(request, build, tmp_path_factory, truth):
    """For tests that leave it as they found it: well."""
    one = Fleet(build, tmp_path_factory.mktemp(request.param), request.param, truth)
    yield one
    one.stop()


def thousand(fleet, chance):
    for number in range(THOUSAND):
        fleet.step(chance, False, tokens=(1, 4)[number // 2 % 2] if number % 50 else 64, layer=(DENSE, MOE)[number % 2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["persistent", "one-shot"])
def test_fresh_boot(boot, chance, kind, first):
    """The first step that a duck ever does, then the other judge, then a thousand."""
    fleet = boot(kind)
    for layer in (MOE, DENSE):
        for one_shot in (first == "one-shot", first != "one-shot"):
            fleet.step(chance, one_shot, 1, layer)
            fleet.step(chance, one_shot, 4, layer)
            fleet.step(chance, one_shot, 64, layer)
    thousand(fleet, chance)


HAPPENINGS = ("given_up", "closed", "kernel_killed", "stopped", "duck_killed", "duck_killed_between", "prepared_beside")


EITHER = ("given_up", "closed", "stopped", "duck_killed", "prepared_beside")


@pytest.mark.parametrize("what,one_shot", [(w, o) for w in HAPPENINGS for o in ((False, True) if w in EITHER else (True,))])
def test_the_step_after(fleet, chance, what, one_shot):
    rounds, before = 0, fleet.met[what]
    while rounds < (2 if what.startswith("duck") else 4) or fleet.met[what] == before:
        assert rounds < 20, f"{what} came too late each time"
        getattr(fleet, what)(chance, one_shot)
        fleet.step(chance, bool(rounds % 2))
        fleet.step(chance, not rounds % 2)
        rounds += 1
    thousand(fleet, chance)


def test_mixture(fleet, chance):
    """All of it in any order, many times; FP9_JUDGE_STEPS for more."""
    weights = [20, 12, 20, 12, 2, 2, 4]
    steps = 0
    while steps < STEPS:
        what = chance.choices(HAPPENINGS, weights)[0]
        if chance.random() < 0.4:
            getattr(fleet, what)(chance, chance.random() < 0.5)
        for _ in range(chance.randint(1, 5)):
            fleet.step(chance)
            steps += 1
    thousand(fleet, chance)


def test_parts_of_a_one_shot_step(fleet):
    """Every step of a one-shot session says where its time went, no other does; the parts are within judge_wait."""
    rows = fleet.truth.given(MOE, list(range(4)))
    for one_shot, session in fleet.sessions.items():
        for kind in ("decode", "prefill"):
            fleet.patient(lambda session=session, kind=kind: session.run(kind, MOE, *rows))
            parts = session.result.get("one_shot_us")
            assert (parts is not None) == one_shot
            if one_shot:
                assert list(parts) == ["spawn", "map", "team", "run", "exit"] and all(value > 0 for value in parts.values()), parts
                assert sum(parts.values()) < session.result["judge_wait_us"]
    listed = {s["session"]: s for s in fleet.rpc.call("session.list")["sessions"]}
    for one_shot, session in fleet.sessions.items():
        assert listed[session.id]["judge"] == ("one-shot" if one_shot else "persistent")
        assert listed[session.id]["one_shot"] == one_shot
    status = fleet.daemon.ok("status")
    assert (status["sessions"], status["one_shot_sessions"], status["persistent_judge"]) == (2, 1, True)


def comm(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def test_what_a_kernel_process_holds(fleet, chance):
    """Its job, the weights and the standard streams; no link, no listening socket, nothing of fp9d's."""
    for _ in range(100):
        begun = fleet.begin(chance, True)
        pid, held = fleet.kernel_process(), []
        try:
            deadline = time.monotonic() + 10
            while comm(pid) != "fp9-kernel" and time.monotonic() < deadline:  # it is not yet itself
                time.sleep(0.001)
            for number in os.listdir(f"/proc/{pid}/fd"):
                if int(number) > 2:
                    held.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except (FileNotFoundError, ProcessLookupError):  # it has ended: another look at another
            held = []
        assert fleet.finish(begun)
        if len(held) >= 2:
            break
    # A service's manager may leave it files of its own.
    ours = sorted(name for name in held if name.startswith(("/memfd:", "socket:", "anon_inode:")))
    assert len(ours) == 2 and ours[0].startswith("/memfd:fp9-job") and ours[1].startswith("/memfd:fp9-weights"), held
    assert fleet.kind == "service" or len(held) == 2, held


@pytest.mark.parametrize("how", [{"fleet": "persistent_judge = no"}, {"env": {"FP9_PERSISTENT_JUDGE": "0"}},
                                 {"fleet": "persistent_judge = no", "env": {"FP9_PERSISTENT_JUDGE": "1"}}], ids=str)
def test_chosen_for_all(make_daemon, truth, how):
    """By the configuration or the environment, which goes before it."""
    daemon = make_daemon(ducks=TP, **how)
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", TP, "--multiple-of", 64)
    persistent = how.get("env") == {"FP9_PERSISTENT_JUDGE": "1"}
    with Rpc(daemon.socket, 30 * SLOW) as rpc, Session(rpc, "shakespeare", 4) as session:
        got = session.run("decode", MOE, *truth.given(MOE, [5, 3]))
        truth.check(MOE, [5, 3], got, str(how))
        assert ("one_shot_us" in session.result) == (not persistent)
        status = daemon.ok("status")
        assert (status["one_shot_sessions"], status["persistent_judge"]) == (0 if persistent else 1, persistent)
