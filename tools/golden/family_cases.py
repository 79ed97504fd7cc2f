"""What is asked of each family: a base case and one case per config key that changes the result.

A family is a table, nothing more. `settings` are keywords of the reference's config class; a case
names the settings that it changes against another case (`of`), and nothing else. A rewrite keeps
weights and results of a case and says the same thing in another config.json (older keys, keys
left to their defaults).
"""

import copy
import dataclasses

import gguf
import numpy
import torch
import transformers

import reference


@dataclasses.dataclass
class Case:
    name: str
    changes: dict = dataclasses.field(default_factory=dict)  # settings against `of`
    of: str = "base"
    neutral: bool = False  # the reference must give the result of `of`
    length_dependent: bool = False  # rope factors follow the length seen
    architecture: str = ""  # another head than the family's
    padding_leaks: str = ""  # why the reference lets padding into a row: such rows do not count
    text: bool = True  # whether a greedy text is kept beside the logits
    storage: str = ""  # the block type of GGUF in which experts are stored; drawn numbers are rounded to it
    why: str = ""


@dataclasses.dataclass
class Rewrite:
    name: str
    of: str
    config: object = None  # config.json of `of` -> config.json of this case
    tensors: object = None  # tensors of `of` -> tensors of this case
    same_result: bool = True  # False: defaults apply, the result is this case's own
    reference_refuses: str = ""  # why this version fails on a spelling that files carry
    ahead: bool = False  # the tensors hold modules that predict tokens further ahead
    unread: tuple = ()  # dotted keys of this spelling whose value changes nothing
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
    pair: bool = False  # an encoder-decoder: sources and targets
    features: tuple = ()  # name and shape of what is read instead of token ids
    global_tokens: tuple = ()  # of row 0, which see everything; row 1 has the first
    types: int = 0
    no_text: str = ""  # why there is no greedy text
    attention: str = "eager"  # the reference's implementation
    zero_centred_norms: bool = False  # norm weights are w of (1 + w)
    gains: dict = dataclasses.field(default_factory=dict)  # of drawn weights, see reference.build
    draw: int = 0  # another number draws other weights
    gguf: dict = dataclasses.field(default_factory=dict)  # case -> llama.cpp architecture
    gguf_older: tuple = ()  # of these, those in the layout of the first files
    init_only: tuple = ()  # keys of initialisation that this version applies to loaded weights too
    precision: tuple = ()  # keys that choose the precision of the reference's own arithmetic
    as_released: object = None  # (tensors that this version saves, config) -> tensors as the released files name and part them
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


def without(*names, **more):
    """A config.json without the named keys, with others beside."""
    return lambda config: {**{k: v for k, v in config.items() if k not in names}, **more}


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


def scaled(*kinds, **more):
    """A case per rope_type, with all the keys that it needs."""
    keys = {
        "linear": dict(factor=4.0),
        "yarn": dict(
            factor=4.0, original_max_position_embeddings=16, beta_fast=2.0, truncate=False
        ),
        "llama3": dict(
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    }
    return [Case(f"rope_{kind}", rope(kind=kind, **keys[kind], **more)) for kind in kinds]


def scaling_keys(width):
    """Every key of every rope_type that has some, none at its default; width: rotated channels."""
    trained = dict(factor=4.0, original_max_position_embeddings=16)
    yarn = dict(beta_fast=2.0, beta_slow=0.25, **trained)
    return {
        "yarn": dict(truncate=False, mscale=0.7, mscale_all_dim=1.3, **yarn),
        "yarn_attention_factor": dict(attention_factor=1.5, **yarn),
        "llama3": dict(
            factor=8.0, low_freq_factor=0.5, high_freq_factor=6.0, original_max_position_embeddings=32
        ),
        "longrope": dict(
            short_factor=SHORT[: width // 2],
            long_factor=LONG[: width // 2],
            attention_factor=1.5,
            **trained,
        ),
    }


def rope_within(name, **more):
    """The parameters under another name, with the first spelling of the type and all they hold."""

    def rewrite(config):
        result = {k: v for k, v in config.items() if k != "rope_parameters"}
        parameters = {**config["rope_parameters"]}
        parameters["type"] = parameters.pop("rope_type")
        return {**result, name: parameters, **more}

    return rewrite


def rope_at_top(config):
    """theta and share beside rope_scaling, as older files have them."""
    result = {k: v for k, v in config.items() if k != "rope_parameters"}
    parameters = {**config["rope_parameters"]}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in parameters:
            result[key] = parameters.pop(key)
    return {**result, "rope_scaling": parameters}


def every_rope(width, of="base", kinds=("yarn", "llama3", "longrope"), share=None, top=rope_at_top):
    """All keys of rope parameters in all spellings: every key that a family may read is read once.

    share: the part of a head that rotates, where the class has one; top: how older files of the
    family say it.
    """
    given = {} if share is None else {"partial_rotary_factor": share}
    cases = []
    for name, keys in scaling_keys(width).items():
        kind = name.split("_")[0]
        if kind not in kinds:
            continue
        case = f"every_{name}"
        cases.append(
            Case(
                case,
                rope(kind=kind, **keys, **given),
                of=of,
                text=False,
                length_dependent=kind == "longrope",
                why="every key of the kind",
            )
        )
        if name == "yarn_attention_factor":
            cases.append(Case("every_linear", rope(kind="linear", factor=4.0, **given), of=of, text=False))
            cases.append(Rewrite(f"{case}_scaling", case, top, why="under rope_scaling"))
            continue
        cases += [
            Rewrite(f"{case}_scaling", case, top, why="under rope_scaling"),
            Rewrite(f"{case}_type", case, rope_within("rope_parameters"), why='"type"'),
            Rewrite(
                f"{case}_scaling_type", case, rope_within("rope_scaling"), why="all in rope_scaling"
            ),
        ]
    return cases


def implied_rope(width, of, **more):
    """Scaled ropes of a case of which GGUF files say no more than that."""
    yarn = scaling_keys(width)["yarn_attention_factor"]
    return [
        Case("implied_linear", rope(kind="linear", factor=4.0), of=of, text=False),
        Case("implied_yarn", rope(kind="yarn", **yarn, **more), of=of, text=False),
    ]


def dynamic_rope(of="base", **given):
    return Case(
        "every_dynamic",
        {**rope(kind="dynamic", factor=4.0, **given), "max_position_embeddings": 12},
        of=of,
        text=False,
        length_dependent=True,
        why="the length that it was trained on is max_position_embeddings",
    )


def whole_rotary(top=True):
    """A share that the class does not read, wherever it may stand.

    top: whether the class has a plain rope where no parameters are given.
    """
    share = dict(partial_rotary_factor=0.5)
    why = "the class rotates all of a head"
    return [
        Case("partial_rotary_factor", rope(**share), neutral=True, why=why),
        Rewrite(
            "partial_rotary_factor_scaling",
            "partial_rotary_factor",
            rope_within("rope_scaling"),
            unread=("rope_scaling.partial_rotary_factor",),
            why=why,
        ),
        Rewrite(
            "partial_rotary_factor_top",
            "base",
            without("rope_parameters", rope_theta=1000.0, **share) if top else without(**share),
            unread=("partial_rotary_factor",),
            why=why,
        ),
    ]


def partial_spellings(of):
    """A share of each head, not the default one, outside rope_parameters."""
    return [
        Rewrite(f"{of}_top", of, rope_at_top, why="at the top of the config"),
        Rewrite(f"{of}_scaling", of, rope_within("rope_scaling"), why="in rope_scaling"),
    ]


PARTIAL_SCALED = {
    "name": "partial_scaled",
    "set": {
        "rope_parameters.rope_type": "linear",
        "rope_parameters.factor": 4.0,
        "rope_parameters.partial_rotary_factor": 0.5,
    },
    "expect": "partial_rotary_factor",
    "why": "the class computes angles of half a head and multiplies them with a whole one",
}


HYBRID_ACT = {
    "name": "hidden_act",
    "set": {"hidden_act": "gelu"},
    "expect": "hidden_act is gelu, of the recurrence too",
}


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
            Case("body", {}, architecture="LlamaModel", why="no output matrix: bare names, last_hidden_state"),
            *every_rope(12),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            *decoder_classifiers("Llama"),
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
            "every_linear": "llama",
            "every_yarn_attention_factor": "llama",
        },
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[
            PARTIAL_SCALED,
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
            Case("body", {}, architecture="MistralModel", why="no output matrix: bare names, last_hidden_state"),
            *every_rope(12),
            *whole_rotary(),
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
            *every_rope(8),
            *whole_rotary(),
            Case("head_dim", {"head_dim": 12}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        gguf={"base": "qwen2", "every_linear": "qwen2", "every_yarn_attention_factor": "qwen2"},
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
            *every_rope(12),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite(
                "defaults",
                "tie_word_embeddings",
                keep(*KEEP_TINY, "head_dim"),
                same_result=False,
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        gguf={"base": "qwen3", "every_linear": "qwen3", "every_yarn_attention_factor": "qwen3"},
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
            Rewrite("gpt_sw3", "base", lambda config: {**config, "model_type": "gpt-sw3"}, why="under the name of its tokenizer's type"),
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


def neox_at_top(config):
    """As rope_at_top, by the family's own names."""
    result = rope_at_top(config)
    result["rotary_emb_base"] = result.pop("rope_theta")
    result["rotary_pct"] = result.pop("partial_rotary_factor")
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
            *every_rope(4, share=0.5, top=neox_at_top),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older_neox, why="rotary_pct and rotary_emb_base"),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1]), same_result=False),
        ],
        shape_keys=SHAPES + ["num_attention_heads"],
        missing="gpt_neox.layers.1.attention.dense.bias",
        gguf={"base": "gptneox", "every_linear": "gptneox", "every_yarn_attention_factor": "gptneox"},
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
            Case(
                "rope_longrope_factor",
                {**rope(kind="longrope", partial_rotary_factor=1.0, short_factor=SHORT[:4], long_factor=LONG[:4], factor=9.0), **trained},
                of="rope_longrope",
                text=False,
                length_dependent=True,
            ),
            Case(
                "rope_longrope_attention_factor",
                {**rope(kind="longrope", partial_rotary_factor=1.0, short_factor=SHORT[:4], long_factor=LONG[:4], attention_factor=1.5), **trained},
                of="rope_longrope",
                text=False,
                length_dependent=True,
            ),
            Case(
                "rope_longrope_others",
                rope(
                    kind="longrope",
                    partial_rotary_factor=1.0,
                    short_factor=SHORT[:4],
                    long_factor=LONG[:4],
                    beta_fast=2.0,
                    beta_slow=0.25,
                    truncate=False,
                    mscale=0.7,
                    mscale_all_dim=1.3,
                    low_freq_factor=0.5,
                    high_freq_factor=6.0,
                ),
                of="rope_longrope",
                neutral=True,
                length_dependent=True,
                why="keys of other kinds, which the class does not know",
            ),
            *(
                Rewrite(f"{name}_scaling", name, rope_within("rope_scaling"), why="in rope_scaling")
                for name in ("partial_rotary_factor", "rope_longrope", "rope_longrope_factor")
                + ("rope_longrope_attention_factor",)
            ),
            Rewrite(
                "rope_longrope_others_scaling",
                "rope_longrope_others",
                rope_within("rope_scaling"),
                unread=tuple(
                    f"rope_scaling.{key}"
                    for key in ("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim")
                    + ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
                ),
                why="in rope_scaling",
            ),
            Rewrite("rope_longrope_type", "rope_longrope", rope_within("rope_parameters"), why='"type"'),
            Rewrite("rope_longrope_top", "rope_longrope_partial", rope_at_top, why="under rope_scaling"),
            Case("head_dim", {"head_dim": 12}),
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
        gguf={case: "phi3" for case in ("base", "rope_longrope", "rope_longrope_partial", "head_dim")},
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
            *every_rope(8),
            *whole_rotary(),
            Case("head_dim", {"head_dim": 12}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        missing="model.layers.1.self_attn.k_norm.weight",
        gguf={case: "olmo2" for case in ("base", "every_linear", "every_yarn_attention_factor")},
    )


def gemma2():
    return Family(
        name="gemma2",
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        gains={"model.norm.weight": 1},
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
            *every_rope(12),
            *whole_rotary(),
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
        gguf={"base": "gemma2", "every_linear": "gemma2", "every_yarn_attention_factor": "gemma2"},
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


def older_gemma3_within(config):
    """As `older_gemma3`, with theta among the others."""
    result = older_gemma3()(config)
    parameters = {**result["rope_scaling"], "rope_theta": result.pop("rope_theta")}
    return {**result, "rope_scaling": parameters}


def every_gemma_rope(width):
    """As every_rope, of the layers that see all."""
    cases = []
    for name, keys in {**scaling_keys(width), "linear": dict(factor=4.0)}.items():
        case, kind = f"every_{name}", name.split("_")[0]
        cases += [
            Case(
                case,
                gemma_rope(rope_type=kind, **keys),
                text=False,
                length_dependent=kind == "longrope",
                why="every key of the kind",
            ),
            Rewrite(f"{case}_scaling", case, older_gemma3(), why="under rope_scaling"),
            Rewrite(f"{case}_within", case, older_gemma3_within, why="all in rope_scaling"),
        ]
    return cases


def gemma3_text():
    every_third = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    return Family(
        name="gemma3_text",
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        gains={"model.norm.weight": 1},
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
            *every_gemma_rope(12),
            Case(
                "rope_linear_sliding",
                {
                    "rope_parameters": {
                        "full_attention": {"rope_theta": 2000.0, "rope_type": "default"},
                        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0},
                    }
                },
                text=False,
            ),
            Rewrite(
                "partial_rotary_factor_top",
                "base",
                lambda config: {**older_gemma3()(config), "partial_rotary_factor": 0.5},
                unread=("partial_rotary_factor",),
                why="the class rotates all of a head",
            ),
            Rewrite(
                "partial_rotary_factor_scaling",
                "base",
                lambda config: {
                    **older_gemma3()(config),
                    "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5},
                },
                unread=("rope_scaling.partial_rotary_factor",),
                why="the class rotates all of a head",
            ),
            Rewrite("v4", "base", older_gemma3()),
            Rewrite("v4_rope_local_base_freq", "rope_local_base_freq", older_gemma3()),
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
        gguf={
            name: "gemma3"
            for name in ("base", "every_linear", "every_yarn_attention_factor")
            + ("final_logit_softcapping", "layer_types", "rope_local_base_freq")
        },
        missing="model.layers.5.self_attn.k_norm.weight",
        rejects=[
            {
                "name": "one_rope",
                "unset": ["rope_parameters"],
                "set": {
                    "rope_parameters.rope_theta": 2000.0,
                    "rope_parameters.rope_type": "linear",
                    "rope_parameters.type": "linear",
                    "rope_parameters.factor": 8.0,
                    "rope_parameters.partial_rotary_factor": 0.5,
                    "rope_parameters.original_max_position_embeddings": 16,
                    "rope_parameters.low_freq_factor": 1.0,
                    "rope_parameters.high_freq_factor": 4.0,
                    "rope_parameters.short_factor": SHORT,
                    "rope_parameters.long_factor": LONG,
                    "rope_parameters.beta_fast": 2.0,
                    "rope_parameters.beta_slow": 0.25,
                    "rope_parameters.attention_factor": 1.5,
                    "rope_parameters.mscale": 0.7,
                    "rope_parameters.mscale_all_dim": 1.3,
                    "rope_parameters.truncate": False,
                },
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
                "set": {
                    "rope_scaling.rope_type": "linear",
                    "rope_scaling.factor": 4.0,
                    "rope_scaling.partial_rotary_factor": 0.5,
                },
                "expect": "partial_rotary_factor",
                "why": "the class computes angles of half a head and multiplies them with a whole one",
            },
        ],
    )


OPEN_LIMIT = {"time_step_limit": [0.4, float("inf")]}


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
            Case("time_step_limit_open", OPEN_LIMIT),
            Case("chunk_size", {"chunk_size": 5}, neutral=True),
            Case("implied", {"chunk_size": 256}, neutral=True, why="as where a file does not say it"),
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
            {"num_labels": 3, "num_hidden_layers": 1, "hidden_size": 16},
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


