"""Prints outputs of transformers' state-space, convolution and recurrent layers, in float64, for the
tests of nn/mixer: parameters in the order in which tessera declares them, the i-th being
sin((0.37 + 0.13 i) n + 0.2 i) over its elements n in row-major order; the input is sin(0.41 n + 0.2).
Written with transformers 5.23, torch 2.15 and, for the mLSTM block, xlstm 2.0.6. Run: python tools/golden/sequence_mixers.py"""

import torch

torch.set_default_dtype(torch.float64)
torch.Tensor.float = torch.Tensor.double  # the references round scans and their parameters to float32
T = 5


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


class Values:
    """Hands out the parameters in declared order."""

    def __init__(self):
        self.i = 0

    def __call__(self, *shape):
        self.i += 1
        return gen(shape, 0.37 + 0.13 * (self.i - 1), 0.2 * (self.i - 1))


def show(name, y):
    print(name, ", ".join(f"{v:.10f}" for v in y.detach().reshape(-1).tolist()))


def put(parameter, value):
    parameter.data = value.reshape(parameter.shape).to(torch.float64)


def mamba_like(name, mixer, d, n, r, k, weighted_norms):
    v = Values()
    e = 2 * d
    put(mixer.in_proj.weight, v(2 * e, d))
    put(mixer.conv1d.weight, v(e, k))
    put(mixer.conv1d.bias, v(e))
    put(mixer.x_proj.weight, v(r + 2 * n, e))
    if weighted_norms:
        put(mixer.dt_layernorm.weight, v(r))
        put(mixer.b_layernorm.weight, v(n))
        put(mixer.c_layernorm.weight, v(n))
    put(mixer.dt_proj.weight, v(e, r))
    put(mixer.dt_proj.bias, v(e))
    put(mixer.A_log, v(e, n))
    put(mixer.D, v(e))
    put(mixer.out_proj.weight, v(d, e))
    show(name, mixer.to(torch.float64)(gen((1, T, d), 0.41, 0.2)))


def mamba():
    from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaConfig, FalconMambaMixer
    from transformers.models.jamba.modeling_jamba import JambaConfig, JambaMambaMixer
    from transformers.models.mamba.modeling_mamba import MambaConfig, MambaMixer

    sizes = dict(hidden_size=4, state_size=3, conv_kernel=3, time_step_rank=2, use_conv_bias=True, use_bias=False)
    mamba_like("mamba", MambaMixer(MambaConfig(**sizes), 0), 4, 3, 2, 3, False)
    falcon = FalconMambaMixer(FalconMambaConfig(**sizes, mixer_rms_eps=1e-6), 0, initialize_mixer_weights=False)
    mamba_like("falcon_mamba", falcon, 4, 3, 2, 3, False)
    jamba = JambaConfig(hidden_size=4, mamba_d_state=3, mamba_d_conv=3, mamba_dt_rank=2, mamba_expand=2,
                        use_mamba_kernels=False, rms_norm_eps=1e-6)
    mamba_like("jamba", JambaMambaMixer(jamba, 0), 4, 3, 2, 3, True)


def rg_lru():
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import (
        RecurrentGemmaConfig, RecurrentGemmaRecurrentBlock, RecurrentGemmaRglru)

    RecurrentGemmaRglru._rnn_scan.__defaults__ = (torch.float64,)
    config = RecurrentGemmaConfig(hidden_size=4, lru_width=6, num_attention_heads=3, conv1d_width=3)
    block = RecurrentGemmaRecurrentBlock(config, 0)
    v = Values()
    put(block.linear_x.weight, v(6, 4))
    put(block.linear_x.bias, v(6))
    put(block.linear_y.weight, v(6, 4))
    put(block.linear_y.bias, v(6))
    put(block.conv_1d.weight, v(6, 3))
    put(block.conv_1d.bias, v(6))
    # ours are [channel, inputs of its block]; theirs [block, input, output]
    put(block.rg_lru.input_gate_weight, v(6, 2).reshape(3, 2, 2).transpose(1, 2).contiguous())
    put(block.rg_lru.input_gate_bias, v(6))
    put(block.rg_lru.recurrent_gate_weight, v(6, 2).reshape(3, 2, 2).transpose(1, 2).contiguous())
    put(block.rg_lru.recurrent_gate_bias, v(6))
    put(block.rg_lru.recurrent_param, v(6))
    put(block.linear_out.weight, v(4, 6))
    put(block.linear_out.bias, v(4))
    y, _ = block(gen((1, T, 4), 0.41, 0.2), torch.arange(T)[None], None, use_cache=False)
    show("rg_lru", y)


def rwkv4():
    from transformers.models.rwkv.modeling_rwkv import RwkvConfig, RwkvSelfAttention

    attention = RwkvSelfAttention(RwkvConfig(hidden_size=4, attention_hidden_size=6))
    v = Values()
    for name in ("key", "value", "receptance"):
        put(getattr(attention, "time_mix_" + name), v(4))
    put(attention.key.weight, v(6, 4))
    put(attention.value.weight, v(6, 4))
    put(attention.receptance.weight, v(6, 4))
    put(attention.time_decay, v(6))
    put(attention.time_first, v(6))
    put(attention.output.weight, v(4, 6))
    show("rwkv4", attention(gen((1, T, 4), 0.41, 0.2))[0])


def short_conv():
    from transformers.models.lfm2.modeling_lfm2 import Lfm2Config, Lfm2ShortConv

    config = Lfm2Config(hidden_size=4, num_hidden_layers=1, conv_L_cache=3, conv_bias=True, layer_types=["conv"])
    layer = Lfm2ShortConv(config, 0)
    v = Values()
    put(layer.in_proj.weight, v(12, 4))
    put(layer.in_proj.bias, v(12))
    put(layer.conv.weight, v(4, 3))
    put(layer.conv.bias, v(4))
    put(layer.out_proj.weight, v(4, 4))
    put(layer.out_proj.bias, v(4))
    show("short_conv", layer(gen((1, T, 4), 0.41, 0.2)))


def mlstm_block():
    from xlstm.blocks.mlstm.layer import mLSTMLayer, mLSTMLayerConfig

    layer = mLSTMLayer(mLSTMLayerConfig(embedding_dim=4, num_heads=2, context_length=T, round_proj_up_to_multiple_of=8))
    cell = layer.mlstm_cell
    v = Values()
    for parameter in (layer.proj_up.weight, layer.conv1d.conv.weight, layer.conv1d.conv.bias, layer.q_proj.weight,
                      layer.k_proj.weight, layer.v_proj.weight, cell.igate.weight, cell.igate.bias,
                      cell.fgate.weight, cell.fgate.bias, cell.outnorm.weight, layer.learnable_skip,
                      layer.proj_down.weight):
        put(parameter, v(*parameter.shape))
    cell.outnorm.weight.data -= 1  # the layer adds it
    show("mlstm_block", layer(gen((1, T, 4), 0.41, 0.2)))


mamba()
rg_lru()
rwkv4()
short_conv()
mlstm_block()
