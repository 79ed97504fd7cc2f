"""Models of random weights in released shapes, to measure with bench/inference.py.

    python bench/random_models.py build/release/bin/tessera TOKENIZER FOLDER SHAPE TYPE

TOKENIZER is a GGUF file or a folder with a tokenizer; its vocabulary is the model's. FOLDER gets `SHAPE-TYPE.gguf`, of a type that
`tessera quantize` knows, or, of an encoder, the folder `SHAPE` as transformers reads it (TYPE is unused). Shapes:

  llama-1b    Llama 3.2 1B: 16 layers of 2,048, 32 heads on 8 KV heads of 64, feed-forward layers of 8,192, a tied head
  llama-7b    Llama 2 7B: 32 layers of 4,096, 32 heads of 128, feed-forward layers of 11,008
  olmoe       OLMoE 1B-7B: 16 layers of 2,048, 8 of 64 experts of 1,024 per token, 1.3 of 6.9 billion parameters active
  falcon-h1   Falcon-H1 1.5B: 24 layers of 2,048, in each attention in parallel with Mamba-2
  bert-large  BERT large: 24 layers of 1,024, 335 million parameters

Two layers are drawn and quantized; the file repeats them. The output of such a model is noise, its speed is that of a trained one.
"""
import argparse
import array
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

DRAWN_LAYERS = 2


def llama(d, heads, kv_heads, head, hidden, layers, tied):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": d, "intermediate_size": hidden, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "max_position_embeddings": 8192, "rope_theta": 500000.0,
              "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": tied}
    layer = [("self_attn.q_proj.weight", [heads * head, d]), ("self_attn.k_proj.weight", [kv_heads * head, d]), ("self_attn.v_proj.weight", [kv_heads * head, d]),
             ("self_attn.o_proj.weight", [d, heads * head]), ("mlp.gate_proj.weight", [hidden, d]), ("mlp.up_proj.weight", [hidden, d]),
             ("mlp.down_proj.weight", [d, hidden]), ("input_layernorm.weight", [d]), ("post_attention_layernorm.weight", [d])]
    return config, "model.layers.", layer, [("model.norm.weight", [d])]