def questions(name):
    return Case(
        "questions",
        {"num_hidden_layers": 1},
        architecture=f"{name}ForQuestionAnswering",
        why="the first and the last token of an answer",
    )


def named_classes(config):
    names = ["red", "green", "blue"]
    return {
        **config,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def decoder_classifiers(name):
    return [
        Case(
            "classifier",
            {"num_labels": 3, "num_hidden_layers": 1},
            architecture=f"{name}ForSequenceClassification",
            text=False,
            why="classes of a row by its last token",
        ),
        Case(
            "token_classifier",
            {"num_labels": 5, "num_hidden_layers": 1},
            architecture=f"{name}ForTokenClassification",
            text=False,
            why="classes of every token, with a bias",
        ),
        Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
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
            questions("Bert"),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
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
        no_text="an encoder",
        missing="bert.encoder.layer.1.attention.self.value.bias",
    )


def t5_untied(tensors):
    """T5 1.1: an output matrix of its own in the file."""
    head = reference.draw("t5", "lm_head.weight", (64, 16), False)
    return {**tensors, "lm_head.weight": head}


def t5_older(**more):
    """As files of version 4: what follows from feed_forward_proj and tie_word_embeddings absent."""
    derived = ("dense_act_fn", "is_gated_act", "scale_decoder_outputs")
    return lambda config: {k: v for k, v in {**config, **more}.items() if k not in derived}


def t5_released(config):
    """The distance that GGUF files take for granted, and as many layers in both stacks."""
    return {**config, "relative_attention_max_distance": 128, "num_decoder_layers": 2}


def t5_even(tensors):
    return {k: v for k, v in tensors.items() if not k.startswith("decoder.block.2.")}


def t5():
    return Family(
        name="t5",
        model_type="t5",
        architecture="T5ForConditionalGeneration",
        gains={"decoder.final_layer_norm.weight": 4},
        settings=dict(
            vocab_size=64,
            d_model=16,
            d_kv=5,
            d_ff=12,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=3,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=12,
            decoder_start_token_id=0,
        ),
        cases=[
            Case("base", why="relu, tied and scaled head, one table of positions per stack"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("relative_attention_max_distance", {"relative_attention_max_distance": 30}),
            Case("feed_forward_proj_gelu", {"feed_forward_proj": "gelu"}),
            Case(
                "feed_forward_proj_gated_gelu",
                {"feed_forward_proj": "gated-gelu"},
                why="the tanh form, as T5 1.1 has it",
            ),
            Case("feed_forward_proj_gated_silu", {"feed_forward_proj": "gated-silu"}),
            Rewrite(
                "v1_1",
                "feed_forward_proj_gated_gelu",
                t5_older(tie_word_embeddings=False),
                t5_untied,
                same_result=False,
                why="T5 1.1: gated, with an unscaled output matrix of its own",
            ),
            Case(
                "scale_decoder_outputs",
                {"tie_word_embeddings": False},
                why="what tie_word_embeddings false means; the file then says it by this key",
            ),
            Rewrite("v4", "base", t5_older(), why="the keys of version 4"),
            Rewrite(
                "v4_gated",
                "feed_forward_proj_gated_gelu",
                t5_older(),
                why="the keys of version 4, gated",
            ),
            Rewrite(
                "unscaled",
                "base",
                t5_older(tie_word_embeddings=False),
                same_result=False,
                why="says untied, but the file holds no other output matrix: unscaled only",
            ),
            Rewrite(
                "defaults",
                "base",
                keep("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads",
                     "num_decoder_layers", "relative_attention_num_buckets",
                     "decoder_start_token_id"),
                same_result=False,
                why="distance 128, epsilon 1e-6, relu",
            ),
            Rewrite(
                "released",
                "base",
                t5_released,
                t5_even,
                same_result=False,
                why="the form of the first T5: as many layers in both stacks, distance 128",
            ),
            Rewrite(
                "released_v1_1",
                "v1_1",
                t5_released,
                t5_even,
                same_result=False,
                why="the form of T5 1.1: as many layers in both stacks, distance 128",
            ),
        ],
        shape_keys=["vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers",
                    "num_heads", "relative_attention_num_buckets"],
        padding="right",
        pair=True,
        missing="decoder.block.1.layer.1.EncDecAttention.v.weight",
    )


def pair_of_stacks(**more):
    """Two stacks of different heads and hidden widths, with a start token."""
    return dict(
        vocab_size=64,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=12,
        decoder_ffn_dim=20,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
        **more,
    )


PAIR_SHAPES = [
    "vocab_size",
    "d_model",
    "encoder_layers",
    "decoder_layers",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
]
PAIR_KEEP = tuple(PAIR_SHAPES) + (
    "encoder_attention_heads",
    "decoder_attention_heads",
    "max_position_embeddings",
    "decoder_start_token_id",
    "pad_token_id",
)


def stored_embeddings(tensors):
    """As older files: the shared table under every name that it has."""
    names = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    table = tensors["model.shared.weight"]
    return {**tensors, **{f"{name}.weight": table.clone() for name in names}}


def older_pair(**more):
    return lambda config: {**older(config), "output_past": True, **more}


def bart():
    return Family(
        name="bart",
        model_type="bart",
        architecture="BartForConditionalGeneration",
        gains={
            "decoder.layers.1.fc1.weight": 3,
            "decoder.layers.1.fc2.weight": 6,
            "decoder.layers.1.final_layer_norm.weight": 2,
        },
        draw=8,
        settings=pair_of_stacks(),
        cases=[
            Case("base"),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("scale_embedding", {"scale_embedding": True}),
            Case("encoder_attention_heads", {"encoder_attention_heads": 4}),
            Case("decoder_attention_heads", {"decoder_attention_heads": 2}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}, why="tables of both stacks and output apart"),
            Rewrite(
                "hub",
                "base",
                older_pair(
                    add_bias_logits=False,
                    add_final_layer_norm=False,
                    normalize_before=False,
                    normalize_embedding=True,
                ),
                stored_embeddings,
                why="the shared table stored under all its names, keys that nothing reads",
            ),
            Rewrite("defaults", "base", keep(*PAIR_KEEP)),
        ],
        shape_keys=PAIR_SHAPES + ["max_position_embeddings"],
        padding="right",
        pair=True,
        missing="model.decoder.layers.1.encoder_attn.v_proj.bias",
        rejects=[{"name": "is_decoder", "set": {"is_decoder": True}, "expect": "is_decoder"}],
    )


def marian():
    return Family(
        name="marian",
        model_type="marian",
        architecture="MarianMTModel",
        gains={
            "shared.weight": 2,
            "embed_tokens.weight": 2,
            "decoder.layers.1.fc1.weight": 3,
            "decoder.layers.1.fc2.weight": 6,
            "decoder.layers.1.final_layer_norm.weight": 2,
        },
        draw=10,
        settings=pair_of_stacks(scale_embedding=True, activation_function="swish"),
        cases=[
            Case("base", why="OPUS-MT: swish, scaled embedding, a bias of the logits"),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("scale_embedding", {"scale_embedding": False}),
            Case("encoder_attention_heads", {"encoder_attention_heads": 4}),
            Case("decoder_attention_heads", {"decoder_attention_heads": 2}),
            Case(
                "share_encoder_decoder_embeddings",
                {"share_encoder_decoder_embeddings": False},
                why="a table for each stack, the decoder's tied to the output",
            ),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}, why="tables of both stacks and output apart"),
            Case(
                "nothing_shared",
                {"tie_word_embeddings": False},
                of="share_encoder_decoder_embeddings",
                why="the same, without a table that nothing reads",
            ),
            Case(
                "decoder_vocab_size",
                {"decoder_vocab_size": 80},
                of="share_encoder_decoder_embeddings",
                why="a vocabulary of each stack (opus-mt-tc-big)",
            ),
            Case("two_vocabularies_untied", {"tie_word_embeddings": False}, of="decoder_vocab_size"),
            Rewrite(
                "hub",
                "base",
                older_pair(
                    add_bias_logits=False,
                    add_final_layer_norm=False,
                    normalize_before=False,
                    normalize_embedding=False,
                    static_position_embeddings=True,
                ),
                stored_embeddings,
                why="the shared table stored under all its names, keys that nothing reads",
            ),
            Rewrite(
                "defaults",
                "scale_embedding",
                keep(*PAIR_KEEP),
                same_result=False,
                why="gelu, no scale",
            ),
        ],
        shape_keys=PAIR_SHAPES,
        padding="right",
        pair=True,
        missing="model.decoder.layers.1.encoder_attn.v_proj.bias",
        rejects=[
            {
                "name": "decoder_vocab_size",
                "set": {"decoder_vocab_size": 50},
                "expect": "decoder_vocab_size",
            }
        ],
    )


def sinusoid_tables(tensors, config):
    """The stored tables of positions as the class initialises them."""
    table = transformers.models.fsmt.modeling_fsmt.SinusoidalPositionalEmbedding.get_embedding
    return {
        name: table(*value.shape, config["pad_token_id"]) if "embed_positions" in name else value
        for name, value in tensors.items()
    }


def fsmt():
    settings = pair_of_stacks(src_vocab_size=80)
    return Family(
        name="fsmt",
        model_type="fsmt",
        architecture="FSMTForConditionalGeneration",
        gains={
            "embed_tokens.weight": 2,
            "decoder.layers.1.fc1.weight": 3,
            "decoder.layers.1.fc2.weight": 6,
            "decoder.layers.1.final_layer_norm.weight": 2,
        },
        settings={**settings, "pad_token_id": 1},
        cases=[
            Case("base"),
            Case("activation_function", {"activation_function": "gelu"}, text=False),
            Case("scale_embedding", {"scale_embedding": False}, text=False),
            Case("encoder_attention_heads", {"encoder_attention_heads": 4}, text=False),
            Case("decoder_attention_heads", {"decoder_attention_heads": 2}, text=False),
            Case("pad_token_id", {"pad_token_id": 0}, text=False, why="positions count from the id of padding"),
            Case("length", {"max_position_embeddings": 48}, neutral=True, why="sinusoids of any position"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True, "src_vocab_size": 64}, text=False, why="one table for both stacks and the output"),
            Rewrite(
                "defaults",
                "base",
                keep("src_vocab_size", "tgt_vocab_size", *[k for k in PAIR_KEEP if k != "vocab_size"], "pad_token_id"),
                why="relu, scaled embeddings, tables apart",
            ),
        ],
        shape_keys=["src_vocab_size", "tgt_vocab_size"] + PAIR_SHAPES[1:],
        padding="right",
        pair=True,
        missing="model.decoder.layers.1.encoder_attn.v_proj.bias",
        as_released=sinusoid_tables,
        rejects=[{"name": "tied_vocabularies", "set": {"tie_word_embeddings": True}, "expect": "src_vocab_size"}],
    )


# -- recurrent and mixing models ---------------------------------------------------------------

