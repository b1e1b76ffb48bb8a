"""What plan and load say to the config.json of public models, families of all names, and layers for multi-token prediction."""
import json
import os
import re
import shutil
import time

import numpy as np
import pytest

from support import safetensors
from support.daemon import SLOW
from support.families import DEEPSEEK, FAMILIES, Weights, config, is_moe, matrices, prefix
from support.model import ROOT
from test_shapes import checkpoint, compare, inputs

CONFIGS = os.path.join(ROOT, "tests", "data", "configs")

# Block FP8 of a known family: plan gives the widest tp for units of 128, and of 64; a load gets as far as looking for shards.
TAKEN = {
    "qwen3-30b-a3b-fp8": ("qwen3_moe", 6, 12), "qwen3-235b-a22b-fp8": ("qwen3_moe", 12, 24), "qwen3-32b-fp8": ("qwen3", 200, 400),
    "deepseek-r1": ("deepseek_v3", 16, 32), "deepseek-v3": ("deepseek_v3", 16, 32), "deepseek-v3.2": ("deepseek_v32", 16, 32),
    "kimi-k2-instruct": ("kimi_k2", 16, 32), "glm-5-fp8": ("glm_moe_dsa", 16, 32), "glm-5.2-fp8": ("glm_moe_dsa", 16, 32),
    "mimo-v2-flash": ("mimo_v2_flash", 16, 32), "minimax-m2.5": ("minimax_m2", 12, 24), "minimax-m2.7": ("minimax_m2", 12, 24),
}
# No quantization_config: the plan is that of an FP8 conversion and says so; a load is refused.
UNQUANTIZED = {
    "qwen3-0.6b": ("qwen3", 24), "qwen3-1.7b": ("qwen3", 48), "qwen3-8b": ("qwen3", 96),
    "qwen3-coder-480b-a35b-instruct": ("qwen3_moe", 20), "qwen3.5-35b-a3b": ("qwen3_5_moe", 4), "qwen3.5-397b-a17b": ("qwen3_5_moe", 8),
    "deepseek-v3.1-nvfp4": ("deepseek_v3", 16),
}
# Neither: refused by plan and load alike, naming what it is.
REFUSED = {
    "qwen3-32b-fp8-static-pertensor": ["modelopt FP8", "no weight_block_size, so scales are per-tensor or per-channel", "128x128"],
    "kimi-k2.5": ["compressed-tensors pack-quantized", "int4 group 32", "128x128"],
    "deepseek-v4-flash": ["deepseek_v4", "experts fp4"], "deepseek-v4-flash-fp8": ["deepseek_ref"], "step-3.7-flash-fp8": ["step3p7"],
}


def test_every_config_is_in_one_list():
    names = {name.removesuffix(".json") for name in os.listdir(CONFIGS)}
    assert names == set(TAKEN) | set(UNQUANTIZED) | set(REFUSED)


@pytest.fixture
def folder(tmp_path):
    def make(name):
        shutil.copy(os.path.join(CONFIGS, name + ".json"), tmp_path / "config.json")
        return tmp_path
    return make


def quick(call, *args, **more):
    start = time.monotonic()
    answer = call(*args, **more)
    assert time.monotonic() - start < SLOW, f"{args}: took {time.monotonic() - start:.2f} s"
    return answer


@pytest.mark.parametrize("name", TAKEN)
def test_taken(daemon, folder, name):
    family, widest, finer = TAKEN[name]
    plan = quick(daemon.ok, "plan", folder(name), "--ducks", 1024)
    assert plan["family"] == family and "note" in plan and "fewer ducks" in plan["note"]
    assert [row["tp_max"] for row in plan["legal"][:2]] == [widest, finer]
    quick(daemon.refused, "load", folder(name), name="BAD_CHECKPOINT", words=["safetensors"])


