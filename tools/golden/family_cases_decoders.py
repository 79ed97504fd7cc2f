"""Cases of decoder families: further rows of the table in family_cases.py."""

import torch

from family_cases import (
    GQA,
    HYBRID_ACT,
    PARTIAL_SCALED,
    SHAPES,
    SHAPES_GQA,
    Case,
    Family,
    Rewrite,
    common_cases,
    dynamic_rope,
    every_rope,
    keep,
    named_classes,
    older,
    older_with,
    partial_spellings,
    rope,
    rope_at_top,
    rope_within,
    scaling_keys,
    with_mtp,
    without,
    whole_rotary,
)

# four heads of 8 over a stream of 16
SMALL = dict(GQA, vocab_size=40, hidden_size=16, head_dim=8)
FEW = dict(GQA, vocab_size=40, hidden_size=16)
HEADS = SHAPES_GQA + ["head_dim"]
ROPES = ("base", "every_linear", "every_yarn_attention_factor")


def lean_rope(width, of="base", share=None, kinds=("yarn", "llama3", "longrope")):
    """Every key of rope parameters in every spelling that a family may read, by fewer files than every_rope."""
    given = {} if share is None else {"partial_rotary_factor": share}
    cases = []
    for name, keys in scaling_keys(width).items():
        kind = name.split("_")[0]
        if kind not in kinds:
            continue
        case = f"every_{name}"
        cases.append(
            Case(case, rope(kind=kind, **keys, **given), of=of, text=False,
                 length_dependent=kind == "longrope", why="every key of the kind")
        )
        if name == "yarn_attention_factor":
            cases.append(Case("every_linear", rope(kind="linear", factor=4.0, **given), of=of, text=False))
            cases.append(Rewrite(f"{case}_scaling", case, rope_at_top, why="under rope_scaling"))
        else:
            cases.append(
                Rewrite(f"{case}_scaling_type", case, rope_within("rope_scaling"), why="all in rope_scaling")
            )
    return cases + [
        Rewrite("every_llama3_type", "every_llama3", rope_within("rope_parameters"), why='"type"')
    ]


def classifiers(name, tokens=True, **one):
    """The classes that classify texts and tokens, of one layer."""
    one = {"num_hidden_layers": 1, **one}
    cases = []
    cases.append(
        Case("classifier", {"num_labels": 3, **one}, architecture=f"{name}ForSequenceClassification",
             text=False, why="classes of a row by its last token")
    )
    if tokens:
        cases.append(
            Case("token_classifier", {"num_labels": 5, **one}, architecture=f"{name}ForTokenClassification",
                 text=False, why="classes of every token, with a bias")
        )
    return cases


def gemma():
    return Family(
        name="gemma",
        model_type="gemma",
        architecture="GemmaForCausalLM",
        gains={"model.norm.weight": 1},
        settings={**SMALL, **rope()},
        cases=[Case("base")]
        + common_cases(other_acts=("relu",))
        + [
            Rewrite("hidden_act_gelu", "base", without(hidden_act="gelu", hidden_activation=None), why="the first files"),
            Case("hidden_act_gelu_python", {"hidden_act": "gelu_python"}),
            Case("attention_bias", {"attention_bias": True}),
            Case("head_dim", {"head_dim": 6}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            *lean_rope(8),
            *whole_rotary(),
            dynamic_rope(),
            *classifiers("Gemma"),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*SHAPES_GQA, "head_dim"), same_result=False, why="theta 10000, tied"),
        ],
        shape_keys=HEADS,
        zero_centred_norms=True,
        gguf={case: "gemma" for case in ROPES},
        missing="model.layers.1.post_attention_layernorm.weight",
        rejects=[PARTIAL_SCALED],
    )


def granite():
    return Family(
        name="granite",
        model_type="granite",
        architecture="GraniteForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **FEW,
            **rope(),
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.7,
            "logits_scaling": 0.5,
            "rms_norm_eps": 1e-5,
        },
        cases=[Case("base")]
        + common_cases(other_acts=("gelu",))
        + [
            Case("embedding_multiplier", {"embedding_multiplier": 1.0}),
            Case("attention_multiplier", {"attention_multiplier": 1.0}),
            Case("residual_multiplier", {"residual_multiplier": 1.0}),
            Case("logits_scaling", {"logits_scaling": 1.0}),
            Case("attention_bias", {"attention_bias": True}),
            Case("mlp_bias", {"mlp_bias": True}),
            Case("head_dim", {"head_dim": 6}),
            *lean_rope(4),
            *whole_rotary(),
            dynamic_rope(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*SHAPES_GQA), same_result=False, why="factors of one"),
        ],
        shape_keys=SHAPES_GQA,
        gguf={**{case: "granite" for case in ROPES}, "every_llama3": "granite"},
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[PARTIAL_SCALED],
    )


