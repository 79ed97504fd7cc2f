"""Runs GGUF files that tessera wrote in llama.cpp, and compares files that both wrote.

    python tools/golden/gguf_check.py PROGRAM tests/golden/families WORK_FOLDER [SMOLLM2.gguf [TEXT]]

Needs llama-cpp-python 0.3.36 and gguf. For every family that writes GGUF: the base case (CASES) as a GGUF file gives the logits of
the goldens in llama.cpp; of encoders the hidden state of every token, and of classifiers their scores. With a model in blocks: widened to float32 both continue prompts with the same 48 tokens; each
mixture of types has the bytes that llama_model_quantize writes of the same file; and in the same windows of the text
perplexities of llama.cpp and tessera differ by less than 0.3 %; and a text is cut alike by every pre-tokenizer.
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
from safetensors.numpy import load_file, save_file

program, families, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
F32 = 0  # ggml's number
MIXTURES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_XS": 30}
# whose perplexity is compared; not Q5_K_M, as llama.cpp loses more than 0.3 % itself where it rounds what q5_1 multiplies
RUN = ("Q8_0", "Q4_K_M", "Q6_K", "Q4_1", "Q4_0")
PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
# what llama.cpp takes for granted of an architecture and a golden does not have
PEER_LACKS = {"olmoe": "as many heads of keys as of queries", "phi3": "a vocabulary of the kind that Phi-3 has"}
# where llama.cpp computes something else with the same file
PEER_DIFFERS = {"gemma3n_text": "deviations of a row of n gates divided by n - 1, which counts where n is small", "mellum": "sliding layers rotated by the base of the others", "phimoe": "norms without their means, and experts weighed as in Mixtral"}
# the cases that stand for a family where files, or llama.cpp, do not know what its base case has, or where there is more to see
CASES = {
    "bamba": ("implied", "implied_partial"),
    "deepseek_v2": ("topk_method",),
    "falcon_h1": ("implied", "implied_factors"),
    "falcon_mamba": ("implied",),
    "gemma3n_text": ("implied", "implied_linear"),
    "gemma4_text": ("base", "dense", "final_logit_softcapping", "k_eq_v", "moe"),
    "gpt_oss": ("implied",),
    "jamba": ("base", "experts"),
    "laguna": ("layer_types",),
    "llama4_text": ("implied",),
    "mamba2": ("implied",),
    "mellum": ("mlp_layer_types",),
    "minimax": ("released",),
    "nemotron_h": ("unclamped", "unclamped_experts", "unclamped_latent"),
    "phimoe": ("implied",),
    "qwen2_moe": ("mlp_only_layers",),
    "qwen3_moe": ("implied",),
    "qwen3_5_moe_text": ("base", "modules"),
    "qwen3_5_text": ("base", "modules"),
    "qwen3_next": ("implied", "modules"),
    "rwkv_cpp": ("rwkv6", "rwkv7"),
    "t5": ("released", "released_v1_1"),
}
# encoders, by cases: llama.cpp gives hidden states, or by its pooling "rank" what a classifier says of the first token
ENCODERS = {"bert": ("body", "named_classes"), "roberta": ("body", "classifier")}
NONE, RANK = 0, 4  # llama.cpp's poolings
failed = []


# the plain kernels: those that repack weights need instructions that some machines say they have and then refuse
defaults = llama_cpp.llama_model_default_params


def plain_params():
    params = defaults()
    params.use_extra_bufts = False
    return params


llama_cpp.llama_cpp.llama_model_default_params = llama_cpp.llama_model_default_params = plain_params


@llama_cpp.llama_log_callback
def say_nothing(level, text, data):
    pass


llama_cpp.llama_log_set(say_nothing, ctypes.c_void_p(0))


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


def pair_logits(path, source, target):
    """Of an encoder and a decoder, which the class Llama does not run."""

    def batch_of(ids):
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        return batch

    model = llama_cpp.llama_model_load_from_file(str(path).encode(), plain_params())
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.type_k, params.type_v, params.flash_attn_type = 64, F32, F32, 0
    context = llama_cpp.llama_init_from_model(model, params)
    for step, ids in ((llama_cpp.llama_encode, source), (llama_cpp.llama_decode, target)):
        if step(context, batch_of(ids)) != 0:
            raise RuntimeError(f"{step.__name__} fails")
    found = [np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (size,)).copy() for i in range(len(target))]
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.array(found)


def encoded(path, ids, shape, pooling):
    model = llama_cpp.Llama(str(path), verbose=False, embedding=True, pooling_type=pooling, n_threads=2, flash_attn=False, n_ctx=64)
    model._batch.reset()
    model._batch.add_sequence(list(map(int, ids)), 0, True)
    model._ctx.decode(model._batch)
    context = model._ctx.ctx
    numbers = llama_cpp.llama_get_embeddings(context) if pooling == NONE else llama_cpp.llama_get_embeddings_seq(context, 0)
    return np.array(numbers[: int(np.prod(shape))]).reshape(shape)


def written(name, case):
    """A case as tessera writes it, with its inputs and outputs."""
    base = families / name / case
    facts = json.loads((base / "case.json").read_text())
    folder = work / f"{name}-{case}"
    if (base / "config.json").exists():
        folder.mkdir(parents=True)
        for file, source in (("config.json", base), ("model.safetensors", families / name / facts["weights"])):
            (folder / file).symlink_to((source / file).resolve())
    else:  # files of llama.cpp's own converter, whose spec and tensors are written again
        run("convert", families / name / "gguf" / f"{case}.gguf", "--out", folder)
    out = work / f"{name}-{case}.gguf"
    tokenizer = min((families / name / "gguf").glob("*.gguf"))
    run("convert", folder, "--to", "gguf", "--tokenizer", tokenizer, "--out", out)
    return out, load_file(families / name / facts["io"] / "io.safetensors")


def report_worst(name, worst, what):
    report(name, worst < 2e-3, f"{what} differ by {worst:.1e} of the largest")


def encoder(name, case):
    """Against tessera with the folder: goldens have tokens of two types, and llama.cpp takes all for the first one."""
    path, io = written(name, case)
    ids = io["input_ids"]
    mask = io.get("attention_mask", np.ones_like(ids))
    given, result = work / f"{name}-{case}.in.safetensors", work / f"{name}-{case}.out.safetensors"
    save_file({"input_ids": ids, "attention_mask": mask}, given)
    run("forward", work / f"{name}-{case}", "--input", given, "--output", result)
    out = load_file(result)
    scores = "logits" in out
    wanted = out["logits" if scores else "last_hidden_state"]
    worst = 0.0
    for row, real in enumerate(mask.astype(bool)):
        want = wanted[row] if scores else wanted[row][real]
        got = encoded(path, ids[row][real], want.shape, RANK if scores else NONE)
        worst = max(worst, np.abs(got - want).max() / np.abs(wanted).max())
    report_worst(f"{name}/{case}", worst, "scores" if scores else "hidden states")


def family(name, case):
    path, io = written(name, case)
    ids, wanted = io["input_ids"], io["logits"]
    mask = io.get("attention_mask", np.ones_like(ids))
    pair = "decoder_input_ids" in io
    model = None if pair else loaded(path, n_ctx=64)
    worst = 0.0
    for row in range(ids.shape[0]):
        real = mask[row].astype(bool)  # what is left out lies at the ends
        if pair:
            target = io["decoder_attention_mask"][row].astype(bool)
            got, right = pair_logits(path, ids[row][real], io["decoder_input_ids"][row][target]), wanted[row][target]
        else:
            got, right = logits(model, ids[row][real]), wanted[row][real]
        worst = max(worst, np.abs(got - right).max() / np.abs(wanted).max())
    why = f": {PEER_DIFFERS[name]}" if name in PEER_DIFFERS else ""
    report(f"{name}/{case}", (worst < 2e-3) != (name in PEER_DIFFERS), f"logits differ by {worst:.1e} of the largest{why}")


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


def pre_tokenizers(source):
    """Texts are cut as llama.cpp cuts them, whatever pre-tokenizer a file names. Two differ where llama.cpp does not keep to the
    model's own pattern: classes of cased letters in youtu, ends of words in tiny_aya."""
    reader = gguf.GGUFReader(source)
    lists = {key: reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges")}
    table = json.loads(pathlib.Path("src/tessera/text/tokenizer_files/gguf_tokenizers.json").read_text())
    golden = json.loads(pathlib.Path("tests/golden/text/gguf_pre.json").read_text())["text"]
    for name in (name for entry in table["pre"] for name in entry["names"]):
        if name in ("youtu", "tiny_aya", "cohere2moe"):
            continue
        path = work / "pre.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(name)
        writer.add_token_list(lists["tokens"])
        writer.add_token_types(lists["token_type"])
        writer.add_token_merges(lists["merges"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False).tokenize(golden.encode(), add_bos=False, special=False)
        mine = json.loads(run("tokenize", path, "--text", golden, "--no-special", "--json"))["ids"]
        report(f"pre {name}", mine == theirs, f"{len(theirs)} tokens")


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
    if folder.name in ENCODERS:
        continue
    for case in CASES.get(folder.name, ("base",)) if (folder / "gguf").exists() else ():
        try:
            family(folder.name, case)
        except (RuntimeError, ValueError) as error:
            said = str(error).splitlines()[-1]
            # families say themselves that they are not written
            report(folder.name, "cannot be written" in said or folder.name in PEER_LACKS, PEER_LACKS.get(folder.name, said))
for name, cases in ENCODERS.items():
    for case in cases:
        encoder(name, case)
if len(sys.argv) > 4:
    pre_tokenizers(sys.argv[4])
    real(sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else "")
sys.exit(1 if failed else 0)
