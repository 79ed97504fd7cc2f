"""Makes tests/golden/text/components.json: what the `tokenizers` library's own components do.

    text_components.py > tests/golden/text/components.json
"""

import json
import random

import tokenizers
from tokenizers import Tokenizer

from text_reference import random_text

SEED = 11
METASPACE = {"type": "Metaspace", "replacement": "▁"}
BYTES = {f"<0x{b:02X}>": b for b in range(256)}
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
POSSESSIVE = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
              r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r"\s*$"}, "content": "$"},
    {"type": "Replace", "pattern": {"Regex": r"^\w*"}, "content": "^"},
    {"type": "Replace", "pattern": {"Regex": r"(?<=[a-z])|[\u0300-\u036f]"}, "content": "|"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "StripAccents"},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": False, "strip_accents": None, "lowercase": False},
    {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": True, "strip_accents": True, "lowercase": False},
    {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": True},
    {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
    {"type": "Sequence", "normalizers": []},
]


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE_TOKENIZERS = (
    [split({"Regex": r"\s+"}, b, i) for b in BEHAVIORS for i in (False, True)]
    + [split({"Regex": r"\p{N}|[^\w\s]"}, b) for b in BEHAVIORS]
    + [split({"String": " "}, b) for b in BEHAVIORS]
    + [split({"Regex": p}, "Isolated") for p in (CL100K, POSSESSIVE, O200K)]
    + [split({"Regex": CL100K}, "Removed", True)]
    + [split({"Regex": r"[一-龥ࠀ-一가-퟿]+"}, "Isolated"), split({"Regex": r"[\r\n]"}, "Isolated"),
       split({"Regex": r"\s?\p{P}+"}, "Isolated"), split({"Regex": r"\d{1,3}(?=(\d{3})*\b)"}, "Isolated")]
    + [{"type": "ByteLevel", "add_prefix_space": a, "trim_offsets": True, "use_regex": r}
       for a in (False, True) for r in (False, True)]
    + [{"type": "Digits", "individual_digits": i} for i in (False, True)]
    + [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}]
    + [{"type": "Punctuation", "behavior": b} for b in BEHAVIORS]
    + [{**METASPACE, "prepend_scheme": p, "split": s} for p in ("always", "first", "never") for s in (True, False)]
    + [{"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {**METASPACE, "prepend_scheme": "first"}]},
       {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                              {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}]},
       {"type": "Sequence", "pretokenizers": [split({"Regex": r"\p{N}{1,3}"}, "Isolated"),
                                              split({"Regex": r"[一-龥぀-ゟ゠-ヿ]+"}, "Isolated"),
                                              {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}]
)

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
DECODERS = [
    None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}, {"type": "ByteFallback"}, {"type": "Fuse"}, REPLACE,
    {"type": "Replace", "pattern": {"Regex": "l+"}, "content": "L"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    {"type": "Strip", "content": "a", "start": 2, "stop": 1},
    {**METASPACE, "prepend_scheme": "always", "split": True},
    {**METASPACE, "prepend_scheme": "never", "split": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "WordPiece", "prefix": "l", "cleanup": False},
    {"type": "Sequence", "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"},
                                      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    {"type": "Sequence", "decoders": [{"type": "Fuse"}, REPLACE, {"type": "Strip", "content": " ", "start": 1, "stop": 2}]},
    {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {**METASPACE, "prepend_scheme": "first", "split": True}]},
]
TOKENS = [
    [], ["▁Hello", "▁world", "▁", "!"], ["<0xE6>", "<0x97>", "<0xA5>", "▁x", "<0xE6>"], ["<0xF0>", "<0x9F>", "a"],
    ["Hello", "ĠworldÃ©", "ðŁ", "ĺ", "Ģ"], ["ðŁ", "ĺ", "x"], ["<|im_end|>", "日本", "Ġa b"], ["aaab", "baaa", "aca"],
    [" ", "  ", "x  ", " "], ["hello", "ll", "▁l▁"], ["<0x0a>", "<0x0A>", "<0xGG>", "<0x0A"], ["▁▁", "▁a"],
    ["é", "Ã", "©", "Ã"], ["##he", "##llo", "do not", "n't", ".", "'", "' s", "'s", "##'s", "a ' b", "?", "##", "", "l"],
]


def tokenizer_json(model, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model, **parts}


def bpe(vocab, merges, **options):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges, **options}


def word_piece(vocab, **options):
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": vocab, **options}


def added(index, content, **flags):
    return {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


WORDS = {token: index for index, token in enumerate(
    [*BYTES, *"▁abcdehlorw ", "<unk>", "he", "ll", "hell", "o▁", "▁w", "ab", "abab", "ba", "hello", "aba"])}
N = len(WORDS)  # the library numbers added tokens from here
MERGES = [["h", "e"], ["l", "l"], ["he", "ll"], ["a", "b"], ["ab", "ab"], ["b", "a"], ["o", "▁"], ["▁", "w"], ["a", "ba"]]
TEXTS = ["", " ", "hello world", "ababa ababab", "héllo", "hello o o oworld", "xyz", "axyzb", "éaé", "hello<s>world",
         "<s>", " <s> ", "a <s>  b", "a<mask>b", "a <mask> b", "x <mask>", "hello</w>bc", "</w>", "b </w> c", "ö</w>",
         "ab<t>ab", "AB<T>ab", "hello  hello", "hellohello hellox hello-abab", "HÉLLO 日x中。", "éabé", "<s><s>hello", "<mask><s> <mask>", "Ａb<ﬁ>c", "<fi>", "cccc ccc cc c"]
ADDED = [added(WORDS["<unk>"], "<unk>", special=True), added(N, "<s>", special=True), added(N + 1, "</s>", special=True),
         added(N + 2, "<mask>", special=True, lstrip=True, normalized=True), added(N + 3, "</w>", single_word=True),
         added(N + 4, "<t>", normalized=True), added(N + 5, "<ﬁ>", normalized=True), added(N + 6, "cc"), added(N + 7, "ccc"),
         added(N + 8, "world", rstrip=True, single_word=True)]
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [N], "tokens": ["<s>"]},
                               "</s>": {"id": "</s>", "ids": [N + 1, N + 1], "tokens": ["</s>", "</s>"]}}}
