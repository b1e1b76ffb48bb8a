"""Checkpoints that are wrong: refused by name, nothing sent, and what was loaded before goes on as it was."""
import json
import os
import struct

import numpy as np
import pytest

from support import safetensors
from support.model import MODEL, output

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def holder(checkpoint, tensor):
    with open(os.path.join(checkpoint, INDEX), encoding="utf-8") as file:
        return json.load(file)["weight_map"][tensor]


def edit(checkpoint, tensor, change):
    """change(entry, header) on a tensor's header entry."""
    name = holder(checkpoint, tensor)
    safetensors.edit_header(os.path.join(checkpoint, name), lambda header: change(header[tensor], header))
    return name


def poke(checkpoint, tensor, offset, raw):
    """Overwrites bytes of a tensor's data."""
    name = holder(checkpoint, tensor)
    path = os.path.join(checkpoint, name)
    header, start = safetensors.read_header(path)
    with open(path, "r+b") as file:
        file.seek(start + header[tensor]["data_offsets"][0] + offset)
        file.write(raw)
    return name


def rewrite(checkpoint, name, change):
    """change(tensors) on all of a shard's tensors."""
    path = os.path.join(checkpoint, name)
    tensors = safetensors.read(path)
    tensors = {key: safetensors.Tensor(tensor.dtype, np.array(tensor.array)) for key, tensor in tensors.items()}
    change(tensors)
    safetensors.write(path, tensors)


GATE, UP, DOWN = ("model.layers.0.mlp.%s_proj.weight" % part for part in ("gate", "up", "down"))
EXPERT = "model.layers.2.mlp.experts.3.%s_proj.weight"


def a01(path):
    with open(os.path.join(path, SECOND), "w", encoding="utf-8") as file:
        file.write("version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4998528\n")
    return [SECOND, "LFS"]


def a03_one_byte(path):
    size = os.path.getsize(os.path.join(path, SECOND))
    _, start = safetensors.read_header(os.path.join(path, SECOND))
    os.truncate(os.path.join(path, SECOND), size - 1)
    return [SECOND, str(size - start), str(size - start - 1)]


def a03_a_megabyte(path):
    size = os.path.getsize(os.path.join(path, FIRST))
    os.truncate(os.path.join(path, FIRST), size - (1 << 20))
    return [FIRST]


def a03_in_the_header(path):
    os.truncate(os.path.join(path, FIRST), 100)
    return [FIRST]


def a03_empty(path):
    os.truncate(os.path.join(path, FIRST), 0)
    return [FIRST]


def a05_same_range(path):
    def change(entry, header):
        entry["data_offsets"] = list(header[GATE]["data_offsets"])
    return [edit(path, UP, change), GATE, UP]


def a05_partial_overlap(path):
    def change(entry, header):
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = [begin - 128, end - 128]
    return [edit(path, UP, change)]


def a06_too_small(path):
    def change(entry, header):
        entry["data_offsets"] = [0, 4]
    return [edit(path, GATE, change), GATE]


def a06_begin_after_end(path):
    def change(entry, header):
        entry["data_offsets"] = entry["data_offsets"][::-1]
    return [edit(path, GATE, change), GATE]


def a06_past_the_end(path):
    def change(entry, header):
        entry["data_offsets"] = [n + (1 << 40) for n in entry["data_offsets"]]
    return [edit(path, GATE, change), GATE]


def a06_offsets(value):
    def spoil(path):
        def change(entry, header):
            entry["data_offsets"] = value
        return [edit(path, GATE, change), GATE]
    spoil.__name__ = "a06_offsets_" + str(value).replace(" ", "")
    return spoil


def a06_huge_shape(path):
    def change(entry, header):
        entry["shape"] = [1 << 62, 1 << 62]
    return [edit(path, GATE, change), GATE]


def a09(path):
    name = holder(path, UP)

    def change(header):
        text = json.dumps(header)
        return (text[:-1] + ", " + json.dumps({UP: header[GATE]})[1:]).encode()
    safetensors.edit_header(os.path.join(path, name), change)
    return [name, UP]


def a12(path):
    os.remove(os.path.join(path, SECOND))
    return [SECOND]


def a20_dense(path):
    name = holder(path, GATE + "_scale_inv")
    rewrite(path, name, lambda tensors: tensors.pop(GATE + "_scale_inv"))
    return [GATE + "_scale_inv"]


def a20_expert(path):
    scale = EXPERT % "up" + "_scale_inv"
    rewrite(path, holder(path, scale), lambda tensors: tensors.pop(scale))
    return [scale]


def a21(shape_of, label):
    def spoil(path):
        scale = EXPERT % "down" + "_scale_inv"

        def change(tensors):
            old = tensors[scale].array
            shape = shape_of(old.shape)
            tensors[scale] = safetensors.Tensor(tensors[scale].dtype, np.resize(old, shape))
        rewrite(path, holder(path, scale), change)
        return [scale]
    spoil.__name__ = "a21_" + label
    return spoil


