"""Writes tests/golden/quantized/<case>: tiny folders as other programs quantise them, the numbers
that their weights stand for, and what transformers computes with those numbers.

The programs pack the folders themselves: autoawq 0.2.9 (WQLinear_GEMM), auto-gptq 0.7.1 (QuantLinear),
compressed-tensors 0.20 (compress_module's compressors). What the weights stand for is computed in
float32, scale times (code minus zero), from the packed tensors: by their unpacking functions where
they have some, and for GPTQ and for floats of eight bits here in numpy after auto-gptq's
QuantLinear.forward, gptqmodel's convert_gptq_v1_to_v2_format_module and transformers' fp8
(weight times weight_scale_inv of its block).

    pip install --no-deps autoawq==0.2.9 auto-gptq==0.7.1 compressed-tensors==0.20
    pip install loguru psutil accelerate      # and torch, transformers
    python tools/golden/quantized_folders.py
"""

import importlib
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

for package in ["awq", "awq.modules", "awq.modules.linear",
                "auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"]:
    # their __init__ import programs that need a GPU
    module = types.ModuleType(package)
    module.__path__ = list(importlib.util.find_spec(package).submodule_search_locations)
    sys.modules[package] = module
awq_gemm = importlib.import_module("awq.modules.linear.gemm")
awq_packing = importlib.import_module("awq.utils.packing_utils")
gptq_linear = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda")
from compressed_tensors.compressors import (  # noqa: E402
    FloatQuantizationCompressor, IntQuantizationCompressor, PackedQuantizationCompressor)
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402

torch.set_num_threads(1)
SEED = 31
FOLDER = pathlib.Path("tests/golden/quantized")
KEPT = ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj", "experts.1.w2",
        "mlp.experts.1.down_proj")


def config_of(architecture):
    common = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                  bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if architecture == "llama":
        return transformers.LlamaConfig(**common, tie_word_embeddings=False, head_dim=16,
                                        architectures=["LlamaForCausalLM"])
    return transformers.Qwen3MoeConfig(**{**common, "head_dim": 16}, moe_intermediate_size=32,
                                       num_experts=4, num_experts_per_tok=2, decoder_sparse_step=1,
                                       mlp_only_layers=[], tie_word_embeddings=False,
                                       architectures=["Qwen3MoeForCausalLM"])


def drawn(model, rng):
    """Weights by name, as a checkpoint has them."""
    weights = {}
    for name, value in model.state_dict().items():
        shape = tuple(value.shape)
        if len(shape) == 1:
            weights[name] = torch.tensor(1 + 0.3 * rng.standard_normal(shape), dtype=torch.float32)
        elif len(shape) == 3:  # experts in one tensor: apart in files
            stack = 0.2 * rng.standard_normal(shape)
            base = name.rsplit(".", 1)[0]
            for e in range(shape[0]):
                one = torch.tensor(stack[e], dtype=torch.float32)
                if name.endswith("gate_up_proj"):
                    half = shape[1] // 2
                    weights[f"{base}.{e}.gate_proj.weight"] = one[:half].contiguous()
                    weights[f"{base}.{e}.up_proj.weight"] = one[half:].contiguous()
                else:
                    weights[f"{base}.{e}.down_proj.weight"] = one
        else:
            weights[name] = torch.tensor(0.2 * rng.standard_normal(shape), dtype=torch.float32)
    return weights


def into_model(model, weights):
    state = {}
    for name, value in model.state_dict().items():
        if name in weights:
            state[name] = weights[name]
            continue
        base = name.rsplit(".", 1)[0]
        parts = []
        for e in range(value.shape[0]):
            if name.endswith("gate_up_proj"):
                parts.append(torch.cat([weights[f"{base}.{e}.gate_proj.weight"],
                                        weights[f"{base}.{e}.up_proj.weight"]]))
            else:
                parts.append(weights[f"{base}.{e}.down_proj.weight"])
        state[name] = torch.stack(parts)
    model.load_state_dict(state, strict=True)


# --- rounding to integers ------------------------------------------------------------------------


