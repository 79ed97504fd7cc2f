#!/bin/sh
# Seconds per training step, tessera and eager PyTorch in turn on this machine.
#   bench/train_step.sh BUILD_DIR [PYTHON] [REPEATS] [STEPS]
set -eu
build=${1:?build folder with bench/train_step}
python=${2:-python3}
repeats=${3:-5}
steps=${4:-5}
here=$(dirname "$0")
ours=""
theirs=""
echo "load: $(cut -d' ' -f1-3 /proc/loadavg)  cores: $(nproc)  cpu:$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2)"
for i in $(seq "$repeats"); do
  a=$("$build/bench/train_step" "$steps")
  b=$("$python" "$here/train_step_torch.py" "$steps")
  echo "tessera $a  torch $b"
  ours="$ours $a"
  theirs="$theirs $b"
done
median() { printf '%s\n' "$@" | sort -n | awk '{v[NR] = $1} END {print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
# shellcheck disable=SC2086
awk -v a="$(median $ours)" -v b="$(median $theirs)" 'BEGIN {printf "median: tessera %.4f s, torch %.4f s, ratio %.3f (below 1: tessera is faster)\n", a, b, a / b}'
