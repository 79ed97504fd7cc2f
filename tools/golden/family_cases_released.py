"""Cases of released formats that transformers has no class for; the references are in released_models.py."""

import math

import torch

from family_cases import Case, Family, Rewrite, keep, without
from family_cases_decoders import base_text
from released_models import hyena_files

# hidden_ratio counts where intermediate_size is null, as in the released files
SIZES = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, intermediate_size=24, hidden_ratio=30, pad_token_id=0)
SHAPES = ["vocab_size", "hidden_size", "num_hidden_layers"]
ATTENDS = {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "qkv_bias": True, "window_size": 5, "rope_theta": 500.0}
TIED = Case("tie_word_embeddings", {"tie_word_embeddings": True})
EPS = Case("norm_eps", {"norm_eps": 0.05})


def ratio(**more):
    return Case("hidden_ratio", {"intermediate_size": None, "hidden_ratio": 4, "num_hidden_layers": 1, **more}, why="wide as a multiple of 256")


def hybrids():
    """Layers of attention among the others."""
    bare = {"layers": [1], "num_heads": 2}
    return [
        Case("attn", {"attn": ATTENDS}),
        Case("attn_defaults", {"attn": bare}, why="as many keys as queries, no bias, no window, 10000"),
        Case("attn_list", {"num_hidden_layers": 3, "attn": [dict(ATTENDS, layers=[0]), {"layers": [2], "num_heads": 2}]}, why="layers of two kinds"),
        Rewrite("attn_list_of_one", "attn", lambda c: {**c, "attn": [c["attn"]]}),
    ]


def fla(name, stem, settings, cases, shapes=(), hybrid=True, rejects=(), same=True):
    """same: whether the base is what class defaults give beside its sizes."""
    kept = [*SHAPES, "intermediate_size", *shapes]
    family = Family(
        name=name,
        model_type=name,
        architecture=f"{stem}ForCausalLM",
        settings={**SIZES, **settings},
        cases=[Case("base"), EPS, TIED, ratio(), *(hybrids() if hybrid else []), *cases],
        shape_keys=kept,
        missing="model.layers.1.mlp.down_proj.weight",
        padding="none",
        rejects=[{"expect": "frobnicate", **reject} for reject in rejects],
    )
    family.cases.append(Rewrite("defaults", "base", keep(*kept), same_result=same))
    return family


def unfused(config):
    return {**config, "fuse_norm": False}


def gate_norms(tensors):
    return {name.replace("g_norm_swish_gate", "g_norm"): value for name, value in tensors.items()}


def transformer():
    return fla(
        "transformer", "Transformer", {"num_heads": 4, "num_kv_heads": 2, "rope_theta": 1000.0},
        [
            Case("num_heads", {"num_heads": 2}, why="heads of another width"),
            Case("num_kv_heads", {"num_kv_heads": None}),
            Case("qkv_bias", {"qkv_bias": True}),
            Case("qk_norm", {"qk_norm": True}),
            Case("window_size", {"window_size": 5}),
            Case("rope_theta", {"rope_theta": 50.0}),
        ],
        shapes=("num_heads", "num_kv_heads"), hybrid=False, same=False,
    )


GROUPED = {"name": "num_kv_heads", "set": {"num_kv_heads": 1}, "expect": "num_kv_heads"}
EXPANDS = [Case("expand_k", {"expand_k": 2.0}), Case("expand_v", {"expand_v": 0.5})]
UNFUSED = Rewrite("fuse_norm", "base", unfused, tensors=gate_norms, why="a norm and a gate instead of both in one")


def retnet():
    return fla(
        "retnet", "RetNet", {"num_heads": 2},
        [Case("num_heads", {"num_heads": 4}), *EXPANDS, UNFUSED],
        shapes=("num_heads",), rejects=[GROUPED],
    )


def gla():
    return fla(
        "gla", "GLA", {"num_heads": 2, "expand_k": 1.0},
        [Case("num_heads", {"num_heads": 4}), *EXPANDS, UNFUSED],
        shapes=("num_heads", "expand_k"), rejects=[GROUPED],
    )


CONVOLUTIONS = [Case("use_short_conv", {"use_short_conv": False}), Case("conv_size", {"conv_size": 3})]
NEGATIVE = Case("allow_neg_eigval", {"allow_neg_eigval": True})


