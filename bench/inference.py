"""Decoding and prefill of models of 135 million to 7 billion parameters in tessera, llama.cpp and its fork ik_llama.cpp: one table.

    scripts/setup.sh demo minilm peers
    python bench/inference.py build/release/bin/tessera [--models NAME ...] [--rows ROW ...] [--repeats N] [FILE.gguf ...]

Models are made on first use in the cache folder (TESSERA_CACHE, default ~/.cache/tessera); all but the demo have random weights in
released shapes (bench/random_models.py): 135m (SmolLM2, Q4_1), 1b (Llama 3.2 1B), moe (OLMoE, 8 of 64 experts), hybrid (Falcon-H1 1.5B: attention
and Mamba-2), 7b (Llama 2 7B), in Q4_K_M, and encoder (BERT large, by bench/embeddings.py against CTranslate2 and OpenVINO). FILE.gguf
are further models. `1b:Q8_0` is another type. The largest needs 9 GB of memory.

Programs run in turns, alone on the machine, two threads each; a figure is the median of the turns, in tokens/s. Rows: one sequence of
32 generated tokens, a batch of 8, a prompt of 256 tokens; `depth` are 32 tokens after 2,048. Next to each row is the read
bandwidth of the same threads over a buffer of the file's size (512 MiB to 4 GiB) in the same turns. "Share" is the part of it that decoding in default
arithmetic reaches. Ratios are to the faster peer: tessera's default (15-bit activations) and --fast (8 bits, which the peers use). A
peer that cannot read a model has no figure.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

import random_models

THREADS = "2"
TOKENS = {"decode": "32", "8 rows": "32", "prefill 256": "256", "depth": "32"}
ROWS = list(TOKENS)
CACHE = pathlib.Path(os.environ.get("TESSERA_CACHE", pathlib.Path.home() / ".cache/tessera"))
DEMO = CACHE / "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPES = {"1b": "llama-1b", "moe": "olmoe", "hybrid": "falcon-h1", "7b": "llama-7b"}
MODELS = ["135m", *SHAPES, "encoder"]
TITLES = {"135m": "SmolLM2 135M Q4_1", "1b": "Llama 1.07 B", "moe": "8 of 64 experts, 1.3 of 6.9 B", "hybrid": "Mamba-2 hybrid, 1.6 B", "7b": "Llama 6.9 B"}
PEERS = ["llama.cpp", "ik_llama.cpp"]


def output(command, folder=None):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip() or f'exit {done.returncode}'}")
    return done.stdout


def tessera(program, model, flags, row, facts):
    what = "prefill" if row == "prefill 256" else "decode"
    options = {"prefill": "0", "decode": "0"} | {what: TOKENS[row]}
    more = {"8 rows": ["--rows", "8"], "depth": ["--depth", "2048"]}.get(row, [])
    done = json.loads(output([program, "bench", model, "--threads", THREADS, "--repeats", "1", "--json", "--prefill", options["prefill"],
                              "--decode", options["decode"], *more, *flags]))
    found = done["rows"][-1]
    facts["machine"] = f"{done['cpu']}, {done['target']}, {THREADS} threads"
    facts["read"].append(done["read_bytes_per_s"] / 1e9)
    if what == "decode" and not flags:
        facts["share"].append(found["decode_limits"]["read_share"])
    return found[f"{what}_tokens_per_s"]


def llama(folder, model, row):
    folder, model = folder.resolve(), model.resolve()
    if row == "8 rows":
        if not (folder / "llama-batched-bench").exists():
            return None
        text = output([folder / "llama-batched-bench", "-m", model, "-t", THREADS, "-c", "2048", "-npp", "1", "-ntg", TOKENS[row], "-npl", "8"], CACHE)  # where one of them writes a log
        lines = [line for line in text.splitlines() if re.match(r"\|\s*1 \|", line)]
        return float(lines[-1].split("|")[8]) if lines else None  # S_TG
    n_prompt, n_gen = ("256", "0") if row == "prefill 256" else ("0", TOKENS[row])
    more = ["-d", "2048"] if row == "depth" else []
    found = json.loads(output([folder / "llama-bench", "-m", model, "-t", THREADS, "-r", "1", "-o", "json", "-p", n_prompt, "-n", n_gen, *more], CACHE))
    return found[-1]["avg_ts"]


class Refused(dict):
    """Peers that failed on a model, with the reason, printed once."""

    def tried(self, name, model, call):
        if (name, model) in self:
            return None
        try:
            return call()
        except RuntimeError as error:
            self[name, model] = True
            print(f"{name} does not run {model.name}: {str(error).splitlines()[-1]}", file=sys.stderr)
            return None


def read_once(model):
    """So that no program waits for the disk."""
    with open(model, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def measure(given, model, rows, refused):
    """[row]: (tokens/s by program, facts)."""
    read_once(model)
    def fast(row, facts):  # weights that are multiplied in float32 alone have no such form
        return refused.tried(f"--fast ({row})", model, lambda: tessera(given.tessera, model, ["--fast"], row, facts))

    programs = {"default": lambda row, facts: tessera(given.tessera, model, [], row, facts), "--fast": fast}
    for name, folder in zip(PEERS, (given.llama, given.ik)):
        if folder.exists():
            programs[name] = lambda row, facts, name=name, folder=folder: refused.tried(f"{name} ({row})", model, lambda: llama(folder, model, row))
    found = {}
    for row in rows:
        facts, values = {"read": [], "share": []}, {name: [] for name in programs}
        for _ in range(given.repeats):
            for name, program in programs.items():
                value = program(row, facts)
                if value is not None:
                    values[name].append(value)
        found[row] = ({name: statistics.median(some) for name, some in values.items() if some}, facts)
    return found


def figure(value):
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def print_rows(title, size, found):
    for row, (values, facts) in found.items():
        peers = [values[name] for name in PEERS if name in values]
        ratios = [f"{values[name] / max(peers):.2f}" if peers and name in values else "" for name in ("default", "--fast")]
        share = f"{statistics.median(facts['share']):.2f}" if facts["share"] else ""
        cells = [title, f"{size / 1e9:.2f}", row, f"{statistics.median(facts['read']):.0f}", share, *(figure(values.get(name)) for name in ("default", "--fast", *PEERS)), *ratios]
        print("| " + " | ".join(cells) + " |", flush=True)


def model_of(given, name):
    """A row's title and the file."""
    if name.endswith(".gguf"):
        return pathlib.Path(name).stem, pathlib.Path(name)
    shape, _, kind = name.partition(":")
    if shape == "135m":
        return TITLES[shape], DEMO
    if shape not in SHAPES:
        sys.exit(f"unknown model {name}; expected {', '.join(MODELS)} or a GGUF file")
    kind = kind or "Q4_K_M"
    return f"{TITLES[shape]} {kind}", random_models.make(given.tessera, DEMO, CACHE / "bench", SHAPES[shape], kind)


