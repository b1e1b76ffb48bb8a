"""Any family, any shape, any plan: random ones against float64, and the planner's bytes against what the ducks hold.

FP9_DRAWS=2000 draws as many; FP9_SEED repeats a run."""
import json
import os
import random
import shutil
import subprocess

import numpy as np
import pytest

from support import safetensors
from support.daemon import SANITIZED, SLOW, Daemon, program
from support.families import FAMILIES, MOE, Weights, config, is_moe, matrices
from support.model import output

DUCKS = 8
DRAWS = int(os.environ.get("FP9_DRAWS", "10" if SANITIZED else "60"))
BF16_BOUND, F32_BOUND = 2.0 ** -8, 2.0 ** -20
WORST = {"f32": 0.0, "bf16": 0.0}


@pytest.fixture(scope="module")
def eight(build, tmp_path_factory):
    one = Daemon(build, tmp_path_factory.mktemp("eight"), ducks=DUCKS).start()
    yield one
    one.stop()


def checkpoint(build, folder, values, seed, *more):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "like.json").write_text(json.dumps(values))
    out = str(folder / "checkpoint")
    subprocess.run([program(build, "fp9-mkckpt"), "--like", str(folder / "like.json"), "--seed", str(seed), "--out", out, *more],
                   check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60 * SLOW)
    return out


def inputs(path, seed, hidden, experts, top_k, tokens=3):
    """(x, ids, weights) of an input file that it writes; experts 0: of a dense layer."""
    rng = np.random.default_rng(seed)
    x = safetensors.f32_to_bf16(rng.standard_normal((tokens, hidden)).astype(np.float32))
    tensors, ids, weights = {"input": safetensors.Tensor("BF16", x)}, None, None
    if experts:
        ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int32)
        weights = rng.random((tokens, top_k)).astype(np.float32)
        tensors.update(topk_ids=safetensors.Tensor("I32", ids), topk_weights=safetensors.Tensor("F32", weights))
    safetensors.write(str(path), tensors)
    return safetensors.bf16_to_f32(x).astype(np.float64), ids, weights


def error_of(got, exact):
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def compare(daemon, model, layer, source, folder, exact, what, kinds=("decode",)):
    for kind in kinds:
        daemon.run(kind, model, layer, source, folder / "out", "", "--partials", "f32", "--output-dtype", "f32")
        error = error_of(output(str(folder / "out"))[0], exact)
        assert error < F32_BOUND, f"{what}, {kind} of layer {layer} in f32: {error:.3g}"
        WORST["f32"] = max(WORST["f32"], error)
        daemon.run(kind, model, layer, source, folder / "out")
        error = error_of(output(str(folder / "out"))[0], exact)
        assert error < BF16_BOUND, f"{what}, {kind} of layer {layer}: {error:.3g}"
        WORST["bf16"] = max(WORST["bf16"], error)


def held(daemon, key):
    """Bytes of a model's slots by duck."""
    bytes_of = {}
    for slot in daemon.ok("cache", "list")["slots"]:
        if slot["model_key"] == key:
            bytes_of[slot["duck"]] = bytes_of.get(slot["duck"], 0) + slot["bytes"]
    return sorted(bytes_of.values())


