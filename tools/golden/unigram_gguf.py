"""Makes tests/golden/text/unigram_gguf.json: the metadata of GGUF files with a tiny Unigram tokenizer, and what llama.cpp makes of
texts with them, for each way to treat spaces.

    unigram_gguf.py CORPUS > tests/golden/text/unigram_gguf.json

Needs gguf and llama-cpp-python beside what unigram.py needs.
"""

import ctypes
import json
import random
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from text_reference import random_text
from unigram import HARD, RULES

SEED, TEXTS = 31, 60


@llama_cpp.llama_log_callback
def say_nothing(level, text, data):
    pass


def model_of(corpus, folder):
    rules = folder / "rules.tsv"
    rules.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in RULES.items()))
    text = folder / "text.txt"
    text.write_text("\n".join(corpus.splitlines()[:3000]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "m"), vocab_size=400, model_type="unigram", user_defined_symbols=["<tool>", "ing"],
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_tsv=str(rules), num_threads=1, minloglevel=2)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "m.model").read_bytes())
    return model


def write(path, model, prefix, merge):
    """The tokenizer alone, with the numbers that a file must state."""
    writer = gguf.GGUFWriter(path, "t5")
    for add, value in ((writer.add_context_length, 512), (writer.add_embedding_length, 16), (writer.add_feed_forward_length, 16),
                       (writer.add_block_count, 1), (writer.add_head_count, 1), (writer.add_layer_norm_rms_eps, 1e-6),
                       (writer.add_relative_attn_buckets_count, 8), (writer.add_tokenizer_model, "t5"), (writer.add_tokenizer_pre, "default"),
                       (writer.add_token_list, [p.piece for p in model.pieces]), (writer.add_token_scores, [p.score for p in model.pieces]),
                       (writer.add_token_types, [p.type for p in model.pieces]), (writer.add_add_space_prefix, prefix),
                       (writer.add_remove_extra_whitespaces, merge), (writer.add_precompiled_charsmap, model.normalizer_spec.precompiled_charsmap)):
        add(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def tokenized(path, texts):
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(model)
    for text in texts:
        raw, ids = text.encode(), (ctypes.c_int32 * 4096)()
        n = llama_cpp.llama_tokenize(vocab, raw, len(raw), ids, 4096, True, False)
        yield ids[:n]
    llama_cpp.llama_model_free(model)


def main():
    llama_cpp.llama_log_set(say_nothing, ctypes.c_void_p(0))
    corpus, rng = Path(sys.argv[1]).read_text(encoding="utf-8"), random.Random(SEED)
    texts = HARD + ["<tool>", "a <tool> b<tool>ing", "king ing"] + [random_text(rng, ["</s>", "<tool>"]) for _ in range(TEXTS)]
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(corpus, Path(folder))
        out = {
            "case": "text/unigram_gguf", "reference": "llama.cpp, of llama-cpp-python", "version": llama_cpp.__version__,
            "generator": "tools/golden/unigram_gguf.py", "seed": SEED, "corpus": Path(sys.argv[1]).name, "why": "equal ids",
            "holds": ["metadata", "texts", "ids: by add_space_prefix and remove_extra_whitespaces"],
            "metadata": {
                "model": "t5", "tokens": [p.piece for p in model.pieces], "scores": [p.score for p in model.pieces],
                "token_type": [p.type for p in model.pieces], "precompiled_charsmap": list(model.normalizer_spec.precompiled_charsmap)},
            "texts": texts, "ids": []}
        for prefix in (True, False):
            for merge in (True, False):
                path = Path(folder) / "v.gguf"
                write(path, model, prefix, merge)
                out["ids"].append({"prefix": prefix, "merge": merge, "ids": list(tokenized(path, texts))})
    print("{\n " + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in out.items()) + "\n}")


if __name__ == "__main__":
    main()
