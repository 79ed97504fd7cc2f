#!/bin/sh
# Trains the model with multi-head attention and pools its key/value heads:
#   examples/studies/kv_heads/prepare.sh
#   tessera compare examples/studies/kv_heads/kv_heads.json --out out/kv_heads
set -e
tessera=${TESSERA:-build/release/bin/tessera}
"$tessera" train examples/studies/kv_heads/mha.json --out out/kv_models/mha
for pool in mean first random; do
  "$tessera" convert out/kv_models/mha/latest --kv-heads 1 --pool $pool --out out/kv_models/mqa-$pool
  "$tessera" convert out/kv_models/mha/latest --kv-heads 2 --pool $pool --out out/kv_models/gqa-$pool
done
