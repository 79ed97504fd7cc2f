"""Writes tests/golden/blocks/<type>.json: random blocks of each storage type and the float32 bits
that the PyPI package gguf reads from them; of the types that quantised folders are packed into, that
their definition gives in numpy. Run from the repository root: python tools/golden/blocks.py"""

import json
import pathlib

import gguf
import numpy as np
import torch

SEED = 11
# type -> offsets of the float16 scales in a block; they are made finite, everything else is random
SCALES = {
    "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
    "IQ4_NL": [0], "IQ4_XS": [0],
}

folder = pathlib.Path("tests/golden/blocks")
folder.mkdir(parents=True, exist_ok=True)


def write(name, reference, version, blocks, values):
    golden = {
        "case": f"blocks/{name}",
        "reference": reference,
        "version": version,
        "generator": "tools/golden/blocks.py",
        "seed": SEED,
        "dtype": "float32",
        "holds": ["blocks: bytes, hex", "values: little-endian float32 bits, hex"],
        "rtol": 0,
        "why": "a storage type has one meaning",
        "type": name,
        "blocks": blocks.tobytes().hex(),
        "values": values.astype("<f4").tobytes().hex(),
    }
    (folder / f"{name}.json").write_text(json.dumps(golden, indent=1) + "\n")


rng = np.random.default_rng(SEED)
for name, offsets in SCALES.items():
    qtype = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    count = 32 if elements == 1 else 4
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name == "BF16":
        blocks[:, 1] = rng.choice([0x3F, 0xBF, 0x40, 0x00, 0x80], count)
    if name == "MXFP4":
        blocks[:, 0] = [2, 3, 127, 252]  # a power of two: from the least normal number to the largest without infinities
    for offset in offsets:
        scale = rng.normal(0, 0.1, count).astype(np.float16)
        scale[0] = np.float16(3e-6)  # subnormal
        blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(count, 2)
    values = gguf.quants.dequantize(blocks.reshape(-1), qtype).astype(np.float32)
    assert np.isfinite(values).all()
    write(name.lower(), "gguf.quants.dequantize", "gguf 0.19", blocks, values)


# types of few bits: random codes, with a generator of their own
FEW_BITS = {"IQ1_S": 0, "IQ1_M": None, "IQ2_XXS": 0, "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0,
            "TQ1_0": 52, "TQ2_0": 64}
rng = np.random.default_rng(SEED + 2)
for name, offset in FEW_BITS.items():
    qtype = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    blocks = rng.integers(0, 256, (8, size), dtype=np.uint8)
    scale = rng.normal(0, 0.1, 8).astype(np.float16)
    if offset is not None:
        blocks[:, offset:offset + 2] = scale.view(np.uint8).reshape(8, 2)
    else:  # in the uppermost four bits of four words
        words = blocks[:, 48:].copy().view(np.uint16)
        bits = scale.view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16)
        words = (words & 0x0FFF) | ((bits & 15) << 12)
        blocks[:, 48:] = words.view(np.uint8).reshape(8, 8)
    values = gguf.quants.dequantize(blocks.reshape(-1), qtype).astype(np.float32)
    assert np.isfinite(values).all()
    write(name.lower(), "gguf.quants.dequantize", "gguf 0.19", blocks, values)


def nibbles(bytes_16):
    return np.concatenate([bytes_16 & 15, bytes_16 >> 4], axis=1).astype(np.int32)


def scaled(rng, count, size):
    """Blocks of `size` bytes whose first four are a float32, and these."""
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    d = rng.normal(0, 0.1, count).astype(np.float32)
    d[0] = np.float32(1e-7)
    blocks[:, :4] = d.view(np.uint8).reshape(count, 4)
    return blocks, d[:, None]


rng = np.random.default_rng(SEED + 1)
blocks, d = scaled(rng, 16, 21)
blocks[:, 4] = np.arange(16)
values = d * (nibbles(blocks[:, 5:]) - blocks[:, 4:5].astype(np.int32)).astype(np.float32)
write("scaled_u4", "numpy: d (code - z)", np.__version__, blocks, values)

blocks, d = scaled(rng, 8, 38)
blocks[:, 4:6] = np.array([0, 1, -128, 127, 128, -1, 5, -77], np.int16).view(np.uint8).reshape(8, 2)
zero = blocks[:, 4:6].copy().view(np.int16).astype(np.int32)
values = d * (blocks[:, 6:].view(np.int8).astype(np.int32) - zero).astype(np.float32)
write("scaled_i8", "numpy: d (code - z)", np.__version__, blocks, values)

blocks, d = scaled(rng, 8, 36)
codes = np.arange(256, dtype=np.uint8)  # all there are, NaN aside
codes[[0x7F, 0xFF]] = 0
blocks[:, 4:] = codes.reshape(8, 32)
eight = torch.from_numpy(blocks[:, 4:].copy()).view(torch.float8_e4m3fn).to(torch.float32).numpy()
write("scaled_e4m3", "torch.float8_e4m3fn", torch.__version__.split("+")[0], blocks, d * eight)