def draw(rng):
    """A family, its numbers, and a plan that is legal for them."""
    family = rng.choice(FAMILIES)
    odd = (8, 24, 40, 72, 100, 127, 129, 136, 192, 200, 255, 257, 320, 384, 500, 576)
    hidden = rng.choice((64, 128, 130, 192, 200, 256, 333, 384, 576, 640))
    experts = rng.choice((1, 2, 5, 8, 16, 33)) if family in MOE else 0
    case = {"family": family, "hidden": hidden, "dense": rng.choice(odd), "moe": rng.choice(odd) if experts else 0, "experts": experts,
            "top_k": rng.randint(1, min(experts, 6)) if experts else 0, "layers": 2, "shared": 0}
    if experts and family not in ("qwen3_moe", "minimax_m2"):
        case["shared"] = rng.choice((0, 1)) if family == "qwen3_5_moe" else rng.choice((0, 1, 1, 2))
    multiple_of = rng.choice((128, 64, 32, 16, 8))
    widths = [case["moe"]] if family == "minimax_m2" else [case["dense"], case["moe"]] if experts else [case["dense"]]
    units = [-(-width // multiple_of) for width in widths]
    dtype = rng.choice(("f32", "bf16", "f16"))
    strategy = draw_strategy(rng, case, units, multiple_of) if experts else None
    if strategy:
        return case, *strategy, multiple_of, dtype
    return case, "tp", rng.randint(1, min(*units, DUCKS)), multiple_of, dtype


def draw_strategy(rng, case, units, multiple_of):
    """(strategy, ranks) of a plan that divides the experts; None: not this time, or there is none of the kind."""
    gated = case["family"] == "qwen3_5_moe" and case["shared"]
    all_ranks = min([DUCKS] + units[:-1] + ([-(-case["shared"] * case["moe"] // multiple_of)] if case["shared"] and not gated else []))
    groups = case["experts"] + bool(gated)
    kind = rng.choice(("tp", "ep", "both", "both"))
    if kind == "ep":
        return "ep", rng.randint(1, min(all_ranks, groups))
    pairs = [(n, m) for n in range(2, min(all_ranks // 2, units[-1]) + 1) for m in range(2, min(all_ranks // n, groups) + 1)]
    if kind == "both" and pairs:
        n, m = rng.choice(pairs)
        return f"tp{n}xep{m}", n * m
    return None


def may_be_fused(case):
    """What fp9-mkckpt --fused writes of it can be known: see docs/checkpoints.md."""
    return all(wide % 128 <= 64 and (wide % 128 == 0 or wide % 16 == 0)
               for wide in (case["dense"], case["moe"], case["moe"] * case["shared"]))


def one_draw(build, daemon, folder, seed):
    rng = random.Random(seed)
    case, strategy, tp, multiple_of, dtype = draw(rng)
    fused = ("--fused",) if may_be_fused(case) and rng.random() < 0.5 else ()
    what = f"seed {seed}: {case}, strategy {strategy}, tp {tp}, multiple_of {multiple_of}, scales {dtype} {fused}"
    path = checkpoint(build, folder, config(**case), seed, "--scale-dtype", dtype, *fused)
    words = ("--tp", tp, "--multiple-of", multiple_of, "--strategy", strategy)
    plan = daemon.ok("plan", path, *words)
    done = daemon.ok("load", path, "--name", "drawn", *words)
    assert done["strategy"] == plan["strategy"] == strategy and len(plan["ranks"]) == done["tp"] == tp, what
    assert held(daemon, done["model_key"]) == sorted(rank["bytes"] for rank in plan["ranks"]), what
    assert plan["send_bytes"] == sum(rank["send_bytes"] for rank in plan["ranks"]), what
    # Frame headers come on top: so many for each tile of 128 rows or columns.
    assert plan["send_bytes"] < done["bytes_sent"] < 1.5 * plan["send_bytes"] + 4096 * tp, (what, done, plan["send_bytes"])
    weights, gated = Weights(path), case["family"] == "qwen3_5_moe" and case["shared"]
    for layer in range(case["layers"]):
        moe = is_moe(case["family"], layer)
        experts, top_k = (case["experts"] + bool(gated), case["top_k"] + bool(gated)) if moe else (0, 0)
        x, ids, routing = inputs(folder / "in", seed + layer, case["hidden"], experts, top_k)
        exact = weights.layer(case["family"], layer, x, ids, routing, case["shared"], case["experts"])
        compare(daemon, "drawn", layer, folder / "in", folder, exact, what, ("decode", "prefill") if rng.random() < 0.3 else ("decode",))
    daemon.ok("unload", "drawn", "--drop-cache")
    shutil.rmtree(folder)


def test_random_shapes(build, eight, tmp_path):
    first = int(os.environ.get("FP9_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"FP9_SEED={first} FP9_DRAWS={DRAWS}")
    for number in range(DRAWS):
        one_draw(build, eight, tmp_path / str(number), first + number)
    print(f"worst: {WORST['f32']:.3g} with F32, {WORST['bf16']:.3g} with BF16")


# ---- shapes that others refuse or get wrong

UNEVEN = [(320, 256, 5, 64), (320, 256, 7, 32), (576, 576, 2, 64), (576, 576, 8, 64), (1408, 128, 8, 128), (1408, 128, 7, 64),
          (1408, 576, 3, 8), (10944, 64, 8, 64), (10944, 64, 7, 8), (100, 576, 4, 32), (6144, 64, 7, 128), (1152, 256, 2, 64)]


@pytest.mark.parametrize("wide,hidden,tp,multiple_of", UNEVEN)
def test_every_ranks_share(build, eight, tmp_path, wide, hidden, tp, multiple_of):
    """The sum is that of float64, and so is what each rank adds to it: with all other ranks' columns of down at zero the sum is one rank's
    share. A slice that begins at the wrong neuron or takes the wrong block's scale is seen here."""
    path = checkpoint(build, tmp_path, config("qwen3", hidden, wide, layers=1), wide + tp)
    ranks = [rank["neurons"] for rank in eight.ok("plan", path, "--tp", tp, "--multiple-of", multiple_of)["ranks"]]
    assert len(ranks) == tp and sum(ranks) == wide and min(ranks) > 0
    x, _, _ = inputs(tmp_path / "in", tp, hidden, 0, 0)
    weights = Weights(path)
    total, down = np.zeros_like(x), matrices("qwen3", 0, None)[2] + ".weight"
    whole = weights.tensors[down].array.copy()
    begin = 0
    for rank, neurons in enumerate(ranks):
        mine = slice(begin, begin + neurons)
        begin += neurons
        alone = np.zeros_like(whole)
        alone[:, mine] = whole[:, mine]
        weights.tensors[down].array = alone
        safetensors.write(weights.files[down], {name: weights.tensors[name] for name, file in weights.files.items()
                                                if file == weights.files[down]})
        exact = weights.layer("qwen3", 0, x, neurons=mine)
        total += exact
        eight.ok("load", path, "--name", "share", "--tp", tp, "--multiple-of", multiple_of)
        compare(eight, "share", 0, tmp_path / "in", tmp_path, exact, f"rank {rank} of {tp}")
    weights.tensors[down].array = whole
    safetensors.write(weights.files[down], {name: weights.tensors[name] for name, file in weights.files.items()
                                            if file == weights.files[down]})
    eight.ok("load", path, "--name", "share", "--tp", tp, "--multiple-of", multiple_of)
    compare(eight, "share", 0, tmp_path / "in", tmp_path, total, "all ranks", ("decode", "prefill"))
    eight.ok("unload", "share", "--drop-cache")


@pytest.mark.parametrize("multiple_of", (128, 64, 32, 16, 8))
def test_a_single_unit_for_each_rank(build, eight, tmp_path, multiple_of):
    """As many ranks as units, the last one short: of 8 units the last has a single neuron."""
    wide = 7 * multiple_of + 1
    values = config("deepseek_v3", 192, wide, moe=wide, experts=6, top_k=3, shared=1)
    path = checkpoint(build, tmp_path, values, multiple_of)
    plan = eight.ok("plan", path, "--tp", 8, "--multiple-of", multiple_of)
    assert [rank["neurons"] for rank in plan["ranks"]] == [multiple_of] * 7 + [1]
    done = eight.ok("load", path, "--name", "units", "--tp", 8, "--multiple-of", multiple_of)
    assert held(eight, done["model_key"]) == sorted(rank["bytes"] for rank in plan["ranks"])
    weights = Weights(path)
    for layer, experts in ((0, 0), (1, 6)):
        x, ids, routing = inputs(tmp_path / "in", layer, 192, experts, 3)
        exact = weights.layer("deepseek_v3", layer, x, ids, routing, 1, 6)
        compare(eight, "units", layer, tmp_path / "in", tmp_path, exact, "a unit a rank", ("decode", "prefill"))
    eight.ok("unload", "units", "--drop-cache")
    eight.refused("plan", path, "--tp", 9, "--multiple-of", multiple_of, "--ducks", 9, name="BAD_SHAPE",
                  words=[f"{wide} = 8 units of {multiple_of}: tp is at most 8"])
