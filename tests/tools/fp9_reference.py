#!/usr/bin/python3
"""The arithmetic of fp9 a second time, written from kernels/README.md alone, with numpy float32.

    fp9_reference.py write DIR    writes the golden vectors (fixed seeds)
    fp9_reference.py check DIR    computes them again and compares with the files, byte by byte

Slow and plain on purpose. The functions may be imported: decode, raw, normalise, dot, silu, expert, layer, pack.
"""
import os
import sys

import numpy as np

F32 = np.float32
F64 = np.float64
BLOCK = 128


# ---- binary32 ----------------------------------------------------------------------------------

def fma(a, b, c):
    """a * b + c of float32 arrays, rounded once.

    The product of two binary32 is exact in binary64. The sum with c is not, and rounding it to binary64 and then to binary32 would round
    twice. So the binary64 sum is rounded to odd: TwoSum gives the exact error, and an inexact sum with an even last bit is moved by one
    unit towards the exact value. From 53 bits rounded to odd the second rounding to 24 bits (fewer for subnormals) is the correct one.
    """
    with np.errstate(all="ignore"):
        p = np.asarray(a, F64) * np.asarray(b, F64)
        p, c = np.broadcast_arrays(p, np.asarray(c, F64))
        s = p + c
        t = s - p
        error = (p - (s - t)) + (c - t)
        bits = np.ascontiguousarray(s).view(np.int64)
        inexact = np.isfinite(s) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
        away = (error > 0) == (s > 0)
        bits = bits + np.where(inexact, np.where(away, 1, -1), 0)
        return bits.view(F64).astype(F32)


def pow2(e):
    """2^e as float32, subnormal powers included."""
    return np.ldexp(F64(1), e).astype(F32)


def bf16_to_f32(bits):
    return (np.asarray(bits, np.uint32) << 16).view(F32)


def f32_to_bf16(values):
    """Round to nearest even; canonical NaN."""
    bits = np.ascontiguousarray(values, F32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7fc0), rounded)


def canonical(values):
    values = np.array(values, F32)
    values.view(np.uint32)[np.isnan(values)] = 0x7fc00000
    return values


# ---- section 1: fp9 ----------------------------------------------------------------------------

SUBNORMAL = {0: 0x00, 1: 0x38, 2: 0x40, 3: 0x44, 4: 0x48, 5: 0x4a, 6: 0x4c, 7: 0x4e}
MAGNITUDE = np.array([SUBNORMAL.get(code, (code + 0x48) & 0xff) for code in range(128)], np.uint32)


def decode(codes):
    """E4M3 codes -> (sign, magnitude byte)."""
    codes = np.asarray(codes, np.uint8)
    assert not np.any(codes & 0x7f == 0x7f), "NaN code"
    return (codes >> 7).astype(np.uint32), MAGNITUDE[codes & 0x7f]


def raw(codes):
    """E4M3 codes -> weights times 2^-111."""
    sign, magnitude = decode(codes)
    return (sign << 31 | magnitude << 20).view(F32)


# ---- section 2: normalised vectors -------------------------------------------------------------

def normalise(v):
    """v' and e."""
    v = np.asarray(v, F32)
    finite = np.abs(v[np.isfinite(v)])
    m = float(finite.max()) if finite.size else 0.0
    e = int(np.frexp(m)[1]) - 1 if m >= 2.0 ** -126 else -126
    s = 126 - e
    s1 = s // 2
    with np.errstate(all="ignore"):
        return (v * pow2(s1)) * pow2(s - s1), e


# ---- section 3: dot products -------------------------------------------------------------------

def segments(columns, origin):
    """[(first, end)] of the slice's columns, cut at the checkpoint's 128-blocks."""
    cuts = [0] + [k for k in range(1, columns) if (origin + k) % BLOCK == 0] + [columns]
    return list(zip(cuts, cuts[1:]))


def dot(codes, scales, v, e, origin):
    """r of each row. codes [rows, columns]; scales [rows, segments]; v, e from normalise()."""
    weights = raw(codes)
    acc = np.zeros(len(codes), F32)
    for i, (first, end) in enumerate(segments(codes.shape[1], origin)):
        total = np.zeros(len(codes), F32)
        for k in range(first, end):
            total = fma(weights[:, k], v[k], total)
        acc = fma(total, scales[:, i], acc)
    return fma(acc, pow2(e - 15), F32(0))


