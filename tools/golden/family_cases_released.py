"""Cases of released formats that transformers has no class for; the references are in released_models.py."""

import math

from family_cases import Case, Family, Rewrite, keep, without
from family_cases_decoders import base_text

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
        [Case("num_heads", {"num_heads": 4}), Case("head_dim", {"head_dim": 8}), Case("expand_v", {"expand_v": 1.5}), *CONVOLUTIONS, NEGATIVE],
        shapes=("num_heads", "head_dim"), rejects=[{"name": "num_v_heads", "set": {"num_v_heads": 4}, "expect": "num_v_heads"}],
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


FAMILIES = [base_text(make()) for make in (
    transformer, retnet, gla, delta_net, gated_deltanet, kda, hgrn, hgrn2, fla_mamba, fla_mamba2,
)]
