"""Cases of types that differ from those of the other tables in a few parts, with the helpers of these tables."""

import torch

from family_cases import GQA, SHAPES, SHAPES_GQA, TINY, Case, Family, Rewrite, dynamic_rope, every_rope, keep, named_classes, neox_at_top, rope, without
from family_cases_decoders import BIAS, HEADS, MLP_BIAS, SMALL, TIED, UNTIED, WIDER, base_text, dense
from family_cases_decoders_late import PLAIN
from family_cases_decoders_more import MORE, NARROWER, SLIDES, TURNED
from family_cases_encoders import ENCODER, two_ropes
from family_cases_gemma import DENSE, FULL, SAME, SLIDING, inside, released, ropes

EPS = Case("rms_norm_eps", {"rms_norm_eps": 0.05})
GELU = Case("hidden_act_gelu", {"hidden_act": "gelu"})
BASE = Case("rope_theta", rope(50.0))
WEIGHTS = Case("norm_topk_prob", {"norm_topk_prob": False})
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10, "norm_topk_prob": True}
EXPERT_SHAPES = ["num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"]


def flint():
    return dense(
        "flint", "Flint", {**EXPERTS, **SLIDES, "mlp_only_layers": [0]},
        [
            BIAS, TIED, NARROWER, TURNED, MORE, WEIGHTS, WIDER, Case("mlp_only_layers", {"mlp_only_layers": []}), Case("all_dense", {"mlp_only_layers": [0, 1]}),
            Case("decoder_sparse_step", {"mlp_only_layers": [], "decoder_sparse_step": 2}, of="mlp_only_layers", why="every second layer"),
            Case("four_layers", {"num_hidden_layers": 4, "mlp_only_layers": [0, 1], "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]}),
            Rewrite("layer_types_absent", "four_layers", without("layer_types", "mlp_only_layers"), why="the first two layers and the last one see all"),
            Rewrite("class_names", "base", None, lambda tensors: {n.replace("softmax_offset", "sinks"): v for n, v in tensors.items()}, why="names of the class"),
        ],
        classes=False, shapes=HEADS + EXPERT_SHAPES, left=("num_experts_per_tok", "mlp_only_layers"), missing="self_attn.softmax_offset",
    )


def aria_classes(tensors):
    """Names of the class."""
    return {n.replace("experts.fc1.weight", "experts.gate_up_proj").replace("experts.fc2.weight", "experts.down_proj"): v for n, v in tensors.items()}


def aria_text():
    return dense(
        "aria_text", "AriaText", {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2, "intermediate_size": 12, "pretraining_tp": 1},
        [
            BIAS, MLP_BIAS, TIED, WIDER, Case("moe_topk", {"moe_topk": 3}), Case("moe_num_shared_experts", {"moe_num_shared_experts": 1}),
            Rewrite("class_names", "base", None, aria_classes, why="names of the class"),
        ],
        classes=False, shapes=HEADS + ["moe_num_experts", "moe_num_shared_experts"], left=("moe_topk", "pad_token_id"), missing="mlp.shared_experts.down_proj.weight",
    )


def parted(tensors):
    """The recurrence's projections and its norm as the class has them."""
    result = {}
    for name, value in tensors.items():
        if name.endswith("linear_attn.in_proj.weight"):
            q, k, v, z, b, a = value.split([8, 8, 16, 16, 4, 4])
            stem = name.removesuffix(".weight")
            result.update({f"{stem}_qkv.weight": torch.cat([q, k, v]), f"{stem}_z.weight": z.clone(), f"{stem}_b.weight": b.clone(), f"{stem}_a.weight": a.clone()})
        else:
            result[name.replace("linear_attn.out_norm", "linear_attn.norm")] = value
    return result


def lara_mini():
    types = ["linear_attention", "sliding_attention", "full_attention"]
    delta = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=4)
    sizes = [name for name in HEADS if name != "intermediate_size"] + EXPERT_SHAPES + list(delta)
    whole = ["linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"]
    family = dense(
        "lara_mini", "LaraMini", {**EXPERTS, **delta, "intermediate_size": "absent", "num_hidden_layers": 3, "layer_types": types, "sliding_window": 6, "tie_word_embeddings": False},
        [
            BIAS, TIED, NARROWER, WIDER, MORE, WEIGHTS, Case("layer_types", {"layer_types": types[::-1]}), Case("linear_num_key_heads", {"linear_num_key_heads": 4}),
            Case("linear_value_head_dim", {"linear_value_head_dim": 6}), Case("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 3}),
            Case("all_attention", {"layer_types": types[1:] + types[1:2]}), Case("hidden_act", {"hidden_act": "gelu"}, of="all_attention"),
            Case("five_layers", {"num_hidden_layers": 5, "layer_types": whole}), Rewrite("layer_types_absent", "five_layers", without("layer_types"), why="the released pattern"),
            Rewrite("class_names", "base", None, parted, why="projections as the class parts them"),
        ],
        acts=(), classes=False, shapes=sizes, left=("num_experts_per_tok", "layer_types"), missing="linear_attn.A_log",
    )
    family.missing = "model.layers.0.linear_attn.A_log"
    family.rejects.append({"name": "hidden_act", "set": {"hidden_act": "gelu"}, "expect": "hidden_act", "why": "of the recurrence too, which computes silu alone"})
    return family


def older_japanese(config):
    """rotary_pct and rotary_emb_base."""
    result = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    given = config["rope_parameters"]
    return {**result, "rotary_pct": given["partial_rotary_factor"], "rotary_emb_base": given["rope_theta"], "torch_dtype": "float32"}


def gpt_neox_japanese():
    def part(share, theta=1000.0, **more):
        return rope(theta, partial_rotary_factor=share, **more)

    sizes = [name for name in SHAPES if name != "intermediate_size"] + ["num_attention_heads", "intermediate_multiple_size"]
    settings = {k: v for k, v in TINY.items() if k != "intermediate_size"}
    return Family(
        name="gpt_neox_japanese",
        model_type="gpt_neox_japanese",
        architecture="GPTNeoXJapaneseForCausalLM",
        settings={**settings, **part(0.5), "vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "intermediate_multiple_size": 2, "tie_word_embeddings": False},
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("rope_theta", part(0.5, 50.0)),
            Case("partial_rotary_factor", part(1.0)),
            *every_rope(4, share=0.5, top=neox_at_top),
            dynamic_rope(partial_rotary_factor=0.5),
            Case("hidden_act_relu", {"hidden_act": "relu"}),
            Case("intermediate_multiple_size", {"intermediate_multiple_size": 3}),
            Case("num_attention_heads", {"num_attention_heads": 4}),
            TIED,
            Rewrite("v4", "base", older_japanese, why="rotary_pct and rotary_emb_base"),
            Rewrite("v4_whole", "partial_rotary_factor", older_japanese, why="rotary_pct and rotary_emb_base"),
            Rewrite("defaults", "tie_word_embeddings", keep(*sizes), same_result=False, why="theta 10000, whole heads"),
        ],
        shape_keys=sizes,
        missing="gpt_neox_japanese.layers.1.attention.dense_bias",
    )


def older_modernbert(config):
    """Two bases and a period in the place of lists."""
    result = {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types")}
    for kind, name in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        result[name] = config["rope_parameters"][kind]["rope_theta"]
    return {**result, "global_attn_every_n_layers": 3}


def modernbert_decoder():
    small = {"num_hidden_layers": 2}
    return Family(
        name="modernbert_decoder",
        model_type="modernbert-decoder",
        architecture="ModernBertDecoderForCausalLM",
        settings={
            **{k: v for k, v in ENCODER.items() if k != "num_attention_heads"}, "num_attention_heads": 2, "num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 1, "sep_token_id": 2,
            "bos_token_id": 1, "eos_token_id": 2, **two_ropes(1000.0, 100.0),
        },
        cases=[
            Case("base"),
            Case("num_attention_heads", {"num_attention_heads": 4}),
            Case("norm_eps", {"norm_eps": 0.05}),
            Case("norm_bias", {"norm_bias": True}),
            Case("attention_bias", {"attention_bias": True, **small}),
            Case("mlp_bias", {"mlp_bias": True, **small}),
            Case("hidden_activation_relu", {"hidden_activation": "relu"}),
            Case("local_attention", {"local_attention": 10}),
            Case("local_attention_odd", {"local_attention": 7}, neutral=True, why="half of it, rounded down"),
            Case("global_theta", two_ropes(50.0, 100.0)),
            Case("local_theta", two_ropes(1000.0, 10.0)),
            Case("layer_types", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
            Case("classifier_activation", {"classifier_activation": "relu"}),
            Case("classifier_bias", {"classifier_bias": True, **small}),
            Case("decoder_bias", {"decoder_bias": False}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("body", small, architecture="ModernBertDecoderModel", text=False, why="bare names, last_hidden_state"),
            Case("classifier", {"num_labels": 3, **small}, architecture="ModernBertDecoderForSequenceClassification", text=False, why="a layer with a norm before the classes of a row"),
            Case("classifier_biased", {"classifier_bias": True}, of="classifier", architecture="ModernBertDecoderForSequenceClassification", text=False, why="biases of that layer and of the classes"),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            Rewrite("hub", "base", older_modernbert, why="two bases and a period"),
            Rewrite("older_thetas", "base", lambda c: {**older_modernbert(c), "global_rope_theta": 70.0, "local_rope_theta": 7.0}, same_result=False, why="two bases at the top"),
            Rewrite("period", "layer_types", lambda c: {**older_modernbert(c), "global_attn_every_n_layers": 2}, why="every second layer sees all"),
            Rewrite("defaults", "base", keep(*SHAPES, "num_attention_heads", "max_position_embeddings", "pad_token_id"), same_result=False, why="a window of 64, bases of 160000 and 10000"),
        ],
        shape_keys=SHAPES,
        missing="model.layers.1.attn.Wo.weight",
        rejects=[{"name": "rope_type", "set": {"rope_parameters.full_attention.rope_type": "linear"}, "expect": "rope_type"}],
    )


def inside_unified(config):
    """The text model's config in a multimodal file without towers."""
    kept = inside(config)
    del kept["vision_soft_tokens_per_image"]
    return {**kept, "architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified",
            "vision_config": {"model_type": "gemma4_unified_vision"}, "audio_config": {"model_type": "gemma4_unified_audio"}}


def inside_unified_names(tensors):
    result = {"model.language_model." + n.removeprefix("model."): v for n, v in tensors.items()}
    result.update({f"model.{name}.weight": torch.ones(3, 3) for name in ("embed_vision.patch_dense", "embed_audio.embedding_projection")})
    return result


def gemma4_unified_text():
    whole = {key: SAME[key] for key in ("attention_k_eq_v", "num_global_key_value_heads")}
    return Family(
        name="gemma4_unified_text",
        model_type="gemma4_unified_text",
        architecture="Gemma4UnifiedForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **GQA, **ropes(), "num_hidden_layers": 5, "head_dim": 12, "global_head_dim": 16, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL], "sliding_window": 6, **whole,
        },
        cases=[
            Case("base", why="as 12B: values of full layers are their keys, of fewer heads"),
            Case("values", {"attention_k_eq_v": False, "num_global_key_value_heads": None}, why="with values of their own"),
            Case("num_kv_shared_layers", {"num_kv_shared_layers": 2, "rms_norm_eps": 0.05}, of="values",
                 why="two layers that read the keys and values of earlier ones; a large eps, since norms scale up small numbers with their rounding errors"),
            Case("use_double_wide_mlp", {"use_double_wide_mlp": True}, of="num_kv_shared_layers"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_activation_gelu", {"hidden_activation": "gelu"}),
            Case("hidden_activation_relu", {"hidden_activation": "relu"}),
            Case("rope_theta", ropes(full=50.0)),
            Case("rope_theta_sliding", ropes(sliding=50.0)),
            Case("partial_rotary_factor", ropes(full_kind={"rope_type": "proportional", "partial_rotary_factor": 0.25})),
            Case("rope_default", ropes(full_kind={"rope_type": "default"})),
            Case("rope_linear", ropes(full_kind={"rope_type": "linear", "factor": 8.0})),
            Case("rope_linear_sliding", ropes(sliding_kind={"rope_type": "linear", "factor": 8.0})),
            Case("rope_proportional_sliding", ropes(sliding_kind={"rope_type": "proportional", "partial_rotary_factor": 0.5})),
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": [SLIDING, FULL, SLIDING, FULL, FULL]}),
            Case("layer_types_default", {"layer_types": [SLIDING] * 4 + [FULL]}),
            Case("use_bidirectional_attention", {"use_bidirectional_attention": "all"}, why="a window of w holds w // 2 + 1 tokens on either side"),
            Case("bidirectional_vision", {"use_bidirectional_attention": "vision"}, neutral=True, why="of tokens of images alone"),
            Case("attention_bias", {"attention_bias": True}),
            Case("final_logit_softcapping", {"final_logit_softcapping": 6.0}),
            Case("global_head_dim", {"global_head_dim": 8}),
            Case("num_global_key_value_heads", {"num_global_key_value_heads": None}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite("released", "base", released(global_head_dim=16, num_global_key_value_heads=1), why="keys of the first files"),
            Rewrite("released_values", "values", released(global_head_dim=16, num_global_key_value_heads=None), why="keys of the first files"),
            Rewrite("last_layer", "base", lambda c: {**c, "layer_types": c["layer_types"][:-1] + [SLIDING]}, why="the last layer sees all whatever the list says"),
            Rewrite("layer_types_absent", "layer_types_default", without("layer_types"), why="five of six slide, and the last does not"),
            Rewrite("inside", "base", inside_unified, inside_unified_names, reference_refuses="the multimodal class wants the embedders of its inputs", why="inside a multimodal file"),
            Rewrite("defaults", "base", keep("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "per_layer_config",
                                             "layer_types", "attention_k_eq_v", "pad_token_id"), same_result=False, why="thetas 1e6 and 1e4, a quarter of the pairs, window 1024"),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        missing="model.layers.2.self_attn.k_norm.weight",
        rejects=[
            {"name": "one_rope", "unset": ["rope_parameters"], "set": {"rope_parameters.rope_theta": 2000.0, "rope_parameters.rope_type": "default"}, "expect": "rope_parameters without full_attention",
             "why": "one set of parameters, where each type of layers has its own"},
            {"name": "proportional_factor", "set": {"rope_parameters.full_attention.factor": 2.0}, "expect": "rope_type proportional with a factor"},
            {"name": "per_layer_config", "set": {"per_layer_config.2.num_attention_heads": 2}, "expect": "per_layer_config changes more than"},
            {"name": "is_causal", "set": {"is_causal": False}, "expect": "is_causal does not agree"},
        ],
    )


def compass_ropes(full=None, sliding=1000.0, **more):
    """Of the two types of layers; null is no positions."""
    return {"rope_parameters": {"full_attention": None if full is None else {"rope_type": "default", "rope_theta": full}, "sliding_attention": {"rope_type": "default", "rope_theta": sliding, **more}}}


def cohere_compass_text():
    slides = {k: v for k, v in PLAIN.items()}
    return Family(
        name="cohere_compass_text",
        model_type="cohere_compass_text",
        architecture="CohereCompassForCausalLM",
        settings={**slides, **compass_ropes(), **SLIDES, "logit_scale": 0.5},
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            GELU, BIAS, UNTIED, NARROWER, TURNED,
            Case("logit_scale", {"logit_scale": 0.25}),
            Case("logit_scale_null", {"logit_scale": None}, why="logits as they are"),
            Case("rope_theta_sliding", compass_ropes(sliding=50.0)),
            Case("rope_full", compass_ropes(2000.0), why="positions in both types of layers"),
            Case("rope_theta", compass_ropes(50.0), of="rope_full"),
            Case("rope_linear_sliding", compass_ropes(rope_type="linear", factor=4.0)),
            Case("rope_linear", {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 4.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}, of="rope_full"),
            Case("all_full", {"layer_types": ["full_attention"] * 2}, of="rope_full"),
            Rewrite("layer_types_absent", "all_full", without("layer_types"), why="every layer sees all"),
            Rewrite("mrope", "rope_full", lambda c: {**c, "rope_parameters": {k: {**v, "mrope_section": [2, 1, 1], "mrope_interleaved": True} for k, v in c["rope_parameters"].items()}},
                    why="three positions of a text are one"),
            Rewrite("dangling", "rope_full", lambda c: {**c, "rope_parameters": {**c["rope_parameters"], "rope_theta": 5.0, "rope_type": "default"}}, why="a first config"),
            Rewrite("defaults", "all_full", keep(*SHAPES_GQA, "pad_token_id", "rope_parameters"), same_result=False, why="logits as they are"),
        ],
        shape_keys=SHAPES_GQA,
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[
            {"name": "rope_parameters", "unset": ["rope_parameters"], "expect": "rope_parameters", "why": "parameters, or null, of each type"},
            {"name": "rope_type", "set": {"rope_parameters.sliding_attention.rope_type": "yarn"}, "expect": "rope_type", "why": "no released checkpoint has it"},
            {"name": "share_full", "base": "rope_linear", "set": {"rope_parameters.full_attention.partial_rotary_factor": 0.5}, "expect": "partial_rotary_factor", "why": "shapes disagree"},
            {"name": "share_sliding", "base": "rope_linear_sliding", "set": {"rope_parameters.sliding_attention.partial_rotary_factor": 0.5}, "expect": "partial_rotary_factor",
             "why": "shapes disagree"},
        ],
    )


def kolibri1():
    settings = {**EXPERTS, **SLIDES, "intermediate_size": "absent"}
    whole = ["sliding_attention"] * 4 + ["full_attention"]
    family = dense(
        "kolibri1", "Kolibri1", settings,
        [
            TIED, NARROWER, TURNED, MORE, WEIGHTS, WIDER,
            Case("five_layers", {"num_hidden_layers": 5, "layer_types": whole}), Rewrite("layer_types_absent", "five_layers", without("layer_types"), why="every fifth layer sees all"),
            Rewrite("class_names", "base", None, kolibri_classes, why="names of the class"),
            Rewrite("num_experts", "base", without("num_local_experts", num_experts=4), why="its other name"),
        ],
        classes=False, shapes=[name for name in HEADS if name != "intermediate_size"] + ["num_local_experts", *EXPERT_SHAPES[1:]], left=("num_experts_per_tok",), missing="self_attn.q_norm.weight",
    )
    family.rejects.append({"name": "sliding_window", "set": {"sliding_window": None}, "expect": "sliding_window", "why": "the class fails"})
    return family


def kolibri_classes(tensors):
    names = {"moe.router.expert_bias": "mlp.gate.e_score_correction_bias", "post_attn_norm": "post_self_attn_layernorm", "post_ffn_norm": "post_mlp_layernorm"}
    result = {}
    for name, value in tensors.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        result[name] = value
    return result


def ultra_names(tensors):
    """Names of the class."""
    return {("head.decoder.weight" if n == "cls.weight" else "model." + n.removeprefix("ultrabert.") if n.startswith("ultrabert.") else n): v for n, v in tensors.items()}


def ultra_hub(config):
    """Windows and bases of all layers in lists."""
    kept = {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types", "sliding_window")}
    types, ropes = config["layer_types"], config["rope_parameters"]
    return {**kept, "attention_windows": [config["sliding_window"] if t == "sliding_attention" else None for t in types], "rope_theta": [ropes[t]["rope_theta"] for t in types]}


def ultrabert():
    small = {"num_hidden_layers": 2}
    sizes = [*SHAPES_GQA, "head_dim", "prediction_head_size"]
    return Family(
        name="ultrabert",
        model_type="ultrabert",
        architecture="UltrabertForMaskedLM",
        settings={
            **{k: v for k, v in ENCODER.items() if k != "num_attention_heads"}, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "num_hidden_layers": 3, "sliding_window": 3,
            "prediction_head_size": 10, "bos_token_id": 1, "eos_token_id": 2, **two_ropes(1000.0, 100.0),
        },
        cases=[
            Case("base"),
            EPS, GELU, BIAS, MLP_BIAS, TIED,
            Case("head_dim", {"head_dim": 8}),
            Case("num_attention_heads", {"num_attention_heads": 4}),
            Case("sliding_window", {"sliding_window": 5}),
            Case("rope_theta", two_ropes(50.0, 100.0)),
            Case("rope_theta_sliding", two_ropes(1000.0, 10.0)),
            Case("layer_types", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
            Case("prediction_head_size", {"prediction_head_size": 14}),
            Case("body", small, architecture="UltrabertModel", why="bare names, last_hidden_state"),
            Case("classifier", {"num_labels": 3, **small}, architecture="UltrabertForSequenceClassification", why="classes of a row by its first token"),
            Case("classifier_mean", {"classifier_pooling": "mean"}, of="classifier", architecture="UltrabertForSequenceClassification", why="by the mean of its tokens"),
            Case("token_classifier", {"num_labels": 5, **small}, architecture="UltrabertForTokenClassification", why="classes of every token"),
            Case("questions", small, architecture="UltrabertForQuestionAnswering", why="the first and the last token of an answer"),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            Rewrite("class_names", "base", None, ultra_names, why="names of the class"),
            Rewrite("hub", "base", ultra_hub, why="windows and bases of all layers"),
            Rewrite("layer_types_absent", "base", without("layer_types"), why="every third layer sees all"),
            Rewrite("defaults", "base", keep(*sizes, "pad_token_id"), same_result=False, why="a radius of 128, bases of 2560000 and 10000"),
        ],
        shape_keys=sizes,
        padding="right",
        no_text="an encoder",
        missing="ultrabert.layers.1.self_attn.o_proj.weight",
        rejects=[{"name": "rope_type", "set": {"rope_parameters.full_attention.rope_type": "linear"}, "expect": "rope_type"}],
    )


FAMILIES = [base_text(make()) for make in (
    flint, kolibri1, aria_text, lara_mini, gpt_neox_japanese, modernbert_decoder, ultrabert, gemma4_unified_text, cohere_compass_text)]
