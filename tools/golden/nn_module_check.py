"""tessera.nn compared with plain PyTorch: outputs and gradients, an optimizer's steps, states without a copy.

    TESSERA_LIBRARY=build/release/lib/libtessera.so PYTHONPATH=python python tools/golden/nn_module_check.py
"""

import copy
import io
import pickle
import sys
import threading

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

# it is a module like any other: state_dict, pickle, hooks, containers, frozen parameters, functional calls
x = torch.randn(B, T, D)
files = [io.BytesIO(), io.BytesIO()]
torch.save(layer.state_dict(), files[0])
torch.save(layer, files[1])
other = tessera.nn.module(layer.spec, d_model=D, seed=5).eval()
assert not torch.equal(other(x), layer(x))
other.load_state_dict(torch.load(io.BytesIO(files[0].getvalue())))
for same in [other, pickle.loads(pickle.dumps(layer)), torch.load(io.BytesIO(files[1].getvalue()), weights_only=False)]:
    assert torch.equal(same(x), layer(x))
network = torch.nn.Sequential(torch.nn.Linear(3, D), tessera.nn.module({"type": "gated_delta_net", "n_heads": 2}, d_model=D),
                              torch.nn.LayerNorm(D), layer, torch.nn.Linear(D, 1)).train()
seen = []
layer.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
layer.register_full_backward_hook(lambda module, before, after: seen.append(before[0] is not None))
names = dict(layer.named_parameters())
names["in.weight"].requires_grad_(False)
network(torch.randn(B, T, 3)).sum().backward()
assert seen == [(B, T, D), True] and names["in.weight"].grad is None and names["out.weight"].grad is not None
names["in.weight"].requires_grad_(True)
layer._forward_hooks.clear(), layer._backward_hooks.clear()
layer.eval()
before = layer(x)
doubled = torch.func.functional_call(layer, {name: 2 * value for name, value in names.items()}, x)
assert not torch.equal(doubled, before) and torch.equal(layer(x), before)
torch.testing.assert_close(copy.deepcopy(layer).double()(x.double()), before.double(), rtol=1e-4, atol=1e-5)
with torch.autocast("cpu", torch.bfloat16):
    torch.testing.assert_close(layer(x), before)
    assert layer(torch.nn.Linear(D, D)(x)).dtype == torch.float32
with torch.no_grad():  # an evaluation sees the last update
    first = layer.eval()(x)
    for parameter in layer.parameters():
        parameter.mul_(1.5)
    assert not torch.equal(layer(x), first) and torch.equal(layer(x), copy.deepcopy(layer)(x))
with torch.inference_mode():
    torch.testing.assert_close(layer(x), layer(x.clone()))
weights = copy.deepcopy(layer)
torch.nn.utils.parametrizations.weight_norm(weights.get_submodule("in"))
weights(x).sum().backward()
assert weights.get_submodule("in").parametrizations.weight.original1.grad is not None
assert "in.weight" in repr(list(names)) and "weight=[" in repr(layer)

# a state forks, and belongs to modules of its spec
state = layer.state(rows=B)
layer(x[:, :5], state=state)
forks = [copy.copy(state), copy.deepcopy(state)]
layer(x[:, 5:7], state=state)
assert [s.length(0) for s in (state, *forks)] == [7, 5, 5]
assert torch.equal(layer(x[:, 5:7], state=forks[0]), layer(x[:, 5:7], state=forks[1]))

# calls release the GIL
large = tessera.nn.module({"type": "mamba2", "n_heads": 8}, d_model=128)
ticks, ended = [0], threading.Event()


def tick():
    while not ended.wait(0.0005):
        ticks[0] += 1


thread = threading.Thread(target=tick)
thread.start()
result = large(torch.randn(4, 512, 128))
in_forward = ticks[0]
result.sum().backward()
ended.set()
thread.join()
assert in_forward > 2 and ticks[0] > in_forward + 2, (in_forward, ticks)

