"""Cases of decoder families of 2026 with values narrower than keys, bounded decays and shortcut-connected experts, with the helpers of the other tables of decoders."""

from family_cases import SHAPES, Case, Family, Rewrite, keep, older, rope, scaling_keys, without
from family_cases_decoders import BIAS, HEADS, MIXED, MIXED_SHAPES, MLP_BIAS, SMALL, TIED, WIDER, balanced, base_text, dense, lean_rope
from family_cases_decoders_more import ALL_DENSE, FLAT, KINDS, MORE, NARROWER, SLIDES, TURNED, renamed

PLAIN = {k: v for k, v in SMALL.items() if k != "head_dim"}
LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}
LATENT_SHAPES = SHAPES + ["num_attention_heads", "num_key_value_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True, "routed_scaling_factor": 1.5}
WEIGHTS = [
    Case("norm_topk_prob", {"norm_topk_prob": False}),
    Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
]


def rope_by_type(full=1000.0, sliding=2000.0, share=0.5, sliding_share=1.0, **more):
    return {"rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": full, "partial_rotary_factor": share, **more},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding, "partial_rotary_factor": sliding_share},
    }}


def mimo_hub(config):
    """The released files number the types of layers and name what holds for sliding ones."""
    ropes = config["rope_parameters"]
    result = {k: v for k, v in config.items() if k not in ("rope_parameters", "layer_types", "mlp_layer_types")}
    return {
        **result, "rope_theta": ropes["full_attention"]["rope_theta"], "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        "partial_rotary_factor": ropes["full_attention"]["partial_rotary_factor"], "hybrid_layer_pattern": [int(t == "sliding_attention") for t in config["layer_types"]],
        "moe_layer_freq": [int(t == "sparse") for t in config["mlp_layer_types"]], "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"], "swa_head_dim": config["head_dim"], "swa_v_head_dim": config["v_head_dim"], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "attention_chunk_size": 6, "n_shared_experts": None, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    }


