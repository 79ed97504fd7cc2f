"""libtessera_ops.so under torch's own scrutiny: torch.library.opcheck of every op, values and
gradients against the definitions written out token by token, and what calls that fit no op answer.

    python tools/golden/torch_ops_check.py build/release/lib/libtessera_ops.so
"""

import os
import sys
import warnings

import torch
import torch.nn.functional as F

torch.ops.load_library(sys.argv[1])
ops = torch.ops.tessera
torch.manual_seed(1)
failed = 0

# one thread is one thread: before any work of more has started some
threads = torch.get_num_threads()
torch.set_num_threads(1)
before = os.listdir("/proc/self/task")
ops.wkv4(*(torch.randn(1, 4096, 64) for _ in range(2)), torch.rand(64), torch.rand(64), 64)
if len(os.listdir("/proc/self/task")) > len(before):
    print("threads: more than torch.set_num_threads(1) allows")
    failed += 1
torch.set_num_threads(threads)


def randn(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).requires_grad_()


def selective_scan(x, dt, dt_bias, a, b, c, d, _):
    step = F.softplus(dt + dt_bias)
    h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        s = step[:, t, :, None]
        h = torch.exp(s * a) * h + s * x[:, t, :, None] * b[:, t, None, :]
        out.append((h * c[:, t, None, :]).sum(-1) + d * x[:, t])
    return torch.stack(out, 1)


