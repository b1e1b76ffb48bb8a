"""Checkpoints whose experts, or gate and up, are one tensor: the same weights give the same bits and key as in a tensor each; blocks that
run on from gate into up; what cannot be known is refused by name."""
import glob
import json
import os
import time

import numpy as np
import pytest

from support import safetensors
from support.daemon import SLOW
from support.families import Weights, config, is_moe, prefix
from support.freeze import stopped
from support.model import output
from test_shapes import checkpoint, compare, inputs

PLAN = ("--tp", 3, "--multiple-of", 64)
INDEX = "model.safetensors.index.json"


def single_and_fused(build, folder, family, hidden, dense, moe, *more, **sizes):
    """The same weights twice."""
    values = config(family, hidden, dense, moe=moe, **{"experts": 6, "top_k": 2, "shared": 1, "layers": 3, **sizes})
    return (checkpoint(build, folder / "single", values, 11, *more), checkpoint(build, folder / "fused", values, 11, "--fused", *more))


def sources(folder, family, layer, experts=6):
    """What the client sends for a layer: (x, ids, routing)."""
    gated = family == "qwen3_5_moe"
    sizes = (experts + gated, 2 + gated) if is_moe(family, layer) else (0, 0)
    return inputs(folder / "in", layer, 256, *sizes)


def bits(daemon, folder, model, family, layers=3):
    """Output bits of all layers, decode and prefill."""
    found = []
    for layer in range(layers):
        sources(folder, family, layer)
        for kind in ("decode", "prefill"):
            daemon.run(kind, model, layer, folder / "in", folder / "out")
            found.append(output(str(folder / "out"))[1])
    return found


def checksums(daemon, key):
    return sorted((s["layer"], s["rank"], s["checksum"]) for s in daemon.ok("cache", "list")["slots"] if s["model_key"] == key)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "deepseek_v3", "glm_moe_dsa", "mimo_v2_flash"])
def test_same_bits_and_key_as_single_tensors(build, daemon, tmp_path, family):
    single, fused = single_and_fused(build, tmp_path, family, 256, 384, 256, "--shard-bytes", "300K")
    names = set(Weights(fused).tensors)
    assert any(name.endswith("gate_up_proj") or name.endswith("gate_up_proj.weight") for name in names)
    assert not any("experts.0." in name or name.endswith("up_proj.weight") and "gate_up" not in name for name in names), names
    first = daemon.ok("load", single, "--name", "f", *PLAN)
    want, slots = bits(daemon, tmp_path, "f", family), checksums(daemon, first["model_key"])
    daemon.ok("unload", "f", "--drop-cache")
    done = daemon.ok("load", fused, "--name", "f", *PLAN)
    assert (done["cache"], done["model_key"]) == ("miss", first["model_key"]), (done, first)
    assert (done["bytes_read"], done["bytes_sent"]) == (first["bytes_read"], first["bytes_sent"])
    assert checksums(daemon, done["model_key"]) == slots
    assert bits(daemon, tmp_path, "f", family) == want
    assert daemon.ok("cache", "verify", "f", "--full")["bad"] == []
    weights = Weights(fused)
    for layer in range(3):
        x, ids, routing = sources(tmp_path, family, layer)
        exact = weights.layer(family, layer, x, ids, routing, 1, 6)
        compare(daemon, "f", layer, tmp_path / "in", tmp_path, exact, family, ("decode", "prefill"))
    # In the other form they are in the cache already: its files are digested, nothing is sent.
    again = daemon.ok("load", single, "--name", "g", *PLAN)
    assert (again["cache"], again["bytes_sent"], again["model_key"]) == ("hit", 0, first["model_key"]), again
    daemon.ok("unload", "f")
    daemon.ok("unload", "g", "--drop-cache")


@pytest.mark.parametrize("wide,tp,multiple_of", [(320, 5, 64), (320, 8, 8), (192, 3, 64), (576, 8, 64), (1408, 8, 128), (16, 2, 8),
                                                 (272, 7, 8), (528, 4, 128)])