STATE_SPACE = dict(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    state_size=8,
    conv_kernel=4,
    expand=2,
    time_step_rank=3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


def mamba_cases():
    return [
        Case("base"),
        Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
        Case("conv_kernel", {"conv_kernel": 3}),
        Case("state_size", {"state_size": 5}),
        Case("use_bias", {"use_bias": True}),
        Case("use_conv_bias", {"use_conv_bias": False}),
        Case("tie_word_embeddings", {"tie_word_embeddings": False}),
        Case("time_step_rank_auto", {"time_step_rank": "auto"}, why="16 / 16 = 1"),
        Rewrite(
            "defaults",
            "time_step_rank_auto",
            keep("vocab_size", "hidden_size", "num_hidden_layers", "state_size"),
            why="expand 2, kernel 4, rank hidden / 16 rounded up, conv bias, no bias, tied",
        ),
    ]


MAMBA_SHAPES = ["vocab_size", "hidden_size", "num_hidden_layers", "state_size", "expand"]
MAMBA_SHAPES += ["time_step_rank"]


def mamba():
    return Family(
        name="mamba",
        model_type="mamba",
        architecture="MambaForCausalLM",
        settings=STATE_SPACE,
        cases=mamba_cases(),
        shape_keys=MAMBA_SHAPES,
        padding="none",
        init_only=("rescale_prenorm_residual",),
        missing="backbone.layers.1.mixer.dt_proj.bias",
        rejects=[{"name": "hidden_act", "set": {"hidden_act": "gelu"}, "expect": "hidden_act"}],
    )


def falcon_mamba():
    return Family(
        name="falcon_mamba",
        model_type="falcon_mamba",
        architecture="FalconMambaForCausalLM",
        settings=STATE_SPACE,
        cases=mamba_cases()
        + [
            Case("mixer_rms_eps", {"mixer_rms_eps": 0.05}, why="the norms of B, C and dt"),
            Case("implied", {"mixer_rms_eps": 0.05, "layer_norm_epsilon": 0.05}, why="as in llama.cpp"),
        ],
        shape_keys=MAMBA_SHAPES,
        padding="none",
        init_only=("rescale_prenorm_residual",),
        missing="backbone.layers.1.mixer.x_proj.weight",
        rejects=[{"name": "hidden_act", "set": {"hidden_act": "gelu"}, "expect": "hidden_act"}],
    )


def rwkv():
    return Family(
        name="rwkv",
        model_type="rwkv",
        architecture="RwkvForCausalLM",
        settings=dict(
            vocab_size=64,
            hidden_size=32,
            attention_hidden_size=24,
            intermediate_size=48,
            num_hidden_layers=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        cases=[
            Case("base"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}, why="not of the last norm"),
            Case(
                "rescale_every",
                {"rescale_every": 1},
                of="layer_norm_epsilon",
                why="the stream is halved after each layer: eps weighs four times as much",
            ),
            Case(
                "rescale_every_last",
                {"rescale_every": 2, "layer_norm_epsilon": 0.2},
                of="layer_norm_epsilon",
                why="halved before the last norm only",
            ),
            Case("rescale_every_0", {"rescale_every": 0}, neutral=True, why="2 layers are under 6"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Case("widths", {"attention_hidden_size": 32, "intermediate_size": 128}),
            Rewrite(
                "defaults",
                "widths",
                keep("vocab_size", "hidden_size", "num_hidden_layers"),
                why="hidden_size and four times as much",
            ),
        ],
        shape_keys=SHAPES + ["attention_hidden_size"],
        padding="none",
        missing="rwkv.blocks.1.attention.time_first",
    )


def older_recurrent_gemma(config):
    """The hub's spelling: rope_theta and partial_rotary_factor at the top, _block_types."""
    result = older(config)
    parameters = config["rope_parameters"]
    result["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    result.pop("rope_scaling")
    result.update(final_w_init_variance_scale=0.5, w_init_variance_scale=0.01, head_dim=8)
    return result


def recurrent_gemma():
    half = dict(partial_rotary_factor=0.5)
    return Family(
        name="recurrent_gemma",
        model_type="recurrent_gemma",
        architecture="RecurrentGemmaForCausalLM",
        gains={"final_norm.weight": 1},
        settings={
            **{k: v for k, v in GQA.items() if k != "max_position_embeddings"},
            **rope(**half),
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_hidden_layers": 3,
            "lru_width": 8,
            "attention_window_size": 6,
            "logits_soft_cap": 10.0,
            "tie_word_embeddings": False,
        },
        cases=[
            Case("base", why="the embedding's factor is rounded to bfloat16"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("rope_theta", rope(50.0, **half)),
            Case("partial_rotary_factor", rope(partial_rotary_factor=1.0)),
            Case("attention_window_size", {"attention_window_size": 4}),
            Case("attention_bias", {"attention_bias": True}),
            Case("conv1d_width", {"conv1d_width": 3}),
            Case("logits_soft_cap", {"logits_soft_cap": 3.0}),
            Case("hidden_activation", {"hidden_activation": "gelu_new"}, neutral=True),
            Case("num_attention_heads", {"num_attention_heads": 4}, why="also blocks of the gates"),
            Case("head_dim", {"head_dim": 12}, why="not hidden / heads"),
            Case("block_types", {"block_types": ["attention", "recurrent"]}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Case("lru_width", {"lru_width": 16}, of="tie_word_embeddings"),
            Rewrite("v4", "base", older_recurrent_gemma),
            Rewrite(
                "v4_partial_rotary_factor", "partial_rotary_factor", older_recurrent_gemma
            ),
            Rewrite(
                "defaults",
                "lru_width",
                keep(*KEEP_TINY),
                same_result=False,
                why="cap 30, window 2048, kernel 4, half of each head rotates, attention third",
            ),
            Rewrite(
                "sliding_window", "base", without("attention_window_size", sliding_window=6), why="its other name"
            ),
            Rewrite(
                "_block_types",
                "block_types",
                lambda config: without("block_types", "layers_block_type", _block_types=config["block_types"])(config),
                reference_refuses="knows block_types alone",
                why="the name of the hub",
            ),
        ],
        shape_keys=SHAPES_GQA + ["lru_width"],
        padding="none",
        zero_centred_norms=True,
        missing="model.layers.1.temporal_block.rg_lru.recurrent_param",
        rejects=[
            {
                "name": "hidden_activation",
                "set": {"hidden_activation": "relu"},
                "expect": "hidden_activation",
                "why": "it is the recurrence's gate too, which has one activation",
            }
        ],
    )


BIASED_PADDING = "a bias of in_proj reaches the convolution at padded positions"
HYBRID = {
    **GQA,
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "intermediate_size": 8,
}


def jamba():
    return Family(
        name="jamba",
        model_type="jamba",
        architecture="JambaForCausalLM",
        settings={
            **HYBRID,
            "hidden_size": 12,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 3,
        },
        cases=[
            Case("base", why="dense layers; attention has no positions"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}, why="of the norms of dt, B and C too"),
            Case("attn_layer_offset", {"attn_layer_offset": 0}),
            Case("attn_layer_period", {"attn_layer_period": 3}, of="attn_layer_offset"),
            Case("all_attention", {"attn_layer_period": 1, "attn_layer_offset": 0}),
            Case("hidden_act", {"hidden_act": "relu"}, of="all_attention"),
            Case("no_attention", {"attn_layer_period": 9, "attn_layer_offset": 8}),
            Case("mamba_d_conv", {"mamba_d_conv": 3}),
            Case("mamba_conv_bias", {"mamba_conv_bias": False}),
            Case("mamba_proj_bias", {"mamba_proj_bias": True}, padding_leaks=BIASED_PADDING),
            Case("mamba_dt_rank", {"mamba_dt_rank": "auto"}),
            Case(
                "experts",
                {"num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1},
                why="experts in the layer that attends",
            ),
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}, of="experts"),
            Case("expert_layer_offset", {"expert_layer_offset": 0}, of="experts"),
            Case("expert_layer_period", {"expert_layer_period": 1}, of="expert_layer_offset"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("num_local_experts", "base", without("num_experts", num_local_experts=1), why="its other name"),
        ],
        shape_keys=SHAPES_GQA + ["mamba_d_state", "mamba_expand", "mamba_dt_rank", "num_experts"],
        init_only=("num_experts_per_tok",),
        missing="model.layers.0.mamba.dt_layernorm.weight",
        rejects=[HYBRID_ACT],
    )


def bamba():
    half = dict(partial_rotary_factor=0.5)
    return Family(
        name="bamba",
        model_type="bamba",
        architecture="BambaForCausalLM",
        settings={
            **HYBRID,
            **rope(**half),
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "attn_layer_indices": [1],
            "mamba_expand": 1,
            "mamba_n_heads": 4,
            "mamba_d_head": 4,
            "mamba_n_groups": 2,
            "mamba_d_state": 4,
            "mamba_chunk_size": 8,
        },
        cases=[
            Case("base", why="half of each head rotates, whatever the file says"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("rope_theta", rope(50.0, **half)),
            *scaled("linear", "yarn", **half),
            Rewrite("v4", "rope_yarn", older),
            Case("partial_rotary_factor", rope(partial_rotary_factor=1.0), text=False),
            Rewrite(
                "partial_rotary_factor_scaling",
                "partial_rotary_factor",
                rope_within("rope_scaling"),
                why="in rope_scaling",
            ),
            Case("attn_layer_indices", {"attn_layer_indices": [0]}),
            Case("no_attention", {"attn_layer_indices": None}),
            Case("all_attention", {"attn_layer_indices": [0, 1]}),
            Case("hidden_act", {"hidden_act": "gelu"}, of="all_attention"),
            Case("attention_bias", {"attention_bias": True}),
            Case("mlp_bias", {"mlp_bias": True}),
            Case("time_step_limit", {"time_step_limit": [0.4, 0.9]}),
            Case("time_step_limit_open", OPEN_LIMIT),
            Case("mamba_n_groups", {"mamba_n_groups": 4}),
            Case("mamba_d_conv", {"mamba_d_conv": 3}),
            Case("mamba_conv_bias", {"mamba_conv_bias": False}),
            Case("mamba_proj_bias", {"mamba_proj_bias": True}, padding_leaks=BIASED_PADDING),
            Case("mamba_chunk_size", {"mamba_chunk_size": 5}, neutral=True),
            Case(
                "implied",
                {**rope(partial_rotary_factor=1.0), "mamba_expand": 2, "mamba_d_head": 8, "mamba_chunk_size": 256},
                why="as in llama.cpp: twice as wide, and whole heads rotate",
            ),
            Case("implied_partial", rope(**half), of="implied"),
            *every_rope(4, share=0.5),
            dynamic_rope(partial_rotary_factor=0.5),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
        ],
        shape_keys=SHAPES_GQA + ["mamba_d_state", "mamba_expand", "mamba_d_head", "mamba_n_heads"],
        missing="model.layers.0.mamba.dt_bias",
        rejects=[HYBRID_ACT],
    )


def with_mtp(family, attention=1):
    """The module for the token after the next: a layer like the one of attention."""

    def rewrite(tensors):
        like = f"model.layers.{attention}."
        width = tensors["model.norm.weight"].shape[0]
        shapes = {f"layers.0.{n.removeprefix(like)}": tuple(v.shape) for n, v in tensors.items() if n.startswith(like)}
        shapes.update({n: (width,) for n in ("norm.weight", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight")})
        shapes["fc.weight"] = (width, 2 * width)
        return {**tensors, **{f"mtp.{n}": reference.draw(family, f"mtp.{n}", shape, True) for n, shape in shapes.items()}}

    return rewrite


def qwen3_next():
    quarter = dict(partial_rotary_factor=0.5)
    return Family(
        name="qwen3_next",
        model_type="qwen3_next",
        architecture="Qwen3NextForCausalLM",
        settings={
            **HYBRID,
            **rope(**quarter),
            "head_dim": 8,
            "num_experts": 0,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 6,
        },
        cases=[
            Case("base", why="dense layers; q_proj holds query and gate of each head"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("rope_theta", rope(5.0, **quarter)),
            Case("partial_rotary_factor", rope(partial_rotary_factor=1.0)),
            *scaled("llama3", "yarn", **quarter),
            Case("layer_types", {"layer_types": ["full_attention"] + ["linear_attention"] * 2}),
            Case("no_attention", {"layer_types": ["linear_attention"] * 3}),
            Case("all_attention", {"layer_types": ["full_attention"] * 3}),
            Case("hidden_act", {"hidden_act": "gelu"}, of="all_attention"),
            Case("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 3}),
            Case("linear_num_key_heads", {"linear_num_key_heads": 4}),
            *every_rope(4, share=0.5),
            dynamic_rope(partial_rotary_factor=0.5),
            Case(
                "experts",
                {
                    "num_experts": 5,
                    "num_experts_per_tok": 2,
                    "moe_intermediate_size": 8,
                    "shared_expert_intermediate_size": 10,
                },
                why="experts in every layer, and a shared one with a gate",
            ),
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}, of="experts"),
            Case("norm_topk_prob", {"norm_topk_prob": False}, of="experts"),
            Case("mlp_only_layers_some", {"mlp_only_layers": [1]}, of="experts"),
            Case("decoder_sparse_step_some", {"decoder_sparse_step": 2}, of="experts"),
            Case(
                "implied",
                {"linear_value_head_dim": 4, "layer_types": ["full_attention"] + ["linear_attention"] * 2},
                of="experts",
                why="what GGUF files can say: keys and values of one width; layers that no interval tells apart",
            ),
            Case("implied_linear", rope(kind="linear", factor=4.0, **quarter), of="implied", text=False),
            Case(
                "implied_yarn",
                rope(kind="yarn", **scaling_keys(4)["yarn_attention_factor"], **quarter),
                of="implied",
                text=False,
            ),
            Case("implied_interval", {"linear_value_head_dim": 4}, of="experts", why="every second layer attends"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("modules", "implied", None, with_mtp("qwen3_next", attention=0), ahead=True, why="a module for the token after the next"),
            Rewrite(
                "full_attention_interval",
                "base",
                without("layer_types", full_attention_interval=2),
                why="every second layer",
            ),
            Rewrite(
                "mlp_only_layers",
                "base",
                without(num_experts=4, mlp_only_layers=[0, 1, 2]),
                why="no layer is left for the experts",
            ),
            Rewrite(
                "decoder_sparse_step",
                "base",
                without(num_experts=4, decoder_sparse_step=9),
                why="no layer is left for the experts",
            ),
        ],
        shape_keys=SHAPES_GQA
        + ["head_dim", "num_experts", "linear_num_value_heads"]
        + ["linear_key_head_dim", "linear_value_head_dim"]
        + ["moe_intermediate_size", "shared_expert_intermediate_size"],
        zero_centred_norms=True,
        missing="model.layers.0.linear_attn.in_proj_ba.weight",
        rejects=[
            {"name": "bias", "set": {"attention_bias": True}, "expect": "attention_bias"},
            HYBRID_ACT,
        ],
    )


def xlstm():
    return Family(
        name="xlstm",
        model_type="xlstm",
        architecture="xLSTMForCausalLM",
        settings=dict(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_heads=2,
            qk_dim_factor=0.5,
            v_dim_factor=1.0,
            chunk_size=8,
            ffn_proj_factor=1.6,
            ffn_round_up_to_multiple_of=8,
            gate_soft_cap=2.0,
            output_logit_soft_cap=10.0,
            autocast_kernel_dtype="float32",
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        cases=[
            Case("base"),
            Case("norm_eps", {"norm_eps": 0.05}),
            Case("eps", {"eps": 0.5}, why="of the memory's denominator"),
            Case("gate_soft_cap", {"gate_soft_cap": 0.5}),
            Case("output_logit_soft_cap", {"output_logit_soft_cap": 2.0}),
            Case("num_heads", {"num_heads": 4}),
            Case("v_dim_factor", {"v_dim_factor": 2.0}),
            Case("chunk_size", {"chunk_size": 5}, neutral=True),
            Case("num_blocks", {"num_blocks": 1}, why="the depth, whatever num_hidden_layers says"),
            Rewrite(
                "embedding_dim",
                "base",
                without("hidden_size"),
                reference_refuses="knows hidden_size alone",
                why="the name of the first files",
            ),
            Rewrite("num_hidden_layers", "base", without("num_blocks"), why="its other name"),
        ],
        shape_keys=["vocab_size", "hidden_size", "num_hidden_layers", "qk_dim_factor"]
        + ["ffn_proj_factor", "ffn_round_up_to_multiple_of", "embedding_dim", "num_blocks"],
        padding="none",
        precision=("autocast_kernel_dtype", "inference_state_dtype"),
        missing="backbone.blocks.1.mlstm_layer.fgate_preact.bias",
        rejects=[{"name": "use_bias", "set": {"use_bias": True}, "expect": "use_bias"}],
    )


def led():
    settings = pair_of_stacks(attention_window=[4, 8])
    del settings["max_position_embeddings"]
    settings.update(max_encoder_position_embeddings=32, max_decoder_position_embeddings=24)
    return Family(
        name="led",
        model_type="led",
        architecture="LEDForConditionalGeneration",
        gains={"decoder.embed_positions.weight": 3},  # a step apart from the last
        draw=3,
        settings=settings,
        cases=[
            Case("base", why="windows of 4 and 8 tokens, three global tokens"),
            Case("attention_window", {"attention_window": 6}, why="one width for all layers"),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("encoder_attention_heads", {"encoder_attention_heads": 4}),
            Case("decoder_attention_heads", {"decoder_attention_heads": 2}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}, why="tables of both stacks and output apart"),
            Rewrite(
                "defaults",
                "base",
                keep(
                    *PAIR_SHAPES,
                    "encoder_attention_heads",
                    "decoder_attention_heads",
                    "attention_window",
                    "max_encoder_position_embeddings",
                    "max_decoder_position_embeddings",
                    "decoder_start_token_id",
                    "pad_token_id",
                ),
            ),
        ],
        shape_keys=PAIR_SHAPES
        + ["max_encoder_position_embeddings", "max_decoder_position_embeddings"],
        padding="right",
        pair=True,
        global_tokens=(0, 7),
        missing="led.decoder.layers.1.encoder_attn.v_proj.bias",
    )


def older_nemotron_h(config):
    """The hub's spelling: a string of kinds and mamba's names."""
    result = older(config)
    kinds = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    result["hybrid_override_pattern"] = "".join(kinds[k] for k in result.pop("layers_block_type"))
    result.pop("layer_types", None)
    return result


def nemotron_h():
    return Family(
        name="nemotron_h",
        model_type="nemotron_h",
        architecture="NemotronHForCausalLM",
        settings={
            **HYBRID,
            "head_dim": 6,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 4,
            "n_groups": 2,
            "ssm_state_size": 4,
            "time_step_min": 0.6,
            "chunk_size": 8,
        },
        cases=[
            Case("base", why="time_step_min is the lower limit of the step"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("time_step_min", {"time_step_min": 0.9}),
            Case(
                "layers_block_type",
                {"layers_block_type": ["full_attention", "linear_attention", "mlp", "mlp"]},
            ),
            Case("mlp_hidden_act", {"mlp_hidden_act": "silu"}),
            Case("mlp_bias", {"mlp_bias": True}),
            Case("n_groups", {"n_groups": 4}),
            Case("conv_kernel", {"conv_kernel": 3}),
            Case("use_conv_bias", {"use_conv_bias": False}),
            Case("use_bias", {"use_bias": True}, padding_leaks=BIASED_PADDING),
            Case("chunk_size", {"chunk_size": 5}, neutral=True),
            Case("unclamped", {"time_step_min": 1e-30}, why="as in llama.cpp; the class wants a logarithm of it"),
            Case(
                "experts",
                {
                    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
                    "n_routed_experts": 12,
                    "num_experts_per_tok": 3,
                    "moe_intermediate_size": 8,
                    "moe_shared_expert_intermediate_size": 10,
                    "n_group": 4,
                    "topk_group": 2,
                    "routed_scaling_factor": 1.7,
                },
                why="of the best groups by sigmoid scores with a bias, and a shared one",
            ),
            Case("num_experts_per_tok", {"num_experts_per_tok": 2}, of="experts"),
            Case("n_group", {"n_group": 2}, of="experts"),
            Case("topk_group", {"topk_group": 4}, of="experts"),
            Case("norm_topk_prob", {"norm_topk_prob": False}, of="experts"),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}, of="experts"),
            Case("moe_latent_size", {"moe_latent_size": 8}, of="experts", why="experts between two projections"),
            Case("shared_bias", {"mlp_bias": True}, of="experts", why="of the shared expert alone"),
            Case(
                "unclamped_experts",
                {"time_step_min": 1e-30, "n_group": 1, "topk_group": 1},
                of="experts",
                why="as in llama.cpp",
            ),
            Case("unclamped_latent", {"moe_latent_size": 8}, of="unclamped_experts"),
            Rewrite("experts_pattern", "experts", older_nemotron_h),
            Rewrite(
                "num_local_experts", "experts", without("n_routed_experts", num_local_experts=12), why="its other name"
            ),
            Rewrite("pattern", "base", older_nemotron_h),
            Rewrite(
                "layer_types",
                "base",
                lambda config: without("layers_block_type", layer_types=config["layers_block_type"])(config),
                why="its other name",
            ),
            Rewrite("mamba_n_groups", "base", without("n_groups", mamba_n_groups=2), why="its other name"),
        ],
        shape_keys=SHAPES_GQA + ["head_dim", "ssm_state_size", "mamba_head_dim", "mamba_num_heads"]
        + ["n_routed_experts", "moe_intermediate_size", "moe_shared_expert_intermediate_size"],
        init_only=("rescale_prenorm_residual",),
        missing="backbone.layers.0.mixer.dt_bias",
        rejects=[
            {
                "name": "latent_bias",
                "base": "experts",
                "set": {"moe_latent_size": 8, "mlp_bias": True},
                "expect": "moe_latent_size",
                "why": "biases of the projections around experts",
            },
        ],
    )


def falcon_h1():
    factors = dict(
        embedding_multiplier=2.5,
        lm_head_multiplier=0.7,
        attention_in_multiplier=1.5,
        attention_out_multiplier=0.6,
        key_multiplier=0.4,
        ssm_in_multiplier=1.25,
        ssm_out_multiplier=0.75,
        ssm_multipliers=[0.5, 1.5, 0.8, 1.2, 0.6],
        mlp_multipliers=[1.3, 0.9],
    )
    return Family(
        name="falcon_h1",
        model_type="falcon_h1",
        architecture="FalconH1ForCausalLM",
        settings={
            **HYBRID,
            **rope(),
            "vocab_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "mamba_d_ssm": 12,
            "mamba_n_heads": 3,
            "mamba_d_head": 4,
            "mamba_n_groups": 1,
            "mamba_d_state": 4,
            "mamba_chunk_size": 8,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
        },
        cases=[
            Case("base", why="all factors are 1"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}, why="of the recurrence's norm too"),
            Case("rope_theta", rope(5.0)),
            *whole_rotary(),
            *scaled("linear", "llama3"),
            *(Case(key, {key: value}) for key, value in factors.items()),
            Case("attention_bias", {"attention_bias": True}),
            Case(
                "biased_factors",
                {**factors, "mlp_bias": True, "mamba_proj_bias": True, "projectors_bias": True},
                of="attention_bias",
                padding_leaks=BIASED_PADDING,
                why="which factors act on a bias",
            ),
            Case("mamba_rms_norm", {"mamba_rms_norm": False}, why="the gate alone"),
            Case("mamba_norm_before_gate", {"mamba_norm_before_gate": True}),
            Case("time_step_limit", {"time_step_limit": [0.4, 0.9]}),
            Case("time_step_limit_open", OPEN_LIMIT),
            Case("mamba_d_conv", {"mamba_d_conv": 3}),
            Case("mamba_conv_bias", {"mamba_conv_bias": False}),
            Case("mamba_n_groups", {"mamba_n_groups": 3}),
            Case("mamba_chunk_size", {"mamba_chunk_size": 5}, neutral=True),
            Case("implied", {"mamba_chunk_size": 256}, neutral=True, why="as where a file does not say it"),
            Case("implied_factors", {**factors, "mamba_n_groups": 3}, of="implied"),
            *every_rope(8),
            dynamic_rope(),
            Case("head_dim", {"head_dim": 12}),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
        ],
        shape_keys=SHAPES_GQA
        + ["mamba_d_state", "mamba_expand", "mamba_d_head", "mamba_n_heads", "mamba_d_ssm"],
        missing="model.layers.0.mamba.dt_bias",
        rejects=[
            {
                "name": "one_bias",
                "set": {"projectors_bias": True},
                "expect": "projectors_bias",
            },
            PARTIAL_SCALED,
        ],
    )


def minimax():
    return Family(
        name="minimax",
        model_type="minimax",
        architecture="MiniMaxForCausalLM",
        settings={
            **HYBRID,
            **rope(),
            "head_dim": 6,
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "block_size": 8,
        },
        cases=[
            Case("base", why="one expert: its router's weight is 1; the stream itself is normed"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}, why="not of the norm in linear layers"),
            Case("rope_theta", rope(5.0)),
            Case("rope_theta_million", rope(1000000.0)),
            Rewrite(
                "default_theta",
                "rope_theta_million",
                lambda config: {k: v for k, v in config.items() if k != "rope_parameters"},
                why="a million, not ten thousand",
            ),
            *whole_rotary(),
            *scaled("linear", "yarn", "llama3"),
            Case(
                "layer_types",
                {"layer_types": ["full_attention", "linear_attention", "linear_attention"]},
            ),
            Case("no_attention", {"layer_types": ["linear_attention"] * 3}),
            Case("all_attention", {"layer_types": ["full_attention"] * 3}),
            Case("hidden_act", {"hidden_act": "gelu"}, of="all_attention"),
            Case("linear_attn_alpha_factor", {"linear_attn_alpha_factor": 2.5}),
            Case("linear_attn_beta_factor", {"linear_attn_beta_factor": 0.6}),
            Case("full_attn_alpha_factor", {"full_attn_alpha_factor": 2.5}),
            Case("full_attn_beta_factor", {"full_attn_beta_factor": 0.6}),
            Case("mlp_alpha_factor", {"mlp_alpha_factor": 2.5}),
            Case("mlp_beta_factor", {"mlp_beta_factor": 0.6}),
            Case("sliding_window", {"sliding_window": 4}),
            Case("block_size", {"block_size": 5}, neutral=True),
            *every_rope(6),
            dynamic_rope(),
            Case("experts", {"num_local_experts": 4, "num_experts_per_tok": 2}, why="as the released model"),
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}, of="experts"),
            Rewrite(
                "num_experts",
                "experts",
                without("num_local_experts", num_experts=4),
                why="its other name",
            ),
            Case(
                "released",
                {
                    "num_hidden_layers": 8,
                    "layer_types": ["linear_attention"] * 7 + ["full_attention"],
                    "rms_norm_eps": 1e-6,
                    "linear_attn_alpha_factor": 2.5,
                    "full_attn_alpha_factor": 2.5,
                    "mlp_alpha_factor": 2.5,
                },
                of="experts",
                why="as the released model: attention in every eighth layer, one factor before branches",
            ),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
        ],
        shape_keys=SHAPES_GQA + ["head_dim", "num_local_experts"],
        init_only=("num_experts_per_tok",),
        missing="model.layers.0.self_attn.output_gate.weight",
        rejects=[
            PARTIAL_SCALED,
            HYBRID_ACT,
        ],
    )


ENCODER = {
    **{k: v for k, v in TINY.items() if k not in ("bos_token_id", "eos_token_id")},
    "vocab_size": 32,
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
            questions("Roberta"),
            Case("pad_token_id", {"pad_token_id": 2}, why="positions are counted from behind it"),
            Case("is_decoder", {"is_decoder": True}, why="a causal mask"),
            Rewrite("older", "base", older_with(position_embedding_type="absolute")),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings", "layer_norm_eps")),
        ],
        shape_keys=ENCODER_SHAPES,
        padding="right",
        types=2,
        no_text="an encoder",
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
            questions("MPNet"),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings")),
        ],
        shape_keys=[k for k in ENCODER_SHAPES if k != "type_vocab_size"] + ["relative_attention_num_buckets"],
        padding="right",
        no_text="an encoder",
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
        questions(name),
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
        no_text="an encoder",
        missing="deberta.encoder.layer.1.attention.self.v_bias",
        rejects=[
            {"name": "embedding_size", "set": {"embedding_size": 8}, "expect": "embedding_size"},
            {"name": "attention_head_size", "set": {"attention_head_size": 8}, "expect": "attention_head_size"},
            {
                "name": "p2p",
                "set": {"pos_att_type": ["c2p", "p2c", "p2p"]},
                "expect": "pos_att_type",
                "why": "the reference's scale counts the entry, whose term it does not compute",
            },
            {
                "name": "p2p_string",
                "set": {"pos_att_type": "c2p|p2c|p2p"},
                "expect": "pos_att_type",
            },
            {
                "name": "c2p_twice",
                "set": {"pos_att_type": ["c2p", "p2c", "c2p"]},
                "expect": "pos_att_type",
            },
        ],
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
            Case("conv_kernel_size", {"conv_kernel_size": 3}),
            Case("conv_kernel_size_5", {"conv_kernel_size": 5}, of="conv_kernel_size"),
            Case("conv_act", {"conv_act": "gelu"}, of="conv_kernel_size"),
            Case("conv_groups", {"conv_groups": 4}, of="conv_kernel_size"),
        ],
        shape_keys=ENCODER_SHAPES + ["pooler_hidden_size"],
        padding="right",
        types=2,
        no_text="an encoder",
        missing="deberta.encoder.layer.1.attention.self.value_proj.bias",
        rejects=[
            {"name": "embedding_size", "set": {"embedding_size": 8}, "expect": "embedding_size"},
            {"name": "attention_head_size", "set": {"attention_head_size": 8}, "expect": "attention_head_size"},
            {"name": "conv_even", "set": {"conv_kernel_size": 4}, "expect": "conv_kernel_size"},
        ],
    )


def fnet():
    return Family(
        name="fnet",
        model_type="fnet",
        architecture="FNetForMaskedLM",
        settings={k: v for k, v in ENCODER.items() if k != "num_attention_heads"},
        cases=[
            *encoder_cases("FNet"),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY[:-2], "max_position_embeddings"),
            ),
        ],
        shape_keys=[k for k in ENCODER_SHAPES if k != "num_attention_heads"],
        padding="none",  # the reference has no mask
        types=2,
        no_text="an encoder",
        missing="fnet.embeddings.projection.bias",
    )


