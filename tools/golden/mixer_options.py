"""Prints outputs of mixers with options that no published code has in a form to run, by plain loops in float64, for
nn/mixer/mixer_options_test.cpp: FNet with the real part after each transform and blended with learned matrices, attention whose
queries grow with the logarithm of the length, and retention with learned decays. Parameters and input as in
sequence_mixers.py. Run: python tools/golden/mixer_options.py"""

import math

import torch

torch.set_default_dtype(torch.float64)
D, T = 4, 5


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


def values(*shapes):
    return [gen(s, 0.37 + 0.13 * i, 0.2 * i) for i, s in enumerate(shapes)]


X = gen((T, D), 0.41, 0.2)


def show(name, y):
    print(name, ", ".join(f"{v:.10f}" for v in y.reshape(-1).tolist()))


def fourier():
    def dft(n):
        i = torch.arange(n)
        return torch.exp(-2j * math.pi * torch.outer(i, i).to(torch.complex128) / n)

    x = X.to(torch.complex128)
    once = (dft(T) @ x @ dft(D)).real
    each = (dft(T) @ (x @ dft(D)).real.to(torch.complex128)).real
    tokens, channels = values((T, T), (D, D))
    learned = tokens @ X @ channels.T
    show("fourier_each", each)
    show("fourier_blend", 0.7 * once + 0.3 * learned)
    show("fourier_blend_each", 0.25 * each + 0.75 * learned)


def log_n(n, below):
    """Two heads of two channels; positions from 0, of which the first counts as one token."""
    wq, wk, wv, wo = values((D, D), (D, D), (D, D), (D, D))
    q, k, v = ((X @ w.T).view(T, 2, 2) for w in (wq, wk, wv))
    y = torch.zeros(T, 2, 2)
    for h in range(2):
        for i in range(T):
            factor = math.log(i + 1) / math.log(n)
            factor = factor if below else max(1.0, factor)
            s = torch.stack([factor * (q[i, h] @ k[j, h]) / math.sqrt(2) for j in range(i + 1)])
            y[i, h] = torch.softmax(s, 0) @ v[:i + 1, h]
    show("log_n_below" if below else "log_n", y.reshape(T, D) @ wo.T)


def retention():
    wq, wk, wv, wg, wo, decay = values((D, D), (D, D), (2 * D, D), (2 * D, D), (D, 2 * D), (2,))
    q, k, v, g = (X @ wq.T).view(T, 2, 2), (X @ wk.T).view(T, 2, 2) / math.sqrt(2), (X @ wv.T).view(T, 2, 4), X @ wg.T
    y = torch.zeros(T, 2, 4)
    for h in range(2):
        s = torch.zeros(2, 4)
        for t in range(T):
            s = torch.sigmoid(decay[h]) * s + torch.outer(k[t, h], v[t, h])
            o = q[t, h] @ s
            y[t, h] = o / torch.sqrt(o.square().mean() + 1e-6)
    show("retention_learned", (torch.nn.functional.silu(g) * y.reshape(T, 2 * D)) @ wo.T)


fourier()
log_n(3, False)
log_n(3, True)
retention()
