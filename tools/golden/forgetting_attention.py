"""Prints outputs of forgetting attention (arXiv:2503.02130, sec. 3) by plain loops in float64, for
nn/mixer/attention/forgetting_attention_test.cpp: four query heads, two key/value heads, an output gate, rope of base 100.
Parameters and input as in sequence_mixers.py. Run: python tools/golden/forgetting_attention.py"""

import math

import torch

torch.set_default_dtype(torch.float64)
D, H, G, W, T = 8, 4, 2, 2, 6


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


def turned(x, position):
    """x [2], one pair: its angle is the position."""
    a, b = x[0], x[1]
    return torch.stack([a * math.cos(position) - b * math.sin(position), b * math.cos(position) + a * math.sin(position)])


shapes = [(H * W, D), (G * W, D), (G * W, D), (D, H * W), (H, D), (H,), (H * W, D)]
wq, wk, wv, wo, wf, bf, wg = (gen(shape, 0.37 + 0.13 * i, 0.2 * i) for i, shape in enumerate(shapes))
x = gen((T, D), 0.41, 0.2)
q, k, v = (x @ wq.T).view(T, H, W), (x @ wk.T).view(T, G, W), (x @ wv.T).view(T, G, W)
forget = -torch.log1p(torch.exp(-(x @ wf.T + bf)))
y = torch.zeros(T, H, W)
for h in range(H):
    g = h // (H // G)
    for i in range(T):
        scores = []
        for j in range(i + 1):
            between = sum(float(forget[s, h]) for s in range(j + 1, i + 1))
            scores.append(float(turned(q[i, h], i) @ turned(k[j, g], j)) / math.sqrt(W) + between)
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        for j, weight in enumerate(weights):
            y[i, h] += weight / sum(weights) * v[j, g]
out = (y.reshape(T, H * W) * torch.sigmoid(x @ wg.T)) @ wo.T
numbers = [f"{value:.10f}" for value in out.flatten().tolist()]
print(", ".join(numbers))
