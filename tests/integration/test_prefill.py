"""Prefill of any length: the bits of decode of each token alone, whatever the members of the ducks, in bounded memory; and a step that
waits for a tile of it, not for all of it."""
import threading

import numpy as np
import pytest

from support import safetensors
from support.daemon import SANITIZED, SLOW, Daemon
from support.model import EXPERTS, HIDDEN, MODEL, make_checkpoint
from support.rpc import Rpc, RpcError, Session
from support.service import DuckService, seed_of

LAYER, DENSE_LAYER = 2, 0
TOP_K = 2
LONG = 30846
STEP_TOKENS_MAX = 4096
CHUNK_TOKENS_MAX = 512  # of what fp9d sends to the ducks at once


def spread(random, tokens):
    return np.stack([random.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)]).astype(np.int32).reshape(tokens, TOP_K)


def skewed(random, tokens):
    """Most of it on expert 0, empty slots, the same expert twice."""
    ids = np.where(random.random((tokens, TOP_K)) < 0.8, 0, random.integers(-1, EXPERTS, (tokens, TOP_K)))
    return ids.astype(np.int32)


def one(random, tokens):
    return np.full((tokens, TOP_K), random.integers(EXPERTS), np.int32)


def tokens_of(random, tokens, route):
    x = safetensors.f32_to_bf16(random.standard_normal((tokens, HIDDEN)).astype(np.float32))
    return x, route(random, tokens), random.standard_normal((tokens, TOP_K)).astype(np.float32)


class Fleet:
    """fp9d and two services with that many kernel threads each."""

    def __init__(self, build, folder, members):
        folder.mkdir()
        self.services = [DuckService(build, folder, f"duck{i}", manager=False, more=("--members", str(members))).start() for i in range(2)]
        self.daemon = Daemon(build, folder, ducks=0, remote=[(s.name, s.address) for s in self.services])

    def __enter__(self):
        return self.daemon.start()

    def __exit__(self, *_):
        try:
            self.daemon.stop()
        finally:
            for service in self.services:
                service.end()


def alone(session, layer, inputs):
    """Every token by a decode of its own."""
    return [session.run("decode", layer, *(None if a is None else a[t:t + 1] for a in inputs)) for t in range(len(inputs[0]))]


def check_lengths(rpc, members, seed, bits, key, partials):
    """bits: what others had for the same plan, key and token."""
    random = np.random.default_rng(seed)
    with_output = {"partials": partials, "output_dtype": partials}
    session = Session(rpc, "shakespeare", 129, **with_output)
    for route in (spread, skewed, one, None):
        x, ids, weights = tokens_of(random, 129, route or spread)
        layer, inputs = (LAYER, (x, ids, weights)) if route else (DENSE_LAYER, (x, None, None))
        rows = alone(session, layer, inputs)
        name = (*key, partials, route and route.__name__)
        assert bits.setdefault(name, rows) == rows, f"{members} members: decode has other bits, {name}"
        for tokens in (129, 0, 3, 1, 64):  # what a long one left behind is not to be seen in a short one
            part = tuple(None if a is None else a[:tokens] for a in inputs)
            assert session.run("prefill", layer, *part) == b"".join(rows[:tokens]), f"{members} members: {tokens} tokens, {name}"
            mode = None if tokens == 0 else (6 if route else 5) if tokens > 4 else (4 if members > 1 else 1) if route else 0
            assert session.result.get("mode") == mode, (members, tokens, name, session.result)
    session.close()


def test_bits_of_prefill_are_those_of_decode(build, tmp_path):
    """1 and 2 members, and more than there are CPUs for; units of 64, 16 and 8; BF16 and F32 partials."""
    seed = seed_of("test_bits_of_prefill_are_those_of_decode")
    bits = {}
    for members in (1, 2, 7):
        with Fleet(build, tmp_path / f"members{members}", members) as daemon:
            assert {duck["cores"] for duck in daemon.ok("duck", "list")["ducks"]} == {members}
            for multiple_of in (64, 16, 8):
                daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", multiple_of)
                with Rpc(daemon.socket, 60 * SLOW) as rpc:
                    for partials in ("bf16", "f32"):
                        check_lengths(rpc, members, seed, bits, (multiple_of,), partials)
    assert len(bits) == 3 * 2 * 4


