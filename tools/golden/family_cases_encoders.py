"""Cases of encoders and of encoder-decoders; family_cases.py joins them to its table."""

import reference
from family_cases import (
    ENCODER,
    ENCODER_SHAPES,
    KEEP_TINY,
    PAIR_KEEP,
    PAIR_SHAPES,
    PARTIAL_SCALED,
    SHAPES,
    SHAPES_GQA,
    Case,
    Family,
    Rewrite,
    classifiers,
    encoder_cases,
    every_rope,
    keep,
    named_classes,
    older,
    older_pair,
    older_with,
    pair_of_stacks,
    questions,
    rope,
    rope_within,
    stored_embeddings,
    whole_rotary,
    without,
)


def distilbert():
    shapes = ["vocab_size", "dim", "hidden_dim", "n_layers"]
    return Family(
        name="distilbert",
        model_type="distilbert",
        architecture="DistilBertForMaskedLM",
        settings=dict(
            vocab_size=32, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=32, pad_token_id=0
        ),
        cases=[
            Case("base"),
            Case("activation_relu", {"activation": "relu"}),
            Case("n_heads", {"n_heads": 2}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("body", {}, architecture="DistilBertModel", why="bare names, last_hidden_state"),
            Case(
                "classifier",
                {"num_labels": 3, "n_layers": 1},
                architecture="DistilBertForSequenceClassification",
                why="relu before the classes of a row",
            ),
            Case(
                "token_classifier",
                {"num_labels": 5, "n_layers": 1},
                architecture="DistilBertForTokenClassification",
                why="classes of every token",
            ),
            Case(
                "questions",
                {"n_layers": 1},
                architecture="DistilBertForQuestionAnswering",
                why="the first and the last token of an answer",
            ),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            Rewrite(
                "hub",
                "base",
                older_with(tie_weights_=True, sinusoidal_pos_embds=False),
                lambda tensors: {
                    **tensors,
                    "vocab_projector.weight": tensors["distilbert.embeddings.word_embeddings.weight"].clone(),
                },
                why="the tied head stored",
            ),
            Rewrite("defaults", "base", keep(*shapes, "n_heads", "max_position_embeddings")),
        ],
        shape_keys=shapes + ["max_position_embeddings"],
        padding="right",
        no_text="an encoder",
        missing="distilbert.transformer.layer.1.attention.v_lin.bias",
    )


def electra():
    return Family(
        name="electra",
        model_type="electra",
        architecture="ElectraForMaskedLM",
        settings={**ENCODER, "embedding_size": 12},
        cases=[
            *encoder_cases("Electra"),
            questions("Electra"),
            Case("discriminator", {}, architecture="ElectraForPreTraining", why="whether a token was replaced"),
            Case(
                "discriminator_relu",
                {"hidden_act": "relu"},
                of="discriminator",
                architecture="ElectraForPreTraining",
                why="the activation of the discriminator's head",
            ),
            Case("embedding_size", {"embedding_size": 16}, why="as wide as the layers: no projection"),
            Case("is_decoder", {"is_decoder": True}, why="a causal mask"),
            Rewrite(
                "hub",
                "base",
                older_with(position_embedding_type="absolute", summary_use_proj=True),
                lambda tensors: {
                    **tensors,
                    "generator_lm_head.weight": tensors["electra.embeddings.word_embeddings.weight"].clone(),
                },
                why="the tied head stored",
            ),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings", "embedding_size")),
        ],
        shape_keys=ENCODER_SHAPES + ["embedding_size"],
        padding="right",
        types=2,
        no_text="an encoder",
        missing="electra.encoder.layer.1.attention.self.value.bias",
    )


def of_case(parent, cases):
    """Cases that vary another case than the base."""
    for case in cases:
        case.of = parent
    return cases


def albert():
    several = [case for case in encoder_cases("Albert") if "classifier" not in case.name]
    return Family(
        name="albert",
        model_type="albert",
        architecture="AlbertForMaskedLM",
        settings={**ENCODER, "embedding_size": 12, "num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2},
        cases=[
            *several,
            Case("num_hidden_layers", {"num_hidden_layers": 5}, why="more uses of the same groups"),
            Case("num_hidden_groups", {"num_hidden_groups": 1}, why="all layers share"),
            Case("inner_group_num", {"inner_group_num": 1}, of="num_hidden_groups", why="one layer for all"),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            *of_case("inner_group_num", [*classifiers("Albert"), questions("Albert")]),
            Rewrite(
                "hub",
                "base",
                older_with(down_scale_factor=1, gap_size=0, net_structure_type=0, num_memory_blocks=0, position_embedding_type="absolute"),
                lambda tensors: {
                    **tensors,
                    "predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"].clone(),
                    "predictions.decoder.bias": tensors["predictions.bias"].clone(),
                },
                why="the tied head stored",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY[:-1], "max_position_embeddings", "embedding_size", "inner_group_num", "num_hidden_groups"),
            ),
        ],
        # more layers are more uses of the same parameters
        shape_keys=[key for key in ENCODER_SHAPES if key != "num_hidden_layers"] + ["embedding_size"],
        padding="right",
        types=2,
        no_text="an encoder",
        missing="albert.encoder.albert_layer_groups.1.albert_layers.1.attention.value.bias",
    )