def olmoe():
    d, heads, hidden, experts = 2048, 16, 1024, 64
    config, place, layer, ends = llama(d, heads, heads, d // heads, hidden, 16, False)
    config |= {"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "num_experts": experts, "num_experts_per_tok": 8, "norm_topk_prob": False}
    del config["head_dim"]
    layer = [pair for pair in layer if not pair[0].startswith("mlp.")]
    layer += [("self_attn.q_norm.weight", [d]), ("self_attn.k_norm.weight", [d]), ("mlp.gate.weight", [experts, d])]
    layer += [(f"mlp.experts.{e}.{name}_proj.weight", shape) for e in range(experts) for name, shape in (("gate", [hidden, d]), ("up", [hidden, d]), ("down", [d, hidden]))]
    return config, place, layer, ends


def falcon_h1():
    d, heads, kv_heads, head, hidden, inner, ssm_heads, state = 2048, 8, 2, 128, 4096, 3072, 48, 256
    config = {"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], "hidden_size": d, "intermediate_size": hidden, "num_hidden_layers": 24,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
              "hidden_act": "silu", "tie_word_embeddings": False, "mamba_d_ssm": inner, "mamba_n_heads": ssm_heads, "mamba_d_head": inner // ssm_heads,
              "mamba_d_state": state, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_conv_bias": True, "mamba_rms_norm": False}
    channels = inner + 2 * state
    layer = [("self_attn.q_proj.weight", [heads * head, d]), ("self_attn.k_proj.weight", [kv_heads * head, d]), ("self_attn.v_proj.weight", [kv_heads * head, d]),
             ("self_attn.o_proj.weight", [d, heads * head]), ("feed_forward.gate_proj.weight", [hidden, d]), ("feed_forward.up_proj.weight", [hidden, d]),
             ("feed_forward.down_proj.weight", [d, hidden]), ("mamba.in_proj.weight", [inner + channels + ssm_heads, d]), ("mamba.out_proj.weight", [d, inner]),
             ("mamba.conv1d.weight", [channels, 1, 4]), ("mamba.conv1d.bias", [channels]), ("mamba.dt_bias", [ssm_heads]), ("mamba.A_log", [ssm_heads]),
             ("mamba.D", [ssm_heads]), ("input_layernorm.weight", [d]), ("pre_ff_layernorm.weight", [d])]
    return config, "model.layers.", layer, [("model.final_layernorm.weight", [d])]


def bert_large():
    d, hidden = 1024, 4096
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": d, "intermediate_size": hidden, "num_hidden_layers": 24, "num_attention_heads": 16,
              "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "position_embedding_type": "absolute", "pad_token_id": 0}
    layer = []
    for name, shape in (("attention.self.query", [d, d]), ("attention.self.key", [d, d]), ("attention.self.value", [d, d]), ("attention.output.dense", [d, d]),
                        ("intermediate.dense", [hidden, d]), ("output.dense", [d, hidden])):
        layer += [(f"{name}.weight", shape), (f"{name}.bias", shape[:1])]
    layer += [(f"{name}.LayerNorm.{part}", [d]) for name in ("attention.output", "output") for part in ("weight", "bias")]
    ends = [("embeddings.position_embeddings.weight", [512, d]), ("embeddings.token_type_embeddings.weight", [2, d]), ("embeddings.LayerNorm.weight", [d]),
            ("embeddings.LayerNorm.bias", [d]), ("pooler.dense.weight", [d, d]), ("pooler.dense.bias", [d])]
    return config, "encoder.layer.", layer, ends


SHAPES = {
    "llama-1b": lambda: llama(2048, 32, 8, 64, 8192, 16, True),
    "llama-7b": lambda: llama(4096, 32, 32, 128, 11008, 32, False),
    "olmoe": olmoe,
    "falcon-h1": falcon_h1,
    "bert-large": bert_large,
}


def count(shape):
    out = 1
    for n in shape:
        out *= n
    return out


def bf16(values):
    return array.array("H", [struct.unpack("<I", struct.pack("<f", x))[0] >> 16 for x in values]).tobytes()


def write_folder(folder, shape, vocabulary, drawn_layers=None):
    """A folder as transformers reads it, of as many layers: numbers of deviation 0.02 (a million of them, from another place for
    every tensor), ones for norms."""
    config, place, layer, ends = SHAPES[shape]()
    config |= {"vocab_size": vocabulary, "torch_dtype": "bfloat16"}
    if drawn_layers:
        config["num_hidden_layers"] = drawn_layers
    embedding = "embeddings.word_embeddings.weight" if shape == "bert-large" else "model.embed_tokens.weight"
    tensors = [(embedding, [vocabulary, config["hidden_size"]])]
    tensors += [(f"{place}{i}.{name}", dims) for i in range(config["num_hidden_layers"]) for name, dims in layer] + ends
    if not config.get("tie_word_embeddings", True):
        tensors.append(("lm_head.weight", [vocabulary, config["hidden_size"]]))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    chance = random.Random(7)
    drawn = bf16(chance.gauss(0, 0.02) for _ in range(1 << 20))
    header, at = {}, 0
    for name, dims in tensors:
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + 2 * count(dims)]}
        at += 2 * count(dims)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, dims in tensors:
            left = 2 * count(dims)
            if "norm" in name.lower() and name.endswith("weight"):
                file.write(bf16([1.0]) * (left // 2))
                continue
            begin = 2 * chance.randrange(1 << 20)
            while left > 0:
                part = drawn[begin:begin + left]
                file.write(part)
                left, begin = left - len(part), 0


class GgufHeader:
    """The header of a GGUF file: `metadata` as bytes, `tensors` as (name, bytes between name and offset, offset), `data` where they begin."""

    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    STRING, ARRAY = 8, 9

    def __init__(self, file):
        self.file, self.alignment, self.layers_at = file, 32, None
        magic, _, n_tensors, self.n_keys = struct.unpack("<IIQQ", file.read(24))
        if magic != 0x46554747:
            sys.exit(f"{file.name}: not a GGUF file")
        begin = file.tell()
        for _ in range(self.n_keys):
            self.skip_key(begin)
        end = file.tell()
        file.seek(begin)
        self.metadata = bytearray(file.read(end - begin))
        self.tensors = []
        for _ in range(n_tensors):
            name, here = self.text(), file.tell()
            file.seek(8 * self.number("<I") + 4, 1)
            size = file.tell() - here
            file.seek(here)
            self.tensors.append((name, file.read(size), self.number("<Q")))
        self.data = (file.tell() + self.alignment - 1) // self.alignment * self.alignment

    def number(self, code):
        return struct.unpack(code, self.file.read(struct.calcsize(code)))[0]

    def text(self):
        return self.file.read(self.number("<Q")).decode()

    def skip_key(self, begin):
        key, kind = self.text(), self.number("<I")
        if key.endswith(".block_count"):
            self.layers_at = self.file.tell() - begin
        if key == "general.alignment":
            self.alignment = self.number("<I")
            return
        self.skip(kind)

    def skip(self, kind):
        if kind == self.STRING:
            self.file.seek(self.number("<Q"), 1)
        elif kind == self.ARRAY:
            inner, n = self.number("<I"), self.number("<Q")
            if inner in self.SIZES:
                self.file.seek(n * self.SIZES[inner], 1)
            else:
                for _ in range(n):
                    self.skip(inner)
        else:
            self.file.seek(self.SIZES[kind], 1)


def repeat_layers(source, target, drawn_layers, layers):
    """Writes the model of `source` with `layers` layers: layer i has the tensors of layer i mod drawn_layers."""
    with open(source, "rb") as file, open(target, "wb") as out:
        header = GgufHeader(file)
        struct.pack_into("<I", header.metadata, header.layers_at, layers)
        file.seek(0, 2)
        ends = sorted(offset for _, _, offset in header.tensors)[1:] + [file.tell() - header.data]
        size_of = dict(zip(sorted(offset for _, _, offset in header.tensors), (b - a for a, b in zip(sorted(offset for _, _, offset in header.tensors), ends))))
        written, at = [], 0
        for name, dims, offset in header.tensors:
            found = re.fullmatch(r"blk\.(\d+)\.(.*)", name)
            names = [name] if not found else [f"blk.{i}.{found[2]}" for i in range(int(found[1]), layers, drawn_layers)]
            for copy in names:
                written.append((copy, dims, at, offset))
                at += size_of[offset]
        out.write(struct.pack("<IIQQ", 0x46554747, 3, len(written), header.n_keys) + header.metadata)
        for name, dims, place, _ in written:
            out.write(struct.pack("<Q", len(name)) + name.encode() + dims + struct.pack("<Q", place))
        out.write(bytes(-out.tell() % header.alignment))
        for _, _, _, offset in written:
            file.seek(header.data + offset)
            out.write(file.read(size_of[offset]))


def make(tessera, tokenizer, folder, shape, kind):
    """The model's path below `folder`; it is made if it is not there."""
    folder = pathlib.Path(folder)

    def run(*command):
        done = subprocess.run([tessera, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return done.stdout

    encoder = shape == "bert-large"
    out = folder / (shape if encoder else f"{shape}-{kind}.gguf")
    if out.exists():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = pathlib.Path(name)
        if encoder:
            vocabulary = json.loads((pathlib.Path(tokenizer) / "config.json").read_text())["vocab_size"]
            write_folder(work / shape, shape, vocabulary)
            for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
                if (pathlib.Path(tokenizer) / file).exists():
                    shutil.copy(pathlib.Path(tokenizer) / file, work / shape / file)
            (work / shape).rename(out)
            return out
        write_folder(work / "hub", shape, json.loads(run("show", tokenizer))["vocab"], DRAWN_LAYERS)
        run("quantize", work / "hub", "--type", kind, "--tokenizer", tokenizer, "--out", work / "drawn.gguf")
        repeat_layers(work / "drawn.gguf", work / "whole.gguf", DRAWN_LAYERS, SHAPES[shape]()[0]["num_hidden_layers"])
        (work / "whole.gguf").rename(out)
    return out


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("tokenizer")
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("shape", choices=SHAPES)
    arguments.add_argument("type", nargs="?", default="Q4_K_M")
    given = arguments.parse_args()
    print(make(given.tessera, given.tokenizer, given.folder, given.shape, given.type))


if __name__ == "__main__":
    main()