def longformer():
    return Family(
        name="longformer",
        model_type="longformer",
        architecture="LongformerForMaskedLM",
        settings={**ENCODER, "pad_token_id": 1, "attention_window": [4, 6]},
        cases=[
            *[
                dataclasses.replace(case, changes={**case.changes, "attention_window": [4]})
                if "num_hidden_layers" in case.changes
                else case
                for case in encoder_cases("Longformer")
            ],
            Case("pad_token_id", {"pad_token_id": 2}, why="positions are counted from behind it"),
            Case("attention_window", {"attention_window": 8}, why="one window for all layers"),
            Rewrite("older", "base", older_with(position_embedding_type="absolute", attention_mode="longformer", ignore_attention_mask=False)),
        ],
        shape_keys=ENCODER_SHAPES,
        padding="right",
        types=2,
        global_tokens=(0, 11),
        no_text="an encoder",
        missing="longformer.encoder.layer.1.attention.self.value_global.bias",
    )


def big_bird():
    return Family(
        name="big_bird",
        model_type="big_bird",
        architecture="BigBirdForMaskedLM",
        settings={**ENCODER, "block_size": 2, "num_random_blocks": 1},
        cases=[
            *encoder_cases("BigBird"),
            Case("block_size", {"block_size": 1}),
            Case("block_size_3", {"block_size": 3}, why="19 tokens are few: full attention"),
            Case("num_random_blocks", {"num_random_blocks": 2}, why="block 0 counts twice more"),
            Case("attention_type", {"attention_type": "original_full"}),
            Case("use_bias", {"use_bias": False}),
            Case("rescale_embeddings", {"rescale_embeddings": True}),
            Case("is_decoder", {"is_decoder": True, "attention_type": "original_full"}, of="attention_type", why="a causal mask"),
        ],
        shape_keys=ENCODER_SHAPES,
        padding="none",  # the reference lets the padding of a batch move the last block
        types=2,
        no_text="an encoder",
        missing="bert.encoder.layer.1.attention.self.value.bias",
        rejects=[
            {
                "name": "is_decoder",
                "set": {"is_decoder": True},
                "expect": "is_decoder",
                "why": "over sparse blocks the reference looks ahead all the same",
            }
        ],
    )


def xlnet():
    return Family(
        name="xlnet",
        model_type="xlnet",
        architecture="XLNetLMHeadModel",
        settings=dict(vocab_size=32, d_model=16, n_layer=2, n_head=4, d_inner=12, pad_token_id=0),
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("ff_activation_relu", {"ff_activation": "relu"}),
            Case("clamp_len", {"clamp_len": 5}),
            Case("bi_data", {"bi_data": True}, why="rows in pairs, the second read backwards"),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("body", {}, architecture="XLNetModel", why="bare names, last_hidden_state"),
            Rewrite("defaults", "base", keep("vocab_size", "d_model", "n_layer", "n_head", "d_inner")),
        ],
        shape_keys=["vocab_size", "d_model", "n_layer", "n_head", "d_inner", "d_head"],
        padding="right",
        # the reference's next token comes from the query stream, over a dummy token at the end
        no_text="read in both directions, by the content stream alone",
        missing="transformer.layer.1.rel_attn.r",
        rejects=[
            {"name": "bi_data", "set": {"bi_data": True}, "expect": "bi_data"},
            {"name": "attn_type", "set": {"attn_type": "uni"}, "expect": "attn_type"},
            *[
                {"name": name, "add_tensor": {"name": name, "dtype": "F32", "shape": [2, 3]}, "expect": name}
                for name in (
                    "sequence_summary.summary.weight",
                    "logits_proj.weight",
                    "start_logits.dense.weight",
                    "end_logits.dense_0.weight",
                )
            ],
        ],
    )


def reformer_encoder(name, changes, of="encoder", **more):
    """The same without a causal mask: a neighbourhood that closes to a ring."""
    return Case(name, changes, of=of, architecture="ReformerForMaskedLM", **more)


def reformer():
    return Family(
        name="reformer",
        model_type="reformer",
        architecture="ReformerModelWithLMHead",
        settings=dict(
            vocab_size=32,
            hidden_size=16,
            num_attention_heads=2,
            attention_head_size=6,
            feed_forward_size=12,
            attn_layers=["local", "lsh"],
            axial_pos_shape=[4, 8],
            axial_pos_embds_dim=[6, 10],
            local_attn_chunk_length=4,
            lsh_attn_chunk_length=4,
            max_position_embeddings=32,
            hash_seed=1,
            is_decoder=True,
        ),
        cases=[
            Case("base"),
            Case("attn_layers", {"attn_layers": ["lsh", "lsh"]}),
            Case("attn_layers_local", {"attn_layers": ["local"]}),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("axial_pos_embds", {"axial_pos_embds": False}),
            Case("axial_pos_shape", {"axial_pos_shape": [8, 4]}),
            Case("axial_pos_embds_dim", {"axial_pos_embds_dim": [4, 12]}),
            Case("local_attn_chunk_length", {"local_attn_chunk_length": 8}, why="rows are padded to 24"),
            Case("lsh_attn_chunk_length", {"lsh_attn_chunk_length": 6}, why="rows are padded to 24"),
            Case("local_num_chunks_before", {"local_num_chunks_before": 2}),
            Case("lsh_num_chunks_before", {"lsh_num_chunks_before": 2}),
            Case("num_buckets", {"num_buckets": 4}),
            Case("num_buckets_list", {"num_buckets": [2, 4]}),
            Case("lsh_attn_chunk_length_2", {"lsh_attn_chunk_length": 2}, why="buckets in two factors"),
            Case(
                "max_position_embeddings",
                {"max_position_embeddings": 512},
                of="lsh_attn_chunk_length_2",
                why="as many buckets in one factor",
            ),
            Case("hash_seed", {"hash_seed": 5}),
            Case("chunk_size_feed_forward", {"chunk_size_feed_forward": 5}, neutral=True),
            # two rounds in a decoder: its first token sees itself alone, where the reference's
            # weights of the rounds sum to 0.998 in float32
            reformer_encoder("encoder", {"is_decoder": False}, of="base"),
            reformer_encoder("num_hashes", {"num_hashes": 2}),
            reformer_encoder("local_num_chunks_after", {"local_num_chunks_after": 1}),
            reformer_encoder("lsh_num_chunks_after", {"lsh_num_chunks_after": 1}),
            reformer_encoder("encoder_padded", {"local_attn_chunk_length": 8}, why="the ring holds a chunk of padding"),
            reformer_encoder("encoder_padded_lsh", {"lsh_attn_chunk_length": 8}, why="the ring holds a chunk of padding"),
            Case("body", {"is_decoder": False}, architecture="ReformerModel", why="bare names, last_hidden_state"),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size",
                    "hidden_size",
                    "num_attention_heads",
                    "attention_head_size",
                    "feed_forward_size",
                    "attn_layers",
                    "axial_pos_shape",
                    "axial_pos_embds_dim",
                    "is_decoder",
                ),
                same_result=False,
                why="chunks of 64 hold the whole row: no hash is drawn",
            ),
        ],
        shape_keys=[
            "vocab_size",
            "hidden_size",
            "num_attention_heads",
            "attention_head_size",
            "feed_forward_size",
        ],
        padding="none",  # the padding of a batch takes part in the reference's chunks
        missing="reformer.encoder.layers.1.attention.self_attention.query_key.weight",
        rejects=[
            {"name": "attn_layers", "set": {"attn_layers": ["local", "full"]}, "expect": "attn_layers"},
        ],
    )


