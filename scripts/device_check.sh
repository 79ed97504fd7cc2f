#!/usr/bin/env bash
# Checks and measures tessera on a GPU: one run for a machine without a network, of at most 8 minutes.
#
#   scripts/device_check.sh --out results                 builds with a CUDA libtorch, then runs all on "cuda"
#   scripts/device_check.sh --out results --build FOLDER  with the programs of a build folder
#   scripts/device_check.sh --out results --dry           tiny sizes on the CPU: only that every step runs
#
# --device NAME   device to check (default cuda; cpu with --dry)
# --minutes N     time limit (default 8)
# TESSERA_TORCH   the torch package of the build (default: that of python3), 2.11 to 2.15
# TESSERA_PREFIX  folder of the other libraries of the build, where they are not installed
#
# Writes OUT/device_check.json and OUT/device_check.txt (a table), and the output of each step in OUT/logs. A step that
# fails, or for which no time is left, is a row that says so; no figure is estimated. Exit status 0 if no step failed.
set -u

device="" build="" out="" minutes=8 dry=""
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:?}; shift 2 ;;
    --build) build=${2:?}; shift 2 ;;
    --out) out=${2:?}; shift 2 ;;
    --minutes) minutes=${2:?}; shift 2 ;;
    --dry) dry=1; shift ;;
    *) echo "device_check: unknown option $1; expected --device, --build, --out, --minutes or --dry" >&2; exit 2 ;;
  esac
done
[ -n "$out" ] || { echo "device_check: --out is missing; expected a folder" >&2; exit 2; }
device=${device:-${dry:+cpu}}
device=${device:-cuda}
source=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$out/logs" && out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
begin=$(date +%s)
rows=$work/rows
: >"$rows"

left() { echo $((begin + minutes * 60 - $(date +%s))); }
# row NAME VALUE UNIT STATUS [NOTE]
row() { printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "${5:-}" >>"$rows"; printf '%s: %s %s (%s)\n' "$1" "$2" "$3" "$4" >&2; }
# step NAME SECONDS COMMAND...: runs it within what is left; output in logs/NAME.out and logs/NAME.err
step() {
  local name=$1 limit=$2 status
  shift 2
  [ "$(left)" -lt "$limit" ] && limit=$(left)
  if [ "$limit" -lt 5 ]; then
    row "$name" "" "" "not measured" "no time was left"
    return 1
  fi
  timeout "$limit" "$@" >"$out/logs/$name.out" 2>"$out/logs/$name.err"
  status=$?
  [ $status -eq 0 ] && return 0
  if [ $status -eq 124 ]; then
    row "$name" "" "" "not measured" "not finished within $limit s"
  else
    row "$name" "" "" "failed" "exit status $status: $(tail -n 1 "$out/logs/$name.err" | tr '\t' ' ' | cut -c -200)"
  fi
  return 1
}
# number KEY FILE: the last number of a JSON key
number() { grep -o "\"$1\": *-\{0,1\}[0-9][0-9.e+-]*" "$2" | tail -n 1 | sed 's/.*: *//'; }

# 1. build
if [ -z "$build" ]; then
  build=$source/build/device_check
  torch=${TESSERA_TORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null)}
  step configure 60 cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_TORCH="$torch" \
    ${TESSERA_PREFIX:+-DCMAKE_PREFIX_PATH="$TESSERA_PREFIX"} &&
    step build 330 cmake --build "$build" -j "$(nproc)" --target tessera device_test generation_device_test forms_test &&
    row build "$(($(date +%s) - begin))" s ok
fi
tessera=$build/bin/tessera
if [ ! -x "$tessera" ]; then
  row tessera "" "" failed "there is no $tessera"
