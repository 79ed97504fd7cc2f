"""Writes tiny RWKV 6 and 7 as GGUF files by llama.cpp's own converter, and what llama.cpp computes with them.

    python tools/golden/gguf_rwkv.py LLAMA_CPP tests/golden/families

LLAMA_CPP as in gguf_peer.py. Needs torch, safetensors, llama-cpp-python 0.3.36. transformers has no class of these, so weights are drawn
here, under the names of RWKV's own checkpoints (6) and flash-linear-attention's (7), and the reference is llama.cpp: its logits, its
greedy text, and its ids of texts by the vocabulary of the file, which has every byte, some strings of bytes, and rows of no token.
"""

import json
import pathlib
import sys
import tempfile

import gguf_peer  # first: it puts LLAMA_CPP on the path
import gguf
import llama_cpp
import numpy as np
import torch
from conversion import get_model_class
from safetensors.torch import save_file

FAMILIES = pathlib.Path(sys.argv[2])
VOCAB = 276
# an eps that shows: at half the stream it weighs four times as much
EPS = 1e-3
CONFIGS = {
    "rwkv6": {
        "architectures": ["Rwkv6ForCausalLM"],
        "hidden_size": 16,
        "head_size": 8,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "vocab_size": VOCAB,
        "layer_norm_epsilon": EPS,
        "rescale_every": 2,
    },
    # llama.cpp's kernel takes up to 64 numbers of a head at once
    "rwkv7": {
        "architectures": ["RWKV7ForCausalLM"],
        "hidden_size": 128,
        "head_dim": 64,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "vocab_size": VOCAB,
        "norm_eps": EPS,
        "decay_low_rank_dim": 5,
        "a_low_rank_dim": 6,
        "v_low_rank_dim": 4,
        "gate_low_rank_dim": 7,
    },
}
STRINGS = [b" the", b"th", b"the", b"there", b"\r\n", b"\n\n", b"  ", "\u00e9".encode(), "\u4f60\u597d".encode(), b"\xe4\xbd", b"'\"", b"\\x41", b"it's", b"\t\t"]
TEXTS = ["there the\tthat\t\t's it's \"so\" \\x41\\n", "caf\u00e9 \u4f60\u597d\u4f60 \u4e16\r\n\n\n  \U0001f600", "'\"\x00\x7f th"]


# the plain kernels, as in gguf_check.py
defaults = llama_cpp.llama_model_default_params


def plain_params():
    params = defaults()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = plain_params


class Drawn(dict):
    def __init__(self, seed):
        self.random = torch.Generator().manual_seed(seed)

    def normal(self, name, *shape, scale=1.0, mean=0.0):
        self[name] = torch.randn(shape, generator=self.random) * scale + mean

    def matrix(self, name, rows, columns, scale=1.0):
        self.normal(name, rows, columns, scale=scale * columns**-0.5)

    def shares(self, name, *shape):
        self[name] = torch.rand(shape, generator=self.random)

    def norm(self, name, width):
        self.normal(f"{name}.weight", width, scale=0.3, mean=1)
        self.normal(f"{name}.bias", width, scale=0.2)


