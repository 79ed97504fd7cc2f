"""Runs GGUF files that tessera wrote in llama.cpp, and compares files that both wrote.

    python tools/golden/gguf_check.py PROGRAM tests/golden/families WORK_FOLDER [SMOLLM2.gguf [TEXT]]

Needs llama-cpp-python 0.3.36 and gguf. For every family that writes GGUF: the base case (CASES) as a GGUF file gives the logits of
the goldens in llama.cpp. With a model in blocks: widened to float32 both continue prompts with the same 48 tokens; each
mixture of types has the bytes that llama_model_quantize writes of the same file; and in the same windows of the text
perplexities of llama.cpp and tessera differ by less than 0.3 %.
Prints a line per model; exit code 1 where something differs.
"""

import ctypes
import json
import math
import pathlib
import subprocess
import sys

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

program, families, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
F32 = 0  # ggml's number
MIXTURES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_XS": 30}
# whose perplexity is compared; not Q5_K_M, as llama.cpp loses more than 0.3 % itself where it rounds what q5_1 multiplies
RUN = ("Q8_0", "Q4_K_M", "Q6_K", "Q4_1", "Q4_0")
PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
# what llama.cpp takes for granted of an architecture and a golden does not have
PEER_LACKS = {"olmoe": "as many heads of keys as of queries", "phi3": "a vocabulary of the kind that Phi-3 has"}
# where llama.cpp computes something else with the same file
PEER_DIFFERS = {"phimoe": "norms without their means, and experts weighed as in Mixtral"}
# the case that stands for a family where files, or llama.cpp, do not know what its base case has
CASES = {
    "deepseek_v2": "topk_method",
    "gpt_oss": "implied",
    "llama4_text": "implied",
    "minimax": "released",
    "phimoe": "implied",
    "qwen3_next": "implied",
}
failed = []


# the plain kernels: those that repack weights need instructions that some machines say they have and then refuse
defaults = llama_cpp.llama_model_default_params


def plain_params():
    params = defaults()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = plain_params


def run(*arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def report(name, good, text):
    print(f"{'ok  ' if good else 'FAIL'} {name}: {text}", flush=True)
    if not good:
        failed.append(name)


def loaded(path, **options):
    return llama_cpp.Llama(str(path), verbose=False, logits_all=True, n_threads=2, type_k=F32, type_v=F32, flash_attn=False, **options)


def logits(model, ids):
    model.reset()
    model.eval(list(map(int, ids)))
    return np.array(model.scores[: len(ids)])


def family(name):
    case = CASES.get(name, "base")
    base = families / name / case
    facts = json.loads((base / "case.json").read_text())
    folder = work / name
    folder.mkdir(parents=True)
    for file, source in (("config.json", base), ("model.safetensors", families / name / facts["weights"])):
        (folder / file).symlink_to((source / file).resolve())
    out = work / f"{name}.gguf"
    tokenizer = families / name / "gguf" / f"{case}.gguf"
    run("convert", folder, "--to", "gguf", "--tokenizer", tokenizer, "--out", out)
    io = load_file(base / "io.safetensors")
    ids, wanted = io["input_ids"], io["logits"]
    mask = io.get("attention_mask", np.ones_like(ids))
    model = loaded(out, n_ctx=64)
    worst = 0.0
    for row in range(ids.shape[0]):
        real = mask[row].astype(bool)  # what is left out lies at the ends
        got = logits(model, ids[row][real])
        worst = max(worst, np.abs(got - wanted[row][real]).max() / np.abs(wanted).max())
    why = f": {PEER_DIFFERS[name]}" if name in PEER_DIFFERS else ""
    report(name, (worst < 2e-3) != (name in PEER_DIFFERS), f"logits differ by {worst:.1e} of the largest{why}")


def tensors(path):
    return {t.name: (int(t.tensor_type), t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}


def perplexity(model, ids, window):
    """As tessera eval: windows that share a token."""
    total, count = 0.0, 0
    for begin in range(0, len(ids) - 1, window - 1):
        part = ids[begin : begin + window]
        if len(part) < 2:
            break
        rows = logits(model, part)[:-1].astype(np.float64)
        rows -= rows.max(-1, keepdims=True)
        losses = np.log(np.exp(rows).sum(-1)) - rows[np.arange(len(part) - 1), part[1:]]
        total, count = total + losses.sum(), count + len(losses)
    return math.exp(total / count)


def real(source, text):
    whole = work / "whole.gguf"
    run("convert", source, "--to", "gguf", "--float32", "--out", whole)
    model = loaded(whole, n_ctx=512)
    for prompt in PROMPTS:
        ids = model.tokenize(prompt.encode(), add_bos=False, special=False)
        mine = json.loads(run("generate", whole, "--prompt", prompt, "--max-new-tokens", 48, "--temperature", 0, "--ignore-eos", "--json"))
        mine = mine["token_ids"]
        theirs = []
        model.reset()
        model.eval(ids)
        for _ in range(48):
            theirs.append(int(model.scores[model.n_tokens - 1].argmax()))
            model.eval([theirs[-1]])
        report(f"greedy {prompt!r}", mine[-48:] == theirs, "48 tokens")
    del model
    ids = None
    for name, number in MIXTURES.items():
        mine, theirs = work / f"{name}.gguf", work / f"{name}-peer.gguf"
        run("quantize", whole, "--type", name, "--out", mine)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.nthread = number, 2
        llama_cpp.llama_model_quantize(str(whole).encode(), str(theirs).encode(), ctypes.byref(params))
        a, b = tensors(mine), tensors(theirs)
        differ = [n for n in b if a.get(n) != b[n]]
        report(f"{name} bytes", not differ and a.keys() == b.keys(), f"{len(b)} tensors, {len(differ)} differ {differ[:2]}")
        theirs.unlink()
        if text and name in RUN:
            words = work / "text.txt"
            words.write_text(pathlib.Path(text).read_text()[:12000])
            own = json.loads(run("eval", mine, "--text", words, "--window", 512, "--max-tokens", 2048, "--kv-type", "f32", "--json"))["perplexity"]
            model = loaded(mine, n_ctx=512)
            ids = model.tokenize(words.read_text().encode(), add_bos=False, special=False)[:2048]
            peer = perplexity(model, np.array(ids), 512)
            del model
            report(f"{name} perplexity", abs(own / peer - 1) < 3e-3, f"{own:.4f}, llama.cpp {peer:.4f}")
        mine.unlink()


for folder in sorted(families.iterdir()):
    if (folder / "gguf" / f"{CASES.get(folder.name, 'base')}.gguf").exists():
        try:
            family(folder.name)
        except (RuntimeError, ValueError) as error:
            said = str(error).splitlines()[-1]
            # families say themselves that they are not written
            report(folder.name, "cannot be written" in said or folder.name in PEER_LACKS, PEER_LACKS.get(folder.name, said))
if len(sys.argv) > 4:
    real(sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else "")
sys.exit(1 if failed else 0)