def encoder(given):
    tokenizer = CACHE / "all-minilm-l6-v2"
    folder = random_models.make(given.tessera, tokenizer, CACHE / "bench", "bert-large", "")
    lines = pathlib.Path(__file__).parent.parent / "examples/data/shakespeare.txt"
    python = CACHE / "peers/python/bin/python"
    if not python.exists():
        print("encoder: no peers; run scripts/setup.sh reference peers", file=sys.stderr)
        return
    subprocess.run([python, pathlib.Path(__file__).parent / "embeddings.py", given.tessera, folder, lines, "--limit", "256", "--repeats", str(given.repeats)], check=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("files", nargs="*")
    arguments.add_argument("--models", nargs="*", default=MODELS)
    arguments.add_argument("--llama", type=pathlib.Path, default=CACHE / "peers/build-llama/bin", help="folder of llama-bench")
    arguments.add_argument("--ik", type=pathlib.Path, default=CACHE / "peers/build-ik/bin", help="the same of ik_llama.cpp")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS[:3])
    given = arguments.parse_args()
    refused, machine = Refused(), None
    for name in [*given.models, *given.files]:
        if name == "encoder":
            continue
        title, model = model_of(given, name)
        found = measure(given, model, given.rows, refused)
        now = next(facts["machine"] for _, facts in found.values())
        if now != machine:
            machine = now
            print(f"{machine}; medians of {given.repeats}\n\n| model | GB | row | bandwidth, GB/s | share | " + " | ".join(["default", "--fast", *PEERS]) +
                  " | default to peer | --fast to peer |\n|---|---|---|---|---|---|---|---|---|---|---|")
        print_rows(title, os.path.getsize(model), found)
    if "encoder" in given.models:
        encoder(given)


if __name__ == "__main__":
    main()