def ssd(x, dt, a, b, c, d, _):
    heads = x.shape[2]
    b, c = (z.repeat_interleave(heads // z.shape[2], 2) for z in (b, c))
    s = torch.zeros(x.shape[0], heads, x.shape[3], b.shape[3], dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        s = s * torch.exp(dt[:, t] * a)[..., None, None] + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        out.append((s * c[:, t, :, None]).sum(-1) + d[:, None] * x[:, t])
    return torch.stack(out, 1)


def recurrence(q, k, v, log_decay, beta=None, bonus=None, ab=None):
    s = torch.zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype)
    out = []
    for t in range(q.shape[1]):
        decay = log_decay if log_decay.dim() == 1 else log_decay[:, t]
        decay = torch.exp(decay)
        decay = decay[..., None, None] if decay.dim() < 3 else decay[..., None]
        kt, vt = k[:, t, ..., None], v[:, t, :, None]
        if bonus is not None:
            out.append(((s + bonus[..., None] * kt * vt) * q[:, t, ..., None]).sum(2))
        if ab is not None:
            a, b = (z[:, t, ..., None] for z in ab)
            s = decay * s + b * (s * a).sum(2, keepdim=True) + kt * vt
        else:
            s = decay * s
            if beta is None:
                s = s + kt * vt
            else:
                s = s + beta[:, t, :, None, None] * kt * (vt - (s * kt).sum(2, keepdim=True))
        if bonus is None:
            out.append((s * q[:, t, ..., None]).sum(2))
    return torch.stack(out, 1)


def wkv4(k, v, w, u, _):
    num = den = torch.zeros(k.shape[0], k.shape[2], dtype=k.dtype)
    out = []
    for t in range(k.shape[1]):
        e, now = torch.exp(k[:, t]), torch.exp(u + k[:, t])
        out.append((num + now * v[:, t]) / (den + now))
        num, den = torch.exp(w) * num + e * v[:, t], torch.exp(w) * den + e
    return torch.stack(out, 1)


def rg_lru(x, gate, rec, lam, _):
    log_a = -8 * F.softplus(lam) * torch.sigmoid(rec)
    x = torch.sigmoid(gate) * x
    h, out = x[:, 0], [x[:, 0]]
    for t in range(1, x.shape[1]):
        a = torch.exp(log_a[:, t])
        h = a * h + torch.sqrt(1 - a * a) * x[:, t]
        out.append(h)
    return torch.stack(out, 1)


def short_conv(x, w, bias, _):
    y = F.conv1d(F.pad(x.transpose(1, 2), (w.shape[1] - 1, 0)), w[:, None], bias, groups=w.shape[0])
    return y.transpose(1, 2)


def normalised(q, k, v, g, _):
    return recurrence(q, k, v, g) / (recurrence(q, k, torch.ones_like(v[..., :1]), g) + 1e-6)


def mlstm(q, k, v, i, f, _):
    c = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[3], dtype=q.dtype)
    n = torch.zeros(*q.shape[:1], *q.shape[2:], dtype=q.dtype)
    m = torch.zeros(*i.shape[:1], *i.shape[2:], dtype=q.dtype)
    k = k / k.shape[3] ** 0.5
    out = []
    for t in range(q.shape[1]):
        log_f = F.logsigmoid(f[:, t])
        last, m = m, torch.maximum(log_f + m, i[:, t])
        keep, write = torch.exp(log_f + last - m)[..., None], torch.exp(i[:, t] - m)[..., None]
        c = keep[..., None] * c + (write * k[:, t])[..., None] * v[:, t, :, None]
        n = keep * n + write * k[:, t]
        below = torch.maximum((n * q[:, t]).sum(-1).abs(), torch.exp(-m)) + 1e-6
        out.append((c * q[:, t, ..., None]).sum(2) / below[..., None])
    return torch.stack(out, 1)


def attention(q, k, v, window):
    t = q.shape[1]
    i, j = torch.arange(t)[:, None], torch.arange(t)
    seen = (j <= i) & (j > i - window) if window else j <= i
    k, v = (z.repeat_interleave(q.shape[2] // k.shape[2], 2).transpose(1, 2) for z in (k, v))
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen).transpose(1, 2)


def unit(*shape):
    return F.normalize(torch.randn(*shape), dim=-1).requires_grad_()


def decays(*shape):
    return (-torch.rand(*shape)).requires_grad_()


def positive(*shape):
    return torch.rand(*shape).requires_grad_()


B, T, E, N, H, K, V = 2, 37, 6, 4, 2, 8, 5
cases = [
    (ops.selective_scan, selective_scan, (randn(B, T, E), randn(B, T, E), randn(E), decays(E, N), randn(B, T, N), randn(B, T, N), randn(E), 16)),
    (ops.ssd, ssd, (randn(B, T, H, K), positive(B, T, H), decays(H), randn(B, T, 1, N), randn(B, T, 1, N), randn(H), 16)),
    (ops.linear_attention, lambda q, k, v, g, _: recurrence(q, k, v, g), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), 16)),
    (ops.linear_attention, lambda q, k, v, g, _: recurrence(q, k, v, g), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(H), 16)),
    (ops.linear_attention, lambda q, k, v, g, _: recurrence(q, k, v, g), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H), 16)),
    (ops.normalised_linear_attention, normalised, (positive(B, T, H, K), positive(B, T, H, K), randn(B, T, H, V), decays(B, T, H), 16)),
    (ops.delta_rule, lambda q, k, v, g, beta, _: recurrence(q, k, v, g, beta), (unit(B, T, H, K), unit(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), positive(B, T, H), 16)),
    (ops.mlstm, mlstm, (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), randn(B, T, H), randn(B, T, H), 16)),
    (ops.delta_rule, lambda q, k, v, g, beta, _: recurrence(q, k, v, g, beta), (unit(B, T, H, K), unit(B, T, H, K), randn(B, T, H, V), decays(B, T, H), positive(B, T, H), 16)),
    (ops.rwkv6, lambda r, k, v, g, u, _: recurrence(r, k, v, g, bonus=u), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), randn(H, K), 16)),
    (ops.rwkv7, lambda r, k, v, g, a, b, _: recurrence(r, k, v, g, ab=(a, b)), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), unit(B, T, H, K), unit(B, T, H, K), 16)),
    (ops.wkv4, wkv4, (randn(B, T, E), randn(B, T, E), decays(E), randn(E), 0)),
    (ops.rg_lru, rg_lru, (randn(B, T, E), randn(B, T, E), randn(B, T, E), randn(E), 16)),
    (ops.short_conv, short_conv, (randn(B, T, E), randn(E, 4), randn(E), 0)),
    (ops.short_conv_silu, lambda x, w, bias, _: F.silu(short_conv(x, w, bias, _)), (randn(B, T, E), randn(E, 4), randn(E), 0)),
    (ops.causal_attention, attention, (randn(B, T, 4, K), randn(B, T, 2, K), randn(B, T, 2, K), 0)),
    (ops.causal_attention, attention, (randn(B, T, 4, K), randn(B, T, 2, K), randn(B, T, 2, K), 9)),
]


