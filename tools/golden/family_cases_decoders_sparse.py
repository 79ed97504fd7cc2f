"""Cases of decoder families of 2026 whose attention chooses its keys by content, and of their relatives."""

import re

import torch

from family_cases import Case, Family, Rewrite, keep, scaling_keys, without
from family_cases_decoders import HEADS, TIED, base_text, dense
from family_cases_decoders_more import LATENT, LATENT_CASES, LATENT_SHAPES, renamed

DENSE_LATENT = {key: value for key, value in LATENT.items() if not key.startswith("index_")}
DENSE_SHAPES = [key for key in LATENT_SHAPES if not key.startswith("index_")]


def axk1():
    cases = [case for case in LATENT_CASES if not case.name.startswith("index_")]
    return dense(
        "axk1", "AXK1", DENSE_LATENT,
        [
            *cases,
            Case("rope_interleave", {"rope_interleave": False}),
            Case("mlp_layer_types_first", {"mlp_layer_types": ["sparse", "dense"]}),
            Rewrite("moe_layer_freq", "mlp_layer_types_first", without("mlp_layer_types", first_k_dense_replace=0, moe_layer_freq=2), why="every second layer has experts"),
            Rewrite("unbalanced", "base", lambda config: config, tensors=lambda of: {name: x for name, x in of.items() if "correction_bias" not in name}, same_result=False,
                    why="as the released file, without balancing biases"),
        ],
        rotary=4, shapes=DENSE_SHAPES, left=("num_experts_per_tok", "q_lora_rank", "n_group", "topk_group", "mlp_layer_types"), missing="post_mlp_layernorm.weight", whole=False,
    )


def axk2():
    cases = [case for case in LATENT_CASES if case.name not in ("n_group", "topk_group")]
    return dense(
        "axk2", "AXK2", {**LATENT, "gated_norm_rank": 5, "n_group": None, "topk_group": None},
        [
            *cases,
            Case("gated_norm_rank", {"gated_norm_rank": 3}),
            Case("n_group", {"n_group": 2, "topk_group": 1}, why="of two groups the better one"),
            Case("topk_group", {"topk_group": 2}, of="n_group", why="every group offers candidates"),
        ],
        rotary=4, classes=False, shapes=[*LATENT_SHAPES, "gated_norm_rank"], left=("num_experts_per_tok", "q_lora_rank", "index_topk", "mlp_layer_types"),
        missing="self_attn.q_b_proj.weight", whole=False,
    )


def hy_files(tensors, config):
    """Names of the released files, of which this version turns some back by more than it should."""
    names = {
        **{f"hc_pre.hc_{part}_layer.hc_": f"hc_{part}_layer.hc_pre.hc_" for part in ("attn", "mlp")}, "hc_pre.hc_head.": "hc_head.",
        "mlp.linear_gate": "mlp.gate_proj", "shared_experts.linear_gate": "shared_experts.gate_proj",
    }
    result = {}
    for name, value in tensors.items():
        for saved, released in names.items():
            name = name.replace(saved, released)
        result[name] = value
    return result


def hy_v4():
    cases = [case for case in LATENT_CASES if not case.name.startswith("first_k")]
    return dense(
        "hy_v4", "HYV4", {**LATENT, "indexer_types": ["full", "shared"], "hc_mult": 3, "hc_magnitude": 1.5, "swiglu_limit": 0.8},
        [
            *cases,
            Case("indexer_types", {"indexer_types": ["full", "full"]}),
            Case("hc_mult", {"hc_mult": 2}),
            Case("hc_magnitude", {"hc_magnitude": 0.5}),
            Case("hc_eps", {"hc_eps": 0.05}),
            Case("swiglu_limit", {"swiglu_limit": 10.0}),
        ],
        rotary=4, classes=False, shapes=[*LATENT_SHAPES, "hc_mult"], left=("num_experts_per_tok", "q_lora_rank", "index_topk", "indexer_types", "mlp_layer_types", "pad_token_id"),
        missing="self_attn.learnable_sink_param", whole=False, as_released=hy_files,
    )


