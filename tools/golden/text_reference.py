"""Token ids as the reference computes them, one JSON object a line on stdout.

    text_reference.py KIND SOURCE N [SEED]

KIND   json    SOURCE is a tokenizer.json, run by the `tokenizers` library
       vocab   SOURCE is a vocab.txt, run by the `tokenizers` library's own BERT tokenizer
       folder  SOURCE is a folder with vocab.txt and what else `transformers` reads beside it
       gguf    SOURCE is a .gguf with byte-level BPE; its vocabulary and merges are run by `tokenizers`
               behind Digits(individual) and ByteLevel, as SmolLM2's own tokenizer.json has it
       scores  SOURCE is a token score file of llama2.c, run by the plain algorithm below
N      random strings; each line is {"text", "parsed", "plain", "wrapped", "decoded"}:
       ids with special tokens parsed, with special tokens as text, parsed and with the
       post-processor's tokens around; the text of "plain" decoded.

The first line describes the source: {"reference", "version", "gguf"?}; for gguf it carries the
metadata, so that the reader needs no GGUF parser.
"""

import json
import random
import struct
import sys

# (first, last) code points of assigned, long-standing characters
SCRIPTS = [
    (0x61, 0x7A), (0x41, 0x5A), (0xC0, 0x24F), (0x391, 0x3A1), (0x3B1, 0x3C9), (0x410, 0x44F),
    (0x531, 0x556), (0x5D0, 0x5EA), (0x627, 0x63A), (0x905, 0x939), (0x985, 0x98C), (0xE01, 0xE2E),
    (0x10D0, 0x10F0), (0x1200, 0x1248), (0x13A0, 0x13F4), (0x3041, 0x3096), (0x30A1, 0x30FA),
    (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x10400, 0x1044F),
    (0x20000, 0x2A6D6), (0x1D400, 0x1D454), (0xE000, 0xE0FF),
]
MARKS = [0x300, 0x301, 0x308, 0x327, 0x323, 0x93E, 0x94D, 0x5B0, 0x64B, 0xE31, 0x20DD, 0xFE0F]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\t\t", "\u00a0", "\u2003", "\u3000", "\u2028",
          "\u1680", "\u180e", "\u200b", "\x85", "\x0b", "\x0c", "\x1c", "\u2581"]
DIGITS = [(0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0x2160, 0x2188), (0x2460, 0x2473),
          (0xFF10, 0xFF19)]
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~§¶·¿¡«»–—‘’“”…€£¥©®™×÷√∞≈、。「」"
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "n't", "\u2019s", "'\u017f"]
WORDS = ["the", "hello", "world", "Tokenizer", "of", "and", "éclair", "naïve", "Straße", "ﬁn", "İstanbul",
         "ＦＵＬＬ", "日本語", "안녕하세요", "привет", "नमस्ते", "مرحبا", "<0x0A>", "<0x", "e\u0301", "\ufeff"]
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🏳️‍🌈", "☃", "1️⃣"]


def random_text(rng, specials):
    def characters(low, high):
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))

    def part():
        kind = rng.randrange(13)
        if kind <= 2:
            return rng.choice([" ", ""]) + characters(*rng.choice(SCRIPTS))
        if kind == 3:
            return rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3, 7, 40])
        if kind == 4:
            return characters(*rng.choice(DIGITS))
        if kind == 5:
            return "".join(rng.choice(PUNCTUATION) for _ in range(rng.randint(1, 5)))
        if kind == 6:
            return rng.choice(CONTRACTIONS)
        if kind == 7:
            return rng.choice(EMOJI)
        if kind == 8:
            return characters(*rng.choice(SCRIPTS)) + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randint(1, 4)))
        if kind == 9:
            return chr(rng.choice([0, 1, 7, 8, 0x1B, 0x7F, 0x80, 0x9F, 0xAD, 0x200C, 0x200D, 0x202E, 0xFFFD, 0xFFFF]))
        if kind == 10 and specials:
            return rng.choice(["", " ", "  \n", "a"]) + rng.choice(specials) + rng.choice(["", " ", "\t ", "b"])
        return rng.choice([" ", "", " "]) + rng.choice(WORDS)

    return "".join(part() for _ in range(rng.randint(0, 12)))


def unspellable(text):
    """A Unigram model knows the special tokens, and would find them in a text whatever `encode_special_tokens` says."""
    document = json.loads(text)
    if document["model"]["type"] != "Unigram":
        return text
    specials = {token["content"] for token in document["added_tokens"] if token["special"]}
    document["added_tokens"] = [token for token in document["added_tokens"] if not token["special"]]
    document["model"]["vocab"] = [[f"\U0010fffe{t}\U0010fffe" if t in specials else t, s] for t, s in document["model"]["vocab"]]
    return json.dumps(document)


