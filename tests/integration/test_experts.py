"""Strategies that divide the experts by id (CASES B09): every expert has one owner, steps go to owners alone, the bits are a plan's own."""
import os
import shutil

import numpy as np
import pytest

from support import safetensors
from support.daemon import SANITIZED, Daemon
from support.families import Weights, config
from support.model import EXPERTS, LAYERS, MODEL, MOE_LAYERS, mlp_tensors, output
from support.service import DuckService
from test_shapes import checkpoint, compare, held, inputs

BF16_BOUND, F32_BOUND = 2.0 ** -8, 2.0 ** -20
KINDS = ("decode", "prefill")


@pytest.fixture(scope="module")
def eight(build, tmp_path_factory):
    one = Daemon(build, tmp_path_factory.mktemp("eight"), ducks=8).start()
    yield one
    one.stop()


@pytest.fixture
def empty(eight):
    yield eight
    for model in eight.ok("model", "list")["models"]:
        eight.ok("unload", model["name"], "--drop-cache")


def load(daemon, path, strategy, name="m", **more):
    words = [word for key, value in more.items() for word in (f"--{key.replace('_', '-')}", value)]
    done = daemon.ok("load", path, "--name", name, "--strategy", strategy, *words)
    assert done["strategy"] == strategy, done
    return done


def owners(daemon, name="m"):
    """{expert: ducks} of the map that model show gives; every expert once."""
    shown = daemon.ok("model", "show", name)
    found = {}
    for one in shown["owners"]:
        assert one["experts"] == (f"{one['expert_first']}-{one['expert_first'] + one['expert_count'] - 1}" if one["expert_count"] > 1
                                  else str(one["expert_first"])), one
        for expert in range(one["expert_first"], one["expert_first"] + one["expert_count"]):
            assert expert not in found, f"expert {expert} has two owners: {shown['owners']}"
            found[expert] = tuple(one["ducks"])
    assert sorted(found) == list(range(shown["experts"])), shown["owners"]
    return found


def bits(daemon, layer, source, folder, kind, *more, prefix="", name="m"):
    daemon.run(kind, name, layer, source, folder / "out", prefix, *more)
    return output(str(folder / "out"))


# ---- the trained checkpoint: 8 experts, a dense first layer

PLANS = [("ep", 2, 64), ("ep", 3, 64), ("ep", 4, 32), ("ep", 7, 8), ("ep", 8, 16), ("tp2xep2", 4, 64), ("tp3xep2", 6, 64),
         ("tp2xep3", 6, 8)]


@pytest.mark.parametrize("strategy,ranks,multiple_of", PLANS)
def test_reference(empty, reference, tmp_path, strategy, ranks, multiple_of):
    done = load(empty, MODEL, strategy, tp=ranks, multiple_of=multiple_of)
    assert done["tp"] == ranks
    plan = empty.ok("plan", MODEL, "--strategy", strategy, "--tp", ranks, "--multiple-of", multiple_of)
    assert held(empty, done["model_key"]) == sorted(rank["bytes"] for rank in plan["ranks"]), "ducks hold what was planned"
    assert plan["bytes_total"] == sum(rank["bytes"] for rank in plan["ranks"])
    found = owners(empty)
    assert len(set(found.values())) == ranks // (int(strategy[2]) if strategy != "ep" else 1)
    assert empty.ok("cache", "verify", "m", "--full")["bad"] == []
    for layer in range(LAYERS):
        seen = set()
        for kind in KINDS:
            for more in ((), ("--one-shot",)):
                if SANITIZED and more and kind == "decode":
                    continue  # 64 processes a call
                values, have = bits(empty, layer, reference.path, tmp_path, kind, *more, prefix=reference.prefix(layer))
                seen.add(have)
                assert reference.relative_l2(layer, values) < BF16_BOUND, (layer, kind)
        assert len(seen) == 1, f"layer {layer}: decode, prefill and one-shot differ"
        values, _ = bits(empty, layer, reference.path, tmp_path, "prefill", "--partials", "f32", "--output-dtype", "f32",
                         prefix=reference.prefix(layer))
        assert reference.relative_l2(layer, values) < F32_BOUND, layer