def dots_ropes(indexed=1000.0, sliding=2000.0, kind="default", **more):
    return {"rope_parameters": {
        "indexed_attention": {"rope_type": kind, "rope_theta": indexed, **more}, "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
    }}


DOTS_SLIDING = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8, "kv_lora_rank": 6, "head_dim": 11, "qk_nope_head_dim": 5, "qk_rope_head_dim": 6, "v_head_dim": 7}


def dots_hub(config):
    """The released files call layers with an indexer full, and name what holds for sliding ones."""
    ropes = config["rope_parameters"]
    result = {k: v for k, v in config.items() if k not in ("rope_parameters", "layer_types", "mlp_layer_types", "per_layer_config", "sliding_window", "shared_experts_intermediate_size")}
    return {
        **result, "rope_theta": ropes["indexed_attention"]["rope_theta"], "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        "layer_types": ["full_attention", "sliding_attention"], "use_dsa": True, "first_k_dense_replace": 1, "moe_layer_freq": [1, 1], "sliding_window_size": config["sliding_window"],
        "moe_shared_expert_intermediate_size": config["shared_experts_intermediate_size"], **{f"swa_{key}": value for key, value in DOTS_SLIDING.items()},
    }


def dots3_note_text():
    settings = {
        **LATENT, **dots_ropes(), "head_dim": 10, "layer_types": ["indexed_attention", "sliding_attention"], "sliding_window": 5, "shared_experts_intermediate_size": 10,
        **{f"swa_{key}": value for key, value in DOTS_SLIDING.items()},
    }
    ropes = []
    for name, keys in scaling_keys(4).items():
        kind = name.split("_")[0]
        if kind != "longrope":
            ropes.append(Case(f"every_{name}", dots_ropes(kind=kind, **keys), why="every key of the kind"))
    full = {"full_attention": {"rope_type": "default", "rope_theta": 1000.0}, "sliding_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 4.0}}
    sliding = {key: {**DOTS_SLIDING, key: value} for key, value in {"num_attention_heads": 4, "q_lora_rank": 6, "kv_lora_rank": 8, "qk_nope_head_dim": 7, "v_head_dim": 5}.items()}
    sliding["num_attention_heads"]["num_key_value_heads"] = 4
    sliding["qk_nope_head_dim"]["head_dim"] = 13
    names = [*LATENT_SHAPES, "head_dim", "shared_experts_intermediate_size"]
    return Family(
        name="dots3_note_text",
        model_type="dots3_note_text",
        architecture="Dots3NoteForCausalLM",
        settings={key: value for key, value in settings.items() if value != "absent"},
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            Case("rope_theta", dots_ropes(50.0)),
            Case("rope_theta_sliding", dots_ropes(sliding=50.0)),
            *[case for case in LATENT_CASES if case.name not in ("rope_yarn_mscale_all_dim", "first_k_dense_replace")],
            Rewrite("first_k_dense_replace", "mlp_layer_types", without("mlp_layer_types", first_k_dense_replace=0), why="as the released files"),
            Case("layer_types", {"layer_types": ["sliding_attention", "indexed_attention"]}),
            Case("layer_types_full", {"layer_types": ["full_attention", "sliding_attention"], "use_dsa": False, "rope_parameters": full}, why="no indexer"),
            Case("sliding_window", {"sliding_window": 3}),
            Case("shared_experts_intermediate_size", {"shared_experts_intermediate_size": 7}),
            *[Case(f"swa_{key}", {f"swa_{name}": number for name, number in sizes.items()}) for key, sizes in sliding.items()],
            Case("every_linear", dots_ropes(kind="linear", factor=4.0)),
            *ropes,
            Rewrite("hub", "base", dots_hub, why="the released files"),
            Rewrite("swa_head_dim", "base", lambda c: {k: v for k, v in dots_hub(c).items() if k != "swa_qk_rope_head_dim"}, why="whose rotary part follows"),
            Rewrite("moe_layer_freq", "mlp_layer_types_dense", without("mlp_layer_types", first_k_dense_replace=0, moe_layer_freq=[0, 0]), why="a list"),
            Rewrite("use_dsa", "layer_types_full", lambda c: {**c, "layer_types": ["indexed_attention", "sliding_attention"], "use_dsa": False}, why="no indexer"),
            Case("layer_types_indexed", {"layer_types": ["indexed_attention", "indexed_attention"], "rope_parameters": {"indexed_attention": dots_ropes()["rope_parameters"]["indexed_attention"]}}, text=True),
            Rewrite("defaults", "layer_types_indexed", keep(*names, "num_experts_per_tok", "q_lora_rank", "index_topk", "pad_token_id"), same_result=False,
                    why="an indexer in the first two layers, one dense layer, theta 80000000"),
        ],
        shape_keys=names,
        missing="model.layers.1.self_attn.g_proj.weight",
        rejects=[
            {"name": "rope_parameters", "set": {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}, "expect": "rope_parameters", "why": "a set for each type of layer is expected"},
            {"name": "use_sliding_window", "set": {"use_sliding_window": False}, "expect": "use_sliding_window", "why": "says what layer_types says already"},
            {"name": "per_layer_config", "set": {"per_layer_config.1.index_topk": 2}, "expect": "per_layer_config changes more than"},
        ],
    )