def delta_net():
    return fla(
        "delta_net", "DeltaNet", {"num_heads": 2},
        [Case("num_heads", {"num_heads": 4}), *EXPANDS, *CONVOLUTIONS, NEGATIVE, Case("use_gate", {"use_gate": True})],
        shapes=("num_heads",),
    )


def gated_deltanet():
    return fla(
        "gated_deltanet", "GatedDeltaNet", {"num_heads": 2, "head_dim": 6, "num_v_heads": 4, "expand_v": 1.5},
        [
            Case("num_heads", {"num_heads": 4}), Case("num_v_heads", {"num_v_heads": None}), Case("head_dim", {"head_dim": 8}),
            Case("expand_v", {"expand_v": 2.0}), *CONVOLUTIONS, NEGATIVE, Case("use_gate", {"use_gate": False}),
        ],
        shapes=("num_heads", "num_v_heads", "head_dim", "expand_v"),
    )


def kda():
    return fla(
        "kda", "KDA", {"num_heads": 2, "head_dim": 6},
        [Case("num_heads", {"num_heads": 4}), Case("head_dim", {"head_dim": 8}), Case("expand_v", {"expand_v": 1.5}), *CONVOLUTIONS, NEGATIVE,
         Case("lower_bound", {"lower_bound": -0.5, "safe_gate": True}, why="a bounded decay")],
        shapes=("num_heads", "head_dim"), rejects=[
            {"name": "num_v_heads", "set": {"num_v_heads": 4}, "expect": "num_v_heads"},
            {"name": "lower_bound", "set": {"lower_bound": 0.5}, "expect": "lower_bound"},
            {"name": "safe_gate", "set": {"safe_gate": True}, "expect": "safe_gate"},
        ],
    )


CONVOLVED = [Case("use_short_conv", {"use_short_conv": True}), Case("conv_size", {"conv_size": 3}, of="use_short_conv")]
UNBOUNDED = Case("use_lower_bound", {"use_lower_bound": False})


def two_layers(family):
    """The table of bounds counts from the second layer on."""
    next(case for case in family.cases if case.name == "hidden_ratio").changes["num_hidden_layers"] = 2
    return family


def hgrn():
    return two_layers(fla("hgrn", "HGRN", {}, [
        *CONVOLVED, UNBOUNDED, Case("expand_ratio", {"expand_ratio": 2, "use_lower_bound": False}, why="wider than the stream"),
    ]))


def hgrn2():
    return two_layers(fla("hgrn2", "HGRN2", {"expand_ratio": 8}, [
        *CONVOLVED, UNBOUNDED, Case("expand_ratio", {"expand_ratio": 4}), Case("num_heads", {"expand_ratio": None, "num_heads": 4}),
        Case("num_heads_2", {"num_heads": 2}, of="num_heads"),
    ], shapes=("expand_ratio",)))


def state_family(name, stem, model_type, settings, cases, shapes):
    return Family(
        name=name,
        model_type=model_type,
        architecture=f"{stem}ForCausalLM",
        settings=dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, expand=2, **settings),
        cases=[
            Case("base"), EPS, TIED, Case("conv_kernel", {"conv_kernel": 3}), Case("use_bias", {"use_bias": True}), Case("use_conv_bias", {"use_conv_bias": False}),
            *cases,
            Rewrite("defaults", "base", keep(*SHAPES, "norm_eps", *shapes), same_result=True),
        ],
        shape_keys=[*SHAPES, "expand", *shapes],
        missing="backbone.layers.1.mixer.out_proj.weight",
        padding="none",
    )


def fla_mamba():
    family = state_family(
        "fla_mamba", "FlaMamba", "mamba", {"state_size": 4, "dt_rank": 3},
        [Case("expand", {"expand": 4}), Case("state_size", {"state_size": 6}), Case("dt_rank", {"dt_rank": "auto"})],
        ("state_size", "dt_rank"),
    )
    return family


def fla_mamba2():
    return state_family(
        "fla_mamba2", "FlaMamba2", "mamba2", {"state_size": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8, "num_heads": 4},
        [
            Case("state_size", {"state_size": 4}), Case("head_dim", {"head_dim": 4, "num_heads": 8}), Case("n_groups", {"n_groups": 1}),
            Case("dt_limit", {"dt_limit": [0.4, 0.9]}), Case("dt_limit_open", {"dt_limit": [-math.inf, math.inf]}, neutral=True),
            Case("rmsnorm", {"rmsnorm": False}), Case("D_has_hdim", {"D_has_hdim": True}), Case("chunk_size", {"chunk_size": 5}, neutral=True),
            Case("num_heads_absent", {"num_heads": None}, neutral=True),
        ],
        ("state_size", "head_dim", "n_groups", "num_heads"),
    )


