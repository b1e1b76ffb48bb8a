"""tp 32 with 32 real ducks, in the shapes of public models whose slices cut blocks there: each rank's share and the sum against float64."""
import json
import os
import re

import numpy as np
import pytest

from support import safetensors
from support.daemon import Daemon
from support.families import Weights, config, is_moe
from support.model import ROOT, output
from test_shapes import BF16_BOUND, F32_BOUND, checkpoint, compare, error_of, held, inputs

CONFIGS = os.path.join(ROOT, "tests", "data", "configs")
TP = 32


@pytest.fixture(scope="module")
def wide(build, tmp_path_factory):
    """32 ducks, of which a sanitized one takes 50 MB without doing anything."""
    one = Daemon(build, tmp_path_factory.mktemp("wide"), ducks=TP, memory="64M").start()
    yield one
    one.stop()


def public(name, **changes):
    with open(os.path.join(CONFIGS, name + ".json"), encoding="utf-8") as file:
        return {**json.load(file), **changes}


# Configuration; family, experts, top_k, shared; multiple_of; by layer the neurons of each rank.
SHAPES = {
    "qwen3-30b-a3b": (public("qwen3-30b-a3b-fp8", num_hidden_layers=2, num_experts=5, num_experts_per_tok=3), 5, 3, 0, 8, [24, 24]),
    "qwen3-235b-a22b": (public("qwen3-235b-a22b-fp8", num_hidden_layers=1, num_experts=3, num_experts_per_tok=2), 3, 2, 0, 16, [48]),
    "qwen3-0.6b": ({**public("qwen3-0.6b", num_hidden_layers=2), "quantization_config": config("qwen3", 8, 8)["quantization_config"]},
                   0, 0, 0, 32, [96, 96]),
    # The widths of DeepSeek-V3.2, whose dense slice is 4.5 blocks; another hidden size, so that it fits a small machine.
    "deepseek-v3.2": (public("deepseek-v3.2", num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=3, num_experts_per_tok=2,
                             hidden_size=448), 3, 2, 1, 64, [576, 64]),
    # Units that do not come out even: 768 = 96 units of 8 + 1 neuron, 1536 + 8 = 97 units of 16.
    "uneven": (config("deepseek_v3", 576, 769, moe=1544, experts=3, top_k=2, shared=1), 3, 2, 1, 8, None),
}


def by_rank(weights, begins):
    """Cuts down to what makes output row r the share of rank r % 32 alone."""
    for name, tensor in weights.tensors.items():
        if not re.search(r"\.down_proj\.weight$", name):
            continue
        ranks = np.searchsorted(begins[tensor.array.shape[1]], np.arange(tensor.array.shape[1]), side="right") - 1
        tensor.array = np.where(np.arange(tensor.array.shape[0])[:, None] % TP == ranks[None, :], tensor.array, 0).astype(np.uint8)
    for shard in set(weights.files.values()):
        safetensors.write(shard, {name: weights.tensors[name] for name, file in weights.files.items() if file == shard})


def cut(wide_of_layer, multiple_of):
    """First neuron of each rank: runs of whole units, as even as can be, longer ones first."""
    units = -(-wide_of_layer // multiple_of)
    sizes = [units // TP + (rank < units % TP) for rank in range(TP)]
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]) * multiple_of


@pytest.mark.parametrize("name", SHAPES)
def test_each_rank_and_the_sum(build, wide, tmp_path, name):
    values, experts, top_k, shared, multiple_of, neurons = SHAPES[name]
    family, hidden = values["model_type"], values["hidden_size"]
    path = checkpoint(build, tmp_path, values, 32)
    plan = wide.ok("plan", path, "--tp", TP, "--multiple-of", multiple_of)
    assert len(plan["ranks"]) == TP
    weights = Weights(path)
    layers = values["num_hidden_layers"]
    widths = {weights.tensors[tensor].array.shape[1] for tensor in weights.tensors if tensor.endswith("down_proj.weight")}
    begins = {width: cut(width, multiple_of) for width in widths}
    if neurons:
        assert sorted({width // TP for width in widths}) == sorted(set(neurons))
        assert {rank["neurons"] for rank in plan["ranks"]} == {neurons[-1]}
    load = ("load", path, "--name", name, "--tp", TP, "--multiple-of", multiple_of)
    done = wide.ok(*load)
    assert held(wide, done["model_key"]) == sorted(rank["bytes"] for rank in plan["ranks"])
    moe = [is_moe(family, layer) or values.get("mlp_only_layers") == [] for layer in range(layers)]
    given = [inputs(tmp_path / f"in{layer}", layer, hidden, *((experts, top_k) if moe[layer] else (0, 0))) for layer in range(layers)]
    for layer, (x, ids, routing) in enumerate(given):
        exact = weights.layer(family, layer, x, ids, routing, shared, experts)
        compare(wide, name, layer, tmp_path / f"in{layer}", tmp_path, exact, name, ("decode", "prefill"))
    by_rank(weights, begins)
    wide.ok(*load)
    for layer, (x, ids, routing) in enumerate(given):
        exact = weights.layer(family, layer, x, ids, routing, shared, experts)
        for kind in ("decode", "prefill"):
            for bound, more in ((F32_BOUND, ("--partials", "f32", "--output-dtype", "f32")), (BF16_BOUND, ())):
                wide.run(kind, name, layer, tmp_path / f"in{layer}", tmp_path / "out", "", *more)
                got = output(str(tmp_path / "out"))[0]
                for rank in range(TP):
                    error = error_of(got[:, rank::TP], exact[:, rank::TP])
                    assert error < bound, f"{name}, {kind} of layer {layer}, rank {rank}: {error:.3g}"
    wide.ok("unload", name, "--drop-cache")
