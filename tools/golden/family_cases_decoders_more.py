"""Cases of decoder families: further rows of the table in family_cases.py, with the helpers of family_cases_decoders.py."""

import torch

from family_cases import HYBRID_ACT, SHAPES, SHAPES_GQA, Case, Family, Rewrite, keep, older, older_type, older_with, rope, scaling_keys, without
from family_cases_decoders import (
    BIAS, FACTORS, GRANITE, HEADS, MIXED, MLP_BIAS, SMALL, TIED, WIDER, balanced, base_text, dense, every_olmo3, olmo3_rope,
)

SLIDES = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
NARROWER = Case("sliding_window", {"sliding_window": 4})
TURNED = Case("layer_types", {"layer_types": ["full_attention", "sliding_attention"]})


def of_case(family, name, other):
    """Class defaults of another case."""
    next(case for case in family.cases if case.name == name).of = other
    return family


def renamed(names):
    return lambda config: {names.get(key, key): value for key, value in config.items()}


def exaone():
    hub = renamed({"num_hidden_layers": "num_layers", "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon"})
    family = dense(
        "exaone", "Llama", {}, [BIAS, MLP_BIAS, WIDER, TIED, Rewrite("hub", "hidden_act_gelu", lambda c: hub(older(c)), why="the released files"),
         Rewrite("hub_eps", "rms_norm_eps", lambda c: hub(older(c)), why="the released files")],
        classes=False, gguf="exaone", model_type="exaone",
    )
    family.gguf["every_llama3"] = "exaone"
    family.missing = "transformer.h.1.mlp.c_proj.weight"
    return family


NAMED = {k: v for k, v in MIXED.items() if k not in ("n_routed_experts", "n_shared_experts", "norm_topk_prob", "routed_scaling_factor", "first_k_dense_replace")}
NAMED_SHAPES = HEADS + ["num_experts", "num_shared_experts", "moe_intermediate_size"]
KINDS = Case("mlp_layer_types", {"mlp_layer_types": ["sparse", "sparse"]})
ALL_DENSE = Case("mlp_layer_types_dense", {"mlp_layer_types": ["dense", "dense"]})
MORE = Case("num_experts_per_tok", {"num_experts_per_tok": 3})
SHARED = Case("num_shared_experts", {"num_shared_experts": 2})


def exaone_moe():
    settings = {
        **NAMED, **SLIDES, "num_experts": 4, "num_shared_experts": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse"],
    }
    family = dense(
        "exaone_moe", "ExaoneMoe", settings,
        [
            NARROWER, TURNED, WIDER, TIED, KINDS, ALL_DENSE, MORE, SHARED,
            Case("norm_topk_prob", {"norm_topk_prob": False}),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            Case("n_group", {"n_group": 2, "topk_group": 1}, why="of two groups the better one"),
            Case("topk_group", {"topk_group": 2}, of="n_group", why="every group offers candidates"),
            Rewrite("first_k_dense_replace", "mlp_layer_types", without("mlp_layer_types", first_k_dense_replace=0), why="as a number"),
            Rewrite("layer_types_absent", "base", without("layer_types", sliding_window_pattern=2)),
        ],
        classes=False, shapes=NAMED_SHAPES, left=("num_experts_per_tok",), gguf="exaone-moe", missing="self_attn.q_norm.weight",
    )
    family.gguf["every_llama3"] = "exaone-moe"
    family.rejects.append({"name": "pattern", "unset": ["layer_types"], "set": {"sliding_window_pattern": "LG"}, "expect": "sliding_window_pattern"})
    return family


