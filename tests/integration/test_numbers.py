"""Every layer of the trained checkpoint against float64, and the same bits however it is run."""
import pytest

from support.daemon import SANITIZED
from support.model import LAYERS, MODEL, MOE_LAYERS, make_checkpoint, output, random_input

PLANS = [(1, 64), (2, 64), (3, 64), (1, 32), (2, 32), (3, 32), (4, 32), (6, 32), (1, 128), (2, 128), (5, 16), (5, 8)]
BF16_BOUND = 2.0 ** -8
F32_BOUND = 2.0 ** -20


def layer_bits(daemon, reference, folder, kind, layer, *more):
    target = folder / "out.safetensors"
    done = daemon.run(kind, "shakespeare", layer, reference.path, target, reference.prefix(layer), *more)
    assert done["tokens"] == 64
    check_mode(daemon, kind, layer in MOE_LAYERS, done)
    return output(target)


def check_mode(daemon, kind, moe, done):
    """Decode: 0 for a dense layer, else 4 when any rank has more than one core; prefill: 5 and 6."""
    cores = max(duck["cores"] for duck in daemon.ok("duck", "list")["ducks"])
    want = (6 if moe else 5) if kind == "prefill" else (4 if cores > 1 else 1) if moe else 0
    assert done["mode"] == want, f"{kind}, moe {moe}, {cores} cores: mode {done['mode']} ({done['mode_name']})"
    if kind == "prefill":
        assert done["tiles"] > 0 and done["avg_tile_batch"] > 1 and done["gflops"] > 0 and done["weight_stream_gb_per_s"] > 0


def load(daemon, tp, multiple_of):
    done = daemon.ok("load", MODEL, "--name", "shakespeare", "--tp", tp, "--multiple-of", multiple_of)
    assert (done["tp"], done["multiple_of"], done["model"]) == (tp, multiple_of, "shakespeare")
    return done


@pytest.fixture(scope="module")
def six(build, tmp_path_factory):
    """Six ducks, for tp 6."""
    from support.daemon import Daemon
    one = Daemon(build, tmp_path_factory.mktemp("six"), ducks=6).start()
    yield one
    one.stop()


@pytest.mark.parametrize("tp,multiple_of", PLANS)
def test_reference(six, reference, tmp_path, tp, multiple_of):
    load(six, tp, multiple_of)
    for layer in range(LAYERS):
        for kind in ("decode", "prefill"):
            values, _ = layer_bits(six, reference, tmp_path, kind, layer)
            error = reference.relative_l2(layer, values)
            assert error < BF16_BOUND, f"{kind} of layer {layer}: {error:.3g}"
            # BF16 cannot be this exact: the comparison must have seen a rounded output.
            assert error > 2.0 ** -14, f"{kind} of layer {layer}: {error:.3g} is too good to be BF16"
            values, _ = layer_bits(six, reference, tmp_path, kind, layer, "--partials", "f32", "--output-dtype", "f32")
            error = reference.relative_l2(layer, values)
            assert error < F32_BOUND, f"{kind} of layer {layer} in f32: {error:.3g}"


def test_reference_tp3(daemon, reference, tmp_path):
    load(daemon, 3, 64)
    for layer in range(LAYERS):
        for kind in ("decode", "prefill"):
            values, _ = layer_bits(daemon, reference, tmp_path, kind, layer, "--partials", "f32", "--output-dtype", "f32")
            assert reference.relative_l2(layer, values) < F32_BOUND


def test_same_bits_however_run(make_daemon, build, reference, tmp_path):
    """Repeat, decode and prefill, one-shot and persistent, ref and AVX2, another model in between."""
    other = make_checkpoint(build, str(tmp_path / "other"), seed=3)
    seen = {}

    def expect(what, key, bits):
        assert seen.setdefault(key, bits) == bits, f"{what}: other bits than before for layer {key}"

    tiers = ["ref", "avx2"] if has_avx2() else ["ref"]
    for tier in tiers:
        daemon = make_daemon(env={"FP9_CPU": tier})
        isas = {d["isa"] for d in daemon.ok("status")["ducks"]}
        assert isas == {tier}, f"FP9_CPU={tier} gave {isas}"
        load(daemon, 3, 64)
        for round_number in range(2):
            for layer in range(LAYERS):
                for kind in ("decode", "prefill"):
                    for more in ((), ("--one-shot",)):
                        if SANITIZED and more and kind == "decode":
                            continue  # 64 processes a call
                        _, bits = layer_bits(daemon, reference, tmp_path, kind, layer, *more)
                        expect(f"{tier} round {round_number} {kind} {more}", layer, bits)
            if round_number == 0:
                daemon.ok("load", other, "--name", "other", "--tp", 3, "--multiple-of", 64)
                daemon.run("decode", "other", 0, random_input(str(tmp_path / "in"), 5, 512, 16, 4), tmp_path / "o")
                daemon.run("decode", "other", 1, random_input(str(tmp_path / "in"), 6, 512), tmp_path / "o")
        daemon.stop()


def has_avx2():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return " avx2 " in file.read()