# Variations, never a base case, whose greedy text has fewer than 8 distinct tokens whatever the
# prompt (the most varied of thousands is kept), and why. They share most tensors with the base,
# whose weights are chosen for its own text.
CYCLE = "every drawn prompt soon runs into a short cycle"
FLAT = "an epsilon of that size flattens the norms: every drawn prompt runs into a short cycle"
TIED = "a tied head finds the last token again"
FEW_TOKENS = {
    "bloom/apply_residual_connection_post_layernorm": CYCLE,
    "cohere/defaults": CYCLE,
    "cohere/layer_norm_eps": FLAT,
    "cohere2/defaults": CYCLE,
    "falcon/first_kind": CYCLE,
    "falcon/layer_norm_epsilon": FLAT,
    "falcon/parallel_attn": CYCLE,
    "minimax/tie_word_embeddings": TIED,
    "olmo2/attention_bias": CYCLE,
    "opt/word_embed_proj_dim": "a head of 10 dimensions finds few tokens",
    "phi/layer_norm_eps": FLAT,
    "reformer/axial_pos_embds": CYCLE,
    "reformer/axial_pos_shape": CYCLE,
    "rwkv/layer_norm_epsilon": FLAT,
    "rwkv/rescale_every": CYCLE,
    "rwkv/rescale_every_last": CYCLE,
    "rwkv/tie_word_embeddings": TIED,
    "rwkv/widths": CYCLE,
    "smollm3/attention_bias": CYCLE,
    "zamba/mamba_proj_bias": CYCLE,
}


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
        fnet,
        longformer,
        big_bird,
        xlnet,
        reformer,
        t5,
        bart,
        marian,
        fsmt,
        led,
        mamba,
        falcon_mamba,
        rwkv,
        recurrent_gemma,
        jamba,
        bamba,
        qwen3_next,
        xlstm,
        nemotron_h,
        falcon_h1,
        minimax,
    )
]


# --- variations of the decoder: positions that come and go, parallel branches, other norms ---------


def smollm3():
    slides = {"use_sliding_window": True, "sliding_window": 5}
    return Family(
        name="smollm3",
        model_type="smollm3",
        architecture="SmolLM3ForCausalLM",
        settings={
            **GQA,
            **rope(),
            "hidden_size": 16,
            "num_hidden_layers": 4,
            "rms_norm_eps": 1e-5,
        },
        cases=[Case("base", why="the fourth layer has no positions")]
        + common_cases()
        + [
            Case("no_rope_layers", {"no_rope_layers": [0, 1, 0, 1]}),
            Case("use_sliding_window", slides, why="layers without positions slide"),
            Case("sliding_window", {"sliding_window": 3}, of="use_sliding_window"),
            Case(
                "layer_types",
                {"layer_types": ["sliding_attention"] + ["full_attention"] * 3},
                of="use_sliding_window",
            ),
            Case(
                "layer_types_alone",
                {"layer_types": ["sliding_attention"] * 4, "sliding_window": 5},
                why="the list slides without use_sliding_window",
            ),
            Case("rope_yarn", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)),
            Case("attention_bias", {"attention_bias": True}),
            Case("mlp_bias", {"mlp_bias": True}),
            *every_rope(4),
            *whole_rotary(),
            Case("head_dim", {"head_dim": 8}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite("v4", "base", older),
            Rewrite("no_rope_layers_absent", "base", without("no_rope_layers", "layer_types")),
            Rewrite(
                "no_rope_layer_interval",
                "base",
                without("no_rope_layers", "layer_types", no_rope_layer_interval=2),
                same_result=False,
            ),
            Rewrite(
                "layer_types_absent", "use_sliding_window", without("layer_types", "no_rope_layers")
            ),
            Rewrite("defaults", "base", keep(*KEEP_TINY, "pad_token_id"), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        missing="model.layers.3.self_attn.o_proj.weight",
        gguf={"base": "smollm3", "every_linear": "smollm3", "every_yarn_attention_factor": "smollm3"},
    )


# heads of 8, of which a part rotates
SMALL_HEADS = dict(TINY, hidden_size=16, num_attention_heads=2, num_key_value_heads=1)


def partial(share, theta=1000.0, **more):
    return rope(theta, partial_rotary_factor=share, **more)


def older_partial(config):
    """As `older`, with partial_rotary_factor at the top."""
    result = older(config)
    result["rope_scaling"] = None
    return {**result, "partial_rotary_factor": config["rope_parameters"]["partial_rotary_factor"]}


def phi():
    return Family(
        name="phi",
        model_type="phi",
        architecture="PhiForCausalLM",
        settings={**SMALL_HEADS, **partial(0.5), "hidden_size": 24, "num_attention_heads": 3},
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("rope_theta", partial(0.5, 50.0)),
            Case("partial_rotary_factor", partial(1.0)),
            Case("rope_linear", partial(0.5, kind="linear", factor=4.0)),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("hidden_act_relu", {"hidden_act": "relu"}),
            Case("num_key_value_heads", {"num_key_value_heads": 3}),
            Case("qk_layernorm", {"qk_layernorm": True}),
            Case("body", {}, architecture="PhiModel", why="no output matrix: bare names, last_hidden_state"),
            *every_rope(4, share=0.5),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}, why="the bias stays"),
            Rewrite("v4", "base", older_partial),
            *partial_spellings("partial_rotary_factor"),
            Rewrite(
                "num_key_value_heads_absent", "num_key_value_heads", without("num_key_value_heads")
            ),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        missing="model.layers.1.self_attn.dense.bias",
        gguf={"base": "phi2", "every_linear": "phi2", "every_yarn_attention_factor": "phi2"},
    )


def gptj():
    return Family(
        name="gptj",
        model_type="gptj",
        architecture="GPTJForCausalLM",
        settings=dict(
            vocab_size=64,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=32,
            n_inner=24,
            rotary_dim=4,
            bos_token_id=1,
            eos_token_id=2,
        ),
        cases=[
            Case("base"),
            Case("rotary_dim", {"rotary_dim": 8}),
            Case("rotary_dim_two", {"rotary_dim": 2}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("n_inner", {"n_inner": None}, why="4 n_embd"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}, why="the bias stays"),
            Rewrite(
                "hub",
                "base",
                older_with(
                    rotary=True,
                    scale_attn_weights=True,
                    gradient_checkpointing=False,
                    task_specific_params={"text-generation": {"do_sample": True}},
                    tie_word_embeddings=False,
                ),
                gptj_hub,
                why="mask buffers, keys of the first files",
            ),
            Rewrite(
                "defaults",
                "n_inner",
                keep("vocab_size", "n_embd", "n_layer", "n_head", "n_positions", "rotary_dim"),
            ),
        ],
        shape_keys=["vocab_size", "n_embd", "n_layer", "n_head", "n_inner"],
        missing="transformer.h.1.mlp.fc_in.bias",
    )


def gptj_hub(tensors):
    result = dict(tensors)
    for layer in range(2):
        result[f"transformer.h.{layer}.attn.bias"] = torch.ones(32, 32).tril()[None, None]
        result[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e9)
    return result


def gpt_neo_hub(tensors):
    result = dict(tensors)
    for layer in range(2):
        prefix = f"transformer.h.{layer}.attn.attention."
        result[prefix + "bias"] = torch.ones(32, 32).tril()[None, None]
        result[prefix + "masked_bias"] = torch.tensor(-1e9)
    return result


def gpt_neo():
    kinds = lambda *names: {"attention_types": [[list(names), 1]]}
    return Family(
        name="gpt_neo",
        model_type="gpt_neo",
        architecture="GPTNeoForCausalLM",
        settings=dict(
            vocab_size=64,
            hidden_size=24,
            num_layers=2,
            num_heads=4,
            intermediate_size=20,
            max_position_embeddings=32,
            window_size=6,
            bos_token_id=1,
            eos_token_id=2,
            **kinds("global", "local"),
        ),
        cases=[
            Case("base"),
            Case("window_size", {"window_size": 3}),
            Case("attention_types", kinds("local", "global")),
            Case("attention_types_groups", {"attention_types": [[["local"], 2]]}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("activation_function_relu", {"activation_function": "relu"}),
            Case("intermediate_size", {"intermediate_size": None}, why="4 hidden_size"),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite(
                "hub",
                "base",
                older_with(gradient_checkpointing=False, embed_dropout=0.0, resid_dropout=0.0),
                gpt_neo_hub,
                why="mask buffers",
            ),
            Rewrite("attention_layers_absent", "attention_types", without("attention_layers")),
            Rewrite(
                "attention_layers_absent_groups",
                "attention_types_groups",
                without("attention_layers"),
            ),
            Rewrite(
                "defaults",
                "intermediate_size",
                keep(
                    "vocab_size",
                    "hidden_size",
                    "num_layers",
                    "num_heads",
                    "max_position_embeddings",
                    "attention_types",
                ),
                same_result=False,
                why="a window of 256",
            ),
        ],
        shape_keys=[
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "intermediate_size",
            "max_position_embeddings",
        ],
        missing="transformer.h.1.attn.attention.out_proj.bias",
    )


def opt():
    return Family(
        name="opt",
        model_type="opt",
        architecture="OPTForCausalLM",
        gains={"embed_positions.weight": 4, "fc1.weight": 3, "fc2.weight": 3},
        settings=dict(
            vocab_size=64,
            hidden_size=24,
            ffn_dim=20,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=32,
            pad_token_id=1,
            bos_token_id=2,
            eos_token_id=2,
        ),
        cases=[
            Case("base"),
            Case("do_layer_norm_before", {"do_layer_norm_before": False}, why="as the 350m"),
            Case("_remove_final_layer_norm", {"_remove_final_layer_norm": True}),
            Case("activation_function_gelu", {"activation_function": "gelu"}),
            Case("activation_function_silu", {"activation_function": "silu"}),
            Case("enable_bias", {"enable_bias": False}),
            Case("layer_norm_elementwise_affine", {"layer_norm_elementwise_affine": False}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case(
                "word_embed_proj_dim",
                {"word_embed_proj_dim": 10},
                of="do_layer_norm_before",
                why="narrow token vectors and norms after the branches: the 350m",
            ),
            Rewrite(
                "hub",
                "base",
                older_with(
                    drop=("enable_bias", "layer_norm_elementwise_affine", "tie_word_embeddings"),
                    activation_dropout=0.0,
                    prefix="</s>",
                ),
                why="keys of the first files",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size",
                    "hidden_size",
                    "ffn_dim",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "max_position_embeddings",
                ),
            ),
        ],
        shape_keys=[
            "vocab_size",
            "hidden_size",
            "ffn_dim",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
            "word_embed_proj_dim",
        ],
        missing="model.decoder.layers.1.self_attn.k_proj.bias",
        rejects=[
            {
                "name": "untied_word_embed_proj_dim",
                "set": {"word_embed_proj_dim": 16, "tie_word_embeddings": False},
                "expect": "word_embed_proj_dim",
                "why": "an output matrix of its own and of another width than the stream",
            }
        ],
    )


def cohere():
    return Family(
        name="cohere",
        model_type="cohere",
        architecture="CohereForCausalLM",
        settings={**GQA, **rope(), "hidden_size": 24, "logit_scale": 0.5},
        cases=[Case("base")]
        + common_cases(eps="layer_norm_eps")
        + [
            Case("logit_scale", {"logit_scale": 0.25}),
            Case("use_qk_norm", {"use_qk_norm": True}, why="a norm for every head, as in R+"),
            Case("rope_linear", rope(kind="linear", factor=4.0)),
            Case("attention_bias", {"attention_bias": True}),
            *every_rope(6),
            *whole_rotary(),
            Case("head_dim", {"head_dim": 8}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite("v4", "base", older),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False, why="factor 0.0625"),
        ],
        shape_keys=SHAPES_GQA,
        gguf={"base": "command-r", "use_qk_norm": "command-r", "every_linear": "command-r", "every_yarn_attention_factor": "command-r"},
        missing="model.layers.1.self_attn.o_proj.weight",
    )


def cohere2():
    hub = dict(
        cache_implementation="hybrid",
        order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj",
        rotary_pct=1.0,
        sliding_window_pattern=4,
        layer_switch=4,
        use_embedding_sharing=True,
        use_gated_activation=True,
        use_parallel_block=True,
        use_parallel_embedding=True,
        use_qk_norm=False,
        head_dim=6,
    )
    slide, full = "sliding_attention", "full_attention"
    return Family(
        name="cohere2",
        model_type="cohere2",
        architecture="Cohere2ForCausalLM",
        settings={
            **GQA,
            **rope(),
            "hidden_size": 24,
            "num_hidden_layers": 4,
            "sliding_window": 6,
            "logit_scale": 0.5,
            "layer_types": [slide, slide, slide, full],
        },
        cases=[Case("base")]
        + common_cases(eps="layer_norm_eps")
        + [
            Case("logit_scale", {"logit_scale": 0.25}),
            Case("sliding_window", {"sliding_window": 3}),
            Case("layer_types", {"layer_types": [full, slide, full, slide]}),
            Case("rope_yarn", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)),
            Case("attention_bias", {"attention_bias": True}),
            *every_rope(6),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite("hub", "base", older_with(drop=("layer_types",), **hub)),
            Case("every_second_slides", {"layer_types": [slide, full, slide, full]}, text=False),
            Rewrite(
                "sliding_window_pattern",
                "every_second_slides",
                without("layer_types", "_sliding_window_pattern", sliding_window_pattern=2),
                why="by their number",
            ),
            Rewrite(
                "defaults", "base", keep(*KEEP_TINY), same_result=False, why="factor 0.0625"
            ),
        ],
        shape_keys=SHAPES_GQA,
        gguf={"base": "cohere2", "every_linear": "cohere2", "every_yarn_attention_factor": "cohere2"},
        missing="model.layers.3.self_attn.o_proj.weight",
        rejects=[
            {"name": "use_qk_norm", "set": {"use_qk_norm": True}, "expect": "use_qk_norm"},
        ],
    )


