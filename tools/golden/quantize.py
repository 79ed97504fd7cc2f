"""Writes tests/golden/blocks/to_<type>.json: float32 numbers, and the bytes that the PyPI package
gguf makes of them. Run from the repository root: python tools/golden/quantize.py"""

import json
import pathlib

import gguf
import numpy as np

SEED = 12
BLOCK = 32
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "TQ1_0", "TQ2_0"]


def numbers():
    """Blocks of ordinary weights and of all that a rounding may trip over."""
    rng = np.random.default_rng(SEED)
    ordinary = [rng.normal(0, scale, BLOCK) for scale in (0.02, 0.3, 1, 40) for _ in range(6)]
    step = np.arange(BLOCK) - 15.5  # halves between codes
    ties = np.where(np.arange(BLOCK) % 2 == 0, 1.0, -1.0)  # the first of equal magnitudes counts
    one_high, one_low = np.zeros(BLOCK), np.zeros(BLOCK)
    one_high[7], one_low[30] = 3.5, -3.5
    special = [
        np.zeros(BLOCK),
        np.full(BLOCK, 0.7),  # no range
        np.full(BLOCK, -0.7),
        step,
        -step,
        step * 127 / 15.5,
        step / 16,
        ties,
        -ties,
        one_high,
        one_low,
        np.abs(ordinary[3]),  # of one sign
        -np.abs(ordinary[4]),
        rng.normal(0, 1e-6, BLOCK),  # scales that are subnormal in float16
        rng.normal(0, 1e-10, BLOCK),  # and zero there
        rng.normal(0, 1e6, BLOCK),  # and beyond float16 or close to its end
    ]
    return np.stack(ordinary + special).astype(np.float32)


def ternary_numbers():
    """The same in blocks of 256, and what ternary numbers may trip over: halves, and no range."""
    rng = np.random.default_rng(SEED + 1)
    signs = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], 256)
    special = [signs, np.zeros(256), signs * 1e-10, rng.normal(0, 1, 256)]
    return np.concatenate([numbers().reshape(-1, 256), np.stack(special).astype(np.float32)])


folder = pathlib.Path("tests/golden/blocks")
for name in TYPES:
    values = ternary_numbers() if name.startswith("TQ") else numbers()
    with np.errstate(over="ignore"):
        blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    golden = {
        "case": f"blocks/to_{name.lower()}",
        "reference": "gguf.quants.quantize",
        "version": "gguf 0.19",
        "generator": "tools/golden/quantize.py",
        "seed": SEED,
        "dtype": "float32",
        "holds": ["values: little-endian float32 bits, hex", "blocks: bytes, hex"],
        "rtol": 0,
        "why": "a rounding has one result",
        "type": name.lower(),
        "values": values.astype("<f4").tobytes().hex(),
        "blocks": blocks.astype(np.uint8).tobytes().hex(),
    }
    (folder / f"to_{name.lower()}.json").write_text(json.dumps(golden, indent=1) + "\n")
