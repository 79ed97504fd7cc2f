"""What the `tokenizers` library makes of a difficult text by the patterns of every pre-tokenizer that GGUF files name.

    python tools/golden/gguf_pre.py src/tessera/text/tokenizer_files/gguf_tokenizers.json tests/golden/text/gguf_pre.json

Needs tokenizers. Whether the patterns are llama.cpp's, gguf_check.py says.
"""

import json
import pathlib
import sys

import tokenizers
from tokenizers import pre_tokenizers

TEXT = (
    "Hello Äpfel 12345\n\n你好，世界! x+=1;  end  It's we'LL DON'T can’t 1234567 12 1,234,567 0xDEAD 1930s\tthere   \n\n\n x² "
    "नमस्ते é a/b\\c   \n  end  café 가나다 ㅎㅎ！…「」 ไทย <sentinel:12> IMGIMGABCZ kWh iPhone 5 ١٢٣ 😀👨‍👩‍👧 "
    "for(int i=0;i<10;++i){\n\tf(\"%d\\n\");\n}\r\n    "
)
table, out = map(pathlib.Path, sys.argv[1:])
pieces = {}
for entry in json.loads(table.read_text())["pre"]:
    cuts = pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in entry["split"]])
    pieces[entry["names"][0]] = [piece for piece, _ in cuts.pre_tokenize_str(TEXT)]
out.write_text(json.dumps({"text": TEXT, "pieces": pieces}, ensure_ascii=False, indent=0) + "\n")
