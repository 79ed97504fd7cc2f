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
        require(c, num_v_heads=None, safe_gate=False, lower_bound=None)
        count, value_dim = c.num_heads, int(c.head_dim * c.expand_v)
        super().__init__(c, count, count, c.head_dim, value_dim)
        self.f_proj = nn.Sequential(linear(c.hidden_size, value_dim), linear(value_dim, count * c.head_dim))
        self.g_proj = nn.Sequential(linear(c.hidden_size, value_dim), linear(value_dim, count * value_dim, True))
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count * c.head_dim))

    def decay(self, x):
        step = F.softplus((self.f_proj(x) + self.dt_bias).double())
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
        self.mlp_norm, self.mlp = RMSNorm(c.hidden_size, c.norm_eps), GatedMLP(c)

    def forward(self, x):
        x = x + self.mixer(self.mixer_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class States(nn.Module):
    """Embedding, layers of one kind, norm."""

    def __init__(self, c, mixer, block=StateBlock):
        super().__init__()
        self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(block(c, layer, mixer) for layer in range(c.num_hidden_layers))
        self.norm_f = RMSNorm(c.hidden_size, c.norm_eps)

    def forward(self, ids):
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm_f(x)


class Released(nn.Module):
    """A model of a released format; a class per type below says its body and its config."""

    model_type, prefix, headless = "", "model", False
    defaults = {}

    def __init__(self, config):
        super().__init__()
        self.config = c = Config({**self.defaults, **config}, is_encoder_decoder=False, use_cache=False)
        body = self.body(c)
        if self.headless:
            self.bare = body
            return
        self.add_module(self.prefix, body)
        self.lm_head = linear(c.hidden_size, c.vocab_size)
        if c.tie_word_embeddings:
            self.lm_head.weight = body.embeddings.weight

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
        return cls({**config, "architectures": [cls.__name__.removeprefix("Fla")], "model_type": cls.model_type})

    @classmethod
    def from_files(cls, config, tensors, extra_allowed=False):
        model = cls(config)
        own = model.state_dict()
        if model.headless:
            tensors = {f"bare.{name}": value for name, value in tensors.items()}
        elif model.config.tie_word_embeddings:
            tensors = {**tensors, "lm_head.weight": tensors[f"{cls.prefix}.embeddings.weight"]}
        missing, more = own.keys() - tensors.keys(), tensors.keys() - own.keys()
        if missing or (more and not extra_allowed):
            raise RuntimeError(f"reference does not accept these weights as they are: missing {sorted(missing)}, unexpected {sorted(more)}")
        model.load_state_dict({name: value.float() for name, value in tensors.items() if name in own})
        return model.eval()

    def to_files(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        config = {k: v for k, v in self.config.items() if k not in ("is_encoder_decoder", "use_cache")}
        (folder / "config.json").write_text(json.dumps(dict(config, dtype="float32", use_cache=True), indent=2, sort_keys=True) + "\n")
        tensors = {name.removeprefix("bare."): value.contiguous() for name, value in self.state_dict().items()}
        if not self.headless and self.config.tie_word_embeddings:
            tensors.pop("lm_head.weight")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


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
STATES = dict(
    COMMON, norm_eps=1e-5, num_hidden_layers=48, pad_token_id=0, expand=2, conv_kernel=4, use_bias=False, use_conv_bias=True, hidden_act="silu",
    residual_in_fp32=True, dt_min=0.001, dt_max=0.1, dt_init_floor=1e-4, rescale_prenorm_residual=False)
released("mamba", "FlaMamba", lambda c: States(c, Mamba), dict(
    STATES, state_size=16, dt_rank="auto", dt_scale=1.0, dt_init_scheme="random"), prefix="backbone")
released("mamba2", "FlaMamba2", lambda c: States(c, Mamba2), dict(
    STATES, state_size=128, head_dim=64, num_heads=None, n_groups=1, conv_init=None, A_init_range=[1, 16], D_has_hdim=False, dt_limit=[0.0, math.inf], rmsnorm=True,
    norm_before_gate=False, chunk_size=256), prefix="backbone")
released("samba", "Samba", lambda c: States(c, Mamba, SambaBlock), dict(
    GATED, norm_eps=1e-5, hidden_size=2304, num_hidden_layers=18, state_size=16, expand=2, conv_kernel=4, use_bias=False, use_conv_bias=True, residual_in_fp32=False,
    time_step_rank="auto", time_step_scale=1.0, time_step_min=0.001, time_step_max=0.1, time_step_init_scheme="random", time_step_floor=1e-4,
    attn={"layers": [1, 3, 5, 7, 9, 11, 13, 15, 17], "num_heads": 18, "num_kv_heads": 18, "qkv_bias": False, "window_size": 2048, "rope_theta": 10000.0},
    rescale_prenorm_residual=False), prefix="backbone")
