"""Cases of further encoders in BERT's shape and of pairs in BART's and T5's; family_cases.py joins them to its table."""

import reference
from family_cases import (
    ENCODER,
    ENCODER_SHAPES,
    KEEP_TINY,
    PARTIAL_SCALED,
    SHAPES,
    Case,
    Family,
    Rewrite,
    classifiers,
    encoder_cases,
    every_rope,
    keep,
    named_classes,
    older_with,
    questions,
    rope,
    whole_rotary,
)
from family_cases_encoders import ROTARY, T5_SHAPES, TEXTLESS, bart_kin, said, t5_derived


def bert_kin(name, prefix, missing, cases=(), drop=(), **more):
    """BERT with something else; `drop`: cases of encoder_cases that its classes lack."""
    return Family(
        name=name,
        model_type=name.replace("_", "-") if name not in ("ernie", "esm") else name,
        architecture=f"{prefix}ForMaskedLM",
        settings={**ENCODER, **more},
        cases=[
            *[case for case in encoder_cases(prefix) if case.name not in drop],
            *([] if "questions" in drop else [questions(prefix)]),
            *([] if "is_decoder" in drop else [Case("is_decoder", {"is_decoder": True}, why="a causal mask")]),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            Rewrite("older", "base", older_with(position_embedding_type="absolute")),
            *cases,
        ],
        shape_keys=[key for key in ENCODER_SHAPES if key != "type_vocab_size" or "types" not in drop],
        padding="right",
        types=0 if "types" in drop or more.get("type_vocab_size") == 1 else 2,
        no_text="an encoder",
        missing=missing,
    )


KEPT = (*KEEP_TINY[:-1], "max_position_embeddings")
COUNTED = Case("pad_token_id", {"pad_token_id": 2}, why="positions are counted from behind it")


def roberta_kin(name, prefix, missing, *cases, **more):
    defaults = Rewrite("defaults", "base", keep(*KEPT))
    return bert_kin(name, prefix, missing, [COUNTED, *cases, defaults], pad_token_id=1, **more)


def ernie():
    tasks = Case("use_task_id", {"use_task_id": True}, why="a vector for the task, here the first of three")
    more = Case("task_type_vocab_size", {"use_task_id": True, "task_type_vocab_size": 2}, why="as many tasks as the table has rows")
    family = bert_kin("ernie", "Ernie", "ernie.encoder.layer.1.attention.self.value.bias", [tasks, more])
    family.cases.append(Rewrite("defaults", "use_task_id", keep(*KEPT, "use_task_id"), why="three tasks"))
    return family


def megatron_bert():
    defaults = Rewrite("defaults", "base", keep(*KEPT))
    return bert_kin("megatron_bert", "MegatronBert", "bert.encoder.layer.1.attention.self.value.bias", [defaults])


def roberta_prelayernorm():
    return roberta_kin(
        "roberta_prelayernorm", "RobertaPreLayerNorm", "roberta_prelayernorm.encoder.layer.1.attention.self.value.bias"
    )


def data2vec_text():
    return roberta_kin("data2vec_text", "Data2VecText", "data2vec_text.encoder.layer.1.attention.self.value.bias")


def xlm_roberta_xl():
    return roberta_kin(
        "xlm_roberta_xl", "XLMRobertaXL", "roberta.encoder.layer.1.attention.self.value.bias", type_vocab_size=1
    )


def esm_files(tensors, config):
    """Norms as the released files name them: this version saves what it takes for BERT's old names."""
    words = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    return {next((name.replace(old, new) for old, new in words.items() if name.endswith(old)), name): tensor for name, tensor in tensors.items()}


