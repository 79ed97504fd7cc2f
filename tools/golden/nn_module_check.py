"""tessera.nn against plain PyTorch: outputs and gradients, an optimizer's steps, states without a copy.

    TESSERA_LIBRARY=build/release/lib/libtessera.so PYTHONPATH=python python tools/golden/nn_module_check.py
"""

import copy
import sys

import torch
import torch.nn.functional as F

import tessera

torch.manual_seed(1)
B, T, D = 2, 37, 16


def plain_mamba2(p, x, heads, state, taps):
    """The recurrence token by token (Dao, Gu 2024, arXiv:2405.21060)."""
    inner = 2 * x.shape[2]
    z, xbc, dt = F.linear(x, p["in.weight"]).split([inner, inner + 2 * state, heads], -1)
    xbc = F.conv1d(F.pad(xbc.transpose(1, 2), (taps - 1, 0)), p["conv.weight"].unsqueeze(1), p["conv.bias"],
                   groups=xbc.shape[2]).transpose(1, 2)
    u, b, c = F.silu(xbc).split([inner, state, state], -1)
    u = u.unflatten(-1, (heads, -1))
    dt = F.softplus(dt + p["dt_bias"])
    h = torch.zeros(x.shape[0], heads, u.shape[3], state, dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        decay = torch.exp(-dt[:, t] * p["a_log"].exp())[:, :, None, None]
        h = decay * h + (dt[:, t, :, None] * u[:, t])[..., None] * b[:, t, None, None]
        out.append((h * c[:, t, None, None]).sum(-1) + p["d"][:, None] * u[:, t])
    y = torch.stack(out, 1).flatten(2) * F.silu(z)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * p["norm.weight"]
    return F.linear(y, p["out.weight"])


def plain_attention(p, x, heads):
    q, k, v = (F.linear(x, p[n + ".weight"]).unflatten(-1, (heads, -1)).transpose(1, 2) for n in "qkv")
    return F.linear(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2), p["o.weight"])


mamba2 = tessera.nn.module({"type": "mamba2", "n_heads": 4, "d_state": 8}, d_model=D, dtype=torch.float64)
attention = tessera.nn.module({"type": "attention", "n_heads": 4}, d_model=D, dtype=torch.float64)
for module, plain in [(mamba2, lambda p, x: plain_mamba2(p, x, 4, 8, 4)),
                      (attention, lambda p, x: plain_attention(p, x, 4))]:
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    names = dict(module.named_parameters())
    toward = torch.randn(B, T, D, dtype=torch.float64)
    ours, theirs = module(x), plain(names, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    inputs = [x, *names.values()]
    for name, a, b in zip(["x", *names], torch.autograd.grad((ours * toward).sum(), inputs),
                          torch.autograd.grad((theirs * toward).sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m: f"{name}: {m}")

# every kind of part takes steps of an optimizer
for spec in [{"type": "gated_delta_net", "n_heads": 2}, {"type": "rwkv7", "n_heads": 2},
             {"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 16}}, "rms_norm",
             [{"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}, "ffn": {"type": "glu", "d_hidden": 32}}]]:
    module = tessera.nn.module(spec, d_model=D)
    assert list(module.parameters())
    optimizer = torch.optim.AdamW(module.weight_decay_groups(0.1), lr=1e-2)
    x, wanted = torch.randn(B, T, D), torch.randn(B, T, D)
    errors = []
    for _ in range(20):
        loss = (module(x) - wanted).square().mean()
        optimizer.zero_grad()
        (loss + 0.01 * sum(module.losses.values())).backward()
        optimizer.step()
        errors.append(loss.item())
    assert errors[-1] < errors[0], (spec, errors)
    other = copy.deepcopy(module)
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other.eval()(x), module.eval()(x))

# tensors pass without a copy; states continue, and are the library's own memory
layer = tessera.nn.module({"type": "mamba2", "n_heads": 4, "d_state": 8}, d_model=D).eval()
x = torch.randn(B, T, D)
with torch.no_grad():
    whole, state = layer(x), layer.state(rows=B)
    parts = torch.cat([layer(x[:, :20], state=state), layer(x[:, 20:], state=state)], 1)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    assert state.rows == B and state.length(1) == T
    held = [name for name, value in state.tensors().items() if isinstance(value, torch.Tensor)]
    ssm = next(name for name in held if name.endswith("ssm"))
    assert state.tensors()[ssm].data_ptr() == state.tensors()[ssm].data_ptr()
    before = layer(x[:, :1], state=state.select([0, 1]))
    state.tensors(0)[ssm].zero_()
    assert state.tensors(0)[ssm].abs().max() == 0
    after = layer(x[:, :1], state=state)
    assert not torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])

# a whole model: ids to logits
model = tessera.nn.module({"tessera": 1, "arch": "decoder", "vocab": 50, "d_model": D, "head": "tied",
                           "layers": [{"mixer": {"type": "attention", "n_heads": 2, "position": "rope"},
                                       "ffn": {"type": "glu", "d_hidden": 32}}]})
ids = torch.randint(50, (B, T))
logits = model(ids)
assert logits.shape == (B, T, 50)
F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
assert all(p.grad is not None for p in model.parameters())
with torch.no_grad():
    model.eval()
    state = model.state(rows=B)
    parts = torch.cat([model(ids[:, :5], state=state), model(ids[:, 5:], state=state)], 1)
    torch.testing.assert_close(parts, model(ids), rtol=1e-4, atol=1e-5)
    key = next(v for v in state.tensors().values() if isinstance(v, list))[0]
    assert key.shape[0] == T

# what does not fit is one line
for call in [lambda: tessera.nn.module({"type": "mamba22"}, d_model=8), lambda: tessera.nn.module("rms_norm"),
             lambda: layer(torch.randn(2, 3, 5)), lambda: model(torch.full((1, 2), 99)),
             lambda: model.bfloat16()(ids)]:
    try:
        call()
    except tessera.Error as error:
        assert str(error).startswith("[") and "\n" not in str(error), error
    else:
        raise SystemExit("no error")

if len(sys.argv) > 1:  # a model's path
    loaded = tessera.load(sys.argv[1])
    ids = [79, 110, 99, 101]
    logits = loaded.forward(ids)
    assert logits.shape[0] == 4 and logits.tolist() == loaded.logits(ids).tolist()
    state = loaded.state()
    torch.testing.assert_close(torch.cat([loaded.forward(ids[:2], state), loaded.forward(ids[2:], state)]), logits,
                               rtol=1e-4, atol=1e-5)
print("ok")