def test_blocks_run_on_from_gate_into_up(build, daemon_of_eight, tmp_path, wide, tp, multiple_of):
    """Quantised as one tensor: where the width is no multiple of 128, up begins within a block of gate."""
    for family, experts in (("qwen3", 0), ("qwen3_5_moe", 3)):
        values = config(family, 200, wide, moe=wide, experts=experts, top_k=2, shared=1, layers=2)
        path = checkpoint(build, tmp_path / family, values, wide, "--fused", "--scale-dtype", "f32")
        daemon_of_eight.ok("load", path, "--name", "on", "--tp", tp, "--multiple-of", multiple_of)
        weights, gated = Weights(path), experts > 0
        for layer in range(2):
            moe = is_moe(family, layer)
            x, ids, routing = inputs(tmp_path / "in", layer, 200, experts + gated if moe else 0, 2 + gated)
            exact = weights.layer(family, layer, x, ids, routing, 1, experts)
            compare(daemon_of_eight, "on", layer, tmp_path / "in", tmp_path, exact, f"{family}, {wide}", ("decode", "prefill"))
        assert daemon_of_eight.ok("cache", "verify", "on", "--full")["bad"] == []
        daemon_of_eight.ok("unload", "on", "--drop-cache")


@pytest.fixture(scope="module")
def daemon_of_eight(build, tmp_path_factory):
    from support.daemon import Daemon
    one = Daemon(build, tmp_path_factory.mktemp("eight"), ducks=8).start()
    yield one
    one.stop()


def rewrite(path, change):
    """change(tensors) edits them in place; one file without an index comes of it."""
    tensors = dict(Weights(path).tensors)
    change(tensors)
    for shard in glob.glob(os.path.join(path, "*.safetensors")):
        os.remove(shard)
    if os.path.exists(os.path.join(path, INDEX)):
        os.remove(os.path.join(path, INDEX))
    safetensors.write(os.path.join(path, "model.safetensors"), tensors)


def fuse_with_own_blocks(tensors, base, experts, spelling):
    """Stacks quantised experts as they are: blocks of gate and blocks of up, each their own."""
    for fused, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
        for end, to in (("weight", spelling[0]), ("weight_scale_inv", spelling[1])):
            each = [[tensors.pop(f"{base}.{e}.{part}.{end}") for part in parts] for e in range(experts)]
            stack = np.stack([np.concatenate([part.array for part in of]) for of in each])
            tensors[f"{base}.{fused}{to}"] = safetensors.Tensor(each[0][0].dtype, stack)


@pytest.mark.parametrize("spelling", [("", "_scale_inv"), (".weight", ".weight_scale_inv")])
@pytest.mark.parametrize("wide", [320, 128, 40])
def test_blocks_of_each_half(build, daemon, tmp_path, wide, spelling):
    """Stacked after quantising: so many rows of scales more, and the bits and the key of single tensors."""
    values = config("deepseek_v3", 256, 64, moe=wide, experts=6, top_k=2, shared=1, layers=2)
    single = checkpoint(build, tmp_path / "single", values, 3)
    stacked = checkpoint(build, tmp_path / "stacked", values, 3)
    plan = ("--tp", 2, "--multiple-of", 8)
    first = daemon.ok("load", single, "--name", "h", *plan)
    want = bits(daemon, tmp_path, "h", "deepseek_v3", layers=2)
    daemon.ok("unload", "h", "--drop-cache")
    rewrite(stacked, lambda tensors: fuse_with_own_blocks(tensors, "model.layers.1.mlp.experts", 6, spelling))
    done = daemon.ok("load", stacked, "--name", "h", *plan)
    assert (done["cache"], done["model_key"]) == ("miss", first["model_key"])
    assert bits(daemon, tmp_path, "h", "deepseek_v3", layers=2) == want
    daemon.ok("unload", "h", "--drop-cache")