# an error is one line of tessera.Error; arguments of a wrong Python type are a TypeError
mamba2 = {"type": "mamba2", "n_heads": 4}
attention_state = tessera.nn.module({"type": "attention", "n_heads": 2}, d_model=D).state(B)
whole = {"tessera": 1, "arch": "decoder", "vocab": 50, "d_model": D, "head": "tied", "layers": [{"mixer": mamba2}]}
for kind, start, call in [
        (tessera.Error, '[nn] type "mamba22" is no', lambda: tessera.nn.module({"type": "mamba22"}, d_model=8)),
        (tessera.Error, '[mixer] unknown key "n_head" (did you mean "n_heads"?)',
         lambda: tessera.nn.module({"type": "mamba2", "n_head": 4}, d_model=8)),
        (tessera.Error, '[norm] unknown key "epss"', lambda: tessera.nn.module({"type": "rms_norm", "epss": 1}, d_model=8)),
        (tessera.Error, '[layers[0]] unknown key "mixr"', lambda: tessera.nn.module([{"mixr": "mamba2"}], d_model=8)),
        (tessera.Error, "[nn] d_model is missing", lambda: tessera.nn.module("rms_norm")),
        (tessera.Error, "[nn] d_model = 8; the spec has", lambda: tessera.nn.module(whole, d_model=8)),
        (tessera.Error, "[nn] no \"type\"", lambda: tessera.nn.module({"type": 5}, d_model=8)),
        (tessera.Error, "[nn] seed = -1", lambda: tessera.nn.module(mamba2, d_model=8, seed=-1)),
        (tessera.Error, "[nn] dtype", lambda: tessera.nn.module(mamba2, d_model=8, dtype=torch.bfloat16)),
        (TypeError, "[nn] d_model = '8'", lambda: tessera.nn.module(mamba2, d_model="8")),
        (TypeError, "[nn] spec is a NoneType", lambda: tessera.nn.module(None)),
        (FileNotFoundError, "", lambda: tessera.nn.module("no such.json")),
        (tessera.Error, "[nn] input: Float [2, 3, 5]; expected", lambda: layer(torch.randn(2, 3, 5))),
        (tessera.Error, "[nn] input is torch.float64; the parameters are", lambda: layer(x.double())),
        (tessera.Error, "[nn] the input is empty", lambda: layer(x[:, :0])),
        (tessera.Error, "[nn] input is a torch.sparse_coo tensor", lambda: layer(x.to_sparse())),
        (tessera.Error, "[nn] input is a torch.strided tensor on meta", lambda: layer(x.to("meta"))),
        (tessera.Error, "[input] attention_mask", lambda: layer(x, mask=torch.ones(B, 3))),
        (tessera.Error, "[nn] input: tokens", lambda: model(torch.full((1, 2), 99))),
        (tessera.Error, "[nn] 1 rows of input", lambda: layer(x[:1], state=layer.state(2))),
        (tessera.Error, "[nn] the state is of another spec", lambda: layer(x, state=attention_state)),
        (TypeError, "[nn] input is a list", lambda: layer([[1.0]])),
        (TypeError, "[nn] state is a int", lambda: layer(x, state=5)),
        (TypeError, "[nn] a State cannot be pickled", lambda: pickle.dumps(layer.state())),
        (tessera.Error, "[nn] embed.token.weight is torch.bfloat16", lambda: copy.deepcopy(model).bfloat16()(ids))]:
    try:
        call()
    except kind as error:
        assert str(error).startswith(start) and "\n" not in str(error), error
        if kind is tessera.Error:
            assert pickle.loads(pickle.dumps(error)).code == error.code
    else:
        raise SystemExit(f"no error: {start}")

for given in [model, whole]:
    assert tessera.draw(given).svg.startswith("<svg")

if len(sys.argv) > 1:  # a model's path
    loaded = tessera.load(sys.argv[1])
    ids = [79, 110, 99, 101]
    logits = loaded.forward(ids)
    assert logits.shape[0] == 4 and logits.tolist() == loaded.logits(ids).tolist()
    state = loaded.state()
    torch.testing.assert_close(torch.cat([loaded.forward(ids[:2], state), loaded.forward(ids[2:], state)]), logits,
                               rtol=1e-4, atol=1e-5)
print("ok")
