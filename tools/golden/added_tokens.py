"""Makes tests/golden/text/added_tokens.json: ids and texts of transformers for tokens and flags that only
tokenizer_config.json, special_tokens_map.json or added_tokens.json name.

    added_tokens.py > tests/golden/text/added_tokens.json

Folders are drawn at random: own tokens of tokenizer.json, the three files next to it, their flags and orders, a
normalizer. Each is read by transformers (PreTrainedTokenizerFast, or the class that the configuration names where the
case is about `add_prefix_space`); folders that transformers refuses are drawn again. Where it shows a special token
although special ones are to be skipped (its normalized form is another text, or two files disagree), tessera skips it:
such a row has no "skipped".
"""

import json
import pathlib
import random
import sys
import tempfile

import tokenizers
import transformers

SEED = 50
CASES = 120
VOCABULARY = 263


def byte_characters():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in keep}
    for n, b in enumerate(b for b in range(256) if b not in names):
        names[b] = chr(256 + n)
    return names


def byte_level():
    """A byte-level BPE of 263 tokens."""
    names = byte_characters()
    vocab, merges = {names[b]: b for b in range(256)}, []
    for a, b in [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "the"), ("a", "n"), ("Ġ", "a"), ("e", "r")]:
        vocab[a + b] = len(vocab)
        merges.append([a, b])
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return whole({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges},
                 pre_tokenizer=level, decoder=level)


