"""Writes a tiny checkpoint as GGUF, by the conventions that llama.cpp's own converter follows.

llama: rows of q and k in pairs (the original order), llama3 scaling as rope_freqs.weight.
phi3: fused attn_qkv, fused ffn_up (gate rows, then up rows), rope factors as tensors.
gpt2: matrices (out, in). gemma: norm weights stored with their 1 added; query scale, local rope
base and the layer pattern are not stored but implied (1 / sqrt(key length), 10000, every 6th).
smollm3, granitemoe, llama of Mixtral: as llama. bloom, falcon, gptneox: rows of all queries, then all keys, then all values.
Experts: one stack per layer and matrix, (expert, out, in); of the first files one tensor each.
deepseek2: the rows that make keys and values of the latent apart, those of keys transposed, and heads
as long as the latent; of the first files as in Hugging Face's. What llama.cpp takes for granted is not
stored: gpt-oss' limit and windows on every other layer, llama4's chunks, temperatures and layers
without positions, qwen3moe's normed weights.
Other families: names by the gguf package's own table, values as they are.
Tensors are F32, but for experts that a case stores in a block type. The tokenizer is a stand-in of the byte-level kind.
"""

import math
import re

import gguf
import numpy
import torch

BYTE_LEVEL_FIRST = 0x21  # "!": the printable bytes stand for themselves in byte-level tokens

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
# the norm before the feed-forward block has another name where blocks have four norms
TWO_NORMS = {"post_attention_layernorm": "ffn_norm"}
FOUR_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


SPARSE = ("hunyuan-moe", "mistral4", "exaone-moe", "afmoe", "minimax-m2", "lfm2", "lfm2moe", "granitehybrid", "glm4moe", "dots1", "ernie4_5-moe", "olmoe", "qwen2moe", "qwen3moe", "granitemoe", "deepseek2", "llama4", "gpt-oss")
LATENT = ("deepseek2", "mistral4")
LISTED = ("llama", "phi3", "gpt2", "gemma2", "gemma3", "qwen2", "qwen3")  # in the tables above
PAIRED = ("llama", "smollm3", "granitemoe", "granite", "olmo", "arcee")  # rows of a head in pairs
COHERE = ("cohere2", "command-r")
LAYER_NORMS = ("gpt2", "phi2", "gptneox", "bloom", "falcon", "mpt", "stablelm", "olmo", "starcoder", "starcoder2", "nemotron") + COHERE


def package_name(architecture, name, layers):
    """By the table of the gguf package, with or without the prefix of the head's model."""
    stem, suffix = name.rsplit(".", 1)
    for ours, theirs in {"attn_sub_norm": "inner_attn_ln", "ffn_sub_norm": "ffn_layernorm"}.items():  # as BitNet's first models name them
        stem = stem.replace(ours, theirs)
    named = "bitnet" if architecture.startswith("bitnet") else architecture  # bitnet-b1.58 is of a fork
    kind = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[named]
    table = gguf.get_tensor_name_map(kind, layers)
    found = table.get_name(stem) or table.get_name(stem.removeprefix("transformer."))
    return f"{found}.{suffix}"


def gguf_name(name, names):
    stem, suffix = name.rsplit(".", 1)
    parts = stem.split(".")
    for prefix in ("model.layers.", "transformer.h."):
        if stem.startswith(prefix):
            return f"blk.{parts[2]}.{names['.'.join(parts[3:])]}.{suffix}"
    return f"{names[stem]}.{suffix}"


