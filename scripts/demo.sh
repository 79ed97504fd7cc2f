#!/usr/bin/env bash
# The demo: a real checkpoint speaks, then a small decoder trains on Shakespeare and speaks too.
# Called by `make demo`, which installs and builds first.
set -euo pipefail
cd "$(dirname "$0")/.."
tessera=${BUILD:-build/release}/bin/tessera
cache=${TESSERA_CACHE:-$HOME/.cache/tessera}
recipe=examples/recipes/shakespeare.json
out=${TESSERA_DEMO_OUT:-out/demo}
# the validation loss to expect, nats a byte, and how far a run may be from it
low=1.80 high=2.00
start=$SECONDS

printf '\n== 1. SmolLM2-135M-Instruct, from its GGUF file\n\n'
"$tessera" generate "$cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" \
  --prompt 'Gravity is' --max-new-tokens 80

printf '\n== 2. A small decoder (GQA, RoPE, RMSNorm, SwiGLU; bytes) learns Shakespeare, about a minute\n\n'
"$tessera" plan "$recipe" --context 256
rm -rf "$out"
"$tessera" train "$recipe" --out "$out"

printf '\n== 3. What it learned\n\n'
"$tessera" generate "$out/latest" --prompt $'ROMEO:\n' --max-new-tokens 300 --temperature 0.8 --seed 1

loss=$(python3 - "$out/log.jsonl" <<'END'
import json, sys
losses = [line["valid_loss"] for line in map(json.loads, open(sys.argv[1])) if line.get("valid_loss") is not None]
print(f"{losses[-1]:.3f}")
END
)
printf '\nvalidation loss %s nats a byte (expected %s to %s); %d seconds\n' "$loss" "$low" "$high" "$((SECONDS - start))"
python3 -c 'import sys; low, loss, high = map(float, sys.argv[1:]); sys.exit(0 if low <= loss <= high else 3)' "$low" "$loss" "$high" ||
  { echo "the loss is outside the band" >&2; exit 3; }
