"""Sentences a second: tessera embed beside CTranslate2 with the same BERT, in turn within one run.

    pip install ctranslate2 transformers torch tokenizers numpy
    python bench/embeddings.py build/release/bin/tessera MODEL_FOLDER LINES.txt [--repeats N] [--int8 MODEL_Q8_0]

Lines are texts to embed; --limit takes the first ones. Ours is the whole program, its start, tokenising and writing
included; of CTranslate2 what follows the start: tokenising, batches of 32 sorted by length, mean pooling. Two threads.
The largest difference between both programs' vectors of length 1 stands behind the figures.
"""
import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import ctranslate2
import numpy
import tokenizers

THREADS, BATCH = 2, 32


class Peer:
    def __init__(self, folder, kind, place):
        out = place / f"ct2-{kind}"
        converter = ctranslate2.converters.TransformersConverter(folder)
        converter.convert(str(out), quantization=kind)
        self.encoder = ctranslate2.Encoder(str(out), device="cpu", intra_threads=THREADS, compute_type=kind)
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def vectors(self, lines):
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(lines)]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        out = [None] * len(ids)
        for first in range(0, len(order), BATCH):
            some = order[first:first + BATCH]
            hidden = numpy.array(self.encoder.forward_batch([ids[i] for i in some]).last_hidden_state)
            for row, i in enumerate(some):
                mean = hidden[row, :len(ids[i])].mean(axis=0)
                out[i] = mean / numpy.linalg.norm(mean)
        return numpy.stack(out)


def ours(tessera, model, lines, place, flags):
    text, output = place / "lines.txt", place / "vectors.npy"
    text.write_text("\n".join(lines) + "\n")
    command = [tessera, "embed", model, "--file", str(text), "--output", str(output), "--threads", str(THREADS), "--max-tokens", "256"]
    done = subprocess.run(command + flags, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return numpy.load(output)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("folder")
    arguments.add_argument("lines")
    arguments.add_argument("--limit", type=int, default=4000)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--int8", help="the same model with Q8_0 weights, beside CTranslate2's int8")
    given = arguments.parse_args()
    lines = [line for line in pathlib.Path(given.lines).read_text(errors="replace").splitlines() if line.strip()][:given.limit]
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        rows = [("embeddings/float32", given.folder, [], "float32")]
        if given.int8:
            rows.append(("embeddings/int8", given.int8, ["--fast"], "int8"))
        for row, model, flags, kind in rows:
            peer = Peer(given.folder, kind, place)
            turns = []
            for _ in range(given.repeats):
                begin = time.perf_counter()
                a = ours(given.tessera, model, lines, place, flags)
                middle = time.perf_counter()
                b = peer.vectors(lines)
                end = time.perf_counter()
                turns.append((len(lines) / (middle - begin), len(lines) / (end - middle)))
            mine, theirs = (statistics.median(column) for column in zip(*turns))
            print(f"{row}: {len(lines)} sentences, tessera {mine:.0f} a second, CTranslate2 {ctranslate2.__version__} {theirs:.0f}, "
                  f"ratio {mine / theirs:.2f}, {THREADS} threads, medians of {given.repeats}; vectors differ by {abs(a - b).max():.1e}",
                  flush=True)


if __name__ == "__main__":
    main()
