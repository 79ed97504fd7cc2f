"""The module of Qwen3-Next and Qwen3.5 that predicts the token after the next (mtp.*), in plain torch.

transformers leaves these tensors out. Their meaning is that of DeepSeek-V3's modules (arXiv:2412.19437, sec. 2.2), and of the loader
of llama.cpp (src/models/qwen35.cpp, graph_mtp): the layer reads W [norm(embedding of token t + 1) ; norm(h_t)] with h_t after the
final norm, and is a layer of full attention with its own norm behind it; embedding and head are the model's.
"""
import torch
from torch.nn.functional import silu


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


def rotated(x, config):
    """x [T, H, D] at positions 1 .. T: the first channels turn, in halves."""
    rope = config.rope_parameters
    width = int(x.shape[-1] * rope["partial_rotary_factor"])
    angles = torch.arange(1, len(x) + 1)[:, None] / rope["rope_theta"] ** (torch.arange(0, width, 2) / width)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    left, right, still = x.split([width // 2, width // 2, x.shape[-1] - width], -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin, still], -1)


def attention(x, get, config):
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    both = (x @ get("self_attn.q_proj.weight").T).unflatten(-1, (heads, 2 * width))
    q, gate = both.split(width, -1)
    k = (x @ get("self_attn.k_proj.weight").T).unflatten(-1, (groups, width))
    v = (x @ get("self_attn.v_proj.weight").T).unflatten(-1, (groups, width))
    q = rotated(norm(q, get("self_attn.q_norm.weight"), config.rms_norm_eps), config)
    k = rotated(norm(k, get("self_attn.k_norm.weight"), config.rms_norm_eps), config)
    k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) / width**0.5
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    out = torch.einsum("hts,shd->thd", weights, v) * gate.sigmoid()
    return out.flatten(1) @ get("self_attn.o_proj.weight").T


def gated(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def feed_forward(x, get, config):
    def matrices(home):
        return [get(f"mlp.{home}{part}_proj.weight") for part in ("gate", "up", "down")]

    if not getattr(config, "num_experts", 0):
        return gated(x, *matrices(""))
    chances = (x @ get("mlp.gate.weight").T).softmax(-1)
    best, chosen = chances.topk(config.num_experts_per_tok, -1)
    best = best / best.sum(-1, keepdim=True)
    out = (x @ get("mlp.shared_expert_gate.weight").T).sigmoid() * gated(x, *matrices("shared_expert."))
    both, down = get("mlp.experts.gate_up_proj"), get("mlp.experts.down_proj")
    for expert in range(config.num_experts):
        weight = (best * (chosen == expert)).sum(-1, keepdim=True)
        parts = matrices(f"experts.{expert}.") if both is None else [*both[expert].chunk(2), down[expert]]
        out = out + weight * gated(x, *parts)
    return out


@torch.no_grad()
def ahead(model, tensors, ids):
    """{"ahead_0": logits [T - 1, C]} of one row, from the tensors of the checkpoint."""
    config = model.config
    hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight

    def of_layer(name):
        return tensors.get(f"mtp.layers.0.{name}")

    token = norm(embedding[ids[1:]], tensors["mtp.pre_fc_norm_embedding.weight"], config.rms_norm_eps)
    before = norm(hidden[:-1], tensors["mtp.pre_fc_norm_hidden.weight"], config.rms_norm_eps)
    x = torch.cat([token, before], -1) @ tensors["mtp.fc.weight"].T
    x = x + attention(norm(x, of_layer("input_layernorm.weight"), config.rms_norm_eps), of_layer, config)
    x = x + feed_forward(norm(x, of_layer("post_attention_layernorm.weight"), config.rms_norm_eps), of_layer, config)
    return {"ahead_0": (norm(x, tensors["mtp.norm.weight"], config.rms_norm_eps) @ head.T).contiguous()}