def test_a_change_touches_its_layer_alone(build, make_daemon, tmp_path):
    """Of the layers whose tensors are in one file one has changed: its slots are prepared again, and differ on one rank."""
    daemon, twin = make_daemon(), make_daemon()
    _, fused = single_and_fused(build, tmp_path, "qwen3_5_moe", 256, 384, 256)
    first = daemon.ok("load", fused, "--name", "m", *PLAN)
    tensor = prefix("qwen3_5_moe", 2) + "mlp.experts.gate_up_proj"
    (file,) = {Weights(fused).files[tensor]}
    header, start = safetensors.read_header(file)
    at = start + header[tensor]["data_offsets"][0] + (4 * 512 + 256 + 150) * 256 + 9  # expert 4, up, row 150: of the second of three ranks
    with open(file, "r+b") as data:
        data.seek(at)
        (code,) = data.read(1)
        data.seek(at)
        data.write(bytes([code ^ 0x80]))
    before = checksums(daemon, first["model_key"])
    changed = daemon.ok("load", fused, "--name", "m", *PLAN)
    assert changed["cache"] == "partial" and changed["model_key"] != first["model_key"]
    assert f"weights changed: {os.path.basename(file)}" in changed["reason"] and "3 of 9 slots were missing" in changed["reason"], changed
    now = checksums(daemon, changed["model_key"])
    assert [b[:2] for a, b in zip(before, now) if a != b] == [(2, 1)], (before, now)
    assert 0 < changed["bytes_sent"] < first["bytes_sent"] / 2
    twin.ok("load", fused, "--name", "m", *PLAN)
    assert bits(daemon, tmp_path, "m", "qwen3_5_moe") == bits(twin, tmp_path, "m", "qwen3_5_moe")
    # Restarted, it comes back by a glance at the files, without a weight read.
    daemon.stop()
    daemon.start()
    daemon.wait_for("the model", lambda: daemon.ok("model", "show", "m")["state"] == "ready")
    again = daemon.ok("load", fused, "--name", "m", *PLAN)
    assert (again["cache"], again["bytes_read"], again["bytes_sent"]) == ("hit", 0, 0), again
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []


def test_from_memory_and_lost_slots(build, make_daemon, tmp_path):
    """prepare --from takes fused tensors, and one layer's slots are prepared again from the files."""
    daemon = make_daemon()
    _, fused = single_and_fused(build, tmp_path, "qwen3_5_moe", 256, 384, 256)
    first = daemon.ok("load", fused, "--name", "m", *PLAN)
    want, slots = bits(daemon, tmp_path, "m", "qwen3_5_moe"), checksums(daemon, first["model_key"])
    daemon.ok("invalidate-cache", "--model", "m")
    layer = {name: tensor for name, tensor in Weights(fused).tensors.items() if name.startswith(prefix("qwen3_5_moe", 1))}
    safetensors.write(str(tmp_path / "layer"), layer)
    daemon.ok("prepare", "m", "--from", tmp_path / "layer", "--layer", 1)
    assert checksums(daemon, first["model_key"]) == [s for s in slots if s[0] == 1]
    daemon.ok("prepare", "m", "--layer", 2)
    daemon.ok("prepare", "m")
    assert checksums(daemon, first["model_key"]) == slots
    assert bits(daemon, tmp_path, "m", "qwen3_5_moe") == want


def test_a_cut_load_goes_on(build, make_daemon, tmp_path):
    """One of two ducks stands still until the load is cancelled; what the other has finished is not prepared again."""
    daemon, twin = make_daemon(ducks=2, fleet="heartbeat_s = 30"), make_daemon(ducks=2)
    values = config("qwen3_5_moe", 256, 384, moe=256, experts=6, top_k=2, shared=1, layers=8)
    fused = checkpoint(build, tmp_path, values, 11, "--fused", "--shard-bytes", "1M")
    plan = ("--name", "m", "--tp", 2, "--multiple-of", 64)
    whole = twin.ok("load", fused, *plan)
    with stopped(daemon.duck_pids()[1]):
        job = daemon.ok("load", fused, *plan, "--no-wait")["job"]
        daemon.wait_for("finished slots", lambda: sum(s["state"] == "finished" for s in daemon.ok("cache", "list")["slots"]) >= 1)
        daemon.ok("job", "cancel", job)
    daemon.ctl("job", "wait", job)
    again = daemon.ok("load", fused, *plan)
    assert again["cache"] == "partial" and again["model_key"] == whole["model_key"], again
    assert 0 < again["bytes_sent"] < whole["bytes_sent"]
    assert checksums(daemon, again["model_key"]) == checksums(twin, whole["model_key"])
    assert bits(daemon, tmp_path, "m", "qwen3_5_moe") == bits(twin, tmp_path, "m", "qwen3_5_moe")
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []


def test_mtp_layers(build, daemon, tmp_path):
    values = config("qwen3_5_moe", 256, 384, moe=128, experts=4, top_k=2, shared=1, layers=2, mtp=1)
    path = checkpoint(build, tmp_path, values, 9, "--mtp", "--fused")
    weights = Weights(path)
    assert "mtp.layers.0.mlp.experts.gate_up_proj" in weights.tensors
    daemon.ok("load", path, "--name", "mtp", *PLAN[:2], "--multiple-of", 32, "--mtp")
    x, ids, routing = inputs(tmp_path / "in", 1, 256, 5, 3)
    exact = weights.layer("qwen3_5_moe", 2, x, ids, routing, 1, 4, layers=2)
    compare(daemon, "mtp", 2, tmp_path / "in", tmp_path, exact, "mtp", ("decode", "prefill"))
    daemon.ok("unload", "mtp", "--drop-cache")


# ---- refusals

STACK = "model.language_model.layers.1.mlp.experts."
GATE_UP, DOWN = STACK + "gate_up_proj", STACK + "down_proj"
SHARED = "model.language_model.layers.1.mlp.shared_expert."


def put(name, dtype, array):
    return lambda tensors: tensors.__setitem__(name, safetensors.Tensor(dtype, array(tensors)))


def poke(name, place, value):
    def change(tensors):
        array = tensors[name].array.copy()
        array[place] = value
        tensors[name] = safetensors.Tensor(tensors[name].dtype, array)
    return change


def swapped(name):
    return put(name, "F8_E4M3", lambda tensors: tensors[name].array.transpose(0, 2, 1))