def a24(path):
    weight = EXPERT % "down"
    columns = 192
    poke(path, weight, 5 * columns + 7, b"\x7f")
    return [weight.removesuffix(".weight"), "5", "7"]


def a24_negative(path):
    weight = EXPERT % "gate"
    poke(path, weight, 191 * 256 + 255, b"\xff")
    return [weight.removesuffix(".weight"), "191", "255"]


def a29(value, label):
    def spoil(path):
        scale = EXPERT % "gate" + "_scale_inv"

        def change(tensors):
            tensors[scale].array.flat[1] = value
        rewrite(path, holder(path, scale), change)
        return [scale.removesuffix(".weight_scale_inv")]
    spoil.__name__ = "a29_" + label
    return spoil


def a33_int4(path):
    config(path, quantization_config={"quant_method": "compressed-tensors", "format": "pack-quantized"})
    return ["compressed-tensors"]


def config(path, **changes):
    file = os.path.join(path, "config.json")
    with open(file, encoding="utf-8") as handle:
        values = json.load(handle)
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    with open(file, "w", encoding="utf-8") as handle:
        json.dump(values, handle)


def a33_bf16(path):
    config(path, quantization_config=None)
    return ["quantization_config"]


def a32_per_tensor(path):
    config(path, quantization_config={"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static"})
    return ["128"]


def header_length(value):
    def spoil(path):
        with open(os.path.join(path, FIRST), "r+b") as file:
            file.write(struct.pack("<Q", value))
        return [FIRST]
    spoil.__name__ = f"header_length_{value:#x}"
    return spoil


def header_text(text, label):
    def spoil(path):
        safetensors.edit_header(os.path.join(path, FIRST), lambda header: text)
        return [FIRST]
    spoil.__name__ = "header_" + label
    return spoil


BAD = [
    a01, a03_one_byte, a03_a_megabyte, a03_in_the_header, a03_empty, a05_same_range, a05_partial_overlap, a06_too_small,
    a06_begin_after_end,
    a06_past_the_end, a06_offsets([0]), a06_offsets([0, 1, 2]), a06_offsets([-1, 3]), a06_offsets(["0", "4"]), a06_offsets([0.0, 4.5]),
    a06_huge_shape, a09, a12, a20_dense, a20_expert,
    a21(lambda shape: (shape[0] + 1, shape[1]), "a_row_too_many"), a21(lambda shape: (1, 4), "other_sides"),
    a21(lambda shape: (shape[0] * shape[1],), "one_dimension"), a21(lambda shape: (), "scalar"),
    a24, a24_negative, a29(0x7FC0, "nan"), a29(0x7F80, "inf"), a29(0xFF7F, "minus_3e38"),
    header_length(0), header_length(1), header_length(100_000_001), header_length(2 ** 64 - 1),
    header_text(b"[]", "array"), header_text(b"{", "cut"), header_text(b'{"a":' * 3000, "deep"), header_text(b"\xff\xfe{}", "no_utf8"),
]
FOUND_LATE = [a24, a24_negative]
UNSUPPORTED = [a33_int4, a33_bf16, a32_per_tensor]


@pytest.fixture(scope="module")
def loaded(daemon, reference, tmp_path_factory):
    """The daemon with the good model on it; gives a function that checks that it still answers with the same bits."""
    folder = tmp_path_factory.mktemp("good")
    daemon.ok("load", MODEL, "--name", "good", "--tp", 3, "--multiple-of", 64)
    first = []

    def same():
        bits = []
        for layer in (0, 2):
            daemon.run("prefill", "good", layer, reference.path, folder / "out", reference.prefix(layer))
            bits.append(output(folder / "out")[1])
        first.append(bits)
        assert bits == first[0]

    same()
    return same


def slots_of(daemon):
    return sorted((s["duck"], s["model_key"], s["layer"], s["checksum"]) for s in daemon.ok("cache", "list")["slots"])


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_refused(daemon, loaded, checkpoint, spoil):
    before = slots_of(daemon)
    words = spoil(checkpoint)
    daemon.refused("load", checkpoint, "--name", "bad", "--tp", 3, "--multiple-of", 64, name="BAD_CHECKPOINT", words=words)
    if spoil in FOUND_LATE:
        # Weights are not read before they are sent: slots that were whole by then stay as cache, and can be dropped.
        assert set(before) <= set(slots_of(daemon))
        daemon.ok("unload", "bad", "--drop-cache")
    assert slots_of(daemon) == before, "a refused checkpoint left slots on the ducks"
    loaded()


@pytest.mark.parametrize("spoil", UNSUPPORTED, ids=lambda spoil: spoil.__name__)
def test_unsupported(daemon, loaded, checkpoint, spoil):
    before = slots_of(daemon)
    words = spoil(checkpoint)
    # Before a shard is looked at: they are gone.
    os.remove(os.path.join(checkpoint, FIRST))
    os.remove(os.path.join(checkpoint, SECOND))
    daemon.refused("load", checkpoint, "--name", "bad", name="UNSUPPORTED_MODEL", words=words)
    assert slots_of(daemon) == before
    loaded()