def pairs(rows, heads):
    """Rows of each head from half order to pair order: 0, d/2, 1, d/2 + 1, and so on."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def ungrouped(rows, groups):
    """From (queries, key, value) of every key/value head to all queries, all keys, all values."""
    queries, heads = groups
    parts = rows.reshape(heads, queries + 2, rows.shape[0] // (heads * (queries + 2)), -1)
    kinds = (parts[:, :-2], parts[:, -2:-1], parts[:, -1:])
    return numpy.concatenate([kind.reshape(-1, *rows.shape[1:]) for kind in kinds])


def query_groups(config):
    """Queries per key/value head, and the number of those."""
    heads = head_count(config)
    if config.get("new_decoder_architecture"):
        return heads // config["num_kv_heads"], config["num_kv_heads"]
    return (heads, 1) if config.get("multi_query") else (1, heads)


def converted(architecture, config, name, value):
    """The tensor's values in the GGUF's layout."""
    paired = architecture in PAIRED or config.get("position_embedding_type") == "rope"
    if paired and ".q_proj." in name:
        return pairs(value, config["num_attention_heads"])
    if paired and ".k_proj." in name:
        return pairs(value, config["num_key_value_heads"])
    if ".query_key_value." in name:
        return ungrouped(value, query_groups(config))
    if (architecture.startswith("gemma") or architecture == "nemotron") and name.endswith("norm.weight"):
        return value + numpy.float32(1)
    if architecture == "gpt2" and ".c_" in name and name.endswith(".weight"):
        return value.T
    return value


def llama3_factors(config):
    """What each frequency is divided by."""
    rope = config["rope_parameters"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    trained = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    factors = []
    for index in range(0, width, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / width)
        if wavelength < trained / high:
            factors.append(1.0)
        elif wavelength > trained / low:
            factors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return numpy.array(factors, numpy.float32)


def first_of(config, *keys):
    return next((config[key] for key in keys if config.get(key) is not None), None)


def head_count(config):
    return first_of(config, "num_attention_heads", "n_head", "n_heads")


def add_metadata(writer, architecture, config, older):
    heads = head_count(config)
    width = first_of(config, "hidden_size", "n_embd", "d_model")
    head = config.get("head_dim") or width // heads
    writer.add_name(f"tiny {architecture}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    lengths = ("max_position_embeddings", "n_positions", "max_seq_len")
    writer.add_context_length(first_of(config, *lengths) or 2048)
    writer.add_embedding_length(width)
    writer.add_block_count(first_of(config, "num_hidden_layers", "n_layer", "n_layers"))
    if architecture == "granitehybrid" and not expert_count(config):
        config = {**config, "intermediate_size": config["shared_intermediate_size"]}
    feed_forward = ("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner")
    writer.add_feed_forward_length(first_of(config, *feed_forward) or 4 * width)
    writer.add_head_count(heads)
    if architecture in ("bloom", "falcon"):
        writer.add_head_count_kv(query_groups(config)[1])
    elif architecture in LATENT:
        add_deepseek2(writer, config, older)
    elif architecture == "granitehybrid":
        add_granite_hybrid(writer, config)
    elif architecture.startswith("lfm2"):  # layers without heads of keys and values are convolutions
        writer.add_head_count_kv([config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in config["layer_types"]])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    elif "num_key_value_heads" in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
    if architecture in LAYER_NORMS:
        keys = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(first_of(config, *keys) or 1e-5)  # OLMo's is not said
    else:
        writer.add_layer_norm_rms_eps(first_of(config, "rms_norm_eps", "norm_eps"))
    scaled = full_rope(config).get("rope_type", "default") != "default"
    if architecture == "minicpm3":
        writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_kv_lora_rank(config["kv_lora_rank"])
        writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        head = config["qk_rope_head_dim"]
    elif architecture in LATENT or architecture.startswith("lfm2"):
        pass
    elif scaled or "head_dim" in config and architecture not in ("smollm3",) + COHERE:
        writer.add_key_length(head)
        writer.add_value_length(head)
    if "linear_num_key_heads" in config:
        add_delta_net(writer, config)
    if "rope_parameters" in config:
        add_rope(writer, architecture, config, head)
    if architecture in ("llama", "smollm3") + SPARSE + COHERE:
        writer.add_vocab_size(config["vocab_size"])
    if architecture in ("gptneox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])
    if architecture == "falcon":
        writer.add_tensor_data_layout("jploski")
    if architecture in COHERE:
        writer.add_logit_scale(config["logit_scale"])
    if architecture == "mpt":
        writer.add_max_alibi_bias(8.0)
        if config["attn_config"]["clip_qkv"] is not None:
            writer.add_clamp_kqv(config["attn_config"]["clip_qkv"])
    if architecture in ("gemma2", "gemma3", "cohere2", "afmoe"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture in ("olmo2", "exaone4", "exaone-moe") and config.get("sliding_window") is not None:
        writer.add_sliding_window(config["sliding_window"])
        ropes = config["rope_parameters"]
        if "sliding_attention" in ropes:
            writer.add_float32(f"{architecture}.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if architecture == "starcoder":
        writer.add_head_count_kv(1)
    if architecture in ("gemma2", "gemma3"):
        for key, add in (
            ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
            ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ):
            if config[key] is not None:
                add(config[key])
    if architecture == "phi3":
        writer.add_sliding_window(config["sliding_window"] or 0)
    if architecture == "gemma3":
        add_gemma3(writer, config)
    if "embedding_multiplier" in config and architecture.startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture == "olmo" and config["clip_qkv"] is not None:
        writer.add_clamp_kqv(config["clip_qkv"])
    if expert_count(config):
        add_experts(writer, architecture, config)


def expert_count(config):
    return first_of(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") or 0


def add_experts(writer, architecture, config):
    writer.add_expert_count(expert_count(config))
    writer.add_expert_used_count(first_of(config, "num_experts_per_tok", "moe_k", "moe_topk"))
    if architecture == "ernie4_5-moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
    if architecture == "hunyuan-moe":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
        writer.add_expert_shared_count(1)
    if architecture in ("qwen2moe", "qwen3moe") + LATENT:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture in ("exaone-moe", "afmoe", "lfm2moe", "minimax-m2"):
        writer.add_expert_feed_forward_length(first_of(config, "moe_intermediate_size", "intermediate_size"))
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture == "lfm2moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
    if architecture in ("exaone-moe", "afmoe"):
        kinds = config.get("mlp_layer_types", [])
        writer.add_leading_dense_block_count(config.get("num_dense_layers", kinds.count("dense")))
        writer.add_expert_shared_count(config["num_shared_experts"])
        writer.add_expert_weights_scale(first_of(config, "route_scale", "routed_scaling_factor"))
        writer.add_expert_weights_norm(config.get("norm_topk_prob", True))
    if architecture == "exaone-moe":
        writer.add_expert_shared_feed_forward_length(config["moe_intermediate_size"] * config["num_shared_experts"])
    if architecture in ("glm4moe", "dots1"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.get("shared_intermediate_size") and expert_count(config):
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if architecture == "qwen35moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture in ("qwen2moe", "qwen35moe"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if architecture in ("llama4", "gpt-oss"):
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "llama4":
        writer.add_interleave_moe_layer_step(2)
    if architecture == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])


def add_deepseek2(writer, config, older):
    """In the first files a head is as long as its own key and value, later as long as the latent."""
    latent, rotary = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rotary, config["v_head_dim"]
    writer.add_head_count_kv(config["num_attention_heads"] if older else 1)
    writer.add_key_length(key if older else latent + rotary)
    writer.add_value_length(value if older else latent)
    if not older:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    writer.add_rope_dimension_count(rotary)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(latent)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    third = config["model_type"] == "deepseek_v3"
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if third else kinds.SOFTMAX)
    writer.add_expert_weights_norm(config["model_type"] != "deepseek_v2" and config["norm_topk_prob"])
    if config.get("topk_method", "groups") != "greedy":
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if (mscale := config["rope_parameters"].get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * mscale)
    if beta := config["rope_parameters"].get("llama_4_scaling_beta"):
        writer.add_attn_temperature_scale(beta)
        writer.add_attn_temperature_length(config["rope_parameters"]["original_max_position_embeddings"])


def add_granite_hybrid(writer, config):
    """Layers without heads of keys and values are recurrences."""
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    writer.add_head_count_kv([config["num_key_value_heads"] if a else 0 for a in attends])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_n_heads"] * config["mamba_d_head"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")


def state_space(tensors, config):
    """Parts of Mamba-2 in their names and layouts."""
    result = {}
    for name, value in tensors.items():
        stem, found, part = name.partition(".mamba.")
        if not found:
            result[name] = value
            continue
        block = f"blk.{stem.split('.')[2]}"
        if part == "A_log":
            result[f"{block}.ssm_a"] = -value.exp().unsqueeze(1)
        elif part == "D":
            result[f"{block}.ssm_d"] = value.unsqueeze(1)
        elif part == "dt_bias":
            result[f"{block}.ssm_dt.bias"] = value
        elif part == "norm.weight":
            result[f"{block}.ssm_norm.weight"] = value.reshape(config["mamba_n_groups"], -1)
        else:
            kind = {"in_proj": "ssm_in", "out_proj": "ssm_out", "conv1d": "ssm_conv1d"}[part.split(".")[0]]
            result[f"{block}.{kind}.{part.split('.')[1]}"] = value.squeeze(1) if part == "conv1d.weight" else value
    return result


def add_delta_net(writer, config):
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    attends = [kind == "full_attention" for kind in config["layer_types"]]
    interval = attends.index(True) + 1
    if attends != [(i + 1) % interval == 0 for i in range(len(attends))]:
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", [not a for a in attends])
        interval = 4
    writer.add_full_attention_interval(interval)
    writer.add_rope_dimension_sections([1, 1, 0, 0])


def tiled(value, config, width):
    """Value heads: the first of every key head, then the second of every one."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return value.reshape(keys, heads // keys, width, *value.shape[1:]).transpose(0, 1).reshape(value.shape)


