"""A fleet whose ducks and kernel processes are stopped, killed and given up on, and steps that must be right whatever was before them."""
import collections
import os
import signal
import threading
import time

import numpy as np

from .daemon import SLOW, Daemon
from .model import MODEL, Reference, make_checkpoint
from .rpc import Rpc, RpcError, Session
from .service import DuckService

TP = 2
DENSE, MOE = 0, 2  # layers
ROWS = 64
LONG = 2048  # tokens of a step that something is to happen in
GIVEN_UP = ("DUCK_LOST", "NOT_READY", "CACHE_STALE")  # what a step may meet while a duck comes back


def load(daemon):
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", TP, "--multiple-of", 64)


class Truth:
    """The bits of every row of both layers, by the reference kernels of a fleet that nothing happens to."""

    def __init__(self, build, folder):
        self.reference, self.rows, self.outputs = Reference(), {}, {}
        daemon = Daemon(build, folder, ducks=TP, env={"FP9_CPU": "ref"}).start()
        try:
            load(daemon)
            with Rpc(daemon.socket, 60 * SLOW) as rpc, Session(rpc, "shakespeare", ROWS) as session:
                for layer in (DENSE, MOE):
                    given = self.reference.inputs(layer, ROWS)
                    bits = np.frombuffer(session.run("prefill", layer, *given), np.uint16).reshape(ROWS, -1)
                    values = (bits.astype(np.uint32) << 16).view(np.float32)
                    assert self.reference.relative_l2(layer, values) < 2.0 ** -8
                    self.rows[layer], self.outputs[layer] = given, bits
        finally:
            daemon.stop()
        assert len({row.tobytes() for row in self.outputs[MOE]}) > ROWS // 2, "rows too alike to tell a stale one"

    def given(self, layer, rows):
        return tuple(None if part is None else part[rows] for part in self.rows[layer])

    def check(self, layer, rows, got, what):
        want = self.outputs[layer][rows].tobytes()
        if got == want:
            return
        row = len(want) // len(rows)
        wrong = [n for n in range(len(rows)) if got[n * row:(n + 1) * row] != want[n * row:(n + 1) * row]]
        raise AssertionError(f"{what}: {len(wrong)} of {len(rows)} rows of layer {layer} are wrong, the first is {wrong[0]}")


