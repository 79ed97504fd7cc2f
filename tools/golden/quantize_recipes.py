"""Writes tests/golden/blocks/recipes.json: the type that llama.cpp gives each tensor of three models under
each of its mixtures. Run from the repository root, where llama-cpp-python 0.3.36 is installed:
python tools/golden/quantize_recipes.py"""

import ctypes
import json
import pathlib
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

RECIPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
    "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "F16": 1, "BF16": 32,
}
# layers, width, heads, heads of keys, feed-forward width, experts, an output matrix of its own
MODELS = {
    "shared": (18, 256, 8, 2, 512, 0, False),
    "odd": (17, 288, 9, 9, 512, 0, True),
    "experts": (4, 256, 8, 8, 256, 8, True),
}
VOCAB = 64


def tensors(layers, width, heads, kv, hidden, experts, output):
    head = width // heads
    yield "token_embd.weight", (VOCAB, width)
    yield "output_norm.weight", (width,)
    if output:
        yield "output.weight", (VOCAB, width)
    for i in range(layers):
        yield f"blk.{i}.attn_norm.weight", (width,)
        yield f"blk.{i}.ffn_norm.weight", (width,)
        yield f"blk.{i}.attn_q.weight", (width, width)
        yield f"blk.{i}.attn_k.weight", (kv * head, width)
        yield f"blk.{i}.attn_v.weight", (kv * head, width)
        yield f"blk.{i}.attn_output.weight", (width, width)
        if experts:
            yield f"blk.{i}.ffn_gate_inp.weight", (experts, width)
        stack, suffix = ((experts,), "_exps") if experts else ((), "")
        yield f"blk.{i}.ffn_gate{suffix}.weight", (*stack, hidden, width)
        yield f"blk.{i}.ffn_up{suffix}.weight", (*stack, hidden, width)
        yield f"blk.{i}.ffn_down{suffix}.weight", (*stack, width, hidden)


def write(path, shape):
    layers, width, heads, kv, hidden, experts, _ = shape
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    rng = np.random.default_rng(3)
    for name, size in tensors(*shape):
        writer.add_tensor(name, rng.normal(0, 0.05, size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types(source, number, folder):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = number, 2
    out = folder / "out.gguf"
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) != 0:
        sys.exit(f"ftype {number}: not quantised")
    return {t.name: gguf.GGMLQuantizationType(t.tensor_type).name.lower() for t in gguf.GGUFReader(out).tensors}


models = []
for name, shape in MODELS.items():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = folder / "in.gguf"
        write(source, shape)
        keys = ("layers", "width", "heads", "kv_heads", "hidden", "experts")
        models.append({
            "name": name, **dict(zip(keys, shape)),
            "shapes": {n: list(s) for n, s in tensors(*shape)},
            # most of them share a type: norms aside, only what differs from it is listed
            "types": {r: types(source, number, folder) for r, number in RECIPES.items()},
        })
for model in models:
    for recipe, of_tensor in model["types"].items():
        kinds = list(of_tensor.values())
        most = max(set(kinds), key=kinds.count)
        model["types"][recipe] = {"most": most, "others": {n: t for n, t in of_tensor.items() if t != most}}
golden = {
    "case": "blocks/recipes", "reference": "llama_model_quantize", "version": "llama-cpp-python 0.3.36",
    "generator": "tools/golden/quantize_recipes.py", "rtol": 0, "why": "a recipe is a choice of types", "models": models,
}
pathlib.Path("tests/golden/blocks/recipes.json").write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")