SPOILED = {
    "transposed": (swapped(GATE_UP), "UNSUPPORTED_MODEL", [GATE_UP, "[6, 200, 256]", "stored [in, out]", "qwen3_5_moe", "[6, 256, 200]"]),
    "down_transposed": (swapped(DOWN), "UNSUPPORTED_MODEL", [DOWN, "[6, 128, 200]", "stored [in, out]", "[6, 200, 128]"]),
    "an_expert_short": (put(GATE_UP, "F8_E4M3", lambda t: t[GATE_UP].array[:5]), "BAD_CHECKPOINT",
                        [GATE_UP, "[5, 256, 200]", "config.json asks for [6, 256, 200]"]),
    "flat": (put(GATE_UP, "F8_E4M3", lambda t: t[GATE_UP].array.reshape(-1, 200)), "BAD_CHECKPOINT", [GATE_UP, "[1536, 200]"]),
    "half": (put(GATE_UP, "F8_E4M3", lambda t: t[GATE_UP].array[:, :128]), "BAD_CHECKPOINT", [GATE_UP, "[6, 128, 200]"]),
    "bf16": (put(GATE_UP, "BF16", lambda t: np.zeros((6, 256, 200), np.uint16)), "BAD_CHECKPOINT", [GATE_UP, "is BF16, expected F8_E4M3"]),
    "no_scale": (lambda t: t.pop(DOWN + "_scale_inv"), "BAD_CHECKPOINT", ["missing scale tensor " + DOWN + "_scale_inv"]),
    "per_channel": (lambda t: t.__setitem__(DOWN + "_scale", t.pop(DOWN + "_scale_inv")), "BAD_CHECKPOINT",
                    ["missing scale tensor " + DOWN + "_scale_inv", DOWN + "_scale", "per-tensor or per-channel"]),
    "per_tensor": (put(GATE_UP + "_scale_inv", "F32", lambda t: np.ones((6, 1, 1))), "BAD_CHECKPOINT",
                   [GATE_UP + "_scale_inv", "[6, 1, 1]", "[6, 2, 2] blocks"]),
    "scale_transposed": (put(DOWN + "_scale_inv", "F32", lambda t: np.ones((6, 1, 2))), "BAD_CHECKPOINT",
                         [DOWN + "_scale_inv", "[6, 1, 2]", "[6, 2, 1] blocks"]),
    "scale_flat": (put(DOWN + "_scale_inv", "F32", lambda t: np.ones((12, 1))), "BAD_CHECKPOINT", [DOWN + "_scale_inv", "[12, 1]"]),
    "scale_of_one_expert": (put(DOWN + "_scale_inv", "F32", lambda t: np.ones((2, 1))), "BAD_CHECKPOINT", [DOWN + "_scale_inv", "[2, 1]"]),
    "scale_infinite": (poke(GATE_UP + "_scale_inv", (3, 1, 0), 0x7F80), "BAD_CHECKPOINT",
                       [GATE_UP + "_scale_inv", "[1, 0] of expert 3", "inf"]),
    "nan": (poke(GATE_UP, (4, 200, 7), 0x7F), "BAD_CHECKPOINT", [f"tensor {GATE_UP}: expert 4, row 200, column 7", "NaN"]),
    "nan_in_down": (poke(DOWN, (5, 7, 100), 0xFF), "BAD_CHECKPOINT", [f"tensor {DOWN}: expert 5, row 7, column 100", "NaN"]),
    "nan_in_shared": (poke(SHARED + "gate_up_proj.weight", (130, 3), 0xFF), "BAD_CHECKPOINT",
                      [f"tensor {SHARED}gate_up_proj.weight: row 130, column 3", "NaN"]),
    "no_down": (lambda t: (t.pop(DOWN), t.pop(DOWN + "_scale_inv")), "BAD_CHECKPOINT",
                ["missing weight tensor " + STACK + "0.down_proj.weight or " + DOWN]),
    "no_gate_up": (lambda t: (t.pop(GATE_UP), t.pop(GATE_UP + "_scale_inv")), "BAD_CHECKPOINT",
                   ["missing weight tensor " + STACK + "0.gate_proj.weight or " + GATE_UP]),
    "twice": (put(STACK + "4.up_proj.weight", "F8_E4M3", lambda t: np.zeros((128, 200), np.uint8)), "BAD_CHECKPOINT",
              ["both", GATE_UP, STACK + "4.up_proj.weight"]),
    "two_spellings": (put(GATE_UP + ".weight", "F8_E4M3", lambda t: t[GATE_UP].array), "BAD_CHECKPOINT",
                      ["both", GATE_UP, GATE_UP + ".weight"]),
    "stacks_of_gate_alone": (lambda t: (t.pop(GATE_UP), t.__setitem__(STACK + "gate_proj", t.pop(DOWN))), "UNSUPPORTED_MODEL",
                             ["missing weight tensor", STACK + "gate_proj", "in a way that is not known of this family"]),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_refused(build, daemon, tmp_path, spoil):
    change, name, words = SPOILED[spoil]
    path = checkpoint(build, tmp_path, config("qwen3_5_moe", 200, 192, moe=128, experts=6, top_k=2, shared=1, layers=2), 2, "--fused")
    rewrite(path, change)
    start = time.monotonic()
    daemon.refused("load", path, "--name", spoil, "--tp", 2, "--multiple-of", 64, name=name, words=words)
    assert time.monotonic() - start < SLOW
    assert all(slot["layer"] == 0 for slot in daemon.ok("cache", "list")["slots"])  # which is whole, when a NaN behind it is found
    daemon.ctl("unload", spoil, "--drop-cache")


def set_config(path, where, **changes):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        values = json.load(file)
    for key, value in changes.items():
        if value is None:
            del where(values)[key]
        else:
            where(values)[key] = value
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file)