def afmoe():
    settings = {
        **NAMED, **SLIDES, "num_experts": 4, "num_shared_experts": 1, "num_dense_layers": 1, "route_scale": 1.5, "mup_enabled": True,
    }
    family = dense(
        "afmoe", "Afmoe", settings,
        [
            BIAS, NARROWER, TURNED, WIDER, TIED, MORE, SHARED,
            Case("mup_enabled", {"mup_enabled": False}),
            Case("route_scale", {"route_scale": 1.0}),
            Case("num_dense_layers", {"num_dense_layers": 2}),
            Case("num_dense_layers_none", {"num_dense_layers": 0}),
            Case("implied", {"layer_types": ["sliding_attention"] * 2}, why="as llama.cpp takes for granted of the first layers"),
            *[Case(f"implied_{kind}", rope(kind=kind, **keys), of="implied", text=False) for kind, keys in IMPLIED.items()],
            Rewrite("global_attn_every_n_layers", "base", without("layer_types", global_attn_every_n_layers=2), why="every second layer sees all"),
            Rewrite("hub", "base", older_with(n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1, score_func="sigmoid", route_norm=True,
                                              load_balance_coeff=0.001, use_grouped_mm=True, global_attn_every_n_layers=4), why="keys of the released files"),
        ],
        classes=False, shapes=NAMED_SHAPES, left=("num_experts_per_tok", "num_dense_layers"), missing="post_mlp_layernorm.weight",
    )
    family.gguf = {case: "afmoe" for case in ("implied", "implied_linear", "implied_yarn")}
    return family


IMPLIED = {"linear": dict(factor=4.0), "yarn": dict(factor=4.0, original_max_position_embeddings=16, attention_factor=1.5, beta_fast=2.0, beta_slow=0.25)}


def minimax_m2():
    settings = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12}
    half = {"partial_rotary_factor": 0.5}
    family = dense(
        "minimax_m2", "MiniMaxM2", settings,
        [
            Case("head_dim", {"head_dim": 4}), TIED, MORE,
            Rewrite("rotary_dim", "base", lambda c: {**{k: v for k, v in c.items() if k != "rope_parameters"}, "rope_theta": 1000.0, "rotary_dim": 4, "use_qk_norm": True,
                    "qk_norm_type": "per_layer", "use_routing_bias": True, "shared_intermediate_size": 0, "scoring_func": "sigmoid", "attn_type_list": [1, 1],
                    "num_mtp_modules": 3, "mtp_transformer_layers": 1, "use_mtp": True}, why="the released files"),
            Rewrite("num_experts", "base", renamed({"num_local_experts": "num_experts"}), why="its other name"),
        ],
        rotary=4, share=half["partial_rotary_factor"], classes=False, shapes=HEADS + ["num_local_experts"], left=("num_experts_per_tok",), gguf="minimax-m2",
        missing="self_attn.q_norm.weight",
    )
    family.cases = [case for case in family.cases if case.name != "v4"]  # whose share stands in rotary_dim
    return family


def hy_v3():
    settings = {**NAMED, "num_experts": 4, "num_shared_experts": 1, "router_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse"]}
    return dense(
        "hy_v3", "HYV3", settings,
        [
            BIAS, MLP_BIAS, WIDER, TIED, KINDS, ALL_DENSE, MORE, SHARED,
            Case("router_scaling_factor", {"router_scaling_factor": 1.0}),
            Rewrite("mlp_layer_types_absent", "base", without("mlp_layer_types"), why="the first layer is dense"),
            Rewrite("num_local_experts", "base", renamed({"num_experts": "num_local_experts"}), why="its other name"),
        ],
        classes=False, shapes=NAMED_SHAPES, left=("num_experts_per_tok",), missing="mlp.shared_mlp.down_proj.weight",
    )


def without_thetas(family):
    """Spellings of the rope, of configs that leave the bases of layers to it."""
    for case in family.cases:
        if isinstance(case, Rewrite) and case.config:
            case.config = (lambda config: lambda c: {k: v for k, v in config(c).items() if k != "layer_rope_theta"})(case.config)
    return family


def granite_windows(types):
    return [
        NARROWER, TURNED, *FACTORS,
        Case("layer_rope_theta", {"layer_rope_theta": [0, 200.0]}, why="no positions in one layer, another base in the other"),
        Rewrite("layer_types_absent", "base", without("layer_types"), same_result=False, why="every fourth sees all"),
        Rewrite("layer_rope_theta_absent", "rope_theta", lambda c: c),
    ]


