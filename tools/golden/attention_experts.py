"""Prints the output of transformers' JetMoE attention in float64 for nn/mixer/attention/attention_experts_test.cpp:
two heads of two channels, three experts of which a token has two, rope of base 100. Parameters and input as in
sequence_mixers.py. Written with transformers 5.23, torch 2.15. Run: python tools/golden/attention_experts.py"""

import torch
from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention, JetMoeConfig, JetMoeRotaryEmbedding

torch.set_default_dtype(torch.float64)
# the reference rounds router, angles and weights to float32
torch.Tensor.float = torch.Tensor.double
softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim, dtype=None: softmax(x, dim)
D, T = 4, 5


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


config = JetMoeConfig(hidden_size=D, kv_channels=2, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2,
                      num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 100.0},
                      attention_dropout=0.0)
config._attn_implementation = "eager"
attention = JetMoeAttention(config, 0).to(torch.float64).eval()
shapes = [(3, D), (3, 4, D), (4, D), (4, D), (3, D, 4), (D,)]
router, q, k, v, o, bias = (gen(s, 0.37 + 0.13 * i, 0.2 * i) for i, s in enumerate(shapes))
attention.experts.router.layer.weight.data = router
attention.experts.input_linear.weight.data = q
attention.experts.output_linear.weight.data = o
attention.experts.bias.data = bias
attention.kv_proj.weight.data = torch.cat([k, v])
x = gen((1, T, D), 0.41, 0.2)
angles = JetMoeRotaryEmbedding(config)(x, torch.arange(T)[None])
mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
y = attention(x, attention_mask=mask, position_embeddings=angles)[0]
print(", ".join(f"{u:.10f}" for u in y.reshape(-1).tolist()))