def older_modernbert(config):
    """As the first files: two bases and a period instead of lists."""
    gone = ("rope_parameters", "layer_types", "dtype")
    return {
        **{k: v for k, v in config.items() if k not in gone},
        "global_rope_theta": config["rope_parameters"]["full_attention"]["rope_theta"],
        "local_rope_theta": config["rope_parameters"]["sliding_attention"]["rope_theta"],
        "global_attn_every_n_layers": 3,
        "layer_norm_eps": config["norm_eps"],
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    }


def two_ropes(full, sliding):
    ropes = {"full_attention": full, "sliding_attention": sliding}
    return {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in ropes.items()}}


def modernbert():
    small = {"num_hidden_layers": 2}
    return Family(
        name="modernbert",
        model_type="modernbert",
        architecture="ModernBertForMaskedLM",
        settings={
            **{k: v for k, v in ENCODER.items() if k != "num_attention_heads"},
            "num_attention_heads": 2,
            "num_hidden_layers": 4,
            "local_attention": 6,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **two_ropes(1000.0, 100.0),
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
            Case("global_theta", two_ropes(50.0, 100.0)),
            Case("local_theta", two_ropes(1000.0, 10.0)),
            Case("layer_types", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
            Case("classifier_activation", {"classifier_activation": "relu"}),
            Case("classifier_bias", {"classifier_bias": True, **small}),
            Case("decoder_bias", {"decoder_bias": False}),
            Case("tie_word_embeddings", {"tie_word_embeddings": False}),
            Case("body", small, architecture="ModernBertModel", why="bare names, last_hidden_state"),
            Case(
                "alternating_body",
                {"layer_types": ["full_attention", "sliding_attention"] * 2},
                architecture="ModernBertModel",
                why="a window in every second layer, which GGUF files say by a list",
            ),
            *[
                case
                for kind in ("cls", "mean")
                for case in [
                    Case(
                        f"classifier_{kind}",
                        {"num_labels": 3, "classifier_pooling": kind, **small},
                        of="base" if kind == "cls" else "classifier_cls",
                        architecture="ModernBertForSequenceClassification",
                        why="a layer with a norm before the classes of a row",
                    )
                ]
            ],
            Case(
                "token_classifier",
                {"num_labels": 5, "norm_bias": True, "classifier_bias": True, **small},
                architecture="ModernBertForTokenClassification",
                why="a layer with a norm before the classes of every token",
            ),
            Case(
                "questions",
                small,
                architecture="ModernBertForQuestionAnswering",
                why="a layer with a norm before the first and the last token of an answer",
            ),
            Rewrite("named_classes", "classifier_cls", named_classes, why="names of classes"),
            Rewrite("hub", "base", older_modernbert, why="two bases and a period"),
            Rewrite(
                "period",
                "layer_types",
                lambda config: {**older_modernbert(config), "global_attn_every_n_layers": 2},
                why="every second layer sees all",
            ),
            Rewrite(
                "older_thetas",
                "base",
                lambda config: {**older_modernbert(config), "global_rope_theta": 70.0, "local_rope_theta": 7.0},
                same_result=False,
                why="two bases at the top",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY[:-1], "max_position_embeddings", "pad_token_id"),
                same_result=False,
                why="a window of 128, bases of 160000 and 10000",
            ),
        ],
        shape_keys=SHAPES,
        padding="right",
        no_text="an encoder",
        missing="model.layers.1.attn.Wo.weight",
        rejects=[
            {
                "name": "rope_type",
                "set": {"rope_parameters.full_attention.rope_type": "linear"},
                "expect": "rope_type",
            },
        ],
    )