def rwkv6(width, head, hidden, layers):
    w, mix, decay = Drawn(61), 32, 64  # of models below 4096, which the converter takes for granted
    w.normal("rwkv.embeddings.weight", VOCAB, width)
    w.norm("rwkv.blocks.0.pre_ln", width)
    for i in range(layers):
        at = f"rwkv.blocks.{i}"
        w.norm(f"{at}.ln1", width)
        w.norm(f"{at}.ln2", width)
        w.norm(f"{at}.attention.ln_x", width)
        for n in "xwkvrg":
            w.shares(f"{at}.attention.time_maa_{n}", 1, 1, width)
        for n in "kr":
            w.shares(f"{at}.feed_forward.time_maa_{n}", 1, 1, width)
        w.normal(f"{at}.attention.time_maa_w1", width, 5 * mix, scale=width**-0.5)
        w.normal(f"{at}.attention.time_maa_w2", 5, mix, width, scale=0.5 * mix**-0.5)
        w.normal(f"{at}.attention.time_decay", 1, 1, width, mean=-1)
        w.normal(f"{at}.attention.time_decay_w1", width, decay, scale=width**-0.5)
        w.normal(f"{at}.attention.time_decay_w2", decay, width, scale=decay**-0.5)
        w.normal(f"{at}.attention.time_faaaa", width // head, head, scale=0.5)
        for n in ("receptance", "key", "value", "gate", "output"):
            w.matrix(f"{at}.attention.{n}.weight", width, width)
        w.matrix(f"{at}.feed_forward.key.weight", hidden, width)
        w.matrix(f"{at}.feed_forward.value.weight", width, hidden)
        w.matrix(f"{at}.feed_forward.receptance.weight", width, width)
    w.norm("rwkv.ln_out", width)
    w.matrix("head.weight", VOCAB, width, 2)
    return w


def rwkv7(width, head, hidden, layers):
    w, config = Drawn(71), CONFIGS["rwkv7"]
    w.normal("model.embeddings.weight", VOCAB, width)
    w.norm("model.layers.0.pre_norm", width)
    for i in range(layers):
        at = f"model.layers.{i}"
        w.norm(f"{at}.attn_norm", width)
        w.norm(f"{at}.ffn_norm", width)
        w.norm(f"{at}.attn.g_norm", width)
        for n in "rwkvag":
            w.shares(f"{at}.attn.x_{n}", 1, 1, width)
        # the first layer's value is mixed with none
        for n, key in [("w", "decay"), ("a", "a"), ("g", "gate"), ("v", "v")][: 4 if i else 3]:
            rank = config[f"{key}_low_rank_dim"]
            w.matrix(f"{at}.attn.{n}_lora.lora.0.weight", rank, width)
            w.matrix(f"{at}.attn.{n}_lora.lora.2.weight", width, rank)
            if n != "g":
                w.normal(f"{at}.attn.{n}_lora.lora.2.bias", width)
        for n in ("k_k", "k_a"):
            w.normal(f"{at}.attn.{n}", width, scale=0.3, mean=0.8)
        w.normal(f"{at}.attn.r_k", width // head, head, scale=0.5)
        for n in "rkvo":
            w.matrix(f"{at}.attn.{n}_proj.weight", width, width)
        w.matrix(f"{at}.ffn.key.weight", hidden, width)
        w.matrix(f"{at}.ffn.value.weight", width, hidden)
        w.shares(f"{at}.ffn.x_k", width)
    w.norm("model.norm", width)
    w.matrix("lm_head.weight", VOCAB, width, 2)
    return w


def write_vocabulary(folder):
    tokens = [bytes([b]) for b in range(256)] + STRINGS
    lines = []
    for n, token in enumerate(tokens):
        try:
            text = repr(token.decode())
        except UnicodeDecodeError:
            text = repr(token)
        lines.append(f"{n + 1} {text} {len(token)}\n")
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}"}))


def write_file(name, weights, path):
    config = CONFIGS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")
        write_vocabulary(folder)
        whole = pathlib.Path(scratch) / "whole.gguf"
        kind = get_model_class(config["architectures"][0])
        with torch.inference_mode():
            kind(folder, gguf.LlamaFileType.ALL_F32, whole, model_name=f"tiny {name}", hparams=dict(config)).write()
        reader = gguf.GGUFReader(whole)
        gguf_peer.write(reader, reader.fields["general.architecture"].contents(), path)


def computed(path):
    model = llama_cpp.Llama(str(path), verbose=False, logits_all=True, n_threads=1, n_ctx=64)

    def logits(ids):
        model.reset()
        model.eval(list(map(int, ids)))
        return np.array(model.scores[: len(ids)])

    ids = torch.randint(1, VOCAB, (2, 13), generator=torch.Generator().manual_seed(5)).numpy()
    prompt, greedy, margins = ids[0, :5], [], []
    for _ in range(16):
        last = logits([*prompt, *greedy])[-1]
        margins.append(float(np.subtract(*np.sort(last)[:-3:-1])))
        greedy.append(int(last.argmax()))
    texts = [{"text": text, "ids": model.tokenize(text.encode(), add_bos=True, special=False)} for text in TEXTS]
    io = {"input_ids": ids, "logits": np.stack([logits(row) for row in ids]), "greedy_prompt": prompt, "greedy_ids": np.array(greedy)}
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in io.items()}, min(margins), texts


if __name__ == "__main__":
    for name, draw in {"rwkv6": rwkv6, "rwkv7": rwkv7}.items():
        family = FAMILIES / "rwkv_cpp"
        (family / name).mkdir(parents=True, exist_ok=True)
        path = family / "gguf" / f"{name}.gguf"
        config = CONFIGS[name]
        sizes = (config["hidden_size"], config.get("head_size") or config["head_dim"], config["intermediate_size"], config["num_hidden_layers"])
        write_file(name, draw(*sizes), path)
        io, margin, texts = computed(path)
        save_file(io, family / name / "io.safetensors")
        distinct = len(set(io["greedy_ids"].tolist()))
        assert margin > 1e-3 and distinct >= 8, (margin, distinct)
        story = {
            "case": f"families/rwkv_cpp/{name}",
            "reference": "llama.cpp of llama-cpp-python, CPU",
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "generator": "tools/golden/gguf_rwkv.py",
            "dtype": "float32",
            "tolerance": 1e-4,
            "io": name,
            "largest": round(float(io["logits"].abs().max()), 3),
            "greedy": {"distinct": distinct, "least_margin": round(margin, 4)},
            "texts": texts,
            "why": "transformers has no class of it",
        }
        (family / name / "case.json").write_text(json.dumps(story, indent=1) + "\n")
        print(name, flush=True)