else
  # 2. what is installed
  if step doctor 60 "$tessera" doctor --json; then
    row doctor "$(sed -n 's/.*"libtorch": *"\([^"]*\)".*/\1/p' "$out/logs/doctor.out")" libtorch ok \
      "cuda: $(sed -n 's/.*"cuda": *"\([^"]*\)".*/\1/p' "$out/logs/doctor.out" | cut -c -200)"
  fi
  command -v nvidia-smi >/dev/null && nvidia-smi >"$out/logs/nvidia-smi.out" 2>&1

  # 3. suites on the device
  # suite NAME SECONDS PROGRAM FILTER
  suite() {
    local program=$build/tests/$3
    if [ ! -x "$program" ]; then
      row "$1" "" "" "not measured" "$3 is not built"
      return
    fi
    TESSERA_TESTED_DEVICE=$device step "$1" "$2" "$program" "--gtest_filter=$4" --gtest_brief=1 || return
    local passed
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$out/logs/$1.out")
    if [ "$passed" = 0 ]; then
      row "$1" "" "" "not measured" "its tests were skipped"
    else
      row "$1" "$passed" "tests passed" ok
    fi
  }
  # kernels against plain forms, then their time, for which there is no benchmark yet
  if [ -n "$dry" ]; then
    suite kernels_suite 60 forms_test 'CudaForms*'
  else
    suite kernels_suite 60 forms_test 'CudaForms*:Forms*'
  fi
  row kernels_time "" ms "not measured" "CUDA kernels have no benchmark"
  if [ -n "$dry" ]; then
    suite training_suite 60 device_test 'TrainingOnDevice.LossesThatAreNotFinite*'
    suite generation_suite 60 generation_device_test 'GenerationOnDevice.Perplexity*'
    suite families_suite 60 generation_device_test '*FamilyOnDevice*/bert_base'
  else
    suite training_suite 60 device_test 'TrainingOnDevice*'
    suite generation_suite 60 generation_device_test 'GenerationOnDevice*'
    suite families_suite 60 generation_device_test '*FamilyOnDevice*'
  fi

  # spec VOCAB D_MODEL LAYERS HEADS KV_HEADS D_HIDDEN
  spec() {
    printf '{"tessera": 1, "arch": "decoder", "vocab": %s, "d_model": %s, "norm": {"type": "rms_norm", "eps": 1e-5},
      "layers": [{"repeat": %s, "mixer": {"type": "attention", "n_heads": %s, "n_kv_heads": %s, "position": "rope"}}],
      "ffn": {"type": "glu", "act": "silu", "d_hidden": %s}, "head": "tied"}' "$@"
  }
  # recipe SPEC STEPS BATCH LENGTH
  recipe() {
    printf '{"spec": %s, "data": {"train": ["%s/examples/data/shakespeare.txt"], "tokenizer": "bytes", "valid_fraction": 0},
      "train": {"steps": %s, "batch": %s, "length": %s, "log_every": 1, "eval_every": 0}, "checkpoint": {"every": 0},
      "optimizer": {"lr": 0.001}}' "$1" "$source" "$2" "$3" "$4"
  }
  if [ -n "$dry" ]; then
    small=$(spec 256 32 2 2 1 64) of_135m=$(spec 300 32 2 2 1 64) of_1b=$(spec 300 64 2 2 1 128)
    steps=5 batch=2 length=32 tokens=16
  else
    small=$(spec 256 128 2 4 2 384) of_135m=$(spec 49152 576 30 9 3 1536) of_1b=$(spec 32768 2048 18 32 8 8192)
    steps=200 batch=8 length=128 tokens=512
  fi

  # 4. losses on the device and on the CPU
  recipe "$small" $steps $batch $length >"$work/small.json"
  losses() { sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$work/$1/log.jsonl"; }
  if step train_cpu 90 "$tessera" train "$work/small.json" --out "$work/cpu" --device cpu &&
    step train_device 90 "$tessera" train "$work/small.json" --out "$work/device" --device "$device"; then
    paste <(losses cpu) <(losses device) >"$out/logs/losses.txt"
    off=$(awk 'NF == 2 { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d; n++ } END { if (n) printf "%.3g", most }' "$out/logs/losses.txt")
    row losses "${off:-none}" "nats, largest difference from the CPU's in $steps steps" \
      "$(awk -v off="${off:-1}" 'BEGIN { print off <= 1e-4 ? "ok" : "failed" }')" "bound 1e-4"
  fi

  # 5. prefill and decoding
  # speed NAME MODEL DEVICE
  speed() {
    step "$1" 60 "$tessera" bench "$2" --device "$3" --prefill $tokens --decode 32 --repeats 3 --json || return
    row "$1_prefill" "$(number prefill_tokens_per_s "$out/logs/$1.out")" tokens/s ok "$tokens tokens, float32 weights"
    row "$1_decode" "$(number decode_tokens_per_s "$out/logs/$1.out")" tokens/s ok \
      "1 sequence, float32 weights, $(number replayed_steps "$out/logs/$1.out") steps replayed"
  }
  echo "$of_135m" >"$work/135m.json"
  echo "$of_1b" >"$work/1b.json"
  if step init_135m 60 "$tessera" init "$work/135m.json" --out "$work/135m"; then
    speed 135m_device "$work/135m" "$device"
    TESSERA_CUDA_GRAPHS=0 speed 135m_no_graphs "$work/135m" "$device"
    speed 135m_cpu "$work/135m" cpu
  fi
  step init_1b 90 "$tessera" init "$work/1b.json" --out "$work/1b" && speed 1b_device "$work/1b" "$device"

  # 6. a training step
  for precision in float32 bf16; do
    # seconds of a step do not hold those of the first, which allocates
    recipe "$of_135m" 8 4 $((length * 8)) >"$work/step.json"
    [ -n "$dry" ] && recipe "$of_135m" 3 2 $length >"$work/step.json"
    [ "$device" = cpu ] && [ $precision = bf16 ] && precision=fp16
    step "step_135m_$precision" 60 "$tessera" train "$work/step.json" --out "$work/step_$precision" --device "$device" \
      --set "train.precision=\"$precision\"" &&
      row "step_135m_$precision" "$(number tokens_per_s "$work/step_$precision/log.jsonl")" tokens/s ok
  done

  # 7. an eighth of the contract suite, in the time that is left
  if [ -z "$dry" ] && [ "$(left)" -gt 60 ]; then
    step build_contract "$(left)" cmake --build "$build" -j "$(nproc)" --target contract_test
    GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=0 suite contract_suite 120 contract_test '*__device'
  fi
fi

# 8. results
escaped() { sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' | tr -d '\000-\010\013-\037'; }
{
  printf '{\n  "device": "%s",\n  "date": "%s",\n  "seconds": %s,\n  "dry": %s,\n  "rows": [' \
    "$device" "$(date -u +%Y-%m-%dT%H:%MZ)" $(($(date +%s) - begin)) "$([ -n "$dry" ] && echo true || echo false)"
  escaped <"$rows" | awk -F '\t' '{ printf "%s\n    {\"name\": \"%s\", \"value\": \"%s\", \"unit\": \"%s\", \"status\": \"%s\", \"note\": \"%s\"}",
                                     (NR > 1 ? "," : ""), $1, $2, $3, $4, $5 }'
  printf '\n  ]\n}\n'
} >"$out/device_check.json"
awk -F '\t' '{ printf "%-22s %12s  %-12s %s%s\n", $1, $2, $4, $3, ($5 == "" ? "" : " (" $5 ")") }' "$rows" | tee "$out/device_check.txt"
! grep -q "$(printf '\tfailed\t')" "$rows"