ROTARY = {**ENCODER, "num_attention_heads": 2, **rope()}


def eurobert():
    small = {"num_hidden_layers": 1}
    classes = [
        Case(
            "classifier" if kind == "late" else f"classifier_{kind}",
            {"num_labels": 3, "classifier_pooling": kind, **small},
            of="base" if kind == "late" else "classifier",
            architecture="EuroBertForSequenceClassification",
            why=why,
        )
        for kind, why in (
            ("late", "tokens are pooled behind the layer before the classes"),
            ("bos", "the first token"),
            ("mean", "the mean before the layer"),
        )
    ]
    return Family(
        name="eurobert",
        model_type="eurobert",
        architecture="EuroBertForMaskedLM",
        settings={**ROTARY, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "mask_token_id": 3},
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("attention_bias", {"attention_bias": True}),
            Case("mlp_bias", {"mlp_bias": True}, why="the output matrix has one too"),
            Case("head_dim", {"head_dim": 8}),
            Case("num_key_value_heads", {"num_key_value_heads": 2}, of="head_dim"),
            Case("num_attention_heads", {"num_attention_heads": 4}),
            Case("rope_theta", rope(50.0)),
            Case("tie_word_embeddings", {"tie_word_embeddings": True}),
            Case("body", {}, architecture="EuroBertModel", why="bare names, last_hidden_state"),
            Case(
                "tied_body",
                {"tie_word_embeddings": True},
                of="tie_word_embeddings",
                architecture="EuroBertModel",
                why="the class alone says that there is no head",
            ),
            *classes,
            Case(
                "token_classifier",
                {"num_labels": 5, **small},
                architecture="EuroBertForTokenClassification",
                why="classes of every token",
            ),
            *every_rope(12),
            *whole_rotary(),
            Rewrite("named_classes", "classifier", named_classes, why="names of classes"),
            Rewrite(
                "hub",
                "base",
                lambda config: {
                    **{k: v for k, v in older(config).items() if k != "classifier_pooling"},
                    "clf_pooling": "late",
                    "hidden_dropout": 0.0,
                },
                why="the keys of the first files",
            ),
            Rewrite(
                "clf_pooling",
                "classifier_mean",
                lambda config: {
                    **{k: v for k, v in config.items() if k != "classifier_pooling"},
                    "clf_pooling": "mean",
                },
                reference_refuses="it ignores the key of the code beside the first files",
            ),
            Rewrite(
                "head_dim_absent",
                "num_key_value_heads",
                without("head_dim", "num_key_value_heads"),
                why="hidden_size / num_attention_heads, as many key/value heads",
            ),
            Rewrite("defaults", "base", keep(*KEEP_TINY, "head_dim", "pad_token_id"), same_result=False),
        ],
        shape_keys=SHAPES_GQA + ["head_dim"],
        padding="right",
        no_text="an encoder",
        missing="model.layers.1.self_attn.o_proj.weight",
        rejects=[PARTIAL_SCALED],
    )


def rotary_encoder(name, prefix, act, classes, **more):
    """Encoders in BERT's shape with rotated queries and keys."""
    model_type = name
    several = [case for case in encoder_cases(prefix) if "tie_word" not in case.name] + classes
    return Family(
        name=name,
        model_type=model_type,
        architecture=f"{prefix}ForMaskedLM",
        settings=dict(ROTARY, **more),
        cases=[
            *several,
            Case("num_attention_heads", {"num_attention_heads": 4}),
            Case("head_dim", {"head_dim": 12}, why="heads wider than their share"),
            Case("hidden_act", {"hidden_act": act}),
            Case("rope_theta", rope(50.0)),
            *every_rope(8),
            *whole_rotary(),
            Rewrite("older", "base", older_with()),
            Rewrite(
                "defaults",
                "base",
                keep(*KEEP_TINY[:-1], "max_position_embeddings", "type_vocab_size", "pad_token_id"),
                same_result=name == "nomic_bert",
                why="the class's own base, activation and epsilon",
            ),
        ],
        shape_keys=SHAPES + ["type_vocab_size"],
        padding="right",
        types=2,
        no_text="an encoder",
        rejects=[PARTIAL_SCALED],
    )


