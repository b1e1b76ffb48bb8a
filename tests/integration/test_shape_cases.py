"""Numbers and shapes that others get wrong in public, one by one, through a real fp9d. docs/testing.md has the list."""
import json
import os
import tempfile

import numpy as np
import pytest

from support import safetensors
from support.families import Weights, config, matrices
from support.freeze import stopped
from support.model import output
from test_shapes import checkpoint, compare, inputs


def rewrite(weights):
    for shard in set(weights.files.values()):
        safetensors.write(shard, {name: weights.tensors[name] for name, file in weights.files.items() if file == shard})


def dense(build, folder, hidden, wide):
    path = checkpoint(build, folder, config("qwen3", hidden, wide, layers=1), 21, "--scale-dtype", "f32")
    return path, Weights(path), matrices("qwen3", 0, None)


def test_a23_scales_multiply(build, daemon, tmp_path):
    """2^-7 everywhere, despite the name _inv."""
    path, weights, names = dense(build, tmp_path, 192, 320)
    codes = {}
    for name in names:
        scale = weights.tensors[name + ".weight_scale_inv"]
        scale.array = np.full_like(scale.array, 2.0 ** -7)
        codes[name] = weights.table[weights.tensors[name + ".weight"].array] / 128
    rewrite(weights)
    x, _, _ = inputs(tmp_path / "in", 1, 192, 0, 0)
    gate, up, down = (codes[name] for name in names)
    g = x @ gate.T
    daemon.ok("load", path, "--name", "scales", "--tp", 3, "--multiple-of", 64)
    compare(daemon, "scales", 0, tmp_path / "in", tmp_path, (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T, "2^-7")
    daemon.ok("unload", "scales", "--drop-cache")


def test_a27_every_code_counts(build, daemon, tmp_path):
    """down has each finite code in a row, up picks one neuron a token: 254 tokens read out what each code is worth, next to another."""
    hidden = wide = 256
    path, weights, names = dense(build, tmp_path, hidden, wide)
    gate, up, down = (weights.tensors[name + ".weight"] for name in names)
    finite = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    row = np.resize(finite, wide)
    gate.array = np.eye(wide, hidden, dtype=np.uint8) * 0x38
    up.array = np.eye(wide, hidden, dtype=np.uint8) * 0x38
    down.array = np.stack([np.roll(row, shift) for shift in range(hidden)])
    for name in names:
        scale = weights.tensors[name + ".weight_scale_inv"]
        scale.array = np.ones_like(scale.array)
    rewrite(weights)
    x = np.eye(254, hidden, dtype=np.float32)
    safetensors.write(str(tmp_path / "in"), {"input": safetensors.Tensor("BF16", safetensors.f32_to_bf16(x))})
    daemon.ok("load", path, "--name", "codes", "--tp", 4, "--multiple-of", 64)
    for kind in ("decode", "prefill"):
        daemon.run(kind, "codes", 0, tmp_path / "in", tmp_path / "out", "", "--partials", "f32", "--output-dtype", "f32")
        got, _ = output(str(tmp_path / "out"))
        one = 1 / (1 + np.exp(-1.0))
        exact = weights.table[down.array[:, :254]].T * one
        # One product and nothing added: exact but for the rounding of silu(1).
        assert np.all(np.abs(got - exact) <= np.abs(exact) * 2.0 ** -22), kind
    daemon.ok("unload", "codes", "--drop-cache")


def test_a30_not_converted_is_by_whole_names(build, daemon, tmp_path):
    """"gate" in modules_to_not_convert is the router, not gate_proj; and the router is no expert."""
    values = config("minimax_m2", 128, 0, moe=64, experts=4, top_k=2, layers=1)
    path = checkpoint(build, tmp_path, values, 3)
    with open(os.path.join(path, "config.json"), encoding="utf-8") as file:
        values = json.load(file)
    values["quantization_config"]["modules_to_not_convert"] = ["gate", "mlp.gate", "e_score_correction_bias", "lm_head"]
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump(values, file)
    weights = Weights(path)
    assert any(name.endswith("block_sparse_moe.gate.weight") for name in weights.tensors)
    x, ids, routing = inputs(tmp_path / "in", 1, 128, 4, 2)
    daemon.ok("load", path, "--name", "gates", "--tp", 2, "--multiple-of", 32)
    compare(daemon, "gates", 0, tmp_path / "in", tmp_path, weights.layer("minimax_m2", 0, x, ids, routing), "gates")
    daemon.ok("unload", "gates", "--drop-cache")


@pytest.mark.parametrize("how", ["replaced", "truncated", "written"])
def test_a40_changed_during_the_load(build, make_daemon, tmp_path, how):
    """The duck stands still while the load has opened all files and cannot have read them all."""
    daemon = make_daemon(ducks=1, fleet="heartbeat_s = 30", memory="512M")
    path = checkpoint(build, tmp_path, config("qwen3", 2048, 8192, layers=3), 3, "--shard-bytes", "16M")
    with open(os.path.join(path, "model.safetensors.index.json"), encoding="utf-8") as file:
        shard = json.load(file)["weight_map"][matrices("qwen3", 2, None)[2] + ".weight"]
    last = os.path.join(path, shard)
    (duck,) = daemon.duck_pids()
    with stopped(duck):
        job = daemon.ok("load", path, "--name", "moving", "--tp", 1, "--no-wait")["job"]
        daemon.wait_for("the plan", lambda: daemon.ok("model", "show", "moving")["layers"] == 3)
        if how == "replaced":
            with open(last, "rb") as old, open(last + ".new", "wb") as new:
                new.write(old.read())
            os.replace(last + ".new", last)
        elif how == "truncated":
            os.truncate(last, os.path.getsize(last) // 2)
        else:
            with open(last, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\x01")
    daemon.refused("job", "wait", job, name="BAD_CHECKPOINT", words=[shard])
    assert daemon.ok("model", "show", "moving")["state"] == "failed"
    finished = {slot["layer"] for slot in daemon.ok("cache", "list")["slots"] if slot["state"] == "finished"}
    assert 2 not in finished, "the layer of the changed shard was marked finished"


@pytest.mark.parametrize("wide,tp,multiple_of", [(256, 4, 64), (1152, 2, 64), (256, 8, 32), (384, 3, 128)])
def test_b03_b04_each_block_has_its_scale(build, make_daemon, tmp_path, wide, tp, multiple_of):
    """A power of two of its own for every block, so that a wrong one is wrong by a factor of two at least."""
    daemon = make_daemon(ducks=tp)
    path, weights, names = dense(build, tmp_path, 256, wide)
    for number, name in enumerate(names):
        scale = weights.tensors[name + ".weight_scale_inv"]
        exponents = (np.arange(scale.array.size).reshape(scale.array.shape) + number) % 5 - 12
        scale.array = (2.0 ** exponents).astype(np.float32)
    rewrite(weights)
    x, _, _ = inputs(tmp_path / "in", 1, 256, 0, 0)
    daemon.ok("load", path, "--name", "blocks", "--tp", tp, "--multiple-of", multiple_of)
    compare(daemon, "blocks", 0, tmp_path / "in", tmp_path, weights.layer("qwen3", 0, x), f"{wide} over {tp}", ("decode", "prefill"))


def test_b01_refused_before_any_byte(build, daemon, tmp_path):
    path = checkpoint(build, tmp_path, config("qwen3_moe", 128, 768, moe=768, experts=2, top_k=1, layers=1), 1, "--sparse")
    sent = daemon.ok("metrics")["bytes_sent"]
    daemon.refused("load", path, "--tp", 8, "--multiple-of", 128, name="BAD_SHAPE",
                   words=["768 = 6 units of 128: tp is at most 6", "64 allows 12", "32 allows 24"])
    assert daemon.ok("metrics")["bytes_sent"] == sent


def test_b10_896_experts_16_active(build, daemon, tmp_path):
    values = config("kimi_k2", 64, 64, moe=16, experts=896, top_k=16, shared=1, layers=2)
    path = checkpoint(build, tmp_path, values, 8)
    daemon.ok("load", path, "--name", "many", "--tp", 2, "--multiple-of", 8)
    x, ids, routing = inputs(tmp_path / "in", 2, 64, 896, 16, tokens=5)
    ids[0, 0], ids[1, :2] = 895, (0, 895)
    tensors = safetensors.read(str(tmp_path / "in"))
    tensors["topk_ids"] = safetensors.Tensor("I32", ids)
    safetensors.write(str(tmp_path / "in"), tensors)
    exact = Weights(path).layer("kimi_k2", 1, x, ids, routing, 1, 896)
    compare(daemon, "many", 1, tmp_path / "in", tmp_path, exact, "896 experts", ("decode", "prefill"))
    wrong = ((0, 4, "num_experts_per_tok is 0"), (5, 4, "num_experts_per_tok is 5, must be a whole number from 1 to 4"),
             (65, 100, "from 1 to 64"))
    for top_k, experts, words in wrong:
        (tmp_path / "config.json").write_text(json.dumps(config("kimi_k2", 64, 64, moe=16, experts=experts, top_k=top_k)))
        daemon.refused("plan", tmp_path, name="BAD_CHECKPOINT", words=[words])
    daemon.ok("unload", "many", "--drop-cache")


def test_b11_b13_no_leftovers(build, daemon, tmp_path):
    """A large job fills every buffer; then all tokens go to one expert, or to none."""
    values = config("deepseek_v3", 128, 128, moe=96, experts=8, top_k=4, shared=0, layers=2)
    path = checkpoint(build, tmp_path, values, 8)
    weights = Weights(path)
    daemon.ok("load", path, "--name", "left", "--tp", 3, "--multiple-of", 32)
    x, ids, routing = inputs(tmp_path / "big", 3, 128, 8, 4, tokens=200)
    small = safetensors.f32_to_bf16(x[:64].astype(np.float32))
    for label, chosen in (("one", 0), ("none", -1), ("last", 7)):
        compare(daemon, "left", 1, tmp_path / "big", tmp_path, weights.layer("deepseek_v3", 1, x, ids, routing), "big", ("prefill",))
        only = np.full((64, 4), -1, np.int32)
        only[:, 2] = chosen
        safetensors.write(str(tmp_path / "in"), {"input": safetensors.Tensor("BF16", small), "topk_ids": safetensors.Tensor("I32", only),
                                                 "topk_weights": safetensors.Tensor("F32", routing[:64])})
        exact = weights.layer("deepseek_v3", 1, x[:64], only, routing[:64])
        for kind in ("prefill", "decode"):
            daemon.run(kind, "left", 1, tmp_path / "in", tmp_path / "out", "", "--partials", "f32", "--output-dtype", "f32")
            got, _ = output(str(tmp_path / "out"))
            assert np.linalg.norm(got - exact) <= 2.0 ** -20 * np.linalg.norm(exact), f"{kind}, {label}"
            if chosen < 0:
                assert not got.any(), "no expert, and yet something came out"
    daemon.ok("unload", "left", "--drop-cache")


def test_planned_as_measured_elsewhere(daemon):
    """The published tokens/s of ducks with one core, from their kernels' Gparam/s and the host's time a token, within 15 %."""
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "configs")
    runs = [("qwen3-235b-a22b-fp8", 12, 128, 3860, 75000, 2.577), ("qwen3-235b-a22b-fp8", 24, 64, 3560, 75000, 4.253),
            ("qwen3-30b-a3b-fp8", 6, 128, 3860, 36000, 8.736), ("qwen3-30b-a3b-fp8", 12, 64, 3560, 36000, 12.994),
            ("qwen3-30b-a3b-fp8", 24, 32, 3270, 36000, 17.397)]
    for name, tp, multiple_of, mparam, host, measured in runs:
        with tempfile.TemporaryDirectory() as path:
            os.symlink(os.path.join(folder, name + ".json"), os.path.join(path, "config.json"))
            plan = daemon.ok("plan", path, "--tp", tp, "--multiple-of", multiple_of, "--mparam-rate", mparam, "--host-us", host,
                             "--step-us", 1, "--link-rate", "1000T")
            assert abs(plan["predicted_tokens_per_second"] / measured - 1) < 0.15, (name, tp, plan["predicted_tokens_per_second"])
            assert plan["bottleneck"] == ("host" if tp == 24 and "30b" in name else "duck compute"), plan
            assert plan["head_link_bytes_per_token"] == tp * plan["link_bytes_per_token"] and plan["rebuild_seconds"] > 0
            slow = daemon.ok("plan", path, "--tp", tp, "--multiple-of", multiple_of, "--link-rate", "1M")
            assert slow["bottleneck"] == "link" and slow["rebuild_seconds"] == pytest.approx(slow["rebuild_send_bytes"] / 2 ** 20)
