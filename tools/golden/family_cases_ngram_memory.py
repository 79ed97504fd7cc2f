"""Cases of the decoder family of 2026 with hashed n-grams in its layers, gated residual streams and an indexer over pooled keys."""

from family_cases import Case, Rewrite, without
from family_cases_decoders import DELTA_SHAPES, HEADS, HYBRID_ACT, TIED, dense, fused_experts, inside_names

# of many heads hardly any score is 0, so that the choice hangs on no tie
INDEXER = {"indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 6, "indexer_compress_ratio": 3}


def inside_qwen4(config):
    """The text model's config in a file that reads images, too; its layers with an indexer are called full there."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version", "dtype")}
    text["layer_types"] = ["full_attention" if kind == "indexed_attention" else kind for kind in text["layer_types"]]
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "text_config": text, "image_token_id": 30,
        "video_token_id": 31, "vision_start_token_id": 28, "vision_end_token_id": 29, "tie_word_embeddings": False, "vision_config": {"depth": 2},
    }


def qwen4_exp_text():
    types = ["linear_attention", "indexed_attention"]
    delta = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=4)
    settings = {
        **delta, **INDEXER, "layer_types": types, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 10,
        "intermediate_size": "absent", "hc_count": 3, "hc_lowrank": 5, "ple_layer_ids": [1], "ple_embed_dim": 16, "ple_conv_kernel_size": 3, "ngram_size": 3, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 7, "split_ngram_parts": 2, "eos_token_id": 9,
    }
    none = {key: None for key in INDEXER}
    names = [*[n for n in HEADS if n != "intermediate_size"], *DELTA_SHAPES, "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size", "hc_count", "hc_lowrank", "ple_embed_dim", "indexer_n_heads", "indexer_head_dim"]
    left = (
        "linear_num_key_heads", "layer_types", "num_experts_per_tok", "ple_layer_ids", "ple_conv_kernel_size", "heads_per_ngram", "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by",
        "split_ngram_parts", "eos_token_id", "indexer_kv_heads", "indexer_budget", "indexer_compress_ratio",
    )
    family = dense(
        "qwen4_exp_text", "Qwen4Exp", settings,
        [
            Case("layer_types", {"layer_types": types[::-1], "ple_layer_ids": [2]}),
            Case("linear_num_key_heads", {"linear_num_key_heads": 4}),
            Case("linear_value_head_dim", {"linear_value_head_dim": 6}),
            Case("linear_conv_kernel_dim", {"linear_conv_kernel_dim": 3}),
            Case("all_attention", {"layer_types": types[1:] * 2, "ple_layer_ids": None}),
            Case("hidden_act", {"hidden_act": "gelu", "output_gate_type": "silu"}, of="all_attention"),
            Case("all_linear", {"layer_types": types[:1] * 2, **none}, why="no indexer"),
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("norm_topk_prob", {"norm_topk_prob": False}),
            Case("output_gate_type", {"output_gate_type": "sigmoid"}),
            Case("output_gate_type_silu", {"output_gate_type": "silu"}, neutral=True, why="as hidden_act says"),
            Case("hc_count", {"hc_count": 2}),
            Case("ple_layer_ids", {"num_hidden_layers": 3, "layer_types": types[:1] * 2 + types[1:], "ple_layer_ids": [1, 2]}, why="the second memory hashes by its own primes and factors"),
            Case("ple_layer_ids_none", {"ple_layer_ids": None}, why="no memory"),
            Case("ple_embed_dim", {"ple_embed_dim": 8}),
            Case("ple_conv_kernel_size", {"ple_conv_kernel_size": 2}),
            Case("ple_conv_kernel_size_one", {"ple_conv_kernel_size": 1}, why="no past"),
            Case("ngram_size", {"ngram_size": 2}),
            Case("ngram_size_four", {"ngram_size": 5}, why="grams that reach further than the others"),
            Case("heads_per_ngram", {"heads_per_ngram": 4}),
            Case("ngram_vocab_size_base", {"ngram_vocab_size_base": 40}),
            Case("make_ngram_vocab_size_divisible_by", {"make_ngram_vocab_size_divisible_by": 128}),
            Case("split_ngram_parts", {"split_ngram_parts": 4}, neutral=True, why="parts of one table"),
            Case("seed", {"seed": 7}),
            Case("eos_token_id", {"eos_token_id": 17}, why="n-grams end there"),
            Case("eos_token_id_list", {"eos_token_id": [9, 17]}, neutral=True, why="the first counts"),
            Case("indexer_budget", {"indexer_budget": 3}),
            Case("indexer_budget_all", {"indexer_budget": 300}, why="every block is chosen"),
            Case("indexer_compress_ratio", {"indexer_compress_ratio": 2}),
            Case("indexer_compress_ratio_one", {"indexer_compress_ratio": 1}, why="blocks of one key"),
            Case("indexer_n_heads", {"indexer_n_heads": 12}),
            Case("indexer_head_dim", {"indexer_head_dim": 6}),
            TIED,
            Rewrite("fused", "base", None, fused_experts, why="stacks of experts"),
            Rewrite("full_attention", "base", lambda c: {**c, "layer_types": ["linear_attention", "full_attention"]}, why="the other name of layers with an indexer"),
            Rewrite("full_attention_interval", "base", without("layer_types", full_attention_interval=2), why="every second layer"),
            Rewrite("mrope", "base", lambda c: {**c, "rope_parameters": {**c["rope_parameters"], "mrope_section": [1, 1, 0], "mrope_interleaved": True}}, why="three positions of a text are one"),
            Rewrite("inside", "base", inside_qwen4, inside_names, reference_refuses="the class that reads images wants its tower", why="inside an image-and-text file"),
        ],
        acts=(), rotary=4, share=0.5, classes=False, shapes=names, left=left, zero_centred_norms=True, missing="self_attn.indexer.index_qk_proj.weight",
    )
    family.cases = [case for case in family.cases if case.name != "v4"]  # whose share the class sets to 1
    family.rejects += [
        {"name": "bias", "set": {"attention_bias": True}, "expect": "attention_bias"}, HYBRID_ACT,
        {"name": "indexer_kv_heads", "set": {"indexer_kv_heads": 2}, "expect": "indexer_kv_heads", "why": "the class refuses it"},
        {"name": "indexer_missing", "unset": ["indexer_budget"], "expect": "indexer_budget", "why": "the class refuses it"},
        {"name": "eos_missing", "unset": ["eos_token_id"], "expect": "eos_token_id", "why": "the class refuses it"},
    ]
    return family


FAMILIES = [qwen4_exp_text()]
