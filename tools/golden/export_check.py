"""Loads Hugging Face folders that tessera wrote with transformers and compares their results with the goldens.

    python tools/golden/export_check.py PROGRAM tests/golden/families WORK_FOLDER

For every family: base case -> tessera folder -> Hugging Face folder; the same of the cases of UNSAID; and every GGUF
case -> Hugging Face folder.
Prints a line per model; exit code 1 when a result differs by more than 1e-4 of the largest.
"""
import json
import pathlib
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors.torch import load_file

import released_models

program, families, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])


def run(*arguments):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())


def released(folder, reference):
    """The model of a format that transformers has no class for, where the story names one; else None."""
    for name, kind in released_models.CLASSES.items():
        if f", {name}, " in reference:
            return kind.from_files(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"))
    return None


def loaded(folder):
    """Of the class that the folder itself names."""
    config = transformers.AutoConfig.from_pretrained(folder)
    (architecture,) = config.architectures
    model, info = getattr(transformers, architecture).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    # a buffer that the class makes by itself may be missing
    info["missing_keys"] = info["missing_keys"] & {name for name, _ in model.named_parameters()}
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if wrong:  # it would be drawn at random, or left out
        raise RuntimeError(f"transformers does not take every tensor: {wrong}")
    return model.eval()


def difference(folder, io, reference):
    """The largest difference of what counts."""
    model = released(folder, reference) or loaded(folder)
    inputs = {key: io[key] for key in INPUTS if key in io}
    model.config.use_cache = False  # there is none for models without attention
    with torch.no_grad():
        logits = model(**inputs).logits
    mask = next((io[key] for key in ("decoder_attention_mask", "attention_mask") if key in io), None)
    real = torch.ones(logits.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    return ((logits - io["logits"])[real].abs().max() / io["logits"][real].abs().max()).item()


INPUTS = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "token_type_ids",
    "global_attention_mask",
    "decoder_input_ids",
    "decoder_attention_mask",
    "input_features",
    "pixel_values",
)

# models that leave keys of their class unsaid, or have a tensor more than the base
UNSAID = {
    "deberta_v2": ["conv_kernel_size"],
    "vit": ["qkv_bias", "patch_size"],
    "bamba": ["no_attention", "all_attention", "time_step_limit_open"],
    "falcon_h1": ["time_step_limit_open"],
    "jamba": ["no_attention", "all_attention"],
    "mamba2": ["time_step_limit_open"],
    "qwen3_next": ["no_attention", "all_attention"],
}


def source_of(family, name):
    """A folder of the case's config and the weights it names."""
    folder = work / family.name / name / "source"
    folder.mkdir(parents=True)
    shutil.copyfile(family / name / "config.json", folder / "config.json")
    weights = story_of(family, name)["weights"]
    shutil.copyfile(family / weights / "model.safetensors", folder / "model.safetensors")
    return folder


def story_of(family, name):
    return json.loads((family / name / "case.json").read_text().replace(" Infinity", " 0"))


failed = 0
for family in sorted(p for p in families.iterdir() if p.is_dir()):
    cases = [("base", family / "base")] + [(p.stem + "_gguf", p) for p in sorted((family / "gguf").glob("*.gguf"))]
    cases += [(name, source_of(family, name)) for name in UNSAID.get(family.name, [])]
    for name, source in cases:
        label = f"{family.name}/{name}"
        try:
            story = story_of(family, name.removesuffix("_gguf"))
            ours, theirs = work / family.name / name / "ours", work / family.name / name / "hf"
            run("convert", source, "--out", ours)
            run("convert", ours, "--to", "hf", "--out", theirs)
            error = difference(theirs, load_file(family / story["io"] / "io.safetensors"), story["reference"])
            good = error < 1e-4
            print(f"{label:<40} {error:.1e} {'ok' if good else 'DIFFERS'}")
        except Exception as problem:  # one line per model, whatever went wrong
            good = False
            print(f"{label:<40} FAILED: {str(problem).splitlines()[0][:200]}")
        failed += not good
print(f"{failed} failed")
sys.exit(1 if failed else 0)