def test_cache_of_strategies(make_daemon, reference, tmp_path):
    """A warm load is a hit; another division of the experts is a miss of the MoE layers, not of the dense one, with the reason in words."""
    daemon = make_daemon()
    first = load(daemon, MODEL, "ep", tp=4, multiple_of=32)
    assert first["cache"] == "miss"
    _, before = bits(daemon, 1, reference.path, tmp_path, "prefill", prefix=reference.prefix(1))
    again = load(daemon, MODEL, "ep", tp=4, multiple_of=32)
    assert (again["cache"], again["bytes_read"], again["bytes_sent"], again["model_key"]) == ("hit", 0, 0, first["model_key"])
    keys = {first["model_key"]}
    was, dense = "ep", 4  # of each layer four slots
    for strategy in ("tp2xep2", "tp", "ep", "tp2xep2"):
        done = load(daemon, MODEL, strategy, tp=4, multiple_of=32)
        fresh = done["model_key"] not in keys
        keys.add(done["model_key"])
        if fresh:
            assert (done["cache"], f"strategy {was} -> {strategy}" in done["reason"]) == ("partial", True), done
            assert f"{4 * LAYERS - dense} of {4 * LAYERS} slots were missing" in done["reason"], done
        else:  # they are still there
            assert (done["cache"], done["bytes_read"], done["bytes_sent"]) == ("hit", 0, 0), done
        assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []
        for layer in range(LAYERS):
            values, have = bits(daemon, layer, reference.path, tmp_path, "prefill", prefix=reference.prefix(layer))
            assert reference.relative_l2(layer, values) < BF16_BOUND
            assert strategy != "ep" or layer != 1 or have == before, "the bits of a plan came back with it"
        was = strategy
    assert len(keys) == 3
    # ep over three: other slices of the dense layer, too
    done = load(daemon, MODEL, "ep", tp=3, multiple_of=32)
    assert done["cache"] == "miss" and "tp 4 -> 3" in done["reason"] and "strategy tp2xep2 -> ep" in done["reason"], done


def test_a_lost_share_alone_is_read(make_daemon):
    """A duck without its slots gets its own experts again, and of the checkpoint nothing else is read: what the plan says of its rank."""
    daemon = make_daemon()
    plan = daemon.ok("plan", MODEL, "--strategy", "ep", "--tp", 4, "--multiple-of", 32)
    load(daemon, MODEL, "ep", tp=4, multiple_of=32)
    found = owners(daemon)
    (duck,) = found[5]
    daemon.ok("invalidate-cache", "--model", "m", "--duck", duck)
    done = load(daemon, MODEL, "ep", tp=4, multiple_of=32)
    assert done["cache"] == "partial" and f"{LAYERS} of {4 * LAYERS} slots were missing" in done["reason"], done
    assert owners(daemon) == found
    (rank,) = [rank for rank in plan["ranks"] if rank["expert_first"] <= 5 < rank["expert_first"] + rank["expert_count"]]
    assert done["bytes_read"] == rank["read_bytes"], (done, rank)
    assert daemon.ok("job", "list")["jobs"][-1]["progress"] == 1
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []


def test_restart(make_daemon, reference, tmp_path):
    """The registered model comes back by its strategy, without weights read or sent, and gives the same bits; a duck that has lost its
    slots gets its own again."""
    daemon = make_daemon()
    done = load(daemon, MODEL, "tp2xep2", multiple_of=32)
    before = {layer: bits(daemon, layer, reference.path, tmp_path, "prefill", prefix=reference.prefix(layer))[1] for layer in range(LAYERS)}
    found = owners(daemon)

    def back():
        shown = daemon.ok("model", "show", "m")
        return shown["state"] == "ready" and shown

    for restart in ("term", "kill duck"):
        if restart == "term":
            daemon.stop()
            daemon.start()
        else:
            os.kill(daemon.duck_pids()[1], 9)
            daemon.wait_for("the loss to be seen", lambda: daemon.ok("model", "show", "m")["state"] != "ready")
        shown = daemon.wait_for("the model", back)
        assert (shown["strategy"], shown["tp"], shown["model_key"]) == ("tp2xep2", 4, done["model_key"]), shown
        assert owners(daemon) == found
        again = {layer: bits(daemon, layer, reference.path, tmp_path, "prefill", prefix=reference.prefix(layer))[1]
                 for layer in range(LAYERS)}
        assert again == before, restart