def granite_swa():
    family = dense(
        "granite_swa", "GraniteSWA", {**GRANITE, **SLIDES, "tie_word_embeddings": False},
        [BIAS, MLP_BIAS, WIDER, TIED, *granite_windows(SLIDES["layer_types"])],
        classes=False, missing="self_attn.sinks", gains={"model.norm.weight": 1},
    )
    return of_case(without_thetas(family), "defaults", "tie_word_embeddings")


def granitemoe_swa():
    settings = {**GRANITE, **SLIDES, "head_dim": "absent", "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 20, "intermediate_size": 12}
    family = dense(
        "granitemoe_swa", "GraniteMoeSWA", settings,
        [
            BIAS, TIED, MORE, *granite_windows(SLIDES["layer_types"]),
            Case("shared_intermediate_size", {"shared_intermediate_size": 0}, why="no shared expert"),
        ],
        rotary=4, classes=False, shapes=SHAPES_GQA + ["num_local_experts", "shared_intermediate_size"], missing="self_attn.sinks", gains={"model.norm.weight": 1},
    )
    family.rejects.append({"name": "head_dim", "set": {"head_dim": 8}, "expect": "q_proj", "why": "the width of a head is read where it is there: shapes disagree"})
    return without_thetas(family)


def cohere2_moe():
    settings = {
        **SLIDES, "num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "intermediate_size": 12, "prefix_dense_intermediate_size": 20, "logit_scale": 0.5,
        "mlp_layer_types": ["dense", "sparse"], "layer_types": ["full_attention", "sliding_attention"], "tie_word_embeddings": False,
    }
    sigmoid = {"expert_selection_fn": "sigmoid"}
    family = dense(
        "cohere2_moe", "Cohere2Moe", settings,
        [
            BIAS, NARROWER, WIDER, TIED, KINDS, ALL_DENSE, MORE, SHARED,
            Case("layer_types", {"layer_types": ["sliding_attention", "full_attention"]}),
            Case("num_shared_experts_none", {"num_shared_experts": 0}),
            Case("logit_scale", {"logit_scale": 1.0}),
            Case("shared_expert_combination_strategy", {"shared_expert_combination_strategy": "sum"}),
            Case("expert_selection_fn", sigmoid),
            Case("norm_topk_prob", {"norm_topk_prob": False}, of="expert_selection_fn"),
            Case("prefix_dense_sliding_window_pattern", {"prefix_dense_sliding_window_pattern": 2}, why="dense layers that see all have no positions"),
            Case("prefix_dense_intermediate_size", {"prefix_dense_intermediate_size": None}, why="as wide as an expert"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}, why="RMS norms"),
            Rewrite("first_k_dense_replace", "base", without("layer_types", "mlp_layer_types", first_k_dense_replace=1, sliding_window_pattern=4), why="by numbers"),
            Rewrite("sliding_window_pattern", "layer_types", without("layer_types", sliding_window_pattern=2), why="every second sees all"),
        ],
        eps="layer_norm_eps", classes=False, shapes=HEADS + ["num_experts", "num_shared_experts", "prefix_dense_intermediate_size"],
        left=("num_experts_per_tok", "mlp_layer_types"), missing="mlp.shared_experts.down_proj.weight",
    )
    # rope_scaling is a field of the class, which nothing reads
    family.cases = [case for case in family.cases if not case.name.endswith(("_scaling", "_scaling_type"))]
    family.rejects.append({"name": "rope_scaling", "set": {f"rope_scaling.{key}": value for key, value in FLAT.items()}, "expect": "rope_scaling"})
    return of_case(family, "defaults", "tie_word_embeddings")


def nanochat():
    return dense(
        "nanochat", "NanoChat", {"head_dim": "absent"},
        [
            BIAS, TIED, WIDER,
            Case("final_logit_softcapping", {"final_logit_softcapping": 2.0}),
            Case("final_logit_softcapping_null", {"final_logit_softcapping": None}),
        ],
        acts=("gelu", "silu"), rotary=4, classes=False, shapes=SHAPES_GQA, missing="mlp.fc2.weight", left=("pad_token_id",),
    )


