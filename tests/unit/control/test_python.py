"""The Python module fp9: its core on bytes fed by hand, connections and sessions against a daemon that says what the test wants."""
import array
import fcntl
import json
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
MODULE = os.path.join(ROOT, "proto", "client", "python")
sys.path[:0] = [HERE, MODULE]

import fp9  # noqa: E402
from fake_daemon import HIDDEN, TOP_K_MAX, FakeDaemon  # noqa: E402


@pytest.fixture
def fake(tmp_path):
    started = []

    def start(answers=None):
        daemon = FakeDaemon(str(tmp_path / f"sock{len(started)}"), answers or {})
        started.append(daemon)
        return daemon

    yield start
    for daemon in started:
        daemon.close()


def open_arenas():
    """Descriptors of arena() that are open, mapped ones not counted; a fake daemon of an earlier test may still be closing its own."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:tested" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            pass
    return count


def arena(size=8192, seals=fcntl.F_SEAL_SHRINK):
    fd = os.memfd_create("tested", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


# ---- the core: no socket


def test_core_any_pieces_any_order():
    core, told = fp9.Core(), []
    core.on_notification = lambda method, params: told.append((method, params))
    numbers = [core.request("status", {"n": n}) for n in range(64)]
    with pytest.raises(fp9.Error) as caught:
        core.request("status")
    assert caught.value.name == "BUSY"
    lines = core.output().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"jsonrpc": "2.0", "id": number, "method": "status", "params": {"n": n}} for n, number in enumerate(numbers)]
    core.sent(10)
    assert core.output() == (b"\n".join(lines) + b"\n")[10:]
    with pytest.raises(BlockingIOError):
        core.answer(numbers[0])
    data = b"".join(b'{"jsonrpc":"2.0","id":%d,"result":{"n":%d}}\n' % (number, number * 3) for number in reversed(numbers))
    data += b'{"jsonrpc":"2.0","method":"job.progress","params":{"job":1}}\n'
    for at in range(0, len(data), 7):
        core.input(data[at:at + 7])
    assert told == [("job.progress", {"job": 1})]
    assert core.next_answer() == numbers[-1]
    for number in numbers:
        assert core.answer(number) == ({"n": number * 3}, None)
    assert core.next_answer() is None
    with pytest.raises(fp9.Error) as caught:
        core.answer(numbers[0])
    assert caught.value.name == "NO_SUCH"


def test_core_descriptors_belong_to_their_answers():
    before = open_arenas()
    core = fp9.Core()
    core.request("status")
    stray = arena(1)
    core.input(b" ", [stray])
    with pytest.raises(OSError):
        os.fstat(stray)
    first, second = core.request("session.open"), core.request("session.open")
    fds = [arena(100 + n) for n in range(12)]
    data = b'{"id":%d,"result":{}}\n{"id":%d,"result":{}}\n' % (first, second)
    core.input(data[:1], fds[:1])
    core.input(data[1:], fds[1:])
    for number, size in ((second, 101), (first, 100)):
        _, fd = core.answer(number)
        assert os.fstat(fd).st_size == size
        os.close(fd)
    # Forgotten before and after the answer, and closed while it waits.
    for early in (True, False):
        number = core.request("session.open")
        if early:
            core.forget(number)
        core.input(b'{"id":%d,"result":{}}\n' % number, [arena()])
        core.forget(number)
        assert not core.answered(number) and core.next_answer() is None
    core.request("session.open")
    core.input(b" ", [arena()])
    core.close()
    assert open_arenas() == before


@pytest.mark.parametrize("line", [
    b"garbage\n", b"{}\n", b"[]\n", b"\n", b'{"id":2,"result":{}}\n', b'{"id":true,"result":{}}\n', b'{"id":1,"result":{},"error":{}}\n',
    b'{"id":1,"error":3}\n', b'{"id":1}\n', b'{"id":"1","result":{}}\n', b'{"id":1,"id":1,"result":{}}\n', b'{"id":1,"result":NaN}\n',
    b"\xff\n", b"[" * 100_000 + b"\n", b'{"id":null,"error":{"code":-32700,"message":"no JSON"}}\n', b"x" * (1 << 20), b""],
    ids=range(17))
def test_core_broken_answers(line):
    core = fp9.Core()
    number = core.request("status")
    with pytest.raises(fp9.Disconnected) as caught:
        core.input(line)
    assert caught.value.name == "INTERNAL" and isinstance(caught.value, ConnectionError)
    assert core.next_answer() == number
    with pytest.raises(fp9.Disconnected):
        core.answer(number)
    with pytest.raises(fp9.Disconnected):
        core.request("status")


def test_core_refuses_what_is_no_json():
    core = fp9.Core()
    for params in ({"a": float("nan")}, {"a": b"x"}, {"a": "x" * (1 << 20)}):
        with pytest.raises(fp9.Error) as caught:
            core.request("status", params)
        assert caught.value.name == "BAD_REQUEST" and caught.value.code == 0
    assert core.output() == b""


# ---- connections


def test_nobody_there(tmp_path, monkeypatch):
    with pytest.raises(fp9.NoDaemon) as caught:
        fp9.connect(tmp_path / "none")
    assert caught.value.name == "NOT_READY" and str(tmp_path / "none") in str(caught.value)
    monkeypatch.setenv("FP9_SOCKET", str(tmp_path / "other"))
    with pytest.raises(fp9.NoDaemon, match="other"):
        fp9.connect()
    with pytest.raises(fp9.Disconnected):
        fp9.connect("a" * 300)


def test_calls_and_errors(fake):
    daemon = fake({"status": {"state": "ready"}, "plan": lambda params, tell: params,
                   "model.unload": {"error": {"code": -32005, "message": "no model m", "data": {"name": "NO_SUCH", "model": "m"}}}})
    with fp9.connect(daemon.path) as conn:
        assert conn.status() == conn.call("status") == {"state": "ready"}
        with pytest.raises(fp9.Error) as caught:
            conn.model_unload("m", drop_cache=True)
        error = caught.value
        assert (error.name, error.message, error.values, error.code) == ("NO_SUCH", "no model m", {"model": "m"}, -32005)
        assert not isinstance(error, ConnectionError)
        assert conn.plan("relative", tp=3) == {"path": os.path.abspath("relative"), "tp": 3}
        more = {"mtp": True, "read_rate": 1 << 34, "link_rate": 10 ** 9, "mparam_rate": 9000, "step_us": 50, "host_us": 20000}
        assert conn.plan("/x", **more, ducks=None) == {"path": "/x", **more}
        for name in more:
            assert f"{name}=" in conn.plan.__doc__
    assert daemon.seen("model.unload") == [{"model": "m", "drop_cache": True}]
    with pytest.raises(fp9.Disconnected):
        conn.status()


def test_several_calls_under_way(fake):
    gate = threading.Event()
    daemon = fake({"status": lambda params, tell: gate.wait(30) and {}, "plan": lambda params, tell: params})
    with fp9.connect(daemon.path) as conn:
        slow, fast = conn.request("status"), conn.request("plan", path="/x")
        with pytest.raises(TimeoutError):
            conn.wait(slow, timeout=0.05)
        gate.set()
        assert conn.wait(fast) == {"path": "/x"}
        assert conn.core.next_answer() == slow
        assert conn.wait(slow) == {}
        assert conn.process(0) is False


def test_the_daemon_goes():
    ours, theirs = socket.socketpair()
    conn = fp9.Connection(ours)
    answered, other = conn.request("status"), conn.request("status")
    theirs.sendall(b'{"id":%d,"result":{}}\n' % answered)
    theirs.shutdown(socket.SHUT_WR)
    for number in (other, answered):
        if number == other:
            with pytest.raises(fp9.Disconnected, match="closed the connection"):
                conn.wait(number)
        else:
            assert conn.wait(number) == {}
    conn.close()
    theirs.close()


def test_requests_larger_than_the_sockets_buffers():
    """Nothing is lost and nothing blocks for good when both sides have much to say."""
    ours, theirs = socket.socketpair()
    conn, text = fp9.Connection(ours, timeout=30), "x" * 500_000

    def serve():
        with theirs, theirs.makefile("rb") as lines:
            for line in lines:
                request = json.loads(line)
                theirs.sendall(json.dumps({"id": request["id"], "result": request["params"]}).encode() + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    numbers = [conn.request("status", text=text, n=n) for n in range(8)]
    for n, number in enumerate(numbers):
        assert conn.wait(number) == {"text": text, "n": n}
    conn.close()
    thread.join(30)
    assert not thread.is_alive()


def test_model_load_tells_its_progress_only(fake):
    """Also what comes before the job's number is known; other listeners go on hearing."""
    def load(params, tell):
        tell("job.progress", {"job": 7, "done_bytes": 1})
        tell("job.progress", {"job": 8, "done_bytes": 9})
        return {"job": 7}

    def wait(params, tell):
        tell("job.progress", {"job": params["job"], "done_bytes": 2})
        tell("event", {"kind": "x"})
        return {"cache": "miss"}

    daemon = fake({"model.load": load, "job.wait": wait, "prepare": load})
    told, heard = [], []
    with fp9.connect(daemon.path) as conn:
        conn.on_notification = lambda method, params: heard.append(method)
        assert conn.model_load("m", name="n", progress=told.append) == {"cache": "miss"}
        assert [p["done_bytes"] for p in told] == [1, 2]
        assert heard == ["job.progress"] * 3 + ["event"]
        assert conn.prepare("n", wait=False, progress=told.append) == 7 and len(told) == 2
        assert conn.job_wait(7, progress=told.append) == {"cache": "miss"} and len(told) == 3
    assert daemon.seen("model.load") == [{"path": os.path.abspath("m"), "name": "n"}]


