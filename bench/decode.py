"""Decoding of GGUF files by tessera and by llama.cpp, in turn within one run.

    pip install llama-cpp-python==0.3.36   # builds llama.cpp for this machine
    python bench/decode.py build/release/bin/tessera [--repeats N] MODEL.gguf ...

A turn is three times 64 tokens of each, one at a time from an empty context, on two threads, without sampling, of which
the median counts: the first time brings the file into memory. Keys and values are float32 here, half floats there, as
each has them by default: at this depth they hardly count.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import llama_cpp

TOKENS, TIMES, THREADS = 64, 3, 2


class Peer:
    """llama.cpp with one model."""

    def __init__(self, path):
        self.llm = llama_cpp.Llama(path, n_ctx=256, n_threads=THREADS, n_threads_batch=THREADS, verbose=False)

    def once(self):
        """Seconds of all tokens."""
        self.llm.reset()
        begin = time.perf_counter()
        for i in range(TOKENS):
            self.llm.eval([1000 + i])
        return time.perf_counter() - begin

    def rate(self):
        """Tokens a second."""
        return TOKENS / statistics.median(self.once() for _ in range(TIMES))


def rate(tessera, path):
    """Tokens a second of `tessera bench`."""
    command = [tessera, "bench", path, "--prefill", "0", "--decode", str(TOKENS), "--repeats", str(TIMES),
               "--threads", str(THREADS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["rows"][0]["decode_tokens_per_s"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("models", nargs="+")
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    for path in given.models:
        peer = Peer(path)
        turns = [(rate(given.tessera, path), peer.rate()) for _ in range(given.repeats)]
        ours, theirs = (statistics.median(column) for column in zip(*turns))
        ratio = statistics.median(a / b for a, b in turns)
        print(f"decode {path}: {ours:.1f} tokens/s, llama.cpp {theirs:.1f}, ratio {ratio:.2f}, {THREADS} threads, "
              f"medians of {given.repeats}", flush=True)


if __name__ == "__main__":
    main()