def lfm2_moe():
    settings = {
        "head_dim": "absent", "layer_types": ["conv", "full_attention"], "tie_word_embeddings": False, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "routed_scaling_factor": 1.5,
    }
    family = dense(
        "lfm2_moe", "Lfm2Moe", settings,
        [
            TIED, MORE,
            Case("layer_types", {"layer_types": ["full_attention", "conv"]}),
            Case("conv_L_cache", {"conv_L_cache": 4}),
            Case("conv_bias", {"conv_bias": True}),
            Case("num_dense_layers", {"num_dense_layers": 2}),
            Case("num_dense_layers_none", {"num_dense_layers": 0}),
            Case("use_expert_bias", {"use_expert_bias": False}),
            Case("norm_topk_prob", {"norm_topk_prob": False}),
            Case("implied", {"routed_scaling_factor": 1.0, "tie_word_embeddings": True}, why="as llama.cpp takes for granted"),
            *[Case(f"implied_{kind}", rope(kind=kind, **keys), of="implied", text=False) for kind, keys in IMPLIED.items()],
            Rewrite("hub", "tie_word_embeddings", lambda c: {**{k: v for k, v in older(c).items() if k != "tie_word_embeddings"}, "tie_embedding": True}, why="the released files"),
        ],
        acts=(), eps="norm_eps", rotary=4, classes=False, shapes=SHAPES_GQA + ["num_experts", "moe_intermediate_size"],
        left=("layer_types", "num_dense_layers", "num_experts_per_tok"), missing="feed_forward.experts.0.w2.weight", padding="none",
    )
    family.rejects.append({
        "expect": "lm_head.weight", "name": "tie_embedding", "unset": ["tie_word_embeddings"], "set": {"tie_embedding": False},
        "drop_tensor": "lm_head.weight", "why": "its first name: without it the head would be tied",
    })
    family.gguf = {case: "lfm2moe" for case in ("implied", "implied_linear", "implied_yarn")}
    return of_case(family, "defaults", "tie_word_embeddings")


def olmo_hybrid_files(tensors, config):
    """This version renames norms behind attention, too, and parts convolutions into thirds."""
    result = {}
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    for name, value in tensors.items():
        parts = name.split(".")
        layer = int(parts[parts.index("layers") + 1]) if "layers" in parts else -1
        if layer >= 0 and config["layer_types"][layer] == "full_attention":
            name = name.replace("feedforward_layer_norm", "post_attention_layernorm")
        if name.endswith("q_conv1d.weight"):
            stem = name.removesuffix("q_conv1d.weight")
            whole = torch.cat([tensors[f"{stem}{s}_conv1d.weight"] for s in "qkv"])
            for s, part in zip("qkv", whole.split([keys, keys, len(whole) - 2 * keys])):
                result[f"{stem}{s}_conv1d.weight"] = part.contiguous()
        elif "_conv1d" not in name:
            result[name] = value
    return result


def kimi_files(tensors, config):
    """This version calls dense layers as it does those of experts."""
    def name_of(name):
        layer = int(name.split("layers.")[1].split(".")[0]) if "layers." in name else -1
        dense = layer >= 0 and config["mlp_layer_types"][layer] == "dense"
        return name.replace("block_sparse_moe", "mlp") if dense else name
    return {name_of(name): value for name, value in tensors.items()}