def log_linear_mamba2():
    family = state_family(
        "log_linear_mamba2", "LogLinearMamba2", "log_linear_mamba2", {"state_size": 8, "head_dim": 8, "n_groups": 2, "num_heads": 2},
        [
            Case("state_size", {"state_size": 4}), Case("head_dim", {"head_dim": 4, "num_heads": 4}), Case("n_groups", {"n_groups": 1}), Case("expand", {"expand": 4, "num_heads": 4}),
            Case("rmsnorm", {"rmsnorm": False}), Case("D_has_hdim", {"D_has_hdim": True}), Case("num_heads_absent", {"num_heads": None}, neutral=True),
        ],
        ("state_size", "head_dim", "n_groups", "num_heads"),
    )
    family.settings["hidden_size"] = 8  # the feed-forward layer is 256 wide
    family.rejects = [
        {"name": "dt_limit", "set": {"dt_limit": [0.0, 0.5]}, "expect": "dt_limit", "why": "the class refuses it"},
        {"name": "residual_in_fp32", "set": {"residual_in_fp32": True}, "expect": "residual_in_fp32", "why": "the class refuses it"},
    ]
    return family


def gathered(tensors):
    """All shares of the step back as one, as the first files."""
    result = dict(tensors)
    for name in [name for name in tensors if name.endswith(".x_r")]:
        stem = name.removesuffix("r")
        result[f"{stem}x"] = torch.cat([result.pop(stem + part).flatten(0, 1) for part in "rwkvag"])
    return result


def rwkv7():
    ranks = {"decay_low_rank_dim": 5, "a_low_rank_dim": 6, "v_low_rank_dim": 4, "gate_low_rank_dim": 7}
    sizes = [*SHAPES, "intermediate_size", *ranks, "head_dim"]
    return Family(
        name="rwkv7",
        model_type="rwkv7",
        architecture="RWKV7ForCausalLM",
        settings={**SIZES, **ranks, "head_dim": 8, "num_heads": 2},
        cases=[
            Case("base"), EPS, TIED,
            Case("hidden_ratio", {"intermediate_size": None, "hidden_ratio": 4}, why="wide as a multiple of 32"),
            Case("head_dim", {"head_dim": 4, "num_heads": 4}), Case("num_heads", {"head_dim": None, "num_heads": 4}, why="counts where head_dim is null"),
            Case("num_heads_8", {"num_heads": 8}, of="num_heads"),
            Case("norm_first", {"norm_first": False}), *[Case(name, {name: rank + 3}) for name, rank in ranks.items()],
            Case("value_dim", {"value_dim": [16, 16]}, neutral=True, why="as wide as the stream"),
            Rewrite("shares_as_one", "base", tensors=gathered, reference_refuses="the class renames them while it loads", why="x_x of the first files"),
            Rewrite("defaults", "base", keep(*sizes), same_result=True),
        ],
        shape_keys=sizes,
        missing="model.layers.1.ffn.value.weight",
        padding="none",
        rejects=[{"name": "value_dim", "set": {"value_dim": [32, 32]}, "expect": "value_dim"}],
    )


def rwkv6():
    sizes = [*SHAPES, "intermediate_size", "proj_low_rank_dim", "gate_low_rank_dim", "expand_k", "num_heads"]
    return Family(
        name="rwkv6",
        model_type="rwkv6",
        architecture="RWKV6ForCausalLM",
        settings={**SIZES, "proj_low_rank_dim": 3, "gate_low_rank_dim": 5, "expand_k": 1.0, "num_heads": 2},
        cases=[
            Case("base"), EPS, TIED, Case("hidden_ratio", {"intermediate_size": None, "hidden_ratio": 3.5}, why="wide as a multiple of 32"),
            Case("num_heads", {"num_heads": 4}), Case("expand_k", {"expand_k": 0.5}), Case("expand_v", {"expand_v": 2.0}), Case("norm_first", {"norm_first": False}),
            Case("proj_low_rank_dim", {"proj_low_rank_dim": 4}), Case("gate_low_rank_dim", {"gate_low_rank_dim": 6}), Rewrite("defaults", "base", keep(*sizes)),
        ],
        shape_keys=sizes,
        missing="model.layers.1.ffn.value.weight",
        padding="none",
    )


