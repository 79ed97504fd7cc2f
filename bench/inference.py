"""GGUF models in tessera, llama.cpp and its fork ik_llama.cpp, in turn within one run: one table for each model.

    python bench/inference.py build/release/bin/tessera --llama BIN_FOLDER [--ik BIN_FOLDER] [--repeats N] MODEL.gguf ...

BIN_FOLDER holds `llama-bench`, of llama.cpp `llama-batched-bench` as well where 8 rows are wanted: built for this machine
from the source packages llama-cpp-python 0.3.36 and ik-llama-cpp-python 0.1.5 of PyPI
(`cmake -B build -DGGML_NATIVE=ON vendor/llama.cpp; cmake --build build -t llama-bench llama-batched-bench`).

Tokens a second, medians, two threads each: a prompt of 512, 64 tokens one at a time, 32 behind 2,048, 64 of 8 texts side
by side. Of tessera in float32 (--exact), with inputs of 15 bits (its default) and of 8 bits (--fast), which is what the
peers take.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys

THREADS = "2"


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr or f"{command[0]}: exit {done.returncode}")
    return done.stdout


def tessera(program, model, flags):
    def row(*more):
        return json.loads(output([program, "bench", model, "--threads", THREADS, "--repeats", "1", "--json", *flags, *more]))["rows"][-1]

    whole, deep = row("--prefill", "512", "--decode", "64"), row("--prefill", "0", "--decode", "32", "--depth", "2048")
    rows = row("--prefill", "0", "--decode", "64", "--rows", "8")
    return {"prefill": whole["prefill_tokens_per_s"], "decode": whole["decode_tokens_per_s"],
            "behind 2,048": deep["decode_tokens_per_s"], "8 rows": rows["decode_tokens_per_s"]}


def in_blocks(program, model):
    """Whether inputs can be rounded at all: beside plain numbers they stay float32."""
    done = subprocess.run([program, "bench", model, "--threads", THREADS, "--repeats", "1", "--prefill", "1", "--decode", "1", "--fast"],
                          capture_output=True, text=True)
    if done.returncode != 0 and "no weight of this model is in blocks" not in done.stderr:
        sys.exit(done.stderr)
    return done.returncode == 0


def llama(folder, model, batched):
    def bench(*more):
        rows = json.loads(output([f"{folder}/llama-bench", "-m", model, "-t", THREADS, "-r", "1", "-o", "json", *more]))
        return {("pp" if row["n_prompt"] else "tg"): row["avg_ts"] for row in rows}

    whole = bench("-p", "512", "-n", "64")
    found = {"prefill": whole["pp"], "decode": whole["tg"]}
    if batched:
        found["behind 2,048"] = bench("-p", "0", "-n", "32", "-d", "2048")["tg"]
        text = output([f"{folder}/llama-batched-bench", "-m", model, "-t", THREADS, "-c", "2048", "-npp", "1", "-ntg", "64", "-npl", "8"])
        last = [line for line in text.splitlines() if re.match(r"\|\s*1 \|", line)][-1]
        found["8 rows"] = float(last.split("|")[8])  # S_TG
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("models", nargs="+")
    arguments.add_argument("--llama")
    arguments.add_argument("--ik")
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    for model in given.models:
        programs = {"float32": lambda: tessera(given.tessera, model, ["--exact"])}
        if in_blocks(given.tessera, model):
            programs["15 bits"] = lambda: tessera(given.tessera, model, [])
            programs["8 bits"] = lambda: tessera(given.tessera, model, ["--fast"])
        if given.llama:
            programs["llama.cpp"] = lambda: llama(given.llama, model, batched=True)
        if given.ik:
            programs["ik_llama.cpp"] = lambda: llama(given.ik, model, batched=False)
        turns = [{name: program() for name, program in programs.items()} for _ in range(given.repeats)]
        print(f"\n{model}, medians of {given.repeats}\n\n| | " + " | ".join(programs) + " |\n|---" + "|---" * len(programs) + "|")
        for figure in ("prefill", "decode", "behind 2,048", "8 rows"):
            cells = []
            for name in programs:
                values = [turn[name][figure] for turn in turns if figure in turn[name]]
                cells.append(f"{statistics.median(values):,.0f}" if values else "")
            print(f"| {figure} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