def rounded(weight, group, bits, symmetric, lowest=0):
    """Scales and zeros [out, groups] for codes from `lowest` on."""
    out, columns = weight.shape
    groups = weight.reshape(out, columns // group, group)
    top = 2**bits - 1
    if symmetric:
        scale = groups.abs().amax(-1) / (2 ** (bits - 1) - 0.5)
        zero = torch.full_like(scale, 2 ** (bits - 1))
    else:
        high, low = groups.amax(-1).clamp_min(0), groups.amin(-1).clamp_max(0)
        scale = (high - low) / top
        zero = torch.round(-low / scale).clamp(1, top)
    return scale, zero + lowest


def awq(group):
    def pack(weight):
        out, columns = weight.shape
        size = columns if group == -1 else group
        scale, zero = rounded(weight, size, 4, symmetric=False)
        scale = scale.half().float()
        linear = torch.nn.Linear(columns, out, bias=False)
        codes = torch.round(weight / scale.repeat_interleave(size, 1)) + zero.repeat_interleave(size, 1)
        codes = codes.clamp(0, 15)
        linear.weight.data = (codes - zero.repeat_interleave(size, 1)) * scale.repeat_interleave(size, 1)
        packed = awq_gemm.WQLinear_GEMM.from_linear(
            linear, 4, size, scales=scale.t().contiguous(), zeros=zero.t().contiguous())
        value = awq_packing.dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), 4, size)
        tensors = {"qweight": packed.qweight, "qzeros": packed.qzeros, "scales": packed.scales}
        return tensors, value.float().t().contiguous()
    return pack, {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
                  "version": "gemm", "modules_to_not_convert": None, "backend": "autoawq"}


def gptq(bits, group, symmetric, act_order=False, version=1, rng=None):
    def pack(weight):
        out, columns = weight.shape
        size = columns if group == -1 else group
        groups = columns // size
        g_idx = torch.arange(columns, dtype=torch.int32) // size
        if act_order:
            g_idx = g_idx[torch.from_numpy(rng.permutation(columns))]
        order = torch.argsort(g_idx, stable=True)
        scale, zero = rounded(weight[:, order], size, bits, symmetric)
        scale = scale.half().float()
        column_scale, column_zero = scale[:, g_idx.long()], zero[:, g_idx.long()]
        codes = (torch.round(weight / column_scale) + column_zero).clamp(0, 2**bits - 1)
        linear = torch.nn.Linear(columns, out, bias=False)
        linear.weight.data = (codes - column_zero) * column_scale
        packed = gptq_linear.QuantLinear(bits, size, columns, out, bias=False)
        packed.pack(linear, scale.clone(), zero.clone(), g_idx.clone())
        words = packed.qweight.numpy().view(np.uint32)
        zeros = packed.qzeros.numpy().view(np.uint32)
        if version == 2:  # gptqmodel: one is added to every zero
            zeros = zeros + np.uint32(0x11111111 if bits == 4 else 0x01010101)
        tensors = {"qweight": packed.qweight,
                   "qzeros": torch.from_numpy(zeros.view(np.int32).copy()),
                   "scales": packed.scales.half(), "g_idx": g_idx}
        assert packed.scales.shape == (groups, out)
        # as QuantLinear.forward() unpacks them, in float32
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        mask = np.uint32(2**bits - 1)
        q = (words[:, None, :] >> shifts[None, :, None] & mask).reshape(columns, out).astype(np.int32)
        z = (zeros[:, :, None] >> shifts[None, None, :] & mask).reshape(groups, -1)[:, :out].astype(np.int32)
        z = z + (0 if version == 2 else 1)
        s = tensors["scales"].float().numpy()
        value = s[g_idx.numpy()] * (q - z[g_idx.numpy()]).astype(np.float32)
        return tensors, torch.from_numpy(value.T.copy())
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order,
              "sym": symmetric, "damp_percent": 0.1, "true_sequential": True}
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    return pack, config


FORMATS = {PackedQuantizationCompressor: "pack-quantized", IntQuantizationCompressor: "int-quantized",
           FloatQuantizationCompressor: "float-quantized"}


