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
exec python3 "$(dirname "$0")/run_tests.py" "$build"
