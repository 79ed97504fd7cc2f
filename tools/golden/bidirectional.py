"""Prints the output of a Vision Mamba block (arXiv:2401.09417, algorithm 1: one projection in and out, a convolution and a
scan of its own for each direction, the gate on both) in float64 by plain loops, and of two whole Mamba mixers combined
in three ways, for nn/mixer/bidirectional_test.cpp. Parameters and input as in sequence_mixers.py.
Run: python tools/golden/bidirectional.py"""

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
D, E, N, R, K, T = 4, 8, 3, 2, 3, 5


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


class Values:
    def __init__(self):
        self.i = -1

    def __call__(self, *shape):
        self.i += 1
        return gen(shape, 0.37 + 0.13 * self.i, 0.2 * self.i)


def direction(v):
    return dict(conv=v(E, K), conv_bias=v(E), select=v(R + 2 * N, E), dt=v(E, R), dt_bias=v(E), a_log=v(E, N), d=v(E))


def scan(x, p):
    """x [T, E] behind the projection in -> y [T, E], token by token."""
    y, h = [], torch.zeros(E, N)
    for t in range(len(x)):
        u = torch.zeros(E)
        for k in range(K):
            s = t - (K - 1) + k
            if s >= 0:
                u = u + p["conv"][:, k] * x[s]
        u = F.silu(u + p["conv_bias"])
        dt, b, c = (p["select"] @ u).split([R, N, N])
        delta = F.softplus(p["dt"] @ dt + p["dt_bias"])
        h = torch.exp(delta[:, None] * -torch.exp(p["a_log"])) * h + (delta * u)[:, None] * b[None]
        y.append(h @ c + p["d"] * u)
    return torch.stack(y)


def show(name, y):
    print(name, ", ".join(f"{v:.10f}" for v in y.reshape(-1).tolist()))


def vision_mamba(x, w_in, w_out, forward, backward):
    x, z = (x @ w_in.T).split(E, -1)
    y = scan(x, forward) + scan(x.flip(0), backward).flip(0)
    return (y * F.silu(z)) @ w_out.T


def shared():
    v = Values()
    w_in = v(2 * E, D)
    forward = direction(v)
    w_out = v(D, E)
    backward = direction(v)
    show("vision_mamba", vision_mamba(gen((T, D), 0.41, 0.2), w_in, w_out, forward, backward))


def own(combine):
    v = Values()
    x = gen((T, D), 0.41, 0.2)

    def mixer(x):
        w_in, p, w_out = v(2 * E, D), direction(v), v(D, E)
        u, z = (x @ w_in.T).split(E, -1)
        return (scan(u, p) * F.silu(z)) @ w_out.T

    f = mixer(x)
    b = mixer(x.flip(0)).flip(0)
    if combine == "concat":
        y = torch.cat([f, b], -1) @ v(D, 2 * D).T
    elif combine == "gate":
        g = torch.sigmoid(x @ v(D, D).T + v(D))
        y = g * f + (1 - g) * b
    else:
        y = (f + b) / 2
    show(combine, y)


shared()
for combine in ("mean", "concat", "gate"):
    own(combine)