def mimo_v2_flash():
    ropes = []
    for name, keys in scaling_keys(4).items():
        kind = name.split("_")[0]
        keys = {k: v for k, v in keys.items() if k != "truncate"}
        ropes.append(Case(f"every_{name}", rope_by_type(rope_type=kind, **keys), text=False, length_dependent=kind == "longrope", why="every key of the kind"))
    linear = {"rope_type": "linear", "rope_theta": 2000.0, "factor": 4.0, "partial_rotary_factor": 1.0}
    return Family(
        name="mimo_v2_flash",
        model_type="mimo_v2_flash",
        architecture="MiMoV2FlashForCausalLM",
        settings={
            **SMALL, **SLIDES, **MIXTURE, **rope_by_type(), "v_head_dim": 6, "n_routed_experts": 4, "mlp_layer_types": ["dense", "sparse"], "attention_value_scale": 0.6,
        },
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("attention_value_scale", {"attention_value_scale": 1.0}),
            Case("attention_value_scale_null", {"attention_value_scale": None}, why="values as they are"),
            Case("rope_theta", rope_by_type(50.0)),
            Case("rope_theta_sliding", rope_by_type(sliding=50.0)),
            Case("partial_rotary_factor", rope_by_type(share=1.0)),
            Case("partial_rotary_factor_sliding", rope_by_type(sliding_share=0.5)),
            NARROWER, TURNED, BIAS, TIED, KINDS, ALL_DENSE, MORE, *WEIGHTS,
            Case("head_dim", {"head_dim": 12}),
            Case("v_head_dim", {"v_head_dim": 10}, why="values wider than keys"),
            Case("n_group", {"n_group": 2, "topk_group": 1}),
            Case("topk_group", {"topk_group": 2}, of="n_group"),
            Case("every_linear", rope_by_type(rope_type="linear", factor=4.0), text=False),
            Case("rope_linear_sliding", {"rope_parameters": {**rope_by_type()["rope_parameters"], "sliding_attention": linear}}, text=False),
            *ropes,
            Rewrite("num_local_experts", "base", without("n_routed_experts", num_local_experts=4), why="its other name"),
            Rewrite("sliding_window_size", "sliding_window", lambda c: {**c, "sliding_window_size": c["sliding_window"] - 1, "sliding_window": 9}, why="as the released file: without the query itself"),
            Rewrite("routed_scaling_factor_null", "routed_scaling_factor", lambda c: {**c, "routed_scaling_factor": None}, why="as the released file"),
            Rewrite("mlp_layer_types_absent", "base", without("mlp_layer_types"), why="the first layer is dense"),
            Rewrite("hub", "partial_rotary_factor", mimo_hub, reference_refuses="this version reads layer_types, mlp_layer_types and rope_parameters", why="the released files"),
            Rewrite("hub_eps", "rms_norm_eps", lambda c: {**{k: v for k, v in c.items() if k != "rms_norm_eps"}, "layernorm_epsilon": c["rms_norm_eps"]},
                    reference_refuses="this version reads rms_norm_eps", why="the released files"),
            Rewrite("defaults", "layer_types", keep(*HEADS, "v_head_dim", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"), same_result=False,
                    why="the first layer sees all; two bases, a third of the channels"),
        ],
        shape_keys=HEADS + ["v_head_dim", "n_routed_experts", "moe_intermediate_size"],
        missing="model.layers.0.self_attn.attention_sink_bias",
        rejects=[
            {"name": "one_rope", "unset": ["rope_parameters"], "set": {f"rope_parameters.{key}": value for key, value in FLAT.items()},
             "expect": "rope_parameters without full_attention", "why": "one set of parameters, where each type of layers has its own"},
            {"name": "rope_scaling", "set": {f"rope_scaling.{key}": value for key, value in FLAT.items()}, "expect": "rope_scaling",
             "why": "the class reads rope_parameters alone"},
            {"name": "sliding_yarn", "set": {"rope_parameters.sliding_attention.rope_type": "yarn"}, "expect": "sliding_attention.rope_type", "why": "no released checkpoint has it"},
            *[{"name": name, "set": {name: value}, "expect": name, "why": "no released checkpoint has it"} for name, value in (
                ("swa_num_attention_heads", 8), ("swa_num_key_value_heads", 8), ("swa_head_dim", 16), ("swa_v_head_dim", 8), ("add_swa_attention_sink_bias", False),
                ("add_full_attention_sink_bias", True))],
        ],
    )


