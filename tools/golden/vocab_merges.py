"""Makes tests/golden/text/vocab_merges.json: tiny vocab.json and merges.txt, trained on the spot, and the ids that the classes of
transformers 5 make with them.

    vocab_merges.py CORPUS > tests/golden/text/vocab_merges.json
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer

SEED, TEXTS = 50, 20
HARD = ["", " ", "  two  spaces ", "Hello world! It's we'LL don't 123 1234567", "café e\u0301 \u212b", "日本語 \U0001f600", "tab\tline\n\nend\r\n", "<s>the</s>", "a<mask>b",
        "<|endoftext|>", "x <|im_start|>user\nhi<|im_end|>", "3.14 x2 _a"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
GPT2 = ["<|endoftext|>"]
special = lambda content, **k: {"content": content, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True} | k
CASES = {
    "gpt2": (GPT2Tokenizer, GPT2, {"tokenizer_class": "GPT2Tokenizer"}),
    "gpt2_prefix": (GPT2Tokenizer, GPT2, {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}),
    "opt": (GPT2Tokenizer, ["<pad>", "</s>"], {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}),
    "no_class": (GPT2Tokenizer, GPT2, {}),
    "roberta": (RobertaTokenizer, ROBERTA, {"tokenizer_class": "RobertaTokenizer"}),
    "roberta_mask": (RobertaTokenizer, ROBERTA, {"tokenizer_class": "RobertaTokenizer", "added_tokens_decoder": {"4": special("<mask>", lstrip=True)}, "mask_token": "<mask>"}),
    "roberta_no_class": (RobertaTokenizer, ROBERTA, {}),
    "qwen2": (Qwen2Tokenizer, GPT2, {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"0": special("<|endoftext|>"), "400": special("<|im_start|>"), "401": special("<|im_end|>")},
                                     "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
}


def main():
    corpus = sys.argv[1]
    draw = random.Random(SEED)
    lines = [line for line in Path(corpus).read_text().split("\n") if line.strip()][:2000]
    texts = HARD + draw.sample(lines, TEXTS) + ["".join(draw.sample(HARD, 3)) for _ in range(TEXTS)]
    out = {"reference": f"transformers {transformers.__version__}", "generator": "tools/golden/vocab_merges.py", "seed": SEED, "texts": texts, "files": {}, "cases": {}}
    for name, (kind, specials, config) in CASES.items():
        with tempfile.TemporaryDirectory() as work:
            trainer = ByteLevelBPETokenizer()
            trainer.train([corpus], vocab_size=400, special_tokens=specials, show_progress=False)
            trainer.save_model(work)
            files = {file: (Path(work) / file).read_text() for file in ("vocab.json", "merges.txt")}
            key = "+".join(specials)
            out["files"][key] = files
            (Path(work) / "tokenizer_config.json").write_text(json.dumps(config))
            read = kind.from_pretrained(work)
            out["cases"][name] = {"files": key, "config": config, "plain": [read(text, add_special_tokens=False)["input_ids"] for text in texts],
                                  "wrapped": [read(text)["input_ids"] for text in texts],
                                  "roles": {role: getattr(read, role + "_token_id") for role in ("bos", "eos", "unk", "pad")}}
    cases = ",\n".join(json.dumps(name) + ": " + json.dumps(case, ensure_ascii=False) for name, case in out.pop("cases").items())
    print(json.dumps(out, ensure_ascii=False)[:-1] + ', "cases": {\n' + cases + "}}")


main()
