"""The step ring from outside: refused in JSON's words, hostile clients, floods, doorbells; fp9d asleep uses no CPU."""
import os
import random
import struct
import threading
import time

import pytest

from fp9 import ring
from support.daemon import SLOW
from support.freeze import stopped
from support.model import HIDDEN
from support.rpc import Rpc, RpcError, Session


def one_token(reference):
    return tuple(a[:1] for a in reference.inputs(1, 1))


def params_of(session, **changed):
    """A right call of layer 1 with members replaced."""
    return {"layer": 1, **session.params(1, 2), **changed}


WRONG = [
    {"layer": 4}, {"layer": 1024}, {"layer": 0xFFFFFFFF}, {"tokens": 5}, {"tokens": 4097}, {"top_k": 3}, {"top_k": 65}, {"layer": 0},
    {"deadline_ms": 86400001}, {"x": {"offset": 1}}, {"x": {"offset": 1 << 40}}, {"topk_ids": {"offset": 32}},
    {"topk_weights": {"offset": 1 << 62}},
    {"y": {"offset": 64 * 10 ** 6}}, {"y": {"offset": 0, "dtype": "BF16"}}, {"y": {"offset": 63, "dtype": "F32"}}]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_refused_in_the_words_of_json(rpc, reference, wrong):
    errors = []
    for more in ({}, {"ring": True}):
        session = Session(rpc, "m", 4, lanes=1, **more)
        session.put(*one_token(reference))
        wrong = {key: {"dtype": "BF16", **value} if key == "y" else value for key, value in wrong.items()}
        params = params_of(session, **wrong)
        with pytest.raises(RpcError) as caught:
            if session.ring:
                rpc.wait(session.ring.submit("decode", params))
            else:
                rpc.call("decode", session=session.id, **params)
        errors.append((caught.value.name, caught.value.message.replace(f"session {session.id} ", "session N "), caught.value.values))
        step = session.decode(1, *one_token(reference))  # nothing of it is left
        assert step.timing["params"] > 0
        session.close()
    assert errors[0] == errors[1]


@pytest.mark.parametrize("ids", [(8, 0), (-2, 0), (0, 2 ** 31 - 1)])
def test_bad_experts(rpc, reference, ids):
    session = Session(rpc, "m", 1, ring=True)
    x, _, weights = one_token(reference)
    session.put(x, reference.inputs(1, 1)[1], weights)
    session.places.topk_ids[0] = ids
    with pytest.raises(RpcError) as caught:
        session.decode(1, tokens=1, top_k=2)
    assert caught.value.name == "BAD_EXPERT" and caught.value.values["expert"] == [i for i in ids if not 0 <= i < 8][0]


def poke(session, at, data):
    session.ring._memory[at:at + len(data)] = data