def asked(daemon):
    """Steps that each duck has had, by name."""
    found = {}
    for duck in daemon.ok("duck", "list")["ducks"]:
        found[duck["name"]] = duck["channel_steps"] + duck["socket_steps"]
    return found


def test_steps_go_to_owners_alone(make_daemon, reference, tmp_path):
    daemon = make_daemon(ducks=4)
    load(daemon, MODEL, "ep", tp=4, multiple_of=32)
    found = owners(daemon)
    rng = np.random.default_rng(5)
    for ids in ([0, 1], [2, 3], [0, 7], [6, -1], [-1, -1], [5, 5]):
        x = safetensors.f32_to_bf16(rng.standard_normal((1, 256)).astype(np.float32))
        safetensors.write(str(tmp_path / "in"), {
            "input": safetensors.Tensor("BF16", x), "topk_ids": safetensors.Tensor("I32", np.array([ids], np.int32)),
            "topk_weights": safetensors.Tensor("F32", np.array([[0.25, 0.5]], np.float32))})
        before = asked(daemon)
        values, _ = bits(daemon, 2, str(tmp_path / "in"), tmp_path, "decode")
        after = asked(daemon)
        got = {name for name in after if after[name] > before[name]}
        assert got == {duck for expert in ids if expert >= 0 for duck in found[expert]}, (ids, found)
        assert (ids == [-1, -1]) == (not np.any(values)), values
        assert not np.any(np.signbit(values) & (values == 0)), "nobody's answer is +0"


@pytest.mark.parametrize("strategy,ranks", [("ep", 3), ("tp2xep3", 6)])
def test_a_tokens_bits_do_not_depend_on_company(empty, tmp_path, build, strategy, ranks):
    """A decode of one token goes to few ducks and a prefill of many to all; each token has the bits of both. Some x are 0 or -0, some
    experts -1, so that partials are zeros of either sign."""
    path = checkpoint(build, tmp_path / "c", config("minimax_m2", 256, 0, moe=192, experts=11, top_k=3, layers=1), 7)
    load(empty, path, strategy, tp=ranks, multiple_of=16)
    rng = np.random.default_rng(11)
    tokens = 24
    x = safetensors.f32_to_bf16(rng.standard_normal((tokens, 256)).astype(np.float32))
    x[3], x[4] = 0x0000, 0x8000
    ids = np.stack([rng.permutation(11)[:3] for _ in range(tokens)]).astype(np.int32)
    ids[5], ids[6, 1:] = -1, -1
    weights = rng.standard_normal((tokens, 3)).astype(np.float32)
    weights[7] = -0.0
    for partials, dtype in (("bf16", "bf16"), ("bf16", "f32"), ("f32", "f32")):
        def run(first, count, kind):
            safetensors.write(str(tmp_path / "in"), {
                "input": safetensors.Tensor("BF16", x[first:first + count]),
                "topk_ids": safetensors.Tensor("I32", ids[first:first + count]),
                "topk_weights": safetensors.Tensor("F32", weights[first:first + count])})
            return bits(empty, 0, str(tmp_path / "in"), tmp_path, kind, "--partials", partials, "--output-dtype", dtype)[1]
        whole = run(0, tokens, "prefill")
        row = len(whole) // tokens
        assert whole == run(0, tokens, "prefill"), "the same twice"
        for token in range(tokens):
            assert run(token, 1, "decode") == whole[token * row:(token + 1) * row], f"token {token}, partials {partials}, y {dtype}"