@pytest.mark.parametrize("name", UNQUANTIZED)
def test_unquantized(daemon, folder, name):
    family, widest = UNQUANTIZED[name]
    plan = quick(daemon.ok, "plan", folder(name), "--ducks", 1024)
    assert (plan["family"], plan["legal"][0]["tp_max"], plan["loadable"]) == (family, widest, False)
    assert "no quantization_config" in plan["note"]
    quick(daemon.refused, "load", folder(name), name="UNSUPPORTED_MODEL", words=["no quantization_config", "none, weights bfloat16"])


@pytest.mark.parametrize("name", REFUSED)
def test_refused(daemon, folder, name):
    for command in ("plan", "load"):
        quick(daemon.refused, command, folder(name), name="UNSUPPORTED_MODEL", words=REFUSED[name])


def test_quantization_beside_the_config(daemon, folder):
    """modelopt's exports tell it in a file of their own."""
    path = folder("deepseek-v3.1-nvfp4")
    (path / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}))
    for command in ("plan", "load"):
        quick(daemon.refused, command, path, name="UNSUPPORTED_MODEL", words=["hf_quant_config.json", "NVFP4"])


BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
OTHERS = {
    "per_tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, ["fp8", "per-tensor or per-channel"]),
    "per_tensor_modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, ["modelopt FP8"]),
    "per_channel": ({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {"weights": {
        "num_bits": 8, "type": "float", "strategy": "channel"}}}}, ["compressed-tensors float-quantized float8 channel"]),
    "per_channel_fbgemm": ({"quant_method": "fbgemm_fp8"}, ["fbgemm_fp8"]),
    "int4_gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, ["gptq"]),
    "int4_awq": ({"quant_method": "awq", "bits": 4}, ["awq"]),
    "int4_packed": ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}}, ["pack-quantized int4 group 32"]),
    "fp4_mx": ({"quant_method": "mxfp4"}, ["mxfp4"]),
    "fp4_nv": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ["modelopt NVFP4"]),
    "mxfp8": ({"quant_method": "mxfp8", "weight_block_size": [1, 32]}, ["mxfp8"]),
    "other_blocks": ({**BLOCK, "weight_block_size": [1, 128]}, ["weight_block_size[0] is 1"]),
    "e5m2": ({**BLOCK, "fmt": "e5m2"}, ["e5m2"]),
    "bnb": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ["bitsandbytes"]),
    "none": (None, ["no quantization_config", "weights bfloat16"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_quantizations(daemon, tmp_path, name):
    """By the configuration alone, for each family: no shard is there to be looked at."""
    quantization, words = OTHERS[name]
    for family in FAMILIES:
        values = {**config(family, 256, 256, moe=128, experts=4, top_k=2), "torch_dtype": "bfloat16", "quantization_config": quantization}
        (tmp_path / "config.json").write_text(json.dumps(values))
        quick(daemon.refused, "load", tmp_path, name="UNSUPPORTED_MODEL", words=["128x128 block FP8", *words])


# The configuration says block FP8, the files do not.
def per_channel(tensors, base):
    scale = tensors.pop(base + ".weight_scale_inv")
    tensors[base + ".weight_scale"] = safetensors.Tensor(scale.dtype, np.ones((tensors[base + ".weight"].array.shape[0], 1)))
    return "BAD_CHECKPOINT", [base + ".weight_scale", "per-tensor or per-channel"]


def per_tensor(tensors, base):
    tensors[base + ".weight_scale_inv"] = safetensors.Tensor("F32", np.ones(()))
    return "BAD_CHECKPOINT", [base + ".weight_scale_inv has shape [1]", "[1, 2] blocks of 128x128"]


def bf16(tensors, base):
    tensors[base + ".weight"] = safetensors.Tensor("BF16", np.zeros((128, 256)))
    return "BAD_CHECKPOINT", [base + ".weight is BF16, expected F8_E4M3"]


def fp4(tensors, base):
    tensors[base + ".weight"] = safetensors.Tensor("U8", np.zeros((128, 128)))
    return "BAD_CHECKPOINT", [base + ".weight is U8, expected F8_E4M3"]


def int4_packed(tensors, base):
    del tensors[base + ".weight"]
    tensors[base + ".weight_packed"] = safetensors.Tensor("I32", np.zeros((128, 32)))
    return "UNSUPPORTED_MODEL", ["there is " + base + ".weight_packed", "INT4", "128x128 block FP8"]


def int4_gptq(tensors, base):
    del tensors[base + ".weight"]
    tensors[base + ".qweight"] = safetensors.Tensor("I32", np.zeros((32, 128)))
    return "UNSUPPORTED_MODEL", ["there is " + base + ".qweight", "GPTQ", "128x128 block FP8"]


@pytest.mark.parametrize("spoil", [per_channel, per_tensor, bf16, fp4, int4_packed, int4_gptq], ids=lambda spoil: spoil.__name__)
def test_files_that_are_no_block_fp8(build, daemon, tmp_path, spoil):
    path = checkpoint(build, tmp_path, config("deepseek_v3", 256, 256, moe=128, experts=4, top_k=2, shared=1), 3)
    weights = Weights(path)
    (shard,) = set(weights.files.values())
    name, words = spoil(weights.tensors, "model.layers.1.mlp.experts.2.up_proj")
    safetensors.write(shard, weights.tensors)
    os.remove(os.path.join(path, "model.safetensors.index.json"))
    quick(daemon.refused, "load", path, "--name", "other", "--tp", 2, "--multiple-of", 64, name=name, words=words)
    assert all(slot["layer"] != 1 for slot in daemon.ok("cache", "list")["slots"])


# ---- names

@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_values(build, daemon, tmp_path, family):
    """fp9-mkckpt writes the names of the publisher, and each layer is what they mean."""
    values = config(family, 256, 384, moe=192, experts=6, top_k=2, shared=1, layers=3)
    path = checkpoint(build, tmp_path, values, 5)
    gated = family == "qwen3_5_moe"
    plain = family in DEEPSEEK or family == "mimo_v2_flash"
    weights = Weights(path)
    want = set()
    for layer in range(3):
        experts = [*range(6), *(["shared"] if gated or plain else [])] if is_moe(family, layer) else [None]
        for expert in experts:
            want.update(f"{name}.{end}" for name in matrices(family, layer, expert) for end in ("weight", "weight_scale_inv"))
    have = set(weights.tensors)
    routers = have - want
    assert want <= have and all(re.search(r"gate\.weight$", name) for name in routers), routers
    done = daemon.ok("load", path, "--name", "named", "--tp", 3, "--multiple-of", 64)
    shown = daemon.ok("model", "show", "named")
    assert (shown["family"], shown["experts"]) == (family, 0 if family in ("qwen3", "qwen3_5") else 6 + gated)
    for layer in range(3):
        experts, top_k = (6 + gated, 2 + gated) if is_moe(family, layer) else (0, 0)
        x, ids, routing = inputs(tmp_path / "in", layer, 256, experts, top_k)
        exact = weights.layer(family, layer, x, ids, routing, 1, 6)
        compare(daemon, "named", layer, tmp_path / "in", tmp_path, exact, family, ("decode", "prefill"))
    assert done["cache"] == "miss"
    assert daemon.ok("cache", "verify", "named", "--full")["bad"] == []
    daemon.ok("unload", "named", "--drop-cache")


def test_a38_silu_is_on_the_gate(build, daemon, tmp_path):
    """gate, up and down of MiniMax are w1, w3 and w2: with gate at +1 and up at -1 a swap is seen."""
    for family in ("qwen3", "deepseek_v3", "qwen3_5_moe", "minimax_m2"):
        values = config(family, 128, 128, moe=128, experts=2, top_k=1, shared=1, layers=2)
        path = checkpoint(build, tmp_path / family, values, 1, "--scale-dtype", "f32")
        weights = Weights(path)
        for layer in range(2):
            for expert in [0, 1, *(["shared"] if family in ("deepseek_v3", "qwen3_5_moe") else [])] if is_moe(family, layer) else [None]:
                for name, code in zip(matrices(family, layer, expert), (0x38, 0xB8, 0x38)):
                    weights.tensors[name + ".weight"].array = np.full_like(weights.tensors[name + ".weight"].array, code)
                    scale = weights.tensors[name + ".weight_scale_inv"]
                    scale.array = np.full_like(scale.array, 2.0 ** -7)
        for shard in set(weights.files.values()):
            safetensors.write(shard, {name: weights.tensors[name] for name, file in weights.files.items() if file == shard})
        daemon.ok("load", path, "--name", "swap", "--tp", 2, "--multiple-of", 64)
        layer, experts = (1, 2) if is_moe(family, 1) else (1, 0)
        x, ids, routing = inputs(tmp_path / "in", 3, 128, experts, 1)
        exact = weights.layer(family, layer, x, ids, routing, 1, 2)
        gate, up, down = matrices(family, layer, int(ids[0, 0]) if experts else None)
        right, wrong = (weights.mlp(names, x[:1]) for names in ((gate, up, down), (up, gate, down)))
        assert np.linalg.norm(right - wrong) > 0.01 * np.linalg.norm(right), "a swap would not be seen"
        compare(daemon, "swap", layer, tmp_path / "in", tmp_path, exact, family)
        daemon.ok("unload", "swap", "--drop-cache")


# ---- layers for multi-token prediction

@pytest.mark.parametrize("family", ["deepseek_v3", "glm_moe_dsa", "qwen3_5_moe"])
def test_mtp(build, make_daemon, tmp_path, family):
    daemon = make_daemon(ducks=3)
    gated = family == "qwen3_5_moe"
    values = config(family, 128, 256, moe=64, experts=4, top_k=2, shared=1, layers=2, mtp=1)
    path = checkpoint(build, tmp_path, values, 9, "--mtp")
    weights = Weights(path)
    behind = prefix(family, 2, layers=2)
    assert any(name.startswith(behind) for name in weights.tensors), behind
    done = daemon.ok("load", path, "--name", "m", "--tp", 2, "--multiple-of", 32)
    assert daemon.ok("model", "show", "m")["layers"] == 2
    x, ids, routing = inputs(tmp_path / "in", 1, 128, 4 + gated, 2 + gated)
    daemon.refused("decode", "m", "--layer", 2, "--input", tmp_path / "in", "--output", tmp_path / "out", name="BAD_SHAPE", words=["2"])
    more = daemon.ok("load", path, "--name", "m", "--tp", 2, "--multiple-of", 32, "--mtp")
    assert more["model_key"] != done["model_key"] and "MTP layers added" in more["reason"], more
    assert 0 < more["bytes_sent"] < done["bytes_sent"], "layers 0 and 1 were there"
    shown = daemon.ok("model", "show", "m")
    assert (shown["layers"], shown["mtp_layers"], shown["layer_kinds"]) == (3, 1, "dmm")
    plan = daemon.ok("plan", path, "--tp", 2, "--multiple-of", 32, "--mtp")
    assert plan["bytes_total"] > daemon.ok("plan", path, "--tp", 2, "--multiple-of", 32)["bytes_total"]
    exact = weights.layer(family, 2, x, ids, routing, 1, 4, layers=2)
    compare(daemon, "m", 2, tmp_path / "in", tmp_path, exact, family, ("decode", "prefill"))
    assert daemon.ok("cache", "verify", "m", "--full")["bad"] == []
    # A load that is refused changes nothing of that.
    daemon.refused("load", path, "--name", "m", "--strategy", "tp2xep4", name="BAD_SHAPE", words=["8 ducks"])
    daemon.ok("prepare", "m")
    kept = daemon.ok("model", "show", "m")
    assert (kept["layers"], kept["model_key"], kept["state"]) == (3, shown["model_key"], "ready"), kept
    # A registered model comes back with them.
    daemon.stop()
    daemon.start()
    daemon.wait_for("the model", lambda: daemon.ok("model", "show", "m")["state"] == "ready")
    assert daemon.ok("model", "show", "m")["layers"] == 3
    compare(daemon, "m", 2, tmp_path / "in", tmp_path, exact, family)
    # After an invalidation it is said how it was, also by a later fp9d; and that brings it back so.
    daemon.ok("invalidate-cache", "--model", "m")
    said = "load it again, before: --tp 2 --multiple-of 32 --strategy tp --mtp"
    for _ in range(2):
        gone = daemon.ok("model", "show", "m")
        assert (gone["state"], gone["strategy"]) == ("unloaded", "tp") and gone["error"]["message"].endswith("; " + said), gone
        daemon.stop()
        daemon.start()
    back = daemon.ok("load", path, "--name", "m", *said.partition("before: ")[2].split())
    assert back["model_key"] == more["model_key"], back
    less = daemon.ok("load", path, "--name", "m", "--tp", 2, "--multiple-of", 32)
    assert (less["model_key"], less["cache"]) == (done["model_key"], "hit"), less
    assert daemon.ok("model", "show", "m")["layers"] == 2


def test_mtp_where_there_is_none(build, daemon, tmp_path):
    values = config("deepseek_v3", 128, 256, moe=64, experts=4, top_k=2, layers=2, mtp=1)
    path = checkpoint(build, tmp_path, values, 9)  # without their tensors
    daemon.refused("load", path, "--name", "none", "--mtp", name="BAD_CHECKPOINT", words=["layer 2 is missing", "model.layers.2."])
    values["num_nextn_predict_layers"] = 0
    path = checkpoint(build, tmp_path / "zero", values, 9)
    for command in ("load", "plan"):
        daemon.refused(command, path, "--mtp", name="UNSUPPORTED_MODEL", words=["num_nextn_predict_layers is 0"])
    path = checkpoint(build, tmp_path / "minimax", config("minimax_m2", 128, 0, moe=64, experts=4, top_k=2), 9)
    daemon.refused("load", path, "--mtp", name="UNSUPPORTED_MODEL", words=["family minimax_m2 has no MTP layers"])


def test_a34_layers_behind_the_last_are_ignored(build, daemon, tmp_path):
    """Two of three layers are the model's; and a layer 61 below the last one is a layer like any other."""
    values = config("deepseek_v3", 64, 64, moe=8, experts=2, top_k=1, layers=64, mtp=1)
    path = checkpoint(build, tmp_path, values, 4, "--mtp")
    weights = Weights(path)
    daemon.ok("load", path, "--name", "deep", "--tp", 1, "--multiple-of", 8)
    shown = daemon.ok("model", "show", "deep")
    assert (shown["layers"], shown["layer_kinds"]) == (64, "d" + "m" * 63)
    x, ids, routing = inputs(tmp_path / "in", 1, 64, 2, 1)
    exact = weights.layer("deepseek_v3", 61, x, ids, routing, 0, 2)
    compare(daemon, "deep", 61, tmp_path / "in", tmp_path, exact, "layer 61")
    values["num_hidden_layers"], values["num_nextn_predict_layers"] = 2, 2 ** 31
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file)
    daemon.ok("load", path, "--name", "deep", "--tp", 1, "--multiple-of", 8)
    assert daemon.ok("model", "show", "deep")["layers"] == 2
    values["num_hidden_layers"] = 67  # A35
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file)
    quick(daemon.refused, "load", path, "--name", "long", name="BAD_CHECKPOINT",
          words=["layer 65 is missing", "num_hidden_layers is 67", "model.layers.65."])
    daemon.ok("unload", "deep", "--drop-cache")