def glm_cases(name):
    """Half of a head rotates unless told otherwise."""
    return (
        [Case("base")]
        + common_cases(other_acts=("gelu",))
        + [
            Case("attention_bias", {"attention_bias": False}),
            Case("head_dim", {"head_dim": 4}),
            Case("partial_rotary_factor", rope(partial_rotary_factor=0.25)),
            *partial_spellings("partial_rotary_factor"),
            *lean_rope(4, share=0.5),
            dynamic_rope(partial_rotary_factor=0.5),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            *classifiers(name),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*SHAPES_GQA, "head_dim", "pad_token_id"), same_result=False, why="half rotates, biases"),
        ]
    )


def glm():
    return Family(
        name="glm",
        model_type="glm",
        architecture="GlmForCausalLM",
        settings={**SMALL, **rope(partial_rotary_factor=0.5), "eos_token_id": 2, "rms_norm_eps": 1e-5},
        cases=glm_cases("Glm"),
        shape_keys=HEADS,
        gguf={case: "chatglm" for case in ROPES},
        missing="model.layers.1.mlp.gate_up_proj.weight",
    )


def glm4():
    return Family(
        name="glm4",
        model_type="glm4",
        architecture="Glm4ForCausalLM",
        settings={**SMALL, **rope(partial_rotary_factor=0.5), "eos_token_id": 2, "rms_norm_eps": 1e-5},
        cases=glm_cases("Glm4"),
        shape_keys=HEADS,
        gguf={case: "glm4" for case in ROPES},
        missing="model.layers.1.post_mlp_layernorm.weight",
    )