def first_nomic_bert(config):
    """The config of the code beside nomic-embed-text's files."""
    return {
        "architectures": ["NomicBertForMaskedLM"],
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_inner": config["intermediate_size"],
        "n_layer": config["num_hidden_layers"],
        "n_positions": config["max_position_embeddings"],
        "layer_norm_epsilon": 1e-12,
        "vocab_size": config["vocab_size"],
        "type_vocab_size": config["type_vocab_size"],
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "prenorm": False,
        "causal": False,
        "use_rms_norm": False,
        "parallel_block": False,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }


def nomic_bert():
    family = rotary_encoder("nomic_bert", "NomicBert", "gelu", [])
    family.cases.append(Rewrite("hub", "base", first_nomic_bert, reference_refuses="the keys of the code beside the files"))
    family.cases.append(
        Rewrite(
            "hub_eps_theta",
            "eps_theta",
            lambda config: {**first_nomic_bert(config), "layer_norm_epsilon": 0.05, "rotary_emb_base": 50.0, "activation_function": "geglu"},
            reference_refuses="the keys of the code beside the files",
        )
    )
    # the base's rope base is the class's own
    family.cases.append(Rewrite("theta_at_top", "rope_theta", older_with(), why="another base, older spelling"))
    family.cases.append(Rewrite("theta_in_scaling", "rope_theta", rope_within("rope_scaling"), why="another base, all in rope_scaling"))
    family.cases.append(Case("tie_word_embeddings", {"tie_word_embeddings": False}))
    family.cases.insert(1, Case("eps_theta", {"layer_norm_eps": 0.05, "hidden_act": "gelu", **rope(50.0)}))
    family.missing = "nomic_bert.encoder.layers.1.attn.out_proj.weight"
    return family


def jina_embeddings_v3():
    family = rotary_encoder(
        "jina_embeddings_v3", "JinaEmbeddingsV3", "silu", [questions("JinaEmbeddingsV3")], type_vocab_size=2
    )
    family.cases.append(Case("tie_word_embeddings", {"tie_word_embeddings": False}))
    family.missing = "roberta.encoder.layers.1.mixer.out_proj.bias"
    return family


T5_SHAPES = [
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "relative_attention_num_buckets",
]


def t5_derived(**more):
    """Without what follows from feed_forward_proj, as the first files."""
    derived = ("dense_act_fn", "is_gated_act", "scale_decoder_outputs")
    return lambda config: {k: v for k, v in {**config, **more}.items() if k not in derived}


def own_head(name):
    """An output matrix in the file, as the released models have it."""

    def rewrite(tensors):
        head = reference.draw(name, "lm_head.weight", tensors["shared.weight"].shape, False)
        return {**tensors, "lm_head.weight": head}

    return rewrite


def t5_kin(name, architecture, cases, **more):
    return Family(
        name=name,
        model_type=name,
        architecture=architecture,
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
            Case("base", why="gated, the tanh form"),
            Case("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
            Case("relative_attention_max_distance", {"relative_attention_max_distance": 30}),
            Case("feed_forward_proj_relu", {"feed_forward_proj": "relu"}),
            Case("feed_forward_proj_gated_silu", {"feed_forward_proj": "gated-silu"}),
            Rewrite(
                "released",
                "base",
                t5_derived(tie_word_embeddings=False),
                own_head(name),
                same_result=False,
                why="the released files: unscaled logits of a matrix of their own",
            ),
            Rewrite("v4_silu", "feed_forward_proj_gated_silu", t5_derived(), why="the keys of version 4"),
            *cases,
            Rewrite(
                "defaults",
                "base",
                keep(*T5_SHAPES, "decoder_start_token_id"),
                same_result=False,
                why="distance 128, epsilon 1e-6, gated-gelu",
            ),
        ],
        shape_keys=T5_SHAPES,
        padding="right",
        pair=True,
        missing="decoder.block.1.layer.1.EncDecAttention.v.weight",
        **more,
    )


def mt5():
    return t5_kin("mt5", "MT5ForConditionalGeneration", [])


def umt5():
    scaled = Case(
        "scale_decoder_outputs",
        {"tie_word_embeddings": False},
        why="what tie_word_embeddings false means; the file then says it by this key",
    )
    return t5_kin("umt5", "UMT5ForConditionalGeneration", [scaled])