GROUPED_SIZES = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
GROUPED_SHAPES = [*SHAPES, "intermediate_size", "num_attention_heads", "num_key_value_heads"]
RMS_EPS = Case("rms_norm_eps", {"rms_norm_eps": 0.05})
THETA = Case("rope_theta", {"rope_theta": 50.0})
HEADS = Case("num_attention_heads", {"num_attention_heads": 2, "num_key_value_heads": 1})


def flat_family(name, architecture, settings, cases, shapes, missing, kept=None, same=False, rejects=()):
    return Family(
        name=name, model_type=name, architecture=architecture, settings=settings,
        cases=[Case("base"), *cases, Rewrite("defaults", "base", keep(*(kept or shapes)), same_result=same)],
        shape_keys=shapes, missing=missing, padding="none", rejects=list(rejects),
    )


def linear_attn():
    return fla(
        "linear_attn", "LinearAttention", {"num_heads": 2},
        [
            Case("num_heads", {"num_heads": 4}), Case("expand_k", {"expand_k": 0.5}), Case("expand_v", {"expand_v": 2.0}),
            Case("tie_feature_map_qk", {"tie_feature_map_qk": True}), Case("elu", {"feature_map": "elu"}),
            Case("norm_k", {"norm_k": True}, of="elu"), Case("relu", {"feature_map": "relu"}, of="elu"), Case("identity", {"feature_map": "identity"}, of="elu"),
            Case("norm_q", {"norm_q": True}, of="identity", why="a negative sum turns a head's output around"),
            Case("elu_eps", {"norm_eps": 0.05}, of="elu", why="the norm then sees how large its input is"),
            Case("norm_feature_map", {"norm_feature_map": True}, of="elu_eps"), Case("num_kv_heads", {"num_kv_heads": 2}, neutral=True, why="as many as queries"),
        ],
        shapes=("num_heads", "expand_k"),
        rejects=[
            {"name": "feature_map", "set": {"feature_map": "hedgehog"}, "expect": "feature_map", "why": "a softmax of both signs"},
            {"name": "num_kv_heads", "set": {"num_kv_heads": 1}, "expect": "num_kv_heads", "why": "keys and values that heads share"},
            {"name": "norm_feature_map", "set": {"norm_feature_map": True}, "expect": "norm_feature_map", "why": "sums of either sign cannot divide"},
        ],
    )


def forgetting_transformer():
    return fla(
        "forgetting_transformer", "ForgettingTransformer", {"num_heads": 4, "num_kv_heads": 2},
        [
            Case("num_heads", {"num_heads": 2}, why="heads of another width"), Case("num_kv_heads", {"num_kv_heads": None}), Case("qkv_bias", {"qkv_bias": True}),
            Case("qk_norm", {"qk_norm": True}), Case("use_output_gate", {"use_output_gate": True}),
        ],
        shapes=("num_heads", "num_kv_heads"), hybrid=False,
        rejects=[{"name": "window_size", "set": {"window_size": 4}, "expect": "window_size", "why": "the class trims its cache alone"}],
    )


def nsa():
    return fla(
        "nsa", "NSA", {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "block_size": 2, "block_counts": 4, "window_size": 3, "rope_theta": 1000.0},
        [
            Case("num_heads", {"num_heads": 8}), Case("num_kv_heads", {"num_kv_heads": 1}), Case("num_kv_heads_null", {"num_kv_heads": None}), Case("head_dim", {"head_dim": 4}),
            Case("qkv_bias", {"qkv_bias": True}), Case("block_size", {"block_size": 3}), Case("block_counts", {"block_counts": 3}), Case("window_size", {"window_size": 5}),
            Case("rope_theta", {"rope_theta": 50.0}),
        ],
        shapes=("num_heads", "num_kv_heads", "head_dim"), hybrid=False, same=False,
        rejects=[
            {"name": "window_size", "set": {"window_size": 0}, "expect": "window_size", "why": "no third branch, whose gates remain"},
            {"name": "block_counts", "set": {"block_counts": 2}, "expect": "block_counts", "why": "three blocks are always selected"},
        ],
    )


