"""tessera's CPU kernels as torch ops, from Python: a Mamba layer's scan in a training step.

    python examples/torch_ops.py build/release/lib/libtessera_ops.so
"""

import sys

import torch

torch.ops.load_library(sys.argv[1])

B, T, E, N = 2, 512, 256, 16
x = torch.randn(B, T, E, requires_grad=True)
dt = torch.randn(B, T, E, requires_grad=True)
a = (-torch.arange(1, N + 1, dtype=torch.float32).repeat(E, 1)).requires_grad_()
b, c = torch.randn(B, T, N, requires_grad=True), torch.randn(B, T, N, requires_grad=True)
d, dt_bias = torch.ones(E, requires_grad=True), torch.full((E,), -4.0, requires_grad=True)

y = torch.ops.tessera.selective_scan(x, dt, dt_bias, a, b, c, d, 64)
y.square().mean().backward()
print("y", tuple(y.shape), "dy/da", tuple(a.grad.shape), float(a.grad.norm()))