def bailing_hybrid():
    types = ["linear_attention", "full_attention"]
    names = {"n_group": "num_expert_group", "num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts",
             "norm_topk_prob": "moe_renormalize", "max_position_embeddings": "model_max_length", "num_mtp_layers": "num_nextn_predict_layers"}
    other = renamed({**names, **{v: k for k, v in names.items()}})
    return Family(
        name="bailing_hybrid",
        model_type="bailing_hybrid",
        architecture="BailingHybridForCausalLM",
        # the class gives head_dim the width of the rotary channels, and saves that
        settings={
            **PLAIN, **LATENT, **MIXTURE, **rope(), "head_dim": 4, "layer_types": types, "mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4, "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1, "num_mtp_layers": 0, "tie_word_embeddings": False,
        },
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("layer_types", {"layer_types": types[::-1]}),
            Case("short_conv_kernel_size", {"short_conv_kernel_size": 3}),
            Case("kda_lower_bound", {"kda_lower_bound": -0.5}),
            Case("kda_safe_gate", {"kda_safe_gate": False}),
            Case("q_lora_rank", {"q_lora_rank": 12}),
            Case("rope_theta", rope(50.0)),
            Case("attention_bias", {"attention_bias": True}),
            KINDS, ALL_DENSE, MORE, *WEIGHTS,
            Case("n_shared_experts", {"n_shared_experts": 2}),
            Case("n_group", {"n_group": 2, "topk_group": 1}),
            Case("topk_group", {"topk_group": 2}, of="n_group"),
            *lean_rope(4),
            Case("rope_yarn_mscale_all_dim", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)),
            Rewrite("names", "n_group", other, why="other names"),
            Rewrite("names_of_weights", "norm_topk_prob", other, why="other names"),
            Rewrite("names_of_shared", "n_shared_experts", other, why="other names"),
            Rewrite("v4", "every_llama3", older),
            Rewrite("layer_group_size", "base", without("layer_types", layer_group_size=2), why="the last layer of each group attends"),
            Rewrite("first_k_dense_replace", "base", without("mlp_layer_types", first_k_dense_replace=1)),
            Rewrite("defaults", "mlp_layer_types_dense", keep(*LATENT_SHAPES, "head_dim", "layer_types", "pad_token_id"), same_result=False,
                    why="two dense layers, a decay of at least exp(-5)"),
        ],
        shape_keys=LATENT_SHAPES + ["head_dim", "num_experts", "num_shared_experts", "moe_intermediate_size"],
        missing="model.layers.1.attention.kv_b_proj.weight",
        padding="none",
        rejects=[
            {"name": "kda_lower_bound", "set": {"kda_lower_bound": 0.5}, "expect": "kda_lower_bound", "why": "a decay above one"},
            {"name": "no_kda_lora", "set": {"no_kda_lora": False}, "expect": "no_kda_lora", "why": "decay and gate of low rank, which the class has not"},
            {"name": "gated_attention_proj_granularity_type", "set": {"gated_attention_proj_granularity_type": "element_wise"}, "expect": "gated_attention_proj_granularity_type", "why": "the class has a gate of each head"},
            {"name": "rope_interleave", "set": {"rope_interleave": False}, "expect": "rope_interleave", "why": "the class rotates pairs of neighbours"},
        ],
    )


def longcat_flash():
    settings = {
        **{k: v for k, v in PLAIN.items() if k not in ("num_hidden_layers", "intermediate_size")}, **LATENT, **rope(), "num_layers": 2, "q_lora_rank": 12, "head_dim": 4, "ffn_hidden_size": 24,
        "expert_ffn_hidden_size": 12, "moe_topk": 2, "n_routed_experts": 4, "zero_expert_num": 2, "routed_scaling_factor": 1.5, "tie_word_embeddings": False,
    }
    sizes = [name for name in LATENT_SHAPES if name not in ("num_hidden_layers", "intermediate_size")] + ["num_layers", "q_lora_rank", "ffn_hidden_size", "expert_ffn_hidden_size"]
    names = {"n_routed_experts": "num_local_experts", "moe_topk": "num_experts_per_tok", "ffn_hidden_size": "intermediate_size", "expert_ffn_hidden_size": "moe_intermediate_size"}
    return Family(
        name="longcat_flash",
        model_type="longcat_flash",
        architecture="LongcatFlashForCausalLM",
        settings=settings,
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("rope_theta", rope(50.0)),
            BIAS, TIED,
            Case("moe_topk", {"moe_topk": 3}),
            Case("zero_expert_num", {"zero_expert_num": 0}, why="every expert computes"),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            *lean_rope(4),
            Case("rope_yarn_mscale_all_dim", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)),
            Rewrite("names", "base", renamed(names), why="other names"),
            Rewrite("names_of_choices", "moe_topk", renamed(names), why="other names"),
            Rewrite("v4", "every_llama3", older),
            Rewrite("defaults", "base", keep(*sizes, "head_dim", "n_routed_experts", "zero_expert_num", "moe_topk"), same_result=False, why="theta 10000000, a factor of 6"),
        ],
        shape_keys=sizes + ["n_routed_experts", "zero_expert_num"],
        missing="model.layers.1.self_attn.1.kv_b_proj.weight",
        rejects=[
            {"name": name, "set": {name: value}, "expect": name, "why": "another computation, which the class has not"}
            for name, value in (("router_bias", True), ("attention_method", "MHA"), ("zero_expert_type", "copy"), ("mla_scale_q_lora", False), ("mla_scale_kv_lora", False))
        ],
    )