def test_every_method_of_the_protocol():
    """A method in fp9-control(7) is a method here (session.x and the steps: of Session)."""
    with open(os.path.join(ROOT, "man", "fp9-control.7"), encoding="utf-8") as file:
        methods = re.findall(r"^\.SS (.*)$", file.read(), re.M)
    assert {"decode", "model.load", "session.open", "status"} <= set(methods)
    of_session = {"decode": "decode", "prefill": "prefill", "session.close": "close"}
    for method in methods:
        holder = fp9.Session if method in of_session else fp9.Connection
        name = of_session.get(method, method.replace(".", "_"))
        assert callable(getattr(holder, name, None)), f"{method} is not in the Python module: add {holder.__name__}.{name}()"


# ---- sessions

SEED = 20260730


def inputs(tokens, top_k):
    random = np.random.default_rng(SEED)
    return (fp9.to_bf16(random.standard_normal((tokens, HIDDEN)).astype(np.float32)), random.integers(-1, 8, (tokens, top_k), np.int32),
            random.random((tokens, top_k), np.float32))


def expected(x, ids=None, weights=None):
    """What FakeDaemon answers."""
    y = fp9.to_f32(x).copy()
    return y if ids is None else y + (ids * weights).sum(axis=1, dtype=np.float32)[:, None]


