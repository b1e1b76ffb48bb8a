"""Model families as their publishers describe them: config.json, tensor names, and a layer's output in float64. Written from the models'
own code, not from fp9's table."""
import glob
import os

import numpy as np

from . import safetensors

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
DEEPSEEK = ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")
FAMILIES = ("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", *DEEPSEEK, "mimo_v2_flash", "minimax_m2")
MOE = tuple(f for f in FAMILIES if f not in ("qwen3", "qwen3_5"))


def config(family, hidden, dense, moe=0, experts=0, top_k=0, shared=0, layers=2, mtp=0):
    """Layer 0 is dense where the family can have that. shared: how many shared experts."""
    base = {"model_type": family, "hidden_act": "silu", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": dense}
    more = {"num_experts_per_tok": top_k, "moe_intermediate_size": moe}
    if family in ("qwen3_moe", "qwen3_5_moe"):
        base.update(more, num_experts=experts, mlp_only_layers=[0] if layers > 1 else [])
    if family == "qwen3_5_moe":
        base["shared_expert_intermediate_size"] = moe if shared else 0
    if family in DEEPSEEK or family == "mimo_v2_flash":
        base.update(more, n_routed_experts=experts, n_shared_experts=shared or None, first_k_dense_replace=1, moe_layer_freq=1,
                    num_nextn_predict_layers=mtp)
    if family == "mimo_v2_flash":
        del base["first_k_dense_replace"]
        base["moe_layer_freq"] = [0] + [1] * (layers - 1)
    if family == "glm_moe_dsa":
        base["mlp_layer_types"] = ["dense"] + ["sparse"] * (layers - 1)
    if family == "minimax_m2":
        base.update(num_experts_per_tok=top_k, num_local_experts=experts, intermediate_size=moe, shared_intermediate_size=0)
    if family.startswith("qwen3_5"):
        base["mtp_num_hidden_layers"] = mtp
        base = {"model_type": family, "text_config": {**base, "model_type": family + "_text"}}
    return {**base, "quantization_config": BLOCKS}


def is_moe(family, layer):
    return family == "minimax_m2" or (family in MOE and layer > 0)


def prefix(family, layer, layers=None):
    """layers: of the model without MTP; a layer behind them is one for MTP."""
    if family.startswith("qwen3_5"):
        if layers is not None and layer >= layers:
            return f"mtp.layers.{layer - layers}."
        return f"model.language_model.layers.{layer}."
    return f"model.layers.{layer}."


def matrices(family, layer, expert, layers=None):
    """Names of gate, up and down without .weight. expert: a number, None for the dense MLP, "shared"."""
    at = prefix(family, layer, layers)
    if family == "minimax_m2":
        return [f"{at}block_sparse_moe.experts.{expert}.{w}" for w in ("w1", "w3", "w2")]
    if expert is None:
        at += "mlp"
    elif expert == "shared":
        at += "mlp.shared_expert" if family.startswith("qwen") else "mlp.shared_experts"
    else:
        at += f"mlp.experts.{expert}"
    return [f"{at}.{part}_proj" for part in ("gate", "up", "down")]


class Weights:
    """A checkpoint's tensors and what they mean."""

    def __init__(self, path):
        self.path = path
        self.tensors, self.files = {}, {}
        self.table = safetensors.e4m3_table()
        for shard in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
            found = safetensors.read(shard)
            self.tensors.update(found)
            self.files.update(dict.fromkeys(found, shard))

    def matrix(self, name):
        if name + ".weight" not in self.tensors:
            return self.part(name)
        return self.scaled(self.tensors[name + ".weight"].array, safetensors.values(self.tensors[name + ".weight_scale_inv"]))

    def scaled(self, codes, scale):
        rows, columns = codes.shape
        return self.table[codes] * np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :columns]

    def part(self, name):
        """Of a fused tensor: [2 * out, in] for gate and up, [experts, ..] for a stack, parameters without a module or with one."""
        block, which = name.rsplit(".", 1)
        above, _, last = block.rpartition(".")
        expert = int(last) if last.isdigit() else None
        base = f"{block if expert is None else above}.{'down_proj' if which == 'down_proj' else 'gate_up_proj'}"
        weight, scale = next(pair for pair in ((base, base + "_scale_inv"), (base + ".weight", base + ".weight_scale_inv"))
                             if pair[0] in self.tensors)
        codes, scales = self.tensors[weight].array, safetensors.values(self.tensors[scale])
        if expert is not None:
            codes, scales = codes[expert], scales[expert]
        if which == "down_proj":
            return self.scaled(codes, scales)
        half = codes.shape[0] // 2
        mine = slice(half) if which == "gate_proj" else slice(half, None)
        if scales.shape[0] == -(-codes.shape[0] // 128):  # blocks run on from gate into up
            return self.scaled(codes, scales)[mine]
        blocks = scales.shape[0] // 2
        return self.scaled(codes[mine], scales[:blocks] if which == "gate_proj" else scales[blocks:])

    def mlp(self, names, x, neurons=slice(None)):
        """Of all tokens [T, H], by the intermediate neurons that are asked for."""
        gate, up, down = (self.matrix(name) for name in names)
        g, u = x @ gate[neurons].T, x @ up[neurons].T
        return (g / (1 + np.exp(-g)) * u) @ down[:, neurons].T

    def layer(self, family, layer, x, ids=None, weights=None, shared=0, experts=None, neurons=slice(None), layers=None):
        """ids [T, k]; a gated shared expert is number `experts`."""
        if ids is None:
            return self.mlp(matrices(family, layer, None, layers), x, neurons)
        y = np.zeros_like(x)
        for expert in sorted(set(ids.ravel().tolist())):
            if expert < 0:
                continue
            name = matrices(family, layer, "shared" if expert == experts else expert, layers)
            share = np.where(ids == expert, weights.astype(np.float64), 0).sum(1)
            y += share[:, None] * self.mlp(name, x, neurons)
        if shared and (family in DEEPSEEK or family == "mimo_v2_flash"):
            y += self.mlp(matrices(family, layer, "shared", layers), x)
        return y
