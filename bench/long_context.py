"""A prompt of 131,072 tokens of a model of a thousand million parameters: seconds, tokens a second, and the most memory that was in use.

    python bench/long_context.py build/release/bin/tessera
    python bench/long_context.py build/release/bin/tessera --shape llama --kv f16,int8
    python bench/long_context.py build/release/bin/tessera --tokens 4096

The weights are drawn by chance and rounded to Q8_0: what a text costs does not depend on them. Two shapes:

  gemma   Gemma 3 1B: 26 layers of 4 heads of 256 on one key/value head, five of six of them in windows of 512 (--global-every).
          The whole prompt is read.
  llama   Llama 3.2 1B: 16 layers of 32 heads of 64 on 8 key/value heads, all of which see everything. Reading 131,072 tokens takes
          3 hours on two cores; the first 1,024 are read, and their keys and values, again and again, stand for the others (--fill),
          so that what is measured is the memory of the whole state, and decoding behind it.

Memory is the most that the process has had in memory at a time, weights included.
"""
import argparse
import array
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

SHAPES = {
    "gemma": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "max_position_embeddings": 1 << 18, "tie_word_embeddings": True,
    },
    "llama": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 1 << 18, "tie_word_embeddings": True,
    },
}


def tensors(config):
    """Names and shapes, as Hugging Face has them."""
    d, hidden, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    gemma = config["model_type"] == "gemma3_text"
    yield "model.embed_tokens.weight", [config["vocab_size"], d]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (("q_proj", [q, d]), ("k_proj", [kv, d]), ("v_proj", [kv, d]), ("o_proj", [d, q])):
            yield f"{layer}self_attn.{name}.weight", shape
        for name, shape in (("gate_proj", [hidden, d]), ("up_proj", [hidden, d]), ("down_proj", [d, hidden])):
            yield f"{layer}mlp.{name}.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm") + (("pre_feedforward_layernorm", "post_feedforward_layernorm") if gemma else ()):
            yield f"{layer}{name}.weight", [d]
        for name in ("q_norm", "k_norm") if gemma else ():
            yield f"{layer}self_attn.{name}.weight", [width]
    yield "model.norm.weight", [d]


def count(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def bf16(values):
    return array.array("H", [struct.unpack("<I", struct.pack("<f", x))[0] >> 16 for x in values]).tobytes()


def byte_tokens():
    """A tokenizer of bytes, which a GGUF file cannot do without; prompts are made of ids."""
    plain = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255]
    others = [byte for byte in range(256) if byte not in plain]
    vocabulary = {chr(byte): i for i, byte in enumerate(plain)} | {chr(256 + i): len(plain) + i for i in range(len(others))}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            "post_processor": None, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}


def write_model(folder, config):
    """Weights of deviation 0.02: a million drawn ones, from another place for every tensor."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokens()))
    chance = random.Random(1)
    drawn = bf16(chance.gauss(0, 0.02) for _ in range(1 << 20))
    ones = bf16([0.0 if config["model_type"] == "gemma3_text" else 1.0]) * max(config["hidden_size"], config["head_dim"])
    header, at = {}, 0
    for name, shape in tensors(config):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count(shape)]}
        at += 2 * count(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(config):
            left = 2 * count(shape)
            if len(shape) == 1:
                file.write(ones[:left])
                continue
            begin = 2 * chance.randrange(1 << 20)
            while left > 0:
                part = drawn[begin:begin + left]
                file.write(part)
                left, begin = left - len(part), 0
    return sum(count(shape) for _, shape in tensors(config))


def run(*command):
    """What the command prints, and the most memory that it has had, in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        if child.returncode != 0:
            sys.exit(f"{' '.join(str(part) for part in command)}: {err.read().decode().strip()}")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss * 1024


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("--shape", choices=sorted(SHAPES), default="gemma")
    arguments.add_argument("--tokens", type=int, default=131072, help="of the prompt")
    arguments.add_argument("--decode", type=int, default=16, help="tokens behind it")
    arguments.add_argument("--kv", default="f16,int8", help="types of keys and values, a run for each")
    arguments.add_argument("--fill", type=int, help="tokens that are read; the others repeat them. Of llama 1024, of gemma all")
    arguments.add_argument("--global-every", type=int, default=6, help="of gemma: of so many layers the last sees everything, the others a window")
    arguments.add_argument("--type", default="Q8_0", help="of the weights")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--fast", action="store_true", help="products of inputs of 8 bits")
    arguments.add_argument("--work", help="a folder that the model stays in; it is made anew without one")
    given = arguments.parse_args()
    fill = given.fill if given.fill is not None else 1024 if given.shape == "llama" else 0
    config = dict(SHAPES[given.shape])
    if given.shape == "gemma":
        config["sliding_window_pattern"] = given.global_every
    with tempfile.TemporaryDirectory(dir=given.work) as temporary:
        work = pathlib.Path(given.work or temporary)
        file = work / f"{given.shape}-{config.get('sliding_window_pattern', 1)}-{given.type}.gguf"
        parameters = sum(count(shape) for _, shape in tensors(config))
        if not file.exists():
            folder = pathlib.Path(temporary) / "model"
            write_model(folder, config)
            run(given.tessera, "quantize", folder, "--type", given.type, "--out", file)
        print("| model | keys and values | tokens | state, GB | memory, GiB | read in, s | tokens/s | decoding, tokens/s |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for kv in given.kv.split(","):
            said, memory = run(given.tessera, "bench", file, "--depth", given.tokens, "--prefill", 0, "--decode", given.decode, "--repeats", 1,
                               *(["--fill", fill] if fill > 0 else []), "--kv-type", kv, "--threads", given.threads, "--json",
                               *(["--fast"] if given.fast else []))
            row = json.loads(said)["rows"][0]
            read = row.get("computed_of_depth", given.tokens)
            print(f"| {given.shape}, {parameters / 1e9:.2f} G, {given.type} | {kv} | {given.tokens} | {row['state_bytes'] / 1e9:.2f} "
                  f"| {memory / 2**30:.2f} | {row['depth_seconds']:.0f}{'' if read == given.tokens else f' ({read} tokens read)'} "
                  f"| {read / row['depth_seconds']:.0f} | {row['decode_tokens_per_s']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
