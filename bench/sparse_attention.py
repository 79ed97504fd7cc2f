"""Decoding by DeepSeek sparse attention against full attention over the same keys: seconds per token and what their ratio is.

    python bench/sparse_attention.py build/release/bin/tessera
    python bench/sparse_attention.py build/release/bin/tessera --depth 8192,32768 --top-k 2048

Two models of the same layers of latent attention, as in DeepSeek V3 and V3.2 with a quarter of the heads: 32 heads on a latent of 512, and
an indexer of 16 heads of 128 in the second. Weights are drawn by chance: what a token costs does not depend on them. The first --fill
tokens are read, and their entries, again and again, stand for the rest of the text. The feed-forward layers are small, so that attention
is what is measured.
"""
import argparse
import json
import pathlib
import random
import struct
import sys
import tempfile

from long_context import bf16, byte_tokens, count, run

SHAPE = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 512, "hidden_size": 1024, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 32, "q_lora_rank": 512, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 2, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 64, "n_shared_experts": 1, "rope_theta": 10000.0, "max_position_embeddings": 1 << 18,
}
INDEXER = {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "index_n_heads": 16, "index_head_dim": 128}


def tensors(config):
    """Names and shapes, as Hugging Face has them."""
    c = config
    d, heads, rank, latent = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    nope, rotary, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield "model.embed_tokens.weight", [c["vocab_size"], d]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (
            ("q_a_proj", [rank, d]), ("q_a_layernorm", [rank]), ("q_b_proj", [heads * (nope + rotary), rank]), ("kv_a_proj_with_mqa", [latent + rotary, d]),
            ("kv_a_layernorm", [latent]), ("kv_b_proj", [heads * (nope + value), latent]), ("o_proj", [d, heads * value]),
        ):
            yield f"{layer}self_attn.{name}.weight", shape
        if "index_n_heads" in c:
            width = c["index_head_dim"]
            for name, shape in (
                ("wq_b.weight", [c["index_n_heads"] * width, rank]), ("wk.weight", [width, d]), ("k_norm.weight", [width]), ("k_norm.bias", [width]),
                ("weights_proj.weight", [c["index_n_heads"], d]),
            ):
                yield f"{layer}self_attn.indexer.{name}", shape
        for name, shape in (("gate_proj", [c["intermediate_size"], d]), ("up_proj", [c["intermediate_size"], d]), ("down_proj", [d, c["intermediate_size"]])):
            yield f"{layer}mlp.{name}.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", [d]
    yield "model.norm.weight", [d]
    yield "lm_head.weight", [c["vocab_size"], d]


def write_model(folder, config):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokens()))
    chance, header, at = random.Random(1), {}, 0
    drawn = bf16(chance.gauss(0, 0.05) for _ in range(1 << 20))
    for name, shape in tensors(config):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count(shape)]}
        at += 2 * count(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors(config):
            if len(shape) == 1:
                file.write(bf16([1.0]) * shape[0])
                continue
            size, begin = 2 * count(shape), 2 * chance.randrange(1 << 19)
            file.write((drawn[begin:] + drawn * (1 + size // len(drawn)))[:size])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("--depth", default="32768", help="tokens of the text, a row for each")
    arguments.add_argument("--top-k", type=int, default=2048, help="keys that are selected")
    arguments.add_argument("--decode", type=int, default=16, help="tokens behind it")
    arguments.add_argument("--fill", type=int, default=256, help="tokens that are read; the others repeat them")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        times = {}
        for name, config in (("full", SHAPE), ("selected", {**SHAPE, **INDEXER, "index_topk": given.top_k})):
            folder = pathlib.Path(temporary) / name
            write_model(folder, config)
            out, _ = run(given.tessera, "bench", folder, "--prefill", 0, "--decode", given.decode, "--depth", given.depth, "--fill", given.fill,
                         "--repeats", given.repeats, "--threads", given.threads, "--json")
            times[name] = {row["depth"]: 1000 / row["decode_tokens_per_s"] for row in json.loads(out)["rows"]}
        for depth, full in times["full"].items():
            selected = times["selected"][depth]
            print(f"decode behind {depth} tokens: full {full:.2f} ms, {given.top_k} selected {selected:.2f} ms, {full / selected:.2f} times as fast")


if __name__ == "__main__":
    sys.exit(main())