def internlm2():
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    return flat_family(
        "internlm2", "InternLM2ForCausalLM", {**GROUPED_SIZES, "bias": False, "rope_theta": 1000.0},
        [
            RMS_EPS, THETA, HEADS, Case("num_key_value_heads", {"num_key_value_heads": 4}), Case("bias", {"bias": True}), TIED,
            Case("rope_scaling", {**dynamic, "max_position_embeddings": 8}, length_dependent=True),
            Case("rope_scaling_factor", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, of="rope_scaling", length_dependent=True),
            Rewrite("defaults_of_bias", "bias", keep(*GROUPED_SHAPES, "rope_theta")),
        ],
        GROUPED_SHAPES, "model.layers.1.attention.wo.weight", kept=[*GROUPED_SHAPES, "bias"],
    )


def qwen():
    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, kv_channels=8)
    return flat_family(
        "qwen", "QWenLMHeadModel", {**sizes, "seq_length": 64, "rotary_emb_base": 1000.0},
        [
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), Case("rotary_emb_base", {"rotary_emb_base": 50.0}), Case("rotary_pct", {"rotary_pct": 0.5}),
            Case("num_attention_heads", {"num_attention_heads": 4, "kv_channels": 4}),
            Case("seq_length", {"seq_length": 6, "use_dynamic_ntk": False}, why="queries grow beyond it"),
            Case("use_logn_attn", {"use_logn_attn": False}, of="seq_length"),
        ],
        list(sizes), "transformer.h.1.attn.c_proj.weight",
    )


def chatglm():
    sizes = dict(padded_vocab_size=40, hidden_size=16, ffn_hidden_size=24, num_layers=2, num_attention_heads=4, kv_channels=8, multi_query_attention=True, multi_query_group_num=2,
                 add_qkv_bias=True)
    family = flat_family(
        "chatglm", "ChatGLMModel", {**sizes, "rope_ratio": 0.1, "pad_token_id": 0},
        [
            Case("layernorm_epsilon", {"layernorm_epsilon": 0.05}), Case("rope_ratio", {"rope_ratio": 0.01}), Case("add_qkv_bias", {"add_qkv_bias": False}),
            Case("multi_query_group_num", {"multi_query_group_num": 1}), Case("kv_channels", {"kv_channels": 4}),
            Case("num_attention_heads", {"num_attention_heads": 2}),
        ],
        list(sizes), "transformer.encoder.layers.1.mlp.dense_4h_to_h.weight",
        rejects=[{"name": "multi_query_attention", "set": {"multi_query_attention": False}, "expect": "multi_query_attention"}],
    )
    family.settings["vocab_size"] = 40
    return family


