"""What is asked of each family: a base case and one case per config key that changes the result.

A family is a table, nothing more. `settings` are keywords of the reference's config class; a case
names the settings that it changes against another case (`of`), and nothing else. A rewrite keeps
weights and results of a case and says the same thing in another config.json (older keys, keys
left to their defaults).
"""

import copy
import dataclasses

import torch

import reference


@dataclasses.dataclass
class Case:
    name: str
    changes: dict = dataclasses.field(default_factory=dict)  # settings against `of`
    of: str = "base"
    neutral: bool = False  # the reference must give the result of `of`
    length_dependent: bool = False  # rope factors follow the length seen
    architecture: str = ""  # another head than the family's
    why: str = ""


@dataclasses.dataclass
class Rewrite:
    name: str
    of: str
    config: object = None  # config.json of `of` -> config.json of this case
    tensors: object = None  # tensors of `of` -> tensors of this case
    same_result: bool = True  # False: defaults apply, the result is this case's own
    reference_refuses: str = ""  # why this version fails on a spelling that files carry
    why: str = ""


@dataclasses.dataclass
class Family:
    name: str
    model_type: str
    architecture: str
    settings: dict
    cases: list
    shape_keys: list  # keys that a wrong value of betrays itself by a tensor's shape
    padding: str = "left"  # left, right or none
    types: int = 0
    greedy: bool = True
    zero_centred_norms: bool = False  # norm weights are w of (1 + w)
    gguf: dict = dataclasses.field(default_factory=dict)  # case -> llama.cpp architecture
    init_only: tuple = ()  # keys of initialisation that this version applies to loaded weights too
    missing: str = ""  # a tensor to leave out in the rejects
    rejects: list = dataclasses.field(default_factory=list)


def settings_of(family, case):
    """Settings of a case: those of the case it varies, with its changes."""
    if case.name == "base":
        return copy.deepcopy(family.settings)
    parent = next(c for c in family.cases if c.name == case.of)
    return {**settings_of(family, parent), **copy.deepcopy(case.changes)}


def rope(theta=1000.0, kind="default", **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def keep(*names):
    """A config.json with the named keys only: class defaults supply the rest."""
    return lambda config: {key: config[key] for key in ("architectures", "model_type") + names}


def older(config):
    """The v4 spelling: rope_theta and rope_scaling at the top, torch_dtype, no layer_types."""
    result = {
        key: value for key, value in config.items() if key not in ("rope_parameters", "dtype")
    }
    result.update(torch_dtype="float32", transformers_version="4.46.3")
    parameters = copy.deepcopy(config.get("rope_parameters"))
    if parameters:
        result["rope_theta"] = parameters.pop("rope_theta")
        scaled = parameters.get("rope_type") != "default"
        result["rope_scaling"] = parameters if scaled else None
    return result


def older_type(config):
    """As `older`, with the first spelling "type" in rope_scaling."""
    result = older(config)
    result["rope_scaling"] = {
        "type" if key == "rope_type" else key: value
        for key, value in result["rope_scaling"].items()
    }
    return result


def older_with(drop=(), **more):
    def rewrite(config):
        return {**{k: v for k, v in older(config).items() if k not in drop}, **more}

    return rewrite


TINY = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GQA = dict(TINY, num_key_value_heads=2)
WIDE = dict(GQA, head_dim=12)  # heads * head_dim = 48, not hidden_size

SHAPES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
SHAPES_GQA = SHAPES + ["num_attention_heads", "num_key_value_heads"]

KEEP_TINY = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)

SHORT = [1.0, 1.1, 1.3, 1.6, 2.0, 2.5]
LONG = [1.0, 1.5, 2.5, 4.0, 7.0, 12.0]


