"""Cases of encoders with convolutions, bottlenecks and integer arithmetic, and of two more pairs in fairseq's names; family_cases.py joins them to its table."""

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
from family_cases_bert_kin import COUNTED, KEPT, bert_kin
from family_cases_encoders import TEXTLESS, VARIED, bart_kin, said

OLDER = Rewrite("older", "base", older_with(position_embedding_type="absolute"))
NAMED = Rewrite("named_classes", "classifier", named_classes, why="names of classes")


def encoder(name, prefix, cases, shapes=(), drop=(), padding="right", missing="", rejects=(), **settings):
    """An encoder in BERT's shape."""
    common = [*encoder_cases(prefix), questions(prefix)]
    return Family(
        name=name,
        model_type=name,
        architecture=f"{prefix}ForMaskedLM",
        settings={**ENCODER, **settings},
        cases=[
            *[case for case in common if case.name not in drop],
            Case("num_attention_heads", {"num_attention_heads": 2}),
            NAMED,
            OLDER,
            *cases,
        ],
        shape_keys=ENCODER_SHAPES + list(shapes),
        padding=padding,
        types=2,
        no_text="an encoder",
        missing=missing,
        rejects=list(rejects),
    )


def squeezebert():
    return encoder(
        "squeezebert",
        "SqueezeBert",
        [
            Case("q_groups", {"q_groups": 2}),
            Case("k_groups", {"k_groups": 1}),
            Case("v_groups", {"v_groups": 8}),
            Case("post_attention_groups", {"post_attention_groups": 2}),
            Case("intermediate_groups", {"intermediate_groups": 2}),
            Case("output_groups", {"output_groups": 1}, why="a whole matrix"),
            Rewrite("defaults", "base", keep(*KEPT, "embedding_size"), why="four groups, and one of the attention's output"),
        ],
        shapes=["embedding_size"],
        missing="transformer.encoder.layers.1.attention.value.bias",
        rejects=[
            {"name": "embedding_size", "set": {"embedding_size": 24}, "expect": "embedding_size"},
            {"name": "groups", "set": {"q_groups": 3}, "expect": "q = 3 does not divide"},
        ],
        embedding_size=16,
    )


def convbert():
    return encoder(
        "convbert",
        "ConvBert",
        [
            Case("head_ratio", {"head_ratio": 4}, why="one head of each kind"),
            Case("head_ratio_9", {"head_ratio": 9}, why="a ratio beyond the heads leaves one"),
            Case("num_attention_heads_9", {"num_attention_heads": 9}, why="heads beyond a multiple of the ratio do not count"),
            Case("conv_kernel_size", {"conv_kernel_size": 5}),
            Case("num_groups", {"num_groups": 2}, why="feed-forward layers in groups of channels"),
            Case("embedding_size", {"embedding_size": 16}, why="as wide as the layers: no projection"),
            Case(
                "classifier_relu",
                {"hidden_act": "relu"},
                of="classifier",
                architecture="ConvBertForSequenceClassification",
                why="the activation of the classifier's own layer",
            ),
            Rewrite("defaults", "base", keep(*KEPT, "embedding_size", "conv_kernel_size"), why="a ratio of 2, one group"),
        ],
        shapes=["embedding_size"],
        padding="none",  # the reference's convolutions read the padding behind a text
        missing="convbert.encoder.layer.1.attention.self.value.bias",
        rejects=[
            {"name": "even_kernel", "set": {"conv_kernel_size": 4}, "expect": "conv_kernel_size"},
            {"name": "is_decoder", "set": {"is_decoder": True}, "expect": "is_decoder"},
        ],
        embedding_size=12,
        conv_kernel_size=3,
    )


def mobilebert_hub(tensors):
    """The tied head stored, and the head of next sentences."""
    word = tensors["mobilebert.embeddings.word_embeddings.weight"]
    return {
        **tensors,
        "cls.predictions.decoder.weight": word.clone(),
        "cls.seq_relationship.weight": word[:2].repeat(1, 2)[:, :16].clone(),
        "cls.seq_relationship.bias": word[0, :2].clone(),
    }


def mobilebert():
    narrow = {"use_bottleneck_attention": True}
    bare = dict(architecture="MobileBertModel")
    plain = Case("classifier_activation", {"classifier_activation": False}, of="classifier", architecture="MobileBertForSequenceClassification", why="classes of the first token itself")
    return encoder(
        "mobilebert",
        "MobileBert",
        [
            Case("trigram_input", {"trigram_input": False}, why="a token's own vector"),
            Case("embedding_size", {"embedding_size": 14}),
            Case("as_wide", {"embedding_size": 16, "trigram_input": False}, of="body", why="no projection", **bare),
            Case("intra_bottleneck_size", {"intra_bottleneck_size": 12}),
            Case("use_bottleneck_attention", narrow, why="values of the bottleneck too; the second one is made and not used"),
            Case("key_query_shared_bottleneck", {"key_query_shared_bottleneck": False}, of="use_bottleneck_attention", neutral=True, why="no second bottleneck"),
            Case("num_feedforward_networks", {"num_feedforward_networks": 1}),
            plain,
            Case("body_activation", {"classifier_activation": False}, of="body", why="a pooler without a layer", **bare),
            Rewrite(
                "hub",
                "base",
                older_with(true_hidden_size=8),
                mobilebert_hub,
                why="a key that follows from others, the tied head stored, next-sentence prediction",
            ),
            Rewrite(
                "defaults",
                "base",
                keep(*KEPT, "embedding_size", "intra_bottleneck_size", "num_feedforward_networks"),
                same_result=False,
                why="relu",
            ),
        ],
        shapes=["embedding_size", "intra_bottleneck_size", "num_feedforward_networks"],
        padding="none",  # the reference's trigrams read the padding behind a text
        missing="mobilebert.encoder.layer.1.attention.self.value.bias",
        rejects=[
            {"name": "use_bottleneck", "set": {"use_bottleneck": False}, "expect": "use_bottleneck"},
            {"name": "normalization_type", "set": {"normalization_type": "layer_norm"}, "expect": "normalization_type"},
            {"name": "key_query", "set": {"key_query_shared_bottleneck": False}, "expect": "key_query_shared_bottleneck"},
        ],
        hidden_act="gelu",
        embedding_size=12,
        intra_bottleneck_size=8,
        num_feedforward_networks=3,
    )