VARIED = {
    "decoder.layers.1.fc1.weight": 3,
    "decoder.layers.1.fc2.weight": 10,
    "decoder.layers.1.final_layer_norm.weight": 3,
    "embed_positions.weight": 3,
}
# variations whose text says too little with the weights that vary the base's
TEXTLESS = (
    "activation_function_silu",
    "scale_embedding",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "tie_word_embeddings",
)
LATE_NORM = {"decoder.layer_norm.weight": 3}
LEARNED = {
    "decoder.layer_norm.weight": 3,
    "shared.weight": 3,
    "embed_positions.weight": 5,
    "decoder.layers.1.fc2.weight": 6,
    "decoder.layers.1.fc1.weight": 3,
    "q_proj.weight": 3,
    "k_proj.weight": 3,
}
SINUSOIDS = {
    "decoder.layer_norm.weight": 3,
    "shared.weight": 4,
    "decoder.layers.1.fc2.weight": 10,
    "decoder.layers.1.fc1.weight": 3,
    "q_proj.weight": 3,
    "k_proj.weight": 3,
}


def bart_kin(name, prefix, cases, gains, drop=(), draw=0, shapes=("max_position_embeddings",), hub=None, textless=(), **more):
    """Two stacks in fairseq's names."""
    settings = {k: v for k, v in pair_of_stacks(**more).items() if k not in drop}
    defaults_move = bool(set(more) & {"scale_embedding", "activation_function"})
    family = Family(
        name=name,
        model_type=name.replace("_small", "-small"),
        architecture=f"{prefix}ForConditionalGeneration",
        gains=gains,
        draw=draw,
        settings=settings,
        cases=[
            Case("base"),
            Case("activation_function_silu", {"activation_function": "silu"}),
            Case("scale_embedding", {"scale_embedding": not settings.get("scale_embedding", False)}),
            Case("encoder_attention_heads", {"encoder_attention_heads": 4}),
            Case("decoder_attention_heads", {"decoder_attention_heads": 2}),
            Case(
                "tie_word_embeddings",
                {"tie_word_embeddings": False},
                why="tables of both stacks and output apart",
            ),
            *cases,
            Rewrite(
                "hub",
                "base",
                older_pair(**(hub or {})),
                stored_embeddings,
                why="the shared table stored under all its names, keys that nothing reads",
            ),
            Rewrite("defaults", "base", keep(*PAIR_KEEP), same_result=not defaults_move),
        ],
        shape_keys=PAIR_SHAPES + list(shapes),
        padding="right",
        pair=True,
        missing="model.decoder.layers.1.encoder_attn.v_proj.bias",
        rejects=[{"name": "is_decoder", "set": {"is_decoder": True}, "expect": "is_decoder"}],
    )
    for case in family.cases:
        if case.name in textless:
            case.text = False
    return family


def said(before, embedding, sinusoids, rows):
    """The keys of the first files that say what the class takes for granted."""
    return dict(
        normalize_before=before,
        add_final_layer_norm=before,
        normalize_embedding=embedding,
        static_position_embeddings=sinusoids,
        extra_pos_embeddings=rows,
        add_bias_logits=False,
    )


def mbart():
    return bart_kin("mbart", "MBart", [], LATE_NORM, hub=said(True, True, False, 2), draw=1)


def plbart():
    return bart_kin(
        "plbart", "PLBart", [], VARIED, hub=said(False, True, False, 2), scale_embedding=False, draw=5, textless=TEXTLESS
    )


def pegasus():
    return bart_kin("pegasus", "Pegasus", [], SINUSOIDS, hub=said(True, False, True, 1), draw=2)


def blenderbot():
    return bart_kin("blenderbot", "Blenderbot", [], LEARNED, hub=said(True, False, False, 0), draw=1, textless=TEXTLESS)


def m2m_100():
    pads = Case("pad_token_id", {"pad_token_id": 4}, why="positions are counted from behind it")
    family = bart_kin(
        "m2m_100",
        "M2M100",
        [pads],
        SINUSOIDS,
        shapes=(),
        hub=said(True, False, True, 1),
        scale_embedding=False,
        activation_function="gelu",
        draw=2,
        textless=("tie_word_embeddings", "scale_embedding"),
    )
    family.rejects = []
    return family


def roformer():
    return Family(
        name="roformer",
        model_type="roformer",
        architecture="RoFormerForMaskedLM",
        settings={**ENCODER, "embedding_size": 12},
        cases=[
            *encoder_cases("RoFormer"),
            questions("RoFormer"),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            Case("embedding_size", {"embedding_size": 16}, why="as wide as the layers: no projection"),
            Case("is_decoder", {"is_decoder": True}, why="a causal mask"),
            Case("rotary_value", {"rotary_value": True}, why="values rotate too"),
            Rewrite("older", "base", older_with()),
            Rewrite("defaults", "base", keep(*KEEP_TINY[:-1], "max_position_embeddings", "embedding_size")),
        ],
        shape_keys=SHAPES + ["num_attention_heads", "type_vocab_size", "embedding_size", "max_position_embeddings"],
        padding="right",
        types=2,
        no_text="an encoder",
        missing="roformer.encoder.layer.1.attention.self.value.bias",
        rejects=[{"name": "rotary_value", "set": {"rotary_value": True}, "expect": "rotary_value"}],
    )


