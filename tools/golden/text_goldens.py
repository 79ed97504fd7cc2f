"""Makes tests/golden/text/NAME.json for one tokenizer.json: ids of random strings, and a hash of the
ids of whole corpora. The tokenizer itself is not copied; its SHA-256 says which one it was.

    text_goldens.py tokenizer.json NAME CORPUS... > tests/golden/text/NAME.json
"""

import hashlib
import json
import random
import struct
import sys
from pathlib import Path

from text_reference import open_source, random_text

SEED, COUNT = 23, 200


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    path, name, corpora = sys.argv[1], sys.argv[2], sys.argv[3:]
    source, about = open_source("json", path)
    rng = random.Random(SEED)
    print("{")
    head = {
        "case": f"text/{name}", **about, "generator": "tools/golden/text_goldens.py", "seed": SEED,
        "tokenizer_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest(),
        "holds": ["corpora: ids and FNV-1a of their int32 little-endian form", "rows"], "why": "equal ids",
        "vocab_size": max(source.parsing.get_vocab().values()) + 1,
        "corpora": [],
    }
    for corpus in corpora:
        text = Path(corpus).read_text(encoding="utf-8")
        ids = source.plain.encode(text, add_special_tokens=False).ids
        entry = {"file": Path(corpus).name, "ids": len(ids), "fnv1a": f"{fnv1a(struct.pack(f'<{len(ids)}i', *ids)):016x}"}
        if (decoded := source.parsing.decode(ids, skip_special_tokens=True)) != text:  # a vocabulary of words
            entry["decoded_fnv1a"] = f"{fnv1a(decoded.encode()):016x}"
        head["corpora"].append(entry)
    for key, value in head.items():
        print(f" {json.dumps(key)}: {json.dumps(value)},")
    rows = []
    for _ in range(COUNT):
        row = source.row(random_text(rng, source.specials))
        if row["parsed"] == row["plain"]:
            del row["parsed"]
        if row["decoded"] == row["text"]:
            del row["decoded"]
        rows.append(json.dumps(row, separators=(",", ":")))
    print(' "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}")


if __name__ == "__main__":
    main()