def worst(got, want):
    return float((got.double() - want).abs().max() / want.abs().max().clamp_min(1e-30))


for op, definition, args in cases:
    tensors = [a for a in args if torch.is_tensor(a)]
    doubles = [a.detach().double().requires_grad_() if torch.is_tensor(a) else a for a in args]
    want = definition(*doubles)
    got = op(*args)
    weights = torch.randn(want.shape, dtype=torch.float64)
    (want * weights).sum().backward()
    gradients = torch.autograd.grad((got * weights.float()).sum(), tensors)
    errors = [worst(got.detach(), want.detach())]
    errors += [worst(g, d.grad) for g, d in zip(gradients, [d for d in doubles if torch.is_tensor(d)])]
    checks = torch.library.opcheck(op.default, args, raise_exception=False)
    good = errors[0] < 1e-5 and max(errors) < 1e-4 and all(v == "SUCCESS" for v in checks.values())
    failed += not good
    print(f"{op.__name__:20} forward {errors[0]:.1e} gradients {max(errors[1:]):.1e} {'' if good else checks}")


# Calls that fit no op: every tensor with one size more, one dimension less, or integers; and an
# integer below its least. None may be computed.
def refused(op, args):
    try:
        op(*args)
    except ValueError as error:
        return str(error).startswith(f"[{op.__name__}]")
    return False


def wrong(args):
    for i, x in enumerate(args):
        others = lambda y: args[:i] + (y,) + args[i + 1 :]
        if not torch.is_tensor(x):
            yield f"argument {i} = -1", others(-1)
            continue
        yield f"argument {i} of integers", others(x.detach().long())
        yield f"argument {i} with a dimension less", others(x.detach()[0])
        for d in range(x.dim()):
            more = torch.cat([x, x.narrow(d, 0, 1)], d).detach()
            yield f"argument {i} with sizes {list(more.shape)}", others(more)


# A size that stands in one argument alone may be any, and so may a number of heads that divides.
FREE = {("linear_attention", 2, 3), ("normalised_linear_attention", 2, 3), ("delta_rule", 2, 3), ("rwkv6", 2, 3), ("rwkv7", 2, 3), ("mlstm", 2, 3),
        ("ssd", 0, 3)} | {(op, *at) for op in ("short_conv", "short_conv_silu") for at in ((0, 0), (0, 1), (1, 1))}
for op, _, args in cases:
    for what, call in wrong(args):
        changed = [d for x, y in zip(args, call) if torch.is_tensor(x) and x.dim() == y.dim() for d in range(x.dim()) if x.shape[d] != y.shape[d]]
        index = next(i for i, (x, y) in enumerate(zip(args, call)) if x is not y)
        if changed and (op.__name__, index, changed[0]) in FREE:
            op(*call)  # is computed
            continue
        for device in ("cpu", "meta"):
            there = tuple(x.to(device) if torch.is_tensor(x) else x for x in call)
            if not refused(op, there):
                print(f"{op.__name__}: not refused on {device}: {what}")
                failed += 1

# nothing to compute
for op, _, args in cases:
    for d in (0, 1):
        none = tuple(x.detach().narrow(d, 0, 0) if torch.is_tensor(x) and x.dim() >= 3 else x for x in args)
        if op(*none).numel() != 0:
            print(f"{op.__name__}: no tokens, some result")
            failed += 1

# gradients have none, and say so
for op, _, args in cases:
    tensors = [x for x in args if torch.is_tensor(x)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (first, *_) = torch.autograd.grad(op(*args).square().sum(), tensors, create_graph=True)
        try:
            first.sum().backward()
            print(f"{op.__name__}: a gradient of gradients")
            failed += 1
        except NotImplementedError:
            pass
sys.exit(failed > 0)
