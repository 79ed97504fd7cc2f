#!/usr/bin/env bash
# Builds the layers that compute with tensors under the sanitizers for addresses, leaks and undefined
# behaviour, and runs their tests. Fails on the first report.
#
#   scripts/sanitize_tensors.sh [LAYER...]   of ops, nn, model, infer and train; all of them without
#
# JOBS chooses the jobs of the build. Tests, the layers below and libtorch are compiled as ever; what
# libtorch allocates once and keeps is left out of the leaks (lsan.supp).
set -euo pipefail
cd "$(dirname "$0")/.."
layers=("$@")
[ $# -gt 0 ] || layers=(ops nn model infer train)
export OMP_WAIT_POLICY=passive MKL_CBWR=AUTO,STRICT UBSAN_OPTIONS="print_stacktrace=1"
export ASAN_OPTIONS="exitcode=66 detect_leaks=1" LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp print_suppressions=0"
build=build/sanitize-tensors
cmake --preset release -B $build -DTESSERA_SANITIZE_LAYERS="$(IFS=';'; echo "${layers[*]}")" >/dev/null
cmake --build $build -j "${JOBS:-$(nproc)}" --target "${layers[@]/%/_tensors_test}"
# they measure how much memory the process holds, which the sanitizer changes
left_out="FindBatch.*"
for layer in "${layers[@]}"; do
  # addresses that are drawn at random may not leave the sanitizer its own
  setarch -R $build/src/tessera/$layer/${layer}_tensors_test --gtest_brief=1 --gtest_filter="-$left_out"
  echo "sanitize: $layer: no report"
done
