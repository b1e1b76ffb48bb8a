"""Steps that nobody waits for any more: cancelled by their client, closed with their session, dead with it, past their deadline. Their
ducks are free within a tile; others' steps and the next ones are right to the bit."""
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fp9 import ring
from support.daemon import SLOW, Daemon
from support.model import MODEL
from support.rpc import Raw, Rpc, RpcError, Session
from support.service import DuckService

LAYER = 2
LONG = 0.6  # seconds at least of the reference kernels, in which a step can be met
WAYS = pytest.mark.parametrize("way", [{}, {"ring": True}, {"one_shot": True}, {"one_shot": True, "ring": True}],
                               ids=["json", "ring", "one-shot", "one-shot-ring"])


def load(daemon):
    daemon.ok("load", MODEL, "--name", "m", "--tp", 2, "--multiple-of", 64)
    return daemon


@pytest.fixture(scope="module")
def served(build, tmp_path_factory):
    one = Daemon(build, tmp_path_factory.mktemp("cancel"), ducks=2, env={"FP9_CPU": "ref"})
    one.start()
    yield load(one)
    one.stop()


@pytest.fixture
def rpc(served):
    with Rpc(served.socket, 60 * SLOW) as one:
        yield one


class Fleet:
    """A prefill of as many tokens as take this machine LONG, and a short one that has to wait for what the ducks are at."""

    def __init__(self, served, reference):
        parts = reference.inputs(LAYER, 4)
        self.tokens, self.whole = 128, 0
        while self.whole < LONG:
            self.tokens *= 2
            self.many = tuple(np.concatenate([part] * (self.tokens // 4)) for part in parts)
            with Rpc(served.socket, 60 * SLOW) as one, Session(one, "m", self.tokens) as session:
                begun = time.monotonic()
                self.output = session.run("prefill", LAYER, *self.many)
                self.whole = time.monotonic() - begun
        self.short = [part[:12] for part in self.many]
        with Rpc(served.socket, 60 * SLOW) as one, Session(one, "m", 12) as other:
            self.short_output = other.run("prefill", LAYER, *self.short)
        assert self.output == self.short_output[:len(self.output) // self.tokens * 4] * (self.tokens // 4)

    def expect_free(self, rpc):
        """A prefill is batch work, so it would wait for another."""
        with Session(rpc, "m", 12) as other:
            begun = time.monotonic()
            assert other.run("prefill", LAYER, *self.short) == self.short_output
            took = time.monotonic() - begun
        assert took < self.whole / 3, f"{took * 1e3:.0f} ms, a whole prefill takes {self.whole * 1e3:.0f} ms"
        return took

    def middle(self):
        time.sleep(self.whole / 5)


@pytest.fixture(scope="module")
def fleet(served, reference):
    return Fleet(served, reference)


def expect_cancelled(step):
    with pytest.raises(RpcError) as caught:
        step.wait()
    assert caught.value.name == "CANCELLED", str(caught.value)
    assert f"its step of layer {LAYER} was cancelled by its client" in caught.value.message


@WAYS
def test_by_its_client(rpc, fleet, way):
    session = Session(rpc, "m", fleet.tokens, lanes=2, **way)
    step = session.start("prefill", LAYER, *fleet.many)
    fleet.middle()
    begun = time.monotonic()
    step.cancel()
    expect_cancelled(step)
    told = time.monotonic() - begun
    print(f"told after {told * 1e3:.1f} ms, free after {fleet.expect_free(rpc) * 1e3:.1f} ms of {fleet.whole * 1e3:.0f}")
    assert told < 0.1 * SLOW
    step.cancel()  # it is over
    assert session.run("prefill", LAYER, *fleet.short) == fleet.short_output
    assert session.run("prefill", LAYER, *fleet.many) == fleet.output
    session.close()


@pytest.mark.parametrize("one_shot", [False, True])
def test_of_4096_tokens(rpc, fleet, one_shot):
    with Session(rpc, "m", 4096, one_shot=one_shot) as session:
        step = session.start("prefill", LAYER, *(np.concatenate([part] * (4096 // fleet.tokens)) for part in fleet.many))
        time.sleep(0.2 * SLOW)
        step.cancel()
        expect_cancelled(step)
        print(f"free after {fleet.expect_free(rpc) * 1e3:.1f} ms of {fleet.whole * 4096 / fleet.tokens * 1e3:.0f}")
        assert session.run("prefill", LAYER, *fleet.many) == fleet.output


@WAYS
def test_one_of_two(rpc, fleet, way):
    """The one that waits for the other's turn; then the one that runs."""
    session = Session(rpc, "m", fleet.tokens, lanes=2, **way)
    for first in (True, False):
        steps = [session.start("prefill", LAYER, *fleet.many), session.start("prefill", LAYER, *fleet.many)]
        fleet.middle()
        steps[first].cancel()
        expect_cancelled(steps[first])
        assert bytes(steps[not first].wait().y) == fleet.output
    session.close()


def test_a_duck_over_tcp(build, tmp_path, make_daemon, fleet):
    service = DuckService(build, tmp_path, "far")
    service.env["FP9_CPU"] = "ref"
    service.start()
    try:
        daemon = make_daemon(ducks=1, remote=[("far", service.address)], env={"FP9_CPU": "ref"})
        load(daemon)
        with Rpc(daemon.socket, 60 * SLOW) as rpc, Session(rpc, "m", fleet.tokens) as session:
            assert session.run("prefill", LAYER, *fleet.many) == fleet.output
            step = session.start("prefill", LAYER, *fleet.many)
            fleet.middle()
            step.cancel()
            expect_cancelled(step)
            fleet.expect_free(rpc)
            assert session.run("prefill", LAYER, *fleet.many) == fleet.output
    finally:
        service.end()


@pytest.mark.parametrize("one_shot", [False, True])
def test_session_closed(rpc, fleet, one_shot):
    session = Session(rpc, "m", fleet.tokens, one_shot=one_shot)
    session.start("prefill", LAYER, *fleet.many)
    fleet.middle()
    session.close()
    fleet.expect_free(rpc)


CLIENT = """
import sys
sys.path[:0] = sys.argv[1].split(":")
import numpy as np
import fp9
with fp9.connect(sys.argv[2]) as connection:
    tokens = int(sys.argv[3])
    session = connection.session_open("m", tokens)
    x = np.zeros((tokens, session.hidden_size), np.uint16)
    session.start("prefill", 2, x, np.tile(np.array([[0, 1]], np.int32), (tokens, 1)), np.ones((tokens, 2), np.float32))
    print("started", flush=True)
    sys.stdin.read()
"""


def test_client_killed(served, rpc, fleet):
    path = ":".join(sys.path)
    client = subprocess.Popen([sys.executable, "-c", CLIENT, path, served.socket, str(fleet.tokens)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == b"started\n"
        fleet.middle()
    finally:
        os.kill(client.pid, signal.SIGKILL)
        client.communicate(timeout=20)
    fleet.expect_free(rpc)
    served.wait_for("its session to end", lambda: not rpc.call("session.list")["sessions"])


def test_deadline(rpc, fleet):
    with Session(rpc, "m", fleet.tokens) as session:
        with pytest.raises(RpcError) as caught:
            session.start("prefill", LAYER, *fleet.many, deadline_ms=int(fleet.whole * 200)).wait()
        assert caught.value.name == "DEADLINE"
        fleet.expect_free(rpc)
        assert session.run("prefill", LAYER, *fleet.short) == fleet.short_output


def test_of_nothing(served, rpc, fleet):
    """Of steps that are not there, twice, of other sessions and other connections: told by name, and nobody's step ends."""
    with Session(rpc, "m", fleet.tokens) as session, Session(rpc, "m", 12) as other, Rpc(served.socket, 30 * SLOW) as stranger:
        step = session.start("prefill", LAYER, *fleet.many)
        assert rpc.step_cancel(other.id, step.number) == {"cancelled": False}
        for request in (step.number + 10 ** 6, 0, -1, str(step.number), "", "x" * 1000):
            assert rpc.step_cancel(session.id, request) == {"cancelled": False}
        for connection, number in ((stranger, session.id), (rpc, 2 ** 31 - 1)):
            with pytest.raises(RpcError) as caught:
                connection.step_cancel(number, step.number)
            assert caught.value.name == "NO_SUCH"
        for request in (None, 1.5, [], {}, True):
            with pytest.raises(RpcError) as caught:
                rpc.step_cancel(session.id, request)
            assert caught.value.name == "BAD_REQUEST" and "request" in caught.value.message
        assert bytes(step.wait().y) == fleet.output
        step = session.start("prefill", LAYER, *fleet.many)
        assert rpc.step_cancel(session.id, step.number) == {"cancelled": True}
        assert rpc.step_cancel(session.id, step.number) == {"cancelled": False}
        expect_cancelled(step)


def test_ids_are_the_clients_own(served, rpc, fleet):
    """A string is as good as a number; of two requests by one id both end."""
    with Raw(served.socket, 60 * SLOW) as raw, Session(rpc, "m", 12):
        raw.send_raw(b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"model":"m","max_tokens":256,"lanes":2}}\n')
        number = raw.read_message()["result"]["session"]
        routing = '"topk_ids":{"offset":%d},"topk_weights":{"offset":%d},"top_k":2' % (1 << 17, 1 << 17)
        line = ('{"jsonrpc":"2.0","id":"again","method":"prefill","params":{"session":%d,"layer":2,"tokens":256,"x":{"offset":0},%s,'
                '"y":{"offset":%d}}}\n')
        raw.send_raw((line % (number, routing, 1 << 18)).encode())
        raw.send_raw((line % (number, routing, 1 << 19)).encode())
        raw.send_raw(b'{"jsonrpc":"2.0","id":2,"method":"step.cancel","params":{"session":%d,"request":"again"}}\n' % number)
        answers = [raw.read_message() for _ in range(3)]
        assert [a for a in answers if a["id"] == 2] == [{"jsonrpc": "2.0", "id": 2, "result": {"cancelled": True}}]
        assert [a["error"]["data"]["name"] for a in answers if a["id"] == "again"] == ["CANCELLED"] * 2
    fleet.expect_free(rpc)


def test_floods(served, rpc, fleet):
    """As many cancels as a client can send, in JSON and in a ring, while others work."""
    with Rpc(served.socket, 60 * SLOW) as noisy, Session(noisy, "m", fleet.tokens, ring=True) as session, Session(rpc, "m", 12) as calm:
        step = session.start("prefill", LAYER, *fleet.many)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for _ in range(20):
                noisy.step_cancel(session.id, 4711)
            words = session.ring._words
            for slot in range(ring.SLOTS):
                words[ring.CANCEL // 4 + slot] = 77 + slot  # no answer of theirs
            words[ring.CANCELS // 4] = (words[ring.CANCELS // 4] + 1) & 0xFFFFFFFF
            os.eventfd_write(session.ring._doorbell, 1)
            x = [part[:4] for part in fleet.short]
            assert calm.run("decode", LAYER, *x) == fleet.short_output[:len(fleet.short_output) // 3]
            begun = time.monotonic()
            rpc.status()
            assert time.monotonic() - begun < 0.1 * SLOW
        assert bytes(step.wait().y) == fleet.output
        session.ring._cancels = words[ring.CANCELS // 4]
        step = session.start("prefill", LAYER, *fleet.many)
        step.cancel()
        expect_cancelled(step)


def test_again_and_again(rpc, fleet):
    """At any moment, from before its first tile to after its last: it is cancelled or right, and so is what comes next."""
    ended = 0
    with Session(rpc, "m", fleet.tokens, ring=True) as session:
        for round_ in range(12):
            step = session.start("prefill", LAYER, *fleet.many)
            time.sleep(fleet.whole * round_ / 10)
            step.cancel()
            try:
                assert bytes(step.wait().y) == fleet.output
            except RpcError as error:
                assert error.name == "CANCELLED"
                ended += 1
            assert session.run("prefill", LAYER, *fleet.short) == fleet.short_output
    assert 2 <= ended