# ---- section 4: silu ---------------------------------------------------------------------------

def f32_hex(text):
    return F32(float.fromhex(text))


POLYNOMIAL = [f32_hex(c) for c in ("0x1.6c16c2p-10", "0x1.111112p-7", "0x1.555556p-5", "0x1.555556p-3")] + [F32(0.5), F32(1), F32(1)]


def silu(g):
    g = np.asarray(g, F32)
    with np.errstate(all="ignore"):
        a = np.where(np.abs(g) > 174, F32(174), np.abs(g))
        a = np.where(np.isnan(g), F32(0), a)
        n = np.rint(a * f32_hex("-0x1.715476p+0"))
        r = fma(n, f32_hex("-0x1.62e400p-1"), -a)
        r = fma(n, f32_hex("-0x1.7f7d1cp-20"), r)
        p = f32_hex("0x1.a01a02p-13")
        for c in POLYNOMIAL:
            p = fma(p, r, c)
        n = n.astype(np.int64)
        n1 = n // 2
        z1 = p * pow2(n1)
        z = z1 * pow2(n - n1)
        divisor = F32(1) + z
        positive = g / divisor
        gc = np.where(g < -174, F32(-174), g)
        negative = ((gc * z1) / divisor) * pow2(n - n1)
        return np.where(g < 0, negative, positive).astype(F32)


# ---- section 5: expert, layer ------------------------------------------------------------------

def per_row(scales, rows, begin):
    """[tiles, segments] -> [rows, segments]; tiles of 16 rows, the first one shorter if `begin` is within one."""
    return np.repeat(np.asarray(scales, F32), 16, axis=0)[begin % 16:][:rows]


def expert(weights, x, begin):
    """r_d of one expert. weights: {"gate", "up", "down": (codes [rows, columns], scales [tiles, segments])}."""
    v, e = normalise(x)
    (gate, gate_scales), (up, up_scales), (down, down_scales) = weights["gate"], weights["up"], weights["down"]
    g = dot(gate, per_row(gate_scales, len(gate), begin), v, e, 0)
    u = dot(up, per_row(up_scales, len(up), begin), v, e, 0)
    with np.errstate(all="ignore"):
        h = silu(g) * u
    v, e = normalise(h)
    return dot(down, per_row(down_scales, len(down), 0), v, e, begin % BLOCK)


def layer(experts, shared, begin, x, ids, topk_weights):
    """A rank's partial for one token, binary32 with canonical NaN."""
    y = np.zeros(len(x), F32)
    for slot in sorted((s for s in range(len(ids)) if ids[s] >= 0), key=lambda s: ids[s]):
        y = fma(F32(topk_weights[slot]), expert(experts[ids[slot]], x, begin), y)
    if shared is not None:
        y = fma(F32(1), expert(shared, x, begin), y)
    return canonical(y)


# ---- section 7: panels -------------------------------------------------------------------------

