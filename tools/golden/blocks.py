"""Writes tests/golden/blocks/<type>.json: random blocks of each storage type and the float32 bits
that the PyPI package gguf reads from them. Run from the repository root: python tools/golden/blocks.py"""

import json
import pathlib

import gguf
import numpy as np

SEED = 11
# type -> offsets of the float16 scales in a block; they are made finite, everything else is random
SCALES = {
    "F16": [0], "BF16": [], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
    "IQ4_NL": [0], "IQ4_XS": [0],
}

rng = np.random.default_rng(SEED)
folder = pathlib.Path("tests/golden/blocks")
folder.mkdir(parents=True, exist_ok=True)
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
    golden = {
        "case": f"blocks/{name.lower()}",
        "reference": "gguf.quants.dequantize",
        "version": "gguf 0.19",
        "generator": "tools/golden/blocks.py",
        "seed": SEED,
        "dtype": "float32",
        "holds": ["blocks: bytes, hex", "values: little-endian float32 bits, hex"],
        "rtol": 0,
        "why": "a storage type has one meaning",
        "type": name.lower(),
        "blocks": blocks.tobytes().hex(),
        "values": values.astype("<f4").tobytes().hex(),
    }
    (folder / f"{name.lower()}.json").write_text(json.dumps(golden, indent=1) + "\n")