def ibert():
    family = bert_kin(
        "ibert",
        "IBert",
        "ibert.encoder.layer.1.attention.self.value.bias",
        [COUNTED, Rewrite("defaults", "base", keep(*KEPT))],
        drop=("is_decoder", "hidden_act_relu"),
        pad_token_id=1,
    )
    family.precision = ("quant_mode",)  # integers
    family.rejects += [
        {"name": "quant_mode", "set": {"quant_mode": True}, "expect": "quant_mode"},
        {"name": "hidden_act", "set": {"hidden_act": "relu"}, "expect": "hidden_act"},
    ]
    return family


def esmc():
    return Family(
        name="esmc",
        model_type="esmc",
        architecture="EsmcForMaskedLM",
        settings=dict(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=2,
            **rope(),
        ),
        cases=[
            Case("base"),
            Case("hidden_act", {"hidden_act": "gelu"}),
            Case("attention_bias", {"attention_bias": True}),
            Case("mlp_bias", {"mlp_bias": True}),
            Case("num_attention_heads", {"num_attention_heads": 2}),
            Case("num_hidden_layers", {"num_hidden_layers": 3}, why="branches are scaled by the depth"),
            Case("body", {}, architecture="EsmcModel", why="bare names, last_hidden_state"),
            *classifiers("Esmc"),
            NAMED,
            *every_rope(4),
            *whole_rotary(),
            Rewrite("defaults", "base", keep(*SHAPES, "num_attention_heads", "max_position_embeddings"), same_result=False, why="a base of 10000"),
        ],
        shape_keys=SHAPES + ["head_dim"],
        padding="right",
        no_text="an encoder",
        missing="esmc.layers.1.self_attn.v_proj.weight",
        rejects=[PARTIAL_SCALED, {"name": "num_key_value_heads", "set": {"num_key_value_heads": 2}, "expect": "num_key_value_heads"}],
    )


def bert_generation():
    untold = [
        Case("is_decoder", {"is_decoder": False}, why="an encoder with the head of a decoder"),
        Case("layer_norm_eps", {"layer_norm_eps": 0.05}),
        Case("hidden_act_relu", {"hidden_act": "relu"}),
        Case("num_attention_heads", {"num_attention_heads": 2}),
        Case("tie_word_embeddings", {"tie_word_embeddings": False}),
        Case("body", {"is_decoder": False}, architecture="BertGenerationEncoder", why="bare names, last_hidden_state"),
    ]
    for case in untold:
        case.text = False
    settings = {k: v for k, v in ENCODER.items() if k != "type_vocab_size"}
    return Family(
        name="bert_generation",
        model_type="bert-generation",
        architecture="BertGenerationDecoder",
        gains={"encoder.layer.1.output.LayerNorm.weight": 3},
        settings={**settings, "is_decoder": True},
        cases=[
            Case("base", why="a causal mask, the tied head"),
            *untold,
            OLDER,
            Rewrite("defaults", "base", keep(*KEPT, "is_decoder")),
        ],
        shape_keys=[key for key in ENCODER_SHAPES if key != "type_vocab_size"],
        padding="right",
        missing="bert.encoder.layer.1.attention.self.value.bias",
        rejects=[{"name": "add_cross_attention", "set": {"add_cross_attention": True}, "expect": "add_cross_attention"}],
    )


def blenderbot_small():
    hub = dict(said(False, True, False, 0), layernorm_variant="xlm", do_blenderbot_90_layernorm=True, extra_layer_norm=False)
    return bart_kin("blenderbot_small", "BlenderbotSmall", [], VARIED, hub=hub, draw=2, textless=TEXTLESS)


BLOCKS = {
    "decoder.layernorm_embedding.weight": 3,
    "shared.weight": 3,
    "embed_positions.weight": 5,
    "decoder.layers.1.fc2.weight": 6,
    "decoder.layers.1.fc1.weight": 3,
    "q_proj.weight": 3,
    "k_proj.weight": 3,
}


def bigbird_pegasus():
    cases = [
        Case("block_size", {"block_size": 1}),
        Case("block_size_3", {"block_size": 3}, why="19 tokens are few: full attention"),
        Case("num_random_blocks", {"num_random_blocks": 2}, why="block 0 counts twice more"),
        Case("attention_type", {"attention_type": "original_full"}),
        Case("use_bias", {"use_bias": True}, why="biases of all projections of attention"),
    ]
    for case in cases:
        case.text = False
    family = bart_kin(
        "bigbird_pegasus",
        "BigBirdPegasus",
        cases,
        BLOCKS,
        textless=TEXTLESS,
        scale_embedding=False,
        block_size=2,
        num_random_blocks=1,
    )
    family.padding = "none"  # the reference lets the padding of a batch move the last block
    family.missing = "model.decoder.layers.1.encoder_attn.v_proj.weight"
    return family


FAMILIES = [
    make()
    for make in (
        squeezebert,
        convbert,
        mobilebert,
        ibert,
        esmc,
        bert_generation,
        blenderbot_small,
        bigbird_pegasus,
    )
]