def compressed(compressor, args, scale_type=torch.bfloat16, activations=None, act_order=False, rng=None):
    scheme = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**args),
        input_activations=None if activations is None else QuantizationArgs(**activations))

    def pack(weight):
        out, columns = weight.shape
        bits, floats = args["num_bits"], args.get("type") == "float"
        strategy = args["strategy"]
        symmetric = args.get("symmetric", True)
        state = {"weight": weight.clone()}
        lowest = -(2 ** (bits - 1))
        if strategy == "block":
            high, wide = args["block_structure"]
            padded = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -out % high))
            blocks = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
            scale = blocks.abs().amax((1, 3)) / (448 if floats else 127)
            zero = torch.zeros_like(scale)
        else:
            size = args["group_size"] if strategy == "group" else columns
            work = weight
            if act_order:
                g_idx = torch.arange(columns, dtype=torch.int32) // size
                g_idx = g_idx[torch.from_numpy(rng.permutation(columns))]
                state["weight_g_idx"] = g_idx
                work = weight[:, torch.argsort(g_idx, stable=True)]
            if floats:
                scale = work.reshape(out, -1, size).abs().amax(-1) / 448
                zero = torch.zeros_like(scale)
            else:
                scale, zero = rounded(work, size, bits, symmetric, lowest)
            if strategy == "tensor":
                scale, zero = scale.amax().reshape(1), zero[:1, 0]
        state["weight_scale"] = scale.to(scale_type)
        if not symmetric:
            state["weight_zero_point"] = zero.to(torch.int8)
        if act_order:
            # compress() does not know orders: columns in their groups' order, and back
            order = torch.argsort(state["weight_g_idx"], stable=True)
            inner = {k: v for k, v in state.items() if k != "weight_g_idx"}
            inner["weight"] = weight[:, order]
            codes = compressor.compress(inner, scheme)
            helpers = importlib.import_module("compressed_tensors.compressors.pack_quantized.helpers")
            sorted_codes = helpers.unpack_from_int32(codes["weight_packed"], bits, weight.shape)
            tensors = dict(codes)
            tensors["weight_packed"] = helpers.pack_to_int32(sorted_codes[:, torch.argsort(order)].contiguous(), bits)
            tensors["weight_g_idx"] = state["weight_g_idx"]
            exact = dict(codes)
            exact["weight_scale"] = codes["weight_scale"].float()
            value = compressor.decompress(exact, scheme)["weight"][:, torch.argsort(order)]
        else:
            tensors = compressor.compress(state, scheme)
            exact = dict(tensors)
            exact["weight_scale"] = tensors["weight_scale"].float()
            value = compressor.decompress(exact, scheme)["weight"]
        return {k: v.contiguous() for k, v in tensors.items()}, value.float().contiguous()

    config = {"quant_method": "compressed-tensors", "format": FORMATS[compressor],
              "quantization_status": "compressed", "global_compression_ratio": None,
              "kv_cache_scheme": None, "ignore": ["lm_head"],
              "config_groups": {"group_0": json.loads(scheme.model_dump_json())}}
    if act_order:  # which version 0.20 does not write any more
        config["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    return pack, config


def fp8(block, scale_type=torch.float32):
    def pack(weight):
        out, columns = weight.shape
        high, wide = block
        padded = torch.nn.functional.pad(weight, (0, -columns % wide, 0, -out % high))
        blocks = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        scale = (blocks.abs().amax((1, 3)) / 448).to(scale_type)
        full = scale.float().repeat_interleave(high, 0)[:out].repeat_interleave(wide, 1)[:, :columns]
        codes = (weight / full).to(torch.float8_e4m3fn)
        return ({"weight": codes.contiguous(), "weight_scale_inv": scale.contiguous()},
                (codes.float() * full).contiguous())
    return pack, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                  "weight_block_size": list(block)}


