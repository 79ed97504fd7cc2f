"""Values and gradients of BitLinear by transformers: tests/golden/bit_linear.json.

    python tools/golden/bit_linear.py

AutoBitLinear of transformers 5.24 with online quantization, in float32: x [N, I], weight [O, I], bias [O], output, and the
gradients of the sum of output times dy. The weights and rows of BitLinear in a packed file are the same numbers.
"""

import json
import pathlib

import numpy
import torch
import transformers
from transformers.integrations.bitnet import AutoBitLinear

torch._dynamo.config.disable = True  # what the functions are written as counts
SEED, N, I, O = 20, 3, 64, 8


def main():
    random = numpy.random.Generator(numpy.random.PCG64(SEED))
    draw = lambda *shape: torch.from_numpy(random.standard_normal(shape).astype(numpy.float32))
    layer = AutoBitLinear(I, O, bias=True, online_quant=True, dtype=torch.float32)
    x, dy = draw(N, I), draw(N, O)
    x[1] = 0  # a row without scale
    with torch.no_grad():
        layer.weight.copy_(0.2 * draw(O, I))
        layer.bias.copy_(draw(O))
    x.requires_grad_(True)
    y = layer(x)
    y.backward(dy)
    values = {"x": x, "weight": layer.weight, "bias": layer.bias, "dy": dy, "y": y, "dx": x.grad, "dweight": layer.weight.grad, "dbias": layer.bias.grad}
    story = {
        "case": "bit_linear", "reference": "transformers AutoBitLinear, online", "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "generator": "tools/golden/bit_linear.py", "seed": SEED, "dtype": "float32", "rtol": 1e-6, "why": "summation order",
        "N": N, "I": I, "O": O,
    }
    path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "bit_linear.json"
    numbers = {name: [float(f"{v:.9g}") for v in t.detach().flatten().tolist()] for name, t in values.items()}
    path.write_text(json.dumps({**story, **numbers}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