def esm():
    rotary = {"position_embedding_type": "rotary"}
    family = bert_kin(
        "esm",
        "Esm",
        "esm.encoder.layer.1.attention.self.value.bias",
        [
            Case("pad_token_id", {"pad_token_id": 2}, why="positions are counted from behind it"),
            Case("emb_layer_norm_before", {"emb_layer_norm_before": True}),
            Case("token_dropout", {"token_dropout": True}, why="mask tokens are nothing, the others are scaled"),
            Case("mask_token_id", {"mask_token_id": 9}, of="token_dropout"),
            Case("rotary", rotary, why="no table of positions"),
            Case("rope_theta", {"rope_theta": 100.0}, of="rotary"),
            Case("esm2", {**rotary, "token_dropout": True, "layer_norm_eps": 1e-5}, why="all that ESM-2 has"),
        ],
        drop=("hidden_act_relu", "types", "questions"),
        pad_token_id=1,
        mask_token_id=7,
    )
    family.as_released = esm_files
    family.cases = [case for case in family.cases if case.name not in ("older",)]
    family.cases.append(
        Rewrite(
            "hub",
            "esm2",
            older_with(esmfold_config=None, vocab_list=None, is_folding_model=False, hidden_act="gelu"),
            lambda tensors: {
                **tensors,
                "esm.embeddings.position_embeddings.weight": reference.draw("esm", "positions", (8, 16), False),
            },
            why="the keys of the released files, and a table of positions that nothing reads",
        )
    )
    family.cases.append(
        Rewrite("defaults", "base", keep(*[k for k in KEPT if k != "type_vocab_size"], "pad_token_id", "mask_token_id"))
    )
    return family


def first_gte(**more):
    """The config of the code beside the first files."""

    def rewrite(config):
        gone = ("rope_parameters", "dtype", "head_dim", "hidden_dropout_prob")
        return {
            **{k: v for k, v in config.items() if k not in gone},
            "model_type": "new",
            "architectures": ["NewForMaskedLM"],
            "layer_norm_type": "layer_norm",
            "logn_attention_clip1": False,
            "logn_attention_scale": False,
            "pack_qkv": True,
            "position_embedding_type": "rope",
            "torch_dtype": "float32",
            "unpad_inputs": False,
            "use_memory_efficient_attention": False,
            **more,
        }

    return rewrite


def gte():
    ntk = rope(4000.0, "linear", factor=4 ** (2 / 8))
    return Family(
        name="gte",
        model_type="gte",
        architecture="GteForMaskedLM",
        settings=dict(ROTARY, type_vocab_size=2, pad_token_id=0),
        cases=[
            *encoder_cases("Gte"),
            Case("num_attention_heads", {"num_attention_heads": 4}),
            Case("head_dim", {"head_dim": 12}, why="heads wider than their share"),
            Case("rope_theta", rope(50.0)),
            Case("type_vocab_size", {"type_vocab_size": 0}, why="no types"),
            Case("ntk", ntk, why="a base times 4, and frequencies divided by 4 to the power of 2 / head_dim"),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            *every_rope(8),
            *whole_rotary(),
            Rewrite(
                "hub",
                "base",
                first_gte(rope_theta=1000.0, rope_scaling=None),
                lambda tensors: {name.replace("gte.", "new."): value for name, value in tensors.items()},
                reference_refuses="the keys of the code beside the files",
            ),
            Rewrite(
                "hub_ntk",
                "ntk",
                first_gte(rope_theta=1000.0, rope_scaling={"type": "ntk", "factor": 4.0}),
                reference_refuses="the keys of the code beside the files",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY[:-1], "max_position_embeddings", "type_vocab_size"),
                same_result=False,
                why="a base of 160000",
            ),
        ],
        shape_keys=SHAPES,
        padding="right",
        types=2,
        no_text="an encoder",
        missing="gte.encoder.layer.1.attention.o_proj.bias",
        rejects=[
            PARTIAL_SCALED,
            {
                "name": "mixed_b",
                "set": {"rope_scaling": {"type": "ntk", "factor": 4.0, "mixed_b": 0.6}},
                "unset": ["rope_parameters"],
                "expect": "mixed_b",
            }
        ],
    )


