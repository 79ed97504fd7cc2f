"""Cases of decoder families of 2026: further rows of the table in family_cases.py, with the helpers of the other tables of decoders."""

from family_cases import SHAPES, Case, Rewrite, older, rope, without
from family_cases_decoders import BIAS, HEADS, MIXED, TIED, WIDER, base_text, balanced, classifiers, dense, inside_mistral3, language_names
from family_cases_decoders_more import renamed

ALPHA = Case("rope_alpha", rope(kind="dynamic", factor=1.0, alpha=50.0), why="as the released files: the base is stretched for all lengths")
HUNYUAN_ROPES = [
    ALPHA,
    Rewrite("v4_rope_alpha", "rope_alpha", lambda c: {**older(c), "rope_scaling": {
        "type": "dynamic", "factor": 1.0, "alpha": 50.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}}, why="the released files"),
    Case("rope_alpha_default", rope(alpha=50.0), neutral=True, why="alpha acts under the type dynamic alone"),
    Rewrite("attention_head_dim", "head_dim", renamed({"head_dim": "attention_head_dim"}), reference_refuses="this version reads head_dim", why="as the first files have it"),
]


def hunyuan_v1_dense():
    family = dense(
        "hunyuan_v1_dense", "HunYuanDenseV1", {},
        [BIAS, WIDER, TIED, *HUNYUAN_ROPES, *classifiers("HunYuanDenseV1", tokens=False)],
        classes=False, gguf="hunyuan-dense", missing="self_attn.query_layernorm.weight", left=("head_dim",),
    )
    family.gguf["rope_alpha"] = "hunyuan-dense"
    return family


def hunyuan_v1_moe():
    settings = {"num_experts": 4, "moe_topk": 2, "intermediate_size": 12}
    family = dense(
        "hunyuan_v1_moe", "HunYuanMoEV1", settings,
        [
            BIAS, WIDER, TIED, *HUNYUAN_ROPES, *classifiers("HunYuanMoEV1", tokens=False),
            Case("moe_topk", {"moe_topk": 3}),
            Case("moe_topk_list", {"moe_topk": [1, 3]}, why="another number in each layer"),
            Rewrite("num_experts_per_tok", "base", renamed({"moe_topk": "num_experts_per_tok", "num_experts": "num_local_experts"}), why="their other names"),
        ],
        classes=False, shapes=HEADS + ["num_experts"], left=("head_dim",), gguf="hunyuan-moe", missing="mlp.shared_mlp.down_proj.weight",
    )
    family.gguf["rope_alpha"] = "hunyuan-moe"
    return family


def mistral4():
    grown = dict(llama_4_scaling_beta=0.7, original_max_position_embeddings=5)
    yarn = dict(kind="yarn", factor=4.0, **grown)
    settings = {
        **MIXED, "num_key_value_heads": 4, "head_dim": "absent", "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
        **rope(**yarn),
    }
    family = dense(
        "mistral4", "Mistral4", settings,
        [
            BIAS, TIED, *balanced(),
            Case("llama_4_scaling_beta", rope(**{**yarn, "llama_4_scaling_beta": 0.2})),
            Case("original_max_position_embeddings", rope(**{**yarn, "original_max_position_embeddings": 9})),
            Case("rope_yarn_mscale_all_dim", rope(**yarn, mscale=1.0, mscale_all_dim=1.0), why="as the released model: the scores are scaled, cos and sin are not"),
            Case("rope_interleave", {"rope_interleave": False}),
            Case("q_lora_rank", {"q_lora_rank": None}),
            Rewrite("inside", "base", inside_mistral3, language_names, reference_refuses="the class that reads images wants its tower", why="inside an image-and-text file"),
        ],
        rotary=4, whole=False, gguf="mistral4",
        shapes=SHAPES + ["num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_key_value_heads",
                         "n_routed_experts", "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace"],
        left=("num_experts_per_tok", "q_lora_rank", "pad_token_id"), missing="self_attn.kv_b_proj.weight",
    )
    for case in family.cases:  # what grows stands among the parameters of the rope
        changes = getattr(case, "changes", {}).get("rope_parameters")
        if changes:
            changes.update({k: v for k, v in grown.items() if k not in changes})
            if changes["rope_type"] == "default":  # with which the class fails
                changes.update(rope_type="yarn", factor=4.0)
    family.gguf["rope_yarn_mscale_all_dim"] = family.gguf["n_group"] = "mistral4"
    family.rejects.append({"name": "partial_rotary_factor", "set": {"rope_parameters.partial_rotary_factor": 0.25}, "expect": "partial_rotary_factor", "why": "shapes disagree"})
    return family


FAMILIES = [base_text(make()) for make in (hunyuan_v1_dense, hunyuan_v1_moe, mistral4)]
FEW_TOKENS = {}