def minicpm():
    family = flat_family(
        "minicpm", "MiniCPMForCausalLM",
        {**GROUPED_SIZES, "rope_theta": 1000.0, "scale_emb": 3, "scale_depth": 0.9, "dim_model_base": 8, "tie_word_embeddings": False},
        [
            RMS_EPS, THETA, HEADS, Case("num_key_value_heads", {"num_key_value_heads": 4}), Case("attention_bias", {"attention_bias": True}),
            Case("scale_emb", {"scale_emb": 1}), Case("scale_depth", {"scale_depth": 1.8}), Case("dim_model_base", {"dim_model_base": 4}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
        ],
        GROUPED_SHAPES, "model.layers.1.self_attn.o_proj.weight", kept=[*GROUPED_SHAPES, "tie_word_embeddings", "scale_depth", "dim_model_base"],
    )
    return family


def mla():
    sizes = {"num_heads": 4, "q_lora_rank": 12, "qk_rope_head_dim": 4, "kv_lora_rank": 10, "v_head_dim": 8, "qk_nope_head_dim": 6, "qk_head_dim": 10}
    scaled = {"rope_scaling": {"factor": 4.0, "mscale_all_dim": 0.7}}
    return fla(
        "mla", "MLA", {**sizes, "rope_theta": 1000.0},
        [
            Case("num_heads", {"num_heads": 2}), Case("q_lora_rank", {"q_lora_rank": None}), Case("window_size", {"window_size": 5}), Case("rope_theta", {"rope_theta": 50.0}),
            Case("rope_scaling", scaled, why="a factor on the scores alone"),
            Case("rope_scaling_factor", {"rope_scaling": {"factor": 40.0, "mscale_all_dim": 0.7}}, of="rope_scaling"),
            Case("rope_scaling_mscale_all_dim", {"rope_scaling": {"factor": 4.0, "mscale_all_dim": 2.0}}, of="rope_scaling"),
            Rewrite("qk_head_dim", "base", lambda c: {**c, "qk_head_dim": None}),
        ],
        shapes=tuple(sizes), hybrid=False, same=False, rejects=[{"name": "qk_head_dim", "set": {"qk_head_dim": 12}, "expect": "qk_head_dim"}],
    )


def baichuan():
    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
    return flat_family(
        "baichuan", "BaichuanForCausalLM", {**sizes, "max_position_embeddings": 64},
        [
            RMS_EPS, Case("num_attention_heads", {"num_attention_heads": 2}),
            Case("z_loss_weight", {"z_loss_weight": 0}, why="Baichuan 2: a head of rows of length 1"),
            Case("model_max_length", {"max_position_embeddings": "absent", "model_max_length": 64, "hidden_size": 24, "num_attention_heads": 6}, why="13B: ALiBi"),
            Case("model_max_length_second", {"z_loss_weight": 0}, of="model_max_length", why="Baichuan 2 13B"),
        ],
        list(sizes), "model.layers.1.self_attn.o_proj.weight", kept=[*sizes, "max_position_embeddings"], same=True,
    )


def openelm():
    sizes = dict(vocab_size=40, model_dim=32, head_dim=4, num_transformer_layers=3, num_gqa_groups=2, qkv_multipliers=[0.5, 1.0], ffn_multipliers=[0.5, 1.0], ffn_dim_divisor=4)
    return flat_family(
        "openelm", "OpenELMForCausalLM",
        {**sizes, "normalize_qk_projections": True, "share_input_output_layers": True, "rope_freq_constant": 1000},
        [
            Case("head_dim", {"head_dim": 8}), Case("num_gqa_groups", {"num_gqa_groups": 1}), Case("qkv_multipliers", {"qkv_multipliers": 0.5}),
            Case("ffn_multipliers", {"ffn_multipliers": 1.5}), Case("ffn_dim_divisor", {"ffn_dim_divisor": 24}), Case("ffn_with_glu", {"ffn_with_glu": False}),
            Case("activation_fn_name", {"activation_fn_name": "gelu"}), Case("normalize_qk_projections", {"normalize_qk_projections": False}),
            Case("share_input_output_layers", {"share_input_output_layers": False}), Case("rope_freq_constant", {"rope_freq_constant": 50}),
            Rewrite("hub", "base", lambda c: {**c, "ffn_multipliers": [0.5, 0.75, 1.0], "num_query_heads": [4, 6, 8], "num_kv_heads": [2, 3, 4]}, why="the released files list what follows"),
        ],
        list(sizes), "transformer.layers.1.attn.out_proj.weight", kept=[*sizes, "normalize_qk_projections", "share_input_output_layers"],
    )


def library(name, stem, ssm, cases, kept, more=()):
    """A folder of mamba_ssm; cases change ssm_cfg."""
    def changed(case, **more):
        return Case(case, {"ssm_cfg": {**ssm, **more}})

    def without_defaults(config):
        return {key: config[key] for key in ("d_model", "n_layer", "vocab_size")} | {"ssm_cfg": {key: ssm[key] for key in kept}}

    return Family(
        name=name,
        model_type="",
        architecture=f"{stem}ForCausalLM",
        settings=dict(vocab_size=37, d_model=16, n_layer=2, ssm_cfg=ssm),
        cases=[
            Case("base"), Case("tie_embeddings", {"tie_embeddings": False}), Case("pad_vocab_size_multiple", {"vocab_size": 39, "pad_vocab_size_multiple": 10}, neutral=True),
            changed("d_conv", d_conv=3), changed("bias", bias=True), changed("conv_bias", conv_bias=False), changed("expand", expand=4),
            *[changed(case, **keys) for case, keys in cases.items()], *more,
            Rewrite("hub", "base", tensors=lambda tensors: {**tensors, "lm_head.weight": tensors["backbone.embedding.weight"].clone()}, why="the released files have the head too"),
            Rewrite("defaults", "base", without_defaults),
        ],
        shape_keys=["d_model", "n_layer"],
        missing="backbone.layers.1.mixer.out_proj.weight",
        padding="none",
    )


def mamba_ssm():
    return library("mamba_ssm", "LibraryMamba", {"d_state": 4}, {"d_state": {"d_state": 6}, "dt_rank": {"dt_rank": 3}}, ["d_state"])


def mamba2_ssm():
    ssm = {"layer": "Mamba2", "d_state": 8, "headdim": 8, "ngroups": 2}
    return library(
        "mamba2_ssm", "LibraryMamba2", ssm,
        {"d_state": {"d_state": 4}, "headdim": {"headdim": 4}, "ngroups": {"ngroups": 1}, "dt_limit": {"dt_limit": [0.4, 0.9]}, "rmsnorm": {"rmsnorm": False},
         "D_has_hdim": {"D_has_hdim": True}},
        list(ssm), [Case("chunk_size", {"ssm_cfg": {**ssm, "chunk_size": 8}}, neutral=True)],
    )


def torchscale_retnet():
    sizes = dict(vocab_size=40, decoder_embed_dim=16, decoder_value_embed_dim=24, decoder_retention_heads=2, decoder_ffn_embed_dim=20, decoder_layers=2)
    family = flat_family(
        "torchscale_retnet", "TorchscaleRetNet", sizes,
        [
            Case("layernorm_eps", {"layernorm_eps": 0.05}), Case("decoder_retention_heads", {"decoder_retention_heads": 4}), Case("decoder_value_embed_dim", {"decoder_value_embed_dim": 32}),
            Case("activation_fn_swish", {"activation_fn": "swish"}), Case("activation_fn_relu", {"activation_fn": "relu"}), Case("no_scale_embedding", {"no_scale_embedding": False}),
            Case("layernorm_embedding", {"layernorm_embedding": True}), Case("share_decoder_input_output_embed", {"share_decoder_input_output_embed": True}),
        ],
        list(sizes), "layers.1.retention.out_proj.weight",
        rejects=[
            {"name": "decoder_normalize_before", "set": {"decoder_normalize_before": False}, "expect": "decoder_normalize_before", "why": "norms after the branches"},
            {"name": "deepnorm", "set": {"deepnorm": True}, "expect": "deepnorm", "why": "norms after the branches"},
            {"name": "moe_freq", "set": {"moe_freq": 2}, "expect": "moe_freq", "why": "layers of experts"},
        ],
    )
    family.model_type = ""
    family.cases[-1].config = lambda config: {key: config[key] for key in sizes}
    family.cases[-1].same_result = True
    return family


def hyenadna():
    sizes = dict(vocab_size=37, d_model=16, d_inner=24, n_layer=2, emb_dim=5, filter_order=8, max_seq_len=64, pad_vocab_size_multiple=8, tie_word_embeddings=False)
    return Family(
        name="hyenadna",
        model_type="hyenadna",
        architecture="HyenaDNAForCausalLM",
        settings={**sizes, "num_inner_mlps": 1, "activation_freq": 10, "pad_token_id": 4},
        cases=[
            Case("base"), Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), TIED, Case("d_inner", {"d_inner": None}, why="four times d_model"), Case("emb_dim", {"emb_dim": 7}),
            Case("filter_order", {"filter_order": 6}), Case("num_inner_mlps", {"num_inner_mlps": 2}), Case("num_inner_mlps_0", {"num_inner_mlps": 0}, of="num_inner_mlps"),
            Case("max_seq_len", {"max_seq_len": 32}),
            Case("body", {"num_inner_mlps": 2}, architecture="HyenaDNAModel", text=False, why="bare names, last_hidden_state"),
            Case("classifier", {"num_labels": 3}, architecture="HyenaDNAForSequenceClassification", text=False, why="classes of a row by its last token"),
            Rewrite("without_tables", "base", tensors=without_tables, reference_refuses="they are buffers of the class", why="files without what the classes compute"),
            Rewrite("defaults", "num_inner_mlps", keep(*sizes), same_result=True),
        ],
        shape_keys=[*(name for name in sizes if name not in ("tie_word_embeddings", "max_seq_len")), "num_inner_mlps"],
        missing="hyena.backbone.layers.1.mixer.out_proj.weight",
        padding="none",
        gains={".freq": 6, "short_filter.weight": 2, "ln_f.weight": 2},
        as_released=hyena_files,
        rejects=[
            {"name": "hyena_order", "set": {"hyena_order": 3}, "expect": "hyena_order", "why": "the class fails"},
            {"name": "short_filter_order", "set": {"short_filter_order": 4}, "expect": "short_filter_order", "why": "the class pads for three taps"},
            {"name": "train_freq", "set": {"train_freq": False}, "expect": "train_freq", "why": "frequencies that the files do not hold"},
        ],
    )


