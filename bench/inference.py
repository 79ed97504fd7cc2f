"""GGUF models in tessera, llama.cpp and its fork ik_llama.cpp, in turn within one run: one table for each model.

    python bench/inference.py build/release/bin/tessera --llama BIN_FOLDER [--ik BIN_FOLDER] [--repeats N] [--rows ROW ...] MODEL.gguf ...

BIN_FOLDER holds `llama-bench`, of llama.cpp `llama-batched-bench` as well where 8 rows are wanted: built for this machine
from the source packages llama-cpp-python 0.3.36 and ik-llama-cpp-python 0.1.5 of PyPI
(`cmake -B build -DGGML_NATIVE=ON vendor/llama.cpp; cmake --build build -t llama-bench llama-batched-bench`).

Each table has a model's size, the machine, and tokens a second, medians, two threads each: a prompt of 512, 64 tokens one
at a time, 32 behind 2,048, 64 of 8 texts side by side. Of tessera in float32 (--exact), with inputs of 15 bits (its
default) and of 8 bits (--fast), which is what the peers take. Where a token reads every weight once, the row below has the
GB/s of that file and their share of what the same threads read from memory at that time. The last columns are the ratios
of the default and of --fast to the fastest peer. `--rows decode` measures some rows alone.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

THREADS = "2"
ROWS = ["prefill", "decode", "behind 2,048", "8 rows"]
PEERS = ["llama.cpp", "ik_llama.cpp"]


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr or f"{command[0]}: exit {done.returncode}")
    return done.stdout


def tessera(program, model, flags, wanted, machine):
    def row(*more):
        done = json.loads(output([program, "bench", model, "--threads", THREADS, "--repeats", "1", "--json", *flags, *more]))
        machine["cpu"], machine["target"] = done["cpu"], done["target"]
        machine.setdefault("read", []).append(done["read_bytes_per_s"])
        return done["rows"][-1]

    found = {}
    if "prefill" in wanted:
        found["prefill"] = row("--prefill", "512", "--decode", "0")["prefill_tokens_per_s"]
    if "decode" in wanted:
        found["decode"] = row("--prefill", "0", "--decode", "64")["decode_tokens_per_s"]
    if "behind 2,048" in wanted:
        found["behind 2,048"] = row("--prefill", "0", "--decode", "32", "--depth", "2048")["decode_tokens_per_s"]
    if "8 rows" in wanted:
        found["8 rows"] = row("--prefill", "0", "--decode", "64", "--rows", "8")["decode_tokens_per_s"]
    return found


def in_blocks(program, model):
    """Whether inputs can be rounded at all: beside plain numbers they stay float32."""
    done = subprocess.run([program, "bench", model, "--threads", THREADS, "--repeats", "1", "--prefill", "1", "--decode", "1", "--fast"],
                          capture_output=True, text=True)
    if done.returncode != 0 and "no weight of this model is in blocks" not in done.stderr:
        sys.exit(done.stderr)
    return done.returncode == 0


def llama(folder, model, wanted, batched):
    def bench(*more):
        rows = json.loads(output([f"{folder}/llama-bench", "-m", model, "-t", THREADS, "-r", "1", "-o", "json", *more]))
        return {("pp" if row["n_prompt"] else "tg"): row["avg_ts"] for row in rows}

    found = {}
    if "prefill" in wanted:
        found["prefill"] = bench("-p", "512", "-n", "0")["pp"]
    if "decode" in wanted:
        found["decode"] = bench("-p", "0", "-n", "64")["tg"]
    if batched and "behind 2,048" in wanted:
        found["behind 2,048"] = bench("-p", "0", "-n", "32", "-d", "2048")["tg"]
    if batched and "8 rows" in wanted:
        text = output([f"{folder}/llama-batched-bench", "-m", model, "-t", THREADS, "-c", "2048", "-npp", "1", "-ntg", "64", "-npl", "8"])
        last = [line for line in text.splitlines() if re.match(r"\|\s*1 \|", line)][-1]
        found["8 rows"] = float(last.split("|")[8])  # S_TG
    return found


def ratio_columns(programs):
    """(title, program) of ours by the fastest peer, where there are peers."""
    if not any(name in programs for name in PEERS):
        return []
    return [(f"{name} to the fastest peer", name) for name in ("15 bits", "8 bits") if name in programs] or [("float32 to the fastest peer", "float32")]


def table(model, programs, turns, wanted, machine):
    size, read = os.path.getsize(model), statistics.median(machine["read"])
    ratios = ratio_columns(programs)
    print(f"\n{os.path.basename(model)}: {size / 1e9:.2f} GB, medians of {len(turns)}\n{machine['cpu']}, {machine['target']}, {THREADS} threads, "
          f"memory bandwidth {read / 1e9:.1f} GB/s\n")
    titles = [*programs, *(title for title, _ in ratios)]
    print("| | " + " | ".join(titles) + " |\n|---" + "|---" * len(titles) + "|")
    for figure in wanted:
        medians = {name: statistics.median(values) for name in programs if (values := [turn[name][figure] for turn in turns if figure in turn[name]])}
        cells = [f"{medians[name]:,.1f}" if name in medians else "" for name in programs]
        peers = [medians[name] for name in PEERS if name in medians]
        cells += [f"{medians[name] / max(peers):.2f}" if peers and name in medians else "" for _, name in ratios]
        print(f"| {figure} | " + " | ".join(cells) + " |")
        if figure == "decode":
            rates = [f"{medians[name] * size / 1e9:.1f} ({medians[name] * size / read:.2f})" for name in programs]
            print("| GB/s, share of bandwidth | " + " | ".join(rates + [""] * len(ratios)) + " |")
    sys.stdout.flush()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("models", nargs="+")
    arguments.add_argument("--llama")
    arguments.add_argument("--ik")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    given = arguments.parse_args()
    for model in given.models:
        machine = {}
        programs = {"float32": lambda: tessera(given.tessera, model, ["--exact"], given.rows, machine)}
        if in_blocks(given.tessera, model):
            programs["15 bits"] = lambda: tessera(given.tessera, model, [], given.rows, machine)
            programs["8 bits"] = lambda: tessera(given.tessera, model, ["--fast"], given.rows, machine)
        if given.llama:
            programs["llama.cpp"] = lambda: llama(given.llama, model, given.rows, batched=True)
        if given.ik:
            programs["ik_llama.cpp"] = lambda: llama(given.ik, model, given.rows, batched=False)
        turns = [{name: program() for name, program in programs.items()} for _ in range(given.repeats)]
        table(model, programs, turns, given.rows, machine)


if __name__ == "__main__":
    main()
