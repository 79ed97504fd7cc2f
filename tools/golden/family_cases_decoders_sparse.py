"""Cases of decoder families of 2026 whose attention chooses its keys by content, and of their relatives."""

from family_cases import Case, Rewrite, without
from family_cases_decoders import base_text, dense
from family_cases_decoders_more import LATENT, LATENT_CASES, LATENT_SHAPES

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


FAMILIES = [base_text(make()) for make in (axk1,)]
FEW_TOKENS = {}