M3_SPARSE = {"sparse_num_index_heads": 2, "sparse_index_dim": 8, "sparse_block_size": 3, "sparse_topk_blocks": 2}


def minimax_m3_hub(config):
    """The released files say by numbers which layers are sparse, and keep the sizes of indexers together."""
    gone = ("index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks", "layer_types", "mlp_layer_types")
    return {**{k: v for k, v in config.items() if k not in gone}, "hidden_act": "swigluoai", "sparse_attention_config": {**M3_SPARSE, "sparse_local_block": config["index_local_blocks"], "sparse_attention_freq": [0, 1]}, "moe_layer_freq": [0, 1]}


def minimax_m3_names(tensors):
    """The tensors as the released multimodal files name and part them."""
    names = {
        **{f"mlp.{part}": f"block_sparse_moe.{part}" for part in ("experts", "shared_experts")}, "mlp.gate.e_score": "block_sparse_moe.e_score", "mlp.gate.": "block_sparse_moe.gate.",
        **{f"indexer.{part}": f"index_{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
    }
    result = {}
    for name, value in tensors.items():
        for ours, released in names.items():
            name = name.replace(ours, released)
        name = "language_model." + name
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(value):
                for part, half in zip(("w1", "w3"), both.chunk(2)):
                    result[name.replace("gate_up_proj", f"{e}.{part}.weight")] = half.contiguous()
        elif name.endswith("experts.down_proj"):
            result.update({name.replace("down_proj", f"{e}.w2.weight"): one.contiguous() for e, one in enumerate(value)})
        elif name.endswith("gate_up_proj.weight"):
            for part, half in zip(("gate_proj", "up_proj"), value.chunk(2)):
                result[name.replace("gate_up_proj", part)] = half.contiguous()
        else:
            result[name] = value
    return result


def minimax_m3_vl_text():
    share = {"partial_rotary_factor": 0.5}
    settings = {
        "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12, "dense_intermediate_size": 20, "shared_intermediate_size": 10, "routed_scaling_factor": 1.5,
        "rotary_dim": 4, "swiglu_alpha": 1.4, "swiglu_limit": 0.9, "layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "sparse"],
        "index_n_heads": 2, "index_head_dim": 8, "index_block_size": 3, "index_topk_blocks": 2, "index_local_blocks": 1,
    }
    names = [*HEADS, "num_local_experts", "dense_intermediate_size", "shared_intermediate_size", "index_n_heads", "index_head_dim"]
    family = dense(
        "minimax_m3_vl_text", "MiniMaxM3VL", settings,
        [
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            Case("swiglu_alpha", {"swiglu_alpha": 1.0}),
            Case("swiglu_limit", {"swiglu_limit": 7.0}),
            Case("layer_types", {"layer_types": ["minimax_m3_sparse", "minimax_m3_sparse"]}),
            Case("mlp_layer_types", {"mlp_layer_types": ["sparse", "sparse"]}),
            Case("index_block_size", {"index_block_size": 4}),
            Case("index_topk_blocks", {"index_topk_blocks": 3}),
            Case("index_topk_blocks_all", {"index_topk_blocks": 16}, why="every block is chosen"),
            Case("index_local_blocks", {"index_local_blocks": 2}),
            Case("index_local_blocks_none", {"index_local_blocks": 0}),
            TIED,
            Rewrite("num_experts", "base", renamed({"num_local_experts": "num_experts"}), why="its other name"),
            Rewrite("hub", "index_local_blocks", minimax_m3_hub, why="keys of the released files"),
            Rewrite("hub_tensors", "base", lambda c: {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl", "text_config": minimax_m3_hub(c)},
                    tensors=minimax_m3_names, reference_refuses="names of the multimodal class", why="the text model of the released files"),
        ],
        acts=(), rotary=4, share=share["partial_rotary_factor"], classes=False, shapes=names, left=("num_experts_per_tok", "layer_types", "mlp_layer_types", "index_block_size", "index_topk_blocks", "rotary_dim"),
        missing="self_attn.indexer.k_proj.weight", zero_centred_norms=True, padding="right",  # the reference counts blocks from the first slot
    )
    family.cases = [case for case in family.cases if case.name != "v4"]  # whose share the class sets to 1
    return family


def v4_ropes(main=1000.0, compress=2000.0, kind="default", of="compress", **more):
    """Both sets of rope parameters, one of a kind with its keys; half of a head rotates."""
    sets = {name: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5} for name, theta in (("main", main), ("compress", compress))}
    sets[of] = {**sets[of], "rope_type": kind, **more}
    return {"rope_parameters": sets}


def v4_flat(config):
    """One set of rope parameters for both, and the bases at the top."""
    ropes = config["rope_parameters"]
    rest = {k: v for k, v in ropes["compress"].items() if k not in ("rope_theta", "partial_rotary_factor")}
    return {**config, "rope_parameters": rest, "rope_theta": ropes["main"]["rope_theta"], "compress_rope_theta": ropes["compress"]["rope_theta"]}


def v4_released(config):
    """Keys of the released files: numbers for types of layers, and scalars for rates."""
    gone = ("layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor", "rope_parameters")
    ratios = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    flat = v4_flat(config)
    return {
        **{k: v for k, v in flat.items() if k not in gone}, "rope_scaling": {"type" if k == "rope_type" else k: v for k, v in flat["rope_parameters"].items()},
        "compress_ratios": [ratios[t] for t in config["layer_types"]] + [0], "num_hash_layers": config["mlp_layer_types"].count("hash_moe"), "qk_rope_head_dim": 8,
        "compress_rate_csa": config["compress_rates"]["compressed_sparse_attention"], "compress_rate_hca": config["compress_rates"]["heavily_compressed_attention"],
    }


def without_factor(config):
    """Without the attention factor, which is 1 where one set of rope parameters leaves it out."""
    return {**config, "rope_scaling": {k: v for k, v in config["rope_scaling"].items() if k != "attention_factor"}}


def v4_names(tensors):
    """The tensors as the released files name them, without the class's own prefix."""
    names = {"embed_tokens.weight": "embed.weight", **{f"hc_head.hc_{part}": f"hc_head_{part}" for part in ("fn", "base", "scale")}}
    return {names.get(name.removeprefix("model."), name.removeprefix("model.")): value for name, value in tensors.items()}


def v4_modules(tensors):
    """The tensors as the modules of the class are named."""
    parts = [
        ("attn_norm.", "input_layernorm."), ("ffn_norm.", "post_attention_layernorm."), ("hc_attn_", "attn_hc."), ("hc_ffn_", "ffn_hc."), (".attn.attn_sink", ".attn.sinks"),
        ("attn.indexer.compressor.", "attn.compressor.indexer."), ("attn.indexer.wq_b", "attn.compressor.indexer.q_b_proj"), ("attn.indexer.weights_proj", "attn.compressor.indexer.scorer.weights_proj"),
        (".norm.weight", ".kv_norm.weight"), (".ape", ".position_bias"), ("wq_a", "q_a_proj"), ("wq_b", "q_b_proj"), ("wkv", "kv_proj"), ("wgate", "gate_proj"), ("wo_a", "o_a_proj"), ("wo_b", "o_b_proj"),
        (".q_norm.", ".q_a_norm."), (".gate.bias", ".gate.e_score_correction_bias"), (".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj."), (".attn.", ".self_attn."), (".ffn.", ".mlp."),
    ]
    result, experts = {}, {}
    for name, value in tensors.items():
        if name == "head.weight":
            name = "lm_head.weight"
        elif name.startswith("model.layers."):
            for released, module in parts:
                name = name.replace(released, module)
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if found:
            experts.setdefault(found[1], {}).setdefault(found[3], []).append((int(found[2]), value))
        else:
            result[name] = value
    for home, of in experts.items():
        gate, up, down = (torch.stack([value for _, value in sorted(of[part], key=lambda pair: pair[0])]) for part in ("gate", "up", "down"))
        result[f"{home}.gate_up_proj"], result[f"{home}.down_proj"] = torch.cat([gate, up], 1), down
    return result


def deepseek_v4():
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    rates = lambda csa, hca: {"compress_rates": {kinds[1]: csa, kinds[2]: hca}}
    settings = {
        "vocab_size": 40, "hidden_size": 16, "moe_intermediate_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 12,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "layer_types": kinds, "mlp_layer_types": ["hash_moe", "moe", "moe"],
        **rates(2, 4), "partial_rotary_factor": 0.5, "o_groups": 2, "o_lora_rank": 6, "index_n_heads": 16, "index_head_dim": 10, "index_topk": 3, "sliding_window": 5, "hc_mult": 3, "hc_sinkhorn_iters": 4,
        "swiglu_limit": 0.9, **v4_ropes(),
    }
    scaled = []
    for name, keys in scaling_keys(8).items():
        kind = name.split("_")[0]
        if kind != "longrope":
            scaled += [Case(f"every_{name}", v4_ropes(kind=kind, **keys), why="every key of the kind"), Case(f"every_{name}_main", v4_ropes(kind=kind, of="main", **keys), why="of sliding layers")]
    stretched = {"factor": 3.0, "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.25}  # a factor that the lengths do not give
    shares = v4_ropes()
    shares["rope_parameters"]["main"]["partial_rotary_factor"] = 0.25
    other_shares = v4_ropes()
    other_shares["rope_parameters"]["compress"]["partial_rotary_factor"] = 0.25
    names = [
        "vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim", "q_lora_rank", "n_routed_experts", "o_groups", "o_lora_rank",
        "index_n_heads", "index_head_dim", "hc_mult",
    ]
    return Family(
        name="deepseek_v4",
        model_type="deepseek_v4",
        architecture="DeepseekV4ForCausalLM",
        settings=settings,
        cases=[
            Case("base"),
            Case("rms_norm_eps", {"rms_norm_eps": 0.05}),
            Case("hidden_act_gelu", {"hidden_act": "gelu"}),
            TIED,
            Case("mlp_bias", {"mlp_bias": True}),
            Case("num_experts_per_tok", {"num_experts_per_tok": 3}),
            Case("num_experts_per_tok_1", {"num_experts_per_tok": 1}, why="a table of one column"),
            Case("routed_scaling_factor", {"routed_scaling_factor": 1.0}),
            Case("scoring_func", {"scoring_func": "sigmoid"}),
            Case("swiglu_limit", {"swiglu_limit": 10.0}),
            Case("layer_types", {"layer_types": [kinds[2], kinds[1], kinds[0]]}),
            Case("layer_types_sliding", {"layer_types": [kinds[0]] * 3}),
            Case("layer_types_csa", {"layer_types": [kinds[1]] * 3}),
            Case("mlp_layer_types", {"mlp_layer_types": ["moe"] * 3}),
            Case("mlp_layer_types_hash", {"mlp_layer_types": ["hash_moe"] * 3}),
            Case("compress_rates_csa", rates(3, 4)),
            Case("compress_rates_hca", rates(2, 5)),
            Case("sliding_window", {"sliding_window": 3}),
            Case("index_topk", {"index_topk": 2}),
            Case("index_topk_all", {"index_topk": 64}, why="every entry is read"),
            Case("o_groups", {"o_groups": 4}),
            Case("hc_mult", {"hc_mult": 2}),
            Case("hc_sinkhorn_iters", {"hc_sinkhorn_iters": 1}),
            Case("hc_eps", {"hc_eps": 0.05}),
            Case("rope_theta_main", v4_ropes(50.0)),
            Case("rope_theta_compress", v4_ropes(compress=50.0)),
            Case("share_main", shares),
            Case("share_compress", other_shares),
            Case("every_linear", v4_ropes(kind="linear", factor=4.0)),
            Case("every_linear_main", v4_ropes(kind="linear", of="main", factor=4.0)),
            *scaled,
            Case("flat_yarn", v4_ropes(kind="yarn", attention_factor=1.0, **stretched), why="the factor that one set has"),
            Case("flat_yarn_factor", v4_ropes(kind="yarn", attention_factor=1.5, **stretched)),
            Rewrite("flat", "base", v4_flat, why="one set of rope parameters"),
            Rewrite("flat_yarn_keys", "flat_yarn_factor", v4_flat, why="one set of rope parameters"),
            Rewrite("flat_yarn_scaling", "flat_yarn", lambda c: without_factor(v4_released(c)), why="keys of the released files"),
            Rewrite("released", "base", v4_released, tensors=v4_names, why="the released files"),
            Rewrite("modules", "base", lambda c: c, tensors=v4_modules, why="names of the class's modules"),
            Rewrite("num_local_experts", "base", renamed({"n_routed_experts": "num_local_experts"}), why="its other name"),
            Rewrite("intermediate_size", "base", renamed({"moe_intermediate_size": "intermediate_size"}), why="its other name"),
            Case("rates_of_class", {"num_hidden_layers": 4, "layer_types": [kinds[2]] * 3 + [kinds[1]], "mlp_layer_types": ["hash_moe"] * 3 + ["moe"], **rates(4, 128)}),
            Rewrite("defaults", "rates_of_class", keep(*names, "num_experts_per_tok", "pad_token_id"), same_result=False,
                    why="three layers with entries of 128 tokens and a table, then one with an indexer"),
        ],
        shape_keys=names,
        missing="model.layers.1.attn.wo_a.weight",
        rejects=[
            {"name": "layer_types", "set": {"layer_types": ["full_attention"] * 3}, "expect": "full_attention"},
            {"name": "swiglu_limit", "set": {"swiglu_limit": 0.0}, "expect": "swiglu_limit"},
            {"name": "scoring_func", "set": {"scoring_func": "softmax"}, "expect": "softmax"},
        ],
        padding="right",  # the reference counts entries from the first slot
    )


FAMILIES = [base_text(make()) for make in (axk1, axk2, hy_v4, dots3_note_text, minimax_m3_vl_text, deepseek_v4)]
FEW_TOKENS = {}
