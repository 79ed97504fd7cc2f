"""Sentence embeddings per second of a BERT in tessera, CTranslate2 and OpenVINO, in turns within one run.

    scripts/setup.sh reference peers        # PYTHON = ~/.cache/tessera/peers/python/bin/python
    PYTHON bench/embeddings.py build/release/bin/tessera MODEL_FOLDER LINES.txt [--repeats N] [--limit N]

LINES.txt has a text per line; --limit takes the first ones. Columns: tessera in float32, with Q8_0 weights and activations of 15
bits (--blocks q8_0) and of 8 bits (--fast as well); CTranslate2 in float32 and int8; OpenVINO, where installed, in float32 and bf16.
Tessera's time is that of the whole program with start, tokenization and writing; the peers' is without their start: tokenization,
batches of 32 sorted by length, mean pooling. Two threads. The rows below compare each column's embeddings with CTranslate2's float32
ones: mean and lowest cosine, Spearman's rank correlation of the similarities of neighbouring lines.
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

try:
    import openvino
except ImportError:
    openvino = None

THREADS, BATCH = 2, 32


class Peer:
    def __init__(self, folder):
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def hidden(self, ids):
        """[len(ids), longest, width] of lists of token ids."""
        raise NotImplementedError

    def vectors(self, lines):
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(lines)]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        out = [None] * len(ids)
        for first in range(0, len(order), BATCH):
            some = order[first:first + BATCH]
            hidden = self.hidden([ids[i] for i in some])
            for row, i in enumerate(some):
                mean = hidden[row, :len(ids[i])].mean(axis=0)
                out[i] = mean / numpy.linalg.norm(mean)
        return numpy.stack(out)


class CTranslate2(Peer):
    def __init__(self, folder, kind, place):
        super().__init__(folder)
        out = place / f"ct2-{kind}"
        ctranslate2.converters.TransformersConverter(folder).convert(str(out), quantization=kind)
        self.encoder = ctranslate2.Encoder(str(out), device="cpu", intra_threads=THREADS, compute_type=kind)

    def hidden(self, ids):
        return numpy.array(self.encoder.forward_batch(ids).last_hidden_state)


class OpenVino(Peer):
    def __init__(self, folder, kind):
        super().__init__(folder)
        import torch
        import transformers
        model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        example = {"input_ids": torch.ones(2, 8, dtype=torch.int64), "attention_mask": torch.ones(2, 8, dtype=torch.int64)}
        with torch.no_grad():
            converted = openvino.convert_model(model, example_input=example)
        self.model = openvino.Core().compile_model(converted, "CPU", {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": kind})

    def hidden(self, ids):
        longest = max(map(len, ids))
        tokens, mask = (numpy.zeros((len(ids), longest), dtype=numpy.int64) for _ in range(2))
        for row, some in enumerate(ids):
            tokens[row, :len(some)], mask[row, :len(some)] = some, 1
        return self.model({"input_ids": tokens, "attention_mask": mask})[0]


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
        peers = {f"CTranslate2 {kind}": CTranslate2(given.folder, kind, place) for kind in ("float32", "int8")}
        if openvino is not None:
            peers |= {f"OpenVINO {kind}": OpenVino(given.folder, kind) for kind in ("f32", "bf16")}
        programs = {title: (lambda flags=flags: ours(given.tessera, given.folder, lines, place, flags))
                    for title, flags in (("float32", []), ("15 bits", ["--blocks", "q8_0"]), ("8 bits", ["--blocks", "q8_0", "--fast"]))}
        programs |= {title: (lambda peer=peer: peer.vectors(lines)) for title, peer in peers.items()}
        seconds, vectors = {title: [] for title in programs}, {}
        for _ in range(given.repeats):
            for title, program in programs.items():
                begin = time.perf_counter()
                vectors[title] = program()
                seconds[title].append(time.perf_counter() - begin)
    versions = f"CTranslate2 {ctranslate2.__version__}" + (f", OpenVINO {openvino.__version__.split('-')[0]}" if openvino else "")
    print(f"{pathlib.Path(given.folder).name}, {len(lines)} sentences, {versions}, {THREADS} threads, medians of {given.repeats}\n")
    print("| | " + " | ".join(programs) + " |\n|---" + "|---" * len(programs) + "|")
    print("| sentences a second | " + " | ".join(f"{len(lines) / statistics.median(seconds[title]):.0f}" for title in programs) + " |")
    facts = {title: kept(vectors[title], vectors["CTranslate2 float32"]) for title in programs}
    for i, fact in enumerate(("mean cosine", "lowest cosine", "Spearman of similarities")):
        print(f"| {fact} | " + " | ".join(f"{facts[title][i]:.6f}" for title in programs) + " |", flush=True)


if __name__ == "__main__":
    main()
