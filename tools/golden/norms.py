"""Numbers of norms and activations that the tests of nn/norm and nn/ffn hold to, from torch and transformers in float64.

    python tools/golden/norms.py
"""

import torch
from transformers.activations import XIELUActivation

torch.set_printoptions(precision=8, sci_mode=False, linewidth=110)
f64 = torch.float64


def gen(*shape, a, b):
    n = 1
    for size in shape:
        n *= size
    return torch.sin(a * torch.arange(n, dtype=f64) + b).reshape(shape)


def show(name, x):
    print(name, [round(v, 8) for v in x.detach().reshape(-1).tolist()])


def group_norm():
    x = (2 * gen(2, 6, a=0.7, b=0.3) + 0.4).requires_grad_(True)
    w, b, g = 1 + 0.2 * gen(6, a=0.5, b=0.1), 0.3 * gen(6, a=0.9, b=0.2), gen(2, 6, a=0.4, b=0.6)
    y = torch.nn.functional.group_norm(x, 2, w, b, 1e-5)
    show("group_norm y", y)
    show("group_norm dx", torch.autograd.grad((y * g).sum(), x)[0])


def batch_norm():
    norm = torch.nn.BatchNorm1d(3, eps=1e-5, momentum=0.1, dtype=f64)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.2 * gen(3, a=0.5, b=0.1))
        norm.bias.copy_(0.3 * gen(3, a=0.9, b=0.2))
    x, g = (2 * gen(4, 3, a=0.7, b=0.3) + 0.4).requires_grad_(True), gen(4, 3, a=0.4, b=0.6)
    y = norm(x)
    show("batch_norm y", y)
    show("batch_norm dx", torch.autograd.grad((y * g).sum(), x)[0])
    show("batch_norm mean", norm.running_mean)
    show("batch_norm variance", norm.running_var)
    show("batch_norm after", norm.eval()(x))


def gated_norm():
    x = (2 * gen(2, 4, a=0.7, b=0.3) + 0.4).requires_grad_(True)
    w, g = 1 + 0.2 * gen(4, a=0.5, b=0.1), gen(2, 4, a=0.4, b=0.6)
    down, up = gen(2, 4, a=0.6, b=0.2), gen(4, 2, a=0.8, b=0.5)
    n = torch.nn.functional.rms_norm(x, (4,), w, 1e-6)
    y = n * torch.sigmoid(torch.nn.functional.silu(n @ down.T) @ up.T)
    show("gated_norm y", y)
    show("gated_norm dx", torch.autograd.grad((y * g).sum(), x)[0])


def xielu():
    act = XIELUActivation(alpha_p_init=0.8, alpha_n_init=0.9, beta=0.5, eps=-1e-6, dtype=f64)
    x, g = torch.tensor([-3, -1, -0.5, 0, 0.5, 1, 3], dtype=f64, requires_grad=True), gen(7, a=0.4, b=0.6)
    y = act._xielu_python(x)
    show("xielu y", y)
    for name, d in zip(("dx", "dp", "dn"), torch.autograd.grad((y * g).sum(), [x, act.alpha_p, act.alpha_n])):
        show("xielu " + name, d)


def swish():
    x, g = torch.tensor([-3, -1, 0.5, 2], dtype=f64), gen(4, a=0.4, b=0.6)
    beta = torch.tensor(1.3, dtype=f64, requires_grad=True)
    y = x * torch.sigmoid(beta * x)
    show("swish y", y)
    show("swish dbeta", torch.autograd.grad((y * g).sum(), beta)[0])


for part in (group_norm, batch_norm, gated_norm, xielu, swish):
    part()
