"""A Llama of 1.07 G random weights as GGUF files of several types, to measure with bench/inference.py.

    pip install numpy
    python bench/random_llama.py build/release/bin/tessera TOKENIZER FOLDER [--types Q8_0,Q4_0,Q4_K_M,Q6_K,BF16,F16]

TOKENIZER is a GGUF file or a folder that has one; the vocabulary is its. The shape is that of Llama 3.2 1B: 16 layers of
2,048, 32 heads on 8 of 64, feed-forward layers of 8,192, a tied head. FOLDER gets `hub/`, a folder as transformers reads
it, and one `llama-1b-TYPE.gguf` for each type that `tessera quantize` knows; Q4_K and Q6_K are Q4_K_M and Q6_K there.
What such a model says is noise; what a token costs is what it costs in a trained one.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys

import numpy

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN = 16, 2048, 32, 8, 64, 8192


def shapes(vocabulary):
    yield "model.embed_tokens.weight", (vocabulary, WIDTH)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", (HEADS * HEAD, WIDTH)), ("self_attn.k_proj", (KV_HEADS * HEAD, WIDTH)),
                            ("self_attn.v_proj", (KV_HEADS * HEAD, WIDTH)), ("self_attn.o_proj", (WIDTH, HEADS * HEAD)),
                            ("mlp.gate_proj", (HIDDEN, WIDTH)), ("mlp.up_proj", (HIDDEN, WIDTH)), ("mlp.down_proj", (WIDTH, HIDDEN)),
                            ("input_layernorm", (WIDTH,)), ("post_attention_layernorm", (WIDTH,))):
            yield at + name + ".weight", shape
    yield "model.norm.weight", (WIDTH,)


def write_hub(folder, vocabulary):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "vocab_size": vocabulary, "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16"}, indent=1))
    header, end = {}, 0
    for name, shape in shapes(vocabulary):
        begin, end = end, end + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draw = numpy.random.default_rng(7)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes(vocabulary):
            numbers = draw.standard_normal(shape, dtype=numpy.float32) * 0.02 if len(shape) == 2 else numpy.ones(shape, numpy.float32)
            (numbers.view(numpy.uint32) >> 16).astype("<u2").tofile(file)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("tokenizer")
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--types", default="Q8_0,Q4_0,Q4_K_M,Q6_K,BF16,F16")
    given = arguments.parse_args()

    def tessera(*command):
        done = subprocess.run([given.tessera, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return done.stdout

    vocabulary = json.loads(tessera("show", given.tokenizer))["vocab"]
    write_hub(given.folder / "hub", vocabulary)
    for kind in given.types.split(","):
        out = given.folder / f"llama-1b-{kind}.gguf"
        print(out, tessera("quantize", given.folder / "hub", "--type", kind, "--tokenizer", given.tokenizer, "--out", out).strip(), flush=True)


if __name__ == "__main__":
    main()
