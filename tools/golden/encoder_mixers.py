"""Prints what transformers' layers of ConvBERT and MobileBERT give in float64, for
nn/mixer/attention/mixed_attention_test.cpp and bottleneck_test.cpp. Parameter i of a mixer is 0.5 sin((0.37 + 0.06 i) n +
0.1 + 0.2 i) over its elements n, the input sin(0.41 n + 0.2).
Run: python tools/golden/encoder_mixers.py"""

import torch
from transformers import ConvBertConfig, MobileBertConfig
from transformers.models.convbert.modeling_convbert import ConvBertSelfAttention
from transformers.models.mobilebert.modeling_mobilebert import MobileBertLayer

torch.set_default_dtype(torch.float64)
T, D = 5, 8


def wave(shape, frequency, phase):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * frequency + phase).reshape(shape)


def fill(parameters):
    with torch.no_grad():
        for i, (parameter, shape) in enumerate(parameters):
            parameter.copy_(0.5 * wave(shape, 0.37 + 0.06 * i, 0.1 + 0.2 * i).reshape(parameter.shape))


def both(module):
    """Weight and bias, without the dimension of a convolution's one tap."""
    return [(module.weight, module.weight.shape), (module.bias, module.bias.shape)]


def show(name, y):
    print(name, ", ".join(f"{v:.10f}" for v in y.reshape(-1).tolist()))


X = wave((1, T, D), 0.41, 0.2)


def mixed_attention():
    layer = ConvBertSelfAttention(ConvBertConfig(hidden_size=D, num_attention_heads=4, head_ratio=2, conv_kernel_size=3)).double().eval()
    out = torch.nn.Linear(D, D)
    conv = layer.key_conv_attn_layer
    fill(
        [
            *both(layer.query),
            *both(layer.key),
            *both(layer.value),
            (conv.depthwise.weight, (D, 1, 3)),
            (conv.pointwise.weight, (4, D)),
            (conv.bias, (4,)),
            *both(layer.conv_kernel_layer),
            *both(layer.conv_out_layer),
            *both(out),
        ]
    )
    show("mixed_attention", out(layer(X)[0]))


def bottleneck(narrow):
    config = MobileBertConfig(
        hidden_size=D,
        intra_bottleneck_size=4,
        num_attention_heads=2,
        intermediate_size=6,
        num_feedforward_networks=2,
        use_bottleneck_attention=narrow,
        hidden_act="relu",
    )
    config._attn_implementation = "eager"
    layer = MobileBertLayer(config).double().eval()
    attention, ends = layer.attention, layer.bottleneck
    first = [] if narrow else [*both(ends.attention.dense), *both(ends.attention.LayerNorm)]
    inner = getattr(attention, "self")
    fill(
        [
            *both(ends.input.dense),
            *both(ends.input.LayerNorm),
            *first,
            *both(inner.query),
            *both(inner.key),
            *both(inner.value),
            *both(attention.output.dense),
            *both(attention.output.LayerNorm),
            *both(layer.ffn[0].intermediate.dense),
            *both(layer.ffn[0].output.dense),
            *both(layer.ffn[0].output.LayerNorm),
            *both(layer.intermediate.dense),
            *both(layer.output.dense),
            *both(layer.output.LayerNorm),
            *both(layer.output.bottleneck.dense),
        ]
    )
    # its last norm is none, and the branch joins the stream
    show(f"bottleneck {'bottleneck' if narrow else 'stream'}", layer(X, None) - X)


with torch.no_grad():
    mixed_attention()
    bottleneck(False)
    bottleneck(True)