RNG = np.random.default_rng(SEED)
INT4 = {"num_bits": 4, "type": "int", "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
DYNAMIC8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
DYNAMIC_FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
PACKED, INT, FLOAT = PackedQuantizationCompressor, IntQuantizationCompressor, FloatQuantizationCompressor
# case -> architecture, packing and config, the storage type that tessera chooses
CASES = {
    "awq": ("llama", awq(32), "scaled_u4"),
    "awq_whole_rows": ("llama", awq(-1), "scaled_u4"),
    "awq_experts": ("qwen3_moe", awq(32), "scaled_u4"),
    "gptq4": ("llama", gptq(4, 32, True), "q4_0"),
    "gptq4_asymmetric": ("llama", gptq(4, 32, False), "scaled_u4"),
    "gptq4_act_order": ("llama", gptq(4, 32, True, act_order=True, rng=RNG), "q4_0"),
    "gptq4_v2": ("llama", gptq(4, 32, False, version=2), "scaled_u4"),
    "gptq4_groups_of_16": ("llama", gptq(4, 16, True), "f32"),
    "gptq8": ("llama", gptq(8, 32, True), "q8_0"),
    "gptq8_asymmetric_v2": ("llama", gptq(8, -1, False, version=2), "scaled_i8"),
    "packed4": ("llama", compressed(PACKED, {**INT4, "strategy": "group", "group_size": 32}), "q4_0"),
    "packed4_float32": ("llama", compressed(PACKED, {**INT4, "strategy": "group", "group_size": 32},
                                            scale_type=torch.float32), "scaled_u4"),
    "packed4_asymmetric": ("llama", compressed(PACKED, {**INT4, "symmetric": False, "strategy": "group",
                                                        "group_size": 32}), "scaled_u4"),
    "packed4_channel": ("llama", compressed(PACKED, {**INT4, "strategy": "channel"}), "q4_0"),
    "packed4_act_order": ("llama", compressed(PACKED, {**INT4, "strategy": "group", "group_size": 32},
                                              act_order=True, rng=RNG), "q4_0"),
    "packed8": ("llama", compressed(PACKED, {**INT8, "strategy": "group", "group_size": 32}), "q8_0"),
    "int8_channel": ("llama", compressed(INT, {**INT8, "strategy": "channel"}, scale_type=torch.float32,
                                         activations=DYNAMIC8), "scaled_i8"),
    "int8_tensor": ("llama", compressed(INT, {**INT8, "strategy": "tensor"}, activations=DYNAMIC8), "q8_0"),
    "int8_asymmetric": ("llama", compressed(INT, {**INT8, "symmetric": False, "strategy": "channel"},
                                            activations=DYNAMIC8), "scaled_i8"),
    "fp8_tensor": ("llama", compressed(FLOAT, {**FP8, "strategy": "tensor"}, activations=DYNAMIC_FP8),
                   "scaled_e4m3"),
    "fp8_channel": ("llama", compressed(FLOAT, {**FP8, "strategy": "channel"}, activations=DYNAMIC_FP8),
                    "scaled_e4m3"),
    "fp8_block": ("llama", compressed(FLOAT, {**FP8, "strategy": "block", "block_structure": [32, 64]},
                                      activations=DYNAMIC_FP8), "scaled_e4m3"),
    "fp8_inverse": ("llama", fp8((32, 64)), "scaled_e4m3"),
    "fp8_inverse_experts": ("qwen3_moe", fp8((32, 32)), "scaled_e4m3"),
}


def is_packed(name, value):
    return (value.dim() == 2 and name.endswith("proj.weight") and "norm" not in name)


for case, (architecture, (pack, quantization), storage) in CASES.items():
    rng = np.random.default_rng([SEED, len(case)])
    config = config_of(architecture)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    weights = drawn(model, rng)
    files, exact = {}, dict(weights)
    kept = {}
    for name, value in weights.items():
        if not is_packed(name, value):
            files[name] = value.half() if "embed" in name or "head" in name else value
            exact[name] = files[name].float()
            continue
        module = name[: -len(".weight")]
        tensors, number = pack(value)
        for key, tensor in tensors.items():
            files[f"{module}.{key}"] = tensor.clone()
        exact[name] = number
        error = (number - value).abs().max().item()
        assert error < 0.12, (case, name, error)
        if name.startswith("model.layers.0.") and module.endswith(KEPT):
            kept[name] = number
    into_model(model, exact)
    ids = torch.from_numpy(rng.integers(3, 64, (1, 19)))
    with torch.no_grad():
        logits = model(ids).logits
    folder = FOLDER / case
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({**json.loads(config.to_json_string(use_diff=False)), "quantization_config": quantization},
                   indent=1, sort_keys=True) + "\n")
    save_file(files, folder / "model.safetensors")
    save_file({"input_ids": ids, "logits": logits.float().contiguous(), **kept}, folder / "expected.safetensors")
    story = {"case": f"quantized/{case}", "reference": quantization["quant_method"],
             "version": "autoawq 0.2.9, auto-gptq 0.7.1, compressed-tensors 0.20, transformers 5.23",
             "generator": "tools/golden/quantized_folders.py", "seed": SEED, "dtype": "float32",
             "holds": ["input_ids", "logits", "weights by name: bits"], "storage": storage,
             "rtol": 0, "why": "a packed weight has one meaning; logits within 1e-4, as orders of sums differ"}
    (folder / "case.json").write_text(json.dumps(story, indent=1) + "\n")
    print(case, sorted(set(k.rsplit(".", 1)[1] for k in files)))
