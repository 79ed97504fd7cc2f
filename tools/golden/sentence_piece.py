"""Makes tests/golden/text/sentence_piece.json: tiny models of the sentencepiece library, trained on the spot, and the ids and
texts that it makes with them.

    sentence_piece.py CORPUS > tests/golden/text/sentence_piece.json

The character maps are compiled from a few rules, so that the file stays small. Needs sentencepiece 0.2.
"""

import base64
import json
import random
import sys
import tempfile
from pathlib import Path

import sentencepiece

SEED, TEXTS = 50, 30
RULES = {"\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\ufb01": "fi", "½": "1⁄2", "e\u0301": "é", "Ａ": "A", "...": "…", "ab": "AB"}
HARD = [
    "", " ", "  ", "   a  b  ", "the  the", "\n\nthe\r\n\tend", "e\u0301e\u0308 x", "\ufb01sh \ufb01", "abc ab abd", "x\u200by", "日本語の本文", "xyzzy日本 日", "<s>the</s>",
    "<unk>", "a<unk>b", "▁the▁▁", "▁", " ▁ ", "’’““", "½½", "a" * 100, "日" * 10, "<0x41>", "\u2581\u0301", "the\u0000end", "...ab...", "\U0001f469\u200d\U0001f469",
    "to <sep> be<sep>or  <sep>not", "<sep>", " <sep> the", "<sep><sep>x", "the\u3000the", "tail space ", "\u00a0x\u00a0",
]
CASES = {
    # as Llama's, and with the library's usual settings
    "bpe_bytes": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "bpe": {"model_type": "bpe", "rules": True},
    # as Gemma's
    "bpe_no_prefix": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False,
                      "user_defined_symbols": ["<sep>"], "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
    "bpe_own": {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "user_defined_symbols": ["<sep>"]},
    "unigram": {"model_type": "unigram", "rules": True},
    # as T5's
    "unigram_t5": {"model_type": "unigram", "rules": True, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "unigram_own": {"model_type": "unigram", "rules": True, "user_defined_symbols": ["<sep>"]},
    "unigram_no_prefix": {"model_type": "unigram", "rules": True, "add_dummy_prefix": False},
}


def trained(corpus, options, work):
    options = dict(options)
    if options.pop("rules", False):
        rules = Path(work) / "rules.tsv"
        hexes = lambda text: " ".join(f"{ord(c):X}" for c in text)
        rules.write_text("".join(f"{hexes(a)}\t{hexes(b)}\n" for a, b in sorted(RULES.items())))
        options["normalization_rule_tsv"] = str(rules)
    prefix = str(Path(work) / "model")
    sentencepiece.SentencePieceTrainer.train(
        input=corpus, model_prefix=prefix, vocab_size=520 if options.get("byte_fallback") else 300, character_coverage=1.0, minloglevel=2,
        num_threads=1, max_sentence_length=2000, input_sentence_size=2000, shuffle_input_sentence=False, **options)
    return Path(prefix + ".model").read_bytes()


def main():
    lines = [line for line in Path(sys.argv[1]).read_text().split("\n") if line.strip()][:2000]
    draw = random.Random(SEED)
    texts = HARD + draw.sample(lines, TEXTS) + [" ".join(draw.sample(HARD, 3)) for _ in range(TEXTS)]
    out = {"reference": f"sentencepiece {sentencepiece.__version__}", "generator": "tools/golden/sentence_piece.py", "seed": SEED, "texts": texts, "cases": {}}
    with tempfile.TemporaryDirectory() as work:
        for name, options in CASES.items():
            model = trained(sys.argv[1], options, work)
            read = sentencepiece.SentencePieceProcessor(model_proto=model)
            ids = [read.encode(text) for text in texts]
            out["cases"][name] = {"model": base64.b64encode(model).decode(), "ids": ids, "decoded": [read.decode(one) for one in ids],
                                  "bos": read.bos_id(), "eos": read.eos_id(), "unk": read.unk_id(), "pad": read.pad_id()}
    cases = ",\n".join(json.dumps(name) + ": " + json.dumps(case, ensure_ascii=False) for name, case in out.pop("cases").items())
    print(json.dumps(out, ensure_ascii=False)[:-1] + ', "cases": {\n' + cases + "}}")


main()
