"""Makes tests/golden/minilm.json: embeddings of a real sentence model, as transformers computes them.

    minilm.py FOLDER > tests/golden/minilm.json

FOLDER is all-MiniLM-L6-v2 (scripts/setup.sh minilm). The poolings follow their definitions: mean and
maximum over the tokens of a text, those around it included, and its first token.
"""

import hashlib
import json
import pathlib
import sys

import tokenizers
import torch
import transformers

LONGEST = 256  # sentence_bert_config.json

TEXTS = [
    "This is an example sentence",
    "Each sentence is converted",
    "",
    "The quick brown fox jumps over the lazy dog; 12,345 times!",
    "Ein Satz über Bäume, ein naïve Café und Straße.",
    "日本語のテキスト and emoji 👍🏽 and Привет",
    "[CLS] written out [SEP] is text",
    "a long text " * 120,
]


@torch.no_grad()
def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    tokenizer.enable_truncation(LONGEST)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    out = {"tokens": [], "embeddings": [], "cls": [], "max": []}
    rounded = lambda vector: [round(x, 7) for x in vector.tolist()]
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        hidden = model.eval()(torch.tensor([ids])).last_hidden_state[0]
        mean = hidden.mean(0)
        out["tokens"].append(len(ids))
        out["embeddings"].append(rounded(mean / mean.norm()))
        out["cls"].append(rounded(hidden[0]))
        out["max"].append(rounded(hidden.max(0).values))
    head = {
        "case": "minilm", "reference": "transformers BertModel, eager attention, CPU, float32",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}, tokenizers {tokenizers.__version__}",
        "generator": "tools/golden/minilm.py",
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "holds": ["tokens", "embeddings: mean, to length 1", "cls and max: not normalised"], "rtol": 1e-4,
        "why": "float32 in another order of summation", "texts": TEXTS,
    }
    print(json.dumps({**head, **out}, indent=None, ensure_ascii=True, separators=(",", ":")).replace('],[', '],\n['))


if __name__ == "__main__":
    main()
