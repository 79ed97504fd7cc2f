#!/usr/bin/env bash
# Runs every test program of a build folder and closes with one line: N passed, N failed, N skipped.
#   scripts/test.sh build/release
set -u
build=${1:?usage: scripts/test.sh BUILD_FOLDER}
# the real checkpoint, where scripts/setup.sh demo put it
smollm2=${TESSERA_CACHE:-$HOME/.cache/tessera}/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -z "${TESSERA_SMOLLM2:-}" ] && [ -f "$smollm2" ]; then export TESSERA_SMOLLM2=$smollm2; fi
# waiting threads must not spin: programs share the cores
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0
for program in $(ctest --test-dir "$build" --show-only=json-v1 | python3 -c '
import json, sys
for test in json.load(sys.stdin)["tests"]:
    if "command" in test: print(test["command"][0])'); do
  name=$(basename "$program")
  if "$program" --gtest_brief=1 >"$log" 2>&1; then code=0; else code=$?; fi
  p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  s=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  f=$(sed -n 's/^ *\([0-9]*\) FAILED TEST.*/\1/p' "$log" | tail -n 1)
  if [ "$code" -ne 0 ] && [ -z "$f" ]; then f=1; fi  # it crashed
  passed=$((passed + ${p:-0})) skipped=$((skipped + ${s:-0})) failed=$((failed + ${f:-0}))
  printf '%-28s %5s passed %4s skipped %4s failed\n' "$name" "${p:-0}" "${s:-0}" "${f:-0}"
  if [ "$code" -ne 0 ]; then cat "$log"; fi
done
[ $((passed + failed)) -gt 0 ] || { echo "no test was found in $build"; exit 1; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
