#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for a while; fails on the first finding. Those
# that need libtorch are not among them: TESSERA_FUZZ_SECONDS and fuzz_tensors_test (replay_test.cpp).
#
#   tests/fuzz/run.sh [SECONDS] [NAME...]     60 seconds each; all of them without names
#
# CXX chooses the compiler (clang++-19; it needs libomp-19-dev too). Findings lie in
# build/fuzz/findings: build/fuzz/tests/fuzz/NAME_fuzz FILE repeats one. Corpora grow in
# build/fuzz/corpus, never here.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
seconds=${1:-60}
shift || true
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  mapfile -t names < <(sed -n 's/^tessera_fuzz(\([a-z0-9_]*\) .*/\1/p' tests/fuzz/CMakeLists.txt)
fi

if ! cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER="${CXX:-clang++-19}" \
  -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DTESSERA_FUZZ=ON -DTESSERA_TENSORS=OFF -DTESSERA_TESTS=OFF >build/fuzz-configure.log 2>&1; then
  cat build/fuzz-configure.log >&2
  echo "fuzz: cannot configure; needed: clang-19 libclang-rt-19-dev libomp-19-dev" >&2
  exit 1
fi
cmake --build build/fuzz --target "${names[@]/%/_fuzz}" -- -j "${JOBS:-2}"

mkdir -p build/fuzz/findings
for name in "${names[@]}"; do
  mkdir -p "build/fuzz/corpus/$name"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384
    -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$name-")
  [ -f "tests/fuzz/corpus/$name.dict" ] && options+=(-dict="tests/fuzz/corpus/$name.dict")
  log="build/fuzz/$name.log"
  if ! "build/fuzz/tests/fuzz/${name}_fuzz" "${options[@]}" "build/fuzz/corpus/$name" \
    "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "fuzz: $name: finding; the input is in build/fuzz/findings" >&2
    exit 1
  fi
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "fuzz: $name: $inputs inputs in $seconds s, no finding"
done