def peak(pid):
    """Bytes that the process had in memory at most, mapped files included."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def peaks(daemon):
    return peak(daemon.process.pid), max(peak(pid) for pid in daemon.duck_pids())


def memory_of_fp9d(tp, partial):
    """docs/all-cores.md: the arena; of a chunk its frame, the ranks' partials and the frames they come in, and their sum."""
    arena = STEP_TOKENS_MAX * (2 * HIDDEN + 4 * HIDDEN + 16 * TOP_K)
    return arena + CHUNK_TOKENS_MAX * (2 * HIDDEN + 8 * TOP_K + 2 * tp * HIDDEN * partial + 4 * HIDDEN)


def memory_of_duck(partial, members):
    """docs/all-cores.md: of a chunk its frame, the copy with room for the answer, the answer's frame; and the kernels' scratch."""
    chunk = CHUNK_TOKENS_MAX * (2 * (2 * HIDDEN + 8 * TOP_K) + 4 * HIDDEN + partial * HIDDEN)
    scratch = min(64 << 20, 512 * 4 * (2 * HIDDEN + TOP_K * 96)) + 330000 * members
    return chunk + 2 * scratch


def test_long_prompt(make_daemon, tmp_path):
    """30,846 tokens in bounded memory: what 4096 took is what the rest takes. Drawn from 300 that are decoded alone."""
    seed = seed_of("test_long_prompt")
    random = np.random.default_rng(seed)
    daemon = make_daemon(ducks=2)
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    x, ids, weights = tokens_of(random, 300, spread)
    ids[100:200] = skewed(random, 100)
    ids[200:] = one(random, 100)
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        rows = alone(Session(rpc, "shakespeare", 1, partials="f32", output_dtype="f32"), LAYER, (x, ids, weights))
    drawn = random.integers(0, 300, LONG)
    drawn[STEP_TOKENS_MAX:2 * STEP_TOKENS_MAX] %= 100  # a step of spread tokens, one of tokens of one expert alone
    drawn[2 * STEP_TOKENS_MAX:3 * STEP_TOKENS_MAX] = 200 + drawn[2 * STEP_TOKENS_MAX:3 * STEP_TOKENS_MAX] % 100
    before, at = peaks(daemon), {}
    for tokens in (STEP_TOKENS_MAX, LONG):
        safetensors.write(str(tmp_path / "in"), {
            "input": safetensors.Tensor("BF16", x[drawn[:tokens]]), "topk_ids": safetensors.Tensor("I32", ids[drawn[:tokens]]),
            "topk_weights": safetensors.Tensor("F32", weights[drawn[:tokens]])})
        done = daemon.run("prefill", "shakespeare", LAYER, str(tmp_path / "in"), str(tmp_path / "out"), "", "--partials", "f32",
                          "--output-dtype", "f32")
        assert done["tokens"] == tokens and done["mode"] == 6
        got = safetensors.read(str(tmp_path / "out"))["output"].array
        want = np.stack([np.frombuffer(row, np.float32) for row in rows])[drawn[:tokens]]
        assert got.tobytes() == want.tobytes(), f"{tokens} tokens: token {np.flatnonzero((got != want).any(axis=1))[:3]} differs"
        at[tokens] = peaks(daemon)
    print(f"peaks of fp9d and a duck: {before}, {at}")
    if SANITIZED:
        return  # freed memory stays with the sanitizer for a while
    limits = memory_of_fp9d(2, 4), memory_of_duck(4, 1)
    for who, i in (("fp9d", 0), ("a duck", 1)):
        assert at[LONG][i] - at[STEP_TOKENS_MAX][i] < 2 << 20, f"{who} grows with the length: {at}"
        assert at[LONG][i] - before[i] < limits[i] + (4 << 20), f"{who}: {before[i]} before, then {at[LONG][i]}; {limits[i]} are stated"