def submit_raw(session, count=1):
    words = session.ring._words
    words[ring.SUBMITTED // 4] = (words[ring.SUBMITTED // 4] + count) & 0xFFFFFFFF
    os.eventfd_write(session.ring._doorbell, 1)


def wait_end(session):
    deadline = time.monotonic() + 10 * SLOW
    while not session.ring._words[ring.ENDED // 4]:
        assert time.monotonic() < deadline, "fp9d did not end the session"
        time.sleep(0.001)
    return session.ring._error(ring.END_TEXT)


def flood(session):
    submit_raw(session, 9)


def far(session):
    submit_raw(session, -1)


def no_slot(session):
    poke(session, ring.QUEUE, b"\x08")
    submit_raw(session)


def in_flight(session):
    poke(session, ring.QUEUE, b"\x00\x00")
    session.put(*session.inputs)
    session.ring.submit("decode", params_of(session))
    poke(session, ring.QUEUE + 1, b"\x00")
    submit_raw(session)


@pytest.mark.parametrize("break_it,words", [(flood, "more steps are handed over than there are slots (9)"), (far, "(4294967295)"),
                                            (no_slot, "a slot that is not there is in the queue (8)")])
def test_a_ring_that_makes_no_sense_ends_its_session(served, rpc, reference, break_it, words):
    session, good = Session(rpc, "m", 1, ring=True), Session(rpc, "m", 1, ring=True)
    break_it(session)
    error = wait_end(session)
    assert error["data"]["name"] == "BAD_REQUEST" and words in error["message"], error
    assert f"session {session.id}: its ring makes no sense" in error["message"]
    for kind in ("ring", "json"):  # both ways say why
        with pytest.raises(RpcError) as caught:
            if kind == "ring":
                session.decode(1, *one_token(reference))
            else:
                rpc.call("decode", session=session.id, **params_of(session))
        assert caught.value.message == error["message"]
    assert good.decode(1, *one_token(reference)).timing["params"] > 0
    session.close()
    assert served.ok("status")["state"] == "ready"


def test_slot_in_flight_again(served, reference):
    victim = served.duck_pids()[0]
    with Rpc(served.socket, 30 * SLOW) as one:
        session = Session(one, "m", 1, ring=True)
        session.inputs = one_token(reference)
        with stopped(victim):
            in_flight(session)
            error = wait_end(session)
        assert "a slot is in the queue whose step is in flight (0)" in error["message"]


@pytest.mark.parametrize("at,value,field", [(0, 2, "kind"), (1, 3, "y_dtype"), (2, 1, "zero"), (20, 1, "zero"), (56, 1, "zero")])
def test_fields_that_are_not_right(rpc, reference, at, value, field):
    session = Session(rpc, "m", 1, ring=True)
    number = session.ring.submit("decode", params_of(session))
    session.put(*one_token(reference))
    try:
        rpc.wait(number)
    except RpcError:
        pass
    poke(session, ring.SLOTS_AT + at, bytes([value]))
    session.ring._calls[0] = session.ring._core.local(), "decode"
    number = session.ring._calls[0][0]
    session.ring._memory[ring.QUEUE + 1] = 0
    session.ring._submitted += 1
    submit_raw(session)
    with pytest.raises(RpcError) as caught:
        rpc.wait(number)
    assert caught.value.name == "BAD_REQUEST" and caught.value.message.startswith(field + ": "), caught.value.message


def test_noise(served, reference):
    """Threads write anything anywhere into rings, their doorbells ring; fp9d goes on, others' steps are right, status is quick."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    over = threading.Event()

    def noise(number):
        rand = random.Random(seed + number)
        while not over.is_set():
            with Rpc(served.socket, 30 * SLOW) as one:
                session = Session(one, "m", 1, ring=True)
                for _ in range(rand.randrange(400)):
                    kind = rand.randrange(4)
                    if kind == 0:
                        poke(session, rand.randrange(ring.BYTES - 8), rand.randbytes(8))
                    elif kind == 1:
                        poke(session, ring.QUEUE, bytes(rand.randrange(9) for _ in range(8)))
                    elif kind == 2:
                        submit_raw(session, rand.choice([1, 1, 1, 2, 8, 9, -1]))
                    else:
                        slot = rand.randrange(8)
                        words = [rand.randrange(2), rand.randrange(3), 0, rand.randrange(5), rand.randrange(3), rand.randrange(4), 0, 0]
                        ring.CALL.pack_into(session.ring._memory, ring.SLOTS_AT + slot * ring.SLOT_BYTES, *words,
                                            *(64 * rand.randrange(64) for _ in range(4)), 0)
                    if session.ring._words[ring.ENDED // 4]:
                        break

    threads = [threading.Thread(target=noise, args=(i,)) for i in range(3)]
    slowest = 0.0
    with Rpc(served.socket, 30 * SLOW) as one:
        good = Session(one, "m", 1, ring=True)
        expected = bytes(good.decode(1, *one_token(reference)).y)
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 5
            while time.monotonic() < end:
                assert bytes(good.decode(1, *one_token(reference)).y) == expected
                begin = time.monotonic()
                one.call("status")
                slowest = max(slowest, time.monotonic() - begin)
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert slowest < 0.5 * SLOW, slowest
    served.wait_for("the sessions of noise", lambda: served.ok("status")["sessions"] == 0)


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_asleep_it_uses_no_cpu(served, rpc, reference):
    session = Session(rpc, "m", 1, ring=True)
    session.decode(1, *one_token(reference))
    time.sleep(0.2)
    before = cpu_ticks(served.process.pid)
    time.sleep(2)
    assert cpu_ticks(served.process.pid) - before <= 6 * SLOW  # of 200; it still ticks ten times a second
    assert session.decode(1, *one_token(reference)).timing["params"] > 0


def settled(count):
    """What it comes to once it has not changed for half a second."""
    seen, since = count(), time.monotonic()
    deadline = since + 20 * SLOW
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline, "it never settles"
        time.sleep(0.02)
        now = count()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def test_descriptors_and_memory_go_with_the_session(served, reference):
    count = lambda: len(os.listdir(f"/proc/{served.process.pid}/fd"))  # noqa: E731
    with Rpc(served.socket, 30 * SLOW) as one:
        before = settled(count)  # the clients of earlier tests are going
        for _ in range(50):
            session = Session(one, "m", 1, ring=True)
            session.decode(1, *one_token(reference))
            session.close()
        served.wait_for("their descriptors", lambda: count() == before)
        # an answer that nobody takes the ring of
        one.call("session.close", session=one.call("session.open", model="m", max_tokens=1, ring=True)["session"])
        served.wait_for("its descriptors", lambda: count() == before)


def test_geometry(rpc):
    with rpc.session_open("m", 1, ring=True) as session:
        told = session.info["ring"]
        assert told == {"version": 1, "offset": session.arena_bytes, "bytes": told["bytes"], "slots": 8}
        assert told["bytes"] % 4096 == 0 and told["bytes"] >= ring.BYTES
        version, slots, stride = struct.unpack_from("<III", session.ring._memory, 0)
        assert (version, slots, stride) == (1, 8, ring.SLOT_BYTES)
        assert session.arena_bytes >= 2 * HIDDEN * 6
    with rpc.session_open("m", 1) as session:
        assert "ring" not in session.info and session.ring is None