def stablelm():
    return Family(
        name="stablelm",
        model_type="stablelm",
        architecture="StableLmForCausalLM",
        settings={**SMALL_HEADS, **partial(0.5)},
        cases=[
            Case("base"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("rope_theta", partial(0.5, 50.0)),
            Case("partial_rotary_factor", partial(1.0)),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("use_qkv_bias", {"use_qkv_bias": True}),
            Case("qk_layernorm", {"qk_layernorm": True}, why="a norm for every head"),
            Case("use_parallel_residual", {"use_parallel_residual": True}),
            *every_rope(4, share=0.5),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older_partial),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA,
        missing="model.layers.1.post_attention_layernorm.bias",
        gguf={
            name: "stablelm"
            for name in ("base", "use_parallel_residual", "use_qkv_bias", "qk_layernorm", "every_linear")
            + ("every_yarn_attention_factor",)
        },
    )


def diffllama():
    return Family(
        name="diffllama",
        model_type="diffllama",
        architecture="DiffLlamaForCausalLM",
        settings={**GQA, **rope(), "rms_norm_eps": 1e-5},
        cases=[Case("base")]
        + common_cases()
        + [
            Case("attention_bias", {"attention_bias": True}),
            Case("head_dim", {"head_dim": 12}),
            Case("rope_yarn", rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)),
            *every_rope(8),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("head_dim_absent", "base", without("head_dim", lambda_std_dev=0.3)),
            Rewrite("defaults", "base", keep(*KEEP_TINY), same_result=False),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        missing="model.layers.1.self_attn.lambda_k2",
    )


def with_modules(count):
    """DeepSeek's modules for tokens further ahead, which repeat embedding and head."""

    def rewrite(tensors):
        result, layers = dict(tensors), 2
        like = {n.removeprefix("model.layers.1."): v for n, v in tensors.items() if n.startswith("model.layers.1.")}
        width = tensors["model.norm.weight"].shape[0]
        own = {"enorm.weight": (width,), "hnorm.weight": (width,), "shared_head.norm.weight": (width,)}
        own["eh_proj.weight"] = (width, 2 * width)
        own.update({name: tuple(value.shape) for name, value in like.items()})
        for k in range(count):
            for name, shape in own.items():
                full = f"model.layers.{layers + k}.{name}"
                result[full] = reference.draw("deepseek_v3", full, shape, False)
            result[f"model.layers.{layers + k}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
            result[f"model.layers.{layers + k}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
        return result

    return rewrite


def deepseek_v3():
    yarn = dict(factor=4.0, original_max_position_embeddings=16)
    return Family(
        name="deepseek_v3",
        model_type="deepseek_v3",
        architecture="DeepseekV3ForCausalLM",
        settings={
            **TINY,
            **rope(),
            "num_key_value_heads": 4,
            "q_lora_rank": 12,
            "kv_lora_rank": 10,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "moe_intermediate_size": 12,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "num_mtp_layers": 0,
        },
        cases=[Case("base", why="norms of the latents have eps 1e-6 whatever rms_norm_eps")]
        + common_cases()
        + [
            Case("first_k_dense_replace", {"first_k_dense_replace": 2}, why="all layers are dense"),
            Case("first_k_dense_replace_none", {"first_k_dense_replace": 0}),
            Case("num_experts_per_tok", {"num_experts_per_tok": 2}),
            Case("norm_topk_prob", {"norm_topk_prob": False}),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            Case("n_group", {"n_group": 2}, why="the same experts in other groups"),
            Case("topk_group", {"topk_group": 4}, why="every group offers candidates"),
            Case("n_shared_experts", {"n_shared_experts": 2}),
            Rewrite(
                "num_local_experts",
                "base",
                without("n_routed_experts", num_local_experts=8),
                why="its other name",
            ),
            Case("rope_interleave", {"rope_interleave": False}),
            Case("q_lora_rank", {"q_lora_rank": None}),
            Case("attention_bias", {"attention_bias": True}),
            Case("rope_yarn", rope(kind="yarn", **yarn)),
            Case("rope_yarn_mscale", rope(kind="yarn", mscale=0.7, mscale_all_dim=1.3, **yarn)),
            Case(
                "rope_yarn_mscale_all_dim",
                rope(kind="yarn", mscale=1.0, mscale_all_dim=1.0, **yarn),
                of="rope_yarn",
                why="as the released model: the scores are scaled, cos and sin are not",
            ),
            *every_rope(4),
            dynamic_rope(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite(
                "modules",
                "base",
                without(num_nextn_predict_layers=2),
                with_modules(2),
                ahead=True,
                why="two modules for further tokens behind the last layer",
            ),
            Rewrite("v4", "base", older),
            Rewrite("v4_rope_yarn", "rope_yarn_mscale_all_dim", older_type),
        ],
        shape_keys=SHAPES
        + ["num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"]
        + ["v_head_dim", "num_key_value_heads", "first_k_dense_replace", "head_dim"]
        + ["n_routed_experts", "n_shared_experts", "moe_intermediate_size"],
        gguf={
            case: "deepseek2"
            for case in ("base", "q_lora_rank", "rope_yarn_mscale_all_dim", "every_linear")
            + ("every_yarn_attention_factor", "norm_topk_prob")
        },
        gguf_older=("q_lora_rank",),
        missing="model.layers.1.self_attn.kv_b_proj.weight",
        rejects=[
            {
                "name": "n_group",
                "set": {"n_group": 3},
                "expect": "n_groups",
                "why": "does not divide the experts",
            }
        ],
    )


def bare(tensors):
    """As the first files have it: names without the prefix of the head's model."""
    return {name.removeprefix("transformer."): value for name, value in tensors.items()}


def bloom():
    hub = dict(
        n_embed=24,
        num_attention_heads=6,
        n_inner=None,
        attention_softmax_in_fp32=True,
        bias_dropout_fusion=True,
        masked_softmax_fusion=True,
        offset_alibi=100,
        seq_length=64,
        skip_bias_add=True,
        skip_bias_add_qkv=False,
        unk_token_id=0,
    )
    return Family(
        name="bloom",
        model_type="bloom",
        architecture="BloomForCausalLM",
        gains={
            "ln_f.weight": 1,
            "h.1.mlp.dense_h_to_4h.weight": 3,
            "h.1.mlp.dense_4h_to_h.weight": 3,
        },
        settings=dict(
            vocab_size=64, hidden_size=24, n_layer=2, n_head=6, bos_token_id=1, eos_token_id=2
        ),
        cases=[
            Case("base", why="6 heads: slopes of 8, the even ones first"),
            Case("n_head", {"n_head": 4}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case(
                "apply_residual_connection_post_layernorm",
                {"apply_residual_connection_post_layernorm": True},
            ),
            Rewrite("hub", "base", older_with(drop=("hidden_size", "n_head"), **hub), bare),
            Rewrite("defaults", "base", keep("vocab_size", "hidden_size", "n_layer", "n_head")),
            Rewrite(
                "num_hidden_layers", "base", without("n_layer", num_hidden_layers=2), why="its other name"
            ),
        ],
        shape_keys=["vocab_size", "hidden_size", "n_layer"],
        missing="transformer.h.1.self_attention.query_key_value.bias",
        gguf={"base": "bloom"},
        rejects=[
            {
                "name": "slow_but_exact",
                "set": {"slow_but_exact": True, "pretraining_tp": 2},
                "expect": "slow_but_exact",
                "why": "the reference then leaves out the biases behind attention and feed-forward layer",
            }
        ],
    )


def falcon():
    new_kind = {"new_decoder_architecture": True, "num_kv_heads": 2}
    yarn = rope(kind="yarn", factor=4.0, original_max_position_embeddings=16)
    hub = dict(n_head=4, n_layer=2, apply_residual_connection_post_layernorm=False)
    return Family(
        name="falcon",
        model_type="falcon",
        architecture="FalconForCausalLM",
        settings=dict(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_hidden_size=12,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
            **rope(),
        ),
        attention="sdpa",  # eager adds the ALiBi term twice
        cases=[
            Case("base", why="as the 7B: one key/value head, parallel branches with one norm"),
            Case("multi_query", {"multi_query": False}),
            Case("parallel_attn", {"parallel_attn": False}),
            Case("bias", {"bias": True}),
            Case("alibi", {"alibi": True}, why="slopes in bfloat16, scaled like the scores"),
            Case(
                "first_kind",
                {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
                why="as the RW 1B",
            ),
            Case("new_decoder_architecture", new_kind, why="as the 40B: groups, two norms"),
            Case(
                "num_ln_in_parallel_attn",
                {"num_ln_in_parallel_attn": 1},
                of="new_decoder_architecture",
                why="as the 11B",
            ),
            Case("new_alibi", {"alibi": True}, of="new_decoder_architecture"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("activation_gelu_new", {"activation": "gelu_new"}),
            Case("rope_theta", rope(50.0)),
            Case("rope_yarn", yarn),
            *every_rope(4),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite("v4", "base", older),
            Rewrite(
                "hub",
                "base",
                older_with(drop=("num_attention_heads", "num_hidden_layers"), **hub),
                reference_refuses="knows n_embed, but not n_head and n_layer",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size",
                    "hidden_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                    "ffn_hidden_size",
                ),
                same_result=False,
            ),
            Rewrite("n_embed", "base", without("hidden_size", n_embed=16), why="its other name"),
            Rewrite(
                "n_head_kv",
                "new_decoder_architecture",
                without("num_kv_heads", n_head_kv=2),
                reference_refuses="does not know n_head_kv",
                why="the name of the first files",
            ),
        ],
        shape_keys=[
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_kv_heads",
            "ffn_hidden_size",
        ],
        missing="transformer.h.1.self_attention.query_key_value.weight",
        rejects=[
            {
                "name": "in_turn",
                "set": {"new_decoder_architecture": True, "parallel_attn": False},
                "expect": "parallel_attn",
                "why": "the reference fails on it",
            }
        ],
        gguf={"base": "falcon", "new_decoder_architecture": "falcon", "every_linear": "falcon", "every_yarn_attention_factor": "falcon"},
    )


def mpt():
    attention = lambda **keys: {"attn_config": {"alibi": True, **keys}}
    refused = [
        {"name": key, "set": {key: value}, "expect": key}
        for key, value in (
            ("attn_config.alibi", False),
            ("attn_config.alibi_bias_max", 16),
            ("attn_config.qk_ln", True),
            ("attn_config.prefix_lm", True),
            ("attn_config.attn_type", "multiquery_attention"),
            ("no_bias", False),
            ("logit_scale", 0.5),
            ("expansion_ratio", 2),
        )
    ]
    return Family(
        name="mpt",
        model_type="mpt",
        architecture="MptForCausalLM",
        settings=dict(
            vocab_size=64,
            d_model=24,
            n_heads=6,
            n_layers=2,
            max_seq_len=64,
            bos_token_id=1,
            eos_token_id=2,
            **attention(),
        ),
        cases=[
            Case("base", why="6 heads: slopes of 8, the even ones first"),
            Case("n_heads", {"n_heads": 4}),
            Case("clip_qkv", attention(clip_qkv=0.5)),
            Case("softmax_scale", attention(softmax_scale=0.2)),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite(
                "hub",
                "clip_qkv",
                older_with(
                    drop=("tie_word_embeddings",),
                    init_config={"name": "kaiming_normal_", "fan_mode": "fan_in"},
                    tokenizer_name="EleutherAI/gpt-neox-20b",
                    verbose=0,
                ),
                why="keys of the first files",
            ),
            Rewrite("defaults", "base", keep("vocab_size", "d_model", "n_heads", "n_layers")),
        ],
        shape_keys=["vocab_size", "d_model", "n_layers"],
        missing="transformer.blocks.1.attn.Wqkv.weight",
        rejects=refused,
        gguf={"base": "mpt", "clip_qkv": "mpt"},
    )


def llama4_text():
    llama3 = dict(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    )
    chunked, full = "chunked_attention", "full_attention"
    return Family(
        name="llama4_text",
        model_type="llama4_text",
        architecture="Llama4ForCausalLM",
        settings={
            **GQA,
            **rope(),
            "hidden_size": 16,
            "head_dim": 8,
            "num_hidden_layers": 4,
            "intermediate_size": 8,
            "intermediate_size_mlp": 16,
            "moe_layers": [1, 2],
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 5,
            "floor_scale": 3,
            "attn_scale": 0.5,
        },
        cases=[Case("base", why="the fourth layer sees all and grows with the position")]
        + common_cases()
        + [
            Case("num_experts_per_tok", {"num_experts_per_tok": 2}),
            Case("moe_layers", {"moe_layers": []}, why="all layers are dense"),
            Rewrite(
                "interleave_moe_layer_step",
                "moe_layers",
                without("moe_layers", interleave_moe_layer_step=9),
                why="no layer is a ninth one",
            ),
            Case("attention_chunk_size", {"attention_chunk_size": 3}),
            Case("use_qk_norm", {"use_qk_norm": False}),
            Case("no_rope_layers", {"no_rope_layers": [0, 1, 0, 1]}),
            Case("layer_types", {"layer_types": [full, chunked, full, chunked]}),
            Case("attn_temperature_tuning", {"attn_temperature_tuning": False}),
            Case("floor_scale", {"floor_scale": 5}),
            Case("attn_scale", {"attn_scale": 0.2}),
            Case("rope_llama3", rope(kind="llama3", **llama3)),
            Case("attention_bias", {"attention_bias": True}),
            Case(
                "implied",
                {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "moe_layers": [1, 3]},
                why="what the released models have and GGUF files do not say",
            ),
            Case("implied_llama3", rope(kind="llama3", **scaling_keys(8)["llama3"]), of="implied", text=False),
            Case("implied_linear", rope(kind="linear", factor=4.0), of="implied", text=False),
            Case(
                "implied_yarn",
                {
                    **rope(kind="yarn", **scaling_keys(8)["yarn_attention_factor"]),
                    "num_local_experts": 128,
                    "intermediate_size": 4,
                    "moe_layers": [3],
                    "use_qk_norm": False,
                },
                of="implied",
                text=False,
                why="without norms of queries and keys, as the larger one",
            ),
            *every_rope(8, kinds=("llama3",)),
            *every_rope(8, kinds=("yarn", "longrope"), of="use_qk_norm"),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("no_rope_layers_absent", "base", without("no_rope_layers", "layer_types")),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY, "head_dim", "intermediate_size_mlp", "moe_layers", "num_local_experts", "pad_token_id"),
                same_result=False,
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim", "intermediate_size_mlp", "interleave_moe_layer_step"]
        + ["moe_layers", "num_local_experts"],
        padding="right",  # the reference counts padding on the left as positions
        gguf={
            case: "llama4" for case in ("implied", "implied_llama3", "implied_linear", "implied_yarn")
        },
        missing="model.layers.3.self_attn.o_proj.weight",
        rejects=[
            {
                "name": "rope_yarn",
                "set": {"rope_parameters.rope_type": "yarn", "rope_parameters.factor": 4.0},
                "expect": "use_qk_norm",
                "why": "a factor on the rotation, which the norm after it would undo",
            },
        ],
    )


FAMILIES += [
    make()
    for make in (
        smollm3,
        phi,
        gptj,
        gpt_neo,
        opt,
        cohere,
        cohere2,
        stablelm,
        diffllama,
        deepseek_v3,
        bloom,
        falcon,
        mpt,
        llama4_text,
    )
]


def in_mxfp4(tensors):
    """Experts as released files hold them: codes of neighbours in a byte, and scales."""
    kind, result = gguf.GGMLQuantizationType.MXFP4, {}
    for name, value in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            result[name] = value
            continue
        rows = value.transpose(1, 2).contiguous().numpy()
        blocks = gguf.quants.quantize(rows, kind).reshape(*rows.shape[:2], -1, 17)
        codes = numpy.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        pairs = codes[..., ::2] | codes[..., 1::2] << 4
        result[f"{name}_blocks"] = torch.from_numpy(numpy.ascontiguousarray(pairs))
        result[f"{name}_scales"] = torch.from_numpy(numpy.ascontiguousarray(blocks[..., 0]))
    return result


def gpt_oss():
    sliding, full = "sliding_attention", "full_attention"
    yarn = dict(kind="yarn", factor=4.0, original_max_position_embeddings=64)
    return Family(
        name="gpt_oss",
        model_type="gpt_oss",
        architecture="GptOssForCausalLM",
        draw=4,
        settings={
            **GQA,
            **rope(),
            "hidden_size": 16,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "swiglu_limit": 1.5,
        },
        cases=[
            Case("base", why="the limit is reached"),
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("one_expert", {"num_local_experts": 1, "num_experts_per_tok": 1}),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("rope_theta", rope(50.0)),
            Case("rope_yarn", rope(truncate=False, **yarn)),
            Case("rope_yarn_truncate", rope(truncate=True, **yarn), of="rope_yarn"),
            Case("sliding_window", {"sliding_window": 3}),
            Case("layer_types", {"layer_types": [full, sliding]}),
            Case("swiglu_alpha", {"swiglu_alpha": 1.0}),
            Case("swiglu_limit", {"swiglu_limit": 0.5}),
            Case("attention_bias", {"attention_bias": False}),
            Case("implied", {"swiglu_limit": 7.0}, why="what GGUF files do not say"),
            *implied_rope(8, of="implied", truncate=False),
            Case(
                "blocks",
                {"hidden_size": 32, "intermediate_size": 32},
                of="implied",
                storage="MXFP4",
                why="numbers that the block type of the released files holds",
            ),
            Rewrite(
                "mxfp4",
                "blocks",
                without(
                    quantization_config={
                        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]
                        + ["model.embed_tokens", "lm_head"],
                        "quant_method": "mxfp4",
                    }
                ),
                in_mxfp4,
                why="as the released files store experts",
            ),
            *every_rope(8),
            *whole_rotary(top=False),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Case("hidden_act", {"hidden_act": "gelu"}, neutral=True),
            Rewrite(
                "hub",
                "rope_yarn",
                older_with(
                    drop=("layer_types", "swiglu_alpha", "attention_bias"),
                    experts_per_token=2,
                    initial_context_length=64,
                ),
                why="keys of the released files; every other layer slides",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY, "head_dim", "num_local_experts", "num_experts_per_tok"),
                same_result=False,
                why="class defaults: yarn, theta 150000, a window of 128, limit 7",
            ),
            Rewrite("num_experts", "base", without("num_local_experts", num_experts=4), why="its other name"),
        ],
        shape_keys=SHAPES_GQA + ["head_dim", "num_local_experts"],
        gguf={case: "gpt-oss" for case in ("implied", "implied_linear", "implied_yarn", "blocks")},
        missing="model.layers.1.self_attn.sinks",
        rejects=[
            {
                "name": "experts_absent",
                "unset": ["num_local_experts"],
                "expect": "experts",
                "why": "the default of the class is 128",
            },
        ],
    )


ZAMBA = {
    **TINY,
    "vocab_size": 40,
    "hidden_size": 8,
    "intermediate_size": 6,
    "mamba_d_state": 3,
}
LINEAR, SHARED = "linear_attention", "hybrid"


def older_zamba(drop=()):
    """The hub's spelling: mamba's name for its layers."""

    def rewrite(config):
        result = {k: v for k, v in older(config).items() if k not in drop + ("layer_types",)}
        kinds = ["mamba" if k == "linear_attention" else k for k in result["layers_block_type"]]
        return {**result, "layers_block_type": kinds}

    return rewrite


def zamba():
    return Family(
        name="zamba",
        model_type="zamba",
        architecture="ZambaForCausalLM",
        gains={"final_layernorm.weight": 1},
        settings={
            **ZAMBA,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "layers_block_type": [LINEAR, SHARED, SHARED],
            "n_mamba_heads": 2,
            "mamba_dt_rank": 3,
        },
        cases=[
            Case("base", why="one block of attention and feed-forward layer, used twice"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_relu", {"hidden_act": "relu"}),
            Case("hidden_act_silu", {"hidden_act": "silu"}),
            Case("layers_block_type", {"layers_block_type": [SHARED, LINEAR, SHARED]}),
            Case("num_attention_heads", {"num_attention_heads": 2, "num_key_value_heads": 2}),
            Case("num_key_value_heads", {"num_key_value_heads": 2}),
            Case("attention_head_dim", {"attention_head_dim": 5}),
            Case("n_mamba_heads", {"n_mamba_heads": 1}),
            Case("mamba_d_conv", {"mamba_d_conv": 3}),
            Case("mamba_conv_bias", {"mamba_conv_bias": False}),
            Case("mamba_proj_bias", {"mamba_proj_bias": True}, padding_leaks=BIASED_PADDING),
            Case("mamba_dt_rank", {"mamba_dt_rank": "auto"}),
            Case(
                "attn_layer_period",
                {
                    "layers_block_type": None,
                    "num_hidden_layers": 5,
                    "attn_layer_period": 2,
                    "attn_layer_offset": 1,
                },
                why="mamba, mamba, hybrid, then hybrid where i % 2 == 1",
            ),
            Rewrite("hub", "base", older_zamba(), why="the first names of the kinds of layers"),
            Rewrite(
                "period",
                "attn_layer_period",
                without("layers_block_type", "layer_types"),
                why="the period alone says which layers are hybrid",
            ),
            Rewrite(
                "no_widths",
                "base",
                without("attention_hidden_size", "attention_head_dim"),
                why="attention reads twice the stream's width, divided among its heads",
            ),
            Rewrite(
                "layer_types",
                "base",
                lambda config: without("layers_block_type", layer_types=config["layers_block_type"])(config),
                why="its other name",
            ),
            Case(
                "attn_layer_period_twice",
                {
                    "layers_block_type": None,
                    "num_hidden_layers": 7,
                    "attn_layer_period": 2,
                    "attn_layer_offset": 1,
                },
                text=False,
                why="mamba, mamba, hybrid, then two in four hybrid",
            ),
            Rewrite(
                "period_twice",
                "attn_layer_period_twice",
                without("layers_block_type", "layer_types"),
                why="the period alone says which layers are hybrid",
            ),
        ],
        shape_keys=SHAPES_GQA
        + ["attention_hidden_size", "attention_head_dim", "head_dim", "n_mamba_heads"]
        + ["mamba_d_state", "mamba_expand", "mamba_dt_rank", "mamba_d_conv"],
        missing="model.layers.1.linear.weight",
        rejects=[
            {
                "name": "untied",
                "set": {"tie_word_embeddings": False},
                "expect": "tie_word_embeddings",
                "why": "the reference then unties the blocks of attention as well",
            },
            {
                "name": "hidden_mamba_act",
                "set": {"hidden_mamba_act": "gelu"},
                "expect": "hidden_mamba_act",
            },
            {
                "name": "attention_hidden_size",
                "set": {"attention_hidden_size": 36},
                "expect": "attention_hidden_size",
                "why": "the concatenation is twice as wide as the stream",
            },
        ],
    )


def zamba2():
    return Family(
        name="zamba2",
        model_type="zamba2",
        architecture="Zamba2ForCausalLM",
        settings={
            **ZAMBA,
            "num_hidden_layers": 4,
            "layers_block_type": [SHARED, LINEAR, SHARED, SHARED],
            "mamba_ngroups": 2,
            "n_mamba_heads": 4,
            "num_mem_blocks": 2,
            "adapter_rank": 2,
            "chunk_size": 8,
        },
        cases=[
            Case("base", why="two blocks in turn: the first is used twice, adapted each time"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_relu", {"hidden_act": "relu"}),
            Case("hidden_act_silu", {"hidden_act": "silu"}),
            Case("layers_block_type", {"layers_block_type": [LINEAR] + [SHARED] * 3}),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            Case("num_mem_blocks", {"num_mem_blocks": 1}),
            Case("use_shared_attention_adapter", {"use_shared_attention_adapter": True}),
            Case("use_mem_rope", {"use_mem_rope": True, **rope()}),
            Case("rope_theta", rope(50.0), of="use_mem_rope"),
            Case("use_long_context", {"use_long_context": True}, of="use_mem_rope", neutral=True),
            *every_rope(4, of="use_mem_rope"),
            dynamic_rope("use_mem_rope"),
            Case("add_bias_linear", {"add_bias_linear": True}, padding_leaks=BIASED_PADDING),
            Case("mamba_ngroups", {"mamba_ngroups": 1}),
            Case("mamba_d_conv", {"mamba_d_conv": 3}),
            Case("time_step_min", {"time_step_min": 0.6}),
            Case("chunk_size", {"chunk_size": 5}, neutral=True),
            Case("use_conv_bias", {"use_conv_bias": False}, neutral=True),
            Rewrite("hub", "base", older_zamba(), why="the first names of the kinds of layers"),
            Rewrite(
                "layer_types",
                "base",
                lambda config: without("layers_block_type", layer_types=config["layers_block_type"])(config),
                why="its other name",
            ),
        ],
        shape_keys=SHAPES
        + ["num_attention_heads", "num_key_value_heads", "attention_hidden_size"]
        + ["attention_head_dim", "head_dim", "mamba_headdim", "mamba_d_state", "mamba_expand"]
        + ["num_mem_blocks", "adapter_rank", "n_mamba_heads", "mamba_ngroups", "mamba_d_conv"]
        + ["layers_block_type", "layer_types", "hybrid_layer_ids"],
        missing="model.layers.2.linear.weight",
        rejects=[
            {
                "name": "untied",
                "set": {"tie_word_embeddings": False},
                "expect": "tie_word_embeddings",
                "why": "the reference then unties the blocks of attention as well",
            },
            {
                "name": "num_mem_blocks",
                "set": {"num_mem_blocks": 0},
                "expect": "num_mem_blocks",
            },
        ],
    )


FAMILIES += [make() for make in (gpt_oss, zamba, zamba2)]


EXPERTS = dict(hidden_size=16, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2)


def mixtral():
    return Family(
        name="mixtral",
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        gains={"model.norm.weight": 1},
        settings={**GQA, **rope(), **EXPERTS, "head_dim": 8, "rms_norm_eps": 1e-5},
        cases=[Case("base")]
        + common_cases()
        + [
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("sliding_window", {"sliding_window": 4}),
            Case("head_dim", {"head_dim": None}, why="hidden_size / num_attention_heads"),
            Case(
                "blocks",
                {"hidden_size": 32, "intermediate_size": 32},
                storage="Q4_0",
                why="numbers that the block type holds",
            ),
            *every_rope(8),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite(
                "num_experts",
                "base",
                without("num_local_experts", num_experts=4),
                why="its other name",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY, "num_local_experts", "head_dim"),
                same_result=False,
                why="theta is a million",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim", "num_local_experts"],
        gguf={
            case: "llama"
            for case in ("base", "num_experts_per_tok", "blocks", "every_linear", "every_yarn_attention_factor")
        },
        gguf_older=("num_experts_per_tok",),
        missing="model.layers.1.block_sparse_moe.experts.2.w3.weight",
    )


def sparse_layers():
    """Which layers are dense, and how their experts are weighed."""
    return [
        Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
        Case("norm_topk_prob", {"norm_topk_prob": True}),
        Case("mlp_only_layers", {"mlp_only_layers": []}, why="all layers have experts"),
        Case("decoder_sparse_step", {"decoder_sparse_step": 2}, of="mlp_only_layers"),
    ]


def qwen3_moe():
    return Family(
        name="qwen3_moe",
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **GQA,
            **rope(),
            "hidden_size": 16,
            "head_dim": 12,
            "moe_intermediate_size": 12,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [0],
            "rms_norm_eps": 1e-5,
        },
        cases=[Case("base")]
        + common_cases()
        + sparse_layers()
        + [
            Case("attention_bias", {"attention_bias": True}),
            Case("sliding_window", {"use_sliding_window": True, "sliding_window": 6}),
            *every_rope(12),
            Case("implied", {"norm_topk_prob": True, "mlp_only_layers": []}, why="what GGUF files do not say"),
            *implied_rope(12, of="implied"),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite(
                "num_experts",
                "base",
                without("num_local_experts", num_experts=5),
                why="its name in hub files",
            ),
        ],
        shape_keys=SHAPES_GQA + ["head_dim", "moe_intermediate_size", "num_experts"],
        gguf={case: "qwen3moe" for case in ("implied", "implied_linear", "implied_yarn")},
        missing="model.layers.1.mlp.experts.2.up_proj.weight",
    )


def qwen2_moe():
    on = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    return Family(
        name="qwen2_moe",
        model_type="qwen2_moe",
        architecture="Qwen2MoeForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **GQA,
            **rope(),
            "hidden_size": 16,
            "moe_intermediate_size": 12,
            "shared_expert_intermediate_size": 8,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [0],
            "rms_norm_eps": 1e-5,
        },
        cases=[Case("base")]
        + common_cases()
        + sparse_layers()
        + [
            Case("qkv_bias", {"qkv_bias": False}),
            Case("use_sliding_window", on),
            Case("sliding_window", {"sliding_window": 4}, of="use_sliding_window"),
            Case(
                "layer_types",
                {"layer_types": ["full_attention", "sliding_attention"]},
                of="use_sliding_window",
                why="the list wins over max_window_layers",
            ),
            Rewrite(
                "v4_use_sliding_window",
                "use_sliding_window",
                without_layer_types(),
                why="even layers below max_window_layers slide",
            ),
            *implied_rope(4, of="mlp_only_layers"),
            *every_rope(4),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Case("head_dim", {"head_dim": 12}),
            Rewrite("v4", "base", without_layer_types()),
            Rewrite(
                "v4_max_window_layers",
                "base",
                without_layer_types(use_sliding_window=True, sliding_window=6, max_window_layers=0),
                why="no layer is below: none slides",
            ),
        ],
        shape_keys=SHAPES_GQA
        + ["moe_intermediate_size", "num_experts", "shared_expert_intermediate_size"],
        gguf={case: "qwen2moe" for case in ("mlp_only_layers", "implied_linear", "implied_yarn")},
        missing="model.layers.1.mlp.shared_expert_gate.weight",
    )


def granitemoe():
    return Family(
        name="granitemoe",
        model_type="granitemoe",
        architecture="GraniteMoeForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **GQA,
            **rope(),
            **EXPERTS,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.7,
            "logits_scaling": 0.5,
            "rms_norm_eps": 1e-5,
        },
        cases=[Case("base")]
        + common_cases()
        + [
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("embedding_multiplier", {"embedding_multiplier": 1.0}),
            Case("attention_multiplier", {"attention_multiplier": 1.0}),
            Case("residual_multiplier", {"residual_multiplier": 1.0}),
            Case("logits_scaling", {"logits_scaling": 1.0}),
            Case("attention_bias", {"attention_bias": True}),
            Case("head_dim", {"head_dim": 8}),
            *every_rope(4),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
        ],
        shape_keys=SHAPES_GQA + ["num_local_experts"],
        gguf={case: "granitemoe" for case in ("base", "every_linear", "every_yarn_attention_factor")},
        missing="model.layers.1.block_sparse_moe.router.layer.weight",
    )


def jetmoe():
    return Family(
        name="jetmoe",
        model_type="jetmoe",
        architecture="JetMoeForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **GQA,
            **rope(),
            **EXPERTS,
            "kv_channels": 8,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        cases=[Case("base")]
        + common_cases(act="activation_function")
        + [
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case(
                "num_key_value_heads",
                {"num_key_value_heads": 4, "kv_channels": 4},
                why="more heads in the same width",
            ),
            *every_rope(8),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite(
                "defaults",
                "tie_word_embeddings",
                keep(
                    "vocab_size",
                    "hidden_size",
                    "intermediate_size",
                    "num_hidden_layers",
                    "num_key_value_heads",
                    "num_local_experts",
                    "kv_channels",
                ),
                same_result=False,
            ),
        ],
        shape_keys=SHAPES + ["num_key_value_heads", "kv_channels", "num_local_experts"],
        missing="model.layers.1.self_attention.experts.bias",
        rejects=[
            {"name": "head_dim", "set": {"head_dim": 4}, "expect": "head_dim"},
        ],
    )


def deepseek_v2():
    yarn = dict(factor=4.0, original_max_position_embeddings=16)
    return Family(
        name="deepseek_v2",
        model_type="deepseek_v2",
        architecture="DeepseekV2ForCausalLM",
        settings={
            **TINY,
            **rope(),
            "num_key_value_heads": 4,
            "q_lora_rank": 12,
            "kv_lora_rank": 10,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "moe_intermediate_size": 12,
            "n_shared_experts": 2,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 4.0,
        },
        cases=[Case("base", why="norms of the latents have eps 1e-6 whatever rms_norm_eps")]
        + common_cases()
        + [
            Case("first_k_dense_replace", {"first_k_dense_replace": 2}, why="all layers are dense"),
            Case("first_k_dense_replace_none", {"first_k_dense_replace": 0}),
            Case("num_experts_per_tok", {"num_experts_per_tok": 2}),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            Case("topk_method", {"topk_method": "greedy"}, why="as the smaller model"),
            Case("n_group", {"n_group": 2}, why="the same experts in other groups"),
            Case("topk_group", {"topk_group": 4}, why="every group offers candidates"),
            Case("n_shared_experts", {"n_shared_experts": 1}),
            Case("norm_topk_prob", {"norm_topk_prob": True}, neutral=True, why="the class does not read it"),
            Rewrite(
                "num_experts", "base", without("n_routed_experts", num_experts=8), why="its other name"
            ),
            Case("q_lora_rank", {"q_lora_rank": None}),
            Case("attention_bias", {"attention_bias": True}),
            Case(
                "rope_yarn_mscale_all_dim",
                rope(kind="yarn", mscale=0.707, mscale_all_dim=0.707, **yarn),
                why="as the released model",
            ),
            *every_rope(4),
            dynamic_rope(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite("v4_rope_yarn", "rope_yarn_mscale_all_dim", older_type),
        ],
        shape_keys=SHAPES
        + ["num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"]
        + ["v_head_dim", "num_key_value_heads", "first_k_dense_replace", "head_dim"]
        + ["n_routed_experts", "n_shared_experts", "moe_intermediate_size"],
        gguf={
            case: "deepseek2"
            for case in ("base", "q_lora_rank", "rope_yarn_mscale_all_dim", "every_linear")
            + ("every_yarn_attention_factor", "topk_method")
        },
        gguf_older=("q_lora_rank",),
        missing="model.layers.1.mlp.shared_experts.up_proj.weight",
        rejects=[
            {
                "name": "topk_method",
                "set": {"topk_method": "noaux_tc"},
                "expect": "topk_method",
                "why": "unknown to this class",
            },
            {"name": "mlp_bias", "set": {"mlp_bias": True}, "expect": "mlp_bias"},
        ],
    )


def dbrx():
    def ffn(**keys):
        own = {"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2, **keys}
        return {"ffn_config": own}

    def attention(**keys):
        # the class asks for a base of the rope here, and does not use it
        return {"attn_config": {"kv_n_heads": 2, "clip_qkv": 0.6, "rope_theta": 7.0, **keys}}

    return Family(
        name="dbrx",
        model_type="dbrx",
        architecture="DbrxForCausalLM",
        gains={"norm_f.weight": 1},
        settings=dict(
            vocab_size=64,
            d_model=16,
            n_layers=2,
            n_heads=4,
            max_seq_len=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            **rope(),
            **ffn(),
            **attention(),
        ),
        cases=[
            Case("base", why="the projections reach the clamp"),
            Case("rope_theta", rope(50.0)),
            Case("clip_qkv", attention(clip_qkv=0.3)),
            Case("moe_top_k", ffn(moe_top_k=3)),
            Case("moe_normalize_expert_weights", ffn(moe_normalize_expert_weights=2.0)),
            Case("moe_normalize_expert_weights_null", ffn(moe_normalize_expert_weights=None)),
            Case("ffn_act_fn", ffn(ffn_act_fn={"name": "gelu"})),
            *every_rope(4),
            Rewrite("v4", "base", older),
        ],
        shape_keys=["vocab_size", "d_model", "n_layers", "n_heads", "attn_config.kv_n_heads"]
        + ["ffn_config.ffn_hidden_size", "ffn_config.moe_num_experts"],
        missing="transformer.blocks.1.ffn.experts.mlp.v1",
    )


FAMILIES += [
    make() for make in (mixtral, qwen3_moe, qwen2_moe, granitemoe, jetmoe, deepseek_v2, dbrx)
]


def olmoe():
    return Family(
        name="olmoe",
        model_type="olmoe",
        architecture="OlmoeForCausalLM",
        gains={"model.norm.weight": 1},
        settings={
            **GQA,
            **rope(),
            "hidden_size": 16,
            "intermediate_size": 12,
            "num_experts": 5,
            "num_experts_per_tok": 2,
        },
        cases=[Case("base")]
        + common_cases()
        + [
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("norm_topk_prob", {"norm_topk_prob": True}),
            Case("attention_bias", {"attention_bias": True}),
            *every_rope(4),
            *whole_rotary(),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Rewrite("v4", "base", older),
            Rewrite(
                "num_local_experts",
                "base",
                without("num_experts", num_local_experts=5),
                why="its other name",
            ),
        ],
        shape_keys=SHAPES_GQA + ["num_experts"],
        gguf={case: "olmoe" for case in ("base", "every_linear", "every_yarn_attention_factor")},
        missing="model.layers.1.self_attn.k_norm.weight",
        rejects=[
            {
                "name": "clip_qkv",
                "set": {"clip_qkv": 8.0},
                "expect": "clip_qkv",
                "why": "a clamp after the norms; no released checkpoint has it",
            },
        ],
    )


def phimoe():
    long = dict(
        kind="longrope",
        short_factor=SHORT[:2],
        long_factor=LONG[:2],
        short_mscale=1.3,
        long_mscale=1.3,
        original_max_position_embeddings=32,
    )
    return Family(
        name="phimoe",
        model_type="phimoe",
        architecture="PhimoeForCausalLM",
        draw=1,
        gains={"model.norm.weight": 1},
        settings={
            **GQA,
            **rope(),
            **EXPERTS,
            "router_jitter_noise": 0.2,
            "attention_bias": True,
            "lm_head_bias": True,
        },
        cases=[Case("base", why="some experts come near the best, others do not")]
        + common_cases()
        + [
            Case("router_jitter_noise", {"router_jitter_noise": 0.05}),
            Case("attention_bias", {"attention_bias": False}),
            Case("lm_head_bias", {"lm_head_bias": False}),
            Case("sliding_window", {"sliding_window": 4}),
            Case("rope_longrope", rope(**long), why="within the trained length; beyond it the class keeps these factors"),
            Case("rope_longrope_factors", rope(**{**long, "short_factor": [1.5, 3.0]}), of="rope_longrope"),
            Case("rope_longrope_mscale", rope(**{**long, "short_mscale": 1.0, "long_mscale": 1.0}), of="rope_longrope"),
            Case(
                "rope_longrope_mscales",
                rope(**{**long, "short_mscale": 1.0}),
                of="rope_longrope",
                why="another factor beyond the trained length",
            ),
            Rewrite("v4", "base", older),
            Rewrite(
                "hub",
                "rope_longrope",
                lambda config: {**older_type(config), "original_max_position_embeddings": 32},
                why="keys of the released files",
            ),
            Rewrite("rope_in_scaling", "rope_longrope", rope_within("rope_scaling"), why="all in rope_scaling"),
            Rewrite("rope_scaling", "rope_longrope", rope_at_top, why="under rope_scaling"),
            Rewrite("rope_type", "rope_longrope", rope_within("rope_parameters"), why='"type"'),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Case("implied", {"router_jitter_noise": 0.01}, why="what GGUF files do not say"),
            Case(
                "implied_longrope",
                # what llama.cpp's converter makes of 64 tokens instead of 32
                rope(**{**long, "short_mscale": 1.2**0.5, "long_mscale": 1.2**0.5}),
                of="implied",
                text=False,
            ),
        ],
        shape_keys=SHAPES_GQA + ["num_local_experts"],
        missing="model.layers.1.block_sparse_moe.experts.2.w3.weight",
        rejects=[
            {"name": "three_experts", "set": {"num_experts_per_tok": 3}, "expect": "num_experts_per_tok"},
        ],
    )


def switch_transformers():
    return Family(
        name="switch_transformers",
        model_type="switch_transformers",
        architecture="SwitchTransformersForConditionalGeneration",
        draw=1,
        gains={"decoder.final_layer_norm.weight": 4},
        settings=dict(
            vocab_size=64,
            d_model=16,
            d_kv=5,
            d_ff=12,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=3,
            num_experts=4,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=12,
            decoder_start_token_id=0,
        ),
        cases=[
            Case("base", why="the second layer of each stack has experts"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("relative_attention_max_distance", {"relative_attention_max_distance": 30}),
            Case("dense_act_fn", {"dense_act_fn": "gelu"}),
            Case("num_sparse_encoder_layers", {"num_sparse_encoder_layers": 2}, why="all layers"),
            Case("num_sparse_decoder_layers", {"num_sparse_decoder_layers": 3}, why="all layers"),
            Case(
                "sparse_by_default",
                {"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0},
                neutral=True,
                why="none are asked for, and the second layer of a stack has experts all the same",
            ),
            Case("dense_encoder", {"num_sparse_encoder_layers": 3}, why="more than there are: none"),
            Case("dense_decoder", {"num_sparse_decoder_layers": 4}, why="more than there are: none"),
            Case(
                "expert_capacity",
                {"expert_capacity": 2},
                of="dense_decoder",
                why="an expert takes the first two tokens of a source",
            ),
            Case("router_bias", {"router_bias": True}),
            Rewrite(
                "hub",
                "base",
                without(
                    "num_sparse_encoder_layers",
                    num_sparse_encoder_layers=1,
                    encoder_sparse_step=2,
                    decoder_sparse_step=3,
                    router_type="tokens_masked",
                    batch_prioritized_routing=False,
                    feed_forward_proj="relu",
                    is_gated_act=False,
                    n_positions=512,
                    pad_token_id=0,
                ),
                why="keys of the released files",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(
                    "vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "num_experts",
                    "num_decoder_layers", "num_sparse_encoder_layers", "num_sparse_decoder_layers",
                    "relative_attention_num_buckets", "decoder_start_token_id",
                ),
                same_result=False,
                why="distance 128, epsilon 1e-6, relu",
            ),
            Rewrite(
                "released",
                "base",
                t5_released,
                t5_even,
                same_result=False,
                why="the form of the first T5: as many layers in both stacks, distance 128",
            ),
            Rewrite(
                "released_v1_1",
                "v1_1",
                t5_released,
                t5_even,
                same_result=False,
                why="the form of T5 1.1: as many layers in both stacks, distance 128",
            ),
        ],
        shape_keys=["vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers"]
        + ["num_heads", "relative_attention_num_buckets", "num_experts"],
        precision=("router_dtype",),
        padding="right",
        pair=True,
        missing="decoder.block.1.layer.2.mlp.experts.expert_2.wi.weight",
        rejects=[
            {
                "name": "untied",
                "set": {"tie_word_embeddings": False},
                "expect": "tie_word_embeddings",
                "why": "the class then has three embeddings",
            },
        ],
    )


FAMILIES += [make() for make in (olmoe, phimoe, switch_transformers)]


# --- what is read instead of text ---------------------------------------------------------------------


def whisper():
    return Family(
        name="whisper",
        model_type="whisper",
        architecture="WhisperForConditionalGeneration",
        gains={"decoder.layer_norm.weight": 1, "decoder.embed_positions.weight": 4},
        settings=dict(
            vocab_size=64,
            num_mel_bins=8,
            d_model=16,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=12,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=20,
            max_source_positions=9,
            max_target_positions=40,
            activation_function="relu",
            decoder_start_token_id=3,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        cases=[
            Case("base"),
            Case("activation_function", {"activation_function": "gelu"}),
            Case("encoder_attention_heads", {"encoder_attention_heads": 4}),
            Case("decoder_attention_heads", {"decoder_attention_heads": 2}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Rewrite(
                "hub",
                "base",
                older_with(
                    suppress_tokens=[1, 2],
                    begin_suppress_tokens=[4],
                    forced_decoder_ids=[[1, 5], [2, 6]],
                    max_length=40,
                ),
                why="keys of the released files",
            ),
            Rewrite(
                "defaults",
                "activation_function",
                keep(
                    "vocab_size",
                    "num_mel_bins",
                    "d_model",
                    "encoder_layers",
                    "encoder_attention_heads",
                    "encoder_ffn_dim",
                    "decoder_layers",
                    "decoder_attention_heads",
                    "decoder_ffn_dim",
                    "max_source_positions",
                    "max_target_positions",
                    "decoder_start_token_id",
                    "pad_token_id",
                ),
                why="gelu, a tied head",
            ),
        ],
        shape_keys=["vocab_size", "num_mel_bins", "d_model", "encoder_layers", "encoder_ffn_dim"]
        + ["decoder_layers", "decoder_ffn_dim", "max_target_positions"],
        padding="right",
        pair=True,
        features=("input_features", (8, 18)),
        missing="model.decoder.layers.1.encoder_attn.v_proj.bias",
        rejects=[
            {
                "name": "use_weighted_layer_sum",
                "set": {"use_weighted_layer_sum": True},
                "expect": "use_weighted_layer_sum",
            },
            *[
                {"name": name, "add_tensor": {"name": name, "dtype": "F32", "shape": [2, 3]}, "expect": name}
                for name in ("projector.weight", "classifier.weight")
            ],
        ],
    )


def vit():
    return Family(
        name="vit",
        model_type="vit",
        architecture="ViTForImageClassification",
        settings=dict(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=20,
            image_size=[8, 12],
            patch_size=4,
            num_labels=5,
            layer_norm_eps=1e-5,
            hidden_act="relu",
        ),
        cases=[
            Case("base", why="six patches, the class of the first token"),
            Case("hidden_act", {"hidden_act": "gelu"}),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            Case("qkv_bias", {"qkv_bias": False}),
            Case(
                "patch_size",
                {"patch_size": [2, 6]},
                why="patches that are no squares",
            ),
            Case("body", architecture="ViTModel", why="hidden states and a pooler's vector"),
            Case("pooler_act", {"pooler_act": "gelu"}, of="body", architecture="ViTModel"),
            Rewrite("v4", "base", older, why="older spelling"),
            Rewrite(
                "defaults",
                "layer_norm_eps",
                keep(
                    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                    "image_size", "patch_size", "id2label", "label2id",
                ),
                same_result=False,
                why="epsilon 1e-12, gelu",
            ),
        ],
        shape_keys=["hidden_size", "num_hidden_layers", "intermediate_size", "num_channels"]
        + ["image_size", "patch_size"],
        padding="none",
        features=("pixel_values", (3, 8, 12)),
        no_text="an encoder",
        missing="vit.encoder.layer.1.attention.attention.key.bias",
        rejects=[
            {"name": "image_size", "set": {"image_size": [8, 8]}, "expect": "position_embeddings"},
            {"name": "pooler_output_size", "set": {"pooler_output_size": 8}, "expect": "pooler_output_size"},
        ],
    )


FAMILIES += [make() for make in (whisper, vit)]

import family_cases_decoders  # noqa: E402  which takes the parts above from here

FAMILIES += family_cases_decoders.FAMILIES
FEW_TOKENS.update(family_cases_decoders.FEW_TOKENS)


import family_cases_decoders_more  # noqa: E402

FAMILIES += family_cases_decoders_more.FAMILIES
FEW_TOKENS.update(family_cases_decoders_more.FEW_TOKENS)


import family_cases_gemma  # noqa: E402  (its families use both)

FAMILIES += family_cases_gemma.FAMILIES

import family_cases_decoders_2026  # noqa: E402

FAMILIES += family_cases_decoders_2026.FAMILIES
FEW_TOKENS.update(family_cases_decoders_2026.FEW_TOKENS)

import family_cases_decoders_late  # noqa: E402

FAMILIES += family_cases_decoders_late.FAMILIES
FEW_TOKENS.update(family_cases_decoders_late.FEW_TOKENS)

import family_cases_decoders_sparse  # noqa: E402

FAMILIES += family_cases_decoders_sparse.FAMILIES
FEW_TOKENS.update(family_cases_decoders_sparse.FEW_TOKENS)

import family_cases_ngram_memory  # noqa: E402

FAMILIES += family_cases_ngram_memory.FAMILIES

import family_cases_ternary  # noqa: E402

FAMILIES += family_cases_ternary.FAMILIES


import family_cases_encoders  # noqa: E402  (its families use the above)

FAMILIES += family_cases_encoders.FAMILIES

import family_cases_bert_kin  # noqa: E402  (its families use both)

FAMILIES += family_cases_bert_kin.FAMILIES

import family_cases_encoders_more  # noqa: E402  (its families use all of them)

FAMILIES += family_cases_encoders_more.FAMILIES

import family_cases_kin  # noqa: E402  (its families use all of them)

FAMILIES += family_cases_kin.FAMILIES

import family_cases_released  # noqa: E402

FAMILIES += family_cases_released.FAMILIES

# families whose files are read with their head alone; Zamba's is always tied
HEADED = ("exaone", "mamba", "falcon_mamba", "mamba2", "fla_mamba", "fla_mamba2", "mamba_ssm", "mamba2_ssm", "internlm2", "qwen", "chatglm", "minicpm", "baichuan", "openelm", "torchscale_retnet", "hyenadna_lightning", "rwkv", "xlstm", "nemotron_h", "zamba", "zamba2")


def with_body(family):
    """Adds the model without its head, where the family has no such case."""
    body = family.architecture
    for head in ("ForCausalLM", "LMHeadModel", "ModelWithLMHead"):
        body = body.removesuffix(head)
    several = {"MiniMaxM3VL": "MiniMaxM3VLText", "Dots3Note": "Dots3NoteText", "Llama4": "Llama4Text", "Gemma3": "Gemma3Text", "Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText", "Gemma3n": "Gemma3nText", "Gemma4": "Gemma4Text", "Gemma4Unified": "Gemma4UnifiedText", "CohereCompass": "CohereCompassText", "Qwen4Exp": "Qwen4ExpText"}  # whose Model reads images too
    body = several.get(body, body) + "Model"
    known = any(case.name == "body" for case in family.cases)
    if not (known or family.pair or body == family.architecture or family.name in HEADED):
        why = "no output matrix, and untied: bare names, last_hidden_state"
        untied = {"tie_word_embeddings": False}  # a tied head is there all the same
        family.cases.append(Case("body", untied, architecture=body, text=False, why=why))
    return family


FAMILIES = [family_cases_encoders.with_classes(with_body(family)) for family in FAMILIES]
