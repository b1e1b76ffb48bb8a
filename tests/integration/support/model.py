"""The trained checkpoint and its float64 reference; other checkpoints by fp9-mkckpt."""
import json
import os
import subprocess

import numpy as np

from . import safetensors
from .daemon import SLOW, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MODEL = os.path.join(ROOT, "tests", "data", "shakespeare-moe-fp8")
LAYERS = 4
MOE_LAYERS = (1, 2, 3)
EXPERTS = 8
HIDDEN = 256


class Reference:
    def __init__(self):
        self.path = os.path.join(MODEL, "reference.safetensors")
        self.tensors = safetensors.read(self.path)

    @staticmethod
    def prefix(layer):
        return f"layers.{layer}.mlp."

    def get(self, layer, what):
        tensor = self.tensors.get(self.prefix(layer) + what)
        return None if tensor is None else tensor.array

    def inputs(self, layer, tokens=64):
        """x bits, ids, weights (None for the dense layer)"""
        return tuple(None if a is None else np.ascontiguousarray(a[:tokens])
                     for a in (self.get(layer, "input"), self.get(layer, "topk_ids"), self.get(layer, "topk_weights")))

    def relative_l2(self, layer, output):
        exact = self.get(layer, "output")
        assert output.shape == exact.shape
        return float(np.linalg.norm(output - exact) / np.linalg.norm(exact))


def output(path):
    """(values as float64, bits) of fp9ctl's output file."""
    tensors = safetensors.read(path)
    assert list(tensors) == ["output"], list(tensors)
    return safetensors.values(tensors["output"]), tensors["output"].array.tobytes()


CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "vocab_size": 256, "hidden_size": 512,
    "intermediate_size": 1024, "moe_intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}


def mlp_tensors():
    """layer -> its tensors, as the trained checkpoint has them"""
    found = {}
    for name in sorted(os.listdir(MODEL)):
        if name.startswith("model") and name.endswith(".safetensors"):
            for tensor, value in safetensors.read(os.path.join(MODEL, name)).items():
                if ".mlp." in tensor:
                    found.setdefault(int(tensor.split(".")[2]), {})[tensor] = value
    assert sorted(found) == list(range(LAYERS))
    return found


def make_checkpoint(build, target, seed=1, **changes):
    """A checkpoint with random weights in the shape of CONFIG with some keys changed."""
    os.makedirs(target, exist_ok=True)
    config = os.path.join(target, "like.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump({**CONFIG, **changes}, file)
    out = os.path.join(target, "checkpoint")
    subprocess.run([program(build, "fp9-mkckpt"), "--like", config, "--seed", str(seed), "--out", out], check=True,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=120 * SLOW)
    return out


def random_input(path, seed, hidden, experts=0, top_k=0, tokens=4, **wrong):
    """An input file for fp9ctl; wrong replaces tensors."""
    random = np.random.default_rng(seed)
    tensors = {"input": safetensors.Tensor("BF16", safetensors.f32_to_bf16(random.standard_normal((tokens, hidden)).astype(np.float32)))}
    if experts:
        ids = np.stack([random.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int32)
        tensors["topk_ids"] = safetensors.Tensor("I32", ids)
        tensors["topk_weights"] = safetensors.Tensor("F32", random.random((tokens, top_k)).astype(np.float32))
    tensors.update(wrong)
    safetensors.write(path, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    return path
