"""References of released formats that transformers has no class for, in plain torch on the CPU.

flash-linear-attention (https://github.com/fla-org/flash-linear-attention, commit bc3b101d) computes with kernels for GPUs.
Here its models are written down from their mathematics, token by token: every recurrence is the loop over time that its paper
states, in float64, so that no chunking, kernel or reordering of sums is shared with the code under test. Names of parameters
and keys of configs are those of the released files.

A model is a torch module with `defaults` (the class's config), built by from_settings() or from_files(); reference.py uses it
in place of a class of transformers.
"""

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

SOURCE = "plain torch after flash-linear-attention bc3b101d"


class Config(dict):
    """A config as attributes."""

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __setattr__(self, key, value):
        self[key] = value


def written(config):
    """Infinities as transformers writes them."""
    if isinstance(config, dict):
        return {key: written(value) for key, value in config.items()}
    if isinstance(config, list):
        return [written(value) for value in config]
    return {"__float__": "Infinity" if config > 0 else "-Infinity"} if isinstance(config, float) and math.isinf(config) else config


def read(config):
    if isinstance(config, dict):
        return float(config["__float__"]) if "__float__" in config else {key: read(value) for key, value in config.items()}
    return [read(value) for value in config] if isinstance(config, list) else config


class Output(dict):
    __getattr__ = dict.get


# --- parts ---------------------------------------------------------------------------------------


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.double()
        return (wide / (wide.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).float() * self.weight


def gated(norm, x, gate, act=F.silu):
    """norm(x) times the activation of the gate, head by head."""
    return norm(x) * act(gate)


class ShortConv(nn.Conv1d):
    """Causal, of single channels; weight [C, 1, taps], no bias."""

    def __init__(self, channels, taps, act):
        super().__init__(channels, channels, taps, groups=channels, padding=taps - 1, bias=False)
        self.act = act

    def forward(self, x):
        return self.act(super().forward(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))


def heads(x, count):
    return x.unflatten(-1, (count, -1))


def unit(x):
    """x over its length; 1e-6 within the root."""
    wide = x.double()
    return wide / (wide.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def rotate(x, theta):
    """Rotary positions from 0 on, of x [B, T, H, D]; channel m turns with channel m + D / 2."""
    width = x.shape[-1]
    speed = theta ** -(torch.arange(0, width, 2).double() / width)
    angle = torch.arange(x.shape[1]).double()[:, None, None] * speed
    left, right = x.double().chunk(2, -1)
    return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], -1)


def recurrence(q, k, v, decay=None, beta=None, scale=1.0):
    """S_t = diag(decay_t) S_{t-1}, plus k_t v_t^T, or beta_t k_t (v_t - S^T k_t)^T; o_t = scale S_t^T q_t.

    q, k [B, T, H, K], v [B, T, H, V]; decay [B, T, H, K] or [B, T, H, 1] are factors, beta [B, T, H].
    """
    q, k, v = q.double(), k.double(), v.double()
    state, out = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1]).double(), []
    for t in range(q.shape[1]):
        if decay is not None:
            state = state * decay[:, t, :, :, None]
        new = v[:, t]
        if beta is not None:
            new = beta[:, t, :, None] * (new - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * new[:, :, None, :]
        out.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1).float()


