"""Tensor files (safetensors): what decode and prefill of fp9ctl read and write."""
import json
import mmap
import os
import struct
import tempfile

from . import arrays
from .errors import Error

HEADER_MAX = 100_000_000


class Tensor:
    """dtype "BF16" (as its bits), "F32" or "I32", shape, and data: an array of that shape, see arrays.view()."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), data


def _bad(path, why):
    return Error("BAD_REQUEST", f"{path}: {why}", {"file": str(path)})


def _span(path, name, entry, size):
    """(begin, end, count of elements) of a header's entry, checked; BAD_REQUEST for what is no safetensors."""
    try:
        begin, end = entry["data_offsets"]
        shape, dtype = entry["shape"], entry["dtype"]
        whole = all(type(number) is int and number >= 0 for number in [begin, end, *shape])
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(path, f"{name}: no dtype, shape and data_offsets") from error
    if not whole or not begin <= end <= size:
        raise _bad(path, f"{name}: data_offsets {entry['data_offsets']} are not within the {size} bytes of data")
    count = 1
    for length in shape:
        count *= length
    if dtype in arrays.DTYPES and count * arrays.DTYPES[dtype][0] != end - begin:
        raise _bad(path, f"{name}: {dtype} {shape} does not have {end - begin} bytes")
    return begin, end


def read_tensors(path):
    """name -> Tensor of a file's BF16, F32 and I32 tensors (others are left out), mapped and not copied."""
    try:
        with open(path, "rb") as file:
            total = os.fstat(file.fileno()).st_size
            if total < 8:
                raise _bad(path, f"{total} bytes are no safetensors file")
            data = memoryview(mmap.mmap(file.fileno(), total, access=mmap.ACCESS_READ))
    except OSError as error:
        raise Error("NO_SUCH" if isinstance(error, FileNotFoundError) else "BAD_REQUEST", f"{path}: {error.strerror}") from error
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(HEADER_MAX, total - 8):
        raise _bad(path, f"a header of {length} bytes in a file of {total}")
    try:
        header = json.loads(bytes(data[8:8 + length]))
        if not isinstance(header, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its header is no JSON object: {error}") from error
    found, body = {}, data[8 + length:]
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = _span(path, name, entry, len(body))
        if entry["dtype"] in arrays.DTYPES:
            if (8 + length + begin) % arrays.DTYPES[entry["dtype"]][0]:
                raise _bad(path, f"{name}: its data is not aligned")
            found[name] = Tensor(entry["dtype"], entry["shape"], arrays.view(body[begin:end], entry["dtype"], tuple(entry["shape"])))
    return found


def write_tensors(path, tensors):
    """Writes name -> (dtype, shape, buffer) whole or not at all: into a temporary name beside it, then renamed."""
    header, parts, at = {}, [], 0
    for name, (dtype, shape, values) in tensors.items():
        memory = arrays.raw(values, dtype, name)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + memory.nbytes]}
        _span(path, name, header[name], at + memory.nbytes)
        at += memory.nbytes
        parts.append(memory)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=os.path.basename(path) + ".", delete=False) as file:
        try:
            file.write(struct.pack("<Q", len(text)) + text)
            for part in parts:
                file.write(part)
            file.flush()
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
