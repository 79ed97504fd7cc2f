"""Prints outputs of Infini-attention (arXiv:2404.07143, sec. 2.1) by plain loops in float64, for
nn/mixer/attention/infini_attention_test.cpp: four query heads, two key/value heads, segments of 3 tokens, rotated
within a segment by rope of base 100. Parameters and input as in sequence_mixers.py. Run: python tools/golden/infini_attention.py"""

import math

import torch

torch.set_default_dtype(torch.float64)
D, H, G, W, S, T, EPS = 8, 4, 2, 2, 3, 8, 1e-6


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


def rotated(x, position):
    """x [W] with pairs (m, m + W / 2)."""
    y = x.clone()
    for m in range(W // 2):
        angle = position * 100 ** (-2 * m / W)
        a, b = x[m], x[m + W // 2]
        y[m], y[m + W // 2] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return y


def sigma(x):
    return torch.where(x > 0, x + 1, torch.exp(x))


def infini(delta):
    shapes = [(H * W, D), (G * W, D), (G * W, D), (D, H * W), (H,)]
    wq, wk, wv, wo, beta = (gen(s, 0.37 + 0.13 * i, 0.2 * i) for i, s in enumerate(shapes))
    x = gen((T, D), 0.41, 0.2)
    q, k, v = (x @ wq.T).view(T, H, W), (x @ wk.T).view(T, G, W), (x @ wv.T).view(T, G, W)
    y = torch.zeros(T, H, W)
    for h in range(H):
        g = h // (H // G)
        share = torch.sigmoid(beta[h])
        memory, z = torch.zeros(W, W), torch.zeros(W)
        for begin in range(0, T, S):
            end = min(begin + S, T)
            for i in range(begin, end):
                s = torch.stack([rotated(q[i, h], i) @ rotated(k[j, g], j) for j in range(begin, i + 1)]) / math.sqrt(W)
                local = torch.softmax(s, 0) @ v[begin:i + 1, g]
                f = sigma(q[i, h])
                read = f @ memory / (f @ z + EPS)
                y[i, h] = share * read + (1 - share) * local
            old_memory, old_z = memory.clone(), z.clone()
            for j in range(begin, end):
                f = sigma(k[j, g])
                known = f @ old_memory / (f @ old_z + EPS) if delta else 0
                memory = memory + torch.outer(f, v[j, g] - known)
                z = z + f
    out = y.reshape(T, H * W) @ wo.T
    print("delta" if delta else "linear", ", ".join(f"{u:.10f}" for u in out.reshape(-1).tolist()))


infini(False)
infini(True)
