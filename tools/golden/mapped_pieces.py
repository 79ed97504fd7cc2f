"""Makes tests/golden/text/mapped_pieces.json: sentencepiece models of source and target whose ids vocab.json and
target_vocab.json state (MarianTokenizer), with the ids and texts that transformers makes with them.

    mapped_pieces.py CORPUS > tests/golden/text/mapped_pieces.json

Needs sentencepiece 0.2 and transformers 5.
"""

import base64
import json
import random
import sys
import tempfile
import warnings
from pathlib import Path

import sentencepiece
import transformers

SEED, TEXTS = 51, 20
HARD = [
    "", " ", "   a  b  ", ">>fra<< to be", ">>fra<<to be", ">>fra<<", ">>zzz<< to be", "to >>fra<< be", ">> to be <<", "日本語の本文 to 日",
    "to be</s>", "to <unk> be", "the\u3000the", "tail space ", "a" * 40, "▁the▁▁", "<pad>the", "xyzzy",
]
TARGETS = {"together": "target.spm with vocab.json", "apart": "target.spm with target_vocab.json"}


def trained(lines, seed, work):
    draw = random.Random(seed)
    text, prefix = Path(work) / "text", Path(work) / "model"
    text.write_text("\n".join(draw.sample(lines, len(lines) // 2)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), vocab_size=200, character_coverage=1.0, minloglevel=2, num_threads=1,
        max_sentence_length=2000, shuffle_input_sentence=False, model_type="unigram", normalization_rule_name="identity")
    return Path(f"{prefix}.model").read_bytes()


def vocabulary(models, seed):
    """Pieces of the models in another order, a tenth of them left out, with codes of languages."""
    pieces = set()
    for model in models:
        read = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= {read.id_to_piece(i) for i in range(3, read.get_piece_size())}
    draw = random.Random(seed)
    kept = draw.sample(sorted(pieces), len(pieces) * 9 // 10)
    return {piece: i for i, piece in enumerate(["</s>", "<unk>", *kept, ">>fra<<", ">>deu<<", "<pad>"])}


def main():
    warnings.simplefilter("ignore")
    lines = [line for line in Path(sys.argv[1]).read_text().split("\n") if line.strip()][:1000]
    texts = HARD + random.Random(SEED).sample(lines, TEXTS)
    out = {"reference": f"transformers {transformers.__version__}, sentencepiece {sentencepiece.__version__}", "generator": "tools/golden/mapped_pieces.py", "seed": SEED, "texts": texts}
    with tempfile.TemporaryDirectory() as work:
        models = [trained(lines, seed, work) for seed in (1, 2)]
        for name, model in zip(("source", "target"), models):
            out[name] = base64.b64encode(model).decode()
            Path(work, f"{name}.spm").write_bytes(model)
        out["cases"] = {}
        for case in TARGETS:
            apart = case == "apart"
            vocabularies = [vocabulary([model], 3 + i) for i, model in enumerate(models)] if apart else [vocabulary(models, 3)]
            paths = [str(Path(work, f"vocab{i}.json")) for i in range(len(vocabularies))]
            for path, vocab in zip(paths, vocabularies):
                Path(path).write_text(json.dumps(vocab))
            read = transformers.MarianTokenizer(
                str(Path(work, "source.spm")), str(Path(work, "target.spm")), *paths, separate_vocabs=apart)
            ids = [read(text)["input_ids"] for text in texts]
            targets = [read(text_target=text)["input_ids"] for text in texts]
            out["cases"][case] = {"vocab": vocabularies, "ids": ids, "target_ids": targets, "decoded": [read.decode(one, skip_special_tokens=True) for one in targets]}
    cases = ",\n".join(json.dumps(name) + ": " + json.dumps(case, ensure_ascii=False) for name, case in out.pop("cases").items())
    print(json.dumps(out, ensure_ascii=False)[:-1] + ', "cases": {\n' + cases + "}}")


main()
