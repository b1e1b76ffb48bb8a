"""safetensors files in plain Python and numpy, written for tests: the writer can also write what no sane writer would."""
import json
import os
import struct

import numpy as np

# BF16 and F8_E4M3 are kept as their bits.
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "BF16": np.dtype("<u2"), "F8_E4M3": np.dtype("u1"),
          "F16": np.dtype("<f2"), "I64": np.dtype("<i8"), "U8": np.dtype("u1")}


class Tensor:
    def __init__(self, dtype, array):
        self.dtype = dtype
        self.array = np.ascontiguousarray(array, dtype=DTYPES[dtype])


def read_header(path):
    """(header, offset of the data)"""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length


def read(path):
    """name -> Tensor"""
    header, start = read_header(path)
    with open(path, "rb") as file:
        data = file.read()
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(data, DTYPES[entry["dtype"]], (end - begin) // DTYPES[entry["dtype"]].itemsize, start + begin)
            found[name] = Tensor(entry["dtype"], array.reshape(entry["shape"]))
    return found


def write(path, tensors):
    header, at, parts = {}, 0, []
    for name, tensor in tensors.items():
        raw = tensor.array.tobytes()
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.array.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        parts.append(raw)
    write_raw(path, json.dumps(header).encode(), b"".join(parts))


def write_raw(path, header_text, data):
    """Any header text, any data: for files that are wrong on purpose."""
    header_text += b" " * (-len(header_text) % 8)
    new = path + ".new"
    with open(new, "wb") as file:
        file.write(struct.pack("<Q", len(header_text)) + header_text + data)
    os.replace(new, path)


def edit_header(path, change):
    """change(header) edits the parsed header in place (or gives other bytes for its text); the data stays."""
    header, start = read_header(path)
    with open(path, "rb") as file:
        data = file.read()[start:]
    text = change(header)
    write_raw(path, text if isinstance(text, bytes) else json.dumps(header).encode(), data)


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values):
    """Round to nearest even; no NaN expected."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def values(tensor):
    """A BF16, F32 or F64 tensor as float64."""
    if tensor.dtype == "BF16":
        return bf16_to_f32(tensor.array).astype(np.float64)
    return tensor.array.astype(np.float64)


def e4m3_table():
    """The 256 codes as float64 (NaN for 0x7f and 0xff)."""
    table = np.zeros(256)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        value = mantissa * 2.0 ** -9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if code & 0x7F == 0x7F:
            value = np.nan
        table[code] = -value if code & 0x80 else value
    return table