def without_tables(tensors):
    return {name: value for name, value in tensors.items() if not name.endswith(("pos_emb.z", "pos_emb.t", "modulation.deltas"))}


def hyenadna_lightning():
    layer = {"_name_": "hyena", "emb_dim": 5, "filter_order": 8, "short_filter_order": 3, "l_max": 64, "modulate": True, "w": 10, "lr": 6e-4, "wd": 0.0, "lr_pos_emb": 0.0}
    sizes = dict(vocab_size=37, d_model=16, d_inner=24, n_layer=2, layer=layer, pad_vocab_size_multiple=8)
    of_layer = lambda name, **changes: Case(name, {"layer": {**layer, **changes}})
    return Family(
        name="hyenadna_lightning",
        model_type="",
        architecture="LightningHyenaDNA",
        settings=dict(sizes, resid_dropout=0.0, embed_dropout=0.1, fused_mlp=False, fused_dropout_add_ln=True, residual_in_fp32=True),
        cases=[
            Case("base"), Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), of_layer("emb_dim", emb_dim=7), of_layer("filter_order", filter_order=6), of_layer("l_max", l_max=32),
            of_layer("num_inner_mlps", num_inner_mlps=1), Case("checkpoint_mixer", {"checkpoint_mixer": True, "checkpoint_mlp": True}, why="tensors of other names, and other drawn numbers"),
            Rewrite("defaults", "base", lambda config: {key: config[key] for key in sizes}, same_result=True),
        ],
        shape_keys=[*sizes, "layer.emb_dim", "layer.filter_order"],
        missing="model.backbone.layers.1.mixer.out_proj.weight",
        padding="none",
        gains={".freq": 6, "short_filter.weight": 2, "ln_f.weight": 2, "out_proj.weight": 4, "fc2.weight": 4},
        as_released=hyena_files,
        rejects=[
            {"name": "lr_pos_emb", "set": {"layer": {**layer, "lr_pos_emb": 1e-5}}, "expect": "layer.lr_pos_emb", "why": "a trained table of positions"},
            {"name": "order", "set": {"layer": {**layer, "order": 3}}, "expect": "layer.order", "why": "no released checkpoint has it"},
            {"name": "modulate", "set": {"layer": {**layer, "modulate": False}}, "expect": "layer.modulate", "why": "no released checkpoint has it"},
        ],
    )