def xlm_kin(name, prefix, cases):
    settings = dict(
        vocab_size=32,
        emb_dim=16,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        mask_token_id=3,
    )
    shapes = ["vocab_size", "emb_dim", "n_layers"]
    one = {"n_layers": 1}
    return Family(
        name=name,
        model_type=name,
        architecture=f"{prefix}WithLMHeadModel",
        settings=settings,
        cases=[
            Case("base"),
            Case("n_heads", {"n_heads": 2}),
            Case("gelu_activation", {"gelu_activation": False}, why="relu"),
            Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
            Case("causal", {"causal": True}, why="a causal mask"),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("n_langs", {"n_langs": 3}, neutral=True, why="language vectors, which count where languages are given"),
            Case("body", {}, architecture=f"{prefix}Model", why="bare names, last_hidden_state"),
            Case(
                "classifier",
                {"num_labels": 3, **one},
                architecture=f"{prefix}ForSequenceClassification",
                why="classes of the first token",
            ),
            Case("token_classifier", {"num_labels": 5, **one}, architecture=f"{prefix}ForTokenClassification", why="classes of every token"),
            Case(
                "questions",
                one,
                architecture=f"{prefix}ForQuestionAnsweringSimple",
                why="the first and the last token of an answer",
            ),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            Rewrite(
                "hub",
                "base",
                lambda config: {
                    **{k: v for k, v in config.items() if k not in ("vocab_size", "dtype")},
                    "n_words": config["vocab_size"],
                    "id2lang": {"0": "en"},
                    "lang2id": {"en": 0},
                },
                lambda tensors: {**tensors, "pred_layer.proj.weight": tensors["transformer.embeddings.weight"].clone()},
                why="the first name of the vocabulary's size, languages, the tied head stored",
            ),
            *cases,
            Rewrite("defaults", "base", keep(*shapes, "n_heads", "max_position_embeddings", "pad_token_id")),
        ],
        shape_keys=shapes + ["max_position_embeddings"],
        padding="right",
        no_text="an encoder",
        missing="transformer.attentions.1.v_lin.bias",
        rejects=[
            {"name": "asm", "set": {"asm": True}, "expect": "asm"},
            {"name": "is_encoder", "set": {"is_encoder": False}, "expect": "is_encoder"},
        ],
    )


def xlm():
    return xlm_kin("xlm", "XLM", [])


def flaubert():
    return xlm_kin("flaubert", "Flaubert", [Case("pre_norm", {"pre_norm": True}, why="norms before the branches, none behind the last")])


MVP_GAINS = {
    "decoder.layers.1.fc1.weight": 3,
    "decoder.layers.1.fc2.weight": 6,
    "decoder.layers.1.final_layer_norm.weight": 2,
}


def mvp():
    family = bart_kin("mvp", "Mvp", [], MVP_GAINS, hub=said(False, True, False, 2), draw=1, textless=TEXTLESS)
    family.rejects.append({"name": "use_prompt", "set": {"use_prompt": True}, "expect": "use_prompt"})
    return family


def longt5():
    return Family(
        name="longt5",
        model_type="longt5",
        architecture="LongT5ForConditionalGeneration",
        gains={"decoder.final_layer_norm.weight": 4},
        settings=dict(
            vocab_size=64,
            d_model=16,
            d_kv=5,
            d_ff=12,
            num_layers=2,
            num_decoder_layers=3,
            num_heads=3,
            local_radius=3,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=12,
            decoder_start_token_id=0,
        ),
        cases=[
            Case("base", why="relu, tied and scaled head, three tokens to either side"),
            Case("local_radius", {"local_radius": 5}),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("relative_attention_max_distance", {"relative_attention_max_distance": 30}),
            Case("feed_forward_proj_gated_gelu", {"feed_forward_proj": "gated-gelu"}, why="the tanh form"),
            Case("feed_forward_proj_gated_silu", {"feed_forward_proj": "gated-silu"}),
            Case(
                "scale_decoder_outputs",
                {"tie_word_embeddings": False},
                why="what tie_word_embeddings false means; the file then says it by this key",
            ),
            Rewrite("v4_gelu", "feed_forward_proj_gated_gelu", t5_derived(), why="the keys of version 4"),
            Rewrite(
                "unscaled",
                "base",
                t5_derived(tie_word_embeddings=False),
                same_result=False,
                why="as the released files say that logits are not scaled",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*T5_SHAPES, "decoder_start_token_id"),
                same_result=False,
                why="a radius of 127, distance 128, epsilon 1e-6, relu",
            ),
        ],
        shape_keys=T5_SHAPES,
        padding="right",
        pair=True,
        missing="decoder.block.1.layer.1.EncDecAttention.v.weight",
        rejects=[
            {
                "name": "encoder_attention_type",
                "set": {"encoder_attention_type": "transient-global"},
                "expect": "encoder_attention_type",
            }
        ],
    )


GEMMA_STACK = dict(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=64,
    query_pre_attn_scalar=10,
    sliding_window=3,
    attn_logit_softcapping=4.0,
    final_logit_softcapping=6.0,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
    **rope(),
)


def stack(name, **changes):
    """Settings of one stack with changes."""
    return {name: {**GEMMA_STACK, **OWN[name], **changes}}