def olmo():
    return Family(
        name="olmo",
        model_type="olmo",
        architecture="OlmoForCausalLM",
        settings={**FEW, **rope(), "eos_token_id": 2},
        cases=[Case("base")]
        + [case for case in common_cases(other_acts=("gelu",)) if case.name != "rms_norm_eps"]
        + [
            Case("attention_bias", {"attention_bias": True}),
            Case("clip_qkv", {"clip_qkv": 0.3}),
            Case("head_dim", {"head_dim": 6}),
            *lean_rope(4),
            *whole_rotary(),
            dynamic_rope(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*SHAPES_GQA), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        gguf={**{case: "olmo" for case in ROPES}, "clip_qkv": "olmo", "tie_word_embeddings": "olmo"},
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[PARTIAL_SCALED],
    )


def ministral():
    return Family(
        name="ministral",
        model_type="ministral",
        architecture="MinistralForCausalLM",
        settings={**SMALL, **rope(), "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-5},
        cases=[Case("base")]
        + common_cases(other_acts=("gelu",))
        + [
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
            Case("head_dim", {"head_dim": 6}),
            *lean_rope(8),
            *whole_rotary(),
            dynamic_rope(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            *classifiers("Ministral", layer_types=["sliding_attention"]),
            Rewrite("v4", "base", older),
            Rewrite("layer_types_absent", "base", without("layer_types"), same_result=False, why="all layers slide"),
            Rewrite("defaults", "base", keep(*SHAPES_GQA, "head_dim"), same_result=False, why="a window of 4096"),
        ],
        shape_keys=HEADS,
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[PARTIAL_SCALED],
    )


def spellings(rotary, share=None, whole=True):
    """All that is said of one rope: of a part of each head where a share is given, or of all of it.

    whole: whether a class that rotates all of a head ignores a share; others fail."""
    if not whole:
        return [*lean_rope(rotary), dynamic_rope()]
    if share is None:
        return [*lean_rope(rotary), *whole_rotary(), dynamic_rope()]
    other = Case("partial_rotary_factor", rope(partial_rotary_factor=share / 2))
    return [other, *partial_spellings(other.name), *lean_rope(rotary, share=share), dynamic_rope(partial_rotary_factor=share)]


def dense(name, prefix, settings, cases, *, acts=("gelu",), eps="rms_norm_eps", rotary=8, share=None, classes=True, left=(), gguf=None, missing="mlp.down_proj.weight", shapes=HEADS, whole=True, **more):
    """A decoder whose keys are those of a Llama, and its own `cases`. left: keys that class defaults do not fit."""
    return Family(
        name=name,
        model_type=more.pop("model_type", name),
        architecture=f"{prefix}ForCausalLM",
        settings={key: value for key, value in {**SMALL, **rope(**({} if share is None else {"partial_rotary_factor": share})), **settings}.items() if value != "absent"},
        cases=[Case("base")]
        + [case for case in common_cases(other_acts=acts, eps=eps or "rms_norm_eps") if eps or case.name != "rms_norm_eps"]
        + cases
        + spellings(rotary, share, whole)
        + (classifiers(prefix) if classes else [])
        + [
            Rewrite("v4", "every_llama3" if not whole else "base", older),
            Rewrite("defaults", "base", keep(*shapes, *left), same_result=False, why="class defaults"),
        ],
        shape_keys=shapes,
        gguf={case: gguf for case in ROPES} if gguf else {},
        missing=f"model.layers.1.{missing}",
        rejects=[PARTIAL_SCALED] if share is None and whole else [],
        **more,
    )


UNTIED = Case("tie_word_embeddings", {"tie_word_embeddings": False})
TIED = Case("tie_word_embeddings", {"tie_word_embeddings": True})
BIAS = Case("attention_bias", {"attention_bias": True})
MLP_BIAS = Case("mlp_bias", {"mlp_bias": True})
WIDER = Case("head_dim", {"head_dim": 6})
NARROW = Case("head_dim", {"head_dim": 4})  # half of which still are pairs


def arcee():
    return dense("arcee", "Arcee", {}, [BIAS, MLP_BIAS, WIDER, TIED], acts=("gelu", "silu"), gguf="arcee")


def starcoder2():
    family = dense(
        "starcoder2", "Starcoder2", {"tie_word_embeddings": False},
        [
            Case("use_bias", {"use_bias": False}),
            Case("sliding_window", {"sliding_window": 5}),
            WIDER,
            TIED,
        ],
        acts=("gelu", "relu"), eps="norm_epsilon", gguf="starcoder2", missing="mlp.c_fc.weight", gains={"model.norm.weight": 1, "mlp.c_fc.weight": 2.0}, draw=1,
    )
    for case in family.cases:
        if case.name == "defaults":
            case.of = "tie_word_embeddings"
    return family


def seed_oss():
    return dense(
        "seed_oss", "SeedOss", {},
        [Case("attention_bias", {"attention_bias": False}), Case("attention_out_bias", {"attention_out_bias": True}), MLP_BIAS, WIDER, TIED],
        gguf="seed_oss", left=("pad_token_id",),
    )


def ernie4_5():
    family = dense(
        "ernie4_5", "Ernie4_5", {"tie_word_embeddings": False},
        [Case("use_bias", {"use_bias": True}), WIDER, TIED],
        gguf="ernie4_5", classes=False,
    )
    for case in family.cases:
        if case.name == "defaults":
            case.of = "tie_word_embeddings"
    return family


def helium():
    return dense(
        "helium", "Helium", {"hidden_size": 32},
        [BIAS, MLP_BIAS, TIED], rotary=8, left=("pad_token_id",),
    )


def nemotron():
    return dense(
        "nemotron", "Nemotron", {},
        [BIAS, MLP_BIAS, NARROW, TIED], acts=("gelu", "silu"), eps="norm_eps", rotary=4, share=0.5,
        gguf="nemotron", missing="mlp.up_proj.weight", zero_centred_norms=True,
    )


def persimmon():
    settings = {"hidden_size": 32, "num_key_value_heads": "absent", "head_dim": "absent", "tie_word_embeddings": False}
    return dense(
        "persimmon", "Persimmon", settings,
        [Case("qk_layernorm", {"qk_layernorm": False}), TIED],
        acts=("gelu", "silu"), eps="layer_norm_eps", rotary=4, share=0.5, shapes=SHAPES + ["num_attention_heads"],
        missing="mlp.dense_h_to_4h.weight",
    )


def exaone4():
    slides = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
    family = dense(
        "exaone4", "Exaone4", slides,
        [
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
            Case("sliding_window_null", {"sliding_window": None, "layer_types": ["full_attention"] * 2},
                 why="no layer slides, and all rotate"),
            WIDER,
            TIED,
            Rewrite("layer_types_absent", "base", without("layer_types", sliding_window_pattern=2)),
            Rewrite("sliding_window_pattern", "base", without(sliding_window_pattern="LG"), why="layer_types wins"),
        ],
        gguf="exaone4", missing="post_feedforward_layernorm.weight",
    )
    family.gguf["sliding_window_null"] = "exaone4"
    family.gguf["every_llama3"] = "exaone4"
    family.rejects.append({"name": "pattern", "unset": ["layer_types"], "set": {"sliding_window_pattern": "LG"}, "expect": "sliding_window_pattern"})
    for case in family.cases:
        if case.name in ("classifier", "token_classifier"):
            case.changes["layer_types"] = ["sliding_attention"]
    return family


def olmo3_rope(full=1000.0, sliding=2000.0, **more):
    return {
        "rope_parameters": {
            "full_attention": {"rope_theta": full, "rope_type": "default", **more},
            "sliding_attention": {"rope_theta": sliding, "rope_type": "default"},
        }
    }


def olmo3_top(config):
    """The parameters of full layers at the top, as the first files have them; the others keep the class's base."""
    result = {k: v for k, v in config.items() if k != "rope_parameters"}
    full = {**config["rope_parameters"]["full_attention"]}
    result["rope_theta"] = full.pop("rope_theta")
    return {**result, "rope_scaling": None if full == {"rope_type": "default"} else full}


def olmo3_within(config):
    result = {k: v for k, v in config.items() if k != "rope_parameters"}
    return {**result, "rope_scaling": config["rope_parameters"]["full_attention"]}


def every_olmo3(width):
    cases = []
    for name, keys in scaling_keys(width).items():
        keys = {k: v for k, v in keys.items() if k != "truncate"}
        kind = name.split("_")[0]
        case = f"every_{name}"
        cases += [
            Case(case, olmo3_rope(500.0, 500000.0, rope_type=kind, **keys), text=False, length_dependent=kind == "longrope"),
            Rewrite(f"{case}_scaling", case, olmo3_top, why="under rope_scaling"),
        ]
        if kind == "llama3":
            cases.append(Rewrite(f"{case}_scaling_theta", case, olmo3_within, why="the base, too"))
    return cases + [
        Case("every_linear", olmo3_rope(500.0, 500000.0, rope_type="linear", factor=4.0), text=False),
        Case("rope_linear_sliding", {"rope_parameters": {
            "full_attention": {"rope_theta": 1000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 2000.0, "rope_type": "linear", "factor": 4.0}}}, text=False),
    ]


def olmo3():
    types = ["sliding_attention", "full_attention"]
    return Family(
        name="olmo3",
        model_type="olmo3",
        architecture="Olmo3ForCausalLM",
        settings={**FEW, **olmo3_rope(), "eos_token_id": 2, "sliding_window": 6, "layer_types": types},
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("rope_theta", olmo3_rope(50.0)),
            Case("rope_theta_sliding", olmo3_rope(sliding=50.0)),
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": types[::-1]}),
            Case("attention_bias", {"attention_bias": True}),
            Case("head_dim", {"head_dim": 6}),
            TIED,
            *every_olmo3(4),
            Rewrite("partial_rotary_factor_top", "every_linear",
                    lambda config: {**olmo3_top(config), "rope_scaling": None, "partial_rotary_factor": 0.5},
                    same_result=False, unread=("partial_rotary_factor",), why="the class rotates all of a head"),
            Rewrite("partial_rotary_factor_scaling", "every_linear",
                    lambda config: {**olmo3_top(config), "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
                    same_result=False, unread=("rope_scaling.partial_rotary_factor",), why="the class rotates all of a head"),
            Rewrite("v4", "every_linear", olmo3_top, why="older spelling"),
            Rewrite("layer_types_absent", "base", without("layer_types"), same_result=False, why="three of four slide"),
            Case("classifier", {"num_labels": 3, "num_hidden_layers": 1, "layer_types": types[:1]},
                 architecture="Olmo3ForSequenceClassification", why="classes of a row by its last token"),
            Rewrite("defaults", "base", keep(*SHAPES_GQA), same_result=False, why="bases of 500000, a window of 4096"),
        ],
        shape_keys=SHAPES_GQA,
        gguf={case: "olmo2" for case in ("base", "every_linear", "every_yarn_attention_factor", "layer_types")},
        missing="model.layers.1.self_attn.q_norm.weight",
        rejects=[
            {
                "name": "one_rope",
                "unset": ["rope_parameters"],
                "set": {f"rope_parameters.{key}": value for key, value in {
                    "rope_theta": 2000.0, "rope_type": "linear", "type": "linear", "factor": 8.0, "partial_rotary_factor": 0.5,
                    "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "short_factor": [1.0, 1.1],
                    "long_factor": [1.0, 1.5], "beta_fast": 2.0, "beta_slow": 0.25, "attention_factor": 1.5, "mscale": 0.7,
                    "mscale_all_dim": 1.3, "truncate": False}.items()},
                "expect": "rope_parameters without full_attention",
                "why": "one set of parameters, where each type of layers has its own",
            },
            {
                "name": "rope_scaling_type",
                "unset": ["rope_parameters"],
                "set": {"rope_scaling.type": "linear", "rope_scaling.factor": 4.0},
                "expect": "rope_scaling.type",
                "why": "the class reads rope_type alone",
            },
            {
                "name": "partial_scaled",
                "unset": ["rope_parameters"],
                "set": {"rope_scaling.rope_type": "linear", "rope_scaling.factor": 4.0, "rope_scaling.partial_rotary_factor": 0.5},
                "expect": "partial_rotary_factor",
                "why": "the class computes angles of half a head and multiplies them with a whole one",
            },
        ],
    )


def gpt_bigcode():
    return Family(
        name="gpt_bigcode",
        model_type="gpt_bigcode",
        architecture="GPTBigCodeForCausalLM",
        settings=dict(vocab_size=40, n_embd=16, n_layer=2, n_head=4, n_positions=32, n_inner=24, bos_token_id=1, eos_token_id=2,
                      tie_word_embeddings=False),
        cases=[
            Case("base"),
            Case("multi_query", {"multi_query": False}),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("scale_attn_weights", {"scale_attn_weights": False}),
            Case("n_inner", {"n_inner": None, "tie_word_embeddings": True}, why="4 n_embd"),
            TIED,
            Rewrite("hub", "base", older_with(n_ctx=32, inference_runner=0, pad_key_length=True, pre_allocate_kv_cache=False,
                                              max_batch_size=None, max_sequence_length=None, validate_runner_input=True)),
            Rewrite("defaults", "n_inner", keep("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")),
        ],
        shape_keys=["vocab_size", "n_embd", "n_layer", "n_head", "n_inner", "n_positions"],
        gguf={"base": "starcoder", "n_inner": "starcoder"},
        precision=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
        missing="transformer.h.1.attn.c_attn.bias",
        rejects=[{"name": "add_cross_attention", "set": {"add_cross_attention": True}, "expect": "add_cross_attention"}],
    )


def codegen_hub(tensors):
    result = dict(tensors)
    for layer in range(2):
        result[f"transformer.h.{layer}.attn.causal_mask"] = torch.ones(32, 32).tril()[None, None]
    return result


def codegen():
    return Family(
        name="codegen",
        model_type="codegen",
        architecture="CodeGenForCausalLM",
        gains={"mlp.fc_in.weight": 2.0},
        settings=dict(vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=32, n_inner=24, rotary_dim=4, bos_token_id=1,
                      eos_token_id=2),
        cases=[
            Case("base"),
            Case("rotary_dim", {"rotary_dim": 2}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("n_inner", {"n_inner": None}, why="4 n_embd"),
            TIED,
            Rewrite("hub", "base", older_with(rotary=True, scale_attn_weights=True, gradient_checkpointing=False, n_ctx=32),
                    codegen_hub, why="mask buffers, keys of the first files"),
            Rewrite("defaults", "n_inner", keep("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "rotary_dim")),
        ],
        shape_keys=["vocab_size", "n_embd", "n_layer", "n_head", "n_inner"],
        missing="transformer.h.1.mlp.fc_in.bias",
    )


MIXED = dict(
    SMALL,
    moe_intermediate_size=12,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
)
MIXED_SHAPES = HEADS + ["n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace"]


def balanced(**grouped):
    """What changes the choice and the weights of experts as DeepSeek V3 has them."""
    return [
        Case("first_k_dense_replace", {"first_k_dense_replace": 2}, why="all layers are dense"),
        Case("first_k_dense_replace_none", {"first_k_dense_replace": 0}),
        Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
        Case("norm_topk_prob", {"norm_topk_prob": False}),
        Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
        Case("n_shared_experts", {"n_shared_experts": 2}),
        Case("n_group", {"n_group": 2, "topk_group": 1}, why="of two groups the better one"),
        Case("topk_group", {"topk_group": 2}, of="n_group", why="every group offers candidates"),
        Rewrite("num_local_experts", "base", without("n_routed_experts", num_local_experts=4), why="its other name"),
    ]


def glm4_moe():
    return dense(
        "glm4_moe", "Glm4Moe", {**MIXED, "num_mtp_layers": 0},
        [BIAS, Case("use_qk_norm", {"use_qk_norm": True}), NARROW, TIED, *balanced()],
        rotary=4, share=0.5, classes=False, shapes=MIXED_SHAPES, left=("num_experts_per_tok", "pad_token_id"), gguf="glm4moe",
        missing="mlp.shared_experts.down_proj.weight",
    )


def dots1():
    slides = {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
    return dense(
        "dots1", "Dots1", MIXED,
        [
            BIAS, WIDER, TIED, *balanced(),
            Case("sliding_window", slides),
            Case("sliding_window_width", {"sliding_window": 3}, of="sliding_window"),
            Rewrite("max_window_layers", "sliding_window", without("layer_types", max_window_layers=1), why="by the index of a layer"),
        ],
        classes=False, shapes=MIXED_SHAPES, left=("num_experts_per_tok",), gguf="dots1", missing="self_attn.q_norm.weight",
    )


def ernie4_5_moe():
    settings = dict(
        SMALL, moe_intermediate_size=12, moe_k=2, moe_num_experts=4, moe_num_shared_experts=1, moe_layer_start_index=1, tie_word_embeddings=False
    )
    return dense(
        "ernie4_5_moe", "Ernie4_5_Moe", settings,
        [
            Case("use_bias", {"use_bias": True}),
            WIDER, TIED,
            Case("moe_k", {"moe_k": 3}),
            Case("moe_num_shared_experts", {"moe_num_shared_experts": 2}),
            Case("moe_num_shared_experts_none", {"moe_num_shared_experts": 0}),
            Case("moe_layer_start_index", {"moe_layer_start_index": 0}),
            Case("moe_layer_interval", {"moe_layer_interval": 2}, of="moe_layer_start_index"),
            Case("moe_layer_end_index", {"moe_layer_end_index": 0}, of="moe_layer_start_index"),
        ],
        gguf="ernie4_5-moe", classes=False, shapes=HEADS + ["moe_num_experts", "moe_intermediate_size"], left=("moe_k", "moe_num_shared_experts"),
        missing="mlp.shared_experts.down_proj.weight",
    )


GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.7, "logits_scaling": 0.5}
FACTORS = [Case(key, {key: 1.0}) for key in GRANITE]


def granitemoeshared():
    settings = {**GRANITE, "head_dim": "absent", "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 20, "intermediate_size": 12}
    family = dense(
        "granitemoeshared", "GraniteMoeShared", settings,
        [
            BIAS, TIED, *FACTORS,
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("shared_intermediate_size", {"shared_intermediate_size": 0}, why="no shared expert"),
        ],
        rotary=4, classes=False, shapes=SHAPES_GQA + ["num_local_experts", "shared_intermediate_size"], gguf="granitemoe",
        missing="shared_mlp.output_linear.weight", gains={"model.norm.weight": 1},
    )
    family.gguf["every_llama3"] = "granitemoe"
    family.rejects.append({"name": "head_dim", "set": {"head_dim": 8}, "expect": "q_proj",
                           "why": "the width of a head is read where it is there: shapes disagree"})
    return family


def granitemoehybrid():
    settings = {
        **GRANITE, "head_dim": "absent", "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 20, "intermediate_size": 12,
        "layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 4, "mamba_expand": 1,
        "mamba_chunk_size": 8, "position_embedding_type": "rope",
    }
    family = dense(
        "granitemoehybrid", "GraniteMoeHybrid", settings,
        [
            BIAS, TIED, *FACTORS,
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("num_local_experts_none", {"num_local_experts": 0}, why="the shared layer alone"),
            Case("position_embedding_type", {"position_embedding_type": None}, why="no positions"),
            Case("released", {"position_embedding_type": None, "num_local_experts": 0, "mamba_n_groups": 1, **rope(10000.0)}),
            Case("layer_types", {"layer_types": ["full_attention", "linear_attention"]}),
            Case("implied", {"mamba_chunk_size": 256}, neutral=True, why="as where a file does not say it"),
            Case("mamba_n_groups", {"mamba_n_groups": 1}),
            Case("mamba_n_heads", {"mamba_n_heads": 2}),
            Case("mamba_conv_bias", {"mamba_conv_bias": False}),
            Case("mamba_proj_bias", {"mamba_proj_bias": True}),
            Case("time_step_limit", {"time_step_limit": [0.4, 0.9]}),
            Rewrite("hub", "position_embedding_type", lambda c: {**{k: v for k, v in c.items() if k not in ("rope_parameters",)},
                    "position_embedding_type": "nope", "rope_theta": 10000, "rope_scaling": None, "normalization_function": "rmsnorm", "init_method": "mup",
                    "layer_types": ["mamba", "attention"]}, why="the released files"),
            Rewrite("layers_block_type", "base", lambda c: {**{k: v for k, v in c.items() if k != "layer_types"}, "layers_block_type": ["mamba", "attention"]}),
        ],
        acts=(), rotary=4, classes=False,
        shapes=SHAPES_GQA + ["num_local_experts", "shared_intermediate_size", "mamba_d_state", "mamba_d_conv", "mamba_expand"],
        left=("layer_types", "mamba_n_heads", "mamba_n_groups"),
        missing="shared_mlp.output_linear.weight", gains={"model.norm.weight": 1}, padding="none",
    )
    family.rejects.append(HYBRID_ACT)
    family.gguf = {case: "granitehybrid" for case in ("implied", "released", "num_local_experts_none")}
    return family


def delta_hybrid(name, prefix, settings, cases, shapes, gguf):
    """Qwen3.5: gated DeltaNet, and attention with a gate; a quarter of a head rotates."""
    quiet = {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
    delta = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=4)
    types = ["linear_attention", "full_attention"]
    family = dense(
        name, prefix, {**settings, **delta, "layer_types": types, "head_dim": 16},
        [
            Case("layer_types", {"layer_types": types[::-1]}),
            Case("linear_num_key_heads", {"linear_num_key_heads": 4}),
            Case("linear_value_head_dim", {"linear_value_head_dim": 6}),
            Case("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 3}),
            Case("all_attention", {"layer_types": types[1:] * 2}),
            Case("hidden_act", {"hidden_act": "gelu"}, of="all_attention"),
            TIED,
            *cases,
            Rewrite("full_attention_interval", "base", without("layer_types", full_attention_interval=2), why="every second layer"),
            Rewrite("modules", "base", without(mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False), with_mtp(name), ahead=True,
                    why="a module for the token after the next"),
            Rewrite("mrope", "base", lambda c: {**c, "rope_parameters": {**c["rope_parameters"], **quiet}}, why="three positions of a text are one"),
        ],
        acts=(), rotary=4, share=0.25, classes=False, shapes=shapes, left=("linear_num_key_heads", "linear_num_value_heads",
        "linear_key_head_dim", "linear_value_head_dim", "layer_types"), zero_centred_norms=True,
        missing="self_attn.q_norm.weight",
    )
    family.gguf = {case: gguf for case in ROPES + ("linear_num_key_heads", "layer_types")}
    family.rejects += [{"name": "bias", "set": {"attention_bias": True}, "expect": "attention_bias"}, HYBRID_ACT]
    return family


DELTA_SHAPES = ["linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"]


def inside_images(config):
    """The text model's config in a file that reads images, too."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version", "dtype")}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text, "image_token_id": 30,
        "video_token_id": 31, "vision_start_token_id": 28, "vision_end_token_id": 29, "tie_word_embeddings": False, "vision_config": {"depth": 2},
    }


def inside_names(tensors):
    result = {("model.language_model." + n.removeprefix("model.") if n.startswith("model.") else n): v for n, v in tensors.items()}
    return {**result, "model.visual.merger.norm.weight": torch.ones(3)}


def qwen3_5_text():
    inside = Rewrite("inside", "base", inside_images, inside_names, reference_refuses="the class that reads images wants its tower",
                     why="inside an image-and-text file")
    return delta_hybrid("qwen3_5_text", "Qwen3_5", {}, [inside], HEADS + DELTA_SHAPES, "qwen35")


def fused_experts(tensors):
    """Experts of a layer in two stacks, as the released files have them."""
    result = {n: v for n, v in tensors.items() if ".experts." not in n}
    for layer in range(2):
        stem = f"model.layers.{layer}.mlp.experts"
        parts = {p: torch.stack([tensors[f"{stem}.{e}.{p}_proj.weight"] for e in range(4)]) for p in ("gate", "up", "down")}
        result[f"{stem}.gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1).contiguous()
        result[f"{stem}.down_proj"] = parts["down"].contiguous()
    return result


def fused_module(tensors):
    """The same of the module for the token after the next."""
    stem = "mtp.layers.0.mlp.experts"
    result = {n: v for n, v in tensors.items() if not n.startswith(stem)}
    parts = {p: torch.stack([tensors[f"{stem}.{e}.{p}_proj.weight"] for e in range(4)]) for p in ("gate", "up", "down")}
    return {**result, f"{stem}.gate_up_proj": torch.cat([parts["gate"], parts["up"]], dim=1).contiguous(), f"{stem}.down_proj": parts["down"].contiguous()}


def qwen3_5_moe_text():
    settings = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=10)
    cases = [
        Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
        Rewrite("fused", "base", None, fused_experts, why="stacks of experts"),
    ]
    family = delta_hybrid(
        "qwen3_5_moe_text", "Qwen3_5Moe", settings, cases,
        HEADS + DELTA_SHAPES + ["num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"], "qwen35moe",
    )
    family.cases.append(Rewrite("modules_fused", "modules", None, fused_module, ahead=True, why="its experts in two stacks"))
    for case in family.cases:
        if case.name == "defaults":
            case.config = keep(*family.shape_keys, "linear_num_key_heads", "layer_types", "num_experts_per_tok")
    return family


def inside_mistral3(config):
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version", "dtype")}
    return {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text, "vision_config": {"depth": 2},
            "image_token_index": 10, "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1}


def language_names(tensors):
    result = {f"language_model.{n}": v for n, v in tensors.items()}
    return {**result, "vision_tower.ln_pre.weight": torch.ones(3), "multi_modal_projector.norm.weight": torch.ones(3)}


def ministral3():
    grown = dict(llama_4_scaling_beta=0.7, original_max_position_embeddings=5)
    family = dense(
        "ministral3", "Ministral3", rope(**grown),
        [
            Case("llama_4_scaling_beta", rope(**{**grown, "llama_4_scaling_beta": 0.2})),
            Case("original_max_position_embeddings", rope(**{**grown, "original_max_position_embeddings": 9})),
            Case("sliding_window", {"sliding_window": 5}),
            WIDER,
            TIED,
            Rewrite("inside", "base", inside_mistral3, language_names, reference_refuses="the class that reads images wants its tower",
                    why="inside an image-and-text file"),
        ],
        whole=False,
    )
    for case in family.cases:  # what grows stands among the parameters of the rope
        changes = getattr(case, "changes", {}).get("rope_parameters")
        if changes and case.name not in ("llama_4_scaling_beta", "original_max_position_embeddings"):
            changes.update({k: v for k, v in grown.items() if k not in changes})
    return family


def apertus():
    family = dense(
        "apertus", "Apertus", {}, [BIAS, WIDER, TIED], acts=("gelu", "silu"), classes=False,
        missing="mlp.up_proj.weight", left=("pad_token_id",), whole=False,
    )
    family.cases.append(
        Case("token_classifier", {"num_labels": 5, "num_hidden_layers": 1}, architecture="ApertusForTokenClassification", text=False,
             why="classes of every token, with a bias")
    )
    return family


def lfm2():
    settings = {
        "head_dim": "absent", "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"], "tie_word_embeddings": False,
    }
    family = dense(
        "lfm2", "Lfm2", settings,
        [
            TIED,
            Case("layer_types", {"layer_types": ["full_attention", "conv"]}),
            Case("all_attention", {"layer_types": ["full_attention"] * 2}),
            Case("no_attention", {"layer_types": ["conv"] * 2}),
            Case("conv_L_cache", {"conv_L_cache": 4}),
            Case("conv_bias", {"conv_bias": True}),
            Case("block_auto_adjust_ff_dim", {"block_auto_adjust_ff_dim": True, "intermediate_size": 27, "block_multiple_of": 4}, why="18, up to 20"),
            Case("block_ffn_dim_multiplier", {"block_ffn_dim_multiplier": 1.5}, of="block_auto_adjust_ff_dim", why="27, up to 28"),
            Case("block_multiple_of", {"block_multiple_of": 7}, of="block_auto_adjust_ff_dim", why="18, up to 21"),
            Rewrite("hub", "tie_word_embeddings", lambda c: {
                **{k: v for k, v in c.items() if k not in ("rope_parameters", "layer_types", "intermediate_size", "tie_word_embeddings")},
                "rope_theta": 1000.0, "full_attn_idxs": [1], "block_ff_dim": c["intermediate_size"], "tie_embedding": True, "block_dim": 16,
                "num_heads": 4, "block_norm_eps": 1e-5, "block_use_swiglu": True, "conv_dim": 16, "conv_dim_out": 16, "use_pos_enc": True}, why="the released files"),
        ],
        acts=(), eps="norm_eps", rotary=4, classes=False, shapes=SHAPES_GQA, left=("layer_types", "block_auto_adjust_ff_dim"),
        missing="feed_forward.w2.weight", padding="none",
    )
    for case in family.cases:
        if case.name == "defaults":
            case.of = "tie_word_embeddings"
    family.gguf = {case: "lfm2" for case in ROPES}
    family.rejects.append({
        "expect": "lm_head.weight", "name": "tie_embedding", "unset": ["tie_word_embeddings"], "set": {"tie_embedding": False},
        "drop_tensor": "lm_head.weight", "why": "its first name: without it the head would be tied",
    })
    return family


def glm4_moe_lite():
    settings = {
        **{k: v for k, v in MIXED.items() if k != "first_k_dense_replace"}, "num_key_value_heads": 4, "head_dim": "absent", "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 8, "mlp_layer_types": ["dense", "sparse"],
    }
    return dense(
        "glm4_moe_lite", "Glm4MoeLite", settings,
        [
            BIAS, TIED,
            *[case for case in balanced() if not case.name.startswith("first_k")],
            Case("mlp_layer_types", {"mlp_layer_types": ["sparse", "sparse"]}),
            Case("mlp_layer_types_dense", {"mlp_layer_types": ["dense", "dense"]}),
            Rewrite("first_k_dense_replace", "mlp_layer_types", without("mlp_layer_types", first_k_dense_replace=0), reference_refuses="this version reads mlp_layer_types", why="as the first files have it"),
            Case("rope_interleave", {"rope_interleave": False}),
            Case("q_lora_rank", {"q_lora_rank": None}),
            Case("rope_yarn_mscale_all_dim", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)),
        ],
        rotary=4, classes=False,
        shapes=SHAPES + ["num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_key_value_heads",
                         "n_routed_experts", "n_shared_experts", "moe_intermediate_size"],
        left=("num_experts_per_tok", "q_lora_rank"), missing="self_attn.kv_b_proj.weight", whole=False,
    )


def base_text(family):
    """A family in which only the base, and what has class defaults, has a greedy text: it varies, and a variation's logits say the rest."""
    for case in family.cases:
        if isinstance(case, Case) and case.name != "base":
            case.text = False
    return family


FAMILIES = [base_text(make()) for make in (
    gemma, granite, glm, glm4, olmo, ministral, arcee, starcoder2, seed_oss, ernie4_5, helium, nemotron, persimmon, exaone4, olmo3,
    gpt_bigcode, codegen, glm4_moe, dots1, ernie4_5_moe, granitemoeshared, granitemoehybrid,
    qwen3_5_text, qwen3_5_moe_text, ministral3, apertus, lfm2, glm4_moe_lite,
)]
FEW_TOKENS = {}
