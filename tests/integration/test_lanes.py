"""Several steps of a session in flight, through JSON and through the ring: the same bits, refusals by name, nobody's memory mixed up."""
import random
import threading
import time

import numpy as np
import pytest

from support.daemon import SLOW
from support.freeze import stopped
from support.model import EXPERTS, HIDDEN
from support.rpc import Rpc, RpcError, Session

WAYS = pytest.mark.parametrize("way", [{}, {"ring": True}], ids=["json", "ring"])


@pytest.fixture(scope="module")
def alone(served, reference):
    """layer, token -> the output's bytes of that token by itself"""
    found = {}
    with Rpc(served.socket, 30 * SLOW) as one:
        session = Session(one, "m", 1, lanes=1)
        for layer in range(4):
            x, ids, weights = reference.inputs(layer, 8)
            for i in range(8):
                routing = () if ids is None else (ids[i:i + 1], weights[i:i + 1])
                found[layer, i] = session.run("decode", layer, x[i:i + 1], *routing)
        session.close()
    return found


def one_token(reference, layer, i):
    x, ids, weights = reference.inputs(layer, 8)
    return (x[i:i + 1],) if ids is None else (x[i:i + 1], ids[i:i + 1], weights[i:i + 1])


@WAYS
@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_the_same_bits_in_any_company(rpc, reference, alone, lanes, way):
    session = Session(rpc, "m", 4, lanes=lanes, **way)
    assert session.lanes == lanes and (session.ring is not None) == bool(way)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rand, under_way = random.Random(seed), []
    for _ in range(200):
        while len(under_way) < lanes:
            layer, i = rand.randrange(4), rand.randrange(8)
            under_way.append((layer, i, session.start(rand.choice(["decode", "prefill"]), layer, *one_token(reference, layer, i))))
        layer, i, step = under_way.pop(rand.randrange(lanes))  # waited for in any order
        assert bytes(step.wait().y) == alone[layer, i], (layer, i)
    for layer, i, step in under_way:
        assert bytes(step.wait().y) == alone[layer, i]
    listed = [s for s in rpc.call("session.list")["sessions"] if s["session"] == session.id]
    assert listed[0]["lanes"] == lanes and listed[0]["in_flight"] == 0 and listed[0]["steps"] == 200 + len(under_way)
    session.close()


def test_default_and_limits(rpc):
    with rpc.session_open("m", 1) as session:
        assert session.info["lanes"] == 2
        assert session.arena_bytes >= 2 * (HIDDEN * 2 + 2 * 64 + HIDDEN * 4)
    for lanes in (0, 9):
        with pytest.raises(RpcError) as caught:
            rpc.session_open("m", 1, lanes=lanes)
        assert caught.value.name == "BAD_REQUEST" and "1 to 8" in caught.value.message


@WAYS
def test_one_more_is_busy(served, rpc, reference, alone, way):
    session = Session(rpc, "m", 4, lanes=2, **way)
    with stopped(served.duck_pids()[0]):
        steps = [session.start("decode", 1, *one_token(reference, 1, i)) for i in range(2)]
        with pytest.raises(RpcError) as caught:
            session.start("decode", 1, tokens=1, top_k=2, places=session.lay(1, offset=0)).wait()
        assert caught.value.name == "BUSY" and "2 of its steps are in flight" in caught.value.message and caught.value.values["lanes"] == 2
    for i, step in enumerate(steps):
        assert bytes(step.wait().y) == alone[1, i]
    session.close()