def lanes_of(tile):
    """A tile's 16 rows in the order of its lanes."""
    return tile[[lane // 2 if lane % 2 == 0 else 8 + lane // 2 for lane in range(16)]]


def group_stream(tiles):
    """tiles: one or two arrays [16 lanes, columns] of codes, one group: 16 columns, or 8 of a half group."""
    out = bytearray()
    parts = [decode(tile) for tile in tiles]
    columns = tiles[0].shape[1]
    for sign, _ in parts:
        for lane in range(16):
            word = sum(int(sign[lane, j]) << (columns - 1 - j) for j in range(columns))
            out += word.to_bytes(columns // 8, "little")
    for column in range(0, columns, 2):
        for _, magnitude in parts:
            for lane in range(16):
                out += bytes((int(magnitude[lane, column]), int(magnitude[lane, column + 1])))
    return bytes(out)


def panel_stream(tiles, cuts):
    """tiles as above, all columns; cuts: the segments, of whole groups or with a half one at the end."""
    out = b""
    for first, end in cuts:
        for at in range(first, end, 16):
            out += group_stream([tile[:, at:min(at + 16, end)] for tile in tiles])
    return out


def padded(codes, rows, columns):
    out = np.zeros((rows, columns), np.uint8)
    out[:codes.shape[0], :codes.shape[1]] = codes
    return out


def up_to(n, multiple):
    return -(-n // multiple) * multiple


def aligned(data):
    return data + bytes(up_to(len(data), 64) - len(data))


def pack_matrix(panels, cuts):
    """panels: (tiles, [scales of one, scales of the other])."""
    scales = b"".join(np.stack(pair, axis=1).astype("<f4").tobytes() for _, pair in panels)
    return aligned(scales) + aligned(b"".join(panel_stream(tiles, cuts) for tiles, _ in panels))


def padded_rows(scales, rows):
    out = np.zeros((rows, scales.shape[1]), F32)
    out[:len(scales)] = scales
    return out


def pack_gate_up(gate, up, edges):
    """edges: where the slice is cut into panels, in neurons of the slice."""
    columns = up_to(gate[0].shape[1], 16)
    codes = [padded(matrix[0], edges[-1], columns) for matrix in (gate, up)]
    scales = [padded_rows(matrix[1], len(edges) - 1) for matrix in (gate, up)]
    panels = []
    for i, (first, end) in enumerate(zip(edges, edges[1:])):
        rows = [matrix[first:end] for matrix in codes]
        if end - first == 8:
            tiles = [np.stack(rows, axis=1).reshape(16, columns)]
        else:
            tiles = [lanes_of(matrix) for matrix in rows]
        panels.append((tiles, [scales[0][i], scales[1][i]]))
    return pack_matrix(panels, segments(columns, 0))


def pack_down(down, begin, k):
    rows = up_to(len(down[0]), 32)
    codes, scales = padded(down[0], rows, k), padded_rows(down[1], rows // 16)
    panels = [([lanes_of(codes[row:row + 16]), lanes_of(codes[row + 16:row + 32])], [scales[row // 16], scales[row // 16 + 1]])
              for row in range(0, rows, 32)]
    return pack_matrix(panels, segments(k, begin % BLOCK))


def pack(weights, begin, pad_to):
    """One expert's bytes."""
    neurons = len(weights["gate"][0])
    end = up_to(neurons, pad_to)
    edges = [0] + [n for n in range(1, end) if (begin + n) % 16 == 0] + [end]
    k = next(edge for edge in edges if edge >= neurons)
    return pack_gate_up(weights["gate"], weights["up"], edges) + pack_down(weights["down"], begin, k)


# ---- golden vectors ----------------------------------------------------------------------------

class Random:
    """splitmix64, so that the files do not depend on numpy's generators."""

    def __init__(self, seed):
        self.state = seed

    def u64(self, count):
        gamma = 0x9e3779b97f4a7c15
        with np.errstate(over="ignore"):
            z = np.uint64(self.state) + np.uint64(gamma) * np.arange(1, count + 1, dtype=np.uint64)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        self.state = (self.state + gamma * count) % 2 ** 64
        return z ^ (z >> np.uint64(31))

    def floats(self, count):
        return ((self.u64(count) >> np.uint64(41)).astype(F64) - 4194303.5).astype(F32) * F32(2.0 ** -22)

    def codes(self, rows, columns):
        codes = (self.u64(rows * columns) >> np.uint64(8)).astype(np.uint8)
        codes[codes & 0x7f == 0x7f] = 0x80
        return codes.reshape(rows, columns)


HOSTILE = np.array([0.0, 1e-38, 1e-23, 1e20, 2.0 ** 80, -2.0 ** 80, -1.0, 1e-40, -0.0, 2.0 ** -7], F32)


def random_weights(random, hidden, begin, neurons, hostile):
    def scales(rows, count, first=0):
        shape = (up_to(first % 16 + rows, 16) // 16, count)
        values = random.floats(shape[0] * count) * F32(2.0 ** -7)
        if hostile:
            pick = random.u64(len(values))
            values = np.where(pick & np.uint64(1), HOSTILE[(pick >> np.uint64(8)) % np.uint64(len(HOSTILE))], values)
        return values.reshape(shape)

    across, down = len(segments(hidden, 0)), len(segments(neurons, begin % BLOCK))
    return {
        "gate": (random.codes(neurons, hidden), scales(neurons, across, begin)),
        "up": (random.codes(neurons, hidden), scales(neurons, across, begin)),
        "down": (random.codes(hidden, neurons), scales(hidden, down)),
    }


# name: seed, hidden, begin, neurons, pad_to, experts, shared_neurons, tokens, top_k (0: dense), hostile
CASES = {
    "dense": (1, 132, 64, 72, 32, 1, 0, 2, 0, False),
    "moe": (2, 100, 96, 48, 16, 3, 40, 3, 4, False),
    "hostile": (3, 48, 112, 32, 32, 2, 0, 8, 2, True),
    "head": (4, 144, 8, 24, 8, 1, 0, 2, 0, False),
    "tail": (5, 48, 96, 40, 8, 2, 8, 4, 3, False),
    "both": (6, 72, 120, 144, 8, 2, 24, 3, 3, False),
    "unit": (7, 260, 24, 8, 8, 2, 5, 8, 2, True),
}


def case_inputs(random, hidden, experts, tokens, top_k, hostile):
    x = f32_to_bf16(random.floats(tokens * hidden) * F32(2)).reshape(tokens, hidden)
    ids = (random.u64(tokens * top_k) % np.uint64(experts + 1)).astype(np.int32).reshape(tokens, top_k) - np.int32(1)
    weights = random.floats(tokens * top_k).reshape(tokens, top_k)
    if hostile:
        any_bits = random.u64(hidden).astype(np.uint16)
        x[1, 7] = 0x7fc1                                # one NaN
        x[2, 3] = 0xff80                                # one -Inf
        x[3] = any_bits & 0x807f                        # subnormals only
        x[4] = f32_to_bf16(bf16_to_f32(x[4]) * F32(1e30))
        x[5] = any_bits & 0x8000                        # zeros of both signs
        x[6] = any_bits                                 # anything
        ids[7] = -1                                     # no slot at all
    return x, ids, weights


def case_bytes(seed, hidden, begin, neurons, pad_to, experts, shared_neurons, tokens, top_k, hostile):
    """The file (layout: tests/data/golden/README.md)."""
    random = Random(seed)
    routed = [random_weights(random, hidden, begin, neurons, hostile) for _ in range(experts)]
    shared = random_weights(random, hidden, begin, shared_neurons, hostile) if shared_neurons else None
    x, ids, weights = case_inputs(random, hidden, experts, tokens, top_k, hostile)

    out = b"FP9GOLD1" + np.array([hidden, begin, neurons, pad_to, experts, shared_neurons, tokens, top_k], "<u4").tobytes()
    for one in routed + ([shared] if shared else []):
        for name in ("gate", "up", "down"):
            codes, scales = one[name]
            out += codes.tobytes() + scales.astype("<f4").tobytes()
    out += x.astype("<u2").tobytes() + ids.astype("<i4").tobytes() + weights.astype("<f4").tobytes()

    packed = pack(routed[0], begin, pad_to)
    out += np.array([len(packed)], "<u8").tobytes() + packed
    y = np.zeros((tokens, hidden), F32)
    for t in range(tokens):
        slots = (ids[t], weights[t]) if top_k else ([0], [1.0])
        y[t] = layer(routed, shared, begin, bf16_to_f32(x[t]), *slots)
    out += y.astype("<f4").tobytes() + f32_to_bf16(y).astype("<u2").tobytes()

    # Section 6, with the tokens' partials in the place of ranks.
    sum_f32, sum_bf16 = np.zeros(hidden, F32), np.zeros(hidden, F32)
    with np.errstate(all="ignore"):
        for t in range(tokens):
            sum_f32 = sum_f32 + y[t]
            sum_bf16 = sum_bf16 + bf16_to_f32(f32_to_bf16(y[t]))
    return out + canonical(sum_f32).astype("<f4").tobytes() + f32_to_bf16(sum_bf16).astype("<u2").tobytes()


def main(arguments):
    if len(arguments) != 2 or arguments[0] not in ("write", "check"):
        sys.stderr.write(__doc__)
        return 2
    command, directory = arguments
    status = 0
    for name, case in CASES.items():
        path = os.path.join(directory, name + ".bin")
        data = case_bytes(*case)
        if command == "write":
            with open(path, "wb") as file:
                file.write(data)
            continue
        with open(path, "rb") as file:
            have = file.read()
        if have != data:
            at = next((i for i, (a, b) in enumerate(zip(have, data)) if a != b), min(len(have), len(data)))
            print(f"{path}: differs from what this program computes, first at byte {at} of {len(data)}")
            status = 1
        else:
            print(f"{path}: {len(data)} bytes agree")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
