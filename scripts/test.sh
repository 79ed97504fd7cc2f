#!/usr/bin/env bash
# Runs every test program of a build folder and closes with one line: N passed, N failed, N skipped.
#   scripts/test.sh build/release
set -u
build=${1:?usage: scripts/test.sh BUILD_FOLDER}
# the real checkpoint, where scripts/setup.sh demo put it
smollm2=${TESSERA_CACHE:-$HOME/.cache/tessera}/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -z "${TESSERA_SMOLLM2:-}" ] && [ -f "$smollm2" ]; then export TESSERA_SMOLLM2=$smollm2; fi
# TensorBoard, where scripts/setup.sh tensorboard put it
tensorboard=${TESSERA_CACHE:-$HOME/.cache/tessera}/tensorboard
if [ -z "${TESSERA_TENSORBOARD_PYTHON:-}" ] && [ -f "$tensorboard/.ready-1" ]; then
  export TESSERA_TENSORBOARD_PYTHON=$tensorboard/bin/python
fi
# what builds the documentation's site, where scripts/setup.sh docs put it
docs=${TESSERA_CACHE:-$HOME/.cache/tessera}/docs
if [ -z "${TESSERA_DOCS_PYTHON:-}" ] && [ -f "$docs/.ready-2" ]; then
  export TESSERA_DOCS_PYTHON=$docs/bin/python
fi
# what packs the wheel, where scripts/setup.sh package put it
package=${TESSERA_CACHE:-$HOME/.cache/tessera}/package
if [ -z "${TESSERA_PACKAGE_PYTHON:-}" ] && [ -f "$package/.ready-1" ]; then
  export TESSERA_PACKAGE_PYTHON=$package/bin/python
fi
# waiting threads must not spin: programs share the cores
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# as the program itself has it: one order of sums (src/tessera/cli/main.cpp)
export MKL_CBWR=${MKL_CBWR:-AUTO,STRICT}
# a share of every program's tests for each core
shards=${JOBS:-$(env -u OMP_NUM_THREADS nproc)}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0 failed=0 skipped=0
# sum PATTERN: of what the shards' last lines say
sum() { cat "$logs"/*.log | sed -n "$1" | awk '{n += $1} END {print n + 0}'; }
for program in $(ctest --test-dir "$build" --show-only=json-v1 | python3 -c '
import json, sys
for test in json.load(sys.stdin)["tests"]:
    if len(test.get("command", [])) == 1: print(test["command"][0])'); do
  rm -f "$logs"/*
  for shard in $(seq 0 $((shards - 1))); do
    (GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$program" --gtest_brief=1 >"$logs/$shard.log" 2>&1 ||
      touch "$logs/$shard.failed") &
  done
  wait
  p=$(sum 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p')
  s=$(sum 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p')
  f=$(cat "$logs"/*.log | grep -c '^\[  FAILED  \] .*ms)$')
  for one in "$logs"/*.failed; do
    [ -e "$one" ] || continue
    [ "$f" -gt 0 ] || f=1  # it crashed
    cat "${one%.failed}.log"
  done
  passed=$((passed + p)) skipped=$((skipped + s)) failed=$((failed + f))
  printf '%-28s %5s passed %4s skipped %4s failed\n' "$(basename "$program")" "$p" "$s" "$f"
done
# checks that are no test programs
for check in $(ctest --test-dir "$build" --show-only=json-v1 | python3 -c '
import json, sys
for test in json.load(sys.stdin)["tests"]:
    if len(test.get("command", [])) > 1: print(test["name"])'); do
  p=1 f=0
  ctest --test-dir "$build" --output-on-failure -R "^$check\$" >"$logs/check.log" 2>&1 || { p=0 f=1; cat "$logs/check.log"; }
  passed=$((passed + p)) failed=$((failed + f))
  printf '%-28s %5s passed %4s skipped %4s failed\n' "$check" "$p" 0 "$f"
done
[ $((passed + failed)) -gt 0 ] || { echo "no test was found in $build"; exit 1; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