def delta_net(tensors, config):
    """Parts of gated DeltaNet in their names and layouts; norms with their 1 added, but for the one of heads."""
    result = {}
    for name, value in tensors.items():
        stem, found, part = name.partition(".linear_attn.")
        if name.endswith("shared_expert_gate.weight"):  # a matrix of one row
            result[f"blk.{name.split('.')[2]}.ffn_gate_inp_shexp.weight"] = value
            continue
        if not found:
            result[name] = value + 1 if name.endswith("norm.weight") else value
            continue
        block, width = f"blk.{stem.split('.')[2]}", config["linear_value_head_dim"]
        first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        if part == "A_log":
            result[f"{block}.ssm_a"] = tiled(-value.exp(), config, 1)
        elif part == "dt_bias":
            result[f"{block}.ssm_dt.bias"] = tiled(value, config, 1)
        elif part == "norm.weight":
            result[f"{block}.ssm_norm.weight"] = value
        elif part == "out_proj.weight":
            result[f"{block}.ssm_out.weight"] = tiled(value.T, config, width).T
        elif part in ("in_proj_qkv.weight", "conv1d.weight"):
            value = value.squeeze(1) if part.startswith("conv1d") else value
            kind = "ssm_conv1d" if part.startswith("conv1d") else "attn_qkv"
            result[f"{block}.{kind}.weight"] = torch.cat([value[:first], tiled(value[first:], config, width)])
        else:
            kind, rows = {"z": ("attn_gate", width), "b": ("ssm_beta", 1), "a": ("ssm_alpha", 1)}[part.split(".")[0][-1]]
            result[f"{block}.{kind}.weight"] = tiled(value, config, rows)
    return result