# ---- ducks over TCP, and weights from a client's memory

DIVIDED = pytest.mark.parametrize("strategy", ["ep", "tp2xep2"])


@pytest.fixture
def services(build, tmp_path):
    made = []

    def make(count):
        for i in range(len(made), count):
            made.append(DuckService(build, tmp_path, f"far{i}"))
            made[i].start()
        return [(one.name, one.address) for one in made]

    make.made = made
    yield make
    for one in made:
        one.end()


def all_bits(daemon, reference, folder):
    return [bits(daemon, layer, reference.path, folder, kind, prefix=reference.prefix(layer))[1]
            for layer in range(LAYERS) for kind in KINDS]


@pytest.fixture(scope="module")
def expected(build, tmp_path_factory, reference):
    """By strategy: model key, checksums and outputs of four local ducks that have loaded it."""
    folder, found = tmp_path_factory.mktemp("expected"), {}
    one = Daemon(build, folder, ducks=4).start()
    for strategy in ("ep", "tp2xep2"):
        done = load(one, MODEL, strategy, tp=4, multiple_of=32)
        found[strategy] = done["model_key"], sums(one, done["model_key"]), all_bits(one, reference, folder)
        one.ok("unload", "m", "--drop-cache")
    one.stop()
    return found


def sums(daemon, key):
    return {(slot["layer"], slot["rank"]): slot["checksum"] for slot in daemon.ok("cache", "list")["slots"] if slot["model_key"] == key}


@DIVIDED
@pytest.mark.parametrize("far", [2, 4])
def test_ducks_over_tcp(make_daemon, services, expected, reference, tmp_path, strategy, far):
    """The same slots and bits as with local ducks; steps to owners alone; a duck that comes back has its experts, one that comes back
    empty gets them again."""
    daemon = make_daemon(ducks=4 - far, remote=services(far), memory="64M")
    done = load(daemon, MODEL, strategy, tp=4, multiple_of=32)
    key, slots, outputs = expected[strategy]
    assert (done["model_key"], done["cache"]) == (key, "miss") and sums(daemon, key) == slots
    assert all_bits(daemon, reference, tmp_path) == outputs
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []
    found = owners(daemon)
    (owner, *_) = next(ducks for ducks in found.values() if ducks[0].startswith("far"))
    expert = next(expert for expert, ducks in found.items() if owner in ducks)
    safetensors.write(str(tmp_path / "one"), {
        "input": safetensors.Tensor("BF16", safetensors.f32_to_bf16(np.ones((1, 256), np.float32))),
        "topk_ids": safetensors.Tensor("I32", np.array([[expert, -1]], np.int32)),
        "topk_weights": safetensors.Tensor("F32", np.ones((1, 2), np.float32))})
    before = asked(daemon)
    bits(daemon, 2, str(tmp_path / "one"), tmp_path, "decode")
    assert {name for name, count in asked(daemon).items() if count > before[name]} == set(found[expert])
    service = next(one for one in services.made if one.name == owner)
    for empty in (False, True):
        service.kill()
        daemon.wait_for("the loss to be seen", lambda: daemon.ok("model", "show", "m")["state"] != "ready")
        if empty:
            service.manager.forget()
        service.start()
        daemon.wait_for("the model", lambda: daemon.ok("model", "show", "m")["state"] == "ready")
        assert owners(daemon) == found and sums(daemon, key) == slots
        last = daemon.ok("job", "list")["jobs"][-1]
        assert (last["kind"] == "recover") == empty, last
        assert all_bits(daemon, reference, tmp_path) == outputs