def test_persistent_judge_off_gives_the_same_bits(make_daemon, reference, tmp_path):
    bits = []
    for more in ({}, {"fleet": "persistent_judge = no"}, {"env": {"FP9_PERSISTENT_JUDGE": "0"}}):
        daemon = make_daemon(**more)
        load(daemon, 2, 32)
        bits.append([layer_bits(daemon, reference, tmp_path, "prefill", layer)[1] for layer in range(LAYERS)])
        daemon.stop()
    assert bits[0] == bits[1] == bits[2]


def test_too_wide(daemon, reference, tmp_path):
    load(daemon, 3, 64)
    _, before = layer_bits(daemon, reference, tmp_path, "prefill", 1)
    error = daemon.refused("load", MODEL, "--name", "wide", "--tp", 4, "--multiple-of", 64, name="BAD_SHAPE",
                           words=["moe_intermediate_size 192 = 3 units of 64: tp is at most 3;", "32 allows 6", "8 allows 24"])
    assert error["message"]
    _, after = layer_bits(daemon, reference, tmp_path, "prefill", 1)
    assert before == after


def test_uneven_ranks(daemon, reference, tmp_path):
    """768 = 12 units of 64 over 5 would be 3+3+2+2+2; here the routed 192 = 6 units of 32 over tp 4 = 2+2+1+1."""
    plan = daemon.ok("plan", MODEL, "--tp", 4, "--multiple-of", 32)
    assert [rank["rank"] for rank in plan["ranks"]] == [0, 1, 2, 3]
    assert len({rank["bytes"] for rank in plan["ranks"]}) > 1, "four ranks of six units cannot be equal"
    load(daemon, 4, 32)
    for layer in MOE_LAYERS:
        values, _ = layer_bits(daemon, reference, tmp_path, "decode", layer, "--partials", "f32", "--output-dtype", "f32")
        assert reference.relative_l2(layer, values) < F32_BOUND


def test_units_of_eight(build, reference, tmp_path):
    """24 units of 8 over 13 ranks: eleven of 16 neurons, two of 8, of which one begins and one ends in the middle of a tile. The same bits
    in every tier and for any kernel process."""
    from support.daemon import Daemon
    bits = {}
    for tier in ("ref", "avx2") if has_avx2() else ("ref",):
        folder = tmp_path / tier
        folder.mkdir()
        daemon = Daemon(build, folder, ducks=13, env={"FP9_CPU": tier}).start()
        try:
            load(daemon, 13, 8)
            for layer in (0, MOE_LAYERS[0]):
                for kind in ("decode", "prefill"):
                    values, have = layer_bits(daemon, reference, tmp_path, kind, layer, "--partials", "f32", "--output-dtype", "f32")
                    assert reference.relative_l2(layer, values) < F32_BOUND
                    assert bits.setdefault(layer, have) == have, f"{tier} {kind} of layer {layer}"
        finally:
            daemon.stop()


def test_left_out_numbers_are_chosen(daemon, reference, tmp_path):
    done = daemon.ok("load", MODEL, "--name", "shakespeare")
    assert 1 <= done["tp"] <= 4 and done["multiple_of"] in (8, 16, 32, 64, 128)
    values, _ = layer_bits(daemon, reference, tmp_path, "prefill", 0)
    assert reference.relative_l2(0, values) < BF16_BOUND


def test_another_model_agrees_with_float64(daemon, build, tmp_path):
    """Random weights of fp9-mkckpt, computed here from the file's own bytes."""
    import numpy as np
    from support import safetensors
    import glob
    import os

    seed = 11
    path = make_checkpoint(build, str(tmp_path / "m"), seed=seed)
    tensors = {}
    for shard in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        tensors.update(safetensors.read(shard))
    table = safetensors.e4m3_table()

    def weights(name):
        codes = table[tensors[name + ".weight"].array]
        scale = safetensors.values(tensors[name + ".weight_scale_inv"])
        return codes * np.kron(scale, np.ones((128, 128)))[:codes.shape[0], :codes.shape[1]]

    def mlp(name, x):
        gate, up = weights(name + ".gate_proj") @ x, weights(name + ".up_proj") @ x
        return weights(name + ".down_proj") @ (gate / (1 + np.exp(-gate)) * up)

    daemon.ok("load", path, "--name", "random", "--tp", 3, "--multiple-of", 128)
    for layer, moe in ((0, True), (1, False)):
        source = random_input(str(tmp_path / "in"), seed + layer, 512, *((16, 4) if moe else ()))
        given = safetensors.read(source)
        x = safetensors.values(given["input"])
        exact = np.zeros_like(x)
        for token in range(len(x)):
            if moe:
                for expert, weight in zip(given["topk_ids"].array[token], given["topk_weights"].array[token]):
                    exact[token] += float(weight) * mlp(f"model.layers.{layer}.mlp.experts.{expert}", x[token])
            else:
                exact[token] = mlp(f"model.layers.{layer}.mlp", x[token])
        daemon.run("decode", "random", layer, source, tmp_path / "out", "", "--partials", "f32", "--output-dtype", "f32")
        got, _ = output(tmp_path / "out")
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        assert error < F32_BOUND, f"seed {seed}, layer {layer}: {error:.3g}"
    daemon.ok("unload", "random", "--drop-cache")