def test_steps(fake):
    daemon = fake()
    with fp9.connect(daemon.path) as conn, conn.session_open("m", 4, output_dtype="f32", priority="batch") as session:
        assert daemon.seen("session.open") == [{"model": "m", "max_tokens": 4, "output_dtype": "f32", "priority": "batch"}]
        assert (session.hidden_size, session.top_k_max, session.output_dtype) == (HIDDEN, TOP_K_MAX, "F32")
        for tokens, top_k in ((4, TOP_K_MAX), (1, 1), (3, 2)):
            given = inputs(tokens, top_k)
            step = session.prefill(2, *given)
            assert np.array_equal(step.y, expected(*given)), SEED
            assert step.timing["judge_wait_us"] == 30 and step.timing["job_time_us"] > 0
            # Flat bytes are as good as arrays.
            assert np.array_equal(session.decode(2, *(part.tobytes() for part in given)).y, expected(*given))
        dense = session.decode(0, given[0])
        assert np.array_equal(dense.y, expected(given[0])) and "topk_ids" not in daemon.seen("decode")[-1]
        # What the arena holds already: nothing is copied, and it is this very memory.
        session.places.x[:] = 0x3F80
        session.places.topk_ids.reshape(-1)[:2] = (3, -1)
        session.places.topk_weights.reshape(-1)[:2] = (0.5, 0)
        step = session.decode(1, tokens=1, top_k=2, deadline_ms=1000)
        assert np.all(step.y == 2.5) and np.shares_memory(step.y, np.frombuffer(session.arena, np.uint8))
        assert daemon.seen("decode")[-1]["deadline_ms"] == 1000
    with pytest.raises(fp9.Error, match="closed"):
        session.decode(1, tokens=1)
    session.close()
    assert step.y[0, 0] == 2.5  # an array outlives its session