@DIVIDED
@pytest.mark.parametrize("far", [0, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_weights_from_memory(make_daemon, services, expected, reference, tmp_path, strategy, far, whole):
    """Whole or a layer at a time: the slots, bits and key of a load, and a load finds them."""
    daemon = make_daemon(ducks=4 - far, remote=services(far), memory="64M")
    layers = mlp_tensors()
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(os.path.join(MODEL, "config.json"), bare)
    source = str(tmp_path / "weights.safetensors")
    parts = [{name: value for layer in layers.values() for name, value in layer.items()}] if whole else list(layers.values())
    for i, part in enumerate(parts):
        safetensors.write(source, part)
        first = ["--path", bare, "--strategy", strategy, "--tp", 4, "--multiple-of", 32] if i == 0 else []
        assert daemon.ok("prepare", "m", "--from", source, *first)["cache"] == "miss"
    shown = daemon.ok("model", "show", "m")
    key, slots, outputs = expected[strategy]
    assert (shown["state"], shown["strategy"], shown["model_key"]) == ("ready", strategy, key), shown
    assert sums(daemon, key) == slots and all_bits(daemon, reference, tmp_path) == outputs
    done = load(daemon, MODEL, strategy, name="disk", tp=4, multiple_of=32)
    assert (done["cache"], done["bytes_sent"], done["model_key"]) == ("hit", 0, key), done
    other = "ep" if strategy != "ep" else "tp2xep2"
    daemon.refused("prepare", "m", "--from", source, "--strategy", other, name="BAD_REQUEST", words=[f"strategy {strategy}"])
    if not far:
        return  # the buffers of local ducks end with this fp9d
    daemon.stop()
    daemon.start()
    daemon.wait_for("the models", lambda: all(m["state"] == "ready" for m in daemon.ok("model", "list")["models"]))
    assert all_bits(daemon, reference, tmp_path) == outputs


# ---- other checkpoints: shared experts, gated ones, uneven numbers

CASES = [("deepseek_v3", dict(dense=576, moe=96, experts=10, top_k=4, shared=1), "ep", 4, 16),
         ("deepseek_v3", dict(dense=576, moe=96, experts=10, top_k=4, shared=2), "tp2xep3", 6, 16),
         ("glm_moe_dsa", dict(dense=200, moe=136, experts=5, top_k=2, shared=1), "ep", 5, 8),
         ("qwen3_5_moe", dict(dense=128, moe=96, experts=6, top_k=3, shared=1), "tp2xep3", 6, 16),
         ("qwen3_moe", dict(dense=384, moe=192, experts=16, top_k=4), "tp2xep4", 8, 32),
         ("minimax_m2", dict(dense=0, moe=128, experts=128, top_k=8), "ep", 7, 64)]


@pytest.mark.parametrize("family,numbers,strategy,ranks,multiple_of", CASES)
def test_families(empty, build, tmp_path, family, numbers, strategy, ranks, multiple_of):
    values = config(family, 256, layers=2, **numbers)
    path = checkpoint(build, tmp_path, values, 3)
    done = load(empty, path, strategy, tp=ranks, multiple_of=multiple_of)
    plan = empty.ok("plan", path, "--strategy", strategy, "--tp", ranks, "--multiple-of", multiple_of)
    assert held(empty, done["model_key"]) == sorted(rank["bytes"] for rank in plan["ranks"])
    weights, gated = Weights(path), bool(family == "qwen3_5_moe")
    counts = [rank["expert_count"] for rank in plan["ranks"]]
    assert max(counts) - min(counts) <= 1 and len(owners(empty)) == numbers["experts"] + gated
    for layer in range(2):
        moe = family == "minimax_m2" or layer > 0
        experts, top_k = (numbers["experts"] + gated, numbers["top_k"] + gated) if moe else (0, 0)
        x, ids, routing = inputs(tmp_path / "in", 40 + layer, 256, experts, top_k)
        exact = weights.layer(family, layer, x, ids, routing, numbers.get("shared", 0), numbers["experts"])
        compare(empty, "m", layer, tmp_path / "in", tmp_path, exact, f"{family} {strategy}", KINDS)


def test_loss_of_an_owner(make_daemon, reference, tmp_path):
    """Steps that need the lost duck's experts fail by name; afterwards the model is whole again."""
    daemon = make_daemon(ducks=4)
    load(daemon, MODEL, "ep", tp=4, multiple_of=32)
    expected = bits(daemon, 1, reference.path, tmp_path, "prefill", prefix=reference.prefix(1))[1]
    os.kill(daemon.duck_pids()[2], 9)
    daemon.wait_for("the model", lambda: daemon.ok("status")["state"] == "ready" and daemon.ok("model", "show", "m")["state"] == "ready")
    assert bits(daemon, 1, reference.path, tmp_path, "prefill", prefix=reference.prefix(1))[1] == expected
    assert daemon.ok("load", MODEL, "--name", "m", "--strategy", "ep", "--tp", 4, "--multiple-of", 32)["cache"] == "hit"


def test_refusals(daemon, tmp_path):
    assert EXPERTS == 8 and MOE_LAYERS
    daemon.refused("load", MODEL, "--strategy", "tp4", name="BAD_REQUEST", words=["tp4", "tp, ep and tpNxepM"])
    daemon.refused("plan", MODEL, "--strategy", "ep", "--tp", 9, name="BAD_SHAPE", words=["8 experts", "9 groups"])
    daemon.refused("plan", MODEL, "--strategy", "tp4xep2", "--multiple-of", 64, name="BAD_SHAPE", words=["192 = 3 units of 64"])
    daemon.refused("load", MODEL, "--strategy", "tp2xep4", name="BAD_SHAPE", words=["needs 8 ducks, only 4"])
    daemon.refused("load", MODEL, "--strategy", "tp2xep2", "--tp", 3, name="BAD_SHAPE", words=["4 ranks", "tp 3"])
    plan = daemon.ok("plan", MODEL, "--strategy", "tp2xep4")
    assert (plan["tp"], plan["loadable"]) == (8, False) and "fewer ducks" in plan["note"]
    assert [rank["experts"] for rank in plan["ranks"]] == ["0-1"] * 2 + ["2-3"] * 2 + ["4-5"] * 2 + ["6-7"] * 2
    chosen = daemon.ok("plan", MODEL, "--strategy", "ep")
    assert 1 <= chosen["tp"] <= 4 and chosen["strategy"] == "ep" and "of 8 experts" in chosen["explanation"], chosen["explanation"]


# ---- CASES B09

@pytest.fixture(scope="module")
def many(build, tmp_path_factory):
    one = Daemon(build, tmp_path_factory.mktemp("many"), ducks=32, memory="32M").start()
    yield one
    one.stop()


@pytest.mark.parametrize("experts,groups,counts", [(128, 24, {5, 6}), (160, 32, {5}), (384, 32, {12})])
def test_b09_owners(many, build, tmp_path, experts, groups, counts):
    path = checkpoint(build, tmp_path, config("minimax_m2", 64, 0, moe=16, experts=experts, top_k=8, layers=1), experts)
    x, ids, routing = inputs(tmp_path / "in", experts, 64, experts, 8, tokens=16)
    exact = Weights(path).layer("minimax_m2", 0, x, ids, routing)
    try:
        load(many, path, "ep", tp=groups, multiple_of=8)
        found = owners(many)
        (shown,) = many.ok("status")["models"]
        assert shown["owners"] == many.ok("model", "show", "m")["owners"], "status shows the map"
        held_by = list(found.values())
        assert {held_by.count(ducks) for ducks in held_by} == counts and len(set(held_by)) == groups
        compare(many, "m", 0, tmp_path / "in", tmp_path, exact, f"{experts} over {groups}", KINDS)
        divided, _ = bits(many, 0, str(tmp_path / "in"), tmp_path, "prefill", "--partials", "f32", "--output-dtype", "f32")
        load(many, path, "tp", tp=1, multiple_of=8)
        single, _ = bits(many, 0, str(tmp_path / "in"), tmp_path, "prefill", "--partials", "f32", "--output-dtype", "f32")
        assert np.linalg.norm(divided - single) < F32_BOUND * np.linalg.norm(single)
    finally:
        many.ok("unload", "m", "--drop-cache")