def unigram():
    pieces = [["<unk>", 0], ["<s>", 0], ["</s>", 0], ["▁", -2.0], ["▁the", -3.0], ["the", -4.0], ["an", -4.5]]
    pieces += [[c, -6.0 - i / 16] for i, c in enumerate("abcdefghinorstuxyzATHE<>/|_É\n")]
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return whole({"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}, pre_tokenizer=space, decoder=space)


def pieces_with_bytes():
    """Llama's kind: U+2581 for spaces, bytes for what the vocabulary lacks."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": b + 3 for b in range(256)}
    merges = []
    for c in "▁thean":
        vocab[c] = len(vocab)
    for a, b in [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "n")]:
        vocab[a + b] = len(vocab)
        merges.append([a, b])
    decoder = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    return whole({"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": merges},
                 pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}, decoder=decoder)


def whole(model, pre_tokenizer, decoder):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder, "model": model}


BASES = {"byte_level": byte_level(), "unigram": unigram(), "pieces_with_bytes": pieces_with_bytes()}
NORMALIZERS = [None, None, None, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"String": "t"}, "content": "u"}]
CONTENTS = ["<s>", "</s>", "<|im_start|>", "<tool>", "<TOOL>", "the", "THE", "an", "x y", "<É>", "\n\n", "<|im", "start|>", "Ġa", "ü"]
ROLES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]


def flags(draw, content, typed=False, with_special=True):
    token = {"content": content}
    for key in ("lstrip", "rstrip", "single_word"):
        token[key] = draw.random() < 0.2
    token["normalized"] = draw.random() < 0.4
    if with_special:
        token["special"] = draw.random() < 0.5
    return token | ({"__type": "AddedToken"} if typed else {})


def own_tokens(draw, base):
    """As the library writes them: in the order of ids, those of the vocabulary with its ids."""
    vocab = base["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {token: i for i, (token, _) in enumerate(vocab)}
    next_id, tokens = len(ids), []
    for content in draw.sample(CONTENTS, draw.choice([0, 1, 2, 2, 3, 4])):
        if content in ids:
            token = {"id": ids[content]}
        else:
            token, next_id = {"id": next_id}, next_id + 1
        tokens.append(token | flags(draw, content))
    return sorted(tokens, key=lambda t: t["id"])


def plain_or_typed(draw, content):
    return content if draw.random() < 0.6 else flags(draw, content, typed=True, with_special=draw.random() < 0.7)


def drawn_files(draw, own):
    pick = lambda most: draw.sample(CONTENTS, draw.randint(1, most))
    config, files = {"tokenizer_class": "PreTrainedTokenizerFast"}, {}
    for role in draw.sample(ROLES, draw.choice([0, 1, 2, 3])):
        config[role] = plain_or_typed(draw, draw.choice(CONTENTS))
    if draw.random() < 0.2:
        config[draw.choice(["image_token", "tool_token"])] = plain_or_typed(draw, draw.choice(CONTENTS))
    if draw.random() < 0.4:
        config["extra_special_tokens"] = draw.choice([
            lambda: [plain_or_typed(draw, c) for c in pick(2)], lambda: {f"k{i}": plain_or_typed(draw, c) for i, c in enumerate(pick(2))},
            list, dict])()
    if draw.random() < 0.3:
        config["additional_special_tokens"] = [plain_or_typed(draw, c) for c in pick(2)]
    if draw.random() < 0.4:
        known = {t["content"]: t["id"] for t in own}
        first = 300
        config["added_tokens_decoder"] = {}
        for i, content in enumerate(pick(4)):
            config["added_tokens_decoder"][str(known.get(content, first + i))] = flags(draw, content)
        if draw.random() < 0.1:
            config["added_tokens_decoder"] = {}
    if draw.random() < 0.4:
        special = {role: draw.choice([lambda c: c, lambda c: flags(draw, c, with_special=False)])(draw.choice(CONTENTS))
                   for role in draw.sample(ROLES, draw.choice([1, 2]))}
        if draw.random() < 0.5:
            special[draw.choice(["additional_special_tokens", "extra_special_tokens"])] = pick(2)
        files["special_tokens_map"] = special
    if draw.random() < 0.3:
        files["added_tokens"] = {content: draw.choice([264, 265, 300]) + 10 * i for i, content in enumerate(pick(3))}
    if draw.random() < 0.1:
        config["split_special_tokens"] = True
    return {"config": config, **files}


def drawn_text(draw, contents):
    parts = []
    for _ in range(draw.randint(3, 8)):
        word = draw.choice([*contents, *contents, *CONTENTS, "the an", "a", " ", "  ", "x", "\n", "T"])
        parts.append(draw.choice([word, word, word.lower(), word.upper()]))
        parts.append(draw.choice(["", "", " ", "a"]))
    return "".join(parts)


def read(base, own, normalizer, files):
    tokenizer = BASES[base] | {"added_tokens": own, "normalizer": normalizer}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        for key, file in (("config", "tokenizer_config"), ("special_tokens_map",) * 2, ("added_tokens",) * 2):
            if key in files:
                (folder / f"{file}.json").write_text(json.dumps(files[key]))
        kind = getattr(transformers, files["config"].get("tokenizer_class", "PreTrainedTokenizerFast"))
        return kind.from_pretrained(folder)


def rows(case, tokenizer, texts):
    shown = shown_special(case, tokenizer)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        row = {"text": text, "ids": ids, "decoded": tokenizer.decode(ids)}
        if not shown.intersection(ids):
            row["skipped"] = tokenizer.decode(ids, skip_special_tokens=True)
        yield row


def shown_special(case, tokenizer):
    """Ids of which the library does not know for certain whether they are special: it looks at the text that they decode to."""
    added = tokenizer.added_tokens_decoder
    special = {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids)
    special |= {t["id"] for t in case["own"] if t["special"]}
    texts = {tokenizer.convert_ids_to_tokens(i) for i in special} | {added[i].content for i in special if i in added}
    shown = {i for i in special if tokenizer.decode([i], skip_special_tokens=True)}
    return shown | {i for i in added if i not in special and tokenizer.convert_ids_to_tokens(i) in texts}


def is_ambiguous(case, tokenizer):
    """Of tokens with one normalized form the library finds any, from run to run."""
    forms = [tokenizer.convert_ids_to_tokens(i) for i, token in tokenizer.added_tokens_decoder.items() if token.normalized]
    return len(set(forms)) < len(forms) or (tokenizer.split_special_tokens and shown_special(case, tokenizer))


def spells_special(case, tokenizer):
    """Whether a model of Unigram may make a special token of text that is none; tessera keeps such pieces out of it."""
    pieces = {piece for piece, _ in BASES["unigram"]["model"]["vocab"]} if case["base"] == "unigram" else {}
    return any(token.content in pieces and token.special and (token.single_word or tokenizer.split_special_tokens or case["normalizer"])
               for token in tokenizer.added_tokens_decoder.values())


def answer(draw, case):
    tokenizer = read(case["base"], case["own"], case["normalizer"], case["files"])
    if is_ambiguous(case, tokenizer) or spells_special(case, tokenizer):
        raise ValueError
    added = {token.content: i for i, token in sorted(tokenizer.added_tokens_decoder.items())}
    texts = [drawn_text(draw, list(added) or CONTENTS) for _ in range(3)]
    roles = {role: getattr(tokenizer, role + "_id") for role in ("bos_token", "eos_token", "unk_token", "pad_token")}
    return case | {"added": added, "roles": roles, "rows": list(rows(case, tokenizer, texts))}


def drawn_case(draw):
    base = draw.choice(["byte_level"] * 3 + ["unigram", "pieces_with_bytes"])
    own = own_tokens(draw, BASES[base])
    return {"base": base, "own": own, "normalizer": draw.choice(NORMALIZERS), "files": drawn_files(draw, own)}


def prefix_cases():
    """`add_prefix_space`, which the classes obey or do not."""
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<s>", "pad_token": "</s>"}
    of = {"byte_level": ["GPT2TokenizerFast", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"],
          "pieces_with_bytes": ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"]}
    for base, classes in of.items():
        for name in classes:
            for prefix in (True, False):
                special = dict(lstrip=False, rstrip=False, single_word=False, normalized=False, special=True)
                vocab = BASES[base]["model"]["vocab"]
                own = [{"id": vocab.get(c, VOCABULARY + i), "content": c, **special} for i, c in enumerate(["<s>", "</s>"])]
                config = {"tokenizer_class": name, "add_prefix_space": prefix, **roles}
                yield {"base": base, "own": own, "normalizer": None, "files": {"config": config}}


def main():
    transformers.logging.set_verbosity_error()
    draw, cases, refused = random.Random(SEED), [], 0
    for case in prefix_cases():
        cases.append(answer(draw, case))
    while len(cases) < CASES:
        case = drawn_case(draw)
        try:
            cases.append(answer(draw, case))
        except (TypeError, ValueError, AttributeError):
            refused += 1
    print(f"{refused} drawn folders are refused by transformers, or ambiguous", file=sys.stderr)
    story = {"reference": f"transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
             "generator": "tools/golden/added_tokens.py", "seed": SEED, "bases": BASES}
    dump = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    print(dump(story)[:-1] + ',"cases":[\n' + ",\n".join(map(dump, cases)) + "\n]}")


main()
