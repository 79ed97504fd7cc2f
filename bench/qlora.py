"""QLoRA against LoRA: training steps with a quantized base model and with the same numbers in float32, in turns.

    python bench/qlora.py build/release/bin/tessera BASE.gguf [--repeats N] [--steps N]

Steps of 8 sequences of 256 tokens of examples/data/shakespeare.txt, LoRA of rank 8, two threads; the first step of a run is not counted.
The aim is at most 1.1.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

TEXT = pathlib.Path(__file__).parent.parent / "examples/data/shakespeare.txt"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)


def seconds_of_a_step(tessera, base, steps, out):
    """Median over the steps of one run."""
    shutil.rmtree(out, ignore_errors=True)
    run(tessera, "finetune", base, "--data", TEXT, "--task", "text", "--lora", 8, "--steps", steps, "--batch", 8, "--length", 256, "--threads", 2,
        "--valid-fraction", 0, "--out", out)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_s"] for line in lines if "tokens_per_s" in line]
    return 8 * 256 / statistics.median(rates[1:])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("base", type=pathlib.Path)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=5)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        run(given.tessera, "convert", given.base, "--to", "hf", "--dtype", "float32", "--out", work / "float32")
        turns = [(seconds_of_a_step(given.tessera, given.base, given.steps, work / "run"), seconds_of_a_step(given.tessera, work / "float32", given.steps, work / "run"))
                 for _ in range(given.repeats)]
    ours, plain = (statistics.median(column) for column in zip(*turns))
    print(f"{given.base.name}: a step {ours:.2f} s, on float32 {plain:.2f} s, ratio {ours / plain:.2f}, 2 threads, medians of {given.repeats} (aim: at most 1.1)")


if __name__ == "__main__":
    main()
