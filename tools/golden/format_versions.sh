#!/usr/bin/env bash
# Small files in every format of tessera that has a version, as one release writes them, for
# tests/format_versions_test.cpp: a spec and recipe, a run with its checkpoint, an adapter, a session
# and an index. Kept as they are: later releases read them. A new version of a format gets a folder of its own.
#
#   tools/golden/format_versions.sh PROGRAM tests/golden/versions/1
set -euo pipefail
program=$(realpath "$1") out=$(realpath -m "$2")
work=/tmp/versions
rm -rf "$work" "$out"
mkdir -p "$work/notes" "$(dirname "$out")"
cd "$work"
cat >spec.json <<'END'
{
  "tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 4, "norm": "rms_norm",
  "layers": [{"mixer": {"type": "mamba2", "n_heads": 2, "d_state": 4}},
             {"mixer": {"type": "attention", "n_heads": 1, "position": "rope"}}],
  "ffn": {"type": "mlp", "d_hidden": 8}, "head": "tied"
}
END
cat >recipe.json <<'END'
{
  "spec": "spec.json",
  "data": {"train": ["text.txt"], "tokenizer": "bytes"},
  "train": {"steps": 2, "batch": 2, "length": 16},
  "optimizer": {"type": "adamw", "lr": 5e-3}
}
END
for i in $(seq 40); do echo "line $i of a small text for a small model"; done >text.txt
head -n 5 text.txt >notes/a.txt
"$program" train recipe.json --out run --threads 1
"$program" finetune run --task text --data text.txt --lora 1 --steps 1 --length 16 --batch 1 --out adapter
"$program" generate run line -n 4 --temperature 0 --ignore-eos --threads 1 --session session
"$program" index notes --with run --out index
# what a reader does not need
rm -rf {run,adapter}/{cache,lock,log.csv,events.out*}
mv "$work" "$out"