def test_too_long_for_a_session(daemon):
    daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", 2, "--multiple-of", 64)
    random = np.random.default_rng(1)
    with Rpc(daemon.socket, 60 * SLOW) as rpc:
        with pytest.raises(RpcError) as caught:
            rpc.call("session.open", model="shakespeare", max_tokens=STEP_TOKENS_MAX + 1)
        assert caught.value.name == "BAD_REQUEST" and str(STEP_TOKENS_MAX) in caught.value.message
        session = Session(rpc, "shakespeare", 8)
        inputs = tokens_of(random, 9, spread)
        params = dict(session.place(*(a[:8] for a in inputs)), tokens=9)
        with pytest.raises(RpcError) as caught:
            rpc.call("prefill", layer=LAYER, **params)
        assert caught.value.name == "BAD_SHAPE" and caught.value.values["max_tokens"] == 8
        rows = alone(session, LAYER, tuple(a[:8] for a in inputs))
        assert session.run("prefill", LAYER, *(a[:8] for a in inputs)) == b"".join(rows)


def steps_beside_prefills(daemon, priority, prefills, big, x, ids, weights):
    """How many single-token steps of a session of that priority are answered while so many prefills run, one after another."""
    errors, done = [], threading.Event()

    def prefill():
        try:
            with Rpc(daemon.socket, 120 * SLOW) as rpc:
                session = Session(rpc, "yield", len(big[0]), priority="batch")
                for _ in range(prefills):
                    session.run("prefill", 0, *big)
        except Exception as error:  # told below
            errors.append(error)
        finally:
            done.set()

    with Rpc(daemon.socket, 120 * SLOW) as rpc:
        session = Session(rpc, "yield", 1, priority=priority)
        want = session.run("decode", 0, x, ids, weights)
        thread, steps = threading.Thread(target=prefill), 0
        thread.start()
        while not done.is_set():
            assert session.run("decode", 0, x, ids, weights) == want
            steps += 1
        thread.join()
    assert not errors, errors
    return steps


def test_a_step_waits_for_a_tile(make_daemon, build, tmp_path):
    """By order alone: steps of a batch session stand in line with a prefill's chunks, about one is answered with each; those of an
    interactive session are answered between its tiles, many with each."""
    experts, hidden, top_k, tokens, prefills = 16, 512, 4, STEP_TOKENS_MAX, 2
    path = make_checkpoint(build, str(tmp_path / "checkpoint"), num_hidden_layers=1, mlp_only_layers=[], moe_intermediate_size=768)
    daemon = make_daemon(ducks=1)
    daemon.ok("load", path, "--name", "yield", "--tp", 1, "--multiple-of", 64)
    random = np.random.default_rng(5)
    if SANITIZED:
        tokens //= 4
    chunks = prefills * tokens // CHUNK_TOKENS_MAX

    def some(count):
        return (safetensors.f32_to_bf16(random.standard_normal((count, hidden)).astype(np.float32)),
                np.stack([random.permutation(experts)[:top_k] for _ in range(count)]).astype(np.int32),
                random.random((count, top_k)).astype(np.float32))

    big, small = some(tokens), some(1)
    in_line = steps_beside_prefills(daemon, "batch", prefills, big, *small)
    between = steps_beside_prefills(daemon, "interactive", prefills, big, *small)
    print(f"{chunks} chunks: {in_line} steps in line, {between} between tiles")
    assert in_line <= 3 * chunks + 10, in_line
    assert between >= 4 * chunks + 10 and between > 2 * in_line, (in_line, between)
