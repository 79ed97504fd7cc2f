#!/usr/bin/env bash
# Builds the layers that compute with tensors under the sanitizers for addresses, leaks and undefined
# behaviour, and runs their tests. Fails on the first report.
#
#   scripts/sanitize_tensors.sh [PROGRAM...]   of the test programs below; all of them without
#
# JOBS chooses the jobs of the build. libtorch is compiled as ever: what it allocates once and keeps
# is left out of the leaks (lsan.supp). Of the contract suite the checks run that hold memory longest.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=("$@")
[ $# -gt 0 ] || programs=(ops_tensors_test nn_tensors_test model_tensors_test infer_tensors_test train_tensors_test contract_test)
declare -A filter=([contract_test]='*__unwritten:*__state:*__roll_back:*__session:*__speculation')
export OMP_WAIT_POLICY=passive UBSAN_OPTIONS="print_stacktrace=1"
export ASAN_OPTIONS="exitcode=66 detect_leaks=1" LSAN_OPTIONS="suppressions=$PWD/scripts/lsan.supp print_suppressions=0"
cmake --preset asan-tensors >/dev/null
cmake --build build/asan-tensors -j "${JOBS:-$(nproc)}" --target "${programs[@]}"
for program in "${programs[@]}"; do
  # addresses that are drawn at random may not leave the sanitizer its own
  setarch -R "$(find build/asan-tensors -name "$program" -type f)" --gtest_brief=1 --gtest_filter="${filter[$program]:-*}"
  echo "sanitize: $program: no report"
done
