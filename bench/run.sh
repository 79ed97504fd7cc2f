#!/usr/bin/env bash
# All benchmarks of a build folder, on an idle machine: bench/run.sh build/release
set -euo pipefail
build=${1:?usage: bench/run.sh BUILD_FOLDER}
cache=${TESSERA_CACHE:-$HOME/.cache/tessera}
uptime
"$build/bench/kernels_bench" --benchmark_min_time=0.2
"$build/bench/attention_rows"
"$build/bench/products_rows"
"$build/bench/train_products_rows"
"$build/bench/models_rows"
"$build/bench/recurrences_rows"
model=$cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$model" ]; then "$build/bin/tessera" bench "$model" --prefill 512 --decode 64 --depth 0,2048; fi
if [ -x "$cache/reference/bin/python" ]; then
  bench/train_step.sh "$build" "$cache/reference/bin/python"
  GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483647 \
    "$cache/reference/bin/python" bench/mamba_scan.py "$build/lib/libtessera_ops.so"
else
  echo "train_step, mamba_scan: run scripts/setup.sh reference for the comparison with PyTorch"
fi
