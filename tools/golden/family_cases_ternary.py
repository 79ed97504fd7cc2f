"""Cases of BitNet, whose matrices are ternary: a further row of the table in family_cases.py. Packed files are made here from their definition."""

import torch

from family_cases import Case, Rewrite, rope, scaling_keys, without
from family_cases_decoders import BIAS, HEADS, UNTIED, base_text, dense

ONLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
OFFLINE = {**ONLINE, "quantization_mode": "offline"}
BITLINEAR = {"quant_method": "bitnet", "quantization_mode": "offline"}  # the class is bitlinear where nothing is said


def packed(tensors, config):
    """Matrices of layers as four ternary rows in a byte and their factor, which bfloat16 holds as in the released files."""
    said = config["quantization_config"]
    if said.get("linear_class") == "autobitlinear" and said["quantization_mode"] == "online":
        return tensors
    inverse = said.get("linear_class", "bitlinear") == "bitlinear"
    out = {}
    for name, value in tensors.items():
        if not name.endswith("_proj.weight"):
            out[name] = value
            continue
        mean = value.abs().mean().clamp(min=1e-5)
        codes = (value / mean).round().clamp(-1, 1).to(torch.int64) + 1
        quarter = value.shape[0] // 4
        bytes_ = sum(codes[part * quarter : (part + 1) * quarter] << (2 * part) for part in range(4))
        out[name] = bytes_.to(torch.uint8)
        out[name + "_scale"] = (1 / mean if inverse else mean).reshape(1).to(torch.bfloat16).float()
    return out


def bitnet():
    wide = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    family = dense(
        "bitnet", "BitNet", {"hidden_size": 32, "tie_word_embeddings": True, "quantization_config": ONLINE},
        [
            BIAS, UNTIED,
            Case("offline", {"quantization_config": OFFLINE}, why="as the released model: packed, with factors"),
            Case("offline_silu", {"hidden_act": "silu"}, of="offline", why="what llama.cpp computes, which knows no other activation"),
            Case("offline_linear", rope(kind="linear", factor=4.0), of="offline"),
            Case("offline_yarn", rope(70.0, kind="yarn", **scaling_keys(8)["yarn_attention_factor"]), of="offline"),
            Case("wide", wide, of="offline", why="rows of whole blocks of 256"),
            Case("bitlinear", {"quantization_config": BITLINEAR}, why="as the first packed models: outputs are divided by the factors"),
            Rewrite("online", "base", lambda c: {**c, "quantization_config": {**ONLINE, "modules_to_not_convert": None, "use_rms_norm": False, "rms_norm_eps": 1e-6}}, why="every key of the quantizer"),
            Rewrite("lm_head", "base", lambda c: {**c, "quantization_config": {**ONLINE, "modules_to_not_convert": ["lm_head"]}}, why="the default in words"),
            Rewrite("unquantized", "base", without("quantization_config"), same_result=False, why="products of floats"),
        ],
        acts=("silu", "gelu"), classes=False, left=("quantization_config", "tie_word_embeddings"), missing="self_attn.attn_sub_norm.weight", as_released=packed,
    )
    # where the last bits of an activation decide how it is rounded, two programs differ by a step of its 8 bits
    family.cases = [case for case in family.cases if case.name != "every_dynamic"]
    family.gguf = {"offline": "bitnet-b1.58", "offline_silu": "bitnet", "offline_linear": "bitnet-b1.58", "offline_yarn": "bitnet-b1.58"}
    family.rejects += [
        {"name": "quant_method", "set": {"quantization_config.quant_method": "hqq"}, "expect": "hqq", "why": "another quantizer"},
        {"name": "use_rms_norm", "set": {"quantization_config.use_rms_norm": True}, "expect": "use_rms_norm", "why": "a norm of every product's input; no released checkpoint has it"},
        {"name": "linear_class", "set": {"quantization_config.linear_class": "linear"}, "expect": "linear_class", "why": "the class refuses it"},
        {"name": "quantization_mode", "set": {"quantization_config.quantization_mode": "later"}, "expect": "quantization_mode", "why": "the class refuses it"},
        {"name": "modules_to_not_convert", "set": {"quantization_config.modules_to_not_convert": ["o_proj"]}, "expect": "modules_to_not_convert", "why": "products of floats among others; no released checkpoint has it"},
        {"name": "ternary_codes", "base": "offline", "reshape_tensor": {"name": "model.layers.1.mlp.up_proj.weight_scale", "shape": [2]}, "expect": "weight_scale", "why": "one factor of a matrix"},
    ]
    return family


FAMILIES = [base_text(bitnet())]
FEW_TOKENS = {}