def full_rope(config):
    """The rope parameters, or those of the layers that see all; empty where there are none."""
    rope = config.get("rope_parameters", {})
    return rope.get("full_attention", rope)


def add_gemma3(writer, config):
    """What is not as in the released models, and hence stated."""
    period = config["layer_types"].index("full_attention") + 1
    if period != 6:
        writer.add_uint32("gemma3.attention.sliding_window_pattern", period)
    theta = config["rope_parameters"]["sliding_attention"]["rope_theta"]
    if theta != 10000.0:
        writer.add_float32("gemma3.rope.freq_base_swa", theta)


def add_rope(writer, architecture, config, head):
    rope = full_rope(config)
    if architecture != "gemma2":  # whose converter leaves the base to its default 10000
        writer.add_rope_freq_base(rope["rope_theta"] * rope.get("alpha", 1.0) ** (head / (head - 2)))
        if "alpha" in rope:  # of HunYuan, in the base
            writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
            writer.add_rope_scaling_factor(1.0)
    elif rope["rope_theta"] != 10000.0:
        writer.add_rope_freq_base(rope["rope_theta"])
    partial = ("minicpm3", "minimax-m2", "llama", "smollm3", "granitehybrid", "qwen35", "qwen35moe", "glm4moe", "ernie4_5-moe", "chatglm", "glm4", "nemotron", "ernie4_5", "phi3", "phi2", "gptneox", "stablelm") + COHERE
    if architecture in LATENT:
        pass
    elif architecture in partial or rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    if architecture == "minicpm3":
        trained = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
        writer.add_rope_scaling_orig_ctx_len(trained)
        if rope["rope_type"] == "longrope":
            scale = rope.get("factor") or config["max_position_embeddings"] / trained
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0)
    elif architecture == "phi3":
        trained = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(trained)
        if rope["rope_type"] == "longrope":
            scale = config["max_position_embeddings"] / trained
            writer.add_rope_scaling_attn_factors(
                math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
            )
    elif rope["rope_type"] == "linear":
        # by the key of the first files
        writer.add_float32(f"{architecture}.rope.scale_linear", rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            usual = 0.1 * math.log(rope["factor"]) + 1
            writer.add_rope_scaling_attn_factors(rope["attention_factor"] / usual)
        for key in ("beta_fast", "beta_slow"):
            if key in rope:
                writer.add_float32(f"{architecture}.rope.scaling.yarn_{key}", rope[key])


def add_tokenizer(writer, size):
    """Control tokens 0 to 2, then the printable bytes, then one merged pair."""
    letters = [chr(BYTE_LEVEL_FIRST + index) for index in range(size - 4)]
    letters = [c if ord(c) < 0x7F else chr(ord(c) + 0xA1 - 0x7F) for c in letters]
    tokens = ["<pad>", "<s>", "</s>"] + letters + [letters[0] + letters[1]]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (size - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)


def heads_stacked(tensors):
    """Norms of single heads ("q_layernorm.norms.3.weight") as the rows of one tensor."""
    result, stacks = {}, {}
    for name, value in tensors.items():
        stem, found, rest = name.partition(".norms.")
        if found:
            head, suffix = rest.split(".")
            stacks.setdefault(f"{stem}.{suffix}", {})[int(head)] = value
        else:
            result[name] = value
    for name, heads in stacks.items():
        result[name] = torch.stack([heads[head] for head in sorted(heads)])
    return result


def experts_together(tensors, config, older):
    """Experts of a layer as one stack, names as the table has them; matrices (expert, out, in)."""
    result, stacks = {}, {}
    for name, value in tensors.items():
        alone = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if alone and older and alone[3] in ("w1", "w2", "w3"):
            part = {"w1": "gate", "w3": "up", "w2": "down"}[alone[3]]
            result[f"blk.{name.split('.')[2]}.ffn_{part}.{alone[2]}.weight"] = value
        elif alone and ".feed_forward." in name:  # lfm 2
            part = {"w1": "gate", "w3": "up", "w2": "down"}[alone[3]]
            stacks.setdefault(f"{alone[1]}.{part}_proj.weight", {})[int(alone[2])] = value
        elif alone:
            stacks.setdefault(f"{alone[1]}.{alone[3]}.weight", {})[int(alone[2])] = value
        elif name.endswith("block_sparse_moe.input_linear.weight"):  # granite
            stem = name.removesuffix("input_linear.weight")
            gate, up = value.chunk(2, dim=1)
            result[f"{stem}experts.w1.weight"], result[f"{stem}experts.w3.weight"] = gate, up
        elif name.endswith("shared_mlp.input_linear.weight"):
            layer = name.split(".")[2]
            gate, up = value.chunk(2, dim=0)
            result[f"blk.{layer}.ffn_gate_shexp.weight"], result[f"blk.{layer}.ffn_up_shexp.weight"] = gate, up
        elif name.endswith("shared_mlp.output_linear.weight"):
            result[f"blk.{name.split('.')[2]}.ffn_down_shexp.weight"] = value
        elif name.endswith("block_sparse_moe.output_linear.weight"):
            result[name.replace("output_linear", "experts.w2")] = value
        elif name.endswith("feed_forward.experts.gate_up_proj"):  # llama 4: (expert, in, out)
            stem = name.removesuffix("gate_up_proj")
            gate, up = value.transpose(1, 2).chunk(2, dim=1)
            result[f"{stem}gate_proj.weight"], result[f"{stem}up_proj.weight"] = gate, up
        elif name.endswith("mlp.experts.gate_up_proj") and config["model_type"] == "mistral4":
            result[f"blk.{name.split('.')[2]}.ffn_gate_up_exps.weight"] = value
        elif name.endswith("experts.down_proj") and config["model_type"] == "mistral4":
            result[f"blk.{name.split('.')[2]}.ffn_down_exps.weight"] = value
        elif name.endswith("mlp.experts.gate_up_proj"):  # gpt-oss: columns gate, up, gate, up
            stem, rows = name.removesuffix("gate_up_proj"), value.transpose(1, 2)
            result[f"{stem}gate_proj.weight"], result[f"{stem}up_proj.weight"] = rows[:, ::2], rows[:, 1::2]
        elif name.endswith("experts.gate_up_proj_bias"):
            stem = name.removesuffix("gate_up_proj_bias")
            result[f"{stem}gate_proj.bias"], result[f"{stem}up_proj.bias"] = value[:, ::2], value[:, 1::2]
        elif name.endswith("experts.down_proj"):
            result[f"{name}.weight"] = value.transpose(1, 2)
        elif name.endswith("experts.down_proj_bias"):
            result[name.replace("_bias", ".bias")] = value
        elif name.endswith("self_attn.sinks"):
            result[f"{name}.weight"] = value
        elif name.endswith((".expert_bias", "mlp.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias")):
            result[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = value
        elif name.endswith("conv.conv.weight"):  # of LFM 2
            result[f"blk.{name.split('.')[2]}.shortconv.conv.weight"] = value.squeeze(1)
        elif name.endswith("mlp.moe_statics.e_score_correction_bias"):
            result[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = value.squeeze(0)
        elif name.endswith("mlp.gate.e_score_correction_bias"):
            result[name.replace("e_score_correction_bias", "e_score_correction.bias")] = value
        elif name.endswith("shared_expert_gate.weight"):
            result[name] = value.squeeze(0)
        else:
            result[name] = value
    for name, parts in stacks.items():
        result[name] = torch.stack([parts[index] for index in sorted(parts)])
    return result


def latents_apart(tensors, config):
    """kv_b of deepseek2 as the matrices that attention over latents multiplies with."""
    result = {}
    for name, value in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            result[name] = value
            continue
        key, width = config["qk_nope_head_dim"], config["v_head_dim"]
        heads = value.reshape(config["num_attention_heads"], key + width, -1)
        k, v = heads.split([key, width], dim=1)
        result[name.replace("kv_b_proj", "k_b_proj")] = k.transpose(1, 2)
        result[name.replace("kv_b_proj", "v_b_proj")] = v
    return result


def in_storage(value, kind):
    """The bytes of a block type, of numbers that it holds exactly."""
    kind = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(value, kind)
    if not numpy.array_equal(gguf.quants.dequantize(data, kind), value):
        raise RuntimeError(f"numbers that {kind.name} does not hold")
    return data, kind


def unpacked_ternary(tensors):
    """Packed matrices (uint8, four rows in a byte) as numbers, their factors in them."""
    out = {}
    for name, value in tensors.items():
        if value.dtype == torch.uint8:
            codes = torch.cat([(value >> (2 * part)) & 3 for part in range(4)]).float() - 1
            out[name] = codes * tensors[name + "_scale"].float()
        elif not name.endswith("_scale"):
            out[name] = value
    return out


def write(path, architecture, config, tensors, older=False, storage=""):
    """tensors are those of model.safetensors, by their Hugging Face names.

    older: in the layout of the first files of experts and of latent attention.
    storage: the block type of experts.
    """
    writer = gguf.GGUFWriter(str(path), architecture)
    add_metadata(writer, architecture, config, older)
    add_tokenizer(writer, config["vocab_size"])
    names = {**NAMES, **(TWO_NORMS if architecture == "gemma" or not architecture.startswith("gemma") else FOUR_NORMS)}
    extra = {}
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        extra["rope_freqs.weight"] = llama3_factors(config)
    if architecture in ("phi3", "minicpm3") and rope.get("rope_type") == "longrope":
        extra["rope_factors_long.weight"] = numpy.array(rope["long_factor"], numpy.float32)
        extra["rope_factors_short.weight"] = numpy.array(rope["short_factor"], numpy.float32)
    for name, value in extra.items():
        writer.add_tensor(name, value)
    layers = first_of(config, "num_hidden_layers", "n_layer", "n_layers")
    if architecture in ("qwen35", "qwen35moe"):
        tensors = delta_net(tensors, config)
    if architecture.startswith("bitnet"):
        tensors = unpacked_ternary(tensors)
    tensors = experts_together(heads_stacked(state_space(tensors, config)), config, older)
    if architecture == "granitehybrid" and not expert_count(config):  # the shared layer is all there is
        tensors = {name.replace("_shexp.", "."): value for name, value in tensors.items()}
    if architecture in LATENT and not older:
        tensors = latents_apart(tensors, config)
    for name in sorted(tensors):
        value = converted(architecture, config, name, tensors[name].numpy())
        listed = architecture in LISTED and "block_sparse_moe" not in name
        if name.startswith("blk."):
            given = name
        else:
            given = gguf_name(name, names) if listed else package_name(architecture, name, layers)
        value = numpy.ascontiguousarray(value)
        if storage and ".experts." in name and value.ndim == 3:
            data, kind = in_storage(value, storage)
            writer.add_tensor(given, data, raw_dtype=kind)
        else:
            writer.add_tensor(given, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