SPACES = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                              {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
TOKENIZERS = [
    tokenizer_json(bpe(WORDS, MERGES)),
    tokenizer_json(bpe(WORDS, [" ".join(m) for m in MERGES], unk_token="<unk>")),
    tokenizer_json(bpe(WORDS, MERGES, unk_token="<unk>", fuse_unk=True), normalizer={"type": "Lowercase"}),
    tokenizer_json(bpe(WORDS, MERGES, byte_fallback=True, unk_token="<unk>", fuse_unk=True), normalizer=SPACES),
    tokenizer_json(bpe(WORDS, MERGES, ignore_merges=True), pre_tokenizer={"type": "WhitespaceSplit"}),
    tokenizer_json(bpe(WORDS, MERGES, byte_fallback=True), added_tokens=ADDED, post_processor=TEMPLATE),
    tokenizer_json(bpe(WORDS, MERGES, byte_fallback=True), added_tokens=ADDED, normalizer=SPACES),
    tokenizer_json(bpe(WORDS, MERGES, byte_fallback=True), added_tokens=ADDED,
                   normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
                   pre_tokenizer={**METASPACE, "prepend_scheme": "first", "split": True}),
    tokenizer_json(bpe(WORDS, MERGES), added_tokens=ADDED, normalizer={"type": "Strip", "strip_left": True, "strip_right": True},
                   pre_tokenizer={**METASPACE, "prepend_scheme": "first", "split": True},
                   post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True,
                                                                       "trim_offsets": False, "use_regex": True}, TEMPLATE]}),
    tokenizer_json(bpe(WORDS, MERGES), added_tokens=ADDED,
                   post_processor={"type": "BertProcessing", "sep": ["</s>", N + 1], "cls": ["<s>", N]}),
]


PIECES = {token: index for index, token in enumerate(
    ["[UNK]", "h", "##e", "##l", "##lo", "##ell", "hell", "hello", "##hello", "world", "##ba", "aba", "ab", "##ab", "a", "##a", "##b",
     "c", "##c", "##cc", "é", "e", "##é", "x", "##", "##z", "y", "日", "。", "-", "##-", "<s>", "</s>", "中"])}