class Fleet:
    """kind: local ducks, or services over TCP."""

    def __init__(self, build, folder, kind, truth):
        self.truth, self.kind, self.services = truth, kind, []
        self.met = collections.Counter()  # what happened in time to matter
        self.other = make_checkpoint(build, str(folder / "other"), seed=5)
        if kind == "service":
            self.services = [DuckService(build, folder, f"duck{i}").start() for i in range(TP)]
        self.daemon = Daemon(build, folder, ducks=0 if self.services else TP, fleet="heartbeat_s = 10",
                             remote=[(duck.name, duck.address) for duck in self.services]).start()
        load(self.daemon)
        self.rpc = Rpc(self.daemon.socket, 60 * SLOW)
        self.sessions = {one_shot: Session(self.rpc, "shakespeare", LONG, one_shot=one_shot) for one_shot in (False, True)}

    def stop(self):
        self.rpc.close()
        try:
            self.daemon.stop()
        finally:
            for duck in self.services:
                duck.end()

    # ---- steps

    def step(self, chance, one_shot=None, tokens=None, layer=None, session=None):
        """One step of random rows, right to the bit; a duck that is coming back is waited for."""
        one_shot = chance.random() < 0.2 if one_shot is None else one_shot
        layer = chance.choice((DENSE, MOE)) if layer is None else layer
        tokens = tokens or chance.choice((1, 1, 1, 4, 4, 64))
        rows = [chance.randrange(ROWS) for _ in range(tokens)]
        kind = "decode" if tokens <= 4 else "prefill"
        got = self.patient(lambda: (session or self.sessions[one_shot]).run(kind, layer, *self.truth.given(layer, rows)))
        self.truth.check(layer, rows, got, f"{kind} of {tokens}, {'one-shot' if one_shot else 'persistent'}")

    def patient(self, work):
        deadline = time.monotonic() + 30 * SLOW
        while True:
            try:
                return work()
            except RpcError as error:
                assert error.name in GIVEN_UP and time.monotonic() < deadline, f"{error.name}: {error}"
                time.sleep(0.02)

    def begin(self, chance, one_shot, session=None, **more):
        """A long step under way: finish(step) looks at its end."""
        rows = [chance.randrange(ROWS) for _ in range(LONG)]
        step = (session or self.sessions[one_shot]).start("prefill", MOE, *self.truth.given(MOE, rows), **more)
        return step, rows

    def finish(self, begun, may_fail=()):
        """True when it was done, and right; False when it failed by one of those names. The message is kept."""
        step, rows = begun
        try:
            got = bytes(step.wait(60 * SLOW).y)
        except RpcError as error:
            assert error.name in may_fail, f"{error.name}: {error}"
            self.message = error.message
            return False
        self.truth.check(MOE, rows, got, "long prefill")
        return True

    # ---- what happens to them

    def duck_pids(self):
        return [duck.process.pid for duck in self.services] or self.daemon.duck_pids()

    def kernel_process(self):
        """Of any duck; None when there is none within a second."""
        ducks, deadline = self.duck_pids(), time.monotonic() + 1 * SLOW
        while time.monotonic() < deadline:
            for pid in ducks:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    try:
                        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                            children = file.read().split()
                    except OSError:
                        continue
                    if children:
                        return int(children[0])
        return None

    def given_up(self, chance, one_shot):
        """A deadline passes in the middle."""
        done = self.finish(self.begin(chance, one_shot, deadline_ms=chance.randint(1, 15)), ("DEADLINE",))
        self.met["given_up"] += not done

    def closed(self, chance, one_shot):
        """The session is closed in the middle, or its client is gone."""
        with Rpc(self.daemon.socket, 60 * SLOW) as rpc:
            session = self.patient(lambda: Session(rpc, "shakespeare", LONG, one_shot=one_shot))
            step, _ = self.begin(chance, one_shot, session)
            time.sleep(chance.uniform(0, 0.01))
            self.met["closed"] += under_way(step)
            if chance.random() < 0.5:
                session.close()

    def kernel_killed(self, chance, one_shot):
        del one_shot
        begun = self.begin(chance, True)
        time.sleep(chance.uniform(0, 0.01))
        pid = self.kernel_process()
        if pid:
            signal_or_gone(pid, signal.SIGKILL)
        if not self.finish(begun, ("INTERNAL",)):
            self.met["kernel_killed"] += 1
            assert "was killed by signal 9 (SIGKILL)" in self.message, self.message

    def stopped(self, chance, one_shot):
        """A kernel process or a duck stands still for a moment in the middle."""
        begun = self.begin(chance, one_shot)
        time.sleep(chance.uniform(0, 0.01))
        pid = self.kernel_process() if one_shot and chance.random() < 0.5 else chance.choice(self.duck_pids())
        if pid:
            signal_or_gone(pid, signal.SIGSTOP)
            self.met["stopped"] += under_way(begun[0])
            time.sleep(chance.uniform(0, 0.05))
            signal_or_gone(pid, signal.SIGCONT)
        assert self.finish(begun)

    def kill_duck(self, chance):
        if self.services:
            duck = chance.choice(self.services)
            duck.kill()
            duck.start()
        else:
            os.kill(chance.choice(self.duck_pids()), signal.SIGKILL)

    def duck_killed(self, chance, one_shot):
        begun = self.begin(chance, one_shot)
        time.sleep(chance.uniform(0, 0.02))
        self.kill_duck(chance)
        self.met["duck_killed"] += not self.finish(begun, GIVEN_UP)

    def duck_killed_between(self, chance, one_shot):
        del one_shot
        self.kill_duck(chance)
        self.met["duck_killed_between"] += 1

    def prepared_beside(self, chance, one_shot):
        """Another model is prepared, on the same ducks, while steps run."""
        def work():
            self.daemon.ok("load", self.other, "--name", "other", "--tp", TP, "--multiple-of", 64, "--force")
            self.daemon.ok("unload", "other", "--drop-cache")

        self.patient(lambda: self.sessions[False].run("decode", DENSE, *self.truth.given(DENSE, [0])))  # all ducks are there
        thread = threading.Thread(target=work)
        thread.start()
        count = 0
        while thread.is_alive() or count < 5:
            self.step(chance, one_shot if chance.random() < 0.2 else False)
            count += 1
        thread.join()
        self.met["prepared_beside"] += 1


def under_way(step):
    try:
        step.wait(0)
        return False
    except TimeoutError:
        return True


def signal_or_gone(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # its chunk was done