@WAYS
def test_tensors_of_steps_in_flight_do_not_overlap(served, rpc, reference, alone, way):
    session = Session(rpc, "m", 64, lanes=3, **way)
    good, free = session.lane_places[0], session.lane_places[1].offset("x")

    def begin(**changed):
        step = {"tokens": 1, "top_k": 2, "x": free, "topk_ids": free + 4096, "topk_weights": free + 8192, "y": free + 16384, **changed}
        params = {"session": session.id, "layer": 1, "tokens": 1, "top_k": 2, "x": {"offset": step["x"], "dtype": "BF16"},
                  "topk_ids": {"offset": step["topk_ids"]}, "topk_weights": {"offset": step["topk_weights"]},
                  "y": {"offset": step["y"], "dtype": "BF16"}}
        return session.ring.submit("decode", params) if session.ring else rpc.request("decode", **params)

    with stopped(served.duck_pids()[0]):
        held = session.start("decode", 1, *one_token(reference, 1, 0), places=good)
        for mine, theirs in (("y", "x"), ("y", "topk_ids"), ("y", "topk_weights"), ("y", "y"), ("x", "y"), ("topk_ids", "y"),
                             ("topk_weights", "y")):
            with pytest.raises(RpcError) as caught:
                rpc.wait(begin(**{mine: good.offset(theirs)}))
            assert caught.value.name == "BAD_SHAPE", str(caught.value)
            assert f"{mine} overlaps {theirs} of the step of layer 1 that is in flight" in caught.value.message
        assert held.waiting()
        shared = begin(x=good.offset("x"), topk_ids=good.offset("topk_ids"), topk_weights=good.offset("topk_weights"))  # inputs may be
    rpc.wait(shared)
    assert bytes(held.wait().y) == alone[1, 0] == bytes(session.arena[free + 16384:free + 16384 + HIDDEN * 2])
    rpc.wait(begin(y=good.offset("y")))  # after the answer everything is free
    session.close()


@WAYS
def test_client_gone_with_steps_in_flight(served, reference, alone, way):
    before = served.ok("status")["sessions"]
    for _ in range(20):
        with Rpc(served.socket, 30 * SLOW) as one:
            session = Session(one, "m", 4, lanes=4, **way)
            for i in range(4):
                session.start("decode", 1, *one_token(reference, 1, i))
    served.wait_for("the sessions of clients that are gone", lambda: served.ok("status")["sessions"] == before)
    with Rpc(served.socket, 30 * SLOW) as one:
        session = Session(one, "m", 4, **way)
        assert session.run("decode", 1, *one_token(reference, 1, 3)) == alone[1, 3]


@WAYS
def test_closed_with_steps_in_flight(served, rpc, reference, way):
    x, ids, weights = reference.inputs(1, 64)
    session = Session(rpc, "m", 64, lanes=2, **way)
    steps = [session.start("prefill", 1, x, ids, weights) for _ in range(2)]
    if session.ring:
        session.close()  # the ring goes with it, nobody can wait any more
        return
    closing = rpc.request("session.close", session=session.id)
    ends = []
    for step in steps:
        try:
            step.wait()
            ends.append("done")
        except RpcError as error:
            ends.append(error.name)
    rpc.wait(closing)
    assert set(ends) <= {"done", "CANCELLED"}, ends


@WAYS
def test_scribbling_while_steps_run(served, rpc, reference, way):
    """Another thread writes into the inputs all the time: ids that are right, other right ones, and wrong ones. What comes back is the
    output for one of the right inputs of each tensor, or a refusal of what is wrong, and never anything else."""
    session = Session(rpc, "m", 1, lanes=2, **way)
    x, ids, weights = (a[:1].copy() for a in reference.inputs(1, 1))
    choices = [np.array([[a, b]], np.int32) for a, b in ((0, 1), (2, 3), (4, -1))]
    wrong = [np.array([[EXPERTS, 1]], np.int32), np.array([[0, -2]], np.int32), np.array([[2**31 - 1, -2**31]], np.int32)]
    # The writer is not atomic over a row, so any mixture of the rows' columns may be seen.
    rights = [np.array([[a, b]], np.int32) for a in (0, 2, 4) for b in (1, 3, -1)]
    allowed = {session.run("decode", 1, x, right, weights) for right in rights}
    places = session.places
    over, seed = threading.Event(), random.randrange(1 << 30)
    print("seed", seed)
    rand = random.Random(seed)

    def scribble():
        while not over.is_set():
            for row in (*choices, *wrong, *choices):
                places.topk_ids[0] = row[0]
                time.sleep(rand.random() * 2e-4)

    places.x[0], places.topk_weights[0] = x[0], weights[0]
    thread = threading.Thread(target=scribble)
    thread.start()
    done = refused = 0
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end or not (done and refused):
            assert time.monotonic() < end + 60 * SLOW, (done, refused)
            try:
                step = session.start("decode", 1, tokens=1, top_k=2).wait()
                assert bytes(step.y) in allowed
                done += 1
            except RpcError as error:
                assert error.name == "BAD_EXPERT" and "token 0, slot" in error.message, str(error)
                refused += 1
    finally:
        over.set()
        thread.join()
    assert session.run("decode", 1, x, choices[0], weights) in allowed
    session.close()
    assert served.ok("status")["state"] == "ready"
