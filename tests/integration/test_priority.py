"""session.open's priority: a batch session computes the same bits, and the steps of an interactive one get past its prefill."""
import threading
import time

import numpy as np
import pytest

from support.daemon import SLOW
from support.model import HIDDEN, MODEL
from support.rpc import Rpc, RpcError, Session

LAYER = 2


@pytest.fixture(scope="module")
def served(daemon):
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    return daemon


def test_priority_is_told_and_checked(served, reference):
    x, ids, weights = reference.inputs(LAYER, 4)
    with Rpc(served.socket, 30 * SLOW) as rpc:
        sessions = {p: Session(rpc, "shakespeare", 4, **({"priority": p} if p else {})) for p in (None, "interactive", "batch")}
        outputs = {p: session.run("decode", LAYER, x, ids, weights) for p, session in sessions.items()}
        assert outputs["batch"] == outputs["interactive"] == outputs[None]
        told = {s["session"]: s["priority"] for s in rpc.call("session.list")["sessions"]}
        for priority, session in sessions.items():
            assert told[session.info["session"]] == (priority or "interactive")
        with pytest.raises(RpcError) as caught:
            rpc.call("session.open", model="shakespeare", max_tokens=4, priority="urgent")
        assert caught.value.name == "BAD_REQUEST", str(caught.value)
        assert "priority" in caught.value.message


def test_steps_get_past_a_prefill(served, reference):
    """While prefills run one after another, every single-token step ends, with its own bits, and so does every prefill."""
    x, ids, weights = reference.inputs(LAYER, 4)
    many = tuple(np.concatenate([part] * 256) for part in (x, ids, weights))
    over, errors, prefills = threading.Event(), [], []

    def prefill():
        try:
            with Rpc(served.socket, 60 * SLOW) as rpc:
                session = Session(rpc, "shakespeare", len(many[0]), priority="batch")
                while not over.is_set():
                    prefills.append(session.run("prefill", LAYER, *many))
        except Exception as error:  # told to the test below
            errors.append(error)

    with Rpc(served.socket, 30 * SLOW) as rpc:
        session = Session(rpc, "shakespeare", 4)
        alone = [session.run("decode", LAYER, x[i:i + 1], ids[i:i + 1], weights[i:i + 1]) for i in range(4)]
        thread = threading.Thread(target=prefill)
        thread.start()
        try:
            end = time.monotonic() + 2
            steps = 0
            while (time.monotonic() < end or len(prefills) < 2) and thread.is_alive() and time.monotonic() < end + 30 * SLOW:
                i = steps % 4
                assert session.run("decode", LAYER, x[i:i + 1], ids[i:i + 1], weights[i:i + 1]) == alone[i], f"step {steps}"
                steps += 1
        finally:
            over.set()
            thread.join()
    assert not errors, errors
    assert steps > 10 and len(prefills) >= 2
    rows = b"".join(alone)
    assert len(rows) == 4 * HIDDEN * 2
    assert all(output == rows * 256 for output in prefills)
