"""Prints outputs of merged attention (T5Gemma 2, arXiv:2512.14856, sec. 2) by plain loops in float64, for
nn/mixer/attention/merged_attention_test.cpp: four query heads, two key/value heads, rope of base 100 on queries and the
decoder's keys; all tokens, then a window of three. Parameters and input as in sequence_mixers.py, a source of four tokens.
Run: python tools/golden/merged_attention.py"""

import math

import torch

torch.set_default_dtype(torch.float64)
D, H, G, W, T, S = 8, 4, 2, 2, 6, 4
CAP = 1.5


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


def turned(x, position):
    """x [2], one pair: its angle is the position."""
    a, b = x[0], x[1]
    return torch.stack([a * math.cos(position) - b * math.sin(position), b * math.cos(position) + a * math.sin(position)])


shapes = [(H * W, D), (G * W, D), (G * W, D), (D, H * W)]
wq, wk, wv, wo = (gen(shape, 0.37 + 0.13 * i, 0.2 * i) for i, shape in enumerate(shapes))
x, e = gen((T, D), 0.41, 0.2), gen((S, D), 0.53, 0.29)
q, k, v = (x @ wq.T).view(T, H, W), (x @ wk.T).view(T, G, W), (x @ wv.T).view(T, G, W)
source_k, source_v = (e @ wk.T).view(S, G, W), (e @ wv.T).view(S, G, W)
for window in (T, 3):
    y = torch.zeros(T, H, W)
    for h in range(H):
        g = h // (H // G)
        for i in range(T):
            # the decoder's keys, turned as the query is, then those of the source as they are
            seen = [(turned(k[j, g], j), v[j, g]) for j in range(max(0, i - window + 1), i + 1)]
            seen += [(source_k[s, g], source_v[s, g]) for s in range(S)]
            query = turned(q[i, h], i)
            scores = [CAP * math.tanh(float(query @ key) / math.sqrt(W) / CAP) for key, _ in seen]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            for weight, (_, value) in zip(weights, seen):
                y[i, h] += weight / sum(weights) * value
    out = y.reshape(T, H * W) @ wo.T
    print(", ".join(f"{value:.10f}" for value in out.flatten().tolist()))
