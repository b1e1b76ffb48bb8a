"""Deadlines: a step whose time is up fails by name, its late results go nowhere, session and duck stay as good as new."""
import time

import pytest

from support.daemon import SLOW
from support.freeze import Frozen, busiest_thread, stopped
from support.model import MODEL
from support.rpc import Rpc, RpcError, Session

LAYER = 2
DEADLINE = 300 * SLOW


@pytest.fixture
def served(make_daemon):
    """Its heartbeats are so far apart that nobody is lost here."""
    daemon = make_daemon(ducks=2, fleet="heartbeat_s = 60")
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    return daemon


def expect_deadline(rpc, kind, params, deadline, duck):
    begun = time.monotonic()
    with pytest.raises(RpcError) as caught:
        rpc.call(kind, layer=LAYER, **params)
    took = (time.monotonic() - begun) * 1000
    error = caught.value
    assert error.name == "DEADLINE", str(error)
    assert error.values["duck"] == duck and error.values["layer"] == LAYER and error.values["phase"] == kind
    assert error.values["deadline_ms"] == deadline
    for word in (duck, f"{kind} of layer {LAYER}", f"{deadline} ms"):
        assert word in error.message, error.message
    assert deadline <= took < deadline + 250 * SLOW, took


def test_a_stopped_duck(served, reference):
    x, ids, weights = reference.inputs(LAYER, 4)
    other = reference.inputs(1, 4)
    victim = served.duck_pids()[1]
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 4)
        good, elsewhere = session.run("decode", LAYER, x, ids, weights), session.run("decode", 1, *other)
        assert good != elsewhere
        for kind in ("decode", "prefill", "decode"):
            with stopped(victim):
                expect_deadline(rpc, kind, dict(session.place(x, ids, weights), deadline_ms=DEADLINE), DEADLINE, served.duck_name(victim))
                # The arena is the client's again; what it writes there now is not what the late step sees or writes.
                assert served.ok("status")["state"] == "ready"
            # At once: the duck still works at the step that was given up when this one comes.
            assert session.run("decode", 1, *other) == elsewhere
            assert session.run("decode", LAYER, x, ids, weights) == good
        session.close()
    assert victim in served.duck_pids()


def test_a_duck_that_answers_all_but_steps(make_daemon, reference):
    """Pings are answered, so no heartbeat helps: only the deadline ends the step."""
    served = make_daemon(ducks=2, fleet="heartbeat_s = 1")
    served.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    x, ids, weights = reference.inputs(LAYER, 4)
    victim = served.duck_pids()[0]
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 4)
        good = session.run("decode", LAYER, x, ids, weights)
        thread = busiest_thread(victim, lambda: [session.run("decode", LAYER, x, ids, weights) for _ in range(300)])
        with Frozen(thread):
            for _ in range(2):
                expect_deadline(rpc, "decode", dict(session.place(x, ids, weights), deadline_ms=2 * DEADLINE), 2 * DEADLINE,
                                served.duck_name(victim))
            time.sleep(3.5)
            assert all(d["state"] == "up" for d in served.ok("duck", "list")["ducks"])
        assert session.run("decode", LAYER, x, ids, weights) == good
    assert victim in served.duck_pids()


def test_one_for_all_in_the_configuration(make_daemon, reference):
    served = make_daemon(ducks=1, fleet=f"heartbeat_s = 60\ndeadline_s = {SLOW}")
    served.ok("load", MODEL, "--name", "shakespeare", "--tp", 1, "--multiple-of", 128)
    x, ids, weights = reference.inputs(LAYER, 4)
    victim = served.duck_pids()[0]
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 4)
        good = session.run("decode", LAYER, x, ids, weights)
        with stopped(victim):
            expect_deadline(rpc, "decode", session.place(x, ids, weights), 1000 * SLOW, served.duck_name(victim))
            expect_deadline(rpc, "decode", dict(session.place(x, ids, weights), deadline_ms=DEADLINE), DEADLINE, served.duck_name(victim))
        assert session.run("decode", LAYER, x, ids, weights) == good


def test_in_time(served, reference):
    """A thousand steps with a deadline, each in time; the alarm of one never hits another."""
    x, ids, weights = reference.inputs(LAYER, 1)
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 1)
        good = session.run("decode", LAYER, x, ids, weights)
        params = dict(session.place(x, ids, weights), layer=LAYER, deadline_ms=2000 * SLOW)
        begun = time.monotonic()
        count = 0
        while count < 1000 or time.monotonic() - begun < 2.5 * SLOW:
            rpc.call("decode", **params)
            count += 1
        assert session.run("decode", LAYER, x, ids, weights) == good


@pytest.mark.parametrize("wrong", [0, -1, 86400001, 1.5, "5"])
def test_wrong_ones(served, reference, wrong):
    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 1)
        with pytest.raises(RpcError) as caught:
            rpc.call("decode", **dict(session.place(*reference.inputs(LAYER, 1)), layer=LAYER, deadline_ms=wrong))
        assert caught.value.name == "BAD_REQUEST" and "deadline_ms" in caught.value.message, str(caught.value)
