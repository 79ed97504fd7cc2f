"""Writes tests/golden/blocks/ggml_<type>.json: float32 rows, the importance of their columns, and the
bytes that ggml makes of them without and with it. For the types whose scales ggml searches for, which
the PyPI package gguf does not write. Run from the repository root, where llama-cpp-python 0.3.36 is installed:
python tools/golden/quantize_ggml.py [libggml-base.so]"""

import ctypes
import json
import pathlib
import sys

import gguf
import numpy as np

SEED = 14
ROWS, COLUMNS = 12, 512
PLAIN = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
WEIGHTED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", *PLAIN]


def library():
    if len(sys.argv) > 1:
        return sys.argv[1]
    import llama_cpp

    return str(pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so")


def rows():
    """Rows of ordinary weights and of all that a search may trip over."""
    rng = np.random.default_rng(SEED)
    x = np.stack([rng.normal(0, scale, COLUMNS) for scale in (0.02, 0.02, 0.3, 40, 3, 1, 1, 1, 1, 1, 1, 1)])
    x[2] = rng.standard_t(3, COLUMNS) * 0.02  # heavy tails
    x[3, ::37] *= 20
    x[4] = np.abs(x[4])  # of one sign
    x[5] = -np.abs(x[5])
    x[6, :256] = 0  # a block of zeros
    x[6, 256:272] = 0.7  # groups without a range
    x[6, 288:320] = -0.7
    x[7] = np.round(x[7] * 4) / 4  # many ties
    x[8] = 0
    x[8, [3, 300]] = [3.5, -3.5]  # one number alone
    x[9] *= 1e-6  # scales that are subnormal in float16
    x[10] = np.sin(np.arange(COLUMNS) * 0.3)
    x[11] = np.where(np.arange(COLUMNS) % 2 == 0, 1.0, -1.0)
    importance = np.exp(rng.normal(0, 1.5, COLUMNS))
    importance[40:60] = 0  # columns that never counted
    return x.astype(np.float32), importance.astype(np.float32)


ggml = ctypes.CDLL(library())
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
values, importance = rows()
floats = ctypes.POINTER(ctypes.c_float)


def quantized(name, weights):
    qtype = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    out = np.zeros(values.size // elements * size, np.uint8)
    written = ggml.ggml_quantize_chunk(
        ctypes.c_int(int(qtype)), values.ctypes.data_as(floats), out.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0), ctypes.c_int64(ROWS), ctypes.c_int64(COLUMNS),
        None if weights is None else weights.ctypes.data_as(floats))
    assert written == out.size
    return out.tobytes().hex()


folder = pathlib.Path("tests/golden/blocks")
head = {
    "reference": "ggml_quantize_chunk",
    "version": "llama-cpp-python 0.3.36",
    "generator": "tools/golden/quantize_ggml.py",
    "seed": SEED,
    "dtype": "float32",
    "shape": {"rows": ROWS, "k": COLUMNS},
    "rtol": 0,
}
numbers = {"values": values.astype("<f4").tobytes().hex(), "importance": importance.astype("<f4").tobytes().hex()}
golden = {"case": "blocks/ggml", **head, "holds": ["values, importance: little-endian float32 bits, hex"],
          "why": "what the other files' bytes were made of", **numbers}
(folder / "ggml.json").write_text(json.dumps(golden, indent=1) + "\n")
for name in WEIGHTED:
    golden = {"case": f"blocks/ggml_{name.lower()}", **head, "holds": ["plain, weighted: bytes, hex"],
              "why": "a search in a fixed order has one result", "type": name.lower()}
    if name in PLAIN:
        golden["plain"] = quantized(name, None)
    golden["weighted"] = quantized(name, importance)
    (folder / f"ggml_{name.lower()}.json").write_text(json.dumps(golden, indent=1) + "\n")
