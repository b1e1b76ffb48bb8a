"""The control socket as strangers use it: wrong requests, half requests, no patience; and the arena."""
import base64
import fcntl
import json
import os
import socket
import threading

import numpy as np
import pytest

from support import safetensors
from support.daemon import SLOW
from support.model import EXPERTS, HIDDEN, MODEL, random_input
from support.rpc import Raw, Rpc, RpcError, Session

F_GET_SEALS = 1034
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4


@pytest.fixture(scope="module")
def served(daemon):
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 3, "--multiple-of", 64)
    return daemon


def refused(rpc, method, name, words=(), **params):
    with pytest.raises(RpcError) as caught:
        rpc.call(method, **params)
    assert caught.value.name == name, str(caught.value)
    for word in words:
        assert word in caught.value.message, f"{word!r} is not in: {caught.value.message}"
    return caught.value


def raw(served, data):
    """One answer to raw bytes, or None when fp9d closes without one; fp9d lives in any case."""
    with Raw(served.socket, 30 * SLOW) as one:
        one.send_raw(data)
        try:
            message = one.read_message()
        except ConnectionResetError:
            message = None
    assert served.ok("status")["state"] == "ready"
    return message


@pytest.mark.parametrize("data", [b"[" * 100_000 + b"\n", b'{"a":' * 5000 + b"\n", b"nonsense\n", b"{}\n", b"[]\n", b'"x"\n',
                                  b"\xff\xfe\n", b"\0\n",
                                  b'{"jsonrpc":"2.0","id":1,"method":"nonsense"}\n', b'{"jsonrpc":"2.0","id":1,"method":1}\n',
                                  b'{"jsonrpc":"2.0","id":1,"method":"status","params":[1]}\n',
                                  b'{"jsonrpc":"2.0","id":1,"method":"status","method":"duck.list"}\n',
                                  b'{"jsonrpc":"2.0","id":1,"method":"plan","params":{"path":"/x","path":"/y"}}\n'],
                         ids=["brackets", "deep", "word", "empty", "array", "string", "no-utf8", "nul", "unknown-method", "method-type",
                              "params-array", "twice-method", "twice-param"])
def test_e01_e04_bad_lines(served, data):
    message = raw(served, data)
    assert message is not None, "closed without an answer"
    assert message["error"]["data"]["name"] in ("BAD_REQUEST", "NO_SUCH"), message
    assert message["error"]["message"] and isinstance(message["error"]["code"], int)


@pytest.mark.parametrize("value", ["9223372036854775808", "1e999", "4294967297", "1.5", "-1", "0", '"8"', "null", "true", "[]"])
def test_e02_numbers(served, value):
    line = '{"jsonrpc":"2.0","id":7,"method":"plan","params":{"path":"%s","tp":%s}}\n' % (MODEL, value)
    message = raw(served, line.encode())
    assert message["error"]["data"]["name"] == "BAD_REQUEST", message
    if value not in ("9223372036854775808", "1e999"):
        assert "tp" in message["error"]["message"] and message["id"] == 7


def test_line_without_end(served):
    """More than a line may have: an error or a closed connection, no memory eaten."""
    with Raw(served.socket, 30 * SLOW) as one:
        message, sent = None, 0
        try:
            for _ in range(64):
                one.send_raw(b"x" * (1 << 18))
                sent += 1 << 18
            message = one.read_message()
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert message is None or "error" in message
        assert sent <= 16 << 20
    assert served.ok("status")["state"] == "ready"