# Family, fused?, config's change, words.
KINDS = {
    "fused_of_none": ("qwen3_moe", True, {"num_experts": 0},
                      ["layer 1 is one dense MLP in config.json (num_experts is 0)", "model.layers.1.mlp.experts.down_proj in model",
                       "has shape [6, 200, 128]", "num_experts should be 6"]),
    "single_of_none": ("qwen3_moe", False, {"num_experts": 0},
                       ["layer 1 is one dense MLP in config.json (num_experts is 0)",
                        "model.layers.1.mlp.experts.0.down_proj.weight in model", "num_experts should be 6"]),
    "nested": ("qwen3_5_moe", True, {"num_experts": 0}, ["layer 1 is one dense MLP", "num_experts is 0", DOWN, "num_experts should be 6"]),
    "not_said": ("qwen3_moe", True, {"num_experts": None}, ["config.json", "looked for num_experts, n_routed_experts, num_local_experts"]),
    "dense_by_list": ("qwen3_moe", True, {"mlp_only_layers": [0, 1]},
                      ["layer 1 is one dense MLP", "by decoder_sparse_step and mlp_only_layers; num_experts is 6", "[6, 200, 128]"]),
    "moe_by_list": ("qwen3_moe", True, {"mlp_only_layers": []},
                    ["layer 0 has experts in config.json (by decoder_sparse_step and mlp_only_layers; num_experts is 6)",
                     "one dense MLP: model.layers.0.mlp.down_proj.weight in model"]),
    "too_many": ("deepseek_v3", False, {"n_routed_experts": 7},
                 ["missing weight tensor model.layers.1.mlp.experts.6.gate_proj.weight; n_routed_experts is 7 in config.json, "
                  "but there are 6"]),
    "a_list_of_none": ("glm_moe_dsa", True, {"n_routed_experts": 0},
                       ["n_routed_experts is 0, but layer 1 has experts by first_k_dense_replace, moe_layer_freq and mlp_layer_types"]),
    "a_family_of_none": ("minimax_m2", False, {"num_local_experts": 0}, ["num_local_experts is 0, but layer 0 has experts by model_type"]),
}


@pytest.mark.parametrize("case", KINDS)
def test_another_kind_than_config_says(build, daemon, tmp_path, case):
    """The field of config.json is named, and what is there of the layer."""
    family, fused, changes, words = KINDS[case]
    values = config(family, 200, 192, moe=128, experts=6, top_k=2, shared=1, layers=2)
    path = checkpoint(build, tmp_path, values, 2, *(("--fused",) if fused else ()))
    set_config(path, lambda values: values.get("text_config", values), **changes)
    daemon.refused("load", path, "--name", case, "--tp", 2, "--multiple-of", 64, name="BAD_CHECKPOINT", words=words)
    daemon.ctl("unload", case, "--drop-cache")


# Rows of gate and of up; how many rows of scales; words.
UNKNOWN = {
    "cannot_tell": (72, 2, ["72 rows", "cannot be known"]), "nor_here": (248, 4, ["248 rows", "cannot be known"]),
    "within_a_tile": (40, 1, ["after 40 rows", "multiple of 16"]), "more": (320, 7, ["[3, 5, 2] or [3, 6, 2] blocks"]),
    "fewer": (320, 4, ["[3, 5, 2] or [3, 6, 2] blocks"]),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_scales_of_halves_that_cannot_be_known(build, daemon, tmp_path, case):
    wide, blocks, words = UNKNOWN[case]
    values = config("qwen3_moe", 200, 64, moe=wide, experts=3, top_k=2, layers=2)
    path = checkpoint(build, tmp_path, values, 2, "--fused")
    name = "model.layers.1.mlp.experts.gate_up_proj_scale_inv"
    rewrite(path, put(name, "F32", lambda t: np.ones((3, blocks, 2))))
    known = case in ("more", "fewer")
    daemon.refused("load", path, "--name", case, "--tp", 1, "--multiple-of", 8, name="BAD_CHECKPOINT" if known else "UNSUPPORTED_MODEL",
                   words=[name, *words])


def test_a_family_without_such_a_table(build, daemon, tmp_path):
    values = config("minimax_m2", 128, 0, moe=128, experts=2, top_k=1, layers=1)
    path = checkpoint(build, tmp_path, values, 1, "--fused")  # the family has no row: single tensors
    assert "model.layers.0.block_sparse_moe.experts.1.w1.weight" in Weights(path).tensors
    fused = "model.layers.0.block_sparse_moe.experts.gate_up_proj"

    def change(tensors):
        tensors[fused] = safetensors.Tensor("F8_E4M3", np.zeros((2, 256, 128), np.uint8))
        for name in [name for name in tensors if ".experts.0." in name]:
            del tensors[name]
    rewrite(path, change)
    daemon.refused("load", path, name="UNSUPPORTED_MODEL", words=[fused, "all experts in one tensor", "128x128 block FP8"])