SHARES = [
    {"name": "partial_rotary_factor" + name, "base": base, "set": {path: 0.25}, "expect": "partial_rotary_factor", "why": "shapes disagree"}
    for name, base, path in (("", "base", "rope_parameters.partial_rotary_factor"), ("_scaling", "every_yarn_attention_factor_scaling", "rope_scaling.partial_rotary_factor"),
                             ("_outside", "every_yarn_attention_factor_scaling", "partial_rotary_factor"))
]


def cwm():
    family = dense(
        "cwm", "Cwm", SLIDES, [MLP_BIAS, WIDER, TIED, NARROWER, TURNED, Case("no_rope", {"rope_parameters": None}, text=False, why="the class stretches then")],
        classes=False, left=("layer_types",), whole=False,
    )
    family.cases.append(Rewrite("layer_types_absent", "base", without("layer_types"), same_result=False, why="the first of four layers sees all"))
    family.rejects += SHARES
    return family


def flex_olmo():
    settings = {"num_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12}
    return dense(
        "flex_olmo", "FlexOlmo", {**{k: "absent" for k in ("head_dim",)}, **settings},
        [
            BIAS, TIED, MORE, Case("norm_topk_prob", {"norm_topk_prob": True}), Case("head_dim", {"head_dim": 6}),
            Rewrite("num_local_experts", "base", without("num_experts", num_local_experts=4), why="its other name"),
        ],
        rotary=4, classes=False, shapes=[name for name in HEADS if name != "head_dim"] + ["num_experts"], left=("num_experts_per_tok", "pad_token_id"), missing="post_feedforward_layernorm.weight",
    )


def llama_kin(name, cases):
    return dense(name, "Llama", {}, [WIDER, TIED, *cases], model_type=name, classes=False)


def internlm3():
    both = {"attention_bias": True, "mlp_bias": True}
    family = llama_kin("internlm3", [
        Case("bias", both), Rewrite("hub", "bias", lambda c: {**{k: v for k, v in older(c).items() if k not in both}, "qkv_bias": True, "bias": True}, why="the released files")])
    return family


def iquestcoder():
    family = llama_kin("iquestcoder", [BIAS, MLP_BIAS])
    family.rejects += [
        {"name": "clip_qkv", "set": {"clip_qkv": 8.0}, "expect": "clip_qkv", "why": "no released checkpoint has it"},
        {"name": "use_sliding_window", "set": {"use_sliding_window": True}, "expect": "use_sliding_window", "why": "no released checkpoint has it"},
    ]
    return family


def solar_open():
    settings = {k: v for k, v in MIXED.items() if k not in ("first_k_dense_replace", "intermediate_size")}
    family = dense(
        "solar_open", "SolarOpen", {**settings, "intermediate_size": "absent"},
        [BIAS, WIDER, TIED, *[case for case in balanced() if not case.name.startswith("first_k")]],
        classes=False, whole=False, shapes=[name for name in MIXED_SHAPES if name not in ("first_k_dense_replace", "intermediate_size")], left=("num_experts_per_tok",),
        missing="mlp.shared_experts.down_proj.weight", acts=(),
    )
    family.rejects += SHARES
    return family


LATENTS = {**LATENT, "head_dim": "absent", "q_lora_rank": 12}


def of_latents(name, prefix, settings, cases, shapes=(), left=(), **more):
    return dense(
        name, prefix, {**LATENTS, **settings},
        [
            BIAS, *cases,
            Case("rope_interleave", {"rope_interleave": False}),
            Case("q_lora_rank", {"q_lora_rank": None}),
            Case("rope_yarn_mscale_all_dim", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)),
        ],
        rotary=4, classes=False, whole=False, shapes=LATENT_SHAPES + list(shapes), left=("q_lora_rank", *left), missing="self_attn.kv_b_proj.weight", **more,
    )


