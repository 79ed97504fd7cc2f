#!/usr/bin/env bash
# Trains a list of recipes, several at once, and prints a table.
#   examples/compare.sh [-j JOBS] [-t THREADS] [-m MINUTES] [-o FOLDER] RECIPE...
# Without -m every recipe takes its own steps. With it, all take equal time: every run first
# measures its speed over a few steps, beside the others, and takes as many steps as fit into the
# minutes; the schedule ends with them. FOLDER/table.md and table.csv hold the result, with byte
# n-grams of the same text below it. Called again, it resumes what is unfinished.
#   examples/compare.sh -j 2 -t 1 examples/recipes/shakespeare/*.json
set -euo pipefail
jobs=1 threads=2 minutes= out=out/compare
tessera=${TESSERA:-$(dirname "$0")/../build/release/bin/tessera}

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }

# last value of a key in a log of JSON lines
last() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1" 2>/dev/null | tail -n 1 || true; }

# one recipe: speed, steps, training
train_one() {
  local recipe=$1 run steps
  run=$out/$(basename "$recipe" .json)
  mkdir -p "$run"
  if [ -z "$minutes" ]; then
    "$tessera" train "$recipe" --out "$run/run" --resume --threads "$threads" >"$run/train.log" 2>&1 || true
    report "$recipe" "$run" train.log "its own"
    return
  fi
  if [ ! -s "$run/steps" ]; then
    rm -rf "$run/speed"
    "$tessera" train "$recipe" --out "$run/speed" --threads "$threads" --set train.steps=30 \
      --set schedule.warmup=0 --set train.log_every=10 >"$run/speed.log" 2>&1 ||
      { report "$recipe" "$run" speed.log; return; }
    # a tenth of the time is left for evaluation
    steps=$(python3 - "$run/speed/log.jsonl" "$minutes" <<'END'
import json, sys
before, last = [json.loads(line) for line in open(sys.argv[1])][-2:]
steps_per_s = last["tokens_per_s"] * (last["step"] - before["step"]) / (last["tokens"] - before["tokens"])
print(max(100, int(steps_per_s * 0.9 * 60 * float(sys.argv[2]))))
END
)
    rm -rf "$run/speed"
    echo "$steps" >"$run/steps"
  fi
  steps=$(cat "$run/steps")
  # twice the time means that the machine is not what it was: stop and keep the checkpoint
  timeout -s INT "$(awk "BEGIN {print int($minutes * 120)}")" \
    "$tessera" train "$recipe" --out "$run/run" --resume --threads "$threads" \
    --set train.steps="$steps" >"$run/train.log" 2>&1 || true
  report "$recipe" "$run" train.log "$steps"
}

# recipe, folder of its run, what its program printed, steps it should have taken
report() {
  local name step
  name=$(basename "$1" .json) step=$(last "$2/run/log.jsonl" step)
  if [ -z "$step" ]; then
    echo "$name: $(tail -n 1 "$2/$3")" >&2
  else
    echo "$name: step $step of $4, validation loss $(last "$2/run/log.jsonl" valid_loss)" >&2
  fi
}

table() {
  python3 - "$tessera" "$out" "$@" <<'END'
import csv, json, os, subprocess, sys
tessera, out, recipes = sys.argv[1], sys.argv[2], sys.argv[3:]
ask = lambda *words: json.loads(subprocess.run([tessera, *words, "--json"], check=True, capture_output=True).stdout)
rows, texts, missing = [], set(), []
for recipe in recipes:
    name = os.path.splitext(os.path.basename(recipe))[0]
    folder = os.path.join(out, name)
    try:
        log = [json.loads(line) for line in open(os.path.join(folder, "run", "log.jsonl"))]
        resolved = json.load(open(os.path.join(folder, "run", "recipe.json")))
    except OSError:
        missing.append(name)
        continue
    valid = [line for line in log if "valid_loss" in line]
    data = resolved["data"]
    if data.get("type", "text") == "text" and len(data["train"]) == 1 and data["valid_fraction"] > 0:
        texts.add((data["train"][0], 1 - data["valid_fraction"]))
    rows.append({"recipe": name, "parameters": ask("plan", recipe)["parameters"], "steps": log[-1]["step"],
                 "of": resolved["train"]["steps"], "tokens": log[-1]["tokens"], "minutes": round(log[-1]["seconds"] / 60, 1),
                 "tokens_per_s": round(log[-1]["tokens"] / log[-1]["seconds"]),
                 "loss": round(log[-1]["loss"], 4), "valid_loss": round(valid[-1]["valid_loss"], 4) if valid else None,
                 "accuracy": round(valid[-1]["accuracy"], 4) if valid else None})
rows.sort(key=lambda row: (row["valid_loss"] is None, row["valid_loss"] or 0))
for text, share in sorted(texts):
    for order in (3, 4, 5):
        found = ask("eval", "--ngram", str(order), "--text", text, "--train-fraction", repr(share))
        rows.append({"recipe": f"{order}-gram (Kneser-Ney)", "valid_loss": round(found["nll"], 4)})
keys = ["recipe", "parameters", "steps", "of", "tokens", "minutes", "tokens_per_s", "loss", "valid_loss", "accuracy"]
with open(os.path.join(out, "table.csv"), "w", newline="") as file:
    writer = csv.DictWriter(file, keys)
    writer.writeheader()
    writer.writerows(rows)
show = lambda value: "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
lines = ["| " + " | ".join(keys) + " |", "|---" * len(keys) + "|"]
lines += ["| " + " | ".join(show(row.get(key)) for key in keys) + " |" for row in rows]
text = "\n".join(lines) + "\n"
open(os.path.join(out, "table.md"), "w").write(text)
print(text, end="")
if missing:
    sys.exit(f"no result of {', '.join(missing)}: what they printed lies in {out}/NAME/*.log")
END
}

if [ "${1:-}" = --one ]; then  # a worker of the call below
  shift
  out=$COMPARE_OUT minutes=$COMPARE_MINUTES threads=$COMPARE_THREADS
  train_one "$1"
  exit
fi
while getopts j:t:m:o:h option; do
  case $option in
    j) jobs=$OPTARG ;;
    t) threads=$OPTARG ;;
    m) minutes=$OPTARG ;;
    o) out=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
recipes=()
for recipe in "$@"; do [ "$(basename "$recipe")" = base.json ] || recipes+=("$recipe"); done
[ ${#recipes[@]} -gt 0 ] || usage
mkdir -p "$out"
export COMPARE_OUT=$out COMPARE_MINUTES=$minutes COMPARE_THREADS=$threads TESSERA=$tessera
export OMP_NUM_THREADS=$threads
printf '%s\0' "${recipes[@]}" | xargs -0 -n 1 -P "$jobs" bash "$0" --one
table "${recipes[@]}"