BERT = {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"}}
WRAP = {**TEMPLATE, "special_tokens": {name: {"id": name, "ids": [PIECES[name]], "tokens": [name]} for name in ("<s>", "</s>")}}
MARKS = [added(PIECES[name], name, special=True) for name in ("[UNK]", "<s>", "</s>")]
TOKENIZERS += [
    tokenizer_json(word_piece(PIECES), **BERT, added_tokens=MARKS, post_processor=WRAP),
    tokenizer_json(word_piece(PIECES)),
    tokenizer_json(word_piece(PIECES, continuing_subword_prefix="", max_input_chars_per_word=5), pre_tokenizer={"type": "WhitespaceSplit"}),
    tokenizer_json(word_piece(PIECES, max_input_chars_per_word=5), **{**BERT, "normalizer": {**BERT["normalizer"], "lowercase": False}}),
]


def component(kind, value):
    return getattr(Tokenizer.from_str(json.dumps(tokenizer_json(bpe({}, []), **{kind: value}))), kind)


def decode(value, tokens):
    """None where the library itself panics (Strip on a token shorter than what it strips)."""
    if value is None:
        return " ".join(tokens)
    try:
        return component("decoder", value).decode(tokens)
    except BaseException as error:  # PanicException derives from nothing narrower
        if type(error).__name__ != "PanicException":
            raise
        return None


def tokenizer_cases(definition):
    parsing = Tokenizer.from_str(json.dumps(definition))
    plain = Tokenizer.from_str(json.dumps(definition))
    plain.encode_special_tokens = True
    return [{"text": t, "parsed": parsing.encode(t, add_special_tokens=False).ids,
             "plain": plain.encode(t, add_special_tokens=False).ids,
             "wrapped": parsing.encode(t, add_special_tokens=True).ids} for t in TEXTS]


def ranges(holds):
    """[first, last, first, last, ...] of the code points that have a property."""
    out = []
    for c in (c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and holds(chr(c))):
        if out and out[-1] == c - 1:
            out[-1] = c
        else:
            out += [c, c]
    return out


def characters():
    """What the library's own tables say of each character."""
    def bert(**on):
        parts = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
        return component("normalizer", {"type": "BertNormalizer", **parts, **on}).normalize_str

    clean, ideograph, strip = bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True)
    cut = component("pre_tokenizer", {"type": "BertPreTokenizer"}).pre_tokenize_str
    return {
        "dropped": ranges(lambda c: clean(f"a{c}b") == "ab"), "space": ranges(lambda c: clean(f"a{c}b") == "a b"),
        "ideograph": ranges(lambda c: ideograph(c) != c), "punctuation": ranges(lambda c: len(cut(f"a{c}b")) == 3),
        "mark": ranges(lambda c: strip(c) == ""),
    }


def main():
    rng = random.Random(SEED)
    texts = ["", " ", "  a", "a  ", "Hello, world! 123 45", "a\n\n b\r\n", "1234567", "---", "   "] + [
        random_text(rng, ["<s>"]) for _ in range(24)]
    out = {
        "case": "text/components", "reference": "tokenizers", "version": tokenizers.__version__,
        "generator": "tools/golden/text_components.py", "seed": SEED,
        "holds": ["normalizers", "pre_tokenizers", "characters", "decoders", "tokenizers"], "why": "equal texts and ids",
        "texts": texts, "tokens": TOKENS,
        "normalizers": [{"json": n, "out": [component("normalizer", n).normalize_str(t) for t in texts]} for n in NORMALIZERS],
        "pre_tokenizers": [{"json": p, "out": [[piece for piece, _ in component("pre_tokenizer", p).pre_tokenize_str(t)]
                                               for t in texts]} for p in PRE_TOKENIZERS],
        "characters": [characters()],
        "decoders": [{"json": d, "out": [decode(d, t) for t in TOKENS]} for d in DECODERS],
        "tokenizers": [{"json": t, "cases": tokenizer_cases(t)} for t in TOKENIZERS],
    }
    print("{")
    keys = list(out)
    for key in keys:
        comma = "," if key != keys[-1] else ""
        if isinstance(out[key], list) and out[key] and isinstance(out[key][0], dict):
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=True) for row in out[key])
            print(f" {json.dumps(key)}: [\n  {rows}\n ]{comma}")
        else:
            print(f" {json.dumps(key)}: {json.dumps(out[key], ensure_ascii=True)}{comma}")
    print("}")


if __name__ == "__main__":
    main()