def youtu():
    return of_latents("youtu", "Youtu", {"pad_token_id": None}, [Case("tie_word_embeddings", {"tie_word_embeddings": False})], gains={"model.norm.weight": 1}, init_only=("pad_token_id",))


def sarvam_mla():
    settings = {k: v for k, v in MIXED.items() if k not in ("head_dim", "num_key_value_heads")}
    family = of_latents(
        "sarvam_mla", "DeepseekV3", settings,
        [
            TIED, *balanced(),
            Rewrite("names", "n_shared_experts", renamed({"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}), why="as the released files"),
        ],
        shapes=("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace"), left=("num_experts_per_tok",), model_type="sarvam_mla",
    )
    family.cases.append(
        Rewrite("deepseek_yarn", "rope_yarn_mscale_all_dim", lambda c: {**{k: v for k, v in c.items() if k != "rope_parameters"}, "rope_theta": 1000.0, "q_head_dim": 10, "head_dim": 14,
                "rope_scaling": {**{k: v for k, v in c["rope_parameters"].items() if k not in ("rope_type", "rope_theta")}, "type": "deepseek_yarn"}}, why="as the released files"))
    return family


def vaultgemma():
    return dense(
        "vaultgemma", "VaultGemma", {**SLIDES, "query_pre_attn_scalar": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        [
            BIAS, WIDER, Case("tie_word_embeddings", {"tie_word_embeddings": False}), NARROWER, TURNED, Case("query_pre_attn_scalar", {"query_pre_attn_scalar": 12}),
            Case("attn_logit_softcapping", {"attn_logit_softcapping": None}), Case("final_logit_softcapping", {"final_logit_softcapping": None}),
            Case("hidden_activation", {"hidden_activation": "relu"}),
        ],
        acts=(), classes=False, zero_centred_norms=True, gains={"model.norm.weight": 1}, missing="pre_feedforward_layernorm.weight",
    )


def jais2():
    return dense(
        "jais2", "Jais2", {}, [Case("attention_bias", {"attention_bias": False}), Case("mlp_bias", {"mlp_bias": False}), WIDER, TIED],
        acts=("gelu",), eps="layer_norm_eps", classes=False, missing="mlp.up_proj.weight", draw=5,
    )


def hyperclovax():
    factors = {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.7, "logits_scaling": 0.5}
    return dense(
        "hyperclovax", "HyperCLOVAX", {**factors, "head_dim": "absent"},
        [
            *[Case(key, {key: 1.0}) for key in factors], BIAS, MLP_BIAS, TIED, Case("use_post_norm", {"use_post_norm": False}), Case("head_dim", {"head_dim": 6}),
            Case("attention_multiplier_null", {"attention_multiplier": None}, why="of the width of a head"),
        ],
        rotary=4, classes=False, shapes=[name for name in HEADS if name != "head_dim"], missing="post_norm2.weight",
    )


def sarvam_moe():
    names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts", "attention_bias": "use_qkv_bias"}
    family = dense(
        "sarvam_moe", "Glm4Moe", {**MIXED, "num_mtp_layers": 0},
        [
            BIAS, Case("use_qk_norm", {"use_qk_norm": False}), Case("head_dim", {"head_dim": 4}), TIED, *balanced(),
            Rewrite("names", "attention_bias", renamed(names), why="as the released files"), Rewrite("names_of_shared", "n_shared_experts", renamed(names), why="as the released files"),
        ],
        rotary=4, share=0.5, classes=False, shapes=MIXED_SHAPES, left=("num_experts_per_tok", "pad_token_id"), missing="mlp.shared_experts.down_proj.weight", model_type="sarvam_moe",
    )
    family.cases = [case for case in family.cases if case.name != "v4"]  # whose share the class sets to 1
    return family


FAMILIES = [base_text(make()) for make in (
    mimo_v2_flash, bailing_hybrid, longcat_flash, cwm, flex_olmo, internlm3, iquestcoder, solar_open, youtu, sarvam_mla, vaultgemma, jais2, hyperclovax, sarvam_moe,
)]
FEW_TOKENS = {}