def scaled_rope_cases():
    """Every rope_type and every key inside it (rotary width 12: six frequencies)."""
    linear = dict(factor=4.0)
    yarn = dict(factor=4.0, original_max_position_embeddings=64)
    llama3 = dict(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    )
    longrope = dict(
        short_factor=SHORT, long_factor=LONG, factor=4.0, original_max_position_embeddings=16
    )
    far = dict(max_position_embeddings=256)
    return [
        Case("rope_linear", rope(kind="linear", **linear)),
        Case("rope_linear_factor", rope(kind="linear", factor=2.0), of="rope_linear"),
        Case(
            "rope_dynamic",
            {**rope(kind="dynamic", factor=4.0), "max_position_embeddings": 12},
            length_dependent=True,
            why="19 positions against 12; the base follows the longest row of the batch",
        ),
        Case(
            "rope_dynamic_max_position_embeddings",
            {"max_position_embeddings": 16},
            of="rope_dynamic",
            length_dependent=True,
        ),
        Case(
            "rope_dynamic_within",
            rope(kind="dynamic", factor=4.0),
            neutral=True,
            why="19 positions within 64: dynamic scaling changes nothing",
        ),
        Case("rope_yarn", {**rope(kind="yarn", **yarn), **far}),
        Case("rope_yarn_factor", rope(kind="yarn", **{**yarn, "factor": 8.0}), of="rope_yarn"),
        Case(
            "rope_yarn_original",
            rope(kind="yarn", **{**yarn, "original_max_position_embeddings": 16}),
            of="rope_yarn",
        ),
        Case("rope_yarn_beta_fast", rope(kind="yarn", beta_fast=2.0, **yarn), of="rope_yarn"),
        Case("rope_yarn_beta_slow", rope(kind="yarn", beta_slow=0.25, **yarn), of="rope_yarn"),
        Case(
            "rope_yarn_attention_factor",
            rope(kind="yarn", attention_factor=1.5, **yarn),
            of="rope_yarn",
        ),
        Case(
            "rope_yarn_mscale",
            rope(kind="yarn", mscale=0.7, mscale_all_dim=1.3, **yarn),
            of="rope_yarn",
        ),
        Case("rope_yarn_truncate", rope(kind="yarn", truncate=False, **yarn), of="rope_yarn"),
        Case("rope_llama3", rope(kind="llama3", **llama3)),
        Case(
            "rope_llama3_factor", rope(kind="llama3", **{**llama3, "factor": 2.0}), of="rope_llama3"
        ),
        Case(
            "rope_llama3_low_freq_factor",
            rope(kind="llama3", **{**llama3, "low_freq_factor": 0.25}),
            of="rope_llama3",
        ),
        Case(
            "rope_llama3_high_freq_factor",
            rope(kind="llama3", **{**llama3, "high_freq_factor": 8.0}),
            of="rope_llama3",
        ),
        Case(
            "rope_llama3_original",
            rope(kind="llama3", **{**llama3, "original_max_position_embeddings": 16}),
            of="rope_llama3",
        ),
        Case(
            "rope_longrope",
            rope(kind="longrope", **longrope),
            length_dependent=True,
            why="19 positions against 16 of training: the long factors",
        ),
        Case(
            "rope_longrope_short",
            rope(kind="longrope", **{**longrope, "original_max_position_embeddings": 32}),
            of="rope_longrope",
            why="within 32: short factors; the attention factor follows the original length",
        ),
        Case(
            "rope_longrope_attention_factor",
            rope(kind="longrope", attention_factor=1.5, **longrope),
            of="rope_longrope",
            length_dependent=True,
        ),
        Case(
            "rope_longrope_no_factor",
            rope(kind="longrope", **{k: v for k, v in longrope.items() if k != "factor"}),
            of="rope_longrope",
            neutral=True,
            length_dependent=True,
            why="without factor it is max_position_embeddings / original, here the same 4",
        ),
    ]


def common_cases(act="hidden_act", other_acts=("gelu", "relu"), eps="rms_norm_eps"):
    return [Case(eps, {eps: 0.05}), Case("rope_theta", rope(50.0))] + [
        Case(f"{act}_{name}", {act: name}) for name in other_acts
    ]


def without_layer_types(**more):
    def rewrite(config):
        result = {k: v for k, v in older(config).items() if k != "layer_types"}
        return {**result, **more}

    return rewrite