def rembert():
    several = [case for case in encoder_cases("RemBert") if case.name != "tie_word_embeddings"]
    return Family(
        name="rembert",
        model_type="rembert",
        architecture="RemBertForMaskedLM",
        settings={**ENCODER, "input_embedding_size": 12, "output_embedding_size": 20},
        cases=[
            *several,
            questions("RemBert"),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            Case("is_decoder", {"is_decoder": True}, why="a causal mask"),
            Rewrite("older", "base", older_with(position_embedding_type="absolute")),
            Rewrite(
                "defaults",
                "base",
                keep(
                    *KEEP_TINY[:-1], "max_position_embeddings", "input_embedding_size", "output_embedding_size", "pad_token_id"
                ),
            ),
        ],
        shape_keys=ENCODER_SHAPES + ["input_embedding_size", "output_embedding_size"],
        padding="right",
        types=2,
        no_text="an encoder",
        missing="rembert.encoder.layer.1.attention.self.value.bias",
    )


# decoders whose classes of rows, tokens and spans have cases here: letters say which classes there are
CLASSES = {
    "gpt2": ("GPT2", "stq"),
    "gpt_neo": ("GPTNeo", "stq"),
    "gpt_neox": ("GPTNeoX", "stq"),
    "gptj": ("GPTJ", "sq"),
    "bloom": ("Bloom", "stq"),
    "falcon": ("Falcon", "stq"),
    "mpt": ("Mpt", "stq"),
    "opt": ("OPT", "sq"),
    "phi": ("Phi", "st"),
    "olmo": ("Olmo", "s"),
    "stablelm": ("StableLm", "st"),
    "diffllama": ("DiffLlama", "stq"),
    "gpt_oss": ("GptOss", "st"),
    "jamba": ("Jamba", "s"),
    "qwen3_next": ("Qwen3Next", "stq"),
    "jetmoe": ("JetMoe", "s"),
    "phimoe": ("Phimoe", "s"),
    "minimax": ("MiniMax", "stq"),
    "deepseek_v2": ("DeepseekV2", "s"),
    "deepseek_v3": ("DeepseekV3", "st"),
    **{name: (prefix, "q") for name, prefix in (
        ("llama", "Llama"), ("mistral", "Mistral"), ("mixtral", "Mixtral"), ("qwen2", "Qwen2"), ("qwen2_moe", "Qwen2Moe"), ("qwen3", "Qwen3"), ("qwen3_moe", "Qwen3Moe"),
        ("smollm3", "SmolLM3"), ("arcee", "Arcee"), ("exaone4", "Exaone4"), ("ministral", "Ministral"), ("ministral3", "Ministral3"), ("nemotron", "Nemotron"), ("seed_oss", "SeedOss"),
    )},
}


def with_classes(family):
    """Adds the classes of a decoder that read no vocabulary."""
    if family.name not in CLASSES:
        return family
    prefix, kinds = CLASSES[family.name]
    table = {
        "s": ("classifier", "ForSequenceClassification", {"num_labels": 3, "pad_token_id": 0}, "classes of a row by its last token"),
        "t": ("token_classifier", "ForTokenClassification", {"num_labels": 5}, "classes of every token"),
        "q": ("questions", "ForQuestionAnswering", {}, "the first and the last token of an answer"),
    }
    for kind in kinds:
        name, ending, changes, why = table[kind]
        family.cases.append(Case(name, changes, architecture=prefix + ending, text=False, why=why))
    if "s" in kinds:
        family.cases.append(Rewrite("named_classes", "classifier", named_classes, why="names of classes"))
    return family


FAMILIES = [
    make()
    for make in (
        distilbert,
        electra,
        albert,
        modernbert,
        eurobert,
        nomic_bert,
        jina_embeddings_v3,
        mt5,
        umt5,
        mbart,
        plbart,
        pegasus,
        blenderbot,
        m2m_100,
        roformer,
        rembert,
    )
]