def samba():
    bare = {"layers": [1], "num_heads": 2}
    sizes = [*SHAPES, "hidden_ratio", "attn", "state_size"]
    return Family(
        name="samba",
        model_type="samba",
        architecture="SambaForCausalLM",
        settings=dict(vocab_size=40, hidden_size=8, num_hidden_layers=2, hidden_ratio=4, intermediate_size=16, state_size=4, attn={"layers": [1], "num_heads": 2, "num_kv_heads": 1, "qkv_bias": True,
                                                                                                                                 "window_size": 5, "rope_theta": 500.0}),
        cases=[
            Case("base"), EPS, TIED, Case("attn_none", {"attn": None}), Case("attn_defaults", {"attn": bare}), Case("hidden_ratio", {"hidden_ratio": 60, "num_hidden_layers": 1, "attn": None}),
            Case("expand", {"expand": 4}), Case("state_size", {"state_size": 6}), Case("conv_kernel", {"conv_kernel": 3}), Case("time_step_rank", {"time_step_rank": 3}),
            Case("use_bias", {"use_bias": True}), Rewrite("attn_list", "base", lambda c: {**c, "attn": [c["attn"]]}), Rewrite("defaults", "base", keep(*sizes)),
        ],
        shape_keys=[*SHAPES, "hidden_ratio", "state_size"],
        missing="backbone.layers.1.mlp.down_proj.weight",
        padding="none",
    )


FAMILIES = [base_text(make()) for make in (
    transformer, linear_attn, forgetting_transformer, nsa, mla, retnet, gla, delta_net, gated_deltanet, kda, hgrn, hgrn2, fla_mamba, fla_mamba2, log_linear_mamba2, rwkv6, rwkv7, internlm2, qwen, chatglm, minicpm, baichuan, openelm, mamba_ssm, mamba2_ssm, torchscale_retnet, samba, hyenadna, hyenadna_lightning,
)]
