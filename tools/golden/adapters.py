"""Goldens of adapters in PEFT's files, and the way back: PEFT reads what tessera wrote.

    python tools/golden/adapters.py --out tests/golden/adapters
    python tools/golden/adapters.py --check FOLDER --case gpt2 --io OUTPUT.safetensors

The bases are the tiny models of tests/golden/families (NAME/base), NAME up to the first "-". A case is a folder with
adapter_config.json, adapter_model.safetensors and io.safetensors (input_ids, logits with the
adapter, base: the logits without). --check loads a folder that tessera wrote beside the base of its
case and compares the logits of the case's input_ids with those that `tessera forward` wrote.
Needs torch, transformers, peft.
"""

import argparse
import json
import pathlib

import torch
import transformers
from peft import IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"
FAMILIES, ADAPTERS = GOLDEN / "families", GOLDEN / "adapters"
TOLERANCE = 1e-4
MOVED = 0.05  # what an adapter must change at least, or a test of it could not fail

CASES = {
    # every linear of the layers, ranks and factors of their own
    "llama": dict(
        r=4,
        lora_alpha=6,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"q_proj": 3, "layers.1.mlp.down_proj": 2},
        alpha_pattern={"layers.0.self_attn.v_proj": 9},
    ),
    # the factor alpha / sqrt(r)
    "qwen2": dict(r=5, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_rslora=True),
    # matrices stored (in, out), and three in one
    "gpt2": dict(r=3, lora_alpha=5, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    # lengths of rows, beside biases; an expression among the factors
    "qwen2-dora": dict(
        r=3,
        lora_alpha=4,
        target_modules=["q_proj", "v_proj", "down_proj"],
        use_dora=True,
        alpha_pattern={"layers\\.[01]\\..*v_proj": 7},
    ),
    "gpt2-dora": dict(r=2, lora_alpha=3, target_modules=["c_attn", "c_fc"], use_dora=True, fan_in_fan_out=True),
    # a head that is trained whole
    "llama-head": dict(r=2, lora_alpha=2, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "qwen2-ia3": dict(peft=IA3Config, target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "gpt2-ia3": dict(peft=IA3Config, target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"]),
    "llama-prefix": dict(peft=PrefixTuningConfig, num_virtual_tokens=3),
    "gpt2-prefix": dict(peft=PrefixTuningConfig, num_virtual_tokens=2),
    "llama-prompt": dict(peft=PromptTuningConfig, num_virtual_tokens=4),
    "gpt2-prompt": dict(peft=PromptTuningConfig, num_virtual_tokens=3),
}


def config_of(name):
    options = dict(CASES[name])
    return options.pop("peft", LoraConfig)(task_type="CAUSAL_LM", **options)


def base_of(name):
    return transformers.AutoModelForCausalLM.from_pretrained(
        FAMILIES / name.split("-")[0] / "base", dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits_of(model, ids):
    with torch.no_grad():
        # those of virtual tokens stand first
        return model(input_ids=ids).logits[:, -ids.shape[1] :].contiguous()


def make(name, folder):
    torch.manual_seed(11)
    base = base_of(name)
    ids = torch.randint(0, base.config.vocab_size, (2, 9))
    before = logits_of(base, ids)
    model = get_peft_model(base, config_of(name)).eval()
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        noise = torch.randn(parameter.shape)
        if "magnitude" in key or "ia3" in key:  # around what they begin with
            parameter.data = parameter.data * (1 + 0.3 * noise)
        elif "modules_to_save" in key:
            parameter.data = parameter.data + 0.1 * noise
        else:
            parameter.data = noise * (0.3 if "lora_" in key else 0.5)
    after = logits_of(model, ids)
    moved = float((after - before).abs().max())
    if moved < MOVED:
        raise SystemExit(f"{name}: the adapter moves the logits by {moved} only")
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = None  # a path of the machine it was made on
    for key in ("target_modules", "feedforward_modules"):
        if config.get(key):
            config[key] = sorted(config[key])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    save_file({"input_ids": ids, "logits": after, "base": before}, folder / "io.safetensors")
    print(name, "moves the logits by", round(moved, 3))


def check(name, folder, io):
    ids = load_file(ADAPTERS / name / "io.safetensors")["input_ids"]
    loaded = PeftModel.from_pretrained(base_of(name), folder).eval()
    kept = set(load_file(folder / "adapter_model.safetensors"))
    own = set(get_peft_model_state_dict(loaded))
    if kept != own:
        raise SystemExit(f"{name}: names differ: {sorted(kept ^ own)[:4]}")
    theirs = logits_of(loaded, ids)
    apart = float((theirs - load_file(io)["logits"].view_as(theirs)).abs().max())
    moved = float((theirs - logits_of(base_of(name), ids)).abs().max())
    print(f"{name}: logits differ by {apart:.2e}, the adapter moves them by {moved:.3f}")
    if apart > TOLERANCE or moved < MOVED:
        raise SystemExit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    parser.add_argument("--case", choices=sorted(CASES))
    parser.add_argument("--io", type=pathlib.Path)
    args = parser.parse_args()
    if args.out:
        for case in [args.case] if args.case else CASES:
            (args.out / case).mkdir(parents=True, exist_ok=True)
            make(case, args.out / case)
    if args.check:
        check(args.case, args.check, args.io)
