"""Cases of decoder families of 2026: further rows of the table in family_cases.py, with the helpers of the other tables of decoders."""

from family_cases import SHAPES, Case, Family, Rewrite, keep, older, rope, scaling_keys, without
from family_cases_decoders import BIAS, HEADS, MIXED, SMALL, TIED, WIDER, base_text, balanced, classifiers, dense, inside_mistral3, language_names
from family_cases_decoders_more import ALL_DENSE, FLAT, KINDS, MORE, NAMED, NARROWER, SLIDES, TURNED, renamed

ALPHA = Case("rope_alpha", rope(kind="dynamic", factor=1.0, alpha=50.0), why="as the released files: the base is stretched for all lengths")
HUNYUAN_ROPES = [
    ALPHA,
    Rewrite("v4_rope_alpha", "rope_alpha", lambda c: {**older(c), "rope_scaling": {
        "type": "dynamic", "factor": 1.0, "alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}}, why="the released files"),
    Case("rope_alpha_default", rope(alpha=50.0), neutral=True, why="alpha acts under the type dynamic alone"),
    Rewrite("attention_head_dim", "head_dim", renamed({"head_dim": "attention_head_dim"}), reference_refuses="this version reads head_dim", why="as the first files have it"),
]


def hunyuan_v1_dense():
    family = dense(
        "hunyuan_v1_dense", "HunYuanDenseV1", {},
        [BIAS, WIDER, TIED, *HUNYUAN_ROPES, *classifiers("HunYuanDenseV1", tokens=False)],
        classes=False, gguf="hunyuan-dense", missing="self_attn.query_layernorm.weight", left=("head_dim",),
    )
    family.gguf["rope_alpha"] = "hunyuan-dense"
    return family


def hunyuan_v1_moe():
    settings = {"num_experts": 4, "moe_topk": 2, "intermediate_size": 12}
    family = dense(
        "hunyuan_v1_moe", "HunYuanMoEV1", settings,
        [
            BIAS, WIDER, TIED, *HUNYUAN_ROPES, *classifiers("HunYuanMoEV1", tokens=False),
            Case("moe_topk", {"moe_topk": 3}),
            Case("moe_topk_list", {"moe_topk": [1, 3]}, why="another number in each layer"),
            Rewrite("num_experts_per_tok", "base", renamed({"moe_topk": "num_experts_per_tok", "num_experts": "num_local_experts"}), why="their other names"),
        ],
        classes=False, shapes=HEADS + ["num_experts"], left=("head_dim",), gguf="hunyuan-moe", missing="mlp.shared_mlp.down_proj.weight",
    )
    family.gguf["rope_alpha"] = "hunyuan-moe"
    family.rejects += [
        {"name": "num_experts_list", "set": {"num_experts": [4, 4]}, "expect": "num_experts is a list", "why": "the class fails"},
        {"name": "moe_topk_length", "set": {"moe_topk": [2]}, "expect": "moe_topk", "why": "one number for each layer"},
    ]
    return family


def mistral4():
    grown = dict(llama_4_scaling_beta=0.7, original_max_position_embeddings=5)
    yarn = dict(kind="yarn", factor=4.0, **grown)
    settings = {
        **MIXED, "num_key_value_heads": 4, "head_dim": "absent", "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
        **rope(**yarn),
    }
    family = dense(
        "mistral4", "Mistral4", settings,
        [
            BIAS, TIED, *balanced(),
            Case("llama_4_scaling_beta", rope(**{**yarn, "llama_4_scaling_beta": 0.2})),
            Case("original_max_position_embeddings", rope(**{**yarn, "original_max_position_embeddings": 9})),
            Case("rope_yarn_mscale_all_dim", rope(**yarn, mscale=1.0, mscale_all_dim=1.0), why="as the released model: the scores are scaled, cos and sin are not"),
            Case("rope_interleave", {"rope_interleave": False}),
            Case("q_lora_rank", {"q_lora_rank": None}),
            Rewrite("inside", "base", inside_mistral3, language_names, reference_refuses="the class that reads images wants its tower", why="inside an image-and-text file"),
        ],
        rotary=4, whole=False, gguf="mistral4",
        shapes=SHAPES + ["num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_key_value_heads",
                         "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace"],
        left=("num_experts_per_tok", "q_lora_rank", "pad_token_id"), missing="self_attn.kv_b_proj.weight",
    )
    for case in family.cases:  # what grows stands among the parameters of the rope
        changes = getattr(case, "changes", {}).get("rope_parameters")
        if changes:
            changes.update({k: v for k, v in grown.items() if k not in changes})
            if changes["rope_type"] == "default":  # with which the class fails
                changes.update(rope_type="yarn", factor=4.0)
    family.gguf["rope_yarn_mscale_all_dim"] = family.gguf["n_group"] = "mistral4"
    family.rejects.append({"name": "rope_default", "set": {"rope_parameters.rope_type": "default"}, "expect": "type default", "why": "the class fails"})
    family.rejects.append({"name": "partial_rotary_factor", "set": {"rope_parameters.partial_rotary_factor": 0.25}, "expect": "partial_rotary_factor", "why": "shapes disagree"})
    return family


def renamed_gates(tensors):
    return {name.replace(".gate_proj.", ".g_proj."): value for name, value in tensors.items()}


def lfm3_rope(full=1000.0, sliding=2000.0, share=0.5, **more):
    return {"rope_parameters": {
        "full_attention": {"rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": share},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
        **more,
    }}


def lfm3():
    types = ["conv", "full_attention", "sliding_attention"]
    plain = {"rope_type": "default", "rope_theta": 500.0}
    linear = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    return Family(
        name="lfm3",
        model_type="lfm3",
        architecture="Lfm3ForCausalLM",
        settings={**SMALL, **lfm3_rope(), "num_hidden_layers": 3, "layer_types": types, "sliding_window": 6, "conv_L_cache": 3, "tie_word_embeddings": False},
        cases=[
            Case("base"),
            Case("norm_eps", {"norm_eps": 0.05}),
            Case("rope_theta", lfm3_rope(50.0)),
            Case("rope_theta_sliding", lfm3_rope(sliding=50.0)),
            Case("partial_rotary_factor", lfm3_rope(share=0.75)),
            Case("rope_default", lfm3_rope(full_attention=plain), why="all of a head rotates"),
            Case("rope_linear", lfm3_rope(full_attention=linear)),
            Case("rope_linear_sliding", lfm3_rope(sliding_attention=linear)),
            Case("rope_proportional_sliding", lfm3_rope(sliding_attention={"rope_type": "proportional", "rope_theta": 2000.0, "partial_rotary_factor": 0.5})),
            Case("layer_types", {"layer_types": types[::-1]}),
            Case("no_attention", {"layer_types": ["conv"] * 3}),
            Case("conv_L_cache", {"conv_L_cache": 4}),
            Case("conv_bias", {"conv_bias": True}),
            Case("use_sandwich_norm", {"use_sandwich_norm": False}),
            Case("use_attention_gate", {"use_attention_gate": False}),
            NARROWER, BIAS, TIED,
            Case("head_dim", {"head_dim": 4}),
            Case("implied_types", {"layer_types": ["conv", "conv", "full_attention"]}),
            Rewrite("layer_types_absent", "implied_types", without("layer_types"), why="every fourth layer sees all, and every fourth slides"),
            Rewrite("g_proj", "base", None, renamed_gates, why="as this version names the gates"),
            Rewrite("defaults", "tie_word_embeddings", keep(*HEADS, "layer_types", "conv_L_cache", "pad_token_id"), same_result=False, why="bases of 1000000 and 10000, half of the channels, a window of 256"),
        ],
        shape_keys=HEADS + ["conv_L_cache"],
        missing="model.layers.1.feed_forward.w2.weight",
        padding="none",
        rejects=[
            {"name": "one_rope", "unset": ["rope_parameters"], "set": {f"rope_parameters.{key}": value for key, value in FLAT.items()},
             "expect": "rope_parameters has no full_attention", "why": "one set of parameters, where each type of layers has its own"},
            {"name": "rope_scaling", "set": {f"rope_scaling.{key}": value for key, value in FLAT.items()}, "expect": "rope_scaling",
             "why": "the class reads rope_parameters alone"},
            {"name": "linear_share", "set": {"rope_parameters.full_attention.rope_type": "linear", "rope_parameters.full_attention.factor": 4.0}, "expect": "partial_rotary_factor",
             "why": "the class rotates all of a head, and fails"},
            {"name": "proportional_factor", "set": {"rope_parameters.full_attention.factor": 4.0}, "expect": "factor", "why": "no released checkpoint has it"},
        ],
    )


def laguna_rope(full=1000.0, sliding=2000.0, share=0.5, sliding_share=1.0, **more):
    return {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": full, "partial_rotary_factor": share, **more},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding, "partial_rotary_factor": sliding_share},
    }}


def laguna():
    settings = {
        **{k: v for k, v in NAMED.items() if k != "num_attention_heads"}, **laguna_rope(), **SLIDES, "num_attention_heads": 4, "num_attention_heads_per_layer": [6, 4], "num_experts": 4,
        "shared_expert_intermediate_size": 10, "moe_routed_scaling_factor": 1.5, "mlp_layer_types": ["dense", "sparse"],
    }
    ropes = []
    for name, keys in scaling_keys(4).items():
        kind = name.split("_")[0]
        keys = {k: v for k, v in keys.items() if k != "truncate"}
        ropes.append(Case(f"every_{name}", laguna_rope(rope_type=kind, **keys), text=False, length_dependent=kind == "longrope", why="every key of the kind"))
    linear = {"rope_type": "linear", "rope_theta": 2000.0, "factor": 4.0, "partial_rotary_factor": 1.0}
    return Family(
        name="laguna",
        model_type="laguna",
        architecture="LagunaForCausalLM",
        settings=settings,
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("rope_theta", laguna_rope(50.0)),
            Case("rope_theta_sliding", laguna_rope(sliding=50.0)),
            Case("partial_rotary_factor", laguna_rope(share=1.0)),
            Case("partial_rotary_factor_sliding", laguna_rope(sliding_share=0.5)),
            Case("num_attention_heads_per_layer", {"num_attention_heads_per_layer": [2, 6]}),
            Case("num_attention_heads", {"num_attention_heads_per_layer": [4, 4]}),
            Case("gating", {"gating": "per-element"}),
            NARROWER, TURNED, BIAS, TIED, KINDS, ALL_DENSE, MORE,
            Case("head_dim", {"head_dim": 12}),
            Case("moe_routed_scaling_factor", {"moe_routed_scaling_factor": 1.0}),
            Case("moe_router_logit_softcapping", {"moe_router_logit_softcapping": 0.5}),
            Case("shared_expert_intermediate_size", {"shared_expert_intermediate_size": 16}),
            Case("every_linear", laguna_rope(rope_type="linear", factor=4.0), text=False),
            Case("rope_linear_sliding", {"rope_parameters": {**laguna_rope()["rope_parameters"], "sliding_attention": linear}}, text=False),
            *ropes,
            Rewrite("gating_per_head", "base", without(gating="per-head"), why="in words"),
            Rewrite("num_attention_heads_per_layer_absent", "num_attention_heads", without("num_attention_heads_per_layer"), why="as many in each layer"),
            Rewrite("mlp_layer_types_absent", "base", without("mlp_layer_types"), why="the first layer is dense"),
            Rewrite("layer_types_absent", "base", without("layer_types"), same_result=False, why="all layers see all"),
            Rewrite("defaults", "base", keep(*HEADS, "num_attention_heads_per_layer", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
                    same_result=False, why="two bases, half of the channels"),
        ],
        shape_keys=HEADS + ["num_experts", "moe_intermediate_size", "shared_expert_intermediate_size", "num_attention_heads_per_layer"],
        missing="model.layers.1.self_attn.g_proj.weight",
        rejects=[
            {"name": "one_rope", "unset": ["rope_parameters"], "set": {f"rope_parameters.{key}": value for key, value in FLAT.items()},
             "expect": "rope_parameters without full_attention", "why": "one set of parameters, where each type of layers has its own"},
            {"name": "rope_scaling", "set": {f"rope_scaling.{key}": value for key, value in FLAT.items()}, "expect": "rope_scaling",
             "why": "the class reads rope_parameters alone"},
            {"name": "odd_rotary", "set": {"rope_parameters.full_attention.partial_rotary_factor": 0.4}, "expect": "rotary_dim = 3",
             "why": "the class rotates one channel more, by frequencies of the odd width; no released checkpoint has it"},
            {"name": "sliding_yarn", "set": {"rope_parameters.sliding_attention.rope_type": "yarn"}, "expect": "sliding_attention.rope_type", "why": "no released checkpoint has it"},
        ],
    )


FAMILIES = [base_text(make()) for make in (hunyuan_v1_dense, hunyuan_v1_moe, mistral4, lfm3, laguna)]
FEW_TOKENS = {}