class Tokenizers:
    """A tokenizer of the `tokenizers` library, asked three ways."""

    def __init__(self, tokenizer):
        import tokenizers

        self.about = {"reference": "tokenizers", "version": tokenizers.__version__}
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.parsing = tokenizer
        self.plain = tokenizers.Tokenizer.from_str(unspellable(tokenizer.to_str()))
        self.plain.encode_special_tokens = True
        added = json.loads(tokenizer.to_str())["added_tokens"]
        self.specials = [token["content"] for token in added]

    def row(self, text):
        plain = self.plain.encode(text, add_special_tokens=False).ids
        return {
            "text": text,
            "parsed": self.parsing.encode(text, add_special_tokens=False).ids,
            "plain": plain,
            "wrapped": self.parsing.encode(text, add_special_tokens=True).ids,
            "decoded": self.parsing.decode(plain, skip_special_tokens=False),
        }


class Scores:
    """llama2.c's encode(): merge the best adjacent pair until none is left, by plain search."""

    def __init__(self, path):
        self.about = {"reference": "llama2.c encode(), restated", "version": "karpathy/llama2.c"}
        self.specials = ["<s>", "</s>", "\n<s>\n", "<0x41>"]
        data = open(path, "rb").read()
        self.tokens, self.scores, at = [], [], 4
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            self.tokens.append(data[at + 8:at + 8 + length])
            self.scores.append(score)
            at += 8 + length
        self.ids = {token: i for i, token in reversed(list(enumerate(self.tokens)))}

    def encode(self, text):
        ids = [self.ids[b" "]] if text else []
        for character in text:
            raw = character.encode()
            ids += [self.ids[raw]] if raw in self.ids else [byte + 3 for byte in raw]
        while True:
            best = None
            for i in range(len(ids) - 1):
                joined = self.ids.get(self.tokens[ids[i]] + self.tokens[ids[i + 1]])
                if joined is not None and (best is None or self.scores[joined] > self.scores[best[1]]):
                    best = (i, joined)
            if best is None:
                return ids
            ids[best[0]:best[0] + 2] = [best[1]]

    def row(self, text):
        ids = self.encode(text)
        return {"text": text, "parsed": None, "plain": ids, "wrapped": [1] + ids, "decoded": None}


def from_json(path):
    """tokenizers 0.23 refuses merges of tokens that hold spaces when they are written as one string
    (llama2's file has three); they are cut where both parts and their union are tokens."""
    from tokenizers import Tokenizer

    document = json.load(open(path))
    model = document["model"]

    def cut(merge):
        if not isinstance(merge, str) or merge.count(" ") == 1:
            return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
        cuts = [(merge[:i], merge[i + 1:]) for i, c in enumerate(merge) if c == " "]
        (only,) = [(a, b) for a, b in cuts if {a, b, a + b} <= model["vocab"].keys()]
        return only

    if "merges" in model:
        model["merges"] = [cut(merge) for merge in model["merges"]]
    return Tokenizer.from_str(json.dumps(document))


def from_vocab(path):
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(path)._tokenizer
    known = tokenizer.get_vocab()
    tokenizer.add_special_tokens([t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if t in known])
    return tokenizer


def from_folder(path):
    from transformers import BertTokenizer

    return BertTokenizer.from_pretrained(path)._tokenizer


def from_gguf(path):
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = gguf.GGUFReader(path).fields
    metadata = {name.removeprefix("tokenizer.ggml."): field.contents()
                for name, field in fields.items() if name.startswith("tokenizer.")}
    tokens = metadata["tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False)
         for t, kind in zip(tokens, metadata["token_type"]) if kind == 3])
    return Tokenizers(tokenizer), metadata


def open_source(kind, path):
    metadata = None
    if kind == "scores":
        source = Scores(path)
    elif kind == "vocab":
        source = Tokenizers(from_vocab(path))
    elif kind == "folder":
        source = Tokenizers(from_folder(path))
    elif kind == "gguf":
        source, metadata = from_gguf(path)
    else:
        source = Tokenizers(from_json(path))
    about = dict(source.about)
    if metadata is not None:
        about["gguf"] = metadata
    return source, about


def main():
    kind, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 7
    source, about = open_source(kind, path)
    rng = random.Random(seed)
    print(json.dumps(about))
    for _ in range(count):
        print(json.dumps(source.row(random_text(rng, source.specials))))


if __name__ == "__main__":
    main()