class GatedMLP(nn.Module):
    """down(silu(gate x) * up x)"""

    def __init__(self, c):
        super().__init__()
        if c.hidden_act != "swish":
            raise ValueError(f"hidden_act {c.hidden_act}")
        ratio = 4 if c.hidden_ratio is None else c.hidden_ratio
        width = c.get("intermediate_size")
        if width is None:
            width = -(-int(c.hidden_size * ratio * 2 / 3) // 256) * 256
        self.gate_proj, self.up_proj = linear(c.hidden_size, width), linear(c.hidden_size, width)
        self.down_proj = linear(width, c.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Causal softmax attention with rotary positions, grouped keys and values, a window."""

    def __init__(self, c, num_heads, num_kv_heads=None, qkv_bias=False, qk_norm=False, window_size=None, rope_theta=10000.0):
        super().__init__()
        self.heads, self.kv_heads = num_heads, num_kv_heads or num_heads
        self.window, self.theta, self.head_dim = window_size, rope_theta, c.hidden_size // num_heads
        self.q_proj = linear(c.hidden_size, c.hidden_size, qkv_bias)
        self.k_proj = linear(c.hidden_size, self.kv_heads * self.head_dim, qkv_bias)
        self.v_proj = linear(c.hidden_size, self.kv_heads * self.head_dim, qkv_bias)
        self.o_proj = linear(c.hidden_size, c.hidden_size)
        if qk_norm:  # of a head, with the default eps of the norm
            self.q_norm, self.k_norm = RMSNorm(self.head_dim, 1e-5), RMSNorm(self.head_dim, 1e-5)

    def forward(self, x):
        q, k, v = heads(self.q_proj(x), self.heads), heads(self.k_proj(x), self.kv_heads), heads(self.v_proj(x), self.kv_heads)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, self.theta), rotate(k, self.theta)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 2) for y in (k, v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.head_dim)
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        hidden = (back < 0) | (back >= self.window if self.window is not None else back < 0)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return self.o_proj(torch.einsum("bhts,bshd->bthd", weights, v.double()).float().flatten(2))


def attention_of(c, layer):
    """What `attn` says of a layer: an object, or a list of them."""
    given = c.get("attn") or []
    for one in [given] if isinstance(given, dict) else given:
        if layer in one["layers"]:
            names = ("num_heads", "num_kv_heads", "qkv_bias", "window_size", "rope_theta")
            return Attention(c, **{name: one[name] for name in names if name in one})
    return None


def require(c, **values):
    for key, value in values.items():
        if c.get(key, value) != value:
            raise ValueError(f"{key} = {c[key]!r}; this reference knows {value!r}")


# --- mixers --------------------------------------------------------------------------------------


class MultiLatent(nn.Module):
    """Softmax attention whose keys and values come from one latent of a token; a rotary key of all heads; a window."""

    def __init__(self, c, layer):
        super().__init__()
        self.count, self.nope, self.rotary, self.window, self.theta = c.num_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.window_size, c.rope_theta
        width = self.nope + self.rotary
        if c.qk_head_dim not in (None, width):
            raise ValueError(f"qk_head_dim {c.qk_head_dim}")
        if c.q_lora_rank is None:
            self.q_proj = linear(c.hidden_size, self.count * width)
        else:
            self.q_proj = nn.Sequential(linear(c.hidden_size, c.q_lora_rank), RMSNorm(c.q_lora_rank, 1e-5), linear(c.q_lora_rank, self.count * width))
        self.k_rope = linear(c.hidden_size, self.rotary)
        self.kv_proj = nn.Sequential(linear(c.hidden_size, c.kv_lora_rank), RMSNorm(c.kv_lora_rank, 1e-5), linear(c.kv_lora_rank, self.count * (self.nope + c.v_head_dim)))
        self.o_proj = linear(self.count * c.v_head_dim, c.hidden_size)
        self.scale, scaling = 1 / math.sqrt(width), c.rope_scaling
        if scaling is not None and scaling.get("mscale_all_dim", 0) and scaling["factor"] > 1:
            self.scale *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2

    def forward(self, x):
        q, kv = heads(self.q_proj(x), self.count), heads(self.kv_proj(x), self.count)
        k, v = kv[..., : self.nope].double(), kv[..., self.nope:].double()
        turned = rotate(self.k_rope(x)[:, :, None], self.theta).expand(-1, -1, self.count, -1)
        scores = torch.einsum("bthd,bshd->bhts", q[..., : self.nope].double(), k) + torch.einsum("bthd,bshd->bhts", rotate(q[..., self.nope:], self.theta), turned)
        back = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        hidden = (back < 0) | (back >= self.window if self.window is not None else back < 0)
        weights = (self.scale * scores).masked_fill(hidden, -math.inf).softmax(-1)
        return self.o_proj(torch.einsum("bhts,bshd->bthd", weights, v).float().flatten(2))


class Retention(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        require(c, num_kv_heads=None, feature_map=None, use_output_gate=True, elementwise_affine=True)
        self.count = c.num_heads
        keys, values = int(c.hidden_size * c.expand_k), int(c.hidden_size * c.expand_v)
        self.q_proj, self.k_proj, self.v_proj = (linear(c.hidden_size, n) for n in (keys, keys, values))
        self.g_proj, self.o_proj = linear(c.hidden_size, values), linear(values, c.hidden_size)
        self.gate_norm = "g_norm_swish_gate" if c.fuse_norm else "g_norm"
        self.add_module(self.gate_norm, RMSNorm(values // c.num_heads, c.norm_eps))

    def read(self, x, q, k, v):
        fade = 1 - 2.0 ** -(5 + torch.arange(self.count).double())
        q, k = rotate(q, 10000.0), rotate(k, 10000.0)
        return recurrence(q, k, v, fade[None, None, :, None].expand(*q.shape[:3], 1), scale=q.shape[-1] ** -0.5)

    def forward(self, x):
        q, k, v, g = (heads(p(x), self.count) for p in (self.q_proj, self.k_proj, self.v_proj, self.g_proj))
        return self.o_proj(gated(getattr(self, self.gate_norm), self.read(x, q, k, v), g).flatten(2))


class GatedLinearAttention(Retention):
    """As retention, with decays per key channel: logsigmoid of two products, over 16."""

    def __init__(self, c, layer):
        super().__init__(c, layer)
        require(c, use_short_conv=False, clamp_min=None)
        self.gk_proj = nn.Sequential(linear(c.hidden_size, 16), linear(16, int(c.hidden_size * c.expand_k), True))

    def read(self, x, q, k, v):
        log = F.logsigmoid(heads(self.gk_proj(x), self.count).double()) / 16
        return recurrence(q, k, v, log.exp(), scale=q.shape[-1] ** -0.5)


class FeatureProduct(nn.Module):
    """The product of two learned maps of a head's channels."""

    def __init__(self, width):
        super().__init__()
        self.layer1, self.layer2 = linear(width, width, True), linear(width, width, True)

    def forward(self, x):
        return self.layer1(x) * self.layer2(x)


class LinearAttention(nn.Module):
    """Sums of keys and values under a feature map, and a norm of each head's output."""

    maps = {"elu": lambda x: F.elu(x) + 1, "relu": F.relu, "identity": lambda x: x}

    def __init__(self, c, layer):
        super().__init__()
        require(c, elementwise_affine=True)
        if c.num_kv_heads not in (None, c.num_heads):
            raise ValueError(f"num_kv_heads {c.num_kv_heads}")
        self.count, self.sums, self.divides = c.num_heads, (c.norm_q, c.norm_k), c.norm_feature_map
        keys, values = int(c.hidden_size * c.expand_k), int(c.hidden_size * c.expand_v)
        self.q_proj, self.k_proj, self.v_proj = (linear(c.hidden_size, n) for n in (keys, keys, values))
        self.o_proj = linear(values, c.hidden_size)
        if c.feature_map == "elementwise_product":
            self.feature_map_q = FeatureProduct(keys // c.num_heads)
            if not c.tie_feature_map_qk:
                self.feature_map_k = FeatureProduct(keys // c.num_heads)
        else:
            self.feature_map_q = self.feature_map_k = self.maps[c.feature_map]
        self.norm = RMSNorm(values // c.num_heads, c.norm_eps)

    def forward(self, x):
        q, k, v = (heads(p(x), self.count) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.feature_map_q(q).double(), getattr(self, "feature_map_k", self.feature_map_q)(k).double()
        q, k = (y / (y.sum(-1, True) + 1e-4) if summed else y for y, summed in zip((q, k), self.sums))
        scale = q.shape[-1] ** -0.5
        o = recurrence(q, k, v, scale=scale).double()
        if self.divides:
            o = o / ((scale * q * k.cumsum(1)).sum(-1, True) + 1e-10)
        return self.o_proj(self.norm(o).flatten(2))


class HeadRms(nn.Module):
    """An RMS norm of every head with weights of its own, by the default eps."""

    def __init__(self, count, width):
        super().__init__()
        self.count, self.weight = count, nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = heads(x.double(), self.count)
        return (y / (y.pow(2).mean(-1, True) + 1e-5).sqrt()).flatten(2).float() * self.weight


class Forgetting(nn.Module):
    """Softmax attention with a forget gate of each head, without positions."""

    def __init__(self, c, layer):
        super().__init__()
        require(c, window_size=None)
        self.count, self.groups, width = c.num_heads, c.num_kv_heads or c.num_heads, c.hidden_size
        keys = self.groups * (width // self.count)
        self.q_proj, self.k_proj, self.v_proj = (linear(width, n, c.qkv_bias) for n in (width, keys, keys))
        self.f_proj, self.o_proj = linear(width, self.count, True), linear(width, width)
        if c.use_output_gate:
            self.g_proj = linear(width, width)
        if c.qk_norm:
            self.q_norm, self.k_norm = HeadRms(self.count, width), HeadRms(self.groups, keys)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = heads(q, self.count).double(), heads(k, self.groups).double(), heads(v, self.groups).double()
        k, v = (y.repeat_interleave(self.count // self.groups, 2) for y in (k, v))
        gone = F.logsigmoid(self.f_proj(x).double()).cumsum(1).transpose(1, 2)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1]) + gone[..., :, None] - gone[..., None, :]
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        o = torch.einsum("bhts,bshd->bthd", scores.masked_fill(later, -math.inf).softmax(-1), v).flatten(2)
        if hasattr(self, "g_proj"):
            o = o * self.g_proj(x).double().sigmoid()
        return self.o_proj(o.float())


class SparseAttention(nn.Module):
    """Means of blocks, the tokens of chosen blocks and a window, of the same queries, keys and values, each times a gate."""

    def __init__(self, c, layer):
        super().__init__()
        self.count, self.groups = c.num_heads, c.num_kv_heads or c.num_heads
        self.block, self.chosen, self.window, self.theta = c.block_size, c.block_counts, c.window_size, c.rope_theta
        for name, n in (("q", self.count), ("k", self.groups), ("v", self.groups)):
            self.add_module(f"{name}_proj", linear(c.hidden_size, n * c.head_dim, c.qkv_bias))
        self.g_proj, self.o_proj = linear(c.hidden_size, 3 * self.count), linear(self.count * c.head_dim, c.hidden_size)

    def forward(self, x):
        q, k = rotate(heads(self.q_proj(x), self.count), self.theta), rotate(heads(self.k_proj(x), self.groups), self.theta)
        v, gates = heads(self.v_proj(x), self.groups).double(), heads(self.g_proj(x), self.count).double().sigmoid()
        out, per = torch.zeros_like(q), self.count // self.groups
        for row in range(x.shape[0]):
            for t in range(x.shape[1]):
                own = t // self.block
                for group in range(self.groups):
                    mine = slice(group * per, (group + 1) * per)
                    asked, keys, values, gate = q[row, t, mine] / math.sqrt(q.shape[-1]), k[row, : t + 1, group], v[row, : t + 1, group], gates[row, t, mine]
                    importance, whole = torch.zeros(own + 1).double(), (t + 1) // self.block
                    if whole > 0:
                        mean_k, mean_v = (y[: whole * self.block].unflatten(0, (whole, self.block)).mean(1) for y in (keys, values))
                        weights = (asked @ mean_k.T).softmax(-1)
                        out[row, t, mine] += gate[:, :1] * (weights @ mean_v)
                        importance[:whole] += weights.mean(0)
                    importance[[0, max(own - 1, 0), own]] = 2.0
                    best = importance.topk(min(self.chosen, own + 1)).indices
                    seen = (torch.arange(t + 1)[:, None] // self.block == best).any(1)
                    near = torch.arange(t + 1) > t - self.window
                    for column, among in ((1, seen), (2, near)):
                        out[row, t, mine] += gate[:, column, None] * ((asked @ keys[among].T).softmax(-1) @ values[among])
        return self.o_proj(out.flatten(2).float())


class DeltaRule(nn.Module):
    """Unit queries and keys through short convolutions, beta, a norm of heads with or without a gate."""

    def __init__(self, c, key_heads, value_heads, key_dim, value_dim):
        super().__init__()
        self.key_heads, self.value_heads, self.twice = key_heads, value_heads, c.allow_neg_eigval
        keys, values = key_heads * key_dim, value_heads * value_dim
        self.q_proj, self.k_proj, self.v_proj = (linear(c.hidden_size, n) for n in (keys, keys, values))
        self.b_proj = linear(c.hidden_size, value_heads)
        if c.use_short_conv:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (ShortConv(n, c.conv_size, F.silu) for n in (keys, keys, values))
        self.o_norm, self.o_proj = RMSNorm(value_dim, c.norm_eps), linear(values, c.hidden_size)

    def decay(self, x):
        return None

    def gate(self, x, o):
        return gated(self.o_norm, o, heads(self.g_proj(x), self.value_heads)) if hasattr(self, "g_proj") else self.o_norm(o)

    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if hasattr(self, "q_conv1d"):
            q, k, v = self.q_conv1d(q), self.k_conv1d(k), self.v_conv1d(v)
        else:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        q, k = (unit(heads(y, self.key_heads)).repeat_interleave(self.value_heads // self.key_heads, 2) for y in (q, k))
        beta = self.b_proj(x).double().sigmoid() * (2 if self.twice else 1)
        o = recurrence(q, k, heads(v, self.value_heads), self.decay(x), beta, q.shape[-1] ** -0.5)
        return self.o_proj(self.gate(x, o).flatten(2))


class DeltaNet(DeltaRule):
    def __init__(self, c, layer):
        require(c, use_beta=True, qk_norm="l2", qk_activation="silu")
        count = c.num_heads
        super().__init__(c, count, count, int(c.hidden_size * c.expand_k) // count, int(c.hidden_size * c.expand_v) // count)
        if c.use_gate:
            self.g_proj = linear(c.hidden_size, int(c.hidden_size * c.expand_v))


class GatedDeltaNet(DeltaRule):
    """Decays by one number per value head: -exp(A) softplus(a x + dt)."""

    def __init__(self, c, layer):
        value_heads, value_dim = c.num_v_heads or c.num_heads, int(c.head_dim * c.expand_v)
        super().__init__(c, c.num_heads, value_heads, c.head_dim, value_dim)
        self.a_proj = linear(c.hidden_size, value_heads)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(value_heads)), nn.Parameter(torch.zeros(value_heads))
        if c.use_gate:
            self.g_proj = linear(c.hidden_size, value_heads * value_dim)

    def decay(self, x):
        return (-self.A_log.double().exp() * F.softplus((self.a_proj(x) + self.dt_bias).double())).exp()[..., None]


class KimiDelta(DeltaRule):
    """Decays per key channel, a gate through a sigmoid, both of low rank."""

    def __init__(self, c, layer):
        require(c, num_v_heads=None)
        if c.safe_gate and c.lower_bound is None:
            raise ValueError("safe_gate without a bound")
        self.bound = c.lower_bound
        count, value_dim = c.num_heads, int(c.head_dim * c.expand_v)
        super().__init__(c, count, count, c.head_dim, value_dim)
        self.f_proj = nn.Sequential(linear(c.hidden_size, value_dim), linear(value_dim, count * c.head_dim))
        self.g_proj = nn.Sequential(linear(c.hidden_size, value_dim), linear(value_dim, count * value_dim, True))
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count * c.head_dim))

    def decay(self, x):
        raw = (self.f_proj(x) + self.dt_bias).double()
        if self.bound is not None:  # the log of the decay stays above it
            return (self.bound * torch.sigmoid(self.A_log.double().exp()[:, None] * heads(raw, self.value_heads))).exp()
        step = F.softplus(raw)
        return (-self.A_log.double().exp()[:, None] * heads(step, self.value_heads)).exp()

    def gate(self, x, o):
        return gated(self.o_norm, o, heads(self.g_proj(x), self.value_heads), torch.sigmoid)


class Hgrn(nn.Module):
    """h = f h + (1 - f) silu(i), f at least the layer's lower bound."""

    def __init__(self, c, layer):
        super().__init__()
        require(c, elementwise_affine=True)
        width = int(c.hidden_size * c.expand_ratio)
        self.i_proj, self.f_proj, self.g_proj = (linear(c.hidden_size, width) for _ in range(3))
        if c.use_short_conv:
            self.i_conv1d, self.f_conv1d = (ShortConv(width, c.conv_size, nn.Identity()) for _ in range(2))
        self.g_norm, self.o_proj = RMSNorm(width, c.norm_eps), linear(width, c.hidden_size)

    def forward(self, x, bound=0.0):
        i, f = self.i_proj(x), self.f_proj(x)
        if hasattr(self, "i_conv1d"):
            i, f = self.i_conv1d(i), self.f_conv1d(f)
        f = bound + (1 - bound) * f.double().sigmoid()
        i, state, out = F.silu(i.double()) * (1 - f), 0.0, []
        for t in range(x.shape[1]):
            state = f[:, t] * state + i[:, t]
            out.append(state)
        return self.o_proj(gated(self.g_norm, torch.stack(out, 1).float(), self.g_proj(x)))


class Hgrn2(nn.Module):
    """Gated linear attention whose key is one minus its forget gate."""

    def __init__(self, c, layer):
        super().__init__()
        require(c, elementwise_affine=True)
        self.count = c.num_heads if c.expand_ratio is None else c.hidden_size // c.expand_ratio
        keys = c.hidden_size if c.expand_ratio is None else self.count * c.expand_ratio
        self.q_proj, self.f_proj, self.i_proj = linear(c.hidden_size, keys), linear(c.hidden_size, keys), linear(c.hidden_size, c.hidden_size)
        if c.use_short_conv:
            self.q_conv1d, self.f_conv1d, self.i_conv1d = (ShortConv(n, c.conv_size, nn.Identity()) for n in (keys, keys, c.hidden_size))
        # fused with the product behind it, which does not take the config's eps
        self.g_norm, self.o_proj = RMSNorm(c.hidden_size, 1e-5), linear(c.hidden_size, c.hidden_size)

    def forward(self, x, bound=0.0):
        q, f, i = self.q_proj(x), self.f_proj(x), self.i_proj(x)
        if hasattr(self, "q_conv1d"):
            q, f, i = self.q_conv1d(q), self.f_conv1d(f), self.i_conv1d(i)
        f = bound + (1 - bound) * f.double().sigmoid()
        q, k, f, i = (heads(y, self.count) for y in (F.silu(q), 1 - f, f, i))
        return self.o_proj(self.g_norm(recurrence(q, k, i, f, scale=q.shape[-1] ** -0.5).flatten(2)))


class Mamba(nn.Module):
    """The selective state space of the first Mamba."""

    def __init__(self, c, layer):
        super().__init__()
        require(c, hidden_act="silu")
        inner = int(c.expand * c.hidden_size)
        self.rank, self.states = -(-c.hidden_size // 16) if c.dt_rank == "auto" else c.dt_rank, c.state_size
        self.in_proj, self.out_proj = linear(c.hidden_size, 2 * inner, c.use_bias), linear(inner, c.hidden_size, c.use_bias)
        self.conv1d = nn.Conv1d(inner, inner, c.conv_kernel, groups=inner, padding=c.conv_kernel - 1, bias=c.use_conv_bias)
        self.x_proj, self.dt_proj = linear(inner, self.rank + 2 * c.state_size), linear(self.rank, inner, True)
        self.A_log, self.D = nn.Parameter(torch.zeros(inner, c.state_size)), nn.Parameter(torch.ones(inner))

    def forward(self, x):
        u, z = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = self.x_proj(u).split([self.rank, self.states, self.states], -1)
        step, rate = F.softplus(self.dt_proj(step).double()), -self.A_log.double().exp()
        state, out = 0.0, []
        for t in range(x.shape[1]):
            now = step[:, t, :, None]
            state = (now * rate).exp() * state + now * b[:, t, None].double() * u[:, t, :, None].double()
            out.append((state * c[:, t, None].double()).sum(-1))
        return self.out_proj(((torch.stack(out, 1) + self.D.double() * u.double()) * F.silu(z.double())).float())


class Mamba2(nn.Module):
    """A state space with one decay per head, groups of B and C, and a gated norm."""

    def __init__(self, c, layer):
        super().__init__()
        require(c, hidden_act="silu", norm_before_gate=False)
        inner = int(c.expand * c.hidden_size)
        if inner % c.head_dim != 0 or c.num_heads not in (None, inner // c.head_dim):
            raise ValueError("num_heads")
        self.count, self.groups, self.states, self.inner, self.limit = inner // c.head_dim, c.n_groups, c.state_size, inner, c.dt_limit
        mixed = inner + 2 * c.n_groups * c.state_size
        self.in_proj = linear(c.hidden_size, inner + mixed + self.count, c.use_bias)
        self.conv1d = nn.Conv1d(mixed, mixed, c.conv_kernel, groups=mixed, padding=c.conv_kernel - 1, bias=c.use_conv_bias)
        self.dt_bias, self.A_log = nn.Parameter(torch.zeros(self.count)), nn.Parameter(torch.zeros(self.count))
        self.D = nn.Parameter(torch.ones(inner if c.D_has_hdim else self.count))
        if c.rmsnorm:
            self.norm, self.eps = nn.Module(), c.norm_eps
            self.norm.weight = nn.Parameter(torch.ones(inner))
        self.out_proj = linear(inner, c.hidden_size, c.use_bias)

    def forward(self, x):
        z, mixed, step = self.in_proj(x).split([self.inner, self.conv1d.in_channels, self.count], -1)
        mixed = F.silu(self.conv1d(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        u, b, c = mixed.split([self.inner, self.groups * self.states, self.groups * self.states], -1)
        step = F.softplus((step + self.dt_bias).double()).clamp(self.limit[0], self.limit[1])
        b, c = (heads(y, self.groups).repeat_interleave(self.count // self.groups, 2) for y in (b, c))
        fade, u = (-self.A_log.double().exp() * step).exp()[..., None], heads(u, self.count)
        y = recurrence(c, b, u.double() * step[..., None], fade).double()
        skip = heads(self.D.double(), self.count) if self.D.numel() == self.inner else self.D.double()[:, None]
        y = (y + skip * u.double()).flatten(2) * F.silu(z.double())
        if hasattr(self, "norm"):
            y = heads(y, self.groups)
            y = (y / (y.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).flatten(2) * self.norm.weight.double()
        return self.out_proj(y.float())


def levelled(q, k, v, decay, weights):
    """o_t = sum over s <= t of weights[t, level] decays (q_t k_s) v_s; the level of s is one more than the highest bit in which s and t differ.

    q, k [B, T, H, K], v [B, T, H, V], decay [B, T, H], weights [B, T, H, L].
    """
    out, seen = [], torch.zeros(*k.shape[:3]).double()
    for t in range(q.shape[1]):
        levels = torch.tensor([(s ^ t).bit_length() for s in range(t + 1)])
        seen[:, :t] *= decay[:, t, None]
        seen[:, t] = 1.0
        scores = torch.einsum("bhk,bshk->bsh", q[:, t], k[:, : t + 1]) * seen[:, : t + 1] * weights[:, t, :, levels].transpose(1, 2)
        out.append(torch.einsum("bsh,bshv->bhv", scores, v[:, : t + 1]))
    return torch.stack(out, 1)


class LogLinearMamba2(Mamba2):
    """Mamba-2 whose past lies in blocks of 1, 2, 4, ... tokens with weights."""

    LEVELS = 15

    def __init__(self, c, layer):
        super().__init__(c, layer)
        require(c, dt_limit=[0.0, math.inf], residual_in_fp32=False)
        self.in_proj = linear(c.hidden_size, self.in_proj.out_features + self.count * self.LEVELS, c.use_bias)
        self.L = nn.Parameter(torch.ones(self.count, self.LEVELS))

    def forward(self, x):
        z, mixed, step, level = self.in_proj(x).split([self.inner, self.conv1d.in_channels, self.count, self.count * self.LEVELS], -1)
        mixed = F.silu(self.conv1d(mixed.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        u, b, c = mixed.double().split([self.inner, self.groups * self.states, self.groups * self.states], -1)
        step, weights = F.softplus((step + self.dt_bias).double()), F.softplus(self.L.double() * heads(level, self.count).double())
        b, c = (heads(y, self.groups).repeat_interleave(self.count // self.groups, 2) for y in (b, c))
        u = heads(u, self.count)
        y = levelled(c, b, u * step[..., None], (-self.A_log.double().exp() * step).exp(), weights)
        y = y + (heads(self.D.double(), self.count) if self.D.numel() == self.inner else self.D.double()[:, None]) * u
        y = y.flatten(2) * F.silu(z.double())
        if hasattr(self, "norm"):
            y = heads(y, self.groups)
            y = (y / (y.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()).flatten(2) * self.norm.weight.double()
        return self.out_proj(y.float())


class LogLinearBlock(nn.Module):
    """x + mixer(norm x), x + mlp(norm x), of a width that no key says."""

    def __init__(self, c, layer, mixer):
        super().__init__()
        require(c, attnres_block_size=None)
        self.mixer_norm, self.mixer = RMSNorm(c.hidden_size, c.norm_eps), mixer(c, layer)
        self.mlp_norm, self.mlp = RMSNorm(c.hidden_size, c.norm_eps), GatedMLP(Config(hidden_size=c.hidden_size, hidden_ratio=4, intermediate_size=None, hidden_act="swish"))

    def forward(self, x):
        x = x + self.mixer(self.mixer_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LowRank(nn.Module):
    """up act(down x) + bias"""

    def __init__(self, inputs, outputs, rank, act, bias=True):
        super().__init__()
        self.lora = nn.Sequential(linear(inputs, rank), act, linear(rank, outputs, bias))

    def forward(self, x):
        return self.lora(x)


def step_back(x):
    """The token before, minus the token."""
    return F.pad(x, (0, 0, 1, -1)) - x


class GroupNorm(nn.Module):
    """A layer norm of every head."""

    def __init__(self, count, width, eps):
        super().__init__()
        self.count, self.eps = count, eps
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        x = heads(x.double(), self.count)
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt()
        return x.flatten(2) * self.weight.double() + self.bias.double()


class Rwkv7(nn.Module):
    """A delta rule with decays and rates per channel; values lean to those of the first layer."""

    def __init__(self, c, layer):
        super().__init__()
        d, self.count = c.hidden_size, c.num_heads if c.head_dim is None else c.hidden_size // c.head_dim
        width = d // self.count
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.zeros(1, 1, d)))
        self.k_k, self.k_a, self.r_k = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(self.count, width))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (linear(d, d) for _ in range(4))
        self.w_lora = LowRank(d, d, c.decay_low_rank_dim, nn.Tanh())
        self.a_lora = LowRank(d, d, c.a_low_rank_dim, nn.Identity())
        if layer > 0:
            self.v_lora = LowRank(d, d, c.v_low_rank_dim, nn.Identity())
        self.g_lora = LowRank(d, d, c.gate_low_rank_dim, nn.Sigmoid(), bias=False)
        self.g_norm = GroupNorm(self.count, d, width * c.norm_eps)

    def forward(self, x, first):
        back = step_back(x)
        mixed = {name: x + back * getattr(self, f"x_{name}") for name in "rwkvag"}
        r, k, v = self.r_proj(mixed["r"]), self.k_proj(mixed["k"]).double(), self.v_proj(mixed["v"]).double()
        decay = (-math.exp(-0.5) * self.w_lora(mixed["w"]).double().sigmoid()).exp()
        rate, gate = self.a_lora(mixed["a"]).double().sigmoid(), self.g_lora(mixed["g"])
        if first is None:
            first = v
        else:
            v = v + (first - v) * self.v_lora(mixed["v"]).double().sigmoid()
        removed = F.normalize(heads(k * self.k_k.double(), self.count), dim=-1)
        k = k * (1 + (rate - 1) * self.k_a.double())
        r, k, v, decay, rate = (heads(y.double(), self.count) for y in (r, k, v, decay, rate))
        state, out = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1]).double(), []
        for t in range(x.shape[1]):
            held = torch.einsum("bhkv,bhk->bhv", state, removed[:, t])
            state = decay[:, t, ..., None] * state - (rate[:, t] * removed[:, t])[..., None] * held[:, :, None] + k[:, t, ..., None] * v[:, t, :, None]
            out.append(torch.einsum("bhkv,bhk->bhv", state, r[:, t]))
        y = self.g_norm(torch.stack(out, 1).flatten(2)) + ((r * k * self.r_k.double()).sum(-1, keepdim=True) * v).flatten(2)
        return self.o_proj(y.float() * gate), first


class Lerp(nn.Module):
    """A product of a mix of the token and the one before."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear, self.mu = linear(inputs, outputs), nn.Parameter(torch.zeros(inputs))

    def forward(self, x):
        return self.linear(x + step_back(x) * self.mu)


class Named(nn.Module):
    """A product under the name `linear`."""

    def __init__(self, part):
        super().__init__()
        self.linear = part

    def forward(self, x):
        return self.linear(x)


class Rwkv6(nn.Module):
    """Decays and mixes with the token before that follow the token; a bonus for the present."""

    def __init__(self, c, layer):
        super().__init__()
        d, self.count, self.rank = c.hidden_size, c.num_heads, c.proj_low_rank_dim
        keys, values = int(d * c.expand_k), int(d * c.expand_v)
        self.x_proj = nn.Sequential(Lerp(d, 5 * self.rank), nn.Tanh(), linear(5 * self.rank, d))
        self.x_bias, self.bonus = nn.Parameter(torch.zeros(5, d)), nn.Parameter(torch.zeros(self.count, keys // self.count))
        self.r_proj, self.k_proj, self.v_proj, self.g_proj = (Named(linear(d, n)) for n in (keys, keys, values, values))
        self.w_proj = Named(LowRank(d, keys, c.gate_low_rank_dim, nn.Tanh()))
        self.g_norm, self.o_proj = GroupNorm(self.count, values, c.norm_eps), linear(values, d)

    def forward(self, x, first):
        low = heads(torch.tanh(self.x_proj[0](x)), 5)
        shares = torch.einsum("btnr,dnr->btnd", low, self.x_proj[2].weight.view(-1, 5, self.rank)) + self.x_bias
        r, w, k, v, g = (p(x + step_back(x) * shares[:, :, i]) for i, p in enumerate((self.r_proj, self.w_proj, self.k_proj, self.v_proj, self.g_proj)))
        r, k, v, decay = (heads(y.double(), self.count) for y in (r, k, v, (-w.double().exp()).exp()))
        state, out = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1]).double(), []
        for t in range(x.shape[1]):
            now = k[:, t, ..., None] * v[:, t, :, None]
            out.append(torch.einsum("bhkv,bhk->bhv", state + self.bonus.double()[..., None] * now, r[:, t]))
            state = decay[:, t, ..., None] * state + now
        return self.o_proj(self.g_norm(torch.stack(out, 1).flatten(2)).float() * F.silu(g)), first


class Rwkv6Channel(nn.Module):
    """sigmoid(receptance x) value relu(key x)^2"""

    def __init__(self, c):
        super().__init__()
        if c.hidden_act != "sqrelu":
            raise ValueError(f"hidden_act {c.hidden_act}")
        width = c.intermediate_size
        if width is None:
            width = -(-int(c.hidden_size * (3.5 if c.hidden_ratio is None else c.hidden_ratio)) // 32) * 32
        self.key, self.receptance, self.value = Lerp(c.hidden_size, width), Lerp(c.hidden_size, c.hidden_size), linear(width, c.hidden_size)

    def forward(self, x):
        return self.receptance(x).sigmoid() * self.value(F.relu(self.key(x)) ** 2)


class Rwkv7Channel(nn.Module):
    """value relu(key x)^2"""

    def __init__(self, c):
        super().__init__()
        if c.hidden_act != "sqrelu":
            raise ValueError(f"hidden_act {c.hidden_act}")
        width = c.intermediate_size
        if width is None:
            width = -(-int(c.hidden_size * (4 if c.hidden_ratio is None else c.hidden_ratio)) // 32) * 32
        self.x_k, self.key, self.value = nn.Parameter(torch.zeros(c.hidden_size)), linear(c.hidden_size, width), linear(width, c.hidden_size)

    def forward(self, x):
        return self.value(F.relu(self.key(x + step_back(x) * self.x_k)) ** 2)


class RwkvBlock(nn.Module):
    def __init__(self, c, layer, mixer, channel):
        super().__init__()
        require(c, norm_bias=True, attn=None)
        if layer == 0 and c.norm_first:
            self.pre_norm = nn.LayerNorm(c.hidden_size, c.norm_eps)
        self.attn_norm, self.attn = nn.LayerNorm(c.hidden_size, c.norm_eps), mixer(c, layer)
        self.ffn_norm, self.ffn = nn.LayerNorm(c.hidden_size, c.norm_eps), channel(c)

    def forward(self, x, first):
        x = self.pre_norm(x) if hasattr(self, "pre_norm") else x
        y, first = self.attn(self.attn_norm(x), first)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), first


class RwkvDecoder(nn.Module):
    def __init__(self, c, mixer, channel):
        super().__init__()
        if any(width != c.hidden_size for width in c.get("value_dim") or []):
            raise ValueError("value_dim")
        self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(RwkvBlock(c, layer, mixer, channel) for layer in range(c.num_hidden_layers))
        self.norm = nn.LayerNorm(c.hidden_size, c.norm_eps)

    def forward(self, ids):
        x, first = self.embeddings(ids), None
        for layer in self.layers:
            x, first = layer(x, first)
        return self.norm(x)


# --- models --------------------------------------------------------------------------------------


class Block(nn.Module):
    """x + mixer(norm x), x + mlp(norm x)"""

    def __init__(self, c, layer, mixer):
        super().__init__()
        require(c, attnres_block_size=None)
        attention = attention_of(c, layer)
        self.bounded = attention is None and c.get("use_lower_bound", False) and layer > 0
        self.attn_norm, self.attn = RMSNorm(c.hidden_size, c.norm_eps), attention or mixer(c, layer)
        self.mlp_norm, self.mlp = RMSNorm(c.hidden_size, c.norm_eps), GatedMLP(c)

    def forward(self, x, bound):
        x = x + (self.attn(self.attn_norm(x), bound) if self.bounded else self.attn(self.attn_norm(x)))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Embedding, blocks, norm."""

    def __init__(self, c, mixer):
        super().__init__()
        self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        if c.get("use_lower_bound", False):
            self.lower_bounds = nn.Parameter(torch.zeros(c.num_hidden_layers, c.hidden_size))
        self.layers = nn.ModuleList(Block(c, layer, mixer) for layer in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.norm_eps)

    def forward(self, ids):
        x = self.embeddings(ids)
        table = getattr(self, "lower_bounds", None)
        shares = None if table is None else table.double().softmax(0)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if shares is None else shares.cumsum(0)[i] - shares[0])
        return self.norm(x)


class StateBlock(nn.Module):
    """x + mixer(norm x)"""

    def __init__(self, c, layer, mixer):
        super().__init__()
        self.norm, self.mixer = RMSNorm(c.hidden_size, c.norm_eps), mixer(c, layer)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class SambaBlock(nn.Module):
    """x + mixer(norm x), x + mlp(norm x), under names of its own."""

    def __init__(self, c, layer, mixer):
        super().__init__()
        require(c, attnres_block_size=None)
        ours = Config(hidden_size=c.hidden_size, expand=c.expand, state_size=c.state_size, conv_kernel=c.conv_kernel, dt_rank=c.time_step_rank,
                      use_bias=c.use_bias, use_conv_bias=True, hidden_act="silu")
        self.mixer_norm, self.mixer = RMSNorm(c.hidden_size, c.norm_eps), attention_of(c, layer) or mixer(ours, layer)
        # the config's intermediate_size is the mixer's
        self.mlp_norm, self.mlp = RMSNorm(c.hidden_size, c.norm_eps), GatedMLP(Config(c, intermediate_size=None))

    def forward(self, x):
        x = x + self.mixer(self.mixer_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class States(nn.Module):
    """Embedding, layers of one kind, norm."""

    def __init__(self, c, mixer, block=StateBlock, table="embeddings"):
        super().__init__()
        self.table = table
        self.add_module(table, nn.Embedding(c.vocab_size, c.hidden_size))
        self.layers = nn.ModuleList(block(c, layer, mixer) for layer in range(c.num_hidden_layers))
        self.norm_f = RMSNorm(c.hidden_size, c.norm_eps)

    def forward(self, ids):
        x = getattr(self, self.table)(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm_f(x)


class Released(nn.Module):
    """A model of a released format; a class per type below says its body and its config."""

    model_type, prefix, headless = "", "model", False
    defaults, source, table = {}, SOURCE, "embeddings"
    view = staticmethod(lambda config: config)  # a config under the names that the parts above know

    def __init__(self, config):
        super().__init__()
        self.config = Config({**self.defaults, **read(config)}, is_encoder_decoder=False, use_cache=False)
        c = self.view(self.config)
        self.tied = c.tie_word_embeddings
        body = self.body(c)
        if self.headless:
            self.bare = body
            return
        self.add_module(self.prefix, body)
        self.lm_head = linear(c.hidden_size, c.vocab_size)
        if self.tied:
            self.lm_head.weight = getattr(body, self.table).weight

    @torch.no_grad()
    def forward(self, input_ids, **_):
        if self.headless:
            return Output(last_hidden_state=self.bare(input_ids))
        return Output(logits=self.lm_head(getattr(self, self.prefix)(input_ids)))

    def tie_weights(self):
        pass

    @classmethod
    def from_settings(cls, settings):
        config = {**cls.defaults, **{k: v for k, v in settings.items() if v != "absent"}}
        named = {"architectures": [cls.__name__.removeprefix("Fla")], "model_type": cls.model_type} if cls.model_type else {}
        return cls({**config, **named})

    @classmethod
    def from_files(cls, config, tensors, extra_allowed=False):
        model = cls(config)
        own = model.state_dict()
        if model.headless:
            tensors = {f"bare.{name}": value for name, value in tensors.items()}
        elif model.tied:
            tensors = {**tensors, "lm_head.weight": tensors[f"{cls.prefix}.{cls.table}.weight"]}
        missing, more = own.keys() - tensors.keys(), tensors.keys() - own.keys()
        if missing or (more and not extra_allowed):
            raise RuntimeError(f"reference does not accept these weights as they are: missing {sorted(missing)}, unexpected {sorted(more)}")
        model.load_state_dict({name: value.float() for name, value in tensors.items() if name in own})
        return model.eval()

    def to_files(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        config = {k: v for k, v in self.config.items() if k not in ("is_encoder_decoder", "use_cache")}
        if self.model_type:
            config.update(dtype="float32", use_cache=True)
        (folder / "config.json").write_text(json.dumps(written(config), indent=2, sort_keys=True) + "\n")
        tensors = {name.removeprefix("bare."): value.contiguous() for name, value in self.state_dict().items()}
        if not self.headless and self.tied:
            tensors.pop("lm_head.weight")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class Flat(Released):
    """A model whose tensors are a table, for files with fused matrices: `shapes` names them, `logits` computes."""

    def __init__(self, config):
        nn.Module.__init__(self)
        self.config = Config({**self.defaults, **read(config)}, is_encoder_decoder=False, use_cache=False)
        self.table = {name: nn.Parameter(torch.ones(shape)) for name, shape in self.shapes(self.config).items()}

    def named_parameters(self, *_):
        return iter(self.table.items())

    def state_dict(self):
        return {name: value.detach() for name, value in self.table.items()}

    @torch.no_grad()
    def forward(self, input_ids, **_):
        return Output({"last_hidden_state" if self.headless else "logits": self.logits(self.config, self.table, input_ids)})

    @classmethod
    def from_files(cls, config, tensors, extra_allowed=False):
        model = cls(config)
        wrong = sorted(name for name in model.table.keys() | tensors.keys()
                       if name not in tensors and name in model.table or name not in model.table and not extra_allowed
                       or name in model.table and tensors[name].shape != model.table[name].shape)
        if wrong:
            raise RuntimeError(f"reference does not accept these weights as they are: {wrong}")
        model.table = {name: nn.Parameter(tensors[name].float()) for name in model.table}
        return model.eval()

    def to_files(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        config = {k: v for k, v in self.config.items() if k not in ("is_encoder_decoder", "use_cache") and (k, v) != ("model_type", "")}
        (folder / "config.json").write_text(json.dumps(written(config), indent=2, sort_keys=True) + "\n")
        save_file({name: value.detach().contiguous() for name, value in self.table.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def rms(x, weight, eps):
    wide = x.double()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()).float() * weight


def half_turn(x, theta, width):
    """Rotary positions of the first `width` channels, m with m + width / 2."""
    return torch.cat([rotate(x[..., :width], theta).to(x.dtype), x[..., width:]], -1)


def pair_turn(x, theta, width):
    """Rotary positions of the first `width` channels, 2m with 2m + 1."""
    order = torch.arange(width).view(-1, 2).t().flatten()
    return torch.cat([rotate(x[..., order], theta)[..., order.argsort()].to(x.dtype), x[..., width:]], -1)


def attend(q, k, v, scores=lambda s: s):
    """Causal softmax attention of q [B, T, H, D] and grouped k, v; scores changes the products."""
    k, v = (y.double().repeat_interleave(q.shape[2] // k.shape[2], 2) for y in (k, v))
    s = scores(torch.einsum("bthd,bshd->bhts", q.double(), k) / math.sqrt(q.shape[-1]))
    hidden = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
    return torch.einsum("bhts,bshd->bthd", s.masked_fill(hidden, -math.inf).softmax(-1), v).float().flatten(2)


# InternLM 2: for every key/value head its queries, its key, its value


def internlm2_shapes(c):
    d, width = c.hidden_size, c.hidden_size // c.num_attention_heads
    shapes = {"model.tok_embeddings.weight": (c.vocab_size, d), "model.norm.weight": (d,)}
    if not c.tie_word_embeddings:
        shapes["output.weight"] = (c.vocab_size, d)
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        fused = (c.num_attention_heads + 2 * c.num_key_value_heads) * width
        shapes.update({at + "attention_norm.weight": (d,), at + "ffn_norm.weight": (d,), at + "attention.wqkv.weight": (fused, d), at + "attention.wo.weight": (d, d),
                       at + "feed_forward.w1.weight": (c.intermediate_size, d), at + "feed_forward.w3.weight": (c.intermediate_size, d),
                       at + "feed_forward.w2.weight": (d, c.intermediate_size)})
        if c.bias:
            shapes.update({at + "attention.wqkv.bias": (fused,), at + "attention.wo.bias": (d,)})
    return shapes


def internlm2_logits(c, t, ids):
    if c.hidden_act != "silu":
        raise ValueError(c.hidden_act)
    x, kv, width = t["model.tok_embeddings.weight"][ids], c.num_key_value_heads, c.hidden_size // c.num_attention_heads
    theta, scaling = c.rope_theta, c.rope_scaling or {"type": "none"}
    if scaling["type"] == "dynamic" and ids.shape[1] > c.max_position_embeddings:
        grown = scaling["factor"] * ids.shape[1] / c.max_position_embeddings - (scaling["factor"] - 1)
        theta = theta * grown ** (width / (width - 2))
    elif scaling["type"] not in ("none", "dynamic"):
        raise ValueError(scaling["type"])
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        h = rms(x, t[at + "attention_norm.weight"], c.rms_norm_eps)
        fused = F.linear(h, t[at + "attention.wqkv.weight"], t.get(at + "attention.wqkv.bias")).unflatten(-1, (kv, -1, width))
        q, k, v = half_turn(fused[..., :-2, :].flatten(2, 3), theta, width), half_turn(fused[..., -2, :], theta, width), fused[..., -1, :]
        x = x + F.linear(attend(q, k, v), t[at + "attention.wo.weight"], t.get(at + "attention.wo.bias"))
        h, ffn = rms(x, t[at + "ffn_norm.weight"], c.rms_norm_eps), at + "feed_forward."
        x = x + F.linear(F.silu(F.linear(h, t[ffn + "w1.weight"])) * F.linear(h, t[ffn + "w3.weight"]), t[ffn + "w2.weight"])
    head = t["model.tok_embeddings.weight" if c.tie_word_embeddings else "output.weight"]
    return F.linear(rms(x, t["model.norm.weight"], c.rms_norm_eps), head)


# Qwen (1): queries, keys and values with biases, log-n attention, half of intermediate_size


def qwen_shapes(c):
    d, hidden = c.hidden_size, c.intermediate_size // 2
    if c.kv_channels * c.num_attention_heads != d:
        raise ValueError("kv_channels")
    shapes = {"transformer.wte.weight": (c.vocab_size, d), "transformer.ln_f.weight": (d,), "lm_head.weight": (c.vocab_size, d)}
    for i in range(c.num_hidden_layers):
        at = f"transformer.h.{i}."
        shapes.update({at + "ln_1.weight": (d,), at + "ln_2.weight": (d,), at + "attn.c_attn.weight": (3 * d, d), at + "attn.c_attn.bias": (3 * d,),
                       at + "attn.c_proj.weight": (d, d), at + "mlp.w1.weight": (hidden, d), at + "mlp.w2.weight": (hidden, d), at + "mlp.c_proj.weight": (d, hidden)})
    return shapes


def qwen_logits(c, t, ids):
    require(c, no_bias=True, scale_attn_weights=True, tie_word_embeddings=False)
    x, places = t["transformer.wte.weight"][ids], torch.arange(1, ids.shape[1] + 1)
    grown = [math.log(i, c.seq_length) if c.use_logn_attn and i > c.seq_length else 1.0 for i in places.tolist()]
    for i in range(c.num_hidden_layers):
        at = f"transformer.h.{i}."
        h = rms(x, t[at + "ln_1.weight"], c.layer_norm_epsilon)
        q, k, v = (heads(y, c.num_attention_heads) for y in F.linear(h, t[at + "attn.c_attn.weight"], t[at + "attn.c_attn.bias"]).chunk(3, -1))
        turn = int(c.kv_channels * c.rotary_pct)
        q = half_turn(q, c.rotary_emb_base, turn).double() * torch.tensor(grown).double()[:, None, None]
        x = x + F.linear(attend(q, half_turn(k, c.rotary_emb_base, turn), v), t[at + "attn.c_proj.weight"])
        h = rms(x, t[at + "ln_2.weight"], c.layer_norm_epsilon)
        x = x + F.linear(F.linear(h, t[at + "mlp.w1.weight"]) * F.silu(F.linear(h, t[at + "mlp.w2.weight"])), t[at + "mlp.c_proj.weight"])
    return F.linear(rms(x, t["transformer.ln_f.weight"], c.layer_norm_epsilon), t["lm_head.weight"])


# ChatGLM 2 and 3, GLM-4: half of a head's channels turn in pairs, keys and values in groups, gate and up in one matrix


def chatglm_shapes(c):
    d, keys = c.hidden_size, c.kv_channels * c.multi_query_group_num
    queries = c.kv_channels * c.num_attention_heads
    top = "transformer."
    shapes = {top + "embedding.word_embeddings.weight": (c.padded_vocab_size, d), top + "encoder.final_layernorm.weight": (d,),
              top + "output_layer.weight": (c.padded_vocab_size, d)}
    for i in range(c.num_layers):
        at = f"{top}encoder.layers.{i}."
        shapes.update({at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,), at + "self_attention.query_key_value.weight": (queries + 2 * keys, d),
                       at + "self_attention.dense.weight": (d, queries), at + "mlp.dense_h_to_4h.weight": (2 * c.ffn_hidden_size, d),
                       at + "mlp.dense_4h_to_h.weight": (d, c.ffn_hidden_size)})
        if c.add_qkv_bias:
            shapes[at + "self_attention.query_key_value.bias"] = (queries + 2 * keys,)
    return shapes


def chatglm_logits(c, t, ids):
    require(c, multi_query_attention=True, add_bias_linear=False, rmsnorm=True, post_layer_norm=True, apply_residual_connection_post_layernorm=False)
    x, top = t["transformer.embedding.word_embeddings.weight"][ids], "transformer.encoder."
    groups, theta = c.multi_query_group_num, 10000 * c.rope_ratio
    for i in range(c.num_layers):
        at = f"{top}layers.{i}."
        h = rms(x, t[at + "input_layernorm.weight"], c.layernorm_epsilon)
        fused = F.linear(h, t[at + "self_attention.query_key_value.weight"], t.get(at + "self_attention.query_key_value.bias"))
        q, k, v = fused.unflatten(-1, (-1, c.kv_channels)).split([c.num_attention_heads, groups, groups], 2)
        turn = c.kv_channels // 2
        x = x + F.linear(attend(pair_turn(q, theta, turn), pair_turn(k, theta, turn), v), t[at + "self_attention.dense.weight"])
        h = rms(x, t[at + "post_attention_layernorm.weight"], c.layernorm_epsilon)
        gate, up = F.linear(h, t[at + "mlp.dense_h_to_4h.weight"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, t[at + "mlp.dense_4h_to_h.weight"])
    return F.linear(rms(x, t[top + "final_layernorm.weight"], c.layernorm_epsilon), t["transformer.output_layer.weight"])


# MiniCPM (1, 2): a Llama with factors on the embedding, the branches and the logits


def minicpm_shapes(c):
    d, width = c.hidden_size, c.hidden_size // c.num_attention_heads
    shapes = {"model.embed_tokens.weight": (c.vocab_size, d), "model.norm.weight": (d,)}
    if not c.tie_word_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, d)
    for i in range(c.num_hidden_layers):
        at, kv = f"model.layers.{i}.", c.num_key_value_heads * width
        shapes.update({at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,), at + "mlp.down_proj.weight": (d, c.intermediate_size)})
        shapes.update({f"{at}mlp.{n}_proj.weight": (c.intermediate_size, d) for n in ("gate", "up")})
        for n, rows in (("q", d), ("k", kv), ("v", kv), ("o", d)):
            shapes[f"{at}self_attn.{n}_proj.weight"] = (rows, d)
            if c.attention_bias:
                shapes[f"{at}self_attn.{n}_proj.bias"] = (rows,)
    return shapes


def minicpm_logits(c, t, ids):
    require(c, hidden_act="silu", rope_scaling=None)
    x, width, factor = t["model.embed_tokens.weight"][ids] * c.scale_emb, c.hidden_size // c.num_attention_heads, c.scale_depth / math.sqrt(c.num_hidden_layers)
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        h = rms(x, t[at + "input_layernorm.weight"], c.rms_norm_eps)
        q, k, v = (F.linear(h, t[f"{at}self_attn.{n}_proj.weight"], t.get(f"{at}self_attn.{n}_proj.bias")).unflatten(-1, (-1, width)) for n in "qkv")
        y = attend(half_turn(q, c.rope_theta, width), half_turn(k, c.rope_theta, width), v)
        x = x + factor * F.linear(y, t[at + "self_attn.o_proj.weight"], t.get(at + "self_attn.o_proj.bias"))
        h, ffn = rms(x, t[at + "post_attention_layernorm.weight"], c.rms_norm_eps), at + "mlp."
        x = x + factor * F.linear(F.silu(F.linear(h, t[ffn + "gate_proj.weight"])) * F.linear(h, t[ffn + "up_proj.weight"]), t[ffn + "down_proj.weight"])
    x = rms(x, t["model.norm.weight"], c.rms_norm_eps) / (c.hidden_size / c.dim_model_base)
    return F.linear(x, t["model.embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"])


# torchscale's RetNet: rows divided by the root of their decays' sum, a norm of heads without a weight, and its recurrence


def retnet_shapes(c):
    d, v, f = c.decoder_embed_dim, c.decoder_value_embed_dim, c.decoder_ffn_embed_dim
    shapes = {"embed_tokens.weight": (c.vocab_size, d), "layer_norm.weight": (d,)}
    if c.layernorm_embedding:
        shapes["layernorm_embedding.weight"] = (d,)
    if not c.share_decoder_input_output_embed:
        shapes["output_projection.weight"] = (c.vocab_size, d)
    for i in range(c.decoder_layers):
        at = f"layers.{i}."
        shapes.update({f"{at}retention.{n}_proj.weight": size for n, size in (("q", (d, d)), ("k", (d, d)), ("v", (v, d)), ("g", (v, d)), ("out", (d, v)))})
        shapes.update({at + "retention_layer_norm.weight": (d,), at + "final_layer_norm.weight": (d,), at + "ffn.fc2.weight": (d, f)})
        shapes.update({f"{at}ffn.{n}.weight": (f, d) for n in ("fc1", "gate")})
    return shapes


def retnet_logits(c, t, ids):
    require(c, decoder_normalize_before=True, deepnorm=False, moe_freq=0, multiway=False, no_output_layer=False)
    count, width = c.decoder_retention_heads, c.decoder_embed_dim // c.decoder_retention_heads
    fade = 1 - 2.0 ** -(5 + torch.arange(count).double())
    angle = torch.arange(ids.shape[1]).double()[:, None, None] * 10000 ** -torch.linspace(0, 1, width // 2).double()
    act = {"gelu": F.gelu, "swish": F.silu, "relu": F.relu}[c.activation_fn]

    def turned(x):
        a, b = x.double()[..., ::2], x.double()[..., 1::2]
        return torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1).flatten(-2)

    x = t["embed_tokens.weight"][ids] * (1 if c.no_scale_embedding else math.sqrt(c.decoder_embed_dim))
    if c.layernorm_embedding:
        x = rms(x, t["layernorm_embedding.weight"], c.layernorm_eps)
    for i in range(c.decoder_layers):
        at = f"layers.{i}."
        h = rms(x, t[at + "retention_layer_norm.weight"], c.layernorm_eps)
        q, k, v, g = (heads(F.linear(h, t[f"{at}retention.{n}_proj.weight"]), count) for n in "qkvg")
        o = recurrence(turned(q), turned(k), v, fade[None, None, :, None].expand(*q.shape[:3], 1), scale=width ** -0.5).double()
        sums = torch.stack([(fade[:, None] ** torch.arange(n + 1)).sum(-1) for n in range(ids.shape[1])])
        o = o / sums.sqrt()[None, :, :, None]
        o = o / (o.pow(2).mean(-1, keepdim=True) + c.layernorm_eps).sqrt()
        x = x + F.linear((F.silu(g) * o.float()).flatten(2), t[at + "retention.out_proj.weight"])
        h, ffn = rms(x, t[at + "final_layer_norm.weight"], c.layernorm_eps), at + "ffn."
        x = x + F.linear(act(F.linear(h, t[ffn + "fc1.weight"])) * F.linear(h, t[ffn + "gate.weight"]), t[ffn + "fc2.weight"])
    x = rms(x, t["layer_norm.weight"], c.layernorm_eps)
    return F.linear(x, t["embed_tokens.weight" if c.share_decoder_input_output_embed else "output_projection.weight"])


# Baichuan: a Llama with one matrix of queries, keys and values; the larger ones have ALiBi, the second ones a head of rows of length 1


def baichuan_shapes(c):
    d, hidden = c.hidden_size, c.intermediate_size
    shapes = {"model.embed_tokens.weight": (c.vocab_size, d), "model.norm.weight": (d,), "lm_head.weight": (c.vocab_size, d)}
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        shapes.update({at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,), at + "self_attn.W_pack.weight": (3 * d, d), at + "self_attn.o_proj.weight": (d, d),
                       at + "mlp.gate_proj.weight": (hidden, d), at + "mlp.up_proj.weight": (hidden, d), at + "mlp.down_proj.weight": (d, hidden)})
    return shapes


def slopes(count):
    """Of ALiBi: a geometric series for a power of two; else that of the power below, and every second one of twice as many."""
    power = 2 ** math.floor(math.log2(count))
    series = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return series if power == count else series + slopes(2 * power)[0::2][: count - power]


def baichuan_logits(c, t, ids):
    require(c, hidden_act="silu", tie_word_embeddings=False)
    x, width, turns = t["model.embed_tokens.weight"][ids], c.hidden_size // c.num_attention_heads, "max_position_embeddings" in c
    back = torch.arange(ids.shape[1])[:, None] - torch.arange(ids.shape[1])
    far = torch.tensor(slopes(c.num_attention_heads)).double()[:, None, None] * back
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}."
        h = rms(x, t[at + "input_layernorm.weight"], c.rms_norm_eps)
        q, k, v = F.linear(h, t[at + "self_attn.W_pack.weight"]).unflatten(-1, (3, -1, width)).unbind(2)
        y = attend(half_turn(q, 10000.0, width), half_turn(k, 10000.0, width), v) if turns else attend(q, k, v, lambda s: s - far)
        x = x + F.linear(y, t[at + "self_attn.o_proj.weight"])
        h, ffn = rms(x, t[at + "post_attention_layernorm.weight"], c.rms_norm_eps), at + "mlp."
        x = x + F.linear(F.silu(F.linear(h, t[ffn + "gate_proj.weight"])) * F.linear(h, t[ffn + "up_proj.weight"]), t[ffn + "down_proj.weight"])
    head = t["lm_head.weight"].double()
    if "z_loss_weight" in c:
        head = head / head.square().sum(-1, keepdim=True).sqrt()
    return F.linear(rms(x, t["model.norm.weight"], c.rms_norm_eps).double(), head).float()


# OpenELM: every layer has heads and hidden units of its own number


def whole_multiple(value, divisor):
    """The nearest multiple of divisor, at least one, and not less than nine tenths."""
    result = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return result + divisor if result < 0.9 * value else result


def layerwise(given, layers):
    """One number for each layer: of one for all, of the first and the last, or of a list."""
    if isinstance(given, (int, float)):
        return [given] * layers
    if len(given) == 2 and layers > 1:
        return [round(given[0] + (given[1] - given[0]) * i / (layers - 1), 2) for i in range(layers)]
    return given


def openelm_widths(c):
    """Query heads, key/value heads and hidden units of each layer."""
    layers, groups = c.num_transformer_layers, c.num_gqa_groups
    queries = [whole_multiple(c.model_dim * m, c.head_dim * groups) // c.head_dim for m in layerwise(c.qkv_multipliers, layers)]
    hidden = [whole_multiple(c.model_dim * m, c.ffn_dim_divisor) for m in layerwise(c.ffn_multipliers, layers)]
    return list(zip(queries, [q // groups for q in queries], hidden))


def openelm_shapes(c):
    d, width = c.model_dim, c.head_dim
    shapes = {"transformer.token_embeddings.weight": (c.vocab_size, d), "transformer.norm.weight": (d,)}
    if not c.share_input_output_layers:
        shapes["lm_head.weight"] = (c.vocab_size, d)
    for i, (queries, groups, hidden) in enumerate(openelm_widths(c)):
        at = f"transformer.layers.{i}."
        shapes.update({at + "attn_norm.weight": (d,), at + "ffn_norm.weight": (d,), at + "attn.qkv_proj.weight": ((queries + 2 * groups) * width, d), at + "attn.out_proj.weight": (d, queries * width),
                       at + "ffn.proj_1.weight": (hidden * (2 if c.ffn_with_glu else 1), d), at + "ffn.proj_2.weight": (d, hidden)})
        if c.normalize_qk_projections:
            shapes.update({at + "attn.q_norm.weight": (width,), at + "attn.k_norm.weight": (width,)})
    return shapes


def openelm_logits(c, t, ids):
    require(c, normalization_layer_name="rms_norm")
    act = {"swish": F.silu, "gelu": F.gelu}[c.activation_fn_name]
    x = t["transformer.token_embeddings.weight"][ids]
    for i, (queries, groups, _) in enumerate(openelm_widths(c)):
        at = f"transformer.layers.{i}."
        h = rms(x, t[at + "attn_norm.weight"], 1e-6)
        q, k, v = F.linear(h, t[at + "attn.qkv_proj.weight"]).unflatten(-1, (-1, c.head_dim)).split([queries, groups, groups], 2)
        if c.normalize_qk_projections:
            q, k = rms(q, t[at + "attn.q_norm.weight"], 1e-6), rms(k, t[at + "attn.k_norm.weight"], 1e-6)
        q, k = (half_turn(y, float(c.rope_freq_constant), c.head_dim) for y in (q, k))
        x = x + F.linear(attend(q, k, v), t[at + "attn.out_proj.weight"])
        hidden = F.linear(rms(x, t[at + "ffn_norm.weight"], 1e-6), t[at + "ffn.proj_1.weight"])
        if c.ffn_with_glu:
            gate, up = hidden.chunk(2, -1)
            hidden = act(gate) * up
        else:
            hidden = act(hidden)
        x = x + F.linear(hidden, t[at + "ffn.proj_2.weight"])
    return F.linear(rms(x, t["transformer.norm.weight"], 1e-6), t["transformer.token_embeddings.weight" if c.share_input_output_layers else "lm_head.weight"])


# HyenaDNA: gates and a convolution over the whole past, whose filter a small network gives


def hyena_settings(c):
    """Both layouts under one set of names."""
    if "layer" not in c:
        require(c, hyena_order=2, short_filter_order=3, train_freq=True)
        kind = c.architectures[0].removeprefix("HyenaDNA")
        return Config(
            c, d_inner=c.d_inner or 4 * c.d_model, base="backbone." if kind == "Model" else "hyena.backbone.", mixer="mixer.", mlp="mlp.", layer_eps=1e-5, copies=1,
            head={"Model": None, "ForCausalLM": "lm_head.weight", "ForSequenceClassification": "score.weight"}[kind])
    o = Config({"num_inner_mlps": 2, **c.layer})
    require(o, order=2, short_filter_order=3, local_order=3, modulate=True, lr_pos_emb=0.0)
    return Config(
        c, max_seq_len=o.l_max, filter_order=o.filter_order, emb_dim=o.emb_dim, num_inner_mlps=o.num_inner_mlps, base="model.backbone.", head="model.lm_head.weight",
        mixer="mixer.layer." if c.checkpoint_mixer else "mixer.", mlp="mlp.layer." if c.checkpoint_mlp else "mlp.", layer_eps=c.layer_norm_epsilon, copies=o.num_inner_mlps + 1, tie_word_embeddings=False)


def hyena_shapes(config):
    c = hyena_settings(config)
    d, f, rows, length = c.d_model, c.filter_order, -(-c.vocab_size // c.pad_vocab_size_multiple) * c.pad_vocab_size_multiple, c.max_seq_len
    shapes = {c.base + "embeddings.word_embeddings.weight": (rows, d), c.base + "ln_f.weight": (d,), c.base + "ln_f.bias": (d,)}
    if c.head == "score.weight":
        shapes[c.head] = (c.num_labels, d)
    elif c.head and not c.tie_word_embeddings:
        shapes[c.head] = (rows, d)
    for i in range(c.n_layer):
        at = f"{c.base}layers.{i}."
        of_filter = f"{at}{c.mixer}filter_fn."
        for name, out, into in ((c.mixer + "in_proj", 3 * d, d), (c.mixer + "out_proj", d, d), (c.mlp + "fc1", c.d_inner, d), (c.mlp + "fc2", d, c.d_inner)):
            shapes.update({f"{at}{name}.weight": (out, into), f"{at}{name}.bias": (out,)})
        shapes.update({f"{at}norm{n}.{part}": (d,) for n in (1, 2) for part in ("weight", "bias")})
        shapes.update({f"{at}{c.mixer}short_filter.weight": (3 * d, 1, 3), f"{at}{c.mixer}short_filter.bias": (3 * d,), of_filter + "bias": (d,)})
        for j in range(c.num_inner_mlps + 1):
            shapes.update({f"{of_filter}implicit_filter.{2 * j}.weight": (f, f if j else c.emb_dim), f"{of_filter}implicit_filter.{2 * j}.bias": (f,)})
        shapes[f"{of_filter}implicit_filter.{2 * c.num_inner_mlps + 2}.weight"] = (d, f)
        shapes.update({f"{of_filter}implicit_filter.{2 * j + 1}.freq": (1, f) for j in range(c.copies)})
        shapes.update({of_filter + "pos_emb.z": (1, length, c.emb_dim), of_filter + "pos_emb.t": (1, length, 1), of_filter + "modulation.deltas": (1, 1, d)})
    return shapes


def hyena_files(tensors, config):
    """What is no weight as the classes make it, and what is one parameter once."""
    c = hyena_settings(Config({**CLASSES["LightningHyenaDNA" if "layer" in config else "HyenaDNAForCausalLM"].defaults, **config}))
    bands, result = (c.emb_dim - 1) // 2, dict(tensors)
    if "layer" in config:
        result[c.head] = result[c.base + "embeddings.word_embeddings.weight"].clone()
    for i in range(c.n_layer):
        of_filter = f"{c.base}layers.{i}.{c.mixer}filter_fn."
        t = torch.linspace(0, 1, c.max_seq_len)[None, :, None]
        angle = torch.linspace(1e-4, bands - 1, bands) * (2 * math.pi * torch.arange(c.max_seq_len)[:, None] / c.max_seq_len)
        result[of_filter + "pos_emb.t"] = t
        result[of_filter + "pos_emb.z"] = torch.cat([t, angle.cos()[None], -angle.sin()[None]], -1)
        result[of_filter + "modulation.deltas"] = torch.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, c.d_model)[None, None]
        for j in range(1, c.copies):
            result[f"{of_filter}implicit_filter.{2 * j + 1}.freq"] = result[of_filter + "implicit_filter.1.freq"].clone()
    return result


def hyena_logits(config, t, ids):
    c = hyena_settings(config)
    table, length, d = t[c.base + "embeddings.word_embeddings.weight"], ids.shape[1], c.d_model
    x = table[ids]
    norm = lambda x, name, eps: F.layer_norm(x, (d,), t[name + ".weight"], t[name + ".bias"], eps)
    dense = lambda x, name: F.linear(x, t[name + ".weight"], t.get(name + ".bias"))
    for i in range(c.n_layer):
        at = f"{c.base}layers.{i}."
        mixer = at + c.mixer
        network = mixer + "filter_fn.implicit_filter."
        h = t[mixer + "filter_fn.pos_emb.z"][0, :length].double()
        for j in range(c.num_inner_mlps + 1):
            h = (t[network + "1.freq"].double() * F.linear(h, t[f"{network}{2 * j}.weight"].double(), t[f"{network}{2 * j}.bias"].double())).sin()
        h = h @ t[f"{network}{2 * c.num_inner_mlps + 2}.weight"].double().T
        h = h * ((-t[mixer + "filter_fn.pos_emb.t"][0, :length].double() * t[mixer + "filter_fn.modulation.deltas"][0].double().abs()).exp() + 0.05)
        u = dense(norm(x, at + "norm1", c.layer_eps), mixer + "in_proj")
        taps = t[mixer + "short_filter.weight"][:, 0]
        u = t[mixer + "short_filter.bias"] + sum(taps[:, 2 - back] * F.pad(u, (0, 0, back, 0))[:, :length] for back in range(3))
        outer, inner, v = u.double().split(d, -1)
        v = v * inner
        v = torch.stack([(h[: s + 1].flip(0) * v[:, : s + 1]).sum(1) for s in range(length)], 1) + t[mixer + "filter_fn.bias"] * v
        x = x + dense((v * outer).float(), mixer + "out_proj")
        x = x + dense(F.gelu(dense(norm(x, at + "norm2", c.layer_eps), at + c.mlp + "fc1"), approximate="tanh"), at + c.mlp + "fc2")
    x = norm(x, c.base + "ln_f", c.layer_norm_epsilon)
    if c.head == "score.weight":  # of the last token
        return F.linear(x[:, -1], t[c.head])
    return F.linear(x, table if c.tie_word_embeddings else t[c.head]) if c.head else x


def flat(type_name, name, shapes, logits, source, **defaults):
    """The class of a type whose tensors are a table."""
    CLASSES[name] = type(name, (Flat,), dict(
        model_type=type_name, defaults=defaults, shapes=staticmethod(shapes), logits=staticmethod(logits), source=f"plain torch after {source}"))


COMMON = dict(
    vocab_size=32000, hidden_size=2048, num_hidden_layers=24, norm_eps=1e-6, tie_word_embeddings=False, initializer_range=0.02,
    pad_token_id=None, bos_token_id=1, eos_token_id=2, fuse_norm=True, fuse_cross_entropy=True, fuse_linear_cross_entropy=False, use_l2warp=False,
)
GATED = dict(COMMON, hidden_ratio=4, intermediate_size=None, hidden_act="swish", max_position_embeddings=2048, fuse_swiglu=True, attnres_block_size=None)
HYBRID = dict(GATED, attn=None, attn_mode="chunk")
CONV = dict(use_short_conv=True, conv_size=4)


def released(type_name, stem, body, defaults, prefix="model"):
    """The class of a type with its head, and the one without."""
    members = dict(model_type=type_name, defaults=defaults, prefix=prefix, body=staticmethod(body))
    for ending, headless in (("ForCausalLM", False), ("Model", True)):
        name = stem + ending
        globals()[name] = type(name, (Released,), dict(members, headless=headless))
        CLASSES[name] = globals()[name]


CLASSES = {}
released(
    "transformer", "Transformer",
    lambda c: Decoder(c, lambda c, layer: Attention(c, **{k: c[k] for k in ("num_heads", "num_kv_heads", "qkv_bias", "qk_norm", "window_size", "rope_theta")})),
    dict(GATED, num_heads=32, num_kv_heads=None, qkv_bias=False, qk_norm=False, window_size=None, rope_theta=10000.0, elementwise_affine=True),
)
released("retnet", "RetNet", lambda c: Decoder(c, Retention), dict(
    HYBRID, expand_k=1.0, expand_v=2.0, hidden_ratio=2, num_heads=8, num_kv_heads=None, feature_map=None, use_short_conv=False, conv_size=4,
    use_output_gate=True, elementwise_affine=True))
released("gla", "GLA", lambda c: Decoder(c, GatedLinearAttention), dict(
    HYBRID, expand_k=0.5, expand_v=1.0, num_heads=4, num_kv_heads=None, feature_map=None, use_short_conv=False, conv_size=4, use_output_gate=True,
    clamp_min=None, elementwise_affine=True, use_gk=True, use_gv=False))
released("delta_net", "DeltaNet", lambda c: Decoder(c, DeltaNet), dict(
    HYBRID, **CONV, expand_k=1.0, expand_v=1.0, use_gate=False, allow_neg_eigval=False, use_beta=True, use_output_norm=True, num_heads=16, qk_norm="l2",
    qk_activation="silu"))
released("gated_deltanet", "GatedDeltaNet", lambda c: Decoder(c, GatedDeltaNet), dict(
    HYBRID, **CONV, expand_v=2.0, use_gate=True, allow_neg_eigval=False, head_dim=256, num_heads=6, num_v_heads=None, num_hidden_layers=21))
released("kda", "KDA", lambda c: Decoder(c, KimiDelta), dict(
    HYBRID, **CONV, expand_v=1.0, allow_neg_eigval=False, safe_gate=False, lower_bound=None, head_dim=128, num_heads=16, num_v_heads=None))
released("hgrn", "HGRN", lambda c: Decoder(c, Hgrn), dict(
    HYBRID, expand_ratio=1, use_short_conv=False, conv_size=4, use_lower_bound=True, elementwise_affine=True, attn_mode="fused_recurrent"))
released("hgrn2", "HGRN2", lambda c: Decoder(c, Hgrn2), dict(
    HYBRID, num_heads=None, expand_ratio=128, use_short_conv=False, conv_size=4, use_lower_bound=True, elementwise_affine=True))
released("linear_attn", "LinearAttention", lambda c: Decoder(c, LinearAttention), dict(
    HYBRID, attn_mode="fused_chunk", expand_k=1.0, expand_v=1.0, num_heads=4, num_kv_heads=None, feature_map="elementwise_product", tie_feature_map_qk=False, norm_q=False,
    norm_k=False, norm_feature_map=False, elementwise_affine=True))
released("forgetting_transformer", "ForgettingTransformer", lambda c: Decoder(c, Forgetting), dict(
    GATED, num_heads=32, num_kv_heads=None, qkv_bias=False, qk_norm=False, window_size=None, use_output_gate=False, elementwise_affine=True))
released("nsa", "NSA", lambda c: Decoder(c, SparseAttention), dict(
    GATED, num_heads=64, num_kv_heads=4, head_dim=32, qkv_bias=False, block_size=64, block_counts=16, window_size=512, rope_theta=10000.0, elementwise_affine=True))
released("mla", "MLA", lambda c: Decoder(c, MultiLatent), dict(
    GATED, num_heads=16, q_lora_rank=64, qk_rope_head_dim=64, kv_lora_rank=512, v_head_dim=128, qk_nope_head_dim=128, qk_head_dim=192, window_size=None, rope_theta=10000.0,
    rope_scaling=None, elementwise_affine=True))
STATES = dict(
    COMMON, norm_eps=1e-5, num_hidden_layers=48, pad_token_id=0, expand=2, conv_kernel=4, use_bias=False, use_conv_bias=True, hidden_act="silu",
    residual_in_fp32=True, dt_min=0.001, dt_max=0.1, dt_init_floor=1e-4, rescale_prenorm_residual=False)
released("mamba", "FlaMamba", lambda c: States(c, Mamba), dict(
    STATES, state_size=16, dt_rank="auto", dt_scale=1.0, dt_init_scheme="random"), prefix="backbone")
released("mamba2", "FlaMamba2", lambda c: States(c, Mamba2), dict(
    STATES, state_size=128, head_dim=64, num_heads=None, n_groups=1, conv_init=None, A_init_range=[1, 16], D_has_hdim=False, dt_limit=[0.0, math.inf], rmsnorm=True,
    norm_before_gate=False, chunk_size=256), prefix="backbone")
released("log_linear_mamba2", "LogLinearMamba2", lambda c: States(c, LogLinearMamba2, LogLinearBlock), dict(
    STATES, residual_in_fp32=False, state_size=128, head_dim=64, num_heads=None, n_groups=1, conv_init=None, A_init_range=[1, 16], D_has_hdim=False, dt_limit=[0.0, math.inf], rmsnorm=True,
    norm_before_gate=False, chunk_size=64, attnres_block_size=None), prefix="backbone")
released("samba", "Samba", lambda c: States(c, Mamba, SambaBlock), dict(
    GATED, norm_eps=1e-5, hidden_size=2304, num_hidden_layers=18, state_size=16, expand=2, conv_kernel=4, use_bias=False, use_conv_bias=True, residual_in_fp32=False,
    time_step_rank="auto", time_step_scale=1.0, time_step_min=0.001, time_step_max=0.1, time_step_init_scheme="random", time_step_floor=1e-4,
    attn={"layers": [1, 3, 5, 7, 9, 11, 13, 15, 17], "num_heads": 18, "num_kv_heads": 18, "qkv_bias": False, "window_size": 2048, "rope_theta": 10000.0},
    rescale_prenorm_residual=False), prefix="backbone")
released("rwkv6", "RWKV6", lambda c: RwkvDecoder(c, Rwkv6, Rwkv6Channel), dict(
    COMMON, norm_eps=1e-5, attn_mode="chunk", expand_k=0.5, expand_v=1.0, hidden_ratio=3.5, intermediate_size=None, num_heads=4, proj_low_rank_dim=32, gate_low_rank_dim=64,
    hidden_act="sqrelu", max_position_embeddings=2048, norm_first=True, norm_bias=True, attn=None))
released("rwkv7", "RWKV7", lambda c: RwkvDecoder(c, Rwkv7, Rwkv7Channel), dict(
    COMMON, norm_eps=1e-5, use_l2warp=True, attn_mode="chunk", hidden_ratio=4, intermediate_size=None, head_dim=64, num_heads=None, decay_low_rank_dim=64,
    gate_low_rank_dim=128, a_low_rank_dim=64, v_low_rank_dim=16, hidden_act="sqrelu", max_position_embeddings=2048, norm_first=True, norm_bias=True, attn=None,
    value_dim=None))
LLAMA = dict(vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, hidden_act="silu",
             max_position_embeddings=2048, rms_norm_eps=1e-6, rope_theta=10000, rope_scaling=None, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.02)
flat("internlm2", "InternLM2ForCausalLM", internlm2_shapes, internlm2_logits, "InternLM 2 (modeling_internlm2.py)",
     **LLAMA, bias=True, tie_word_embeddings=False)
flat("qwen", "QWenLMHeadModel", qwen_shapes, qwen_logits, "Qwen (modeling_qwen.py)",
     vocab_size=151936, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, kv_channels=128, intermediate_size=22016, layer_norm_epsilon=1e-6,
     rotary_pct=1.0, rotary_emb_base=10000, seq_length=8192, max_position_embeddings=8192, use_dynamic_ntk=True, use_logn_attn=True, no_bias=True, scale_attn_weights=True,
     tie_word_embeddings=False, initializer_range=0.02, emb_dropout_prob=0.0, attn_dropout_prob=0.0)
flat("chatglm", "ChatGLMModel", chatglm_shapes, chatglm_logits, "ChatGLM (modeling_chatglm.py)",
     num_layers=28, padded_vocab_size=65024, hidden_size=4096, ffn_hidden_size=13696, kv_channels=128, num_attention_heads=32, seq_length=2048, layernorm_epsilon=1e-5,
     rope_ratio=1, rmsnorm=True, apply_residual_connection_post_layernorm=False, post_layer_norm=True, add_bias_linear=False, add_qkv_bias=False, multi_query_attention=False,
     multi_query_group_num=1)
flat("baichuan", "BaichuanForCausalLM", baichuan_shapes, baichuan_logits, "Baichuan (modeling_baichuan.py)",
     vocab_size=64000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, hidden_act="silu", rms_norm_eps=1e-6, pad_token_id=0, bos_token_id=1,
     eos_token_id=2, initializer_range=0.02, tie_word_embeddings=False, gradient_checkpointing=False)
flat("openelm", "OpenELMForCausalLM", openelm_shapes, openelm_logits, "OpenELM (modeling_openelm.py)",
     vocab_size=32000, max_context_length=2048, num_transformer_layers=12, model_dim=2048, head_dim=128, qkv_multipliers=1.0, num_query_heads=None, num_gqa_groups=1, ffn_multipliers=4.0,
     ffn_with_glu=True, ffn_dim_divisor=256, activation_fn_name="swish", normalization_layer_name="rms_norm", normalize_qk_projections=False, share_input_output_layers=False,
     rope_freq_constant=10000, rope_max_length=4096, initializer_range=0.02, bos_token_id=1, eos_token_id=2)
flat("", "TorchscaleRetNet", retnet_shapes, retnet_logits, "torchscale (architecture/retnet.py)",
     vocab_size=-1, decoder_embed_dim=768, decoder_value_embed_dim=1280, decoder_retention_heads=3, decoder_ffn_embed_dim=1280, decoder_layers=12, decoder_normalize_before=True,
     activation_fn="gelu", dropout=0.0, drop_path_rate=0.0, activation_dropout=0.0, no_scale_embedding=True, layernorm_embedding=False, moe_freq=0, deepnorm=False, subln=True,
     multiway=False, share_decoder_input_output_embed=False, max_target_positions=1024, no_output_layer=False, layernorm_eps=1e-6, chunkwise_recurrent=False,
     recurrent_chunk_size=512)
for name in ("HyenaDNAForCausalLM", "HyenaDNAModel", "HyenaDNAForSequenceClassification"):
    flat("hyenadna", name, hyena_shapes, hyena_logits, "HyenaDNA (modeling_hyena.py of LongSafari/hyenadna-*-hf)",
         vocab_size=12, d_model=256, d_inner=None, use_bias=True, train_freq=True, max_seq_len=1024, emb_dim=3, n_layer=12, num_inner_mlps=2, hyena_order=2, short_filter_order=3,
         filter_order=64, activation_freq=1, embed_dropout=0.1, hyena_dropout=0.0, hyena_filter_dropout=0.0, layer_norm_epsilon=1e-5, initializer_range=0.02,
         pad_vocab_size_multiple=8, tie_word_embeddings=True)
CLASSES["HyenaDNAModel"].headless = True
flat("", "LightningHyenaDNA", hyena_shapes, hyena_logits, "HyenaDNA (https://github.com/HazyResearch/hyena-dna, standalone_hyenadna.py)",
     layer_norm_epsilon=1e-5, pad_vocab_size_multiple=1, checkpoint_mixer=False, checkpoint_mlp=False)
flat("minicpm", "MiniCPMForCausalLM", minicpm_shapes, minicpm_logits, "MiniCPM (modeling_minicpm.py)",
     **LLAMA, attention_bias=False, tie_word_embeddings=True, scale_emb=1, scale_depth=1, dim_model_base=1)


def library_view(c):
    """A config of mamba_ssm under the names of the parts above."""
    require(c, rms_norm=True, d_intermediate=0, attn_layer_idx=[])
    ssm = dict(c.ssm_cfg)
    second = ssm.pop("layer", "Mamba1") == "Mamba2"
    names = dict(d_state="state_size", d_conv="conv_kernel", headdim="head_dim", ngroups="n_groups", bias="use_bias", conv_bias="use_conv_bias")
    given = dict(
        state_size=128 if second else 16, conv_kernel=4, expand=2, head_dim=64, n_groups=1, use_bias=False, use_conv_bias=True, dt_rank="auto", num_heads=None,
        dt_limit=[0.0, math.inf], rmsnorm=True, norm_before_gate=False, D_has_hdim=False)
    given.update({names.get(key, key): value for key, value in ssm.items()})
    multiple = c.pad_vocab_size_multiple
    return Config(given, hidden_act="silu", norm_eps=1e-5, hidden_size=c.d_model, num_hidden_layers=c.n_layer, vocab_size=-(-c.vocab_size // multiple) * multiple,
                  tie_word_embeddings=c.tie_embeddings)


LIBRARY = dict(d_model=2560, d_intermediate=0, n_layer=64, vocab_size=50277, ssm_cfg={}, attn_layer_idx=[], attn_cfg={}, rms_norm=True, residual_in_fp32=True, fused_add_norm=True,
               pad_vocab_size_multiple=8, tie_embeddings=True)
for name, mixer in (("LibraryMamba", Mamba), ("LibraryMamba2", Mamba2)):
    released("", name, lambda c, mixer=mixer: States(c, mixer, table="embedding"), LIBRARY, prefix="backbone")
    globals()[name + "ForCausalLM"].view, globals()[name + "ForCausalLM"].table = staticmethod(library_view), "embedding"
    globals()[name + "ForCausalLM"].source = "plain torch after mamba_ssm (https://github.com/state-spaces/mamba)"