def test_no_such_directory(daemon, loaded, tmp_path):
    daemon.refused("load", tmp_path / "nothing", name="NO_SUCH", words=["nothing"])
    loaded()


def bits_of(daemon, path, reference, folder, layer=2):
    daemon.ok("load", path, "--name", "variant", "--tp", 3, "--multiple-of", 64)
    daemon.run("prefill", "variant", layer, reference.path, folder / "out", reference.prefix(layer))
    bits = output(folder / "out")[1]
    daemon.ok("unload", "variant", "--drop-cache")
    return bits


@pytest.fixture(scope="module")
def good_bits(daemon, loaded, reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bits")
    daemon.run("prefill", "good", 2, reference.path, folder / "out", reference.prefix(2))
    return output(folder / "out")[1]


def test_a14_extra_file_is_ignored(daemon, loaded, checkpoint, reference, tmp_path, good_bits):
    tensors = safetensors.read(os.path.join(checkpoint, SECOND))
    safetensors.write(os.path.join(checkpoint, "consolidated.safetensors"),
                      {name: safetensors.Tensor(t.dtype, np.zeros_like(t.array)) for name, t in tensors.items()})
    assert bits_of(daemon, checkpoint, reference, tmp_path) == good_bits
    assert "consolidated.safetensors" in daemon.log(), "the ignored file is not in the log"
    loaded()


def test_a15_one_file_without_index(daemon, loaded, checkpoint, reference, tmp_path, good_bits):
    tensors = {}
    for name in (FIRST, SECOND):
        tensors.update(safetensors.read(os.path.join(checkpoint, name)))
        os.remove(os.path.join(checkpoint, name))
    os.remove(os.path.join(checkpoint, INDEX))
    safetensors.write(os.path.join(checkpoint, "model.safetensors"), tensors)
    assert bits_of(daemon, checkpoint, reference, tmp_path) == good_bits


def test_a16_any_shard_name(daemon, loaded, checkpoint, reference, tmp_path, good_bits):
    with open(os.path.join(checkpoint, INDEX), encoding="utf-8") as file:
        index = json.load(file)
    for number, name in enumerate((FIRST, SECOND)):
        os.rename(os.path.join(checkpoint, name), os.path.join(checkpoint, f"model.safetensors-0000{number + 1}-of-00002.safetensors"))
    index["weight_map"] = {tensor: f"model.safetensors-0000{1 if name == FIRST else 2}-of-00002.safetensors"
                           for tensor, name in index["weight_map"].items()}
    with open(os.path.join(checkpoint, INDEX), "w", encoding="utf-8") as file:
        json.dump(index, file)
    assert bits_of(daemon, checkpoint, reference, tmp_path) == good_bits


def test_a11_unaligned_and_reversed(daemon, loaded, checkpoint, reference, tmp_path, good_bits):
    """Entries in reverse order, an odd header length, and 4 KB of spaces."""
    for name in (FIRST, SECOND):
        path = os.path.join(checkpoint, name)
        header, start = safetensors.read_header(path)
        with open(path, "rb") as file:
            data = file.read()[start:]
        text = json.dumps(dict(reversed(header.items()))).encode() + b" " * 4096
        text += b" " * (1 - len(text) % 2)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)
    assert bits_of(daemon, checkpoint, reference, tmp_path) == good_bits


def test_a17_scale_types(daemon, loaded, checkpoint, reference, tmp_path, good_bits):
    """The same scales as F32 give the same bits; F16 can hold them only where they are in its range, so there ones are used."""
    def to_f32(tensors):
        for name, tensor in tensors.items():
            if name.endswith("_scale_inv"):
                tensors[name] = safetensors.Tensor("F32", safetensors.bf16_to_f32(tensor.array))
    for name in (FIRST, SECOND):
        rewrite(checkpoint, name, to_f32)
    assert bits_of(daemon, checkpoint, reference, tmp_path) == good_bits

    results = []
    for dtype in ("F32", "BF16", "F16"):
        def powers(tensors):
            for name, tensor in tensors.items():
                if name.endswith("_scale_inv"):
                    exponents = np.arange(tensor.array.size).reshape(tensor.array.shape) % 3 - 7
                    exact = (2.0 ** exponents).astype(np.float32)
                    tensors[name] = safetensors.Tensor(dtype, safetensors.f32_to_bf16(exact) if dtype == "BF16" else exact)
        for name in (FIRST, SECOND):
            rewrite(checkpoint, name, powers)
        results.append(bits_of(daemon, checkpoint, reference, tmp_path))
    assert results[0] == results[1] == results[2] != good_bits


def test_a26_minus_zero(daemon, loaded, checkpoint, reference, tmp_path):
    """A matrix of 0x80 codes contributes nothing."""
    weights = []
    for codes in (b"\x00", b"\x80"):
        for expert in range(8):
            poke(checkpoint, f"model.layers.2.mlp.experts.{expert}.down_proj.weight", 0, codes * (256 * 192))
        weights.append(bits_of(daemon, checkpoint, reference, tmp_path))
    assert weights[0] == weights[1] == bytes(len(weights[0]))
