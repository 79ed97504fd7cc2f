"""Makes tests/golden/sentence: folders as sentence-transformers 6.2 saves them, and the vectors that it computes.

    sentence_modules.py --out tests/golden/sentence

`base` holds a tiny BERT with its tokenizer; `cases.json` for each case the files that differ (JSON, or base64 of
others) and the vectors of the same texts. Cases called old_... are respelled as versions before 5.4 saved them, and read by 6.2.
"""

import argparse
import base64
import json
import pathlib
import shutil
import tempfile

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from tokenizers import Tokenizer

SEED, WIDTH = 62, 16
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "the", "cat", "dog", "##s", "Cat", "q", ":"]
TEXTS = ["the cat", "a dogs Cat", "a b a b the cat dog dogs a b the cat dog", "the"]
LEGACY = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
          "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken"}


def write_base(folder):
    special = lambda i: {"id": i, "content": WORDS[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    around = lambda token, type_id=0: {"SpecialToken": {"id": token, "type_id": type_id}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [special(i) for i in range(5)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": False},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [around("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, around("[SEP]")],
                           "pair": [around("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, around("[SEP]"), {"Sequence": {"id": "B", "type_id": 1}}, around("[SEP]", 1)],
                           "special_tokens": {k: {"id": k, "ids": [WORDS.index(k)], "tokens": [k]} for k in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                  "vocab": {word: i for i, word in enumerate(WORDS)}}}
    Tokenizer.from_str(json.dumps(tokenizer))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(tokenizer)), unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]",
        cls_token="[CLS]", mask_token="[MASK]", model_max_length=64).save_pretrained(folder)
    torch.manual_seed(SEED)
    config = transformers.BertConfig(vocab_size=len(WORDS), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=24, max_position_embeddings=64, initializer_range=0.4)
    transformers.BertModel(config).save_pretrained(folder)


def layer_norm():
    norm = LayerNorm(WIDTH)
    torch.nn.init.normal_(norm.norm.weight)
    torch.nn.init.normal_(norm.norm.bias)
    return norm


def cases():
    """Name, modules behind the transformer, arguments of the transformer, of the model, a change of the saved files."""
    pooled = lambda *modes, **k: Pooling(WIDTH, modes[0] if len(modes) == 1 else modes, **k)
    for mode in Pooling.POOLING_MODES:
        yield mode, [pooled(mode)], {}, {}, None
        yield "old_" + mode, [pooled(mode), Normalize()], {}, {}, respelled
    yield "two_poolings", [pooled("mean", "cls"), Normalize()], {}, {}, None
    yield "old_three_poolings", [pooled("cls", "max", "mean")], {}, {}, respelled
    for name in ("Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid"):
        yield f"dense_{name.lower()}", [pooled("mean"), Dense(WIDTH, 6, activation_function=getattr(torch.nn, name)()), Normalize()], {}, {}, None
    yield "dense_without_bias", [pooled("mean", "max"), Dense(2 * WIDTH, 5, bias=False)], {}, {}, None
    yield "dense_residual", [pooled("mean"), Dense(WIDTH, WIDTH, use_residual=True), Dense(WIDTH, 4, use_residual=True)], {}, {}, None
    yield "normalize_before_dense", [pooled("mean"), Normalize(), Dense(WIDTH, 6)], {}, {}, None
    yield "layer_norm", [pooled("mean"), layer_norm(), Dropout(0.3), Normalize()], {}, {}, None
    yield "model_max_length", [pooled("mean")], {"processor_kwargs": {"model_max_length": 6}}, {}, None
    yield "truncation_side", [pooled("mean")], {"processor_kwargs": {"model_max_length": 6, "truncation_side": "left"}}, {}, None
    yield "truncation_direction", [pooled("mean")], {"processor_kwargs": {"model_max_length": 6}}, {}, cut_left
    yield "lower_case", [pooled("mean")], {"do_lower_case": True}, {}, None
    yield "old_lower_case", [pooled("mean")], {}, {}, lowered
    yield "truncate_dim", [pooled("mean"), Normalize()], {}, {"truncate_dim": 5}, None
    prompts = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    yield "prompt", [pooled("mean")], {}, prompts, None
    for mode in ("mean", "cls", "weightedmean", "lasttoken", "max"):
        yield f"prompt_excluded_{mode}", [pooled(mode, include_prompt=False)], {}, prompts, None


def respelled(folder):
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]
    (folder / "modules.json").write_text(json.dumps(modules))
    path = folder / "1_Pooling/config.json"
    config = json.loads(path.read_text())
    modes = config.pop("pooling_mode")
    modes = [modes] if isinstance(modes, str) else modes
    config["word_embedding_dimension"] = config.pop("embedding_dimension")
    path.write_text(json.dumps(config | {"pooling_mode_" + key: mode in modes for mode, key in LEGACY.items()}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": False}))


def lowered(folder):
    respelled(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": True}))


def cut_left(folder):
    path = folder / "tokenizer.json"
    cut = {"direction": "Left", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": cut}))


def write_case(base, name, modules, of_transformer, of_model, change):
    torch.manual_seed(len(name))
    for module in modules:
        if isinstance(module, Dense):
            for parameter in module.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
    with tempfile.TemporaryDirectory() as work:
        saved = pathlib.Path(work) / name
        model = SentenceTransformer(modules=[Transformer(str(base), **of_transformer), *modules], **of_model)
        model.save_pretrained(str(saved), create_model_card=False)
        if change:
            change(saved)
        if "truncate_dim" in of_model:  # which 6.2 takes as an argument alone
            path = saved / "config_sentence_transformers.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": of_model["truncate_dim"]}))
        read = SentenceTransformer(str(saved), truncate_dim=of_model.get("truncate_dim"))
        vectors = read.encode(TEXTS, batch_size=1)
        files = {}
        for file in sorted(saved.rglob("*")):
            path = str(file.relative_to(saved))
            same = base / path
            if file.is_file() and not (same.is_file() and same.read_bytes() == file.read_bytes()) and file.name != "README.md":
                files[path] = json.loads(file.read_text()) if file.suffix == ".json" else base64.b64encode(file.read_bytes()).decode()
        return {"files": files, "vectors": [[round(float(x), 7) for x in vector] for vector in vectors]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    base = out / "base"
    base.mkdir(parents=True)
    write_base(base)
    # the library writes the files of the transformer in its own way
    with tempfile.TemporaryDirectory() as work:
        SentenceTransformer(modules=[Transformer(str(base)), Pooling(WIDTH)]).save_pretrained(work, create_model_card=False)
        for file in base.iterdir():
            shutil.copy(pathlib.Path(work) / file.name, file)
    made = {name: write_case(base, name, *rest) for name, *rest in cases()}
    story = {"reference": f"sentence-transformers {sentence_transformers.__version__}, transformers {transformers.__version__}",
             "generator": "tools/golden/sentence_modules.py", "seed": SEED, "texts": TEXTS}
    lines = ",\n".join(json.dumps(name) + ": " + json.dumps(case) for name, case in made.items())
    (out / "cases.json").write_text(json.dumps(story)[:-1] + ', "cases": {\n' + lines + "}}\n")


main()
