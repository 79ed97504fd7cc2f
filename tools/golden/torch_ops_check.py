"""libtessera_ops.so under torch's own scrutiny: torch.library.opcheck of every op, and values and
gradients against the definitions written out token by token.

    python tools/golden/torch_ops_check.py build/release/lib/libtessera_ops.so
"""

import sys

import torch
import torch.nn.functional as F

torch.ops.load_library(sys.argv[1])
ops = torch.ops.tessera
torch.manual_seed(1)


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
    return F.silu(y.transpose(1, 2))


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


B, T, E, N, H, K, V = 2, 37, 6, 4, 2, 8, 5
cases = [
    (ops.selective_scan, selective_scan, (randn(B, T, E), randn(B, T, E), randn(E), decays(E, N), randn(B, T, N), randn(B, T, N), randn(E), 16)),
    (ops.ssd, ssd, (randn(B, T, H, K), torch.rand(B, T, H).requires_grad_(), decays(H), randn(B, T, 1, N), randn(B, T, 1, N), randn(H), 16)),
    (ops.linear_attention, lambda q, k, v, g, _: recurrence(q, k, v, g), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), 16)),
    (ops.linear_attention, lambda q, k, v, g, _: recurrence(q, k, v, g), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(H), 16)),
    (ops.delta_rule, lambda q, k, v, g, beta, _: recurrence(q, k, v, g, beta), (unit(B, T, H, K), unit(B, T, H, K), randn(B, T, H, V), decays(B, T, H), torch.rand(B, T, H).requires_grad_(), 16)),
    (ops.rwkv6, lambda r, k, v, g, u, _: recurrence(r, k, v, g, bonus=u), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), randn(H, K), 16)),
    (ops.rwkv7, lambda r, k, v, g, a, b, _: recurrence(r, k, v, g, ab=(a, b)), (randn(B, T, H, K), randn(B, T, H, K), randn(B, T, H, V), decays(B, T, H, K), unit(B, T, H, K), unit(B, T, H, K), 16)),
    (ops.wkv4, wkv4, (randn(B, T, E), randn(B, T, E), decays(E), randn(E), 0)),
    (ops.rg_lru, rg_lru, (randn(B, T, E), randn(B, T, E), randn(B, T, E), randn(E), 16)),
    (ops.short_conv_silu, short_conv, (randn(B, T, E), randn(E, 4), randn(E), 0)),
    (ops.causal_attention, attention, (randn(B, T, 4, K), randn(B, T, 2, K), randn(B, T, 2, K), 0)),
    (ops.causal_attention, attention, (randn(B, T, 4, K), randn(B, T, 2, K), randn(B, T, 2, K), 9)),
]


def worst(got, want):
    return float((got.double() - want).abs().max() / want.abs().max().clamp_min(1e-30))


failed = 0
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
sys.exit(failed > 0)
