"""Cases of Gemma 3n and Gemma 4: further rows of the table in family_cases.py."""

import torch

from family_cases import GQA, SHAPES_GQA, Case, Family, Rewrite, keep, without
from family_cases_decoders import base_text

SLIDING, FULL = "sliding_attention", "full_attention"


def ropes(full=2000.0, sliding=10000.0, full_kind=None, sliding_kind=None):
    """Of both types of layers; full attention turns a part of its pairs where nothing else is said."""
    full_kind = full_kind or {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    return {
        "rope_parameters": {
            FULL: {"rope_theta": full, **full_kind},
            SLIDING: {"rope_theta": sliding, **(sliding_kind or {"rope_type": "default"})},
        }
    }


DENSE = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False}
SAME = {**DENSE, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
EXPERTS = {**SAME, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12}


def released(**keys):
    """The keys of the first files in place of per_layer_config."""
    return without("per_layer_config", **keys)


def inside(config):
    """The text model's config in a multimodal file."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version", "dtype")}
    return {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text,
        "vision_config": {"model_type": "gemma4_vision"}, "audio_config": {"model_type": "gemma4_audio"}, "tie_word_embeddings": True,
        "boi_token_id": 40, "eoi_token_id": 41, "image_token_id": 42, "video_token_id": 43, "boa_token_id": 44, "eoa_token_index": 45,
        "audio_token_id": 46, "vision_soft_tokens_per_image": 280,
    }


def inside_names(tensors):
    """With a tensor of each tower, and what the released files keep of layers that read other layers' keys."""
    result = {"model.language_model." + n.removeprefix("model."): v for n, v in tensors.items()}
    towers = ("vision_tower.encoder.layers.0.self_attn.q_proj.linear", "embed_vision.embedding_projection",
              "audio_tower.layers.0.self_attn.post.linear", "embed_audio.embedding_projection")
    result.update({f"model.{name}.weight": torch.ones(3, 3) for name in towers})
    unused = ("k_proj", "v_proj", "k_norm")
    result.update({f"model.language_model.layers.3.self_attn.{name}.weight": torch.ones(3) for name in unused})
    return result


def gemma4_text():
    return Family(
        name="gemma4_text",
        model_type="gemma4_text",
        architecture="Gemma4ForCausalLM",
        gains={"model.norm.weight": 1, "router.scale": 30, "per_expert_scale": 5},
        settings={
            **GQA,
            **ropes(),
            "num_hidden_layers": 5,
            "head_dim": 12,
            "global_head_dim": 16,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
            "sliding_window": 6,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
        },
        cases=[
            Case("base", why="as E2B: per-layer embeddings, two layers that read the keys and values of earlier ones"),
            Case("dense", DENSE, why="as 31B, with values of their own"),
            Case("k_eq_v", SAME, of="dense", why="as 31B: values of full layers are their keys, of fewer heads"),
            Case("moe", EXPERTS, of="k_eq_v", why="as 26B-A4B: experts next to the dense layer"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("moe_rms_norm_eps", {"rms_norm_eps": 0.05}, of="moe"),
            Case("hidden_activation_gelu", {"hidden_activation": "gelu"}),
            Case("hidden_activation_relu", {"hidden_activation": "relu"}),
            Case("moe_hidden_activation", {"hidden_activation": "relu"}, of="moe"),
            Case("rope_theta", ropes(full=50.0)),
            Case("rope_theta_sliding", ropes(sliding=50.0)),
            Case("partial_rotary_factor", ropes(full_kind={"rope_type": "proportional", "partial_rotary_factor": 0.25})),
            Case("rope_default", ropes(full_kind={"rope_type": "default"})),
            Case("rope_linear", ropes(full_kind={"rope_type": "linear", "factor": 8.0})),
            Case("rope_linear_sliding", ropes(sliding_kind={"rope_type": "linear", "factor": 8.0})),
            Case("rope_proportional_sliding", ropes(sliding_kind={"rope_type": "proportional", "partial_rotary_factor": 0.5})),
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": [SLIDING, FULL, SLIDING, FULL, FULL]}),
            Case("layer_types_default", {**DENSE, "layer_types": [SLIDING] * 4 + [FULL]}, of="dense"),
            Case("use_bidirectional_attention", {"use_bidirectional_attention": "all"}, why="a window of w holds w // 2 + 1 tokens on either side"),
            Case("bidirectional_vision", {"use_bidirectional_attention": "vision"}, neutral=True, why="of tokens of images alone"),
            Case("attention_bias", {"attention_bias": True}),
            Case("k_eq_v_attention_bias", {"attention_bias": True}, of="k_eq_v"),
            Case("final_logit_softcapping", {"final_logit_softcapping": 6.0}),
            Case("num_kv_shared_layers", {"num_kv_shared_layers": 0}),
            Case("use_double_wide_mlp", {"use_double_wide_mlp": False}),
            Case("hidden_size_per_layer_input", {"hidden_size_per_layer_input": 4}),
            Case("vocab_size_per_layer_input", {"vocab_size_per_layer_input": 70}, why="more rows than the vocabulary has"),
            Case("global_head_dim", {"global_head_dim": 8}),
            Case("num_global_key_value_heads", {"num_global_key_value_heads": None}, of="k_eq_v"),
            Case("top_k_experts", {"top_k_experts": 1}, of="moe"),
            Case("num_experts", {"num_experts": 3}, of="moe"),
            Case("moe_intermediate_size", {"moe_intermediate_size": 8}, of="moe"),
            Case("moe_per_layer", {**EXPERTS, "hidden_size_per_layer_input": 8}, of="moe"),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite("released", "base", released(global_head_dim=16, num_global_key_value_heads=None), why="keys of the first files"),
            Rewrite("released_k_eq_v", "k_eq_v", released(global_head_dim=16, num_global_key_value_heads=1), why="keys of the first files"),
            Rewrite("released_moe", "moe", released(global_head_dim=16, num_global_key_value_heads=1), why="keys of the first files"),
            Rewrite("last_layer", "base", lambda c: {**c, "layer_types": c["layer_types"][:-1] + [SLIDING]}, why="the last layer sees all whatever the list says"),
            Rewrite("layer_types_absent", "layer_types_default", without("layer_types"), why="five of six slide, and the last does not"),
            Rewrite("inside", "base", inside, inside_names, reference_refuses="the multimodal class wants its towers", why="inside a multimodal file"),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "per_layer_config", "layer_types", "num_kv_shared_layers", "use_double_wide_mlp", "hidden_size_per_layer_input",
                    "vocab_size_per_layer_input", "pad_token_id",
                ),
                same_result=False,
                why="thetas 1e6 and 1e4, a quarter of the pairs, window 512",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        missing="model.layers.2.self_attn.k_norm.weight",
        rejects=[
            {
                "name": "one_rope",
                "unset": ["rope_parameters"],
                "set": {"rope_parameters.rope_theta": 2000.0, "rope_parameters.rope_type": "default"},
                "expect": "rope_parameters without full_attention",
                "why": "one set of parameters, where each type of layers has its own",
            },
            {
                "name": "proportional_factor",
                "set": {"rope_parameters.full_attention.factor": 2.0},
                "expect": "rope_type proportional with a factor",
            },
            {
                "name": "per_layer_config",
                "set": {"per_layer_config.2.num_attention_heads": 2},
                "expect": "per_layer_config changes more than",
            },
            {"name": "is_causal", "set": {"is_causal": False}, "expect": "is_causal does not agree"},
            {
                "name": "kv_without_producer",
                "set": {"num_kv_shared_layers": 3},
                "expect": "kv_name \"full\"",
                "why": "no layer of that type keeps keys and values",
            },
        ],
    )


def typed(full=2000.0, sliding=10000.0, full_kind=None, sliding_kind=None):
    """As ropes, with whole heads turning where nothing else is said."""
    return ropes(full, sliding, full_kind or {"rope_type": "default"}, sliding_kind)


def older_gemma3n(**more):
    """The keys of the first files."""
    def rewrite(config):
        result = {key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")}
        full = dict(config["rope_parameters"][FULL])
        result["rope_theta"] = full.pop("rope_theta")
        result["rope_scaling"] = full if full["rope_type"] != "default" else None
        result["rope_local_base_freq"] = config["rope_parameters"][SLIDING]["rope_theta"]
        result.update(torch_dtype="float32", transformers_version="4.53.0.dev0", altup_lr_multiplier=1.0, query_pre_attn_scalar=256)
        return {**result, **more}

    return rewrite


def inside_gemma3n(config):
    """The text model's config in a multimodal file."""
    kept = inside(config)
    for name in ("video_token_id", "eoa_token_index"):
        del kept[name]
    return {
        **kept, "architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "eoa_token_id": 45, "audio_soft_tokens_per_image": 188,
        "vision_config": {"model_type": "gemma3n_vision"}, "audio_config": {"model_type": "gemma3n_audio"},
    }


IMPLIED = {
    "altup_num_inputs": 4, "laurel_rank": 64, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 64, "num_hidden_layers": 3, "intermediate_size": 16,
    "layer_types": [SLIDING, SLIDING, FULL], "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.95] * 3, "rms_norm_eps": 2.0,
}


def gemma3n_text():
    return Family(
        name="gemma3n_text",
        model_type="gemma3n_text",
        architecture="Gemma3nForCausalLM",
        gains={
            "model.norm.weight": 1, "modality_router.weight": 20, "prediction_coefs.weight": 2, "correction_coefs.weight": 4,
            "correct_output_scale": 5,
        },
        settings={
            **GQA,
            **typed(),
            "num_hidden_layers": 5,
            "intermediate_size": [16, 16, 16, 16, 24],
            "head_dim": 12,
            "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
            "sliding_window": 6,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 60,
            "altup_num_inputs": 3,
            "laurel_rank": 6,
            "activation_sparsity_pattern": [0.8, 0.5, 0.0, 0.0, 0.0],
        },
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_activation_gelu", {"hidden_activation": "gelu"}),
            Case("hidden_activation_relu", {"hidden_activation": "relu"}),
            Case("rope_theta", typed(full=50.0)),
            Case("rope_theta_sliding", typed(sliding=50.0)),
            Case("rope_linear", typed(full_kind={"rope_type": "linear", "factor": 8.0})),
            Case("rope_linear_sliding", typed(sliding_kind={"rope_type": "linear", "factor": 8.0})),
            Case("rope_proportional", typed(full_kind={"rope_type": "proportional", "partial_rotary_factor": 0.5})),
            Case("rope_proportional_sliding", typed(sliding_kind={"rope_type": "proportional", "partial_rotary_factor": 0.5})),
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": [FULL, SLIDING, FULL, SLIDING, SLIDING]}),
            Case("layer_types_default", {"layer_types": [SLIDING] * 4 + [FULL], "num_kv_shared_layers": 0}),
            Case("attention_bias", {"attention_bias": True}),
            Case("final_logit_softcapping", {"final_logit_softcapping": 3.0}),
            Case("num_kv_shared_layers", {"num_kv_shared_layers": 0}),
            Case("hidden_size_per_layer_input", {"hidden_size_per_layer_input": 4}),
            Case("vocab_size_per_layer_input", {"vocab_size_per_layer_input": 50}, why="further tokens use the row of token 0"),
            Case("altup_num_inputs", {"altup_num_inputs": 2}),
            Case("altup_active_idx", {"altup_active_idx": 1}),
            Case("altup_correct_scale", {"altup_correct_scale": False}),
            Case("altup_coef_clip", {"altup_coef_clip": 0.05}, neutral=True, why="training alone clamps coefficients"),
            Case("laurel_rank", {"laurel_rank": 4}),
            Case("intermediate_size", {"intermediate_size": 16}, why="one width for all layers, which is written as a list"),
            Case("activation_sparsity_pattern", {"activation_sparsity_pattern": [0.0, 0.5, 0.0, 0.8, 0.0]}),
            Case("sparsity_default", {"num_hidden_layers": 11, "intermediate_size": 16, "layer_types": [SLIDING, FULL] * 5 + [FULL],
                                      "activation_sparsity_pattern": [0.95] * 10 + [0.0], "rms_norm_eps": 2.0},
                 why="ten sparse layers; norms of a large eps, since what barely passes a threshold is small, and a norm scales it up with its rounding errors"),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("streams", {"altup_num_inputs": 4, "vocab_size_per_layer_input": 64}, why="as llama.cpp's converter asks for"),
            Case("implied", IMPLIED, why="what llama.cpp takes for granted: streams, widths, a sparsity of 0.95; norms as in sparsity_default"),
            Case("implied_linear", typed(full_kind={"rope_type": "linear", "factor": 8.0}), of="implied"),
            Rewrite("v4", "base", older_gemma3n(), why="keys of the first files"),
            Rewrite("v4_rope_theta", "rope_theta", older_gemma3n(), why="keys of the first files"),
            Rewrite("v4_rope_theta_sliding", "rope_theta_sliding", older_gemma3n(), why="keys of the first files"),
            Rewrite("v4_rope_linear", "rope_linear", older_gemma3n(), why="keys of the first files"),
            Rewrite("layer_types_absent", "layer_types_default", without("layer_types"), why="four of five slide"),
            Rewrite("one_width", "intermediate_size", lambda c: {**c, "intermediate_size": 16}, why="one width for all layers"),
            Rewrite("sparsity_absent", "sparsity_default", without("activation_sparsity_pattern"), why="the first ten of more layers are sparse"),
            Rewrite("inside", "base", inside_gemma3n, inside_names, reference_refuses="the multimodal class wants its towers", why="inside a multimodal file"),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "layer_types", "num_kv_shared_layers", "hidden_size_per_layer_input", "vocab_size_per_layer_input",
                    "altup_num_inputs", "laurel_rank", "activation_sparsity_pattern", "pad_token_id",
                ),
                same_result=False,
                why="thetas 1e6 and 1e4, window 512",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        missing="model.layers.2.self_attn.k_norm.weight",
        rejects=[
            {
                "name": "widths",
                "set": {"intermediate_size": [16, 16]},
                "expect": "intermediate_size does not have one entry per layer",
            },
            {
                "name": "sparsity",
                "set": {"activation_sparsity_pattern": [0.5]},
                "expect": "activation_sparsity_pattern does not have one entry per layer",
            },
            {"name": "active", "set": {"altup_active_idx": 3}, "expect": "active = 3 of 3 streams"},
        ],
    )


def with_texts(family, *names):
    """Of these cases a greedy text, too."""
    for case in family.cases:
        if case.name in names:
            case.text = True
    return family


FAMILIES = [base_text(gemma3n_text()), with_texts(base_text(gemma4_text()), "k_eq_v", "moe")]
