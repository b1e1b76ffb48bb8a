"""fp9d's own memory is bounded whatever the model: headers are streamed, weights pass through in pieces."""
import json
import os
import struct

import pytest
from support import safetensors
from support.daemon import SANITIZED
from support.model import MODEL, make_checkpoint

LIMIT = 512 << 20
pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's own memory is not fp9d's")

# The numbers of Kimi K2 in a family that this version knows.
HUGE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 7168, "vocab_size": 163840,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_experts": 384, "num_experts_per_tok": 8,
    "norm_topk_prob": True, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}


def peak(daemon):
    with open(f"/proc/{daemon.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def below(daemon, what):
    found = peak(daemon)
    print(f"fp9d's memory at most {found / 1e6:.0f} MB: {what}")
    assert found < LIMIT, f"{what}: {found / 1e6:.0f} MB"


def pad_header(path, length):
    """Tensors of no elements at the end of a file's data, until its header has `length` bytes (a multiple of 8)."""
    header, start = safetensors.read_header(path)
    end = os.path.getsize(path) - start
    with open(path, "rb") as file:
        data = file.read()[start:]
    text = json.dumps(header, separators=(",", ":")).encode()[:-1]
    rest = f'":{{"dtype":"U8","shape":[0],"data_offsets":[{end},{end}]}}'
    name = "model.visual.blocks.{:07d}.unused" + "e" * 16
    entry = len(f',"{name.format(0)}{rest}')
    count = (length - len(text) - 1) // entry
    entries = ",".join(f'"{name.format(i)}{rest}' for i in range(count)).encode()
    text += (b"," if header else b"") + entries + b"}"
    safetensors.write_raw(path, text + b" " * (length - len(text)), data)
    return count + len(header)


def test_header_of_100_mb(make_daemon, tmp_path):
    """The longest header that the format allows, of a million tensors: what they were is told by what fp9d keeps, not by a tree of JSON."""
    path = tmp_path / "long"
    path.mkdir()
    tensors = {}
    for name in sorted(os.listdir(MODEL)):
        if name.startswith("model") and name.endswith(".safetensors"):
            tensors.update(safetensors.read(os.path.join(MODEL, name)))
    safetensors.write(str(path / "model.safetensors"), tensors)
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as source, open(path / "config.json", "w", encoding="utf-8") as file:
        file.write(source.read())
    count = pad_header(str(path / "model.safetensors"), 100_000_000)
    assert 800_000 < count <= 1 << 20, count
    daemon = make_daemon(ducks=1)
    done = daemon.ok("load", path, "--name", "m", "--tp", 1)
    below(daemon, f"a header of 100 MB, {count} tensors")
    plain = daemon.ok("load", MODEL, "--name", "plain", "--tp", 1)
    assert (plain["cache"], plain["model_key"]) == ("hit", done["model_key"])


def test_many_long_headers(make_daemon, tmp_path):
    """One header of that length is enough; of how many there may be is a limit of the whole directory."""
    path = tmp_path / "many"
    path.mkdir()
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as source, open(path / "config.json", "w", encoding="utf-8") as file:
        file.write(source.read())
    safetensors.write(str(path / "a.safetensors"), {})
    pad_header(str(path / "a.safetensors"), 100_000_000)
    for name in "bcdefgh":
        os.link(path / "a.safetensors", path / f"{name}.safetensors")
    daemon = make_daemon(ducks=1)
    daemon.refused("load", path, "--name", "m", name="BAD_CHECKPOINT",
                   words=["headers hold at least", "1048576 tensors", "134217728 bytes"])
    below(daemon, "many headers of 100 MB")


def sparse_shards(folder, config, shards):
    """A checkpoint that takes no room on the disk: weights and scales are holes, which read as zeros."""
    hidden, wide = config["hidden_size"], config["moe_intermediate_size"]
    matrices = []  # (name, rows, columns)
    for layer in range(config["num_hidden_layers"]):
        for expert in range(config["num_experts"]):
            at = f"model.layers.{layer}.mlp.experts.{expert}."
            matrices += [(f"{at}gate_proj", wide, hidden), (f"{at}up_proj", wide, hidden), (f"{at}down_proj", hidden, wide)]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    index, total = {}, 0
    per_file = -(-len(matrices) // shards)
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        header, at = {}, 0
        for matrix, rows, columns in matrices[shard * per_file:(shard + 1) * per_file]:
            for key, dtype, shape, size in ((".weight", "F8_E4M3", [rows, columns], rows * columns),
                                            (".weight_scale_inv", "F32", [-(-rows // 128), -(-columns // 128)],
                                             -(-rows // 128) * -(-columns // 128) * 4)):
                header[matrix + key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
                index[matrix + key] = name
                at += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        total += at
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    return total


def test_a_model_of_a_terabyte(make_daemon, tmp_path):
    """All its headers and scales are read and checked before anything is sent; here nothing is: it does not fit."""
    total = sparse_shards(tmp_path / "huge", HUGE, 62)
    assert total > 1e12
    daemon = make_daemon(ducks=1, memory="64M")
    daemon.refused("load", tmp_path / "huge", "--name", "huge", "--tp", 1, name="NO_MEMORY", timeout=300)
    below(daemon, f"a checkpoint of {total / 1e12:.2f} TB opened")
    daemon.refused("load", tmp_path / "huge", "--name", "huge", "--tp", 1, name="NO_MEMORY", timeout=300)
    below(daemon, "and again")
    assert peak(daemon) < 160 << 20, "250 MB of scales are held one layer at a time"


def test_a_cold_load(make_daemon, build, tmp_path):
    """Many times what may be under way at once."""
    path = make_checkpoint(build, tmp_path, num_hidden_layers=8, hidden_size=2048, moe_intermediate_size=768, num_experts=16,
                           mlp_only_layers=[])
    daemon = make_daemon(ducks=4, memory="512M")
    done = daemon.ok("load", path, "--name", "m", "--tp", 4)
    assert done["cache"] == "miss" and done["bytes_read"] > 500e6
    below(daemon, f"{done['bytes_read'] / 1e6:.0f} MB loaded")
    assert peak(daemon) < 256 << 20, "what is under way is bounded by less than this"
