"""Makes tests/golden/text/unigram.json: tiny Unigram tokenizers, trained on the spot, and what the
`tokenizers` library makes of texts with them.

    unigram.py CORPUS > tests/golden/text/unigram.json

The character map is compiled by `sentencepiece` from a few rules, so that the file stays small; the map of released models is
that of t5-small.json. Needs sentencepiece 0.2 and protobuf beside tokenizers.
"""

import base64
import json
import random
import sys
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from text_reference import Tokenizers, random_text

SEED, TEXTS = 29, 60
# what is replaced by what: keys that begin others, clusters of several characters, nothing, more, other spaces, what ends a line
RULES = {
    "\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\x07": "", "\u00ad": "", "\ufb01": "fi", "½": "1⁄2",
    "e\u0301": "é", "e\u0308": "ë", "a\u0300\u0301": "à", "\u212b": "\u00c5", "\u1100\u1161": "\uac00", "\u304b\u3099": "\u304c", "\u0301": "´", "ab": "AB", "abc": "C",
    "Ａ": "A", "：": ":", "…": "...", "\u0958": "\u0915\u093c", "❤\ufe0f": "♥", "㍿": "株式会社", "\U0001d400": "A", "\r\n": "|", "ＬＬ": "LL",
}
HARD = [
    "", " ", "  ", "   a  b  ", "the  the", "\n\nthe\r\n\tend", "the\r\n", "e\u0301e\u0308 xe\u0301\u0301", "a\u0300\u0301a\u0300 a\u0301",
    "\ufb01\u0301sh \ufb01\u20dd \ufb01\u0327\u0301", "abc ab abd", "x\u200by\u200d", "\u0301", "\x07a", "\u0600a", "日本語の本文", "xyzzy日本", "<s>the</s>", "<unk>",
    "a<unk>b", "the<unk><unk>日<mask> end", "▁the▁▁", "▁", "’’““", "❤\ufe0f❤", "㍿㍿", "\U0001f469\u200d\U0001f469", "½½e\u0301½", "ＬＬＬ", "a" * 300, "日" * 40,
    "<0x41>", "Q\u00adQ", "\ufeffthe", "\u2581\u0301", "\u1100\u1161\u11a8", "\u0958\u093c", "\U0001f1e9\U0001f1ea", "the\u0000end", "´\u0301",
]
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
ENDS = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def compiled(corpus, folder):
    """The character map of the rules, and the pieces of a model with bytes to fall back on."""
    rules = folder / "rules.tsv"
    rules.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in RULES.items()))
    text = folder / "text.txt"
    text.write_text("\n".join(corpus.splitlines()[:3000]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "m"), vocab_size=700, model_type="unigram", byte_fallback=True, character_coverage=1.0,
        normalization_rule_tsv=str(rules), num_threads=1, minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "m.model").read_bytes())
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    return charsmap, [[piece.piece, piece.score] for piece in model.pieces]


def trained(corpus, size):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, unk_token="<unk>", special_tokens=["<s>", "</s>", "<unk>", "<mask>"], show_progress=False)
    tokenizer.train_from_iterator(corpus.splitlines()[:4000], trainer)
    return json.loads(tokenizer.to_str())


def sequence(*parts):
    return {"type": "Sequence", "normalizers": list(parts)}


def added(index, content, **flags):
    return {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **flags}


def document(vocab, unk, **parts):
    model = {"type": "Unigram", "unk_id": unk, "vocab": vocab, "byte_fallback": parts.pop("byte_fallback", False)}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, **parts, "model": model}


def template(*single):
    ids = dict(part for part in single if part)
    pieces = [{"SpecialToken": {"id": part[0], "type_id": 0}} if part else {"Sequence": {"id": "A", "type_id": 0}} for part in single]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()}}


def documents(corpus, folder):
    charsmap, pieces = compiled(corpus, folder)
    precompiled = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    yield trained(corpus, 600)
    specials = [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(len(pieces), "<mask>", lstrip=True)]
    # as T5 and XLM-RoBERTa cut, as later files do, as ALBERT and XLNet do
    spaced = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
    yield document(pieces, 0, added_tokens=specials, normalizer=precompiled, pre_tokenizer=spaced, decoder=METASPACE,
                   post_processor=template(("<s>", 1), None, ("</s>", 2)), byte_fallback=True)
    yield document(pieces, 0, added_tokens=specials, normalizer=sequence({"type": "Strip", "strip_left": False, "strip_right": True}, precompiled, ENDS),
                   pre_tokenizer={**METASPACE, "prepend_scheme": "first"}, decoder=METASPACE, post_processor=template(None, ("</s>", 2)))
    quotes = [{"type": "Replace", "pattern": {"String": s}, "content": '"'} for s in ("``", "''")]
    yield document(pieces, 0, added_tokens=specials, pre_tokenizer=METASPACE, decoder=METASPACE, post_processor=template(None, ("<s>", 1), ("</s>", 2)),
                   normalizer=sequence(*quotes, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, precompiled, ENDS))
    # the whole text is one piece
    yield document(pieces, 0, normalizer=sequence({"type": "Nmt"}, {"type": "NFKC"}, ENDS), pre_tokenizer={**METASPACE, "split": False}, decoder=METASPACE)
    # ties, positive scores, an unknown token in the middle, and one that a text may spell
    tied = [["a", -1.0], ["b", -1.0], ["ab", -2.0], ["<unk>", -3.0], ["ba", -2.0], ["aba", -3.0], ["bab", -3.0], ["▁", -1.0], ["▁a", -2.0], ["xy", -4.0]]
    yield document(tied, 3, pre_tokenizer=METASPACE)
    yield document([[t, s + 40] for t, s in tied], 3, pre_tokenizer=METASPACE)
    yield document([["<unk>", 0]] + [[c, 0] for c in "abcd"] + [["cd", 1.0], ["ab", 2.0], ["abc", 5.0], ["abcd", 10.0]], 0)


def main():
    corpus = Path(sys.argv[1]).read_text(encoding="utf-8")
    rng = random.Random(SEED)
    texts = HARD + ["ababab abba baab", "aabbaabb", "abcdacdxx", "xxabxyab", "xy", "xyxy", "``a'' b"] + [random_text(rng, ["<s>", "<mask>"]) for _ in range(TEXTS)]
    out = {
        "case": "text/unigram", "reference": "tokenizers", "version": tokenizers.__version__, "trained_by": f"sentencepiece {sentencepiece.__version__}",
        "generator": "tools/golden/unigram.py", "seed": SEED, "corpus": Path(sys.argv[1]).name, "holds": ["tokenizers"], "why": "equal ids", "tokenizers": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for one in documents(corpus, Path(folder)):
            source = Tokenizers(Tokenizer.from_str(json.dumps(one)))
            out["tokenizers"].append({"json": one, "cases": [source.row(text) for text in texts]})
    print("{")
    keys = list(out)
    for key in keys[:-1]:
        print(f" {json.dumps(key)}: {json.dumps(out[key])},")
    rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in out["tokenizers"])
    print(f' "tokenizers": [\n  {rows}\n ]\n}}')


if __name__ == "__main__":
    main()