def olmo_hybrid():
    types = ["linear_attention", "full_attention"]
    settings = {
        "head_dim": "absent", "layer_types": types, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 6,
    }
    family = dense(
        "olmo_hybrid", "OlmoHybrid", settings,
        [
            BIAS, TIED,
            Case("layer_types", {"layer_types": types[::-1]}),
            Case("linear_num_key_heads", {"linear_num_key_heads": 4}),
            Case("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 3}),
            Case("linear_allow_neg_eigval", {"linear_allow_neg_eigval": False}),
            Case("no_positions", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, why="no positions, as in the released models"),
            Rewrite("no_positions_top", "no_positions", lambda c: {**{k: v for k, v in c.items() if k != "rope_parameters"}, "rope_theta": None}, why="older spelling"),
            Rewrite("layer_types_absent", "base", without("layer_types"), why="the last layer attends"),
        ],
        acts=(), rotary=4, classes=False, shapes=SHAPES_GQA + ["linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"],
        left=("linear_num_key_heads", "pad_token_id"), missing="linear_attn.o_norm.weight", padding="none", as_released=olmo_hybrid_files,
    )
    family.missing = "model.layers.0.linear_attn.o_norm.weight"
    family.rejects.append(HYBRID_ACT)
    return family


FLAT = {
    "rope_theta": 2000.0, "rope_type": "linear", "type": "linear", "factor": 8.0, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 16, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "short_factor": [1.0, 1.1], "long_factor": [1.0, 1.5], "beta_fast": 2.0, "beta_slow": 0.25, "attention_factor": 1.5, "mscale": 0.7,
    "mscale_all_dim": 1.3, "truncate": False,
}


def mellum():
    settings = {**SMALL, **olmo3_rope(), **SLIDES, "mlp_layer_types": ["dense", "sparse"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "rms_norm_eps": 1e-5}
    return Family(
        name="mellum",
        model_type="mellum",
        architecture="MellumForCausalLM",
        settings=settings,
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("rope_theta", olmo3_rope(50.0)),
            Case("rope_theta_sliding", olmo3_rope(sliding=50.0)),
            NARROWER, TURNED, BIAS, WIDER, TIED, KINDS, ALL_DENSE, MORE,
            Case("norm_topk_prob", {"norm_topk_prob": False}),
            *[case for case in every_olmo3(8) if isinstance(case, Case)],
            # llama.cpp knows no dense layer
            Case("sparse_linear", olmo3_rope(rope_type="linear", factor=4.0), of="mlp_layer_types", text=False),
            Case("sparse_yarn", olmo3_rope(rope_type="yarn", **scaling_keys(8)["yarn_attention_factor"]), of="mlp_layer_types", text=False),
            Rewrite("num_experts", "base", renamed({"num_local_experts": "num_experts"}), why="its other name"),
            Rewrite("layer_types_absent", "base", without("layer_types"), same_result=False, why="all layers see all"),
            Rewrite("mlp_layer_types_absent", "mlp_layer_types", without("mlp_layer_types"), why="experts everywhere"),
            Rewrite("defaults", "base", keep(*HEADS, "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "layer_types", "mlp_layer_types"),
                    same_result=False, why="two bases, a window of 1024"),
        ],
        shape_keys=HEADS + ["num_local_experts", "moe_intermediate_size"],
        missing="model.layers.1.self_attn.q_norm.weight",
        rejects=[
            {"name": "one_rope", "unset": ["rope_parameters"], "set": {f"rope_parameters.{key}": value for key, value in FLAT.items()},
             "expect": "rope_parameters without full_attention", "why": "one set of parameters, where each type of layers has its own"},
            {"name": "rope_scaling", "set": {f"rope_scaling.{key}": value for key, value in FLAT.items()}, "expect": "rope_scaling",
             "why": "the class reads rope_parameters alone"},
        ],
    )


KIMI_GONE = ("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "layer_types", "mlp_layer_types")


KIMI_NAMES = {"num_experts": "num_local_experts", "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts", "moe_renormalize": "norm_topk_prob",
              "num_expert_group": "n_group", "model_max_length": "max_position_embeddings"}


def kimi_hub(config):
    result = {k: v for k, v in config.items() if k not in KIMI_GONE}
    linear = {"head_dim": 4, "num_heads": 2, "short_conv_kernel_size": 3, "full_attn_layers": [2], "kda_layers": [1]}
    return {**result, "linear_attn_config": linear, "first_k_dense_replace": 1, "mla_use_nope": True, "moe_router_activation_func": "sigmoid", "use_grouped_topk": True}


def kimi_linear():
    types = ["linear_attention", "full_attention"]
    settings = {
        **{k: v for k, v in SMALL.items() if k != "head_dim"}, "num_key_value_heads": 4, "layer_types": types, "linear_head_dim": 4, "linear_num_heads": 2,
        "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8, "mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 12, "routed_scaling_factor": 1.5,
    }
    return Family(
        name="kimi_linear",
        model_type="kimi_linear",
        architecture="KimiLinearForCausalLM",
        settings=settings,
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("layer_types", {"layer_types": types[::-1]}),
            Case("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 3}),
            Case("q_lora_rank", {"q_lora_rank": 12}),
            KINDS, ALL_DENSE, MORE,
            Case("norm_topk_prob", {"norm_topk_prob": False}),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            Case("n_shared_experts", {"n_shared_experts": 2}),
            Case("n_group", {"n_group": 2, "topk_group": 1}),
            Case("topk_group", {"topk_group": 2}, of="n_group"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}, neutral=True, why="the class ties nothing"),
            Rewrite("hub", "linear_conv_kernel_dim", kimi_hub, why="the released files"),
            Rewrite("names", "n_group", renamed(KIMI_NAMES), why="other names"),
            Rewrite("names_of_shared", "n_shared_experts", renamed(KIMI_NAMES), why="other names"),
            Rewrite("names_of_weights", "norm_topk_prob", renamed(KIMI_NAMES), why="other names"),
            Rewrite("first_k_dense_replace", "mlp_layer_types", without("mlp_layer_types", first_k_dense_replace=0)),
            Rewrite("defaults", "base", keep(*SHAPES, "num_attention_heads", "num_key_value_heads", "layer_types", "linear_head_dim", "linear_num_heads", "kv_lora_rank",
                                              "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts", "num_experts_per_token", "num_shared_experts",
                                              "moe_intermediate_size", "pad_token_id"), same_result=False),
        ],
        shape_keys=SHAPES + ["num_attention_heads", "num_key_value_heads", "linear_head_dim", "linear_num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                             "v_head_dim", "num_experts", "num_shared_experts", "moe_intermediate_size"],
        missing="model.layers.1.self_attn.kv_b_proj.weight",
        as_released=kimi_files,
        rejects=[
            {"name": name, "set": {f"{name}.{key}": value for key, value in FLAT.items()}, "expect": "rope", "why": "the class has no positions"}
            for name in ("rope_parameters", "rope_scaling")
        ],
        padding="none",
    )


def minicpm3():
    settings = {
        "num_key_value_heads": 4, "head_dim": "absent", "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 4,
        "scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 8, "tie_word_embeddings": False,
    }
    implied = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    long = dict(kind="longrope", short_factor=[1.0, 1.1], long_factor=[1.0, 1.5], original_max_position_embeddings=64)
    family = dense(
        "minicpm3", "MiniCPM3", settings,
        [
            BIAS, TIED,
            Case("q_lora_rank", {"q_lora_rank": None}),
            Case("v_head_dim", {"v_head_dim": 8}),
            Case("scale_emb", {"scale_emb": 1}),
            Case("scale_depth", {"scale_depth": 1.8}),
            Case("scale_depth_null", {"scale_depth": None}, why="branches as they are"),
            Case("dim_model_base", {"dim_model_base": 4}),
            Case("dim_model_base_null", {"dim_model_base": None}, why="logits as they are"),
            Case("implied", implied, why="as llama.cpp takes for granted"),
            Case("implied_longrope", rope(**long), of="implied", text=False, length_dependent=True),
            Case("classifier", {"num_labels": 3, "num_hidden_layers": 1}, architecture="MiniCPM3ForSequenceClassification", text=False, why="classes of a row by its last token"),
        ],
        rotary=4, classes=False, whole=False,
        shapes=SHAPES + ["num_attention_heads", "num_key_value_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"], left=("q_lora_rank",),
        missing="self_attn.kv_b_proj.weight", gains={"model.norm.weight": 1},
    )
    family.gguf = {case: "minicpm3" for case in ("implied", "implied_longrope")}
    return of_case(family, "defaults", "tie_word_embeddings")


LABELS = {"num_labels": 3, "num_hidden_layers": 1}


def openai_gpt():
    return Family(
        name="openai_gpt",
        model_type="openai-gpt",
        architecture="OpenAIGPTLMHeadModel",
        gains={"attn.c_attn.weight": 4.0, "mlp.c_proj.weight": 3.0},
        settings=dict(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False),
        cases=[
            Case("base"),
            Case("afn_relu", {"afn": "relu"}),
            Case("afn_silu", {"afn": "silu"}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            TIED,
            Case("classifier", {"num_labels": 3, "n_layer": 1}, architecture="OpenAIGPTForSequenceClassification", text=False, why="classes of a row by its last token"),
            Rewrite("hub", "tie_word_embeddings", older_with(drop=("tie_word_embeddings",), n_ctx=32, predict_special_tokens=True), why="keys of the released files"),
            Rewrite("defaults", "tie_word_embeddings", keep("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")),
        ],
        shape_keys=["vocab_size", "n_embd", "n_layer", "n_head", "n_positions"],
        missing="transformer.h.1.attn.c_attn.bias",
    )


def biogpt():
    return Family(
        name="biogpt",
        model_type="biogpt",
        architecture="BioGptForCausalLM",
        settings=dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
                      pad_token_id=0, tie_word_embeddings=False),
        cases=[
            Case("base"),
            Case("hidden_act_relu", {"hidden_act": "relu"}),
            Case("hidden_act_silu", {"hidden_act": "silu"}),
            Case("scale_embedding", {"scale_embedding": False}),
            TIED,
            Case("classifier", LABELS, architecture="BioGptForSequenceClassification", text=False, why="classes of a row by its last token"),
            Case("token_classifier", {**LABELS, "num_labels": 5}, architecture="BioGptForTokenClassification", text=False, why="classes of every token, with a bias"),
            Rewrite("v4", "tie_word_embeddings", older_with(drop=("tie_word_embeddings",)), why="older spelling"),
            Rewrite("defaults", "tie_word_embeddings", keep(*SHAPES, "num_attention_heads", "max_position_embeddings", "pad_token_id")),
        ],
        shape_keys=SHAPES + ["num_attention_heads", "max_position_embeddings"],
        missing="biogpt.layers.1.fc2.bias",
    )


def xglm():
    return Family(
        name="xglm",
        model_type="xglm",
        architecture="XGLMForCausalLM",
        settings=dict(vocab_size=40, d_model=16, ffn_dim=24, num_layers=2, attention_heads=4, max_position_embeddings=32, bos_token_id=0, eos_token_id=2, pad_token_id=1,
                      tie_word_embeddings=False),
        cases=[
            Case("base"),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("activation_function_silu", {"activation_function": "silu"}),
            Case("scale_embedding", {"scale_embedding": False}),
            Case("pad_token_id", {"pad_token_id": 4}, why="clears the row of the third token's position"),
            TIED,
            Rewrite("v4", "tie_word_embeddings", older_with(drop=("tie_word_embeddings",)), why="older spelling"),
            Rewrite("defaults", "tie_word_embeddings", keep("vocab_size", "d_model", "ffn_dim", "num_layers", "attention_heads", "max_position_embeddings")),
        ],
        shape_keys=["vocab_size", "d_model", "ffn_dim", "num_layers", "attention_heads"],
        missing="model.layers.1.fc2.bias",
        rejects=[
            {"name": "add_cross_attention", "set": {"add_cross_attention": True}, "expect": "add_cross_attention"},
        ],
    )


def ctrl():
    return Family(
        name="ctrl",
        model_type="ctrl",
        architecture="CTRLLMHeadModel",
        settings=dict(vocab_size=40, n_embd=16, dff=24, n_layer=2, n_head=4, n_positions=32, pad_token_id=0, tie_word_embeddings=False),
        cases=[
            Case("base"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("n_head", {"n_head": 2}),
            TIED,
            Case("classifier", {"num_labels": 3, "n_layer": 1}, architecture="CTRLForSequenceClassification", text=False, why="classes of a row by its last token"),
            Rewrite("hub", "tie_word_embeddings", older_with(drop=("tie_word_embeddings",), n_ctx=32), why="keys of the released files"),
            Rewrite("defaults", "tie_word_embeddings", keep("vocab_size", "n_embd", "dff", "n_layer", "n_head", "n_positions")),
        ],
        shape_keys=["vocab_size", "n_embd", "dff", "n_layer", "n_head"],
        missing="transformer.h.1.ffn.2.bias",
    )


LATENT = dict(
    {k: v for k, v in MIXED.items() if k != "first_k_dense_replace"}, num_key_value_heads=4, head_dim="absent", q_lora_rank=12, kv_lora_rank=10,
    qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, mlp_layer_types=["dense", "sparse"],
    # of many heads hardly any score is 0, so that the choice hangs on no tie
    index_n_heads=16, index_head_dim=8, index_topk=6, n_group=1, topk_group=1,
)
LATENT_SHAPES = SHAPES + [
    "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_key_value_heads",
    "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "index_n_heads", "index_head_dim",
]
LATENT_CASES = [
    BIAS, TIED,
    *[case for case in balanced() if not case.name.startswith("first_k")],
    Case("mlp_layer_types", {"mlp_layer_types": ["sparse", "sparse"]}),
    Case("mlp_layer_types_dense", {"mlp_layer_types": ["dense", "dense"]}),
    Rewrite("first_k_dense_replace", "mlp_layer_types", without("mlp_layer_types", first_k_dense_replace=0), why="as the released files"),
    Case("q_lora_rank", {"q_lora_rank": 8}),
    Case("index_topk", {"index_topk": 3}),
    Case("index_topk_all", {"index_topk": 64}, why="every key is chosen"),
    Case("rope_yarn_mscale_all_dim", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)),
]


def deepseek_v32():
    return dense(
        "deepseek_v32", "DeepseekV32", LATENT,
        [*LATENT_CASES, Rewrite("v4_rope_yarn", "rope_yarn_mscale_all_dim", older_type)],
        rotary=4, classes=False, shapes=LATENT_SHAPES, left=("num_experts_per_tok", "q_lora_rank", "index_topk", "n_group", "topk_group", "mlp_layer_types"),
        missing="self_attn.indexer.wk.weight", whole=False,
    )


def glm_moe_dsa():
    return dense(
        "glm_moe_dsa", "GlmMoeDsa", {**LATENT, "indexer_types": ["full", "shared"]},
        [
            *LATENT_CASES,
            Case("indexer_types", {"indexer_types": ["full", "full"]}),
            Rewrite("index_topk_freq", "base", without("indexer_types", index_topk_freq=2, index_skip_topk_offset=1), why="by a number"),
            Rewrite("index_topk_pattern", "base", without("indexer_types", index_topk_pattern="FS"), why="by a word"),
        ],
        rotary=4, classes=False, shapes=LATENT_SHAPES, left=("num_experts_per_tok", "q_lora_rank", "index_topk", "indexer_types", "mlp_layer_types"),
        missing="self_attn.kv_b_proj.weight", whole=False,
    )


FAMILIES = [base_text(make()) for make in (
    exaone, exaone_moe, afmoe, minimax_m2, hy_v3, granite_swa, granitemoe_swa, cohere2_moe, nanochat, lfm2_moe, olmo_hybrid, mellum, kimi_linear, minicpm3,
    openai_gpt, biogpt, xglm, ctrl, deepseek_v32, glm_moe_dsa,
)]
FEW_TOKENS = {
    "cohere2_moe/defaults": "a tied head finds the last tokens again",
    "minicpm3/defaults": "a factor of 12 on the embedding beside a tied head finds the last tokens again",
    "openai_gpt/defaults": "a tied head behind a last norm of the branch",
}