def test_bf16_output(fake):
    with fp9.connect(fake().path) as conn:
        session = conn.session_open("m", 2)
        x = fp9.to_bf16(np.full((2, HIDDEN), 1.5, np.float32))
        y = session.decode(0, x).y
        assert y.dtype == np.uint16 and np.all(fp9.to_f32(y) == 1.5)


def test_wrong_inputs_do_not_leave(fake):
    daemon = fake()
    x, ids, weights = inputs(2, 2)
    cases = [
        ("BAD_DTYPE", "to_bf16", dict(x=fp9.to_f32(x))), ("BAD_DTYPE", "I32", dict(ids=ids.astype(np.int64))),
        ("BAD_DTYPE", "F32", dict(weights=ids)), ("BAD_DTYPE", "F32", dict(weights=weights.astype(np.float64))),
        ("BAD_DTYPE", "buffer", dict(x=[1.0])), ("BAD_SHAPE", "contiguous", dict(x=np.asfortranarray(x))),
        ("BAD_SHAPE", "a token has 128", dict(x=x.reshape(-1)[:65])), ("BAD_SHAPE", "room for 4", dict(x=np.zeros((5, HIDDEN), np.uint16))),
        ("BAD_SHAPE", "topk_weights has 4 bytes", dict(weights=weights[:1, :1])), ("BAD_REQUEST", "go together", dict(weights=None)),
        ("BAD_SHAPE", "top_k: 9", dict(ids=np.zeros((2, 9), np.int32), weights=np.zeros((2, 9), np.float32))),
        ("BAD_REQUEST", "tokens", dict(x=None)),
    ]
    with fp9.connect(daemon.path) as conn:
        session = conn.session_open("m", 4, output_dtype="f32")
        for name, words, changes in cases:
            given = {"x": x, "ids": ids, "weights": weights, **changes}
            with pytest.raises(fp9.Error, match=words) as caught:
                session.decode(1, given["x"], given["ids"], given["weights"])
            assert caught.value.name == name, (caught.value, changes)
        for wrong in (dict(tokens=2, offset=32), dict(tokens=5), dict(tokens=4, offset=64)):
            with pytest.raises(fp9.Error) as caught:
                session.lay(**wrong)
            assert caught.value.name == "BAD_SHAPE"
        assert daemon.seen("decode") == []
        assert np.array_equal(session.decode(1, x, ids, weights).y, expected(x, ids, weights))