OWN = {"encoder": {}, "decoder": {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 12, "sliding_window": 4}}


STACK_SHAPES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]


def older_t5gemma(config):
    """As the released files: rope_theta in each stack, the first id by the decoder's own key."""
    result = {k: v for k, v in config.items() if k not in ("decoder_start_token_id", "dtype")}
    for name in ("encoder", "decoder"):
        rest = {k: v for k, v in config[name].items() if k not in ("rope_parameters", "dtype")}
        result[name] = {**rest, "rope_theta": config[name]["rope_parameters"]["rope_theta"], "rope_scaling": None}
    return result


def kept_t5gemma(config):
    """The shapes alone."""
    names = (*STACK_SHAPES, "num_key_value_heads", "head_dim")
    stacks = {name: {k: config[name][k] for k in names} for name in ("encoder", "decoder")}
    return {**{k: config[k] for k in ("architectures", "model_type", "decoder_start_token_id")}, **stacks}


def t5gemma():
    # in one case, each stack another value
    each = [
        (key, {**stack("encoder", **{key: first}), **stack("decoder", **{key: second})})
        for key, first, second in (
            ("num_key_value_heads", 2, 1),
            ("head_dim", 4, 6),
            ("rms_norm_eps", 0.05, 0.02),
            ("hidden_activation", "relu", "silu"),
            ("query_pre_attn_scalar", 30, 3),
            ("sliding_window", 6, 7),
            ("layer_types", ["full_attention", "sliding_attention"], ["full_attention"] * 2),
            ("attn_logit_softcapping", None, 2.0),
            ("rope_parameters", rope(50.0)["rope_parameters"], rope(20.0)["rope_parameters"]),
        )
    ]
    each += [(f"{name}_attention_bias", stack(name, attention_bias=True)) for name in ("encoder", "decoder")]
    return Family(
        name="t5gemma",
        model_type="t5gemma",
        architecture="T5GemmaForConditionalGeneration",
        gains={"decoder.norm.weight": 3},
        zero_centred_norms=True,
        settings=dict(**stack("encoder"), **stack("decoder"), vocab_size=32, decoder_start_token_id=2, pad_token_id=0, bos_token_id=2, eos_token_id=1),
        cases=[
            Case("base"),
            *[Case(name, changes, text=False) for name, changes in each],
            Case("final_logit_softcapping", stack("decoder", final_logit_softcapping=None), text=False),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}, text=False),
            Case("length", stack("decoder", max_position_embeddings=48), neutral=True, why="rotations have no table"),
            Rewrite("hub", "base", older_t5gemma, why="the keys of version 4"),
            Rewrite("defaults", "base", kept_t5gemma, same_result=False, why="a window of 4096, caps of 50 and 30, a base of 10000"),
        ],
        shape_keys=[f"{name}.{key}" for name in ("encoder", "decoder") for key in STACK_SHAPES],
        padding="right",
        pair=True,
        missing="model.decoder.layers.1.cross_attn.v_proj.weight",
        rejects=[
            {"name": "two_widths", "set": {"decoder.hidden_size": 24}, "expect": "hidden_size"},
            {"name": "two_vocabularies", "set": {"decoder.vocab_size": 64}, "expect": "vocab_size"},
            {"name": "rope_type", "set": {"encoder.rope_parameters.rope_type": "linear"}, "expect": "rope_type"},
        ],
    )


