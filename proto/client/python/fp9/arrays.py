"""Memory as arrays: numpy's where numpy is installed, memoryviews of the same memory otherwise; and BF16, which neither of them knows."""
import array
import struct

from .errors import Error

try:
    import numpy
except ImportError:
    numpy = None

# name in the protocol -> bytes of an element, format of memoryview and struct, formats taken from callers
DTYPES = {"BF16": (2, "H", "Hhe"), "F32": (4, "f", "f"), "I32": (4, "i", "il")}


def view(memory, dtype, shape):
    """`memory` (a memoryview of bytes) as an array of that type and shape; nothing is copied. BF16 is there as its bits, uint16."""
    size, letter, _ = DTYPES[dtype]
    count = 1
    for length in shape:
        count *= length
    part = memory[:count * size]
    if numpy:
        return numpy.frombuffer(part, numpy.dtype("=" + {"H": "u2", "f": "f4", "i": "i4"}[letter])).reshape(shape)
    return part.cast(letter, shape) if count else part.cast(letter)


def raw(values, dtype, name):
    """The bytes of a caller's array, not copied. BAD_DTYPE, BAD_SHAPE when it cannot be a tensor of that type."""
    size, letter, taken = DTYPES[dtype]
    try:
        memory = memoryview(values)
    except (TypeError, ValueError) as error:
        raise Error("BAD_DTYPE", f"{name} is no buffer ({type(values).__name__}): an array of {dtype} elements is right") from error
    kind = memory.format.lstrip("@=<")
    if kind not in ("B", "b", "c") and (memory.itemsize != size or kind not in taken):
        hint = "; fp9.to_bf16() makes it from floats" if dtype == "BF16" else ""
        raise Error("BAD_DTYPE", f"{name} has elements of format {memory.format!r}, {memory.itemsize} bytes each; {dtype} is right{hint}",
                    {"tensor": name})
    if not memory.c_contiguous:
        raise Error("BAD_SHAPE", f"{name} is not contiguous in row-major order", {"tensor": name})
    return memory.cast("B") if memory.nbytes else memoryview(b"")


def columns(values):
    """Length of the last of two dimensions, or None for what is flat."""
    shape = memoryview(values).shape
    return shape[-1] if len(shape) == 2 else None


def _rounded(bits):
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FC0
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def to_bf16(values):
    """Floats to BF16 bit patterns, rounded to the nearest, ties to even; any NaN becomes 0x7FC0. A numpy array gives a uint16 array of the
    same shape; any other iterable of floats gives an array.array("H")."""
    if numpy and isinstance(values, numpy.ndarray):
        bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).reshape(values.shape)
        rounded = ((bits + numpy.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)
        return numpy.where((bits & 0x7FFFFFFF) > 0x7F800000, numpy.uint16(0x7FC0), rounded)
    bits = array.array("f", values).tobytes()
    return array.array("H", (_rounded(one) for (one,) in struct.iter_unpack("=I", bits)))


def to_f32(bits):
    """BF16 bit patterns to floats: the reverse of to_bf16(), exact. Gives a float32 array of the same shape, or an array.array("f")."""
    if numpy and isinstance(bits, numpy.ndarray):
        return (bits.astype(numpy.uint32) << 16).view(numpy.float32)
    flat = memoryview(bits).cast("B").cast("H")
    return array.array("f", (struct.unpack("=f", struct.pack("=I", one << 16))[0] for one in flat))