def test_steps_under_way(fake):
    """Two places of one arena and two sessions, started before any is waited for."""
    gate = threading.Event()
    daemon = fake()
    honest = daemon.step
    daemon.step = lambda *args: gate.wait(30) and honest(*args)
    x, ids, weights = inputs(4, 2)
    with fp9.connect(daemon.path) as conn:
        session, other = conn.session_open("m", 4, output_dtype="f32"), conn.session_open("m", 4, output_dtype="f32")
        low = session.lay(1, 2)
        high = session.lay(1, 2, low.end)
        steps = [session.start("decode", 1, x[:1], ids[:1], weights[:1], places=low),
                 session.start("decode", 1, x[1:2], ids[1:2], weights[1:2], places=high),
                 other.start("prefill", 1, x[2:], ids[2:], weights[2:])]
        assert all(step.waiting() for step in steps)
        with pytest.raises(fp9.Error) as caught:
            session.start("decode", 1, x[:1], places=low)
        assert caught.value.name == "BUSY"
        with pytest.raises(TimeoutError):
            steps[0].wait(timeout=0.05)
        gate.set()
        got = np.concatenate([step.wait().y for step in reversed(steps)][::-1])
        assert np.array_equal(got, expected(x, ids, weights)), SEED
        other.close()
        assert np.array_equal(session.decode(1, x[:1], ids[:1], weights[:1]).y, got[:1])


