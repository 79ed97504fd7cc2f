"""A training step of one Mamba-2 layer: tessera.nn, and the same mathematics in plain PyTorch.

    TESSERA_LIBRARY=build/release/lib/libtessera.so PYTHONPATH=python python bench/nn_module.py

Forward, backward and AdamW, float32, milliseconds (median of --repeats). "chunked" is the state space
duality algorithm of the paper (Dao, Gu 2024, arXiv:2405.21060, listing 1) in matrix products, at the
fastest of three chunk lengths; "recurrent" is the recurrence token by token. Outputs and gradients of all
three are compared first.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import tessera

HEADS, STATES, TAPS = 8, 64, 4


def scan(dt_decay_BTH, u_BTHP, b_BTN, c_BTN):
    """The recurrence: h = decay h + u b^T, y = h c."""
    h = u_BTHP.new_zeros(*u_BTHP.shape[:1], *u_BTHP.shape[2:], b_BTN.shape[2])
    out = []
    for t in range(u_BTHP.shape[1]):
        h = dt_decay_BTH[:, t].exp()[..., None, None] * h + u_BTHP[:, t, ..., None] * b_BTN[:, t, None, None]
        out.append((h * c_BTN[:, t, None, None]).sum(-1))
    return torch.stack(out, 1)


def segment_sums(x):
    """[..., l] -> [..., l, l]: sums of x over (s, l], -inf above the diagonal."""
    sums = x.cumsum(-1)
    sums = sums[..., :, None] - sums[..., None, :]
    return sums.masked_fill(~torch.ones_like(sums, dtype=torch.bool).tril(), -torch.inf)


def chunked(length):
    def run(dt_decay_BTH, u_BTHP, b_BTN, c_BTN):
        B, T, H, P = u_BTHP.shape
        u = u_BTHP.view(B, T // length, length, H, P).transpose(2, 3)  # [B,C,H,L,P]
        b, c = (x.view(B, T // length, length, -1) for x in (b_BTN, c_BTN))
        a = dt_decay_BTH.view(B, T // length, length, H).transpose(2, 3)  # [B,C,H,L]
        sums = a.cumsum(-1)
        inside = ((c @ b.transpose(2, 3))[:, :, None] * segment_sums(a).exp()) @ u
        states = (u * (sums[..., -1:] - sums).exp()[..., None]).transpose(3, 4) @ b[:, :, None]  # [B,C,H,P,N]
        between = segment_sums(F.pad(sums[..., -1].transpose(1, 2), (1, 0))).exp()[:, :, :-1, 1:]  # [B,H,C,C]
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)
        across = (c[:, :, None] @ states.transpose(3, 4)) * sums.exp()[..., None]
        return (inside + across).transpose(2, 3).reshape(B, T, H, P)
    return run


def plain_mamba2(p, x, mix):
    inner = 2 * x.shape[2]
    z, xbc, dt = F.linear(x, p["in.weight"]).split([inner, inner + 2 * STATES, HEADS], -1)
    xbc = F.conv1d(F.pad(xbc.transpose(1, 2), (TAPS - 1, 0)), p["conv.weight"].unsqueeze(1), p["conv.bias"],
                   groups=xbc.shape[2]).transpose(1, 2)
    u, b, c = F.silu(xbc).split([inner, STATES, STATES], -1)
    u = u.unflatten(-1, (HEADS, -1))
    dt = F.softplus(dt + p["dt_bias"])
    y = mix(-dt * p["a_log"].exp(), u * dt[..., None], b, c) + p["d"][:, None] * u
    y = y.flatten(2) * F.silu(z)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * p["norm.weight"]
    return F.linear(y, p["out.weight"])


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=4)
    options.add_argument("--length", type=int, default=1024)
    options.add_argument("--d-model", type=int, default=256)
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    torch.manual_seed(1)
    layer = tessera.nn.module({"type": "mamba2", "n_heads": HEADS, "d_state": STATES}, d_model=given.d_model)
    parameters = dict(layer.named_parameters())
    x = torch.randn(given.batch, given.length, given.d_model, requires_grad=True)
    forms = {"tessera.nn": layer}
    for length in [64, 128, 256]:
        forms[f"PyTorch, chunked ({length})"] = lambda x, mix=chunked(length): plain_mamba2(parameters, x, mix)
    forms["PyTorch, recurrent"] = lambda x: plain_mamba2(parameters, x, scan)

    def step(form, optimizer=None):
        y = form(x)
        y.square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        return y

    expected = None
    for name, form in forms.items():
        x.grad = None
        layer.zero_grad()
        found = [step(form).detach(), x.grad, *(p.grad for p in parameters.values())]
        found = [value.clone() for value in found]
        for a, b in zip(found, expected or found):
            error = (a - b).abs().max() / b.abs().max()
            assert error < 1e-3, (name, error)
        expected = expected or found
    times = {name: [] for name in forms}
    for i in range(given.repeats + 1):
        for name, form in forms.items():
            if name.endswith("recurrent") and i > 2:
                continue
            optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4)
            began = time.perf_counter()
            step(form, optimizer)
            if i > 0:  # the first warms up
                times[name].append(1000 * (time.perf_counter() - began))
    print(f"Mamba-2, B = {given.batch}, T = {given.length}, D = {given.d_model}, {HEADS} heads, {STATES} states, "
          f"{torch.get_num_threads()} threads")
    ours = statistics.median(times["tessera.nn"])
    for name, found in times.items():
        print(f"{name:26} {statistics.median(found):9.1f} ms  {statistics.median(found) / ours:6.2f}x")


if __name__ == "__main__":
    main()