GEMMA_2_STACK = {
    **{k: v for k, v in GEMMA_STACK.items() if k not in ("attn_logit_softcapping", "rope_parameters")},
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
IMAGE_TOWER = dict(
    model_type="siglip_vision_model",
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    image_size=56,
    patch_size=14,
)


def stack_2(name, **changes):
    """Settings of one stack with changes; the encoder's are those of its text."""
    settings = {**GEMMA_2_STACK, **OWN[name], **changes}
    return {name: settings if name == "decoder" else {"text_config": settings, "vision_config": IMAGE_TOWER, "mm_tokens_per_image": 4}}


def ropes(full=1000.0, sliding=100.0, **more):
    kinds = {"full_attention": full, "sliding_attention": sliding}
    return {kind: {"rope_type": "default", "rope_theta": theta, **more.get(kind, {})} for kind, theta in kinds.items()}


def kept_t5gemma2(config):
    """The shapes alone."""
    names = (*STACK_SHAPES, "num_key_value_heads", "head_dim")
    encoder = {"text_config": {k: config["encoder"]["text_config"][k] for k in names}}
    encoder.update({k: config["encoder"][k] for k in ("vision_config", "mm_tokens_per_image")})
    decoder = {k: config["decoder"][k] for k in names}
    return {**{k: config[k] for k in ("architectures", "model_type", "decoder_start_token_id")}, "encoder": encoder, "decoder": decoder}


def periods(config):
    """Types of layers by their period, and the first id by the decoder's own key."""
    del config["decoder_start_token_id"]
    for part in (config["encoder"]["text_config"], config["decoder"]):
        del part["layer_types"]
        part["sliding_window_pattern"] = 2
    return config


def t5gemma2():
    linear = {"rope_type": "linear", "factor": 4.0}
    # in one case, each stack another value
    each = [
        (key, {**stack_2("encoder", **{name: first}), **stack_2("decoder", **{name: second})})
        for key, name, first, second in (
            ("num_key_value_heads", "num_key_value_heads", 2, 1),
            ("head_dim", "head_dim", 4, 6),
            ("rms_norm_eps", "rms_norm_eps", 0.05, 0.02),
            ("hidden_activation", "hidden_activation", "relu", "silu"),
            ("query_pre_attn_scalar", "query_pre_attn_scalar", 30, 3),
            ("sliding_window", "sliding_window", 7, 6),
            ("layer_types", "layer_types", ["full_attention", "sliding_attention"], ["full_attention"] * 2),
            ("rope_theta_full", "rope_parameters", ropes(full=50.0), ropes(full=20.0)),
            ("rope_theta_sliding", "rope_parameters", ropes(sliding=5.0), ropes(sliding=2.0)),
            ("rope_linear", "rope_parameters", ropes(full_attention=linear), ropes(full_attention={**linear, "factor": 8.0})),
            ("rope_linear_sliding", "rope_parameters", ropes(sliding_attention=linear), ropes(sliding_attention={**linear, "factor": 8.0})),
        )
    ]
    each += [(f"{name}_attention_bias", stack_2(name, attention_bias=True)) for name in ("encoder", "decoder")]
    caps = {**stack_2("encoder", attn_logit_softcapping=2.0), **stack_2("decoder", attn_logit_softcapping=2.0)}
    return Family(
        name="t5gemma2",
        model_type="t5gemma2",
        architecture="T5Gemma2ForConditionalGeneration",
        gains={"decoder.norm.weight": 3},
        zero_centred_norms=True,
        settings=dict(**stack_2("encoder"), **stack_2("decoder"), vocab_size=32, decoder_start_token_id=2, pad_token_id=0, bos_token_id=2, eos_token_id=1),
        cases=[
            Case("base"),
            *[Case(name, changes, text=False) for name, changes in each],
            Case("attn_logit_softcapping", caps, neutral=True, why="this version stores it and never passes it to attention"),
            Case("final_logit_softcapping", stack_2("decoder", final_logit_softcapping=None), text=False),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}, text=False),
            Case("length", stack_2("decoder", max_position_embeddings=48), neutral=True, why="rotations have no table"),
            Rewrite("sliding_window_pattern", "base", periods, why="types of layers by their period"),
            Rewrite("defaults", "base", kept_t5gemma2, same_result=False, why="windows of 4096, no cap, bases of 10000 and 1000000"),
        ],
        shape_keys=[f"{name}.{key}" for name in ("encoder.text_config", "decoder") for key in STACK_SHAPES],
        padding="right",
        pair=True,
        missing="model.decoder.layers.1.self_attn.v_proj.weight",
        rejects=[
            {"name": "two_widths", "set": {"decoder.hidden_size": 24}, "expect": "hidden_size"},
            {"name": "two_vocabularies", "set": {"decoder.vocab_size": 64}, "expect": "vocab_size"},
            {"name": "rope_type", "set": {"encoder.text_config.rope_parameters.full_attention.rope_type": "yarn"}, "expect": "rope_type"},
        ],
    )


FAMILIES = [
    make()
    for make in (
        ernie,
        megatron_bert,
        roberta_prelayernorm,
        data2vec_text,
        xlm_roberta_xl,
        esm,
        gte,
        xlm,
        flaubert,
        mvp,
        longt5,
        t5gemma,
        t5gemma2,
    )
]