def opened(answer, fd):
    """session_open() against one answer; what was asked afterwards, and the error."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    with theirs, fp9.Connection(ours, timeout=10) as conn:
        line = b'{"id":1,"result":%s}\n' % json.dumps(answer).encode()
        socket.send_fds(theirs, [line[:1]], [] if fd is None else [fd])
        for at in range(1, len(line), 9):
            theirs.send(line[at:at + 9])
        if fd is not None:
            os.close(fd)
        try:
            return conn.session_open("m", 4), None
        except fp9.Error as error:
            return theirs.recv(65536).decode(), error


def test_arenas():
    """The descriptor comes with the first of many pieces; what is missing, short, or could shrink is refused and the session closed."""
    good = {"session": 5, "arena_bytes": 8192, "hidden_size": 64, "top_k_max": 4}
    before = open_arenas()
    session, error = opened(good, arena())
    assert error is None and session.arena_bytes == 8192
    del session
    for answer, fd, words in (
            (good, None, "without the arena"), (good, arena(4096), "4096 bytes"), (good, arena(8192, fcntl.F_SEAL_GROW), "not sealed"),
            ({**good, "arena_bytes": 512}, arena(), "past the arena"), ({**good, "hidden_size": 1 << 40}, arena(), "hidden_size"),
            ({**good, "session": "5"}, arena(), "session"), ({**good, "top_k_max": -1}, arena(), "top_k_max")):
        asked, error = opened(answer, fd)
        assert words in str(error), error
        assert ("session.close" in asked) == (answer["session"] == 5 and words not in ("hidden_size", "top_k_max")), (words, asked)
    assert open_arenas() == before


def test_descriptors_are_not_inherited(fake):
    with fp9.connect(fake().path) as conn:
        _, fd = conn.wait_fd(conn.request("session.open", model="m", max_tokens=1))
        assert not os.get_inheritable(fd)
        os.close(fd)


# ---- numbers and files


def test_bf16():
    random = np.random.default_rng(SEED)
    bits = random.integers(0, 1 << 32, 20_000, np.uint32)
    bits = np.concatenate([bits, [0, 0x80000000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001]])
    values = bits.astype(np.uint32).view(np.float32)
    got = fp9.to_bf16(values)
    assert got.dtype == np.uint16
    for one, value in zip(got[::7].tolist() + got[-9:].tolist(), values[::7].tolist() + values[-9:].tolist()):
        if value != value:
            assert one == 0x7FC0
            continue
        # Exact: the neighbours above and below as doubles, the nearer one, an even one on a tie; beyond the largest, infinity.
        def double(code):
            sign = -1.0 if code & 0x8000 else 1.0
            exponent, mantissa = code >> 7 & 255, code & 127
            return sign * ((mantissa / 128 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 127) if code & 0x7FFF < 0x7F80 else 2.0 ** 128)
        away = min(abs(double(c) - (value if abs(value) < 2.0 ** 129 else np.copysign(2.0 ** 128, value)))
                   for c in {one, max(one - 1, one & 0x8000), min(one + 1, one & 0x8000 | 0x7F80)})
        assert abs(double(one) - max(-2.0 ** 128, min(value, 2.0 ** 128))) == away, (hex(one), value)
    assert fp9.to_bf16([1.00390625, 1.01171875]).tolist() == [0x3F80, 0x3F82]  # ties to even
    slow = fp9.to_bf16(values[:500].tolist())
    assert slow.typecode == "H" and slow.tolist() == got[:500].tolist()
    assert np.array_equal(fp9.to_f32(got[:100]), (got[:100].astype(np.uint32) << 16).view(np.float32), equal_nan=True)
    assert fp9.to_f32(array.array("H", [0x3F80, 0xC000])).tolist() == [1.0, -2.0]


def test_tensor_files(tmp_path):
    path = tmp_path / "t.safetensors"
    x, ids, weights = inputs(3, 2)
    fp9.write_tensors(path, {"input": ("BF16", x.shape, x), "topk_ids": ("I32", ids.shape, ids),
                             "topk_weights": ("F32", weights.shape, weights)})
    assert os.listdir(tmp_path) == ["t.safetensors"]
    found = fp9.read_tensors(path)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        "input": ("BF16", (3, HIDDEN)), "topk_ids": ("I32", (3, 2)), "topk_weights": ("F32", (3, 2))}
    assert np.array_equal(found["input"].data, x) and np.array_equal(found["topk_ids"].data, ids)
    with pytest.raises(fp9.Error, match="none"):
        fp9.read_tensors(tmp_path / "none")
    with pytest.raises(fp9.Error, match="does not have"):
        fp9.write_tensors(path, {"x": ("F32", (3,), b"1234")})
    assert np.array_equal(fp9.read_tensors(path)["input"].data, x) and os.listdir(tmp_path) == ["t.safetensors"]
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    for header, data in ((b"", b""), (b"[]", b""), (b"[" * 5000, b""), (json.dumps({"x": entry}).encode(), b"12"),
                         (json.dumps({"x": {**entry, "shape": [2]}}).encode(), b"1234"),
                         (json.dumps({"x": {**entry, "shape": [-1]}}).encode(), b"1234"), (json.dumps({"x": 3}).encode(), b"")):
        path.write_bytes(struct.pack("<Q", len(header)) + header + data)
        with pytest.raises(fp9.Error) as caught:
            fp9.read_tensors(path)
        assert caught.value.name == "BAD_REQUEST" and str(path) in str(caught.value)


PLAIN = """
import array, sys
sys.modules["numpy"] = None  # importing it fails
import fp9
with fp9.connect(sys.argv[1]) as conn, conn.session_open("m", max_tokens=2, output_dtype="f32") as session:
    step = session.decode(1, fp9.to_bf16([1.5] * 128), array.array("i", [3, -1, 2, 2]), array.array("f", [0.5, 0, 1, 0.25]))
    assert type(step.y) is memoryview and step.y.shape == (2, 64), step.y
    assert (step.y[0, 0], step.y[1, 63]) == (3.0, 4.0), step.y.tolist()
    session.places.x[0, 5] = 0x4000
    session.places.topk_ids[0, 0] = 0
    assert session.decode(1, tokens=1, top_k=1).y[0, 5] == 2.0
    assert session.decode(0, b"").y.nbytes == 0
    try:
        session.decode(1, array.array("f", [1.0] * 64))
        raise SystemExit("floats were taken for BF16")
    except fp9.Error as error:
        assert error.name == "BAD_DTYPE"
"""


def test_without_numpy(fake):
    done = subprocess.run([sys.executable, "-B", "-c", PLAIN, fake().path], env={**os.environ, "PYTHONPATH": MODULE}, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_event_loop(fake):
    """The connection in somebody else's poll()."""
    daemon = fake({"status": lambda params, tell: time.sleep(0.05) or {"n": params["n"]}})
    with fp9.connect(daemon.path) as conn:
        numbers = {conn.request("status", n=n): n for n in range(3)}
        poll = select.poll()
        poll.register(conn, select.POLLIN)
        found = {}
        while len(found) < 3:
            assert poll.poll(10_000)
            conn.process()
            while (number := conn.core.next_answer()) is not None:
                found[number] = conn.wait(number)["n"]
        assert found == numbers
