"""Files of torch.save that PyTorch wrote, read by tessera; folders that tessera wrote, opened by transformers without a warning.

    python tools/golden/containers_check.py PROGRAM tests/golden/families WORK_FOLDER

Models of every kind of name: pytorch_model.bin, the form before archives, shards by an index, a Lightning checkpoint with
optimizer states, DataParallel's prefix, a base class. Each becomes a Hugging Face folder in each type of --dtype, in shards, whose
logits are the original's. Prints a line per case; exit code 1 when one fails.
"""
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import warnings

import torch
import transformers
from safetensors.torch import load_file

program, families, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
failed = 0


class Loud(logging.Handler):
    """Whatever transformers warns of."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


loud = Loud()
transformers.logging.get_logger("transformers").addHandler(loud)


def run(*arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())


def opened(folder, ids):
    """Logits by the class that the folder names; a warning is an error."""
    loud.said.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
        model, info = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    loose = {key: value for key, value in info.items() if value}
    if loose or loud.said:
        raise RuntimeError(f"transformers says: {loose} {loud.said}")
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def shards(state, folder):
    names = list(state)
    index = {}
    for k, part in enumerate((names[::2], names[1::2])):
        file = f"pytorch_model-{k + 1:05}-of-00002.bin"
        torch.save({name: state[name] for name in part}, folder / file)
        index.update(dict.fromkeys(part, file))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def single(name, what, **options):
    def write(state, folder):
        torch.save(what(state), folder / name, **options)
        return folder if name == "pytorch_model.bin" else folder / name

    return write


def lightning(state):
    return {"epoch": 1, "global_step": 7, "pytorch-lightning_version": "2.5.0",
            "state_dict": {"model." + k: v for k, v in state.items()},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]}]}


WAYS = {
    "pytorch_model.bin": single("pytorch_model.bin", lambda s: s),
    "older form": single("pytorch_model.bin", lambda s: s, _use_new_zipfile_serialization=False),
    "shards": shards,
    "Lightning": single("last.ckpt", lightning),
    "DataParallel": single("model.pt", lambda s: {"model": {"module." + k: v for k, v in s.items()}, "step": 3}),
    "transposed": single("pytorch_model.bin", lambda s: {k: v.t().contiguous().t() if v.dim() == 2 else v for k, v in s.items()}),
}


def check(family, way, write, dtype, tolerance):
    global failed
    folder, out = work / family / way / "in", work / family / way / "out"
    for path in (folder, out):
        shutil.rmtree(path, True)
    folder.mkdir(parents=True)
    try:
        shutil.copyfile(families / family / "base/config.json", folder / "config.json")
        state = load_file(families / family / "base/model.safetensors")
        io = load_file(families / family / "base/io.safetensors")
        source = write(state, folder)
        run("convert", source, "--to", "hf", "--dtype", dtype, "--shard-size", "20KB", "--out", out)
        if not (out / "model.safetensors.index.json").is_file():
            raise RuntimeError("one file; expected shards of 20 KB")
        if not (out / "README.md").read_text().startswith("---\n"):
            raise RuntimeError("no model card")
        kind = getattr(torch, dtype)
        for file in out.glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                if tensor.is_floating_point() and tensor.dtype != kind:
                    raise RuntimeError(f"{name} is {tensor.dtype}")
        logits = opened(out, io["input_ids"])
        error = ((logits - io["logits"]).abs().max() / io["logits"].abs().max()).item()
        good, said = error < tolerance, f"{error:.1e}"
    except Exception as problem:  # one line per case, whatever went wrong
        good, said = False, str(problem).splitlines()[0][:250]
    print(f"{family + ', ' + way + ', ' + dtype:<50} {said} {'ok' if good else 'FAILED'}")
    failed += not good


for family in ("llama", "gpt2", "mixtral", "qwen3"):
    for way, write in WAYS.items():
        check(family, way, write, "float32", 1e-5)
check("llama", "pytorch_model.bin", WAYS["pytorch_model.bin"], "bfloat16", 5e-2)
check("llama", "pytorch_model.bin", WAYS["pytorch_model.bin"], "float16", 5e-3)
print(f"{failed} failed")
sys.exit(1 if failed else 0)
