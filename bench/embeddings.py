"""Sentences a second: tessera embed beside CTranslate2 with the same BERT, in turn within one run.

    pip install ctranslate2 transformers torch tokenizers numpy
    python bench/embeddings.py build/release/bin/tessera MODEL_FOLDER LINES.txt [--repeats N] [--limit N]

Lines are texts to embed; --limit takes the first ones. Columns: tessera in float32, with Q8_0 weights and inputs of 15
bits (--blocks q8_0) and of 8 (--fast as well); CTranslate2 in float32 and int8. Ours is the whole program, its start,
tokenising and writing included; of CTranslate2 what follows the start: tokenising, batches of 32 sorted by length, mean
pooling. Two threads. Below stands what each column's vectors keep of CTranslate2's float32 ones: the mean and the lowest
cosine, and Spearman's rank correlation of the similarities of neighbouring lines.
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


def ranks(x):
    out = numpy.empty(len(x))
    out[numpy.argsort(x)] = numpy.arange(len(x))
    return out


def kept(vectors, reference):
    """Mean and lowest cosine with the reference's rows; Spearman's correlation of neighbours' similarities."""
    cosines = (vectors * reference).sum(axis=1)
    near, wanted = ((x[1:] * x[:-1]).sum(axis=1) for x in (vectors, reference))
    return cosines.mean(), cosines.min(), numpy.corrcoef(ranks(near), ranks(wanted))[0, 1]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("tessera")
    arguments.add_argument("folder")
    arguments.add_argument("lines")
    arguments.add_argument("--limit", type=int, default=4000)
    arguments.add_argument("--repeats", type=int, default=5)
    given = arguments.parse_args()
    lines = [line for line in pathlib.Path(given.lines).read_text(errors="replace").splitlines() if line.strip()][:given.limit]
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        peers = {kind: Peer(given.folder, kind, place) for kind in ("float32", "int8")}
        programs = {title: (lambda flags=flags: ours(given.tessera, given.folder, lines, place, flags))
                    for title, flags in (("float32", []), ("15 bits", ["--blocks", "q8_0"]), ("8 bits", ["--blocks", "q8_0", "--fast"]))}
        programs |= {f"CTranslate2 {kind}": (lambda peer=peer: peer.vectors(lines)) for kind, peer in peers.items()}
        seconds, vectors = {title: [] for title in programs}, {}
        for _ in range(given.repeats):
            for title, program in programs.items():
                begin = time.perf_counter()
                vectors[title] = program()
                seconds[title].append(time.perf_counter() - begin)
    print(f"{len(lines)} sentences, CTranslate2 {ctranslate2.__version__}, {THREADS} threads, medians of {given.repeats}\n")
    print("| | " + " | ".join(programs) + " |\n|---" + "|---" * len(programs) + "|")
    print("| sentences a second | " + " | ".join(f"{len(lines) / statistics.median(seconds[title]):.0f}" for title in programs) + " |")
    facts = {title: kept(vectors[title], vectors["CTranslate2 float32"]) for title in programs}
    for i, fact in enumerate(("mean cosine", "lowest cosine", "Spearman of similarities")):
        print(f"| {fact} | " + " | ".join(f"{facts[title][i]:.6f}" for title in programs) + " |", flush=True)


if __name__ == "__main__":
    main()