def llama():
    return Family(
        name="llama",
        model_type="llama",
        architecture="LlamaForCausalLM",
        settings={**WIDE, **rope(), "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        cases=[Case("base")]
        + common_cases()
        + [
            Case(
                "hidden_act_gelu_pytorch_tanh",
                {"hidden_act": "gelu_pytorch_tanh"},
                of="hidden_act_gelu",
                why="the two gelus apart",
            ),
            Case("attention_bias", {"attention_bias": True}),
            Case("mlp_bias", {"mlp_bias": True}),
            Case("head_dim", {"head_dim": 8}),
            Case("num_key_value_heads", {"num_key_value_heads": 4}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
        ]
        + scaled_rope_cases()
        + [
            Rewrite("v4", "base", older),
            Rewrite("v4_rope_linear_type", "rope_linear", older_type),
            Rewrite("v4_rope_llama3", "rope_llama3", older),
            Rewrite("v4_rope_yarn", "rope_yarn", older),
            Rewrite(
                "head_dim_absent",
                "head_dim",
                lambda config: {k: v for k, v in config.items() if k != "head_dim"},
                why="hidden_size / num_attention_heads",
            ),
            Rewrite(
                "num_key_value_heads_absent",
                "num_key_value_heads",
                lambda config: {k: v for k, v in config.items() if k != "num_key_value_heads"},
                why="num_attention_heads",
            ),
            Rewrite("defaults", "base", keep(*KEEP_TINY, "head_dim"), same_result=False),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        gguf={
            "base": "llama",
            "tie_word_embeddings": "llama",
            "attention_bias": "llama",
            "rope_yarn": "llama",
            "rope_llama3": "llama",
        },
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[
            {
                "name": "tied_but_different",
                "set": {"tie_word_embeddings": True},
                "expect": "lm_head.weight",
                "why": "config says tied, the file holds another head",
            },
            {"name": "bad_rope_type", "set": {"rope_parameters.rope_type": "frobnicate"}},
        ],
    )


def mistral():
    return Family(
        name="mistral",
        model_type="mistral",
        architecture="MistralForCausalLM",
        settings={**WIDE, **rope(), "rms_norm_eps": 1e-5, "sliding_window": 7},
        cases=[Case("base")]
        + common_cases()
        + [
            Case("sliding_window", {"sliding_window": 4}),
            Case("sliding_window_null", {"sliding_window": None}),
            Case("rope_yarn", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY, "head_dim"),
                same_result=False,
                why="an absent sliding_window means 4096, not none",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        missing="model.layers.0.mlp.up_proj.weight",
    )


def qwen_window():
    on = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    return [
        Case("use_sliding_window", on),
        Case("sliding_window", {"sliding_window": 4}, of="use_sliding_window"),
        Case("max_window_layers", {"max_window_layers": 0}, of="use_sliding_window"),
        Case(
            "max_window_layers_all",
            {"max_window_layers": 2},
            of="use_sliding_window",
            why="as many as there are layers: none slides",
        ),
        Case(
            "layer_types",
            {"layer_types": ["sliding_attention", "full_attention"]},
            of="use_sliding_window",
            why="the list wins over max_window_layers",
        ),
        Rewrite("v4_use_sliding_window", "use_sliding_window", without_layer_types()),
        Rewrite(
            "v4",
            "base",
            without_layer_types(use_sliding_window=False, sliding_window=6, max_window_layers=1),
            why="hub files carry a window that use_sliding_window switches off",
        ),
    ]


def qwen2():
    return Family(
        name="qwen2",
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        settings={**GQA, **rope(), "rms_norm_eps": 1e-5},
        cases=[Case("base")]
        + common_cases()
        + qwen_window()
        + [
            Case("rope_yarn", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        gguf={"base": "qwen2"},
        missing="model.layers.1.self_attn.k_proj.bias",
    )


def qwen3():
    return Family(
        name="qwen3",
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        settings={
            **WIDE,
            **rope(),
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        cases=[Case("base")]
        + common_cases()
        + qwen_window()
        + [
            Case("attention_bias", {"attention_bias": True}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite(
                "defaults",
                "tie_word_embeddings",
                keep(*KEEP_TINY, "head_dim"),
                same_result=False,
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        gguf={"base": "qwen3"},
        missing="model.layers.1.self_attn.q_norm.weight",
        rejects=[
            {
                "name": "head_dim_absent",
                "unset": ["head_dim"],
                "expect": "q_proj",
                "why": "absent means 128, not hidden_size / num_attention_heads: shapes disagree",
            }
        ],
    )


def gpt2_bare(tensors):
    """OpenAI's own file: no `transformer.` prefix, the causal mask stored as a buffer."""
    result = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    for layer in range(2):
        result[f"h.{layer}.attn.bias"] = torch.ones(32, 32).tril()[None, None]
        result[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return result


def gpt2():
    return Family(
        name="gpt2",
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        settings=dict(
            vocab_size=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=32,
            n_inner=None,
            bos_token_id=1,
            eos_token_id=2,
        ),
        cases=[
            Case("base"),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("scale_attn_weights", {"scale_attn_weights": False}),
            Case("scale_attn_by_inverse_layer_idx", {"scale_attn_by_inverse_layer_idx": True}),
            Case(
                "reorder_and_upcast_attn",
                {"reorder_and_upcast_attn": True},
                neutral=True,
                why="another order of the same float32 operations",
            ),
            Case("n_inner", {"n_inner": 20}),
            Case(
                "tie_word_embeddings", {"tie_word_embeddings": False, "n_inner": 20}, of="n_inner"
            ),
            Rewrite(
                "defaults", "base", keep("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
            ),
            Rewrite(
                "hub",
                "n_inner",
                older_with(n_ctx=32, task_specific_params={"text-generation": {"do_sample": True}}),
                gpt2_bare,
                why="names without prefix, mask buffers, n_ctx",
            ),
        ],
        shape_keys=["vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "n_inner"],
        gguf={"base": "gpt2"},
        missing="transformer.h.1.mlp.c_fc.bias",
        rejects=[
            {
                "name": "cross_attention",
                "set": {"add_cross_attention": True},
                "expect": "add_cross_attention",
            }
        ],
    )


def older_neox(config):
    result = {k: v for k, v in older(config).items() if k not in ("rope_theta", "rope_scaling")}
    result["rotary_emb_base"] = int(config["rope_parameters"]["rope_theta"])
    result["rotary_pct"] = config["rope_parameters"]["partial_rotary_factor"]
    return result


def gpt_neox():
    partial = lambda factor, theta=1000.0: rope(theta, partial_rotary_factor=factor)
    return Family(
        name="gpt_neox",
        model_type="gpt_neox",
        architecture="GPTNeoXForCausalLM",
        settings={**TINY, **partial(0.5)},
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("rope_theta", partial(0.5, 50.0)),
            Case("partial_rotary_factor", partial(1.0)),
            Case("partial_rotary_factor_quarter", partial(0.25)),
            Case("rope_linear", rope(kind="linear", factor=4.0, partial_rotary_factor=0.5)),
            Case("use_parallel_residual", {"use_parallel_residual": False}),
            Case("hidden_act_gelu_new", {"hidden_act": "gelu_new"}),
            Case("hidden_act_relu", {"hidden_act": "relu"}),
            Case("attention_bias", {"attention_bias": False}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older_neox, why="rotary_pct and rotary_emb_base"),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1]), same_result=False),
        ],
        shape_keys=SHAPES + ["num_attention_heads"],
        missing="gpt_neox.layers.1.attention.dense.bias",
    )


def older_phi3(kind):
    def rewrite(config):
        result = older(config)
        scaling = result["rope_scaling"]
        if scaling:
            scaling.pop("rope_type")
            scaling.pop("original_max_position_embeddings", None)
            result["partial_rotary_factor"] = scaling.pop("partial_rotary_factor", 1.0)
            result["rope_scaling"] = {"type": kind, **scaling}
        return result

    return rewrite


def phi3():
    partial = lambda factor, theta=1000.0: rope(theta, partial_rotary_factor=factor)
    longrope = rope(
        kind="longrope", partial_rotary_factor=1.0, short_factor=SHORT[:4], long_factor=LONG[:4]
    )
    half = rope(
        kind="longrope", partial_rotary_factor=0.5, short_factor=SHORT[:2], long_factor=LONG[:2]
    )
    trained = {"original_max_position_embeddings": 16}
    return Family(
        name="phi3",
        model_type="phi3",
        architecture="Phi3ForCausalLM",
        settings={**GQA, **partial(1.0), "original_max_position_embeddings": 64},
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("rope_theta", partial(1.0, 50.0)),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("partial_rotary_factor", partial(0.5)),
            Case("sliding_window", {"sliding_window": 7}),
            Case("rope_longrope", {**longrope, **trained}, length_dependent=True),
            Case(
                "rope_longrope_short",
                {"original_max_position_embeddings": 32},
                of="rope_longrope",
                why="the key at the top of the config wins over the one in rope_parameters",
            ),
            Case(
                "rope_longrope_max_position_embeddings",
                {"max_position_embeddings": 128},
                of="rope_longrope",
                length_dependent=True,
                why="attention factor sqrt(1 + ln(max / original) / ln original)",
            ),
            Case(
                "rope_longrope_partial",
                {**half, **trained},
                of="partial_rotary_factor",
                length_dependent=True,
            ),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite(
                "v4_rope_su",
                "rope_longrope",
                older_phi3("su"),
                reference_refuses="KeyError: no original_max_position_embeddings in rope_scaling",
                why='the first Phi-3 files say "su", which is longrope',
            ),
            Rewrite("v4_rope_yarn", "rope_longrope", older_phi3("yarn"), why='"yarn" is longrope'),
            Rewrite("v4_rope_longrope_partial", "rope_longrope_partial", older_phi3("longrope")),
            Rewrite("defaults", "base", keep(*KEEP_TINY, "pad_token_id"), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        gguf={"base": "phi3", "rope_longrope": "phi3", "rope_longrope_partial": "phi3"},
        missing="model.layers.0.self_attn.qkv_proj.weight",
        rejects=[
            {
                "name": "short_factor_length",
                "base": "rope_longrope",
                "set": {"rope_parameters.short_factor": [1.0, 1.1]},
                "expect": "short_factor",
            }
        ],
    )


def olmo2():
    return Family(
        name="olmo2",
        model_type="olmo2",
        architecture="Olmo2ForCausalLM",
        settings={**GQA, **rope(), "rms_norm_eps": 1e-5},
        cases=[Case("base")]
        + common_cases()
        + [
            Case("attention_bias", {"attention_bias": True}),
            Case("rope_yarn", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        missing="model.layers.1.self_attn.k_norm.weight",
    )


def gemma2():
    return Family(
        name="gemma2",
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        settings={
            **WIDE,
            **rope(),
            "query_pre_attn_scalar": 12,
            "sliding_window": 6,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 6.0,
        },
        cases=[Case("base")]
        + common_cases(act="hidden_activation", other_acts=("gelu", "relu"))
        + [
            Case("query_pre_attn_scalar", {"query_pre_attn_scalar": 30}),
            Case("attn_logit_softcapping", {"attn_logit_softcapping": 4.0}),
            Case("attn_logit_softcapping_null", {"attn_logit_softcapping": None}),
            Case("final_logit_softcapping", {"final_logit_softcapping": 12.0}),
            Case("final_logit_softcapping_null", {"final_logit_softcapping": None}),
            Case("sliding_window", {"sliding_window": 4}),
            Case(
                "layer_types",
                {"layer_types": ["full_attention", "sliding_attention"]},
            ),
            Case(
                "use_bidirectional_attention",
                {"use_bidirectional_attention": True},
                neutral=True,
                why="not read by the eager path, whose mask stays causal",
            ),
            Case("attention_bias", {"attention_bias": True}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite(
                "v4",
                "base",
                without_layer_types(hidden_act="relu", cache_implementation="hybrid"),
                why="hub files carry a hidden_act that is not read; even layers slide",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY, "head_dim"),
                same_result=False,
                why="caps 50 and 30, scalar 256, window 4096",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        zero_centred_norms=True,
        gguf={"base": "gemma2"},
        missing="model.layers.1.pre_feedforward_layernorm.weight",
    )


def gemma_rope(full=2000.0, sliding=10000.0, **scaling):
    kind = {"rope_type": "default"} if not scaling else scaling
    return {
        "rope_parameters": {
            "full_attention": {"rope_theta": full, **kind},
            "sliding_attention": {"rope_theta": sliding, "rope_type": "default"},
        }
    }


def older_gemma3(**more):
    def rewrite(config):
        dropped = ("rope_parameters", "dtype", "layer_types", "_sliding_window_pattern")
        result = {key: value for key, value in config.items() if key not in dropped}
        full = dict(config["rope_parameters"]["full_attention"])
        result["rope_theta"] = full.pop("rope_theta")
        result["rope_scaling"] = full if full["rope_type"] != "default" else None
        result["rope_local_base_freq"] = config["rope_parameters"]["sliding_attention"][
            "rope_theta"
        ]
        result.update(
            torch_dtype="float32",
            transformers_version="4.50.0.dev0",
            cache_implementation="hybrid",
            sliding_window_pattern=6,
        )
        return {**result, **more}

    return rewrite


def gemma3_text():
    every_third = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Family(
        name="gemma3_text",
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        settings={
            **WIDE,
            **gemma_rope(),
            "num_hidden_layers": 6,
            "query_pre_attn_scalar": 12,
            "sliding_window": 6,
        },
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_activation_gelu", {"hidden_activation": "gelu"}),
            Case("hidden_activation_relu", {"hidden_activation": "relu"}),
            Case("rope_theta", gemma_rope(full=50.0)),
            Case("rope_local_base_freq", gemma_rope(sliding=50.0)),
            Case("rope_linear", gemma_rope(rope_type="linear", factor=8.0)),
            Case("query_pre_attn_scalar", {"query_pre_attn_scalar": 30}),
            Case(
                "attn_logit_softcapping",
                {"attn_logit_softcapping": 2.0},
                neutral=True,
                why="this version stores it and never passes it to attention",
            ),
            Case("final_logit_softcapping", {"final_logit_softcapping": 6.0}),
            Case("sliding_window", {"sliding_window": 4}),
            Case("layer_types", {"layer_types": every_third}),
            Case(
                "use_bidirectional_attention",
                {"use_bidirectional_attention": True},
                why="the window of the file w becomes |i - j| < w // 2 + 1",
            ),
            Case("attention_bias", {"attention_bias": True}),
            Rewrite("v4", "base", older_gemma3()),
            Rewrite("v4_rope_linear", "rope_linear", older_gemma3()),
            Rewrite(
                "v4_sliding_window_pattern", "layer_types", older_gemma3(sliding_window_pattern=3)
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY, "head_dim"),
                same_result=False,
                why="thetas 1e6 and 1e4, scalar 256, window 4096",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        zero_centred_norms=True,
        gguf={"base": "gemma3"},
        missing="model.layers.5.self_attn.k_norm.weight",
    )


def plain_infinity(config):
    """Files of the hub spell the open end `Infinity`, which is not JSON."""
    return {**older(config), "time_step_limit": [0.0, float("inf")]}


def mamba2():
    return Family(
        name="mamba2",
        model_type="mamba2",
        architecture="Mamba2ForCausalLM",
        settings=dict(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=8,
            head_dim=8,
            state_size=8,
            expand=2,
            n_groups=2,
            conv_kernel=4,
            chunk_size=8,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        cases=[
            Case("base", why="19 tokens in chunks of 8: two full chunks and a rest"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case(
                "hidden_act_gelu",
                {"hidden_act": "gelu"},
                why="the convolution's; the gate stays silu",
            ),
            Case("time_step_limit", {"time_step_limit": [0.4, 0.9]}),
            Case("chunk_size", {"chunk_size": 5}, neutral=True),
            Case("n_groups", {"n_groups": 4}, why="groups of B and C and of the gated norm"),
            Case("conv_kernel", {"conv_kernel": 3}),
            Case("use_bias", {"use_bias": True}),
            Case("use_conv_bias", {"use_conv_bias": False}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4_infinity", "base", plain_infinity, why="time_step_limit [0.0, Infinity]"),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size",
                    "hidden_size",
                    "num_hidden_layers",
                    "num_heads",
                    "head_dim",
                    "state_size",
                    "n_groups",
                ),
                why="open time_step_limit, kernel 4, conv bias, no bias, whatever chunk_size",
            ),
        ],
        shape_keys=[
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "state_size",
            "expand",
            "num_heads",
            "head_dim",
        ],
        padding="none",
        init_only=("rescale_prenorm_residual",),
        missing="backbone.layers.1.mixer.dt_bias",
    )


def bert_hub(tensors):
    """Google's file: LayerNorm.gamma and .beta, the pooler and the next-sentence head beside."""
    result = {}
    for name, value in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        result[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value
    result["cls.predictions.decoder.weight"] = result[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    extra = {
        "bert.pooler.dense.weight": (32, 32),
        "bert.pooler.dense.bias": (32,),
        "cls.seq_relationship.weight": (2, 32),
        "cls.seq_relationship.bias": (2,),
    }
    for name, shape in extra.items():
        result[name] = reference.draw("bert", name, shape, False)
    return result


def classifiers(name):
    return [
        Case(
            "classifier",
            {"num_labels": 3, "num_hidden_layers": 1},
            architecture=f"{name}ForSequenceClassification",
            why="pooler and classes of a row",
        ),
        Case(
            "token_classifier",
            {"num_labels": 5, "num_hidden_layers": 1},
            architecture=f"{name}ForTokenClassification",
            why="classes of every token",
        ),
    ]


def bert():
    return Family(
        name="bert",
        model_type="bert",
        architecture="BertForMaskedLM",
        settings={
            **{k: v for k, v in TINY.items() if k not in ("bos_token_id", "eos_token_id")},
            "max_position_embeddings": 32,
        },
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("hidden_act_gelu_new", {"hidden_act": "gelu_new"}),
            Case(
                "hidden_act_relu", {"hidden_act": "relu"}, why="the head's transform follows it too"
            ),
            Case("is_decoder", {"is_decoder": True}, why="a causal mask"),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("body", {}, architecture="BertModel", why="bare names, pooler, last_hidden_state"),
            *classifiers("Bert"),
            Rewrite(
                "hub",
                "base",
                older_with(position_embedding_type="absolute", gradient_checkpointing=False),
                bert_hub,
                why="LayerNorm.gamma and .beta, pooler, next-sentence head, the tied head stored",
            ),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings")),
        ],
        shape_keys=SHAPES + ["num_attention_heads", "max_position_embeddings", "type_vocab_size"],
        padding="right",
        types=2,
        greedy=False,
        missing="bert.encoder.layer.1.attention.self.value.bias",
    )


ENCODER = {
    **{k: v for k, v in TINY.items() if k not in ("bos_token_id", "eos_token_id")},
    "hidden_size": 16,
    "max_position_embeddings": 32,
}
ENCODER_SHAPES = SHAPES + ["num_attention_heads", "max_position_embeddings", "type_vocab_size"]


def encoder_cases(name):
    """What every encoder in BERT's shape has."""
    return [
        Case("base"),
        Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
        Case("hidden_act_relu", {"hidden_act": "relu"}),
        Case("tie_word_embeddings", {"tie_word_embeddings": False}),
        Case("body", {}, architecture=f"{name}Model", why="bare names, last_hidden_state"),
        *classifiers(name),
    ]


def roberta():
    return Family(
        name="roberta",
        model_type="roberta",
        architecture="RobertaForMaskedLM",
        settings={**ENCODER, "pad_token_id": 1},
        cases=[
            *encoder_cases("Roberta"),
            Case("pad_token_id", {"pad_token_id": 5}, why="positions are counted from behind it"),
            Case("is_decoder", {"is_decoder": True}, why="a causal mask"),
            Rewrite("older", "base", older_with(position_embedding_type="absolute")),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings", "layer_norm_eps")),
        ],
        shape_keys=ENCODER_SHAPES,
        padding="right",
        types=2,
        greedy=False,
        missing="roberta.encoder.layer.1.attention.self.value.bias",
    )


def mpnet():
    return Family(
        name="mpnet",
        model_type="mpnet",
        architecture="MPNetForMaskedLM",
        settings={**ENCODER, "pad_token_id": 1},
        cases=[
            *encoder_cases("MPNet"),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings")),
        ],
        shape_keys=[k for k in ENCODER_SHAPES if k != "type_vocab_size"] + ["relative_attention_num_buckets"],
        padding="right",
        greedy=False,
        missing="mpnet.encoder.layer.1.attention.attn.v.bias",
        rejects=[
            {
                "name": "relative_attention_num_buckets",
                "set": {"relative_attention_num_buckets": 64},
                "expect": "relative_attention_num_buckets",
            }
        ],
    )


def deberta_cases(name):
    return [
        *encoder_cases(name),
        Case("position_biased_input", {"position_biased_input": True}),
        Case("type_vocab_size", {"type_vocab_size": 2}),
        Case("c2p", {"pos_att_type": ["c2p"]}),
        Case("p2c", {"pos_att_type": ["p2c"]}),
        Case(
            "relative_attention",
            {"relative_attention": False, "pos_att_type": None, "position_biased_input": True},
        ),
        Case("legacy", {"legacy": False}, why="the head under its later names"),
        Case(
            "pooler_hidden_act",
            {"pooler_hidden_act": "tanh"},
            of="classifier",
            architecture=f"{name}ForSequenceClassification",
        ),
        Rewrite("older", "base", older_with(pos_att_type="c2p|p2c")),
        Rewrite(
            "older_p2c_first",
            "base",
            older_with(pos_att_type="p2c|c2p"),
        ),
    ]


DEBERTA = dict(
    ENCODER,
    type_vocab_size=0,
    relative_attention=True,
    pos_att_type=["c2p", "p2c"],
    position_biased_input=False,
)


def deberta():
    return Family(
        name="deberta",
        model_type="deberta",
        architecture="DebertaForMaskedLM",
        settings={**DEBERTA, "max_relative_positions": 8},
        cases=[
            *deberta_cases("Deberta"),
            Case("max_relative_positions", {"max_relative_positions": -1}),
        ],
        shape_keys=ENCODER_SHAPES + ["pooler_hidden_size"],
        padding="right",
        types=2,
        greedy=False,
        missing="deberta.encoder.layer.1.attention.self.v_bias",
    )


def deberta_v2():
    return Family(
        name="deberta_v2",
        model_type="deberta-v2",
        architecture="DebertaV2ForMaskedLM",
        settings={
            **DEBERTA,
            "max_relative_positions": 16,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        cases=[
            *deberta_cases("DebertaV2"),
            Case("max_relative_positions", {"max_relative_positions": 32}),
            Case("position_buckets", {"position_buckets": -1}, why="every distance has its row"),
            Case("norm_rel_ebd", {"norm_rel_ebd": "none"}),
            Case("share_att_key", {"share_att_key": False}),
        ],
        shape_keys=ENCODER_SHAPES + ["pooler_hidden_size"],
        padding="right",
        types=2,
        greedy=False,
        missing="deberta.encoder.layer.1.attention.self.value_proj.bias",
        rejects=[{"name": "conv", "set": {"conv_kernel_size": 3}, "expect": "conv_kernel_size"}],
    )


FAMILIES = [
    make()
    for make in (
        llama,
        mistral,
        qwen2,
        qwen3,
        gpt2,
        gpt_neox,
        phi3,
        olmo2,
        gemma2,
        gemma3_text,
        mamba2,
        bert,
        roberta,
        mpnet,
        deberta,
        deberta_v2,
    )
]