def test_e07_clients_that_do_not_wait(served):
    before = len(os.listdir(f"/proc/{served.process.pid}/fd"))
    request = b'{"jsonrpc":"2.0","id":1,"method":"status","params":{}}\n'
    for number in range(1000 // SLOW):
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(served.socket)
            one.sendall(request if number % 3 else request[:20])
            if number % 5 == 0:
                one.shutdown(socket.SHUT_RD)
    served.wait_for("descriptors to go", lambda: len(os.listdir(f"/proc/{served.process.pid}/fd")) <= before + 1)
    assert served.ok("status")["state"] == "ready"


def test_e09_any_pieces(served):
    """Byte by byte, and many in one burst: each request has its own answer, in order for one kind."""
    request = b'{"jsonrpc":"2.0","id":%d,"method":"status","params":{}}\n'
    with Raw(served.socket) as one:
        for number in range(len(request % 5)):
            one.send_raw((request % 5)[number:number + 1])
        assert one.read_message()["id"] == 5
        one.send_raw(b"".join(request % number for number in range(10, 40)))
        assert sorted(one.read_message()["id"] for _ in range(30)) == list(range(10, 40))


def test_e13_descriptors_from_clients(served):
    """Descriptors that nobody asked for are closed, on good and bad requests."""
    before = len(os.listdir(f"/proc/{served.process.pid}/fd"))
    with Raw(served.socket, 30 * SLOW) as one, open("/dev/null", "rb") as null:
        for number in range(200):
            method = "status" if number % 2 else "nonsense"
            line = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": {}}) + "\n"
            socket.send_fds(one.socket, [line.encode()], [null.fileno()] * 3)
            assert one.read_message()["id"] == number
        served.wait_for("descriptors to go", lambda: len(os.listdir(f"/proc/{served.process.pid}/fd")) <= before + 1)


def test_e11_arena_is_sealed(served, rpc, reference):
    """Nobody can take the memory away under fp9d's feet."""
    session = Session(rpc, "shakespeare", 4)
    x, ids, weights = reference.inputs(2, 4)
    before = session.run("decode", 2, x, ids, weights)
    step = session.start("decode", 2, x, ids, weights)
    _, other = rpc.wait_fd(rpc.send("session.open", {"model": "shakespeare", "max_tokens": 4}))
    seals = fcntl.fcntl(other, F_GET_SEALS)
    assert seals == session.seals and seals & F_SEAL_SHRINK and seals & F_SEAL_SEAL, f"seals are {seals:#x}"
    with pytest.raises(OSError):
        os.ftruncate(other, 0)
    os.close(other)
    step.wait()
    assert session.run("decode", 2, x, ids, weights) == before
    session.close()


def test_scribbling_client(served, reference):
    """A client that rewrites its ids all the time while steps run: refused or answered, never a crash."""
    with Rpc(served.socket, 30 * SLOW) as one:
        session = Session(one, "shakespeare", 64)
        x, ids, weights = reference.inputs(2, 64)
        params = session.place(x, ids, weights)
        at = params["topk_ids"]["offset"]
        stop = threading.Event()

        def scribble():
            wild, good = np.full(ids.shape, 0x7FFFFFF0, np.int32).tobytes(), ids.tobytes()
            while not stop.is_set():
                session.arena[at:at + len(wild)] = wild
                session.arena[at:at + len(good)] = good

        thread = threading.Thread(target=scribble)
        thread.start()
        try:
            for _ in range(100):
                try:
                    one.call("prefill", layer=2, **params)
                except RpcError as error:
                    assert error.name == "BAD_EXPERT", str(error)
        finally:
            stop.set()
            thread.join()
        session.run("prefill", 2, x, ids, weights)
        session.close()
    assert all(d["state"] == "up" for d in served.ok("duck", "list")["ducks"])


def test_expert_ids(served, rpc, reference):
    session = Session(rpc, "shakespeare", 4, output_dtype="f32", partials="f32")
    x, ids, weights = reference.inputs(2, 4)
    good = session.run("decode", 2, x, ids, weights)
    for wrong in (EXPERTS, 2 ** 31 - 1, -2, -2 ** 31):
        bad = ids.copy()
        bad[3, 1] = wrong
        for method in ("decode", "prefill"):
            params = session.place(x, bad, weights)
            error = refused(rpc, method, "BAD_EXPERT", [str(wrong)], layer=2, **params)
            assert "token 3" in error.message and "slot 1" in error.message, error.message
    # -1 is an empty slot: both empty gives zero, one empty gives the other one's share.
    empty = ids.copy()
    empty[1, :] = -1
    rows = np.frombuffer(session.run("decode", 2, x, empty, weights), np.float32).reshape(4, HIDDEN)
    assert not rows[1].any()
    kept = np.frombuffer(good, np.float32).reshape(4, HIDDEN)
    assert (rows[[0, 2, 3]] == kept[[0, 2, 3]]).all()
    halves = []
    for slot in (0, 1):
        half = ids.copy()
        half[:, slot] = -1
        halves.append(np.frombuffer(session.run("prefill", 2, x, half, weights), np.float32).reshape(4, HIDDEN))
    assert np.allclose(halves[0] + halves[1], kept, rtol=1e-5, atol=1e-5)
    assert session.run("decode", 2, x, ids, weights) == good
    session.close()


def test_wrong_steps(served, rpc, reference):
    session = Session(rpc, "shakespeare", 4)
    number = session.info["session"]
    x, ids, weights = reference.inputs(2, 4)
    good = session.run("decode", 2, x, ids, weights)
    base = {"layer": 2, **session.place(x, ids, weights)}

    def without(*keys, **changes):
        return {**{k: v for k, v in base.items() if k not in keys}, **changes}

    refused(rpc, "decode", "BAD_DTYPE", ["x"], **without(x={"offset": 0, "dtype": "F32"}))
    refused(rpc, "decode", "BAD_DTYPE", ["y"], **without(y={"offset": base["y"]["offset"], "dtype": "I32"}))
    refused(rpc, "decode", "BAD_REQUEST", ["offset", "64"], **without(x={"offset": 8, "dtype": "BF16"}))
    refused(rpc, "decode", "BAD_REQUEST", ["x"], **without("x"))
    refused(rpc, "decode", "BAD_REQUEST", ["layer"], **without("layer"))
    refused(rpc, "decode", "BAD_REQUEST", ["nonsense"], **without(nonsense=1))
    assert refused(rpc, "decode", "BAD_SHAPE", [], **without(x={"offset": session.info["arena_bytes"], "dtype": "BF16"})).message
    assert refused(rpc, "decode", "BAD_SHAPE", [], **without(y={"offset": 0, "dtype": "BF16"})).message
    refused(rpc, "decode", "BAD_SHAPE", ["5", "4"], **without(tokens=5))
    for call in (without("topk_ids"), without("topk_weights"), without("topk_ids", "topk_weights")):
        with pytest.raises(RpcError, match="topk_") as caught:
            rpc.call("decode", **call)
        assert caught.value.name in ("BAD_REQUEST", "BAD_SHAPE"), str(caught.value)
    error = None
    try:
        rpc.call("decode", **without(layer=4))
    except RpcError as caught:
        error = caught
    assert error and error.name in ("NO_SUCH", "BAD_SHAPE") and "layer 4" in error.message, error
    refused(rpc, "decode", "NO_SUCH", ["session"], **without(session=number + 1000))
    refused(rpc, "session.open", "NO_SUCH", ["nobody"], model="nobody", max_tokens=1)
    refused(rpc, "session.open", "BAD_REQUEST", ["max_tokens"], model="shakespeare", max_tokens=0)
    assert session.run("decode", 2, x, ids, weights) == good
    # Another client has no business with this session.
    with Rpc(served.socket) as stranger:
        refused(stranger, "decode", "NO_SUCH", ["session"], **base)
        refused(stranger, "session.close", "NO_SUCH", ["session"], session=number)
    session.close()
    refused(rpc, "decode", "NO_SUCH", ["session"], **base)


def test_tensors_as_base64(served, rpc, reference):
    session = Session(rpc, "shakespeare", 4)
    x, ids, weights = reference.inputs(1, 4)
    good = session.run("decode", 1, x, ids, weights)

    def text(array):
        return {"b64": base64.b64encode(array.tobytes()).decode()}

    call = {"session": session.info["session"], "layer": 1, "tokens": 4, "topk_ids": text(ids), "topk_weights": text(weights)}
    result = rpc.call("decode", x={**text(x), "dtype": "BF16"}, **call)
    assert base64.b64decode(result["y"]["b64"]) == good
    short = refused(rpc, "decode", "BAD_SHAPE", ["x"], x={**text(x[:3]), "dtype": "BF16"}, **call)
    assert "2048" in short.message or "1536" in short.message, short.message
    refused(rpc, "decode", "BAD_REQUEST", ["x"], x={"b64": "!!!!", "dtype": "BF16"}, **call)
    session.close()


def test_session_ends_with_its_client(served, reference):
    before = served.ok("status")["sessions"]
    with Rpc(served.socket) as one:
        Session(one, "shakespeare", 4)
        assert served.ok("status")["sessions"] == before + 1
    served.wait_for("the session to go", lambda: served.ok("status")["sessions"] == before)


def test_client_gone_in_mid_step(served, reference):
    x, ids, weights = reference.inputs(2, 64)
    for _ in range(50):
        with Rpc(served.socket) as one:
            session = Session(one, "shakespeare", 64)
            one.send("prefill", {"layer": 2, **session.place(x, ids, weights)})
    served.wait_for("the sessions to go", lambda: served.ok("status")["sessions"] == 0)
    assert all(d["state"] == "up" for d in served.ok("duck", "list")["ducks"])


def test_many_clients_at_once(served, reference):
    """Eight clients, each on another layer and token count: every answer is its own."""
    expected = {}
    with Rpc(served.socket) as one:
        session = Session(one, "shakespeare", 8)
        for client in range(8):
            expected[client] = session.run("decode", client % 4, *reference.inputs(client % 4, client + 1))
    wrong = []

    def loop(client):
        with Rpc(served.socket, 60 * SLOW) as one:
            session = Session(one, "shakespeare", 8)
            for _ in range(100):
                if session.run("decode", client % 4, *reference.inputs(client % 4, client + 1)) != expected[client]:
                    wrong.append(client)

    threads = [threading.Thread(target=loop, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120 * SLOW)
        assert not thread.is_alive()
    assert not wrong


def test_timing_is_sound(served, rpc, reference):
    session = Session(rpc, "shakespeare", 4)
    session.run("decode", 2, *reference.inputs(2, 4))
    told = session.result
    assert 0 < told["duck_max_us"] < told["judge_wait_us"], told
    assert abs(told["judge_gap_us"] - (told["judge_wait_us"] - told["duck_max_us"])) < 1, told
    assert abs(told["judge_ratio"] - told["judge_wait_us"] / told["duck_max_us"]) < 0.01, told
    session.close()


WRONG_FILES = [
    ("hidden", dict(hidden=128), "BAD_SHAPE", ["128", "256"]),
    ("experts-missing", dict(topk_ids=None), None, ["topk_ids"]),
    ("f32-input", dict(input=safetensors.Tensor("F32", np.zeros((4, 256)))), "BAD_DTYPE", ["F32", "BF16"]),
    ("i64-ids", dict(topk_ids=safetensors.Tensor("I64", np.zeros((4, 2)))), "BAD_DTYPE", ["I64", "I32"]),
    ("rows", dict(topk_ids=safetensors.Tensor("I32", np.zeros((3, 2)))), "BAD_SHAPE", ["3", "4"]),
    ("expert-8", dict(topk_ids=safetensors.Tensor("I32", np.full((4, 2), 8))), "BAD_EXPERT", ["8"]),
    ("flat", dict(input=safetensors.Tensor("BF16", np.zeros(256))), "BAD_SHAPE", []),
]


@pytest.mark.parametrize("wrong,name,words", [row[1:] for row in WRONG_FILES], ids=[row[0] for row in WRONG_FILES])
def test_ctl_input_files(served, tmp_path, wrong, name, words):
    given = {"hidden": HIDDEN, **wrong}
    source = random_input(str(tmp_path / "in"), 1, given.pop("hidden"), EXPERTS, 2, 4, **given)
    for kind in ("decode", "prefill"):
        done = served.ctl(kind, "shakespeare", "--layer", 2, "--input", source, "--output", tmp_path / "out")
        assert done.status == 1, done.stdout
        assert name is None or done.error["name"] == name, done.json
        for word in words:
            assert word in done.error["message"], done.error
        assert not (tmp_path / "out").exists(), "a failed call left an output file"


def test_relative_paths_are_the_clients(served, reference, tmp_path):
    x, ids, weights = reference.inputs(1, 2)
    safetensors.write(str(tmp_path / "in"), {"input": safetensors.Tensor("BF16", x), "topk_ids": safetensors.Tensor("I32", ids),
                                             "topk_weights": safetensors.Tensor("F32", weights)})
    done = served.ctl("decode", "shakespeare", "--layer", 1, "--input", "in", "--output", "out", cwd=tmp_path)
    assert done.status == 0 and (tmp_path / "out").exists(), done.stderr
    os.symlink(MODEL, tmp_path / "model")
    done = served.ctl("plan", "model", "--tp", 2, cwd=tmp_path)
    assert done.status == 0 and done.json["tp"] == 2, done.stderr


KEYS = {
    "status": {"state", "version", "uptime_s", "ducks", "models", "sessions", "jobs"},
    "duck list": {"ducks"}, "model list": {"models"}, "cache list": {"slots"}, "job list": {"jobs"},
}
ITEMS = {
    "ducks": {"id", "name", "address", "state", "spare", "isa", "cores", "capacity_bytes", "used_bytes", "boot_id", "version", "rtt_us"},
    "models": {"name", "path", "family", "state", "tp", "multiple_of", "strategy", "model_key", "layers", "hidden_size",
               "experts", "cache"},
    "slots": {"duck", "model_key", "layer", "kind", "state", "bytes", "checksum"},
    "jobs": {"id", "kind", "model", "layer", "state", "progress", "error"},
}


def test_json_keys(served, reference, tmp_path):
    for command, keys in KEYS.items():
        said = served.ok(*command.split())
        assert keys <= set(said), f"{command}: {keys - set(said)} missing"
        for key in keys & set(ITEMS) - ({"jobs"} if command == "status" else set()):
            assert isinstance(said[key], list) and said[key], f"{command}: {key} is empty"
            for item in said[key]:
                assert ITEMS[key] <= set(item), f"{command}: {key}: {ITEMS[key] - set(item)} missing"
    plan = served.ok("plan", MODEL)
    assert {"family", "tp", "multiple_of", "strategy", "legal", "ranks", "bytes_total", "padding", "bytes_per_param", "send_bytes",
            "rebuild_read_bytes", "predicted_tokens_per_second"} <= set(plan)
    widths = {row["multiple_of"]: row["tp_max"] for row in plan["legal"]}
    assert (widths[128], widths[64], widths[32]) == (2, 3, 6), plan["legal"]
    decode = served.run("decode", "shakespeare", 1, reference.path, tmp_path / "out", reference.prefix(1))
    assert {"tokens", "seconds", "job_time_us", "judge_wait_us", "duck_max_us", "judge_gap_us", "judge_ratio"} <= set(decode)
    prefill = served.run("prefill", "shakespeare", 1, reference.path, tmp_path / "out", reference.prefix(1))
    assert {"gflops", "weight_stream_gb_per_s", "tiles", "avg_tile_batch"} <= set(prefill)
    load = served.ok("load", MODEL, "--name", "shakespeare", "--tp", 3, "--multiple-of", 64)
    assert {"model", "model_key", "tp", "multiple_of", "strategy", "cache", "reason", "bytes_read", "bytes_sent", "seconds"} <= set(load)
    bench = served.ok("bench", "shakespeare", "--tokens", 20)
    assert {"tokens_per_second", "tpot_us", "job_time_us", "judge_wait_us", "duck_max_us", "judge_gap_us", "judge_ratio", "gparam_per_s",
            "effective_read_gb_per_s"} <= set(bench)
    assert set(bench["judge_wait_us"]) >= {"p50", "p99"} and bench["tokens_per_second"] > 0


def test_progress_and_jobs(served):
    with Rpc(served.socket, 30 * SLOW) as one:
        job = one.call("model.load", path=MODEL, name="shakespeare", tp=3, multiple_of=64, force=True)["job"]
        done = one.call("job.wait", job=job)
        assert done["cache"] == "miss" and done["bytes_sent"] > 0, done
        told = [n["params"] for n in one.notifications if n["method"] == "job.progress"]
        assert told and all(n["job"] == job and {"phase", "done_bytes", "total_bytes", "rate", "eta_s"} <= set(n) for n in told), told
        mine = [j for j in one.call("job.list")["jobs"] if j["id"] == job]
        assert mine and mine[0]["state"] == "done" and mine[0]["progress"] == 1, mine
        refused(one, "job.wait", "NO_SUCH", [str(job + 1000)], job=job + 1000)


def test_unload(served, reference, tmp_path):
    served.ok("load", MODEL, "--name", "again", "--tp", 2, "--multiple-of", 32)
    slots = len(served.ok("cache", "list")["slots"])
    freed = served.ok("unload", "again", "--drop-cache")
    assert freed["freed_bytes"] > 0 and freed["pending"] == []
    assert len(served.ok("cache", "list")["slots"]) == slots - 8
    served.refused("decode", "again", "--layer", 0, "--input", reference.path, "--prefix", reference.prefix(0), "--output", tmp_path / "o",
                   name="NO_SUCH", words=["again"])
    served.refused("unload", "again", name="NO_SUCH", words=["again"])


@pytest.mark.parametrize("method", ["duck.add", "duck.remove", "duck.drain"])
def test_methods_of_later(rpc, method):
    refused(rpc, method, "BAD_REQUEST", [method, "is in fp9's interface, this version does not have it"])
